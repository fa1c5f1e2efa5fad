"""load() and save(): models in all formats, chosen by the suffix of the file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from mmdp.core.arguments import StateText, Unchecked, check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.problem import Shard
from mmdp.core.model import MMDP
from mmdp.core.text import join_first
from mmdp.core.transitions import StorageOption
from mmdp.core.validate import ModelFields, check_not_sharded
from mmdp.data.io.folders import (
    read_evidence,
    read_parameters,
    read_sidecars,
    save_csv,
    save_folder,
)
from mmdp.data.io.npz import (
    MODEL_FORMAT,
    fields_to_json_types,
    find_shard_files,
    load_npz,
    load_shards,
    save_npz,
)
from mmdp.data.io.pomdp import load_pomdp
from mmdp.data.io.pomdpx import load_pomdpx
from mmdp.data.io.reading import read_parquet, write_parquet
from mmdp.data.io.tables import (
    Compatibility,
    DeadEnds,
    Duplicates,
    ExtraColumns,
    LoadOptions,
    MissingActions,
    build_model,
    convert_storage,
    encode_transitions,
    frame_to_table,
    read_csv_table,
    to_frame,
)
from mmdp.data.io.writing import PathLike, as_path, get_suffix, write_atomic
from mmdp.data.schema import AXIS_ROLES, Fields, Table, TableSource, ValuesByLabel

Split = Literal["train", "test", "true"]
SPLIT_STEMS: dict[Split, str] = {"train": "training", "test": "test", "true": "true"}


@check_arguments
def load(
    path: PathLike,
    *,
    split: Split = "train",
    shard: tuple[int, int] | None = None,
    compat: Compatibility | None = None,
    duplicates: Duplicates = "error",
    normalize: bool = False,
    missing_actions: MissingActions = "error",
    dead_ends: DeadEnds = "error",
    extra_columns: ExtraColumns = "error",
    storage: StorageOption = "auto",
    sidecars: bool = True,
    discount: float | None = None,
    initial: StateText | ValuesByLabel | None = None,
    weights: ValuesByLabel | None = None,
    name: str | None = None,
) -> MMDP:
    """Read a model from a folder, a table, ``.npz``, or a file of another tool.

    Parameters
    ----------
    path
        A folder means its ``training.csv`` (else ``training.parquet``, else ``model.npz``, else
        its shards ``part-*.npz``, see :func:`mmdp.io.save_shards`); a
        file is read by its suffix: ``.csv``, ``.parquet``, ``.npz``, ``.pomdpx`` or ``.pomdp``.
        :mod:`mmdp.io` says which files are read along with it.
    split
        Which models of a folder to read. ``"test"`` reads its ``test.csv`` (or ``test.parquet``),
        ``"true"`` its ``true.csv``. Only for folders: with a file it is an error.
    shard
        ``(i, n)``: shard i of n of the models, for one of n processes (see
        :mod:`mmdp.distributed`). Of a folder of shards only the files of these models are read.
    compat
        Read as the code published with the paper does (``"cadp"``): the last duplicate wins, any
        positive row is normalized, an action missing in some model contributes 0 there, a state
        without actions contributes 0, and extra columns are ignored.
    duplicates
        Of two rows for the same transition the ``"last"`` one wins, or their probabilities
        ``"sum"``; by default they are an error. The reward of a sum is the mean weighted by
        probability.
    normalize
        Divide every row of positive sum by its sum, and so the weights and the initial
        distribution in the sidecar files of a table.
    missing_actions
        An action that some models lack ends the episode there and earns 0 (``"zero"``).
    dead_ends
        A state without any action gets action 0, which stays there and earns 0 (``"absorb"``).
    extra_columns
        Skip unknown columns and parameters (``"ignore"``).
    storage
        ``"auto"`` (by density), ``"dense"`` or ``"sparse"``.
    sidecars
        Whether to read the sidecar files next to a table, such as ``initial.csv``.
    discount
        Discount factor per step; replaces that of the file.
    initial
        The first state, or the probabilities of several; replaces that of the file. An array, a
        mapping from labels, or text such as ``"up"`` or ``"up=0.5,down=0.5"``.
    weights, name
        Replace fields of the file; ``weights`` may map labels to numbers.

    >>> import tempfile, pathlib, mmdp
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> rows = "idstatefrom,idaction,idstateto,idoutcome,probability,reward"
    >>> _ = (folder / "training.csv").write_text(rows + "\\n0,0,0,0,1,5\\n0,0,0,1,1,7\\n")
    >>> mmdp.load(folder, discount=0.9).rewards.tolist()
    [[[5.0]], [[7.0]]]
    """
    options = LoadOptions(
        duplicates, normalize, missing_actions, dead_ends, extra_columns, storage, sidecars
    ).with_compatibility(compat)
    target = as_path(path)
    files = _find_files(target, split)
    if len(files) > 1:
        model = load_shards(files, shard)
    else:
        model = LOADERS[files[0].suffix.lower()](files[0], options)
    model = convert_storage(model, storage, TableSource(target))
    if len(files) == 1 and shard is not None and Shard.parse(shard, model.n_models) is not None:
        model = model.take_shard(*shard)
    fields = {"discount": discount, "initial": initial, "weights": weights, "name": name}
    overrides = {key: value for key, value in fields.items() if value is not None}
    return model.replace(**overrides) if overrides else model


def table_to_model(table: Table, fields: Fields | None, options: LoadOptions) -> MMDP:
    """Build a model from a table and its other fields; None: these are in sidecar files."""
    file = Path(table.source.location)
    has_sidecars = options.sidecars and fields is None
    fields = read_parameters(file, options) if has_sidecars else fields or {}
    encoded = encode_transitions(table, fields)
    if has_sidecars:
        fields |= read_sidecars(file, encoded, options)
    model = build_model(encoded, fields, options)
    return model.with_evidence(read_evidence(file.parent, model) if options.sidecars else None)


def load_parquet(path: Path, options: LoadOptions) -> MMDP:
    """Load a model from a Parquet file: the fields are in its metadata or in sidecar files."""
    frame, metadata = read_parquet(path)
    table = frame_to_table(frame, TableSource(path), options)
    is_model = isinstance(metadata, dict) and metadata.get("format") == MODEL_FORMAT
    fields = metadata.get("fields") if is_model else None
    is_valid = isinstance(fields, dict) and {*ModelFields._fields}.issuperset(fields)
    if metadata is not None and not is_valid:
        table.source.fail(
            "its metadata is not that of a model of this version of mmdp; load policies with "
            "load_policy(), and save models again with mmdp.save"
        )
    return table_to_model(table, fields, options)


def save_parquet(model: MMDP, path: Path) -> None:
    """Write a model as a tidy table with its other fields in the metadata."""
    metadata = {"format": MODEL_FORMAT, "fields": make_table_fields(model)}
    write_parquet(to_frame(model), metadata, path)


def make_table_fields(model: MMDP) -> Fields:
    """Make the fields that belong to :func:`to_frame`, of JSON types."""
    axes = {f"{axis}s": model.label_index(axis) for axis in AXIS_ROLES}
    fields = {
        **fields_to_json_types(model),
        **{name: index.labels or index.size for name, index in axes.items()},
        "terminal": model.terminal if model.terminal.any() else None,
        "allowed": None,  # an action is allowed if the table has a row for it
    }
    return {k: x.tolist() if isinstance(x, np.ndarray) else x for k, x in fields.items()}


# by suffix: functions of a path and the options to a model, and of a model and a path to a file
LOADERS: dict[str, Callable[[Path, LoadOptions], MMDP]] = {
    ".csv": lambda file, options: table_to_model(read_csv_table(file, options), None, options),
    ".parquet": load_parquet,
    ".npz": lambda file, _: load_npz(file),
    ".pomdp": load_pomdp,
    ".pomdpx": load_pomdpx,
}
WRITERS: dict[str, Callable[[MMDP, Path], object]] = {".npz": save_npz, ".parquet": save_parquet}


def _find_files(path: Path, split: Split) -> list[Path]:
    """Find the file with the transitions, or the files of a folder of shards."""
    file, _, name = str(path).partition(":")
    if file.endswith(".py"):
        import_text = f"from {Path(file).stem} import {name or 'model'}"
        raise InputError(f"{path}: this is Python, not a file of models; import it: {import_text}")
    if path.is_dir():
        stem = SPLIT_STEMS[split]
        names = [f"{stem}.csv", f"{stem}.parquet"] + (["model.npz"] if split == "train" else [])
        for name in names:
            if (path / name).is_file():
                return [path / name]
        if split == "train" and (shard_files := find_shard_files(path)):
            return shard_files
        data_files = sorted(
            x.name for x in path.iterdir() if x.suffix.lower() in (".csv", ".parquet", ".npz")
        )
        contents = f"it has {join_first(data_files)}" if data_files else "it has no data file"
        raise InputError(
            f"{path}: no {names[0]} in this folder ({contents}); name the file to read"
        )
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; check the path")
    if split != "train":
        raise InputError(
            f"{path}: is a file, but {split!r} names one of the files of a folder",
            ["give its folder", Remedy("split", verb="leave out")],
        )
    get_suffix(path, LOADERS)
    return [path]


@check_arguments
def save(
    model: Unchecked[MMDP], path: PathLike, *, split: Literal["train", "test"] = "train"
) -> None:
    """Write a model to a file or folder that :func:`load` reads.

    ``.npz`` keeps every array as it is in memory and is the fastest; ``.parquet`` is one tidy
    table with the other fields in its metadata; ``.csv`` or a folder is the paper's format:
    ``training.csv`` (``test.csv`` with ``split="test"``) with ``initial.csv`` and
    ``parameters.csv``, and ``weights.csv``, ``terminal.csv``, ``labels.csv``, ``draws.csv`` and
    ``times.csv`` only if the model has them (labels that repeat the ids do not count). Files about
    a table of another name carry its name (``test_weights.csv``); one that would repeat a plain
    file is not written. Numbers keep all their digits. Either all files are written or none.

    >>> import tempfile, pathlib, mmdp
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> one = mmdp.MMDP([[[[1.0]]]], [[2.0]], initial=[1.0], discount=0.9)
    >>> mmdp.save(one, folder)
    >>> sorted(file.name for file in folder.iterdir())
    ['initial.csv', 'parameters.csv', 'training.csv']
    >>> print((folder / "training.csv").read_text().strip())
    idstatefrom,idaction,idstateto,idoutcome,probability,reward
    0,0,0,0,1.0,2.0
    """
    if not isinstance(model, MMDP):
        raise InputError(
            f"save() writes an MMDP, not {type(model).__name__}; write policies and solutions with "
            "save_policy()"
        )
    check_not_sharded(model.problem, "a file")
    target = Path(path)
    if target.suffix.lower() == ".csv":
        save_csv(model, target)
    elif target.is_dir() or not target.suffix:
        save_folder(model, target, f"{SPLIT_STEMS[split]}.csv")
    else:
        suffix = get_suffix(target, WRITERS, "write .csv, a folder or")
        write_atomic(target, partial(WRITERS[suffix], model))
