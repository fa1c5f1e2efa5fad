"""Short description of a policy: which action, at which times, in which states."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.policies import MarkovPolicy
from mmdp.core.text import TimeLabels, join_or, pluralize, shorten
from mmdp.insight.measures.simplicity import Phase, PhasedPolicy
from mmdp.insight.report.context import ReportContext

MIN_VISIT_SHARE = 1e-3  # share of the visits of a phase; states that come up less are not named
MAX_RANGES = 3  # states or ranges of states named for an action
MAX_CLAUSES = 8  # pairs of an action and where it is taken, in all phases together


class RuleClause(NamedTuple):
    """An action, the states where it is taken, and its share if the policy randomizes."""

    action: str
    states_text: str
    share: float


class PhaseSentence(NamedTuple):
    """Times and clauses of one phase."""

    time_text: str
    clauses: list[RuleClause]


def describe_rule(context: ReportContext, phased_policy: PhasedPolicy) -> list[PhaseSentence]:
    """Describe each phase of the short rule by a sentence; empty if that gets long."""
    sentences = list[PhaseSentence]()
    for time_text, phase in zip(
        _describe_times(phased_policy, context.model.time_labels), phased_policy.phases, strict=True
    ):
        clauses = _make_clauses(context, phase)
        if clauses is None:
            return []
        sentences.append(PhaseSentence(time_text, clauses))
    return sentences if sum(len(x.clauses) for x in sentences) <= MAX_CLAUSES else []


def find_frequent_actions(
    context: ReportContext, policy: MarkovPolicy, max_actions: int = 3
) -> list[tuple[str, float]]:
    """Find the most frequent actions, each with its share of the decisions."""
    visit_probs = context.compute_visit_probs(policy)
    if policy.is_deterministic:
        frequencies = np.bincount(policy.actions.ravel(), visit_probs.ravel()) / visit_probs.sum()
    else:
        frequencies = np.einsum("ts,tsa->a", visit_probs, policy.probabilities) / visit_probs.sum()
    order = np.argsort(-frequencies, kind="stable")[:max_actions].tolist()
    return [(context.action_names[a], float(frequencies[a])) for a in order if frequencies[a] > 0]


def _describe_times(phased_policy: PhasedPolicy, time_labels: TimeLabels) -> list[str]:
    """Describe the times of each phase."""
    lengths = [phase.stop - phase.start for phase in phased_policy.phases]
    if len(lengths) == 1:
        return ["At every step" if lengths[0] > 1 else "At the only step"]
    if time_labels.labels:
        spans = [
            time_labels.describe_range(phase.start, phase.stop - 1)
            for phase in phased_policy.phases
        ]
        texts = [f"{'at' if n == 1 else 'from'} {x}" for n, x in zip(lengths, spans, strict=True)]
        return [texts[0][0].upper() + texts[0][1:], *(f"then {x}" for x in texts[1:])]
    step_texts = [pluralize(n, "step") for n in lengths]
    first_text = "At the first step" if lengths[0] == 1 else f"For the first {step_texts[0]}"
    last_text = "at the last step" if lengths[-1] == 1 else f"for the last {step_texts[-1]}"
    return [first_text, *(f"then for {x}" for x in step_texts[1:-1]), last_text]


def _make_clauses(context: ReportContext, phase: Phase) -> list[RuleClause] | None:
    """Make the clauses of a phase, most frequent action first; None if too many."""
    is_named = phase.expected_visits >= MIN_VISIT_SHARE * phase.expected_visits.sum()
    action_names, actions = context.action_names, phase.actions
    visits_by_action = np.bincount(
        actions[is_named], phase.expected_visits[is_named], minlength=len(action_names)
    )
    order = [
        int(a) for a in np.argsort(-visits_by_action, kind="stable") if visits_by_action[a] > 0
    ]
    if len(order) == 1:
        share = _compute_action_share(context, phase, order[0], is_named)
        return [RuleClause(action_names[order[0]], _describe_states(context, is_named), share)]
    state_ranges = {
        a: _format_state_ranges(context, np.flatnonzero(is_named & (actions == a))) for a in order
    }
    if max(map(len, state_ranges.values())) > MAX_RANGES:
        return None
    is_taken = {a: is_named & (actions == a) for a in order}
    states_text = {a: _format_states(state_ranges[a], is_taken[a]) for a in order}
    return [
        RuleClause(
            action_names[a], states_text[a], _compute_action_share(context, phase, a, is_taken[a])
        )
        for a in order
    ]


def _format_states(state_ranges: list[str], mask: npt.NDArray[np.bool_]) -> str:
    return f"in {'state' if mask.sum() == 1 else 'states'} {join_or(state_ranges, ' and ')}"


def _describe_states(context: ReportContext, is_named: npt.NDArray[np.bool_]) -> str:
    """Describe the states of a phase with a single action."""
    has_choice, state_ranges = (
        context.model.has_choice,
        _format_state_ranges(context, np.flatnonzero(is_named)),
    )
    if len(is_named) == 1:
        return ""
    if not has_choice.all() and len(state_ranges) <= MAX_RANGES:
        return _format_states(state_ranges, is_named)
    return "in every state" if (is_named | ~has_choice).all() else "in every state that comes up"


def _compute_action_share(
    context: ReportContext, phase: Phase, action: int, mask: npt.NDArray[np.bool_]
) -> float:
    """Compute the share of an action in some states of a phase."""
    if context.policy.is_deterministic:
        return 1.0
    time_slice = slice(phase.start, phase.stop)
    visit_probs = context.compute_visit_probs()[time_slice, mask]
    action_visits = visit_probs * context.policy.probabilities[time_slice, mask, action]
    return float(action_visits.sum() / visit_probs.sum())


def _format_state_ranges(context: ReportContext, states: npt.NDArray[np.int64]) -> list[str]:
    """Format states by label, or as ranges if the labels are numbers."""
    labels = context.model.state_labels
    if not all(x.isdigit() for x in labels):
        return [shorten(labels[s]) for s in states]
    runs = np.split(states, np.flatnonzero(np.diff(states) > 1) + 1)
    end_labels = [dict.fromkeys((labels[run[0]], labels[run[-1]])) for run in runs]
    return ["–".join(pair) for pair in end_labels]
