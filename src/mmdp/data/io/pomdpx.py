"""POMDPX: the XML format of APPL for mixed-observability problems, read as an MMDP.

The hidden variables are the model, which changes if they do, and the observed ones are the state;
several make a product. Every function of the file is a table over the variables it names, and
one ``einsum`` multiplies them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.kernels.distributions import SUM_TOLERANCE
from mmdp.core.text import did_you_mean, pluralize
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
from mmdp.data.io.tables import LoadOptions
from mmdp.data.io.writing import describe_error
from mmdp.data.schema import TableSource

XmlElement = ElementTree.Element
LINE_ATTRIBUTE = "line of the file"  # not a possible attribute of a file
MAX_VALUES = 1_000_000
MAX_AXES = 32  # of an array
ALLOWED_PARENTS = {  # roles of the variables that the functions of a section may depend on
    "InitialStateBelief": ("state",),
    "StateTransitionFunction": ("action", "state", "next_state"),
    "ObsFunction": ("action", "next_state"),
    "RewardFunction": ("action", "state", "next_state", "observation"),
}
VARIABLE_ROLES = {"StateVar": "state", "ActionVar": "action", "ObsVar": "observation"}


@dataclass(frozen=True)
class Variable:
    """Variable with its names before and after a step, which differ only for states."""

    role: str
    name: str
    next_name: str
    values: tuple[str, ...]
    is_observed: bool

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position of each value."""
        return {value: i for i, value in enumerate(self.values)}


@dataclass(frozen=True)
class Factor:
    """Function of variables: an array with one axis per name."""

    names: tuple[str, ...]
    array: Array

    def depends_on(self, name: str) -> bool:
        """Return whether the function depends on a variable."""
        if name not in self.names:
            return False
        first_slice = self.array.take([0], axis=self.names.index(name))
        return not np.allclose(self.array, first_slice, rtol=0, atol=1e-12)

    def drop_variables(self, names: Iterable[str]) -> Factor:
        """Remove variables that the function does not depend on."""
        kept_axes = [i for i, name in enumerate(self.names) if name not in names]
        index = tuple(slice(None) if i in kept_axes else 0 for i in range(len(self.names)))
        return Factor(tuple(self.names[i] for i in kept_axes), self.array[index])


Factors = Mapping[str, Factor]  # by the variable that they are about


def load_pomdpx(path: Path, options: LoadOptions) -> HiddenModel:
    """Read the model of a .pomdpx file, not yet checked as an MMDP."""
    file = _PomdpxFile(path, options)
    root = _parse_xml(path)
    if root.tag != "pomdpx":
        file.fail(root, f"the root is <{root.tag}>; give a file with the root <pomdpx>")
    node = file.get_child(root, "Discount")
    with file.prefix_errors(node):
        discount = parse_float(_get_text(node), "<Discount>")
    file.read_variables(file.get_child(root, "Variable"))
    initial = file.read_factors(root, "InitialStateBelief", "CondProb")
    transitions = file.read_factors(root, "StateTransitionFunction", "CondProb")
    observations = file.read_factors(
        root, "ObsFunction", "CondProb", file.select_variables("observation")
    )
    rewards = file.read_factors(root, "RewardFunction", "Func")
    with file.prefix_errors():
        return _make_hidden_model(
            _mark_observed(file.variables, initial, observations),
            initial,
            transitions,
            observations,
            rewards,
            discount,
        )


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
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({describe_error(error)})") from None
    except expat.ExpatError as error:
        raise InputError(
            f"{path}, line {error.lineno}: not well-formed XML "
            f"({expat.ErrorString(error.code)}); check tags and quotes"
        ) from None
    except (ValueError, LookupError) as error:  # an encoding that is not known
        raise InputError(
            f"{path}: cannot be read ({describe_error(error)}); save it as UTF-8"
        ) from None
    return builder.close()


def _get_text(node: XmlElement) -> str:
    return " ".join("".join(node.itertext()).split())


@dataclass
class _PomdpxFile:
    """POMDPX file: its variables and options, and errors that name the line."""

    path: Path
    options: LoadOptions
    variables: list[Variable] = field(default_factory=list)
    reward_names: list[str] = field(default_factory=list)

    def fail(self, node: XmlElement, problem: str) -> NoReturn:
        """Raise an InputError that names the line of an element."""
        raise InputError(f"{self.path}, line {node.get(LINE_ATTRIBUTE)}: {problem}")

    def prefix_errors(self, node: XmlElement | None = None) -> AbstractContextManager[None]:
        """Add the file and the line of an element to the messages of InputErrors."""
        line = "" if node is None else f", line {node.get(LINE_ATTRIBUTE)}"
        return TableSource(f"{self.path}{line}").prefix_errors()

    def get_child(self, node: XmlElement, tag: str) -> XmlElement:
        """Get the only child with a tag; refuse none or several."""
        children = [x for x in node if x.tag == tag]
        if len(children) != 1:
            tag_text = did_you_mean(tag, {x.tag for x in node}) if not children else repr(tag)
            count_text = (
                f"no element {tag_text}" if not children else f"{len(children)} elements {tag_text}"
            )
            self.fail(node, f"<{node.tag}> has {count_text}; it needs one")
        return children[0]

    def select_variables(self, role: str) -> list[Variable]:
        """Select the variables of a role: state, action or observation."""
        return [x for x in self.variables if x.role == role]

    # ------------------------------------------------------------------ variables
    def read_variables(self, section: XmlElement) -> None:
        """Read the variables of the section <Variable>."""
        used_names: set[str] = set()
        for node in section:
            if node.tag == "RewardVar":
                names = [self._parse_name(node, "vname")]
                self.reward_names += names
            elif node.tag in VARIABLE_ROLES:
                self.variables.append(self._parse_variable(node))
                names = list({self.variables[-1].name, self.variables[-1].next_name})
            else:
                known_tags = [*VARIABLE_ROLES, "RewardVar"]
                self.fail(
                    node, f"unknown element {did_you_mean(node.tag, known_tags)} in <Variable>"
                )
            for name in names:
                if name in used_names:
                    self.fail(node, f"the name {name!r} is given twice; rename one")
                used_names.add(name)
        for tag, role in VARIABLE_ROLES.items():
            if role != "observation" and not self.select_variables(role):
                self.fail(section, f"no <{tag}>; an MMDP has states and actions")
        if not any(
            x.is_observed for x in self.select_variables("state")
        ) and not self.select_variables("observation"):
            self.fail(
                section,
                'no state is observed; add fullyObs="true" to a <StateVar>, or an <ObsVar>',
            )

    def _parse_variable(self, node: XmlElement) -> Variable:
        """Parse a state, action or observation variable."""
        role, values = VARIABLE_ROLES[node.tag], self._parse_values(node)
        if role != "state":
            name = self._parse_name(node, "vname")
            return Variable(role, name, name, values, False)
        previous_name = self._parse_name(node, "vnamePrev")
        next_name = self._parse_name(node, "vnameCurr")
        if previous_name == next_name:
            self.fail(node, f"vnamePrev and vnameCurr are both {previous_name!r}; they must differ")
        fully_observed = node.get("fullyObs", "false").strip().lower()
        if fully_observed not in ("true", "false"):
            self.fail(node, f"fullyObs is {fully_observed!r}; write true or false")
        return Variable(role, previous_name, next_name, values, fully_observed == "true")

    def _parse_name(self, node: XmlElement, attribute: str) -> str:
        """Parse the name of a variable."""
        name = node.get(attribute, "").strip()
        if not name or len(name.split()) > 1 or name == "null":
            self.fail(node, f"<{node.tag}> needs {attribute}, a name without spaces")
        return name

    def _parse_values(self, node: XmlElement) -> tuple[str, ...]:
        """Parse the values listed, or make s0, s1, ... (a0 of actions, o0 of observations)."""
        if node.find("NumValues") is None:
            values = _get_text(self.get_child(node, "ValueEnum")).split()
            duplicates = [x for x, count in Counter(values).items() if count > 1]
            if duplicates or not values:
                problem = (
                    f"value {duplicates[0]!r} is given twice"
                    if duplicates
                    else "<ValueEnum> is empty"
                )
                self.fail(node, problem)
            if {"*", "-"} & set(values):
                self.fail(node, "'*' and '-' stand for all values; rename this value")
            return tuple(values)
        with self.prefix_errors(node):
            n_values = parse_float(_get_text(self.get_child(node, "NumValues")), "<NumValues>")
        if not (n_values.is_integer() and 1 <= n_values <= MAX_VALUES):
            self.fail(
                node, f"<NumValues> is {n_values:g}; give a whole number from 1 to {MAX_VALUES:,}"
            )
        return tuple(f"{VARIABLE_ROLES[node.tag][0]}{i}" for i in range(int(n_values)))

    # ------------------------------------------------------------------ functions
    def read_factors(
        self, root: XmlElement, section: str, tag: str, variables: Sequence[Variable] | None = None
    ) -> dict[str, Factor]:
        """Read the functions of a section, by the variable that they are about."""
        targets = self.select_variables("state") if variables is None else variables
        names = {
            "InitialStateBelief": [x.name for x in targets],
            "RewardFunction": self.reward_names,
        }.get(section, [x.next_name for x in targets])
        if section == "ObsFunction" and not names:
            return {}
        factors: dict[str, Factor] = {}
        node = self.get_child(root, section)
        for element in node:
            if element.tag != tag:
                self.fail(
                    element, f"unknown element {did_you_mean(element.tag, [tag])} in <{section}>"
                )
            name = _get_text(self.get_child(element, "Var"))
            if name not in names:
                self.fail(
                    element,
                    f"<Var> is {did_you_mean(name, names)}; <{section}> is about "
                    f"{', '.join(names) or 'nothing'}",
                )
            if name in factors:
                self.fail(element, f"{name!r} is given twice in <{section}>")
            factors[name] = self._parse_factor(element, name, section)
        missing = [name for name in names if name not in factors]
        if missing and section != "RewardFunction":
            self.fail(node, f"<{section}> has no function of {missing[0]!r}; add it")
        return factors

    def _parse_factor(self, node: XmlElement, name: str, section: str) -> Factor:
        """Parse one CondProb or Func; entries left out are 0, the last of two entries is used."""
        allowed_parents = self._find_allowed_parents(section)
        parents = _get_text(self.get_child(node, "Parent")).split()
        parents = [] if parents == ["null"] else parents
        for parent in parents:
            if parent not in allowed_parents or parent == name:
                self.fail(
                    node,
                    f"<Parent> names {did_you_mean(parent, allowed_parents)}, which {name!r} in "
                    f"<{section}> cannot depend on",
                )
        if len(set(parents)) < len(parents):
            self.fail(node, "<Parent> names a variable twice")
        is_reward = section == "RewardFunction"
        names = parents if is_reward else [*parents, name]
        variable_by_name = {y: x for x in self.variables for y in (x.name, x.next_name)}
        variables = [variable_by_name[x] for x in names]
        if len(names) > MAX_AXES:
            self.fail(
                node,
                f"{name!r} depends on {len(parents)} variables; {MAX_AXES - 1} are possible",
            )
        with self.prefix_errors(node):
            check_table_size(*(x.size for x in variables))
        array = np.zeros([x.size for x in variables])
        parameter = self.get_child(node, "Parameter")
        if parameter.get("type", "TBL") != "TBL":
            self.fail(parameter, f"type {parameter.get('type')!r} is not read; write a table (TBL)")
        for entry in parameter:
            if entry.tag != "Entry":
                self.fail(entry, f"unknown element <{entry.tag}> in <Parameter>; expected <Entry>")
            self._apply_entry(
                entry, array, variables, names, "ValueTable" if is_reward else "ProbTable"
            )
        if is_reward:
            return Factor(tuple(names), array)
        with self.prefix_errors(node):
            values = [x.values for x in variables[:-1]]
            array = check_distributions(array, self.options, values, f"<CondProb> of {name!r}")
        return Factor(tuple(names), array)

    def _find_allowed_parents(self, section: str) -> dict[str, Variable]:
        """Find the variables that a function of a section may depend on, by name."""
        roles = ALLOWED_PARENTS[section]
        parents = {x.name: x for x in self.variables if x.role in roles}
        if "next_state" in roles:
            parents |= {x.next_name: x for x in self.select_variables("state")}
        return parents

    def _apply_entry(
        self,
        entry: XmlElement,
        array: Array,
        variables: Sequence[Variable],
        names: Sequence[str],
        tag: str,
    ) -> None:
        """Write one entry into an array; ``*`` is for all values, ``-`` for values in the table."""
        words = _get_text(self.get_child(entry, "Instance")).split()
        if len(words) != len(variables):
            self.fail(
                entry,
                f"<Instance> has {pluralize(len(words), 'word')}; expected "
                f"{len(variables)}: {' '.join(names)}",
            )
        index: list[int | slice] = []
        for word, variable in zip(words, variables, strict=True):
            if word not in ("*", "-") and word not in variable.positions:
                self.fail(
                    entry, f"{did_you_mean(word, variable.values)} is no value of {variable.name!r}"
                )
            index.append(slice(None) if word in "*-" else variable.positions[word])
        listed_sizes = [v.size for v, word in zip(variables, words, strict=True) if word == "-"]
        element = self.get_child(entry, tag)
        with self.prefix_errors(element):
            values = _parse_entry_values(_get_text(element).split(), listed_sizes, tag, array.shape)
        word_sizes = zip(words, array.shape, strict=True)
        shape = [n if word == "-" else 1 for word, n in word_sizes if word in "*-"]
        array[tuple(index)] = values.reshape(shape)


def _parse_entry_values(
    words: Sequence[str], listed_sizes: list[int], tag: str, shape: Sequence[int]
) -> Array:
    """Parse the numbers of an entry, or the keywords uniform and identity."""
    if tag == "ProbTable" and words == ["uniform"]:
        return np.full(listed_sizes, 1.0 / shape[-1])
    if tag == "ProbTable" and words == ["identity"]:
        if len(listed_sizes) != 2 or listed_sizes[0] != listed_sizes[1]:
            raise InputError(
                "identity needs two '-' in <Instance> with equal numbers of values; correct it"
            )
        return np.eye(listed_sizes[0])
    return parse_float_array(
        words, f"<{tag}>", listed_sizes, 0.0 if tag == "ProbTable" else -np.inf
    )


# ---------------------------------------------------------------------- variables to a model
def _mark_observed(
    variables: Sequence[Variable], initial: Factors, observations: Factors
) -> list[Variable]:
    """Mark states as observed if an observation reveals them and their initial value is known."""

    def is_observed(x: Variable) -> bool:
        is_start_known = not initial[x.name].names[:-1] and initial[x.name].array.max() > 1 - 1e-12
        return x.is_observed or (
            is_start_known and any(_is_revealing(factor, x) for factor in observations.values())
        )

    return [replace(x, is_observed=is_observed(x)) if x.role == "state" else x for x in variables]


def _is_revealing(factor: Factor, variable: Variable) -> bool:
    """Return whether an observation determines a variable."""
    if variable.next_name not in factor.names:
        return False
    axes = {factor.names.index(variable.next_name), len(factor.names) - 1}
    other_axes = tuple(i for i in range(len(factor.names)) if i not in axes)
    return bool(((factor.array > 0).any(axis=other_axes).sum(axis=0) <= 1).all())


def _make_hidden_model(
    variables: Sequence[Variable],
    initial_factors: Factors,
    transitions: Factors,
    observations: Factors,
    rewards: Factors,
    discount: float,
) -> HiddenModel:
    """Multiply the functions of a file to a hidden model and an observed state."""
    hidden = [x for x in variables if x.role == "state" and not x.is_observed]
    states = [x for x in variables if x.role == "state" and x.is_observed]
    actions = [x for x in variables if x.role == "action"]
    changing = [x for x in hidden if not _is_constant(x, transitions[x.next_name])]
    for x in hidden:
        _check_not_observed(x, x in changing, observations)
    if not states:
        raise InputError(
            "no state is observed; an MMDP needs a state that is observed at every step"
        )
    multiply = _FactorProduct(variables, [x for x in hidden if x not in changing])
    names = [x.name for x in (*hidden, *states, *actions)] + [x.next_name for x in states]
    n_models, n_states, n_actions = map(_count_combinations, (hidden, states, actions))
    shape = (n_models, n_states, n_actions, n_states)
    check_table_size(*shape)
    step_factors = [_restrict_to_current(transitions[x.next_name], x, changing) for x in states]
    p = multiply(step_factors, names).reshape(shape)
    chain_factors = [_restrict_to_hidden(transitions[x.next_name], x, hidden) for x in changing]
    changed_names = {x.next_name for x in changing}
    r = np.zeros(shape)
    for factor in rewards.values():
        factors = [factor, *(observations[name] for name in factor.names if name in observations)]
        factors += [] if changed_names.isdisjoint(factor.names) else chain_factors
        r += multiply(factors, names).reshape(shape)
    belief = multiply(list(initial_factors.values()), [x.name for x in (*hidden, *states)])
    weights, initial = split_belief(belief.reshape(n_models, n_states))
    if _are_independent(initial_factors, hidden, states):
        weights = multiply([initial_factors[x.name] for x in hidden], [x.name for x in hidden])
        initial = multiply([initial_factors[x.name] for x in states], [x.name for x in states])
        initial = initial.reshape(-1)
    model_transitions = None
    if changing:
        next_names = [x.next_name if x in changing else f"{x.name} next" for x in hidden]
        chain_factors += [
            Factor((x.name, f"{x.name} next"), np.eye(x.size)) for x in hidden if x not in changing
        ]
        chain = multiply(chain_factors, [*(x.name for x in hidden), *next_names])
        model_transitions = chain.reshape(n_models, n_models)
    axes = {"model": hidden, "state": states, "action": actions}
    labels = {axis: _make_labels(x) for axis, x in axes.items() if x}
    return HiddenModel(p, r, weights.reshape(-1), initial, discount, labels, model_transitions)


def _is_constant(variable: Variable, transition: Factor) -> bool:
    """Return whether a hidden variable never changes, by its transition function."""
    if variable.name not in transition.names:
        return variable.size == 1
    table = np.moveaxis(transition.array, transition.names.index(variable.name), -2)
    return np.allclose(table, np.eye(variable.size), rtol=0, atol=SUM_TOLERANCE)


def _check_not_observed(variable: Variable, is_changing: bool, observations: Factors) -> None:
    """Refuse observations that depend on a hidden variable."""
    observation_name = next(
        (name for name, factor in observations.items() if factor.depends_on(variable.next_name)),
        None,
    )
    if observation_name is not None and is_changing:
        raise InputError(
            f"state {variable.name!r} changes and is observed with errors (by "
            f"{observation_name!r}); in an MMDP the state is observed exactly"
        )
    if observation_name is not None:
        raise InputError(
            f"the observation {observation_name!r} depends on the hidden {variable.name!r}; in an "
            "MMDP only the transitions of the state depend on the model"
        )


def _restrict_to_hidden(
    transition: Factor, variable: Variable, hidden: Sequence[Variable]
) -> Factor:
    """Restrict the transition of a hidden variable to hidden variables; refuse others."""
    hidden_names = {name for y in hidden for name in (y.name, y.next_name)}
    other_names = [name for name in transition.names if name not in hidden_names]
    for name in other_names:
        if transition.depends_on(name):
            fail_unsupported_switching(
                f"variable {variable.name!r} is hidden and changes with {name!r}"
            )
    return transition.drop_variables(other_names)


def _restrict_to_current(
    transition: Factor, variable: Variable, changing: Sequence[Variable]
) -> Factor:
    """Restrict the transition of a state to the model before the step; refuse others."""
    for y in changing:
        if transition.depends_on(y.next_name):
            raise InputError(
                f"state {variable.name!r} depends on the hidden {y.name!r} after its change "
                f"({y.next_name!r}); in an MMDP a step depends on the model before it"
            )
    return transition.drop_variables([y.next_name for y in changing])


def _are_independent(
    initial_factors: Factors, hidden: Sequence[Variable], states: Sequence[Variable]
) -> bool:
    """Return whether no initial function has both hidden variables and observed states."""
    groups = [{x.name for x in group} for group in (hidden, states)]
    return all(
        any(group.isdisjoint(factor.names) for group in groups)
        for factor in initial_factors.values()
    )


class _FactorProduct:
    """Products of functions; ``constant`` variables are the same before and after a step."""

    def __init__(self, variables: Iterable[Variable], constant: Sequence[Variable]) -> None:
        self.sizes = {name: x.size for x in variables for name in (x.name, x.next_name)}
        self.aliases = {x.next_name: x.name for x in constant}

    def __call__(self, factors: Sequence[Factor], names: Sequence[str]) -> Array:
        """Multiply functions, and sum over the variables that are not in ``names``."""
        used_names = {self.aliases.get(x, x) for factor in factors for x in factor.names}
        ones = [Factor((x,), np.ones(self.sizes[x])) for x in names if x not in used_names]
        axes: dict[str, int] = {}
        operands: list[Any] = []
        for factor in (*factors, *ones):
            aliased_names = [self.aliases.get(x, x) for x in factor.names]
            operands += [factor.array, [axes.setdefault(x, len(axes)) for x in aliased_names]]
        if len(axes) > MAX_AXES:
            raise InputError(f"{len(axes)} variables are too many for one array; merge some")
        return np.asarray(np.einsum(*operands, [axes[x] for x in names])) if axes else np.ones(1)


def _count_combinations(variables: Sequence[Variable]) -> int:
    return math.prod(x.size for x in variables)


def _make_labels(variables: Sequence[Variable]) -> list[str]:
    """Make the labels of all combinations of values, joined by a slash."""
    return ["/".join(values) for values in product(*(variable.values for variable in variables))]
