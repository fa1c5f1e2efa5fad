"""npz files: every array of a model as it is in memory, without pickle."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmdp.core.errors import InputError, MemoryLimitError
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.problem import Shard
from mmdp.core.kernels.rewards import EventRewards
from mmdp.core.model import MMDP
from mmdp.core.text import format_bytes
from mmdp.core.transitions import SparseTransitions
from mmdp.core.validate import ModelFields
from mmdp.data.io.reading import check_file_type
from mmdp.data.io.writing import describe_error
from mmdp.data.schema import Fields, TableSource

ArrayMapping = Mapping[str, Any]  # arrays and numbers by name
MODEL_FORMAT = "mmdp-model-3"
MAX_UNPACKED_BYTES = 2**27  # bytes that the arrays may take, however small their file is
TEXT_ARRAYS = ("format", "fields")
EVENT_ARRAYS = ("next_states", "probs", "distribution_id", "corner_weights")


def save_npz(model: MMDP, path: Path, **extra_arrays: Any) -> None:
    """Write the arrays of a model; rewards by event, which repeat themselves, are compressed."""
    arrays = {**model_to_arrays(model), **extra_arrays}
    arrays["count"] = len(arrays) + 1  # to detect missing arrays
    compressed = {"reward", "terminal"} if "reward" in arrays else ()
    with zipfile.ZipFile(path, "w", compresslevel=1) as archive:
        for name, array in arrays.items():
            archive.compression = zipfile.ZIP_DEFLATED if name in compressed else zipfile.ZIP_STORED
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def model_to_arrays(model: MMDP) -> Fields:
    """Convert a model to arrays: its fields, as text if they are none, and tables or events."""
    problem, storage, fields = model.problem, model.problem.storage, fields_to_json_types(model)
    arrays: Fields = {name: x for name, x in fields.items() if isinstance(x, np.ndarray)}
    arrays |= {
        "format": MODEL_FORMAT,
        "fields": json.dumps({name: x for name, x in fields.items() if name not in arrays}),
        "horizon": model.horizon or 0,
        "next_rewards": model.pattern_rewards,
    }
    if isinstance(storage, ExogenousEvents):
        arrays |= {name: getattr(storage, name) for name in EVENT_ARRAYS}
    else:
        arrays |= storage.to_table()._asdict()
    if isinstance(problem.r, EventRewards):
        arrays["reward"] = problem.r.reward
        if not problem.terminal.any():  # the only large array by state and model
            del arrays["terminal"]
    else:
        arrays["r"] = problem.r
    return {name: np.asarray(x) for name, x in arrays.items() if x is not None}


def fields_to_json_types(model: MMDP) -> Fields:
    """Convert the fields of a model to JSON types; arrays stay."""
    parameters = {name: values.tolist() for name, values in model.parameters.items()}
    return model.to_kwargs() | {"parameters": parameters}


def load_npz(path: Path) -> MMDP:
    """Load a model from an npz file written by :func:`save_npz`."""
    with open_npz(path) as file:
        return model_from_arrays({name: file[name] for name in file.files})


@contextmanager
def open_npz(path: Path) -> Iterator[Any]:
    """Open the arrays of a model by name, each read on access; refuse a damaged file."""
    check_file_type(path, "a zip archive (.npz, .xlsx)", "an npz file")
    try:
        _check_unpacked_size(path)
        with np.load(path, allow_pickle=False) as arrays:
            is_model = str(arrays.get("format")) == MODEL_FORMAT
            if is_model and arrays["count"] != len(arrays):
                raise ValueError("it lacks an array")
            if is_model:
                yield arrays
    except (MemoryLimitError, MemoryError):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise almost anything
        # save() wrote a valid model: one that fails its checks has been changed since
        detail = str(error) if isinstance(error, InputError) else describe_error(error)
        TableSource(path).fail(f"damaged npz file ({detail})")
    if not is_model:
        TableSource(path).fail(
            f"not a model saved by this version of mmdp (no format {MODEL_FORMAT!r}); build the "
            "model from its arrays with mmdp.MMDP and save it with mmdp.save"
        )


def _check_unpacked_size(path: Path) -> None:
    """Refuse arrays out of proportion to their file, before they are allocated."""
    n_bytes, file_size = 0, path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                npy = np.lib.format
                is_first_version = npy.read_magic(file) == (1, 0)
                read_header = (
                    npy.read_array_header_1_0 if is_first_version else npy.read_array_header_2_0
                )
                shape, _, dtype = read_header(file)
            size = math.prod(shape) * dtype.itemsize
            if size > member.file_size:
                raise ValueError(f"{member.filename} is shorter than its header says")
            n_bytes += size
    if n_bytes > max(MAX_UNPACKED_BYTES, 64 * file_size):
        raise MemoryLimitError(
            f"{path}: its arrays would take {format_bytes(n_bytes)}, but the file has "
            f"{format_bytes(file_size)}; save the model with mmdp.save"
        )


def model_from_arrays(arrays: ArrayMapping, shard: Shard | None = None) -> MMDP:
    """Build a checked model from the arrays of :func:`model_to_arrays`."""
    if any(
        x.dtype.kind not in ("U" if name in TEXT_ARRAYS else "biuf") for name, x in arrays.items()
    ):
        raise TypeError("arrays of another type")
    fields: Fields = json.loads(str(arrays["fields"]))
    fields |= {name: arrays[name] for name in ModelFields._fields if name in arrays}
    rewards: Any = None if "reward" in arrays else np.ascontiguousarray(arrays["r"], np.float64)
    transitions: SparseTransitions | ExogenousEvents
    if "next_states" in arrays:
        events: Fields = {name: arrays.get(name) for name in EVENT_ARRAYS}
        transitions = ExogenousEvents(**events)
        rewards = transitions.make_rewards(arrays["reward"]) if rewards is None else rewards
    else:
        transitions = SparseTransitions(
            (arrays["p"].shape[2], *arrays["allowed"].shape),
            arrays["indptr"].astype(np.int64),
            arrays["indices"].astype(np.int32),
            np.ascontiguousarray(arrays["p"], np.float64),
            bool(arrays["is_dense"]),
            horizon=int(arrays["horizon"]) or None,
        )
    return MMDP.from_sparse(
        transitions, rewards, next_rewards=arrays.get("next_rewards"), shard=shard, **fields
    )
