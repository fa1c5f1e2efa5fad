"""What has labels is read by label: dicts, Series and DataFrames alike, whatever their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp import posterior
from mmdp.validate import by_label

STATES, ACTIONS, MODELS = ("well", "ill", "dead"), ("wait", "treat"), ("low", "high")
LABELS = {"states": STATES, "actions": ACTIONS, "models": MODELS}
RNG = np.random.default_rng(5)
P = RNG.dirichlet(np.ones(3), (2, 3, 2))
R = RNG.normal(size=(3, 2))


def built(**changes: Any) -> mmdp.MMDP:
    return mmdp.MMDP(P, **{"rewards": R, **LABELS, **changes})


def shuffled(values: Any, *axes: tuple[str, ...]) -> Any:
    """A Series or DataFrame of the values whose labels are in another order."""
    if len(axes) == 1:
        return pd.Series(values, list(axes[0])).iloc[::-1]
    return pd.DataFrame(values, list(axes[0]), list(axes[1])).iloc[::-1, ::-1]


MU, LAMBDA = np.array([0.2, 0.3, 0.5]), np.array([0.25, 0.75])
K = np.array([[0.9, 0.1], [0.3, 0.7]])
ALLOWED = np.array([[True, True], [True, False], [False, True]])
V = np.array([3.0, 2.0, 1.0])
FIELDS: dict[str, tuple[str, Any, tuple[tuple[str, ...], ...]]] = {
    "initial": ("initial", MU, (STATES,)),
    "weights": ("weights", LAMBDA, (MODELS,)),
    "rewards": ("rewards", R, (STATES, ACTIONS)),
    "terminal": ("terminal", V, (STATES,)),
    "terminal by model": ("terminal", np.array([V, -V]), (MODELS, STATES)),
    "allowed": ("allowed", ALLOWED, (STATES, ACTIONS)),
    "model_transitions": ("model_transitions", K, (MODELS, MODELS)),
}


@pytest.mark.parametrize("case", FIELDS)
def test_fields_of_a_model_go_by_label(case: str) -> None:
    field, values, axes = FIELDS[case]
    expected = built(**{field: values})
    named = shuffled(values, *axes)
    for found in (built(**{field: named}), built().replace(**{field: named})):
        assert found.fingerprint() == expected.fingerprint()
    plain = dict(named) if len(axes) == 1 else {x: dict(row) for x, row in named.iterrows()}
    assert built(**{field: plain}).fingerprint() == expected.fingerprint()


def test_a_mapping_names_the_first_axis_of_its_values() -> None:
    with pytest.raises(mmdp.InputError, match="no label 'high' here; use well, ill, dead"):
        built(rewards={"high": R, "low": 2 * R})  # not in the order of the mapping
    square = np.eye(2)
    with pytest.raises(mmdp.InputError, match="no label 'treat' here; use well, ill"):
        mmdp.MMDP({"treat": square, "wait": square}, np.eye(2), states=STATES[:2], actions=ACTIONS)
    named = {x: dict(zip(ACTIONS, P[0, s], strict=True)) for s, x in enumerate(STATES)}
    back = mmdp.MMDP({x: named[x] for x in STATES[::-1]}, R, states=STATES, actions=ACTIONS)
    np.testing.assert_array_equal(back.transitions[0], P[0])
    with pytest.raises(mmdp.InputError, match="rectangular array of numbers"):
        built(rewards={"well": [[1, 2], [3]], "ill": [1], "dead": [2]})


def test_names_of_the_allowed_actions_are_refused() -> None:
    with pytest.raises(mmdp.InputError, match="allowed must be a rectangular array of numbers"):
        built(allowed={"well": ["wait"], "ill": ["wait", "treat"], "dead": ["wait"]})


@pytest.mark.parametrize("case", FIELDS)
def test_default_indexes_are_ids_and_other_labels_an_error(case: str) -> None:
    field, values, axes = FIELDS[case]
    plain = pd.Series(values) if len(axes) == 1 else pd.DataFrame(values)
    expected = built(**{field: values}).fingerprint()
    assert built(**{field: plain}).fingerprint() == expected
    assert built(**{field: plain.iloc[::-1]}).fingerprint() == expected  # ids too are labels
    named = shuffled(values, *axes)
    with pytest.raises(mmdp.InputError, match="the model has no label '(wel|lo)'"):
        built(**{field: named.rename({"well": "wel", "low": "lo"})})
    with pytest.raises(mmdp.InputError, match="twice"):
        built(**{field: pd.concat([named, named])})
    if field not in ("initial", "weights"):
        with pytest.raises(
            mmdp.InputError, match=": no '(well|ill|dead|low|high)'; name every one"
        ):
            built(**{field: named.iloc[1:]})
    else:  # what is left out has no probability, as in a dict
        with pytest.raises(mmdp.InputError, match="must sum to 1"):
            built(**{field: named.iloc[1:]})


def test_transitions_by_model_and_state_go_by_label() -> None:
    rows = [[shuffled(P[m, s], ACTIONS, STATES) for s in range(3)] for m in range(2)]
    assert mmdp.MMDP(rows, R, **LABELS).fingerprint() == built().fingerprint()


def test_many_labels_take_no_time() -> None:
    names = [f"s{i}" for i in range(50_000)]
    keys = dict.fromkeys(names[::-1], 1.0)
    assert by_label(keys, "weights", names).sum() == 50_000


def test_rewards_by_model_and_parameters_go_by_label() -> None:
    both = [shuffled(R, STATES, ACTIONS), shuffled(2 * R, STATES, ACTIONS)]
    np.testing.assert_array_equal(built(rewards=both).rewards, [R, 2 * R])
    drawn = pd.DataFrame({"cost": [1.0, 2.0]}, ["high", "low"])
    found = built(parameters=drawn)
    assert found.parameters["cost"].tolist() == [2.0, 1.0]
    asked = mmdp.measures.evppi(found, 3, drawn["cost"])
    assert asked == mmdp.measures.evppi(found, 3, "cost") == mmdp.measures.evppi(found, 3, drawn)


def test_labels_that_are_numbers_are_labels() -> None:
    model = built(states=[2, 1, 0], initial=pd.Series([0.2, 0.3, 0.5], [2, 1, 0]))
    assert model.initial.tolist() == [0.2, 0.3, 0.5]
    assert mmdp.Tied({2: "a", 1: "b", 0: "b"}).group_of(model).tolist() == [0, 1, 1]


KINDS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "tree": (
        lambda: mmdp.Tree(features={"age": shuffled([1, 2, 2], STATES)}),
        lambda: mmdp.Tree(features={"age": np.array([1, 2, 2])}),
    ),
    "tied": (lambda: mmdp.Tied(shuffled(list("abb"), STATES)), lambda: mmdp.Tied(list("abb"))),
    "fixed": (
        lambda: mmdp.Fixed(shuffled(["wait", "treat", "wait"], STATES)),
        lambda: mmdp.Fixed([0, 1, 0]),
    ),
    "fixed ids": (lambda: mmdp.Fixed(shuffled([-1, 1, 0], STATES)), lambda: mmdp.Fixed([-1, 1, 0])),
    "open": (lambda: mmdp.Fixed(shuffled(ALLOWED, STATES, ACTIONS)), lambda: mmdp.Fixed(ALLOWED)),
    "by time": (
        lambda: mmdp.Fixed(pd.DataFrame([[-1, 1, 0], [1, 1, 1]], columns=STATES).iloc[:, ::-1]),
        lambda: mmdp.Fixed([[-1, 1, 0], [1, 1, 1]]),
    ),
}


@pytest.mark.parametrize("case", KINDS)
def test_kinds_of_policy_go_by_label(case: str) -> None:
    named, plain = (make().settings(built(), 2) for make in KINDS[case])
    assert named == plain


def test_policies_go_by_label() -> None:
    table = pd.DataFrame([[0, 1, 1], [1, 0, 0]], columns=STATES)
    found = mmdp.MarkovPolicy.for_model(built(), table.iloc[::-1, ::-1])
    assert found.actions.tolist() == table.to_numpy().tolist()
    row = mmdp.StationaryPolicy(shuffled([0, 1, 1], STATES), state_labels=STATES)
    assert row.over(1).actions.tolist() == [[0, 1, 1]]
    with pytest.raises(mmdp.InputError, match="no label 'dead'"):
        mmdp.MarkovPolicy(table.iloc[:, ::-1])


def test_a_log_goes_by_label() -> None:
    log = {"state": ["up", "down"], "action": ["go", "go"], "next_state": ["down", "up"]}
    names = ("up", "down")
    rewards, initial = np.array([5.0, -1.0]), np.array([0.9, 0.1])
    prior = np.array([[1.0, 2.0], [3.0, 4.0]])
    expected = posterior.fit(log, models=3, rewards=rewards, initial=initial, prior=prior).train
    found = posterior.fit(
        log, models=3, rewards=shuffled(rewards, names), initial=shuffled(initial, names),
        prior=shuffled(prior, names, names),
    ).train  # fmt: skip
    assert found.fingerprint() == expected.fingerprint()


def test_weights_of_draws_go_by_the_index_of_the_draws() -> None:
    draws = pd.DataFrame({"p": [0.1, 0.2], "w": [0.25, 0.75]}, index=[7, 3])
    model = posterior.from_draws(
        draws, lambda x: ([[[x["p"], 1 - x["p"]]], [[0.0, 1.0]]], [[1.0], [0.0]]),
        vectorized=False, weights=draws["w"].iloc[::-1],
    )  # fmt: skip
    assert model.weights.tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    "make",
    [
        lambda: built(states=set(STATES)),
        lambda: mmdp.Monotone(states=set(STATES)),
        lambda: posterior.fit(
            {"state": ["ill"], "action": ["wait"], "next_state": ["ill"]}, states=set(STATES)
        ),
        lambda: mmdp.io.from_frame(mmdp.io.to_frame(built()), states=frozenset(STATES)),
    ],
)
def test_a_set_has_no_order(make: Callable[[], Any]) -> None:
    with pytest.raises(mmdp.InputError, match="a set, which has no order"):
        make()


MASKED = np.ma.masked_equal([[1.0, 9999.0], [2.0, 3.0], [0.0, 0.0]], 9999.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: built(rewards=MASKED),
        lambda: built(rewards=[MASKED, MASKED]),
        lambda: built(initial=np.ma.masked_less([0.5, 0.5, 0.0], 0.4)),
        lambda: built(allowed=np.ma.masked_array(ALLOWED, ~ALLOWED)),
        lambda: built(parameters={"x": np.ma.masked_less([1.0, 2.0], 2.0)}),
        lambda: mmdp.MMDP(np.ma.masked_less(P, 0.1), R),
        lambda: mmdp.MarkovPolicy(np.ma.masked_equal([[0, 9, 1]], 9)),
        lambda: mmdp.StationaryPolicy(np.ma.masked_equal([0, 9, 1], 9)),
        lambda: mmdp.Fixed(np.ma.masked_equal([0, 9, 1], 9)).mask(built(), 2),
        lambda: mmdp.Tied(np.ma.masked_equal([0, 9, 1], 9)).group_of(built()),
        lambda: mmdp.Tree(features={"x": np.ma.masked_equal([0, 9, 1], 9)}).check(built(), 2),
        lambda: posterior.from_draws({"p": np.ma.masked_equal([0.1, 9.0], 9.0)}, lambda x: None),
    ],
)
def test_masked_entries_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(mmdp.InputError, match=r"masked.*\.filled\(VALUE\)"):
        make()
    unmasked = np.ma.masked_array(R)
    assert built(rewards=unmasked).fingerprint() == built().fingerprint()
