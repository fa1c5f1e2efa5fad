"""The pictures of a report: drawn into the page, and by ``mmdp plot`` into files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mmdp import plots
from mmdp.policy import MarkovPolicy
from mmdp.report.facts import Facts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from mmdp.economics import WillingnessToPay

MOST_CURVES = 7  # of the acceptability picture


@dataclass(frozen=True)
class Picture:
    """``draw`` gives axes of one figure, or None if there is nothing to show."""

    title: str
    draw: Callable[[Facts], Axes | None]


def _policy(facts: Facts) -> Axes:
    shown = np.flatnonzero(facts.model.deciding)
    table = MarkovPolicy(facts.policy.actions[:, shown], n_actions=facts.model.n_actions)
    states = [facts.model.state_labels[s] for s in shown]
    return plots.policy_heatmap(table, states=states, actions=facts.action_names)


def _returns(facts: Facts) -> Axes:
    found = {facts.name: facts.evaluation.returns, "Oracle": facts.oracle}
    return plots.returns_distribution(found, facts.model.weights)


def _regret(facts: Facts) -> Axes:
    return plots.regret_distribution(facts.evaluation.regret, facts.model.weights)


def _methods(facts: Facts) -> Axes:
    means = {row.name: row.found.mean for row in facts.rows}
    errors = {row.name: row.found.stderr for row in facts.rows}
    ranges = {
        row.name: (row.found.quantile(0.1), row.found.quantile(0.9)) for row in facts.rows
    }  # fmt: skip
    return plots.methods_comparison(
        means, errors, lows=ranges, xlabel="mean return (bar: from the 10% to the 90% quantile)"
    )


def _weights(facts: Facts) -> Axes | None:
    if facts.weights is None or facts.model.n_models < 2:
        return None
    left, right = plots.new_axes(2, 9.5, 3.6)
    plots.weights_over_time(facts.weights, left)
    state = facts.telling_state
    plots.weights_over_time(
        facts.weights, right, state=state, state_label=facts.model.state_labels[state],
        models=facts.model.model_labels,
    )  # fmt: skip
    left.set_title("How many models are in play", loc="left", fontsize="medium")
    right.set_title("The models that gain most", loc="left", fontsize="medium")
    return left


def _trace(facts: Facts) -> Axes | None:
    if not facts.traces:
        return None
    axis = plots.traces(facts.traces)
    legend = axis.get_legend()
    if len(facts.traces) == 1 and legend is not None:
        legend.remove()
        axis.set_xlabel(f"iteration of CADP, started from {plots.label(next(iter(facts.traces)))}")
    return axis


def _information(facts: Facts) -> Axes | None:
    table = facts.information
    if table is None or len(table) < 3:  # a single parameter needs no picture
        return None
    rows = table.iloc[1:16]
    axis = plots.new_axis(6.0, 1.3 + 0.32 * len(rows))
    axis.barh(range(len(rows)), rows["value"], color=plots.COLOURS[0], height=0.6)
    axis.axvline(
        table["value"].iloc[0], color=plots.COLOURS[1], linestyle="--", label="knowing everything"
    )
    axis.set_yticks(range(len(rows)), [plots.label(str(name)) for name in rows["parameter"]])
    axis.invert_yaxis()
    axis.set_xlabel("return gained by knowing it before acting")
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    axis.grid(axis="x", alpha=0.3)
    return axis


def _memory(facts: Facts) -> Axes | None:
    return None if facts.memory is None else plots.value_of_memory(facts.memory[0])


def _frontier(facts: Facts) -> Axes | None:
    return None if facts.frontier is None else facts.frontier.plot()


def _enough(facts: Facts) -> Axes | None:
    table = facts.sizes
    if table is None:
        return None
    axis = plots.new_axis(6.0, 3.4)
    colour, marker = plots.COLOURS[0], plots.MARKERS[0]
    axis.errorbar(
        table["models"], table["test"], yerr=table["test_sd"], color=colour, marker=marker,
        linewidth=1.8, capsize=4,
    )  # fmt: skip
    axis.set_xscale("log")
    last = table["models"].max()
    marked = [x for x in table["models"] if x == last or 1.5 * x <= last]  # 200 and 250 would touch
    axis.set_xticks(marked, [f"{x:,}" for x in marked])
    axis.minorticks_off()
    axis.set_xlabel("models the policy is computed from (bar: one standard deviation)")
    axis.set_ylabel("return on held-out models")
    axis.grid(axis="y", alpha=0.3)
    return axis


def _willingness(facts: Facts) -> Axes | None:
    found = facts.willingness
    return None if found is None else plots.acceptability_curves(_curves(found), found.frontier)


def _loss(facts: Facts) -> Axes | None:
    found = facts.willingness
    return None if found is None else plots.expected_loss(_curves(found), found.frontier)


def _curves(found: WillingnessToPay) -> pd.DataFrame:
    """The curves of the policies on the frontier, and of those that were named."""
    named = [name for name in found.policies if name not in found.found]
    shown = list(dict.fromkeys([*found.frontier["policy"], *named]))[:MOST_CURVES]
    return found.acceptability[found.acceptability["policy"].isin(shown)]


PICTURES = {
    "policy": Picture("The action by time and state", _policy),
    "methods": Picture("Mean return of the methods, with Oracle as the bound", _methods),
    "returns": Picture("Share of models by return: the policy and Oracle", _returns),
    "regret": Picture("Share of models by regret", _regret),
    "weights": Picture("How the weight moves between models over time", _weights),
    "trace": Picture("Value of the policy by iteration of CADP", _trace),
    "information": Picture("Value of knowing each parameter", _information),
    "memory": Picture("Value by nodes of memory", _memory),
    "frontier": Picture("Mean return against the mean of the worst tenth", _frontier),
    "enough": Picture("Return on held-out models by the number of models", _enough),
    "willingness": Picture("Acceptability of the policies by willingness to pay", _willingness),
    "loss": Picture("Expected loss of the policies by willingness to pay", _loss),
}
