"""Transitions that are no tables: the worked example of docs/extending.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import kernels
from mmdp.kernels.problem import Stored
from mmdp.testing import Case, best_by_enumeration, changing, plain_returns
from tests.conftest import ROOT

SOURCE = (ROOT / "examples" / "new_storage.py").read_text(encoding="utf-8")
EXAMPLE: dict[str, Any] = {"__name__": "new_storage"}
exec(SOURCE.split("# %% use")[0], EXAMPLE)
LowRank = EXAMPLE["LowRank"]
M, S, A, K, T = 4, 3, 2, 2, 3


def both(seed: int, **more: Any) -> tuple[mmdp.MMDP, mmdp.MMDP]:
    """The same models as a product and as tables."""
    rng = np.random.default_rng(seed)
    L, R = rng.dirichlet(np.ones(K), (S, A)), rng.dirichlet(np.full(S, 0.5), (M, K))
    L[0, 0], R[:, 0, 0] = [1, 0], 0.0  # not every next state is possible
    R /= R.sum(axis=2, keepdims=True)
    p = sum(L[None, :, :, k, None] * R[:, None, None, k] for k in range(K))
    fields = {
        "initial": rng.dirichlet(np.ones(S)), "weights": rng.dirichlet(np.ones(M)),
        "discount": 0.9, "terminal": rng.normal(size=(M, S)), **more,
    }  # fmt: skip
    r = rng.normal(size=(M, S, A))
    return mmdp.MMDP(LowRank(L, R), r, **fields), mmdp.MMDP(p, r, **fields)


def test_the_example_is_short() -> None:
    assert len(SOURCE.split("# %% storage")[1].split("# %% use")[0].strip().splitlines()) < 60


def test_tables_are_made_of_what_is_expected() -> None:
    low, tables = both(0)
    assert isinstance(low.problem.storage, LowRank)
    assert isinstance(low.problem.storage.table(), Stored)
    assert low.problem.storage.table() is low.problem.storage.table()
    np.testing.assert_allclose(low.transitions, tables.transitions, rtol=0, atol=1e-15)
    assert low.problem.p.flags.writeable is False
    assert low.problem.dense is False
    for backend in ("numpy", "numba"):
        Case(kernels.get(backend), low, T).steps()


@pytest.mark.parametrize("backend", ["numpy", "numba", "jax"])
def test_solves_equal_brute_force_on_every_backend(backend: str) -> None:
    if backend == "jax":
        pytest.importorskip("jax")
    for seed in range(3):
        low, tables = both(seed)
        best = best_by_enumeration(tables, T)
        exact = mmdp.solve(low, T, "exact", backend=backend)
        assert exact.status is mmdp.Status.OPTIMAL
        assert exact.value == pytest.approx(best, rel=1e-9)
        found = mmdp.solve(low, T, backend=backend)
        assert found.value <= best + 1e-9
        np.testing.assert_allclose(found.returns, plain_returns(found.policy, tables), rtol=1e-9)
        assert mmdp.bound(low, T, backend=backend, time_limit=0.3).value >= best - 1e-9


QUESTIONS: list[dict[str, Any]] = [
    {"objective": mmdp.CVaR(0.4)}, {"objective": "worst"},
    {"method": mmdp.CADP(starts=6)}, {"method": mmdp.Gradient()}, {"method": mmdp.Oracle()},
    {"method": mmdp.QMDP(episodes=5)}, {"method": mmdp.POMCP(queries=5, episodes=2)},
    {"method": mmdp.CADP(), "policy": mmdp.Memory(2)},
    {"method": mmdp.CADP(), "policy": mmdp.Stationary(), "horizon": np.inf},
]  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_what_tables_answer_is_answered(question: dict[str, Any]) -> None:
    asked = {"method": "cadp", "horizon": T, "seed": 0, "backend": "numpy", **question}
    found, expected = (mmdp.solve(model, **asked).value for model in both(1))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_models_that_change_need_nothing_more(backend: str) -> None:
    low, tables = (changing(model, 3) for model in both(1))
    found, expected = (
        kernels.get(backend).plan(model.problem, T).ascend([None])[0] for model in (low, tables)
    )
    assert (found.policy == expected.policy).all()
    assert found.trace == pytest.approx(expected.trace, rel=1e-9)
    for method in ("wsu", "oracle"):
        values = [mmdp.solve(model, T, method, backend=backend).value for model in (low, tables)]
        assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_changed_copies_keep_the_storage() -> None:
    low, tables = both(2)
    again = low.replace(discount=0.5)
    assert isinstance(again.problem.storage, LowRank)
    assert mmdp.solve(again, T).value == pytest.approx(
        mmdp.solve(tables.replace(discount=0.5), T).value, rel=1e-9
    )
    some, same = (mmdp.solve(model.subset([0, 2]), T).value for model in (low, tables))
    assert some == pytest.approx(same, rel=1e-9)
    assert low.memory > 0


def test_rows_that_do_not_sum_to_one_are_named() -> None:
    L, R = np.full((S, A, K), 0.5), np.full((M, K, S), 1 / S)
    L[1, 0] = 0.4
    with pytest.raises(mmdp.InputError, match=r"sum to 0\.8.*state 1, action 0"):
        mmdp.MMDP(LowRank(L, R), np.zeros((S, A)))
