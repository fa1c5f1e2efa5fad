"""--objective on every command that takes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mmdp
from mmdp.core.text import format_bound, format_number
from mmdp.data.io import load_certificate
from tests.cli.calls import HORIZON, run, run_refused

OBJECTIVE = "cvar:0.4"


def test_solve_certifies_and_keeps_the_objective(
    folder: Path, train: mmdp.MMDP, tmp_path: Path
) -> None:
    file = tmp_path / "policy.json"
    result = run(
        "solve", folder, "-T", HORIZON, "--objective", OBJECTIVE, "--certify-time", 1, "-o", file
    )
    expected, facts = mmdp.solve(train, HORIZON, objective=OBJECTIVE), result.parse_facts()
    assert f"cadp, horizon {HORIZON}, CVaR 40%" in result.out
    assert float(facts["value"]) == pytest.approx(expected.value, abs=1e-4)
    mean = facts["over models"].split(",")[0].removeprefix("mean ")
    assert float(mean) == pytest.approx(expected.evaluation.mean, abs=1e-4)
    assert '"objective": "cvar:0.4"' in file.read_text()
    certificate = load_certificate(file, mmdp.load(folder))
    assert certificate is not None
    assert certificate.objective == mmdp.objectives.CVaR(0.4)
    assert certificate.value >= expected.value - 1e-9
    output = run("solve", folder, "-T", HORIZON, "--objective", OBJECTIVE, "--json").json
    assert (output["objective"], output["value"]) == (OBJECTIVE, pytest.approx(expected.value))
    assert output["mean"] == pytest.approx(expected.evaluation.mean)


@pytest.mark.slow
def test_solve_says_that_a_table_does_not_record_the_objective(
    folder: Path, tmp_path: Path
) -> None:
    note = f"does not record the objective; write .json, or pass --objective {OBJECTIVE} to report"
    for options, name, has_note in [
        ((), "policy.csv", True),
        (("--certify-time", 1), "proven.csv", False),
        ((), "policy.json", False),
        (("--objective", "mean"), "mean.csv", False),
    ]:
        words = ("solve", folder, "-T", HORIZON, "--objective", OBJECTIVE, *options)
        out = " ".join(run(*words, "-o", tmp_path / name).out.split())
        assert (note in out) == has_note, name


def test_a_report_uses_the_certified_objective_by_default(
    folder: Path, train: mmdp.MMDP, tmp_path: Path
) -> None:
    file, page = tmp_path / "policy.json", tmp_path / "page.html"
    run("solve", folder, "-T", HORIZON, "--objective", OBJECTIVE, "--certify-time", 1, "-o", file)
    certificate = load_certificate(file, mmdp.load(folder))
    assert certificate is not None
    result = run("report", folder, "--policy", file, "--out", page)
    assert (result.code, result.err) == (0, "")
    value = mmdp.solve(train, HORIZON, objective=OBJECTIVE).value
    assert f"(CVaR 40%): <strong>{format_number(value)}</strong>" in page.read_text()
    open_gap = f"has a CVaR 40% of more than {format_bound(certificate.value)}"
    closed = "proven to be the best policy of time and state for CVaR 40%"
    assert (closed if certificate.gap(value) <= 1e-9 else open_gap) in page.read_text()
    arguments = ("report", folder, "--policy", file, "--out", page, "--objective", "mean")
    result = run(*arguments)
    assert "no proof is shown: the one in the file is for the CVaR 40% over " in result.err
    assert "(CVaR 40%)" not in page.read_text()
    result = run(*arguments, "--certify-time", 1)
    assert (result.code, result.err) == (0, "")
    assert re.search("returns more than|proven to be the best", page.read_text())


def test_a_report_uses_the_objective_of_the_policy(
    folder: Path, train: mmdp.MMDP, tmp_path: Path
) -> None:
    file, page = tmp_path / "policy.json", tmp_path / "page.html"
    solution = mmdp.solve(train, HORIZON, objective=OBJECTIVE)
    mmdp.save_policy(solution, file)
    assert run("report", folder, "--policy", file, "--out", page, "--methods", "wsu").code == 0
    assert f"(CVaR 40%): <strong>{format_number(solution.value)}</strong>" in page.read_text()


@pytest.mark.slow
def test_a_report_solves_for_its_objective(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run("report", folder, "-T", HORIZON, "--objective", OBJECTIVE, "--out", page)
    value = mmdp.solve(train, HORIZON, objective=OBJECTIVE).value
    assert f"(CVaR 40%): <strong>{format_number(value)}</strong>" in page.read_text()


def test_evaluate_and_bound(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    run("solve", folder, "-T", HORIZON, "-o", file)
    objective = "regret:worst"
    expected = mmdp.evaluate(train, mmdp.load_policy(file, train)).value(objective)
    facts = run("evaluate", file, folder, "--objective", objective).parse_facts()
    assert float(facts["worst case of regret"]) == pytest.approx(expected, abs=1e-4)
    output = run("evaluate", file, folder, "--objective", objective, "--json").json
    assert (output["objective"], output["value"]) == (objective, pytest.approx(expected))
    bound_output = run(
        "bound", folder, "-T", HORIZON, "--objective", OBJECTIVE, "-m", "oracle", "--json"
    ).json
    oracle_evaluation = mmdp.solve(train, HORIZON, "oracle").evaluation
    assert bound_output["value"] == pytest.approx(oracle_evaluation.cvar(0.4))
    assert bound_output["objective"] == OBJECTIVE
    result = run("bound", folder, "-T", HORIZON, "--objective", OBJECTIVE, "--time-limit", 1)
    assert f"horizon {HORIZON}, CVaR 40%" in result.out
    assert float(result.parse_facts()["value"]) <= oracle_evaluation.cvar(0.4) + 1e-4


def test_compare_is_about_the_objective(folder: Path, train: mmdp.MMDP) -> None:
    words = ("study", folder, "-T", HORIZON, "--methods", "cadp,wsu", "--objective", OBJECTIVE)
    output = run(*words, "--json").json
    assert output["objective"] == OBJECTIVE
    cadp, wsu, oracle = output["methods"]
    assert cadp["value"] == pytest.approx(mmdp.solve(train, HORIZON, objective=OBJECTIVE).value)
    assert wsu["value"] == pytest.approx(mmdp.solve(train, HORIZON, "wsu").evaluation.cvar(0.4))
    assert wsu["value"] <= cadp["value"] <= oracle["value"]
    assert f"horizon {HORIZON}, CVaR 40%" in run(*words).out


def test_refusals(folder: Path) -> None:
    words = ("solve", folder, "-T", 2, "--objective")
    assert "the weight of a tail, above 0 and at most 1, not 2.0" in run_refused(*words, "cvar:2")
    assert "(did you mean 'worst'?)" in run_refused(*words, "worse")
    message = run_refused(*words, "worst", "--method", "wsu")
    assert "wsu cannot do this: it maximises the mean, not worst; choose --method cadp" in message
