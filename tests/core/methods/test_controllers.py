"""CADP over controllers: monotone, one node is CADP, bounded by the tree of beliefs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core import kernels
from mmdp.core.kernels.controller import Controller
from mmdp.core.objectives import as_objective
from mmdp.core.search.context import SolveContext
from mmdp.core.search.controllers import ControllerSpace
from mmdp.core.testing import (
    compute_returns,
    enumerate_policies,
    find_best_history_value,
    make_random_model,
)
from tests.instances import make_switching_model, returns_by_histories, seed_ranges


def test_the_trace_never_falls_and_ends_in_the_value() -> None:
    """The value is that of an independent evaluation."""
    for seed in range(80):
        model = make_random_model(seed)
        solution = mmdp.solve(
            model,
            model.horizon or 3,
            mmdp.methods.CADP(n_init=1),
            policy_class=mmdp.policies.Memory(1 + seed % 3),
            seed=seed,
            backend="numba",
        )
        scale = max(1.0, float(np.abs(solution.trace).max()))
        assert (np.diff(solution.trace) >= -1e-12 * scale).all(), seed
        assert solution.trace[-1] == pytest.approx(solution.value, abs=1e-9 * scale)
        exact = mmdp.evaluate(model, solution.policy, backend="numpy").mean
        assert solution.value == pytest.approx(exact, abs=1e-9 * scale)


def test_more_nodes_are_never_worse_and_never_better_than_the_belief() -> None:
    n_improved = 0
    for seed in range(6):
        model, horizon = make_random_model(seed, n_models=3, n_states=2, n_actions=2, horizon=0), 4
        values = [
            mmdp.solve(model, horizon, policy_class=mmdp.policies.Memory(n), backend="numba").value
            for n in (1, 2, 3)
        ]
        best_value = find_best_history_value(model, horizon)
        assert values == sorted(values)
        assert values[-1] <= best_value + 1e-9 * max(1.0, abs(best_value))
        n_improved += values[-1] > values[0] + 1e-9
    assert n_improved >= 2  # or the test shows nothing


def test_enough_nodes_find_the_optimum_of_a_short_tree() -> None:
    model = make_random_model(1, n_models=3, n_states=2, n_actions=2, horizon=0, discount=0.9)
    best, markov = find_best_history_value(model, 3), mmdp.solve(model, 3).value
    value = mmdp.solve(model, 3, policy_class=mmdp.policies.Memory(max_nodes=4)).value
    assert markov < best - 0.05
    assert value == pytest.approx(best, abs=1e-9)


def test_one_node_is_cadp() -> None:
    model = mmdp.domains.riverswim(seed=0, n_train=10).train
    one_node, markov = (
        mmdp.solve(model, 15, policy_class=mmdp.policies.Memory(max_nodes=1)),
        mmdp.solve(model, 15),
    )
    assert one_node.value == pytest.approx(markov.value, rel=1e-12)
    assert (one_node.policy.actions[:, :, 0] == markov.policy.actions).all()
    np.testing.assert_allclose(one_node.trace, markov.trace, rtol=1e-12)


@pytest.mark.parametrize("horizon", [5, 9, 21, 41])
def test_two_nodes_have_bounded_regret_markov_has_not(horizon: int) -> None:
    """The third theorem's example: trying action 2 once costs 1, and then the model is known."""
    model = mmdp.domains.two_models().train
    n_visits = (horizon + 1) // 2
    two_nodes = mmdp.solve(model, horizon, policy_class=mmdp.policies.Memory(max_nodes=2))
    assert two_nodes.evaluation.bayes_regret == pytest.approx(1.0)
    assert mmdp.solve(model, horizon).evaluation.bayes_regret == pytest.approx(0.5 * n_visits)


# ---------------------------------------------------------------------- other objectives
def min_return(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A function of a user: nothing is known of it."""
    return np.sort(returns, axis=-1)[..., :2].sum(axis=-1)


OBJECTIVES = ("cvar:0.4", "var:0.4", "evar:0.3", "worst", "mean-cvar:0.4:0.5", "regret:worst")
OBJECTIVE_CASES = [  # EVaR takes as long as the others together
    pytest.param(x, marks=[pytest.mark.slow] * x.startswith("evar")) for x in OBJECTIVES
]


@pytest.mark.parametrize(
    "objective",
    [*OBJECTIVE_CASES, "entropic:0.5", min_return],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_memory_never_harms_an_objective(objective: str) -> None:
    F = as_objective(objective)
    for seed in range(4):
        model, horizon = make_random_model(seed, n_models=4, n_states=2, n_actions=2, horizon=0), 3
        markov, solution = (
            mmdp.solve(
                model,
                horizon,
                mmdp.methods.CADP(n_init=1),
                objective=F,
                policy_class=policy_class,
                backend="numba",
            )
            for policy_class in ("markov", mmdp.policies.Memory(2 + seed % 2))
        )
        slack = 1e-9 * (1 + float(np.abs(solution.returns).max()))
        assert solution.value >= markov.value
        assert (np.diff(solution.trace) >= 0).all()
        assert solution.trace[-1] == pytest.approx(solution.value, abs=slack)
        rho = returns_by_histories(solution.policy, model)
        assert solution.returns == pytest.approx(rho, abs=slack)
        oracle_returns = [mmdp.solve(model.subset([m]), horizon).value for m in range(4)]
        value = F.value(rho - oracle_returns if F.uses_regret else rho, model.weights)
        assert solution.value == pytest.approx(float(value), abs=10 * slack)


def compute_returns_backward(arrays: tuple[np.ndarray, ...], model: mmdp.MMDP) -> np.ndarray:
    """(M,) returns of actions, moves and first nodes, by a backward recursion in plain loops."""
    actions, node_transitions, initial_nodes = arrays
    (T, S, N), M, g = actions.shape, model.n_models, model.discount
    P, r = (
        np.broadcast_to(x, (T, *x.shape[-k:]))
        for x, k in ((model.transitions, 4), (model.rewards, 3))
    )
    model_transitions = np.eye(M) if model.model_transitions is None else model.model_transitions
    v, states = np.repeat(model.terminal[:, :, None], N, axis=2), np.arange(S)
    for t in reversed(range(T)):
        next_values, v = np.tensordot(model_transitions, v, 1), np.empty((M, S, N))
        for s, n in np.ndindex(S, N):
            a = actions[t, s, n]
            values_by_next_state = next_values[:, states, node_transitions[t, s, n]]
            v[:, s, n] = r[t, :, s, a] + g * (P[t, :, s, a] * values_by_next_state).sum(axis=1)
    return v[:, states, initial_nodes] @ model.initial


def iter_single_changes(
    policy: mmdp.policies.MemoryPolicy, model: mmdp.MMDP
) -> Iterator[tuple[np.ndarray, ...]]:
    """The policy's parts with one action, one move or one first node changed."""
    arrays = policy.actions, policy.node_transitions, policy.initial_nodes
    for i, array in enumerate(arrays):
        for index in np.ndindex(array.shape):
            choices = np.flatnonzero(model.allowed[index[1]]) if i == 0 else range(policy.n_nodes)
            for choice in choices:
                if choice != array[index]:
                    changed = array.copy()
                    changed[index] = choice
                    yield (*arrays[:i], changed, *arrays[i + 1 :])


LOCAL_OPTIMUM_OBJECTIVES = [
    *OBJECTIVES,
    "mean-cvar:0.1:0.3",
    "entropic:0.5",
    "regret:cvar:0.3",
    min_return,
]


@pytest.mark.parametrize("seeds", seed_ranges(6, 200))
@pytest.mark.parametrize(
    "objective", LOCAL_OPTIMUM_OBJECTIVES, ids=lambda x: getattr(x, "__name__", x)
)
def test_an_ascent_ends_where_no_single_change_improves(objective: Any, seeds: range) -> None:
    F = as_objective(objective)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        model = make_random_model(seed, n_models=4, n_states=3, n_actions=2, horizon=3 * (seed % 2))
        if seed % 4 == 2:
            model = make_switching_model(seed, M=3, S=3)
        N, T, S = 2 + seed % 2, 3, model.n_states
        actions = [[rng.choice(np.flatnonzero(allowed), N) for allowed in model.allowed]] * T
        init = Controller(
            np.array(actions, np.int32),
            rng.integers(0, N, (T, S, N, S), np.uint8),
            rng.integers(0, N, S, np.uint8),
        )
        context = SolveContext(
            model,
            T,
            kernels.get_backend("numpy"),
            policy_class=mmdp.policies.Memory(N),
            objective=F,
        )
        local_optimum = ControllerSpace(context).ascend_objective(init, F)
        assert local_optimum.stop_reason == "local_optimum"
        oracle_returns = mmdp.solve(model, T, "oracle").returns if F.uses_regret else 0.0
        policy = mmdp.policies.MemoryPolicy(*local_optimum.policy)
        rho = np.array(
            [compute_returns_backward(x, model) for x in iter_single_changes(policy, model)]
        )
        slack = 1e-9 * (1 + float(np.abs(rho).max()))
        assert local_optimum.value == pytest.approx(
            float(F.value(local_optimum.returns - oracle_returns, model.weights))
        )
        assert local_optimum.returns == pytest.approx(
            compute_returns_backward(local_optimum.policy, model), abs=slack
        )
        assert F.value(rho - oracle_returns, model.weights).max() <= local_optimum.value + slack, (
            seed
        )


def test_a_solve_claims_only_what_was_checked() -> None:
    model = make_random_model(0, n_models=4, n_states=3, n_actions=2, horizon=0)
    solution = mmdp.solve(
        model,
        3,
        mmdp.methods.CADP(n_init=1),
        objective="regret:worst",
        policy_class=mmdp.policies.Memory(2),
    )
    assert solution.status_text == "no change of a single action, move or first node improves it"
    rho = np.array(
        [compute_returns_backward(x, model) for x in iter_single_changes(solution.policy, model)]
    )
    regret = mmdp.solve(model, 3, "oracle").returns - rho
    assert -regret.max(axis=1).min() <= solution.value + 1e-9


def add_first_state(model: mmdp.MMDP) -> mmdp.MMDP:
    """A model whose state has the first state too: over two decisions that is all history."""
    S, eye = model.n_states, np.eye(model.n_states)
    P = np.einsum("ij,msan->misajn", eye, model.transitions)
    return mmdp.MMDP(
        P.reshape(model.n_models, S * S, model.n_actions, S * S),
        np.tile(model.rewards, (1, S, 1)),
        initial=np.diag(model.initial).ravel(),
        weights=model.weights,
        discount=model.discount,
        terminal=np.tile(model.terminal, (1, S)),
        allowed=np.tile(model.allowed, (S, 1)),
    )


@pytest.mark.parametrize("objective", OBJECTIVE_CASES)
def test_controllers_against_every_history_dependent_policy(objective: str) -> None:
    F, is_best = as_objective(objective), []
    for seed in range(8):
        model = make_random_model(seed, n_models=4, n_states=2, n_actions=2, horizon=0)
        history_model = add_first_state(model)
        rho = compute_returns(history_model, enumerate_policies(history_model, 2))
        slack = 1e-8 * (1 + float(np.abs(rho).max()))
        best_value = F.value(
            F.relative_returns(rho, lambda rho=rho: rho.max(axis=0)), model.weights
        ).max()
        solution = mmdp.solve(
            model,
            2,
            policy_class=mmdp.policies.Memory(2),
            objective=F,
            certify_time=0.05,
            backend="numba",
        )
        assert solution.bound is not None
        assert solution.value <= best_value + slack
        assert solution.bound >= best_value - slack
        is_best.append(solution.value >= best_value - slack)
    assert np.mean(is_best) >= 0.6  # in most, no memory is needed


def test_two_nodes_bound_the_worst_regret() -> None:
    """The third theorem's example: trying action 2 once costs 2 in one model, 0 in the other."""
    model = mmdp.domains.two_models().train
    F = mmdp.objectives.WorstCase().on_regret()
    assert mmdp.solve(model, 21, objective=F).value == pytest.approx(-8)
    two_nodes = mmdp.solve(
        model, 21, objective=F, policy_class=mmdp.policies.Memory(2), certify_time=0.1
    )
    assert two_nodes.value == pytest.approx(-2)
    assert two_nodes.status is mmdp.Status.LOCAL_OPTIMUM
    assert two_nodes.certificate is not None
    assert two_nodes.certificate.scope == "history"
    assert -2 <= two_nodes.certificate.value <= 0
    with pytest.raises(mmdp.InputError, match="not monotone"):
        mmdp.solve(
            model,
            5,
            objective=mmdp.objectives.CustomObjective(min_return, is_monotone=False),
            certify_time=1,
        )


def test_limits_and_seeds_are_respected() -> None:
    model = mmdp.domains.riverswim(seed=0, n_train=10).train
    policy_class, reports = mmdp.policies.Memory(max_nodes=3), []
    solution = mmdp.solve(model, 15, policy_class=policy_class, seed=1, callback=reports.append)
    assert mmdp.solve(model, 15, policy_class=policy_class, seed=1).policy == solution.policy
    assert [x.best_value for x in reports] == sorted(x.best_value for x in reports)
    assert solution.details["value_by_nodes"][-1] == pytest.approx(solution.value)
    stopped = mmdp.solve(model, 15, policy_class=policy_class, seed=1, time_limit=1e-9)
    assert stopped.status is mmdp.Status.TIME_LIMIT
    assert isinstance(stopped.policy, mmdp.policies.MemoryPolicy)
    assert stopped.value == pytest.approx(mmdp.evaluate(model, stopped).mean)


def test_an_interrupt_keeps_the_best_controller() -> None:
    model = mmdp.domains.riverswim(seed=0, n_train=10).train
    markov = mmdp.solve(model, 15).value

    def interrupt(progress: mmdp.solution.Progress) -> None:
        if progress.best_value > markov + 1e-9:
            raise KeyboardInterrupt

    solution = mmdp.solve(
        model, 15, policy_class=mmdp.policies.Memory(max_nodes=2), callback=interrupt
    )
    assert solution.status is mmdp.Status.INTERRUPTED
    assert solution.policy.n_nodes == 2
    assert solution.value == pytest.approx(mmdp.evaluate(model, solution).mean)


def test_other_methods_name_the_supporting_one() -> None:
    model = mmdp.domains.two_models().train
    with pytest.raises(mmdp.InputError, match="cannot make a memory policy; choose method='cadp'"):
        mmdp.solve(model, 5, "wsu", policy_class=mmdp.policies.Memory(max_nodes=2))


@pytest.mark.slow
def test_riverswim_published_values_by_nodes() -> None:
    train, test = mmdp.domains.load_published("riverswim")
    solution = mmdp.solve(train, 50, policy_class=mmdp.policies.Memory(max_nodes=5))
    values = solution.details["value_by_nodes"]
    assert (np.array(values) >= [201.41, 201.83, 202.00, 202.08, 202.12]).all()
    assert (
        mmdp.evaluate(test, solution).mean > mmdp.evaluate(test, mmdp.solve(train, 50)).mean + 0.4
    )


@pytest.mark.slow
def test_hiv_gains_nothing_by_memory() -> None:
    train, _ = mmdp.domains.load_published("hiv")
    first, *other_values = mmdp.solve(
        train, 15, policy_class=mmdp.policies.Memory(max_nodes=3)
    ).details["value_by_nodes"]
    assert first <= other_values[-1] <= first * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["riverswim", "population_small", "inventory", "hiv"])
def test_episodes_agree_with_the_value_of_a_solved_controller(name: str) -> None:
    train, test = mmdp.domains.DOMAINS[name](n_train=10, n_test=20)
    policy = mmdp.solve(train, 15, policy_class=mmdp.policies.Memory(max_nodes=3)).policy
    for models in (train, test):
        simulated = mmdp.evaluate(models, policy, n_episodes=500, seed=3)
        assert abs(simulated.mean - mmdp.evaluate(models, policy).mean) <= 3 * simulated.stderr
