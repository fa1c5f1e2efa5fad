"""What nodes of memory are worth, and what a sweep over them costs.

    python benchmarks/memory_nodes.py [sweeps] [riverswim] [hiv] [population]

sweeps      a sweep with N nodes against a sweep of the paper's CADP, POPS size, interleaved
riverswim   published models, T = 50: value by nodes on training and test models
hiv         published models, T = 15: the same
population  POPS from the published log, T = 50: the table of mmdp.value_of_memory (two minutes)

"recovered" is the share of the gain from the Markov policy to the exact-belief rollout, which is
simulated; its standard error is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import mmdp
from benchmarks import timing
from benchmarks.instances import Instance, population
from benchmarks.timing import Contestant
from mmdp.kernels.controller import Controller
from mmdp.kernels.cpu.kernel import NumbaKernel
from mmdp.kernels.plan import Plan
from mmdp.kernels.problem import Table

NODES = (1, 2, 3, 4, 5)


def sweeps(
    instance: Instance | None = None, *, threads: Sequence[int] = (1, 2),
    rounds: int = 5,
) -> dict[tuple[int, int], float]:  # fmt: skip
    """(threads, nodes) to the cost of a sweep over N^2 of the paper's."""
    chosen = population(100) if instance is None else instance
    model, T = chosen.model, chosen.horizon
    tables = [mmdp.MarkovPolicy.random(model, T, seed).actions for seed in range(max(NODES))]
    found = {}
    for count in threads:
        plan = NumbaKernel(count).plan(model.problem, T)
        runs: dict[str, Callable[[], object]] = {"markov": partial(markov_sweep, plan, tables[0])}
        for n in NODES[1:]:
            controller = mixed(tables[:n])
            runs[f"{n}"] = partial(node_sweep, plan, controller)
        for run in runs.values():
            run()
        times = timing.interleave({name: Contestant(run) for name, run in runs.items()}, rounds)
        base = times["markov"].best
        print(f"{count} thread(s): the paper's sweep {1e3 * base:.1f} ms")
        for n in NODES[1:]:
            ratio = times[f"{n}"].best / base
            found[count, n] = ratio / n**2
            print(f"  {n} nodes {ratio:6.2f} sweeps = {ratio / n**2:.2f} N²")
    return found


def mixed(tables: Sequence[Table]) -> Controller:
    """A controller whose nodes all have weight: moves at random."""
    controller = Controller.of_tables(*tables)
    moves = np.random.default_rng(0).integers(0, len(tables), controller.moves.shape)
    return controller._replace(moves=moves.astype(np.uint8))


def markov_sweep(plan: Plan, table: Table) -> None:
    plan.backward("weighted", weights=plan.forward(table), policy=table)


def node_sweep(plan: Plan, controller: Controller) -> None:
    _, b = plan.node_weights(controller)
    plan.node_values(controller, b)


def values(
    name: str, train: mmdp.MMDP, test: mmdp.MMDP, horizon: int, nodes: Sequence[int] = NODES,
    episodes: int | None = None,
) -> list[float]:  # fmt: skip
    """Value by nodes; prints it on test models too, and the share of the rollout's gain."""
    rollout = mmdp.solve(train, horizon, mmdp.Rollout(episodes=episodes))
    error = rollout.evaluation.stderr
    found: list[float] = []
    print(f"{name}, T = {horizon}: exact-belief rollout {rollout.value:.3f} ± {error:.3f}")
    for n in nodes:
        start = time.perf_counter()
        solution = mmdp.solve(train, horizon, policy=mmdp.Memory(nodes=n))
        seconds = time.perf_counter() - start
        found.append(solution.value)
        gain = rollout.value - found[0]
        clear = gain > 2 * error and gain > 1e-6 * abs(found[0])
        share = f"recovered {(found[-1] - found[0]) / gain:.0%}" if clear else "no clear gain"
        print(
            f"  {n} nodes {solution.value:12.3f}  test {mmdp.evaluate(solution, test).mean:12.3f}"
            f"  {share}  {seconds:.1f} s",
            flush=True,
        )
    return found


def riverswim() -> None:
    values("RS published", *mmdp.domains.published("riverswim"), 50, episodes=2000)


def hiv() -> None:
    first, *_, last = values("HIV published", *mmdp.domains.published("hiv"), 15, (1, 2, 3))
    print(f"  memory gains {last - first:.2f} of {first:.2f}: nothing")


def pops() -> None:
    train, _ = mmdp.domains.population_small()
    table = mmdp.value_of_memory(train, 50, nodes=(1, 2, 3, 4), episodes=1000)
    print(table.round(3).to_string(index=False))
    print(table.attrs["text"])


SECTIONS = {
    "sweeps": sweeps, "riverswim": riverswim, "hiv": hiv, "population": pops,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Nodes of memory: what they are worth and cost.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    options = parser.parse_args(arguments)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"no section is called {unknown[0]}; there are {', '.join(SECTIONS)}")
    for name in options.sections or SECTIONS:
        SECTIONS[name]()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
