"""Models from a Gymnasium environment whose state can be set: every point is stepped once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.posterior.draws import read_draws
from mmdp.words import counted, suggested

STARTS = 500  # resets that make the initial distribution
DERIVED = {  # what CartPole computes once, from attributes that a draw may set
    "total_mass": lambda env: env.masspole + env.masscart,
    "polemass_length": lambda env: env.masspole * env.length,
}


class Stepped:
    """A step function for :func:`mmdp.from_step` that steps an environment row by row."""

    rows = 2**12  # in a call, so that the bar moves: each takes long

    def __init__(self, base: Any, states: Any, actions: Any, draws: Mapping[str, Any]) -> None:
        self.base = base = copy.deepcopy(base)  # the user's keeps its attributes
        self.states, self.actions = states, actions
        strange = next((name for name in draws if not hasattr(base, name)), None)
        if strange is not None:
            raise InputError(
                f"the environment has no {suggested(strange, vars(base))}; draws set attributes of "
                "env.unwrapped"
            )
        base.reset()
        first: Any = getattr(base, "state", "missing")
        if np.shape(first) != (len(states),):
            raise InputError(
                f"axes name {counted(len(states), 'value')}; env.unwrapped.state after a reset is "
                f"{first}: name each of its entries, in their order"
            )
        pole = {*DERIVED, "masspole", "masscart", "length"} <= vars(base).keys()
        self.derived = [name for name in DERIVED if pole and name not in draws]

    def __call__(self, state: Any, action: Any, draw: Any) -> tuple[dict[str, Any], Any]:
        env = self.base
        for name in draw:
            setattr(env, name, draw[name])
        for name in self.derived:
            setattr(env, name, DERIVED[name](env))
        taken = np.stack([action[name] for name in self.actions], axis=1)
        if hasattr(env.action_space, "n"):
            taken = taken[:, 0]
        following = np.stack([state[name] for name in self.states], axis=1).astype(float)
        reward = np.empty(len(following))
        for i, u in enumerate(taken):
            env.reset()  # forgets the end of the last row
            env.state = following[i].copy()
            _, reward[i], over, *_ = env.step(u)
            following[i] = np.nan if over else env.state
        return self.within(following), reward

    def within(self, values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """States (n, axes) by name; what lies beyond an axis is put on its end."""
        named = zip(self.states.items(), values.T, strict=True)
        return {name: axis.clipped(x) for (name, axis), x in named}

    def starts(self, seed: int | None) -> dict[str, npt.NDArray[Any]]:
        """First states of episodes."""
        self.base.reset(seed=seed)
        found = []
        for _ in range(STARTS):
            self.base.reset()
            found.append(np.array(self.base.state, float))
        return self.within(np.array(found))


def stepped_models(
    base: Any, axes: Any, actions: Any, draws: Any, seed: int | None, **fields: Any
) -> MMDP:
    """See :func:`mmdp.ecosystem.from_gymnasium`."""
    from mmdp.functions import from_step
    from mmdp.functions.axes import Axes

    space, states = base.action_space, Axes.read(axes, "states")
    if actions is None:
        if not hasattr(space, "n"):
            raise InputError(
                f"the actions are {space}; say which to take, such as "
                "actions={'torque': [-2, 0, 2]}"
            )
        first = int(space.start)
        actions = {"act": range(first, first + int(space.n))}
    table = {} if draws is None else read_draws(draws)
    step = Stepped(base, states, list(actions), table)
    own = fields.pop("until", None)

    def until(state: Any) -> Any:  # a terminal step returns nan, which is no point of an axis
        ended = np.isnan(next(iter(state.values())))
        return ended if own is None else ended | own(state=state)

    fields = {"initial": step.starts(seed)} | fields
    return from_step(step, states=axes, actions=actions, draws=table or None, until=until, **fields)
