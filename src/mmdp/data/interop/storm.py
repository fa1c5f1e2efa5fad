"""Storm: explicit .drn and PRISM models, one per environment, through stormpy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast

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
RewardFunction = Callable[[int, int], float]  # of state and choice


class StormMdp(Protocol):
    """A sparse MDP of stormpy."""

    nr_states: int
    nr_choices: int
    initial_states: Sequence[int]
    model_type: object
    transition_matrix: Any
    state_valuations: Any
    choice_labeling: Any
    reward_models: Mapping[str, Any]

    def has_state_valuations(self) -> bool:
        """Return whether the values of variables are known."""
        ...

    def has_choice_labeling(self) -> bool:
        """Return whether choices have labels."""
        ...


@check_arguments
def from_storm(
    models: object,
    *,
    constants: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
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
    if align not in ("variables", "numbers"):
        raise InputError(f"align must be 'variables' or 'numbers', not {align!r}")
    mdps = [_build_mdp(x, values) for x, values in _pair_with_constants(models, constants)]
    names_by_model = _name_states(mdps, align)
    state_ids = {
        name: i
        for i, name in enumerate(
            dict.fromkeys(x for state_names in names_by_model for x in state_names)
        )
    }
    rows: list[Row] = []
    initial = np.zeros((len(mdps), len(state_ids)))
    for m, (model, state_names) in enumerate(zip(mdps, names_by_model, strict=True)):
        rows += _iter_rows(m, model, state_names, reward)
        initial_ids = [state_ids[state_names[state]] for state in model.initial_states]
        initial[m, initial_ids] = 1 / len(initial_ids)
    _check_unlabeled_choices(rows)
    rows += _make_unreached_rows(rows, len(mdps), "initial" in fields)
    labels = {} if 0 in state_ids else {"states": list(state_ids)}
    frame = pd.DataFrame(rows, columns=[*COLUMNS])
    return from_frame(frame, **({"initial": initial} | labels | fields))


def _pair_with_constants(
    models: object, constants: Constants | Sequence[Constants] | None
) -> list[tuple[object, Constants | None]]:
    """Pair every model with the values of its constants."""
    if isinstance(models, (str, Path)) or hasattr(models, "transition_matrix"):
        model_list = [models]
    elif is_list(models):
        model_list = list(models)
    else:
        raise InputError(f"from_storm needs files or MDPs of stormpy, not {shorten(models)}")
    if not model_list:
        raise InputError("from_storm needs at least one model")
    if constants is None or isinstance(constants, Mapping):
        return [(x, constants) for x in model_list]
    values = list(constants)
    model_list = model_list * len(values) if len(model_list) == 1 else model_list
    if len(values) != len(model_list):
        raise InputError(f"{len(values)} constants for {len(model_list)} models; give one for each")
    return list(zip(model_list, values, strict=True))


def _build_mdp(model: object, constants: Constants | None) -> StormMdp:
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
        return cast("StormMdp", model)
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    try:
        if path.suffix.lower() == ".drn":
            parser_options = stormpy.io.DirectEncodingParserOptions()
            parser_options.build_choice_labeling = True
            mdp: StormMdp = stormpy.build_model_from_drn(str(path), options=parser_options)
        elif path.suffix.lower() in PRISM_SUFFIXES:
            program = stormpy.parse_prism_program(str(path))
            if constants:
                text = ",".join(
                    f"{name}={_format_value(value)}" for name, value in constants.items()
                )
                program = stormpy.instantiate_constants(program, text)[0]
            mdp = stormpy.build_model(program, options=stormpy.BuilderOptions(build_full=True))
        else:
            raise InputError(
                f"{path}: unknown suffix; known are {join_or(['.drn', *PRISM_SUFFIXES])}"
            )
    except InputError:
        raise
    except (RuntimeError, ValueError, stormpy.exceptions.StormError) as error:
        raise InputError(
            f"{path}: Storm cannot read it ({' '.join(str(error).split())})",
            ["give values with constants="] if "constant" in str(error) else [],
        ) from None
    if str(mdp.model_type) != "ModelType.MDP":
        type_name = str(mdp.model_type).rpartition(".")[2]
        raise InputError(f"{path}: a {type_name}; each environment must be an MDP")
    return mdp


# ---------------------------------------------------------------------- states
def _name_states(mdps: Sequence[StormMdp], align: Align) -> Sequence[Sequence[StateName]]:
    """Name the states of each model; those of the same name are the same state."""
    if align == "variables" or len(mdps) == 1:
        names = [
            state_names for state_names in map(_read_valuations, mdps) if state_names is not None
        ]
        if len(names) == len(mdps):
            _check_variables(names)
            return names
    _check_same_numbering(mdps, align)
    return [range(mdps[0].nr_states)] * len(mdps)


def _read_valuations(model: StormMdp) -> list[str] | None:
    """Write every state as ``b=true, s=0``; None if the values of variables are not known."""
    if not model.has_state_valuations():
        return None
    valuations = model.state_valuations
    variables = sorted(valuations.get_all_variables(), key=lambda x: str(x.name))
    return [
        ", ".join(f"{x.name}={_format_value(valuations.get_value(state, x))}" for x in variables)
        for state in range(model.nr_states)
    ]


def _format_value(value: object) -> str:
    """Format a value as PRISM files write it."""
    return str(value).lower() if isinstance(value, (bool, np.bool_)) else str(value)


def _check_variables(names: Sequence[Sequence[str]]) -> None:
    """Refuse models of different variables, or in which two states have the same values."""
    first_variables: list[str] = []
    for m, state_names in enumerate(names):
        if len(set(state_names)) < len(state_names):
            duplicate = Counter(state_names).most_common(1)[0][0]
            raise InputError(
                f"model {m} has two states with {duplicate}, which cannot be distinguished"
            )
        variables = [part.partition("=")[0] for part in state_names[0].split(", ")]
        first_variables = first_variables or variables
        if variables != first_variables:
            raise InputError(
                f"model {m} has the variables {', '.join(variables)}, "
                f"model 0 {', '.join(first_variables)}; all must have the same"
            )


def _check_same_numbering(mdps: Sequence[StormMdp], align: str) -> None:
    """Refuse models whose states cannot be matched by their numbers."""
    first_mdp, starts = mdps[0], list(mdps[0].initial_states)
    for m, model in enumerate(mdps[1:], 1):
        if align != "numbers":
            raise InputError(
                "the states of several models cannot be matched: there are no values of variables, "
                "and Storm numbers states in the order in which it finds them",
                [
                    "give PRISM files, or build with state valuations",
                    Remedy("align", "numbers", verb="if all number their states alike,"),
                ],
            )
        if model.nr_states != first_mdp.nr_states or list(model.initial_states) != starts:
            raise InputError(
                f"model {m} has {model.nr_states} states and starts in "
                f"{list(model.initial_states)}, model 0 has {first_mdp.nr_states} and starts in "
                f"{starts}; all must have the same states"
            )


def _make_unreached_rows(rows: Sequence[Row], n_models: int, has_initial: bool) -> list[Row]:
    """Make rows that stay and earn 0, for models in which a state of others is never reached."""
    known_states = {row[:2] for row in rows}
    actions = dict.fromkeys(row[1:3] for row in rows)
    added_rows = [
        (m, s, a, s, 1.0, 0.0)
        for m in range(n_models)
        for s, a in actions
        if (m, s) not in known_states
    ]
    if added_rows and has_initial:
        m, s = added_rows[0][:2]
        raise InputError(
            f"model {m} does not reach state {s!r} from where it starts; leave out "
            "initial=, or start it there in its file"
        )
    return added_rows


# ---------------------------------------------------------------------- choices
def _iter_rows(
    m: int, model: StormMdp, state_names: Sequence[StateName], reward: str | None
) -> Iterator[Row]:
    """Yield the transitions of a model, see COLUMNS."""
    matrix, get_reward, labels = (
        model.transition_matrix,
        _make_reward_function(model, reward),
        _read_choice_labels(model),
    )
    for state in range(model.nr_states):
        first_choice, end_choice = (
            matrix.get_row_group_start(state),
            matrix.get_row_group_end(state),
        )
        actions = [
            labels[choice] or choice - first_choice for choice in range(first_choice, end_choice)
        ]
        if len(set(actions)) < len(actions):
            duplicate = Counter(actions).most_common(1)[0][0]
            raise InputError(
                f"model {m}, state {state_names[state]!r}: two choices are called {duplicate!r}; "
                "label them differently"
            )
        for choice, action in zip(range(first_choice, end_choice), actions, strict=True):
            for entry in matrix.get_row(choice):
                value = entry.value() if callable(entry.value) else entry.value
                yield (
                    m,
                    state_names[state],
                    action,
                    state_names[entry.column],
                    value,
                    get_reward(state, choice),
                )


def _read_choice_labels(model: StormMdp) -> list[str]:
    """Read the label of every choice; empty if it has none."""
    if not model.has_choice_labeling():
        return [""] * int(model.nr_choices)
    label_sets = (model.choice_labeling.get_labels_of_choice(i) for i in range(model.nr_choices))
    return ["+".join(sorted(set(x) - {"__NOLABEL__"})) for x in label_sets]


def _check_unlabeled_choices(rows: Iterable[Row]) -> None:
    """Refuse choices that only have numbers, where models have different numbers of them."""
    counts: dict[StateName, dict[int, int]] = {}
    for m, state, action, *_ in rows:
        choice_counts = counts.setdefault(state, {})
        choice_counts[m] = max(
            choice_counts.get(m, 0), action + 1 if isinstance(action, int) else 0
        )
    for state, choice_counts in counts.items():
        if len(set(choice_counts.values())) > 1:
            raise InputError(
                f"state {state!r} has choices without a label, and not as many in all models; "
                "label the commands"
            )


def _make_reward_function(model: StormMdp, reward: str | None) -> RewardFunction:
    """Make the function that says what a choice in a state earns."""
    reward_names: Iterable[str] = list(model.reward_models)
    if reward is None and len(model.reward_models) == 1:
        (reward,) = reward_names
    if reward is None or reward not in model.reward_models:
        raise InputError(
            f"reward= must name one of the reward models: {', '.join(reward_names) or 'none'}"
        )
    reward_model = model.reward_models[reward]
    if reward_model.has_transition_rewards:
        raise InputError(f"reward model {reward!r} has rewards per transition, which are not read")
    by_state = list(reward_model.state_rewards) if reward_model.has_state_rewards else None
    by_choice = (
        list(reward_model.state_action_rewards) if reward_model.has_state_action_rewards else None
    )
    return lambda state, choice: (
        (by_state[state] if by_state else 0.0) + (by_choice[choice] if by_choice else 0.0)
    )
