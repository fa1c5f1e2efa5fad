"""Conventions of the public functions: seeds, and the policy before the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import mmdp
from mmdp import domains, economics, ecosystem, io, measures, methods, posterior, report, testing

MODULES = (mmdp, domains, economics, ecosystem, io, measures, methods, posterior, report, testing)


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, classes and their methods that a module names as its own."""
    for module in MODULES:
        for name in getattr(module, "__all__", dir(module)):
            found = getattr(module, name)
            if name.startswith("_") or not callable(found):
                continue
            yield f"{module.__name__}.{name}", found
            if inspect.isclass(found):
                for inner, method in inspect.getmembers(found, callable):
                    if not inner.startswith("_"):
                        yield f"{module.__name__}.{name}.{inner}", method


def parameters(found: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(found).parameters)
    except ValueError:  # of a type written in C
        return {}


def test_seeds_default_to_0() -> None:
    seeds = {name: parameters(x)["seed"] for name, x in public() if "seed" in parameters(x)}
    assert {"mmdp.solve", "mmdp.domains.hiv", "mmdp.MarkovPolicy.random"} <= set(seeds)
    assert len(seeds) > 20
    others = {n: x for n, x in seeds.items() if x.default not in (0, inspect.Parameter.empty)}
    assert others == {}


def test_the_policy_comes_before_the_model() -> None:
    orders = {
        name: [x for x in parameters(found) if x in ("policy", "model")]
        for name, found in public()
        # about a model first of all; the policy of solve() and of the sweep is a kind of policy
        if not name.endswith(
            ("report.write", "report.draw", ".coverage", ".solve", ".willingness_to_pay")
        )
    }
    both = {name: order for name, order in orders.items() if len(order) == 2}
    assert {"mmdp.evaluate", "mmdp.gradient", "mmdp.model_weights", "mmdp.simulate"} <= set(both)
    assert {name for name, order in both.items() if order != ["policy", "model"]} == set()
