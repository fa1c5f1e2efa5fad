"""Comparison of policies: the table of the page and the data of ``compare.js``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mmdp.core.objectives import CVaR, Mean
from mmdp.core.policies import MarkovPolicy, require_markov
from mmdp.core.text import ROUNDING_RTOL, format_distinct
from mmdp.insight.measures.risk import RiskFrontier
from mmdp.insight.report.context import ReportContext
from mmdp.insight.report.findings import Alternative, SectionResults, compute_difference
from mmdp.insight.report.heatmap import HeatMap, encode_array

TAIL_SHARE = 0.1
BEST_ON_AVERAGE = "best on average"
MAX_DRAWN_MODELS = 1000  # in the figure of the returns
UNREACHED_BIT = 0x8000  # set beside the id of the action where no model gets


@dataclass(frozen=True, eq=False)
class PolicyComparison:
    """The policies of a page in order: risk frontier, this policy, simpler and other ones.

    The first ``n_frontier`` of ``alternatives`` are points of the frontier, then this policy if it
    is none of them. ``used_actions``: actions that some policy takes; ``initial_pair``: indices of
    the two policies that are compared first.
    """

    context: ReportContext
    alternatives: list[Alternative]
    n_frontier: int
    used_actions: npt.NDArray[np.int64]
    initial_pair: tuple[int, int]

    def compute_gains(self, alternative: Alternative) -> tuple[float, float]:
        """Compute the gain of a policy over this one: on average and in the worst tenth."""
        evaluation = self.context.evaluation
        return compute_difference(Mean(), alternative.evaluation, evaluation), compute_difference(
            CVaR(TAIL_SHARE), alternative.evaluation, evaluation
        )

    @property
    def columns(self) -> list[list[str]]:
        """Formatted returns by column: mean, worst tenth, worst model, then on test models."""
        evaluations = [x.evaluation for x in self.alternatives]
        columns_of_values = [
            [x.mean for x in evaluations],
            [x.cvar(TAIL_SHARE) for x in evaluations],
            [x.worst for x in evaluations],
        ]
        test_evaluations = [
            x.test_evaluation for x in self.alternatives if x.test_evaluation is not None
        ]
        if test_evaluations:
            columns_of_values += [
                [x.mean for x in test_evaluations],
                [x.cvar(TAIL_SHARE) for x in test_evaluations],
            ]
        return [format_distinct(column, 5) for column in columns_of_values]

    @property
    def safest_alternative(self) -> Alternative:
        """The policy with the best worst tenth; among equals, the one with the best mean."""
        tail_means = np.array([x.evaluation.cvar(TAIL_SHARE) for x in self.alternatives])
        best_ids = np.flatnonzero(
            tail_means >= tail_means.max() - ROUNDING_RTOL * np.abs(tail_means).max()
        )
        return max((self.alternatives[i] for i in best_ids), key=lambda x: x.evaluation.mean)

    def to_script_data(self, heat_map: HeatMap) -> dict[str, object]:
        """Make the JSON data of ``compare.js``, for the states in the heat map's table."""
        model, shown_states = self.context.model, heat_map.table_states
        position_of_state = {s: i for i, s in enumerate(heat_map.states)}
        visit_probs = [self.context.compute_visit_probs(x.policy) for x in self.alternatives]
        drawn_models = _choose_models(model.n_models)
        action_positions = [
            np.searchsorted(self.used_actions, x.policy.actions) for x in self.alternatives
        ]
        return {
            "rows": [position_of_state[s] for s in shown_states],
            "nFrontier": self.n_frontier,
            "initialPair": self.initial_pair,
            "names": [" ".join(x.name.split()) for x in self.alternatives],
            "models": [" ".join(model.model_labels[m].split()) for m in drawn_models],
            "figures": [_summarize_returns(x) for x in self.alternatives],
            "returns": [
                encode_array(x.evaluation.returns[drawn_models], "<f4") for x in self.alternatives
            ],
            "actionIds": [
                encode_array((x | np.where(v > 0, 0, UNREACHED_BIT))[:, shown_states], "<u2")
                for x, v in zip(action_positions, visit_probs, strict=True)
            ],
            "shareDiffering": [
                [_compute_disagreement(x, y, v) for y in self.alternatives]
                for x, v in zip(self.alternatives, visit_probs, strict=True)
            ],
            "shareBetter": [
                [_compute_win_weight(x, y) for y in self.alternatives] for x in self.alternatives
            ],
        }


def compare_policies(context: ReportContext, results: SectionResults) -> PolicyComparison:
    """Collect the policies of all sections for the comparison on the page."""
    policy, frontier = context.policy, results["frontier"]
    frontier_alternatives = (
        []
        if frontier is None
        else [_mark_this_policy(x, policy) for x in _merge_frontier_points(frontier)]
    )
    this_alternative = Alternative(
        "this policy", policy, context.evaluation, context.test_evaluation
    )
    small_tree = results["small_tree"]
    others = [
        results["summary"].phased_alternative if small_tree is None else small_tree.alternative,
        *(results["simpler"] or ()),
    ]
    others += [
        Alternative(row.name, row.policy, row.evaluation, row.test_evaluation)
        for row in results["methods"].rows
        if row.policy is not None
    ]
    is_on_frontier = any(x.policy == policy for x in frontier_alternatives)
    alternatives = [
        *frontier_alternatives,
        *([] if is_on_frontier else [this_alternative]),
        *(x for x in others if x.policy != policy),
    ]
    has_choice = context.model.has_choice
    used_actions = np.unique(
        np.concatenate([x.policy.actions[:, has_choice] for x in alternatives])
    )
    return PolicyComparison(
        context,
        alternatives,
        len(frontier_alternatives),
        used_actions,
        _choose_initial_pair(context, alternatives, frontier_alternatives),
    )


def _mark_this_policy(alternative: Alternative, policy: MarkovPolicy) -> Alternative:
    """Add "this policy" to the name of an alternative that is the page's own policy."""
    return (
        replace(alternative, name=f"this policy ({alternative.name})")
        if alternative.policy == policy
        else alternative
    )


def _choose_initial_pair(
    context: ReportContext,
    alternatives: list[Alternative],
    frontier_alternatives: list[Alternative],
) -> tuple[int, int]:
    """Choose the indices of the two policies that the page compares first."""
    this_index = [x.policy == context.policy for x in alternatives].index(True)
    comparator_ids = [i for i, x in enumerate(alternatives) if x.name in context.comparators]
    if comparator_ids:
        return comparator_ids[0], this_index
    if not frontier_alternatives:
        return this_index, min(this_index + 1, len(alternatives) - 1)
    safest_index = int(np.argmax([x.evaluation.cvar(TAIL_SHARE) for x in frontier_alternatives]))
    return this_index, safest_index if safest_index != this_index else 0


def _merge_frontier_points(frontier: RiskFrontier) -> list[Alternative]:
    """Merge neighboring points of a risk frontier that have the same returns."""
    alternatives: list[Alternative] = []
    for i, point in enumerate(frontier.solutions):
        share_text = f"{100 * getattr(point.objective, 'alpha', 1.0):g}%"
        if alternatives and np.allclose(
            alternatives[-1].evaluation.returns, point.returns, rtol=1e-9
        ):
            name = alternatives[-1].name.split(" to ")[0]
            if name != BEST_ON_AVERAGE:
                alternatives[-1] = replace(alternatives[-1], name=f"{name} to {share_text}")
            continue
        test_evaluation = frontier.test_evaluations[i] if frontier.test_evaluations else None
        name = f"best for the worst {share_text}" if alternatives else BEST_ON_AVERAGE
        policy = require_markov(point.policy, "a report shows")
        alternatives.append(Alternative(name, policy, point.evaluation, test_evaluation))
    return alternatives


def _choose_models(n_models: int) -> npt.NDArray[np.int64]:
    """Choose the models whose returns are drawn: all, or some evenly spaced."""
    return np.unique(
        np.linspace(0, n_models - 1, min(n_models, MAX_DRAWN_MODELS)).round().astype(np.int64)
    )


def _summarize_returns(alternative: Alternative) -> dict[str, float]:
    """Compute mean, mean of the worst tenth and minimum of a policy's returns, by name."""
    evaluation, test_evaluation = alternative.evaluation, alternative.test_evaluation
    summary = {
        "mean": evaluation.mean,
        "tail": evaluation.cvar(TAIL_SHARE),
        "worst": evaluation.worst,
    }
    if test_evaluation is not None:
        summary |= {
            "test_mean": test_evaluation.mean,
            "test_tail": test_evaluation.cvar(TAIL_SHARE),
        }
    return {name: float(x) for name, x in summary.items()}


def _compute_disagreement(
    alternative: Alternative, other: Alternative, visit_probs: npt.NDArray[np.float64]
) -> float:
    """Compute the share of one policy's decisions that another takes differently."""
    if alternative.policy.is_deterministic and other.policy.is_deterministic:
        disagreement = 1.0 * (alternative.policy.actions != other.policy.actions)
    else:  # the least share of decisions that cannot be the same, however the dice fall
        disagreement = (
            np.abs(alternative.policy.probabilities - other.policy.probabilities).sum(axis=2) / 2
        )
    return float((visit_probs * disagreement).sum() / visit_probs.sum())


def _compute_win_weight(alternative: Alternative, other: Alternative) -> float:
    """Compute the weight of the models in which one policy returns clearly more."""
    x, y = alternative.evaluation, other.evaluation
    return float(x.weights[x.returns > y.returns + 1e-9 * np.abs(y.returns)].sum())
