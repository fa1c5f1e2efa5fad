"""The jax kernel against the numpy specification, its compiled solve against mmdp.solve.

A shape compiles for some tenths of a second, so most tests share a few shapes.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import mmdp
from mmdp import kernels
from mmdp.errors import InputError
from mmdp.kernels.jax import kernel as jax_kernel
from mmdp.kernels.jax.kernel import JaxKernel, Tuning
from mmdp.kernels.numpy_kernel import NumpyKernel
from mmdp.testing import _check_passes, check_kernel, random_model

jax = pytest.importorskip("jax", reason="jax is not installed; pip install 'mmdp[jax]'")

SIZES = {"n_models": 5, "n_states": 4, "n_actions": 3}
WIDE = Tuning(wide=True)
PAPER = mmdp.CADP(sweeps="paper")  # what JaxKernel.cadp does unasked


def skewed_model(seed: int = 0) -> mmdp.MMDP:
    """One action leads everywhere, the others to one state: rows that are split."""
    rng = np.random.default_rng(seed)
    p = np.zeros((3, 6, 3, 6))
    p[:, :, :2, 0] = 1.0
    p[:, :, 2] = rng.dirichlet(np.ones(6), size=(3, 6))
    return mmdp.MMDP(
        p, rng.normal(size=(3, 6, 3)), initial=rng.dirichlet(np.ones(6)), storage="sparse",
        weights=[0.2, 0.3, 0.5], discount=0.9,
    )  # fmt: skip


def random_starts(model: mmdp.MMDP, horizon: int, count: int) -> np.ndarray:
    tables = [mmdp.MarkovPolicy.random(model, horizon, seed).table for seed in range(count)]
    return np.stack(tables)


# ------------------------------------------------------------------ passes
@pytest.mark.parametrize(("storage", "horizon"), [("dense", 0), ("sparse", 4)])
def test_passes_equal_numpy(storage, horizon):
    for seed in range(30):
        model = random_model(seed, **SIZES, horizon=horizon, storage=storage)
        _check_passes(JaxKernel(), model, 4, seed, 1e-9)


def test_passes_equal_numpy_on_the_smallest_size():
    model = random_model(34, n_models=1, n_states=1, n_actions=1, horizon=0, storage="dense")
    _check_passes(JaxKernel(), model, 1, 34, 1e-9)


@pytest.mark.slow
def test_passes_equal_numpy_on_every_shape():
    check_kernel(JaxKernel(), seeds=range(60))


@pytest.mark.slow
@pytest.mark.parametrize("tuning", [Tuning(chain=0), Tuning(unroll=3), Tuning(chain=2, unroll=2)])
def test_tuning_changes_rounding_only(tuning):
    for seed in range(8):
        for storage in ("dense", "sparse"):
            model = random_model(seed, **SIZES, horizon=0, storage=storage)
            _check_passes(JaxKernel(tuning=tuning), model, 4, seed, 1e-9)


def test_long_rows_are_split():
    model, kernel, truth = skewed_model(), JaxKernel(), NumpyKernel()
    x, policy = model.problem, random_starts(skewed_model(), 5, 1)[0]
    with jax_kernel._double():
        arrays = kernel.arrays(x)
    assert arrays.owner is not None
    assert arrays.p.size <= 2 * x.p.size
    b = truth.forward(x, 5, policy)
    np.testing.assert_allclose(kernel.forward(x, 5, policy), b, atol=1e-13)
    found, expected = (
        k.backward(x, 5, "weighted", weights=b, policy=policy) for k in (kernel, truth)
    )
    assert (found.actions == expected.actions).all()
    np.testing.assert_allclose(found.first, expected.first, atol=1e-12)


# ------------------------------------------------------------------ whole solves
@pytest.mark.parametrize(("storage", "sweeps"), [("dense", "paper"), ("sparse", "two-way")])
def test_cadp_equals_solve(storage, sweeps):
    for seed in range(50):
        model = random_model(seed, **SIZES, horizon=0, storage=storage)
        solution = mmdp.solve(model, 6, mmdp.CADP(sweeps=sweeps), backend="numpy")
        found = JaxKernel().cadp(model.problem, 6, sweeps=sweeps)
        scale = max(1.0, abs(solution.value))
        assert abs(found.values[0] - solution.value) <= 1e-9 * scale
        assert found.sweeps[0] == solution.iterations
        assert found.converged[0]
        np.testing.assert_allclose(found.trace[0], solution.trace, atol=1e-9 * scale)
        np.testing.assert_allclose(found.returns[0], solution.returns, atol=1e-9 * scale)


@pytest.mark.parametrize("name", ["riverswim", "hiv", "inventory", "population_small"])
def test_cadp_on_domains(name):
    model, _ = mmdp.domains.DOMAINS[name](seed=0)
    solution = mmdp.solve(model, 8, PAPER, backend="numpy")
    found = JaxKernel().cadp(model.problem, 8)
    policy = mmdp.MarkovPolicy.for_model(model, found.policies[0])
    exact = mmdp.evaluate(policy, model, backend="numpy").mean
    assert abs(exact - solution.value) <= 1e-9 * abs(solution.value)
    assert abs(found.values[0] - exact) <= 1e-9 * abs(exact)


def test_solve_takes_the_kernel():
    model = random_model(7, **SIZES, horizon=0, storage="dense")
    solution = mmdp.solve(model, 4, backend=JaxKernel())
    assert solution.provenance.backend == "jax"
    expected = mmdp.solve(model, 4, backend="numpy")
    assert solution.policy == expected.policy
    np.testing.assert_allclose(solution.returns, expected.returns, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("storage", "sweeps"), [("dense", "paper"), ("dense", "two-way"), ("sparse", "two-way")]
)
def test_starts_together_equal_starts_alone(storage, sweeps):
    together, alone = JaxKernel(tuning=WIDE), JaxKernel()
    for seed in range(10):
        model = random_model(seed, **SIZES, horizon=0, storage=storage)
        starts = random_starts(model, 6, 4)
        found = together.cadp(model.problem, 6, starts, sweeps=sweeps)
        expected = alone.cadp(model.problem, 6, starts, sweeps=sweeps)
        assert (found.policies == expected.policies).all()
        assert (found.sweeps == expected.sweeps).all()
        for name in ("returns", "values", "trace"):
            a, b = getattr(found, name), getattr(expected, name)
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
        assert np.isfinite(found.trace[np.arange(4), 0]).all()


def test_starts_together_on_split_rows():
    model = skewed_model(1)
    starts = random_starts(model, 6, 3)
    found = JaxKernel(tuning=WIDE).cadp(model.problem, 6, starts)
    for start, value in zip(starts, found.values, strict=True):
        init = mmdp.MarkovPolicy.for_model(model, start)
        alone = mmdp.solve(model, 6, mmdp.CADP(init=init), backend="numpy")
        assert value == pytest.approx(alone.value, rel=1e-12)


def test_limits_of_a_solve():
    model = random_model(0, **SIZES, horizon=0, storage="dense")
    full = JaxKernel().cadp(model.problem, 6)
    assert full.sweeps[0] > 3
    capped = JaxKernel().cadp(model.problem, 6, max_iterations=2)
    assert capped.sweeps[0] == 2
    assert not capped.converged[0]
    assert capped.values[0] == pytest.approx(full.trace[0, 2], rel=1e-12)
    loose = JaxKernel().cadp(model.problem, 6, tol=1e9)
    assert loose.sweeps[0] == 1
    assert loose.values[0] == pytest.approx(full.trace[0, 1], rel=1e-12)


def test_mixed_precision_is_verified_in_double():
    kernel = JaxKernel("mixed")
    for seed in range(20):
        model = random_model(seed, **SIZES, horizon=0, storage="dense")
        with jax_kernel._double():
            assert kernel.arrays(model.problem).p.dtype == np.float32
        found = kernel.cadp(model.problem, 6)
        expected = mmdp.solve(model, 6, PAPER, backend="numpy")
        policy = mmdp.MarkovPolicy.for_model(model, found.policies[0])
        exact = mmdp.evaluate(policy, model, backend="numpy")
        scale = max(1.0, abs(expected.value))
        np.testing.assert_allclose(found.returns[0], exact.returns, rtol=1e-12, atol=1e-12)
        assert abs(found.values[0] - expected.value) <= 1e-9 * scale


# ------------------------------------------------------------------ the device and its settings
def test_settings_of_jax_stay_as_they_are():
    before = jax.config.jax_enable_x64
    ones = jax.numpy.ones(3).dtype
    model = random_model(3, **SIZES, horizon=0, storage="dense")
    found = JaxKernel().cadp(model.problem, 6)
    assert found.returns.dtype == np.float64
    assert JaxKernel().forward(model.problem, 4, np.zeros((4, 4), np.int32)).dtype == np.float64
    assert jax.config.jax_enable_x64 == before
    assert jax.numpy.ones(3).dtype == ones


def test_p_travels_once_and_goes_with_its_model():
    kernel = JaxKernel()
    model = random_model(5, **SIZES, horizon=0, storage="dense")
    with jax_kernel._double():
        first = kernel.arrays(model.problem)
        again = JaxKernel().arrays(model.problem)
        other = kernel.arrays(model.replace(discount=0.25).problem)
    assert first.p is again.p
    assert first.r is again.r
    assert other.discount == 0.25
    key = id(model.problem.p)
    assert any(key in held for held in jax_kernel._cache.held)
    del model, first, again, other
    gc.collect()
    assert not any(key in held for held in jax_kernel._cache.held)


def test_an_array_that_may_change_is_sent_anew():
    problem = random_model(5, **SIZES, horizon=0, storage="dense").problem
    problem = problem._replace(r=problem.r.copy())
    policy = np.zeros((4, 4), np.int32)
    before = JaxKernel().backward(problem, 4, "given", policy=policy).first
    problem.r[:] += 1.0
    after = JaxKernel().backward(problem, 4, "given", policy=policy).first
    discounts = problem.discount ** np.arange(4.0)
    np.testing.assert_allclose(after - before, discounts.sum(), rtol=1e-9)


MESH = """
import json
import jax, numpy as np, mmdp
from mmdp.kernels.jax import kernel as jax_kernel
from mmdp.kernels.jax.kernel import JaxKernel, Tuning
from mmdp.testing import random_model

assert len(jax.devices()) == 2
kernel = JaxKernel(devices=jax.devices(), tuning=Tuning(wide=True))
found = []
for storage in ("dense", "sparse"):
    model = random_model(2, n_models=5, n_states=4, n_actions=3, horizon=0, storage=storage)
    with jax_kernel._double():
        p = kernel.arrays(model.problem).p
    assert len(p.sharding.device_set) == 2 and p.addressable_shards[0].data.shape[-1] == 3
    starts = np.stack([mmdp.MarkovPolicy.random(model, 6, seed).table for seed in range(3)])
    found.append(kernel.cadp(model.problem, 6).values.tolist())
    found.append(kernel.cadp(model.problem, 6, starts).values.tolist())
    b = kernel.forward(model.problem, 6, starts[0])
    assert b.shape == (6, 4, 5)
    found.append(b.sum(axis=(0, 1)).tolist())
print(json.dumps(found))
"""


def test_models_spread_over_two_devices():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", MESH], env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found = iter(json.loads(run.stdout))
    for storage in ("dense", "sparse"):
        model = random_model(2, **SIZES, horizon=0, storage=storage)
        starts = random_starts(model, 6, 3)
        solutions = [mmdp.solve(model, 6, backend="numpy").value]
        np.testing.assert_allclose(next(found), solutions, rtol=1e-10)
        for start, value in zip(starts, next(found), strict=True):
            init = mmdp.MarkovPolicy.for_model(model, start)
            expected = mmdp.solve(model, 6, mmdp.CADP(init=init), backend="numpy").value
            assert value == pytest.approx(expected, rel=1e-10)
        b = NumpyKernel().forward(model.problem, 6, starts[0])
        np.testing.assert_allclose(next(found), b.sum(axis=(0, 1)), rtol=1e-10)


# ------------------------------------------------------------------ errors
def test_without_jax_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(jax_kernel, "jax", None)
    with pytest.raises(InputError, match=r"pip install 'mmdp\[jax\]'"):
        JaxKernel()


def test_bad_arguments_are_named():
    with pytest.raises(InputError, match="no precision is called 'half'"):
        JaxKernel("half")  # type: ignore[arg-type]
    model = random_model(0, **SIZES, horizon=0)
    with pytest.raises(InputError, match=r"starts must have shape \(K, 6, 4\)"):
        JaxKernel().cadp(model.problem, 6, np.zeros((6, 4), np.int32))
    with pytest.raises(InputError, match='"paper" or "two-way"'):
        JaxKernel().cadp(model.problem, 6, sweeps="three-way")  # type: ignore[arg-type]


def test_auto_takes_jax_only_for_large_solves_on_an_accelerator(monkeypatch):
    problem = random_model(3, **SIZES, horizon=0, storage="dense").problem
    large = kernels.ACCELERATOR_PAYS_FROM
    assert not kernels._fits_accelerator(problem) or jax.devices()[0].platform != "cpu"
    monkeypatch.setattr(kernels, "_fits_accelerator", lambda problem: True)
    assert kernels.get("auto", large, solving=problem).name == "jax"
    assert kernels.get("auto", large).name == "numba"  # one pass is not worth compiling for
    assert kernels.get("auto", large - 1, solving=problem).name == "numba"
    monkeypatch.setattr(kernels, "_fits_accelerator", lambda problem: False)
    assert kernels.get("auto", large, solving=problem).name == "numba"


def test_mixed_precision_never_makes_a_bound_invalid():
    for seed in range(10):
        model = random_model(seed, **SIZES, horizon=0, storage="dense")
        exact = mmdp.bound(model, 6, "oracle", backend="numpy").value
        found = mmdp.bound(model, 6, "oracle", backend=JaxKernel("mixed")).value
        assert found == pytest.approx(exact, rel=1e-12, abs=1e-12)
        wsu = mmdp.solve(model, 6, "wsu", backend="jax", precision="mixed")
        assert wsu.value == pytest.approx(mmdp.solve(model, 6, "wsu").value, rel=1e-12, abs=1e-12)
