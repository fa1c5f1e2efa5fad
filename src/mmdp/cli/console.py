"""What the command line prints: facts, tables, JSON and a live line while work lasts."""

from __future__ import annotations

import enum
import json
import math
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mmdp.clock import CtrlC
from mmdp.objective import Objective
from mmdp.words import at_most_percent, clipped, counted, figures

if TYPE_CHECKING:
    from rich.console import Console

    from mmdp import MMDP, Progress

WIDTH = 80  # columns that every table fits
SHOW_AFTER = 1.0  # seconds of work before the live line appears


def complain(message: str) -> None:
    """One line on stderr."""
    print("mmdp: " + clipped(" ".join(message.split()), 1300), file=sys.stderr, flush=True)


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def _render(table: Any) -> None:
    """Print without the blanks that rich fills lines with."""
    console = _console()
    with console.capture() as captured:
        console.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def show_facts(title: str, facts: Iterable[tuple[str, str]]) -> None:
    """A title and one line per fact, the names in a column."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, fact in facts:
        grid.add_row(f"  {name}", fact)
    print(title)
    _render(grid)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """A plain table; the first ``left`` columns are text, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _render(table)


def show_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout, a line for each top-level key; never NaN."""
    lines = [
        f"  {json.dumps(key)}: {json.dumps(plain(value), allow_nan=False)}"
        for key, value in document.items()
    ]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


def plain(value: Any) -> Any:
    """The value in JSON's types; numbers that JSON lacks become null.

    >>> from pathlib import Path
    >>> plain({"a": (1.5, float("nan")), "b": Path("x")})
    {'a': [1.5, None], 'b': 'x'}
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value.name if isinstance(value, enum.Enum) else str(value)


def aligned(values: Mapping[str, float]) -> list[tuple[str, str]]:
    """Named numbers as facts, their decimal points below each other."""
    numbers = figures(list(values.values()))
    width = max(map(len, numbers))
    return [(name, number.rjust(width)) for name, number in zip(values, numbers, strict=True)]


def named(objective: Objective) -> str:
    """What a title adds if something else than the mean counts."""
    return "" if objective.linear else f", {objective.name}"


# ---------------------------------------------------------------- models
def introduce(data: Path, model: MMDP) -> None:
    """Which models the figures below are about, and what had to be assumed."""
    note_assumptions(model)
    print(f"{data}\n{sizes(model)}")


def sizes(model: MMDP) -> str:
    parts = [
        counted(model.n_models, "model"), counted(model.n_states, "state"),
        counted(model.n_actions, "action"), f"discount {model.discount:g}",
        *([f"rewards in {model.unit}"] if model.unit else []),
    ]  # fmt: skip
    return ", ".join(parts)


def note_assumptions(model: MMDP) -> None:
    for warning in warnings(model):
        complain(f"note: {warning}")


def warnings(model: MMDP) -> list[str]:
    found = []
    if not model.initial_given:
        found.append("no initial distribution is given; every state is equally likely at the start")
    unused = int((model.weights == 0).sum())
    if unused:
        found.append(f"{counted(unused, 'model')} of weight 0")
    return found


# ---------------------------------------------------------------- while work lasts
_live: list[Callable[[str], None]] = []  # how to say something in the lines shown, latest last


def notice(text: str) -> None:
    """Say what is going on in the live line; nothing if none is shown."""
    if _live:
        _live[-1](text)


class Working(CtrlC):
    """A live line on stderr while work lasts: only on a terminal, only after a second.

    ``pressed`` says whether Ctrl-C was pressed meanwhile.
    """

    def __init__(self, text: str, *, quiet: bool = False) -> None:
        self._status: Any = None
        if not quiet and sys.stderr.isatty():
            self._status = _console(stderr=True).status(text)
            self._timer = threading.Timer(SHOW_AFTER, self._status.start)
            self._timer.daemon = True

    def __enter__(self) -> Self:
        if self._status is not None:
            self._timer.start()
            _live.append(self.say)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._status is not None:
            _live.pop()
            self._timer.cancel()
            self._timer.join()
            self._status.stop()

    def say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    def progress(self, progress: Progress) -> None:
        """The callback for ``mmdp.solve``."""
        best, most = figures([progress.best, progress.bound], up=[1])
        done = f"iteration {progress.iteration}, value {best}"
        if math.isfinite(progress.bound):
            node = f"node {progress.nodes:,}, " if progress.nodes else ""
            done = f"{node}value {best}, at most {most}{_gap(progress.gap)}"
        self.say(f"{progress.method}: {done}, {progress.seconds:.0f} s")

    def bounding(self, progress: Progress) -> None:
        """The callback for ``mmdp.bound``."""
        most = figures([progress.bound], up=[0])[0]
        done = f"at most {most}{_gap(progress.gap)}"
        self.say(f"{progress.method}: {done}, {progress.seconds:.0f} s")


def _gap(gap: float) -> str:
    return f", gap {at_most_percent(gap)}" if math.isfinite(gap) else ""


class Steps:
    """A bar for work of many known steps; plain lines if stderr is not a terminal.

    ``say(text, done, total)`` moves it.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        console = _console(stderr=True)
        self._shows, self._quiet, self._group = console.is_terminal and not quiet, quiet, ""
        self._bar = Progress(
            "{task.description}", BarColumn(bar_width=24), MofNCompleteColumn(),
            TimeElapsedColumn(), console=console, disable=not self._shows, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=None)

    def say(self, text: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=f"{text:<24}", completed=done, total=total)
        group = text.split()[0].rstrip(":")
        if not self._shows and not self._quiet and group != self._group:
            self._group = group
            print(f"{done:>3}/{total} {group}", file=sys.stderr, flush=True)

    def _describe(self, text: str) -> None:
        self._bar.update(self._task, description=text)

    def __enter__(self) -> Steps:
        self._bar.start()
        _live.append(self._describe)
        return self

    def __exit__(self, *exc: object) -> None:
        _live.pop()
        self._bar.stop()
