"""A kind of policy of one's own: the worked example of docs/extending.md against brute force."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.objectives import as_objective
from mmdp.core.testing import compute_plain_returns, compute_returns, make_random_model
from tests.conftest import ROOT
from tests.instances import seed_ranges

SOURCE = (ROOT / "examples" / "new_policy.py").read_text(encoding="utf-8")
EXAMPLE: dict[str, Any] = {"__name__": __name__}
exec(compile(SOURCE.split("# %% use")[0], "new_policy.py", "exec", dont_inherit=True), EXAMPLE)
Seasons = EXAMPLE["Seasons"]


def enumerate_seasonal_policies(model: mmdp.MMDP, T: int, length: int) -> np.ndarray:
    """(N, T, S) every table that changes only at the beginning of a season."""
    seasons = [*range(0, T, length)]
    choices = [np.flatnonzero(row) for row in model.allowed] * len(seasons)
    tables = np.array([*product(*choices)]).reshape(-1, len(seasons), model.n_states)
    return np.repeat(tables, length, axis=1)[:, :T]


def test_the_example_is_short() -> None:
    assert len(SOURCE.split("# %% policy")[1].split("# %% use")[0].strip().splitlines()) < 80


@pytest.mark.parametrize("objective", ["mean", "cvar:0.3", "worst", "regret:worst"])
@pytest.mark.parametrize("seeds", seed_ranges(4, 40))
def test_the_best_of_all_such_policies_is_found(objective: str, seeds: range) -> None:
    F, n_optimal = as_objective(objective), 0
    for seed in seeds:
        T, length = [(4, 2), (5, 3), (3, 1), (3, 5)][seed % 4]
        model = make_random_model(seed, n_models=3, n_states=2, n_actions=3, horizon=0)
        tables = enumerate_seasonal_policies(model, T, length)
        returns = compute_returns(model, tables)
        oracle_returns = mmdp.solve(model, T, "oracle").returns
        values = F.value(
            F.relative_returns(returns, lambda oracle_returns=oracle_returns: oracle_returns),
            model.weights,
        )
        solution = mmdp.solve(
            model, T, mmdp.methods.CADP(n_init=8), policy_class=Seasons(length), objective=objective
        )
        assert (solution.policy.actions == tables).all(axis=(1, 2)).any()
        assert solution.status is mmdp.Status.LOCAL_OPTIMUM
        np.testing.assert_allclose(
            solution.returns, compute_plain_returns(model, solution.policy), rtol=1e-9
        )
        assert solution.details["unrestricted_value"] >= solution.value - 1e-9
        assert solution.value <= values.max() + 1e-9
        n_optimal += solution.value >= values.max() - 1e-9
        # no other action in a single state and season is better
        blocks = (tables != solution.policy.actions)[:, ::length].sum(axis=(1, 2))
        assert solution.value >= values[blocks == 1].max(initial=-np.inf) - 1e-9
    assert n_optimal >= 0.9 * len(seeds)


def test_unsupported_horizons_and_methods_are_refused() -> None:
    model = make_random_model(0, horizon=0, discount=0.9)
    with pytest.raises(mmdp.InputError, match="for an infinite horizon there are no seasons"):
        mmdp.solve(model, np.inf, policy_class=Seasons(2))
    with pytest.raises(mmdp.InputError, match="wsu cannot do this: it chooses each action by"):
        mmdp.solve(model, 3, "wsu", policy_class=Seasons(2))
    solution = mmdp.solve(model, 3, policy_class=Seasons(2), time_limit=1e-9)
    assert solution.status is mmdp.Status.TIME_LIMIT
    assert (solution.policy.actions[0] == solution.policy.actions[1]).all()


def test_its_policies_are_saved_and_simulated(tmp_path: Any) -> None:
    model = make_random_model(1, horizon=0)
    solution = mmdp.solve(model, 4, policy_class=Seasons(2))
    assert str(solution.provenance.policy_class) == "Seasons(length=2)"
    mmdp.save_policy(solution.policy, tmp_path / "rule.json")
    assert mmdp.load_policy(tmp_path / "rule.json", model) == solution.policy
    assert mmdp.simulate(model, solution.policy, n_episodes=20).returns.shape == (model.n_models,)


def test_a_search_space_that_is_wrong_about_the_returns_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WrongSpace(EXAMPLE["SeasonSpace"]):  # type: ignore[misc]
        def iter_changes(self, candidate: Any, direction: Any) -> Any:
            table, rho = yield from super().iter_changes(candidate, direction)
            return table, rho + 1.0

    model = make_random_model(1, horizon=0)
    monkeypatch.setitem(EXAMPLE["MARKOV_SPACES"], Seasons, WrongSpace)
    for objective in ("mean", "worst"):
        with pytest.raises(mmdp.InputError, match=r"WrongSpace\.iter_changes .* differ by 1 from"):
            mmdp.solve(model, 4, policy_class=Seasons(2), objective=objective)


def test_a_restricted_class_without_a_search_space_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_random_model(1, horizon=0)
    monkeypatch.delitem(EXAMPLE["MARKOV_SPACES"], Seasons)
    with pytest.raises(mmdp.InputError, match="registered for the policy class Seasons.*add MARK"):
        mmdp.solve(model, 4, policy_class=Seasons(2))

    class Groups(mmdp.policies.Tied):  # its rows are those of its base class
        pass

    groups = [0] * model.n_states
    tied = mmdp.solve(model, 4, policy_class=mmdp.policies.Tied(groups))
    assert mmdp.solve(model, 4, policy_class=Groups(groups)).value == tied.value
