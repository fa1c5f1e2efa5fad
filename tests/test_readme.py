"""The README's commands run as printed (its Python runs as a doctest)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.S)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("mmdp ")]


def test_the_commands_run_in_an_empty_folder(tmp_path: Path) -> None:
    found = commands()
    assert len(found) >= 5
    for line in found:
        _, *arguments = shlex.split(line)
        done = subprocess.run(
            [sys.executable, "-m", "mmdp", *arguments],
            cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "COLUMNS": "80"},
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout.strip(), line
        assert max(map(len, done.stdout.splitlines())) <= 80, line
    assert (tmp_path / "policy.csv").is_file()


def test_every_local_link_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
