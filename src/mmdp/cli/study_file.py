"""The file of a study: a grid of models, horizons, methods and more as TOML."""

from __future__ import annotations

import inspect
import math
import tomllib
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdp.cli.data import TrainingData, list_load_settings
from mmdp.cli.solve import build_method
from mmdp.cli.types import check_name
from mmdp.core.errors import InputError
from mmdp.core.methods.registry import METHODS
from mmdp.core.policies import POLICY_CLASSES
from mmdp.core.text import did_you_mean, join_or

if TYPE_CHECKING:
    from mmdp import MMDP
    from mmdp.core.methods import Method
    from mmdp.core.policies import PolicyClass

AXES = ("horizons", "methods", "objectives", "policy_classes", "seeds")
SETTINGS = ("certify_time", "time_limit", "backend")
REQUIRED_SETTINGS = {"tied": "groups", "fixed": "actions"}


Settings = dict[str, Any]  # a table of the file


def read_study(file: Path) -> Settings:
    """Read the arguments of :func:`mmdp.study` from a file."""
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{file}: not a TOML file ({error})") from None
    known_entries = ("models", *AXES, *SETTINGS)
    for name in settings:
        if name not in known_entries:
            raise InputError(
                f"{file}: unknown entry {did_you_mean(name, known_entries)}; "
                f"a study has {join_or(known_entries, ' and ')}"
            )
    models = settings.pop("models", None)
    if not isinstance(models, dict) or not all(isinstance(x, dict) for x in models.values()):
        raise InputError(f"{file}: no models; give each as a table, for example [models.mine]")
    parsers: dict[str, Callable[[Any], object]] = {
        "horizons": lambda x: math.inf if x in ("inf", "infinite") else x,
        "methods": _parse_method,
        "policy_classes": partial(_parse_policy_class, file.parent),
    }
    try:
        for name in parsers.keys() & settings.keys():
            values = settings[name] if isinstance(settings[name], list) else [settings[name]]
            settings[name] = [parsers[name](x) for x in values]
        sources = {name: _make_source(dict(x), file.parent) for name, x in models.items()}
    except InputError as error:
        raise error.with_location(file) from None
    return {"models": sources, **settings}


def _parse_method(value: object) -> Method:
    """Parse a name, or a table such as {method = "cadp", n_init = 16}."""
    name, settings = _parse_name(value, "method", METHODS)
    return build_method(name, settings, str)


def _parse_policy_class(folder: Path, value: object) -> PolicyClass | str:
    """Parse a name or a table such as {policy_class = "memory", max_nodes = 2}."""
    name, settings = _parse_name(value, "policy_class", POLICY_CLASSES)
    if isinstance(settings.get("groups"), str):
        settings["groups"] = folder / settings["groups"]
    if not settings and name in REQUIRED_SETTINGS:
        setting = REQUIRED_SETTINGS[name]
        raise InputError(
            f'policy {name} needs {setting}; write {{policy_class = "{name}", {setting} = ...}}'
        )
    policy_class = POLICY_CLASSES[name]
    _check_settings(settings, inspect.signature(policy_class).parameters)
    return policy_class(**settings) if settings else name


def _parse_name(value: object, role: str, known_names: Collection[str]) -> tuple[str, Settings]:
    """Parse the name of a method or policy class, and its settings."""
    settings = dict(value) if isinstance(value, dict) else {role: value}
    name = str(settings.pop(role, ""))
    check_name(role, name, known_names)
    return name, settings


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
        domains = mmdp.domains.DOMAINS
        check_name("domain", name, domains)
        _check_settings(settings, inspect.signature(domains[name]).parameters)
        source = partial(domains[name], **settings)
    elif source_types == ["data"]:
        _check_settings(settings, [*list_load_settings(), "discount", "initial"])
        data = TrainingData(folder / name, **settings)
        source = (train := data.read(), data.read_test(train))
    else:
        source = tuple(mmdp.fit(folder / name, **settings))
    return source if n_models is None else partial(take_first_models, source, n_models)


def take_first_models(source: Any, n_models: int) -> tuple[MMDP, MMDP | None]:
    """Take the first training models, with the test models as they are."""
    train, test = source() if callable(source) else source
    return train.subset(slice(n_models)), test


def _check_settings(settings: Settings, known_settings: Iterable[str]) -> None:
    """Refuse a setting that is not known."""
    known = list(known_settings)
    for name in settings:
        if name not in known:
            raise InputError(f"unknown option {did_you_mean(name, known)}")
