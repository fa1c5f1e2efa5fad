"""Conventions of the public functions: seeds, and the model before the policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import mmdp
from mmdp import (
    domains,
    economics,
    interop,
    io,
    measures,
    methods,
    policies,
    posterior,
    report,
    testing,
)

MODULES = (
    mmdp,
    domains,
    economics,
    interop,
    io,
    measures,
    methods,
    policies,
    posterior,
    report,
    testing,
)


def list_public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, classes and their methods that a module names as its own."""
    for module in MODULES:
        for name in getattr(module, "__all__", dir(module)):
            member = getattr(module, name)
            if name.startswith("_") or not callable(member):
                continue
            yield f"{module.__name__}.{name}", member
            if inspect.isclass(member):
                for inner, method in inspect.getmembers(member, callable):
                    if not inner.startswith("_"):
                        yield f"{module.__name__}.{name}.{inner}", method


def list_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except ValueError:  # of a type written in C
        return {}


def test_seeds_default_to_0() -> None:
    seeds = {
        name: list_parameters(x)["seed"]
        for name, x in list_public_functions()
        if "seed" in list_parameters(x)
    }
    assert {"mmdp.solve", "mmdp.domains.hiv", "mmdp.policies.MarkovPolicy.random"} <= set(seeds)
    assert len(seeds) > 20
    other_seeds = {n: x for n, x in seeds.items() if x.default not in (0, inspect.Parameter.empty)}
    assert other_seeds == {}


def test_the_model_comes_before_the_policy() -> None:
    orders = {
        name: [x for x in list_parameters(function) if x in ("policy", "model")]
        for name, function in list_public_functions()
        # a hook that mmdp calls; a policy with an optional model; a result
        if not name.endswith((".policy_to_table", ".export", ".NearOptimalActions"))
    }
    orders_of_both = {name: order for name, order in orders.items() if len(order) == 2}
    assert {
        "mmdp.evaluate",
        "mmdp.measures.policy_gradient",
        "mmdp.measures.model_weights",
        "mmdp.simulate",
    } <= set(orders_of_both)
    assert {name for name, order in orders_of_both.items() if order != ["model", "policy"]} == set()
