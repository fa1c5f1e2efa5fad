"""Checks of arguments at the public functions, by their annotations.

:func:`check_arguments` decorates a function or a class. Before each call it compares the arguments
with their annotations; a value of another type is an :class:`mmdp.InputError`. Numbers with a
range have types of their own here, such as :data:`PositiveInt` and :data:`Seconds`. NaN is no
number, and True is none. Whole numbers other than seeds have at most 64 bits, and a range must fit
into memory. What arrays, files and mappings hold is checked by those who read them. A call that
takes long is shown in the progress line (:class:`mmdp.core.timing.ProgressLine`).
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import math
import numbers
import os
import sys
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeGuard,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
)

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError, check_memory
from mmdp.core.text import did_you_mean, join_or, pluralize
from mmdp.core.timing import progress_line

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")
METHOD_OPTIONS_HINT = (
    "give options of a method to it, as in method=mmdp.methods.CADP(n_init=16), and those of a "
    "policy class to that"
)
SWAP_TEXT = " (are the arguments swapped?)"
MAX_REPR_LENGTH = 30  # letters of a value that is shown; of others, the type


class ValueConstraint(NamedTuple):
    """Condition on the values of a type, with its description in messages."""

    is_satisfied: Callable[[object], bool]
    description: str


UNCHECKED = ValueConstraint(lambda _: True, "")
Unchecked = Annotated[T, UNCHECKED]  # whoever reads the value says more about what is wrong with it
PositiveInt = Annotated[int, ValueConstraint(lambda x: x >= 1, "a whole number of at least 1")]
NonNegativeInt = Annotated[int, ValueConstraint(lambda x: x >= 0, "a whole number of at least 0")]
FiniteFloat = Annotated[float, ValueConstraint(math.isfinite, "a finite number")]
PositiveFloat = Annotated[float, ValueConstraint(lambda x: 0 < x < math.inf, "a positive number")]
NonNegativeFloat = Annotated[
    float, ValueConstraint(lambda x: 0 <= x < math.inf, "a number of at least 0")
]
Probability = Annotated[float, ValueConstraint(lambda x: 0 <= x <= 1, "a number from 0 to 1")]
Seconds = Annotated[
    float, ValueConstraint(lambda x: x > 0, "a positive number of seconds")
]  # inf: no limit
SEED = ValueConstraint(
    lambda x: _is_whole(x) and x >= 0, "a whole number of at least 0"
)  # of any size
Seed = Annotated[int, SEED] | None
WIDEST = 2**63  # whole numbers of numpy are below it


def _make_array_constraint(ndim: int) -> ValueConstraint:
    """Make the constraint that a value is an array of numbers with ``ndim`` axes."""

    def is_numeric_array(value: object) -> bool:
        try:
            array = np.asarray(value)
            if array.dtype.kind == "c":  # numpy drops the imaginary part
                return False
            array = array.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            return False
        return array.ndim == ndim and array.size > 0 and not np.isnan(array).any()

    return ValueConstraint(
        is_numeric_array, f"an array of numbers with {pluralize(ndim, 'axis', 'axes')}"
    )


def _is_label(value: object) -> bool:
    """Check whether a value can be a label: hashable, not None and not NaN."""
    return isinstance(value, Hashable) and value is not None and value == value  # not NaN


Label = Annotated[object, ValueConstraint(_is_label, "text or a number")]
StateText = Annotated[str, ValueConstraint(bool, "text")]  # apart from the text of npt.ArrayLike
Vector = Annotated[npt.ArrayLike, _make_array_constraint(1)]
Matrix = Annotated[npt.ArrayLike, _make_array_constraint(2)]
Array3D = Annotated[npt.ArrayLike, _make_array_constraint(3)]
ARRAY_LIKE_TYPES = set(get_args(getattr(npt.ArrayLike, "__value__", npt.ArrayLike)))  # as below
SEQUENCE_TYPES: dict[object, str] = {
    tuple: "a tuple",
    list: "a list",
    **dict.fromkeys((Sequence, Iterable, Collection), "a sequence"),
}
TYPE_DESCRIPTIONS: dict[object, str] = {
    type(None): "None",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    Callable: "a function",
    os.PathLike: "a path",
    Mapping: "a mapping such as a dict",
    np.ndarray: "an array",
    **SEQUENCE_TYPES,
}
NUMERIC_TYPES: dict[object, type] = {
    bool: bool,
    int: numbers.Integral,
    float: numbers.Real,
    complex: numbers.Complex,
}


def check_arguments(function: F) -> F:
    """Refuse arguments of a function, or of a class, that do not fit their annotations.

    >>> @check_arguments
    ... def double(x: float, times: PositiveInt = 1) -> float:
    ...     return 2**times * x
    >>> double(2.5)
    5.0
    >>> double("2")
    Traceback (most recent call last):
    mmdp.core.errors.InputError: x must be a number, not '2'
    >>> double(2, times=0)
    Traceback (most recent call last):
    mmdp.core.errors.InputError: times must be a whole number of at least 1, not 0
    """
    if inspect.isclass(function):
        function.__init__ = check_arguments(function.__init__)  # type: ignore[method-assign]
        return function
    signature = inspect.signature(function)
    name, parameters = function.__qualname__.removesuffix(".__init__"), signature.parameters
    has_var_keyword = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        for unknown_name in () if has_var_keyword else kwargs.keys() - parameters.keys():
            suggestion = did_you_mean(unknown_name, parameters)
            raise InputError(
                f"{name}() has no argument {suggestion}",
                _name_option_owner(unknown_name, kwargs[unknown_name], parameters),
            )
        try:
            bound_arguments = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
        hints = get_type_hints(function)
        values = {**kwargs, **bound_arguments}
        for argument, value in values.items():
            _check_length(argument, value)
            if argument in hints:
                try:
                    check_type(argument, value, hints[argument])
                except InputError as error:
                    if _is_swapped(argument, values, hints):
                        raise InputError(error.message + SWAP_TEXT, error.remedies) from None
                    raise
        with progress_line.open(name):
            return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def _name_option_owner(option: str, value: object, parameters: Collection[str]) -> list[str]:
    """Name the policy class or method that has this option, as an argument of the function."""
    for argument, registry in (("policy_class", "POLICY_CLASSES"), ("method", "METHODS")):
        package = "mmdp.policies" if argument == "policy_class" else "mmdp.methods"
        module = sys.modules.get(package.replace("mmdp.", "mmdp.core."))
        classes = getattr(module, registry, {}) if argument in parameters else {}
        for owner in classes.values():
            if option in inspect.signature(owner).parameters:
                text = repr(value) if len(repr(value)) <= MAX_REPR_LENGTH else "..."
                return [f"give it as in {argument}={package}.{owner.__name__}({option}={text})"]
    return [METHOD_OPTIONS_HINT] if "method" in parameters else []


def _is_swapped(argument: str, values: Mapping[str, object], hints: Mapping[str, object]) -> bool:
    """Check whether an argument and another that is given would fit in each other's place.

    Two values of one type, or two numbers, are out of range rather than swapped.
    """
    value = values[argument]
    is_number = isinstance(value, numbers.Number)
    return any(
        x is not None
        and type(x) is not type(value)
        and not (is_number and isinstance(x, numbers.Number))
        and is_of_type(x, hints[argument])
        and is_of_type(value, hints.get(name))
        for name, x in values.items()
        if name != argument
    )


def check_type(name: str, value: object, hint: object) -> None:
    """Raise InputError if a value is not of the type; ``name`` is that of the argument."""
    if is_of_type(value, hint):
        return
    if _is_whole(value) and not -WIDEST <= value < WIDEST:
        raise InputError(
            f"{name} is a whole number of about 1e{int(math.log10(abs(value)))}, too large for 64 "
            "bits; give a smaller one, or a number with a decimal point if that is meant"
        )
    alternatives, shown_value = _split_union(hint), type(value).__name__
    choices = [
        x
        for alternative in alternatives
        if get_origin(alternative) is Literal
        for x in get_args(alternative)
    ]
    if isinstance(value, str) and choices:
        shown_value = did_you_mean(value, choices)
    elif isinstance(value, numbers.Real) or len(repr(value)) <= MAX_REPR_LENGTH:
        shown_value = repr(value)
    expected = join_or(dict.fromkeys(map(_describe_type, alternatives)))
    is_path = expected == "an MMDP" and isinstance(value, (str, os.PathLike))
    remedies = ["use mmdp.load(path) for files"] if is_path else []
    remedies += ["write float('inf')"] if isinstance(value, str) and value == "inf" else []
    raise InputError(f"{name} must be {expected}, not {shown_value}", remedies)


# ---------------------------------------------------------------------- names
def as_instance(
    value: object, registry: Mapping[str, type[T]], base: type[T], argument: str, module: str
) -> T:
    """Return the object itself, or that of a registered name or a class with default options.

    ``argument`` is the name of the argument that takes it, and ``module`` has its classes.
    """
    kind = argument.replace("_", " ")
    if isinstance(value, str):
        if value not in registry:
            suggestion = did_you_mean(value, registry)
            raise InputError(f"no {kind} is called {suggestion}; choose {join_or(registry)}")
        value = registry[value]
    if isinstance(value, type) and issubclass(value, base):
        parameters = inspect.signature(value).parameters.values()
        names = ", ".join(x.name for x in parameters if x.default is x.empty)
        if names:
            call = f"{argument}={module}.{value.__name__}({names})"
            raise InputError(f"the {kind} {value.__name__} needs {names}", [f"pass {call}"])
        value = value()
    if not isinstance(value, base):
        choices = join_or([*registry, f"an object of a class in {module}"])
        raise InputError(f"{argument} must be {choices}, not {value!r}")
    return value


def _check_length(name: str, value: object) -> None:
    """Refuse a range, or a dict with one, that would not fit into memory as an array."""
    for x in value.values() if type(value) is dict else [value]:
        if isinstance(x, range):
            # len() raises for what does not fit into 64 bits
            count = max(0, -((x.start - x.stop) // x.step))
            check_memory(8 * count, f"{name}, {count:,} numbers,", ["shorten it"])


# ---------------------------------------------------------------------- annotations
class _Namespace(dict[str, Any]):
    """The names in a module, those that are imported for type checkers only included."""

    is_complete = True  # whether the modules of all names so far are loaded

    def __missing__(self, name: str) -> object:
        if name == "pd":
            return importlib.import_module("pandas")  # waits for a thread that is importing it
        modules = [builtins, sys.modules.get("matplotlib.axes", builtins)]
        modules += [x for key, x in list(sys.modules.items()) if key.startswith("mmdp")]
        value = next((vars(x)[name] for x in modules if name in vars(x)), UnloadedType)
        self.is_complete &= value is not UnloadedType
        return value


class UnloadedType:
    """Placeholder for a class of a module that is not loaded: no value is of it."""


TYPE_HINTS: dict[Callable[..., object], dict[str, object]] = {}  # those that are complete


def get_type_hints(function: Callable[..., object]) -> dict[str, object]:
    """Get the types of the parameters of a function, those of ``**options`` included."""
    if function in TYPE_HINTS:
        return TYPE_HINTS[function]
    is_complete = True

    def evaluate(annotated: Any) -> dict[str, Any]:
        names, hints = _Namespace(vars(sys.modules[annotated.__module__])), {}
        for name, hint in annotated.__annotations__.items():
            text = getattr(hint, "__forward_arg__", hint)
            if name != "return":  # its type may not be loaded
                hints[name] = eval(text, {}, names) if isinstance(text, str) else hint
        nonlocal is_complete
        is_complete &= names.is_complete
        return hints

    inner_function = inspect.unwrap(function)
    hints = evaluate(inner_function)
    for name, parameter in inspect.signature(inner_function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            hint = hints.pop(name, None)
            hints |= evaluate(get_args(hint)[0]) if get_origin(hint) is Unpack else {}
    if is_complete:  # a module such as matplotlib may be loaded later
        TYPE_HINTS[function] = hints
    return hints


def _split_union(hint: object) -> list[Any]:
    """Split a union into its alternatives; all types like an array count as one."""
    hint = getattr(hint, "__value__", hint)  # of an alias, as some versions of numpy have them
    if get_origin(hint) not in (Union, types.UnionType):
        return [hint]
    alternatives = get_args(hint)
    if set(alternatives) >= ARRAY_LIKE_TYPES:
        alternatives = (*(x for x in alternatives if x not in ARRAY_LIKE_TYPES), np.ndarray)
    return [y for x in alternatives for y in _split_union(x)]


def _describe_type(hint: object) -> str:
    """Describe a type as a message names it, such as "a whole number"."""
    origin, type_args = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return str(type_args[1].description)
    if origin is Literal:
        return f"one of {join_or(map(repr, type_args))}" if type_args[1:] else repr(type_args[0])
    if origin in SEQUENCE_TYPES and type_args and type_args[0] not in (Any, object):
        item_text = join_or(map(_describe_type, _split_union(type_args[0])))
        return f"{TYPE_DESCRIPTIONS[origin]} (each {item_text})"
    name: str = getattr(origin, "__name__", str(origin))
    return (
        TYPE_DESCRIPTIONS.get(origin)
        or f"{'an' if name[0] in 'AEIO' or name == 'MMDP' else 'a'} {name}"
    )


# ---------------------------------------------------------------------- values
def is_of_type(value: object, hint: Any) -> bool:
    """Check whether a value is of a type, as far as that is cheap.

    >>> is_of_type(1, float), is_of_type(True, int), is_of_type(math.nan, float)
    (True, False, False)
    >>> is_of_type(["a"], list[str])
    True
    """
    hint, *others = _split_union(hint)
    if others:
        return any(is_of_type(value, x) for x in (hint, *others))
    origin, type_args = get_origin(hint) or hint, get_args(hint)
    if origin in (Any, object) or isinstance(origin, TypeVar):
        return True
    if origin is Annotated:
        hint, rule = type_args
        # some rules say all that there is to say
        has_type = rule in (UNCHECKED, SEED) or is_of_type(value, hint)
        return has_type and bool(rule.is_satisfied(value))
    if origin is Literal:
        return any(type(value) is type(x) and value == x for x in type_args)
    if origin is None:
        return value is None
    if origin in NUMERIC_TYPES:
        if origin is bool or isinstance(value, (bool, np.bool_)):
            return origin is bool and isinstance(value, (bool, np.bool_))
        is_too_large = _is_whole(value) and not -WIDEST <= value < WIDEST
        is_number = isinstance(value, NUMERIC_TYPES[origin]) and value == value  # not NaN
        return is_number and not is_too_large
    if origin is np.ndarray:
        return _is_array_like(value)
    if origin is Mapping:
        mapping: Any = value
        return hasattr(value, "items") and all(
            is_of_type(x, type_args[1]) for _, x in mapping.items() if type_args
        )
    if origin in SEQUENCE_TYPES:
        return _is_sequence(value, origin, type_args)
    return isinstance(value, origin)


def _is_whole(value: object) -> TypeGuard[int]:
    """Check whether a value is a whole number; True and False are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, (bool, np.bool_))


def _is_array_like(value: object) -> bool:
    """Check whether a value is like an array of one shape, or a mapping by labels."""
    if value is None or callable(value) or isinstance(value, (str, bytes, bool, np.bool_)):
        return False
    if hasattr(value, "shape") or hasattr(value, "items") or isinstance(value, range):
        return True
    if not isinstance(value, Iterable):
        return is_of_type(value, float | complex)
    try:
        return np.asarray([*value]).ndim > 0
    except ValueError:  # of several shapes
        return any(hasattr(x, "items") for x in value)


def _is_sequence(value: object, origin: object, type_args: tuple[object, ...]) -> bool:
    """Check whether a value is iterable with items of the type; arrays and columns count.

    A mapping is an Iterable of its keys, such as labels, but no Sequence.
    """
    is_single_text = isinstance(value, str) and type_args == (str,)  # most often one entry
    is_lookup = isinstance(value, Mapping) and origin is not Iterable
    is_scalar = not isinstance(value, Iterable) or getattr(value, "shape", None) == ()
    if is_scalar or is_single_text or is_lookup or isinstance(value, bytes):
        return False
    if not isinstance(value, (list, tuple, range, str, np.ndarray, Mapping)):
        return origin is not tuple
    if origin is tuple and type_args[-1:] != (...,):
        return len(value) == len(type_args) and all(map(is_of_type, value, type_args))
    if not type_args or type_args[0] in (Any, object):
        return True
    items = value[:1] if isinstance(value, range) else value  # all of a range are alike
    if str in _split_union(type_args[0]) and set(map(type, items)) == {str}:
        return True  # a model may have a million labels
    return all(is_of_type(x, type_args[0]) for x in items)
