"""Number formats: what was proven is never printed smaller than it is."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdp.words import at_most, at_most_percent, figures, number

SIZES = st.floats(1e-9, 1e14)


def read(text: str) -> float:
    return float(text.replace("−", "-").replace(",", "").rstrip("%"))


@given(SIZES, st.integers(2, 8), st.sampled_from([-1, 1]))
def test_a_bound_is_rounded_up_and_by_less_than_a_digit(size: float, digits: int, sign: int):
    value = sign * size
    printed = read(at_most(value, digits))
    assert printed >= value * (1 - sign * 1e-9)
    assert printed - value <= 10.0 ** (1 - digits) * size * 1.001 or printed - value < 1


@given(st.floats(1e-9, 50.0))
def test_a_gap_is_rounded_up_to_two_digits(share: float):
    printed = read(at_most_percent(share))
    assert 100 * share * (1 - 1e-9) <= printed <= max(110 * share, 100 * share + 1e-4) * (1 + 1e-9)


@given(st.floats(-1e12, 1e12), SIZES)
def test_a_bound_in_a_column_is_rounded_up(value: float, more: float):
    bound = value + more
    _, printed = figures([value, bound], up=[1])
    assert read(printed) >= bound - 1e-9 * abs(bound)


@pytest.mark.parametrize(
    ("share", "text"), [(0.1125, "12%"), (0.02, "2%"), (0.9, "90%"), (0.0, "0%"), (-1e-12, "0%")]
)
def test_gaps(share: float, text: str):
    assert at_most_percent(share) == text
    assert at_most_percent(share * (1 + 1e-14)) == text  # rounding errors are no more gap


def test_round_numbers_stay():
    assert at_most(0.3, 4) == number(0.3, 4)
    assert at_most(0.1 + 0.2, 4) == "0.3000"
    assert at_most(float("inf")) == "–"


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 1e9, 1e11])
def test_what_is_proven_is_never_printed_below_what_is_not(size: float) -> None:
    """A value and a bound that meet read the same, or the bound reads as the larger one."""
    random = Random(0)
    for value in (random.random() * size for _ in range(200)):
        assert read(at_most(value, 3)) >= read(number(value, 3)), value
