"""Tables on the CPU: the arrays of the compiled code, and the threads."""

from __future__ import annotations

from mmdp.core.kernels.cpu.passes import KernelArrays
from mmdp.core.kernels.cpu.threads import ThreadPool
from mmdp.core.kernels.numpy.backend import TableProblem
from mmdp.core.kernels.problem import Array, Problem
from mmdp.core.kernels.rewards import EventRewards

MIN_PARALLEL_WORK = 100_000  # multiply-adds per time step below which one thread is faster


class CpuTableProblem(TableProblem):
    """A problem with tables as the arrays of the compiled code, and its threads."""

    def __init__(
        self,
        problem: Problem,
        horizon: int,
        n_threads: int,
        min_parallel_work: int = MIN_PARALLEL_WORK,
    ) -> None:
        super().__init__(problem, horizon)
        self.n_threads, self.min_parallel_work = n_threads, min_parallel_work
        self.arrays = KernelArrays.from_problem(problem)
        self.model_blocks: list[
            tuple[slice, Array]
        ] = []  # parts of the models, if they are independent

    def _set_problem(self, problem: Problem, horizon: int) -> None:
        has_new_rewards = isinstance(problem.r, EventRewards) and problem.r is not self.problem.r
        super()._set_problem(problem, horizon)
        self.arrays = (
            KernelArrays.from_problem(problem)
            if has_new_rewards
            else self.arrays.with_problem(problem)
        )

    @property
    def table_arrays(self) -> KernelArrays:
        """The tables, for work that goes entry by entry."""
        return self.arrays

    def get_pool(self, work: int) -> ThreadPool:
        """Return the threads for ``work`` multiply-adds per step."""
        return ThreadPool.get(self.n_threads if work >= self.min_parallel_work else 1)
