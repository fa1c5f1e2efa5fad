"""mmdp compare: methods side by side."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

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
    Loading,
    Running,
    build_method,
    check_out,
    command,
    option,
    takes,
    write_csv,
)
from mmdp.cli.types import PATH, Names, OutFile
from mmdp.errors import InputError
from mmdp.methods.table import METHODS, able, can
from mmdp.objective import Objective
from mmdp.words import clock, counted, figures, leading, two_errors

if TYPE_CHECKING:
    from mmdp import MMDP, Evaluation, Solution
    from mmdp.methods import Method

Row = dict[str, Any]


@command(
    "mmdp compare data/riverswim --horizon 50",
    "mmdp compare data/hiv -T 15 --methods cadp,wsu,mvp --out table.csv",
    "mmdp compare data/riverswim -T 50 --methods cadp,qmdp,mixts --episodes 100",
    "mmdp compare train.npz -T 20 --test-data test.npz --json",
)
@options.data
@options.horizon
@option(
    "--methods", "-m", type=Names("method", METHODS), metavar="A,B,...", heading=DECIDING,
    default=",".join(able(policy="markov", optimal=False)), show_default=True,
    help="Methods, in this order; see mmdp methods. With -T inf those for stationary policies.",
)  # fmt: skip
@option(
    "--test/--no-test", default=None,
    help="Evaluate on the test models of the folder; by default if there are any.",
)  # fmt: skip
@option("--test-data", type=PATH, metavar="DATA", help="Test models from another place.")
@option("--out", "-o", type=OutFile(".csv"), metavar="FILE", help="Write the table: .csv.")
@options.objective
@options.episodes
@takes(Running)
@options.as_json
@takes(Loading)
def compare(
    data: Path, horizon: float | None, methods: Sequence[str], test: bool | None,
    test_data: Path | None, out: Path | None, objective: Objective, episodes: int | None,
    running: Running, as_json: bool, loading: Loading,
) -> int:  # fmt: skip
    """Solve DATA with several methods, side by side.

    With another --objective than the mean, the columns train and test are about it, and the regret
    is still that of the mean. Methods that cannot maximise it maximise the mean instead.

    The last row, oracle, solves each model on its own, as if one knew which model is true: no
    policy does better. Regret is the distance to it, on the test models if there are any.

    Policies with memory are simulated: ± is two standard errors. The time limit holds for each
    method. After Ctrl-C the rows that are finished are printed and written, and the exit status
    is 130.
    """
    check_out(out, data, test_data)
    source = click.get_current_context().get_parameter_source("methods")
    if horizon == math.inf and source is ParameterSource.DEFAULT:
        methods = able(policy="stationary", optimal=False)
    chosen = _chosen(methods, episodes)
    train = loading.read(data, quiet=as_json)
    tested = None
    if test_data is not None or test is not False:
        tested = _read_test(data, test_data, train, test is True, loading, quiet=as_json)
    comparison = Comparison(train, tested, horizon, objective, running)
    with Working("comparing", quiet=as_json) as working:
        rows = comparison.rows(chosen, working)
    if working.pressed:
        complain(f"interrupted; {len(rows)} of {counted(len(chosen), 'method')} kept")
    if out is not None:
        import pandas as pd

        write_csv(pd.DataFrame(rows).drop(columns="status_text"), out)
    if as_json:
        count = None if tested is None else tested.n_models
        document: Row = {
            "data": data, "objective": str(objective), "models": train.n_models,
            "test_models": count, "ahead": comparison.ahead(rows),
        }  # fmt: skip
        show_json({**document, "methods": rows, "version": __version__, "out": out})
    else:
        introduce(data, train)
        _show(rows, tested, objective)
        _say_who_is_ahead(comparison.ahead(rows))
        if out is not None:
            print(f"table written to {out}")
    return INTERRUPTED if working.pressed or rows[-1]["status"] == "INTERRUPTED" else 0


def _chosen(names: Sequence[str], episodes: int | None) -> list[Method]:
    """The methods asked for, oracle moved to the end."""
    from mmdp import Oracle

    simulated = [name for name in names if name in able(policy="belief")]
    if episodes is not None and not simulated:
        raise InputError("--episodes is for methods with memory, and none of these has any")
    chosen = [
        build_method(name, {"episodes": episodes if name in simulated else None})
        for name in names
        if name != "oracle"
    ]
    return [*chosen, Oracle(keep_policies=False)]


def _read_test(
    data: Path, test_data: Path | None, train: MMDP, wanted: bool, loading: Loading, *, quiet: bool
) -> MMDP | None:
    if test_data is not None:
        return loading.read(test_data, quiet=quiet).ordered_like(train)
    found = loading.read_test(data, train, quiet=quiet)
    if found is None and wanted:
        raise InputError(f"{data} has no test models; name them with --test-data")
    return found


@dataclass(frozen=True)
class Comparison:
    """The same problem for every method."""

    train: MMDP
    test: MMDP | None
    horizon: float | None
    objective: Objective
    running: Running
    evaluations: dict[str, Evaluation] = field(default_factory=dict)  # on the test models

    def ahead(self, rows: Sequence[Row]) -> Row | None:
        """Which policy beats the best one of the training models on the test models, if any."""
        policies = [row for row in rows if row["method"] in self.evaluations]
        if not policies or not self.objective.linear:
            return None
        first = max(policies, key=lambda row: row["train"])["method"]
        best = max(policies, key=lambda row: row["test"])["method"]
        difference, error = self.evaluations[best].lead(self.evaluations[first])
        if not difference > 1e-9 * abs(self.evaluations[first].mean):
            return None
        return {"method": best, "of": first, "difference": difference, "stderr": error}

    def rows(self, methods: Sequence[Method], working: Working) -> list[Row]:
        """One row per method, until Ctrl-C."""
        rows: list[Row] = []
        for method in methods:
            working.say(f"solving with {method.name}")
            try:
                rows.append(self._row(method, working))
            except KeyboardInterrupt:  # this method has nothing yet; the others have
                if not rows:
                    raise
                break
            if rows[-1]["status"] == "INTERRUPTED":
                break
        return rows

    def _row(self, method: Method, working: Working) -> Row:
        import mmdp

        running = dataclasses.asdict(self.running)
        solution = mmdp.solve(
            self.train, self.horizon, method, **running, callback=working.progress,
            objective=self.objective if self._aims(method) else "mean",
        )  # fmt: skip
        found = solution.evaluation
        row: Row = {
            "method": method.name, "horizon": solution.provenance.horizon,
            "train": found.value(self.objective), "train_stderr": self._stderr(found),
            "train_sd": found.sd,
            "regret": found.bayes_regret,
        }  # fmt: skip
        if self.test is not None:
            found = self._tested(method, solution, self.test)
            row |= {
                "test": found.value(self.objective), "test_stderr": self._stderr(found),
                "test_sd": found.sd, "test_regret": found.bayes_regret,
            }  # fmt: skip
        return row | {
            "iterations": solution.iterations, "seconds": solution.seconds,
            "status": solution.status.name, "status_text": solution.outcome,
        }  # fmt: skip

    def _aims(self, method: Method) -> bool:
        return can(method, self.train, self.horizon, self.objective)

    def _tested(self, method: Method, solution: Solution, test: MMDP) -> Evaluation:
        import mmdp

        backend = self.running.backend
        if method.name == "oracle":
            return mmdp.solve(test, self.horizon, method, backend=backend).evaluation
        found = self.evaluations[method.name] = mmdp.evaluate(
            solution, test, episodes=getattr(method, "episodes", None),
            seed=self.running.seed, backend=backend,
        )  # fmt: skip
        return found

    def _stderr(self, found: Evaluation) -> float | None:
        """The error of a simulated mean; that of another objective is not known."""
        return None if found.errors is None or not self.objective.linear else found.stderr


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
