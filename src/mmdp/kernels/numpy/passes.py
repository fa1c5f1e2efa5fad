"""Passes and ascents on ``expect`` and ``push`` alone: the specification of every machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from mmdp.kernels.ascent import ascend
from mmdp.kernels.operator import Operator
from mmdp.kernels.problem import (
    TIE,
    Array,
    Ascent,
    Backward,
    Choice,
    IntArray,
    Job,
    Pick,
    Sweeps,
    Table,
    Watch,
    at,
)


class Passes(Operator):
    """The passes of a plan over time; symbols as in :mod:`mmdp.kernels.problem`."""

    def backward(
        self,
        choice: Choice,
        *,
        weights: Array | None = None,
        policy: Table | None = None,
        keep: Collection[str] = (),
        pick: Pick | None = None,
    ) -> Backward:
        """One pass t = T..1 of q = r + gamma P v and v = q at the chosen action.

        ``choice``: ``"weighted"`` maximises G = sum_m b q with ``weights`` b of shape
        (T or 1, S or 1, M). A tie goes to the incumbent ``policy`` (T, S) if there is one, else
        to the lowest action; a state of zero weight keeps its incumbent. ``"own"`` takes each
        model's own maximum. ``"given"`` follows ``policy``, (T, S) actions or (T, S, A)
        probabilities; with ``weights`` the gradient G can be kept. ``keep``: which of actions,
        values, gradient and q to return besides the values at the first step. ``pick``: how
        ``"weighted"`` chooses the actions of a time, :func:`choose` by default.
        """
        if pick is None:
            return self._backward(choice, weights, policy, keep)
        return Passes._backward(self, choice, weights, policy, keep, pick)

    def _backward(
        self, choice: Choice, weights: Array | None, policy: Table | None, keep: Collection[str],
        pick: Pick | None = None,
    ) -> Backward:  # fmt: skip
        """A machine overrides this for rows that need no Python function."""
        x, T, pick = self.problem, self.horizon, pick or choose
        S, A, M = x.n_states, x.n_actions, x.n_models
        v = x.terminal
        actions = np.zeros((T, S, M) if choice == "own" else (T, S), dtype=np.int32)
        values = np.empty((T + 1, S, M)) if "values" in keep else None
        gradient = np.empty((T, S, A)) if "gradient" in keep else None
        all_q = np.empty((T, S, A, M)) if "q" in keep else None
        if values is not None:
            values[T] = v
        for t in reversed(range(T)):
            allowed, q = at(x.allowed, t), self.step(t, v)
            if weights is not None:
                b = np.broadcast_to(at(weights, t), (S, M))
                G = weighed(b, q, allowed)
                if gradient is not None:
                    gradient[t] = G
            if choice == "weighted":
                actions[t] = pick(G, b, None if policy is None else policy[t])
                v = q[np.arange(S), actions[t]]
            elif choice == "own":
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
        chosen = actions if "actions" in keep or choice == "weighted" else None
        return Backward(v, chosen, values, gradient, all_q)

    def forward(self, policy: Table) -> Array:
        """(T, S, M) model weights b under ``policy``, (T, S) or (T, S, A) (algorithm 1)."""
        b = np.empty((self.horizon, self.problem.n_states, self.problem.n_models))
        b[0] = self.problem.start()
        for t in range(self.horizon - 1):
            b[t + 1] = self.push(t, b[t], policy[t])
        return b

    def ascend(
        self,
        starts: Iterable[Table | None],
        *,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        sweeps: Sweeps = "two-way",
        pick: Pick | None = None,
        watch: Watch | None = None,
    ) -> list[Ascent]:
        """CADP from each of ``starts``: (T, S) actions, (T, S, A) probabilities or None for WSU.

        A ``"paper"`` sweep is a forward pass for b and a backward pass with them. From the
        second sweep on the forward pass of ``"two-way"`` sweeps improves the policy too: at time
        t, b_t of the new policy and q_t kept from the backward pass give the exact gradient
        there, so taking its maximiser is a coordinate step like those of the backward pass.
        An ascent ends when the policy repeats or gains nothing, when a sweep gains no more than
        ``tol``, in units of return, or after ``max_sweeps`` (one at least from a randomised start).

        ``pick`` restricts the rows pi_t that a policy may have. The return is linear in a whole
        row, so taking the best open row at each t is a coordinate step as before. Deterministic
        starts must have open rows only; other starts are given as probabilities.

        ``watch(policy, value)`` is called with the start and with improved policies, after every
        sweep or every few. An exception raised by it ends the ascent.
        """
        job = Job(float(tol), max_sweeps, sweeps == "two-way", watch)
        if pick is None:
            return self._ascend(starts, job)
        return Passes._ascend(self, starts, job, pick)

    def _ascend(
        self, starts: Iterable[Table | None], job: Job, pick: Pick | None = None
    ) -> list[Ascent]:
        """A machine overrides this, like the pass."""
        sweeper = Sweeper(self, job.two_way, pick)
        return [ascend(sweeper, start, *job.limits) for start in starts]


class Sweeper:
    """The sweeps of an ascent; two-way ones keep q from each backward pass for the next forward."""

    def __init__(self, plan: Passes, two_way: bool, pick: Pick | None) -> None:
        self.plan, self.problem, self.pick, self.two_way = plan, plan.problem, pick, two_way
        self.q: Array | None = None

    def open(self, start: Table | None) -> tuple[Table, Array]:
        self.q = None
        if start is not None:
            return start, self.plan.returns(self.plan.backward("given", policy=start).first)
        prior = self.problem.prior_weights(self.plan.horizon)
        wsu = self.plan.backward("weighted", weights=prior, pick=self.pick)
        return wsu.actions, self.plan.returns(wsu.first)

    def sweep(self, policy: Table) -> tuple[IntArray, Array]:
        if self.q is None:
            b = self.plan.forward(policy)
        else:
            policy, b = self._improved(policy, self.q)
        found = self.plan.backward(
            "weighted", weights=b, policy=policy if policy.ndim == 2 else None, pick=self.pick,
            keep=("q",) if self.two_way else (),
        )  # fmt: skip
        self.q = found.q
        return found.actions, self.plan.returns(found.first)

    def _improved(self, policy: Table, q: Array) -> tuple[Table, Array]:
        """The policy whose actions are improved at each time for the b that arrives there, and b.

        q (T, S, A, M) are those of ``policy``.
        """
        x, pick = self.problem, self.pick or choose
        b = np.empty((len(policy), x.n_states, x.n_models))
        taken = np.array(policy)
        b[0] = x.start()
        for t in range(len(policy)):
            taken[t] = pick(weighed(b[t], q[t], at(x.allowed, t)), b[t], policy[t])
            if t + 1 < len(policy):
                b[t + 1] = self.plan.push(t, b[t], taken[t])
        return taken, b


def weighed(b: Array, q: Array, allowed: npt.NDArray[np.bool_]) -> Array:
    """(S, A) G = sum_m b q, -inf if not allowed."""
    finite = q if allowed.all() else np.where(allowed[:, :, None], q, 0.0)
    G: Array = np.matmul(finite, b[:, :, None])[:, :, 0]
    G[~allowed] = -np.inf
    return G


def choose(G: Array, b: Array, incumbent: npt.NDArray[np.generic] | None) -> IntArray:
    """(S,) maximisers of G (S, A); ties to the incumbent, else to the lowest action."""
    best = G.max(axis=1)
    finite = np.where(np.isfinite(G), G, 0.0)
    tied = (best - TIE * np.abs(finite).max(axis=1))[:, None] <= G
    actions = tied.argmax(axis=1).astype(np.int32)
    if incumbent is not None:
        states = np.arange(len(G))
        keep = tied[states, incumbent] | (b.sum(axis=1) == 0)
        actions = np.where(keep, incumbent, actions).astype(np.int32)
    return actions
