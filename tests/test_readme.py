"""The README's commands run as printed (its Python runs as a doctest)."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.shell import commands, write_log

README = (ROOT / "README.md").read_text(encoding="utf-8")


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command as it is printed, in a folder of its own."""
    _, *arguments = shlex.split(line)
    return subprocess.run(
        [sys.executable, "-m", "mmdp", *arguments],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip


def test_the_commands_run_in_an_empty_folder(tmp_path: Path) -> None:
    found = commands(README)
    assert len(found) >= 9
    write_log(tmp_path / "log.csv")
    for line in found:
        done = run(line, tmp_path)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout.strip(), line
        assert max(map(len, done.stdout.splitlines())) <= 80, line
    assert (tmp_path / "policy.csv").is_file()
    assert "Decision report" in (tmp_path / "report.html").read_text(encoding="utf-8")
