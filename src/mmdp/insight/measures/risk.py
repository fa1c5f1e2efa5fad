"""Risk frontier: policies from the best mean return to the best return in the worst models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmdp.core.arguments import Seconds, Seed, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.kernels import Backend
from mmdp.core.methods import CADP
from mmdp.core.model import MMDP
from mmdp.core.objectives import CVaR, Mean, Objective
from mmdp.core.shapes import Array, Mask
from mmdp.core.solution import Evaluation, Solution, Status
from mmdp.core.solve import evaluate, solve
from mmdp.core.timing import Callback, Progress, allow_stop, show_progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEFAULT_ALPHAS = (0.5, 0.2, 0.1, 0.05, 0.01)


@dataclass(frozen=True, eq=False, repr=False)
class RiskFrontier:
    """Solutions for the mean and for CVaR at several levels, compared by mean and tail.

    ``solutions`` has one per objective, the mean first. All are compared by the mean over the worst
    share ``tail`` of the models. ``test_evaluations`` are their evaluations on test models, if
    there are any.
    """

    solutions: tuple[Solution, ...]
    tail: float
    test_evaluations: tuple[Evaluation, ...] = ()

    @property
    def means(self) -> Array:
        """Mean return (n,) of each policy."""
        return np.array([solution.evaluation.mean for solution in self.solutions])

    @property
    def cvars(self) -> Array:
        """CVaR (n,) of each policy at ``tail``."""
        return np.array([solution.evaluation.cvar(self.tail) for solution in self.solutions])

    def to_frame(self) -> pd.DataFrame:
        """Tabulate value, bound, gap, mean, tail and worst return of each objective's policy.

        ``mean_loss`` is the loss of mean return against the policy that is best on average,
        ``tail_gain`` the gain in the tail. ``is_efficient``: no other policy of the table is as
        good both on average and in the tail, and better in one.
        """
        means, cvars = self.means, self.cvars
        columns = {
            "objective": [solution.objective.name for solution in self.solutions],
            **{x: [getattr(y, x) for y in self.solutions] for x in ("value", "bound", "gap")},
            "mean": means,
            "tail": cvars,
            "worst": [solution.evaluation.worst for solution in self.solutions],
            "mean_loss": means[0] - means,
            "tail_gain": cvars - cvars[0],
            "is_efficient": _find_efficient(means, cvars),
        }
        if self.test_evaluations:
            columns["test_mean"] = [test.mean for test in self.test_evaluations]
            columns["test_tail"] = [test.cvar(self.tail) for test in self.test_evaluations]
        return pd.DataFrame(columns)

    @check_arguments
    def plot(self, axis: Axes | None = None) -> Axes:
        """Plot mean against tail, one point per policy (see :func:`mmdp.plots.risk_frontier`)."""
        from mmdp.insight import plots

        return plots.risk_frontier(self.to_frame(), axis, tail=self.tail)

    def __repr__(self) -> str:
        table = self.to_frame()[["objective", "value", "mean", "tail", "worst"]]
        title = f"Risk frontier, tail: CVaR {100 * self.tail:g}%"
        return f"{title}\n{table.to_string(index=False, float_format='{:,.6g}'.format)}"


@check_arguments
def risk_frontier(
    model: MMDP,
    horizon: float | None = None,
    alphas: float | Sequence[float] = DEFAULT_ALPHAS,
    *,
    tail: float = 0.1,
    test_model: MMDP | None = None,
    certify_time: Seconds | None = None,
    method: CADP | None = None,
    backend: str | Backend = "auto",
    seed: Seed = 0,
    callback: Callback | None = None,
) -> RiskFrontier:
    """Solve for the mean and for CVaR at several levels, to show the cost of safety.

    Parameters
    ----------
    model, horizon
        The problem, as for :func:`mmdp.solve`.
    alphas
        Weights of the tails, or a single one: a policy for :class:`mmdp.objectives.CVaR` with each
        of them, after that for the mean.
    tail
        Share of worst models over whose mean all policies are compared.
    test_model
        Test models to evaluate the policies on.
    certify_time
        Seconds to spend on a proof of how good each policy is. See :func:`mmdp.solve`; None: none.
    method
        :class:`mmdp.methods.CADP` with options.
    backend, seed
        As for :func:`mmdp.solve`.
    callback
        Called with a :class:`mmdp.solution.Progress` after each objective: its name is the stage.

    If the policy for one objective is better for another objective than the one found, that is
    solved again from it. Ctrl-C returns the solutions so far.

    >>> import mmdp
    >>> train, _ = mmdp.domains.riverswim(seed=0)
    >>> frontier = mmdp.measures.risk_frontier(train, 10, [0.2])
    >>> frontier.to_frame()[["mean_loss", "tail_gain"]].round(2).iloc[1].tolist()
    [3.36, 1.37]
    """
    CVaR(tail)  # a tail that is no share is refused before anything is solved
    objectives: list[Objective] = [
        Mean(),
        *(CVaR(a) for a in sorted({*np.ravel(alphas).tolist()}, reverse=True)),
    ]
    if len(objectives) == 1:
        raise InputError("alphas is empty; give at least one share of the models, such as 0.1")
    base_method, solutions = method or CADP(), list[Solution]()
    options: dict[str, Any] = {"backend": backend, "seed": seed}
    for objective in objectives:
        with allow_stop(lambda: solutions, accept_interrupts=True) as stop_state:
            solution = solve(model, horizon, base_method, objective=objective, **options)
        if stop_state.exception is not None:  # before the next one had a policy
            break
        solutions.append(solution)
        if solution.status is Status.INTERRUPTED:
            break
    report = show_progress(callback)
    refined, is_stopped = list[Solution](), len(solutions) < len(objectives)
    is_stopped = is_stopped or solutions[-1].status is Status.INTERRUPTED
    for current in solutions:
        objective_values = [other.evaluation.value(current.objective) for other in solutions]
        best = solutions[int(np.argmax(objective_values))]
        if not is_stopped and (best is not current or certify_time is not None):
            solution = solve(
                model,
                horizon,
                replace(base_method, init=best.policy),
                objective=current.objective,
                certify_time=certify_time,
                **options,
            )
            is_stopped = solution.status is Status.INTERRUPTED
            if solution.certificate is not None or solution.value >= current.value:
                current = solution
        refined.append(current)
        value, bound = current.value, math.nan if current.bound is None else current.bound
        name, seconds = current.objective.name, current.seconds
        report(Progress(name, len(refined), value, value, bound, elapsed=seconds))
    tests = (
        [] if test_model is None else [evaluate(test_model, x, backend=backend) for x in refined]
    )
    return RiskFrontier(tuple(refined), tail, tuple(tests))


def _find_efficient(means: Array, cvars: Array) -> list[bool]:
    """Find the points (mean, CVaR) that no other point dominates."""
    lead = np.array([means[:, None] - means, cvars[:, None] - cvars])
    is_dominating = (lead >= 0).all(axis=0) & (lead > 0).any(axis=0)
    is_dominated: Mask = np.any(is_dominating, axis=0)
    return [not x for x in is_dominated.tolist()]
