"""The pictures of a report: drawn into the page, and by ``mmdp plot`` into files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from mmdp import plots
from mmdp.draw import axes, curves
from mmdp.draw.axes import label, new_axes, new_axis
from mmdp.draw.maps import PolicyMap
from mmdp.draw.palette import COLOURS, INK, MARKERS
from mmdp.measures.safety import Frontier
from mmdp.measures.simplicity import leaf_table
from mmdp.policy import MemoryPolicy
from mmdp.report.desk import Desk
from mmdp.report.findings import (
    Information,
    Methods,
    Near,
    Remembering,
    Sizes,
    SmallRule,
    Weights,
)  # fmt: skip

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from mmdp.economics import WillingnessToPay

MOST_CURVES = 7  # in one picture


@dataclass(frozen=True)
class Picture:
    """``drawing`` takes what its ``section`` finds and gives axes; None if it has nothing to show.

    ``needs`` says what is missing then.
    """

    title: str
    section: str
    drawing: Callable[[Desk, Any], Axes | None]
    needs: str = "it needs two models or more"

    def draw(self, desk: Desk, found: Any) -> Axes | None:
        """The picture, with the unit of returns on its axes."""
        axis = self.drawing(desk, found)
        if axis is not None and desk.model.unit:
            unit = f"return in {label(desk.model.unit)}"
            for each in axis.figure.axes:
                each.set_xlabel(each.get_xlabel().replace("return", unit, 1))
                each.set_ylabel(each.get_ylabel().replace("return", unit, 1))
        return axis


def _policy(desk: Desk, found: Any) -> Axes:
    model, shown = desk.model, np.flatnonzero(desk.model.deciding)
    rows = [model.state_labels[s] for s in shown]
    actions = desk.policy.actions[: 1 if desk.steady else None, shown]
    return PolicyMap(actions, rows, desk.action_names, model.times).plot()


def _tree(desk: Desk, found: SmallRule) -> Axes:
    return plots.tree(found.policy, leaf_table(found.policy, desk.model, objective=desk.objective))


def _returns(desk: Desk, found: Near) -> Axes:
    returns = {desk.name: desk.evaluation.returns, "Oracle": desk.evaluation.oracle}
    returns |= {name: desk.evaluate(policy).returns for name, policy in desk.named.items()}
    return curves.returns_distribution(returns, desk.model.weights)


def _regret(desk: Desk, found: Near) -> Axes:
    return curves.regret_distribution(desk.evaluation.regret, desk.model.weights)


def _methods(desk: Desk, found: Methods) -> Axes:
    rows = {row.name: row.found for row in found.rows}
    return curves.methods_comparison(
        {name: x.mean for name, x in rows.items()},
        {name: x.stderr for name, x in rows.items()},
        lows={name: (x.quantile(0.1), x.quantile(0.9)) for name, x in rows.items()},
        xlabel="mean return (bar: 10% to 90% quantile)",
    )


def _trace(desk: Desk, found: Methods) -> Axes | None:
    if not found.traces:
        return None
    axis = curves.traces(found.traces)
    legend = axis.get_legend()
    if len(found.traces) == 1 and legend is not None:
        legend.remove()
        start = "" if desk.words else f", started from {label(next(iter(found.traces)))}"
        axis.set_xlabel(f"iteration of CADP{start}")
    return axis


def _weights(desk: Desk, found: Weights) -> Axes:
    left, right = new_axes(2, 9.5, 3.6)
    curves.weights_over_time(found.b, left, times=desk.model.times)
    curves.weights_over_time(
        found.b, right, state=found.state, state_label=desk.model.state_labels[found.state],
        models=desk.model.model_labels, times=desk.model.times,
    )  # fmt: skip
    left.set_title("How many models are in play", loc="left", fontsize="medium")
    right.set_title("The models that gain most", loc="left", fontsize="medium")
    return left


def _information(desk: Desk, found: Information) -> Axes | None:
    table = found.table
    if len(table) < 3:  # a single parameter needs no picture
        return None
    rows = table.iloc[1:16]
    axis = new_axis(6.0, 1.3 + 0.32 * len(rows))
    axis.barh(range(len(rows)), rows["value"], color=COLOURS[0], height=0.6)
    axis.axvline(
        table["value"].iloc[0], color=COLOURS[1], linestyle="--", label="knowing everything"
    )
    axis.set_yticks(range(len(rows)), [label(str(name)) for name in rows["parameter"]])
    axis.invert_yaxis()
    above = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
    across = "return gained by knowing it before acting"
    return curves.dressed(axis, across, "", grid="x", legend=above)


def _memory(desk: Desk, found: Remembering) -> Axes:
    return curves.value_of_memory(found.table)


def _frontier(desk: Desk, found: Frontier) -> Axes:
    return found.plot()


def _enough(desk: Desk, found: Sizes) -> Axes:
    table, axis = found.table, new_axis(6.0, 3.4)
    axis.errorbar(
        table["models"], table["test"], yerr=table["test_sd"], color=COLOURS[0], marker=MARKERS[0],
        linewidth=1.8, capsize=4,
    )  # fmt: skip
    axis.set_xscale("log")
    last = table["models"].max()
    marked = [x for x in table["models"] if x == last or 1.5 * x <= last]  # 200 and 250 would touch
    axis.set_xticks(marked, [f"{x:,}" for x in marked])
    axis.minorticks_off()
    across = "models the policy is computed from (bar: one standard deviation)"
    return curves.dressed(axis, across, "return on held-out models")


def _willingness(desk: Desk, found: WillingnessToPay) -> Axes:
    return _counted(curves.acceptability_curves(_curves(found), found.frontier), found)


def _loss(desk: Desk, found: WillingnessToPay) -> Axes:
    return _counted(curves.expected_loss(_curves(found), found.frontier), found)


def _curves(found: WillingnessToPay) -> pd.DataFrame:
    """The curves of all policies that were named, and of those on the frontier if there is room."""
    named = [name for name in found.policies if name not in found.found]
    room = max(MOST_CURVES, len(named))
    shown = list(dict.fromkeys([*named, *found.frontier["policy"]]))[:room]
    return found.acceptability[found.acceptability["policy"].isin(shown)]


def _counted(axis: Axes, found: WillingnessToPay) -> Axes:
    """Say above the legend if some policies are in the table only."""
    legend, shown = axis.get_legend(), _curves(found)["policy"].nunique()
    if legend is not None and shown < len(found.policies):
        legend.set_title(f"{shown} of {len(found.policies)} policies")
    return axis


PRICED = "it needs effects, costs and thresholds"
PICTURES = {
    "policy": Picture("The action by time and state", "policy", _policy),
    "tree": Picture(
        "The smallest rule that gives up at most 1% of what is at stake: questions, actions and "
        "decisions", "rule", _tree,
        "no rule of a few leaves comes that close, or states have nothing to ask about",
    ),
    "methods": Picture("Mean return of the methods, with Oracle as the bound", "methods", _methods),
    "returns": Picture("Share of models by return: the policy and Oracle", "returns", _returns),
    "regret": Picture("Share of models by regret", "returns", _regret),
    "weights": Picture(
        "How the weight moves between models over time", "weights", _weights,
        "it needs two models or more, and (T, M, S) weights that fit into memory",
    ),
    "trace": Picture(
        "Value of the policy by iteration of CADP", "methods", _trace,
        "no method is cadp; add it to the methods",
    ),
    "information": Picture(
        "Value of knowing each parameter", "information", _information,
        "the models carry fewer than two parameters; see MMDP(parameters=...)",
    ),
    "memory": Picture("Value by nodes of memory", "memory", _memory),
    "frontier": Picture("Mean return against the mean of the worst tenth", "frontier", _frontier),
    "enough": Picture(
        "Return on held-out models by the number of models", "enough", _enough,
        "it needs ten models or more, and a method to solve with",
    ),
    "willingness": Picture(
        "Acceptability of the policies by willingness to pay", "willingness", _willingness, PRICED
    ),
    "loss": Picture(
        "Expected loss of the policies by willingness to pay", "willingness", _loss, PRICED
    ),
}  # fmt: skip


# ---------------------------------------------------------------------- as part of the page
def inlined(desk: Desk, kind: str, found: Any) -> Markup | None:
    """A picture as SVG for the page; None if there is nothing to show."""
    picture = PICTURES[kind]
    if found is None:
        return None
    with axes.ink(INK):
        axis = picture.draw(desk, found)
        return None if axis is None else Markup(_inline(axes.svg(axis), kind, picture.title))


def chart(policy: MemoryPolicy, kind: str = "chart") -> Markup:
    """The flow chart of a policy with memory as SVG for the page."""
    return Markup(_inline(policy.flow_chart().svg(), kind, "Flow chart of the policy"))


def _inline(svg: str, kind: str, title: str) -> str:
    """A drawing as part of the page: its own ids, the page's ink, a name for screen readers."""
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{kind}-', drawing)
    drawing = re.sub(r'(href="#|url\(#)', rf"\g<1>{kind}-", drawing)
    drawing = drawing.replace(INK, "currentColor")
    blue = COLOURS[0].lower()  # too dark for a dark page
    drawing = drawing.replace(f": {blue}", f": var(--blue, {blue})")
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, count=1, flags=re.DOTALL)
    # the background of figure and axes: the page has its own
    drawing = re.sub(r'style="fill: #ffffff"', 'style="fill: none"', drawing)
    return re.sub(r"<svg", f'<svg role="img" aria-label="{escape(title)}"', drawing, count=1)
