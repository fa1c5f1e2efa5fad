"""mmdp paper: the paper's tables and figure, computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmdp.cli.console import LiveLine, print_json, print_table
from mmdp.cli.signatures import command
from mmdp.cli.types import OutputFolder


@command(
    "mmdp paper",
    "mmdp paper --full --out out/full",
    "mmdp paper --domain RS --domain HIV",
    sources=["mmdp.insight.paper.run:run_paper full domains seed n_jobs no_cache"],
)
def paper(
    *,
    out: OutputFolder = Path("out"),
    as_json: bool = False,
    **options: Any,
) -> None:
    """Compute the tables and the figure of the CADP paper.

    The paper is Su and Petrik, Solving Multi-Model MDPs by Coordinate Ascent and Dynamic
    Programming (UAI 2023). FOLDER gets results.csv, pictures and one page, paper.html, with the
    computed figures next to the printed ones.

    Results computed before with the same options are reused, also after Ctrl-C (exit status
    130).

    Parameters
    ----------
    out
        Where to write.
    """
    from mmdp.insight.paper.page import format_terminal_tables, write_results
    from mmdp.insight.paper.run import run_paper

    with LiveLine("starting", quiet=as_json) as live_line:
        results = run_paper(out, **options, callback=live_line.show_step)
        files = write_results(results, out)
    if as_json:
        print_json({"results": results.records, "seconds": results.seconds, "files": files})
        return
    for title, columns, rows in format_terminal_tables(results.records):
        print(f"\n{title}")
        print_table(columns, rows)
    reused_text = f", {results.n_reused} of {results.n_cells} results reused" * bool(
        results.n_reused
    )
    print(f"\n{results.seconds:.1f} s{reused_text}; open {out / 'paper.html'}")
