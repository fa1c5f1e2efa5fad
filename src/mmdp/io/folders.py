"""The paper's CSV folder: the table of transitions and the small files that go with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.errors import InputError, Remedy
from mmdp.io.columns import PAPER
from mmdp.io.ids import KINDS, Ids, whole
from mmdp.io.labels import Names
from mmdp.io.reading import Source, header, numbers, read_small
from mmdp.io.rules import Rules
from mmdp.io.tables import entries
from mmdp.io.writing import Writer, csv_text, reason, replacing, write_all
from mmdp.model import MMDP, Evidence
from mmdp.support import Array
from mmdp.validate import read_distribution
from mmdp.words import counted, either, suggested

ROWS = 10_000  # written at a time
WORDS = ("unit", "quantity", "name", "citation")
PARAMETERS = ("discount", "actions", "allow_missing", *WORDS)
SIDES = ("initial", "parameters", "weights", "terminal", "labels", "draws", "times")
BY_STATE = ("initial", "terminal")  # which may have a column for the model
TABLES = tuple(f"{x}.{kind}" for x in ("training", "test") for kind in ("csv", "parquet"))
OF_A_FIT = ("counts.csv", "unseen.csv", "fit.json")
_TIDY = {"state": "idstate", "model": "idoutcome"}  # accepted in place of the paper's names


# ---------------------------------------------------------------------- reading
def read_parameters(file: Path, rules: Rules) -> tuple[dict[str, Any], dict[str, int]]:
    """Fields and sizes from parameters.csv, which is needed before the ids can be checked."""
    found = _beside(file, "parameters", ("parameter", "value"), rules)
    if found is None:
        return {}, {}
    table, source = found
    names = table["parameter"].str.strip()
    known = names.isin(PARAMETERS).to_numpy()
    if not known.all() and rules.extra_columns == "error":
        unknown = ", ".join(suggested(x, PARAMETERS) for x in names[~known])
        row = int(np.argmin(known))
        source.fail(
            f"unknown parameter {unknown}", row, ["remove it", Remedy("extra_columns", "ignore")]
        )
    _refuse_repeats(names, "this parameter", source)
    values = {
        names.iloc[row]: _parameter(names.iloc[row], table["value"].iloc[row], row, source)
        for row in np.flatnonzero(known).tolist()
    }
    sizes = {"action": int(values.pop("actions"))} if "actions" in values else {}
    if "allow_missing" in values:
        values["allow_missing"] = bool(values["allow_missing"])
    return values, sizes


def _parameter(name: str, text: str, row: int, source: Source) -> Any:
    if name in WORDS:
        return text
    try:
        number = float(text)
    except ValueError:
        source.fail(f"{name} is {text!r}, not a number", row)
    if name == "discount" and not 0 <= number <= 1:
        source.fail(f"discount must be from 0 to 1, not {text}", row)
    if name != "discount" and not (number.is_integer() and 0 <= number < 2**31):
        source.fail(f"{name} is {text!r}; give a whole number", row)
    return number


def read_sides(file: Path, ids: Ids, rules: Rules) -> dict[str, Any]:
    """The fields that the small files of a table give, except parameters.csv."""
    fields: dict[str, Any] = _read_labels(file, ids, rules)
    fields["initial"] = _read_initial(file, ids, rules)
    fields["weights"] = _read_weights(file, ids, rules)
    fields["terminal"] = _by_state(file, "terminal", "value", ids, rules)
    fields["parameters"] = _read_draws(file, ids)
    fields["times"] = _read_times(file)
    return fields


def read_evidence(folder: Path, model: MMDP) -> Evidence | None:
    """The log that the models of a folder were fitted to; None if its files do not say."""
    counts, document = folder / "counts.csv", folder / "fit.json"
    if not (counts.is_file() and document.is_file()):
        return None
    prior = json.loads(document.read_text(encoding="utf-8")).get("prior")
    table = read_small(counts, header(counts))
    if prior is None or list(table) != ["state", "action", "next_state", "count"]:
        return None
    places = [
        Names(kind, len(labels), labels).find(table[name])
        for name, kind, labels in (
            ("state", "state", model.state_labels), ("action", "action", model.action_labels),
            ("next_state", "state", model.state_labels),
        )
    ]  # fmt: skip
    if min(int(x.min(initial=0)) for x in places) < 0:
        return None  # the models are others by now
    keys = np.ravel_multi_index(tuple(places), (model.n_states, model.n_actions, model.n_states))
    order = np.argsort(keys)
    found = numbers(table["count"], "count", Source(counts)).astype(np.int64)
    return Evidence(keys[order], found[order], prior)


def _read_weights(file: Path, ids: Ids, rules: Rules) -> Array | None:
    """(M,) weights of the models."""
    found = _beside(file, "weights", ("idoutcome", "weight"), rules)
    if found is None:
        return None
    table, source = found
    places = ids.lookup("model", table["idoutcome"], source)
    _refuse_repeats(places, "this model", source)
    result = np.zeros(ids.sizes["model"])
    result[places] = numbers(table["weight"], "weight", source)
    return _checked(result, "weights", "model", source, ids, rules)


def _read_initial(file: Path, ids: Ids, rules: Rules) -> Array | None:
    """(S,) or (M, S) chances of beginning in a state."""
    path, found = _side_path(file, "initial"), _by_state(file, "initial", "probability", ids, rules)
    if path is None or found is None:
        return None
    source = Source(path)
    if found.ndim == 1:
        return _checked(found, "initial", "state", source, ids, rules)
    labels = ids.labels.get("model", range(len(found)))
    names = [f"initial of model {x}" for x in labels]
    for name, row in zip(names, found, strict=True):
        if not row.any():
            source.fail(f"{name} is nowhere; give every model the states that it begins in")
    return np.array([_checked(x, name, "state", source, ids, rules)
                     for x, name in zip(found, names, strict=True)])  # fmt: skip


def _checked(
    array: Array, name: str, kind: str, source: Source, ids: Ids, rules: Rules
) -> Array:  # fmt: skip
    """A distribution, scaled if that is wished."""
    if rules.normalize and array.sum() > 0:
        array = array / array.sum()
    with source.named():
        return read_distribution(array, name, Names(kind, len(array), ids.labels.get(kind)))


def _read_labels(file: Path, ids: Ids, rules: Rules) -> dict[str, Any]:
    found = _beside(file, "labels", ("kind", "id", "label"), rules)
    if found is None:
        return {}
    table, source = found
    source.refuse(
        ~table["kind"].isin(list(KINDS)),
        lambda i: f"kind is {table['kind'].iloc[i]!r}; it must be state, action or model",
    )
    if file.stem == "test" and source.place == file.with_name("labels.csv"):
        table = table[table["kind"] != "model"]  # those name the models of training.csv
    fields: dict[str, Any] = {}
    for kind, part in table.groupby("kind"):
        kind = str(kind)
        places = ids.lookup(kind, part["id"], source)
        _refuse_repeats(pd.Series(places, part.index), f"the label of this {kind}", source)
        if len(part) != ids.sizes[kind]:
            lacking = min(set(range(ids.sizes[kind])) - set(places.tolist()))
            source.fail(f"no label for {kind} {lacking}; label every {kind} or none")
        if kind in ids.labels and kind not in ids.relabelled:
            source.fail(f"labels of {kind}s are in the transitions already; give them once")
        fields[f"{kind}s"] = part["label"].iloc[np.argsort(places)].tolist()
    return fields


def _by_state(file: Path, name: str, value: str, ids: Ids, rules: Rules) -> Array | None:
    """(S,) values of states, 0 if left out; (M, S) if there is a column of models."""
    by_model = _by_model(_side_path(file, name))
    expected = ("idoutcome", "idstate", value) if by_model else ("idstate", value)
    found = _beside(file, name, expected, rules)
    if found is None:
        return None
    table, source = found
    state = ids.lookup("state", table["idstate"], source)
    model = ids.lookup("model", table["idoutcome"], source) if by_model else np.zeros_like(state)
    _refuse_repeats(model * ids.sizes["state"] + state, f"this {name} {value}", source)
    values = np.zeros((ids.sizes["model"] if by_model else 1, ids.sizes["state"]))
    values[model, state] = numbers(table[value], value, source)
    return values if by_model else values[0]


def _read_draws(file: Path, ids: Ids) -> dict[str, Array] | None:
    found = _beside(file, "draws", ("idoutcome",), None)
    if found is None:
        return None
    table, source = found
    places = ids.lookup("model", table["idoutcome"], source)
    _refuse_repeats(places, "this model", source)
    if len(places) != ids.sizes["model"]:
        source.fail(f"{counted(len(places), 'row')} for {counted(ids.sizes['model'], 'model')}")
    order = np.argsort(places)
    names = [str(name) for name in table.columns if name != "idoutcome"]
    return {name.strip(): numbers(table[name], name, source)[order] for name in names}


def _read_times(file: Path) -> dict[str, list[str]] | None:
    """Labels of decisions; the second column names their axis."""
    found = _beside(file, "times", ("time",), None)
    if found is None:
        return None
    table, source = found
    names = [str(name) for name in table.columns if name != "time"]
    if len(names) != 1:
        source.fail("expected time and a column of labels, such as time,age")
    places = whole(numbers(table["time"], "time", source), "time", source)
    _refuse_repeats(places, "this time", source)
    if places.max() >= len(places):
        source.fail(f"no label for time {min({*range(len(places))} - {*places.tolist()})}")
    labels = table[names[0]].iloc[np.argsort(places)].tolist()
    return {names[0] if names[0] != "label" else "time": labels}


def _by_model(path: Path | None) -> bool:
    """Whether a table by state has a column for the model."""
    return path is not None and not {"idoutcome", "model"}.isdisjoint(header(path))


def _side_path(file: Path, name: str) -> Path | None:
    """The file that says ``name`` about ``file``; None if there is none."""
    own, shared = file.with_name(f"{file.stem}_{name}.csv"), file.with_name(f"{name}.csv")
    if own.is_file() and file.stem != "training":
        return own
    if not shared.is_file() or shared == file:
        return None
    of_training = file.stem == "test" and (
        name in ("weights", "draws") or (name in BY_STATE and _by_model(shared))
    )
    return None if of_training else shared


def _beside(
    file: Path, name: str, expected: Sequence[str], rules: Rules | None
) -> tuple[pd.DataFrame, Source] | None:
    """A small CSV as text with the expected columns; None if there is none, or no row in it.

    Without ``rules`` it may have other columns too.
    """
    path = _side_path(file, name)
    if path is None:
        return None
    source = Source(path)
    names: list[str] = []
    for x in header(path):  # of two columns for the same, the first one counts
        role = x if x in expected else _TIDY.get(x, "")
        first = role in expected and role not in names
        names.append(role if first else x if x not in names else f" {x}")
    missing = [x for x in expected if x not in names]
    if missing and rules is None:
        tidy = {paper: plain for plain, paper in _TIDY.items()}
        source.fail(
            f"no column {either(repr(tidy.get(x, x)) for x in missing)}",
            remedies=["add it", Remedy("sides", False, do="leave the file unread with")],
        )
    unknown = [x for x in names if x not in expected]
    if missing or (unknown and rules is not None and rules.extra_columns == "error"):
        problems = [f"unknown column {suggested(x, expected)}" for x in unknown]
        problems += [f"no column {x!r}" for x in missing]
        source.fail(f"{'; '.join(problems)}; expected {','.join(expected)}")
    table = read_small(path, names)
    return (table, source) if len(table) else None


def _refuse_repeats(places: npt.NDArray[Any] | pd.Series, what: str, source: Source) -> None:
    column = pd.Series(places)
    repeated = column.duplicated().to_numpy()
    if repeated.any():
        source.fail(f"{what} is given twice; keep one row", int(column.index[repeated][0]))


# ---------------------------------------------------------------------- writing
def is_read_with(file: Path, data: Path) -> bool:
    """Whether ``file`` is, or would be, read when models are loaded from ``data``."""
    folder, place = (data if data.is_dir() else data.parent), file.resolve()
    if place == data.resolve() or place.parent != folder.resolve():
        return place == data.resolve()
    if not data.is_dir() and data.stem not in ("training", "test"):
        return place.stem in (*SIDES, *(f"{data.stem}_{side}" for side in SIDES))
    plain = place.stem.removeprefix("test_").removeprefix("true_")
    return plain in (*SIDES, "training", "test", "true", "model")


def save_csv(model: MMDP, file: Path) -> None:
    """The table, and the small files for what it does not say."""
    if model.drifts:
        raise InputError(
            f"{file}: tables have no place for models that change; save as .npz or .parquet"
        )
    table = entries(model)
    names = {role: name for name, role in PAPER.items()}
    order = ("state", "action", "next_state", "model", "time", "probability", "reward")
    columns = {names[role]: table[role] for role in order if role in table}
    files: dict[Path, Writer] = {}
    for name, side in _side_frames(model, table).items():
        text = csv_text(side)
        found = _side_path(file, name) if file.parent.is_dir() else None
        unsaid = found is None and not len(side)
        if unsaid or (found is not None and found.read_bytes() == text.encode()):
            continue
        # the paper's layout: both splits share initial.csv and parameters.csv
        shared = file.stem == "test" and found is None and name in ("initial", "parameters")
        prefix = "" if shared or file.stem == "training" else f"{file.stem}_"
        files[file.with_name(f"{prefix}{name}.csv")] = text
    files[file] = lambda place: _write_rows(columns, place)
    write_all(files)


def _write_rows(columns: Mapping[str, npt.NDArray[Any]], place: Path) -> None:
    """Ids and floats as CSV, every bit kept: what pandas writes, in a quarter of its time."""
    ids = [x for x in columns.values() if x.dtype.kind == "i"]
    highest = max(int(x.max(initial=0)) for x in ids)
    written = np.array([str(i) for i in range(highest + 1)], dtype=object)
    length = len(next(iter(columns.values())))
    with place.open("w", encoding="utf-8", newline="") as out:
        out.write(",".join(columns) + "\n")
        for start in range(0, length, ROWS):
            parts = (x[start : start + ROWS] for x in columns.values())
            cells = [
                written[x].tolist() if x.dtype.kind == "i" else [repr(y) for y in x.tolist()]
                for x in parts
            ]
            out.write("\n".join(map(",".join, zip(*cells, strict=True))) + "\n")


def save_folder(model: MMDP, folder: Path, name: str) -> None:
    """Write into the folder, which is created, and removed again if writing fails."""
    made = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot make the folder ({reason(error)})") from None
    try:
        save_csv(model, folder / name)
    except BaseException:
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise


def replace_folder(
    folder: Path, train: MMDP, test: MMDP | None = None, more: Mapping[str, Writer] | None = None
) -> None:
    """Write models, and ``more`` files by name, in place of those in the folder: all or none.

    Everything that earlier models had there goes, for it would be read with the new ones; no
    other file is touched.
    """
    sides = [f"{prefix}{side}.csv" for prefix in ("", "test_") for side in SIDES]
    with replacing(folder, [*TABLES, "model.npz", *sides, *OF_A_FIT]) as place:
        save_csv(train, place / "training.csv")
        if test is not None:
            save_csv(test, place / "test.csv")
        if more:
            write_all({place / name: writer for name, writer in more.items()})


def _side_frames(
    model: MMDP, table: Mapping[str, npt.NDArray[Any]]
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """Every small file that a table may have; without rows if there is nothing to say."""
    uniform = np.array_equal(model.weights, np.full(model.n_models, 1.0 / model.n_models))
    parameters: dict[str, Any] = {"discount": model.discount}
    if len(np.unique(table["action"])) < model.n_actions:
        parameters["actions"] = model.n_actions
    if model.fields()["allow_missing"]:
        parameters["allow_missing"] = 1
    parameters |= {x: y for x in WORDS if (y := getattr(model, x)) is not None}
    draws = {_id_of_draws(model.parameters): range(model.n_models), **model.parameters}
    return {
        "initial": _frame_by_state("probability", model.initial, model.initial_given),
        "parameters": pd.DataFrame(
            parameters.items(), columns=["parameter", "value"], dtype=object
        ),
        "weights": _numbered("idoutcome", "weight", model.weights, not uniform),
        "terminal": _frame_by_state("value", model.terminal, bool(model.terminal.any())),
        "labels": _labels_frame(model),
        "draws": pd.DataFrame(draws if model.parameters else {"idoutcome": []}),
        "times": pd.DataFrame(
            enumerate(model.times.labels), columns=["time", model.times.column], dtype=object
        ),
    }  # fmt: skip


def _id_of_draws(parameters: Mapping[str, Array]) -> str:
    """The name of the models' column in draws.csv, which no parameter has."""
    names = [name.strip() for name in parameters]  # as they are read
    free = [x for x in ("idoutcome", "model") if x not in names]
    if not free or len(set(names)) < len(names):
        called = "idoutcome and model" if not free else "the same but for blanks"
        raise InputError(
            f"two parameters are called {called}, which draws.csv cannot tell apart",
            ["rename one", "save as .npz or .parquet"],
        )
    return free[0]


def _numbered(key: str, value: str, array: Array, given: bool = True) -> pd.DataFrame:
    array = array if given else array[:0]
    return pd.DataFrame({key: np.arange(len(array)), value: array})


def _frame_by_state(value: str, array: Array, given: bool) -> pd.DataFrame:
    """Values of states (S,) or (M, S), by model only if models differ."""
    rows = np.atleast_2d(array)
    if not given or (rows == rows[0]).all():
        return _numbered("idstate", value, rows[0], given)
    model, state = np.divmod(np.arange(rows.size), rows.shape[1])
    return pd.DataFrame({"idoutcome": model, "idstate": state, value: rows.reshape(-1)})


def _labels_frame(model: MMDP) -> pd.DataFrame:
    """Labels by kind and id; those that only repeat the ids say nothing and are left out."""
    rows: list[tuple[str, int, str]] = []
    for kind in KINDS:
        numbered = list(enumerate(getattr(model, f"{kind}_labels")))
        if any(label != str(i) for i, label in numbered):
            rows += [(kind, i, label) for i, label in numbered]
    return pd.DataFrame(rows, columns=["kind", "id", "label"])
