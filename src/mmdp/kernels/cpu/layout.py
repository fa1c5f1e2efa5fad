"""What a plan on the CPU holds: its arrays as the compiled code takes them, and its threads."""

from __future__ import annotations

from mmdp.kernels.cpu.passes import Ground
from mmdp.kernels.cpu.threads import Team
from mmdp.kernels.numpy.kernel import StoredPlan
from mmdp.kernels.problem import Array, Problem
from mmdp.kernels.rewards import ByEvent

THREADS_PAY_FROM = 100_000  # multiply-adds per time step below which one thread is faster


class CpuLayout(StoredPlan):
    """Stored tables on the threads of a CPU."""

    def __init__(
        self, problem: Problem, horizon: int, threads: int, pays_from: int = THREADS_PAY_FROM
    ) -> None:
        super().__init__(problem, horizon)
        self.threads, self.pays_from = threads, pays_from
        self.ground = Ground.of(problem)
        self.parts: list[tuple[slice, Array]] = []  # parts of the models, if they are independent

    def _change(self, problem: Problem, horizon: int) -> None:
        other = isinstance(problem.r, ByEvent) and problem.r is not self.problem.r
        super()._change(problem, horizon)
        self.ground = Ground.of(problem) if other else self.ground.changed(problem)

    @property
    def tables(self) -> Ground:
        """The tables, for work that goes entry by entry."""
        return self.ground

    def team(self, work: int) -> Team:
        """The threads for ``work`` multiply-adds per step."""
        return Team.of(self.threads if work >= self.pays_from else 1)
