"""What remembering is worth: from one rule for all, over a few nodes, to the whole belief."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from mmdp.arguments import Seconds, Seed, checked
from mmdp.bounds import bound
from mmdp.bounds.portfolio import for_every_policy
from mmdp.clock import unanswered
from mmdp.errors import InputError
from mmdp.measures.stakes import Stake, stake
from mmdp.methods import Rollout
from mmdp.model import MMDP
from mmdp.objective import Mean
from mmdp.policy import Markov, Memory, MemoryPolicy
from mmdp.solution import Solution
from mmdp.solve import solve
from mmdp.validate import check_whole
from mmdp.words import NOISE, at_most, in_unit, number, percent

NOTHING = 1e-3  # a gain below this share of what is at stake is called nothing
EPISODES = 2000  # simulated in all, to see whether memory would pay
PER_SECOND = 300_000  # T S A M, up to which that is short compared with a second of a proof


@checked
def value_of_memory(
    model: MMDP,
    horizon: int | None = None,
    nodes: Sequence[int] = (1, 2, 3, 4),
    *,
    seed: Seed = 0,
    time_limit: Seconds | None = None,
    episodes: int | None = None,
) -> pd.DataFrame:
    """The value of the best policies found without memory, with a few nodes and with a belief.

    Parameters
    ----------
    model, horizon, seed
        As for :func:`mmdp.solve`.
    nodes
        Numbers of nodes to try; 1 is a Markov policy.
    time_limit
        Seconds for the bound on all policies; 10 by default.
    episodes
        Episodes per model to simulate the belief rollout with.

    Columns: ``policy``, ``nodes``, ``value``, ``stderr`` (of a simulated value, otherwise 0) and
    ``recovered``, the share of the gain from the Markov policy to the belief rollout (NaN if
    that gain is not larger than two standard errors). The last rows are the proven bound on every
    policy and Oracle, which no policy reaches. ``attrs["text"]`` says it in a sentence;
    :func:`mmdp.plots.value_of_memory` draws it.

    >>> import mmdp
    >>> model, _ = mmdp.domains.two_models()
    >>> table = mmdp.value_of_memory(model, 9, nodes=(1, 2))
    >>> table[["policy", "value"]].values.tolist()[:2]
    [['Markov', 10.0], ['2 nodes', 11.5]]
    """
    return value_and_policy(
        model, horizon, nodes, seed=seed, time_limit=time_limit, episodes=episodes
    )[0]


@unanswered()
def value_and_policy(
    model: MMDP, horizon: int | None, nodes: Sequence[int], *, seed: int | None = 0,
    time_limit: float | None = None, episodes: int | None = None, at_stake: Stake | None = None,
) -> tuple[pd.DataFrame, MemoryPolicy]:  # fmt: skip
    """The table of :func:`value_of_memory`, and the policy with the most nodes, merged.

    Shares are of what is ``at_stake``; by default compared with always the same action.
    """
    counts = sorted({*nodes})
    if not counts:
        raise InputError("nodes is empty; give numbers of nodes, such as (1, 2, 3)")
    for count in counts:
        check_whole(count, "nodes")
    grown = solve(model, horizon, policy=Memory(max(counts)), seed=seed)
    by_nodes = grown.details.get("value_by_nodes", [grown.value])
    steps = int(grown.provenance.horizon)
    belief = solve(model, steps, Rollout(episodes=episodes), seed=seed)
    name = for_every_policy(model.problem)
    most = bound(model, steps, name, time_limit=time_limit, incumbent=by_nodes[0])
    rows = [("Markov" if n == 1 else f"{n} nodes", float(n), by_nodes[n - 1], 0.0) for n in counts]
    rows += [
        ("belief rollout", np.nan, belief.value, belief.evaluation.stderr),
        (f"at most ({name})", np.nan, most.value, 0.0),
        ("Oracle", np.nan, float(grown.evaluation.oracle @ model.weights), 0.0),
    ]
    frame = pd.DataFrame(rows, columns=["policy", "nodes", "value", "stderr"])
    gain = belief.value - by_nodes[0]
    clear = gain > 2 * belief.evaluation.stderr
    here = frame.index < len(counts) + 1
    frame["recovered"] = np.where(here & clear, (frame["value"] - by_nodes[0]) / gain, np.nan)
    at_stake = at_stake or stake(grown, model, value=by_nodes[0])
    frame.attrs["text"] = _sentence(frame, by_nodes[0], at_stake)
    return frame, grown.policy.merged(model)


@checked
def memory_gain(solution: Solution, model: MMDP, *, seconds: Seconds | None = None) -> Solution:
    """The solution with what a policy that learns gains over its own, if that shows clearly.

    A short simulation compares a Markov policy with one that learns which models are plausible.
    If the gain is clear, ``solution.memory_text`` says it, and ``details`` has ``memory_gain`` and
    ``memory_gain_stderr``. Policies of other kinds, or for another objective than the mean, are
    returned as they are. With ``seconds`` so are those whose simulation would not be short
    compared with that time, by the size of the problem.

    >>> import mmdp
    >>> away, home = [[0, 1, 0]] * 2, [[1, 0, 0]] * 2  # each model has a place of its own
    >>> P = [[away, home, home], [[[0, 0, 1]] * 2, home, home]]
    >>> R = [[[0, 1], [0, 0], [0, 0]], [[0, -1], [0, 0], [0, 0]]]
    >>> model = mmdp.MMDP(P, R, initial=[1, 0, 0])
    >>> mmdp.measures.memory_gain(mmdp.solve(model, 8), model).details["memory_gain"]
    1.5
    """
    policy, kind = solution.policy, solution.provenance.policy
    if type(kind) is not Markov or solution.objective != Mean() or not policy.deterministic:
        return solution
    T = policy.horizon
    size = T * model.n_states * model.n_actions * model.n_models
    if seconds is not None and size > PER_SECOND * seconds:
        return solution
    episodes = max(4, EPISODES // model.n_models)
    # numpy: the compiled episodes would compile longer than this takes
    rollout = solve(model, T, Rollout(episodes=episodes, baseline=policy), backend="numpy")
    gain, error = (rollout.details[name] for name in ("difference", "difference_stderr"))
    if gain <= max(4 * error, 1e-3 * abs(solution.value)):
        return solution
    found = {"memory_gain": gain, "memory_gain_stderr": error}
    return dataclasses.replace(solution, details={**solution.details, **found})


def _sentence(frame: pd.DataFrame, markov: float, at_stake: Stake) -> str:
    """What the table says, in a sentence; what was only looked for is not called a fact."""
    with_nodes = frame[frame["nodes"] > 1]
    belief, proven, _ = frame.iloc[-3:].to_dict("records")
    best = max([markov, belief["value"] - 2 * belief["stderr"], *with_nodes["value"]])
    gain, room = best - markov, max(proven["value"], best) - markov
    rounding, least = NOISE * abs(markov), NOTHING * at_stake.amount

    def proven_text(amount: float) -> str:
        return in_unit(at_most(amount), at_stake.unit) + at_stake.part(amount, up=True)

    than = f" than {proven_text(least)}" if least > rounding else ""
    if room <= max(least, rounding):
        return f"memory gains nothing: it is proven that no policy gains more{than}"
    if gain <= max(least, rounding):
        return (
            f"no policy with memory was found that gains more{than}; the bound leaves room for at "
            f"most {proven_text(room)}"
        )
    text = (
        f"memory gains {in_unit(number(gain), at_stake.unit)}{at_stake.part(gain)} or more over "
        f"the best policy found without it, and at most {proven_text(room)}"
    )
    if len(with_nodes) and with_nodes["recovered"].notna().any():
        name, share = with_nodes["policy"].iloc[-1], float(with_nodes["recovered"].iloc[-1])
        if share >= 1:
            text += f"; {name} gain no less than the belief rollout"
        else:
            text += f"; {name} recover {percent(share)} of what the belief rollout gains"
    return text
