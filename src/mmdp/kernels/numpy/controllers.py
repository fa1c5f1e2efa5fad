"""Controllers in plain numpy: the specification of the passes over states and nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmdp.kernels.controller import Controller, Nodes, NodeValues
from mmdp.kernels.operator import Operator
from mmdp.kernels.problem import TIE, Array, Ids, IntArray, Problem, aligned, at


class Controllers(Operator):
    """The controllers part of a plan; symbols as in :mod:`mmdp.kernels.controller`."""

    _pattern: _Pattern | None = None  # made when it is first asked for

    def node_weights(
        self, controller: Controller, values: Array | None = None
    ) -> tuple[Controller, Array]:
        """The controller and its weights b (T, S, N, M), by a forward pass over states and nodes.

        With ``values`` v (T + 1, S, N, M) of the controller the pass improves it on the way, as
        :meth:`node_values` does; its first nodes stay.
        """
        problem, horizon, walk = self.problem, self.horizon, self._walk()
        controller = controller if values is None else controller.copy()
        b = begun(problem, horizon, controller)
        for t in range(horizon):
            if values is not None:
                walk.improve(b[t], problem.ahead(values[t + 1]), controller, t)
            if t + 1 < horizon:
                walk.push(b[t], controller, t, out=b[t + 1])
                b[t + 1] = problem.moved(b[t + 1])
        return controller, b

    def node_values(
        self, controller: Controller, weights: Array | None = None, *, keep: bool = False
    ) -> NodeValues:
        """The controller and its exact returns, by a backward pass over states and nodes.

        With ``weights`` b (T, S, N, M) the pass improves it on the way: in every (s, n) it takes
        the action and the moves to next nodes that are best together,

            G(a) = sum_m b_m r_m(s,a) + gamma sum_s' max_n' sum_m b_m p_m(s'|s,a) v_m(s', n'),

        and at last the best first node of every state. If b is that of the controller, its
        mean return does not fall. A tie goes to the old pair of action and moves, else to the
        lowest; a node without weight in a state keeps what it has. ``keep``: return v too.
        """
        problem, horizon, walk = self.problem, self.horizon, self._walk()
        controller = controller if weights is None else controller.copy()
        v = np.repeat(problem.terminal[:, None], controller.n_nodes, axis=1)
        values = [v]
        for t in reversed(range(horizon)):
            after = problem.ahead(v)
            if weights is not None:
                walk.improve(weights[t], after, controller, t)
            v = walk.value(after, controller, t)
            values.append(v)
        kept = np.array(values[::-1]) if keep else None
        return ended(problem, controller, v, kept, improve=weights is not None)

    def node_step(self, t: int, v: Array, controller: Controller) -> Array:
        """(S, N, A, M) q of every action in every state and node with the moves that are held."""
        return self._walk().step(self.problem.ahead(v), controller, t)

    def node_moves(
        self, t: int, v: Array, controller: Controller, n: int
    ) -> tuple[Ids, IntArray, Array]:
        """States and next states (k,) of the steps out of node n, and (k, N', M) what each next
        node adds to q of the action that is held.
        """
        return self._walk().after(self.problem.ahead(v), controller, t, n)

    def _walk(self) -> _Walk:
        if self._pattern is None:
            self._pattern = _Pattern(self.problem)
        return _Walk(self.problem, self._pattern)


def begun(problem: Problem, horizon: int, controller: Controller) -> Array:
    """(T, S, N, M) b at the first step, 0 later."""
    S = problem.n_states
    b = aligned(horizon, S, controller.n_nodes, problem.n_models)
    b[:] = 0.0
    b[0, np.arange(S), controller.first] = problem.start()
    return b


def ended(
    problem: Problem, controller: Controller, v: Array, values: Array | None, *, improve: bool
) -> NodeValues:
    """The end of a backward pass with v (S, N, M), with the best first nodes if ``improve``."""
    if improve:
        G = np.matmul(v, problem.start()[:, :, None])[:, :, 0]
        controller = controller._replace(first=_best(G, controller.first).astype(np.uint8))
    returns = problem.returns(v[np.arange(len(v)), controller.first])
    return NodeValues(controller, returns, values)


class _Pattern:
    """The entries of a pattern by state and action."""

    def __init__(self, problem: Problem) -> None:
        import scipy.sparse

        x, nnz = problem, len(problem.indices)
        self.state, self.action = np.divmod(x.rows(), x.n_actions)
        shape = x.n_states * x.n_actions, nnz
        entries = np.ones(nnz), np.arange(nnz), x.indptr
        self.by_row = scipy.sparse.csr_array(entries, shape=shape)


class _Walk:
    """The steps over one problem, entry by entry of its pattern."""

    def __init__(self, problem: Problem, pattern: _Pattern) -> None:
        self.problem, self.by_row = problem, pattern.by_row
        self.state, self.action = pattern.state, pattern.action

    def push(self, b: Array, controller: Controller, t: int, out: Array) -> None:
        """b (S, N, M) one step on, added to ``out``."""
        flow = (
            self._taken(controller, t)[:, :, None] * b[self.state] * at(self.problem.p, t)[:, None]
        )
        np.add.at(out, (self.problem.indices[:, None], self._moves(controller, t)), flow)

    def step(self, v: Array, controller: Controller, t: int) -> Array:
        """(S, N, A, M) q at t, from v at t + 1."""
        x, (S, N, M) = self.problem, v.shape
        flow = v[x.indices[:, None], self._moves(controller, t)] * at(x.p, t)[:, None]
        mean = np.asarray(self.by_row @ flow.reshape(len(flow), -1)).reshape(S, -1, N, M)
        return np.asarray(at(x.r, t)[:, None] + x.discount * np.swapaxes(mean, 1, 2))

    def after(
        self, v: Array, controller: Controller, t: int, n: int
    ) -> tuple[Ids, IntArray, Array]:
        """The steps out of node n at t, from v at t + 1."""
        x = self.problem
        k = np.flatnonzero(controller.actions[t, self.state, n] == self.action)
        values = x.discount * at(x.p, t)[k][:, None] * v[x.indices[k]]
        return self.state[k], x.indices[k], values

    def value(self, v: Array, controller: Controller, t: int) -> Array:
        """(S, N, M) v at t, from v at t + 1."""
        x, (S, N, M) = self.problem, v.shape
        after = v[x.indices[:, None], self._moves(controller, t)]
        flow = self._taken(controller, t)[:, :, None] * after * at(x.p, t)[:, None]
        mean = np.asarray(self.by_row @ flow.reshape(len(flow), -1)).reshape(S, -1, N, M).sum(1)
        reward = at(x.r, t)[np.arange(S)[:, None], controller.actions[t]]
        return np.asarray(reward + x.discount * mean)

    def improve(self, b: Array, v: Array, controller: Controller, t: int) -> None:
        """The joint step: in every (s, n) the best action with its best moves, in place.

        G(a) = sum_m b_m r_m(s,a) + gamma sum_s' max_n' sum_m b_m p_m(s'|s,a) v_{t+1,m}(s', n').
        The old pair of action and moves is kept if nothing is better, or if (s, n) has no weight.
        """
        x, old = self.problem, controller.actions[t]
        states, nodes = np.arange(len(b))[:, None], np.arange(b.shape[1])
        D = np.matmul(b[self.state] * at(x.p, t)[:, None], np.swapaxes(v[x.indices], 1, 2))
        held = self._moves(controller, t)
        moves = _best(D, held)
        best = self._mean(b, np.take_along_axis(D, moves[:, :, None], 2)[:, :, 0], t)
        same = self._mean(b, np.take_along_axis(D, held[:, :, None], 2)[:, :, 0], t)
        best[~at(x.allowed, t)] = -np.inf
        best = np.swapaxes(best, 1, 2)  # (S, N, A)
        size = np.abs(np.where(np.isfinite(best), best, 0.0)).max(axis=2)
        bar = best.max(axis=2) - TIE * size
        keep = (same[states, old, nodes] >= bar) | (b.sum(axis=2) == 0)
        found = (best >= bar[:, :, None]).argmax(axis=2)
        controller.actions[t] = np.where(keep, old, found)
        k, n = np.nonzero(self._taken(controller, t) & ~keep[self.state])
        controller.moves[t, self.state[k], n, x.indices[k]] = moves[k, n]

    def _mean(self, b: Array, D: Array, t: int) -> Array:
        """(S, A, N) sum_m b r + gamma sum_s' D, for D (nnz, N)."""
        x, later = self.problem, np.asarray(self.by_row @ D)
        reward: Array = np.matmul(at(x.r, t), np.swapaxes(b, 1, 2))
        return reward + x.discount * later.reshape(reward.shape)

    def _taken(self, controller: Controller, t: int) -> npt.NDArray[np.bool_]:
        """(nnz, N) whether the node takes the action that the entry belongs to."""
        return np.asarray(controller.actions[t, self.state] == self.action[:, None])

    def _moves(self, controller: Controller, t: int) -> npt.NDArray[np.int64]:
        """(nnz, N) the node after each entry."""
        moves: Nodes = controller.moves[t, self.state, :, self.problem.indices]
        return moves.astype(np.int64)


def _best(D: Array, held: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """(...) maximisers over the last axis; ties to what is held, else to the lowest."""
    tied = (D.max(axis=-1) - TIE * np.abs(D).max(axis=-1))[..., None] <= D
    keep = np.take_along_axis(tied, held[..., None].astype(np.int64), -1)[..., 0]
    return np.asarray(np.where(keep, held, tied.argmax(axis=-1)))
