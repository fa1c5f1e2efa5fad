"""Effect and cost of every action, read from a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.io.labels import Ints, coded
from mmdp.io.reading import Source, header, numbers, read_csv
from mmdp.io.writing import PathLike
from mmdp.model import MMDP
from mmdp.words import counted, suggested

Array = npt.NDArray[np.float64]
NEEDED = ("state", "action", "effect", "cost")
MOST_TIMES = 1_000_000  # a year in place of a number of steps would ask for an array of its size


def read_effects(file: PathLike, model: MMDP) -> tuple[Array, Array]:
    """Effects and costs, each (S, A), or (M, S, A) if the table has a column ``model``.

    With a column ``time`` (0, 1, ...) they vary with time: (T, M, S, A).

    The CSV has the columns ``state, action, effect, cost``, with the labels or ids of the model,
    and one row for every action that is allowed.

    >>> import tempfile, pathlib, mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]], actions=["wait", "treat"])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "effects.csv"
    >>> _ = file.write_text("state,action,effect,cost\\n0,wait,0,0\\n0,treat,2,100\\n")
    >>> read_effects(file, one)[1].tolist()
    [[0.0, 100.0]]
    """
    source, names = Source(Path(file)), header(Path(file))
    known = (*NEEDED, "model", "time")
    problems = [f"unknown column {suggested(x, known)}" for x in names if x not in known]
    problems += [f"no column {x!r}" for x in NEEDED if x not in names]
    if problems:
        source.fail(
            f"{'; '.join(problems)} in line 1; expected {','.join(NEEDED)}, maybe model,time"
        )
    table = read_csv(Path(file), names)
    if not len(table):
        source.fail("a header but no rows; expected one row per state and action")
    kinds = [x for x in ("time", "model", "state", "action") if x in names]
    places = tuple(_ids(table[kind], kind, model, source) for kind in kinds)
    last = int(places[0].max()) + 1 if "time" in names else 0
    sizes = {
        "time": last,
        "model": model.n_models,
        "state": model.n_states,
        "action": model.n_actions,
    }
    found = np.zeros((2, *(sizes[kind] for kind in kinds)))
    given = np.zeros(found.shape[1:], dtype=int)
    np.add.at(given, places, 1)
    _check_once(given, kinds, model, source)
    for i, name in enumerate(("effect", "cost")):
        column = numbers(table[name], name, source)
        if len(column) > 1 and np.ptp(column) == 0:
            source.fail(
                f"{name} is {column[0]:g} in this and every other line, so that no policy has more "
                "of it than another; give what each action has",
                0,
            )
        found[i][places] = column
    if "time" in names:
        found = found if "model" in names else found[:, :, None]
        found = np.broadcast_to(found, (2, last, model.n_models, *found.shape[3:]))
    return found[0], found[1]


def _ids(column: pd.Series, kind: str, model: MMDP, source: Source) -> Ints:
    if kind == "time":
        times = numbers(column, kind, source)
        wrong = ~((times >= 0) & (times == np.floor(times)) & (times < MOST_TIMES))
        source.refuse(wrong, lambda i: f"time is {times[i]:g}, not a whole number from 0 on")
        return times.astype(np.int64)
    labels = getattr(model, f"{kind}_labels")
    given = coded(column.astype(str).str.strip())
    ids = given.ids(labels)
    if ids.min() < 0:
        row = int(np.argmax(ids < 0))
        name = suggested(given.text(row), labels)
        source.fail(f"unknown {kind} {name}; use those of the model", row)
    return ids


def _check_once(
    given: npt.NDArray[np.int64], kinds: Sequence[str], model: MMDP, source: Source
) -> None:
    """Every allowed action is given once; the others may be left out."""
    wrong = (given > 1) | ((given == 0) & model.allowed)
    if wrong.any():
        place = np.argwhere(wrong)[0]
        labels = [
            int(i) if kind == "time" else getattr(model, f"{kind}_labels")[i]
            for kind, i in zip(kinds, place, strict=True)
        ]
        where = ", ".join(f"{kind} {label!r}" for kind, label in zip(kinds, labels, strict=True))
        what = "given twice" if given[tuple(place)] > 1 else "not given"
        source.fail(
            f"{where} is {what} ({counted(int(wrong.sum()), 'case')} like it); give every action "
            "once"
        )
