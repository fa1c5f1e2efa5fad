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
from tests.processes import PATIENCE, running, wait_for_cpu

MOMENTS = (0.1, 0.5, 1.5, 3.0, 6.0)  # CPU seconds after the program was loaded
PROGRAM = "from mmdp.cli import main; print('loaded', flush=True); main()"

COMMANDS: dict[str, list[str]] = {
    "solve": ["solve", "data", "-T", "30", "--starts", "100000", "--out", "policy.csv"],
    "certify": ["solve", "data", "-T", "30", "--certify", "600", "--out", "policy.csv"],
    "exact": ["solve", "data", "-T", "30", "-m", "exact"],
    "milp": ["solve", "small", "-T", "12", "-m", "milp"],
    "pomcp": ["solve", "data", "-T", "30", "-m", "pomcp", "--episodes", "2000"],
    "bound": ["bound", "data", "-T", "30", "--time-limit", "600"],
    "compare": [
        "compare", "data", "-T", "30", "-m", "wsu,cadp,pomcp", "--episodes", "2000",
        "--out", "table.csv",
    ],
    "frontier": ["frontier", "data", "-T", "30", "--certify", "600", "--out", "table.csv"],
    "report": ["report", "data", "-T", "30", "--certify", "600", "--out", "page.html"],
    "enough": ["report", "data", "-T", "30", "--enough", "--methods", "exact", "-o", "page.html"],
    "paper": ["paper", "--full", "--fresh", "--out", "out"],
    "study": ["study", "study.toml", "--out", "cells"],
    "fit": ["fit", "log.csv", "--models", "30000", "--out", "models"],
}  # fmt: skip
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads CPU times from /proc")
STUDY = """
horizons = [30]
methods = ["wsu", {method = "cadp", starts = 100000}]
models.river.data = "data"
"""


def prepare(folder: Path) -> Path:
    """What the commands read."""
    mmdp.save(mmdp.domains.riverswim(n_train=60, n_test=20).train, folder / "data")
    mmdp.save(mmdp.domains.riverswim(n_train=8, n_test=2).train, folder / "small")
    steps = np.random.default_rng(0).integers(0, [40, 4, 40], size=(4000, 3))
    lines = [f"{s},{a},{after},{s}" for s, a, after in steps.tolist()]
    (folder / "log.csv").write_text("\n".join(["state,action,next_state,reward", *lines, ""]))
    (folder / "study.toml").write_text(STUDY)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("place"))


def interrupted(arguments: list[str], place: Path, moment: float) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    with running(sys.executable, "-c", PROGRAM, *arguments, cwd=place) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
        wait_for_cpu(process, moment)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def check(name: str, place: Path, moment: float) -> None:
    for left in ("policy.csv", "policy.certificate.json", "table.csv", "page.html"):
        (place / left).unlink(missing_ok=True)
    code, out, err = interrupted(COMMANDS[name], place, moment)
    assert code == 130, out + err
    assert "Traceback" not in err
    assert sum(line.startswith("mmdp: ") for line in err.splitlines()) <= 1
    assert [x.name for x in place.iterdir() if x.name.startswith(".")] == []
    if "INTERRUPTED" in out:
        assert name in ("solve", "certify", "exact", "milp", "pomcp")
    if (place / "policy.csv").exists():
        mmdp.load_policy(place / "policy.csv", mmdp.load(place / "data"))
    if "kept" in err and name == "compare":
        rows = (place / "table.csv").read_text().splitlines()[1:]
        assert [row.split(",")[0] for row in rows] == ["wsu", "cadp", "pomcp"][: len(rows)]
        assert rows
    if (place / "cells").exists():  # the first cell is done in a moment, the second never
        table = (place / "cells" / "study.csv").read_text()
        shutil.rmtree(place / "cells")
        assert (table.count(",COMPLETED,"), table.count(",INTERRUPTED,")) == (1, 1)
    assert not (place / "page.html").exists()
    assert not (place / "models").exists()


@on_linux
@pytest.mark.parametrize("name", ["pomcp", "report"])
def test_ctrl_c_ends_a_command(name: str, place: Path) -> None:
    check(name, place, 1.5)


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_every_command_at_any_moment(name: str, place: Path, moment: float) -> None:
    check(name, place, moment)


LOOP = """
import mmdp, sys
model = mmdp.load("data")
for n in range(12):
    said = []
    def begun(progress):
        said or print("begun", flush=True)
        said.append(1)
    solution = mmdp.solve(model, 30, mmdp.CADP(starts=100_000), callback=begun)
    print(solution.status.name, flush=True)
"""


def test_pressing_twice_ends_a_loop_of_solves(place: Path) -> None:
    with running(sys.executable, "-c", LOOP, cwd=place) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "INTERRUPTED\n"
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert out == ""
    assert err.rstrip().endswith("KeyboardInterrupt")
