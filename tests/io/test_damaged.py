"""Damaged files: one line that names the file, or the same model; nothing from below."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from tests.io.cases import build, seen

MODELS = {
    "dense.npz": ("dense", "everything"), "events.npz": ("events over time", "everything"),
    "sparse.npz": ("sparse", "rewards by next state, allowed"),
    "model.parquet": ("sparse over time", "everything"),
    "chain.parquet": ("events", "model transitions"),
}  # fmt: skip
TEXTS = {"m.csv": ("sparse", "allowed"), "m.pomdp": ("dense", "allowed"),
         "m.pomdpx": ("events", "plain labels")}  # fmt: skip
POLICIES = ("policy.csv", "policy.json", "policy.parquet")


def damaged(data: bytes, flips: int) -> Iterator[bytes]:
    """Cut, with flipped bytes, made up, or nothing."""
    rng = np.random.default_rng(len(data))
    for cut in np.unique(np.linspace(0, len(data) - 1, 12).astype(int)).tolist():
        yield data[:cut]
        yield data[:cut] + rng.bytes(8) + data[cut:]
    for place in rng.integers(0, len(data), flips).tolist():
        yield data[:place] + bytes([data[place] ^ int(rng.integers(1, 256))]) + data[place + 1 :]
    for head, tail in ((b"", b""), (b"PK\x03\x04", b""), (b"PAR1", b"PAR1")):
        yield head + rng.bytes(200) + tail
    yield from (b"", b"\n", b"PK", b"PAR1", data[::-1])


def read(file: Path, model: mmdp.MMDP | None = None) -> Any:
    """What was read, or None if it was refused in one line that names the file or its folder."""
    told = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return mmdp.load(file) if model is None else mmdp.load_policy(file, model)
    except mmdp.InputError as error:
        told = str(error)
    assert str(file if file.suffix not in (".csv", "") else file.parent) in told
    assert "\n" not in told
    return None


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(x, b[name]) for name, x in a.items())
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else bool(a == b)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_or_is_refused(name: str, tmp_path: Path) -> None:
    """These files have checksums."""
    file, model = tmp_path / name, build(*MODELS[name])
    assert model is not None
    mmdp.save(model, file)
    data, whole = file.read_bytes(), seen(mmdp.load(file))
    for changed in damaged(data, 60):
        file.write_bytes(changed)
        found = read(file)
        assert found is None or same(seen(found), whole)


@pytest.mark.parametrize("name", [*TEXTS, *POLICIES])
def test_texts_and_policies_are_read_or_refused(name: str, tmp_path: Path) -> None:
    file, model = tmp_path / name, build(*TEXTS.get(name, ("sparse", "everything")))
    assert model is not None
    if name in POLICIES:
        mmdp.save_policy(mmdp.solve(model, 2, "wsu", backend="numpy"), file)
    elif name == "m.csv":
        mmdp.save(model, file)
    else:
        mmdp.ecosystem.save_pomdp(model, file)
    for changed in damaged(file.read_bytes(), 40):
        file.write_bytes(changed)
        read(file, model if name in POLICIES else None)


@pytest.mark.parametrize("storage", ["dense", "events over time"])
def test_other_arrays_in_an_npz_file_are_refused(storage: str, tmp_path: Path) -> None:
    """Each array left out; in another type, shape or size there is no error from below."""
    file, model = tmp_path / "m.npz", build(storage, "everything")
    assert model is not None
    mmdp.save(model, file)
    with np.load(file) as stored:
        arrays = dict(stored)
    for name, array in arrays.items():
        others = [array.astype("S40"), array[None], array.reshape(-1)[:1], np.array(None, float)]
        for other in (None, *others):
            np.savez(file, **{k: v for k, v in (arrays | {name: other}).items() if v is not None})
            found = read(file)
            assert other is not None or found is None or name == "count"


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_damaged_parts_are_refused(suffix: str, tmp_path: Path) -> None:
    model = build("sparse", "everything")
    assert model is not None
    mmdp.io.save_parts(model, tmp_path, 2, suffix=suffix)
    file, whole = tmp_path / f"part-00001{suffix}", seen(mmdp.load(tmp_path))
    data = file.read_bytes()
    for changed in damaged(data, 10):
        file.write_bytes(changed)
        found = read(tmp_path)
        assert found is None or same(seen(found), whole)
