"""What safety costs, and what each further leaf of a tree earns: forms of ``mmdp study``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mmdp._version import __version__
from mmdp.cli.console import LiveLine, print_json, print_model_header, print_table
from mmdp.cli.options import (
    EXIT_INTERRUPTED,
    EXIT_NOT_WRITTEN,
    LoadArgs,
    check_output_path,
    write_csv,
    write_with_fallback,
)
from mmdp.core.objectives import Objective
from mmdp.core.solution import Status
from mmdp.core.text import format_bound_percent, format_column, format_percent, format_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from mmdp.core.model import MMDP
    from mmdp.core.solution import Solution
    from mmdp.insight.measures import RiskFrontier


def run_frontier(
    data: Path,
    horizon: int | None,
    alphas: Sequence[float] | None,
    tail: float,
    certify_time: float | None,
    out: Path | None,
    seed: int,
    backend: str,
    as_json: bool,
    load_args: LoadArgs,
) -> int:
    """Print mean return against the worst models for policies by CVaR; return the exit status."""
    import mmdp

    model, test_model = _read_models(data, out, load_args, quiet=as_json)
    with LiveLine("solving", quiet=as_json) as live_line:
        result = mmdp.measures.risk_frontier(
            model,
            horizon,
            *([] if alphas is None else [alphas]),
            tail=tail,
            test_model=test_model,
            certify_time=certify_time,
            backend=backend,
            seed=seed,
            callback=lambda progress: live_line.update(f"{progress.stage}: solved"),
        )
    output = _Output(result.to_frame(), result.plot, partial(_print_frontier, result))
    return output.write(data, model, out, live_line, {"tail": tail}, as_json=as_json)


def run_leaf_values(
    data: Path,
    horizon: int | None,
    n_leaves: range,
    features: Path | None,
    objective: Objective,
    certify_time: float | None,
    out: Path | None,
    seed: int,
    backend: str,
    as_json: bool,
    load_args: LoadArgs,
) -> int:
    """Print what each further leaf of a small tree earns; return the exit status."""
    import mmdp

    model, test_model = _read_models(data, out, load_args, quiet=as_json)
    with LiveLine("solving", quiet=as_json) as live_line:
        frame = mmdp.measures.value_by_leaves(
            model,
            horizon,
            n_leaves,
            features=features,
            objective=objective,
            test_model=test_model,
            certify_time=certify_time,
            backend=backend,
            seed=seed,
        )
    output = _Output(
        frame, partial(mmdp.plots.value_by_leaves, frame), partial(_print_leaf_values, frame)
    )
    facts = {"elbow": frame.attrs["elbow"]}
    return output.write(data, model, out, live_line, facts, as_json=as_json)


def _read_models(
    data: Path, out: Path | None, load_args: LoadArgs, *, quiet: bool
) -> tuple[MMDP, MMDP | None]:
    check_output_path(out, data)
    model = load_args.read_models(data, quiet=quiet)
    return model, load_args.read_test_models(data, model, quiet=quiet)


@dataclass(frozen=True)
class _Output:
    """A table, the function that draws it and the function that prints it."""

    frame: pd.DataFrame
    draw_axes: Callable[[], Axes]
    print_table: Callable[[], None]

    def write(
        self,
        data: Path,
        model: MMDP,
        out: Path | None,
        live_line: LiveLine,
        facts: dict[str, object],
        *,
        as_json: bool,
    ) -> int:
        """Write the table or picture to ``out``, print it, and return the exit status."""
        saved_path = (
            None
            if out is None
            else write_with_fallback(partial(_write_output, self.frame, self.draw_axes), out)
        )
        if as_json:
            document = {"data": data, **facts, "points": self.frame.to_dict("records")}
            print_json({**document, "version": __version__, "out": saved_path})
        else:
            print_model_header(data, model)
            self.print_table()
            if saved_path is not None:
                print(f"written to {saved_path}")
        if live_line.is_set:
            return EXIT_INTERRUPTED
        return 0 if saved_path == out else EXIT_NOT_WRITTEN


def _write_output(frame: pd.DataFrame, draw_axes: Callable[[], Axes], out: Path) -> None:
    from mmdp.insight import plots

    if out.suffix.lower() == ".csv":
        write_csv(frame, out)
    else:
        plots.save_figure(draw_axes(), out)


def _print_leaf_values(frame: pd.DataFrame) -> None:
    """A line for each number of leaves, where to stop, and the rule there."""
    shares = [format_percent(x) for x in frame["share"].clip(lower=0)]
    columns = [("leaves", frame["leaves"].map(str).tolist())]
    values = frame.astype(object).where(frame.notna(), None)
    columns += [
        (name, format_column(values[name].tolist()))
        for name in ("value", "gain", "restriction_cost")
    ]
    columns.append(("of stake", shares))
    if "gap" in frame:
        columns.append(("gap", [format_bound_percent(x) for x in frame["gap"]]))
    if "test" in frame:
        columns.append(("test", format_column(frame["test"].tolist())))
    columns.append(("seconds", [format_seconds(x) for x in frame["seconds"]]))
    names, cells = zip(*columns, strict=True)
    print_table(names, list(zip(*cells, strict=True)))
    rule_text = frame.loc[frame["leaves"] == frame.attrs["elbow"], "rule"].item()
    print(f"{frame.attrs['text']}\n\n{rule_text}")


def _format_gap(point: Solution) -> str:
    if point.status is Status.OPTIMAL:
        return "optimal"
    return "–" if point.gap is None else format_bound_percent(point.gap)


def _print_frontier(result: RiskFrontier) -> None:
    frame = result.to_frame()
    titles = {"value": "value", "mean": "mean", "tail": "tail", "worst": "worst"}
    if result.test_evaluations:
        titles |= {"test_mean": "test mean", "test_tail": "test tail"}
    columns = [("best for", frame["objective"].tolist())]
    columns += [(title, format_column(frame[key].tolist())) for key, title in titles.items()]
    if frame["gap"].notna().any():
        columns.append(("gap", [_format_gap(point) for point in result.solutions]))
    names, cells = zip(*columns, strict=True)
    horizon = result.solutions[0].provenance.horizon
    print(f"horizon {horizon}, tail: mean of the worst {100 * result.tail:g}%")
    print_table(names, list(zip(*cells, strict=True)))
