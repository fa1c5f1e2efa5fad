"""mmdp export."""

from __future__ import annotations

import runpy
from pathlib import Path

import mmdp
from mmdp.cli.report import export
from mmdp.insight.exports import TARGETS
from tests.cli.calls import run, run_refused


def save_solution(folder: Path) -> tuple[mmdp.Solution, Path, Path]:
    train, _ = mmdp.domains.two_models()
    solution = mmdp.solve(train, 3, certify_time=0.5)
    mmdp.save(train, folder / "models.npz")
    mmdp.save_policy(solution, folder / "policy.json")
    return solution, folder / "policy.json", folder / "models.npz"


def test_a_file_by_its_suffix_with_value_and_bound(tmp_path: Path) -> None:
    solution, policy, models = save_solution(tmp_path)
    result = run("export", policy, models, "--out", tmp_path / "rule.py")
    assert (result.code, result.out) == (0, f"policy exported to {tmp_path / 'rule.py'}\n")
    text = (tmp_path / "rule.py").read_text()
    assert f"(mean) is {solution.value:g}" in text
    assert "Proven: no" in text
    decide = runpy.run_path(str(tmp_path / "rule.py"))["decide"]
    solved_policy = solution.policy
    for t in range(3):
        for s, label in enumerate(solved_policy.state_names):
            assert decide(t, label) == solved_policy.action_names[solved_policy.actions[t, s]]


def test_it_is_printed_without_a_name(tmp_path: Path) -> None:
    _, policy, _ = save_solution(tmp_path)
    result = run("export", policy, "--to", "sql")
    assert result.code == 0
    assert "CREATE TABLE policy (time INTEGER" in result.out


def test_what_is_refused(tmp_path: Path) -> None:
    _, policy, models = save_solution(tmp_path)
    assert "give --to python" in run_refused("export", policy)
    assert "give --out" in run_refused("export", policy, "--to", "excel")
    unknown = run_refused("export", policy, "--out", tmp_path / "rule.txt")
    assert "write .py" in unknown
    assert "name it by --to python" in unknown
    assert f"the policy comes first: mmdp export {policy} {models}" in run_refused(
        "export", models, policy, "--to", "sql"
    )
    assert f"{tmp_path} is a folder; give a file" in run_refused("export", tmp_path, "--to", "sql")
    assert "no target is called 'ruby'" in run_refused("export", policy, "--to", "ruby")
    assert "this is read" in run_refused("export", policy, models, "--to", "c", "--out", policy)


def test_the_help_has_every_target() -> None:
    (to,) = (x for x in export.params if x.name == "to")
    assert to.type.words == (*TARGETS,)


def test_a_proof_about_other_models_is_left_out(tmp_path: Path) -> None:
    _, policy, _ = save_solution(tmp_path)
    other, _ = mmdp.domains.two_models()
    mmdp.save(other.replace(discount=0.5), tmp_path / "other.npz")
    result = run("export", policy, tmp_path / "other.npz", "--to", "python")
    assert "note: no proof is shown: " in result.err
    assert "other models" in result.err
    assert "Proven" not in result.out
