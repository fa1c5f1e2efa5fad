"""The README's commands run as printed (its Python runs as a doctest)."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.calls import CommandResult, fits_width, run, run_in_process
from tests.conftest import ROOT
from tests.shell import list_commands, write_log

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("run_command", [run, pytest.param(run_in_process, marks=pytest.mark.slow)])
def test_the_commands_run_in_an_empty_folder(
    run_command: Callable[..., CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    lines = list_commands(README)
    assert len(lines) >= 9
    write_log(tmp_path / "log.csv")
    for line in lines:
        result = run_command(*shlex.split(line)[1:])
        assert result.code == 0, f"{line}: {result.err}"
        assert result.out.strip(), line
        assert fits_width(result.out), line
    assert (tmp_path / "policy.csv").is_file()
    assert "Decision report" in (tmp_path / "report.html").read_text(encoding="utf-8")
