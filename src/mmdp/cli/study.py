"""mmdp study: methods, objectives or trees compared, or a grid of solves."""

from __future__ import annotations

import inspect
import math
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mmdp.cli import options
from mmdp.cli.compare import run_comparison
from mmdp.cli.console import StepBar, print_json, print_stderr, print_table
from mmdp.cli.frontier import run_frontier, run_leaf_values
from mmdp.cli.options import (
    EXIT_INTERRUPTED,
    EXIT_NOT_WRITTEN,
    LOAD_OPTIONS,
    SOLVE_HEADING,
    LoadArgs,
    RunArgs,
    build_method,
    command,
    option,
    with_options,
    write_csv,
    write_with_fallback,
)
from mmdp.cli.types import (
    INPUT,
    PATH,
    NamesParam,
    NumbersParam,
    OutputFileParam,
    OutputFolderParam,
    RangeParam,
    SecondsParam,
    raise_unknown_name,
)
from mmdp.core.errors import InputError
from mmdp.core.methods.registry import METHODS
from mmdp.core.objectives import Objective
from mmdp.core.policies import POLICY_CLASSES
from mmdp.core.text import (
    did_you_mean,
    format_column,
    format_duration,
    format_seconds,
    join_or,
    pluralize,
)

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.insight.study import StudyProgress

AXES = ("horizons", "methods", "objectives", "policy_classes", "seeds")
SETTINGS = ("certify_time", "time_limit", "backend")
REQUIRED_SETTINGS = {"tied": "groups", "fixed": "actions"}
MAX_ROWS = 40  # of the table that is printed
MAX_ERRORS = 8  # different ones that are printed
EXIT_FAILED = 1  # exit status if a cell failed


GRID, COMPARISON, FRONTIER, LEAVES = "a .toml study", "a comparison", "--alphas", "--max-leaves"
COMMON = {"target", "out", "as_json"}
SOLVING = COMMON | {"horizon", "seed", "backend", "load_option", "discount", "initial"}
PARAMETERS = {  # of each form of a study
    GRID: COMMON | {"jobs", "dask"},
    COMPARISON: SOLVING
    | {"methods", "comparator", "test", "test_data", "objective", "n_episodes", "time_limit"},
    FRONTIER: SOLVING | {"alphas", "tail", "certify_time"},
    LEAVES: SOLVING | {"max_leaves", "features", "objective", "certify_time"},
}
SUFFIXES = {COMPARISON: (".csv",), FRONTIER: (".csv", ".png", ".svg")}
SUFFIXES[LEAVES] = SUFFIXES[FRONTIER]


@command(
    "mmdp study data/riverswim -T 50 --methods cadp,wsu,mvp --out table.csv",
    "mmdp study models -T 15 --comparator today=now.csv --comparator never=wait",
    "mmdp study data/hiv -T 15 --alphas 0.5,0.2 --certify-time 10 -o frontier.png",
    "mmdp study data/riverswim -T 50 --max-leaves 1-8",
    "mmdp study study.toml --out results --jobs 8",
)
@click.argument("target", type=INPUT, help="Models, as for mmdp solve, or a .toml file.")
@options.horizon
@option(
    "--methods",
    "-m",
    type=NamesParam("method", METHODS),
    metavar="A,B,...",
    heading=SOLVE_HEADING,
    help="Compare these methods, in this order; see mmdp info.",
)
@options.comparator
@option(
    "--alphas",
    type=NumbersParam("0.5,0.2,0.1"),
    heading=SOLVE_HEADING,
    help="Find a policy for each of these shares of worst models.",
)
@option(
    "--tail",
    type=float,
    metavar="SHARE",
    default=0.1,
    show_default=True,
    is_advanced=True,
    help="With --alphas: compare policies by the mean over this share of worst models.",
)
@option(
    "--max-leaves",
    type=RangeParam(),
    metavar="A-B",
    heading=SOLVE_HEADING,
    help="Show what each further leaf of a small tree earns, e.g. 1-8.",
)
@options.features
@options.objective
@option("--certify-time", type=SecondsParam(), help="Spend S seconds on a proof for each policy.")
@option(
    "--test/--no-test",
    default=None,
    help="Evaluate on the test models of the folder; by default if there are any.",
)
@option("--test-data", type=PATH, metavar="DATA", help="Test models to use instead.")
@options.n_episodes
@option(
    "--out",
    "-o",
    type=PATH,
    metavar="PATH",
    help="Write the table (.csv) or a picture (.png, .svg); the folder of a .toml study.",
)
@options.jobs
@option("--dask", metavar="ADDRESS", help="Compute on the workers of this Dask scheduler.")
@with_options(RunArgs)
@options.as_json
@with_options(LoadArgs)
def study(
    target: Path,
    horizon: int | None,
    methods: Sequence[str] | None,
    comparator: dict[str, str],
    alphas: Sequence[float] | None,
    tail: float,
    max_leaves: range | None,
    features: Path | None,
    objective: Objective,
    certify_time: float | None,
    test: bool | None,
    test_data: Path | None,
    n_episodes: int | None,
    out: Path | None,
    jobs: int,
    dask: str | None,
    run_args: RunArgs,
    as_json: bool,
    load_args: LoadArgs,
) -> int:
    """Compare methods, objectives or trees on the same models, or solve a whole grid.

    Models: the methods side by side, with oracle, which solves each model alone, as the last row.
    With --alphas: what safety costs, mean return against the worst models. With --max-leaves: what
    each further leaf of a tree earns. Policies with memory are simulated; ± is two standard errors.

    A .toml file: every combination of models, horizons, methods and more, for example

    \b
      horizons = [10, 50]
      methods = ["cadp", {method = "cadp", n_init = 16}]
      objectives = ["mean", "cvar:0.1"]
      policy_classes = ["markov", {policy_class = "memory", max_nodes = 2}]
      seeds = [0, 1]
      certify_time = 10
      [models.river]
      domain = "riverswim"
      seed = 3
      [models.mine]
      data = "data/hiv"
      subset = 20

    A model is a domain with its options, data (with its test models, if any), or a log with the
    options of mmdp fit; subset takes its first models. Paths are relative to the file's folder.
    Every cell is saved in the folder of --out when it is finished, and study.csv there lists all.

    After Ctrl-C (exit status 130) the finished rows are kept; the same grid continues where it
    stopped. The exit status is 1 if a cell failed or a file could not be written.
    """
    form = _choose_form(target, alphas, max_leaves)
    _check_parameters(form)
    if form == GRID:
        return _run_grid(target, _require_folder(out), jobs, dask, as_json=as_json)
    if out is not None:
        out = OutputFileParam(*SUFFIXES[form]).convert(out, None, None)
    if form == COMPARISON:
        return run_comparison(
            target,
            horizon,
            methods,
            comparator,
            test,
            test_data,
            out,
            objective,
            n_episodes,
            run_args,
            as_json,
            load_args,
        )
    seed, backend = run_args.seed, run_args.backend
    if max_leaves is not None:
        return run_leaf_values(
            target,
            horizon,
            max_leaves,
            features,
            objective,
            certify_time,
            out,
            seed,
            backend,
            as_json,
            load_args,
        )
    return run_frontier(
        target, horizon, alphas, tail, certify_time, out, seed, backend, as_json, load_args
    )


def _choose_form(target: Path, alphas: Sequence[float] | None, max_leaves: range | None) -> str:
    if alphas is not None and max_leaves is not None:
        raise InputError("--alphas is about safety and --max-leaves about trees; give one of them")
    if target.suffix.lower() == ".toml":
        return GRID
    return (
        COMPARISON if alphas is max_leaves is None else FRONTIER if max_leaves is None else LEAVES
    )


def _check_parameters(form: str) -> None:
    """Raise InputError if an option was given that does not belong to this form of a study."""
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        name = parameter.name or ""
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in PARAMETERS[form]:
            forms = [other for other, names in PARAMETERS.items() if name in names]
            raise InputError(
                f"{parameter.opts[0]} does not apply to {form}, only to {join_or(forms)}; "
                "leave it out"
            )


def _require_folder(out: Path | None) -> Path:
    if out is None:
        raise InputError("a .toml study needs a folder for its cells; give --out FOLDER")
    folder: Path = OutputFolderParam().convert(out, None, None)
    return folder


def _run_grid(file: Path, out: Path, jobs: int, dask: str | None, *, as_json: bool) -> int:
    """Solve the grid that a file describes, write its table and return the exit status."""
    import mmdp

    study_options = read_study(file)
    with StepBar(quiet=as_json) as step_bar, _open_executor(dask) as executor:
        table = mmdp.study(
            **study_options,
            cache_dir=out,
            n_jobs=jobs,
            executor=executor,
            callback=partial(_show_progress, step_bar),
        )
    requested_path = out / "study.csv"
    saved_path = write_with_fallback(partial(write_csv, table), requested_path)
    if as_json:
        print_json({"rows": table.to_dict("records"), "out": saved_path})
    elif saved_path is not None:
        _print_table(table, saved_path)
    else:
        print(table.to_csv(index=False), end="")
    return _find_exit_status(table) or (0 if saved_path == requested_path else EXIT_NOT_WRITTEN)


@contextmanager
def _open_executor(address: str | None) -> Iterator[Any]:
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


def _show_progress(step_bar: StepBar, progress: StudyProgress) -> None:
    row = progress.row
    remaining_text = (
        "" if math.isnan(progress.remaining) else f", {format_duration(progress.remaining)} left"
    )
    text = f"{row['model']} T={row['horizon']} {row['method']}{remaining_text}"
    step_bar.update(text, progress.n_done, progress.n_total)


# ---------------------------------------------------------------- the file
def read_study(file: Path) -> dict[str, Any]:
    """The arguments of :func:`mmdp.study` that a file gives."""
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{file}: not a TOML file ({error})") from None
    known_entries = ("models", *AXES, *SETTINGS)
    for name in settings:
        if name not in known_entries:
            raise InputError(
                f"{file}: unknown entry {did_you_mean(name, known_entries)}; "
                f"{_describe_entries(known_entries)}"
            )
    models = settings.pop("models", None)
    if not isinstance(models, dict) or not all(isinstance(x, dict) for x in models.values()):
        raise InputError(f"{file}: no models; give each as a table, for example [models.mine]")
    try:
        for name, parse in (("horizons", _parse_horizon), ("methods", _parse_method)):
            if name in settings:
                settings[name] = [parse(x) for x in _as_list(settings[name])]
        if "policy_classes" in settings:
            settings["policy_classes"] = [
                _parse_policy_class(x, file.parent) for x in _as_list(settings["policy_classes"])
            ]
        sources = {name: _make_source(dict(x), file.parent) for name, x in models.items()}
    except InputError as error:
        raise error.with_location(file) from None
    return {"models": sources, **settings}


def _describe_entries(entries: tuple[str, ...]) -> str:
    return f"a study has {join_or(entries, ' and ')}"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _parse_horizon(value: Any) -> Any:
    """A number, or inf with or without quotes."""
    return math.inf if value in ("inf", "infinite") else value


def _parse_method(value: Any) -> Any:
    """A name, or a table such as {method = "cadp", n_init = 16}."""
    name, settings = _parse_name(value, "method", METHODS)
    return build_method(name, settings, str)


def _parse_policy_class(value: Any, folder: Path) -> Any:
    """A name, or a table such as {policy_class = "memory", max_nodes = 2}; groups may be a file."""
    name, settings = _parse_name(value, "policy_class", POLICY_CLASSES)
    if isinstance(settings.get("groups"), str):
        settings["groups"] = folder / settings["groups"]
    if not settings and name in REQUIRED_SETTINGS:
        setting = REQUIRED_SETTINGS[name]
        raise InputError(
            f'policy {name} needs {setting}; write {{policy_class = "{name}", {setting} = ...}}'
        )
    return (
        POLICY_CLASSES[name](**_check_settings(POLICY_CLASSES[name], settings))
        if settings
        else name
    )


def _parse_name(value: Any, role: str, known_names: Collection[str]) -> tuple[str, dict[str, Any]]:
    """The name of a method or kind of policy, and its settings."""
    settings = dict(value) if isinstance(value, dict) else {role: value}
    name = str(settings.pop(role, ""))
    if name not in known_names:
        raise_unknown_name(role, name, known_names)
    return name, settings


def _make_source(settings: dict[str, Any], folder: Path) -> Any:
    """Models, or how to make them."""
    import mmdp

    n_models = settings.pop("subset", None)
    source_types = [
        source_type for source_type in ("domain", "data", "log") if source_type in settings
    ]
    if len(source_types) != 1:
        raise InputError("a model has one of domain, data and log")
    name = str(settings.pop(source_types[0]))
    source: Any
    if source_types == ["domain"]:
        if name not in mmdp.domains.DOMAINS:
            raise_unknown_name("domain", name, mmdp.domains.DOMAINS)
        source = partial(
            mmdp.domains.DOMAINS[name], **_check_settings(mmdp.domains.DOMAINS[name], settings)
        )
    elif source_types == ["data"]:
        source = _load_models(folder / name, settings)
    else:
        source = tuple(mmdp.fit(folder / name, **settings))
    return source if n_models is None else partial(take_first_models, source, n_models)


def take_first_models(source: Any, n_models: int) -> tuple[Any, Any]:
    """The first training models, with the test models as they are."""
    train, test = source() if callable(source) else source
    return train.subset(slice(n_models)), test


def _load_models(path: Path, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """The models of a folder or file, and its test models."""
    known_settings = [*LOAD_OPTIONS, "discount", "initial"]
    for name in settings:
        if name not in known_settings:
            raise InputError(f"unknown option {did_you_mean(name, known_settings)}")
    load_options = {name: value for name, value in settings.items() if name in LOAD_OPTIONS}
    load_args = LoadArgs(load_options, settings.get("discount"), settings.get("initial"))
    train = load_args.read_models(path, quiet=True)
    return train, load_args.read_test_models(path, train, quiet=True)


def _check_settings(function: Any, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, if the function takes them."""
    known_settings = list(inspect.signature(function).parameters)
    for name in settings:
        if name not in known_settings:
            raise InputError(f"unknown option {did_you_mean(name, known_settings)}")
    return settings


# ---------------------------------------------------------------- what is printed
def _print_table(table: pd.DataFrame, saved_path: Path) -> None:
    keys = {"value": "value", "test_mean": "test mean", "bound": "at most"}
    table = table[table["status"] != "INTERRUPTED"]
    statuses = table["status"].str.lower().str.replace("_", " ")
    if len(table) <= MAX_ROWS:
        axis_columns = [
            x
            for x in ("model", "horizon", "method", "objective", "policy_class", "seed")
            if x == "method" or table[x].nunique() > 1
        ]
        columns = {x: table[x].astype(str).tolist() for x in axis_columns}
        for key, title in keys.items():
            if table[key].notna().any():
                columns[title] = format_column([None if math.isnan(x) else x for x in table[key]])
        columns["seconds"] = ["" if math.isnan(x) else format_seconds(x) for x in table["seconds"]]
        if statuses.nunique() > 1:
            columns["status"] = statuses.tolist()
        print_table(
            list(columns), list(zip(*columns.values(), strict=True)), n_left=len(axis_columns)
        )
    status_text = f", each {statuses.iloc[0]}" if statuses.nunique() == 1 else ""
    print(f"{pluralize(len(table), 'cell')}{status_text}, table written to {saved_path}")


def _find_exit_status(table: pd.DataFrame) -> int:
    errors = table["error"].dropna()
    if (table["status"] == "INTERRUPTED").any():
        n_done = int((table["status"] != "INTERRUPTED").sum())
        print_stderr(
            f"interrupted; {n_done} of {pluralize(len(table), 'cell')} kept; run again to go on"
        )
        return EXIT_INTERRUPTED
    if len(errors):
        print_stderr(f"{len(errors):,} of {pluralize(len(table), 'cell')} failed")
        for error, n_cells in errors.value_counts().head(MAX_ERRORS).items():
            print_stderr(f"{pluralize(n_cells, 'cell')}: {error}")
        return EXIT_FAILED
    return 0
