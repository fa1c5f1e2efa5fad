"""Freedom against the enumeration of everything that people could pick."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp import InputError
from mmdp.core.testing import compute_returns, make_random_model
from tests.instances import (
    HYPOTHESIS_SETTINGS,
    SEEDS,
    list_policies,
    make_switching_model,
    make_tiny_model,
    n_examples,
    returns_by_paths,
)

OBJECTIVES = ["mean", "cvar:0.4", "worst", "entropic:0.5", "var:0.5", "regret:mean"]


def compute_objective_value(policy: Any, model: mmdp.MMDP, objective: str) -> float:
    return mmdp.evaluate(model, policy).value(objective)


@settings(max_examples=n_examples(15), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_policies_of_the_sets_keep_the_guaranteed_value(seed: int) -> None:
    model, T = make_tiny_model(seed, max_policies=200)
    if seed % 4 == 0:  # the models begin apart
        rng, size = np.random.default_rng(seed), (model.n_models, model.n_states)
        model = model.replace(initial=rng.dirichlet(np.ones(size[1]), size=size[0]))
    objective, tolerance = OBJECTIVES[seed % len(OBJECTIVES)], (0.0, 0.05, 0.3)[seed % 3]
    policy = mmdp.solve(model, T, "wsu").policy
    near_optimal = mmdp.measures.near_optimal_actions(model, policy, tolerance, objective=objective)
    tol = 1e-9 * (1 + abs(near_optimal.value))
    assert near_optimal.value == pytest.approx(compute_objective_value(policy, model, objective))
    assert (
        near_optimal.is_interchangeable
        & ~np.broadcast_to(model.allowed, near_optimal.is_interchangeable.shape)
    ).sum() == 0
    assert near_optimal.is_interchangeable[
        (*np.indices(policy.actions.shape), policy.actions)
    ].all()
    # every policy of the sets, by pushing distributions forward
    choices = [
        np.flatnonzero(row) for row in near_optimal.is_interchangeable.reshape(-1, model.n_actions)
    ]
    policies_in_sets = np.array(list(product(*choices))).reshape(-1, T, model.n_states)
    oracle_returns = mmdp.evaluate(model, policy).oracle
    risk_measure = mmdp.objectives.as_objective(objective)
    returns = risk_measure.relative_returns(
        compute_returns(model, policies_in_sets), lambda: oracle_returns
    )
    min_value = risk_measure.value(returns, model.weights).min()
    assert (
        near_optimal.value - near_optimal.max_loss - tol
        <= near_optimal.guaranteed_value
        <= min_value + tol
    )
    if model.n_models == 1:  # then the pass is exact
        assert near_optimal.guaranteed_value == pytest.approx(min_value)


@settings(max_examples=n_examples(10), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_loss_of_changing_one_action(seed: int) -> None:
    model, T = make_tiny_model(seed, max_policies=200)
    objective = OBJECTIVES[seed % len(OBJECTIVES)]
    policy = mmdp.solve(model, T).policy
    near_optimal = mmdp.measures.near_optimal_actions(model, policy, 0.02, objective=objective)
    for t, s, a in np.ndindex(*near_optimal.loss.shape):
        if not model.allowed[s, a]:
            assert math.isnan(near_optimal.loss[t, s, a])
            continue
        changed_actions = policy.actions.copy()
        changed_actions[t, s] = a
        loss = near_optimal.value - compute_objective_value(
            mmdp.policies.MarkovPolicy.for_model(model, changed_actions), model, objective
        )
        assert near_optimal.loss[t, s, a] == pytest.approx(
            loss, abs=1e-9 * (1 + abs(near_optimal.value))
        )


@pytest.mark.parametrize("objective_name", ["mean", "worst"])
def test_switching_models(objective_name: str) -> None:
    model, T = make_switching_model(3), 2
    policy = mmdp.solve(model, T).policy
    near_optimal = mmdp.measures.near_optimal_actions(model, policy, 0.1, objective=objective_name)
    policies_in_sets = [
        x
        for x in list_policies(model, T)
        if near_optimal.is_interchangeable[(*np.indices(x.shape), x)].all()
    ]
    objective = mmdp.objectives.as_objective(objective_name)
    values = [objective.value(returns_by_paths(model, x), model.weights) for x in policies_in_sets]
    assert near_optimal.guaranteed_value <= min(values) + 1e-12
    assert min(values) >= near_optimal.value - near_optimal.max_loss - 1e-12
    changed_actions = policy.actions.copy()
    changed_actions[1, 0] = 1 - changed_actions[1, 0]
    loss = near_optimal.value - objective.value(
        returns_by_paths(model, changed_actions), model.weights
    )
    assert near_optimal.loss[1, 0, changed_actions[1, 0]] == pytest.approx(loss)


@pytest.mark.parametrize("seed", range(4))
def test_stationary_policies(seed: int) -> None:
    model = make_random_model(seed, n_models=3, n_states=3, n_actions=3, horizon=0, discount=0.8)
    if seed % 2:  # the models begin apart
        model = model.replace(initial=np.random.default_rng(seed).dirichlet(np.ones(3), size=3))
    solution = mmdp.solve(model, math.inf, objective=OBJECTIVES[seed])
    near_optimal = mmdp.measures.near_optimal_actions(model, solution, 0.1)
    assert (near_optimal.objective, near_optimal.value) == (
        solution.objective,
        pytest.approx(solution.value),
    )
    action_rows = [np.array(x) for x in product(*(np.flatnonzero(row) for row in model.allowed))]
    for actions in action_rows:
        value = compute_objective_value(
            mmdp.policies.StationaryPolicy(actions, n_actions=3), model, OBJECTIVES[seed]
        )
        if near_optimal.is_interchangeable[0, np.arange(3), actions].all():
            assert (
                value
                >= near_optimal.guaranteed_value - 1e-9
                >= near_optimal.value - near_optimal.max_loss - 2e-9
            )
        changed_ids = np.flatnonzero(actions != solution.policy.actions)
        if len(changed_ids) == 1:
            loss = near_optimal.loss[0, changed_ids[0], actions[changed_ids[0]]]
            assert loss == pytest.approx(near_optimal.value - value, abs=1e-9)
    assert list(near_optimal.to_frame()) == [
        "state",
        "action",
        "loss",
        "near_optimal_alone",
        "interchangeable",
    ]


def test_stationary_policies_without_a_discount() -> None:
    P = [[[[0.5, 0.25, 0.25]] * 2, [[0.0, 0.5, 0.5]] * 2, [[0.0, 0.0, 1.0]] * 2]]
    model = mmdp.MMDP(P, [[1.0, 1.0], [2.0, 1.0], [0.0, 0.0]], initial=[1, 0, 0])
    near_optimal = mmdp.measures.near_optimal_actions(model, mmdp.solve(model, math.inf), 0.0)
    # 2 visits to the first state, 1 to the second and 1 to the last; the second alone decides
    np.testing.assert_allclose(near_optimal.visit_probs, [[0.0, 0.25, 0.0]])
    assert near_optimal.share_interchangeable == 0.0


@pytest.mark.parametrize("objective", ["mean", "cvar:0.5"])
def test_finite_state_controllers(objective: str) -> None:
    sizes = {"n_models": 3, "n_states": 2, "n_actions": 2, "horizon": 0}
    model, rng = (
        make_random_model(4, **sizes, has_masks=False, discount=0.9),
        np.random.default_rng(1),
    )
    shape = (2, 2, 2)  # times, states, nodes
    policy = mmdp.policies.MemoryPolicy(
        rng.integers(2, size=shape), rng.integers(2, size=(*shape, 2)), [0, 1], n_actions=2
    )
    near_optimal = mmdp.measures.near_optimal_actions(model, policy, 0.1, objective=objective)
    assert near_optimal.loss.shape == (*policy.actions.shape, 2)
    n_in_sets = 0
    for flat_actions in product(range(2), repeat=policy.actions.size):
        actions = np.array(flat_actions).reshape(policy.actions.shape)
        value = compute_objective_value(
            mmdp.policies.MemoryPolicy(
                actions, policy.node_transitions, policy.initial_nodes, n_actions=2
            ),
            model,
            objective,
        )
        if np.take_along_axis(near_optimal.is_interchangeable, actions[..., None], axis=3).all():
            n_in_sets += 1
            assert (
                value
                >= near_optimal.guaranteed_value - 1e-12
                >= near_optimal.value - near_optimal.max_loss - 2e-12
            )
        changed_ids = np.argwhere(actions != policy.actions)
        if len(changed_ids) == 1:
            index = (*changed_ids[0], actions[tuple(changed_ids[0])])
            assert near_optimal.loss[index] == pytest.approx(near_optimal.value - value, abs=1e-12)
    assert n_in_sets == np.prod(near_optimal.is_interchangeable.sum(axis=3)) > 1
    assert list(near_optimal.to_frame())[:4] == ["time", "state", "node", "action"]


COMPARATORS = {"resting": mmdp.policies.MarkovPolicy([[2]] * 2, n_actions=3)}  # earns nothing


def make_small_model() -> mmdp.MMDP:
    """Two years of work: the tools differ by 1/32 at most, resting earns nothing."""
    rewards = [[[4.0, 3.96875, 0.0]], [[4.0, 4.0, 0.0]]]
    return mmdp.MMDP([[[[1.0]] * 3]] * 2, rewards, actions=["saw", "axe", "rest"])


def test_small_losses_add_up() -> None:
    model = make_small_model()
    solution = mmdp.solve(model, 2)
    near_optimal = mmdp.measures.near_optimal_actions(
        model, solution, 0.0025, comparators=COMPARATORS
    )  # of 8: once costs 1/64, twice 1/32
    assert near_optimal.loss[:, 0, 1] == pytest.approx([1 / 64] * 2)
    assert (near_optimal.share_interchangeable, near_optimal.share_near_optimal_alone) == (0.0, 1.0)
    assert (
        mmdp.measures.near_optimal_actions(
            model, solution, 0.004, comparators=COMPARATORS
        ).share_interchangeable
        == 1.0
    )
    frame = mmdp.measures.near_optimal_actions(
        model, solution, 0.004, comparators=COMPARATORS
    ).to_frame()
    assert frame["action"].tolist() == ["saw", "axe", "rest"] * 2
    assert frame["interchangeable"].tolist() == [True, True, False] * 2
    assert near_optimal.description == (
        "no decision is free if at most 0.0200 "
        "(0.25% of what is at stake, 8 between resting and this policy) may be lost"
    )
    default_comparator = mmdp.measures.near_optimal_actions(
        model, solution, 0.6
    )  # always saw itself; the next best is axe
    assert default_comparator.at_stake == mmdp.measures.ValueAtStake(1 / 32, "always axe")
    assert (
        default_comparator.share_interchangeable,
        default_comparator.share_near_optimal_alone,
    ) == (0.0, 1.0)
    indifferent = mmdp.measures.near_optimal_actions(
        model.replace(rewards=[[[4.0, 4.0, 4.0]]] * 2), solution
    )
    assert indifferent.description == "all decisions are free: their actions are equally good"


def test_policy_table_lists_near_optimal_actions() -> None:
    base_model = make_small_model()
    model = base_model.replace(rewards=[base_model.rewards, [[[0.0, 0.0, 4.0]]] * 2])  # then rest
    table = mmdp.measures.policy_table(model, mmdp.solve(model, 2), tolerance=0.01)
    assert table["near_optimal"].tolist() == ["saw or axe", "rest"]  # at stake: 4, by always saw
    assert "near_optimal" not in mmdp.measures.policy_table(model, mmdp.solve(model, 2))


def test_bad_input_is_refused() -> None:
    model = make_small_model()
    solution = mmdp.solve(model, 2)
    with pytest.raises(InputError, match=r"tolerance=-1 is not a share of the value at stake"):
        mmdp.measures.near_optimal_actions(model, solution, -1)
    randomized_policy = mmdp.policies.MarkovPolicy(probabilities=[[[0.5, 0.5, 0.0]]])
    with pytest.raises(
        InputError, match="takes one action in each state, but this one is randomized"
    ):
        mmdp.measures.near_optimal_actions(model, randomized_policy)
    with pytest.raises(InputError, match="never falls if a return rises"):
        mmdp.measures.near_optimal_actions(
            model, solution, objective=lambda rho, _: -rho.max(axis=-1)
        )
    with pytest.raises(InputError, match="near-optimal actions need a policy of time and state"):
        mmdp.measures.near_optimal_actions(model, mmdp.solve(model, 2, "qmdp"))
    with pytest.raises(InputError, match="oracle has one policy per model"):
        mmdp.measures.near_optimal_actions(model, mmdp.solve(model, 2, "oracle"))
    two = model.subset([0, 1])
    with pytest.raises(InputError, match="near-optimal actions need a policy of time and state"):
        mmdp.measures.near_optimal_actions(two, mmdp.solve(two, 2, "grid"))


def test_an_action_that_is_not_allowed_never_divides_by_zero() -> None:
    def step_machine(state: dict, action: dict, event: dict) -> tuple:
        wear = np.where(action["service"], 0, state["wear"]) + event["shock"]
        return {"wear": wear, "spares": state["spares"] - action["service"]}, 3 - 4 * action[
            "service"
        ]

    machine = mmdp.from_step(
        step_machine,
        states={"wear": range(2), "spares": range(2)},
        actions={"service": [0, 1]},
        events={"shock": [0, 1]},
        event_probs=lambda sample: [1 - sample["p"], sample["p"]],
        samples={"p": [0.2, 0.5]},
        initial={"wear": 0, "spares": 1},
        is_terminal=lambda state: state["wear"] > 1,
        allowed=lambda state, action: state["spares"] >= action["service"],
    )
    solution = mmdp.solve(
        machine, math.inf
    )  # an episode earns 9 / p - 4, and 6 / p if never served
    assert solution.value == pytest.approx(9 * 3.5 - 4)
    loss = mmdp.measures.near_optimal_actions(machine, solution).loss[0]
    assert loss[3].tolist() == pytest.approx([3 * 3.5 - 4, 0])
    assert np.isnan(loss[[0, 2], 1]).all()
