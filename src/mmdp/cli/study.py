"""mmdp study: methods, objectives or trees compared, or a grid of solves."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import click
from click.core import ParameterSource

from mmdp._version import __version__
from mmdp.cli.console import (
    EXIT_INTERRUPTED,
    EXIT_NOT_WRITTEN,
    WIDTH,
    LiveLine,
    StepBar,
    objective_suffix,
    print_json,
    print_model_header,
    print_stderr,
    print_table,
)
from mmdp.cli.data import ADVANCED, TrainingData
from mmdp.cli.economics import read_comparators
from mmdp.cli.files import check_output_path, write_csv, write_with_fallback
from mmdp.cli.signatures import Target, bind, command, list_options, take_from
from mmdp.cli.solve import build_method
from mmdp.cli.study_file import read_study
from mmdp.cli.types import InputPath, LeafCounts, PathParam
from mmdp.core.errors import InputError
from mmdp.core.methods import Method, MethodResult, Oracle, ProblemSpec, SolveContext
from mmdp.core.methods.registry import methods_supporting, supports
from mmdp.core.policies import Policy
from mmdp.core.solution import Status
from mmdp.core.text import (
    format_bound_percent,
    format_column,
    format_duration,
    format_lead,
    format_percent,
    format_seconds,
    format_two_stderrs,
    join_or,
    pluralize,
)
from mmdp.core.timing import allow_stop, propagate_interrupts
from mmdp.core.validate import check_horizon
from mmdp.insight.study import STUDY_AXES

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd
    from matplotlib.axes import Axes

    from mmdp import MMDP, Evaluation
    from mmdp.core.kernels.problem import PolicyTable
    from mmdp.core.objectives import Objective
    from mmdp.core.solution import Progress
    from mmdp.insight.study import StudyProgress

MAX_ROWS = 40  # of the table that is printed
MAX_ERRORS = 8  # different ones that are printed
EXIT_FAILED = 1  # exit status if a cell failed


class StudyTable(NamedTuple):
    """What a study found: the table of a .csv, and how it is printed."""

    frame: pd.DataFrame
    document: dict[str, object]  # what JSON has
    titles: str  # of the columns that are printed
    heading: str = ""
    footer: str = ""
    draw: Callable[[], Axes] | None = None
    note: str = ""
    shown: pd.DataFrame | None = None  # what is printed, if it is another table


Row = dict[str, Any]


FORMATS: dict[str, Callable[[Any], str]] = {  # of columns that are neither texts nor values
    "gap": lambda x: x if isinstance(x, str) else "–" if x is None else format_bound_percent(x),
    "iterations": "{:,}".format,
    "leaves": str,
    "seconds": lambda x: "" if x is None else format_seconds(x),
    "share": lambda x: format_percent(max(x, 0.0)),
}


def print_frame(frame: pd.DataFrame, titles: str, *, n_left: int = 1) -> None:
    """Print the columns that ``titles`` names, as in ``"method,test_sd=test sd"``, if not empty."""
    columns: dict[str, tuple[str, Sequence[str]]] = {}
    for column in titles.split(","):
        key, _, title = column.partition("=")
        if key in frame and frame[key].notna().any():
            values = frame[key].astype(object).where(frame[key].notna(), None).tolist()
            if key in FORMATS:
                cells = [FORMATS[key](x) for x in values]
            elif key.endswith("stderr"):
                cells = format_two_stderrs(values)
            else:
                is_text = any(isinstance(x, str) for x in values)
                cells = values if is_text else format_column(values)
            columns[key] = title or key, cells
    names, cells_by_column = zip(*columns.values(), strict=True)
    print_table(names, zip(*cells_by_column, strict=True), n_left=n_left)


# ---------------------------------------------------------------- methods side by side
@take_from(
    "mmdp.core.solve:solve horizon objective time_limit seed backend",
    "mmdp.core.methods.qmdp:QMDP n_episodes",
    "mmdp.insight.report:write comparators",
)
def compare_methods(
    train: MMDP,
    test: MMDP | None,
    live_line: LiveLine,
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

    from mmdp.insight.study import solve_and_test

    horizon, objective = options.pop("horizon", None), options.pop("objective")
    names = methods or methods_supporting(
        policy_class="stationary" if horizon == math.inf else "markov", proves_optimal=False
    )
    simulated = methods_supporting(policy_class="belief")
    episodes = {key: options.pop(key) for key in ("n_episodes",) if key in options}
    if episodes and not set(names) & set(simulated):
        raise InputError("--n-episodes is for methods with memory, but none of these has any")
    comparators = options.pop("comparators", {})
    selected = [
        *(build_method(x, episodes if x in simulated else {}) for x in names if x != "oracle"),
        *_make_comparators(read_comparators(comparators, train), train, horizon),
        Oracle(keep_policies=False),
    ]
    rows: list[Row] = []
    tested: list[Evaluation | None] = []
    with allow_stop(lambda: rows), propagate_interrupts():
        for method in selected:
            verb = "evaluating" if isinstance(method, GivenPolicyMethod) else "solving with"
            live_line.update(f"{verb} {method.name}")
            is_supported = supports(method, train, horizon, objective)
            result = solve_and_test(
                train,
                test,
                horizon,
                method,
                objective=objective if is_supported else "mean",
                callback=live_line.show_progress,
                **options,
            )
            solution = result.solution
            rows.append(
                {
                    "method": method.name,
                    "horizon": solution.provenance.horizon,
                    **_summarize("train", solution.evaluation, objective),
                    **_summarize("test", result.test_evaluation, objective),
                    "iterations": solution.iterations,
                    "seconds": solution.seconds,
                    "status": solution.status.name,
                    "status_text": solution.status_text,
                }
            )
            tested.append(None if solution.policy is None else result.test_evaluation)
    is_simulated = any(row["train_stderr"] is not None for row in rows)
    regret = "regret" if objective.is_mean else "mean regret"
    figures = f"train_sd=sd,regret={regret}"
    if test is not None:
        figures = f"test,test_stderr=±,test_sd=test sd,test_regret={regret}"
    if not is_simulated:  # a planner has no iterations, and a line is short
        figures += ",iterations=iter."
    limits = ("TIME_LIMIT", "ITERATION_LIMIT", "INTERRUPTED")
    footer = [f"{x['method']}: {x['status_text']}" for x in rows if x["status"] in limits]
    leader = _find_leader(rows, tested, objective)
    if leader is not None:
        lead_text = format_lead(leader["difference"], leader["stderr"])
        reference_text = f"{leader['of']}, the best on the training models"
        text = f"on the test models {leader['method']} is ahead of {reference_text}, {lead_text}"
        footer.append(textwrap.fill(text, WIDTH))
    models_text = "no test models" if test is None else pluralize(test.n_models, "test model")
    return StudyTable(
        pd.DataFrame(rows).drop(columns="status_text"),
        {
            "objective": str(objective),
            "models": train.n_models,
            "test_models": None if test is None else test.n_models,
            "ahead": leader,
            "methods": rows,
        },
        f"method,train,train_stderr=±,{figures},seconds",
        f"{models_text}, horizon {rows[0]['horizon']}{objective_suffix(objective)}",
        "\n".join(footer),
        note=f"{len(rows)} of {pluralize(len(selected), 'method')} kept",
    )


@dataclass(frozen=True, eq=False)
class GivenPolicyMethod(Method):
    """A policy that was given, as if a method had found it."""

    name: str  # type: ignore[misc]
    table: PolicyTable
    covers_unreachable: ClassVar[bool] = True

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        return None

    def run(self, context: SolveContext) -> MethodResult:
        return MethodResult(self.table, Status.COMPLETED, 0)


def _make_comparators(
    strategies: Mapping[str, Policy | str], model: MMDP, horizon: float | None
) -> list[GivenPolicyMethod]:
    """Make methods of the policies of ``--comparator``; they are stationary if the horizon is."""
    from mmdp.insight.economics.comparators import make_named_policies

    is_infinite = horizon == math.inf
    for name, strategy in strategies.items() if is_infinite else ():
        if not isinstance(strategy, str) and strategy.horizon != math.inf:
            raise InputError(
                f"policy {name!r}: it ends after {strategy.horizon} decisions; -T inf "
                "needs a rule that is the same at all times"
            )
    n_times = 1 if is_infinite else check_horizon(model.horizon, horizon)
    return [
        GivenPolicyMethod(name, policy.table[0] if is_infinite else policy.table)
        for name, policy in make_named_policies(strategies, model, n_times).items()
    ]


def _summarize(name: str, evaluation: Evaluation | None, objective: Objective) -> Row:
    """Summarize an evaluation; the error is known for a simulated mean only."""
    if evaluation is None:
        return {}
    has_stderr = evaluation.standard_errors is not None and objective.is_mean
    return {
        name: evaluation.value(objective),
        f"{name}_stderr": evaluation.stderr if has_stderr else None,
        f"{name}_sd": evaluation.sd,
        "regret" if name == "train" else "test_regret": evaluation.bayes_regret,
    }


def _find_leader(
    rows: Sequence[Row], tested: Sequence[Evaluation | None], objective: Objective
) -> Row | None:
    """Find the policy that beats the best of the training models on the test models, if any."""
    candidates = [(row, x) for row, x in zip(rows, tested, strict=True) if x is not None]
    if not candidates or not objective.is_mean:
        return None
    train_best, reference = max(candidates, key=lambda x: x[0]["train"])
    test_best, evaluation = max(candidates, key=lambda x: x[0]["test"])
    difference, stderr = evaluation.compare_mean(reference)
    if not difference > 1e-9 * abs(reference.mean):
        return None
    methods = {"method": test_best["method"], "of": train_best["method"]}
    return {**methods, "difference": difference, "stderr": stderr}


# ---------------------------------------------------------------- what safety costs, leaves earn
@take_from("mmdp.insight.measures.risk:risk_frontier horizon tail certify_time backend seed")
def trace_frontier(
    train: MMDP,
    test: MMDP | None,
    live_line: LiveLine,
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

    def show(progress: Progress) -> None:
        live_line.update(f"{progress.stage}: solved")

    result = risk_frontier(train, alphas=alphas or (), test_model=test, callback=show, **options)
    frame, solutions = result.to_frame(), result.solutions
    shown = frame.astype({"gap": object})
    if frame["gap"].notna().any():
        shown.loc[[x.status is Status.OPTIMAL for x in solutions], "gap"] = "optimal"
    horizon = solutions[0].provenance.horizon
    return StudyTable(
        frame,
        {"tail": result.tail, "points": frame.to_dict("records")},
        "objective=best for,value,mean,tail,worst,test_mean=test mean,test_tail=test tail,gap",
        f"horizon {horizon}, tail: mean of the worst {100 * result.tail:g}%",
        draw=result.plot,
        shown=shown,
    )


@take_from(
    "mmdp.insight.measures.simplicity:value_by_leaves horizon features objective",
    "mmdp.core.solve:solve certify_time backend seed",
)
def compare_leaves(
    train: MMDP,
    test: MMDP | None,
    live_line: LiveLine,
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
        footer=f"{frame.attrs['text']}\n\n{rule_text}",
        draw=partial(plots.value_by_leaves, frame),
    )


# ---------------------------------------------------------------- a grid of solves
@take_from("mmdp.insight.study:study n_jobs")
def solve_grid(
    target: InputPath,
    *,
    out: Path | None,
    as_json: bool,
    dask: str | None = None,
    **options: Any,
) -> int:
    """Solve the grid that a file describes, write its table and return the exit status.

    Parameters
    ----------
    dask
        Compute on the workers of the Dask scheduler at this address.
    """
    import mmdp

    if out is None:
        raise InputError("a .toml study needs a folder for its cells; give --out FOLDER")
    out = PathParam(is_folder=True).convert(out, None, None)
    grid = read_study(target)
    with StepBar(quiet=as_json) as step_bar, _open_executor(dask) as executor:
        show = partial(_show_progress, step_bar)
        table = mmdp.study(**grid, cache_dir=out, executor=executor, callback=show, **options)
    requested_path = out / "study.csv"
    saved_path = write_with_fallback(partial(write_csv, table), requested_path)
    if as_json:
        print_json({"rows": table.to_dict("records"), "out": saved_path})
    elif saved_path is not None:
        _print_grid(table, saved_path)
    else:
        print(table.to_csv(index=False), end="")
    return _find_exit_status(table) or (0 if saved_path == requested_path else EXIT_NOT_WRITTEN)


@contextmanager
def _open_executor(address: str | None) -> Iterator[Executor | None]:
    """Open the executor of a Dask cluster; None without an address."""
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
    row, is_known = progress.row, not math.isnan(progress.remaining)
    remaining_text = f", {format_duration(progress.remaining)} left" if is_known else ""
    text = f"{row['model']} T={row['horizon']} {row['method']}{remaining_text}"
    step_bar.update(text, progress.n_done, progress.n_total)


def _print_grid(table: pd.DataFrame, saved_path: Path) -> None:
    table = table[table["status"] != "INTERRUPTED"]
    statuses = table["status"].str.lower().str.replace("_", " ")
    if len(table) <= MAX_ROWS:
        axes = [key for key in STUDY_AXES if key == "method" or table[key].nunique() > 1]
        titles = f"{','.join(axes)},value,test_mean=test mean,bound=at most,seconds"
        titles += ",status" if statuses.nunique() > 1 else ""
        shown = table.assign(status=statuses).astype(dict.fromkeys(axes, str))
        print_frame(shown, titles, n_left=len(axes))
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


# ---------------------------------------------------------------- the command
def read_models(
    target: TrainingData,
    *,
    test: bool | None = None,
    test_data: Path | None = None,
    as_json: bool = False,
) -> tuple[MMDP, MMDP | None]:
    """Read training models, and test models if there are any.

    Parameters
    ----------
    test
        Evaluate on the test models of the folder; by default if there are any.
    test_data
        Test models to use instead.
    """
    train = target.read(quiet=as_json)
    if test_data is not None:
        return train, target.at(test_data).read(quiet=as_json).reorder_like(train)
    test_model = None if test is False else target.read_test(train)
    if test_model is None and test:
        raise InputError(f"{target} has no test models; name them with --test-data")
    return train, test_model


FORMS: dict[str, Target] = {
    "a .toml study": solve_grid,
    "a comparison": compare_methods,
    "--alphas": trace_frontier,
    "--max-leaves": compare_leaves,
}


@command(
    "mmdp study data/riverswim -T 50 --methods cadp,wsu,mvp --out table.csv",
    "mmdp study models -T 15 --comparator today=now.csv --comparator never=wait",
    "mmdp study data/hiv -T 15 --alphas 0.5,0.2 --certify-time 10 -o frontier.png",
    "mmdp study data/riverswim -T 50 --max-leaves 1-8",
    "mmdp study study.toml --out results --jobs 8",
    sources=[compare_methods, trace_frontier, compare_leaves, read_models, solve_grid],
    advanced=f"tail features n_episodes backend {ADVANCED}",
)
def study(
    target: InputPath, *, out: Path | None = None, as_json: bool = False, **options: Any
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

    Parameters
    ----------
    target
        Models, as for mmdp solve, or a .toml file.
    out
        Write the table (.csv) or a picture (.png, .svg); the folder of a .toml study.
    """
    if "alphas" in options and "max_leaves" in options:
        raise InputError("--alphas is about safety and --max-leaves about trees; give one of them")
    form = "--alphas" if "alphas" in options else "a comparison"
    form = "--max-leaves" if "max_leaves" in options else form
    form = "a .toml study" if target.suffix.lower() == ".toml" else form
    _check_options(form)
    values = {**options, "target": target, "out": out, "as_json": as_json}
    if FORMS[form] is solve_grid:
        status: int = bind(solve_grid, values)
        return status
    if out is not None:
        pictures = () if form == "a comparison" else (".png", ".svg")
        out = PathParam(".csv", *pictures).convert(out, None, None)
    check_output_path(out, target, options.get("test_data"))
    train, test = bind(read_models, values)
    with LiveLine("solving", quiet=as_json) as live_line:
        form_values = {**options, "train": train, "test": test, "live_line": live_line}
        table: StudyTable = bind(FORMS[form], form_values)

    def write(path: Path) -> None:
        from mmdp.insight import plots

        if table.draw is None or path.suffix.lower() == ".csv":
            write_csv(table.frame, path)
        else:
            plots.save_figure(table.draw(), path)

    saved_path = None if out is None else write_with_fallback(write, out)
    if live_line.is_set and table.note:
        print_stderr(f"interrupted; {table.note}")
    if as_json:
        document = {"data": target, **table.document, "version": __version__}
        print_json({**document, "out": saved_path})
    else:
        print_model_header(target, train)
        if table.heading:
            print(table.heading)
        print_frame(table.frame if table.shown is None else table.shown, table.titles)
        for text in filter(None, (table.footer, saved_path and f"written to {saved_path}")):
            print(text)
    return EXIT_INTERRUPTED if live_line.is_set else 0 if saved_path == out else EXIT_NOT_WRITTEN


def _check_options(form: str) -> None:
    """Raise InputError if an option was given that does not belong to this form of a study."""
    known = {name: {x.name for x in list_options(run)} for name, run in FORMS.items()}
    ctx = click.get_current_context()
    for name in known.keys() - {"a .toml study"}:
        known[name] |= {x.name for x in list_options(read_models)} | {"out"}
    for parameter in ctx.command.params:
        key = parameter.name or ""
        is_given = ctx.get_parameter_source(key) is ParameterSource.COMMANDLINE
        if is_given and key not in known[form]:
            forms = join_or(name for name, names in known.items() if key in names)
            raise InputError(
                f"{parameter.opts[0]} does not apply to {form}, only to {forms}; leave it out"
            )
