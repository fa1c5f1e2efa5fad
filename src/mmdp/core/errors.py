"""Errors and warnings: InputError says what is wrong and how to correct it.

:func:`check_memory` refuses arrays that do not fit into memory before they are allocated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from mmdp.core.text import clip_middle, format_bytes, join_or


class Remedy:
    """An argument that helps, with the values it may take and the verb in front of it.

    Python words it as below. The command line names its own option, or leaves the remedy out
    if the command has none.

    >>> print(Remedy("normalize", True, verb="load with"))
    load with normalize=True
    >>> print(Remedy("duplicates", "last", "sum"))
    pass duplicates='last' or 'sum'
    """

    def __init__(self, argument: str, *values: object, verb: str = "pass") -> None:
        self.argument, self.values, self.verb = argument, values, verb

    def __str__(self) -> str:
        if self.argument.endswith("()"):  # a function of Python
            return f"{self.verb} {self.argument}"
        return f"{self.verb} {self.argument}={join_or(map(repr, self.values))}"


class InputError(ValueError):
    """Bad input: what is wrong and where, and remedies, each a sentence or an argument.

    The command line prints it in one line and exits with status 2.

    >>> print(InputError("rows sum to 0.9", ["correct them", Remedy("normalize", True)]))
    rows sum to 0.9; correct them, or pass normalize=True
    """

    def __init__(self, message: str, remedies: Iterable[str | Remedy] = ()) -> None:
        super().__init__(message)
        self.message, self.remedies = message, tuple(remedies)

    def format_message(self, format_remedy: Callable[[Remedy], str | None] = str) -> str:
        """Format the message; ``format_remedy`` returns a text, or None to leave a remedy out."""
        phrases = [x if isinstance(x, str) else format_remedy(x) for x in self.remedies]
        remedy_text = join_or(filter(None, phrases), ", or ")
        parts = filter(None, [clip_middle(self.message), clip_middle(remedy_text)])
        return " ".join("; ".join(parts).splitlines())

    def with_location(self, location: object) -> Self:
        """Return the same error with a location, such as a file, in front."""
        return type(self)(f"{location}: {self.message}", self.remedies)

    def __str__(self) -> str:
        return self.format_message()


class NotNormalizedError(InputError):
    """Probabilities in an array do not sum to 1."""

    def __init__(self, message: str, remedies: Iterable[str | Remedy] = (), name: str = "") -> None:
        division = f"divide by the sum: {name} / np.sum({name}, axis=-1, keepdims=True)"
        super().__init__(message, remedies or [division])

    def for_file(self) -> InputError:
        """Return the error for probabilities that are read from a file."""
        remedy = Remedy("normalize", True, verb="load with")
        return InputError(self.message, ["divide by the sum", remedy])


def describe_missing(path: Path) -> str:
    """Describe why a path is no file that can be read."""
    return (
        f"{path} is a folder; give a file"
        if path.is_dir()
        else f"{path}: no such file; check the path"
    )


class MMDPWarning(UserWarning):
    """Base class of the warnings of mmdp."""


class UnlikelyDataWarning(MMDPWarning):
    """The observations have almost no probability in any model."""


class FileNotWrittenWarning(MMDPWarning):
    """The result is computed, but its file could not be written in full."""


class LostProcessError(RuntimeError):
    """Another process of a distributed solve has ended, so this one cannot go on."""


class MemoryLimitError(InputError):
    """An operation would need far more memory than its input; it was not attempted."""


# ---------------------------------------------------------------------- memory
def memory_here() -> int:
    """Get the bytes of memory that this process may use."""
    try:
        sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):  # this system does not say
        sizes = [2**40]
    with suppress(OSError, ValueError):
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(ImportError, OSError):
        import resource  # not on every system

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        sizes += [] if limit == resource.RLIM_INFINITY else [limit]
    return min(sizes)


def check_memory(
    size: int, description: str, remedies: Iterable[str | Remedy] = (), models: int = 0
) -> None:
    """Refuse arrays of ``size`` bytes that do not fit next to ``models`` bytes of models."""
    memory_limit = memory_here()
    if size + models > memory_limit:
        more = f" on top of the {format_bytes(models)} of the models" if models else ""
        raise MemoryLimitError(
            f"{description} would take {format_bytes(size)}{more}; this machine has "
            f"{format_bytes(memory_limit)}",
            remedies,
        )
