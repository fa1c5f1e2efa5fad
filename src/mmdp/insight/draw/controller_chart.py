"""The texts of a flow chart of a finite-state controller, which ``flowchart.py`` draws.

The chart has a box for every node and arrows for frequent transitions. It shows how the policy
behaves in given models: how often a node is visited, its actions, the models that are plausible
there, and the steps that lead to other nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.controller import Controller
from mmdp.core.kernels.problem import at_time
from mmdp.core.text import format_number, format_percent, pluralize
from mmdp.insight.draw.flowchart import Arrow, Box, FlowChart

if TYPE_CHECKING:
    from mmdp.core.model import MMDP

Array = npt.NDArray[np.float64]

ARROW_SHARE = 0.9  # share of the ways out of a node that are drawn, the most frequent first
MAX_NAMED = 4  # models or steps that are named
FREQUENT_SHARE = (
    0.2  # share of a state's visits from which an action other than the usual one is named
)


# ---------------------------------------------------------------------- what it says
def make_flow_chart(model: MMDP, controller: Controller, b: Array) -> FlowChart:
    """Make the flow chart of a controller from its model weights b (T, S, N, M)."""
    describer = _ControllerDescriber(model, controller, b)
    nodes = range(controller.n_nodes)
    return FlowChart(
        tuple(describer.make_box(n) for n in nodes),
        tuple(arrow for n in nodes for arrow in describer.make_arrows(n)),
    )


class _ControllerDescriber:
    """Describes in words how a controller behaves in given models."""

    def __init__(self, model: MMDP, controller: Controller, b: Array) -> None:
        self.model, self.controller, self.b = model, controller, b
        self.visit_probs = b.sum(axis=3)  # (T, S, N)
        self.decision_counts = model.mask_visits(self.visit_probs)
        self.flow, self.flow_times = self._compute_flows()

    def _compute_flows(self) -> tuple[Array, Array]:
        """Compute expected number of steps by node pair and entry, (N, N', nnz), and times t."""
        x, N = self.model.problem, self.controller.n_nodes
        rows, nodes = x.get_entry_rows(), np.arange(N)
        state, action = np.divmod(rows, x.n_actions)
        flow = np.zeros((N, N, len(rows)))
        flow_times = np.zeros_like(flow)
        for t in range(len(self.b) - 1):
            is_taken = self.controller.actions[t, state] == action[:, None]
            k, n = np.nonzero(is_taken & (self.visit_probs[t, state] > 0))
            step_prob = (self.b[t, state[k], n] * at_time(x.p, t)[k]).sum(axis=1)
            next_node = self.controller.node_transitions[t, state[k], nodes[n], x.indices[k]]
            np.add.at(flow, (n, next_node, k), step_prob)
            np.add.at(flow_times, (n, next_node, k), t * step_prob)
        return flow, flow_times

    def make_box(self, n: int) -> Box:
        """Make the box of a node: its share of decisions, usual actions and plausible models."""
        is_initial = bool(self.model.problem.initial[self.controller.initial_nodes == n].any())
        share = float(self.decision_counts[:, :, n].sum() / self.decision_counts.sum())
        title = f"Node {n}" + (" (start)" if is_initial else "")
        if not self.visit_probs[:, :, n].any():
            return Box(title, ("never entered",), ())
        times = np.flatnonzero(self.visit_probs[:, :, n].any(axis=1))
        stay_flow, out_flow = self.flow[n, n].sum(), self.flow[n].sum()
        stay_text = f", stays {format_percent(stay_flow / out_flow)}" if out_flow else ""
        lines = (
            f"{format_percent(share)} of the decisions{stay_text}",
            *self._describe_actions(n),
            self._describe_belief(n),
        )
        first_time, last_time = (
            self.model.time_labels.describe_range(int(times[0])),
            self.model.time_labels.get_label(int(times[-1])),
        )
        detail_lines = (f"between {first_time} and {last_time}", *self._describe_models(n))
        return Box(title, lines, detail_lines)

    def _describe_actions(self, n: int) -> list[str]:
        """List the usual action in the states that a node visits, grouped by action."""
        model, decision_counts = self.model, self.decision_counts[:, :, n]
        counts = np.zeros((model.n_states, model.n_actions))
        t, s = np.nonzero(decision_counts)
        np.add.at(counts, (s, self.controller.actions[t, s, n]), decision_counts[t, s])
        visited_states = np.flatnonzero(counts.any(axis=1))
        usual_actions = counts[visited_states].argmax(axis=1)
        order = np.argsort(
            -np.bincount(usual_actions, counts[visited_states].sum(axis=1)), kind="stable"
        )
        lines = [
            f"{model.action_labels[a]}: "
            + format_ranges(visited_states[usual_actions == a], model.state_labels)
            for a in order
            if (usual_actions == a).any()
        ][:MAX_NAMED]
        first_actions = self.controller.actions[0, visited_states, n]
        is_different = (decision_counts[0, visited_states] > 0) & (first_actions != usual_actions)
        if is_different.any():
            a = first_actions[is_different][0]
            states_text = format_ranges(
                visited_states[is_different & (first_actions == a)], model.state_labels
            )
            lines.insert(
                0,
                f"at {model.time_labels.describe_range(0)} {model.action_labels[a]}: {states_text}",
            )
        return lines + self._describe_other_actions(counts)

    def _describe_other_actions(self, counts: Array) -> list[str]:
        """List actions other than the usual one, from counts (S, A), with shares of the visits."""
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
        np.put_along_axis(shares, counts.argmax(axis=1)[:, None], 0.0, axis=1)  # the usual one
        lines = []
        for a in np.argsort(-shares.max(axis=0), kind="stable"):
            states = np.flatnonzero(shares[:, a] >= FREQUENT_SHARE)
            if len(states):
                state_texts = (
                    f"{self.model.state_labels[s]} {format_percent(shares[s, a])}" for s in states
                )
                lines.append(f"at times {self.model.action_labels[a]}: {', '.join(state_texts)}")
        return lines[:MAX_NAMED]

    def _compute_posterior(self, n: int) -> Array:
        """Compute P[model given node n], (M,)."""
        weights: Array = self.b[:, :, n].sum(axis=(0, 1))
        return weights / weights.sum()

    def _describe_belief(self, n: int) -> str:
        """Describe the parameter whose mean the node shifts most; otherwise the model weights."""
        posterior, prior = self._compute_posterior(n), self.model.weights
        largest_shift, text = 0.25, ""  # in standard deviations
        for name, values in self.model.parameters.items():
            prior_mean = float(values @ prior)
            sd = math.sqrt(max(0.0, float((values - prior_mean) ** 2 @ prior)))
            posterior_mean = float(values @ posterior)
            if sd > 0 and abs(posterior_mean - prior_mean) > largest_shift * sd:
                largest_shift = abs(posterior_mean - prior_mean) / sd
                text = (
                    f"{name} about {format_number(posterior_mean, 2)} "
                    f"(at first {format_number(prior_mean, 2)})"
                )
        if text:
            return text
        if len(prior) <= MAX_NAMED:
            return "believes " + ", ".join(self._format_shares(posterior))
        distance = 0.5 * float(np.abs(posterior - prior).sum())
        if distance < 0.05:
            return f"all {pluralize(len(prior), 'model')} as at first"
        order = np.argsort(-posterior, kind="stable")
        n_half = int(np.searchsorted(np.cumsum(posterior[order]), 0.5)) + 1
        return f"half the weight on {n_half} of {pluralize(len(prior), 'model')}"

    def _describe_models(self, n: int) -> list[str]:
        """List the most plausible models at a node."""
        shares = ", ".join(self._format_shares(self._compute_posterior(n)))
        return [f"most plausible models: {shares}"]

    def _format_shares(self, posterior: Array) -> list[str]:
        """Format the largest posterior weights with the labels of their models."""
        order = np.argsort(-posterior, kind="stable")[:MAX_NAMED]
        labels = self.model.model_labels
        return [f"{labels[m]} ({format_percent(posterior[m])})" for m in order]

    def make_arrows(self, n: int) -> list[Arrow]:
        """Make the arrows for the most frequent transitions out of a node."""
        out_flow = self.flow[n].sum(axis=1)
        out_flow[n] = 0.0
        arrows, shown_share = [], 0.0
        for next_node in np.argsort(-out_flow, kind="stable"):
            if out_flow[next_node] <= 0 or shown_share >= ARROW_SHARE:
                break
            share = float(out_flow[next_node] / out_flow.sum())
            shown_share += share
            arrows.append(
                Arrow(
                    n,
                    int(next_node),
                    share,
                    self._describe_next_states(n, int(next_node)),
                    self._describe_steps(n, int(next_node)),
                )
            )
        return arrows

    def _describe_next_states(self, n: int, next_node: int) -> str:
        """Describe the next states that most steps of an arrow lead to."""
        indices = self.model.problem.indices
        state_flow = np.bincount(indices, self.flow[n, next_node], minlength=self.model.n_states)
        order = np.argsort(-state_flow, kind="stable")
        n_shown = int(np.searchsorted(np.cumsum(state_flow[order]), 0.8 * state_flow.sum())) + 1
        return f"sees {format_ranges(np.sort(order[:n_shown]), self.model.state_labels)}"

    def _describe_steps(self, n: int, next_node: int) -> tuple[str, ...]:
        """Describe the most frequent steps of an arrow, with their mean time."""
        x, model, step_flow = self.model.problem, self.model, self.flow[n, next_node]
        steps = []
        for k in np.argsort(-step_flow, kind="stable")[:MAX_NAMED]:
            if step_flow[k] > 0:
                s, a = divmod(int(x.get_entry_rows()[k]), x.n_actions)
                mean_time = round(self.flow_times[n, next_node, k] / step_flow[k])
                steps.append(
                    f"{format_percent(step_flow[k] / step_flow.sum())}: from "
                    f"{model.state_labels[s]} by {model.action_labels[a]} to "
                    f"{model.state_labels[x.indices[k]]}, "
                    f"about {model.time_labels.describe_range(mean_time)}"
                )
        return tuple(steps)


def format_ranges(ids: Iterable[int], labels: Sequence[str]) -> str:
    """Format the labels of sorted ids, with consecutive ids as a range.

    >>> format_ranges([0, 1, 2, 5], "0 1 2 3 4 5".split()), format_ranges([0, 1], ["low", "high"])
    ('0–2, 5', 'low, high')
    """
    runs: list[list[int]] = []
    for i in ids:
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    dash = "–" if all(label.isdigit() for label in labels) else " to "
    parts = [
        f"{labels[run[0]]}{dash}{labels[run[-1]]}"
        if len(run) > 2
        else ", ".join(labels[i] for i in run)
        for run in runs
    ]
    return ", ".join(parts)
