"""One model from a step function on an accelerator: seconds per iteration against mdpax.

``PYTHONPATH=src python -m benchmarks.mdpax_peer [--ages 3 4 5] [--iterations 20]``

De Moor's perishable stock (:func:`mmdp.domains.perishable`) with a lead time of 2 and demands up to
30: 11^(ages + 1) states, 11 orders, 31 demands. An iteration is one backward step for all states.
mdpax (0.2.2) computes next states anew each time, in batches of states; the faster of two sizes
counts. Ours gathers from an index that ``from_step`` made once, which is timed by itself. Each is
timed in 64 bits, the default of both, and in 32. Both begin with values of 0, and the values must
agree.
"""

from __future__ import annotations

import argparse
import sys
import time
from types import ModuleType
from typing import Any

import jax
import numpy as np

from mmdp.domains import _perishable
from mmdp.kernels.jax.events import Windows
from mmdp.kernels.jax.kernel import JaxKernel

BATCHES = (1024, 16384)  # the default, and more
DEMANDS, DISCOUNT = 31, 0.99


def theirs(ages: int, iterations: int, double: bool) -> tuple[float, Any]:
    """Seconds per iteration with the size of batches that was fastest; values after them."""
    jax.config.update("jax_enable_x64", double)
    try:
        import orbax.checkpoint  # noqa: F401
    except ImportError:  # saves checkpoints, which are not wanted here
        for name in ("orbax", "orbax.checkpoint"):
            sys.modules[name] = ModuleType(name)
        sys.modules["orbax"].checkpoint = sys.modules["orbax.checkpoint"]  # type: ignore[attr-defined]
        sys.modules["orbax.checkpoint"].CheckpointManager = object  # type: ignore[attr-defined]
    from mdpax.problems.perishable_inventory.de_moor_single_product import (
        DeMoorSingleProductPerishable,
    )
    from mdpax.solvers.value_iteration import ValueIteration

    problem = DeMoorSingleProductPerishable(
        max_demand=DEMANDS - 1, max_useful_life=ages, lead_time=2, issue_policy="fifo"
    )
    found: list[tuple[float, Any]] = []
    for size in BATCHES:
        solver = ValueIteration(
            problem=problem, gamma=DISCOUNT, max_batch_size=size, verbose=0,
            jax_double_precision=double,
        )  # fmt: skip
        zero = solver.values
        jax.block_until_ready(solver._iteration_step()[0])
        solver.values = zero
        began = time.perf_counter()
        for _ in range(iterations):
            solver.values = solver._iteration_step()[0]
        jax.block_until_ready(solver.values)
        each = (time.perf_counter() - began) / iterations
        found.append((each, np.asarray(solver.values)))
    return min(found, key=lambda x: x[0])


def timed(run: Any, iterations: int) -> tuple[float, Any]:
    """Seconds per iteration without compiling, the best of three; what it returns."""
    found, each = run(), []
    for _ in range(3):
        began = time.perf_counter()
        found = run()
        each.append((time.perf_counter() - began) / iterations)
    return min(each), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ages", type=int, nargs="+", default=[3, 4, 5])
    parser.add_argument("--iterations", type=int, default=20)
    given = parser.parse_args()
    _perishable.DEMANDS = DEMANDS
    print(jax.devices()[0], f"jax {jax.__version__}")
    print("seconds per iteration")
    print(
        "states      64 bits: mdpax, ours           32 bits: mdpax, ours       made in  difference"
    )
    for ages in given.ages:
        brief, _ = theirs(ages, given.iterations, double=False)
        peer, values = theirs(ages, given.iterations, double=True)
        began = time.perf_counter()
        draws = {"mean": np.array([4.0]), "variation": np.array([0.5])}
        model = _perishable.models(draws, ages, 2, "fifo")
        made = time.perf_counter() - began
        plan: Any = JaxKernel().plan(model.problem, given.iterations)
        wide, found = timed(lambda plan=plan: plan.backward("own"), given.iterations)
        apart = float(np.abs(found.first[:, 0] - values).max())
        short = Windows(plan.held.arrays(model.problem), model.problem, plan.horizon, plan.tuning)
        narrow, _ = timed(lambda short=short: short.open(None), given.iterations)
        print(
            f"{model.n_states:<10,} {peer:.6f} {wide:.6f} {peer / wide:5.0f} x    {brief:.6f} "
            f"{narrow:.6f} {brief / narrow:5.0f} x {made:6.1f} s {apart:9.2g}",
            flush=True,
        )


if __name__ == "__main__":
    main()
