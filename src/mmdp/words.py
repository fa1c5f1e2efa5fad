"""Numbers and phrases as people read them: in messages, on the terminal, in tables and pages.

What is proven is rounded outwards: :func:`at_most`, :func:`at_most_percent` and the ``up`` of
:func:`figures` never print less than the number they are given.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

LONGEST = 48  # characters of a label that is not cut
NOISE = 1e-9  # relative size of rounding errors, which do not count when rounding up


# ---------------------------------------------------------------------- phrases
def counted(count: int, noun: str, many: str = "") -> str:
    """A count with its noun in the right number; ``many`` if that is not the noun with an s.

    >>> counted(1, "row"), counted(3000, "row"), counted(2, "policy", "policies")
    ('1 row', '3,000 rows', '2 policies')
    """
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def by_count(count: int, one: str, many: str) -> str:
    """The form of a verb that goes with a count.

    >>> [f"{counted(n, 'pair')} {by_count(n, 'was', 'were')} seen" for n in (1, 2)]
    ['1 pair was seen', '2 pairs were seen']
    """
    return one if count == 1 else many


def either(items: Iterable[str], last: str = " or ") -> str:
    """Alternatives in a sentence.

    >>> either(["prior", "absorb", "forbid"]), either(["a"]), either("ab", ", or ")
    ('prior, absorb or forbid', 'a', 'a, or b')
    """
    *most, end = [*items] or [""]
    return last.join(filter(None, [", ".join(most), end]))


def suggested(name: str, known: Iterable[str]) -> str:
    """The name in quotes, with the known one that it resembles.

    >>> suggested("probabilty", ["probability", "reward"])
    "'probabilty' (did you mean 'probability'?)"
    """
    small = {x.lower(): x for x in known}
    close = difflib.get_close_matches(name.strip().lower(), small, n=1)
    return f"{name!r} (did you mean {small[close[0]]!r}?)" if close else repr(name)


def listed(labels: Sequence[str], own: bool, most: int = 8) -> str:
    """The count, and the first labels if they are ``own`` ones that say more than ids do.

    >>> listed(["well", "ill"], own=True), listed(["0", "1"], own=True)
    ('2: well, ill', '2')
    >>> listed([f"stock={x}, mode={y}" for x in range(9) for y in ("on", "off")], own=True)
    '18: stock 0 to 8, mode on or off'
    """
    count = len(labels)
    if not own or all(label == str(i) for i, label in enumerate(labels)):
        return f"{count:,}"
    if count > most and (text := by_axis(labels)):
        return f"{count:,}: {text}"
    names = [repr(x) if "," in x else x for x in labels[:most]]
    return f"{count:,}: {', '.join(names + ['...'] * (count > most))}"


def some(names: Iterable[str], most: int = 8, between: str = ", ") -> str:
    """The first names, and how many more there are.

    >>> some("abc"), some("abc", 1), some("abc", between=" < ")
    ('a, b, c', 'a and 2 more', 'a < b < c')
    """
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return between.join(every[:most]) + more


def named_values(label: str) -> dict[str, str]:
    """The values by name of a label like ``stock=3, mode=on``; none if it is not one."""
    first, *parts = re.split(r"(?:^|, )([^\W\d]\w*)=", label)
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    return {} if first or 2 * len(found) < len(parts) else found  # a name that comes twice is none


def named_axes(labels: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The values of each axis, and labels that have none; no axes if not all have the same names.

    >>> named_axes(["stock=0, mode=on", "stock=1, mode=on", "ended"])
    ({'stock': ['0', '1'], 'mode': ['on']}, ['ended'])
    """
    names = [*named_values(labels[0])] if labels else []
    rows = [named_values(label) for label in labels] if names else []
    others = [label for label, row in zip(labels, rows, strict=False) if not row]
    rows = [row for row in rows if row]
    if any([*row] != names for row in rows):
        return {}, others
    return {name: list(dict.fromkeys(row[name] for row in rows)) for name in names}, others


def by_axis(labels: Sequence[str]) -> str:
    """``stock 0 to 8, mode on or off``; empty if labels are not values by the same names.

    >>> by_axis(["stock=0", "stock=1", "ended"]), by_axis(["well", "ill"])
    ('stock 0 or 1; ended', '')
    """
    axes, others = named_axes(labels)
    text = ", ".join(f"{name} {_range(values)}" for name, values in axes.items())
    return "; ".join([text, *others]) if axes and len(others) < 2 else ""


def _range(values: list[str]) -> str:
    if len(values) < 4:
        return either(shortened(x, 24) for x in values)
    if all(re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", x) for x in values):
        return f"{values[0]} to {values[-1]}"
    return f"{shortened(values[0], 24)} or {len(values) - 1} others"


def shortened(text: object, longest: int = LONGEST) -> str:
    """A label on one line, cut if it is long; names of values are cut first, but remain apart.

    >>> shortened("two\\nlines"), shortened("x" * 9, 4), shortened("stock=3, ordered=15", 15)
    ('two lines', 'xxx…', 'stoc=3, orde=15')
    >>> shortened("birds=3, burn=1", 9), shortened("birds=3, fuel=1", 9)
    ('bi=3, bu…', 'b=3, f=1')
    """
    line = " ".join(str(text).split())
    more = longest  # letters of a name after the first: of stock and ordered in stock=3, ordered=5
    names = set(re.findall(r"(?:^|(?<=, ))([^\W\d]\w*)(?==)", line))
    while len(line) > longest and more and len({x[:more] for x in names}) == len(names) > 0:
        more -= 1
        line = re.sub(rf"((?:^|(?<=, ))[^\W\d]\w{{0,{more}}})\w*(?==)", r"\1", line)
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def clipped(text: str, longest: int = 600) -> str:
    """A message of bounded length: its beginning and its end.

    >>> clipped("a.csv, line 2: label " + "x" * 9999 + " is unknown", 40)
    'a.csv, line 2: label xxxx … x is unknown'
    """
    if len(text) <= longest:
        return text
    end = (longest - 3) // 3
    return f"{text[: longest - 3 - end]} … {text[-end:]}"


# ---------------------------------------------------------------------- times
class Times(NamedTuple):
    """What the decisions 0, 1, ... are called: the name of their axis, and labels such as ages.

    After the last label, numbers with the same distance go on; otherwise decisions are counted.

    >>> Times("age", ("40", "45")).first(4), Times("month", ("Jan", "Feb")).first(3)
    (['40', '45', '50', '55'], ['Jan', 'Feb', '2'])
    >>> Times("age", ("40", "45")).span(0, 3), Times().span(2)
    ('age 40 to 55', 'time 2')
    """

    name: str = "time"
    labels: tuple[str, ...] = ()

    @property
    def numbers(self) -> list[float]:
        """The labels if all of them are numbers."""
        try:
            return [float(x) for x in self.labels]
        except ValueError:
            return []

    @property
    def in_words(self) -> bool:
        """Whether labels are not numbers that rise, so that a later one is not more."""
        given = self.numbers
        return bool(self.labels) and not (given and all(map(float.__lt__, given, given[1:])))

    @property
    def _even(self) -> bool:
        """Whether labels are numbers with the same distance."""
        steps = [y - x for x, y in itertools.pairwise(self.numbers)]
        return bool(steps) and all(math.isclose(x, steps[0]) for x in steps)

    @property
    def column(self) -> str:
        """What a column of labels is called, next to one with the numbers of decisions."""
        return "label" if self.name == "time" else self.name

    def of(self, t: int) -> str:
        """The label of a decision, or its number."""
        if t < len(self.labels):
            return self.labels[t]
        if not self._even:
            return str(t)
        *_, x, y = self.numbers
        return f"{y + (t - len(self.labels) + 1) * (y - x):.10g}"

    def first(self, count: int) -> list[str]:
        """The labels of the first decisions."""
        return [self.of(t) for t in range(count)]

    def run(self, first: int, last: int, dash: str = "–") -> str:
        """From one decision to another, for tables: ``40–52``."""
        between = " to " if self.in_words else dash
        return between.join(dict.fromkeys((self.of(first), self.of(last))))

    def span(self, first: int, last: int | None = None) -> str:
        """A decision, or those from one to another, in words."""
        ends = (self.of(t) for t in (first, first if last is None else last))
        return f"{self.name} {' to '.join(dict.fromkeys(ends))}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """A row about them for tables of facts, if they have labels."""
        return [("times", self.span(0, len(self.labels) - 1))] if self.labels else []

    def later(self, t: int) -> Times:
        """Of what is left after ``t`` decisions."""
        known = self.first(max(len(self.labels), t + 2)) if self._even else self.labels
        return self._replace(labels=tuple(known[t:])) if known[t:] else Times()

    def beside(self, columns: Any) -> dict[str, Any]:
        """The columns of a table, or of a DataFrame, with labels after ``time`` if there are any.

        >>> Times("age", ("40",)).beside({"time": [0, 0], "state": ["ill", "well"]})
        {'time': [0, 0], 'age': [40, 40], 'state': ['ill', 'well']}
        """
        if not self.labels or "time" not in columns:
            return dict(columns)
        every = _as_numbers(self.first(int(max(columns["time"], default=0)) + 1))
        labels = [every[int(t)] for t in columns["time"]]
        at = list(columns).index("time") + 1
        parts = list(columns.items())
        return dict([*parts[:at], (self.column, labels), *parts[at:]])

    @classmethod
    def within(cls, columns: Any, known: Collection[str]) -> Times:
        """Those of a table that :meth:`beside` made, which has ``known`` columns too.

        >>> Times.within({"time": [1, 0], "age": [41, 40], "state": ["ill", "ill"]}, ["state"])
        Times(name='age', labels=('40', '41'))
        """
        name = cls.column_in(columns, known)
        if name is None:
            return cls()
        found = {int(t): str(x) for t, x in zip(columns["time"], columns[name], strict=True)}
        labels = tuple(found[t] for t in sorted(found))
        return cls("time" if name == "label" else name, labels)

    @staticmethod
    def column_in(columns: Any, known: Collection[str]) -> str | None:
        """The column of labels: that after ``time``, if it is not a known one."""
        names = [*columns]
        after = names[names.index("time") + 1 :] if "time" in names else []
        return after[0] if after and after[0] not in known else None


def _as_numbers(labels: list[str]) -> list[Any]:
    """Labels as numbers if nothing is lost."""
    for kind in (int, float):
        try:
            found = [kind(x) for x in labels]
        except ValueError:
            continue
        if [*map(str, found)] == labels:
            return found
    return labels


# ---------------------------------------------------------------------- numbers
def number(value: float, digits: int = 4) -> str:
    """About ``digits`` digits, never as a power of ten unless it is tiny or huge.

    >>> number(204.7412), number(42235.35), number(0.012345), number(7.0)
    ('204.7', '42,235', '0.01235', '7')
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if value == round(value) and abs(value) < 1e12:
        return f"{value:,.0f}".replace("-", "−")
    if not -4 <= _size(value) < 12:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - _size(value))}f}".replace("-", "−")


def apart(values: Sequence[float], digits: int = 4) -> list[str]:
    """Figures of a column with at least these digits, more if different ones would look the same.

    >>> apart([42235.31, 42235.34, 7.0]), apart([42235.31, 42288.0])
    (['42,235.31', '42,235.34', '7'], ['42,235', '42,288'])
    """
    known = sorted(x for x in values if math.isfinite(x))
    least = NOISE * max(map(abs, known), default=0.0)
    different = 1 + sum(y - x > least for x, y in itertools.pairwise(known))
    for more in range(digits, 11):
        texts = [number(x, more) for x in values]
        if len({*texts} - {"–"}) >= different:
            break
    return texts


def in_unit(text: str, unit: str | None) -> str:
    """A figure with its unit, a currency before it.

    >>> in_unit("−1,200", "$"), in_unit("8.3", "QALYs"), in_unit("8.3", None)
    ('−$1,200', '8.3 QALYs', '8.3')
    """
    if unit and unicodedata.category(unit[-1]) == "Sc":
        return re.sub(r"(?=\d)", lambda _: unit, text, count=1)
    return f"{text} {unit}" if unit else text


def at_most(value: float, digits: int = 4) -> str:
    """Like :func:`number`, rounded up: for what was proven.

    >>> at_most(204.7112), at_most(0.012341), at_most(-1066.96), at_most(7.0)
    ('204.8', '0.01235', '−1,066', '7')
    """
    if not math.isfinite(value) or value == 0:
        return number(value, digits)
    decimals = digits - 1 - _size(value)
    return number(_up(value, decimals if abs(value) >= 1e12 else max(0, decimals)), digits)


def change(value: float, digits: int = 3) -> str:
    """A difference with its sign.

    >>> change(3.14159), change(-20.0), change(0.0)
    ('+3.14', '−20', '0')
    """
    return "+" * (value > 0) + number(value, digits)


def percent(share: float) -> str:
    """A share in percent, two digits.

    >>> percent(0.0345), percent(0.5), percent(0.0000012)
    ('3.5%', '50%', 'less than 0.01%')
    """
    if not math.isfinite(share):
        return "–"
    if 0 < abs(share) < 0.0001:
        return "less than 0.01%"
    size = abs(100 * share)
    digits = 0 if size >= 10 or size == 0 else 1 if size >= 1 else 2
    return f"{100 * share:.{digits}f}%".replace("-", "−")


def at_most_percent(share: float) -> str:
    """A share in percent, two digits but at most four decimals, rounded up: for what was proven.

    >>> at_most_percent(0.00872), at_most_percent(0.1125), at_most_percent(1.2e-10)
    ('0.88%', '12%', '0.0001%')
    """
    if share <= 0:
        return "0%"
    if not math.isfinite(share):
        return "–"
    decimals = min(4, max(0, 1 - _size(100 * share)))
    text = f"{_up(100 * share, decimals):,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if decimals else text) + "%"


def figures(values: Sequence[float | None], *, up: Collection[int] = ()) -> list[str]:
    """About seven digits, the same decimals for a whole column; those at ``up`` rounded up.

    >>> figures([204.7412345, 9.5, None]), figures([42235.3512])
    (['204.7412', '9.5000', ''], ['42,235.35'])
    >>> figures([204.7412345, 204.7412345], up=[1])
    ['204.7412', '204.7413']
    """
    largest = max((abs(x) for x in values if x is not None and math.isfinite(x)), default=0.0)
    if largest and not 1e-3 <= largest < 1e10:
        decimals, form = 5 - _size(largest), ".6g"
    else:
        decimals = min(4, max(0, 6 - (max(0, _size(largest)) if largest else 0)))
        form = f",.{decimals}f"
    rounded = [_up(x, decimals) if i in up and x else x for i, x in enumerate(values)]
    return ["" if x is None else format(x + 0.0, form) for x in rounded]


def two_errors(values: Iterable[float | None]) -> list[str]:
    """What follows ±: two standard errors to two digits; nothing if a figure is exact.

    >>> two_errors([0.0312, None])
    ['0.062', '']
    """
    return ["" if x is None else f"{2 * x:.2g}" for x in values]


def leading(difference: float, error: float) -> str:
    """By how much one policy is ahead of another, and whether that may be chance.

    >>> leading(46.2, 12.1)
    'by 46.2 ± 24 (two standard errors)'
    >>> leading(0.5, 0.4)
    'by 0.5 ± 0.8 (two standard errors), which may be chance'
    """
    chance = ", which may be chance" * (difference < 2 * error)
    return f"by {difference:,.3g} ± {2 * error:,.2g} (two standard errors){chance}"


def truncated(value: float | None, unit: int = 1) -> str:
    """A figure as the paper prints it: towards zero, in units; a dash if there is none.

    >>> truncated(204.74), truncated(42235.3, 1000), truncated(None)
    ('204', '42', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    return f"{math.trunc(value / unit):,}"


def _size(value: float) -> int:
    """The power of ten of the first digit."""
    return math.floor(math.log10(abs(value)))


def _up(value: float, decimals: int) -> float:
    """Rounded up to ``decimals`` decimals; if that is negative, to a multiple of a power of ten."""
    if not math.isfinite(value):
        return value
    unit = 10.0 ** min(decimals, 300)
    # never a thousandth of the last digit below, however large the value
    return math.ceil(value * unit - min(NOISE * abs(value * unit), 1e-3)) / unit


# ---------------------------------------------------------------------- sizes and times
def readable_bytes(count: int) -> str:
    """
    >>> readable_bytes(640), readable_bytes(3_200_000)
    ('640 B', '3.2 MB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def clock(seconds: float) -> str:
    """Seconds without their unit; with milliseconds if they are few.

    >>> clock(0.0123), clock(4180.2)
    ('0.012', '4,180')
    """
    return f"{seconds:.3f}" if seconds < 100 else f"{seconds:,.0f}"


def duration(seconds: float) -> str:
    """
    >>> duration(0.0004), duration(0.25), duration(4180)
    ('0.4 ms', '250 ms', '69.7 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
