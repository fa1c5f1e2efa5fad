"""Short description of a policy: which action, at which times, in which states."""

from __future__ import annotations

import numpy as np

from mmdp.core.policies import MarkovPolicy
from mmdp.core.shapes import Mask
from mmdp.core.text import join_or, pluralize, shorten
from mmdp.insight.draw.flowchart import split_runs
from mmdp.insight.measures.simplicity import Phase
from mmdp.insight.report.context import ReportContext

MIN_VISIT_SHARE = 1e-3  # share of the visits of a phase; states that come up less are not named
MAX_RANGES = 3  # states or ranges of states named for an action
MAX_CLAUSES = 8  # pairs of an action and where it is taken, in all phases together

Clause = tuple[str, str, float]  # an action, where it is taken, and its share if it is drawn
PhaseSentence = tuple[str, list[Clause]]  # times and clauses of a phase


def describe_rule(context: ReportContext) -> list[PhaseSentence]:
    """Describe each phase of the short rule by a sentence; empty if that gets long."""
    phases = context.phased_policy.phases
    clauses = [_make_clauses(context, phase) for phase in phases]
    if not all(clauses) or sum(map(len, clauses)) > MAX_CLAUSES:
        return []
    return list(zip(_describe_times(context, phases), clauses, strict=True))


def find_frequent_actions(context: ReportContext, policy: MarkovPolicy) -> list[tuple[str, float]]:
    """Find the three most frequent actions, each with its share of the decisions."""
    visit_probs = context.compute_visit_probs(policy)
    frequencies = np.einsum("ts,tsa->a", visit_probs, policy.probabilities)
    shares = frequencies / visit_probs.sum()
    order = np.argsort(-shares, kind="stable")[:3].tolist()
    return [(context.action_names[a], float(shares[a])) for a in order if shares[a] > 0]


def _describe_times(context: ReportContext, phases: tuple[Phase, ...]) -> list[str]:
    """Describe the times of each phase."""
    lengths, time_labels = [x.stop - x.start for x in phases], context.model.time_labels
    if len(phases) == 1:
        return ["At every step" if lengths[0] > 1 else "At the only step"]
    if time_labels.labels:
        spans = [time_labels.describe_range(x.start, x.stop - 1) for x in phases]
        texts = [f"{'at' if n == 1 else 'from'} {x}" for n, x in zip(lengths, spans, strict=True)]
        return [texts[0][0].upper() + texts[0][1:], *(f"then {x}" for x in texts[1:])]
    first, *between, last = (pluralize(n, "step") for n in lengths)
    return [
        "At the first step" if lengths[0] == 1 else f"For the first {first}",
        *(f"then for {x}" for x in between),
        "at the last step" if lengths[-1] == 1 else f"for the last {last}",
    ]


def _make_clauses(context: ReportContext, phase: Phase) -> list[Clause]:
    """Make the clauses of a phase, most frequent action first; none if they are too many."""
    visits, actions = phase.expected_visits, phase.actions
    is_named = visits >= MIN_VISIT_SHARE * visits.sum()
    totals = np.bincount(actions[is_named], visits[is_named])
    clauses: list[Clause] = []
    order = [a for a in np.argsort(-totals, kind="stable").tolist() if totals[a] > 0]
    for a in order:
        mask = is_named & (actions == a)
        states_text = _describe_states(context, mask, is_only_action=len(order) == 1)
        if states_text is None:
            return []
        share = _compute_action_share(context, phase, a, mask)
        clauses.append((context.action_names[a], states_text, share))
    return clauses


def _describe_states(context: ReportContext, mask: Mask, *, is_only_action: bool) -> str | None:
    """Describe the states in which an action is taken; None if they are too many ranges."""
    has_choice, ranges = context.model.has_choice, _format_state_ranges(context, mask)
    if is_only_action and len(mask) == 1:
        return ""
    if is_only_action and (has_choice.all() or len(ranges) > MAX_RANGES):
        return "in every state" if (mask | ~has_choice).all() else "in every state that comes up"
    if len(ranges) > MAX_RANGES:
        return None
    return f"in {'state' if mask.sum() == 1 else 'states'} {join_or(ranges, ' and ')}"


def _compute_action_share(context: ReportContext, phase: Phase, action: int, mask: Mask) -> float:
    """Compute the share of an action in some states of a phase."""
    if context.policy.is_deterministic:
        return 1.0
    cells = slice(phase.start, phase.stop), mask
    visit_probs = context.visit_probs[cells]
    action_visits = visit_probs * context.policy.probabilities[*cells, action]
    return float(action_visits.sum() / visit_probs.sum())


def _format_state_ranges(context: ReportContext, mask: Mask) -> list[str]:
    """Format states by label, or as ranges if the labels are numbers."""
    labels, states = context.model.state_labels, np.flatnonzero(mask)
    if not all(x.isdigit() for x in labels):
        return [shorten(labels[s]) for s in states]
    end_labels = (dict.fromkeys((labels[x[0]], labels[x[-1]])) for x in split_runs(states))
    return ["–".join(pair) for pair in end_labels]
