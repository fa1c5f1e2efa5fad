"""Gymnasium: a model as an environment, and an environment as uncertain models."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import product
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmdp.core.arguments import PositiveInt, Seed, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.shapes import AnyArray, Array, IndexArray, Mask
from mmdp.core.text import did_you_mean, pluralize
from mmdp.core.transitions import SparseTransitions
from mmdp.core.validate import check_int, check_not_sharded
from mmdp.data.interop._one_model import check_model_index
from mmdp.data.io.tables import from_frame
from mmdp.data.posterior.samples import ParameterSamples, read_samples
from mmdp.data.sampling import sample_dirichlet_rows, spawn_generators

if TYPE_CHECKING:
    import gymnasium

    from mmdp.data.functions.axes import Axes

Columns = dict[str, Array]  # (n,) by the name of an axis
N_RESETS = 500  # resets that make the initial distribution
DERIVED_ATTRIBUTES = {  # what CartPole computes once, from attributes that a sample may set
    "total_mass": lambda env: env.masspole + env.masscart,
    "polemass_length": lambda env: env.masspole * env.length,
}


@check_arguments
def to_gymnasium(
    model: MMDP, model_index: int = 0, horizon: PositiveInt | None = None, seed: Seed = 0
) -> gymnasium.Env[np.int64, np.int64]:
    """Make a Gymnasium environment of one model, with Discrete spaces; needs ``mmdp[gym]``.

    The observation is the state. After ``horizon`` steps (or the model's own number, if it
    varies with time) the episode is truncated, and the last reward includes the discounted
    terminal value; without a horizon it never ends. An action that is not allowed counts as
    the lowest allowed one; ``info["action_mask"]`` says which are, ``info["taken"]`` what was
    done and ``info["time"]`` the time. ``seed`` holds until a ``reset(seed=...)`` sets another.

    With Gymnasium installed::

        train, _ = mmdp.domains.riverswim(seed=0)
        env = mmdp.interop.to_gymnasium(train, 3, horizon=50, seed=1)
        state, info = env.reset()
    """
    episode_length = _check_episode_length(model, horizon)
    from mmdp.data.interop._environment import ModelEnv

    return ModelEnv(model, check_model_index(model, model_index), episode_length, seed)


@check_arguments
def to_gymnasium_vector(
    model: MMDP,
    num_envs: int | None = None,
    horizon: PositiveInt | None = None,
    seed: Seed = 0,
) -> gymnasium.vector.VectorEnv[IndexArray, AnyArray, Any]:
    """Make one Gymnasium vector environment of all models; needs ``mmdp[gym]``.

    One environment per model, in their order. Or ``num_envs`` of them, each of which draws its
    model by weight whenever an episode begins: a policy that is trained there maximises the mean
    over the models. All of them move at once in numpy. An episode is that of
    :func:`to_gymnasium`; after its end the next step begins another one (Gymnasium's next-step
    autoreset). ``info["model"]`` has the number of each model, which a policy should not see.

    With Gymnasium installed::

        train, _ = mmdp.domains.riverswim(seed=0)
        envs = mmdp.interop.to_gymnasium_vector(train, horizon=50)
        states, info = envs.reset()
        states, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
    """
    episode_length = _check_episode_length(model, horizon)
    from mmdp.data.interop._environment import ModelsVectorEnv

    if num_envs is not None:
        check_int(num_envs, "num_envs", item_bytes=32)
    return ModelsVectorEnv(model, num_envs, episode_length, seed)


def _check_episode_length(model: MMDP, horizon: int | None) -> int | None:
    """Check that there can be environments; return the steps of an episode, None if endless."""
    _import_gymnasium()
    check_not_sharded(model.problem, "an environment")
    if horizon is None:
        return model.horizon
    if model.horizon is not None and horizon > model.horizon:
        raise InputError(f"the model varies over {model.horizon} steps; horizon is {horizon}")
    return horizon


@check_arguments
def from_gymnasium(
    env: object,
    *,
    n_models: PositiveInt = 100,
    concentration: float = 20.0,
    discount: float = 1.0,
    seed: Seed = 0,
    axes: Mapping[str, object] | None = None,
    actions: Mapping[str, object] | None = None,
    samples: object = None,
    **fields: object,
) -> MMDP:
    """Make models around the table of an environment, or by samples of its constants.

    Parameters
    ----------
    env
        An environment with a table ``env.unwrapped.P[state][action]`` of (probability, next
        state, reward, terminated), as FrozenLake, Taxi and CliffWalking have, or its id. With
        ``axes`` one with a state that can be set, as CartPole, MountainCar and Pendulum have.
    n_models, seed
        Number of models around a table, and the seed of the random numbers.
    concentration
        p(. | s, a) ~ Dirichlet(concentration times the table's row): its mean is the table,
        as uncertain as after that many observations. ``inf``: the table itself. Certain transitions
        (Taxi, CliffWalking) stay certain; to make them uncertain, mix rows of
        ``model.transitions`` with others and build an :class:`mmdp.MMDP`.

    A transition that terminates earns its reward, and then nothing: its next state absorbs, or
    a state ``end`` is added if the next state can also be entered without terminating.

    Without a table:

    axes
        An axis for every entry of ``env.unwrapped.state``, by name and in its order, as for
        :func:`mmdp.from_step`. A next state beyond an axis is put on its end; an angle goes round
        with ``mmdp.Grid(-np.pi, np.pi, 41, wraps=True)``.
    actions
        Values of the actions by name. By default all of a Discrete space, called ``act``; a
        continuous one needs some, such as ``{"torque": [-2, 0, 2]}``.
    samples
        Attributes of ``env.unwrapped`` by name, one entry for each model: ``{"gravity": [...]}``.
        CartPole's ``total_mass`` and ``polemass_length`` follow ``masspole`` and ``length``.
    fields
        Other arguments of :func:`mmdp.from_step`. ``initial`` is by default a sample of resets;
        ``is_terminal`` adds to the ends that a step of the environment reports: points of the grid
        at which an episode is over already, such as MountainCar's goal.

    The environment is reset, set to a state and stepped for every state, action and model: about 20
    microseconds each, so 41 x 41 states of MountainCar with 3 actions and 20 models take two
    seconds. The same equations written as a step function take less than a tenth of that
    (see the page "From your function to a decision"). With Gymnasium installed::

        model = mmdp.interop.from_gymnasium(
            "MountainCar-v0", samples={"force": [0.0008, 0.001, 0.0012]},
            axes={"position": mmdp.Grid(-1.2, 0.6, 41), "velocity": mmdp.Grid(-0.07, 0.07, 41)})

    >>> class Coin:                                   # flip until heads
    ...     P = {0: {0: [(0.5, 0, -1.0, False), (0.5, 1, 0.0, True)]}, 1: {0: [(1.0, 1, 0, True)]}}
    ...     unwrapped = property(lambda self: self)
    >>> model = from_gymnasium(Coin(), n_models=2, concentration=float("inf"))
    >>> model.transitions[0, :, 0].tolist(), model.rewards[0].tolist()
    ([[0.5, 0.5], [0.0, 1.0]], [[-0.5], [0.0]])
    """
    if isinstance(env, str):
        try:
            env = _import_gymnasium().make(env)
        except _import_gymnasium().error.Error as error:
            raise InputError(f"Gymnasium cannot make {env!r}: {error}") from None
    base, name = getattr(env, "unwrapped", env), getattr(getattr(env, "spec", None), "id", None)
    if axes is not None:
        if (n_models, concentration) != (100, 20.0):
            raise InputError("n_models and concentration are for tables; with axes give samples")
        fields = {"name": name, "discount": discount} | fields
        return _make_env_models(base, axes, actions, samples, seed, **fields)
    if actions is not None or samples is not None or fields:
        raise InputError(
            "actions, samples and other arguments of from_step need axes for the state"
        )
    if not concentration > 0:
        raise InputError(f"concentration must be above 0, not {concentration!r}")
    frame = _read_table(base)
    initial = getattr(base, "initial_state_distrib", getattr(base, "isd", None))
    if initial is not None:
        n_added = int(frame["state"].max()) + 1 - len(initial)
        initial = np.pad(np.asarray(initial) / np.sum(initial), (0, n_added))
    options: dict[str, Any] = {"initial": initial, "discount": discount, "name": name}
    mean = from_frame(frame, duplicates="sum", storage="sparse", **options)
    indptr, indices, p, _ = mean.problem.storage.to_table()
    probs = np.repeat(p, n_models, axis=2)
    if np.isfinite(concentration):
        (rng,) = spawn_generators(seed, 1)
        alpha = concentration * p[0, :, 0]
        probs = sample_dirichlet_rows(alpha, indptr, n_models, rng)[None]
    rewards, next_rewards = (
        None if x is None else np.repeat(x, n_models, axis=-1)
        for x in (mean.problem.r if mean.pattern_rewards is None else None, mean.pattern_rewards)
    )
    shape = (n_models, mean.n_states, mean.n_actions)
    transitions = SparseTransitions(shape, indptr, indices, probs, is_dense=False)
    return MMDP.from_sparse(transitions, rewards, next_rewards=next_rewards, **options)


def _read_table(base: Any) -> pd.DataFrame:
    """Read the transitions in the table of an environment, a row each."""
    # by state and action: probability, next state, reward, whether the episode ends
    table: Any = getattr(base, "P", None)
    if not hasattr(table, "__getitem__"):
        raise InputError(
            "the environment has no transition table P[state][action]; give axes= for its "
            "state if that can be set, as in CartPole, MountainCar and Pendulum"
        )
    try:
        entries = [
            (s, a, *entry)
            for s in range(len(table))
            for a in range(len(table[s]))
            for entry in table[s][a]
        ]
    except (LookupError, TypeError):
        entries = []
    if {*map(len, entries)} != {6}:
        raise InputError(
            "P[state][action] must list (probability, next, reward, terminated) for states and "
            "actions 0, 1, ..."
        )
    columns = ["state", "action", "probability", "next_state", "reward", "ends"]
    frame = pd.DataFrame(entries, columns=columns)
    ends = frame.pop("ends").astype(bool)
    terminal_states = frame["next_state"][ends].unique()
    leads_there, begins_there = (frame[x].isin(terminal_states) for x in ("next_state", "state"))
    if (leads_there & ~ends & ~begins_there).any():
        # entered without terminating: episodes end in a state of their own
        terminal_states, begins_there = np.array([len(table)]), begins_there & False
        frame["next_state"] = frame["next_state"].mask(ends, len(table))
    actions = range(int(frame["action"].max()) + 1)
    stays = pd.DataFrame(product(terminal_states, actions), columns=columns[:2])
    stays = stays.assign(probability=1.0, next_state=stays["state"], reward=0.0)
    is_kept = ~begins_there & (frame["probability"] != 0)
    return pd.concat([frame[is_kept], stays], ignore_index=True)


# ---------------------------------------------------------------------- states that can be set
class EnvStepper:
    """A step function for :func:`mmdp.from_step` that steps an environment row by row."""

    rows_per_call = 2**12  # in a call, so that the bar moves: each takes long

    def __init__(
        self, base: Any, states: Axes, actions: list[str], samples: ParameterSamples
    ) -> None:
        self.base = base = copy.deepcopy(base)  # the user's keeps its attributes
        self.states, self.actions = states, actions
        for name in samples:
            if not hasattr(base, name):
                raise InputError(
                    f"the environment has no {did_you_mean(name, vars(base))}; "
                    "samples set attributes of env.unwrapped"
                )
        base.reset()
        first_state = getattr(base, "state", "missing")
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
        for name, value in sample.items():
            setattr(env, name, value)
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
        states = np.empty((N_RESETS, len(self.states)))
        for i in range(N_RESETS):
            self.base.reset()
            states[i] = self.base.state
        return self.clip_to_axes(states)


def _make_env_models(
    base: Any,
    axes: Mapping[str, object],
    actions: Mapping[str, object] | None,
    samples: object,
    seed: int | None,
    **fields: Any,
) -> MMDP:
    """Make models by stepping every point of the axes once."""
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
    user_is_terminal = fields.pop("is_terminal", None) or (lambda state: False)

    def is_terminal(state: Columns) -> Mask:
        # a terminal step returns nan, which is no point of an axis
        return np.isnan(next(iter(state.values()))) | user_is_terminal(state=state)

    fields |= {"states": axes, "actions": actions, "samples": samples_table or None}
    fields = {"initial": step.sample_initial_states(seed)} | fields
    return from_step(step, is_terminal=is_terminal, **fields)


def _import_gymnasium() -> ModuleType:
    """Import gymnasium, or raise an error that says how to install it."""
    try:
        import gymnasium
    except ImportError:
        raise InputError(
            "Gymnasium environments need gymnasium; install it with: pip install mmdp[gym]"
        ) from None
    return gymnasium
