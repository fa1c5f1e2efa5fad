"""The unit of the rewards and their zero do not matter: no tolerance is absolute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import mmdp
import mmdp.insight.measures
from mmdp.core.objectives import as_objective

INF, T, S = math.inf, 3, 3
CADP = mmdp.methods.CADP(n_init=5)
EPISODES = {"n_episodes": 4}
POLICY_CLASSES: dict[str, Any] = {
    "tied": mmdp.policies.Tied([0, 0, 1]),
    "monotone": mmdp.policies.Monotone(),
    "fixed": mmdp.policies.Fixed([-1, 1, -1]),
    "memory": mmdp.policies.Memory(2),
    "stationary": mmdp.policies.Stationary(),
}
CASES: list[Any] = [
    *(
        (method, "mean", None)
        for method in (
            CADP,
            mmdp.methods.CADP(tol=1e-3, n_init=3),
            mmdp.methods.CADP(sweep_type="paper"),
            mmdp.methods.CADP(init="random"),
            "wsu",
            "mvp",
            mmdp.methods.NaturalGradient(),
            mmdp.methods.MirrorAscent(),
            mmdp.methods.NaturalGradient(deterministic=False),
            "oracle",
            mmdp.methods.QMDP(**EPISODES),
            mmdp.methods.Rollout(**EPISODES),
            mmdp.methods.MixTS(**EPISODES),
            mmdp.methods.MixTS(likelihood="reward", **EPISODES),
            mmdp.methods.POMCP(n_queries=8, **EPISODES),
        )
    ),
    *(
        pytest.param(method, "mean", None, marks=pytest.mark.slow)
        for method in (
            mmdp.methods.Exact(max_nodes=3),
            "milp",
        )
    ),
    *(
        (CADP, objective, None)
        for objective in (
            "cvar:0.3",
            "var:0.3",
            "evar:0.2",
            "entropic:0.5",
            "worst",
            "mean-cvar:0.2:0.4",
            "regret:worst",
            "regret:cvar:0.4",
        )
    ),
    *((CADP, objective, kind) for kind in POLICY_CLASSES for objective in ("mean", "cvar:0.4")),
    (mmdp.methods.CADP(tol=1e-3, n_init=3), "mean", "memory"),
    (mmdp.methods.CADP(tol=1e-3, n_init=3), "mean", "stationary"),
]
CASE_PARAMETERS = pytest.mark.parametrize(("method", "objective", "policy_class"), CASES)
SEEDS = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]
)


def make_instance(seed: int, unit: float = 1.0, offset: float = 0.0) -> mmdp.MMDP:
    """Rewards by next state, some of them tied, in another unit and from another zero."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(S, 0.5), size=(5, S, 4))
    r = np.round(rng.normal(size=(5, S, 4, S)) * 2**20) / 2**20  # the offset adds without rounding
    r[:, :, 3] = r[:, :, 2]
    return mmdp.MMDP(
        P,
        next_rewards=unit * (r + offset),
        discount=0.75,
        initial=rng.dirichlet(np.ones(S)),
        weights=rng.dirichlet(np.ones(5)),
    )


def solve_scaled(
    model: mmdp.MMDP, method: Any, objective: str, policy_class: Any, unit: float
) -> mmdp.Solution:
    scaled_objective = as_objective(objective)
    if objective.startswith("entropic"):
        scaled_objective = mmdp.objectives.Entropic(0.5 / unit)
    horizon = INF if policy_class == "stationary" else T
    return mmdp.solve(
        model,
        horizon,
        method,
        objective=scaled_objective,
        policy_class=POLICY_CLASSES.get(policy_class, policy_class),
        backend="numpy",
    )


def is_same_policy(one: Any, other: Any) -> bool:
    if isinstance(
        one,
        mmdp.policies.MarkovPolicy | mmdp.policies.StationaryPolicy | mmdp.policies.MemoryPolicy,
    ):
        return bool(one == other)
    return True  # a planner: it is known by its returns


@CASE_PARAMETERS
@SEEDS
def test_powers_of_two_scale_exactly(
    method: Any, objective: str, policy_class: Any, seed: int
) -> None:
    one = solve_scaled(make_instance(seed), method, objective, policy_class, 1.0)
    for power in (-60, 20):
        unit = 2.0**power
        other = solve_scaled(make_instance(seed, unit), method, objective, policy_class, unit)
        assert is_same_policy(one.policy, other.policy)
        assert (other.returns == unit * one.returns).all()
        assert other.value == unit * one.value
        assert other.status is one.status


@CASE_PARAMETERS
@SEEDS
def test_an_offset_adds_the_same_to_every_return(
    method: Any, objective: str, policy_class: Any, seed: int
) -> None:
    one = solve_scaled(make_instance(seed), method, objective, policy_class, 1.0)
    times = 4.0 if policy_class == "stationary" else (1 - 0.75**T) / 0.25
    for offset in (2.0**20,):
        other = solve_scaled(make_instance(seed, 1.0, offset), method, objective, policy_class, 1.0)
        rounding = 1e-13 * abs(offset) * times + 1e-12
        shift = 0.0 if objective.startswith("regret") else offset * times
        assert other.value == pytest.approx(one.value + shift, abs=rounding)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["oracle", "qmdp", "pairs"])
def test_bounds(method: str, seed: int) -> None:
    for horizon in (T, INF):
        one = mmdp.bound(make_instance(seed), horizon, method, backend="numpy").value
        for power in (-60, 20):
            other = mmdp.bound(
                make_instance(seed, 2.0**power), horizon, method, backend="numpy"
            ).value
            assert other == pytest.approx(one * 2.0**power, rel=1e-14)


def test_the_policy_table() -> None:
    for seed in range(4):
        model = make_instance(seed)
        policy = mmdp.solve(model, T, CADP).policy
        one = mmdp.measures.policy_table(model, policy)
        for power in (-60, -20, 20):
            other = mmdp.measures.policy_table(make_instance(seed, 2.0**power), policy)
            assert (one["agreement"] == other["agreement"]).all()
            assert np.array_equal(one["margin"] * 2.0**power, other["margin"], equal_nan=True)
        other = mmdp.measures.policy_table(make_instance(seed, 1.0, 2.0**20), policy)
        assert (one["agreement"] == other["agreement"]).all()
