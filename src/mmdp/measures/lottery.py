"""Lotteries over a few policies: what a single policy gives up against drawing one of several.

A policy is drawn once, before the first decision. A lottery with probabilities w over policies
with returns rho^k has returns sum_k w_k rho^k, so for a concave F the best lottery is found by
column generation. A linear program in w and theta has one cut for each xi seen so far,

    max theta   with   theta <= sum_m lambda_m xi_m (sum_k w_k rho^k_m) + penalty(xi),

and its multipliers average these xi. CADP finds the next policy for the average.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from mmdp import kernels
from mmdp.arguments import Read, Seconds, Seed, checked
from mmdp.bounds import Bound, bound
from mmdp.clock import clock, unanswered
from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.kernels.problem import Table
from mmdp.methods import CADP
from mmdp.model import MMDP
from mmdp.objective import Function, Objective, as_objective
from mmdp.policy import MarkovPolicy
from mmdp.solution import Solution
from mmdp.solve import solve

Array = npt.NDArray[np.float64]

TOLERANCE = 1e-9  # relative gain from which another cut or policy counts
ROUNDS, CUTS = 100, 500  # at most
STARTS = 16  # of CADP before the search for another policy ends
LEAST = 1e-6  # probability of a policy that is kept
SECONDS = 10.0


@dataclass(frozen=True, eq=False, repr=False)
class Mixture:
    """A lottery: follow ``policies[k]`` with probability ``probabilities[k]``, drawn once.

    ``value`` is the objective of its ``returns`` (M,), and ``single`` the best single policy that
    was found. No lottery and no single policy of time and state exceeds ``bound``.
    """

    policies: tuple[MarkovPolicy, ...]
    probabilities: Array
    returns: Array
    value: float
    single: Solution
    bound: Bound

    @property
    def objective(self) -> Objective:
        """What was maximised over the models."""
        return self.single.objective

    @property
    def gives_up(self) -> float:
        """What the single policy gives up against the lottery."""
        return max(self.value - self.single.value, 0.0)

    @property
    def gap(self) -> float:
        """(bound - value) / |value| of the lottery."""
        return self.bound.gap(self.value)

    def __repr__(self) -> str:
        shares = ", ".join(f"{100 * p:.3g}%" for p in self.probabilities)
        return (
            f"Mixture({self.objective.name} {self.value:,.6g} with {shares}; "
            f"one policy {self.single.value:,.6g}; at most {self.bound.value:,.6g})"
        )


@unanswered()
@checked
def mixture(
    model: MMDP,
    horizon: Read[int | None] = None,
    objective: str | Objective | Function = "cvar:0.1",
    *,
    time_limit: Seconds | None = None,
    backend: str | Kernel = "auto",
    seed: Seed = 0,
) -> Mixture:
    """The best lottery found for a concave objective, and the best single policy found.

    Drawing one of several policies, once, can be better for the worst models than every single
    policy. For the mean it never is. The ``bound`` of what is found says how much better another
    lottery could be. ``time_limit``: seconds for the search, and as many again for the bound; 10
    by default.

    >>> import mmdp
    >>> bets = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[4.0, 0.0]], [[0.0, 4.0]]])
    >>> found = mmdp.mixture(bets, 1, "worst")
    >>> found.single.value, round(found.value, 6), found.probabilities.round(6).tolist()
    (0.0, 2.0, [0.5, 0.5])
    """
    chosen = as_objective(objective)
    if not chosen.concave:
        raise InputError(f"{chosen.name} is not concave, so no best lottery can be found for it")
    if horizon == math.inf:
        raise InputError("a lottery is over policies with a last decision; give a finite horizon")
    seconds = SECONDS if time_limit is None else time_limit
    deadline = clock() + seconds
    single = solve(model, horizon, objective=chosen, time_limit=seconds, backend=backend, seed=seed)
    master = Master(chosen, model.weights, single.evaluation.oracle if chosen.regret else None)
    steps = int(single.provenance.horizon)
    kernel = kernels.get(backend, model.problem, steps)
    tables, shares = [single.policy.actions], np.ones(1)
    master.add(single.returns)
    for _ in range(ROUNDS):
        shares, tilted = master.solve()
        known = np.array(master.columns) @ tilted
        enough = float(known.max() + TOLERANCE * np.abs(known).max())
        start = tables[int(known.argmax())]
        for table, returns in _answers(model, steps, kernel, tilted, start, deadline, seed):
            if tilted @ master.counted(returns) > enough:
                tables.append(table)
                master.add(returns)
                break
        else:
            break
    used = np.flatnonzero(shares > LEAST)
    shares = shares[used] / shares[used].sum()
    rho = shares @ np.array(master.columns)[used]
    return Mixture(
        policies=tuple(MarkovPolicy.for_model(model, tables[k]) for k in used),
        probabilities=shares,
        returns=rho + master.own,
        value=float(chosen.value(rho, model.weights)),
        single=single,
        bound=bound(
            model, steps, objective=chosen, time_limit=seconds, incumbent=single, backend=backend
        ),
    )


def _answers(
    model: MMDP, steps: int, kernel: Kernel, weights: Array, start: Table, deadline: float,
    seed: int | None,
) -> Iterator[tuple[Table, Array]]:  # fmt: skip
    """CADP's policies for these weights and their returns, from more starts while there is time."""
    if clock() < deadline:
        plan = kernel.plan(model.problem._replace(weights=weights), steps)
        best = max(plan.ascend([start, None]), key=lambda end: end.value)
        yield best.policy, best.returns
    if (left := deadline - clock()) > 0:
        tilted = model.replace(weights=weights / weights.sum())
        found = solve(
            tilted, steps, CADP(starts=STARTS), time_limit=left, backend=kernel, seed=seed
        )
        yield found.policy.actions, found.returns


class Master:
    """The linear program over the policies so far."""

    def __init__(self, objective: Objective, weights: Array, own: Array | None) -> None:
        self.objective, self.weights = objective, weights
        self.own = np.zeros(len(weights)) if own is None else own
        self.columns: list[Array] = []  # (M,) rho of each policy
        self.cuts: list[Array] = []  # (M,) xi
        self.penalties: list[float] = []

    def counted(self, returns: Array) -> Array:
        return self.objective.counted(returns, lambda: self.own)

    def add(self, returns: Array) -> None:
        """Another policy, by its returns (M,)."""
        self.columns.append(self.counted(returns))
        self.cut(self.columns[-1])

    def cut(self, rho: Array) -> None:
        """F(x) <= sum lambda xi x + penalty for every x, with equality at rho."""
        xi = self.objective.tilt(rho, self.weights)
        self.cuts.append(xi)
        self.penalties.append(self.objective.penalty(xi, self.weights))

    def solve(self) -> tuple[Array, Array]:
        """Probabilities (K,) of the policies, and weights (M,) of the models for the next one."""
        columns = np.array(self.columns)
        unit = float(np.abs(columns).max()) or 1.0
        while True:
            w, theta, mu = self._program(columns / unit, unit)
            rho = w @ columns
            short = theta * unit - float(self.objective.value(rho, self.weights))
            if short <= TOLERANCE * unit or len(self.cuts) >= CUTS:
                return w, self.weights * (mu @ np.array(self.cuts))
            self.cut(rho)

    def _program(self, columns: Array, unit: float) -> tuple[Array, float, Array]:
        """w (K,), theta, and the multipliers (cuts,) that say which cuts hold theta down."""
        heights = (np.array(self.cuts) * self.weights) @ columns.T
        n_cuts, n_policies = heights.shape
        found = linprog(
            np.append(np.zeros(n_policies), -1.0),
            A_ub=np.column_stack([-heights, np.ones(n_cuts)]),
            b_ub=np.array(self.penalties) / unit,
            A_eq=np.append(np.ones(n_policies), 0.0)[None],
            b_eq=[1.0],
            bounds=[(0.0, None)] * n_policies + [(None, None)],
        )
        assert found.x is not None
        w, mu = np.maximum(found.x[:-1], 0.0), np.maximum(-found.ineqlin.marginals, 0.0)
        return w / w.sum(), float(found.x[-1]), mu / mu.sum()
