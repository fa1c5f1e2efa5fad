"""Policies as tables (CSV, Parquet) or JSON."""

from __future__ import annotations

import functools
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp import kernels
from mmdp.arguments import checked
from mmdp.errors import InputError, NotWritten, Remedy
from mmdp.io import certificates
from mmdp.io.ids import whole
from mmdp.io.labels import Ints, Labels, Names
from mmdp.io.parquet import read_parquet, write_parquet
from mmdp.io.reading import Source, header, is_number, numbers, read_csv
from mmdp.io.writing import PathLike, Writer, csv_text, reason, write_all
from mmdp.model import MMDP
from mmdp.objective import Custom, Objective, as_objective
from mmdp.policy import (
    MarkovPolicy,
    MemoryPolicy,
    Policy,
    StationaryPolicy,
    TreePolicy,
    markov_policy,
)
from mmdp.policy.base import labels_of
from mmdp.policy.memory import moves_from_words
from mmdp.solution import Bound, Solution
from mmdp.words import Times, counted

FORMAT = "mmdp-policy-1"
COLUMNS = ("time", "state", "action", "probability", "idstate", "idaction")
NODE_COLUMNS = ("time", "state", "action", "node", "moves", "start", "idstate", "idaction")
KNOWN = {*COLUMNS, *NODE_COLUMNS}


@checked
def save_policy(policy: Policy | Solution, path: PathLike) -> None:
    """Write a policy as ``.csv``, ``.parquet`` (the table of
    :meth:`MarkovPolicy.to_frame` or :meth:`MemoryPolicy.to_frame`) or ``.json``.

    A solution is accepted in place of its policy; its certificate is kept too (see
    :func:`load_certificate`): inside a ``.parquet`` or ``.json`` file, and next to ``policy.csv``
    as ``policy.certificate.json``. JSON keeps everything; a table keeps what its rows say
    (labels of actions that are never taken need the model when loading; the questions of a tree
    are lost, and a warning says so). A plan by state and belief (:class:`mmdp.BeliefGrid`) goes
    into ``.json`` alone; loaded without its models, it is a policy with a node for each plan.
    The table of a stationary policy has no column ``time``.

    >>> import tempfile, pathlib, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "policy.csv"
    >>> mmdp.save_policy(mmdp.MarkovPolicy([[0, 1], [1, 1]]), file)
    >>> mmdp.load_policy(file).actions.tolist()
    [[0, 1], [1, 1]]
    """
    proven, target = certificates.as_document(policy), Path(path)
    found: Any = policy.policy if isinstance(policy, Solution) else policy
    goal = getattr(policy, "objective", None)
    objective = None if goal is None else str(goal)
    if not getattr(found, "exact", False):  # refuse what has no table, with the reason
        found = markov_policy(policy, "a policy file holds", needed="a table of actions")
    as_json = target.suffix.lower() == ".json"
    frame: Any = None if as_json else found.to_frame()
    stored = {**_facts_of(found), "certificate": proven, "objective": objective}
    files: dict[Path, Writer] = {}
    stale: list[Path] = []
    if target.suffix.lower() == ".csv":
        files[target] = csv_text(frame)
        if proven is not None:
            files[certificate_beside(target)] = json.dumps(proven, indent=1) + "\n"
        else:  # one of an earlier policy says nothing here
            stale.append(certificate_beside(target))
    elif as_json:
        files[target] = json.dumps(policy_document(found, **stored), indent=1) + "\n"
    elif target.suffix.lower() == ".parquet":
        files[target] = lambda file: write_parquet(frame, stored, file)
    else:
        raise InputError(
            f"{target}: unknown suffix {target.suffix!r}; write .csv, .parquet or .json"
        )
    write_all(files, stale)
    if isinstance(found, TreePolicy) and not as_json:
        what = "a table holds the actions of a tree without its questions; .json keeps them"
        warnings.warn(f"{target}: {what}", NotWritten, stacklevel=2)


def policy_document(policy: Policy, **facts: Any) -> dict[str, Any]:
    """What a JSON file holds: the policy, with other facts about it."""
    return {**_facts_of(policy), **facts, **policy.stored()}


def _facts_of(policy: Policy) -> dict[str, Any]:
    return {
        "format": FORMAT, "kind": policy.kind.name,
        "horizon": None if policy.kind.endless else policy.horizon, "n_actions": policy.n_actions,
        "states": policy.state_labels, "actions": policy.action_labels,
        "times": {x.name: x.labels} if (x := policy.times).labels else None,
    }  # fmt: skip


def certificate_beside(table: PathLike) -> Path:
    """The file that keeps the certificate of a policy in a CSV.

    >>> certificate_beside("policy.csv").name
    'policy.certificate.json'
    """
    return Path(table).with_suffix(".certificate.json")


@checked
def load_certificate(path: PathLike, model: MMDP) -> Bound | None:
    """What was proven about a saved policy; None if nothing was.

    It is refused if the policy was changed since, or if ``model`` holds other models than those
    it was proven for.

    >>> import tempfile, pathlib, mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "policy.csv"
    >>> mmdp.save_policy(mmdp.solve(two, 2, certify=1), file)
    >>> round(mmdp.io.load_certificate(file, two).value, 6)
    7.0
    """
    file, policy = Path(path), load_policy(path, model)
    stored = _kept(file).get("certificate")
    with Source(file).named():
        return None if stored is None else certificates.from_document(stored, policy, model)


@checked
def load_objective(path: PathLike) -> Objective | None:
    """What a saved policy was solved for; None if its file does not say.

    JSON and Parquet files of a solution do, unless that was a function of yours.

    >>> import tempfile, pathlib, mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "policy.json"
    >>> mmdp.save_policy(mmdp.solve(two, 2, objective="cvar:0.1"), file)
    >>> mmdp.io.load_objective(file)
    CVaR(alpha=0.1)
    """
    text = (
        "" if Path(path).suffix.lower() == ".csv" else str(_kept(Path(path)).get("objective") or "")
    )
    return as_objective(text) if text and Custom.kind not in text.split(":") else None


def _kept(file: Path) -> dict[str, Any]:
    """What a policy file, or the one next to a CSV, says besides the policy."""
    if file.suffix.lower() == ".parquet":
        return read_parquet(file)[1] or {}
    if file.suffix.lower() == ".json":
        return _document(file)
    place = certificate_beside(file)
    return {"certificate": _document(place, [certificates.AGAIN])} if place.is_file() else {}


def _document(file: Path, remedies: Iterable[Remedy] = ()) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{file}: not a JSON file ({reason(error)})", remedies) from None


@checked
def load_policy(path: PathLike, model: MMDP | None = None) -> Policy:
    """Read a policy from ``.csv``, ``.parquet`` or ``.json``; one with nodes has memory.

    A table without a column ``time`` is a stationary policy. ``policy.objective`` is what it was
    solved for, as :func:`load_objective` has it.

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
    with Source(Path(path)).named():
        policy._set(objective=load_objective(path))
    return policy


def _read_policy(file: Path, model: MMDP | None) -> Policy:
    source, stored, tree = Source(file), None, None
    policy: Policy
    if not file.is_file():
        raise InputError(f"{file}: no such file; check the path")
    if file.suffix.lower() == ".json":
        policy = _from_json(file, model)
        if model is None or policy.kind.learns:
            return policy
        frame, tree = policy.to_frame(), policy if isinstance(policy, TreePolicy) else None
    elif file.suffix.lower() == ".csv":
        frame = read_csv(file, header(file))
        _check_end(file, len(frame))
    elif file.suffix.lower() == ".parquet":
        frame, stored = read_parquet(file)
    else:
        raise InputError(f"{file}: unknown suffix {file.suffix!r}; known are .csv, .parquet, .json")
    if "time" in frame.columns or "node" in frame.columns:
        policy = _from_table(frame, source, model, stored or {})
    else:
        row = _from_table(frame.assign(time=0), source, model, stored or {})
        assert isinstance(row, MarkovPolicy)
        policy = StationaryPolicy.of_row(row)
    if tree is not None:
        policy = tree.placed(policy)
    if model is not None:
        # a stationary one may be followed over any number of decisions
        once = policy.over(model.horizon or 1) if policy.horizon == math.inf else policy
        with source.named():
            once.check(model)
    return policy


def _from_json(path: Path, model: MMDP | None) -> Policy:
    stored = _document(path)
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise InputError(f"{path}: not a policy saved by mmdp (no format {FORMAT!r})")
    if not all(_even(stored.get(name)) for name in ("policy", "probabilities", "nodes", "moves")):
        raise InputError(f"{path}: rows of different lengths; every time has the same states")
    labels = {
        "n_actions": stored.get("n_actions"), "state_labels": stored.get("states"),
        "action_labels": stored.get("actions"), "times": stored.get("times"),
    }  # fmt: skip
    try:
        if "nodes" in stored:
            moves = _moves_of(stored["moves"], len(stored["first"]))
            nodes = MemoryPolicy(stored["nodes"], moves, stored["first"], **labels)
            return _planned(stored, nodes, model) if "alphas" in stored else nodes
        probabilities = stored.get("probabilities")
        policy = MarkovPolicy(stored.get("policy"), probabilities=probabilities, **labels)
        lasts = stored.get("kind") == "stationary" or stored.get("horizon", 0) is None
        rows = StationaryPolicy.of_row(policy) if lasts else policy
        if "tree" not in stored:
            return rows
        return TreePolicy.restored(
            rows, stored["features"], stored["time"], stored["tree"], stored.get("fallback")
        )
    except InputError as error:
        raise error.at(path) from None
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {reason(error)}") from None
    except RecursionError:
        raise InputError(f"{path}: policy actions are nested too deeply for a table") from None


def _planned(stored: Mapping[str, Any], nodes: MemoryPolicy, model: MMDP | None) -> Policy:
    """A plan by state and belief of these models; of others, its nodes."""
    from mmdp.methods.belief_grid import BeliefGridPolicy

    if model is not None and stored["models"] == model.fingerprint() and _named_alike(nodes, model):
        lasts, alphas = stored["horizon"] or math.inf, np.array(stored["alphas"], np.float64)
        if alphas.shape != (*nodes.actions.shape, model.n_models):
            raise ValueError(f"alphas of shape {alphas.shape} for nodes of {nodes.actions.shape}")
        return BeliefGridPolicy(model, lasts, alphas, nodes.controller, kernels.get("numpy"))
    if stored["horizon"] is None:
        raise InputError(
            "a plan by state and belief for ever needs the models that it was made for",
            ["load it with these, or solve again"],
        )
    return nodes


def _named_alike(policy: Policy, model: MMDP) -> bool:
    """Whether the labels of a policy, if it has any, are those of the model, in their order."""
    theirs = labels_of(model)
    return all(getattr(policy, x) in (None, theirs[x]) for x in ("state_labels", "action_labels"))


def _even(table: Any) -> bool:
    """Whether nested lists have one length at every depth.

    >>> _even([[0, 1], [1, 0]]), _even([[0, 1], [1]]), _even([0, [1]])
    (True, False, False)
    """
    level = [table]
    while level:
        lengths = {len(x) if isinstance(x, list) else None for x in level}
        if len(lengths) > 1:
            return False
        if None in lengths:
            return True
        level = [y for x in level for y in x]
    return True


def _from_table(
    frame: pd.DataFrame, source: Source, model: MMDP | None, stored: Mapping[str, Any]
) -> MarkovPolicy | MemoryPolicy:
    label = Times.column_in(frame, KNOWN)
    _check_columns([str(x) for x in frame.columns if x != label], source)
    if not len(frame):
        source.fail("a header but no rows; expected one row per time and state")
    frame = frame.reset_index(drop=True)
    named = [x for x in ("state", "action") if f"id{x}" in frame or "" in _labels_in(model, x)]
    named += [] if label is None else [label]
    empty = (frame.drop(columns=named).astype(str) == "").any(axis=1)
    source.refuse(empty, "an empty cell; is the line cut?")
    time = whole(numbers(frame["time"], "time", source), "time", source)
    s, states = _ids_of(frame, "state", source, model, stored)
    a, actions = _ids_of(frame, "action", source, model, stored)
    if model is not None:
        n_states, n_actions = model.n_states, model.n_actions
    else:
        n_states = len(states) if states else int(s.max()) + 1
        n_actions = max(len(actions or ()), int(a.max()) + 1, int(stored.get("n_actions") or 0))
    shape = (int(time.max()) + 1, n_states, n_actions)
    times = Times.within(frame.assign(time=time), KNOWN) if model is None else model.times
    labels: dict[str, Any] = {"state_labels": states, "action_labels": actions, "times": times}
    if "node" in frame.columns:
        policy = _with_nodes(frame, time, s, a, shape, source, labels)
        return policy if model is None else MemoryPolicy.for_model(model, policy.controller)
    randomised = "probability" in frame.columns
    _check_places(time, s, a if randomised else np.zeros_like(a), shape, source, model)
    if not randomised:
        table = np.empty(shape[:2], dtype=np.int32)
        table[time, s] = a
        return MarkovPolicy(table, n_actions=n_actions, **labels)
    probabilities = np.zeros(shape)
    probabilities[time, s, a] = numbers(frame["probability"], "probability", source)
    with source.named():
        return MarkovPolicy(probabilities=probabilities, **labels)


def _with_nodes(
    frame: pd.DataFrame, time: Ints, s: Ints, a: Ints, shape: tuple[int, int, int],
    source: Source, labels: Mapping[str, Any],
) -> MemoryPolicy:  # fmt: skip
    """The policy of a table as :meth:`MemoryPolicy.to_frame` makes it."""
    node = whole(numbers(frame["node"], "node", source), "node", source)
    T, S, n_actions = shape
    N = int(node.max()) + 1
    flat = (time * S + s) * N + node
    source.refuse(
        pd.Series(flat).duplicated(),
        lambda i: f"time {time[i]}, state {s[i]}, node {node[i]} is given twice",
    )
    if len(flat) != T * S * N:
        source.fail(f"{len(flat)} rows for {T} times, {S} states and {N} nodes; give every one")
    order = np.argsort(flat)
    actions = a[order].reshape(T, S, N)
    words = frame["moves"].astype(str).to_numpy()[order].reshape(actions.shape)
    begins = ((frame["start"].astype(str) == "yes") & (time == 0)).to_numpy()[order]
    first = begins.reshape(actions.shape)[0].argmax(axis=1)
    with source.named():
        moves = _moves_of(words, S)
        return MemoryPolicy(actions, moves, first, n_actions=n_actions, **labels)


def _moves_of(words: Any, n_states: int) -> npt.NDArray[np.uint8]:
    """(T, S, N, S') moves from their words (T, S, N)."""
    words = np.array(words, dtype=object)
    N, known = words.shape[-1], functools.cache(moves_from_words)
    rows = [known(str(text), i % N, n_states) for i, text in enumerate(words.reshape(-1))]
    return np.stack(rows).reshape(*words.shape, n_states)


def _check_end(file: Path, rows: int) -> None:
    """Refuse a file whose last line is not ended: its last number may be cut off."""
    with file.open("rb") as opened:
        opened.seek(-1, os.SEEK_END)
        if rows and opened.read() not in b"\r\n":
            Source(file).fail(
                "the last line does not end, so the file may be cut; write it again, or end it "
                "with a line break if it is whole",
                rows - 1,
            )


def _check_columns(names: list[str], source: Source) -> None:
    nodes = "node" in names
    known, needed = (NODE_COLUMNS, 6) if nodes else (COLUMNS, 3)
    has = "time,state,node,action,moves,start" if nodes else "[time,]state,action[,probability]"
    source.check_columns(names, known, known[:needed], f"a policy has {has}, time from 0")


def _ids_of(
    frame: pd.DataFrame, kind: str, source: Source, model: MMDP | None, stored: Mapping[str, Any]
) -> tuple[Ints, Labels | None]:
    """Ids and labels of the states or actions of a policy's table."""
    text, id_column = frame[kind].astype(str), f"id{kind}"
    labels = _labels_in(model, kind)
    if labels or id_column not in frame.columns:  # blanks around a label, unless it has them
        alike = len({x.strip() for x in labels}) < len(labels)
        text = text.where(text.isin(labels) | alike, text.str.strip())
    if id_column in frame.columns:
        beside = whole(numbers(frame[id_column], id_column, source), kind, source)
        _check_pairs(text, beside, kind, source)
    if labels:
        return _ids_by_label(text, kind, source, labels)
    if id_column not in frame.columns and not is_number(text).all():
        row = int(np.argmin(is_number(text)))
        label = text.iloc[row]
        remedy = (
            f"load it with the model that has these {kind}s"
            if model is None
            else f"the model has no labels of {kind}s; give ids"
        )
        source.fail(f"{kind} {label!r} is a label without an id; {remedy}", row)
    column = frame[id_column] if id_column in frame.columns else text
    ids = whole(numbers(column, id_column, source), kind, source)
    if model is not None:
        limit = getattr(model, f"n_{kind}s")
        there = f"does not exist; the model has {counted(limit, kind)}"
        source.refuse(ids >= limit, lambda i: f"{kind} {ids[i]} {there}")
        return ids, None
    names = stored.get(f"{kind}s")
    # the labels stand next to their ids; one huge id must not make a huge list
    if names is None and (text != ids.astype(str)).any() and ids.max() < 2 * len(ids):
        known = dict(zip(ids.tolist(), text, strict=True))
        names = [known.get(i, str(i)) for i in range(int(ids.max()) + 1)]
    return ids, None if names is None else tuple(map(str, names))


def _labels_in(model: MMDP | None, kind: str) -> Labels:
    """The model's own labels of a kind; none if there is no model, or it has none."""
    labels: Labels = () if model is None else getattr(model, f"{kind}_labels")
    return labels if model is not None and model.labelled[kind] else ()


def _ids_by_label(
    text: pd.Series, kind: str, source: Source, labels: Labels
) -> tuple[Ints, Labels]:
    ids = Names(kind, len(labels), labels).find(text)
    by_number = ids if ids.min() >= 0 else Names(kind, len(labels)).find(text)
    if by_number.min() < 0:
        source.refuse(ids < 0, lambda i: f"the model has no {kind} {text.iloc[i]!r}")
    return by_number, labels


def _check_pairs(text: pd.Series, ids: Ints, kind: str, source: Source) -> None:
    """A label has one id and an id one label throughout (they may be those of another model)."""
    table = pd.DataFrame({"text": text, "id": ids})
    other_id = table.groupby("text")["id"].transform("first") != table["id"]
    other_text = table.groupby("id")["text"].transform("first") != table["text"]
    source.refuse(
        other_id | other_text,
        lambda i: (
            f"id{kind} is {ids[i]} for {kind} {text.iloc[i]!r}, unlike in an earlier line; "
            "correct one of them"
        ),
    )


def _check_places(
    time: Ints, s: Ints, a: Ints, shape: tuple[int, int, int], source: Source, model: MMDP | None
) -> None:
    """Every time and state has a row, before an array of that size is made, and only one."""
    horizon, n_states, n_actions = shape
    seen = np.unique(time * n_states + s)
    if len(seen) < horizon * n_states:
        gaps = np.flatnonzero(seen != np.arange(len(seen)))
        t0, s0 = divmod(int(gaps[0]) if len(gaps) else len(seen), n_states)
        name = model.state_labels[s0] if model is not None else s0
        source.fail(f"no action for time {t0}, state {name!r}; give every state at every time")
    source.refuse(
        pd.Series((time * n_states + s) * n_actions + a).duplicated(),
        lambda i: (
            f"time {time[i]}, state {s[i]} is given twice; keep one row "
            "(or add a probability column for a randomised policy)"
        ),
    )
