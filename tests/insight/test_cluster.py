"""Studies on a real Dask cluster of worker processes: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pandas.testing import assert_frame_equal

import mmdp
from mmdp.insight.study import StudyProgress, StudyRunner, compute_cell, make_cells
from tests.faults import (
    N_FIRST_CELLS,
    ROOT,
    LoggingMethod,
    drop_times,
    kill_and_restart,
    make_small_model,
)

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")

CALM = {
    "distributed.scheduler.allowed-failures": 0,  # a cell is lost with its first worker
    "distributed.worker.memory.monitor-interval": "20ms",
    "distributed.comm.timeouts.connect": "600s",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers of one thread with little memory, which are started again when they die."""
    with (
        dask.config.set(CALM),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="600MB", dashboard_address=None
        ) as local_cluster,
    ):
        yield local_cluster


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster) as dask_client:
        dask_client.wait_for_workers(2)
        yield dask_client


def call_at(count: int, action: Callable[[], object]) -> Callable[[StudyProgress], None]:
    """A callback that acts when so many cells are done."""

    def callback(progress: StudyProgress) -> None:
        if progress.n_done == count:
            action()

    return callback


def test_a_cluster_finds_the_same_and_errors_are_rows(client: Any, tmp_path: Path) -> None:
    run_study = partial(
        mmdp.study,
        {"x": make_small_model(1), "y": partial(make_small_model, 2)},
        [2, 3],
        test_model=make_small_model(3),
    )
    methods = ["wsu", "cadp", LoggingMethod(fault="raise")]
    cluster_table = run_study(methods, cache_dir=tmp_path, executor=client.get_executor())
    local_table = run_study(methods)
    assert cluster_table["error"].fillna("").tolist() == local_table["error"].fillna("").tolist()
    assert_frame_equal(drop_times(cluster_table), drop_times(local_table), rtol=1e-12)
    assert local_table["error"].dropna().tolist() == ["RuntimeError: as asked"] * 4
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
def test_numpy_is_fully_loaded_before_a_cell_runs(tmp_path: Path, method: str) -> None:
    """``np.ma`` in one thread fails while another one, of Dask's, is about to finish loading it."""
    (cell,) = make_cells(make_small_model(2), 3, method)
    file = tmp_path / "cell"
    file.write_bytes(pickle.dumps((compute_cell, cell, cell.source.models_or_factory)))
    completed = subprocess.run(
        [sys.executable, "-c", COMPUTE, file], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (completed.stdout, completed.stderr) == ("[]\n", "")


def test_a_worker_killed_in_the_middle(client: Any, tmp_path: Path) -> None:
    log, go, saved = tmp_path / "log", tmp_path / "go", dict[Path, bytes]()

    def kill() -> None:
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        saved.update({file: file.read_bytes() for file in (tmp_path / "cells").iterdir()})
        go.touch()

    table = mmdp.study(
        make_small_model(1),
        3,
        LoggingMethod(str(log), go_file=str(go)),
        seeds=range(16),
        cache_dir=tmp_path,
        executor=client.get_executor(),
        callback=call_at(N_FIRST_CELLS, kill),
    )
    assert (table["status"] == "COMPLETED").all()
    assert table["value"].tolist() == pytest.approx(
        [mmdp.solve(make_small_model(1), 3, "wsu").value] * 16
    )
    assert set(log.read_text().split()) == {str(seed) for seed in range(16)}
    assert len(saved) == N_FIRST_CELLS
    # Dask may compute again what the killed worker had delivered: the kept cells stay as they were
    assert {file: file.read_bytes() for file in saved} == saved


@pytest.mark.slow
def test_a_worker_out_of_memory_fails_its_cell_alone(client: Any, tmp_path: Path) -> None:
    good_cells = make_cells(make_small_model(1), 3, LoggingMethod(), seeds=range(8))
    bad_cells = make_cells(make_small_model(1), 3, LoggingMethod(fault="eat"))
    run = StudyRunner(
        [*good_cells[:3], *bad_cells, *good_cells[3:]],
        cache_dir=tmp_path,
        executor=client.get_executor(),
    )
    status = [row["status"] for row in run.rows]
    assert status == ["COMPLETED"] * 3 + ["FAILED"] + ["COMPLETED"] * 5
    assert "KilledWorker" in run.rows[3]["error"]
    assert len(list((tmp_path / "cells").iterdir())) == 8


def test_a_client_that_is_gone_and_comes_back(cluster: Any, tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    method = LoggingMethod(str(log), go_file=str(go))
    run_study = partial(
        mmdp.study, make_small_model(1), 3, method, seeds=range(12), cache_dir=tmp_path
    )
    with distributed.Client(cluster) as first:
        partial_table = run_study(
            executor=first.get_executor(), callback=call_at(N_FIRST_CELLS, first.close)
        )
    go.touch()
    saved = {file: file.read_bytes() for file in (tmp_path / "cells").iterdir()}
    is_completed = partial_table["status"] == "COMPLETED"
    assert N_FIRST_CELLS <= len(saved) == is_completed.sum() < 12
    assert (partial_table["status"][~is_completed] == "FAILED").all()
    with distributed.Client(cluster) as second:
        full_table = run_study(executor=second.get_executor())
    assert (full_table["status"] == "COMPLETED").all()
    assert_frame_equal(
        full_table[is_completed].astype(partial_table.dtypes), partial_table[is_completed]
    )
    check_once(saved, log)


SCRIPT = """
import sys
import distributed, mmdp
from tests.faults import LoggingMethod, make_small_model

if __name__ == "__main__":
    out, go, address, log = sys.argv[1:]
    with distributed.Client(address) as client:
        mmdp.study(make_small_model(1), 3, LoggingMethod(log, go_file=go), seeds=range(12),
                   cache_dir=out, executor=client.get_executor())
"""


@pytest.mark.slow
def test_a_client_killed_at_a_third(cluster: Any, tmp_path: Path) -> None:
    script, out, log = tmp_path / "script.py", tmp_path / "out", tmp_path / "log"
    script.write_text(SCRIPT)
    address = cluster.scheduler_address
    before = kill_and_restart(script, out, tmp_path / "go", address, log)
    assert len(list(out.glob("cells/[!.]*.json"))) == 12
    check_once(before, log)


def check_once(saved: dict[Path, bytes], log: Path) -> None:
    """What was kept before is as it was, and was computed once."""
    times = Counter(log.read_text().split())
    for file, content in saved.items():
        assert file.read_bytes() == content
        assert times[str(json.loads(content)["inputs"]["seed"])] == 1
