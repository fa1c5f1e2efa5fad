"""Episodes that end by themselves: an infinite horizon without a discount."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import mmdp
from mmdp.core.kernels import infinite, proper
from mmdp.core.kernels.infinite import InfiniteHorizon, find_truncation_horizon

INF = math.inf


def make_proper_model(seed: int, has_trap: bool = False) -> mmdp.MMDP:
    """Three models of four states, the last of which ends an episode; state 2 is never met.

    With a trap an action of state 2 stays there, for a reward.
    """
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(4), (3, 4, 2))
    P[:, :2, :, 2] = 0.0
    P[:, :, :, 3] += 0.05
    P[:, 3] = [0.0, 0.0, 0.0, 1.0]
    if has_trap:
        P[:, 2, 0] = [0.0, 0.0, 1.0, 0.0]
    r = rng.normal(size=(3, 4, 2))
    r[:, 3] = 0.0
    return mmdp.MMDP(
        P / P.sum(axis=3, keepdims=True),
        r,
        initial=[0.5, 0.5, 0, 0],
        weights=rng.dirichlet(np.ones(3)),
    )


def compute_policy_returns(model: mmdp.MMDP) -> np.ndarray:
    """(N, M) returns of every rule, by inverses of the states in which something happens."""
    returns = []
    for actions in itertools.product(range(2), repeat=3):
        a, s = list(actions), [0, 1, 2]
        P, r = model.transitions[:, s, a][:, :, :3], model.rewards[:, s, a]
        P[:, 2], r[:, 2] = 0.0, 0.0
        v = np.linalg.solve(np.eye(3) - P, r[:, :, None])[:, :, 0]
        returns.append(v @ model.initial[:3])
    return np.array(returns)


@pytest.mark.parametrize("method", ["cadp", "exact"])
@pytest.mark.parametrize("seed", range(5))
def test_the_best_stationary_policy_is_found(seed: int, method: str) -> None:
    model = make_proper_model(seed, has_trap=seed % 2 == 1)
    solution = mmdp.solve(model, INF, method)
    values = compute_policy_returns(model) @ model.weights
    assert solution.value == pytest.approx(values.max())
    assert mmdp.evaluate(model, solution.policy).returns == pytest.approx(solution.returns)
    if method == "exact":
        assert solution.status is mmdp.Status.OPTIMAL
    bound = mmdp.bound(model, INF, time_limit=0.2)
    assert bound.value >= values.max() - 1e-9
    assert solution.policy.to_markov(1000).actions.shape == (1000, 4)
    truncated = mmdp.evaluate(model, solution.policy.to_markov(1000))
    assert truncated.returns == pytest.approx(solution.returns, abs=1e-9)


@pytest.mark.parametrize("speed_threshold", [0.001, INF])  # all by iteration, or model by model
def test_iterative_and_direct_solvers_agree(
    monkeypatch: pytest.MonkeyPatch, speed_threshold: float
) -> None:
    model = make_proper_model(2)
    direct = InfiniteHorizon.from_problem(model.problem)
    monkeypatch.setattr(infinite, "MAX_MATRIX_BYTES", 0)
    monkeypatch.setattr(infinite, "DIRECT_SPEEDUP", speed_threshold)
    proper._PROPER_INFO.clear()
    iterative = InfiniteHorizon.from_problem(model.problem)
    assert type(direct) is not type(iterative)
    assert direct.effective_horizon == pytest.approx(iterative.effective_horizon)
    np.testing.assert_allclose(
        direct.compute_model_optima().values, iterative.compute_model_optima().values, atol=1e-12
    )
    randomized = np.random.default_rng(0).dirichlet(np.ones(2), size=4)
    for policy in (randomized, np.array([0, 1, 0, 1]), direct.compute_model_optima().actions):
        np.testing.assert_allclose(
            direct.compute_values(policy), iterative.compute_values(policy), atol=1e-12
        )
        np.testing.assert_allclose(
            direct.compute_occupancy(policy), iterative.compute_occupancy(policy), atol=1e-12
        )


def test_cached_facts_belong_to_one_problem() -> None:
    """The same masks, other probabilities: episodes last longer."""
    effective_horizons = [
        InfiniteHorizon.from_problem(
            mmdp.MMDP([[[[p, 1 - p]], [[0.0, 1.0]]]], [[1.0], [0.0]]).problem
        ).effective_horizon
        for p in (0.5, 0.9)
    ]
    assert effective_horizons == pytest.approx([3, 11])


def test_effective_horizon_of_two_states_in_a_row() -> None:
    """Two states in a row, left with chances 1/2 and 1/5: 2 + 5 decisions, and the last one."""
    P = np.zeros((1, 3, 2, 3))
    P[0, 0] = [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]
    P[0, 1] = [[0.0, 0.8, 0.2], [0.0, 0.0, 1.0]]
    P[0, 2] = [0.0, 0.0, 1.0]
    model = mmdp.MMDP(P, [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]], initial=[1, 0, 0])
    assert InfiniteHorizon.from_problem(model.problem).effective_horizon == pytest.approx(8)
    assert mmdp.solve(model, INF).value == pytest.approx(7)
    horizon, tail = find_truncation_horizon(model.problem, 1e-6)
    alive = [0.5**k for k in range(horizon)]  # in the first state; the second goes on by 0.8
    assert sum(alive[k] * 0.8 ** (horizon - k) for k in range(horizon)) * 5 <= tail <= 8e-6


def test_improper_models_are_refused_with_the_states() -> None:
    model = make_proper_model(0, has_trap=True).replace(
        initial=[0.25, 0.25, 0.5, 0], states=["a", "b", "stuck", "over"]
    )
    with pytest.raises(mmdp.InputError, match="in model 0 some policy stays in state 'stuck' for"):
        mmdp.solve(model, INF)
    rewarded = make_proper_model(0).replace(rewards=np.ones((4, 2)))
    with pytest.raises(mmdp.InputError, match="stays in state '3' for ever; set a discount"):
        mmdp.bound(rewarded, INF)


def test_the_mean_of_proper_models_may_be_improper() -> None:
    P = np.zeros((2, 2, 1, 2))
    P[0, :, 0, 1] = 1  # from state 0 to 1, where it ends
    P[1, :, 0, 0] = 1  # from state 1 to 0
    model = mmdp.MMDP(P, [[[1.0], [0.0]], [[0.0], [4.0]]])
    assert mmdp.solve(model, INF).returns.tolist() == [0.5, 2.0]


def test_a_cycle_of_two_states_is_improper() -> None:
    P = np.zeros((2, 3, 2, 3))
    P[:, 0, 0, 1] = P[:, 1, 0, 0] = P[:, :2, 1, 2] = P[:, 2, :, 2] = 1.0
    P[0, 0, 0] = [0.0, 0.9, 0.1]
    model = mmdp.MMDP(P, [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]], initial=[1, 0, 0])
    with pytest.raises(
        mmdp.InputError, match="in model 1 some policy stays in states '0', '1' for"
    ):
        mmdp.solve(model, INF)
    assert mmdp.solve(model.subset([0]), INF).value == pytest.approx(19)


def test_simulation_covers_whole_episodes() -> None:
    model = make_proper_model(3)
    solution = mmdp.solve(model, INF)
    simulated = mmdp.simulate(model, solution.policy, n_episodes=2000)
    assert simulated.mean == pytest.approx(solution.value, abs=3 * simulated.stderr)


def test_risk_and_regret() -> None:
    model = make_proper_model(4)
    for objective in (mmdp.objectives.CVaR(0.4), mmdp.objectives.WorstCase()):
        solution = mmdp.solve(model, INF, objective=objective, certify_time=0.2)
        best = max(objective.value(x, model.weights) for x in compute_policy_returns(model))
        assert solution.value <= best + 1e-9
        assert solution.bound is not None
        assert solution.bound >= best - 1e-9


@pytest.mark.parametrize("n_states", [1, 3])
def test_an_exit_probability_lost_to_rounding_is_refused(n_states: int) -> None:
    """The states lead to each other in a circle, and out of it with a chance of 1e-200."""
    P = np.zeros((2, n_states + 1, 1, n_states + 1))
    for s in range(n_states):
        P[:, s, 0, (s + 1) % n_states] = 1.0
        P[:, s, 0, n_states] = 1e-200
    P[:, n_states, 0, n_states] = 1.0
    model = mmdp.MMDP(P, [[1.0]] * n_states + [[0.0]], initial=[1.0] + [0.0] * n_states)
    for method in ("cadp", "exact", "oracle", "grid"):
        with pytest.raises(mmdp.InputError, match=r"\(almost\) never ends them.*discount"):
            mmdp.solve(model, math.inf, method)
    with pytest.raises(mmdp.InputError, match="never ends"):
        mmdp.bound(model, math.inf)
