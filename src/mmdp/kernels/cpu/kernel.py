"""The CPU kernel: compiled by numba on first use.

Threads are plain Python threads around code that releases the interpreter lock. They sleep
between passes and touch no global threading layer; steps.py says how they share a pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
IN_CACHE = 2**21  # bytes of p that a core keeps at hand
FEWEST = 16  # models at a time: two vectors or more


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
        if choice != "weighted" and (blocks := _blocks(x, T)):
            return self._blockwise(x, T, choice, blocks, weights, policy, keep)
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
        state, ground = State.of(x, T, **parts), Ground.of(x)
        one_row = mode == ACTIONS and not (do.keep_q or do.keep_gradient)
        work = len(x.indices) * M // (A if one_row else 1)
        team = self._team(work)
        edges = steps.edges(S, steps.pieces(len(team)))
        steps.walk(
            team, work,
            lambda marks, rank: back(marks, rank, edges, do, ground, state, Scratch.of(x)),
        )  # fmt: skip
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

    def _blockwise(
        self, x: Problem, T: int, choice: Choice, blocks: list[slice], weights: Array | None,
        policy: Table | None, keep: Collection[str],
    ) -> Backward:  # fmt: skip
        """A pass without a sum over models, some of them at a time."""
        S, A, M = x.n_states, x.n_actions, x.n_models
        shapes = {"first": (S,), "values": (T + 1, S), "q": (T, S, A)}
        whole = {name: aligned(*shapes[name], M) for name in shapes if name in ("first", *keep)}
        if choice == "own" and "actions" in keep:
            whole["actions"] = np.empty((T, S, M), np.int32)
        rest: list[Any] = [None] * len(blocks)

        def run(i: int) -> None:
            b = None if weights is None else weights[:, :, blocks[i]]
            found = NumbaKernel(1).backward(
                x.some(blocks[i]), T, choice, weights=b, policy=policy, keep=keep
            )
            for name, array in whole.items():
                array[..., blocks[i]] = getattr(found, name)
            rest[i] = {"actions": found.actions, "gradient": found.gradient}

        Team.of(self.threads).each(run, range(len(blocks)))
        if "gradient" in keep:
            whole["gradient"] = sum(part["gradient"] for part in rest)
        return Backward(**{**dict.fromkeys(Backward._fields), **rest[0], **whole})

    def forward(self, problem: Problem, horizon: int, policy: Table) -> Array:
        x, S, M = problem, problem.n_states, problem.n_models
        b = aligned(horizon, S, M)
        if blocks := _blocks(x, horizon):

            def run(m: slice) -> None:
                b[:, :, m] = NumbaKernel(1).forward(x.some(m), horizon, policy)

            Team.of(self.threads).each(run, blocks)
            return b
        random = policy.ndim == 3
        kind, dtype = ("probabilities", np.float64) if random else ("actions", np.int32)
        parts = {"b": b, "v": np.empty((2, S, M)), kind: np.require(policy, dtype, ["C", "W"])}
        b[0] = x.start()
        ground, state = Ground.of(x), State.of(x, horizon, **parts)
        team = self._team(len(x.indices) * M // (1 if random else x.n_actions))
        whole, edges = steps.edges(S, 1), steps.edges(M, len(team))

        def move(i: int) -> None:
            models = edges[i : i + 2]
            if random:
                fore_random(*models, ground, state)
            else:
                fore(steps.new_marks(), 0, whole, models, -1, False, ground, state, Scratch.of(x))

        team.each(move, range(len(team)))
        return b

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


def _blocks(x: Problem, horizon: int) -> list[slice]:
    """Models whose p stays in the cache through all steps; none if that does not help."""
    if horizon == 1 or len(x.p) > 1:  # every entry of p is read once
        return []
    size = IN_CACHE // max(1, 8 * len(x.indices)) // FEWEST * FEWEST
    if not 0 < size < x.n_models:
        return []
    return [slice(m, min(m + size, x.n_models)) for m in range(0, x.n_models, size)]
