"""--objective on every command that takes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mmdp
from mmdp.io import load_certificate
from mmdp.words import at_most, number
from tests.cli.calls import HORIZON, refused, run

GOAL = "cvar:0.4"


def test_solve_certifies_and_keeps_the_objective(
    folder: Path, train: mmdp.MMDP, tmp_path: Path
) -> None:
    file = tmp_path / "policy.json"
    done = run("solve", folder, "-T", HORIZON, "--objective", GOAL, "--certify", 1, "-o", file)
    expected, facts = mmdp.solve(train, HORIZON, objective=GOAL), done.facts()
    assert f"cadp, horizon {HORIZON}, CVaR 40%" in done.out
    assert float(facts["value"]) == pytest.approx(expected.value, abs=1e-4)
    assert float(facts["mean"]) == pytest.approx(expected.evaluation.mean, abs=1e-4)
    assert '"objective": "cvar:0.4"' in file.read_text()
    kept = load_certificate(file, mmdp.load(folder))
    assert kept is not None
    assert kept.objective == mmdp.CVaR(0.4)
    assert kept.value >= expected.value - 1e-9
    told = run("solve", folder, "-T", HORIZON, "--objective", GOAL, "--json").json
    assert (told["objective"], told["value"]) == (GOAL, pytest.approx(expected.value))
    assert told["mean"] == pytest.approx(expected.evaluation.mean)


@pytest.mark.slow
def test_a_report_is_about_what_is_proven_unless_told_otherwise(
    folder: Path, train: mmdp.MMDP, tmp_path: Path
) -> None:
    file, page = tmp_path / "policy.json", tmp_path / "page.html"
    run("solve", folder, "-T", HORIZON, "--objective", GOAL, "--certify", 1, "-o", file)
    kept = load_certificate(file, mmdp.load(folder))
    assert kept is not None
    done = run("report", folder, "--policy", file, "--out", page)
    assert (done.code, done.err) == (0, "")
    value = mmdp.solve(train, HORIZON, objective=GOAL).value
    assert f"(CVaR 40%): <strong>{number(value)}</strong>" in page.read_text()
    open_gap = f"none has a CVaR 40% of more than {at_most(kept.value)}"
    closed = "proven to be the best policy of time and state for CVaR 40%"
    assert (closed if kept.gap(value) <= 1e-9 else open_gap) in page.read_text()
    about = ("report", folder, "--policy", file, "--out", page, "--objective", "mean")
    done = run(*about)
    assert "the proof is for cvar:0.4, not mean; --certify 10 proves it again" in done.err
    assert "CVaR 40%" not in page.read_text()
    done = run(*about, "--certify", 1)
    assert (done.code, done.err) == (0, "")
    assert re.search("none returns more than|proven to be the best", page.read_text())


def test_a_report_is_about_what_the_policy_was_solved_for(
    folder: Path, train: mmdp.MMDP, tmp_path: Path
) -> None:
    file, page = tmp_path / "policy.json", tmp_path / "page.html"
    solution = mmdp.solve(train, HORIZON, objective=GOAL)
    mmdp.save_policy(solution, file)
    assert run("report", folder, "--policy", file, "--out", page, "--methods", "wsu").code == 0
    assert f"(CVaR 40%): <strong>{number(solution.value)}</strong>" in page.read_text()


@pytest.mark.slow
def test_a_report_solves_for_its_objective(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run("report", folder, "-T", HORIZON, "--objective", GOAL, "--out", page)
    value = mmdp.solve(train, HORIZON, objective=GOAL).value
    assert f"(CVaR 40%): <strong>{number(value)}</strong>" in page.read_text()


def test_evaluate_and_bound(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    run("solve", folder, "-T", HORIZON, "-o", file)
    goal = "regret:worst"
    expected = mmdp.evaluate(mmdp.load_policy(file, train), train).value(goal)
    facts = run("evaluate", file, folder, "--objective", goal).facts()
    assert float(facts["worst case of regret"]) == pytest.approx(expected, abs=1e-4)
    told = run("evaluate", file, folder, "--objective", goal, "--json").json
    assert (told["objective"], told["value"]) == (goal, pytest.approx(expected))
    found = run("bound", folder, "-T", HORIZON, "--objective", GOAL, "-m", "oracle", "--json").json
    own = mmdp.solve(train, HORIZON, "oracle").evaluation
    assert found["value"] == pytest.approx(own.cvar(0.4))
    assert found["objective"] == GOAL
    done = run("bound", folder, "-T", HORIZON, "--objective", GOAL, "--time-limit", 1)
    assert f"horizon {HORIZON}, CVaR 40%" in done.out
    assert float(done.facts()["value"]) <= own.cvar(0.4) + 1e-4


def test_compare_is_about_the_objective(folder: Path, train: mmdp.MMDP) -> None:
    words = ("compare", folder, "-T", HORIZON, "--methods", "cadp,wsu", "--objective", GOAL)
    told = run(*words, "--json").json
    assert told["objective"] == GOAL
    cadp, wsu, oracle = told["methods"]
    assert cadp["train"] == pytest.approx(mmdp.solve(train, HORIZON, objective=GOAL).value)
    assert wsu["train"] == pytest.approx(mmdp.solve(train, HORIZON, "wsu").evaluation.cvar(0.4))
    assert wsu["train"] <= cadp["train"] <= oracle["train"]
    assert wsu["regret"] == pytest.approx(mmdp.solve(train, HORIZON, "wsu").evaluation.bayes_regret)
    out = run(*words).out
    assert f"horizon {HORIZON}, CVaR 40%" in out
    assert "mean regret" in out
    assert "mean regret" not in run(*words[:-2]).out


def test_refusals(folder: Path) -> None:
    words = ("solve", folder, "-T", 2, "--objective")
    assert "the weight of the tail, is above 0 and at most 1, not 2.0" in refused(*words, "cvar:2")
    assert "(did you mean 'worst'?)" in refused(*words, "worse")
    told = refused(*words, "worst", "--method", "wsu")
    assert "wsu cannot do this: it maximises the mean, not worst; choose --method cadp" in told
