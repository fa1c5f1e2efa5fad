"""An intensive-care problem as one job: models drawn, one policy for all, the page.

    python -m benchmarks.icu [dynamics.npz] [--models 50] [--page icu.html] [--decisions 100]

``dynamics.npz`` is that of ICU-Sepsis (Choudhary, Gupta and Thomas, RLC 2024): 716 states, 25
actions, an episode returns 1 if the patient survives. Without it a smaller problem of that kind is
made up. Rows are drawn from Dirichlet(20 p) around the published ones. The policy has no last
decision, at discount 1. What clinicians do, a table of probabilities, is a row of the page.

Each line has the seconds of a stage and the most memory that the process held during it. The last
line compares an infinite horizon with 1,000 decisions, on a few models.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import mmdp
from benchmarks.fitting import forget_peak, status
from mmdp import report

T = TypeVar("T")
Arrays = Mapping[str, np.ndarray]
ENDS = 3  # the last states: death, survival, and the end of the episode


def made_up(states: int = 120, actions: int = 6, seed: int = 0) -> Arrays:
    """A problem of the same kind, with the names of the published file."""
    rng, ill = np.random.default_rng(seed), states - ENDS
    dead, alive, end = range(ill, states)
    p, r = np.zeros((states, actions, states)), np.zeros((states, actions, states))
    for s, a in np.ndindex(ill, actions):
        to = rng.choice(ill, 8, replace=False)
        p[s, a, to] = 0.85 * rng.dirichlet(np.ones(len(to)))
        p[s, a, [dead, alive]] = 0.15 * rng.dirichlet([1, 4])
    p[ill:, :, end], r[:, :, alive] = 1, 1
    usual = np.zeros((states, actions))
    usual[:ill] = rng.dirichlet(np.ones(actions), size=ill)
    start = np.append(rng.dirichlet(np.ones(ill)), np.zeros(ENDS))
    return {"tx_mat": p, "r_mat": r, "d_0": start, "expert_policy": usual}


def drawn(data: Arrays, models: int, seed: int = 0) -> mmdp.MMDP:
    """Models whose rows are Dirichlet(20 p) draws; nothing follows the last state."""
    states, actions, _ = data["tx_mat"].shape
    end = states - 1
    fitted = mmdp.fit(
        {"state": [end], "action": [0], "next_state": [end]},
        prior=mmdp.Prior(data["tx_mat"], concentration=20.0, absorbing=[end]),
        rewards=data["r_mat"], initial=data["d_0"], states=states, actions=actions,
        models=models, seed=seed, name="intensive care",
    )  # fmt: skip
    return fitted.train


def clinicians(data: Arrays) -> mmdp.StationaryPolicy:
    """What is done today: probabilities, and the first action where an episode has ended."""
    table = data["expert_policy"].copy()
    table[-ENDS:, 0] = 1
    return mmdp.StationaryPolicy(probabilities=table / table.sum(axis=1, keepdims=True))


def stage(name: str, run: Callable[[], T]) -> T:
    """Run it, and print how long it took and the most memory held meanwhile."""
    forget_peak()
    started = time.perf_counter()
    found = run()
    seconds, peak = time.perf_counter() - started, status("VmHWM") / 1e9
    print(f"{name}: {seconds:.1f} s, {peak:.2f} GB at most", flush=True)
    return found


def job(data: Arrays, models: int, page: Path, decisions: int) -> None:
    whole = time.perf_counter()
    model = stage("draw", lambda: drawn(data, models))
    found = stage("solve", lambda: mmdp.solve(model, math.inf))
    today = stage("clinicians", lambda: mmdp.evaluate(clinicians(data), model))
    options: dict[str, Any] = {"policy": found, "compare": {"clinicians": clinicians(data)}}
    stage("page", lambda: report.write(model, page, horizon=decisions, **options))
    print(f"all: {time.perf_counter() - whole:.1f} s; {found.value:.6f}, clinicians "
          f"{today.mean:.6f}; {page} has {page.stat().st_size / 1e6:.1f} MB")  # fmt: skip


def long(data: Arrays, models: int) -> float:
    """By how much the return over 1,000 decisions differs from the one without a last decision."""
    model = drawn(data, models)
    policy: Any = mmdp.solve(model, math.inf).policy
    ever, thousand = policy.returns(model), mmdp.evaluate(policy.over(1000), model).returns
    return float(np.abs(ever - thousand).max())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", help="dynamics.npz of ICU-Sepsis")
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--page", type=Path, default=Path(tempfile.gettempdir()) / "icu.html")
    parser.add_argument("--decisions", type=int, default=100, help="of the page")
    given = parser.parse_args()
    arrays = made_up() if given.data is None else dict(np.load(given.data))
    job(arrays, given.models, given.page, given.decisions)
    print(f"infinite horizon - 1,000 decisions: {long(arrays, 5):.1e}")
