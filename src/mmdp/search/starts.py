"""The starts of a local search: how many, which, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from mmdp.errors import InputError
from mmdp.kernels.problem import Ascent
from mmdp.search.context import Context, Outcome
from mmdp.solution import Status
from mmdp.words import either

if TYPE_CHECKING:
    from mmdp.search.landscape import Landscape

FIRST = 2  # starts by name that every objective takes
MOST = 16  # starts that ``"auto"`` takes at most
BUDGET = 1.0  # seconds that they may take together, estimated by size
PATIENCE = 10.0  # seconds of one ascent above which one start must suffice

ENDS: dict[str, Status] = {
    "maximum": Status.LOCAL_OPTIMUM,
    "tolerance": Status.COMPLETED,
    "limit": Status.ITERATION_LIMIT,
}


class Start(NamedTuple):
    """A start of a local search: its name and its point."""

    name: str
    point: Any


def affordable(starts: Sequence[str], cost: Callable[[str], float]) -> int:
    """How many starts a search takes by default, by the seconds of each: a rule by size alone.

    Two, or one if an ascent takes long; more as long as all together are quick.
    """
    seconds = np.cumsum([cost(name) for name in padded(starts, MOST)])
    if seconds[0] > PATIENCE:
        return 1
    return max(2, int((seconds <= BUDGET).sum()))


def padded(starts: Sequence[str], count: int) -> list[str]:
    """The names of ``count`` starts: those given, then ``"other"``."""
    return [*starts, *["other"] * (count - len(starts))][:count]


def in_order(landscape: Landscape, init: Any, count: int) -> Iterator[Start]:
    """``init``, then the landscape's own starts, then others in turn.

    Of its own ones an objective takes the first two; further ones climb the mean.

    The others are the optimum of a single model and a random policy. Models are drawn by
    weight, each once; after the last one only random policies follow. A start is computed
    when it is needed.
    """
    context = landscape.context
    seeds = np.random.SeedSequence(context.seed).generate_state(max(count, 1)).tolist()
    named_starts = landscape.starts if context.objective.linear else landscape.starts[:FIRST]
    anew = context.best_policy is None
    names = [name for name in named_starts if not (anew and name == init)][: count - 1]
    yield first(landscape, init, seeds[0])
    for name, seed in zip(names, seeds[1:], strict=False):
        yield named(landscape, name, seed)
    models = _drawn(context, count - 1 - len(names))
    for nth, seed in enumerate(seeds[1 + len(names) :]):
        m = next(models, -1) if nth % 2 == 0 else -1
        own = None if m < 0 else landscape.optimum(m)
        if own is None:
            yield Start("random", landscape.start("random", seed))
        else:
            yield Start(f"model {context.model.model_labels[m]}", own)


def first(landscape: Landscape, init: Any, seed: int) -> Start:
    """The policy on record if a solve goes on from one, else ``init``."""
    known = landscape.context.best_policy
    if known is None:
        return named(landscape, init, seed)
    return Start("given", landscape.near(known))


def named(landscape: Landscape, init: Any, seed: int) -> Start:
    if not isinstance(init, str):
        return Start("given", landscape.given(init))
    known = (*landscape.starts, *landscape.others)
    if init not in known:
        raise InputError(
            f"no start is called {init!r}; choose {either(known)} or give a policy of the kind"
        )
    return Start(init, landscape.start(init, seed))


def _drawn(context: Context, most: int) -> Iterator[int]:
    """Models drawn by weight, each once, as many as every other of ``most`` starts."""
    weights = context.problem.weights
    possible = int(np.count_nonzero(weights))
    rng = np.random.default_rng(context.seed)
    count = max(0, min(possible, -(-most // 2)))
    chosen = rng.choice(len(weights), count, replace=False, p=weights / weights.sum())
    yield from chosen.tolist()


def best_of(ends: list[Ascent], names: list[str], sweeps: str, rounding: float) -> Outcome:
    """The first of several ascents that no other beats by more than rounding."""
    values = np.array([end.value for end in ends])
    first = int((values >= values.max() - rounding).argmax())
    best = ends[first]
    return Outcome(
        best.policy, ENDS[best.end], best.sweeps, returns=best.returns, trace=best.trace,
        details={"sweeps_taken": sweeps, **described(names, ends, first)},
    )  # fmt: skip


def described(names: list[str], ends: list[Ascent], best: int) -> dict[str, Any]:
    """What a solution says about its starts."""
    values = np.array([end.value for end in ends])
    short = {"numbers": "32-bit sweeps, 64-bit returns"} if ends[best].short else {}
    if len(ends) == 1:
        return {"sweeps": ends[0].sweeps, **short}
    return {
        **short,
        "sweeps": ends[best].sweeps,
        "start_values": values,
        "starts": names,
        "best_start": names[best],
        "spread": {"min": values.min(), "mean": values.mean(), "max": values.max()},
        "total_sweeps": sum(end.sweeps for end in ends),
    }


Count = int | Literal["auto"]
