"""Value of memory: Markov policies, controllers with a few nodes, and belief policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from mmdp.core.arguments import Seconds, Seed, check_arguments
from mmdp.core.bounds import bound
from mmdp.core.bounds.portfolio import choose_history_method
from mmdp.core.errors import InputError
from mmdp.core.methods import Rollout
from mmdp.core.model import MMDP
from mmdp.core.objectives import Mean
from mmdp.core.policies import Markov, MarkovPolicy, Memory, MemoryPolicy
from mmdp.core.solution import Solution
from mmdp.core.solve import solve
from mmdp.core.text import (
    ROUNDING_RTOL,
    format_bound,
    format_number,
    format_percent,
    format_with_unit,
)
from mmdp.core.timing import propagate_interrupts
from mmdp.core.validate import check_int
from mmdp.insight.measures.stakes import ValueAtStake, value_at_stake

NEGLIGIBLE_SHARE = 1e-3  # of the value at stake: a smaller gain is reported as none
TOTAL_EPISODES = 2000  # simulated over all models, to test whether memory would gain
SIZE_PER_SECOND = 300_000  # T S A M, up to which that is short compared with a second of a proof


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
    return solve_by_nodes(
        model, horizon, n_nodes, seed=seed, time_limit=time_limit, n_episodes=n_episodes
    )[0]


@propagate_interrupts()
def solve_by_nodes(
    model: MMDP,
    horizon: int | None,
    n_nodes: Sequence[int],
    *,
    seed: int | None = 0,
    time_limit: float | None = None,
    n_episodes: int | None = None,
    at_stake: ValueAtStake | None = None,
) -> tuple[pd.DataFrame, MemoryPolicy]:
    """Compute the table of :func:`value_by_nodes` and the policy with the most nodes, merged.

    Shares are of the value ``at_stake``; by default compared with always the same action.
    """
    counts = sorted({*n_nodes})
    if not counts:
        raise InputError("n_nodes is empty; give numbers of nodes, such as (1, 2, 3)")
    for count in counts:
        check_int(count, "n_nodes")
    solution = solve(model, horizon, policy_class=Memory(max(counts)), seed=seed)
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
    is_significant = gain > max(
        2 * belief_solution.evaluation.stderr, ROUNDING_RTOL * abs(node_values[0])
    )
    is_policy_row = frame.index < len(counts) + 1
    frame["recovered"] = np.where(
        is_policy_row & is_significant, (frame["value"] - node_values[0]) / gain, np.nan
    )
    at_stake = at_stake or value_at_stake(model, solution, value=node_values[0])
    frame.attrs["text"] = _describe_memory_gain(frame, node_values[0], at_stake)
    assert isinstance(solution.policy, MemoryPolicy)
    return frame, solution.policy.merge_nodes(model)


@check_arguments
def with_memory_gain(
    model: MMDP, solution: Solution, *, time_limit: Seconds | None = None
) -> Solution:
    """Add the gain of a belief policy to the details of a solution, if it is significant.

    A short simulation compares a Markov policy with one that learns which models are plausible.
    If the gain is clear, ``solution.memory_text`` says it, and ``details`` has ``memory_gain`` and
    ``memory_gain_stderr``. Policies of other classes, or for another objective than the mean, are
    returned as they are. With a ``time_limit`` so are those whose simulation would not be short
    compared with that time, by the size of the problem.

    >>> import mmdp
    >>> away, home = [[0, 1, 0]] * 2, [[1, 0, 0]] * 2  # each model has a place of its own
    >>> P = [[away, home, home], [[[0, 0, 1]] * 2, home, home]]
    >>> R = [[[0, 1], [0, 0], [0, 0]], [[0, -1], [0, 0], [0, 0]]]
    >>> model = mmdp.MMDP(P, R, initial=[1, 0, 0])
    >>> mmdp.measures.with_memory_gain(model, mmdp.solve(model, 8)).details["memory_gain"]
    1.5
    """
    policy, policy_class = solution.policy, solution.provenance.policy_class
    if type(policy_class) is not Markov or solution.objective != Mean():
        return solution
    if not isinstance(policy, MarkovPolicy) or not policy.is_deterministic:
        return solution
    horizon = policy.horizon
    size = horizon * model.n_states * model.n_actions * model.n_models
    if time_limit is not None and size > SIZE_PER_SECOND * time_limit:
        return solution
    n_episodes = max(4, TOTAL_EPISODES // model.n_models)
    # numpy: the compiled episodes would compile longer than this takes
    rollout = solve(
        model, horizon, Rollout(n_episodes=n_episodes, baseline=policy), backend="numpy"
    )
    gain, stderr = (rollout.details[name] for name in ("difference", "difference_stderr"))
    min_gain = max(
        NEGLIGIBLE_SHARE * value_at_stake(model, solution).amount,
        ROUNDING_RTOL * abs(solution.value),
    )
    if gain <= max(4 * stderr, min_gain):
        return solution
    gain_details = {"memory_gain": gain, "memory_gain_stderr": stderr}
    return dataclasses.replace(solution, details={**solution.details, **gain_details})


def _describe_memory_gain(frame: pd.DataFrame, markov_value: float, at_stake: ValueAtStake) -> str:
    """Describe the table in a sentence, which separates proven bounds from values found."""
    with_nodes = frame[frame["nodes"] > 1]
    belief_row, bound_row, _ = frame.iloc[-3:].to_dict("records")
    best_value = max(
        [markov_value, belief_row["value"] - 2 * belief_row["stderr"], *with_nodes["value"]]
    )
    gain, max_gain = best_value - markov_value, max(bound_row["value"], best_value) - markov_value
    rounding_error, negligible = (
        ROUNDING_RTOL * abs(markov_value),
        NEGLIGIBLE_SHARE * at_stake.amount,
    )

    def format_max(amount: float) -> str:
        amount_text = format_with_unit(format_bound(amount, 3), at_stake.unit)
        return amount_text + at_stake.format_share(amount, round_up=True)

    is_above_rounding = negligible > rounding_error
    if max_gain <= rounding_error:
        return "memory gains nothing: it is proven that no policy is better"
    if max_gain <= negligible:
        return (
            "memory gains next to nothing: it is proven that no policy gains more than "
            f"{format_max(negligible)}"
        )
    if gain <= max(negligible, rounding_error):
        threshold_text = f"more than {format_max(negligible)}" if is_above_rounding else "anything"
        return (
            f"no policy with memory was found that gains {threshold_text}; the bound leaves room "
            f"for at most {format_max(max_gain)}"
        )
    gain_text = format_with_unit(format_number(gain, 3), at_stake.unit)
    text = (
        f"memory gains {gain_text}{at_stake.format_share(gain)} or more over the best policy "
        f"found without memory, and at most {format_max(max_gain)}"
    )
    if len(with_nodes) and with_nodes["recovered"].notna().any():
        policy_name, share = with_nodes["policy"].iloc[-1], float(with_nodes["recovered"].iloc[-1])
        if share >= 1:
            text += f"; {policy_name} gain at least as much as the belief rollout"
        else:
            text += (
                f"; {policy_name} recover {format_percent(share)} of what the belief rollout gains"
            )
    return text
