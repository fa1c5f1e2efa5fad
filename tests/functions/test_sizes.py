"""What cannot fit is refused by arithmetic, before anything is allocated."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

import mmdp
from mmdp.errors import MemoryLimitError
from mmdp.kernels.problem import memory_here
from mmdp.testing import random_model


def never(state: Any) -> Any:
    raise AssertionError("nothing is asked of a function before the size is known to fit")


def test_axes_of_a_function_that_do_not_fit() -> None:
    with pytest.raises(MemoryLimitError) as refused:
        mmdp.from_step(
            never, states={k: range(100) for k in "abcdefgh"}, actions={"x": range(10)},
            events={"demand": range(20)}, chance=never,
        )  # fmt: skip
    assert "10,000,000,000,000,000 states, 10 actions and 20 events would" in str(refused.value)
    assert str(refused.value).endswith("make the axes coarser, or leave out an axis")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: mmdp.MMDP([[csr_array(np.eye(99))]] * 9, np.ones((99, 1))), "the transitions"),
        (lambda: mmdp.domains.garnet(n_models=90, n_states=9), "90 models of these sizes"),
        (lambda: mmdp.from_step(never, states={"s": mmdp.Grid(0, 1, 90)}, actions={"a": range(9)}),
         "90 states, 9 actions and 1 event would take 25.9 kB"),
        (lambda: mmdp.solve(SMALL, 90, "qmdp"), "a policy over 90 decisions would take"),
    ],
    ids=["arrays", "garnet", "grid", "planner"],
)  # fmt: skip
def test_small_machines(call: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdp.support.memory_here", lambda: 3500)
    with pytest.raises(MemoryLimitError, match=told) as refused:
        call()
    assert "; " in str(refused.value)  # what to do


SMALL = random_model(1, n_models=2, n_states=2, n_actions=3, horizon=0)


def test_the_limit_of_a_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (123_456, 123_456))
    assert memory_here() == 123_456
