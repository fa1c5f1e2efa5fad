"""Passes and ascents by ``expect_next`` and ``push_forward``, which specify every backend.

A new storage or a new backend writes these two, P v and its transpose. Everything else is written
in terms of them in plain numpy, and overridden where a fused pass pays. Symbols as in
:mod:`mmdp.core.kernels.problem`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError
from mmdp.core.kernels.ascent import ascend
from mmdp.core.kernels.cpu.threads import default_n_threads, is_numba_disabled
from mmdp.core.kernels.problem import (
    TIE_RTOL,
    ActionChoice,
    AscentResult,
    BackwardResult,
    Callback,
    PolicyTable,
    Problem,
    RowChooser,
    SweepType,
    as_readonly,
    at_time,
)
from mmdp.core.kernels.rewards import EventRewards, Rewards
from mmdp.core.shapes import Array, IntArray, Mask


class Passes:
    """A problem over a number of decisions, prepared once on a backend."""

    n_threads: int | None = None  # None: the cores that this process may use
    min_parallel_work: float = 100_000  # multiply-adds below which one thread is faster

    def __init__(self, problem: Problem, horizon: int) -> None:
        problem.check_horizon(horizon)
        self.problem, self.horizon = problem, horizon

    # ------------------------------------------------------------ written by a storage or backend
    def expect_next(self, t: int, v: Array) -> Array:
        """Compute (S, A, M) sum_s' p(s'|s, a) v(s') in every model, from v (S, M)."""
        raise NotImplementedError

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        """Compute b (S, M) at t + 1 from b at t under actions (S,) or probabilities (S, A)."""
        raise NotImplementedError

    # ------------------------------------------------------------ written once
    def count_threads(self, work: float) -> int:
        """Return the number of threads of compiled code for ``work`` multiply-adds per step."""
        if is_numba_disabled():
            raise InputError(
                "controllers, beliefs and dual bounds need numba's compiler, which "
                "NUMBA_DISABLE_JIT switches off; unset it"
            )
        n_threads = self.n_threads or default_n_threads()
        return n_threads if work >= self.min_parallel_work else 1

    def q_step(self, t: int, v: Array) -> Array:
        """Compute (S, A, M) q = r + gamma P v at time t from v (S, M)."""
        return at_time(self.problem.r, t) + self.problem.discount * self.expect_next(t, v)

    def improve_objective(
        self, table: PolicyTable, rho: Array, formula: Any, min_gain: float
    ) -> tuple[IntArray, Array] | None:
        """Improve F by one change of an action after the other; return the table and its returns.

        rho (M,): the returns that count at the table. formula: the dataclass of F, with value and
        dual_density. A change must gain more than ``min_gain``. None if that is not compiled here.
        """
        return None

    def sum_models(self, values: Array) -> Array:
        """Sum values (..., M) over all models."""
        return np.asarray(self.problem.all_gather(values.sum(axis=-1)).sum(axis=0))

    def forward_by_start(self, run_forward: Callable[[Self], Array]) -> Array:
        """Run a forward pass in which every model has weight 1."""
        return run_forward(self.replace(weights=np.ones_like(self.problem.weights)))

    def credit_to_start(self, d: Array, gains: Array) -> Array:
        """Compute (..., M) what gains (..., M) add to the returns of the models at the start."""
        return d * gains

    def joint_weights(self, d: Array, weights: Array) -> Array:
        """Compute b (S, M) such that sum_m b x is what x adds to the returns with these weights."""
        return d * weights

    def compute_returns(self, first_values: Array) -> Array:
        """Compute (M,) the return of every model from the values (S, M) at the first step."""
        return self.problem.compute_returns(first_values)

    def replace(
        self,
        *,
        weights: Array | None = None,
        initial: Array | None = None,
        rewards: Rewards | None = None,
        terminal: Array | None = None,
        allowed: Mask | None = None,
        discount: float | None = None,
        horizon: int | None = None,
    ) -> Self:
        """Return a copy with other numbers, or over fewer decisions, that shares the transitions.

        rewards: (T or 1, S, A, M). terminal: (S, M). allowed: (T or 1, S, A).
        """
        arrays = {"weights": weights, "initial": initial, "r": rewards, "terminal": terminal}
        replacements: Any = {
            name: array if isinstance(array, EventRewards) else as_readonly(np.asarray(array))
            for name, array in arrays.items()
            if array is not None
        }
        problem = self.problem._replace(**replacements)
        if discount is not None:
            problem = problem._replace(discount=discount)
        if allowed is not None:
            problem = problem.restrict_actions(allowed)
        clone = copy.copy(self)
        clone._set_problem(problem, self.horizon if horizon is None else horizon)
        return clone

    def _set_problem(self, problem: Problem, horizon: int) -> None:
        """Replace the problem and the horizon; the transitions stay the same."""
        self.problem, self.horizon = problem, horizon

    # ------------------------------------------------------------ passes
    def backward(
        self,
        choice: ActionChoice,
        *,
        weights: Array | None = None,
        policy: PolicyTable | None = None,
        keep: Collection[str] = (),
        choose_row: RowChooser | None = None,
    ) -> BackwardResult:
        """Run one backward pass t = T..1 of q = r + gamma P v and v = q at the chosen action.

        ``choice``: ``"weighted"`` maximizes G = sum_m b q with ``weights`` b of shape
        (T or 1, S or 1, M). A tie goes to the incumbent ``policy`` (T, S) if there is one, else
        to the lowest action; a state of zero weight keeps its incumbent. ``"per_model"`` takes each
        model's own maximum. ``"policy"`` follows ``policy``, (T, S) actions or (T, S, A)
        probabilities; with ``weights`` the gradient G can be kept. ``keep``: which of values,
        gradient, q and the actions of ``"per_model"`` to return besides the values at the first
        step. ``choose_row``: how ``"weighted"`` chooses the actions of a time,
        :func:`choose_actions` by default.
        """
        kept_names = set(keep)
        if choice == "weighted":
            kept_names.add("actions")
        elif choice == "policy":
            kept_names.discard("actions")
        if choose_row is None:
            return self._run_backward(choice, weights, policy, kept_names)
        return Passes._run_backward(self, choice, weights, policy, kept_names, choose_row)

    def _run_backward(
        self,
        choice: ActionChoice,
        weights: Array | None,
        policy: PolicyTable | None,
        keep: Collection[str],
        choose_row: RowChooser | None = None,
    ) -> BackwardResult:
        """Run the backward pass; a backend overrides this if no Python function chooses rows."""
        x, T, choose_row = self.problem, self.horizon, choose_row or choose_actions
        S, A, M = x.n_states, x.n_actions, x.n_models
        v = x.terminal
        actions = np.zeros((T, S, M) if choice == "per_model" else (T, S), dtype=np.int32)
        values = np.empty((T + 1, S, M)) if "values" in keep else None
        gradient = np.empty((T, S, A)) if "gradient" in keep else None
        all_q = np.empty((T, S, A, M)) if "q" in keep else None
        if values is not None:
            values[T] = v
        for t in reversed(range(T)):
            allowed, q = at_time(x.allowed, t), self.q_step(t, v)
            if weights is not None:
                b = np.broadcast_to(at_time(weights, t), (S, M))
                G = compute_gradient(b, q, allowed)
                if gradient is not None:
                    gradient[t] = G
            if choice == "weighted":
                actions[t] = choose_row(G, b, None if policy is None else policy[t])
                v = q[np.arange(S), actions[t]]
            elif choice == "per_model":
                masked = np.where(allowed[:, :, None], q, -np.inf)
                actions[t] = masked.argmax(axis=1)
                v = masked.max(axis=1)
            elif policy is not None and policy.ndim == 2:
                v = q[np.arange(S), policy[t]]
            else:
                assert policy is not None
                v = np.einsum("sa,sam->sm", policy[t], q)
            if values is not None:
                values[t] = v
            if all_q is not None:
                all_q[t] = np.where(allowed[:, :, None], q, -np.inf)
        return BackwardResult(v, actions if "actions" in keep else None, values, gradient, all_q)

    def forward(self, policy: PolicyTable) -> Array:
        """Compute model weights b (T, S, M) under a policy, (T, S) or (T, S, A) (algorithm 1)."""
        b = np.empty((self.horizon, self.problem.n_states, self.problem.n_models))
        b[0] = self.problem.initial_joint()
        for t in range(self.horizon - 1):
            b[t + 1] = self.push_forward(t, b[t], policy[t])
        return b

    def ascend(
        self,
        inits: Iterable[PolicyTable | None],
        *,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        sweep_type: SweepType = "two-way",
        choose_row: RowChooser | None = None,
        callback: Callback | None = None,
    ) -> list[AscentResult]:
        """Run CADP from each of ``inits``: (T, S) actions, (T, S, A) probabilities or None for WSU.

        A ``"paper"`` sweep is a forward pass for b and a backward pass with them. From the
        second sweep on the forward pass of ``"two-way"`` sweeps improves the policy too: at time
        t, b_t of the new policy and q_t kept from the backward pass give the exact gradient
        there, so taking its maximizer is a coordinate step like those of the backward pass.
        An ascent ends when the policy repeats or gains nothing, when a sweep gains no more than
        ``tol``, in units of return, or after ``max_sweeps`` (one at least from a randomized init).

        ``choose_row`` restricts the rows pi_t that a policy may have. The return is linear in a
        whole row, so taking the best open row at each t is a coordinate step as before.
        Deterministic inits must have open rows only; other inits are given as probabilities.

        ``callback(policy, value)`` is called with the init and with improved policies, after every
        sweep or every few. An exception raised by it ends the ascent.
        """
        is_two_way = sweep_type == "two-way"
        sweeper = (
            self.make_sweeper(is_two_way)
            if choose_row is None
            else TableSweeper(self, is_two_way, choose_row)
        )
        results = (ascend(sweeper, init, float(tol), max_sweeps, callback) for init in inits)
        return [sweeper.finish(result) for result in results]

    def make_sweeper(self, two_way: bool) -> TableSweeper:
        """Make the sweeps of ascents in which no Python function chooses rows."""
        return TableSweeper(self, two_way)


@dataclass
class TableSweeper:
    """The sweeps of an ascent over tables; two-way ones keep q for the next forward pass."""

    prepared: Passes
    two_way: bool
    choose_row: RowChooser | None = None

    def __post_init__(self) -> None:
        self.problem = self.prepared.problem

    def initialize(self, init: PolicyTable | None) -> tuple[PolicyTable, Array]:
        """Return the first policy (of WSU if ``init`` is None) and its returns."""
        self.q: Array | None = None
        if init is not None:
            return init, self.prepared.compute_returns(
                self.prepared.backward("policy", policy=init).first_values
            )
        prior = self.problem.prior_weights(self.prepared.horizon)
        wsu = self.prepared.backward("weighted", weights=prior, choose_row=self.choose_row)
        return wsu.actions, self.prepared.compute_returns(wsu.first_values)

    def sweep(self, policy: PolicyTable) -> tuple[IntArray, Array]:
        """Return the policy after one sweep, and its returns."""
        if self.q is None:
            b = self.prepared.forward(policy)
        else:
            policy, b = self._improve_forward(policy, self.q)
        backward_pass = self.prepared.backward(
            "weighted",
            weights=b,
            policy=policy if policy.ndim == 2 else None,
            choose_row=self.choose_row,
            keep=("q",) if self.two_way else (),
        )
        self.q = backward_pass.q
        return backward_pass.actions, self.prepared.compute_returns(backward_pass.first_values)

    def finish(self, result: AscentResult) -> AscentResult:
        """Return the result of an ascent, with returns in 64-bit numbers."""
        return result

    def _improve_forward(self, policy: PolicyTable, q: Array) -> tuple[PolicyTable, Array]:
        """Improve the actions of each time for the b that arrives there; return the policy and b.

        q (T, S, A, M) are those of ``policy``.
        """
        x, choose_row = self.problem, self.choose_row or choose_actions
        b = np.empty((len(policy), x.n_states, x.n_models))
        new_policy = np.array(policy)
        b[0] = x.initial_joint()
        for t in range(len(policy)):
            new_policy[t] = choose_row(
                compute_gradient(b[t], q[t], at_time(x.allowed, t)), b[t], policy[t]
            )
            if t + 1 < len(policy):
                b[t + 1] = self.prepared.push_forward(t, b[t], new_policy[t])
        return new_policy, b


def compute_gradient(b: Array, q: Array, allowed: Mask) -> Array:
    """Compute (S, A) G = sum_m b q, -inf if not allowed."""
    masked_q = q if allowed.all() else np.where(allowed[:, :, None], q, 0.0)
    G: Array = np.matmul(masked_q, b[:, :, None])[:, :, 0]
    G[~allowed] = -np.inf
    return G


def choose_actions(G: Array, b: Array, incumbent: npt.NDArray[np.generic] | None) -> IntArray:
    """Return (S,) maximizers of G (S, A); ties go to the incumbent, else to the lowest action."""
    best = G.max(axis=1)
    finite_G = np.where(np.isfinite(G), G, 0.0)
    is_tied = (best - TIE_RTOL * np.abs(finite_G).max(axis=1))[:, None] <= G
    actions = is_tied.argmax(axis=1).astype(np.int32)
    if incumbent is not None:
        states = np.arange(len(G))
        keeps_incumbent = is_tied[states, incumbent] | (b.sum(axis=1) == 0)
        actions = np.where(keeps_incumbent, incumbent, actions).astype(np.int32)
    return actions
