"""Files that were damaged, cut, edited or made up: read, or refused in one line.

Hypothesis mutates good files of every kind that the command line reads, cell by cell, line by
line and byte by byte. Whatever it makes, the command ends with exit status 0, or with 2, one line
that is not endless and nothing written; never with a traceback, in seconds and in 4 GB of memory.
"""

from __future__ import annotations

import faulthandler
import io
import re
import resource
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmdp
from tests.cli.calls import LOG, run
from tests.processes import TIMEOUT

SECONDS = 10  # of CPU time, after which a reader counts as stuck
MEMORY = 4 * 2**30  # bytes that a reader may take, with all that the tests hold
MAX_ERROR_LENGTH = 1400  # characters of an error
CELLS = (
    "",
    " ",
    "0",
    "1",
    "-1",
    "1.5",
    "1e3",
    "1e308",
    "1e999",
    "nan",
    "inf",
    "NA",
    "None",
    "x",
    "é",
    "\ufeff",
    "9" * 25,
    "9" * 5000,
    "x" * 140_000,
    "0x10",
    "1_000",
    "=1+1",
    '"',
    "'",
    ",",
    ";",
    "\t",
    "\n",
    "\r",
    "\x00",
    "1000000",
    "2147483648",
    "9223372036854775808",
    "true",
    "[]",
)


# ---------------------------------------------------------------------- good files
@cache
def make_good_folder() -> Path:
    """A folder with a good file of every kind."""
    folder = Path(tempfile.mkdtemp(prefix="mmdp-fuzz-"))
    rng = np.random.default_rng(0)
    model = mmdp.MMDP(
        rng.dirichlet(np.ones(3), size=(2, 3, 2)),
        rng.normal(size=(2, 3, 2)),
        initial=[0.5, 0.25, 0.25],
        weights=[0.25, 0.75],
        terminal=rng.normal(size=(2, 3)),
        states=["well", "ill", "dead"],
        actions=["wait", "treat"],
        models=["a", "b"],
        parameters={"rate": [1.0, 2.0]},
        discount=0.9,
    )
    mmdp.save(model, folder / "models")
    mmdp.save(model, folder / "model.npz")
    mmdp.save(model, folder / "model.parquet")
    mmdp.io.to_frame(model).to_csv(folder / "tidy.csv", index=False)
    for suffix in ("pomdpx", "pomdp"):
        mmdp.interop.save_pomdp(model.replace(terminal=None), folder / f"model.{suffix}")
    policy = mmdp.solve(model, 3, "wsu", backend="numpy").policy
    for suffix in ("csv", "json", "parquet"):
        mmdp.save_policy(policy, folder / f"policy.{suffix}")
    (folder / "log.csv").write_text(LOG)
    rewards = "state,action,reward\nwell,wait,1\nwell,treat,0\nill,wait,0\nill,treat,-1\n"
    (folder / "rewards.csv").write_text(rewards)
    effects = [f"{s},{a},{i},{i * i}" for i, (s, a) in enumerate(_pairs(model))]
    (folder / "effects.csv").write_text("\n".join(["state,action,effect,cost", *effects, ""]))
    return folder


def _pairs(model: mmdp.MMDP) -> list[tuple[str, str]]:
    return [(s, a) for s in model.state_labels for a in model.action_labels]


# ---------------------------------------------------------------------- commands that read
def read_models(folder: Path) -> list[list[object]]:
    data = folder / "models"
    return [["info", data], ["solve", data, "-T", 3, "-m", "wsu", "-o", folder / "out.csv"]]


def read_file(name: str) -> Callable[[Path], list[list[object]]]:
    return lambda folder: [["info", folder / name, "--json"]]


def read_policy(name: str) -> Callable[[Path], list[list[object]]]:
    return lambda folder: [
        ["evaluate", folder / name, folder / "models", "--out", folder / "out.csv"]
    ]


def read_log(folder: Path) -> list[list[object]]:
    return [["fit", folder / "log.csv", "--n-models", 2, "--out", folder / "out"]]


def read_rewards(folder: Path) -> list[list[object]]:
    rewards = ("--rewards", folder / "rewards.csv")
    return [["fit", folder / "log.csv", "--n-models", 2, *rewards, "--out", folder / "out"]]


def read_effects(folder: Path) -> list[list[object]]:
    """Good effects end at the horizon, before a picture is drawn."""
    options = ("--effects", folder / "effects.csv", "--wtp-grid", 5, "-T", 0)
    return [["plot", "willingness", folder / "models", "-o", folder / "out.png", *options]]


TEXTS = ("model.pomdpx", "model.pomdp")  # of words
SIDECARS = ("training", "initial", "parameters", "weights", "terminal", "labels", "draws")
READERS: dict[str, Callable[[Path], list[list[object]]]] = {
    **{f"models/{side}.csv": read_models for side in SIDECARS},
    **{name: read_file(name) for name in ("tidy.csv", "model.npz", "model.parquet")},
    **{name: read_file(name) for name in ("model.pomdpx", "model.pomdp")},
    **{f"policy.{kind}": read_policy(f"policy.{kind}") for kind in ("csv", "json", "parquet")},
    "log.csv": read_log,
    "rewards.csv": read_rewards,
    "effects.csv": read_effects,
}


# ---------------------------------------------------------------------- mutations
def mutate_cells(draw: Any, data: bytes) -> bytes:
    """Another text in one cell."""
    lines = data.split(b"\n")
    line = draw(st.integers(0, len(lines) - 1))
    cells = lines[line].split(b",")
    cells[draw(st.integers(0, len(cells) - 1))] = draw(st.sampled_from(CELLS)).encode()
    lines[line] = b",".join(cells)
    return b"\n".join(lines)


def mutate_words(draw: Any, data: bytes) -> bytes:
    """A word left out, doubled, or replaced by another of the file or of a cell."""
    words = re.split(rb"([\s<>:]+)", data)
    i, j = (draw(st.integers(0, len(words) - 1)) for _ in range(2))
    other = draw(st.sampled_from([*CELLS, "*", "-", "uniform", "identity", "reset"])).encode()
    words[i] = draw(st.sampled_from((b"", words[j], other, words[i] + b" " + words[i])))
    return b"".join(words)


def mutate_lines(draw: Any, data: bytes) -> bytes:
    """A line left out, doubled, emptied, moved or cut."""
    lines = data.split(b"\n")
    i, j = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    mutation = draw(st.sampled_from(("drop", "double", "empty", "swap", "cut", "commas")))
    if mutation == "drop":
        del lines[i]
    elif mutation == "double":
        lines.insert(j, lines[i])
    elif mutation == "swap":
        lines[i], lines[j] = lines[j], lines[i]
    else:
        half = lines[i][: len(lines[i]) // 2]
        lines[i] = {"empty": b"", "cut": half, "commas": lines[i] + b",,"}[mutation]
    return b"\n".join(lines)


def mutate_bytes(draw: Any, data: bytes) -> bytes:
    """Bytes left out, put in or changed."""
    start = draw(st.integers(0, len(data)))
    stop = min(len(data), start + draw(st.sampled_from((0, 1, 2, 16, 400))))
    return data[:start] + draw(st.binary(max_size=4)) + data[stop:]


def truncate(draw: Any, data: bytes) -> bytes:
    return data[: draw(st.integers(0, len(data)))]


def replace_file(draw: Any, data: bytes) -> bytes:
    """Another file altogether, or the same in another dress."""
    others = [
        b"",
        b"\n",
        b"\x00" * 99,
        b"\xff\xfe" + data,
        b"\xef\xbb\xbf" + data,
        data + data,
        data.replace(b"\n", b"\r\n"),
        data.replace(b",", b";"),
        data.replace(b"\n", b"\r"),
        b"[" * 99_999,
        b"{}",
        b"null",
        data.upper(),
        b'"' + data,
        b"PK\x03\x04",
        b"PAR1",
    ]
    return draw(st.sampled_from(others))


def mutate_arrays(draw: Any, data: bytes) -> bytes:
    """An npz whose arrays were changed by somebody who knows the format."""
    try:
        with np.load(io.BytesIO(data)) as file:
            arrays: dict[str, Any] = dict(file)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError):
        return data
    name = draw(st.sampled_from(sorted(arrays)))
    array = arrays[name]
    changes = {
        "left out": lambda: None,
        "flat": lambda: array.reshape(-1),
        "none": lambda: array.reshape(-1)[:0],
        "first": lambda: array[:1] if array.ndim else array,
        "text": lambda: array.astype(str),
        "whole": lambda: np.zeros(array.shape, int),
        "deeper": lambda: array[None],
        "minus": lambda: np.full(array.shape, -1),
        "turned": lambda: array.T,
        "nan": lambda: np.full(array.shape, np.nan),
        "huge": lambda: np.full(array.shape, 10**12),
        "complex": lambda: np.zeros(array.shape, complex),
        "dates": lambda: np.zeros(3, "M8[s]"),
    }
    arrays[name] = changes[draw(st.sampled_from(sorted(changes)))]()
    buffer = io.BytesIO()
    np.savez(buffer, **{k: v for k, v in arrays.items() if v is not None})
    return buffer.getvalue()


@st.composite
def damaged_files(draw: Any) -> tuple[str, bytes]:
    """The name of a file and its bytes after one to three mutations."""
    name = draw(st.sampled_from(sorted(READERS)))
    data = (make_good_folder() / name).read_bytes()
    mutations = [mutate_bytes, truncate, replace_file]
    mutations += [mutate_arrays] * 4 if name.endswith("npz") else []
    mutations += [mutate_words] * 6 + [mutate_lines] * 2 if name in TEXTS else []
    mutations += [mutate_cells] * 4 + [mutate_lines] * 2 if name.endswith(("csv", "json")) else []
    for mutate in draw(st.lists(st.sampled_from(mutations), min_size=1, max_size=3)):
        data = mutate(draw, data)
    return name, data


# ---------------------------------------------------------------------- what must hold
@contextmanager
def within_limits() -> Iterator[None]:
    """A reader that takes too much CPU time or memory fails."""

    def raise_timeout(*_: object) -> None:
        raise TimeoutError(f"no answer after {SECONDS} s")

    old_handler, memory = (
        signal.signal(signal.SIGPROF, raise_timeout),
        resource.getrlimit(resource.RLIMIT_DATA),
    )
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, memory[1]))
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)  # stuck in compiled code
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, memory)
        signal.signal(signal.SIGPROF, old_handler)


def check_reader(name: str, data: bytes) -> None:
    folder = Path(tempfile.mkdtemp(prefix="mmdp-fuzzed-"))
    try:
        shutil.copytree(make_good_folder(), folder, dirs_exist_ok=True)
        (folder / name).write_bytes(data)
        files_before = {x.relative_to(folder) for x in folder.rglob("*")}
        for arguments in READERS[name](folder):
            with within_limits():
                result = run(*arguments)
            assert result.code in (0, 2), result.err
            if result.code == 2:
                assert result.out == ""
                errors = [x for x in result.err.splitlines() if not x.startswith("mmdp: note")]
                assert len(errors) == 1
                assert errors[0].startswith("mmdp: ")
                assert len(errors[0]) < MAX_ERROR_LENGTH
                assert {x.relative_to(folder) for x in folder.rglob("*")} == files_before
    finally:
        shutil.rmtree(folder)


def fuzz(count: int, **options: Any) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), **options)
    @given(damaged_files())
    def run_example(made: tuple[str, bytes]) -> None:
        check_reader(*made)

    run_example()


def test_every_good_file_is_read() -> None:
    """Otherwise the mutations below would be refused for another reason."""
    for name, reader in READERS.items():
        if name != "effects.csv":
            assert all(run(*arguments).code == 0 for arguments in reader(make_good_folder())), name
        for out in (make_good_folder() / "out.csv", make_good_folder() / "out"):
            shutil.rmtree(out, ignore_errors=True)
            out.unlink(missing_ok=True)
    assert (
        "horizon must be a whole number of at least 1"
        in run(*read_effects(make_good_folder())[0]).err
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory differently")
def test_the_limit_of_memory_holds() -> None:
    with pytest.raises(MemoryError), within_limits():
        np.ones(MEMORY, np.int8)
    np.ones(2**20)


def test_damaged_files() -> None:
    fuzz(150, derandomize=True)


@pytest.mark.slow
def test_many_damaged_files() -> None:
    fuzz(5000, database=None)
