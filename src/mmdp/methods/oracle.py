"""Oracle: each model solved on its own, as if the true model were known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mmdp.kernels.problem import Problem
from mmdp.methods.base import Context, Method, Outcome
from mmdp.solution import Status


@dataclass(frozen=True)
class Oracle(Method):
    """Per-model optimal policies and values; no single policy can do better on average.

    ``keep_policies=False`` saves their memory (T * M * S) where only values are wanted.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 1, "oracle").returns.tolist()
    [3.0, 5.0]
    """

    keep_policies: bool = True

    name: ClassVar[str] = "oracle"

    def memory(self, problem: Problem, horizon: int) -> int:
        return 4 * horizon * problem.n_states * problem.n_models * self.keep_policies

    def run(self, context: Context) -> Outcome:
        found = context.kernel.backward(
            context.problem, context.horizon, "own", keep_actions=self.keep_policies
        )
        returns = context.problem.returns(found.first)
        policies = None
        if found.actions is not None:
            policies = np.moveaxis(found.actions, 2, 1)
        return Outcome(None, Status.OPTIMAL, 1, policies=policies, returns=returns)
