"""mmdp plot: one picture of the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmdp.cli.console import LiveLine
from mmdp.cli.data import ADVANCED, TrainingData
from mmdp.cli.economics import Economics, read_comparators
from mmdp.cli.files import check_finite_horizon, load_finite_policy
from mmdp.cli.signatures import command
from mmdp.cli.types import TextParam
from mmdp.core.policies import require_markov

if TYPE_CHECKING:
    from mmdp.core.model import MMDP

Figure = Annotated[str, TextParam("NAME", role="picture", words="mmdp.insight.report:FIGURES")]


@command(
    "mmdp plot policy models --horizon 50 --out policy.png",
    "mmdp plot returns models --horizon 50 --policy policy.csv --out returns.svg",
    "mmdp plot chart models --policy chart.csv --out chart.svg",
    "mmdp plot tree models --policy tree.json --out tree.svg",
    sources=["mmdp.insight.report:write horizon methods wtp_grid comparators"],
    advanced=ADVANCED,
)
def plot(
    figure: Figure,
    data: TrainingData,
    *,
    out: Path,
    policy: Path | None = None,
    economics: Economics,
    seed: int = 0,
    **options: Any,
) -> None:
    """Draw one of the report's pictures as PNG or SVG.

    A chart is the flow chart of a policy
    that mmdp solve --max-nodes wrote. A tree has the splits and leaves of a policy that
    mmdp solve --max-leaves wrote as .json, with the share of visits and what is at stake. A belief
    map is that of mmdp solve --method grid, or of the .json that it wrote.

    Parameters
    ----------
    figure
        What to draw.
    out
        A .png or .svg file.
    policy
        A policy that mmdp solve wrote.
    seed
        Seed of every random choice.
    """
    import mmdp

    with LiveLine(f"drawing {figure}") as live_line:
        model = data.read()
        if figure == "tree":
            _draw_tree(model, out, options.get("horizon"), policy, seed)
        else:
            if figure != "belief":
                check_finite_horizon(options.get("horizon"))
            if policy is not None and figure in ("chart", "belief"):
                options["policy"] = mmdp.load_policy(policy, model)
            elif policy is not None:
                remedies, purpose = ["draw it with mmdp plot chart"], "a picture shows"
                finite_policy = load_finite_policy(
                    policy, model, options.get("horizon"), purpose, remedies
                )
                options["policy"] = require_markov(finite_policy, purpose)
                options["horizon"] = finite_policy.horizon
            options |= economics.read(model, options.get("wtp_grid"), "--wtp-grid")
            options["comparators"] = read_comparators(options.get("comparators", {}), model)
            mmdp.report.draw(model, figure, out, **options, seed=seed, callback=live_line.update)
    print(f"{figure} drawn in {out}")


def _draw_tree(
    model: MMDP, out: Path, horizon: float | None, policy: Path | None, seed: int
) -> None:
    """Draw the tree of a file; without one, the best found with the usual number of leaves."""
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
