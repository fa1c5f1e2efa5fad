"""mmdp bound: a proven upper bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from mmdp._version import __version__
from mmdp.cli.console import (
    EXIT_INTERRUPTED,
    LiveLine,
    objective_suffix,
    pick,
    print_facts,
    print_json,
    print_model_header,
)
from mmdp.cli.data import ADVANCED, Data
from mmdp.cli.signatures import command
from mmdp.cli.types import TextParam
from mmdp.core.text import format_bound, format_column, format_seconds

if TYPE_CHECKING:
    from mmdp import Bound

BoundMethod = Annotated[
    str, TextParam("NAME", role="bound", words="mmdp.core.bounds:BOUND_METHODS")
]
SCOPES = {"history": "every policy, also with memory", "markov": "every Markov policy"}


@command(
    "mmdp bound data/riverswim --horizon 50",
    "mmdp bound data/hiv -T 15 --method pairs --time-limit 60 --json",
    "mmdp bound data/riverswim -T 50 --objective cvar:0.1",
    sources=["mmdp.core.bounds.api:bound"],
    advanced=f"backend seed {ADVANCED}",
)
def bound(
    data: Data, *, method: BoundMethod = "best", as_json: bool = False, **options: Any
) -> int:
    """Prove how much a policy for DATA can be worth at most.

    The bounds oracle, qmdp and pairs hold for every policy, including those with memory. best is
    the least of them and of a dual that holds for Markov policies, which see the time and the
    state.

    Ctrl-C gives the least bound so far; the exit status is then 130.

    Parameters
    ----------
    method
        How to find a bound.
    """
    import mmdp

    model = data.read(quiet=as_json)
    with LiveLine(f"bounding with {method}", quiet=as_json) as live_line:
        upper_bound = mmdp.bound(model, method=method, **options, callback=live_line.show_bound)
    horizon, objective = options.get("horizon", model.horizon), options["objective"]
    if as_json:
        print_json(
            {
                "data": data,
                "horizon": horizon,
                "objective": str(objective),
                **pick(upper_bound, "value method seconds"),
                "scope": upper_bound.scope,
                "incumbent": upper_bound.details.get("incumbent"),
                "version": __version__,
            }
        )
    else:
        print_model_header(data, model)
        title = f"upper bound, horizon {horizon}{objective_suffix(objective)}"
        print_facts(title, _format_facts(upper_bound))
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
