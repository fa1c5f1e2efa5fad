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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.shapes import Array, IndexArray
from mmdp.core.text import did_you_mean
from mmdp.data.io.hidden_model import (
    Names,
    check_distributions,
    check_table_size,
    make_model_fields,
    parse_count,
    parse_float,
    parse_names,
    parse_numbers,
    parse_probabilities,
)
from mmdp.data.io.reading import check_file_type
from mmdp.data.io.tables import LoadOptions
from mmdp.data.schema import Fields, TableSource

Index = tuple[int | slice, ...]
NAME_KEYS = ("states", "actions", "observations")
HEADER_KEYS = ("discount", "values", *NAME_KEYS, "start")
STATEMENT_START = re.compile(
    rf"^[ \t]*({'|'.join(HEADER_KEYS)}|start\s+(?:include|exclude)|[TOR])\s*:", re.MULTILINE
)
PROB_TOLERANCE = 1e-8  # probabilities this close to 1 are 1


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


def load_pomdp(path: Path, options: LoadOptions) -> MMDP:
    """Load a model from a .pomdp file."""
    check_file_type(path, "text", "a POMDP file")
    file = _PomdpFile(path, options)
    with file.source.prefix_errors():
        return MMDP(**_make_fields(file), storage=options.storage)


def _iter_statements(path: Path) -> Iterator[Statement]:
    """Split a file into statements, which begin a line with a keyword and a colon."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    text = re.sub("#.*", "", "\n".join(text.splitlines()))
    first_text, *parts = STATEMENT_START.split(text)
    line = 1 + first_text.count("\n")
    if first_text.strip() or not parts:
        first_word = next(iter(first_text.split()), "")
        raise InputError(
            f"{path}: the file begins with {did_you_mean(first_word, HEADER_KEYS)}; expected one "
            f"of {', '.join(HEADER_KEYS)} and a colon"
        )
    for key, content in zip(parts[::2], parts[1::2], strict=True):
        segments = [segment.split() for segment in content.split(":")]
        yield Statement(" ".join(key.split()), segments, line)
        line += (key + content).count("\n")


# ---------------------------------------------------------------------- the file
class _PomdpFile:
    """Hidden states x, actions and observations by name, and the process of x.

    ``p`` and ``r`` (A, X, X'), ``observed`` (X,) observation of each x, ``belief`` (X,) at first.
    """

    def __init__(self, path: Path, options: LoadOptions) -> None:
        self.source, self.options = TableSource(path), options
        self.statements = [*_iter_statements(path)]
        self.discount = self._parse_one(
            "discount", lambda x: parse_float(" ".join(x.words), "discount")
        )
        sign = self._parse_one("values", _parse_sign, 1.0)
        self.states, self.actions, self.observations = (
            self._parse_one(key, _parse_axis) for key in NAME_KEYS
        )
        uniform = np.full(len(self.states), 1.0 / len(self.states))
        self.belief = self._parse_one("start", self._parse_belief, uniform)
        self.p = self._parse_table("T", self.states)
        self.observed = self._find_observations(self._parse_table("O", self.observations))
        self.r = np.zeros(self.p.shape)
        self._parse_all("R", self._apply_reward)
        self.r *= sign

    def _parse_all(self, key: str, parse: Callable[[Statement], Any]) -> list[Any]:
        """Parse all statements of a keyword; errors name the line."""
        results: list[Any] = []
        for statement in self.statements:
            if statement.key.split()[0] == key:
                with self.source.prefix_errors(statement.line):
                    if results and key in HEADER_KEYS:
                        raise InputError(f"{key} is given twice; keep one")
                    results.append(parse(statement))
        return results

    def _parse_one(
        self, key: str, parse: Callable[[Statement], Any], default: object = None
    ) -> Any:
        """Parse the only statement of a keyword."""
        results = self._parse_all(key, parse) or [default]
        if results[0] is None:
            self.source.fail(f"no {key}: is given; add it")
        return results[0]

    def _parse_belief(self, statement: Statement) -> Array:
        """Parse the initial belief (X,): probabilities, a state, ``uniform``, include, exclude."""
        key, words, belief = statement.key, statement.words, np.zeros(len(self.states))
        is_state = len(words) == 1 and (words[0] in self.states or words[0].isdecimal())
        if key == "start" and not is_state:
            probs = parse_probabilities(words, "start:", belief.shape)
            return check_distributions(probs, self.options.normalize, (), "start")
        for word in words:
            belief[_parse_index(word, self.states)] = 1.0
        belief = 1.0 - belief if key.endswith("exclude") else belief
        if not belief.any():
            raise InputError(f"{key}: leaves no state to start in; include one")
        return belief / belief.sum()

    def _parse_table(self, key: str, last_axis: Names) -> Array:
        """Parse the transitions (A, X, X') (T) or the observations (A, X', Z) (O)."""
        axes = [self.actions, self.states, last_axis]
        with self.source.prefix_errors():
            check_table_size(*map(len, axes))
            array = np.zeros([len(x) for x in axes])

        def apply_statement(statement: Statement) -> None:
            index, words = _parse_indices(statement, axes)
            is_reset = words == ["reset"] and len(index) == 2 and key == "T"
            shape = array.shape[len(index) :]
            array[index] = self.belief if is_reset else parse_probabilities(words, f"{key}:", shape)

        self._parse_all(key, apply_statement)
        with self.source.prefix_errors():
            return check_distributions(array, self.options.normalize, axes[:2], key)

    def _apply_reward(self, statement: Statement) -> None:
        """Write one statement R: into the rewards (A, X, X')."""
        axes = [self.actions, self.states, self.states, self.observations]
        index, words = _parse_indices(statement, axes)
        if len(index) == 1:
            raise InputError("R: has an action only; give a state too")
        values = parse_numbers(words, "R:", [len(x) for x in axes[len(index) :]])
        n_states = len(self.states)
        by_next_state = np.broadcast_to(values, (n_states, len(self.observations)))
        by_next_state = by_next_state[np.arange(n_states), self.observed]
        is_changed = np.zeros(n_states, dtype=bool)
        is_changed[index[2] if len(index) > 2 else slice(None)] = True
        if len(index) == 4 and index[3] != slice(None):
            is_changed &= self.observed == index[3]
        self.r[index[:2]][..., is_changed] = by_next_state[is_changed]

    def _find_observations(self, probs: Array) -> IndexArray:
        """Find the observation (X,) of every hidden state; refuse noisy observations."""
        observed = probs[0].argmax(axis=1)
        observed_probs = probs[:, np.arange(len(observed)), observed]
        noisy_cells = np.argwhere(observed_probs < 1 - PROB_TOLERANCE)
        if len(noisy_cells):
            a, x = noisy_cells[0]
            self.source.fail(
                f"state {[*self.states][x]!r} is observed with errors, or not after every action "
                f"(see action {[*self.actions][a]!r}); in an MMDP the state is observed exactly"
            )
        return observed


def _parse_sign(statement: Statement) -> float:
    """Parse whether values are rewards (1) or costs (-1)."""
    if statement.words not in (["reward"], ["cost"]):
        raise InputError(f"values is {' '.join(statement.words)!r}; write reward or cost")
    return 1.0 if statement.words == ["reward"] else -1.0


def _parse_axis(statement: Statement) -> Names:
    """Parse names, or a number of names."""
    words, subject = statement.words, f"{statement.key}:"
    if len(words) == 1 and words[0].isdecimal():
        words = [str(i) for i in range(parse_count(words[0], subject))]
    return parse_names(words, subject)


def _parse_index(word: str, names: Names) -> int | slice:
    """Parse a name, a number or ``*`` as an index."""
    if word == "*":
        return slice(None)
    if word in names:
        return names[word]
    if word.isdecimal() and len(word) < 8 and int(word) < len(names):
        return int(word)
    raise InputError(f"{did_you_mean(word, names)} is not declared")


def _parse_indices(statement: Statement, axes: Sequence[Names]) -> tuple[Index, list[str]]:
    """Parse the indices of a statement; returns them and the words after them."""
    *leading, last_segment = statement.segments
    if len(statement.segments) > len(axes) or not last_segment or {*map(len, leading)} - {1}:
        raise InputError(
            f"{statement.key}: needs one name between two colons, and at most {len(axes)} names"
        )
    index = tuple(
        _parse_index(segment[0], names)
        for segment, names in zip(statement.segments, axes, strict=False)
    )
    return index, last_segment[1:]


# ---------------------------------------------------------------------- hidden states to models
def _make_fields(file: _PomdpFile) -> Fields:
    """Convert a hidden process to the arguments of MMDP."""
    fork = _find_fork(file)
    next_belief = file.belief if fork is None else file.p[0, fork]
    members, reason = _find_members(file, fork, next_belief)
    if reason and fork is not None:
        _fail_switching(reason)
    states = np.flatnonzero((members >= 0).any(axis=0))
    members, is_member = members[:, states], members[:, states] >= 0
    (n_models, n_states), n_actions, chain = members.shape, len(file.actions), None
    check_table_size(n_models, n_states + 1, n_actions, n_states + 1)
    labels = [[*file.observations][s] for s in states]
    if reason:
        p, r, chain = _factor_switching(file, members, reason)
    else:
        is_pair = is_member[:, :, None, None] & is_member[:, None, None]
        p, r = (
            np.where(
                is_pair, x[:, members[:, :, None], members[:, None]].transpose(1, 2, 0, 3), 0.0
            )
            for x in (file.p, file.r)
        )
        m, s = np.nonzero(~is_member)
        p[m, s, :, s] = 1.0  # a state that a model never reaches stays where it is
    belief = np.where(is_member, next_belief[members], 0.0)  # (M, S)
    weights, initial = belief.sum(axis=1), belief.sum(axis=0)
    if fork is not None or np.count_nonzero(initial) > 1:
        if fork is None:
            rows = _average_first_step(belief, weights, p, r)
            labels.append("start" if "start" not in labels else "the start")
        else:
            rows = _split_fork(file, fork, members, weights)
            labels.append([*file.observations][file.observed[fork]])
        p, r = (  # no state leads to the first one
            np.pad(np.append(x, row[:, None], axis=1), [(0, 0)] * 3 + [(0, 1)])
            for x, row in zip((p, r), rows, strict=True)
        )
        initial = np.append(np.zeros(n_states), 1.0)
    return make_model_fields(
        p,
        r,
        {"states": labels, "actions": [*file.actions]},
        weights=weights,
        initial=initial,
        discount=file.discount,
        model_transitions=chain,
    )


def _fail_switching(problem: str) -> NoReturn:
    """Raise the error of a hidden part that does not switch like a model."""
    raise InputError(
        f"{problem}; in an MMDP only the model is hidden, and it switches by a Markov chain that "
        "does not depend on the action and the state"
    )


def _factor_switching(
    file: _PomdpFile, members: IndexArray, reason: str
) -> tuple[Array, Array, Array]:
    """Factor the process into p, r (M, S, A, S') and the chain of models (M, M')."""
    joint, joint_r = (
        table[:, members[:, :, None, None], members].transpose(1, 2, 0, 3, 4)
        for table in (file.p, file.r)
    )
    p, chain = joint.sum(axis=3), joint.sum(axis=4).mean(axis=(1, 2))
    factored = p[:, :, :, None] * chain[:, None, None, :, None]
    if not np.allclose(joint, factored, rtol=0, atol=PROB_TOLERANCE):
        _fail_switching(reason)
    return p, np.einsum("mn,msanz->msaz", chain, joint_r), chain


def _average_first_step(belief: Array, weights: Array, p: Array, r: Array) -> tuple[Array, Array]:
    """Average p and r (M, A, S') of the first step over an initial state that is not observed."""
    uniform = np.full_like(belief, 1.0 / belief.shape[1])
    state_probs = np.divide(belief, weights[:, None], out=uniform, where=weights[:, None] > 0)
    start_p = np.einsum("ms,msan->man", state_probs, p)
    start_r = np.einsum("ms,msan,msan->man", state_probs, p, r)
    return start_p, np.divide(start_r, start_p, out=np.zeros_like(start_p), where=start_p > 0)


def _find_fork(file: _PomdpFile) -> int | None:
    """Find an initial state whose first step selects the model; None without."""
    x = int(file.belief.argmax())
    is_unique = file.belief[x] == 1 and (file.observed == file.observed[x]).sum() == 1
    return x if is_unique and not file.p[:, :, x].any() else None


def _split_fork(
    file: _PomdpFile, fork: int, members: IndexArray, weights: Array
) -> tuple[Array, Array]:
    """Split p and r of a first step that selects the model, as (M, A, S')."""
    joint, r = (
        np.where(members >= 0, table[:, fork, members], 0.0).swapaxes(0, 1)
        for table in (file.p, file.r)
    )
    if np.abs(joint.sum(axis=2) - weights[:, None]).max() > PROB_TOLERANCE:
        raise InputError(
            f"the model depends on the action in {[*file.states][fork]!r}; in an MMDP it does not "
            "depend on actions"
        )
    return joint / weights[:, None, None], r


def _find_members(file: _PomdpFile, fork: int | None, next_belief: Array) -> tuple[IndexArray, str]:
    """Find the hidden state (M, Z) that is observed as z in model m; -1 if there is none.

    Closed components of the process are joined into models: first those that are reached from the
    start, then the others as long as they fit. If the model switches, the second result says
    which states show it.
    """
    from scipy.sparse import csr_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    adjacency, observed = file.p.sum(axis=0), file.observed.copy()
    if fork is not None:
        adjacency[fork], observed[fork] = 0.0, -1
    n_components, component = connected_components(csr_array(adjacency), directed=False)
    is_reached = [bool(next_belief[component == k].any()) for k in range(n_components)]
    models: list[IndexArray] = []
    for k in sorted(range(n_components), key=lambda k: not is_reached[k]):
        x = np.flatnonzero((component == k) & (observed >= 0))
        z = observed[x]
        twins = [i for i, count in enumerate((z == z[:, None]).sum(axis=1)) if count > 1]
        if twins and is_reached[k]:
            reason = (
                f"state {[*file.states][x[twins[0]]]!r} and others that are observed as "
                f"{[*file.observations][z[twins[0]]]!r} are connected, so a hidden part changes"
            )
            return _rank_members(observed, reason), reason
        model = next((model for model in models if (model[z] < 0).all()), None)
        if model is None and is_reached[k]:
            models.append(model := np.full(len(file.observations), -1))
        if model is not None and not twins:
            model[z] = x
    return np.array(models), ""


def _rank_members(observed: IndexArray, reason: str) -> IndexArray:
    """Find the m-th hidden state (M, Z) that is observed as z, equally many for every z."""
    counts = np.bincount(observed[observed >= 0])
    if len({*counts.tolist()} - {0}) > 1:
        _fail_switching(reason)
    members = np.full((counts.max(), len(counts)), -1)
    for z in np.flatnonzero(counts):
        members[:, z] = np.flatnonzero(observed == z)
    return members
