"""Oracle: each model solved on its own, as if the true model were known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mmdp.arguments import checked
from mmdp.methods.base import Context, Method, Outcome, Question
from mmdp.policy import PolicyKind
from mmdp.solution import Status


@checked
@dataclass(frozen=True)
class Oracle(Method):
    """Per-model optimal policies and values; no single policy can do better on average.

    Parameters
    ----------
    keep_policies
        Whether to keep the policies, of the models in this process if they are spread over several;
        without them only values are found, in less memory.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 1, "oracle").returns.tolist()
    [3.0, 5.0]
    """

    keep_policies: bool = True

    name: ClassVar[str] = "oracle"
    title: ClassVar[str] = "each model solved on its own, as a bound"
    finds: ClassVar[PolicyKind | None] = None
    proves: ClassVar[Status | None] = Status.OPTIMAL

    def lacks(self, question: Question) -> str | None:
        apart = question.not_whole() if question.endless else None
        return question.not_mean() or question.not_mask() or apart

    def bytes_held(self, question: Question) -> int:
        return super().bytes_held(question) // 2 * self.keep_policies

    def run(self, context: Context) -> Outcome:
        if context.kind.endless:
            own = context.model_optima
            policies = own.actions[None] if self.keep_policies else None
            status, values = Status.OPTIMAL, own.values
            if not own.is_complete:  # these values are not those of the policies
                status, values = Status.TIME_LIMIT, context.endless.values(own.actions)
            returns = context.problem.returns(values.T)
            return Outcome(None, status, 1, policies=policies, returns=returns)
        keep = ("actions",) if self.keep_policies else ()
        found = context.plan.backward("own", keep=keep)
        returns = context.problem.returns(found.first)
        policies = None
        if found.actions is not None:
            policies = np.moveaxis(found.actions, 2, 1)
        return Outcome(None, Status.OPTIMAL, 1, policies=policies, returns=returns)
