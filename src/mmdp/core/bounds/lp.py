"""The occupancy program of the best Markov policy, solved by HiGHS.

Variables u_{t,m}(s, a) and binary pi_t(s, a):

    max  sum gamma^t r_m(s, a) u_{t,m}(s, a)  (+ the terminal value of the last step)
    s.t. flow of every model, sum_a pi_t(s, a) = 1, L pi_t(s, a) <= u_{t,m}(s, a) <= B pi_t(s, a).

Only (t, s) that some model can reach and allowed actions have variables. By the flow it is the
same to minimise what models lose against their own optima,
sum gamma^t (v*_m(s) - q*_m(s, a)) u_{t,m}(s, a). That has no offset, and its size is what is at
stake.

Tail objectives (CVaR, worst case, VaR) have rows for rho_m = most_m - loss_m, with most_m that of
the model's own optimum. With eta in the range that it can have, and model m up to D_m below it,
the program maximises

    CVaR        eta - (1/alpha) sum_m lambda_m D_m z_m   with   D_m z_m >= eta - rho_m,  0 <= z <= 1
    worst case  eta                                      with         0 >= eta - rho_m
    VaR         eta                                      with   D_m z_m >= eta - rho_m,  z binary,
                                                                sum_m lambda_m z_m < alpha

Only models of positive weight that can be below eta have such rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.evaluate import Evaluator
from mmdp.core.kernels import PreparedProblem
from mmdp.core.kernels.problem import PolicyTable, VisitBounds
from mmdp.core.objectives import (
    WEIGHT_RTOL,
    CVaR,
    Mean,
    MeanCVaR,
    Objective,
    Regret,
    VaR,
    WorstCase,
    weighted_quantile,
)
from mmdp.core.shapes import Array, IndexArray, Mask
from mmdp.core.solution import Status
from mmdp.core.timing import run_cancellable, solver_clock

HighsSolver = Any  # highspy has no types
LP_OBJECTIVES = (Mean.key, CVaR.key, VaR.key, WorstCase.key, MeanCVaR.key)
N_BISECTIONS = 40
TOLERANCE = 1e-9  # of HiGHS, for rows whose largest entry is 1 and columns whose range is 1
MipCallback = Callable[[float, int], bool]  # (bound, nodes) -> whether to continue


# ---------------------------------------------------------------------- linear programs
@dataclass(frozen=True)
class LPResult:
    """Result of HiGHS, with TIME_LIMIT or INTERRUPTED as its status if it was stopped."""

    status: Status
    x: Array | None
    bound: float  # a lower bound on the minimum, less what HiGHS's tolerances can do
    n_nodes: int
    tolerance_error: float  # what these tolerances can do, which the bound allows for


class LinearProgram:
    """min cost x with row_lower <= rows x <= row_upper and 0 <= x <= upper bounds, in parts."""

    def __init__(self) -> None:
        self._columns: list[tuple[Array, Array, Mask]] = []
        self._rows: list[tuple[Array, Array]] = []
        self._entries: list[tuple[IndexArray, IndexArray, Array]] = []
        self.n_columns = self.n_rows = 0

    def add_columns(
        self, cost: Array, upper: npt.ArrayLike = 1.0, is_binary: bool = False
    ) -> IndexArray:
        """Add variables with these costs and upper bounds; return their ids in the same shape."""
        bounds = np.broadcast_to(np.asarray(upper, float), cost.shape)
        self._columns.append((cost.ravel(), bounds.ravel(), np.full(cost.size, is_binary)))
        self.n_columns += cost.size
        return np.arange(self.n_columns - cost.size, self.n_columns).reshape(cost.shape)

    def add_rows(self, lower: npt.ArrayLike, upper: Array) -> IndexArray:
        """Add rows between these ends; return their ids in the same shape."""
        self._rows.append((np.broadcast_to(lower, upper.shape).ravel(), upper.ravel()))
        self.n_rows += upper.size
        return np.arange(self.n_rows - upper.size, self.n_rows).reshape(upper.shape)

    def add_entries(self, rows: IndexArray, columns: IndexArray, values: Array | float) -> None:
        """Add entries whose rows, columns and values broadcast to one shape."""
        r, c, v = np.broadcast_arrays(rows, columns, values)
        self._entries.append((r.ravel(), c.ravel(), v.ravel()))

    def minimize(
        self,
        initial_solution: Array,
        *,
        rel_gap: float,
        deadline: float,
        callback: MipCallback,
    ) -> LPResult:
        """Solve the program until the deadline; the callback is called whenever HiGHS logs.

        HiGHS has absolute tolerances, so every column is scaled to a range of 1, and every row and
        the cost by their largest entries. Then a reduced cost of the wrong sign within the
        tolerance changes the bound by no more than that, for each column.
        """
        import highspy
        from scipy.sparse import coo_array, diags_array

        cost, upper_bounds, is_binary = map(np.concatenate, zip(*self._columns, strict=True))
        row_lower, row_upper = map(np.concatenate, zip(*self._rows, strict=True))
        i, j, values = map(np.concatenate, zip(*self._entries, strict=True))
        column_scale = _replace_zeros(upper_bounds)
        shape = (self.n_rows, self.n_columns)
        rows = coo_array((values * column_scale[j], (i, j)), shape=shape).tocsr()
        row_scale = _replace_zeros(abs(rows).max(axis=1).toarray().ravel())
        rows = (diags_array(1 / row_scale) @ rows).tocsr()
        cost_scale = float(_replace_zeros(np.abs(cost * upper_bounds).max(initial=0.0)))
        tolerance_error = TOLERANCE * len(cost) * cost_scale
        solver: HighsSolver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.silent()
        solver.passModel(
            *(len(cost), len(row_lower), rows.nnz),
            *(int(highspy.MatrixFormat.kRowwise), int(highspy.ObjSense.kMinimize), 0.0),
            *(cost * column_scale / cost_scale, np.zeros(len(cost)), upper_bounds / column_scale),
            *(row_lower / row_scale, row_upper / row_scale),
            *(rows.indptr, rows.indices, rows.data, is_binary.astype(np.int32)),
        )
        for name in ("primal", "dual", "mip"):
            solver.setOptionValue(f"{name}_feasibility_tolerance", TOLERANCE)
        solver.setOptionValue("mip_rel_gap", rel_gap)
        solver.setOptionValue("mip_abs_gap", 1e-9)
        highs_solution = highspy.HighsSolution()
        highs_solution.col_value = list(initial_solution / column_scale)
        solver.setSolution(highs_solution)

        def on_log(event: HighsSolver) -> None:
            bound = cost_scale * event.data_out.mip_dual_bound - tolerance_error
            if not callback(bound, max(int(event.data_out.mip_node_count), 0)):
                solver.cancelSolve()

        solver.cbMipLogging += on_log
        solver.HandleUserInterrupt = True
        # the time is what building the program has left; each part of HiGHS counts from its start
        solver.setOptionValue("time_limit", max(deadline - solver_clock(), 0.1))
        was_interrupted = run_cancellable(solver.run, solver.cancelSolve, deadline)
        info, solution, statuses = solver.getInfo(), solver.getSolution(), highspy.HighsModelStatus
        status = Status.COMPLETED
        if was_interrupted and solver.getModelStatus() != statuses.kOptimal:
            status = Status.INTERRUPTED
        elif solver.getModelStatus() in (statuses.kTimeLimit, statuses.kInterrupt):
            status = Status.TIME_LIMIT
        return LPResult(
            status,
            column_scale * np.array(solution.col_value) if solution.value_valid else None,
            cost_scale * float(info.mip_dual_bound) - tolerance_error,
            max(int(info.mip_node_count), 0),
            tolerance_error,
        )


def _replace_zeros(scale: npt.ArrayLike) -> Array:
    """Replace zeros by ones."""
    return np.where(np.asarray(scale) > 0, scale, 1.0)


# ---------------------------------------------------------------------- the occupancy program
class OccupancyProgram(LinearProgram):
    """Program over the policies of the allowed actions; its cost is what models lose.

    ``max_returns`` (M,) is rho of the models' own optima, and ``loss_caps`` (M,) the most that they
    may lose against them.
    """

    def __init__(
        self,
        prepared: PreparedProblem,
        reach: VisitBounds,
        objective: Objective,
        max_returns: Array,
        loss_caps: Array,
    ) -> None:
        super().__init__()
        inner: Objective = objective.inner if isinstance(objective, Regret) else objective
        self.problem, self.max_returns = prepared.problem, max_returns
        self.mean_share = inner.mean_weight if isinstance(inner, MeanCVaR) else float(inner.is_mean)
        self.alpha: float | None = getattr(inner, "alpha", None)
        self.has_binary_z = isinstance(inner, VaR)
        self._add_occupancy(prepared, reach, loss_caps)
        if self.mean_share < 1:
            self._add_tail(loss_caps)

    def _add_occupancy(
        self, prepared: PreparedProblem, reach: VisitBounds, loss_caps: Array
    ) -> None:
        """Add the columns u and pi of every cell (t, s, a) and the rows between them."""
        weights = self.problem.weights
        self.allowed = Evaluator(prepared).allowed
        has_column = self.allowed & (reach.hi.max(axis=2) > 0)[:, :, None]
        self.cells = t, s, a = np.nonzero(has_column)
        backward_pass = prepared.backward("per_model", keep=("q", "values"))
        self.loss = np.maximum(backward_pass.values[t, s] - backward_pass.q[t, s, a], 0.0)
        self.loss *= (self.problem.discount ** t.astype(float))[:, None]
        upper = reach.hi[t, s]
        max_occupancy = np.divide(
            weights * loss_caps, self.loss, out=upper.copy(), where=self.loss > 0
        )
        upper = np.minimum(upper, max_occupancy)
        self.u = self.add_columns(self.mean_share * self.loss, upper)
        self.pi = self.add_columns(np.zeros(len(t)), is_binary=True)
        self._add_flow(has_column)
        rows = self.add_rows(-np.inf, np.zeros(upper.shape))
        self.add_entries(rows, self.u, 1.0)
        self.add_entries(rows, self.pi[:, None], -upper)
        cell, model = np.nonzero(reach.lo[t, s] > 0)
        rows = self.add_rows(-np.inf, np.zeros(len(cell)))
        self.add_entries(rows, self.u[cell, model], -1.0)
        self.add_entries(rows, self.pi[cell], reach.lo[t, s][cell, model])

    def _add_flow(self, has_column: Mask) -> None:
        """Add the rows inflow = outflow of every (t, s, m), and sum_a pi = 1."""
        x, (t, s, a) = self.problem, self.cells
        used_t, used_s = np.nonzero(has_column.any(axis=2))
        initial = np.where((used_t == 0)[:, None], x.initial_joint()[used_s], 0.0)
        flow_rows = self.add_rows(initial, initial)
        choice_rows = self.add_rows(1.0, np.ones(len(used_t)))
        position = np.full(has_column.shape[:2], -1)
        position[used_t, used_s] = np.arange(len(used_t))
        self.add_entries(choice_rows[position[t, s]], self.pi, 1.0)
        self.add_entries(flow_rows[position[t, s]], self.u, 1.0)
        for k in np.flatnonzero(t < len(has_column) - 1):  # where the mass of each cell goes
            next_states, p = x.storage.get_row(int(t[k]), int(s[k]) * x.n_actions + int(a[k]))
            next_positions = position[t[k] + 1, next_states]
            is_used = next_positions >= 0  # the others are out of reach
            self.add_entries(flow_rows[next_positions[is_used]], self.u[k], -p[is_used])

    def _add_tail(self, loss_caps: Array) -> None:
        """Add the columns eta and z and the rows D_m z_m >= eta - rho_m of a tail objective."""
        lam, min_returns = self.problem.weights, self.max_returns - loss_caps
        self.eta_min, eta_max = (
            float(weighted_quantile(x, lam, self.alpha or 0.0))
            for x in (min_returns, self.max_returns)
        )
        self.tail_models = m = np.flatnonzero((lam > 0) & (min_returns <= eta_max))
        # a model that is below eta anyway is so by at least this much
        min_shortfall = np.maximum(self.eta_min - self.max_returns[m], 0.0)
        self.min_shortfall = np.zeros_like(min_shortfall) if self.has_binary_z else min_shortfall
        self.shortfall_range = _replace_zeros(eta_max - min_returns[m] - self.min_shortfall)
        eta_range = float(_replace_zeros(eta_max - self.eta_min))
        self.eta = self.add_columns(np.full(1, self.mean_share - 1), eta_range)
        rows = self.add_rows(-np.inf, self.max_returns[m] - self.eta_min + self.min_shortfall)
        self.add_entries(rows, self.eta, 1.0)
        self.add_entries(rows, self.u[:, m], self.loss[:, m] / lam[m])
        if self.alpha is None:
            return
        z_cost = (1 - self.mean_share) * self.shortfall_range * lam[m] / self.alpha
        z_cost = np.zeros(len(m)) if self.has_binary_z else z_cost
        self.z = self.add_columns(z_cost, is_binary=self.has_binary_z)
        self.add_entries(rows, self.z, -self.shortfall_range)
        if self.has_binary_z:
            limit = (self.alpha - WEIGHT_RTOL) / float(lam[m].min())
            if np.ptp(lam[m]) <= WEIGHT_RTOL * lam[m].min():  # then it is a number of models
                limit = math.ceil(limit) - 1.0
            self.add_entries(
                self.add_rows(-np.inf, np.full(1, limit)), self.z, lam[m] / lam[m].min()
            )

    @property
    def objective_offset(self) -> float:
        """Constant that the objective value and the cost sum to."""
        lam = self.problem.weights
        mean = self.mean_share * float(lam @ self.max_returns)
        if self.mean_share == 1:
            return mean
        eta = self.eta_min
        if self.alpha is not None:
            eta -= float(lam[self.tail_models] @ self.min_shortfall) / self.alpha
        return (1 - self.mean_share) * eta + mean

    def bound_value_error(self, return_errors: Array) -> float:
        """Bound the change of the value if the returns change by ``return_errors`` (M,)."""
        mean_error = self.mean_share * float(self.problem.weights @ return_errors)
        if self.mean_share == 1:
            return mean_error
        return mean_error + (1 - self.mean_share) * float(return_errors[self.tail_models].max())

    def policy_to_variables(self, actions: PolicyTable, b: Array, rho: Array) -> Array:
        """Convert a policy (T, S) with weights b (T, S, M) and rho (M,) to variables."""
        t, s, a = self.cells
        variables, is_taken = np.zeros(self.n_columns), actions[t, s] == a
        variables[self.pi] = is_taken
        variables[self.u] = b[t, s] * is_taken[:, None]
        if self.mean_share < 1:
            eta = float(weighted_quantile(rho, self.problem.weights, self.alpha or 0.0))
            variables[self.eta] = eta - self.eta_min
            shortfall = np.maximum(eta - rho[self.tail_models] - self.min_shortfall, 0.0)
            z = shortfall > 0 if self.has_binary_z else shortfall / self.shortfall_range
            if self.alpha is not None:
                variables[self.z] = z
        return variables

    def variables_to_policy(self, variables: Array) -> PolicyTable:
        """Extract the actions (T, S); the lowest allowed one where no model goes."""
        probs = np.where(self.allowed, -1.0, -2.0)
        probs[self.cells] = variables[self.pi]
        return probs.argmax(axis=2).astype(np.int32)


def compute_loss_caps(
    objective: Objective, weights: Array, max_returns: Array, min_returns: Array, value: float
) -> Array:
    """Compute the most that each model can lose, (M,), in a policy of the given objective value.

    The other models are at their ``max_returns`` then. By bisection, since F is monotone.
    """
    lo, hi = np.zeros_like(max_returns), max_returns - min_returns
    for _ in range(N_BISECTIONS):
        middle = (lo + hi) / 2
        is_feasible = objective.value(max_returns - np.diag(middle), weights) >= value
        lo, hi = np.where(is_feasible, middle, lo), np.where(is_feasible, hi, middle)
    return np.where(weights > 0, hi, 0.0)
