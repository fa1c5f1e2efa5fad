"""What cannot fit is refused by arithmetic, before anything is allocated."""

from __future__ import annotations

import resource
import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

import mmdp
from mmdp.core.errors import MemoryLimitError, memory_here
from mmdp.core.testing import make_random_model


def fail_if_called(state: Any) -> Any:
    raise AssertionError("nothing is asked of a function before the size is known to fit")


def test_axes_that_exceed_memory_are_refused() -> None:
    with pytest.raises(MemoryLimitError) as error_info:
        mmdp.from_step(
            fail_if_called,
            states={k: range(100) for k in "abcdefgh"},
            actions={"x": range(10)},
            events={"demand": range(20)},
            event_probs=fail_if_called,
        )
    assert "10,000,000,000,000,000 states, 10 actions and 20 events would" in str(error_info.value)
    assert str(error_info.value).endswith("make the axes coarser, or leave out an axis")
    assert "\n" not in str(error_info.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mmdp.MMDP([[csr_array(np.eye(99))]] * 9, np.ones((99, 1))), "the transitions"),
        (lambda: mmdp.domains.garnet(n_models=90, n_states=9), "180 models of these sizes"),
        (
            lambda: mmdp.from_step(
                fail_if_called, states={"s": mmdp.Grid(0, 1, 90)}, actions={"a": range(9)}
            ),
            "90 states, 9 actions and 1 event would take 25.9 kB",
        ),
        (
            lambda: mmdp.MMDP([[[[1.0]]]], [[1.0]], time_labels=range(90)),
            "90 time labels would take 22.5 kB",
        ),
        (lambda: SMALL_MODEL.replace(states=range(90)), "90 state labels would take 22.5 kB"),
        (lambda: mmdp.solve(SMALL_MODEL, 90, "qmdp"), "a policy over 90 decisions would take"),
    ],
    ids=["arrays", "garnet", "grid", "times", "states", "planner"],
)
def test_models_that_exceed_memory_are_refused(
    call: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmdp.core.errors.memory_here", lambda: 3500)
    with pytest.raises(MemoryLimitError, match=message) as error_info:
        call()
    assert "; " in str(error_info.value)  # what to do


MANY = 10**12
LOG = {"state": [0, 1], "action": [0, 0], "next_state": [1, 0], "reward": [1.0, 0.0]}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mmdp.solve(SMALL_MODEL, 2, mmdp.methods.CADP(n_init=MANY)), "policies would take"),
        (
            lambda: mmdp.solve(SMALL_MODEL, 2, mmdp.methods.Exact(n_init=MANY)),
            "policies would take",
        ),
        (
            lambda: mmdp.solve(SMALL_MODEL, 2, mmdp.methods.POMCP(n_queries=MANY)),
            "take fewer n_queries",
        ),
        (
            lambda: mmdp.solve(SMALL_MODEL, MANY, policy_class=mmdp.policies.Tree()),
            "shorten horizon=",
        ),
        (lambda: mmdp.measures.value_by_leaves(SMALL_MODEL, 2, MANY), "take fewer n_leaves"),
        (lambda: mmdp.measures.sample_size_curve(SMALL_MODEL, MANY), "shorten horizon="),
        (
            lambda: mmdp.measures.stability(SMALL_MODEL, 2, n_resamples=MANY),
            "take fewer n_resamples",
        ),
        (lambda: mmdp.Grid(0, 1, MANY), "a Grid of 1,000,000,000,000 points would take 8 TB"),
        (
            lambda: mmdp.MMDP([[[[1.0]]]], [[1.0]], time_labels=range(MANY)),
            "time_labels, .* shorten it",
        ),
        (
            lambda: SMALL_MODEL.replace(time_labels={"age": range(10**30)}),
            "time_labels, .* shorten it",
        ),
        (
            lambda: mmdp.from_step(fail_if_called, states={"s": range(MANY)}, actions={"a": [0]}),
            "states, ",
        ),
        (
            lambda: mmdp.from_step(
                fail_if_called, states={"s": [0]}, actions={"a": [0]}, time_labels=MANY
            ),
            "time_labels",
        ),
        (lambda: SMALL_MODEL.replace(states=range(MANY)), "states, .* shorten it"),
        (lambda: coordinates((1, MANY, 2)), "make the shape smaller"),
        (lambda: coordinates((MANY, 2, 2)), "make the shape smaller"),
        (lambda: coordinates((1, 2, 10**18)), "make the shape smaller"),
        (lambda: mmdp.fit(LOG, n_models=MANY), "sample fewer models"),
        (lambda: mmdp.policies.MarkovPolicy.random(SMALL_MODEL, MANY), "take fewer"),
        (lambda: mmdp.policies.StationaryPolicy([0, 1]).to_markov(MANY), "take fewer"),
        (lambda: mmdp.domains.inventory(n_train=MANY), "take fewer n_train"),
    ],
)
def test_counts_that_cannot_fit(call: Any, message: str) -> None:
    with pytest.raises(MemoryLimitError):  # loads what is loaded when it is used
        call()
    tracemalloc.start()
    try:
        with pytest.raises(MemoryLimitError, match=message) as error_info:
            call()
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error_info.value)


def coordinates(shape: tuple[int, int, int]) -> mmdp.MMDP:
    return mmdp.MMDP.from_coordinates(
        model=[0], state=[0], action=[0], next_state=[0], probability=[1.0], shape=shape
    )


SMALL_MODEL = make_random_model(1, n_models=2, n_states=2, n_actions=3, horizon=0)


def test_the_limit_of_a_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (123_456, 123_456))
    assert memory_here() == 123_456
