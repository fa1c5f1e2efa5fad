"""What methods can answer: they do what they do not lack, and refuse the rest with a reason."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.methods import METHODS, ProblemSpec
from mmdp.core.objectives import as_objective
from mmdp.core.policies import Belief, Markov
from mmdp.core.search import controllers
from mmdp.core.testing import compute_returns, enumerate_policies, make_random_model
from tests.instances import EXACT, list_policies, make_switching_model, returns_by_paths

STATIC = make_random_model(
    3, n_models=2, n_states=2, n_actions=2, horizon=0, has_masks=False
).replace(discount=0.9, initial=[0.5, 0.5])
SWITCHING = STATIC.replace(model_transitions=[[0.7, 0.3], [0.2, 0.8]])
POLICY_CLASSES = {
    x.name: x
    for x in (
        Markov(),
        mmdp.policies.Tied([0, 0]),
        mmdp.policies.Monotone(),
        mmdp.policies.Fixed([0, -1]),
        mmdp.policies.Memory(2),
        mmdp.policies.Stationary(),
        Belief(),
    )
}
OBJECTIVES = (
    "mean",
    "cvar:0.5",
    "var:0.5",
    "evar:0.5",
    "entropic:0.5",
    "worst",
    "mean-cvar:0.5:0.5",
    "regret:mean",
    "regret:worst",
    mmdp.objectives.CustomObjective(lambda returns, weights: np.tanh(returns) @ weights),
)
CASES = {
    "static": (STATIC, 2),
    "switching": (SWITCHING, 2),
    "infinite": (STATIC, math.inf),
    "switching, infinite": (SWITCHING, math.inf),
}
QUICK_OPTIONS = {"n_episodes": 4, "n_queries": 5, "n_init": 1}
# what each method finds for the mean of models that stay, that change, and without an end
MASK_CLASSES = {"static": "markov fixed", "switching": "markov fixed"}
SUPPORTED_CLASSES = {
    "cadp": {
        "static": "markov tied monotone fixed memory stationary",
        "switching": "markov tied monotone fixed memory stationary",
        "infinite": "tied monotone fixed stationary",
    },
    "wsu": MASK_CLASSES,
    "gradient": MASK_CLASSES,
    "mirror": MASK_CLASSES,
    "mvp": {**MASK_CLASSES, "infinite": "fixed stationary"},
    "oracle": {**MASK_CLASSES, "infinite": "fixed stationary"},
    "qmdp": {"static": "belief", "switching": "belief", "infinite": "belief"},
    "rollout": {"static": "belief", "switching": "belief", "infinite": "belief"},
    "mixts": {"static": "belief", "infinite": "belief"},
    "pomcp": {"static": "belief"},
    "grid": {"static": "belief", "switching": "belief", "infinite": "belief"},
    "exact": {"static": "markov fixed", "infinite": "fixed stationary"},
    "milp": {"static": "markov fixed"},
}
N_OBJECTIVES = {"cadp": len(OBJECTIVES), "milp": 7}  # the others: the mean alone


@pytest.fixture(autouse=True)
def _few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of memory is the best of many candidates, which take their time."""
    monkeypatch.setattr(controllers, "count_candidates", lambda *_: 1)


def make_method(name: str) -> Any:
    fields = METHODS[name].__dataclass_fields__  # type: ignore[attr-defined]
    return METHODS[name](**{key: value for key, value in QUICK_OPTIONS.items() if key in fields})


def fits_class(policy: Any, class_name: str, is_infinite_horizon: bool) -> bool:
    if class_name in ("belief", "memory"):
        return isinstance(policy, mmdp.policies.Planner)
    if not isinstance(
        policy,
        mmdp.policies.StationaryPolicy if is_infinite_horizon else mmdp.policies.MarkovPolicy,
    ):
        return False
    rows = np.atleast_2d(policy.actions)
    checks = {
        "tied": (rows[:, 0] == rows[:, 1]).all(),
        "monotone": (np.diff(rows, axis=1) >= 0).all(),
        "fixed": (rows[:, 0] == 0).all(),
        "stationary": (rows == rows[0]).all(),
    }
    return bool(checks.get(class_name, True))


def find_expected_error(
    method: Any, model: mmdp.MMDP, horizon: float, objective: Any, class_name: str
) -> str | None:
    """What solve() should say; None if it should solve."""
    try:
        spec = ProblemSpec(model, horizon, as_objective(objective), POLICY_CLASSES[class_name])
    except mmdp.InputError as none:  # there is no such question, for no method
        return none.message
    reason = method.unsupported_reason(spec)
    return None if reason is None else f"{method.name} cannot do this: {reason}"


@pytest.mark.parametrize("name", METHODS)
def test_methods_solve_what_they_support_and_refuse_others(name: str) -> None:
    method, solved = make_method(name), {}
    for case, class_name, objective in itertools.product(CASES, POLICY_CLASSES, OBJECTIVES):
        model, horizon = CASES[case]
        solve_kwargs = {
            "objective": objective,
            "policy_class": POLICY_CLASSES[class_name],
            "backend": "numpy",
        }
        reason = find_expected_error(method, model, horizon, objective, class_name)
        if reason is not None:
            with pytest.raises(mmdp.InputError) as refused:
                mmdp.solve(model, horizon, method, **solve_kwargs)
            assert refused.value.message == reason
            continue
        solution = mmdp.solve(model, horizon, method, **solve_kwargs)
        assert np.isfinite(solution.value)
        if name == "oracle":
            assert solution.policy is None
        else:
            assert fits_class(solution.policy, class_name, horizon == math.inf), (
                case,
                class_name,
                objective,
            )
        solved.setdefault((case, class_name), []).append(objective)
    expected = {
        (case, class_name)
        for case, class_names in SUPPORTED_CLASSES[name].items()
        for class_name in class_names.split()
    }
    assert set(solved) == expected
    assert {len(x) for x in solved.values()} == {N_OBJECTIVES.get(name, 1)}


@pytest.mark.parametrize("name", METHODS)
def test_a_refusal_names_supporting_methods(name: str) -> None:
    for class_name, objective in itertools.product(("tied", "belief"), ("mean", "evar:0.5")):
        spec = ProblemSpec(STATIC, 2, as_objective(objective), POLICY_CLASSES[class_name])
        supporting = [x for x in METHODS if make_method(x).unsupported_reason(spec) is None]
        if name not in supporting:
            with pytest.raises(mmdp.InputError) as error:
                mmdp.solve(
                    STATIC, 2, name, objective=objective, policy_class=POLICY_CLASSES[class_name]
                )
            assert all(repr(x) in str(error.value) for x in supporting)
            assert ("choose" in str(error.value)) == bool(supporting)


def test_without_a_class_refusals_name_any_methods() -> None:
    with pytest.raises(mmdp.InputError, match="qmdp cannot do this: .*choose method='cadp' or 'mi"):
        mmdp.solve(STATIC, 2, "qmdp", objective="worst")


# ---------------------------------------------------------------------- against enumeration
def test_decreasing_functions_are_not_proven_on_one_model() -> None:
    model = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    solution = mmdp.solve(
        model,
        2,
        objective=mmdp.objectives.CustomObjective(lambda returns, weights: -(returns @ weights)),
    )
    assert solution.value == -4.0
    assert solution.status is not mmdp.Status.OPTIMAL


@pytest.mark.parametrize("seed", range(6))
def test_switching_objectives_use_returns_by_first_model(
    seed: int,
) -> None:
    x, T = make_switching_model(seed), 2
    tables = list_policies(x, T)
    returns = np.array([returns_by_paths(x, table) for table in tables])
    oracle_returns = mmdp.solve(x, T, "oracle").returns
    for text in ("cvar:0.5", "worst", "entropic:0.3", "regret:worst"):
        objective = as_objective(text)
        values = objective.value(
            objective.relative_returns(returns, lambda: oracle_returns), x.weights
        )
        solution = mmdp.solve(x, T, objective=objective)
        index = int((tables == solution.policy.actions).all(axis=(1, 2)).argmax())
        assert solution.value == pytest.approx(values[index], abs=EXACT)
        assert solution.value <= values.max() + EXACT
        is_neighbor = (tables != solution.policy.actions).sum(axis=(1, 2)) == 1
        assert solution.value >= values[is_neighbor].max() - EXACT, text
        # a flow chart is not worse than the table that it grows from
        controller_solution = mmdp.solve(
            x, T, objective=objective, policy_class=mmdp.policies.Memory(2)
        )
        assert controller_solution.value >= solution.value - EXACT


@pytest.mark.parametrize("seed", range(5))
def test_gains_of_single_changes_in_switching_models(seed: int) -> None:
    """What ``changes`` offers is the difference of the returns by paths."""
    from mmdp.core import kernels
    from mmdp.core.search.context import SolveContext
    from mmdp.core.search.space import AscentDirection, WeightedMean
    from mmdp.core.search.spaces import MarkovSpace

    x, T = make_switching_model(seed), 3
    context = SolveContext(x, T, kernels.get_backend("numpy"))
    table = np.random.default_rng(seed).integers(x.n_actions, size=(T, x.n_states), dtype=np.int32)
    d = context.prepared.forward_by_start(lambda prepared: prepared.forward(table))
    returns = returns_by_paths(x, table)
    space = MarkovSpace(context)
    direction = AscentDirection(
        space, table, returns, WeightedMean(x.weights)
    )  # by which all may pay
    changes = space.iter_changes(table, direction)
    batch = next(changes)
    for t in reversed(range(T)):
        visit_probs = context.prepared.credit_to_start(d[t], np.ones((x.n_states, x.n_models)))
        for i, s in enumerate(np.argsort(-(visit_probs @ x.weights), kind="stable")):
            for a, gain in enumerate(batch[i]):
                changed = table.copy()
                changed[t, s] = a
                np.testing.assert_allclose(
                    gain, returns_by_paths(x, changed) - returns, rtol=0, atol=1e-9
                )
        try:
            batch = changes.send(np.full(x.n_states, -1, np.int32))  # leave them as they are
        except StopIteration as end:
            last_time, final_table = t, end.value[0]
    assert last_time == 0
    np.testing.assert_array_equal(final_table, table)


@pytest.mark.parametrize("seed", range(4))
def test_methods_keep_to_fixed_actions(seed: int) -> None:
    """exact proves the best of all policies with these decisions; others are not better."""
    model, T = (
        make_random_model(seed, n_models=3, n_states=2, n_actions=2, horizon=0, has_masks=False),
        3,
    )
    rng = np.random.default_rng(seed)
    fixed_actions = np.where(rng.random((T, 2)) < 0.4, rng.integers(2, size=(T, 2)), -1)
    tables = enumerate_policies(model, T)
    tables = tables[((tables == fixed_actions) | (fixed_actions < 0)).all(axis=(1, 2))]
    returns = compute_returns(model, tables)
    best, policy_class = float((returns @ model.weights).max()), mmdp.policies.Fixed(fixed_actions)
    approx_best = pytest.approx(best, rel=1e-8, abs=1e-8)
    for name in METHODS:
        if name not in ("cadp", "wsu", "mvp", "gradient", "mirror", "exact", "milp"):
            continue
        solution = mmdp.solve(model, T, name, policy_class=policy_class, backend="numpy")
        assert ((solution.policy.actions == fixed_actions) | (fixed_actions < 0)).all(), name
        assert solution.value <= best + EXACT
        if name in ("exact", "milp"):
            assert solution.value == approx_best
            assert solution.status is mmdp.Status.OPTIMAL
            assert solution.bound >= best - EXACT
            assert solution.certificate.scope == "fixed"
            assert "with these decisions given is better" in solution.status_text
    oracle_returns = mmdp.solve(model, T, "oracle").returns
    for text in ("cvar:0.4", "worst", "regret:worst"):
        objective = as_objective(text)
        values = objective.value(
            objective.relative_returns(returns, lambda: oracle_returns), model.weights
        )
        solution = mmdp.solve(model, T, "milp", policy_class=policy_class, objective=text)
        assert solution.value == pytest.approx(values.max(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("text", ["mean", "cvar:0.4"])
def test_restrictions_hold_over_an_infinite_horizon(seed: int, text: str) -> None:
    model = make_random_model(seed, n_models=3, n_states=3, n_actions=2, horizon=0, has_masks=False)
    model = model.replace(discount=0.9)
    rows = np.array(list(itertools.product(range(2), repeat=3)))
    returns = np.array(
        [mmdp.evaluate(model, mmdp.policies.StationaryPolicy(row)).returns for row in rows]
    )
    values = as_objective(text).value(returns, model.weights)
    classes = {
        mmdp.policies.Tied([0, 1, 0]): rows[:, 0] == rows[:, 2],
        mmdp.policies.Monotone(): (np.diff(rows, axis=1) >= 0).all(axis=1),
        mmdp.policies.Fixed([-1, 1, -1]): rows[:, 1] == 1,
    }
    for policy_class, is_allowed in classes.items():
        solution = mmdp.solve(model, math.inf, objective=text, policy_class=policy_class)
        index = int((rows == solution.policy.actions).all(axis=1).argmax())
        assert is_allowed[index]
        assert solution.value == pytest.approx(values[index], rel=1e-9)
        assert solution.restriction_cost >= 0
        assert solution.details["unrestricted_value"] >= values.max() - 1e-9 * abs(values.max())
        single = (rows != rows[index]).sum(axis=1) == 1
        if (single & is_allowed).any():
            assert solution.value >= values[single & is_allowed].max() - 1e-9
    if text == "mean":
        exact = mmdp.solve(model, math.inf, "exact", policy_class=policy_class)
        assert exact.value == pytest.approx(values[is_allowed].max(), rel=1e-9)
        assert exact.status is mmdp.Status.OPTIMAL


def test_unreachable_states_keep_to_infinite_horizon_restrictions() -> None:
    P = np.zeros((1, 3, 2, 3))
    P[0, :, :, 0] = 1.0  # the others are never reached
    R = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    model = mmdp.MMDP(np.repeat(P, 2, axis=0), R, initial=[1, 0, 0], discount=0.5)
    for policy_class, row in {
        mmdp.policies.Tied([0, 0, 1]): [1, 1, 0],
        mmdp.policies.Monotone(): [1, 1, 1],
        mmdp.policies.Fixed([-1, -1, 1]): [1, 0, 1],
        mmdp.policies.Stationary(): [1, 0, 0],
    }.items():
        solution = mmdp.solve(model, math.inf, policy_class=policy_class)
        assert solution.policy.actions.tolist() == row
        assert solution.details["unreachable"].tolist() == [False, True, True]
