"""Policies with nodes: their exact value, how they are followed, merged, charted and refused."""

from __future__ import annotations

import pickle
import tracemalloc
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.kernels import get_backend
from mmdp.core.kernels.controller import Controller
from mmdp.core.policies.controller import format_transitions, parse_transitions
from mmdp.core.testing import make_random_model
from tests.instances import make_random_controller, returns_by_histories


def make_random_policy(
    model: mmdp.MMDP, horizon: int, n_nodes: int, seed: int = 0
) -> mmdp.policies.MemoryPolicy:
    return mmdp.policies.MemoryPolicy.for_model(
        model, make_random_controller(model.problem, horizon, n_nodes, seed)
    )


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_the_exact_value_is_that_of_all_histories(backend: str) -> None:
    for seed in range(12):
        model = make_random_model(seed, n_models=3, n_states=3, horizon=4 if seed % 3 == 0 else 0)
        policy = make_random_policy(model, 4, 1 + seed % 3, seed)
        evaluation = mmdp.evaluate(model, policy, backend=backend)
        np.testing.assert_allclose(
            evaluation.returns, returns_by_histories(policy, model), atol=1e-9
        )


def test_weights_are_joint_probabilities() -> None:
    model = make_random_model(4, n_models=3, n_states=2, n_actions=2, horizon=0)
    policy = make_random_policy(model, 4, 2)
    b = policy.compute_node_weights(model)
    np.testing.assert_allclose(b.sum(axis=(1, 2)), np.tile(model.weights, (4, 1)))


def test_one_node_is_a_markov_policy() -> None:
    model = make_random_model(1, n_states=3, n_actions=2, horizon=0)
    table = mmdp.policies.MarkovPolicy.random(model, 5, seed=2)
    policy = mmdp.policies.MemoryPolicy.for_model(model, Controller.from_tables(table.actions))
    assert policy.node_policy(0) == table
    np.testing.assert_allclose(
        mmdp.evaluate(model, policy).returns, mmdp.evaluate(model, table).returns
    )


def test_every_node_has_the_labels_of_the_policy() -> None:
    policy = mmdp.policies.MemoryPolicy(
        [[[0, 1]]] * 2,
        [[[[1], [1]]]] * 2,
        action_labels=["stay", "go"],
        time_labels={"age": [40, 41]},
    )
    rows = policy.to_frame()
    assert rows["age"].tolist() == [40, 40, 41, 41]
    assert rows["action"].tolist() == ["stay", "go"] * 2
    for node, action in enumerate(("stay", "go")):
        rows = policy.node_policy(node).to_frame()
        assert rows["age"].tolist() == [40, 41]
        assert rows["action"].tolist() == [action] * 2


def test_a_table_becomes_a_policy_with_nodes_without_copies() -> None:
    """Its node transitions, a cell for each pair of states, are allocated once."""
    model = mmdp.MMDP([np.eye(300)[:, None]], np.zeros((300, 1)))
    table = np.zeros((4, 300), np.int32)
    tracemalloc.start()
    policy = mmdp.policies.Memory(2).make_policy(model, table)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * policy.node_transitions.nbytes
    assert policy.node_transitions.shape == (4, 300, 1, 300)
    assert not policy.node_transitions.any()


@pytest.mark.parametrize("name", ["riverswim", "inventory", "hiv", "two_models"])
def test_the_exact_value_agrees_with_episodes(name: str) -> None:
    model = mmdp.domains.DOMAINS[name]().train
    model = model.subset(range(min(8, model.n_models)))
    policy = make_random_policy(model, 10, 3)
    exact = mmdp.evaluate(model, policy)
    simulated = mmdp.evaluate(model, policy, n_episodes=400, seed=1)
    assert abs(simulated.mean - exact.mean) <= 3 * simulated.stderr + 1e-9
    assert simulated.stderr < exact.sd + abs(exact.mean)


def test_plain_and_vectorized_episodes_agree() -> None:
    """The Planner protocol in Python, and the simulator's own arrays."""
    from mmdp.core.simulate import _make_evaluation, _simulate_in_python

    model = make_random_model(5, n_models=2, n_states=3, n_actions=2, horizon=0)
    policy = make_random_policy(model, 6, 3)
    returns = _simulate_in_python(policy, model, 6, 300, 0)
    simulated = _make_evaluation(returns, model, {})
    exact = mmdp.evaluate(model, policy)
    assert (np.abs(simulated.returns - exact.returns) <= 4 * simulated.standard_errors + 1e-9).all()


# ------------------------------------------------------------------ merging
def double_nodes(controller: Controller, rng: np.random.Generator) -> Controller:
    """Every node twice; moves go to either copy."""
    N = controller.n_nodes
    actions = np.concatenate([controller.actions] * 2, axis=2)
    node_transitions = np.concatenate([controller.node_transitions] * 2, axis=2)
    node_transitions = node_transitions + N * rng.integers(0, 2, node_transitions.shape).astype(
        np.uint8
    )
    return Controller(actions, node_transitions, controller.initial_nodes)


def test_nodes_that_act_alike_are_merged() -> None:
    model = make_random_model(3, n_models=3, n_states=3, n_actions=3, horizon=0)
    small = make_random_controller(model.problem, 5, 2, 0)
    duplicated = mmdp.policies.MemoryPolicy.for_model(
        model, double_nodes(small, np.random.default_rng(0))
    )
    merged = duplicated.merge_nodes(model)
    assert duplicated.n_nodes == 4
    assert merged.n_nodes <= 2
    np.testing.assert_allclose(
        mmdp.evaluate(model, merged).returns, mmdp.evaluate(model, duplicated).returns
    )


def test_merging_never_changes_the_returns() -> None:
    for seed in range(40):
        model = make_random_model(seed)
        policy = make_random_policy(model, model.horizon or 3, 1 + seed % 4, seed)
        merged = policy.merge_nodes(model)
        assert merged.n_nodes <= policy.n_nodes
        np.testing.assert_allclose(
            mmdp.evaluate(model, merged).returns, mmdp.evaluate(model, policy).returns, atol=1e-9
        )


# ------------------------------------------------------------------ charts
def make_two_node_policy() -> tuple[mmdp.MMDP, mmdp.policies.MemoryPolicy]:
    model, _ = mmdp.domains.two_models()
    return model, mmdp.solve(model, 9, policy_class=mmdp.policies.Memory(max_nodes=2)).policy


def test_the_flow_chart_names_actions_beliefs_and_transitions() -> None:
    model, policy = make_two_node_policy()
    text = policy.to_flow_chart().text
    P, r = model.transitions, model.rewards
    has_no_choice = (P[:, :, :1] == P).all(axis=(0, 2, 3)) & (r == r[:, :, :1]).all(axis=(0, 2))
    visits = policy.compute_node_weights(model)[
        :, ~has_no_choice
    ]  # elsewhere no action changes anything
    node_shares = visits.sum(axis=(0, 1, 3)) / visits.sum()
    assert f"Node 0 (start)\n  {node_shares[0]:.0%} of the decisions" in text
    assert "at times 2: 1" in text  # action 2 in state 1 tells the models apart
    assert "believes m2 (100%)" in text or "believes m1 (100%)" in text
    assert "→ node 1 (100%): sees" in text


def test_the_flow_chart_shows_actions_of_some_times() -> None:
    """One state, one node: action 0 at six times of eight, then action 1."""
    model = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[1.0, 0.0]], states=["on"], actions=["go", "rest"])
    actions = np.repeat([0, 1], [6, 2])[:, None, None]
    policy = mmdp.policies.MemoryPolicy(actions, np.zeros((8, 1, 1, 1), dtype=int))
    lines = policy.to_flow_chart(model).boxes[0].lines
    assert lines[1:4] == ("time 0 to 7", "go: on", "at times rest: on")
    one_action_policy = mmdp.policies.MemoryPolicy(
        np.r_[actions[:6], actions[:1]], np.zeros((7, 1, 1, 1), dtype=int)
    )
    assert not any("at times" in x for x in one_action_policy.to_flow_chart(model).boxes[0].lines)


@pytest.mark.parametrize("n_nodes", [1, 2, 6])
def test_the_figure_has_every_box_and_arrow(n_nodes: int) -> None:
    """Nothing is drawn outside the picture."""
    model = make_random_model(2, n_models=3, n_states=4, n_actions=2, horizon=0).replace(
        states=["<a>", "b&c", '"d"', "e"]
    )
    flow_chart = make_random_policy(model, 6, n_nodes).to_flow_chart()
    root = ET.fromstring(flow_chart.to_svg())
    texts = ["".join(x.itertext()) for x in root.iter("{http://www.w3.org/2000/svg}text")]
    titles = [x for x in texts if x.startswith("Node ")]
    assert titles == [box.title for box in flow_chart.boxes]
    axis = flow_chart.plot()
    axis.figure.draw_without_rendering()  # type: ignore[union-attr]
    arrows = [x for x in axis.texts if getattr(x, "arrow_patch", None)]
    assert len(arrows) == len(flow_chart.arrows)
    whole = axis.figure.bbox
    for artist in [*axis.texts, *(x.arrow_patch for x in arrows)]:  # type: ignore[attr-defined]
        box = artist.get_window_extent()
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1
        assert whole.y0 <= box.y0 <= box.y1 <= whole.y1


def test_pickling_keeps_the_chart_without_models() -> None:
    model, policy = make_two_node_policy()
    copy = pickle.loads(pickle.dumps(policy))
    assert copy == policy
    assert copy.to_flow_chart() == policy.to_flow_chart()
    without_chart = mmdp.policies.MemoryPolicy(
        policy.actions, policy.node_transitions, policy.initial_nodes
    )
    with pytest.raises(mmdp.InputError, match="a flow chart needs the models"):
        without_chart.to_flow_chart()
    assert without_chart.to_flow_chart(model) == policy.to_flow_chart()


def test_node_transitions_survive_text() -> None:
    rng = np.random.default_rng(0)
    for n in range(4):
        row = rng.integers(0, 4, 30).astype(np.uint8)
        np.testing.assert_array_equal(parse_transitions(format_transitions(row, n), n, 30), row)
    with pytest.raises(mmdp.InputError, match="moves 'x' are not as in"):
        parse_transitions("x", 0, 3)
    with pytest.raises(mmdp.InputError, match="outside the policy's 3 states"):
        parse_transitions("3>1", 0, 3)


# ------------------------------------------------------------------ bad input
def test_arrays_that_do_not_fit_are_refused() -> None:
    actions, node_transitions = np.zeros((2, 3, 2), int), np.zeros((2, 3, 2, 3), int)
    for make_policy, message in (
        (
            lambda: mmdp.policies.MemoryPolicy(actions[0], node_transitions),
            "expected .time steps, states, nodes.",
        ),
        (lambda: mmdp.policies.MemoryPolicy(actions, node_transitions[0]), "moves have shape"),
        (
            lambda: mmdp.policies.MemoryPolicy(actions, node_transitions + 2),
            "moves must be nodes from 0 to 1",
        ),
        (lambda: mmdp.policies.MemoryPolicy(actions - 1, node_transitions), "count from 0"),
        (
            lambda: mmdp.policies.MemoryPolicy(actions, node_transitions, [0, 0, 5]),
            "first must be nodes",
        ),
        (
            lambda: mmdp.policies.MemoryPolicy(actions, node_transitions, state_labels=["a"]),
            "1 state labels",
        ),
    ):
        with pytest.raises(mmdp.InputError, match=message):
            make_policy()


def test_a_policy_for_other_states_is_refused() -> None:
    model = make_random_model(1, n_states=3, n_actions=2, horizon=0)
    other = make_random_model(1, n_states=2, n_actions=2, horizon=0)
    with pytest.raises(mmdp.InputError, match="the policy is for 3 states"):
        mmdp.evaluate(other, make_random_policy(model, 4, 2))


@pytest.mark.parametrize("n_nodes", [0, -1, 2.5, "3", True])
def test_the_number_of_nodes_is_a_positive_integer(n_nodes: Any) -> None:
    with pytest.raises(mmdp.InputError, match="nodes must be a whole number of at least 1"):
        mmdp.policies.Memory(max_nodes=n_nodes)


def test_too_many_nodes_name_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mmdp.domains.riverswim(seed=0).train
    with pytest.raises(mmdp.InputError, match="at most 255 nodes, not 300"):
        mmdp.solve(model, 50, policy_class=mmdp.policies.Memory(max_nodes=300))
    monkeypatch.setattr("mmdp.core.errors.memory_here", lambda: 10**6)
    with pytest.raises(mmdp.InputError, match="3 nodes over 50 decisions would take"):
        mmdp.solve(model, 50, policy_class=mmdp.policies.Memory(max_nodes=3))


def test_backends_do_not_change_the_controller() -> None:
    model = make_random_model(6, horizon=0)
    controller = make_random_controller(model.problem, 4, 3, 0)
    original = controller.copy()
    for backend_name in ("numpy", "numba"):
        backend = get_backend(backend_name)
        b = backend.prepare(model.problem, 4).compute_node_weights(controller)[1]
        backend.prepare(model.problem, 4).compute_node_values(controller, b)
    assert all(np.array_equal(x, y) for x, y in zip(controller, original, strict=True))
