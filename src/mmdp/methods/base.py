"""What a method is: a frozen dataclass of options that answers a question.

A method derives from :class:`Method`: it has a ``name``, ``lacks(question)``, which says what it
cannot answer, and ``run(context)``, which returns an :class:`mmdp.search.context.Outcome`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.clock import Callback, Progress, Stop
from mmdp.kernels import PASSES, Problem
from mmdp.methods.question import Question
from mmdp.policy import Markov, PolicyKind, Stationary
from mmdp.search.context import Context, Outcome
from mmdp.solution import Status

__all__ = ["Callback", "Context", "Method", "Outcome", "Progress", "Question", "Stop"]

Array = npt.NDArray[np.float64]


class Method:
    """An algorithm: derive a frozen dataclass of its options from this class.

    What it can do is asked by :meth:`lacks`; :func:`mmdp.methods.capabilities` asks all methods.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # what it does, in one phrase
    finds: ClassVar[PolicyKind | None] = Markov()  # the default; None: one per model
    proves: ClassVar[Status | None] = None  # the most that it can prove about its policy
    resumes: ClassVar[bool] = False  # whether it can go on from a policy that it found before
    complete: ClassVar[bool] = False  # whether it also decides where no model goes
    least_passes: ClassVar[float] = PASSES  # infinite: too many for plain numpy

    def lacks(self, question: Question) -> str | None:
        """Why it cannot answer the question, as a sentence about "it"; None if it can.

        Unless a method says otherwise it maximises the mean backwards in time on ``context.plan``.
        That is enough for models that change, and for models spread over processes.
        """
        return question.not_mean() or question.not_mask() or question.not_ending()

    @classmethod
    def default(cls, horizon: float | None) -> PolicyKind:
        """The kind of policy to find if none is asked for."""
        kind = cls.finds or Markov()
        return Stationary() if horizon == math.inf and not kind.learns else kind

    def run(self, context: Context) -> Outcome:
        raise NotImplementedError

    def passes(self, problem: Problem, horizon: int) -> float:
        """About how many passes over the problem a solve takes, for ``backend="auto"``."""
        return self.least_passes

    def bytes_held(self, question: Question) -> int:
        """Bytes that a solve needs at least: values or weights by time, state and model."""
        x = question.model.problem
        return 8 * question.steps * x.terminal.size
