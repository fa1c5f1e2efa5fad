"""Prepared problems: a problem with all that a backend makes from its arrays.

A :class:`PreparedProblem` owns matrices, arrays on a device and threads, for all computations.

Symbols of upper bounds (see :mod:`mmdp.core.bounds.dual`):

=========  =========================================================  ============
symbol     meaning                                                    shape
=========  =========================================================  ============
lo, hi     L, B: least and largest P[model m, state s at t]           (T, S, M)
y          prices, in units of reward at that time                    (T, S, A, M)
u          occupancy P[model m, state s, action a at t] of the        (T, S, A, M)
           policy that each model or pair of models chose for itself
H          sum_m (B y+ - L y-), the reward of the common policy       (T, S, A)
=========  =========================================================  ============
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from mmdp.core.kernels.controller import Controller, NodeValues
from mmdp.core.kernels.numpy.passes import Passes
from mmdp.core.kernels.planner import PlannerTables
from mmdp.core.kernels.problem import (
    ModelPairs,
    PolicyTable,
    Problem,
    VisitBounds,
    at_time,
    find_row_entries,
)
from mmdp.core.shapes import Array, IndexArray, IntArray


class PreparedProblem(Passes):
    """All operations of a problem that was prepared on a backend.

    The passes over time are in :mod:`mmdp.core.kernels.numpy.passes`; backends may override these.
    The rest is the same for every backend. What goes entry by entry (controllers, occupancies,
    pairs) is compiled, in :mod:`mmdp.core.kernels.cpu`, and reads the tables of the storage.
    """

    has_independent_models: ClassVar[bool] = True

    # ------------------------------------------------------------ controllers
    def compute_node_weights(
        self, controller: Controller, values: Array | None = None
    ) -> tuple[Controller, Array]:
        """Compute the weights b (T, S, N, M) of a controller by a forward pass.

        With ``values`` v (T + 1, S, N, M) of the controller the pass improves it on the way, as
        :meth:`compute_node_values` does; its first nodes stay.
        """
        from mmdp.core.kernels.cpu import controllers

        return controllers.compute_node_weights(self, controller, values)

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
        from mmdp.core.kernels.cpu import controllers

        return controllers.compute_node_values(self, controller, weights, keep_values)

    def compute_node_q(self, t: int, v: Array, controller: Controller) -> Array:
        """Compute q (S, N, A, M) of every action under the node transitions, from v (S, N, M)."""
        from mmdp.core.kernels.cpu import controllers

        return controllers.compute_node_q(self, t, v, controller)

    def compute_transition_values(
        self, t: int, v: Array, controller: Controller, n: int
    ) -> tuple[IndexArray, IntArray, Array]:
        """Return (k,) states, (k,) next states and (k, N, M) gamma p v for the moves of node n."""
        x = self.problem
        rows = np.arange(x.n_states) * x.n_actions + controller.actions[t, :, n]
        k, states = find_row_entries(x.indptr, rows)
        next_values = x.expect_models(v)[x.indices[k]]
        return states, x.indices[k], x.discount * at_time(x.p, t)[k][:, None] * next_values

    # ------------------------------------------------------------ bounds
    def compute_visit_bounds(self, states: IndexArray | None = None) -> VisitBounds:
        """Compute the least and largest visit probability of every model, state and time.

        ``states``: of these alone, which takes two passes per state. B is the optimum if the only
        reward is for being in s at t; L the same with a minus.
        """
        x, T = self.problem, self.horizon
        target_states = np.arange(x.n_states) if states is None else states
        without_rewards = self.replace(
            rewards=np.zeros((1, x.n_states, x.n_actions, x.n_models)), discount=1.0
        )
        lo, hi = (np.empty((T, len(target_states), x.n_models)) for _ in range(2))
        for n, s in enumerate(target_states):
            for sign, bound in ((1.0, hi), (-1.0, lo)):
                terminal = np.zeros((x.n_states, x.n_models))
                terminal[s] = sign
                optima = without_rewards.replace(terminal=terminal)._optima_by_horizon()
                bound[:, n] = sign * x.weights * optima
        return VisitBounds(lo, hi)

    def _optima_by_horizon(self) -> Array:
        """Compute (T, M) the optimum of each model if terminal values are paid after t steps."""
        x, T = self.problem, self.horizon
        if x.storage.n_times == len(x.allowed) == 1:  # a long horizon includes every shorter one
            values = self.backward("per_model", keep=("values",)).values
            return x.compute_returns(values[:0:-1])
        first_values = [
            x.terminal,
            *(self.replace(horizon=t).backward("per_model").first_values for t in range(1, T)),
        ]
        return np.array([self.compute_returns(v) for v in first_values])

    def compute_weighted_optima(self, y: Array | None = None, u: Array | None = None) -> Array:
        """Compute (M,) lambda_m times the optimum of each model alone with rewards r - y.

        ``y`` (T, S, A, M) are prices in units of reward at that time. ``u`` (T, S, A, M) is
        filled with the occupancy P[m, s, a at t] of the models' own policies.
        """
        prepared = self if y is None else self.replace(rewards=np.asarray(self.problem.r) - y)
        backward_pass = prepared.backward("per_model", keep=("actions",) if u is not None else ())
        if u is not None:
            from mmdp.core.kernels.cpu.bounds import fill_occupancy

            fill_occupancy(self, backward_pass.actions, u)
        return self.problem.weights * self.compute_returns(backward_pass.first_values)

    def compute_pair_optima(
        self, pairs: ModelPairs, y: Array | None = None, u: Array | None = None
    ) -> Array:
        """Compute (n,) the weighted optimum lambda_i V_i + lambda_j V_j of each pair of models.

        ``y`` and ``u`` as in :meth:`compute_weighted_optima`.
        """
        from mmdp.core.kernels.cpu.pairs import compute_pair_optima

        return compute_pair_optima(self, pairs, y, u)

    def compute_common_term(self, y: Array, visit_bounds: VisitBounds) -> tuple[Array, IntArray]:
        """Compute H (T, S, A) = sum_m (B y+ - L y-) and its maximizer (T, S)."""
        H = np.einsum("tsam,tsm->tsa", np.maximum(y, 0.0), visit_bounds.hi)
        H += np.einsum("tsam,tsm->tsa", np.minimum(y, 0.0), visit_bounds.lo)
        H[~np.broadcast_to(self.problem.allowed, H.shape)] = -np.inf
        return H, H.argmax(axis=2).astype(np.int32)

    def update_direction(
        self,
        y: Array,
        u: Array,
        best: IntArray,
        visit_bounds: VisitBounds,
        momentum: float,
        d: Array,
    ) -> float:
        """Set d = momentum * d + g / B for a subgradient g of D at y, and return <g, d>.

        ``u`` is the occupancy that :meth:`compute_weighted_optima` or
        :meth:`compute_pair_optima` found at y, and ``best`` the maximizer of
        :meth:`compute_common_term`. Among the subgradients the one
        near 0 is taken; inner products are weighed by gamma^t.

        Without prices at (t, s) every mixture of actions maximizes H; that of u is taken.
        Otherwise ``best`` is the maximizer. At y = 0, g may lie anywhere between its values on
        both sides; the one nearest to 0 is taken.
        """
        from mmdp.core.kernels.cpu.bounds import update_direction

        return update_direction(self, y, u, best, visit_bounds, momentum, d)

    # ------------------------------------------------------------ episodes
    def simulate(
        self,
        next_rewards: Array | None,
        planner: PlannerTables,
        n_episodes: int,
        seed: int,
        first_episode: int = 0,
    ) -> tuple[Array, IndexArray]:
        """Simulate episodes; return (M, n) returns and (M,) counts of unexplained steps.

        Random numbers are a hash of (seed, model, episode, counter), see
        :mod:`mmdp.core.kernels.sampling`. ``next_rewards`` (T or 1, nnz, M): the rewards by next
        state that the planner sees, if it does not see r. ``first_episode`` is the number of the
        first episode, so that they can be simulated part by part.
        """
        from mmdp.core.kernels.episodes import simulate

        return simulate(self, next_rewards, planner, n_episodes, seed, first_episode)


class SwitchingProblem(PreparedProblem):
    """A prepared problem whose models change by the chain K after every step.

    v is worth K v before the change, and b moves on by K. The fused passes of the backend do
    not apply, so all passes are those of :class:`PreparedProblem`, by steps of ``base``.
    """

    has_independent_models = False

    def __init__(self, base: PreparedProblem, problem: Problem) -> None:
        super().__init__(problem, base.horizon)
        self.base, self.n_threads = base, base.n_threads

    def expect_next(self, t: int, v: Array) -> Array:
        return self.base.expect_next(t, self.problem.expect_models(v))

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        return self.problem.push_models(self.base.push_forward(t, b, policy_row))

    def forward_by_start(self, run_forward: Callable[[Self], Array]) -> Array:
        """Run a forward pass for each initial model; return (..., M, M), the initial model last."""
        return np.stack(
            [run_forward(self.replace(weights=unit)) for unit in np.eye(self.problem.n_models)], -1
        )

    def credit_to_start(self, d: Array, gains: Array) -> Array:
        return np.einsum("...mk,...m->...k", d, gains)

    def joint_weights(self, d: Array, weights: Array) -> Array:
        return d @ weights


@runtime_checkable
class Backend(Protocol):
    """A way to compute: it prepares problems. Derive from :class:`BaseBackend` to write one."""

    name: str

    def prepare(self, problem: Problem, horizon: int) -> PreparedProblem:
        """Prepare a problem over ``horizon`` decisions."""
        ...


class BaseBackend:
    """A backend that prepares the storages it knows; numpy prepares the others.

    Models that change become a :class:`SwitchingProblem` around that.
    """

    name: str

    def prepare_storage(self, problem: Problem, horizon: int) -> PreparedProblem | None:
        """Prepare models that never change; return None if the storage is not supported here."""
        return None

    def prepare(self, problem: Problem, horizon: int) -> PreparedProblem:
        """Prepare a problem over ``horizon`` decisions for everything that follows."""
        without_switching = problem._replace(model_transitions=None)
        prepared = self.prepare_storage(
            without_switching, horizon
        ) or without_switching.storage.prepare(without_switching, horizon)
        return (
            prepared if problem.model_transitions is None else SwitchingProblem(prepared, problem)
        )
