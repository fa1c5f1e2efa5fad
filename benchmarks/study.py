"""Studies: what processes and a Dask cluster gain, what a kill costs, what travels.

    python -m benchmarks.study            # some minutes on two quiet cores
    python -m benchmarks.study --quick    # a trial on tiny sizes

The study has 96 cells of 0.1 to 1 s: four sets of models, four horizons, two methods and three
seeds, each with its evaluation on test models. Whole commands are timed, as a user starts them:
``mmdp study --jobs 1`` against ``--jobs 2`` and ``--dask ADDRESS``. Each loads Python, mmdp and the
compiled code. A solve of this size takes one thread, so one process uses one core. The three take
turns, and the fastest rounds are compared. The cluster is running before, as clusters do, but
its workers have not loaded mmdp in the first round.

The cells' own seconds are added up too: if they take longer two at a time than one by one, the
cores share something, and no way to hand them out makes up for that.
"""

from __future__ import annotations

import argparse
import math
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
import pandas as pd
from pandas.testing import assert_frame_equal

import mmdp
from benchmarks.timing import Contestant, interleave, load, machine
from mmdp import workers
from mmdp.study import Cell, cells_of

TIMES = ["seconds", "test_seconds"]
WORKERS = 2
CELLS = 96


def described(folder: Path, quick: bool) -> Path:
    """The study as a file."""
    methods = ", ".join(f'{{method = "cadp", starts = {n // 6 if quick else n}}}' for n in (12, 24))
    lines = [
        f"horizons = {[5, 6, 7, 8] if quick else [100, 200, 300, 400]}",
        f"methods = [{methods}]",
        "seeds = [0, 1, 2]",
        'backend = "numba"',
    ]
    for i in range(4):
        lines += [f"[models.river{i}]", 'domain = "riverswim"', f"seed = {i}"]
        lines += ["n_train = 100", "n_test = 100"]
    file = folder / ("quick.toml" if quick else "study.toml")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def command(file: Path, out: Path, *where: str) -> list[str]:
    return [sys.executable, "-m", "mmdp", "study", str(file), "--out", str(out), *where]


def table(file: Path, out: Path, *where: str) -> pd.DataFrame:
    """What the command finds."""
    run = subprocess.run(command(file, out, *where), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = pd.read_csv(out / "study.csv")
    assert len(found) == CELLS
    assert found["error"].isna().all()
    return found


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    assert_frame_equal(one.drop(columns=TIMES), other.drop(columns=TIMES), rtol=1e-12)


# ------------------------------------------------------------------ speed
def speed(file: Path, address: str, rounds: int) -> None:
    """The study with one process, two processes and two workers of a cluster."""
    alone, processes, cluster = "one process", f"{WORKERS} processes", f"{WORKERS} Dask workers"
    where = {
        alone: ("--jobs", "1"),
        processes: ("--jobs", str(WORKERS)),
        cluster: ("--dask", address),
    }
    tables: dict[str, pd.DataFrame] = {}
    own: dict[str, float] = {}

    def keep(name: str) -> None:
        with tempfile.TemporaryDirectory() as out:
            tables[name] = table(file, Path(out), *where[name])
        own[name] = min(own.get(name, math.inf), float(tables[name][TIMES].sum().sum()))

    times = interleave({name: Contestant(partial(keep, name)) for name in where}, rounds)
    for name, found in times.items():
        same(tables[name], tables[alone])
        print(
            f"{CELLS} cells, {name}: {found.best:.2f} s, {times[alone].best / found.best:.2f} x "
            f"one process; cells {own[name]:.2f} s, {own[name] / own[alone]:.2f} x as long as alone"
        )
    ratio = times[cluster].best / times[processes].best
    print(f"{cluster} / {processes}: {ratio:.2f} (less is better)")


# ------------------------------------------------------------------ killed and started again
def killed(file: Path) -> None:
    """Kill a study of two processes at a third of its cells, and start it again."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        where = "--jobs", str(WORKERS)
        running = subprocess.Popen(command(file, out, *where), stderr=subprocess.PIPE)
        while len(list(out.glob("cells/[!.]*.json"))) < CELLS // 3:
            assert running.poll() is None, "done before it could be killed"
            time.sleep(0.01)
        running.kill()
        assert b"leaked" not in running.communicate()[1]
        kept = list(out.glob("cells/[!.]*.json"))
        written = {file: file.stat().st_mtime_ns for file in kept}
        again = table(file, out, *where)
        assert {file: file.stat().st_mtime_ns for file in kept} == written
        same(again, table(file, Path(folder) / "other"))
    print(
        f"killed with {len(kept)} of {CELLS} cells, started again: {len(kept)} kept, "
        f"{CELLS - len(kept)} computed, the same table"
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
    counts = ", ".join(f"{count / 1e6:.0f}" for count in moved)
    report(f"Dask, least of three ({counts} MB)", min(moved), model)


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
    options = parser.parse_args()
    import distributed

    print(machine(), "load", load())
    with (
        tempfile.TemporaryDirectory() as folder,
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        files = Path(folder)
        file = described(files, options.quick)
        table(described(files, True), files / "out")  # compiled before the clock starts
        speed(file, cluster.scheduler_address, 1 if options.quick else options.rounds)
        travel(options.quick, client)
        killed(file)


if __name__ == "__main__":
    main()
