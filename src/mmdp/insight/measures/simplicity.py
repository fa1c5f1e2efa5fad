"""Value by the size of a policy: trees by leaves, controllers by nodes, policies in phases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mmdp.core.arguments import Seconds, Seed, Unchecked, check_arguments
from mmdp.core.bounds import bound
from mmdp.core.bounds.portfolio import choose_history_method
from mmdp.core.errors import InputError
from mmdp.core.kernels.infinite import InfiniteHorizon
from mmdp.core.methods import Rollout
from mmdp.core.model import MMDP
from mmdp.core.objectives import Objective
from mmdp.core.policies import (
    Markov,
    MarkovPolicy,
    Memory,
    MemoryPolicy,
    PolicyClass,
    Tree,
    TreePolicy,
)
from mmdp.core.policies.tree import Leaf, require_tree
from mmdp.core.search.rows import make_row_chooser
from mmdp.core.shapes import Array, IndexArray
from mmdp.core.solution import Solution
from mmdp.core.solve import evaluate, solve
from mmdp.core.text import (
    ROUNDING_RTOL,
    format_bound,
    format_number,
    format_percent,
    format_with_unit,
    pluralize,
)
from mmdp.core.timing import propagate_interrupts
from mmdp.core.validate import check_int
from mmdp.insight.measures.decisions import model_weights, policy_gradient
from mmdp.insight.measures.stakes import ValueAtStake, choose_objective, value_at_stake

NEGLIGIBLE_SHARE = 1e-3  # of the value at stake: a smaller gain is reported as none
MAX_PHASES = 3
MIN_AGREEMENT = 0.99  # share of the decisions on which a phased policy should agree
MAX_BREAKPOINTS = 64  # times at which a phase may end
MAX_STATES = 200  # by which the phases are chosen
MAX_STEPS = 5  # of the search for a stationary policy


@check_arguments
def value_by_leaves(
    model: MMDP,
    horizon: float | None = None,
    n_leaves: int | Sequence[int] = 8,
    *,
    features: Unchecked[object] = None,
    use_time: bool = True,
    objective: Objective | str = "mean",
    test_model: MMDP | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Tabulate the value of the best decision tree found with each number of leaves.

    Parameters
    ----------
    model, horizon, objective
        As for :func:`mmdp.solve`.
    n_leaves
        The most leaves, for all numbers from 1 on; or the numbers to show.
    features, use_time
        Features of states that a tree may split on, as for :class:`mmdp.policies.Tree`.
    test_model
        Test models to evaluate the rules on.
    options
        Others of :func:`mmdp.solve`, such as ``certify_time``, ``time_limit`` and ``seed``.

    One solve grows them all, each from smaller ones, so the value never falls. Columns: ``leaves``,
    ``value``, ``gain`` over the row before, ``restriction_cost`` (how much less it has than the
    best policy found that is no tree), that as a ``share`` of the value at stake
    (``attrs["at_stake"]``, see :func:`mmdp.measures.value_at_stake`), ``gap`` to a proven bound as
    a share of the value of that policy if one was asked for, ``test``, the ``seconds`` that its
    growth took, and the ``rule`` in words. ``attrs["elbow"]`` is
    the number of leaves after which further ones earn the least: its value lies highest above the
    straight line from the first to the last. ``attrs["text"]`` says it in a sentence,
    ``attrs["policies"]`` are the policies; :func:`mmdp.plots.value_by_leaves` draws the table.

    >>> import mmdp
    >>> train, _ = mmdp.domains.load_published("riverswim")
    >>> table = mmdp.measures.value_by_leaves(train, 50, 3)
    >>> table["value"].round(2).tolist(), table.attrs["elbow"]
    ([196.23, 200.22, 200.22], 2)
    """
    if isinstance(n_leaves, int):
        n_leaves = range(1, check_int(n_leaves, "n_leaves", item_bytes=8) + 1)
    counts = sort_counts(n_leaves, "n_leaves")
    policy_class = Tree(counts[-1], features, use_time)
    solution = solve(model, horizon, policy_class=policy_class, objective=objective, **options)
    trees = solution.details.get("trees_by_leaves") or [solution.policy]  # it was stopped
    counts = [n for n in counts if n <= len(trees)] or [1]
    selected = [trees[n - 1] for n in counts]
    risk_measure = solution.objective
    values = np.array([evaluate(model, tree).value(risk_measure) for tree in selected])
    unrestricted_value = solution.details.get("unrestricted_value", np.nan)
    best_value = np.fmax(unrestricted_value, values.max())
    at_stake = value_at_stake(model, selected[-1], objective=risk_measure, value=best_value)
    frame = pd.DataFrame({"leaves": counts, "value": values})
    frame["gain"] = frame["value"].diff()
    frame["restriction_cost"] = unrestricted_value - values
    frame["share"] = frame["restriction_cost"] / (at_stake.amount or np.nan)
    if solution.bound is not None:
        frame["gap"] = (solution.bound - values) / (abs(unrestricted_value) or np.nan)
    if test_model is not None:
        frame["test"] = [evaluate(test_model, tree).value(risk_measure) for tree in selected]
    seconds = solution.details.get("seconds_by_leaves") or [solution.seconds]
    frame["seconds"] = [seconds[n - 1] for n in counts]
    frame["rule"] = [tree.describe() for tree in selected]
    heights = values - np.interp(counts, [counts[0], counts[-1]], [values[0], values[-1]])
    highest = np.flatnonzero(heights == heights.max())[-1]  # on a line every leaf earns as much
    elbow = int((values == values[highest]).argmax())
    frame.attrs |= {"elbow": counts[elbow], "policies": selected, "at_stake": at_stake}
    frame.attrs["text"] = _describe_elbow(frame, elbow)
    return frame


@check_arguments
def leaf_table(
    model: MMDP, policy: TreePolicy | Solution, *, objective: Objective | str | None = None
) -> pd.DataFrame:
    """Tabulate the leaves of a decision tree: condition, action, share of visits, second best.

    ``condition`` has the splits that lead there, ``share`` the decisions it takes among all, over
    the models and times (discounted if there is no last decision). ``second_best`` is the second
    best action for the whole leaf, and ``loss`` the loss of taking it there: exact, all else
    unchanged, by ``objective`` (by default the solution's, otherwise the mean). A negative loss
    means that the other action is better.

    >>> import mmdp
    >>> train, _ = mmdp.domains.load_published("riverswim")
    >>> solution = mmdp.solve(train, 50, policy_class=mmdp.policies.Tree(2))
    >>> table = mmdp.measures.leaf_table(train, solution)
    >>> table[["condition", "action"]].values.tolist()
    [['state is at most 3', 'swim left'], ['state is above 3', 'swim right']]
    >>> table["share"].round(2).tolist(), table["loss"].round(1).tolist()
    ([0.23, 0.77], [4.0, 150.5])
    """
    tree = require_tree(policy, "leaf_table() needs")
    tree.check(model)
    risk_measure = choose_objective(objective, policy)
    visit_probs = _compute_visit_probs(tree, model)
    value, table, rows = evaluate(model, tree).value(risk_measure), np.atleast_2d(tree.table), []
    for conditions, _, leaf, region in tree.iter_nodes():
        if not isinstance(leaf, Leaf):
            continue
        second_best, best_value = None, np.nan
        for a, label in enumerate(model.action_labels):
            other = np.where(region & model.allowed[:, a], np.int32(a), table)
            if (other != table).any():  # not what the leaf takes already, or allows nowhere
                other_table = other.reshape(tree.table.shape)
                other_policy = tree.table_policy.from_table(other_table, **tree.label_kwargs)
                other_value = evaluate(model, other_policy).value(risk_measure)
                if not other_value <= best_value:
                    second_best, best_value = label, other_value
        rows.append(
            {
                "condition": ", ".join(conditions) or "always",
                "action": model.action_labels[leaf.action],
                "share": visit_probs[region].sum() / visit_probs.sum(),
                "second_best": second_best,
                "loss": value - best_value,
            }
        )
    return pd.DataFrame(rows)


def _compute_visit_probs(tree: TreePolicy, model: MMDP) -> Array:
    """Compute the visits of each state over the models. Returns: (T, S); (1, S) if stationary."""
    if tree.as_markov is not None:
        return model.mask_visits(model_weights(model, tree.as_markov).sum(axis=1))
    occupancy = InfiniteHorizon.from_problem(model.problem).compute_occupancy(tree.to_table(model))
    return model.mask_visits((model.weights @ occupancy)[None])


def _describe_elbow(frame: pd.DataFrame, elbow: int) -> str:
    """Describe the loss at the elbow and the gain of further leaves, in a sentence."""
    at_stake, elbow_row = frame.attrs["at_stake"], frame.iloc[elbow]
    n_leaves, value, cost = elbow_row[["leaves", "value", "restriction_cost"]]
    n_further = int(frame["leaves"].iloc[-1] - n_leaves)
    gain = frame["value"].iloc[-1] - value

    def format_amount(amount: float, digits: int = 4) -> str:
        return format_with_unit(format_number(amount, digits), at_stake.unit)

    text = "the elbow is at " * (len(frame) > 1) + pluralize(int(n_leaves), "leaf", "leaves")
    text += f": {format_amount(value, 6)}"
    if cost > 0:
        share_text = at_stake.format_share(cost)
        text += f", {format_amount(cost)}{share_text} below the best policy found"
    if not n_further:
        return text
    gain_text = f"can earn {format_amount(gain)} more" if gain > 0 else "earned nothing"
    return f"{text}; {pluralize(n_further, 'further leaf', 'further leaves')} {gain_text}"


# ---------------------------------------------------------------------- memory
@check_arguments
def value_by_nodes(
    model: MMDP,
    horizon: int | None = None,
    n_nodes: Sequence[int] = (1, 2, 3, 4),
    *,
    seed: Seed = 0,
    time_limit: Seconds | None = None,
    n_episodes: int | None = None,
) -> pd.DataFrame:
    """Tabulate the value of the best policies found without memory, with nodes, with a belief.

    Parameters
    ----------
    model, horizon, seed
        As for :func:`mmdp.solve`.
    n_nodes
        Numbers of nodes to try; 1 is a Markov policy.
    time_limit
        Seconds for the bound on all policies; 10 by default.
    n_episodes
        Episodes per model to simulate the belief rollout with.

    Columns: ``policy``, ``nodes``, ``value``, ``stderr`` (of a simulated value, otherwise 0) and
    ``recovered``, the share of the gain from the Markov policy to the belief rollout (NaN if
    that gain is not larger than two standard errors). The last rows are the proven bound on every
    policy and Oracle, which no policy reaches. ``attrs["text"]`` says it in a sentence;
    :func:`mmdp.plots.value_by_nodes` draws it.

    >>> import mmdp
    >>> model, _ = mmdp.domains.two_models()
    >>> table = mmdp.measures.value_by_nodes(model, 9, n_nodes=(1, 2))
    >>> table[["policy", "value"]].values.tolist()[:2]
    [['Markov', 10.0], ['2 nodes', 11.5]]
    """
    return solve_by_nodes(model, horizon, n_nodes, seed, time_limit, n_episodes)[0]


@propagate_interrupts()
def solve_by_nodes(
    model: MMDP,
    horizon: int | None,
    n_nodes: Sequence[int],
    seed: int | None,
    time_limit: float | None,
    n_episodes: int | None = None,
    at_stake: ValueAtStake | None = None,
) -> tuple[pd.DataFrame, MemoryPolicy]:
    """Compute the table of :func:`value_by_nodes` and the policy with the most nodes, merged.

    Shares are of the value ``at_stake``; by default compared with always the same action.
    """
    counts = sort_counts(n_nodes, "n_nodes")
    solution = solve(model, horizon, policy_class=Memory(counts[-1]), seed=seed)
    node_values = solution.details.get("value_by_nodes", [solution.value])
    n_steps = int(solution.provenance.horizon)
    belief_solution = solve(model, n_steps, Rollout(n_episodes=n_episodes), seed=seed)
    bound_method = choose_history_method(model.problem)
    upper_bound = bound(
        model, n_steps, bound_method, time_limit=time_limit, incumbent=node_values[0]
    )
    rows = [
        ("Markov" if n == 1 else f"{n} nodes", float(n), node_values[n - 1], 0.0) for n in counts
    ]
    rows += [
        ("belief rollout", np.nan, belief_solution.value, belief_solution.evaluation.stderr),
        (f"at most ({bound_method})", np.nan, upper_bound.value, 0.0),
        ("Oracle", np.nan, float(solution.evaluation.oracle @ model.weights), 0.0),
    ]
    frame = pd.DataFrame(rows, columns=["policy", "nodes", "value", "stderr"])
    gain = belief_solution.value - node_values[0]
    recovered = (frame["value"] - node_values[0]) / gain
    min_gain = max(2 * belief_solution.evaluation.stderr, ROUNDING_RTOL * abs(node_values[0]))
    frame["recovered"] = recovered[: len(counts) + 1] if gain > min_gain else np.nan
    at_stake = at_stake or value_at_stake(model, solution, value=node_values[0])
    frame.attrs["text"] = _describe_memory_gain(frame, node_values[0], at_stake)
    assert isinstance(solution.policy, MemoryPolicy)
    return frame, solution.policy.merge_nodes(model)


def sort_counts(counts: Iterable[int], name: str) -> list[int]:
    """Check numbers from 1 on, and sort them, each once."""
    if not (result := sorted({check_int(count, name) for count in counts})):
        raise InputError(f"{name} is empty; give one or more numbers, such as (1, 2, 3)")
    return result


def _describe_memory_gain(frame: pd.DataFrame, markov_value: float, at_stake: ValueAtStake) -> str:
    """Describe the table in a sentence, which separates proven bounds from values found."""
    with_nodes = frame[frame["nodes"] > 1]
    belief_value, bound_value, _ = (frame["value"] - 2 * frame["stderr"]).tolist()[-3:]
    best_value = max([markov_value, belief_value, *with_nodes["value"]])
    gain, max_gain = best_value - markov_value, max(bound_value, best_value) - markov_value
    rounding_error = ROUNDING_RTOL * abs(markov_value)
    negligible = NEGLIGIBLE_SHARE * at_stake.amount

    def format_max(amount: float) -> str:
        amount_text = format_with_unit(format_bound(amount, 3), at_stake.unit)
        return amount_text + at_stake.format_share(amount, round_up=True)

    if max_gain <= rounding_error:
        return "memory gains nothing: it is proven that no policy is better"
    if max_gain <= negligible:
        return (
            "memory gains next to nothing: it is proven that no policy gains more than "
            f"{format_max(negligible)}"
        )
    if gain <= max(negligible, rounding_error):
        is_counted = negligible > rounding_error
        threshold_text = f"more than {format_max(negligible)}" if is_counted else "anything"
        return (
            f"no policy with memory was found that gains {threshold_text}; the bound leaves room "
            f"for at most {format_max(max_gain)}"
        )
    gain_text = format_with_unit(format_number(gain, 3), at_stake.unit)
    text = (
        f"memory gains {gain_text}{at_stake.format_share(gain)} or more over the best policy "
        f"found without memory, and at most {format_max(max_gain)}"
    )
    for name, share in with_nodes[["policy", "recovered"]].dropna().to_numpy()[-1:]:
        text += f"; {name} " + (
            "gain at least as much as the belief rollout"
            if share >= 1
            else f"recover {format_percent(share)} of what the belief rollout gains"
        )
    return text


# ---------------------------------------------------------------------- phases
class Phase(NamedTuple):
    """The actions (S,) from time ``start`` to before ``stop``.

    ``expected_visits`` (S,) is the expected number of visits in that time.
    """

    start: int
    stop: int
    actions: IndexArray
    expected_visits: Array


class PhasedPolicy(NamedTuple):
    """A policy in a few phases, and its agreement with the original: a share of decisions."""

    phases: tuple[Phase, ...]
    policy: MarkovPolicy
    agreement: float


def fit_phases(
    policy: MarkovPolicy,
    model: MMDP,
    visit_probs: Array,
    max_phases: int = MAX_PHASES,
    policy_class: PolicyClass = Markov(),  # noqa: B008
) -> PhasedPolicy:
    """Fit a policy of at most ``max_phases`` phases that agrees most with a Markov policy.

    ``visit_probs`` (T, S) are probabilities of being in a state at a time. Within a phase a state
    has one action. The result has the fewest phases that agree on 99% of the decisions, and is of
    the same ``policy_class`` as the policy.

    >>> import mmdp
    >>> model, _ = mmdp.domains.two_models()
    >>> table = mmdp.policies.MarkovPolicy([[0] * model.n_states] * 3 + [[1] * model.n_states] * 2)
    >>> phased = fit_phases(table, model, mmdp.measures.model_weights(model, table).sum(axis=1))
    >>> [(phase.start, phase.stop) for phase in phased.phases], phased.agreement
    ([(0, 3), (3, 5)], 1.0)
    """
    actions = policy.actions.astype(np.int64)
    choose_row = make_row_chooser(policy_class, model)
    allowed = policy_class.make_problem(model, policy.horizon).allowed.any(axis=0)
    phases, states = [], np.arange(actions.shape[1])
    for start, stop in pairwise(_find_phase_bounds(actions, visit_probs, max_phases)):
        visits = visit_probs[start:stop]
        action_visits = np.where(allowed, 0.0, -np.inf)
        # states that are not reached count all times alike
        np.add.at(action_visits, (states, actions[start:stop]), visits + 1e-12)
        row = choose_row(action_visits, np.ones_like(action_visits), None).astype(np.int64)
        phases.append(Phase(start, stop, row, visits.sum(axis=0)))
    table = np.repeat([x.actions for x in phases], [x.stop - x.start for x in phases], axis=0)
    phased_policy = _make_allowed_policy(table, policy, model, policy_class)
    agreement = visit_probs[phased_policy.actions == actions].sum() / visit_probs.sum()
    return PhasedPolicy(tuple(phases), phased_policy, float(agreement))


def fit_stationary(
    policy: MarkovPolicy,
    model: MMDP,
    visit_probs: Array,
    policy_class: PolicyClass = Markov(),  # noqa: B008
) -> MarkovPolicy:
    """Fit a policy that is the same at all times: the usual action of each state, then improved.

    Each step of the search takes argmax_a sum_t G_t(s, a) in every state, or the best row of the
    ``policy_class``, as long as the mean return rises. It is a good policy, not always the best.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> policy = mmdp.policies.MarkovPolicy([[1], [1], [0]])
    >>> fit_stationary(policy, two, np.ones((3, 1))).actions.tolist()
    [[0], [0], [0]]
    """
    best = fit_phases(policy, model, visit_probs, 1, policy_class).policy
    value, choose_row = evaluate(model, best).mean, make_row_chooser(policy_class, model)
    for _ in range(MAX_STEPS):
        G = np.nan_to_num(policy_gradient(model, best).sum(axis=0), nan=-np.inf)  # NaN: not allowed
        row = choose_row(G, np.ones_like(G), best.actions[0]).astype(np.int64)
        table = np.tile(row, (policy.horizon, 1))
        candidate = _make_allowed_policy(table, policy, model, policy_class)
        candidate_value = evaluate(model, candidate).mean
        if not candidate_value > value:
            break
        best, value = candidate, candidate_value
    return best


def _find_phase_bounds(actions: IndexArray, visit_probs: Array, max_phases: int) -> list[int]:
    """Find the times at which phases begin, and the horizon: the fewest that agree enough."""
    states = np.argsort(-visit_probs.sum(axis=0), kind="stable")[:MAX_STATES]
    actions, visit_probs = actions[:, states], visit_probs[:, states]
    change_weights = ((actions[1:] != actions[:-1]) * visit_probs[1:]).sum(axis=1)
    breakpoints = np.argsort(-change_weights, kind="stable")[: MAX_BREAKPOINTS - 1]
    times = np.array([0, *np.sort(breakpoints[change_weights[breakpoints] > 0] + 1), len(actions)])
    visits = visit_probs[:, :, None] * (actions[:, :, None] == np.unique(actions))
    blocks = np.add.reduceat(visits, times[:-1], axis=0)
    cumulative = np.insert(blocks.cumsum(axis=0), 0, 0.0, axis=0)
    matched = np.full((len(times), len(times)), -np.inf)  # agreement in a phase from i to j
    for i in range(len(times) - 1):
        matched[i, i + 1 :] = (cumulative[i + 1 :] - cumulative[i]).max(axis=2).sum(axis=1)
    best, paths = np.where(np.arange(len(times)) > 0, -np.inf, 0.0), [[0]] * len(times)
    best_by_count = []
    for _ in range(max_phases):
        extended = best[:, None] + matched
        paths = [[*paths[i], j] for j, i in enumerate(extended.argmax(axis=0))]
        best = extended.max(axis=0)
        best_by_count.append((best[-1], paths[-1]))
    target = min(MIN_AGREEMENT * visit_probs.sum(), max(best_by_count)[0]) * (1 - 1e-12)
    return times[next(path for value, path in best_by_count if value >= target)].tolist()


def _make_allowed_policy(
    table: IndexArray, policy: MarkovPolicy, model: MMDP, policy_class: PolicyClass
) -> MarkovPolicy:
    """Make a policy of the table (T, S), with the given policy's action if one is not allowed."""
    allowed = policy_class.make_problem(model, policy.horizon).allowed
    is_allowed = np.any(allowed & (table[:, :, None] == np.arange(model.n_actions)), axis=2)
    return MarkovPolicy.for_model(model, np.where(is_allowed, table, policy.actions))
