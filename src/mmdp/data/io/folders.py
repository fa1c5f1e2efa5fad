"""The paper's CSV folder: the table of transitions and its sidecar files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from mmdp.core.errors import InputError, Remedy
from mmdp.core.model import MMDP, Evidence
from mmdp.core.shapes import Array
from mmdp.core.text import did_you_mean
from mmdp.core.validate import parse_distribution
from mmdp.data.io.reading import read_csv, read_header
from mmdp.data.io.tables import EncodedTransitions, LoadOptions, TableColumns, model_to_columns
from mmdp.data.io.writing import Writer, format_csv, replace_files, write_all_atomic
from mmdp.data.schema import (
    AXIS_BY_ROLE,
    AXIS_ROLES,
    PAPER_COLUMNS,
    ColumnLabels,
    Fields,
    Table,
    TableSource,
    assign_roles,
)

TEXT_FIELDS = ("unit", "quantity", "name", "citation")
PARAMETER_NAMES = ("discount", "actions", "allow_missing", *TEXT_FIELDS)
SIDECARS = {  # the columns of each file; those of values may be by model too
    "initial": ("state", "probability"),
    "weights": ("model", "weight"),
    "terminal": ("state", "value"),
    "parameters": ("parameter", "value"),
    "labels": ("kind", "id", "label"),
    "draws": ("model",),  # and others
    "times": ("time",),
}
VALUE_SIDECARS = ("initial", "weights", "terminal")
TABLE_FILES = tuple(f"{x}.{kind}" for x in ("training", "test") for kind in ("csv", "parquet"))
FIT_FILES = ("counts.csv", "unseen.csv", "fit.json")
ID_COLUMNS = {"state": "idstate", "model": "idoutcome"}  # the paper's names
ROLES_BY_COLUMN = {column: role for role, column in ID_COLUMNS.items()}


# ---------------------------------------------------------------------- reading
def read_parameters(file: Path, options: LoadOptions) -> Fields:
    """Read fields from parameters.csv before the ids are checked; ``actions`` is their number."""
    table = _read_sidecar(file, "parameters", options)
    if table is None:
        return {}
    source, names, fields = table.source, table["parameter"].str.strip(), {}
    if options.extra_columns == "error":
        source.fail_where(
            ~names.isin(PARAMETER_NAMES),
            lambda i: f"unknown parameter {did_you_mean(names.iloc[i], PARAMETER_NAMES)}",
            ["remove it", Remedy("extra_columns", "ignore")],
        )
    source.check_unique(names, "this parameter")
    for row, (name, text) in enumerate(zip(names, table["value"], strict=True)):
        if name in TEXT_FIELDS:
            fields[name] = text
        elif name in PARAMETER_NAMES:
            fields[name] = _parse_parameter(name, text, row, source)
    return fields


def _parse_parameter(name: str, text: str, row: int, source: TableSource) -> float:
    """Parse a discount, a number of actions or 1 for yes."""
    try:
        number = float(text)
    except ValueError:
        source.fail(f"{name} is {text!r}, not a number; give one", row)
    if name == "discount":
        if not 0 <= number <= 1:
            source.fail(f"discount must be from 0 to 1, not {text}", row)
        return number
    if not (number.is_integer() and 0 <= number < 2**31):
        source.fail(f"{name} is {text!r}; give a whole number", row)
    return bool(number) if name == "allow_missing" else int(number)


def read_sidecars(file: Path, encoded: EncodedTransitions, options: LoadOptions) -> Fields:
    """Read the fields in the sidecar files of a table, except parameters.csv."""
    fields = _read_labels(file, encoded, options)
    for name in VALUE_SIDECARS:
        table = _read_sidecar(file, name, options)
        if table is not None:
            value = SIDECARS[name][-1]
            axes = {x: encoded.axes[x] for x in ("model", "state") if x in table}
            values = table.read_values(value, axes)
            if name != "terminal":
                values = _parse_distributions(values, name, axes, table.source, options)
            fields[name] = values
    fields["parameters"] = _read_parameter_samples(file, encoded.axes["model"])
    fields["time_labels"] = _read_time_labels(file)
    return fields


def _parse_distributions(
    probs: Array,
    name: str,
    axes: Mapping[str, ColumnLabels],
    source: TableSource,
    options: LoadOptions,
) -> Array:
    """Parse distributions along the last axis, and normalize them if the options say so."""
    sums = probs.sum(axis=-1, keepdims=True)
    if probs.ndim > 1:
        for model, row in zip(axes["model"].names, probs, strict=True):
            if not row.any():
                source.fail(
                    f"{name} of model {model} is 0 in every state; give every model its initial "
                    "states"
                )
    if options.normalize:
        probs = np.divide(probs, sums, out=probs.copy(), where=sums > 0)
    with source.prefix_errors():
        return parse_distribution(probs, name, *axes.values())


def read_evidence(folder: Path, model: MMDP) -> Evidence | None:
    """Read the counts and the prior that the models of a folder were fitted to; None without."""
    counts_path, summary_path = folder / "counts.csv", folder / "fit.json"
    if not (counts_path.is_file() and summary_path.is_file()):
        return None
    prior = json.loads(summary_path.read_text(encoding="utf-8")).get("prior")
    names, roles = read_header(counts_path), ("state", "action", "next_state")
    if prior is None or names != [*roles, "count"]:
        return None
    table = Table.from_frame(read_csv(counts_path, names), TableSource(counts_path))
    axes = {role: ColumnLabels(*model.label_index(AXIS_BY_ROLE[role])) for role in roles}
    try:
        keys = table.find_cells(axes, "this transition")
    except InputError:
        return None  # the counts are of other models
    order = np.argsort(keys)
    return Evidence(keys[order], table.parse_floats("count").astype(np.int64)[order], prior)


def _read_labels(file: Path, encoded: EncodedTransitions, options: LoadOptions) -> Fields:
    """Read labels of states, actions and models."""
    table = _read_sidecar(file, "labels", options)
    if table is None:
        return {}
    source, kind = table.source, table["kind"]
    source.fail_where(
        ~kind.isin([*AXIS_ROLES]),
        lambda i: f"kind is {kind.iloc[i]!r}; it must be state, action or model",
    )
    if file.stem == "test" and source.location == file.with_name("labels.csv"):
        kind = kind.replace("model", "")  # those name the models of training.csv
    fields: Fields = {}
    for axis in AXIS_ROLES:
        index = encoded.axes[axis]
        is_own = (kind == axis).to_numpy()
        ids = np.where(is_own, index.find_ids(table["id"]), np.arange(len(table)) + index.size)
        source.fail_where(ids < 0, lambda i: f"no {kind.iloc[i]} {table['id'].iloc[i]!r} is known")
        source.check_unique(pd.Series(ids), f"the label of this {axis}")
        labels = table["label"]
        is_repeated = is_own & labels.where(is_own).duplicated().to_numpy()
        if is_repeated.any():
            row = int(np.argmax(is_repeated))
            source.fail(f"{axis} label {labels.iloc[row]!r} is used twice; give each its own", row)
        if is_own.any():
            if index.labels is not None:
                source.fail(f"labels of {axis}s are in the transitions already; give them once")
            order = table.sort_rows(ids, index.size, axis, "label")[: index.size]
            fields[f"{axis}s"] = table["label"].iloc[order].tolist()
    return fields


def _read_parameter_samples(file: Path, models: ColumnLabels) -> dict[str, Array] | None:
    """Read the parameters of each model from draws.csv."""
    table = _read_sidecar(file, "draws")
    if table is None:
        return None
    model_ids = models.parse_ids(table["model"], table.source)
    order = table.sort_rows(model_ids, models.size, "model")
    return {x.strip(): table.parse_floats(x)[order] for x in table.columns if x != "model"}


def _read_time_labels(file: Path) -> dict[str, list[str]] | None:
    """Read the labels of decisions; the second column names their axis."""
    table = _read_sidecar(file, "times")
    if table is None:
        return None
    names = [str(name) for name in table.columns if name != "time"]
    if len(names) != 1:
        table.source.fail("expected time and a column of labels, such as time,age")
    order = table.sort_rows(table.parse_ids("time"), len(table), "time", "label")
    labels = table[names[0]].iloc[order].tolist()
    return {names[0] if names[0] != "label" else "time": labels}


def _find_sidecar(file: Path, name: str) -> Path | None:
    """Find the sidecar file ``name`` of a table; None if there is none."""
    own_path, shared_path = file.with_name(f"{file.stem}_{name}.csv"), file.with_name(f"{name}.csv")
    if own_path.is_file() and file.stem != "training":
        return own_path
    if not shared_path.is_file() or shared_path == file:
        return None
    is_by_model = name in ("weights", "draws") or (
        name in VALUE_SIDECARS and not {"idoutcome", "model"}.isdisjoint(read_header(shared_path))
    )
    return None if file.stem == "test" and is_by_model else shared_path


def _read_sidecar(file: Path, name: str, options: LoadOptions | None = None) -> Table | None:
    """Read a sidecar file as text; None if it is missing or empty.

    Without ``options`` it may have other columns too.
    """
    path, required = _find_sidecar(file, name), SIDECARS[name]
    if path is None:
        return None
    known = {*required, *(["model"] if name in VALUE_SIDECARS else [])}
    names: list[str] = []
    for column in read_header(path):  # of two columns of one role, the first is used
        role = ROLES_BY_COLUMN.get(column, column)
        is_first = role in known and role not in names
        names.append(role if is_first else column if column not in names else f" {column}")
    source, can_ignore, expected = TableSource(path), True, ""
    remedies: list[str | Remedy] = [
        "add it",
        Remedy("sidecars", False, verb="leave the file unread with"),
    ]
    if options is not None:
        can_ignore, expected = options.extra_columns == "ignore", f"expected {','.join(required)}"
        remedies = []
    assign_roles(names, known, required, source, expected, remedies, ignore_unknown=can_ignore)
    frame = read_csv(path, names)
    return Table.from_frame(frame, source) if len(frame) else None


# ---------------------------------------------------------------------- writing
def is_read_with(file: Path, model_path: Path) -> bool:
    """Return whether ``file`` is, or would be, read when models are loaded from ``model_path``."""
    folder, resolved = (model_path if model_path.is_dir() else model_path.parent), file.resolve()
    if resolved == model_path.resolve() or resolved.parent != folder.resolve():
        return resolved == model_path.resolve()
    if not model_path.is_dir() and model_path.stem not in ("training", "test"):
        return resolved.stem.removeprefix(f"{model_path.stem}_") in SIDECARS
    plain_stem = resolved.stem.removeprefix("test_").removeprefix("true_")
    return plain_stem in (*SIDECARS, "training", "test", "true", "model")


def save_csv(model: MMDP, file: Path) -> None:
    """Write the table of a model, and sidecar files for its other fields."""
    if model.is_switching:
        raise InputError(f"{file}: a CSV cannot hold models that switch; save as .npz or .parquet")
    table = model_to_columns(model)
    columns = {name: table[role] for name, role in PAPER_COLUMNS.items() if role in table}
    files: dict[Path, Writer] = {}
    for name, sidecar_frame in _make_sidecar_frames(model, table).items():
        text = format_csv(sidecar_frame)
        existing = _find_sidecar(file, name) if file.parent.is_dir() else None
        is_unneeded = existing is None and not len(sidecar_frame)
        if is_unneeded or (existing is not None and existing.read_bytes() == text.encode()):
            continue
        # the paper's layout: both splits share initial.csv and parameters.csv
        is_shared = file.stem == "test" and existing is None and name in ("initial", "parameters")
        prefix = "" if is_shared or file.stem == "training" else f"{file.stem}_"
        files[file.with_name(f"{prefix}{name}.csv")] = text
    files[file] = lambda temp_path: _write_rows(columns, temp_path)
    write_all_atomic(files)


def _write_rows(columns: TableColumns, path: Path) -> None:
    """Write columns of ids and floats as CSV with all digits."""
    pd.DataFrame(columns, copy=False).to_csv(path, index=False, lineterminator="\n")


def save_folder(model: MMDP, folder: Path, name: str) -> None:
    """Write a model into a folder; a new one is made whole or not at all."""
    if folder.exists():
        save_csv(model, folder / name)
        return
    if not folder.parent.is_dir():
        raise InputError(f"{folder}: no folder {folder.parent}; make it first")
    with replace_files(folder, ()) as temp_folder:
        save_csv(model, temp_folder / name)


def replace_folder(
    folder: Path,
    train: MMDP,
    test: MMDP | None = None,
    extra_files: Mapping[str, Writer] | None = None,
) -> None:
    """Replace the models of a folder, and ``extra_files`` by name: all or none.

    All files of earlier models are removed, as they would be read with the new ones; other files
    stay.
    """
    sidecar_files = [f"{prefix}{sidecar}.csv" for prefix in ("", "test_") for sidecar in SIDECARS]
    with replace_files(
        folder, [*TABLE_FILES, "model.npz", *sidecar_files, *FIT_FILES]
    ) as temp_folder:
        save_csv(train, temp_folder / "training.csv")
        if test is not None:
            save_csv(test, temp_folder / "test.csv")
        if extra_files:
            write_all_atomic({temp_folder / name: writer for name, writer in extra_files.items()})


def _make_sidecar_frames(model: MMDP, table: TableColumns) -> dict[str, pd.DataFrame]:
    """Make the table of every sidecar file of a model; without rows if it is not needed."""
    parameters: Fields = {"discount": model.discount}
    if len(np.unique(table["action"])) < model.n_actions:
        parameters["actions"] = model.n_actions
    if model.has_missing_actions:
        parameters["allow_missing"] = 1
    parameters |= {x: y for x in TEXT_FIELDS if (y := getattr(model, x)) is not None}
    labels = {axis: getattr(model, f"{axis}_labels") for axis in AXIS_ROLES}
    label_rows = [  # without labels that only repeat the ids
        (axis, i, label)
        for axis, names in labels.items()
        if names != tuple(map(str, range(len(names))))
        for i, label in enumerate(names)
    ]
    samples = {_choose_model_column(model.parameters): range(model.n_models), **model.parameters}
    time_labels = model.time_labels
    arrays = {
        "initial": model.initial if model.has_initial else None,
        "weights": None if (model.weights == 1.0 / model.n_models).all() else model.weights,
        "terminal": model.terminal if model.terminal.any() else None,
    }
    return {
        **{name: _make_value_frame(name, array) for name, array in arrays.items()},
        "parameters": pd.DataFrame(
            parameters.items(), columns=["parameter", "value"], dtype=object
        ),
        "labels": pd.DataFrame(label_rows, columns=["kind", "id", "label"]),
        "draws": pd.DataFrame(samples if model.parameters else {"idoutcome": []}),
        "times": pd.DataFrame(
            enumerate(time_labels.labels), columns=["time", time_labels.column_name], dtype=object
        ),
    }


def _make_value_frame(name: str, array: Array | None) -> pd.DataFrame:
    """Make the table of a field by state or model, or by both if models differ; None: no rows."""
    axis, value_column = SIDECARS[name]
    values = np.zeros(0) if array is None else array
    if values.ndim == 2 and (values == values[0]).all():
        values = values[0]
    columns = ["idoutcome", ID_COLUMNS[axis], value_column][-1 - values.ndim :]
    ids = np.indices(values.shape).reshape(values.ndim, -1)
    return pd.DataFrame(dict(zip(columns, [*ids, values.reshape(-1)], strict=True)))


def _choose_model_column(parameters: Mapping[str, Array]) -> str:
    """Choose a name for the column of models in draws.csv that no parameter has."""
    names = [name.strip() for name in parameters]  # as they are read
    unused_names = [x for x in ("idoutcome", "model") if x not in names]
    if not unused_names or len({*names}) < len(names):
        clash = "the same but for blanks" if unused_names else "idoutcome and model"
        raise InputError(
            f"two parameters are called {clash}, which draws.csv cannot tell apart",
            ["rename one", "save as .npz or .parquet"],
        )
    return unused_names[0]
