"""load() and save(): a model in any of the formats, chosen by the name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mmdp.arguments import Read, checked
from mmdp.errors import InputError, Remedy
from mmdp.io.blocks import columns_of_blocks
from mmdp.io.columns import columns_of_csv, columns_of_frame
from mmdp.io.folders import read_evidence, read_parameters, read_sides, save_csv, save_folder
from mmdp.io.ids import encode
from mmdp.io.npz import load_npz, save_npz, stored_as
from mmdp.io.parquet import load_parquet, save_parquet
from mmdp.io.parts import load_parts, part_files
from mmdp.io.pomdp import load_pomdp
from mmdp.io.pomdpx import load_pomdpx
from mmdp.io.reading import Source
from mmdp.io.rules import DeadEnds, Duplicates, ExtraColumns, IdGaps, MissingActions, Rules
from mmdp.io.tables import assemble
from mmdp.io.writing import PathLike, as_path, settle, write_whole
from mmdp.kernels.problem import Part
from mmdp.model import MMDP
from mmdp.support import Storage
from mmdp.validate import check_whole_model
from mmdp.words import some

SPLITS = {"train": "training", "test": "test", "true": "true"}
POMDPS = {".pomdp": load_pomdp, ".pomdpx": load_pomdpx}
SUFFIXES = (".csv", ".parquet", ".npz", *POMDPS, ".transitions")


@checked
def load(
    path: PathLike,
    *,
    split: str = "train",
    part: tuple[int, int] | None = None,
    compat: str | None = None,
    duplicates: Duplicates = "error",
    normalize: bool = False,
    missing_actions: MissingActions = "error",
    dead_ends: DeadEnds = "error",
    id_gaps: IdGaps = "error",
    extra_columns: ExtraColumns = "error",
    storage: Storage = "auto",
    sides: bool = True,
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
        its parts ``part-*.npz`` or ``part-*.parquet``, see :func:`mmdp.io.save_parts`); a
        file is read by its suffix: ``.csv``, ``.parquet``, ``.npz``, ``.pomdpx``, ``.pomdp`` or
        ``.transitions``. :mod:`mmdp.io` says which files are read along with it.
    split
        ``"test"`` reads ``test.csv`` (or ``test.parquet``) of a folder, ``"true"`` its
        ``true.csv``. Only for folders: with a file it is an error.
    part
        ``(i, n)``: part i of n of the models, for one of n processes (see :mod:`mmdp.hosts`).
        Of a folder of parts only the files that hold these models are read.
    compat
        ``"cadp"`` behaves like the code published with the paper: the last duplicate wins, any
        positive row is normalised, an action missing in some model contributes 0 there, a
        state without actions contributes 0, extra columns are ignored. ``"memdp"`` and ``"reca"``
        say how ``.transitions`` files are meant if that is not clear (see :mod:`mmdp.io`).
    duplicates
        Two rows for the same transition: an error, the ``"last"`` one wins, or their
        probabilities ``"sum"`` (the reward is their mean weighted by probability).
    normalize
        Divide every row of positive sum by its sum, and so the weights and the initial
        distribution in the small files of a table.
    missing_actions
        ``"zero"``: an action that some models lack ends the episode there with nothing.
    dead_ends
        ``"absorb"``: a state without any action gets action 0, which stays there and earns 0.
    id_gaps
        ``"relabel"``: number the ids that occur from 0, and keep the old ids as labels.
    extra_columns
        ``"ignore"``: skip unknown columns and parameters.
    storage
        ``"auto"`` (by density), ``"dense"`` or ``"sparse"``.
    sides
        False: do not read the small files next to a table.
    discount, initial, weights, name
        Replace what the files say; ``initial`` and ``weights`` may map labels to numbers.

    >>> import tempfile, pathlib, mmdp
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> rows = "idstatefrom,idaction,idstateto,idoutcome,probability,reward"
    >>> _ = (folder / "training.csv").write_text(rows + "\\n0,0,0,0,1,5\\n0,0,0,1,1,7\\n")
    >>> mmdp.load(folder, discount=0.9).rewards.tolist()
    [[[5.0]], [[7.0]]]
    """
    rules = Rules.read(
        compat, duplicates=duplicates, normalize=normalize, missing_actions=missing_actions,
        dead_ends=dead_ends, id_gaps=id_gaps, extra_columns=extra_columns, storage=storage,
    )  # fmt: skip
    target = as_path(path)
    settle(target if target.is_dir() else target.parent)
    files = _find_files(target, split)
    fields = {"discount": discount, "initial": initial, "weights": weights, "name": name}
    given = {key: value for key, value in fields.items() if value is not None}
    file, kind = files[0], files[0].suffix.lower()
    if rules.layout != "auto" and kind != ".transitions":
        raise InputError(f"{file}: compat={rules.layout!r} is for .transitions files; leave it out")
    if len(files) > 1:
        model = load_parts(files, part, lambda file: _load_table(file, rules, {}, sides))
    elif kind == ".npz":
        model = load_npz(file)
    elif kind in POMDPS:
        model, given = POMDPS[kind](file, rules).model(given, Source(file), rules), {}
    else:
        model, given = _load_table(file, rules, given, sides), {}
        model = model.with_evidence(read_evidence(file.parent, model) if sides else None)
    model = stored_as(model, storage, Source(target))
    if len(files) == 1 and part is not None and Part.read(part, model.n_models) is not None:
        model = model.take_part(*part)
    return model.replace(**given) if given else model


def _load_table(file: Path, rules: Rules, given: Mapping[str, Any], sides: bool) -> MMDP:
    source, stored = Source(file), None
    written: dict[str, Any] = {}
    if file.suffix.lower() == ".csv":
        raw = columns_of_csv(file, rules)
    elif file.suffix.lower() == ".transitions":
        raw, source, written = columns_of_blocks(file, rules.layout)
    else:
        frame, stored = load_parquet(file)
        raw = columns_of_frame(frame, source, rules)
    stored = stored or (None if sides else ({}, {}))
    fields, sizes = stored or read_parameters(file, rules)
    ids = encode(raw, source, rules, fields, sizes)
    if stored is None:
        fields |= read_sides(file, ids, rules)
    said = {name: value for name, value in fields.items() if value is not None}
    return assemble(ids, {**written, **said, **given}, source, rules)


def _find_files(path: Path, split: str) -> list[Path]:
    """The one file that holds the transitions, or the files of a folder of parts."""
    if split not in SPLITS:
        raise InputError(f"split must be 'train', 'test' or 'true', not {split!r}")
    if path.is_dir():
        stem = SPLITS[split]
        names = [f"{stem}.csv", f"{stem}.parquet"] + (["model.npz"] if split == "train" else [])
        for name in names:
            if (path / name).is_file():
                return [path / name]
        if split == "train" and (parts := part_files(path)):
            return parts
        known = sorted(
            x.name for x in path.iterdir() if x.suffix.lower() in (".csv", ".parquet", ".npz")
        )
        there = f"it has {some(known)}" if known else "it has no data file"
        raise InputError(f"{path}: no {names[0]} in this folder ({there}); name the file to read")
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; check the path")
    if split != "train":
        raise InputError(
            f"{path}: is a file, but {split!r} names one of the files of a folder",
            ["give its folder", Remedy("split", do="leave out")],
        )
    if path.suffix.lower() == ".rewards":
        raise InputError(f"{path}: belongs to {path.stem}.transitions; name that file")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: unknown suffix {path.suffix!r}; known are {', '.join(SUFFIXES)}")
    return [path]


@checked
def save(model: Read[MMDP], path: PathLike, *, split: str = "train") -> None:
    """Write a model so that :func:`load` gives it back.

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
            f"save() writes an MMDP, not {type(model).__name__}; for policies and solutions there "
            "is save_policy()"
        )
    if split not in ("train", "test"):
        raise InputError(f"split must be 'train' or 'test', not {split!r}")
    check_whole_model(model.problem, "a file")
    target = Path(path)
    if target.suffix.lower() == ".csv":
        save_csv(model, target)
    elif target.is_dir() or not target.suffix:
        save_folder(model, target, f"{SPLITS[split]}.csv")
    elif target.suffix.lower() == ".npz":
        write_whole(target, lambda file: save_npz(model, file))
    elif target.suffix.lower() == ".parquet":
        write_whole(target, lambda file: save_parquet(model, file))
    else:
        raise InputError(
            f"{target}: unknown suffix {target.suffix!r}; write .npz, .parquet, .csv or a folder"
        )
