"""What a benchmark finds: rows with a figure, its spread, a floor and an aim; tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks import timing
from mmdp.words import counted

REACHED = ("aim", "ok", "MISSED", "not run")


@dataclass(frozen=True)
class Goal:
    """A floor and an aim: the figure shall be at least, at most, or between the two."""

    floor: float
    aim: float
    kind: Literal["least", "most", "within"] = "least"

    def reached(self, value: float) -> str:
        """
        >>> Goal(2, 3).reached(2.5), Goal(1.5, 1.2, "most").reached(1.6)
        ('ok', 'MISSED')
        >>> Goal(0.9, 1.1, "within").reached(1.0)
        'aim'
        """
        if self.kind == "within":
            return "aim" if self.floor <= value <= self.aim else "MISSED"
        sign = -1.0 if self.kind == "most" else 1.0
        if sign * value >= sign * self.aim:
            return "aim"
        return "ok" if sign * value >= sign * self.floor else "MISSED"

    def shown(self, unit: str) -> tuple[str, str]:
        """The cells of the floor and the aim."""
        if self.kind == "within":
            return f"{self.floor:g} - {self.aim:g}", ""
        mark = "≤ " if self.kind == "most" else ""
        return mark + shown(self.floor, unit, plain=True), mark + shown(self.aim, unit, plain=True)


@dataclass(frozen=True)
class Row:
    """One figure. ``value`` is None if it could not be measured; ``note`` says why.

    ``spread``: the middle half of the rounds' figures, relative to their median. ``low`` and
    ``high``: the extreme rounds. ``details``: what the figure was made of.
    """

    check: str
    value: float | None
    unit: str = "×"
    threads: int | None = 1
    goal: Goal | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    section: str = ""

    @property
    def reached(self) -> str:
        if self.goal is None:
            return ""
        return "not run" if self.value is None else self.goal.reached(self.value)

    def cells(self) -> tuple[str, ...]:
        """check, threads, value, spread, floor, aim, reached."""
        floor, aim = ("", "") if self.goal is None else self.goal.shown(self.unit)
        return (
            self.check,
            "" if self.threads is None else str(self.threads),
            "-" if self.value is None else shown(self.value, self.unit),
            "" if self.spread is None else f"{100 * self.spread:.0f}%",
            floor,
            aim,
            self.reached,
        )

    def document(self, verdict: bool = True) -> dict[str, Any]:
        return {**asdict(self), **({"reached": self.reached} if verdict else {})}


def from_document(document: Mapping[str, Any]) -> Row:
    """The row again, from what :meth:`Row.document` wrote."""
    parts = {key: value for key, value in document.items() if key != "reached"}
    goal = parts.pop("goal")
    return Row(**parts, goal=None if goal is None else Goal(**goal))


def ratio_row(
    check: str, peer: timing.Times, ours: timing.Times, goal: Goal | None = None, **more: Any
) -> Row:
    """How often our time fits in the peer's: minima compared, spread over the rounds."""
    value, low, high = timing.ratio(peer, ours)
    each = [p / o for p, o in zip(peer.rounds, ours.rounds, strict=True)]
    details = {"ours_seconds": ours.best, "peer_seconds": peer.best, **more.pop("details", {})}
    return Row(
        check, value, goal=goal, low=low, high=high, spread=timing.spread(each),
        details=details, **more,
    )  # fmt: skip


def shown(value: float, unit: str, plain: bool = False) -> str:
    """A figure with its unit, three digits; ``plain``: as short as it goes.

    >>> shown(51.234, "×"), shown(0.834, "%"), shown(2e6, "steps/s"), shown(2.5, "×", plain=True)
    ('51.2 ×', '83%', '2.00e+06', '2.5')
    """
    if unit == "%":
        return f"{100 * value:.0f}%"
    if unit == "steps/s":
        return f"{value:.0e}" if plain else f"{value:.2e}"
    if plain:
        return f"{value:g}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit}".rstrip()


class Columns:
    """A text table whose lines can be printed one by one; text is left, numbers are right."""

    def __init__(self, *columns: tuple[str, int]) -> None:
        """Heads with their widths; a negative width is for text."""
        self.heads, self.widths = zip(*columns, strict=True)

    def line(self, cells: Sequence[str]) -> str:
        """
        >>> Columns(("check", -8), ("value", 6)).line(["a", "1.5"])
        'a          1.5'
        """
        parts = [
            cell.ljust(-width) if width < 0 else cell.rjust(width)
            for cell, width in zip(cells, self.widths, strict=True)
        ]
        return "".join(parts).rstrip()

    def head(self) -> str:
        return self.line(self.heads)


FIGURES = ("check", -48), ("threads", 7), ("value", 10), ("spread", 7)
VERDICTS = ("floor", 10), ("aim", 7), ("  reached", -9)


def columns(verdicts: bool) -> Columns:
    """The columns of the table on a terminal."""
    return Columns(*FIGURES, *VERDICTS) if verdicts else Columns(*FIGURES)


def text(row: Row, verdicts: bool = True) -> str:
    """A line of at most 100 columns; a second one says why a figure is not there."""
    cells = list(row.cells())
    cells[0], cells[-1] = cells[0][:47], f"  {cells[-1]}"
    table = columns(verdicts)
    line = table.line(cells[: len(table.heads)])
    return line if row.value is not None else f"{line}\n    {row.note[:96]}"


def machine_lines(facts: Mapping[str, Any] | None = None) -> list[str]:
    """What the figures depend on, in two lines."""
    facts = timing.machine() if facts is None else facts
    parts = [f"{name} {facts[name]}" for name in ("python", "numpy", "numba")]
    return [f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}", ", ".join(parts)]


def markdown(rows: Iterable[Row], verdicts: bool = True) -> str:
    """The rows as one Markdown table, a bold line for each section."""
    heads = [head.strip() for head in columns(verdicts).heads]
    lines = [f"| {' | '.join(heads)} | |", "|---" * (len(heads) + 1) + "|"]
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append(f"| **{section}** {'| ' * len(heads)}|")
        cells = [*row.cells()[: len(heads)], row.note]
        if verdicts and row.reached == "MISSED":
            cells[6] = "**missed**"
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Row], verdicts: bool = True) -> str:
    """How many floors were reached, and which were not.

    >>> rows = [Row("a", 2.0, goal=Goal(1, 3)), Row("b", None, goal=Goal(1, 3))]
    >>> summary(rows), summary(rows, verdicts=False)
    ('2 floors: 1 reached, 1 not run', '1 figure')
    """
    if not verdicts:
        return counted(sum(row.value is not None for row in rows), "figure")
    held = [row.reached for row in rows if row.goal is not None]
    counts = {
        "reached": len([x for x in held if x in ("aim", "ok")]),
        "missed": held.count("MISSED"),
        "not run": held.count("not run"),
    }
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    return f"{len(held)} floors: {', '.join(parts) or 'none'}"
