"""Evaluators: exact answers about the policies of one class over one horizon.

A *cell* is where an action is chosen: (t, s) of a table, (t, s, n) of a controller, s of a row that
is the same at all times. With weights d of the cells, values v and q of a policy, the derivative of
the return of model m by the probability of an action is d_m (q_m(a) - v_m). A single change of a
table or a controller adds exactly that, since rho is linear in each cell (Corollary 4.2 of Su and
Petrik 2023). For a stationary policy, with F_m = (I - gamma P_m)^-1, it adds

    d_m(s) (q_m(s, a) - v_m(s)) / (1 - gamma (p_m(.|s, a) - p_m(.|s, pi)) x_m),   x_m = F_m e_s,

and F_m changes by a matrix of rank one.

Returns are (M,). Several criteria would be an axis before the models in everything that ends in M
here, (C, M), and the weights of a mean would be (C, M) too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mmdp.core.kernels import PreparedProblem
from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.controller import Controller
from mmdp.core.kernels.cpu.threads import limit_blas_threads
from mmdp.core.kernels.infinite import DirectSolver, InfiniteHorizon
from mmdp.core.kernels.numpy.passes import choose_actions
from mmdp.core.kernels.problem import PolicyTable, RowChooser, at_time
from mmdp.core.policies import PolicyClass, Stationary, Tree
from mmdp.core.shapes import AnyArray, Array, IntArray, Mask


class Advantages(NamedTuple):
    """What other actions are worth in the cells of one time, or in all cells of a row."""

    values: Array  # (cells, M) of the policy
    gains: Array  # (cells, A, M) q - v, discounted; 0 if not allowed
    effects: Array  # (cells, A, M) what that adds to the returns
    weights: Array  # (cells, M) b, the weights of the models in each cell


class MeanGradient(NamedTuple):
    """Derivatives of a mean of the returns, and the visits of the cells."""

    returns: Array  # (M,)
    G: Array  # (cells, A), 0 if not allowed
    occupancy: Array  # (cells,)
    discounts: Array = np.ones(1)  # (cells,), broadcast: what G and occupancy are still worth

    @property
    def discounted(self) -> Array:
        """The derivatives d rho / d pi, (cells, A)."""
        return self.discounts[..., None] * self.G


class Evaluator:
    """Evaluator of Markov tables: (T, S) actions, or (T, S, A) probabilities."""

    def __init__(self, prepared: PreparedProblem) -> None:
        self.prepared, self.problem = prepared, prepared.problem

    @property
    def allowed(self) -> Mask:
        """The actions that may be taken in each cell, (cells, A)."""
        allowed = self.problem.allowed
        return np.broadcast_to(allowed, (self.prepared.horizon, *allowed.shape[1:]))

    def to_table(self, policy: PolicyTable) -> PolicyTable:
        """Convert a policy to the table that a method returns."""
        return policy

    def to_probabilities(self, table: PolicyTable) -> Array:
        """Convert a table that a method returns to probabilities (cells, A)."""
        return table if is_randomized(table) else np.eye(self.problem.n_actions)[table]

    def project(self, table: PolicyTable) -> PolicyTable:
        """Replace actions that are not allowed by ones that are."""
        allowed = self.allowed
        if not is_randomized(table):
            is_allowed = np.take_along_axis(allowed, table[..., None], axis=-1)[..., 0]
            return np.where(is_allowed, table, allowed.argmax(axis=-1)).astype(np.int32)
        probs = np.where(allowed, table, 0.0)
        probs = np.where(probs.any(axis=-1, keepdims=True), probs, allowed)
        return probs / probs.sum(axis=-1, keepdims=True)

    def compute_returns(self, policy: Any) -> Array:
        """Compute the exact return of a policy on every model, (M,)."""
        backward_pass = self.prepared.backward("policy", policy=self.to_table(policy))
        return self.prepared.compute_returns(backward_pass.first_values)

    def compute_occupancy(self, policy: Any) -> Array:
        """Compute the weights d of the cells by first model, as ``credit_to_start`` takes them."""
        return self.prepared.forward_by_start(lambda prepared: prepared.forward(policy))

    def compute_q(self, t: int, v: Array, policy: Any) -> Array:
        """Compute q (cells, A, M) at t from v at t + 1; an action that is not allowed gains 0."""
        q, (s, a) = self._step_q(t, v, policy), np.nonzero(~at_time(self.problem.allowed, t))
        if len(s):
            q[s, ..., a, :] = take_actions(q, self._get_cells(policy)[t])[s]
        return q

    def iter_q_values(self, policy: Any) -> Iterator[tuple[int, Array]]:
        """Iterate over t and q (cells, A, M), backwards; the policy at t may change in between."""
        v = self._terminal_values(policy)
        for t in reversed(range(self.prepared.horizon)):
            q = self.compute_q(t, v, policy)
            yield t, q
            v = take_actions(q, self._get_cells(policy)[t])

    def iter_derivatives(self, policy: Any) -> Iterator[Advantages]:
        """Iterate over the derivatives of the returns in the cells of each time, backwards."""
        prepared, x, d = self.prepared, self.problem, self.compute_occupancy(policy)
        for t, q in self.iter_q_values(policy):
            v = take_actions(q, self._get_cells(policy)[t])
            gains = x.discount**t * (q - v[..., None, :])
            effects = prepared.credit_to_start(np.expand_dims(d[t], q.ndim - 2), gains)
            yield Advantages(v, gains, effects, prepared.joint_weights(d[t], x.weights))

    def iter_advantages(self, policy: Any) -> Iterator[Advantages]:
        """Iterate over the exact effects of single changes, as :meth:`iter_derivatives`."""
        return self.iter_derivatives(policy)

    def compute_jacobian(self, policy: PolicyTable) -> tuple[Array, Array, Array]:
        """Compute returns (M,), their centered Jacobian (cells, A, M) and occupancy (cells,)."""
        steps = [*self.iter_derivatives(self.to_table(policy))][::-1]
        gamma = self.problem.discount ** np.arange(len(steps))[:, None]
        occupancy = gamma * [x.weights.sum(axis=-1) for x in steps]
        J = np.array([x.effects for x in steps])
        return self.prepared.compute_returns(steps[0].values), J, occupancy

    def compute_gradient(self, policy: PolicyTable, weights: Array | None = None) -> MeanGradient:
        """Compute d rho / d pi for the mean with these weights (Theorem 4.1 of the paper)."""
        prepared = self.prepared if weights is None else self.prepared.replace(weights=weights)
        table = self.to_table(policy)
        b = prepared.forward(table)
        backward_pass = prepared.backward("policy", policy=table, weights=b, keep=("gradient",))
        return MeanGradient(
            prepared.compute_returns(backward_pass.first_values),
            np.where(self.problem.allowed, backward_pass.gradient, 0.0),
            prepared.sum_models(b),
            self.problem.discount ** np.arange(float(len(table)))[:, None],
        )

    def improve_mean(
        self, policy: PolicyTable, weights: Array, allowed: Mask, choose_row: RowChooser | None
    ) -> IntArray:
        """Take the best allowed rows for b (1, S or 1, M) in every cell, backwards."""
        prepared = self.prepared.replace(allowed=allowed)
        return prepared.backward("weighted", weights=weights, choose_row=choose_row).actions

    def compute_worst_returns(self, policy: Any, action_sets: Mask) -> Array:
        """Bound the returns (M,) of any picks from the sets (cells, A) from below.

        These are the negated optima of the models with negated rewards.
        """
        negated = self.prepared.replace(
            rewards=-self.problem.r, terminal=-self.problem.terminal, allowed=action_sets
        )
        return -negated.compute_returns(negated.backward("per_model").first_values)

    # ------------------------------------------------------------ the cells of one time
    def _get_cells(self, policy: Any) -> Any:
        """Return the actions or probabilities of the cells, the time first."""
        return policy

    def _terminal_values(self, policy: Any) -> Array:
        """Return the values (cells, M) after the last decision."""
        return self.problem.terminal

    def _step_q(self, t: int, v: Array, policy: Any) -> Array:
        """Compute q (cells, A, M) at t from v at t + 1."""
        return self.prepared.q_step(t, v)


class RepeatedRowEvaluator(Evaluator):
    """Evaluator of rows (S,) or (S, A) that are the same over a finite horizon; or their tables."""

    @property
    def allowed(self) -> Mask:
        return np.logical_and.reduce(self.problem.allowed)

    def to_table(self, policy: PolicyTable) -> PolicyTable:
        is_row = policy.ndim == 1 + is_randomized(policy)
        return np.repeat(policy[None], self.prepared.horizon, axis=0) if is_row else policy

    def to_probabilities(self, table: PolicyTable) -> Array:
        return super().to_probabilities(table).mean(axis=0)

    def compute_jacobian(self, policy: PolicyTable) -> tuple[Array, Array, Array]:
        returns, J, occupancy = super().compute_jacobian(policy)
        return returns, J.sum(axis=0), occupancy.sum(axis=0)

    def compute_gradient(self, policy: PolicyTable, weights: Array | None = None) -> MeanGradient:
        x = super().compute_gradient(policy, weights)
        occupancy = (x.discounts * x.occupancy).sum(axis=0)
        return MeanGradient(x.returns, x.discounted.sum(axis=0), occupancy)


class ControllerEvaluator(Evaluator):
    """Evaluator of finite-state controllers; cells are (t, s, n)."""

    def compute_returns(self, policy: Controller) -> Array:
        return self.prepared.compute_node_values(policy).returns

    def compute_occupancy(self, policy: Controller) -> Array:
        return self.prepared.forward_by_start(lambda x: x.compute_node_weights(policy)[1])

    def compute_worst_returns(self, policy: Controller, action_sets: Mask) -> Array:
        """Bound the returns by a backward pass that takes the worst action of each set."""
        v = self._terminal_values(policy)
        for t in reversed(range(self.prepared.horizon)):
            q = self._step_q(t, v, policy)
            v = np.where(action_sets[t][..., None], q, np.inf).min(axis=2)
        return self.prepared.compute_returns(v[np.arange(len(v)), policy.initial_nodes])

    def _get_cells(self, policy: Controller) -> PolicyTable:
        return policy.actions

    def _terminal_values(self, policy: Controller) -> Array:
        return np.repeat(self.problem.terminal[:, None], policy.n_nodes, axis=1)

    def _step_q(self, t: int, v: Array, policy: Controller) -> Array:
        return self.prepared.compute_node_q(t, v, policy)


class StationaryEvaluator(Evaluator):
    """Evaluator of stationary policies over an infinite horizon: rows (S,), or (S, A)."""

    def __init__(self, solver: InfiniteHorizon) -> None:
        self.solver, self.problem = solver, solver.problem

    @property
    def allowed(self) -> Mask:
        return np.asarray(self.problem.allowed[0])

    def compute_returns(self, policy: PolicyTable) -> Array:
        return self.solver.compute_returns(policy)

    def compute_occupancy(self, policy: PolicyTable) -> Array:
        return self.solver.compute_occupancy(policy).T

    def iter_q_values(self, policy: PolicyTable) -> Iterator[tuple[int, Array]]:
        yield 0, np.moveaxis(self.solver.compute_q(self.solver.compute_values(policy)), 0, 2)

    def iter_derivatives(self, policy: PolicyTable) -> Iterator[Advantages]:
        v, d = self.solver.compute_values(policy).T, self.compute_occupancy(policy)
        for _, q in self.iter_q_values(policy):
            gains = np.where(self.allowed[:, :, None], q - v[:, None], 0.0)
            yield Advantages(v, gains, d[:, None] * gains, d * self.problem.weights)

    def iter_advantages(self, policy: PolicyTable) -> Iterator[Advantages]:
        assert isinstance(self.solver, DirectSolver)
        update = RankOneUpdate(self.solver, policy)
        effects = np.array([update.compute_changes(s) for s in range(len(policy))])
        for advantages in self.iter_derivatives(policy):
            yield advantages._replace(effects=np.where(self.allowed[:, :, None], effects, 0.0))

    def compute_jacobian(self, policy: PolicyTable) -> tuple[Array, Array, Array]:
        v, _, J, b = next(self.iter_derivatives(policy))
        return self.problem.compute_returns(v), J, b.sum(axis=1)

    def compute_gradient(self, policy: PolicyTable, weights: Array | None = None) -> MeanGradient:
        lam = self.problem.weights if weights is None else weights
        returns, J, _ = self.compute_jacobian(policy)
        return MeanGradient(returns, J @ lam, self.compute_occupancy(policy) @ lam)

    def improve_mean(
        self, policy: PolicyTable, weights: Array, allowed: Mask, choose_row: RowChooser | None
    ) -> IntArray:
        """Take the best allowed row for b (1, S or 1, M) and the values of the policy."""
        q = next(self.iter_q_values(policy))[1]
        b = np.broadcast_to(weights[0], q[:, 0].shape)
        G = np.where(allowed[0], np.einsum("sm,sam->sa", b, q), -np.inf)
        return (choose_row or choose_actions)(G, b, policy)

    def compute_worst_returns(self, policy: PolicyTable, action_sets: Mask) -> Array:
        negated = InfiniteHorizon.from_problem(self.problem._replace(r=-self.problem.r))
        optima = negated.compute_model_optima(action_sets[0])
        return -(self.problem.compute_returns(optima.values.T) + optima.error_bound)


def make_evaluator(policy_class: PolicyClass, prepared: PreparedProblem) -> Evaluator:
    """Make the evaluator of the tables of a policy class over a finite horizon."""
    is_repeated = isinstance(policy_class, Stationary) or (
        isinstance(policy_class, Tree) and not policy_class.has_time_feature
    )
    return (RepeatedRowEvaluator if is_repeated else Evaluator)(prepared)


def take_actions(q: AnyArray, cells: PolicyTable) -> Array:
    """Return q (cells, A, M) at actions (cells,), or its mean by probabilities (cells, A)."""
    if is_randomized(cells):
        return np.einsum("...a,...am->...m", cells, q)
    taken: Array = q.reshape(-1, *q.shape[-2:])[np.arange(cells.size), cells.reshape(-1)]
    return taken.reshape(*cells.shape, -1)


class RankOneUpdate:
    """Row with its inverse F, values v and occupancy d, updated for one state at a time."""

    def __init__(self, solver: DirectSolver, policy: IntArray) -> None:
        self.solver, self.policy = solver, policy
        self.F = solver.compute_inverse(policy)
        r = solver.r[:, np.arange(len(policy)), policy]
        with limit_blas_threads():
            self.v = np.matmul(self.F, r[:, :, None])[:, :, 0]
            self.d = np.matmul(solver.problem.initial.T[:, None], self.F)[:, 0]

    def compute_changes(self, s: int) -> Array:
        """Compute what each action in state s adds to rho, (A, M)."""
        gamma, P = self.solver.problem.discount, self.solver.P[:, s]
        q = self.solver.r[:, s] + gamma * np.matmul(P, self.v[:, :, None])[:, :, 0]
        self.transition_change = P - P[:, [self.policy[s]]]
        x = self.F[:, :, s, None]
        self.denominator = 1.0 - gamma * np.matmul(self.transition_change, x)[:, :, 0]
        with np.errstate(divide="ignore", invalid="ignore"):  # actions that are not allowed
            # (M, A): how far v moves along x_m
            self.value_step = (q - self.v[:, [s]]) / self.denominator
        return (self.d[:, [s]] * self.value_step).T

    def apply_change(self, s: int, a: int) -> None:
        """Set the action of state s, after :meth:`compute_changes` of that state."""
        gamma = self.solver.problem.discount
        column = self.F[:, :, s].copy()
        with limit_blas_threads():
            row = np.matmul(self.transition_change[:, [a]], self.F)[:, 0]
        row *= gamma / self.denominator[:, [a]]
        self.v += column * self.value_step[:, [a]]
        self.d += self.d[:, [s]] * row
        self.F += column[:, :, None] * row[:, None, :]
        self.policy[s] = a
