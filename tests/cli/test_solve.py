"""mmdp solve: figures, files, proofs and policies with memory.

Figures are compared with the library called on the same arrays, which never pass through a file.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.cli.solve import proof
from mmdp.methods import able
from mmdp.testing import best_by_enumeration
from mmdp.words import percent
from tests.cli.calls import ACTIONS, HORIZON, STATES, refused, run
from tests.instances import door
from tests.noted import full_disk
from tests.processes import PATIENCE, running


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
    starts = len(expected.details["starts"])
    assert facts["iterations"] == f"{expected.iterations}, best of {starts} starts"
    assert "LOCAL_OPTIMUM: no change of the action" in done.out
    assert "5 models, 3 states, 2 actions, discount 0.9" in done.out


def test_solve_previews_a_small_policy(folder: Path, train: mmdp.MMDP) -> None:
    lines = run("solve", folder, "-T", 1).out.splitlines()
    row = next(line for line in lines if line.startswith("0 "))
    assert [int(x) for x in row.split()[1:]] == mmdp.solve(train, 1).policy.actions[0].tolist()


def test_solve_prints_ages_and_the_unit(train: mmdp.MMDP, tmp_path: Path) -> None:
    mmdp.save(train.replace(times={"age": [40, 45]}, unit="ml"), tmp_path / "aged")
    done = run("solve", tmp_path / "aged", "-T", 9)
    value = mmdp.solve(train, 9).value
    assert float(done.facts()["value"]) == pytest.approx(value, abs=1e-4)
    assert ", rewards in ml\n" in done.out
    assert "policy: action by age and state" in done.out
    assert re.search(r"^(4[05]|50)-?\d* ", done.out, re.MULTILINE)


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


def test_a_full_disk_does_not_lose_the_policy(
    folder: Path, train: mmdp.MMDP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out = mmdp.solve(train, HORIZON).policy, tmp_path / "policy.csv"
    call = ("solve", folder, "-T", HORIZON, "--out", out)
    full_disk(monkeypatch, tmp_path)
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    done = run(*call)
    (written,) = elsewhere.glob("*/policy.csv")
    assert done.code == 1
    assert "policy.csv: cannot be written (No space left on device)" in done.err
    assert f"written to {written} instead" in done.err
    assert f"policy written to {written}" in done.out
    assert mmdp.load_policy(written, train) == found
    full_disk(monkeypatch)
    done = run(*call, "--checkpoint", tmp_path / "best.json", "--quiet")
    assert done.code == 1
    assert "note: " in done.err
    assert "best.json: cannot be written (No space left on device)" in done.err
    assert "it is printed instead" in done.err
    assert done.out == found.to_frame().to_csv(index=False)
    done = run(*call, "--json")
    assert (done.code, done.json["policy"]["actions"]) == (1, found.actions.tolist())


def test_a_full_disk_does_not_lose_a_plan_by_belief(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = mmdp.domains.two_models().train
    mmdp.save(models, tmp_path / "two.npz")
    found = mmdp.solve(models, 2, "grid").policy
    full_disk(monkeypatch)
    out = tmp_path / "plan.json"
    done = run("solve", tmp_path / "two.npz", "-T", 2, "--method", "grid", "--out", out, "--quiet")
    assert (done.code, "it is printed instead" in done.err) == (1, True)
    monkeypatch.undo()
    out.write_text(done.out)
    assert mmdp.load_policy(out, models) == found


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


def test_solve_takes_a_number_of_starts_or_auto(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclasses.dataclass(frozen=True)
    class Asked:
        starts: int | str

        def __post_init__(self) -> None:
            raise mmdp.InputError(f"asked for {self.starts!r}")

    monkeypatch.setitem(mmdp.METHODS, "cadp", Asked)
    for given, understood in (("auto", "'auto'"), (3, "3")):
        message = refused("solve", folder, "-T", 2, "--starts", given)
        assert message == f"mmdp: asked for {understood}\n"
    assert "neither a whole number nor auto" in refused("solve", folder, "-T", 2, "--starts", "few")


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


def test_solve_shows_the_error_of_a_simulated_value(folder: Path, train: mmdp.MMDP) -> None:
    arguments = ("solve", folder, "-T", HORIZON, "--method", "qmdp", "--episodes", 50, "--seed", 3)
    expected = mmdp.solve(train, HORIZON, mmdp.QMDP(episodes=50), seed=3)
    value, sign, error = run(*arguments).facts()["value"].split()
    assert float(value) == pytest.approx(expected.value, abs=1e-4)
    assert sign == "±"
    assert float(error) == pytest.approx(2 * expected.evaluation.stderr, rel=0.06)
    found = run(*arguments, "--json").json
    assert found["value"] == pytest.approx(expected.value, rel=1e-12)
    assert found["stderr"] == pytest.approx(expected.evaluation.stderr, rel=1e-12)
    assert "policy" not in found


def test_certify_says_how_much_better_any_policy_could_be(folder: Path, train: mmdp.MMDP) -> None:
    arguments = ("solve", folder, "-T", 3, "--method", "wsu", "--certify", 0.5)
    best = best_by_enumeration(train, 3)
    found = run(*arguments, "--json").json
    assert found["value"] <= best + 1e-12
    assert found["bound"] >= best - 1e-12
    expected = (found["bound"] - found["value"]) / abs(found["value"])
    assert found["gap"] == pytest.approx(expected, abs=1e-12)
    of_every_policy = found["bound_method"] in ("oracle", "qmdp", "pairs")
    assert found["bounds"] == ("history" if of_every_policy else "markov")
    text = " ".join(run(*arguments).out.split())
    if found["status"] == "OPTIMAL":
        assert "proven optimal: no" in text
    else:
        sentence = re.search(
            r"at most ([\d.-]+): the best .* could have up to ([\d.]+) \(([\d.,]+)% of what", text
        )
        assert sentence is not None
        assert float(sentence[2]) >= found["bound"] - found["value"] - 1e-12


@pytest.mark.parametrize(
    ("status", "gap", "kind", "expected"),
    [
        ("COMPLETED", 0.00875, "history",
         "value 200.0000, at most 201.7500: the best policy could have up to 1.75 more"),
        ("TIME_LIMIT", 0.25, "markov",
         "value 200.0000, at most 250.0000: the best Markov policy could have up to 50 more"),
        ("OPTIMAL", 0.0, "markov",
         "value 200.0000, proven optimal: no Markov policy is better"),
        ("OPTIMAL", 0.0, "deterministic markov",
         "value 200.0000, proven optimal: no deterministic Markov policy is better"),
        ("OPTIMAL", 1e-6, "history",
         "value 200.0000, proven optimal: no policy is better by more than 0.000200"),
    ],
)  # fmt: skip
def test_the_sentence_of_a_certificate(
    train: mmdp.MMDP, status: str, gap: float, kind: Any, expected: str
) -> None:
    bound = 200 * (1 + gap)
    solution = dataclasses.replace(
        mmdp.solve(train, 2), value=200.0, status=mmdp.Status[status],
        certificate=mmdp.Bound(bound, "pairs", kind),
    )  # fmt: skip
    assert proof(solution) == expected


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
    for method in (*able(policy="belief"), "oracle"):
        message = refused("solve", nothing, "-T", 2, "--method", method, "--certify", 1)
        assert f"--certify bounds a policy of time and state, and {method} " in message
        assert "choose --method cadp, wsu, " in message
        assert "no such file" not in message
    for seconds in (0, -1, "nan"):
        assert "positive" in refused("solve", nothing, "-T", 2, "--certify", seconds)


def test_a_policy_with_memory_is_not_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmdp, "load", lambda *_, **__: pytest.fail("loaded"))
    for method in able(policy="belief"):
        message = refused("solve", folder, "-T", 2, "-m", method, "--out", tmp_path / "p.csv")
        assert f"{method} remembers" in message
        plan = (
            "leave out --out, write a plan for up to four models with --method grid --out "
            "policy.json"
        )
        instead = "give --out policy.json" if method == "grid" else plan
        assert f"; {instead}, or choose --method cadp, " in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["policy.txt", "no/folder/policy.csv", "here.csv"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.csv").mkdir()
    monkeypatch.setattr(mmdp, "solve", lambda *_, **__: pytest.fail("solved"))
    assert name in refused("solve", folder, "-T", 2, "--out", tmp_path / name)
    assert [x.name for x in tmp_path.iterdir()] == ["here.csv"]


def test_process_interrupted_prints_the_best_so_far(folder: Path, tmp_path: Path) -> None:
    """Far more random starts than there is time for; Ctrl-C as soon as the solve is under way."""
    out = tmp_path / "policy.csv"
    code = (
        "from mmdp.cli import main\n"
        "from mmdp.cli.console import Working\n"
        "plain = Working.progress\n"
        "def progress(self, p):\n"
        "    Working.progress = plain\n"
        "    print('started', flush=True)\n"
        "    plain(self, p)\n"
        "Working.progress = progress\n"
        "main()"
    )
    many = ("-T", 60, "--starts", 1_000_000, "--out", out, "--json")
    with running(sys.executable, "-c", code, "solve", folder, *many) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        text, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    found = json.loads(text)
    assert found["status"] == "INTERRUPTED"
    assert found["value"] == pytest.approx(max(found["trace"]), rel=1e-12)
    assert mmdp.load_policy(out).horizon == 60


# ---------------------------------------------------------------------- kinds of policy
def test_a_stationary_policy_is_solved_written_and_evaluated(
    folder: Path, train: mmdp.MMDP, test: mmdp.MMDP, tmp_path: Path
) -> None:
    out = tmp_path / "rule.csv"
    expected = mmdp.solve(train, float("inf"))
    facts = run("solve", folder, "--horizon", "inf", "--out", out).facts()
    assert float(facts["value"]) == pytest.approx(expected.value, abs=1e-4)
    assert facts["price"] == expected.price_text
    assert out.read_text().startswith("state,action")
    told = run("solve", folder, "-T", "inf", "--json").json
    assert told["horizon"] is None
    assert told["kind"] == "stationary"
    assert told["policy"]["actions"] == expected.policy.actions.tolist()
    shown = run("solve", folder, "-T", "inf").out
    assert "policy: action by state" in shown
    found = run("evaluate", out, folder, "--split", "test").facts()
    assert float(found["mean"]) == pytest.approx(mmdp.evaluate(expected, test).mean, abs=1e-4)
    for command in (["report", folder], ["plot", "policy", folder]):
        message = refused(*command, "--policy", out, "--out", tmp_path / "x.png")
        assert "say over how many decisions with --horizon N" in message


def test_tied_and_monotone_policies(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    groups = tmp_path / "groups.csv"
    groups.write_text("state,group\n" + "".join(f"{state},all\n" for state in range(STATES)))
    facts = run("solve", folder, "-T", HORIZON, "--groups", groups).facts()
    tied = mmdp.solve(train, HORIZON, policy=mmdp.Tied(["all"] * STATES))
    assert float(facts["value"]) == pytest.approx(tied.value, abs=1e-4)
    best = tied.details["unrestricted"]
    constant = [
        mmdp.evaluate(mmdp.MarkovPolicy(np.full((HORIZON, STATES), a), n_actions=2), train).mean
        for a in range(2)
    ]
    share = percent(tied.price / (best - max(constant)))
    assert facts["price"] == f"{tied.price_text} ({share} of what is at stake)"
    facts = run("solve", folder, "-T", HORIZON, "--monotone").facts()
    rising = mmdp.solve(train, HORIZON, policy="monotone")
    assert float(facts["value"]) == pytest.approx(rising.value, abs=1e-4)
    same = run("solve", folder, "-T", HORIZON, "--policy", "monotone", "--json").json
    assert same["value"] == rising.value
    assert same["price"] == rising.price


def test_a_tree_is_solved_written_and_read(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    out, features = tmp_path / "tree.json", tmp_path / "features.csv"
    features.write_text("state,half\n" + "".join(f"{s},{s < 2}\n" for s in range(STATES)))
    asked = ("solve", folder, "-T", HORIZON, "--leaves", 2)
    shown, by_half = run(*asked, "--out", out), run(*asked, "--features", features, "--json")
    expected = mmdp.solve(train, HORIZON, policy=mmdp.Tree(2))
    assert shown.facts()["price"] == expected.price_text
    assert shown.out.endswith(f"\n{expected.policy.text()}\n")
    assert mmdp.load_policy(out, train).text() == expected.policy.text()
    table = run(*asked, "--out", tmp_path / "tree.csv")
    assert "without its questions; .json keeps them" in " ".join(table.err.split())
    by_name = mmdp.solve(train, HORIZON, policy=mmdp.Tree(2, features))
    assert by_half.json["policy"]["rule"] == by_name.policy.text()
    found = run("evaluate", out, folder, "--split", "train").facts()
    assert float(found["mean"]) == pytest.approx(expected.value, abs=1e-4)
    both = refused(*asked, "--memory", 2)
    assert "a policy is of one kind, not memory and tree" in both
    features.write_text("state,half\n0,1\n")
    assert "has no value for state" in refused(*asked, "--features", features)


def test_a_rule_that_draws_is_solved_written_read_and_exported(tmp_path: Path) -> None:
    """The case that no rule of one action per state gets right: -1 / (1 - .99 / 2)."""
    data, out = tmp_path / "door.npz", tmp_path / "rule.csv"
    mmdp.save(door(), data)
    asked = ("solve", data, "-T", "inf", "--randomised")
    shown = run(*asked, "--certify", 0.2)
    best = -1 / (1 - 0.99 / 2)
    assert float(shown.facts()["value"]) == pytest.approx(best, abs=1e-4)
    assert shown.facts()["drawing"].startswith(
        "drawing actions at random earns 48.5 (99% of what is at stake),"
    )
    assert re.search(r"in +(left 50%, right 50%|right 50%, left 50%)\n", shown.out)
    for target in (out, tmp_path / "rule.json", tmp_path / "rule.parquet"):
        written = run(*asked, "--out", target, "--json").json
        assert written["tossing"] == pytest.approx(best + 50.5)
        found = run("evaluate", target, data).facts()
        assert float(found["mean"]) == pytest.approx(best, abs=1e-4)
    for suffix in ("py", "js", "sql", "xlsx", "html"):
        assert run("export", out, "--out", tmp_path / f"rule.{suffix}").code == 0
    space: dict[str, Any] = {}
    exec((tmp_path / "rule.py").read_text(), space)
    assert space["decide"]("in") == pytest.approx({"left": 0.5, "right": 0.5})
    assert "--randomised" in refused(*asked, "--leaves", 2)
    table = run("solve", data, "-T", 4, "--objective", "worst", "--randomised", "--json").json
    sharp = run("solve", data, "-T", 4, "--objective", "worst", "--json").json
    assert table["value"] > sharp["value"] + 0.1
    page = tmp_path / "page.html"
    assert run("report", data, "--policy", out, "-T", 50, "--seconds", 9, "--out", page).code == 0
    earned = best * (1 - 0.495**50) + (1 - 0.99**50) / 0.02 + 0.5  # over 50 decisions
    words = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
    assert f"drawing actions at random earns {earned:.1f} (" in words
    today = run("compare", data, "-T", 50, "--compare", f"coin={out}", "--json").json
    coin = next(x for x in today["methods"] if x["method"] == "coin")
    assert coin["train"] == pytest.approx(best * (1 - 0.495**50))


def test_kinds_that_cannot_be_had(folder: Path, tmp_path: Path) -> None:
    groups = tmp_path / "groups.csv"
    groups.write_text("state,group\n0,all\n")
    assert "the groups leave out" in refused("solve", folder, "-T", 4, "--groups", groups)
    assert "no such file" in refused("solve", folder, "-T", 4, "--groups", tmp_path / "no.csv")
    needs = refused("solve", folder, "-T", 4, "--policy", "tied")
    assert needs == "mmdp: a tied policy needs groups; give them with --groups FILE\n"
    both = refused("solve", folder, "-T", 4, "--monotone", "--policy", "stationary")
    assert "a policy is of one kind, not monotone and stationary" in both
    able_ = refused("solve", folder, "-T", "inf", "--method", "wsu")
    assert able_ == (
        "mmdp: wsu cannot do this: it plans backwards from a last decision; choose --method cadp, "
        "mvp, qmdp, mixts, rollout, grid or exact\n"
    )
    assert "neither a whole number nor inf" in refused("solve", folder, "-T", "many")
    for command in (("report", folder), ("plot", "policy", folder, "--out", "x.png")):
        assert "give --policy rule.csv --horizon 50" in refused(*command, "-T", "inf")


def test_a_stationary_file_starts_a_search_and_is_shown_over_a_horizon(
    folder: Path, train: mmdp.MMDP, tmp_path: Path
) -> None:
    rule, again, page = tmp_path / "rule.csv", tmp_path / "again.csv", tmp_path / "page.html"
    endless = run("solve", folder, "-T", "inf", "--out", rule, "--json").json
    warm = run("solve", folder, "-T", "inf", "--init", rule, "--json").json
    assert warm["value"] >= endless["value"] - 1e-12
    assert run("solve", folder, "-T", HORIZON, "--init", rule, "--out", again).code == 0
    policy = mmdp.load_policy(rule, train)
    started = mmdp.load_policy(again, train)
    before, after = (mmdp.evaluate(x, train).mean for x in (policy.over(HORIZON), started))
    assert after >= before - 1e-12
    drawn = run("plot", "policy", folder, "--policy", rule, "-T", HORIZON, "-o", tmp_path / "x.svg")
    assert drawn.code == 0
    shown = ("--policy", rule, "-T", HORIZON, "--methods", "wsu", "--out", page)
    assert run("report", folder, *shown).code == 0
    assert "<html" in page.read_text(encoding="utf-8")


def test_a_fixed_policy_is_for_python(folder: Path) -> None:
    assert "in Python only" in refused("solve", folder, "-T", 4, "--policy", "fixed")
    assert "fixed in Python only" in " ".join(run("solve", "--help").out.split())
