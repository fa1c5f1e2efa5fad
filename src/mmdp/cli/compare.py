"""Methods side by side on one set of models: a form of ``mmdp study``."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mmdp import MMDP, Evaluation, Status
from mmdp._version import __version__
from mmdp.cli.console import (
    WIDTH,
    LiveLine,
    objective_suffix,
    print_json,
    print_model_header,
    print_stderr,
    print_table,
)
from mmdp.cli.options import (
    EXIT_INTERRUPTED,
    EXIT_NOT_WRITTEN,
    LoadArgs,
    RunArgs,
    build_method,
    check_output_path,
    read_comparators,
    write_csv,
    write_with_fallback,
)
from mmdp.core.errors import InputError
from mmdp.core.methods import Method, MethodResult, Oracle, ProblemSpec, SolveContext
from mmdp.core.methods.registry import methods_supporting, supports
from mmdp.core.objectives import Objective
from mmdp.core.text import format_column, format_lead, format_seconds, format_two_stderrs, pluralize
from mmdp.core.validate import check_horizon
from mmdp.insight.study import EvaluatedSolution, ModelSource, StudyCell, StudyRow, StudyRunner


def run_comparison(
    data: Path,
    horizon: float | None,
    methods: Sequence[str] | None,
    comparator: dict[str, str],
    test: bool | None,
    test_data: Path | None,
    out: Path | None,
    objective: Objective,
    n_episodes: int | None,
    run_args: RunArgs,
    as_json: bool,
    load_args: LoadArgs,
) -> int:
    """Solve with several methods and print their values side by side; return the exit status.

    Without ``methods``, those for the horizon. Methods that do not support the objective maximize
    the mean instead. ``comparator`` maps names to policy files or actions.
    """
    import pandas as pd

    check_output_path(out, data, test_data)
    if methods is None:
        default_class = "stationary" if horizon == math.inf else "markov"
        methods = methods_supporting(policy_class=default_class, proves_optimal=False)
    selected = _build_methods(methods, n_episodes)
    train = load_args.read_models(data, quiet=as_json)
    selected[-1:-1] = _make_given_methods(read_comparators(comparator, train), train, horizon)
    test_model = None
    if test_data is not None or test is not False:
        test_model = _read_test_model(
            data, test_data, train, test is True, load_args, quiet=as_json
        )
    sources = (
        ModelSource.from_models(train),
        None if test_model is None else ModelSource.from_models(test_model),
    )
    with LiveLine("comparing", quiet=as_json) as live_line:
        cells = [
            CompareCell(
                {}, *sources, horizon, method, objective, **asdict(run_args), live_line=live_line
            )
            for method in selected
        ]
        runner = StudyRunner(cells, raise_errors=True)
    rows = [row for row in runner.rows if row["status"] != "INTERRUPTED"]
    leader = _find_leader(rows, [row.pop("evaluation") for row in rows], objective)
    table = pd.DataFrame(rows).drop(columns="status_text")
    saved_path = None if out is None else write_with_fallback(partial(write_csv, table), out)
    if runner.is_interrupted:
        print_stderr(f"interrupted; {len(rows)} of {pluralize(len(selected), 'method')} kept")
    if as_json:
        n_test_models = None if test_model is None else test_model.n_models
        document: StudyRow = {
            "data": data,
            "objective": str(objective),
            "models": train.n_models,
            "test_models": n_test_models,
            "ahead": leader,
        }
        print_json({**document, "methods": rows, "version": __version__, "out": saved_path})
    else:
        print_model_header(data, train)
        _print_table(rows, test_model, objective)
        _print_leader(leader)
        if saved_path is not None:
            print(f"table written to {saved_path}")
    return (
        EXIT_INTERRUPTED if runner.is_interrupted else 0 if saved_path == out else EXIT_NOT_WRITTEN
    )


def _build_methods(names: Sequence[str], n_episodes: int | None) -> list[Method]:
    """The methods asked for, oracle moved to the end."""
    simulated = [name for name in names if name in methods_supporting(policy_class="belief")]
    if n_episodes is not None and not simulated:
        raise InputError("--n-episodes is for methods with memory, but none of these has any")
    selected = [
        build_method(name, {"n_episodes": n_episodes if name in simulated else None})
        for name in names
        if name != "oracle"
    ]
    return [*selected, Oracle(keep_policies=False)]


@dataclass(frozen=True, eq=False)
class GivenPolicyMethod(Method):
    """A policy that was given, as if a method had found it; ``table`` as in ``PolicyKind``."""

    name: str  # type: ignore[misc]
    table: Any
    covers_unreachable: ClassVar[bool] = True

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        return None

    def run(self, context: SolveContext) -> MethodResult:
        return MethodResult(self.table, Status.COMPLETED, 0)


def _make_given_methods(
    strategies: Mapping[str, Any], model: MMDP, horizon: float | None
) -> list[Method]:
    """Make methods of the policies of ``--comparator``; they are stationary if the horizon is."""
    from mmdp.insight.economics.comparators import make_named_policies

    is_infinite = horizon == math.inf
    for name, strategy in strategies.items() if is_infinite else ():
        if getattr(strategy, "horizon", math.inf) != math.inf:
            raise InputError(
                f"policy {name!r}: it ends after {strategy.horizon} decisions; -T inf "
                "needs a rule that is the same at all times"
            )
    policies = make_named_policies(
        strategies, model, 1 if is_infinite else check_horizon(model.horizon, horizon)
    )
    return [
        GivenPolicyMethod(name, x.table[0] if is_infinite else x.table)
        for name, x in policies.items()
    ]


def _read_test_model(
    data: Path,
    test_data: Path | None,
    train: MMDP,
    is_required: bool,
    load_args: LoadArgs,
    *,
    quiet: bool,
) -> MMDP | None:
    if test_data is not None:
        return load_args.read_models(test_data, quiet=quiet).reorder_like(train)
    test_model = load_args.read_test_models(data, train, quiet=quiet)
    if test_model is None and is_required:
        raise InputError(f"{data} has no test models; name them with --test-data")
    return test_model


@dataclass(frozen=True, eq=False)
class CompareCell(StudyCell):
    """A row of the table: every method by the same objective, which some cannot maximise."""

    live_line: Any = None

    def adapt_to_models(self, train: MMDP, test: MMDP | None) -> StudyCell:
        verb = "evaluating" if isinstance(self.method, GivenPolicyMethod) else "solving with"
        self.live_line.update(f"{verb} {self.method.name}")
        is_supported = supports(self.method, train, self.horizon, self.objective)
        return self if is_supported else replace(self, objective="mean")

    @property
    def solve_kwargs(self) -> StudyRow:
        return {**super().solve_kwargs, "callback": self.live_line.show_progress}

    def make_row(self, evaluated_solution: EvaluatedSolution) -> StudyRow:
        solution, test_evaluation = evaluated_solution.solution, evaluated_solution.test_evaluation
        return {
            "method": self.method.name,
            "horizon": solution.provenance.horizon,
            **self._summary_columns("train", solution.evaluation),
            "regret": solution.evaluation.bayes_regret,
            **({} if test_evaluation is None else self._summary_columns("test", test_evaluation)),
            **({} if test_evaluation is None else {"test_regret": test_evaluation.bayes_regret}),
            "iterations": solution.iterations,
            "seconds": solution.seconds,
            "status": solution.status.name,
            "status_text": solution.status_text,
            "evaluation": None if solution.policy is None else test_evaluation,
        }

    def _summary_columns(self, name: str, evaluation: Evaluation) -> StudyRow:
        """The error is that of a simulated mean; of another objective it is not known."""
        has_stderr = evaluation.standard_errors is not None and self.objective.is_mean
        return {
            name: evaluation.value(self.objective),
            f"{name}_stderr": evaluation.stderr if has_stderr else None,
            f"{name}_sd": evaluation.sd,
        }


def _find_leader(
    rows: Sequence[StudyRow], test_evaluations: Sequence[Evaluation | None], objective: Objective
) -> StudyRow | None:
    """Which policy beats the best one of the training models on the test models, if any."""
    candidates = [
        (row, test) for row, test in zip(rows, test_evaluations, strict=True) if test is not None
    ]
    if not candidates or not objective.is_mean:
        return None
    train_best, train_best_evaluation = max(candidates, key=lambda x: x[0]["train"])
    test_best, test_best_evaluation = max(candidates, key=lambda x: x[0]["test"])
    difference, stderr = test_best_evaluation.compare_mean(train_best_evaluation)
    if not difference > 1e-9 * abs(train_best_evaluation.mean):
        return None
    methods = {"method": test_best["method"], "of": train_best["method"]}
    return {**methods, "difference": difference, "stderr": stderr}


def _print_table(
    rows: Sequence[Mapping[str, Any]], test_model: MMDP | None, objective: Objective
) -> None:
    is_simulated = any(row["train_stderr"] is not None for row in rows)
    keys = {"train": "train", "train_sd": "sd", "regret": "regret"}
    if test_model is not None:
        keys = {"train": "train", "test": "test", "test_sd": "test sd", "test_regret": "regret"}
    if not objective.is_mean:
        keys |= {key: "mean regret" for key in keys if key.endswith("regret")}
    columns = [("method", [row["method"] for row in rows])]
    for key, title in keys.items():
        columns.append((title, format_column([row[key] for row in rows])))
        if is_simulated and f"{key}_stderr" in rows[0]:
            columns.append(("±", format_two_stderrs(row[f"{key}_stderr"] for row in rows)))
    if not is_simulated:  # a planner has no iterations, and a line is short
        columns.append(("iter.", [f"{row['iterations']:,}" for row in rows]))
    columns.append(("seconds", [format_seconds(row["seconds"]) for row in rows]))
    models_text = (
        pluralize(test_model.n_models, "test model") if test_model is not None else "no test models"
    )
    print(f"{models_text}, horizon {rows[0]['horizon']}{objective_suffix(objective)}")
    titles, cells = zip(*columns, strict=True)
    print_table(titles, list(zip(*cells, strict=True)))
    for row in rows:
        if row["status"] in ("TIME_LIMIT", "ITERATION_LIMIT", "INTERRUPTED"):
            print(f"{row['method']}: {row['status_text']}")


def _print_leader(leader: StudyRow | None) -> None:
    if leader is not None:
        lead_text = format_lead(leader["difference"], leader["stderr"])
        reference_text = f"{leader['of']}, the best on the training models"
        print(
            textwrap.fill(
                f"on the test models {leader['method']} is ahead of {reference_text}, {lead_text}",
                WIDTH,
            )
        )
