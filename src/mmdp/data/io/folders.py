"""The paper's CSV folder: the table of transitions and its sidecar files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.errors import InputError, Remedy
from mmdp.core.model import MMDP, Evidence
from mmdp.core.text import did_you_mean, join_or, pluralize
from mmdp.core.transitions import Array
from mmdp.core.validate import parse_distribution
from mmdp.data.io.columns import PAPER_COLUMNS
from mmdp.data.io.ids import AXIS_ROLES, EncodedTransitions, parse_ids
from mmdp.data.io.labels import ColumnLabels
from mmdp.data.io.options import LoadOptions
from mmdp.data.io.reading import TableSource, parse_floats, read_header, read_small_csv
from mmdp.data.io.tables import model_to_columns
from mmdp.data.io.writing import Writer, describe_error, format_csv, replace_files, write_all_atomic

ROWS_PER_WRITE = 10_000  # written at a time
TEXT_FIELDS = ("unit", "quantity", "name", "citation")
PARAMETER_NAMES = ("discount", "actions", "allow_missing", *TEXT_FIELDS)
SIDECARS = ("initial", "parameters", "weights", "terminal", "labels", "draws", "times")
STATE_SIDECARS = ("initial", "terminal")  # which may have a column for the model
TABLE_FILES = tuple(f"{x}.{kind}" for x in ("training", "test") for kind in ("csv", "parquet"))
FIT_FILES = ("counts.csv", "unseen.csv", "fit.json")
_TIDY_TO_PAPER = {
    "state": "idstate",
    "model": "idoutcome",
}  # accepted in place of the paper's names


# ---------------------------------------------------------------------- reading
def read_parameters(file: Path, options: LoadOptions) -> tuple[dict[str, Any], dict[str, int]]:
    """Read fields and sizes from parameters.csv, before the ids are checked."""
    sidecar = _read_sidecar(file, "parameters", ("parameter", "value"), options)
    if sidecar is None:
        return {}, {}
    table, source = sidecar
    names = table["parameter"].str.strip()
    is_known = names.isin(PARAMETER_NAMES).to_numpy()
    if not is_known.all() and options.extra_columns == "error":
        unknown = ", ".join(did_you_mean(x, PARAMETER_NAMES) for x in names[~is_known])
        row = int(np.argmin(is_known))
        source.fail(
            f"unknown parameter {unknown}", row, ["remove it", Remedy("extra_columns", "ignore")]
        )
    _check_no_duplicates(names, "this parameter", source)
    values = {
        names.iloc[row]: _parse_parameter(names.iloc[row], table["value"].iloc[row], row, source)
        for row in np.flatnonzero(is_known).tolist()
    }
    sizes = {"action": int(values.pop("actions"))} if "actions" in values else {}
    if "allow_missing" in values:
        values["allow_missing"] = bool(values["allow_missing"])
    return values, sizes


def _parse_parameter(name: str, text: str, row: int, source: TableSource) -> str | float:
    """Parse the value of a parameter: text, a discount or a whole number."""
    if name in TEXT_FIELDS:
        return text
    try:
        number = float(text)
    except ValueError:
        source.fail(f"{name} is {text!r}, not a number; give one", row)
    if name == "discount" and not 0 <= number <= 1:
        source.fail(f"discount must be from 0 to 1, not {text}", row)
    if name != "discount" and not (number.is_integer() and 0 <= number < 2**31):
        source.fail(f"{name} is {text!r}; give a whole number", row)
    return number


def read_sidecars(file: Path, encoded: EncodedTransitions, options: LoadOptions) -> dict[str, Any]:
    """Read the fields in the sidecar files of a table, except parameters.csv."""
    fields: dict[str, Any] = _read_labels(file, encoded, options)
    fields["initial"] = _read_initial(file, encoded, options)
    fields["weights"] = _read_weights(file, encoded, options)
    fields["terminal"] = _read_state_values(file, "terminal", "value", encoded, options)
    fields["parameters"] = _read_parameter_samples(file, encoded)
    fields["time_labels"] = _read_time_labels(file)
    return fields


def read_evidence(folder: Path, model: MMDP) -> Evidence | None:
    """Read the counts and the prior that the models of a folder were fitted to; None without."""
    counts_path, summary_path = folder / "counts.csv", folder / "fit.json"
    if not (counts_path.is_file() and summary_path.is_file()):
        return None
    prior = json.loads(summary_path.read_text(encoding="utf-8")).get("prior")
    table = read_small_csv(counts_path, read_header(counts_path))
    if prior is None or list(table) != ["state", "action", "next_state", "count"]:
        return None
    id_columns = [
        ColumnLabels(axis, len(labels), labels).find_ids(table[name])
        for name, axis, labels in (
            ("state", "state", model.state_labels),
            ("action", "action", model.action_labels),
            ("next_state", "state", model.state_labels),
        )
    ]
    if min(int(x.min(initial=0)) for x in id_columns) < 0:
        return None  # the counts are of other models
    keys = np.ravel_multi_index(
        tuple(id_columns), (model.n_states, model.n_actions, model.n_states)
    )
    order = np.argsort(keys)
    transition_counts = parse_floats(table["count"], "count", TableSource(counts_path)).astype(
        np.int64
    )
    return Evidence(keys[order], transition_counts[order], prior)


def _read_weights(file: Path, encoded: EncodedTransitions, options: LoadOptions) -> Array | None:
    """Read the weights (M,) of the models."""
    sidecar = _read_sidecar(file, "weights", ("idoutcome", "weight"), options)
    if sidecar is None:
        return None
    table, source = sidecar
    model_ids = encoded.find_ids("model", table["idoutcome"], source)
    _check_no_duplicates(model_ids, "this model", source)
    weights = np.zeros(encoded.sizes["model"])
    weights[model_ids] = parse_floats(table["weight"], "weight", source)
    return _check_distribution(weights, "weights", "model", source, encoded, options)


def _read_initial(file: Path, encoded: EncodedTransitions, options: LoadOptions) -> Array | None:
    """Read the initial distribution (S,) or (M, S)."""
    path, probs = (
        _find_sidecar(file, "initial"),
        _read_state_values(file, "initial", "probability", encoded, options),
    )
    if path is None or probs is None:
        return None
    source = TableSource(path)
    if probs.ndim == 1:
        return _check_distribution(probs, "initial", "state", source, encoded, options)
    labels = encoded.labels.get("model", range(len(probs)))
    names = [f"initial of model {x}" for x in labels]
    for name, row in zip(names, probs, strict=True):
        if not row.any():
            source.fail(f"{name} is 0 in every state; give every model its initial states")
    return np.array(
        [
            _check_distribution(x, name, "state", source, encoded, options)
            for x, name in zip(probs, names, strict=True)
        ]
    )


def _check_distribution(
    probs: Array,
    name: str,
    axis: str,
    source: TableSource,
    encoded: EncodedTransitions,
    options: LoadOptions,
) -> Array:
    """Check a distribution, after normalization if the options say so."""
    if options.normalize and probs.sum() > 0:
        probs = probs / probs.sum()
    with source.prefix_errors():
        return parse_distribution(
            probs, name, ColumnLabels(axis, len(probs), encoded.labels.get(axis))
        )


def _read_labels(file: Path, encoded: EncodedTransitions, options: LoadOptions) -> dict[str, Any]:
    """Read labels of states, actions and models."""
    sidecar = _read_sidecar(file, "labels", ("kind", "id", "label"), options)
    if sidecar is None:
        return {}
    table, source = sidecar
    source.fail_where(
        ~table["kind"].isin(list(AXIS_ROLES)),
        lambda i: f"kind is {table['kind'].iloc[i]!r}; it must be state, action or model",
    )
    if file.stem == "test" and source.location == file.with_name("labels.csv"):
        table = table[table["kind"] != "model"]  # those name the models of training.csv
    fields: dict[str, Any] = {}
    for axis, axis_rows in table.groupby("kind"):
        axis = str(axis)
        axis_ids = encoded.find_ids(axis, axis_rows["id"], source)
        _check_no_duplicates(
            pd.Series(axis_ids, axis_rows.index), f"the label of this {axis}", source
        )
        if len(axis_rows) != encoded.sizes[axis]:
            missing_id = min(set(range(encoded.sizes[axis])) - set(axis_ids.tolist()))
            source.fail(f"no label for {axis} {missing_id}; label every {axis} or none")
        if axis in encoded.labels and axis not in encoded.relabeled:
            source.fail(f"labels of {axis}s are in the transitions already; give them once")
        fields[f"{axis}s"] = axis_rows["label"].iloc[np.argsort(axis_ids)].tolist()
    return fields


def _read_state_values(
    file: Path, name: str, value_column: str, encoded: EncodedTransitions, options: LoadOptions
) -> Array | None:
    """Read values of states (S,), 0 if left out; (M, S) if there is a column of models."""
    has_models = _has_model_column(_find_sidecar(file, name))
    expected = ("idoutcome", "idstate", value_column) if has_models else ("idstate", value_column)
    sidecar = _read_sidecar(file, name, expected, options)
    if sidecar is None:
        return None
    table, source = sidecar
    state_ids = encoded.find_ids("state", table["idstate"], source)
    model_ids = (
        encoded.find_ids("model", table["idoutcome"], source)
        if has_models
        else np.zeros_like(state_ids)
    )
    _check_no_duplicates(
        model_ids * encoded.sizes["state"] + state_ids, f"this {name} {value_column}", source
    )
    values = np.zeros((encoded.sizes["model"] if has_models else 1, encoded.sizes["state"]))
    values[model_ids, state_ids] = parse_floats(table[value_column], value_column, source)
    return values if has_models else values[0]


def _read_parameter_samples(file: Path, encoded: EncodedTransitions) -> dict[str, Array] | None:
    """Read the parameters of each model from draws.csv."""
    sidecar = _read_sidecar(file, "draws", ("idoutcome",), None)
    if sidecar is None:
        return None
    table, source = sidecar
    model_ids = encoded.find_ids("model", table["idoutcome"], source)
    _check_no_duplicates(model_ids, "this model", source)
    if len(model_ids) != encoded.sizes["model"]:
        source.fail(
            f"{pluralize(len(model_ids), 'row')} for "
            f"{pluralize(encoded.sizes['model'], 'model')}; give one row per model"
        )
    order = np.argsort(model_ids)
    names = [str(name) for name in table.columns if name != "idoutcome"]
    return {name.strip(): parse_floats(table[name], name, source)[order] for name in names}


def _read_time_labels(file: Path) -> dict[str, list[str]] | None:
    """Read the labels of decisions; the second column names their axis."""
    sidecar = _read_sidecar(file, "times", ("time",), None)
    if sidecar is None:
        return None
    table, source = sidecar
    names = [str(name) for name in table.columns if name != "time"]
    if len(names) != 1:
        source.fail("expected time and a column of labels, such as time,age")
    times = parse_ids(parse_floats(table["time"], "time", source), "time", source)
    _check_no_duplicates(times, "this time", source)
    if times.max() >= len(times):
        missing_time = min({*range(len(times))} - {*times.tolist()})
        source.fail(f"no label for time {missing_time}; label every time")
    labels = table[names[0]].iloc[np.argsort(times)].tolist()
    return {names[0] if names[0] != "label" else "time": labels}


def _has_model_column(path: Path | None) -> bool:
    """Whether a table by state has a column for the model."""
    return path is not None and not {"idoutcome", "model"}.isdisjoint(read_header(path))


def _find_sidecar(file: Path, name: str) -> Path | None:
    """Find the sidecar file ``name`` of a table; None if there is none."""
    own_path, shared_path = file.with_name(f"{file.stem}_{name}.csv"), file.with_name(f"{name}.csv")
    if own_path.is_file() and file.stem != "training":
        return own_path
    if not shared_path.is_file() or shared_path == file:
        return None
    belongs_to_training = file.stem == "test" and (
        name in ("weights", "draws") or (name in STATE_SIDECARS and _has_model_column(shared_path))
    )
    return None if belongs_to_training else shared_path


def _read_sidecar(
    file: Path, name: str, expected: Sequence[str], options: LoadOptions | None
) -> tuple[pd.DataFrame, TableSource] | None:
    """Read a sidecar file as text with the expected columns; None if it is missing or empty.

    Without ``options`` it may have other columns too.
    """
    path = _find_sidecar(file, name)
    if path is None:
        return None
    source = TableSource(path)
    names: list[str] = []
    for column in read_header(path):  # of two columns of one role, the first is used
        role = column if column in expected else _TIDY_TO_PAPER.get(column, "")
        is_first = role in expected and role not in names
        names.append(role if is_first else column if column not in names else f" {column}")
    missing = [column for column in expected if column not in names]
    if missing and options is None:
        paper_to_tidy = {paper_name: tidy_name for tidy_name, paper_name in _TIDY_TO_PAPER.items()}
        source.fail(
            f"no column {join_or(repr(paper_to_tidy.get(column, column)) for column in missing)}",
            remedies=["add it", Remedy("sidecars", False, verb="leave the file unread with")],
        )
    unknown = [column for column in names if column not in expected]
    if missing or (unknown and options is not None and options.extra_columns == "error"):
        problems = [f"unknown column {did_you_mean(column, expected)}" for column in unknown]
        problems += [f"no column {column!r}" for column in missing]
        source.fail(f"{'; '.join(problems)}; expected {','.join(expected)}")
    table = read_small_csv(path, names)
    return (table, source) if len(table) else None


def _check_no_duplicates(
    values: npt.NDArray[Any] | pd.Series, subject: str, source: TableSource
) -> None:
    """Refuse values that occur twice."""
    series = pd.Series(values)
    is_duplicate = series.duplicated().to_numpy()
    if is_duplicate.any():
        source.fail(f"{subject} is given twice; keep one row", int(series.index[is_duplicate][0]))


# ---------------------------------------------------------------------- writing
def is_read_with(file: Path, model_path: Path) -> bool:
    """Whether ``file`` is, or would be, read when models are loaded from ``model_path``."""
    folder, resolved = (model_path if model_path.is_dir() else model_path.parent), file.resolve()
    if resolved == model_path.resolve() or resolved.parent != folder.resolve():
        return resolved == model_path.resolve()
    if not model_path.is_dir() and model_path.stem not in ("training", "test"):
        return resolved.stem in (
            *SIDECARS,
            *(f"{model_path.stem}_{sidecar}" for sidecar in SIDECARS),
        )
    plain_stem = resolved.stem.removeprefix("test_").removeprefix("true_")
    return plain_stem in (*SIDECARS, "training", "test", "true", "model")


def save_csv(model: MMDP, file: Path) -> None:
    """Write the table of a model, and sidecar files for its other fields."""
    if model.is_switching:
        raise InputError(f"{file}: a CSV cannot hold models that switch; save as .npz or .parquet")
    table = model_to_columns(model)
    names = {role: name for name, role in PAPER_COLUMNS.items()}
    order = ("state", "action", "next_state", "model", "time", "probability", "reward")
    columns = {names[role]: table[role] for role in order if role in table}
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


def _write_rows(columns: Mapping[str, npt.NDArray[Any]], path: Path) -> None:
    """Write columns of ids and floats as CSV with all digits, faster than pandas."""
    ids = [x for x in columns.values() if x.dtype.kind == "i"]
    max_id = max(int(x.max(initial=0)) for x in ids)
    id_texts = np.array([str(i) for i in range(max_id + 1)], dtype=object)
    n_rows = len(next(iter(columns.values())))
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write(",".join(columns) + "\n")
        for start in range(0, n_rows, ROWS_PER_WRITE):
            blocks = (x[start : start + ROWS_PER_WRITE] for x in columns.values())
            cells = [
                id_texts[x].tolist() if x.dtype.kind == "i" else [repr(y) for y in x.tolist()]
                for x in blocks
            ]
            stream.write("\n".join(map(",".join, zip(*cells, strict=True))) + "\n")


def save_folder(model: MMDP, folder: Path, name: str) -> None:
    """Write a model into a folder, which is created, and removed again if writing fails."""
    is_new = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot make the folder ({describe_error(error)})") from None
    try:
        save_csv(model, folder / name)
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


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


def _make_sidecar_frames(
    model: MMDP, table: Mapping[str, npt.NDArray[Any]]
) -> dict[str, pd.DataFrame]:
    """Make the table of every sidecar file of a model; without rows if it is not needed."""
    is_uniform = np.array_equal(model.weights, np.full(model.n_models, 1.0 / model.n_models))
    parameters: dict[str, Any] = {"discount": model.discount}
    if len(np.unique(table["action"])) < model.n_actions:
        parameters["actions"] = model.n_actions
    if model.to_kwargs()["allow_missing"]:
        parameters["allow_missing"] = 1
    parameters |= {x: y for x in TEXT_FIELDS if (y := getattr(model, x)) is not None}
    samples = {_choose_model_column(model.parameters): range(model.n_models), **model.parameters}
    return {
        "initial": _make_state_frame("probability", model.initial, model.has_initial),
        "parameters": pd.DataFrame(
            parameters.items(), columns=["parameter", "value"], dtype=object
        ),
        "weights": _make_indexed_frame("idoutcome", "weight", model.weights, not is_uniform),
        "terminal": _make_state_frame("value", model.terminal, bool(model.terminal.any())),
        "labels": _make_labels_frame(model),
        "draws": pd.DataFrame(samples if model.parameters else {"idoutcome": []}),
        "times": pd.DataFrame(
            enumerate(model.time_labels.labels),
            columns=["time", model.time_labels.column_name],
            dtype=object,
        ),
    }


def _choose_model_column(parameters: Mapping[str, Array]) -> str:
    """Choose a name for the column of models in draws.csv that no parameter has."""
    names = [name.strip() for name in parameters]  # as they are read
    unused_names = [x for x in ("idoutcome", "model") if x not in names]
    if not unused_names or len(set(names)) < len(names):
        clash = "idoutcome and model" if not unused_names else "the same but for blanks"
        raise InputError(
            f"two parameters are called {clash}, which draws.csv cannot tell apart",
            ["rename one", "save as .npz or .parquet"],
        )
    return unused_names[0]


def _make_indexed_frame(
    id_column: str, value_column: str, array: Array, is_given: bool = True
) -> pd.DataFrame:
    """Make a table of ids and values; without rows if the values are not given."""
    array = array if is_given else array[:0]
    return pd.DataFrame({id_column: np.arange(len(array)), value_column: array})


def _make_state_frame(value_column: str, array: Array, is_given: bool) -> pd.DataFrame:
    """Make a table of values of states (S,) or (M, S), by model only if models differ."""
    rows = np.atleast_2d(array)
    if not is_given or (rows == rows[0]).all():
        return _make_indexed_frame("idstate", value_column, rows[0], is_given)
    model, state = np.divmod(np.arange(rows.size), rows.shape[1])
    return pd.DataFrame({"idoutcome": model, "idstate": state, value_column: rows.reshape(-1)})


def _make_labels_frame(model: MMDP) -> pd.DataFrame:
    """Make the table of labels by axis and id, without those that only repeat the ids."""
    rows: list[tuple[str, int, str]] = []
    for axis in AXIS_ROLES:
        indexed_labels = list(enumerate(getattr(model, f"{axis}_labels")))
        if any(label != str(i) for i, label in indexed_labels):
            rows += [(axis, i, label) for i, label in indexed_labels]
    return pd.DataFrame(rows, columns=["kind", "id", "label"])
