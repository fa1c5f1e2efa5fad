"""Data of the interactive maps: one policy (``heatmap.js``), any two (``compare.js``)."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from mmdp.core.objectives import CVaR, Mean
from mmdp.core.policies import MarkovPolicy, require_markov
from mmdp.core.shapes import AnyIntArray, Array
from mmdp.core.text import ROUNDING_RTOL, format_distinct, parse_named_axes
from mmdp.insight.draw.maps import PolicyMap
from mmdp.insight.draw.palette import ActionStyles
from mmdp.insight.measures import RiskFrontier, Stability
from mmdp.insight.report.context import ReportContext, compute_difference
from mmdp.insight.report.findings import PolicyRow, SectionResults, find_better_models

MAX_CELLS = 400_000  # of the heat map; beyond that the least visited states are left out
MAX_TABLE_ROWS = 60  # of the table in words
MAX_INITIAL_STATES = 40  # the heat map begins with the most visited ones
MAX_GROUPS = 60  # values of a named axis by which states can be chosen
TAIL_SHARE = 0.1
BEST_ON_AVERAGE = "best on average"
MAX_DRAWN_MODELS = 1000  # in the figure of the returns
UNREACHED_BIT = 0x8000  # set beside the id of the action where no model gets


class HeatMap:
    """Heat map of a policy: its states, layers of values, and table rows.

    ``states``: states of the map in their order, with a choice; ``n_left_out``: number of states
    left out for size; ``labels_without_choice``: labels of states in which no action changes
    anything; ``table_states``: states of the table in words, and ``listed_states`` the same in the
    table's order; ``default_states``: states that the map shows first, with ``default_share`` of
    the decisions; ``axis_values``: values by which states can be filtered, by axis;
    ``expected_visits`` (S,): expected number of visits.
    """

    def __init__(
        self,
        context: ReportContext,
        used_actions: AnyIntArray,
        stability: Stability | None,
    ) -> None:
        model, self.context, self.used_actions = context.model, context, used_actions
        self.layers = {
            "margin": ("margin over the runner-up", context.cells.margin),
            "probability": ("probability of the state", context.cells.visit_probs),
            "agreement": ("models that agree", context.cells.agreement),
        }
        if stability is not None:
            frequency = stability.change_frequency
            self.layers["change_frequency"] = "changes when models are resampled", frequency
        self.policy_map = PolicyMap(
            context.policy.actions, model.state_labels, context.action_names, model.time_labels
        )
        self.has_negative_margin = bool((context.cells.margin < 0).any())
        self.expected_visits = context.visit_probs.sum(axis=0)
        order = np.argsort(-self.expected_visits, kind="stable")
        by_visits = order[model.has_choice[order]]  # with a decision, the most visited first
        self.states = np.sort(by_visits[: max(1, MAX_CELLS // context.horizon)]).tolist()
        self.n_left_out = len(by_visits) - len(self.states)
        self.labels_without_choice = [
            model.state_labels[s] for s in np.flatnonzero(~model.has_choice)
        ]
        top_states = by_visits[: min(MAX_TABLE_ROWS, len(self.states))]
        reached_states = top_states[: max(1, int((self.expected_visits[top_states] > 0).sum()))]
        self.table_states = np.sort(top_states).tolist()
        self.has_state_filter = len(reached_states) < len(self.states) > MAX_INITIAL_STATES
        self.default_states, self.listed_states = self.states, self.table_states
        if self.has_state_filter:
            self.default_states = np.sort(reached_states).tolist()
            self.listed_states = top_states.tolist()
        default_visits = float(self.expected_visits[self.default_states].sum())
        self.default_share = default_visits / max(float(self.expected_visits.sum()), 1e-300)
        axes = parse_named_axes([model.state_labels[s] for s in self.states])[0]
        self.axis_values = {x: y for x, y in axes.items() if len(axes) > 1 and len(y) <= MAX_GROUPS}

    def find_rows(self, states: list[int]) -> list[int]:
        """Find the rows of the map that show these states."""
        return np.searchsorted(self.states, states).tolist()

    def to_script_data(self) -> dict[str, object]:
        """Make the JSON data of ``heatmap.js``; arrays are base64, times first."""
        context, states, used_actions = self.context, self.states, self.used_actions
        times, styles = context.model.time_labels, ActionStyles(context.action_names)
        action_positions = np.searchsorted(used_actions, context.policy.actions)
        return {
            "times": to_single_lines(times.get_labels(context.horizon)),
            "timeName": times.name,
            "isStationary": context.is_stationary,
            "states": to_single_lines(context.model.state_labels[s] for s in states),
            "actions": to_single_lines(context.action_names),
            "usedActions": used_actions.tolist(),
            "marks": [styles.marks[a] for a in used_actions],
            "colors": [styles.colors[a] for a in used_actions],
            "textColors": [styles.text_colors[a] for a in used_actions],
            "actionIds": encode_array(action_positions[:, states], "<u2"),
            "runnerUp": encode_array(context.cells.runner_up[:, states], "<i4"),
            "layers": {k: encode_array(x[:, states], "<f4") for k, (_, x) in self.layers.items()},
            "defaultRows": self.find_rows(self.default_states),
        }


def to_single_lines(texts: Iterable[str]) -> list[str]:
    """Replace line breaks and runs of spaces in texts by single spaces."""
    return [" ".join(text.split()) for text in texts]


def encode_array(array: npt.NDArray[np.generic], dtype: str) -> str:
    """Encode an array as base64 text for ``unpack`` of ``maps.js``."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode()


# ---------------------------------------------------------------------- any two policies
class PolicyComparison:
    """The policies of a page in order: risk frontier, this policy, simpler and other ones.

    The first ``n_frontier`` of ``rows`` are points of the frontier, then this policy if it is none
    of them; ``policies`` are those of the rows. ``used_actions``: actions that some policy takes.
    """

    def __init__(self, context: ReportContext, results: SectionResults) -> None:
        self.context, own, frontier = context, context.policy, results.frontier
        points = [] if frontier is None else _merge_frontier_points(frontier)
        self.n_frontier, small_tree = len(points), results.small_tree
        rows = [
            x._replace(name=f"this policy ({x.name})") if x.policy == own else x for x in points
        ]
        if all(x.policy != own for x in points):
            evaluations = context.evaluation, context.test_evaluation
            rows.append(PolicyRow("this policy", *evaluations, own))
        others = [
            results.summary.phased_row if small_tree is None else small_tree.row,
            *(results.simpler or ()),
            *(x for x in results.methods.rows if x.policy is not None),
        ]
        self.rows: list[PolicyRow] = [*rows, *(x for x in others if x.policy != own)]
        self.policies = [x.policy for x in self.rows if x.policy is not None]
        actions = [x.actions[:, context.model.has_choice] for x in self.policies]
        self.used_actions = np.unique(np.concatenate(actions))

    @property
    def initial_pair(self) -> tuple[int, int]:
        """Indices of the two policies that are compared first."""
        this_index = self.policies.index(self.context.policy)
        for i, x in enumerate(self.rows):
            if x.name in self.context.comparators:
                return i, this_index
        if not self.n_frontier:
            return this_index, min(this_index + 1, len(self.rows) - 1)
        points = self.rows[: self.n_frontier]
        safest_index = int(np.argmax([x.evaluation.cvar(TAIL_SHARE) for x in points]))
        return this_index, safest_index if safest_index != this_index else 0

    def compute_gains(self, row: PolicyRow) -> list[float]:
        """Compute the gain of a policy over this one: on average and in the worst tenth."""
        return [
            compute_difference(x, row.evaluation, self.context.evaluation)
            for x in (Mean(), CVaR(TAIL_SHARE))
        ]

    @property
    def columns(self) -> list[list[str]]:
        """Formatted returns by column: mean, worst tenth, worst model, then on test models."""
        figures = [_summarize_returns(x) for x in self.rows]
        return [format_distinct([x[name] for x in figures], 5) for name in figures[0]]

    @property
    def safest_row(self) -> PolicyRow:
        """The policy with the best worst tenth; among equals, the one with the best mean."""
        tails = np.array([x.evaluation.cvar(TAIL_SHARE) for x in self.rows])
        is_best = tails >= tails.max() - ROUNDING_RTOL * np.abs(tails).max()
        best = (self.rows[i] for i in np.flatnonzero(is_best))
        return max(best, key=lambda x: x.evaluation.mean)

    def to_script_data(self, heat_map: HeatMap) -> dict[str, object]:
        """Make the JSON data of ``compare.js``, for the states in the heat map's table."""
        model, policies, table_states = self.context.model, self.policies, heat_map.table_states
        evaluations = [x.evaluation for x in self.rows]
        n_drawn = min(model.n_models, MAX_DRAWN_MODELS)
        drawn_models = np.linspace(0, model.n_models - 1, n_drawn).round().astype(np.int64)
        visit_probs = [self.context.compute_visit_probs(x) for x in policies]
        marked_actions = [
            np.searchsorted(self.used_actions, x.actions) | np.where(v > 0, 0, UNREACHED_BIT)
            for x, v in zip(policies, visit_probs, strict=True)
        ]
        return {
            "rows": heat_map.find_rows(table_states),
            "nFrontier": self.n_frontier,
            "initialPair": self.initial_pair,
            "names": to_single_lines(x.name for x in self.rows),
            "models": to_single_lines(model.model_labels[m] for m in drawn_models),
            "figures": [_summarize_returns(x) for x in self.rows],
            "returns": [encode_array(x.returns[drawn_models], "<f4") for x in evaluations],
            "actionIds": [encode_array(x[:, table_states], "<u2") for x in marked_actions],
            "shareDiffering": [
                [_compute_disagreement(x, y, v) for y in policies]
                for x, v in zip(policies, visit_probs, strict=True)
            ],
            "shareBetter": [
                [float(x.weights[find_better_models(x, y)].sum()) for y in evaluations]
                for x in evaluations
            ],
        }


def _merge_frontier_points(frontier: RiskFrontier) -> list[PolicyRow]:
    """Merge neighboring points of a risk frontier that have the same returns."""
    rows: list[PolicyRow] = []
    tests = frontier.test_evaluations or itertools.repeat(None)
    for point, test_evaluation in zip(frontier.solutions, tests, strict=False):
        share_text = f"{100 * getattr(point.objective, 'alpha', 1.0):g}%"
        if rows and np.allclose(rows[-1].evaluation.returns, point.returns, rtol=1e-9):
            name = rows[-1].name
            if name != BEST_ON_AVERAGE:
                rows[-1] = rows[-1]._replace(name=f"{name.split(' to ')[0]} to {share_text}")
            continue
        name = f"best for the worst {share_text}" if rows else BEST_ON_AVERAGE
        policy = require_markov(point.policy, "a report shows")
        rows.append(PolicyRow(name, point.evaluation, test_evaluation, policy))
    return rows


def _summarize_returns(row: PolicyRow) -> dict[str, float]:
    """Compute mean, mean of the worst tenth and minimum of a policy's returns, by name."""
    x, test = row.evaluation, row.test_evaluation
    summary = {"mean": x.mean, "tail": x.cvar(TAIL_SHARE), "worst": x.worst}
    if test is not None:
        summary |= {"test_mean": test.mean, "test_tail": test.cvar(TAIL_SHARE)}
    return summary


def _compute_disagreement(x: MarkovPolicy, y: MarkovPolicy, visit_probs: Array) -> float:
    """Compute the share of one policy's decisions that another takes differently."""
    if x.is_deterministic and y.is_deterministic:
        disagreement = 1.0 * (x.actions != y.actions)
    else:  # the least share of decisions that cannot be the same, however the dice fall
        disagreement = np.abs(x.probabilities - y.probabilities).sum(axis=2) / 2
    return float((visit_probs * disagreement).sum() / visit_probs.sum())
