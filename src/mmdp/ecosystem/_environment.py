"""The Gymnasium environment of one model; usable only if Gymnasium is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdp.ecosystem._one_model import stand_in
from mmdp.model import MMDP

try:
    import gymnasium
except ImportError:  # to_gymnasium() says what to install; the module can still be imported
    gymnasium = None  # type: ignore[assignment]

Env: Any = object if gymnasium is None else gymnasium.Env


class ModelEnv(Env):  # type: ignore[misc]
    """See :func:`mmdp.ecosystem.to_gymnasium`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, model: MMDP, m: int, horizon: int | None, seed: int | None) -> None:
        self.model, self.m, self.horizon = model, m, horizon
        self.observation_space = gymnasium.spaces.Discrete(model.n_states)
        self.action_space = gymnasium.spaces.Discrete(model.n_actions)
        self.render_mode = None
        self._seed, self._time, self._state = seed, 0, 0
        self._stand_in = stand_in(model)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Draw a state from the initial distribution."""
        if seed is None and self._seed is not None:
            seed, self._seed = self._seed, None  # the first reset only
        super().reset(seed=seed)
        self._time = 0
        self._state = self._drawn(self.model.initial)
        return np.int64(self._state), self._info()

    def step(self, action: Any) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Take the action; an action that is not allowed counts as the lowest allowed one."""
        taken = int(self._stand_in[self._state, int(action)])
        next_state, reward, ended = self._transition(taken)
        self._time += 1
        truncated = not ended and self.horizon is not None and self._time >= self.horizon
        if truncated:
            terminal = self.model.problem.terminal[next_state, self.m]
            reward += self.model.discount * float(terminal)
        self._state = next_state
        return np.int64(next_state), reward, ended, truncated, self._info() | {"taken": taken}

    def _transition(self, action: int) -> tuple[int, float, bool]:
        """(next state, reward, whether the model ends there for lack of transitions)."""
        x, per_next = self.model.problem, self.model.pattern_rewards
        row = self._state * self.model.n_actions + action
        own = slice(int(x.indptr[row]), int(x.indptr[row + 1]))
        t = self._time
        p = x.p[t if len(x.p) > 1 else 0, own, self.m]
        expected = float(x.r[t if len(x.r) > 1 else 0, self._state, action, self.m])
        if not p.any():
            return self._state, expected, True
        k = self._drawn(p)
        reward = expected
        if per_next is not None:
            reward = float(per_next[t if len(per_next) > 1 else 0, own, self.m][k])
        return int(x.indices[own][k]), reward, False

    def _drawn(self, p: Any) -> int:
        place = np.searchsorted(np.cumsum(p), self.np_random.random() * p.sum(), side="right")
        return int(min(place, np.flatnonzero(p)[-1]))

    def _info(self) -> dict[str, Any]:
        mask = self.model.allowed[self._state].astype(np.int8)
        return {"time": self._time, "action_mask": mask}
