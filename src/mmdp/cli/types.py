"""Types of options: what they accept, and what the shell completes.

An option that could not be used is refused when it is read, before any work.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from mmdp.cli.standard_input import read_standard_input
from mmdp.core.errors import InputError
from mmdp.core.objectives import OBJECTIVES, as_objective
from mmdp.core.text import join_or


class KeywordParam(click.ParamType[Any]):
    """One of some words, which the shell completes. The library refuses others."""

    name = "word"

    def __init__(self, *keywords: str) -> None:
        self.keywords: Sequence[str] = keywords

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "|".join(self.keywords)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [
            CompletionItem(keyword) for keyword in self.keywords if keyword.startswith(incomplete)
        ]


class NameParam(KeywordParam):
    """One of some names; another is refused with the name that it resembles."""

    def __init__(self, role: str, known_names: Iterable[str]) -> None:
        super().__init__(*known_names)
        self.role = role

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return (
            value if value in self.keywords else raise_unknown_name(self.role, value, self.keywords)
        )


class NamesParam(NameParam):
    """Some of these names, separated by commas."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        names = dict.fromkeys(name.strip() for name in value.split(",") if name.strip())
        return tuple(super(NamesParam, self).convert(name, param, ctx) for name in names)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        prefix, comma, last_name = incomplete.rpartition(",")
        items = super().shell_complete(ctx, param, last_name)
        return [CompletionItem(f"{prefix}{comma}{item.value}") for item in items]


def raise_unknown_name(role: str, name: str, known_names: Iterable[str]) -> NoReturn:
    names = list(known_names)
    close_matches = difflib.get_close_matches(name.lower(), names, n=1)
    hint = (
        f"did you mean {close_matches[0]!r}?"
        if close_matches
        else f"choose one of {', '.join(names)}"
    )
    raise InputError(f"no {role} is called {name!r}; {hint}")


class ObjectiveParam(KeywordParam):
    """An objective, such as ``cvar:0.1``."""

    def __init__(self) -> None:
        super().__init__(*OBJECTIVES, "regret")

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return as_objective(value)


class CountParam(click.ParamType[int | str]):
    """A number, or ``auto``."""

    name = "count"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        if value == "auto":
            return "auto"
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a whole number nor auto", param, ctx)


class HorizonParam(click.ParamType[float]):
    """A number of decisions, or ``inf`` if there is no last one."""

    name = "n"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if str(value) in ("inf", "infinite"):
            return math.inf
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a whole number nor inf", param, ctx)


class SecondsParam(click.ParamType[float]):
    """A positive number of seconds."""

    name = "s"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        seconds = click.FLOAT.convert(value, param, ctx)
        if not seconds > 0:
            raise InputError(
                f"{param.opts[0]} must be a positive number of seconds, not {seconds:g}"
            )
        return seconds


class NumbersParam(click.ParamType[list[float]]):
    """Numbers separated by commas."""

    name = "a,b,..."

    def __init__(self, example: str) -> None:
        self.example = example

    def convert(self, value: Any, param: Any, ctx: Any) -> list[float]:
        try:
            return [float(x) for x in value.split(",")]
        except ValueError:
            raise InputError(
                f"{param.opts[0]} {value!r}: give numbers separated by commas, e.g. {self.example}"
            ) from None


class RangeParam(click.ParamType[range]):
    """Whole numbers from one to another: ``1-8``; a single one stands for itself."""

    name = "a-b"

    def convert(self, value: Any, param: Any, ctx: Any) -> range:
        first, _, last = str(value).partition("-")
        try:
            numbers = range(int(first), int(last or first) + 1)
        except ValueError:
            numbers = range(0)
        if not numbers or numbers[0] < 1:
            raise InputError(
                f"{param.opts[0]} {value!r}: give the first and the last, from 1 on, e.g. 1-8"
            )
        return numbers


class LabelsParam(click.ParamType[int | list[str]]):
    """A number, or labels separated by commas."""

    name = "n|a,b,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> int | list[str]:
        if value.isdigit():
            return int(value)
        return [label.strip() for label in value.split(",")]


class DistributionParam(click.ParamType[dict[str, float]]):
    """A label, or labels with their shares: ``low=0.5,high=0.5``."""

    name = "state|a=p,b=q"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, float]:
        if not isinstance(value, str):
            return value
        if "=" not in value:
            return {value: 1.0}
        try:
            parts = [part.rpartition("=") for part in value.split(",")]
            return {label.strip(): float(probability) for label, _, probability in parts}
        except ValueError:
            raise InputError(
                f"{param.opts[0]} {value!r}: give a state, or shares like low=0.5,high=0.5"
            ) from None


class PathParam(click.Path):
    """A path; an empty one (a shell variable that is not set) is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not str(value):
            name = param.opts[0] if param.param_type_name == "option" else param.name.upper()
            raise InputError(f"{name} is empty; give the name of a file or folder")
        return Path(value)


class InputPathParam(PathParam):
    """A path to read, or ``-`` for standard input."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return read_standard_input() if str(value) == "-" else super().convert(value, param, ctx)


PATH, INPUT = PathParam(), InputPathParam()


def _check_writable(out: Path) -> Path:
    from mmdp.data.io.writing import check_writable  # which loads pandas

    return check_writable(out)


class OutputFileParam(PathParam):
    """A file to write, refused now if it could not be written after the work."""

    def __init__(self, *suffixes: str) -> None:
        super().__init__()
        self.suffixes = suffixes

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        out = super().convert(value, param, ctx)
        if out.suffix.lower() not in self.suffixes:
            raise InputError(f"{out}: choose a name that ends in {join_or(self.suffixes)}")
        if not out.parent.is_dir():
            raise InputError(f"{out}: the folder {out.parent} does not exist")
        if out.is_dir():
            raise InputError(f"{out}: is a folder; choose the name of a file")
        return _check_writable(out)


class OutputFolderParam(PathParam):
    """A folder to write; a file, or what is named like one, is refused."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        out = super().convert(value, param, ctx)
        if out.exists() and not out.is_dir():
            raise InputError(f"{out}: is a file; choose the name of a folder")
        if out.suffix.lower() in (".csv", ".parquet", ".npz", ".json") and not out.exists():
            raise InputError(f"{out}: expected a folder, got a file name ({out.suffix})")
        return _check_writable(out)
