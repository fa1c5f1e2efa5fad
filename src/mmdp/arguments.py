"""Checks of arguments at the public functions, by their annotations.

:func:`checked` decorates a function or a class. Before each call it compares the arguments with
their annotations, and what does not fit is an :class:`mmdp.InputError`. Numbers with a range have
types of their own here, such as :data:`PositiveInt` and :data:`Seconds`. NaN is no number, and
True is none. What arrays, files and mappings hold is checked by those who read them.
"""

from __future__ import annotations

import ast
import collections.abc
import functools
import inspect
import math
import numbers
import os
import sys
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, Unpack, get_args, get_origin

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.words import counted, either, suggested

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
SHORT = 30  # letters of a value that is shown; of others, the type


class Rule(NamedTuple):
    """What the values of a type must also be, and how a message calls them."""

    holds: Callable[[Any], bool]
    text: str


READ = Rule(lambda _: True, "")
Read = Annotated[T, READ]  # whoever reads the value says more about what is wrong with it
PositiveInt = Annotated[int, Rule(lambda x: x >= 1, "a whole number of at least 1")]
NonNegativeInt = Annotated[int, Rule(lambda x: x >= 0, "a whole number of at least 0")]
FiniteFloat = Annotated[float, Rule(math.isfinite, "a finite number")]
PositiveFloat = Annotated[float, Rule(lambda x: 0 < x < math.inf, "a positive number")]
NonNegativeFloat = Annotated[float, Rule(lambda x: 0 <= x < math.inf, "a number of at least 0")]
Probability = Annotated[float, Rule(lambda x: 0 <= x <= 1, "a number from 0 to 1")]
Seconds = Annotated[float, Rule(lambda x: x > 0, "a positive number of seconds")]  # inf: no limit
Seed = NonNegativeInt | None


def _numbers(ndim: int) -> Rule:
    """Of arrays of numbers with this number of axes."""

    def holds(value: Any) -> bool:
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            return False
        return array.ndim == ndim and array.size > 0 and not np.isnan(array).any()

    return Rule(holds, f"an array of numbers with {counted(ndim, 'axis', 'axes')}")


def _is_label(value: Any) -> bool:
    return isinstance(value, Hashable) and value is not None and value == value  # not NaN


Label = Annotated[object, Rule(_is_label, "text or a number")]
Vector = Annotated[npt.ArrayLike, _numbers(1)]
Matrix = Annotated[npt.ArrayLike, _numbers(2)]
Array3D = Annotated[npt.ArrayLike, _numbers(3)]
ARRAYS = set(get_args(getattr(npt.ArrayLike, "__value__", npt.ArrayLike)))  # as below
# modules that are loaded when they are used, by the name that annotations give them
ELSEWHERE = {"pd": "pandas", "Axes": "matplotlib.axes", "gymnasium": "gymnasium"}
TEXTS: dict[Any, str] = {
    type(None): "None", bool: "True or False", int: "a whole number", float: "a number",
    str: "text", collections.abc.Callable: "a function", os.PathLike: "a path",
    collections.abc.Mapping: "a mapping such as a dict", np.ndarray: "an array",
    collections.abc.Sequence: "a sequence", collections.abc.Iterable: "a sequence",
    collections.abc.Collection: "a sequence", tuple: "a tuple", list: "a list",
}  # fmt: skip
REMEDIES = {"an MMDP": "use mmdp.load(path) for files"}
NUMBERS: dict[Any, Any] = {
    bool: bool, int: numbers.Integral, float: numbers.Real, complex: numbers.Complex,
}  # fmt: skip
SEQUENCES = (
    tuple, list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection,
)  # fmt: skip


def checked(function: F) -> F:
    """Refuse arguments of a function, or of a class, that do not fit their annotations.

    >>> @checked
    ... def double(x: float, times: PositiveInt = 1) -> float:
    ...     return 2**times * x
    >>> double(2.5)
    5.0
    >>> double("2")
    Traceback (most recent call last):
    mmdp.errors.InputError: x must be a number, not '2'
    >>> double(2, times=0)
    Traceback (most recent call last):
    mmdp.errors.InputError: times must be a whole number of at least 1, not 0
    """
    if inspect.isclass(function):
        function.__init__ = checked(function.__init__)  # type: ignore[method-assign]
        return function
    signature = inspect.signature(function)
    name, known = function.__qualname__.removesuffix(".__init__"), signature.parameters
    several = any(x.kind is x.VAR_KEYWORD for x in known.values())

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for unknown in () if several else kwargs.keys() - known.keys():
            raise InputError(f"{name}() has no argument {suggested(unknown, known)}")
        hints, given = _hints(function), signature.bind(*args, **kwargs).arguments
        for argument, value in {**given, **kwargs}.items():
            if argument in hints:
                _check(argument, value, hints[argument])
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def _check(name: str, value: Any, hint: Any) -> None:
    if fits(value, hint):
        return
    parts, shown = _parts(hint), type(value).__name__
    choices = [x for part in parts if get_origin(part) is Literal for x in get_args(part)]
    if isinstance(value, str) and choices:
        shown = suggested(value, choices)
    elif value is None or isinstance(value, (bool, numbers.Real)) or len(repr(value)) <= SHORT:
        shown = repr(value)
    remedies = [REMEDIES[x] for x in map(_text, parts) if x in REMEDIES]
    expected = either(dict.fromkeys(map(_text, parts)))
    raise InputError(f"{name} must be {expected}, not {shown}", remedies)


# ---------------------------------------------------------------------- annotations
@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters, and of the options that ``**options`` unpacks."""
    own = inspect.unwrap(function)
    found: dict[str, Any] = {}
    module = sys.modules[own.__module__]
    for parameter in inspect.signature(own).parameters.values():
        if parameter.annotation is parameter.empty or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        hint = _read(parameter.annotation, module)
        if get_origin(hint) is Unpack:
            (options,) = get_args(hint)
            home = sys.modules[options.__module__]
            found |= {x: _read(y, home) for x, y in options.__annotations__.items()}
        elif parameter.kind is not parameter.VAR_KEYWORD:
            found[parameter.name] = hint | None if parameter.default is None else hint
    return found


def _read(annotation: Any, module: types.ModuleType) -> Any:
    """The type that an annotation, most often text, stands for."""
    annotation = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(annotation, str):
        return annotation
    names = {x.id for x in ast.walk(ast.parse(annotation)) if isinstance(x, ast.Name)}
    space = {**vars(sys.modules["mmdp"]), **vars(module)}
    for name in names - space.keys() - vars(sys.modules["builtins"]).keys():
        space[name] = _loaded(name)
    return eval(annotation, space)


def _loaded(name: str) -> Any:
    """What an annotation names that its module imports for type checkers only."""
    if name in ELSEWHERE:
        found = sys.modules.get(ELSEWHERE[name])
        return found if name in ("pd", "gymnasium") else getattr(found, name, Unloaded)
    return next(vars(x)[name] for key, x in list(sys.modules.items())
                if key.startswith("mmdp.") and name in vars(x))  # fmt: skip


class Unloaded:
    """A class of a module that is not loaded, so that no value is of it."""


def _parts(hint: Any) -> list[Any]:
    """The alternatives of a type; one if it is no union, and one for everything like an array."""
    hint = getattr(hint, "__value__", hint)  # of an alias, as some versions of numpy have them
    if get_origin(hint) not in (Union, types.UnionType):
        return [hint]
    parts = get_args(hint)
    if set(parts) >= ARRAYS:
        parts = (*(x for x in parts if x not in ARRAYS), np.ndarray)
    return [y for x in parts for y in _parts(x)]


def _text(hint: Any) -> str:
    """One alternative as a message names it."""
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return str(arguments[1].text)
    if origin is Literal:
        return f"one of {either(map(repr, arguments))}" if arguments[1:] else repr(arguments[0])
    if origin in SEQUENCES and arguments and arguments[0] not in (Any, object):
        return f"{TEXTS[origin]} (each {either(map(_text, _parts(arguments[0])))})"
    name: str = getattr(origin, "__name__", str(origin))
    return TEXTS.get(origin) or f"{'an' if name[0] in 'AEIO' or name == 'MMDP' else 'a'} {name}"


# ---------------------------------------------------------------------- values
def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as that is checked.

    >>> fits(1, float), fits(True, int), fits(math.nan, float), fits(["a"], list[str])
    (True, False, False, True)
    """
    return any(_is(value, part) for part in _parts(hint))


def _is(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin in (Any, object) or isinstance(origin, TypeVar):
        return True
    if origin is Annotated:
        read = READ in arguments
        return read or (fits(value, arguments[0]) and bool(arguments[1].holds(value)))
    if origin is Literal:
        return any(type(value) is type(x) and value == x for x in arguments)
    if origin is None:
        return value is None
    if origin in NUMBERS:
        truth = isinstance(value, (bool, np.bool_))
        number = isinstance(value, NUMBERS[origin]) and not truth and value == value  # not NaN
        return truth if origin is bool else number
    if origin is np.ndarray:
        return _is_array(value)
    if origin is collections.abc.Mapping:
        named = isinstance(value, Mapping) or hasattr(value, "items")
        return named and all(fits(x, arguments[1]) for _, x in value.items() if arguments)
    if origin in SEQUENCES:
        return _is_sequence(value, origin, arguments)
    return isinstance(value, origin)


def _is_array(value: Any) -> bool:
    """Like an array, of one shape; or a mapping by labels, which its reader puts in order."""
    if value is None or callable(value) or isinstance(value, (str, bytes, bool, np.bool_)):
        return False
    if hasattr(value, "shape") or hasattr(value, "items"):
        return True
    if not isinstance(value, Iterable):
        return fits(value, float | complex)
    try:
        return np.asarray([*value]).ndim > 0
    except ValueError:  # of several shapes
        return any(hasattr(x, "items") for x in value)


def _is_sequence(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    """Any iterable will do, as arrays and pandas' columns are no Sequence; sets have no order."""
    letters = isinstance(value, str) and arguments == (str,)  # most often meant as one entry
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)) or letters:
        return False
    if not isinstance(value, (list, tuple, range, str, np.ndarray)):
        return origin is not tuple
    if origin is tuple and arguments[-1:] != (...,):
        pairs = zip(value, arguments, strict=False)
        return len(value) == len(arguments) and all(fits(x, y) for x, y in pairs)
    if not arguments or arguments[0] in (Any, object):
        return True
    return all(fits(x, arguments[0]) for x in value)
