"""What the job writes: results.csv, the pictures and one self-contained page."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmdp import plots
from mmdp.io import write_all
from mmdp.pages import render
from mmdp.paper.cases import COMPARABLE, METHODS
from mmdp.paper.figures import Table
from mmdp.paper.run import Cell, Results
from mmdp.words import duration, truncated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTHING = 1e-4  # what a log scale shows instead of 0
EXACT = 1e-9  # relative error below which a figure counts as exact
PAIRS = (("Oracle", "CADP"), ("CADP", "WSU"), ("CADP", "MVP"))  # methods that are compared


def write(results: Results, out: Path) -> list[Path]:
    """Write results.csv, the PNGs and paper.html into ``out``; all of them or none."""
    pictures = {
        "figure.png": plots.png(_figure(results)[0]),
        "regret.png": plots.png(_regret(results)),
        "queries.png": plots.png(_queries(results)),
    }
    files: dict[Path, Any] = {out / name: content for name, content in pictures.items()}
    files[out / "results.csv"] = results.frame().to_csv(index=False)
    files[out / "paper.html"] = _page(results, pictures)
    out.mkdir(parents=True, exist_ok=True)
    write_all(files)
    return list(files)


def _figure(results: Results) -> list[Axes]:
    """Left: returns as in the paper. Right: how far each start is from the best end."""
    left, right = plots.new_axes(2, width=9.5)
    plots.traces(results.figure, left, ylabel="mean return over the training models")
    left.set_title("CADP by iteration on POPS, T = 50", loc="left")
    best = max(y[-1] for y in results.figure.values())
    missing = {name: [max(best - v, NOTHING) for v in y] for name, y in results.figure.items()}
    plots.traces(missing, right, ylabel="return still missing (log scale)")
    right.set_yscale("log")
    right.set_ylim(bottom=NOTHING / 2)  # so that starts that have arrived are drawn at the bottom
    right.set_title("The same, below the best end", loc="left")
    return [left, right]


def _regret(results: Results) -> Axes:
    import pandas as pd

    names = {"cadp": "CADP (Markov)", "mixts": "MixTS, resampled each step", "pomcp": "POMCP"}
    frame = pd.DataFrame(results.regret)
    frame["method"] = frame["method"].map(names)
    axis = plots.errors_by(
        frame, "horizon", "regret", error="stderr", by="method",
        xlabel="horizon T", ylabel="Bayes regret against Oracle",
    )  # fmt: skip
    axis.set_title("Two models: a Markov policy pays for ever", loc="left")
    return axis


def _queries(results: Results) -> Axes:
    import pandas as pd

    axis = plots.errors_by(
        pd.DataFrame(results.queries), "queries", "difference", error="stderr", log=True,
        xlabel="tree queries per decision", ylabel="return above CADP",
    )  # fmt: skip
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_title("POMCP on RS, T = 50 (100 test models)", loc="left")
    return axis


# ------------------------------------------------------------------ the tables
def columns_of(results: Results) -> list[tuple[str, int]]:
    """(domain, horizon) of the tables' columns, in the paper's order."""
    return list(dict.fromkeys((c.domain, c.horizon) for c in results.cells))


def by_key(results: Results) -> dict[tuple[str, int, str], Cell]:
    return {(c.domain, c.horizon, c.method): c for c in results.cells}


def terminal_tables(results: Results) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, columns, rows) of the tables for a terminal of 80 columns.

    ``204 =`` is ours and the paper's; otherwise the paper's follows ours in brackets.
    """
    cells, columns = by_key(results), columns_of(results)
    digits = "ours (paper); = the paper's digits"
    kinds: dict[str, Callable[[Cell], str]] = {
        f"Mean return over the test models: {digits}": lambda c: _pair(c, "mean_return"),
        f"Standard deviation of returns: {digits}, * misprint": lambda c: _pair(c, "sd_return"),
        "Time to compute a policy": lambda c: duration(c.seconds),
    }
    tables = []
    for title, shown in kinds.items():
        for i in range(0, len(columns), 5):  # five columns fit a terminal
            group = columns[i : i + 5]
            rows = [[name, *(shown(cells[(*at, name)]) for at in group)] for name in METHODS]
            tables.append((title, ["", *(f"{d} T={t}" for d, t in group)], rows))
    return tables


def _pair(c: Cell, table: Table) -> str:
    ours = truncated(c.ours(table), c.unit) + "k" * (c.unit == 1000)
    if c.equals(table):
        return f"{ours} ="
    return ours if c.printed(table) is None else f"{ours} ({as_printed(c, table)})"


def as_printed(c: Cell, table: Table) -> str:
    """The paper's figure as it prints it; a star on a misprint."""
    letter, star = "k" * (c.unit == 1000), "*" * c.misprinted(table)
    return f"{truncated(c.printed(table), c.unit)}{letter}{star}"


class Difference(NamedTuple):
    """A method's mean return above another's on the same test models: ours and the paper's."""

    ours: float
    printed: float | None


def differences(results: Results) -> dict[tuple[str, int, str], Difference]:
    """Paired differences of mean returns, by domain, horizon and the names of the two methods."""
    cells, found = by_key(results), {}
    for at, (more, less) in itertools.product(columns_of(results), PAIRS):
        pair = cells[(*at, more)], cells[(*at, less)]
        high, low = (c.printed("mean_return") for c in pair)
        printed = None if high is None or low is None else high - low
        found[(*at, f"{more} − {less}")] = Difference(pair[0].mean - pair[1].mean, printed)
    return found


# ------------------------------------------------------------------ the page
SOURCES = {
    "published": "the published models", "generated": "models drawn by us",
    "file": "models from the data folder",
}  # fmt: skip


def _page(results: Results, pictures: dict[str, bytes]) -> str:
    cells = results.cells
    domains = {
        what: list(dict.fromkeys(c.domain for c in cells if c.source == source))
        for source, what in SOURCES.items()
    }
    thirds = [y[min(3, len(y) - 1)] for y in results.figure.values()]
    return render(
        "paper/page.html.j2",
        methods=METHODS,
        columns=columns_of(results),
        cells=by_key(results),
        pairs=[f"{more} − {less}" for more, less in PAIRS],
        differences=differences(results),
        error_of=error_of,
        as_printed=as_printed,
        sources={what: names for what, names in domains.items() if names},
        compared=[
            c.equals("mean_return") for c in cells
            if c.source == "published" and c.method in COMPARABLE
        ],
        misprinted=any(c.misprinted("sd_return") for c in cells),
        generated=any(c.source == "generated" for c in cells),
        seconds=sum(c.seconds for c in cells),
        pictures={name: base64.b64encode(data).decode() for name, data in pictures.items()},
        spread=max(thirds) - min(thirds),
        ends={name: y[-1] for name, y in results.figure.items()},
    )  # fmt: skip


def error_of(c: Cell) -> float | None:
    """Two standard errors of a simulated mean; None if the mean is exact."""
    return 2 * c.stderr if c.stderr > EXACT * max(1.0, abs(c.mean)) else None
