"""The policy as a table: what to do, how clear the choice is, and which models agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp import kernels
from mmdp.arguments import Read, checked
from mmdp.kernels import Plan
from mmdp.measures.choices import freedom
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy, markov_policy
from mmdp.solution import Solution

Array = npt.NDArray[np.float64]
TIE = 1e-9  # q of two actions closer than this share of what is at stake are equally good


@checked
def policy_table(
    solution: Read[Solution | MarkovPolicy], model: MMDP, *, tolerance: float | None = None
) -> pd.DataFrame:
    """One row per time and state, with columns

    - ``time``, ``state``, ``action`` (the most probable one of a randomised policy);
    - ``runner_up`` and ``margin``: the best other action and how much less it returns, in
      units of return from that time on. With the model weights b of the policy and
      q_{t,m}(s, a), G_t(s, a) = sum_m b_{t,m}(s) q_{t,m}(s, a), and the margin is
      (G_t(s, action) - G_t(s, runner_up)) / sum_m b_{t,m}(s): the loss when only this
      decision is changed. A negative margin says that the runner-up is better. Missing
      if there is no other action, if none changes anything, or if the state cannot be reached at
      that time;
    - ``visited``: the probability of being in the state at that time;
    - ``agree``: the weight of the models whose own optimal policy may take this action there;
    - ``free``, if a ``tolerance`` is given: the actions that may be mixed freely if that share of
      what is at stake may be lost (:func:`mmdp.freedom`).

    >>> import mmdp, mmdp.measures
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]],
    ...                 actions=["wait", "treat"])
    >>> print(mmdp.measures.policy_table(mmdp.solve(two, 1), two).to_string(index=False))
     time state action runner_up  margin  visited  agree
        0     0   wait     treat     2.0      1.0    0.5
    """
    policy = markov_policy(solution, "a policy table shows")
    cells = policy_cells(policy, model)
    labels = np.array([*model.action_labels, None], dtype=object)
    columns = {
        "time": np.repeat(np.arange(policy.horizon), model.n_states),
        "state": np.tile(np.array(model.state_labels, dtype=object), policy.horizon),
        "action": labels[policy.actions.reshape(-1)],
        "runner_up": labels[cells.runner_up.reshape(-1)],
        "margin": cells.margin.reshape(-1),
        "visited": cells.visited.reshape(-1),
        "agree": cells.agree.reshape(-1),
    }
    table = pd.DataFrame(model.times.beside(columns))
    if tolerance is not None:
        table["free"] = freedom(solution, model, tolerance).words().reshape(-1)
    return table


@dataclass(frozen=True, eq=False)
class Cells:
    """What the table says about each time and state, as arrays (T, S).

    ``runner_up`` holds action ids, -1 if there is none; ``margin`` is NaN then.
    """

    visited: Array
    margin: Array
    runner_up: npt.NDArray[np.int64]
    agree: Array


def policy_cells(policy: MarkovPolicy, model: MMDP) -> Cells:
    """The columns of :func:`policy_table`, by time and state."""
    policy.check(model)
    table, plan = policy.table_for(model), _plan(model, policy.horizon)
    b = plan.forward(table)
    found = plan.backward("given", policy=table, weights=b, keep=("gradient",))
    actions, visited = policy.actions.astype(np.int64), b.sum(axis=2)
    margin, runner_up = _margins(found.gradient, actions, model.decisions(visited))
    return Cells(visited, margin, runner_up, _agreement(plan, actions))


def _plan(model: MMDP, horizon: int) -> Plan:
    return kernels.get("auto", model.problem, horizon, passes=4).plan(model.problem, horizon)


def _margins(
    gradient: Array, actions: npt.NDArray[np.int64], visited: Array
) -> tuple[Array, npt.NDArray[np.int64]]:
    """((T, S) margins, (T, S) runners-up; -1 and NaN if there is none)."""
    chosen = np.take_along_axis(gradient, actions[:, :, None], axis=2)[:, :, 0]
    others = gradient.copy()
    np.put_along_axis(others, actions[:, :, None], -np.inf, axis=2)
    runner, best = others.argmax(axis=2), others.max(axis=2)
    known = np.isfinite(best) & (visited > 0)
    margin = np.full(visited.shape, np.nan)
    np.divide(chosen - np.where(known, best, 0.0), visited, out=margin, where=known)
    return margin, np.where(known, runner, -1)


def _agreement(plan: Plan, actions: npt.NDArray[np.int64]) -> Array:
    """(T, S) weight of the models for which the action is as good as any, from there on."""
    problem, horizon = plan.problem, len(actions)
    values = plan.backward("own", keep=("values",)).values
    agree = np.empty(actions.shape)
    # (M,) for each model its own: one with large rewards leaves the others as they are
    slack = np.minimum(TIE * problem.stakes(horizon), TIE * problem.magnitudes(horizon))
    slack = np.maximum(slack, problem.roundings(horizon))
    states = np.arange(problem.n_states)
    for t in range(horizon):
        q = np.where(problem.allowed[0, :, :, None], plan.step(t, values[t + 1]), -np.inf)
        best = q.max(axis=1)
        agree[t] = (q[states, actions[t]] >= best - slack) @ problem.weights
    return agree
