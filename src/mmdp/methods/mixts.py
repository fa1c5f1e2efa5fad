"""MixTS: Thompson sampling over the models, adapted to seen states (the paper's appendix)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from mmdp.arguments import PositiveFloat, checked
from mmdp.errors import InputError
from mmdp.kernels import Problem
from mmdp.kernels.planner import SAMPLED, PlannerTables
from mmdp.kernels.rewards import blocks
from mmdp.methods.base import Context, Method, Outcome, Question
from mmdp.methods.belief import Planning, passes_of


@checked
@dataclass(frozen=True)
class MixTS(Planning):
    """Draw a model from the belief and act by its optimal policy (Hong et al. 2022).

    Parameters
    ----------
    resample
        ``"episode"``: one draw for a whole episode, as in the paper; ``"step"``: a draw at
        every step.
    likelihood
        What the belief learns from: ``"transition"`` (the next state), ``"reward"`` (as in the
        published adaptation) or ``"both"``.
    carry
        Keep the belief from one simulated episode to the next, as the published adaptation
        does; otherwise every episode starts from the prior.
    reward_sd
        Standard deviation of the reward around r_m(s, a) in the reward likelihood; by default
        the spread of r(s, a) between the models.
    episodes, baseline
        As in :class:`mmdp.QMDP`.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, mmdp.MixTS(resample="step"), seed=0).value
    12.0
    """

    resample: Literal["episode", "step"] = "episode"
    likelihood: Literal["transition", "reward", "both"] = "transition"
    carry: bool = False
    reward_sd: PositiveFloat | None = None

    name: ClassVar[str] = "mixts"
    title: ClassVar[str] = "Thompson sampling over the models"
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.resample not in ("episode", "step"):
            raise InputError(f'resample must be "episode" or "step", not {self.resample!r}')
        if self.likelihood not in ("transition", "reward", "both"):
            raise InputError(
                f'likelihood must be "transition", "reward" or "both", not {self.likelihood!r}'
            )
        if self.reward_sd is not None and not self.reward_sd > 0:
            raise InputError(f"reward_sd must be positive, not {self.reward_sd}")

    def bytes_held(self, question: Question) -> int:
        return Method.bytes_held(self, question)

    def passes(self, problem: Problem, horizon: int) -> float:
        return passes_of(problem, self.episodes, carry=self.carry)

    def run(self, context: Context) -> Outcome:
        problem, is_complete = context.problem, True
        if context.kind.endless:
            optima = context.model_optima
            own, is_complete = optima.actions.T[None], optima.is_complete
        else:
            own = context.plan.backward("own", keep=("actions",)).actions
        reward_sd = 0.0
        if self.likelihood != "transition":
            open_ = problem.allowed[0]
            found = [r.var(axis=-1)[:, open_[states]] for states, r in blocks(problem.r)]
            spread = float(np.sqrt(np.concatenate(found, axis=1).mean()))
            reward_sd = self.reward_sd or spread or 1.0
        made = PlannerTables(
            SAMPLED, problem, own=own, each_step=self.resample == "step", carry=self.carry,
            reward_sd=reward_sd, use_transitions=self.likelihood != "reward",
        )  # fmt: skip
        baseline = self.baseline_outcome(context)
        return self.planned(context, made, baseline, is_complete=is_complete)
