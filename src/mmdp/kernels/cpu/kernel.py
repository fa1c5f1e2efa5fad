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
from mmdp.kernels.cpu.layout import THREADS_PAY_FROM
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
    product,
)  # fmt: skip
from mmdp.kernels.cpu.threads import Team, default_threads
from mmdp.kernels.events import EventRows, Events
from mmdp.kernels.plan import Machine, Plan
from mmdp.kernels.problem import (
    Array,
    Ascent,
    Backward,
    Choice,
    Job,
    Problem,
    Stored,
    Table,
    aligned,
    at,
    frozen,
    picked,
)  # fmt: skip

IN_CACHE = 2**21  # bytes of p that a core keeps at hand
FEWEST = 16  # models at a time: two vectors or more


class NumbaKernel(Machine):
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

    def lay_out(self, problem: Problem, horizon: int) -> Plan | None:
        known: dict[type, type[CpuPlan]] = {Stored: CpuPlan, Events: CpuEvents}
        plan = known.get(type(problem.storage))
        if plan is None:
            return None
        return plan(problem, horizon, self.threads, self.threads_pay_from)


class CpuPlan(CpuBounds, CpuControllers, CpuEpisodes):
    """Stored tables on the threads of a CPU."""

    # ------------------------------------------------------------ one step
    def expect(self, t: int, v: Array) -> Array:
        return self._product(t, v, np.zeros((1, 1, 1, self.problem.n_models)), None, 1.0)

    def step(self, t: int, v: Array) -> Array:
        x = self.ground
        return self._product(t, v, x.r, x.paid, x.gamma)

    def _product(self, t: int, v: Array, r: Array, paid: Array | None, gamma: float) -> Array:
        """(S, A, M) r + P (paid + gamma v)."""
        x, q = self.ground, aligned(*self.problem.r.shape[1:])
        team = self.team(self.problem.storage.entries * q.shape[2])
        edges, r_t = steps.edges(len(q), len(team)), frozen(at(r, t))
        v = np.require(v, np.float64, ["C", "W"])
        team.each(
            lambda i: product(edges[i], edges[i + 1], t, x, v, r_t, paid, gamma, q),
            range(len(team)),
        )
        return q

    def push(self, t: int, b: Array, row: Table) -> Array:
        two = aligned(2, *b.shape)
        two[0] = b
        self._move(two, np.stack([row, row]), self.ground.since(t))
        return two[1]

    # ------------------------------------------------------------ passes
    def _backward(  # type: ignore[override]  # what a Python function picks is the plain plan's
        self, choice: Choice, weights: Array | None, policy: Table | None, keep: Collection[str]
    ) -> Backward:
        x, T = self.problem, self.horizon
        S, A, M = x.n_states, x.n_actions, x.n_models
        alone = weights is not None and weights.shape == (1, 1, 1) and policy is None
        alone = alone and isinstance(x.storage, Stored)
        if choice == "weighted" and alone and not {*keep} - {"actions"}:
            found, first = induct(x, T, self.team(x.storage.entries))
            return Backward(first, found, None, None, None)
        if choice != "weighted" and (blocks := self._blocks()):
            return self._blockwise(choice, blocks, weights, policy, keep)
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
        state, ground = State.of(x, T, **parts), self.ground
        one_row = mode == ACTIONS and not (do.keep_q or do.keep_gradient)
        work = x.storage.entries * M // (A if one_row else 1)
        team = self.team(work)
        edges = steps.edges(S, steps.pieces(len(team)))
        steps.walk(
            team, work,
            lambda marks, rank: back(marks, rank, edges, do, ground, state, Scratch.of(ground)),
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

    def forward(self, policy: Table) -> Array:
        x, b = self.problem, aligned(self.horizon, self.problem.n_states, self.problem.n_models)
        if blocks := self._blocks():

            def run(block: tuple[slice, CpuPlan]) -> None:
                m, plan = block
                b[:, :, m] = plan.forward(policy)

            Team.of(self.threads).each(run, blocks)
        else:
            b[0] = x.start()
            self._move(b, policy, self.ground)
        return b

    def _move(self, b: Array, policy: Table, ground: Ground) -> None:
        """Fill b (n, S, M) from b[0] on, under n rows of a policy; the last is not used."""
        x, (n, S, M), random = self.problem, b.shape, policy.ndim == 3
        kind, dtype = ("probabilities", np.float64) if random else ("actions", np.int32)
        parts = {"b": b, "v": np.empty((2, S, M)), kind: np.require(policy, dtype, ["C", "W"])}
        state = State.of(x, n, **parts)
        team = self.team(x.storage.entries * M // (1 if random else x.n_actions))
        whole, edges = steps.edges(S, 1), steps.edges(M, len(team))

        def move(i: int) -> None:
            models = edges[i : i + 2]
            if random:
                fore_random(*models, ground, state)
            else:
                fore(
                    steps.new_marks(),
                    0,
                    whole,
                    models,
                    -1,
                    False,
                    ground,
                    state,
                    Scratch.of(ground),
                )

        team.each(move, range(len(team)))

    def _ascend(self, starts: Iterable[Table | None], job: Job) -> list[Ascent]:  # type: ignore[override]
        climb = Climb(self, two_way=job.two_way)
        return [ascend(climb, start, *job.limits) for start in starts]

    # ------------------------------------------------------------ independent models
    def _blockwise(
        self, choice: Choice, blocks: list[tuple[slice, CpuPlan]], weights: Array | None,
        policy: Table | None, keep: Collection[str],
    ) -> Backward:  # fmt: skip
        """A pass without a sum over models, some of them at a time."""
        x, T = self.problem, self.horizon
        S, A, M = x.n_states, x.n_actions, x.n_models
        shapes = {"first": (S,), "values": (T + 1, S), "q": (T, S, A)}
        whole = {name: aligned(*shapes[name], M) for name in shapes if name in ("first", *keep)}
        if choice == "own" and "actions" in keep:
            whole["actions"] = np.empty((T, S, M), np.int32)
        rest: list[Any] = [None] * len(blocks)

        def run(i: int) -> None:
            m, plan = blocks[i]
            b = None if weights is None else weights[:, :, m]
            found = plan.backward(choice, weights=b, policy=policy, keep=keep)
            for name, array in whole.items():
                array[..., m] = getattr(found, name)
            rest[i] = {"actions": found.actions, "gradient": found.gradient}

        Team.of(self.threads).each(run, range(len(blocks)))
        if "gradient" in keep:
            whole["gradient"] = sum(part["gradient"] for part in rest)
        return Backward(**{**dict.fromkeys(Backward._fields), **rest[0], **whole})

    def _blocks(self) -> list[tuple[slice, CpuPlan]]:
        """Plans of models whose p stays in the cache through all steps; none if no use."""
        x = self.problem
        if self.horizon == 1 or x.storage.steps > 1:  # every entry of p is read once
            return []
        size = IN_CACHE // max(1, 8 * len(x.indices)) // FEWEST * FEWEST
        if not 0 < size < x.n_models:
            return []
        if not self.parts:
            ends = range(0, x.n_models, size)
            some = [slice(m, min(m + size, x.n_models)) for m in ends]
            self.parts += [(m, picked(x.p, m)) for m in some]
        return [(m, self._of_models(m, p)) for m, p in self.parts]

    def _of_models(self, models: slice, p: Array) -> CpuPlan:
        """The plan of some of the models, by one thread."""
        x = self.problem
        own = x.some(models, Stored(x.indptr, x.indices, p, x.dense))
        return CpuPlan(own._replace(r=np.asarray(own.r)), self.horizon, 1)


class CpuEvents(EventRows, CpuPlan):
    """Shared events on the threads of a CPU: the chances stay in the cache, and p is not read."""

    @property
    def tables(self) -> Ground:
        return Ground.of(self.problem._replace(storage=self.events.table()))

    def _by_tables(self, problem: Problem) -> CpuPlan:
        return CpuPlan(problem, self.horizon, self.threads, self.pays_from)

    def _blocks(self) -> list[tuple[slice, CpuPlan]]:
        return []
