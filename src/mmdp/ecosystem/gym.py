"""Gymnasium: a model as an environment, and an environment as uncertain models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdp.arguments import Seed, checked
from mmdp.domains._common import generators
from mmdp.ecosystem._one_model import check_model
from mmdp.ecosystem._stepped import stepped_models
from mmdp.errors import InputError, MemoryLimitError
from mmdp.model import MMDP
from mmdp.posterior.dirichlet import dirichlet_rows
from mmdp.support import MATERIALISE_LIMIT, Support
from mmdp.validate import check_whole
from mmdp.words import readable_bytes

if TYPE_CHECKING:
    import gymnasium

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@checked
def to_gymnasium(
    model: MMDP, m: int = 0, horizon: int | None = None, seed: Seed = 0
) -> gymnasium.Env[Any, Any]:
    """Model ``m`` as a Gymnasium environment with Discrete spaces; needs ``mmdp[gym]``.

    The observation is the state. After ``horizon`` steps (or the model's own number, if it
    varies with time) the episode is truncated, and the last reward includes the discounted
    terminal value; without a horizon it never ends. An action that is not allowed counts as
    the lowest allowed one; ``info["action_mask"]`` says which are, ``info["taken"]`` what was
    done and ``info["time"]`` the time. ``seed`` is that of the first ``reset()`` without one.

    With Gymnasium installed::

        train, _ = mmdp.domains.riverswim(seed=0)
        env = mmdp.ecosystem.to_gymnasium(train, 3, horizon=50, seed=1)
        state, info = env.reset()
    """
    _gymnasium()
    from mmdp.ecosystem._environment import ModelEnv

    return ModelEnv(model, check_model(model, m), _steps(model, horizon), seed)


@checked
def to_gymnasium_vector(
    model: MMDP,
    num_envs: int | None = None,
    horizon: int | None = None,
    seed: Seed = 0,
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """All models as one Gymnasium vector environment; needs ``mmdp[gym]``.

    One environment per model, in their order. Or ``num_envs`` of them, each of which draws its
    model by weight whenever an episode begins: a policy that is trained there maximises the mean
    over the models. All of them move at once in numpy. An episode is that of
    :func:`to_gymnasium`; after its end the next step begins another one (Gymnasium's next-step
    autoreset). ``info["model"]`` has the number of each model, which a policy should not see.

    With Gymnasium installed::

        train, _ = mmdp.domains.riverswim(seed=0)
        envs = mmdp.ecosystem.to_gymnasium_vector(train, horizon=50)
        states, info = envs.reset()
        states, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
    """
    _gymnasium()
    from mmdp.ecosystem._environment import ModelsVectorEnv

    if num_envs is not None:
        check_whole(num_envs, "num_envs")
    return ModelsVectorEnv(model, num_envs, _steps(model, horizon), seed)


def _steps(model: MMDP, horizon: int | None) -> int | None:
    """Steps of an episode; None if it never ends."""
    if horizon is None:
        return model.horizon
    check_whole(horizon, "horizon")
    if model.horizon is not None and horizon > model.horizon:
        raise InputError(f"the model varies over {model.horizon} steps; horizon is {horizon}")
    return horizon


@checked
def from_gymnasium(
    env: Any,
    *,
    models: int = 100,
    concentration: float = 20.0,
    noise: float = 0.0,
    discount: float = 1.0,
    seed: Seed = 0,
    axes: Mapping[str, Any] | None = None,
    actions: Mapping[str, Any] | None = None,
    draws: Any = None,
    **fields: Any,
) -> MMDP:
    """Models around the table of an environment, or by draws of the constants of one without.

    Parameters
    ----------
    env
        An environment with a table ``env.unwrapped.P[state][action]`` of (probability, next
        state, reward, terminated), as FrozenLake, Taxi and CliffWalking have, or its id. With
        ``axes`` one with a state that can be set, as CartPole, MountainCar and Pendulum have.
    models, seed
        Number of models around a table, and the seed of the draws.
    concentration
        p(. | s, a) ~ Dirichlet(concentration times the table's row): its mean is the table,
        as uncertain as after that many observations. ``inf``: the table itself.
    noise
        Share of each row that is spread evenly over the next states of all actions of the
        state, so that a deterministic table (Taxi, CliffWalking) becomes uncertain too.

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
    draws
        Attributes of ``env.unwrapped`` by name, one entry for each model: ``{"gravity": [...]}``.
        CartPole's ``total_mass`` and ``polemass_length`` follow ``masspole`` and ``length``.
    fields
        Other arguments of :func:`mmdp.from_step`. ``initial`` is by default a sample of resets;
        ``until`` adds to the ends that a step of the environment reports: points of the grid at
        which an episode is over already, such as MountainCar's goal.

    The environment is reset, set to a state and stepped for every state, action and model: about 20
    microseconds each, so 41 x 41 states of MountainCar with 3 actions and 20 models take two
    seconds. The same equations written as a step function take less than a tenth of that
    (:func:`mmdp.domains.mountain_car`). With Gymnasium installed::

        model = mmdp.ecosystem.from_gymnasium(
            "MountainCar-v0", draws={"force": [0.0008, 0.001, 0.0012]},
            axes={"position": mmdp.Grid(-1.2, 0.6, 41), "velocity": mmdp.Grid(-0.07, 0.07, 41)})

    >>> class Coin:                                   # flip until heads
    ...     P = {0: {0: [(0.5, 0, -1.0, False), (0.5, 1, 0.0, True)]}, 1: {0: [(1.0, 1, 0, True)]}}
    ...     unwrapped = property(lambda self: self)
    >>> model = from_gymnasium(Coin(), models=2, concentration=float("inf"))
    >>> model.transitions[0, :, 0].tolist(), model.rewards[0].tolist()
    ([[0.5, 0.5], [0.0, 1.0]], [[-0.5], [0.0]])
    """
    if isinstance(env, str):
        try:
            env = _gymnasium().make(env)
        except _gymnasium().error.Error as error:
            raise InputError(f"Gymnasium cannot make {env!r}: {error}") from None
    base = getattr(env, "unwrapped", env)
    if axes is not None:
        if (models, concentration, noise) != (100, 20.0, 0.0):
            raise InputError("models, concentration and noise are for tables; with axes give draws")
        name = getattr(getattr(env, "spec", None), "id", None)
        fields = {"name": name, "discount": discount} | fields
        return stepped_models(base, axes, actions, draws, seed, **fields)
    if actions is not None or draws is not None or fields:
        raise InputError("actions, draws and other arguments of from_step need axes for the state")
    check_whole(models, "models")
    if not concentration > 0:
        raise InputError(f"concentration must be above 0, not {concentration!r}")
    if not 0 <= noise < 1:
        raise InputError(f"noise must be from 0 to below 1, not {noise!r}")
    table = _Table(base)
    p = table.noisy(noise) if noise else table.p
    shape = (models, table.n_states, table.n_actions)
    keys = np.flatnonzero(p)
    rows = keys // table.n_states
    per_row = np.bincount(rows, minlength=table.n_states * table.n_actions)
    indptr = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int64)
    if np.isinf(concentration):
        values = np.repeat(p[keys][:, None], models, axis=1)
    else:
        (rng,) = generators(seed, 1)
        values = dirichlet_rows(concentration * p[keys], indptr, models, rng)
    indices = (keys % table.n_states).astype(np.int32)
    support = Support(shape, indptr, indices, values[None], len(keys) == p.size, None, None)
    rewards = np.repeat(table.reward[keys][None, :, None], models, axis=2)
    name = getattr(getattr(env, "spec", None), "id", None)
    return MMDP.from_support(
        support, next_rewards=rewards, initial=table.initial(base), discount=discount, name=name
    )


class _Table:
    """A transition table as flat arrays (S A S',) of probabilities and rewards."""

    def __init__(self, base: Any) -> None:
        rows: Any = getattr(base, "P", None)
        if not hasattr(rows, "__getitem__"):
            raise InputError(
                "the environment has no transition table P[state][action]; give axes= for its "
                "state if that can be set, as in CartPole, MountainCar and Pendulum"
            )
        self.given = len(rows)
        self.n_actions = max(len(rows[s]) for s in range(self.given))
        state, action, after, p, reward, ends = self._flat(rows)
        finals = np.unique(after[ends])
        mixed = np.isin(after, finals) & ~ends & ~np.isin(state, finals)
        self.n_states = self.given + int(mixed.any())
        if mixed.any():
            after, finals = np.where(ends, self.given, after), np.array([self.given])
        live = ~np.isin(state, finals)
        flat = ((state * self.n_actions + action) * self.n_states + after)[live]
        size = self.n_states * self.n_actions * self.n_states
        if size * 8 > MATERIALISE_LIMIT:
            raise MemoryLimitError(
                f"a table of {self.n_states:,} states and {self.n_actions} actions would take "
                f"{readable_bytes(size * 8)}; merge states first"
            )
        self.p = np.bincount(flat, p[live], size).astype(np.float64)
        total = np.bincount(flat, (p * reward)[live], size)
        self.reward = np.divide(total, self.p, out=np.zeros(size), where=self.p > 0)
        loops = (finals[:, None] * self.n_actions + np.arange(self.n_actions)).reshape(-1)
        self.p[loops * self.n_states + loops // self.n_actions] = 1.0
        self.finals = finals

    @staticmethod
    def _flat(rows: Any) -> tuple[Ints, Ints, Ints, Array, Array, npt.NDArray[np.bool_]]:
        entries = [
            (s, a, *entry)
            for s in range(len(rows))
            for a in range(len(rows[s]))
            for entry in rows[s][a]
        ]
        if any(len(entry) != 6 for entry in entries) or not entries:
            raise InputError("P[state][action] must list (probability, next, reward, terminated)")
        state, action, p, after, reward, ends = (np.array(x) for x in zip(*entries, strict=True))
        return state, action, after, p.astype(float), reward.astype(float), ends.astype(bool)

    def noisy(self, noise: float) -> Array:
        """Rows mixed with the even distribution over the state's possible next states."""
        table = self.p.reshape(self.n_states, self.n_actions, self.n_states)
        reach = (table > 0).any(axis=1, keepdims=True)
        mixed = (1 - noise) * table + noise * reach / reach.sum(axis=2, keepdims=True)
        mixed[self.finals] = table[self.finals]
        seen = table > 0
        reward = self.reward.reshape(table.shape)
        mean = (table * reward).sum(axis=2, keepdims=True)
        self.reward = np.where(seen, reward, np.where(mixed > 0, mean, 0.0)).reshape(-1)
        return np.where(table.sum(axis=2, keepdims=True) > 0, mixed, 0.0).reshape(-1)

    def initial(self, base: Any) -> Array | None:
        for name in ("initial_state_distrib", "isd"):
            start = getattr(base, name, None)
            if start is not None and len(start) == self.given:
                padded = np.zeros(self.n_states)
                padded[: self.given] = np.asarray(start) / np.sum(start)
                return padded
        return None


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise InputError(
            "Gymnasium environments need gymnasium; install it with: pip install mmdp[gym]"
        ) from None
    return gymnasium
