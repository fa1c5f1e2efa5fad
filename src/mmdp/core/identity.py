"""Describe objects by their content, and make digests that are the same in every process.

:func:`describe_object` describes models, values, functions and classes as JSON values: a model by
its numbers and labels, a function by its source text with the values that it uses (its defaults,
the variables around it and the globals that it reads), what comes from an installed package by its
name, and any other object by its pickled state. How Python compiles a function does not
count, so that another version of Python finds what this one kept. What cannot be known, such as a
function without a source, is refused. :func:`compute_digest` makes a short key of a description.
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

from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.text import shorten

PACKAGE_FOLDERS = {"site-packages", "dist-packages"}  # folders of packages, known by their names
FIELDS_OUTSIDE_FINGERPRINT = ("states", "actions", "models", "time_labels", "parameters")
WRAPPED_ATTRIBUTES = ("__func__", "fget", "func")  # of a static method, a property and so on


def describe_object(obj: Any, parents: tuple[Any, ...] = ()) -> Any:
    """Describe an object by its content as JSON values, the same in every process.

    ``parents`` are the objects that are being described: one that holds itself is named by the
    number of steps back to it.

    >>> import mmdp
    >>> describe_object({"x": (1, 2.5)})
    [['x', [1, 2.5]]]
    >>> describe_object(functools.partial(mmdp.domains.hiv, seed=3))
    ['partial', 'mmdp.data.domains.hiv', [], [['seed', 3]]]
    """
    if obj is None or isinstance(obj, (bool, int, float, str)):
        return obj
    if isinstance(obj, np.generic):
        return obj.item()
    if isinstance(obj, np.ndarray) and not obj.dtype.hasobject:
        content_hash = hashlib.sha256(np.ascontiguousarray(obj).tobytes()).hexdigest()
        return ["array", str(obj.dtype), list(obj.shape), content_hash]
    if isinstance(obj, (Path, slice, np.dtype)):
        return str(obj)
    if isinstance(obj, (bytes, complex, types.EllipsisType, types.GenericAlias)):
        return [type(obj).__name__, repr(obj)]
    if isinstance(obj, types.ModuleType):
        return ["module", obj.__name__]
    if (name := _find_library_name(obj)) is not None:
        return name
    for depth, parent in enumerate(reversed(parents)):
        if parent is obj:
            return ["again", depth]
    try:
        return _describe_composite(obj, functools.partial(describe_object, parents=(*parents, obj)))
    except RecursionError:
        if parents:
            raise
        raise InputError(
            f"a {type(obj).__name__} is nested too deeply for a study to tell it from others; "
            "give a model, or a function that uses plain values only"
        ) from None


def _describe_composite(obj: Any, describe: Callable[[Any], Any]) -> Any:
    """Describe an object that consists of others, which ``describe`` describes."""
    if isinstance(obj, MMDP):
        unhashed_fields = {name: obj.to_kwargs()[name] for name in FIELDS_OUTSIDE_FINGERPRINT}
        return ["MMDP", obj.fingerprint(), describe(unhashed_fields)]
    if isinstance(obj, Mapping):
        return [[describe(key), describe(value)] for key, value in obj.items()]
    if isinstance(obj, (set, frozenset)):
        return sorted(map(describe, obj), key=json.dumps)
    if isinstance(obj, (list, tuple, range)):
        return [describe(x) for x in obj]
    if isinstance(obj, enum.Enum):
        return [type(obj).__qualname__, obj.name, describe(obj.value)]
    if isinstance(obj, enum.EnumType):
        return ["enum", *map(describe, obj)]
    if isinstance(obj, functools.partial):
        return ["partial", describe(obj.func), describe(obj.args), describe(obj.keywords)]
    if isinstance(obj, types.MethodType):
        return ["method", describe(obj.__func__), describe(obj.__self__)]
    if isinstance(obj, types.FunctionType):
        return _describe_function(obj, describe)
    if isinstance(obj, type):
        return _describe_class(obj, describe)
    if hasattr(obj, "__wrapped__"):  # made by functools.cache or numba, for example
        return [describe(type(obj)), describe(obj.__wrapped__)]
    return _describe_by_pickle(obj, describe)


def _find_library_name(obj: Any) -> str | None:
    """Find the dotted name of an object of mmdp or an installed package; None for others.

    Functions and classes have one; an object does if it is in the module of its class, such as
    ``scipy.stats.poisson``. Private parts are left out, as pathlib.Path is pathlib._local.Path in
    some versions.
    """
    name = getattr(obj, "__qualname__", None)
    module = getattr(obj if name else type(obj), "__module__", None)
    if module not in sys.modules or not _is_installed(sys.modules[module]):
        return None
    name = name or next((x for x, y in vars(sys.modules[module]).items() if y is obj), None)
    if name is None or "<" in name:
        return None
    root, *parts = module.split(".")
    return ".".join([root, *(x for x in parts if not x.startswith("_")), name])


def _is_installed(module: types.ModuleType) -> bool:
    root, file = module.__name__.partition(".")[0], getattr(module, "__file__", None)
    if root == "mmdp" or root in sys.stdlib_module_names:
        return True
    is_user_code = root == "__main__" or file is None
    return not is_user_code and bool(PACKAGE_FOLDERS.intersection(Path(str(file)).parts))


# ---------------------------------------------------------------------- functions
def _describe_function(function: types.FunctionType, describe: Callable[[Any], Any]) -> Any:
    """Describe a function by its source text and all values that it uses."""
    code = function.__code__
    text, node = _find_source(function)
    closure = {
        name: cell.cell_contents
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
        if cell != types.CellType()  # not filled yet
    }
    used_values = [
        function.__defaults__,
        function.__kwdefaults__,
        closure,
        _find_globals(function, node),
    ]
    return ["function", text, *map(describe, used_values)]


def _find_source(function: types.FunctionType) -> tuple[str, ast.AST]:
    """Find the source text of a function and its syntax tree."""
    code, candidates, is_current = function.__code__, [], False
    try:
        source = "".join(inspect.findsource(code)[0])
        functions, code_objects = _parse_functions(source)
        candidates, is_current = (
            functions.get((code.co_firstlineno, code.co_name), []),
            code in code_objects,
        )
    except (OSError, SyntaxError):
        pass
    if (
        len(candidates) > 1
    ):  # several lambdas on a line: the innermost that all of the code comes from
        positions: list[Any] = [x for x in code.co_positions() if None not in x and x[2:] != (0, 0)]
        if positions:
            candidates = [
                x
                for x in candidates
                if all(_is_inside_node(x.body, *position) for position in positions)
            ][-1:]
        else:  # Python 3.12 keeps no place of a constant that is returned
            candidates = [x for x in candidates if _has_same_code(x, code)][-1:]
    if not candidates or not is_current:
        reason = "was edited after it was imported" if candidates else "is not known"
        raise InputError(
            f"the source of {function.__module__}.{function.__qualname__} {reason}, so a study "
            "cannot tell it from others; write it in a file, on lines of its own, and start Python "
            "again"
        )
    return ast.get_source_segment(source, candidates[0]) or "", candidates[0]


@functools.lru_cache(maxsize=64)
def _parse_functions(source: str) -> tuple[dict[tuple[int, str], list[Any]], set[types.CodeType]]:
    """Parse a source; return its functions by first line and name, and their code objects."""
    functions: dict[tuple[int, str], list[Any]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            first_line = min(x.lineno for x in (node, *getattr(node, "decorator_list", ())))
            functions.setdefault((first_line, getattr(node, "name", "<lambda>")), []).append(node)
    return functions, set(_iter_code_objects(compile(source, "source", "exec", dont_inherit=True)))


def _iter_code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iter_code_objects(constant)


def _has_same_code(node: ast.Lambda, code: types.CodeType) -> bool:
    """Check whether a lambda, compiled by itself, has this code."""
    flags = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS  # not where it stands
    expression_code = compile(ast.Expression(node), "source", "eval", dont_inherit=True)
    lambda_code = next(x for x in _iter_code_objects(expression_code) if x.co_name == "<lambda>")
    normalized_lambda, normalized_code = (
        x.replace(co_flags=x.co_flags & flags) for x in (lambda_code, code)
    )
    return normalized_lambda == normalized_code


def _is_inside_node(node: Any, line: int, end_line: int, column: int, end_column: int) -> bool:
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    return start <= (line, column) and (end_line, end_column) <= end


def _find_globals(function: types.FunctionType, node: ast.AST) -> dict[str, Any]:
    """Find the global values that a function reads, by dotted name."""
    global_values, names = (
        {},
        {name for code in _iter_code_objects(function.__code__) for name in code.co_names},
    )
    global_names = names & function.__globals__.keys()  # not its own variables
    for name, *path in sorted(
        {x for x in map(_split_dotted_name, ast.walk(node)) if x and x[0] in global_names}
    ):
        value = function.__globals__[name]
        while path and isinstance(value, types.ModuleType):
            if _is_installed(value):
                value = ".".join((value.__name__, *path))
            elif hasattr(value, path[0]):
                name, value = f"{name}.{path[0]}", getattr(value, path.pop(0))
            else:
                break
        global_values[".".join((name, *path))] = value
    return global_values


def _split_dotted_name(node: ast.AST) -> tuple[str, ...]:
    """Split a dotted name such as ``np.random.rand``; empty for other nodes."""
    if isinstance(node, ast.Attribute):
        prefix = _split_dotted_name(node.value)
        return (*prefix, node.attr) if prefix else ()
    return (node.id,) if isinstance(node, ast.Name) else ()


# ---------------------------------------------------------------------- classes and objects
def _describe_class(class_: type, describe: Callable[[Any], Any]) -> Any:
    """Describe a class by its name, its bases and its members.

    What Python adds does not count: annotations, and the slots that pickle notes.
    """
    default_members = vars(_EmptyDataclass if dataclasses.is_dataclass(class_) else _EmptyClass)
    members = {
        name: next((getattr(x, y) for y in WRAPPED_ATTRIBUTES if hasattr(x, y)), x)
        for name, x in vars(class_).items()
        if name not in default_members
        and not name.startswith(("_abc_", "__annot", "__slotnames__"))
        if not isinstance(x, (types.MemberDescriptorType, types.GetSetDescriptorType))
    }
    return ["class", class_.__qualname__, describe(class_.__bases__), describe(members)]


class _EmptyClass:
    """A class without members: every class has the attributes of this one."""


@dataclass(frozen=True, order=True)
class _EmptyDataclass:
    """A dataclass without fields: every dataclass has the attributes of this one."""


def _describe_by_pickle(obj: Any, describe: Callable[[Any], Any]) -> Any:
    """Describe an object by its pickled state; refuse objects without one, and iterators."""
    try:
        if type(obj) is object or isinstance(obj, Iterator):
            raise TypeError
        reduced_state = obj.__reduce_ex__(4)
    except Exception:
        raise InputError(
            f"a study cannot tell {shorten(obj)} from other objects of the type "
            f"{type(obj).__name__}; give a model, or a function that uses plain values only"
        ) from None
    if isinstance(reduced_state, str):
        return [describe(type(obj)), reduced_state]
    return [describe(list(x) if isinstance(x, Iterator) else x) for x in reduced_state]


def compute_digest(description: Any) -> str:
    """Compute a key of 16 hexadecimal digits of a description."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
