"""mmdp paper."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import mmdp
from mmdp.cli.paper import DOMAINS
from mmdp.paper.cases import CASES
from mmdp.study import Cell, Found
from tests.cli.calls import refused, run
from tests.paper.few import few


@pytest.mark.parametrize("pictures", ["few", pytest.param("all", marks=pytest.mark.slow)])
def test_paper_writes_its_files_and_reuses_them(
    pictures: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pictures == "few":
        few(monkeypatch)
    out = tmp_path / "deep" / "out"
    first = run("paper", "--domain", "HIV", "--out", out)
    assert first.code == 0, first.err
    assert {p.name for p in out.iterdir() if p.is_file()} == {
        "results.csv", "figure.png", "regret.png", "queries.png", "paper.html",
    }  # fmt: skip
    assert "Mean return over the test models" in first.out
    assert max(map(len, first.out.splitlines()[:-1])) <= 80  # the last line names a long path
    again = run("paper", "--domain", "HIV", "--out", out)
    assert "30 of 30 results reused" in again.out
    document = run("paper", "--domain", "HIV", "--out", out, "--json").json
    assert document["results"][0]["method"] == "CADP"


def test_paper_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    assert "no domain is called 'XX'" in refused("paper", "--domain", "XX", "--out", tmp_path)
    missing = tmp_path / "none"
    assert "does not exist" in refused("paper", "--data", missing, "--out", tmp_path)
    blocker = tmp_path / "file"
    blocker.write_text("x")
    assert "cannot be written" in refused("paper", "--out", blocker / "out")
    assert "is a file" in refused("paper", "--out", blocker)
    new = tmp_path / "new"
    message = refused("paper", "--seed", -3, "--out", new)
    assert message == "mmdp: seed must be a whole number of at least 0, not -3\n"
    assert not new.exists()
    (tmp_path / "data").mkdir()
    message = refused("paper", "--data", tmp_path / "data", "--out", new)
    assert "training.csv in the folders riverswim, population, population_small" in message
    assert not new.exists()


def test_paper_interrupted_says_what_is_kept_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C inside the third cell, whose solver would return its best so far: it is not kept."""
    plain, calls = Cell.row, []

    def row(cell: Cell, found: Found) -> dict[str, object]:
        calls.append(cell)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return plain(cell, found)

    data = tmp_path / "data"
    train, test = mmdp.domains.hiv(n_train=9, n_test=9, seed=0)
    data.mkdir()
    mmdp.save(train, data / "hiv")
    mmdp.save(test, data / "hiv", split="test")
    out = tmp_path / "out"
    arguments = ("paper", "--domain", "HIV", "--domain", "INV", "--data", data, "--out", out)
    monkeypatch.setattr(Cell, "row", row)
    done = run(*arguments)
    assert (done.code, done.out) == (130, "")
    first, *_, last = done.err.splitlines()
    assert first == f"mmdp: note: {data} has no models of INV; these are generated"
    kept = out / "cells"
    assert last == f"mmdp: interrupted; 2 of 39 results kept in {kept}; run again to go on"
    assert {path.name.split("-")[2] for path in kept.iterdir()} == {"CADP", "WSU"}


def test_paper_names_every_domain() -> None:
    assert set(CASES) == set(DOMAINS)
