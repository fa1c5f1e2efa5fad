"""mmdp info without DATA: the methods, the machine in a few lines, and what is broken on it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.cli import info as system
from tests.cli.calls import fits_width, run


@pytest.fixture(autouse=True)
def _hide_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """jax takes seconds to compile."""
    known = system._find_version
    monkeypatch.setattr(system, "_find_version", lambda x: None if x == "jax" else known(x))


def test_the_report_names_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [x for x in os.environ if x.startswith(system.SETTING_PREFIXES)]:
        monkeypatch.delenv(name)  # of this machine, and of Dask's in the same process
    monkeypatch.setenv("MMDP_NUM_THREADS", "3")
    result = run("info")
    assert result.code == 0, result.err
    assert fits_width(result.out)
    facts = result.parse_facts()
    assert facts["mmdp"].startswith(f"{mmdp.__version__} in ")
    assert f"numpy {np.__version__}" in facts["packages"]
    assert facts["threads"].startswith("3 threads on ")
    assert facts["settings"] == "MMDP_NUM_THREADS 3"
    assert facts["numba"] == "works"
    output = run("info", "--json").json["system"]
    assert output["packages"]["jax"] is None


def test_a_broken_backend_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    original = mmdp.solve

    def raise_on_numba(*arguments: Any, backend: str) -> Any:
        if backend == "numba":
            raise OSError("libllvm\nis gone")
        return original(*arguments, backend=backend)

    monkeypatch.setattr(mmdp, "solve", raise_on_numba)
    assert system._try_backend("numba", "cadp") == "fails: OSError: libllvm is gone"


def test_a_wrong_value_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    original = mmdp.solve
    monkeypatch.setattr(
        mmdp,
        "solve",
        lambda model, horizon, method, backend: original(
            model, horizon - (backend == "numba"), method, backend="numpy"
        ),
    )
    assert system._try_backend("numba", "cadp").startswith("wrong: ")
