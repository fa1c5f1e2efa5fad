"""MVP, the mean value problem: solve the MDP of averaged transitions and rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.kernels.endless import Endless
from mmdp.kernels.problem import Table
from mmdp.methods.base import Context, Outcome, Question
from mmdp.methods.wsu import WSU
from mmdp.search.tables import mvp_actions
from mmdp.solution import Status


@dataclass(frozen=True)
class MVP(WSU):
    """The optimal policy of the average model (see :meth:`mmdp.MMDP.mean_model`).

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "mvp").value
    12.0
    """

    name: ClassVar[str] = "mvp"
    title: ClassVar[str] = "the optimal policy of the average model"

    def lacks(self, question: Question) -> str | None:
        return question.not_mean() or question.not_mask()

    def found(self, context: Context) -> Outcome:
        status = Status.COMPLETED
        if context.kind.endless:
            mean = context.model.mean_model().problem.restricted(context.problem.allowed)
            optimum = Endless.of(mean, context.time.check).own()
            actions: Table = optimum.actions[0]
            status = status if optimum.is_complete else Status.TIME_LIMIT
        else:
            actions = mvp_actions(context)
        return Outcome(actions, status, 1, returns=context.returns(actions))
