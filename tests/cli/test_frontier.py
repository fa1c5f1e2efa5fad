"""mmdp frontier: the table, its files, JSON, what is refused, Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import pandas as pd
import pytest

import mmdp
from tests.cli.calls import HORIZON, fits, refused, run

WORDS = ("-T", HORIZON, "--alphas", "0.2,0.6")


@pytest.fixture(scope="module")
def expected(train: mmdp.MMDP, test: mmdp.MMDP) -> pd.DataFrame:
    """Each objective solved for on its own."""
    goals = ["mean", "cvar:0.6", "cvar:0.2"]
    found = [mmdp.solve(train, HORIZON, objective=goal) for goal in goals]
    tested = [mmdp.evaluate(x, test) for x in found]
    return pd.DataFrame({
        "value": [x.value for x in found], "mean": [x.evaluation.mean for x in found],
        "tail": [x.evaluation.cvar(0.1) for x in found], "worst": [x.returns.min() for x in found],
        "test_mean": [x.mean for x in tested], "test_tail": [x.cvar(0.1) for x in tested],
    })  # fmt: skip


def test_the_table_has_a_line_for_each_policy(folder: Path, expected: pd.DataFrame) -> None:
    done = run("frontier", folder, *WORDS)
    assert done.code == 0
    assert fits(done.out)
    assert f"horizon {HORIZON}, tail: mean of the worst 10%" in done.out
    rows = [
        line.split()
        for line in done.out.splitlines()
        if line.strip().startswith(("mean ", "CVaR "))
    ]
    assert [" ".join(row[:-6]) for row in rows] == ["mean", "CVaR 60%", "CVaR 20%"]
    for row, (_, figures) in zip(rows, expected.iterrows(), strict=True):
        assert [float(x) for x in row[-6:]] == pytest.approx(figures.tolist(), abs=1e-3)


def test_proofs_and_another_tail(folder: Path, train: mmdp.MMDP) -> None:
    done = run("frontier", folder, "-T", 2, "--alphas", "0.5", "--tail", "0.4", "--certify", 0.2)
    assert "tail: mean of the worst 40%" in done.out
    assert "gap" in done.out
    assert fits(done.out)
    told = run("frontier", folder, "-T", 2, "--alphas", "0.5", "--tail", "0.4", "--json").json
    safe = mmdp.solve(train, 2, objective="cvar:0.5").evaluation
    assert told["points"][1]["tail"] == pytest.approx(safe.cvar(0.4))


def test_files_and_json(folder: Path, expected: pd.DataFrame, tmp_path: Path) -> None:
    table, png, svg = (tmp_path / f"frontier.{end}" for end in ("csv", "png", "svg"))
    assert f"written to {table}" in run("frontier", folder, *WORDS, "--out", table).out
    written = pd.read_csv(table)
    assert written["objective"].tolist() == ["mean", "CVaR 60%", "CVaR 20%"]
    for name in expected:
        assert written[name].tolist() == pytest.approx(expected[name].tolist())
    run("frontier", folder, *WORDS, "--out", png)
    assert png.read_bytes().startswith(b"\x89PNG")
    told = run("frontier", folder, *WORDS, "--out", svg, "--json").json
    assert "CVaR 60%" in svg.read_text()
    assert told["tail"] == 0.1
    assert told["out"] == str(svg)
    assert [point["value"] for point in told["points"]] == pytest.approx(expected["value"].tolist())


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    words = ("frontier", folder, "-T", 2)
    assert "above 0 and at most 1, not 2.0" in refused(*words, "--alphas", "0.5,2")
    assert "above 0 and at most 1, not 0" in refused(*words, "--tail", "0")
    told = refused(*words, "--alphas", "half")
    assert "'half': give numbers separated by commas, e.g. 0.5,0.2,0.1" in told
    assert ".csv" in refused(*words, "--out", tmp_path / "frontier.pdf")
    assert "certify" in refused(*words, "--certify", "-1")
    assert "no such" in refused("frontier", tmp_path / "nowhere", "-T", 2)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_the_policies_so_far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solve, seen = mmdp.measures.safety.solve, []

    def interrupted(*arguments: object, **options: object) -> mmdp.Solution:
        seen.append(options["objective"])

        def stop(progress: mmdp.Progress) -> None:
            signal.raise_signal(signal.SIGINT)

        callback = stop if len(seen) == 2 else None
        return solve(*arguments, **options, callback=callback)  # type: ignore[arg-type]

    monkeypatch.setattr("mmdp.measures.safety.solve", interrupted)
    done = run("frontier", folder, *WORDS, "--certify", 600)  # the proofs are left out
    assert done.code == 130
    assert "CVaR 20%" not in done.out
    assert "\nCVaR 60%" in done.out


def test_what_each_leaf_earns(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    table = mmdp.value_of_leaves(train, HORIZON, 3)
    words, out = ("frontier", folder, "-T", HORIZON, "--leaves", "1-3"), tmp_path / "leaves.csv"
    done = run(*words, "--out", out)
    assert fits(done.out.split("the elbow")[0])
    rows = [line.split() for line in done.out.splitlines() if line[:1] in "123" and line]
    assert [float(row[1]) for row in rows] == pytest.approx(table["value"].tolist(), abs=1e-3)
    assert table.attrs["text"] in done.out
    assert pd.read_csv(out)["value"].tolist() == pytest.approx(table["value"].tolist())
    told = run(*words[:-1], "3", "--json", "--certify", 0.2, "--objective", "worst").json
    (point,) = told["points"]
    assert told["elbow"] == 3 == point["leaves"]
    found = mmdp.solve(train, HORIZON, policy=mmdp.Tree(3), objective="worst")
    assert point["value"] == pytest.approx(found.value)
    assert point["gap"] >= point["price"] / abs(found.value) - 1e-9
    run(*words, "--out", tmp_path / "leaves.svg")
    assert "elbow" in (tmp_path / "leaves.svg").read_text()


def test_leaves_that_are_refused(folder: Path) -> None:
    words = ("frontier", folder, "-T", 2)
    assert "give the first and the last, from 1 on, e.g. 1-8" in refused(*words, "--leaves", "3-1")
    assert "give one of them" in refused(*words, "--leaves", "1-2", "--alphas", "0.5")
    assert "give --leaves too" in refused(*words, "--objective", "worst")


def test_ctrl_c_keeps_the_leaves_so_far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown, solve = [], mmdp.measures.simplicity.solve

    def interrupted(*arguments: object, **options: object) -> mmdp.Solution:
        def stop(progress: mmdp.Progress) -> None:
            grown.append(progress)
            if len(grown) == 6:
                signal.raise_signal(signal.SIGINT)

        return solve(*arguments, **options, callback=stop)  # type: ignore[arg-type]

    monkeypatch.setattr("mmdp.measures.simplicity.solve", interrupted)
    done = run("frontier", folder, "-T", HORIZON, "--leaves", "1-8")
    assert done.code == 130
    assert " leaf: " in done.out or " leaves: " in done.out
    assert "\n8  " not in done.out
