"""Words: no bound is printed smaller than it was proven; phrases that must not come back."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdp.core.text import (
    did_you_mean,
    format_bound,
    format_bound_percent,
    format_column,
    format_number,
    format_with_unit,
)

SIZES = st.floats(1e-9, 1e14)


def parse_number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", "").rstrip("%"))


@given(SIZES, st.integers(2, 8), st.sampled_from([-1, 1]))
def test_a_bound_is_rounded_up_and_by_less_than_a_digit(size: float, digits: int, sign: int):
    value = sign * size
    printed = parse_number(format_bound(value, digits))
    assert printed >= value * (1 - sign * 1e-9)
    assert printed - value <= 10.0 ** (1 - digits) * size * 1.001 or printed - value < 1


def test_a_unit_is_written_as_it_is() -> None:
    assert format_with_unit("−1,200", r"\1\g<0>$") == r"−1,200 \1\g<0>$"


@given(st.floats(1e-9, 50.0))
def test_a_gap_is_rounded_up_to_two_digits(share: float):
    printed = parse_number(format_bound_percent(share))
    assert 100 * share * (1 - 1e-9) <= printed <= max(110 * share, 100 * share + 1e-4) * (1 + 1e-9)


@given(st.floats(-1e12, 1e12), SIZES)
def test_a_bound_in_a_column_is_rounded_up(value: float, more: float):
    bound = value + more
    _, printed = format_column([value, bound], round_up=[1])
    assert parse_number(printed) >= bound - 1e-9 * abs(bound)


@pytest.mark.parametrize(
    ("share", "text"), [(0.1125, "12%"), (0.02, "2%"), (0.9, "90%"), (0.0, "0%"), (-1e-12, "0%")]
)
def test_gaps(share: float, text: str):
    assert format_bound_percent(share) == text
    assert format_bound_percent(share * (1 + 1e-14)) == text  # rounding errors are no more gap


def test_round_numbers_stay():
    assert format_bound(0.3, 4) == format_number(0.3, 4)
    assert format_bound(0.1 + 0.2, 4) == "0.3000"
    assert format_bound(float("inf")) == "–"


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 1e9, 1e11])
def test_what_is_proven_is_never_printed_below_what_is_not(size: float) -> None:
    """A value and a bound that meet read the same, or the bound reads as the larger one."""
    random = Random(0)
    for value in (random.random() * size for _ in range(200)):
        assert parse_number(format_bound(value, 3)) >= parse_number(format_number(value, 3)), value


# ---------------------------------------------------------------------- English
ROOT = Path(__file__).parents[2]
PROSE_FILES = [
    *(path for end in ("py", "j2", "js", "css") for path in ROOT.glob(f"src/**/*.{end}")),
    *ROOT.glob("docs/*.md"),
    ROOT / "README.md",
]
PHRASES = re.compile(r"(?<![a-z])(told|so many|beside it)(?![a-z])|, and it is\b", re.IGNORECASE)
# a break in a sentence: between two strings, between two lines of a comment, or any other
BREAKS = re.compile(r"""["']\s*\n\s*f?["']|\s*\n\s*#\s*|\s+""")


def find_phrases(text: str) -> list[str]:
    """The phrases of the list in a text, names of variables included, with what is around them."""
    line = BREAKS.sub(lambda match: "" if match[0][0] in "\"'" else " ", text)
    return [line[max(0, x.start() - 30) : x.end() + 30] for x in PHRASES.finditer(line)]


@pytest.mark.parametrize(
    "text",
    [
        "price_told",
        "it is Told",
        '"so "\n    f"many"',
        "# so\n    # many",
        "x beside\n  it",
        "a discount below 1, and it is 1",
    ],
)
def test_the_list_of_phrases_is_found(text: str) -> None:
    assert len(find_phrases(text)) == 1
    assert not find_phrases("an untold story; not so, many do; besides it; and it is")


@pytest.mark.parametrize("path", PROSE_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_english_is_plain(path: Path) -> None:
    assert not find_phrases(path.read_text(encoding="utf-8"))


def test_an_unknown_name_is_not_compared_with_millions() -> None:
    names = (f"stock={i}" for i in itertools.count())
    assert did_you_mean("stok=12", names) == "'stok=12' (did you mean 'stock=12'?)"
