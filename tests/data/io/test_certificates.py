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
from mmdp.core.text import format_bound, format_bound_percent
from mmdp.data.io import load_certificate
from tests.cli.calls import CommandResult, make_model, run, run_in_process, write_models

HORIZON = 3


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(make_model(5, seed=5), folder / "training.csv")
    return folder


@pytest.fixture(scope="module")
def solution(models_dir: Path) -> mmdp.Solution:
    """WSU's policy, which is not the best: its gap is not 0."""
    wsu_solution = mmdp.solve(mmdp.load(models_dir), HORIZON, "wsu", certify_time=0.2)
    assert wsu_solution.gap is not None
    assert wsu_solution.gap > 1e-4
    return wsu_solution


@pytest.fixture
def policy_path(solution: mmdp.Solution, tmp_path: Path) -> Path:
    mmdp.save_policy(solution, tmp_path / "policy.csv")
    return tmp_path / "policy.csv"


def read_shown_gap(page_path: Path) -> tuple[str, str] | None:
    """What is missing at most, and its share of what is at stake; None if nothing is proven."""
    pattern = r"<b>([^<]+)</b> <span>missing to the best, at most \(([^ ]+) of what is at stake\)"
    match = re.search(pattern, page_path.read_text(encoding="utf-8"))
    return None if match is None else (match[1], match[2])


def format_proven_gap(models_dir: Path, value: float, bound: float) -> tuple[str, str]:
    """The same from the figures, with what is at stake: to the best single action."""
    model = mmdp.load(models_dir)
    constant_tables = [np.full((HORIZON, model.n_states), a) for a in range(model.n_actions)]
    best_constant_value = max(
        mmdp.evaluate(model, mmdp.policies.MarkovPolicy(x)).mean for x in constant_tables
    )
    return format_bound(bound - value, 3), format_bound_percent(
        (bound - value) / abs(value - best_constant_value)
    )


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_numbers_of_numpy_in_an_objective_are_numbers(
    models_dir: Path, tmp_path: Path, suffix: str
) -> None:
    model, objective = mmdp.load(models_dir), mmdp.objectives.CVaR(np.float64(0.25))
    solution = mmdp.solve(model, HORIZON, objective=objective, certify_time=1)
    mmdp.save_policy(solution, tmp_path / f"policy.{suffix}")
    certificate = load_certificate(tmp_path / f"policy.{suffix}", model)
    assert certificate is not None
    assert certificate.objective == mmdp.objectives.CVaR(0.25)
    assert certificate.value == solution.bound


def test_certificate_of_same_models_from_another_file(tmp_path: Path) -> None:
    """Constant transitions are spread over time in a table, and zeros lose their sign."""
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(3), (2, 3, 2))
    rewards = rng.normal(size=(HORIZON, 2, 3, 2))
    rewards[0] = -0.0
    model = mmdp.MMDP(rows, rewards)
    mmdp.save_policy(mmdp.solve(model, certify_time=1), tmp_path / "policy.json")
    mmdp.save(model, tmp_path / "models")
    assert load_certificate(tmp_path / "policy.json", mmdp.load(tmp_path / "models")) is not None


# ---------------------------------------------------------------------- from process to process
@pytest.mark.parametrize(
    ("suffix", "run_command"),
    [
        ("csv", run),
        ("parquet", run),
        ("json", run),
        pytest.param("csv", run_in_process, marks=pytest.mark.slow),
        pytest.param("parquet", run_in_process, marks=pytest.mark.slow),
        pytest.param("json", run_in_process, marks=pytest.mark.slow),
    ],
)
def test_certificate_reaches_the_report(
    models_dir: Path, tmp_path: Path, suffix: str, run_command: Callable[..., CommandResult]
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    policy_path, page_path = tmp_path / f"policy.{suffix}", tmp_path / "page.html"
    solve_result = run_command(
        "solve",
        models_dir,
        "-T",
        HORIZON,
        "-m",
        "wsu",
        "--certify-time",
        0.2,
        "--out",
        policy_path,
        "--json",
    ).json
    report_result = run_command(
        "report", models_dir, "--policy", policy_path, "--out", page_path, "--methods", "wsu"
    )
    assert (report_result.code, report_result.err) == (0, "")
    assert solve_result["gap"] > 1e-4
    assert read_shown_gap(page_path) == format_proven_gap(
        models_dir, solve_result["value"], solve_result["bound"]
    )
    text = page_path.read_text(encoding="utf-8")
    assert f"solved by wsu of mmdp {mmdp.__version__}, seed 0" in text
    names = {"csv": {"policy.csv", "policy.certificate.json"}}.get(suffix, {policy_path.name})
    assert {x.name for x in tmp_path.iterdir()} == {*names, "page.html"}


def test_the_report_computes_no_bound_of_its_own(
    models_dir: Path, policy_path: Path, solution: mmdp.Solution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmdp, "bound", lambda *_, **__: pytest.fail("computed"))
    page_path = policy_path.parent / "page.html"
    assert (
        run("report", models_dir, "--policy", policy_path, "-o", page_path, "--methods", "wsu").code
        == 0
    )
    assert read_shown_gap(page_path) == format_proven_gap(
        models_dir, solution.value, solution.bound or 0.0
    )


def test_table_with_certificate_is_a_plain_table(
    policy_path: Path, solution: mmdp.Solution
) -> None:
    import pandas as pd

    pd.testing.assert_frame_equal(pd.read_csv(policy_path), solution.to_frame(), check_dtype=False)


# ---------------------------------------------------------------------- what is kept
@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
@pytest.mark.parametrize(
    "method",
    [mmdp.methods.CADP(), mmdp.methods.NaturalGradient(deterministic=False), mmdp.methods.Exact()],
)
def test_a_certificate_is_read_as_it_was_written(
    models_dir: Path, tmp_path: Path, method: Any, suffix: str
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    model, file = mmdp.load(models_dir), tmp_path / f"policy.{suffix}"
    solution = mmdp.solve(model, HORIZON, method, certify_time=0.2)
    mmdp.save_policy(solution, file)
    loaded, certificate = load_certificate(file, model), solution.certificate
    assert loaded is not None
    assert certificate is not None
    assert dataclasses.replace(loaded, details={}) == dataclasses.replace(certificate, details={})
    assert loaded.details["value"] == solution.value
    assert loaded.details["solution"]["method"] == solution.method
    assert loaded.details["solution"]["status"] == solution.status.name


def test_certificate_with_an_init_policy(models_dir: Path, tmp_path: Path) -> None:
    model = mmdp.load(models_dir)
    init_policy = mmdp.policies.MarkovPolicy.random(model, HORIZON)
    solution = mmdp.solve(model, HORIZON, mmdp.methods.CADP(init=init_policy), certify_time=0.1)
    mmdp.save_policy(solution, tmp_path / "policy.json")
    loaded = load_certificate(tmp_path / "policy.json", model)
    assert loaded is not None
    assert loaded.details["solution"]["options"]["init"] == "MarkovPolicy"


def test_no_certificate_without_a_bound(models_dir: Path, tmp_path: Path) -> None:
    model = mmdp.load(models_dir)
    for name in ("policy.csv", "policy.json"):
        mmdp.save_policy(mmdp.solve(model, HORIZON), tmp_path / name)
        assert load_certificate(tmp_path / name, model) is None


def test_overwriting_a_policy_removes_its_certificate(models_dir: Path, policy_path: Path) -> None:
    model = mmdp.load(models_dir)
    mmdp.save_policy(mmdp.solve(model, HORIZON), policy_path)
    assert [x.name for x in policy_path.parent.iterdir()] == ["policy.csv"]
    assert load_certificate(policy_path, model) is None


# ---------------------------------------------------------------------- what is not believed
def edit_policy(policy_path: Path) -> None:
    """Another action in one row, as someone would change it by hand."""
    header, row, *rest = policy_path.read_text().splitlines()
    time, state, action = row.split(",")
    policy_path.write_text("\n".join([header, f"{time},{state},{1 - int(action)}", *rest]) + "\n")


def reorder_policy(policy_path: Path) -> None:
    header, *rest = policy_path.read_text().splitlines()
    policy_path.write_text("\n".join([header, *reversed(rest)]) + "\n")


def check_certificate_rejected(models_dir: Path, policy_path: Path, reason: str) -> None:
    with pytest.raises(mmdp.InputError, match=reason):
        load_certificate(policy_path, mmdp.load(models_dir))
    page_path = policy_path.parent / "page.html"
    result = run("report", models_dir, "--policy", policy_path, "-o", page_path, "--methods", "wsu")
    assert result.code == 0
    assert result.err.count("\n") == 1
    assert reason in result.err
    assert "--certify-time 10 proves it again" in result.err
    assert read_shown_gap(page_path) is None
    assert f"{reason}; --certify-time 10 proves it again" in page_path.read_text(encoding="utf-8")


def test_an_edited_policy_has_no_certificate(models_dir: Path, policy_path: Path) -> None:
    edit_policy(policy_path)
    check_certificate_rejected(
        models_dir, policy_path, "the policy was changed after its bound was proven"
    )


def test_an_edited_json_policy_has_no_certificate(
    models_dir: Path, solution: mmdp.Solution, tmp_path: Path
) -> None:
    file = tmp_path / "policy.json"
    mmdp.save_policy(solution, file)
    document = json.loads(file.read_text())
    document["policy"][0][0] = 1 - document["policy"][0][0]
    file.write_text(json.dumps(document))
    check_certificate_rejected(
        models_dir, file, "the policy was changed after its bound was proven"
    )


def test_the_order_of_rows_does_not_matter(models_dir: Path, policy_path: Path) -> None:
    reorder_policy(policy_path)
    assert load_certificate(policy_path, mmdp.load(models_dir)) is not None


def test_certificate_of_other_models_is_not_shown(policy_path: Path, tmp_path: Path) -> None:
    other_dir = tmp_path / "other"
    other_dir.mkdir()
    write_models(make_model(5, seed=2), other_dir / "training.csv")
    check_certificate_rejected(other_dir, policy_path, "its bound was proven for other models")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[: len(text) // 2], "not a JSON file"),
        (lambda text: "[" * 100_000, "not a JSON file"),
        (lambda text: "[]", "not a certificate"),
        (lambda text: text.replace("mmdp-certificate-2", "mmdp-certificate-9"), "not a certif"),
        (lambda text: re.sub(r'"bound": [^,]+', '"bound": NaN', text), "not a certificate"),
        (lambda text: re.sub(r'"bounds": [^,]+', '"bounds": "all"', text), "not a certificate"),
        (lambda text: re.sub(r'"mean"', '"cvar"', text), "not a certificate"),
    ],
)
def test_a_damaged_certificate_is_rejected(
    models_dir: Path, policy_path: Path, change: Any, reason: str
) -> None:
    certificate_path = policy_path.with_name("policy.certificate.json")
    certificate_path.write_text(change(certificate_path.read_text()))
    with pytest.raises(mmdp.InputError, match=reason):
        load_certificate(policy_path, mmdp.load(models_dir))


def test_a_report_refuses_the_bound_of_other_models(
    solution: mmdp.Solution, tmp_path: Path
) -> None:
    other_model = make_model(5, seed=2)
    with pytest.raises(mmdp.InputError, match="the bound was proven for other models"):
        mmdp.report.write(
            other_model, tmp_path / "r.html", policy=solution.policy, bound=solution.certificate
        )
