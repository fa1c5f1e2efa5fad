"""mmdp paper: the paper's tables and figure, computed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmdp.cli import options
from mmdp.cli.console import Steps, complain, show_json, show_table
from mmdp.cli.options import INTERRUPTED, command, option
from mmdp.cli.types import PATH, Words
from mmdp.clock import ending
from mmdp.words import either

DOMAINS = ("RS", "POP", "POPS", "INV", "HIV")


@command(
    "mmdp paper",
    "mmdp paper --full --out out/full",
    "mmdp paper --data data/cadp-uai2023 --domain RS --domain HIV",
)
@options.out_folder(default="out", show_default=True)
@option(
    "--data", type=PATH, metavar="FOLDER", help="CSV folders to use instead of the packaged models."
)
@option("--full", is_flag=True, help="Every horizon of POP, POPS and INV (some minutes).")
@option(
    "--domain", "domains", multiple=True, metavar="NAME", type=Words(*DOMAINS),
    help=f"Only {either(DOMAINS)}; may be given several times.",
)  # fmt: skip
@options.seed(None)
@options.jobs
@option("--fresh", is_flag=True, help="Ignore the results kept in FOLDER/cells.")
@options.as_json
def paper(
    out: Path, data: Path | None, full: bool, domains: Sequence[str], seed: int | None,
    jobs: int, fresh: bool, as_json: bool,
) -> int:  # fmt: skip
    """Compute the tables and the figure of the CADP paper.

    The paper is Su and Petrik, Solving Multi-Model MDPs by Coordinate Ascent and Dynamic
    Programming (UAI 2023). FOLDER gets results.csv, pictures and one page, paper.html, with the
    computed figures next to the printed ones.

    Results computed before with the same options are reused, also after Ctrl-C (exit status
    130).
    """
    from mmdp.paper.cases import CASES, SEED
    from mmdp.paper.page import terminal_tables, write
    from mmdp.paper.run import Job

    job = Job(
        out, data=data, full=full, domains=tuple(domains or CASES),
        seed=SEED if seed is None else seed, jobs=jobs, fresh=fresh,
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    if data is not None and job.generated and not as_json:
        complain(f"note: {data} has no models of {', '.join(job.generated)}; these are generated")
    with ending() as end:
        with Steps(quiet=as_json) as steps:
            job.report = steps.say
            results = job.run()
        files = write(results, out)
    if end.interrupted:
        kept = f"{job.done} of {job.total} results kept in {out / 'cells'}"
        complain(f"interrupted; {kept}; run again to go on")
        return INTERRUPTED
    if as_json:
        records = results.frame().to_dict("records")
        document = {"results": records, "generated": job.generated}
        show_json({**document, "seconds": results.seconds, "files": files})
        return 0
    for title, columns, rows in terminal_tables(results):
        print(f"\n{title}")
        show_table(columns, rows)
    reused = f", {results.reused} of {job.total} results reused" * bool(results.reused)
    print(f"\n{results.seconds:.1f} s{reused}; open {out / 'paper.html'}")
    return 0
