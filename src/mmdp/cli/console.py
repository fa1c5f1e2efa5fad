"""What the command line prints: facts, tables, JSON and a live line while work lasts."""

from __future__ import annotations

import enum
import json
import math
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from mmdp.core.text import clip_middle, format_bound_percent, format_column
from mmdp.core.timing import InterruptFlag

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mmdp.core.solution import Progress

EXIT_INTERRUPTED = 130  # exit status after Ctrl-C
EXIT_NOT_WRITTEN = 1  # exit status if a result is not where it was to be written
SHOW_AFTER = 1.0  # seconds of work before the live line appears


def print_stderr(message: str) -> None:
    """Print one line on stderr."""
    print("mmdp: " + clip_middle(" ".join(message.split()), 1300), file=sys.stderr, flush=True)


def _make_console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def _print_trimmed(table: Table) -> None:
    """Print without the blanks that rich fills lines with."""
    console = _make_console()
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


# ---------------------------------------------------------------- while work lasts
_live_callbacks: list[Callable[[str], None]] = []  # of the lines shown, latest last


def show_status(text: str) -> None:
    """Say what is going on in the live line; nothing if none is shown."""
    if _live_callbacks:
        _live_callbacks[-1](text)


class LiveLine(InterruptFlag):
    """A live line on stderr while work lasts: only on a terminal, only after a second.

    ``is_set`` says whether Ctrl-C was pressed meanwhile.
    """

    def __init__(self, text: str, *, quiet: bool = False) -> None:
        self._status: Any = None
        if not quiet and sys.stderr.isatty():
            self._status = _make_console(stderr=True).status(text)
            self._timer = threading.Timer(SHOW_AFTER, self._status.start)
            self._timer.daemon = True

    def __enter__(self) -> Self:
        if self._status is not None:
            self._timer.start()
            _live_callbacks.append(self.update)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._status is not None:
            _live_callbacks.pop()
            self._timer.cancel()
            self._timer.join()
            self._status.stop()

    def update(self, text: str) -> None:
        """Show another text."""
        if self._status is not None:
            self._status.update(text)

    def show_step(self, text: str, n_done: int, n_total: int) -> None:
        """Show how many steps are done, and the last of them."""
        self.update(f"{n_done:,} of {n_total:,}: {text}")

    def show_progress(self, progress: Progress) -> None:
        """Show the progress of ``mmdp.solve`` or ``mmdp.bound``, as their callback."""
        value_text, bound_text = format_column([progress.best_value, progress.bound], round_up=[1])
        parts = [progress.stage]
        if math.isfinite(progress.best_value):
            parts.append(f"value {value_text}")
        if math.isfinite(progress.bound):
            parts.append(f"at most {bound_text}")
        if math.isfinite(progress.gap):
            parts.append(f"gap {format_bound_percent(progress.gap)}")
        self.update(", ".join([*parts, f"{progress.elapsed:.0f} s"]))
