"""mmdp study --alphas and --max-leaves: the table, its files, JSON, what is refused, Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import pandas as pd
import pytest

import mmdp
from tests.cli.calls import HORIZON, fits_width, run, run_refused

OPTIONS = ("-T", HORIZON, "--alphas", "0.2,0.6")


@pytest.fixture(scope="module")
def expected(train: mmdp.MMDP, test: mmdp.MMDP) -> pd.DataFrame:
    """Each objective solved for on its own."""
    objectives = ["mean", "cvar:0.6", "cvar:0.2"]
    solutions = [mmdp.solve(train, HORIZON, objective=objective) for objective in objectives]
    tested = [mmdp.evaluate(test, x) for x in solutions]
    return pd.DataFrame(
        {
            "value": [x.value for x in solutions],
            "mean": [x.evaluation.mean for x in solutions],
            "tail": [x.evaluation.cvar(0.1) for x in solutions],
            "worst": [x.returns.min() for x in solutions],
            "test_mean": [x.mean for x in tested],
            "test_tail": [x.cvar(0.1) for x in tested],
        }
    )


def test_the_table_has_a_line_for_each_policy(folder: Path, expected: pd.DataFrame) -> None:
    result = run("study", folder, *OPTIONS)
    assert result.code == 0
    assert fits_width(result.out)
    assert f"horizon {HORIZON}, tail: mean of the worst 10%" in result.out
    rows = [
        line.split()
        for line in result.out.splitlines()
        if line.strip().startswith(("mean ", "CVaR "))
    ]
    assert [" ".join(row[:-6]) for row in rows] == ["mean", "CVaR 60%", "CVaR 20%"]
    for row, (_, figures) in zip(rows, expected.iterrows(), strict=True):
        assert [float(x) for x in row[-6:]] == pytest.approx(figures.tolist(), abs=1e-3)


def test_proofs_and_another_tail(folder: Path, train: mmdp.MMDP) -> None:
    words = ("study", folder, "-T", 2, "--alphas", "0.5", "--tail", "0.4")
    result = run(*words, "--certify-time", 0.2)
    assert "tail: mean of the worst 40%" in result.out
    assert "gap" in result.out
    assert fits_width(result.out)
    output = run(*words, "--json").json
    safe = mmdp.solve(train, 2, objective="cvar:0.5").evaluation
    assert output["points"][1]["tail"] == pytest.approx(safe.cvar(0.4))


def test_files_and_json(folder: Path, expected: pd.DataFrame, tmp_path: Path) -> None:
    table, png, svg = (tmp_path / f"frontier.{end}" for end in ("csv", "png", "svg"))
    assert f"written to {table}" in run("study", folder, *OPTIONS, "--out", table).out
    saved = pd.read_csv(table)
    assert saved["objective"].tolist() == ["mean", "CVaR 60%", "CVaR 20%"]
    for name in expected:
        assert saved[name].tolist() == pytest.approx(expected[name].tolist())
    run("study", folder, *OPTIONS, "--out", png)
    assert png.read_bytes().startswith(b"\x89PNG")
    output = run("study", folder, *OPTIONS, "--out", svg, "--json").json
    assert "CVaR 60%" in svg.read_text()
    assert output["tail"] == 0.1
    assert output["out"] == str(svg)
    assert [point["value"] for point in output["points"]] == pytest.approx(
        expected["value"].tolist()
    )


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    words = ("study", folder, "-T", 2)
    assert "above 0 and at most 1, not 2.0" in run_refused(*words, "--alphas", "0.5,2")
    assert "above 0 and at most 1, not 0" in run_refused(*words, "--alphas", "0.5", "--tail", "0")
    message = run_refused(*words, "--alphas", "half")
    assert "--alphas 'half': expected X,Y,..." in message
    words = (*words, "--alphas", "0.5")
    assert ".csv" in run_refused(*words, "--out", tmp_path / "frontier.pdf")
    assert "--certify-time must be a positive number of seconds, not -1" in run_refused(
        *words, "--certify-time", "-1"
    )
    assert "no such" in run_refused("study", tmp_path / "nowhere", *words[2:])
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_the_policies_so_far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solve, solved = mmdp.insight.measures.risk.solve, []

    def solve_interrupted(*arguments: object, **options: object) -> mmdp.Solution:
        solved.append(options["objective"])

        def stop(progress: mmdp.solution.Progress) -> None:
            signal.raise_signal(signal.SIGINT)

        callback = stop if len(solved) == 2 else None
        return solve(*arguments, **options, callback=callback)  # type: ignore[arg-type]

    monkeypatch.setattr("mmdp.insight.measures.risk.solve", solve_interrupted)
    result = run("study", folder, *OPTIONS, "--certify-time", 600)  # the proofs are left out
    assert result.code == 130
    assert "CVaR 20%" not in result.out
    assert "\nCVaR 60%" in result.out


def test_value_by_number_of_leaves(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    table = mmdp.measures.value_by_leaves(train, HORIZON, 3)
    words, out = ("study", folder, "-T", HORIZON, "--max-leaves", "1-3"), tmp_path / "leaves.csv"
    result = run(*words, "--out", out)
    assert fits_width(result.out.split("the elbow")[0])
    rows = [line.split() for line in result.out.splitlines() if line[:1] in "123" and line]
    assert [float(row[1]) for row in rows] == pytest.approx(table["value"].tolist(), abs=1e-3)
    assert table.attrs["text"] in result.out
    assert pd.read_csv(out)["value"].tolist() == pytest.approx(table["value"].tolist())
    output = run(*words[:-1], "3", "--json", "--certify-time", 0.2, "--objective", "worst").json
    (point,) = output["points"]
    assert output["elbow"] == 3 == point["leaves"]
    solution = mmdp.solve(train, HORIZON, policy_class=mmdp.policies.Tree(3), objective="worst")
    assert point["value"] == pytest.approx(solution.value)
    assert point["gap"] >= point["restriction_cost"] / abs(solution.value) - 1e-9
    run(*words, "--out", tmp_path / "leaves.svg")
    assert "elbow" in (tmp_path / "leaves.svg").read_text()


def test_leaves_that_are_refused(folder: Path) -> None:
    words = ("study", folder, "-T", 2)
    assert "expected FIRST-LAST" in run_refused(*words, "--max-leaves", "3-1")
    message = run_refused(*words, "--max-leaves", "1-2", "--alphas", "0.5")
    assert "--alphas does not apply to --max-leaves" in message
    message = run_refused(*words, "--alphas", "0.5", "--objective", "worst")
    assert "--objective does not apply to --alphas" in message


def test_ctrl_c_keeps_the_leaves_so_far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown, solve = [], mmdp.insight.measures.simplicity.solve

    def solve_interrupted(*arguments: object, **options: object) -> mmdp.Solution:
        def stop(progress: mmdp.solution.Progress) -> None:
            grown.append(progress)
            if len(grown) == 6:
                signal.raise_signal(signal.SIGINT)

        return solve(*arguments, **options, callback=stop)  # type: ignore[arg-type]

    monkeypatch.setattr("mmdp.insight.measures.simplicity.solve", solve_interrupted)
    result = run("study", folder, "-T", HORIZON, "--max-leaves", "1-8")
    assert result.code == 130
    assert " leaf: " in result.out or " leaves: " in result.out
    assert "\n8  " not in result.out
