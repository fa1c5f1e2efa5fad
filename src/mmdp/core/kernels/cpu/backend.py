"""The CPU backend: compiled by numba on first use.

Threads are plain Python threads around code that releases the interpreter lock. They sleep
between passes and touch no global threading layer; scheduler.py says how they share a pass.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from mmdp.core.kernels.cpu import induction, scheduler
from mmdp.core.kernels.cpu.passes import (
    ACTIONS,
    PER_MODEL,
    PROBABILITIES,
    WEIGHTED,
    KernelArrays,
    PassBuffers,
    PassOptions,
    PassScratch,
    backward,
    compute_q,
    forward,
)
from mmdp.core.kernels.cpu.sweeps import PaperSweeper, TwoWaySweeper
from mmdp.core.kernels.cpu.threads import default_n_threads, for_each, split_edges
from mmdp.core.kernels.numpy.passes import TableSweeper
from mmdp.core.kernels.prepared import BaseBackend, PreparedProblem
from mmdp.core.kernels.problem import (
    ActionChoice,
    BackwardResult,
    PolicyTable,
    Problem,
    as_readonly,
    at_time,
    empty_aligned,
)
from mmdp.core.kernels.rewards import EventRewards
from mmdp.core.shapes import AnyArray, Array, IndexArray


class NumbaBackend(BaseBackend):
    """The backend on the CPU, compiled by numba.

    Parameters
    ----------
    n_threads
        Defaults to the cores this process may use.
    min_parallel_work
        Multiply-adds per time step below which one thread does the work.
    """

    name = "numba"

    def __init__(
        self,
        n_threads: int | None = None,
        *,
        min_parallel_work: float = PreparedProblem.min_parallel_work,
    ) -> None:
        self.n_threads = default_n_threads() if n_threads is None else n_threads
        self.min_parallel_work = min_parallel_work

    def prepare_storage(self, problem: Problem, horizon: int) -> PreparedProblem | None:
        if not problem.storage.is_compiled:
            return None
        return CpuProblem(problem, horizon, self.n_threads, self.min_parallel_work)


class CpuProblem(PreparedProblem):
    """A problem with tables or shared events, prepared for the threads of a CPU."""

    def __init__(
        self,
        problem: Problem,
        horizon: int,
        n_threads: int | None,
        min_parallel_work: float = PreparedProblem.min_parallel_work,
    ) -> None:
        super().__init__(problem, horizon)
        self.n_threads, self.min_parallel_work = n_threads, min_parallel_work
        self.arrays = KernelArrays.from_problem(problem)

    def _set_problem(self, problem: Problem, horizon: int) -> None:
        has_new_rewards = isinstance(problem.r, EventRewards) and problem.r is not self.problem.r
        super()._set_problem(problem, horizon)
        self.arrays = (
            KernelArrays.from_problem(problem)
            if has_new_rewards
            else self.arrays.with_problem(problem)
        )

    # ------------------------------------------------------------ one step
    def expect_next(self, t: int, v: Array) -> Array:
        return self._compute_q(t, v, np.zeros((1, 1, 1, self.problem.n_models)), None, 1.0)

    def q_step(self, t: int, v: Array) -> Array:
        x = self.arrays
        return self._compute_q(t, v, x.r, x.entry_rewards, x.gamma)

    def _compute_q(
        self, t: int, v: Array, r: Array, entry_rewards: Array | None, gamma: float
    ) -> Array:
        """Compute (S, A, M) r + P (entry rewards + gamma v)."""
        x, q = self.arrays, empty_aligned(*self.problem.r.shape[1:])
        n_threads = self.count_threads(self.problem.storage.n_entries * q.shape[2])
        edges, r_t = split_edges(len(q), n_threads), as_readonly(at_time(r, t))
        v = np.require(v, np.float64, ["C", "W"])
        for_each(
            n_threads,
            lambda i: compute_q(edges[i], edges[i + 1], t, x, v, r_t, entry_rewards, gamma, q),
            range(n_threads),
        )
        return q

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        b_pair = empty_aligned(2, *b.shape)
        b_pair[0] = b
        self.fill_weights(b_pair, np.stack([policy_row, policy_row]), self.arrays.from_time(t))
        return b_pair[1]

    # ------------------------------------------------------------ passes
    def _run_backward(  # type: ignore[override]  # rows chosen in Python go to numpy
        self,
        choice: ActionChoice,
        weights: Array | None,
        policy: PolicyTable | None,
        keep: Collection[str],
    ) -> BackwardResult:
        x, T = self.problem, self.horizon
        S, A, M = x.n_states, x.n_actions, x.n_models
        has_prior_weights = weights is not None and weights.shape == (1, 1, 1)
        is_plain = choice == "weighted" and has_prior_weights and policy is None and len(keep) == 1
        is_constant = x.storage.n_times == len(x.r) == len(x.allowed) == 1
        if is_plain and M == 1 and is_constant:
            return self._run_induction()
        is_randomized = policy is not None and policy.ndim == 3
        mode = {"weighted": WEIGHTED, "per_model": PER_MODEL}.get(
            choice, PROBABILITIES if is_randomized else ACTIONS
        )
        arrays: dict[str, AnyArray] = {"v": empty_aligned(T + 1 if "values" in keep else 2, S, M)}
        if mode in (WEIGHTED, ACTIONS):
            arrays["actions"] = np.empty((T, S), np.int32)
            if policy is not None:
                arrays["actions"][:] = policy
        if is_randomized:
            arrays["probabilities"] = np.ascontiguousarray(policy, np.float64)
        if weights is not None:
            arrays["b"] = np.require(weights, np.float64, ["C", "W"])
        if "q" in keep:
            arrays["q"] = empty_aligned(T, S, A, M)
        if "gradient" in keep:
            arrays["gradient"] = np.empty((T, S, A))
        if mode == PER_MODEL and "actions" in keep:
            arrays["model_actions"] = np.zeros((T, S, M), np.int32)
        options = PassOptions(
            mode,
            T - 1,
            has_weights=weights is not None,
            keep_q="q" in keep,
            keep_gradient="gradient" in keep,
            has_incumbent=policy is not None and not is_randomized,
            keep_model_actions="model_actions" in arrays,
        )
        is_one_row = mode == ACTIONS and not (options.keep_q or options.keep_gradient)
        buffers = PassBuffers.create(x, T, **arrays)
        self.run_backward(options, buffers, self.arrays, A if is_one_row else 1)
        arrays["values"] = arrays["v"]
        if "model_actions" in arrays:
            arrays["actions"] = arrays["model_actions"]
        return BackwardResult(arrays["v"][0], **{name: arrays[name] for name in keep})

    def _run_induction(self) -> BackwardResult:
        """Compute the optimum of a single model that does not vary with time."""
        x, arrays, (S, A) = self.problem, self.arrays, self.problem.allowed.shape[1:]
        T, n_threads = self.horizon, self.count_threads(x.storage.n_entries)
        sums = self.expect_next(0, np.ones((S, 1)))[x.allowed[0]]
        edges = split_edges(S, scheduler.count_pieces(n_threads))
        buffers = induction.InductionBuffers(
            np.empty((T, S), np.int32),
            np.zeros((3, S)),
            np.empty((len(edges) - 1, A)),
            np.where(x.allowed[0], np.inf, -np.inf),
            np.zeros(T),
        )
        buffers.v[T % 3] = x.terminal[:, 0]
        is_dense = x.storage.format == "dense"
        tables = is_dense, sums.min(), sums.max(), arrays.p.reshape(-1), arrays.r.reshape(-1)
        scheduler.run_steps(
            n_threads,
            x.storage.n_entries // A,
            lambda counters, rank: induction.induct(
                counters, rank, edges, *tables, arrays, buffers
            ),
        )
        return BackwardResult(buffers.v[0][:, None].copy(), buffers.actions)

    def forward(self, policy: PolicyTable) -> Array:
        b = empty_aligned(self.horizon, self.problem.n_states, self.problem.n_models)
        b[0] = self.problem.initial_joint()
        self.fill_weights(b, policy, self.arrays)
        return b

    def fill_weights(self, b: Array, policy: PolicyTable, arrays: KernelArrays) -> None:
        """Fill b (n, S, M) from b[0] on, under n rows of a policy; the last row is not used."""
        field, dtype = ("probabilities", np.float64) if policy.ndim == 3 else ("actions", np.int32)
        fields = {
            "b": b,
            "v": np.empty((2, *b.shape[1:])),
            field: np.require(policy, dtype, ["C", "W"]),
        }
        self.run_forward(PassBuffers.create(self.problem, len(b), **fields), arrays)

    def run_forward(
        self, buffers: PassBuffers, arrays: KernelArrays, start_time: int | None = None
    ) -> None:
        """Run the compiled forward pass; with a start time it improves the actions after it."""
        x, M = self.problem, arrays.p.shape[2]
        is_deterministic, improves = not len(buffers.probabilities), start_time is not None
        work = x.storage.n_entries * M // (x.n_actions if is_deterministic and not improves else 1)
        n_threads = self.count_threads(work)
        n_pieces = scheduler.count_pieces(n_threads) if improves else n_threads
        edges, model_edges = split_edges(x.n_states, n_pieces), split_edges(M, n_pieces)

        def run(
            counters: scheduler.Counters, rank: int, edges: IndexArray, model_edges: IndexArray
        ) -> None:
            G = np.empty(x.n_actions)
            start = -1 if start_time is None else start_time
            forward(counters, rank, edges, model_edges, start, improves, arrays, buffers, G)

        if improves:
            scheduler.run_steps(n_threads, work, lambda c, rank: run(c, rank, edges, model_edges))
            return
        no_states = np.zeros(2, np.int64)  # each range of models moves on by itself
        for_each(
            n_threads,
            lambda i: run(scheduler.make_counters(), 0, no_states, model_edges[i : i + 2]),
            range(n_threads),
        )

    def run_backward(
        self, options: PassOptions, buffers: PassBuffers, arrays: KernelArrays, n_rows: int = 1
    ) -> None:
        """Run the compiled backward pass, in which a state computes one in ``n_rows`` rows."""
        x = self.problem
        work = x.storage.n_entries * arrays.p.shape[2] // n_rows
        n_threads = self.count_threads(work)
        edges = split_edges(x.n_states, scheduler.count_pieces(n_threads))
        scheduler.run_steps(
            n_threads,
            work,
            lambda counters, rank: backward(
                counters, rank, edges, options, arrays, buffers, PassScratch.from_problem(x)
            ),
        )

    def make_sweeper(self, two_way: bool) -> TableSweeper:
        return (TwoWaySweeper if two_way else PaperSweeper)(self, two_way)
