"""MVP, the mean value problem: solve the MDP of averaged transitions and rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.methods.base import Context, Method, Outcome, Question
from mmdp.search.tables import mvp_actions
from mmdp.solution import Status


@dataclass(frozen=True)
class MVP(Method):
    """The optimal policy of the average model (see :meth:`mmdp.MMDP.mean_model`).

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "mvp").value
    12.0
    """

    name: ClassVar[str] = "mvp"
    title: ClassVar[str] = "the optimal policy of the average model"
    complete: ClassVar[bool] = True

    def bytes_held(self, question: Question) -> int:
        return 4 * question.steps * question.model.n_states

    def run(self, context: Context) -> Outcome:
        actions = mvp_actions(context)
        returns = context.returns(actions)
        context.record(actions, context.mean(returns), last=True)
        return Outcome(actions, Status.COMPLETED, 1, returns=returns)
