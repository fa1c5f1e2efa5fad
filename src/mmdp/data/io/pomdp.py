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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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

HEADER_KEYS = ("discount", "values", "states", "actions", "observations")
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


def load_pomdp(path: Path, options: LoadOptions) -> HiddenModel:
    """Read the model of a .pomdp file, not yet checked as an MMDP."""
    check_file_type(path, "text", "a POMDP file")
    statements = list(_parse_statements(path))
    file = _PomdpFile.parse(path, statements, options)
    p = file.parse_table("T", statements, options)
    observation_probs = file.parse_table("O", statements, options)
    with TableSource(path).prefix_errors():
        observations = _find_observations(observation_probs, file)
    r = np.zeros(p.shape)
    for statement in statements:
        if statement.key == "R":
            with TableSource(f"{path}, line {statement.line}").prefix_errors():
                file.apply_reward(statement, r, observations)
    with TableSource(path).prefix_errors():
        return _make_hidden_model(
            _HiddenProcess(p, -r if file.has_costs else r, observations, file.belief), file
        )


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
    """Whether a statement begins at word i."""
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
@dataclass(frozen=True)
class _PomdpFile:
    """Names of hidden states, actions and observations, and the initial belief."""

    path: Path
    states: NameList
    actions: NameList
    observations: NameList
    discount: float
    has_costs: bool
    belief: Array

    @classmethod
    def parse(cls, path: Path, statements: Sequence[Statement], options: LoadOptions) -> _PomdpFile:
        """Parse the header of a file."""
        header = _collect_header(path, statements)
        with TableSource(f"{path}, line {header['discount'].line}").prefix_errors():
            discount = parse_float(" ".join(_get_words(header["discount"])), "discount")
        values = _get_words(header["values"]) if "values" in header else ["reward"]
        if values not in (["reward"], ["cost"]):
            line = header["values"].line
            raise InputError(
                f"{path}, line {line}: values is {' '.join(values)!r}; write reward or cost"
            )
        names = {}
        for key in ("states", "actions", "observations"):
            with TableSource(f"{path}, line {header[key].line}").prefix_errors():
                names[key] = _parse_names(_get_words(header[key]), key)
        belief = np.full(len(names["states"]), 1.0 / len(names["states"]))
        for statement in statements:
            if statement.key.startswith("start"):
                with TableSource(f"{path}, line {statement.line}").prefix_errors():
                    belief = _parse_belief(statement, names["states"], options)
        return cls(path, **names, discount=discount, has_costs=values == ["cost"], belief=belief)

    def parse_table(self, key: str, statements: Iterable[Statement], options: LoadOptions) -> Array:
        """Parse the transitions (A, X, X') (T) or the observations (A, X', Z) (O)."""
        axes = [self.actions, self.states, self.states if key == "T" else self.observations]
        with TableSource(self.path).prefix_errors():
            check_table_size(*map(len, axes))
        array = np.zeros([len(x) for x in axes])
        for statement in statements:
            if statement.key == key:
                with TableSource(f"{self.path}, line {statement.line}").prefix_errors():
                    index, words = _parse_indices(statement, axes)
                    array[index] = self._parse_probabilities(words, array.shape, len(index), key)
        with TableSource(self.path).prefix_errors():
            return check_distributions(array, options, axes[:2], key)

    def _parse_probabilities(
        self, words: list[str], shape: Sequence[int], n_given: int, key: str
    ) -> Array:
        """Parse numbers, or the keywords uniform, identity and reset."""
        rest_shape = shape[n_given:]
        if words == ["uniform"] and rest_shape:
            return np.full(rest_shape, 1.0 / shape[-1])
        if words == ["identity"] and n_given == 1 and key == "T":
            return np.eye(shape[-1])
        if words == ["reset"] and n_given == 2 and key == "T":
            return self.belief
        return parse_float_array(words, f"{key}:", rest_shape, min_value=0.0)

    def apply_reward(self, statement: Statement, r: Array, observations: IntArray) -> None:
        """Write one statement R: into the rewards (A, X, X')."""
        axes = [self.actions, self.states, self.states, self.observations]
        index, words = _parse_indices(statement, axes)
        n_states, n_observations = len(self.states), len(self.observations)
        if len(index) == 1:
            raise InputError("R: has an action only; give a state too")
        values = parse_float_array(
            words, "R:", {2: (n_states, n_observations), 3: (n_observations,), 4: ()}[len(index)]
        )
        next_states = np.arange(n_states)
        if len(index) > 2:
            next_states = next_states[index[2]].reshape(-1)
        if len(index) == 4 and index[3] != slice(None):
            next_states = next_states[observations[next_states] == index[3]]
        if len(index) == 2:
            values = values[next_states, observations]
        elif len(index) == 3:
            values = values[observations[next_states]]
        r[(*index[:2], next_states)] = values


def _collect_header(path: Path, statements: Sequence[Statement]) -> dict[str, Statement]:
    """Collect the statements of the header by keyword; refuse missing and duplicate ones."""
    header: dict[str, Statement] = {}
    for statement in statements:
        key = statement.key.split()[0]
        if key in (*HEADER_KEYS, "start"):
            if key in header:
                raise InputError(f"{path}, line {statement.line}: {key} is given twice; keep one")
            header[key] = statement
    missing = [key for key in HEADER_KEYS if key not in header and key != "values"]
    if missing:
        raise InputError(f"{path}: no {missing[0]}: is given; add it")
    return header


def _get_words(statement: Statement) -> list[str]:
    if len(statement.segments) > 1:
        raise InputError(f"too many colons after {statement.key}:; remove one")
    return statement.segments[0]


def _parse_names(words: list[str], key: str) -> NameList:
    """Parse names, or a number of names."""
    if len(words) == 1 and words[0].isdigit():
        if not 1 <= len(words[0]) <= 7 or not 1 <= int(words[0]) <= MAX_NAMES:
            raise InputError(f"{key}: {words[0]} is not a number from 1 to {MAX_NAMES:,}")
        return NameList(map(str, range(int(words[0]))))
    if not words or len(set(words)) < len(words):
        raise InputError(f"{key}: has no names or a name twice; give a number or different names")
    return NameList(words)


def _parse_belief(statement: Statement, states: NameList, options: LoadOptions) -> Array:
    """Parse the initial belief (X,): probabilities, a state, ``uniform``, include or exclude."""
    words = _get_words(statement)
    if statement.key == "start" and words == ["uniform"]:
        return np.full(len(states), 1.0 / len(states))
    is_state = len(words) == 1 and (words[0] in states.positions or words[0].isdigit())
    if statement.key == "start" and len(words) == len(states) and not is_state:
        belief = parse_float_array(words, "start:", (len(states),), min_value=0.0)
        return check_distributions(belief, options, (), "start")
    if statement.key == "start" and len(words) != 1:
        raise InputError(
            f"{len(words)} words after start:; expected {len(states)} numbers or one state"
        )
    belief = np.zeros(len(states))
    for word in words:
        belief[_parse_index(word, states)] = 1.0
    belief = 1.0 - belief if statement.key.endswith("exclude") else belief
    if not belief.any():
        raise InputError(f"{statement.key}: leaves no state to start in; include one")
    return belief / belief.sum()


def _parse_index(word: str, names: NameList) -> int | slice:
    """Parse a name, a number or ``*`` as an index."""
    if word == "*":
        return slice(None)
    if word in names.positions:
        return names.positions[word]
    if word.isdigit() and len(word) < 8 and int(word) < len(names):
        return int(word)
    raise InputError(f"{did_you_mean(word, names)} is not declared")


def _parse_indices(
    statement: Statement, axes: Sequence[NameList]
) -> tuple[tuple[int | slice, ...], list[str]]:
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
@dataclass(frozen=True)
class _HiddenProcess:
    """Transitions and rewards (A, X, X'), observation (X,) of each x, initial belief (X,)."""

    p: Array
    r: Array
    observations: IntArray
    belief: Array


def _find_observations(observation_probs: Array, file: _PomdpFile) -> IntArray:
    """Find the observation (X,) of every hidden state; refuse noisy observations."""
    observations = observation_probs[0].argmax(axis=1)
    observed_probs = np.take_along_axis(
        observation_probs,
        np.broadcast_to(observations, observation_probs.shape[:2])[..., None],
        axis=2,
    )
    noisy_cells = np.argwhere(observed_probs[..., 0] < 1 - PROB_TOLERANCE)
    if len(noisy_cells):
        a, x = noisy_cells[0]
        raise InputError(
            f"state {file.states[x]!r} is observed with errors, or not after every action (see "
            f"action {file.actions[a]!r}); in an MMDP the state is observed exactly"
        )
    return observations


def _make_hidden_model(hidden: _HiddenProcess, file: _PomdpFile) -> HiddenModel:
    """Convert a hidden process to a hidden model and an observed state."""
    fork = _find_fork(hidden)
    next_belief = hidden.belief if fork is None else hidden.p[0, fork]
    members, switching_reason = _find_members(hidden, fork, next_belief, file)
    states = np.flatnonzero((members >= 0).any(axis=0))
    members = members[:, states]
    check_table_size(len(members), len(states) + 1, len(file.actions), len(states) + 1)
    model_transitions = None
    if switching_reason is None:
        p, r = _split_by_model(hidden.p, members), _split_by_model(hidden.r, members)
        m, s = np.nonzero(members < 0)
        p[m, s, :, s] = 1.0  # a state that a model never reaches stays where it is
    else:
        p, r, model_transitions = _factor_switching(hidden, members, switching_reason)
        if fork is not None:
            return _make_forked_switching(
                hidden, fork, members, (p, r, model_transitions), switching_reason, file
            )
    joint_belief = np.where(members >= 0, next_belief[members], 0.0)  # (M, S)
    (weights, state_probs), initial = split_belief(joint_belief), joint_belief.sum(axis=0)
    labels = [file.observations[s] for s in states]
    if fork is not None or np.count_nonzero(initial) > 1:
        if fork is None:
            start_p, start_r = _average_first_step(state_probs, p, r)
            labels.append("start" if "start" not in labels else "the start")
        else:
            start_p = _split_row_by_model(hidden.p[:, fork], members) / weights[:, None, None]
            start_r = _split_row_by_model(hidden.r[:, fork], members)
            labels.append(file.observations[hidden.observations[fork]])
        p, r = _append_start_state(p, start_p), _append_start_state(r, start_r)
        initial = np.append(np.zeros(len(states)), 1.0)
    axis_labels = {"state": labels, "action": file.actions}
    return HiddenModel(p, r, weights, initial, file.discount, axis_labels, model_transitions)


def _make_forked_switching(
    hidden: _HiddenProcess,
    fork: int,
    members: IntArray,
    tables: tuple[Array, Array, Array],
    reason: str,
    file: _PomdpFile,
) -> HiddenModel:
    """Make switching models with one more model, the last, that holds in the first state only."""
    p, r, chain = tables
    joint, fork_r = (
        _split_row_by_model(hidden.p[:, fork], members),
        _split_row_by_model(hidden.r[:, fork], members),
    )
    model_probs, fork_p = joint[:, 0].sum(axis=1), joint.sum(axis=0)  # (M,), (A, S')
    if not np.allclose(joint, model_probs[:, None, None] * fork_p, rtol=0, atol=PROB_TOLERANCE):
        fail_unsupported_switching(reason)
    M = len(p)
    fork_r = np.einsum("m,man->an", model_probs, fork_r)
    p, r = np.concatenate([p, p[:1]]), np.concatenate([r, r[:1]])
    p = _append_start_state(p, np.repeat(fork_p[None], M + 1, axis=0))
    r = _append_start_state(r, np.repeat(fork_r[None], M + 1, axis=0))
    model_transitions = np.vstack([np.pad(chain, ((0, 0), (0, 1))), np.append(model_probs, 0.0)])
    states = [file.observations[z] for z in hidden.observations[members[0]]]
    labels = {
        "state": [*states, file.observations[hidden.observations[fork]]],
        "action": file.actions,
    }
    return HiddenModel(
        p, r, np.eye(M + 1)[M], np.eye(p.shape[1])[-1], file.discount, labels, model_transitions
    )


def _factor_switching(
    hidden: _HiddenProcess, members: IntArray, reason: str
) -> tuple[Array, Array, Array]:
    """Factor the process into p, r (M, S, A, S') and the chain of models (M, M')."""
    joint = hidden.p[:, members[:, :, None, None], members].transpose(1, 2, 0, 3, 4)
    joint_r = hidden.r[:, members[:, :, None, None], members].transpose(1, 2, 0, 3, 4)
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


def _find_fork(hidden: _HiddenProcess) -> int | None:
    """Find an initial state whose first step selects the model; None without."""
    x = int(hidden.belief.argmax())
    is_unique = hidden.belief[x] == 1 and (hidden.observations == hidden.observations[x]).sum() == 1
    return x if is_unique and not hidden.p[:, :, x].any() else None


def _find_members(
    hidden: _HiddenProcess, fork: int | None, next_belief: Array, file: _PomdpFile
) -> tuple[IntArray, str | None]:
    """Find the hidden state (M, Z) that is observed as z in model m; -1 if there is none.

    Closed components of the process are joined into models: first those that are reached from the
    start, then the others as long as they fit. If the model switches, the second result says
    which states show it.
    """
    from scipy.sparse import csr_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    adjacency = hidden.p.sum(axis=0)
    if fork is not None:
        adjacency[fork] = 0.0
    n_components, component = connected_components(csr_array(adjacency), directed=False)
    models: list[IntArray] = []
    is_reached = [bool(next_belief[component == k].any()) for k in range(n_components)]
    for k in sorted(range(n_components), key=lambda k: not is_reached[k]):
        component_states = np.flatnonzero(component == k)
        if fork is not None and fork in component_states:
            continue
        component_obs = hidden.observations[component_states]
        duplicate_obs = next((z for z in component_obs if (component_obs == z).sum() > 1), None)
        if duplicate_obs is not None and is_reached[k]:
            x, y = component_states[component_obs == duplicate_obs][:2]
            reason = (
                f"states {file.states[x]!r} and {file.states[y]!r} are both observed as "
                f"{file.observations[duplicate_obs]!r} and connected, so a hidden part changes"
            )
            return _rank_members(hidden, fork, reason), reason
        matching_model = next((model for model in models if (model[component_obs] < 0).all()), None)
        if matching_model is None and is_reached[k]:
            models.append(matching_model := np.full(len(file.observations), -1))
        if matching_model is not None and duplicate_obs is None:
            matching_model[component_obs] = component_states
    members = np.array(models)
    if fork is not None:
        _check_fork(hidden.p[:, fork], members, file, fork)
    return members, None


def _rank_members(hidden: _HiddenProcess, fork: int | None, reason: str) -> IntArray:
    """Find the m-th hidden state (M, Z) that is observed as z, equally many for every z."""
    observations = (
        hidden.observations
        if fork is None
        else np.where(np.arange(len(hidden.observations)) == fork, -1, hidden.observations)
    )
    counts = np.bincount(observations[observations >= 0])
    if len({*counts.tolist()} - {0}) > 1:
        fail_unsupported_switching(reason)
    members = np.full((counts.max(), len(counts)), -1)
    for z in np.flatnonzero(counts):
        members[:, z] = np.flatnonzero(observations == z)
    return members


def _check_fork(fork_p: Array, members: IntArray, file: _PomdpFile, fork: int) -> None:
    """Refuse a first step whose action changes the probabilities of the models."""
    model_probs = np.where(members >= 0, fork_p[:, members], 0).sum(axis=2)
    if np.ptp(model_probs, axis=0).max() > PROB_TOLERANCE:
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
