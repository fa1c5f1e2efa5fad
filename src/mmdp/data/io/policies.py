"""Policy files: tables (CSV, Parquet) or JSON."""

from __future__ import annotations

import functools
import json
import math
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core import kernels
from mmdp.core.arguments import check_arguments
from mmdp.core.errors import FileNotWrittenWarning, InputError, Remedy
from mmdp.core.model import MMDP
from mmdp.core.objectives import CustomObjective, Objective, as_objective
from mmdp.core.policies import (
    MarkovPolicy,
    MemoryPolicy,
    Policy,
    StationaryPolicy,
    TreePolicy,
    require_markov,
)
from mmdp.core.policies.base import get_label_kwargs
from mmdp.core.policies.controller import parse_transitions
from mmdp.core.solution import Bound, Solution
from mmdp.core.text import TimeLabels, pluralize
from mmdp.core.transitions import ModelShape
from mmdp.data.io import certificates
from mmdp.data.io.parquet import read_parquet, write_parquet
from mmdp.data.io.reading import read_csv, read_header
from mmdp.data.io.writing import PathLike, Writer, describe_error, format_csv, write_all_atomic
from mmdp.data.schema import (
    ColumnLabels,
    Fields,
    IntArray,
    Labels,
    Table,
    TableSource,
    assign_roles,
    is_finite_number,
    parse_ids,
)

POLICY_FORMAT = "mmdp-policy-1"
MARKOV_COLUMNS = ("time", "state", "action", "probability", "idstate", "idaction")
CONTROLLER_COLUMNS = ("time", "state", "action", "node", "moves", "start", "idstate", "idaction")
KNOWN_COLUMNS = {*MARKOV_COLUMNS, *CONTROLLER_COLUMNS}
LAYOUTS = {
    MARKOV_COLUMNS: "[time,]state,action[,probability]",
    CONTROLLER_COLUMNS: "time,state,node,action,moves,start",
}


@check_arguments
def save_policy(policy: Policy | Solution, path: PathLike) -> None:
    """Write a policy as ``.csv``, ``.parquet`` or ``.json``.

    Tables are those of :meth:`MarkovPolicy.to_frame` or :meth:`MemoryPolicy.to_frame`. A solution
    is accepted in place of its policy; its certificate is kept too (see :func:`load_certificate`):
    inside a ``.parquet`` or ``.json`` file, and next to ``policy.csv`` as
    ``policy.certificate.json``. JSON keeps everything; a table keeps its rows only (labels of
    actions that are never taken need the model when loading; the splits of a tree are lost, with a
    warning). A policy by state and belief (:class:`mmdp.methods.BeliefGrid`) needs ``.json``;
    loaded without its models, it is a finite-state controller. The table of a stationary policy
    has no column ``time``.

    >>> import tempfile, pathlib, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "policy.csv"
    >>> mmdp.save_policy(mmdp.policies.MarkovPolicy([[0, 1], [1, 1]]), file)
    >>> mmdp.load_policy(file).actions.tolist()
    [[0, 1], [1, 1]]
    """
    certificate, target = certificates.certificate_to_dict(policy), Path(path)
    saved_policy: Any = policy.policy if isinstance(policy, Solution) else policy
    solved_objective = getattr(policy, "objective", None)
    objective_text = None if solved_objective is None else str(solved_objective)
    if not getattr(saved_policy, "has_exact_returns", False):  # refuses a policy without a table
        saved_policy = require_markov(
            policy, "a policy file holds", requirement="a table of actions"
        )
    is_json = target.suffix.lower() == ".json"
    frame: Any = None if is_json else saved_policy.to_frame()
    metadata = {
        **_make_metadata(saved_policy),
        "certificate": certificate,
        "objective": objective_text,
    }
    files: dict[Path, Writer] = {}
    stale: list[Path] = []
    if target.suffix.lower() == ".csv":
        files[target] = format_csv(frame)
        if certificate is not None:
            files[make_certificate_path(target)] = json.dumps(certificate, indent=1) + "\n"
        else:  # that of an earlier policy is invalid
            stale.append(make_certificate_path(target))
    elif is_json:
        files[target] = json.dumps(policy_to_dict(saved_policy, **metadata), indent=1) + "\n"
    elif target.suffix.lower() == ".parquet":
        files[target] = lambda file: write_parquet(frame, metadata, file)
    else:
        raise InputError(
            f"{target}: unknown suffix {target.suffix!r}; write .csv, .parquet or .json"
        )
    write_all_atomic(files, stale)
    if isinstance(saved_policy, TreePolicy) and not is_json:
        message = (
            "a table holds the actions of a tree without its splits; save it as .json to keep them"
        )
        warnings.warn(f"{target}: {message}", FileNotWrittenWarning, stacklevel=2)


def policy_to_dict(policy: Policy, **extra_fields: object) -> dict[str, object]:
    """Convert a policy to the dict of its JSON file, with extra fields."""
    return {**_make_metadata(policy), **extra_fields, **policy.to_dict()}


def _make_metadata(policy: Policy) -> dict[str, object]:
    """Make the metadata of a policy: its class, sizes and labels."""
    return {
        "format": POLICY_FORMAT,
        "kind": policy.policy_class.name,
        "horizon": None if policy.policy_class.is_infinite_horizon else policy.horizon,
        "n_actions": policy.n_actions,
        "states": policy.state_labels,
        "actions": policy.action_labels,
        "times": {time_labels.name: time_labels.labels}
        if (time_labels := policy.time_labels).labels
        else None,
    }


def make_certificate_path(policy_path: PathLike) -> Path:
    """Get the path of the certificate of a policy in a CSV.

    >>> make_certificate_path("policy.csv").name
    'policy.certificate.json'
    """
    return Path(policy_path).with_suffix(".certificate.json")


@check_arguments
def load_certificate(path: PathLike, model: MMDP) -> Bound | None:
    """Load the certificate of a saved policy; None if it has none.

    It is refused if the policy was changed since, or if ``model`` holds other models than those
    it was proven for.

    >>> import tempfile, pathlib, mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "policy.csv"
    >>> mmdp.save_policy(mmdp.solve(two, 2, certify_time=1), file)
    >>> round(mmdp.io.load_certificate(file, two).value, 6)
    7.0
    """
    file, policy = Path(path), load_policy(path, model)
    document = _read_metadata(file).get("certificate")
    with TableSource(file).prefix_errors():
        return (
            None
            if document is None
            else certificates.certificate_from_dict(document, policy, model)
        )


@check_arguments
def load_objective(path: PathLike) -> Objective | None:
    """Load the objective that a saved policy was solved for; None if its file has none.

    JSON and Parquet files of a solution have it, unless it is a custom function.

    >>> import tempfile, pathlib, mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "policy.json"
    >>> mmdp.save_policy(mmdp.solve(two, 2, objective="cvar:0.1"), file)
    >>> mmdp.io.load_objective(file)
    CVaR(alpha=0.1)
    """
    text = (
        ""
        if Path(path).suffix.lower() == ".csv"
        else str(_read_metadata(Path(path)).get("objective") or "")
    )
    return as_objective(text) if text and CustomObjective.key not in text.split(":") else None


def _read_metadata(file: Path) -> Fields:
    """Read the metadata of a policy file, or of the certificate next to a CSV."""
    if file.suffix.lower() == ".parquet":
        return read_parquet(file)[1] or {}
    if file.suffix.lower() == ".json":
        return _read_json(file)
    certificate_path = make_certificate_path(file)
    return (
        {"certificate": _read_json(certificate_path, [certificates.PROVE_AGAIN])}
        if certificate_path.is_file()
        else {}
    )


def _read_json(file: Path, remedies: Iterable[Remedy] = ()) -> Any:
    """Read a JSON file, or raise an InputError."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{file}: not a JSON file ({describe_error(error)})", remedies) from None


@check_arguments
def load_policy(path: PathLike, model: MMDP | None = None) -> Policy:
    """Read a policy from ``.csv``, ``.parquet`` or ``.json``.

    A table without a column ``time`` is a stationary policy, one with a column ``node`` a
    finite-state controller. ``policy.objective`` is that of :func:`load_objective`.

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
    policy = _read_policy(Path(path), model)
    with TableSource(Path(path)).prefix_errors():
        policy._set_attributes(objective=load_objective(path))
    return policy


def _read_policy(file: Path, model: MMDP | None) -> Policy:
    """Read a policy from a file of any format, and check it against a model."""
    source, metadata, tree = TableSource(file), None, None
    policy: Policy
    if not file.is_file():
        raise InputError(f"{file}: no such file; check the path")
    if file.suffix.lower() == ".json":
        policy = _read_json_policy(file, model)
        if model is None or policy.policy_class.uses_belief:
            return policy
        frame, tree = policy.to_frame(), policy if isinstance(policy, TreePolicy) else None
    elif file.suffix.lower() == ".csv":
        frame = read_csv(file, read_header(file))
        _check_last_line(file, len(frame))
    elif file.suffix.lower() == ".parquet":
        frame, metadata = read_parquet(file)
    else:
        raise InputError(f"{file}: unknown suffix {file.suffix!r}; known are .csv, .parquet, .json")
    if "time" in frame.columns or "node" in frame.columns:
        policy = _policy_from_table(frame, source, model, metadata or {})
    else:
        row_policy = _policy_from_table(frame.assign(time=0), source, model, metadata or {})
        assert isinstance(row_policy, MarkovPolicy)
        policy = StationaryPolicy.from_row(row_policy)
    if tree is not None:
        assert isinstance(policy, (MarkovPolicy, StationaryPolicy))
        policy = tree.reorder(policy)
    if model is not None:
        # a stationary one may be followed over any number of decisions
        finite_policy = (
            policy.to_markov(model.horizon or 1) if policy.horizon == math.inf else policy
        )
        with source.prefix_errors():
            finite_policy.check(model)
    return policy


def _read_json_policy(path: Path, model: MMDP | None) -> Policy:
    """Read a policy from a JSON file."""
    document = _read_json(path)
    if not isinstance(document, dict) or document.get("format") != POLICY_FORMAT:
        raise InputError(
            f"{path}: not a policy saved by mmdp (no format {POLICY_FORMAT!r}); write it with "
            "save_policy()"
        )
    labels = {
        "n_actions": document.get("n_actions"),
        "state_labels": document.get("states"),
        "action_labels": document.get("actions"),
        "time_labels": document.get("times"),
    }
    try:
        if "nodes" in document:
            node_transitions = _parse_node_transitions(document["moves"], len(document["first"]))
            controller = MemoryPolicy(
                document["nodes"], node_transitions, document["first"], **labels
            )
            return (
                _restore_belief_policy(document, controller, model)
                if "alphas" in document
                else controller
            )
        probabilities = document.get("probabilities")
        policy = MarkovPolicy(document.get("policy"), probabilities=probabilities, **labels)
        is_stationary = document.get("kind") == "stationary" or document.get("horizon", 0) is None
        table_policy = StationaryPolicy.from_row(policy) if is_stationary else policy
        if "tree" not in document:
            return table_policy
        return TreePolicy.from_dict(
            table_policy,
            document["features"],
            document["time"],
            document["tree"],
            document.get("fallback"),
        )
    except InputError as error:
        raise error.with_location(path) from None
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {describe_error(error)}") from None
    except RecursionError:
        raise InputError(f"{path}: policy actions are nested too deeply for a table") from None


def _restore_belief_policy(
    document: Fields, controller: MemoryPolicy, model: MMDP | None
) -> Policy:
    """Restore a policy by state and belief of these models; for others, its controller."""
    from mmdp.core.methods.belief_grid import BeliefGridPolicy

    if (
        model is not None
        and document["models"] == model.fingerprint()
        and _has_same_labels(controller, model)
    ):
        horizon, alphas = document["horizon"] or math.inf, np.array(document["alphas"], np.float64)
        if alphas.shape != (*controller.actions.shape, model.n_models):
            raise ValueError(
                f"alphas of shape {alphas.shape} for nodes of {controller.actions.shape}"
            )
        return BeliefGridPolicy(
            model, horizon, alphas, controller.controller, kernels.get_backend("numpy")
        )
    if document["horizon"] is None:
        raise InputError(
            "a belief policy with infinite horizon needs the models that it was solved for",
            ["load it with these models", "solve again"],
        )
    return controller


def _has_same_labels(policy: Policy, model: MMDP) -> bool:
    """Return whether the labels of a policy, if any, are those of the model in the same order."""
    model_labels = get_label_kwargs(model)
    return all(
        getattr(policy, name) in (None, model_labels[name])
        for name in ("state_labels", "action_labels")
    )


def _policy_from_table(
    frame: pd.DataFrame, source: TableSource, model: MMDP | None, metadata: Fields
) -> MarkovPolicy | MemoryPolicy:
    """Build a policy from a table by time and state, and by node if it has nodes."""
    time_column = TimeLabels.find_column(frame, KNOWN_COLUMNS)
    table = Table.from_frame(frame.reset_index(drop=True), source)
    layout = CONTROLLER_COLUMNS if "node" in table else MARKOV_COLUMNS
    names = [x for x in table.columns if x != time_column]
    expected = f"a policy has {LAYOUTS[layout]}, time from 0"
    assign_roles(names, layout, layout[: 6 if "node" in table else 3], source, expected)
    if not len(table):
        source.fail("a header but no rows; expected one row per time and state")
    for name in names:
        axis_labels = _get_labels(model, name) if name in ("state", "action") else ()
        if f"id{name}" not in table and "" not in axis_labels:
            source.fail_where(
                table[name].astype(str) == "",
                "an empty cell; fill it in, or write the file again if the line is cut",
            )
    time = table.parse_ids("time")
    s, states = _parse_axis(table, "state", model, metadata)
    a, actions = _parse_axis(table, "action", model, metadata)
    n_actions = max(len(actions or ()), int(a.max()) + 1, int(metadata.get("n_actions") or 0))
    n_states = len(states) if states else int(s.max()) + 1
    if model is not None:
        n_states, n_actions = model.n_states, model.n_actions
        time_labels = model.time_labels
    else:
        time_labels = TimeLabels.from_columns(frame.assign(time=time), KNOWN_COLUMNS)
    shape = (int(time.max()) + 1, n_states, n_actions)
    labels: Fields = {
        "state_labels": states,
        "action_labels": actions,
        "time_labels": time_labels,
    }
    if "node" in table:
        policy = _controller_from_table(table, (time, s, a), shape, labels)
        return policy if model is None else MemoryPolicy.for_model(model, policy.controller)
    is_randomized = "probability" in table
    _check_complete(time, s, a if is_randomized else np.zeros_like(a), shape, source, model)
    if not is_randomized:
        actions_table = np.empty(shape[:2], dtype=np.int32)
        actions_table[time, s] = a
        return MarkovPolicy(actions_table, n_actions=n_actions, **labels)
    probabilities = np.zeros(shape)
    probabilities[time, s, a] = table.parse_floats("probability")
    with source.prefix_errors():
        return MarkovPolicy(probabilities=probabilities, **labels)


def _controller_from_table(
    table: Table, ids: tuple[IntArray, IntArray, IntArray], shape: ModelShape, labels: Fields
) -> MemoryPolicy:
    """Build a finite-state controller from a table of :meth:`MemoryPolicy.to_frame`."""
    (time, s, a), node, source = ids, table.parse_ids("node"), table.source
    T, S, n_actions = shape
    N = int(node.max()) + 1
    cell_ids = (time * S + s) * N + node
    source.check_unique(cell_ids, lambda i: f"time {time[i]}, state {s[i]}, node {node[i]}")
    if len(cell_ids) != T * S * N:
        source.fail(f"{len(cell_ids)} rows for {T} times, {S} states and {N} nodes; give every one")
    order = np.argsort(cell_ids)
    moves, start = (
        table[x].astype(str).to_numpy()[order].reshape(T, S, N) for x in ("moves", "start")
    )
    with source.prefix_errors():
        return MemoryPolicy(
            a[order].reshape(T, S, N),
            _parse_node_transitions(moves, S),
            (start[0] == "yes").argmax(axis=1),
            n_actions=n_actions,
            **labels,
        )


def _parse_node_transitions(texts: npt.ArrayLike, n_states: int) -> npt.NDArray[np.uint8]:
    """Parse node transitions (T, S, N, S') from their texts (T, S, N)."""
    texts = np.array(texts, dtype=object)
    N, parse_cached = texts.shape[-1], functools.cache(parse_transitions)
    rows = [parse_cached(str(text), i % N, n_states) for i, text in enumerate(texts.reshape(-1))]
    return np.stack(rows).reshape(*texts.shape, n_states)


def _check_last_line(file: Path, n_rows: int) -> None:
    """Refuse a file without a line break at its end: its last number may be cut off."""
    with file.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        if n_rows and stream.read() not in b"\r\n":
            TableSource(file).fail(
                "the last line has no line break, so the file may be cut; write it again, or add a "
                "line break if it is complete",
                n_rows - 1,
            )


def _parse_axis(
    table: Table, axis: str, model: MMDP | None, metadata: Fields
) -> tuple[IntArray, Labels | None]:
    """Parse the ids and labels of the states or actions of a policy table."""
    text, id_column, source = table[axis].astype(str), f"id{axis}", table.source
    labels = _get_labels(model, axis)
    if labels or id_column not in table:  # blanks around a label, unless it has them
        is_ambiguous = len({x.strip() for x in labels}) < len(labels)
        text = text.where(text.isin(labels) | is_ambiguous, text.str.strip())
    ids = None
    if id_column in table:
        ids = parse_ids(table.parse_floats(id_column), axis, source)
        _check_label_ids(text, ids, axis, source)
    if labels:
        return _find_ids_by_label(text, axis, source, labels), labels
    if ids is None:
        remedy = (
            f"load it with the model that has these {axis}s"
            if model is None
            else f"give ids, as the model has no labels of {axis}s"
        )
        source.fail_where(
            ~is_finite_number(text),
            lambda i: f"{axis} {text.iloc[i]!r} is a label without an id; {remedy}",
        )
        ids = Table({axis: text}, source).parse_ids(axis)
    if model is not None:
        limit = getattr(model, f"n_{axis}s")
        problem = f"does not exist; the model has {pluralize(limit, axis)}"
        source.fail_where(ids >= limit, lambda i: f"{axis} {ids[i]} {problem}")
        return ids, None
    stored_labels = metadata.get(f"{axis}s")
    # labels are given next to their ids; one huge id must not make a huge list
    if stored_labels is None and (text != ids.astype(str)).any() and ids.max() < 2 * len(ids):
        label_by_id = dict(zip(ids.tolist(), text, strict=True))
        stored_labels = [label_by_id.get(i, str(i)) for i in range(int(ids.max()) + 1)]
    return ids, None if stored_labels is None else tuple(map(str, stored_labels))


def _get_labels(model: MMDP | None, axis: str) -> Labels:
    """Get the labels of a model for states or actions; empty if it has none."""
    if model is None or not model.has_labels[axis]:
        return ()
    return model.state_labels if axis == "state" else model.action_labels


def _find_ids_by_label(text: pd.Series, axis: str, source: TableSource, labels: Labels) -> IntArray:
    """Find the ids of a column of labels, or of ids if not all are labels."""
    ids = ColumnLabels(axis, len(labels), labels).find_ids(text)
    ids_or_numbers = ids if ids.min() >= 0 else ColumnLabels(axis, len(labels)).find_ids(text)
    if ids_or_numbers.min() < 0:
        source.fail_where(
            ids < 0, lambda i: f"the model has no {axis} {text.iloc[i]!r}; correct it"
        )
    return ids_or_numbers


def _check_label_ids(text: pd.Series, ids: IntArray, axis: str, source: TableSource) -> None:
    """Refuse labels with two ids, and ids with two labels."""
    table = pd.DataFrame({"text": text, "id": ids})
    has_other_id = table.groupby("text")["id"].transform("first") != table["id"]
    has_other_text = table.groupby("id")["text"].transform("first") != table["text"]
    source.fail_where(
        has_other_id | has_other_text,
        lambda i: (
            f"id{axis} is {ids[i]} for {axis} {text.iloc[i]!r}, unlike in an earlier line; "
            "correct one of them"
        ),
    )


def _check_complete(
    time: IntArray,
    s: IntArray,
    a: IntArray,
    shape: ModelShape,
    source: TableSource,
    model: MMDP | None,
) -> None:
    """Refuse tables that lack a time and state, or have one twice, before allocation."""
    horizon, n_states, n_actions = shape
    cells = np.unique(time * n_states + s)
    if len(cells) < horizon * n_states:
        gaps = np.flatnonzero(cells != np.arange(len(cells)))
        t0, s0 = divmod(int(gaps[0]) if len(gaps) else len(cells), n_states)
        name = model.state_labels[s0] if model is not None else s0
        source.fail(f"no action for time {t0}, state {name!r}; give every state at every time")
    source.check_unique(
        (time * n_states + s) * n_actions + a,
        lambda i: f"time {time[i]}, state {s[i]}",
        " (or add a probability column for a randomized policy)",
    )
