"""mmdp export."""

from __future__ import annotations

import runpy
from pathlib import Path

import mmdp
from mmdp.cli.export import export
from mmdp.exports import TARGETS
from tests.cli.calls import refused, run


def saved(folder: Path) -> tuple[mmdp.Solution, Path, Path]:
    train, _ = mmdp.domains.two_models()
    solution = mmdp.solve(train, 3, certify=0.5)
    mmdp.save(train, folder / "models.npz")
    mmdp.save_policy(solution, folder / "policy.json")
    return solution, folder / "policy.json", folder / "models.npz"


def test_a_file_by_its_suffix_with_value_and_bound(tmp_path: Path) -> None:
    solution, policy, models = saved(tmp_path)
    done = run("export", policy, models, "--out", tmp_path / "rule.py")
    assert (done.code, done.out) == (0, f"policy exported to {tmp_path / 'rule.py'}\n")
    text = (tmp_path / "rule.py").read_text()
    assert f"(mean) is {solution.value:g}" in text
    assert "Proven: no" in text
    decide = runpy.run_path(str(tmp_path / "rule.py"))["decide"]
    found = solution.policy
    for t in range(3):
        for s, label in enumerate(found.state_names):
            assert decide(t, label) == found.action_names[found.actions[t, s]]


def test_it_is_printed_without_a_name(tmp_path: Path) -> None:
    _, policy, _ = saved(tmp_path)
    done = run("export", policy, "--to", "sql")
    assert done.code == 0
    assert "CREATE TABLE policy (time INTEGER" in done.out


def test_what_is_refused(tmp_path: Path) -> None:
    _, policy, models = saved(tmp_path)
    assert "give --to python" in refused("export", policy)
    assert "give --out" in refused("export", policy, "--to", "excel")
    assert "no target is called 'ruby'" in refused("export", policy, "--to", "ruby")
    assert "this is read" in refused("export", policy, models, "--to", "c", "--out", policy)


def test_the_help_has_every_target() -> None:
    (to,) = (x for x in export.params if x.name == "to")
    assert to.type.words == (*TARGETS,)


def test_a_proof_about_other_models_is_left_out(tmp_path: Path) -> None:
    _, policy, _ = saved(tmp_path)
    other, _ = mmdp.domains.two_models()
    mmdp.save(other.replace(discount=0.5), tmp_path / "other.npz")
    done = run("export", policy, tmp_path / "other.npz", "--to", "python")
    assert "note: no proof is shown: " in done.err
    assert "other models" in done.err
    assert "Proven" not in done.out
