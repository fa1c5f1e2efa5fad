"""Checkpoints: the best policy is in the file, and the next solve goes on from it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import checkpoint as module
from mmdp.testing import random_model
from tests.cli.calls import HORIZON, refused, run
from tests.noted import full_disk, small

METHODS = {
    "cadp": mmdp.CADP(init="random", starts=4),
    "gradient": mmdp.Gradient(max_iterations=30),
    "exact": mmdp.Exact(),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "best.json"


def kept_value(file: Path, model: mmdp.MMDP) -> float:
    return mmdp.evaluate(mmdp.load_policy(file, model), model).mean


@pytest.mark.parametrize("name", METHODS)
def test_the_file_holds_the_best_and_a_second_solve_starts_there(name: str, file: Path) -> None:
    model, method = small(4, n_models=6), METHODS[name]
    first = mmdp.solve(model, 5, method, checkpoint=file)
    kept = kept_value(file, model)
    assert kept == pytest.approx(first.value, rel=1e-12)
    assert json.loads(file.read_text())["value"] == pytest.approx(kept, rel=1e-12)
    again = mmdp.solve(model, 5, method, checkpoint=file)
    assert again.value >= kept - 1e-12


class Stopped(Exception):
    """Not one that solve() answers."""


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Stopped])
def test_a_solve_that_is_cut_short_leaves_its_best(stop: type[BaseException], file: Path) -> None:
    model = random_model(11, n_models=8, n_states=8, n_actions=4, horizon=0)
    method: Any = mmdp.CADP(init="random", starts=1, sweeps="paper")
    seen: list[float] = []

    def callback(progress: mmdp.Progress) -> None:
        seen.append(progress.best)
        if progress.iteration == 1:
            raise stop

    if stop is Stopped:
        with pytest.raises(Stopped):
            mmdp.solve(model, 8, method, checkpoint=file, callback=callback)
    else:
        mmdp.solve(model, 8, method, checkpoint=file, callback=callback)
    assert kept_value(file, model) == pytest.approx(seen[-1], rel=1e-12)
    whole = mmdp.solve(model, 8, method)
    assert seen[-1] < whole.value
    after = mmdp.solve(model, 8, method, checkpoint=file)
    assert after.trace[0] == pytest.approx(seen[-1], rel=1e-12)
    np.testing.assert_array_equal(after.policy.actions, whole.policy.actions)


def test_exact_prunes_with_the_policy_that_is_kept(file: Path) -> None:
    model = small(4, n_models=6)
    best = mmdp.solve(model, 5, mmdp.Exact())
    mmdp.solve(model, 5, mmdp.Exact(), checkpoint=file)
    poor = mmdp.Exact(starts=1, polish=0.0, max_nodes=1)
    assert mmdp.solve(model, 5, poor, checkpoint=file).value == pytest.approx(best.value, rel=1e-12)


def test_as_many_starts_as_without_a_checkpoint(file: Path) -> None:
    model = small(4, n_models=6)
    plain = mmdp.solve(model, 5)
    for _ in range(2):
        found = mmdp.solve(model, 5, checkpoint=file)
        assert len(found.details["starts"]) == len(plain.details["starts"])
        assert found.value == pytest.approx(plain.value, rel=1e-12)
    assert found.details["starts"][0] == "given"
    assert found.provenance.options["init"] == "wsu"


def test_objectives_and_stationary_policies(file: Path) -> None:
    model = small(4, n_models=6)
    worst = mmdp.solve(model, 5, objective="worst", checkpoint=file)
    assert mmdp.evaluate(mmdp.load_policy(file), model).worst == pytest.approx(worst.value)
    again = mmdp.solve(model, 5, objective="worst", checkpoint=file)
    assert again.value >= worst.value - 1e-12
    endless = file.with_name("endless.json")
    for method in ("cadp", "exact"):
        first = mmdp.solve(model, math.inf, method, checkpoint=endless)
        again = mmdp.solve(model, math.inf, method, checkpoint=endless)
        assert again.value == pytest.approx(first.value, rel=1e-12)


def test_it_is_written_every_so_often(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    written: list[tuple[int, float]] = []
    plain = module.Checkpoint.write

    def write(self: Any) -> None:
        plain(self)
        written.append((len(heard), json.loads(file.read_text())["value"]))

    heard: list[float] = []

    def callback(progress: mmdp.Progress) -> None:
        clock[0] += 4.0
        heard.append(progress.best)

    monkeypatch.setattr(module.Checkpoint, "write", write)
    method = mmdp.Gradient(max_iterations=12)
    rounded = mmdp.solve(small(4), 5, method, checkpoint=file, callback=callback).value
    *during, last = written
    assert [at for at, _ in during] == list(range(0, len(heard), 3))  # 12 seconds each
    assert all(value == pytest.approx(heard[at], rel=1e-12) for at, value in during)
    assert last == (len(heard), pytest.approx(max(*heard, rounded), rel=1e-12))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": small(5)}, "another problem (another model)"),
        ({"horizon": 4}, "another problem (another horizon)"),
        ({"objective": "cvar:0.5"}, "another problem (another objective)"),
        ({"policy": mmdp.Monotone()}, "another problem (another policy)"),
        ({"method": "wsu"}, "wsu cannot go on from a checkpoint; leave it out, or choose method="),
        ({"policy": mmdp.Memory(2)}, "cannot go on from a memory policy"),
        ({"policy": mmdp.Tree(2)}, "another policy"),
        ({"checkpoint": "best.csv"}, "ends in .json"),
    ],
)
def test_refusals(file: Path, change: dict[str, Any], told: str) -> None:
    mmdp.solve(small(4), 3, checkpoint=file)
    before = file.read_bytes()
    with pytest.raises(mmdp.InputError) as error:
        mmdp.solve(**{"model": small(4), "horizon": 3, "checkpoint": file, **change})
    assert told in str(error.value)
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"checkpoint": 3}'])
def test_no_other_file_is_written_over(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(mmdp.InputError, match="not a checkpoint; name another file"):
        mmdp.solve(small(4), 3, checkpoint=file)
    assert file.read_text() == content
    mmdp.save_policy(mmdp.solve(small(4), 3), file)
    with pytest.raises(mmdp.InputError, match="not a checkpoint"):
        mmdp.solve(small(4), 3, checkpoint=file)


def test_on_the_command_line(tmp_path: Path) -> None:
    data, file = tmp_path / "model.npz", tmp_path / "best.json"
    mmdp.save(small(4), data)
    first = run("solve", data, "-T", HORIZON, "--checkpoint", file, "--json").json
    assert kept_value(file, small(4)) == pytest.approx(first["value"], rel=1e-12)
    assert run("evaluate", file, data).code == 0
    message = refused("solve", data, "-T", 2, "--checkpoint", file)
    assert "another problem (another horizon)" in message
    same = ("solve", data, "-T", HORIZON, "--checkpoint", file, "--out", file)
    assert "this is read, not written" in refused(*same)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (mmdp.Tied([0, 0, 1]), mmdp.Tied([0, 1, 1])),
        (mmdp.Monotone([0, 1, 2]), mmdp.Monotone([2, 1, 0])),
        (mmdp.Fixed([0, -1, -1]), mmdp.Fixed([-1, -1, 0])),
    ],
    ids=["tied", "monotone", "fixed"],
)
def test_a_checkpoint_is_for_one_restriction(kind: Any, other: Any, file: Path) -> None:
    model = random_model(2, n_models=3, n_states=3, n_actions=2, masks=False, horizon=0)
    first = mmdp.solve(model, 4, policy=kind, checkpoint=file)
    assert mmdp.solve(model, 4, policy=kind, checkpoint=file).value >= first.value - 1e-12
    with pytest.raises(mmdp.InputError, match="another restriction"):
        mmdp.solve(model, 4, policy=other, checkpoint=file)


KINDS = {
    "markov": lambda S: None,
    "tied": lambda S: mmdp.Tied([s // 2 for s in range(S)]),
    "monotone": lambda S: mmdp.Monotone(),
    "fixed": lambda S: mmdp.Fixed([0, *[-1] * (S - 1)]),
    "stationary": lambda S: mmdp.Stationary(),
}


@pytest.mark.parametrize("objective", ["mean", "regret:worst", "cvar:0.5"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_solve_ends_below_what_is_kept(kind: str, objective: str, file: Path) -> None:
    """Whatever the next solve is: one that has no time, other starts, a few iterations."""
    S, model = 5, random_model(1, n_models=6, n_states=5, n_actions=3, masks=False, horizon=0)
    model = model.replace(discount=0.9)
    question: dict[str, Any] = {
        "model": model, "policy": KINDS[kind](S), "objective": objective,
        "horizon": math.inf if kind == "stationary" else 4, "backend": "numpy", "checkpoint": file,
    }  # fmt: skip
    kept = mmdp.solve(method=mmdp.CADP(starts=6), **question).value
    again: list[dict[str, Any]] = [
        {"time_limit": 1e-9}, {"method": mmdp.CADP(max_iterations=1, starts=1)},
        {"method": mmdp.CADP(init="random", starts=1), "seed": 5},
    ]  # fmt: skip
    if (kind, objective) == ("markov", "mean"):
        again += [{"method": mmdp.Gradient(), "time_limit": 1e-9}, {"method": "mirror"}]
    for change in again:
        found = mmdp.solve(**question, **change)
        written = mmdp.evaluate(mmdp.load_policy(file, model), model).value(objective)
        slack = 1e-12 * abs(kept)
        assert found.value >= kept - slack, change
        assert written >= kept - slack, change
        assert json.loads(file.read_text())["value"] == pytest.approx(written, rel=1e-12)
        kept = max(kept, written)


@pytest.mark.parametrize("kind", ["tied", "monotone"])
def test_an_objective_goes_on_from_the_policy_that_is_kept(kind: str, file: Path) -> None:
    """Not from the best policy for the mean nearby."""
    for seed in range(3):
        model = random_model(seed, n_models=6, n_states=4, n_actions=3, masks=False, horizon=0)
        question: dict[str, Any] = {"policy": KINDS[kind](4), "objective": "worst"}
        kept = mmdp.solve(model, 4, mmdp.CADP(starts=3), backend="numpy", **question)
        once = mmdp.CADP(init=kept.policy, starts=1, max_iterations=1)
        again = mmdp.solve(model, 4, once, backend="numpy", **question)
        assert again.trace[0] == pytest.approx(kept.value, rel=1e-12) or again.value > kept.value


def test_a_full_disk_does_not_lose_the_solve(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(4, n_models=6)
    plain = mmdp.solve(model, 5)
    full_disk(monkeypatch)
    with pytest.warns(mmdp.errors.NotWritten, match="No space left.*not kept") as told:
        found = mmdp.solve(model, 5, checkpoint=file)
    assert len(told) == 1
    assert found.value == plain.value
    assert not file.exists()


def test_a_full_disk_leaves_what_was_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(11, n_models=8, n_states=8, n_actions=4, horizon=0)
    poor = mmdp.CADP(init="random", starts=1, max_iterations=1, sweeps="paper")
    mmdp.solve(model, 8, poor, checkpoint=file)
    before = file.read_bytes()
    full_disk(monkeypatch)
    with pytest.warns(mmdp.errors.NotWritten):
        mmdp.solve(model, 8, checkpoint=file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("horizon", [4, math.inf])
def test_a_tree_goes_on(file: Path, horizon: float) -> None:
    """From the tree in the file, with its questions; one with more leaves is another problem."""
    model, asked = random_model(3, n_models=3, n_states=4, horizon=0, discount=0.8), mmdp.Tree(3)
    first = mmdp.solve(model, horizon, policy=asked, checkpoint=file, backend="numpy")
    assert mmdp.load_policy(file, model).text() == first.policy.text()
    late = mmdp.solve(
        model, horizon, policy=asked, checkpoint=file, time_limit=1e-9, backend="numpy"
    )
    assert late.value == pytest.approx(first.value, rel=1e-12)
    assert late.policy == first.policy
    again = mmdp.solve(model, horizon, policy=asked, checkpoint=file, backend="numpy")
    assert again.value >= first.value - 1e-12
    with pytest.raises(mmdp.InputError, match="another restriction"):
        mmdp.solve(model, horizon, policy=mmdp.Tree(2), checkpoint=file)
