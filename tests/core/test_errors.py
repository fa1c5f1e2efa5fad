"""Errors carry their remedies as data."""

from __future__ import annotations

import copy
import pickle

import pytest

from mmdp.core.errors import InputError, MemoryLimitError, Remedy


def test_remedies_are_joined_to_one_sentence() -> None:
    error = InputError("too large", ["merge states", Remedy("support", "seen"), "wait"])
    assert str(error) == "too large; merge states, pass support='seen', or wait"
    assert str(InputError("too large")) == "too large"
    assert [x.argument for x in error.remedies if isinstance(x, Remedy)] == ["support"]


def test_a_remedy_that_cannot_be_worded_is_left_out() -> None:
    error = InputError("no action", [Remedy("allowed"), Remedy("dead_ends", "absorb")])
    assert (
        error.format_message(lambda x: None if x.argument == "allowed" else "do it")
        == "no action; do it"
    )
    assert error.format_message(lambda _: None) == "no action"


@pytest.mark.parametrize("error_type", [InputError, MemoryLimitError])
def test_location_and_copies_keep_the_remedies(error_type: type[InputError]) -> None:
    error = error_type("rows sum to 0.9", [Remedy("normalize", True, verb="load with")])
    for twin in (
        error.with_location("m.csv"),
        pickle.loads(pickle.dumps(error.with_location("m.csv"))),
        copy.copy(error.with_location("m.csv")),
    ):
        assert type(twin) is error_type
        assert str(twin) == "m.csv: rows sum to 0.9; load with normalize=True"
        assert twin.format_message(lambda x: f"{x.argument} {x.values}").endswith(
            "; normalize (True,)"
        )
