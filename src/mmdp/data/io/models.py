"""load() and save(): models in all formats, chosen by the suffix of the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mmdp.core.arguments import Unchecked, check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.problem import Shard
from mmdp.core.model import MMDP
from mmdp.core.text import join_first
from mmdp.core.transitions import StorageOption
from mmdp.core.validate import check_not_sharded
from mmdp.data.io.columns import frame_to_columns, read_csv_columns
from mmdp.data.io.folders import (
    read_evidence,
    read_parameters,
    read_sidecars,
    save_csv,
    save_folder,
)
from mmdp.data.io.ids import encode_transitions
from mmdp.data.io.memdp import read_memdp_columns
from mmdp.data.io.npz import convert_storage, load_npz, save_npz
from mmdp.data.io.options import (
    DeadEnds,
    Duplicates,
    ExtraColumns,
    IdGaps,
    LoadOptions,
    MissingActions,
)
from mmdp.data.io.parquet import load_parquet, save_parquet
from mmdp.data.io.pomdp import load_pomdp
from mmdp.data.io.pomdpx import load_pomdpx
from mmdp.data.io.reading import TableSource
from mmdp.data.io.shards import find_shard_files, load_shards
from mmdp.data.io.tables import build_model
from mmdp.data.io.writing import PathLike, as_path, write_atomic

SPLIT_STEMS = {"train": "training", "test": "test", "true": "true"}
POMDP_LOADERS = {".pomdp": load_pomdp, ".pomdpx": load_pomdpx}
MODEL_SUFFIXES = (".csv", ".parquet", ".npz", *POMDP_LOADERS, ".transitions")


@check_arguments
def load(
    path: PathLike,
    *,
    split: str = "train",
    shard: tuple[int, int] | None = None,
    compat: str | None = None,
    duplicates: Duplicates = "error",
    normalize: bool = False,
    missing_actions: MissingActions = "error",
    dead_ends: DeadEnds = "error",
    id_gaps: IdGaps = "error",
    extra_columns: ExtraColumns = "error",
    storage: StorageOption = "auto",
    sidecars: bool = True,
    discount: float | None = None,
    initial: npt.ArrayLike | Mapping[Any, float] | None = None,
    weights: npt.ArrayLike | Mapping[Any, float] | None = None,
    name: str | None = None,
) -> MMDP:
    """Read a model from a folder, a table, ``.npz``, or a file of another tool.

    Parameters
    ----------
    path
        A folder means its ``training.csv`` (else ``training.parquet``, else ``model.npz``, else
        its shards ``part-*.npz`` or ``part-*.parquet``, see :func:`mmdp.io.save_shards`); a
        file is read by its suffix: ``.csv``, ``.parquet``, ``.npz``, ``.pomdpx``, ``.pomdp`` or
        ``.transitions``. :mod:`mmdp.io` says which files are read along with it.
    split
        ``"test"`` reads ``test.csv`` (or ``test.parquet``) of a folder, ``"true"`` its
        ``true.csv``. Only for folders: with a file it is an error.
    shard
        ``(i, n)``: shard i of n of the models, for one of n processes (see
        :mod:`mmdp.distributed`). Of a folder of shards only the files of these models are read.
    compat
        ``"cadp"`` behaves like the code published with the paper: the last duplicate wins, any
        positive row is normalized, an action missing in some model contributes 0 there, a
        state without actions contributes 0, extra columns are ignored. ``"memdp"`` and ``"reca"``
        choose the layout of ``.transitions`` files if it is ambiguous (see :mod:`mmdp.io`).
    duplicates
        Two rows for the same transition: an error, the ``"last"`` one wins, or their
        probabilities ``"sum"`` (the reward is their mean weighted by probability).
    normalize
        Divide every row of positive sum by its sum, and so the weights and the initial
        distribution in the sidecar files of a table.
    missing_actions
        ``"zero"``: an action that some models lack ends the episode there and earns 0.
    dead_ends
        ``"absorb"``: a state without any action gets action 0, which stays there and earns 0.
    id_gaps
        ``"relabel"``: number the ids that occur from 0, and keep the old ids as labels.
    extra_columns
        ``"ignore"``: skip unknown columns and parameters.
    storage
        ``"auto"`` (by density), ``"dense"`` or ``"sparse"``.
    sidecars
        False: do not read the sidecar files next to a table.
    discount, initial, weights, name
        Replace fields of the files; ``initial`` and ``weights`` may map labels to numbers.

    >>> import tempfile, pathlib, mmdp
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> rows = "idstatefrom,idaction,idstateto,idoutcome,probability,reward"
    >>> _ = (folder / "training.csv").write_text(rows + "\\n0,0,0,0,1,5\\n0,0,0,1,1,7\\n")
    >>> mmdp.load(folder, discount=0.9).rewards.tolist()
    [[[5.0]], [[7.0]]]
    """
    options = LoadOptions.from_arguments(
        compat,
        duplicates=duplicates,
        normalize=normalize,
        missing_actions=missing_actions,
        dead_ends=dead_ends,
        id_gaps=id_gaps,
        extra_columns=extra_columns,
        storage=storage,
    )
    target = as_path(path)
    files = _find_files(target, split)
    fields = {"discount": discount, "initial": initial, "weights": weights, "name": name}
    overrides = {key: value for key, value in fields.items() if value is not None}
    file, suffix = files[0], files[0].suffix.lower()
    if options.layout != "auto" and suffix != ".transitions":
        raise InputError(
            f"{file}: compat={options.layout!r} is for .transitions files; leave it out"
        )
    if len(files) > 1:
        model = load_shards(files, shard, lambda file: _load_table(file, options, {}, sidecars))
    elif suffix == ".npz":
        model = load_npz(file)
    elif suffix in POMDP_LOADERS:
        model, overrides = (
            POMDP_LOADERS[suffix](file, options).to_mmdp(overrides, TableSource(file), options),
            {},
        )
    else:
        model, overrides = _load_table(file, options, overrides, sidecars), {}
        model = model.with_evidence(read_evidence(file.parent, model) if sidecars else None)
    model = convert_storage(model, storage, TableSource(target))
    if len(files) == 1 and shard is not None and Shard.parse(shard, model.n_models) is not None:
        model = model.take_shard(*shard)
    return model.replace(**overrides) if overrides else model


def _load_table(
    file: Path, options: LoadOptions, overrides: Mapping[str, Any], sidecars: bool
) -> MMDP:
    """Load a model from a table (.csv, .parquet or .transitions)."""
    source, metadata = TableSource(file), None
    extra_fields: dict[str, Any] = {}
    if file.suffix.lower() == ".csv":
        columns = read_csv_columns(file, options)
    elif file.suffix.lower() == ".transitions":
        columns, source, extra_fields = read_memdp_columns(file, options.layout)
    else:
        frame, metadata = load_parquet(file)
        columns = frame_to_columns(frame, source, options)
    metadata = metadata or (None if sidecars else ({}, {}))
    fields, sizes = metadata or read_parameters(file, options)
    encoded = encode_transitions(columns, source, options, fields, sizes)
    if metadata is None:
        fields |= read_sidecars(file, encoded, options)
    given_fields = {name: value for name, value in fields.items() if value is not None}
    return build_model(encoded, {**extra_fields, **given_fields, **overrides}, source, options)


def _find_files(path: Path, split: str) -> list[Path]:
    """Find the file with the transitions, or the files of a folder of shards."""
    if split not in SPLIT_STEMS:
        raise InputError(f"split must be 'train', 'test' or 'true', not {split!r}")
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
    if path.suffix.lower() == ".rewards":
        raise InputError(f"{path}: belongs to {path.stem}.transitions; name that file")
    if path.suffix.lower() not in MODEL_SUFFIXES:
        raise InputError(
            f"{path}: unknown suffix {path.suffix!r}; known are {', '.join(MODEL_SUFFIXES)}"
        )
    return [path]


@check_arguments
def save(model: Unchecked[MMDP], path: PathLike, *, split: str = "train") -> None:
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
    if split not in ("train", "test"):
        raise InputError(f"split must be 'train' or 'test', not {split!r}")
    check_not_sharded(model.problem, "a file")
    target = Path(path)
    if target.suffix.lower() == ".csv":
        save_csv(model, target)
    elif target.is_dir() or not target.suffix:
        save_folder(model, target, f"{SPLIT_STEMS[split]}.csv")
    elif target.suffix.lower() == ".npz":
        write_atomic(target, lambda file: save_npz(model, file))
    elif target.suffix.lower() == ".parquet":
        write_atomic(target, lambda file: save_parquet(model, file))
    else:
        raise InputError(
            f"{target}: unknown suffix {target.suffix!r}; write .npz, .parquet, .csv or a folder"
        )
