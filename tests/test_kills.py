"""Processes that are killed at any moment, and disks that are full: old or new, never both.

Each command is run as a user would, 50 times, and killed (kill -9) after some of the CPU time that
it needs. Its files must then be those of before or those of a whole run, as mmdp and as ``cat``
sees them, and after the next run nothing else may be left.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import mmdp
from tests.cli.calls import LOG, run_alone
from tests.processes import running, wait_for_cpu

KILLS = 50
Files = dict[str, bytes]


def complete(*arguments: object) -> float:
    """Run to the end; the CPU seconds that it took."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run_alone(*arguments)
    assert done.code == 0, done.err
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime - began.ru_utime + ended.ru_stime - began.ru_stime


def shown(place: Path) -> Files:
    """The files that a user sees."""
    files = [place] if place.is_file() else sorted(place.rglob("*")) if place.is_dir() else []
    hidden = [x for x in files if any(y.startswith(".") for y in x.relative_to(place).parts)]
    return {
        x.relative_to(place).as_posix(): x.read_bytes()
        for x in files
        if x.is_file() and x not in hidden
    }


def left(folder: Path) -> list[str]:
    return [x.name for x in folder.rglob(".*")]


@dataclass(frozen=True)
class Command:
    """A command that writes: its arguments for a seed and a place, and where to look."""

    name: str
    arguments: Callable[[int, Path], list[object]]
    place: str
    steady: Callable[[Files], Files] = lambda files: files  # the files that belong together


def fit(seed: int, folder: Path) -> list[object]:
    few = ["--models", 60, "--test-models", 30 * seed, "--seed", seed]  # seed 0: no test models
    return ["fit", folder / "log.csv", "--out", folder / "models", "--overwrite", *few]


def solve(seed: int, folder: Path) -> list[object]:
    horizon = 300 + 100 * seed
    return ["solve", folder / "data", "-T", horizon, "-m", "wsu", "-o", folder / "policy.csv"]


def domain(seed: int, folder: Path) -> list[object]:
    few = ["--models", 40, "--test-models", 40, "--seed", seed]
    return ["domain", "riverswim", "--out", folder / "models", *few]


def paper(seed: int, folder: Path) -> list[object]:
    return ["paper", "--domain", "RS", "--seed", seed, "--out", folder / "out"]


def without_cells(files: Files) -> Files:
    """The page and its tables; cells are kept one by one, and make later runs the same."""
    return {name: content for name, content in files.items() if not name.startswith("cells/")}


COMMANDS = (
    Command("fit", fit, "models"), Command("solve", solve, "policy.csv"),
    Command("domain", domain, "models"), Command("paper", paper, "out", without_cells),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log.csv").write_text(LOG)
    rng = np.random.default_rng(0)
    rows, rewards = rng.dirichlet(np.ones(9), size=(40, 9, 3)), rng.normal(size=(40, 9, 3))
    mmdp.save(mmdp.MMDP(rows, rewards), tmp_path / "data")
    return tmp_path


def killed(arguments: list[object], moment: float) -> bool:
    """Kill the process after so many CPU seconds; False if it was done by then."""
    with running(sys.executable, "-m", "mmdp", *arguments, stdout=subprocess.DEVNULL) as process:
        wait_for_cpu(process, moment)
    return process.returncode == -9


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_killed_command_leaves_old_or_new_files(command: Command, folder: Path) -> None:
    place = folder / command.place
    complete(*command.arguments(0, folder))
    new = command.steady(shown(place))
    complete(*command.arguments(1, folder))
    old = command.steady(shown(place))
    before = folder / "before"
    (shutil.copytree if place.is_dir() else shutil.copy)(place, before)
    seconds = complete(*command.arguments(0, folder))
    rng, done, seen = np.random.default_rng(1), 0, {"old": 0, "new": 0}
    while done < KILLS:
        if place.is_dir():
            shutil.rmtree(place)
            shutil.copytree(before, place)
        else:
            shutil.copy(before, place)
        moment = seconds * (1 - 0.7 * rng.random() ** 2)  # files are written at the end
        if not killed(command.arguments(0, folder), moment):
            seconds *= 0.97
            continue
        done += 1
        found = command.steady(shown(place))
        assert found in (old, new), f"a mixture after {moment:.3f} s of {seconds:.3f} s"
        seen["new" if found == new else "old"] += 1
        if place.is_dir() and command.name != "paper":
            mmdp.load(place)
    complete(*command.arguments(0, folder))
    assert command.steady(shown(place)) == new
    assert left(folder) == []
    print(f"{command.name}: killed {KILLS} times, {seen['old']} old, {seen['new']} new")


# ---------------------------------------------------------------------- a full disk
@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can make a small file system")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=200k", "tmpfs", place], capture_output=True
    )
    if made.returncode:
        pytest.skip("a small file system cannot be made here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("name", ["fit", "domain", "solve"])
def test_a_full_disk_leaves_the_old_files(small_disk: Path, folder: Path, name: str) -> None:
    """Small files fit, the larger ones that shall replace them do not."""
    out = small_disk / ("policy.csv" if name == "solve" else "models")
    arguments: dict[str, Callable[[int], list[object]]] = {
        "fit": lambda n: [
            "fit",
            folder / "log.csv",
            "--out",
            out,
            "--overwrite",
            "--models",
            9 * n,
        ],
        "domain": lambda n: [
            "domain",
            "riverswim",
            "--out",
            out,
            "--models",
            n,
            "--test-models",
            n,
        ],
        "solve": lambda n: ["solve", folder / "data", "-T", 9 * n, "-m", "wsu", "-o", out],
    }
    complete(*arguments[name](1))
    before = shown(out)
    done = run_alone(*arguments[name](1000))
    # the policy that was found is printed, or put elsewhere
    assert done.code == (1 if name == "solve" else 2)
    assert done.err.count("\n") == (3 if name == "solve" else 1), done.err
    assert "No space left on device" in done.err
    assert shown(out) == before
    assert left(small_disk) == []
