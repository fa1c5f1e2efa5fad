"""The README's commands run as printed (its Python runs as a doctest)."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.calls import Result, fits, run, run_alone
from tests.conftest import ROOT
from tests.shell import commands, write_log

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("ask", [run, pytest.param(run_alone, marks=pytest.mark.slow)])
def test_the_commands_run_in_an_empty_folder(
    ask: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    found = commands(README)
    assert len(found) >= 9
    write_log(tmp_path / "log.csv")
    for line in found:
        done = ask(*shlex.split(line)[1:])
        assert done.code == 0, f"{line}: {done.err}"
        assert done.out.strip(), line
        assert fits(done.out), line
    assert (tmp_path / "policy.csv").is_file()
    assert "Decision report" in (tmp_path / "report.html").read_text(encoding="utf-8")
