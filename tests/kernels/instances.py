"""Problems of a few shapes, so that a kernel that compiles for each compiles little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import mmdp
from mmdp.kernels.numpy.kernel import NumpyKernel
from mmdp.kernels.plan import Plan
from mmdp.kernels.problem import Ascent, Problem, Table

M, S, A, T = 5, 6, 3, 20
# rows of 4 to 6 next states, which are padded; one long row among short ones, which is split
PATTERNS = {
    "padded": np.arange(S) < np.random.default_rng(0).integers(4, S + 1, (S, A, 1)),
    "split": np.arange(S) < np.where(np.arange(A) == 2, S, 1)[:, None] * np.ones((S, 1, 1)),
}


def random_model(seed: int, kind: str) -> mmdp.MMDP:
    """``"dense"`` varies with time, ``"padded"`` and ``"split"`` do not."""
    rng = np.random.default_rng(seed)
    steps = (T,) if kind == "dense" else ()
    p = (rng.gamma(0.5, size=(*steps, M, S, A, S)) + 1e-6) * PATTERNS.get(kind, 1.0)
    initial = rng.dirichlet(np.ones(S)) * (np.arange(S) != seed % S)  # some states are not reached
    return mmdp.MMDP(
        p / p.sum(axis=-1, keepdims=True),
        rng.normal(size=(*steps, M, S, A)) * rng.choice([1.0, 100.0]),
        initial=initial / initial.sum(),
        weights=rng.dirichlet(np.full(M, 0.7)),
        discount=float(rng.choice([0.5, 0.9, 1.0])),
        terminal=rng.normal(size=(M, S)),
        storage="dense" if kind == "dense" else "sparse",
    )


def instance(seed: int, kind: str) -> Problem:
    """Some actions are not allowed: at some times in ``"dense"``, ever in the others."""
    times = T if kind == "dense" else 1
    allowed = np.random.default_rng(seed + 1000).random((times, S, A)) < 0.8
    return random_model(seed, kind).problem.restricted(allowed | (np.arange(A) == seed % A))


def tables(seed: int, count: int, soft: bool = False) -> list[Table]:
    """Random policies; their actions need not be allowed."""
    rng = np.random.default_rng(seed)
    if soft:
        return list(rng.dirichlet(np.ones(A), size=(count, T, S)))
    return list(rng.integers(0, A, (count, T, S)).astype(np.int32))


class Changed(NumpyKernel):
    """numpy, with other methods in its plans: ``methods`` makes them from the class of a plan."""

    def __init__(self, name: str, methods: Callable[[type[Plan]], dict[str, Any]]) -> None:
        self.name, self.methods = name, methods

    def lay_out(self, problem: Problem, horizon: int) -> Plan:
        plan = problem.storage.plan(problem, horizon)
        plan.__class__ = type("ChangedPlan", (type(plan),), self.methods(type(plan)))
        return plan


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-9)  # type: ignore[arg-type]


def same_ends(found: list[Ascent], expected: list[Ascent]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a.policy == b.policy).all()
        assert (a.sweeps, a.end, a.policy.dtype) == (b.sweeps, b.end, b.policy.dtype)
        assert a.value == a.trace[-1]
        close(a.trace, b.trace)
        close(a.returns, b.returns)


CASES = [("dense", [None]), ("split", tables(2, 3))]
