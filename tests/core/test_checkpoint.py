"""Checkpoints: the best policy is in the file, and the next solve goes on from it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core import checkpoint as module
from mmdp.core.testing import make_random_model
from tests.cli.calls import HORIZON, run, run_refused
from tests.faults import fake_full_disk, make_small_model

METHODS = {
    "cadp": mmdp.methods.CADP(init="random", n_init=4),
    "gradient": mmdp.methods.NaturalGradient(max_iter=30),
    "exact": mmdp.methods.Exact(),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "best.json"


def read_value(file: Path, model: mmdp.MMDP) -> float:
    return mmdp.evaluate(model, mmdp.load_policy(file, model)).mean


@pytest.mark.parametrize("name", METHODS)
def test_the_file_holds_the_best_and_a_second_solve_starts_there(name: str, file: Path) -> None:
    model, method = make_small_model(4, n_models=6), METHODS[name]
    first = mmdp.solve(model, 5, method, checkpoint=file)
    saved_value = read_value(file, model)
    assert saved_value == pytest.approx(first.value, rel=1e-12)
    assert json.loads(file.read_text())["value"] == pytest.approx(saved_value, rel=1e-12)
    second = mmdp.solve(model, 5, method, checkpoint=file)
    assert second.value >= saved_value - 1e-12


class StopError(Exception):
    """Not one that solve() answers."""


@pytest.mark.parametrize("stop", [KeyboardInterrupt, StopError])
def test_a_solve_that_is_cut_short_leaves_its_best(stop: type[BaseException], file: Path) -> None:
    model = make_random_model(11, n_models=8, n_states=8, n_actions=4, horizon=0)
    method: Any = mmdp.methods.CADP(init="random", n_init=1, sweep_type="paper")
    values: list[float] = []

    def callback(progress: mmdp.solution.Progress) -> None:
        values.append(progress.best_value)
        if progress.iteration == 1:
            raise stop

    if stop is StopError:
        with pytest.raises(StopError):
            mmdp.solve(model, 8, method, checkpoint=file, callback=callback)
    else:
        mmdp.solve(model, 8, method, checkpoint=file, callback=callback)
    assert read_value(file, model) == pytest.approx(values[-1], rel=1e-12)
    full_solution = mmdp.solve(model, 8, method)
    assert values[-1] < full_solution.value
    resumed = mmdp.solve(model, 8, method, checkpoint=file)
    assert resumed.trace[0] == pytest.approx(values[-1], rel=1e-12)
    np.testing.assert_array_equal(resumed.policy.actions, full_solution.policy.actions)


def test_exact_prunes_with_the_policy_that_is_kept(file: Path) -> None:
    model = make_small_model(4, n_models=6)
    best = mmdp.solve(model, 5, mmdp.methods.Exact())
    mmdp.solve(model, 5, mmdp.methods.Exact(), checkpoint=file)
    poor = mmdp.methods.Exact(n_init=1, max_nodes=1)
    assert mmdp.solve(model, 5, poor, checkpoint=file).value == pytest.approx(best.value, rel=1e-12)


def test_as_many_inits_as_without_a_checkpoint(file: Path) -> None:
    model = make_small_model(4, n_models=6)
    baseline = mmdp.solve(model, 5)
    for _ in range(2):
        solution = mmdp.solve(model, 5, checkpoint=file)
        assert len(solution.details["inits"]) == len(baseline.details["inits"])
        assert solution.value == pytest.approx(baseline.value, rel=1e-12)
    assert solution.details["inits"][0] == "given"
    assert solution.provenance.options["init"] == "wsu"


def test_objectives_and_stationary_policies(file: Path) -> None:
    model = make_small_model(4, n_models=6)
    worst = mmdp.solve(model, 5, objective="worst", checkpoint=file)
    assert mmdp.evaluate(model, mmdp.load_policy(file)).worst == pytest.approx(worst.value)
    second = mmdp.solve(model, 5, objective="worst", checkpoint=file)
    assert second.value >= worst.value - 1e-12
    infinite_file = file.with_name("endless.json")
    for method in ("cadp", "exact"):
        first = mmdp.solve(model, math.inf, method, checkpoint=infinite_file)
        second = mmdp.solve(model, math.inf, method, checkpoint=infinite_file)
        assert second.value == pytest.approx(first.value, rel=1e-12)


def test_it_is_written_every_so_often(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    writes: list[tuple[int, float]] = []
    original = module.Checkpoint.write

    def write(self: Any) -> None:
        original(self)
        writes.append((len(best_values), json.loads(file.read_text())["value"]))

    best_values: list[float] = []

    def callback(progress: mmdp.solution.Progress) -> None:
        clock[0] += 4.0
        best_values.append(progress.best_value)

    monkeypatch.setattr(module.Checkpoint, "write", write)
    method = mmdp.methods.NaturalGradient(max_iter=12)
    rounded = mmdp.solve(make_small_model(4), 5, method, checkpoint=file, callback=callback).value
    *earlier_writes, last = writes
    assert [at for at, _ in earlier_writes] == list(
        range(0, len(best_values), 3)
    )  # 12 seconds each
    assert all(value == pytest.approx(best_values[at], rel=1e-12) for at, value in earlier_writes)
    assert last == (len(best_values), pytest.approx(max(*best_values, rounded), rel=1e-12))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": make_small_model(5)}, "another problem (another model)"),
        ({"horizon": 4}, "another problem (another horizon)"),
        ({"objective": "cvar:0.5"}, "another problem (another objective)"),
        ({"policy_class": mmdp.policies.Monotone()}, "another problem (another policy_class)"),
        (
            {"method": "wsu"},
            "wsu cannot resume from a markov policy; leave out checkpoint, or choose",
        ),
        ({"policy_class": mmdp.policies.Memory(2)}, "cannot resume from a memory policy"),
        ({"policy_class": mmdp.policies.Tree(2)}, "another policy_class"),
        ({"checkpoint": "best.csv"}, "must end in .json"),
    ],
)
def test_refusals(file: Path, change: dict[str, Any], message: str) -> None:
    mmdp.solve(make_small_model(4), 3, checkpoint=file)
    content = file.read_bytes()
    with pytest.raises(mmdp.InputError) as error:
        mmdp.solve(**{"model": make_small_model(4), "horizon": 3, "checkpoint": file, **change})
    assert message in str(error.value)
    assert file.read_bytes() == content


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"checkpoint": 3}'])
def test_no_other_file_is_written_over(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(mmdp.InputError, match="not a checkpoint; name another file"):
        mmdp.solve(make_small_model(4), 3, checkpoint=file)
    assert file.read_text() == content
    mmdp.save_policy(mmdp.solve(make_small_model(4), 3), file)
    with pytest.raises(mmdp.InputError, match="not a checkpoint"):
        mmdp.solve(make_small_model(4), 3, checkpoint=file)


def test_on_the_command_line(tmp_path: Path) -> None:
    data, file = tmp_path / "model.npz", tmp_path / "best.json"
    mmdp.save(make_small_model(4), data)
    first = run("solve", data, "-T", HORIZON, "--checkpoint", file, "--json").json
    assert read_value(file, make_small_model(4)) == pytest.approx(first["value"], rel=1e-12)
    assert run("evaluate", file, data).code == 0
    message = run_refused("solve", data, "-T", 2, "--checkpoint", file)
    assert "another problem (another horizon)" in message
    arguments = ("solve", data, "-T", HORIZON, "--checkpoint", file, "--out", file)
    assert "this is read, not written" in run_refused(*arguments)


@pytest.mark.parametrize(
    ("policy_class", "other_class"),
    [
        (mmdp.policies.Tied([0, 0, 1]), mmdp.policies.Tied([0, 1, 1])),
        (mmdp.policies.Monotone([0, 1, 2]), mmdp.policies.Monotone([2, 1, 0])),
        (mmdp.policies.Fixed([0, -1, -1]), mmdp.policies.Fixed([-1, -1, 0])),
    ],
    ids=["tied", "monotone", "fixed"],
)
def test_a_checkpoint_is_for_one_restriction(
    policy_class: Any, other_class: Any, file: Path
) -> None:
    model = make_random_model(2, n_models=3, n_states=3, n_actions=2, has_masks=False, horizon=0)
    first = mmdp.solve(model, 4, policy_class=policy_class, checkpoint=file)
    assert (
        mmdp.solve(model, 4, policy_class=policy_class, checkpoint=file).value
        >= first.value - 1e-12
    )
    with pytest.raises(mmdp.InputError, match="another restriction"):
        mmdp.solve(model, 4, policy_class=other_class, checkpoint=file)


POLICY_CLASSES = {
    "markov": lambda S: None,
    "tied": lambda S: mmdp.policies.Tied([s // 2 for s in range(S)]),
    "monotone": lambda S: mmdp.policies.Monotone(),
    "fixed": lambda S: mmdp.policies.Fixed([0, *[-1] * (S - 1)]),
    "stationary": lambda S: mmdp.policies.Stationary(),
}


@pytest.mark.parametrize("objective", ["mean", "regret:worst", "cvar:0.5"])
@pytest.mark.parametrize("policy_class", POLICY_CLASSES)
def test_no_solve_ends_below_the_checkpoint(policy_class: str, objective: str, file: Path) -> None:
    """Whatever the next solve is: one that has no time, other starts, a few iterations."""
    S, model = (
        5,
        make_random_model(1, n_models=6, n_states=5, n_actions=3, has_masks=False, horizon=0),
    )
    model = model.replace(discount=0.9)
    solve_kwargs: dict[str, Any] = {
        "model": model,
        "policy_class": POLICY_CLASSES[policy_class](S),
        "objective": objective,
        "horizon": math.inf if policy_class == "stationary" else 4,
        "backend": "numpy",
        "checkpoint": file,
    }
    saved_value = mmdp.solve(method=mmdp.methods.CADP(n_init=6), **solve_kwargs).value
    changes: list[dict[str, Any]] = [
        {"time_limit": 1e-9},
        {"method": mmdp.methods.CADP(max_iter=1, n_init=1)},
        {"method": mmdp.methods.CADP(init="random", n_init=1), "seed": 5},
    ]
    if (policy_class, objective) == ("markov", "mean"):
        changes += [
            {"method": mmdp.methods.NaturalGradient(), "time_limit": 1e-9},
            {"method": "mirror"},
        ]
    for change in changes:
        solution = mmdp.solve(**solve_kwargs, **change)
        file_value = mmdp.evaluate(model, mmdp.load_policy(file, model)).value(objective)
        slack = 1e-12 * abs(saved_value)
        assert solution.value >= saved_value - slack, change
        assert file_value >= saved_value - slack, change
        assert json.loads(file.read_text())["value"] == pytest.approx(file_value, rel=1e-12)
        saved_value = max(saved_value, file_value)


@pytest.mark.parametrize("policy_class", ["tied", "monotone"])
def test_a_risk_objective_resumes_from_the_checkpoint(policy_class: str, file: Path) -> None:
    """Not from the best policy for the mean nearby."""
    for seed in range(3):
        model = make_random_model(
            seed, n_models=6, n_states=4, n_actions=3, has_masks=False, horizon=0
        )
        solve_kwargs: dict[str, Any] = {
            "policy_class": POLICY_CLASSES[policy_class](4),
            "objective": "worst",
        }
        saved = mmdp.solve(model, 4, mmdp.methods.CADP(n_init=3), backend="numpy", **solve_kwargs)
        single_sweep = mmdp.methods.CADP(init=saved.policy, n_init=1, max_iter=1)
        resumed = mmdp.solve(model, 4, single_sweep, backend="numpy", **solve_kwargs)
        assert (
            resumed.trace[0] == pytest.approx(saved.value, rel=1e-12) or resumed.value > saved.value
        )


def test_a_full_disk_does_not_lose_the_solve(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_small_model(4, n_models=6)
    baseline = mmdp.solve(model, 5)
    fake_full_disk(monkeypatch)
    with pytest.warns(mmdp.core.errors.FileNotWrittenWarning, match="No space left.*not saved"):
        solution = mmdp.solve(model, 5, checkpoint=file)
    assert solution.value == baseline.value
    assert not file.exists()


def test_a_full_disk_leaves_what_was_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_random_model(11, n_models=8, n_states=8, n_actions=4, horizon=0)
    poor = mmdp.methods.CADP(init="random", n_init=1, max_iter=1, sweep_type="paper")
    mmdp.solve(model, 8, poor, checkpoint=file)
    content = file.read_bytes()
    fake_full_disk(monkeypatch)
    with pytest.warns(mmdp.core.errors.FileNotWrittenWarning):
        mmdp.solve(model, 8, checkpoint=file)
    assert file.read_bytes() == content


@pytest.mark.parametrize("horizon", [4, math.inf])
def test_a_tree_resumes(file: Path, horizon: float) -> None:
    """From the tree in the file, with its questions; one with more leaves is another problem."""
    model, policy_class = (
        make_random_model(3, n_models=3, n_states=4, horizon=0, discount=0.8),
        mmdp.policies.Tree(3),
    )
    first = mmdp.solve(model, horizon, policy_class=policy_class, checkpoint=file, backend="numpy")
    assert mmdp.load_policy(file, model).describe() == first.policy.describe()
    late = mmdp.solve(
        model, horizon, policy_class=policy_class, checkpoint=file, time_limit=1e-9, backend="numpy"
    )
    assert late.value == pytest.approx(first.value, rel=1e-12)
    assert late.policy == first.policy
    resumed = mmdp.solve(
        model, horizon, policy_class=policy_class, checkpoint=file, backend="numpy"
    )
    assert resumed.value >= first.value - 1e-12
    with pytest.raises(mmdp.InputError, match="another restriction"):
        mmdp.solve(model, horizon, policy_class=mmdp.policies.Tree(2), checkpoint=file)
