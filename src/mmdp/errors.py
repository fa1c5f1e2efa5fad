"""The one error type for bad input."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: the message says what is wrong, where, and what to do.

    The command line prints it in one line and exits with status 2.
    """


class MemoryLimitError(InputError):
    """An operation would need far more memory than its input; it was not attempted."""
