"""mmdp study of models: methods side by side."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp.cli.study import print_frame
from tests.cli.calls import HORIZON, run, run_refused
from tests.faults import fake_full_disk


def test_compare_finds_the_test_models_beside(
    folder: Path, train: mmdp.MMDP, test: mmdp.MMDP
) -> None:
    result = run("study", folder, "-T", HORIZON, "--methods", "mvp,cadp,oracle", "--json")
    rows = result.json["methods"]
    assert [row["method"] for row in rows] == ["mvp", "cadp", "oracle"]
    for row in rows[:2]:
        solution = mmdp.solve(train, HORIZON, row["method"])
        report = mmdp.evaluate(test, solution)
        assert row["value"] == pytest.approx(solution.value, rel=1e-12)
        assert row["test_value"] == pytest.approx(report.mean, rel=1e-12)
        assert row["test_sd"] == pytest.approx(report.sd, rel=1e-10)
    oracle = mmdp.solve(test, HORIZON, "oracle")
    assert rows[2]["test_value"] == pytest.approx(oracle.value, rel=1e-12)


def test_comparators_are_rows(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    probs = np.random.default_rng(1).dirichlet(np.ones(train.n_actions), (HORIZON, train.n_states))
    today = mmdp.policies.MarkovPolicy.for_model(train, probabilities=probs)
    rule = mmdp.policies.StationaryPolicy.for_model(train, [1] * train.n_states)
    mmdp.save_policy(today, tmp_path / "today.csv")
    mmdp.save_policy(rule, tmp_path / "rule.csv")
    comparator = ("--comparator", f"today={tmp_path / 'today.csv'}")
    more_comparators = ("--comparator", f"rule={tmp_path / 'rule.csv'}", "--comparator", "one=1")
    options = ("--methods", "cadp", "--no-test", "--objective", "cvar:0.5", "--json")
    rows = run("study", folder, "-T", HORIZON, *comparator, *more_comparators, *options).json[
        "methods"
    ]
    value_by_method = {row["method"]: row["value"] for row in rows}
    assert list(value_by_method) == ["cadp", "today", "rule", "one", "oracle"]
    for name, policy in (
        ("today", today),
        ("rule", rule.to_markov(HORIZON)),
        ("one", rule.to_markov(HORIZON)),
    ):
        assert value_by_method[name] == pytest.approx(
            mmdp.evaluate(train, policy).value("cvar:0.5")
        )
    words = ("study", folder, "-T", "inf", *options)
    row = run(*words, *more_comparators[:2]).json["methods"][1]
    assert row["value"] == pytest.approx(mmdp.evaluate(train, rule).value("cvar:0.5"))
    assert "the policy covers 6 time steps, the horizon is inf" in run_refused(*words, *comparator)


def test_compare_gives_the_published_means(paper_data: Path) -> None:
    data = paper_data / "riverswim"
    rows = run("study", data, "-T", 50, "--methods", "cadp,wsu,mvp", "--json").json["methods"]
    means = {row["method"]: f"{row['test_value']:.2f}" for row in rows}
    assert means == {"cadp": "204.74", "wsu": "203.62", "mvp": "201.87", "oracle": "210.60"}
    assert rows[0]["iterations"] == 3  # two-way sweeps; the paper's take 5


def test_compare_prints_and_writes_the_same_table(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    result = run("study", folder, "-T", HORIZON, "--methods", "wsu,cadp", "--out", out)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["wsu", "cadp", "oracle"]
    for row in rows:
        line = next(x for x in result.out.splitlines() if x.startswith(row["method"]))
        printed = [float(x) for x in line.split()[1:5]]
        saved = [float(row[key]) for key in ("value", "sd", "test_value", "test_sd")]
        assert printed == pytest.approx(saved, abs=1e-4)


def test_numbers_are_never_broken_over_two_lines(
    folder: Path, train: mmdp.MMDP, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame(
        {
            "method": ["cadp", "rollout"],
            **{x: [45_454.84123, 57_659.64] for x in ("value", "sd", "test_value", "test_sd")},
            "stderr": [0.0, 8.5e-13],  # of rounding alone
            "test_stderr": [0.0, 880.25],
            "status": ["LOCAL_OPTIMUM", "TIME_LIMIT"],
        }
    )
    titles = "method,value,stderr=±,sd,test_value=test,test_stderr=± on test,test_sd=test sd,status"
    print_frame(frame, titles)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[-2:]] == [
        ["cadp", *["45,454.8"] * 3, "45,454.8", "LOCAL_OPTIMUM"],
        ["rollout", *["57,659.6"] * 3, "1,760", "57,659.6", "TIME_LIMIT"],
    ]


@pytest.mark.parametrize("form", [(), ("--alphas", "0.5,0.2")])
def test_a_full_disk_does_not_lose_the_table(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    out = tmp_path / "table.csv"
    words = ("study", folder, "-T", 3, *form, "--out", out)
    known = run(*words)
    names = [row.split(",")[0] for row in out.read_text().splitlines()]
    out.unlink()
    fake_full_disk(monkeypatch, tmp_path)
    result = run(*words)
    assert result.code == 1
    failure = "cannot be written (No space left on device); it is printed instead"
    assert result.err == f"mmdp: {out}: {failure}\n"
    table = [line.split()[:3] for line in known.out.splitlines() if "written" not in line]
    assert [line.split()[:3] for line in result.out.splitlines()] == table
    assert names[1] in result.out
    assert run(*words, "--json").json["out"] is None


def test_compare_without_test_models(folder: Path) -> None:
    output = run("study", folder, "-T", 2, "--no-test", "--methods", "wsu", "--json").json
    assert output["test_models"] is None
    assert "test_value" not in output["methods"][0]
    file_output = run("study", folder / "training.csv", "-T", 2, "--methods", "wsu", "--json").json
    assert file_output["test_models"] == 7


def test_compare_takes_test_models_from_another_place(folder: Path, test: mmdp.MMDP) -> None:
    arguments = ("--test-data", folder / "test.csv", "--methods", "wsu", "--json")
    output = run("study", folder / "training.csv", "-T", 2, *arguments).json
    assert output["test_models"] == test.n_models


def test_compare_says_when_test_models_are_missing(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.csv"
    alone.write_bytes((folder / "training.csv").read_bytes())
    assert run("study", alone, "-T", 2, "--methods", "wsu", "--json").json["test_models"] is None
    assert "has no test models" in run_refused("study", alone, "-T", 2, "--test")


def test_compare_simulates_policies_with_memory(
    folder: Path, train: mmdp.MMDP, test: mmdp.MMDP
) -> None:
    arguments = ("study", folder, "-T", HORIZON, "--methods", "qmdp,cadp,mixts")
    options = ("--n-episodes", 40, "--seed", 5)
    rows = run(*arguments, *options, "--json").json["methods"]
    assert [row["method"] for row in rows] == ["qmdp", "cadp", "mixts", "oracle"]
    for row, method in zip(rows, (mmdp.methods.QMDP, None, mmdp.methods.MixTS, None), strict=True):
        if method is None:
            assert (row["stderr"], row["test_stderr"]) == (0, 0)
            continue
        solution = mmdp.solve(train, HORIZON, method(n_episodes=40), seed=5)
        report = mmdp.evaluate(test, solution, n_episodes=40, seed=5)
        assert row["value"] == pytest.approx(solution.value, rel=1e-12)
        assert row["stderr"] == pytest.approx(solution.evaluation.stderr, rel=1e-12)
        assert row["test_value"] == pytest.approx(report.mean, rel=1e-12)
        assert row["test_stderr"] == pytest.approx(report.stderr, rel=1e-12)
    exact = mmdp.evaluate(test, mmdp.solve(train, HORIZON))
    assert rows[1]["test_value"] == pytest.approx(exact.mean, rel=1e-12)
    lines = run(*arguments, *options).out.splitlines()
    titles = "method value ± sd test ± on test test sd seconds"
    assert " ".join(lines[3].split()) == titles
    printed_cells = next(line for line in lines if line.startswith("qmdp")).split()
    assert float(printed_cells[2]) == pytest.approx(2 * rows[0]["stderr"], rel=0.06)
    assert float(printed_cells[5]) == pytest.approx(2 * rows[0]["test_stderr"], rel=0.06)


def test_episodes_are_for_policies_with_memory(folder: Path) -> None:
    assert "none of these has any" in run_refused("study", folder, "-T", 2, "--n-episodes", 9)
    message = run_refused("solve", folder, "-T", 2, "--n-episodes", 9)
    assert "no option of cadp is called 'n_episodes'" in message
    command = ("solve", folder, "-T", 2, "--method", "qmdp", "--n-episodes", 1)
    assert "at least 2" in run_refused(*command)


def test_without_a_last_decision_the_methods_for_stationary_policies_are_compared(
    folder: Path,
) -> None:
    output = run("study", folder, "-T", "inf", "--json").json
    assert [row["method"] for row in output["methods"]] == ["cadp", "mvp", "oracle"]
    assert "wsu" in run_refused("study", folder, "-T", "inf", "--methods", "wsu")


def test_test_models_that_name_their_states_in_another_order(tmp_path: Path) -> None:
    """The rows of a table may come in any order: labels say which state is meant."""
    rows = {
        "training": ["a,go,b,1,1", "b,go,a,1,0", "a,stay,a,1,0", "b,stay,b,1,0"],
        "test": ["b,stay,b,1,0", "b,go,a,1,0", "a,stay,a,1,0", "a,go,b,1,5"],
    }
    for name, lines in rows.items():
        head = "state,action,next_state,probability,reward"
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *lines, ""]))
    result = run("study", tmp_path, "-T", 2, "--methods", "cadp", "--json")
    assert result.code == 0, result.err
    cadp = result.json["methods"][0]
    assert cadp["test_value"] == 5  # once from a to b, from either start
