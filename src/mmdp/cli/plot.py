"""mmdp plot: one picture of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmdp.cli import options
from mmdp.cli.console import LiveLine
from mmdp.cli.options import (
    LoadArgs,
    WtpArgs,
    check_finite_horizon,
    command,
    load_finite_policy,
    option,
    with_options,
)
from mmdp.cli.types import PATH, raise_unknown_name
from mmdp.core.policies import require_markov

if TYPE_CHECKING:
    from mmdp.core.model import MMDP


def _figure_names() -> tuple[str, ...]:
    from mmdp.insight.report import FIGURES

    return FIGURES


def _complete_figure(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in _figure_names() if name.startswith(incomplete)]


@command(
    "mmdp plot policy models --horizon 50 --out policy.png",
    "mmdp plot returns models --horizon 50 --policy policy.csv --out returns.svg",
    "mmdp plot chart models --policy chart.csv --out chart.svg",
    "mmdp plot tree models --policy tree.json --out tree.svg",
)
@click.argument("figure", shell_complete=_complete_figure, help="What to draw; see above.")
@options.data
@option("--out", "-o", type=PATH, metavar="FILE", required=True, help="A .png or .svg file.")
@options.horizon
@options.policy
@options.methods_option
@with_options(WtpArgs)
@options.seed()
@with_options(LoadArgs)
def plot(
    figure: str,
    data: Path,
    out: Path,
    horizon: int | None,
    policy: Path | None,
    methods: Sequence[str],
    wtp_args: WtpArgs,
    seed: int,
    load_args: LoadArgs,
) -> None:
    """Draw one of the report's pictures as PNG or SVG.

    FIGURE is policy, methods, returns, regret, weights, trace, voi, memory, frontier,
    sample_size, willingness, loss, chart, tree or belief. A chart is the flow chart of a policy
    that mmdp solve --max-nodes wrote, as .svg, or as .dot for Graphviz. A tree has the splits and
    leaves of a policy that mmdp solve --max-leaves wrote as .json, with the share of visits and
    what is at stake. A belief map is that of mmdp solve --method grid, or of the .json that it
    wrote.
    """
    import mmdp

    if figure not in _figure_names():
        raise_unknown_name("picture", figure, _figure_names())
    with LiveLine(f"drawing {figure}") as live_line:
        model = load_args.read_models(data, quiet=True)
        if figure == "tree":
            _draw_tree(model, out, horizon, policy, seed)
            print(f"{figure} drawn in {out}")
            return
        if figure != "belief":
            check_finite_horizon(horizon)
        shown_policy: Any = None
        if policy is not None and figure in ("chart", "belief"):
            shown_policy = mmdp.load_policy(policy, model)
        elif policy is not None:
            remedies = ["draw it with mmdp plot chart"]
            finite_policy = load_finite_policy(policy, model, horizon, "a picture shows", remedies)
            shown_policy = require_markov(finite_policy, "a picture shows")
            horizon = shown_policy.horizon
        mmdp.report.draw(
            model,
            figure,
            out,
            horizon=horizon,
            policy=shown_policy,
            methods=methods,
            seed=seed,
            callback=live_line.update,
            **wtp_args.to_report_options(model),
        )
    print(f"{figure} drawn in {out}")


def _draw_tree(model: MMDP, out: Path, horizon: int | None, policy: Path | None, seed: int) -> None:
    """The tree of a file; without one, the best that is found with the usual number of leaves."""
    import mmdp
    from mmdp.insight.plots import check_figure_suffix

    check_figure_suffix(out)
    objective = None
    if policy is None:
        tree_policy: Any = mmdp.solve(model, horizon, policy_class=mmdp.policies.Tree(), seed=seed)
    else:
        tree_policy, objective = mmdp.load_policy(policy, model), mmdp.io.load_objective(policy)
        tree_policy.check_horizon(horizon)
    leaf_rows = mmdp.measures.leaf_table(model, tree_policy, objective=objective)
    mmdp.plots.save_figure(mmdp.plots.tree(tree_policy, leaf_rows), out)
