"""The starts of a local search: how many, which, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mmdp.kernels import Problem
from mmdp.kernels.problem import Ascent, Sweeps, Table
from mmdp.methods.base import Context, Outcome
from mmdp.methods.gradient import Gradient, Mirror
from mmdp.methods.initial import start_policy
from mmdp.policy import MarkovPolicy
from mmdp.solution import Status

MOST = 16  # starts that ``"auto"`` takes at most
BUDGET = 0.12  # seconds that they may take together, estimated by the rates below
RATE, STEP = 1e9, 1e-5  # multiply-adds per second, and the overhead of a time step in seconds
PASSES = 12  # that one ascent takes
NAMES = ("wsu", "mvp", "mirror", "gradient")  # the first starts
GRADIENT_STEPS = 40  # of a short gradient ascent
GRADIENT_PASSES = 3  # that one such step takes, line search included
KEEP_BYTES = 2**31  # the most that q may take; beyond that a solve uses the paper's sweeps

_STATUS = {
    "maximum": Status.LOCAL_OPTIMUM,
    "tolerance": Status.COMPLETED,
    "limit": Status.ITERATION_LIMIT,
}


class Start(NamedTuple):
    """A start of a local search: its name and its table, None for WSU's policy."""

    name: str
    table: Table | None


def affordable(problem: Problem, horizon: int) -> int:
    """How many starts take about a tenth of a second: a rule by size, not by the clock.

    >>> import mmdp
    >>> affordable(mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[2.0, 3.0]]).problem, 5)
    16
    """
    most = BUDGET / (problem.work(horizon) / RATE + horizon * STEP)
    return max((count for count in range(1, MOST + 1) if passes(count) <= most), default=1)


def affordable_sweeps(problem: Problem, horizon: int, sweeps: Sweeps = "two-way") -> Sweeps:
    """The sweeps to use: the paper's if q would be too large to keep."""
    x = problem
    q_bytes = 8 * horizon * x.n_states * x.n_actions * x.n_models
    return sweeps if q_bytes <= KEEP_BYTES else "paper"


def passes(count: int) -> int:
    """About how many passes so many starts take; the third and fourth are gradient ascents."""
    ascents = min(max(count - 2, 0), 2)
    return PASSES * count + GRADIENT_PASSES * GRADIENT_STEPS * ascents


def in_order(
    context: Context, init: str | MarkovPolicy, count: int, names: tuple[str, ...] = NAMES
) -> Iterator[Start]:
    """``init``, then WSU, MVP, short mirror and gradient ascents (``names``), then others in turn.

    The others are the optimum of a single model and a random policy. Models are drawn by
    weight, each once; after the last one only random policies follow. A start is computed
    when it is needed.
    """
    kinds = [init, *(name for name in names if name != init)][:count]
    seeds = np.random.SeedSequence(context.seed).generate_state(count)
    for kind, seed in zip(kinds, seeds, strict=False):
        yield _start(context, kind, int(seed))
    optima = _optima(context, count - len(kinds))
    for nth, seed in enumerate(seeds[len(kinds) :]):
        found = next(optima, None) if nth % 2 == 0 else None
        yield found or _start(context, "random", int(seed))


def _start(context: Context, kind: str | MarkovPolicy, seed: int) -> Start:
    if kind == "wsu":
        return Start("wsu", None)
    if kind == "mirror":
        return Start("mirror", _rounded_end(context, Mirror(max_iterations=GRADIENT_STEPS)))
    if kind == "gradient":
        return Start("gradient", _rounded_end(context, Gradient(max_iterations=GRADIENT_STEPS)))
    table, _ = start_policy(context, kind, seed)
    return Start(kind if isinstance(kind, str) else "given", inside(context, table))


def inside(context: Context, table: Table) -> Table:
    """The policy with actions that are not open replaced by those that are."""
    x = context.problem
    open_ = np.broadcast_to(x.allowed, (context.horizon, x.n_states, x.n_actions))
    if table.ndim == 2:
        legal = np.take_along_axis(open_, table[:, :, None].astype(np.int64), 2)[:, :, 0]
        return np.where(legal, table, open_.argmax(axis=2)).astype(np.int32)
    kept = np.where(open_, table, 0.0)
    kept = np.where(kept.any(axis=2, keepdims=True), kept, open_)
    return kept / kept.sum(axis=2, keepdims=True)


def _rounded_end(context: Context, method: Mirror | Gradient) -> Table:
    """The deterministic end of a short gradient ascent from the uniform policy."""
    found = method.run(context.quiet())
    if found.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    if context.best_policy is not None:
        context.check_time()
    table: Table = found.policy
    return table


def _optima(context: Context, most: int) -> Iterator[Start]:
    """The optimal policies of single models, drawn by weight, each once."""
    rng = np.random.default_rng(context.seed)
    x, model = context.problem, context.model
    if model.drifts:  # a single model stays as it is
        model = model.replace(model_transitions=None)
    possible = int(np.count_nonzero(x.weights))
    share = x.weights / x.weights.sum()
    chosen = rng.choice(x.n_models, min(possible, -(-most // 2)), replace=False, p=share)
    for first in range(0, len(chosen), 8):  # their policies are T * S numbers per model
        some = chosen[first : first + 8]
        part = model.subset(some).problem
        own = context.kernel.backward(part, context.horizon, "own", keep=("actions",)).actions
        assert own is not None
        for i, m in enumerate(some):
            found = inside(context, own[:, :, i])
            yield Start(f"model {context.model.model_labels[m]}", found)


def best_of(
    ends: list[Ascent], names: list[str], sweeps: str, rounding: float
) -> tuple[Outcome, Ascent]:
    """The first of several ascents that no other beats by more than rounding."""
    values = np.array([end.value for end in ends])
    first = int((values >= values.max() - rounding).argmax())
    best = ends[first]
    outcome = Outcome(
        best.policy, _STATUS[best.end], best.sweeps, returns=best.returns, trace=best.trace,
        details={"sweeps_taken": sweeps, **described(names, ends, first)},
    )  # fmt: skip
    return outcome, best


def described(names: list[str], ends: list[Ascent], best: int) -> dict[str, Any]:
    """What a solution says about its starts."""
    values = np.array([end.value for end in ends])
    if len(ends) == 1:
        return {"sweeps": ends[0].sweeps}
    return {
        "sweeps": ends[best].sweeps,
        "start_values": values,
        "starts": names,
        "best_start": names[best],
        "spread": {"min": values.min(), "mean": values.mean(), "max": values.max()},
        "total_sweeps": sum(end.sweeps for end in ends),
    }
