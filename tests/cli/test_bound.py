"""mmdp bound."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mmdp
from mmdp.core.testing import find_best_markov_value
from tests.cli.calls import run, run_refused


def test_bound_prints_what_it_bounds(folder: Path, train: mmdp.MMDP) -> None:
    best = find_best_markov_value(train, 3)
    oracle = mmdp.solve(train, 3, "oracle").value
    output = run("bound", folder, "-T", 3, "--method", "oracle", "--json").json
    assert output["value"] == pytest.approx(oracle, rel=1e-9)
    assert (output["scope"], output["method"], output["horizon"]) == ("history", "oracle", 3)
    result = run("bound", folder, "-T", 3, "--time-limit", 5)
    facts = result.parse_facts()
    assert result.code == 0
    assert best - 1e-4 <= float(facts["value"]) <= oracle + 1e-4
    assert facts["holds for"] in ("every policy", "every Markov policy")
    assert float(facts["CADP reaches"].split(",")[0]) <= best + 1e-4
    assert re.search(r", and no (Markov )?policy more than \S+ above it$", facts["CADP reaches"])
    assert float(facts["seconds"]) >= 0
    tested = run("bound", folder, "-T", 3, "-m", "oracle", "--split", "test", "--json").json
    expected = mmdp.solve(mmdp.load(folder, split="test"), 3, "oracle").value
    assert tested["value"] == pytest.approx(expected, rel=1e-9)


def test_bound_refuses(folder: Path, tmp_path: Path) -> None:
    assert "did you mean 'pairs'?" in run_refused("bound", tmp_path / "no", "--method", "pair")
    assert "--time-limit must be a positive number of seconds, not 0" in run_refused(
        "bound", folder, "-T", 2, "--time-limit", 0
    )
    assert "--horizon 50" in run_refused("bound", folder)
