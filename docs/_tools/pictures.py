"""Pictures of the site that are drawn when it is built (a mkdocs hook).

``bounds.svg``: incumbent and bound against time, from the table "case | value | oracle | ..." of
how-good.md. ``weeds-*.svg`` and ``ducks-*.svg``: what examples/weeds.py and ducks.py draw.
``acceptability.svg``: what the cell "frontier" of examples/cost_effectiveness.py draws.
``frontiers.svg``: mean against tail on four domains, solved here. A page shows one by the line
``<!-- picture NAME: alternative text -->``. With ``MMDP_PICTURES=blank`` they are blank: enough to
check the pages, in half the time.
"""

from __future__ import annotations

import functools
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLACE = re.compile(r"<!-- picture (\S+): ([^>]+?) -->")
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
BLANK = b'<svg xmlns="http://www.w3.org/2000/svg"/>'


def table(text: str, first: str) -> list[dict[str, str]]:
    """The rows of the Markdown table whose first head is ``first``."""
    lines = [x.strip().strip("|").split("|") for x in text.split("\n") if x.startswith("|")]
    rows = [[cell.strip() for cell in line] for line in lines]
    start = next(k for k, row in enumerate(rows) if row[0] == first and "oracle" in row)
    heads, found = rows[start], []
    for row in rows[start + 2 :]:
        if len(row) != len(heads):
            break
        found.append(dict(zip(heads, row, strict=True)))
    return found


def bounds() -> bytes:
    """One panel per case: the value, the bound after some seconds, Oracle above."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = table((ROOT / "docs" / "how-good.md").read_text(encoding="utf-8"), "case")
    figure, axes = plt.subplots(2, 3, figsize=(12, 6), constrained_layout=True)
    axes.flat[len(rows)].axis("off")
    for ax, row in zip(axes.flat, rows, strict=False):
        value, oracle = float(row["value"]), float(row["oracle"])
        seen = [(float(k[:-2]), float(x)) for k, x in row.items() if k.endswith(" s") and x]
        times, bounds = [0.3, *(t for t, _ in seen)], [oracle, *(b for _, b in seen)]
        ax.step(times, bounds, where="post", marker="o", markersize=3, label="proven bound")
        ax.axhline(oracle, color="0.6", linestyle=":", label="Oracle")
        ax.axhline(value, color="C1", label="CADP's value")
        ax.fill_between(times, value, bounds, step="post", alpha=0.12)
        ax.set(xscale="log", xlim=(0.3, 100), xticks=[1, 10, 60])
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_title(f"{row['case']}: {row['closed']} closed", fontsize=10)
        ax.set_xlabel("seconds")
    axes.flat[0].legend(fontsize=8)
    data = io.BytesIO()
    figure.savefig(data, format="svg", metadata={"Date": None})
    plt.close(figure)
    return data.getvalue()


@functools.cache
def written(script: str) -> dict[str, bytes]:
    """The pictures that a script of examples/ writes, by their names."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(EXAMPLES / script), out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {file.name: file.read_bytes() for file in Path(out).glob("*.svg")}


def acceptability() -> bytes:
    """The picture that examples/cost_effectiveness.py has drawn after its cell "frontier"."""
    from mmdp.insight import plots

    sys.path.insert(0, str(Path(__file__).parent))
    from cells import run_script

    with tempfile.TemporaryDirectory() as out:
        names = run_script(EXAMPLES / "cost_effectiveness.py", Path(out), last="frontier")[1]
    return plots.to_svg(names["picture"]).encode()


def frontiers() -> bytes:
    """What safety costs on four domains; shorter horizons and fewer models, to draw in seconds."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    import mmdp

    domains = mmdp.domains
    cases = {
        "riverswim, 50 decisions": (domains.load_published("riverswim"), 50),
        "HIV, 15 decisions": (domains.load_published("hiv"), 15),
        "inventory, 20 decisions": (domains.inventory(), 20),
        "population, 20 decisions": (domains.population_small(n_train=50, n_test=50), 20),
    }
    figure = Figure(figsize=(10, 8), layout="constrained")
    FigureCanvasSVG(figure)
    for axis, (title, ((train, test), horizon)) in zip(
        figure.subplots(2, 2).flat, cases.items(), strict=True
    ):
        axis.set_title(title, fontsize=10)
        mmdp.measures.risk_frontier(train, horizon, test_model=test).plot(axis)
    data = io.BytesIO()
    figure.savefig(data, format="svg", metadata={"Date": None})
    return data.getvalue()


PICTURES: dict[str, Callable[[], bytes]] = {
    "bounds.svg": bounds,
    "weeds-chart.svg": lambda: written("weeds.py")["chart.svg"],
    "weeds-memory.svg": lambda: written("weeds.py")["memory.svg"],
    "ducks-map.svg": lambda: written("ducks.py")["map.svg"],
    "ducks-weights.svg": lambda: written("ducks.py")["weights.svg"],
    "acceptability.svg": acceptability,
    "frontiers.svg": frontiers,
}


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    blank = os.environ.get("MMDP_PICTURES") == "blank"
    for name, draw in PICTURES.items():
        files.append(File.generated(config, name, content=BLANK if blank else draw()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return PLACE.sub(r"![\2](\1)", markdown)
