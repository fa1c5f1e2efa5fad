"""Folders of shards: ``part-*.npz``, each with some of the models.

Every file is a model as :func:`mmdp.save` writes it; in the order of their names they are one
model. They have the same states, actions and discount, and all or none have rewards per next
state. Models of different files have equal weights unless the files have total weights, as
:func:`save_shards` writes them.

Shards are read one after the other into the arrays of the result, so that loading takes little
more memory than the result and one shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.problem import Shard, empty_aligned
from mmdp.core.memory import check_memory
from mmdp.core.model import MMDP
from mmdp.core.text import pluralize
from mmdp.core.transitions import SparseTransitions
from mmdp.core.validate import check_int, check_not_sharded
from mmdp.data.io.npz import (
    MODEL_FORMAT,
    ArrayMapping,
    model_from_arrays,
    open_npz,
    save_npz,
)
from mmdp.data.io.writing import PathLike, write_all_atomic
from mmdp.data.schema import AnyArray, Fields, TableSource

LARGE_ARRAYS = ("p", "r", "terminal", "next_rewards")  # the arrays by model, models last
PATTERN_ARRAYS = ("indptr", "indices")
SHARED_FIELDS = (
    "allowed",
    "has_next_rewards",
    "initial_given",
    "discount",
    "horizon",
    "allow_missing",
    "states",
    "actions",
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
    write_all_atomic(files, stale=[file for file in find_shard_files(target) if file not in files])


def load_shards(files: Sequence[Path], shard: tuple[int, int] | None) -> MMDP:
    """Load the models of all files, or of shard i of n, given as (i, n)."""
    headers: list[ArrayMapping] = []
    for file in files:
        headers.append(_read_small_arrays(file, headers[0] if headers else {}))
    _check_shards_agree(files, headers)
    if any("model_transitions" in header for header in headers):
        raise InputError(
            f"{files[0].parent}: models that switch cannot be divided into shards; use one file"
        )
    weights = np.concatenate([header["weights"] * header["total_weight"] for header in headers])
    local_shard = None if shard is None else Shard.parse(shard, len(weights))
    local_models = slice(0, len(weights)) if local_shard is None else local_shard.local_models
    arrays = {**headers[0], **_concatenate_fields(headers), "weights": weights / weights.sum()}
    arrays["initial"] = _concatenate_initial(headers, local_models)
    arrays["indptr"], arrays["indices"] = _union_patterns(headers)
    n_local, first_model = local_models.stop - local_models.start, 0
    for file, header in zip(files, headers, strict=True):
        n_models = len(header["weights"])
        low = max(local_models.start, first_model)
        high = min(local_models.stop, first_model + n_models)
        if low < high:
            source = slice(low - first_model, high - first_model)
            target = slice(low - local_models.start, high - local_models.start)
            with open_npz(file) as file_arrays:
                _add_models(arrays, n_local, target, file_arrays, header, source)
        first_model += n_models
    return model_from_arrays(arrays, local_shard)


def _add_models(
    arrays: Fields,
    n_models: int,
    target: slice,
    file_arrays: ArrayMapping,
    header: ArrayMapping,
    source: slice,
) -> None:
    """Add the models ``source`` of a file to large arrays, as ``target`` of ``n_models``."""
    entries: slice | AnyArray = slice(None)
    if not all(np.array_equal(header[x], arrays[x]) for x in PATTERN_ARRAYS):
        union_pattern = _make_pattern({**header, **{x: arrays[x] for x in PATTERN_ARRAYS}})
        entries = np.searchsorted(union_pattern.flat_indices, _make_pattern(header).flat_indices)
    for name in LARGE_ARRAYS if arrays["has_next_rewards"] else LARGE_ARRAYS[:-1]:
        values, is_on_pattern = file_arrays[name], name in ("p", "next_rewards")
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
            if is_on_pattern and shape[1] != values.shape[1]:
                arrays[name][:] = 0.0
        if is_on_pattern:
            arrays[name][:, entries, target] = values[..., source]
        else:
            arrays[name][..., target] = values[..., source]


def _make_pattern(header: ArrayMapping) -> SparseTransitions:
    """Make the sparsity pattern of a file, without values."""
    shape = (len(header["weights"]), *header["allowed"].shape)
    is_dense = bool(header["is_dense"])
    return SparseTransitions(shape, header["indptr"], header["indices"], np.empty(0), is_dense)


def _union_patterns(
    headers: Sequence[ArrayMapping],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Compute indptr and indices of the union of the sparsity patterns."""
    first_header = headers[0]
    is_same = all(
        np.array_equal(header[name], first_header[name])
        for header in headers
        for name in PATTERN_ARRAYS
    )
    if is_same:
        return first_header["indptr"], first_header["indices"]
    keys = np.unique(np.concatenate([_make_pattern(header).flat_indices for header in headers]))
    union = SparseTransitions.from_flat_indices(
        _make_pattern(first_header).shape, keys, np.empty(0)
    )
    return union.indptr, union.indices


def _concatenate_fields(headers: Sequence[ArrayMapping]) -> Fields:
    """Concatenate the fields by model, and whether the pattern is dense."""
    fields = {
        name: np.concatenate([header[name] for header in headers])
        for name in headers[0]
        if name.startswith("parameter_") and not name.endswith("_name")
    }
    if all("models" in header for header in headers):
        fields["models"] = np.concatenate([header["models"] for header in headers])
    return {**fields, "is_dense": all(bool(header["is_dense"]) for header in headers)}


def _concatenate_initial(headers: Sequence[ArrayMapping], local_models: slice) -> AnyArray:
    """Join initial distributions: (S,), or (M, S) of the local models if files differ."""
    first_initial = headers[0]["initial"]
    if first_initial.ndim == 1 and all(
        np.array_equal(header["initial"], first_initial) for header in headers
    ):
        return first_initial
    shapes = [(len(header["weights"]), first_initial.shape[-1]) for header in headers]
    rows = [np.broadcast_to(x["initial"], shape) for x, shape in zip(headers, shapes, strict=True)]
    return np.concatenate(rows)[local_models]


def _check_shards_agree(files: Sequence[Path], headers: Sequence[ArrayMapping]) -> None:
    """Refuse files whose shared fields differ."""
    names = [*SHARED_FIELDS, *(name for name in headers[0] if name.startswith("parameter_"))]
    for file, header in zip(files, headers, strict=True):
        for name in names:
            is_per_model = name.startswith("parameter_") and not name.endswith("_name")
            value, expected = (np.asarray(x.get(name)) for x in (header, headers[0]))
            if not (name in header if is_per_model else np.array_equal(value, expected)):
                raise InputError(
                    f"{file}: {name.replace('_', ' ')} differ from those of {files[0].name}; "
                    "save the shards again from one model"
                )


def _read_small_arrays(file: Path, first_header: ArrayMapping) -> ArrayMapping:
    """Read the small arrays of a file, and whether it has rewards by next state.

    Arrays that are equal to those of the first file are held once.
    """
    with open_npz(file) as file_arrays:
        header = {name: file_arrays[name] for name in file_arrays if name not in LARGE_ARRAYS}
        has_next_rewards = "next_rewards" in file_arrays
    if str(header.get("format")) != MODEL_FORMAT:
        TableSource(file).fail(
            "not a model saved by this version of mmdp; save shards with mmdp.io.save_shards"
        )
    header |= {
        k: first_header[k]
        for k, v in header.items()
        if k in first_header and np.array_equal(v, first_header[k])
    }
    return {
        "total_weight": len(header["weights"]),
        **header,
        "has_next_rewards": has_next_rewards,
    }
