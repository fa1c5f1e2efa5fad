"""Simulation of a step function without its grid: the value of a policy free of grid error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.shapes import AnyArray, Array, IndexArray, Mask
from mmdp.data.functions.axes import AxisValues, format_row
from mmdp.data.functions.calls import PROBS_KEY, REWARD_KEY

if TYPE_CHECKING:
    from mmdp.data.functions.step import StepSpec


class OffGridSimulator:
    """Simulator of a policy in states that need not be on grid points.

    The action is that of the nearest grid point: of the corners around a state, the one with the
    largest weight that is not terminal and whose action is allowed in the state itself.
    """

    def __init__(self, spec: StepSpec, model: MMDP, policy_table: AnyArray) -> None:
        self.spec, self.model, self.policy_table = spec, model, policy_table
        self.is_terminal = np.append(spec.terminal_mask, True)

    def simulate_returns(self, n_episodes: int, seed: int, add_terminal: bool) -> Array:
        """Simulate the returns of episodes in every model.

        ``add_terminal`` adds the terminal values. Returns: (M, n_episodes).
        """
        models = range(self.model.n_models)
        return np.array([self._simulate_model(m, n_episodes, seed, add_terminal) for m in models])

    def _simulate_model(self, m: int, n_episodes: int, seed: int, add_terminal: bool) -> Array:
        """Simulate the returns (n_episodes,) of one model."""
        rng = np.random.default_rng([seed, m])
        state = self._sample_initial(m, rng.random(n_episodes))
        is_ended, active = self.spec.find_terminal(state, n_episodes), np.arange(n_episodes)
        total, factor = np.zeros(n_episodes), 1.0
        for t in range(len(self.policy_table)):
            active, state = active[~is_ended], {k: v[~is_ended] for k, v in state.items()}
            if not len(active):
                return total
            # the same numbers for every policy
            action_uniforms, event_uniforms = rng.random((2, n_episodes))[:, active]
            actions = self._choose_actions(t, state, action_uniforms)
            state, reward, is_ended = self._advance(m, t, state, actions, event_uniforms)
            total[active] += factor * reward
            factor *= self.model.discount
        if add_terminal and "terminal_reward" in self.spec.functions:
            state = {k: v[~is_ended] for k, v in state.items()}
            total[active[~is_ended]] += factor * self.spec.call("terminal_reward", state, m)
        return total

    def _sample_initial(self, m: int, u: Array) -> AxisValues:
        """Sample initial states of model m from uniform numbers, by axis."""
        spec, model = self.spec, self.model
        (values, p), initial = spec.list_initial_states(m), np.atleast_2d(model.initial)
        model_initial = initial[m % len(initial)]
        if not np.array_equal(spec.compute_model_initial(m), model_initial):
            values, p = spec.states.all_values, model_initial[: spec.states.size]
        sampled_ids = np.searchsorted(np.cumsum(p), u * p.sum(), side="right")
        return {k: v[np.minimum(sampled_ids, len(p) - 1)] for k, v in values.items()}

    def _choose_actions(self, t: int, state: AxisValues, u: Array) -> IndexArray:
        """Choose the action in each state by the policy at the nearest grid point; returns (n,)."""
        spec = self.spec
        ids, weights = spec.states.find_corners(spec.states.locate(state))
        grid_actions = self.policy_table[t][ids]  # (n, C) actions, or (n, C, A) probabilities
        if grid_actions.ndim == 3:
            sums = grid_actions.cumsum(axis=2)
            thresholds = u[:, None, None] * grid_actions.sum(axis=2, keepdims=True)
            grid_actions = (thresholds >= sums).sum(2)
        is_usable = ~self.is_terminal[ids]
        if "allowed" in spec.functions:
            repeated_state = {k: np.repeat(v, ids.shape[1]) for k, v in state.items()}
            action = spec.actions.values_at(grid_actions.reshape(-1))
            allowed = spec.call("allowed", repeated_state | action)
            is_usable &= np.broadcast_to(allowed, grid_actions.size).reshape(grid_actions.shape)
        best = np.where(is_usable, weights, -1.0).argmax(axis=1)[:, None]
        is_stuck = ~np.take_along_axis(is_usable, best, axis=1)
        if is_stuck.any():
            raise InputError(
                f"no grid point around {format_row(state, int(np.argmax(is_stuck)))} has an "
                "action that is allowed in this state; let allowed() be the same within a cell, or "
                "make the grid finer"
            )
        return np.take_along_axis(grid_actions, best, axis=1)[:, 0].astype(np.int64)

    def _advance(
        self, m: int, t: int, state: AxisValues, actions: IndexArray, u: Array
    ) -> tuple[AxisValues, Array, Mask]:
        """Advance episodes by one step, with events by uniform numbers.

        Returns: next states by axis, rewards (n,), and which have ended (n,).
        """
        spec, n = self.spec, len(u)
        values = {**state, **spec.actions.values_at(actions)}
        events = np.zeros(n, np.int64)
        if "event_probs" in spec.functions:
            cumulative = spec.call_event_probs(values, n, m, t)[PROBS_KEY].cumsum(axis=1)
            events = (u[:, None] * cumulative[:, -1:] >= cumulative).sum(axis=1)
        values |= spec.events.values_at(events)
        outputs = spec.call_step(values, n, m, t)
        _, is_ended = spec.locate_next(values, outputs, m, t)  # refuses states off their axes
        reward = outputs.pop(REWARD_KEY)
        return outputs, reward, is_ended
