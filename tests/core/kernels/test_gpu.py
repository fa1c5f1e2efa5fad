"""The jax kernel on a GPU: the same answers as numpy's. Skipped, and counted, elsewhere.

``test_jax.py`` runs there too; here is what only a GPU does, and larger problems.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.kernels.problem import Problem
from tests.core.kernels.instances import assert_same_ascents

pytestmark = pytest.mark.gpu
jax = pytest.importorskip("jax", reason="jax is not installed; pip install 'mmdp[jax]'")

from mmdp.core.kernels.jax.backend import JaxBackend  # noqa: E402

M, S, A, T = 300, 20, 3, 8


@pytest.fixture(scope="module", autouse=True)
def require_gpu() -> None:
    if jax.devices()[0].platform != "gpu":
        pytest.skip("no GPU here")


def make_problem(seed: int, storage: Any = "dense") -> Problem:
    rng = np.random.default_rng(seed)
    p = rng.gamma(0.5, size=(M, S, A, S)) + 1e-6
    if storage == "sparse":
        p[..., 5:] = 0.0
    return mmdp.MMDP(
        p / p.sum(axis=-1, keepdims=True),
        rng.normal(size=(M, S, A)),
        storage=storage,
        initial=np.full(S, 1 / S),
        weights=rng.dirichlet(np.ones(M)),
        discount=0.9,
    ).problem


def make_inits(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [None, *rng.integers(0, A, (3, T, S)).astype(np.int32)]


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_ascents_equal_numpy(storage: str) -> None:
    for seed in range(3):
        x = make_problem(seed, storage)
        assert_same_ascents(
            JaxBackend().prepare(x, T).ascend(make_inits(seed)),
            NumpyBackend().prepare(x, T).ascend(make_inits(seed)),
        )


def test_domains_equal_numpy() -> None:
    model, _ = mmdp.domains.riverswim(seed=0)
    result, expected = (mmdp.solve(model, 8, backend=name) for name in ("jax", "numpy"))
    assert result.value == pytest.approx(expected.value, rel=1e-9)


def test_auto_finds_the_gpu_for_large_solves() -> None:
    from mmdp.core import kernels

    assert kernels.get_backend("auto", make_problem(0), 10**12).name == "jax"
