"""Problems of a few shapes, so that a kernel that compiles for each compiles little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import mmdp
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.kernels.problem import AscentResult, PolicyTable, Problem

M, S, A, T = 5, 6, 3, 20
# rows of 4 to 6 next states, which are padded; one long row among short ones, which is split
SPARSITY_PATTERNS = {
    "padded": np.arange(S) < np.random.default_rng(0).integers(4, S + 1, (S, A, 1)),
    "split": np.arange(S) < np.where(np.arange(A) == 2, S, 1)[:, None] * np.ones((S, 1, 1)),
}


def make_random_model(seed: int, layout: str) -> mmdp.MMDP:
    """``"dense"`` varies with time, ``"padded"`` and ``"split"`` do not."""
    rng = np.random.default_rng(seed)
    time_shape = (T,) if layout == "dense" else ()
    p = (rng.gamma(0.5, size=(*time_shape, M, S, A, S)) + 1e-6) * SPARSITY_PATTERNS.get(layout, 1.0)
    initial = rng.dirichlet(np.ones(S)) * (np.arange(S) != seed % S)  # some states are not reached
    return mmdp.MMDP(
        p / p.sum(axis=-1, keepdims=True),
        rng.normal(size=(*time_shape, M, S, A)) * rng.choice([1.0, 100.0]),
        initial=initial / initial.sum(),
        weights=rng.dirichlet(np.full(M, 0.7)),
        discount=float(rng.choice([0.5, 0.9, 1.0])),
        terminal=rng.normal(size=(M, S)),
        storage="dense" if layout == "dense" else "sparse",
    )


def make_problem(seed: int, layout: str) -> Problem:
    """Some actions are not allowed: at some times in ``"dense"``, ever in the others."""
    n_times = T if layout == "dense" else 1
    allowed = np.random.default_rng(seed + 1000).random((n_times, S, A)) < 0.8
    return make_random_model(seed, layout).problem.restrict_actions(
        allowed | (np.arange(A) == seed % A)
    )


def make_random_policies(seed: int, n_policies: int, randomized: bool = False) -> list[PolicyTable]:
    """Random policies; their actions need not be allowed."""
    rng = np.random.default_rng(seed)
    if randomized:
        return list(rng.dirichlet(np.ones(A), size=(n_policies, T, S)))
    return list(rng.integers(0, A, (n_policies, T, S)).astype(np.int32))


class PatchedBackend(NumpyBackend):
    """numpy, with other methods in its plans: ``methods`` makes them from the class of a plan."""

    def __init__(
        self, name: str, make_methods: Callable[[type[PreparedProblem]], dict[str, Any]]
    ) -> None:
        self.name, self.make_methods = name, make_methods

    def prepare_storage(self, problem: Problem, horizon: int) -> PreparedProblem:
        prepared = problem.storage.prepare(problem, horizon)
        prepared.__class__ = type(
            "PatchedProblem", (type(prepared),), self.make_methods(type(prepared))
        )
        return prepared


def assert_close(result: object, expected: object) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-9)  # type: ignore[arg-type]


def assert_same_ascents(results: list[AscentResult], expected: list[AscentResult]) -> None:
    for a, b in zip(results, expected, strict=True):
        assert (a.policy == b.policy).all()
        assert (a.n_sweeps, a.stop_reason, a.policy.dtype) == (
            b.n_sweeps,
            b.stop_reason,
            b.policy.dtype,
        )
        assert a.value == a.trace[-1]
        assert_close(a.trace, b.trace)
        assert_close(a.returns, b.returns)


CASES = [("dense", [None]), ("split", make_random_policies(2, 3))]
