"""The public function bound() and its checks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from mmdp.core import kernels
from mmdp.core.arguments import NonNegativeInt, Seconds, check_arguments
from mmdp.core.bounds.portfolio import (
    BOUND_METHODS,
    CLOSED_FORM_METHODS,
    BoundPortfolio,
    check_applicable,
)
from mmdp.core.bounds.reductions import (
    FEW_PASSES,
    check_has_bound,
    find_affordable_horizon,
    reduce_to_mean,
    truncate_horizon,
)
from mmdp.core.bounds.request import BoundRequest, read_incumbent
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels import Backend, Problem
from mmdp.core.kernels.infinite import check_infinite_horizon
from mmdp.core.objectives import Objective, ObjectiveFunction, as_objective
from mmdp.core.search.context import SolveContext
from mmdp.core.solution import Bound
from mmdp.core.timing import Callback, Stopwatch
from mmdp.core.validate import check_horizon, check_not_sharded, check_problem_size

if TYPE_CHECKING:
    from mmdp.core.model import MMDP

DEFAULT_TIME_LIMIT = 10.0  # of a search without a time limit
SEARCH_PASSES = 4000  # of a search: its kernel is chosen by them


@check_arguments
def bound(
    model: MMDP,
    horizon: float | None = None,
    method: str = "best",
    *,
    objective: str | Objective | ObjectiveFunction = "mean",
    time_limit: Seconds | None = None,
    incumbent: object = None,
    backend: str | Backend = "auto",
    seed: NonNegativeInt = 0,
    callback: Callback | None = None,
) -> Bound:
    """Compute a proven upper bound on the value of every policy.

    Parameters
    ----------
    model, horizon
        The problem, as for :func:`mmdp.solve`; the horizon may be ``math.inf``.
    method
        Bounds on every policy, history-dependent ones included: ``"oracle"`` (the model is known),
        ``"qmdp"`` (after the first decision) and ``"pairs"`` (beliefs over pairs of models).
        ``"best"`` is the least of them and of a Lagrangian dual, which bounds Markov policies.
    objective
        As for :func:`mmdp.solve`. A monotone objective is bounded by its value at the models' own
        optima; a concave one also by the method, on a mean with risk weights. The bound holds for
        a function of your own only if it is monotone: pass
        ``mmdp.objectives.CustomObjective(f, is_monotone=True)``.
    time_limit
        Seconds for the searches (``pairs`` and ``best``); 10 by default. Compilation on first use
        is not counted. A short limit gives a weaker bound, never an invalid one. It is kept up to a
        fifth, or up to one pass over all models and 16 pairs of them if that takes longer. The dual
        needs two passes per state before its first step. If those take over a quarter of the time,
        ``best`` values pairs alone, and ``details`` has ``multipliers``. If the horizon is
        infinite, a short limit also counts fewer decisions before the model becomes known. Searches
        that the limit ends stop by the clock, so such bounds may differ a little from run to run.
    incumbent
        A Solution, a MarkovPolicy or a value as the target of the searches; found by CADP by
        default. A wrong value only makes the bound less tight: it is never below it.
    backend
        As for :func:`mmdp.solve`.
    seed
        Seed of the order in which pairs of models are tried.
    callback
        Called with a :class:`mmdp.solution.Progress` while a search runs. Ctrl-C returns the best
        bound so far.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> mmdp.bound(one, 3).value >= 5.25
    True
    """
    if method not in BOUND_METHODS:
        raise InputError(f"no bound is called {method!r}; choose one of {', '.join(BOUND_METHODS)}")
    F, seconds = as_objective(objective), DEFAULT_TIME_LIMIT if time_limit is None else time_limit
    x, is_infinite_horizon = model.problem, horizon == math.inf
    if is_infinite_horizon:
        check_infinite_horizon(x, model.horizon, model.state_labels)
    n_steps = None if is_infinite_horizon else check_horizon(model.horizon, horizon)
    check_request(x, n_steps or find_affordable_horizon(x, seconds), method, F)
    return search_bound(model, n_steps, method, F, seconds, incumbent, backend, seed, callback)


def search_bound(
    model: MMDP,
    horizon: int | None,
    method: str,
    objective: Objective,
    time_limit: float,
    incumbent: object,
    backend: str | Backend,
    seed: int = 0,
    callback: Callback | None = None,
    solve_context: SolveContext | None = None,
) -> Bound:
    """Search for a bound until the time limit; ``horizon=None`` is infinite.

    Reuses the prepared problem of ``solve_context`` if it is on the same backend.
    """
    x, is_infinite_horizon = model.problem, horizon is None
    n_steps = find_affordable_horizon(x, time_limit) if horizon is None else horizon
    incumbent_parts = read_incumbent(
        incumbent, model, n_steps, is_infinite_horizon=is_infinite_horizon
    )
    stopwatch, resolved_backend = Stopwatch(time_limit), choose_backend(backend, x, n_steps, method)
    if solve_context is None or solve_context.backend.name != resolved_backend.name:
        prepared = resolved_backend.prepare(x, n_steps)
    else:
        prepared = solve_context.prepared.replace(allowed=x.allowed, horizon=n_steps)
    return compute_bound(
        BoundRequest(
            prepared,
            method,
            stopwatch,
            objective,
            is_infinite_horizon,
            *incumbent_parts,
            seed=seed,
            callback=callback,
        ),
        resolved_backend,
    )


def check_request(problem: Problem, horizon: int, method: str, objective: Objective) -> None:
    """Raise InputError if no bound holds for the objective or the problem is too large."""
    check_applicable(method, problem)
    check_has_bound(objective, method)
    if method != "oracle":
        check_not_sharded(problem, f"bound {method}", [Remedy("method", "oracle", verb="use")])
    extra_bytes = 0 if method == "oracle" else 8 * horizon * problem.n_states * problem.n_models
    check_problem_size(problem, horizon, extra_bytes)


def choose_backend(backend: str | Backend, problem: Problem, horizon: int, method: str) -> Backend:
    """Choose the backend for a search, or for the closed forms, which need no compiler."""
    passes = FEW_PASSES if method in CLOSED_FORM_METHODS else SEARCH_PASSES
    return kernels.get_backend(backend, problem, horizon, n_passes=passes)


def compute_bound(request: BoundRequest, backend: Backend) -> Bound:
    """Compute the bound: reduce to a mean over a finite horizon, search, and convert back."""
    reduction = reduce_to_mean(
        truncate_horizon(request) if request.is_infinite_horizon else request, backend
    )
    mean_request = reduction.request
    result = reduction.to_objective_bound(
        None
        if mean_request is None
        else BoundPortfolio(mean_request, reduction.lift_progress).run()
    )
    return replace(result, seconds=request.stopwatch.elapsed)
