"""A kind of policy of one's own: the worked example of docs/extending.md against brute force."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.objective import as_objective
from mmdp.testing import plain_returns, random_model, returns_of
from tests.conftest import ROOT
from tests.instances import shares

SOURCE = (ROOT / "examples" / "new_policy.py").read_text(encoding="utf-8")
EXAMPLE: dict[str, Any] = {"__name__": __name__}
exec(compile(SOURCE.split("# %% use")[0], "new_policy.py", "exec", dont_inherit=True), EXAMPLE)
Seasons = EXAMPLE["Seasons"]


def by_hand(model: mmdp.MMDP, T: int, length: int) -> np.ndarray:
    """(N, T, S) every table that changes only at the beginning of a season."""
    seasons = [*range(0, T, length)]
    choices = [np.flatnonzero(row) for row in model.allowed] * len(seasons)
    tables = np.array([*product(*choices)]).reshape(-1, len(seasons), model.n_states)
    return np.repeat(tables, length, axis=1)[:, :T]


def test_the_example_is_short() -> None:
    assert len(SOURCE.split("# %% policy")[1].split("# %% use")[0].strip().splitlines()) < 80


@pytest.mark.parametrize("objective", ["mean", "cvar:0.3", "worst", "regret:worst"])
@pytest.mark.parametrize("seeds", shares(4, 40))
def test_the_best_of_all_such_policies_is_found(objective: str, seeds: range) -> None:
    goal, found_best = as_objective(objective), 0
    for seed in seeds:
        T, length = [(4, 2), (5, 3), (3, 1), (3, 5)][seed % 4]
        model = random_model(seed, n_models=3, n_states=2, n_actions=3, horizon=0)
        tables = by_hand(model, T, length)
        returns = returns_of(tables, model)
        own = mmdp.solve(model, T, "oracle").returns
        values = goal.value(goal.counted(returns, lambda own=own: own), model.weights)
        found = mmdp.solve(
            model, T, mmdp.CADP(starts=8), policy=Seasons(length), objective=objective
        )
        assert (found.policy.actions == tables).all(axis=(1, 2)).any()
        assert found.status is mmdp.Status.LOCAL_OPTIMUM
        np.testing.assert_allclose(found.returns, plain_returns(found.policy, model), rtol=1e-9)
        assert found.details["unrestricted"] >= found.value - 1e-9
        assert found.value <= values.max() + 1e-9
        found_best += found.value >= values.max() - 1e-9
        # no other action in a single state and season is better
        blocks = (tables != found.policy.actions)[:, ::length].sum(axis=(1, 2))
        assert found.value >= values[blocks == 1].max(initial=-np.inf) - 1e-9
    assert found_best >= 0.9 * len(seeds)


def test_it_is_refused_where_it_has_no_policies_and_by_methods_that_cannot_find_it() -> None:
    model = random_model(0, horizon=0, discount=0.9)
    with pytest.raises(mmdp.InputError, match="for an infinite horizon there are no seasons"):
        mmdp.solve(model, np.inf, policy=Seasons(2))
    with pytest.raises(mmdp.InputError, match="wsu cannot do this: it chooses each action by"):
        mmdp.solve(model, 3, "wsu", policy=Seasons(2))
    found = mmdp.solve(model, 3, policy=Seasons(2), time_limit=1e-9)
    assert found.status is mmdp.Status.TIME_LIMIT
    assert (found.policy.actions[0] == found.policy.actions[1]).all()


def test_without_memory_of_its_own_it_is_saved_and_followed(tmp_path: Any) -> None:
    model = random_model(1, horizon=0)
    found = mmdp.solve(model, 4, policy=Seasons(2))
    assert str(found.provenance.policy) == "Seasons(length=2)"
    mmdp.save_policy(found.policy, tmp_path / "rule.json")
    assert mmdp.load_policy(tmp_path / "rule.json", model) == found.policy
    assert mmdp.simulate(found.policy, model, episodes=20).returns.shape == (model.n_models,)
