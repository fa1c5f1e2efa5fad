"""How costs and effects of different times add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mmdp.arguments import PositiveInt, Read, checked
from mmdp.economics.outcomes import read_thresholds
from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.validate import check_horizon
from mmdp.words import either, in_unit, number, suggested

Array = npt.NDArray[np.float64]
Amounts = npt.ArrayLike | Mapping[str, npt.ArrayLike]
WithinCycle = Literal["none", "half-cycle", "simpson"]
CORRECTIONS = ("none", "half-cycle", "simpson")
PARTS = ("rewards", "next_rewards")


@checked
@dataclass(frozen=True)
class Counting:
    """How the costs and effects of different times are added up.

    Parameters
    ----------
    effect_rate, cost_rate
        Discount rate per step, such as 0.035: what happens at time t counts (1 + rate)^-t. None:
        the discount of the model.
    within_cycle
        ``"half-cycle"``: the first and the last time count half (the trapezium rule).
        ``"simpson"``: 1/3, 4/3, 2/3, ..., 4/3, 1/3 (Simpson's rule; Elbasha and Chhatwal, Medical
        Decision Making 36(1), 2016). The times are the rows of a cohort trace, so n cycles need a
        horizon of n + 1. Simpson's weights count what policies cost and give. Policies are
        not optimised for them, as they would act every second time, but for half-cycle weights.
        Or weights of your own, one per time, which count and are optimised for as they are.

    With weights of any kind, what happens on the way to a row of the trace counts with that row:
    a transition from time t to t + 1 has the weight and the discount of t + 1, and the one after
    the last time has none. Without weights it counts at time t, as rewards do.

    >>> from mmdp.economics import Counting
    >>> Counting(within_cycle="half-cycle").times(5).tolist()
    [0.5, 1.0, 1.0, 1.0, 0.5]
    >>> (3 * Counting(within_cycle="simpson").times(5)).round(9).tolist()
    [1.0, 4.0, 2.0, 4.0, 1.0]
    """

    effect_rate: float | None = None
    cost_rate: float | None = None
    within_cycle: Read[WithinCycle | Sequence[float]] = "none"

    def __post_init__(self) -> None:
        for name in ("effect_rate", "cost_rate"):
            rate = getattr(self, name)
            if rate is not None and not (isinstance(rate, (int, float)) and 0 <= rate < 0.5):
                raise InputError(
                    f"{name} is a discount rate per step from 0 to below 0.5, such as 0.035, not "
                    f"{rate!r}; a discount factor g is the rate 1/g - 1"
                )
        given = self.within_cycle
        if isinstance(given, str):
            if given not in CORRECTIONS:
                found = suggested(given, CORRECTIONS)
                raise InputError(f"within_cycle is {either(CORRECTIONS)}, not {found}")
            return
        weights = np.asarray(given, dtype=object)
        try:
            weights = weights.astype(np.float64)
        except (TypeError, ValueError):
            weights = np.array(np.nan)
        fine = np.isfinite(weights) & (weights >= 0)
        if weights.ndim != 1 or not weights.size or not fine.all():
            raise InputError(
                f"within_cycle is {either(CORRECTIONS)}, or one weight of at least 0 for each time"
            )
        object.__setattr__(self, "within_cycle", tuple(weights.tolist()))  # comparable

    @property
    def text(self) -> str:
        """In words.

        >>> from mmdp.economics import Counting
        >>> Counting(effect_rate=0.015, cost_rate=0.035).text
        'effects are discounted by 1.5% per step and costs by 3.5% per step'
        """
        effects, costs = (
            "as in the models" if rate is None else f"by {100 * rate:g}% per step"
            for rate in (self.effect_rate, self.cost_rate)
        )  # fmt: skip
        if not isinstance(self.within_cycle, str):
            return f"effects are discounted {effects} and costs {costs}; times have given weights"
        weights = {
            "none": "", "half-cycle": "; the first and the last time count half",
            "simpson": "; times have Simpson's weights, and half-cycle weights in the search for "
            "policies, which could otherwise act every second time",
        }[self.within_cycle]  # fmt: skip
        return f"effects are discounted {effects} and costs {costs}{weights}"

    def times(self, horizon: int) -> Array:
        """(T,) weight of each time, without discount."""
        if not isinstance(self.within_cycle, str):
            if len(self.within_cycle) != horizon:
                raise InputError(
                    f"within_cycle has {len(self.within_cycle)} weights for {horizon} times; "
                    "give one for each"
                )
            return np.array(self.within_cycle)
        weights = np.ones(horizon)
        if self.within_cycle == "half-cycle":
            if horizon < 2:
                raise InputError("the half-cycle correction needs a horizon of 2 or more: n + 1")
            weights[[0, -1]] = 0.5
        elif self.within_cycle == "simpson":
            if horizon < 3 or horizon % 2 == 0:
                raise InputError(
                    "Simpson's rule needs an even number of cycles, so an odd horizon of 3 or "
                    f"more (it is {horizon}); choose another, or the half-cycle correction"
                )
            weights[1:-1] = np.where(np.arange(1, horizon - 1) % 2, 4 / 3, 2 / 3)
            weights[[0, -1]] = 1 / 3
        return weights

    def models(
        self, model: MMDP, effects: Amounts, costs: Amounts, horizon: int
    ) -> tuple[MMDP, MMDP]:
        """The model with effects as rewards, and with costs; both with the same discount."""
        return (
            self._model(model, *_read(model, effects, "effects"), self.effect_rate, horizon),
            self._model(model, *_read(model, costs, "costs"), self.cost_rate, horizon),
        )

    def _model(
        self, model: MMDP, stay: Array, move: Array, rate: float | None, horizon: int
    ) -> MMDP:
        """The model that earns ``stay`` at each time and ``move`` on the way to the next one."""
        if self == Counting():
            return model.replace(rewards=stay + move)
        long = [len(x) for x in (stay, move) if x.ndim == 4 and len(x) != horizon]
        if long:
            raise InputError(f"effects or costs of {long[0]} times, but the horizon is {horizon}")
        factor = model.discount if rate is None else 1 / (1 + rate)
        here = self.times(horizon) * factor ** np.arange(horizon)
        there = here if self.within_cycle == "none" else np.append(here[1:], 0.0)
        rewards = here[:, None, None, None] * stay + there[:, None, None, None] * move
        return model.replace(rewards=rewards, discount=1.0)

    @checked
    def net_benefit(
        self,
        model: MMDP,
        effects: Amounts,
        costs: Amounts,
        threshold: float,
        horizon: PositiveInt | None = None,
    ) -> MMDP:
        """The model whose rewards are the net monetary benefit at one willingness to pay.

        Solve it, bound it or report about it like any other model. With rates or within-cycle
        weights its rewards vary with time and its discount is 1; only then does the horizon matter.
        In place of Simpson's weights it has half-cycle weights, which cannot alternate. Pages say
        what a return is: by default the net benefit at this threshold per unit of effect, otherwise
        the ``quantity`` of the model.

        >>> import mmdp
        >>> from mmdp.economics import Counting
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0, 0]])
        >>> yearly = Counting(effect_rate=0.0, cost_rate=0.25)
        >>> priced = yearly.net_benefit(one, [[0, 2]], [[0, 100]], threshold=45, horizon=3)
        >>> priced.rewards[:, 0, 0, 1].round(9).tolist()
        [-10.0, 10.0, 26.0]
        >>> mmdp.solve(priced).policy.actions[:, 0].tolist()
        [0, 1, 1]
        """
        (level,) = read_thresholds([threshold])
        steps = 0 if self == Counting() else check_horizon(model.horizon, horizon)
        check_no_terminal(model)
        smooth = self
        if self.within_cycle == "simpson":
            self.times(steps)  # refuse a horizon for which nothing could be counted
            smooth = replace(self, within_cycle="half-cycle")
        worth, price = smooth.models(model, effects, costs, steps)
        e, c = worth.rewards, price.rewards
        axes = max(e.ndim, c.ndim)
        e, c = (x.reshape((1,) * (axes - x.ndim) + x.shape) for x in (e, c))
        quantity = f"net benefit at {in_unit(number(level), model.unit)} per unit of effect"
        return worth.replace(rewards=level * e - c, quantity=model.quantity or quantity)


def _read(model: MMDP, given: Amounts, what: str) -> tuple[Array, Array]:
    """Expected amounts ((T,) M, S, A) of a time in a state, and of the way to the next one."""
    parts: Mapping[str, Any] = {"rewards": given}
    if isinstance(given, Mapping) and not {*PARTS}.isdisjoint(given):
        parts = given
    for name in parts:
        if name not in PARTS:
            raise InputError(f"{what}: unknown part {suggested(name, PARTS)}; use {either(PARTS)}")
    try:
        stay, move = (
            model.replace(**{name: parts[name]}).rewards if name in parts else np.zeros((1, 1, 1))
            for name in PARTS
        )
    except InputError as error:
        raise error.at(what) from None
    return stay, move


def check_no_terminal(model: MMDP) -> None:
    if model.terminal.any():
        raise InputError(
            "the model has terminal values, which are neither cost nor effect; put them into "
            "effects and costs and use model.replace(terminal=None)"
        )
