"""The command line: what it prints, writes and refuses.

Figures are compared with the library called on the same arrays, which never pass through a
file.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mmdp
from mmdp import cli

HORIZON = 6
COLUMNS = "idstatefrom,idaction,idstateto,idoutcome,probability,reward"
STATES, ACTIONS, DISCOUNT = 3, 2, 0.9


class Result:
    """Exit status, stdout and stderr of one run."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        def refuse(name: str) -> float:
            raise AssertionError(f"{name} in JSON")

        found: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return found

    def facts(self) -> dict[str, str]:
        """The indented ``name  value`` lines."""
        pairs = [line.strip().split("  ", 1) for line in self.out.splitlines() if line[:2] == "  "]
        return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def run(*arguments: object) -> Result:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(cli.app, [str(x) for x in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)  # FORCE_COLOR may be set around the tests
    return Result(done.exit_code, plain, done.stderr)


def refused(*arguments: object) -> str:
    """The one line that a bad call prints."""
    done = run(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("mmdp: ")
    return done.err


def fits(text: str, width: int = 80) -> bool:
    return max(map(len, text.splitlines())) <= width


def draw(n_models: int, seed: int) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    transitions = rng.dirichlet(np.ones(STATES), size=(n_models, STATES, ACTIONS))
    rewards = rng.normal(size=(n_models, STATES, ACTIONS))
    return mmdp.MMDP(transitions, rewards, initial=[0.5, 0.25, 0.25], discount=DISCOUNT)


def write_models(model: mmdp.MMDP, path: Path) -> None:
    """In the paper's columns, written here so that nothing of mmdp.io is used."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS.split(","))
        for m, s, a, n in np.ndindex(model.transitions.shape):
            p, r = float(model.transitions[m, s, a, n]), float(model.rewards[m, s, a])
            rows.writerow([s, a, n, m, repr(p), repr(r)])


@pytest.fixture(scope="module")
def train() -> mmdp.MMDP:
    return draw(5, seed=1)


@pytest.fixture(scope="module")
def test() -> mmdp.MMDP:
    return draw(7, seed=2)


@pytest.fixture(scope="module")
def folder(train: mmdp.MMDP, test: mmdp.MMDP, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    write_models(train, place / "training.csv")
    write_models(test, place / "test.csv")
    (place / "initial.csv").write_text("idstate,probability\n0,0.5\n1,0.25\n2,0.25\n")
    (place / "parameters.csv").write_text(f"parameter,value\ndiscount,{DISCOUNT}\n")
    return place


# ---------------------------------------------------------------- solve
def test_solve_prints_the_librarys_figures(folder: Path, train: mmdp.MMDP) -> None:
    done = run("solve", folder, "--horizon", HORIZON)
    expected = mmdp.solve(train, HORIZON)
    facts = done.facts()
    assert done.code == 0
    assert done.err == ""
    assert float(facts["value"]) == pytest.approx(expected.value, abs=1e-4)
    assert float(facts["sd"]) == pytest.approx(expected.evaluation.sd, abs=1e-4)
    assert float(facts["worst"]) == pytest.approx(expected.returns.min(), abs=1e-4)
    assert float(facts["CVaR 10%"]) == pytest.approx(expected.evaluation.cvar(0.1), abs=1e-4)
    assert facts["iterations"] == str(expected.iterations)
    assert "LOCAL_OPTIMUM: no change of the action" in done.out
    assert "5 models, 3 states, 2 actions, discount 0.9" in done.out


def test_solve_previews_a_small_policy(folder: Path, train: mmdp.MMDP) -> None:
    lines = run("solve", folder, "-T", 1).out.splitlines()
    row = next(line for line in lines if line.startswith("0 "))
    assert [int(x) for x in row.split()[1:]] == mmdp.solve(train, 1).policy.actions[0].tolist()


def test_solve_json_is_one_document_at_full_precision(folder: Path, train: mmdp.MMDP) -> None:
    done = run("solve", folder, "-T", HORIZON, "--method", "gradient", "--seed", 3, "--json")
    expected = mmdp.solve(train, HORIZON, "gradient", seed=3)
    found = done.json
    assert done.err == ""
    assert found["value"] == pytest.approx(expected.value, rel=1e-13)
    assert found["trace"] == pytest.approx(expected.trace.tolist(), rel=1e-12)
    assert found["policy"]["actions"] == expected.policy.actions.tolist()
    assert (found["status"], found["seed"]) == (expected.status.name, 3)
    assert found["options"]["init"] == "uniform"


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_solve_writes_a_policy_that_can_be_read_again(
    folder: Path, train: mmdp.MMDP, tmp_path: Path, ending: str
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    out = tmp_path / f"policy.{ending}"
    done = run("solve", folder, "-T", HORIZON, "--out", out)
    assert f"policy written to {out}" in done.out.replace("\n", "")
    assert mmdp.load_policy(out, train) == mmdp.solve(train, HORIZON).policy


def test_solve_quiet_prints_nothing(folder: Path, tmp_path: Path) -> None:
    done = run("solve", folder, "-T", HORIZON, "--quiet", "--out", tmp_path / "p.csv")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "p.csv").exists()


def test_solve_starts_from_a_policy_file(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    start = mmdp.MarkovPolicy.random(train, HORIZON, seed=5)
    mmdp.save_policy(start, tmp_path / "start.csv")
    found = run("solve", folder, "-T", HORIZON, "--init", tmp_path / "start.csv", "--json").json
    expected = mmdp.solve(train, HORIZON, mmdp.CADP(init=start))
    assert found["trace"] == pytest.approx(expected.trace.tolist(), rel=1e-12)
    assert found["options"]["init"] == str(tmp_path / "start.csv")


def test_solve_takes_the_horizon_of_a_time_varying_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(4, 2, STATES, ACTIONS))
    transitions = rng.dirichlet(np.ones(STATES), size=(4, 2, STATES, ACTIONS))
    model = mmdp.MMDP(transitions, rewards, initial=[1, 0, 0])
    mmdp.save(model, tmp_path / "varying.npz")
    found = run("solve", tmp_path / "varying.npz", "--json").json
    assert found["horizon"] == 4
    assert found["value"] == pytest.approx(mmdp.solve(model).value, rel=1e-12)


def test_solve_notes_an_assumed_initial_distribution(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.csv").write_bytes((folder / "training.csv").read_bytes())
    done = run("solve", tmp_path / "alone.csv", "-T", 2)
    assert "no initial distribution is given" in done.err
    assert run("solve", tmp_path / "alone.csv", "-T", 2, "--json").err == ""


def test_solve_with_oracle_has_no_policy(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    found = run("solve", folder, "-T", HORIZON, "--method", "oracle", "--json").json
    assert found["value"] == pytest.approx(mmdp.solve(train, HORIZON, "oracle").value, rel=1e-12)
    assert "policy" not in found
    message = refused("solve", folder, "-T", 2, "--method", "oracle", "--out", tmp_path / "p.csv")
    assert "one policy per model" in message


# ---------------------------------------------------------------- solve: proofs
def best_by_enumeration(model: mmdp.MMDP, horizon: int) -> float:
    """The value of the best deterministic Markov policy, by trying every one in plain numpy."""
    states = np.arange(model.n_states)
    best = -np.inf
    for choice in itertools.product(range(model.n_actions), repeat=horizon * model.n_states):
        values = np.zeros((model.n_models, model.n_states))
        for actions in reversed(np.reshape(choice, (horizon, model.n_states))):
            p, r = model.transitions[:, states, actions], model.rewards[:, states, actions]
            values = r + model.discount * np.einsum("msn,mn->ms", p, values)
        best = max(best, float(model.weights @ values @ model.initial))
    return best


def test_certify_says_how_much_better_any_policy_could_be(folder: Path, train: mmdp.MMDP) -> None:
    arguments = ("solve", folder, "-T", 3, "--method", "wsu", "--certify", 5)
    best = best_by_enumeration(train, 3)
    found = run(*arguments, "--json").json
    assert found["value"] <= best + 1e-12
    assert found["bound"] >= best - 1e-12
    expected = (found["bound"] - found["value"]) / abs(found["value"])
    assert found["gap"] == pytest.approx(expected, abs=1e-12)
    assert found["bound_method"] in ("oracle", "qmdp", "pairs", "dual", "pair-dual")
    assert found["bounds"] == ("history" if found["bound_method"] in ("oracle", "qmdp", "pairs")
                               else "markov")  # fmt: skip
    text = " ".join(run(*arguments).out.split())
    if found["status"] == "OPTIMAL":
        assert "proven optimal: no" in text
    else:
        sentence = re.search(r"at most ([\d.-]+): within ([\d.]+)% of the best any", text)
        assert sentence is not None
        assert float(sentence[2]) / 100 >= found["gap"] - 1e-12


@pytest.mark.parametrize(
    ("status", "gap", "kind", "expected"),
    [
        ("COMPLETED", 0.00875, "history",
         "value 200.0000, at most 201.7500: within 0.88% of the best any policy can do"),
        ("TIME_LIMIT", 0.25, "markov",
         "value 200.0000, at most 250.0000: within 25% of the best any Markov policy can do"),
        ("OPTIMAL", 0.0, "markov",
         "value 200.0000, proven optimal: no Markov policy is better"),
        ("OPTIMAL", 1e-6, "history",
         "value 200.0000, proven optimal: no policy is better by more than 0.0001%"),
    ],
)  # fmt: skip
def test_the_sentence_of_a_certificate(
    train: mmdp.MMDP, status: str, gap: float, kind: Any, expected: str
) -> None:
    bound = 200 * (1 + gap)
    solution = dataclasses.replace(
        mmdp.solve(train, 2), value=200.0, bound=bound, status=mmdp.Status[status],
        details={"certificate": mmdp.Bound(bound, "pairs", kind)},
    )  # fmt: skip
    assert cli._certificate(solution) == expected


@pytest.mark.parametrize("method", ["exact", "milp"])
def test_methods_that_prove_report_their_bound(
    folder: Path, train: mmdp.MMDP, method: str, tmp_path: Path
) -> None:
    best = best_by_enumeration(train, 2)
    arguments = ("solve", folder, "-T", 2, "--method", method, "--time-limit", 60)
    found = run(*arguments, "--json").json
    assert found["status"] == "OPTIMAL"
    assert found["value"] == pytest.approx(best, rel=1e-9)
    assert found["bound"] == pytest.approx(best, rel=1e-5)
    assert found["gap"] < 1e-5
    assert (found["bound_method"], found["bounds"]) == (method, "markov")
    done = run(*arguments, "--out", tmp_path / "p.csv")
    assert "proven optimal: no Markov policy is better" in " ".join(done.out.split())
    policy = mmdp.load_policy(tmp_path / "p.csv")
    assert mmdp.evaluate(policy, train).mean == pytest.approx(best, rel=1e-9)


def test_certify_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    for method in ("qmdp", "mixts", "pomcp", "rollout"):
        message = refused("solve", nothing, "-T", 2, "--method", method, "--certify", 1)
        assert f"{method} has memory" in message
        assert "no such file" not in message
    assert "leave out" in refused("solve", nothing, "-T", 2, "--method", "oracle", "--certify", 1)
    for seconds in (0, -1, "nan"):
        assert "positive" in refused("solve", nothing, "-T", 2, "--certify", seconds)


def test_bound_prints_what_it_bounds(folder: Path, train: mmdp.MMDP) -> None:
    best = best_by_enumeration(train, 3)
    oracle = mmdp.solve(train, 3, "oracle").value
    found = run("bound", folder, "-T", 3, "--method", "oracle", "--json").json
    assert found["value"] == pytest.approx(oracle, rel=1e-9)
    assert (found["bounds"], found["method"], found["horizon"]) == ("history", "oracle", 3)
    done = run("bound", folder, "-T", 3, "--time-limit", 5)
    facts = done.facts()
    assert done.code == 0
    assert best - 1e-4 <= float(facts["value"]) <= oracle + 1e-4
    assert facts["holds for"] in ("every policy, also with memory", "every Markov policy")
    assert float(facts["CADP reaches"].split(",")[0]) <= best + 1e-4
    assert float(facts["seconds"]) >= 0
    tested = run("bound", folder, "-T", 3, "-m", "oracle", "--split", "test", "--json").json
    expected = mmdp.solve(mmdp.load(folder, split="test"), 3, "oracle").value
    assert tested["value"] == pytest.approx(expected, rel=1e-9)


def test_bound_refuses(folder: Path, tmp_path: Path) -> None:
    assert "did you mean 'pairs'?" in refused("bound", tmp_path / "no", "--method", "pair")
    assert "--time-limit must be" in refused("bound", folder, "-T", 2, "--time-limit", 0)
    assert "--horizon 50" in refused("bound", folder)


# ---------------------------------------------------------------- evaluate
@pytest.fixture(scope="module")
def policy_file(folder: Path, train: mmdp.MMDP, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("policy") / "policy.csv"
    mmdp.save_policy(mmdp.solve(train, HORIZON, "wsu").policy, out)
    return out


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


# ---------------------------------------------------------------- compare
def test_compare_finds_the_test_models_beside(
    folder: Path, train: mmdp.MMDP, test: mmdp.MMDP
) -> None:
    done = run("compare", folder, "-T", HORIZON, "--methods", "mvp,cadp,oracle", "--json")
    rows = done.json["methods"]
    assert [row["method"] for row in rows] == ["mvp", "cadp", "oracle"]
    for row in rows[:2]:
        solution = mmdp.solve(train, HORIZON, row["method"])
        report = mmdp.evaluate(solution, test)
        assert row["train"] == pytest.approx(solution.value, rel=1e-12)
        assert row["test"] == pytest.approx(report.mean, rel=1e-12)
        assert row["test_sd"] == pytest.approx(report.sd, rel=1e-10)
        assert row["test_regret"] == pytest.approx(report.bayes_regret, rel=1e-10)
    oracle = mmdp.solve(test, HORIZON, "oracle")
    assert rows[2]["test"] == pytest.approx(oracle.value, rel=1e-12)
    assert rows[2]["test_regret"] == pytest.approx(0, abs=1e-12)


def test_compare_gives_the_published_means(paper_data: Path) -> None:
    data = paper_data / "riverswim"
    rows = run("compare", data, "-T", 50, "--methods", "cadp,wsu,mvp", "--json").json["methods"]
    means = {row["method"]: f"{row['test']:.2f}" for row in rows}
    assert means == {"cadp": "204.74", "wsu": "203.62", "mvp": "201.87", "oracle": "210.60"}
    assert rows[0]["iterations"] == 3  # two-way sweeps; the paper's take 5


def test_compare_prints_and_writes_the_same_table(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    done = run("compare", folder, "-T", HORIZON, "--methods", "wsu,cadp", "--out", out)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["wsu", "cadp", "oracle"]
    for row in rows:
        line = next(x for x in done.out.splitlines() if x.startswith(row["method"]))
        shown = [float(x) for x in line.split()[1:5]]
        kept = [float(row[key]) for key in ("train", "test", "test_sd", "test_regret")]
        assert shown == pytest.approx(kept, abs=1e-4)


def test_compare_without_test_models(folder: Path) -> None:
    found = run("compare", folder, "-T", 2, "--no-test", "--methods", "wsu", "--json").json
    assert found["test_models"] is None
    assert "test" not in found["methods"][0]
    beside = run("compare", folder / "training.csv", "-T", 2, "--methods", "wsu", "--json").json
    assert beside["test_models"] == 7


def test_compare_takes_test_models_from_another_place(folder: Path, test: mmdp.MMDP) -> None:
    arguments = ("--test-data", folder / "test.csv", "--methods", "wsu", "--json")
    found = run("compare", folder / "training.csv", "-T", 2, *arguments).json
    assert found["test_models"] == test.n_models


def test_compare_says_when_test_models_are_missing(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.csv"
    alone.write_bytes((folder / "training.csv").read_bytes())
    assert run("compare", alone, "-T", 2, "--methods", "wsu", "--json").json["test_models"] is None
    assert "has no test models" in refused("compare", alone, "-T", 2, "--test")


# ---------------------------------------------------------------- policies with memory
def test_solve_shows_the_error_of_a_simulated_value(folder: Path, train: mmdp.MMDP) -> None:
    arguments = ("solve", folder, "-T", HORIZON, "--method", "qmdp", "--episodes", 50, "--seed", 3)
    expected = mmdp.solve(train, HORIZON, mmdp.QMDP(episodes=50), seed=3)
    value, sign, error = run(*arguments).facts()["value"].split()
    assert float(value) == pytest.approx(expected.value, abs=1e-4)
    assert sign == "±"
    assert float(error) == pytest.approx(expected.evaluation.stderr, rel=0.06)
    found = run(*arguments, "--json").json
    assert found["value"] == pytest.approx(expected.value, rel=1e-12)
    assert found["stderr"] == pytest.approx(expected.evaluation.stderr, rel=1e-12)
    assert "policy" not in found


def test_a_policy_with_memory_is_not_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmdp, "load", lambda *_, **__: pytest.fail("loaded"))
    for method in ("qmdp", "mixts", "pomcp", "rollout"):
        message = refused("solve", folder, "-T", 2, "-m", method, "--out", tmp_path / "p.csv")
        assert f"{method} remembers" in message
        assert "--out" in message
    assert list(tmp_path.iterdir()) == []


def test_compare_simulates_policies_with_memory(
    folder: Path, train: mmdp.MMDP, test: mmdp.MMDP
) -> None:
    arguments = ("compare", folder, "-T", HORIZON, "--methods", "qmdp,cadp,mixts")
    options = ("--episodes", 40, "--seed", 5)
    rows = run(*arguments, *options, "--json").json["methods"]
    assert [row["method"] for row in rows] == ["qmdp", "cadp", "mixts", "oracle"]
    for row, method in zip(rows, (mmdp.QMDP, None, mmdp.MixTS, None), strict=True):
        if method is None:
            assert (row["train_stderr"], row["test_stderr"]) == (None, None)
            continue
        solution = mmdp.solve(train, HORIZON, method(episodes=40), seed=5)
        report = mmdp.evaluate(solution, test, episodes=40, seed=5)
        assert row["train"] == pytest.approx(solution.value, rel=1e-12)
        assert row["train_stderr"] == pytest.approx(solution.evaluation.stderr, rel=1e-12)
        assert row["test"] == pytest.approx(report.mean, rel=1e-12)
        assert row["test_stderr"] == pytest.approx(report.stderr, rel=1e-12)
    exact = mmdp.evaluate(mmdp.solve(train, HORIZON), test)
    assert rows[1]["test"] == pytest.approx(exact.mean, rel=1e-12)
    lines = run(*arguments, *options).out.splitlines()
    assert lines[3].split() == [
        "method", "train", "±", "test", "±", "test", "sd", "regret", "seconds"
    ]  # fmt: skip
    shown = next(line for line in lines if line.startswith("qmdp")).split()
    assert float(shown[2]) == pytest.approx(rows[0]["train_stderr"], rel=0.06)
    assert float(shown[4]) == pytest.approx(rows[0]["test_stderr"], rel=0.06)


def test_episodes_are_for_policies_with_memory(folder: Path) -> None:
    assert "none of these has any" in refused("compare", folder, "-T", 2, "--episodes", 9)
    assert "only of qmdp" in refused("solve", folder, "-T", 2, "--episodes", 9)
    few = ("solve", folder, "-T", 2, "--method", "qmdp", "--episodes", 1)
    assert "at least 2" in refused(*few)


# ---------------------------------------------------------------- info
def test_info(folder: Path, train: mmdp.MMDP) -> None:
    facts = run("info", folder).facts()
    assert (facts["models"], facts["states"], facts["actions"]) == ("5", "3", "2")
    assert (facts["discount"], facts["horizon"], facts["weights"]) == ("0.9", "any", "uniform")
    assert facts["initial"] == "given, 3 states possible"
    assert facts["not allowed"] == "0 of 6 state-action pairs"
    low, _, high, *_ = facts["rewards"].rstrip(",").replace(",", "").split()
    assert [float(low), float(high)] == pytest.approx(
        [train.rewards.min(), train.rewards.max()], rel=1e-5
    )


def test_info_tells_labels_masks_weights_and_time(tmp_path: Path) -> None:
    transitions = np.zeros((2, 2, 2, 2))
    transitions[:, :, 0, :] = 0.5
    transitions[:, 0, 1, :] = 0.5
    model = mmdp.MMDP(
        np.repeat(transitions[None], 3, axis=0), np.ones((3, 2, 2, 2)), weights=[0.25, 0.75],
        states=["well", "[bold]ill"], actions=["wait", "treat"], models=["a", "b"],
    )  # fmt: skip
    mmdp.save(model, tmp_path / "m.npz")
    facts, found = (
        run("info", tmp_path / "m.npz").facts(),
        run("info", tmp_path / "m.npz", "--json"),
    )
    assert facts["states"] == "2: well, [bold]ill"
    listed = model.replace(states=["well, or so", "ill"])
    mmdp.save(listed, tmp_path / "listed.npz")
    assert run("info", tmp_path / "listed.npz").facts()["states"] == "2: 'well, or so', ill"
    assert facts["horizon"] == "3 (time-varying)"
    assert facts["weights"] == "0.25 to 0.75"
    assert facts["not allowed"] == "1 of 4 state-action pairs"
    assert facts["initial"] == "uniform (not given)"
    assert found.json["reward_range"] == [1.0, 1.0]
    assert found.json["labels"]["action"] == ["wait", "treat"]
    assert "no initial distribution" in found.json["warnings"][0]
    assert found.err == ""


# ---------------------------------------------------------------- domain
def test_domain_writes_what_the_library_draws(tmp_path: Path) -> None:
    out = tmp_path / "new" / "hiv"
    done = run(
        "domain", "hiv", "--out", out, "--seed", 4, "--models", 3, "--test-models", 2
    )  # fmt: skip
    assert done.code == 0
    drawn = mmdp.domains.hiv(n_train=3, n_test=2, seed=4)
    for split, model in zip(("train", "test"), drawn, strict=True):
        read = mmdp.load(out, split=split)
        np.testing.assert_allclose(read.transitions, model.transitions, rtol=0, atol=1e-12)
        np.testing.assert_allclose(read.rewards, model.rewards, rtol=1e-12)
        np.testing.assert_allclose(read.initial, model.initial, rtol=0, atol=1e-12)
        assert read.discount == model.discount
    header = (out / "training.csv").read_text().splitlines()[0]
    assert header == COLUMNS


def test_domain_lists_itself() -> None:
    for arguments in ((), ("--list",)):
        done = run("domain", *arguments)
        assert all(name in done.out for name in mmdp.domains.DOMAINS)
        assert fits(done.out)
    assert set(run("domain", "--json").json["domains"]) == set(mmdp.domains.DOMAINS)


def test_domain_takes_the_options_of_the_domain(tmp_path: Path) -> None:
    options = ("--set", "n_states=7", "--set", "branching=2", "--models", 2)
    run("domain", "garnet", "--out", tmp_path, *options)
    assert mmdp.load(tmp_path).n_states == 7


def test_domain_refuses(tmp_path: Path) -> None:
    assert "did you mean 'riverswim'?" in refused("domain", "riverswin", "--out", tmp_path)
    assert "--out FOLDER" in refused("domain", "hiv")
    assert "no option of hiv is called 'x'" in refused(
        "domain", "hiv", "--out", tmp_path, "--set", "x=1"
    )
    garnet = ("domain", "garnet", "--out", tmp_path, "--set")
    assert "garnet" in refused(*garnet, "concentration=high")
    assert "KEY=VALUE" in refused("domain", "hiv", "--out", tmp_path, "--set", "x")
    assert "at least 1" in refused("domain", "hiv", "--out", tmp_path, "--models", 0)
    assert "seed must be a whole number of at least 0, not -1" in refused(
        "domain", "hiv", "--out", tmp_path, "--seed", -1
    )
    assert "a folder is wanted" in refused("domain", "hiv", "--out", tmp_path / "new.csv")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "pol.csv").write_text("x")
    message = refused("domain", "hiv", "--out", tmp_path / "pol.csv")
    assert "pol.csv: is a file; choose the name of a folder" in message


# ---------------------------------------------------------------- bad input
def test_bad_calls_are_one_line_and_exit_2(folder: Path, policy_file: Path, tmp_path: Path) -> None:
    assert "did you mean 'cadp'?" in refused("solve", folder, "-T", 2, "--method", "capd")
    assert "did you mean 'mirror'?" in refused("compare", folder, "-T", 2, "--methods", "mirorr")
    assert "no backend is called 'gpu'" in refused("solve", folder, "-T", 2, "--backend", "gpu")
    assert "--horizon 50" in refused("solve", folder)
    assert "horizon must be at least 1, not 0" in refused("solve", folder, "-T", 0)
    assert "at least 1, not -1" in refused("solve", folder, "--horizon", -1)
    assert "valid integer" in refused("solve", folder, "--horizon", "soon")
    assert "starts must be" in refused("solve", folder, "-T", 2, "--starts", 0)
    assert "only of cadp" in refused("solve", folder, "-T", 2, "--method", "wsu", "--starts", 2)
    assert "policy file" in refused("solve", folder, "-T", 2, "--init", "nowhere")
    assert "--time-limit must be" in refused("solve", folder, "-T", 2, "--time-limit", 0)
    assert "Missing argument" in refused("solve")
    assert "No such option" in refused("solve", folder, "--horizons", 3)
    assert "Did you mean 'solve'?" in refused("slove", folder)
    assert "missing" in refused("info", tmp_path / "missing")
    assert "missing.csv" in refused("evaluate", tmp_path / "missing.csv", folder)
    assert "nosplit" in refused("info", folder, "--split", "nosplit")
    file = folder / "training.csv"
    assert "training.csv: --split test chooses" in refused(
        "evaluate", policy_file, file, "--split", "test"
    )
    assert "seed must be a whole" in refused("solve", tmp_path / "missing", "-T", 2, "--seed", -3)
    assert "compat" in refused("info", folder, "--compat", "older")


def test_a_policy_for_other_states_is_refused(folder: Path, tmp_path: Path) -> None:
    mmdp.save_policy(mmdp.MarkovPolicy([[0, 1, 0, 1]]), tmp_path / "p.csv")
    assert "state 3 does not exist" in refused("evaluate", tmp_path / "p.csv", folder)


def test_bad_data_names_the_options_that_help(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "training.csv").read_text().splitlines()
    (tmp_path / "twice.csv").write_text("\n".join([*lines, lines[1]]) + "\n")
    assert "--duplicates last or --duplicates sum" in refused("info", tmp_path / "twice.csv")
    lacking = [line for line in lines if not line.startswith("2,1,") or line.split(",")[3] != "4"]
    (tmp_path / "lacking.csv").write_text("\n".join(lacking) + "\n")
    message = refused("info", tmp_path / "lacking.csv")
    assert "; add them, or pass --missing-actions zero" in message
    assert "allow" not in message.split("; ")[-1]
    assert run("info", tmp_path / "lacking.csv", "--missing-actions", "zero").code == 0
    (tmp_path / "worded.csv").write_text("time,state,action\n0,well,0\n0,ill,0\n0,dead,0\n")
    message = refused("evaluate", tmp_path / "worded.csv", folder)
    assert "the model has no labels of states; give ids" in message
    ragged = {"format": "mmdp-policy-1", "policy": [[0, 1, 0], [1]]}
    (tmp_path / "ragged.json").write_text(json.dumps(ragged))
    message = refused("evaluate", tmp_path / "ragged.json", folder)
    assert message.endswith(
        "ragged.json: rows of different lengths; every time has the same states\n"
    )
    (tmp_path / "short.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert "--normalize" in refused("info", tmp_path / "short.csv")
    assert run("info", tmp_path / "short.csv", "--normalize").code == 0
    assert run("info", tmp_path / "twice.csv", "--compat", "cadp").code == 0


@pytest.mark.parametrize("name", ["policy.txt", "no/folder/policy.csv", "here.csv"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.csv").mkdir()
    monkeypatch.setattr(mmdp, "solve", lambda *_, **__: pytest.fail("solved"))
    assert name in refused("solve", folder, "-T", 2, "--out", tmp_path / name)
    assert [x.name for x in tmp_path.iterdir()] == ["here.csv"]


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


# ---------------------------------------------------------------- the shape of the output
def test_tables_fit_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(12), size=(9, 12, 3))
    big = mmdp.MMDP(
        transitions, -1e8 * rng.random((9, 12, 3)),
        states=[f"a state with a long name {i}" for i in range(12)],
        actions=["an action with a name", "b", "c"],
    )  # fmt: skip
    mmdp.save(big, tmp_path / "big.npz")
    monkeypatch.chdir(tmp_path)  # so that the path in the output is short
    for arguments in (
        ("solve", "big.npz", "-T", 9),
        ("compare", "big.npz", "-T", 9, "--test-data", "big.npz"),
        ("info", "big.npz"),
        ("solve", "big.npz", "-T", 2, "--certify", 0.5),
        ("bound", "big.npz", "-T", 2, "--time-limit", 0.5),
        ("solve", "--help"),
        ("compare", "--help"),
        ("bound", "--help"),
        ("--help",),
    ):
        done = run(*arguments)
        assert done.code == 0
        assert fits(done.out), done.out


@pytest.mark.parametrize("name", ["solve", "evaluate", "compare", "bound", "info", "domain"])
def test_help_teaches_with_examples(name: str) -> None:
    text = run(name, "--help").out
    examples = [line.strip() for line in text.split("Examples:")[1].splitlines() if line.strip()]
    assert examples
    assert all(line.startswith(f"mmdp {name}") for line in examples)


def test_examples_in_the_help_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option in an example exists: the call fails on its files, not on its usage."""
    monkeypatch.chdir(tmp_path)
    for command in cli.app.registered_commands:
        assert command.epilog is not None
        for line in command.epilog.splitlines()[1:]:
            words = line.split()[1:]
            if words[0] not in ("bench", "domain", "paper"):  # these need no files
                assert "--help" not in refused(*words)


def test_no_command_prints_the_help() -> None:
    assert run().out.rstrip() == run("--help").out.rstrip()


def test_interruption_without_a_result_exits_130(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mmdp, "solve", interrupted)
    done = run("solve", folder, "-T", 2)
    assert (done.code, done.out) == (130, "")
    assert done.err == "mmdp: interrupted, nothing was found yet\n"


# ---------------------------------------------------------------- real processes
def process(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mmdp", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def test_process_solves_when_piped(folder: Path, train: mmdp.MMDP) -> None:
    running = process("solve", folder, "-T", HORIZON, "--json")
    out, err = running.communicate(timeout=120)
    assert (running.returncode, err) == (0, "")
    found = Result(0, out, err).json
    assert found["value"] == pytest.approx(mmdp.solve(train, HORIZON).value, rel=1e-12)


def test_process_prints_labels_that_its_output_cannot_hold(tmp_path: Path) -> None:
    model = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], actions=["wait", "zusätzlich"])
    mmdp.save(model, tmp_path / "m.npz")
    running = process(
        "solve", tmp_path / "m.npz", "-T", 1, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    assert "zus?tzlich" in out
    assert fits(out)


def test_process_reports_bad_input_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    running = process("solve", tmp_path / "empty.csv", "-T", 2)
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (2, "")
    assert err.startswith("mmdp: ")
    assert err.count("\n") == 1


def test_process_tells_its_version_and_loads_little() -> None:
    code = (
        "import sys; from mmdp import cli\n"
        "try: cli.app(['--help'])\n"
        "except SystemExit as stop: print(stop.code)\n"
        "heavy = {'pandas', 'numba', 'scipy', 'matplotlib', 'jax'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.endswith("0\nheavy []\n")
    running = process("--version")
    assert running.communicate(timeout=120)[0] == f"mmdp {mmdp.__version__}\n"


def test_process_is_quiet_when_its_reader_leaves(folder: Path) -> None:
    running = process("info", folder, "--json")
    assert running.stdout is not None
    running.stdout.close()
    assert running.stderr is not None
    assert running.stderr.read() == ""
    assert running.wait(timeout=120) == 1


def test_process_interrupted_prints_the_best_so_far(folder: Path, tmp_path: Path) -> None:
    """Far more random starts than there is time for; Ctrl-C as soon as the solve is under way."""
    out = tmp_path / "policy.csv"
    started = tmp_path / "started"
    code = (
        "import sys, pathlib, mmdp; from mmdp import cli\n"
        "plain = cli.Working.progress\n"
        "def progress(self, p):\n"
        f"    pathlib.Path({str(started)!r}).touch()\n"
        "    plain(self, p)\n"
        "cli.Working.progress = progress\n"
        "cli.main()"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code, "solve", str(folder), "-T", "60", "--starts", "1000000",
         "--out", str(out), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    text, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    found = json.loads(text)
    assert found["status"] == "INTERRUPTED"
    assert found["value"] == pytest.approx(max(found["trace"]), rel=1e-12)
    assert mmdp.load_policy(out).horizon == 60


def test_process_interrupted_while_it_imports_leaves_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'mmdp.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from mmdp.__main__ import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_outside_a_command_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 130


def interrupt_from_the_callback(call: Any) -> Any:
    """The call with Ctrl-C sent by this process at the first progress report."""

    def run(*arguments: Any, callback: Any, **options: Any) -> Any:
        def hear(progress: Any) -> None:
            callback(progress)
            signal.raise_signal(signal.SIGINT)

        return call(*arguments, callback=hear, **options)

    return run


def test_an_interrupted_solve_or_bound_prints_and_exits_130(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmdp, "solve", interrupt_from_the_callback(mmdp.solve))
    done = run("solve", folder, "-T", HORIZON)
    assert done.code == 130
    assert "INTERRUPTED" in done.out
    monkeypatch.setattr(mmdp, "bound", interrupt_from_the_callback(mmdp.bound))
    done = run("bound", folder, "-T", HORIZON, "--method", "pairs")
    assert done.code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# ---------------------------------------------------------------- paper
def test_paper_writes_its_files_and_reuses_them(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    first = run("paper", "--domain", "HIV", "--out", out)
    assert first.code == 0, first.err
    assert {p.name for p in out.iterdir() if p.is_file()} == {
        "results.csv", "figure.png", "regret.png", "queries.png", "paper.html",
    }  # fmt: skip
    assert "Mean return over the test models" in first.out
    assert max(map(len, first.out.splitlines()[:-1])) <= 80  # the last line names a long path
    again = run("paper", "--domain", "HIV", "--out", out)
    assert "30 of 30 results reused" in again.out
    document = run("paper", "--domain", "HIV", "--out", out, "--json").json
    assert document["results"][0]["method"] == "CADP"


def test_paper_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    assert "no domain is called 'XX'" in refused("paper", "--domain", "XX", "--out", tmp_path)
    missing = tmp_path / "none"
    assert "does not exist" in refused("paper", "--data", missing, "--out", tmp_path)
    blocker = tmp_path / "file"
    blocker.write_text("x")
    assert "cannot make the folder" in refused("paper", "--out", blocker / "out")
    assert "is a file" in refused("paper", "--out", blocker)
    new = tmp_path / "new"
    message = refused("paper", "--seed", -3, "--out", new)
    assert message == "mmdp: seed must be a whole number of at least 0, not -3\n"
    assert not new.exists()
    (tmp_path / "data").mkdir()
    message = refused("paper", "--data", tmp_path / "data", "--out", new)
    assert "training.csv in the folders riverswim, population, population_small" in message
    assert not new.exists()


def test_paper_interrupted_says_what_is_kept_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C inside the third cell, whose solver returns its best so far: that is not kept."""
    plain, calls = mmdp.solve, []

    def solve(model: mmdp.MMDP, horizon: int, method: Any = "cadp", **options: Any) -> Any:
        found = plain(model, horizon, method, **options)
        if model.n_models > 8:  # not the one that compiles
            calls.append(found.method)
        if len(calls) == 3:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        return found

    data = tmp_path / "data"
    train, test = mmdp.domains.hiv(n_train=9, n_test=9, seed=0)
    data.mkdir()
    mmdp.save(train, data / "hiv")
    mmdp.save(test, data / "hiv", split="test")
    out = tmp_path / "out"
    arguments = ("paper", "--domain", "HIV", "--domain", "INV", "--data", data, "--out", out)
    monkeypatch.setattr(mmdp, "solve", solve)
    done = run(*arguments)
    assert (done.code, done.out) == (130, "")
    first, *_, last = done.err.splitlines()
    assert first == f"mmdp: note: {data} has no models of INV; these are generated"
    kept = out / "cells"
    assert last == f"mmdp: interrupted; 2 of 39 results kept in {kept}; run again to go on"
    assert {path.name.split("-")[2] for path in kept.iterdir()} == {"CADP", "WSU"}


# ---------------------------------------------------------------- fit, report, plot
LOG = """episode,time,state,action,next_state,reward
1,0,well,wait,well,1
1,1,well,wait,ill,1
1,2,ill,treat,well,-1
2,0,well,treat,well,0
2,1,well,wait,ill,1
2,2,ill,wait,ill,0
2,3,ill,treat,well,-1
"""


def test_from_a_log_to_a_report_in_three_commands(tmp_path: Path) -> None:
    log, models, policy, page = (
        tmp_path / name for name in ("log.csv", "models", "policy.csv", "report.html")
    )
    log.write_text(LOG)
    fitted = run("fit", log, "--models", 30, "--test-models", 10, "--discount", 0.9, "-o", models)
    assert fitted.code == 0, fitted.err
    assert fitted.facts()["models"] == "30 to solve, 10 held out"
    assert fitted.facts()["log"] == "7 transitions"
    assert run("solve", models, "-T", 8, "-o", policy).code == 0
    done = run("report", models, "--policy", policy, "--out", page)
    assert done.code == 0, done.err
    text = page.read_text(encoding="utf-8")
    value = mmdp.evaluate(mmdp.load_policy(policy), mmdp.load(models)).mean
    assert f"{value:.4g}" in text
    assert "treat" in text
    picture = tmp_path / "policy.svg"
    assert run("plot", "policy", models, "--policy", policy, "--out", picture).code == 0
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_fit_and_plot_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG.replace("next_state", "next_sate"))
    message = refused("fit", log, "--out", tmp_path / "models")
    assert "next_state" in message
    assert not (tmp_path / "models").exists()
    assert "no picture is called 'polcy'" in refused("plot", "polcy", tmp_path, "--out", "x.png")
