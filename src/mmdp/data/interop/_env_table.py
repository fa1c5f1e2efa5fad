"""Models from a Gymnasium environment whose state can be set: every point is stepped once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.text import did_you_mean, pluralize
from mmdp.data.posterior.samples import ParameterSamples, read_samples

if TYPE_CHECKING:
    from mmdp.data.functions.axes import Axes

Array = npt.NDArray[np.float64]
Columns = dict[str, Array]  # (n,) by the name of an axis
N_RESETS = 500  # resets that make the initial distribution
DERIVED_ATTRIBUTES = {  # what CartPole computes once, from attributes that a sample may set
    "total_mass": lambda env: env.masspole + env.masscart,
    "polemass_length": lambda env: env.masspole * env.length,
}


class SettableEnv(Protocol):
    """A Gymnasium environment whose state can be set."""

    state: npt.ArrayLike
    action_space: Any

    def reset(self, *, seed: int | None = None) -> object:
        """Begin an episode."""
        ...

    def step(self, action: object) -> tuple[object, float, bool, bool, object]:
        """Take an action: the observation, the reward, whether the episode has ended, and more."""
        ...


class EnvStepper:
    """A step function for :func:`mmdp.from_step` that steps an environment row by row."""

    rows_per_call = 2**12  # in a call, so that the bar moves: each takes long

    def __init__(
        self, base: SettableEnv, states: Axes, actions: list[str], samples: ParameterSamples
    ) -> None:
        self.base = base = copy.deepcopy(base)  # the user's keeps its attributes
        self.states, self.actions = states, actions
        unknown_name = next((name for name in samples if not hasattr(base, name)), None)
        if unknown_name is not None:
            raise InputError(
                f"the environment has no {did_you_mean(unknown_name, vars(base))}; "
                "samples set attributes of env.unwrapped"
            )
        base.reset()
        first_state: npt.ArrayLike = getattr(base, "state", "missing")
        if np.shape(first_state) != (len(states),):
            raise InputError(
                f"axes name {pluralize(len(states), 'value')}; env.unwrapped.state after a reset "
                f"is {first_state!s}: name each of its entries, in their order"
            )
        is_cart_pole = {*DERIVED_ATTRIBUTES, "masspole", "masscart", "length"} <= vars(base).keys()
        self.derived_names = [
            name for name in DERIVED_ATTRIBUTES if is_cart_pole and name not in samples
        ]

    def __call__(
        self, state: Columns, action: Columns, sample: Mapping[str, float]
    ) -> tuple[Columns, Array]:
        """Step every row from its state and action, with the attributes of the sample."""
        env = self.base
        for name in sample:
            setattr(env, name, sample[name])
        for name in self.derived_names:
            setattr(env, name, DERIVED_ATTRIBUTES[name](env))
        env_actions = np.stack([action[name] for name in self.actions], axis=1)
        if hasattr(env.action_space, "n"):
            env_actions = env_actions[:, 0]
        next_states = np.stack([state[name] for name in self.states], axis=1).astype(float)
        reward = np.empty(len(next_states))
        for i, u in enumerate(env_actions):
            env.reset()  # forgets the end of the last row
            env.state = next_states[i].copy()
            _, reward[i], terminated, *_ = env.step(u)
            next_states[i] = np.nan if terminated else env.state
        return self.clip_to_axes(next_states), reward

    def clip_to_axes(self, values: Array) -> Columns:
        """Split states (n, axes) by name; put what lies beyond an axis on its end."""
        axis_columns = zip(self.states.items(), values.T, strict=True)
        return {name: axis.clip(x) for (name, axis), x in axis_columns}

    def sample_initial_states(self, seed: int | None) -> Columns:
        """Sample first states of episodes by resets."""
        self.base.reset(seed=seed)
        states = []
        for _ in range(N_RESETS):
            self.base.reset()
            states.append(np.array(self.base.state, float))
        return self.clip_to_axes(np.array(states))


def make_env_models(
    base: SettableEnv,
    axes: Mapping[str, object],
    actions: Mapping[str, object] | None,
    samples: object,
    seed: int | None,
    **fields: Any,
) -> MMDP:
    """Make models of an environment by its axes; see :func:`mmdp.interop.from_gymnasium`."""
    from mmdp.data.functions import from_step
    from mmdp.data.functions.axes import Axes

    action_space, states = base.action_space, Axes.parse(axes, "states")
    if actions is None:
        if not hasattr(action_space, "n"):
            raise InputError(
                f"the actions are {action_space}; say which to take, such as "
                "actions={'torque': [-2, 0, 2]}"
            )
        first_action = int(action_space.start)
        actions = {"act": range(first_action, first_action + int(action_space.n))}
    samples_table = {} if samples is None else read_samples(samples)
    step = EnvStepper(base, states, list(actions), samples_table)
    user_is_terminal = fields.pop("is_terminal", None)

    def is_terminal(state: Columns) -> npt.NDArray[np.bool_]:
        # a terminal step returns nan, which is no point of an axis
        has_ended = np.isnan(next(iter(state.values())))
        return has_ended if user_is_terminal is None else has_ended | user_is_terminal(state=state)

    fields = {"initial": step.sample_initial_states(seed)} | fields
    return from_step(
        step,
        states=axes,
        actions=actions,
        samples=samples_table or None,
        is_terminal=is_terminal,
        **fields,
    )
