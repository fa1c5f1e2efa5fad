"""mmdp paper."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from mmdp.insight.study import solve_and_test
from tests.cli.calls import run, run_refused
from tests.insight.paper.quick import limit_queries


@pytest.mark.parametrize("pictures", ["few", pytest.param("all", marks=pytest.mark.slow)])
def test_paper_writes_its_files_and_reuses_them(
    pictures: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pictures == "few":
        limit_queries(monkeypatch)
    out = tmp_path / "deep" / "out"
    first = run("paper", "--domain", "HIV", "--out", out)
    assert first.code == 0, first.err
    assert {p.name for p in out.iterdir() if p.is_file()} == {
        "results.csv",
        "figure.png",
        "regret.png",
        "queries.png",
        "paper.html",
    }
    assert "Mean return over the test models" in first.out
    assert max(map(len, first.out.splitlines()[:-1])) <= 80  # the last line names a long path
    second_result = run("paper", "--domain", "HIV", "--out", out)
    n_cells = 45 if pictures == "few" else 57
    assert f"{n_cells} of {n_cells} results reused" in second_result.out
    document = run("paper", "--domain", "HIV", "--out", out, "--json").json
    assert document["results"][0]["method"] == "CADP"


def test_paper_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    assert "domain 'XX' does not exist" in run_refused("paper", "--domain", "XX", "--out", tmp_path)
    blocker = tmp_path / "file"
    blocker.write_text("x")
    assert "cannot be written" in run_refused("paper", "--out", blocker / "out")
    assert "is a file" in run_refused("paper", "--out", blocker)
    new = tmp_path / "new"
    message = run_refused("paper", "--seed", -3, "--out", new)
    assert message == "mmdp: --seed must be a whole number of at least 0, not -3\n"
    assert not new.exists()


def test_paper_interrupted_says_what_is_kept_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C inside the third cell, whose solver would return its best so far: it is not kept."""
    original, calls = solve_and_test, []

    def solve(*arguments: Any, **options: Any) -> dict[str, object]:
        calls.append(arguments)
        row = original(*arguments, **options)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return row

    out = tmp_path / "out"
    monkeypatch.setattr(sys.modules["mmdp.insight.study"], "solve_and_test", solve)
    result = run("paper", "--domain", "HIV", "--domain", "INV", "--out", out)
    assert (result.code, result.out) == (130, "")
    last = result.err.splitlines()[-1]
    cells_dir = out / "cells"
    assert last == f"mmdp: interrupted; 2 of 66 results kept in {cells_dir}; run again to go on"
    assert len(list(cells_dir.glob("*.json"))) == 2
