"""The Gymnasium environments of one model and of all; to_gymnasium imports it."""

from __future__ import annotations

from typing import Any, SupportsInt

import gymnasium
import numpy as np

from mmdp.core.kernels.problem import at_time
from mmdp.core.kernels.sampling import sample_columns
from mmdp.core.model import MMDP
from mmdp.core.shapes import AnyArray, Array, IndexArray, Mask
from mmdp.data.interop._one_model import find_fallback_actions


class ModelEnv(gymnasium.Env[np.int64, np.int64]):
    """See :func:`mmdp.interop.to_gymnasium`."""

    def __init__(
        self, model: MMDP, model_index: int, horizon: int | None, seed: int | None
    ) -> None:
        self.model, self.model_index, self.horizon = model, model_index, horizon
        self.observation_space = gymnasium.spaces.Discrete(model.n_states)
        self.action_space = gymnasium.spaces.Discrete(model.n_actions)
        self._time, self._state, self._current_model = 0, 0, model_index
        self._fallback_actions = find_fallback_actions(model)
        super().reset(seed=seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.int64, dict[str, object]]:
        """Draw a state from the initial distribution."""
        super().reset(seed=seed)
        self._time, self._current_model = 0, self.model_index
        self._state = self._sample_index(self.model.problem.get_initial(self.model_index))
        return np.int64(self._state), self._make_info()

    def step(self, action: SupportsInt) -> tuple[np.int64, float, bool, bool, dict[str, object]]:
        """Take the action; an action that is not allowed counts as the lowest allowed one."""
        taken_action = int(self._fallback_actions[self._state, int(action)])
        next_state, reward, terminated = self._sample_transition(taken_action)
        self._time += 1
        self._current_model = self.model.problem.sample_next_models(
            self._current_model, self._sample_index
        )
        truncated = not terminated and self.horizon is not None and self._time >= self.horizon
        if truncated:
            terminal_value = self.model.problem.terminal[next_state, self._current_model]
            reward += self.model.discount * float(terminal_value)
        self._state = next_state
        info = self._make_info() | {"taken": taken_action}
        return np.int64(next_state), reward, terminated, truncated, info

    def _sample_transition(self, action: int) -> tuple[int, float, bool]:
        """Sample a next state and reward, and whether the episode ends for lack of transitions."""
        problem, next_rewards = self.model.problem, self.model.pattern_rewards
        t, s, m = self._time, self._state, self._current_model
        pair = s * self.model.n_actions + action
        next_states, probs = problem.storage.get_row(t, pair)
        if not probs[:, m].any():
            return s, float(problem.get_rewards(t, s, action, m)), True
        k = self._sample_index(probs[:, m])
        reward = (
            problem.get_rewards(t, s, action, m)
            if next_rewards is None
            else at_time(next_rewards, t)[problem.indptr[pair] + k, m]
        )
        return int(next_states[k]), float(reward), False

    def _sample_index(self, p: Array) -> int:
        """Draw an index with probabilities proportional to ``p``."""
        index = np.searchsorted(np.cumsum(p), self.np_random.random() * p.sum(), side="right")
        return int(min(index, np.flatnonzero(p)[-1]))

    def _make_info(self) -> dict[str, object]:
        """Make the info of a step: the time and the allowed actions."""
        mask = self.model.allowed[self._state].astype(np.int8)
        return {"time": self._time, "action_mask": mask}


class ModelsVectorEnv(gymnasium.vector.VectorEnv[IndexArray, AnyArray, Any]):
    """See :func:`mmdp.interop.to_gymnasium_vector`."""

    metadata = {"render_modes": [], "autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self, model: MMDP, num_envs: int | None, horizon: int | None, seed: int | None
    ) -> None:
        self.model, self.horizon = model, horizon
        self.num_envs = num_envs or model.n_models
        self.single_observation_space = gymnasium.spaces.Discrete(model.n_states)
        self.single_action_space = gymnasium.spaces.Discrete(model.n_actions)
        batch_space = gymnasium.vector.utils.batch_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._fallback_actions = find_fallback_actions(model)
        self._samples_models = num_envs is not None
        self._sampler = model.problem.storage.make_sampler()
        self._models = np.arange(self.num_envs) % model.n_models
        self._states = np.zeros(self.num_envs, np.int64)
        self._times = np.zeros(self.num_envs, np.int64)
        self._has_ended = np.zeros(self.num_envs, bool)
        super().reset(seed=seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[IndexArray, dict[str, object]]:
        """Begin an episode in every environment."""
        super().reset(seed=seed)
        self._start_episodes(np.ones(self.num_envs, bool))
        return self._states.copy(), self._make_info()

    def step(self, actions: AnyArray) -> tuple[IndexArray, Array, Mask, Mask, dict[str, object]]:
        """Take an action in each; one that has ended begins again instead, and earns nothing."""
        is_reset, states = self._has_ended, self._states
        taken_actions = self._fallback_actions[states, np.asarray(actions)]
        next_states, rewards, has_ended = self._sample_transitions(taken_actions)
        self._times += 1
        self._models = self.model.problem.sample_next_models(self._models, self._sample_columns)
        truncated = np.zeros(self.num_envs, bool)
        if self.horizon is not None:
            truncated = ~has_ended & (self._times >= self.horizon) & ~is_reset
            terminal_values = self.model.problem.terminal[next_states, self._models]
            rewards = rewards + truncated * self.model.discount * terminal_values
        terminated = has_ended & ~is_reset
        self._states, self._has_ended = next_states, terminated | truncated
        self._start_episodes(is_reset)
        info = self._make_info() | {"taken": taken_actions, "_taken": ~is_reset}
        return self._states.copy(), np.where(is_reset, 0.0, rewards), terminated, truncated, info

    def _start_episodes(self, mask: Mask) -> None:
        """Begin new episodes in some of the environments."""
        n_starting = int(mask.sum())
        if self._samples_models:
            self._models[mask] = self._sample_columns(np.tile(self.model.weights, (n_starting, 1)))
        else:
            self._models[mask] = np.flatnonzero(mask) % self.model.n_models
        initial = np.broadcast_to(self.model.initial, (self.model.n_models, self.model.n_states))
        self._states[mask] = self._sample_columns(initial[self._models[mask]])
        self._times[mask] = 0
        self._has_ended = self._has_ended & ~mask

    def _sample_transitions(self, actions: IndexArray) -> tuple[IndexArray, Array, Mask]:
        """Sample next states and rewards, and whether episodes end for lack of transitions."""
        problem, m, s = self.model.problem, self._models, self._states
        next_rewards = self.model.pattern_rewards
        pairs, u = s * self.model.n_actions + actions, self.np_random.random(self.num_envs)
        times = self._time_index(problem.storage.n_times)
        next_states, entries = np.empty_like(s), np.empty_like(s)
        for t in np.unique(times):
            now = times == t
            next_states[now], entries[now] = self._sampler.sample_next(
                int(t), pairs[now], m[now], u[now]
            )
        has_ended = next_states < 0
        rewards = problem.r[self._time_index(len(problem.r)), s, actions, m]
        if next_rewards is not None:
            next_rewards = next_rewards[self._time_index(len(next_rewards)), entries, m]
            rewards = np.where(has_ended, rewards, next_rewards)
        return np.where(has_ended, s, next_states), rewards, has_ended

    def _time_index(self, n_steps: int) -> IndexArray:
        """Find where each environment is on a time axis of that length, which may be 1."""
        return np.minimum(self._times, n_steps - 1)

    def _sample_columns(self, p: Array) -> IndexArray:
        """Draw an index from each row of probabilities."""
        return sample_columns(p, self.np_random.random(len(p)))

    def _make_info(self) -> dict[str, object]:
        """Make the info of a step: times, models and allowed actions of all environments."""
        all_envs = np.ones(self.num_envs, bool)
        mask = self.model.allowed[self._states].astype(np.int8)
        info = {"time": self._times.copy(), "model": self._models.copy(), "action_mask": mask}
        return info | {f"_{key}": all_envs for key in info}
