"""mmdp solve --memory, and its files in other commands."""

from __future__ import annotations

from pathlib import Path

import pytest

import mmdp
from tests.cli.calls import HORIZON, refused, run


def test_memory_prints_the_chart_and_the_librarys_value(folder: Path, train: mmdp.MMDP) -> None:
    done = run("solve", folder, "-T", HORIZON, "--memory", 2)
    expected = mmdp.solve(train, HORIZON, policy=mmdp.Memory(nodes=2))
    assert done.code == 0
    assert float(done.facts()["value"]) == pytest.approx(expected.value, abs=1e-4)
    assert "Node 0 (start)" in done.out
    assert "of the decisions" in done.out


def test_a_saved_chart_is_evaluated(folder: Path, test: mmdp.MMDP, tmp_path: Path) -> None:
    out = tmp_path / "chart.csv"
    done = run("solve", folder, "-T", HORIZON, "--memory", 2, "--out", out, "--json")
    assert done.json["value"] == pytest.approx(done.json["trace"][-1])
    found = run("evaluate", out, folder, "--split", "test", "--json").json
    assert found["mean"] == pytest.approx(mmdp.evaluate(mmdp.load_policy(out), test).mean)


def test_wrong_kinds_and_numbers_are_one_line(folder: Path, tmp_path: Path) -> None:
    solve = "solve", folder, "-T", HORIZON
    assert "nodes must be a whole number of at least 1" in refused(*solve, "--memory", 0)
    told = refused(*solve, "--memory", 10_000)
    assert "at most 255 nodes, not 10,000, which would take" in told
    told = refused(*solve, "--memory", 2, "--method", "wsu")
    assert "which cannot make a memory policy; choose --method cadp" in told
    out = tmp_path / "chart.csv"
    run(*solve, "--memory", 2, "--out", out)
    assert "has 2 nodes of memory" in refused(*solve, "--init", out)
    told = refused("plot", "policy", folder, "--policy", out, "--out", tmp_path / "x.png")
    assert "draw it with mmdp plot chart" in told


def test_a_saved_chart_is_drawn(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    out, drawn = tmp_path / "chart.csv", tmp_path / "chart.svg"
    run("solve", folder, "-T", HORIZON, "--memory", 2, "--out", out)
    chart = ("plot", "chart", folder, "--policy", out, "--out")
    assert run(*chart, drawn).code == 0
    expected = mmdp.load_policy(out, train).merged(train).flow_chart(train)  # type: ignore[union-attr]
    assert drawn.read_text(encoding="utf-8") == expected.svg()
    assert run(*chart, tmp_path / "chart.dot").code == 0
    assert (tmp_path / "chart.dot").read_text(encoding="utf-8") == expected.dot()
    assert "a flow chart is written as .svg or .dot" in refused(*chart, tmp_path / "chart.png")
    plain = tmp_path / "policy.csv"
    run("solve", folder, "-T", HORIZON, "--out", plain)
    told = refused("plot", "chart", folder, "--policy", plain, "--out", drawn)
    assert "shows a policy with memory, not a MarkovPolicy" in told
    run("plot", "chart", folder, "-T", HORIZON, "--out", drawn)
    best = mmdp.solve(train, HORIZON, policy=mmdp.Memory(3)).policy.merged(train)
    assert drawn.read_text(encoding="utf-8") == best.flow_chart(train).svg()
