"""Transitions that are no tables: the worked example of docs/extending.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core import kernels
from mmdp.core.kernels.problem import TableStorage
from mmdp.core.testing import (
    BackendCase,
    compute_plain_returns,
    find_best_markov_value,
    make_switching,
)
from tests.conftest import ROOT

SOURCE = (ROOT / "examples" / "new_storage.py").read_text(encoding="utf-8")
EXAMPLE: dict[str, Any] = {"__name__": "new_storage"}
exec(SOURCE.split("# %% use")[0], EXAMPLE)
LowRank = EXAMPLE["LowRank"]
M, S, A, K, T = 4, 3, 2, 2, 3


def make_both_storages(seed: int, **extra_fields: Any) -> tuple[mmdp.MMDP, mmdp.MMDP]:
    """The same models as a product and as tables."""
    rng = np.random.default_rng(seed)
    L, R = rng.dirichlet(np.ones(K), (S, A)), rng.dirichlet(np.full(S, 0.5), (M, K))
    L[0, 0], R[:, 0, 0] = [1, 0], 0.0  # not every next state is possible
    R /= R.sum(axis=2, keepdims=True)
    p = sum(L[None, :, :, k, None] * R[:, None, None, k] for k in range(K))
    fields = {
        "initial": rng.dirichlet(np.ones(S)),
        "weights": rng.dirichlet(np.ones(M)),
        "discount": 0.9,
        "terminal": rng.normal(size=(M, S)),
        **extra_fields,
    }
    r = rng.normal(size=(M, S, A))
    return mmdp.MMDP(LowRank(L, R), r, **fields), mmdp.MMDP(p, r, **fields)


def test_the_example_is_short() -> None:
    assert len(SOURCE.split("# %% storage")[1].split("# %% use")[0].strip().splitlines()) < 60


def test_tables_are_made_from_expectations() -> None:
    low_rank, tables = make_both_storages(0)
    assert isinstance(low_rank.problem.storage, LowRank)
    assert isinstance(low_rank.problem.storage.to_table(), TableStorage)
    assert low_rank.problem.storage.to_table() is low_rank.problem.storage.to_table()
    np.testing.assert_allclose(low_rank.transitions, tables.transitions, rtol=0, atol=1e-15)
    assert low_rank.problem.p.flags.writeable is False
    assert low_rank.problem.is_dense is False
    for backend in ("numpy", "numba"):
        BackendCase(kernels.get_backend(backend), low_rank, T).check_operator()


@pytest.mark.parametrize("backend", ["numpy", "numba", "jax"])
def test_solves_equal_brute_force_on_every_backend(backend: str) -> None:
    if backend == "jax":
        pytest.importorskip("jax")
    for seed in range(3):
        low_rank, tables = make_both_storages(seed)
        best = find_best_markov_value(tables, T)
        exact = mmdp.solve(low_rank, T, "exact", backend=backend)
        assert exact.status is mmdp.Status.OPTIMAL
        assert exact.value == pytest.approx(best, rel=1e-9)
        solution = mmdp.solve(low_rank, T, backend=backend)
        assert solution.value <= best + 1e-9
        np.testing.assert_allclose(
            solution.returns, compute_plain_returns(tables, solution.policy), rtol=1e-9
        )
        assert mmdp.bound(low_rank, T, backend=backend, time_limit=0.3).value >= best - 1e-9


SOLVE_KWARGS: list[dict[str, Any]] = [
    {"objective": mmdp.objectives.CVaR(0.4)},
    {"objective": "worst"},
    {"method": mmdp.methods.CADP(n_init=6)},
    {"method": mmdp.methods.NaturalGradient()},
    {"method": mmdp.methods.Oracle()},
    {"method": mmdp.methods.QMDP(n_episodes=5)},
    {"method": mmdp.methods.POMCP(n_queries=5, n_episodes=2)},
    {"method": mmdp.methods.CADP(), "policy_class": mmdp.policies.Memory(2)},
    {"method": mmdp.methods.CADP(), "policy_class": mmdp.policies.Stationary(), "horizon": np.inf},
]


@pytest.mark.parametrize("solve_kwargs", SOLVE_KWARGS, ids=str)
def test_solves_equal_those_with_tables(solve_kwargs: dict[str, Any]) -> None:
    all_kwargs = {"method": "cadp", "horizon": T, "seed": 0, "backend": "numpy", **solve_kwargs}
    result, expected = (mmdp.solve(model, **all_kwargs).value for model in make_both_storages(1))
    assert result == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_switching_models_need_nothing_more(backend: str) -> None:
    low_rank, tables = (make_switching(model, 3) for model in make_both_storages(1))
    result, expected = (
        kernels.get_backend(backend).prepare(model.problem, T).ascend([None])[0]
        for model in (low_rank, tables)
    )
    assert (result.policy == expected.policy).all()
    assert result.trace == pytest.approx(expected.trace, rel=1e-9)
    for method in ("wsu", "oracle"):
        values = [
            mmdp.solve(model, T, method, backend=backend).value for model in (low_rank, tables)
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_changed_copies_keep_the_storage() -> None:
    low_rank, tables = make_both_storages(2)
    discounted = low_rank.replace(discount=0.5)
    assert isinstance(discounted.problem.storage, LowRank)
    assert mmdp.solve(discounted, T).value == pytest.approx(
        mmdp.solve(tables.replace(discount=0.5), T).value, rel=1e-9
    )
    subset_value, expected_value = (
        mmdp.solve(model.subset([0, 2]), T).value for model in (low_rank, tables)
    )
    assert subset_value == pytest.approx(expected_value, rel=1e-9)
    assert low_rank.nbytes > 0


def test_rows_that_do_not_sum_to_one_are_named() -> None:
    L, R = np.full((S, A, K), 0.5), np.full((M, K, S), 1 / S)
    L[1, 0] = 0.4
    with pytest.raises(mmdp.InputError, match=r"sum to 0\.8.*state 1, action 0"):
        mmdp.MMDP(LowRank(L, R), np.zeros((S, A)))


def test_auto_takes_numpy_for_what_no_compiled_code_knows() -> None:
    low_rank, tables = make_both_storages(0)
    names = [
        kernels.get_backend("auto", x.problem, T, n_passes=1e6).name for x in (low_rank, tables)
    ]
    assert names == ["numpy", "numba"]
