"""Storm: explicit .drn and PRISM models, one per environment, through stormpy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mmdp.arguments import checked
from mmdp.errors import InputError
from mmdp.io.tables import from_frame
from mmdp.model import MMDP
from mmdp.validate import is_list
from mmdp.words import either, shortened

PRISM = (".prism", ".nm", ".pm")


@checked
def from_storm(models: Any, *, reward: str | None = None, **fields: Any) -> MMDP:
    """A problem from MDPs of Storm: needs ``stormpy`` (the extra ``storm``).

    ``models`` is one, or a sequence of: a ``.drn`` file, a PRISM file, or an MDP that stormpy has
    built. Each is a model of the problem; they have the same states in the same order. An action
    is a choice label if there are labels, else the number of the choice in its state. ``reward``
    names the reward model if there are several; state rewards are earned on leaving the state.
    ``fields`` are other arguments of :func:`mmdp.io.from_frame`, such as ``discount``.
    """
    single = isinstance(models, (str, Path)) or hasattr(models, "transition_matrix")
    if not single and not is_list(models):
        raise InputError(f"from_storm needs files or MDPs of stormpy, not {shortened(models)}")
    built = [_built(x) for x in ([models] if single else models)]
    if not built:
        raise InputError("from_storm needs at least one model")
    first, starts = built[0], list(built[0].initial_states)
    for m, model in enumerate(built):
        if model.nr_states != first.nr_states or list(model.initial_states) != starts:
            raise InputError(
                f"model {m} has {model.nr_states} states and starts in "
                f"{list(model.initial_states)}, model 0 has {first.nr_states} and starts in "
                f"{starts}; all must have the same states"
            )
    rows = (row for m, model in enumerate(built) for row in _rows(m, model, reward))
    columns = ["model", "state", "action", "next_state", "probability", "reward"]
    initial = {state: 1 / len(starts) for state in starts}
    return from_frame(pd.DataFrame(rows, columns=columns), **({"initial": initial} | fields))


def _built(model: Any) -> Any:
    """The MDP of a file; one that is built already as it is."""
    try:
        import stormpy
    except ImportError:
        raise InputError("from_storm needs stormpy; pip install mmdp[storm]") from None
    if hasattr(model, "transition_matrix"):
        return model
    if not isinstance(model, (str, Path)):
        raise InputError(f"from_storm needs files or MDPs of stormpy, not {shortened(model)}")
    path = Path(model)
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    try:
        if path.suffix.lower() == ".drn":
            found = stormpy.build_model_from_drn(str(path))
        elif path.suffix.lower() in PRISM:
            options = stormpy.BuilderOptions(build_full=True)
            options.set_build_choice_labels(True)
            program = stormpy.parse_prism_program(str(path))
            found = stormpy.build_model(program, options=options)
        else:
            raise InputError(f"{path}: unknown suffix; known are {either(['.drn', *PRISM])}")
    except RuntimeError as error:
        raise InputError(f"{path}: Storm cannot read it ({' '.join(str(error).split())})") from None
    if str(found.model_type) != "ModelType.MDP":
        kind = str(found.model_type).rpartition(".")[2]
        raise InputError(f"{path}: a {kind}; each environment must be an MDP")
    return found


def _rows(m: int, model: Any, reward: str | None) -> Iterator[tuple[Any, ...]]:
    """Transitions of a model: (model, state, action, next state, probability, reward)."""
    matrix, earned, labels = model.transition_matrix, _rewards(model, reward), _labels(model)
    for state in range(model.nr_states):
        begin = matrix.get_row_group_start(state)
        for choice in range(begin, matrix.get_row_group_end(state)):
            action = labels[choice] if labels else choice - begin
            for entry in matrix.get_row(choice):
                value = entry.value() if callable(entry.value) else entry.value
                yield m, state, action, entry.column, value, earned(state, choice)


def _labels(model: Any) -> list[str] | None:
    """The label of every choice; None if some have none."""
    if not model.has_choice_labeling():
        return None
    found = [sorted(model.choice_labeling.get_labels_of_choice(i)) for i in range(model.nr_choices)]
    return ["+".join(x) for x in found] if all(found) else None


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
