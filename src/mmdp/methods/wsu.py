"""WSU, weight-select-update (Steimle et al.): one pass with the initial model weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.methods.base import Context, Method, Outcome, Question
from mmdp.solution import Status


@dataclass(frozen=True)
class WSU(Method):
    """Maximise sum_m lambda_m q_{t,m}(s, a) backwards in time (eq. wsu-optimal-action).

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "wsu").value
    12.0
    """

    name: ClassVar[str] = "wsu"
    title: ClassVar[str] = "one backward pass with the initial weights"
    complete: ClassVar[bool] = True

    def bytes_held(self, question: Question) -> int:
        return 4 * question.steps * question.model.n_states

    def found(self, context: Context) -> Outcome:
        """The actions (T, S) and their returns."""
        actions, returns = context.wsu()
        return Outcome(actions, Status.COMPLETED, 1, returns=returns)

    def run(self, context: Context) -> Outcome:
        outcome = self.found(context)
        context.record(outcome.policy, context.mean(outcome.returns_known), last=True)
        return outcome
