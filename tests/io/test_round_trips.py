"""Every field of a model, in every storage, through every way out and back: kept, or refused.

What a format does not hold is listed here, and its documentation says so; nothing else may change.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp import ecosystem
from tests.cli.calls import run
from tests.io.cases import FIELDS, STORAGES, A, M, S, T, build, seen


def assert_same(a: mmdp.MMDP, b: mmdp.MMDP, lost: set[str]) -> None:
    mine, theirs = seen(a), seen(b)
    for name in mine.keys() - lost:
        x, y = mine[name], theirs[name]
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-15, err_msg=name)
        elif name == "parameters":
            assert {k: v.tolist() for k, v in y.items()} == {k: v.tolist() for k, v in x.items()}
        else:
            assert y == x, name


def bound(x: mmdp.MMDP, steps: int = T) -> float:
    """What is earned on average if each model has its best actions, one step at a time."""
    P, r = x.transitions, x.rewards
    P, r = (np.broadcast_to(y, (steps, *y.shape[x.horizon is not None :])) for y in (P, r))
    v = x.terminal
    for t in reversed(range(steps)):
        v = np.einsum("mk,ks->ms", x.model_transitions, v)
        q = r[t] + x.discount * np.einsum("msaz,mz->msa", P[t], v)
        v = np.where(x.allowed, q, -np.inf).max(axis=2)
    return float(x.weights @ (np.broadcast_to(x.initial, v.shape) * v).sum(axis=1))


# ---------------------------------------------------------------------- ways out and back
def through_file(name: str) -> Callable[[mmdp.MMDP, Path], mmdp.MMDP]:
    def carry(model: mmdp.MMDP, folder: Path) -> mmdp.MMDP:
        mmdp.save(model, folder / name)
        return mmdp.load(folder / name)

    return carry


def through_parts(suffix: str) -> Callable[[mmdp.MMDP, Path], mmdp.MMDP]:
    def carry(model: mmdp.MMDP, folder: Path) -> mmdp.MMDP:
        mmdp.io.save_parts(model, folder / "parts", 2, suffix=suffix)
        return mmdp.load(folder / "parts")

    return carry


def through_convert(model: mmdp.MMDP, folder: Path) -> mmdp.MMDP:
    """npz, a folder, Parquet and back, on the command line."""
    mmdp.save(model, folder / "m.npz")
    for data, out in (("m.npz", "m"), ("m", "m.parquet"), ("m.parquet", "n.npz")):
        done = run("convert", folder / data, "--out", folder / out)
        if done.code:
            raise mmdp.InputError(done.err)
    return mmdp.load(folder / "n.npz")


def through_frame(model: mmdp.MMDP, _: Path) -> mmdp.MMDP:
    """A table holds transitions and rewards; the fields go beside it."""
    fields = {k: v for k, v in model.fields().items() if k not in ("allowed", "allow_missing")}
    names = {"actions": model.action_labels} if fields["actions"] is None else {}
    missing = "zero" if model.has_missing else "error"
    back = mmdp.io.from_frame(mmdp.io.to_frame(model), **fields | names, missing_actions=missing)
    return back.replace(actions=fields["actions"])


def through_pomdp(suffix: str) -> Callable[[mmdp.MMDP, Path], mmdp.MMDP]:
    def carry(model: mmdp.MMDP, folder: Path) -> mmdp.MMDP:
        ecosystem.save_pomdp(model, folder / f"m{suffix}")
        return mmdp.load(folder / f"m{suffix}")

    return carry


def through_quantecon(model: mmdp.MMDP, _: Path) -> mmdp.MMDP:
    pytest.importorskip("quantecon", reason="quantecon is not here")
    return ecosystem.from_quantecon(
        [ecosystem.to_quantecon(model, m) for m in range(M)],
        **{k: v for k, v in model.fields().items()
           if k not in ("discount", "allow_missing", "allowed", "actions")}
    )  # fmt: skip


def through_order(model: mmdp.MMDP, _: Path) -> mmdp.MMDP:
    """States and actions in another order, and back."""
    named = model.replace(states=list("pqrs"), actions=list("uvw"))
    other = mmdp.MMDP(
        np.full((1, S, A, S), 1 / S), np.zeros((S, A)), states=list("rpsq"), actions=list("wuv")
    )
    moved = named.ordered_like(other)
    assert moved.state_labels == tuple("rpsq")
    order = [2, 0, 3, 1]
    np.testing.assert_array_equal(moved.allowed, model.allowed[order][:, [2, 0, 1]])
    np.testing.assert_array_equal(
        moved.transitions, model.transitions[..., order, :, :][..., [2, 0, 1], :][..., order]
    )
    back = moved.ordered_like(named)
    return back.replace(states=model.names("state").labels, actions=model.names("action").labels)


def through_replace(model: mmdp.MMDP, _: Path) -> mmdp.MMDP:
    """Every field replaced by another of its kind, and back."""
    fields = model.fields()
    all_open = model.replace(discount=0.123, weights=[0.1, 0.1, 0.8], terminal=np.ones(S), name="x")
    return all_open.replace(**fields)


def through_subset(model: mmdp.MMDP, _: Path) -> mmdp.MMDP:
    one = model.subset([2, 1, 0]) if model.weights.all() or not model.drifts else model
    return one.subset([2, 1, 0])


def through_storages(model: mmdp.MMDP, folder: Path) -> mmdp.MMDP:
    mmdp.save(model, folder / "m.npz")
    mmdp.save(mmdp.load(folder / "m.npz", storage="dense"), folder / "d.npz")
    return mmdp.load(folder / "d.npz", storage="sparse")


WAYS: dict[str, Callable[[mmdp.MMDP, Path], mmdp.MMDP]] = {
    "npz": through_file("m.npz"),
    "parquet": through_file("m.parquet"),
    "folder": through_file("m"),
    "csv": through_file("m.csv"),
    "parts, npz": through_parts(".npz"),
    "parts, parquet": through_parts(".parquet"),
    "frame": through_frame,
    "convert": through_convert,
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
    "pomdpx": through_pomdp(".pomdpx"),
    "pomdp": through_pomdp(".pomdp"),
    "quantecon": through_quantecon,
    "ordered_like": through_order,
    "replace": through_replace,
    "subset": through_subset,
    "storages": through_storages,
}
DRIFT = "no place for models that change|models that change cannot be divided|that changes"
REFUSED: dict[str, dict[str, str]] = {  # field or storage: what is said
    "folder": {"model transitions": DRIFT},
    "csv": {"model transitions": DRIFT},
    "convert": {"model transitions": DRIFT},
    "parts, npz": {"model transitions": DRIFT, "events": "are not divided", "corners": "are not d"},
    "pomdpx": {"time": "varies with time", "terminal": "no terminal", "missing": "are missing"},
    "quantecon": {"time": "varies with time", "model transitions": DRIFT, "missing": "are missing"},
}
REFUSED["parts, parquet"] = REFUSED["parts, npz"]
REFUSED["pomdp"] = REFUSED["pomdpx"]
POMDP = {
    "name", "citation", "unit", "quantity", "times", "parameters", "initial_given", "states",
    "actions", "models", "allowed", "next_rewards",
}  # fmt: skip
LOST: dict[str, set[str]] = {  # documented in save_pomdp
    "pomdpx": POMDP | {"transitions", "rewards"},  # of actions that are not allowed
    "quantecon": {"next_rewards", "actions"},
}


def refusal(way: str, storage: str, field: str) -> str | None:
    """What is said if this model cannot go this way."""
    model = build(storage, field)
    assert model is not None
    for key, told in REFUSED.get(way, {}).items():
        hit = {
            "time": "time" in storage, "events": storage.startswith("events"),
            "corners": storage == "corners", "terminal": bool(model.terminal.any()),
            "missing": model.has_missing, "model transitions": model.drifts,
        }[key]  # fmt: skip
        if hit:
            return told
    return None


CASES = [
    (way, storage, field)
    for way in WAYS
    for storage in (STORAGES if way != "convert" else ("sparse", "events", "dense over time"))
    for field in FIELDS
    if build(storage, field) is not None
]


def carried(way: str, storage: str, field: str, folder: Path) -> None:
    """One model one way, checked."""
    model, told = build(storage, field), refusal(way, storage, field)
    assert model is not None
    if told is not None:
        with pytest.raises(mmdp.InputError, match=told):
            WAYS[way](model, folder)
        return
    back = WAYS[way](model, folder)
    if way == "pomdp":
        first = back.n_states > S  # a step before the first state is seen
        expected = bound(model) * model.discount**first
        assert bound(back, T + first) == pytest.approx(expected, rel=1e-12)
        return
    if back.n_actions < A:  # pairs of state and action do not name one that has no state
        back = widened(back)
    kept = model if way != "pomdpx" or model.drifts else heavy(model)
    assert_same(kept, back, LOST.get(way, set()))
    assert bound(back) == pytest.approx(bound(kept), rel=1e-12)


@pytest.mark.parametrize(("way", "storage"), sorted({case[:2] for case in CASES}))
def test_every_field_comes_back_or_is_refused(way: str, storage: str, tmp_path: Path) -> None:
    wrong = []
    for number, (_, _, field) in enumerate(c for c in CASES if c[:2] == (way, storage)):
        (tmp_path / str(number)).mkdir()
        try:
            carried(way, storage, field, tmp_path / str(number))
        except (Exception, pytest.fail.Exception) as error:
            wrong.append(f"{field}: {type(error).__name__} {' '.join(str(error).split())[:200]}")
    assert not wrong, "\n".join(wrong)


def widened(model: mmdp.MMDP) -> mmdp.MMDP:
    """With one more action, allowed nowhere."""
    sides = [(0, 0)] * (model.transitions.ndim - 2)
    return mmdp.MMDP(
        np.pad(model.transitions, [*sides, (0, 1), (0, 0)]),
        np.pad(model.rewards, [*sides, (0, 1)]),
        **model.fields() | {"allowed": np.pad(model.allowed, [(0, 0), (0, 1)])},
    )


def heavy(model: mmdp.MMDP) -> mmdp.MMDP:
    """Without the models of weight 0."""
    return model.subset(np.flatnonzero(model.weights))
