"""POMDPX: the XML format of APPL for mixed-observability problems, read as an MMDP.

The hidden variables are the model, which changes if they do, and the observed ones are the state;
several make a product. Every function of the file is a table over the variables it names, and
one ``einsum`` multiplies them.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.kernels.distributions import SUM_TOLERANCE
from mmdp.core.model import MMDP
from mmdp.core.shapes import Array
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
from mmdp.data.io.tables import LoadOptions
from mmdp.data.io.writing import describe_error
from mmdp.data.schema import Fields, TableSource

XmlElement = ElementTree.Element
LINE_ATTRIBUTE = "line of the file"  # not a possible attribute of a file
MAX_VARIABLES = 32  # axes of an array; states count twice
VARIABLE_ROLES = {
    "StateVar": "state",
    "ActionVar": "action",
    "ObsVar": "observation",
    "RewardVar": "reward",
}
SECTIONS = {  # what the functions are about, and what they may depend on
    "InitialStateBelief": ("state", ("state",)),
    "StateTransitionFunction": ("next_state", ("action", "state", "next_state")),
    "ObsFunction": ("observation", ("action", "next_state")),
    "RewardFunction": ("reward", ("action", "state", "next_state", "observation")),
}


class Factor(NamedTuple):
    """Function of variables: an array with one axis per name."""

    names: tuple[str, ...]
    array: Array

    def restrict(self, names: Container[str], subject: str) -> Factor:
        """Restrict the function to some of its variables; refuse it if it depends on others."""
        for axis, name in enumerate(self.names):
            first_slice = self.array.take([0], axis)
            if name not in names and not np.allclose(self.array, first_slice, rtol=0, atol=1e-12):
                raise InputError(
                    f"{subject!r} depends on {name!r}; in an MMDP a hidden variable changes by "
                    "itself, whatever the action and the state, no observation depends on it, and "
                    "a state depends on its value before the step (mark what is observed with "
                    'fullyObs="true")'
                )
        index = tuple(slice(None) if name in names else 0 for name in self.names)
        return Factor(tuple(name for name in self.names if name in names), self.array[index])


Factors = dict[str, Factor]  # by the variable that they are about


def load_pomdpx(path: Path, options: LoadOptions) -> MMDP:
    """Load a model from a .pomdpx file."""
    file, root = _PomdpxFile(path, options), _parse_xml(path)
    if root.tag != "pomdpx":
        file.fail(root, f"the root is <{root.tag}>; give a file with the root <pomdpx>")
    node = file.get_child(root, "Discount")
    with file.prefix_errors(node):
        discount = parse_float(_get_text(node), "<Discount>")
    file.read_variables(file.get_child(root, "Variable"))
    functions = [file.read_functions(root, section) for section in SECTIONS]
    with file.source.prefix_errors():
        fields = _make_fields(file, *functions)
        return MMDP(**fields, discount=discount, storage=options.storage)


# ---------------------------------------------------------------------- the file as elements
def _parse_xml(path: Path) -> XmlElement:
    """Parse an XML file; every element has its line number as an attribute."""
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate(namespace_separator=" ")

    def start_element(tag: str, attributes: dict[str, str]) -> None:
        line = str(parser.CurrentLineNumber)
        builder.start(tag.rpartition(" ")[2], attributes | {LINE_ATTRIBUTE: line})

    parser.StartElementHandler = start_element
    parser.EndElementHandler = lambda tag: builder.end(tag.rpartition(" ")[2])
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(path.read_bytes(), True)
    except expat.ExpatError as error:
        raise InputError(
            f"{path}, line {error.lineno}: not well-formed XML "
            f"({expat.ErrorString(error.code)}); check tags and quotes"
        ) from None
    except (OSError, ValueError, LookupError) as error:  # an encoding that is not known, for one
        raise InputError(
            f"{path}: cannot be read ({describe_error(error)}); save it as UTF-8"
        ) from None
    return builder.close()


def _get_text(node: XmlElement) -> str:
    return " ".join("".join(node.itertext()).split())


class _PomdpxFile:
    """POMDPX file: its variables, and errors that name the line.

    ``names`` of variables by role; a state has a name before and one after a step. ``values``: the
    position of each value, by the name of the variable. ``observed``: names of observed states.
    ``aliases``: other names of variables that are the same before and after a step.
    """

    def __init__(self, path: Path, options: LoadOptions) -> None:
        self.source, self.options = TableSource(path), options
        roles = (*VARIABLE_ROLES.values(), "next_state")
        self.names: dict[str, list[str]] = {role: [] for role in roles}
        self.values: dict[str, Names] = {}
        self.observed: set[str] = set()
        self.aliases: dict[str, str] = {}

    def fail(self, node: XmlElement, problem: str) -> NoReturn:
        """Raise an InputError that names the line of an element."""
        with self.prefix_errors(node):
            raise InputError(problem)

    def prefix_errors(self, node: XmlElement) -> AbstractContextManager[None]:
        """Add the file and the line of an element to the messages of InputErrors."""
        return self.source.prefix_errors(node.get(LINE_ATTRIBUTE))

    def get_child(self, node: XmlElement, tag: str) -> XmlElement:
        """Get the only child with a tag; refuse none or several."""
        children = node.findall(tag)
        if len(children) != 1:
            self.fail(node, f"<{node.tag}> has {len(children)} elements {tag!r}; it needs one")
        return children[0]

    def get_words(self, node: XmlElement, tag: str) -> list[str]:
        """Get the words in the only child with a tag."""
        return _get_text(self.get_child(node, tag)).split()

    def check_tags(self, node: XmlElement, tags: Iterable[str]) -> None:
        """Refuse children with other tags."""
        for child in node:
            if child.tag not in tags:
                known = did_you_mean(child.tag, tags)
                self.fail(child, f"unknown element {known} in <{node.tag}>; check its name")

    # ------------------------------------------------------------------ variables
    def read_variables(self, section: XmlElement) -> None:
        """Read the variables of the section <Variable>."""
        self.check_tags(section, VARIABLE_ROLES)
        for node in section:
            role = VARIABLE_ROLES[node.tag]
            values = {} if role == "reward" else self._parse_values(node, role)
            attributes = {role: "vname"}
            if role == "state":
                attributes = {role: "vnamePrev", "next_state": "vnameCurr"}
                if node.get("fullyObs", "").strip().lower() in ("true", "1"):
                    self.observed.add(node.get("vnamePrev", "").strip())
            for name_role, attribute in attributes.items():
                name = node.get(attribute, "").strip()
                if name in self.values or name in ("", "null") or len(name.split()) > 1:
                    self.fail(
                        node,
                        f"{attribute} of <{node.tag}> is {name!r}; give a name without spaces that "
                        "no other variable has",
                    )
                self.names[name_role].append(name)
                self.values[name] = values
        if not (self.observed and self.names["action"]):
            self.fail(
                section,
                "an MMDP has actions (<ActionVar>) and states that are observed at every step "
                '(<StateVar> with fullyObs="true"); add them',
            )
        if len(self.values) > MAX_VARIABLES:
            self.fail(section, f"{len(self.values)} variables, states counted twice; merge some")

    def _parse_values(self, node: XmlElement, role: str) -> Names:
        """Parse the values listed, or make s0, s1, ... (a0 of actions, o0 of observations)."""
        with self.prefix_errors(node):
            if node.find("NumValues") is None:
                return parse_names(self.get_words(node, "ValueEnum"), "<ValueEnum>")
            n_values = parse_count(" ".join(self.get_words(node, "NumValues")), "<NumValues>")
            return {f"{role[0]}{i}": i for i in range(n_values)}

    # ------------------------------------------------------------------ functions
    def read_functions(self, root: XmlElement, section: str) -> Factors:
        """Read the functions of a section, by the variable that they are about."""
        names = self.names[SECTIONS[section][0]]
        if section == "ObsFunction" and not names:
            return {}
        node, is_reward = self.get_child(root, section), section == "RewardFunction"
        self.check_tags(node, ["Func" if is_reward else "CondProb"])
        factors, missing = {}, [*names]
        for element in node:
            name = " ".join(self.get_words(element, "Var"))
            if name not in missing:
                self.fail(
                    element,
                    f"<Var> is {did_you_mean(name, missing)}; <{section}> has one function of each "
                    f"of {', '.join(names)}",
                )
            missing.remove(name)
            factors[name] = self._parse_factor(element, name, section)
        if missing and not is_reward:
            self.fail(node, f"<{section}> has no function of {missing[0]!r}; add it")
        return factors

    def _parse_factor(self, node: XmlElement, name: str, section: str) -> Factor:
        """Parse one CondProb or Func; entries left out are 0, the last of two entries is used."""
        known = [x for role in SECTIONS[section][1] for x in self.names[role] if x != name]
        parents = [x for x in self.get_words(node, "Parent") if x != "null"]
        for parent in parents:
            if parent not in known:
                self.fail(
                    node,
                    f"<Parent> names {did_you_mean(parent, known)}, which {name!r} in <{section}> "
                    "cannot depend on, or names it twice",
                )
            known.remove(parent)
        is_reward = section == "RewardFunction"
        names = parents if is_reward else [*parents, name]
        parameter = self.get_child(node, "Parameter")
        if parameter.get("type", "TBL") != "TBL":
            self.fail(parameter, f"type {parameter.get('type')!r} is not read; write a table (TBL)")
        self.check_tags(parameter, ["Entry"])
        with self.prefix_errors(node):
            sizes = [len(self.values[x]) for x in names]
            check_table_size(*sizes)
            array = np.zeros(sizes)
        for entry in parameter:
            self._apply_entry(entry, array, names, is_reward)
        if not is_reward:
            with self.prefix_errors(node):
                values = [self.values[x] for x in parents]
                subject = f"<CondProb> of {name!r}"
                array = check_distributions(array, self.options.normalize, values, subject)
        return Factor(tuple(names), array)

    def _apply_entry(
        self, entry: XmlElement, array: Array, names: Sequence[str], is_reward: bool
    ) -> None:
        """Write one entry into an array; ``*`` is for all values, ``-`` for values in the table."""
        words = self.get_words(entry, "Instance")
        if len(words) != len(names):
            self.fail(
                entry,
                f"<Instance> has {len(words)} words; expected {len(names)}: {' '.join(names)}",
            )
        axes = [(word, self.values[name], name) for word, name in zip(words, names, strict=True)]
        for word, values, name in axes:
            if word not in (*values, "*", "-"):
                self.fail(entry, f"{did_you_mean(word, values)} is no value of {name!r}")
        index = tuple(values.get(word, slice(None)) for word, values, _ in axes)
        sizes = [len(values) for word, values, _ in axes if word == "-"]
        shape = [len(x) if word == "-" else 1 for word, x, _ in axes if word in ("*", "-")]
        table = self.get_child(entry, "ValueTable" if is_reward else "ProbTable")
        parse = parse_numbers if is_reward else parse_probabilities
        with self.prefix_errors(table):
            numbers = parse(_get_text(table).split(), f"<{table.tag}>", sizes)
        array[index] = numbers.reshape(shape)

    def multiply(self, factors: Iterable[Factor], names: Sequence[str]) -> Array:
        """Multiply functions, and sum over the variables that are not in ``names``."""
        axes = {name: i for i, name in enumerate(names)}
        ones = np.broadcast_to(1.0, [len(self.values[x]) for x in names])
        operands: list[Any] = [ones, list(axes.values())]
        for factor in factors:
            axis_names = [self.aliases.get(x, x) for x in factor.names]
            operands += [factor.array, [axes.setdefault(x, len(axes)) for x in axis_names]]
        return np.asarray(np.einsum(*operands, list(range(len(names)))))


# ---------------------------------------------------------------------- variables to a model
def _make_fields(
    file: _PomdpxFile,
    initial: Factors,
    transitions: Factors,
    observations: Factors,
    rewards: Factors,
) -> Fields:
    """Multiply the functions of a file to the arguments of MMDP."""
    next_names = dict(zip(file.names["state"], file.names["next_state"], strict=True))
    hidden = {x: next_name for x, next_name in next_names.items() if x not in file.observed}
    states = [x for x in next_names if x in file.observed]
    actions, hidden_names = file.names["action"], {*hidden, *hidden.values()}
    is_switching = not all(_is_constant(transitions[y], x) for x, y in hidden.items())
    file.aliases = {} if is_switching else {y: x for x, y in hidden.items()}
    axes = {"models": hidden, "states": states, "actions": actions}
    M, S, A = (math.prod(len(file.values[x]) for x in axis) for axis in axes.values())
    check_table_size(M, S, A, S)
    hidden_after = [*hidden.values()] if is_switching else []
    seen_names, step_names = (file.values.keys() - x for x in (hidden_names, hidden_after))
    observations = {x: factor.restrict(seen_names, x) for x, factor in observations.items()}
    chain = [transitions[y].restrict(hidden_names, y) for y in hidden_after]
    steps = [transitions[next_names[x]].restrict(step_names, next_names[x]) for x in states]
    names = [*hidden, *states, *actions, *(next_names[x] for x in states)]
    r = np.zeros((M, S, A, S))
    for factor in rewards.values():
        factors = [factor, *(observations[x] for x in factor.names if x in observations)]
        factors += [] if {*hidden_after}.isdisjoint(factor.names) else chain
        r += file.multiply(factors, names).reshape(r.shape)
    first_model = [initial[x].restrict(hidden, x) for x in hidden]
    first_state = [initial[x] for x in states]
    has_one_start = all(hidden_names.isdisjoint(factor.names) for factor in first_state)
    start = file.multiply(first_state, [*([] if has_one_start else hidden), *states])
    K = file.multiply(chain, [*hidden, *hidden.values()]).reshape(M, M) if is_switching else None
    return make_model_fields(
        file.multiply(steps, names).reshape(r.shape),
        r,
        {
            name: ["/".join(values) for values in product(*(file.values[x] for x in variables))]
            for name, variables in axes.items()
            if variables
        },
        weights=file.multiply(first_model, list(hidden)).reshape(-1),
        initial=start.reshape(S if has_one_start else (M, S)),
        model_transitions=K,
    )


def _is_constant(transition: Factor, name: str) -> bool:
    """Return whether a hidden variable never changes, by its transition function."""
    if name not in transition.names:
        return transition.array.shape[-1] == 1
    table = np.moveaxis(transition.array, transition.names.index(name), -2)
    return np.allclose(table, np.eye(table.shape[-1]), rtol=0, atol=SUM_TOLERANCE)
