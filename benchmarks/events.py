"""Shared events on the CPU: a backward step against plain numpy and against reading the tables.

``PYTHONPATH=src python -m benchmarks.events [--units 27] [--rounds 3]``

All contestants run in turn in one process. "Numpy" adds up one event after the other. "Reading
p" is the time that adding up the bytes of the tables takes on as many threads; the tables would
not fit, so a smaller array is read and the time is scaled. Only ratios matter on a busy machine.
"""

from __future__ import annotations

import argparse
from math import lgamma
from typing import Any

import numpy as np
import numpy.typing as npt

import mmdp
from benchmarks.machine import Reader
from benchmarks.timing import Contestant, interleave
from mmdp.kernels.cpu.kernel import NumbaKernel
from mmdp.kernels.events import Events

READ = 2**27  # numbers that are read


def perishable(
    life: int, most: int, orders: int, demands: int, models: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Next states (S, A, W), rewards (S, A, W) and chances (W, M) of stock that perishes.

    A state is the units by age, oldest first, each from 0 to ``most``. An order arrives as the
    freshest. Demand takes the oldest first; what is left of the oldest is wasted. Models differ
    in mean demand. Reward: 5 sold - 3 ordered - 7 wasted - 1 kept - 2 lost.

    >>> after, reward, chance = perishable(2, 2, 3, 4, 5)
    >>> after.shape, reward.shape, chance.shape, bool(np.allclose(chance.sum(axis=0), 1))
    ((9, 3, 4), (9, 3, 4), (4, 5), True)
    """
    base = most + 1
    digits = np.stack([np.arange(base**life) // base**i % base for i in range(life)], axis=1)
    after = np.empty((len(digits), orders, demands), np.int32)
    reward = np.empty(after.shape)
    order = np.minimum(np.arange(orders), most)
    for w in range(demands):
        units, left = digits.copy(), np.full(len(digits), w)
        for i in range(life):
            used = np.minimum(units[:, i], left)
            units[:, i] -= used
            left -= used
        wasted, kept = units[:, 0], units[:, 1:]
        older = kept @ base ** np.arange(life - 1)
        after[:, :, w] = older[:, None] + order * base ** (life - 1)
        gain = 5 * (w - left) - 7 * wasted - kept.sum(axis=1) - 2 * left
        reward[:, :, w] = gain[:, None] - 3 * np.arange(orders)
    return after, reward, chances(models, demands)


def chances(models: int, demands: int, seed: int = 0) -> npt.NDArray[np.float64]:
    """(W, M) Poisson demand with gamma-distributed means; the tail is in the last demand."""
    mean = np.random.default_rng(seed).gamma(9, 1.0, models) * demands / 30
    w = np.arange(demands)[:, None]
    log = w * np.log(mean) - mean - np.array([[lgamma(x + 1)] for x in range(demands)])
    p = np.exp(log)
    p[-1] += 1 - p.sum(axis=0)
    return p


def model_of(life: int, most: int, orders: int, demands: int, models: int) -> mmdp.MMDP:
    """That problem, without tables; it starts without stock."""
    after, reward, chance = perishable(life, most, orders, demands, models)
    r = (reward.reshape(-1, demands) @ chance).reshape(1, *after.shape[:2], models)
    start = np.zeros(len(after))
    start[0] = 1.0
    events = Events(after[None, ..., None], chance[None, None])
    return mmdp.MMDP.from_support(events, r, initial=start, discount=0.95)


def measure(model: mmdp.MMDP, rounds: int, horizon: int = 4) -> dict[str, float]:
    """Best seconds of a backward step."""
    x: Any = model.problem.storage
    after, chance = x.after[0, ..., 0], x.chance[0, 0]
    kernel = NumbaKernel()
    plan = kernel.plan(model.problem, horizon)
    policy = np.zeros((horizon, model.n_states), np.int32)
    b, v = plan.forward(policy), np.random.default_rng(0).normal(size=model.terminal.T.shape)
    reader = Reader(np.ones(READ), 1, kernel.threads)  # zeros would be one page of memory

    def plain() -> None:
        found = np.zeros((*after.shape[:2], model.n_models))
        for w in range(after.shape[2]):
            found += chance[w] * v[after[:, :, w]]

    def weighted() -> object:
        return plan.backward("weighted", weights=b, policy=policy)

    weighted(), reader.run()
    contestants = {
        "numpy": Contestant(plain),
        "ours": Contestant(weighted, scale=1 / horizon),
        "a forward step": Contestant(lambda: plan.forward(policy), scale=1 / (horizon - 1)),
        "reading p": Contestant(reader.run, scale=after.size * model.n_models / READ),
    }
    return {name: times.best for name, times in interleave(contestants, rounds).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=27, help="0..units-1 of each of 3 ages")
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    model = model_of(3, given.units - 1, 10, 20, given.models)
    print(model)
    found = measure(model, given.rounds)
    for name, seconds in found.items():
        print(f"{name:15} {seconds:8.3f} s a step   {seconds / found['ours']:6.1f} x ours")


if __name__ == "__main__":
    main()
