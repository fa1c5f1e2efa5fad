"""The frontier of mean and tail, and lotteries against the exact program over all policies."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog

import mmdp
from mmdp.objective import CVaR, as_objective
from mmdp.testing import all_policies, random_model, returns_of
from tests.instances import NO_TIME, SEEDS, at_least, tiny


def best_lottery(
    returns: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], alpha: float
) -> float:
    """The best CVaR of a lottery over policies with these returns (N, M), by a linear program.

    Over w (N,), eta and z (M,): max eta - sum lambda z / alpha, z >= eta - sum_k w_k rho^k.
    """
    N, M = returns.shape
    found = linprog(
        np.concatenate([np.zeros(N), [-1.0], weights / alpha]),
        A_ub=np.hstack([-returns.T, np.ones((M, 1)), -np.eye(M)]), b_ub=np.zeros(M),
        A_eq=np.concatenate([np.ones(N), np.zeros(M + 1)])[None], b_eq=[1.0],
        bounds=[(0, None)] * N + [(None, None)] + [(0, None)] * M,
    )  # fmt: skip
    assert found.fun is not None
    return -float(found.fun)


@settings(max_examples=at_least(15), **NO_TIME)
@given(seed=SEEDS)
def test_lotteries_lie_between_one_policy_and_the_best_of_all(seed: int) -> None:
    model, horizon = tiny(seed, most=300)
    alpha = 0.1 + 0.8 * (seed % 7) / 7
    found = mmdp.mixture(model, horizon, CVaR(alpha), time_limit=0.3, backend="numpy")
    rho = returns_of(all_policies(model, horizon), model)
    slack = 1e-6 * (1 + np.abs(rho).max())
    assert (
        found.single.value - slack <= found.value <= best_lottery(rho, model.weights, alpha) + slack
    )
    assert found.value <= found.bound.value + slack
    mixed = sum(
        p * mmdp.evaluate(policy, model).returns
        for p, policy in zip(found.probabilities, found.policies, strict=True)
    )
    assert found.returns == pytest.approx(mixed)
    assert found.value == pytest.approx(float(CVaR(alpha).value(found.returns, model.weights)))


def test_most_lotteries_are_the_best_there_are() -> None:
    gained, best = 0, 0
    for seed in range(30):
        model, horizon = tiny(seed, most=300)
        found = mmdp.mixture(model, horizon, CVaR(0.3), time_limit=0.3, backend="numpy")
        rho = returns_of(all_policies(model, horizon), model)
        most = best_lottery(rho, model.weights, 0.3)
        gained += found.gives_up > 1e-6 * (1 + np.abs(rho).max())
        best += found.value >= most - 1e-6 * (1 + np.abs(rho).max())
    assert best >= 27
    assert gained >= 2


@pytest.mark.parametrize("objective", ["worst", "evar:0.2", "entropic:0.5", "regret:worst"])
def test_a_lottery_hedges_two_bets_whatever_the_objective(objective: str) -> None:
    bets = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[4.0, 0.0]], [[0.0, 4.0]]])
    found = mmdp.mixture(bets, 1, objective, time_limit=0.5)
    assert found.probabilities == pytest.approx([0.5, 0.5], abs=1e-4)
    assert found.returns == pytest.approx([2.0, 2.0], abs=1e-3)
    assert found.gives_up > 0
    assert found.bound.value >= found.value - 1e-6


def test_a_lottery_needs_a_concave_objective() -> None:
    model, horizon = tiny(3)
    with pytest.raises(mmdp.InputError, match=r"VaR 10% is not concave, so no best lottery"):
        mmdp.mixture(model, horizon, "var:0.1")


# ---------------------------------------------------------------------- frontier
def test_each_point_is_the_best_of_all_points_for_its_objective() -> None:
    train, test = mmdp.domains.riverswim(seed=1)
    found = mmdp.frontier(train, 15, [0.5, 0.1, 0.02], test=test)
    for point in found.points:
        values = [other.evaluation.value(point.objective) for other in found.points]
        assert point.value == pytest.approx(max(values))
    frame = found.to_frame()
    assert frame["objective"].tolist() == ["mean", "CVaR 50%", "CVaR 10%", "CVaR 2%"]
    assert frame["mean"].max() == frame["mean"][0]
    assert frame["tail"].max() == pytest.approx(frame["tail"][2])
    again = mmdp.evaluate(found.points[2].policy, test)
    assert frame["test_tail"][2] == pytest.approx(again.value(as_objective("cvar:0.1")))
    assert (frame["gives_up"] >= 0).all()


def test_points_of_a_frontier_are_proven() -> None:
    train, _ = mmdp.domains.riverswim(seed=1)
    frame = mmdp.frontier(train, 8, [0.2], certify=0.5).to_frame()
    assert (frame["bound"] >= frame["value"]).all()
    assert (frame["gap"] < 0.2).all()


def test_a_point_that_is_worse_in_both_is_not_on_the_line() -> None:
    from mmdp.measures.safety import _best

    assert _best(np.array([3.0, 2.0, 1.0]), np.array([1.0, 0.5, 2.0])) == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"alphas": []}, "alphas must hold at least one"), ({"alphas": [2]}, "alpha of CVaR"),
     ({"tail": 0}, "alpha of CVaR")],
)  # fmt: skip
def test_what_a_frontier_refuses(arguments: dict[str, object], message: str) -> None:
    model, horizon = tiny(3)
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.frontier(model, horizon, **arguments)  # type: ignore[arg-type]


def test_one_share_will_do() -> None:
    model = random_model(1, n_models=3, n_states=3, n_actions=2, horizon=0)
    alone, listed = mmdp.frontier(model, 2, 0.4), mmdp.frontier(model, 2, [0.4])
    assert [x.value for x in alone.points] == [x.value for x in listed.points]
    with pytest.raises(mmdp.InputError, match="give a finite horizon"):
        mmdp.mixture(model, math.inf)


def test_options_of_the_method_are_kept_for_every_start() -> None:
    model = random_model(1, n_models=3, n_states=3, n_actions=2, horizon=0)
    method = mmdp.CADP(max_iterations=7, tol=1e-3)
    for point in mmdp.frontier(model, 2, [0.4], method=method, certify=0.05).points:
        assert point.provenance.options["max_iterations"] == 7
        assert point.provenance.options["tol"] == 1e-3


@pytest.mark.parametrize("seed", [51, 71, 92])
def test_a_lottery_takes_more_starts_before_it_gives_up(seed: int) -> None:
    model = random_model(seed, n_models=5, n_states=3, n_actions=3, horizon=0)
    best = best_lottery(returns_of(all_policies(model, 2), model), model.weights, 0.2)
    found = mmdp.mixture(model, 2, "cvar:0.2", backend="numpy", time_limit=1)
    assert found.value == pytest.approx(best, rel=1e-9)
