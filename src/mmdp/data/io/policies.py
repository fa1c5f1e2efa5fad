"""Policy files: tables (CSV, Parquet) or JSON."""

from __future__ import annotations

import functools
import json
import math
import os
import warnings
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import FileNotWrittenWarning, InputError, Remedy
from mmdp.core.identity import compute_digest, describe_object
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
from mmdp.core.shapes import IndexArray, NodeArray
from mmdp.core.solution import SCOPE_NAMES, Bound, Solution
from mmdp.core.text import TimeLabels, pluralize
from mmdp.data.io.reading import check_file_type, read_csv, read_header, read_parquet, write_parquet
from mmdp.data.io.writing import (
    PathLike,
    Writer,
    describe_error,
    format_csv,
    get_suffix,
    write_all_atomic,
)
from mmdp.data.schema import (
    ColumnLabels,
    Fields,
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
CERTIFICATE_FORMAT = "mmdp-certificate-2"
JSON_TYPES = (str, int, float, bool, type(None))
PROVE_AGAIN = Remedy("certify_time", 10, verb="prove it again with")
SUFFIXES = (".csv", ".parquet", ".json")
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
    target = Path(path)
    saved_policy: Any = policy.policy if isinstance(policy, Solution) else policy
    if not getattr(saved_policy, "has_exact_returns", False):  # refuses a policy without a table
        saved_policy = require_markov(
            policy, "a policy file holds", requirement="a table of actions"
        )
    certificate = _certificate_to_dict(policy) if isinstance(policy, Solution) else None
    objective = getattr(policy, "objective", None)
    extra_fields: Fields = {
        "certificate": certificate,
        "objective": None if objective is None else str(objective),
    }
    files: dict[Path, Writer] = {}
    suffix, certificate_path = get_suffix(target, SUFFIXES), make_certificate_path(target)
    if suffix == ".csv":
        files[target] = format_csv(saved_policy.to_frame())
        if certificate is not None:
            files[certificate_path] = _format_json(certificate)
    elif suffix == ".json":
        files[target] = _format_json(policy_to_dict(saved_policy, **extra_fields))
    else:
        metadata = _make_metadata(saved_policy) | extra_fields
        files[target] = lambda file: write_parquet(saved_policy.to_frame(), metadata, file)
    # the certificate of an earlier policy is invalid
    write_all_atomic(files, {certificate_path} - {*files} if suffix == ".csv" else ())
    if isinstance(saved_policy, TreePolicy) and suffix != ".json":
        message = (
            "a table holds the actions of a tree without its splits; save it as .json to keep them"
        )
        warnings.warn(f"{target}: {message}", FileNotWrittenWarning, stacklevel=2)


def _format_json(document: Fields) -> str:
    return json.dumps(document, indent=1) + "\n"


def policy_to_dict(policy: Policy, **extra_fields: object) -> Fields:
    """Convert a policy to the dict of its JSON file, with extra fields."""
    return {**_make_metadata(policy), **extra_fields, **policy.to_dict()}


def _make_metadata(policy: Policy) -> Fields:
    """Make the metadata of a policy: its class, sizes and labels."""
    name, time_labels = policy.time_labels
    return {
        "format": POLICY_FORMAT,
        "kind": policy.policy_class.name,
        "horizon": None if policy.policy_class.is_infinite_horizon else policy.horizon,
        "n_actions": policy.n_actions,
        "states": policy.state_labels,
        "actions": policy.action_labels,
        "times": {name: time_labels} if time_labels else None,
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
    certificate_path = make_certificate_path(file)
    if file.suffix.lower() != ".csv":
        document = _read_file(file)[1].get("certificate")
    elif certificate_path.is_file():
        document = _read_json(certificate_path, PROVE_AGAIN)
    else:
        document = None
    if document is None:
        return None
    with TableSource(file).prefix_errors():
        return _certificate_from_dict(document, policy, model)


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
    file = Path(path)
    return None if file.suffix.lower() == ".csv" else _parse_objective(file, _read_file(file)[1])


def _parse_objective(file: Path, metadata: Fields) -> Objective | None:
    """Parse the objective in the metadata of a file; None if it has none, or a function."""
    text = str(metadata.get("objective") or "")
    if not text or CustomObjective.key in text.split(":"):
        return None
    with TableSource(file).prefix_errors():
        return as_objective(text)


def _read_file(file: Path) -> tuple[pd.DataFrame | None, Fields]:
    """Read the table of a policy file, None in JSON, and its other contents by name."""
    suffix = get_suffix(file, SUFFIXES)
    if suffix == ".parquet":
        frame, metadata = read_parquet(file)
        return frame, metadata or {}
    if suffix == ".csv":
        frame = read_csv(file, read_header(file))
        _check_last_line(TableSource(file), len(frame))
        return frame, {}
    document = _read_json(file)
    if not isinstance(document, dict) or document.get("format") != POLICY_FORMAT:
        raise InputError(
            f"{file}: not a policy saved by mmdp (no format {POLICY_FORMAT!r}); write it with "
            "save_policy()"
        )
    return None, document


def _read_json(file: Path, *remedies: Remedy) -> Any:
    """Read a JSON file, or raise an InputError."""
    check_file_type(file, "text", "a JSON file")
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
    file = Path(path)
    source, (frame, metadata) = TableSource(file), _read_file(file)
    if frame is None:
        policy = _policy_from_document(metadata, source, model)
    else:
        policy = _policy_from_table(frame, source, model, metadata)
    policy._set_attributes(objective=_parse_objective(file, metadata))
    if model is not None:
        # a stationary one may be followed over any number of decisions
        is_endless = policy.horizon == math.inf and not policy.policy_class.uses_belief
        with source.prefix_errors():
            (policy.to_markov(model.horizon or 1) if is_endless else policy).check(model)
    return policy


def _policy_from_document(document: Fields, source: TableSource, model: MMDP | None) -> Policy:
    """Build a policy from a JSON document, with the labels of a model."""
    labels = {
        "n_actions": document.get("n_actions"),
        "state_labels": document.get("states"),
        "action_labels": document.get("actions"),
        "time_labels": document.get("times"),
    }
    policy: Any
    with source.prefix_errors():
        try:
            if "nodes" in document:
                moves = _parse_node_transitions(document["moves"], len(document["first"]))
                policy = MemoryPolicy(document["nodes"], moves, document["first"], **labels)
                if "alphas" in document:
                    policy = _restore_belief_policy(document, policy, model)
            else:
                probabilities = document.get("probabilities")
                policy = MarkovPolicy(document.get("policy"), probabilities=probabilities, **labels)
                if document.get("kind") == "stationary" or document.get("horizon", 0) is None:
                    policy = StationaryPolicy.from_row(policy)
                if "tree" in document:
                    features, uses_time, tree = (document[x] for x in ("features", "time", "tree"))
                    fallback = document.get("fallback")
                    policy = TreePolicy.from_dict(policy, features, uses_time, tree, fallback)
        except InputError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(describe_error(error)) from None
        except RecursionError:
            raise InputError("policy actions are nested too deeply for a table") from None
    if model is None or policy.policy_class.uses_belief:
        return policy  # type: ignore[no-any-return]
    table_policy: Any = _policy_from_table(policy.to_frame(), source, model, {})
    return policy.reorder(table_policy) if isinstance(policy, TreePolicy) else table_policy


def _restore_belief_policy(
    document: Fields, controller: MemoryPolicy, model: MMDP | None
) -> Policy:
    """Restore a policy by state and belief of these models; for others, its controller."""
    from mmdp.core.methods.belief_grid import BeliefGridPolicy

    is_for_model = (
        model is not None
        and document["models"] == model.fingerprint()
        and all(
            getattr(controller, name) in (None, labels)
            for name, labels in get_label_kwargs(model).items()
            if name != "time_labels"
        )
    )
    if model is not None and is_for_model:
        horizon, alphas = document["horizon"] or math.inf, np.array(document["alphas"], np.float64)
        if alphas.shape != (*controller.actions.shape, model.n_models):
            raise ValueError(
                f"alphas of shape {alphas.shape} for nodes of {controller.actions.shape}"
            )
        return BeliefGridPolicy(model, horizon, alphas, controller.controller)
    if document["horizon"] is None:
        raise InputError(
            "a belief policy with infinite horizon needs the models that it was solved for",
            ["load it with these models", "solve again"],
        )
    return controller


def _policy_from_table(
    frame: pd.DataFrame, source: TableSource, model: MMDP | None, metadata: Fields
) -> MarkovPolicy | StationaryPolicy | MemoryPolicy:
    """Build a policy from a table by state, and by time and node if it has these columns."""
    is_stationary = {"time", "node"}.isdisjoint(frame.columns)
    frame = frame.assign(time=0) if is_stationary else frame
    time_column = TimeLabels.find_column(frame, KNOWN_COLUMNS)
    table = Table.from_frame(frame.reset_index(drop=True), source)
    has_nodes, is_randomized = "node" in table, "probability" in table
    layout = CONTROLLER_COLUMNS if has_nodes else MARKOV_COLUMNS
    names = [x for x in table.columns if x != time_column]
    expected = f"a policy has {LAYOUTS[layout]}, time from 0"
    assign_roles(names, layout, layout[: 6 if has_nodes else 3], source, expected)
    if not len(table):
        source.fail("a header but no rows; expected one row per time and state")
    for name in names:
        axis_labels = _get_labels(model, name) if name in ("state", "action") else ()
        if f"id{name}" not in table and "" not in axis_labels:
            source.fail_where(
                table[name].astype(str) == "",
                "an empty cell; fill it in, or write the file again if the line is cut",
            )
    ids = {"time": table.parse_ids("time")}
    ids["state"], states = _parse_axis(table, "state", model, metadata)
    a, actions = _parse_axis(table, "action", model, metadata)
    if has_nodes:
        ids["node"] = table.parse_ids("node")
    sizes = {role: int(x.max()) + 1 for role, x in ids.items()}
    if model is not None:
        sizes["state"], labels = model.n_states, dict(get_label_kwargs(model))
    else:
        sizes["state"] = len(states) if states else sizes["state"]
        labels = {
            "n_actions": max(
                len(actions or ()), int(a.max()) + 1, int(metadata.get("n_actions") or 0)
            ),
            "state_labels": states,
            "action_labels": actions,
            "time_labels": TimeLabels.from_columns(frame.assign(time=ids["time"]), KNOWN_COLUMNS),
        }
    _check_cells(ids, sizes, a if is_randomized else a * 0, model, source)
    index, shape = tuple(ids.values()), tuple(sizes.values())
    action_table = np.empty(shape, dtype=np.int32)
    action_table[index] = a
    with source.prefix_errors():
        if has_nodes:
            moves, start = np.empty(shape, dtype=object), np.empty(shape, dtype=bool)
            moves[index], start[index] = table["moves"].astype(str), table["start"] == "yes"
            node_transitions = _parse_node_transitions(moves, shape[1])
            initial_nodes = start[0].argmax(axis=1)
            policy = MemoryPolicy(action_table, node_transitions, initial_nodes, **labels)
            return policy if model is None else MemoryPolicy.for_model(model, policy.controller)
        if is_randomized:
            probabilities = np.zeros((*shape, labels["n_actions"]))
            probabilities[(*index, a)] = table.parse_floats("probability")
            markov_policy = MarkovPolicy(probabilities=probabilities, **labels)
        else:
            markov_policy = MarkovPolicy(action_table, **labels)
    return StationaryPolicy.from_row(markov_policy) if is_stationary else markov_policy


def _check_cells(
    ids: Mapping[str, IndexArray],
    sizes: Mapping[str, int],
    action: IndexArray,
    model: MMDP | None,
    source: TableSource,
) -> None:
    """Refuse tables that lack a cell, or have one twice, before allocation."""
    cells = pd.DataFrame(ids)
    if len(cells.drop_duplicates()) < math.prod(sizes.values()):
        given_cells = {*cells.itertuples(index=False, name=None)}
        # one of the first cells is missing, as there are more of them than rows
        ranges = [range(min(size, len(cells) + 1)) for size in sizes.values()]
        gap = next(cell for cell in product(*ranges) if cell not in given_cells)
        place: dict[str, object] = dict(zip(sizes, gap, strict=True))
        if model is not None:
            place["state"] = repr(model.state_labels[gap[1]])
        cell_text = ", ".join(f"{role} {x}" for role, x in place.items())
        source.fail(f"no action for {cell_text}; give every state at every time")
    source.check_unique(
        cells.assign(action=action),
        lambda i: ", ".join(f"{role} {x[i]}" for role, x in ids.items()),
        "" if "node" in ids else " (or add a probability column for a randomized policy)",
    )


def _parse_node_transitions(texts: npt.ArrayLike, n_states: int) -> NodeArray:
    """Parse node transitions (T, S, N, S') from their texts (T, S, N)."""
    texts = np.array(texts, dtype=object)
    N, parse_cached = texts.shape[-1], functools.cache(parse_transitions)
    rows = [parse_cached(str(text), i % N, n_states) for i, text in enumerate(texts.reshape(-1))]
    return np.stack(rows).reshape(*texts.shape, n_states)


def _check_last_line(source: TableSource, n_rows: int) -> None:
    """Refuse a file without a line break at its end: its last number may be cut off."""
    with Path(source.location).open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        if n_rows and stream.read() not in b"\r\n":
            source.fail(
                "the last line has no line break, so the file may be cut; write it again, or add a "
                "line break if it is complete",
                n_rows - 1,
            )


def _parse_axis(
    table: Table, axis: str, model: MMDP | None, metadata: Fields
) -> tuple[IndexArray, Labels | None]:
    """Parse the ids and labels of the states or actions of a policy table."""
    text, id_column, source = table[axis].astype(str), f"id{axis}", table.source
    labels = _get_labels(model, axis)
    if labels or id_column not in table:  # blanks around a label, unless it has them
        is_ambiguous = len({x.strip() for x in labels}) < len(labels)
        text = text.where(text.isin(labels) | is_ambiguous, text.str.strip())
    ids = None
    if id_column in table:
        ids = parse_ids(table.parse_floats(id_column), axis, source)
        pairs = pd.DataFrame({"text": text, "id": ids}).drop_duplicates()
        for i in pairs.index[pairs["text"].duplicated() | pairs["id"].duplicated()]:
            source.fail(
                f"id{axis} is {ids[i]} for {axis} {text[i]!r}, unlike in an earlier line; correct "
                "one of them",
                i,
            )
    if labels:
        label_ids = ColumnLabels(axis, len(labels), labels).find_ids(text)
        own_ids = ColumnLabels(axis, len(labels)).find_ids(text)
        if own_ids.min() >= 0 > label_ids.min():
            return own_ids, labels
        source.fail_where(
            label_ids < 0,
            lambda i: (
                f"the model has no {axis} {text[i]!r}; correct it, or give the model that the "
                "policy is for"
            ),
        )
        return label_ids, labels
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
        used_labels = set(label_by_id.values())
        for i in range(int(ids.max()) + 1):  # the others have their id, if it is no label
            label_by_id.setdefault(i, f"{axis} {i}" if str(i) in used_labels else str(i))
        stored_labels = [label_by_id[i] for i in range(int(ids.max()) + 1)]
    return ids, None if stored_labels is None else tuple(map(str, stored_labels))


def _get_labels(model: MMDP | None, axis: str) -> Labels:
    """Get the labels of a model for states or actions; empty if it has none."""
    return (model and model.label_index(axis).labels) or ()


# ---------------------------------------------------------------------- certificates
def _certificate_to_dict(solution: Solution) -> Fields | None:
    """Convert the certificate of a solution to JSON types; None if there is none."""
    certificate, provenance = solution.certificate, solution.provenance
    is_custom = solution.objective.key == CustomObjective.key  # which no file can hold
    if certificate is None or not certificate.model_fingerprint or is_custom:
        return None
    return {
        "format": CERTIFICATE_FORMAT,
        "objective": str(solution.objective),
        "value": solution.value,
        "bound": certificate.value,
        "bounds": certificate.scope,
        "method": certificate.method,
        "seconds": certificate.seconds,
        "models": certificate.model_fingerprint,
        "horizon": None if provenance.policy_class.is_infinite_horizon else provenance.horizon,
        "policy": _hash_policy(solution.policy),
        "solution": {
            "method": provenance.method,
            "options": {
                name: x if isinstance(x, JSON_TYPES) else type(x).__name__
                for name, x in provenance.options.items()
            },
            "seed": provenance.seed,
            "backend": provenance.backend,
            "version": provenance.version,
            "seconds": provenance.seconds,
            "iterations": solution.iterations,
            "status": solution.status.name,
        },
    }


def _certificate_from_dict(document: Any, policy: Policy, model: MMDP) -> Bound:
    """Restore a certificate; refuse one of another policy or of other models."""
    problem = "this is not a certificate of this version of mmdp"
    try:
        certificate = Bound(
            float(document["bound"]),
            str(document["method"]),
            document["bounds"],
            seconds=float(document["seconds"]),
            model_fingerprint=str(document["models"]),
            objective=as_objective(str(document["objective"])),
            details={"value": float(document["value"]), "solution": dict(document["solution"])},
        )
        is_valid = math.isfinite(certificate.value) and certificate.scope in SCOPE_NAMES
        if is_valid and document["format"] == CERTIFICATE_FORMAT:
            if document["policy"] != _hash_policy(policy):
                problem = "the policy was changed after its bound was proven"
            elif certificate.model_fingerprint != model.fingerprint():
                problem = "its bound was proven for other models"
            else:
                return certificate
    except (KeyError, TypeError, ValueError):
        pass
    raise InputError(problem, [PROVE_AGAIN])


def _hash_policy(policy: Policy) -> str:
    """Compute a digest of the table of actions or probabilities of a policy, or of its nodes."""
    arrays = getattr(policy, "controller", None) or [policy.table]
    return compute_digest(describe_object([*arrays]))
