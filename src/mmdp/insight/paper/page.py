"""Output of the experiment: results.csv, the figures and one self-contained page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmdp.core.text import format_duration, format_truncated
from mmdp.data.io import write_all_atomic
from mmdp.insight import plots
from mmdp.insight.pages import render_page
from mmdp.insight.paper.cases import COMPARABLE_METHODS, PAPER_METHODS, CellKey, find_unit
from mmdp.insight.paper.run import PaperResults, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG_FLOOR = 1e-4  # shown instead of 0 on a log scale
EXACT_TOL = 1e-9  # relative error below which a figure counts as exact
METHOD_PAIRS = (("Oracle", "CADP"), ("CADP", "WSU"), ("CADP", "MVP"))  # methods that are compared


def write_results(results: PaperResults, out_dir: Path) -> list[Path]:
    """Write results.csv, the PNGs and paper.html into ``out_dir``; all of them or none."""
    import pandas as pd

    regrets, differences = pd.DataFrame(results.regrets), pd.DataFrame(results.differences)
    axes = {"figure": _plot_ascent(results.traces)[0]}
    axes["regret"] = plots.error_bars(
        regrets,
        "horizon",
        "regret",
        error="stderr",
        group_by="method",
        xlabel="horizon T",
        ylabel="Bayes regret against Oracle",
    )
    axes["regret"].set_title("Two models: a Markov policy pays for ever", loc="left")
    axes["queries"] = plots.error_bars(
        differences,
        "queries",
        "difference",
        error="stderr",
        log=True,
        xlabel="tree queries per decision",
        ylabel="return above CADP",
    )
    axes["queries"].axhline(0, color="black", linewidth=0.8)
    axes["queries"].set_title("POMCP on RS, T = 50 (100 test models)", loc="left")
    pictures = {f"{name}.png": plots.to_png(axis) for name, axis in axes.items()}
    contents: dict[str, str | bytes] = {
        **pictures,
        "results.csv": pd.DataFrame(results.records).to_csv(index=False),
        "paper.html": _render_results(results, pictures),
    }
    files = {out_dir / name: content for name, content in contents.items()}
    out_dir.mkdir(parents=True, exist_ok=True)
    write_all_atomic(files)
    return list(files)


def _plot_ascent(traces: Mapping[str, Sequence[float]]) -> list[Axes]:
    """Plot CADP's return by iteration (left) and its distance to the best result (right)."""
    left, right = plots.new_axes(2, width=9.5)
    plots.value_traces(traces, left, ylabel="mean return over the training models")
    left.set_title("CADP by iteration on POPS, T = 50", loc="left")
    best = max(values[-1] for values in traces.values())
    gaps = {name: [max(best - v, LOG_FLOOR) for v in values] for name, values in traces.items()}
    plots.value_traces(gaps, right, ylabel="return still missing (log scale)")
    right.set_yscale("log")
    right.set_ylim(bottom=LOG_FLOOR / 2)  # so that runs that have converged are drawn at the bottom
    right.set_title("The same, below the best result", loc="left")
    return [left, right]


# ------------------------------------------------------------------ the tables
def index_records(records: Sequence[Record]) -> dict[CellKey, Record]:
    """Index the rows by (domain, horizon, method)."""
    return {(x["domain"], x["horizon"], x["method"]): x for x in records}


def format_terminal_tables(
    records: Sequence[Record],
) -> list[tuple[str, list[str], list[list[str]]]]:
    """Format the tables as (title, columns, rows) for a terminal of 80 columns.

    ``204 =`` is our figure and the paper's; otherwise the paper's follows ours in brackets.
    """
    cells = index_records(records)
    columns = list(dict.fromkeys((domain, horizon) for domain, horizon, _ in cells))
    legend = "ours (paper); = the paper's digits"
    titles = {
        "mean": f"Mean return over the test models: {legend}",
        "sd": f"Standard deviation of returns: {legend}, * misprint",
        "seconds": "Time to compute a policy",
    }
    tables = []
    for name, title in titles.items():
        for i in range(0, len(columns), 5):  # five columns fit a terminal
            group = columns[i : i + 5]
            rows = [
                [method, *(_format_cell(cells[(*column, method)], name) for column in group)]
                for method in PAPER_METHODS
            ]
            tables.append((title, ["", *(f"{d} T={t}" for d, t in group)], rows))
    return tables


def _format_cell(record: Record, name: str) -> str:
    """Format our figure of a cell, with the paper's unless it is a time."""
    if name == "seconds":
        return format_duration(record[name])
    ours = _format_figure(record, name)
    if record[f"{name}_equal"]:
        return f"{ours} ="
    return ours if record[f"paper_{name}"] is None else f"{ours} ({format_printed(record, name)})"


def _format_figure(record: Record, column: str) -> str:
    """Format a figure with the digits of the paper."""
    unit = find_unit((record["domain"], record["horizon"], record["method"]))
    return format_truncated(record[column], unit) + "k" * (unit == 1000)


def format_printed(record: Record, name: str) -> str:
    """Format the paper's figure as it is printed; a star marks a misprint."""
    star = "*" * (name == "sd" and record["sd_misprinted"])
    return _format_figure(record, f"paper_{name}") + star


# ------------------------------------------------------------------ the page
SOURCES = {
    "published": "the published models",
    "generated": "models sampled by us",
}


def _render_results(results: PaperResults, pictures: dict[str, bytes]) -> str:
    """Render the page with tables and figures as HTML."""
    records, cells = results.records, index_records(results.records)
    columns = list(dict.fromkeys((domain, horizon) for domain, horizon, _ in cells))
    domains = {
        text: list(dict.fromkeys(x["domain"] for x in records if x["models"] == source))
        for source, text in SOURCES.items()
    }
    # on the same test models, ours and printed: None if one is not printed
    differences = {
        (*column, f"{first} − {second}"): [
            None if None in (x, y) else x - y
            for x, y in (
                (cells[(*column, first)][name], cells[(*column, second)][name])
                for name in ("mean", "paper_mean")
            )
        ]
        for column in columns
        for first, second in METHOD_PAIRS
    }
    third_values = [values[min(3, len(values) - 1)] for values in results.traces.values()]
    return render_page(
        "paper/page.html.j2",
        methods=PAPER_METHODS,
        columns=columns,
        cells=cells,
        pairs=[f"{first} − {second}" for first, second in METHOD_PAIRS],
        differences=differences,
        error_of=compute_error_bar,
        as_printed=format_printed,
        sources={text: names for text, names in domains.items() if names},
        compared=[
            x["mean_equal"]
            for x in records
            if x["models"] == "published" and x["method"] in COMPARABLE_METHODS
        ],
        misprinted=any(x["sd_misprinted"] for x in records),
        generated=any(x["models"] == "generated" for x in records),
        seconds=sum(x["seconds"] for x in records),
        pictures={name: base64.b64encode(data).decode() for name, data in pictures.items()},
        spread=max(third_values) - min(third_values),
        ends={name: values[-1] for name, values in results.traces.items()},
    )


def compute_error_bar(record: Record) -> float | None:
    """Compute two standard errors of a simulated mean; None if the mean is exact."""
    mean, stderr = record["mean"], record["stderr"]
    return 2 * stderr if stderr > EXACT_TOL * max(1.0, abs(mean)) else None
