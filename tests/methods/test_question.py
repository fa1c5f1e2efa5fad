"""What methods can answer: they do what they do not lack, and refuse the rest with a reason."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.methods import METHODS, Question
from mmdp.objective import as_objective
from mmdp.policy import Belief, Markov
from mmdp.search import charts
from mmdp.testing import all_policies, random_model, returns_of
from tests.instances import EXACT, by_paths, drawn, every_policy

STILL = random_model(3, n_models=2, n_states=2, n_actions=2, horizon=0, masks=False).replace(
    discount=0.9, initial=[0.5, 0.5]
)
CHANGING = STILL.replace(model_transitions=[[0.7, 0.3], [0.2, 0.8]])
KINDS = {
    x.name: x
    for x in (
        Markov(), mmdp.Tied([0, 0]), mmdp.Monotone(), mmdp.Fixed([0, -1]), mmdp.Memory(2),
        mmdp.Stationary(), Belief(),
    )
}  # fmt: skip
OBJECTIVES = (
    "mean", "cvar:0.5", "var:0.5", "evar:0.5", "entropic:0.5", "worst", "mean-cvar:0.5:0.5",
    "regret:mean", "regret:worst", mmdp.Custom(lambda returns, weights: np.tanh(returns) @ weights),
)  # fmt: skip
CASES = {
    "still": (STILL, 2), "changing": (CHANGING, 2),
    "endless": (STILL, math.inf), "changing, endless": (CHANGING, math.inf),
}  # fmt: skip
QUICK = {"episodes": 4, "queries": 5, "starts": 1}
# what each method finds for the mean of models that stay, that change, and without an end
MASKS = {"still": "markov fixed", "changing": "markov fixed"}
FOUND = {
    "cadp": {
        "still": "markov tied monotone fixed memory stationary",
        "changing": "markov tied monotone fixed memory stationary",
        "endless": "tied monotone fixed stationary",
    },
    "wsu": MASKS, "gradient": MASKS, "mirror": MASKS,
    "mvp": {**MASKS, "endless": "fixed stationary"},
    "oracle": {**MASKS, "endless": "fixed stationary"},
    "qmdp": {"still": "belief", "changing": "belief", "endless": "belief"},
    "rollout": {"still": "belief", "changing": "belief", "endless": "belief"},
    "mixts": {"still": "belief", "endless": "belief"}, "pomcp": {"still": "belief"},
    "grid": {"still": "belief", "changing": "belief", "endless": "belief"},
    "exact": {"still": "markov fixed", "endless": "fixed stationary"},
    "milp": {"still": "markov fixed"},
}  # fmt: skip
AIMS = {"cadp": len(OBJECTIVES), "milp": 7}  # the others: the mean alone


@pytest.fixture(autouse=True)
def _few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of memory is the best of many candidates, which take their time."""
    monkeypatch.setattr(charts, "n_candidates", lambda *_: 1)


def method_of(name: str) -> Any:
    fields = METHODS[name].__dataclass_fields__  # type: ignore[attr-defined]
    return METHODS[name](**{key: value for key, value in QUICK.items() if key in fields})


def fits(policy: Any, kind: str, endless: bool) -> bool:
    if kind in ("belief", "memory"):
        return isinstance(policy, mmdp.Planner)
    if not isinstance(policy, mmdp.StationaryPolicy if endless else mmdp.MarkovPolicy):
        return False
    rows = np.atleast_2d(policy.actions)
    rules = {
        "tied": (rows[:, 0] == rows[:, 1]).all(), "monotone": (np.diff(rows, axis=1) >= 0).all(),
        "fixed": (rows[:, 0] == 0).all(), "stationary": (rows == rows[0]).all(),
    }  # fmt: skip
    return bool(rules.get(kind, True))


def lacking(method: Any, model: mmdp.MMDP, horizon: float, objective: Any, kind: str) -> str | None:
    """What solve() should say; None if it should solve."""
    try:
        question = Question(model, horizon, as_objective(objective), KINDS[kind])
    except mmdp.InputError as none:  # there is no such question, for no method
        return none.problem
    reason = method.lacks(question)
    return None if reason is None else f"{method.name} cannot do this: {reason}"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_answers_what_it_does_not_lack_and_refuses_the_rest(name: str) -> None:
    method, answered = method_of(name), {}
    for case, kind, objective in itertools.product(CASES, KINDS, OBJECTIVES):
        model, horizon = CASES[case]
        ask = {"objective": objective, "policy": KINDS[kind], "backend": "numpy"}
        reason = lacking(method, model, horizon, objective, kind)
        if reason is not None:
            with pytest.raises(mmdp.InputError) as refused:
                mmdp.solve(model, horizon, method, **ask)
            assert refused.value.problem == reason
            continue
        found = mmdp.solve(model, horizon, method, **ask)
        assert np.isfinite(found.value)
        if name == "oracle":
            assert found.policy is None
        else:
            assert fits(found.policy, kind, horizon == math.inf), (case, kind, objective)
        answered.setdefault((case, kind), []).append(objective)
    expected = {(case, kind) for case, kinds in FOUND[name].items() for kind in kinds.split()}
    assert set(answered) == expected
    assert {len(x) for x in answered.values()} == {AIMS.get(name, 1)}


@pytest.mark.parametrize("name", METHODS)
def test_a_refusal_names_methods_that_can(name: str) -> None:
    for kind, objective in itertools.product(("tied", "belief"), ("mean", "evar:0.5")):
        question = Question(STILL, 2, as_objective(objective), KINDS[kind])
        others = [x for x in METHODS if method_of(x).lacks(question) is None]
        if name not in others:
            with pytest.raises(mmdp.InputError) as told:
                mmdp.solve(STILL, 2, name, objective=objective, policy=KINDS[kind])
            assert all(repr(x) in str(told.value) for x in others)
            assert ("choose" in str(told.value)) == bool(others)


def test_without_a_kind_a_refusal_names_methods_of_any_kind() -> None:
    with pytest.raises(mmdp.InputError, match="qmdp cannot do this: .*choose method='cadp' or 'mi"):
        mmdp.solve(STILL, 2, "qmdp", objective="worst")


# ---------------------------------------------------------------------- against enumeration
def test_the_optimum_of_a_single_model_is_none_of_a_function_that_falls() -> None:
    one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    found = mmdp.solve(one, 2, objective=mmdp.Custom(lambda returns, weights: -(returns @ weights)))
    assert found.value == -4.0
    assert found.status is not mmdp.Status.OPTIMAL


@pytest.mark.parametrize("seed", range(6))
def test_objectives_of_models_that_change_are_those_of_returns_by_the_first_model(
    seed: int,
) -> None:
    x, T = drawn(seed), 2
    tables = every_policy(x, T)
    returns = np.array([by_paths(x, table) for table in tables])
    own = mmdp.solve(x, T, "oracle").returns
    for text in ("cvar:0.5", "worst", "entropic:0.3", "regret:worst"):
        objective = as_objective(text)
        values = objective.value(objective.counted(returns, lambda: own), x.weights)
        found = mmdp.solve(x, T, objective=objective)
        place = int((tables == found.policy.actions).all(axis=(1, 2)).argmax())
        assert found.value == pytest.approx(values[place], abs=EXACT)
        assert found.value <= values.max() + EXACT
        one_change = (tables != found.policy.actions).sum(axis=(1, 2)) == 1
        assert found.value >= values[one_change].max() - EXACT, text
        # a flow chart is not worse than the table that it grows from
        chart = mmdp.solve(x, T, objective=objective, policy=mmdp.Memory(2))
        assert chart.value >= found.value - EXACT


@pytest.mark.parametrize("seed", range(5))
def test_single_changes_know_what_they_add_if_models_change(seed: int) -> None:
    """What ``changes`` offers is the difference of the returns by paths."""
    from mmdp import kernels
    from mmdp.search.context import Context
    from mmdp.search.landscape import Slope
    from mmdp.search.tables import Tables

    x, T = drawn(seed), 3
    slope = Slope(lambda: x.weights, lambda gains: np.ones(gains.shape, bool))  # all may pay
    context = Context(x, T, kernels.get("numpy"))
    table = np.random.default_rng(seed).integers(x.n_actions, size=(T, x.n_states), dtype=np.int32)
    d = context.plan.by_start(lambda plan: plan.forward(table))
    before = by_paths(x, table)
    changes = Tables(context).changes(table, slope)
    offered = next(changes)
    for t in reversed(range(T)):
        chance = context.plan.felt(d[t], np.ones((x.n_states, x.n_models)))
        for s in np.argsort(-(chance @ x.weights), kind="stable"):
            for a, added in enumerate(offered[0]):
                other = table.copy()
                other[t, s] = a
                np.testing.assert_allclose(added, by_paths(x, other) - before, rtol=0, atol=1e-9)
            try:
                offered = changes.send(np.array([-1], np.int32))  # leave it as it is
            except StopIteration as end:
                last, left = t, end.value[0]
    assert last == 0
    np.testing.assert_array_equal(left, table)


@pytest.mark.parametrize("seed", range(4))
def test_methods_for_single_actions_keep_to_given_decisions(seed: int) -> None:
    """exact proves the best of all policies with these decisions; others are not better."""
    model, T = random_model(seed, n_models=3, n_states=2, n_actions=2, horizon=0, masks=False), 3
    rng = np.random.default_rng(seed)
    given = np.where(rng.random((T, 2)) < 0.4, rng.integers(2, size=(T, 2)), -1)
    tables = all_policies(model, T)
    tables = tables[((tables == given) | (given < 0)).all(axis=(1, 2))]
    returns = returns_of(tables, model)
    best, kind = float((returns @ model.weights).max()), mmdp.Fixed(given)
    near = pytest.approx(best, rel=1e-8, abs=1e-8)
    for name in METHODS:
        if name not in ("cadp", "wsu", "mvp", "gradient", "mirror", "exact", "milp"):
            continue
        found = mmdp.solve(model, T, name, policy=kind, backend="numpy")
        assert ((found.policy.actions == given) | (given < 0)).all(), name
        assert found.value <= best + EXACT
        if name in ("exact", "milp"):
            assert found.value == near
            assert found.status is mmdp.Status.OPTIMAL
            assert found.bound >= best - EXACT
            assert found.certificate.bounds == "fixed"
            assert "with these decisions given is better" in found.outcome
    own = mmdp.solve(model, T, "oracle").returns
    for text in ("cvar:0.4", "worst", "regret:worst"):
        objective = as_objective(text)
        values = objective.value(objective.counted(returns, lambda: own), model.weights)
        found = mmdp.solve(model, T, "milp", policy=kind, objective=text)
        assert found.value == pytest.approx(values.max(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("text", ["mean", "cvar:0.4"])
def test_restrictions_hold_over_an_infinite_horizon(seed: int, text: str) -> None:
    model = random_model(seed, n_models=3, n_states=3, n_actions=2, horizon=0, masks=False)
    model = model.replace(discount=0.9)
    rows = np.array(list(itertools.product(range(2), repeat=3)))
    returns = np.array([mmdp.evaluate(mmdp.StationaryPolicy(row), model).returns for row in rows])
    values = as_objective(text).value(returns, model.weights)
    kinds = {
        mmdp.Tied([0, 1, 0]): rows[:, 0] == rows[:, 2],
        mmdp.Monotone(): (np.diff(rows, axis=1) >= 0).all(axis=1),
        mmdp.Fixed([-1, 1, -1]): rows[:, 1] == 1,
    }
    for kind, inside in kinds.items():
        found = mmdp.solve(model, math.inf, objective=text, policy=kind)
        place = int((rows == found.policy.actions).all(axis=1).argmax())
        assert inside[place]
        assert found.value == pytest.approx(values[place], rel=1e-9)
        assert found.price >= 0
        assert found.details["unrestricted"] >= values.max() - 1e-9 * abs(values.max())
        single = (rows != rows[place]).sum(axis=1) == 1
        if (single & inside).any():
            assert found.value >= values[single & inside].max() - 1e-9
    if text == "mean":
        exact = mmdp.solve(model, math.inf, "exact", policy=kind)
        assert exact.value == pytest.approx(values[inside].max(), rel=1e-9)
        assert exact.status is mmdp.Status.OPTIMAL


def test_unreached_states_keep_to_a_restriction_over_an_infinite_horizon() -> None:
    P = np.zeros((1, 3, 2, 3))
    P[0, :, :, 0] = 1.0  # the others are never reached
    R = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    one = mmdp.MMDP(np.repeat(P, 2, axis=0), R, initial=[1, 0, 0], discount=0.5)
    for kind, row in {
        mmdp.Tied([0, 0, 1]): [1, 1, 0], mmdp.Monotone(): [1, 1, 1],
        mmdp.Fixed([-1, -1, 1]): [1, 0, 1], mmdp.Stationary(): [1, 0, 0],
    }.items():  # fmt: skip
        found = mmdp.solve(one, math.inf, policy=kind)
        assert found.policy.actions.tolist() == row
        assert found.details["unreached"].tolist() == [False, True, True]
