"""The occupancy linear program, solved by HiGHS; with binary pi it is the exact problem.

Variables u_{t,m}(s, a) and pi_t(s, a):

    max  sum gamma^t r_m(s, a) u_{t,m}(s, a)  (+ the terminal value of the last step)
    s.t. flow of every model, sum_a pi_t(s, a) = 1, L pi_t(s, a) <= u_{t,m}(s, a) <= B pi_t(s, a).

Only (t, s) that some model can reach and open actions have variables. By the flow it is the same
to minimise what models lose against their own optima,
sum gamma^t (v*_m(s) - q*_m(s, a)) u_{t,m}(s, a). That has no offset, and its size is what is at
stake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.bounds.relaxation import Mask, expand_allowed
from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.kernels.problem import Array, VisitBounds
from mmdp.core.timing import run_cancellable

Int64Array = npt.NDArray[np.int64]
SparseMatrix = Any  # scipy.sparse.csr_array
HighsModule = Any  # highspy has no types
HighsSolver = Any
TOLERANCE = 1e-9  # of HiGHS, for rows whose largest entry is 1 and columns whose range is 1


@dataclass(frozen=True)
class OccupancyLP:
    """Arrays of the occupancy LP: min cost x with equality and coupling rows; columns u, then pi.

    The cost is what models lose against their own optima.
    """

    cost: Array
    equality_matrix: SparseMatrix
    equality_rhs: Array
    coupling_matrix: SparseMatrix
    policy_columns: npt.NDArray[np.int64]  # (T, S, A) column of pi, -1 if it has none
    n_occupancy: int
    upper_bounds: Array

    @property
    def n_variables(self) -> int:
        """Number of variables."""
        return len(self.cost)

    def policy_to_variables(self, actions: npt.NDArray[np.generic], b: Array) -> Array:
        """Convert a deterministic policy (T, S) with weights b (T, S, M) to variables."""
        t, s, a = np.nonzero(self.policy_columns >= 0)
        is_taken = actions[t, s] == a
        u = b[t, s] * is_taken[:, None]
        return np.concatenate([u.reshape(-1), is_taken.astype(float)])

    def to_arrays(self) -> tuple[Array, SparseMatrix, Array, Array, Array]:
        """Return cost, rows, lower and upper ends of the rows, and upper bounds of variables."""
        from scipy.sparse import vstack

        lower = np.full(self.coupling_matrix.shape[0], -np.inf)
        return (
            self.cost,
            vstack([self.equality_matrix, self.coupling_matrix], format="csr"),
            np.concatenate([self.equality_rhs, lower]),
            np.concatenate([self.equality_rhs, np.zeros_like(lower)]),
            self.upper_bounds,
        )


def count_variables(problem: Problem, horizon: int) -> int:
    """Bound the number of variables of the occupancy LP."""
    return int(expand_allowed(problem, horizon).sum()) * (problem.n_models + 1)


def build_lp(
    prepared: PreparedProblem, reach: VisitBounds, loss_caps: Array | None = None
) -> OccupancyLP:
    """Build the occupancy LP over the policies of the allowed actions.

    ``loss_caps`` (M,): the most that models may lose against their own optima, in every cell too.
    """
    problem, horizon, (lo, hi) = prepared.problem, prepared.horizon, reach
    has_column = expand_allowed(problem, horizon) & (hi.max(axis=2) > 0)[:, :, None]
    t, s, a = np.nonzero(has_column)
    n_occupancy = len(t) * problem.n_models
    policy_columns = np.full(has_column.shape, -1, dtype=np.int64)
    policy_columns[t, s, a] = n_occupancy + np.arange(len(t))
    flow_matrix, flow_rhs = _build_flow_rows(problem, has_column)
    backward_pass = prepared.backward("per_model", keep=("q", "values"))
    loss = np.maximum(backward_pass.values[t, s] - backward_pass.q[t, s, a], 0.0)
    loss *= (problem.discount ** t.astype(float))[:, None]
    upper_bounds = hi[t, s]
    if loss_caps is not None:
        upper_bounds = np.minimum(
            upper_bounds,
            np.divide(problem.weights * loss_caps, loss, out=upper_bounds.copy(), where=loss > 0),
        )
    upper_bounds = upper_bounds.reshape(-1)
    coupling_matrix = _build_coupling_rows(lo[t, s].reshape(-1), upper_bounds, problem.n_models)
    return OccupancyLP(
        cost=np.concatenate([loss.reshape(-1), np.zeros(len(t))]),
        equality_matrix=flow_matrix,
        equality_rhs=flow_rhs,
        coupling_matrix=coupling_matrix,
        policy_columns=policy_columns,
        n_occupancy=n_occupancy,
        upper_bounds=np.concatenate([upper_bounds, np.ones(len(t))]),
    )


def _build_flow_rows(problem: Problem, has_column: Mask) -> tuple[SparseMatrix, Array]:
    """Build the rows inflow = outflow of every (t, s, m), then sum_a pi = 1."""
    x, model = problem, np.arange(problem.n_models)
    horizon, _, n_actions = has_column.shape
    n_models = x.n_models
    t, s, a = np.nonzero(has_column)
    is_used = has_column.any(axis=2)
    state_rows = np.full(is_used.shape, -1, dtype=np.int64)
    state_rows[is_used] = np.arange(is_used.sum())
    current_rows, cells = state_rows[t, s], np.arange(len(t))
    entries = _SparseBuilder()
    entries.add(current_rows[:, None] * n_models + model, cells[:, None] * n_models + model, 1.0)
    for k in np.flatnonzero(t < horizon - 1):  # where the mass of each cell goes
        next_states, p = x.storage.get_row(int(t[k]), int(s[k]) * n_actions + int(a[k]))
        next_rows = state_rows[t[k] + 1, next_states]
        reachable_entries = np.flatnonzero(next_rows >= 0)  # the others are out of reach
        entries.add(
            next_rows[reachable_entries][:, None] * n_models + model,
            k * n_models + model,
            -p[reachable_entries],
        )
    n_flow = int(is_used.sum()) * n_models
    entries.add(n_flow + current_rows, len(t) * n_models + cells, 1.0)
    initial = np.zeros((int(is_used.sum()), n_models))
    initial_states = np.flatnonzero(has_column[0].any(axis=1))
    initial[state_rows[0, initial_states]] = x.initial_joint()[initial_states]
    shape = (n_flow + int(is_used.sum()), len(t) * (n_models + 1))
    return entries.to_csr(*shape), np.append(initial.reshape(-1), np.ones(int(is_used.sum())))


def _build_coupling_rows(lower: Array, upper: Array, n_models: int) -> SparseMatrix:
    """Build the rows u - B pi <= 0, then L pi - u <= 0 if L > 0."""
    n_occupancy = len(upper)
    cells = np.arange(n_occupancy)
    policy_columns = n_occupancy + cells // n_models
    bounded_cells = np.flatnonzero(lower > 0)
    entries = _SparseBuilder()
    entries.add(cells, cells, 1.0)
    entries.add(cells, policy_columns, -upper)
    entries.add(n_occupancy + np.arange(len(bounded_cells)), bounded_cells, -1.0)
    entries.add(
        n_occupancy + np.arange(len(bounded_cells)),
        policy_columns[bounded_cells],
        lower[bounded_cells],
    )
    return entries.to_csr(n_occupancy + len(bounded_cells), n_occupancy + n_occupancy // n_models)


class _SparseBuilder:
    """Collects the entries of a sparse matrix."""

    def __init__(self) -> None:
        self.entries: list[tuple[Int64Array, Int64Array, Array]] = []

    def add(self, rows: Int64Array, columns: Int64Array, values: Array | float) -> None:
        """Add entries whose rows, columns and values broadcast to one shape."""
        r, c, v = np.broadcast_arrays(rows, columns, values)
        self.entries.append((r.reshape(-1), c.reshape(-1), v.reshape(-1)))

    def to_csr(self, n_rows: int, n_columns: int) -> SparseMatrix:
        """Return the collected entries as a CSR matrix."""
        from scipy.sparse import coo_array

        rows, columns, values = (
            np.concatenate([entry[k] for entry in self.entries]) for k in range(3)
        )
        return coo_array((values, (rows, columns)), shape=(n_rows, n_columns)).tocsr()


@dataclass(frozen=True)
class LPResult:
    """Result of HiGHS.

    ``status`` is "optimal", "infeasible", "stopped" (by the time limit or the callback),
    "interrupted" (by Ctrl-C) or the text of HiGHS.
    """

    status: str
    x: Array | None
    bound: float  # a lower bound on the minimum, less what HiGHS's tolerances can do
    n_nodes: int
    tolerance_error: float  # what these tolerances can do, which the bound allows for


MipCallback = Callable[[float, int], bool]  # (bound, nodes) -> whether to continue


def minimize(
    cost: Array,
    rows: SparseMatrix,
    row_lower: Array,
    row_upper: Array,
    upper_bounds: Array,
    *,
    is_integral: Mask | None = None,
    time_limit: float | None = None,
    rel_gap: float = 0.0,
    initial_solution: Array | None = None,
    callback: MipCallback | None = None,
) -> LPResult:
    """Minimize cost x with row_lower <= rows x <= row_upper, 0 <= x <= upper, some x integral.

    HiGHS has absolute tolerances, so every column is scaled to a range of 1, and every row and the
    cost by their largest entries. Then a reduced cost of the wrong sign within the tolerance
    changes the bound by no more than that, for each column.
    """
    import highspy
    from scipy.sparse import diags_array

    column_scale = np.where(upper_bounds > 0, upper_bounds, 1.0)
    rows = rows @ diags_array(column_scale)
    row_scale = _replace_zeros(abs(rows).max(axis=1).toarray().ravel())
    cost_scale = float(_replace_zeros(np.abs(cost * upper_bounds).max(initial=0.0)))
    solver: HighsSolver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    solver.passModel(
        _make_highs_model(
            highspy,
            cost * column_scale / cost_scale,
            (diags_array(1 / row_scale) @ rows).tocsr(),
            row_lower / row_scale,
            row_upper / row_scale,
            upper_bounds / column_scale,
            is_integral,
        )
    )
    for tolerance_name in ("primal", "dual", "mip"):
        solver.setOptionValue(f"{tolerance_name}_feasibility_tolerance", TOLERANCE)
    if time_limit is not None:
        solver.setOptionValue("time_limit", max(time_limit, 0.1))
    solver.setOptionValue("mip_rel_gap", rel_gap)
    solver.setOptionValue("mip_abs_gap", 1e-9)
    if initial_solution is not None:
        highs_solution = highspy.HighsSolution()
        highs_solution.col_value = list(initial_solution / column_scale)
        solver.setSolution(highs_solution)
    tolerance_error = TOLERANCE * len(cost) * cost_scale
    if callback is not None:
        _attach_callback(solver, callback, cost_scale, tolerance_error)
    was_interrupted = _run_solver(solver)
    info, solution = solver.getInfo(), solver.getSolution()
    statuses = highspy.HighsModelStatus
    status = {
        statuses.kOptimal: "optimal",
        statuses.kInfeasible: "infeasible",
        statuses.kTimeLimit: "stopped",
        statuses.kInterrupt: "stopped",
    }.get(solver.getModelStatus(), solver.modelStatusToString(solver.getModelStatus()))
    if was_interrupted and status != "optimal":
        status = "interrupted"
    x = column_scale * np.array(solution.col_value) if solution.value_valid else None
    is_mip = is_integral is not None and bool(is_integral.any())
    bound = cost_scale * float(info.mip_dual_bound if is_mip else info.objective_function_value)
    return LPResult(
        status,
        x,
        bound - tolerance_error,
        max(int(info.mip_node_count), 0),
        tolerance_error,
    )


def _replace_zeros(scale: npt.ArrayLike) -> Array:
    """Replace zeros by ones."""
    return np.where(np.asarray(scale) > 0, scale, 1.0)


def _run_solver(solver: HighsSolver) -> bool:
    """Run HiGHS; return whether Ctrl-C stopped it. A second Ctrl-C is raised at once."""
    solver.HandleUserInterrupt = True
    return run_cancellable(solver.run, solver.cancelSolve)


def _make_highs_model(
    highspy: HighsModule,
    cost: Array,
    rows: SparseMatrix,
    row_lower: Array,
    row_upper: Array,
    upper_bounds: Array,
    is_integral: Mask | None,
) -> HighsSolver:
    """Convert the arrays to a HighsLp."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(row_lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, np.zeros(len(cost)), upper_bounds
    lp.row_lower_, lp.row_upper_ = row_lower, row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = rows.indptr, rows.indices
    lp.a_matrix_.value_ = rows.data
    if is_integral is not None:
        variable_types = highspy.HighsVarType
        lp.integrality_ = [
            variable_types.kInteger if x else variable_types.kContinuous for x in is_integral
        ]
    return lp


def _attach_callback(
    solver: HighsSolver, callback: MipCallback, cost_scale: float, tolerance_error: float
) -> None:
    """Call back with the bound and the node count whenever HiGHS logs."""

    def on_log(event: HighsSolver) -> None:
        data = event.data_out
        if not callback(
            cost_scale * data.mip_dual_bound - tolerance_error, max(int(data.mip_node_count), 0)
        ):
            solver.cancelSolve()

    solver.cbMipLogging += on_log
