"""The jax kernel on a GPU: the same answers as numpy's. Skipped, and counted, elsewhere."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import mmdp
from mmdp.testing import _check_passes, random_model

pytestmark = pytest.mark.gpu
SIZES = {"n_models": 5, "n_states": 4, "n_actions": 3}


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed; pip install 'mmdp[jax]'")
    import jax

    if jax.devices()[0].platform != "gpu":
        pytest.skip("no GPU here")


@pytest.mark.parametrize(("storage", "horizon"), [("dense", 0), ("sparse", 0), ("dense", 4)])
@pytest.mark.parametrize("rows", [None, False])
def test_passes_equal_numpy(storage: str, horizon: int, rows: bool | None) -> None:
    from mmdp.kernels.jax.kernel import JaxKernel, Tuning

    kernel = JaxKernel(tuning=Tuning(rows=rows))
    assert kernel.tuning.rows is (rows is None)
    for seed in range(20):
        model = random_model(seed, **SIZES, horizon=horizon, storage=storage)
        _check_passes(kernel, model, 4, seed, 1e-9)


@pytest.mark.parametrize("precision", ["double", "mixed"])
def test_two_hundred_random_solves_equal_numpy(precision: str) -> None:
    for seed in range(100):
        for storage in ("dense", "sparse"):
            model = random_model(seed, **SIZES, horizon=0, storage=storage)
            expected = mmdp.solve(model, 6, backend="numpy")
            found = mmdp.solve(model, 6, backend="jax", precision=precision)
            assert abs(found.value - expected.value) <= 1e-9 * max(1.0, abs(expected.value))


@pytest.mark.parametrize("precision", ["double", "mixed"])
@pytest.mark.parametrize("name", ["riverswim", "hiv", "inventory", "population_small", "garnet"])
def test_domains_equal_numpy(name: str, precision: str) -> None:
    model, _ = mmdp.domains.DOMAINS[name](seed=0)
    expected = mmdp.solve(model, 8, backend="numpy")
    found = mmdp.solve(model, 8, backend="jax", precision=precision)
    assert abs(found.value - expected.value) <= 1e-9 * abs(expected.value)
    assert abs(mmdp.evaluate(found, model, backend="numpy").mean - found.value) <= 1e-9 * abs(
        found.value
    )


def test_starts_together_equal_starts_alone() -> None:
    from mmdp.kernels.jax.kernel import JaxKernel

    model, _ = mmdp.domains.garnet(seed=1)
    tables = np.stack([mmdp.MarkovPolicy.random(model, 10, k).table for k in range(8)])
    together = JaxKernel().cadp(model.problem, 10, tables)
    for k in range(8):
        alone = JaxKernel().cadp(model.problem, 10, tables[k : k + 1])
        assert together.values[k] == pytest.approx(alone.values[0], rel=1e-9)


def test_auto_finds_the_gpu_for_large_solves() -> None:
    from mmdp import kernels

    problem = random_model(3, **SIZES, horizon=0, storage="dense").problem
    assert kernels.get("auto", kernels.ACCELERATOR_PAYS_FROM, solving=problem).name == "jax"
