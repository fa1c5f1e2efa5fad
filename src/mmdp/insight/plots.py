"""Plots: each function takes a matplotlib axis (or makes one) and returns it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import (
    Array3D,
    Matrix,
    PositiveInt,
    Probability,
    Unchecked,
    Vector,
    check_arguments,
)
from mmdp.core.errors import InputError
from mmdp.core.policies import as_policy
from mmdp.core.policies.tree import Split, require_tree
from mmdp.core.shapes import Array
from mmdp.core.text import (
    TimeLabels,
    clip_middle,
    did_you_mean,
    format_number,
    format_percent,
    pluralize,
)
from mmdp.data.io.writing import write_atomic
from mmdp.insight.draw.axes import (
    LEGEND_BESIDE,
    MAX_LEGEND_LENGTH,
    UNLABELED_TIMES,
    format_label,
    format_time_axis,
    new_axes,
    new_axis,
    to_png,
    to_svg,
)
from mmdp.insight.draw.maps import PolicyMap
from mmdp.insight.draw.palette import LINE_COLORS, MARKERS, ActionStyles, make_action_colors

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from mmdp.core.policies import Policy, TreePolicy
    from mmdp.core.solution import Solution

__all__ = [
    "acceptability_curves",
    "cohort_trace",
    "error_bars",
    "expected_loss",
    "methods_comparison",
    "new_axes",
    "new_axis",
    "policy_heatmap",
    "regret_distribution",
    "returns_distribution",
    "risk_frontier",
    "save_figure",
    "survival",
    "to_png",
    "to_svg",
    "tree",
    "value_by_leaves",
    "value_by_nodes",
    "value_traces",
    "weights_by_step",
    "weights_over_time",
]


TREE_INDENT = 0.55  # inches
TRACE_COLUMNS = ("state", "share")  # columns of a cohort trace after its times
MIN_RELATIVE_RANGE = 1e-6  # of an axis of values; a smaller one would show rounding errors
LINE_STYLES: tuple[Any, ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (4, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
    (0, (2, 1)),
)


def new_axis_for_legend(n_entries: int) -> Axes:
    """Make an axis that is high enough for a legend of n entries to its right."""
    return new_axis(height=max(3.8, 0.6 + 0.22 * n_entries))


def format_axes(
    axis: Axes,
    xlabel: str,
    ylabel: str,
    *,
    grid: Literal["both", "x", "y"] = "y",
    legend: Mapping[str, Any] | None = None,
) -> Axes:
    """Set the labels, the grid and, if options for one are given, the legend of an axis."""
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.grid(axis=grid, alpha=0.3)
    if legend is not None:
        axis.legend(**{"frameon": False, **legend})
    return axis


def set_log_ticks(axis: Axes, ticks: Sequence[float]) -> None:
    """Make the x axis logarithmic, with these ticks alone."""
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{x:,}" for x in ticks])
    axis.minorticks_off()


def make_line_style(i: int, **changes: Any) -> dict[str, Any]:
    """Choose color, marker and width of the i-th line of a plot, with changes by name."""
    marker = MARKERS[(i + i // 7) % 7]  # the eighth has the first one's color
    return {"color": LINE_COLORS[i % 7], "marker": marker, "linewidth": 1.8, **changes}


def make_dash_style(i: int, **changes: Any) -> dict[str, Any]:
    """Choose color, dashes and width of the i-th line of a plot without markers."""
    return make_line_style(i, **{"marker": None, "linestyle": LINE_STYLES[i % 4], **changes})


@check_arguments
def value_traces(
    values: Mapping[str, Vector], axis: Axes | None = None, *, ylabel: str = "mean return"
) -> Axes:
    """Plot return by iteration of several runs, one line each."""
    axis = axis or new_axis()
    for i, (name, trace) in enumerate(values.items()):
        axis.plot(trace, label=name, **make_line_style(i))
    axis.locator_params(axis="x", integer=True)
    return format_axes(axis, "iteration of CADP", ylabel, legend={"title": "start"})


@check_arguments
def error_bars(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    error: str,
    group_by: str | None = None,
    xlabel: str = "",
    ylabel: str = "",
    log: bool = False,
) -> Axes:
    """Plot points with error bars (two standard errors), one line per value of ``group_by``."""
    columns = [str(name) for name in frame.columns]
    for name in filter(None, (x, y, error, group_by)):
        if name not in columns:
            raise InputError(f"the frame has no column {did_you_mean(name, columns)}")
    axis = new_axis()
    groups: Any = [(None, frame)] if group_by is None else frame.groupby(group_by, sort=False)
    for i, (label, group) in enumerate(groups):
        style = make_line_style(i, capsize=3)
        axis.errorbar(group[x], group[y], yerr=2 * group[error], label=label, **style)
    if log:
        set_log_ticks(axis, sorted(set(frame[x])))
    return format_axes(axis, xlabel or x, ylabel or y, legend=None if group_by is None else {})


# ------------------------------------------------------------------ over the models
@check_arguments
def returns_distribution(
    returns: Mapping[str, Vector], weights: Vector | None = None, axis: Axes | None = None
) -> Axes:
    """Plot the distribution of returns over models, one step line per name; means are dotted.

    ``returns`` maps a name to (M,) returns, ``weights`` (M,) are the models' probabilities.

    >>> axis = returns_distribution({"policy": [1.0, 2.0], "Oracle": [2.0, 2.0]})
    >>> axis.get_legend_handles_labels()[1]
    ['policy', 'Oracle']
    """
    axis = axis or new_axis()
    for i, (name, values) in enumerate(returns.items()):
        x = np.asarray(values, dtype=float)
        probs = _as_weights(weights, len(x))
        axis.ecdf(x, probs, label=format_label(name, 40), **make_dash_style(i))
        axis.axvline(float(x @ probs), color=LINE_COLORS[i % 7], linestyle=":", linewidth=1.2)
    axis.locator_params(axis="x", nbins=6)
    axis.set_ylim(0, 1.02)
    labels = ("return (dotted: mean)", "share of models at or below")
    return format_axes(axis, *labels, grid="both", legend={"loc": "upper left"})


@check_arguments
def regret_distribution(
    regret: Vector, weights: Vector | None = None, axis: Axes | None = None
) -> Axes:
    """Plot a histogram of the regret of each model, with the mean and the largest marked.

    >>> axis = regret_distribution([0.0, 1.0, 1.0, 4.0])
    >>> round(float(sum(bar.get_height() for bar in axis.patches)), 6)
    1.0
    """
    axis = axis or new_axis()
    x = np.maximum(np.asarray(regret, dtype=float), 0.0)
    probs = _as_weights(weights, len(x))
    high = float(x.max()) or 1.0
    axis.hist(x, bins=20, range=(0.0, high), weights=probs, color=LINE_COLORS[0], rwidth=0.92)
    marked_values = {"mean": float(x @ probs), "largest": float(x[probs > 0].max())}
    for i, (name, value) in enumerate(marked_values.items()):
        axis.axvline(value, label=f"{name} {format_number(value)}", **make_dash_style(i + 1))
    xlabel = "regret: how far the return is below that model's own optimum"
    return format_axes(axis, xlabel, "share of models", legend={})


@check_arguments
def risk_frontier(
    frame: pd.DataFrame, axis: Axes | None = None, *, tail: Probability = 0.1
) -> Axes:
    """Plot mean return (x) against the mean of the worst share ``tail`` of the models (y).

    ``frame`` is that of :class:`mmdp.measures.RiskFrontier`: a point for each objective, joined by
    a line if no other one is better in both. Hollow: on test models, if there are any.

    >>> import pandas as pd
    >>> rows = {"objective": ["mean", "CVaR 10%"], "mean": [2.0, 1.9], "tail": [0.1, 0.4],
    ...         "is_efficient": [True, True]}
    >>> [text.get_text() for text in risk_frontier(pd.DataFrame(rows)).get_legend().get_texts()]
    ['mean', 'CVaR 10%']
    """
    axis = axis or new_axis()
    efficient = frame[frame["is_efficient"]].sort_values("mean")
    axis.plot(efficient["mean"], efficient["tail"], color=LINE_COLORS[0], linewidth=1.2, alpha=0.6)
    for i, row in enumerate(frame.to_dict("records")):
        style = make_line_style(i, linestyle="none")
        axis.plot(row["mean"], row["tail"], label=row["objective"], **style)
        if "test_mean" in row:
            axis.plot(row["test_mean"], row["test_tail"], **style, fillstyle="none")
    axis.locator_params(axis="x", nbins=6)
    labels = "mean over all models", f"mean over the worst {100 * tail:g}%"
    legend = {"title": "hollow: test models" if "test_mean" in frame else None}
    return format_axes(axis, *labels, grid="both", legend=legend)


def _as_weights(weights: npt.ArrayLike | None, n_models: int) -> Array:
    """Check the weights (M,) of the models; uniform by default."""
    probs = np.full(n_models, 1 / n_models) if weights is None else np.asarray(weights, dtype=float)
    check_length(probs, n_models, "weights", "one for each model")
    return probs


def check_length(values: Sized, n_expected: int, argument: str, expected: str) -> None:
    """Refuse an argument whose number of entries is not the expected one."""
    if len(values) != n_expected:
        n_entries = pluralize(len(values), "entry", "entries")
        raise InputError(f"{argument} has {n_entries}; give {n_expected}, {expected}")


def effective_size_by_time(weights: Array) -> Array:
    """Compute the effective number of models given the state: mean and minimum over states.

    ``weights`` (T, M, S) are b_{t,m}(s) of :func:`mmdp.measures.model_weights`. The number is exp
    of the entropy of the models given the state: M if the state says nothing about the
    model, 1 if it determines it. The first column is exp of the mean entropy over states, the
    second the least over states that are reached with probability 1% or more. Returns: (T, 2).

    >>> import numpy as np
    >>> effective_size_by_time(np.array([[[0.5, 0.0], [0.0, 0.5]]])).tolist()
    [[1.0, 1.0]]
    """
    from scipy.stats import entropy

    visit_probs = weights.sum(axis=1)
    with np.errstate(invalid="ignore"):
        entropies = np.nan_to_num(entropy(weights, axis=1))  # of the models given the state, (T, S)
    mean_entropy = (visit_probs * entropies).sum(axis=1) / visit_probs.sum(axis=1)
    is_frequent = visit_probs >= np.minimum(0.01, visit_probs.max(axis=1, keepdims=True))
    min_entropy = np.where(is_frequent, entropies, np.inf).min(axis=1)
    return np.exp(np.stack([mean_entropy, min_entropy], axis=1))


@check_arguments
def weights_over_time(
    weights: Array3D, axis: Axes | None = None, *, time_labels: TimeLabels = UNLABELED_TIMES
) -> Axes:
    """Plot the effective number of models over time, see :func:`effective_size_by_time`.

    ``weights`` (T, M, S) are b_{t,m}(s). :func:`weights_by_step` plots those of one state.

    >>> import numpy as np
    >>> axis = weights_over_time(np.full((2, 4, 1), 0.25))
    >>> axis.lines[0].get_ydata().round(6).tolist()
    [4.0, 4.0]
    """
    axis = axis or new_axis()
    sizes = effective_size_by_time(np.asarray(weights, dtype=float)).T
    for i, name in enumerate(("average over states", "the most telling state")):
        axis.plot(sizes[i], label=name, **make_dash_style(i))
    axis.set_ylim(0, 1.08 * sizes.max())
    xlabel = format_time_axis(axis, time_labels)
    return format_axes(axis, xlabel, "models in play", legend={"fontsize": "small"})


@check_arguments
def weights_by_step(
    weights: Matrix,
    times: Vector,
    model_labels: Sequence[str],
    axis: Axes | None = None,
    *,
    max_models: PositiveInt = 7,
) -> Axes:
    """Plot the weight of each model over time: ``weights`` (n, M) at ``times`` (n,).

    It shows the ``max_models`` models that gain most. Rows of weights are scaled to sum to 1.

    >>> axis = weights_by_step(np.array([[0.5, 0.5], [0.8, 0.2]]), [2025, 2026], ["a", "b"])
    >>> [line.get_label() for line in axis.lines]
    ['model a', 'model b']
    """
    axis, weights, times = axis or new_axis(), np.asarray(weights), np.asarray(times)
    check_length(times, len(weights), "times", "one for each row of weights")
    check_length(model_labels, weights.shape[1], "model_labels", "one for each column of weights")
    totals = weights.sum(axis=1, keepdims=True)
    shares = np.divide(weights, totals, where=totals > 0, out=np.full(weights.shape, np.nan))
    known_shares = shares[totals[:, 0] > 0]
    gains = known_shares[-1] - known_shares[0] if len(known_shares) else np.zeros(len(model_labels))
    for i, m in enumerate(np.argsort(-gains, kind="stable")[:max_models].tolist()):
        label = f"model {format_label(model_labels[m], 16)}"
        marks = {"markevery": (i, max(1, len(times) // 8)), "markersize": 5}
        axis.plot(times, shares[:, m], label=label, **make_line_style(i, **marks))
    axis.set_ylim(bottom=0)
    axis.locator_params(axis="x", integer=True)
    axis.xaxis.set_major_formatter("{x:.0f}")  # years have no thousands
    legend = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 3, "fontsize": "small"}
    return format_axes(axis, "time", "weight of the model", legend=legend)


# ------------------------------------------------------------------ between policies
def _plot_groups(
    frame: pd.DataFrame, x: str, y: str, axis: Axes | None, *, has_markers: bool = False
) -> Axes:
    """Plot a column by another, one line per policy."""
    axis = axis or new_axis_for_legend(frame["policy"].nunique() + 1)
    for i, (name, group) in enumerate(frame.groupby("policy", sort=False)):
        marks = {"markersize": 5, "markevery": max(1, len(group) // 12)}
        style = make_line_style(i, **marks) if has_markers else make_dash_style(i)
        label = format_label(str(name), MAX_LEGEND_LENGTH)
        axis.plot(group[x], group[y], label=label, **style)
    return axis


@check_arguments
def acceptability_curves(
    acceptability: pd.DataFrame, frontier: pd.DataFrame | None = None, axis: Axes | None = None
) -> Axes:
    """Plot the probability of being the best by willingness to pay, one line per policy.

    ``acceptability`` is that of :meth:`mmdp.economics.CostEffectiveness.acceptability`, and
    ``frontier``, drawn as a dashed line, that of its ``frontier``.

    >>> from mmdp.insight.economics import CostEffectiveness
    >>> effects, costs = {"old": [1], "new": [2]}, {"old": [0], "new": [10]}
    >>> outcomes = CostEffectiveness.from_tables(effects, costs)
    >>> axis = acceptability_curves(outcomes.acceptability([5, 20]))
    >>> [line.get_ydata().tolist() for line in axis.lines]
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return _plot_by_threshold(acceptability, "probability", frontier, "frontier", axis)


@check_arguments
def expected_loss(
    acceptability: pd.DataFrame, frontier: pd.DataFrame | None = None, axis: Axes | None = None
) -> Axes:
    """Plot expected loss by willingness to pay, one line per policy; the EVPI is dashed.

    The arguments are those of :func:`acceptability_curves`.

    >>> from mmdp.insight.economics import CostEffectiveness
    >>> effects, costs = {"old": [1], "new": [2]}, {"old": [0], "new": [10]}
    >>> outcomes = CostEffectiveness.from_tables(effects, costs)
    >>> axis = expected_loss(outcomes.acceptability([5, 20]), outcomes.frontier([5, 20]))
    >>> [line.get_ydata().tolist() for line in axis.lines]
    [[0.0, 10.0], [5.0, 0.0], [0.0, 0.0]]
    """
    return _plot_by_threshold(acceptability, "loss", frontier, "EVPI", axis)


def _plot_by_threshold(
    table: pd.DataFrame,
    column: str,
    frontier: pd.DataFrame | None,
    frontier_label: str,
    axis: Axes | None,
) -> Axes:
    """Plot a column of the table by threshold, one line per policy, and a frontier dashed."""
    axis = _plot_groups(table, "threshold", column, axis, has_markers=True)
    is_loss = column == "loss"
    if frontier is not None:
        y = frontier["evpi" if is_loss else column]
        style = make_line_style(6, marker=None, linestyle="--", linewidth=2.2)
        axis.plot(frontier["threshold"], y, label=frontier_label, **style)
    axis.locator_params(axis="x", nbins=5)
    axis.set_ylim(0, None if is_loss else 1.02)
    ylabel = "expected loss, in units of cost" if is_loss else "probability of being the best"
    xlabel = "willingness to pay for one unit of effect"
    return format_axes(axis, xlabel, ylabel, legend=LEGEND_BESIDE)


@check_arguments
def cohort_trace(frame: pd.DataFrame, axis: Axes | None = None) -> Axes:
    """Plot the share in each state by time: a color per state, a line style per policy.

    ``frame`` is that of :func:`mmdp.economics.cohort_trace`.

    >>> import pandas as pd
    >>> rows = {"policy": ["wait"] * 4, "time": [0, 1] * 2, "state": ["ill"] * 2 + ["dead"] * 2,
    ...         "share": [1.0, 0.8, 0.0, 0.2]}
    >>> [line.get_ydata().tolist() for line in cohort_trace(pd.DataFrame(rows)).lines]
    [[1.0, 0.8], [0.0, 0.2]]
    """
    from matplotlib.lines import Line2D

    states, policies = (frame[x].unique().tolist() for x in ("state", "policy"))
    colors: Sequence[str] = LINE_COLORS
    if len(states) > len(colors):
        colors = make_action_colors(len(states))
    axis = axis or new_axis_for_legend(len(states) + len(policies))
    color_by_state = dict(zip(states, colors, strict=False))
    dashes_by_policy = dict(zip(policies, itertools.cycle(LINE_STYLES), strict=False))
    for (policy, state), group in frame.groupby(["policy", "state"], sort=False):
        style = {"color": color_by_state[state], "linestyle": dashes_by_policy[policy]}
        axis.plot(group["time"], group["share"], linewidth=1.6, **style)
    axis.set_ylim(0, 1.02)
    styles = [(state, {"color": color}) for state, color in color_by_state.items()]
    if len(policies) > 1:
        styles += [(x, {"color": "black", "linestyle": y}) for x, y in dashes_by_policy.items()]
    handles = [Line2D([], [], label=format_label(str(name)), **style) for name, style in styles]
    xlabel = format_time_axis(axis, TimeLabels.from_columns(frame, TRACE_COLUMNS))
    legend = {**LEGEND_BESIDE, "handles": handles, "handlelength": 3.5}
    return format_axes(axis, xlabel, "share of the cohort", legend=legend)


@check_arguments
def survival(
    frame: pd.DataFrame, dead: str | Sequence[str] = "dead", axis: Axes | None = None
) -> Axes:
    """Plot the share that is in none of the states ``dead``, by time, one line per policy.

    ``frame`` is that of :func:`mmdp.economics.cohort_trace`.
    """
    dead_states = [dead] if isinstance(dead, str) else list(dead)
    states = frame["state"].unique().tolist()
    for state in dead_states:
        if state not in states:
            raise InputError(
                f"no state {did_you_mean(state, states)} in the trace; name those to leave out"
            )
    alive = frame[~frame["state"].isin(dead_states)]
    shares = alive.groupby(["policy", "time"], sort=False)["share"].sum().reset_index()
    axis = _plot_groups(shares, "time", "share", axis)
    axis.set_ylim(0, 1.02)
    xlabel = format_time_axis(axis, TimeLabels.from_columns(frame, TRACE_COLUMNS))
    return format_axes(axis, xlabel, "share alive", legend=LEGEND_BESIDE)


@check_arguments
def methods_comparison(
    means: Mapping[str, float],
    errors: Mapping[str, float] | None = None,
    axis: Axes | None = None,
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    xlabel: str = "mean return",
) -> Axes:
    """Plot the mean return of each method, with a bar for its range over the models.

    ``errors`` are standard errors of simulated means (drawn twice as long). ``ranges`` are
    (from, to) ranges over the models, such as the 10% and 90% quantiles.

    >>> axis = methods_comparison({"cadp": 2.0, "wsu": 1.0})
    >>> [text.get_text() for text in axis.get_yticklabels()]
    ['cadp', 'wsu']
    """
    axis = axis or new_axis(6.0, 1.2 + 0.4 * len(means))
    for i, (name, mean) in enumerate(means.items()):
        if ranges is not None and name in ranges:
            axis.plot(ranges[name], [i, i], color=LINE_COLORS[0], linewidth=5, alpha=0.25)
        style = make_line_style(i, color=LINE_COLORS[0], markersize=8, capsize=4)
        axis.errorbar(mean, i, xerr=2 * (errors or {}).get(name, 0.0) or None, **style)
        axis.annotate(
            format_number(mean, 6),
            (mean, i),
            (0, 8),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )
    axis.set_yticks(range(len(means)), [format_label(name, 32) for name in means])
    axis.set_ylim(len(means) - 0.5, -0.7)
    axis.locator_params(axis="x", nbins=5)
    axis.margins(x=0.12)
    return format_axes(axis, xlabel, "", grid="x")


@check_arguments
def value_by_nodes(frame: pd.DataFrame, axis: Axes | None = None) -> Axes:
    """Plot value by nodes of memory, with lines for the belief rollout, bound and Oracle.

    ``frame`` is what :func:`mmdp.measures.value_by_nodes` returns.
    """
    axis = axis or new_axis()
    nodes = frame[frame["nodes"].notna()]
    axis.plot(nodes["nodes"], nodes["value"], label="best policy found", **make_line_style(0))
    references = frame[frame["nodes"].isna()][["policy", "value", "stderr"]]
    for i, (name, value, error) in enumerate(references.to_numpy().tolist()):
        style = make_dash_style(i + 1)
        axis.axhline(value, label=name, **style)
        if error > 0:
            band = value - 2 * error, value + 2 * error
            axis.axhspan(*band, color=style["color"], alpha=0.15, linewidth=0)
    low, high = axis.get_ylim()
    if high - low < MIN_RELATIVE_RANGE * abs(high):  # the same but for rounding
        axis.set_ylim(low - 0.01 * abs(low), high + 0.01 * abs(high))
    axis.set_xticks(nodes["nodes"], [f"{n:.0f}" for n in nodes["nodes"]])
    return format_axes(axis, "nodes of memory (1: none)", "mean return", legend={"fontsize": 9})


@check_arguments
def value_by_leaves(frame: pd.DataFrame, axis: Axes | None = None) -> Axes:
    """Plot value by leaves of a tree, with a line for the best policy found and the elbow.

    ``frame`` is what :func:`mmdp.measures.value_by_leaves` returns.
    """
    axis = axis or new_axis()
    leaves, values = frame["leaves"], frame["value"]
    axis.plot(leaves, values, label="best tree found", **make_line_style(0))
    best = (values + frame["restriction_cost"]).max()
    if np.isfinite(best):
        axis.axhline(best, label="best policy found", **make_dash_style(1))
    elbow = frame[leaves == frame.attrs["elbow"]]
    style = make_line_style(2, marker="D", linestyle="none", markersize=10)
    axis.plot(elbow["leaves"], elbow["value"], label="elbow", **style)
    axis.set_xticks(leaves)
    return format_axes(axis, "leaves", "value", legend={"fontsize": 9})


# ------------------------------------------------------------------ policies
@check_arguments
def policy_heatmap(
    policy: Policy | Solution,
    axis: Axes | None = None,
    *,
    states: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
) -> Axes:
    """Plot the actions of a policy by time (across) and state (down).

    If states have named axes, like ``stock=3, ordered=5``, and no ``axis`` is given, small maps of
    the two longest axes: a column for some of the times, a row for some values of the third axis.
    For a randomized policy it shows the most probable action. A stationary one has a single
    column, one with memory a row for each state and node, and one of
    :class:`mmdp.methods.BeliefGrid` the weight of a model across. ``states`` and ``actions`` are
    labels; by default those of the policy, or the ids if it has none.

    >>> import mmdp
    >>> policy = mmdp.policies.MarkovPolicy([[0, 1], [1, 1]], action_labels=["run", "fix"])
    >>> axis = policy_heatmap(policy)
    >>> [text.get_text() for text in axis.texts]
    ['A', 'B', 'B']
    """
    remedy = "Oracle has one policy per model; solve by another method"
    policy_map: PolicyMap = as_policy(policy, "a map shows a policy", remedy).to_map()
    if states is not None:
        check_length(states, len(policy_map.row_labels), "states", "one label for each row")
    if actions is not None:
        check_length(actions, len(policy_map.action_labels), "actions", "one label for each")
    return policy_map._replace(
        row_labels=states or policy_map.row_labels,
        action_labels=actions or policy_map.action_labels,
    ).plot(axis)


@check_arguments
def tree(
    policy: Unchecked[TreePolicy | Solution],
    leaf_table: pd.DataFrame | None = None,
    axis: Axes | None = None,
) -> Axes:
    """Plot a decision tree: the conditions of its splits and the actions of its leaves.

    With ``leaf_table``, as :func:`mmdp.measures.leaf_table` makes it, a leaf also says its share of
    the visits, and the cost of the second best action.

    >>> import mmdp
    >>> train, _ = mmdp.domains.load_published("riverswim")
    >>> solution = mmdp.solve(train, 50, policy_class=mmdp.policies.Tree(2))
    >>> axis = tree(solution, mmdp.measures.leaf_table(train, solution))
    >>> [text.get_text() for text in axis.texts][:4]
    ['state is at most 3?', 'yes', 'swim left', '23% of visits; swim right would cost 3.99']
    """
    tree_policy = require_tree(policy, "the picture shows")
    action_names, styles = tree_policy.action_names, ActionStyles(tree_policy.action_names)
    leaf_records = iter([] if leaf_table is None else leaf_table.to_dict("records"))
    nodes = [(len(path), is_true, node) for path, is_true, node, _ in tree_policy.iter_nodes()]
    axis = axis or new_axis(9.0, 0.2 + 0.42 * len(nodes))
    axis.set(xlim=(0, 9), ylim=(len(nodes) - 0.4, -0.6))
    axis.axis("off")
    axis.set_title(tree_policy.fallback_text, fontsize=9, loc="left")
    row_of_depth: dict[int, int] = {}  # the row of the last split by its depth
    for i, (depth, is_true, node) in enumerate(nodes):
        x, branch = 0.3 + TREE_INDENT * depth, {True: "yes", False: "no", None: ""}[is_true]
        if depth:
            line_x, parent = x - TREE_INDENT, row_of_depth[depth - 1]
            axis.plot([line_x, line_x, x - 0.1], [parent + 0.3, i, i], color="black", linewidth=0.8)
            axis.text(line_x + 0.1, i - 0.05, branch, va="bottom", fontsize=8)
        box: dict[str, Any] = {"boxstyle": "round,pad=0.3", "facecolor": "none", "linewidth": 0.8}
        if isinstance(node, Split):
            row_of_depth[depth] = i
            condition = tree_policy.features[node.feature].format_condition(node.threshold_id)
            text = format_label(clip_middle(condition, 60), 60)
            axis.text(x, i, f"{text}?", va="center", fontsize=10, bbox=box)
            continue
        name, color = format_label(action_names[node.action], 40), styles.text_colors[node.action]
        box["facecolor"] = styles.colors[node.action]
        leaf = axis.text(x, i, name, va="center", fontsize=10, color=color, bbox=box)
        note = _describe_leaf(next(leaf_records, None))
        axis.annotate(
            note, (1, 0.5), (12, 0), leaf, textcoords="offset points", va="center", fontsize=9
        )
    return axis


def _describe_leaf(record: dict[Any, Any] | None) -> str:
    """Describe the share of visits of a leaf and the loss of its second best action."""
    if record is None:
        return ""
    loss, text = record["loss"], f"{format_percent(record['share'])} of visits"
    if not record["second_best"]:
        return text
    cost_text = f"would cost {format_number(loss, 3)}" if loss > 0 else "is no worse"
    return f"{text}; {format_label(record['second_best'], 30)} {cost_text}"


@check_arguments
def save_figure(axis: Axes, path: str | Path) -> Path:
    """Write the axis' figure as ``.png`` or ``.svg``, whole or not at all.

    >>> import tempfile
    >>> save_figure(regret_distribution([0.0, 1.0]), tempfile.mkdtemp() + "/regret.svg").name
    'regret.svg'
    """
    target = Path(path)
    check_figure_suffix(target)
    content = to_png(axis) if target.suffix.lower() == ".png" else to_svg(axis)
    write_atomic(target, content)
    return target


def check_figure_suffix(path: Path) -> None:
    """Check that the name of a figure ends in .png or .svg."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"{path}: choose a name that ends in .png or .svg")
