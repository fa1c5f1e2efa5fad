"""Figures of a report, drawn into the page or, by ``mmdp plot``, into files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from mmdp.insight import plots
from mmdp.insight.draw.axes import (
    format_label,
    format_time_axis,
    new_axes,
    new_axis,
    to_inline_svg,
)
from mmdp.insight.draw.maps import PolicyMap
from mmdp.insight.draw.palette import LINE_COLORS
from mmdp.insight.measures.simplicity import leaf_table
from mmdp.insight.report.context import ReportContext
from mmdp.insight.report.findings import (
    InformationValue,
    MethodComparison,
    SampleSizeCurve,
    SmallTree,
    WeightSummary,
    WtpSweep,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CURVES = 7  # in one picture


class ReportFigure(NamedTuple):
    """A figure of the page: its title, the section whose result it draws, and how.

    ``draw_axes`` returns None if there is nothing to draw; ``requirement`` then says why.
    ``is_on_page`` is False if scripts of the page draw it.
    """

    title: str
    section: str
    draw_axes: Callable[[ReportContext, Any], Axes | None]
    requirement: str = "it needs two models or more"
    is_on_page: bool = True

    def draw(self, context: ReportContext, result: object) -> Axes | None:
        """Draw the result of the section, with the unit of returns on the axes; None if empty."""
        ax = self.draw_axes(context, result)
        if ax is not None and context.model.unit:
            unit = f"return in {format_label(context.model.unit)}"
            for subplot in ax.figure.axes:
                subplot.set_xlabel(subplot.get_xlabel().replace("return", unit, 1))
                subplot.set_ylabel(subplot.get_ylabel().replace("return", unit, 1))
        return ax


def _draw_policy(context: ReportContext, result: object) -> Axes:
    """Draw the action by time and state as a heat map."""
    model, states = context.model, np.flatnonzero(context.model.has_choice)
    actions = context.policy.actions[: 1 if context.is_stationary else None, states]
    labels = [model.state_labels[s] for s in states]
    return PolicyMap(actions, labels, context.action_names, model.time_labels).plot()


def _draw_tree(context: ReportContext, result: SmallTree) -> Axes:
    """Draw the small decision tree with the leaf table."""
    table = leaf_table(context.model, result.policy, objective=context.objective)
    return plots.tree(result.policy, table)


def _draw_returns(context: ReportContext, result: object) -> Axes:
    """Draw the distributions of returns of the policy, Oracle and the comparators."""
    returns = {context.name: context.evaluation.returns, "Oracle": context.evaluation.oracle}
    returns |= {name: context.evaluate(x).returns for name, x in context.comparators.items()}
    return plots.returns_distribution(returns, context.model.weights)


def _draw_methods(context: ReportContext, result: MethodComparison) -> Axes:
    """Draw mean and quantiles of the returns of every method."""
    evaluations = {row.name: row.evaluation for row in result.rows}
    return plots.methods_comparison(
        {name: x.mean for name, x in evaluations.items()},
        {name: x.stderr for name, x in evaluations.items()},
        ranges={name: (x.quantile(0.1), x.quantile(0.9)) for name, x in evaluations.items()},
        xlabel="mean return (bar: 10% to 90% quantile)",
    )


def _draw_trace(context: ReportContext, result: MethodComparison) -> Axes | None:
    """Draw the value by iteration of every CADP run; None if there is none."""
    if not result.traces:
        return None
    ax, init, *others = plots.value_traces(result.traces), *result.traces
    if not others and (legend := ax.get_legend()) is not None:
        legend.remove()
        init_text = "" if context.policy_text else f", started from {format_label(init)}"
        ax.set_xlabel(f"iteration of CADP{init_text}")
    return ax


def _draw_weights(context: ReportContext, result: WeightSummary) -> Axes:
    """Draw the effective number of models over time, and the weights in one state."""
    (left_ax, right_ax), model = new_axes(2, 9.5, 3.6), context.model
    plots.weights_over_time(result.weights, left_ax, time_labels=model.time_labels)
    weights, times = result.weights[:, :, result.state], np.arange(context.horizon)
    plots.weights_by_step(weights, times, model.model_labels, right_ax, max_models=5)
    right_ax.set_xlabel(format_time_axis(right_ax, model.time_labels))
    right_ax.set_ylabel(f"weight in state {format_label(model.state_labels[result.state])}")
    return left_ax


def _draw_information(context: ReportContext, result: InformationValue) -> Axes | None:
    """Draw the EVPPI of each parameter as bars; None for fewer than two parameters."""
    if len(result.table) < 3:  # a single parameter needs no picture
        return None
    evpi, rows = result.table["value"].iloc[0], result.table.iloc[1:16]
    ax = new_axis(6.0, 1.3 + 0.32 * len(rows))
    ax.barh(range(len(rows)), rows["value"], color=LINE_COLORS[0], height=0.6)
    ax.axvline(evpi, color=LINE_COLORS[1], linestyle="--", label="knowing everything")
    ax.set_yticks(range(len(rows)), [format_label(str(name)) for name in rows["parameter"]])
    ax.invert_yaxis()
    legend_options = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
    xlabel = "return gained by knowing it before acting"
    return plots.format_axes(ax, xlabel, "", grid="x", legend=legend_options)


def _draw_sample_size(context: ReportContext, result: SampleSizeCurve) -> Axes:
    """Draw the return on test models by the number of models solved with."""
    ax, counts, test = new_axis(6.0, 3.4), result.table["models"], result.table["test"]
    style = plots.make_line_style(0, capsize=4)
    ax.errorbar(counts, test, yerr=result.table["test_sd"], **style)
    # 200 and 250 would touch
    plots.set_log_ticks(ax, [x for x in counts if x == counts.max() or 1.5 * x <= counts.max()])
    xlabel = "models the policy is computed from (bar: one standard deviation)"
    return plots.format_axes(ax, xlabel, "return on held-out models")


def _draw_by_wtp(draw: Callable[[pd.DataFrame, pd.DataFrame], Axes], result: WtpSweep) -> Axes:
    """Draw a curve by willingness to pay of the comparators and of policies on the frontier."""
    sweep = result.table
    comparator_names = [name for name in sweep.policies if name not in sweep.found_names]
    names = list(dict.fromkeys([*comparator_names, *sweep.frontier["policy"]]))
    names = names[: max(MAX_CURVES, len(comparator_names))]
    is_shown = sweep.acceptability["policy"].isin(names)
    ax = draw(sweep.acceptability[is_shown], sweep.frontier)
    if len(names) < len(sweep.policies) and (legend := ax.get_legend()) is not None:
        legend.set_title(f"{len(names)} of {len(sweep.policies)} policies")
    return ax


ECONOMIC_REQUIREMENT = "it needs effects, costs and wtp_grid"
PAGE_FIGURES = {
    "policy": ReportFigure(
        "The action by time and state", "policy", _draw_policy, is_on_page=False
    ),
    "tree": ReportFigure(
        "The smallest rule that gives up at most 1% of what is at stake: questions, actions and "
        "decisions",
        "small_tree",
        _draw_tree,
        "no rule of a few leaves comes that close, or states have nothing to ask about",
    ),
    "methods": ReportFigure(
        "Mean return of the methods, with Oracle as the bound", "methods", _draw_methods
    ),
    "returns": ReportFigure(
        "Share of models by return: the policy and Oracle", "returns", _draw_returns
    ),
    "regret": ReportFigure(
        "Share of models by regret",
        "returns",
        lambda context, _: plots.regret_distribution(
            context.evaluation.regret, context.model.weights
        ),
    ),
    "weights": ReportFigure(
        "How the weight moves between models over time",
        "weights",
        _draw_weights,
        "it needs two models or more, and (T, M, S) weights that fit into memory",
    ),
    "trace": ReportFigure(
        "Value of the policy by iteration of CADP",
        "methods",
        _draw_trace,
        "no method is cadp; add it to the methods",
    ),
    "voi": ReportFigure(
        "Value of knowing each parameter",
        "voi",
        _draw_information,
        "the models carry fewer than two parameters; see MMDP(parameters=...)",
    ),
    "memory": ReportFigure(
        "Value by nodes of memory", "memory", lambda _, result: plots.value_by_nodes(result.table)
    ),
    "frontier": ReportFigure(
        "Mean return against the mean of the worst tenth",
        "frontier",
        lambda _, result: result.plot(),
        is_on_page=False,
    ),
    "sample_size": ReportFigure(
        "Return on held-out models by the number of models",
        "sample_size",
        _draw_sample_size,
        "it needs ten models or more, and a method to solve with",
    ),
    "willingness": ReportFigure(
        "Acceptability of the policies by willingness to pay",
        "willingness",
        lambda _, result: _draw_by_wtp(plots.acceptability_curves, result),
        ECONOMIC_REQUIREMENT,
    ),
    "loss": ReportFigure(
        "Expected loss of the policies by willingness to pay",
        "willingness",
        lambda _, result: _draw_by_wtp(plots.expected_loss, result),
        ECONOMIC_REQUIREMENT,
    ),
}


def render_figure(figure: str, context: ReportContext, result: object) -> Markup | None:
    """Render a figure of the page as SVG; None if its section has no result."""
    report_figure = PAGE_FIGURES[figure]
    ax = None if result is None else report_figure.draw(context, result)
    return None if ax is None else Markup(to_inline_svg(ax, report_figure.title, figure))
