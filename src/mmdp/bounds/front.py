"""bound(): the front door to all upper bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmdp import kernels
from mmdp.arguments import NonNegativeInt, Seconds, checked
from mmdp.bounds.ask import Ask, read_incumbent
from mmdp.bounds.portfolio import BOUNDS, CLOSED, Portfolio, check_holds, check_program
from mmdp.bounds.reductions import FEW_PASSES, check_bounded, ended, steps_that_fit, tilted
from mmdp.clock import Callback, Stopwatch
from mmdp.errors import InputError, Remedy
from mmdp.kernels import Kernel, Problem
from mmdp.kernels.endless import check_endless
from mmdp.objective import Function, Objective, as_objective
from mmdp.search.context import Context
from mmdp.solution import Bound
from mmdp.validate import check_extent, check_horizon, check_whole_model

if TYPE_CHECKING:
    from mmdp.model import MMDP

SECONDS = 10.0  # of a search without a time limit
PASSES = 4000  # of a search: its kernel is chosen by them


@checked
def bound(
    model: MMDP,
    horizon: float | None = None,
    method: str = "best",
    *,
    objective: str | Objective | Function = "mean",
    time_limit: Seconds | None = None,
    incumbent: Any = None,
    backend: str | Kernel = "auto",
    seed: NonNegativeInt = 0,
    callback: Callback | None = None,
) -> Bound:
    """A proven upper bound on the value of every policy (see the table of the module).

    Parameters
    ----------
    model, horizon
        The problem, as for :func:`mmdp.solve`; the horizon may be ``math.inf``.
    method
        One of ``BOUNDS``.
    objective
        As for :func:`mmdp.solve`. A monotone objective is bounded by its value at the models' own
        optima; a concave one also by the method, on a mean with tilted weights. The bound holds
        for a function of your own only if it is monotone: say ``mmdp.Custom(f, monotone=True)``.
    time_limit
        Seconds for the searches (``pairs``, ``dual``, ``pair-dual``, ``lp``, ``best``); 10
        by default. Compilation on first use is not counted. A short limit gives a
        weaker bound, never an invalid one. It is kept up to a fifth, or up to one pass over all
        models and 16 pairs of them if that takes longer. ``dual``, ``pair-dual`` and ``lp`` need
        two passes per state before their first step. If those do not fit (for ``best``: if they
        take over a quarter of the time), ``pair-dual`` and ``best`` value pairs alone, and
        ``details`` has ``prices``. If the horizon is infinite, a short limit also counts fewer
        decisions before the model becomes known.
    incumbent
        A Solution, a MarkovPolicy or a value for the searches to aim at; found by CADP by
        default. A wrong value only makes the bound less tight: it is never below it.
    backend
        As for :func:`mmdp.solve`.
    seed
        Seed of the order in which pairs of models are tried.
    callback
        Called with a :class:`mmdp.Progress` while a search runs. Ctrl-C returns the best
        bound so far.

    >>> import mmdp
    >>> from mmdp.bounds import bound
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> bound(one, 3).value >= 5.25
    True
    """
    if method not in BOUNDS:
        raise InputError(f"no bound is called {method!r}; choose one of {', '.join(BOUNDS)}")
    F, seconds = as_objective(objective), SECONDS if time_limit is None else time_limit
    x, endless = model.problem, horizon == math.inf
    if endless:
        check_endless(x, model.horizon, model.state_labels)
    steps = None if endless else check_horizon(model.horizon, horizon)
    check_ask(x, steps or steps_that_fit(x, seconds), method, F)
    return searched(model, steps, method, F, seconds, incumbent, backend, seed, callback)


def searched(
    model: MMDP, horizon: int | None, method: str, objective: Objective, seconds: float,
    incumbent: Any, backend: str | Kernel, seed: int = 0, callback: Callback | None = None,
    solve: Context | None = None,
) -> Bound:  # fmt: skip
    """The bound after these seconds; a ``horizon`` of None is infinite.

    If a ``solve`` has a plan of the same kernel, on that plan.
    """
    x, endless = model.problem, horizon is None
    steps = steps_that_fit(x, seconds) if horizon is None else horizon
    known = read_incumbent(incumbent, model, steps, endless=endless)
    time, kernel = Stopwatch(seconds), machine(backend, x, steps, method)
    if solve is None or solve.kernel.name != kernel.name:
        plan = kernel.plan(x, steps)
    else:
        plan = solve.plan.but(allowed=x.allowed, horizon=steps)
    return prove(
        Ask(plan, method, time, objective, endless, *known, seed=seed, callback=callback), kernel
    )


def check_ask(problem: Problem, steps: int, method: str, objective: Objective) -> None:
    """Refuse what no bound holds for, or what does not fit."""
    check_holds(method, problem)
    check_bounded(objective, method)
    if method != "oracle":
        check_whole_model(problem, f"bound {method}", [Remedy("method", "oracle", do="use")])
    held = 0 if method == "oracle" else 8 * steps * problem.n_states * problem.n_models
    check_extent(problem, steps, held)
    if method == "lp":
        check_program(problem, steps)


def machine(backend: str | Kernel, problem: Problem, steps: int, method: str) -> Kernel:
    """The kernel for a search, or for the closed forms, which need no compiler."""
    passes = FEW_PASSES if method in CLOSED else PASSES
    return kernels.get(backend, problem, steps, passes=passes)


def prove(ask: Ask, kernel: Kernel) -> Bound:
    """The answer: first to a mean over a number of decisions, then a search, and back."""
    reduced = tilted(ended(ask) if ask.endless else ask, kernel)
    asked = reduced.ask
    found = reduced.bound(None if asked is None else Portfolio(asked, reduced.lifted).run())
    return replace(found, seconds=ask.time.seconds)
