"""mmdp study of a .toml file."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pandas as pd
import pytest

import mmdp
from tests.cli.calls import LOG, fits_width, run, run_in_process, run_refused
from tests.faults import fake_full_disk

STUDY = """
horizons = [2, 4]
methods = ["wsu", {method = "cadp", n_init = 2}]
[models.two]
domain = "two_models"
[models.mine]
data = "data"
subset = 3
"""


@pytest.fixture
def study_file(tmp_path: Path, train: mmdp.MMDP, test: mmdp.MMDP) -> Path:
    for split, models in (("train", train), ("test", test)):
        mmdp.save(models, tmp_path / "data", split=split)
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def test_the_table_is_that_of_the_library(
    study_file: Path, tmp_path: Path, train: mmdp.MMDP, test: mmdp.MMDP
) -> None:
    out = tmp_path / "out"
    result = run("study", study_file, "--out", out)
    assert result.code == 0, result.err
    assert "8 cells, table written to" in result.out
    assert fits_width("\n".join(result.out.splitlines()[:-1]))
    table = pd.read_csv(out / "study.csv")
    models = {"two": mmdp.domains.two_models(), "mine": (train.subset([0, 1, 2]), test)}
    known = mmdp.study(models, [2, 4], ["wsu", mmdp.methods.CADP(n_init=2)])
    columns = ["model", "horizon", "method", "value", "test_mean", "status"]
    pd.testing.assert_frame_equal(table[columns], known[columns])
    before = {x.name: x.stat().st_mtime_ns for x in (out / "cells").iterdir()}
    rows = run("study", study_file, "--out", out, "--json").json["rows"]
    assert [row["value"] for row in rows] == pytest.approx(table["value"].tolist())
    assert {x.name: x.stat().st_mtime_ns for x in (out / "cells").iterdir()} == before


def test_a_full_disk_does_not_lose_the_table(
    study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, columns = tmp_path / "out", ["model", "horizon", "method", "value", "status"]
    run("study", study_file, "--out", tmp_path / "known")
    known = pd.read_csv(tmp_path / "known" / "study.csv")[columns]
    fake_full_disk(monkeypatch)
    printed = run("study", study_file, "--out", out)
    assert printed.code == 1
    assert printed.err.count("cannot be written (No space left on device); cells are not kept") == 1
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(printed.out))[columns], known)


def test_a_failing_cell_is_reported(study_file: Path, tmp_path: Path) -> None:
    study_file.write_text(STUDY + "[models.other]\ndomain = 'two_models'\n", encoding="utf-8")
    text = study_file.read_text().replace("horizons", "objectives = ['cvar:0.5']\nhorizons", 1)
    study_file.write_text(text)
    result = run("study", study_file, "--out", tmp_path / "out")
    assert result.code == 1
    assert "mmdp: 6 of 12 cells failed" in result.err.splitlines()
    assert result.err.splitlines()[-1].startswith("mmdp: 6 cells: wsu cannot")
    assert "FAILED" in result.out


def test_policies_have_settings_and_horizons_may_be_infinite(
    study_file: Path, tmp_path: Path
) -> None:
    two, _ = mmdp.domains.two_models()
    groups = dict.fromkeys(two.state_labels, "all")
    rows = "".join(f"{state},{group}\n" for state, group in groups.items())
    (tmp_path / "groups.csv").write_text("state,group\n" + rows)
    study_text = """
    policy_classes = [{policy_class = "memory", max_nodes = 2},
                      {policy_class = "tied", groups = "groups.csv"},
                "monotone", {policy_class = "monotone", actions = [2, 1]}]
    horizons = 9
    [models.two]
    domain = "two_models"
    """
    study_file.write_text(study_text)
    table = run("study", study_file, "--out", tmp_path / "out", "--json").json["rows"]
    policy_classes = [
        mmdp.policies.Memory(2),
        mmdp.policies.Tied(groups),
        mmdp.policies.Monotone(),
        mmdp.policies.Monotone(actions=[2, 1]),
    ]
    expected_values = [
        mmdp.solve(two, 9, policy_class=policy_class).value for policy_class in policy_classes
    ]
    assert [row["value"] for row in table] == pytest.approx(expected_values)
    study_file.write_text(STUDY.replace("[2, 4]", "[3, inf]").replace('"wsu", ', ""))
    result = run("study", study_file, "--out", tmp_path / "endless")
    saved_lines = (tmp_path / "endless" / "study.csv").read_text().splitlines()[1:]
    assert result.code in (0, 1)
    assert {line.split(",")[1] for line in saved_lines} == {"3", "inf"}


def test_logs_are_fitted(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    file = tmp_path / "study.toml"
    settings = "log = 'log.csv'\nn_models = 6\nn_test_models = 4\n"
    file.write_text(f"horizons = 3\n[models.fit]\n{settings}")
    row = run("study", file, "--out", tmp_path / "out", "--json").json["rows"][0]
    train, test = mmdp.fit(tmp_path / "log.csv", n_models=6, n_test_models=4)
    assert test is not None
    assert row["test_mean"] == pytest.approx(mmdp.evaluate(test, mmdp.solve(train, 3)).mean)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("horizons = [", "not a TOML file"),
        ("horizons = 3", "no models; give each as a table"),
        (
            "horizon = 3\n[models.x]\ndomain = 'hiv'",
            "no argument 'horizon' (did you mean 'horizons'",
        ),
        ("[models.x]\ndomain = 'hvi'", "no domain is called 'hvi' (did you mean 'hiv'?)"),
        (
            "[models.x]\ndomain = 'hiv'\nsed = 3",
            "option of hiv is called 'sed' (did you mean 'seed'",
        ),
        ("[models.x]\nseed = 3", "a model has one of domain, data and log"),
        ("methods = ['cdp']\n[models.x]\ndomain = 'hiv'", "did you mean 'cadp'?"),
        ("methods = [{method = 'wsu', n_init = 2}]\n[models.x]\ndomain = 'hiv'", "called 'n_init'"),
        ("policy_classes = ['markow']\n[models.x]\ndomain = 'hiv'", "did you mean 'markov'?"),
        (
            "policy_classes = {policy_class = 'memory', max_node = 2}\n[models.x]\ndomain = 'hiv'",
            "'max_nodes'",
        ),
        ("[models.x]\ndata = 'nowhere'", "nowhere"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(text)
    assert message in run_refused("study", file, "--out", tmp_path / "out")


def test_no_file_and_no_scheduler(tmp_path: Path, study_file: Path) -> None:
    assert "cannot be read" in run_refused(
        "study", tmp_path / "none.toml", "--out", tmp_path / "out"
    )


@pytest.mark.slow
def test_processes_and_a_scheduler_that_does_not_answer(study_file: Path, tmp_path: Path) -> None:
    result = run_in_process("study", study_file, "--out", tmp_path / "out", "--jobs", 2)
    assert result.code == 0, result.err
    assert math.isfinite(pd.read_csv(tmp_path / "out" / "study.csv")["value"].sum())
    message = run_refused(
        "study", study_file, "--out", tmp_path / "other", "--dask", "tcp://127.0.0.1:1"
    )
    assert "no scheduler answers" in message
