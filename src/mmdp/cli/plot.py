"""mmdp plot: one picture of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmdp.cli import options
from mmdp.cli.console import Working
from mmdp.cli.options import (
    Loading,
    Willingness,
    check_finite,
    command,
    given_policy,
    option,
    takes,
)
from mmdp.cli.types import PATH, refuse_name
from mmdp.policy import markov_policy

if TYPE_CHECKING:
    from mmdp.model import MMDP


def _kinds() -> tuple[str, ...]:
    from mmdp.report import KINDS

    return KINDS


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in _kinds() if name.startswith(incomplete)]


@command(
    "mmdp plot policy models --horizon 50 --out policy.png",
    "mmdp plot returns models --horizon 50 --policy policy.csv --out returns.svg",
    "mmdp plot chart models --policy chart.csv --out chart.svg",
    "mmdp plot tree models --policy tree.json --out tree.svg",
)
@click.argument("kind", shell_complete=_complete, help="What to draw; see above.")
@options.data
@option("--out", "-o", type=PATH, metavar="FILE", required=True, help="A .png or .svg file.")
@options.horizon
@options.policy
@options.rivals
@takes(Willingness)
@options.seed()
@takes(Loading)
def plot(
    kind: str, data: Path, out: Path, horizon: int | None, policy: Path | None,
    methods: Sequence[str], willingness: Willingness, seed: int, loading: Loading,
) -> None:  # fmt: skip
    """Draw one of the report's pictures as PNG or SVG.

    KIND is policy, methods, returns, regret, weights, trace, information, memory, frontier,
    enough, willingness, loss, chart, tree or belief. A chart is the flow chart of a policy that
    mmdp solve --memory wrote, as .svg, or as .dot for Graphviz. A tree has the questions and leaves
    of a policy that mmdp solve --leaves wrote as .json, with the share of visits and what is at
    stake. A belief map is that of mmdp solve --method grid, or of the .json that it wrote.
    """
    import mmdp

    if kind not in _kinds():
        refuse_name("picture", kind, _kinds())
    with Working(f"drawing {kind}") as working:
        model = loading.read(data, quiet=True)
        if kind == "tree":
            _draw_tree(model, out, horizon, policy, seed)
            print(f"{kind} drawn in {out}")
            return
        if kind != "belief":
            check_finite(horizon)
        given: Any = None
        if policy is not None and kind in ("chart", "belief"):
            given = mmdp.load_policy(policy, model)
        elif policy is not None:
            instead = ["draw it with mmdp plot chart"]
            file = given_policy(policy, model, horizon, "a picture shows", instead)
            given = markov_policy(file, "a picture shows")
            horizon = given.horizon
        mmdp.report.draw(
            kind, model, out, horizon=horizon, policy=given,
            methods=methods, seed=seed, say=working.say, **willingness.options(model),
        )  # fmt: skip
    print(f"{kind} drawn in {out}")


def _draw_tree(model: MMDP, out: Path, horizon: int | None, policy: Path | None, seed: int) -> None:
    """The tree of a file; without one, the best that is found with the usual number of leaves."""
    import mmdp

    mmdp.plots.check_ending(out)
    objective = None
    if policy is None:
        shown: Any = mmdp.solve(model, horizon, policy=mmdp.Tree(), seed=seed)
    else:
        shown, objective = mmdp.load_policy(policy, model), mmdp.io.load_objective(policy)
        shown.check_horizon(horizon)
    leaves = mmdp.measures.leaf_table(shown, model, objective=objective)
    mmdp.plots.save(mmdp.plots.tree(shown, leaves), out)
