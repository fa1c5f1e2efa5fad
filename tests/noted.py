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
from mmdp.io import writing
from mmdp.methods import Context, Method, Outcome
from tests.processes import PATIENCE, running

ROOT = Path(__file__).resolve().parents[1]
TIMES = ["seconds", "test_seconds"]
FIRST = 4  # cells that are done before something happens


def small(seed: int, n_models: int = 4) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    p, r = rng.dirichlet(np.ones(3), size=(n_models, 3, 2)), rng.normal(size=(n_models, 3, 2))
    return mmdp.MMDP(p, r, discount=0.9)


@dataclass(frozen=True)
class Noted(Method):
    """WSU that writes a line when it is done, and may misbehave first.

    After ``FIRST`` lines it waits until there is a file ``go``, if one is named.
    """

    file: str = ""
    harm: str = ""
    go: str = ""

    name: ClassVar[str] = "noted"

    def run(self, context: Context) -> Outcome:
        while self.go and len(lines(self.file)) >= FIRST and not Path(self.go).exists():
            time.sleep(0.01)
        if self.harm == "raise":
            raise RuntimeError("as asked")
        if self.harm == "die":
            os._exit(9)
        eaten = []
        while self.harm == "eat" and len(eaten) < 100:  # 2 GB
            eaten.append(np.ones(2_500_000))
            time.sleep(0.02)
        found = mmdp.WSU().run(context)
        if self.harm == "interrupt":
            signal.raise_signal(signal.SIGINT)
        if self.file:
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(f"{context.seed}\n")
        return found


def lines(file: str | Path) -> list[str]:
    """The lines that cells have written so far."""
    return Path(file).read_text().split() if Path(file).exists() else []


def killed_and_started_again(
    script: Path, out: Path, go: Path, *arguments: object, silent: bool = False
) -> dict[Path, bytes]:
    """Kill a script when it has kept ``FIRST`` cells in ``out``, then run it to its end.

    Its cells wait for ``go`` after those. Returns what was kept at the time of the kill.
    ``silent``: the killed run says nothing, of what it leaves behind, for one.
    """
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = partial(
        running, sys.executable, script, out, go, *arguments,
        env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT,
    )  # fmt: skip
    with start() as process:
        while len(kept := list(out.glob("cells/[!.]*.json"))) < FIRST:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        told = process.communicate()[1]
    assert not (silent and told)
    before = {file: file.read_bytes() for file in kept}
    go.touch()
    with start() as process:
        _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    return before


def steady(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns=TIMES)


def full_disk(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """From now on nothing can be written to these folders, or anywhere if none is given."""
    plain = writing._write

    def write(place: Path, writer: Any) -> None:
        if not folders or any(place.is_relative_to(x) for x in folders):
            raise OSError(28, "No space left on device")
        plain(place, writer)

    monkeypatch.setattr(writing, "_write", write)
