"""Policies with nodes: their exact value, how they are followed, merged, charted and refused."""

from __future__ import annotations

import pickle
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.kernels import get
from mmdp.kernels.controller import Controller
from mmdp.policy.memory import moves_from_words, moves_in_words
from mmdp.testing import random_controller, random_model
from tests.instances import by_histories


def random_policy(model: mmdp.MMDP, horizon: int, nodes: int, seed: int = 0) -> mmdp.MemoryPolicy:
    return mmdp.MemoryPolicy.for_model(
        model, random_controller(model.problem, horizon, nodes, seed)
    )


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_the_exact_value_is_that_of_all_histories(backend: str) -> None:
    for seed in range(12):
        model = random_model(seed, n_models=3, n_states=3, horizon=4 if seed % 3 == 0 else 0)
        policy = random_policy(model, 4, 1 + seed % 3, seed)
        found = mmdp.evaluate(policy, model, backend=backend)
        np.testing.assert_allclose(found.returns, by_histories(policy, model), atol=1e-9)


def test_weights_and_beliefs_are_probabilities_that_bayes_rule_gives() -> None:
    model = random_model(4, n_models=3, n_states=2, n_actions=2, horizon=0)
    policy = random_policy(model, 4, 2)
    b = policy.weights(model)
    np.testing.assert_allclose(b.sum(axis=(1, 2)), np.tile(model.weights, (4, 1)))
    beliefs = policy.beliefs(model)
    joint = b.sum(axis=(0, 1))
    np.testing.assert_allclose(beliefs, joint / joint.sum(axis=1, keepdims=True))


def test_one_node_is_a_markov_policy() -> None:
    model = random_model(1, n_states=3, n_actions=2, horizon=0)
    table = mmdp.MarkovPolicy.random(model, 5, seed=2)
    policy = mmdp.MemoryPolicy.for_model(model, Controller.of_tables(table.actions))
    assert policy.node(0) == table
    np.testing.assert_allclose(
        mmdp.evaluate(policy, model).returns, mmdp.evaluate(table, model).returns
    )


@pytest.mark.parametrize("name", ["riverswim", "inventory", "hiv", "two_models"])
def test_the_exact_value_is_what_episodes_say(name: str) -> None:
    model = mmdp.domains.DOMAINS[name]().train
    model = model.subset(range(min(8, model.n_models)))
    policy = random_policy(model, 10, 3)
    exact = mmdp.evaluate(policy, model)
    seen = mmdp.evaluate(policy, model, episodes=400, seed=1)
    assert abs(seen.mean - exact.mean) <= 3 * seen.stderr + 1e-9
    assert seen.stderr < exact.sd + abs(exact.mean)


def test_step_by_step_and_side_by_side_episodes_agree() -> None:
    """The Planner protocol in Python, and the simulator's own arrays."""
    from mmdp.simulate import _simulate_plainly

    model = random_model(5, n_models=2, n_states=3, n_actions=2, horizon=0)
    policy = random_policy(model, 6, 3)
    slow = _simulate_plainly(policy, model, 6, 300, 0, {})
    exact = mmdp.evaluate(policy, model)
    assert (np.abs(slow.returns - exact.returns) <= 4 * slow.errors + 1e-9).all()


# ------------------------------------------------------------------ merging
def doubled(controller: Controller, rng: np.random.Generator) -> Controller:
    """Every node twice; moves go to either copy."""
    N = controller.n_nodes
    actions = np.concatenate([controller.actions] * 2, axis=2)
    moves = np.concatenate([controller.moves] * 2, axis=2)
    moves = moves + N * rng.integers(0, 2, moves.shape).astype(np.uint8)
    return Controller(actions, moves, controller.first)


def test_nodes_that_act_alike_are_merged() -> None:
    model = random_model(3, n_models=3, n_states=3, n_actions=3, horizon=0)
    small = random_controller(model.problem, 5, 2, 0)
    twins = mmdp.MemoryPolicy.for_model(model, doubled(small, np.random.default_rng(0)))
    merged = twins.merged(model)
    assert twins.n_nodes == 4
    assert merged.n_nodes <= 2
    np.testing.assert_allclose(
        mmdp.evaluate(merged, model).returns, mmdp.evaluate(twins, model).returns
    )


def test_merging_never_changes_the_returns() -> None:
    for seed in range(40):
        model = random_model(seed)
        policy = random_policy(model, model.horizon or 3, 1 + seed % 4, seed)
        merged = policy.merged(model)
        assert merged.n_nodes <= policy.n_nodes
        np.testing.assert_allclose(
            mmdp.evaluate(merged, model).returns, mmdp.evaluate(policy, model).returns, atol=1e-9
        )


# ------------------------------------------------------------------ charts
def chart() -> tuple[mmdp.MMDP, mmdp.MemoryPolicy]:
    model, _ = mmdp.domains.two_models()
    return model, mmdp.solve(model, 9, policy=mmdp.Memory(nodes=2)).policy


def test_a_chart_says_what_is_done_believed_and_what_leads_on() -> None:
    model, policy = chart()
    words = policy.flow_chart().words
    P, r = model.transitions, model.rewards
    same = (P[:, :, :1] == P).all(axis=(0, 2, 3)) & (r == r[:, :, :1]).all(axis=(0, 2))
    visits = policy.weights(model)[:, ~same]  # elsewhere no action changes anything
    share = visits.sum(axis=(0, 1, 3)) / visits.sum()
    assert f"Node 0 (start)\n  {share[0]:.0%} of the decisions" in words
    assert "at time 0 2: 1" in words  # action 2 in state 1 tells the models apart
    assert "believes m2 (100%)" in words or "believes m1 (100%)" in words
    assert "→ node 1 (100%): sees" in words


def test_a_chart_tells_what_is_done_at_some_times_only() -> None:
    """One state, one node: action 0 at six times of eight, then action 1."""
    model = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[1.0, 0.0]], states=["on"], actions=["go", "rest"])
    actions = np.repeat([0, 1], [6, 2])[:, None, None]
    policy = mmdp.MemoryPolicy(actions, np.zeros((8, 1, 1, 1), dtype=int))
    lines = policy.flow_chart(model).boxes[0].lines
    assert lines[1:3] == ("go: on", "at times rest: on 25%")
    once = mmdp.MemoryPolicy(np.r_[actions[:6], actions[:1]], np.zeros((7, 1, 1, 1), dtype=int))
    assert not any("at times" in x for x in once.flow_chart(model).boxes[0].lines)


def test_the_picture_holds_all_boxes_and_bends() -> None:
    """Nothing is drawn outside the picture, and no more than some room is left around it."""
    for nodes in range(1, 6):
        model = random_model(nodes, n_models=3, n_states=4, n_actions=2, horizon=0)
        root = ET.fromstring(random_policy(model, 6, nodes).flow_chart().svg())
        _, top, _, height = map(float, str(root.get("viewBox")).split())
        ys = [
            y
            for path in root.iter("{http://www.w3.org/2000/svg}path")
            if path.get("marker-end")
            for y in _on_curve(str(path.get("d")))
        ]
        for box in root.iter("{http://www.w3.org/2000/svg}rect"):
            y = float(str(box.get("y")))
            ys += [y, y + float(str(box.get("height")))] if box.get("stroke") else []
        assert top <= min(ys) <= top + 20, nodes
        assert top + height - 20 <= max(ys) <= top + height, nodes


def _on_curve(d: str) -> list[float]:
    """Heights along a quadratic curve ``Mx yQx y x y``."""
    _, a, _, c, _, b = map(float, d.replace("M", " ").replace("Q", " ").split())
    u = np.linspace(0, 1, 21)
    return ((1 - u) ** 2 * a + 2 * u * (1 - u) * c + u**2 * b).tolist()


@pytest.mark.parametrize("nodes", [1, 2, 6])
def test_the_picture_has_every_box_and_arrow_and_escapes_labels(nodes: int) -> None:
    model = random_model(2, n_models=3, n_states=4, n_actions=2, horizon=0).replace(
        states=["<a>", "b&c", '"d"', "e"]
    )
    drawn = random_policy(model, 6, nodes).flow_chart()
    root = ET.fromstring(drawn.svg())
    texts = ["".join(x.itertext()) for x in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [x for x in texts if x.startswith("Node ")] == [box.head for box in drawn.boxes]
    paths = [x for x in root.iter("{http://www.w3.org/2000/svg}path") if x.get("marker-end")]
    assert len(paths) == len(drawn.arrows)
    dot = drawn.dot()
    assert dot.count("->") == len(drawn.arrows)
    assert dot.count('"') - dot.count('\\"') == 2 * (1 + 2 * nodes + 2 * len(drawn.arrows))


def test_a_policy_travels_with_its_chart_and_without_its_models() -> None:
    model, policy = chart()
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert again.flow_chart() == policy.flow_chart()
    alone = mmdp.MemoryPolicy(policy.actions, policy.moves, policy.first)
    with pytest.raises(mmdp.InputError, match="a flow chart needs the models"):
        alone.flow_chart()
    assert alone.flow_chart(model) == policy.flow_chart()


def test_moves_as_text_come_back() -> None:
    rng = np.random.default_rng(0)
    for n in range(4):
        row = rng.integers(0, 4, 30).astype(np.uint8)
        np.testing.assert_array_equal(moves_from_words(moves_in_words(row, n), n, 30), row)
    with pytest.raises(mmdp.InputError, match="moves 'x' are not as in"):
        moves_from_words("x", 0, 3)
    with pytest.raises(mmdp.InputError, match="outside the policy's 3 states"):
        moves_from_words("3>1", 0, 3)


# ------------------------------------------------------------------ bad input
def test_arrays_that_do_not_fit_are_refused() -> None:
    actions, moves = np.zeros((2, 3, 2), int), np.zeros((2, 3, 2, 3), int)
    for made, told in (
        (lambda: mmdp.MemoryPolicy(actions[0], moves), "expected .time steps, states, nodes."),
        (lambda: mmdp.MemoryPolicy(actions, moves[0]), "moves have shape"),
        (lambda: mmdp.MemoryPolicy(actions, moves + 2), "moves must be nodes from 0 to 1"),
        (lambda: mmdp.MemoryPolicy(actions - 1, moves), "whole numbers"),
        (lambda: mmdp.MemoryPolicy(actions, moves, [0, 0, 5]), "first must be nodes"),
        (lambda: mmdp.MemoryPolicy(actions, moves, state_labels=["a"]), "1 state labels"),
    ):
        with pytest.raises(mmdp.InputError, match=told):
            made()


def test_a_policy_for_other_states_is_refused() -> None:
    model = random_model(1, n_states=3, n_actions=2, horizon=0)
    other = random_model(1, n_states=2, n_actions=2, horizon=0)
    with pytest.raises(mmdp.InputError, match="the policy is for 3 states"):
        mmdp.evaluate(random_policy(model, 4, 2), other)


@pytest.mark.parametrize("nodes", [0, -1, 2.5, "3", True])
def test_a_number_of_nodes_is_whole_and_positive(nodes: Any) -> None:
    with pytest.raises(mmdp.InputError, match="nodes must be a whole number of at least 1"):
        mmdp.Memory(nodes=nodes)


def test_too_many_nodes_name_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mmdp.domains.riverswim(seed=0).train
    with pytest.raises(mmdp.InputError, match="at most 255 nodes, not 300"):
        mmdp.solve(model, 50, policy=mmdp.Memory(nodes=300))
    monkeypatch.setattr("mmdp.support.memory_here", lambda: 10**6)
    with pytest.raises(mmdp.InputError, match="3 nodes over 50 decisions would take"):
        mmdp.solve(model, 50, policy=mmdp.Memory(nodes=3))


def test_the_kernels_keep_the_controller_they_are_given() -> None:
    model = random_model(6, horizon=0)
    controller = random_controller(model.problem, 4, 3, 0)
    kept = controller.copy()
    for backend in ("numpy", "numba"):
        kernel = get(backend)
        b = kernel.plan(model.problem, 4).node_weights(controller)[1]
        kernel.plan(model.problem, 4).node_values(controller, b)
    assert all(np.array_equal(x, y) for x, y in zip(controller, kept, strict=True))
