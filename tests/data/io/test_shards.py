"""Folders of parts: the same model, whole or a share of it, in little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.core.errors import InputError, MemoryLimitError
from tests.conftest import ROOT


def make_model(n_models: int = 7, seed: int = 0, **fields: object) -> mmdp.MMDP:
    """Sparse rows, rewards per next state, unequal weights, labels and a parameter."""
    rng = np.random.default_rng(seed)
    p = rng.random((n_models, 4, 2, 4)) * (rng.random((n_models, 4, 2, 4)) < 0.6)
    p[..., 0] += 0.1
    options = {
        "initial": [0.5, 0.5, 0, 0],
        "weights": rng.dirichlet(np.ones(n_models)),
        "discount": 0.9,
        "terminal": rng.normal(size=(n_models, 4)),
        "states": list("abcd"),
        "storage": "sparse",
        "models": [f"draw {m}" for m in range(n_models)],
        "parameters": {"x": rng.random(n_models)},
    }
    p /= p.sum(axis=3, keepdims=True)
    return mmdp.MMDP(p, next_rewards=rng.normal(size=p.shape), **(options | fields))


def assert_same_model(loaded: mmdp.MMDP, expected: mmdp.MMDP, models: slice = slice(None)) -> None:
    for name in ("transitions", "rewards", "next_rewards", "terminal"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(expected, name)[models])
    np.testing.assert_allclose(loaded.weights, expected.weights, rtol=1e-14)
    np.testing.assert_array_equal(loaded.parameters["x"], expected.parameters["x"])
    assert loaded.model_labels == expected.model_labels
    assert loaded.state_labels == expected.state_labels


def test_shards_load_as_the_model(tmp_path: Path) -> None:
    model = make_model()
    mmdp.io.save_shards(model, tmp_path, 3)
    assert len(list(tmp_path.iterdir())) == 3
    assert_same_model(mmdp.load(tmp_path), model)
    for i, models in enumerate((slice(0, 3), slice(3, 7))):
        loaded = mmdp.load(tmp_path, shard=(i, 2))
        assert (loaded.shard, loaded.n_models) == ((i, 2), 7)
        assert_same_model(loaded, model, models)
        assert_same_model(model.take_shard(i, 2), model, models)


def test_shards_that_were_saved_one_by_one_have_equal_weights(tmp_path: Path) -> None:
    rng, models = np.random.default_rng(0), []
    for i in range(3):
        p = rng.dirichlet(np.ones(3), size=(i + 1, 3, 1))
        initial = rng.dirichlet(np.ones(3), size=i + 1)  # of each model
        models.append(mmdp.MMDP(p, rng.normal(size=(i + 1, 3, 1)), initial=initial))
        mmdp.save(models[-1], tmp_path / f"part-{i}.npz")
    loaded = mmdp.load(tmp_path)
    for name in ("transitions", "rewards"):
        expected = np.concatenate([getattr(x, name) for x in models])
        np.testing.assert_array_equal(getattr(loaded, name), expected)
    initial = np.concatenate([np.atleast_2d(x.initial) for x in models])
    np.testing.assert_array_equal(loaded.initial, initial)
    np.testing.assert_array_equal(mmdp.load(tmp_path, shard=(1, 2)).initial, initial[3:])
    np.testing.assert_allclose(loaded.weights, 1 / 6)


def test_shards_with_other_zeros_are_refused(tmp_path: Path) -> None:
    for i in range(2):
        p = np.zeros((1, 2, 1, 2))
        p[..., i] = 1.0
        mmdp.save(mmdp.MMDP(p, [[1.0], [0.0]], storage="sparse"), tmp_path / f"part-{i}.npz")
    with pytest.raises(InputError, match=r"part-1.npz: indices differ from those of part-0.npz"):
        mmdp.load(tmp_path)


def test_saving_again_replaces_the_shards(tmp_path: Path) -> None:
    mmdp.io.save_shards(make_model(), tmp_path, 5)
    mmdp.io.save_shards(make_model(seed=1), tmp_path, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["part-00000.npz", "part-00001.npz"]
    assert_same_model(mmdp.load(tmp_path), make_model(seed=1))


def test_shards_of_different_models_are_refused(tmp_path: Path) -> None:
    mmdp.save(make_model(), tmp_path / "part-0.npz")
    mmdp.save(make_model(discount=0.5), tmp_path / "part-1.npz")
    with pytest.raises(InputError, match=r"part-1.npz: discount differ from those of part-0.npz"):
        mmdp.load(tmp_path)
    plain = make_model()
    mmdp.save(plain.replace(rewards=plain.rewards), tmp_path / "part-1.npz")
    with pytest.raises(InputError, match="has next rewards differ from those of part-0.npz"):
        mmdp.load(tmp_path)
    (tmp_path / "part-1.npz").write_bytes((tmp_path / "part-0.npz").read_bytes()[:900])
    with pytest.raises(InputError, match=r"part-1.npz: damaged npz file"):
        mmdp.load(tmp_path)


def test_shards_that_exceed_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mmdp.io.save_shards(make_model(), tmp_path, 2)
    monkeypatch.setattr("mmdp.core.errors.memory_here", lambda: 1000)
    with pytest.raises(
        MemoryLimitError, match=r"p of 7 models would take .* this machine has 1 kB"
    ):
        mmdp.load(tmp_path)


def test_samples_of_a_shard_equal_one_process() -> None:
    log = {
        "state": [0, 0, 1, 1],
        "action": [0, 1, 0, 1],
        "next_state": [1, 0, 0, 1],
        "reward": [1.0, 0.0, 2.0, 3.0],
    }
    for rewards in ("average", "normal"):
        expected = mmdp.fit(log, n_models=7, n_test_models=3, rewards=rewards)
        for i, models in enumerate((slice(0, 3), slice(3, 7))):
            shard = mmdp.fit(log, n_models=7, n_test_models=3, rewards=rewards, shard=(i, 2))
            np.testing.assert_array_equal(
                shard.train.transitions, expected.train.transitions[models]
            )
            np.testing.assert_array_equal(shard.train.rewards, expected.train.rewards[models])
            np.testing.assert_array_equal(shard.train.weights, expected.train.weights)
    samples = {"p": np.linspace(0.1, 0.9, 5)}
    build_model = lambda params: (
        np.stack([params["p"], 1 - params["p"]], -1)[..., None, None, :].repeat(2, -3),
        [[1.0]] * 2,
    )
    options = {"weights": [0.1, 0.2, 0.3, 0.2, 0.2], "models": list("abcde")}
    expected = mmdp.from_samples(samples, build_model, **options)
    shard = mmdp.from_samples(samples, build_model, shard=(1, 2), **options)
    np.testing.assert_array_equal(shard.transitions, expected.transitions[2:])
    np.testing.assert_array_equal(shard.weights, expected.weights)
    np.testing.assert_array_equal(shard.parameters["p"], samples["p"])
    assert shard.model_labels == expected.model_labels


PEAK_MEMORY_PROGRAM = """
import sys, mmdp
from benchmarks.instances import Shape, make_sparse_model
from benchmarks.rows import read_memory, reset_peak_memory
for i in range(10):
    mmdp.save(make_sparse_model(Shape(20, 300, 5, 8, 5), seed=i), f"{sys.argv[1]}/part-{i:02}.npz")
mmdp.load(sys.argv[1] + "/part-00.npz")
reset_peak_memory()
before = read_memory("VmRSS")
model = mmdp.load(sys.argv[1])
print((read_memory("VmHWM") - before) / model.nbytes)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_loading_shards_needs_little_more_memory(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PEAK_MEMORY_PROGRAM, str(tmp_path)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert 0.9 < float(process.stdout) <= 1.25  # 1.18 to 1.20
