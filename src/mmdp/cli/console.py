"""What the command line prints: facts, tables and JSON."""

from __future__ import annotations

import enum
import json
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmdp.core.text import clip_middle
from mmdp.core.timing import progress_line

if TYPE_CHECKING:
    from rich.table import Table

EXIT_INTERRUPTED = 130  # exit status after Ctrl-C
EXIT_FAILED = 1  # exit status if a part failed, or a result is not where it was to be written


def print_stderr(message: str) -> None:
    """Print one line on stderr."""
    progress_line.wipe()
    print("mmdp: " + clip_middle(" ".join(message.split()), 1300), file=sys.stderr, flush=True)


def _print_trimmed(table: Table) -> None:
    """Print without the blanks that rich fills lines with."""
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_model(data: object, model: object) -> None:
    """Print which models the figures below are about."""
    print(f"{data}\n{textwrap.fill(str(model), 80)}")


def print_facts(title: object, facts: Iterable[tuple[str, str]]) -> None:
    """Print a title and one line per fact, the names in a column."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, fact in facts:
        grid.add_row(f"  {name}", fact)
    print(title)
    _print_trimmed(grid)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, n_left: int = 1) -> None:
    """Print a plain table; the first ``n_left`` columns are text, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < n_left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _print_trimmed(table)


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document on stdout, a line for each top-level key; never NaN."""
    lines = [f'  "{key}": {json.dumps(to_jsonable(value))}' for key, value in document.items()]
    print("{\n" + ",\n".join(lines) + "\n}")


def pick(source: object, names: str) -> dict[str, Any]:
    """Return attributes of an object by their names, for a JSON document."""
    return {name: getattr(source, name) for name in names.split()}


def to_jsonable(value: Any) -> object:
    """Convert a value to JSON's types; numbers that JSON lacks become null.

    >>> from pathlib import Path
    >>> to_jsonable({"a": (1.5, float("nan")), "b": Path("x")})
    {'a': [1.5, None], 'b': 'x'}
    """

    def convert(x: Any) -> object:
        if isinstance(x, Mapping):
            return dict(x)
        return (
            x.tolist() if hasattr(x, "tolist") else x.name if isinstance(x, enum.Enum) else str(x)
        )

    return json.loads(json.dumps(value, default=convert), parse_constant=lambda _: None)
