"""mmdp frontier: what safety costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mmdp._version import __version__
from mmdp.cli import options
from mmdp.cli.console import Working, introduce, show_json, show_table
from mmdp.cli.options import (
    INTERRUPTED,
    NOT_WRITTEN,
    Loading,
    check_out,
    command,
    option,
    takes,
    write_csv,
    write_somewhere,
)
from mmdp.cli.types import Numbers, OutFile, Seconds
from mmdp.solution import Status
from mmdp.words import at_most_percent, figures

if TYPE_CHECKING:
    from mmdp.measures import Frontier
    from mmdp.solution import Solution


@command(
    "mmdp frontier data/riverswim --horizon 50",
    "mmdp frontier data/hiv -T 15 --alphas 0.5,0.2,0.1 --certify 10 --out frontier.png",
)
@options.data
@options.horizon
@option(
    "--alphas", type=Numbers("0.5,0.2,0.1"), default="0.5,0.2,0.1,0.05,0.01", show_default=True,
    help="Find a policy for each of these shares of worst models.",
)  # fmt: skip
@option(
    "--tail", type=float, metavar="SHARE", default=0.1, show_default=True,
    help="Compare the policies by the mean over this share of worst models.",
)  # fmt: skip
@option("--certify", type=Seconds(), help="Spend S seconds on a proof for each policy.")
@option(
    "--out", "-o", type=OutFile(".csv", ".png", ".svg"), metavar="FILE",
    help="Write the table (.csv) or a picture (.png, .svg).",
)  # fmt: skip
@options.seed()
@options.backend
@options.as_json
@takes(Loading)
def frontier(
    data: Path, horizon: int | None, alphas: Sequence[float], tail: float, certify: float | None,
    out: Path | None, seed: int, backend: str, as_json: bool, loading: Loading,
) -> int:  # fmt: skip
    """Show what safety costs: mean return against the worst models.

    The first policy is the best on average. Each of the others is the best for the worst share
    alpha of the models, by weight. The columns are what it is best at, the mean over all models,
    the mean over the worst models (tail) and the worst model.

    Ctrl-C keeps the policies so far; the exit status is then 130. If FILE cannot be written, the
    exit status is 1 and the table is printed and, if possible, the file saved elsewhere.
    """
    import mmdp

    check_out(out, data)
    model = loading.read(data, quiet=as_json)
    test = loading.read_test(data, model, quiet=as_json)
    with Working("solving", quiet=as_json) as working:
        found = mmdp.frontier(
            model, horizon, alphas, tail=tail, test=test, certify=certify or False,
            backend=backend, seed=seed, callback=lambda p: working.say(f"{p.objective.name}: done"),
        )  # fmt: skip
    written = None if out is None else write_somewhere(partial(_write, found), out)
    if as_json:
        known = {"tail": tail, "points": found.to_frame().to_dict("records")}
        show_json({"data": data, **known, "version": __version__, "out": written})
    else:
        introduce(data, model)
        _show(found)
        if written is not None:
            print(f"written to {written}")
    return INTERRUPTED if working.pressed else 0 if written == out else NOT_WRITTEN


def _write(found: Frontier, out: Path) -> None:
    from mmdp import plots

    if out.suffix.lower() == ".csv":
        write_csv(found.to_frame(), out)
    else:
        plots.save(found.plot(), out)


def _gap(point: Solution) -> str:
    if point.status is Status.OPTIMAL:
        return "optimal"
    return "–" if point.gap is None else at_most_percent(point.gap)


def _show(found: Frontier) -> None:
    frame = found.to_frame()
    titles = {"value": "value", "mean": "mean", "tail": "tail", "worst": "worst"}
    if found.tests:
        titles |= {"test_mean": "test mean", "test_tail": "test tail"}
    columns = [("best for", frame["objective"].tolist())]
    columns += [(title, figures(frame[key].tolist())) for key, title in titles.items()]
    if frame["gap"].notna().any():
        columns.append(("gap", [_gap(point) for point in found.points]))
    names, cells = zip(*columns, strict=True)
    horizon = found.points[0].provenance.horizon
    print(f"horizon {horizon}, tail: mean of the worst {100 * found.tail:g}%")
    show_table(names, list(zip(*cells, strict=True)))
