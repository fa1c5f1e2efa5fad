"""Bounds for objectives other than the mean.

A monotone F is at most F(rho*), with rho* (M,) the returns of the models' own optimal policies.
A concave one is also at most a tilted mean: for all weights xi of its envelope

    F(rho) <= sum_m lambda_m xi_m rho_m + penalty(xi),

so every bound on the mean with weights lambda xi bounds F. The best xi is found by fictitious play
between xi, which answers the average returns so far, and a policy, which answers the average xi by
CADP. Their averages approach the equilibrium, at which no other weights give a lower bound by much.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mmdp.bounds import closed
from mmdp.errors import InputError, Remedy
from mmdp.interrupts import answer
from mmdp.kernels import Kernel, Problem
from mmdp.kernels.compiling import clock
from mmdp.kernels.problem import Array, Table
from mmdp.model import MMDP
from mmdp.objective import Objective
from mmdp.solution import Bound

ROUNDS = 300  # of the play at most
SHARE = 0.25  # of the time that it may take
CLOSE = 1e-9  # relative distance between both players at which it ends


class _Enough(Exception):
    """The time for the play is up."""


def check_bounded(objective: Objective, method: str = "best") -> None:
    """Refuse an objective that no bound, or not this one, is known for."""
    if objective.monotone is None:
        raise InputError(
            f"a bound on {objective} holds only if it is monotone; say mmdp.Custom(f, "
            "monotone=True) if no value falls when a return rises"
        )
    if not objective.monotone:
        raise InputError(
            f"no bound is known for {objective}, which is not monotone; ask for no certificate"
        )
    if not objective.concave and method not in ("best", "oracle"):
        raise InputError(
            f"{objective} is not concave, so {method} does not bound it",
            [Remedy("method", "oracle", do="use")],
        )


class Play:
    """Fictitious play: ``xi`` (M,) are the weights found, ``best`` the most that F reached."""

    def __init__(
        self, problem: Problem, horizon: int, kernel: Kernel, objective: Objective, own: Array
    ) -> None:
        self.problem, self.horizon, self.kernel = problem, horizon, kernel
        self.objective, self.own = objective, own
        self.policy: Table | None = None
        self.best, self.rounds = -np.inf, 0

    def run(self, policy: Table | None, until: float) -> None:
        """Rounds from a policy (None: the mean's) until both players agree or the time is up."""
        F, lam = self.objective, self.problem.weights
        self.policy, self.xi = policy, np.ones_like(lam)
        rho = self._answer(self.xi, until) if policy is None else self._rho(policy)
        self.xi = average = F.tilt(rho, lam)
        least, most = float(F.value(rho, lam)), np.inf
        for k in range(2, ROUNDS):
            answer = self._answer(average, until)
            self.rounds = k
            tilted = float((lam * average) @ answer) + F.penalty(average, lam)
            if tilted < most:
                most, self.xi = tilted, average
            rho = rho + (answer - rho) / k
            least = max(least, float(F.value(rho, lam)))
            # by the tilted weights: a model that does not count may have returns of another scale
            if most - least <= CLOSE * float((lam * self.xi) @ np.abs(rho)) or clock() > until:
                return
            average = average + (F.tilt(rho, lam) - average) / k

    def _answer(self, xi: Array, until: float) -> Array:
        """(M,) rho of CADP's policy for the weights lambda xi, or of the best when time is up."""

        def watch(policy: Table, value: float) -> None:
            self.policy = policy
            if clock() > until:
                raise _Enough

        x = self.problem._replace(weights=self.problem.weights * xi)
        with contextlib.suppress(_Enough):
            self.kernel.ascend(x, self.horizon, [self.policy], watch=watch)
        assert self.policy is not None
        return self._rho(self.policy)

    def _rho(self, policy: Table) -> Array:
        x = self.problem
        first = self.kernel.backward(x, self.horizon, "given", policy=policy).first
        rho = self.objective.counted(x.returns(first), lambda: self.own)
        self.best = max(self.best, float(self.objective.value(rho, x.weights)))
        return rho


def _first(objective: Objective, weights: Array, own: Array, slack: Array) -> float:
    """F(rho*) and what rounding can add. No return is above rho*, so a regret needs none."""
    if objective.regret:
        return float(objective.value(np.zeros_like(own), weights))
    return float(objective.value(own + slack, weights))


Shift = Callable[[float], float]  # a bound on the tilted mean as one on F
OfMean = Callable[[MMDP, Table | None, Shift], Bound]  # bounds the mean of a model


def prove(
    model: MMDP, horizon: int, kernel: Kernel, objective: Objective, method: str, *,
    seconds: float, policy: Table | None, of_mean: OfMean,
) -> Bound:  # fmt: skip
    """The least of F(rho*) and a bound on the mean with tilted weights."""
    x = model.problem
    own = x.returns(kernel.backward(x, horizon, "own").first)
    slack = 4 * closed.roundings(x, horizon)  # the error of the returns, and that of F
    first = _first(objective, x.weights, own, slack)
    oracle = Bound(first, "oracle", "history", {"bounds": {"oracle": first}}, objective=objective)
    if method == "oracle" or not objective.concave:
        return oracle
    play = Play(x, horizon, kernel, objective, own)
    try:
        play.run(policy, clock() + SHARE * seconds)
    except KeyboardInterrupt as stop:
        answer(stop)
        return replace(oracle, details={**oracle.details, "interrupted": True})
    weights = x.weights * play.xi
    offset = objective.penalty(play.xi, x.weights) + float(weights @ slack)
    if objective.regret:
        offset -= float(weights @ own)
    some = np.flatnonzero(weights > 0)
    part = model.subset(some).replace(weights=weights[some] / weights.sum())
    found = of_mean(part, play.policy, lambda value: min(first, value + offset))
    bounds = {key: value + offset for key, value in found.details["bounds"].items()}
    bounds["oracle"] = first
    details = {
        **found.details, "bounds": bounds, "incumbent": play.best, "weights": weights,
        "rounds": play.rounds,
    }  # fmt: skip
    if first <= found.value + offset:
        return replace(oracle, details=details)
    return replace(found, value=found.value + offset, details=details, objective=objective)
