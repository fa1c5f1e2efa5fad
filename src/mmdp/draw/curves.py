"""Curves, bars and points: each function takes a matplotlib axis (or makes one) and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdp.arguments import (
    Array3D,
    Matrix,
    NonNegativeInt,
    PositiveInt,
    Probability,
    Vector,
    checked,
)
from mmdp.draw.axes import IN_LEGEND, MOST_LABELS, UNNAMED, label, new_axis, over_times
from mmdp.draw.palette import COLOURS, INK, MARKERS, action_colours
from mmdp.errors import InputError
from mmdp.words import Times, counted, number, suggested

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

Array = npt.NDArray[np.float64]

CLOSE = 0.03  # share of an axis within which points have one label
SIDES = ((5, 3), (-5, -3), (-5, 3), (5, -3))  # of a point, in points, for its label
PRICE = "willingness to pay for one unit of effect"
TRACED = ("state", "share")  # columns of a cohort trace after its times
BESIDE: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}  # a legend right of the axis
STYLES: Any = ("-", "--", "-.", ":", (0, (4, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (2, 1)))  # of lines


def next_to(entries: int) -> Axes:
    """An axis as high as a legend of these entries to the right of it."""
    return new_axis(height=max(3.8, 0.6 + 0.22 * entries))


def dressed(
    axis: Axes,
    xlabel: str,
    ylabel: str,
    *,
    grid: Any = "y",
    legend: Mapping[str, Any] | None = None,
) -> Axes:
    """The axis with its labels and grid, and a legend if options for one are given."""
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.grid(axis=grid, alpha=0.3)
    if legend is not None:
        axis.legend(frameon=False, **legend)
    return axis


@checked
def traces(
    values: Mapping[str, Vector], axis: Axes | None = None, *, ylabel: str = "mean return"
) -> Axes:
    """Return by iteration of several runs, one line each; shorter runs hold their last value."""
    axis = axis or new_axis()
    arrays = {name: np.asarray(y, dtype=float) for name, y in values.items()}
    longest = max(len(y) for y in arrays.values())
    for i, (name, y) in enumerate(arrays.items()):
        axis.plot(
            np.arange(len(y)), y, color=COLOURS[i % 7], marker=MARKERS[i % 7], label=name,
            linewidth=1.8, markersize=6,
        )  # fmt: skip
        axis.plot([len(y) - 1, longest - 1], [y[-1], y[-1]], color=COLOURS[i % 7], linestyle=":")
    if longest <= MOST_LABELS:
        axis.set_xticks(range(longest))
    return dressed(axis, "iteration of CADP", ylabel, legend={"title": "start"})


@checked
def errors_by(
    frame: pd.DataFrame, x: str, y: str, *, error: str, by: str | None = None, xlabel: str = "",
    ylabel: str = "", log: bool = False,
) -> Axes:  # fmt: skip
    """Points with error bars (two standard errors) joined by lines, one line per ``by``."""
    for name in (x, y, error, *([] if by is None else [by])):
        if name not in frame.columns:
            raise InputError(f"the frame has no column {suggested(name, map(str, frame.columns))}")
    axis = new_axis()
    groups: Sequence[tuple[Any, pd.DataFrame]] = (
        [("", frame)] if by is None else list(frame.groupby(by, sort=False))
    )
    for i, (name, part) in enumerate(groups):
        axis.errorbar(
            part[x], part[y], yerr=2 * part[error], color=COLOURS[i % 7], marker=MARKERS[i % 7],
            capsize=3, linewidth=1.8, label=str(name) or None,
        )  # fmt: skip
    if log:
        axis.set_xscale("log")
        axis.set_xticks(sorted(set(frame[x])), [f"{v:,}" for v in sorted(set(frame[x]))])
        axis.minorticks_off()
    return dressed(axis, xlabel or x, ylabel or y, legend=None if by is None else {})


# ------------------------------------------------------------------ over the models
@checked
def returns_distribution(
    returns: Mapping[str, Vector],
    weights: Vector | None = None,
    axis: Axes | None = None,
    *,
    mean: bool = True,
) -> Axes:
    """Share of models whose return is at most x, one step line per name; means are dotted.

    ``returns`` maps a name to (M,) returns, ``weights`` (M,) are the models' probabilities.

    >>> axis = returns_distribution({"policy": [1.0, 2.0], "Oracle": [2.0, 2.0]})
    >>> axis.get_legend_handles_labels()[1]
    ['policy', 'Oracle']
    """
    axis = axis or new_axis()
    for i, (name, values) in enumerate(returns.items()):
        x = np.asarray(values, dtype=float)
        share = _shares(weights, len(x))
        order = np.argsort(x, kind="stable")
        rise = np.concatenate([[0.0], np.cumsum(share[order])])
        axis.step(
            np.concatenate([x[order][:1], x[order]]), rise, where="post", color=COLOURS[i % 7],
            linestyle=STYLES[i % 4], linewidth=1.8, label=label(name, 40),
        )  # fmt: skip
        if mean:
            axis.axvline(float(x @ share), color=COLOURS[i % 7], linestyle=":", linewidth=1.2)
    axis.locator_params(axis="x", nbins=6)
    axis.set_ylim(0, 1.02)
    across = "return (dotted: mean)" if mean else "return"
    legend = {"loc": "upper left"}
    return dressed(axis, across, "share of models at or below", grid="both", legend=legend)


@checked
def regret_distribution(
    regret: Vector, weights: Vector | None = None, axis: Axes | None = None
) -> Axes:
    """Histogram of what each model loses against its own best policy; mean and largest marked.

    >>> axis = regret_distribution([0.0, 1.0, 1.0, 4.0])
    >>> round(float(sum(bar.get_height() for bar in axis.patches)), 6)
    1.0
    """
    axis = axis or new_axis()
    x = np.maximum(np.asarray(regret, dtype=float), 0.0)
    share = _shares(weights, len(x))
    bins = min(30, max(5, int(np.ceil(2 * len(x) ** (1 / 2)))))
    top = float(x.max()) or 1.0
    axis.hist(
        x, bins=np.linspace(0.0, top, bins + 1).tolist(), weights=share, color=COLOURS[0],
        rwidth=0.92,
    )  # fmt: skip
    mean, largest = float(x @ share), float(x[share > 0].max())
    axis.axvline(mean, color=COLOURS[1], linewidth=1.8, label=f"mean {number(mean)}")
    axis.axvline(
        largest, color=COLOURS[2], linestyle="--", linewidth=1.8, label=f"largest {number(largest)}"
    )
    across = "regret: return lost because the model is not known"
    return dressed(axis, across, "share of models", legend={})


@checked
def frontier(frame: pd.DataFrame, axis: Axes | None = None, *, tail: Probability = 0.1) -> Axes:
    """Mean return (across) against the mean of the worst share ``tail`` of the models (up).

    ``frame`` is that of :class:`mmdp.measures.Frontier`: a point for each objective, joined by a
    line if no other one is better in both. Hollow: on test models, if there are any. Points that
    lie close together have one label.

    >>> import pandas as pd
    >>> rows = {"objective": ["mean", "CVaR 10%"], "mean": [2.0, 1.9], "tail": [0.1, 0.4],
    ...         "best": [True, True]}
    >>> [text.get_text() for text in frontier(pd.DataFrame(rows)).texts]
    ['mean', 'CVaR 10%']
    """
    axis = axis or new_axis()
    best = frame[frame["best"]].sort_values("mean")
    axis.plot(best["mean"], best["tail"], color=COLOURS[0], linewidth=1.2, alpha=0.6)
    axis.plot(frame["mean"], frame["tail"], "o", color=COLOURS[0], label="training models")
    if "test_mean" in frame:
        axis.plot(
            frame["test_mean"], frame["test_tail"], "s", color=COLOURS[1], fillstyle="none",
            label="test models",
        )  # fmt: skip
        axis.legend(frameon=False)
    axis.margins(0.14)
    axis.locator_params(axis="x", nbins=6)
    dressed(axis, "mean over all models", f"mean over the worst {100 * tail:g}%", grid="both")
    _label(axis, _named(frame))
    return axis


def _label(axis: Axes, named: list[tuple[str, tuple[float, float]]]) -> None:
    """Write each name next to its point, on the first side that is free, or the freest."""
    from matplotlib.transforms import Bbox

    axis.figure.canvas.figure.draw_without_rendering()  # only then has the axis its size
    marks = np.concatenate([axis.transData.transform(line.get_xydata()) for line in axis.lines])
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in marks]
    for name, point in named:
        text = axis.annotate(name, point, (0, 0), textcoords="offset points", fontsize=9)
        crowded = [_beside(text, *side).count_overlaps(taken) for side in SIDES]
        taken.append(_beside(text, *SIDES[int(np.argmin(crowded))]))


def _beside(text: Annotation, x: int, y: int) -> Bbox:
    """Move a label to that side of its point, and say what it covers."""
    text.set_position((x, y))
    text.set_horizontalalignment("left" if x > 0 else "right")
    text.set_verticalalignment("bottom" if y > 0 else "top")
    return text.get_window_extent()


def _named(frame: pd.DataFrame) -> list[tuple[str, tuple[float, float]]]:
    """The points to label, in order; one label serves neighbours that lie close together."""
    points = frame[["mean", "tail"]].to_numpy(dtype=float)
    shown = points
    if "test_mean" in frame:
        shown = np.concatenate([points, frame[["test_mean", "test_tail"]].to_numpy(dtype=float)])
    apart = np.abs(np.diff(points, axis=0)) > CLOSE * np.ptp(shown, axis=0)
    groups = np.split(np.arange(len(points)), 1 + np.flatnonzero(apart.any(axis=1)))
    return [(_range(frame["objective"].iloc[group]), tuple(points[group[0]])) for group in groups]


def _range(names: pd.Series[str]) -> str:
    """'CVaR 10% to 1%' for the names from 'CVaR 10%' to 'CVaR 1%'."""
    first, last = names.iloc[0], names.iloc[-1]
    return first if first == last else f"{first} to {last.removeprefix(first.split()[0] + ' ')}"


def _shares(weights: npt.ArrayLike | None, count: int) -> Array:
    shares = np.full(count, 1 / count) if weights is None else np.asarray(weights, dtype=float)
    check_length(shares, count, "weights", "one for each model")
    return shares


def check_length(values: Sized, count: int, what: str, which: str) -> None:
    if len(values) != count:
        found = counted(len(values), "entry", "entries")
        raise InputError(f"{what} has {found}; give {count}, {which}")


def informed(weights: Array) -> Array:
    """(T, 2) how many models are still in play, given the state: on average, and at least.

    ``weights`` (T, M, S) are b_{t,m}(s) of :func:`mmdp.model_weights`. The number in play is
    exp of the entropy of the models given the state: M if the state says nothing about the
    model, 1 if it determines it. The first column is exp of the mean entropy over states, the
    second the least over states that are reached with probability 1% or more.

    >>> import numpy as np
    >>> informed(np.array([[[0.5, 0.0], [0.0, 0.5]]])).tolist()
    [[1.0, 1.0]]
    """
    reached = weights.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        given = np.where(reached[:, None] > 0, weights / reached[:, None], 0.0)
        entropy = -np.where(given > 0, given * np.log(given), 0.0).sum(axis=1)
    total = reached.sum(axis=1)
    mean = (reached * entropy).sum(axis=1) / np.where(total > 0, total, 1.0)
    often = reached >= np.minimum(0.01, reached.max(axis=1, keepdims=True))
    least = np.where(often, entropy, np.inf).min(axis=1)
    return np.exp(np.stack([mean, least], axis=1)) + 0.0


@checked
def weights_over_time(
    weights: Array3D,
    axis: Axes | None = None,
    *,
    state: NonNegativeInt | None = None,
    state_label: str | None = None,
    models: Sequence[str] | None = None,
    top: PositiveInt = 5,
    times: Times = UNNAMED,
) -> Axes:
    """How weight moves between models over time.

    ``weights`` (T, M, S) are b_{t,m}(s). Without ``state``: the number of models in play, see
    :func:`informed`. With it: the weights of the ``top`` models that gain most in that state,
    P[model | the state at t is ``state``].

    >>> import numpy as np
    >>> axis = weights_over_time(np.full((2, 4, 1), 0.25))
    >>> axis.lines[0].get_ydata().round(6).tolist()
    [4.0, 4.0]
    """
    axis, weights = axis or new_axis(), np.asarray(weights, dtype=float)
    time, (_, n_models, n_states) = np.arange(len(weights)), weights.shape
    if models is not None:
        check_length(models, n_models, "models", "one label for each")
    if state is not None and state >= n_states:
        raise InputError(f"no state {state}: they are numbered from 0 to {n_states - 1}")
    if state is None:
        for i, (name, y) in enumerate(
            zip(("average over states", "the most telling state"), informed(weights).T, strict=True)
        ):
            axis.plot(time, y, ("-", "--")[i], color=COLOURS[i], linewidth=1.8, label=name)
        upwards = "models in play"
        axis.set_ylim(0, 1.08 * axis.get_ylim()[1])
    else:
        _weights_in_state(axis, time, weights[:, :, state], models, top)
        axis.set_ylim(top=1.4 * axis.get_ylim()[1])  # room for the legend
        upwards = f"weight in state {label(state_label or str(state))}"
    return dressed(axis, over_times(axis, times), upwards, legend={"fontsize": "small"})


@checked
def weights_by_step(
    weights: Matrix, times: Vector, models: Sequence[str], axis: Axes | None = None,
    *, top: PositiveInt = 7,
) -> Axes:  # fmt: skip
    """How likely each model has become: ``weights`` (n, M) at ``times`` (n,), as seen so far.

    It shows the ``top`` models that gain most.

    >>> axis = weights_by_step(np.array([[0.5, 0.5], [0.8, 0.2]]), [2025, 2026], ["a", "b"])
    >>> [line.get_label() for line in axis.lines]
    ['model a', 'model b']
    """
    axis, weights, times = axis or new_axis(), np.asarray(weights), np.asarray(times)
    check_length(times, len(weights), "times", "one for each row of weights")
    check_length(models, weights.shape[1], "models", "a label for each column of weights")
    _weights_in_state(axis, times, weights, models, top)
    axis.set_ylim(-0.02, 1.02)
    axis.locator_params(axis="x", integer=True)
    axis.xaxis.set_major_formatter("{x:.0f}")  # years have no thousands
    above = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 3, "fontsize": "small"}
    return dressed(axis, "time", "weight of the model", legend=above)


def _weights_in_state(
    axis: Axes, time: npt.NDArray[Any], b: Array, models: Sequence[str] | None, top: int
) -> None:
    """(T, M) joint weights of one state as conditional ones, the models that gain most."""
    reached = b.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        given = np.where(reached > 0, b / reached, np.nan)
    seen = np.flatnonzero(reached[:, 0] > 0)
    gain = given[seen[-1]] - given[seen[0]] if len(seen) else np.zeros(b.shape[1])
    gainers = np.argsort(-gain, kind="stable")[:top]
    step = max(1, len(b) // 8)
    for i, m in enumerate(gainers.tolist()):
        name = models[m] if models is not None else str(m)
        axis.plot(
            time, given[:, m], color=COLOURS[i % 7], marker=MARKERS[i % 7],
            markevery=(i, step), markersize=5, linewidth=1.5, label=f"model {label(name, 16)}",
        )  # fmt: skip


# ------------------------------------------------------------------ between methods
@checked
def acceptability_curves(
    acceptability: pd.DataFrame, frontier: pd.DataFrame | None = None, axis: Axes | None = None
) -> Axes:
    """Probability of being the best by willingness to pay, one line per policy.

    ``acceptability`` is that of :meth:`mmdp.economics.CostEffectiveness.acceptability`, and
    ``frontier``, drawn as a dashed line, that of its ``frontier``.

    >>> from mmdp.economics import CostEffectiveness
    >>> found = CostEffectiveness.from_tables({"old": [1], "new": [2]}, {"old": [0], "new": [10]})
    >>> axis = acceptability_curves(found.acceptability([5, 20]))
    >>> [line.get_ydata().tolist() for line in axis.lines]
    [[1.0, 0.0], [0.0, 1.0]]
    """
    edge = ("probability", "frontier")
    axis = _by_threshold(acceptability, "probability", frontier, edge, axis)
    axis.set_ylim(0, 1.02)
    return dressed(axis, PRICE, "probability of being the best", legend=BESIDE)


@checked
def expected_loss(
    acceptability: pd.DataFrame, frontier: pd.DataFrame | None = None, axis: Axes | None = None
) -> Axes:
    """Expected loss by willingness to pay, one line per policy; the lowest is the EVPI (dashed).

    The arguments are those of :func:`acceptability_curves`.

    >>> from mmdp.economics import CostEffectiveness
    >>> found = CostEffectiveness.from_tables({"old": [1], "new": [2]}, {"old": [0], "new": [10]})
    >>> axis = expected_loss(found.acceptability([5, 20]), found.frontier([5, 20]))
    >>> [line.get_ydata().tolist() for line in axis.lines]
    [[0.0, 10.0], [5.0, 0.0], [0.0, 0.0]]
    """
    axis = _by_threshold(acceptability, "loss", frontier, ("evpi", "EVPI"), axis)
    axis.set_ylim(bottom=0)
    return dressed(axis, PRICE, "expected loss, in units of cost", legend=BESIDE)


def _by_threshold(
    table: pd.DataFrame, column: str, frontier: pd.DataFrame | None, edge: tuple[str, str],
    axis: Axes | None,
) -> Axes:  # fmt: skip
    """A line per policy, and a dashed one for a column of the frontier with its name."""
    axis = axis or next_to(table["policy"].nunique() + 1)
    for i, (name, curve) in enumerate(table.groupby("policy", sort=False)):
        marker = MARKERS[(i + i // 7) % 7]  # the eighth has the first one's colour
        axis.plot(
            curve["threshold"], curve[column], color=COLOURS[i % 7], marker=marker,
            markersize=5, markevery=max(1, len(curve) // 12), linewidth=1.4,
            label=label(str(name), IN_LEGEND),
        )  # fmt: skip
    if frontier is not None:
        dashed: Any = {"color": INK, "linestyle": "--", "linewidth": 2.2, "label": edge[1]}
        axis.plot(frontier["threshold"], frontier[edge[0]], **dashed)
    axis.locator_params(axis="x", nbins=5)
    return axis


@checked
def cohort_trace(table: pd.DataFrame, axis: Axes | None = None) -> Axes:
    """Share in each state by time: a colour per state, a style of line per policy.

    ``table`` is that of :func:`mmdp.economics.cohort_trace`.

    >>> import pandas as pd
    >>> rows = {"policy": ["wait"] * 4, "time": [0, 1] * 2, "state": ["ill"] * 2 + ["dead"] * 2,
    ...         "share": [1.0, 0.8, 0.0, 0.2]}
    >>> [line.get_ydata().tolist() for line in cohort_trace(pd.DataFrame(rows)).lines]
    [[1.0, 0.8], [0.0, 0.2]]
    """
    from matplotlib.lines import Line2D

    states, policies = (list(dict.fromkeys(table[x])) for x in ("state", "policy"))
    many = len(states) > len(COLOURS)
    colours = dict(zip(states, action_colours(len(states)) if many else COLOURS, strict=False))
    looks = {x: {"linestyle": STYLES[i % len(STYLES)]} for i, x in enumerate(policies)}
    axis = axis or next_to(len(states) + len(policies))
    for (policy, state), part in table.groupby(["policy", "state"], sort=False):
        look = {"color": colours[state], **looks[policy]}
        axis.plot(part["time"], part["share"], linewidth=1.6, **look)
    axis.set_ylim(0, 1.02)
    key = [Line2D([], [], color=y, label=label(str(x))) for x, y in colours.items()]
    if len(policies) > 1:
        key += [Line2D([], [], color=INK, label=label(str(x)), **looks[x]) for x in policies]
    times = Times.within(table, TRACED)
    legend = {**BESIDE, "handles": key, "handlelength": 3.5}
    return dressed(axis, over_times(axis, times), "share of the cohort", legend=legend)


@checked
def survival(
    table: pd.DataFrame, dead: str | Sequence[str] = "dead", axis: Axes | None = None
) -> Axes:
    """Share that is in none of the states ``dead``, by time, one line per policy.

    ``table`` is that of :func:`mmdp.economics.cohort_trace`.
    """
    gone = [dead] if isinstance(dead, str) else list(dead)
    for state in gone:
        if state not in set(table["state"]):
            known = list(dict.fromkeys(table["state"]))
            raise InputError(
                f"no state {suggested(state, known)} in the trace; name those to leave out"
            )
    alive = table[~table["state"].isin(gone)].groupby(["policy", "time"], sort=False)["share"].sum()
    axis = axis or next_to(table["policy"].nunique())
    for i, (name, part) in enumerate(alive.groupby("policy", sort=False)):
        axis.plot(
            part.index.get_level_values("time"), part, color=COLOURS[i % 7], linewidth=1.8,
            linestyle=STYLES[i % 4], label=label(str(name)),
        )  # fmt: skip
    axis.set_ylim(0, 1.02)
    times = Times.within(table, TRACED)
    return dressed(axis, over_times(axis, times), "share alive", legend=BESIDE)


@checked
def methods_comparison(
    means: Mapping[str, float],
    errors: Mapping[str, float] | None = None,
    axis: Axes | None = None,
    *,
    lows: Mapping[str, tuple[float, float]] | None = None,
    xlabel: str = "mean return",
) -> Axes:
    """One line per method: a point for its mean return, a bar for its range.

    ``errors`` are standard errors of simulated means (drawn twice as long). ``lows`` are
    (from, to) ranges over the models, such as the 10% and 90% quantiles.

    >>> axis = methods_comparison({"cadp": 2.0, "wsu": 1.0})
    >>> [text.get_text() for text in axis.get_yticklabels()]
    ['cadp', 'wsu']
    """
    axis = axis or new_axis(6.0, 1.2 + 0.4 * len(means))
    for i, (name, mean) in enumerate(means.items()):
        if lows is not None and name in lows:
            axis.plot(lows[name], [i, i], color=COLOURS[0], linewidth=5, alpha=0.25)
        error = 2 * (errors or {}).get(name, 0.0)
        axis.errorbar(
            [mean], [i], xerr=[error] if error else None, color=COLOURS[0],
            marker=MARKERS[i % 7], markersize=8, capsize=4,
        )  # fmt: skip
        axis.annotate(
            number(mean, 6), (mean, i), xytext=(0, 8), textcoords="offset points", ha="center",
            fontsize="small",
        )  # fmt: skip
    axis.set_yticks(range(len(means)), [label(name, 32) for name in means])
    axis.set_ylim(len(means) - 0.5, -0.7)
    axis.locator_params(axis="x", nbins=5)
    axis.margins(x=0.12)
    return dressed(axis, xlabel, "", grid="x")


@checked
def value_of_memory(frame: pd.DataFrame, axis: Axes | None = None) -> Axes:
    """Value by nodes, between the lines of the belief rollout, the bound and Oracle.

    ``frame`` is what :func:`mmdp.value_of_memory` returns.
    """
    axis = axis or new_axis()
    found = frame[frame["nodes"].notna()]
    axis.plot(
        found["nodes"], found["value"], color=COLOURS[0], marker="o", linewidth=1.8,
        label="best policy found",
    )  # fmt: skip
    rest = frame[frame["nodes"].isna()]
    for i, name in enumerate(rest["policy"]):
        value, error = (float(rest[column].iloc[i]) for column in ("value", "stderr"))
        colour, style = COLOURS[i + 1], ("-", "--", ":")[i % 3]
        axis.axhline(value, color=colour, linestyle=style, label=name)
        if error > 0:
            axis.axhspan(value - 2 * error, value + 2 * error, color=colour, alpha=0.15, lw=0)
    axis.set_xticks(found["nodes"], [f"{n:.0f}" for n in found["nodes"]])
    return dressed(axis, "nodes of memory (1: none)", "mean return", legend={"fontsize": 9})


@checked
def value_of_leaves(frame: pd.DataFrame, axis: Axes | None = None) -> Axes:
    """Value by leaves, below the best policy found; the elbow is marked.

    ``frame`` is what :func:`mmdp.value_of_leaves` returns.
    """
    axis = axis or new_axis()
    leaves, values = frame["leaves"], frame["value"]
    axis.plot(leaves, values, color=COLOURS[0], marker="o", linewidth=1.8, label="best tree found")
    best = (values + frame["price"]).max()
    if np.isfinite(best):
        axis.axhline(best, color=COLOURS[1], linestyle="--", label="best policy found")
    elbow = frame[leaves == frame.attrs["elbow"]]
    axis.plot(
        elbow["leaves"], elbow["value"], color=COLOURS[2], marker="D", linestyle="none",
        markersize=10, label="elbow",
    )  # fmt: skip
    axis.set_xticks(leaves)
    return dressed(axis, "leaves", "value", legend={"fontsize": 9})
