"""Domains as step functions: equal to arrays made another way, and to published policies."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import gamma, poisson

import mmdp
from mmdp.domains import _mountain_car

PUBLISHED = Path(__file__).parents[1] / "data" / "perishable"


# ---------------------------------------------------------------------- inventory
def inventory_by_step(rates: Any) -> mmdp.MMDP:
    """INV in twenty lines."""

    def step(state: Any, action: Any, event: Any) -> Any:
        ordered = np.minimum(action["order"], 20 - state["stock"])
        left = np.maximum(state["stock"] + ordered - event["demand"], 0)
        sold = state["stock"] + ordered - left
        return {"stock": left}, 4.99 * sold - 2.49 * ordered - 0.49 * (ordered > 0) - 0.05 * left

    def demand(draw: Any) -> Any:
        p = poisson.pmf(np.arange(31), draw["rate"])
        return p / p.sum()

    return mmdp.from_step(
        step, states={"stock": range(21)}, actions={"order": range(11)},
        events={"demand": range(31)}, chance=demand, draws={"rate": rates},
        initial={"stock": 0}, discount=0.95,
    )  # fmt: skip


def test_inventory_by_a_step_equals_the_domain() -> None:
    train = mmdp.domains.inventory(preset="paper").train
    mine = inventory_by_step(train.parameters["rate"])
    np.testing.assert_allclose(mine.transitions, train.transitions, atol=1e-12)
    np.testing.assert_allclose(mine.rewards, train.rewards, atol=1e-12)
    np.testing.assert_array_equal(mine.initial, train.initial)


# ---------------------------------------------------------------------- perishable stock
@pytest.mark.parametrize("issue", ["lifo", "fifo"])
def test_perishable_orders_as_published(issue: str) -> None:
    model = mmdp.domains.perishable(1, 1, issue=issue).true
    assert model is not None
    policy = mmdp.solve(model, 200, method="wsu").policy
    rows = list(csv.reader((PUBLISHED / f"life2_{issue}.csv").open()))
    for age1, *orders in rows[1:]:
        for age2, order in zip(rows[0][1:], orders, strict=True):
            assert policy.action(age1=age1, age2=age2) == f"order={order}"


@pytest.mark.slow
def test_perishable_with_a_lead_time_orders_as_published_in_all_states() -> None:
    model = mmdp.domains.perishable(1, 1, life=3, lead_time=2, issue="lifo").true
    assert model is not None
    found = mmdp.solve(model, 450, method="wsu").policy.actions[0]
    told = (PUBLISHED / "life3_lead2_lifo.txt").read_text().replace("\n", "")
    np.testing.assert_array_equal(found, np.array(list(told), int))


def test_perishable_demand_is_a_rounded_gamma() -> None:
    storage: Any = mmdp.domains.perishable(3, 1).train.problem.storage
    draws = mmdp.domains.perishable(3, 1).train.parameters
    for m in range(3):
        shape = draws["variation"][m] ** -2
        up_to = gamma.cdf(np.arange(100) + 0.5, shape, scale=draws["mean"][m] / shape)
        np.testing.assert_allclose(storage.chance[0, 0, :100, m].cumsum(), up_to, rtol=1e-10)


# ---------------------------------------------------------------------- harvest
def test_harvest_on_a_finer_grid_has_nearly_the_value_off_the_grid() -> None:
    train, test = mmdp.domains.harvest(4, 4, points=101)
    policy = mmdp.solve(train, 20).policy
    on, off = mmdp.evaluate(policy, test), mmdp.simulate(policy, test, off_grid=True, episodes=3000)
    assert off.mean == pytest.approx(on.mean, abs=4 * off.stderr + 0.002 * on.mean)
    nothing = mmdp.MarkovPolicy(np.zeros((20, 102), int))
    assert mmdp.simulate(nothing, test, off_grid=True, episodes=10).mean == 0


# ---------------------------------------------------------------------- MountainCar
def test_mountain_car_moves_as_in_gymnasium() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("MountainCar-v0").unwrapped
    rng = np.random.default_rng(0)
    draw = {"force": _mountain_car.FORCE, "gravity": _mountain_car.GRAVITY}
    for position, velocity in rng.uniform([-1.2, -0.07], [0.5, 0.07], (200, 2)):
        push = int(rng.integers(-1, 2))
        env.state = (position, velocity)
        told, reward, *_ = env.step(push + 1)
        state = {"position": np.array([position]), "velocity": np.array([velocity])}
        found, cost = _mountain_car.step(state, {"push": np.array([push])}, draw)
        values = found["position"][0], found["velocity"][0]
        np.testing.assert_allclose(values, told, rtol=1e-6, atol=1e-9)
        assert cost == reward


def test_mountain_car_reaches_the_goal_off_the_grid() -> None:
    train, test = mmdp.domains.mountain_car(4, 4, points=31)
    policy = mmdp.solve(train, 200, method="wsu").policy
    off = mmdp.simulate(policy, test, off_grid=True, episodes=5)
    assert -200 < off.mean < -80
