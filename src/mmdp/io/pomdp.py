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

from mmdp.errors import InputError
from mmdp.io.mixed import (
    Mixed,
    check_cells,
    read_number,
    read_numbers,
    refuse_change,
    split_belief,
    summing_to_one,
)
from mmdp.io.reading import Source, must_be
from mmdp.io.rules import Rules
from mmdp.support import Array
from mmdp.words import suggested

Ints = npt.NDArray[np.int64]
HEAD = ("discount", "values", "states", "actions", "observations")
KEYWORDS = (*HEAD, "start", "T", "O", "R")
MOST = 1_000_000  # names
EXACT = 1e-8  # probabilities this close to 1 are 1


class Names(list[str]):
    """Names in order."""

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self)}


class Statement(NamedTuple):
    """``T: a : x 0.1 0.9`` is T with the parts (a), (x, 0.1, 0.9)."""

    key: str
    parts: list[list[str]]
    line: int


def load_pomdp(path: Path, rules: Rules) -> Mixed:
    """The model in a file, not yet checked as an MMDP."""
    must_be(path, "text", "a POMDP file")
    statements = list(_statements(path))
    file = _File.read(path, statements, rules)
    p = file.table("T", statements, rules)
    chances = file.table("O", statements, rules)
    with Source(path).named():
        seen = _observed(chances, file)
    r = np.zeros(p.shape)
    for statement in statements:
        if statement.key == "R":
            with Source(f"{path}, line {statement.line}").named():
                file.put_reward(statement, r, seen)
    with Source(path).named():
        return _mixed(_Hidden(p, -r if file.costs else r, seen, file.belief), file)


# ---------------------------------------------------------------------- statements
def _statements(path: Path) -> Iterator[Statement]:
    """Words of the file in statements; a keyword with a colon after it begins one."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    words = [
        (word, number)
        for number, line in enumerate(text.splitlines(), 1)
        for word in re.findall(r":|[^\s:]+", line.partition("#")[0])
    ]
    begins = [i for i in range(len(words)) if _begins(words, i)]
    if not begins or begins[0] != 0:
        first = words[0] if words else ("", 1)
        raise InputError(
            f"{path}, line {first[1]}: the file begins with {suggested(first[0], KEYWORDS)}; "
            f"expected one of {', '.join(HEAD)} and a colon"
        )
    for i, j in zip(begins, [*begins[1:], len(words)], strict=True):
        colon = next(k for k in range(i, j) if words[k][0] == ":")
        parts: list[list[str]] = [[]]
        for word, _ in words[colon + 1 : j]:
            if word == ":":
                parts.append([])
            else:
                parts[-1].append(word)
        yield Statement(" ".join(word for word, _ in words[i:colon]), parts, words[i][1])


def _begins(words: Sequence[tuple[str, int]], i: int) -> bool:
    before = [word for word, _ in words[max(i - 2, 0) : i]]
    after = [word for word, _ in words[i + 1 : i + 3]]
    if words[i][0] not in KEYWORDS:
        return False
    if before[1:] == [":"] and before[0] not in (*HEAD, "include", "exclude"):
        return False  # a name in a place of T, O or R
    return after[:1] == [":"] or (
        words[i][0] == "start" and after[1:] == [":"] and after[0] in ("include", "exclude")
    )


# ---------------------------------------------------------------------- the file
@dataclass(frozen=True)
class _File:
    """Names of the hidden states, actions and observations, and the belief at the start."""

    path: Path
    states: Names
    actions: Names
    observations: Names
    discount: float
    costs: bool
    belief: Array

    @classmethod
    def read(cls, path: Path, statements: Sequence[Statement], rules: Rules) -> _File:
        head = _head(path, statements)
        with Source(f"{path}, line {head['discount'].line}").named():
            discount = read_number(" ".join(_flat(head["discount"])), "discount")
        values = _flat(head["values"]) if "values" in head else ["reward"]
        if values not in (["reward"], ["cost"]):
            line = head["values"].line
            raise InputError(f"{path}, line {line}: values is {' '.join(values)!r}; "
                             "write reward or cost")  # fmt: skip
        names = {}
        for key in ("states", "actions", "observations"):
            with Source(f"{path}, line {head[key].line}").named():
                names[key] = _names(_flat(head[key]), key)
        belief = np.full(len(names["states"]), 1.0 / len(names["states"]))
        for statement in statements:
            if statement.key.startswith("start"):
                with Source(f"{path}, line {statement.line}").named():
                    belief = _belief(statement, names["states"], rules)
        return cls(path, **names, discount=discount, costs=values == ["cost"], belief=belief)

    def table(self, key: str, statements: Iterable[Statement], rules: Rules) -> Array:
        """(A, X, X') transitions (T) or (A, X', Z) observations (O)."""
        names = [self.actions, self.states, self.states if key == "T" else self.observations]
        with Source(self.path).named():
            check_cells(*map(len, names))
        array = np.zeros([len(x) for x in names])
        for statement in statements:
            if statement.key == key:
                with Source(f"{self.path}, line {statement.line}").named():
                    place, words = _place(statement, names)
                    array[place] = self._probabilities(words, array.shape, len(place), key)
        with Source(self.path).named():
            return summing_to_one(array, rules, names[:2], key)

    def _probabilities(self, words: list[str], shape: Sequence[int], given: int, key: str) -> Array:
        rest = shape[given:]
        if words == ["uniform"] and rest:
            return np.full(rest, 1.0 / shape[-1])
        if words == ["identity"] and given == 1 and key == "T":
            return np.eye(shape[-1])
        if words == ["reset"] and given == 2 and key == "T":
            return self.belief
        return read_numbers(words, f"{key}:", rest, least=0.0)

    def put_reward(self, statement: Statement, r: Array, seen: Ints) -> None:
        """One R: of r (A, X, X'), as the observation is known from x'."""
        names = [self.actions, self.states, self.states, self.observations]
        place, words = _place(statement, names)
        x, z = len(self.states), len(self.observations)
        if len(place) == 1:
            raise InputError("R: needs an action and a state at least")
        values = read_numbers(words, "R:", {2: (x, z), 3: (z,), 4: ()}[len(place)])
        after = np.arange(x)
        if len(place) > 2:
            after = after[place[2]].reshape(-1)
        if len(place) == 4 and place[3] != slice(None):
            after = after[seen[after] == place[3]]
        if len(place) == 2:
            values = values[after, seen]
        elif len(place) == 3:
            values = values[seen[after]]
        r[(*place[:2], after)] = values


def _head(path: Path, statements: Sequence[Statement]) -> dict[str, Statement]:
    found: dict[str, Statement] = {}
    for statement in statements:
        key = statement.key.split()[0]
        if key in (*HEAD, "start"):
            if key in found:
                raise InputError(f"{path}, line {statement.line}: {key} is given twice")
            found[key] = statement
    lacking = [key for key in HEAD if key not in found and key != "values"]
    if lacking:
        raise InputError(f"{path}: no {lacking[0]}: is given")
    return found


def _flat(statement: Statement) -> list[str]:
    if len(statement.parts) > 1:
        raise InputError(f"a colon too many after {statement.key}:")
    return statement.parts[0]


def _names(words: list[str], what: str) -> Names:
    if len(words) == 1 and words[0].isdigit():
        if not 1 <= len(words[0]) <= 7 or not 1 <= int(words[0]) <= MOST:
            raise InputError(f"{what}: {words[0]} is not a number from 1 to {MOST:,}")
        return Names(map(str, range(int(words[0]))))
    if not words or len(set(words)) < len(words):
        raise InputError(f"{what}: needs a number or names that differ")
    return Names(words)


def _belief(statement: Statement, states: Names, rules: Rules) -> Array:
    """(X,) from probabilities, a state, ``uniform`` or the states to include or exclude."""
    words = _flat(statement)
    if statement.key == "start" and words == ["uniform"]:
        return np.full(len(states), 1.0 / len(states))
    known = len(words) == 1 and (words[0] in states.places or words[0].isdigit())
    if statement.key == "start" and len(words) == len(states) and not known:
        belief = read_numbers(words, "start:", (len(states),), least=0.0)
        return summing_to_one(belief, rules, (), "start")
    if statement.key == "start" and len(words) != 1:
        raise InputError(f"{len(words)} words after start:; expected {len(states)} numbers or one "
                         "state")  # fmt: skip
    belief = np.zeros(len(states))
    for word in words:
        belief[_index(word, states)] = 1.0
    belief = 1.0 - belief if statement.key.endswith("exclude") else belief
    if not belief.any():
        raise InputError(f"{statement.key}: leaves no state to start in")
    return belief / belief.sum()


def _index(word: str, names: Names) -> int | slice:
    if word == "*":
        return slice(None)
    if word in names.places:
        return names.places[word]
    if word.isdigit() and len(word) < 8 and int(word) < len(names):
        return int(word)
    raise InputError(f"{suggested(word, names)} is not declared")


def _place(
    statement: Statement, names: Sequence[Names]
) -> tuple[tuple[int | slice, ...], list[str]]:
    """The indices that a statement gives, and the words after them."""
    *most, (*last,) = statement.parts
    if len(statement.parts) > len(names):
        raise InputError(f"{statement.key}: has {len(statement.parts)} parts; at most {len(names)}")
    if not last or any(len(part) != 1 for part in most):
        raise InputError(f"{statement.key}: needs one name between two colons")
    words = [*(part[0] for part in most), last[0]]
    place = tuple(_index(word, known) for word, known in zip(words, names, strict=False))
    return place, last[1:]


# ---------------------------------------------------------------------- hidden states to models
@dataclass(frozen=True)
class _Hidden:
    """p, r (A, X, X'), what each x is seen as (X,), and the belief at the start (X,)."""

    p: Array
    r: Array
    seen: Ints
    belief: Array


def _observed(chances: Array, file: _File) -> Ints:
    """(X,) the one observation of every hidden state."""
    seen = chances[0].argmax(axis=1)
    sure = np.take_along_axis(chances, np.broadcast_to(seen, chances.shape[:2])[..., None], axis=2)
    noisy = np.argwhere(sure[..., 0] < 1 - EXACT)
    if len(noisy):
        a, x = noisy[0]
        raise InputError(
            f"state {file.states[x]!r} is observed with errors, or not after every action (see "
            f"action {file.actions[a]!r}); in an MMDP the state is seen as it is"
        )
    return seen


def _mixed(hidden: _Hidden, file: _File) -> Mixed:
    first = _fork(hidden)
    after = hidden.belief if first is None else hidden.p[0, first]
    members, changes = _members(hidden, first, after, file)
    states = np.flatnonzero((members >= 0).any(axis=0))
    members = members[:, states]
    check_cells(len(members), len(states) + 1, len(file.actions), len(states) + 1)
    drift = None
    if changes is None:
        p, r = _by_model(hidden.p, members), _by_model(hidden.r, members)
        m, s = np.nonzero(members < 0)
        p[m, s, :, s] = 1.0  # a state that a model never reaches stays where it is
    else:
        p, r, drift = _changing(hidden, members, changes)
        if first is not None:
            return _drawn_and_changing(hidden, first, members, (p, r, drift), changes, file)
    start = np.where(members >= 0, after[members], 0.0)  # (M, S)
    (weights, shares), initial = split_belief(start), start.sum(axis=0)
    labels = [file.observations[s] for s in states]
    if first is not None or np.count_nonzero(initial) > 1:
        if first is None:
            leads, earned = _first_step(shares, p, r)
            labels.append("start" if "start" not in labels else "the start")
        else:
            leads = _from_fork(hidden.p[:, first], members) / weights[:, None, None]
            earned = _from_fork(hidden.r[:, first], members)
            labels.append(file.observations[hidden.seen[first]])
        p, r = _with_start(p, leads), _with_start(r, earned)
        initial = np.append(np.zeros(len(states)), 1.0)
    names = {"state": labels, "action": file.actions}
    return Mixed(p, r, weights, initial, file.discount, names, drift)


def _drawn_and_changing(
    hidden: _Hidden, first: int, members: Ints, known: tuple[Array, Array, Array], why: str,
    file: _File,
) -> Mixed:  # fmt: skip
    """One more model, the last, holds in the first state alone, and then one of the others."""
    p, r, chain = known
    joint, earned = _from_fork(hidden.p[:, first], members), _from_fork(hidden.r[:, first], members)
    drawn, leads = joint[:, 0].sum(axis=1), joint.sum(axis=0)  # (M,), (A, S')
    if not np.allclose(joint, drawn[:, None, None] * leads, rtol=0, atol=EXACT):
        refuse_change(why)
    M = len(p)
    earned = np.einsum("m,man->an", drawn, earned)
    p, r = np.concatenate([p, p[:1]]), np.concatenate([r, r[:1]])
    p = _with_start(p, np.repeat(leads[None], M + 1, axis=0))
    r = _with_start(r, np.repeat(earned[None], M + 1, axis=0))
    drift = np.vstack([np.pad(chain, ((0, 0), (0, 1))), np.append(drawn, 0.0)])
    states = [file.observations[z] for z in hidden.seen[members[0]]]
    labels = {"state": [*states, file.observations[hidden.seen[first]]], "action": file.actions}
    return Mixed(p, r, np.eye(M + 1)[M], np.eye(p.shape[1])[-1], file.discount, labels, drift)


def _changing(hidden: _Hidden, members: Ints, why: str) -> tuple[Array, Array, Array]:
    """p, r (M, S, A, S') and the chain (M, M') whose product the process is."""
    joint = hidden.p[:, members[:, :, None, None], members].transpose(1, 2, 0, 3, 4)
    earned = hidden.r[:, members[:, :, None, None], members].transpose(1, 2, 0, 3, 4)
    p, chain = joint.sum(axis=3), joint.sum(axis=4).mean(axis=(1, 2))
    both = p[:, :, :, None] * chain[:, None, None, :, None]
    if not np.allclose(joint, both, rtol=0, atol=EXACT):
        refuse_change(why)
    return p, np.einsum("mn,msanz->msaz", chain, earned), chain


def _first_step(start: Array, p: Array, r: Array) -> tuple[Array, Array]:
    """(M, A, S') the first step from a state (M, S) that is not seen, and what it earns."""
    leads = np.einsum("ms,msan->man", start, p)
    earned = np.einsum("ms,msan,msan->man", start, p, r)
    return leads, np.divide(earned, leads, out=np.zeros_like(leads), where=leads > 0)


def _from_fork(row: Array, members: Ints) -> Array:
    """(M, A, S') of (A, X')."""
    return np.where(members >= 0, row[:, members], 0.0).swapaxes(0, 1)


def _fork(hidden: _Hidden) -> int | None:
    """A first state that draws the model: nothing leads to it, and no other is seen like it."""
    x = int(hidden.belief.argmax())
    alone = hidden.belief[x] == 1 and (hidden.seen == hidden.seen[x]).sum() == 1
    return x if alone and not hidden.p[:, :, x].any() else None


def _members(
    hidden: _Hidden, first: int | None, after: Array, file: _File
) -> tuple[Ints, str | None]:
    """(M, Z) the hidden state that is seen as z in model m; -1 if there is none.

    Parts of the process that lead nowhere else are put together into models: those that the
    start leads to first, then the others as long as they fit. If the model changes, a sentence
    says where that shows.
    """
    from scipy.sparse import csr_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    moves = hidden.p.sum(axis=0)
    if first is not None:
        moves[first] = 0.0
    count, part = connected_components(csr_array(moves), directed=False)
    models: list[Ints] = []
    reached = [bool(after[part == k].any()) for k in range(count)]
    for k in sorted(range(count), key=lambda k: not reached[k]):
        own = np.flatnonzero(part == k)
        if first is not None and first in own:
            continue
        seen = hidden.seen[own]
        twice = next((z for z in seen if (seen == z).sum() > 1), None)
        if twice is not None and reached[k]:
            x, y = own[seen == twice][:2]
            why = (
                f"states {file.states[x]!r} and {file.states[y]!r} are both seen as "
                f"{file.observations[twice]!r} and belong together, so something hidden changes"
            )
            return _in_order(hidden, first, why), why
        fits = next((model for model in models if (model[seen] < 0).all()), None)
        if fits is None and reached[k]:
            models.append(fits := np.full(len(file.observations), -1))
        if fits is not None and twice is None:
            fits[seen] = own
    found = np.array(models)
    if first is not None:
        _check_drawn(hidden.p[:, first], found, file, first)
    return found, None


def _in_order(hidden: _Hidden, first: int | None, why: str) -> Ints:
    """(M, Z) the m-th of the hidden states that are seen as z, as many for every z."""
    seen = hidden.seen if first is None else np.where(np.arange(len(hidden.seen)) == first, -1,
                                                      hidden.seen)  # fmt: skip
    counts = np.bincount(seen[seen >= 0])
    if len({*counts.tolist()} - {0}) > 1:
        refuse_change(why)
    members = np.full((counts.max(), len(counts)), -1)
    for z in np.flatnonzero(counts):
        members[:, z] = np.flatnonzero(seen == z)
    return members


def _check_drawn(leads: Array, members: Ints, file: _File, first: int) -> None:
    """The model that holds must not depend on the first action."""
    shares = np.where(members >= 0, leads[:, members], 0).sum(axis=2)
    if np.ptp(shares, axis=0).max() > EXACT:
        raise InputError(
            f"which model holds depends on the action in {file.states[first]!r}; in an MMDP it "
            "holds from the start"
        )


def _by_model(table: Array, members: Ints) -> Array:
    """(M, S, A, S') of (A, X, X')."""
    there = members >= 0
    found = table[:, members[:, :, None], members[:, None, :]]
    return np.where(there[:, :, None] & there[:, None, :], found, 0.0).transpose(1, 2, 0, 3)


def _with_start(table: Array, start: Array) -> Array:
    """(M, S + 1, A, S + 1): the last state is the start, which nothing leads to."""
    grown = np.concatenate([table, start[:, None]], axis=1)
    return np.pad(grown, [(0, 0), (0, 0), (0, 0), (0, 1)])
