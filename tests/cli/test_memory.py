"""mmdp solve --max-nodes, and its files in other commands."""

from __future__ import annotations

from pathlib import Path

import pytest

import mmdp
from tests.cli.calls import HORIZON, run, run_refused


def test_memory_prints_the_controller_and_its_value(folder: Path, train: mmdp.MMDP) -> None:
    result = run("solve", folder, "-T", HORIZON, "--max-nodes", 2)
    expected = mmdp.solve(train, HORIZON, policy_class=mmdp.policies.Memory(max_nodes=2))
    assert result.code == 0
    assert float(result.parse_facts()["value"]) == pytest.approx(expected.value, abs=1e-4)
    assert "Node 0 (start)" in result.out
    assert "of the decisions" in result.out


def test_a_saved_controller_is_evaluated(folder: Path, test: mmdp.MMDP, tmp_path: Path) -> None:
    out = tmp_path / "chart.csv"
    result = run("solve", folder, "-T", HORIZON, "--max-nodes", 2, "--out", out, "--json")
    assert result.json["value"] == pytest.approx(result.json["trace"][-1])
    output = run("evaluate", out, folder, "--split", "test", "--json").json
    assert output["mean"] == pytest.approx(mmdp.evaluate(test, mmdp.load_policy(out)).mean)


def test_wrong_classes_and_numbers_are_one_line(folder: Path, tmp_path: Path) -> None:
    solve = "solve", folder, "-T", HORIZON
    assert "nodes must be a whole number of at least 1" in run_refused(*solve, "--max-nodes", 0)
    message = run_refused(*solve, "--max-nodes", 10_000)
    assert "at most 255 nodes, not 10,000, which would take" in message
    message = run_refused(*solve, "--max-nodes", 2, "--method", "wsu")
    assert "which cannot make a memory policy; choose --method cadp" in message
    out = tmp_path / "chart.csv"
    run(*solve, "--max-nodes", 2, "--out", out)
    assert "has 2 nodes of memory" in run_refused(*solve, "--init", out)
    message = run_refused("plot", "policy", folder, "--policy", out, "--out", tmp_path / "x.png")
    assert "this picture shows" in message
    assert "2 nodes of memory" in message


def test_a_saved_controller_is_drawn(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    out, figure_file = tmp_path / "chart.csv", tmp_path / "chart.svg"
    run("solve", folder, "-T", HORIZON, "--max-nodes", 2, "--out", out)
    svg = ("plot", "chart", folder, "--policy", out, "--out")
    assert run(*svg, figure_file).code == 0
    expected = mmdp.load_policy(out, train).merge_nodes(train).to_flow_chart(train)  # type: ignore[union-attr]
    assert figure_file.read_text(encoding="utf-8") == mmdp.plots.to_svg(expected.plot())
    assert "ends in .png or .svg" in run_refused(*svg, tmp_path / "chart.dot")
    markov_file = tmp_path / "policy.csv"
    run("solve", folder, "-T", HORIZON, "--out", markov_file)
    message = run_refused("plot", "chart", folder, "--policy", markov_file, "--out", figure_file)
    assert "shows a policy with memory, not a MarkovPolicy" in message
    run("plot", "chart", folder, "-T", HORIZON, "--out", figure_file)
    best = mmdp.solve(train, HORIZON, policy_class=mmdp.policies.Memory(3)).policy.merge_nodes(
        train
    )
    chart = best.to_flow_chart(train)
    assert figure_file.read_text(encoding="utf-8") == mmdp.plots.to_svg(chart.plot())
