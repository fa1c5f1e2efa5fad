"""Folders of parts: the same model, whole or a share of it, in little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.errors import InputError, MemoryLimitError
from tests.conftest import ROOT


def model_of(models: int = 7, seed: int = 0, **fields: object) -> mmdp.MMDP:
    """Sparse rows, rewards per next state, unequal weights, labels and a parameter."""
    rng = np.random.default_rng(seed)
    p = rng.random((models, 4, 2, 4)) * (rng.random((models, 4, 2, 4)) < 0.6)
    p[..., 0] += 0.1
    given = {
        "initial": [0.5, 0.5, 0, 0], "weights": rng.dirichlet(np.ones(models)), "discount": 0.9,
        "terminal": rng.normal(size=(models, 4)), "states": list("abcd"), "storage": "sparse",
        "models": [f"draw {m}" for m in range(models)], "parameters": {"x": rng.random(models)},
    }  # fmt: skip
    p /= p.sum(axis=3, keepdims=True)
    return mmdp.MMDP(p, next_rewards=rng.normal(size=p.shape), **(given | fields))


def same(found: mmdp.MMDP, expected: mmdp.MMDP, here: slice = slice(None)) -> None:
    for name in ("transitions", "rewards", "next_rewards", "terminal"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name)[here])
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-14)
    np.testing.assert_array_equal(found.parameters["x"], expected.parameters["x"])
    assert found.model_labels == expected.model_labels
    assert found.state_labels == expected.state_labels


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_parts_are_the_model(tmp_path: Path, suffix: str) -> None:
    model = model_of()
    mmdp.io.save_parts(model, tmp_path, 3, suffix=suffix)
    assert len(list(tmp_path.iterdir())) == 3
    same(mmdp.load(tmp_path), model)
    for i, here in enumerate((slice(0, 3), slice(3, 7))):
        found = mmdp.load(tmp_path, part=(i, 2))
        assert (found.part, found.n_models) == ((i, 2), 7)
        same(found, model, here)
        same(model.take_part(i, 2), model, here)


def test_parts_with_other_patterns_are_joined(tmp_path: Path) -> None:
    """Files that were saved one by one: their union, and the same weight for every model."""
    rng, models = np.random.default_rng(0), []
    for i in range(3):
        p = np.zeros((i + 1, 3, 1, 3))
        p[:, :, 0, i], p[:, :, 0, 0] = 0.25, 0.75
        p[:, :, 0, 0] += 1 - p.sum(axis=3)[:, :, 0]
        models.append(mmdp.MMDP(p, rng.normal(size=(i + 1, 3, 1)), storage="sparse"))
        mmdp.save(models[-1], tmp_path / f"part-{i}.npz")
    found = mmdp.load(tmp_path)
    np.testing.assert_array_equal(
        found.transitions, np.concatenate([x.transitions for x in models])
    )
    np.testing.assert_array_equal(found.rewards, np.concatenate([x.rewards for x in models]))
    np.testing.assert_allclose(found.weights, 1 / 6)


def test_writing_again_replaces_the_parts(tmp_path: Path) -> None:
    mmdp.io.save_parts(model_of(), tmp_path, 5)
    mmdp.io.save_parts(model_of(seed=1), tmp_path, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["part-00000.npz", "part-00001.npz"]
    same(mmdp.load(tmp_path), model_of(seed=1))


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    mmdp.save(model_of(), tmp_path / "part-0.npz")
    mmdp.save(model_of(discount=0.5), tmp_path / "part-1.npz")
    with pytest.raises(InputError, match=r"part-1.npz: discount differ from those of part-0.npz"):
        mmdp.load(tmp_path)
    (tmp_path / "part-1.npz").write_bytes((tmp_path / "part-0.npz").read_bytes()[:900])
    with pytest.raises(InputError, match=r"part-1.npz: damaged npz file"):
        mmdp.load(tmp_path)


def test_parts_that_do_not_fit_are_refused_with_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mmdp.io.save_parts(model_of(), tmp_path, 2)
    monkeypatch.setattr("mmdp.support.memory_here", lambda: 1000)
    with pytest.raises(
        MemoryLimitError, match=r"p of 7 models would take .* this machine has 1 kB"
    ):
        mmdp.load(tmp_path)


def test_draws_of_a_part_are_those_of_one_process() -> None:
    log = {"state": [0, 0, 1, 1], "action": [0, 1, 0, 1], "next_state": [1, 0, 0, 1],
           "reward": [1.0, 0.0, 2.0, 3.0]}  # fmt: skip
    for rewards in ("average", "normal"):
        whole = mmdp.fit(log, models=7, test_models=3, rewards=rewards)
        for i, here in enumerate((slice(0, 3), slice(3, 7))):
            part = mmdp.fit(log, models=7, test_models=3, rewards=rewards, part=(i, 2))
            np.testing.assert_array_equal(part.train.transitions, whole.train.transitions[here])
            np.testing.assert_array_equal(part.train.rewards, whole.train.rewards[here])
            np.testing.assert_array_equal(part.train.weights, whole.train.weights)
    draws = {"p": np.linspace(0.1, 0.9, 5)}
    build = lambda x: (
        np.stack([x["p"], 1 - x["p"]], -1)[..., None, None, :].repeat(2, -3),
        [[1.0]] * 2,
    )
    options = {"weights": [0.1, 0.2, 0.3, 0.2, 0.2], "models": list("abcde")}
    whole = mmdp.from_draws(draws, build, **options)
    part = mmdp.from_draws(draws, build, part=(1, 2), **options)
    np.testing.assert_array_equal(part.transitions, whole.transitions[2:])
    np.testing.assert_array_equal(part.weights, whole.weights)
    np.testing.assert_array_equal(part.parameters["p"], draws["p"])
    assert part.model_labels == whole.model_labels


PEAK = """
import sys, mmdp
from benchmarks.fitting import forget_peak, status
from benchmarks.instances import sparse_model
from benchmarks.sizes import Shape
for i in range(10):
    mmdp.save(sparse_model(Shape(20, 300, 5, 8, 5), seed=i), f"{sys.argv[1]}/part-{i:02}.npz")
mmdp.load(sys.argv[1] + "/part-00.npz")
forget_peak()
before = status("VmRSS")
model = mmdp.load(sys.argv[1])
print((status("VmHWM") - before) / model.memory)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_loading_parts_takes_little_more_than_the_model(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], cwd=ROOT, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert 0.9 < float(run.stdout) <= 1.2
