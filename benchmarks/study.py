"""Studies: what processes and a Dask cluster gain, what a kill costs, what travels.

    python -m benchmarks.study            # about two minutes on two quiet cores
    python -m benchmarks.study --quick    # a trial on tiny sizes

The study has 96 cells: four sets of models, four horizons, two methods and three seeds, each with
its evaluation on test models. Runs with one process, two processes and a cluster of two workers
take turns, and the fastest rounds are compared. Starting the two processes is part of their time.
The cluster is running before, as clusters do, but has not loaded mmdp in the first round.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pandas.testing import assert_frame_equal

import mmdp
from benchmarks.timing import Contestant, interleave, load, machine
from mmdp import workers
from mmdp.study import Cell, cells_of

TIMES = ["seconds", "test_seconds"]
WORKERS = 2


def grid(quick: bool) -> dict[str, Any]:
    """The arguments of the study."""
    draw = partial(mmdp.domains.riverswim, n_train=100, n_test=100)
    return {
        "models": {f"river {i}": partial(draw, seed=i) for i in range(4)},
        "horizons": [5, 6, 7, 8] if quick else [100, 200, 300, 400],
        "methods": [mmdp.CADP(starts=n // 6 if quick else n) for n in (12, 24)],
        "seeds": range(3),
        "backend": "numba",
    }


# ------------------------------------------------------------------ speed
def speed(quick: bool, client: Any, rounds: int) -> None:
    """96 cells with one process, two processes and two workers of a cluster."""
    ask = partial(mmdp.study, **grid(quick))
    tables: dict[str, Any] = {}

    def keep(name: str, **where: Any) -> None:
        tables[name] = ask(**where)

    contestants = {
        "one process": Contestant(partial(keep, "one process")),
        f"{WORKERS} processes": Contestant(partial(keep, f"{WORKERS} processes", jobs=WORKERS)),
        f"{WORKERS} workers": Contestant(
            partial(keep, f"{WORKERS} workers", executor=client.get_executor())
        ),
    }
    mmdp.study(**{**grid(True), "seeds": 0})  # compiled before the clock starts
    times = interleave(contestants, rounds)
    alone = times["one process"].best
    for name, found in times.items():
        frame = tables[name]
        assert len(frame) == 96
        assert frame["error"].isna().all()
        same(frame, tables["one process"])
        print(f"96 cells, {name}: {found.best:.2f} s, {alone / found.best:.2f} x one process")
    ratio = times[f"{WORKERS} workers"].best / times[f"{WORKERS} processes"].best
    print(f"{WORKERS} workers of a cluster / {WORKERS} processes: {ratio:.2f} (less is better)")


def same(one: Any, other: Any) -> None:
    assert_frame_equal(one.drop(columns=TIMES), other.drop(columns=TIMES), rtol=1e-12)


# ------------------------------------------------------------------ killed and started again
def killed(quick: bool) -> None:
    """Kill a study of two processes at a third of its cells, and start it again."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        words = [sys.executable, "-m", "benchmarks.study", "--into", str(out)]
        command = [*words, *(["--quick"] if quick else [])]
        running = subprocess.Popen(command)
        while len(kept := list(out.glob("cells/[!.]*.json"))) < 32:
            assert running.poll() is None, "done before it could be killed"
            time.sleep(0.01)
        running.kill()
        running.wait()
        kept = list(out.glob("cells/[!.]*.json"))
        written = {file: file.stat().st_mtime_ns for file in kept}
        heard: list[Any] = []
        table = mmdp.study(**grid(quick), out=out, jobs=WORKERS, callback=heard.append)
        assert {file: file.stat().st_mtime_ns for file in kept} == written
        assert heard[-1].reused == len(kept)
        same(table, mmdp.study(**grid(quick)))
    print(
        f"killed with {len(kept)} of 96 cells, started again: {len(kept)} reused, "
        f"{96 - len(kept)} computed, none twice, the same table"
    )


# ------------------------------------------------------------------ what travels
def travel(quick: bool, client: Any) -> None:
    """Bytes that reach the workers for 50 cells on one large model."""
    n = 20 if quick else 160
    rng = np.random.default_rng(0)
    p = rng.random((n, n, 100))
    p /= p.sum(axis=1, keepdims=True)
    transitions = np.broadcast_to(p.transpose(2, 0, 1)[:, :, None], (100, n, 10, n))
    model = mmdp.MMDP(transitions, rng.normal(size=(100, n, 10)), storage="dense")
    ask = partial(mmdp.study, model, 2, "wsu", seeds=range(50), backend="numba")
    print(f"a model of {model.memory / 1e6:.0f} MB, 50 cells, {WORKERS} workers:")
    cells = cells_of(model, 2, "wsu", seeds=range(50), backend="numba")
    report("files, 2 processes", written(partial(ask, jobs=WORKERS)) + sent(cells), model)
    moved = []
    for _ in range(3):
        before = loopback()
        assert ask(executor=client.get_executor())["error"].isna().all()
        moved.append(loopback() - before)
    told = ", ".join(f"{count / 1e6:.0f}" for count in moved)
    report(f"Dask, least of three ({told} MB)", min(moved), model)


def report(name: str, count: int, model: mmdp.MMDP) -> None:
    share = count / (WORKERS * model.memory)
    print(f"  {name}: {count / 1e6:.1f} MB, {share:.2f} x workers x model")


def written(run: Callable[[], Any]) -> int:
    """Bytes in files for the workers; each worker maps them, so none is copied again."""
    sizes: list[int] = []
    plain = workers.store

    def store(thing: Any, path: Path) -> None:
        plain(thing, path)
        sizes.append(path.stat().st_size)

    workers.store = store
    try:
        assert run()["error"].isna().all()
    finally:
        workers.store = plain
    return WORKERS * sum(sizes)


def sent(cells: list[Cell]) -> int:
    """Bytes of the cells themselves."""
    return sum(len(pickle.dumps(cell)) for cell in cells)


def loopback() -> int:
    """Bytes that this machine has sent to itself (Linux); other programs can only add to it."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    (line,) = (x for x in lines if x.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--into", help=argparse.SUPPRESS)  # the run that is killed
    options = parser.parse_args()
    if options.into is not None:
        mmdp.study(**grid(options.quick), out=options.into, jobs=WORKERS)
        return
    import distributed

    print(machine(), "load", load())
    with (
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        speed(options.quick, client, 1 if options.quick else options.rounds)
        travel(options.quick, client)
    killed(options.quick)


if __name__ == "__main__":
    main()
