"""npz files: every array of a model as it is in memory, without pickle; folders of shards.

The files ``part-*.npz`` of a folder hold some of the models each; in the order of their names they
are one model. Models of different files have equal weights unless the files have total weights, as
:func:`save_shards` writes them. Large arrays are read one after the other into those of the result,
so that loading takes little more memory than the result and one shard.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmdp.core.arguments import PositiveInt, check_arguments
from mmdp.core.errors import InputError, MemoryLimitError, Remedy, check_memory
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.problem import Shard, empty_aligned
from mmdp.core.kernels.rewards import EventRewards
from mmdp.core.model import MMDP
from mmdp.core.text import format_bytes, pluralize
from mmdp.core.transitions import SparseTransitions
from mmdp.core.validate import ModelFields, check_not_sharded
from mmdp.data.io.reading import check_file_type, report_damage
from mmdp.data.io.writing import PathLike, write_all_atomic
from mmdp.data.schema import Fields, TableSource

ArrayMapping = Mapping[str, Any]  # arrays and numbers by name
MODEL_FORMAT = "mmdp-model-3"
MAX_UNPACKED_BYTES = 2**27  # bytes that the arrays may take, however small their file is
TEXT_ARRAYS = ("format", "fields")
EVENT_ARRAYS = ("next_states", "probs", "distribution_id", "corner_weights")
LARGE_ARRAYS = ("p", "r", "next_rewards")  # of a shard; models are their last axis
MODEL_FIELDS = ("weights", "terminal", "initial", "total_weight", "models", "parameters")


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
        arrays = {name: file[name] for name in file.files}
        for name, array in arrays.items():
            if array.dtype.kind not in ("U" if name in TEXT_ARRAYS else "biuf"):
                raise TypeError(f"{name} is of another type")
        return model_from_arrays(arrays)


@contextmanager
def open_npz(path: Path) -> Iterator[Any]:
    """Open the arrays of a model by name, each read on access; refuse a damaged file."""
    check_file_type(path, "a zip archive (.npz, .xlsx)", "an npz file")
    # save() wrote a valid model: one that fails its checks has been changed since
    with report_damage(path, "npz file"):
        _check_unpacked_size(path)
        with np.load(path, allow_pickle=False) as arrays:
            is_model = str(arrays.get("format")) == MODEL_FORMAT
            if is_model and arrays["count"] != len(arrays):
                raise ValueError("it lacks an array")
            if is_model:
                yield arrays
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
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
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


# ---------------------------------------------------------------------- shards
def find_shard_files(folder: Path) -> list[Path]:
    """Find the files of a folder of shards, in order; none if it is another folder."""
    return sorted(folder.glob("part-*.npz"))


@check_arguments
def save_shards(model: MMDP, folder: PathLike, n_shards: PositiveInt) -> None:
    """Write models as a folder of ``n_shards`` files, which :func:`mmdp.load` reads.

    All files are written or none; shards that the folder held before are replaced.

    >>> import tempfile, pathlib, mmdp
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> mmdp.io.save_shards(mmdp.MMDP([[[[1.0]]]] * 5, [[2.0]]), folder, 2)
    >>> [file.name for file in sorted(folder.iterdir())], mmdp.load(folder).n_models
    (['part-00000.npz', 'part-00001.npz'], 5)
    """
    check_not_sharded(model.problem, "a folder of shards")
    if model.is_switching or model.storage == "events":
        raise InputError(
            "exogenous events and models that switch cannot be divided into shards; save them as "
            "one .npz"
        )
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)

    def write_shard(i: int, path: Path) -> None:
        local_models = Shard(i, n_shards, model.n_models).local_models
        total_weight = float(model.weights[local_models].sum())
        save_npz(model.subset(local_models), path, total_weight=total_weight)

    Shard.parse((0, n_shards), model.n_models)
    files = {target / f"part-{i:05}.npz": partial(write_shard, i) for i in range(n_shards)}
    write_all_atomic(files, {*find_shard_files(target)} - {*files})


def load_shards(files: Sequence[Path], shard: tuple[int, int] | None) -> MMDP:
    """Load the models of all files, or of shard i of n, given as (i, n)."""
    arrays: Fields = {}
    headers: list[Fields] = []
    for file in files:
        shared = _read_header(file)
        headers.append({name: shared.pop(name, None) for name in MODEL_FIELDS})
        arrays = arrays or shared
        for name in arrays:
            if not np.array_equal(arrays[name], shared.get(name, np.nan)):
                TableSource(file).fail(
                    f"{name.replace('_', ' ')} differ from those of {files[0].name}; save the "
                    "shards again from one model"
                )
    sizes = [len(header["weights"]) for header in headers]
    weights = np.concatenate([header["weights"] * header["total_weight"] for header in headers])
    local_shard = None if shard is None else Shard.parse(shard, len(weights))
    local_models = slice(0, len(weights)) if local_shard is None else local_shard.local_models
    n_models = local_models.stop - local_models.start
    for name in ("terminal", "initial")[: 1 + arrays["has_initial"]]:
        rows = [
            np.broadcast_to(header[name], (size, len(arrays["allowed"])))
            for header, size in zip(headers, sizes, strict=True)
        ]
        arrays[name] = np.concatenate(rows)[local_models]
    labels = [x for header in headers for x in header["models"] or ()]
    fields = {name: arrays.get(name) for name in arrays["field_names"]} | {
        "models": labels if len(labels) == len(weights) else None,
        "parameters": {
            name: [x for header in headers for x in header["parameters"][name]]
            for name in arrays["parameter_names"]
        },
    }
    arrays |= {"fields": json.dumps(fields), "weights": weights / weights.sum()}
    for file, end, size in zip(files, np.cumsum(sizes).tolist(), sizes, strict=True):
        low, high = max(local_models.start, end - size), min(local_models.stop, end)
        if low >= high:
            continue
        with open_npz(file) as file_arrays:
            for name in filter(file_arrays.__contains__, LARGE_ARRAYS):
                values = file_arrays[name][..., low - end + size : high - end + size]
                if name not in arrays:
                    check_memory(
                        values.nbytes // (high - low) * n_models,
                        f"{name} of {pluralize(n_models, 'model')}",
                        [Remedy("shard", verb="load a shard in each of several processes with")],
                    )
                    arrays[name] = empty_aligned(*values.shape[:-1], n_models)
                arrays[name][..., low - local_models.start : high - local_models.start] = values
    return model_from_arrays(arrays, local_shard)


def _read_header(file: Path) -> Fields:
    """Read the small arrays and the fields of a file, by name."""
    with open_npz(file) as file_arrays:
        header: Fields = {x: file_arrays[x] for x in file_arrays if x not in LARGE_ARRAYS}
        header["has_next_rewards"] = "next_rewards" in file_arrays
    if "indptr" not in header or "model_transitions" in header:
        TableSource(file).fail(
            "exogenous events and models that switch cannot be divided into shards; use one file"
        )
    header["has_initial"] = "initial" in header
    header.setdefault("total_weight", len(header["weights"]))
    fields = json.loads(str(header.pop("fields")))
    names = {"field_names": [*fields], "parameter_names": [*fields["parameters"]]}
    del header["count"]
    return header | fields | names
