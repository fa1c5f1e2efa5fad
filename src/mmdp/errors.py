"""The one error type for bad input, with helpers that name the place."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: the message says what is wrong, where, and what to do.

    The command line prints it in one line and exits with status 2.
    """


class MemoryLimitError(InputError):
    """An operation would need far more memory than its input; it was not attempted."""


def shown(count: int, noun: str) -> str:
    """``3 rows``, ``1 row``: a count with its noun in the right number.

    >>> shown(1, "row"), shown(3, "row")
    ('1 row', '3 rows')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
