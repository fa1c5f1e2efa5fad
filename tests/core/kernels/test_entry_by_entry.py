"""Compiled code that every backend shares, against plain loops: episodes, controllers, bounds."""

from __future__ import annotations

import numpy as np
import pytest

import mmdp
from mmdp.core.kernels import get_backend
from mmdp.core.kernels.cpu.backend import NumbaBackend
from mmdp.core.kernels.cpu.tree_search import TreeSearch
from mmdp.core.kernels.planner import TREE
from mmdp.core.kernels.problem import ModelPairs, at_time
from mmdp.core.testing import make_random_event_model, make_random_model, make_switching
from tests.core.kernels.instances import make_planners
from tests.core.kernels.reference import (
    Numbers,
    PlainSearch,
    evaluate_controller_plainly,
    fill_occupancy_plainly,
    find_direction_plainly,
    simulate_plainly,
    solve_pair_plainly,
)
from tests.instances import make_random_controller, seed_ranges


def make_model(kind: str, seed: int) -> mmdp.MMDP:
    sizes = {"n_models": 4, "n_states": 4, "n_actions": 3}
    if kind.startswith("events"):
        model = make_random_event_model(seed)
    else:
        model = make_random_model(seed, storage=("dense", "sparse")[seed % 2], **sizes)
    if kind.endswith("switching"):
        return make_switching(model, seed)
    if kind.endswith("own initial"):
        initial = np.random.default_rng(seed).dirichlet(np.ones(model.n_states), model.n_models)
        return model.replace(
            initial=initial * (initial > 0.1) / (initial * (initial > 0.1)).sum(1, keepdims=True)
        )
    return model


KINDS = ["tables", "events", "tables, switching", "events, switching", "tables, own initial"]


def assert_close(actual: object, expected: object) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("seeds", seed_ranges(2, 20))
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_and_searches_equal_plain_loops(kind, seeds):
    """Every type of planner, in its own models and in others."""
    for seed in seeds:
        model = make_model(kind, seed)
        x, horizon = model.problem, model.horizon or 3
        other = make_random_model(
            seed + 9,
            n_models=3,
            n_states=x.n_states,
            n_actions=x.n_actions,
            has_masks=False,
            horizon=horizon,
        ).problem
        backend = get_backend("numpy") if seed % 2 else NumbaBackend(2, min_parallel_work=0)
        planners = make_planners(x, horizon, seed)
        for name, planner in planners.items():
            for env in (x, other) if kind == "tables" else (x,):
                has_own_rewards = seed % 2 and env.storage.format != "events"
                rewards = (
                    np.random.default_rng(seed).normal(size=env.p.shape)
                    if has_own_rewards
                    else None
                )
                n = 2 if planner.mode == TREE else 5
                actual = backend.prepare(env, horizon).simulate(rewards, planner, n, seed - 5)
                expected = simulate_plainly(env, horizon, rewards, planner, n, seed - 5)
                assert_close(actual[0], expected[0])
                assert (actual[1] == expected[1]).all(), name
            if planner.mode == TREE:
                for s in range(x.n_states):
                    search = PlainSearch(planner, horizon, Numbers(seed + s, 1 << 32))
                    action = TreeSearch(planner, horizon).choose_action(0, s, x.weights, seed + s)
                    assert action == search.choose(0, s, x.weights)


@pytest.mark.parametrize("seeds", seed_ranges(3, 30))
@pytest.mark.parametrize("kind", KINDS)
def test_controllers_equal_plain_loops(kind, seeds):
    """Their values, weights and q; every pass that improves one does so, up to a fixed point."""
    for seed in seeds:
        model = make_model(kind, seed)
        x, horizon = model.problem, model.horizon or 3
        prepared = NumbaBackend(1 + seed % 2, min_parallel_work=0).prepare(x, horizon)
        controller = make_random_controller(x, horizon, 1 + seed % 3, seed)
        values, b = evaluate_controller_plainly(x, horizon, controller)
        result = prepared.compute_node_values(controller, keep_values=True)
        assert_close(result.values, values)
        assert_close(prepared.compute_node_weights(controller)[1], b)
        first = values[0][np.arange(x.n_states), controller.initial_nodes]
        assert_close(result.returns, x.compute_returns(first))
        q = prepared.compute_node_q(0, values[1], controller)
        states, nodes = np.ogrid[: x.n_states, : controller.n_nodes]
        assert_close(q[states, nodes, controller.actions[0]], values[0])
        states, next_states, moves = prepared.compute_transition_values(0, values[1], controller, 0)
        expected = np.asarray(x.r[0])[np.arange(x.n_states), controller.actions[0, :, 0]].copy()
        np.add.at(
            expected,
            states,
            moves[np.arange(len(states)), controller.node_transitions[0, states, 0, next_states]],
        )
        assert_close(expected, values[0][:, 0])
        if x.model_transitions is not None:
            continue  # a sum over models at the start is no return of these
        returns = [result.returns @ x.weights]
        for sweep in range(6):
            if sweep % 2:
                v = prepared.compute_node_values(controller, keep_values=True).values
                controller = prepared.compute_node_weights(controller, v)[0]
            else:
                b = prepared.compute_node_weights(controller)[1]
                controller = prepared.compute_node_values(controller, b).controller
            returns.append(prepared.compute_node_values(controller).returns @ x.weights)
        assert (np.diff(returns) >= -1e-9 * np.abs(returns).max()).all()


@pytest.mark.parametrize("seeds", seed_ranges(3, 30))
def test_no_single_change_beats_what_a_pass_over_nodes_chose(seeds):
    """At the last time but one, after a backward pass with exact weights."""
    for seed in seeds:
        x, horizon = (
            make_random_model(seed, n_models=3, n_states=3, n_actions=2, horizon=2).problem,
            2,
        )
        prepared = get_backend("numpy").prepare(x, horizon)
        controller = make_random_controller(x, horizon, 2, seed)
        b = prepared.compute_node_weights(controller)[1]
        improved = prepared.compute_node_values(controller, b).controller
        fixed = improved._replace(initial_nodes=controller.initial_nodes)
        best = prepared.compute_node_values(fixed).returns @ x.weights
        for s, n, a in np.ndindex(x.n_states, 2, x.n_actions):
            if not at_time(x.allowed, 0)[s, a]:
                continue
            for node in range(2):
                for z in range(x.n_states):
                    changed = fixed.copy()
                    changed.actions[0, s, n] = a
                    changed.node_transitions[0, s, n, z] = node
                    assert prepared.compute_node_values(
                        changed
                    ).returns @ x.weights <= best + 1e-9 * max(1, abs(best))


@pytest.mark.parametrize("seeds", seed_ranges(2, 12))
@pytest.mark.parametrize("kind", ["tables", "events", "tables, own initial"])
def test_pairs_equal_plain_loops(kind, seeds):
    for seed in seeds:
        model = make_model(kind, seed)
        x, horizon = model.problem, model.horizon or 3
        prepared = NumbaBackend(1 + seed % 2, min_parallel_work=0).prepare(x, horizon)
        rng = np.random.default_rng(seed)
        y = rng.normal(size=(horizon, x.n_states, x.n_actions, x.n_models))
        order = rng.permutation(x.n_models)
        halves = np.array_split(order[: x.n_models // 2 * 2], 2)
        for pairs in (ModelPairs(*halves, 3, 0.5), ModelPairs(order, order, 0, 1.0)):
            for prices in (None, y):
                u = np.zeros_like(y)
                values = prepared.compute_pair_optima(pairs, prices, u)
                if prices is None:
                    assert_close(prepared.compute_pair_optima(pairs), values)
                for i, j, value in zip(pairs.first, pairs.second, values, strict=True):
                    expected = solve_pair_plainly(x, horizon, i, j, pairs.grid, prices)
                    assert_close(value, expected[0])
                    occupancy = expected[1] if i != j else expected[1].sum(axis=3, keepdims=True)
                    assert_close(u[..., [i, j] if i != j else [i]], occupancy)


@pytest.mark.parametrize("seeds", seed_ranges(4, 40))
def test_occupancies_and_directions_equal_plain_loops(seeds):
    for seed in seeds:
        model = make_model(("tables", "events")[seed % 2], seed)
        x, horizon = model.problem, model.horizon or 3
        prepared = NumbaBackend(2, min_parallel_work=0).prepare(x, horizon)
        rng = np.random.default_rng(seed)
        shape = (horizon, x.n_states, x.n_actions, x.n_models)
        y = (
            rng.normal(size=shape)
            * (rng.random(shape) < 0.5)
            * (rng.random((*shape[:2], 1, 1)) < 0.7)
        )
        u, d = np.zeros(shape), rng.normal(size=shape)
        prepared.compute_weighted_optima(y, u)
        actions = (
            prepared.replace(rewards=np.asarray(x.r) - y)
            .backward("per_model", keep=("actions",))
            .actions
        )
        assert_close(u, fill_occupancy_plainly(x, horizon, actions))
        reach = prepared.compute_visit_bounds()
        best = prepared.compute_common_term(y, reach)[1]
        expected = find_direction_plainly(x, y, u, best, reach, 0.7, d)
        product = prepared.update_direction(y, u, best, reach, 0.7, d)
        assert_close(d, expected[0])
        assert_close(product, expected[1])
