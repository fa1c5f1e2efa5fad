"""Folders of shards: ``part-*.npz``, each with some of the models.

Every file is a model as :func:`mmdp.save` writes it; in the order of their names they are one
model. They have the same states, actions and discount, and all or none have rewards per next
state. Models of different files have equal weights unless the files have total weights, as
:func:`save_shards` writes them.

Shards are read one after the other into the arrays of the result, so that loading takes little
more memory than the result and one shard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.problem import Shard, empty_aligned
from mmdp.core.memory import check_memory
from mmdp.core.model import MMDP
from mmdp.core.text import pluralize
from mmdp.core.transitions import SparseTransitions
from mmdp.core.validate import check_int, check_not_sharded
from mmdp.data.io.npz import model_from_arrays, open_npz, save_npz
from mmdp.data.io.writing import PathLike, write_all_atomic
from mmdp.data.schema import AnyArray, Fields, TableSource

LARGE_ARRAYS = ("p", "r", "next_rewards")  # models are their last axis
PATTERN_ARRAYS = ("indptr", "indices")
SHARED_FIELDS = (
    "allowed",
    "has_next_rewards",
    "has_initial",
    "discount",
    "horizon",
    "allow_missing",
    "states",
    "actions",
    "parameter_names",
)


def find_shard_files(folder: Path) -> list[Path]:
    """Find the files of a folder of shards, in order; none if it is another folder."""
    return sorted(folder.glob("part-*.npz"))


@check_arguments
def save_shards(model: MMDP, folder: PathLike, n_shards: int) -> None:
    """Write models as a folder of ``n_shards`` files, which :func:`mmdp.load` reads.

    All files are written or none; shards that the folder held before are replaced.

    >>> import tempfile, pathlib, mmdp
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> mmdp.io.save_shards(mmdp.MMDP([[[[1.0]]]] * 5, [[2.0]]), folder, 2)
    >>> [file.name for file in sorted(folder.iterdir())], mmdp.load(folder).n_models
    (['part-00000.npz', 'part-00001.npz'], 5)
    """
    check_int(n_shards, "n_shards")
    check_not_sharded(model.problem, "a folder of shards")
    if model.is_switching:
        raise InputError("models that switch cannot be divided into shards; save them as one .npz")
    if model.storage == "events":
        raise InputError("exogenous events cannot be divided into shards; save them as one .npz")
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
    header_by_file: dict[Path, Fields] = {}
    for file in files:
        header_by_file[file] = _read_header(file, header_by_file)
    headers = [*header_by_file.values()]
    first_header, patterns = headers[0], [_make_pattern(header) for header in headers]
    is_same = all(header[x] is first_header[x] for header in headers for x in PATTERN_ARRAYS)
    union = patterns[0]
    if not is_same:
        keys = np.unique(np.concatenate([pattern.flat_indices for pattern in patterns]))
        union = SparseTransitions.from_flat_indices(union.shape, keys, np.empty(0))
    weights = np.concatenate([header["weights"] * header["total_weight"] for header in headers])
    local_shard = None if shard is None else Shard.parse(shard, len(weights))
    local_models = slice(0, len(weights)) if local_shard is None else local_shard.local_models
    fields = first_header["fields"] | {
        "parameters": {
            name: [x for header in headers for x in header["fields"]["parameters"][name]]
            for name in first_header["parameter_names"]
        },
        "models": [x for header in headers for x in header["fields"]["models"] or ()],
    }
    fields["models"] = fields["models"] if len(fields["models"]) == len(weights) else None
    terminal = np.concatenate([header["terminal"] for header in headers])[local_models]
    arrays = first_header | {
        "fields": np.array(json.dumps(fields)),
        "weights": weights / weights.sum(),
        "terminal": terminal,
        "indptr": union.indptr,
        "indices": union.indices,
        "is_dense": np.array(all(pattern.is_dense for pattern in patterns)),
    }
    del arrays["parameter_names"]
    initials: list[Any] = [header.get("initial") for header in headers]
    if any(x is not None and (x.ndim == 2 or x is not initials[0]) for x in initials):
        shapes = [(len(header["weights"]), union.shape[1]) for header in headers]
        rows = [np.broadcast_to(x, y) for x, y in zip(initials, shapes, strict=True)]
        arrays["initial"] = np.concatenate(rows)[local_models]
    first_model = 0
    for file, header, pattern in zip(files, headers, patterns, strict=True):
        n_models = len(header["weights"])
        low = max(local_models.start, first_model)
        high = min(local_models.stop, first_model + n_models)
        if low < high:
            entries = slice(None) if is_same else np.searchsorted(keys, pattern.flat_indices)
            source = slice(low - first_model, high - first_model)
            target = slice(low - local_models.start, high - local_models.start)
            with open_npz(file) as file_arrays:
                for name in LARGE_ARRAYS:
                    if name in file_arrays:
                        values = file_arrays[name][..., source]
                        _add_models(arrays, name, values, entries, target, local_models)
        first_model += n_models
    return model_from_arrays(arrays, local_shard)


def _add_models(
    arrays: Fields,
    name: str,
    values: AnyArray,
    entries: slice | AnyArray,
    target: slice,
    local_models: slice,
) -> None:
    """Add the values of some models to a large array, which is made for the first ones."""
    n_models, is_on_pattern = local_models.stop - local_models.start, name != "r"
    if name not in arrays:
        shape = [*values.shape[:-1], n_models]
        if is_on_pattern:
            shape[1] = len(arrays["indices"])
        check_memory(
            8 * int(np.prod(shape)),
            f"{name} of {pluralize(n_models, 'model')}",
            [Remedy("shard", verb="load a shard in each of several processes with")],
        )
        arrays[name] = empty_aligned(*shape)
        if not isinstance(entries, slice):
            arrays[name][:] = 0.0
    if is_on_pattern:
        arrays[name][:, entries, target] = values
    else:
        arrays[name][..., target] = values


def _make_pattern(header: Fields) -> SparseTransitions:
    """Make the sparsity pattern of a file, without values."""
    shape = (len(header["weights"]), *header["allowed"].shape)
    is_dense = bool(header["is_dense"])
    return SparseTransitions(shape, header["indptr"], header["indices"], np.empty(0), is_dense)


def _read_header(file: Path, header_by_file: Mapping[Path, Fields]) -> Fields:
    """Read the small arrays of a file; refuse one that does not fit to the first header.

    Arrays that are equal to those of the first file are held once.
    """
    with open_npz(file) as file_arrays:
        header: Fields = {x: file_arrays[x] for x in file_arrays if x not in LARGE_ARRAYS}
        header["has_next_rewards"] = np.array("next_rewards" in file_arrays)
        header["fields"] = fields = json.loads(str(header["fields"]))
    if "indptr" not in header or "model_transitions" in header:
        TableSource(file).fail(
            "exogenous events and models that switch cannot be divided into shards; use one file"
        )
    header["parameter_names"] = [*fields["parameters"]]
    header["has_initial"] = np.array("initial" in header)
    header.setdefault("total_weight", np.array(len(header["weights"])))
    first_file, first_header = next(iter(header_by_file.items()), (file, header))
    for name in SHARED_FIELDS:
        value, expected = (x.get(name, x["fields"].get(name)) for x in (header, first_header))
        if not np.array_equal(value, expected):
            TableSource(file).fail(
                f"{name.replace('_', ' ')} differ from those of {first_file.name}; save the "
                "shards again from one model"
            )
    return header | {
        name: x
        for name, x in first_header.items()
        if name in header and np.array_equal(x, header[name])
    }
