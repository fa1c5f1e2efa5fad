"""Curves, bars and points: each function takes a matplotlib axis (or makes one) and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import (
    Array3D,
    Matrix,
    NonNegativeInt,
    PositiveInt,
    Probability,
    Vector,
    check_arguments,
)
from mmdp.core.errors import InputError
from mmdp.core.text import TimeLabels, did_you_mean, format_number, pluralize
from mmdp.insight.draw.axes import (
    MAX_LEGEND_LENGTH,
    MAX_TICK_LABELS,
    UNLABELED_TIMES,
    format_label,
    format_time_axis,
    new_axis,
)
from mmdp.insight.draw.palette import LINE_COLORS, MARKERS, TEXT_COLOR, make_action_colors

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

Array = npt.NDArray[np.float64]

MERGE_DISTANCE = 0.03  # share of an axis within which points have one label
LABEL_OFFSETS = ((5, 3), (-5, -3), (-5, 3), (5, -3))  # of a point, in points, for its label
WTP_LABEL = "willingness to pay for one unit of effect"
TRACE_COLUMNS = ("state", "share")  # columns of a cohort trace after its times
MIN_RELATIVE_RANGE = 1e-6  # of an axis of values; a smaller one would show rounding errors
# right of the axis
LEGEND_BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
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
        axis.legend(frameon=False, **legend)
    return axis


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
    """Plot return by iteration of several runs, one line each.

    Shorter runs hold their last value.
    """
    axis = axis or new_axis()
    arrays = {name: np.asarray(y, dtype=float) for name, y in values.items()}
    max_length = max(len(y) for y in arrays.values())
    for i, (name, y) in enumerate(arrays.items()):
        axis.plot(y, label=name, **make_line_style(i))
        held_times, style = [len(y) - 1, max_length - 1], make_dash_style(i, linestyle=":")
        axis.plot(held_times, [y[-1]] * 2, **style)
    if max_length <= MAX_TICK_LABELS:
        axis.set_xticks(range(max_length))
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
    for name in (x, y, error, *([] if group_by is None else [group_by])):
        if name not in frame.columns:
            raise InputError(
                f"the frame has no column {did_you_mean(name, map(str, frame.columns))}"
            )
    axis = new_axis()
    groups: Sequence[tuple[object, pd.DataFrame]] = (
        [("", frame)] if group_by is None else list(frame.groupby(group_by, sort=False))
    )
    for i, (group_name, group) in enumerate(groups):
        axis.errorbar(
            group[x],
            group[y],
            yerr=2 * group[error],
            label=str(group_name) or None,
            **make_line_style(i, capsize=3),
        )
    if log:
        axis.set_xscale("log")
        axis.set_xticks(sorted(set(frame[x])), [f"{v:,}" for v in sorted(set(frame[x]))])
        axis.minorticks_off()
    return format_axes(axis, xlabel or x, ylabel or y, legend=None if group_by is None else {})


# ------------------------------------------------------------------ over the models
@check_arguments
def returns_distribution(
    returns: Mapping[str, Vector],
    weights: Vector | None = None,
    axis: Axes | None = None,
    *,
    show_mean: bool = True,
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
        order = np.argsort(x, kind="stable")
        cumulative = np.concatenate([[0.0], np.cumsum(probs[order])])
        axis.step(
            np.concatenate([x[order][:1], x[order]]),
            cumulative,
            where="post",
            label=format_label(name, 40),
            **make_dash_style(i),
        )
        if show_mean:
            axis.axvline(float(x @ probs), color=LINE_COLORS[i % 7], linestyle=":", linewidth=1.2)
    axis.locator_params(axis="x", nbins=6)
    axis.set_ylim(0, 1.02)
    xlabel = "return (dotted: mean)" if show_mean else "return"
    legend = {"loc": "upper left"}
    return format_axes(axis, xlabel, "share of models at or below", grid="both", legend=legend)


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
    bins = min(30, max(5, int(np.ceil(2 * len(x) ** (1 / 2)))))
    max_regret = float(x.max()) or 1.0
    axis.hist(
        x,
        bins=np.linspace(0.0, max_regret, bins + 1).tolist(),
        weights=probs,
        color=LINE_COLORS[0],
        rwidth=0.92,
    )
    mean, largest = float(x @ probs), float(x[probs > 0].max())
    for i, (name, value) in enumerate({"mean": mean, "largest": largest}.items()):
        style = make_dash_style(i, color=LINE_COLORS[i + 1])
        axis.axvline(value, label=f"{name} {format_number(value)}", **style)
    xlabel = "regret: how far the return is below that model's own optimum"
    return format_axes(axis, xlabel, "share of models", legend={})


@check_arguments
def risk_frontier(
    frame: pd.DataFrame, axis: Axes | None = None, *, tail: Probability = 0.1
) -> Axes:
    """Plot mean return (x) against the mean of the worst share ``tail`` of the models (y).

    ``frame`` is that of :class:`mmdp.measures.RiskFrontier`: a point for each objective, joined by
    a line if no other one is better in both. Hollow: on test models, if there are any. Points that
    lie close together have one label.

    >>> import pandas as pd
    >>> rows = {"objective": ["mean", "CVaR 10%"], "mean": [2.0, 1.9], "tail": [0.1, 0.4],
    ...         "is_efficient": [True, True]}
    >>> [text.get_text() for text in risk_frontier(pd.DataFrame(rows)).texts]
    ['mean', 'CVaR 10%']
    """
    axis = axis or new_axis()
    efficient = frame[frame["is_efficient"]].sort_values("mean")
    axis.plot(efficient["mean"], efficient["tail"], color=LINE_COLORS[0], linewidth=1.2, alpha=0.6)
    axis.plot(frame["mean"], frame["tail"], "o", color=LINE_COLORS[0], label="training models")
    if "test_mean" in frame:
        axis.plot(
            frame["test_mean"],
            frame["test_tail"],
            "s",
            color=LINE_COLORS[1],
            fillstyle="none",
            label="test models",
        )
        axis.legend(frameon=False)
    axis.margins(0.14)
    axis.locator_params(axis="x", nbins=6)
    format_axes(axis, "mean over all models", f"mean over the worst {100 * tail:g}%", grid="both")
    _label_points(axis, _merge_labels(frame))
    return axis


def _label_points(axis: Axes, labeled_points: list[tuple[str, tuple[float, float]]]) -> None:
    """Write each name next to its point, on the side with the fewest overlaps."""
    from matplotlib.transforms import Bbox

    axis.figure.canvas.figure.draw_without_rendering()  # only then has the axis its size
    marks = np.concatenate([axis.transData.transform(line.get_xydata()) for line in axis.lines])
    occupied_boxes = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in marks]
    for name, point in labeled_points:
        text = axis.annotate(name, point, (0, 0), textcoords="offset points", fontsize=9)
        n_overlaps = [
            _place_label(text, *offset).count_overlaps(occupied_boxes) for offset in LABEL_OFFSETS
        ]
        occupied_boxes.append(_place_label(text, *LABEL_OFFSETS[int(np.argmin(n_overlaps))]))


def _place_label(text: Annotation, x: int, y: int) -> Bbox:
    """Move a label to an offset of its point, and return its bounding box."""
    text.set_position((x, y))
    text.set_horizontalalignment("left" if x > 0 else "right")
    text.set_verticalalignment("bottom" if y > 0 else "top")
    return text.get_window_extent()


def _merge_labels(frame: pd.DataFrame) -> list[tuple[str, tuple[float, float]]]:
    """Merge the labels of points that lie close together. Returns: (label, point) pairs."""
    points = frame[["mean", "tail"]].to_numpy(dtype=float)
    all_points = points
    if "test_mean" in frame:
        all_points = np.concatenate(
            [points, frame[["test_mean", "test_tail"]].to_numpy(dtype=float)]
        )
    is_separate = np.abs(np.diff(points, axis=0)) > MERGE_DISTANCE * np.ptp(all_points, axis=0)
    groups = np.split(np.arange(len(points)), 1 + np.flatnonzero(is_separate.any(axis=1)))
    return [
        (_format_range(frame["objective"].iloc[group]), tuple(points[group[0]])) for group in groups
    ]


def _format_range(names: pd.Series[str]) -> str:
    """Join the first and the last name, as in 'CVaR 10% to 1%'."""
    first, last = names.iloc[0], names.iloc[-1]
    return first if first == last else f"{first} to {last.removeprefix(first.split()[0] + ' ')}"


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
    visit_probs = weights.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        conditional = np.where(visit_probs[:, None] > 0, weights / visit_probs[:, None], 0.0)
        entropy = -np.where(conditional > 0, conditional * np.log(conditional), 0.0).sum(axis=1)
    total = visit_probs.sum(axis=1)
    mean_entropy = (visit_probs * entropy).sum(axis=1) / np.where(total > 0, total, 1.0)
    is_frequent = visit_probs >= np.minimum(0.01, visit_probs.max(axis=1, keepdims=True))
    min_entropy = np.where(is_frequent, entropy, np.inf).min(axis=1)
    return np.exp(np.stack([mean_entropy, min_entropy], axis=1)) + 0.0


@check_arguments
def weights_over_time(
    weights: Array3D,
    axis: Axes | None = None,
    *,
    state: NonNegativeInt | None = None,
    state_label: str | None = None,
    model_labels: Sequence[str] | None = None,
    max_models: PositiveInt = 5,
    time_labels: TimeLabels = UNLABELED_TIMES,
) -> Axes:
    """Plot the effective number of models, or the weights of models in one state, over time.

    ``weights`` (T, M, S) are b_{t,m}(s). Without ``state``: the effective number of models, see
    :func:`effective_size_by_time`. With it: the weights of the ``max_models`` models that gain
    most in that state, P[model | the state at t is ``state``].

    >>> import numpy as np
    >>> axis = weights_over_time(np.full((2, 4, 1), 0.25))
    >>> axis.lines[0].get_ydata().round(6).tolist()
    [4.0, 4.0]
    """
    axis, weights = axis or new_axis(), np.asarray(weights, dtype=float)
    time, (_, n_models, n_states) = np.arange(len(weights)), weights.shape
    if model_labels is not None:
        check_length(model_labels, n_models, "model_labels", "one label for each model")
    if state is not None and state >= n_states:
        raise InputError(f"state={state} does not exist; give a number from 0 to {n_states - 1}")
    if state is None:
        for i, name in enumerate(("average over states", "the most telling state")):
            y = effective_size_by_time(weights)[:, i]
            axis.plot(time, y, label=name, **make_dash_style(i))
        ylabel = "models in play"
        axis.set_ylim(0, 1.08 * axis.get_ylim()[1])
    else:
        _plot_model_weights(axis, time, weights[:, :, state], model_labels, max_models)
        axis.set_ylim(top=1.4 * axis.get_ylim()[1])  # room for the legend
        ylabel = f"weight in state {format_label(state_label or str(state))}"
    return format_axes(
        axis, format_time_axis(axis, time_labels), ylabel, legend={"fontsize": "small"}
    )


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

    It shows the ``max_models`` models that gain most.

    >>> axis = weights_by_step(np.array([[0.5, 0.5], [0.8, 0.2]]), [2025, 2026], ["a", "b"])
    >>> [line.get_label() for line in axis.lines]
    ['model a', 'model b']
    """
    axis, weights, times = axis or new_axis(), np.asarray(weights), np.asarray(times)
    check_length(times, len(weights), "times", "one for each row of weights")
    check_length(model_labels, weights.shape[1], "model_labels", "one for each column of weights")
    _plot_model_weights(axis, times, weights, model_labels, max_models)
    axis.set_ylim(-0.02, 1.02)
    axis.locator_params(axis="x", integer=True)
    axis.xaxis.set_major_formatter("{x:.0f}")  # years have no thousands
    legend = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 3, "fontsize": "small"}
    return format_axes(axis, "time", "weight of the model", legend=legend)


def _plot_model_weights(
    axis: Axes,
    time: npt.NDArray[np.generic],
    joint_weights: Array,
    model_labels: Sequence[str] | None,
    max_models: int,
) -> None:
    """Plot P[model | state] from joint weights (T, M), for the models that gain most."""
    visit_probs = joint_weights.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        conditional = np.where(visit_probs > 0, joint_weights / visit_probs, np.nan)
    visited_times = np.flatnonzero(visit_probs[:, 0] > 0)
    gain = (
        conditional[visited_times[-1]] - conditional[visited_times[0]]
        if len(visited_times)
        else np.zeros(joint_weights.shape[1])
    )
    top_models = np.argsort(-gain, kind="stable")[:max_models]
    step = max(1, len(joint_weights) // 8)
    for i, m in enumerate(top_models.tolist()):
        name = model_labels[m] if model_labels is not None else str(m)
        axis.plot(
            time,
            conditional[:, m],
            label=f"model {format_label(name, 16)}",
            **make_line_style(i, markevery=(i, step), markersize=5, linewidth=1.5),
        )


# ------------------------------------------------------------------ between methods
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
    frontier_line = ("probability", "frontier")
    axis = _plot_by_threshold(acceptability, "probability", frontier, frontier_line, axis)
    axis.set_ylim(0, 1.02)
    return format_axes(axis, WTP_LABEL, "probability of being the best", legend=LEGEND_BESIDE)


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
    axis = _plot_by_threshold(acceptability, "loss", frontier, ("evpi", "EVPI"), axis)
    axis.set_ylim(bottom=0)
    return format_axes(axis, WTP_LABEL, "expected loss, in units of cost", legend=LEGEND_BESIDE)


def _plot_by_threshold(
    table: pd.DataFrame,
    column: str,
    frontier: pd.DataFrame | None,
    frontier_line: tuple[str, str],
    axis: Axes | None,
) -> Axes:
    """Plot a column of the table by threshold, one line per policy, and a frontier dashed."""
    axis = axis or new_axis_for_legend(table["policy"].nunique() + 1)
    for i, (name, curve) in enumerate(table.groupby("policy", sort=False)):
        label = format_label(str(name), MAX_LEGEND_LENGTH)
        style = make_line_style(i, markersize=5, markevery=max(1, len(curve) // 12), linewidth=1.4)
        axis.plot(curve["threshold"], curve[column], label=label, **style)
    if frontier is not None:
        axis.plot(
            frontier["threshold"],
            frontier[frontier_line[0]],
            color=TEXT_COLOR,
            linestyle="--",
            linewidth=2.2,
            label=frontier_line[1],
        )
    axis.locator_params(axis="x", nbins=5)
    return axis


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

    states, policies = (list(dict.fromkeys(frame[x])) for x in ("state", "policy"))
    has_many_states = len(states) > len(LINE_COLORS)
    colors = dict(
        zip(
            states,
            make_action_colors(len(states)) if has_many_states else LINE_COLORS,
            strict=False,
        )
    )
    line_styles = {
        x: {"linestyle": LINE_STYLES[i % len(LINE_STYLES)]} for i, x in enumerate(policies)
    }
    axis = axis or new_axis_for_legend(len(states) + len(policies))
    for (policy, state), group in frame.groupby(["policy", "state"], sort=False):
        style = {"color": colors[state], **line_styles[policy]}
        axis.plot(group["time"], group["share"], linewidth=1.6, **style)
    axis.set_ylim(0, 1.02)
    handles = [Line2D([], [], color=y, label=format_label(str(x))) for x, y in colors.items()]
    if len(policies) > 1:
        handles += [
            Line2D([], [], color=TEXT_COLOR, label=format_label(str(x)), **line_styles[x])
            for x in policies
        ]
    time_labels = TimeLabels.from_columns(frame, TRACE_COLUMNS)
    legend = {**LEGEND_BESIDE, "handles": handles, "handlelength": 3.5}
    return format_axes(
        axis, format_time_axis(axis, time_labels), "share of the cohort", legend=legend
    )


@check_arguments
def survival(
    frame: pd.DataFrame, dead: str | Sequence[str] = "dead", axis: Axes | None = None
) -> Axes:
    """Plot the share that is in none of the states ``dead``, by time, one line per policy.

    ``frame`` is that of :func:`mmdp.economics.cohort_trace`.
    """
    dead_states = [dead] if isinstance(dead, str) else list(dead)
    for state in dead_states:
        if state not in set(frame["state"]):
            states = list(dict.fromkeys(frame["state"]))
            raise InputError(
                f"no state {did_you_mean(state, states)} in the trace; name those to leave out"
            )
    alive = (
        frame[~frame["state"].isin(dead_states)]
        .groupby(["policy", "time"], sort=False)["share"]
        .sum()
    )
    axis = axis or new_axis_for_legend(frame["policy"].nunique())
    for i, (name, group) in enumerate(alive.groupby("policy", sort=False)):
        times, label = group.index.get_level_values("time"), format_label(str(name))
        axis.plot(times, group, label=label, **make_dash_style(i))
    axis.set_ylim(0, 1.02)
    time_labels = TimeLabels.from_columns(frame, TRACE_COLUMNS)
    return format_axes(
        axis, format_time_axis(axis, time_labels), "share alive", legend=LEGEND_BESIDE
    )


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
        error = 2 * (errors or {}).get(name, 0.0)
        axis.errorbar(
            [mean],
            [i],
            xerr=[error] if error else None,
            **make_line_style(i, color=LINE_COLORS[0], markersize=8, capsize=4),
        )
        axis.annotate(
            format_number(mean, 6),
            (mean, i),
            xytext=(0, 8),
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
    node_rows = frame[frame["nodes"].notna()]
    label = "best policy found"
    axis.plot(node_rows["nodes"], node_rows["value"], label=label, **make_line_style(0))
    line_rows = frame[frame["nodes"].isna()]
    for i, name in enumerate(line_rows["policy"]):
        value, error = (float(line_rows[column].iloc[i]) for column in ("value", "stderr"))
        color, style = LINE_COLORS[i + 1], ("-", "--", ":")[i % 3]
        axis.axhline(value, color=color, linestyle=style, label=name)
        if error > 0:
            axis.axhspan(value - 2 * error, value + 2 * error, color=color, alpha=0.15, lw=0)
    low, high = axis.get_ylim()
    if high - low < MIN_RELATIVE_RANGE * abs(high):  # the same but for rounding
        axis.set_ylim(low - 0.01 * abs(low), high + 0.01 * abs(high))
    axis.set_xticks(node_rows["nodes"], [f"{n:.0f}" for n in node_rows["nodes"]])
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
        axis.axhline(best, color=LINE_COLORS[1], linestyle="--", label="best policy found")
    elbow = frame[leaves == frame.attrs["elbow"]]
    style = make_line_style(2, marker="D", linestyle="none", markersize=10)
    axis.plot(elbow["leaves"], elbow["value"], label="elbow", **style)
    axis.set_xticks(leaves)
    return format_axes(axis, "leaves", "value", legend={"fontsize": 9})
