"""Shared events on the CPU: a backward step, building, memory, growth, and toolboxes for one model.

``PYTHONPATH=src python -m benchmarks.events [steps building memory growth toolboxes]``

All contestants of a comparison run in turn in one process; only ratios matter on a busy machine.

- steps: seconds of a backward step against plain numpy, which adds up one event after the other,
  and against "reading p": adding up the bytes of the tables on as many threads. The tables would
  not fit, so a smaller array is read and the time is scaled.
- building: ``mmdp.from_step`` of the same problem against two of the paper's sweeps.
- memory: the most that building and three sweeps take in a process of their own, against what
  they must hold: v of two times, b of all times, and 4 bytes for each event of each row.
- growth: seconds of a sweep over states, models, events and decisions, with the slopes of log time
  over log size.
- toolboxes: one model with quantecon, which holds sparse matrices: seconds of a step, and how
  many states would fit into 24 GB by what two smaller sizes take.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from math import lgamma
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

import mmdp
from benchmarks.fitting import forget_peak, status
from benchmarks.instances import OneModel
from benchmarks.machine import Reader
from benchmarks.peers import TOOLBOXES
from benchmarks.timing import Contestant, interleave
from mmdp.kernels.cpu.kernel import NumbaKernel
from mmdp.kernels.events import Events

READ = 2**27  # numbers that are read
ROOM = 24e9  # bytes
ROOT = Path(__file__).resolve().parents[1]


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
    p[-1] += np.maximum(1 - p.sum(axis=0), 0.0)
    return p


def model_of(
    life: int = 3, most: int = 26, orders: int = 10, demands: int = 20, models: int = 100
) -> mmdp.MMDP:
    """That problem, without tables; it starts without stock."""
    after, reward, chance = perishable(life, most, orders, demands, models)
    start = np.zeros(len(after))
    start[0] = 1.0
    events = Events(after[None, ..., None], chance[None, None])
    r = events.rewards(reward).smallest()
    return mmdp.MMDP.from_support(events, r, initial=start, discount=0.95)


def from_function(most: int = 26, models: int = 100) -> mmdp.MMDP:
    """The same three ages, 10 orders and 20 demands, from a user's function."""
    ages = ("oldest", "middle", "fresh")

    def step(state: Any, action: Any, event: Any) -> Any:
        lost, left = event["demand"], []
        for age in ages:
            used = np.minimum(state[age], lost)
            lost = lost - used
            left.append(state[age] - used)
        gain = 5 * (event["demand"] - lost) - 7 * left[0] - left[1] - left[2] - 2 * lost
        following = (left[1], left[2], np.minimum(action["order"], most))
        return dict(zip(ages, following, strict=True)), gain - 3 * action["order"]

    p = chances(models, 20)
    return mmdp.from_step(
        step, states={age: range(most + 1) for age in ages}, actions={"order": range(10)},
        events={"demand": range(20)}, chance=lambda draw: p[:, int(draw["m"])],
        draws={"m": np.arange(models)}, initial=dict.fromkeys(ages, 0), discount=0.95,
    )  # fmt: skip


def sweep_of(model: mmdp.MMDP, horizon: int) -> Callable[[], object]:
    """One of the paper's sweeps, laid out."""
    plan = NumbaKernel().plan(model.problem, horizon)
    policy = np.zeros((horizon, model.n_states), np.int32)
    return lambda: plan.backward("weighted", weights=plan.forward(policy), policy=policy)


def steps(rounds: int) -> None:
    """Best seconds of a step."""
    model, horizon = model_of(), 4
    print(model)
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
    best = {name: times.best for name, times in interleave(contestants, rounds).items()}
    for name, seconds in best.items():
        print(f"{name:15} {seconds:8.3f} s a step   {seconds / best['ours']:6.1f} x ours")


def building(rounds: int) -> None:
    """from_step against two sweeps over 50 decisions, timed over 10."""
    model = from_function()
    print(model)
    sweep = sweep_of(model, 10)
    sweep()
    contestants = {"from_step": Contestant(from_function), "sweep": Contestant(sweep, scale=5)}
    best = {name: times.best for name, times in interleave(contestants, rounds).items()}
    share = best["from_step"] / (2 * best["sweep"])
    print(f"built in {best['from_step']:.2f} s: {share:.2f} of two sweeps over 50 decisions")


def memory(rounds: int) -> None:
    """Peak of building and sweeping, over what must be held."""
    for horizon in (4, 50):
        call = [sys.executable, "-m", "benchmarks.events", f"peak={horizon}"]
        done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=ROOT)
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{horizon} decisions: {found['peak'] / 1e6:,.0f} MB, "
            f"{found['peak'] / found['held']:.2f} x v, b and the index ({found['held'] / 1e6:,.0f})"
        )


def peak(horizon: int) -> None:
    """For a process of its own: what is compiled first belongs to the program."""

    def run(most: int, models: int) -> mmdp.MMDP:
        model = from_function(most, models)
        NumbaKernel().plan(model.problem, horizon).ascend([None], sweeps="paper", max_sweeps=3)
        return model

    run(3, 32)
    forget_peak()
    before = status("VmRSS")
    model = run(26, 100)
    x: Any = model.problem.storage
    held = 8 * (horizon + 2) * model.n_states * model.n_models + x.after.nbytes
    print(json.dumps({"peak": status("VmHWM") - before, "held": held}))


def growth(rounds: int) -> None:
    """Seconds of a sweep: 19**3 states, 10 orders, 20 demands, 64 models, 8 steps; one varies."""
    sizes: dict[str, tuple[int, ...]] = {
        "states": (13, 19, 27, 37), "models": (32, 64, 128, 256), "events": (5, 10, 20, 40),
        "decisions": (4, 8, 16, 32),
    }  # fmt: skip
    for axis, points in sizes.items():
        contestants = {}
        for n in points:
            at = {"states": 19, "models": 64, "events": 20, "decisions": 8, axis: n}
            model = model_of(3, at["states"] - 1, 10, at["events"], at["models"])
            run = sweep_of(model, at["decisions"])
            run()
            contestants[str(n)] = Contestant(run)
        best = [times.best for times in interleave(contestants, 2 * rounds).values()]
        size = np.array([n**3 if axis == "states" else n for n in points], float)
        slope = np.polyfit(np.log(size), np.log(best), 1)[0]
        cells = "  ".join(f"{n:,.0f}: {x:.3f} s" for n, x in zip(size, best, strict=True))
        print(f"{axis:10} exponent {slope:4.2f}   {cells}")


def toolboxes(rounds: int) -> None:
    """One model: seconds of a step, and bytes."""
    for name in ("ours", *TOOLBOXES):
        found = []
        for units in (27, 47):
            call = [sys.executable, "-m", "benchmarks.events", f"one={name}-{units}"]
            done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=ROOT)
            found.append(json.loads(done.stdout.splitlines()[-1]))
        small, large = found
        each = (large["peak"] - small["peak"]) / (large["states"] - small["states"])
        most, step = ROOM / each, large["seconds"] / large["states"]
        print(
            f"{name:13} {1e9 * step:7.1f} ns per state and step, {each:7,.0f} bytes per state: "
            f"{most:,.0f} states in 24 GB, {most * step:.2f} s a step there"
        )


def one(name: str, units: int, horizon: int = 20) -> None:
    """For a process of its own: the same problem with one model."""
    before = status("VmRSS")
    if name == "ours":
        model = model_of(most=units - 1, models=1)
        plan = NumbaKernel().plan(model.problem, horizon)
        run = partial(plan.backward, "weighted", weights=np.ones((1, 1, 1)))
    else:
        after, reward, chance = perishable(3, units - 1, 10, 20, 1)
        S, A, W = after.shape
        rows = np.arange(S * A).repeat(W)
        p = np.broadcast_to(chance[:, 0], after.shape).reshape(-1)
        matrix = scipy.sparse.csr_array((p, (rows, after.reshape(-1))), (S * A, S))
        r = (reward @ chance)[..., 0]
        del after, reward, rows
        run = TOOLBOXES[name](OneModel("perishable", matrix, r, 0.95), horizon)
    run()
    began = time.perf_counter()
    run()
    seconds = (time.perf_counter() - began) / horizon
    found = {"seconds": seconds, "peak": status("VmHWM") - before, "states": units**3}
    print(json.dumps(found))


PARTS = {x.__name__: x for x in (steps, building, memory, growth, toolboxes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for part in given.parts or PARTS:
        what, _, value = part.partition("=")
        if what == "peak":
            peak(int(value))
        elif what == "one":
            one(value.split("-")[0], int(value.split("-")[1]))
        else:
            print(f"\n{what}: {PARTS[what].__doc__}")
            PARTS[what](given.rounds)


if __name__ == "__main__":
    main()
