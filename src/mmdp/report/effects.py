"""Effect and cost of every action, read from a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.arguments import checked
from mmdp.economics.counting import Amounts
from mmdp.io.labels import Ints, coded
from mmdp.io.reading import Source, header, numbers, read_csv
from mmdp.io.writing import PathLike
from mmdp.model import MMDP
from mmdp.words import counted, suggested

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
NEEDED, MORE = ("state", "action", "effect", "cost"), ("model", "time", "next_state")
MOST_TIMES = 1_000_000  # a year in place of a number of steps would ask for an array of its size


@checked
def read_effects(file: PathLike, model: MMDP) -> tuple[Amounts, Amounts]:
    """Effects and costs, each (S, A), or (M, S, A) if the table has a column ``model``.

    The CSV has the columns ``state, action, effect, cost``, with the labels or ids of the model,
    and one row for every action that is allowed. With a column ``time`` (0, 1, ...) they vary with
    time: (T, M, S, A); labels of times, such as ages, may stand next to it. A row whose column
    ``next_state`` is not blank has what happens once, on the way to that state; then each is a
    mapping with ``rewards`` and ``next_rewards``.

    >>> import tempfile, pathlib, mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]], actions=["wait", "treat"])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "effects.csv"
    >>> _ = file.write_text("state,action,effect,cost\\n0,wait,0,0\\n0,treat,2,100\\n")
    >>> read_effects(file, one)[1].tolist()
    [[0.0, 100.0]]
    """
    source, names = Source(Path(file)), header(Path(file))
    known, named = (*NEEDED, *MORE), "time" in names and bool(model.times.labels)
    others = [x for x in names if x not in known and not (named and x == model.times.column)]
    problems = [f"unknown column {suggested(x, known)}" for x in others]
    problems += [f"no column {x!r}" for x in NEEDED if x not in names]
    if problems:
        source.fail(
            f"{'; '.join(problems)} in line 1; expected {','.join(NEEDED)}, maybe {','.join(MORE)}"
            ", where time counts from 0"
        )
    table = read_csv(Path(file), names)
    if not len(table):
        source.fail("a header but no rows; expected one row per state and action")
    amounts = [numbers(table[name], name, source) for name in ("effect", "cost")]
    kinds: list[str] = [x for x in ("time", "model", "state", "action") if x in names]
    places = [_ids(table[kind], kind, model, source) for kind in kinds]
    sizes = [model.n_models if kind == "model" else model.allowed.shape[kind == "action"]
             for kind in kinds]  # fmt: skip
    if "time" in names:
        sizes[0] = int(places[0].max()) + 1
    moves = np.zeros(len(table), dtype=bool)
    if "next_state" in names:
        moves = (table["next_state"].str.strip() != "").to_numpy()

    def spread(rows: Mask, needed: Mask | bool) -> Array:
        """(2, ...) effect and cost of these rows by place; with time, of every model."""
        at = tuple(place[rows] for place in places)
        given, found = np.zeros(sizes, dtype=int), np.zeros((2, *sizes))
        np.add.at(given, at, 1)
        _check_once(given, kinds, needed, model, source)
        for own, column in zip(found, amounts, strict=True):
            own[at] = column[rows]
        if "time" not in names:
            return found
        found = found if "model" in names else found[:, :, None]
        return np.broadcast_to(found, (2, sizes[0], model.n_models, *found.shape[3:]))

    stay = spread(~moves, model.allowed)
    for name, column in zip(("effect", "cost"), amounts, strict=True):
        _check_differs(column, name, source)
    if not moves.any():
        return stay[0], stay[1]
    to = table["next_state"].where(moves, model.state_labels[0])
    kinds, sizes = [*kinds, "next_state"], [*sizes, model.n_states]
    places = [*places, _ids(to, "next_state", model, source)]
    move = spread(moves, False)
    effect, cost = ({"rewards": x, "next_rewards": y} for x, y in zip(stay, move, strict=True))
    return effect, cost


def _check_differs(column: Array, name: str, source: Source) -> None:
    if len(column) > 1 and np.ptp(column) == 0:
        source.fail(
            f"{name} is {column[0]:g} in this and every other line, so that no policy has more "
            "of it than another; give what each action has",
            0,
        )


def _labels(model: MMDP, kind: str) -> Sequence[str]:
    return getattr(model, f"{kind.removeprefix('next_')}_labels")  # type: ignore[no-any-return]


def _ids(column: pd.Series, kind: str, model: MMDP, source: Source) -> Ints:
    if kind == "time":
        times = numbers(column, kind, source)
        wrong = ~((times >= 0) & (times == np.floor(times)) & (times < MOST_TIMES))
        source.refuse(wrong, lambda i: f"time is {times[i]:g}, not a whole number from 0 on")
        return times.astype(np.int64)
    labels = _labels(model, kind)
    given = coded(column.astype(str).str.strip())
    ids = given.ids(labels)
    if ids.min() < 0:
        row = int(np.argmax(ids < 0))
        name = suggested(given.text(row), labels)
        source.fail(f"unknown {kind} {name}; use those of the model", row)
    return ids


def _check_once(
    given: Ints, kinds: Sequence[str], needed: Mask | bool, model: MMDP, source: Source
) -> None:
    """What is needed is given once; the others may be left out."""
    wrong = (given > 1) | ((given == 0) & needed)
    if wrong.any():
        place = np.argwhere(wrong)[0]
        labels = [
            int(i) if kind == "time" else _labels(model, kind)[i]
            for kind, i in zip(kinds, place, strict=True)
        ]
        where = ", ".join(f"{kind} {label!r}" for kind, label in zip(kinds, labels, strict=True))
        what = "given twice" if given[tuple(place)] > 1 else "not given"
        source.fail(
            f"{where} is {what} ({counted(int(wrong.sum()), 'case')} like it); give every action "
            "once"
        )
