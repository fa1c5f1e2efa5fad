"""User functions: called with arrays by name, checked, with errors that name the mistake."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.shapes import AnyArray, Mask
from mmdp.core.text import did_you_mean, join_or, pluralize
from mmdp.data.functions.axes import AxisValues, format_row

SAME_RTOL = 1e-9  # relative difference of two calls that counts as rounding
REWARD_KEY = "the reward"  # name of the reward among the outputs of step
PROBS_KEY = "the probability"  # name of the output of event_probs
RowOutputs = dict[str, AnyArray]  # returned arrays by name, one entry per row
N_PROBE_ROWS = 20  # rows of the second call, which checks that each row is computed alone


class UnknownFieldError(KeyError):
    """An unknown field name; a KeyError, so that ``get`` and ``in`` work as usual."""


class TrackedInputs(Mapping[str, object]):
    """Read-only inputs of a user function by name, which record the names that are read."""

    def __init__(self, values: Mapping[str, object], argument: str, read_names: set[str]) -> None:
        self._values, self._argument, self._read_names = values, argument, read_names

    def __getitem__(self, name: str) -> object:
        if not self._values:
            argument = f"{self._argument}s"
            raise UnknownFieldError(
                f"it reads {name!r} of the {self._argument}, but {argument}= is not given"
            )
        if name not in self._values:
            raise UnknownFieldError(
                f"{self._argument} has no {did_you_mean(str(name), self._values)}"
            )
        self._read_names.add(name)
        value = self._values[name]
        if isinstance(value, np.ndarray):
            value = value.view()
            value.setflags(write=False)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{self._argument} with {', '.join(self._values)}"


class UserFunction:
    """A user function, called by the names of its parameters.

    ``read_fields["sample"]`` are the parameters of the sample that it has read so far.

    >>> double = UserFunction("step", lambda state: 2 * state["x"], ("state", "sample"))
    >>> double(state={"x": np.arange(3)}, sample={"p": 0.5}).tolist()
    [0, 2, 4]
    >>> sorted(double.read_fields["state"])
    ['x']
    """

    def __init__(self, name: str, function: object, allowed_names: tuple[str, ...]) -> None:
        if not callable(function):
            raise InputError(f"{name} must be a function, not {type(function).__name__}")
        self.name, self.function = name, function
        self.argument_names = _check_parameters(name, function, allowed_names)
        self.read_fields: dict[str, set[str]] = {argument: set() for argument in allowed_names}

    def __call__(self, **arguments: object) -> Any:
        inputs = {name: x for name, x in arguments.items() if name in self.argument_names}
        for name, x in inputs.items():
            if isinstance(x, Mapping):
                inputs[name] = TrackedInputs(x, name, self.read_fields[name])
        try:
            return self.function(**inputs)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{self.name}: {_explain_error(error)}") from error


def _check_parameters(
    name: str, function: Callable[..., object], allowed_names: tuple[str, ...]
) -> frozenset[str]:
    """Find the parameters that a function takes, and refuse unknown ones."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions that are compiled do not say
        return frozenset(allowed_names)
    if any(x.kind == x.VAR_KEYWORD for x in parameters):
        return frozenset(allowed_names)
    used_names = {x.name for x in parameters if x.default is x.empty or x.name in allowed_names}
    known_names = {x.name for x in parameters if x.kind != x.POSITIONAL_ONLY} & {*allowed_names}
    unknown = next((x.name for x in parameters if x.name in used_names - known_names), None)
    if unknown is not None:
        raise InputError(
            f"{name} has an unknown parameter {unknown!r}; it may have "
            f"{join_or(allowed_names)}, each by this name"
        )
    return frozenset(used_names)


def _explain_error(error: Exception) -> str:
    """Explain an exception of a user function, and how to correct common mistakes."""
    text = str(error.args[0]) if error.args else ""
    if "truth value of an array" in text:
        return (
            "an `if`, `and`, `or`, `min` or `max` on whole arrays; it is called with many rows at "
            "once: write np.where(condition, a, b), &, |, np.minimum and np.maximum"
        )
    if "read-only" in text or "does not support item assignment" in text:
        return "it changes what it was given; make new arrays, or copy before you change them"
    if isinstance(error, UnknownFieldError):
        return text
    return f"it raised {type(error).__name__}: {text}"


def call_elementwise(
    name: str, call: Callable[..., RowOutputs], values: AxisValues, n_rows: int, m: int, t: int
) -> RowOutputs:
    """Call a function for rows; refuse it if outputs change when some rows are called alone.

    ``call(values, n_rows, m, t)`` calls it; only sample 0 is called again.
    """
    outputs = call(values, n_rows, m, t)
    if m > 0:
        return outputs
    all_probes = np.unique(np.random.default_rng(0).integers(n_rows, size=N_PROBE_ROWS))
    for probes in (all_probes[: (n_rows + 1) // 2], all_probes[-1:]):
        probe_values = {k: v[probes] for k, v in values.items()}
        for key, probe_outputs in call(probe_values, len(probes), m, t).items():
            expected = outputs[key][probes]
            differs = ~_is_close(probe_outputs, expected).reshape(len(probes), -1).all(axis=1)
            if not differs.any():
                continue
            repeated_outputs = call(values, n_rows, m, t)
            if not all(_is_close(repeated_outputs[k], outputs[k]).all() for k in repeated_outputs):
                raise InputError(
                    f"{name} returns other numbers when it is called again; it must not draw "
                    "random numbers: describe randomness by events= and event_probs="
                )
            i = int(np.argmax(differs))
            raise InputError(
                f"{name} is not elementwise: at {format_row(probe_values, i)} {key} is "
                f"{expected[i]} if {pluralize(n_rows, 'row')} are called together and "
                f"{probe_outputs[i]} if {len(probes)} of them are; each row may use its own "
                "entries only (no sums, sorting or positions over rows)"
            )
    return outputs


def _is_close(a: AnyArray, b: AnyArray) -> Mask:
    """Compare two arrays elementwise, up to rounding if they are numbers."""
    if a.dtype.kind in "USO" or b.dtype.kind in "USO":
        return np.asarray(a == b)
    scale = float(np.nan_to_num(np.abs(b)).max(initial=0.0))
    return np.isclose(a, b, rtol=SAME_RTOL, atol=SAME_RTOL * scale, equal_nan=True)
