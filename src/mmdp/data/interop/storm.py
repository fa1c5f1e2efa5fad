"""Storm: explicit .drn and PRISM models, one per environment, through stormpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.model import MMDP
from mmdp.core.text import join_or, shorten
from mmdp.core.validate import is_list
from mmdp.data.io.tables import from_frame

PRISM_SUFFIXES = (".prism", ".nm", ".pm")
COLUMNS = ("model", "state", "action", "next_state", "probability", "reward")
Align = Literal["variables", "numbers"]
Constants = Mapping[str, object]  # values by name
StateName = str | int  # the values of variables, or a number
Row = tuple[int, StateName, StateName, StateName, float, float]  # see COLUMNS
StormMdp = Any  # a sparse MDP of stormpy


@check_arguments
def from_storm(
    models: object,
    *,
    constants: Constants | Sequence[Constants] | None = None,
    reward: str | None = None,
    align: Align = "variables",
    **fields: Any,
) -> MMDP:
    """Make models of MDPs of Storm: needs ``stormpy`` (the extra ``storm``).

    Parameters
    ----------
    models
        One, or a sequence of: a ``.drn`` file, a PRISM file, or an MDP that stormpy has built. Each
        is a model of the problem.
    constants
        Values of the constants of PRISM files by name; a sequence of them makes a model for each.
    reward
        The name of the reward model if there are several; state rewards are earned on leaving the
        state.
    align
        A state is the same in all models if its ``"variables"`` have the same values: Storm numbers
        states in the order in which it finds them. What a model never reaches stays as it is in
        that model. Files and MDPs without values of variables (``.drn``) take ``"numbers"``, if
        their states are numbered alike.
    fields
        Other arguments of :func:`mmdp.io.from_frame`, such as ``discount``.

    An action is the label of a choice, or the number of the choice in its state if it has none.
    """
    mdps = [_build_mdp(x, values) for x, values in _pair_with_constants(models, constants)]
    names_by_model = _name_states(mdps, align)
    state_names = list(dict.fromkeys(x for names in names_by_model for x in names))
    initial = pd.DataFrame(0.0, range(len(mdps)), state_names)
    rows: list[Row] = []
    for m, (mdp, names) in enumerate(zip(mdps, names_by_model, strict=True)):
        rows += _iter_rows(m, mdp, names, reward)
        initial.loc[m, [names[s] for s in mdp.initial_states]] = 1 / len(mdp.initial_states)
    reached = {row[:2] for row in rows}
    unreached_rows = [
        (m, s, a, s, 1.0, 0.0)
        for m in range(len(mdps))
        for s, a in dict.fromkeys(row[1:3] for row in rows)
        if (m, s) not in reached
    ]
    if unreached_rows and "initial" in fields:
        raise InputError(
            f"model {unreached_rows[0][0]} does not reach state {unreached_rows[0][1]!r} from "
            "where it starts; leave out initial=, or start it there in its file"
        )
    frame = pd.DataFrame(rows + unreached_rows, columns=[*COLUMNS])
    labels = {} if 0 in state_names else {"states": state_names}
    return from_frame(frame, **({"initial": initial.to_numpy()} | labels | fields))


def _pair_with_constants(
    models: object, constants: Constants | Sequence[Constants] | None
) -> list[tuple[object, Constants]]:
    """Pair every model with the values of its constants."""
    model_list: list[object] = list(models) if is_list(models) else [models]
    if constants is None or isinstance(constants, Mapping):
        constants = [constants or {}] * len(model_list)
    elif len(model_list) == 1:
        model_list = model_list * len(constants)
    if not model_list or len(constants) != len(model_list):
        raise InputError(
            f"{len(constants)} constants for {len(model_list)} models; give one for each, and at "
            "least one model"
        )
    return list(zip(model_list, constants, strict=True))


def _build_mdp(model: object, constants: Constants) -> StormMdp:
    """Build the MDP of a file; return one that is built already unchanged."""
    try:
        import stormpy
    except ImportError:
        raise InputError("from_storm needs stormpy; pip install mmdp[storm]") from None
    path = Path(model) if isinstance(model, (str, Path)) else None
    if path is None and not hasattr(model, "transition_matrix"):
        raise InputError(f"from_storm needs files or MDPs of stormpy, not {shorten(model)}")
    if constants and (path is None or path.suffix.lower() not in PRISM_SUFFIXES):
        raise InputError(f"constants belong to PRISM files ({join_or(PRISM_SUFFIXES)})")
    if path is None:
        return model
    if not path.is_file() or path.suffix.lower() not in (".drn", *PRISM_SUFFIXES):
        raise InputError(
            f"{path}: no such file, or its suffix is not {join_or(['.drn', *PRISM_SUFFIXES])}"
        )
    try:
        if path.suffix.lower() == ".drn":
            options = stormpy.io.DirectEncodingParserOptions()
            options.build_choice_labeling = True
            mdp = stormpy.build_model_from_drn(str(path), options=options)
        else:
            program = stormpy.parse_prism_program(str(path))
            texts = [f"{name}={_format_value(value)}" for name, value in constants.items()]
            program = stormpy.instantiate_constants(program, ",".join(texts))[0]
            mdp = stormpy.build_model(program, options=stormpy.BuilderOptions(build_full=True))
    except (RuntimeError, ValueError, stormpy.exceptions.StormError) as error:
        raise InputError(
            f"{path}: Storm cannot read it ({' '.join(str(error).split())})",
            ["give values with constants="] if "constant" in str(error) else [],
        ) from None
    if str(mdp.model_type) != "ModelType.MDP":
        raise InputError(f"{path}: a {mdp.model_type}; each environment must be an MDP")
    return mdp


# ---------------------------------------------------------------------- states
def _name_states(mdps: Sequence[StormMdp], align: Align) -> Sequence[Sequence[StateName]]:
    """Name the states of each model; those of the same name are the same state."""
    if align == "variables" and all(mdp.has_state_valuations() for mdp in mdps):
        variables, names_by_model = zip(*map(_read_valuations, mdps), strict=True)
        for m, names in enumerate(names_by_model):
            if variables[m] != variables[0] or len(set(names)) < len(names):
                raise InputError(
                    f"model {m} has the variables {', '.join(variables[m])}, model 0 "
                    f"{', '.join(variables[0])}; all must have the same, and no two states the "
                    "same values"
                )
        return names_by_model
    if len(mdps) > 1 and align != "numbers":
        raise InputError(
            "the states of several models cannot be matched: there are no values of variables, "
            "and Storm numbers states in the order in which it finds them",
            [
                "give PRISM files, or build with state valuations",
                Remedy("align", "numbers", verb="if all number their states alike,"),
            ],
        )
    facts = [f"{x.nr_states} states and starts in {[*x.initial_states]}" for x in mdps]
    for m, fact in enumerate(facts):
        if fact != facts[0]:
            raise InputError(
                f"model {m} has {fact}, model 0 has {facts[0]}; all must have the same states"
            )
    return [range(mdp.nr_states) for mdp in mdps]


def _read_valuations(mdp: StormMdp) -> tuple[list[str], list[str]]:
    """Read the names of the variables, and write every state as ``b=true, s=0``."""
    valuations = mdp.state_valuations
    variables = {str(x.name): x for x in valuations.get_all_variables()}
    names = sorted(variables)
    return names, [
        ", ".join(f"{x}={_format_value(valuations.get_value(s, variables[x]))}" for x in names)
        for s in range(mdp.nr_states)
    ]


def _format_value(value: object) -> str:
    """Format a value as PRISM files write it."""
    return str(value).lower() if isinstance(value, (bool, np.bool_)) else str(value)


# ---------------------------------------------------------------------- choices
def _iter_rows(
    m: int, mdp: StormMdp, state_names: Sequence[StateName], reward: str | None
) -> Iterator[Row]:
    """Yield the transitions of a model, see COLUMNS."""
    matrix, (by_state, by_choice), labels = mdp.transition_matrix, _get_rewards(mdp, reward), {}
    if mdp.has_choice_labeling():
        for i in range(mdp.nr_choices):
            choice_labels = mdp.choice_labeling.get_labels_of_choice(i)
            labels[i] = "+".join(sorted({*choice_labels} - {"__NOLABEL__"}))
    for state, name in enumerate(state_names):
        first_choice = matrix.get_row_group_start(state)
        known_actions: set[StateName] = set()
        for choice in range(first_choice, matrix.get_row_group_end(state)):
            action = labels.get(choice) or choice - first_choice
            if action in known_actions:
                raise InputError(
                    f"model {m}, state {name!r}: two choices are called {action!r}; label them "
                    "differently"
                )
            known_actions.add(action)
            for entry in matrix.get_row(choice):
                p = entry.value() if callable(entry.value) else entry.value
                reward_sum = by_state[state] + by_choice[choice]
                yield m, name, action, state_names[entry.column], p, reward_sum


def _get_rewards(mdp: StormMdp, reward: str | None) -> tuple[Sequence[float], Sequence[float]]:
    """Get what is earned in each state, and for each choice."""
    names = [*mdp.reward_models]
    name = names[0] if reward is None and len(names) == 1 else reward
    if name not in names:
        raise InputError(f"reward= must name one of the reward models: {join_or(names) or 'none'}")
    x = mdp.reward_models[name]
    if x.has_transition_rewards:
        raise InputError(f"reward model {name!r} has rewards per transition, which are not read")
    return (
        [*x.state_rewards] if x.has_state_rewards else [0.0] * mdp.nr_states,
        [*x.state_action_rewards] if x.has_state_action_rewards else [0.0] * mdp.nr_choices,
    )
