"""mmdp evaluate."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from tests.cli.calls import HORIZON, run, run_refused


def test_evaluate_on_the_test_models(
    folder: Path, policy_file: Path, train: mmdp.MMDP, test: mmdp.MMDP, tmp_path: Path
) -> None:
    out = tmp_path / "models.csv"
    result = run("evaluate", policy_file, folder, "--split", "test", "--out", out)
    expected = mmdp.evaluate(test, mmdp.solve(train, HORIZON, "wsu"))
    facts = result.parse_facts()
    assert float(facts["mean"]) == pytest.approx(expected.mean, abs=1e-4)
    assert float(facts["median"]) == pytest.approx(np.sort(expected.returns)[3], abs=1e-4)
    assert float(facts["bayes_regret"]) == pytest.approx(expected.bayes_regret, abs=1e-4)
    assert float(facts["max_regret"]) == pytest.approx(expected.max_regret, abs=1e-4)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["return"]) for row in rows] == pytest.approx(expected.returns, rel=1e-12)


def test_evaluate_json(folder: Path, policy_file: Path, train: mmdp.MMDP) -> None:
    output = run("evaluate", policy_file, folder, "--json").json
    expected = mmdp.solve(train, HORIZON, "wsu").evaluation
    assert output["returns"] == pytest.approx(expected.returns.tolist(), rel=1e-12)
    assert output["regret"] == pytest.approx(expected.regret.tolist(), abs=1e-12)
    assert output["cvar10"] == pytest.approx(expected.cvar(0.1), rel=1e-12)


def test_a_policy_for_other_states_is_refused(folder: Path, tmp_path: Path) -> None:
    mmdp.save_policy(mmdp.policies.MarkovPolicy([[0, 1, 0, 1]]), tmp_path / "p.csv")
    assert "state 3 does not exist" in run_refused("evaluate", tmp_path / "p.csv", folder)
    in_other_order = run_refused("evaluate", folder, tmp_path / "p.csv")
    assert f"the policy comes first: mmdp evaluate {tmp_path / 'p.csv'} {folder}" in in_other_order


def test_a_write_that_fails_leaves_nothing_behind(
    folder: Path, policy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    (tmp_path / "kept.csv").write_text("before")

    def raise_disk_full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", raise_disk_full)
    message = run_refused("evaluate", policy_file, folder, "--out", tmp_path / "kept.csv")
    assert "No space left" in message
    assert [x.name for x in tmp_path.iterdir()] == ["kept.csv"]
    assert (tmp_path / "kept.csv").read_text() == "before"


def test_evaluate_lists_near_optimal_actions(
    folder: Path, policy_file: Path, train: mmdp.MMDP
) -> None:
    near_optimal = mmdp.measures.near_optimal_actions(
        train, mmdp.solve(train, HORIZON, "wsu"), 0.05
    )
    assert run("evaluate", policy_file, folder, "--near-optimal", "0.05").out.endswith(
        f"{near_optimal.description}.\n"
    )
    output = run("evaluate", policy_file, folder, "--near-optimal", "0.05", "--json").json
    assert (output["share_interchangeable"], output["share_near_optimal_alone"]) == pytest.approx(
        (near_optimal.share_interchangeable, near_optimal.share_near_optimal_alone)
    )


def test_a_stationary_policy_is_evaluated_over_the_horizon(tmp_path: Path) -> None:
    """Its value is that of three equal rows, also in models whose episodes never end."""
    rng = np.random.default_rng(3)
    model = mmdp.MMDP(rng.dirichlet(np.ones(2), size=(2, 2, 2)), rng.normal(size=(2, 2, 2)))
    mmdp.save(model, tmp_path / "models")
    rule, moves = tmp_path / "rule.csv", model.transitions[:, [0, 1], [1, 0]]
    rule.write_text("state,action\n0,1\n1,0\n")
    v = np.zeros((2, 2))
    for _ in range(3):
        v = model.rewards[:, [0, 1], [1, 0]] + np.einsum("msz,mz->ms", moves, v)
    output = run("evaluate", rule, tmp_path / "models", "-T", 3, "--json").json
    assert output["returns"] == pytest.approx((v @ model.initial).tolist(), rel=1e-12)
    assert output["horizon"] == 3
    message = run_refused("evaluate", rule, tmp_path / "models")
    assert "needs episodes that end" in message
    assert "--horizon 50" in message
    mmdp.save_policy(mmdp.policies.MarkovPolicy([[0, 1]] * 2), tmp_path / "two.csv")
    message = run_refused("evaluate", tmp_path / "two.csv", tmp_path / "models", "-T", 3)
    assert "covers 2 time steps, the horizon is 3" in message
