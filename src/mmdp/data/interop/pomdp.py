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
from mmdp.data.io.writing import PathLike, get_suffix, write_atomic

BYTES_PER_LINE = 90
_NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED_NAMES = {"T", "O", "R", "discount", "values", "states", "actions", "observations"}
_RESERVED_NAMES |= {"start", "include", "exclude", "uniform", "identity", "reset", "reward", "cost"}
_RESERVED_NAMES |= {"null", "nothing"}


@check_arguments
def save_pomdp(model: MMDP, path: PathLike) -> None:
    """Write the equivalent POMDP as ``.pomdp`` or ``.pomdpx``, whole or not at all.

    States, actions and models have their labels if those are plain names (letters, digits,
    ``_`` and ``-``), otherwise they are ``s0``, ``a0``, ``m0`` and so on and the labels are in
    comments. :func:`mmdp.load` reads both formats, but no ``.pomdp`` file of models that change and
    begin in several states; from ``.pomdpx`` it gives the model back. An action that is
    not allowed repeats the lowest allowed one of its state. Models of weight 0 are left out, unless
    models change.

    >>> import tempfile, pathlib, mmdp, mmdp.interop
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[1.0], [0.0]], initial=[1, 0])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "one.pomdp"
    >>> mmdp.interop.save_pomdp(one, file)
    >>> [line for line in file.read_text().splitlines() if line.startswith("T:")]
    ['T: a0 : m0_s0 : m0_s0 0.5', 'T: a0 : m0_s0 : m0_s1 0.5', 'T: a0 : m0_s1 : m0_s1 1.0']
    """
    target = Path(path)
    writers = {".pomdp": _iter_pomdp_lines, ".pomdpx": _iter_pomdpx_lines}
    iter_lines = writers[get_suffix(target, writers, "write one of")]
    check_stationary(model, "a POMDP file")
    if model.terminal.any():
        raise InputError("a POMDP file has no terminal values; use replace(terminal=None)")
    n_next_models = np.count_nonzero(model.model_transitions) / model.n_models
    size = int(2 * BYTES_PER_LINE * np.count_nonzero(model.problem.p) * n_next_models)
    if size > MAX_DENSE_BYTES:
        raise MemoryLimitError(
            f"{target}: the file would take about {format_bytes(size)}; use fewer models "
            "(model.subset)"
        )

    def write_lines(temp_path: Path) -> None:
        with temp_path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in iter_lines(model))

    write_atomic(target, write_lines)


def _format_numbers(*values: float) -> str:
    """Format numbers with all digits, no exponent and a decimal point, for every parser."""
    return " ".join(np.format_float_positional(value, trim="0") for value in values)


def _find_kept_models(model: MMDP) -> list[int]:
    """Find the models that can occur: by weight, or all if they switch."""
    return np.flatnonzero((model.weights > 0) | model.is_switching).tolist()


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
        labels = getattr(model, f"{axis}_labels")
        for name, label in zip(_format_names(model, axis), labels, strict=True):
            if model.has_labels[axis] and name != label:
                text = " ".join(label.split()).replace("--", "- -")
                yield f"{name} is {axis} {text}"


# ---------------------------------------------------------------------- .pomdp
def _iter_pomdp_lines(model: MMDP) -> Iterator[str]:
    """Yield the lines of a .pomdp file."""
    joint, model_ids, chain = (
        model.problem.initial_joint(),
        _find_kept_models(model),
        model.model_transitions,
    )
    actions, observations = _format_names(model, "action"), _format_names(model, "state")
    beliefs = {f"m{m}_s{s}": p for m in model_ids for s, p in enumerate(joint[:, m])}
    first_states = {name: p for name, p in beliefs.items() if p > 0}
    has_start_state = bool(np.count_nonzero(joint.any(axis=1)) > 1)
    if has_start_state and not model.discount:
        raise InputError(
            "a .pomdp file has a step before the first decision if episodes begin in several "
            "states, and at discount 0 nothing counts after it; write .pomdpx"
        )
    if has_start_state:
        beliefs = dict.fromkeys(beliefs, 0.0) | {"start": 1.0}
    for comment in _iter_comments(model):
        yield f"# {comment}"
    yield (
        f"discount: {_format_numbers(model.discount)}\nvalues: reward\n"
        f"states: {' '.join(beliefs)}\nactions: {' '.join(actions)}\n"
        f"observations: {' '.join(observations + ['nothing'] * has_start_state)}\n"
        f"start: {_format_numbers(*beliefs.values())}"
    )
    if has_start_state:
        for name, p in first_states.items():
            yield f"T: * : start : {name} {_format_numbers(p)}"
        yield "O: * : start : nothing 1.0"
    for m in model_ids:
        for s, observation in enumerate(observations):
            yield f"O: * : m{m}_s{s} : {observation} 1.0"
        next_models = np.flatnonzero(chain[m]).tolist()
        for s, a, n, p, r in zip(*list_transitions(model, m), strict=True):
            for k in next_models:
                step = f"{actions[a]} : m{m}_s{s} : m{k}_s{n}"
                yield f"T: {step} {_format_numbers(p * chain[m, k])}"
                if r != 0:
                    yield f"R: {step} : * {_format_numbers(r)}"


# ---------------------------------------------------------------------- .pomdpx
def _iter_pomdpx_lines(model: MMDP) -> Iterator[str]:
    """Yield the lines of a .pomdpx file."""
    model_ids, chain = _find_kept_models(model), model.problem.model_transitions
    models, states, actions = (_format_names(model, x) for x in ("model", "state", "action"))
    yield '<?xml version="1.0" encoding="UTF-8"?>\n<pomdpx version="1.0" id="mmdp">'
    for comment in _iter_comments(model):
        yield f"<!-- {escape(comment).rstrip('-')} -->"
    yield f"<Discount>{_format_numbers(model.discount)}</Discount>\n<Variable>"
    kept_models = [models[m] for m in model_ids]
    for tag, names, values in (
        ("StateVar", 'vnamePrev="model_0" vnameCurr="model_1" fullyObs="false"', kept_models),
        ("StateVar", 'vnamePrev="state_0" vnameCurr="state_1" fullyObs="true"', states),
        ("ObsVar", 'vname="seen"', states),
        ("ActionVar", 'vname="action"', actions),
    ):
        yield f"<{tag} {names}><ValueEnum>{' '.join(values)}</ValueEnum></{tag}>"
    yield '<RewardVar vname="reward"/>\n</Variable>\n<InitialStateBelief>'
    yield from _iter_table("model_0", "null", [("-", _format_numbers(*model.weights[model_ids]))])
    rows = [_format_numbers(*row) for row in model.problem.initial.T]
    is_shared = len(rows) == 1
    entries = [("-", rows[0])] if is_shared else [(f"{models[m]} -", rows[m]) for m in model_ids]
    yield from _iter_table("state_0", "null" if is_shared else "model_0", entries)
    transitions = [
        (f"{actions[a]} {models[m]} {states[s]} {states[n]}", p, r)
        for m in model_ids
        for s, a, n, p, r in zip(*list_transitions(model, m), strict=True)
    ]
    yield "</InitialStateBelief>\n<StateTransitionFunction>"
    chain_text = "identity" if chain is None else _format_numbers(*chain.ravel())
    yield from _iter_table("model_1", "action model_0", [("* - -", chain_text)])
    probs = [(instance, _format_numbers(p)) for instance, p, _ in transitions]
    yield from _iter_table("state_1", "action model_0 state_0", probs)
    yield "</StateTransitionFunction>\n<ObsFunction>"
    yield from _iter_table("seen", "action state_1", [(f"* {s} {s}", "1.0") for s in states])
    yield "</ObsFunction>\n<RewardFunction>"
    rewards = [(instance, _format_numbers(r)) for instance, _, r in transitions if r != 0]
    parents = "action model_0 state_0 state_1"
    yield from _iter_table("reward", parents, rewards, tag="Func", value_tag="ValueTable")
    yield "</RewardFunction>\n</pomdpx>"


def _iter_table(
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
