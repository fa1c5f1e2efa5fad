"""Episodes that end by themselves: an infinite horizon without a discount."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import mmdp
from mmdp.kernels import endless
from mmdp.kernels.endless import Endless, decisions

INF = math.inf


def ending(seed: int, trap: bool = False) -> mmdp.MMDP:
    """Three models of four states, the last of which ends an episode; state 2 is never met.

    With a trap an action of state 2 stays there, for a reward.
    """
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(4), (3, 4, 2))
    P[:, :2, :, 2] = 0.0
    P[:, :, :, 3] += 0.05
    P[:, 3] = [0.0, 0.0, 0.0, 1.0]
    if trap:
        P[:, 2, 0] = [0.0, 0.0, 1.0, 0.0]
    r = rng.normal(size=(3, 4, 2))
    r[:, 3] = 0.0
    return mmdp.MMDP(P / P.sum(axis=3, keepdims=True), r, initial=[0.5, 0.5, 0, 0],
                     weights=rng.dirichlet(np.ones(3)))  # fmt: skip


def rules(model: mmdp.MMDP) -> np.ndarray:
    """(N, M) returns of every rule, by inverses of the states in which something happens."""
    found = []
    for rule in itertools.product(range(2), repeat=3):
        a, s = list(rule), [0, 1, 2]
        P, r = model.transitions[:, s, a][:, :, :3], model.rewards[:, s, a]
        P[:, 2], r[:, 2] = 0.0, 0.0
        v = np.linalg.solve(np.eye(3) - P, r[:, :, None])[:, :, 0]
        found.append(v @ model.initial[:3])
    return np.array(found)


@pytest.mark.parametrize("method", ["cadp", "exact"])
@pytest.mark.parametrize("seed", range(5))
def test_the_best_rule_is_found(seed: int, method: str) -> None:
    model = ending(seed, trap=seed % 2 == 1)
    found = mmdp.solve(model, INF, method)
    values = rules(model) @ model.weights
    assert found.value == pytest.approx(values.max())
    assert mmdp.evaluate(found.policy, model).returns == pytest.approx(found.returns)
    if method == "exact":
        assert found.status is mmdp.Status.OPTIMAL
    bound = mmdp.bound(model, INF, time_limit=0.2)
    assert bound.value >= values.max() - 1e-9
    assert found.policy.over(1000).actions.shape == (1000, 4)
    long = mmdp.evaluate(found.policy.over(1000), model)
    assert long.returns == pytest.approx(found.returns, abs=1e-9)


@pytest.mark.parametrize("faster", [0.001, INF])  # all by iteration, or model by model
def test_iterations_and_factors_agree(monkeypatch: pytest.MonkeyPatch, faster: float) -> None:
    model = ending(2)
    one = Endless.of(model.problem)
    monkeypatch.setattr(endless, "MATRICES", 0)
    monkeypatch.setattr(endless, "FASTER", faster)
    endless._KNOWN.clear()
    other = Endless.of(model.problem)
    assert type(one) is not type(other)
    assert one.lasts == pytest.approx(other.lasts)
    np.testing.assert_allclose(one.own().values, other.own().values, atol=1e-12)
    drawn = np.random.default_rng(0).dirichlet(np.ones(2), size=4)
    for policy in (drawn, np.array([0, 1, 0, 1]), one.own().actions):
        np.testing.assert_allclose(one.values(policy), other.values(policy), atol=1e-12)
        np.testing.assert_allclose(one.visits(policy), other.visits(policy), atol=1e-12)


def test_what_is_known_of_one_problem_is_not_taken_for_another() -> None:
    """The same masks, other probabilities: episodes last longer."""
    lasting = [
        Endless.of(mmdp.MMDP([[[[p, 1 - p]], [[0.0, 1.0]]]], [[1.0], [0.0]]).problem).lasts
        for p in (0.5, 0.9)
    ]
    assert lasting == pytest.approx([3, 11])


def test_the_longest_episode() -> None:
    """Two states in a row, left with chances 1/2 and 1/5: 2 + 5 decisions, and the last one."""
    P = np.zeros((1, 3, 2, 3))
    P[0, 0] = [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]
    P[0, 1] = [[0.0, 0.8, 0.2], [0.0, 0.0, 1.0]]
    P[0, 2] = [0.0, 0.0, 1.0]
    model = mmdp.MMDP(P, [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]], initial=[1, 0, 0])
    assert Endless.of(model.problem).lasts == pytest.approx(8)
    assert mmdp.solve(model, INF).value == pytest.approx(7)
    horizon, left = decisions(model.problem, 1e-6)
    alive = [0.5**k for k in range(horizon)]  # in the first state; the second goes on by 0.8
    assert sum(alive[k] * 0.8 ** (horizon - k) for k in range(horizon)) * 5 <= left <= 8e-6


def test_episodes_that_can_go_on_are_refused_with_the_states() -> None:
    model = ending(0, trap=True).replace(
        initial=[0.25, 0.25, 0.5, 0], states=["a", "b", "stuck", "over"]
    )
    with pytest.raises(mmdp.InputError, match="in model 0 some policy stays in state 'stuck' for"):
        mmdp.solve(model, INF)
    rewarded = ending(0).replace(rewards=np.ones((4, 2)))
    with pytest.raises(mmdp.InputError, match="stays in state '3' for ever; set a discount"):
        mmdp.bound(rewarded, INF)


def test_the_average_of_models_that_end_may_go_on() -> None:
    P = np.zeros((2, 2, 1, 2))
    P[0, :, 0, 1] = 1  # from state 0 to 1, where it ends
    P[1, :, 0, 0] = 1  # from state 1 to 0
    model = mmdp.MMDP(P, [[[1.0], [0.0]], [[0.0], [4.0]]])
    assert mmdp.solve(model, INF).returns.tolist() == [0.5, 2.0]


def test_a_circle_of_two_states_goes_on() -> None:
    P = np.zeros((2, 3, 2, 3))
    P[:, 0, 0, 1] = P[:, 1, 0, 0] = P[:, :2, 1, 2] = P[:, 2, :, 2] = 1.0
    P[0, 0, 0] = [0.0, 0.9, 0.1]
    circle = mmdp.MMDP(P, [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]], initial=[1, 0, 0])
    with pytest.raises(
        mmdp.InputError, match="in model 1 some policy stays in states '0', '1' for"
    ):
        mmdp.solve(circle, INF)
    assert mmdp.solve(circle.subset([0]), INF).value == pytest.approx(19)


def test_simulation_covers_whole_episodes() -> None:
    model = ending(3)
    found = mmdp.solve(model, INF)
    seen = mmdp.simulate(found.policy, model, episodes=2000)
    assert seen.mean == pytest.approx(found.value, abs=3 * seen.stderr)


def test_risk_and_regret() -> None:
    model = ending(4)
    for objective in (mmdp.CVaR(0.4), mmdp.WorstCase()):
        found = mmdp.solve(model, INF, objective=objective, certify=0.2)
        best = max(objective.value(x, model.weights) for x in rules(model))
        assert found.value <= best + 1e-9
        assert found.bound is not None
        assert found.bound >= best - 1e-9


@pytest.mark.parametrize("states", [1, 3])
def test_a_chance_to_end_that_rounding_loses_is_refused(states: int) -> None:
    """The states lead to each other in a circle, and out of it with a chance of 1e-200."""
    P = np.zeros((2, states + 1, 1, states + 1))
    for s in range(states):
        P[:, s, 0, (s + 1) % states] = 1.0
        P[:, s, 0, states] = 1e-200
    P[:, states, 0, states] = 1.0
    model = mmdp.MMDP(P, [[1.0]] * states + [[0.0]], initial=[1.0] + [0.0] * states)
    for method in ("cadp", "exact", "oracle", "grid"):
        with pytest.raises(mmdp.InputError, match=r"\(almost\) never ends them.*discount"):
            mmdp.solve(model, math.inf, method)
    with pytest.raises(mmdp.InputError, match="never ends"):
        mmdp.bound(model, math.inf)
