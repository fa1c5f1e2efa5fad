"""Building, changing and describing models."""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import mmdp
from mmdp.core.testing import make_random_model
from mmdp.core.transitions import MemoryLimitError
from mmdp.core.validate import LabelIndex, is_labeled, match_ids

P = np.array([[[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.2, 0.8]]]] * 3)
R = np.arange(12.0).reshape(3, 2, 2)


def test_arrays_come_back_as_they_went_in():
    for storage in ("auto", "dense", "sparse"):
        model = mmdp.MMDP(P, R, storage=storage)
        assert (model.transitions == P).all()
        assert (model.rewards == R).all()
    assert mmdp.MMDP(P, R, storage="sparse").storage == "sparse"


def test_density_decides_the_storage():
    eye = np.tile(np.eye(10)[:, None, :], (4, 1, 2, 1))
    assert mmdp.MMDP(eye, np.zeros((10, 2))).storage == "sparse"
    full = np.full((4, 10, 2, 10), 0.1)
    assert mmdp.MMDP(full, np.zeros((10, 2))).storage == "dense"


def test_scipy_sparse_equals_dense():
    nest = [[scipy.sparse.csr_array(P[m, :, a, :]) for a in range(2)] for m in range(3)]
    from_sparse = mmdp.MMDP(nest, R)
    assert (from_sparse.transitions == P).all()
    for m in range(3):
        for a in range(2):
            assert (from_sparse.transition_matrix(m, a).toarray() == P[m, :, a]).all()
    one = mmdp.MMDP(nest[0], R[:1])
    assert one.n_models == 1


def test_coordinates_equal_dense_and_duplicates_add_up():
    m, s, a, n = np.nonzero(P)
    model = mmdp.MMDP.from_coordinates(
        model=m,
        state=s,
        action=a,
        next_state=n,
        probability=P[m, s, a, n],
        shape=(3, 2, 2),
        rewards=R,
    )
    assert (model.transitions == P).all()
    twice = mmdp.MMDP.from_coordinates(
        model=[0, 0, 0],
        state=[0, 0, 1],
        action=[0, 0, 0],
        next_state=[1, 1, 1],
        probability=[0.25, 0.75, 1.0],
        reward=[4.0, 8.0, 0.0],
        shape=(1, 2, 1),
    )
    assert twice.rewards[0, 0, 0] == pytest.approx(0.25 * 4 + 0.75 * 8)


def test_rewards_of_every_shape_agree():
    per_next = np.broadcast_to(R[:, :, :, None], (*R.shape, 2))
    models = [
        mmdp.MMDP(P, R),
        mmdp.MMDP(P, next_rewards=per_next),
        mmdp.MMDP(np.tile(P, (5, 1, 1, 1, 1)), np.tile(R, (5, 1, 1, 1))),
        mmdp.MMDP(P, np.tile(R, (5, 1, 1, 1))),
        mmdp.MMDP(np.tile(P, (5, 1, 1, 1, 1)), R),
        mmdp.MMDP(P, next_rewards=np.tile(per_next, (5, 1, 1, 1, 1))),
    ]
    values = [mmdp.solve(m, 5).value for m in models]
    np.testing.assert_allclose(values, values[0], rtol=1e-12)
    assert [m.horizon for m in models] == [None, None, 5, 5, 5, 5]
    assert not models[1].has_next_rewards  # the same for every next state: not worth keeping
    shared = mmdp.MMDP(P, R[0])
    assert (shared.rewards == R[0]).all()


def test_expected_reward_uses_each_models_probabilities():
    rng = np.random.default_rng(0)
    next_rewards = rng.normal(size=(3, 2, 2, 2))
    model = mmdp.MMDP(P, next_rewards=next_rewards)
    np.testing.assert_allclose(model.rewards, (P * next_rewards).sum(axis=3))
    assert model.has_next_rewards
    used = P > 0
    np.testing.assert_allclose(model.next_rewards[used], next_rewards[used])


def test_ambiguous_rewards_are_refused():
    square = np.full((2, 2, 2, 2), 0.5)
    with pytest.raises(mmdp.InputError, match="could be per time or per next state"):
        mmdp.MMDP(square, np.zeros((2, 2, 2, 2)))


def test_models_are_frozen_and_do_not_alias_the_callers_arrays():
    transitions = P.copy()
    model = mmdp.MMDP(transitions, R)
    transitions[0, 0, 0] = [0.9, 0.1]
    assert model.transitions[0, 0, 0, 0] == 0.5
    with pytest.raises(AttributeError, match="frozen"):
        model.discount = 0.5
    for array in (model.transitions, model.rewards, model.weights, model.initial):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_one_model_is_not_frozen_in_the_callers_hands():
    array, start = P[:1].copy(), np.array([1.0, 0.0])
    model = mmdp.MMDP(array, R[:1], initial=start)
    array[0, 0, 0, 0] = 0.25
    start[0] = 0.5
    np.testing.assert_array_equal(model.transitions, P[:1])
    assert model.initial.tolist() == [1.0, 0.0]


def test_replace_and_subset():
    model = mmdp.MMDP(P, R, discount=0.9, models=["x", "y", "z"], parameters={"k": [1, 2, 3]})
    assert model.replace(discount=0.5).discount == 0.5
    assert model.replace(rewards=2 * R).rewards[2, 1, 1] == 22
    part = model.replace(weights=[0.5, 0.3, 0.2]).subset(["z", "x"])
    assert part.model_labels == ("z", "x")
    np.testing.assert_allclose(part.weights, [2 / 7, 5 / 7])
    assert (part.rewards == R[[2, 0]]).all()
    assert part.parameters["k"].tolist() == [3, 1]
    assert model.subset(slice(1, 3)).n_models == 2
    assert model.subset(np.array([True, False, True])).model_labels == ("x", "z")
    with pytest.raises(mmdp.InputError, match="there is no argument"):
        model.replace(gamma=1)
    with pytest.raises(mmdp.InputError, match="unknown model 'q'"):
        model.subset(["q"])


def test_allowed_actions_are_inferred_or_given():
    partly = P.copy()
    partly[:, 0, 1] = 0.0
    assert mmdp.MMDP(partly, R).allowed.tolist() == [[True, False], [True, True]]
    masked = mmdp.MMDP(P, R, allowed=[[True, False], [True, True]])
    assert mmdp.solve(masked, 3).policy.actions[:, 0].tolist() == [0, 0, 0]
    assert masked.transitions[0, 0, 1].sum() == 0


def test_repr_says_what_matters():
    text = repr(mmdp.MMDP(P, R, discount=0.9, name="RS"))
    assert text.startswith("MMDP(RS: 3 models, 2 states, 2 actions, discount 0.9")
    assert "initial uniform (not given)" in text
    varying = make_random_model(0, horizon=3)
    assert "varies over 3 time steps" in repr(varying)


def test_a_dense_view_of_a_large_sparse_model_is_refused():
    n = 20_000
    model = mmdp.MMDP.from_coordinates(
        model=np.zeros(n),
        state=np.arange(n),
        action=np.zeros(n),
        next_state=np.roll(np.arange(n), 1),
        probability=np.ones(n),
        reward=np.ones(n),
        shape=(1, n, 1),
    )
    assert model.storage == "sparse"
    assert model.nbytes < 2_000_000
    with pytest.raises(MemoryLimitError, match="3.2 GB; use model.transition_matrix"):
        _ = model.transitions
    with pytest.raises(MemoryLimitError, match='use storage="sparse"'):
        mmdp.MMDP.from_coordinates(
            model=[0],
            state=[0],
            action=[0],
            next_state=[0],
            probability=[1.0],
            shape=(1, n, 1),
            storage="dense",
            rewards=np.zeros((n, 1)),
        )


@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("horizon", [None, 3])
def test_models_in_the_order_of_other_labels(storage: Any, horizon: int | None) -> None:
    """Every array, by plain indexing; and back again."""
    rng = np.random.default_rng(0)
    times = () if horizon is None else (horizon,)
    p = rng.dirichlet(np.ones(4), (*times, 2, 4, 3)) * (rng.random((4, 3, 4)) < 0.7)
    p[..., 0] += 1 - p.sum(axis=-1)
    model = mmdp.MMDP(
        p,
        next_rewards=rng.normal(size=(2, 4, 3, 4)),
        initial=rng.dirichlet(np.ones(4)),
        terminal=rng.normal(size=(2, 4)),
        allowed=[[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0]],
        states="abcd",
        actions="xyz",
        discount=0.9,
        storage=storage,
    )
    s, a = [2, 0, 3, 1], [1, 2, 0]
    other = model.replace(states=[model.state_labels[i] for i in s], actions="yzx")
    reordered = model.reorder_like(other)
    state_order = np.ix_(s, a)
    np.testing.assert_array_equal(reordered.transitions, model.transitions[(..., *np.ix_(s, a, s))])
    np.testing.assert_array_equal(
        reordered.next_rewards, model.next_rewards[(..., *np.ix_(s, a, s))]
    )
    np.testing.assert_array_equal(reordered.rewards, model.rewards[(..., *state_order)])
    np.testing.assert_array_equal(reordered.allowed, model.allowed[state_order])
    np.testing.assert_array_equal(reordered.initial, model.initial[s])
    np.testing.assert_array_equal(reordered.terminal, model.terminal[:, s])
    assert (reordered.state_labels, reordered.action_labels) == (
        other.state_labels,
        other.action_labels,
    )
    assert (reordered.storage, reordered.horizon) == (model.storage, model.horizon)
    assert reordered.reorder_like(model).fingerprint() == model.fingerprint()
    assert model.reorder_like(model.replace(states="wxyz")) is model
    assert model.reorder_like(model.replace(states=None, actions=None)) is model


@pytest.mark.parametrize("seed", range(30))
def test_states_in_which_an_action_changes_something(seed: int) -> None:
    """Row by row in plain Python: allowed actions that differ in some model at some time."""
    rng = np.random.default_rng(seed)
    M, S, A, T = 2, 5, 3, 2
    varies = (T,) if seed % 3 == 0 else ()
    P = rng.dirichlet(np.ones(S), size=(*varies, M, S, A))
    r = rng.normal(size=(*varies, M, S, A))
    for s in rng.permutation(S)[:3]:  # one row for all actions; absorbing or not
        P[..., s, :, :] = np.eye(S)[s] if rng.random() < 0.5 else P[..., s, :1, :]
        if rng.random() < 0.6:
            r[..., s, :] = r[..., s, :1]
        else:  # in the last model alone, at the last time
            r[..., 1:] = r[..., :1]
            r.reshape(-1, S, A)[-1, s, 1] += 1
    allowed = rng.random((S, A)) < 0.7
    allowed[:, 0] |= ~allowed.any(axis=1)
    sparse = {"allowed": allowed, "storage": ["dense", "sparse"][seed % 2]}
    model = mmdp.MMDP(P, r, **sparse)
    at = np.zeros((T, S), dtype=bool)
    for t, s in np.ndindex(T, S):
        allowed_actions = np.flatnonzero(allowed[s])
        rows, rewards = ((x[t] if varies else x)[:, s][:, allowed_actions] for x in (P, r))
        at[t, s] = (rows != rows[:, :1]).any() or (rewards != rewards[:, :1]).any()
    decides = at.any(axis=0)
    assert model.has_choice.tolist() == (decides if decides.any() else ~decides).tolist()
    visits = rng.random((T, S, 2))
    expected = visits * at[:, :, None]
    assert (model.mask_visits(visits) == (expected if at.any() else visits)).all()


def test_rounding_is_no_decision_and_a_small_difference_in_one_of_many_models_is() -> None:
    P = np.tile([[[0.3, 0.7], [0.3, 0.7]], [[0.1, 0.9], [0.1, 0.9]]], (1000, 1, 1, 1))
    P[:, 0, 1] = [0.1 + 0.2, 1 - (0.1 + 0.2)]  # 0.30000000000000004
    P[700, 1, 1] += [1e-6, -1e-6]
    r = np.full((2, 2), 53_000.0)
    assert mmdp.MMDP(P, r).has_choice.tolist() == [False, True]


def test_if_nothing_can_be_decided_every_state_counts() -> None:
    assert mmdp.MMDP([[[[1.0], [1.0]]]], [[1.0, 1.0]]).has_choice.tolist() == [True]


# ---------------------------------------------------------------------- building in blocks
def make_transitions(seed: int, varies: bool) -> tuple[Any, Any]:
    """(T, M, S, A, S') transitions with zeros of their own in every model, and rewards."""
    rng = np.random.default_rng(seed)
    T, M, S, A = (3 if varies else 1), 4, 5, 3
    p = rng.dirichlet(np.ones(S), (T, M, S, A)) * (rng.random((M, S, A, S)) < 0.4)
    p[:, 0, :, 0, 0] += 1e-3
    p[..., 1, 2, :] = 0.0  # an action that no model has
    p /= np.where(p.sum(axis=-1, keepdims=True) > 0, p.sum(axis=-1, keepdims=True), 1.0)
    return p, rng.normal(size=p.shape)


@pytest.mark.parametrize("block", [1, 7, 50, 1 << 18])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("storage", ["auto", "dense", "sparse"])
def test_every_way_to_build_gives_the_same_arrays(
    monkeypatch: Any, block: int, varies: bool, storage: Any
) -> None:
    """However small the blocks: dense arrays, matrices, and coordinates in any order and split."""
    monkeypatch.setattr("mmdp.core.transitions.BLOCK_SIZE", block)
    p, r = make_transitions(block, varies)
    T, M, S, A, _ = p.shape
    as_given = (p, r) if varies else (p[0], r[0])
    options = {"storage": storage, "allow_missing": True}
    t, m, s, a, n = np.nonzero(p)
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(len(t)), 2))
    share = np.where(np.arange(len(order)) % 2, 0.25, 0.75)  # every entry twice
    half = np.zeros(len(t))
    np.add.at(half, order, share)
    twice = {
        "model": m[order],
        "state": s[order],
        "action": a[order],
        "next_state": n[order],
        "probability": (p[t, m, s, a, n] / half)[order] * share,
    }
    if varies:
        twice["time"] = t[order]
    formats = ["csr", "csc", "coo", "lil"]
    nest: Any = [
        [
            [scipy.sparse.coo_array(y[:, i]).asformat(formats[j % 4]) for i in range(A)]
            for j, y in enumerate(x)
        ]
        for x in p
    ]
    built_models = [
        mmdp.MMDP(as_given[0], next_rewards=as_given[1], **options),
        mmdp.MMDP(nest if varies else nest[0], next_rewards=as_given[1], **options),
        mmdp.MMDP.from_coordinates(
            **twice, reward=r[t, m, s, a, n][order], shape=(M, S, A), **options
        ),
    ]
    expected = (p * r).sum(axis=-1)
    for model in built_models:
        np.testing.assert_allclose(model.transitions, as_given[0], rtol=1e-14)
        np.testing.assert_allclose(model.rewards, expected if varies else expected[0], atol=1e-14)
        is_possible = as_given[0] > 0
        assert model.next_rewards is not None
        np.testing.assert_allclose(
            model.next_rewards[is_possible], as_given[1][is_possible], rtol=1e-12
        )
        assert model.allowed.tolist() == p.any(axis=(0, 1, 4)).tolist()
        assert model.horizon == (T if varies else None)
    assert len({model.storage for model in built_models}) == 1


@pytest.mark.parametrize("states", [6, 3000])
def test_coordinates_of_few_and_of_many_entries(monkeypatch: Any, states: int) -> None:
    """Places are found by a table or by searching, the union by a table or by sorting."""
    monkeypatch.setattr("mmdp.core.transitions.BLOCK_SIZE", 64)
    rng = np.random.default_rng(states)
    state = np.tile(np.arange(states), 2)
    model = np.repeat([0, 1], states)
    next_state = rng.integers(states, size=2 * states)
    built_model = mmdp.MMDP.from_coordinates(
        model=model,
        state=state,
        action=0 * state,
        next_state=next_state,
        probability=np.ones(len(next_state)),
        reward=next_state.astype(float),
        shape=(2, states, 1),
        allow_missing=True,
    )
    for m in (0, 1):
        matrix = built_model.transition_matrix(m, 0).tocoo()
        in_model = model == m
        assert matrix.row.tolist() == state[in_model].tolist()
        assert matrix.col.tolist() == next_state[in_model].tolist()
        assert built_model.rewards[m, :, 0].tolist() == next_state[in_model].tolist()


def test_building_takes_little_more_memory_than_the_model(monkeypatch: Any) -> None:
    """The highest mark beyond the input, against the model, for every way to build."""
    import tracemalloc

    monkeypatch.setattr("mmdp.core.transitions.BLOCK_SIZE", 1 << 12)
    M, S, A, K = 20, 60, 3, 6
    m, s, a, k = (x.reshape(-1) for x in np.indices((M, S, A, K)))
    next_state = (s + 7 * k + a) % S
    p = np.full(len(m), 1 / K)
    full = np.random.default_rng(0).random((M, S, A, S))
    full /= full.sum(axis=-1, keepdims=True)
    nest = [
        [scipy.sparse.csr_array((p[x], (s[x], next_state[x])), shape=(S, S)) for x in by_action]
        for by_action in [[(m == i) & (a == j) for j in range(A)] for i in range(M)]
    ]
    r, zeros = np.zeros((S, A)), np.zeros_like(full)
    zeros[..., 3:20] = full[..., 3:20] / full[..., 3:20].sum(axis=-1, keepdims=True)
    builders = {
        "dense": lambda: mmdp.MMDP(full, r),
        "dense with zeros": lambda: mmdp.MMDP(zeros, r),
        "matrices": lambda: mmdp.MMDP(nest, r),
        "coordinates": lambda: mmdp.MMDP.from_coordinates(
            model=m,
            state=s,
            action=a,
            next_state=next_state,
            probability=p,
            rewards=r,
            shape=(M, S, A),
        ),
    }
    for name, build in builders.items():
        build()
        tracemalloc.start()
        model = build()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.5 * model.nbytes, (name, peak / model.nbytes)


# ---------------------------------------------------------------------- copies
def make_copies(model: mmdp.MMDP) -> dict[str, mmdp.MMDP]:
    other = model.replace(states=model.state_labels[::-1])
    return {
        "discount": model.replace(discount=0.5),
        "weights": model.replace(weights=None),
        "initial": model.replace(initial=None),
        "labels": other,
        "subset": model.subset([2, 0]),
        "part": model.take_shard(1, 2),
        "order": model.reorder_like(other),
        "mean": model.mean_model(),
    }


@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("varies", [False, True])
def test_copies_are_what_a_check_would_have_made_of_them(varies: bool, storage: Any) -> None:
    from mmdp.data.io.npz import model_from_arrays, model_to_arrays

    p, r = make_transitions(3, varies)
    model = mmdp.MMDP(
        p if varies else p[0],
        next_rewards=r if varies else r[0],
        storage=storage,
        allow_missing=True,
        states="abcde",
        models="wxyz",
        weights=[0.4, 0.3, 0.2, 0.1],
        initial=[0.2] * 5,
        discount=0.9,
        terminal=np.arange(20.0).reshape(4, 5),
        parameters={"k": range(4)},
    )
    for name, copied in make_copies(model).items():
        if name == "mean":  # rows of models that lack an action sum to less
            mean_p, mean_r = (np.tensordot(model.weights, x, (0, 1)) for x in (p, r))
            np.testing.assert_allclose(copied.transitions.reshape(mean_p.shape), mean_p)
            expected = (mean_p * mean_r).sum(axis=-1)
            np.testing.assert_allclose(copied.rewards.reshape(expected.shape), expected, atol=1e-15)
            continue
        arrays = {key: np.asarray(array) for key, array in model_to_arrays(copied).items()}
        checked = model_from_arrays(arrays, copied.problem.shard)
        checked_arrays = model_to_arrays(checked)
        assert set(arrays) == set(checked_arrays)
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, checked_arrays[key], err_msg=f"{name}: {key}")
        for array in (*copied.problem, *copied.problem.storage, *copied.to_kwargs().values()):
            if isinstance(array, np.ndarray):
                assert not array.flags.writeable, name
        assert copied.problem.terminal.flags.c_contiguous


def test_only_what_can_be_wrong_is_checked_again(monkeypatch: Any) -> None:
    model = mmdp.MMDP(P, R, allowed=[[True, False], [True, True]])

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr("mmdp.core.model.check_transitions", refused)
    assert len(make_copies(model)) == 8
    for change in ({"allowed": None}, {"rewards": R[0]}, {"allow_missing": True}):
        with pytest.raises(AssertionError, match="checked again"):
            model.replace(**change)
    monkeypatch.undo()
    with pytest.raises(mmdp.InputError, match="sum to 0, not 1|no transitions"):
        model.replace(allowed=np.ones((2, 2)))
    for change, message in (
        ({"weights": [1.0, 1.0, 0.0]}, "weights must sum to 1"),
        ({"discount": 2}, "discount must be from 0 to 1"),
        ({"models": ["a", "a", "b"]}, "used twice"),
        ({"terminal": [1.0]}, "terminal has shape"),
    ):
        with pytest.raises(mmdp.InputError, match=message):
            model.replace(**change)
    with pytest.raises(mmdp.InputError, match="used twice"):
        model.replace(models="abc").subset([0, 0])


# ---------------------------------------------------------------------- labels
def test_labels_are_found_by_name_and_by_number() -> None:
    from mmdp.core.validate import LabelIndex

    numbered, named = LabelIndex("state", 3), LabelIndex("state", 3, ("low", "high", "1"))
    assert numbered.find_ids(["0", 1, 2.0, "2.0", 3, -1, 0.5, "x", True]).tolist() == [
        0,
        1,
        2,
        2,
        -1,
        -1,
        -1,
        -1,
        -1,
    ]
    assert named.find_ids(["high", 1]).tolist() == [1, 2]  # all are labels
    assert named.find_ids(["high", 0, np.int64(1), "0"]).tolist() == [1, 0, 1, -1]
    old = LabelIndex("state", 2, ("3", "5"))  # numbers are labels, never ids
    assert old.find_ids([5, "3", 0, 1]).tolist() == [1, 0, -1, -1]


def test_a_label_that_is_given_twice_is_found_among_many() -> None:
    labels = [f"s{i}" for i in range(200_000)]
    labels[-1] = labels[-2]
    with pytest.raises(mmdp.InputError, match="state label 's199998' is used twice"):
        LabelIndex.parse("state", len(labels), labels)
    with pytest.raises(mmdp.InputError, match="initial: '199998' is given twice"):
        match_ids([*range(199_999), 199_998], range(200_000), "initial")


def test_labels_that_do_not_fit_say_what_to_do() -> None:
    with pytest.raises(mmdp.InputError, match="3 state labels for 1 state; give one to each"):
        mmdp.MMDP([[[[1.0]]]], [[1.0]], states="abc")


def test_copies_keep_the_labels_of_times_and_the_unit() -> None:
    rng = np.random.default_rng(0)
    r = rng.random((4, 3, 2, 2))
    model = mmdp.MMDP(
        rng.dirichlet(np.ones(2), (3, 2, 2)),
        r,
        time_labels={"age": range(40, 44)},
        unit="$",
        states=["up", "down"],
    )
    copies = {
        "replace": model.replace(discount=0.5),
        "rewards": model.replace(rewards=r + 1),
        "subset": model.subset([0, 2]),
        "mean": model.mean_model(),
        "part": model.take_shard(0, 2),
        "order": model.reorder_like(model.replace(states=["down", "up"])),
        "pickle": pickle.loads(pickle.dumps(model)),
        "update": model.update("up", 0, "down", time=0),
    }
    for copy_name, copy in copies.items():
        assert (copy.time_labels, copy.unit) == (model.time_labels, "$"), copy_name
    assert model.truncate_before(2).time_labels.get_labels(2) == ["42", "43"]
    assert model.update("up", 0, "down", time=1, initial="last").time_labels.get_label(0) == "42"
    timeless = mmdp.MMDP(
        model.transitions[0], r[0], states=["up", "down"], time_labels={"age": range(40, 44)}
    )
    next_year = timeless.update("up", 0, "down", initial="last")
    assert next_year.time_labels.get_labels(4) == ["41", "42", "43", "44"]
    for labels, rest in (([40, 45, 60], ["60", "1", "2"]), ("xyz", ["z", "1", "2"])):
        assert (
            timeless.replace(time_labels=list(labels)).truncate_before(2).time_labels.get_labels(3)
            == rest
        )
    assert model.replace(time_labels=None).time_labels == ("time", ())
    assert model.fingerprint() == model.replace(time_labels=None, unit=None).fingerprint()


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        (5, "time_labels are in order"),
        ("ages", "time_labels are in order"),
        ([], "time_labels is empty; give at least one"),
        ({"age": [1], "year": [2]}, "time_labels have one name"),
        ({}, "time_labels have one name"),
        ({"state": [1]}, "time_labels cannot be called 'state'"),
        ({"probability": [1]}, "time_labels cannot be called 'probability'"),
        ({"moves": [1]}, "time_labels cannot be called 'moves'"),
        ({1, 2}, "time_labels are in order"),
    ],
)
def test_times_that_are_none_are_refused(times: Any, problem: str) -> None:
    with pytest.raises(mmdp.InputError, match=problem):
        mmdp.MMDP([[[[1.0]]]], [[1.0]], time_labels=times)


def test_pandas_that_another_thread_is_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a worker with threads pandas may be half loaded: nothing is a Series then."""
    monkeypatch.setitem(sys.modules, "pandas", types.ModuleType("pandas"))
    assert not is_labeled([0.5, 0.5])
    assert is_labeled({"a": 0.5})
    assert mmdp.MMDP([[[[1.0]]]], [[[2.0]]], weights=[1.0]).n_models == 1


def test_labels_are_made_once() -> None:
    """Texts list the labels of thousands of states one by one."""
    model = make_random_model(1)
    for name in ("state_labels", "action_labels", "model_labels"):
        assert getattr(model, name) is getattr(model, name)
    renamed = model.replace(states=[f"s{i}" for i in range(model.n_states)])
    assert renamed.state_labels[0] == "s0"
