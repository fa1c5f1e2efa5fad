"""What distinguishes an object from others, as a digest that is the same everywhere.

:func:`facts` describes models, values, functions and classes in JSON's types: a model by its
numbers and labels, a function by its source text with the values that it uses (its defaults, the
variables around it and the globals that it reads), what comes from an installed package by its
name, and any other object by what pickle would keep. How Python compiles a function does not
count, so that another version of Python finds what this one kept. What cannot be known, such as a
function without a source, is refused. :func:`digest` makes a short key of a description.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.words import shortened

INSTALLED = {"site-packages", "dist-packages"}  # folders of packages, known by their names
FIELDS = ("states", "actions", "models", "times", "parameters")  # not in the fingerprint
WRAPPED = ("__func__", "fget", "func")  # the function in a static method, a property and so on


def facts(given: Any, inside: tuple[Any, ...] = ()) -> Any:
    """What distinguishes an object from others, in JSON's types: the same in every process.

    ``inside`` are the objects that are being described: one that holds itself is named by the
    number of steps back to it.

    >>> import mmdp
    >>> facts({"x": (1, 2.5)}), facts(functools.partial(mmdp.domains.hiv, seed=3))
    ([['x', [1, 2.5]]], ['partial', 'mmdp.domains.hiv', [], [['seed', 3]]])
    """
    if given is None or isinstance(given, (bool, int, float, str)):
        return given
    if isinstance(given, np.generic):
        return given.item()
    if isinstance(given, np.ndarray) and not given.dtype.hasobject:
        content = hashlib.sha256(np.ascontiguousarray(given).tobytes()).hexdigest()
        return ["array", str(given.dtype), list(given.shape), content]
    if isinstance(given, (Path, slice, np.dtype)):
        return str(given)
    if isinstance(given, (bytes, complex, types.EllipsisType, types.GenericAlias)):
        return [type(given).__name__, repr(given)]
    if isinstance(given, types.ModuleType):
        return ["module", given.__name__]
    if (name := _library_name(given)) is not None:
        return name
    for steps, other in enumerate(reversed(inside)):
        if other is given:
            return ["again", steps]
    try:
        return _composite(given, functools.partial(facts, inside=(*inside, given)))
    except RecursionError:
        if inside:
            raise
        raise InputError(
            f"a {type(given).__name__} is nested too deeply for a study to tell it from others; "
            "give a model, or a function that uses plain values only"
        ) from None


def _composite(given: Any, inner: Callable[[Any], Any]) -> Any:
    """What distinguishes an object that consists of others, which ``inner`` describes."""
    if isinstance(given, MMDP):
        others = {name: given.fields()[name] for name in FIELDS}
        return ["MMDP", given.fingerprint(), inner(others)]
    if isinstance(given, Mapping):
        return [[inner(key), inner(value)] for key, value in given.items()]
    if isinstance(given, (set, frozenset)):
        return sorted(map(inner, given), key=json.dumps)
    if isinstance(given, (list, tuple, range)):
        return [inner(x) for x in given]
    if isinstance(given, enum.Enum):
        return [type(given).__qualname__, given.name, inner(given.value)]
    if isinstance(given, enum.EnumType):
        return ["enum", *map(inner, given)]
    if isinstance(given, functools.partial):
        return ["partial", inner(given.func), inner(given.args), inner(given.keywords)]
    if isinstance(given, types.MethodType):
        return ["method", inner(given.__func__), inner(given.__self__)]
    if isinstance(given, types.FunctionType):
        return _function(given, inner)
    if isinstance(given, type):
        return _class(given, inner)
    if hasattr(given, "__wrapped__"):  # made by functools.cache or numba, for example
        return [inner(type(given)), inner(given.__wrapped__)]
    return _object(given, inner)


def _library_name(given: Any) -> str | None:
    """The name of a part of mmdp or an installed package; None for others.

    Functions and classes have one; an object does if it is in the module of its class, such as
    ``scipy.stats.poisson``. Private parts are left out, as pathlib.Path is pathlib._local.Path in
    some versions.
    """
    name = getattr(given, "__qualname__", None)
    module = getattr(given if name else type(given), "__module__", None)
    if module not in sys.modules or not _installed(sys.modules[module]):
        return None
    name = name or next((x for x, y in vars(sys.modules[module]).items() if y is given), None)
    if name is None or "<" in name:
        return None
    root, *parts = module.split(".")
    return ".".join([root, *(x for x in parts if not x.startswith("_")), name])


def _installed(module: types.ModuleType) -> bool:
    root, file = module.__name__.partition(".")[0], getattr(module, "__file__", None)
    if root == "mmdp" or root in sys.stdlib_module_names:
        return True
    own = root == "__main__" or file is None
    return not own and bool(INSTALLED.intersection(Path(str(file)).parts))


# ---------------------------------------------------------------------- functions
def _function(given: types.FunctionType, inner: Callable[[Any], Any]) -> Any:
    """What a function does: its source text, and all values that it uses."""
    code = given.__code__
    text, node = _written(given)
    around = {
        name: cell.cell_contents
        for name, cell in zip(code.co_freevars, given.__closure__ or (), strict=True)
        if cell != types.CellType()  # not filled yet
    }
    used = [given.__defaults__, given.__kwdefaults__, around, _globals(given, node)]
    return ["function", text, *map(inner, used)]


def _written(given: types.FunctionType) -> tuple[str, ast.AST]:
    """The text of a function, and what Python reads there."""
    code, found, known = given.__code__, [], False
    try:
        source = "".join(inspect.findsource(code)[0])
        functions, codes = _parsed(source)
        found, known = functions.get((code.co_firstlineno, code.co_name), []), code in codes
    except (OSError, SyntaxError):
        pass
    if len(found) > 1:  # several lambdas on a line: the innermost that all of the code comes from
        spots: list[Any] = [x for x in code.co_positions() if None not in x and x[2:] != (0, 0)]
        if spots:
            found = [x for x in found if all(_spans(x.body, *spot) for spot in spots)][-1:]
        else:  # Python 3.12 keeps no place of a constant that is returned
            found = [x for x in found if _compiles_to(x, code)][-1:]
    if not found or not known:
        what = "was edited after it was imported" if found else "is not known"
        raise InputError(
            f"the source of {given.__module__}.{given.__qualname__} {what}, so a study cannot "
            "tell it from others; write it in a file, on lines of its own, and start Python again"
        )
    return ast.get_source_segment(source, found[0]) or "", found[0]


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> tuple[dict[tuple[int, str], list[Any]], set[types.CodeType]]:
    """The functions in a source by first line (of a decorator, if any) and name; their codes."""
    found: dict[tuple[int, str], list[Any]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            first = min(x.lineno for x in (node, *getattr(node, "decorator_list", ())))
            found.setdefault((first, getattr(node, "name", "<lambda>")), []).append(node)
    return found, set(_codes(compile(source, "source", "exec", dont_inherit=True)))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code and those inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _compiles_to(node: ast.Lambda, code: types.CodeType) -> bool:
    """Whether a lambda by itself has this code; one that reads variables around it has not."""
    flags = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS  # not where it stands
    whole = compile(ast.Expression(node), "source", "eval", dont_inherit=True)
    own = next(x for x in _codes(whole) if x.co_name == "<lambda>")
    mine, given = (x.replace(co_flags=x.co_flags & flags) for x in (own, code))
    return mine == given


def _spans(node: Any, line: int, end_line: int, column: int, end_column: int) -> bool:
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    return start <= (line, column) and (end_line, end_column) <= end


def _globals(given: types.FunctionType, node: ast.AST) -> dict[str, Any]:
    """The global values that a function reads; of a module that it names, what it reads there."""
    found, names = {}, {name for code in _codes(given.__code__) for name in code.co_names}
    read = names & given.__globals__.keys()  # not its own variables
    for name, *path in sorted({x for x in map(_dotted, ast.walk(node)) if x and x[0] in read}):
        value = given.__globals__[name]
        while path and isinstance(value, types.ModuleType):
            if _installed(value):
                value = ".".join((value.__name__, *path))
            elif hasattr(value, path[0]):
                name, value = f"{name}.{path[0]}", getattr(value, path.pop(0))
            else:
                break
        found[".".join((name, *path))] = value
    return found


def _dotted(node: ast.AST) -> tuple[str, ...]:
    """The parts of ``np.random.rand``; none if it is anything else."""
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return (*inner, node.attr) if inner else ()
    return (node.id,) if isinstance(node, ast.Name) else ()


# ---------------------------------------------------------------------- classes and objects
def _class(given: type, inner: Callable[[Any], Any]) -> Any:
    """What a class does: its name, its bases and all that is written in it.

    What Python adds does not count: annotations, and the slots that pickle notes.
    """
    usual = vars(_Record if dataclasses.is_dataclass(given) else _Plain)
    written = {
        name: next((getattr(x, y) for y in WRAPPED if hasattr(x, y)), x)
        for name, x in vars(given).items()
        if name not in usual and not name.startswith(("_abc_", "__annot", "__slotnames__"))
        if not isinstance(x, (types.MemberDescriptorType, types.GetSetDescriptorType))
    }
    return ["class", given.__qualname__, inner(given.__bases__), inner(written)]


class _Plain:
    """What every class has, which distinguishes nothing."""


@dataclass(frozen=True, order=True)
class _Record:
    """What every dataclass has, which distinguishes nothing."""


def _object(given: Any, inner: Callable[[Any], Any]) -> Any:
    """What pickle would keep of an object; refused if that is nothing, or used up by reading."""
    try:
        if type(given) is object or isinstance(given, Iterator):
            raise TypeError
        how = given.__reduce_ex__(4)
    except Exception:
        raise InputError(
            f"a study cannot tell {shortened(given)} from other objects of the type "
            f"{type(given).__name__}; give a model, or a function that uses plain values only"
        ) from None
    if isinstance(how, str):
        return [inner(type(given)), how]
    return [inner(list(x) if isinstance(x, Iterator) else x) for x in how]


def digest(given: Any) -> str:
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]
