"""Files and folders are the old ones or the new ones, whatever happens in between."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.data import io, posterior
from mmdp.data.io import writing

LOG = {
    "state": [0, 1, 0, 1],
    "action": [0, 0, 1, 1],
    "next_state": [1, 0, 0, 1],
    "reward": [1.0, 0.0, 2.0, 3.0],
}


def fit_models(folder: Path, seed: int) -> None:
    posterior.fit_folder(LOG, folder, n_models=3, n_test_models=2 * seed, seed=seed, overwrite=True)


def read_contents(folder: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in folder.iterdir() if not x.name.startswith(".")}


def list_hidden(folder: Path) -> list[str]:
    return [x.name for x in folder.iterdir() if x.name.startswith(".")]


def run_until(max_changes: int, function: Callable[[], object]) -> None:
    """Run, but die before the step-th change of names."""
    n_changes = 0

    def count_calls(function: Any) -> Any:
        def call_counted(*arguments: Any, **options: Any) -> Any:
            nonlocal n_changes
            n_changes += 1
            if n_changes > max_changes:
                os._exit(9)
            return function(*arguments, **options)

        return call_counted

    for name in ("replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, count_calls(getattr(os, name)))
    function()


def is_killed_at(step: int, function: Callable[[], object]) -> bool:
    """Whether a process that makes the call dies before the step-th change of names."""
    # forked from a fresh process: this one may have threads of jax, which a fork breaks
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["pytest", "mmdp.posterior"])
    child = server.Process(target=run_until, args=(step, function))
    child.start()
    child.join()
    assert child.exitcode in (0, 9)
    return child.exitcode == 9


def iter_kill_steps(folder: Path, function: Callable[[], object]) -> Iterator[int]:
    """Let a process die at every step of the changes, one after the other."""
    backup = folder.parent / "before"
    shutil.copytree(folder, backup)
    for step in range(200):
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        if not is_killed_at(step, function):
            return
        yield step
    raise AssertionError("it never came to its end")


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_a_fit_that_is_killed_leaves_the_old_models_or_the_new(tmp_path: Path) -> None:
    old, new, folder = tmp_path / "old", tmp_path / "new", tmp_path / "models"
    for target, seed in ((old, 2), (new, 0), (folder, 2)):  # the new one has no test models
        fit_models(target, seed)
    (folder / "notes.txt").write_text("mine")
    versions = set()
    for step in iter_kill_steps(folder, partial(fit_models, folder, 0)):
        mmdp.load(folder)  # whoever reads first puts in place what was complete
        files = read_contents(folder)
        assert files.pop("notes.txt") == b"mine"
        versions.add("old" if files == read_contents(old) else "new")
        assert files in (read_contents(old), read_contents(new)), f"a mixture at step {step}"
        fit_models(folder, 0)
        assert list_hidden(folder) == []
        assert read_contents(folder) == {**read_contents(new), "notes.txt": b"mine"}
    assert versions == {"old", "new"}


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_several_files_saved_together_are_old_or_new_together(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    old_model = mmdp.MMDP(np.full((2, 2, 1, 2), 0.5), [[1.0], [2.0]], initial=[1, 0], discount=0.5)
    new_model = old_model.replace(discount=0.75, rewards=[[3.0], [4.0]], initial=[0.25, 0.75])
    mmdp.save(old_model, folder)
    loaded_values = set()
    for _ in iter_kill_steps(folder, partial(mmdp.save, new_model, folder)):
        loaded = mmdp.load(folder)
        loaded_values.add((loaded.discount, loaded.initial[0], loaded.rewards[0, 0, 0]))
    assert loaded_values == {(0.5, 1.0, 1.0), (0.75, 0.25, 3.0)}


def test_a_full_disk_keeps_the_old_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit_models(tmp_path, 2)
    old_files = read_contents(tmp_path)
    write_rows = io.folders._write_rows

    def fail_on_test_file(columns: Any, path: Path) -> None:
        if path.name.startswith(".test"):
            path.write_text("idstatefrom,id")
            raise OSError(28, "No space left on device")
        write_rows(columns, path)

    monkeypatch.setattr(io.folders, "_write_rows", fail_on_test_file)
    with pytest.raises(mmdp.InputError, match="No space left on device") as error_info:
        fit_models(tmp_path, 3)
    assert str(error_info.value).startswith(str(tmp_path / "test.csv"))
    assert read_contents(tmp_path) == old_files
    assert list_hidden(tmp_path) == []
    with pytest.raises(mmdp.InputError):
        fit_models(tmp_path / "new", 3)
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------------- leftovers
def make_dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    host = writing._HOST_ID
    dead_pid, live_pid = make_dead_pid(), os.getppid()
    removed_names = [
        f".training-{dead_pid}-{host}00000000.csv",
        f".a-{dead_pid}-{host}00000001.begun",
    ]
    kept_names = [
        f".training-{live_pid}-{host}00000000.csv",
        f".b-{dead_pid}-0000ffff0000.csv",
        ".own-notes",
    ]
    for name in (*removed_names, *kept_names):
        (tmp_path / name).write_text("half")
    stage = tmp_path / f".folder-{dead_pid}-{host}00000002"
    stage.mkdir()
    (stage / "training.csv").write_text("half")
    io.write_atomic(tmp_path / "a.txt", "text")
    assert sorted(x.name for x in tmp_path.iterdir()) == sorted([*kept_names, "a.txt"])
    old = time.time() - 2 * writing._ABANDONED_SECONDS
    os.utime(tmp_path / kept_names[1], (old, old))  # of a process on another machine
    io.write_atomic(tmp_path / "a.txt", "text")
    assert kept_names[1] not in list_hidden(tmp_path)


@pytest.mark.parametrize(
    "journal",
    [
        {"moves": [["../outside.txt", "stolen.txt"]], "stale": []},
        {"moves": [[".x-1-000000000000", "../outside.txt"]], "stale": []},
        {"moves": [], "stale": ["../outside.txt"]},
        {"moves": [], "stale": [".."]},
        {"moves": [1]},
        [],
    ],
)
def test_a_foreign_journal_changes_no_other_folder(tmp_path: Path, journal: Any) -> None:
    outside, folder = tmp_path / "outside.txt", tmp_path / "models"
    outside.write_text("mine")
    mmdp.save(mmdp.MMDP([[[[1.0]]]], [[2.0]]), folder)
    (folder / ".x-1-000000000000").write_text("theirs")
    (folder / ".files-1-000000000000.moves").write_text(json.dumps(journal))
    assert mmdp.load(folder).rewards.tolist() == [[[2.0]]]
    assert outside.read_text() == "mine"
    assert not (folder / "stolen.txt").exists()


def test_loading_changes_nothing_in_a_copied_folder(tmp_path: Path) -> None:
    """A list of renames counts where it was written: not in a folder that was downloaded."""
    folder, copied_dir = tmp_path / "models", tmp_path / "downloaded"
    mmdp.save(mmdp.MMDP([[[[1.0]]]], [[2.0]]), folder)
    (folder / "thesis.txt").write_text("mine")
    staged_path = folder / f".training-1-{writing._HOST_ID}00000000.csv"
    staged_path.write_bytes((folder / "training.csv").read_bytes().replace(b"2.0", b"3.0"))
    journal_path = writing._write_journal(
        {staged_path: folder / "training.csv"}, [folder / "thesis.txt"]
    )
    shutil.copytree(folder, copied_dir)
    old_files = {x.name: x.read_bytes() for x in copied_dir.iterdir()}
    assert journal_path.name in old_files
    assert mmdp.load(copied_dir).rewards.tolist() == [[[2.0]]]
    assert {x.name: x.read_bytes() for x in copied_dir.iterdir()} == old_files
    io.write_atomic(copied_dir / "a.txt", "text")  # nor when something is written there
    assert {**old_files, "a.txt": b"text"} == {x.name: x.read_bytes() for x in copied_dir.iterdir()}
    assert mmdp.load(folder).rewards.tolist() == [[[3.0]]]  # where it was written, it is followed
    assert not (folder / "thesis.txt").exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs another user")
def test_a_journal_of_another_user_is_ignored(tmp_path: Path) -> None:
    mmdp.save(mmdp.MMDP([[[[1.0]]]], [[2.0]]), tmp_path / "models")
    (thesis := tmp_path / "models" / "thesis.txt").write_text("mine")
    staged_path = tmp_path / "models" / f".x-1-{writing._HOST_ID}00000000.csv"
    staged_path.write_text("theirs")
    journal_path = writing._write_journal({staged_path: thesis})
    os.chown(journal_path, 12345, -1)
    mmdp.load(tmp_path / "models")
    assert thesis.read_text() == "mine"
    assert journal_path.exists()


# ---------------------------------------------------------------------- before the work
def test_unwritable_paths_are_refused_early(tmp_path: Path) -> None:
    for good_path in (tmp_path / "a.csv", tmp_path / "new" / "folder", tmp_path):
        assert writing.check_writable(good_path) == good_path
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    for bad_path in (tmp_path / "file" / "a.csv", "/proc/a.csv"):
        with pytest.raises(mmdp.InputError, match="cannot be written"):
            writing.check_writable(bad_path)
    with pytest.raises(mmdp.InputError, match="name to write to is empty"):
        writing.check_writable("")
