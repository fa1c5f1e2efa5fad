"""CADP's sweeps on the CPU, without the work that cannot matter.

A two-way sweep improves the policy in both passes and keeps q of all steps in between. The
forward pass begins at the first step whose action the last backward pass changed; the backward
pass begins at the last step whose action the forward pass changed. Outside of that range
weights, values and choices are unchanged. Inside it, a row of q is computed again only if one of
its next values has changed. If the forward pass changes nothing, the policy is a local maximum,
and no backward pass is needed to confirm it.
"""

from __future__ import annotations

import numpy as np

from mmdp.kernels.cpu import steps
from mmdp.kernels.cpu.layout import CpuLayout
from mmdp.kernels.cpu.passes import (
    ACTIONS,
    PROBABILITIES,
    WEIGHTED,
    Ground,
    Orders,
    Scratch,
    State,
    back,
    fore,
    fore_random,
)  # fmt: skip
from mmdp.kernels.problem import Array, IntArray, Table, aligned, memory_here, windows

SHARE = 0.25  # of memory for b of all times; if it takes more, it is kept in windows


class Climb:
    """The sweeps of ascents of one problem; see :class:`mmdp.kernels.ascent.Climber`."""

    def __init__(self, plan: CpuLayout, *, two_way: bool) -> None:
        x, T = plan.problem, plan.horizon
        S, A, M = x.n_states, x.n_actions, x.n_models
        team = plan.team(x.storage.entries * M)
        self.problem, self.team, self.two_way = x, team, two_way
        pieces = steps.pieces(len(team))
        self.states, self.models = steps.edges(S, pieces), steps.edges(M, pieces)
        self.ground = plan.ground
        self.scratch = [Scratch.of(plan.ground) for _ in range(len(team))]
        kept = {"q": aligned(T, S, A, M)} if two_way else {}
        room = np.inf if two_way else SHARE * memory_here()
        self.windows = windows(T, 8 * S * M, room)
        b = aligned(T if len(self.windows) == 1 else self.windows[0].stop + 1, S, M)
        self.state = State.of(
            x, T, actions=np.zeros((T, S), np.int32), b=b, v=aligned(T + 1 if two_way else 2, S, M),
            held=np.zeros((T, S), np.int32), moved=np.zeros((T + 1, S), np.bool_), **kept,
        )  # fmt: skip
        self.state.b[0] = x.start()

    def open(self, start: Table | None) -> tuple[Table, Array]:
        """The start and its returns; WSU's is computed here."""
        self.first = True  # no sweep has been made
        self.known = self.two_way and start is None  # q is that of v
        self.since = -1  # the first step whose action the last backward pass changed
        top = len(self.state.actions) - 1
        if start is None:
            prior = self.state._replace(b=self.problem.prior_weights())
            self._back(Orders(WEIGHTED, top, weighed=True, keep_q=self.two_way), prior)
            self.state.held[:] = self.state.actions
            return self.state.actions.copy(), self._returns()
        if start.ndim == 2:
            self.state.actions[:] = start
            self._back(Orders(ACTIONS, top, incumbent=True))
        else:
            mixed = self.state._replace(probabilities=np.ascontiguousarray(start, np.float64))
            self._back(Orders(PROBABILITIES, top), mixed)
        return start, self._returns()

    def sweep(self, policy: Table) -> tuple[IntArray, Array]:
        """Forward and backward; the actions and their returns."""
        actions, top = self.state.actions, len(policy) - 1
        if len(self.windows) > 1:
            return self._by_windows(policy)
        if policy.ndim == 3:
            mixed = self.state._replace(probabilities=np.ascontiguousarray(policy, np.float64))
            fore_random(0, self.problem.n_models, self.ground, mixed)
        else:
            before = actions.copy()
            self._fore(self.two_way and not self.first, self.since, self.state, self.ground)
            if self.two_way and not self.first:
                changed = np.flatnonzero((actions != before).any(axis=1))
                if not len(changed):
                    return before, self._returns()
                top = int(changed[-1])
        before = actions.copy()
        self.state.moved[top + 1] = False
        self._back(
            Orders(
                WEIGHTED, top, weighed=True, incumbent=policy.ndim == 2, keep_q=self.two_way,
                lazy=self.known, everywhere=self.first,
            )
        )  # fmt: skip
        if not self.known:
            self.state.held[:] = actions
        self.first, self.known = False, self.two_way
        if policy.ndim == 2:
            changed = np.flatnonzero((actions != before).any(axis=1))
            self.since = int(changed[0]) if len(changed) else len(actions)
        return actions.copy(), self._returns()

    def _by_windows(self, policy: Table) -> tuple[IntArray, Array]:
        """The same with b of one window at a time, computed twice."""
        b, v, starts = self.state.b, self.state.v, []
        soft = policy.ndim == 3
        b[0] = self.problem.start()
        for window in self.windows:
            starts.append(b[0].copy())
            if window.stop < len(policy):
                self._through(policy[window.start : window.stop + 1], window.start)
                b[0] = b[window.stop - window.start]
        v[0] = self.problem.terminal
        for window, start in zip(reversed(self.windows), reversed(starts), strict=True):
            steps = window.stop - window.start
            b[0], v[steps % 2] = start, v[0]
            self._through(policy[window], window.start)
            orders = Orders(WEIGHTED, steps - 1, weighed=True, incumbent=not soft)
            part = self.state._replace(actions=self.state.actions[window])
            self._back(orders, part, self.ground.since(window.start))
        return self.state.actions.copy(), self._returns()

    def _through(self, policy: Table, t: int) -> None:
        """b (S, M) from b[0] on, under the rows of a policy from time t on."""
        ground = self.ground.since(t)
        if policy.ndim == 3:
            mixed = self.state._replace(probabilities=np.ascontiguousarray(policy, np.float64))
            fore_random(0, self.problem.n_models, ground, mixed)
        else:
            part = self.state._replace(actions=np.require(policy, np.int32, ["C", "W"]))
            self._fore(False, -1, part, ground)

    def _fore(self, choosing: bool, since: int, state: State, ground: Ground) -> None:
        self._walk(
            lambda marks, rank: fore(
                marks, rank, self.states, self.models, since, choosing, ground, state,
                self.scratch[rank],
            )
        )  # fmt: skip

    def _back(
        self, orders: Orders, state: State | None = None, ground: Ground | None = None
    ) -> None:
        now, on = state or self.state, ground or self.ground
        if ground is None and orders.top == len(now.moved) - 2:  # v may have two places only
            now.v[(orders.top + 1) % len(now.v)] = self.problem.terminal
        self._walk(
            lambda marks, rank: back(marks, rank, self.states, orders, on, now, self.scratch[rank])
        )

    def _walk(self, call: steps.Call) -> None:
        steps.walk(self.team, self.problem.storage.entries * self.problem.n_models, call)

    def _returns(self) -> Array:
        return self.problem.returns(self.state.v[0])
