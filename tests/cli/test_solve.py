"""mmdp solve: figures, files, proofs and policies with memory.

Figures are compared with the library called on the same arrays, which never pass through a file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.methods import methods_supporting
from mmdp.core.testing import find_best_markov_value
from tests.cli.calls import ACTIONS, HORIZON, STATES, run, run_refused
from tests.faults import fake_full_disk
from tests.instances import make_door_model
from tests.processes import TIMEOUT, run_process


def test_solve_prints_the_librarys_figures(folder: Path, train: mmdp.MMDP) -> None:
    result = run("solve", folder, "--horizon", HORIZON)
    expected = mmdp.solve(train, HORIZON)
    facts = result.parse_facts()
    assert result.code == 0
    assert result.err == ""
    assert float(facts["value"]) == pytest.approx(expected.value, abs=1e-4)
    statistics = re.findall(r"-?[\d.]+(?=,|$)", facts["over models"])
    evaluation = expected.evaluation
    assert [float(x) for x in statistics] == pytest.approx(
        [evaluation.sd, evaluation.worst, evaluation.cvar(0.1)], abs=1e-4
    )
    assert facts["iterations"].startswith(f"{expected.iterations}, ")
    assert "LOCAL_OPTIMUM: no change of the action" in result.out
    assert "5 models, 3 states, 2 actions, discount 0.9" in result.out


def test_solve_previews_a_small_policy(folder: Path, train: mmdp.MMDP) -> None:
    table = run("solve", folder, "-T", 2).out.split("time  state  action\n")[1]
    actions = [int(line.split()[2]) for line in table.splitlines()]
    assert actions == mmdp.solve(train, 2).policy.actions.ravel().tolist()
    assert "the policy has 27 rows; write it with --out" in run("solve", folder, "-T", 9).out


def test_solve_prints_ages_and_the_unit(train: mmdp.MMDP, tmp_path: Path) -> None:
    mmdp.save(train.replace(time_labels={"age": [40, 45]}, unit="ml"), tmp_path / "aged")
    result = run("solve", tmp_path / "aged", "-T", 3)
    value = mmdp.solve(train, 3).value
    assert float(result.parse_facts()["value"]) == pytest.approx(value, abs=1e-4)
    assert re.search(r"^ +2 +50 +0 ", result.out, re.MULTILINE)


def test_solve_json_is_one_document_at_full_precision(folder: Path, train: mmdp.MMDP) -> None:
    result = run("solve", folder, "-T", HORIZON, "--method", "gradient", "--seed", 3, "--json")
    expected = mmdp.solve(train, HORIZON, "gradient", seed=3)
    output = result.json
    assert result.err == ""
    assert output["value"] == pytest.approx(expected.value, rel=1e-13)
    assert output["trace"] == pytest.approx(expected.trace.tolist(), rel=1e-12)
    assert output["policy"]["actions"] == expected.policy.actions.tolist()
    assert (output["status"], output["seed"]) == (expected.status.name, 3)
    assert output["options"]["init"] == "uniform"


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_solve_writes_a_policy_that_can_be_read_again(
    folder: Path, train: mmdp.MMDP, tmp_path: Path, ending: str
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    out = tmp_path / f"policy.{ending}"
    result = run("solve", folder, "-T", HORIZON, "--out", out)
    assert f"policy written to {out}" in result.out.replace("\n", "")
    assert mmdp.load_policy(out, train) == mmdp.solve(train, HORIZON).policy


def test_a_full_disk_does_not_lose_the_policy(
    folder: Path, train: mmdp.MMDP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, out = mmdp.solve(train, HORIZON).policy, tmp_path / "policy.csv"
    call = ("solve", folder, "-T", HORIZON, "--out", out)
    fake_full_disk(monkeypatch)
    result = run(*call, "--checkpoint", tmp_path / "best.json", "--quiet")
    assert result.code == 1
    assert "note: " in result.err
    assert "best.json: cannot be written (No space left on device)" in result.err
    assert "it is printed instead" in result.err
    in_json = run(*call, "--json")
    assert (in_json.code, in_json.json["policy"]["actions"]) == (1, policy.actions.tolist())
    monkeypatch.undo()
    (tmp_path / "printed.json").write_text(result.out)
    assert mmdp.load_policy(tmp_path / "printed.json", train) == policy


def test_a_full_disk_does_not_lose_a_belief_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = mmdp.domains.two_models().train
    mmdp.save(models, tmp_path / "two.npz")
    policy = mmdp.solve(models, 2, "grid").policy
    fake_full_disk(monkeypatch)
    out = tmp_path / "plan.json"
    result = run(
        "solve", tmp_path / "two.npz", "-T", 2, "--method", "grid", "--out", out, "--quiet"
    )
    assert (result.code, "it is printed instead" in result.err) == (1, True)
    monkeypatch.undo()
    out.write_text(result.out)
    assert mmdp.load_policy(out, models) == policy


def test_solve_quiet_prints_nothing(folder: Path, tmp_path: Path) -> None:
    result = run("solve", folder, "-T", HORIZON, "--quiet", "--out", tmp_path / "p.csv")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert (tmp_path / "p.csv").exists()


def test_solve_starts_from_a_policy_file(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    init = mmdp.policies.MarkovPolicy.random(train, HORIZON, seed=5)
    mmdp.save_policy(init, tmp_path / "start.csv")
    output = run("solve", folder, "-T", HORIZON, "--init", tmp_path / "start.csv", "--json").json
    expected = mmdp.solve(train, HORIZON, mmdp.methods.CADP(init=init))
    assert output["trace"] == pytest.approx(expected.trace.tolist(), rel=1e-12)
    assert output["options"]["init"] == str(tmp_path / "start.csv")


def test_solve_takes_a_number_of_inits_or_auto(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclasses.dataclass(frozen=True)
    class RecordingCADP:
        n_init: int | str

        def __post_init__(self) -> None:
            raise mmdp.InputError(f"asked for {self.n_init!r}")

    monkeypatch.setitem(mmdp.methods.METHODS, "cadp", RecordingCADP)
    for argument, parsed in (("auto", "'auto'"), (3, "3")):
        message = run_refused("solve", folder, "-T", 2, "--n-init", argument)
        assert message == f"mmdp: asked for {parsed}\n"
    assert "expected auto|N" in run_refused("solve", folder, "-T", 2, "--n-init", "few")


def test_solve_takes_the_horizon_of_a_time_varying_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(4, 2, STATES, ACTIONS))
    transitions = rng.dirichlet(np.ones(STATES), size=(4, 2, STATES, ACTIONS))
    model = mmdp.MMDP(transitions, rewards, initial=[1, 0, 0])
    mmdp.save(model, tmp_path / "varying.npz")
    output = run("solve", tmp_path / "varying.npz", "--json").json
    assert output["horizon"] == 4
    assert output["value"] == pytest.approx(mmdp.solve(model).value, rel=1e-12)


def test_solve_says_that_an_initial_distribution_is_assumed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.csv").write_bytes((folder / "training.csv").read_bytes())
    result = run("solve", tmp_path / "alone.csv", "-T", 2)
    assert "initial uniform (not given)" in result.out


def test_solve_with_oracle_has_no_policy(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    output = run("solve", folder, "-T", HORIZON, "--method", "oracle", "--json").json
    assert output["value"] == pytest.approx(mmdp.solve(train, HORIZON, "oracle").value, rel=1e-12)
    assert "policy" not in output
    message = run_refused(
        "solve", folder, "-T", 2, "--method", "oracle", "--out", tmp_path / "p.csv"
    )
    assert "one policy per model" in message


def test_solve_shows_the_error_of_a_simulated_value(folder: Path, train: mmdp.MMDP) -> None:
    words = ("solve", folder, "-T", HORIZON, "--method", "qmdp")
    arguments = (*words, "--n-episodes", 50, "--seed", 3)
    expected = mmdp.solve(train, HORIZON, mmdp.methods.QMDP(n_episodes=50), seed=3)
    value, sign, error = run(*arguments).parse_facts()["value"].split()
    assert float(value) == pytest.approx(expected.value, abs=1e-4)
    assert sign == "±"
    assert float(error) == pytest.approx(2 * expected.evaluation.stderr, rel=0.06)
    output = run(*arguments, "--json").json
    assert output["value"] == pytest.approx(expected.value, rel=1e-12)
    assert output["stderr"] == pytest.approx(expected.evaluation.stderr, rel=1e-12)
    assert "policy" not in output


def test_certify_says_how_much_better_any_policy_could_be(folder: Path, train: mmdp.MMDP) -> None:
    arguments = ("solve", folder, "-T", 3, "--method", "wsu", "--certify-time", 0.5)
    best = find_best_markov_value(train, 3)
    output = run(*arguments, "--json").json
    assert output["value"] <= best + 1e-12
    assert output["bound"] >= best - 1e-12
    expected = (output["bound"] - output["value"]) / abs(output["value"])
    assert output["gap"] == pytest.approx(expected, abs=1e-12)
    bound = output["bound_method"] in ("oracle", "qmdp", "pairs")
    assert output["bound_scope"] == ("history" if bound else "markov")
    facts = run(*arguments).parse_facts()
    assert float(facts["at most"].split()[0]) >= output["bound"] - 1e-12


@pytest.mark.parametrize("method", ["exact", "milp"])
def test_methods_that_prove_report_their_bound(
    folder: Path, train: mmdp.MMDP, method: str, tmp_path: Path
) -> None:
    best = find_best_markov_value(train, 2)
    arguments = ("solve", folder, "-T", 2, "--method", method, "--time-limit", 60)
    output = run(*arguments, "--json").json
    assert output["status"] == "OPTIMAL"
    assert output["value"] == pytest.approx(best, rel=1e-9)
    assert output["bound"] == pytest.approx(best, rel=1e-5)
    assert output["gap"] < 1e-5
    assert (output["bound_method"], output["bound_scope"]) == (method, "markov")
    result = run(*arguments, "--out", tmp_path / "p.csv")
    assert "proven optimal: no Markov policy is better" in " ".join(result.out.split())
    policy = mmdp.load_policy(tmp_path / "p.csv")
    assert mmdp.evaluate(train, policy).mean == pytest.approx(best, rel=1e-9)


def test_certify_is_for_tables(folder: Path) -> None:
    for method in ("qmdp", "mixts", "pomcp", "rollout", "oracle"):
        message = run_refused("solve", folder, "-T", 2, "--method", method, "--certify-time", 1)
        assert f"certify_time bounds a policy of time and state, and {method} " in message
        assert "choose --method cadp, wsu, " in message
    for seconds in (0, -1, "nan"):
        assert "positive" in run_refused("solve", folder, "-T", 2, "--certify-time", seconds)


def test_a_policy_with_memory_is_not_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmdp, "load", lambda *_, **__: pytest.fail("loaded"))
    for method in methods_supporting(policy_class="belief"):
        message = run_refused("solve", folder, "-T", 2, "-m", method, "--out", tmp_path / "p.csv")
        assert f"{method} remembers" in message
        instead = "write a plan for up to four models with --method grid --out policy.json"
        assert f"; leave out --out, {instead}, or choose --method cadp, " in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["policy.txt", "no/folder/policy.csv", "here.csv"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.csv").mkdir()
    monkeypatch.setattr(mmdp, "solve", lambda *_, **__: pytest.fail("solved"))
    assert name in run_refused("solve", folder, "-T", 2, "--out", tmp_path / name)
    assert [x.name for x in tmp_path.iterdir()] == ["here.csv"]


def test_process_interrupted_prints_the_best_so_far(folder: Path, tmp_path: Path) -> None:
    """Far more random starts than there is time for; Ctrl-C as soon as the solve is under way."""
    out = tmp_path / "policy.csv"
    code = (
        "from mmdp.cli import main\n"
        "from mmdp.core.search.context import SolveContext\n"
        "plain = SolveContext.record\n"
        "def record(*args, **options):\n"
        "    SolveContext.record = plain\n"
        "    plain(*args, **options)\n"
        "    print('started', flush=True)\n"
        "SolveContext.record = record\n"
        "main()"
    )
    many = ("-T", 60, "--n-init", 1_000_000, "--out", out, "--json")
    with run_process(sys.executable, "-c", code, "solve", folder, *many) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        text, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, err
    output = json.loads(text)
    assert output["status"] == "INTERRUPTED"
    assert output["value"] == pytest.approx(max(output["trace"]), rel=1e-12)
    assert mmdp.load_policy(out).horizon == 60


# ---------------------------------------------------------------------- kinds of policy
def test_a_stationary_policy_is_solved_written_and_evaluated(
    folder: Path, train: mmdp.MMDP, test: mmdp.MMDP, tmp_path: Path
) -> None:
    out = tmp_path / "rule.csv"
    expected = mmdp.solve(train, float("inf"))
    facts = run("solve", folder, "--horizon", "inf", "--out", out).parse_facts()
    assert float(facts["value"]) == pytest.approx(expected.value, abs=1e-4)
    assert facts["restriction"] == expected.restriction_cost_text
    assert out.read_text().startswith("state,action")
    output = run("solve", folder, "-T", "inf", "--json").json
    assert output["horizon"] is None
    assert output["policy_class"] == "stationary"
    assert output["policy"]["actions"] == expected.policy.actions.tolist()
    assert "state  action\n" in run("solve", folder, "-T", "inf").out
    test_facts = run("evaluate", out, folder, "--split", "test").parse_facts()
    assert float(test_facts["mean"]) == pytest.approx(mmdp.evaluate(test, expected).mean, abs=1e-4)
    for command in (["report", folder], ["plot", "policy", folder]):
        page = tmp_path / ("x.html" if command[0] == "report" else "x.png")
        assert "pass --horizon 50" in run_refused(*command, "--policy", out, "--out", page)


def test_tied_and_monotone_policies(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    groups = tmp_path / "groups.csv"
    groups.write_text("state,group\n" + "".join(f"{state},all\n" for state in range(STATES)))
    facts = run("solve", folder, "-T", HORIZON, "--groups", groups).parse_facts()
    tied = mmdp.solve(train, HORIZON, policy_class=mmdp.policies.Tied(["all"] * STATES))
    assert float(facts["value"]) == pytest.approx(tied.value, abs=1e-4)
    assert facts["restriction"] == tied.restriction_cost_text
    rising = mmdp.solve(train, HORIZON, policy_class="monotone")
    same = run("solve", folder, "-T", HORIZON, "--policy-class", "monotone", "--json").json
    assert same["value"] == rising.value
    assert same["restriction_cost"] == rising.restriction_cost


def test_a_tree_is_solved_written_and_read(folder: Path, train: mmdp.MMDP, tmp_path: Path) -> None:
    out, features = tmp_path / "tree.json", tmp_path / "features.csv"
    features.write_text("state,half\n" + "".join(f"{s},{s < 2}\n" for s in range(STATES)))
    command = ("solve", folder, "-T", HORIZON, "--max-leaves", 2)
    result, by_half = run(*command, "--out", out), run(*command, "--features", features, "--json")
    expected = mmdp.solve(train, HORIZON, policy_class=mmdp.policies.Tree(2))
    assert result.parse_facts()["restriction"] == expected.restriction_cost_text
    assert result.out.endswith(f"\n{expected.policy.describe()}\n")
    assert mmdp.load_policy(out, train).describe() == expected.policy.describe()
    table = run(*command, "--out", tmp_path / "tree.csv")
    assert "without its splits; save it as .json" in " ".join(table.err.split())
    by_name = mmdp.solve(train, HORIZON, policy_class=mmdp.policies.Tree(2, features))
    assert by_half.json["policy"]["rule"] == by_name.policy.describe()
    facts = run("evaluate", out, folder, "--split", "train").parse_facts()
    assert float(facts["mean"]) == pytest.approx(expected.value, abs=1e-4)
    both = run_refused(*command, "--max-nodes", 2)
    assert "policy classes (--max-nodes: memory, --max-leaves: tree); keep one" in both
    features.write_text("state,half\n0,1\n")
    assert "no value for state" in run_refused(*command, "--features", features)


def test_a_randomized_rule_is_solved_written_read_and_exported(tmp_path: Path) -> None:
    """The case that no rule of one action per state gets right: -1 / (1 - .99 / 2)."""
    data, out = tmp_path / "door.npz", tmp_path / "rule.csv"
    mmdp.save(make_door_model(), data)
    command = ("solve", data, "-T", "inf", "--randomized")
    result = run(*command, "--certify-time", 0.2)
    best = -1 / (1 - 0.99 / 2)
    assert float(result.parse_facts()["value"]) == pytest.approx(best, abs=1e-4)
    assert result.parse_facts()["random"].startswith("drawing actions at random earns 48.5, in")
    for target in (out, tmp_path / "rule.json", tmp_path / "rule.parquet"):
        output = run(*command, "--out", target, "--json").json
        assert output["randomization_gain"] == pytest.approx(best + 50.5)
        facts = run("evaluate", target, data).parse_facts()
        assert float(facts["mean"]) == pytest.approx(best, abs=1e-4)
    for suffix in ("py", "js", "sql", "xlsx", "html"):
        assert run("export", out, "--out", tmp_path / f"rule.{suffix}").code == 0
    space: dict[str, Any] = {}
    exec((tmp_path / "rule.py").read_text(), space)
    assert space["decide"]("in") == pytest.approx({"left": 0.5, "right": 0.5})
    assert "no option of tree is called 'randomized'" in run_refused(*command, "--max-leaves", 2)
    table = run("solve", data, "-T", 4, "--objective", "worst", "--randomized", "--json").json
    deterministic = run("solve", data, "-T", 4, "--objective", "worst", "--json").json
    assert table["value"] > deterministic["value"] + 0.1
    page = tmp_path / "page.html"
    words = ("report", data, "--policy", out, "-T", 50, "--time-limit", 9)
    assert run(*words, "--out", page).code == 0
    words = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
    assert "decisions that come up it draws the action at random" in words
    assert "drawing actions at random earns" not in words  # that is said of a solution
    today = run("study", data, "-T", 50, "--comparator", f"coin={out}", "--json").json
    randomized_row = next(x for x in today["methods"] if x["method"] == "coin")
    assert randomized_row["value"] == pytest.approx(best * (1 - 0.495**50))


def test_unsupported_policy_classes(folder: Path, tmp_path: Path) -> None:
    groups = tmp_path / "groups.csv"
    groups.write_text("state,group\n0,all\n")
    assert "groups: no value for state" in run_refused("solve", folder, "-T", 4, "--groups", groups)
    assert "no such file" in run_refused("solve", folder, "-T", 4, "--groups", tmp_path / "no.csv")
    needs = run_refused("solve", folder, "-T", 4, "--policy-class", "tied")
    assert needs == "mmdp: a tied policy needs groups; give them with --groups FILE\n"
    both = run_refused("solve", folder, "-T", 4, "--max-nodes", 2, "--policy-class", "stationary")
    assert "classes (--max-nodes: memory, --policy-class: stationary); keep one" in both
    able_ = run_refused("solve", folder, "-T", "inf", "--method", "wsu")
    assert able_ == (
        "mmdp: wsu cannot do this: it plans backwards from a last decision; choose --method cadp, "
        "mvp, qmdp, mixts, rollout or exact\n"
    )
    assert "'many': expected a whole number or inf" in run_refused("solve", folder, "-T", "many")
    for command in (("report", folder), ("plot", "policy", folder, "--out", "x.png")):
        message = run_refused(*command, "-T", "inf")
        discount = mmdp.load(folder).discount
        n_steps = math.ceil(math.log(0.001) / math.log(discount))
        share_text = f"at discount {discount:g} the first {n_steps} have 99.9% of the weight"
        assert f"{share_text}: give --horizon {n_steps}\n" in message


def test_a_stationary_file_warm_starts_a_search(
    folder: Path, train: mmdp.MMDP, tmp_path: Path
) -> None:
    rule, second_file, page = tmp_path / "rule.csv", tmp_path / "again.csv", tmp_path / "page.html"
    infinite_result = run("solve", folder, "-T", "inf", "--out", rule, "--json").json
    warm = run("solve", folder, "-T", "inf", "--init", rule, "--json").json
    assert warm["value"] >= infinite_result["value"] - 1e-12
    assert run("solve", folder, "-T", HORIZON, "--init", rule, "--out", second_file).code == 0
    policy = mmdp.load_policy(rule, train)
    started = mmdp.load_policy(second_file, train)
    value_before, value_after = (
        mmdp.evaluate(train, x).mean for x in (policy.to_markov(HORIZON), started)
    )
    assert value_after >= value_before - 1e-12
    plot_result = run(
        "plot", "policy", folder, "--policy", rule, "-T", HORIZON, "-o", tmp_path / "x.svg"
    )
    assert plot_result.code == 0
    report_options = ("--policy", rule, "-T", HORIZON, "--methods", "wsu", "--out", page)
    assert run("report", folder, *report_options).code == 0
    assert "<html" in page.read_text(encoding="utf-8")


def test_a_fixed_policy_is_for_python(folder: Path) -> None:
    message = run_refused("solve", folder, "-T", 4, "--policy-class", "fixed")
    assert "pass policy_class=mmdp.policies.Fixed(actions)" in message
