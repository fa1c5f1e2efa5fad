"""Output of the experiment: results.csv, the figures and one self-contained page."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mmdp.core.text import format_duration, format_truncated
from mmdp.data.io import write_all_atomic
from mmdp.insight import plots
from mmdp.insight.pages import render_page
from mmdp.insight.paper.cases import COMPARABLE_METHODS, PAPER_METHODS
from mmdp.insight.paper.printed import TableName
from mmdp.insight.paper.run import PaperCell, PaperResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG_FLOOR = 1e-4  # shown instead of 0 on a log scale
EXACT_TOL = 1e-9  # relative error below which a figure counts as exact
METHOD_PAIRS = (("Oracle", "CADP"), ("CADP", "WSU"), ("CADP", "MVP"))  # methods that are compared


def write_results(results: PaperResults, out_dir: Path) -> list[Path]:
    """Write results.csv, the PNGs and paper.html into ``out_dir``; all of them or none."""
    pictures = {
        "figure.png": plots.to_png(_plot_ascent(results)[0]),
        "regret.png": plots.to_png(_plot_regret(results)),
        "queries.png": plots.to_png(_plot_queries(results)),
    }
    contents: dict[str, str | bytes] = {
        **pictures,
        "results.csv": results.to_frame().to_csv(index=False),
        "paper.html": _render_results(results, pictures),
    }
    files = {out_dir / name: content for name, content in contents.items()}
    out_dir.mkdir(parents=True, exist_ok=True)
    write_all_atomic(files)
    return list(files)


def _plot_ascent(results: PaperResults) -> list[Axes]:
    """Plot CADP's return by iteration (left) and its distance to the best result (right)."""
    left, right = plots.new_axes(2, width=9.5)
    plots.value_traces(results.ascent_values, left, ylabel="mean return over the training models")
    left.set_title("CADP by iteration on POPS, T = 50", loc="left")
    best = max(values[-1] for values in results.ascent_values.values())
    gaps = {
        name: [max(best - v, LOG_FLOOR) for v in values]
        for name, values in results.ascent_values.items()
    }
    plots.value_traces(gaps, right, ylabel="return still missing (log scale)")
    right.set_yscale("log")
    right.set_ylim(bottom=LOG_FLOOR / 2)  # so that runs that have converged are drawn at the bottom
    right.set_title("The same, below the best result", loc="left")
    return [left, right]


def _plot_regret(results: PaperResults) -> Axes:
    """Plot Bayes regret by horizon on the two-model example."""
    import pandas as pd

    names = {"cadp": "CADP (Markov)", "mixts": "MixTS, resampled each step", "pomcp": "POMCP"}
    frame = pd.DataFrame(results.regret_rows)
    frame["method"] = frame["method"].map(names)
    axis = plots.error_bars(
        frame,
        "horizon",
        "regret",
        error="stderr",
        group_by="method",
        xlabel="horizon T",
        ylabel="Bayes regret against Oracle",
    )
    axis.set_title("Two models: a Markov policy pays for ever", loc="left")
    return axis


def _plot_queries(results: PaperResults) -> Axes:
    """Plot POMCP's return above CADP by the number of tree queries."""
    import pandas as pd

    axis = plots.error_bars(
        pd.DataFrame(results.query_rows),
        "queries",
        "difference",
        error="stderr",
        log=True,
        xlabel="tree queries per decision",
        ylabel="return above CADP",
    )
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_title("POMCP on RS, T = 50 (100 test models)", loc="left")
    return axis


# ------------------------------------------------------------------ the tables
def list_columns(results: PaperResults) -> list[tuple[str, int]]:
    """List the columns (domain, horizon) of the tables, in the paper's order."""
    return list(dict.fromkeys((cell.domain, cell.horizon) for cell in results.cells))


def index_cells(results: PaperResults) -> dict[tuple[str, int, str], PaperCell]:
    """Index the cells by (domain, horizon, method)."""
    return {(cell.domain, cell.horizon, cell.method): cell for cell in results.cells}


def format_terminal_tables(results: PaperResults) -> list[tuple[str, list[str], list[list[str]]]]:
    """Format the tables as (title, columns, rows) for a terminal of 80 columns.

    ``204 =`` is our figure and the paper's; otherwise the paper's follows ours in brackets.
    """
    cells, columns = index_cells(results), list_columns(results)
    legend = "ours (paper); = the paper's digits"
    titles: dict[TableName, str] = {
        "mean_return": f"Mean return over the test models: {legend}",
        "sd_return": f"Standard deviation of returns: {legend}, * misprint",
        "minutes": "Time to compute a policy",
    }
    tables = []
    for table, title in titles.items():
        for i in range(0, len(columns), 5):  # five columns fit a terminal
            group = columns[i : i + 5]
            rows = [
                [name, *(_format_cell(cells[(*column, name)], table) for column in group)]
                for name in PAPER_METHODS
            ]
            tables.append((title, ["", *(f"{d} T={t}" for d, t in group)], rows))
    return tables


def _format_cell(cell: PaperCell, table: TableName) -> str:
    """Format our figure of a cell, with the paper's unless it is a time."""
    if table == "minutes":
        return format_duration(cell.seconds)
    ours = format_truncated(cell.our_value(table), cell.unit) + "k" * (cell.unit == 1000)
    if cell.matches_paper(table):
        return f"{ours} ="
    return ours if cell.printed_value(table) is None else f"{ours} ({format_printed(cell, table)})"


def format_printed(cell: PaperCell, table: TableName) -> str:
    """Format the paper's figure as it is printed; a star marks a misprint."""
    unit_suffix, star = "k" * (cell.unit == 1000), "*" * cell.is_misprint(table)
    return f"{format_truncated(cell.printed_value(table), cell.unit)}{unit_suffix}{star}"


class PairedDifference(NamedTuple):
    """The difference of two methods' mean returns on the same test models: ours and printed."""

    ours: float
    printed: float | None


def compute_differences(results: PaperResults) -> dict[tuple[str, int, str], PairedDifference]:
    """Compute paired differences of mean returns by domain, horizon and pair of methods."""
    cells, differences = index_cells(results), {}
    for column, (first, second) in itertools.product(list_columns(results), METHOD_PAIRS):
        pair = cells[(*column, first)], cells[(*column, second)]
        printed = [x for x in (cell.printed_value("mean_return") for cell in pair) if x is not None]
        differences[(*column, f"{first} − {second}")] = PairedDifference(
            pair[0].mean - pair[1].mean, printed[0] - printed[1] if len(printed) == 2 else None
        )
    return differences


# ------------------------------------------------------------------ the page
SOURCES = {
    "published": "the published models",
    "generated": "models sampled by us",
}


def _render_results(results: PaperResults, pictures: dict[str, bytes]) -> str:
    """Render the page with tables and figures as HTML."""
    cells = results.cells
    domains = {
        description: list(dict.fromkeys(cell.domain for cell in cells if cell.source == source))
        for source, description in SOURCES.items()
    }
    third_values = [values[min(3, len(values) - 1)] for values in results.ascent_values.values()]
    return render_page(
        "paper/page.html.j2",
        methods=PAPER_METHODS,
        columns=list_columns(results),
        cells=index_cells(results),
        pairs=[f"{first} − {second}" for first, second in METHOD_PAIRS],
        differences=compute_differences(results),
        error_of=compute_error_bar,
        as_printed=format_printed,
        sources={description: names for description, names in domains.items() if names},
        compared=[
            cell.matches_paper("mean_return")
            for cell in cells
            if cell.source == "published" and cell.method in COMPARABLE_METHODS
        ],
        misprinted=any(cell.is_misprint("sd_return") for cell in cells),
        generated=any(cell.source == "generated" for cell in cells),
        seconds=sum(cell.seconds for cell in cells),
        pictures={name: base64.b64encode(data).decode() for name, data in pictures.items()},
        spread=max(third_values) - min(third_values),
        ends={name: values[-1] for name, values in results.ascent_values.items()},
    )


def compute_error_bar(cell: PaperCell) -> float | None:
    """Compute two standard errors of a simulated mean; None if the mean is exact."""
    return 2 * cell.stderr if cell.stderr > EXACT_TOL * max(1.0, abs(cell.mean)) else None
