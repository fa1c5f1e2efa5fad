"""Domains as step functions: equal to arrays made another way, and to published policies."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from scipy.stats import gamma, norm, poisson

import mmdp
from tests.conftest import ROOT

PUBLISHED_DIR = ROOT / "tests" / "files" / "perishable"


# ---------------------------------------------------------------------- inventory
def make_inventory(rates: Any) -> mmdp.MMDP:
    """INV in twenty lines."""

    def step(state: Any, action: Any, event: Any) -> Any:
        ordered = np.minimum(action["order"], 20 - state["stock"])
        stock_left = np.maximum(state["stock"] + ordered - event["demand"], 0)
        sold = state["stock"] + ordered - stock_left
        return {"stock": stock_left}, 4.99 * sold - 2.49 * ordered - 0.49 * (
            ordered > 0
        ) - 0.05 * stock_left

    def compute_demand_probs(sample: Any) -> Any:
        p = poisson.pmf(np.arange(31), sample["rate"])
        return p / p.sum()

    return mmdp.from_step(
        step,
        states={"stock": range(21)},
        actions={"order": range(11)},
        events={"demand": range(31)},
        event_probs=compute_demand_probs,
        samples={"rate": rates},
        initial={"stock": 0},
        discount=0.95,
    )


def test_inventory_by_a_step_equals_the_domain() -> None:
    train = mmdp.domains.inventory(preset="paper").train
    step_model = make_inventory(train.parameters["rate"])
    np.testing.assert_allclose(step_model.transitions, train.transitions, atol=1e-12)
    np.testing.assert_allclose(step_model.rewards, train.rewards, atol=1e-12)
    np.testing.assert_array_equal(step_model.initial, train.initial)


# ---------------------------------------------------------------------- population
def make_population(samples: Any) -> mmdp.MMDP:
    """POP: growth and arrivals are events with probabilities by state and action."""
    sd, cost = np.array([0.6, 0.6, 0.5, 0.4, 0.3]), np.array([0, 800, 840, 880, 920])

    def step(state: Any, action: Any, event: Any) -> Any:
        next_pests = np.minimum(event["grown"] + event["arrived"], 50)
        return {"pests": next_pests}, 1000 - state["pests"] ** 2 - cost[action["control"]]

    def compute_event_probs(sample: Any, state: Any, action: Any) -> Any:
        s, a = state["pests"], action["control"]
        treated = sample["mu0"] + sample["mu1"] * s + sample["mu2"] * s**2
        rate = np.where(a == 0, sample["mu"], treated)
        cumulative = norm.cdf(((np.arange(50) + 0.5) / np.maximum(s, 1) - rate) / sd[a])
        grown = np.diff(np.where(s == 0, 1.0, cumulative), prepend=0.0, append=1.0)
        arrived = np.diff(norm.cdf(np.arange(50) + 0.5, 3, 1.5), prepend=0.0, append=1.0)
        return {"grown": grown, "arrived": arrived}

    return mmdp.from_step(
        step,
        states={"pests": range(51)},
        actions={"control": range(5)},
        events={"grown": range(51), "arrived": range(51)},
        event_probs=compute_event_probs,
        samples=samples,
        initial={"pests": 10},
        discount=0.9,
    )


def test_population_by_a_step_equals_the_domain() -> None:
    train = mmdp.domains.population(2, 1, variant="corrected").train
    step_model = make_population(train.parameters)
    np.testing.assert_allclose(step_model.transitions, train.transitions, atol=1e-12)
    np.testing.assert_allclose(step_model.rewards, train.rewards, rtol=1e-12)
    np.testing.assert_array_equal(step_model.initial, train.initial)


# ---------------------------------------------------------------------- perishable stock
@pytest.mark.parametrize("issue", ["lifo", "fifo"])
def test_perishable_orders_as_published(issue: str) -> None:
    model = mmdp.domains.perishable(1, 1, issue=issue).true_model
    assert model is not None
    policy = mmdp.solve(model, 200, method="wsu").policy
    rows = list(csv.reader((PUBLISHED_DIR / f"life2_{issue}.csv").open()))
    for age1, *orders in rows[1:]:
        for age2, order in zip(rows[0][1:], orders, strict=True):
            assert policy.action(0, age1=age1, age2=age2) == f"order={order}"


@pytest.mark.slow
def test_perishable_with_a_lead_time_orders_as_published() -> None:
    model = mmdp.domains.perishable(1, 1, life=3, lead_time=2, issue="lifo").true_model
    assert model is not None
    actions = mmdp.solve(model, 450, method="wsu").policy.actions[0]
    published_digits = (PUBLISHED_DIR / "life3_lead2_lifo.txt").read_text().replace("\n", "")
    np.testing.assert_array_equal(actions, np.array(list(published_digits), int))


def test_perishable_demand_is_a_rounded_gamma() -> None:
    storage: Any = mmdp.domains.perishable(3, 1).train.problem.storage
    samples = mmdp.domains.perishable(3, 1).train.parameters
    for m in range(3):
        shape = samples["variation"][m] ** -2
        cumulative = gamma.cdf(np.arange(100) + 0.5, shape, scale=samples["mean"][m] / shape)
        np.testing.assert_allclose(storage.probs[0, 0, :100, m].cumsum(), cumulative, rtol=1e-10)
