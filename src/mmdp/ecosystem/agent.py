"""A policy as an agent: a function from what is seen to what is done."""

from __future__ import annotations

from typing import Any

from mmdp.errors import InputError
from mmdp.policy import MarkovPolicy, Planner
from mmdp.solution import Solution


class Agent:
    """Follows a policy through an episode: ``action = agent(observation, reward)``.

    It keeps the time and the memory of the policy. ``reset()`` begins a new episode.

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

    def __init__(self, policy: Planner | MarkovPolicy | Solution, seed: int | None = 0) -> None:
        followed = policy.policy if isinstance(policy, Solution) else policy
        markov = isinstance(followed, MarkovPolicy) and followed.deterministic
        if not (markov or isinstance(followed, Planner)):
            raise InputError(
                "an agent follows a planner or a deterministic policy of time and state"
            )
        self.policy, self.seed, self.episodes = followed, seed, 0
        self.reset()

    def reset(self) -> None:
        """Begin a new episode."""
        self.time, self.seen, self.memory = 0, (-1, -1), None
        if isinstance(self.policy, Planner):
            seed = None if self.seed is None else self.seed + self.episodes
            self.memory = self.policy.start(seed)
        self.episodes += 1

    def __call__(self, observation: Any, reward: float | None = None) -> int:
        """The action in this state; ``reward`` is that of the step before."""
        state = int(observation)
        if self.time >= self.policy.horizon:
            raise InputError(f"the policy ends after {self.policy.horizon} steps; call reset()")
        if isinstance(self.policy, MarkovPolicy):
            action = int(self.policy.actions[self.time, state])
        else:
            if self.time > 0:
                before = self.time - 1
                self.memory = self.policy.update(self.memory, before, *self.seen, state, reward)
            action = self.policy.act(self.memory, self.time, state)
        self.seen = state, action
        self.time += 1
        return action
