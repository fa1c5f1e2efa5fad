"""Studies on a real Dask cluster of worker processes: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pandas.testing import assert_frame_equal

import mmdp
from mmdp import workers
from mmdp.study import Run, StudyProgress, cells_of, compute
from tests.noted import FIRST, ROOT, Noted, killed_and_started_again, small, steady
from tests.processes import PATIENCE

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")

CALM = {
    "distributed.scheduler.allowed-failures": 0,  # a cell is lost with its first worker
    "distributed.worker.memory.monitor-interval": "20ms",
    "distributed.comm.timeouts.connect": "10s",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers of one thread with little memory, which are started again when they die."""
    with (
        dask.config.set(CALM),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="600MB", dashboard_address=None
        ) as found,
    ):
        yield found


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster) as found:
        found.wait_for_workers(2)
        yield found


def at(count: int, act: Callable[[], object]) -> Callable[[StudyProgress], None]:
    """A callback that acts when so many cells are done."""

    def callback(progress: StudyProgress) -> None:
        if progress.done == count:
            act()

    return callback


def test_a_cluster_finds_the_same_and_errors_are_rows(client: Any, tmp_path: Path) -> None:
    ask = partial(mmdp.study, {"x": small(1), "y": partial(small, 2)}, [2, 3], test=small(3))
    methods = ["wsu", "cadp", Noted(harm="raise")]
    spread = ask(methods, out=tmp_path, executor=client.get_executor())
    here = ask(methods)
    assert spread["error"].tolist() == here["error"].tolist()
    assert_frame_equal(steady(spread), steady(here), rtol=1e-12)
    assert here["error"].dropna().tolist() == ["RuntimeError: as asked"] * 4
    assert not client.futures  # the models were released


COMPUTE = """
import pickle, sys
compute, cell, given = pickle.load(open(sys.argv[1], "rb"))
before = set(sys.modules)
row = compute(cell, given)
assert "error" not in row, row
print([x for x in set(sys.modules) - before if x.startswith("numpy.") and x.count(".") == 1])
"""


@pytest.mark.parametrize("method", ["cadp", "gradient"])
def test_numpy_is_whole_before_a_cell_is_computed(tmp_path: Path, method: str) -> None:
    """``np.ma`` in one thread fails while another one, of Dask's, is about to finish loading it."""
    (cell,) = cells_of(small(2), 3, method)
    file = tmp_path / "cell"
    file.write_bytes(pickle.dumps((compute, cell, cell.source.given)))
    done = subprocess.run(
        [sys.executable, "-c", COMPUTE, file], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_worker_killed_in_the_middle(client: Any, tmp_path: Path) -> None:
    log, go, kept = tmp_path / "log", tmp_path / "go", dict[Path, bytes]()

    def kill() -> None:
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        kept.update({file: file.read_bytes() for file in (tmp_path / "cells").iterdir()})
        go.touch()

    spread = mmdp.study(
        small(1), 3, Noted(str(log), go=str(go)), seeds=range(16), out=tmp_path,
        executor=client.get_executor(), callback=at(FIRST, kill),
    )  # fmt: skip
    assert (spread["status"] == "COMPLETED").all()
    assert spread["value"].tolist() == pytest.approx([mmdp.solve(small(1), 3, "wsu").value] * 16)
    assert set(log.read_text().split()) == {str(seed) for seed in range(16)}
    assert len(kept) == FIRST
    check_once(kept, log)  # Dask computes again what the killed worker had not delivered


def test_a_worker_out_of_memory_fails_its_cell_alone(client: Any, tmp_path: Path) -> None:
    good = cells_of(small(1), 3, Noted(), seeds=range(8))
    bad = cells_of(small(1), 3, Noted(harm="eat"))
    run = Run([*good[:3], *bad, *good[3:]], out=tmp_path, executor=client.get_executor())
    status = [row["status"] for row in run.rows]
    assert status == ["COMPLETED"] * 3 + ["FAILED"] + ["COMPLETED"] * 5
    assert "KilledWorker" in run.rows[3]["error"]
    assert len(list((tmp_path / "cells").iterdir())) == 8


def test_a_client_that_is_gone_and_comes_back(cluster: Any, tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    method = Noted(str(log), go=str(go))
    ask = partial(mmdp.study, small(1), 3, method, seeds=range(12), out=tmp_path)
    with distributed.Client(cluster) as first:
        cut = ask(executor=first.get_executor(), callback=at(FIRST, first.close))
    go.touch()
    kept = {file: file.read_bytes() for file in (tmp_path / "cells").iterdir()}
    done = cut["status"] == "COMPLETED"
    assert FIRST <= len(kept) == done.sum() < 12
    assert (cut["status"][~done] == "FAILED").all()
    with distributed.Client(cluster) as second:
        whole = ask(executor=second.get_executor())
    assert (whole["status"] == "COMPLETED").all()
    assert_frame_equal(whole[done].astype(cut.dtypes), cut[done])
    check_once(kept, log)


SCRIPT = """
import sys
import distributed, mmdp
from tests.noted import Noted, small

if __name__ == "__main__":
    out, go, address, log = sys.argv[1:]
    with distributed.Client(address) as client:
        mmdp.study(small(1), 3, Noted(log, go=go), seeds=range(12), out=out,
                   executor=client.get_executor())
"""


@pytest.mark.slow
def test_a_client_killed_at_a_third(cluster: Any, tmp_path: Path) -> None:
    script, out, log = tmp_path / "script.py", tmp_path / "out", tmp_path / "log"
    script.write_text(SCRIPT)
    address = cluster.scheduler_address
    before = killed_and_started_again(script, out, tmp_path / "go", address, log)
    assert len(list(out.glob("cells/[!.]*.json"))) == 12
    check_once(before, log)


def check_once(kept: dict[Path, bytes], log: Path) -> None:
    """What was kept before is as it was, and was computed once."""
    times = Counter(log.read_text().split())
    for file, content in kept.items():
        assert file.read_bytes() == content
        assert times[str(json.loads(content)["question"]["seed"])] == 1


def test_letting_go_waits_for_nobody() -> None:
    """A worker lets go in the loop that answers what another thread is fetching."""
    fetching, fetched = threading.Event(), threading.Event()

    def fetch() -> str:
        fetching.set()
        assert fetched.wait(120)
        return "thing"

    with ThreadPoolExecutor(2) as threads:
        thing = threads.submit(workers.kept, "name", fetch)
        assert fetching.wait(PATIENCE)
        threads.submit(workers.forget).result(60)
        fetched.set()
        assert thing.result(PATIENCE) == "thing"
    workers.forget()
