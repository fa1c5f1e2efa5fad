"""Value of memory: Markov policies, controllers with a few nodes, and belief policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from mmdp.core.arguments import Seconds, Seed, check_arguments
from mmdp.core.bounds import bound
from mmdp.core.bounds.portfolio import choose_history_method
from mmdp.core.errors import InputError
from mmdp.core.methods import Rollout
from mmdp.core.model import MMDP
from mmdp.core.policies import Memory, MemoryPolicy
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
