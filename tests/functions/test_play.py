"""Episodes off the grid: the user's function as it is, with the nearest point's action."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.functions.play import Played


def drift(state: Any, action: Any, event: Any, draw: Any) -> Any:
    """A level that falls by a share and rises by what is added; over above 2.5."""
    level = state["level"] * draw["keep"] + 0.5 * action["add"] + 0.2 * event["rain"]
    return {"level": level}, np.minimum(level, 1.5) - 0.1 * action["add"]


def chance(draw: Any, state: Any) -> Any:
    p = 0.3 + 0.2 * np.minimum(state["level"], 2)
    return np.concatenate([1 - p, p], axis=1)


def pond(points: int = 9, draws: Any = None, **more: Any) -> mmdp.MMDP:
    return mmdp.from_step(
        drift, **{"states": {"level": mmdp.Grid(0, 4, points)}, "actions": {"add": range(3)},
        "events": {"rain": [0, 1]}, "chance": chance, "draws": draws or {"keep": [0.7, 0.9]},
        "initial": {"level": 0.3}, "discount": 0.9, "until": lambda state: state["level"] > 2.5,
        "terminal": lambda state, draw: draw["keep"] * state["level"], **more},
    )  # fmt: skip


def one_by_one(model: mmdp.MMDP, policy: mmdp.MarkovPolicy, episodes: int, seed: int) -> np.ndarray:
    """The same episodes in plain Python, from the same random numbers."""
    points, over = np.linspace(0, 4, 9), np.linspace(0, 4, 9) > 2.5
    returns = np.zeros((model.n_models, episodes))
    for m, keep in enumerate(model.parameters["keep"]):
        rng = np.random.default_rng([seed, m])
        rng.random(episodes)
        numbers = [rng.random((2, episodes)) for _ in range(policy.horizon)]
        for e in range(episodes):
            level, factor, ended = 0.3, 1.0, False
            for t in range(policy.horizon):
                low = min(int(level / 0.5), 7)
                corner = (
                    low
                    if over[low + 1] or points[low + 1] - level > level - points[low]
                    else low + 1
                )
                add, p = int(policy.actions[t, corner]), 0.3 + 0.2 * min(level, 2)
                rain = numbers[t][1, e] >= 1 - p
                level = level * keep + 0.5 * add + 0.2 * rain
                returns[m, e] += factor * (min(level, 1.5) - 0.1 * add)
                factor *= 0.9
                ended = level > 2.5
                if ended:
                    break
            returns[m, e] += 0 if ended else factor * keep * level
    return returns


def test_episodes_equal_those_played_one_by_one() -> None:
    model = pond()
    policy = mmdp.solve(model, 8).policy
    found = model.function.play(model, policy.table, 50, 7, True)
    np.testing.assert_allclose(found, one_by_one(model, policy, 50, 7), rtol=1e-12)


def test_a_finer_grid_comes_close_to_the_value_off_the_grid() -> None:
    differences = []
    for points in (9, 161):
        model = pond(points)
        policy = mmdp.solve(model, 8).policy
        off = mmdp.simulate(policy, model, off_grid=True, episodes=4000)
        differences.append(abs(off.mean - mmdp.evaluate(policy, model).mean) / off.stderr)
    assert differences[1] < 4 < differences[0]


def test_without_grids_both_values_are_the_same() -> None:
    def step(state: Any, action: Any, event: Any) -> Any:
        return {"x": (state["x"] + action["u"] * event["luck"]) % 5}, state["x"] * 1.0

    model = mmdp.from_step(
        step, states={"x": range(5)}, actions={"u": [1, 2]}, events={"luck": [0, 1]},
        chance=lambda draw: [1 - draw["p"], draw["p"]], draws={"p": [0.2, 0.7]},
        initial={"x": {0: 0.5, 3: 0.5}},
    )  # fmt: skip
    policy = mmdp.solve(model, 6).policy
    for played in (policy, mmdp.MarkovPolicy.uniform(model, 6)):
        off = mmdp.simulate(played, model, off_grid=True, episodes=5000)
        np.testing.assert_array_less(
            np.abs(off.returns - mmdp.evaluate(played, model).returns), 4 * off.errors
        )


def test_another_start_other_models_and_no_last_decision() -> None:
    model = pond(until=None, states={"level": mmdp.Grid(0, 20, 41)}, terminal=None)
    policy = mmdp.solve(model, math.inf, policy="stationary").policy
    moved = model.replace(initial=np.eye(41)[4]).subset([1])
    off = mmdp.simulate(policy, moved, off_grid=True, episodes=500)
    assert len(off.returns) == 1
    assert off.mean > mmdp.simulate(policy, model.subset([0]), off_grid=True, episodes=500).mean
    assert off.details["left_out"] > 0


def test_models_that_begin_apart_are_played_from_their_own_starts() -> None:
    model = pond(draws={"keep": [0.8, 0.8]})
    policy = mmdp.solve(model, 5).policy
    starts = np.eye(10)[[1, 4]]
    found = mmdp.simulate(
        policy, model.replace(initial=starts), off_grid=True, episodes=400
    ).returns
    for m in range(2):
        alone = model.replace(initial=starts[m])
        assert found[m] == mmdp.simulate(policy, alone, off_grid=True, episodes=400).returns[m]


def test_starts_off_the_grid_that_depend_on_the_draw() -> None:
    draws, levels = {"keep": [0.8, 0.8], "begins": [0.3, 1.1]}, [0.3, 1.1]
    model = pond(draws=draws, initial=lambda draw: {"level": draw["begins"]})
    policy = mmdp.solve(model, 5).policy
    found = mmdp.simulate(policy, model, off_grid=True, episodes=100).returns
    for m, level in enumerate(levels):
        alone = pond(draws=draws, initial={"level": level})
        assert found[m] == mmdp.simulate(policy, alone, off_grid=True, episodes=100).returns[m]


# ---------------------------------------------------------------------- refusals
def test_without_the_function_off_grid_says_what_to_do(tmp_path: Path) -> None:
    model = pond()
    policy = mmdp.solve(model, 4).policy
    mmdp.save(model, tmp_path / "model.npz")
    others = [
        mmdp.load(tmp_path / "model.npz"), pickle.loads(pickle.dumps(model)),
        model.replace(rewards=model.rewards), model.replace(terminal=model.terminal),
    ]  # fmt: skip
    for other in others:
        with pytest.raises(mmdp.InputError, match=r"this model has none.*mmdp\.from_step"):
            mmdp.simulate(policy, other, off_grid=True)


def test_planners_and_memory_are_not_played_off_the_grid() -> None:
    model = pond(draws={"keep": [0.7, 0.9]})
    with pytest.raises(mmdp.InputError, match="has no table of time and state"):
        mmdp.simulate(mmdp.solve(model, 3, method="qmdp").policy, model, off_grid=True)
    drifting = pond(model_transitions=[[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(mmdp.InputError, match="these models change"):
        mmdp.simulate(mmdp.solve(drifting, 3).policy, drifting, off_grid=True)


def cart() -> mmdp.MMDP:
    states = {"place": mmdp.Grid(-1.2, 0.6, 7), "gear": ["low", "top"], "speed": mmdp.Grid(0, 1, 4)}
    return mmdp.from_step(
        lambda state, action: (dict(state), 0.0), states=states, actions={"push": range(40)}
    )


def test_a_measured_value_is_read_as_in_episodes_off_the_grid() -> None:
    model, rng = cart(), np.random.default_rng(0)
    policy = mmdp.StationaryPolicy.for_model(model, rng.permutation(56) % 40)
    agent = mmdp.ecosystem.Agent(policy)
    places = [*rng.uniform(-1.2, 0.6, 40), -1.2, 0.6, -0.75]  # the last is halfway
    speeds = [*rng.uniform(0, 1, 40), 1.0, 0.5, 0]
    seen = [
        {"place": x, "gear": rng.choice(["low", "top"]), "speed": y}
        for x, y in zip(places, speeds, strict=True)
    ]
    state = {k: np.array([x[k] for x in seen]) for k in seen[0]}
    played = Played(model.function, model, policy.over(1).table)
    done = played._decided(0, state, np.zeros(len(seen)))
    assert len({*done.tolist()}) > 20
    assert [policy.action(**x) for x in seen] == [f"push={a}" for a in done]
    assert [agent(x) for x in seen] == done.tolist()


def test_a_policy_may_be_looked_up_by_name() -> None:
    policy = mmdp.solve(pond(), 4).policy
    actions = policy.actions
    assert policy.action(level=0.5) == f"add={actions[0, 1]}"
    assert policy.action(time=3, level=2.0) == f"add={actions[3, 4]}"
    with pytest.raises(mmdp.InputError, match="level is 4.1, and the policy knows it from 0 to 4"):
        policy.action(level=4.1)
    with pytest.raises(mmdp.InputError, match="no label 'level=high'"):
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
    names = pond().state_labels
    weeks = mmdp.MarkovPolicy(actions, state_labels=names, times={"week": ["w1", "w2", "w3", "w4"]})
    ages = mmdp.MarkovPolicy(actions, state_labels=names, times={"age": [40, 45]})
    for t in range(4):
        assert weeks.action(week=f"w{t + 1}", level=0.5) == str(actions[t, 1])
        assert ages.action(age=40 + 5 * t, level=0.6) == str(actions[t, 1])
        assert ages.action(age=40.0 + 5 * t, state=1) == str(actions[t, 1])
    with pytest.raises(mmdp.InputError, match="no decision is called week 'w5'; give one of w1 to"):
        weeks.action(week="w5", level=0.5)
