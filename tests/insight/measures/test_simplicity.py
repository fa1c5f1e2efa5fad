"""Simpler policies: the phases tell the most, and no rule beats the best of its kind."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

import mmdp
from mmdp.core.testing import find_best_history_value, make_random_model
from mmdp.insight import plots
from mmdp.insight.measures import leaf_table
from mmdp.insight.measures.simplicity import MIN_AGREEMENT, fit_phases, fit_stationary
from mmdp.insight.measures.stakes import make_constant_policies


def make_problem(seed: int) -> tuple[mmdp.MMDP, mmdp.policies.MarkovPolicy, np.ndarray]:
    rng = np.random.default_rng(seed)
    transitions = rng.dirichlet(np.ones(3), size=(4, 3, 2))
    allowed = np.ones((3, 2), dtype=bool)
    allowed[seed % 3, 1] = seed % 2 == 0
    model = mmdp.MMDP(
        transitions, rng.normal(size=(4, 3, 2)), initial=[1, 0, 0], allowed=allowed, discount=0.9
    )
    policy = mmdp.policies.MarkovPolicy.random(model, 6, seed=seed)
    return model, policy, mmdp.measures.model_weights(model, policy).sum(axis=1)


def compute_agreement(
    actions: np.ndarray, visit_probs: np.ndarray, phase_starts: tuple[int, ...]
) -> float:
    """The decisions that phases between these times tell at most, by trying every action."""
    total = 0.0
    for start, stop in zip((0, *phase_starts), (*phase_starts, len(actions)), strict=True):
        for s in range(actions.shape[1]):
            total += max(
                visit_probs[start:stop, s][actions[start:stop, s] == a].sum() for a in range(2)
            )
    return total / visit_probs.sum()


@pytest.mark.parametrize("seed", range(12))
def test_phases_have_the_best_agreement(seed: int) -> None:
    model, policy, visit_probs = make_problem(seed)
    phased_policy = fit_phases(policy, model, visit_probs)
    best_agreements = [
        max(
            compute_agreement(policy.actions, visit_probs, phase_starts)
            for phase_starts in combinations(range(1, 6), k)
        )
        for k in range(3)
    ]
    min_agreement = min(MIN_AGREEMENT, max(best_agreements) - 1e-12)
    n_phases = next(
        k for k, agreement in enumerate(best_agreements, 1) if agreement >= min_agreement
    )
    assert len(phased_policy.phases) == n_phases
    assert phased_policy.agreement == pytest.approx(best_agreements[n_phases - 1])
    assert [x.start for x in phased_policy.phases[1:]] == [
        x.stop for x in phased_policy.phases[:-1]
    ]
    for phase in phased_policy.phases:
        assert (phased_policy.policy.actions[phase.start : phase.stop] == phase.actions).all()


@pytest.mark.parametrize("seed", range(12))
def test_stationary_and_constant_policies(seed: int) -> None:
    model, policy, visit_probs = make_problem(seed)
    rows = [row for row in product(range(2), repeat=3) if model.allowed[np.arange(3), row].all()]
    values = {
        row: mmdp.evaluate(model, mmdp.policies.MarkovPolicy([row] * 6, n_actions=2)).mean
        for row in rows
    }
    stationary_policy = fit_stationary(policy, model, visit_probs)
    assert (stationary_policy.actions == stationary_policy.actions[0]).all()
    one_phase_policy = fit_phases(policy, model, visit_probs, max_phases=1).policy
    value = mmdp.evaluate(model, stationary_policy).mean
    assert value == pytest.approx(values[tuple(stationary_policy.actions[0].tolist())])
    assert (
        mmdp.evaluate(model, one_phase_policy).mean - 1e-12 <= value <= max(values.values()) + 1e-12
    )
    constant_policy = make_constant_policies(policy, model)[0]
    # a state that allows one action alone is no choice
    best = max(values[tuple(np.where(model.allowed[:, a], a, 1 - a).tolist())] for a in (0, 1))
    assert mmdp.evaluate(model, constant_policy.policy).mean == pytest.approx(best)


def test_no_action_is_allowed_everywhere() -> None:
    model = mmdp.MMDP(
        np.full((1, 2, 2, 2), 0.5), np.zeros((2, 2)), allowed=[[True, False], [False, True]]
    )
    policy = mmdp.policies.MarkovPolicy([[0, 1]])
    for constant_policy in make_constant_policies(policy, model):  # there is no choice
        assert constant_policy.policy.actions.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("horizon", "objective"), [(4, "mean"), (4, "cvar:0.3"), (math.inf, "mean")]
)
def test_each_number_of_leaves_equals_a_solve(horizon: float, objective: str) -> None:
    size = {"n_states": 5, "n_actions": 3, "horizon": 0, "discount": 0.8, "has_masks": False}
    model, test_model = (make_random_model(seed, n_models=4, **size) for seed in (5, 6))
    options = {"objective": objective, "backend": "numpy"}
    table = mmdp.measures.value_by_leaves(
        model, horizon, 3, test_model=test_model if objective == "mean" else None, **options
    )
    solutions = [
        mmdp.solve(model, horizon, policy_class=mmdp.policies.Tree(n), **options) for n in (1, 2, 3)
    ]
    assert table["value"].tolist() == pytest.approx([x.value for x in solutions])
    assert table["gain"].tolist()[1:] == pytest.approx(np.diff([x.value for x in solutions]))
    assert table["rule"].tolist() == [x.policy.describe() for x in solutions]
    assert table["restriction_cost"].tolist() == pytest.approx(
        [x.restriction_cost for x in solutions], abs=1e-9
    )
    if objective == "mean":
        test_values = [mmdp.evaluate(test_model, x.policy).mean for x in solutions]
        assert table["test"].tolist() == pytest.approx(test_values)
    selected_table = mmdp.measures.value_by_leaves(model, horizon, (1, 3), **options)
    assert selected_table["value"].tolist() == pytest.approx(
        [solutions[0].value, solutions[2].value]
    )


def test_elbow_of_the_leaf_curve() -> None:
    """Two leaves on riverswim, one if nothing is gained, and all if each earns as much."""
    riverswim = mmdp.domains.load_published("riverswim").train
    table = mmdp.measures.value_by_leaves(riverswim, 10, 4)
    chord = np.interp([1, 2, 3, 4], [1, 4], table["value"].iloc[[0, 3]])
    assert table.attrs["elbow"] == 1 + (table["value"] - chord).argmax()
    assert f"the elbow is at {table.attrs['elbow']} lea" in table.attrs["text"]
    one_action_model = make_random_model(
        2, n_models=3, n_states=4, n_actions=1, horizon=0, discount=0.9
    )
    assert mmdp.measures.value_by_leaves(one_action_model, 3, 3).attrs["elbow"] == 1
    assert mmdp.measures.value_by_leaves(riverswim, 50, 2).attrs["elbow"] == 2
    one_leaf_table = mmdp.measures.value_by_leaves(one_action_model, 3, [1], certify_time=0.1)
    assert "elbow" not in one_leaf_table.attrs["text"]
    certified_solution = mmdp.solve(
        one_action_model, 3, policy_class=mmdp.policies.Tree(1), certify_time=0.1
    )
    unrestricted_value = certified_solution.details["unrestricted_value"]
    assert one_leaf_table["gap"].item() == pytest.approx(
        (certified_solution.bound - certified_solution.value) / abs(unrestricted_value)
    )
    with pytest.raises(mmdp.InputError, match="n_leaves is empty"):
        mmdp.measures.value_by_leaves(one_action_model, 3, [])


@pytest.mark.parametrize("reward_offset", [0.0, 1000.0])
def test_restriction_cost_as_a_share_of_value_at_stake(reward_offset: float) -> None:
    """Each state has an action of its own: always taking the same one costs 2 half of the time."""
    rewards = np.array([[[0.0, -2], [-2, 0]]]) + reward_offset
    model = mmdp.MMDP(np.eye(2)[None, :, None].repeat(2, 2), rewards, initial=[0.5, 0.5])
    model = model.replace(states=["x=0", "x=1"])
    table = mmdp.measures.value_by_leaves(model, 1, 2)
    assert table["restriction_cost"].tolist() == [1.0, 0.0]
    assert table["share"].tolist() == [1.0, 0.0]
    assert table.attrs["at_stake"] == mmdp.measures.ValueAtStake(1.0, "always action 0")
    text = mmdp.measures.value_by_leaves(model, 1, 1).attrs["text"]
    assert text.endswith(", 1 (100% of what is at stake) below the best policy found")


def test_a_given_tree_is_an_init() -> None:
    """Never below it, even if it has more than the growth would find by itself."""
    model = make_random_model(9, n_models=3, n_states=6, n_actions=3, horizon=0, has_masks=False)
    best = mmdp.solve(model, 4, policy_class=mmdp.policies.Tree(3))
    for m in range(3):
        single_model = model.subset([m])
        resolved = mmdp.solve(
            single_model, 4, mmdp.methods.CADP(init=best.policy), policy_class=mmdp.policies.Tree(3)
        )
        from_growth = mmdp.solve(single_model, 4, policy_class=mmdp.policies.Tree(3))
        assert resolved.value >= max(best.returns[m], from_growth.value) * (1 - 1e-14)


@pytest.mark.parametrize("horizon", [4, math.inf])
def test_leaf_table_losses(horizon: float) -> None:
    """By simulation of the visits, and by trees whose leaf has another action."""
    model = make_random_model(7, n_models=3, n_states=5, horizon=0, discount=0.7, has_masks=False)
    solution = mmdp.solve(model, horizon, policy_class=mmdp.policies.Tree(3), objective="worst")
    leaves_frame, policy = leaf_table(model, solution), solution.policy
    assert leaves_frame["share"].sum() == pytest.approx(1)
    n_steps = 200 if horizon == math.inf else 4
    visit_probs = mmdp.measures.model_weights(model, policy.to_markov(n_steps)).sum(axis=1)
    if horizon == math.inf:
        visit_probs = (visit_probs * 0.7 ** np.arange(n_steps)[:, None]).sum(axis=0, keepdims=True)
    leaves = [x for x in policy.iter_nodes() if not hasattr(x.node, "threshold_id")]
    for row, (path, _, leaf, region) in zip(leaves_frame.itertuples(), leaves, strict=True):
        assert row.condition == (", ".join(path) or "always")
        assert row.share == pytest.approx(visit_probs[region].sum() / visit_probs.sum(), rel=1e-6)
        worst_returns = {}
        for a in {*range(model.n_actions)} - {leaf.action}:
            changed_table = np.where(region, a, policy.table).reshape(policy.table.shape)
            changed_policy = policy.table_policy.for_model(model, changed_table)
            worst_returns[model.action_labels[a]] = mmdp.evaluate(model, changed_policy).worst
        assert row.second_best == max(worst_returns, key=worst_returns.get)
        assert row.loss == pytest.approx(solution.value - max(worst_returns.values()))


def test_second_best_action_is_allowed() -> None:
    allowed = np.array([[True, True, False], [True, False, False]])
    model = mmdp.MMDP(
        np.full((1, 2, 3, 2), 0.5),
        [[1.0, 3.0, 0.0], [2.0, 0.0, 0.0]],
        initial=[0.5, 0.5],
        allowed=allowed,
    )
    tree = mmdp.solve(
        model, 1, policy_class=mmdp.policies.Tree(1)
    )  # action 1, where that is allowed
    leaf_row = leaf_table(model, tree).iloc[0]
    assert (leaf_row.action, leaf_row.second_best, leaf_row.loss) == ("1", "0", 1.0)
    no_choice_table = leaf_table(
        model.replace(allowed=[[False, True, False], [True, False, False]]), tree
    )
    assert no_choice_table.iloc[0].second_best is None


# ---------------------------------------------------------------------- memory
def test_values_by_nodes_are_in_order_and_below_the_bound() -> None:
    model = make_random_model(1, n_models=3, n_states=2, n_actions=2, horizon=0, discount=0.9)
    table = mmdp.measures.value_by_nodes(model, 3, n_nodes=(1, 2, 4), time_limit=1, n_episodes=2000)
    value = dict(zip(table["policy"], table["value"], strict=True))
    best = find_best_history_value(model, 3)
    assert value["Markov"] <= value["2 nodes"] <= value["4 nodes"] <= best + 1e-9
    assert best <= value["at most (pairs)"] <= value["Oracle"] + 1e-6
    error = float(table["stderr"].max())
    assert value["Markov"] - 3 * error <= value["belief rollout"] <= best + 3 * error
    recovered = dict(zip(table["policy"], table["recovered"], strict=True))
    assert recovered["Markov"] == 0
    assert recovered["belief rollout"] == 1
    assert np.isnan(recovered["Oracle"])
    assert "; 4 nodes " in table.attrs["text"]
    axis = plots.value_by_nodes(table)
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "2", "4"]


def test_one_model_needs_no_memory() -> None:
    table = mmdp.measures.value_by_nodes(
        make_random_model(2, n_models=1, horizon=0), 4, n_nodes=(1, 2)
    )
    assert table["value"].iloc[1] == pytest.approx(table["value"].iloc[0])
    assert table.attrs["text"].startswith(
        "memory gains nothing: it is proven that no policy is better"
    )


@pytest.mark.parametrize(("n_nodes", "message"), [((), "n_nodes is empty"), ((0,), "n_nodes")])
def test_bad_node_counts_are_refused(n_nodes: tuple[int, ...], message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.measures.value_by_nodes(make_random_model(2, horizon=0), 4, n_nodes=n_nodes)
