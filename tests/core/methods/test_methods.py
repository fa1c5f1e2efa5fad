"""The Markov algorithms on random tiny instances: properties that must hold for each."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mmdp
from mmdp.core.testing import (
    check_method,
    compute_plain_returns,
    find_best_markov_value,
    make_random_model,
)
from tests.instances import list_seeds, n_examples, seed_ranges

SEEDS = list_seeds(50, 200)


def compute_scale(model: mmdp.MMDP, horizon: int) -> float:
    return max(1.0, float(np.abs(model.rewards).max()) * horizon)


@pytest.mark.parametrize("seed", SEEDS)
def test_cadp_properties(seed):
    model = make_random_model(seed)
    horizon = model.horizon or 1 + seed % 5
    size = compute_scale(model, horizon)
    wsu = mmdp.solve(model, horizon, "wsu")
    solution = mmdp.solve(model, horizon)
    assert (np.diff(solution.trace) >= -1e-12 * size).all()
    assert solution.value >= wsu.value - 1e-12 * size
    is_single_model = model.n_models == 1
    assert solution.status is mmdp.Status["OPTIMAL" if is_single_model else "LOCAL_OPTIMUM"]
    exact = compute_plain_returns(model, solution.policy)
    np.testing.assert_allclose(solution.returns, exact, atol=1e-9 * size)
    oracle = mmdp.solve(model, horizon, "oracle")
    assert (oracle.returns >= solution.returns - 1e-9 * size).all()
    assert oracle.value >= solution.value - 1e-9 * size


@pytest.mark.parametrize("seed", SEEDS)
def test_no_single_change_improves_cadp(seed):
    model = make_random_model(seed)
    horizon = model.horizon or 1 + seed % 3
    solution = mmdp.solve(model, horizon)
    for t in range(horizon):
        for s in range(model.n_states):
            for a in np.flatnonzero(model.allowed[s]):
                actions = solution.policy.actions.copy()
                actions[t, s] = a
                changed = (
                    compute_plain_returns(model, mmdp.policies.MarkovPolicy(actions))
                    @ model.weights
                )
                assert changed <= solution.value + 1e-9 * compute_scale(model, horizon)


@pytest.mark.parametrize("seed", SEEDS)
def test_gradient_equals_central_differences(seed):
    model = make_random_model(seed, n_states=1 + seed % 3, n_actions=1 + seed % 3)
    horizon = model.horizon or 1 + seed % 3
    rng = np.random.default_rng(seed)
    table = rng.random((horizon, model.n_states, model.n_actions)) * model.allowed
    table /= table.sum(axis=2, keepdims=True)
    policy = mmdp.policies.MarkovPolicy(probabilities=table)
    gradient = mmdp.measures.policy_gradient(model, policy)
    assert (np.isnan(gradient) == ~np.broadcast_to(model.allowed, gradient.shape)).all()
    t, s, a = (int(rng.integers(n)) for n in table.shape)
    if not model.allowed[s, a]:
        a = int(np.flatnonzero(model.allowed[s])[0])
    h = 1e-3
    higher_table, lower_table = table.copy(), table.copy()
    higher_table[t, s, a] += h
    lower_table[t, s, a] -= h
    difference = (
        compute_polynomial_return(model, higher_table)
        - compute_polynomial_return(model, lower_table)
    ) / (2 * h)
    size = max(1.0, abs(difference))
    assert abs(gradient[t, s, a] - difference) <= 1e-6 * size


def compute_polynomial_return(model: mmdp.MMDP, table: np.ndarray) -> float:
    """rho as a polynomial in pi, which need not be normalised: plain loops over the models."""
    P, r = model.transitions, model.rewards
    total = 0.0
    for m in range(model.n_models):
        v = model.terminal[m]
        for t in reversed(range(len(table))):
            p_t = (P[t] if P.ndim == 5 else P)[m]
            r_t = (r[t] if r.ndim == 4 else r)[m]
            q = r_t + model.discount * p_t @ v
            v = (table[t] * q).sum(axis=1)
        total += model.weights[m] * float(model.initial @ v)
    return total


@pytest.mark.parametrize("seed", list_seeds(15, 30))
def test_model_weights_are_a_joint_distribution(seed):
    model = make_random_model(seed)
    horizon = model.horizon or 5
    policy = mmdp.policies.MarkovPolicy.random(model, horizon, seed)
    b = mmdp.measures.model_weights(model, policy)
    assert b.shape == (horizon, model.n_models, model.n_states)
    np.testing.assert_allclose(b.sum(axis=2), np.tile(model.weights, (horizon, 1)), atol=1e-12)
    x = model.initial
    for t in range(1, horizon):
        P = model.transitions if model.horizon is None else model.transitions[t - 1]
        step = P[0, np.arange(model.n_states), policy.actions[t - 1]]
        x = x @ step
        np.testing.assert_allclose(b[t, 0], model.weights[0] * x, atol=1e-12)


@pytest.mark.parametrize("seed", list_seeds(15, 40))
def test_inits_and_enumeration_bracket_cadp(seed):
    model = make_random_model(seed, n_models=3, n_states=2, n_actions=2, horizon=0)
    best = find_best_markov_value(model, 3)
    single = mmdp.solve(model, 3, seed=seed)
    multistart = mmdp.solve(model, 3, mmdp.methods.CADP(n_init=12), seed=seed)
    assert single.value <= multistart.value + 1e-12 <= best + 1e-9 * compute_scale(model, 3)
    assert len(multistart.details["init_values"]) == 12
    assert max(multistart.details["init_values"]) == pytest.approx(multistart.value)


@pytest.mark.parametrize("seed", list_seeds(8, 25))
@pytest.mark.parametrize("method", ["gradient", "mirror"])
def test_ascent_is_monotone_and_rounding_never_loses(seed, method):
    model = make_random_model(seed)
    horizon = model.horizon or 4
    size = compute_scale(model, horizon)
    solution = mmdp.solve(model, horizon, method)
    assert (np.diff(solution.trace) >= -1e-10 * size).all()
    assert solution.value == pytest.approx(solution.details["rounded_value"], abs=1e-9 * size)
    assert solution.details["rounded_value"] >= solution.details["randomized_value"] - 1e-10 * size
    assert solution.policy.is_deterministic
    assert solution.details["stationarity"] >= -1e-9 * size


def test_gradient_stops_at_a_stationary_policy():
    model = make_random_model(2, n_models=4, n_states=3, n_actions=3, horizon=0, discount=0.9)
    solution = mmdp.solve(
        model, 4, mmdp.methods.NaturalGradient(max_iter=2000, tol=1e-7, deterministic=False)
    )
    assert not solution.policy.is_deterministic
    G = mmdp.measures.policy_gradient(model, solution.policy)
    mean = np.nansum(solution.policy.probabilities * G, axis=2)
    gap = np.where(model.allowed, G - mean[:, :, None], 0.0).max(axis=2).sum()
    assert gap == pytest.approx(solution.details["stationarity"], abs=1e-9)
    assert gap <= 1e-6 * max(1.0, abs(solution.value))


def test_one_model_equals_quantecon():
    quantecon = pytest.importorskip("quantecon.markov", reason="quantecon (bench extra)")
    from quantecon.markov.ddp import backward_induction

    for seed in range(n_examples(200)):
        model = make_random_model(
            seed, n_models=1, n_states=5, n_actions=3, horizon=0, has_masks=False, discount=0.9
        ).replace(terminal=None)
        P, r = model.transitions[0], model.rewards[0]
        solution = mmdp.solve(model, 6)
        values, _ = backward_induction(quantecon.DiscreteDP(r, P, 0.9), 6)
        assert solution.value == pytest.approx(float(model.initial @ values[0]), rel=1e-12)
        assert solution.value == pytest.approx(mmdp.solve(model, 6, "oracle").value, rel=1e-12)


@pytest.mark.parametrize("seed", list_seeds(8, 20))
def test_shifting_scaling_and_permuting(seed):
    model = make_random_model(seed, horizon=0, has_masks=False, discount=0.9).replace(terminal=None)
    T, rng = 4, np.random.default_rng(seed)
    base = mmdp.solve(model, T)
    size = compute_scale(model, T)
    shifted = mmdp.solve(model.replace(rewards=3.0 * model.rewards + 2.0), T)
    expected = 3.0 * base.value + 2.0 * (1 - 0.9**T) / (1 - 0.9)
    assert shifted.value == pytest.approx(expected, abs=1e-8 * size)
    order = rng.permutation(model.n_models)
    assert mmdp.solve(model.subset(order), T).value == pytest.approx(base.value, abs=1e-9 * size)
    s, a = rng.permutation(model.n_states), rng.permutation(model.n_actions)
    permuted = mmdp.MMDP(
        model.transitions[:, s][:, :, a][:, :, :, s],
        model.rewards[:, s][:, :, a],
        initial=model.initial[s],
        weights=model.weights,
        discount=0.9,
    )
    for method in ("oracle", "wsu"):
        permuted_value, value = (mmdp.solve(x, T, method).value for x in (permuted, model))
        assert permuted_value == pytest.approx(value, abs=1e-9 * size)


SLOW_METHODS = {"exact", "milp", "pomcp"}  # methods that prove or search take seconds per model


@pytest.mark.parametrize("method", sorted(set(mmdp.methods.METHODS) - SLOW_METHODS - {"grid"}))
def test_every_method_passes_the_conformance_kit(method):
    check_method(method, seeds=range(15))
    check_method(method, make_random_model(7, n_models=5, n_states=4), None)


@pytest.mark.parametrize("seed", range(3))
def test_the_grid_passes_the_conformance_kit(seed):
    """It is for two to four models."""
    check_method("grid", make_random_model(seed, n_models=2 + seed, n_states=3))


@pytest.mark.parametrize("method", sorted(SLOW_METHODS))
@pytest.mark.parametrize("seeds", seed_ranges(4, 15))
def test_long_methods_pass_the_conformance_kit(method, seeds):
    check_method(method, seeds=seeds)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(SLOW_METHODS))
def test_long_methods_pass_the_conformance_kit_on_more_models(method):
    check_method(method, make_random_model(7, n_models=5, n_states=4), None)


class ForgetfulWSU(mmdp.methods.WSU):
    """WSU, but if the time is up it claims that an iterate was better than its result."""

    def run(self, context):
        result = super().run(context)
        if context.stopwatch.is_expired:
            context.trace.append(context.best_value + 1.0)
        return result


def test_the_conformance_kit_looks_at_stopped_solves():
    with pytest.raises(AssertionError, match="wsu: a better iterate lost"):
        check_method(ForgetfulWSU(), seeds=[0])


def test_ties_go_to_the_incumbent_else_the_lowest_action():
    tied_model = mmdp.MMDP([[[[1.0], [1.0], [1.0]]]], [[1.0, 1.0, 1.0]])
    assert mmdp.solve(tied_model, 2, "wsu").policy.actions.tolist() == [[0], [0]]
    init = mmdp.policies.MarkovPolicy([[2], [1]])
    assert mmdp.solve(tied_model, 2, mmdp.methods.CADP(init=init)).policy == init


def test_an_unreachable_state_keeps_its_action_in_ascents():
    P = np.zeros((2, 2, 2, 2))
    P[:, :, :, 0] = 1.0
    model = mmdp.MMDP(P, [[0.0, 1.0], [0.0, 5.0]], initial=[1.0, 0.0])
    init = mmdp.policies.MarkovPolicy([[0, 0], [0, 0]])
    for backend_name in ("numpy", "numba"):
        backend = mmdp.core.kernels.get_backend(backend_name)
        policy = backend.prepare(model.problem, 2).ascend([init.actions])[0].policy
        assert policy.tolist() == [[1, 0], [1, 0]]


def test_mvp_averages_transitions_and_next_state_rewards_apart():
    P = np.array([[[[0.2, 0.8]], [[0.0, 1.0]]], [[[0.6, 0.4]], [[0.0, 1.0]]]])
    R = np.array([[[[1.0, 10.0]], [[0.0, 0.0]]], [[[3.0, 30.0]], [[0.0, 0.0]]]])
    mean = mmdp.MMDP(P, next_rewards=R).mean_model()
    np.testing.assert_allclose(mean.transitions[0, 0, 0], [0.4, 0.6])
    assert mean.rewards[0, 0, 0] == pytest.approx(0.4 * 2.0 + 0.6 * 20.0)
    state_action_mean = mmdp.MMDP(P, (P * R).sum(axis=3)).mean_model()
    assert state_action_mean.rewards[0, 0, 0] == pytest.approx(
        ((P * R).sum(axis=3))[:, 0, 0].mean()
    )


@pytest.mark.parametrize("seed", list_seeds(20, 50))
def test_two_way_sweeps_reach_a_local_optimum(seed):
    model = make_random_model(2 * seed, n_states=3, n_actions=3)
    horizon = model.horizon or 3
    size = compute_scale(model, horizon)
    solution = mmdp.solve(
        model, horizon, mmdp.methods.CADP(sweep_type="two-way", init="random"), seed=2 * seed
    )
    assert (np.diff(solution.trace) >= -1e-12 * size).all()
    G = mmdp.measures.policy_gradient(model, solution.policy)
    policy_gradient = np.take_along_axis(G, solution.policy.actions[:, :, None].astype(int), axis=2)
    assert (np.nan_to_num(G - policy_gradient, nan=-1.0) <= 1e-9 * size).all()


# ------------------------------------------------------------------ sweeps and starts of CADP
def test_two_way_sweeps_fall_back_if_q_is_large(monkeypatch):
    model = make_random_model(6, n_models=5, n_states=4, n_actions=3, horizon=0)
    assert mmdp.solve(model, 4).details["sweep_type"] == "two-way"
    paper = mmdp.solve(model, 4, mmdp.methods.CADP(sweep_type="paper"))
    assert paper.details["sweep_type"] == "paper"
    monkeypatch.setattr("mmdp.core.search.spaces.MAX_Q_BYTES", 4 * 4 * 4 * 3 * 5 - 1)
    fallback = mmdp.solve(model, 4)
    assert fallback.details["sweep_type"] == "paper"
    assert fallback.policy == paper.policy
    assert fallback.iterations == paper.iterations


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_inits_come_in_documented_order(backend):
    model = make_random_model(6, n_models=5, n_states=4, n_actions=3, horizon=0)
    solution = mmdp.solve(model, 6, mmdp.methods.CADP(n_init=16), seed=2, backend=backend)
    details = solution.details
    names = details["inits"]
    assert names[:4] == ["wsu", "mvp", "mirror", "gradient"]
    optima = names[4:14:2]
    assert sorted(optima) == [f"model {label}" for label in sorted(model.model_labels)]
    assert set(names[5::2]) | set(names[14:]) == {"random"}
    values = details["init_values"]
    assert details["best_init"] == names[int(values.argmax())]
    assert solution.value == pytest.approx(values.max(), rel=1e-12)
    spread = {"min": values.min(), "mean": values.mean(), "max": values.max()}
    assert details["spread"] == pytest.approx(spread)
    user_init = mmdp.policies.MarkovPolicy.random(model, 6, 0)
    names = mmdp.solve(model, 6, mmdp.methods.CADP(init=user_init, n_init=4), seed=2).details[
        "inits"
    ]
    assert names[:3] == ["given", "wsu", "mvp"]


def test_init_values_are_those_of_separate_ascents():
    model = make_random_model(8, n_models=4, n_states=4, n_actions=3, horizon=0)
    init_values = mmdp.solve(model, 6, mmdp.methods.CADP(n_init=5), seed=3).details["init_values"]
    oracle = mmdp.solve(model, 6, "oracle").model_policies
    names = mmdp.solve(model, 6, mmdp.methods.CADP(n_init=5), seed=3).details["inits"]
    for name, value in zip(names, init_values, strict=True):
        if name.startswith("model"):
            m = model.model_labels.index(name.removeprefix("model "))
            init: mmdp.policies.MarkovPolicy | str = mmdp.policies.MarkovPolicy.for_model(
                model, oracle[:, m]
            )
        elif name == "random":
            continue
        else:
            init = name
        assert mmdp.solve(model, 6, mmdp.methods.CADP(init=init)).value == pytest.approx(
            value, rel=1e-12
        )


def test_one_model_needs_no_sweep():
    for seed in range(20):
        model = make_random_model(seed, n_models=1)
        horizon = model.horizon or 5
        solution = mmdp.solve(model, horizon)
        assert solution.policy == mmdp.solve(model, horizon, "wsu").policy
        assert solution.iterations == 1
        assert solution.status_text == "proven optimal: no policy is better"


@pytest.mark.parametrize("horizon", [4, math.inf])
@pytest.mark.parametrize("objective", ["mean", "worst", "cvar:0.5", "regret:mean", "entropic:0.1"])
def test_the_optimum_of_one_model_is_proven(horizon: float, objective: str) -> None:
    for seed in range(6):
        P = make_random_model(seed, n_models=1, n_states=4, n_actions=3, horizon=0, discount=0.9)
        model = P.replace(rewards=P.rewards + 1e5 * (seed % 2))
        best = mmdp.solve(model, horizon, "oracle").value
        solution = mmdp.solve(model, horizon, mmdp.methods.CADP(init="wsu"), objective=objective)
        assert solution.status is mmdp.Status.OPTIMAL
        assert solution.evaluation.mean == pytest.approx(best, rel=1e-12)


def test_a_bad_action_in_an_unreachable_state_hides_no_optimum() -> None:
    # the second state is not reached at first, and its action makes it look bad
    P = np.zeros((1, 3, 2, 3))
    P[0, 0, 0, 1] = P[0, 0, 1, 2] = P[0, 1:, :, 2] = 1
    model = mmdp.MMDP(P, [[0.0, 1.0], [5.0, -5.0], [0.0, 0.0]], initial=[1, 0, 0])
    init = mmdp.policies.MarkovPolicy([[1, 1, 0], [1, 1, 0]])
    solution = mmdp.solve(model, 2, mmdp.methods.CADP(init=init, sweep_type="paper"))
    assert (solution.value, solution.status) == (5.0, mmdp.Status.OPTIMAL)
