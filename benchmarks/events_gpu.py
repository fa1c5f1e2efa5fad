"""Shared events on an accelerator: the paper's sweeps over a million states.

``PYTHONPATH=src python -m benchmarks.events_gpu [--sweeps 8] [--life 6]``

Perishable stock (see :mod:`benchmarks.events`): six ages of 0 to 9 units, 10 orders, 20 demands,
100 models, 50 decisions. Tables would take 160 GB, rewards by model 8 GB. What events earn is
1.6 GB here and 2.4 GB on the device, in 64 and 32 bits. Prints seconds and value after every sweep
from WSU, then the value in 64 bits and the most memory taken. ``--life 3`` is a trial of a thousand
states for any machine.
"""

from __future__ import annotations

import argparse
import resource
import time
from itertools import pairwise
from typing import Any

import jax

from benchmarks.events import model_of
from mmdp.kernels.jax import events
from mmdp.kernels.jax.kernel import JaxKernel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=8)
    parser.add_argument("--life", type=int, default=6)
    parser.add_argument("--horizon", type=int, default=50)
    given = parser.parse_args()
    began = time.perf_counter()
    model = model_of(given.life, 9, 10, 20, 100)
    print(f"{model}: made in {time.perf_counter() - began:.1f} s, on {jax.devices()[0]}")
    events.LARGE = 0  # the same code in a trial
    plan = JaxKernel().plan(model.problem, given.horizon)
    seen = [time.perf_counter()]

    def watch(policy: Any, value: float) -> None:
        seen.append(time.perf_counter())
        what = "WSU, compiled" if len(seen) == 2 else f"sweep {len(seen) - 2}"
        print(f"{what:14} {seen[-1] - seen[-2]:8.2f} s   value {value:.4f}", flush=True)

    (end,) = plan.ascend([None], sweeps="paper", max_sweeps=given.sweeps, watch=watch)
    took = time.perf_counter() - seen[1]
    each = sorted(later - sooner for sooner, later in pairwise(seen[2:]))
    middle = f"{each[len(each) // 2]:.2f}" if each else "?"
    print(
        f"{end.sweeps} sweeps in {took:.1f} s ({end.end}), median {middle} s without the first, "
        f"value in 64 bits {end.value:.4f}"
    )
    stats = jax.devices()[0].memory_stats() or {}
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"peak: device {stats.get('peak_bytes_in_use', 0) / 1e9:.1f} GB, host {host / 1e9:.1f} GB"
    )


if __name__ == "__main__":
    main()
