"""mmdp study: methods, objectives or trees compared, or a grid of solves."""

from __future__ import annotations

import math
import shutil
import tomllib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

import mmdp
from mmdp import MMDP
from mmdp.cli.console import (
    ADVANCED,
    EXIT_FAILED,
    TrainingData,
    print_json,
    print_model,
    print_stderr,
    print_table,
    read_comparators,
    try_to_write,
    write_csv,
)
from mmdp.cli.signatures import Target, bind, command, list_options, take_from
from mmdp.cli.types import LeafCounts, PathParam, find_named
from mmdp.core.errors import InputError
from mmdp.core.methods import Oracle
from mmdp.core.methods.registry import METHODS, methods_supporting
from mmdp.core.policies import POLICY_CLASSES
from mmdp.core.text import (
    format_bound_percent,
    format_column,
    format_percent,
    format_seconds,
    format_two_stderrs,
    pluralize,
)
from mmdp.core.timing import allow_stop, progress_line, propagate_interrupts
from mmdp.core.validate import check_horizon
from mmdp.insight.study import INTERRUPTED, STUDY_AXES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

MAX_ROWS = 40  # of the table of a grid that is printed
FORMATS: dict[str, Callable[[Any], str]] = {  # of columns that are neither texts nor values
    "gap": format_bound_percent,
    "leaves": str,
    "seconds": format_seconds,
    "share": lambda x: format_percent(max(x, 0.0)),
}

Settings = dict[str, Any]  # a table of a .toml file


class StudyTable(NamedTuple):
    """What a study found: the table of a .csv, what JSON has, and what is printed."""

    frame: pd.DataFrame
    document: dict[str, object]
    titles: str  # of the columns that are printed
    heading: str
    footer: str = ""
    draw: Callable[[], Axes] | None = None

    def write(self, path: Path) -> None:
        """Write the table, or its picture, by the suffix."""
        if self.draw is None or path.suffix.lower() == ".csv":
            write_csv(self.frame, path)
        else:
            mmdp.plots.save_figure(self.draw(), path)


def print_frame(frame: pd.DataFrame, titles: str, *, n_left: int = 1) -> None:
    """Print the columns that ``titles`` names, as in ``"method,test_sd=test sd"``, if not empty.

    Values have fewer digits in a terminal that is too narrow for all columns.
    """
    keys = dict(title.partition("=")[::2] for title in titles.split(","))
    for digits in (7, 6, 5):
        texts_by_key = {key: _format_values(frame, key, digits) for key in keys if key in frame}
        columns = {keys[key] or key: texts for key, texts in texts_by_key.items() if any(texts)}
        width = sum(max(map(len, [title, *texts])) + 3 for title, texts in columns.items())
        if width - 3 <= shutil.get_terminal_size().columns:
            break
    print_table([*columns], zip(*columns.values(), strict=True), n_left=n_left)


def _format_values(frame: pd.DataFrame, key: str, digits: int) -> list[str]:
    """Format a column; what is missing becomes an empty text."""
    values = frame[key].astype(object).where(frame[key].notna(), None).tolist()
    if key.endswith("stderr"):  # exact values have none, or that of rounding
        tiny = 1e-12 * frame[key.replace("stderr", "value")].abs()
        return format_two_stderrs(
            x if x and x > y else None for x, y in zip(values, tiny, strict=True)
        )
    if key in FORMATS or str in map(type, values):
        return ["" if x is None else FORMATS.get(key, str)(x) for x in values]
    return format_column(values, digits=digits)


# ---------------------------------------------------------------- methods side by side
@take_from(
    "mmdp.core.solve:solve horizon objective time_limit seed backend",
    "mmdp.core.methods.belief:QMDP n_episodes",
    "mmdp.insight.report:write comparators",
)
def compare_methods(
    train: MMDP,
    test: MMDP | None,
    *,
    methods: Sequence[str] | None = None,
    **options: Any,
) -> StudyTable:
    """Solve with several methods; those that do not support the objective maximize the mean.

    Parameters
    ----------
    methods
        Compare these methods, in this order; by default those for the horizon.
    """
    import pandas as pd

    from mmdp.insight.economics.comparators import make_named_policies
    from mmdp.insight.study import GivenPolicy, solve_and_test

    horizon, objective = options.get("horizon"), options["objective"]
    names = methods or methods_supporting(
        policy_class="stationary" if horizon == math.inf else "markov", proves_optimal=False
    )
    simulated = {*methods_supporting(policy_class="belief")}
    episodes = {key: options.pop(key) for key in ("n_episodes",) if key in options}
    if episodes and simulated.isdisjoint(names):
        raise InputError("--n-episodes is for methods with memory, but none of these has any")
    selected = {name: METHODS[name](**episodes if name in simulated else {}) for name in names}
    for name, policy in read_comparators(options.pop("comparators", {}), train).items():
        if isinstance(policy, str):  # an action
            n_times = check_horizon(train.horizon, horizon)
            policy = make_named_policies({name: policy}, train, n_times)[name]
        selected[name] = GivenPolicy(policy)
    selected["oracle"] = Oracle(keep_policies=False)
    rows: list[dict[str, Any]] = []
    with allow_stop(lambda: rows), propagate_interrupts():
        for name, method in selected.items():
            progress_line.update(f"{len(rows)} of {pluralize(len(selected), 'method')}")
            row = solve_and_test(train, test, method=method, or_mean=True, **options)
            if "error" in row:
                raise InputError(row["error"])
            rows.append({"method": name, **row})
    if len(rows) < len(selected):
        print_stderr(f"interrupted; {len(rows)} of {pluralize(len(selected), 'method')} kept")
    errors = ("stderr=±,", "test_stderr=± on test,") if objective.is_mean else ("", "")
    stopped = ",status" * any("LIMIT" in row["status"] for row in rows)
    models_text = "no test models" if test is None else pluralize(test.n_models, "test model")
    return StudyTable(
        pd.DataFrame(rows),
        {
            "objective": str(objective),
            "models": train.n_models,
            "test_models": None if test is None else test.n_models,
            "methods": rows,
        },
        f"method,value,{errors[0]}sd,test_value=test,{errors[1]}test_sd=test sd,seconds{stopped}",
        f"{models_text}, horizon {rows[0]['horizon']}, {objective.name}",
    )


# ---------------------------------------------------------------- what safety costs, leaves earn
@take_from("mmdp.insight.measures.risk:risk_frontier horizon tail certify_time backend seed")
def trace_frontier(
    train: MMDP,
    test: MMDP | None,
    *,
    alphas: Sequence[float] | None = None,
    **options: Any,
) -> StudyTable:
    """Find policies by CVaR: mean return against the worst models.

    Parameters
    ----------
    alphas
        Find a policy for each of these shares of worst models.
    """
    from mmdp.insight.measures import risk_frontier

    result = risk_frontier(train, alphas=alphas or (), test_model=test, **options)
    frame = result.to_frame()
    return StudyTable(
        frame,
        {"tail": result.tail, "points": frame.to_dict("records")},
        "objective=best for,value,mean,tail,worst,test_mean=test mean,test_tail=test tail,gap",
        f"horizon {result.solutions[0].provenance.horizon}, "
        f"tail: mean of the worst {100 * result.tail:g}%",
        draw=result.plot,
    )


@take_from(
    "mmdp.insight.measures.simplicity:value_by_leaves horizon features objective",
    "mmdp.core.solve:solve certify_time backend seed",
)
def compare_leaves(
    train: MMDP,
    test: MMDP | None,
    *,
    max_leaves: LeafCounts | None = None,
    **options: Any,
) -> StudyTable:
    """Find what each further leaf of a small tree earns.

    Parameters
    ----------
    max_leaves
        Show what each further leaf of a small tree earns, e.g. 1-8.
    """
    from mmdp.insight import measures, plots

    frame = measures.value_by_leaves(train, n_leaves=max_leaves or (), test_model=test, **options)
    elbow = frame.attrs["elbow"]
    rule_text = frame.loc[frame["leaves"] == elbow, "rule"].item()
    return StudyTable(
        frame,
        {"elbow": elbow, "points": frame.to_dict("records")},
        "leaves,value,gain,restriction_cost,share=of stake,gap,test,seconds",
        "value by leaves",
        f"{frame.attrs['text']}\n\n{rule_text}",
        partial(plots.value_by_leaves, frame),
    )


# ---------------------------------------------------------------- a grid of solves
@take_from("mmdp.insight.study:study n_jobs")
def solve_grid(
    target: Path, *, out: Path | None, as_json: bool, dask: str | None = None, **options: Any
) -> int:
    """Solve the grid that a file describes, write its table and return the exit status.

    Parameters
    ----------
    dask
        Compute on the workers of the Dask scheduler at this address.
    """
    if out is None:
        raise InputError("a .toml study needs a folder for its cells; give --out FOLDER")
    out = PathParam(is_folder=True).convert(out, None, None)
    grid = {**read_study(target), **options, "cache_dir": out}
    with nullcontext() if dask is None else _connect(dask) as client:
        executor = None if client is None else client.get_executor()
        table = mmdp.study(**grid, executor=executor)
    saved_path = try_to_write(partial(write_csv, table), out / "study.csv")
    finished = table[table["status"] != INTERRUPTED]
    if as_json:
        print_json({"rows": table.to_dict("records"), "out": saved_path})
    elif saved_path is None:
        print(table.to_csv(index=False), end="")
    else:
        if len(finished) <= MAX_ROWS:
            axes = [x for x in STUDY_AXES if x == "method" or finished[x].nunique() > 1]
            titles = f"{','.join(axes)},value,test_mean=test mean,bound=at most,seconds,status"
            print_frame(finished.astype(dict.fromkeys(axes, str)), titles, n_left=len(axes))
        print(f"{pluralize(len(finished), 'cell')}, table written to {saved_path}")
    n_cells, errors = pluralize(len(table), "cell"), table["error"].dropna()
    if len(finished) < len(table):
        print_stderr(f"interrupted; {len(finished)} of {n_cells} kept; run again to go on")
        return 0  # App makes it that of Ctrl-C
    if len(errors):
        print_stderr(f"{len(errors):,} of {n_cells} failed")
    for error, n_failed in errors.value_counts().items():
        print_stderr(f"{pluralize(n_failed, 'cell')}: {error}")
    return EXIT_FAILED * (len(errors) > 0 or saved_path is None)


def _connect(address: str) -> Any:
    """Connect to the scheduler of a Dask cluster."""
    try:
        from distributed import Client

        return Client(address, timeout=10)  # type: ignore[no-untyped-call]
    except ImportError:
        raise InputError("--dask needs Dask; install it by pip install mmdp[cluster]") from None
    except (OSError, ValueError) as error:
        raise InputError(f"--dask {address}: no scheduler answers ({error})") from None


def read_study(file: Path) -> Settings:
    """Read the arguments of :func:`mmdp.study` from a .toml file."""
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{file}: not a TOML file ({error})") from None
    models = settings.pop("models", None)
    if not isinstance(models, dict) or not all(isinstance(x, dict) for x in models.values()):
        raise InputError(f"{file}: no models; give each as a table, for example [models.mine]")
    try:
        for axis, role in (("methods", "method"), ("policy_classes", "policy_class")):
            if axis in settings:
                values = settings[axis] if isinstance(settings[axis], list) else [settings[axis]]
                settings[axis] = [_make_value(role, x, file.parent) for x in values]
        sources = {name: _make_source(dict(x), file.parent) for name, x in models.items()}
    except InputError as error:
        raise error.with_location(file) from None
    return {"models": sources, **settings}


def _make_value(role: str, value: object, folder: Path) -> object:
    """Make a method or policy class of a table such as {method = "cadp", n_init = 16}."""
    options: Settings = dict(value) if isinstance(value, dict) else {role: value}
    name = str(options.pop(role, ""))
    if isinstance(options.get("groups"), str):
        options["groups"] = folder / options["groups"]
    make = find_named(role, METHODS if role == "method" else POLICY_CLASSES, name, options)
    return make(**options) if options else name


def _make_source(settings: Settings, folder: Path) -> object:
    """Load the models of a study, or return the function that generates its domain."""
    n_models = settings.pop("subset", None)
    source_types = [name for name in ("domain", "data", "log") if name in settings]
    if len(source_types) != 1:
        raise InputError("a model has one of domain, data and log")
    name = str(settings.pop(source_types[0]))
    source: object
    if source_types == ["domain"]:
        source = partial(find_named("domain", mmdp.domains.DOMAINS, name, settings), **settings)
    elif source_types == ["data"]:
        data = TrainingData(folder / name, **settings)
        source = (train := data.read(), data.read_test(train))
    else:
        source = tuple(mmdp.fit(folder / name, **settings))
    return source if n_models is None else partial(take_first_models, source, n_models)


def take_first_models(source: Any, n_models: int) -> tuple[MMDP, MMDP | None]:
    """Take the first training models, with the test models as they are."""
    train, test = source() if callable(source) else source
    return train.subset(slice(n_models)), test


# ---------------------------------------------------------------- the command
def read_models(
    target: TrainingData,
    *,
    test: bool | None = None,
    test_data: Path | None = None,
) -> tuple[MMDP, MMDP | None]:
    """Read training models, and test models if there are any.

    Parameters
    ----------
    test
        Evaluate on the test models of the folder; by default if there are any.
    test_data
        Test models to use instead.
    """
    train = target.read()
    if test_data is not None:
        return train, target.at(test_data).read().reorder_like(train)
    test_model = None if test is False else target.read_test(train)
    if test_model is None and test:
        raise InputError(f"{target} has no test models; name them with --test-data")
    return train, test_model


FORMS: dict[str, Target] = {  # of several that apply, the first
    "a .toml study": solve_grid,
    "--max-leaves": compare_leaves,
    "--alphas": trace_frontier,
    "a comparison": compare_methods,
}


@command(
    "mmdp study data/riverswim -T 50 --methods cadp,wsu,mvp --out table.csv",
    "mmdp study models -T 15 --comparator today=now.csv --comparator never=wait",
    "mmdp study data/hiv -T 15 --alphas 0.5,0.2 --certify-time 10 -o frontier.png",
    "mmdp study data/riverswim -T 50 --max-leaves 1-8",
    "mmdp study study.toml --out results --jobs 8",
    sources=[
        "mmdp.cli.study:compare_methods",
        "mmdp.cli.study:trace_frontier",
        "mmdp.cli.study:compare_leaves",
        "mmdp.cli.study:read_models",
        "mmdp.cli.study:solve_grid",
    ],
    advanced=f"tail features n_episodes backend {ADVANCED}",
)
def study(target: Path, *, out: Path | None = None, as_json: bool = False, **options: Any) -> int:
    """Compare methods, objectives or trees, or solve a whole grid.

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

    Parameters
    ----------
    target
        Models, as for mmdp solve, or a .toml file.
    out
        Write the table (.csv) or a picture (.png, .svg); the folder of a .toml study.
    """
    is_grid = target.suffix.lower() == ".toml"
    applies = is_grid, "max_leaves" in options, "alphas" in options, True
    form = [*FORMS][applies.index(True)]
    _check_options(form)
    values = {**options, "target": target, "out": out, "as_json": as_json}
    if is_grid:
        return bind(solve_grid, values)
    if out is not None:
        pictures = () if form == "a comparison" else (".png", ".svg")
        out = PathParam(".csv", *pictures).convert(out, None, None)
    train, test = bind(read_models, values)
    with progress_line.open("study"):
        table: StudyTable = bind(FORMS[form], {**options, "train": train, "test": test})
    saved_path = try_to_write(table.write, out)
    if as_json:
        print_json(
            {"data": target, **table.document, "version": mmdp.__version__, "out": saved_path}
        )
    else:
        print_model(target, train)
        print(table.heading)
        print_frame(table.frame, table.titles)
        for text in filter(None, (table.footer, saved_path and f"written to {saved_path}")):
            print(text)
    return EXIT_FAILED * (saved_path != out)


def _check_options(form: str) -> None:
    """Raise InputError if an option was given that does not belong to this form of a study."""
    functions = [FORMS[form]] if form == "a .toml study" else [FORMS[form], read_models]
    known = {"out", "as_json", *(x.name for function in functions for x in list_options(function))}
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        is_given = ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if is_given and parameter.name not in known:
            raise InputError(f"{parameter.opts[0]} does not apply to {form}; leave it out")
