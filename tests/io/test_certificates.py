"""A proof travels with its policy into the report, and is believed for that policy alone."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.io import load_certificate
from mmdp.words import at_most, at_most_percent
from tests.cli.calls import Result, draw, run, run_alone, write_models

HORIZON = 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(draw(5, seed=5), folder / "training.csv")
    return folder


@pytest.fixture(scope="module")
def solution(models: Path) -> mmdp.Solution:
    """WSU's policy, which is not the best: its gap is not 0."""
    found = mmdp.solve(mmdp.load(models), HORIZON, "wsu", certify=1)
    assert found.gap is not None
    assert found.gap > 1e-4
    return found


@pytest.fixture
def saved(solution: mmdp.Solution, tmp_path: Path) -> Path:
    mmdp.save_policy(solution, tmp_path / "policy.csv")
    return tmp_path / "policy.csv"


def shown_gap(page: Path) -> tuple[str, str] | None:
    """What is missing at most, and its share of what is at stake; None if nothing is proven."""
    form = r"<b>([^<]+)</b> <span>missing to the best, at most \(([^ ]+) of what is at stake\)"
    found = re.search(form, page.read_text(encoding="utf-8"))
    return None if found is None else (found[1], found[2])


def proven_gap(models: Path, value: float, bound: float) -> tuple[str, str]:
    """The same from the figures, with what is at stake: to the best single action."""
    model = mmdp.load(models)
    same = [np.full((HORIZON, model.n_states), a) for a in range(model.n_actions)]
    always = max(mmdp.evaluate(mmdp.MarkovPolicy(x), model).mean for x in same)
    return at_most(bound - value), at_most_percent((bound - value) / abs(value - always))


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_numbers_of_numpy_in_an_objective_are_numbers(
    models: Path, tmp_path: Path, ending: str
) -> None:
    model, objective = mmdp.load(models), mmdp.CVaR(np.float64(0.25))
    found = mmdp.solve(model, HORIZON, objective=objective, certify=1)
    mmdp.save_policy(found, tmp_path / f"policy.{ending}")
    proven = load_certificate(tmp_path / f"policy.{ending}", model)
    assert proven is not None
    assert proven.objective == mmdp.CVaR(0.25)
    assert proven.value == found.bound


def test_a_proof_holds_for_the_same_models_from_another_file(tmp_path: Path) -> None:
    """Constant transitions are spread over time in a table, and zeros lose their sign."""
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(3), (2, 3, 2))
    rewards = rng.normal(size=(HORIZON, 2, 3, 2))
    rewards[0] = -0.0
    model = mmdp.MMDP(rows, rewards)
    mmdp.save_policy(mmdp.solve(model, certify=1), tmp_path / "policy.json")
    mmdp.save(model, tmp_path / "models")
    assert load_certificate(tmp_path / "policy.json", mmdp.load(tmp_path / "models")) is not None


# ---------------------------------------------------------------------- from process to process
@pytest.mark.parametrize(
    ("ending", "ask"),
    [
        ("csv", run_alone),
        ("parquet", run),
        ("json", run),
        pytest.param("parquet", run_alone, marks=pytest.mark.slow),
        pytest.param("json", run_alone, marks=pytest.mark.slow),
    ],
)
def test_a_proof_travels_from_solve_to_report(
    models: Path, tmp_path: Path, ending: str, ask: Callable[..., Result]
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    policy, page = tmp_path / f"policy.{ending}", tmp_path / "page.html"
    told = ask(
        "solve", models, "-T", HORIZON, "-m", "wsu", "--certify", 1, "--out", policy, "--json"
    ).json
    done = ask("report", models, "--policy", policy, "--out", page, "--methods", "wsu")
    assert (done.code, done.err) == (0, "")
    assert told["gap"] > 1e-4
    assert shown_gap(page) == proven_gap(models, told["value"], told["bound"])
    text = page.read_text(encoding="utf-8")
    assert f"solved by wsu of mmdp {mmdp.__version__}, seed 0" in text
    names = {"csv": {"policy.csv", "policy.certificate.json"}}.get(ending, {policy.name})
    assert {x.name for x in tmp_path.iterdir()} == {*names, "page.html"}


def test_the_report_computes_no_bound_of_its_own(
    models: Path, saved: Path, solution: mmdp.Solution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmdp, "bound", lambda *_, **__: pytest.fail("computed"))
    page = saved.parent / "page.html"
    assert run("report", models, "--policy", saved, "-o", page, "--methods", "wsu").code == 0
    assert shown_gap(page) == proven_gap(models, solution.value, solution.bound or 0.0)


def test_a_table_with_a_proof_is_still_a_plain_table(saved: Path, solution: mmdp.Solution) -> None:
    import pandas as pd

    pd.testing.assert_frame_equal(pd.read_csv(saved), solution.to_frame(), check_dtype=False)


# ---------------------------------------------------------------------- what is kept
@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
@pytest.mark.parametrize("method", [mmdp.CADP(), mmdp.Gradient(round=False), mmdp.Exact()])
def test_a_certificate_is_read_as_it_was_written(
    models: Path, tmp_path: Path, method: Any, ending: str
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    model, file = mmdp.load(models), tmp_path / f"policy.{ending}"
    found = mmdp.solve(model, HORIZON, method, certify=0.2)
    mmdp.save_policy(found, file)
    read, proven = load_certificate(file, model), found.certificate
    assert read is not None
    assert proven is not None
    assert dataclasses.replace(read, details={}) == dataclasses.replace(proven, details={})
    assert read.details["value"] == found.value
    assert read.details["solution"]["method"] == found.method
    assert read.details["solution"]["status"] == found.status.name


def test_a_start_that_is_a_policy_does_not_hinder(models: Path, tmp_path: Path) -> None:
    model = mmdp.load(models)
    start = mmdp.MarkovPolicy.random(model, HORIZON)
    found = mmdp.solve(model, HORIZON, mmdp.CADP(init=start), certify=0.1)
    mmdp.save_policy(found, tmp_path / "policy.json")
    read = load_certificate(tmp_path / "policy.json", model)
    assert read is not None
    assert read.details["solution"]["options"]["init"] == "MarkovPolicy"


def test_without_a_proof_there_is_none(models: Path, tmp_path: Path) -> None:
    model = mmdp.load(models)
    for name in ("policy.csv", "policy.json"):
        mmdp.save_policy(mmdp.solve(model, HORIZON), tmp_path / name)
        assert load_certificate(tmp_path / name, model) is None


def test_a_policy_written_over_takes_the_old_proof_away(models: Path, saved: Path) -> None:
    model = mmdp.load(models)
    mmdp.save_policy(mmdp.solve(model, HORIZON), saved)
    assert [x.name for x in saved.parent.iterdir()] == ["policy.csv"]
    assert load_certificate(saved, model) is None


# ---------------------------------------------------------------------- what is not believed
def edited(policy: Path) -> None:
    """Another action in one row, as someone would change it by hand."""
    first, row, *rest = policy.read_text().splitlines()
    time, state, action = row.split(",")
    policy.write_text("\n".join([first, f"{time},{state},{1 - int(action)}", *rest]) + "\n")


def reordered(policy: Path) -> None:
    first, *rest = policy.read_text().splitlines()
    policy.write_text("\n".join([first, *reversed(rest)]) + "\n")


def not_believed(models: Path, policy: Path, reason: str) -> None:
    with pytest.raises(mmdp.InputError, match=reason):
        load_certificate(policy, mmdp.load(models))
    page = policy.parent / "page.html"
    done = run("report", models, "--policy", policy, "-o", page, "--methods", "wsu")
    assert done.code == 0
    assert done.err.count("\n") == 1
    assert reason in done.err
    assert "--certify 10 proves it again" in done.err
    assert shown_gap(page) is None
    assert f"{reason}; --certify 10 proves it again" in page.read_text(encoding="utf-8")


def test_an_edited_policy_has_no_proof(models: Path, saved: Path) -> None:
    edited(saved)
    not_believed(models, saved, "the policy was changed after its bound was proven")


def test_an_edited_json_policy_has_no_proof(
    models: Path, solution: mmdp.Solution, tmp_path: Path
) -> None:
    file = tmp_path / "policy.json"
    mmdp.save_policy(solution, file)
    stored = json.loads(file.read_text())
    stored["policy"][0][0] = 1 - stored["policy"][0][0]
    file.write_text(json.dumps(stored))
    not_believed(models, file, "the policy was changed after its bound was proven")


def test_the_order_of_rows_does_not_matter(models: Path, saved: Path) -> None:
    reordered(saved)
    assert load_certificate(saved, mmdp.load(models)) is not None


def test_a_proof_for_other_models_is_not_shown(saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_models(draw(5, seed=2), other / "training.csv")
    not_believed(other, saved, "its bound was proven for other models")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[: len(text) // 2], "not a JSON file"),
        (lambda text: "[" * 100_000, "not a JSON file"),
        (lambda text: "[]", "not a certificate"),
        (lambda text: text.replace("mmdp-certificate-1", "mmdp-certificate-9"), "not a certif"),
        (lambda text: re.sub(r'"bound": [^,]+', '"bound": NaN', text), "not a certificate"),
        (lambda text: re.sub(r'"bounds": [^,]+', '"bounds": "all"', text), "not a certificate"),
        (lambda text: re.sub(r'"mean"', '"cvar"', text), "not a certificate"),
    ],
)
def test_a_damaged_certificate_is_not_believed(
    models: Path, saved: Path, change: Any, reason: str
) -> None:
    beside = saved.with_name("policy.certificate.json")
    beside.write_text(change(beside.read_text()))
    with pytest.raises(mmdp.InputError, match=reason):
        load_certificate(saved, mmdp.load(models))


def test_a_report_refuses_the_bound_of_other_models(
    solution: mmdp.Solution, tmp_path: Path
) -> None:
    other = draw(5, seed=2)
    with pytest.raises(mmdp.InputError, match="the bound was proven for other models"):
        mmdp.report.write(
            other, tmp_path / "r.html", policy=solution.policy, bound=solution.certificate
        )
