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
from mmdp.core.errors import UnlikelyDataWarning
from mmdp.core.testing import (
    make_random_event_model,
    make_random_model,
    make_switching,
    with_model_initials,
)
from mmdp.data.posterior import predictive_probabilities, weights_by_step

STATES, ACTIONS, MODELS = ["low", "mid", "high"], ["wait", "act"], ["a", "b", "c"]


def make_labeled_model(seed: int = 2, **fields: Any) -> mmdp.MMDP:
    base = make_random_model(seed, n_models=3, n_states=3, n_actions=2, horizon=0, has_masks=False)
    P = 0.9 * base.transitions + 0.1 / 3  # every step is possible
    return mmdp.MMDP(
        P,
        base.rewards,
        weights=base.weights,
        states=STATES,
        actions=ACTIONS,
        models=MODELS,
        **fields,
    )


def enumerate_posterior(model: mmdp.MMDP, steps: list[tuple[int, int, int]]) -> np.ndarray:
    """sum over all sequences of hidden models of their probability, by the model at the end."""
    P, K = model.transitions, model.model_transitions
    joint = model.weights * (model.initial[:, steps[0][0]] if model.initial.ndim == 2 else 1.0)
    for t, (s, a, next_state) in enumerate(steps):
        transitions = P[t] if P.ndim == 5 else P
        joint = np.array(
            [
                sum(joint[m] * transitions[m, s, a, next_state] * K[m, n] for m in range(len(K)))
                for n in range(len(K))
            ]
        )
    return joint / joint.sum()


STEPS = [(0, 1, 2), (2, 0, 1), (1, 1, 1), (1, 0, 0)]


@pytest.mark.parametrize("case", ["still", "changes", "apart", "events", "varies"])
def test_weights_are_those_of_bayes_rule(case: str) -> None:
    model = make_labeled_model()
    if case == "events":
        model = make_random_event_model(4)
        P = model.transitions if model.horizon is None else model.transitions[0]
        s, a, z = np.argwhere(P.min(axis=0) > 0)[0]
        steps = [(int(s), int(a), int(z))]
    else:
        model = {
            "still": model,
            "changes": make_switching(model, 1),
            "apart": with_model_initials(model, 1),
            "varies": _make_time_varying_model(),
        }[case]
        steps = STEPS
    log = dict(zip(("state", "action", "next_state"), np.array(steps).T, strict=True))
    weights = weights_by_step(model, log)
    assert weights.shape == (len(steps) + 1, model.n_models)
    for n in range(1, len(steps) + 1):
        np.testing.assert_allclose(
            weights[n], enumerate_posterior(model, steps[:n]), rtol=1e-9, atol=1e-12
        )
    np.testing.assert_array_equal(model.update(log).weights, weights[-1])


def _make_time_varying_model() -> mmdp.MMDP:
    rng = np.random.default_rng(4)
    return mmdp.MMDP(rng.dirichlet(np.ones(3), (5, 3, 3, 2)), rng.normal(size=(5, 3, 3, 2)))


def test_labels_ids_files_and_one_step_after_another_agree(tmp_path: Path) -> None:
    model = make_labeled_model(initial=[0, 1, 0])
    frame = pd.DataFrame(
        [(STATES[s], ACTIONS[a], STATES[z]) for s, a, z in STEPS],
        columns=["state", "action", "next_state"],
    )
    frame["time"] = [2021, 2022, 2023, 2024]
    frame = frame.iloc[::-1]  # by time, not by place
    frame.to_csv(tmp_path / "log.csv", index=False)
    stepwise = model
    for s, a, z in STEPS:
        stepwise = stepwise.update(s, ACTIONS[a], z, initial="last")
    expected = enumerate_posterior(model, STEPS)
    for log in (frame, tmp_path / "log.csv"):
        updated = model.update(log, initial="last")
        np.testing.assert_allclose(updated.weights, expected, rtol=1e-12)
        assert updated.initial.tolist() == [1, 0, 0]
    np.testing.assert_allclose(stepwise.weights, expected, rtol=1e-12)
    assert stepwise.initial.tolist() == [1, 0, 0]
    assert model.update(0, 1, 2).initial.tolist() == [0, 1, 0]


def test_ids_are_those_of_the_model_even_if_none_is_0() -> None:
    model = make_random_model(3, n_models=3, n_states=3, n_actions=2, horizon=0)
    P = model.transitions
    expected = model.weights * P[:, 1, 1, 2]
    np.testing.assert_allclose(model.update(1, 1, 2).weights, expected / expected.sum())


def test_a_step_whose_first_state_counts_in_every_call_has_a_warning() -> None:
    """By hand, the first state counts once; without initial="last" each call counts its own."""
    model = with_model_initials(make_labeled_model(), 3)
    wrong, right = model, model
    for s, a, z in STEPS:
        with pytest.warns(
            mmdp.core.errors.MMDPWarning, match=r"initial distributions.*pass initial='last'"
        ):
            wrong = wrong.update(s, a, z)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            right = right.update(s, a, z, initial="last")
    np.testing.assert_allclose(right.weights, enumerate_posterior(model, STEPS), rtol=1e-12)
    assert np.abs(wrong.weights - right.weights).max() > 0.01
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.update({"state": [0], "action": [1], "next_state": [2]})  # a log has episodes
        make_labeled_model().update(0, 1, 2)  # models begin together


def test_a_step_before_which_models_switch_in_every_call_has_a_warning() -> None:
    """By hand, models switch once after each decision; without initial="last", also before it."""
    model = make_switching(_make_time_varying_model(), 1)
    wrong = right = model
    for t, (s, a, z) in enumerate(STEPS):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            right = right.update(s, a, z, time=0, initial="last")
            if t == 0:
                wrong = wrong.update(s, a, z, time=t)
        if t > 0:
            with pytest.warns(mmdp.core.errors.MMDPWarning, match=f"over the {t} decision.*before"):
                wrong = wrong.update(s, a, z, time=t)
    np.testing.assert_allclose(right.weights, enumerate_posterior(model, STEPS), rtol=1e-12)
    assert np.abs(wrong.weights - right.weights).max() > 0.001


def test_every_episode_counts_and_so_do_their_first_states() -> None:
    model = with_model_initials(make_labeled_model(), 3)
    log = pd.DataFrame(STEPS * 2, columns=["state", "action", "next_state"])
    log["episode"] = ["x"] * 4 + ["y"] * 4
    likelihood = enumerate_posterior(model, STEPS) / model.weights
    expected = model.weights * likelihood**2
    np.testing.assert_allclose(model.update(log).weights, expected / expected.sum(), rtol=1e-9)
    with pytest.raises(mmdp.InputError, match="2 episodes have no last state in common"):
        model.update(log, initial="last")
    with pytest.raises(mmdp.InputError, match="one episode at a time"):
        make_switching(make_labeled_model(), 1).update(log)


def test_what_varies_with_time_goes_on_from_the_last_time() -> None:
    model = _make_time_varying_model()
    P = model.transitions
    updated = model.update(0, 1, 2, time=3, initial="last")
    expected = P[3, :, 0, 1, 2] / P[3, :, 0, 1, 2].sum()
    np.testing.assert_allclose(updated.weights, expected)
    assert updated.horizon == 1
    np.testing.assert_array_equal(updated.rewards[0], model.rewards[4])
    np.testing.assert_array_equal(updated.transitions[0], P[4])
    value = expected @ model.rewards[4, :, 2]
    assert math.isclose(mmdp.solve(updated).value, value.max())
    with pytest.raises(mmdp.InputError, match=r"outside 0\.\.4"):
        model.update(0, 1, 2, time=7)
    with pytest.raises(mmdp.InputError, match="no decision is left at time 5"):
        model.update(0, 1, 2, time=4, initial="last")


def test_solving_after_updates_equals_the_best_history_policy() -> None:
    """Planning by updates is worth what one plan with memory is worth."""
    model = make_random_model(5, n_models=3, n_states=3, n_actions=2, horizon=0, discount=0.9)
    find_best_value = mmdp.testing.find_best_history_value
    s = int(model.initial.argmax())
    initial_model, best_value = model.replace(initial=np.eye(3)[s]), -np.inf
    for a in np.flatnonzero(model.allowed[s]):
        value = float(model.weights @ model.rewards[:, s, a])
        for z in range(3):
            prob = float(model.weights @ model.transitions[:, s, a, z])
            if prob > 0:
                updated = initial_model.update(s, int(a), z, initial="last")
                value += model.discount * prob * find_best_value(updated, 2)
        best_value = max(best_value, value)
    assert math.isclose(best_value, find_best_value(initial_model, 3), rel_tol=1e-12)


def test_steps_that_no_model_explains_are_named(tmp_path: Path) -> None:
    P = [[[[1.0, 0.0]], [[0.0, 1.0]]], [[[0.5, 0.5]], [[0.0, 1.0]]]]
    model = mmdp.MMDP(P, [[1.0], [0.0]], states=["up", "down"], actions=["go"])
    log = tmp_path / "log.csv"
    log.write_text("state,action,next_state\nup,go,down\ndown,go,up\n")
    with pytest.raises(mmdp.InputError, match=r"line 3: no model .* 'go' from 'down' to 'up'"):
        model.update(log)
    certain_model = model.replace(weights=[1.0, 0.0])
    with pytest.raises(mmdp.InputError, match="still possible"):
        certain_model.update("up", "go", "down")
    with pytest.raises(mmdp.InputError, match="state 'dwn'.*; correct it$"):
        model.update("up", "go", "dwn")
    with pytest.raises(mmdp.InputError, match="initial must be 'last' or None"):
        model.update("up", "go", "down", initial="first")  # type: ignore[arg-type]
    with pytest.raises(mmdp.InputError, match="a log has a column time"):
        model.update(log, time=3)


@pytest.mark.parametrize("is_time_varying", [False, True])
def test_models_change_in_every_step_that_passed_unseen(is_time_varying: bool) -> None:
    """All sequences of hidden models are summed, with a step that says nothing where none is."""
    model = make_switching(
        _make_time_varying_model() if is_time_varying else make_labeled_model(), 1
    )
    P, K = model.transitions, model.model_transitions
    steps_by_time = {1: (0, 1, 2), 2: (2, 0, 1), 4: (0, 0, 0)}
    first_time = 0 if is_time_varying else 1  # the time at which the weights hold
    joint = model.weights
    for t in range(first_time, 5):
        if t in steps_by_time:
            s, a, z = steps_by_time[t]
            joint = joint * (P[t] if is_time_varying else P)[:, s, a, z]
        joint = np.array([sum(joint[m] * K[m, n] for m in range(3)) for n in range(3)])
    columns = dict(
        zip(
            ("state", "action", "next_state"),
            zip(*steps_by_time.values(), strict=True),
            strict=True,
        )
    )
    weights = model.update({"time": list(steps_by_time), **columns}).weights
    np.testing.assert_allclose(weights, joint / joint.sum(), rtol=1e-9)


def test_labels_of_times_go_on_after_the_decisions_that_passed() -> None:
    model = make_labeled_model(time_labels={"year": range(2020, 2040)})
    log = {"time": [2020, 2023], "state": [0, 1], "action": [0, 1], "next_state": [1, 2]}
    assert model.update(log, initial="last").time_labels.describe_range(0, 1) == "year 2024 to 2025"


def test_probabilities_of_steps_multiply_to_that_of_the_log() -> None:
    log = dict(zip(("state", "action", "next_state"), np.array(STEPS).T, strict=True))
    for model in (make_labeled_model(), with_model_initials(make_labeled_model(), 1)):
        P = model.transitions
        initial_probs = model.initial[:, STEPS[0][0]] if model.initial.ndim == 2 else 1.0
        log_probs = (
            model.weights * initial_probs * np.prod([P[:, s, a, z] for s, a, z in STEPS], axis=0)
        )
        assert math.isclose(predictive_probabilities(model, log).prod(), log_probs.sum())


def test_a_step_that_no_model_expects_is_named_in_a_warning(tmp_path: Path) -> None:
    P = np.array([[[[1 - x, x]], [[0.5, 0.5]]] for x in (2e-37, 1e-36)])
    model = mmdp.MMDP(P, [[1.0], [0.0]], states=["up", "down"], actions=["go"])
    log = tmp_path / "log.csv"
    log.write_text("time,state,action,next_state\n2,up,go,down\n1,up,go,up\n0,up,go,up\n")
    with pytest.warns(
        UnlikelyDataWarning, match=r"log.csv, line 2: 'go' from 'up' to 'down' .* 6e-37"
    ):
        updated = model.update(log)
    np.testing.assert_allclose(updated.weights, [1 / 6, 5 / 6])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mmdp.MMDP(
            np.clip(P, 2e-6, 1 - 2e-6), model.rewards, states=["up", "down"], actions=["go"]
        ).update(log)


def test_columns_of_unequal_length_are_refused() -> None:
    for columns in (([0, 1], [0], [1, 1]), ([0, 1], [0, 1], [1, 1, 0]), ([[0, 1]], [0], [1])):
        with pytest.raises(
            mmdp.InputError, match=r"log.*: columns of different|\[0, 1\] is no state"
        ):
            make_labeled_model().update(*columns)


def test_the_first_states_of_models_say_nothing_about_later_times() -> None:
    model = mmdp.MMDP(
        np.full((4, 2, 2, 1, 2), 0.5), np.zeros((2, 1)), initial=[[0.9, 0.1], [0.1, 0.9]]
    )
    assert model.update(0, 0, 1, time=2).weights == pytest.approx([0.5, 0.5])
    assert model.update(0, 0, 1, time=0).weights == pytest.approx([0.9, 0.1])
