"""A folder of parts: ``part-*.npz`` or ``part-*.parquet``, each with some of the models.

Every file is a model as :func:`mmdp.save` writes it; in the order of their names they are one
model. They have the same states, actions and discount. Models of different files weigh the same
unless the files say how much each of them weighs, as :func:`save_parts` does.

Parts are read one after the other straight into the arrays of the whole, so that loading takes
little more memory than the result and one part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.arguments import checked
from mmdp.errors import InputError, Remedy
from mmdp.io.npz import FORMAT, arrays_of, from_arrays, opened, save_npz
from mmdp.io.parquet import read_parquet, save_parquet
from mmdp.io.reading import Source
from mmdp.io.writing import PathLike, write_all
from mmdp.kernels.problem import Part, aligned
from mmdp.model import MMDP
from mmdp.support import Support, check_memory
from mmdp.validate import check_whole, check_whole_model
from mmdp.words import counted

LARGE = ("p", "r", "terminal", "next_rewards")  # the arrays by model, models last
SAME = ("allowed", "initial_given", "discount", "horizon", "allow_missing", "states",
        "actions")  # fmt: skip
Arrays = Mapping[str, Any]
ReadTable = Callable[[Path], MMDP]


def part_files(folder: Path) -> list[Path]:
    """The files of a folder of parts, in order; none if it is another folder."""
    found = [sorted(folder.glob(f"part-*{suffix}")) for suffix in (".npz", ".parquet")]
    return found[0] or found[1]


@checked
def save_parts(model: MMDP, folder: PathLike, parts: int, *, suffix: str = ".npz") -> None:
    """Write the models as a folder of ``parts`` files, which :func:`mmdp.load` reads.

    ``suffix`` is ``".npz"``, the fastest to read, or ``".parquet"``. All files are written or
    none; parts that the folder held before are replaced.

    >>> import tempfile, pathlib, mmdp
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> mmdp.io.save_parts(mmdp.MMDP([[[[1.0]]]] * 5, [[2.0]]), folder, 2)
    >>> [file.name for file in sorted(folder.iterdir())], mmdp.load(folder).n_models
    (['part-00000.npz', 'part-00001.npz'], 5)
    """
    check_whole(parts, "parts")
    check_whole_model(model.problem, "a folder of parts")
    if model.drifts:
        raise InputError("models that change cannot be divided into parts; save them as one .npz")
    if model.storage == "events":
        raise InputError("shared events are not divided into parts; save them as one .npz")
    if suffix not in (".npz", ".parquet"):
        raise InputError(f"parts are written as .npz or .parquet, not {suffix!r}")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)

    def write(i: int, place: Path) -> None:
        here = Part(i, parts, model.n_models).models_here
        some, share = model.subset(here), float(model.weights[here].sum())
        if suffix == ".npz":
            save_npz(some, place, share=share)
        else:
            save_parquet(some, place, share=share)

    Part.read((0, parts), model.n_models)
    files = {target / f"part-{i:05}{suffix}": partial(write, i) for i in range(parts)}
    write_all(files, stale=[file for file in part_files(target) if file not in files])


def load_parts(files: Sequence[Path], part: Any, read_table: ReadTable) -> MMDP:
    """The model of all files, or (i, n): part i of n of its models."""
    heads: list[Arrays] = []
    for file in files:
        heads.append(_head(file, read_table, heads[0] if heads else {}))
    _check_same(files, heads)
    if any("drift" in head for head in heads):
        raise InputError(f"{files[0].parent}: models that change cannot be divided into parts")
    weights = np.concatenate([head["weights"] * head["share"] for head in heads])
    chosen = None if part is None else Part.read(part, len(weights))
    here = slice(0, len(weights)) if chosen is None else chosen.models_here
    arrays = {**heads[0], **_joined_fields(heads), "weights": weights / weights.sum()}
    arrays["initial"] = _initial(heads, here)
    indptr, indices = arrays["indptr"], arrays["indices"] = _pattern(heads)
    pieces = _Pieces(here, indptr, indices, any(head["per_next"] for head in heads))
    first = 0
    for file, head in zip(files, heads, strict=True):
        last = first + len(head["weights"])
        if first < here.stop and here.start < last:
            with _opened(file, read_table) as stored:
                pieces.add(stored, head, first)
        first = last
    return from_arrays({**arrays, **pieces.arrays}, chosen)


class _Pieces:
    """The large arrays of the models ``here``, filled file by file."""

    def __init__(self, here: slice, indptr: Any, indices: Any, per_next: bool) -> None:
        self.here, self.indptr, self.indices, self.per_next = here, indptr, indices, per_next
        self.arrays: dict[str, npt.NDArray[Any]] = {}

    def add(self, stored: Arrays, head: Arrays, first: int) -> None:
        """The models of a file whose first is number ``first`` of all."""
        count = len(head["weights"])
        low, high = max(self.here.start, first), min(self.here.stop, first + count)
        cut, to = (slice(low - x, high - x) for x in (first, self.here.start))
        same = np.array_equal(head["indices"], self.indices)
        same = same and np.array_equal(head["indptr"], self.indptr)
        places: Any = slice(None)
        if not same:
            union = _support(head, indptr=self.indptr, indices=self.indices)
            places = np.searchsorted(union.keys, _support(head).keys)
        for name in LARGE if self.per_next else LARGE[:-1]:
            values = _per_next(stored, head) if name == "next_rewards" else stored[name]
            on_pattern = name in ("p", "next_rewards")
            whole = self._whole(name, values, on_pattern)
            if on_pattern:
                whole[:, places, to] = values[..., cut]
            else:
                whole[..., to] = values[..., cut]

    def _whole(self, name: str, values: npt.NDArray[Any], on_pattern: bool) -> npt.NDArray[Any]:
        if name not in self.arrays:
            models = self.here.stop - self.here.start
            shape = [*values.shape[:-1], models]
            if on_pattern:
                shape[1] = len(self.indices)
            check_memory(
                8 * int(np.prod(shape)), f"{name} of {counted(models, 'model')}",
                [Remedy("part", do="load a part in each of several processes with")],
            )  # fmt: skip
            self.arrays[name] = aligned(*shape)
            if on_pattern and shape[1] != values.shape[1]:
                self.arrays[name][:] = 0.0
        return self.arrays[name]


def _per_next(stored: Arrays, head: Arrays) -> Any:
    """Rewards per next state, of a file that has them per state and action too."""
    if head["per_next"]:
        return stored["next_rewards"]
    r = stored["r"]
    return np.repeat(r.reshape(len(r), -1, r.shape[-1]), np.diff(head["indptr"]), axis=1)


def _support(head: Arrays, **other: Any) -> Support:
    """The pattern of a file, or another one of its shape, without values."""
    x = {**head, **other}
    shape = (len(x["weights"]), *x["allowed"].shape)
    return Support(shape, x["indptr"], x["indices"], np.empty(0), bool(x["dense"]))


def _pattern(heads: Sequence[Arrays]) -> tuple[Any, Any]:
    """The union of the patterns."""
    first = heads[0]
    same = all(
        np.array_equal(head[name], first[name]) for head in heads for name in ("indptr", "indices")
    )
    if same:
        return first["indptr"], first["indices"]
    keys = np.unique(np.concatenate([_support(head).keys for head in heads]))
    union = Support.on_keys(_support(first).shape, keys, np.empty(0))
    return union.indptr, union.indices


def _joined_fields(heads: Sequence[Arrays]) -> dict[str, Any]:
    """What there is for every model, and whether the pattern is full."""
    joined = {
        name: np.concatenate([head[name] for head in heads])
        for name in heads[0]
        if name.startswith("parameter_") and not name.endswith("_name")
    }
    if all("models" in head for head in heads):
        joined["models"] = np.concatenate([head["models"] for head in heads])
    return {**joined, "dense": all(bool(head["dense"]) for head in heads)}


def _initial(heads: Sequence[Arrays], here: slice) -> Any:
    """(S,), or (M, S) for the models ``here`` if models begin in different ways."""
    first = heads[0]["initial"]
    if first.ndim == 1 and all(np.array_equal(head["initial"], first) for head in heads):
        return first
    shapes = [(len(head["weights"]), first.shape[-1]) for head in heads]
    rows = [np.broadcast_to(x["initial"], shape) for x, shape in zip(heads, shapes, strict=True)]
    return np.concatenate(rows)[here]


def _check_same(files: Sequence[Path], heads: Sequence[Arrays]) -> None:
    names = [*SAME, *(name for name in heads[0] if name.startswith("parameter_"))]
    for file, head in zip(files, heads, strict=True):
        for name in names:
            by_model = name.startswith("parameter_") and not name.endswith("_name")
            ours, theirs = (np.asarray(x.get(name)) for x in (head, heads[0]))
            if not (name in head if by_model else np.array_equal(ours, theirs)):
                raise InputError(
                    f"{file}: {name.replace('_', ' ')} differ from those of {files[0].name}; "
                    "parts of one model must agree in them"
                )


def _head(file: Path, read_table: ReadTable, first: Arrays) -> Arrays:
    """The small arrays of a file, and ``per_next``: whether it has rewards per next state.

    Arrays that are equal to those of the ``first`` file are held once.
    """
    with _opened(file, read_table) as stored:
        head = {name: stored[name] for name in stored if name not in LARGE}
        per_next = "next_rewards" in stored
    if str(head.get("format")) != FORMAT:
        Source(file).fail("not a model saved by mmdp; save parts with mmdp.io.save_parts")
    head |= {k: first[k] for k, v in head.items() if k in first and np.array_equal(v, first[k])}
    return {"share": len(head["weights"]), **head, "per_next": per_next}


def _opened(file: Path, read_table: ReadTable) -> AbstractContextManager[Arrays]:
    """The arrays of a file by name."""
    if file.suffix.lower() != ".parquet":
        return opened(file)
    stored = read_parquet(file)[1] or {}
    share = {"share": stored["share"]} if "share" in stored else {}
    whole = arrays_of(read_table(file)) | share
    return nullcontext({name: np.asarray(value) for name, value in whole.items()})
