"""Cassandra's POMDP format, read as an MMDP.

A file lists hidden states x, and an MMDP is behind it if every x is seen as one observation and
no two x of a closed part of the process are seen alike: the observation is the state, a closed
part is a model. If x that are seen alike belong together, the model changes: the first of those
seen alike is the first model in every state, and so on, and the process must be the product of
a step by the model and of a chain. The first decision is taken before anything is seen. So if
the start is spread over several observations, the model gets a state ``start`` that stands for
them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.text import did_you_mean
from mmdp.core.transitions import Array
from mmdp.data.io.hidden_model import (
    HiddenModel,
    check_distributions,
    check_table_size,
    fail_unsupported_switching,
    parse_float,
    parse_float_array,
    split_belief,
)
from mmdp.data.io.reading import check_file_type
from mmdp.data.io.tables import LoadOptions
from mmdp.data.schema import IntArray, TableSource

T = TypeVar("T")
Index = tuple[int | slice, ...]
NAME_KEYS = ("states", "actions", "observations")
HEADER_KEYS = ("discount", "values", *NAME_KEYS)
KEYWORDS = (*HEADER_KEYS, "start", "T", "O", "R")
MAX_NAMES = 1_000_000  # of states, actions or observations
PROB_TOLERANCE = 1e-8  # probabilities this close to 1 are 1


class NameList(list[str]):
    """Names in order, with their positions."""

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position of each name."""
        return {name: i for i, name in enumerate(self)}


class Statement(NamedTuple):
    """Statement of a POMDP file: ``T: a : x 0.1 0.9`` is T with segments (a), (x, 0.1, 0.9)."""

    key: str
    segments: list[list[str]]
    line: int

    @property
    def words(self) -> list[str]:
        """Words of a statement with one segment."""
        if len(self.segments) > 1:
            raise InputError(f"too many colons after {self.key}:; remove one")
        return self.segments[0]


def load_pomdp(path: Path, options: LoadOptions) -> HiddenModel:
    """Read the model of a .pomdp file, not yet checked as an MMDP."""
    check_file_type(path, "text", "a POMDP file")
    file = _PomdpFile(path, options)
    with file.source.prefix_errors():
        return _make_hidden_model(file)


# ---------------------------------------------------------------------- statements
def _parse_statements(path: Path) -> Iterator[Statement]:
    """Split a file into statements, which begin with a keyword and a colon."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    words = [
        (word, line_number)
        for line_number, line in enumerate(text.splitlines(), 1)
        for word in re.findall(r":|[^\s:]+", line.partition("#")[0])
    ]
    starts = [i for i in range(len(words)) if _is_statement_start(words, i)]
    if not starts or starts[0] != 0:
        first_word = words[0] if words else ("", 1)
        raise InputError(
            f"{path}, line {first_word[1]}: the file begins with "
            f"{did_you_mean(first_word[0], KEYWORDS)}; expected one of {', '.join(HEADER_KEYS)} "
            "and a colon"
        )
    for i, j in zip(starts, [*starts[1:], len(words)], strict=True):
        colon = next(k for k in range(i, j) if words[k][0] == ":")
        segments: list[list[str]] = [[]]
        for word, _ in words[colon + 1 : j]:
            if word == ":":
                segments.append([])
            else:
                segments[-1].append(word)
        yield Statement(" ".join(word for word, _ in words[i:colon]), segments, words[i][1])


def _is_statement_start(words: Sequence[tuple[str, int]], i: int) -> bool:
    """Return whether a statement begins at word i."""
    words_before = [word for word, _ in words[max(i - 2, 0) : i]]
    words_after = [word for word, _ in words[i + 1 : i + 3]]
    if words[i][0] not in KEYWORDS:
        return False
    if words_before[1:] == [":"] and words_before[0] not in (*HEADER_KEYS, "include", "exclude"):
        return False  # a name inside T, O or R
    return words_after[:1] == [":"] or (
        words[i][0] == "start"
        and words_after[1:] == [":"]
        and words_after[0] in ("include", "exclude")
    )


# ---------------------------------------------------------------------- the file
class _PomdpFile:
    """Hidden states x, actions and observations by name, and the process of x.

    ``p`` and ``r`` (A, X, X'), ``observed`` (X,) observation of each x, ``belief`` (X,) at first.
    """

    def __init__(self, path: Path, options: LoadOptions) -> None:
        self.source, self.options = TableSource(path), options
        self.statements: dict[str, list[Statement]] = defaultdict(list)
        for statement in _parse_statements(path):
            self.statements[statement.key.split()[0]].append(statement)
        for key in (*HEADER_KEYS, "start"):
            lines = [statement.line for statement in self.statements[key]]
            if len(lines) > 1:
                raise InputError(f"{path}, line {lines[1]}: {key} is given twice; keep one")
            if not lines and key not in ("values", "start"):
                raise InputError(f"{path}: no {key}: is given; add it")
        (self.discount,) = self._parse_all(
            "discount", lambda x: parse_float(" ".join(x.words), "discount")
        )
        has_costs = any(self._parse_all("values", _parse_has_costs))
        self.states, self.actions, self.observations = (
            self._parse_all(key, _parse_names)[0] for key in NAME_KEYS
        )
        n_states = len(self.states)
        uniform = np.full(n_states, 1.0 / n_states)
        self.belief = [*self._parse_all("start", self._parse_belief), uniform][0]
        self.p = self._parse_table("T", self.states)
        self.observed = self._find_observations(self._parse_table("O", self.observations))
        self.r = np.zeros(self.p.shape)
        self._parse_all("R", self._apply_reward)
        self.r = -self.r if has_costs else self.r

    def _parse_all(self, key: str, parse: Callable[[Statement], T]) -> list[T]:
        """Parse all statements of a keyword; errors name the line."""
        results = []
        for statement in self.statements[key]:
            with self.source.prefix_errors(statement.line):
                results.append(parse(statement))
        return results

    def _parse_belief(self, statement: Statement) -> Array:
        """Parse the initial belief (X,): probabilities, a state, ``uniform``, include, exclude."""
        key, words, n_states = statement.key, statement.words, len(self.states)
        is_state = len(words) == 1 and (words[0] in self.states.positions or words[0].isdigit())
        if key == "start" and words == ["uniform"]:
            return np.full(n_states, 1.0 / n_states)
        if key == "start" and len(words) == n_states and not is_state:
            belief = parse_float_array(words, "start:", (n_states,), min_value=0.0)
            return check_distributions(belief, self.options, (), "start")
        if key == "start" and len(words) != 1:
            raise InputError(
                f"{len(words)} words after start:; expected {n_states} numbers or one state"
            )
        belief = np.zeros(n_states)
        for word in words:
            belief[_parse_index(word, self.states)] = 1.0
        belief = 1.0 - belief if key.endswith("exclude") else belief
        if not belief.any():
            raise InputError(f"{key}: leaves no state to start in; include one")
        return belief / belief.sum()

    def _parse_table(self, key: str, last_axis: NameList) -> Array:
        """Parse the transitions (A, X, X') (T) or the observations (A, X', Z) (O)."""
        axes = [self.actions, self.states, last_axis]
        with self.source.prefix_errors():
            check_table_size(*map(len, axes))
        array = np.zeros([len(x) for x in axes])

        def apply_statement(statement: Statement) -> None:
            index, words = _parse_indices(statement, axes)
            rest_shape = array.shape[len(index) :]
            if words == ["uniform"] and rest_shape:
                array[index] = 1.0 / len(last_axis)
            elif words == ["identity"] and len(index) == 1 and key == "T":
                array[index] = np.eye(len(last_axis))
            elif words == ["reset"] and len(index) == 2 and key == "T":
                array[index] = self.belief
            else:
                array[index] = parse_float_array(words, f"{key}:", rest_shape, min_value=0.0)

        self._parse_all(key, apply_statement)
        with self.source.prefix_errors():
            return check_distributions(array, self.options, axes[:2], key)

    def _apply_reward(self, statement: Statement) -> None:
        """Write one statement R: into the rewards (A, X, X')."""
        index, words = _parse_indices(
            statement, [self.actions, self.states, self.states, self.observations]
        )
        if len(index) == 1:
            raise InputError("R: has an action only; give a state too")
        next_states = np.arange(len(self.states))
        shape = (len(self.states), len(self.observations))[len(index) - 2 :]
        values = parse_float_array(words, "R:", shape)
        if len(index) > 2:
            next_states = next_states[index[2]].reshape(-1)
        if len(index) == 4 and index[3] != slice(None):
            next_states = next_states[self.observed[next_states] == index[3]]
        if len(index) == 2:
            values = values[next_states, self.observed]
        elif len(index) == 3:
            values = values[self.observed[next_states]]
        self.r[(*index[:2], next_states)] = values

    def _find_observations(self, probs: Array) -> IntArray:
        """Find the observation (X,) of every hidden state; refuse noisy observations."""
        observed = probs[0].argmax(axis=1)
        observed_probs = probs[:, np.arange(len(observed)), observed]
        noisy_cells = np.argwhere(observed_probs < 1 - PROB_TOLERANCE)
        if len(noisy_cells):
            a, x = noisy_cells[0]
            self.source.fail(
                f"state {self.states[x]!r} is observed with errors, or not after every action (see "
                f"action {self.actions[a]!r}); in an MMDP the state is observed exactly"
            )
        return observed


def _parse_has_costs(statement: Statement) -> bool:
    """Parse whether values are costs."""
    if statement.words not in (["reward"], ["cost"]):
        raise InputError(f"values is {' '.join(statement.words)!r}; write reward or cost")
    return statement.words == ["cost"]


def _parse_names(statement: Statement) -> NameList:
    """Parse names, or a number of names."""
    key, words = statement.key, statement.words
    if len(words) == 1 and words[0].isdigit():
        if not 1 <= len(words[0]) <= 7 or not 1 <= int(words[0]) <= MAX_NAMES:
            raise InputError(f"{key}: {words[0]} is not a number from 1 to {MAX_NAMES:,}")
        return NameList(map(str, range(int(words[0]))))
    if not words or len(set(words)) < len(words):
        raise InputError(f"{key}: has no names or a name twice; give a number or different names")
    return NameList(words)


def _parse_index(word: str, names: NameList) -> int | slice:
    """Parse a name, a number or ``*`` as an index."""
    if word == "*":
        return slice(None)
    if word in names.positions:
        return names.positions[word]
    if word.isdigit() and len(word) < 8 and int(word) < len(names):
        return int(word)
    raise InputError(f"{did_you_mean(word, names)} is not declared")


def _parse_indices(statement: Statement, axes: Sequence[NameList]) -> tuple[Index, list[str]]:
    """Parse the indices of a statement; returns them and the words after them."""
    *leading, (*last_segment,) = statement.segments
    if len(statement.segments) > len(axes):
        raise InputError(
            f"{statement.key}: has {len(statement.segments)} parts; at most {len(axes)}"
        )
    if not last_segment or any(len(segment) != 1 for segment in leading):
        raise InputError(f"{statement.key}: has no name or several between two colons; give one")
    words = [*(segment[0] for segment in leading), last_segment[0]]
    index = tuple(
        _parse_index(word, axis_names) for word, axis_names in zip(words, axes, strict=False)
    )
    return index, last_segment[1:]


# ---------------------------------------------------------------------- hidden states to models
def _make_hidden_model(file: _PomdpFile) -> HiddenModel:
    """Convert a hidden process to a hidden model and an observed state."""
    fork = _find_fork(file)
    next_belief = file.belief if fork is None else file.p[0, fork]
    members, switching_reason = _find_members(file, fork, next_belief)
    states = np.flatnonzero((members >= 0).any(axis=0))
    members = members[:, states]
    check_table_size(len(members), len(states) + 1, len(file.actions), len(states) + 1)
    model_transitions = None
    if switching_reason is None:
        p, r = _split_by_model(file.p, members), _split_by_model(file.r, members)
        m, s = np.nonzero(members < 0)
        p[m, s, :, s] = 1.0  # a state that a model never reaches stays where it is
    else:
        p, r, model_transitions = _factor_switching(file, members, switching_reason)
        if fork is not None:
            return _make_forked_switching(
                file, fork, members, (p, r, model_transitions), switching_reason
            )
    joint_belief = np.where(members >= 0, next_belief[members], 0.0)  # (M, S)
    (weights, state_probs), initial = split_belief(joint_belief), joint_belief.sum(axis=0)
    labels = [file.observations[s] for s in states]
    if fork is not None or np.count_nonzero(initial) > 1:
        if fork is None:
            start_p, start_r = _average_first_step(state_probs, p, r)
            labels.append("start" if "start" not in labels else "the start")
        else:
            start_p = _split_row_by_model(file.p[:, fork], members) / weights[:, None, None]
            start_r = _split_row_by_model(file.r[:, fork], members)
            labels.append(file.observations[file.observed[fork]])
        p, r = _append_start_state(p, start_p), _append_start_state(r, start_r)
        initial = np.append(np.zeros(len(states)), 1.0)
    axis_labels = {"state": labels, "action": file.actions}
    return HiddenModel(p, r, weights, initial, file.discount, axis_labels, model_transitions)


def _make_forked_switching(
    file: _PomdpFile,
    fork: int,
    members: IntArray,
    tables: tuple[Array, Array, Array],
    reason: str,
) -> HiddenModel:
    """Make switching models with one more model, the last, that holds in the first state only."""
    p, r, chain = tables
    joint = _split_row_by_model(file.p[:, fork], members)
    fork_r = _split_row_by_model(file.r[:, fork], members)
    model_probs, fork_p = joint[:, 0].sum(axis=1), joint.sum(axis=0)  # (M,), (A, S')
    if not np.allclose(joint, model_probs[:, None, None] * fork_p, rtol=0, atol=PROB_TOLERANCE):
        fail_unsupported_switching(reason)
    M = len(p)
    fork_r = np.einsum("m,man->an", model_probs, fork_r)
    p, r = np.concatenate([p, p[:1]]), np.concatenate([r, r[:1]])
    p = _append_start_state(p, np.repeat(fork_p[None], M + 1, axis=0))
    r = _append_start_state(r, np.repeat(fork_r[None], M + 1, axis=0))
    model_transitions = np.vstack([np.pad(chain, ((0, 0), (0, 1))), np.append(model_probs, 0.0)])
    states = [file.observations[z] for z in file.observed[members[0]]]
    labels = {
        "state": [*states, file.observations[file.observed[fork]]],
        "action": file.actions,
    }
    return HiddenModel(
        p, r, np.eye(M + 1)[M], np.eye(p.shape[1])[-1], file.discount, labels, model_transitions
    )


def _factor_switching(
    file: _PomdpFile, members: IntArray, reason: str
) -> tuple[Array, Array, Array]:
    """Factor the process into p, r (M, S, A, S') and the chain of models (M, M')."""
    joint = file.p[:, members[:, :, None, None], members].transpose(1, 2, 0, 3, 4)
    joint_r = file.r[:, members[:, :, None, None], members].transpose(1, 2, 0, 3, 4)
    p, chain = joint.sum(axis=3), joint.sum(axis=4).mean(axis=(1, 2))
    factored = p[:, :, :, None] * chain[:, None, None, :, None]
    if not np.allclose(joint, factored, rtol=0, atol=PROB_TOLERANCE):
        fail_unsupported_switching(reason)
    return p, np.einsum("mn,msanz->msaz", chain, joint_r), chain


def _average_first_step(state_probs: Array, p: Array, r: Array) -> tuple[Array, Array]:
    """Average the first step over an initial state (M, S) that is not observed.

    Returns: (M, A, S') probabilities, (M, A, S') rewards.
    """
    start_p = np.einsum("ms,msan->man", state_probs, p)
    start_r = np.einsum("ms,msan,msan->man", state_probs, p, r)
    return start_p, np.divide(start_r, start_p, out=np.zeros_like(start_p), where=start_p > 0)


def _split_row_by_model(row: Array, members: IntArray) -> Array:
    """Split a row (A, X') by model, as (M, A, S')."""
    return np.where(members >= 0, row[:, members], 0.0).swapaxes(0, 1)


def _find_fork(file: _PomdpFile) -> int | None:
    """Find an initial state whose first step selects the model; None without."""
    x = int(file.belief.argmax())
    is_unique = file.belief[x] == 1 and (file.observed == file.observed[x]).sum() == 1
    return x if is_unique and not file.p[:, :, x].any() else None


def _find_members(
    file: _PomdpFile, fork: int | None, next_belief: Array
) -> tuple[IntArray, str | None]:
    """Find the hidden state (M, Z) that is observed as z in model m; -1 if there is none.

    Closed components of the process are joined into models: first those that are reached from the
    start, then the others as long as they fit. If the model switches, the second result says
    which states show it.
    """
    from scipy.sparse import csr_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    adjacency = file.p.sum(axis=0)
    if fork is not None:
        adjacency[fork] = 0.0
    n_components, component = connected_components(csr_array(adjacency), directed=False)
    models: list[IntArray] = []
    is_reached = [bool(next_belief[component == k].any()) for k in range(n_components)]
    for k in sorted(range(n_components), key=lambda k: not is_reached[k]):
        component_states = np.flatnonzero(component == k)
        if fork is not None and fork in component_states:
            continue
        component_obs = file.observed[component_states]
        duplicate_obs = next((z for z in component_obs if (component_obs == z).sum() > 1), None)
        if duplicate_obs is not None and is_reached[k]:
            x, y = component_states[component_obs == duplicate_obs][:2]
            reason = (
                f"states {file.states[x]!r} and {file.states[y]!r} are both observed as "
                f"{file.observations[duplicate_obs]!r} and connected, so a hidden part changes"
            )
            return _rank_members(file, fork, reason), reason
        matching_model = next((model for model in models if (model[component_obs] < 0).all()), None)
        if matching_model is None and is_reached[k]:
            models.append(matching_model := np.full(len(file.observations), -1))
        if matching_model is not None and duplicate_obs is None:
            matching_model[component_obs] = component_states
    members = np.array(models)
    if fork is not None:
        _check_fork(file, members, fork)
    return members, None


def _rank_members(file: _PomdpFile, fork: int | None, reason: str) -> IntArray:
    """Find the m-th hidden state (M, Z) that is observed as z, equally many for every z."""
    observations = (
        file.observed
        if fork is None
        else np.where(np.arange(len(file.observed)) == fork, -1, file.observed)
    )
    counts = np.bincount(observations[observations >= 0])
    if len({*counts.tolist()} - {0}) > 1:
        fail_unsupported_switching(reason)
    members = np.full((counts.max(), len(counts)), -1)
    for z in np.flatnonzero(counts):
        members[:, z] = np.flatnonzero(observations == z)
    return members


def _check_fork(file: _PomdpFile, members: IntArray, fork: int) -> None:
    """Refuse a first step whose action changes the probabilities of the models."""
    model_probs = _split_row_by_model(file.p[:, fork], members).sum(axis=2)
    if np.ptp(model_probs, axis=1).max() > PROB_TOLERANCE:
        raise InputError(
            f"the model depends on the action in {file.states[fork]!r}; in an MMDP it does not "
            "depend on actions"
        )


def _split_by_model(table: Array, members: IntArray) -> Array:
    """Split a table (A, X, X') by model, as (M, S, A, S')."""
    is_member = members >= 0
    values = table[:, members[:, :, None], members[:, None, :]]
    return np.where(is_member[:, :, None] & is_member[:, None, :], values, 0.0).transpose(
        1, 2, 0, 3
    )


def _append_start_state(table: Array, start_rows: Array) -> Array:
    """Append a start state, which no state leads to; returns (M, S + 1, A, S + 1)."""
    extended = np.concatenate([table, start_rows[:, None]], axis=1)
    return np.pad(extended, [(0, 0), (0, 0), (0, 0), (0, 1)])
