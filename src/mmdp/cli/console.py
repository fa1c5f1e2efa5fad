"""What commands read and write: DATA and policies, and facts, tables and JSON on the terminal.

DATA are models from a file or folder, or from a Python file (FILE.py:NAME).
"""

from __future__ import annotations

import enum
import inspect
import json
import math
import runpy
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import mmdp
from mmdp import MMDP
from mmdp.cli.signatures import take_from
from mmdp.cli.types import Settings, check_name
from mmdp.core.errors import InputError, Remedy, describe_missing
from mmdp.core.policies import Policy
from mmdp.core.text import clip_middle
from mmdp.core.timing import progress_line

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

EXIT_INTERRUPTED = 130  # exit status after Ctrl-C
EXIT_FAILED = 1  # exit status if a part failed, or a result is not where it was to be written
ADVANCED = "load_option discount initial split"  # options of DATA, for --help-all


@take_from("mmdp.data.io.models:load discount initial")
class TrainingData:
    """Training models to read, which may have test models beside them.

    Parameters
    ----------
    path
        The models: a folder, a file or FILE.py:NAME; see mmdp --help.
    load_option
        How to read files that are not as they should be: arguments of mmdp.load, such as
        normalize=true, duplicates=last, missing_actions=zero, dead_ends=absorb,
        extra_columns=ignore, sidecars=false or compat=cadp.
    """

    def __init__(self, path: Path, *, load_option: Settings | None = None, **options: Any) -> None:
        self.path, self.split = path, options.pop("split", "train")
        self.options: dict[str, Any] = options | (load_option or {})

    @property
    def is_python(self) -> bool:
        """Whether the models are those of a Python file."""
        return ".py" in (self.path.suffix, Path(str(self.path).rpartition(":")[0]).suffix)

    def read(self) -> MMDP:
        """Read the models; those of a Python file may get another discount or first state."""
        if not self.is_python:
            return mmdp.load(self.path, split=self.split, **self.options)
        models = dict(zip(("train", "test"), _load_python(self.path), strict=False))
        if self.split not in models:
            remedy = Remedy("split", verb="leave out")
            message = f"{self.path}: no {self.split} models; write a pair (train, test)"
            raise InputError(message, [remedy])
        for name in self.options.keys() - {"discount", "initial"}:
            raise InputError(f"{name} is for files of tables; {self.path} builds its models")
        model = models[self.split]
        return model.replace(**self.options) if self.options else model

    def read_test(self, train: MMDP) -> MMDP | None:
        """Read the test models that go with the training models, if any, in their order."""
        if not self.has_test:
            return None
        is_table = self.path.is_file() and self.path.stem == "training"
        path = self.path.parent if is_table else self.path
        return self.at(path, split="test").read().reorder_like(train)

    @property
    def has_test(self) -> bool:
        """Whether there are test models beside the training models."""
        if self.is_python:
            return len(_load_python(self.path)) == 2
        path = self.path
        folder = path.parent if path.is_file() and path.stem == "training" else path
        return any((folder / f"test.{suffix}").is_file() for suffix in ("csv", "parquet"))

    def at(self, path: Path, **options: Any) -> TrainingData:
        """Return the data at another path, read in the same way but for these options."""
        return TrainingData(path, **self.options | options)

    def __str__(self) -> str:
        return str(self.path)


@take_from("mmdp.data.io.models:load split discount initial")
class Data(TrainingData):
    __doc__ = TrainingData.__doc__


@lru_cache(maxsize=1)  # train and test models come from one run
def _load_python(path: Path) -> tuple[MMDP, ...]:
    """Load what a Python file has under a name: models, or train and test models."""
    text, _, name = str(path).rpartition(":")
    file = Path(text)
    if name.endswith(".py"):
        raise InputError(f"{path}: name the model in it, like {path}:model")
    if not file.is_file():
        raise InputError(describe_missing(file))
    sys.path.insert(0, str(file.parent))  # as Python does for a file that it runs
    try:
        with progress_line.open(file.name):
            namespace = runpy.run_path(str(file))
        model_types = (MMDP, mmdp.domains.Domain, tuple)
        if inspect.isfunction(namespace.get(name)):
            raise InputError(f"{name} is a function; write model = {name}(...) and name model")
        check_name("model", name, [k for k, x in namespace.items() if isinstance(x, model_types)])
    except InputError as error:
        raise error.with_location(file) from None
    except Exception as error:
        raise InputError(f"{file} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent))
    value = namespace[name]
    models = (value,) if isinstance(value, MMDP) else tuple(value)
    if len(models) not in (1, 2) or not all(isinstance(x, MMDP) for x in models):
        raise InputError(f"{file}: {name} is no MMDP and no pair of train and test models")
    return models


# ---------------------------------------------------------------- policies and results
def repeat_policy(policy: Policy, model: MMDP, horizon: float | None) -> Policy:
    """Repeat a stationary policy over the horizon, if that is finite."""
    n_times = model.horizon if horizon is None else horizon
    is_repeated = policy.horizon == math.inf and n_times not in (None, math.inf)
    return policy.to_markov(int(n_times)) if is_repeated else policy  # type: ignore[arg-type]


def check_order(policy: Path, data: TrainingData | None) -> None:
    """Refuse models in the place of the policy, and the policy in theirs."""
    if data is None or not data.path.is_file():
        return
    is_policy = data.path.suffix == ".json"
    if data.path.suffix == ".csv" and not (policy.is_file() and policy.suffix == ".csv"):
        from mmdp.data.io.reading import read_header  # which loads pandas
        from mmdp.data.io.tables import is_policy_header

        is_policy = is_policy_header(read_header(data.path))
    if policy.is_dir() or is_policy:
        name = click.get_current_context().info_name
        raise InputError(f"the policy comes first: mmdp {name} {data.path} {policy}")


def read_comparators(strategies: Mapping[str, str], model: MMDP) -> dict[str, Policy | str]:
    """Read the policies of ``--comparator``: a policy file, or the label of an action."""
    result: dict[str, Policy | str] = {**strategies}
    for name, text in strategies.items():
        is_file = Path(text).suffix in (".csv", ".json") or Path(text).is_file()
        if is_file and text not in model.action_labels:
            result[name] = mmdp.load_policy(text, model)
    return result


def try_to_write(write: Callable[[Path], object], path: Path | None) -> Path | None:
    """Write a result of long work and return its path; None if that failed.

    The command then prints the result, so that a full disk does not lose it.
    """
    if path is None:
        return None
    try:
        write(path)
    except InputError as error:
        print_stderr(f"{error}; it is printed instead")
        return None
    return path


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table, whole or not at all."""
    from mmdp.data.io.writing import format_csv, write_atomic

    write_atomic(path, format_csv(frame))


# ---------------------------------------------------------------- the terminal
def print_stderr(message: str) -> None:
    """Print one line on stderr."""
    progress_line.wipe()
    print("mmdp: " + clip_middle(" ".join(message.split()), 1300), file=sys.stderr, flush=True)


def _print_trimmed(table: Table) -> None:
    """Print without the blanks that rich fills lines with."""
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_model(data: object, model: object) -> None:
    """Print which models the figures below are about."""
    print(f"{data}\n{textwrap.fill(str(model), 80)}")


def print_facts(title: object, facts: Iterable[tuple[str, str]]) -> None:
    """Print a title and one line per fact, the names in a column."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, fact in facts:
        grid.add_row(f"  {name}", fact)
    print(title)
    _print_trimmed(grid)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, n_left: int = 1) -> None:
    """Print a plain table; the first ``n_left`` columns are text, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < n_left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _print_trimmed(table)


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document on stdout, a line for each top-level key; never NaN."""
    lines = [f'  "{key}": {json.dumps(to_jsonable(value))}' for key, value in document.items()]
    print("{\n" + ",\n".join(lines) + "\n}")


def pick(source: object, names: str) -> dict[str, Any]:
    """Return attributes of an object by their names, for a JSON document."""
    return {name: getattr(source, name) for name in names.split()}


def to_jsonable(value: Any) -> object:
    """Convert a value to JSON's types; numbers that JSON lacks become null.

    >>> from pathlib import Path
    >>> to_jsonable({"a": (1.5, float("nan")), "b": Path("x")})
    {'a': [1.5, None], 'b': 'x'}
    """

    def convert(x: Any) -> object:
        if isinstance(x, Mapping):
            return dict(x)
        return (
            x.tolist() if hasattr(x, "tolist") else x.name if isinstance(x, enum.Enum) else str(x)
        )

    return json.loads(json.dumps(value, default=convert), parse_constant=lambda _: None)
