"""Describe objects by their content, and make digests that are the same in every process.

:func:`describe_object` describes models, values, functions and classes as JSON values: a model by
its numbers and labels, a function by its name, its compiled code and the values that it uses (its
defaults, the variables around it and the globals that it reads), what comes from an installed
package by its name, and any other object by its pickled state. What has none is refused.
:func:`compute_digest` makes a short key of a description.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.text import shorten

PACKAGE_FOLDERS = {"site-packages", "dist-packages"}  # folders of packages, known by their names
FIELDS_OUTSIDE_FINGERPRINT = ("states", "actions", "models", "time_labels", "parameters")
WRAPPED_ATTRIBUTES = ("__func__", "fget", "func")  # of a static method, a property and so on
PLAIN_TYPES = (
    *(dict, types.MappingProxyType, list, tuple, range, set, frozenset),
    *(np.ndarray, np.memmap),
)
DESCRIPTORS = types.MemberDescriptorType, types.GetSetDescriptorType  # of slots

Description = None | bool | int | float | str | list["Description"]


def describe_object(obj: object, parents: tuple[object, ...] = ()) -> Description:
    """Describe an object by its content as JSON values, the same in every process.

    ``parents`` are the objects that are being described: one that holds itself is named by the
    number of steps back to it.

    >>> import mmdp
    >>> describe_object({"x": (1, 2.5)})
    [['x', [1, 2.5]]]
    >>> describe_object([mmdp.domains.hiv, slice(3)])
    ['mmdp.data.domains._hiv.hiv', ['builtins.slice', [None, 3, None]]]
    """
    if isinstance(obj, np.generic):
        return describe_object(obj.item())
    if obj is None or type(obj) in (bool, int, float, str):
        return obj  # type: ignore[return-value]
    if (name := _find_library_name(obj)) is not None:
        return name
    for depth, parent in enumerate(reversed(parents)):
        if parent is obj:
            return ["again", depth]
    parts = [describe_object(part, (*parents, obj)) for part in _find_parts(obj)]
    return sorted(parts, key=json.dumps) if type(obj) in (set, frozenset) else parts


def compute_digest(description: object) -> str:
    """Compute a key of 16 hexadecimal digits of a description."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def _find_parts(obj: object) -> Iterable[object]:
    """Return what determines an object: values, and other objects to be described in turn."""
    if isinstance(obj, MMDP):
        fields = obj.to_kwargs()
        return "MMDP", obj.fingerprint(), *(fields[name] for name in FIELDS_OUTSIDE_FINGERPRINT)
    is_plain = type(obj) in PLAIN_TYPES  # a subclass is described with its class
    if isinstance(obj, np.ndarray) and is_plain and not obj.dtype.hasobject:
        content_hash = hashlib.sha256(np.ascontiguousarray(obj).tobytes()).hexdigest()
        return "array", str(obj.dtype), obj.shape, content_hash
    if isinstance(obj, Mapping) and is_plain:
        return list(obj.items())
    if isinstance(obj, (list, tuple, range, set, frozenset)) and is_plain:
        return obj
    if isinstance(obj, bytes):
        return "bytes", obj.hex()
    if isinstance(obj, types.ModuleType):
        name, file = obj.__name__, getattr(obj, "__file__", None)
        return "module", name, None if _is_installed(name, file) else _digest_source(file)
    if isinstance(obj, types.MethodType):
        return "method", obj.__func__, obj.__self__
    if isinstance(obj, types.FunctionType):
        return _iter_function_parts(obj)
    if isinstance(obj, types.CodeType):
        names = obj.co_varnames, obj.co_freevars, obj.co_cellvars, obj.co_names
        counts = obj.co_argcount, obj.co_posonlyargcount, obj.co_kwonlyargcount, obj.co_flags
        code = obj.co_code.hex(), obj.co_exceptiontable.hex()
        return obj.co_name, *code, obj.co_consts, names, counts
    if isinstance(obj, type):
        return "class", obj.__qualname__, obj.__bases__, _find_members(obj)
    if hasattr(obj, "__wrapped__"):  # made by functools.cache or numba, for example
        return type(obj), obj.__wrapped__
    return _reduce_object(obj)


def _find_library_name(obj: object) -> str | None:
    """Find the dotted name of an object of mmdp or an installed package; None for others.

    Functions and classes have one; an object does if it is in the module of its class, such as
    ``scipy.stats.poisson``.
    """
    if isinstance(obj, types.MethodType):
        return None
    name: str | None = getattr(obj, "__qualname__", None)
    module: str = getattr(obj if name else type(obj), "__module__", None) or ""
    # a function of the user that wraps one of a package has the name of that
    source = obj.__globals__.get("__name__") if isinstance(obj, types.FunctionType) else module
    for x in {module, source}:
        if x not in sys.modules or not _is_installed(x, getattr(sys.modules[x], "__file__", None)):
            return None
    name = name or next((x for x, y in vars(sys.modules[module]).items() if y is obj), None)
    return None if name is None or "<" in name else f"{module}.{name}"


def _is_installed(name: str, file: str | None) -> bool:
    """Return whether a module is of mmdp, Python or an installed package, not the user's own."""
    root = name.partition(".")[0]
    if root == "mmdp" or root in sys.stdlib_module_names:
        return True
    return root != "__main__" and not PACKAGE_FOLDERS.isdisjoint(Path(file or "").parts)


def _digest_source(file: str | None) -> str | None:
    """Compute a key of the text of a module, of a package with all modules in it."""
    if file is None:
        return None
    path = Path(file)
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    return compute_digest([x.read_text("utf-8") for x in files])


def _find_own_modules(names: Iterable[str]) -> Iterator[list[object]]:
    """Yield the name and the text of the user's own modules with these names."""
    for name in sorted(names):
        with contextlib.suppress(ImportError, ValueError):  # no module has this name
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.has_location and not _is_installed(name, spec.origin):
                yield [name, _digest_source(spec.origin)]


def _iter_function_parts(function: types.FunctionType) -> Iterator[object]:
    """Yield the name and the code of a function, and all values that it uses."""
    yield from (function.__qualname__, function.__code__)
    yield from (function.__defaults__, function.__kwdefaults__)
    yield [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    names, values = {*_iter_names(function.__code__)}, function.__globals__
    yield {name: values[name] for name in sorted(names & values.keys())}
    # what the function imports when it runs, and any attribute that is named like a module
    if modules := [*_find_own_modules(names)]:
        yield modules
    if vars(function):
        yield vars(function)


def _iter_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a code object, and those inside it, look up or import."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iter_names(constant)


def _find_members(class_: type) -> dict[str, object]:
    """Find the functions and values of a class, but not what Python adds to every class."""
    members = {
        name: x
        if isinstance(x, functools.partial)
        else next((getattr(x, y) for y in WRAPPED_ATTRIBUTES if hasattr(x, y)), x)
        for name, x in vars(class_).items()
        if not isinstance(x, DESCRIPTORS)
    }
    return {
        name: x
        for name, x in members.items()
        if isinstance(x, types.FunctionType) or not name.startswith(("__", "_abc_"))
    }


def _reduce_object(obj: object) -> Iterable[object]:
    """Return the pickled state of an object; refuse objects without one, and iterators."""
    try:
        if type(obj) is object or isinstance(obj, Iterator):
            raise TypeError
        state = obj.__reduce_ex__(4)
    except Exception:
        raise InputError(
            f"{shorten(obj)} looks like any other {type(obj).__name__}, so results cannot be kept "
            "for it; give a model, or a function that uses plain values only"
        ) from None
    if isinstance(state, str):
        return type(obj), state
    return [list(x) if isinstance(x, Iterator) else x for x in state]
