"""What tells an object from others, as a digest that is the same in every process.

:func:`facts` describes models, values, functions and classes in JSON's types: a model by its
numbers, a function by its code with the global values that it reads, and what comes from an
installed package by its name. :func:`digest` makes a short key of a description.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.words import shortened

INSTALLED = {"site-packages", "dist-packages"}  # folders of packages, known by their names
WRAPPED = ("__func__", "fget", "func")  # the function in a static method, a property and so on


def facts(given: Any, inside: tuple[Any, ...] = ()) -> Any:
    """What tells an object from others, in JSON's types: the same in every process.

    ``inside`` are the functions and classes that are being described.

    >>> import mmdp
    >>> facts({"x": (1, 2.5)}), facts(functools.partial(mmdp.domains.hiv, seed=3))
    ([['x', [1, 2.5]]], ['partial', 'mmdp.domains._hiv.hiv', [], [['seed', 3]]])
    """
    inner = functools.partial(facts, inside=inside)
    if given is None or isinstance(given, (bool, int, float, str)):
        return given
    if isinstance(given, np.generic):
        return given.item()
    if isinstance(given, MMDP):
        return ["MMDP", given.fingerprint()]
    if isinstance(given, np.ndarray) and not given.dtype.hasobject:
        content = hashlib.sha256(np.ascontiguousarray(given).tobytes()).hexdigest()
        return ["array", str(given.dtype), list(given.shape), content]
    if isinstance(given, Mapping):
        return [[inner(key), inner(value)] for key, value in given.items()]
    if isinstance(given, (set, frozenset)):
        return sorted(map(inner, given), key=json.dumps)
    if isinstance(given, (list, tuple, range)):
        return [inner(x) for x in given]
    if isinstance(given, (Path, slice, np.dtype)):
        return str(given)
    if isinstance(given, enum.Enum):
        return [type(given).__qualname__, given.name, inner(given.value)]
    if isinstance(given, enum.EnumType):
        return ["enum", *map(inner, given)]
    if isinstance(given, (bytes, complex, types.EllipsisType, types.GenericAlias)):
        return [type(given).__name__, repr(given)]
    if isinstance(given, functools.partial):
        return ["partial", inner(given.func), inner(given.args), inner(given.keywords)]
    if isinstance(given, types.MethodType):
        return ["method", inner(given.__func__), inner(given.__self__)]
    if isinstance(given, types.CodeType):
        return _code(given, inside)
    if isinstance(given, types.ModuleType):
        return ["module", given.__name__]
    if _of_a_library(given):
        return f"{given.__module__}.{given.__qualname__}"
    if any(given is x for x in inside):
        return ["again", given.__qualname__]
    if isinstance(given, types.FunctionType):
        return _function(given, (*inside, given))
    if isinstance(given, type):
        return _class(given, (*inside, given))
    if hasattr(given, "__wrapped__"):  # as functools.cache and numba make
        return [inner(type(given)), inner(given.__wrapped__)]
    return [inner(type(given)), _state(given, inside)]


def _of_a_library(given: Any) -> bool:
    """Whether a function or class has its name from mmdp or an installed package."""
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", "<>")
    if module == "__main__" or module not in sys.modules or "<" in name:
        return False
    root = module.partition(".")[0]
    if root == "mmdp" or root in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules[module], "__file__", None)
    return file is not None and bool(INSTALLED.intersection(Path(file).parts))


def _function(given: types.FunctionType, inside: tuple[Any, ...]) -> Any:
    """What a function does: its code, its defaults and the global values that it reads."""
    if set(given.__code__.co_freevars) - {"__class__"}:
        raise InputError(
            f"{given.__module__}.{given.__qualname__} uses variables around it, so a study cannot "
            "tell it from others; write functools.partial of a function with arguments"
        )
    about = [given.__code__, given.__defaults__, given.__kwdefaults__, _globals(given)]
    return ["function", *(facts(x, inside) for x in about)]


def _code(code: types.CodeType, inside: tuple[Any, ...]) -> Any:
    names = code.co_names, code.co_varnames, code.co_freevars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    text = code.co_code + code.co_exceptiontable
    return [facts(x, inside) for x in (text, names, counts, code.co_consts)]


def _globals(given: types.FunctionType) -> dict[str, Any]:
    """The global values that a function reads; of a module that it names, what it reads there."""
    found = {}
    for name, *path in sorted(_reads(given.__code__)):
        if name in given.__globals__:
            value = given.__globals__[name]
            while path and isinstance(value, types.ModuleType) and hasattr(value, path[0]):
                name, value = f"{name}.{path[0]}", getattr(value, path.pop(0))
            found[name] = value
    return found


def _reads(code: types.CodeType) -> set[tuple[str, ...]]:
    """The global names in a code with the attributes that follow: ``np.random.rand``."""
    found: list[tuple[str, ...]] = []
    follows = False
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.append((step.argval,))
            follows = True
        elif follows and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            found[-1] += (step.argval,)
        else:
            follows = False
    inner = [_reads(x) for x in code.co_consts if isinstance(x, types.CodeType)]
    return set(found).union(*inner)


def _class(given: type, inside: tuple[Any, ...]) -> Any:
    """What a class does: its name, its bases and all that is written in it."""
    usual = vars(_Record if dataclasses.is_dataclass(given) else _Plain)
    written = {
        name: next((getattr(x, y) for y in WRAPPED if hasattr(x, y)), x)
        for name, x in vars(given).items()
        if name not in usual and not name.startswith("_abc_")
        if not isinstance(x, (types.MemberDescriptorType, types.GetSetDescriptorType))
    }
    return ["class", given.__qualname__, facts(given.__bases__, inside), facts(written, inside)]


class _Plain:
    """What every class has, which tells nothing."""


@dataclass(frozen=True, order=True)
class _Record:
    """What every dataclass has, which tells nothing."""


def _state(given: Any, inside: tuple[Any, ...]) -> Any:
    """What an object holds; refused if it does not say."""
    try:
        state = given.__getstate__()
    except Exception:
        state = None
    if state is None and not hasattr(given, "__dict__") and not hasattr(given, "__slots__"):
        raise InputError(
            f"a study cannot tell {shortened(given)} from other objects of the type "
            f"{type(given).__name__}; give a model, or a function that uses plain values only"
        )
    return facts(state, inside)


def digest(given: Any) -> str:
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]
