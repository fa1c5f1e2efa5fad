"""mmdp compare."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import mmdp
from tests.cli.calls import HORIZON, refused, run
from tests.noted import full_disk


def test_compare_finds_the_test_models_beside(
    folder: Path, train: mmdp.MMDP, test: mmdp.MMDP
) -> None:
    done = run("compare", folder, "-T", HORIZON, "--methods", "mvp,cadp,oracle", "--json")
    rows = done.json["methods"]
    assert [row["method"] for row in rows] == ["mvp", "cadp", "oracle"]
    for row in rows[:2]:
        solution = mmdp.solve(train, HORIZON, row["method"])
        report = mmdp.evaluate(solution, test)
        assert row["train"] == pytest.approx(solution.value, rel=1e-12)
        assert row["test"] == pytest.approx(report.mean, rel=1e-12)
        assert row["test_sd"] == pytest.approx(report.sd, rel=1e-10)
        assert row["test_regret"] == pytest.approx(report.bayes_regret, rel=1e-10)
    oracle = mmdp.solve(test, HORIZON, "oracle")
    assert rows[2]["test"] == pytest.approx(oracle.value, rel=1e-12)
    assert rows[2]["test_regret"] == pytest.approx(0, abs=1e-12)


def test_what_is_done_today_is_a_row(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    chance = np.random.default_rng(1).dirichlet(np.ones(train.n_actions), (HORIZON, train.n_states))
    today = mmdp.MarkovPolicy.for_model(train, probabilities=chance)
    rule = mmdp.StationaryPolicy.for_model(train, [1] * train.n_states)
    mmdp.save_policy(today, tmp_path / "today.csv")
    mmdp.save_policy(rule, tmp_path / "rule.csv")
    given = ("--compare", f"today={tmp_path / 'today.csv'}")
    always = ("--compare", f"rule={tmp_path / 'rule.csv'}", "--compare", "one=1")
    wanted = ("--methods", "cadp", "--no-test", "--objective", "cvar:0.5", "--json")
    rows = run("compare", folder, "-T", HORIZON, *given, *always, *wanted).json["methods"]
    found = {row["method"]: row["train"] for row in rows}
    assert list(found) == ["cadp", "today", "rule", "one", "oracle"]
    for name, policy in (
        ("today", today),
        ("rule", rule.over(HORIZON)),
        ("one", rule.over(HORIZON)),
    ):
        assert found[name] == pytest.approx(mmdp.evaluate(policy, train).value("cvar:0.5"))
    rows = run("compare", folder, "-T", "inf", *always, *wanted).json["methods"]
    for row in rows[1:3]:
        assert row["train"] == pytest.approx(mmdp.evaluate(rule, train).value("cvar:0.5"))
    assert "'today': it ends after 6 decisions" in refused("compare", folder, "-T", "inf", *given)


def test_compare_gives_the_published_means(paper_data: Path) -> None:
    data = paper_data / "riverswim"
    rows = run("compare", data, "-T", 50, "--methods", "cadp,wsu,mvp", "--json").json["methods"]
    means = {row["method"]: f"{row['test']:.2f}" for row in rows}
    assert means == {"cadp": "204.74", "wsu": "203.62", "mvp": "201.87", "oracle": "210.60"}
    assert rows[0]["iterations"] == 3  # two-way sweeps; the paper's take 5


def test_compare_prints_and_writes_the_same_table(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    done = run("compare", folder, "-T", HORIZON, "--methods", "wsu,cadp", "--out", out)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["wsu", "cadp", "oracle"]
    for row in rows:
        line = next(x for x in done.out.splitlines() if x.startswith(row["method"]))
        shown = [float(x) for x in line.split()[1:5]]
        kept = [float(row[key]) for key in ("train", "test", "test_sd", "test_regret")]
        assert shown == pytest.approx(kept, abs=1e-4)


@pytest.mark.parametrize("command", ["compare", "frontier"])
def test_a_full_disk_does_not_lose_the_table(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    out = tmp_path / "table.csv"
    words = (command, folder, "-T", 3, "--out", out)
    known = run(*words)
    names = [row.split(",")[0] for row in out.read_text().splitlines()]
    out.unlink()
    full_disk(monkeypatch, tmp_path)
    done = run(*words)
    first, second = done.err.splitlines()
    assert done.code == 1
    assert first == f"mmdp: {out}: cannot be written (No space left on device)"
    other = Path(second.removeprefix("mmdp: written to ").split(" instead")[0])
    assert [row.split(",")[0] for row in other.read_text().splitlines()] == names
    assert f"written to {other}" in done.out
    other.unlink()
    other.parent.rmdir()
    full_disk(monkeypatch)
    done = run(*words)
    assert done.code == 1
    assert len(done.err.splitlines()) == 2
    table = [line.split()[:3] for line in known.out.splitlines() if "written" not in line]
    assert [line.split()[:3] for line in done.out.splitlines()] == table
    assert run(*words, "--json").json["out"] is None


def test_compare_without_test_models(folder: Path) -> None:
    found = run("compare", folder, "-T", 2, "--no-test", "--methods", "wsu", "--json").json
    assert found["test_models"] is None
    assert "test" not in found["methods"][0]
    beside = run("compare", folder / "training.csv", "-T", 2, "--methods", "wsu", "--json").json
    assert beside["test_models"] == 7


def test_compare_takes_test_models_from_another_place(folder: Path, test: mmdp.MMDP) -> None:
    arguments = ("--test-data", folder / "test.csv", "--methods", "wsu", "--json")
    found = run("compare", folder / "training.csv", "-T", 2, *arguments).json
    assert found["test_models"] == test.n_models


def test_compare_says_when_test_models_are_missing(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.csv"
    alone.write_bytes((folder / "training.csv").read_bytes())
    assert run("compare", alone, "-T", 2, "--methods", "wsu", "--json").json["test_models"] is None
    assert "has no test models" in refused("compare", alone, "-T", 2, "--test")


def test_compare_simulates_policies_with_memory(
    folder: Path, train: mmdp.MMDP, test: mmdp.MMDP
) -> None:
    arguments = ("compare", folder, "-T", HORIZON, "--methods", "qmdp,cadp,mixts")
    options = ("--episodes", 40, "--seed", 5)
    rows = run(*arguments, *options, "--json").json["methods"]
    assert [row["method"] for row in rows] == ["qmdp", "cadp", "mixts", "oracle"]
    for row, method in zip(rows, (mmdp.QMDP, None, mmdp.MixTS, None), strict=True):
        if method is None:
            assert (row["train_stderr"], row["test_stderr"]) == (None, None)
            continue
        solution = mmdp.solve(train, HORIZON, method(episodes=40), seed=5)
        report = mmdp.evaluate(solution, test, episodes=40, seed=5)
        assert row["train"] == pytest.approx(solution.value, rel=1e-12)
        assert row["train_stderr"] == pytest.approx(solution.evaluation.stderr, rel=1e-12)
        assert row["test"] == pytest.approx(report.mean, rel=1e-12)
        assert row["test_stderr"] == pytest.approx(report.stderr, rel=1e-12)
    exact = mmdp.evaluate(mmdp.solve(train, HORIZON), test)
    assert rows[1]["test"] == pytest.approx(exact.mean, rel=1e-12)
    lines = run(*arguments, *options).out.splitlines()
    assert lines[3].split() == [
        "method", "train", "±", "test", "±", "test", "sd", "regret", "seconds"
    ]  # fmt: skip
    shown = next(line for line in lines if line.startswith("qmdp")).split()
    assert float(shown[2]) == pytest.approx(2 * rows[0]["train_stderr"], rel=0.06)
    assert float(shown[4]) == pytest.approx(2 * rows[0]["test_stderr"], rel=0.06)


def test_episodes_are_for_policies_with_memory(folder: Path) -> None:
    assert "none of these has any" in refused("compare", folder, "-T", 2, "--episodes", 9)
    assert "only of qmdp" in refused("solve", folder, "-T", 2, "--episodes", 9)
    few = ("solve", folder, "-T", 2, "--method", "qmdp", "--episodes", 1)
    assert "at least 2" in refused(*few)


def test_another_method_that_wins_on_the_test_models_is_named(tmp_path: Path) -> None:
    train, test = mmdp.domains.riverswim(n_train=30, n_test=100)
    mmdp.save(train, tmp_path / "rs")
    mmdp.save(test, tmp_path / "rs", split="test")
    arguments = ("compare", tmp_path / "rs", "-T", 20, "--methods", "wsu,cadp,gradient")
    returns = {
        name: mmdp.evaluate(mmdp.solve(train, 20, name), test).returns
        for name in ("cadp", "gradient")
    }
    gain = returns["gradient"] - returns["cadp"]
    assert gain.mean() > 0
    error = gain.std(ddof=1) / np.sqrt(len(gain))
    ahead = run(*arguments, "--json").json["ahead"]
    assert (ahead["method"], ahead["of"]) == ("gradient", "cadp")
    assert ahead["difference"] == pytest.approx(gain.mean())
    assert ahead["stderr"] == pytest.approx(error)
    told = " ".join(run(*arguments).out.split())
    by = f"by {gain.mean():.3g} ± {2 * error:.2g} (two standard errors)"
    who = "on the test models gradient is ahead of cadp, the best on the training models"
    assert f"{who}, {by}" in told
    assert ("which may be chance" in told) == (gain.mean() < 2 * error)
    page = mmdp.report.write(
        train,
        tmp_path / "page.html",
        horizon=20,
        test=test,
        methods=["cadp", "gradient"],
        seconds=0,
    ).read_text(encoding="utf-8")
    assert f"gradient is ahead of it there, {by}".lower() in page.lower()


def test_no_other_method_is_named_if_none_is_ahead(tmp_path: Path) -> None:
    train, test = mmdp.domains.riverswim(n_train=30, n_test=100)
    mmdp.save(train, tmp_path / "rs")
    mmdp.save(test, tmp_path / "rs", split="test")
    done = run("compare", tmp_path / "rs", "-T", 20, "--methods", "wsu,cadp")
    assert "ahead" not in done.out
    own = ("--methods", "cadp,gradient", "--test-data", tmp_path / "rs", "--json")
    assert run("compare", tmp_path / "rs", "-T", 20, *own).json["ahead"] is None
    alone = run("compare", tmp_path / "rs", "-T", 20, "--no-test", "--methods", "wsu", "--json")
    assert alone.json["ahead"] is None


def test_without_a_last_decision_the_methods_for_stationary_policies_are_compared(
    folder: Path,
) -> None:
    found = run("compare", folder, "-T", "inf", "--json").json
    assert [row["method"] for row in found["methods"]] == ["cadp", "mvp", "oracle"]
    assert "wsu" in refused("compare", folder, "-T", "inf", "--methods", "wsu")


def test_test_models_that_name_their_states_in_another_order(tmp_path: Path) -> None:
    """The rows of a table may come in any order: labels say which state is meant."""
    rows = {
        "training": ["a,go,b,1,1", "b,go,a,1,0", "a,stay,a,1,0", "b,stay,b,1,0"],
        "test": ["b,stay,b,1,0", "b,go,a,1,0", "a,stay,a,1,0", "a,go,b,1,5"],
    }
    for name, lines in rows.items():
        head = "state,action,next_state,probability,reward"
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *lines, ""]))
    found = run("compare", tmp_path, "-T", 2, "--methods", "cadp", "--json")
    assert found.code == 0, found.err
    cadp = found.json["methods"][0]
    assert cadp["test"] == 5  # once from a to b, from either start
