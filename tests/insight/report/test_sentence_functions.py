"""Sentences one by one, from facts made by hand and returns computed in plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.solution import SCOPE_NAMES
from mmdp.core.text import format_number, format_percent
from mmdp.insight.report import findings, sentences
from mmdp.insight.report.context import ReportContext
from mmdp.insight.report.findings import PairComparison, SectionResults
from mmdp.insight.report.sections import SECTIONS, SkippedSection

REWARDS = np.array([[[2.0, 3.0]], [[5.0, 0.0]], [[4.0, 4.0]], [[6.0, 1.0]], [[7.0, 9.0]]])
RETURNS = REWARDS[:, 0] * 2  # (models, actions) over two decisions in the only state


def make_context(policy: int = 0, **options: Any) -> ReportContext:
    """A page about always taking one action in five models of one state."""
    fields = {x: options.pop(x) for x in ("weights", "unit", "models") if x in options}
    model = mmdp.MMDP(np.ones((5, 1, 2, 1)), REWARDS, actions=["wait", "<treat>"], **fields)
    return ReportContext(model, 2, mmdp.policies.MarkovPolicy([[policy]] * 2), **options)


def test_every_section_has_a_typed_result() -> None:
    assert set(SectionResults._fields) == {x.key for x in SECTIONS}


def test_every_bound_has_words_for_the_policies_that_it_covers() -> None:
    assert sentences.SCOPE_TEXTS.keys() == SCOPE_NAMES.keys()


def test_the_bound_of_a_policy_with_decisions_given() -> None:
    model = make_context().model
    policy_class = mmdp.policies.Fixed({0: 1})
    solution = mmdp.solve(model, 2, "exact", policy_class=policy_class)
    context = ReportContext(model, 2, solution)
    assert "It is proven to be the best deterministic policy with these decisions given." in (
        sentences.describe_quality(context, findings.summarize(context), None)
    )


def test_what_someone_who_knows_the_model_could_return() -> None:
    context = make_context(unit="kt")
    optima = RETURNS.max(axis=1)
    regret = optima - RETURNS[:, 0]
    mean, largest = format_number(regret.mean(), 3), format_number(regret.max(), 3)
    assert sentences.describe_regret(context, findings.summarize(context)) == (
        f"Someone who knew the true model could return {format_number(optima.mean())} kt on "
        f"average, {mean} kt more than this policy. In the model where the difference is largest, "
        f"it is {largest} kt."
    )


@pytest.mark.parametrize("weights", [np.full(5, 0.2), np.array([0.1, 0.2, 0.3, 0.2, 0.2])])
def test_a_policy_against_a_named_one(weights: np.ndarray) -> None:
    context = make_context(comparators={"a <b>": "<treat>"}, weights=weights)
    difference = RETURNS[:, 0] - RETURNS[:, 1]
    n_better, weight = (difference > 0).sum(), weights[difference > 0].sum()
    weight_text = (
        f" ({format_percent(weight)} of the weight)" if abs(weight - n_better / 5) > 1e-9 else ""
    )
    comparison, _ = findings.summarize(context).comparisons["a <b>"]
    gain = format_number(difference @ weights, 3)
    assert sentences.describe_comparison(context, "a <b>", comparison, None) == (
        f"It returns <strong>{gain}</strong> more than a &lt;b&gt;, and more in {n_better} of 5 "
        f"models{weight_text}."
    )


def test_words_of_a_comparison() -> None:
    regret = make_context(objective="regret:worst")
    worse = PairComparison(-2.0, 5, 0, 0.0)
    assert sentences.describe_comparison(regret, "today", worse, None) == (
        "Its worst case of regret is <strong>2</strong> worse than that of today, and it "
        "returns more in none of the 5 models."
    )
    equal = PairComparison(0.0, 5, 0, 0.0)
    assert sentences.describe_comparison(make_context(), "today", equal, None) == (
        "It returns as much as today."
    )


def test_labels_and_units_stay_text() -> None:
    context, mean = make_context(1, unit="<i>kt</i>"), format_number(RETURNS[:, 1].mean())
    assert sentences.describe_return(context) == (
        f"The given policy returns <strong>{mean} &lt;i&gt;kt&lt;/i&gt;</strong> on "
        "average over the 5 models."
    )
    actions = sentences.describe_frequent_actions([("<treat>", 0.75), ("wait", 0.25)])
    assert actions == (
        "<strong>&lt;treat&gt;</strong> (75% of the decisions) and <strong>wait</strong> (25% of "
        "the decisions)"
    )


def test_the_range_of_returns_names_the_worst_model() -> None:
    context = make_context()
    # each has a weight of 0.2, so the 10% and the 90% quantile are the ends
    low, high = (format_number(x(RETURNS[:, 0])) for x in (np.min, np.max))
    assert sentences.describe_return_range(context, findings.summarize(context)) == (
        f"In all 5 models it returns between {low} and {high}. The worst is model "
        f"{RETURNS[:, 0].argmin()} with {low}; the worst tenth average {low}."
    )


@pytest.mark.parametrize(
    ("weight", "start"),
    [
        (0.25, "In 25% of the models the policy is within 0.0280 (1.0% of what is at stake) of"),
        (1.0, "In all of the models the policy is within 0.0280 (1.0% of what is at stake) of"),
    ],
)
def test_the_weight_of_models_in_which_the_policy_is_near_the_optimum(
    weight: float, start: str
) -> None:
    stake = abs(RETURNS[:, 0].mean() - RETURNS[:, 1].mean())
    assert format_number(0.01 * stake, 3) == "0.0280"
    assert sentences.describe_near_weight(make_context(), weight) == f"{start} the model's optimum."


def test_the_least_loss_is_rounded_down() -> None:
    """Each step of three actions earns 3 at most and 2 or 1.3334 less in two models."""
    rewards = np.array([[[1.0, 3.0, 0.0]], [[1.6666, 0.0, 3.0]]])
    model = mmdp.MMDP(np.ones((2, 1, 3, 1)), rewards, actions=["wait", "a", "b"])
    context = ReportContext(model, 1, mmdp.policies.MarkovPolicy([[0]]))
    weight = findings.compute_near_optimal_weight(context)
    assert sentences.describe_near_weight(context, weight) == (
        "In every model the policy loses at least 1.33 against the model's optimum."
    )
    model = model.replace(rewards=[[[1.0, 3.0, 0.0]], [[1.6635, 0.0, 3.0]]])
    context = ReportContext(model, 1, mmdp.policies.MarkovPolicy([[0]]))
    assert "loses at least 1.33 against" in sentences.describe_near_weight(context, 0.0)


def test_the_value_at_stake_is_that_of_the_best_policy_that_the_page_knows() -> None:
    """Two steps; waiting first and treating then is best, and a method of the page finds it."""
    rewards = [[[[1.0, 0.0]]], [[[0.0, 3.0]]]]  # by time
    model = mmdp.MMDP(np.ones((1, 1, 2, 1)), rewards, actions=["wait", "treat"])
    context = ReportContext(model, 2, mmdp.policies.MarkovPolicy([[1], [0]]))
    assert context.value == 0
    assert context.stake.description == "1 between always treat and the best policy found"


def test_what_is_at_stake_is_no_share_of_itself() -> None:
    context = make_context()
    name, policy = context.constant_policies[1]
    row = findings.make_row(context, name, policy)
    assert context.stake.reference == name
    loss = format_number(context.stake.amount, 3)
    assert sentences._describe_loss(context, row.evaluation) == f"costs {loss}"


def test_a_policy_for_an_infinite_horizon_says_what_the_page_counts() -> None:
    """One state that earns 2 at each step, discounted by 0.5: 4 in all, 3.5 in three steps."""
    model = mmdp.MMDP(np.ones((1, 1, 2, 1)), [[2.0, 1.0]], discount=0.5)
    policy = mmdp.policies.StationaryPolicy([0])
    context = ReportContext(model, 3, policy)
    assert sentences.describe_return(context) == (
        "The given policy returns <strong>3.500</strong> on average over the one model. It is a "
        "policy for an infinite horizon, over which it returns 4 on average; this page counts the "
        "first 3 decisions, 88% of the discounted weight."
    )
    assert "infinite" not in sentences.describe_return(make_context())
    rewards = np.array([[[[2.0, 1.0]]]] * 3)
    by_time = ReportContext(model.replace(rewards=rewards), 3, policy)
    assert "infinite" not in sentences.describe_return(by_time)  # there are no further decisions
    undiscounted, switching = (
        ReportContext(mmdp.MMDP(np.ones((2, 1, 2, 1)), [[2.0, 1.0]], **options), 3, policy)
        for options in (
            {"discount": 1.0},
            {"discount": 0.5, "model_transitions": np.full((2, 2), 0.5)},
        )
    )
    for context in (undiscounted, switching):
        text = sentences.describe_return(context)
        assert "an infinite horizon; this page counts the first 3 decisions." in text


def test_a_section_that_was_left_out_says_how_to_get_it() -> None:
    frontier = next(x for x in SECTIONS if x.key == "frontier")
    assert sentences.format_request(SkippedSection(frontier, 90.0, True)) == (
        "(about 90.0 s: <code>frontier=True</code>, <code>--frontier</code>)"
    )
    simpler = next(x for x in SECTIONS if x.key == "simpler")
    assert sentences.format_request(SkippedSection(simpler, 3.0, True)) == "(about 3.0 s)"
