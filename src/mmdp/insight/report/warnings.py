"""Warnings of a report: reasons not to rely on its policy; the template has the words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mmdp.core.kernels import Problem
from mmdp.core.text import ROUNDING_RTOL
from mmdp.data.schema import encode_column
from mmdp.insight.measures import Stability
from mmdp.insight.report.context import ReportContext
from mmdp.insight.report.findings import MethodComparison, SectionResults

MIN_MODELS = 30
MIN_TAIL_MODELS = 5  # in the worst tenth
MIN_VISIT_PROB = 0.05  # a decision met with this probability is worth naming
MIN_CHANGED_SHARE = 0.01  # a share of decisions that change from which it is worth a warning


class UnstableDecision(NamedTuple):
    """A decision that often changes on resampled models."""

    time: int
    state: str
    frequency: float


@dataclass(frozen=True)
class ReportWarnings:
    """Findings to warn about; false, empty or None if there is nothing to warn about."""

    lacks_initial: bool
    unseen_pairs_used: list[tuple[str | int, str | int]]  # pairs never seen that the policy takes
    effective_sample_size: float  # models of equal weight that these are as good as
    has_few_models: bool
    has_rough_tail: bool
    test_drop: float | None  # what the policy loses on test models, if that is more than chance
    unstable_decisions: list[UnstableDecision] | None  # what changes most, if some decisions change
    missed_gain: float | None  # how much more a method of the table returns than the given policy
    n_weightless: int
    lacks_actions: bool


def collect_warnings(context: ReportContext, results: SectionResults) -> ReportWarnings:
    """Collect the warnings from the context and the results of the sections."""
    model, effective_sample_size = context.model, results["problem"].effective_sample_size
    n_weightless = model.n_models - len(
        model.problem.reachable_models(np.flatnonzero(model.weights))
    )
    lacks_actions = bool(model.to_kwargs()["allow_missing"]) and _has_missing_rows(model.problem)
    return ReportWarnings(
        not model.has_initial and model.n_states > 1,
        _find_unseen_pairs_used(context),
        effective_sample_size,
        effective_sample_size < MIN_MODELS,
        effective_sample_size * 0.1 < MIN_TAIL_MODELS,
        _compute_test_drop(context),
        _find_unstable_decisions(results["stability"], model.state_labels),
        _compute_missed_gain(context, results["methods"]),
        n_weightless,
        lacks_actions,
    )


def _find_unseen_pairs_used(context: ReportContext) -> list[tuple[str | int, str | int]]:
    """Find the unseen (state, action) pairs that the policy takes, most frequent first."""
    states = encode_column(s for s, _ in context.unseen_pairs).find_ids(context.model.state_labels)
    actions = encode_column(a for _, a in context.unseen_pairs).find_ids(
        context.model.action_labels
    )
    is_taken = context.policy.actions[:, states] == actions
    probs = (context.compute_visit_probs()[:, states] * is_taken).sum(axis=0)
    used_ids = np.flatnonzero((states >= 0) & (actions >= 0) & (probs > 0))
    return [context.unseen_pairs[i] for i in used_ids[np.argsort(-probs[used_ids], kind="stable")]]


def _compute_test_drop(context: ReportContext) -> float | None:
    """Compute the loss on test models if it exceeds two standard errors, else None."""
    test_evaluation, evaluation = context.test_evaluation, context.evaluation
    if test_evaluation is None:
        return None
    stderr = float(
        np.hypot(*(x.sd * np.sqrt((x.weights**2).sum()) for x in (evaluation, test_evaluation)))
    )
    drop = evaluation.mean - test_evaluation.mean
    return drop if drop > max(2 * stderr, ROUNDING_RTOL * abs(evaluation.mean)) else None


def _find_unstable_decisions(
    stability: Stability | None, state_labels: tuple[str, ...]
) -> list[UnstableDecision] | None:
    """Find the visited decisions that change most on resampled models."""
    if stability is None or stability.share_changed < MIN_CHANGED_SHARE:
        return None
    scores = np.where(
        stability.visit_probs >= MIN_VISIT_PROB,
        stability.change_frequency * stability.visit_probs,
        0.0,
    )
    times, state_ids = np.unravel_index(np.argsort(-scores, axis=None)[:3], scores.shape)
    return [
        UnstableDecision(t, state_labels[s], float(stability.change_frequency[t, s]))
        for t, s in zip(times.tolist(), state_ids.tolist(), strict=True)
        if scores[t, s] > 0
    ]


def _compute_missed_gain(context: ReportContext, methods: MethodComparison) -> float | None:
    """Compute the gain of the best method over a given policy; None if there is none."""
    if not context.is_given or methods.best_solution is None or context.has_risk_objective:
        return None
    gain = methods.best_solution.value - context.evaluation.mean
    return gain if gain > 1e-9 * abs(methods.best_solution.value) else None


def _has_missing_rows(problem: Problem) -> bool:
    nonempty_rows = np.flatnonzero(np.diff(problem.indptr))
    return bool((np.add.reduceat(problem.p[0], problem.indptr[nonempty_rows], axis=0) < 0.5).any())
