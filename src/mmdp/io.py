"""Files: models as CSV in the paper's columns, Parquet or npz; policies as tables or JSON.

A model's table has one row per transition p^m_t(s' | s, a) with its reward. Two sets of
column names are known:

===========  ===============  ==============================================
meaning      paper's column   tidy column (ids, or labels in any text)
===========  ===============  ==============================================
s            idstatefrom      state
a            idaction         action
s'           idstateto        next_state
m            idoutcome        model (may be left out: one model)
t            idtime           time (may be left out: the same at all times)
p            probability      probability
r            reward           reward
===========  ===============  ==============================================

Ids and times count from 0. Files read beside a table ``NAME.csv`` or ``NAME.parquet``, each as
``NAME_x.csv`` where that exists, else as ``x.csv``:

- ``initial.csv``: ``idstate,probability``; states left out have probability 0.
- ``parameters.csv``: ``parameter,value``. Known are ``discount``; ``actions``, the number of
  actions where some are allowed nowhere; ``allow_missing`` (1: an action may be missing in
  some models).
- ``weights.csv``: ``idoutcome,weight``.
- ``terminal.csv``: ``idstate,value`` or ``idoutcome,idstate,value``; 0 where left out.
- ``labels.csv``: ``kind,id,label`` with kind ``state``, ``action`` or ``model``.
- ``draws.csv``: ``idoutcome`` and one column per uncertain parameter.

``training.csv`` and ``test.csv`` of one folder hold different models, so what the plain files
say about models (weights, draws, labels of models, terminal values by model) is not used for
``test.csv``: that is read from ``test_weights.csv`` and so on. A file with nothing but its
header says "not given". Parquet files that :func:`save` wrote hold all this themselves.

Ids come in the order of the numbers; labels in the order of first appearance (a categorical
column: in the order of its categories), in the ``state`` column before ``next_state``.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import json
import os
import re
import uuid
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.errors import InputError, MemoryLimitError, shown
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy
from mmdp.support import (
    MATERIALISE_LIMIT,
    Array,
    Coordinates,
    Storage,
    Support,
    readable_bytes,
    support_from_coordinates,
)
from mmdp.validate import read_distribution

__all__ = [
    "from_frame", "load", "load_policy", "policy_frame", "save", "save_policy", "to_frame",
    "write_all", "write_whole",
]  # fmt: skip

Ints = npt.NDArray[np.int64]
PathLike = str | os.PathLike[str]
Duplicates = Literal["error", "last", "sum"]
Writer = Callable[[Path], object] | str | bytes

PAPER = {
    "idstatefrom": "state", "idaction": "action", "idstateto": "next_state",
    "idoutcome": "model", "idtime": "time", "probability": "probability", "reward": "reward",
}  # fmt: skip
TIDY = {role: role for role in PAPER.values()}
KINDS = {"state": ("state", "next_state"), "action": ("action",), "model": ("model",)}
LABEL_COLUMNS = ("state", "action", "next_state", "model")
REQUIRED = ("state", "action", "next_state", "probability", "reward")
SPLITS = {"train": "training", "test": "test", "true": "true"}
SIDES = ("initial", "parameters", "weights", "terminal", "labels", "draws")
NPZ_FORMAT = "mmdp-model-1"
POLICY_FORMAT = "mmdp-policy-1"
# pandas 3.1 made its parser exact and deprecated the argument; older defaults lose the last bit
_EXACT: dict[str, Any] = (
    {}
    if tuple(int(x) for x in pd.__version__.split(".")[:2]) >= (3, 1)
    else {"float_precision": "round_trip"}
)


@dataclass(frozen=True)
class _Options:
    """How strict to be; see :func:`load`."""

    duplicates: str = "error"
    normalize: bool = False
    missing_actions: str = "error"
    dead_ends: str = "error"
    id_gaps: str = "error"
    extra_columns: str = "error"
    storage: Storage = "auto"

    @classmethod
    def read(cls, compat: str | None, **given: Any) -> _Options:
        choices = {
            "duplicates": ("error", "last", "sum"), "missing_actions": ("error", "zero"),
            "dead_ends": ("error", "absorb"), "id_gaps": ("error", "relabel"),
            "extra_columns": ("error", "ignore"), "storage": ("auto", "dense", "sparse"),
        }  # fmt: skip
        for name, allowed in choices.items():
            if given[name] not in allowed:
                listed = ", ".join(map(repr, allowed))
                raise InputError(f"{name} must be one of {listed}, not {given[name]!r}")
        if compat not in (None, "cadp"):
            raise InputError(f"compat must be 'cadp' or None, not {compat!r}")
        options = cls(**given)
        if compat == "cadp":
            options = replace(
                options, duplicates="last", normalize=True, missing_actions="zero",
                dead_ends="absorb", extra_columns="ignore",
            )  # fmt: skip
        return options


@dataclass
class _Source:
    """Where rows came from, so that an error can name the place."""

    name: str
    csv_path: Path | None = None

    def at(self, row: int) -> str:
        if self.csv_path is None:
            return f"{self.name}, row {row}"
        return f"{self.name}, line {_line_of(self.csv_path, row)}"

    def fail(self, message: str, row: int | None = None) -> NoReturn:
        raise InputError(f"{self.name if row is None else self.at(row)}: {message}")


@dataclass
class _Extras:
    """What a model has besides its transitions, with ids not yet looked up."""

    fields: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    allow_missing: bool = False
    for_test: bool = False


# ====================================================================== models: reading
def load(
    path: PathLike,
    *,
    split: str = "train",
    compat: str | None = None,
    duplicates: Duplicates = "error",
    normalize: bool = False,
    missing_actions: Literal["error", "zero"] = "error",
    dead_ends: Literal["error", "absorb"] = "error",
    id_gaps: Literal["error", "relabel"] = "error",
    extra_columns: Literal["error", "ignore"] = "error",
    storage: Storage = "auto",
    discount: float | None = None,
    initial: npt.ArrayLike | Mapping[Any, float] | None = None,
    weights: npt.ArrayLike | Mapping[Any, float] | None = None,
    name: str | None = None,
) -> MMDP:
    """Read a model from a folder or from a ``.csv``, ``.parquet`` or ``.npz`` file.

    Parameters
    ----------
    path
        A folder means its ``training.csv`` (else ``training.parquet``, else ``model.npz``); a
        file is read by its suffix. The module's page says which files are read beside it.
    split
        ``"test"`` reads ``test.csv`` (or ``test.parquet``) of a folder, ``"true"`` its
        ``true.csv``. Only for folders.
    compat
        ``"cadp"`` behaves as the code published with the paper: the last duplicate wins, any
        positive row is normalised, an action missing in some model contributes 0 there, a
        state without actions contributes 0, extra columns are ignored.
    duplicates
        Two rows for the same transition: an error, the ``"last"`` one wins, or their
        probabilities ``"sum"`` (the reward is their mean weighted by probability).
    normalize
        Divide every row of positive sum by its sum.
    missing_actions
        ``"zero"``: an action missing in some models ends there with nothing.
    dead_ends
        ``"absorb"``: a state without any action gets action 0, which stays there for nothing.
    id_gaps
        ``"relabel"``: number the ids that occur from 0, and keep the old ids as labels.
    extra_columns
        ``"ignore"``: skip columns and parameters that are not known.
    storage
        ``"auto"`` (by density), ``"dense"`` or ``"sparse"``.
    discount, initial, weights, name
        Replace what the files say; ``initial`` and ``weights`` may map labels to numbers.

    >>> import tempfile, pathlib, mmdp
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> rows = "idstatefrom,idaction,idstateto,idoutcome,probability,reward"
    >>> _ = (folder / "training.csv").write_text(rows + "\\n0,0,0,0,1,5\\n0,0,0,1,1,7\\n")
    >>> mmdp.load(folder, discount=0.9).rewards.tolist()
    [[[5.0]], [[7.0]]]
    """
    options = _Options.read(
        compat, duplicates=duplicates, normalize=normalize, missing_actions=missing_actions,
        dead_ends=dead_ends, id_gaps=id_gaps, extra_columns=extra_columns, storage=storage,
    )  # fmt: skip
    file = _find_file(Path(path), split)
    given = {"discount": discount, "initial": initial, "weights": weights, "name": name}
    given = {key: value for key, value in given.items() if value is not None}
    if file.suffix == ".npz":
        model = _load_npz(file, storage)
        for key, labels in (("initial", model.state_labels), ("weights", model.model_labels)):
            if key in given:
                given[key] = _by_label(given[key], labels, key)
        return model.replace(**given) if given else model
    source = _Source(str(file), file if file.suffix == ".csv" else None)
    stored = None
    if file.suffix == ".csv":
        raw = _read_csv(file, source, options)
    else:
        frame, stored = _read_parquet(file, source)
        raw = _raw_columns(frame, source, options)
    extras = stored or _read_parameters(file, options)
    ids = _encode(raw, source, options, extras)
    if stored is None:
        _read_sides(file, ids, options, extras)
    extras.fields.update(given)
    return _assemble(ids, extras, source, options)


def from_frame(
    frame: pd.DataFrame,
    *,
    initial: npt.ArrayLike | Mapping[Any, float] | None = None,
    weights: npt.ArrayLike | Mapping[Any, float] | None = None,
    discount: float = 1.0,
    terminal: npt.ArrayLike | None = None,
    states: Sequence[object] | None = None,
    actions: Sequence[object] | None = None,
    models: Sequence[object] | None = None,
    parameters: Mapping[str, npt.ArrayLike] | None = None,
    compat: str | None = None,
    duplicates: Duplicates = "error",
    normalize: bool = False,
    missing_actions: Literal["error", "zero"] = "error",
    dead_ends: Literal["error", "absorb"] = "error",
    id_gaps: Literal["error", "relabel"] = "error",
    extra_columns: Literal["error", "ignore"] = "error",
    storage: Storage = "auto",
    name: str | None = None,
) -> MMDP:
    """Build a model from a tidy DataFrame, one row per transition.

    Columns as in the module's table; ``state``, ``action``, ``next_state`` and ``model`` may
    hold labels. ``states``, ``actions`` and ``models`` give labels for ids, or the order of
    the labels that the frame holds. ``initial`` and ``weights`` may map labels to numbers.
    The options are those of :func:`load`.

    >>> import pandas as pd, mmdp
    >>> frame = pd.DataFrame({"state": ["up", "up", "down"], "action": "wait",
    ...     "next_state": ["up", "down", "down"], "probability": [0.9, 0.1, 1.0],
    ...     "reward": [4.0, 4.0, 0.0]})
    >>> model = mmdp.io.from_frame(frame, initial={"up": 1.0})
    >>> model.state_labels, model.rewards.tolist()
    (('up', 'down'), [[[4.0], [0.0]]])
    """
    options = _Options.read(
        compat, duplicates=duplicates, normalize=normalize, missing_actions=missing_actions,
        dead_ends=dead_ends, id_gaps=id_gaps, extra_columns=extra_columns, storage=storage,
    )  # fmt: skip
    source = _Source("frame")
    raw = _raw_columns(frame, source, options)
    extras = _Extras({
        "states": states, "actions": actions, "models": models, "initial": initial,
        "weights": weights, "discount": discount, "terminal": terminal,
        "parameters": parameters, "name": name,
    })  # fmt: skip
    return _assemble(_encode(raw, source, options, extras), extras, source, options)


def to_frame(model: MMDP) -> pd.DataFrame:
    """The model as a tidy table: one row per transition that can happen.

    Columns ``[time,] model, state, action, next_state, probability, reward``: labels as
    categoricals where the model has them, else ids.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[3.0], [0.0]], states=["a", "b"])
    >>> print(mmdp.io.to_frame(one).to_string(index=False))
    model state  action next_state  probability  reward
        0     a       0          a          0.5     3.0
        0     a       0          b          0.5     3.0
        0     b       0          b          1.0     0.0
    """
    columns: dict[str, Any] = dict(_entries(model))
    for kind, labels in _label_sets(model).items():
        for role in KINDS[kind]:
            if labels is not None:
                columns[role] = pd.Categorical.from_codes(columns[role], pd.Index(labels))
    return pd.DataFrame(columns)


def _find_file(path: Path, split: str) -> Path:
    """The one file that holds the transitions."""
    if split not in SPLITS:
        raise InputError(f"split must be 'train', 'test' or 'true', not {split!r}")
    if path.is_dir():
        stem = SPLITS[split]
        names = [f"{stem}.csv", f"{stem}.parquet"] + (["model.npz"] if split == "train" else [])
        for name in names:
            if (path / name).is_file():
                return path / name
        known = sorted(x.name for x in path.iterdir() if x.suffix in (".csv", ".parquet", ".npz"))
        there = f"it has {', '.join(known[:8])}" if known else "it has no data file"
        raise InputError(f"{path}: no {names[0]} in this folder ({there}); name the file to read")
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; check the path")
    if path.suffix not in (".csv", ".parquet", ".npz"):
        raise InputError(f"{path}: unknown suffix {path.suffix!r}; known are .csv, .parquet, .npz")
    return path


# ---------------------------------------------------------------------- columns
def _roles(columns: Sequence[str], source: _Source, options: _Options) -> dict[str, str]:
    """Column name to role; unknown, missing and doubled columns are errors."""
    known = PAPER | TIDY
    roles = {name: known[name] for name in columns if name in known}
    unknown = [name for name in columns if name not in known]
    missing = [role for role in REQUIRED if role not in roles.values()]
    tidy = any(name in LABEL_COLUMNS for name in columns)
    spelling = {role: name for name, role in (TIDY if tidy else PAPER).items()}
    twice = [r for r in roles.values() if list(roles.values()).count(r) > 1]
    if len(set(columns)) < len(columns) or twice:
        double = next((x for x in columns if columns.count(x) > 1), None) or " and ".join(
            name for name in roles if roles[name] == twice[0]
        )
        source.fail(f"column {double!r} is given twice; keep one of them")
    if not missing and (not unknown or options.extra_columns == "ignore"):
        return roles
    parts = []
    if unknown:
        parts.append("unknown column " + ", ".join(_suggested(x, list(known)) for x in unknown))
    if missing:
        parts.append("no column " + ", ".join(repr(spelling[role]) for role in missing))
    if len(columns) == 1 and re.search(r"[;\t|]", columns[0]):
        remedy = "separate the columns by commas"
    elif missing:
        remedy = f"expected {','.join(spelling[role] for role in (*REQUIRED[:3], 'model'))},"
        remedy += "probability,reward"
    else:
        remedy = "remove it or pass extra_columns='ignore'"
    source.fail(f"{'; '.join(parts)}; {remedy}")


def _suggested(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.strip().lower(), known, n=1)
    return f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name)


def _raw_columns(frame: pd.DataFrame, source: _Source, options: _Options) -> dict[str, Any]:
    """The known columns of a frame, by role."""
    roles = _roles([str(x) for x in frame.columns], source, options)
    if not len(frame):
        source.fail("no rows; give at least one transition")
    return {role: frame[name] for name, role in roles.items()}


def _magic(head: bytes) -> str:
    """What a file seems to be, from its first bytes."""
    starts = {
        b"\x89PNG": "a PNG image", b"PAR1": "a Parquet file", b"PK": "a zip archive (.npz, .xlsx)",
        b"\x1f\x8b": "a gzip file", b"%PDF": "a PDF", b"\xff\xd8": "a JPEG image",
        b"\xff\xfe": "UTF-16 text (save it as UTF-8)", b"\x93NUMPY": "a .npy array",
    }  # fmt: skip
    for start, what in starts.items():
        if head.startswith(start):
            return what
    with suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the end may be half a letter
        return "binary data" if b"\x00" in head else "text"
    return "binary data or text that is not UTF-8"


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4096)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)})") from None


def _header(path: Path) -> list[str]:
    """The names in the first line of a CSV; refuses what is not text."""
    head = _head(path)
    what = _magic(head)
    if what != "text":
        raise InputError(f"{path}: not a CSV file but {what}; check the name")
    if not head.strip():
        raise InputError(f"{path}: the file is empty; expected a header and one row per entry")
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        for cells in csv.reader(file):
            if any(cell.strip() for cell in cells):
                return [cell.strip() for cell in cells]
    raise InputError(f"{path}: the file is empty; expected a header and one row per entry")


def _line_of(path: Path, row: int) -> int:
    """The line of data row ``row`` (0-based), with the header and blank lines counted."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        seen = -2
        for cells in reader:
            seen += any(cell.strip() for cell in cells) or len(cells) > 1
            if seen == row:
                return reader.line_num
    return row + 2


def _read_csv(path: Path, source: _Source, options: _Options) -> dict[str, Any]:
    """The columns of the transitions by role: numbers where they are numbers, else text."""
    header = _header(path)
    roles = _roles(header, source, options)
    # 64 bits: older pandas wraps a larger number silently when asked for 32
    plain: dict[str, Any] = {name: np.int64 if name in roles else str for name in header}
    plain |= {name: np.float64 for name in roles if roles[name] in ("probability", "reward")}
    labelled = plain | {name: str for name in roles if name in LABEL_COLUMNS}
    for dtypes in (plain, labelled, str):  # from the fastest to the one that always reads
        try:
            frame = _pandas_csv(path, header, dtypes)
            break
        except InputError:
            raise
        except (ValueError, OverflowError):
            continue
    if not len(frame):
        source.fail("a header but no rows; expected one row per transition")
    return {role: _number_or_text(frame[name], source) for name, role in roles.items()}


def _pandas_csv(path: Path, names: list[str], dtype: Any) -> pd.DataFrame:
    """pandas.read_csv with nothing guessed; malformed lines are InputErrors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            warnings.simplefilter("ignore", RuntimeWarning)  # ids beyond int64: reported by us
            return pd.read_csv(
                path, header=0, names=names, dtype=dtype, engine="c", na_filter=False,
                index_col=False, encoding="utf-8", **_EXACT,
            )  # fmt: skip
    except pd.errors.ParserWarning:
        raise InputError(
            f"{path}, line {_line_of(path, 0)}: more fields than the header has "
            f"({len(names)}); remove the extra commas or name the columns"
        ) from None
    except pd.errors.ParserError as error:
        found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if found:
            raise InputError(
                f"{path}, line {found[2]}: {found[3]} fields where the header has {found[1]}; "
                "remove the extra commas"
            ) from None
        detail = str(error).strip().splitlines()[0].removeprefix("Error tokenizing data. ")
        raise InputError(f"{path}: not a well-formed CSV file ({detail}); check quotes") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)})") from None


def _number_or_text(column: pd.Series, source: _Source) -> Any:
    """A column of text as numbers; only the columns that may hold labels stay text."""
    if column.dtype.kind in "if":
        return column
    text, name = column.str.strip(), str(column.name)
    bad = np.flatnonzero(pd.to_numeric(text, errors="coerce").isna())
    if not len(bad):
        return text.to_numpy(dtype=object).astype(np.float64)  # Python's float: exact
    if name in LABEL_COLUMNS:
        return text
    is_number = PAPER.get(name) in ("probability", "reward")
    remedy = "give a finite number" if is_number else "ids are whole numbers from 0"
    source.fail(f"{name} is {text.iloc[bad[0]]!r}, not a number; {remedy}", int(bad[0]))


# ---------------------------------------------------------------------- ids and labels
@dataclass
class _Ids:
    """Transitions as ids, with the labels that the ids stand for (or None)."""

    columns: dict[str, npt.NDArray[Any]]
    sizes: dict[str, int]
    labels: dict[str, tuple[str, ...] | None]
    original: dict[str, Ints | None]

    def lookup(self, kind: str, values: pd.Series, source: _Source) -> Ints:
        """The ids meant by a column of a file that stands beside the transitions."""
        known: Any = self.labels[kind] if self.original[kind] is None else self.original[kind]
        if known is not None:
            found = pd.Index([str(x) for x in known]).get_indexer(pd.Index(values.astype(str)))
        else:
            numbers = pd.to_numeric(values, errors="coerce").to_numpy(np.float64)
            whole = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < self.sizes[kind])
            found = np.where(whole, np.where(whole, numbers, 0), -1).astype(np.int64)
        bad = np.flatnonzero(found < 0)
        if len(bad):
            limit = "" if known is not None else f" (0..{self.sizes[kind] - 1})"
            row, value = int(values.index[bad[0]]), values.iloc[bad[0]]
            source.fail(f"no {kind} {value!r} in the transitions{limit}", row)
        return found.astype(np.int64)


def _encode(raw: dict[str, Any], source: _Source, options: _Options, extras: _Extras) -> _Ids:
    """Ids of every row; ``extras`` may know the labels or the number of a kind."""
    columns: dict[str, npt.NDArray[Any]] = {}
    ids = _Ids(columns, {}, {}, {})
    raw = dict(raw)
    if "model" not in raw:
        raw["model"] = np.zeros(len(raw["state"]), dtype=np.int64)
    for kind, roles in KINDS.items():
        wanted = extras.fields.get(f"{kind}s")
        wanted = None if wanted is None else tuple(str(x) for x in wanted)
        if all(_is_numeric(raw[role]) for role in roles):
            parts = [_whole(raw[role], role, source) for role in roles]
            known = len(wanted) if wanted is not None else extras.sizes.get(kind)
            parts, size, original = _compact(kind, parts, roles, source, options, known)
            ids.original[kind] = original
            ids.labels[kind] = (
                None if original is None else tuple(str(x) for x in original.tolist())
            )
        else:
            parts, labels = _from_labels(kind, [raw[role] for role in roles], wanted, source)
            size, ids.labels[kind], ids.original[kind] = len(labels), labels, None
        ids.sizes[kind] = size
        columns.update(zip(roles, parts, strict=True))
    if "time" in raw:
        if not _is_numeric(raw["time"]):
            source.fail("times must be whole numbers from 0")
        time = _whole(raw["time"], "time", source)
        strict = replace(options, id_gaps="error")
        (columns["time"],), ids.sizes["time"], _ = _compact(
            "time", [time], ("time",), source, strict, None
        )
    for role in ("probability", "reward"):
        columns[role] = _finite(raw[role], role, source)
    return ids


def _is_numeric(values: Any) -> bool:
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if kind in "iuf":
        return True
    return (
        kind == "O"
        and not isinstance(getattr(values, "dtype", None), pd.CategoricalDtype)
        and pd.api.types.infer_dtype(values, skipna=False) == "integer"
    )


def _whole(values: Any, role: str, source: _Source) -> Ints:
    """A numeric column as whole, non-negative ids."""
    if pd.api.types.is_extension_array_dtype(values) and pd.isna(values).any():
        row = int(np.argmax(pd.isna(values)))
        source.fail(f"{role} is empty; ids are whole numbers from 0", row)
    array = np.asarray(values)
    if array.dtype.kind == "O":
        array = np.asarray(array, dtype=np.float64)
    if array.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(array) | (array != np.floor(array)))
        if len(bad):
            value = array[bad[0]]
            source.fail(f"{role} is {value:g}, not a whole number; ids count from 0", int(bad[0]))
        large = np.flatnonzero(array >= 2.0**53)
        if len(large):
            source.fail(f"{role} id {array[large[0]]:g} is too large", int(large[0]))
    array = array.astype(np.int64, copy=False)
    if array.min() < 0:
        row = int(np.argmax(array < 0))
        source.fail(f"{role} is {array[row]}; ids count from 0, none is negative", row)
    return array


def _compact(
    kind: str, parts: list[Ints], roles: Sequence[str], source: _Source, options: _Options,
    known: int | None,
) -> tuple[list[Ints], int, Ints | None]:  # fmt: skip
    """Ids 0..n-1 without gaps, their number n, and the old ids where they were relabelled."""
    top = max(int(part.max()) for part in parts)
    if known is not None and top < known:
        return parts, known, None
    if top + 1 > sum(map(len, parts)):  # a gap for sure: never allocate by the largest id
        present = np.unique(np.concatenate(parts))
    else:
        seen = np.zeros(top + 1, dtype=bool)
        for part in parts:
            seen[part] = True
        present = np.flatnonzero(seen)
    if len(present) == top + 1:
        return parts, top + 1, None
    if options.id_gaps == "relabel":
        return [np.searchsorted(present, part) for part in parts], len(present), present
    gap = int(np.argmax(present != np.arange(len(present))))
    after = int(present[gap])
    role, part = next((r, p) for r, p in zip(roles, parts, strict=True) if (p == after).any())
    remedy = "number them from 0 without gaps"
    remedy += "" if kind == "time" else ", or pass id_gaps='relabel'"
    what = "time" if kind == "time" else f"{kind} id"
    source.fail(
        f"{role} is {after} but no {what} is {gap} ({len(present)} distinct, largest {top}); "
        f"{remedy}",
        int(np.argmax(part == after)),
    )


def _from_labels(
    kind: str, parts: list[Any], wanted: tuple[str, ...] | None, source: _Source
) -> tuple[list[Ints], tuple[str, ...]]:
    """Ids from labels: in the wanted order, the categories' order, or as they first appear."""
    series = [pd.Series(part).reset_index(drop=True) for part in parts]
    for part in series:
        blank = part.isna()
        if wanted is None:
            blank |= part.astype(str).str.strip() == ""
        empty = np.flatnonzero(blank)
        if len(empty):
            source.fail(f"a {kind} is empty; give its label or id", int(empty[0]))
    if wanted is None and all(isinstance(x.dtype, pd.CategoricalDtype) for x in series):
        categories = pd.Index(series[0].cat.categories).append(
            [pd.Index(x.cat.categories) for x in series[1:]]
        )
        used = set().union(*(x.unique() for x in series))
        wanted = tuple(dict.fromkeys(str(x) for x in categories if x in used))
    text = pd.concat([x.astype(str) for x in series], ignore_index=True)
    if wanted is None:
        codes, uniques = pd.factorize(text)
        labels = tuple(str(x) for x in uniques)
    else:
        codes, labels = pd.Index(wanted).get_indexer(pd.Index(text)), wanted
        bad = np.flatnonzero(codes < 0)
        if len(bad):
            row = int(bad[0])
            source.fail(
                f"{kind} {text.iloc[row]!r} is not among the labels of {kind}s given",
                row % len(series[0]),
            )
    return np.split(codes.astype(np.int64), len(series)), labels


def _finite(values: Any, role: str, source: _Source) -> Array:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = pd.to_numeric(pd.Series(values).reset_index(drop=True), errors="coerce")
        row = int(np.argmax(numbers.isna()))
        source.fail(f"{role} is {pd.Series(values).iloc[row]!r}, not a number", row)
    if not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array)))
        source.fail(f"{role} is {array[row]}; give a finite number", row)
    if role == "probability" and array.min() < 0:
        row = int(np.argmax(array < 0))
        source.fail(f"negative probability {array[row]:g}; it must be from 0 to 1", row)
    return array


# ---------------------------------------------------------------------- ids to MMDP
def _assemble(ids: _Ids, extras: _Extras, source: _Source, options: _Options) -> MMDP:
    """The model of checked ids; errors of its own checks get the name of the file."""
    fields = {key: value for key, value in extras.fields.items() if value is not None}
    shape, horizon = _shape(ids, source)
    for kind, labels in ids.labels.items():
        if labels is not None and (f"{kind}s" not in fields or ids.original[kind] is None):
            fields[f"{kind}s"] = labels
    rows = _row_keys(ids.columns, shape)
    columns = _settle_duplicates(ids, rows, shape, source, options)
    if options.dead_ends == "absorb":
        columns = _absorb_dead_ends(columns, shape, horizon)
    if columns is not ids.columns:
        rows = _row_keys(columns, shape)
    if options.normalize:
        columns = columns | {"probability": _normalised(columns["probability"], rows)}
    expected = _constant_rewards(columns["reward"], rows, (horizon or 1, *shape[1:], shape[0]))
    try:
        for key, kind in (("initial", "state"), ("weights", "model")):
            size = shape[1] if kind == "state" else shape[0]
            names = fields.get(f"{kind}s") or tuple(map(str, range(size)))
            fields[key] = _by_label(fields.get(key), tuple(names), key)
        given = {k: v for k, v in columns.items() if k != "reward" or expected is None}
        support = support_from_coordinates(Coordinates(given, horizon), shape, options.storage)
        if "allowed" not in fields:
            fields["allowed"] = _present_actions(columns, shape)
        missing = extras.allow_missing or options.missing_actions == "zero"
        model = MMDP.__new__(MMDP)
        model._build(support, expected, support.rewards, allow_missing=missing, **fields)
    except InputError as error:
        raise type(error)(f"{source.name}: {error}") from None
    return model


def _shape(ids: _Ids, source: _Source) -> tuple[tuple[int, int, int], int | None]:
    """(M, S, A) and the horizon; refuses sizes out of proportion to the rows."""
    shape = (ids.sizes["model"], ids.sizes["state"], ids.sizes["action"])
    horizon = ids.sizes.get("time")
    count = len(ids.columns["state"])
    cells = shape[0] * shape[1] * shape[2] * (horizon or 1)
    if cells * 8 > MATERIALISE_LIMIT and cells > 64 * count:
        raise MemoryLimitError(
            f"{source.name}: {count:,} rows for {shown(shape[0], 'model')}, "
            f"{shown(shape[1], 'state')} and {shown(shape[2], 'action')} would take "
            f"{readable_bytes(cells * 8)} of rewards alone; check the ids, or split the models"
        )
    return shape, horizon


def _row_keys(columns: Mapping[str, npt.NDArray[Any]], shape: tuple[int, int, int]) -> Ints:
    """((t S + s) A + a) M + m of every entry: its place in the reward array."""
    n_models, n_states, n_actions = shape
    keys = columns["state"]
    if "time" in columns:
        keys = columns["time"] * n_states + keys
    return (keys * n_actions + columns["action"]) * n_models + columns["model"]


def _settle_duplicates(
    ids: _Ids, rows: Ints, shape: tuple[int, int, int], source: _Source, options: _Options
) -> dict[str, npt.NDArray[Any]]:  # fmt: skip
    """Refuse duplicates or keep the last; "sum" leaves them, for the storage adds them up."""
    columns = ids.columns
    n_models, n_states, n_actions = shape
    space = n_states * n_actions * n_models * ids.sizes.get("time", 1) * n_states
    if space < 2**62:
        keys = rows * n_states + columns["next_state"]
        if not _has_duplicates(keys, space):
            return columns
        table: Any = pd.Series(keys)
    else:
        names = [x for x in columns if x not in ("probability", "reward")]
        table = pd.DataFrame({name: columns[name] for name in names})
    repeated = table.duplicated().to_numpy()
    if not repeated.any() or options.duplicates == "sum":
        return columns
    if options.duplicates == "last":
        keep = ~table.duplicated(keep="last").to_numpy()
        return {name: values[keep] for name, values in columns.items()}
    _fail_duplicate(ids, repeated, source)


def _fail_duplicate(ids: _Ids, repeated: npt.NDArray[np.bool_], source: _Source) -> NoReturn:
    row = int(np.argmax(repeated))
    roles = [x for x in ("model", "state", "action", "next_state", "time") if x in ids.columns]
    same = np.logical_and.reduce([ids.columns[x] == ids.columns[x][row] for x in roles])
    first = source.at(int(np.argmax(same))).rpartition(", ")[2]
    kinds = {role: kind for kind, roles_of in KINDS.items() for role in roles_of}
    named = {x: ids.labels.get(kinds.get(x, x)) for x in roles}
    at = {x: int(ids.columns[x][row]) for x in roles}
    place = ", ".join(
        f"{x.replace('_', ' ')} {at[x] if names is None else repr(names[at[x]])}"
        for x, names in named.items()
    )
    source.fail(
        f"{place} is given again (first at {first}; {shown(int(repeated.sum()), 'duplicate')}); "
        "remove it, or pass duplicates='last' or 'sum'",
        row,
    )


def _has_duplicates(keys: Ints, space: int) -> bool:
    if space <= 16 * len(keys) + 1_000_000:
        seen = np.zeros(space, dtype=bool)
        seen[keys] = True
        return int(np.count_nonzero(seen)) < len(keys)
    if bool((keys[1:] > keys[:-1]).all()):
        return False
    ordered = np.sort(keys)
    return bool((ordered[1:] == ordered[:-1]).any())


def _present_actions(
    columns: Mapping[str, npt.NDArray[Any]], shape: tuple[int, int, int]
) -> npt.NDArray[np.bool_]:
    """(S, A): an action is there where any row names it."""
    seen = np.zeros(shape[1] * shape[2], dtype=bool)
    seen[columns["state"] * shape[2] + columns["action"]] = True
    return seen.reshape(shape[1:])


def _absorb_dead_ends(
    columns: dict[str, npt.NDArray[Any]], shape: tuple[int, int, int], horizon: int | None
) -> dict[str, npt.NDArray[Any]]:
    """Action 0 that stays, for nothing, in every state without actions."""
    dead = np.flatnonzero(~_present_actions(columns, shape).any(axis=1))
    if not len(dead):
        return columns
    grid = np.meshgrid(np.arange(horizon or 1), np.arange(shape[0]), dead, indexing="ij")
    time, model, state = (x.ravel() for x in grid)
    added = {
        "time": time, "model": model, "state": state, "next_state": state,
        "action": np.zeros_like(state), "probability": np.ones(len(state)),
        "reward": np.zeros(len(state)),
    }  # fmt: skip
    return {name: np.concatenate([values, added[name]]) for name, values in columns.items()}


def _normalised(probability: Array, rows: Ints) -> Array:
    """Every row of positive sum divided by its sum."""
    sums = np.bincount(rows, probability)[rows]
    return np.divide(probability, sums, out=probability.copy(), where=sums > 0)


def _constant_rewards(reward: Array, rows: Ints, shape: tuple[int, ...]) -> Array | None:
    """(T, S, A, M) r(s, a) where no row's reward depends on s', so that it stays exact."""
    table = np.zeros(int(np.prod(shape)))
    table[rows] = reward
    return table.reshape(shape) if bool((table[rows] == reward).all()) else None


def _by_label(values: Any, labels: tuple[str, ...], what: str) -> Any:
    """A mapping of label to number as an array; anything else as it is."""
    if not isinstance(values, Mapping):
        return values
    position = {str(label): i for i, label in enumerate(labels)}
    array = np.zeros(len(labels))
    for label, value in values.items():
        if str(label) not in position:
            hint = difflib.get_close_matches(str(label), list(position), n=1)
            more = f" (did you mean {hint[0]!r}?)" if hint else ""
            raise InputError(f"{what} names {label!r}, which the model does not have{more}")
        array[position[str(label)]] = value
    return array


# ---------------------------------------------------------------------- files beside a table
def _side_path(file: Path, name: str) -> Path | None:
    """The file that says ``name`` about ``file``; None where there is none."""
    own, shared = file.with_name(f"{file.stem}_{name}.csv"), file.with_name(f"{name}.csv")
    if own.is_file() and file.stem != "training":
        return own
    if not shared.is_file() or shared == file:
        return None
    if file.stem == "test" and (
        name in ("weights", "draws") or (name == "terminal" and "idoutcome" in _header(shared))
    ):
        return None
    return shared


def _read_sides(file: Path, ids: _Ids, options: _Options, extras: _Extras) -> None:
    """Everything that stands beside a table, but for parameters.csv, which is read before it."""
    readers: dict[str, Callable[[Path, _Ids, _Options, _Extras], None]] = {
        "labels": _read_labels, "initial": _read_initial, "weights": _read_weights,
        "terminal": _read_terminal, "draws": _read_draws,
    }  # fmt: skip
    for name, read in readers.items():
        path = _side_path(file, name)
        if path is not None:
            read(path, ids, options, extras)


def _side_table(path: Path, expected: Sequence[str], options: _Options | None) -> pd.DataFrame:
    """A small CSV as text, with exactly the expected columns (or None: any others allowed)."""
    header = _header(path)
    source = _Source(str(path), path)
    tidy = {"idstate": "state", "idoutcome": "model"}  # accepted in place of the paper's names
    header = [next((k for k, v in tidy.items() if v == x and k in expected), x) for x in header]
    missing = [name for name in expected if name not in header]
    unknown = [name for name in header if name not in expected]
    if missing or (unknown and options is not None and options.extra_columns == "error"):
        told = ", ".join(_suggested(name, list(expected)) for name in unknown)
        parts = ([f"unknown column {told}"] if unknown else []) + (
            [f"no column {', '.join(map(repr, missing))}"] if missing else []
        )
        source.fail(f"{'; '.join(parts)}; expected {','.join(expected)}")
    return _pandas_csv(path, header, str)


def _side_numbers(column: pd.Series, name: str, source: _Source) -> Array:
    numbers = pd.to_numeric(column.str.strip(), errors="coerce").to_numpy(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        source.fail(f"{name} is {column.iloc[bad[0]]!r}; give a finite number", int(bad[0]))
    # to_numeric may lose the last bit; Python's float never does
    return np.array([float(x) for x in column], dtype=np.float64)


def _refuse_repeats(places: Ints | pd.Series, what: str, source: _Source) -> None:
    column = pd.Series(places)
    repeated = column.duplicated().to_numpy()
    if repeated.any():
        row = int(column.index[int(np.argmax(repeated))])
        source.fail(f"{what} is given twice; keep one row", row)


def _read_vector(path: Path, key: str, value: str, kind: str, ids: _Ids, o: _Options) -> Any:
    """(n,) numbers by id; None for a file with only its header."""
    source, table = _Source(str(path), path), _side_table(path, (key, value), o)
    if not len(table):
        return None
    places = ids.lookup(kind, table[key], source)
    _refuse_repeats(places, f"this {kind}", source)
    result = np.zeros(ids.sizes[kind])
    result[places] = _side_numbers(table[value], value, source)
    try:
        return read_distribution(result, len(result), path.stem, kind, ids.labels[kind])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_initial(path: Path, ids: _Ids, options: _Options, extras: _Extras) -> None:
    extras.fields["initial"] = _read_vector(path, "idstate", "probability", "state", ids, options)


def _read_weights(path: Path, ids: _Ids, options: _Options, extras: _Extras) -> None:
    extras.fields["weights"] = _read_vector(path, "idoutcome", "weight", "model", ids, options)


def _read_parameters(file: Path, options: _Options) -> _Extras:
    """parameters.csv beside ``file``: it is needed before the ids can be checked."""
    extras, path = _Extras(for_test=file.stem == "test"), _side_path(file, "parameters")
    if path is None:
        return extras
    source, table = _Source(str(path), path), _side_table(path, ("parameter", "value"), options)
    names = table["parameter"].str.strip()
    known = ("discount", "actions", "allow_missing")
    bad = np.flatnonzero(~names.isin(known))
    if len(bad) and options.extra_columns == "error":
        told = ", ".join(_suggested(x, list(known)) for x in names.iloc[bad])
        source.fail(
            f"unknown parameter {told}; remove it or pass extra_columns='ignore'", int(bad[0])
        )
    _refuse_repeats(pd.factorize(names)[0].astype(np.int64), "this parameter", source)
    for row in np.flatnonzero(names.isin(known)).tolist():
        _take_parameter(names.iloc[row], table["value"].iloc[row].strip(), row, source, extras)
    return extras


def _take_parameter(name: str, text: str, row: int, source: _Source, extras: _Extras) -> None:
    try:
        number = float(text)
    except ValueError:
        source.fail(f"{name} is {text!r}, not a number", row)
    if name == "discount":
        if not 0 <= number <= 1:
            source.fail(f"discount must be from 0 to 1, not {text}", row)
        extras.fields["discount"] = number
    elif not number.is_integer() or not 0 <= number < 2**31:
        source.fail(f"{name} is {text!r}; give a whole number", row)
    elif name == "actions":
        extras.sizes["action"] = int(number)
    else:
        extras.allow_missing = bool(number)


def _read_labels(path: Path, ids: _Ids, options: _Options, extras: _Extras) -> None:
    source, table = _Source(str(path), path), _side_table(path, ("kind", "id", "label"), options)
    bad = np.flatnonzero(~table["kind"].isin(list(KINDS)))
    if len(bad):
        wrong = table["kind"].iloc[bad[0]]
        source.fail(f"kind is {wrong!r}; it must be state, action or model", int(bad[0]))
    for kind in KINDS:
        part = table[table["kind"] == kind]
        of_training = kind == "model" and extras.for_test and path.stem == "labels"
        if not len(part) or of_training:
            continue
        places = ids.lookup(kind, part["id"], source)
        _refuse_repeats(pd.Series(places, part.index), f"the label of this {kind}", source)
        if len(part) != ids.sizes[kind]:
            lacking = sorted(set(range(ids.sizes[kind])) - set(places.tolist()))[0]
            source.fail(f"no label for {kind} {lacking}; label every {kind} or none")
        if ids.labels[kind] is not None and ids.original[kind] is None:
            source.fail(f"labels of {kind}s are in the transitions already; give them once")
        named = np.empty(ids.sizes[kind], dtype=object)
        named[places] = part["label"].to_numpy(dtype=object)
        extras.fields[f"{kind}s"] = tuple(str(x) for x in named)


def _read_terminal(path: Path, ids: _Ids, options: _Options, extras: _Extras) -> None:
    source, by_model = _Source(str(path), path), "idoutcome" in _header(path)
    expected = ("idoutcome", "idstate", "value") if by_model else ("idstate", "value")
    table = _side_table(path, expected, options)
    if not len(table):
        return
    n_states, state = ids.sizes["state"], ids.lookup("state", table["idstate"], source)
    model = ids.lookup("model", table["idoutcome"], source) if by_model else np.zeros_like(state)
    _refuse_repeats(model * n_states + state, "this terminal value", source)
    values = np.zeros((ids.sizes["model"] if by_model else 1, n_states))
    values[model, state] = _side_numbers(table["value"], "value", source)
    extras.fields["terminal"] = values if by_model else values[0]


def _read_draws(path: Path, ids: _Ids, options: _Options, extras: _Extras) -> None:
    source, table = _Source(str(path), path), _side_table(path, ("idoutcome",), None)
    if not len(table):
        return
    places = ids.lookup("model", table["idoutcome"], source)
    _refuse_repeats(places, "this model", source)
    if len(places) != ids.sizes["model"]:
        source.fail(f"{shown(len(places), 'row')} for {shown(ids.sizes['model'], 'model')}")
    draws: dict[str, Array] = {}
    for name in table.columns.drop("idoutcome"):
        draws[str(name)] = np.empty(len(places))
        draws[str(name)][places] = _side_numbers(table[name], str(name), source)
    extras.fields["parameters"] = draws


# ---------------------------------------------------------------------- Parquet and npz
def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "Parquet files need pyarrow; install it with: pip install mmdp[parquet]"
        ) from None
    return pyarrow, pyarrow.parquet


def _parquet_table(path: Path) -> tuple[pd.DataFrame, dict[str, Any] | None]:
    """A Parquet file and what :func:`save` put into its metadata."""
    pyarrow, parquet = _pyarrow()
    what = _magic(_head(path))
    if what != "a Parquet file":
        raise InputError(f"{path}: not a Parquet file but {what}; check the name")
    try:
        table = parquet.read_table(path)
        stored = (table.schema.metadata or {}).get(b"mmdp")
        return table.to_pandas(), None if stored is None else json.loads(stored)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: damaged Parquet file ({_reason(error)})") from None


def _read_parquet(path: Path, source: _Source) -> tuple[pd.DataFrame, _Extras | None]:
    frame, stored = _parquet_table(path)
    if stored is None:
        return frame, None
    if not isinstance(stored, dict) or stored.get("format") != NPZ_FORMAT:
        source.fail("its metadata is not that of a model; was it saved as a policy?")
    return frame, _Extras(stored["fields"], stored["sizes"], stored["allow_missing"])


def _save_parquet(model: MMDP, path: Path) -> None:
    pyarrow, parquet = _pyarrow()
    fields = model._fields()
    del fields["rewards"], fields["allow_missing"], fields["allowed"]
    fields["parameters"] = {k: v.tolist() for k, v in fields["parameters"].items()}
    for name, value in fields.items():
        fields[name] = value.tolist() if isinstance(value, np.ndarray) else value
    if not model.problem.terminal.any():
        fields["terminal"] = None
    stored = {
        "format": NPZ_FORMAT, "fields": fields, "allow_missing": model._missing,
        "sizes": {"state": model.n_states, "action": model.n_actions, "model": model.n_models},
    }  # fmt: skip
    table = pyarrow.Table.from_pandas(to_frame(model), preserve_index=False)
    metadata = {**(table.schema.metadata or {}), b"mmdp": json.dumps(stored).encode()}
    parquet.write_table(table.replace_schema_metadata(metadata), path)


def _save_npz(model: MMDP, path: Path) -> None:
    """Every field as a plain array (no pickle); the pattern as it is held in memory."""
    arrays: dict[str, Any] = {"format": np.array(NPZ_FORMAT), **model.problem._asdict()}
    arrays["initial_given"] = model.initial_given
    arrays["allow_missing"] = model._missing
    arrays["horizon"] = -1 if model.horizon is None else model.horizon
    for kind, labels in _label_sets(model).items():
        if labels is not None:
            arrays[f"{kind}s"] = np.array(labels, dtype=str)
    for name in ("name", "citation"):
        if getattr(model, name) is not None:
            arrays[name] = np.array(getattr(model, name))
    if model.pattern_rewards is not None:
        arrays["next_rewards"] = model.pattern_rewards
    for i, (name, values) in enumerate(model.parameters.items()):
        arrays[f"parameter_{i}_name"], arrays[f"parameter_{i}"] = np.array(name), values
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _load_npz(path: Path, storage: Storage) -> MMDP:
    what = _magic(_head(path))
    if what != "a zip archive (.npz, .xlsx)":
        raise InputError(f"{path}: not an npz file but {what}; check the name")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: damaged npz file ({_reason(error)})") from None
    if str(arrays.get("format")) != NPZ_FORMAT:
        raise InputError(
            f"{path}: not a model saved by mmdp (no format {NPZ_FORMAT!r}); build the model from "
            "your arrays with mmdp.MMDP and mmdp.save it"
        )
    try:
        support, expected = _npz_support(arrays)
        model = MMDP.__new__(MMDP)
        model._build(support, expected, arrays.get("next_rewards"), **_npz_fields(arrays))
    except InputError as error:
        raise type(error)(f"{path}: {error}") from None
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise InputError(f"{path}: damaged npz file ({_reason(error)})") from None
    return model if storage in ("auto", model.storage) else _stored_as(model, storage, path)


def _stored_as(model: MMDP, storage: Storage, path: Path) -> MMDP:
    """The same model in the other storage."""
    columns = {k: v.astype(np.int64) if v.dtype.kind == "i" else v
               for k, v in _entries(model).items()}  # fmt: skip
    sizes = {"state": model.n_states, "action": model.n_actions, "model": model.n_models}
    if model.horizon is not None:
        sizes["time"] = model.horizon
    none = dict.fromkeys(KINDS)
    fields = model._fields()
    del fields["rewards"]
    extras = _Extras(fields, allow_missing=fields.pop("allow_missing"))
    ids = _Ids(columns, sizes, dict(none), dict(none))
    return _assemble(ids, extras, _Source(str(path)), _Options(storage=storage))


def _npz_support(arrays: dict[str, Any]) -> tuple[Support, Array]:
    """The stored pattern, checked: a damaged file must not reach a kernel."""
    allowed, p, r = arrays["allowed"], arrays["p"], arrays["r"]
    indptr, indices = arrays["indptr"].astype(np.int64), arrays["indices"].astype(np.int32)
    n_states, n_actions = allowed.shape
    n_models, dense, horizon = p.shape[2], bool(arrays["dense"]), int(arrays["horizon"])
    times = {1, horizon} if horizon > 0 else {1}
    per_next = arrays.get("next_rewards")
    sound = (
        allowed.dtype == bool
        and all(x.dtype == np.float64 for x in (p, r) if x is not None)
        and indptr.shape == (n_states * n_actions + 1,)
        and indptr[0] == 0
        and bool((np.diff(indptr) >= 0).all())
        and indptr[-1] == len(indices) == p.shape[1]
        and r.shape[1:] == (n_states, n_actions, n_models)
        and {len(p), len(r)} <= times
        and bool(((indices >= 0) & (indices < n_states)).all())
        and (not dense or len(indices) == n_states * n_actions * n_states)
        and (per_next is None or (len(per_next) in times and per_next.shape[1:] == p.shape[1:]))
        and (per_next is None or per_next.dtype == np.float64)
    )
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)) if sound else indices
    flat = rows * n_states + indices
    if not sound or not bool((np.diff(flat) > 0).all()):
        raise InputError("damaged npz file (its arrays do not fit together); save it again")
    support = Support(
        (n_models, n_states, n_actions), indptr, indices, np.ascontiguousarray(p), dense, None,
        horizon if horizon > 0 else None,
    )  # fmt: skip
    return support, np.ascontiguousarray(r)


def _npz_fields(arrays: dict[str, Any]) -> dict[str, Any]:
    count = sum(name.startswith("parameter_") for name in arrays) // 2
    return {
        "initial": arrays["initial"] if bool(arrays["initial_given"]) else None,
        "weights": arrays["weights"], "discount": float(arrays["discount"]),
        "terminal": arrays["terminal"].T, "allowed": arrays["allowed"],
        "states": arrays.get("states"), "actions": arrays.get("actions"),
        "models": arrays.get("models"), "allow_missing": bool(arrays["allow_missing"]),
        "parameters": {
            str(arrays[f"parameter_{i}_name"]): arrays[f"parameter_{i}"] for i in range(count)
        },
        "name": str(arrays["name"]) if "name" in arrays else None,
        "citation": str(arrays["citation"]) if "citation" in arrays else None,
    }  # fmt: skip


# ====================================================================== models: writing
def save(model: MMDP, path: PathLike, *, split: str = "train") -> None:
    """Write a model so that :func:`load` gives it back.

    ``.npz`` keeps every array as it is in memory and is the fastest; ``.parquet`` is one tidy
    table with the other fields in its metadata; ``.csv`` or a folder is the paper's format:
    ``training.csv`` (``test.csv`` with ``split="test"``) with ``initial.csv`` and
    ``parameters.csv``, and ``weights.csv``, ``terminal.csv``, ``labels.csv`` and ``draws.csv``
    only where the model has such. Files about a table of another name carry its name
    (``test_weights.csv``); one that would repeat a plain file is not written. Numbers are
    written with all their digits. Either every file is written or none.

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
        raise InputError(f"save() writes an MMDP, not {type(model).__name__}")
    if split not in ("train", "test"):
        raise InputError(f"split must be 'train' or 'test', not {split!r}")
    target = Path(path)
    if target.suffix == ".npz" and not target.is_dir():
        write_whole(target, lambda file: _save_npz(model, file))
    elif target.suffix == ".parquet" and not target.is_dir():
        write_whole(target, lambda file: _save_parquet(model, file))
    elif target.suffix == ".csv":
        write_all(_csv_files(model, target))
    elif target.suffix and not target.is_dir():
        raise InputError(
            f"{target}: unknown suffix {target.suffix!r}; write .npz, .parquet, .csv or a folder"
        )
    else:
        _save_folder(model, target, f"{SPLITS[split]}.csv")


def _save_folder(model: MMDP, folder: Path, name: str) -> None:
    made = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot make the folder ({_reason(error)})") from None
    try:
        write_all(_csv_files(model, folder / name))
    except BaseException:
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise


def _label_sets(model: MMDP) -> dict[str, tuple[str, ...] | None]:
    labels = model._labels
    return {"state": labels.states, "action": labels.actions, "model": labels.models}


def _entries(model: MMDP) -> dict[str, npt.NDArray[Any]]:
    """Parallel arrays [time,] model, state, action, next_state, probability, reward.

    Entries of probability 0 appear only where they carry something: a reward per next state,
    or an action that is allowed though no model (or not this one) has transitions for it.
    """
    x, next_rewards = model.problem, model.pattern_rewards
    n_actions, n_models, rows = model.n_actions, model.n_models, model.problem.rows()
    times = model.horizon or 1
    keep = x.p != 0
    if next_rewards is not None:
        keep = (keep | (next_rewards != 0)) & x.allowed.reshape(-1)[rows][:, None]
    keep = np.broadcast_to(keep, (times, len(rows), n_models))
    t, k, m = np.nonzero(keep)
    s, a = rows[k] // n_actions, rows[k] % n_actions
    reward_at = np.broadcast_to(x.r, (times, *x.r.shape[1:]))
    reward = (
        reward_at[t, s, a, m]
        if next_rewards is None
        else np.broadcast_to(next_rewards, keep.shape)[t, k, m]
    )
    found: dict[str, npt.NDArray[Any]] = {
        "time": t, "model": m, "state": s, "action": a, "next_state": x.indices[k],
        "probability": np.broadcast_to(x.p, keep.shape)[t, k, m], "reward": reward,
    }  # fmt: skip
    if model._missing:
        extra = _missing_entries(model, found, reward_at)
        found = {name: np.concatenate([v, extra[name]]) for name, v in found.items()}
    ids = ("time", "model", "state", "action", "next_state")
    found = {name: v.astype(np.int32) if name in ids else v for name, v in found.items()}
    if model.horizon is None:
        del found["time"]
    return found


def _missing_entries(
    model: MMDP, found: Mapping[str, npt.NDArray[Any]], reward_at: Array
) -> dict[str, npt.NDArray[Any]]:
    """Entries of probability 0 for allowed rows that have none but must not be forgotten."""
    has = np.zeros(reward_at.shape, dtype=bool)
    has[found["time"], found["state"], found["action"], found["model"]] = True
    nowhere = ~has.any(axis=(0, 3), keepdims=True)
    t, s, a, m = np.nonzero(~has & model.allowed[None, :, :, None] & ((reward_at != 0) | nowhere))
    return {
        "time": t, "model": m, "state": s, "action": a, "next_state": s,
        "probability": np.zeros(len(t)), "reward": reward_at[t, s, a, m],
    }  # fmt: skip


def _csv_files(model: MMDP, file: Path) -> dict[Path, Writer]:
    """What to write for ``file``: the table, and beside it what it does not say."""
    entries = _entries(model)
    order = ("state", "action", "next_state", "model", "time", "probability", "reward")
    names = {role: name for name, role in PAPER.items()}
    table = pd.DataFrame({names[x]: entries[x] for x in order if x in entries})
    files: dict[Path, Writer] = {}
    for name, text in _side_texts(model, entries).items():
        found = _side_path(file, name) if file.parent.is_dir() else None
        header_only = text.count("\n") == 1
        if (found is None and header_only) or (found and found.read_bytes() == text.encode()):
            continue
        prefix = "" if file.stem == "training" else f"{file.stem}_"
        if file.stem == "test" and found is None and name in ("initial", "parameters"):
            prefix = ""  # the paper's layout: both splits share these
        files[file.with_name(f"{prefix}{name}.csv")] = text
    files[file] = lambda temporary: table.to_csv(temporary, index=False, lineterminator="\n")
    return files


def _side_texts(model: MMDP, entries: Mapping[str, npt.NDArray[Any]]) -> dict[str, str]:
    """The text of every file beside a table; only a header where there is nothing to say."""
    uniform = np.array_equal(model.weights, np.full(model.n_models, 1.0 / model.n_models))
    parameters: dict[str, Any] = {"discount": model.discount}
    if len(np.unique(entries["action"])) < model.n_actions:
        parameters["actions"] = model.n_actions
    if model._missing:
        parameters["allow_missing"] = 1
    labels = [
        (kind, i, label)
        for kind, names in _label_sets(model).items()
        for i, label in enumerate(names or ())
    ]
    draws = {"idoutcome": range(model.n_models), **model.parameters}
    frames = {
        "initial": _numbered("idstate", "probability", model.initial, model.initial_given),
        "parameters": pd.DataFrame(
            {"parameter": list(parameters), "value": np.array([*parameters.values()], dtype=object)}
        ),
        "weights": _numbered("idoutcome", "weight", model.weights, not uniform),
        "terminal": _terminal_frame(model.terminal),
        "labels": pd.DataFrame(labels, columns=["kind", "id", "label"]),
        "draws": pd.DataFrame(draws if model.parameters else {"idoutcome": []}),
    }  # fmt: skip
    return {name: frame.to_csv(index=False, lineterminator="\n") for name, frame in frames.items()}


def _numbered(key: str, value: str, numbers: Array, given: bool) -> pd.DataFrame:
    numbers = numbers if given else numbers[:0]
    return pd.DataFrame({key: np.arange(len(numbers)), value: numbers})


def _terminal_frame(terminal: Array) -> pd.DataFrame:
    if not terminal.any():
        return pd.DataFrame({"idstate": [], "value": []})
    if (terminal == terminal[0]).all():
        return _numbered("idstate", "value", terminal[0], True)
    model, state = np.divmod(np.arange(terminal.size), terminal.shape[1])
    return pd.DataFrame({"idoutcome": model, "idstate": state, "value": terminal.reshape(-1)})


# ====================================================================== writing whole files
def write_whole(path: PathLike, writer: Writer) -> None:
    """Write one file whole or not at all.

    ``writer`` is the text or bytes, or a function that is given the path of a temporary file
    in the same folder (with the same suffix) and writes it. The file takes its name only
    when it is complete; after an error the old file is as it was and no other is left.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "a.json"
    >>> write_whole(target, "{}")
    >>> target.read_text(), len(list(target.parent.iterdir()))
    ('{}', 1)
    """
    write_all({Path(path): writer})


def write_all(files: Mapping[Path, Writer]) -> None:
    """Write several files: all are complete before the first one takes its name."""
    temporary = {path: _temporary(path) for path in files}
    try:
        for path, writer in files.items():
            if path.is_dir():
                raise InputError(f"{path}: is a folder, not a file; give a file name")
            if not path.parent.is_dir():
                raise InputError(f"{path}: no folder {path.parent}; make it first")
            _write_one(temporary[path], path, writer)
        for path in files:
            try:
                os.replace(temporary[path], path)
            except OSError as error:
                raise InputError(f"{path}: cannot be written ({_reason(error)})") from None
    finally:
        for left in temporary.values():
            with suppress(OSError):
                left.unlink()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.stem[:80]}-{uuid.uuid4().hex[:12]}{path.suffix}")


def _write_one(temporary: Path, path: Path, writer: Writer) -> None:
    try:
        if isinstance(writer, str):
            temporary.write_text(writer, encoding="utf-8", newline="")
        elif isinstance(writer, bytes):
            temporary.write_bytes(writer)
        else:
            writer(temporary)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({_reason(error)})") from None


def _reason(error: BaseException) -> str:
    """One short line of an error from below, without our temporary names."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


# ====================================================================== policies
def policy_frame(policy: MarkovPolicy) -> pd.DataFrame:
    """The policy as a tidy table: ``time, state, action``, and ``probability`` if randomised.

    States and actions are labels where the policy has them, and then the ids stand beside
    them as ``idstate, idaction``. A randomised policy lists the actions it may take.

    >>> import mmdp
    >>> policy = mmdp.MarkovPolicy([[0, 1]], state_labels=["up", "down"])
    >>> print(mmdp.io.policy_frame(policy).to_string(index=False))
    time state  action  idstate  idaction
       0    up       0        0         0
       0  down       1        1         1
    """
    policy = _policy_of(policy)
    if policy.deterministic:
        t, s = np.indices(policy.actions.shape).reshape(2, -1)
        a = policy.actions.reshape(-1).astype(np.int64)
    else:
        t, s, a = np.nonzero(policy.probabilities)
    columns: dict[str, Any] = {"time": t, "state": s, "action": a}
    if not policy.deterministic:
        columns["probability"] = policy.probabilities[t, s, a]
    if policy.state_labels is not None:
        columns["state"] = np.array(policy.state_labels, dtype=object)[s]
    if policy.action_labels is not None:
        columns["action"] = np.array(policy.action_labels, dtype=object)[a]
    if policy.state_labels is not None or policy.action_labels is not None:
        columns |= {"idstate": s, "idaction": a}
    return pd.DataFrame(columns)


def save_policy(policy: MarkovPolicy, path: PathLike) -> None:
    """Write a policy as ``.csv``, ``.parquet`` (the table of :func:`policy_frame`) or ``.json``.

    A solution is accepted in place of its policy. JSON keeps everything; a table keeps what
    its rows say (labels of actions that are never taken need the model when loading).

    >>> import tempfile, pathlib, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "policy.csv"
    >>> mmdp.save_policy(mmdp.MarkovPolicy([[0, 1], [1, 1]]), file)
    >>> mmdp.load_policy(file).actions.tolist()
    [[0, 1], [1, 1]]
    """
    policy, target = _policy_of(policy), Path(path)
    if target.suffix == ".csv":
        write_whole(target, policy_frame(policy).to_csv(index=False, lineterminator="\n"))
    elif target.suffix == ".json":
        write_whole(target, json.dumps(_policy_fields(policy, whole=True), indent=1) + "\n")
    elif target.suffix == ".parquet":
        write_whole(target, lambda file: _save_policy_parquet(policy, file))
    else:
        raise InputError(
            f"{target}: unknown suffix {target.suffix!r}; write .csv, .parquet or .json"
        )


def load_policy(path: PathLike, model: MMDP | None = None) -> MarkovPolicy:
    """Read a policy from ``.csv``, ``.parquet`` or ``.json``.

    With ``model``, labels are matched against its labels, and the policy is checked: every
    state at every time, allowed actions only. Without it the ids of the file are used.

    >>> import tempfile, pathlib, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "policy.csv"
    >>> _ = file.write_text("time,state,action\\n0,up,go\\n0,down,stay\\n")
    >>> model = mmdp.MMDP([[[1, 0], [0, 1]], [[1, 0], [0, 1]]], [[0, 1], [0, 1]],
    ...                   states=["up", "down"], actions=["stay", "go"])
    >>> mmdp.load_policy(file, model).actions.tolist()
    [[1, 0]]
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file}: no such file; check the path")
    if file.suffix == ".json":
        policy = _policy_from_json(file)
        if model is not None:
            policy = _policy_from_table(policy_frame(policy), _Source(str(file)), model, {})
    elif file.suffix == ".csv":
        text = _pandas_csv(file, _header(file), str)
        policy = _policy_from_table(text, _Source(str(file), file), model, {})
    elif file.suffix == ".parquet":
        frame, stored = _parquet_table(file)
        policy = _policy_from_table(frame, _Source(str(file)), model, stored or {})
    else:
        raise InputError(f"{file}: unknown suffix {file.suffix!r}; known are .csv, .parquet, .json")
    if model is not None:
        try:
            policy.check(model)
        except InputError as error:
            raise InputError(f"{file}: {error}") from None
    return policy


def _policy_of(policy: Any) -> MarkovPolicy:
    found = policy if isinstance(policy, MarkovPolicy) else getattr(policy, "policy", None)
    if not isinstance(found, MarkovPolicy):
        raise InputError(f"expected a MarkovPolicy, not {type(policy).__name__} without one policy")
    return found


def _policy_fields(policy: MarkovPolicy, *, whole: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "format": POLICY_FORMAT, "horizon": policy.horizon, "n_actions": policy.n_actions,
        "states": policy.state_labels, "actions": policy.action_labels,
    }  # fmt: skip
    if whole:
        key = "policy" if policy.deterministic else "probabilities"
        fields[key] = policy.table.tolist()
    return fields


def _save_policy_parquet(policy: MarkovPolicy, path: Path) -> None:
    pyarrow, parquet = _pyarrow()
    table = pyarrow.Table.from_pandas(policy_frame(policy), preserve_index=False)
    stored = json.dumps(_policy_fields(policy, whole=False)).encode()
    metadata = {**(table.schema.metadata or {}), b"mmdp": stored}
    parquet.write_table(table.replace_schema_metadata(metadata), path)


def _policy_from_json(path: Path) -> MarkovPolicy:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a JSON file ({_reason(error)})") from None
    if not isinstance(stored, dict) or stored.get("format") != POLICY_FORMAT:
        raise InputError(f"{path}: not a policy saved by mmdp (no format {POLICY_FORMAT!r})")
    try:
        return MarkovPolicy(
            stored.get("policy"),
            probabilities=stored.get("probabilities"),
            n_actions=stored.get("n_actions"),
            state_labels=stored.get("states"),
            action_labels=stored.get("actions"),
        )
    except (InputError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {_reason(error)}") from None


POLICY_COLUMNS = ("time", "state", "action", "probability", "idstate", "idaction")


def _policy_from_table(
    frame: pd.DataFrame, source: _Source, model: MMDP | None, stored: dict[str, Any]
) -> MarkovPolicy:
    unknown = [str(x) for x in frame.columns if x not in POLICY_COLUMNS]
    missing = [x for x in POLICY_COLUMNS[:3] if x not in frame.columns]
    if unknown or missing:
        told = [f"unknown column {_suggested(x, list(POLICY_COLUMNS))}" for x in unknown[:1]]
        told += [f"no column {missing[0]!r}"] if missing else []
        source.fail(f"{'; '.join(told)}; a policy has time,state,action[,probability]")
    if not len(frame):
        source.fail("a header but no rows; expected one row per time and state")
    frame = frame.reset_index(drop=True)
    time = _whole(_policy_ids(frame["time"], "time", source), "time", source)
    s, states = _policy_side(frame, "state", source, model, stored)
    a, actions = _policy_side(frame, "action", source, model, stored)
    shape = (
        max(int(time.max()) + 1, int(stored.get("horizon", 0))),
        len(states) if states else (model.n_states if model else int(s.max()) + 1),
        len(actions) if actions else (model.n_actions if model else int(a.max()) + 1),
    )
    if not states or not model:
        shape = (shape[0], shape[1], max(shape[2], int(stored.get("n_actions") or 0)))
    table = _policy_array(frame, (time, s, a), shape, source, model)
    given = {"state_labels": states, "action_labels": actions, "n_actions": shape[2]}
    return (
        MarkovPolicy(table, **given)  # type: ignore[arg-type]
        if table.ndim == 2
        else MarkovPolicy(probabilities=table, **given)  # type: ignore[arg-type]
    )


def _policy_ids(column: pd.Series, name: str, source: _Source) -> Any:
    """A column that must hold numbers."""
    if column.dtype.kind in "if":
        return column
    text = column.astype(str).str.strip()
    bad = np.flatnonzero(pd.to_numeric(text, errors="coerce").isna())
    if len(bad):
        source.fail(f"{name} is {text.iloc[bad[0]]!r}, not a number", int(bad[0]))
    return text.to_numpy(dtype=object).astype(np.float64)


def _policy_side(
    frame: pd.DataFrame, kind: str, source: _Source, model: MMDP | None, stored: dict[str, Any]
) -> tuple[Ints, tuple[str, ...] | None]:
    """Ids and labels of the states or actions of a policy's table."""
    column = frame[kind].astype(str).str.strip()
    id_column = f"id{kind}"
    if model is not None and model.labelled[kind]:
        labels = getattr(model, f"{kind}_labels")
        found = pd.Index(labels).get_indexer(pd.Index(column))
        bad = np.flatnonzero(found < 0)
        if len(bad) and not _all_ids(column, len(labels)):
            source.fail(f"the model has no {kind} {column.iloc[bad[0]]!r}", int(bad[0]))
        ids = found if not len(bad) else column.astype(np.int64).to_numpy()
        return ids.astype(np.int64), labels
    numeric = bool(pd.to_numeric(column, errors="coerce").notna().all())
    if id_column not in frame.columns and not numeric:
        row = int(np.argmax(pd.to_numeric(column, errors="coerce").isna()))
        source.fail(
            f"{kind} {column.iloc[row]!r} is a label without an id; pass the model it belongs to",
            row,
        )
    chosen = frame[id_column] if id_column in frame.columns else column
    ids = _whole(_policy_ids(chosen, id_column, source), kind, source)
    limit = None if model is None else getattr(model, f"n_{kind}s")
    if limit is not None and ids.max() >= limit:
        row = int(np.argmax(ids >= limit))
        source.fail(f"{kind} {ids[row]} does not exist; the model has {shown(limit, kind)}", row)
    if model is not None:
        return ids, None
    names = stored.get(f"{kind}s")
    if names is None and not bool((column == ids.astype(str)).all()) and ids.max() < 2 * len(ids):
        known = dict(zip(ids.tolist(), column, strict=True))
        names = [known.get(i, str(i)) for i in range(int(ids.max()) + 1)]
    return ids, None if names is None else tuple(str(x) for x in names)


def _all_ids(column: pd.Series, size: int) -> bool:
    numbers = pd.to_numeric(column, errors="coerce")
    return bool((numbers.isin(range(size))).all())


def _policy_array(
    frame: pd.DataFrame, ids: tuple[Ints, Ints, Ints], shape: tuple[int, int, int],
    source: _Source, model: MMDP | None,
) -> npt.NDArray[Any]:  # fmt: skip
    """(T, S) actions or (T, S, A) probabilities, with every entry given once."""
    time, s, a = ids
    randomised = "probability" in frame.columns
    horizon, n_states, n_actions = shape
    if horizon * n_states > len(time):  # before an array of that size is made
        seen = set(zip(time.tolist(), s.tolist(), strict=True))
        t0, s0 = next((t, i) for t in range(horizon) for i in range(n_states) if (t, i) not in seen)
        name = model.state_labels[s0] if model is not None else s0
        source.fail(f"no action for time {t0}, state {name!r}; give every state at every time")
    keys = time * n_states + s
    if randomised:
        keys = keys * n_actions + a
    repeated = pd.Series(keys).duplicated().to_numpy()
    if repeated.any():
        row = int(np.argmax(repeated))
        source.fail(
            f"time {time[row]}, state {s[row]} is given twice; keep one row "
            "(or add a probability column for a randomised policy)",
            row,
        )
    if not randomised:
        actions = np.empty((horizon, n_states), dtype=np.int32)
        actions[time, s] = a
        return actions
    table = np.zeros(shape)
    table[time, s, a] = _policy_ids(frame["probability"], "probability", source)
    sums = table.sum(axis=2)
    wrong = ~(np.abs(sums - 1.0) <= 1e-8) | (table < 0).any(axis=2)
    if wrong.any():
        t0, s0 = (int(i) for i in np.argwhere(wrong)[0])
        source.fail(
            f"probabilities at time {t0}, state {s0} sum to {sums[t0, s0]:.10g}, not 1; "
            "give probabilities from 0 to 1 that sum to 1"
        )
    return table
