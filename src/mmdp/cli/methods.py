"""mmdp methods: what every method can do."""

from __future__ import annotations

from mmdp.cli import options
from mmdp.cli.console import show_json, show_table
from mmdp.cli.options import command
from mmdp.methods.table import by_case, capabilities
from mmdp.solution import Status
from mmdp.words import either


@command("mmdp methods", "mmdp methods --json")
@options.as_json
def methods(as_json: bool) -> None:
    """List the methods of solve, compare and report.

    A policy with a belief has to see what happens at every step; one without needs only the
    time and the state. A method that proves nothing may still find the best policy: --certify
    shows how far from it the policy can be. --json has the options of each method too.
    """
    table = capabilities()
    if as_json:
        show_json({row.name: row._asdict() for row in table})
        return
    rows = [(row.name, row.title, row.memory, _proven(row.proves)) for row in table]
    show_table(("method", "what it does", "memory", "proves"), rows, left=4)
    print()
    for case, names in by_case().items():
        print(f"For {case}: {either(names, ' and ')}.")


def _proven(status: Status | None) -> str:
    return "nothing" if status is None else status.name.lower().replace("_", " ")
