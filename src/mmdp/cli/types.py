"""Types of options: what they accept, and what the shell completes."""

from __future__ import annotations

import inspect
import json
import math
import os
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
from click.shell_completion import CompletionItem

from mmdp.core.arguments import Seconds
from mmdp.core.errors import InputError
from mmdp.core.kernels import Backend
from mmdp.core.methods import METHODS, Method
from mmdp.core.objectives import OBJECTIVES, Objective, as_objective
from mmdp.core.policies import POLICY_CLASSES, PolicyClass
from mmdp.core.text import did_you_mean, join_or


class TextParam(click.ParamType[Any]):
    """What ``parse`` makes of a text; one that raises ValueError is refused.

    The shell completes ``words``, given or by their place such as
    ``"mmdp.data.domains:DOMAINS"``. With a ``role`` they are names, and no other is accepted. A
    repeated option gives a list, or a mapping if ``parse`` gives pairs.
    """

    name = "text"

    def __init__(
        self,
        metavar: str,
        parse: Callable[[str], object] = str,
        *,
        words: Iterable[str] | str = (),
        role: str = "",
        is_repeated: bool = False,
        expected: str = "",
    ) -> None:
        self.metavar, self.parse, self.expected = metavar, parse, expected or metavar
        self.words, self.role, self.is_repeated = words, role, is_repeated

    def list_words(self) -> list[str]:
        """List what the shell completes."""
        return [*(pkgutil.resolve_name(self.words) if isinstance(self.words, str) else self.words)]

    def describe(self) -> str:
        """Describe the type as the help does."""
        if self.role:
            return f"One of {join_or(self.list_words())}."
        return "May be given several times." if self.is_repeated else ""

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self.role:
            check_name(self.role, value, self.list_words())
        try:
            return self.parse(value)
        except InputError:
            raise
        except ValueError:
            raise InputError(f"{param.opts[0]} {value!r}: expected {self.expected}") from None

    def collect(self, ctx: click.Context, param: click.Parameter, values: Sequence[Any]) -> object:
        """Combine the values of a repeated option; None if there are none."""
        if not values or not isinstance(values[0], tuple):
            return list(values) or None
        pairs = dict(values)
        if len(pairs) < len(values):
            raise InputError(f"{param.opts[0]} has a name twice; give each once")
        return pairs

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        prefix, comma, last_word = incomplete.rpartition(",")
        words = [word for word in self.list_words() if word.startswith(last_word)]
        return [CompletionItem(f"{prefix}{comma}{word}") for word in words]


def make_keyword_type(*words: str) -> TextParam:
    """Make the type of an option that is one of some words."""
    return TextParam("|".join(words), words=words)


def check_name(role: str, name: str, known_names: Iterable[str]) -> None:
    """Refuse a name that is not known, with the one that it resembles."""
    names = list(known_names)
    if name not in names:
        raise InputError(
            f"no {role} is called {did_you_mean(name, names)}; choose {join_or(names)}"
        )


def find_named(
    role: str,
    registry: Mapping[str, Callable[..., Any]],
    name: str,
    options: Iterable[str] = (),
) -> Callable[..., Any]:
    """Find the method, policy class or domain of that name, which must have these options."""
    check_name(role, name, registry)
    for option in options:
        check_name(f"option of {name}", option, inspect.signature(registry[name]).parameters)
    return registry[name]


# ---------------------------------------------------------------- texts
def _parse_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        check_name("method", name, METHODS)
    return names


def _parse_range(text: str) -> range:
    """Whole numbers from one to another: ``1-8``; a single one stands for itself."""
    first, _, last = text.partition("-")
    if not 1 <= int(first) <= int(last or first):
        raise ValueError
    return range(int(first), int(last or first) + 1)


def _parse_labels(text: str) -> int | list[str]:
    return int(text) if text.isdigit() else [label.strip() for label in text.split(",")]


def _parse_pair(text: str) -> tuple[str, str]:
    """Parse a name and a value with = between them."""
    name, _, value = text.partition("=")
    if not (name and value):
        raise ValueError
    return name, value


def _parse_setting(text: str) -> tuple[str, object]:
    """Parse a name and a number, true, false, null or a list; any other value is a text.

    >>> [_parse_setting(x) for x in ("p=0.5", "kind=paper", "sizes=[1, 2]")]
    [('p', 0.5), ('kind', 'paper'), ('sizes', [1, 2])]
    """
    name, value = _parse_pair(text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


# ---------------------------------------------------------------- paths
class PathParam(click.Path):
    """A path; an empty one (a shell variable that is not set) is refused.

    With suffixes it is a file to write, or else a folder if ``is_folder``, which is refused now if
    it could not be written after the work.
    """

    def __init__(self, *suffixes: str, is_folder: bool = False) -> None:
        super().__init__(path_type=Path)
        self.suffixes, self.is_folder = suffixes, is_folder
        self.metavar = "FOLDER" if is_folder else "FILE"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Path:
        if not str(value):
            name = param.opts[0] if param.param_type_name == "option" else param.name.upper()
            raise InputError(f"{name} is empty; give the name of a file or folder")
        out = Path(value)
        if not (self.suffixes or self.is_folder):
            return out
        if self.suffixes and out.suffix.lower() not in self.suffixes:
            raise InputError(f"{out}: choose a name that ends in {join_or(self.suffixes)}")
        if self.suffixes and not out.parent.is_dir():
            raise InputError(f"{out}: the folder {out.parent} does not exist")
        if out.exists() and out.is_dir() != self.is_folder:
            kinds = ("file", "folder") if self.is_folder else ("folder", "file")
            raise InputError(f"{out}: is a {kinds[0]}; choose the name of a {kinds[1]}")
        if self.is_folder and out.suffix.lower() in FILE_SUFFIXES:
            raise InputError(f"{out}: expected a folder, got a file name ({out.suffix})")
        from mmdp.data.io.writing import check_writable  # which loads pandas

        return check_writable(out)


def check_output_path(values: Mapping[str, Any]) -> None:
    """Refuse a value of ``--out`` that is also read, as models or under another option."""
    if (out := values.get("out")) is None:
        return
    from mmdp.data.io.folders import is_read_with  # which loads pandas

    texts = [*map(values.get, INPUTS), *(values.get("comparators") or {}).values()]
    data = values.get("data") or values.get("target")
    is_input = out.resolve() in {Path(text).resolve() for text in filter(None, texts)}
    if is_input or (data is not None and is_read_with(out, data)):
        raise InputError(f"--out {out}: this is read, not written; choose another name")


INPUTS = ["policy", "log", "init", "checkpoint", "test_data", "groups", "features", "effects"]
FILE_SUFFIXES = (".csv", ".parquet", ".npz", ".json")
OutputFolder = Annotated[Path, PathParam(is_folder=True)]
TableFile = Annotated[Path, PathParam(".csv")]
FigureFile = Annotated[Path, PathParam(".png", ".svg")]
LeafCounts = Annotated[range, TextParam("FIRST-LAST", _parse_range)]
Settings = Annotated[dict[str, Any], TextParam("KEY=VALUE", _parse_setting, is_repeated=True)]

# ---------------------------------------------------------------- types of parameters
SECONDS = TextParam("SECONDS", float)
TYPES: dict[object, click.ParamType[Any]] = {  # by annotation; of several, the first here
    Objective: TextParam("NAME", as_objective, words=[*OBJECTIVES, "regret"]),
    Method: TextParam("NAME", role="method", words=METHODS),
    PolicyClass: TextParam("NAME", role="policy class", words=POLICY_CLASSES),
    Backend: make_keyword_type("auto", "numpy", "numba", "jax"),
    Seconds: SECONDS,
    Sequence[float]: TextParam("X,Y,...", lambda text: [float(x) for x in text.split(",")]),
    Iterable[object]: TextParam("N|A,B,...", _parse_labels),
    Path: PathParam(),
    os.PathLike[str]: PathParam(),
    bool: click.BOOL,
    int: click.INT,
    float: click.FLOAT,
    str: TextParam("TEXT"),
}
TYPES_BY_NAME: dict[str, click.ParamType[Any]] = {  # of those whose annotations say too little
    "absorbing": TextParam("STATE", is_repeated=True),
    "columns": TextParam("ROLE=NAME", _parse_pair, is_repeated=True),
    "comparators": TextParam("NAME=POLICY", _parse_pair, is_repeated=True),
    "domains": TextParam("NAME", words="mmdp.insight.paper.cases:CASES", is_repeated=True),
    "features": PathParam(),
    "groups": PathParam(),
    "horizon": TextParam(
        "N|inf",
        lambda text: math.inf if text == "inf" else int(text),
        expected="a whole number or inf",
    ),
    "initial": TextParam("STATE|A=P,B=Q"),
    "methods": TextParam("A,B,...", _parse_names, words=METHODS),
    "n_init": TextParam("auto|N", lambda text: text if text == "auto" else int(text)),
    "rewards": TextParam("average|normal|FILE", words=("average", "normal")),
    "time_limit": SECONDS,
    "within_cycle": TextParam(
        "none|half-cycle|simpson|A,B,...",
        lambda text: text.split(",") if "," in text else text,
        words=("none", "half-cycle", "simpson"),
    ),
}
