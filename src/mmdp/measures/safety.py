"""What safety costs: from the policy that is best on average to one for the worst models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.arguments import Seconds, Seed, checked
from mmdp.clock import ending
from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.methods import CADP
from mmdp.model import MMDP
from mmdp.objective import CVaR, Mean, Objective
from mmdp.solution import Evaluation, Solution, Status
from mmdp.solve import evaluate, solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALPHAS = (0.5, 0.2, 0.1, 0.05, 0.01)


@dataclass(frozen=True, eq=False, repr=False)
class Frontier:
    """Policies from the best on average to the best for the worst models.

    ``points`` are solutions, one per objective, the mean first. All are compared by the mean over
    the worst share ``tail`` of the models. ``tests`` are their evaluations on test models, if
    there are any.
    """

    points: tuple[Solution, ...]
    tail: float
    tests: tuple[Evaluation, ...] = ()

    @property
    def means(self) -> npt.NDArray[np.float64]:
        """(n,) mean return of each policy."""
        return np.array([point.evaluation.mean for point in self.points])

    @property
    def tails(self) -> npt.NDArray[np.float64]:
        """(n,) CVaR of each policy at ``tail``."""
        return np.array([point.evaluation.cvar(self.tail) for point in self.points])

    def to_frame(self) -> pd.DataFrame:
        """One row per objective: value, bound, gap, mean, tail, worst, what is given up.

        ``gives_up`` is what the mean loses against the policy that is best on average, ``gains``
        what the tail gains in return. ``best``: no other policy of the table is as good both on
        average and in the tail, and better in one.
        """
        means, tails = self.means, self.tails
        columns = {
            "objective": [point.objective.name for point in self.points],
            "value": [point.value for point in self.points],
            "bound": [point.bound for point in self.points],
            "gap": [point.gap for point in self.points],
            "mean": means, "tail": tails,
            "worst": [point.evaluation.worst for point in self.points],
            "gives_up": means[0] - means, "gains": tails - tails[0], "best": _best(means, tails),
        }  # fmt: skip
        if self.tests:
            columns["test_mean"] = [test.mean for test in self.tests]
            columns["test_tail"] = [test.cvar(self.tail) for test in self.tests]
        return pd.DataFrame(columns)

    @checked
    def plot(self, axis: Axes | None = None) -> Axes:
        """Mean against tail, one point per policy (see :func:`mmdp.plots.frontier`)."""
        from mmdp import plots

        return plots.frontier(self.to_frame(), axis, tail=self.tail)

    def __repr__(self) -> str:
        shown = self.to_frame()[["objective", "value", "mean", "tail", "worst"]]
        head = f"Frontier, tail: CVaR {100 * self.tail:g}%"
        return f"{head}\n{shown.to_string(index=False, float_format='{:,.6g}'.format)}"


@checked
def frontier(
    model: MMDP,
    horizon: float | None = None,
    alphas: float | Sequence[float] = ALPHAS,
    *,
    tail: float = 0.1,
    test: MMDP | None = None,
    certify: bool | Seconds = False,
    method: CADP | None = None,
    backend: str | Kernel = "auto",
    seed: Seed = 0,
    callback: Callable[[Solution], object] | None = None,
) -> Frontier:
    """What safety costs: the policies that are best on average and for the worst models.

    Parameters
    ----------
    model, horizon
        The problem, as for :func:`mmdp.solve`.
    alphas
        Weights of the tails, or a single one: a policy for :class:`mmdp.CVaR` with each of them,
        after that for the mean.
    tail
        Share of worst models over whose mean all policies are compared.
    test
        Test models to evaluate the policies on.
    certify
        Bound every point: True, or the seconds to spend on each (see :func:`mmdp.solve`).
    method
        :class:`mmdp.CADP` with options.
    backend, seed
        As for :func:`mmdp.solve`.
    callback
        Called with each solution as it is found.

    If the policy of one point is better for another point than its own, that one is solved again
    from there. Ctrl-C returns the points so far.

    >>> import mmdp
    >>> train, _ = mmdp.domains.riverswim(seed=0)
    >>> found = mmdp.frontier(train, 10, [0.2])
    >>> found.to_frame()[["gives_up", "gains"]].round(2).iloc[1].tolist()
    [3.36, 1.37]
    """
    CVaR(tail)  # a tail that is no share is refused before anything is solved
    objectives: list[Objective] = [
        Mean(),
        *(CVaR(a) for a in sorted({*np.ravel(alphas).tolist()}, reverse=True)),
    ]
    if len(objectives) == 1:
        raise InputError("alphas must hold at least one share of the models, such as 0.1")
    start, points = CADP() if method is None else method, list[Solution]()
    if not isinstance(start, CADP):
        raise InputError(f"method must be mmdp.CADP with options, not {method!r}")
    for objective in objectives:
        with ending(lambda: points, answered=True) as end:
            found = solve(model, horizon, start, objective=objective, backend=backend, seed=seed)
        if end.stop is not None:  # before the next one had a policy
            break
        points.append(found)
        if found.status is Status.INTERRUPTED:
            break
    final, stopped = list[Solution](), len(points) < len(objectives)
    stopped = stopped or points[-1].status is Status.INTERRUPTED
    for point in points:
        worths = [other.evaluation.value(point.objective) for other in points]
        best = points[int(np.argmax(worths))]
        if not stopped and (best is not point or certify):
            found = solve(
                model, horizon, replace(start, init=best.policy), objective=point.objective,
                certify=certify, backend=backend, seed=seed,
            )  # fmt: skip
            stopped = found.status is Status.INTERRUPTED
            if found.certificate is not None or found.value >= point.value:
                point = found
        final.append(point)
        if callback is not None:
            callback(point)
    tests = () if test is None else tuple(evaluate(point, test, backend=backend) for point in final)
    return Frontier(tuple(final), tail, tests)


def _best(means: npt.NDArray[np.float64], tails: npt.NDArray[np.float64]) -> list[bool]:
    """Whether no other point is at least as good in both and better in one."""
    as_good = (means[:, None] >= means) & (tails[:, None] >= tails)
    better = (means[:, None] > means) | (tails[:, None] > tails)
    beaten: npt.NDArray[np.bool_] = np.any(as_good & better, axis=0)
    return [not x for x in beaten.tolist()]
