"""How cost grows with models, states and horizon: slopes of log time over log size.

What is timed is mmdp.solve with one of the paper's sweeps, on two threads: one thread alone reads
from the memory at a third of the speed that it reads the caches with, so its times grow faster
than the work whatever it does. Next to it stands the slope of plainly reading the same transitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

import mmdp
from benchmarks import timing
from benchmarks.core import BUDGET
from benchmarks.instances import sparse_model
from benchmarks.machine import Reader
from benchmarks.sizes import Shape, Sizes
from benchmarks.table import Goal, Row
from benchmarks.timing import Contestant
from mmdp.kernels.cpu.kernel import NumbaKernel

GOAL = Goal(0.9, 1.1, "within")
THREADS = 2


def growth(sizes: Sizes) -> Iterator[Row]:
    for axis, shapes in sizes.growth.items():
        yield slope_row(axis, shapes, sizes.rounds)


def slope_row(axis: str, shapes: tuple[Shape, ...], rounds: int) -> Row:
    method, kernel = mmdp.CADP(max_iterations=1, sweeps="paper"), NumbaKernel(THREADS)
    work = np.array([shape.nonzeros * shape.horizon for shape in shapes], dtype=float)
    contestants = {}
    for shape in shapes:
        model = sparse_model(shape)
        run = partial(mmdp.solve, model, shape.horizon, method, backend=kernel)
        run()
        contestants[str(shape)] = Contestant(run)
        reader = Reader(model.problem.p, 2 * shape.horizon, THREADS)
        contestants[f"read {shape}"] = Contestant(reader.run)
    times = timing.interleave(contestants, rounds, BUDGET)
    found = [times[str(shape)] for shape in shapes]
    best = np.array([x.best for x in found])
    reading = slope(work, np.array([times[f"read {shape}"].best for shape in shapes]))
    each = [slope(work, np.array(x)) for x in zip(*(x.rounds for x in found), strict=True)]
    sizes = work / work[0]
    return Row(
        f"log-log slope in {axis}", slope(work, best), "", THREADS, GOAL,
        timing.spread(each), min(each), max(each),
        note=f"{work[0]:.1e} to {work[-1]:.1e} multiply-adds per pass, {1e3 * best[0]:.3g} ms to "
        f"{best[-1]:.3g} s; slope of plain reading {reading:.2f}",
        details={
            "axis": axis, "size": sizes.tolist(), "seconds": best.tolist(), "reading": reading,
        },
    )  # fmt: skip


def slope(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """The slope of the line through log x, log y.

    >>> round(slope(np.array([1.0, 10.0, 100.0]), np.array([2.0, 20.0, 200.0])), 6)
    1.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
