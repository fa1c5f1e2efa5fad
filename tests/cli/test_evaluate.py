"""mmdp evaluate."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from tests.cli.calls import HORIZON, refused, run


def test_evaluate_on_the_test_models(
    folder: Path, policy_file: Path, train: mmdp.MMDP, test: mmdp.MMDP, tmp_path: Path
) -> None:
    out = tmp_path / "models.csv"
    done = run("evaluate", policy_file, folder, "--split", "test", "--out", out)
    expected = mmdp.evaluate(mmdp.solve(train, HORIZON, "wsu"), test)
    facts = done.facts()
    assert float(facts["mean"]) == pytest.approx(expected.mean, abs=1e-4)
    assert float(facts["median"]) == pytest.approx(np.sort(expected.returns)[3], abs=1e-4)
    assert float(facts["Bayes regret"]) == pytest.approx(expected.bayes_regret, abs=1e-4)
    assert float(facts["max regret"]) == pytest.approx(expected.max_regret, abs=1e-4)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["return"]) for row in rows] == pytest.approx(expected.returns, rel=1e-12)


def test_evaluate_json(folder: Path, policy_file: Path, train: mmdp.MMDP) -> None:
    found = run("evaluate", policy_file, folder, "--json").json
    expected = mmdp.solve(train, HORIZON, "wsu").evaluation
    assert found["returns"] == pytest.approx(expected.returns.tolist(), rel=1e-12)
    assert found["regret"] == pytest.approx(expected.regret.tolist(), abs=1e-12)
    assert found["cvar10"] == pytest.approx(expected.cvar(0.1), rel=1e-12)


def test_a_policy_for_other_states_is_refused(folder: Path, tmp_path: Path) -> None:
    mmdp.save_policy(mmdp.MarkovPolicy([[0, 1, 0, 1]]), tmp_path / "p.csv")
    assert "state 3 does not exist" in refused("evaluate", tmp_path / "p.csv", folder)


def test_a_write_that_fails_leaves_nothing_behind(
    folder: Path, policy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    (tmp_path / "kept.csv").write_text("before")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    message = refused("evaluate", policy_file, folder, "--out", tmp_path / "kept.csv")
    assert "No space left" in message
    assert [x.name for x in tmp_path.iterdir()] == ["kept.csv"]
    assert (tmp_path / "kept.csv").read_text() == "before"


def test_evaluate_says_where_people_are_free(
    folder: Path, policy_file: Path, train: mmdp.MMDP
) -> None:
    free = mmdp.freedom(mmdp.solve(train, HORIZON, "wsu"), train, 0.05)
    assert run("evaluate", policy_file, folder, "--freedom", "0.05").out.endswith(f"{free.text}.\n")
    found = run("evaluate", policy_file, folder, "--freedom", "0.05", "--json").json
    assert (found["free"], found["free_alone"]) == pytest.approx((free.share, free.share_alone))


def test_a_rule_without_times_is_followed_over_the_horizon(tmp_path: Path) -> None:
    """Its value is that of three equal rows, also in models whose episodes never end."""
    rng = np.random.default_rng(3)
    model = mmdp.MMDP(rng.dirichlet(np.ones(2), size=(2, 2, 2)), rng.normal(size=(2, 2, 2)))
    mmdp.save(model, tmp_path / "models")
    rule, moves = tmp_path / "rule.csv", model.transitions[:, [0, 1], [1, 0]]
    rule.write_text("state,action\n0,1\n1,0\n")
    v = np.zeros((2, 2))
    for _ in range(3):
        v = model.rewards[:, [0, 1], [1, 0]] + np.einsum("msz,mz->ms", moves, v)
    found = run("evaluate", rule, tmp_path / "models", "-T", 3, "--json").json
    assert found["returns"] == pytest.approx((v @ model.initial).tolist(), rel=1e-12)
    assert found["horizon"] == 3
    told = refused("evaluate", rule, tmp_path / "models")
    assert "needs episodes that end" in told
    assert "--horizon 50" in told
    mmdp.save_policy(mmdp.MarkovPolicy([[0, 1]] * 2), tmp_path / "two.csv")
    told = refused("evaluate", tmp_path / "two.csv", tmp_path / "models", "-T", 3)
    assert "covers 2 time steps, the horizon is 3" in told
