"""A policy as an agent: a function from what is seen to what is done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, SupportsFloat, cast

import numpy as np

from mmdp.core.arguments import FiniteFloat, Seed, check_arguments, check_type, is_of_type
from mmdp.core.errors import InputError
from mmdp.core.policies import Planner
from mmdp.core.policies.base import StateIndex
from mmdp.core.shapes import IndexArray
from mmdp.core.solution import Solution
from mmdp.core.text import did_you_mean, shorten


class Agent:
    """Follows a policy through an episode: ``action = agent(observation, reward)``.

    A state is seen as its number or, if the policy has labels, as its label, or as its values by
    name, ``{"stock": 12.3}``, which go to the nearest point of each axis. Actions are numbers.
    The agent keeps the time and the memory of the policy. ``reset()`` begins a new episode.

    In an environment of Gymnasium::

        agent = mmdp.interop.Agent(solution)
        state, _ = env.reset()
        agent.reset()
        reward, over = None, False
        while not over:
            state, reward, ended, truncated, _ = env.step(agent(state, reward))
            over = ended or truncated

    >>> import mmdp
    >>> two = mmdp.domains.two_models().train
    >>> solution = mmdp.solve(two, 9, policy_class=mmdp.policies.Memory(max_nodes=2))
    >>> agent = mmdp.interop.Agent(solution)
    >>> [agent(state) for state in (0, 3, 0)]  # action 1 leads to state 3 in the second model
    [1, 0, 1]
    """

    @check_arguments
    def __init__(self, policy: Planner | Solution, seed: Seed = 0) -> None:
        followed_policy = policy.policy if isinstance(policy, Solution) else policy
        if not isinstance(followed_policy, Planner):
            type_name = type(followed_policy).__name__
            raise InputError(
                f"an agent follows a policy, or the solution that has it, not {type_name}"
            )
        self.policy, self.seed, self.n_episodes = followed_policy, seed, 0
        self._states = StateIndex(getattr(followed_policy, "state_labels", None) or ())
        self.reset()

    def reset(self) -> None:
        """Begin a new episode."""
        seed = None if self.seed is None else self.seed + self.n_episodes
        self.time, self.last_step, self.memory = 0, (-1, -1), self.policy.initial_memory(seed)
        self.n_episodes += 1

    def __call__(self, observation: object, reward: float | None = None) -> int:
        """Return the action in this state; ``reward`` is that of the step before."""
        if reward is not None and not (type(reward) is float and math.isfinite(reward)):
            check_type("reward", reward, FiniteFloat)
        state, policy = self._read_state(observation), self.policy
        self._check_time()
        if self.time > 0:
            self.memory = policy.update(self.memory, self.time - 1, *self.last_step, state, reward)
        action = policy.act(self.memory, self.time, state)
        self.last_step = state, action
        self.time += 1
        return action

    def act(self, observations: Iterable[object]) -> IndexArray:
        """Return the actions (n,) in many states at the present time; the agent does not move on.

        For policies without memory, such as in all environments of a vector. An array of numbers of
        states is one lookup in the table of a deterministic policy.

        >>> import mmdp
        >>> agent = mmdp.interop.Agent(mmdp.policies.StationaryPolicy([1, 0]))
        >>> agent.act([0, 1, 0]).tolist()
        [1, 0, 1]
        """
        policy: Any = self.policy
        if getattr(policy, "memory_note", True):
            raise InputError(f"{policy!r} has a memory, so each environment needs an agent")
        self._check_time()
        states = observations
        if not (isinstance(states, np.ndarray) and states.ndim == 1 and states.dtype.kind in "iu"):
            states = np.array([self._read_state(x) for x in observations], np.int64)
        for limit in (states.min(initial=0), states.max(initial=0)):
            self._read_state(limit)
        if getattr(policy, "is_deterministic", False):
            index = (self.time, states)[-policy.actions.ndim :]
            return np.asarray(policy.actions[index], np.int64)
        return np.array([policy.act(self.memory, self.time, s) for s in states.tolist()], np.int64)

    @property
    def belief(self) -> dict[str, float]:
        """The weight of every model by its label, after the last state that it was given.

        >>> import mmdp
        >>> two = mmdp.domains.two_models().train
        >>> agent = mmdp.interop.Agent(mmdp.solve(two, 9, mmdp.methods.BeliefGrid()))
        >>> agent.belief, [agent(state) for state in ("1", "4")], agent.belief
        ({'m1': 0.5, 'm2': 0.5}, [1, 0], {'m1': 0.0, 'm2': 1.0})
        """
        belief_policy: object = self.policy
        if not hasattr(belief_policy, "belief_by_label"):
            raise InputError(
                f"{belief_policy!r} keeps no belief",
                ["solve with a method that does", "load a plan with its models"],
            )
        if self.time == 0:
            return belief_policy.belief_by_label(self.memory, 1, 0)
        return belief_policy.belief_by_label(self.memory, self.time - 1, self.last_step[0])

    def _check_time(self) -> None:
        if self.time >= self.policy.horizon:
            raise InputError(f"the policy ends after {self.policy.horizon} steps; call reset()")

    def _read_state(self, observation: object) -> int:
        """Find the number of a state from its number or label."""
        labels = self._states.ids
        if isinstance(observation, Mapping) and labels:
            observation = self._states.find_label(observation)
        if isinstance(observation, str):
            if observation not in labels:
                raise InputError(f"the policy knows no state {did_you_mean(observation, labels)}")
            return labels[observation]
        state, n_states = _as_state_id(observation), getattr(self.policy, "n_states", math.inf)
        if state is None or not 0 <= state < n_states:
            raise InputError(
                f"the policy knows no state {shorten(observation)}: give its number, from 0, or "
                "its label; each environment needs an agent of its own"
            )
        return state


def _as_state_id(observation: object) -> int | None:
    """Convert an observation to a whole number, also an array of one; None if it is none."""
    if type(observation) is int:
        return observation
    if isinstance(observation, np.ndarray) and observation.size == 1:
        observation = observation.item()
    number = float(cast("SupportsFloat", observation)) if is_of_type(observation, float) else 0.5
    return int(number) if number.is_integer() else None
