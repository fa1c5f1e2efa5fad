"""The unit of the rewards and their zero do not matter: no tolerance is absolute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import mmdp
import mmdp.measures
from mmdp.objective import as_objective

INF, T, S = math.inf, 3, 3
CADP = mmdp.CADP(starts=5)
EPISODES = {"episodes": 4}
KINDS: dict[str, Any] = {
    "tied": mmdp.Tied([0, 0, 1]), "monotone": mmdp.Monotone(), "fixed": mmdp.Fixed([-1, 1, -1]),
    "memory": mmdp.Memory(2), "stationary": mmdp.Stationary(),
}  # fmt: skip
CASES: list[Any] = [
    *((method, "mean", None) for method in (
        CADP, mmdp.CADP(tol=1e-3, starts=3), mmdp.CADP(sweeps="paper"), mmdp.CADP(init="random"),
        "wsu", "mvp", mmdp.Gradient(), mmdp.Mirror(), mmdp.Gradient(round=False), "oracle",
        mmdp.QMDP(**EPISODES), mmdp.Rollout(**EPISODES), mmdp.MixTS(**EPISODES),
        mmdp.MixTS(likelihood="reward", **EPISODES), mmdp.POMCP(queries=8, **EPISODES),
    )),
    *(pytest.param(method, "mean", None, marks=pytest.mark.slow) for method in (
        mmdp.Exact(polish=0, max_nodes=3), "milp",
    )),
    *((CADP, objective, None) for objective in (
        "cvar:0.3", "var:0.3", "evar:0.2", "entropic:0.5", "worst", "mean-cvar:0.2:0.4",
        "regret:worst", "regret:cvar:0.4",
    )),
    *((CADP, objective, kind) for kind in KINDS for objective in ("mean", "cvar:0.4")),
    (mmdp.CADP(tol=1e-3, starts=3), "mean", "memory"),
    (mmdp.CADP(tol=1e-3, starts=3), "mean", "stationary"),
]  # fmt: skip
EACH = pytest.mark.parametrize(("method", "objective", "kind"), CASES)
SEEDS = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]
)


def instance(seed: int, unit: float = 1.0, offset: float = 0.0) -> mmdp.MMDP:
    """Rewards by next state, some of them tied, in another unit and from another zero."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(S, 0.5), size=(5, S, 4))
    r = np.round(rng.normal(size=(5, S, 4, S)) * 2**20) / 2**20  # the offset adds without rounding
    r[:, :, 3] = r[:, :, 2]
    return mmdp.MMDP(
        P, unit * (r + offset), discount=0.75, initial=rng.dirichlet(np.ones(S)),
        weights=rng.dirichlet(np.ones(5)),
    )  # fmt: skip


def solved(model: mmdp.MMDP, method: Any, objective: str, kind: Any, unit: float) -> mmdp.Solution:
    goal = as_objective(objective)
    if objective.startswith("entropic"):
        goal = mmdp.Entropic(0.5 / unit)
    horizon = INF if kind == "stationary" else T
    return mmdp.solve(
        model, horizon, method, objective=goal, policy=KINDS.get(kind, kind), backend="numpy"
    )


def same_policy(one: Any, other: Any) -> bool:
    if isinstance(one, mmdp.MarkovPolicy | mmdp.StationaryPolicy | mmdp.MemoryPolicy):
        return bool(one == other)
    return True  # a planner: it is known by its returns


@EACH
@SEEDS
def test_powers_of_two_scale_exactly(method: Any, objective: str, kind: Any, seed: int) -> None:
    one = solved(instance(seed), method, objective, kind, 1.0)
    for power in (-60, 20):
        unit = 2.0**power
        other = solved(instance(seed, unit), method, objective, kind, unit)
        assert same_policy(one.policy, other.policy)
        assert (other.returns == unit * one.returns).all()
        assert other.value == unit * one.value
        assert other.status is one.status


@EACH
@SEEDS
def test_an_offset_adds_the_same_to_every_return(
    method: Any, objective: str, kind: Any, seed: int
) -> None:
    one = solved(instance(seed), method, objective, kind, 1.0)
    times = 4.0 if kind == "stationary" else (1 - 0.75**T) / 0.25
    for offset in (2.0**20,):
        other = solved(instance(seed, 1.0, offset), method, objective, kind, 1.0)
        rounding = 1e-13 * abs(offset) * times + 1e-12
        shift = 0.0 if objective.startswith("regret") else offset * times
        assert other.value == pytest.approx(one.value + shift, abs=rounding)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["oracle", "qmdp", "pairs"])
def test_bounds(method: str, seed: int) -> None:
    for horizon in (T, INF):
        one = mmdp.bound(instance(seed), horizon, method, backend="numpy").value
        for power in (-60, 20):
            other = mmdp.bound(instance(seed, 2.0**power), horizon, method, backend="numpy").value
            assert other == pytest.approx(one * 2.0**power, rel=1e-14)


def test_the_policy_table() -> None:
    for seed in range(4):
        model = instance(seed)
        policy = mmdp.solve(model, T, CADP).policy
        one = mmdp.measures.policy_table(policy, model)
        for power in (-60, -20, 20):
            other = mmdp.measures.policy_table(policy, instance(seed, 2.0**power))
            assert (one["agree"] == other["agree"]).all()
            assert np.array_equal(one["margin"] * 2.0**power, other["margin"], equal_nan=True)
        other = mmdp.measures.policy_table(policy, instance(seed, 1.0, 2.0**20))
        assert (one["agree"] == other["agree"]).all()
