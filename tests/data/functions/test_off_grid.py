"""Episodes off the grid: the user's function as it is, with the nearest point's action."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.data.functions.off_grid import OffGridSimulator
from tests.data.functions.inputs import Inputs


def step_pond(state: Inputs, action: Inputs, event: Inputs, sample: Inputs) -> Any:
    """A level that falls by a share and rises by what is added; over above 2.5."""
    level = state["level"] * sample["keep"] + 0.5 * action["add"] + 0.2 * event["rain"]
    return {"level": level}, np.minimum(level, 1.5) - 0.1 * action["add"]


def compute_rain_probs(sample: Inputs, state: Inputs) -> Any:
    p = 0.3 + 0.2 * np.minimum(state["level"], 2)
    return np.concatenate([1 - p, p], axis=1)


def make_pond(n_points: int = 9, samples: Any = None, **options: Any) -> mmdp.MMDP:
    return mmdp.from_step(
        step_pond,
        **{
            "states": {"level": mmdp.Grid(0, 4, n_points)},
            "actions": {"add": range(3)},
            "events": {"rain": [0, 1]},
            "event_probs": compute_rain_probs,
            "samples": samples or {"keep": [0.7, 0.9]},
            "initial": {"level": 0.3},
            "discount": 0.9,
            "is_terminal": lambda state: state["level"] > 2.5,
            "terminal_reward": lambda state, sample: sample["keep"] * state["level"],
            **options,
        },
    )


def simulate_one_by_one(
    model: mmdp.MMDP, policy: mmdp.policies.MarkovPolicy, n_episodes: int, seed: int
) -> np.ndarray:
    """The same episodes in plain Python, from the same random numbers."""
    points, is_terminal = np.linspace(0, 4, 9), np.linspace(0, 4, 9) > 2.5
    returns = np.zeros((model.n_models, n_episodes))
    for m, keep_share in enumerate(model.parameters["keep"]):
        rng = np.random.default_rng([seed, m])
        rng.random(n_episodes)
        uniforms = [rng.random((2, n_episodes)) for _ in range(policy.horizon)]
        for episode in range(n_episodes):
            level, factor, has_ended = 0.3, 1.0, False
            for t in range(policy.horizon):
                low = min(int(level / 0.5), 7)
                corner = (
                    low
                    if is_terminal[low + 1] or points[low + 1] - level > level - points[low]
                    else low + 1
                )
                add, p = int(policy.actions[t, corner]), 0.3 + 0.2 * min(level, 2)
                rain = uniforms[t][1, episode] >= 1 - p
                level = level * keep_share + 0.5 * add + 0.2 * rain
                returns[m, episode] += factor * (min(level, 1.5) - 0.1 * add)
                factor *= 0.9
                has_ended = level > 2.5
                if has_ended:
                    break
            returns[m, episode] += 0 if has_ended else factor * keep_share * level
    return returns


def test_episodes_equal_those_simulated_one_by_one() -> None:
    model = make_pond()
    policy = mmdp.solve(model, 8).policy
    returns = model.step_spec.simulate_off_grid(model, policy.table, 50, 7, True)
    np.testing.assert_allclose(returns, simulate_one_by_one(model, policy, 50, 7), rtol=1e-12)


def test_a_finer_grid_comes_close_to_the_value_off_the_grid() -> None:
    differences = []
    for n_points in (9, 161):
        model = make_pond(n_points)
        policy = mmdp.solve(model, 8).policy
        off_grid = mmdp.simulate(model, policy, off_grid=True, n_episodes=4000)
        differences.append(abs(off_grid.mean - mmdp.evaluate(model, policy).mean) / off_grid.stderr)
    assert differences[1] < 4 < differences[0]


def test_without_grids_both_values_are_the_same() -> None:
    def step(state: Inputs, action: Inputs, event: Inputs) -> Any:
        return {"x": (state["x"] + action["u"] * event["luck"]) % 5}, state["x"] * 1.0

    model = mmdp.from_step(
        step,
        states={"x": range(5)},
        actions={"u": [1, 2]},
        events={"luck": [0, 1]},
        event_probs=lambda sample: [1 - sample["p"], sample["p"]],
        samples={"p": [0.2, 0.7]},
        initial={"x": {0: 0.5, 3: 0.5}},
    )
    policy = mmdp.solve(model, 6).policy
    for tested_policy in (policy, mmdp.policies.MarkovPolicy.uniform(model, 6)):
        off_grid = mmdp.simulate(model, tested_policy, off_grid=True, n_episodes=5000)
        np.testing.assert_array_less(
            np.abs(off_grid.returns - mmdp.evaluate(model, tested_policy).returns),
            4 * off_grid.standard_errors,
        )


def test_other_initial_states_models_and_infinite_horizon() -> None:
    model = make_pond(
        is_terminal=None, states={"level": mmdp.Grid(0, 20, 41)}, terminal_reward=None
    )
    policy = mmdp.solve(model, math.inf, policy_class="stationary").policy
    changed_model = model.replace(initial=np.eye(41)[4]).subset([1])
    off_grid = mmdp.simulate(changed_model, policy, off_grid=True, n_episodes=500)
    assert len(off_grid.returns) == 1
    assert (
        off_grid.mean > mmdp.simulate(model.subset([0]), policy, off_grid=True, n_episodes=500).mean
    )
    assert off_grid.details["truncation_error"] > 0


def test_models_start_from_their_own_initial_states() -> None:
    model = make_pond(samples={"keep": [0.8, 0.8]})
    policy = mmdp.solve(model, 5).policy
    initials = np.eye(10)[[1, 4]]
    returns = mmdp.simulate(
        model.replace(initial=initials), policy, off_grid=True, n_episodes=400
    ).returns
    for m in range(2):
        single_model = model.replace(initial=initials[m])
        assert (
            returns[m]
            == mmdp.simulate(single_model, policy, off_grid=True, n_episodes=400).returns[m]
        )


def test_initial_states_off_the_grid_by_sample() -> None:
    samples, levels = {"keep": [0.8, 0.8], "begins": [0.3, 1.1]}, [0.3, 1.1]
    model = make_pond(samples=samples, initial=lambda sample: {"level": sample["begins"]})
    policy = mmdp.solve(model, 5).policy
    returns = mmdp.simulate(model, policy, off_grid=True, n_episodes=100).returns
    for m, level in enumerate(levels):
        single_model = make_pond(samples=samples, initial={"level": level})
        assert (
            returns[m]
            == mmdp.simulate(single_model, policy, off_grid=True, n_episodes=100).returns[m]
        )


# ---------------------------------------------------------------------- refusals
def test_without_the_function_off_grid_says_what_to_do(tmp_path: Path) -> None:
    model = make_pond()
    policy = mmdp.solve(model, 4).policy
    mmdp.save(model, tmp_path / "model.npz")
    other_models = [
        mmdp.load(tmp_path / "model.npz"),
        pickle.loads(pickle.dumps(model)),
        model.replace(rewards=model.rewards),
        model.replace(terminal=model.terminal),
    ]
    for other_model in other_models:
        with pytest.raises(mmdp.InputError, match=r"this model has none.*mmdp\.from_step"):
            mmdp.simulate(other_model, policy, off_grid=True)


def test_planners_and_memory_are_not_simulated_off_grid() -> None:
    model = make_pond(samples={"keep": [0.7, 0.9]})
    with pytest.raises(mmdp.InputError, match="has no table of time and state"):
        mmdp.simulate(model, mmdp.solve(model, 3, method="qmdp").policy, off_grid=True)
    switching_model = make_pond(model_transitions=[[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(mmdp.InputError, match="these models change"):
        mmdp.simulate(switching_model, mmdp.solve(switching_model, 3).policy, off_grid=True)


def make_cart() -> mmdp.MMDP:
    states = {"place": mmdp.Grid(-1.2, 0.6, 7), "gear": ["low", "top"], "speed": mmdp.Grid(0, 1, 4)}
    return mmdp.from_step(
        lambda state, action: (dict(state), 0.0), states=states, actions={"push": range(40)}
    )


def test_a_measured_value_is_read_as_in_episodes_off_the_grid() -> None:
    model, rng = make_cart(), np.random.default_rng(0)
    policy = mmdp.policies.StationaryPolicy.for_model(model, rng.permutation(56) % 40)
    agent = mmdp.interop.Agent(policy)
    positions = [*rng.uniform(-1.2, 0.6, 40), -1.2, 0.6, -0.75]  # the last is halfway
    speeds = [*rng.uniform(0, 1, 40), 1.0, 0.5, 0]
    observations = [
        {"place": x, "gear": rng.choice(["low", "top"]), "speed": y}
        for x, y in zip(positions, speeds, strict=True)
    ]
    state = {k: np.array([x[k] for x in observations]) for k in observations[0]}
    simulator = OffGridSimulator(model.step_spec, model, policy.to_markov(1).table)
    actions = simulator._choose_actions(0, state, np.zeros(len(observations)))
    assert len({*actions.tolist()}) > 20
    assert [policy.action(**x) for x in observations] == [f"push={a}" for a in actions]
    assert [agent(x) for x in observations] == actions.tolist()


def test_a_policy_may_be_looked_up_by_name() -> None:
    policy = mmdp.solve(make_pond(), 4).policy
    actions = policy.actions
    assert policy.action(0, level=0.5) == f"add={actions[0, 1]}"
    assert policy.action(time=3, level=2.0) == f"add={actions[3, 4]}"
    labels = [f"x={1_000_000.0 + i}" for i in range(4)]  # all digits count
    far_policy = mmdp.policies.StationaryPolicy([0, 1, 2, 3], state_labels=labels)
    for x, nearest in ((1_000_002.0, "2"), (1_000_002.51, "3"), (1_000_001.4999, "1")):
        assert far_policy.action(x=x) == nearest
    with pytest.raises(mmdp.InputError, match="level must be from 0 to 4, not 4.1"):
        policy.action(level=4.1)
    with pytest.raises(mmdp.InputError, match="depends on the time; give time= .0: the first"):
        policy.action(level=0.5)
    steady = mmdp.policies.MarkovPolicy(actions[[1, 1]], state_labels=policy.state_labels)
    assert steady.action(level=0.5) == str(actions[1, 1])
    with pytest.raises(mmdp.InputError, match="unknown label 'level=high'"):
        policy.action(level="high")
    with pytest.raises(mmdp.InputError, match="states are named by level, not by depth"):
        policy.action(depth=0.5)
    with pytest.raises(mmdp.InputError, match="give the state"):
        policy.action()
    with pytest.raises(mmdp.InputError, match="time 4 is outside 0..3"):
        policy.action(time=4, level=0.5)
    with pytest.raises(mmdp.InputError, match="time w3 is outside 0..3"):
        policy.action(time="w3", level=0.5)  # type: ignore[arg-type]


def test_a_decision_may_be_looked_up_by_its_label() -> None:
    actions = (np.arange(4)[:, None] + np.arange(10)) % 3
    names = make_pond().state_labels
    weeks = mmdp.policies.MarkovPolicy(
        actions, state_labels=names, time_labels={"week": ["w1", "w2", "w3", "w4"]}
    )
    ages = mmdp.policies.MarkovPolicy(actions, state_labels=names, time_labels={"age": [40, 45]})
    for t in range(4):
        assert weeks.action(week=f"w{t + 1}", level=0.5) == str(actions[t, 1])
        assert ages.action(age=40 + 5 * t, level=0.6) == str(actions[t, 1])
        assert ages.action(age=40.0 + 5 * t, state=1) == str(actions[t, 1])
    with pytest.raises(mmdp.InputError, match="give time= .0: the first decision., or week="):
        weeks.action(level=0.5)
    with pytest.raises(mmdp.InputError, match="no decision is called week 'w5'; give one of w1 to"):
        weeks.action(week="w5", level=0.5)
