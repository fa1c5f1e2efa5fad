"""Storm: explicit .drn and PRISM models, one per environment, through stormpy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from mmdp.arguments import checked
from mmdp.errors import InputError, Remedy
from mmdp.io.tables import from_frame
from mmdp.model import MMDP
from mmdp.validate import is_list
from mmdp.words import either, shortened

PRISM = (".prism", ".nm", ".pm")
COLUMNS = ("model", "state", "action", "next_state", "probability", "reward")
Align = Literal["variables", "numbers"]


@checked
def from_storm(
    models: Any,
    *,
    constants: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    reward: str | None = None,
    align: Align = "variables",
    **fields: Any,
) -> MMDP:
    """A problem from MDPs of Storm: needs ``stormpy`` (the extra ``storm``).

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
    built = [_built(x, values) for x, values in _asked(models, constants)]
    names = _state_names(built, align)
    states = {name: i for i, name in enumerate(dict.fromkeys(x for own in names for x in own))}
    rows: list[tuple[Any, ...]] = []
    initial = np.zeros((len(built), len(states)))
    for m, (model, own) in enumerate(zip(built, names, strict=True)):
        rows += _rows(m, model, own, reward)
        starts = [states[own[state]] for state in model.initial_states]
        initial[m, starts] = 1 / len(starts)
    _check_unlabelled(rows)
    rows += _unreached(rows, len(built), "initial" in fields)
    labels = {} if 0 in states else {"states": list(states)}
    frame = pd.DataFrame(rows, columns=[*COLUMNS])
    return from_frame(frame, **({"initial": initial} | labels | fields))


def _asked(models: Any, constants: Any) -> list[tuple[Any, Any]]:
    """Every model with the values of its constants."""
    single = isinstance(models, (str, Path)) or hasattr(models, "transition_matrix")
    if not single and not is_list(models):
        raise InputError(f"from_storm needs files or MDPs of stormpy, not {shortened(models)}")
    given = [models] if single else list(models)
    if not given:
        raise InputError("from_storm needs at least one model")
    if constants is None or isinstance(constants, Mapping):
        return [(x, constants) for x in given]
    values = list(constants)
    given = given * len(values) if len(given) == 1 else given
    if len(values) != len(given):
        raise InputError(f"{len(values)} constants for {len(given)} models; give one for each")
    return list(zip(given, values, strict=True))


def _built(model: Any, constants: Mapping[str, Any] | None) -> Any:
    """The MDP of a file; one that is built already as it is."""
    try:
        import stormpy
    except ImportError:
        raise InputError("from_storm needs stormpy; pip install mmdp[storm]") from None
    path = Path(model) if isinstance(model, (str, Path)) else None
    if path is None and not hasattr(model, "transition_matrix"):
        raise InputError(f"from_storm needs files or MDPs of stormpy, not {shortened(model)}")
    if constants and (path is None or path.suffix.lower() not in PRISM):
        raise InputError(f"constants belong to PRISM files ({either(PRISM)})")
    if path is None:
        return model
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    try:
        if path.suffix.lower() == ".drn":
            options = stormpy.io.DirectEncodingParserOptions()
            options.build_choice_labeling = True
            found = stormpy.build_model_from_drn(str(path), options=options)
        elif path.suffix.lower() in PRISM:
            program = stormpy.parse_prism_program(str(path))
            if constants:
                text = ",".join(f"{name}={_text(value)}" for name, value in constants.items())
                program = stormpy.instantiate_constants(program, text)[0]
            found = stormpy.build_model(program, options=stormpy.BuilderOptions(build_full=True))
        else:
            raise InputError(f"{path}: unknown suffix; known are {either(['.drn', *PRISM])}")
    except InputError:
        raise
    except (RuntimeError, ValueError, stormpy.exceptions.StormError) as error:
        raise InputError(
            f"{path}: Storm cannot read it ({' '.join(str(error).split())})",
            ["give values with constants="] if "constant" in str(error) else [],
        ) from None
    if str(found.model_type) != "ModelType.MDP":
        kind = str(found.model_type).rpartition(".")[2]
        raise InputError(f"{path}: a {kind}; each environment must be an MDP")
    return found


# ---------------------------------------------------------------------- states
def _state_names(built: Sequence[Any], align: Align) -> Sequence[Sequence[Any]]:
    """What each model calls its states; those of the same name are the same state."""
    if align == "variables" or len(built) == 1:
        names = [own for own in map(_values, built) if own is not None]
        if len(names) == len(built):
            _check_variables(names)
            return names
    _check_numbered(built, align)
    return [range(built[0].nr_states)] * len(built)


def _values(model: Any) -> list[str] | None:
    """``b=true, s=0`` for every state; None if the values of variables are not known."""
    if not model.has_state_valuations():
        return None
    values = model.state_valuations
    variables = sorted(values.get_all_variables(), key=lambda x: str(x.name))
    return [
        ", ".join(f"{x.name}={_text(values.get_value(state, x))}" for x in variables)
        for state in range(model.nr_states)
    ]


def _text(value: Any) -> str:
    """A value as PRISM files write it."""
    return str(value).lower() if isinstance(value, (bool, np.bool_)) else str(value)


def _check_variables(names: Sequence[Sequence[str]]) -> None:
    """Refuse models of different variables, or in which two states have the same values."""
    first: list[str] = []
    for m, own in enumerate(names):
        if len(set(own)) < len(own):
            twice = Counter(own).most_common(1)[0][0]
            raise InputError(
                f"model {m} has two states with {twice}, which cannot be distinguished"
            )
        variables = [part.partition("=")[0] for part in own[0].split(", ")]
        first = first or variables
        if variables != first:
            raise InputError(
                f"model {m} has the variables {', '.join(variables)}, model 0 {', '.join(first)}; "
                "all must have the same"
            )


def _check_numbered(built: Sequence[Any], align: str) -> None:
    first, starts = built[0], list(built[0].initial_states)
    for m, model in enumerate(built[1:], 1):
        if align != "numbers":
            raise InputError(
                "the states of several models cannot be matched: there are no values of variables, "
                "and Storm numbers states in the order in which it finds them",
                [
                    "give PRISM files, or build with state valuations",
                    Remedy("align", "numbers", do="if all number their states alike,"),
                ],
            )
        if model.nr_states != first.nr_states or list(model.initial_states) != starts:
            raise InputError(
                f"model {m} has {model.nr_states} states and starts in "
                f"{list(model.initial_states)}, model 0 has {first.nr_states} and starts in "
                f"{starts}; all must have the same states"
            )


def _unreached(
    rows: Sequence[tuple[Any, ...]], models: int, started: bool
) -> list[tuple[Any, ...]]:
    """Rows that stay and earn 0, for models in which a state of others is never reached."""
    known = {row[:2] for row in rows}
    actions = dict.fromkeys(row[1:3] for row in rows)
    found = [(m, s, a, s, 1.0, 0.0) for m in range(models) for s, a in actions
             if (m, s) not in known]  # fmt: skip
    if found and started:
        m, s = found[0][:2]
        raise InputError(f"model {m} does not reach state {s!r} from where it starts; leave out "
                         "initial=, or start it there in its file")  # fmt: skip
    return found


# ---------------------------------------------------------------------- choices
def _rows(
    m: int, model: Any, names: Sequence[Any], reward: str | None
) -> Iterator[tuple[Any, ...]]:
    """Transitions of a model, see COLUMNS."""
    matrix, earned, labels = model.transition_matrix, _rewards(model, reward), _labels(model)
    for state in range(model.nr_states):
        begin, end = matrix.get_row_group_start(state), matrix.get_row_group_end(state)
        actions = [labels[choice] or choice - begin for choice in range(begin, end)]
        if len(set(actions)) < len(actions):
            twice = Counter(actions).most_common(1)[0][0]
            raise InputError(
                f"model {m}, state {names[state]!r}: two choices are called {twice!r}; label them "
                "differently"
            )
        for choice, action in zip(range(begin, end), actions, strict=True):
            for entry in matrix.get_row(choice):
                value = entry.value() if callable(entry.value) else entry.value
                yield m, names[state], action, names[entry.column], value, earned(state, choice)


def _labels(model: Any) -> list[str]:
    """The label of every choice; empty if it has none."""
    if not model.has_choice_labeling():
        return [""] * int(model.nr_choices)
    found = (model.choice_labeling.get_labels_of_choice(i) for i in range(model.nr_choices))
    return ["+".join(sorted(set(x) - {"__NOLABEL__"})) for x in found]


def _check_unlabelled(rows: Iterable[tuple[Any, ...]]) -> None:
    """Refuse choices that only have numbers, where models have different numbers of them."""
    counts: dict[Any, dict[int, int]] = {}
    for m, state, action, *_ in rows:
        here = counts.setdefault(state, {})
        here[m] = max(here.get(m, 0), action + 1 if isinstance(action, int) else 0)
    for state, here in counts.items():
        if len(set(here.values())) > 1:
            raise InputError(
                f"state {state!r} has choices without a label, and not as many in all models; "
                "label the commands"
            )


def _rewards(model: Any, reward: str | None) -> Any:
    """What a choice in a state earns."""
    known: Iterable[str] = list(model.reward_models)
    if reward is None and len(model.reward_models) == 1:
        (reward,) = known
    if reward not in model.reward_models:
        raise InputError(
            f"reward= must name one of the reward models: {', '.join(known) or 'none'}"
        )
    table = model.reward_models[reward]
    if table.has_transition_rewards:
        raise InputError(f"reward model {reward!r} has rewards per transition, which are not read")
    by_state = list(table.state_rewards) if table.has_state_rewards else None
    by_choice = list(table.state_action_rewards) if table.has_state_action_rewards else None
    return lambda state, choice: (
        (by_state[state] if by_state else 0.0) + (by_choice[choice] if by_choice else 0.0)
    )
