"""Types of options: what they accept, and what the shell completes.

An option that could not be used is refused when it is read, before any work.
"""

from __future__ import annotations

import difflib
import math
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
from click.shell_completion import CompletionItem

from mmdp.cli.standard_input import read_standard_input
from mmdp.core.errors import InputError
from mmdp.core.objectives import OBJECTIVES, as_objective
from mmdp.core.text import join_or
from mmdp.core.validate import check_seed

FIXED_CLASS = "fixed"  # a policy class that is not offered: it needs actions that no option gives
PAPER_DOMAINS = ("RS", "POP", "POPS", "INV", "HIV")


class TextParam(click.ParamType[Any]):
    """What ``parse`` makes of a text; ``refusal`` is the message if it raises ValueError.

    The shell completes ``words``, given or by their place such as
    ``"mmdp.data.domains:DOMAINS"``. With a ``role`` they are names, and no other is accepted. A
    repeated option gives a list, or a mapping if ``parse`` gives pairs.
    """

    name = "text"

    def __init__(
        self,
        metavar: str,
        parse: Callable[[str], object] = str,
        refusal: str = "",
        *,
        words: Sequence[str] | str = (),
        role: str = "",
        is_repeated: bool = False,
    ) -> None:
        self.metavar, self.parse, self.refusal = metavar, parse, refusal
        self.words, self.role, self.is_repeated = words, role, is_repeated

    def list_words(self) -> list[str]:
        words = pkgutil.resolve_name(self.words) if isinstance(self.words, str) else self.words
        return [word for word in words if word != FIXED_CLASS]

    def describe(self) -> str:
        """Describe the type as the help does."""
        if self.role:
            return f"One of {join_or(self.list_words())}."
        return "May be given several times." if self.is_repeated else ""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.metavar if isinstance(param, click.Option) else ""

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self.role and value != FIXED_CLASS:
            check_name(self.role, value, self.list_words())
        try:
            return self.parse(value)
        except InputError:
            raise
        except ValueError:
            raise InputError(self.refusal.format(flag=param.opts[0], text=value)) from None

    def collect(self, ctx: click.Context, param: click.Parameter, values: Sequence[Any]) -> object:
        """Combine the values of a repeated option; None if there are none."""
        if not values or not isinstance(values[0], tuple):
            return list(values) or None
        pairs: dict[str, object] = {}
        for name, value in values:
            if name in pairs:
                raise InputError(f"{param.opts[0]} '{name}={value}' is named twice; give it once")
            pairs[name] = value
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


def make_numbers_type(example: str) -> TextParam:
    """Numbers separated by commas."""
    refusal = f"{{flag}} {{text!r}}: give numbers separated by commas, e.g. {example}"
    return TextParam("A,B,...", lambda text: [float(x) for x in text.split(",")], refusal)


def check_name(role: str, name: str, known_names: Iterable[str]) -> None:
    """Refuse a name that is not known, with the one that it resembles."""
    names = list(known_names)
    if name in names:
        return
    close_matches = difflib.get_close_matches(name.lower(), names, n=1)
    hint = (
        f"did you mean {close_matches[0]!r}?"
        if close_matches
        else f"choose one of {', '.join(names)}"
    )
    raise InputError(f"no {role} is called {name!r}; {hint}")


def _parse_names(text: str) -> tuple[str, ...]:
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        check_name("method", name, METHOD.list_words())
    return tuple(names)


def _parse_seed(text: str) -> int:
    check_seed(seed := int(text))
    return seed


def _parse_seconds(text: str) -> float:
    if not (seconds := float(text)) > 0:
        raise ValueError
    return seconds


def _parse_range(text: str) -> range:
    """Whole numbers from one to another: ``1-8``; a single one stands for itself."""
    first, _, last = text.partition("-")
    numbers = range(int(first), int(last or first) + 1)
    if not numbers or numbers[0] < 1:
        raise ValueError
    return numbers


def _parse_labels(text: str) -> int | list[str]:
    return int(text) if text.isdigit() else [label.strip() for label in text.split(",")]


def parse_pair(text: str) -> tuple[str, str]:
    """Parse a name and a value with = between them."""
    name, _, value = text.partition("=")
    if not (name and value):
        raise ValueError
    return name, value


# ---------------------------------------------------------------- paths
class PathParam(click.Path):
    """A path; an empty one (a shell variable that is not set) is refused.

    With suffixes it is a file to write, or else a folder if ``is_folder``, which is refused now if
    it could not be written after the work. With ``is_input`` - is standard input.
    """

    def __init__(self, *suffixes: str, is_folder: bool = False, is_input: bool = False) -> None:
        super().__init__(path_type=Path)
        self.suffixes, self.is_folder, self.is_input = suffixes, is_folder, is_input
        self.metavar = "FOLDER" if is_folder else "FILE"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Path:
        if not str(value):
            name = param.opts[0] if param.param_type_name == "option" else param.name.upper()
            raise InputError(f"{name} is empty; give the name of a file or folder")
        out, is_dir = Path(value), Path(value).is_dir()
        if self.is_input and str(value) == "-":
            return read_standard_input()
        if self.is_folder and out.exists() and not is_dir:
            raise InputError(f"{out}: is a file; choose the name of a folder")
        if self.is_folder and not is_dir and out.suffix.lower() in FILE_SUFFIXES:
            raise InputError(f"{out}: expected a folder, got a file name ({out.suffix})")
        if self.suffixes:
            if out.suffix.lower() not in self.suffixes:
                raise InputError(f"{out}: choose a name that ends in {join_or(self.suffixes)}")
            if not out.parent.is_dir():
                raise InputError(f"{out}: the folder {out.parent} does not exist")
            if is_dir:
                raise InputError(f"{out}: is a folder; choose the name of a file")
        if self.suffixes or self.is_folder:
            from mmdp.data.io.writing import check_writable  # which loads pandas

            check_writable(out)
        return out


FILE_SUFFIXES = (".csv", ".parquet", ".npz", ".json")
InputPath = Annotated[Path, PathParam(is_input=True)]
OutputFolder = Annotated[Path, PathParam(is_folder=True)]

# ---------------------------------------------------------------- types of parameters
METHOD = TextParam("NAME", role="method", words="mmdp.core.methods.registry:METHODS")
SECONDS = TextParam("S", _parse_seconds, "{flag} must be a positive number of seconds, not {text}")
LABELS = TextParam("N|A,B,...", _parse_labels)
TYPES: dict[str, click.ParamType[Any]] = {  # by annotation; of several, the first here
    "Objective": TextParam("NAME", as_objective, words=[*OBJECTIVES, "regret"]),
    "Method": METHOD,
    "PolicyClass": TextParam(
        "NAME", role="policy class", words="mmdp.core.policies:POLICY_CLASSES"
    ),
    "Backend": make_keyword_type("auto", "numpy", "numba", "jax"),
    "Seconds": SECONDS,
    "InitCount": TextParam(
        "auto|N",
        lambda text: text if text == "auto" else int(text),
        "{flag} {text!r} is neither a whole number nor auto",
    ),
    "Path": PathParam(),
    "os.PathLike[str]": PathParam(),
    "bool": click.BOOL,
    "int": click.INT,
    "PositiveInt": click.INT,
    "NonNegativeInt": click.INT,
    "float": click.FLOAT,
    "PositiveFloat": click.FLOAT,
    "str": TextParam("TEXT"),
}
TYPES_BY_NAME: dict[str, click.ParamType[Any]] = {  # of those whose annotations say too little
    "absorbing": TextParam("STATE", is_repeated=True),
    "actions": LABELS,
    "alphas": make_numbers_type("0.5,0.2,0.1"),
    "columns": TextParam(
        "ROLE=NAME", parse_pair, "{flag} {text!r} is not ROLE=NAME", is_repeated=True
    ),
    "comparators": TextParam(
        "NAME=POLICY",
        parse_pair,
        "{flag} {text!r} is not NAME=POLICY; e.g. 'never treat=wait'",
        is_repeated=True,
    ),
    "domains": TextParam("NAME", words=PAPER_DOMAINS, is_repeated=True),
    "features": PathParam(),
    "groups": PathParam(),
    "horizon": TextParam(
        "N|inf",
        lambda text: math.inf if text in ("inf", "infinite") else int(text),
        "{flag} {text!r} is neither a whole number nor inf",
    ),
    "initial": TextParam("STATE|A=P,B=Q"),
    "methods": TextParam("A,B,...", _parse_names, words="mmdp.core.methods.registry:METHODS"),
    "rewards": TextParam("average|normal|FILE", words=("average", "normal")),
    "seed": TextParam("N", _parse_seed, "{flag} {text!r} is not a whole number"),
    "split": make_keyword_type("train", "test", "true"),
    "states": LABELS,
    "time_limit": SECONDS,
    "within_cycle": TextParam(
        "none|half-cycle|simpson|A,B,...",
        lambda text: text.split(",") if "," in text else text,
        words=("none", "half-cycle", "simpson"),
    ),
    "wtp_grid": make_numbers_type("0,20000,50000"),
}
LeafCounts = Annotated[
    range,
    TextParam(
        "A-B", _parse_range, "{flag} {text!r}: give the first and the last, from 1 on, e.g. 1-8"
    ),
]
