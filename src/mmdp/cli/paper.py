"""mmdp paper: the paper's tables and figure, computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmdp.cli.console import EXIT_INTERRUPTED, LiveLine, print_json, print_stderr, print_table
from mmdp.cli.signatures import command
from mmdp.cli.types import OutputFolder
from mmdp.core.timing import allow_stop


@command(
    "mmdp paper",
    "mmdp paper --full --out out/full",
    "mmdp paper --domain RS --domain HIV",
    sources=["mmdp.insight.paper.run:PaperExperiment full domains seed n_jobs no_cache"],
)
def paper(
    *,
    out: OutputFolder = Path("out"),
    as_json: bool = False,
    **options: Any,
) -> int:
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
    from mmdp.insight.paper.run import PaperExperiment

    job = PaperExperiment(out, **options)
    out.mkdir(parents=True, exist_ok=True)
    with allow_stop() as stop_state:
        with LiveLine("starting", quiet=as_json) as live_line:
            job.callback = live_line.show_step
            results = job.run()
        files = write_results(results, out)
    if stop_state.is_interrupted:
        kept_text = f"{job.n_done} of {job.n_total} results kept in {out / 'cells'}"
        print_stderr(f"interrupted; {kept_text}; run again to go on")
        return EXIT_INTERRUPTED
    if as_json:
        records = results.to_frame().to_dict("records")
        print_json({"results": records, "seconds": results.seconds, "files": files})
        return 0
    for title, columns, rows in format_terminal_tables(results):
        print(f"\n{title}")
        print_table(columns, rows)
    reused_text = f", {results.n_reused} of {job.n_total} results reused" * bool(results.n_reused)
    print(f"\n{results.seconds:.1f} s{reused_text}; open {out / 'paper.html'}")
    return 0
