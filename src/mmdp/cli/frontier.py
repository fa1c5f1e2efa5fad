"""mmdp frontier: what safety costs, and what each further leaf of a small tree earns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmdp._version import __version__
from mmdp.cli import options
from mmdp.cli.console import Working, introduce, show_json, show_table
from mmdp.cli.options import (
    DECIDING,
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
from mmdp.cli.types import Goal, Numbers, OutFile, Seconds, Span
from mmdp.errors import InputError
from mmdp.objective import Objective
from mmdp.solution import Status
from mmdp.words import at_most_percent, clock, figures, percent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from mmdp.measures import Frontier
    from mmdp.model import MMDP
    from mmdp.solution import Solution


@dataclass(frozen=True)
class Growing:
    """Trees to compare in place of objectives; None if not given."""

    leaves: Annotated[range | None, option(
        "--leaves", type=Span(), metavar="A-B", heading=DECIDING,
        help="Show what each further leaf of a small tree earns instead, e.g. 1-8.",
    )]  # fmt: skip
    features: Annotated[Path | None, options.features]
    objective: Annotated[Objective | None, option(
        "--objective", type=Goal(), metavar="NAME", heading=DECIDING,
        help="What counts over the models for trees, as for mmdp solve. [default: mean]",
    )]  # fmt: skip

    def table(self, model: MMDP, horizon: int | None, **options: Any) -> pd.DataFrame | None:
        """What each leaf earns; None if no leaves were given."""
        import mmdp

        if self.leaves is None:
            if self.features is not None or self.objective is not None:
                raise InputError("--features and --objective are about trees; give --leaves too")
            return None
        goal = "mean" if self.objective is None else self.objective
        return mmdp.value_of_leaves(
            model, horizon, self.leaves, features=self.features, objective=goal, **options
        )


@command(
    "mmdp frontier data/riverswim --horizon 50",
    "mmdp frontier data/hiv -T 15 --alphas 0.5,0.2,0.1 --certify 10 --out frontier.png",
    "mmdp frontier data/riverswim -T 50 --leaves 1-8",
)
@options.data
@options.horizon
@option(
    "--alphas", type=Numbers("0.5,0.2,0.1"),
    help="Find a policy for each of these shares of worst models. [default: "
    "0.5,0.2,0.1,0.05,0.01]",
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
@takes(Growing)
@takes(Loading)
def frontier(
    data: Path, horizon: int | None, alphas: Sequence[float] | None, tail: float,
    certify: float | None, out: Path | None, seed: int, backend: str, as_json: bool,
    growing: Growing, loading: Loading,
) -> int:  # fmt: skip
    """Show what safety costs: mean return against the worst models.

    The first policy is the best on average. Each of the others is the best for the worst share
    alpha of the models, by weight. The columns are what it is best at, the mean over all models,
    the mean over the worst models (tail) and the worst model.

    With --leaves it shows what simplicity costs: one small tree for each number of leaves, what
    each further leaf earns, how much less the tree has than the best policy found (price), which
    share of what is at stake that is, and where to stop.

    Ctrl-C keeps the policies so far; the exit status is then 130. If FILE cannot be written, the
    exit status is 1 and the table is printed and, if possible, the file saved elsewhere.
    """
    import mmdp

    check_out(out, data)
    model = loading.read(data, quiet=as_json)
    test = loading.read_test(data, model, quiet=as_json)
    if growing.leaves is not None and alphas is not None:
        raise InputError("--alphas is about safety and --leaves about trees; give one of them")
    known: dict[str, Any] = {"certify": certify or False, "backend": backend, "seed": seed}
    with Working("solving", quiet=as_json) as working:
        table = growing.table(model, horizon, test=test, **known)
        if table is None:
            found = mmdp.frontier(
                model, horizon, *([] if alphas is None else [alphas]), tail=tail, test=test,
                **known, callback=lambda p: working.say(f"{p.objective.name}: done"),
            )  # fmt: skip
            frame, draw, show = found.to_frame(), found.plot, partial(_show, found)
            facts = {"tail": tail}
        else:
            frame, draw = table, partial(mmdp.plots.value_of_leaves, table)
            show, facts = partial(_show_leaves, table), {"elbow": table.attrs["elbow"]}
    written = None if out is None else write_somewhere(partial(_write, frame, draw), out)
    if as_json:
        known = {**facts, "points": frame.to_dict("records")}
        show_json({"data": data, **known, "version": __version__, "out": written})
    else:
        introduce(data, model)
        show()
        if written is not None:
            print(f"written to {written}")
    return INTERRUPTED if working.pressed else 0 if written == out else NOT_WRITTEN


def _write(frame: pd.DataFrame, draw: Callable[[], Axes], out: Path) -> None:
    from mmdp import plots

    if out.suffix.lower() == ".csv":
        write_csv(frame, out)
    else:
        plots.save(draw(), out)


def _show_leaves(frame: pd.DataFrame) -> None:
    """A line for each number of leaves, where to stop, and the rule there."""
    below = [percent(x) for x in frame["share"].clip(lower=0)]
    columns = [("leaves", frame["leaves"].map(str).tolist())]
    known = frame.astype(object).where(frame.notna(), None)
    columns += [(name, figures(known[name].tolist())) for name in ("value", "gain", "price")]
    columns.append(("of stake", below))
    if "gap" in frame:
        columns.append(("gap", [at_most_percent(x) for x in frame["gap"]]))
    if "test" in frame:
        columns.append(("test", figures(frame["test"].tolist())))
    columns.append(("seconds", [clock(x) for x in frame["seconds"]]))
    names, cells = zip(*columns, strict=True)
    show_table(names, list(zip(*cells, strict=True)))
    rule = frame.loc[frame["leaves"] == frame.attrs["elbow"], "rule"].item()
    print(f"{frame.attrs['text']}\n\n{rule}")


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
