"""A user's function: called with arrays by name, watched, and its mistakes put into words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.words import counted, either, suggested

SAME = 1e-9  # relative difference of two calls that is rounding
ALONE = 20  # rows that are called again by themselves


class NoField(KeyError):
    """An unknown name; a KeyError, so that ``get`` and ``in`` work as usual."""


class Fields(Mapping[str, Any]):
    """What a function is given by name: arrays that it may not change; what it reads is noted."""

    def __init__(self, values: Mapping[str, Any], what: str, read: set[str]) -> None:
        self._values, self._what, self._read = values, what, read

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise NoField(f"{self._what} has no {suggested(str(name), self._values)}")
        self._read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{self._what} with {', '.join(self._values)}"


class Function:
    """A function of the user's, called by the names of its parameters.

    ``reads["draw"]`` are the fields of the draw that it has asked for so far.

    >>> double = Function("step", lambda state: 2 * state["x"], ("state", "draw"))
    >>> double(state={"x": np.arange(3)}, draw={"p": 0.5}).tolist(), sorted(double.reads["state"])
    ([0, 2, 4], ['x'])
    """

    def __init__(self, name: str, function: Any, known: tuple[str, ...]) -> None:
        self.name, self.function = name, function
        if not callable(function):
            raise InputError(f"{name} must be a function, not {type(function).__name__}")
        self.takes = _parameters(name, function, known)
        self.reads: dict[str, set[str]] = {what: set() for what in known}

    def __call__(self, **given: Any) -> Any:
        asked = {
            what: Fields({k: _still(v) for k, v in x.items()}, what, self.reads[what])
            if isinstance(x, Mapping)
            else x
            for what, x in given.items()
            if what in self.takes
        }
        try:
            return self.function(**asked)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{self.name}: {_mistake(error)}") from error

    def per_draw(self) -> bool:
        """Whether it has read anything of a draw."""
        return bool(self.reads.get("draw"))


def _parameters(name: str, function: Callable[..., Any], known: tuple[str, ...]) -> frozenset[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions that are compiled do not say
        return frozenset(known)
    if any(x.kind == x.VAR_KEYWORD for x in parameters):
        return frozenset(known)
    needed = [x for x in parameters if x.default is x.empty or x.name in known]
    strange = [x for x in needed if x.name not in known or x.kind == x.POSITIONAL_ONLY]
    if strange:
        raise InputError(
            f"{name} has a parameter {strange[0].name!r}; it may have {either(known)}, each by "
            "this name"
        )
    return frozenset(x.name for x in needed)


def _still(value: Any) -> Any:
    """A view that cannot be written to."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.setflags(write=False)
    return value


def _mistake(error: Exception) -> str:
    """What the user did, from what numpy said about it."""
    text = str(error.args[0]) if error.args else ""
    if "truth value of an array" in text:
        return (
            "an `if`, `and`, `or` or `max` on whole arrays; it is called with many rows at once: "
            "write np.where(condition, a, b), &, | and np.maximum"
        )
    if "read-only" in text or "does not support item assignment" in text:
        return "it changes what it was given; make new arrays, or copy before you change them"
    if isinstance(error, NoField):
        return text
    return f"it raised {type(error).__name__}: {text}"


Answer = dict[str, npt.NDArray[Any]]  # by name of what a function returned, one entry per row


def check_elementwise(
    name: str, ask: Callable[[npt.NDArray[np.int64]], Answer], count: int, answer: Answer,
    where: Callable[[int], str],
) -> None:  # fmt: skip
    """Refuse a function whose answer for some rows changes if they are called alone.

    ``ask`` calls it with the rows of these numbers; ``answer`` is what it said to all of them.
    """
    some = np.unique(np.random.default_rng(0).integers(count, size=ALONE))
    for rows in (some[: (count + 1) // 2], some[-1:]):
        for key, values in ask(rows).items():
            bad = ~_same(values, answer[key][rows]).reshape(len(rows), -1).all(axis=1)
            if not bad.any():
                continue
            again = ask(np.arange(count))
            if not all(_same(again[k], answer[k]).all() for k in again):
                raise InputError(
                    f"{name} returns other numbers when it is called again; it must not draw "
                    "random numbers: describe what is random by events= and chance="
                )
            i = int(np.argmax(bad))
            raise InputError(
                f"{name} is not elementwise: at {where(int(rows[i]))} {key} is "
                f"{answer[key][rows[i]]} if {counted(count, 'row')} are called together and "
                f"{values[i]} if {len(rows)} of them are; each row may use its own entries only "
                "(no sums, sorting or positions over rows)"
            )


def _same(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if a.dtype.kind in "USO" or b.dtype.kind in "USO":
        return np.asarray(a == b)
    scale = float(np.nan_to_num(np.abs(b)).max(initial=0.0))
    return np.isclose(a, b, rtol=SAME, atol=SAME * scale, equal_nan=True)
