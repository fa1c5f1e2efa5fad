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
from mmdp import io, posterior
from mmdp.io import writing

LOG = {"state": [0, 1, 0, 1], "action": [0, 0, 1, 1], "next_state": [1, 0, 0, 1],
       "reward": [1.0, 0.0, 2.0, 3.0]}  # fmt: skip


def fit(folder: Path, seed: int) -> None:
    posterior.fit_folder(LOG, folder, models=3, test_models=2 * seed, seed=seed, overwrite=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in folder.iterdir() if not x.name.startswith(".")}


def hidden(folder: Path) -> list[str]:
    return [x.name for x in folder.iterdir() if x.name.startswith(".")]


def until(step: int, call: Callable[[], object]) -> None:
    """Run, but die before the step-th change of names."""
    done = 0

    def counted(change: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done > step:
                os._exit(9)
            return change(*arguments, **options)

        return run

    for name in ("replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))
    call()


def dies_at(step: int, call: Callable[[], object]) -> bool:
    """Whether a process that makes the call dies before the step-th change of names."""
    # forked from a fresh process: this one may have threads of jax, which a fork breaks
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["pytest", "mmdp.posterior"])
    child = server.Process(target=until, args=(step, call))
    child.start()
    child.join()
    assert child.exitcode in (0, 9)
    return child.exitcode == 9


def in_turn(folder: Path, changes: Callable[[], object]) -> Iterator[int]:
    """Let a process die at every step of the changes, one after the other."""
    before = folder.parent / "before"
    shutil.copytree(folder, before)
    for step in range(200):
        shutil.rmtree(folder)
        shutil.copytree(before, folder)
        if not dies_at(step, changes):
            return
        yield step
    raise AssertionError("it never came to its end")


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_a_fit_that_is_killed_leaves_the_old_models_or_the_new(tmp_path: Path) -> None:
    old, new, folder = tmp_path / "old", tmp_path / "new", tmp_path / "models"
    for target, seed in ((old, 2), (new, 0), (folder, 2)):  # the new one has no test models
        fit(target, seed)
    (folder / "notes.txt").write_text("mine")
    kinds = set()
    for step in in_turn(folder, partial(fit, folder, 0)):
        mmdp.load(folder)  # whoever reads first puts in place what was complete
        found = contents(folder)
        assert found.pop("notes.txt") == b"mine"
        kinds.add("old" if found == contents(old) else "new")
        assert found in (contents(old), contents(new)), f"a mixture at step {step}"
        fit(folder, 0)
        assert hidden(folder) == []
        assert contents(folder) == {**contents(new), "notes.txt": b"mine"}
    assert kinds == {"old", "new"}


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_several_files_saved_together_are_old_or_new_together(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    one = mmdp.MMDP(np.full((2, 2, 1, 2), 0.5), [[1.0], [2.0]], initial=[1, 0], discount=0.5)
    two = one.replace(discount=0.75, rewards=[[3.0], [4.0]], initial=[0.25, 0.75])
    mmdp.save(one, folder)
    seen = set()
    for _ in in_turn(folder, partial(mmdp.save, two, folder)):
        found = mmdp.load(folder)
        seen.add((found.discount, found.initial[0], found.rewards[0, 0, 0]))
    assert seen == {(0.5, 1.0, 1.0), (0.75, 0.25, 3.0)}


def test_a_full_disk_keeps_the_old_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(tmp_path, 2)
    before = contents(tmp_path)
    plain = io.folders._write_rows

    def full(columns: Any, place: Path) -> None:
        if place.name.startswith(".test"):
            place.write_text("idstatefrom,id")
            raise OSError(28, "No space left on device")
        plain(columns, place)

    monkeypatch.setattr(io.folders, "_write_rows", full)
    with pytest.raises(mmdp.InputError, match="No space left on device") as caught:
        fit(tmp_path, 3)
    assert str(caught.value).startswith(str(tmp_path / "test.csv"))
    assert contents(tmp_path) == before
    assert hidden(tmp_path) == []
    with pytest.raises(mmdp.InputError):
        fit(tmp_path / "new", 3)
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------------- leftovers
def dead_process() -> int:
    gone = subprocess.Popen(["true"])
    gone.wait()
    return gone.pid


def test_leftovers_go_with_the_next_run_unless_their_process_lives(tmp_path: Path) -> None:
    host = writing._HOST
    dead, live = dead_process(), os.getppid()
    left = [f".training-{dead}-{host}00000000.csv", f".a-{dead}-{host}00000001.begun"]
    kept = [f".training-{live}-{host}00000000.csv", f".b-{dead}-0000ffff0000.csv", ".own-notes"]
    for name in (*left, *kept):
        (tmp_path / name).write_text("half")
    stage = tmp_path / f".folder-{dead}-{host}00000002"
    stage.mkdir()
    (stage / "training.csv").write_text("half")
    io.write_whole(tmp_path / "a.txt", "text")
    assert sorted(x.name for x in tmp_path.iterdir()) == sorted([*kept, "a.txt"])
    old = time.time() - 2 * writing._FORGOTTEN
    os.utime(tmp_path / kept[1], (old, old))  # of a process on another machine
    io.write_whole(tmp_path / "a.txt", "text")
    assert kept[1] not in hidden(tmp_path)


@pytest.mark.parametrize(
    "known",
    [
        {"moves": [["../outside.txt", "stolen.txt"]], "stale": []},
        {"moves": [[".x-1-000000000000", "../outside.txt"]], "stale": []},
        {"moves": [], "stale": ["../outside.txt"]},
        {"moves": [], "stale": [".."]},
        {"moves": [1]},
        [],
    ],
)
def test_a_list_from_elsewhere_touches_no_other_folder(tmp_path: Path, known: Any) -> None:
    outside, folder = tmp_path / "outside.txt", tmp_path / "models"
    outside.write_text("mine")
    mmdp.save(mmdp.MMDP([[[[1.0]]]], [[2.0]]), folder)
    (folder / ".x-1-000000000000").write_text("theirs")
    (folder / ".files-1-000000000000.moves").write_text(json.dumps(known))
    assert mmdp.load(folder).rewards.tolist() == [[[2.0]]]
    assert outside.read_text() == "mine"
    assert not (folder / "stolen.txt").exists()


def test_reading_changes_nothing_in_a_folder_from_elsewhere(tmp_path: Path) -> None:
    """A list of renames counts where it was written: not in a folder that was downloaded."""
    folder, copied = tmp_path / "models", tmp_path / "downloaded"
    mmdp.save(mmdp.MMDP([[[[1.0]]]], [[2.0]]), folder)
    (folder / "thesis.txt").write_text("mine")
    staged = folder / f".training-1-{writing._HOST}00000000.csv"
    staged.write_bytes((folder / "training.csv").read_bytes().replace(b"2.0", b"3.0"))
    listed = writing._listed({staged: folder / "training.csv"}, [folder / "thesis.txt"])
    shutil.copytree(folder, copied)
    before = {x.name: x.read_bytes() for x in copied.iterdir()}
    assert listed.name in before
    assert mmdp.load(copied).rewards.tolist() == [[[2.0]]]
    assert {x.name: x.read_bytes() for x in copied.iterdir()} == before
    io.write_whole(copied / "a.txt", "text")  # nor when something is written there
    assert {**before, "a.txt": b"text"} == {x.name: x.read_bytes() for x in copied.iterdir()}
    assert mmdp.load(folder).rewards.tolist() == [[[3.0]]]  # where it was written, it is followed
    assert not (folder / "thesis.txt").exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs another user")
def test_a_list_of_another_user_is_not_followed(tmp_path: Path) -> None:
    mmdp.save(mmdp.MMDP([[[[1.0]]]], [[2.0]]), tmp_path / "models")
    (thesis := tmp_path / "models" / "thesis.txt").write_text("mine")
    staged = tmp_path / "models" / f".x-1-{writing._HOST}00000000.csv"
    staged.write_text("theirs")
    listed = writing._listed({staged: thesis})
    os.chown(listed, 12345, -1)
    mmdp.load(tmp_path / "models")
    assert thesis.read_text() == "mine"
    assert listed.exists()


# ---------------------------------------------------------------------- before the work
def test_what_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    for good in (tmp_path / "a.csv", tmp_path / "new" / "folder", tmp_path):
        assert writing.check_writable(good) == good
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    for bad in (tmp_path / "file" / "a.csv", "/proc/a.csv"):
        with pytest.raises(mmdp.InputError, match="cannot be written"):
            writing.check_writable(bad)
    with pytest.raises(mmdp.InputError, match="name to write to is empty"):
        writing.check_writable("")
