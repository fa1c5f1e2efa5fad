"""How often ranges of returns over models fitted to a short log have the true return.

    python -m benchmarks.coverage [LOGS]     # 20 logs for each line unless you say; about a minute

Logs are of a policy that takes a random action half the time, otherwise the best one. The policy
computed from a log is tested on other models of the posterior: the range is that of nine tenths of
them. Needs Gymnasium.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

import mmdp

Array = npt.NDArray[np.float64]


class World(NamedTuple):
    """(S, A, S') chances and rewards, and the states that end an episode."""

    P: Array
    R: Array
    ends: list[int]
    horizon: int
    discount: float

    def model(self) -> mmdp.MMDP:
        first = np.eye(len(self.P))[0]
        expected = (self.P * self.R).sum(axis=2)
        return mmdp.MMDP([self.P], [expected], initial=first, discount=self.discount)


def ferry() -> World:
    P, R = np.zeros((2, 3, 3, 3))
    for s in (0, 1):
        P[s, 0, s] = 1
        for a, (sinks, fare) in ((1, (0.08, 1.0)), (2, (0.01, 0.6))):
            P[s, a, [1 - s, 2]], R[s, a, 1 - s] = (1 - sinks, sinks), fare
    P[2, :, 2] = 1
    return World(P, R, [2], 20, 0.95)


def lake() -> World:
    env: Any = gymnasium.make("FrozenLake-v1", map_name="4x4", is_slippery=True).unwrapped
    S, A, ends = env.observation_space.n, env.action_space.n, set[int]()
    P, R = np.zeros((2, S, A, S))
    for s, a in np.ndindex(S, A):
        for p, z, reward, ended in env.P[s][a]:
            P[s, a, z] += p
            R[s, a, z] = reward
            ends |= {int(z)} if ended else set()
    for s in ends:
        P[s], R[s] = np.eye(S)[s], 0
    return World(P, R, sorted(ends), 60, 0.99)


def logged(world: World, episodes: int, rng: np.random.Generator) -> dict[str, list[Any]]:
    best, rows = mmdp.solve(world.model(), world.horizon).policy.actions[0], []
    S, A = world.P.shape[:2]
    for episode in range(episodes):
        s = 0
        for t in range(world.horizon):
            a = int(rng.integers(A)) if rng.random() < 0.5 else int(best[s])
            z = int(rng.choice(S, p=world.P[s, a]))
            rows.append((episode, t, s, a, z, world.R[s, a, z], z in world.ends))
            s = z
            if s in world.ends:
                break
    names = ("episode", "time", "state", "action", "next_state", "reward", "terminated")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def covers(world: World, log: dict[str, list[Any]], seed: int, **options: Any) -> bool:
    S, A = world.P.shape[:2]
    fitted = mmdp.fit(log, models=60, test_models=120, discount=world.discount, states=S, actions=A,
                      initial=np.eye(S)[0], seed=seed, **options)  # fmt: skip
    solved = mmdp.solve(fitted.train, world.horizon, "mvp", backend="numpy")
    low, high = np.quantile(mmdp.evaluate(solved, fitted.test).returns, [0.05, 0.95])
    return bool(low - 1e-9 <= mmdp.evaluate(solved, world.model()).mean <= high + 1e-9)


def main(logs: int) -> None:
    cases: tuple[tuple[Callable[[], World], int], ...] = (
        (ferry, 3), (ferry, 10), (lake, 10), (lake, 40)
    )  # fmt: skip
    for make, episodes in cases:
        world, found = make(), np.zeros(2)
        for i in range(logs):
            log = logged(world, episodes, np.random.default_rng([i, episodes]))
            found[0] += covers(world, log, i)
            found[1] += covers(world, log, i, support="seen", unseen="forbid")
        pooled, seen = found / logs
        print(f"{make.__name__}, {episodes} episodes: {pooled:.0%}, support='seen' {seen:.0%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
