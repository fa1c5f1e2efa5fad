"""What a flow chart of a policy with nodes says; :mod:`mmdp.draw.flowchart` draws it.

A box for every node, an arrow for every way between them.
The chart shows how the policy plays out in given models: how often a node is visited, what
it does there, which models are plausible by then, and which steps lead to other nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mmdp.draw.flowchart import Arrow, Box, FlowChart
from mmdp.kernels.controller import Controller
from mmdp.kernels.problem import at
from mmdp.words import counted, number, percent

if TYPE_CHECKING:
    from mmdp.model import MMDP

Array = npt.NDArray[np.float64]

DRAWN = 0.9  # share of the ways out of a node that are drawn, the most frequent first
NAMED = 4  # models or steps that are named
OFTEN = 0.2  # share of a state's visits from which an action other than the usual one is named


# ---------------------------------------------------------------------- what it says
def chart_of(model: MMDP, controller: Controller, b: Array) -> FlowChart:
    """The chart of a controller whose weights are b (T, S, N, M)."""
    reader = _Reader(model, controller, b)
    nodes = range(controller.n_nodes)
    return FlowChart(
        tuple(reader.box(n) for n in nodes), tuple(x for n in nodes for x in reader.arrows(n))
    )


class _Reader:
    """Says what a controller does in some models."""

    def __init__(self, model: MMDP, controller: Controller, b: Array) -> None:
        self.model, self.controller, self.b = model, controller, b
        self.visits = b.sum(axis=3)  # (T, S, N)
        self.decisions = model.decisions(self.visits)
        self.flow, self.late = self._flows()

    def _flows(self) -> tuple[Array, Array]:
        """(N, N', nnz) expected number of steps by entry of the pattern, and times their time."""
        x, N = self.model.problem, self.controller.n_nodes
        rows, nodes = x.rows(), np.arange(N)
        state, action = np.divmod(rows, x.n_actions)
        flow = np.zeros((N, N, len(rows)))
        late = np.zeros_like(flow)
        for t in range(len(self.b) - 1):
            taken = self.controller.actions[t, state] == action[:, None]
            k, n = np.nonzero(taken & (self.visits[t, state] > 0))
            mass = (self.b[t, state[k], n] * at(x.p, t)[k]).sum(axis=1)
            to = self.controller.moves[t, state[k], nodes[n], x.indices[k]]
            np.add.at(flow, (n, to, k), mass)
            np.add.at(late, (n, to, k), t * mass)
        return flow, late

    def box(self, n: int) -> Box:
        begins = bool(self.model.problem.initial[self.controller.first == n].any())
        share = float(self.decisions[:, :, n].sum() / self.decisions.sum())
        head = f"Node {n}" + (" (start)" if begins else "")
        if not self.visits[:, :, n].any():
            return Box(head, ("never entered",), ())
        times = np.flatnonzero(self.visits[:, :, n].any(axis=1))
        inside, out = self.flow[n, n].sum(), self.flow[n].sum()
        stays = f", stays {percent(inside / out)}" if out else ""
        lines = (f"{percent(share)} of the decisions{stays}", *self._actions(n), self._belief(n))
        first, last = self.model.times.span(int(times[0])), self.model.times.of(int(times[-1]))
        more = (f"between {first} and {last}", *self._models(n))
        return Box(head, lines, more)

    def _actions(self, n: int) -> list[str]:
        """The usual action in the states that are visited, grouped by action."""
        model, used = self.model, self.decisions[:, :, n]
        counts = np.zeros((model.n_states, model.n_actions))
        t, s = np.nonzero(used)
        np.add.at(counts, (s, self.controller.actions[t, s, n]), used[t, s])
        seen = np.flatnonzero(counts.any(axis=1))
        usual = counts[seen].argmax(axis=1)
        order = np.argsort(-np.bincount(usual, counts[seen].sum(axis=1)), kind="stable")
        lines = [
            f"{model.action_labels[a]}: {in_ranges(seen[usual == a], model.state_labels)}"
            for a in order
            if (usual == a).any()
        ][:NAMED]
        first = self.controller.actions[0, seen, n]
        other = (used[0, seen] > 0) & (first != usual)
        if other.any():
            a = first[other][0]
            where = in_ranges(seen[other & (first == a)], model.state_labels)
            lines.insert(0, f"at {model.times.span(0)} {model.action_labels[a]}: {where}")
        return lines + self._other_actions(counts)

    def _other_actions(self, counts: Array) -> list[str]:
        """What is done instead at some times, from (S, A) counts, with its share of the visits."""
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
        np.put_along_axis(shares, counts.argmax(axis=1)[:, None], 0.0, axis=1)  # the usual one
        lines = []
        for a in np.argsort(-shares.max(axis=0), kind="stable"):
            states = np.flatnonzero(shares[:, a] >= OFTEN)
            if len(states):
                where = (f"{self.model.state_labels[s]} {percent(shares[s, a])}" for s in states)
                lines.append(f"at times {self.model.action_labels[a]}: {', '.join(where)}")
        return lines[:NAMED]

    def _posterior(self, n: int) -> Array:
        found: Array = self.b[:, :, n].sum(axis=(0, 1))
        return found / found.sum()

    def _belief(self, n: int) -> str:
        """The parameter that the node says most about; otherwise the models."""
        posterior, prior = self._posterior(n), self.model.weights
        best, text = 0.25, ""  # in standard deviations
        for name, values in self.model.parameters.items():
            mean = float(values @ prior)
            sd = math.sqrt(max(0.0, float((values - mean) ** 2 @ prior)))
            here = float(values @ posterior)
            if sd > 0 and abs(here - mean) > best * sd:
                best = abs(here - mean) / sd
                text = f"{name} about {number(here, 2)} (at first {number(mean, 2)})"
        if text:
            return text
        if len(prior) <= NAMED:
            return "believes " + ", ".join(self._shares(posterior))
        distance = 0.5 * float(np.abs(posterior - prior).sum())
        if distance < 0.05:
            return f"all {counted(len(prior), 'model')} as at first"
        top = np.argsort(-posterior, kind="stable")
        half = int(np.searchsorted(np.cumsum(posterior[top]), 0.5)) + 1
        return f"half the weight on {half} of {counted(len(prior), 'model')}"

    def _models(self, n: int) -> list[str]:
        shares = ", ".join(self._shares(self._posterior(n)))
        return [f"most plausible models: {shares}"]

    def _shares(self, posterior: Array) -> list[str]:
        top = np.argsort(-posterior, kind="stable")[:NAMED]
        labels = self.model.model_labels
        return [f"{labels[m]} ({percent(posterior[m])})" for m in top]

    def arrows(self, n: int) -> list[Arrow]:
        """The most frequent ways out of a node."""
        out = self.flow[n].sum(axis=1)
        out[n] = 0.0
        found, done = [], 0.0
        for to in np.argsort(-out, kind="stable"):
            if out[to] <= 0 or done >= DRAWN:
                break
            share = float(out[to] / out.sum())
            done += share
            found.append(Arrow(n, int(to), share, self._goal(n, int(to)), self._steps(n, int(to))))
        return found

    def _goal(self, n: int, to: int) -> str:
        """The next states that most of the steps of an arrow lead to."""
        indices = self.model.problem.indices
        mass = np.bincount(indices, self.flow[n, to], minlength=self.model.n_states)
        order = np.argsort(-mass, kind="stable")
        enough = int(np.searchsorted(np.cumsum(mass[order]), 0.8 * mass.sum())) + 1
        return f"sees {in_ranges(np.sort(order[:enough]), self.model.state_labels)}"

    def _steps(self, n: int, to: int) -> tuple[str, ...]:
        """The most frequent steps of an arrow, with their usual time."""
        x, model, mass = self.model.problem, self.model, self.flow[n, to]
        steps = []
        for k in np.argsort(-mass, kind="stable")[:NAMED]:
            if mass[k] > 0:
                s, a = divmod(int(x.rows()[k]), x.n_actions)
                steps.append(
                    f"{percent(mass[k] / mass.sum())}: from {model.state_labels[s]} by "
                    f"{model.action_labels[a]} to {model.state_labels[x.indices[k]]}, "
                    f"about {model.times.span(round(self.late[n, to, k] / mass[k]))}"
                )
        return tuple(steps)


def in_ranges(ids: Iterable[int], labels: Sequence[str]) -> str:
    """Labels of ids in order, those that follow each other as a range.

    >>> in_ranges([0, 1, 2, 5], "0 1 2 3 4 5".split()), in_ranges([0, 1], ["low", "high"])
    ('0–2, 5', 'low, high')
    """
    runs: list[list[int]] = []
    for i in ids:
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    dash = "–" if all(x.isdigit() for x in labels) else " to "
    parts = [
        f"{labels[run[0]]}{dash}{labels[run[-1]]}" if len(run) > 2
        else ", ".join(labels[i] for i in run)
        for run in runs
    ]  # fmt: skip
    return ", ".join(parts)
