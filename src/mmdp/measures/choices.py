"""Where people are free to choose: actions that cost little alone, and sets that may be mixed.

With q and v of a policy and its model weights b, taking a at (t, s) alone moves the return of model
m by gamma^t b_{t,m}(s) / lambda_m (q_{t,m}(s, a) - v_{t,m}(s)), which is exact. Small losses add up
if people choose everywhere. So sets of actions that may be mixed are proven by a backward pass in
which every model takes its own worst action of the sets,

    w_{t,m}(s) = min_{a in sets_t(s)} r_m(s, a) + gamma sum_s' p_m(s'|s, a) w_{t+1,m}(s'),

which is below the return of whatever is picked from them, for whatever reason. An objective that
never falls if a return rises is at least its value at these lower returns.

The sets hold the actions whose cost per visit, gamma^t sum_m b (v - q)^+ / sum_m b, is at most a
threshold; like that pass, it counts the models in which an action is worse. Bisection finds the
highest threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp import kernels
from mmdp.arguments import checked
from mmdp.errors import InputError
from mmdp.kernels.endless import Endless, Factorised
from mmdp.kernels.problem import at
from mmdp.measures.stakes import Stake, stake
from mmdp.model import MMDP
from mmdp.objective import Function, Objective, as_objective
from mmdp.policy import Policy, markov_policy
from mmdp.solution import Solution
from mmdp.solve import evaluate
from mmdp.words import in_unit, number, percent

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

EPS = 1e-12  # of the value: a loss below it is rounding, and none
UNSEEN = 1e-12  # weight of the models as given, which counts if a policy never leads to a state


@dataclass(frozen=True, eq=False, repr=False)
class Freedom:
    """Which actions are as good as those of a policy, up to a tolerance.

    ``tolerance`` is a share of what is at stake (``stake``), ``allowance`` the same as an amount.
    ``loss`` (T, S, A) is what the objective loses if the action is taken at that time and state
    alone, below 0 if it gains, NaN if it is not allowed; ``mixed`` (T, S, A) are the actions that
    may be mixed freely, the policy's own among them. Whatever is picked from these, the value is at
    least ``floor``. ``visited`` (T, S) is the probability of meeting a decision, 0 if no action
    changes anything there. A stationary policy has T = 1 and shares of the discounted visits; its
    loss is that of taking the action in this state at all times. A policy with memory has its
    nodes after the states, as in (T, S, N, A), and moves between them as it would.
    """

    policy: Policy
    model: MMDP
    objective: Objective
    tolerance: float
    stake: Stake
    value: float
    floor: float
    loss: Array
    mixed: Mask
    visited: Array

    @property
    def allowance(self) -> float:
        """What may be lost, in units of the value."""
        return self.tolerance * self.stake.amount

    @property
    def alone(self) -> Mask:
        """(T, S, A) whether the action costs no more than the allowance if taken there alone."""
        found: Mask = self.loss <= max(self.allowance, EPS * abs(self.value))
        return found

    @property
    def share(self) -> float:
        """The share of decisions, by how often they come up, with two or more actions to mix."""
        return self._share(self.mixed)

    @property
    def share_alone(self) -> float:
        """The share of decisions for which two or more actions are good enough alone."""
        return self._share(self.alone)

    def _share(self, open_: Mask) -> float:
        total = self.visited.sum()
        return float(self.visited[open_.sum(axis=-1) > 1].sum() / total) if total else 0.0

    @property
    def text(self) -> str:
        """The share and what it costs, in a sentence."""
        most = self.allowance_text
        if not self.share:
            return f"no decision is free if {f'at most {most}' if most else 'nothing'} may be lost"
        free = f"{percent(self.share)} of decisions are free"
        if not most:
            return f"{free}: their actions are equally good"
        return f"{free}: choosing among their actions at will costs at most {most} in all"

    @property
    def allowance_text(self) -> str:
        """The allowance, and which share of what is at stake it is; empty if it is 0."""
        if not self.allowance:
            return ""
        amount = in_unit(number(self.allowance, 3), self.model.unit)
        return f"{amount} ({100 * self.tolerance:g}% of what is at stake, {self.stake.text})"

    def words(self) -> npt.NDArray[np.object_]:
        """(T, S) the labels of the actions that may be mixed: ``wait or treat``."""
        labels = np.array(self.model.action_labels, dtype=object)
        found = np.empty(self.visited.shape, dtype=object)
        for place in np.ndindex(*found.shape):
            found[place] = " or ".join(labels[self.mixed[place]])
        return found

    def to_frame(self) -> pd.DataFrame:
        """One row per time, state (and node) and allowed action: ``loss, alone, mixed``."""
        place = np.nonzero(~np.isnan(self.loss))
        columns: dict[str, Any] = {} if self.policy.horizon == math.inf else {"time": place[0]}
        columns["state"] = np.array(self.model.state_labels, dtype=object)[place[1]]
        if self.loss.ndim == 4:
            columns["node"] = place[2]
        columns["action"] = np.array(self.model.action_labels, dtype=object)[place[-1]]
        found = {"loss": self.loss, "alone": self.alone, "mixed": self.mixed}
        columns |= {name: x[place] for name, x in found.items()}
        return pd.DataFrame(self.model.times.beside(columns))

    def __repr__(self) -> str:
        return f"Freedom({self.text})"


@checked
def freedom(
    policy: Policy | Solution, model: MMDP, tolerance: float = 0.01, *,
    objective: str | Objective | Function | None = None,
    compare: Mapping[str, Policy | Solution] | None = None,
) -> Freedom:  # fmt: skip
    """Which actions people may take in place of a policy's without losing more than a tolerance.

    Parameters
    ----------
    policy
        A policy that takes one action in each state (and node): of time and state, stationary
        or with nodes of memory; or a solution.
    model
        The models it is followed in.
    tolerance
        The share that may be lost of what is at stake (:func:`mmdp.measures.stake`).
    objective
        What counts over the models; by default the solution's own, or the mean. It must never fall
        if a return rises.
    compare
        Policies by name, such as what is done today: the difference to the first is at stake.
        By default that to the best policy which always takes the same action.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0], [1.0]]]] * 2, [[[4.0, 3.98, 0]], [[4.0, 4.0, 0]]])
    >>> today = mmdp.MarkovPolicy([[2]] * 3, n_actions=3)
    >>> found = mmdp.freedom(mmdp.solve(two, 3), two, compare={"today": today})
    >>> found.share, found.mixed[0, 0].tolist()
    (1.0, [True, True, False])
    """
    if objective is None:
        objective = policy.objective if isinstance(policy, Solution) else "mean"
    chosen, ground = as_objective(objective), _ground(policy, model)
    if not 0 <= tolerance < math.inf:
        raise InputError(
            f"tolerance must be a share of what is at stake such as 0.01, not {tolerance!r}"
        )
    if not chosen.monotone:
        raise InputError(
            f"freedom needs an objective that never falls if a return rises; {chosen.name} may",
            ["say mmdp.Custom(function, monotone=True) if it does not"],
        )
    found = evaluate(ground.policy, model)

    def worth(rho: Array) -> Array:
        return chosen.value(chosen.counted(rho, lambda: found.oracle), model.weights)

    def lost(gain: Array) -> Array:
        if chosen.linear:  # without rounding to the size of the value
            return 0.0 - gain @ model.weights  # no -0.0
        return value - worth(found.returns + gain)

    value, allowed = found.value(chosen), model.problem.allowed
    at_stake = stake(ground.policy, model, objective=chosen, compare=compare, value=value)
    cells = [(lost(gain), *rest) for gain, *rest in ground.cells()]
    loss, cost, visited = (np.array(x) for x in zip(*cells, strict=True))
    if loss.ndim == 4:  # nodes
        allowed = allowed[:, :, None]
    loss[np.abs(loss) <= EPS * abs(value)] = 0.0  # rounding, also below 0
    cost = np.where(allowed, cost, np.inf)
    # a loss that is rounding is none: actions that are equally good may be mixed at tolerance 0
    lost_most = max(tolerance * at_stake.amount, EPS * abs(value))
    mixed, floor = _widest(ground, cost, worth, value - lost_most)
    return Freedom(
        ground.policy, model, chosen, tolerance, at_stake, value, floor,
        np.where(allowed, loss, np.nan), mixed, model.decisions(visited),
    )  # fmt: skip


def _widest(
    ground: _Ground, cost: Array, worth: Callable[[Array], Array], least: float
) -> tuple[Mask, float]:
    """The most actions (T, S, A) by their cost per visit whose own worst is worth enough."""
    mixed, floor = ground.own, float(worth(ground.worst(ground.own)))
    levels = np.unique(cost[np.isfinite(cost)])
    low, high = -1, len(levels)  # low is wide enough, high too wide
    while high - low > 1:
        middle = (low + high) // 2
        sets = ground.own | (cost <= levels[middle])
        found = float(worth(ground.worst(sets)))
        if found >= least:
            low, mixed, floor = middle, sets, found
        else:
            high = middle
    return mixed, floor


# ---------------------------------------------------------------------- policies
class _Ground(Protocol):
    """A policy in its models; ``own`` (T, S, A) are its actions."""

    policy: Policy
    own: Mask

    def cells(self) -> Iterator[tuple[Array, Array, Array]]:
        """For each time what an action adds to the returns (S, A, M), its cost per visit (S, A),
        and the probability of being in a state (S,).
        """

    def worst(self, sets: Mask) -> Array:
        """(M,) at most the return of anything that is picked from the sets."""


def _ground(given: Policy | Solution, model: MMDP) -> _Ground:
    policy: Any = getattr(given, "policy", given)
    if not getattr(policy, "exact", False):  # refuse what has no table, with the reason
        markov_policy(given, "freedom is about")
    policy.check(model)
    if policy.memory:
        return _Noded(policy, model)
    if not policy.deterministic:
        raise InputError(
            "freedom is about a policy that takes one action in a state, but this one draws it"
        )
    return (_Endless if policy.horizon == math.inf else _Finite)(policy, model)


class _Finite:
    def __init__(self, policy: Any, model: MMDP) -> None:
        x, T = model.problem, policy.horizon
        self.policy, self.plan = policy, kernels.get("auto", x, T, passes=20).plan(x, T)
        self.own = np.eye(x.n_actions, dtype=bool)[policy.actions]

    def cells(self) -> Iterator[tuple[Array, Array, Array]]:
        plan, x, actions = self.plan, self.plan.problem, self.policy.actions
        b, d = plan.forward(actions), plan.by_start(lambda each: each.forward(actions))
        v = plan.backward("given", policy=actions, keep=("values",)).values
        for t in range(plan.horizon):
            q = np.where(at(x.allowed, t)[:, :, None], plan.step(t, v[t + 1]), v[t][:, None])
            gain = x.discount**t * (q - q[np.arange(len(q)), actions[t]][:, None])
            yield plan.felt(d[t][:, None], gain), _cost(gain, b[t], x.weights), b[t].sum(axis=1)

    def worst(self, sets: Mask) -> Array:
        """By the best of the models with rewards below 0 for above."""
        plan, x = self.plan, self.plan.problem
        other = plan.but(rewards=-x.r, terminal=-x.terminal, allowed=sets)
        return -other.returns(other.backward("own").first)


class _Noded(_Finite):
    """The same with nodes: q (S, N, A, M) if the nodes move as they would."""

    def cells(self) -> Iterator[tuple[Array, Array, Array]]:
        plan, x, chart = self.plan, self.plan.problem, self.policy.controller
        b = plan.node_weights(chart)[1]
        d = plan.by_start(lambda each: each.node_weights(chart)[1])
        v, found = self._last(), []
        for t in reversed(range(plan.horizon)):
            q = plan.node_step(t, v, chart)
            v = np.take_along_axis(q, chart.actions[t][:, :, None, None], axis=2)
            gain = x.discount**t * np.where(at(x.allowed, t)[:, None, :, None], q - v, 0.0)
            v = v[:, :, 0]
            gains = plan.felt(d[t][:, :, None], gain)
            found.append((gains, _cost(gain, b[t], x.weights), b[t].sum(axis=2)))
        yield from reversed(found)

    def worst(self, sets: Mask) -> Array:
        plan, v, chart = self.plan, self._last(), self.policy.controller
        for t in reversed(range(plan.horizon)):
            q = plan.node_step(t, v, chart)
            v = np.where(sets[t][..., None], q, np.inf).min(axis=2)
        return plan.returns(v[np.arange(len(v)), chart.first])

    def _last(self) -> Array:
        """(S, N, M) values after the last decision."""
        terminal = self.plan.problem.terminal
        return np.repeat(terminal[:, None], self.policy.n_nodes, axis=1)


class _Endless:
    def __init__(self, policy: Any, model: MMDP) -> None:
        found = Endless.of(model.problem)
        if not isinstance(found, Factorised):
            raise InputError(
                "the model has too many states for the freedom of a stationary policy",
                ["give policy.over(T), the same over T decisions"],
            )
        self.policy, self.x = policy, found
        self.own = np.eye(model.n_actions, dtype=bool)[policy.actions][None]

    def cells(self) -> Iterator[tuple[Array, Array, Array]]:
        """By the formula for another action in one state (:mod:`mmdp.search.rules`)."""
        x, pi, gamma = self.x, self.policy.actions, self.x.problem.discount
        s, b = np.arange(len(pi)), x.visits(pi).T  # (S, M)
        q, back = x.q(x.values(pi)), np.einsum("msaz,mzs->msa", x.P, x.inverse(pi))
        gain, more = (np.moveaxis(y - y[:, s, pi][:, :, None], 0, 2) for y in (q, back))
        gain, more = (np.where(x.problem.allowed[0][:, :, None], y, 0.0) for y in (gain, more))
        lam = x.problem.weights
        visited = b @ lam
        share = visited / visited.sum()
        yield b[:, None] * gain / (1 - gamma * more), _cost(gain, b * lam, lam), share

    def worst(self, sets: Mask) -> Array:
        x = self.x.problem
        found = Endless.of(x._replace(r=-x.r)).own(sets[0])
        return -(x.returns(found.values.T) + found.above)


def _cost(gain: Array, b: Array, weights: Array) -> Array:
    """(..., A) sum_m b (-gain)^+ / sum_m b; with the weights as given if b (..., M) is 0."""
    b = b + UNSEEN * weights
    lost = np.matmul(np.maximum(-gain, 0.0), b[..., None])[..., 0]
    cost: Array = lost / b.sum(axis=-1)[..., None]
    return cost
