"""Ctrl-C at several moments of every long command, sent to real processes.

A command ends soon, with exit status 130 and at most a few lines, with the best so far or
nothing; files are whole, and rows that were finished are kept. Each command would take minutes.
"""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import mmdp
from tests.processes import TIMEOUT, run_process, wait_for_cpu

MOMENTS = (0.1, 0.5, 1.5, 3.0, 6.0)  # CPU seconds after the program was loaded
PROGRAM = "from mmdp.cli import main; print('loaded', flush=True); main()"

COMMANDS: dict[str, list[str]] = {
    "solve": ["solve", "data", "-T", "30", "--n-init", "100000", "--out", "policy.csv"],
    "certify": ["solve", "data", "-T", "30", "--certify-time", "600", "--out", "policy.csv"],
    "exact": ["solve", "data", "-T", "30", "-m", "exact"],
    "milp": ["solve", "small", "-T", "12", "-m", "milp"],
    "pomcp": ["solve", "data", "-T", "30", "-m", "pomcp", "--n-episodes", "2000"],
    "bound": ["bound", "data", "-T", "30", "--time-limit", "600"],
    "compare": [
        "study",
        "data",
        "-T",
        "30",
        "-m",
        "wsu,cadp,pomcp",
        "--n-episodes",
        "2000",
        "--out",
        "table.csv",
    ],
    "frontier": ["study", "data", "--alphas", "0.1", "-T", "30", "--certify-time", "600"],
    "report": ["report", "data", "-T", "30", "--certify-time", "600", "--out", "page.html"],
    "sample": [
        "report",
        "data",
        "-T",
        "30",
        "--sample-size",
        "--methods",
        "wsu",
        "-o",
        "page.html",
    ],
    "paper": ["paper", "--full", "--no-cache", "--out", "out"],
    "study": ["study", "study.toml", "--out", "cells"],
    "fit": ["fit", "log.csv", "--n-models", "30000", "--out", "models"],
}
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads CPU times from /proc")
STUDY = """
horizons = [30]
methods = ["wsu", {method = "cadp", n_init = 100000}]
models.river.data = "data"
"""


def write_inputs(folder: Path) -> Path:
    """What the commands read."""
    mmdp.save(mmdp.domains.riverswim(n_train=60, n_test=20).train, folder / "data")
    mmdp.save(mmdp.domains.riverswim(n_train=8, n_test=2).train, folder / "small")
    steps = np.random.default_rng(0).integers(0, [40, 4, 40], size=(4000, 3))
    lines = [f"{s},{a},{next_state},{s}" for s, a, next_state in steps.tolist()]
    (folder / "log.csv").write_text("\n".join(["state,action,next_state,reward", *lines, ""]))
    (folder / "study.toml").write_text(STUDY)
    return folder


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("place"))


def run_interrupted(arguments: list[str], workdir: Path, moment: float) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    with run_process(sys.executable, "-c", PROGRAM, *arguments, cwd=workdir) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
        wait_for_cpu(process, moment)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, out, err


def check_interrupt(name: str, workdir: Path, moment: float) -> None:
    for remaining_files in ("policy.csv", "policy.certificate.json", "table.csv", "page.html"):
        (workdir / remaining_files).unlink(missing_ok=True)
    code, out, err = run_interrupted(COMMANDS[name], workdir, moment)
    assert code == 130, out + err
    assert "Traceback" not in err
    assert sum(line.startswith("mmdp: ") for line in err.splitlines()) <= 1
    assert [x.name for x in workdir.iterdir() if x.name.startswith(".")] == []
    if "INTERRUPTED" in out:
        assert name in ("solve", "certify", "exact", "milp", "pomcp")
    if (workdir / "policy.csv").exists():
        mmdp.load_policy(workdir / "policy.csv", mmdp.load(workdir / "data"))
    if "kept" in err and name == "compare":
        rows = (workdir / "table.csv").read_text().splitlines()[1:]
        assert [row.split(",")[0] for row in rows] == ["wsu", "cadp", "pomcp"][: len(rows)]
        assert rows
    if (workdir / "cells").exists():  # the first cell is done in a moment, the second never
        table = (workdir / "cells" / "study.csv").read_text()
        shutil.rmtree(workdir / "cells")
        assert (table.count(",COMPLETED,"), table.count(",INTERRUPTED,")) == (1, 1)
    assert not (workdir / "page.html").exists()
    assert not (workdir / "models").exists()


@on_linux
@pytest.mark.parametrize("name", ["pomcp", "report"])
def test_ctrl_c_ends_a_command(name: str, workdir: Path) -> None:
    check_interrupt(name, workdir, 0.5)


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_every_command_at_any_moment(name: str, workdir: Path, moment: float) -> None:
    check_interrupt(name, workdir, moment)


LOOP = """
import mmdp, sys
model = mmdp.load("data")
for n in range(12):
    said = []
    def begun(progress):
        said or print("begun", flush=True)
        said.append(1)
    solution = mmdp.solve(model, 30, mmdp.methods.CADP(n_init=100_000), callback=begun)
    print(solution.status.name, flush=True)
"""


def test_pressing_twice_ends_a_loop_of_solves(workdir: Path) -> None:
    with run_process(sys.executable, "-c", LOOP, cwd=workdir) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "INTERRUPTED\n"
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    assert out == ""
    assert err.rstrip().endswith("RepeatedInterrupt")  # a KeyboardInterrupt
