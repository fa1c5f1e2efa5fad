"""Numbers and phrases as people read them: in messages, on the terminal, in tables and notebooks.

Proven bounds are rounded up: :func:`format_bound`, :func:`format_bound_percent` and ``round_up`` of
:func:`format_column` never print less than the number.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

MAX_SHOWN = 8  # names in a text, unless it says otherwise
MAX_COMPARED = 50_000  # names that an unknown one is compared with: about a second
MAX_LABEL_LENGTH = 48  # characters of a label that is not cut
ROUNDING_RTOL = 1e-9  # relative size of rounding errors, which do not count when rounding up


# ---------------------------------------------------------------------- phrases
def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun; ``plural`` if that is not the noun with an s.

    >>> pluralize(1, "row"), pluralize(3000, "row"), pluralize(2, "policy", "policies")
    ('1 row', '3,000 rows', '2 policies')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def join_or(items: Iterable[str], conjunction: str = " or ") -> str:
    """Join alternatives in a sentence: ``a, b or c``.

    >>> join_or(["prior", "absorb", "forbid"]), join_or(["a"]), join_or("ab", ", or ")
    ('prior, absorb or forbid', 'a', 'a, or b')
    """
    *head, tail = [*items] or [""]
    return conjunction.join(filter(None, [", ".join(head), tail]))


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Format an unknown name in quotes, with the known one that it resembles.

    >>> did_you_mean("probabilty", ["probability", "reward"])
    "'probabilty' (did you mean 'probability'?)"
    """
    by_lowercase = {x.lower(): x for x in itertools.islice(candidates, MAX_COMPARED)}
    matches = difflib.get_close_matches(name.strip().lower(), by_lowercase, n=1)
    return f"{name!r} (did you mean {by_lowercase[matches[0]]!r}?)" if matches else repr(name)


def summarize_labels(labels: Sequence[str]) -> str:
    """Summarize labels: their count, and the first of them unless they are ids.

    >>> summarize_labels(["well", "ill"]), summarize_labels(["0", "1"])
    ('2: well, ill', '2')
    >>> summarize_labels([f"stock={x}, mode={y}" for x in range(9) for y in ("on", "off")])
    '18: stock 0 to 8, mode on or off'
    """
    count = len(labels)
    if all(label == str(i) for i, label in enumerate(labels)):
        return f"{count:,}"
    if count > MAX_SHOWN and (text := summarize_axes(labels)):
        return f"{count:,}: {text}"
    names = [repr(x) if "," in x else x for x in labels[:MAX_SHOWN]]
    return f"{count:,}: {', '.join(names + ['...'] * (count > MAX_SHOWN))}"


def join_first(names: Iterable[str], max_shown: int = MAX_SHOWN, separator: str = ", ") -> str:
    """Join the first names, with the number of the others.

    >>> join_first("abc"), join_first("abc", 1), join_first("abc", separator=" < ")
    ('a, b, c', 'a and 2 more', 'a < b < c')
    """
    name_list = list(names)
    rest_text = f" and {len(name_list) - max_shown:,} more" if len(name_list) > max_shown else ""
    return separator.join(name_list[:max_shown]) + rest_text


def parse_named_values(label: str) -> dict[str, str]:
    """Parse a label such as ``stock=3, mode=on`` to values by name; empty for other labels."""
    prefix, *parts = re.split(r"(?:^|, )([^\W\d]\w*)=", label)
    values = dict(zip(parts[::2], parts[1::2], strict=True))
    has_repeated_name = 2 * len(values) < len(parts)
    return {} if prefix or has_repeated_name else values


def parse_named_axes(labels: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Parse labels with named values to the values of each axis, and the other labels.

    >>> parse_named_axes(["stock=0, mode=on", "stock=1, mode=on", "ended"])
    ({'stock': ['0', '1'], 'mode': ['on']}, ['ended'])
    """
    names = [*parse_named_values(labels[0])] if labels else []
    rows = {label: parse_named_values(label) for label in labels if names}
    unnamed_labels = [label for label, row in rows.items() if not row]
    values = [row for row in rows.values() if row]
    if any([*row] != names for row in values):
        return {}, unnamed_labels
    return {name: [*dict.fromkeys(row[name] for row in values)] for name in names}, unnamed_labels


def summarize_axes(labels: Sequence[str]) -> str:
    """Summarize labels with named values: ``stock 0 to 8, mode on or off``; empty for others.

    >>> summarize_axes(["stock=0", "stock=1", "ended"]), summarize_axes(["well", "ill"])
    ('stock 0 or 1; ended', '')
    """
    axes, unnamed_labels = parse_named_axes(labels)
    text = ", ".join(f"{name} {_format_range(values)}" for name, values in axes.items())
    return "; ".join([text, *unnamed_labels]) if axes and len(unnamed_labels) < 2 else ""


def _format_range(values: list[str]) -> str:
    """Format sorted values: all of a few, the first and last of numbers, or a count."""
    if len(values) < 4:
        return join_or(shorten(x, 24) for x in values)
    if all(re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", x) for x in values):
        return f"{values[0]} to {values[-1]}"
    return f"{shorten(values[0], 24)} or {len(values) - 1} others"


def shorten(text: object, max_length: int = MAX_LABEL_LENGTH) -> str:
    """Shorten a label to one line of ``max_length``; names of values are cut first.

    >>> shorten("two\\nlines"), shorten("x" * 9, 4), shorten("stock=3, ordered=15", 15)
    ('two lines', 'xxx…', 'stoc=3, orde=15')
    >>> shorten("birds=3, burn=1", 9), shorten("birds=3, fuel=1", 9)
    ('bi=3, bu…', 'b=3, f=1')
    """
    line = " ".join(str(text).split())
    n_letters = max_length  # of a name after the first: of stock and ordered in stock=3, ordered=5
    names = set(re.findall(r"(?:^|(?<=, ))([^\W\d]\w*)(?==)", line))
    while (
        len(line) > max_length
        and n_letters
        and len({x[:n_letters] for x in names}) == len(names) > 0
    ):
        n_letters -= 1
        line = re.sub(rf"((?:^|(?<=, ))[^\W\d]\w{{0,{n_letters}}})\w*(?==)", r"\1", line)
    return line if len(line) <= max_length else line[: max_length - 1].rstrip() + "…"


def clip_middle(text: str, max_length: int = 600) -> str:
    """Cut the middle of a message that is longer than ``max_length``.

    >>> clip_middle("a.csv, line 2: label " + "x" * 9999 + " is unknown", 40)
    'a.csv, line 2: label xxxx … x is unknown'
    """
    if len(text) <= max_length:
        return text
    tail_length = (max_length - 3) // 3
    return f"{text[: max_length - 3 - tail_length]} … {text[-tail_length:]}"


# ---------------------------------------------------------------------- times
class TimeLabels(NamedTuple):
    """Labels of the decisions 0, 1, ..., such as ages, and the name of their axis.

    After the last label, numbers with the same distance go on; otherwise decisions are counted.

    >>> TimeLabels("age", ("40", "45")).get_labels(4)
    ['40', '45', '50', '55']
    >>> TimeLabels("month", ("Jan", "Feb")).get_labels(3)
    ['Jan', 'Feb', '2']
    >>> TimeLabels("age", ("40", "45")).describe_range(0, 3), TimeLabels().describe_range(2)
    ('age 40 to 55', 'time 2')
    """

    name: str = "time"
    labels: tuple[str, ...] = ()

    @property
    def numeric_labels(self) -> list[float]:
        """Labels as numbers if all of them are numbers; else empty."""
        try:
            return [float(x) for x in self.labels]
        except ValueError:
            return []

    @property
    def is_categorical(self) -> bool:
        """Whether the labels are not increasing numbers."""
        numbers = self.numeric_labels
        return bool(self.labels) and not (numbers and all(map(float.__lt__, numbers, numbers[1:])))

    @property
    def _is_evenly_spaced(self) -> bool:
        """Whether the labels are evenly spaced numbers."""
        steps = [y - x for x, y in itertools.pairwise(self.numeric_labels)]
        return bool(steps) and all(math.isclose(x, steps[0]) for x in steps)

    @property
    def column_name(self) -> str:
        """Name of the column of labels in tables."""
        return "label" if self.name == "time" else self.name

    def get_label(self, t: int) -> str:
        """Get the label of a decision, or its number."""
        if t < len(self.labels):
            return self.labels[t]
        if not self._is_evenly_spaced:
            return str(t)
        *_, x, y = self.numeric_labels
        return f"{y + (t - len(self.labels) + 1) * (y - x):.10g}"

    def get_labels(self, count: int) -> list[str]:
        """Get the labels of the first decisions."""
        return [self.get_label(t) for t in range(count)]

    def format_range(self, first: int, last: int) -> str:
        """Format a range of decisions for tables: ``40–52``."""
        separator = " to " if self.is_categorical else "–"
        return separator.join(dict.fromkeys((self.get_label(first), self.get_label(last))))

    def describe_range(self, first: int, last: int | None = None) -> str:
        """Describe a decision or a range of them: ``age 40 to 52``."""
        ends = (self.get_label(t) for t in (first, first if last is None else last))
        return f"{self.name} {' to '.join(dict.fromkeys(ends))}"

    def truncate_before(self, t: int) -> TimeLabels:
        """Drop the labels of the first ``t`` decisions."""
        labels = (
            self.get_labels(max(len(self.labels), t + 2)) if self._is_evenly_spaced else self.labels
        )
        return self._replace(labels=tuple(labels[t:])) if labels[t:] else TimeLabels()

    def add_column(self, columns: Any) -> dict[str, Any]:
        """Add a column of labels after ``time`` to the columns of a table, if there are any.

        >>> TimeLabels("age", ("40",)).add_column({"time": [0, 0], "state": ["ill", "well"]})
        {'time': [0, 0], 'age': [40, 40], 'state': ['ill', 'well']}
        """
        if not self.labels or "time" not in columns:
            return dict(columns)
        label_values = _to_numbers(self.get_labels(int(max(columns["time"], default=0)) + 1))
        result: dict[str, Any] = {}
        for name, values in columns.items():
            result[name] = values
            if name == "time":
                result[self.column_name] = [label_values[int(t)] for t in values]
        return result

    @classmethod
    def from_columns(cls, columns: Any, known_columns: Collection[str]) -> TimeLabels:
        """Read the labels from a table with a column that :meth:`add_column` added.

        >>> columns = {"time": [1, 0], "age": [41, 40], "state": ["ill", "ill"]}
        >>> TimeLabels.from_columns(columns, ["state"])
        TimeLabels(name='age', labels=('40', '41'))
        """
        name = cls.find_column(columns, known_columns)
        if name is None:
            return cls()
        labels = dict(zip(map(int, columns["time"]), map(str, columns[name]), strict=True))
        return cls("time" if name == "label" else name, tuple(labels[t] for t in sorted(labels)))

    @staticmethod
    def find_column(columns: Any, known_columns: Collection[str]) -> str | None:
        """Find the column of labels: the one after ``time``, if it is not a known one."""
        name = dict(itertools.pairwise(columns)).get("time")
        return None if name in known_columns else name


def _to_numbers(labels: list[str]) -> Sequence[int | float | str]:
    """Convert labels to numbers if their texts stay the same."""
    for number_type in (int, float):
        try:
            numbers = [number_type(x) for x in labels]
        except ValueError:
            continue
        if [*map(str, numbers)] == labels:
            return numbers
    return labels


# ---------------------------------------------------------------------- numbers
def format_number(value: float, digits: int = 4) -> str:
    """Format a number with about ``digits`` digits; a power of ten only if tiny or huge.

    >>> [format_number(x) for x in (204.7412, 42235.35, 0.012345, 7.0)]
    ['204.7', '42,235', '0.01235', '7']
    """
    if not math.isfinite(value):
        return "–"
    if value == round(value) and abs(value) < 1e12:
        return f"{value + 0.0:,.0f}".replace("-", "−")
    if not -4 <= _decimal_exponent(value) < 12:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - _decimal_exponent(value))}f}".replace("-", "−")


def format_distinct(values: Sequence[float], digits: int = 4) -> list[str]:
    """Format numbers with at least ``digits`` digits, more if different ones look the same.

    >>> format_distinct([42235.31, 42235.34, 7.0]), format_distinct([42235.31, 42288.0])
    (['42,235.31', '42,235.34', '7'], ['42,235', '42,288'])
    """
    finite_values = sorted(x for x in values if math.isfinite(x))
    tolerance = ROUNDING_RTOL * max(map(abs, finite_values), default=0.0)
    n_distinct = 1 + sum(y - x > tolerance for x, y in itertools.pairwise(finite_values))
    for n_digits in range(digits, 11):
        texts = [format_number(x, n_digits) for x in values]
        if len({*texts} - {"–"}) >= n_distinct:
            break
    return texts


def format_with_unit(text: str, unit: str | None) -> str:
    """Add a unit to a formatted number; a currency goes before it, thousands of one after it.

    >>> format_with_unit("−1,200", "$"), format_with_unit("8.3", "QALYs")
    ('−$1,200', '8.3 QALYs')
    >>> format_with_unit("17.0", "US$"), format_with_unit("17.0", "k€")
    ('US$17.0', '17.0 k€')
    """
    if unit and unicodedata.category(unit[-1]) == "Sc" and re.fullmatch(r"[A-Z]*\$|.", unit):
        return re.sub(r"(?=\d)", lambda _: unit, text, count=1)
    return f"{text} {unit}" if unit else text


def format_bound(value: float, digits: int = 4) -> str:
    """Format a proven bound like :func:`format_number`, rounded up.

    >>> format_bound(204.7112), format_bound(0.012341), format_bound(-1066.96), format_bound(7.0)
    ('204.8', '0.01235', '−1,066', '7')
    """
    if not math.isfinite(value) or value == 0:
        return format_number(value, digits)
    decimals = digits - 1 - _decimal_exponent(value)
    return format_number(
        _round_up(value, decimals if abs(value) >= 1e12 else max(0, decimals)), digits
    )


def digits_for(value: float, difference: float) -> int:
    """Compute the number of digits of a value that show a difference from it; 4 to 12.

    >>> digits_for(54006.37, 0.026), digits_for(61.4, 0.9), format_bound(54006.3683, 7)
    (7, 4, '54,006.37')
    """
    if not value or not difference:
        return 4
    return min(max(4, _decimal_exponent(value) - _decimal_exponent(difference) + 1), 12)


def format_change(value: float) -> str:
    """Format a difference with its sign.

    >>> format_change(3.14159), format_change(-20.0), format_change(0.0)
    ('+3.14', '−20', '0')
    """
    return "+" * (value > 0) + format_number(value, 3)


def format_percent(fraction: float) -> str:
    """Format a fraction in percent with two digits.

    >>> format_percent(0.0345), format_percent(0.5), format_percent(0.0000012)
    ('3.5%', '50%', 'less than 0.01%')
    """
    if not math.isfinite(fraction):
        return "–"
    if 0 < abs(fraction) < 0.0001:
        return "less than 0.01%"
    magnitude = abs(100 * fraction)
    digits = 0 if magnitude >= 10 or magnitude == 0 else 1 if magnitude >= 1 else 2
    return f"{100 * fraction:.{digits}f}%".replace("-", "−")


def format_bound_percent(fraction: float) -> str:
    """Format a proven fraction in percent with two digits, rounded up.

    >>> format_bound_percent(0.00872), format_bound_percent(0.1125), format_bound_percent(1.2e-10)
    ('0.88%', '12%', '0.0001%')
    """
    if fraction <= 0:
        return "0%"
    if not math.isfinite(fraction):
        return "–"
    decimals = min(4, max(0, 1 - _decimal_exponent(100 * fraction)))
    text = f"{_round_up(100 * fraction, decimals):,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if decimals else text) + "%"


def format_column(
    values: Sequence[float | None], *, round_up: Collection[int] = (), digits: int = 7
) -> list[str]:
    """Format a column with the same decimals; numbers at ``round_up`` are rounded up.

    >>> format_column([204.7412345, 9.5, None]), format_column([42235.3512])
    (['204.7412', '9.5000', ''], ['42,235.35'])
    >>> format_column([204.7412345, 204.7412345], round_up=[1])
    ['204.7412', '204.7413']
    """
    largest = max((abs(x) for x in values if x is not None and math.isfinite(x)), default=0.0)
    if largest and not 1e-3 <= largest < 1e10:
        decimals, number_format = 5 - _decimal_exponent(largest), ".6g"
    else:
        exponent = max(0, _decimal_exponent(largest)) if largest else 0
        decimals = min(digits - 3, max(0, digits - 1 - exponent))
        number_format = f",.{decimals}f"
    return [
        ""
        if x is None
        else format((_round_up(x, decimals) if i in round_up else x) + 0.0, number_format)
        for i, x in enumerate(values)
    ]


def format_two_stderrs(stderrs: Iterable[float | None]) -> list[str]:
    """Format two standard errors to two digits, as they follow ±; empty for None.

    >>> format_two_stderrs([0.0312, None, 88.6])
    ['0.062', '', '177']
    """
    return ["" if x is None else format_number(2 * x, 2) for x in stderrs]


def format_lead(difference: float, stderr: float, unit: str | None = None) -> str:
    """Format the lead of one policy over another, and whether it may be chance.

    >>> format_lead(46.2, 12.1)
    'by 46.2 ± 24 (two standard errors)'
    >>> format_lead(176.2, 88.6, "£")
    'by £176 ± 177 (two standard errors), which may be chance'
    """
    caveat = ", which may be chance" * (difference < 2 * stderr)
    interval = f"{format_number(difference, 3)} ± {format_number(2 * stderr, 2)}"
    return f"by {format_with_unit(interval, unit)} (two standard errors){caveat}"


def format_truncated(value: float | None, unit: int = 1) -> str:
    """Format a number as the paper prints it: truncated, in units; a dash for None.

    >>> format_truncated(204.74), format_truncated(42235.3, 1000), format_truncated(None)
    ('204', '42', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    return f"{math.trunc(value / unit):,}"


def _decimal_exponent(value: float) -> int:
    """Compute the power of ten of the first digit."""
    return math.floor(math.log10(abs(value)))


def _round_up(value: float, decimals: int) -> float:
    """Round up to ``decimals`` decimals; if negative, to a multiple of a power of ten."""
    if not math.isfinite(value):
        return value
    unit = 10.0 ** min(decimals, 300)
    # never a thousandth of the last digit below, however large the value
    return math.ceil(value * unit - min(ROUNDING_RTOL * abs(value * unit), 1e-3)) / unit


# ---------------------------------------------------------------------- sizes and times
def format_bytes(nbytes: int) -> str:
    """Format a number of bytes with its unit.

    >>> format_bytes(640), format_bytes(3_200_000)
    ('640 B', '3.2 MB')
    """
    power = next((i for i in range(4) if nbytes < 1000 ** (i + 1)), 4)
    return f"{nbytes / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def format_seconds(seconds: float) -> str:
    """Format seconds without their unit; with milliseconds if they are few.

    >>> format_seconds(0.0123), format_seconds(4180.2)
    ('0.012', '4,180')
    """
    return f"{seconds:.3f}" if seconds < 100 else f"{seconds:,.0f}"


def format_duration(seconds: float) -> str:
    """Format seconds with a unit: ms, s, min or hours.

    >>> format_duration(0.0004), format_duration(0.25), format_duration(4180)
    ('0.4 ms', '250 ms', '69.7 min')
    >>> format_duration(19495)
    '5.4 hours'
    """
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


# ---------------------------------------------------------------------- notebooks
def render_facts(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Render a title and a table of names and texts as HTML.

    >>> render_facts("a < b", [])
    '<div><b>a &lt; b</b><table></table></div>'
    """
    align = 'style="text-align:left"'
    html_rows = (
        f'<tr><th scope="row" {align}>{escape(name)}</th><td {align}>{escape(fact)}</td></tr>'
        for name, fact in rows
    )
    return f"<div><b>{escape(title)}</b><table>{''.join(html_rows)}</table></div>"


def render_frame(title: str, frame: pd.DataFrame) -> str:
    """Render a title and a data frame as HTML."""
    html_table = frame.to_html(index=False, na_rep="", float_format=format_number, border=0)
    return f"<div><b>{escape(title)}</b>{html_table}</div>"
