"""A small model, a method that says when it is done and may misbehave first, a full disk."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp.core.methods import Method, MethodResult, SolveContext
from mmdp.data.io import writing
from tests.processes import TIMEOUT, run_process

ROOT = Path(__file__).resolve().parents[1]
TIME_COLUMNS = ["seconds", "test_seconds"]
N_FIRST_CELLS = 4  # cells that are done before something happens


def make_small_model(seed: int, n_models: int = 4) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    p, r = rng.dirichlet(np.ones(3), size=(n_models, 3, 2)), rng.normal(size=(n_models, 3, 2))
    return mmdp.MMDP(p, r, discount=0.9)


@dataclass(frozen=True)
class LoggingMethod(Method):
    """WSU that writes a line when it is done, and may misbehave first.

    After ``FIRST`` lines it waits until there is a file ``go``, if one is named.
    """

    file: str = ""
    fault: str = ""
    go_file: str = ""

    name: ClassVar[str] = "noted"

    def run(self, context: SolveContext) -> MethodResult:
        while (
            self.go_file
            and len(read_lines(self.file)) >= N_FIRST_CELLS
            and not Path(self.go_file).exists()
        ):
            time.sleep(0.01)
        if self.fault == "raise":
            raise RuntimeError("as asked")
        if self.fault == "die":
            os._exit(9)
        blocks = []
        while self.fault == "eat" and len(blocks) < 100:  # 2 GB
            blocks.append(np.ones(2_500_000))
            time.sleep(0.02)
        result = mmdp.methods.WSU().run(context)
        if self.fault == "interrupt":
            signal.raise_signal(signal.SIGINT)
        if self.file:
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(f"{context.seed}\n")
        return result


def read_lines(file: str | Path) -> list[str]:
    """The lines that cells have written so far."""
    return Path(file).read_text().split() if Path(file).exists() else []


def kill_and_restart(
    script: Path, out: Path, go_file: Path, *arguments: object
) -> dict[Path, bytes]:
    """Kill a script when it has kept ``FIRST`` cells in ``out``, then run it to its end.

    Its cells wait for ``go`` after those. Returns what was kept at the time of the kill.
    """
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    start_script = partial(
        run_process,
        sys.executable,
        script,
        out,
        go_file,
        *arguments,
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
    )
    with start_script() as process:
        while len(cell_files := list(out.glob("cells/[!.]*.json"))) < N_FIRST_CELLS:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    saved = {file: file.read_bytes() for file in cell_files}
    go_file.touch()
    with start_script() as process:
        _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    return saved


def drop_times(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns=TIME_COLUMNS)


def fake_full_disk(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """From now on nothing can be written to these folders, or anywhere if none is given."""
    original = writing._write_content

    def write(path: Path, writer: Any) -> None:
        if not folders or any(path.is_relative_to(x) for x in folders):
            raise OSError(28, "No space left on device")
        original(path, writer)

    monkeypatch.setattr(writing, "_write_content", write)
