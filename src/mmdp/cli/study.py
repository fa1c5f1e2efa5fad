"""mmdp study: a grid of solves, described by a file."""

from __future__ import annotations

import inspect
import math
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmdp.cli import options
from mmdp.cli.console import Steps, complain, show_json, show_table
from mmdp.cli.options import (
    INTERRUPTED,
    NOT_WRITTEN,
    Loading,
    build_method,
    command,
    option,
    write_csv,
    write_somewhere,
)
from mmdp.cli.types import PATH, refuse_name
from mmdp.errors import InputError
from mmdp.methods.table import METHODS
from mmdp.policy import KINDS
from mmdp.words import clock, counted, duration, either, figures, suggested

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.study import StudyProgress

AXES = ("horizons", "methods", "objectives", "policies", "seeds")
SETTINGS = ("certify", "time_limit", "backend")
NEED_SETTINGS = {"tied": "groups", "fixed": "actions"}
MOST_ROWS = 40  # of the table that is printed
MOST_ERRORS = 8  # different ones that are printed
FAILED = 1  # exit status if a cell failed


@command(
    "mmdp study study.toml --out results",
    "mmdp study study.toml --out results --jobs 8",
    "mmdp study study.toml --out results --dask tcp://scheduler:8786",
)
@click.argument("file", type=PATH, help="The study: a .toml file.")
@options.out_folder(required=True)
@options.jobs
@option("--dask", metavar="ADDRESS", help="Compute on the workers of this Dask scheduler.")
@options.as_json
def study(file: Path, out: Path, jobs: int, dask: str | None, as_json: bool) -> int:
    """Solve every combination of models, horizons, methods and more.

    FILE says which:

    \b
      horizons = [10, 50]
      methods = ["cadp", {method = "cadp", starts = 16}]
      objectives = ["mean", "cvar:0.1"]
      policies = ["markov", {policy = "memory", nodes = 2}]
      seeds = [0, 1]
      certify = 10
      [models.river]
      domain = "riverswim"
      seed = 3
      [models.mine]
      data = "data/hiv"
      subset = 20

    A model is a domain with its options, data (with its test models, if any), or a log with the
    options of mmdp fit; subset takes its first models. Paths are relative to the folder of FILE.

    Every cell is saved in FOLDER when it is finished, and FOLDER/study.csv lists them all. After
    Ctrl-C (exit status 130) the same command continues where it stopped. If a cell fails, its error
    is in the table and the exit status is 1. If the table cannot be written there, it is saved
    elsewhere or printed, and the exit status is 1 too.
    """
    import mmdp

    axes = read_study(file)
    with Steps(quiet=as_json) as steps, _executor(dask) as executor:
        table = mmdp.study(
            **axes, out=out, jobs=jobs, executor=executor, callback=partial(_say, steps)
        )
    asked = out / "study.csv"
    written = write_somewhere(partial(write_csv, table), asked)
    if as_json:
        show_json({"rows": table.to_dict("records"), "out": written})
    elif written is not None:
        _show(table, written)
    else:
        print(table.to_csv(index=False), end="")
    return _status(table) or (0 if written == asked else NOT_WRITTEN)


@contextmanager
def _executor(address: str | None) -> Iterator[Any]:
    """The executor of a Dask cluster; None without an address."""
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--dask needs Dask; install it by pip install mmdp[cluster]") from None
    try:
        client: Any = Client(address, timeout=10)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise InputError(f"--dask {address}: no scheduler answers ({error})") from None
    with client:
        yield client.get_executor()


def _say(steps: Steps, progress: StudyProgress) -> None:
    row = progress.row
    left = "" if math.isnan(progress.left) else f", {duration(progress.left)} left"
    text = f"{row['model']} T={row['horizon']} {row['method']}{left}"
    steps.say(text, progress.done, progress.total)


# ---------------------------------------------------------------- the file
def read_study(file: Path) -> dict[str, Any]:
    """The arguments of :func:`mmdp.study` that a file gives."""
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{file}: not a TOML file ({error})") from None
    known = ("models", *AXES, *SETTINGS)
    for name in given:
        if name not in known:
            raise InputError(f"{file}: unknown entry {suggested(name, known)}; {_grammar(known)}")
    models = given.pop("models", None)
    if not isinstance(models, dict) or not all(isinstance(x, dict) for x in models.values()):
        raise InputError(f"{file}: no models; give each as a table, for example [models.mine]")
    try:
        for name, read in (("horizons", _horizon), ("methods", _method)):
            if name in given:
                given[name] = [read(x) for x in _several(given[name])]
        if "policies" in given:
            given["policies"] = [_policy(x, file.parent) for x in _several(given["policies"])]
        made = {name: _source(dict(x), file.parent) for name, x in models.items()}
    except InputError as error:
        raise error.at(file) from None
    return {"models": made, **given}


def _grammar(known: tuple[str, ...]) -> str:
    return f"a study has {either(known, ' and ')}"


def _several(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _horizon(given: Any) -> Any:
    """A number, or inf with or without quotes."""
    return math.inf if given in ("inf", "infinite") else given


def _method(given: Any) -> Any:
    """A name, or a table such as {method = "cadp", starts = 16}."""
    name, settings = _named(given, "method", METHODS)
    return build_method(name, settings)


def _policy(given: Any, folder: Path) -> Any:
    """A name, or a table such as {policy = "memory", nodes = 2}; groups may be a file."""
    name, settings = _named(given, "policy", KINDS)
    if isinstance(settings.get("groups"), str):
        settings["groups"] = folder / settings["groups"]
    if not settings and name in NEED_SETTINGS:
        need = NEED_SETTINGS[name]
        raise InputError(f'policy {name} needs {need}; write {{policy = "{name}", {need} = ...}}')
    return KINDS[name](**_fitting(KINDS[name], settings)) if settings else name


def _named(given: Any, what: str, known: Collection[str]) -> tuple[str, dict[str, Any]]:
    """The name of a method or kind of policy, and its settings."""
    settings = dict(given) if isinstance(given, dict) else {what: given}
    name = str(settings.pop(what, ""))
    if name not in known:
        refuse_name(what, name, known)
    return name, settings


def _source(given: dict[str, Any], folder: Path) -> Any:
    """Models, or how to make them."""
    import mmdp

    count = given.pop("subset", None)
    kinds = [kind for kind in ("domain", "data", "log") if kind in given]
    if len(kinds) != 1:
        raise InputError("a model has one of domain, data and log")
    name = str(given.pop(kinds[0]))
    made: Any
    if kinds == ["domain"]:
        if name not in mmdp.domains.DOMAINS:
            refuse_name("domain", name, mmdp.domains.DOMAINS)
        made = partial(mmdp.domains.DOMAINS[name], **_fitting(mmdp.domains.DOMAINS[name], given))
    elif kinds == ["data"]:
        made = _loaded(folder / name, given)
    else:
        made = tuple(mmdp.fit(folder / name, **given))
    return made if count is None else partial(first_models, made, count)


def first_models(source: Any, count: int) -> tuple[Any, Any]:
    """The first training models, with the test models as they are."""
    train, test = source() if callable(source) else source
    return train.subset(slice(count)), test


def _loaded(path: Path, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """The models of a folder or file, and its test models."""
    unset = dict.fromkeys(inspect.signature(Loading).parameters)
    loading = Loading(**{**unset, **_fitting(Loading, given)})
    train = loading.read(path, quiet=True)
    return train, loading.read_test(path, train, quiet=True)


def _fitting(function: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, if the function takes them."""
    known = list(inspect.signature(function).parameters)
    for name in given:
        if name not in known:
            raise InputError(f"unknown option {suggested(name, known)}")
    return given


# ---------------------------------------------------------------- what is printed
def _show(table: pd.DataFrame, written: Path) -> None:
    keys = {"value": "value", "test_mean": "test mean", "bound": "at most"}
    table = table[table["status"] != "INTERRUPTED"]
    statuses = table["status"].str.lower().str.replace("_", " ")
    if len(table) <= MOST_ROWS:
        axes = [x for x in ("model", "horizon", "method", "objective", "policy", "seed")
                if x == "method" or table[x].nunique() > 1]  # fmt: skip
        columns = {x: table[x].astype(str).tolist() for x in axes}
        for key, title in keys.items():
            if table[key].notna().any():
                columns[title] = figures([None if math.isnan(x) else x for x in table[key]])
        columns["seconds"] = ["" if math.isnan(x) else clock(x) for x in table["seconds"]]
        if statuses.nunique() > 1:
            columns["status"] = statuses.tolist()
        show_table(list(columns), list(zip(*columns.values(), strict=True)), left=len(axes))
    same = f", each {statuses.iloc[0]}" if statuses.nunique() == 1 else ""
    print(f"{counted(len(table), 'cell')}{same}, table written to {written}")


def _status(table: pd.DataFrame) -> int:
    failed = table["error"].dropna()
    if (table["status"] == "INTERRUPTED").any():
        done = int((table["status"] != "INTERRUPTED").sum())
        complain(f"interrupted; {done} of {counted(len(table), 'cell')} kept; run again to go on")
        return INTERRUPTED
    if len(failed):
        complain(f"{len(failed):,} of {counted(len(table), 'cell')} failed")
        for error, times in failed.value_counts().head(MOST_ERRORS).items():
            complain(f"{counted(times, 'cell')}: {error}")
        return FAILED
    return 0
