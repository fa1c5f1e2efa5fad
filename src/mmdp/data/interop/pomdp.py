"""The equivalent POMDP as a file for other solvers.

The hidden state is (model, state), the model changes by its chain or never, and the observation
is the state.
A solver of that POMDP finds the best policy with memory; no Markov policy is better.

- ``.pomdp``: Cassandra's format. Its first decision is taken before any observation, while
  here the first state is seen. If the initial distribution is not a single state, one step
  without reward from a state ``start`` comes first, so the value found is the discount times
  that of the problem.
- ``.pomdpx``: the XML format of APPL, with the state fully observed (a mixed-observability
  problem), also at the start.

Both formats have no horizon and no value of ending, and no place for names, units, quantities,
labels of times and parameters of models, which are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, MemoryLimitError
from mmdp.core.model import MMDP
from mmdp.core.text import format_bytes
from mmdp.core.transitions import MAX_DENSE_BYTES
from mmdp.data.interop._one_model import check_stationary, list_transitions
from mmdp.data.io.writing import PathLike, write_atomic

BYTES_PER_LINE = 90
_NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED_NAMES = {
    "T",
    "O",
    "R",
    "discount",
    "values",
    "states",
    "actions",
    "observations",
    "start",
} | {"uniform", "identity", "reset", "include", "exclude", "reward", "cost", "null", "nothing"}


@check_arguments
def save_pomdp(model: MMDP, path: PathLike) -> None:
    """Write the equivalent POMDP as ``.pomdp`` or ``.pomdpx``, whole or not at all.

    States, actions and models have their labels if those are plain names (letters, digits,
    ``_`` and ``-``), otherwise they are ``s0``, ``a0``, ``m0`` and so on and the labels are in
    comments. :func:`mmdp.load` reads both formats; from ``.pomdpx`` it gives the model back. An
    action that is not allowed repeats the lowest allowed one of its state. Models
    of weight 0 are left out, unless models change.

    >>> import tempfile, pathlib, mmdp, mmdp.interop
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[1.0], [0.0]], initial=[1, 0])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "one.pomdp"
    >>> mmdp.interop.save_pomdp(one, file)
    >>> [line for line in file.read_text().splitlines() if line.startswith("T:")]
    ['T: a0 : m0_s0 : m0_s0 0.5', 'T: a0 : m0_s0 : m0_s1 0.5', 'T: a0 : m0_s1 : m0_s1 1.0']
    """
    target = Path(path)
    writers = {".pomdp": _iter_pomdp_lines, ".pomdpx": _iter_pomdpx_lines}
    if target.suffix.lower() not in writers:
        raise InputError(f"{target}: unknown suffix {target.suffix!r}; write .pomdp or .pomdpx")
    check_stationary(model, "the POMDP formats")
    if model.terminal.any():
        raise InputError("the POMDP formats have no terminal values; use replace(terminal=None)")
    n_model_pairs = (
        int(np.count_nonzero(model.model_transitions)) if model.is_switching else model.n_models
    )
    size = (
        2
        * BYTES_PER_LINE
        * int(np.count_nonzero(model.problem.p))
        * n_model_pairs
        // model.n_models
    )
    if size > MAX_DENSE_BYTES:
        raise MemoryLimitError(
            f"{target}: the file would take about {format_bytes(size)}; use fewer models "
            "(model.subset)"
        )

    def write_lines(temp_path: Path) -> None:
        with temp_path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in writers[target.suffix.lower()](model))

    write_atomic(target, write_lines)


def _format_number(value: float) -> str:
    """Format a number with all digits, no exponent and a decimal point, for every parser."""
    return np.format_float_positional(value, trim="0")


def _find_kept_models(model: MMDP) -> list[int]:
    """Find the models that can occur: by weight, or all if they switch."""
    return np.flatnonzero((model.weights > 0) | model.is_switching).tolist()


def _list_next_models(model: MMDP, m: int) -> list[tuple[int, float]]:
    """List the models that may follow model m, with their probabilities."""
    if model.problem.model_transitions is None:
        return [(m, 1.0)]
    row = model.problem.model_transitions[m]
    return [(n, float(row[n])) for n in np.flatnonzero(row).tolist()]


def _format_names(model: MMDP, axis: str) -> list[str]:
    """Format the labels of an axis: as they are if all are plain names, else letters and ids."""
    labels: tuple[str, ...] = getattr(model, f"{axis}_labels")
    is_plain = model.has_labels[axis] and all(_NAME_PATTERN.fullmatch(x) for x in labels)
    if is_plain and _RESERVED_NAMES.isdisjoint(labels):
        return list(labels)
    return [f"{axis[0]}{i}" for i in range(len(labels))]


def _iter_comments(model: MMDP) -> Iterator[str]:
    """Yield labels, one per line, without breaks and dashes that would end a comment."""
    yield "written by mmdp: the hidden state is (model, state), the observation is the state"
    for axis in ("state", "action", "model"):
        for name, label in zip(
            _format_names(model, axis), getattr(model, f"{axis}_labels"), strict=True
        ):
            if model.has_labels[axis] and name != label:
                text = " ".join(label.split()).replace("--", "- -")
                yield f"{name} is {axis} {text}"


# ---------------------------------------------------------------------- .pomdp
def _iter_pomdp_lines(model: MMDP) -> Iterator[str]:
    """Yield the lines of a .pomdp file."""
    model_ids, n_states, observation_names = (
        _find_kept_models(model),
        model.n_states,
        _format_names(model, "state"),
    )
    initial_joint = model.problem.initial_joint()
    initial_states = np.flatnonzero(initial_joint.any(axis=1))
    has_start_state = len(initial_states) > 1
    if has_start_state and not model.discount:
        raise InputError(
            "a .pomdp file has a step before the first decision if episodes begin in several "
            "states, and at discount 0 nothing counts after it; write .pomdpx"
        )
    names = [f"m{m}_s{s}" for m in model_ids for s in range(n_states)] + ["start"] * has_start_state
    for comment in _iter_comments(model):
        yield f"# {comment}"
    yield f"discount: {_format_number(model.discount)}"
    yield "values: reward"
    yield f"states: {' '.join(names)}"
    yield f"actions: {' '.join(_format_names(model, 'action'))}"
    yield f"observations: {' '.join(observation_names + ['nothing'] * has_start_state)}"
    belief = [
        0.0 if has_start_state else initial_joint[s, m] for m in model_ids for s in range(n_states)
    ]
    yield f"start: {' '.join(map(_format_number, belief + [1.0] * has_start_state))}"
    if has_start_state:
        for m in model_ids:
            for s in initial_states:
                yield f"T: * : start : m{m}_s{s} {_format_number(initial_joint[s, m])}"
        yield "O: * : start : nothing 1.0"
    for m in model_ids:
        yield from _iter_pomdp_model_lines(model, m)


def _iter_pomdp_model_lines(model: MMDP, m: int) -> Iterator[str]:
    """Yield the transitions, observations and rewards of a model for a .pomdp file."""
    entries = list_transitions(model, m, fill_forbidden=True)
    action_names, observation_names = _format_names(model, "action"), _format_names(model, "state")
    next_models = _list_next_models(model, m)
    for s, a, n, p in zip(
        entries.state, entries.action, entries.next_state, entries.probability, strict=True
    ):
        for k, model_prob in next_models:
            yield f"T: {action_names[a]} : m{m}_s{s} : m{k}_s{n} {_format_number(p * model_prob)}"
    for s in range(model.n_states):
        yield f"O: * : m{m}_s{s} : {observation_names[s]} 1.0"
    for s, a, n, r in zip(
        entries.state, entries.action, entries.next_state, entries.reward, strict=True
    ):
        for k, _ in next_models if r != 0 else []:
            yield f"R: {action_names[a]} : m{m}_s{s} : m{k}_s{n} : * {_format_number(r)}"


# ---------------------------------------------------------------------- .pomdpx
def _iter_pomdpx_lines(model: MMDP) -> Iterator[str]:
    """Yield the lines of a .pomdpx file."""
    model_ids = _find_kept_models(model)
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield '<pomdpx version="1.0" id="mmdp">'
    for comment in _iter_comments(model):
        yield f"<!-- {escape(comment).rstrip('-')} -->"
    yield f"<Discount>{_format_number(model.discount)}</Discount>"
    yield "<Variable>"
    models, states = _format_names(model, "model"), _format_names(model, "state")
    yield from _iter_state_variable("model", False, [models[m] for m in model_ids])
    yield from _iter_state_variable("state", True, states)
    yield from _iter_variable_values("ObsVar", "seen", states)
    yield from _iter_variable_values("ActionVar", "action", _format_names(model, "action"))
    yield '<RewardVar vname="reward"/>'
    yield "</Variable>"
    yield "<InitialStateBelief>"
    weights = " ".join(_format_number(model.weights[m]) for m in model_ids)
    yield from _iter_conditional("model_0", "null", [("-", weights)])
    rows = [" ".join(map(_format_number, row)) for row in model.problem.initial.T]
    if len(rows) == 1:
        yield from _iter_conditional("state_0", "null", [("-", rows[0])])
    else:
        initial_entries = [(f"{models[m]} -", rows[m]) for m in model_ids]
        yield from _iter_conditional("state_0", "model_0", initial_entries)
    yield "</InitialStateBelief>"
    yield from _iter_pomdpx_dynamics(model, model_ids)
    yield "</pomdpx>"


def _iter_pomdpx_dynamics(model: MMDP, model_ids: list[int]) -> Iterator[str]:
    """Yield the transition, observation and reward functions of a .pomdpx file."""
    entries_by_model = {m: list_transitions(model, m, fill_forbidden=True) for m in model_ids}
    models, states, action_names = (
        _format_names(model, axis) for axis in ("model", "state", "action")
    )
    transitions = [
        (f"{action_names[a]} {models[m]} {states[s]} {states[n]}", p, r)
        for m, entries in entries_by_model.items()
        for s, a, n, p, r in zip(*entries, strict=True)
    ]
    yield "<StateTransitionFunction>"
    model_chain = "identity"
    if model.problem.model_transitions is not None:
        model_chain = " ".join(map(_format_number, model.problem.model_transitions.ravel()))
    yield from _iter_conditional("model_1", "action model_0", [("* - -", model_chain)])
    yield from _iter_conditional(
        "state_1",
        "action model_0 state_0",
        [(instance, _format_number(p)) for instance, p, _ in transitions],
    )
    yield "</StateTransitionFunction>"
    yield "<ObsFunction>"
    observation_entries = [(f"* {s} {s}", "1.0") for s in states]
    yield from _iter_conditional("seen", "action state_1", observation_entries)
    yield "</ObsFunction>"
    yield "<RewardFunction>"
    rewards = [(instance, _format_number(r)) for instance, _, r in transitions if r != 0]
    parents = "action model_0 state_0 state_1"
    yield from _iter_conditional("reward", parents, rewards, tag="Func", value_tag="ValueTable")
    yield "</RewardFunction>"


def _iter_state_variable(name: str, is_observed: bool, values: list[str]) -> Iterator[str]:
    """Yield the declaration of a state variable in a .pomdpx file."""
    observed_text = "true" if is_observed else "false"
    yield f'<StateVar vnamePrev="{name}_0" vnameCurr="{name}_1" fullyObs="{observed_text}">'
    yield f"<ValueEnum>{' '.join(values)}</ValueEnum></StateVar>"


def _iter_variable_values(tag: str, name: str, values: list[str]) -> Iterator[str]:
    """Yield the declaration of a variable with its values in a .pomdpx file."""
    yield f'<{tag} vname="{name}"><ValueEnum>{" ".join(values)}</ValueEnum></{tag}>'


def _iter_conditional(
    name: str,
    parents: str,
    entries: list[tuple[str, str]],
    tag: str = "CondProb",
    value_tag: str = "ProbTable",
) -> Iterator[str]:
    """Yield a conditional probability table, or another table, of a .pomdpx file."""
    yield f'<{tag}><Var>{name}</Var><Parent>{parents}</Parent><Parameter type="TBL">'
    for instance, text in entries:
        yield f"<Entry><Instance>{instance}</Instance><{value_tag}>{text}</{value_tag}></Entry>"
    yield f"</Parameter></{tag}>"
