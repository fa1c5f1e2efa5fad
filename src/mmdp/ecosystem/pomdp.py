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
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from mmdp.arguments import checked
from mmdp.ecosystem._one_model import check_stationary, entries_of
from mmdp.errors import InputError, MemoryLimitError
from mmdp.io.writing import PathLike, write_whole
from mmdp.model import MMDP
from mmdp.support import MATERIALISE_LIMIT
from mmdp.words import readable_bytes

BYTES_A_LINE = 90
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = (
    {"T", "O", "R", "discount", "values", "states", "actions", "observations", "start"}
    | {"uniform", "identity", "reset", "include", "exclude", "reward", "cost", "null", "nothing"}
)  # fmt: skip


@checked
def save_pomdp(model: MMDP, path: PathLike) -> None:
    """Write the equivalent POMDP as ``.pomdp`` or ``.pomdpx``, whole or not at all.

    States, actions and models have their labels if those are plain names (letters, digits,
    ``_`` and ``-``), otherwise they are ``s0``, ``a0``, ``m0`` and so on and the labels are in
    comments. :func:`mmdp.load` reads both formats; from ``.pomdpx`` it gives the model back. An
    action that is not allowed repeats the lowest allowed one of its state. Models
    of weight 0 are left out, unless models change.

    >>> import tempfile, pathlib, mmdp, mmdp.ecosystem
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[1.0], [0.0]], initial=[1, 0])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "one.pomdp"
    >>> mmdp.ecosystem.save_pomdp(one, file)
    >>> [line for line in file.read_text().splitlines() if line.startswith("T:")]
    ['T: a0 : m0_s0 : m0_s0 0.5', 'T: a0 : m0_s0 : m0_s1 0.5', 'T: a0 : m0_s1 : m0_s1 1.0']
    """
    target = Path(path)
    writers = {".pomdp": _pomdp_lines, ".pomdpx": _pomdpx_lines}
    if target.suffix.lower() not in writers:
        raise InputError(f"{target}: unknown suffix {target.suffix!r}; write .pomdp or .pomdpx")
    check_stationary(model, "the POMDP formats")
    if model.terminal.any():
        raise InputError("the POMDP formats have no terminal values; use replace(terminal=None)")
    changes = int(np.count_nonzero(model.model_transitions)) if model.drifts else model.n_models
    size = 2 * BYTES_A_LINE * int(np.count_nonzero(model.problem.p)) * changes // model.n_models
    if size > MATERIALISE_LIMIT:
        raise MemoryLimitError(
            f"{target}: the file would take about {readable_bytes(size)}; use fewer models "
            "(model.subset)"
        )

    def write(place: Path) -> None:
        with place.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in writers[target.suffix.lower()](model))

    write_whole(target, write)


def _number(value: float) -> str:
    """All digits, no exponent, one digit after the point: what every parser reads."""
    return np.format_float_positional(value, trim="0")


def _kept(model: MMDP) -> list[int]:
    return np.flatnonzero((model.weights > 0) | model.drifts).tolist()


def _after(model: MMDP, m: int) -> list[tuple[int, float]]:
    """The models that may hold after model m, with their probabilities."""
    if model.problem.drift is None:
        return [(m, 1.0)]
    row = model.problem.drift[m]
    return [(n, float(row[n])) for n in np.flatnonzero(row).tolist()]


def _names(model: MMDP, kind: str) -> list[str]:
    """The labels of a kind if all are plain names, else letters with numbers."""
    labels: tuple[str, ...] = getattr(model, f"{kind}_labels")
    plain = model.labelled[kind] and all(_NAME.fullmatch(x) for x in labels)
    if plain and _RESERVED.isdisjoint(labels):
        return list(labels)
    return [f"{kind[0]}{i}" for i in range(len(labels))]


def _comments(model: MMDP) -> Iterator[str]:
    """Labels, one per line, with line breaks and dashes that would end a comment made harmless."""
    yield "written by mmdp: the hidden state is (model, state), the observation is the state"
    for kind in ("state", "action", "model"):
        for name, label in zip(_names(model, kind), getattr(model, f"{kind}_labels"), strict=True):
            if model.labelled[kind] and name != label:
                text = " ".join(label.split()).replace("--", "- -")
                yield f"{name} is {kind} {text}"


# ---------------------------------------------------------------------- .pomdp
def _pomdp_lines(model: MMDP) -> Iterator[str]:
    kept, n_states, seen = _kept(model), model.n_states, _names(model, "state")
    b = model.problem.start()
    start = np.flatnonzero(b.any(axis=1))
    added = len(start) > 1
    if added and not model.discount:
        raise InputError(
            "a .pomdp file has a step before the first decision if episodes begin in several "
            "states, and at discount 0 nothing counts after it; write .pomdpx"
        )
    names = [f"m{m}_s{s}" for m in kept for s in range(n_states)] + ["start"] * added
    for comment in _comments(model):
        yield f"# {comment}"
    yield f"discount: {_number(model.discount)}"
    yield "values: reward"
    yield f"states: {' '.join(names)}"
    yield f"actions: {' '.join(_names(model, 'action'))}"
    yield f"observations: {' '.join(seen + ['nothing'] * added)}"
    belief = [0.0 if added else b[s, m] for m in kept for s in range(n_states)]
    yield f"start: {' '.join(map(_number, belief + [1.0] * added))}"
    if added:
        for m in kept:
            for s in start:
                yield f"T: * : start : m{m}_s{s} {_number(b[s, m])}"
        yield "O: * : start : nothing 1.0"
    for m in kept:
        yield from _pomdp_model(model, m)


def _pomdp_model(model: MMDP, m: int) -> Iterator[str]:
    e = entries_of(model, m, fill=True)
    act, seen = _names(model, "action"), _names(model, "state")
    after = _after(model, m)
    for s, a, n, p in zip(e.state, e.action, e.next_state, e.probability, strict=True):
        for k, chance in after:
            yield f"T: {act[a]} : m{m}_s{s} : m{k}_s{n} {_number(p * chance)}"
    for s in range(model.n_states):
        yield f"O: * : m{m}_s{s} : {seen[s]} 1.0"
    for s, a, n, r in zip(e.state, e.action, e.next_state, e.reward, strict=True):
        for k, _ in after if r != 0 else []:
            yield f"R: {act[a]} : m{m}_s{s} : m{k}_s{n} : * {_number(r)}"


# ---------------------------------------------------------------------- .pomdpx
def _pomdpx_lines(model: MMDP) -> Iterator[str]:
    kept = _kept(model)
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield '<pomdpx version="1.0" id="mmdp">'
    for comment in _comments(model):
        yield f"<!-- {escape(comment).rstrip('-')} -->"
    yield f"<Discount>{_number(model.discount)}</Discount>"
    yield "<Variable>"
    models, states = _names(model, "model"), _names(model, "state")
    yield from _state_variable("model", False, [models[m] for m in kept])
    yield from _state_variable("state", True, states)
    yield from _values("ObsVar", "seen", states)
    yield from _values("ActionVar", "action", _names(model, "action"))
    yield '<RewardVar vname="reward"/>'
    yield "</Variable>"
    yield "<InitialStateBelief>"
    weights = " ".join(_number(model.weights[m]) for m in kept)
    yield from _conditional("model_0", "null", [("-", weights)])
    rows = [" ".join(map(_number, row)) for row in model.problem.initial.T]
    if len(rows) == 1:
        yield from _conditional("state_0", "null", [("-", rows[0])])
    else:
        first = [(f"{models[m]} -", rows[m]) for m in kept]
        yield from _conditional("state_0", "model_0", first)
    yield "</InitialStateBelief>"
    yield from _pomdpx_dynamics(model, kept)
    yield "</pomdpx>"


def _pomdpx_dynamics(model: MMDP, kept: list[int]) -> Iterator[str]:
    parts = {m: entries_of(model, m, fill=True) for m in kept}
    models, states, act = (_names(model, kind) for kind in ("model", "state", "action"))
    names = [
        (f"{act[a]} {models[m]} {states[s]} {states[n]}", p, r)
        for m, e in parts.items()
        for s, a, n, p, r in zip(*e, strict=True)
    ]
    yield "<StateTransitionFunction>"
    chain = "identity"
    if model.problem.drift is not None:
        chain = " ".join(map(_number, model.problem.drift.ravel()))
    yield from _conditional("model_1", "action model_0", [("* - -", chain)])
    yield from _conditional(
        "state_1", "action model_0 state_0", [(place, _number(p)) for place, p, _ in names]
    )
    yield "</StateTransitionFunction>"
    yield "<ObsFunction>"
    seen = [(f"* {s} {s}", "1.0") for s in states]
    yield from _conditional("seen", "action state_1", seen)
    yield "</ObsFunction>"
    yield "<RewardFunction>"
    rewards = [(place, _number(r)) for place, _, r in names if r != 0]
    parents = "action model_0 state_0 state_1"
    yield from _conditional("reward", parents, rewards, outer="Func", value="ValueTable")
    yield "</RewardFunction>"


def _state_variable(name: str, seen: bool, values: list[str]) -> Iterator[str]:
    known = "true" if seen else "false"
    yield f'<StateVar vnamePrev="{name}_0" vnameCurr="{name}_1" fullyObs="{known}">'
    yield f"<ValueEnum>{' '.join(values)}</ValueEnum></StateVar>"


def _values(tag: str, name: str, values: list[str]) -> Iterator[str]:
    yield f'<{tag} vname="{name}"><ValueEnum>{" ".join(values)}</ValueEnum></{tag}>'


def _conditional(
    name: str, parents: str, entries: list[tuple[str, str]], outer: str = "CondProb",
    value: str = "ProbTable",
) -> Iterator[Any]:  # fmt: skip
    yield f'<{outer}><Var>{name}</Var><Parent>{parents}</Parent><Parameter type="TBL">'
    for instance, text in entries:
        yield f"<Entry><Instance>{instance}</Instance><{value}>{text}</{value}></Entry>"
    yield f"</Parameter></{outer}>"
