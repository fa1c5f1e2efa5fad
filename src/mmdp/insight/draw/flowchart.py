"""Flow chart of a finite-state controller: a box for every node, arrows for frequent transitions.

It shows how the policy behaves in given models: how often a node is visited, its actions, the
models that are plausible there, and what is seen on the way to other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mmdp.core.kernels.controller import Controller
from mmdp.core.kernels.problem import at_time
from mmdp.core.model import MMDP
from mmdp.core.shapes import AnyIntArray, Array
from mmdp.core.text import format_number, format_percent, pluralize
from mmdp.insight.draw.axes import format_label, new_axis, to_inline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ARROW_SHARE = 0.9  # share of the ways out of a node that are drawn, the most frequent first
STATE_SHARE = 0.8  # share of the steps of an arrow whose next states are named
MAX_NAMED = 4  # models or actions that are named
FREQUENT_SHARE = 0.2  # of a state's visits, from which an action is named
MIN_SHIFT = 0.25  # of a parameter's mean, in standard deviations, that is worth naming
MAX_LINE_LENGTH, MAX_LABEL_LENGTH = 38, 26  # characters of a line in a box, and at an arrow
BOX_WIDTH, LINE_HEIGHT = 2.9, 0.2  # inches
BEND = 0.2  # of an arrow, as a share of its length
CENTERED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9}


class Box(NamedTuple):
    """A node of the chart: title and lines of text."""

    title: str
    lines: tuple[str, ...]


class Arrow(NamedTuple):
    """A transition between two nodes, with the share of the steps that leave the first."""

    source: int
    target: int
    share: float
    label: str


@dataclass(frozen=True)
class FlowChart:
    """A flow chart of boxes and arrows, as text or picture; notebooks show the picture.

    >>> chart = FlowChart((Box("Node 0", ("waits",)),), ())
    >>> print(chart.text)
    Node 0
      waits
    """

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @property
    def text(self) -> str:
        """The chart as text: each node with its lines and its arrows."""
        lines = []
        for i, box in enumerate(self.boxes):
            lines += [box.title, *(f"  {line}" for line in box.lines)]
            lines += [
                f"  → node {x.target} ({format_percent(x.share)}): {x.label}"
                for x in self.arrows
                if x.source == i
            ]
        return "\n".join(lines)

    def plot(self) -> Axes:
        """Plot the chart: boxes on an ellipse, arrows bent to the right, wider if more frequent."""
        texts = [
            "\n".join([box.title, *(format_label(x, MAX_LINE_LENGTH) for x in box.lines)])
            for box in self.boxes
        ]
        n, box_height = len(texts), LINE_HEIGHT * (2 + max(text.count("\n") for text in texts))
        angles = np.pi * (1 + 2 * np.arange(n) / n)
        x_radius = BOX_WIDTH * (0.44 + 0.21 * n) if n > 1 else 0.0
        y_radius = 0.5 * box_height + 0.5 * n if n > 2 else 0.0
        centers = np.stack([x_radius * np.cos(angles), y_radius * np.sin(angles)], axis=1)
        width, height = x_radius + 0.5 * BOX_WIDTH + 0.5, y_radius + 0.5 * box_height + 0.4
        axis = new_axis(2 * width, 2 * height)
        axis.set(xlim=(-width, width), ylim=(-height, height))
        axis.axis("off")
        style = {"boxstyle": "round", "facecolor": "#f4f7fb", "edgecolor": "#445566"}
        patches = [
            axis.text(x, y, text, multialignment="left", bbox=style, **CENTERED).get_bbox_patch()
            for (x, y), text in zip(centers, texts, strict=True)
        ]
        for arrow in self.arrows:
            start, end = centers[arrow.source], centers[arrow.target]
            look = {
                "arrowstyle": "-|>",
                "color": "#445566",
                "connectionstyle": f"arc3,rad={BEND}",
                "linewidth": 1 + 2.5 * arrow.share,
                "patchA": patches[arrow.source],
                "patchB": patches[arrow.target],
            }
            axis.annotate("", end, start, arrowprops=look)
            (dx, dy), label = end - start, format_label(arrow.label, MAX_LABEL_LENGTH)
            x, y = 0.5 * (start + end + BEND * np.array([dy, -dx]))
            axis.text(x, y, label, **CENTERED, bbox={"facecolor": "white", "linewidth": 0})
        return axis

    def to_svg(self, id_prefix: str = "chart") -> str:
        """Render the chart as SVG that can stand in a page, with ids of its own."""
        title = f"Flow chart of {pluralize(len(self.boxes), 'node')}"
        return to_inline_svg(self.plot(), title, id_prefix)

    def _repr_svg_(self) -> str:
        """Render the chart for notebooks."""
        return self.to_svg()


# ---------------------------------------------------------------------- what it says
def make_flow_chart(model: MMDP, controller: Controller, b: Array) -> FlowChart:
    """Make the flow chart of a controller from its model weights b (T, S, N, M)."""
    flow = _compute_flow(model, controller, b)
    decision_counts = model.mask_visits(b.sum(axis=3))  # (T, S, N)
    shares = decision_counts.sum(axis=(0, 1)) / decision_counts.sum()
    is_initial = [
        model.problem.initial[controller.initial_nodes == n].any() for n in range(len(flow))
    ]
    boxes, arrows = [], []
    for n in range(len(flow)):
        title = f"Node {n}" + (" (start)" if is_initial[n] else "")
        times = np.flatnonzero(b[:, :, n].any(axis=(1, 2))).tolist()
        lines = ["never entered"]
        if times:
            out_flow, stays = flow[n].sum(), flow[n, n].sum()
            stay_text = f", stays {format_percent(stays / out_flow)}" if out_flow else ""
            lines = [
                f"{format_percent(shares[n])} of the decisions{stay_text}",
                model.time_labels.describe_range(times[0], times[-1]),
                *_describe_actions(model, controller.actions[:, :, n], decision_counts[:, :, n]),
                _describe_belief(model, b[:, :, n].sum(axis=(0, 1))),
            ]
        boxes.append(Box(title, tuple(lines)))
        arrows += _make_arrows(model, n, flow[n])
    return FlowChart(tuple(boxes), tuple(arrows))


def _compute_flow(model: MMDP, controller: Controller, b: Array) -> Array:
    """Compute the expected number of steps by node, next node and next state: (N, N, S)."""
    x, N = model.problem, controller.n_nodes
    state, action = np.divmod(x.get_entry_rows(), x.n_actions)
    flow = np.zeros((N, N, model.n_states))
    for t, weights in enumerate(b[:-1]):
        k, n = np.nonzero(controller.actions[t, state] == action[:, None])
        step_probs = (weights[state[k], n] * at_time(x.p, t)[k]).sum(axis=1)
        next_state = x.indices[k]
        next_node = controller.node_transitions[t, state[k], n, next_state]
        np.add.at(flow, (n, next_node, next_state), step_probs)
    return flow


def _describe_actions(model: MMDP, actions: AnyIntArray, decision_counts: Array) -> list[str]:
    """List the states in which a node usually takes an action, and takes it at times."""
    counts = np.zeros((model.n_states, model.n_actions))
    t, s = np.nonzero(decision_counts)
    np.add.at(counts, (s, actions[t, s]), decision_counts[t, s])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    is_usual = (shares > 0) & (np.arange(model.n_actions) == shares.argmax(axis=1)[:, None])
    is_frequent = (shares >= FREQUENT_SHARE) & ~is_usual
    return [
        f"{prefix}{model.action_labels[a]}: "
        + format_ranges(np.flatnonzero(mask[:, a]), model.state_labels)
        for mask, prefix in ((is_usual, ""), (is_frequent, "at times "))
        for a in np.argsort(-(counts * mask).sum(axis=0), kind="stable")[:MAX_NAMED]
        if mask[:, a].any()
    ]


def _describe_belief(model: MMDP, weights: Array) -> str:
    """Describe the parameter whose mean the node shifts most; otherwise the model weights."""
    prior, posterior = model.weights, weights / weights.sum()
    shifts = {"": MIN_SHIFT}
    for name, values in model.parameters.items():
        mean, new_mean = float(values @ prior), float(values @ posterior)
        sd = float((values - mean) ** 2 @ prior) ** 0.5
        text = f"{name} about {format_number(new_mean, 2)} (at first {format_number(mean, 2)})"
        shifts[text] = abs(new_mean - mean) / sd if sd > 0 else 0.0
    if shift_text := max(shifts, key=lambda text: shifts[text]):
        return shift_text
    order = np.argsort(-posterior, kind="stable")
    if len(prior) <= MAX_NAMED:
        parts = (f"{model.model_labels[m]} ({format_percent(posterior[m])})" for m in order)
        return "believes " + ", ".join(parts)
    n_half = int(np.searchsorted(np.cumsum(posterior[order]), 0.5)) + 1
    return f"half the weight on {n_half} of {pluralize(len(prior), 'model')}"


def _make_arrows(model: MMDP, n: int, flow: Array) -> list[Arrow]:
    """Make the arrows for the most frequent transitions out of a node, of flow (N, S)."""
    out_flow = flow.sum(axis=1)
    out_flow[n] = 0.0
    shares = out_flow / max(out_flow.sum(), 1e-300)
    arrows = []
    for m in _find_top(shares, ARROW_SHARE):
        next_states = sorted(_find_top(flow[m] / flow[m].sum(), STATE_SHARE))
        label = f"sees {format_ranges(next_states, model.state_labels)}"
        arrows.append(Arrow(n, m, float(shares[m]), label))
    return arrows


def _find_top(shares: Array, total: float) -> list[int]:
    """Find the ids of the largest shares that have at least ``total`` together."""
    order = np.argsort(-shares, kind="stable")
    n_top = int(np.searchsorted(np.cumsum(shares[order]), total)) + 1
    return [int(i) for i in order[:n_top] if shares[i] > 0]


def format_ranges(ids: Sequence[int] | AnyIntArray, labels: Sequence[str]) -> str:
    """Format the labels of sorted ids, with consecutive ids as a range.

    >>> format_ranges([0, 1, 2, 5], "0 1 2 3 4 5".split()), format_ranges([0, 1], ["low", "high"])
    ('0–2, 5', 'low, high')
    """
    dash = "–" if all(label.isdigit() for label in labels) else " to "
    parts: list[str] = []
    for run in split_runs(np.asarray(ids)):
        names = [labels[i] for i in run]
        parts += [f"{names[0]}{dash}{names[-1]}"] if len(names) > 2 else names
    return ", ".join(parts)


def split_runs(ids: AnyIntArray) -> list[AnyIntArray]:
    """Split sorted ids into runs of consecutive ones."""
    return np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
