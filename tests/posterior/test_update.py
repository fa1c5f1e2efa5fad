"""Weights after what was seen, against Bayes' rule written out."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp.errors import UnlikelyData
from mmdp.posterior import predictive_probabilities, weights_by_step
from mmdp.testing import beginning_apart, changing, random_events, random_model

STATES, ACTIONS, MODELS = ["low", "mid", "high"], ["wait", "act"], ["a", "b", "c"]


def named(seed: int = 2, **changes: Any) -> mmdp.MMDP:
    base = random_model(seed, n_models=3, n_states=3, n_actions=2, horizon=0, masks=False)
    P = 0.9 * base.transitions + 0.1 / 3  # every step is possible
    return mmdp.MMDP(
        P, base.rewards, weights=base.weights, states=STATES, actions=ACTIONS, models=MODELS,
        **changes,
    )  # fmt: skip


def by_hand(model: mmdp.MMDP, steps: list[tuple[int, int, int]]) -> np.ndarray:
    """sum over all sequences of hidden models of their probability, by the model at the end."""
    P, K = model.transitions, model.model_transitions
    joint = model.weights * (model.initial[:, steps[0][0]] if model.initial.ndim == 2 else 1.0)
    for t, (s, a, z) in enumerate(steps):
        now = P[t] if P.ndim == 5 else P
        joint = np.array([sum(joint[m] * now[m, s, a, z] * K[m, n] for m in range(len(K)))
                          for n in range(len(K))])  # fmt: skip
    return joint / joint.sum()


STEPS = [(0, 1, 2), (2, 0, 1), (1, 1, 1), (1, 0, 0)]


@pytest.mark.parametrize("case", ["still", "changes", "apart", "events", "varies"])
def test_weights_are_those_of_bayes_rule(case: str) -> None:
    model = named()
    if case == "events":
        model = random_events(4)
        P = model.transitions if model.horizon is None else model.transitions[0]
        s, a, z = np.argwhere(P.min(axis=0) > 0)[0]
        steps = [(int(s), int(a), int(z))]
    else:
        model = {"still": model, "changes": changing(model, 1), "apart": beginning_apart(model, 1),
                 "varies": _varying()}[case]  # fmt: skip
        steps = STEPS
    log = dict(zip(("state", "action", "next_state"), np.array(steps).T, strict=True))
    found = weights_by_step(model, log)
    assert found.shape == (len(steps) + 1, model.n_models)
    for n in range(1, len(steps) + 1):
        np.testing.assert_allclose(found[n], by_hand(model, steps[:n]), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.update(log).weights, found[-1])


def _varying() -> mmdp.MMDP:
    rng = np.random.default_rng(4)
    return mmdp.MMDP(rng.dirichlet(np.ones(3), (5, 3, 3, 2)), rng.normal(size=(5, 3, 3, 2)))


def test_labels_ids_files_and_one_step_after_another_agree(tmp_path: Path) -> None:
    model = named(initial=[0, 1, 0])
    frame = pd.DataFrame(
        [(STATES[s], ACTIONS[a], STATES[z]) for s, a, z in STEPS],
        columns=["state", "action", "next_state"],
    )
    frame["time"] = [2021, 2022, 2023, 2024]
    frame = frame.iloc[::-1]  # by time, not by place
    frame.to_csv(tmp_path / "log.csv", index=False)
    one_by_one = model
    for s, a, z in STEPS:
        one_by_one = one_by_one.update(s, ACTIONS[a], z, initial="last")
    expected = by_hand(model, STEPS)
    for log in (frame, tmp_path / "log.csv"):
        found = model.update(log, initial="last")
        np.testing.assert_allclose(found.weights, expected, rtol=1e-12)
        assert found.initial.tolist() == [1, 0, 0]
    np.testing.assert_allclose(one_by_one.weights, expected, rtol=1e-12)
    assert one_by_one.initial.tolist() == [1, 0, 0]
    assert model.update(0, 1, 2).initial.tolist() == [0, 1, 0]


def test_ids_are_those_of_the_model_even_if_none_is_0() -> None:
    model = random_model(3, n_models=3, n_states=3, n_actions=2, horizon=0)
    P = model.transitions
    expected = model.weights * P[:, 1, 1, 2]
    np.testing.assert_allclose(model.update(1, 1, 2).weights, expected / expected.sum())


def test_every_episode_counts_and_so_do_their_first_states() -> None:
    model = beginning_apart(named(), 3)
    log = pd.DataFrame(STEPS * 2, columns=["state", "action", "next_state"])
    log["episode"] = ["x"] * 4 + ["y"] * 4
    once = by_hand(model, STEPS) / model.weights
    expected = model.weights * once**2
    np.testing.assert_allclose(model.update(log).weights, expected / expected.sum(), rtol=1e-9)
    with pytest.raises(mmdp.InputError, match="2 episodes have no last state in common"):
        model.update(log, initial="last")
    with pytest.raises(mmdp.InputError, match="one episode at a time"):
        changing(named(), 1).update(log)


def test_what_varies_with_time_goes_on_from_the_last_time() -> None:
    model = _varying()
    P = model.transitions
    found = model.update(0, 1, 2, time=3, initial="last")
    expected = P[3, :, 0, 1, 2] / P[3, :, 0, 1, 2].sum()
    np.testing.assert_allclose(found.weights, expected)
    assert found.horizon == 1
    np.testing.assert_array_equal(found.rewards[0], model.rewards[4])
    np.testing.assert_array_equal(found.transitions[0], P[4])
    value = expected @ model.rewards[4, :, 2]
    assert math.isclose(mmdp.solve(found).value, value.max())
    with pytest.raises(mmdp.InputError, match=r"outside 0\.\.4"):
        model.update(0, 1, 2, time=7)
    with pytest.raises(mmdp.InputError, match="no decision is left at time 5"):
        model.update(0, 1, 2, time=4, initial="last")


def test_the_next_plan_is_that_of_the_belief_after_the_step() -> None:
    """Planning by updates is worth what one plan with memory is worth."""
    model = random_model(5, n_models=3, n_states=3, n_actions=2, horizon=0, discount=0.9)
    best = mmdp.testing.best_with_memory
    s = int(model.initial.argmax())
    start, total = model.replace(initial=np.eye(3)[s]), -np.inf
    for a in np.flatnonzero(model.allowed[s]):
        value = float(model.weights @ model.rewards[:, s, a])
        for z in range(3):
            chance = float(model.weights @ model.transitions[:, s, a, z])
            if chance > 0:
                after = start.update(s, int(a), z, initial="last")
                value += model.discount * chance * best(after, 2)
        total = max(total, value)
    assert math.isclose(total, best(start, 3), rel_tol=1e-12)


def test_steps_that_no_model_explains_are_named(tmp_path: Path) -> None:
    P = [[[[1.0, 0.0]], [[0.0, 1.0]]], [[[0.5, 0.5]], [[0.0, 1.0]]]]
    model = mmdp.MMDP(P, [[1.0], [0.0]], states=["up", "down"], actions=["go"])
    log = tmp_path / "log.csv"
    log.write_text("state,action,next_state\nup,go,down\ndown,go,up\n")
    with pytest.raises(mmdp.InputError, match=r"line 3: no model .* 'go' from 'down' to 'up'"):
        model.update(log)
    sure = model.replace(weights=[1.0, 0.0])
    with pytest.raises(mmdp.InputError, match="still possible"):
        sure.update("up", "go", "down")
    with pytest.raises(mmdp.InputError, match="state 'dwn'.*; correct it$"):
        model.update("up", "go", "dwn")
    with pytest.raises(mmdp.InputError, match="initial must be 'last' or None"):
        model.update("up", "go", "down", initial="first")  # type: ignore[arg-type]
    with pytest.raises(mmdp.InputError, match="a log has a column time"):
        model.update(log, time=3)


@pytest.mark.parametrize("varies", [False, True])
def test_models_change_in_every_step_that_passed_unseen(varies: bool) -> None:
    """All sequences of hidden models are summed, with a step that says nothing where none is."""
    model = changing(_varying() if varies else named(), 1)
    P, K = model.transitions, model.model_transitions
    seen = {1: (0, 1, 2), 2: (2, 0, 1), 4: (0, 0, 0)}
    first = 0 if varies else 1  # the time at which the weights hold
    joint = model.weights
    for t in range(first, 5):
        if t in seen:
            s, a, z = seen[t]
            joint = joint * (P[t] if varies else P)[:, s, a, z]
        joint = np.array([sum(joint[m] * K[m, n] for m in range(3)) for n in range(3)])
    columns = dict(zip(("state", "action", "next_state"), zip(*seen.values(), strict=True),
                       strict=True))  # fmt: skip
    found = model.update({"time": list(seen), **columns}).weights
    np.testing.assert_allclose(found, joint / joint.sum(), rtol=1e-9)


def test_labels_of_times_go_on_after_the_decisions_that_passed() -> None:
    model = named(times={"year": range(2020, 2040)})
    log = {"time": [2020, 2023], "state": [0, 1], "action": [0, 1], "next_state": [1, 2]}
    assert model.update(log, initial="last").times.span(0, 1) == "year 2024 to 2025"


def test_probabilities_of_steps_multiply_to_that_of_the_log() -> None:
    log = dict(zip(("state", "action", "next_state"), np.array(STEPS).T, strict=True))
    for model in (named(), beginning_apart(named(), 1)):
        P = model.transitions
        begin = model.initial[:, STEPS[0][0]] if model.initial.ndim == 2 else 1.0
        whole = model.weights * begin * np.prod([P[:, s, a, z] for s, a, z in STEPS], axis=0)
        assert math.isclose(predictive_probabilities(model, log).prod(), whole.sum())


def test_a_step_that_no_model_expects_is_named_in_a_warning(tmp_path: Path) -> None:
    P = np.array([[[[1 - x, x]], [[0.5, 0.5]]] for x in (2e-37, 1e-36)])
    model = mmdp.MMDP(P, [[1.0], [0.0]], states=["up", "down"], actions=["go"])
    log = tmp_path / "log.csv"
    log.write_text("time,state,action,next_state\n2,up,go,down\n1,up,go,up\n0,up,go,up\n")
    with pytest.warns(UnlikelyData, match=r"log.csv, line 2: 'go' from 'up' to 'down' .* 6e-37"):
        found = model.update(log)
    np.testing.assert_allclose(found.weights, [1 / 6, 5 / 6])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mmdp.MMDP(np.clip(P, 2e-6, 1 - 2e-6), model.rewards, states=["up", "down"],
                  actions=["go"]).update(log)  # fmt: skip


def test_columns_of_unequal_length_are_refused() -> None:
    for columns in (([0, 1], [0], [1, 1]), ([0, 1], [0, 1], [1, 1, 0]), ([[0, 1]], [0], [1])):
        with pytest.raises(
            mmdp.InputError, match=r"log.*: columns of different|\[0, 1\] is no state"
        ):
            named().update(*columns)


def test_the_first_states_of_models_say_nothing_about_later_times() -> None:
    model = mmdp.MMDP(
        np.full((4, 2, 2, 1, 2), 0.5), np.zeros((2, 1)), initial=[[0.9, 0.1], [0.1, 0.9]]
    )
    assert model.update(0, 0, 1, time=2).weights == pytest.approx([0.5, 0.5])
    assert model.update(0, 0, 1, time=0).weights == pytest.approx([0.9, 0.1])
