"""POMDPX: the XML format of APPL for mixed-observability problems, read as an MMDP.

The hidden variables are the model, which changes if they do, and the observed ones are the state;
several make a product. Every function of the file is a table over the variables it names, and
one ``einsum`` multiplies them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import product
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np

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
from mmdp.io.reading import Source
from mmdp.io.rules import Rules
from mmdp.io.writing import reason
from mmdp.kernels.distributions import SUM_TOLERANCE
from mmdp.support import Array
from mmdp.words import counted, suggested

Node = ElementTree.Element
LINE = "line of the file"  # an attribute that no file can have
MOST_VALUES = 1_000_000
MOST_AXES = 32  # of an array
KINDS = {"StateVar": "state", "ActionVar": "action", "ObsVar": "observation"}


@dataclass(frozen=True)
class Variable:
    """``name`` before a step and ``after`` it, which is the same unless it is a state."""

    kind: str
    name: str
    after: str
    values: tuple[str, ...]
    seen: bool

    @property
    def size(self) -> int:
        return len(self.values)

    @cached_property
    def places(self) -> dict[str, int]:
        return {value: i for i, value in enumerate(self.values)}


@dataclass(frozen=True)
class Table:
    """A function of variables: an array with one axis per name."""

    names: tuple[str, ...]
    array: Array

    def depends_on(self, name: str) -> bool:
        """Whether its values change with those of a variable."""
        if name not in self.names:
            return False
        first = self.array.take([0], axis=self.names.index(name))
        return not np.allclose(self.array, first, rtol=0, atol=1e-12)

    def without(self, names: Iterable[str]) -> Table:
        """The same function without variables that it does not depend on."""
        kept = [i for i, name in enumerate(self.names) if name not in names]
        place = tuple(slice(None) if i in kept else 0 for i in range(len(self.names)))
        return Table(tuple(self.names[i] for i in kept), self.array[place])


def load_pomdpx(path: Path, rules: Rules) -> Mixed:
    """The model in a file, not yet checked as an MMDP."""
    file = _File(path, rules)
    root = _parsed(path)
    if root.tag != "pomdpx":
        file.fail(root, f"the root is <{root.tag}>, not <pomdpx>")
    node = file.child(root, "Discount")
    with file.at(node):
        discount = read_number(_text(node), "<Discount>")
    file.read_variables(file.child(root, "Variable"))
    start = file.functions(root, "InitialStateBelief", "CondProb")
    moves = file.functions(root, "StateTransitionFunction", "CondProb")
    tells = file.functions(root, "ObsFunction", "CondProb", file.of_kind("observation"))
    rewards = file.functions(root, "RewardFunction", "Func")
    with file.at():
        return _mixed(_seen(file.variables, start, tells), start, moves, tells, rewards, discount)


# ---------------------------------------------------------------------- the file as elements
def _parsed(path: Path) -> Node:
    """The root element; every element knows its line."""
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate(namespace_separator=" ")

    def start(tag: str, attributes: dict[str, str]) -> None:
        line = str(parser.CurrentLineNumber)
        builder.start(tag.rpartition(" ")[2], attributes | {LINE: line})

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda tag: builder.end(tag.rpartition(" ")[2])
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(path.read_bytes(), True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None
    except expat.ExpatError as error:
        raise InputError(
            f"{path}, line {error.lineno}: not well-formed XML "
            f"({expat.ErrorString(error.code)}); check tags and quotes"
        ) from None
    except (ValueError, LookupError) as error:  # an encoding that is not known
        raise InputError(f"{path}: cannot be read ({reason(error)}); save it as UTF-8") from None
    return builder.close()


def _text(node: Node) -> str:
    return " ".join("".join(node.itertext()).split())


@dataclass
class _File:
    """A file being read: its variables, and errors that name the line."""

    path: Path
    rules: Rules
    variables: list[Variable] = field(default_factory=list)
    rewards: list[str] = field(default_factory=list)

    def fail(self, node: Node, problem: str) -> NoReturn:
        raise InputError(f"{self.path}, line {node.get(LINE)}: {problem}")

    def at(self, node: Node | None = None) -> AbstractContextManager[None]:
        """Put the place before an error."""
        line = "" if node is None else f", line {node.get(LINE)}"
        return Source(f"{self.path}{line}").named()

    def child(self, node: Node, tag: str) -> Node:
        """The one child of that tag."""
        found = [x for x in node if x.tag == tag]
        if len(found) != 1:
            like = suggested(tag, {x.tag for x in node}) if not found else repr(tag)
            what = f"no element {like}" if not found else f"{len(found)} elements {like}"
            self.fail(node, f"<{node.tag}> has {what}; it needs one")
        return found[0]

    def of_kind(self, kind: str) -> list[Variable]:
        return [x for x in self.variables if x.kind == kind]

    # ------------------------------------------------------------------ variables
    def read_variables(self, section: Node) -> None:
        taken: set[str] = set()
        for node in section:
            if node.tag == "RewardVar":
                names = [self._name(node, "vname")]
                self.rewards += names
            elif node.tag in KINDS:
                self.variables.append(self._variable(node))
                names = list({self.variables[-1].name, self.variables[-1].after})
            else:
                known = [*KINDS, "RewardVar"]
                self.fail(node, f"unknown element {suggested(node.tag, known)} in <Variable>")
            for name in names:
                if name in taken:
                    self.fail(node, f"the name {name!r} is given twice")
                taken.add(name)
        for tag, kind in KINDS.items():
            if kind != "observation" and not self.of_kind(kind):
                self.fail(section, f"no <{tag}>; an MMDP has states and actions")
        if not any(x.seen for x in self.of_kind("state")) and not self.of_kind("observation"):
            self.fail(
                section,
                'no state is seen: no <StateVar> has fullyObs="true" and no <ObsVar> tells one',
            )

    def _variable(self, node: Node) -> Variable:
        kind, values = KINDS[node.tag], self._values(node)
        if kind != "state":
            name = self._name(node, "vname")
            return Variable(kind, name, name, values, False)
        before, after = self._name(node, "vnamePrev"), self._name(node, "vnameCurr")
        if before == after:
            self.fail(node, f"vnamePrev and vnameCurr are both {before!r}; they must differ")
        known = node.get("fullyObs", "false").strip().lower()
        if known not in ("true", "false"):
            self.fail(node, f"fullyObs is {known!r}; write true or false")
        return Variable(kind, before, after, values, known == "true")

    def _name(self, node: Node, attribute: str) -> str:
        name = node.get(attribute, "").strip()
        if not name or len(name.split()) > 1 or name == "null":
            self.fail(node, f"<{node.tag}> needs {attribute}, a name without spaces")
        return name

    def _values(self, node: Node) -> tuple[str, ...]:
        """The values listed, or s0, s1, ... (a0 of actions, o0 of observations)."""
        if node.find("NumValues") is None:
            values = _text(self.child(node, "ValueEnum")).split()
            twice = [x for x, count in Counter(values).items() if count > 1]
            if twice or not values:
                problem = f"value {twice[0]!r} is given twice" if twice else "<ValueEnum> is empty"
                self.fail(node, problem)
            if {"*", "-"} & set(values):
                self.fail(node, "'*' and '-' stand for all values and cannot be one")
            return tuple(values)
        with self.at(node):
            number = read_number(_text(self.child(node, "NumValues")), "<NumValues>")
        if not (number.is_integer() and 1 <= number <= MOST_VALUES):
            self.fail(
                node, f"<NumValues> is {number:g}; give a whole number from 1 to {MOST_VALUES:,}"
            )
        return tuple(f"{KINDS[node.tag][0]}{i}" for i in range(int(number)))

    # ------------------------------------------------------------------ functions
    def functions(
        self, root: Node, section: str, tag: str, wanted: Sequence[Variable] | None = None
    ) -> dict[str, Table]:
        """The tables of a section by the variable that they are about; each is there once."""
        states = self.of_kind("state") if wanted is None else wanted
        names = {
            "InitialStateBelief": [x.name for x in states],
            "RewardFunction": self.rewards,
        }.get(section, [x.after for x in states])
        if section == "ObsFunction" and not names:
            return {}
        found: dict[str, Table] = {}
        node = self.child(root, section)
        for part in node:
            if part.tag != tag:
                self.fail(part, f"unknown element {suggested(part.tag, [tag])} in <{section}>")
            name = _text(self.child(part, "Var"))
            if name not in names:
                self.fail(part, f"<Var> is {suggested(name, names)}; <{section}> is about "
                          f"{', '.join(names) or 'nothing'}")  # fmt: skip
            if name in found:
                self.fail(part, f"{name!r} is given twice in <{section}>")
            found[name] = self._table(part, name, section)
        lacking = [name for name in names if name not in found]
        if lacking and section != "RewardFunction":
            self.fail(node, f"<{section}> says nothing about {lacking[0]!r}")
        return found

    def _table(self, node: Node, name: str, section: str) -> Table:
        """One CondProb or Func: 0 where it says nothing; of two entries the later holds."""
        known = self._parents(section)
        parents = _text(self.child(node, "Parent")).split()
        parents = [] if parents == ["null"] else parents
        for parent in parents:
            if parent not in known or parent == name:
                self.fail(node, f"<Parent> names {suggested(parent, known)}, which {name!r} in "
                          f"<{section}> cannot depend on")  # fmt: skip
        if len(set(parents)) < len(parents):
            self.fail(node, "<Parent> names a variable twice")
        of_reward = section == "RewardFunction"
        names = parents if of_reward else [*parents, name]
        own = {y: x for x in self.variables for y in (x.name, x.after)}
        variables = [own[x] for x in names]
        if len(names) > MOST_AXES:
            self.fail(node, f"{name!r} depends on {len(parents)} variables; that is too many")
        with self.at(node):
            check_cells(*(x.size for x in variables))
        array = np.zeros([x.size for x in variables])
        parameter = self.child(node, "Parameter")
        if parameter.get("type", "TBL") != "TBL":
            self.fail(parameter, f"type {parameter.get('type')!r} is not read; write a table (TBL)")
        for entry in parameter:
            if entry.tag != "Entry":
                self.fail(entry, f"unknown element <{entry.tag}> in <Parameter>; expected <Entry>")
            self._put(entry, array, variables, names, "ValueTable" if of_reward else "ProbTable")
        if of_reward:
            return Table(tuple(names), array)
        with self.at(node):
            values = [x.values for x in variables[:-1]]
            array = summing_to_one(array, self.rules, values, f"<CondProb> of {name!r}")
        return Table(tuple(names), array)

    def _parents(self, section: str) -> dict[str, Variable]:
        """What a function of a section may depend on."""
        states = self.of_kind("state")
        before, after = {x.name: x for x in states}, {x.after: x for x in states}
        act, observed = ({x.name: x for x in self.of_kind(k)} for k in ("action", "observation"))
        return {
            "InitialStateBelief": before, "StateTransitionFunction": act | before | after,
            "ObsFunction": act | after, "RewardFunction": act | before | after | observed,
        }[section]  # fmt: skip

    def _put(
        self, entry: Node, array: Array, variables: Sequence[Variable], names: Sequence[str],
        tag: str,
    ) -> None:  # fmt: skip
        """One entry: ``*`` means the same for all values, ``-`` that the table lists them."""
        words = _text(self.child(entry, "Instance")).split()
        if len(words) != len(variables):
            self.fail(entry, f"<Instance> has {counted(len(words), 'word')}; expected "
                      f"{len(variables)}: {' '.join(names)}")  # fmt: skip
        place: list[int | slice] = []
        for word, variable in zip(words, variables, strict=True):
            if word not in ("*", "-") and word not in variable.places:
                self.fail(entry, f"{suggested(word, variable.values)} is no value of "
                          f"{variable.name!r}")  # fmt: skip
            place.append(slice(None) if word in "*-" else variable.places[word])
        listed = [v.size for v, word in zip(variables, words, strict=True) if word == "-"]
        table = self.child(entry, tag)
        with self.at(table):
            values = _entries(_text(table).split(), listed, tag, array.shape)
        kept = zip(words, array.shape, strict=True)
        shape = [n if word == "-" else 1 for word, n in kept if word in "*-"]
        array[tuple(place)] = values.reshape(shape)


def _entries(words: Sequence[str], listed: list[int], tag: str, shape: Sequence[int]) -> Array:
    """The numbers of an entry, or the table that a keyword stands for."""
    if tag == "ProbTable" and words == ["uniform"]:
        return np.full(listed, 1.0 / shape[-1])
    if tag == "ProbTable" and words == ["identity"]:
        if len(listed) != 2 or listed[0] != listed[1]:
            raise InputError("identity needs two '-' in <Instance>, of as many values")
        return np.eye(listed[0])
    return read_numbers(words, f"<{tag}>", listed, 0.0 if tag == "ProbTable" else -np.inf)


# ---------------------------------------------------------------------- variables to a model
def _seen(
    variables: Sequence[Variable], start: Mapping[str, Table], tells: Mapping[str, Table]
) -> list[Variable]:
    """The variables; a state that an observation always tells is seen, if its first value is."""

    def seen(x: Variable) -> bool:
        known = not start[x.name].names[:-1] and start[x.name].array.max() > 1 - 1e-12
        return x.seen or (known and any(_tells(table, x) for table in tells.values()))

    return [replace(x, seen=seen(x)) if x.kind == "state" else x for x in variables]


def _tells(table: Table, variable: Variable) -> bool:
    """Whether an observation leaves no doubt about a variable."""
    if variable.after not in table.names:
        return False
    axes = {table.names.index(variable.after), len(table.names) - 1}
    others = tuple(i for i in range(len(table.names)) if i not in axes)
    return bool(((table.array > 0).any(axis=others).sum(axis=0) <= 1).all())


def _mixed(
    variables: Sequence[Variable], start: Mapping[str, Table], moves: Mapping[str, Table],
    tells: Mapping[str, Table], rewards: Mapping[str, Table], discount: float,
) -> Mixed:  # fmt: skip
    states = [x for x in variables if x.kind == "state"]
    hidden, seen = [x for x in states if not x.seen], [x for x in states if x.seen]
    actions = [x for x in variables if x.kind == "action"]
    changing = [x for x in hidden if not _keeps(x, moves[x.after])]
    for x in hidden:
        _check_unheard(x, x in changing, tells)
    if not seen:
        raise InputError("no state is seen; an MMDP has a state that is observed at every step")
    observed = [x for x in variables if x.kind == "observation"]
    axes = _Axes.of(hidden, seen, actions, observed, changing)
    models, before, act, after = (
        [axes.index[x.name] for x in hidden], [axes.index[x.name] for x in seen],
        [axes.index[x.name] for x in actions], [axes.index[x.after] for x in seen],
    )  # fmt: skip
    out, shape = [*models, *before, *act, *after], (_size(hidden), _size(seen), _size(actions))
    check_cells(*shape, shape[1])
    p = axes.multiplied([_before(moves[x.after], x, changing) for x in seen], out)
    p = p.reshape(*shape, shape[1])
    chain = [_of_models(moves[x.after], x, hidden) for x in changing]
    afterwards = {x.after for x in changing}
    r = np.zeros(p.shape)
    for table in rewards.values():
        noisy = [tells[name] for name in table.names if name in tells]
        drawn = [] if afterwards.isdisjoint(table.names) else chain
        r += axes.multiplied([table, *noisy, *drawn], out).reshape(p.shape)
    weights, initial = _start(axes, start, hidden, seen)
    names = {"model": hidden, "state": seen, "action": actions}
    labels = {kind: _labels(x) for kind, x in names.items() if x}
    drift = axes.chain(hidden, chain) if changing else None
    return Mixed(p, r, weights, initial, discount, labels, drift)


def _keeps(x: Variable, moves: Table) -> bool:
    """Whether a hidden variable never changes."""
    if x.name not in moves.names:
        return x.size == 1
    table = np.moveaxis(moves.array, moves.names.index(x.name), -2)
    return np.allclose(table, np.eye(x.size), rtol=0, atol=SUM_TOLERANCE)


def _check_unheard(x: Variable, changes: bool, tells: Mapping[str, Table]) -> None:
    """No observation says anything about a hidden variable."""
    noisy = next((name for name, table in tells.items() if table.depends_on(x.after)), None)
    if noisy is not None and changes:
        raise InputError(
            f"state {x.name!r} changes and is observed with errors (by {noisy!r}); in an MMDP "
            "the state is seen as it is"
        )
    if noisy is not None:
        raise InputError(
            f"the observation {noisy!r} depends on the hidden {x.name!r}; in an MMDP only what "
            "the state does tells about the model"
        )


def _of_models(moves: Table, x: Variable, hidden: Sequence[Variable]) -> Table:
    """How a hidden variable changes, as a function of hidden ones alone."""
    own = {name for y in hidden for name in (y.name, y.after)}
    others = [name for name in moves.names if name not in own]
    for name in others:
        if moves.depends_on(name):
            refuse_change(f"variable {x.name!r} is hidden and changes with {name!r}")
    return moves.without(others)


def _before(moves: Table, x: Variable, changing: Sequence[Variable]) -> Table:
    """How a state moves, as a function of the model that holds before the step."""
    for y in changing:
        if moves.depends_on(y.after):
            raise InputError(
                f"state {x.name!r} depends on the hidden {y.name!r} after its change "
                f"({y.after!r}); in an MMDP a step goes by the model before it"
            )
    return moves.without([y.after for y in changing])


def _start(
    axes: _Axes, start: Mapping[str, Table], hidden: Sequence[Variable], seen: Sequence[Variable]
) -> tuple[Array, Array]:
    """(M,) weights of the models, and (S,) or (M, S) the first state."""
    models, states = [axes.index[x.name] for x in hidden], [axes.index[x.name] for x in seen]
    of_models, of_states = [start[x.name] for x in hidden], [start[x.name] for x in seen]
    apart = {x.name for x in hidden}.isdisjoint(n for t in of_states for n in t.names) and {
        x.name for x in seen
    }.isdisjoint(n for t in of_models for n in t.names)
    if apart:
        return (
            axes.multiplied(of_models, models).reshape(-1),
            axes.multiplied(of_states, states).reshape(-1),
        )
    joint = axes.multiplied([*of_models, *of_states], [*models, *states])
    return split_belief(joint.reshape(_size(hidden), _size(seen)))


@dataclass(frozen=True)
class _Axes:
    """A number for every name of a variable; the same before and after if it never changes."""

    index: Mapping[str, int]
    sizes: Sequence[int]

    @classmethod
    def of(
        cls, hidden: Sequence[Variable], seen: Sequence[Variable], actions: Sequence[Variable],
        observed: Sequence[Variable], changing: Sequence[Variable],
    ) -> _Axes:  # fmt: skip
        before, after = (
            [*hidden, *seen, *actions, *observed],
            [*seen, *(hidden if changing else [])],
        )
        index = {x.name: i for i, x in enumerate(before)}
        place = {x: len(before) + i for i, x in enumerate(after)}
        index |= {x.after: place[x] for x in (*seen, *changing)}
        index |= {x.after: index[x.name] for x in hidden if x not in changing}
        index |= {_next(x): place[x] for x in hidden if changing}
        if len(before) + len(after) > MOST_AXES:
            raise InputError(f"{len(before)} variables are too many; merge some")
        return cls(index, [x.size for x in (*before, *after)])

    def chain(self, hidden: Sequence[Variable], moves: Sequence[Table]) -> Array:
        """(M, M') the product of how the hidden variables change; those without a table stay."""
        there = {name for table in moves for name in table.names[-1:]}
        stay = [Table((x.name, _next(x)), np.eye(x.size)) for x in hidden if x.after not in there]
        out = [*(self.index[x.name] for x in hidden), *(self.index[_next(x)] for x in hidden)]
        return self.multiplied([*moves, *stay], out).reshape(_size(hidden), -1)

    def multiplied(self, tables: Sequence[Table], out: Sequence[int]) -> Array:
        """The product of tables, summed over the variables that are not in ``out``."""
        operands: list[Any] = []
        for table in tables:
            operands += [table.array, [self.index[name] for name in table.names]]
        there = {self.index[name] for table in tables for name in table.names}
        for i in out:
            if i not in there:
                operands += [np.ones(self.sizes[i]), [i]]
        return np.asarray(np.einsum(*operands, list(out))) if operands else np.ones(1)


def _next(x: Variable) -> str:
    """The axis of a hidden variable after a step; no variable of a file has such a name."""
    return f"{x.name} next"


def _size(variables: Sequence[Variable]) -> int:
    return reduce(lambda n, x: n * x.size, variables, 1)


def _labels(variables: Sequence[Variable]) -> list[str]:
    """The values, or those of a product with a stroke between."""
    return ["/".join(x) for x in product(*(variable.values for variable in variables))]
