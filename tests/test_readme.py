"""The README's commands run as printed (its Python runs as a doctest)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

import mmdp
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands(text: str = README) -> list[str]:
    """The lines of a page's shell blocks that start with mmdp."""
    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.S)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("mmdp ")]


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command as it is printed, in a folder of its own."""
    _, *arguments = shlex.split(line)
    return subprocess.run(
        [sys.executable, "-m", "mmdp", *arguments],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip


def write_log(path: Path) -> None:
    """A log of the riverswim's true model under a random policy."""
    true = mmdp.domains.riverswim().true
    rng, s, rows = np.random.default_rng(0), 0, ["episode,time,state,action,next_state,reward"]
    for t in range(400):
        a = int(rng.integers(2))
        after = int(rng.choice(20, p=true.transitions[0, s, a]))
        rows.append(f"{t // 40},{t % 40},{s},{a},{after},{true.rewards[0, s, a]}")
        s = after if t % 40 < 39 else 0
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def test_the_commands_run_in_an_empty_folder(tmp_path: Path) -> None:
    found = commands()
    assert len(found) >= 9
    write_log(tmp_path / "log.csv")
    for line in found:
        done = run(line, tmp_path)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout.strip(), line
        assert max(map(len, done.stdout.splitlines())) <= 80, line
    assert (tmp_path / "policy.csv").is_file()
    assert "Decision report" in (tmp_path / "report.html").read_text(encoding="utf-8")
