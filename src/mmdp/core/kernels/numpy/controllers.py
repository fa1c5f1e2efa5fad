"""Controllers in plain numpy: the specification of the passes over states and nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.controller import Controller, NodeArray, NodeValues
from mmdp.core.kernels.operator import Operator
from mmdp.core.kernels.problem import (
    TIE_RTOL,
    Array,
    IndexArray,
    IntArray,
    Problem,
    at_time,
    empty_aligned,
)


class ControllerPasses(Operator):
    """The passes over states and nodes; symbols as in :mod:`mmdp.core.kernels.controller`."""

    _pattern: EntryIndex | None = None  # made when it is first asked for

    def compute_node_weights(
        self, controller: Controller, values: Array | None = None
    ) -> tuple[Controller, Array]:
        """Compute the weights b (T, S, N, M) of a controller by a forward pass.

        With ``values`` v (T + 1, S, N, M) of the controller the pass improves it on the way, as
        :meth:`compute_node_values` does; its first nodes stay.
        """
        problem, horizon, steps = self.problem, self.horizon, self._make_steps()
        controller = controller if values is None else controller.copy()
        b = make_initial_weights(problem, horizon, controller)
        for t in range(horizon):
            if values is not None:
                steps.improve(b[t], problem.expect_models(values[t + 1]), controller, t)
            if t + 1 < horizon:
                steps.push_forward(b[t], controller, t, out=b[t + 1])
                b[t + 1] = problem.push_models(b[t + 1])
        return controller, b

    def compute_node_values(
        self, controller: Controller, weights: Array | None = None, *, keep_values: bool = False
    ) -> NodeValues:
        """Compute the exact returns of a controller by a backward pass.

        With ``weights`` b (T, S, N, M) the pass improves it on the way: in every (s, n) it takes
        the action and the next nodes that are best together,

            G(a) = sum_m b_m r_m(s,a) + gamma sum_s' max_n' sum_m b_m p_m(s'|s,a) v_m(s', n'),

        and at last the best first node of every state. If b is that of the controller, its
        mean return does not fall. A tie goes to the old pair of action and next nodes, else to the
        lowest; a node without weight in a state keeps what it has. ``keep_values``: return v too.
        """
        problem, horizon, steps = self.problem, self.horizon, self._make_steps()
        controller = controller if weights is None else controller.copy()
        v = np.repeat(problem.terminal[:, None], controller.n_nodes, axis=1)
        values = [v]
        for t in reversed(range(horizon)):
            next_values = problem.expect_models(v)
            if weights is not None:
                steps.improve(weights[t], next_values, controller, t)
            v = steps.value_step(next_values, controller, t)
            values.append(v)
        kept_values = np.array(values[::-1]) if keep_values else None
        return finish_backward(problem, controller, v, kept_values, improve=weights is not None)

    def compute_node_q(self, t: int, v: Array, controller: Controller) -> Array:
        """Compute q (S, N, A, M) of every action under the node transitions."""
        return self._make_steps().q_step(self.problem.expect_models(v), controller, t)

    def compute_transition_values(
        self, t: int, v: Array, controller: Controller, n: int
    ) -> tuple[IndexArray, IntArray, Array]:
        """Compute the value of each next node for the transitions out of node n."""
        return self._make_steps().compute_transition_values(
            self.problem.expect_models(v), controller, t, n
        )

    def _make_steps(self) -> _ControllerSteps:
        if self._pattern is None:
            self._pattern = EntryIndex(self.problem)
        return _ControllerSteps(self.problem, self._pattern)


def make_initial_weights(problem: Problem, horizon: int, controller: Controller) -> Array:
    """Make (T, S, N, M) b with the initial distribution at the first time and 0 later."""
    S = problem.n_states
    b = empty_aligned(horizon, S, controller.n_nodes, problem.n_models)
    b[:] = 0.0
    b[0, np.arange(S), controller.initial_nodes] = problem.initial_joint()
    return b


def finish_backward(
    problem: Problem, controller: Controller, v: Array, values: Array | None, *, improve: bool
) -> NodeValues:
    """Make the result of a backward pass from v (S, N, M); improve the first nodes if asked."""
    if improve:
        G = np.matmul(v, problem.initial_joint()[:, :, None])[:, :, 0]
        controller = controller._replace(
            initial_nodes=_argmax_with_ties(G, controller.initial_nodes).astype(np.uint8)
        )
    returns = problem.compute_returns(v[np.arange(len(v)), controller.initial_nodes])
    return NodeValues(controller, returns, values)


class EntryIndex:
    """The state and action of each entry of the transition tables."""

    def __init__(self, problem: Problem) -> None:
        import scipy.sparse

        x, nnz = problem, len(problem.indices)
        self.state, self.action = np.divmod(x.get_entry_rows(), x.n_actions)
        shape = x.n_states * x.n_actions, nnz
        entries = np.ones(nnz), np.arange(nnz), x.indptr
        self.row_sums = scipy.sparse.csr_array(entries, shape=shape)


class _ControllerSteps:
    """The operations of one time step, entry by entry of the transition tables."""

    def __init__(self, problem: Problem, pattern: EntryIndex) -> None:
        self.problem, self.row_sums = problem, pattern.row_sums
        self.state, self.action = pattern.state, pattern.action

    def push_forward(self, b: Array, controller: Controller, t: int, out: Array) -> None:
        """Add b (S, N, M) after the step at t to ``out``."""
        flow = (
            self._is_taken(controller, t)[:, :, None]
            * b[self.state]
            * at_time(self.problem.p, t)[:, None]
        )
        np.add.at(out, (self.problem.indices[:, None], self._next_nodes(controller, t)), flow)

    def q_step(self, v: Array, controller: Controller, t: int) -> Array:
        """Compute q (S, N, A, M) at t from v at t + 1."""
        x, (S, N, M) = self.problem, v.shape
        flow = v[x.indices[:, None], self._next_nodes(controller, t)] * at_time(x.p, t)[:, None]
        mean = np.asarray(self.row_sums @ flow.reshape(len(flow), -1)).reshape(S, -1, N, M)
        return np.asarray(at_time(x.r, t)[:, None] + x.discount * np.swapaxes(mean, 1, 2))

    def compute_transition_values(
        self, v: Array, controller: Controller, t: int, n: int
    ) -> tuple[IndexArray, IntArray, Array]:
        """Compute the value of each next node for the transitions out of node n at t."""
        x = self.problem
        k = np.flatnonzero(controller.actions[t, self.state, n] == self.action)
        values = x.discount * at_time(x.p, t)[k][:, None] * v[x.indices[k]]
        return self.state[k], x.indices[k], values

    def value_step(self, v: Array, controller: Controller, t: int) -> Array:
        """Compute v (S, N, M) at t from v at t + 1."""
        states, nodes = np.ogrid[: v.shape[0], : v.shape[1]]
        return self.q_step(v, controller, t)[states, nodes, controller.actions[t]]

    def improve(self, b: Array, v: Array, controller: Controller, t: int) -> None:
        """Set the best action with its best next nodes in every (s, n) at t, in place.

        G(a) = sum_m b_m r_m(s,a) + gamma sum_s' max_n' sum_m b_m p_m(s'|s,a) v_{t+1,m}(s', n').
        The old action and next nodes are kept if nothing is better, or if (s, n) has no weight.
        """
        x, old_actions = self.problem, controller.actions[t]
        states, nodes = np.arange(len(b))[:, None], np.arange(b.shape[1])
        D = np.matmul(b[self.state] * at_time(x.p, t)[:, None], np.swapaxes(v[x.indices], 1, 2))
        old_nodes = self._next_nodes(controller, t)
        best_nodes = _argmax_with_ties(D, old_nodes)
        best_G = self._joint_gradient(
            b, np.take_along_axis(D, best_nodes[:, :, None], 2)[:, :, 0], t
        )
        old_G = self._joint_gradient(b, np.take_along_axis(D, old_nodes[:, :, None], 2)[:, :, 0], t)
        best_G[~at_time(x.allowed, t)] = -np.inf
        best_G = np.swapaxes(best_G, 1, 2)  # (S, N, A)
        scale = np.abs(np.where(np.isfinite(best_G), best_G, 0.0)).max(axis=2)
        threshold = best_G.max(axis=2) - TIE_RTOL * scale
        keeps_old = (old_G[states, old_actions, nodes] >= threshold) | (b.sum(axis=2) == 0)
        new_actions = (best_G >= threshold[:, :, None]).argmax(axis=2)
        controller.actions[t] = np.where(keeps_old, old_actions, new_actions)
        k, n = np.nonzero(self._is_taken(controller, t) & ~keeps_old[self.state])
        controller.node_transitions[t, self.state[k], n, x.indices[k]] = best_nodes[k, n]

    def _joint_gradient(self, b: Array, D: Array, t: int) -> Array:
        """Compute (S, A, N) sum_m b r + gamma sum_s' D, for D (nnz, N)."""
        x, continuation = self.problem, np.asarray(self.row_sums @ D)
        reward: Array = np.matmul(at_time(x.r, t), np.swapaxes(b, 1, 2))
        return reward + x.discount * continuation.reshape(reward.shape)

    def _is_taken(self, controller: Controller, t: int) -> npt.NDArray[np.bool_]:
        """Return (nnz, N) whether the node takes the action of the entry."""
        return np.asarray(controller.actions[t, self.state] == self.action[:, None])

    def _next_nodes(self, controller: Controller, t: int) -> npt.NDArray[np.int64]:
        """Return (nnz, N) the node after each entry."""
        nodes: NodeArray = controller.node_transitions[t, self.state, :, self.problem.indices]
        return nodes.astype(np.int64)


def _argmax_with_ties(D: Array, incumbent: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Maximize over the last axis; ties go to the incumbent, else to the lowest index."""
    is_tied = (D.max(axis=-1) - TIE_RTOL * np.abs(D).max(axis=-1))[..., None] <= D
    keeps_incumbent = np.take_along_axis(is_tied, incumbent[..., None].astype(np.int64), -1)[..., 0]
    return np.asarray(np.where(keeps_incumbent, incumbent, is_tied.argmax(axis=-1)))
