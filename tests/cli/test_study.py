"""mmdp study."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pandas as pd
import pytest

import mmdp
from tests.cli.calls import LOG, fits, refused, run, run_alone
from tests.noted import full_disk

STUDY = """
horizons = [2, 4]
methods = ["wsu", {method = "cadp", starts = 2}]
[models.two]
domain = "two_models"
[models.mine]
data = "data"
subset = 3
"""


@pytest.fixture
def file(tmp_path: Path, train: mmdp.MMDP, test: mmdp.MMDP) -> Path:
    for split, models in (("train", train), ("test", test)):
        mmdp.save(models, tmp_path / "data", split=split)
    place = tmp_path / "study.toml"
    place.write_text(STUDY)
    return place


def test_the_table_is_that_of_the_library(
    file: Path, tmp_path: Path, train: mmdp.MMDP, test: mmdp.MMDP
) -> None:
    out = tmp_path / "out"
    done = run("study", file, "--out", out)
    assert done.code == 0, done.err
    assert "8 cells, table written to" in done.out
    assert fits("\n".join(done.out.splitlines()[:-1]))
    table = pd.read_csv(out / "study.csv")
    models = {"two": mmdp.domains.two_models(), "mine": (train.subset([0, 1, 2]), test)}
    known = mmdp.study(models, [2, 4], ["wsu", mmdp.CADP(starts=2)])
    columns = ["model", "horizon", "method", "value", "test_mean", "status"]
    pd.testing.assert_frame_equal(table[columns], known[columns])
    before = {x.name: x.stat().st_mtime_ns for x in (out / "cells").iterdir()}
    rows = run("study", file, "--out", out, "--json").json["rows"]
    assert [row["value"] for row in rows] == pytest.approx(table["value"].tolist())
    assert {x.name: x.stat().st_mtime_ns for x in (out / "cells").iterdir()} == before


def test_a_full_disk_does_not_lose_the_table(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, columns = tmp_path / "out", ["model", "horizon", "method", "value", "status"]
    run("study", file, "--out", tmp_path / "known")
    known = pd.read_csv(tmp_path / "known" / "study.csv")[columns]
    full_disk(monkeypatch, out)
    done = run("study", file, "--out", out)
    assert done.code == 1
    assert done.err.count("cannot be written (No space left on device); cells are not kept") == 1
    (written,) = (
        Path(x.split(" instead")[0]) for x in done.err.split("written to ") if "instead" in x
    )
    pd.testing.assert_frame_equal(pd.read_csv(written)[columns], known)
    written.unlink()
    written.parent.rmdir()
    full_disk(monkeypatch)
    printed = run("study", file, "--out", out)
    assert printed.code == 1
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(printed.out))[columns], known)


def test_a_cell_that_fails_is_told(file: Path, tmp_path: Path) -> None:
    file.write_text(STUDY + "[models.other]\ndomain = 'two_models'\n", encoding="utf-8")
    text = file.read_text().replace("horizons", "objectives = ['cvar:0.5']\nhorizons", 1)
    file.write_text(text)
    done = run("study", file, "--out", tmp_path / "out")
    assert done.code == 1
    assert "mmdp: 6 of 12 cells failed" in done.err.splitlines()
    assert done.err.splitlines()[-1].startswith("mmdp: 6 cells: wsu cannot")
    assert "failed" in done.out


def test_policies_have_settings_and_horizons_may_be_infinite(file: Path, tmp_path: Path) -> None:
    two, _ = mmdp.domains.two_models()
    groups = dict.fromkeys(two.state_labels, "all")
    rows = "".join(f"{state},{group}\n" for state, group in groups.items())
    (tmp_path / "groups.csv").write_text("state,group\n" + rows)
    told = """
    policies = [{policy = "memory", nodes = 2}, {policy = "tied", groups = "groups.csv"},
                "monotone", {policy = "monotone", actions = [2, 1]}]
    horizons = 9
    [models.two]
    domain = "two_models"
    """
    file.write_text(told)
    table = run("study", file, "--out", tmp_path / "out", "--json").json["rows"]
    kinds = [mmdp.Memory(2), mmdp.Tied(groups), mmdp.Monotone(), mmdp.Monotone(actions=[2, 1])]
    known = [mmdp.solve(two, 9, policy=kind).value for kind in kinds]
    assert [row["value"] for row in table] == pytest.approx(known)
    file.write_text(STUDY.replace("[2, 4]", '[3, "inf"]').replace('"wsu", ', ""))
    done = run("study", file, "--out", tmp_path / "endless")
    written = (tmp_path / "endless" / "study.csv").read_text().splitlines()[1:]
    assert done.code in (0, 1)
    assert {line.split(",")[1] for line in written} == {"3", "inf"}


def test_logs_are_fitted(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    file = tmp_path / "study.toml"
    file.write_text("horizons = 3\n[models.fit]\nlog = 'log.csv'\nmodels = 6\ntest_models = 4\n")
    row = run("study", file, "--out", tmp_path / "out", "--json").json["rows"][0]
    train, test = mmdp.fit(tmp_path / "log.csv", models=6, test_models=4)
    assert test is not None
    assert row["test_mean"] == pytest.approx(mmdp.evaluate(mmdp.solve(train, 3), test).mean)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("horizons = [", "not a TOML file"),
        ("horizons = 3", "no models; give each as a table"),
        ("horizon = 3\n[models.x]\ndomain = 'hiv'", "unknown entry 'horizon' (did you mean"),
        ("[models.x]\ndomain = 'hvi'", "no domain is called 'hvi'; did you mean 'hiv'?"),
        ("[models.x]\ndomain = 'hiv'\nsed = 3", "unknown option 'sed' (did you mean 'seed'?)"),
        ("[models.x]\nseed = 3", "a model has one of domain, data and log"),
        ("methods = ['cdp']\n[models.x]\ndomain = 'hiv'", "did you mean 'cadp'?"),
        ("methods = [{method = 'wsu', starts = 2}]\n[models.x]\ndomain = 'hiv'", "starts is not"),
        ("policies = ['markow']\n[models.x]\ndomain = 'hiv'", "did you mean 'markov'?"),
        ("policies = ['tied']\n[models.x]\ndomain = 'hiv'", "policy tied needs groups"),
        ("policies = {policy = 'memory', node = 2}\n[models.x]\ndomain = 'hiv'", "'nodes'"),
        ("[models.x]\ndata = 'nowhere'", "nowhere"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(text)
    assert told in refused("study", file, "--out", tmp_path / "out")


def test_no_file_and_no_scheduler(tmp_path: Path, file: Path) -> None:
    assert "cannot be read" in refused("study", tmp_path / "none.toml", "--out", tmp_path / "out")


@pytest.mark.slow
def test_processes_and_a_scheduler_that_does_not_answer(file: Path, tmp_path: Path) -> None:
    done = run_alone("study", file, "--out", tmp_path / "out", "--jobs", 2)
    assert done.code == 0, done.err
    assert math.isfinite(pd.read_csv(tmp_path / "out" / "study.csv")["value"].sum())
    told = refused("study", file, "--out", tmp_path / "other", "--dask", "tcp://127.0.0.1:1")
    assert "no scheduler answers" in told
