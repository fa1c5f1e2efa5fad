"""Every field of a model, in every storage, through every way out and back: kept, or refused.

What a format does not hold is listed here, and its documentation says so; nothing else may change.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.data import interop
from tests.cli.calls import run
from tests.data.io.cases import (
    FIELDS,
    STORAGES,
    A,
    M,
    S,
    T,
    has_model,
    make_model,
    model_to_dict,
)


def assert_same(a: mmdp.MMDP, b: mmdp.MMDP, lost_fields: set[str]) -> None:
    a_fields, b_fields = model_to_dict(a), model_to_dict(b)
    for name in a_fields.keys() - lost_fields:
        x, y = a_fields[name], b_fields[name]
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-15, err_msg=name)
        elif name == "parameters":
            assert {k: v.tolist() for k, v in y.items()} == {k: v.tolist() for k, v in x.items()}
        else:
            assert y == x, name


def compute_oracle_value(model: mmdp.MMDP, horizon: int = T) -> float:
    """What is earned on average if each model has its best actions, one step at a time."""
    P, r = model.transitions, model.rewards
    P, r = (
        np.broadcast_to(array, (horizon, *array.shape[model.horizon is not None :]))
        for array in (P, r)
    )
    v = model.terminal
    for t in reversed(range(horizon)):
        v = np.einsum("mk,ks->ms", model.model_transitions, v)
        q = r[t] + model.discount * np.einsum("msaz,mz->msa", P[t], v)
        v = np.where(model.allowed, q, -np.inf).max(axis=2)
    return float(model.weights @ (np.broadcast_to(model.initial, v.shape) * v).sum(axis=1))


# ---------------------------------------------------------------------- ways out and back
def make_file_trip(name: str) -> Callable[[mmdp.MMDP, Path], mmdp.MMDP]:
    def round_trip(model: mmdp.MMDP, folder: Path) -> mmdp.MMDP:
        mmdp.save(model, folder / name)
        return mmdp.load(folder / name)

    return round_trip


def convert_by_shards(model: mmdp.MMDP, folder: Path) -> mmdp.MMDP:
    mmdp.io.save_shards(model, folder / "parts", 2)
    return mmdp.load(folder / "parts")


def convert_by_cli(model: mmdp.MMDP, folder: Path) -> mmdp.MMDP:
    """npz, a folder, Parquet and back, on the command line."""
    mmdp.save(model, folder / "m.npz")
    for data, out in (("m.npz", "m"), ("m", "m.parquet"), ("m.parquet", "n.npz")):
        result = run("convert", folder / data, "--out", folder / out)
        if result.code:
            raise mmdp.InputError(result.err)
    return mmdp.load(folder / "n.npz")


def convert_by_frame(model: mmdp.MMDP, _: Path) -> mmdp.MMDP:
    """A table holds transitions and rewards; the fields go beside it."""
    fields = {k: v for k, v in model.to_kwargs().items() if k not in ("allowed", "allow_missing")}
    names = {"actions": model.action_labels} if fields["actions"] is None else {}
    missing = "zero" if model.has_missing_actions else "error"
    restored = mmdp.io.from_frame(
        mmdp.io.to_frame(model), **fields | names, missing_actions=missing
    )
    return restored.replace(actions=fields["actions"])


def make_pomdp_trip(suffix: str) -> Callable[[mmdp.MMDP, Path], mmdp.MMDP]:
    def round_trip(model: mmdp.MMDP, folder: Path) -> mmdp.MMDP:
        interop.save_pomdp(model, folder / f"m{suffix}")
        return mmdp.load(folder / f"m{suffix}")

    return round_trip


def convert_by_quantecon(model: mmdp.MMDP, _: Path) -> mmdp.MMDP:
    pytest.importorskip("quantecon", reason="quantecon is not here")
    return interop.from_quantecon(
        [interop.to_quantecon(model, m) for m in range(M)],
        **{
            k: v
            for k, v in model.to_kwargs().items()
            if k not in ("discount", "allow_missing", "allowed", "actions")
        },
    )


def reorder_and_restore(model: mmdp.MMDP, _: Path) -> mmdp.MMDP:
    """States and actions in another order, and back."""
    labeled = model.replace(states=list("pqrs"), actions=list("uvw"))
    reference = mmdp.MMDP(
        np.full((1, S, A, S), 1 / S), np.zeros((S, A)), states=list("rpsq"), actions=list("wuv")
    )
    reordered = labeled.reorder_like(reference)
    assert reordered.state_labels == tuple("rpsq")
    order = [2, 0, 3, 1]
    np.testing.assert_array_equal(reordered.allowed, model.allowed[order][:, [2, 0, 1]])
    np.testing.assert_array_equal(
        reordered.transitions, model.transitions[..., order, :, :][..., [2, 0, 1], :][..., order]
    )
    restored = reordered.reorder_like(labeled)
    return restored.replace(
        states=model.label_index("state").labels, actions=model.label_index("action").labels
    )


def replace_and_restore(model: mmdp.MMDP, _: Path) -> mmdp.MMDP:
    """Every field replaced by another of its kind, and back."""
    fields = model.to_kwargs()
    changed_model = model.replace(
        discount=0.123, weights=[0.1, 0.1, 0.8], terminal=np.ones(S), name="x"
    )
    return changed_model.replace(**fields)


def reverse_models_twice(model: mmdp.MMDP, _: Path) -> mmdp.MMDP:
    reversed_model = (
        model.subset([2, 1, 0]) if model.weights.all() or not model.is_switching else model
    )
    return reversed_model.subset([2, 1, 0])


def convert_by_storages(model: mmdp.MMDP, folder: Path) -> mmdp.MMDP:
    mmdp.save(model, folder / "m.npz")
    mmdp.save(mmdp.load(folder / "m.npz", storage="dense"), folder / "d.npz")
    return mmdp.load(folder / "d.npz", storage="sparse")


ROUND_TRIPS: dict[str, Callable[[mmdp.MMDP, Path], mmdp.MMDP]] = {
    "npz": make_file_trip("m.npz"),
    "parquet": make_file_trip("m.parquet"),
    "folder": make_file_trip("m"),
    "csv": make_file_trip("m.csv"),
    "shards": convert_by_shards,
    "frame": convert_by_frame,
    "convert": convert_by_cli,
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
    "pomdpx": make_pomdp_trip(".pomdpx"),
    "pomdp": make_pomdp_trip(".pomdp"),
    "quantecon": convert_by_quantecon,
    "ordered_like": reorder_and_restore,
    "replace": replace_and_restore,
    "subset": reverse_models_twice,
    "storages": convert_by_storages,
}
SWITCHING_MESSAGES = (
    "cannot hold models that switch|models that switch cannot be divided|that switches"
)
REFUSAL_MESSAGES: dict[str, dict[str, str]] = {  # field or storage: what is said
    "folder": {"model transitions": SWITCHING_MESSAGES},
    "csv": {"model transitions": SWITCHING_MESSAGES},
    "convert": {"model transitions": SWITCHING_MESSAGES},
    "shards": {
        "model transitions": SWITCHING_MESSAGES,
        "events": "cannot be divided",
        "corners": "cannot be d",
    },
    "pomdpx": {"time": "varies with time", "terminal": "no terminal", "missing": "are missing"},
    "quantecon": {
        "time": "varies with time",
        "model transitions": SWITCHING_MESSAGES,
        "missing": "are missing",
    },
}
REFUSAL_MESSAGES["pomdp"] = REFUSAL_MESSAGES["pomdpx"]
LOST_BY_POMDP = {
    "name",
    "citation",
    "unit",
    "quantity",
    "time_labels",
    "parameters",
    "initial_given",
    "states",
    "actions",
    "models",
    "allowed",
    "next_rewards",
}
LOST_FIELDS: dict[str, set[str]] = {  # documented in save_pomdp
    "pomdpx": LOST_BY_POMDP | {"transitions", "rewards"},  # of actions that are not allowed
    "quantecon": {"next_rewards", "actions"},
}


def find_refusal_message(trip: str, storage: str, field: str) -> str | None:
    """What is said if this model cannot go this way."""
    model = make_model(storage, field)
    for key, message in REFUSAL_MESSAGES.get(trip, {}).items():
        applies = {
            "time": "time" in storage,
            "events": storage.startswith("events"),
            "corners": storage == "corners",
            "terminal": bool(model.terminal.any()),
            "missing": model.has_missing_actions,
            "model transitions": model.is_switching,
        }[key]
        if applies:
            return message
    return None


def check_round_trip(trip: str, storage: str, field: str, folder: Path) -> None:
    """One model one way, checked."""
    model, message = make_model(storage, field), find_refusal_message(trip, storage, field)
    if message is not None:
        with pytest.raises(mmdp.InputError, match=message):
            ROUND_TRIPS[trip](model, folder)
        return
    restored = ROUND_TRIPS[trip](model, folder)
    if trip == "pomdp":
        has_first_step = restored.n_states > S  # a step before the first state is seen
        expected = compute_oracle_value(model) * model.discount**has_first_step
        assert compute_oracle_value(restored, T + has_first_step) == pytest.approx(
            expected, rel=1e-12
        )
        return
    if restored.n_actions < A:  # pairs of state and action do not name one that has no state
        restored = add_unused_action(restored)
    original = model if trip != "pomdpx" or model.is_switching else drop_zero_weights(model)
    assert_same(original, restored, LOST_FIELDS.get(trip, set()))
    assert compute_oracle_value(restored) == pytest.approx(
        compute_oracle_value(original), rel=1e-12
    )


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("trip", ROUND_TRIPS)
def test_every_field_comes_back_or_is_refused(trip: str, every: int, tmp_path: Path) -> None:
    """Every n-th storage, another one for each field and each trip."""
    storages = list(STORAGES) if trip != "convert" else ["sparse", "events", "dense over time"]
    every, offset = min(every, len(storages)), list(ROUND_TRIPS).index(trip)
    failures = []
    for (i, storage), (j, field) in itertools.product(enumerate(storages), enumerate(FIELDS)):
        if (offset + i + j) % every or not has_model(storage, field):
            continue
        folder = tmp_path / f"{i}-{j}"
        folder.mkdir()
        try:
            check_round_trip(trip, storage, field, folder)
        except (Exception, pytest.fail.Exception) as error:
            failures.append(
                f"{storage}, {field}: {type(error).__name__} {' '.join(str(error).split())[:200]}"
            )
    assert not failures, "\n".join(failures)


def add_unused_action(model: mmdp.MMDP) -> mmdp.MMDP:
    """With one more action, allowed nowhere."""
    leading_pads = [(0, 0)] * (model.transitions.ndim - 2)
    return mmdp.MMDP(
        np.pad(model.transitions, [*leading_pads, (0, 1), (0, 0)]),
        np.pad(model.rewards, [*leading_pads, (0, 1)]),
        **model.to_kwargs() | {"allowed": np.pad(model.allowed, [(0, 0), (0, 1)])},
    )


def drop_zero_weights(model: mmdp.MMDP) -> mmdp.MMDP:
    """Without the models of weight 0."""
    return model.subset(np.flatnonzero(model.weights))
