"""A policy as an agent: a function from what is seen to what is done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmdp.arguments import FiniteFloat, Seed, check, checked, fits
from mmdp.errors import InputError
from mmdp.policy import Planner
from mmdp.policy.base import named_label
from mmdp.solution import Solution
from mmdp.words import shortened, suggested


class Agent:
    """Follows a policy through an episode: ``action = agent(observation, reward)``.

    A state is seen as its number or, if the policy has labels, as its label, or as its values by
    name, ``{"stock": 12.3}``, which go to the nearest point of each axis. Actions are numbers.
    The agent keeps the time and the memory of the policy. ``reset()`` begins a new episode.

    In an environment of Gymnasium::

        agent = mmdp.ecosystem.Agent(solution)
        state, _ = env.reset()
        agent.reset()
        reward, over = None, False
        while not over:
            state, reward, ended, truncated, _ = env.step(agent(state, reward))
            over = ended or truncated

    >>> import mmdp
    >>> two = mmdp.domains.two_models().train
    >>> agent = mmdp.ecosystem.Agent(mmdp.solve(two, 9, policy=mmdp.Memory(nodes=2)))
    >>> [agent(state) for state in (0, 3, 0)]  # action 1 leads to state 3 in the second model
    [1, 0, 1]
    """

    @checked
    def __init__(self, policy: Planner | Solution, seed: Seed = 0) -> None:
        followed = policy.policy if isinstance(policy, Solution) else policy
        if not isinstance(followed, Planner):
            kind = type(followed).__name__
            raise InputError(f"an agent follows a policy, or the solution that has it, not {kind}")
        self.policy, self.seed, self.episodes = followed, seed, 0
        self.reset()

    def reset(self) -> None:
        """Begin a new episode."""
        seed = None if self.seed is None else self.seed + self.episodes
        self.time, self.seen, self.memory = 0, (-1, -1), self.policy.start(seed)
        self.episodes += 1

    def __call__(self, observation: Any, reward: float | None = None) -> int:
        """The action in this state; ``reward`` is that of the step before."""
        if reward is not None and not (type(reward) is float and math.isfinite(reward)):
            check("reward", reward, FiniteFloat)
        state, policy = self._state(observation), self.policy
        if self.time >= policy.horizon:
            raise InputError(f"the policy ends after {policy.horizon} steps; call reset()")
        if self.time > 0:
            self.memory = policy.update(self.memory, self.time - 1, *self.seen, state, reward)
        action = policy.act(self.memory, self.time, state)
        self.seen = state, action
        self.time += 1
        return action

    @property
    def belief(self) -> dict[str, float]:
        """The weight of every model by its label, after the last state that it was given.

        >>> import mmdp
        >>> two = mmdp.domains.two_models().train
        >>> agent = mmdp.ecosystem.Agent(mmdp.solve(two, 9, mmdp.BeliefGrid()))
        >>> agent.belief, [agent(state) for state in ("1", "4")], agent.belief
        ({'m1': 0.5, 'm2': 0.5}, [1, 0], {'m1': 0.0, 'm2': 1.0})
        """
        followed: Any = self.policy
        if not hasattr(followed, "belief"):
            raise InputError(
                f"{followed!r} keeps no belief",
                ["solve with a method that does", "load a plan with its models"],
            )
        if self.time == 0:
            return followed.belief(self.memory, 1, 0)
        return followed.belief(self.memory, self.time - 1, self.seen[0])

    def _state(self, observation: Any) -> int:
        """The number of a state from its number or label."""
        labels = getattr(self.policy, "state_labels", None) or ()
        if isinstance(observation, Mapping) and labels:
            observation = named_label(observation, labels)
        if isinstance(observation, str):
            if observation not in labels:
                raise InputError(f"the policy knows no state {suggested(observation, labels)}")
            return labels.index(observation)
        state, count = _number(observation), getattr(self.policy, "n_states", math.inf)
        if state is None or not 0 <= state < count:
            raise InputError(
                f"the policy knows no state {shortened(observation)}: give its number, from 0, or "
                "its label; each environment needs an agent of its own"
            )
        return state


def _number(observation: Any) -> int | None:
    """The whole number that an observation is, also as an array of one; None if it is none."""
    if type(observation) is int:
        return observation
    if isinstance(observation, np.ndarray) and observation.size == 1:
        observation = observation.item()
    whole = fits(observation, float) and float(observation).is_integer()
    return int(observation) if whole else None
