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

from mmdp.bounds.relaxation import Mask, open_actions
from mmdp.clock import pass_on, to_the_end
from mmdp.kernels import Plan, Problem
from mmdp.kernels.problem import Array, Reach

TOLERANCE = 1e-9  # of HiGHS, for rows whose largest entry is 1 and columns whose range is 1


@dataclass(frozen=True)
class Program:
    """min cost x, equal x = equal_to, below x <= 0; columns u (cell by cell, models last), pi.

    The cost is what models lose against their own optima.
    """

    cost: Array
    equal: Any
    equal_to: Array
    below: Any
    pi: npt.NDArray[np.int64]  # (T, S, A) column of pi, -1 if it has none
    lower_cells: npt.NDArray[np.int64]  # u columns of the rows L pi <= u, which come last
    n_u: int
    upper: Array

    @property
    def size(self) -> int:
        return len(self.cost)

    def point(self, actions: npt.NDArray[np.generic], b: Array) -> Array:
        """The variables of a deterministic policy (T, S) with weights b (T, S, M)."""
        t, s, a = np.nonzero(self.pi >= 0)
        taken = actions[t, s] == a
        u = b[t, s] * taken[:, None]
        return np.concatenate([u.reshape(-1), taken.astype(float)])

    def rows(self) -> tuple[Array, Any, Array, Array, Array]:
        """Cost, rows, their lower and upper ends, upper bounds of the variables."""
        from scipy.sparse import vstack

        lower = np.full(self.below.shape[0], -np.inf)
        return (
            self.cost, vstack([self.equal, self.below], format="csr"),
            np.concatenate([self.equal_to, lower]),
            np.concatenate([self.equal_to, np.zeros_like(lower)]), self.upper,
        )  # fmt: skip


def variables(problem: Problem, horizon: int) -> int:
    """How many variables the program has at most."""
    return int(open_actions(problem, horizon).sum()) * (problem.n_models + 1)


def build(plan: Plan, reach: Reach, cap: Array | None = None) -> Program:
    """The program over the policies of the allowed actions.

    ``cap`` (M,): the most that models may lose against their own optima, in every cell too.
    """
    problem, horizon, (lo, hi) = plan.problem, plan.horizon, reach
    used = open_actions(problem, horizon) & (hi.max(axis=2) > 0)[:, :, None]
    t, s, a = np.nonzero(used)
    n_u = len(t) * problem.n_models
    column = np.full(used.shape, -1, dtype=np.int64)
    column[t, s, a] = n_u + np.arange(len(t))
    flow, flow_to = _flow(problem, used)
    own = plan.backward("own", keep=("q", "values"))
    loss = np.maximum(own.values[t, s] - own.q[t, s, a], 0.0)
    loss *= (problem.discount ** t.astype(float))[:, None]
    upper = hi[t, s]
    if cap is not None:
        upper = np.minimum(
            upper, np.divide(problem.weights * cap, loss, out=upper.copy(), where=loss > 0)
        )
    upper = upper.reshape(-1)
    below, lower_cells = _coupling(lo[t, s].reshape(-1), upper, problem.n_models)
    return Program(
        cost=np.concatenate([loss.reshape(-1), np.zeros(len(t))]),
        equal=flow,
        equal_to=flow_to,
        below=below,
        pi=column,
        lower_cells=lower_cells,
        n_u=n_u,
        upper=np.concatenate([upper, np.ones(len(t))]),
    )


def _flow(problem: Problem, used: Mask) -> tuple[Any, Array]:
    """Rows: inflow = outflow of every (t, s, m), then sum_a pi = 1."""
    x, model = problem, np.arange(problem.n_models)
    horizon, _, n_actions = used.shape
    n_models = x.n_models
    t, s, a = np.nonzero(used)
    place = used.any(axis=2)
    state = np.full(place.shape, -1, dtype=np.int64)
    state[place] = np.arange(place.sum())
    here, cells = state[t, s], np.arange(len(t))
    entries = _Entries()
    entries.add(here[:, None] * n_models + model, cells[:, None] * n_models + model, 1.0)
    for k in np.flatnonzero(t < horizon - 1):  # where the mass of each cell goes
        to, p = x.storage.row(int(t[k]), int(s[k]) * n_actions + int(a[k]))
        there: Any = state[t[k] + 1, to]
        seen = np.flatnonzero(there >= 0)  # the others are out of reach
        entries.add(there[seen][:, None] * n_models + model, k * n_models + model, -p[seen])
    n_flow = int(place.sum()) * n_models
    entries.add(n_flow + here, len(t) * n_models + cells, 1.0)
    start = np.zeros((int(place.sum()), n_models))
    first = np.flatnonzero(used[0].any(axis=1))
    start[state[0, first]] = x.start()[first]
    shape = (n_flow + int(place.sum()), len(t) * (n_models + 1))
    return entries.matrix(*shape), np.append(start.reshape(-1), np.ones(int(place.sum())))


def _coupling(lower: Array, upper: Array, n_models: int) -> tuple[Any, npt.NDArray[np.int64]]:
    """Rows u - B pi <= 0 for every u, then L pi - u <= 0 if L > 0; and the u of the latter."""
    n_u = len(upper)
    cells = np.arange(n_u)
    owner = n_u + cells // n_models
    some = np.flatnonzero(lower > 0)
    entries = _Entries()
    entries.add(cells, cells, 1.0)
    entries.add(cells, owner, -upper)
    entries.add(n_u + np.arange(len(some)), some, -1.0)
    entries.add(n_u + np.arange(len(some)), owner[some], lower[some])
    return entries.matrix(n_u + len(some), n_u + n_u // n_models), some


class _Entries:
    """A sparse matrix in the making."""

    def __init__(self) -> None:
        self.parts: list[tuple[Any, Any, Any]] = []

    def add(self, rows: Any, columns: Any, values: Any) -> None:
        r, c, v = np.broadcast_arrays(rows, columns, values)
        self.parts.append((r.reshape(-1), c.reshape(-1), v.reshape(-1)))

    def matrix(self, n_rows: int, n_columns: int) -> Any:
        from scipy.sparse import coo_array

        rows, columns, values = (np.concatenate([part[k] for part in self.parts]) for k in range(3))
        return coo_array((values, (rows, columns)), shape=(n_rows, n_columns)).tocsr()


@dataclass(frozen=True)
class Answer:
    """What HiGHS found.

    ``status`` is "optimal", "infeasible", "stopped" (by the time limit or by ``watch``),
    "interrupted" (by Ctrl-C) or in its own words.
    """

    status: str
    x: Array | None
    bound: float  # a lower bound on the minimum, less what HiGHS's tolerances can do
    prices: Array  # of the rows; empty for an integer program
    nodes: int
    slack: float  # what these tolerances can do, which the bound allows for


Watch = Callable[[float, int], bool]  # (bound, nodes) -> whether to continue


def minimise(
    cost: Array, rows: Any, row_lower: Array, row_upper: Array, upper: Array, *,
    integral: Mask | None = None, time_limit: float | None = None, gap: float = 0.0,
    start: Array | None = None, watch: Watch | None = None,
) -> Answer:  # fmt: skip
    """min cost x with row_lower <= rows x <= row_upper, 0 <= x <= upper, some x integral.

    HiGHS has absolute tolerances, so every column is scaled to a range of 1, and every row and the
    cost by their largest entries. Then a reduced cost of the wrong sign within the tolerance
    changes the bound by no more than that, for each column.
    """
    import highspy
    from scipy.sparse import diags_array

    column = np.where(upper > 0, upper, 1.0)
    rows = rows @ diags_array(column)
    row = _unless_zero(abs(rows).max(axis=1).toarray().ravel())
    unit = float(_unless_zero(np.abs(cost * upper).max(initial=0.0)))
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    solver.passModel(
        _highs_model(
            highspy, cost * column / unit, (diags_array(1 / row) @ rows).tocsr(),
            row_lower / row, row_upper / row, upper / column, integral,
        )
    )  # fmt: skip
    for kind in ("primal", "dual", "mip"):
        solver.setOptionValue(f"{kind}_feasibility_tolerance", TOLERANCE)
    if time_limit is not None:
        solver.setOptionValue("time_limit", max(time_limit, 0.1))
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("mip_abs_gap", 1e-9)
    if start is not None:
        given = highspy.HighsSolution()
        given.col_value = list(start / column)
        solver.setSolution(given)
    slack = TOLERANCE * len(cost) * unit
    if watch is not None:
        _follow(solver, watch, unit, slack)
    interrupted = _run(solver)
    info, found = solver.getInfo(), solver.getSolution()
    kinds = highspy.HighsModelStatus
    status = {
        kinds.kOptimal: "optimal", kinds.kInfeasible: "infeasible", kinds.kTimeLimit: "stopped",
        kinds.kInterrupt: "stopped",
    }.get(solver.getModelStatus(), solver.modelStatusToString(solver.getModelStatus()))  # fmt: skip
    if interrupted and status != "optimal":
        status = "interrupted"
    x = column * np.array(found.col_value) if found.value_valid else None
    whole = integral is not None and bool(integral.any())
    bound = unit * float(info.mip_dual_bound if whole else info.objective_function_value)
    prices = unit * np.array(found.row_dual) / row if found.dual_valid else np.zeros(0)
    return Answer(status, x, bound - slack, prices, max(int(info.mip_node_count), 0), slack)


def _unless_zero(scale: Any) -> Array:
    """1 in place of 0."""
    return np.where(scale > 0, scale, 1.0)


def _run(solver: Any) -> bool:
    """Run to the end; whether Ctrl-C cut it short. A second Ctrl-C is raised at once."""
    solver.HandleUserInterrupt = True
    pressed: list[bool] = []

    def cancel() -> None:
        pressed.append(True)
        solver.cancelSolve()

    to_the_end(solver.run, cancel)
    return bool(pressed)


def _highs_model(
    highspy: Any, cost: Array, rows: Any, row_lower: Array, row_upper: Array, upper: Array,
    integral: Mask | None,
) -> Any:  # fmt: skip
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(row_lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, np.zeros(len(cost)), upper
    lp.row_lower_, lp.row_upper_ = row_lower, row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = rows.indptr, rows.indices
    lp.a_matrix_.value_ = rows.data
    if integral is not None:
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if x else kinds.kContinuous for x in integral]
    return lp


def _follow(solver: Any, watch: Watch, unit: float, slack: float) -> None:
    def logged(event: Any) -> None:
        out = event.data_out
        if not watch(unit * out.mip_dual_bound - slack, max(int(out.mip_node_count), 0)):
            solver.cancelSolve()

    solver.cbMipLogging += logged


def solve_relaxation(program: Program, time_limit: float | None) -> Answer:
    """The program without integrality, with the prices of its rows."""
    answer = minimise(*program.rows(), time_limit=time_limit)
    pass_on(answer.status == "interrupted")
    return answer


def multipliers(program: Program, answer: Answer, n_models: int, discount: float) -> Array:
    """y (T, S, A, M) from the prices of the coupling rows: D(y) proves the program's value."""
    price = -answer.prices[len(program.equal_to) :]
    values = price[: program.n_u].copy()
    values[program.lower_cells] -= price[program.n_u :]
    t, s, a = np.nonzero(program.pi >= 0)
    scale = discount ** t.astype(float)
    y = np.zeros((*program.pi.shape, n_models))
    y[t, s, a] = values.reshape(-1, n_models) / np.where(scale > 0, scale, 1.0)[:, None]
    return y
