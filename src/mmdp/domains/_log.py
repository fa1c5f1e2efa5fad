"""The log that a posterior is drawn from: published, simulated from a seed, or your own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.domains._common import DATA, generators
from mmdp.errors import InputError

COLUMNS = ("state", "action", "next_state")


class Log(NamedTuple):
    """(n,) states, actions and next states of logged steps."""

    state: npt.NDArray[np.int64]
    action: npt.NDArray[np.int64]
    next_state: npt.NDArray[np.int64]


def read_log(
    log: Any, domain: str, simulate: Callable[[np.random.Generator], Log], n_states: int,
    n_actions: int,
) -> Log:  # fmt: skip
    """The log of ``domain`` that ``log`` means: ``"published"``, a seed or a table of steps.

    A table is a DataFrame with the columns ``state, action, next_state``, or an (n, 3) array
    of the same.

    >>> read_log([[0, 1, 1], [1, 1, 2]], "riverswim", None, 20, 2).next_state.tolist()
    [1, 2]
    """
    if isinstance(log, str) and log == "published":
        with (DATA / f"{domain}_log.csv").open(encoding="utf-8") as file:
            log = np.loadtxt(file, dtype=np.int64, delimiter=",", skiprows=1)
    elif isinstance(log, (int, np.integer)):
        return simulate(*generators(log, 1))
    return Log(*_steps(log, np.array([n_states, n_actions, n_states])).T)


def _steps(table: Any, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(n, 3) checked ids of a table of steps."""
    if hasattr(table, "columns") and set(COLUMNS) <= set(table.columns):
        table = table[list(COLUMNS)]
    steps = np.asarray(table)
    if steps.ndim != 2 or steps.shape[1] != 3 or not len(steps) or steps.dtype.kind not in "iu":
        raise InputError(
            'log must be "published", a seed, or a table of whole numbers with the columns '
            f"{', '.join(COLUMNS)}"
        )
    wrong = np.argwhere((steps < 0) | (steps >= sizes))
    if len(wrong):
        step, column = wrong[0]
        raise InputError(
            f"log has {COLUMNS[column]} {steps[step, column]} in step {step}; "
            f"it must be from 0 to {sizes[column] - 1}"
        )
    return steps.astype(np.int64)
