"""Processes that are killed at any moment, and disks that are full: every file is whole.

Each command is run as a user would, 50 times, and killed (kill -9) after some of the CPU time that
it needs. Each of its files must then be that of before or that of a whole run, and the next run
puts all of them right.
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
from tests.cli.calls import LOG, run_in_process
from tests.processes import run_process, wait_for_cpu

KILLS = 50
Files = dict[str, bytes]


def run_to_end(*arguments: object) -> float:
    """Run to the end; the CPU seconds that it took."""
    cpu_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = run_in_process(*arguments)
    assert result.code == 0, result.err
    cpu_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return cpu_after.ru_utime - cpu_before.ru_utime + cpu_after.ru_stime - cpu_before.ru_stime


def read_visible_files(path: Path) -> Files:
    """The files that a user sees."""
    files = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
    hidden = [x for x in files if any(y.startswith(".") for y in x.relative_to(path).parts)]
    return {
        x.relative_to(path).as_posix(): x.read_bytes()
        for x in files
        if x.is_file() and x not in hidden
    }


def list_temporary_files(folder: Path) -> list[str]:
    return [x.name for x in folder.rglob(".*")]


@dataclass(frozen=True)
class Command:
    """A command that writes: its arguments for a seed and a place, and where to look."""

    name: str
    arguments: Callable[[int, Path], list[object]]
    output: str
    select_files: Callable[[Files], Files] = lambda files: files  # the files that belong together


def fit(seed: int, folder: Path) -> list[object]:
    options = [
        "--n-models",
        60,
        "--n-test-models",
        30 * seed,
        "--seed",
        seed,
    ]  # seed 0: no test models
    return ["fit", folder / "log.csv", "--out", folder / "models", "--overwrite", *options]


def solve(seed: int, folder: Path) -> list[object]:
    horizon = 300 + 100 * seed
    return ["solve", folder / "data", "-T", horizon, "-m", "wsu", "-o", folder / "policy.csv"]


def domain(seed: int, folder: Path) -> list[object]:
    options = ["--n-models", 40, "--n-test-models", 40, "--seed", seed]
    return ["domain", "riverswim", "--out", folder / "models", *options]


def paper(seed: int, folder: Path) -> list[object]:
    return ["paper", "--domain", "RS", "--seed", seed, "--out", folder / "out"]


def without_cells(files: Files) -> Files:
    """The page and its tables; cells are kept one by one, and make later runs the same."""
    return {name: content for name, content in files.items() if not name.startswith("cells/")}


COMMANDS = (
    Command("fit", fit, "models"),
    Command("solve", solve, "policy.csv"),
    Command("domain", domain, "models"),
    Command("paper", paper, "out", without_cells),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log.csv").write_text(LOG)
    rng = np.random.default_rng(0)
    rows, rewards = rng.dirichlet(np.ones(9), size=(40, 9, 3)), rng.normal(size=(40, 9, 3))
    mmdp.save(mmdp.MMDP(rows, rewards), tmp_path / "data")
    return tmp_path


def run_and_kill(arguments: list[object], cpu_limit: float) -> bool:
    """Kill the process after so many CPU seconds; False if it was done by then."""
    with run_process(
        sys.executable, "-m", "mmdp", *arguments, stdout=subprocess.DEVNULL
    ) as process:
        wait_for_cpu(process, cpu_limit)
    return process.returncode == -9


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_killed_command_leaves_whole_files(command: Command, folder: Path) -> None:
    path = folder / command.output
    run_to_end(*command.arguments(0, folder))
    new = command.select_files(read_visible_files(path))
    run_to_end(*command.arguments(1, folder))
    old = command.select_files(read_visible_files(path))
    expected_folder = folder / "before"
    (shutil.copytree if path.is_dir() else shutil.copy)(path, expected_folder)
    seconds = run_to_end(*command.arguments(0, folder))
    rng, is_finished, outcomes = (
        np.random.default_rng(1),
        0,
        dict.fromkeys(["old", "new", "both"], 0),
    )
    while is_finished < KILLS:
        if path.is_dir():
            shutil.rmtree(path)
            shutil.copytree(expected_folder, path)
        else:
            shutil.copy(expected_folder, path)
        moment = seconds * (1 - 0.7 * rng.random() ** 2)  # files are written at the end
        if not run_and_kill(command.arguments(0, folder), moment):
            seconds *= 0.97
            continue
        is_finished += 1
        files = command.select_files(read_visible_files(path))
        for name, content in files.items():
            assert content in (old.get(name), new.get(name)), f"{name} after {moment:.3f} s"
        outcomes["old" if files == old else "new" if files == new else "both"] += 1
    run_to_end(*command.arguments(0, folder))
    assert command.select_files(read_visible_files(path)) == new
    assert outcomes["both"] <= KILLS / 10  # the moment between two renames is short
    print(f"{command.name}: killed {KILLS} times, {outcomes}")


# ---------------------------------------------------------------------- a full disk
@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can make a small file system")
    image = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=200k", "tmpfs", mount_point], capture_output=True
    )
    if image.returncode:
        pytest.skip("a small file system cannot be made here")
    yield mount_point
    subprocess.run(["umount", mount_point], check=True)


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
            "--n-models",
            9 * n,
        ],
        "domain": lambda n: [
            "domain",
            "riverswim",
            "--out",
            out,
            "--n-models",
            n,
            "--n-test-models",
            n,
        ],
        "solve": lambda n: ["solve", folder / "data", "-T", 9 * n, "-m", "wsu", "-o", out],
    }
    run_to_end(*arguments[name](1))
    files_before = read_visible_files(out)
    result = run_in_process(*arguments[name](1000))
    # the policy that was found is printed, or put elsewhere
    assert result.code == (1 if name == "solve" else 2)
    assert result.err.count("\n") == 1, result.err
    assert ("it is printed instead" in result.err) == (name == "solve")
    assert "No space left on device" in result.err
    assert read_visible_files(out) == files_before
    assert list_temporary_files(small_disk) == []
