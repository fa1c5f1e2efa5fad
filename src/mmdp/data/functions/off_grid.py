"""Simulation of a step function without its grid: the value of a policy free of grid error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError
from mmdp.core.kernels.distributions import SUM_TOLERANCE
from mmdp.core.model import MMDP
from mmdp.data.functions.axes import Array, ValueArray
from mmdp.data.functions.calls import REWARD_KEY

if TYPE_CHECKING:
    from mmdp.data.functions.step import StepSpec

StateValues = dict[str, ValueArray]  # (n,) values by axis


class OffGridSimulator:
    """Simulator of a policy in states that need not be on grid points.

    The action is that of the nearest grid point: of the corners around a state, the one with the
    largest weight that is not terminal and whose action is allowed in the state itself.
    """

    def __init__(self, spec: StepSpec, model: MMDP, policy_table: ValueArray) -> None:
        self.spec, self.model, self.policy_table = spec, model, policy_table
        self.is_terminal = np.append(spec.terminal_mask(), True)

    def simulate_returns(self, n_episodes: int, seed: int, add_terminal: bool) -> Array:
        """Simulate the returns of episodes in every model.

        ``add_terminal`` adds the terminal values. Returns: (M, n_episodes).
        """
        return np.array(
            [
                self._simulate_model(m, n_episodes, seed, add_terminal)
                for m in range(self.model.n_models)
            ]
        )

    def _simulate_model(self, m: int, n_episodes: int, seed: int, add_terminal: bool) -> Array:
        """Simulate the returns (n_episodes,) of one model."""
        rng = np.random.default_rng([seed, m])
        state = self._sample_initial(m, rng.random(n_episodes))
        is_ended, active = self.spec.find_terminal(state, n_episodes), np.arange(n_episodes)
        active, state = active[~is_ended], {k: v[~is_ended] for k, v in state.items()}
        total, factor = np.zeros(n_episodes), 1.0
        for t in range(len(self.policy_table)):
            if not len(active):
                break
            action_uniforms, event_uniforms = rng.random(
                (2, n_episodes)
            )  # the same numbers for every policy
            actions = self._choose_actions(t, state, action_uniforms[active])
            events = self._sample_events(m, t, state, actions, event_uniforms[active])
            state, reward, is_ended = self._advance(m, t, state, actions, events)
            total[active] += factor * reward
            factor *= self.model.discount
            active, state = active[~is_ended], {k: v[~is_ended] for k, v in state.items()}
        if add_terminal and self.spec.terminal_reward is not None:
            call_context = self.spec.call_context(m, 0)
            total[active] += factor * self.spec.terminal_reward(state=state, **call_context)
        return total

    def _sample_initial(self, m: int, u: Array) -> StateValues:
        """Sample initial states of model m from uniform numbers, by axis."""
        (values, p), S = self.spec.list_initial_states(m), self.spec.states.size
        model_initial = np.broadcast_to(
            self.model.initial, (self.model.n_models, self.model.n_states)
        )[m]
        if not np.array_equal(self.spec.compute_model_initial(m), model_initial):
            values, p = self.spec.states.values_at(np.arange(S)), model_initial[:S]
        sampled_ids = np.minimum(
            np.searchsorted(np.cumsum(p), u * p.sum(), side="right"), len(p) - 1
        )
        return {k: v[sampled_ids] for k, v in values.items()}

    def _choose_actions(self, t: int, state: StateValues, u: Array) -> npt.NDArray[np.int64]:
        """Choose the action in each state by the policy at the nearest grid point; returns (n,)."""
        ids, weights = self.spec.states.interpolate(state)
        grid_actions = self.policy_table[t][ids]  # (n, C) actions, or (n, C, A) probabilities
        if grid_actions.ndim == 3:
            grid_actions = (
                u[:, None, None] * grid_actions.sum(axis=2, keepdims=True)
                >= grid_actions.cumsum(axis=2)
            ).sum(2)
        if weights is None:
            return grid_actions[:, 0].astype(np.int64)
        is_usable = ~self.is_terminal[ids]
        if self.spec.allowed is not None:
            C = ids.shape[1]
            allowed = self.spec.allowed(
                state={k: np.repeat(v, C) for k, v in state.items()},
                action=self.spec.actions.values_at(grid_actions.reshape(-1)),
            )
            is_usable &= np.broadcast_to(allowed, grid_actions.size).reshape(grid_actions.shape)
        best = np.where(is_usable, weights, -1.0).argmax(axis=1)
        n = np.arange(len(grid_actions))
        if not is_usable[n, best].all():
            i = int(np.argmin(is_usable[n, best]))
            raise InputError(
                f"no grid point around {_format_state(state, i)} has an action that is allowed "
                "in this state; let allowed() be the same within a cell, or make the grid finer"
            )
        return grid_actions[n, best].astype(np.int64)

    def _sample_events(
        self, m: int, t: int, state: StateValues, action: npt.NDArray[np.int64], u: Array
    ) -> npt.NDArray[np.int64]:
        """Sample the event of each state-action pair from uniform numbers; returns (n,)."""
        event_probs = self.spec.event_probs
        if event_probs is None:
            return np.zeros(len(u), np.int64)
        columns = {
            "state": {k: v[:, None] for k, v in state.items()},
            "action": {k: v[:, None] for k, v in self.spec.actions.values_at(action).items()},
        }
        p = self.spec.parse_event_probs(
            event_probs(**columns, **self.spec.call_context(m, t)), len(u)
        )
        cumulative = p.cumsum(axis=1)
        is_bad = ~(np.abs(cumulative[:, -1] - 1) <= SUM_TOLERANCE) | ~(p >= 0).all(axis=1)
        if is_bad.any():
            raise InputError(
                f"event_probs at {_format_state(state, int(np.argmax(is_bad)))}, off the grid: the "
                "probabilities must be 0 or more and sum to 1"
            )
        return (u[:, None] * cumulative[:, -1:] >= cumulative).sum(axis=1)

    def _advance(
        self,
        m: int,
        t: int,
        state: StateValues,
        action: npt.NDArray[np.int64],
        event: npt.NDArray[np.int64],
    ) -> tuple[StateValues, Array, npt.NDArray[np.bool_]]:
        """Advance episodes by one step: next states by axis, rewards, and which have ended."""
        spec, n = self.spec, len(action)
        inputs = {
            "state": state,
            "action": spec.actions.values_at(action),
            "event": spec.events.values_at(event),
        }

        def describe_row(i: int) -> str:
            labels = [
                spec.actions.format_label(int(action[i])),
                spec.events.format_label(int(event[i])),
            ]
            return ", ".join(filter(None, [_format_state(state, i), *labels]))

        outputs = spec.call_step(inputs, n, m, t, describe_row)
        reward = outputs.pop(REWARD_KEY)
        is_ended = spec.find_terminal(outputs, n)
        spec.locate_next(outputs, is_ended, describe_row)  # refuses states off their axes
        return outputs, reward, is_ended


def _format_state(state: StateValues, i: int) -> str:
    """Format the i-th state by axis, for messages."""
    return ", ".join(
        f"{k}={v[i]:.6g}" if v.dtype.kind == "f" else f"{k}={v[i]}" for k, v in state.items()
    )
