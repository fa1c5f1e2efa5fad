"""The Gymnasium environments of one model and of all; usable only if Gymnasium is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdp.ecosystem._one_model import stand_in
from mmdp.kernels.moves import TableMoves, column
from mmdp.kernels.problem import at
from mmdp.model import MMDP

try:
    import gymnasium
except ImportError:  # to_gymnasium() says what to install; the module can still be imported
    gymnasium = None  # type: ignore[assignment]

Env: Any = object if gymnasium is None else gymnasium.Env
VectorEnv: Any = object if gymnasium is None else gymnasium.vector.VectorEnv
AUTORESET = None if gymnasium is None else gymnasium.vector.AutoresetMode.NEXT_STEP


class ModelEnv(Env):  # type: ignore[misc]
    """See :func:`mmdp.ecosystem.to_gymnasium`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, model: MMDP, m: int, horizon: int | None, seed: int | None) -> None:
        self.model, self.m, self.horizon = model, m, horizon
        self.observation_space = gymnasium.spaces.Discrete(model.n_states)
        self.action_space = gymnasium.spaces.Discrete(model.n_actions)
        self.render_mode = None
        self._seed, self._time, self._state, self._now = seed, 0, 0, m
        self._stand_in = stand_in(model)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Draw a state from the initial distribution."""
        if seed is None and self._seed is not None:
            seed, self._seed = self._seed, None  # the first reset only
        super().reset(seed=seed)
        self._time, self._now = 0, self.m
        self._state = self._drawn(self.model.problem.begins(self.m))
        return np.int64(self._state), self._info()

    def step(self, action: Any) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Take the action; an action that is not allowed counts as the lowest allowed one."""
        taken = int(self._stand_in[self._state, int(action)])
        next_state, reward, ended = self._transition(taken)
        self._time += 1
        self._now = self.model.problem.turned(self._now, self._drawn)
        truncated = not ended and self.horizon is not None and self._time >= self.horizon
        if truncated:
            terminal = self.model.problem.terminal[next_state, self._now]
            reward += self.model.discount * float(terminal)
        self._state = next_state
        return np.int64(next_state), reward, ended, truncated, self._info() | {"taken": taken}

    def _transition(self, action: int) -> tuple[int, float, bool]:
        """(next state, reward, whether the model ends there for lack of transitions)."""
        x, per_next = self.model.problem, self.model.pattern_rewards
        t, row = self._time, self._state * self.model.n_actions + action
        after, chances = x.storage.row(t, row)
        p, reward = chances[:, self._now], float(x.paid(t, self._state, action, self._now))
        if not p.any():
            return self._state, reward, True
        k = self._drawn(p)
        if per_next is not None:
            reward = float(at(per_next, t)[x.indptr[row] + k, self._now])
        return int(after[k]), reward, False

    def _drawn(self, p: Any) -> int:
        place = np.searchsorted(np.cumsum(p), self.np_random.random() * p.sum(), side="right")
        return int(min(place, np.flatnonzero(p)[-1]))

    def _info(self) -> dict[str, Any]:
        mask = self.model.allowed[self._state].astype(np.int8)
        return {"time": self._time, "action_mask": mask}


class ModelsVectorEnv(VectorEnv):  # type: ignore[misc]
    """See :func:`mmdp.ecosystem.to_gymnasium_vector`."""

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AUTORESET}  # noqa: RUF012

    def __init__(
        self, model: MMDP, num_envs: int | None, horizon: int | None, seed: int | None
    ) -> None:
        self.model, self.horizon = model, horizon
        self.num_envs = num_envs or model.n_models
        self.single_observation_space = gymnasium.spaces.Discrete(model.n_states)
        self.single_action_space = gymnasium.spaces.Discrete(model.n_actions)
        batched = gymnasium.vector.utils.batch_space
        self.observation_space = batched(self.single_observation_space, self.num_envs)
        self.action_space = batched(self.single_action_space, self.num_envs)
        self._seed, self._stand_in = seed, stand_in(model)
        self._draws_models = num_envs is not None
        self._moves = model.problem.storage.moves()
        self._models = np.arange(self.num_envs) % model.n_models
        self._states = np.zeros(self.num_envs, np.int64)
        self._times = np.zeros(self.num_envs, np.int64)
        self._ended = np.zeros(self.num_envs, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment."""
        if seed is None and self._seed is not None:
            seed, self._seed = self._seed, None  # the first reset only
        super().reset(seed=seed)
        self._begin(np.ones(self.num_envs, bool))
        return self._states.copy(), self._info()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take an action in each; one that has ended begins again instead, and earns nothing."""
        begins, was = self._ended, self._states
        taken = self._stand_in[was, np.asarray(actions)]
        after, rewards, ended = self._transitions(taken)
        self._times += 1
        self._models = self.model.problem.turned(self._models, self._drawn)
        truncated = np.zeros(self.num_envs, bool)
        if self.horizon is not None:
            truncated = ~ended & (self._times >= self.horizon) & ~begins
            terminal = self.model.problem.terminal[after, self._models]
            rewards = rewards + truncated * self.model.discount * terminal
        terminated = ended & ~begins
        self._states, self._ended = after, terminated | truncated
        self._begin(begins)
        info = self._info() | {"taken": taken, "_taken": ~begins}
        return self._states.copy(), np.where(begins, 0.0, rewards), terminated, truncated, info

    def _begin(self, which: Any) -> None:
        """New episodes in some of the environments."""
        count = int(which.sum())
        if self._draws_models:
            self._models[which] = self._drawn(np.tile(self.model.weights, (count, 1)))
        else:
            self._models[which] = np.flatnonzero(which) % self.model.n_models
        first = np.broadcast_to(self.model.initial, (self.model.n_models, self.model.n_states))
        self._states[which] = self._drawn(first[self._models[which]])
        self._times[which] = 0
        self._ended = self._ended & ~which

    def _transitions(self, actions: Any) -> tuple[Any, Any, Any]:
        """(next states, rewards, whether the model ends there for lack of transitions)."""
        x, m, s = self.model.problem, self._models, self._states
        per_next = self.model.pattern_rewards
        row, u = s * self.model.n_actions + actions, self.np_random.random(self.num_envs)
        times, after = self._steps_of(x.storage.steps), np.empty_like(s)
        for t in np.unique(times):
            now = times == t
            after[now] = self._moves.drawn(int(t), row[now], m[now], u[now])
        ended: Any = after < 0
        rewards = x.r[self._steps_of(len(x.r)), s, actions, m]
        if per_next is not None:
            assert isinstance(self._moves, TableMoves)
            own = per_next[self._steps_of(len(per_next)), self._moves.entries(row, after), m]
            rewards = np.where(ended, rewards, own)
        return np.where(ended, s, after), rewards, ended

    def _steps_of(self, steps: int) -> Any:
        """Where each environment is on a time axis of that length, which may be 1."""
        return np.minimum(self._times, steps - 1)

    def _drawn(self, p: Any) -> Any:
        """One draw from each row of probabilities."""
        return column(p, self.np_random.random(len(p)))

    def _info(self) -> dict[str, Any]:
        everyone = np.ones(self.num_envs, bool)
        mask = self.model.allowed[self._states].astype(np.int8)
        found = {"time": self._times.copy(), "model": self._models.copy(), "action_mask": mask}
        return found | {f"_{key}": everyone for key in found}
