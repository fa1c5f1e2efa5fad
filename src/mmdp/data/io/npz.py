"""npz files: every array of a model as it is in memory, without pickle."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmdp.core.errors import InputError, MemoryLimitError
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.problem import Shard, Storage
from mmdp.core.kernels.rewards import EventRewards, Rewards
from mmdp.core.model import MMDP
from mmdp.core.text import format_bytes
from mmdp.core.transitions import SparseTransitions
from mmdp.data.io.reading import check_file_type
from mmdp.data.io.writing import describe_error
from mmdp.data.schema import Fields, TableSource

ArrayMapping = Mapping[str, Any]  # arrays and numbers by name
MODEL_FORMAT = "mmdp-model-2"
MAX_UNPACKED_BYTES = 2**27  # bytes that the arrays may take, however small their file is
_LABEL_FIELDS = ("states", "actions", "models")
_TEXT_FIELDS = ("name", "citation", "unit", "quantity")
_EVENT_FIELDS = ("next_states", "probs", "distribution_id", "corner_weights")
_FLOAT_FIELDS = ("p", "probs", "r", "reward", "next_rewards", "terminal", "initial", "weights")
_ARRAY_TYPES: dict[type[np.generic], tuple[str, ...]] = {
    np.float64: (*_FLOAT_FIELDS, "model_transitions"),
    np.signedinteger: ("indptr", "indices", "next_states", "horizon"),
    np.bool_: ("allowed",),
    np.str_: (*_LABEL_FIELDS, *_TEXT_FIELDS, "time_labels"),
}


def save_npz(model: MMDP, path: Path, **extra_arrays: Any) -> None:
    """Write the arrays of a model; rewards by event, which repeat themselves, are compressed."""
    arrays = {**model_to_arrays(model), **extra_arrays}
    arrays = {"count": len(arrays) + 1, **arrays}  # to detect missing arrays
    compressed = {"reward", "terminal"} if "reward" in arrays else ()
    with zipfile.ZipFile(path, "w", compresslevel=1) as archive:
        for name, array in arrays.items():
            archive.compression = zipfile.ZIP_DEFLATED if name in compressed else zipfile.ZIP_STORED
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def model_to_arrays(model: MMDP) -> Fields:
    """Convert a model to arrays, by their names in files."""
    fields, problem = model.to_kwargs(), model.problem
    arrays: Fields = {
        "format": np.array(MODEL_FORMAT),
        **_transitions_to_arrays(problem.storage),
    }
    arrays |= problem._asdict()
    del arrays["storage"], arrays["shard"]
    if isinstance(problem.r, EventRewards):
        del arrays["r"]
        arrays["reward"] = problem.r.reward
        if not problem.terminal.any():  # the only large array by state and model
            del arrays["terminal"]
    if not model.is_switching:
        del arrays["model_transitions"]
    arrays["allowed"], arrays["initial"] = model.allowed, model.initial
    arrays["initial_given"] = model.has_initial
    arrays["allow_missing"] = fields["allow_missing"]
    arrays["horizon"] = -1 if model.horizon is None else model.horizon
    for name in (*_LABEL_FIELDS, *_TEXT_FIELDS):
        if fields[name] is not None:
            arrays[name] = np.array(fields[name], dtype=str)
    if fields["time_labels"] is not None:
        arrays["time_labels"] = np.array([model.time_labels.name, *model.time_labels.labels])
    if model.pattern_rewards is not None:
        arrays["next_rewards"] = model.pattern_rewards
    for i, (name, values) in enumerate(model.parameters.items()):
        arrays[f"parameter_{i}_name"], arrays[f"parameter_{i}"] = np.array(name), values
    return arrays


def _transitions_to_arrays(storage: Storage) -> Fields:
    """Convert exogenous events to their arrays, other storage to tables."""
    if not isinstance(storage, ExogenousEvents):
        return storage.to_table()._asdict()
    arrays = {name: getattr(storage, name) for name in _EVENT_FIELDS}
    return {name: array for name, array in arrays.items() if array is not None}


def load_npz(path: Path) -> MMDP:
    """Load a model from an npz file written by :func:`save_npz`."""
    with open_npz(path) as file:
        arrays = {name: file[name] for name in file.files}
        if str(arrays.get("format")) == MODEL_FORMAT:
            return model_from_arrays(arrays)
    TableSource(path).fail(
        f"not a model saved by this version of mmdp (no format {MODEL_FORMAT!r}); build the model "
        "from its arrays with mmdp.MMDP and save it with mmdp.save"
    )


@contextmanager
def open_npz(path: Path) -> Iterator[Any]:
    """Open the arrays of a file by name, each read on access; refuse a damaged file."""
    check_file_type(path, "a zip archive (.npz, .xlsx)", "an npz file")
    try:
        _check_unpacked_size(path)
        with np.load(path, allow_pickle=False) as arrays:
            if "count" in arrays and arrays["count"] != len(arrays):
                raise ValueError("it lacks an array")
            yield arrays
    except (MemoryLimitError, MemoryError):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise almost anything
        # save() wrote a valid model: one that fails its checks has been changed since
        detail = str(error) if isinstance(error, InputError) else describe_error(error)
        TableSource(path).fail(f"damaged npz file ({detail})")


def _check_unpacked_size(path: Path) -> None:
    """Refuse arrays out of proportion to their file, before they are allocated."""
    n_bytes = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read_array_header = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                    version, np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = read_array_header(file)
            size = math.prod(shape) * dtype.itemsize
            if size > member.file_size:
                raise ValueError(f"{member.filename} is shorter than its header says")
            n_bytes += size
    file_size = path.stat().st_size
    if n_bytes > max(MAX_UNPACKED_BYTES, 64 * file_size):
        raise MemoryLimitError(
            f"{path}: its arrays would take {format_bytes(n_bytes)}, but the file has "
            f"{format_bytes(file_size)}; save the model with mmdp.save"
        )


def model_from_arrays(arrays: ArrayMapping, shard: Shard | None = None) -> MMDP:
    """Build a checked model from the arrays of a file."""
    if not all(
        np.issubdtype(arrays[name].dtype, array_type)
        for array_type, names in _ARRAY_TYPES.items()
        for name in names
        if name in arrays
    ):
        raise TypeError("arrays of another type")
    horizon = int(arrays["horizon"])
    allowed, terminal = arrays["allowed"], arrays.get("terminal")
    rewards: Rewards | None = None if "reward" in arrays else np.ascontiguousarray(arrays["r"])
    transitions: SparseTransitions | ExogenousEvents
    if "next_states" in arrays:
        events: Fields = {name: arrays.get(name) for name in _EVENT_FIELDS}
        transitions = ExogenousEvents(**events)
        rewards = transitions.make_rewards(arrays["reward"]) if rewards is None else rewards
    else:
        transitions = SparseTransitions(
            (arrays["p"].shape[2], *allowed.shape),
            arrays["indptr"].astype(np.int64),
            arrays["indices"].astype(np.int32),
            np.ascontiguousarray(arrays["p"]),
            bool(arrays["is_dense"]),
            horizon=horizon if horizon > 0 else None,
        )
    return MMDP.from_sparse(
        transitions,
        rewards,
        next_rewards=arrays.get("next_rewards"),
        weights=arrays["weights"],
        terminal=None if terminal is None else terminal.T,
        allowed=allowed,
        model_transitions=arrays.get("model_transitions"),
        **fields_from_arrays(arrays),
        shard=shard,
    )


def fields_from_arrays(arrays: ArrayMapping) -> Fields:
    """Convert the small arrays of a file to arguments of MMDP."""
    n_parameters = sum(name.startswith("parameter_") for name in arrays) // 2
    return {
        "initial": arrays["initial"] if bool(arrays["initial_given"]) else None,
        "discount": float(arrays["discount"]),
        "allow_missing": bool(arrays["allow_missing"]),
        "parameters": {
            str(arrays[f"parameter_{i}_name"]): arrays[f"parameter_{i}"]
            for i in range(n_parameters)
        },
        **{name: arrays.get(name) for name in _LABEL_FIELDS},
        "time_labels": {str(arrays["time_labels"][0]): arrays["time_labels"][1:]}
        if "time_labels" in arrays
        else None,
        **{name: arrays[name].item() for name in _TEXT_FIELDS if name in arrays},
    }
