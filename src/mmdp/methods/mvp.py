"""MVP, the mean value problem: solve the MDP of averaged transitions and rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.kernels.endless import Endless
from mmdp.kernels.problem import Array, Table
from mmdp.methods.base import Context, Question
from mmdp.methods.wsu import WSU
from mmdp.search.tables import mvp_actions


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

    def found(self, context: Context) -> tuple[Table, Array]:
        if context.kind.endless:
            mean = context.model.mean_model().problem.restricted(context.problem.allowed)
            row = Endless.of(mean, context.check_time).own().actions[0]
            return row, context.endless.returns(row)
        actions = mvp_actions(context)
        return actions, context.returns(actions)
