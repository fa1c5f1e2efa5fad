"""mmdp bound: a proven upper bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmdp._version import __version__
from mmdp.bounds import BOUNDS
from mmdp.cli import options
from mmdp.cli.console import (
    Working,
    introduce,
    named,
    show_facts,
    show_json,
)
from mmdp.cli.options import INTERRUPTED, Loading, command, option, takes
from mmdp.cli.types import Name
from mmdp.objective import Objective
from mmdp.words import at_most, clock, either, figures

if TYPE_CHECKING:
    from mmdp import Bound

KINDS = {"history": "every policy, also with memory", "markov": "every Markov policy"}


@command(
    "mmdp bound data/riverswim --horizon 50",
    "mmdp bound data/hiv -T 15 --method pairs --time-limit 60 --json",
    "mmdp bound data/riverswim -T 50 --objective cvar:0.1",
)
@options.data
@options.horizon
@option(
    "--method", "-m", type=Name("bound", BOUNDS), metavar="NAME", default="best",
    show_default=True, help=f"{either(BOUNDS)}.",
)  # fmt: skip
@options.objective
@options.time_limit("Stop the search after S seconds; 10 by default.")
@options.backend
@options.as_json
@options.split
@takes(Loading)
def bound(
    data: Path, horizon: int | None, method: str, objective: Objective,
    time_limit: float | None, backend: str, as_json: bool, split: str, loading: Loading,
) -> int:  # fmt: skip
    """Prove how much a policy for DATA can be worth at most.

    The bounds oracle, qmdp and pairs hold for every policy, including those with memory; dual,
    pair-dual and lp hold for Markov policies, which see the time and the state. best is the
    least of them.

    Ctrl-C gives the least bound so far; the exit status is then 130.
    """
    import mmdp

    model = loading.read(data, split, quiet=as_json)
    searching = f"bounding with {method}"
    with Working(searching, quiet=as_json) as working:
        found = mmdp.bound(
            model, horizon, method, objective=objective, time_limit=time_limit, backend=backend,
            callback=working.bounding,
        )  # fmt: skip
    steps = horizon if horizon is not None else model.horizon
    if as_json:
        show_json({
            "data": data, "horizon": steps, "objective": str(objective),
            "value": found.value, "bounds": found.bounds,
            "method": found.method, "incumbent": found.details.get("incumbent"),
            "seconds": found.seconds, "version": __version__,
        })  # fmt: skip
    else:
        introduce(data, model)
        show_facts(f"upper bound, horizon {steps}{named(objective)}", _facts(found))
    return INTERRUPTED if working.pressed else 0


def _facts(found: Bound) -> list[tuple[str, str]]:
    known = found.details.get("incumbent")
    most, reached = figures([found.value, known], up=[0])
    facts = [("value", most), ("holds for", KINDS[found.bounds])]
    if known is not None:
        more = at_most(max(found.value - known, 0.0), 3)
        facts.append(("CADP reaches", f"{reached}, the best at most {more} more"))
    return [*facts, ("method", found.method), ("seconds", clock(found.seconds))]
