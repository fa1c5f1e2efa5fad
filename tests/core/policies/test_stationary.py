"""StationaryPolicy: its files, its labels, and the same as a policy of time and state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp

MODEL = mmdp.MMDP(
    np.full((2, 3, 2, 3), 1 / 3),
    np.arange(12.0).reshape(2, 3, 2),
    discount=0.9,
    states=["well", "ill", "dead"],
    actions=["wait", "treat"],
)
LABELS = {"state_labels": MODEL.state_labels, "action_labels": MODEL.action_labels}
DETERMINISTIC = mmdp.policies.StationaryPolicy([1, 0, 1], **LABELS)
RANDOMIZED = mmdp.policies.StationaryPolicy(
    probabilities=[[0.5, 0.5], [1, 0], [0.25, 0.75]], **LABELS
)


@pytest.mark.parametrize("suffix", ["csv", "json"])
@pytest.mark.parametrize("policy", [DETERMINISTIC, RANDOMIZED], ids=["deterministic", "randomized"])
def test_files_keep_the_policy(
    tmp_path: Path, suffix: str, policy: mmdp.policies.StationaryPolicy
) -> None:
    file = tmp_path / f"rule.{suffix}"
    mmdp.save_policy(policy, file)
    for model in (MODEL, None):
        loaded = mmdp.load_policy(file, model)
        assert isinstance(loaded, mmdp.policies.StationaryPolicy)
        assert loaded == policy
        assert loaded.state_labels == policy.state_labels
    assert mmdp.evaluate(MODEL, loaded).mean == mmdp.evaluate(MODEL, policy).mean


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_certificate_is_kept_with_the_policy(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rule.{suffix}"
    solution = mmdp.solve(MODEL, float("inf"), "exact")
    mmdp.save_policy(solution, file)
    certificate = mmdp.io.load_certificate(file, MODEL)
    assert certificate is not None
    assert solution.certificate is not None
    assert certificate.scope == solution.certificate.scope
    assert certificate.value == solution.bound
    mmdp.save_policy(mmdp.solve(MODEL, 3), file)
    assert isinstance(mmdp.load_policy(file, MODEL), mmdp.policies.MarkovPolicy)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state,action\nwell,wait\nill,wait\n", "no action for time 0, state 'dead'"),
        (
            "state,action,probability\nwell,wait,0.5\nwell,treat,0.5\nill,wait,1\n",
            "no action for time 0, state 'dead'",
        ),
        ("state,action\nwell,wait\nwell,wait\nill,treat\ndead,wait\n", "given twice"),
        ("state,action\nwell,go\nill,wait\ndead,wait\n", "the model has no action 'go'"),
        ("state\nwell\n", "no column 'action'; a policy has [time,]state,action"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "rule.csv"
    file.write_text(text)
    with pytest.raises(mmdp.InputError) as error:
        mmdp.load_policy(file, MODEL)
    assert message in str(error.value)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("policy", [DETERMINISTIC, RANDOMIZED], ids=["deterministic", "randomized"])
def test_episodes_are_truncated_with_a_small_tail(
    policy: mmdp.policies.StationaryPolicy, backend: str
) -> None:
    """With terminal values, which play no part, and rewards that do not vary: nothing is random."""
    constant_model = mmdp.MMDP(
        np.full((2, 3, 2, 3), 1 / 3),
        np.full((2, 3, 2), -5.0),
        discount=0.9,
        terminal=np.full((2, 3), 1e9),
    )
    simulated = mmdp.simulate(constant_model, policy, n_episodes=3, backend=backend)
    T, truncation_error = simulated.details["horizon"], simulated.details["truncation_error"]
    assert 0.9**T <= 1e-6 < 0.9 ** (T - 1)
    np.testing.assert_allclose(simulated.returns, -50 * (1 - 0.9**T))
    np.testing.assert_allclose(np.abs(simulated.returns + 50), truncation_error)
    evaluation = mmdp.evaluate(constant_model, policy, n_episodes=3, backend=backend)
    np.testing.assert_array_equal(evaluation.returns, simulated.returns)
    assert evaluation.details["truncation_error"] == truncation_error
    np.testing.assert_allclose(evaluation.oracle, -50)


def test_an_infinite_horizon_planner_is_simulated() -> None:
    class WaitingPlanner:
        name, horizon = "waiting", float("inf")

        def initial_memory(self, seed: int | None = 0) -> None: ...

        def act(self, memory: None, time: int, state: int) -> int:
            return 0

        def update(self, *_: object) -> None: ...

    simulated = mmdp.simulate(MODEL, WaitingPlanner(), n_episodes=200)
    exact = mmdp.evaluate(MODEL, mmdp.policies.StationaryPolicy([0, 0, 0], n_actions=2))
    assert abs(simulated.mean - exact.mean) <= 4 * simulated.stderr
    assert simulated.details["horizon"] == 132
    evaluation = mmdp.evaluate(MODEL, WaitingPlanner(), n_episodes=200)
    np.testing.assert_array_equal(evaluation.returns, simulated.returns)
    np.testing.assert_array_equal(evaluation.oracle, mmdp.evaluate(MODEL, DETERMINISTIC).oracle)
    assert mmdp.interop.Agent(WaitingPlanner())(1) == 0


def test_a_policy_that_does_not_fit_is_refused() -> None:
    with pytest.raises(mmdp.InputError, match="needs episodes that end"):
        mmdp.simulate(MODEL.replace(discount=1.0), DETERMINISTIC)
    with pytest.raises(mmdp.InputError, match="infinite horizon, the horizon is 4; give policy.t"):
        DETERMINISTIC.check(MODEL, 4)
    varying = mmdp.MMDP([[[[1.0]]]], [[[[1.0]]], [[[2.0]]]])
    policy = mmdp.policies.StationaryPolicy([0])
    with pytest.raises(mmdp.InputError, match="model varies over 2; give policy.to_markov"):
        mmdp.evaluate(varying, policy)
    assert mmdp.evaluate(varying, policy.to_markov(2)).mean == 3.0
    with pytest.raises(mmdp.InputError, match="covers 2 time steps, the horizon is 4"):
        DETERMINISTIC.to_markov(2).to_markov(4)
    with pytest.raises(mmdp.InputError, match="takes action 'wait' in state 'ill'"):
        RANDOMIZED.check(MODEL.replace(allowed=[[True, True], [False, True], [True, True]]))
    with pytest.raises(mmdp.InputError, match="an agent follows a policy"):
        mmdp.interop.Agent(mmdp.solve(MODEL, 3, "oracle"))
    with pytest.raises(mmdp.InputError, match="simulate.. takes a policy"):
        mmdp.simulate(MODEL, None)  # type: ignore[arg-type]


def test_repr_and_conversions() -> None:
    assert repr(DETERMINISTIC) == "StationaryPolicy(3 states, 2 actions, deterministic)"
    assert DETERMINISTIC.to_frame().columns.tolist() == ["state", "action", "idstate", "idaction"]
    assert DETERMINISTIC.to_frame()["action"].tolist() == ["treat", "wait", "treat"]
    assert DETERMINISTIC.to_markov(2).actions.tolist() == [[1, 0, 1], [1, 0, 1]]
    assert RANDOMIZED.to_markov(2).probabilities[1].tolist() == RANDOMIZED.probabilities.tolist()
    assert DETERMINISTIC != RANDOMIZED
    with pytest.raises(AttributeError):
        DETERMINISTIC.row = None  # type: ignore[assignment]
    with pytest.raises(mmdp.InputError, match="one row, not 2"):
        mmdp.policies.StationaryPolicy.from_row(DETERMINISTIC.to_markov(2))
    with pytest.raises(mmdp.InputError, match="the policy is for 2 states"):
        mmdp.evaluate(MODEL, mmdp.policies.StationaryPolicy([0, 1]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"actions": [[np.nan, 1], [0, 1]]}, r"actions have shape \(2, 2\); expected \(states\)"),
        ({"actions": [[0, 1], [0]]}, r"actions must be a table \(states\)"),
        ({"probabilities": [0.5, 0.5]}, r"have shape \(2,\); expected \(states, actions\)"),
        ({"probabilities": [[0.5, 0.5], [np.nan, 1]]}, "at state 1 are not a distribution"),
    ],
)
def test_messages_name_the_argument(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.policies.StationaryPolicy(**fields)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"state_labels": ["a"]}, "1 state labels for 2 states; give one to each"),
        ({"state_labels": ["a", "a"]}, "state label 'a' is used twice"),
        ({"action_labels": ["a", "b", "c"], "n_actions": 2}, "3 action labels for 2 actions"),
    ],
)
def test_labels_are_one_for_each_and_differ(labels, message):
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.policies.StationaryPolicy([0, 1], **labels)
