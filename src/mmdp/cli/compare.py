"""mmdp compare: methods side by side."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import click
from click.core import ParameterSource

from mmdp import MMDP, Evaluation, Oracle, Status
from mmdp._version import __version__
from mmdp.cli import options
from mmdp.cli.console import (
    WIDTH,
    Working,
    complain,
    introduce,
    named,
    show_json,
    show_table,
)
from mmdp.cli.options import (
    DECIDING,
    INTERRUPTED,
    NOT_WRITTEN,
    Loading,
    Running,
    build_method,
    check_out,
    command,
    named_rules,
    option,
    takes,
    write_csv,
    write_somewhere,
)
from mmdp.cli.types import PATH, Names, OutFile
from mmdp.errors import InputError
from mmdp.methods import Context, Method, Outcome, Question
from mmdp.methods.table import METHODS, able, can
from mmdp.objective import Objective
from mmdp.study import Cell, Found, Row, Run, Source
from mmdp.validate import check_horizon
from mmdp.words import clock, counted, figures, leading, two_errors


@command(
    "mmdp compare data/riverswim --horizon 50",
    "mmdp compare data/hiv -T 15 --methods cadp,wsu,mvp --out table.csv",
    "mmdp compare data/riverswim -T 50 --methods cadp,qmdp,mixts --episodes 100",
    "mmdp compare models -T 15 --compare today=practice.csv --compare never=wait",
    "mmdp compare train.npz -T 20 --test-data test.npz --json",
)
@options.data
@options.horizon
@option(
    "--methods", "-m", type=Names("method", METHODS), metavar="A,B,...", heading=DECIDING,
    default=",".join(able(policy="markov", optimal=False)), show_default=True,
    help="Methods, in this order; see mmdp methods. With -T inf those for stationary policies.",
)  # fmt: skip
@options.against
@option(
    "--test/--no-test", default=None,
    help="Evaluate on the test models of the folder; by default if there are any.",
)  # fmt: skip
@option("--test-data", type=PATH, metavar="DATA", help="Test models to use instead.")
@option("--out", "-o", type=OutFile(".csv"), metavar="FILE", help="Write the table: .csv.")
@options.objective
@options.episodes
@takes(Running)
@options.as_json
@takes(Loading)
def compare(
    data: Path, horizon: float | None, methods: Sequence[str], compare: dict[str, str],
    test: bool | None, test_data: Path | None, out: Path | None, objective: Objective,
    episodes: int | None, running: Running, as_json: bool, loading: Loading,
) -> int:  # fmt: skip
    """Solve DATA with several methods, side by side, and compare with what is done today.

    With an --objective other than the mean, the columns train and test show that objective; regret
    is still that of the mean. Methods that cannot maximise it maximise the mean instead.

    The last row, oracle, solves each model on its own, as if one knew which model is true: no
    policy does better. Regret is the distance to it, on the test models if there are any.

    Policies with memory are simulated: ± is two standard errors. The time limit is per method.
    After Ctrl-C the finished rows are printed and written, and the exit status is 130. If FILE
    cannot be written, the exit status is 1 and the table is printed and, if possible, saved
    elsewhere.
    """
    import pandas as pd

    check_out(out, data, test_data)
    source = click.get_current_context().get_parameter_source("methods")
    if horizon == math.inf and source is ParameterSource.DEFAULT:
        methods = able(policy="stationary", optimal=False)
    chosen = _chosen(methods, episodes)
    train = loading.read(data, quiet=as_json)
    chosen[-1:-1] = _given(named_rules(compare, train), train, horizon)
    tested = None
    if test_data is not None or test is not False:
        tested = _read_test(data, test_data, train, test is True, loading, quiet=as_json)
    sources = Source.of(train), None if tested is None else Source.of(tested)
    with Working("comparing", quiet=as_json) as working:
        cells = [
            Compared({}, *sources, horizon, method, objective, **asdict(running), working=working)
            for method in chosen
        ]
        run = Run(cells, strict=True)
    rows = [row for row in run.rows if row["status"] != "INTERRUPTED"]
    ahead = _ahead(rows, [row.pop("evaluation") for row in rows], objective)
    table = pd.DataFrame(rows).drop(columns="status_text")
    written = None if out is None else write_somewhere(partial(write_csv, table), out)
    if run.interrupted:
        complain(f"interrupted; {len(rows)} of {counted(len(chosen), 'method')} kept")
    if as_json:
        count = None if tested is None else tested.n_models
        document: Row = {
            "data": data, "objective": str(objective), "models": train.n_models,
            "test_models": count, "ahead": ahead,
        }  # fmt: skip
        show_json({**document, "methods": rows, "version": __version__, "out": written})
    else:
        introduce(data, train)
        _show(rows, tested, objective)
        _say_who_is_ahead(ahead)
        if written is not None:
            print(f"table written to {written}")
    return INTERRUPTED if run.interrupted else 0 if written == out else NOT_WRITTEN


def _chosen(names: Sequence[str], episodes: int | None) -> list[Method]:
    """The methods asked for, oracle moved to the end."""
    simulated = [name for name in names if name in able(policy="belief")]
    if episodes is not None and not simulated:
        raise InputError("--episodes is for methods with memory, but none of these has any")
    chosen = [
        build_method(name, {"episodes": episodes if name in simulated else None})
        for name in names
        if name != "oracle"
    ]
    return [*chosen, Oracle(keep_policies=False)]


@dataclass(frozen=True, eq=False)
class Given(Method):
    """A policy that was given, as if a method had found it; ``table`` as in ``PolicyKind``."""

    name: str  # type: ignore[misc]
    table: Any
    complete: ClassVar[bool] = True

    def lacks(self, question: Question) -> str | None:
        return None

    def run(self, context: Context) -> Outcome:
        return Outcome(self.table, Status.COMPLETED, 0)


def _given(rules: Mapping[str, Any], model: MMDP, horizon: float | None) -> list[Method]:
    """The policies of ``--compare``; over an infinite horizon, rules that are always the same."""
    from mmdp.economics.comparators import named_policies

    endless = horizon == math.inf
    for name, rule in rules.items() if endless else ():
        if getattr(rule, "horizon", math.inf) != math.inf:
            raise InputError(f"policy {name!r}: it ends after {rule.horizon} decisions; -T inf "
                             "needs a rule that is the same at all times")  # fmt: skip
    found = named_policies(rules, model, 1 if endless else check_horizon(model.horizon, horizon))
    return [Given(name, x.table[0] if endless else x.table) for name, x in found.items()]


def _read_test(
    data: Path, test_data: Path | None, train: MMDP, wanted: bool, loading: Loading, *, quiet: bool
) -> MMDP | None:
    if test_data is not None:
        return loading.read(test_data, quiet=quiet).ordered_like(train)
    found = loading.read_test(data, train, quiet=quiet)
    if found is None and wanted:
        raise InputError(f"{data} has no test models; name them with --test-data")
    return found


@dataclass(frozen=True, eq=False)
class Compared(Cell):
    """A row of the table: every method by the same objective, which some cannot maximise."""

    working: Any = None

    def ready(self, train: MMDP, test: MMDP | None) -> Cell:
        doing = "evaluating" if isinstance(self.method, Given) else "solving with"
        self.working.say(f"{doing} {self.method.name}")
        able = can(self.method, train, self.horizon, self.objective)
        return self if able else replace(self, objective="mean")

    @property
    def asked(self) -> Row:
        return {**super().asked, "callback": self.working.progress}

    def row(self, found: Found) -> Row:
        solution, tested = found.solution, found.evaluation
        return {
            "method": self.method.name, "horizon": solution.provenance.horizon,
            **self._over("train", solution.evaluation), "regret": solution.evaluation.bayes_regret,
            **({} if tested is None else self._over("test", tested)),
            **({} if tested is None else {"test_regret": tested.bayes_regret}),
            "iterations": solution.iterations, "seconds": solution.seconds,
            "status": solution.status.name, "status_text": solution.outcome,
            "evaluation": None if solution.policy is None else tested,
        }  # fmt: skip

    def _over(self, name: str, found: Evaluation) -> Row:
        """The error is that of a simulated mean; of another objective it is not known."""
        known = found.errors is not None and self.objective.linear
        return {
            name: found.value(self.objective),
            f"{name}_stderr": found.stderr if known else None, f"{name}_sd": found.sd,
        }  # fmt: skip


def _ahead(
    rows: Sequence[Row], tests: Sequence[Evaluation | None], objective: Objective
) -> Row | None:
    """Which policy beats the best one of the training models on the test models, if any."""
    policies = [(row, test) for row, test in zip(rows, tests, strict=True) if test is not None]
    if not policies or not objective.linear:
        return None
    first, known = max(policies, key=lambda x: x[0]["train"])
    best, found = max(policies, key=lambda x: x[0]["test"])
    difference, error = found.lead(known)
    if not difference > 1e-9 * abs(known.mean):
        return None
    names = {"method": best["method"], "of": first["method"]}
    return {**names, "difference": difference, "stderr": error}


def _show(rows: Sequence[Mapping[str, Any]], test: MMDP | None, objective: Objective) -> None:
    simulated = any(row["train_stderr"] is not None for row in rows)
    keys = {"train": "train", "train_sd": "sd", "regret": "regret"}
    if test is not None:
        keys = {"train": "train", "test": "test", "test_sd": "test sd", "test_regret": "regret"}
    if not objective.linear:
        keys |= {key: "mean regret" for key in keys if key.endswith("regret")}
    columns = [("method", [row["method"] for row in rows])]
    for key, title in keys.items():
        columns.append((title, figures([row[key] for row in rows])))
        if simulated and f"{key}_stderr" in rows[0]:
            columns.append(("±", two_errors(row[f"{key}_stderr"] for row in rows)))
    if not simulated:  # a planner has no iterations, and a line is short
        columns.append(("iter.", [f"{row['iterations']:,}" for row in rows]))
    columns.append(("seconds", [clock(row["seconds"]) for row in rows]))
    models = counted(test.n_models, "test model") if test is not None else "no test models"
    print(f"{models}, horizon {rows[0]['horizon']}{named(objective)}")
    titles, cells = zip(*columns, strict=True)
    show_table(titles, list(zip(*cells, strict=True)))
    for row in rows:
        if row["status"] in ("TIME_LIMIT", "ITERATION_LIMIT", "INTERRUPTED"):
            print(f"{row['method']}: {row['status_text']}")


def _say_who_is_ahead(ahead: Row | None) -> None:
    if ahead is not None:
        by = leading(ahead["difference"], ahead["stderr"])
        first = f"{ahead['of']}, the best on the training models"
        print(
            textwrap.fill(f"on the test models {ahead['method']} is ahead of {first}, {by}", WIDTH)
        )
