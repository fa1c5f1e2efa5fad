"""The CPU kernel: compiled by numba on first use.

Threads are plain Python threads around code that releases the interpreter lock. They sleep
between passes and touch no global threading layer; steps.py says how they share a pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.kernels.ascent import ascend
from mmdp.kernels.cpu import steps
from mmdp.kernels.cpu.bounds import CpuBounds
from mmdp.kernels.cpu.climb import Climb
from mmdp.kernels.cpu.controllers import CpuControllers
from mmdp.kernels.cpu.episodes import CpuEpisodes
from mmdp.kernels.cpu.induction import induct
from mmdp.kernels.cpu.passes import (
    ACTIONS,
    OWN,
    PROBABILITIES,
    WEIGHTED,
    Ground,
    Orders,
    Scratch,
    State,
    back,
    fore,
    fore_random,
)  # fmt: skip
from mmdp.kernels.cpu.threads import Team, default_threads
from mmdp.kernels.numpy_kernel import NumpyKernel
from mmdp.kernels.problem import (
    Array,
    Ascent,
    Backward,
    Choice,
    Problem,
    Rows,
    Sweeps,
    Table,
    Watch,
    aligned,
)  # fmt: skip

THREADS_PAY_FROM = 100_000  # multiply-adds per time step below which one thread is faster
MODELS_AT_ONCE = 1024  # models per block of an independent pass, so that values stay in cache


class NumbaKernel(CpuBounds, CpuControllers, CpuEpisodes):
    """Numba on the CPU.

    Parameters
    ----------
    threads
        Defaults to the cores this process may use.
    threads_pay_from
        Multiply-adds per time step below which one thread does the work.
    """

    name = "numba"

    def __init__(
        self, threads: int | None = None, *, threads_pay_from: int = THREADS_PAY_FROM
    ) -> None:
        self.threads = default_threads() if threads is None else threads
        self.threads_pay_from = threads_pay_from

    def backward(
        self,
        problem: Problem,
        horizon: int,
        choice: Choice,
        *,
        weights: Array | None = None,
        policy: Table | None = None,
        keep: Collection[str] = (),
    ) -> Backward:
        x, T, S, A, M = problem, horizon, problem.n_states, problem.n_actions, problem.n_models
        alone = weights is not None and weights.shape == (1, 1, 1) and policy is None
        if choice == "weighted" and alone and not {*keep} - {"actions"}:
            found, first = induct(x, T, self._team(len(x.indices)))
            return Backward(first, found, None, None, None)
        random = policy is not None and policy.ndim == 3
        mode = {"weighted": WEIGHTED, "own": OWN}.get(choice, PROBABILITIES if random else ACTIONS)
        parts: dict[str, npt.NDArray[Any]] = {"v": aligned(T + 1 if "values" in keep else 2, S, M)}
        if mode in (WEIGHTED, ACTIONS):
            parts["actions"] = np.empty((T, S), np.int32)
            if policy is not None:
                parts["actions"][:] = policy
        if random:
            parts["probabilities"] = np.ascontiguousarray(policy, np.float64)
        if weights is not None:
            parts["b"] = np.require(weights, np.float64, ["C", "W"])
        if "q" in keep:
            parts["q"] = aligned(T, S, A, M)
        if "gradient" in keep:
            parts["gradient"] = np.empty((T, S, A))
        if mode == OWN and "actions" in keep:
            parts["own"] = np.zeros((T, S, M), np.int32)
        do = Orders(
            mode, T - 1, weighed=weights is not None, keep_q="q" in keep,
            keep_gradient="gradient" in keep,
            incumbent=policy is not None and not random, keep_own="own" in parts,
        )  # fmt: skip
        self._walk_back(x, do, State.of(x, T, **parts))
        taken = (
            parts.get("own") if mode == OWN else parts.get("actions", np.zeros((T, S), np.int32))
        )
        return Backward(
            parts["v"][0],
            taken if "actions" in keep or choice == "weighted" else None,
            parts["v"] if "values" in keep else None,
            parts.get("gradient"),
            parts.get("q"),
        )

    def _walk_back(self, x: Problem, do: Orders, state: State) -> None:
        """Threads share the states of a step, or the models if these are independent."""
        ground, S, M = Ground.of(x), x.n_states, x.n_models
        one_row = do.mode == ACTIONS and not (do.keep_q or do.keep_gradient)
        work = len(x.indices) * M // (x.n_actions if one_row else 1)
        team = self._team(work)
        if do.weighed or M == 1:
            edges = steps.edges(S, steps.pieces(len(team)))
            steps.walk(
                team, work,
                lambda marks, rank: back(
                    marks, rank, edges, 0, M, do, ground, state, Scratch.of(x)
                ),
            )  # fmt: skip
            return
        whole = steps.edges(S, 1)
        team.each(
            lambda m: back(steps.new_marks(), 0, whole, *m, do, ground, state, Scratch.of(x)),
            _blocks(M, max(len(team), -(-M // MODELS_AT_ONCE))),
        )

    def forward(self, problem: Problem, horizon: int, policy: Table) -> Array:
        x, M = problem, problem.n_models
        parts: dict[str, npt.NDArray[Any]] = {
            "b": aligned(horizon, x.n_states, M), "v": np.empty((2, x.n_states, M))
        }  # fmt: skip
        random = policy.ndim == 3
        kind, dtype = ("probabilities", np.float64) if random else ("actions", np.int32)
        parts[kind] = np.require(policy, dtype, ["C", "W"])
        parts["b"][0] = x.start()
        ground, state = Ground.of(x), State.of(x, horizon, **parts)
        team = self._team(len(x.indices) * M // (1 if random else x.n_actions))
        blocks = _blocks(M, max(len(team), -(-M // MODELS_AT_ONCE)))
        whole = steps.edges(x.n_states, 1)

        def run(m: tuple[int, int]) -> None:
            if random:
                fore_random(*m, ground, state)
            else:
                marks, models = steps.new_marks(), np.array(m)
                fore(marks, 0, whole, models, -1, False, ground, state, Scratch.of(x))

        team.each(run, blocks)
        return parts["b"]

    def ascend(
        self,
        problem: Problem,
        horizon: int,
        starts: Iterable[Table | None],
        *,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        sweeps: Sweeps = "two-way",
        rows: Rows | None = None,
        watch: Watch | None = None,
    ) -> list[Ascent]:
        if rows is not None:  # a Python function at every time: nothing to compile
            return NumpyKernel().ascend(
                problem, horizon, starts, tol=tol, max_sweeps=max_sweeps, sweeps=sweeps,
                rows=rows, watch=watch,
            )  # fmt: skip
        team = self._team(len(problem.indices) * problem.n_models)
        climb = Climb(problem, horizon, team, two_way=sweeps == "two-way")
        return [ascend(climb, start, tol, max_sweeps, watch) for start in starts]

    def _team(self, work: int) -> Team:
        return Team.of(self.threads if work >= self.threads_pay_from else 1)


def _blocks(size: int, count: int) -> list[tuple[int, int]]:
    """``count`` nearly equal ranges that cover 0..size (fewer if size is smaller)."""
    count = max(1, min(size, count))
    edges = [size * i // count for i in range(count + 1)]
    return list(pairwise(edges))
