"""Decision measures against closed forms and brute force over all policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import mmdp
from mmdp.insight import economics, measures


def make_random_model(seed: int, n_models: int = 6, n_states: int = 2, **fields: Any) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(n_states), size=(n_models, n_states, 2))
    weights = rng.dirichlet(np.full(n_models, 3.0))
    return mmdp.MMDP(
        p,
        rng.normal(size=(n_models, n_states, 2)),
        discount=0.9,
        weights=weights,
        initial=rng.dirichlet(np.ones(n_states)),
        **fields,
    )


def enumerate_returns(model: mmdp.MMDP, horizon: int) -> np.ndarray:
    """(policies, M) returns of every deterministic Markov policy."""
    tables = itertools.product(range(model.n_actions), repeat=horizon * model.n_states)
    return np.array(
        [
            mmdp.evaluate(
                model,
                mmdp.policies.MarkovPolicy(np.reshape(x, (horizon, -1)), n_actions=model.n_actions),
            ).returns
            for x in tables
        ]
    )


METHOD = mmdp.methods.CADP(n_init=20)


# ---------------------------------------------------------------------- policy table
@pytest.mark.parametrize("seed", range(3))
def test_margin_is_the_loss_of_changing_one_decision(seed: int) -> None:
    model, horizon = make_random_model(seed, n_states=3), 4
    solution = mmdp.solve(model, horizon)
    table = measures.policy_table(model, solution)
    assert len(table) == horizon * 3
    actions = solution.policy.actions
    for row in table.itertuples():
        t, s = int(row.time), int(row.state)
        assert row.action == str(actions[t, s])
        assert row.runner_up == str(1 - actions[t, s])
        changed_actions = actions.copy()
        changed_actions[t, s] = 1 - changed_actions[t, s]
        loss = (
            solution.value - mmdp.evaluate(model, mmdp.policies.MarkovPolicy(changed_actions)).mean
        )
        assert row.margin * 0.9**t * row.visit_prob == pytest.approx(loss, abs=1e-12)
        assert row.margin >= -1e-12
    np.testing.assert_allclose(table.groupby("time")["visit_prob"].sum(), 1.0)


def test_agreement_is_the_weight_of_models_with_the_same_optimum() -> None:
    model, horizon = make_random_model(4, n_states=3), 3
    solution = mmdp.solve(model, horizon)
    table = measures.policy_table(model, solution)
    oracle_actions = np.moveaxis(mmdp.solve(model, horizon, "oracle").model_policies, 1, 0)
    expected = np.einsum("m,mts->ts", model.weights, oracle_actions == solution.policy.actions)
    np.testing.assert_allclose(table["agreement"], expected.reshape(-1))


def test_ties_agree_and_single_actions_have_no_margin() -> None:
    model = mmdp.MMDP(
        [[[[1, 0], [1, 0]], [[0, 1], [0, 0]]]],
        [[1.0, 1.0], [0.0, 0.0]],
        initial=[1, 0],
        allowed=[[True, True], [True, False]],
        states=["on", "off"],
        actions=["a", "b"],
    )
    table = measures.policy_table(model, mmdp.policies.MarkovPolicy([[1, 0]], n_actions=2))
    assert table["agreement"].tolist() == [1.0, 1.0]
    assert table["margin"].iloc[0] == 0
    assert np.isnan(table["margin"].iloc[1])
    assert pd.isna(table["runner_up"].iloc[1])
    assert table["visit_prob"].tolist() == [1.0, 0.0]


def test_table_of_a_planner_is_refused() -> None:
    model = make_random_model(0)
    with pytest.raises(mmdp.InputError, match="oracle has one policy per model; choose"):
        measures.policy_table(model, mmdp.solve(model, 2, "oracle"))


# ---------------------------------------------------------------------- information
def make_two_models(a: float, b: float, weight: float) -> mmdp.MMDP:
    """Action 1 earns a in model 0 and -b in model 1; action 0 earns nothing."""
    return mmdp.MMDP(
        [[[[1.0], [1.0]]]] * 2,
        [[[0.0, a]], [[0.0, -b]]],
        weights=[weight, 1 - weight],
        parameters={"which": [0, 1], "constant": [4, 4]},
    )


@pytest.mark.parametrize(("a", "b", "w"), [(3.0, 1.0, 0.5), (1.0, 4.0, 0.3), (2.0, 2.0, 0.9)])
def test_two_model_closed_form(a: float, b: float, w: float) -> None:
    model = make_two_models(a, b, w)
    expected = w * a - max(w * a - (1 - w) * b, 0.0)
    assert measures.evpi(model, 1) == pytest.approx(expected)
    assert measures.evppi(model, 1, "which") == pytest.approx(expected)
    assert measures.evppi(model, 1, "constant") == 0
    assert measures.evpi(model, 5) == pytest.approx(5 * expected)
    table = measures.voi_table(model, 1)
    assert table["parameter"].tolist() == ["(everything)", "which", "constant"]
    assert table["value"].tolist() == pytest.approx([expected, expected, 0.0])


@pytest.mark.parametrize("seed", range(4))
def test_evpi_and_evppi_equal_brute_force(seed: int) -> None:
    x = np.array([0, 0, 1, 1, 2, 2])
    y = np.array([0, 1, 0, 1, 0, 1])
    model = make_random_model(seed, parameters={"x": x, "y": y})
    returns, weights, horizon = enumerate_returns(model, 2), model.weights, 2
    best = (returns @ weights).max()
    assert measures.evpi(model, horizon, method=METHOD) == pytest.approx(
        returns.max(axis=0) @ weights - best, abs=1e-10
    )
    for name, values in (("x", x), ("y", y)):
        conditional = sum(
            (returns[:, values == v] @ weights[values == v]).max() for v in np.unique(values)
        )
        evppi = measures.evppi(model, horizon, name, method=METHOD)
        assert evppi == pytest.approx(conditional - best, abs=1e-10)
        assert evppi <= measures.evpi(model, horizon, method=METHOD) + 1e-12
    joint_evppi = measures.evppi(model, horizon, ["x", "y"], method=METHOD)
    assert joint_evppi == pytest.approx(measures.evpi(model, horizon, method=METHOD), abs=1e-10)


def test_regression_and_bins_find_the_normal_closed_form() -> None:
    """Action 1 earns theta + noise, both standard normal: EVPPI(theta) = 1 / sqrt(2 pi)."""
    rng = np.random.default_rng(0)
    n = 4000
    theta, noise, idle = rng.normal(size=(3, n))
    rewards = np.stack([np.zeros(n), theta + noise], axis=1)[:, None, :]
    model = mmdp.MMDP(
        np.ones((n, 1, 2, 1)), rewards, parameters={"theta": theta, "noise": noise, "idle": idle}
    )
    unit = 1 / np.sqrt(2 * np.pi)
    # the closed form is for a prior mean of 0; the sample's differs by about 1 / sqrt(n)
    assert measures.evpi(model, 1) == pytest.approx(np.sqrt(2) * unit, abs=0.04)
    for name in ("theta", "noise"):
        assert measures.evppi(model, 1, name) == pytest.approx(unit, abs=0.04)
        binned = measures.evppi(model, 1, name, estimator="bins", bins=20)
        assert binned == pytest.approx(unit, abs=0.04)
    assert measures.evppi(model, 1, "idle") < 0.03
    exact = measures.evppi(model, 1, ["theta", "noise"])
    assert exact == pytest.approx(measures.evpi(model, 1), rel=0.05)


REWARD_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "line": lambda x: x,
    "waves": lambda x: np.cos(4 * np.pi * x),
    "spike": lambda x: np.where(np.abs(x - 0.5) < 0.1, 2.0, -0.3),
    "nothing": lambda x: 0 * x,
}


@pytest.mark.parametrize("shape", REWARD_FUNCTIONS)
def test_evppi_of_nonlinear_parameters(shape: str) -> None:
    """Action 1 earns f(x) + noise, x uniform: E max(0, f) - max(0, E f) by quadrature."""
    f, grid = REWARD_FUNCTIONS[shape], np.linspace(-1, 1, 100_001)
    exact = np.maximum(f(grid), 0).mean() - max(f(grid).mean(), 0)
    rng = np.random.default_rng(3)
    x, noise = rng.uniform(-1, 1, 1000), rng.normal(size=1000)
    rewards = np.stack([0 * x, f(x) + noise], axis=1)[:, None, :]
    model = mmdp.MMDP(np.ones((1000, 1, 2, 1)), rewards, parameters={"x": x})
    assert measures.evppi(model, 1, "x") == pytest.approx(exact, abs=0.05)


def test_evppi_by_regression_is_near_that_of_nested_models() -> None:
    """Six models for each of 20 values; the nested figure solves every value's models."""
    rng, x = np.random.default_rng(0), np.repeat(np.linspace(0, 1, 20), 6)
    p = 0.5 + 0.4 * np.sin(7 * x) + rng.uniform(-0.1, 0.1, len(x))
    P = np.zeros((len(x), 2, 2, 2))
    P[:, :, 0], P[:, :, 1, 0], P[:, :, 1, 1] = [0.5, 0.5], 1 - p[:, None], p[:, None]
    model = mmdp.MMDP(
        P, [[0.0, 0.1], [1.0, 0.9]], initial=[1, 0], parameters={"x": x}, discount=0.9
    )
    nested = measures.evppi(model, 3, "x", estimator="exact")
    assert nested > 0.05
    assert measures.evppi(model, 3, "x") == pytest.approx(nested, rel=0.05)


def test_evppi_takes_arrays_and_refuses_other_parameters() -> None:
    model = make_two_models(3.0, 1.0, 0.5)
    assert measures.evppi(model, 1, np.array([0, 1])) == measures.evppi(model, 1, "which")
    with pytest.raises(mmdp.InputError, match=r"'whcih' \(did you mean 'which'\?\)"):
        measures.evppi(model, 1, "whcih")
    with pytest.raises(mmdp.InputError, match="for M = 2 models"):
        measures.evppi(model, 1, np.zeros(3))
    with pytest.raises(mmdp.InputError, match="estimator must be"):
        measures.evppi(model, 1, "which", estimator="magic")  # type: ignore[arg-type]
    with pytest.raises(mmdp.InputError, match="needs a policy of time and state"):
        measures.evpi(model, 1, method="oracle")


# ---------------------------------------------------------------------- willingness to pay
def test_frontier_equals_brute_force_over_all_policies() -> None:
    rng = np.random.default_rng(5)
    model = make_random_model(5)
    effects, costs = rng.random((2, 2)), 100 * rng.random((6, 2, 2))
    thresholds = [0.0, 30.0, 80.0, 200.0, 1000.0]
    sweep = economics.willingness_to_pay(model, effects, costs, thresholds, 2, method=METHOD)
    e = enumerate_returns(model.replace(rewards=effects), 2)
    c = enumerate_returns(model.replace(rewards=costs), 2)
    for row, threshold in zip(sweep.frontier.itertuples(), thresholds, strict=True):
        nmb = (threshold * e - c) @ model.weights
        assert row.threshold == threshold
        assert row.nmb == pytest.approx(nmb.max(), rel=1e-10)
        assert row.nmb == pytest.approx(threshold * row.effect - row.cost)
        names = list(sweep.policies)
        net_benefits = threshold * sweep.effects - sweep.costs  # (policies found, M)
        wins = net_benefits.argmax(axis=0) == names.index(row.policy)
        assert row.probability == pytest.approx(model.weights[wins].sum())
    assert (np.diff(sweep.frontier["effect"]) >= -1e-12).all()
    sums = sweep.acceptability.groupby("threshold")["probability"].sum()
    np.testing.assert_allclose(sums, 1.0)
    changes = sweep.frontier.dropna(subset="icer")
    assert len(changes) == sweep.frontier["policy"].nunique() - 1
    for row in changes.itertuples():  # the ICER lies between the thresholds around the change
        previous_threshold = sweep.frontier["threshold"].iloc[row.Index - 1]
        assert previous_threshold - 1e-9 <= row.icer <= row.threshold + 1e-9


def test_current_practice_is_considered_and_bad_input_refused() -> None:
    model = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]])
    practice = mmdp.policies.MarkovPolicy([[1]], n_actions=2)
    sweep = economics.willingness_to_pay(
        model, [[0.0, 1.0]], [[0.0, 10.0]], [1, 50], 1, policies={"practice": practice}
    )
    assert sweep.frontier["policy"].tolist() == ["policy 1", "practice"]
    with pytest.raises(mmdp.InputError, match="thresholds"):
        economics.willingness_to_pay(model, [[0.0, 1.0]], [[0.0, 1.0]], [-1], 1)
    terminal_model = model.replace(terminal=[1.0])
    with pytest.raises(mmdp.InputError, match="terminal"):
        economics.willingness_to_pay(terminal_model, [[0.0, 1.0]], [[0.0, 1.0]], [1], 1)


# ---------------------------------------------------------------------- robustness
def test_stability_is_the_probability_that_a_resample_decides_otherwise() -> None:
    """Action 1 earns +1 in 15 of 25 models, else -1: it is dropped when at most 12 are drawn."""
    sign = np.where(np.arange(25) < 15, 1.0, -1.0)
    rewards = np.stack([np.zeros(25), sign], axis=1)[:, None, :]
    model = mmdp.MMDP(np.ones((25, 1, 2, 1)), rewards)
    result = measures.stability(model, 1, n_resamples=600, seed=1, method="wsu")
    expected = scipy.stats.binom.cdf(12, 25, 0.6)
    assert result.share_changed == pytest.approx(expected, abs=4 * np.sqrt(expected / 600))
    assert result.change_frequency[0, 0] == pytest.approx(result.share_changed)
    np.testing.assert_allclose(result.losses, np.where(result.shares_changed > 0, 0.2, 0.0))
    frame = result.to_frame(model)
    assert frame["change_frequency"].tolist() == [result.share_changed]


def test_stability_weighs_decisions_by_visit_probability() -> None:
    model = make_random_model(7, n_models=8, n_states=3)
    result = measures.stability(model, 3, n_resamples=10, seed=2)
    repeated = measures.stability(model, 3, n_resamples=10, seed=2)
    np.testing.assert_array_equal(result.shares_changed, repeated.shares_changed)
    assert result.share_changed == pytest.approx(
        (result.visit_probs * result.change_frequency).sum() / 3
    )
    b = mmdp.measures.model_weights(model, result.policy)
    np.testing.assert_allclose(result.visit_probs, b.sum(axis=1))


def test_train_test_gap_shrinks_with_the_number_of_models() -> None:
    train, test = mmdp.domains.riverswim(seed=0)
    table = measures.sample_size_curve(train, 20, [1, 10, 100], test_model=test, n_repeats=6)
    assert table["models"].tolist() == [1, 10, 100]
    solution = mmdp.solve(train, 20, mmdp.methods.CADP(n_init=1))
    last_row = table.iloc[-1]
    assert last_row["train"] == pytest.approx(solution.value)
    assert last_row["test"] == pytest.approx(mmdp.evaluate(test, solution).mean)
    assert last_row["gap_sd"] == pytest.approx(0.0, abs=1e-9)
    assert table["test"].is_monotonic_increasing
    assert table["gap"].is_monotonic_decreasing


def test_half_the_models_are_held_out_without_test_models() -> None:
    model = make_random_model(3, n_models=10)
    table = measures.sample_size_curve(model, 2, n_repeats=3)
    assert table["models"].tolist() == [1, 2, 5]
    np.testing.assert_allclose(table["gap"], table["train"] - table["test"])
    with pytest.raises(mmdp.InputError, match="size 50 is larger than the 10 available models"):
        measures.sample_size_curve(model, 2, [50], test_model=model)
    with pytest.raises(mmdp.InputError, match="give test_model="):
        measures.sample_size_curve(model.subset([0]), 2)


def test_sampled_models_are_solved_by_reweighting() -> None:
    """Other weights of one problem give what a problem of the drawn models gives."""
    model, method = make_random_model(5, n_models=9, n_states=4), mmdp.methods.CADP(n_init=1)
    rng = np.random.default_rng(0)
    order = rng.permutation(9)
    test, train = np.sort(order[:4]), np.sort(order[4:])
    full_solution = mmdp.solve(model.subset(train), 3, method)
    expected = []
    for _ in range(2):
        model_ids = rng.choice(train, 2, replace=False)
        subset = model.subset(np.sort(model_ids))
        solution = mmdp.solve(subset, 3, method)
        control = full_solution.value - mmdp.evaluate(subset, full_solution).mean
        expected.append(
            (solution.value + control, mmdp.evaluate(model.subset(test), solution).mean)
        )
    table = measures.sample_size_curve(model, 3, [2, 5], n_repeats=2)
    np.testing.assert_allclose(table[["train", "test"]].iloc[0], np.mean(expected, axis=0))
    assert table["test"].iloc[1] == pytest.approx(
        mmdp.evaluate(model.subset(test), full_solution).mean
    )
    with pytest.raises(mmdp.InputError, match="qmdp remembers"):
        measures.sample_size_curve(model, 3, [2], method="qmdp")


def test_resamples_take_the_better_of_two_ascents() -> None:
    model = make_random_model(11, n_models=6, n_states=3)
    stability, solution = (
        measures.stability(model, 4, n_resamples=4, seed=3),
        mmdp.solve(model, 4, seed=3),
    )
    rng = np.random.default_rng(3)
    for loss in stability.losses:
        counts = rng.multinomial(6, model.weights)
        resampled_model = model.replace(weights=counts / 6)
        local_optima = [
            mmdp.solve(resampled_model, 4, mmdp.methods.CADP(init=x, n_init=1))
            for x in ("wsu", solution.policy)
        ]
        losses = [
            solution.value - mmdp.evaluate(model, local_optimum).mean
            for local_optimum in local_optima
        ]
        gap = local_optima[0].value - local_optima[1].value
        expected = losses if abs(gap) < 1e-9 else [losses[int(gap < 0)]]
        assert min(abs(loss - x) for x in expected) < 1e-9


def test_a_solution_of_other_models_is_refused() -> None:
    """Of other rewards, weights or names; of the same ones, the figure is that of the method."""
    rng = np.random.default_rng(3)
    model = mmdp.MMDP(rng.dirichlet(np.ones(2), (3, 2, 2)), rng.normal(size=(3, 2, 2)), states="xy")
    solution = mmdp.solve(model, 4)
    assert measures.evpi(model, 4, method=solution) == pytest.approx(
        measures.evpi(model, 4), rel=1e-12
    )
    other_models = (
        model.replace(rewards=2 * model.rewards),
        model.replace(weights=[0.5, 0.25, 0.25]),
        model.replace(states="yx"),
    )
    for other_model in other_models:
        with pytest.raises(mmdp.InputError, match="is for other models|are named differently"):
            measures.evpi(other_model, 4, method=solution)
    # what the policy never does is other: its returns are the same, the models' own optima not
    bet_model = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 1.0]], [[2.0, 1.0]]])
    richer_model = bet_model.replace(rewards=[[[2.0, 1.0]], [[2.0, 9.0]]])
    bet_solution = mmdp.solve(bet_model, 1)
    assert measures.evpi(bet_model, 1, method=bet_solution) == 0
    assert measures.evpi(richer_model, 1, method=bet_solution) == pytest.approx(3.5)


def test_stability_counts_decisions_only() -> None:
    """Half of the weight is in a state that nobody leaves; the other is decided by each sample."""
    P = np.broadcast_to(np.eye(2)[:, None], (6, 2, 2, 2))
    r = np.zeros((6, 2, 2))
    r[:3, 0], r[3:, 0] = [1.0, 0.0], [0.0, 1.0]
    result = measures.stability(mmdp.MMDP(P, r), 1, n_resamples=10)
    frequency = result.change_frequency[0, 0]
    assert 0 < frequency < 1
    assert result.share_changed == pytest.approx(frequency)
    assert result.change_frequency[0, 1] * result.visit_probs[0, 1] == 0
