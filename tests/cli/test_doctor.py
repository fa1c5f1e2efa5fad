"""mmdp doctor: the machine in a few lines, and what is broken on it."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.cli import doctor
from tests.cli.calls import fits, run


@pytest.fixture(autouse=True)
def _no_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """jax takes seconds to compile."""
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda x: None if x == "jax" else known(x))


def test_the_report_names_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [x for x in os.environ if x.startswith(doctor.SETTINGS)]:
        monkeypatch.delenv(name)  # of this machine, and of Dask's in the same process
    monkeypatch.setenv("MMDP_NUM_THREADS", "3")
    done = run("doctor")
    assert done.code == 0, done.err
    assert fits(done.out)
    facts = done.facts()
    assert facts["mmdp"].startswith(f"{mmdp.__version__} in ")
    assert f"numpy {np.__version__}" in facts["packages"]
    assert facts["threads"].startswith("3 threads on ")
    assert facts["settings"] == "MMDP_NUM_THREADS 3"
    assert facts["numba"].startswith("works, ")
    told = run("doctor", "--json").json
    assert told["packages"]["jax"] is None
    assert re.search(r" \(\d+ files?, ", told["cache"])


def test_a_broken_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = mmdp.solve

    def wrong(*arguments: Any, backend: str) -> Any:
        if backend == "numba":
            raise OSError("libllvm\nis gone")
        return plain(*arguments, backend=backend)

    monkeypatch.setattr(mmdp, "solve", wrong)
    assert doctor._trial("numba", "cadp") == "fails: OSError: libllvm is gone"


def test_a_wrong_value_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = mmdp.solve
    monkeypatch.setattr(
        mmdp, "solve", lambda model, horizon, method, backend: plain(
            model, horizon - (backend == "numba"), method, backend="numpy"
        )
    )  # fmt: skip
    assert doctor._trial("numba", "cadp").startswith("wrong: ")
