"""MILP: the occupancy program with a binary policy, solved by HiGHS."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mmdp.bounds import lp
from mmdp.bounds.relaxation import open_actions
from mmdp.errors import InputError
from mmdp.methods.base import Context, Outcome, Table, start_policy
from mmdp.methods.cadp import ascend
from mmdp.solution import Status

LIMIT = 400_000  # variables
FEASIBLE = 1e-6  # HiGHS's own tolerance: its bound is trusted up to this, relatively


@dataclass(frozen=True)
class MILP:
    """Mixed-integer program in occupancy form; CADP gives the value that it must beat.

    Parameters
    ----------
    gap
        Relative gap at which HiGHS stops.
    tight
        Whether L and B are the reach bounds (else 0 and the weight of the model: the plain
        program, for comparison).

    >>> import mmdp
    >>> from mmdp.methods.milp import MILP
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 2, MILP()).value
    7.0
    """

    gap: float = 1e-6
    tight: bool = True

    name: ClassVar[str] = "milp"

    def __post_init__(self) -> None:
        if not self.gap >= 0:
            raise InputError(f"gap must be at least 0, not {self.gap}")

    def run(self, context: Context) -> Outcome:
        x = context.problem
        mask = open_actions(x, context.horizon)
        size = lp.variables(mask, x.n_models)
        if size > LIMIT:
            raise InputError(
                f"the program would have {size:,} variables (at most {LIMIT:,}); use "
                "method='exact', which has no limit"
            )
        ascend(context, *start_policy(context, "wsu", context.seed))
        plain = None
        if not self.tight:
            shape = (*mask.shape[:2], x.n_models)
            plain = (np.zeros(shape), np.broadcast_to(x.weights, shape).copy())
        program = lp.build(x, mask, plain)
        with lp.quiet():
            result = _solve(program, self.gap, context)
        bound = None
        if result.mip_dual_bound is not None:
            bound = -float(result.mip_dual_bound)
            bound += FEASIBLE * max(1.0, abs(bound))
        if result.x is not None:
            actions = _policy(program, result.x, mask)
            value = context.mean(context.returns(actions))
            if value > context.best_value:
                context.trace.append(value)
                context.best_policy, context.best_value = actions, value
        proven = result.status == 0
        if result.status == 2:  # nothing beats the cutoff
            proven, bound = True, context.best_value
        if bound is not None:
            bound = max(bound, context.best_value)
        status = Status.OPTIMAL if proven else Status.TIME_LIMIT
        nodes = int(result.mip_node_count or 0)
        details = {"bound": bound, "nodes": nodes, "variables": program.size}
        return Outcome(context.best_policy, status, nodes, details=details)


def _solve(program: lp.Program, gap: float, context: Context) -> Any:
    from scipy.optimize import Bounds, LinearConstraint, milp

    integral = np.zeros(program.size, dtype=np.int64)
    integral[program.n_u :] = 1
    options: Any = {"mip_rel_gap": gap}
    if context.deadline is not None:
        options["time_limit"] = max(context.deadline - time.perf_counter(), 0.1)
    return milp(
        program.cost,
        constraints=[
            LinearConstraint(program.equal, program.equal_to, program.equal_to),
            LinearConstraint(program.below, -np.inf, 0.0),
        ],
        bounds=Bounds(0, program.upper), integrality=integral, options=options,
    )  # fmt: skip


def _policy(program: lp.Program, solution: Any, mask: Any) -> Table:
    """(T, S) actions; where nobody comes, the lowest allowed action."""
    chance = np.where(program.pi >= 0, solution[np.maximum(program.pi, 0)], -1.0)
    chance = np.where(mask, chance, -2.0)
    actions: Table = chance.argmax(axis=2).astype(np.int32)
    return actions
