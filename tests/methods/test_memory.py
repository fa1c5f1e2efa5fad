"""CADP over controllers: monotone, one node is CADP, bounded by the tree of beliefs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import kernels
from mmdp.kernels.controller import Controller
from mmdp.objective import as_objective
from mmdp.search.charts import Charts
from mmdp.search.context import Context
from mmdp.testing import all_policies, best_with_memory, random_model, returns_of
from tests.instances import by_histories, drawn, shares


def test_the_trace_never_falls_and_ends_in_the_value() -> None:
    """The value is that of an independent evaluation."""
    for seed in range(80):
        model = random_model(seed)
        found = mmdp.solve(
            model, model.horizon or 3, mmdp.CADP(starts=1), policy=mmdp.Memory(1 + seed % 3),
            seed=seed, backend="numba",
        )  # fmt: skip
        scale = max(1.0, float(np.abs(found.trace).max()))
        assert (np.diff(found.trace) >= -1e-12 * scale).all(), seed
        assert found.trace[-1] == pytest.approx(found.value, abs=1e-9 * scale)
        exact = mmdp.evaluate(found.policy, model, backend="numpy").mean
        assert found.value == pytest.approx(exact, abs=1e-9 * scale)


def test_more_nodes_are_never_worse_and_never_better_than_the_belief() -> None:
    gained = 0
    for seed in range(6):
        model, horizon = random_model(seed, n_models=3, n_states=2, n_actions=2, horizon=0), 4
        values = [
            mmdp.solve(model, horizon, policy=mmdp.Memory(n), backend="numba").value
            for n in (1, 2, 3)
        ]
        most = best_with_memory(model, horizon)
        assert values == sorted(values)
        assert values[-1] <= most + 1e-9 * max(1.0, abs(most))
        gained += values[-1] > values[0] + 1e-9
    assert gained >= 2  # or the test shows nothing


def test_enough_nodes_find_the_optimum_of_a_short_tree() -> None:
    model = random_model(1, n_models=3, n_states=2, n_actions=2, horizon=0, discount=0.9)
    best, markov = best_with_memory(model, 3), mmdp.solve(model, 3).value
    found = mmdp.solve(model, 3, policy=mmdp.Memory(nodes=4)).value
    assert markov < best - 0.05
    assert found == pytest.approx(best, abs=1e-9)


def test_one_node_is_cadp() -> None:
    model = mmdp.domains.riverswim(seed=0, n_train=10).train
    one, markov = mmdp.solve(model, 15, policy=mmdp.Memory(nodes=1)), mmdp.solve(model, 15)
    assert one.value == markov.value
    assert (one.policy.actions[:, :, 0] == markov.policy.actions).all()
    assert list(one.trace) == list(markov.trace)


@pytest.mark.parametrize("horizon", [5, 9, 21, 41])
def test_two_nodes_have_bounded_regret_and_markov_policies_have_not(horizon: int) -> None:
    """The third theorem's example: trying action 2 once costs 1, and then the model is known."""
    model = mmdp.domains.two_models().train
    visits = (horizon + 1) // 2
    two = mmdp.solve(model, horizon, policy=mmdp.Memory(nodes=2))
    assert two.evaluation.bayes_regret == pytest.approx(1.0)
    assert mmdp.solve(model, horizon).evaluation.bayes_regret == pytest.approx(0.5 * visits)


# ---------------------------------------------------------------------- other objectives
def lowest(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A function of a user: nothing is known of it."""
    return np.sort(returns, axis=-1)[..., :2].sum(axis=-1)


OBJECTIVES = ("cvar:0.4", "var:0.4", "evar:0.3", "worst", "mean-cvar:0.4:0.5", "regret:worst")


@pytest.mark.parametrize(
    "objective", [*OBJECTIVES, "entropic:0.5", lowest], ids=lambda x: getattr(x, "__name__", x)
)
def test_memory_never_harms_an_objective(objective: str) -> None:
    goal = as_objective(objective)
    for seed in range(4):
        model, horizon = random_model(seed, n_models=4, n_states=2, n_actions=2, horizon=0), 3
        markov, found = (
            mmdp.solve(
                model, horizon, mmdp.CADP(starts=1), objective=goal, policy=policy, backend="numba"
            )
            for policy in ("markov", mmdp.Memory(2 + seed % 2))
        )
        slack = 1e-9 * (1 + float(np.abs(found.returns).max()))
        assert found.value >= markov.value
        assert (np.diff(found.trace) >= 0).all()
        assert found.trace[-1] == pytest.approx(found.value, abs=slack)
        rho = by_histories(found.policy, model)
        assert found.returns == pytest.approx(rho, abs=slack)
        own = [mmdp.solve(model.subset([m]), horizon).value for m in range(4)]
        value = goal.value(rho - own if goal.regret else rho, model.weights)
        assert found.value == pytest.approx(float(value), abs=10 * slack)


def returns_by_states(parts: tuple[np.ndarray, ...], model: mmdp.MMDP) -> np.ndarray:
    """(M,) returns of actions, moves and first nodes, by a backward recursion in plain loops."""
    actions, moves, first = parts
    (T, S, N), M, g = actions.shape, model.n_models, model.discount
    P, r = (
        np.broadcast_to(x, (T, *x.shape[-k:]))
        for x, k in ((model.transitions, 4), (model.rewards, 3))
    )
    chain = np.eye(M) if model.model_transitions is None else model.model_transitions
    v, states = np.repeat(model.terminal[:, :, None], N, axis=2), np.arange(S)
    for t in reversed(range(T)):
        after, v = np.tensordot(chain, v, 1), np.empty((M, S, N))
        for s, n in np.ndindex(S, N):
            a = actions[t, s, n]
            later = after[:, states, moves[t, s, n]]
            v[:, s, n] = r[t, :, s, a] + g * (P[t, :, s, a] * later).sum(axis=1)
    return v[:, states, first] @ model.initial


def single_changes(policy: mmdp.MemoryPolicy, model: mmdp.MMDP) -> Iterator[tuple[np.ndarray, ...]]:
    """The policy's parts with one action, one move or one first node changed."""
    parts = policy.actions, policy.moves, policy.first
    for i, part in enumerate(parts):
        for place in np.ndindex(part.shape):
            choices = np.flatnonzero(model.allowed[place[1]]) if i == 0 else range(policy.n_nodes)
            for choice in choices:
                if choice != part[place]:
                    changed = part.copy()
                    changed[place] = choice
                    yield (*parts[:i], changed, *parts[i + 1 :])


CLAIMED = [*OBJECTIVES, "mean-cvar:0.1:0.3", "entropic:0.5", "regret:cvar:0.3", lowest]


@pytest.mark.parametrize("seeds", shares(6, 200))
@pytest.mark.parametrize("objective", CLAIMED, ids=lambda x: getattr(x, "__name__", x))
def test_an_ascent_ends_where_no_single_change_improves(objective: Any, seeds: range) -> None:
    goal = as_objective(objective)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        model = random_model(seed, n_models=4, n_states=3, n_actions=2, horizon=3 * (seed % 2))
        if seed % 4 == 2:
            model = drawn(seed, M=3, S=3)
        N, T, S = 2 + seed % 2, 3, model.n_states
        actions = [[rng.choice(np.flatnonzero(open_), N) for open_ in model.allowed]] * T
        start = Controller(
            np.array(actions, np.int32), rng.integers(0, N, (T, S, N, S), np.uint8),
            rng.integers(0, N, S, np.uint8),
        )  # fmt: skip
        context = Context(model, T, kernels.get("numpy"), kind=mmdp.Memory(N), objective=goal)
        end = Charts(context).rise(start, goal)
        assert end.end == "maximum"
        own = mmdp.solve(model, T, "oracle").returns if goal.regret else 0.0
        policy = mmdp.MemoryPolicy(*end.policy)
        rho = np.array([returns_by_states(x, model) for x in single_changes(policy, model)])
        slack = 1e-9 * (1 + float(np.abs(rho).max()))
        assert end.value == pytest.approx(float(goal.value(end.returns - own, model.weights)))
        assert end.returns == pytest.approx(returns_by_states(end.policy, model), abs=slack)
        assert goal.value(rho - own, model.weights).max() <= end.value + slack, seed


def test_a_solve_claims_what_was_tried() -> None:
    model = random_model(0, n_models=4, n_states=3, n_actions=2, horizon=0)
    found = mmdp.solve(
        model, 3, mmdp.CADP(starts=1), objective="regret:worst", policy=mmdp.Memory(2)
    )
    assert found.outcome == "no change of a single action, move or first node improves it"
    rho = np.array([returns_by_states(x, model) for x in single_changes(found.policy, model)])
    regret = mmdp.solve(model, 3, "oracle").returns - rho
    assert -regret.max(axis=1).min() <= found.value + 1e-9


def remembering_the_first(model: mmdp.MMDP) -> mmdp.MMDP:
    """A model whose state has the first state too: over two decisions that is all history."""
    S, eye = model.n_states, np.eye(model.n_states)
    P = np.einsum("ij,msan->misajn", eye, model.transitions)
    return mmdp.MMDP(
        P.reshape(model.n_models, S * S, model.n_actions, S * S), np.tile(model.rewards, (1, S, 1)),
        initial=np.diag(model.initial).ravel(), weights=model.weights, discount=model.discount,
        terminal=np.tile(model.terminal, (1, S)), allowed=np.tile(model.allowed, (S, 1)),
    )  # fmt: skip


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_memory_for_an_objective_against_every_policy_that_remembers(objective: str) -> None:
    goal, best = as_objective(objective), []
    for seed in range(8):
        model = random_model(seed, n_models=4, n_states=2, n_actions=2, horizon=0)
        wider = remembering_the_first(model)
        rho = returns_of(all_policies(wider, 2), wider)
        slack = 1e-8 * (1 + float(np.abs(rho).max()))
        most = goal.value(goal.counted(rho, lambda rho=rho: rho.max(axis=0)), model.weights).max()
        found = mmdp.solve(
            model, 2, policy=mmdp.Memory(2), objective=goal, certify=0.05, backend="numba"
        )
        assert found.bound is not None
        assert found.value <= most + slack
        assert found.bound >= most - slack
        best.append(found.value >= most - slack)
    assert np.mean(best) >= 0.6  # in most, no memory is needed


def test_two_nodes_bound_the_worst_regret() -> None:
    """The third theorem's example: trying action 2 once costs 2 in one model, 0 in the other."""
    model = mmdp.domains.two_models().train
    goal = mmdp.WorstCase().of_regret()
    assert mmdp.solve(model, 21, objective=goal).value == pytest.approx(-8)
    two = mmdp.solve(model, 21, objective=goal, policy=mmdp.Memory(2), certify=0.1)
    assert two.value == pytest.approx(-2)
    assert two.status is mmdp.Status.LOCAL_OPTIMUM
    assert two.certificate is not None
    assert two.certificate.bounds == "history"
    assert -2 <= two.certificate.value <= 0
    with pytest.raises(mmdp.InputError, match="not monotone"):
        mmdp.solve(model, 5, objective=mmdp.Custom(lowest, monotone=False), certify=1)


def test_limits_and_seeds_are_respected() -> None:
    model = mmdp.domains.riverswim(seed=0, n_train=10).train
    kind, seen = mmdp.Memory(nodes=3), []
    found = mmdp.solve(model, 15, policy=kind, seed=1, callback=seen.append)
    assert mmdp.solve(model, 15, policy=kind, seed=1).policy == found.policy
    assert [x.best for x in seen] == sorted(x.best for x in seen)
    assert found.details["value_by_nodes"][-1] == pytest.approx(found.value)
    stopped = mmdp.solve(model, 15, policy=kind, seed=1, time_limit=1e-9)
    assert stopped.status is mmdp.Status.TIME_LIMIT
    assert isinstance(stopped.policy, mmdp.MemoryPolicy)
    assert stopped.value == pytest.approx(mmdp.evaluate(stopped, model).mean)


def test_an_interrupt_in_the_middle_keeps_the_best_controller() -> None:
    model = mmdp.domains.riverswim(seed=0, n_train=10).train
    markov = mmdp.solve(model, 15).value

    def interrupt(progress: mmdp.Progress) -> None:
        if progress.best > markov + 1e-9:
            raise KeyboardInterrupt

    found = mmdp.solve(model, 15, policy=mmdp.Memory(nodes=2), callback=interrupt)
    assert found.status is mmdp.Status.INTERRUPTED
    assert found.policy.n_nodes == 2
    assert found.value == pytest.approx(mmdp.evaluate(found, model).mean)


def test_other_methods_name_the_one_that_can() -> None:
    model = mmdp.domains.two_models().train
    with pytest.raises(mmdp.InputError, match="cannot make a memory policy; choose method='cadp'"):
        mmdp.solve(model, 5, "wsu", policy=mmdp.Memory(nodes=2))


@pytest.mark.slow
def test_riverswim_published_values_by_nodes() -> None:
    train, test = mmdp.domains.published("riverswim")
    found = mmdp.solve(train, 50, policy=mmdp.Memory(nodes=5))
    values = found.details["value_by_nodes"]
    assert (np.array(values) >= [201.41, 201.83, 202.00, 202.08, 202.12]).all()
    assert mmdp.evaluate(found, test).mean > mmdp.evaluate(mmdp.solve(train, 50), test).mean + 0.4


@pytest.mark.slow
def test_hiv_gains_nothing_by_memory() -> None:
    train, _ = mmdp.domains.published("hiv")
    first, *others = mmdp.solve(train, 15, policy=mmdp.Memory(nodes=3)).details["value_by_nodes"]
    assert first <= others[-1] <= first * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["riverswim", "population_small", "inventory", "hiv"])
def test_episodes_agree_with_the_value_of_a_solved_controller(name: str) -> None:
    train, test = mmdp.domains.DOMAINS[name](n_train=10, n_test=20)
    policy = mmdp.solve(train, 15, policy=mmdp.Memory(nodes=3)).policy
    for models in (train, test):
        seen = mmdp.evaluate(policy, models, episodes=500, seed=3)
        assert abs(seen.mean - mmdp.evaluate(policy, models).mean) <= 3 * seen.stderr
