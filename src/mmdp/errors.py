"""The one error type for bad input: what is wrong, where, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from mmdp.words import clipped, either


class Remedy:
    """An argument that helps, with the values it may take and the verb in front of it.

    Python words it as below. The command line names its own option, or leaves the remedy out
    if the command has none.

    >>> print(Remedy("normalize", True, do="load with"))
    load with normalize=True
    >>> print(Remedy("duplicates", "last", "sum"))
    pass duplicates='last' or 'sum'
    """

    def __init__(self, argument: str, *values: object, do: str = "pass") -> None:
        self.argument, self.values, self.do = argument, values, do

    def __str__(self) -> str:
        return f"{self.do} {self.argument}={either(map(repr, self.values))}"


class InputError(ValueError):
    """Bad input: what is wrong and where, and remedies, each a sentence or an argument.

    The command line prints it in one line and exits with status 2.

    >>> print(InputError("rows sum to 0.9", ["correct them", Remedy("normalize", True)]))
    rows sum to 0.9; correct them, or pass normalize=True
    """

    def __init__(self, problem: str, remedies: Iterable[str | Remedy] = ()) -> None:
        super().__init__(problem)
        self.problem, self.remedies = problem, tuple(remedies)

    def text(self, phrase: Callable[[Remedy], str | None] = str) -> str:
        """The message; ``phrase`` words a remedy, or returns None to leave it out."""
        found = [x if isinstance(x, str) else phrase(x) for x in self.remedies]
        remedies = either(filter(None, found), ", or ")
        lines = filter(None, [clipped(self.problem), clipped(remedies)])
        return " ".join("; ".join(lines).splitlines())

    def at(self, place: object) -> Self:
        """The same error with the place in front."""
        return type(self)(f"{place}: {self.problem}", self.remedies)

    def __str__(self) -> str:
        return self.text()


class MMDPWarning(UserWarning):
    """A result is at hand, and something about it should be known."""


class UnlikelyData(MMDPWarning):
    """What was seen had almost no chance in any model."""


class NotWritten(MMDPWarning):
    """A result is at hand, but the file that was to keep it has not all of it, or none."""


class LostProcess(RuntimeError):
    """Another process of a distributed solve has ended, so this one cannot go on."""


class MemoryLimitError(InputError):
    """An operation would need far more memory than its input; it was not attempted."""
