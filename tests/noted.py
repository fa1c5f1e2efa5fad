"""A small model, a method that says when it is done and may misbehave first, a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
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

ROOT = Path(__file__).resolve().parents[1]
TIMES = ["seconds", "test_seconds"]


def small(seed: int, n_models: int = 4) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    p, r = rng.dirichlet(np.ones(3), size=(n_models, 3, 2)), rng.normal(size=(n_models, 3, 2))
    return mmdp.MMDP(p, r, discount=0.9)


@dataclass(frozen=True)
class Noted(Method):
    """WSU that writes a line when it is done, and may misbehave first."""

    file: str = ""
    harm: str = ""
    seconds: float = 0.0

    name: ClassVar[str] = "noted"

    def run(self, context: Context) -> Outcome:
        time.sleep(self.seconds)
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


def killed_and_started_again(
    script: Path, out: Path, *arguments: object, silent: bool = False
) -> dict[Path, bytes]:
    """Kill a script when it has kept four cells in ``out``, then run it to its end.

    Returns what was kept at the time of the kill. ``silent``: the killed run says nothing, of
    what it leaves behind, for one.
    """
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, script, *map(str, arguments)]
    start = partial(subprocess.Popen, command, env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT)
    running = start(stderr=subprocess.PIPE if silent else None)
    while len(kept := list(out.glob("cells/[!.]*.json"))) < 4:
        assert running.poll() is None
        time.sleep(0.02)
    running.kill()
    assert running.stderr is None or not running.stderr.read()
    running.wait()
    before = {file: file.read_bytes() for file in kept}
    assert start().wait() == 0
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
