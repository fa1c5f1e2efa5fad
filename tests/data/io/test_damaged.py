"""Damaged files: one line that names the file, or the same model; nothing from below."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from tests.data.io.cases import make_model, model_to_dict

MODEL_CASES = {
    "dense.npz": ("dense", "everything"),
    "events.npz": ("events over time", "everything"),
    "sparse.npz": ("sparse", "rewards by next state, allowed"),
    "model.parquet": ("sparse over time", "everything"),
    "chain.parquet": ("events", "model transitions"),
}
TEXT_CASES = {
    "m.csv": ("sparse", "allowed"),
    "m.pomdp": ("dense", "allowed"),
    "m.pomdpx": ("events", "plain labels"),
}
POLICY_FILES = ("policy.csv", "policy.json", "policy.parquet")


def iter_damaged(data: bytes, n_flips: int) -> Iterator[bytes]:
    """Cut, with flipped bytes, made up, or nothing."""
    rng = np.random.default_rng(len(data))
    for cut_index in np.unique(np.linspace(0, len(data) - 1, 12).astype(int)).tolist():
        yield data[:cut_index]
        yield data[:cut_index] + rng.bytes(8) + data[cut_index:]
    for index in rng.integers(0, len(data), n_flips).tolist():
        yield data[:index] + bytes([data[index] ^ int(rng.integers(1, 256))]) + data[index + 1 :]
    for head, tail in ((b"", b""), (b"PK\x03\x04", b""), (b"PAR1", b"PAR1")):
        yield head + rng.bytes(200) + tail
    yield from (b"", b"\n", b"PK", b"PAR1", data[::-1])


def load_or_check_error(file: Path, model: mmdp.MMDP | None = None) -> Any:
    """What was read, or None if it was refused in one line that names the file or its folder."""
    message = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return mmdp.load(file) if model is None else mmdp.load_policy(file, model)
    except mmdp.InputError as error:
        message = str(error)
    assert str(file if file.suffix not in (".csv", "") else file.parent) in message
    assert "\n" not in message
    return None


def is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_equal(x, b[name]) for name, x in a.items())
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else bool(a == b)


@pytest.mark.parametrize("name", MODEL_CASES)
def test_a_model_comes_back_or_is_refused(name: str, tmp_path: Path) -> None:
    """These files have checksums."""
    file, model = tmp_path / name, make_model(*MODEL_CASES[name])
    mmdp.save(model, file)
    data, expected = file.read_bytes(), model_to_dict(mmdp.load(file))
    for damaged_data in iter_damaged(data, 60):
        file.write_bytes(damaged_data)
        loaded = load_or_check_error(file)
        assert loaded is None or is_equal(model_to_dict(loaded), expected)


@pytest.mark.parametrize("name", [*TEXT_CASES, *POLICY_FILES])
def test_texts_and_policies_are_read_or_refused(name: str, tmp_path: Path) -> None:
    file, model = tmp_path / name, make_model(*TEXT_CASES.get(name, ("sparse", "everything")))
    if name in POLICY_FILES:
        mmdp.save_policy(mmdp.solve(model, 2, "wsu", backend="numpy"), file)
    elif name == "m.csv":
        mmdp.save(model, file)
    else:
        mmdp.interop.save_pomdp(model, file)
    for damaged_data in iter_damaged(file.read_bytes(), 40):
        file.write_bytes(damaged_data)
        load_or_check_error(file, model if name in POLICY_FILES else None)


@pytest.mark.parametrize("storage", ["dense", "events over time"])
def test_other_arrays_in_an_npz_file_are_refused(storage: str, tmp_path: Path) -> None:
    """Each array left out; in another type, shape or size there is no error from below."""
    file, model = tmp_path / "m.npz", make_model(storage, "everything")
    mmdp.save(model, file)
    with np.load(file) as npz_file:
        arrays = dict(npz_file)
    for name, array in arrays.items():
        bad_arrays = [
            array.astype("S40"),
            array[None],
            array.reshape(-1)[:1],
            np.array(None, float),
        ]
        for bad_array in (None, *bad_arrays):
            np.savez(
                file, **{k: v for k, v in (arrays | {name: bad_array}).items() if v is not None}
            )
            loaded = load_or_check_error(file)
            assert bad_array is not None or loaded is None or name == "count"


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    model = make_model("sparse", "everything")
    mmdp.io.save_shards(model, tmp_path, 2)
    file, expected = tmp_path / "part-00001.npz", model_to_dict(mmdp.load(tmp_path))
    data = file.read_bytes()
    for damaged_data in iter_damaged(data, 10):
        file.write_bytes(damaged_data)
        loaded = load_or_check_error(tmp_path)
        assert loaded is None or is_equal(model_to_dict(loaded), expected)
