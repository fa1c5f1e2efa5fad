"""The file of a study: a grid of models, horizons, methods and more as TOML."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdp.cli.data import TrainingData
from mmdp.cli.types import find_named
from mmdp.core.errors import InputError
from mmdp.core.methods.registry import METHODS
from mmdp.core.policies import POLICY_CLASSES

if TYPE_CHECKING:
    from mmdp import MMDP

Settings = dict[str, Any]  # a table of the file


def read_study(file: Path) -> Settings:
    """Read the arguments of :func:`mmdp.study` from a file."""
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{file}: not a TOML file ({error})") from None
    models = settings.pop("models", None)
    if not isinstance(models, dict) or not all(isinstance(x, dict) for x in models.values()):
        raise InputError(f"{file}: no models; give each as a table, for example [models.mine]")
    try:
        for axis, role in (("methods", "method"), ("policy_classes", "policy_class")):
            values = settings.get(axis, [])
            if axis in settings:
                values = values if isinstance(values, list) else [values]
                settings[axis] = [_make_value(role, x, file.parent) for x in values]
        sources = {name: _make_source(dict(x), file.parent) for name, x in models.items()}
    except InputError as error:
        raise error.with_location(file) from None
    return {"models": sources, **settings}


def _make_value(role: str, value: object, folder: Path) -> object:
    """Make a method or policy class of a table such as {method = "cadp", n_init = 16}."""
    options: Settings = dict(value) if isinstance(value, dict) else {role: value}
    name = str(options.pop(role, ""))
    if isinstance(options.get("groups"), str):
        options["groups"] = folder / options["groups"]
    make = find_named(role, METHODS if role == "method" else POLICY_CLASSES, name, options)
    return make(**options) if options else name


def _make_source(settings: Settings, folder: Path) -> object:
    """Load the models of a study, or return the function that generates its domain."""
    import mmdp

    n_models = settings.pop("subset", None)
    source_types = [name for name in ("domain", "data", "log") if name in settings]
    if len(source_types) != 1:
        raise InputError("a model has one of domain, data and log")
    name = str(settings.pop(source_types[0]))
    source: object
    if source_types == ["domain"]:
        make = find_named("domain", mmdp.domains.DOMAINS, name, settings)
        source = partial(make, **settings)
    elif source_types == ["data"]:
        data = TrainingData(folder / name, **settings)
        source = (train := data.read(), data.read_test(train))
    else:
        source = tuple(mmdp.fit(folder / name, **settings))
    return source if n_models is None else partial(take_first_models, source, n_models)


def take_first_models(source: Any, n_models: int) -> tuple[MMDP, MMDP | None]:
    """Take the first training models, with the test models as they are."""
    train, test = source() if callable(source) else source
    return train.subset(slice(n_models)), test
