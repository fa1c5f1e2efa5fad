"""mmdp bound: a proven upper bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmdp._version import __version__
from mmdp.cli import options
from mmdp.cli.console import (
    LiveLine,
    objective_suffix,
    print_facts,
    print_json,
    print_model_header,
)
from mmdp.cli.options import EXIT_INTERRUPTED, LoadArgs, command, option, with_options
from mmdp.cli.types import NameParam
from mmdp.core.bounds import BOUND_METHODS
from mmdp.core.objectives import Objective
from mmdp.core.text import format_bound, format_column, format_seconds, join_or

if TYPE_CHECKING:
    from mmdp import Bound

SCOPES = {"history": "every policy, also with memory", "markov": "every Markov policy"}


@command(
    "mmdp bound data/riverswim --horizon 50",
    "mmdp bound data/hiv -T 15 --method pairs --time-limit 60 --json",
    "mmdp bound data/riverswim -T 50 --objective cvar:0.1",
)
@options.data
@options.horizon
@option(
    "--method",
    "-m",
    type=NameParam("bound", BOUND_METHODS),
    metavar="NAME",
    default="best",
    show_default=True,
    help=f"{join_or(BOUND_METHODS)}.",
)
@options.objective
@options.time_limit("Stop the search after S seconds; 10 by default.")
@options.backend
@options.as_json
@options.split
@with_options(LoadArgs)
def bound(
    data: Path,
    horizon: int | None,
    method: str,
    objective: Objective,
    time_limit: float | None,
    backend: str,
    as_json: bool,
    split: str,
    load_args: LoadArgs,
) -> int:
    """Prove how much a policy for DATA can be worth at most.

    The bounds oracle, qmdp and pairs hold for every policy, including those with memory; dual,
    pair-dual and lp hold for Markov policies, which see the time and the state. best is the
    least of them.

    Ctrl-C gives the least bound so far; the exit status is then 130.
    """
    import mmdp

    model = load_args.read_models(data, split, quiet=as_json)
    message = f"bounding with {method}"
    with LiveLine(message, quiet=as_json) as live_line:
        upper_bound = mmdp.bound(
            model,
            horizon,
            method,
            objective=objective,
            time_limit=time_limit,
            backend=backend,
            callback=live_line.show_bound,
        )
    shown_horizon = horizon if horizon is not None else model.horizon
    if as_json:
        print_json(
            {
                "data": data,
                "horizon": shown_horizon,
                "objective": str(objective),
                "value": upper_bound.value,
                "bounds": upper_bound.scope,
                "method": upper_bound.method,
                "incumbent": upper_bound.details.get("incumbent"),
                "seconds": upper_bound.seconds,
                "version": __version__,
            }
        )
    else:
        print_model_header(data, model)
        print_facts(
            f"upper bound, horizon {shown_horizon}{objective_suffix(objective)}",
            _format_facts(upper_bound),
        )
    return EXIT_INTERRUPTED if live_line.is_set else 0


def _format_facts(upper_bound: Bound) -> list[tuple[str, str]]:
    incumbent_value = upper_bound.details.get("incumbent")
    bound_text, value_text = format_column([upper_bound.value, incumbent_value], round_up=[0])
    facts = [("value", bound_text), ("holds for", SCOPES[upper_bound.scope])]
    if incumbent_value is not None:
        gap_text = format_bound(max(upper_bound.value - incumbent_value, 0.0), 3)
        facts.append(("CADP reaches", f"{value_text}, the best at most {gap_text} more"))
    return [
        *facts,
        ("method", upper_bound.method),
        ("seconds", format_seconds(upper_bound.seconds)),
    ]
