"""Passes and ascents by ``expect_next`` and ``push_forward``, which specify every backend."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.ascent import ascend
from mmdp.core.kernels.operator import Operator
from mmdp.core.kernels.problem import (
    TIE_RTOL,
    ActionChoice,
    AscentOptions,
    AscentResult,
    BackwardResult,
    Callback,
    PolicyTable,
    RowChooser,
    SweepType,
    at_time,
)
from mmdp.core.shapes import Array, IntArray, Mask


class Passes(Operator):
    """The forward, backward and ascent passes of a prepared problem."""

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
        probabilities; with ``weights`` the gradient G can be kept. ``keep``: which of actions,
        values, gradient and q to return besides the values at the first step. ``choose_row``:
        how ``"weighted"`` chooses the actions of a time, :func:`choose_actions` by default.
        """
        if choose_row is None:
            return self._run_backward(choice, weights, policy, keep)
        return Passes._run_backward(self, choice, weights, policy, keep, choose_row)

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
                actions[t] = policy[t]
                v = q[np.arange(S), policy[t]]
            else:
                assert policy is not None
                v = np.einsum("sa,sam->sm", policy[t], q)
            if values is not None:
                values[t] = v
            if all_q is not None:
                all_q[t] = np.where(allowed[:, :, None], q, -np.inf)
        kept_actions = actions if "actions" in keep or choice == "weighted" else None
        return BackwardResult(v, kept_actions, values, gradient, all_q)

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
        options = AscentOptions(float(tol), max_sweeps, sweep_type == "two-way", callback)
        if choose_row is None:
            return self._run_ascents(inits, options)
        return Passes._run_ascents(self, inits, options, choose_row)

    def _run_ascents(
        self,
        inits: Iterable[PolicyTable | None],
        options: AscentOptions,
        choose_row: RowChooser | None = None,
    ) -> list[AscentResult]:
        """Run the ascents; a backend overrides this if no Python function chooses rows."""
        sweeper = TableSweeper(self, options.two_way, choose_row)
        return [ascend(sweeper, init, *options.ascend_args) for init in inits]


@dataclass
class TableSweeper:
    """The sweeps of an ascent over tables; two-way ones keep q for the next forward pass."""

    prepared: Passes
    two_way: bool
    choose_row: RowChooser | None

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
