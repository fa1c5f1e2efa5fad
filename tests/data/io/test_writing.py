"""Files and folders are the old ones or the new ones, whatever happens in between."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

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
def test_a_fit_that_is_killed_leaves_files_that_are_whole(tmp_path: Path) -> None:
    """Old or new, each of them; all are old until the first is renamed."""
    old, new, folder = tmp_path / "old", tmp_path / "new", tmp_path / "models"
    for target, seed in ((old, 2), (new, 0), (folder, 2)):  # the new one has no test models
        fit_models(target, seed)
    (folder / "notes.txt").write_text("mine")
    old_files, new_files = read_contents(old), read_contents(new)
    n_old = 0
    for _ in iter_kill_steps(folder, partial(fit_models, folder, 0)):
        files = read_contents(folder)
        assert files.pop("notes.txt") == b"mine"
        for name, content in files.items():
            assert content in (old_files.get(name), new_files.get(name))
        n_old += files == old_files
        fit_models(folder, 0)
        assert read_contents(folder) == {**new_files, "notes.txt": b"mine"}
    assert n_old > 1


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_a_new_folder_is_whole_or_does_not_exist(tmp_path: Path) -> None:
    new, parent = tmp_path / "new", tmp_path / "parent"
    fit_models(new, 2)
    parent.mkdir()
    outcomes = set()
    for _ in iter_kill_steps(parent, partial(fit_models, parent / "models", 2)):
        outcomes.add((parent / "models").exists())
        if (parent / "models").exists():
            assert read_contents(parent / "models") == read_contents(new)
    assert False in outcomes


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


def test_ctrl_c_waits_until_all_files_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def replace_interrupted(*paths: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        replace(*paths)

    monkeypatch.setattr(os, "replace", replace_interrupted)
    files = {tmp_path / name: name for name in ("a.txt", "b.txt")}
    with pytest.raises(KeyboardInterrupt):
        io.write_all_atomic(files)
    assert {x: x.read_text() for x in tmp_path.iterdir()} == files


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
