"""One model over a finite horizon, against the toolboxes for one model.

Ours is mmdp.solve; theirs is the call that does the work, with their objects made before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import mmdp
from benchmarks import timing
from benchmarks.instances import OneModel, one_dense, one_sparse
from benchmarks.peers import TOOLBOXES
from benchmarks.sizes import Sizes
from benchmarks.table import Goal, Row, ratio_row
from benchmarks.timing import Contestant
from mmdp.kernels.cpu.kernel import NumbaKernel

GOALS = {1: Goal(1.0, 1.5), 2: Goal(1.3, 2.0)}  # against quantecon


def one_model(sizes: Sizes) -> Iterator[Row]:
    yield from _against(one_dense(*sizes.one_dense), sizes)
    yield from _against(one_sparse(*sizes.one_sparse), sizes)


def _against(one: OneModel, sizes: Sizes) -> Iterator[Row]:
    contestants: dict[str, Contestant] = {}
    for threads in GOALS:
        kernel = NumbaKernel(threads)
        solve = partial(mmdp.solve, one.model, sizes.one_horizon, backend=kernel)
        contestants[f"ours {threads}"] = Contestant(solve)
    missing = {}
    for name, make in TOOLBOXES.items():
        try:
            run = make(one, sizes.one_horizon)
        except ImportError:
            missing[name] = "not installed: pip install 'mmdp[bench]'"
            continue
        for count in GOALS:
            contestants[f"{name} {count}"] = Contestant(run, blas_threads=count)
    for contestant in contestants.values():
        contestant.run()
    times = timing.interleave(contestants, sizes.rounds)
    for name in TOOLBOXES:
        for threads, goal in GOALS.items():
            check, held = f"{one.name} vs {name}", goal if name == "quantecon" else None
            if name in missing:
                yield Row(check, None, threads=threads, goal=held, note=missing[name])
                continue
            best = min(range(1, threads + 1), key=lambda count: times[f"{name} {count}"].best)
            yield ratio_row(
                check, times[f"{name} {best}"], times[f"ours {threads}"], held, threads=threads,
                note=f"T = {sizes.one_horizon}",
            )  # fmt: skip
