"""The table of methods that ``mmdp info`` prints."""

from __future__ import annotations

import textwrap

from mmdp.cli.console import WIDTH, print_table
from mmdp.core.methods.registry import list_capabilities, methods_by_feature
from mmdp.core.solution import Status
from mmdp.core.text import join_or


def print_methods() -> None:
    """Print a table of the methods and lists of those that support special problems."""
    rows = [
        (row.name, row.title, row.memory, _format_status(row.best_status))
        for row in list_capabilities()
    ]
    print_table(("method", "what it does", "memory", "proves"), rows, n_left=4)
    print()
    for case, names in methods_by_feature().items():
        print(textwrap.fill(f"For {case}: {join_or(names, ' and ')}.", WIDTH))


def _format_status(status: Status | None) -> str:
    return "nothing" if status is None else status.name.lower().replace("_", " ")
