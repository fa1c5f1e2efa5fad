"""Domains as step functions: equal to arrays made another way, and to published policies."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from scipy.stats import gamma, norm, poisson

import mmdp
from mmdp.data.domains import _cart_pole, _mountain_car, _substitutes
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


# ---------------------------------------------------------------------- two products
def test_two_products_equal_tables_made_one_event_at_a_time() -> None:
    train = mmdp.domains.substitutes(2, 1).train
    params = {name: values[1] for name, values in train.parameters.items()}
    demand_probs = {
        k: poisson.pmf(range(10), params[m]) for k, m in (("d1", "mean1"), ("d2", "mean2"))
    }
    demand_probs = {k: x / x.sum() for k, x in demand_probs.items()}
    for stock1, stock2, order1, order2 in [(0, 0, 0, 0), (8, 2, 3, 1), (1, 5, 0, 4), (0, 8, 2, 2)]:
        row, reward = np.zeros((9, 9)), 0.0
        for d1, d2, switches in np.ndindex(10, 10, 2):
            prob = (
                demand_probs["d1"][d1]
                * demand_probs["d2"][d2]
                * (params["switch"] if switches else 1 - params["switch"])
            )
            x, y = min(stock1 + order1, 8), min(stock2 + order2, 8)
            sold1, sold2 = min(x, d1), min(y, d2)
            if switches:  # those who find nothing ask for what is left of the other
                extra1, extra2 = min(x - sold1, d2 - sold2), min(y - sold2, d1 - sold1)
                sold1, sold2 = sold1 + extra1, sold2 + extra2
            row[x - sold1, y - sold2] += prob
            n_left = x - sold1 + y - sold2
            reward += prob * (8 * sold1 + 6 * sold2 - 5 * order1 - 3 * order2 - 0.3 * n_left)
        state, action = 9 * stock1 + stock2, 5 * order1 + order2
        np.testing.assert_allclose(train.transitions[1, state, action], row.reshape(-1), atol=1e-12)
        assert train.rewards[1, state, action] == pytest.approx(reward)
    assert _substitutes.event_probs(params)["switches"] == [1 - params["switch"], params["switch"]]


# ---------------------------------------------------------------------- perishable stock
@pytest.mark.parametrize("issue", ["lifo", "fifo"])
def test_perishable_orders_as_published(issue: str) -> None:
    model = mmdp.domains.perishable(1, 1, issue=issue).true_model
    assert model is not None
    policy = mmdp.solve(model, 200, method="wsu").policy
    rows = list(csv.reader((PUBLISHED_DIR / f"life2_{issue}.csv").open()))
    for age1, *orders in rows[1:]:
        for age2, order in zip(rows[0][1:], orders, strict=True):
            assert policy.action(age1=age1, age2=age2) == f"order={order}"


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


# ---------------------------------------------------------------------- harvest
def test_harvest_values_on_and_off_the_grid_agree() -> None:
    train, test = mmdp.domains.harvest(4, 4, n_points=101)
    policy = mmdp.solve(train, 20).policy
    on_grid, off_grid = (
        mmdp.evaluate(test, policy),
        mmdp.simulate(test, policy, off_grid=True, n_episodes=3000),
    )
    assert off_grid.mean == pytest.approx(
        on_grid.mean, abs=4 * off_grid.stderr + 0.002 * on_grid.mean
    )
    idle_policy = mmdp.policies.MarkovPolicy(np.zeros((20, 102), int))
    assert mmdp.simulate(test, idle_policy, off_grid=True, n_episodes=10).mean == 0


# ---------------------------------------------------------------------- MountainCar
def test_mountain_car_moves_as_in_gymnasium() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("MountainCar-v0").unwrapped
    rng = np.random.default_rng(0)
    params = {"force": _mountain_car.FORCE, "gravity": _mountain_car.GRAVITY}
    for position, velocity in rng.uniform([-1.2, -0.07], [0.5, 0.07], (200, 2)):
        push = int(rng.integers(-1, 2))
        env.state = (position, velocity)
        expected, reward, *_ = env.step(push + 1)
        state = {"position": np.array([position]), "velocity": np.array([velocity])}
        next_state, cost = _mountain_car.step(state, {"push": np.array([push])}, params)
        values = next_state["position"][0], next_state["velocity"][0]
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-9)
        assert cost == reward


def test_mountain_car_reaches_the_goal_off_the_grid() -> None:
    train, test = mmdp.domains.mountain_car(4, 4, n_points=31)
    policy = mmdp.solve(train, 200, method="wsu").policy
    off_grid = mmdp.simulate(test, policy, off_grid=True, n_episodes=5)
    assert -200 < off_grid.mean < -80


# ---------------------------------------------------------------------- CartPole
def test_cart_pole_moves_as_in_gymnasium() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("CartPole-v1").unwrapped
    env.masspole, env.length = 0.2, 0.7
    env.total_mass, env.polemass_length = 1.2, 0.14
    names, rng = ("position", "speed", "angle", "turning"), np.random.default_rng(0)
    for values in rng.uniform([-2.5, -2.5, -0.22, -3], [2.5, 2.5, 0.22, 3], (200, 4)):
        push = int(rng.integers(2))
        env.reset()
        env.state = values
        _, reward, terminated, *_ = env.step(push)
        state = {name: values[i : i + 1] for i, name in enumerate(names)}
        action = {"push": np.array([2 * push - 1])}
        next_state, step_reward = _cart_pole.step(state, action, {"mass": 0.2, "length": 0.7})
        np.testing.assert_allclose([next_state[name][0] for name in names], env.state, rtol=1e-12)
        assert (bool(_cart_pole.is_terminal(next_state)[0]), step_reward) == (terminated, reward)


@pytest.mark.slow
def test_cart_pole_stays_up_off_the_grid() -> None:
    train, test = mmdp.domains.cart_pole(5, 20)
    policy = mmdp.solve(train, 200, method="wsu").policy
    assert mmdp.simulate(test, policy, off_grid=True, n_episodes=10).returns.min() == 200
