"""StationaryPolicy: its files, its labels, and the same as a policy of time and state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp

MODEL = mmdp.MMDP(
    np.full((2, 3, 2, 3), 1 / 3), np.arange(12.0).reshape(2, 3, 2), discount=0.9,
    states=["well", "ill", "dead"], actions=["wait", "treat"],
)  # fmt: skip
LABELS = {"state_labels": MODEL.state_labels, "action_labels": MODEL.action_labels}
SHARP = mmdp.StationaryPolicy([1, 0, 1], **LABELS)
SOFT = mmdp.StationaryPolicy(probabilities=[[0.5, 0.5], [1, 0], [0.25, 0.75]], **LABELS)


@pytest.mark.parametrize("suffix", ["csv", "json"])
@pytest.mark.parametrize("policy", [SHARP, SOFT], ids=["sharp", "soft"])
def test_files_keep_it(tmp_path: Path, suffix: str, policy: mmdp.StationaryPolicy) -> None:
    file = tmp_path / f"rule.{suffix}"
    mmdp.save_policy(policy, file)
    for model in (MODEL, None):
        again = mmdp.load_policy(file, model)
        assert isinstance(again, mmdp.StationaryPolicy)
        assert again == policy
        assert again.state_labels == policy.state_labels
    assert mmdp.evaluate(again, MODEL).mean == mmdp.evaluate(policy, MODEL).mean


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_proof_is_kept_with_it(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rule.{suffix}"
    solution = mmdp.solve(MODEL, float("inf"), "exact")
    mmdp.save_policy(solution, file)
    proven = mmdp.io.load_certificate(file, MODEL)
    assert proven is not None
    assert solution.certificate is not None
    assert proven.bounds == solution.certificate.bounds
    assert proven.value == solution.bound
    mmdp.save_policy(mmdp.solve(MODEL, 3), file)
    assert isinstance(mmdp.load_policy(file, MODEL), mmdp.MarkovPolicy)


@pytest.mark.parametrize(
    ("text", "told"),
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
def test_wrong_files(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "rule.csv"
    file.write_text(text)
    with pytest.raises(mmdp.InputError) as error:
        mmdp.load_policy(file, MODEL)
    assert told in str(error.value)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("policy", [SHARP, SOFT], ids=["sharp", "soft"])
def test_episodes_end_where_little_is_left(policy: mmdp.StationaryPolicy, backend: str) -> None:
    """With terminal values, which play no part, and rewards that do not vary: nothing is random."""
    still = mmdp.MMDP(
        np.full((2, 3, 2, 3), 1 / 3), np.full((2, 3, 2), -5.0), discount=0.9,
        terminal=np.full((2, 3), 1e9),
    )  # fmt: skip
    seen = mmdp.simulate(policy, still, episodes=3, backend=backend)
    T, rest = seen.details["horizon"], seen.details["left_out"]
    assert 0.9**T <= 1e-6 < 0.9 ** (T - 1)
    np.testing.assert_allclose(seen.returns, -50 * (1 - 0.9**T))
    np.testing.assert_allclose(np.abs(seen.returns + 50), rest)
    again = mmdp.evaluate(policy, still, episodes=3, backend=backend)
    np.testing.assert_array_equal(again.returns, seen.returns)
    assert again.details["left_out"] == rest
    np.testing.assert_allclose(again.oracle, -50)


def test_a_planner_without_an_end_is_followed_step_by_step() -> None:
    class Waiting:
        name, horizon = "waiting", float("inf")

        def start(self, seed: int | None = 0) -> None: ...

        def act(self, memory: None, time: int, state: int) -> int:
            return 0

        def update(self, *_: object) -> None: ...

    seen = mmdp.simulate(Waiting(), MODEL, episodes=200)
    exact = mmdp.evaluate(mmdp.StationaryPolicy([0, 0, 0], n_actions=2), MODEL)
    assert abs(seen.mean - exact.mean) <= 4 * seen.stderr
    assert seen.details["horizon"] == 132
    assert mmdp.ecosystem.Agent(Waiting())(1) == 0


def test_one_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(mmdp.InputError, match="needs episodes that end"):
        mmdp.simulate(SHARP, MODEL.replace(discount=1.0))
    with pytest.raises(mmdp.InputError, match="infinite horizon, the horizon is 4; give policy.o"):
        SHARP.check(MODEL, 4)
    with pytest.raises(mmdp.InputError, match="covers 2 time steps, the horizon is 4"):
        SHARP.over(2).over(4)
    with pytest.raises(mmdp.InputError, match="takes action 'wait' in state 'ill'"):
        SOFT.check(MODEL.replace(allowed=[[True, True], [False, True], [True, True]]))
    with pytest.raises(mmdp.InputError, match="an agent follows a policy"):
        mmdp.ecosystem.Agent(mmdp.solve(MODEL, 3, "oracle"))
    with pytest.raises(mmdp.InputError, match="simulate.. takes a policy"):
        mmdp.simulate(None, MODEL)  # type: ignore[arg-type]


def test_what_it_says() -> None:
    assert repr(SHARP) == "StationaryPolicy(3 states, 2 actions, deterministic)"
    assert SHARP.to_frame().columns.tolist() == ["state", "action", "idstate", "idaction"]
    assert SHARP.to_frame()["action"].tolist() == ["treat", "wait", "treat"]
    assert SHARP.over(2).actions.tolist() == [[1, 0, 1], [1, 0, 1]]
    assert SOFT.over(2).probabilities[1].tolist() == SOFT.probabilities.tolist()
    assert SHARP != SOFT
    with pytest.raises(AttributeError):
        SHARP.row = None  # type: ignore[assignment]
    with pytest.raises(mmdp.InputError, match="one row, not 2"):
        mmdp.StationaryPolicy.of_row(SHARP.over(2))
    with pytest.raises(mmdp.InputError, match="the policy is for 2 states"):
        mmdp.evaluate(mmdp.StationaryPolicy([0, 1]), MODEL)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"actions": [[np.nan, 1], [0, 1]]}, r"actions have shape \(2, 2\); expected \(states\)"),
        ({"actions": [[0, 1], [0]]}, r"actions must be a table \(states\)"),
        ({"probabilities": [0.5, 0.5]}, r"have shape \(2,\); expected \(states, actions\)"),
        ({"probabilities": [[0.5, 0.5], [np.nan, 1]]}, "at state 1 are not a distribution"),
    ],
)
def test_messages_speak_of_what_was_given(given: dict[str, Any], said: str) -> None:
    with pytest.raises(mmdp.InputError, match=said):
        mmdp.StationaryPolicy(**given)
