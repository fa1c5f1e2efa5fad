"""What has labels is read by label: dicts, Series and DataFrames alike, whatever their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp.core.policies.tree import get_columns
from mmdp.core.validate import align_to_labels
from mmdp.data import posterior

STATES, ACTIONS, MODELS = ("well", "ill", "dead"), ("wait", "treat"), ("low", "high")
LABELS = {"states": STATES, "actions": ACTIONS, "models": MODELS}
RNG = np.random.default_rng(5)
P = RNG.dirichlet(np.ones(3), (2, 3, 2))
R = RNG.normal(size=(3, 2))


def make_model(**changes: Any) -> mmdp.MMDP:
    return mmdp.MMDP(P, **{"rewards": R, **LABELS, **changes})


def shuffle_labels(values: Any, *axes: tuple[str, ...]) -> Any:
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
    expected = make_model(**{field: values})
    named = shuffle_labels(values, *axes)
    for model in (make_model(**{field: named}), make_model().replace(**{field: named})):
        assert model.fingerprint() == expected.fingerprint()
    mapping = dict(named) if len(axes) == 1 else {x: dict(row) for x, row in named.iterrows()}
    assert make_model(**{field: mapping}).fingerprint() == expected.fingerprint()


def test_a_mapping_names_the_first_axis_of_its_values() -> None:
    with pytest.raises(mmdp.InputError, match="unknown label 'high'; choose from well, ill, dead"):
        make_model(rewards={"high": R, "low": 2 * R})  # not in the order of the mapping
    square = np.eye(2)
    with pytest.raises(mmdp.InputError, match="unknown label 'treat'; choose from well, ill"):
        mmdp.MMDP({"treat": square, "wait": square}, np.eye(2), states=STATES[:2], actions=ACTIONS)
    named = {x: dict(zip(ACTIONS, P[0, s], strict=True)) for s, x in enumerate(STATES)}
    back = mmdp.MMDP({x: named[x] for x in STATES[::-1]}, R, states=STATES, actions=ACTIONS)
    np.testing.assert_array_equal(back.transitions[0], P[0])
    with pytest.raises(mmdp.InputError, match="rectangular array of numbers"):
        make_model(rewards={"well": [[1, 2], [3]], "ill": [1], "dead": [2]})


def test_names_of_the_allowed_actions_are_refused() -> None:
    with pytest.raises(mmdp.InputError, match="allowed must be a rectangular array of numbers"):
        make_model(allowed={"well": ["wait"], "ill": ["wait", "treat"], "dead": ["wait"]})


@pytest.mark.parametrize("case", FIELDS)
def test_default_indexes_are_ids_and_other_labels_an_error(case: str) -> None:
    field, values, axes = FIELDS[case]
    unlabeled = pd.Series(values) if len(axes) == 1 else pd.DataFrame(values)
    expected = make_model(**{field: values}).fingerprint()
    assert make_model(**{field: unlabeled}).fingerprint() == expected
    assert (
        make_model(**{field: unlabeled.iloc[::-1]}).fingerprint() == expected
    )  # ids too are labels
    named = shuffle_labels(values, *axes)
    with pytest.raises(mmdp.InputError, match="unknown label '(wel|lo)'"):
        make_model(**{field: named.rename({"well": "wel", "low": "lo"})})
    with pytest.raises(mmdp.InputError, match="twice"):
        make_model(**{field: pd.concat([named, named])})
    if field not in ("initial", "weights", "model_transitions"):
        with pytest.raises(
            mmdp.InputError, match=": no '(well|ill|dead|low|high)'; name every one"
        ):
            make_model(**{field: named.iloc[1:]})
    else:  # what is left out has no probability, as in a dict
        with pytest.raises(mmdp.InputError, match="must sum to 1"):
            make_model(**{field: named.iloc[1:]})


def test_transitions_by_model_and_state_go_by_label() -> None:
    rows = [[shuffle_labels(P[m, s], ACTIONS, STATES) for s in range(3)] for m in range(2)]
    assert mmdp.MMDP(rows, R, **LABELS).fingerprint() == make_model().fingerprint()


def test_many_labels_take_no_time() -> None:
    names = [f"s{i}" for i in range(50_000)]
    keys = dict.fromkeys(names[::-1], 1.0)
    assert align_to_labels(keys, "weights", names).sum() == 50_000


def test_rewards_by_model_and_parameters_go_by_label() -> None:
    labeled_rewards = [shuffle_labels(R, STATES, ACTIONS), shuffle_labels(2 * R, STATES, ACTIONS)]
    np.testing.assert_array_equal(make_model(rewards=labeled_rewards).rewards, [R, 2 * R])
    parameters = pd.DataFrame({"cost": [1.0, 2.0]}, ["high", "low"])
    model = make_model(parameters=parameters)
    assert model.parameters["cost"].tolist() == [2.0, 1.0]
    evppi = mmdp.measures.evppi(model, 3, parameters["cost"])
    assert (
        evppi == mmdp.measures.evppi(model, 3, "cost") == mmdp.measures.evppi(model, 3, parameters)
    )


def test_labels_that_are_numbers_are_labels() -> None:
    model = make_model(states=[2, 1, 0], initial=pd.Series([0.2, 0.3, 0.5], [2, 1, 0]))
    assert model.initial.tolist() == [0.2, 0.3, 0.5]
    assert mmdp.policies.Tied({2: "a", 1: "b", 0: "b"}).get_group_ids(model).tolist() == [0, 1, 1]


POLICY_CLASSES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "tree": (
        lambda: mmdp.policies.Tree(features={"age": shuffle_labels([1, 2, 2], STATES)}),
        lambda: mmdp.policies.Tree(features={"age": np.array([1, 2, 2])}),
    ),
    "tied": (
        lambda: mmdp.policies.Tied(shuffle_labels(list("abb"), STATES)),
        lambda: mmdp.policies.Tied(list("abb")),
    ),
    "fixed": (
        lambda: mmdp.policies.Fixed(shuffle_labels(["wait", "treat", "wait"], STATES)),
        lambda: mmdp.policies.Fixed([0, 1, 0]),
    ),
    "fixed ids": (
        lambda: mmdp.policies.Fixed(shuffle_labels([-1, 1, 0], STATES)),
        lambda: mmdp.policies.Fixed([-1, 1, 0]),
    ),
    "open": (
        lambda: mmdp.policies.Fixed(shuffle_labels(ALLOWED, STATES, ACTIONS)),
        lambda: mmdp.policies.Fixed(ALLOWED),
    ),
    "by time": (
        lambda: mmdp.policies.Fixed(
            pd.DataFrame([[-1, 1, 0], [1, 1, 1]], columns=STATES).iloc[:, ::-1]
        ),
        lambda: mmdp.policies.Fixed([[-1, 1, 0], [1, 1, 1]]),
    ),
}


@pytest.mark.parametrize("case", POLICY_CLASSES)
def test_policy_classes_go_by_label(case: str) -> None:
    named, unlabeled = (read_settings(make(), make_model()) for make in POLICY_CLASSES[case])
    assert named == unlabeled


def read_settings(policy_class: mmdp.policies.PolicyClass, model: mmdp.MMDP) -> Any:
    if isinstance(policy_class, mmdp.policies.Tree):
        return get_columns(policy_class.make_features(model, 2))
    if isinstance(policy_class, mmdp.policies.Tied):
        return policy_class.get_group_ids(model).tolist()
    assert isinstance(policy_class, mmdp.policies.Fixed)
    return policy_class.make_mask(model, 2).tolist()


def test_policies_go_by_label() -> None:
    table = pd.DataFrame([[0, 1, 1], [1, 0, 0]], columns=STATES)
    policy = mmdp.policies.MarkovPolicy.for_model(make_model(), table.iloc[::-1, ::-1])
    assert policy.actions.tolist() == table.to_numpy().tolist()
    row = mmdp.policies.StationaryPolicy(shuffle_labels([0, 1, 1], STATES), state_labels=STATES)
    assert row.to_markov(1).actions.tolist() == [[0, 1, 1]]
    with pytest.raises(mmdp.InputError, match="unknown label 'dead'"):
        mmdp.policies.MarkovPolicy(table.iloc[:, ::-1])


def test_a_log_goes_by_label() -> None:
    log = {"state": ["up", "down"], "action": ["go", "go"], "next_state": ["down", "up"]}
    names = ("up", "down")
    rewards, initial = np.array([5.0, -1.0]), np.array([0.9, 0.1])
    prior = np.array([[1.0, 2.0], [3.0, 4.0]])
    expected = posterior.fit(log, n_models=3, rewards=rewards, initial=initial, prior=prior).train
    fitted = posterior.fit(
        log,
        n_models=3,
        rewards=shuffle_labels(rewards, names),
        initial=shuffle_labels(initial, names),
        prior=shuffle_labels(prior, names, names),
    ).train
    assert fitted.fingerprint() == expected.fingerprint()


def test_weights_of_samples_go_by_their_index() -> None:
    samples = pd.DataFrame({"p": [0.1, 0.2], "w": [0.25, 0.75]}, index=[7, 3])
    model = posterior.from_samples(
        samples,
        lambda x: ([[[x["p"], 1 - x["p"]]], [[0.0, 1.0]]], [[1.0], [0.0]]),
        vectorized=False,
        weights=samples["w"].iloc[::-1],
    )
    assert model.weights.tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_model(states=set(STATES)),
        lambda: mmdp.policies.Monotone(states=set(STATES)),
        lambda: posterior.fit(
            {"state": ["ill"], "action": ["wait"], "next_state": ["ill"]}, states=set(STATES)
        ),
        lambda: mmdp.io.from_frame(mmdp.io.to_frame(make_model()), states=frozenset(STATES)),
    ],
)
def test_a_set_has_no_order(make: Callable[[], Any]) -> None:
    with pytest.raises(mmdp.InputError, match="a set, which has no order"):
        make()


MASKED = np.ma.masked_equal([[1.0, 9999.0], [2.0, 3.0], [0.0, 0.0]], 9999.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_model(rewards=MASKED),
        lambda: make_model(rewards=[MASKED, MASKED]),
        lambda: make_model(initial=np.ma.masked_less([0.5, 0.5, 0.0], 0.4)),
        lambda: make_model(allowed=np.ma.masked_array(ALLOWED, ~ALLOWED)),
        lambda: make_model(parameters={"x": np.ma.masked_less([1.0, 2.0], 2.0)}),
        lambda: mmdp.MMDP(np.ma.masked_less(P, 0.1), R),
        lambda: mmdp.policies.MarkovPolicy(np.ma.masked_equal([[0, 9, 1]], 9)),
        lambda: mmdp.policies.StationaryPolicy(np.ma.masked_equal([0, 9, 1], 9)),
        lambda: mmdp.policies.Fixed(np.ma.masked_equal([0, 9, 1], 9)).make_mask(make_model(), 2),
        lambda: mmdp.policies.Tied(np.ma.masked_equal([0, 9, 1], 9)).get_group_ids(make_model()),
        lambda: mmdp.policies.Tree(features={"x": np.ma.masked_equal([0, 9, 1], 9)}).check(
            make_model(), 2
        ),
        lambda: posterior.from_samples({"p": np.ma.masked_equal([0.1, 9.0], 9.0)}, lambda x: None),
    ],
)
def test_masked_entries_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(mmdp.InputError, match=r"masked.*\.filled\(VALUE\)"):
        make()
    unmasked = np.ma.masked_array(R)
    assert make_model(rewards=unmasked).fingerprint() == make_model().fingerprint()
