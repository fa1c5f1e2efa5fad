"""The registry of methods, and their capabilities.

Help, errors, pages and this table find the capabilities of a method by calling
:meth:`mmdp.methods.base.Method.unsupported_reason`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
from typing import NamedTuple

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.methods.base import (
    Callback,
    Method,
    MethodResult,
    ProblemSpec,
    Progress,
    SolveContext,
)
from mmdp.core.methods.baselines import MVP, WSU, MirrorAscent, NaturalGradient, Oracle
from mmdp.core.methods.belief import POMCP, QMDP, MixTS, Rollout
from mmdp.core.methods.belief_grid import BeliefGrid
from mmdp.core.methods.cadp import CADP
from mmdp.core.methods.exact import Exact
from mmdp.core.methods.milp import MILP
from mmdp.core.model import MMDP
from mmdp.core.objectives import (
    EXAMPLE_TEXTS,
    CustomObjective,
    Mean,
    Objective,
    WorstCase,
    as_objective,
)
from mmdp.core.policies import POLICY_CLASSES, Fixed, PolicyClass, Tied, as_policy_class
from mmdp.core.solution import Status
from mmdp.core.text import did_you_mean

__all__ = [
    "CADP",
    "METHODS",
    "MILP",
    "MVP",
    "POMCP",
    "QMDP",
    "WSU",
    "BeliefGrid",
    "Callback",
    "Capabilities",
    "Exact",
    "Method",
    "MethodResult",
    "MirrorAscent",
    "MixTS",
    "NaturalGradient",
    "Oracle",
    "ProblemSpec",
    "Progress",
    "Rollout",
    "SolveContext",
    "list_capabilities",
    "methods_supporting",
]

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        CADP,
        WSU,
        MVP,
        NaturalGradient,
        MirrorAscent,
        Oracle,
        QMDP,
        MixTS,
        POMCP,
        Rollout,
        BeliefGrid,
        Exact,
        MILP,
    )
}
DEFAULT_COMPARISON = (CADP.name, WSU.name, MVP.name)  # side by side in a report by default


class Capabilities(NamedTuple):
    """Capabilities of a method, found by asking it about tiny models.

    ``policy_classes``: names of the classes that it finds ("": one policy per model);
    ``infinite_horizon_classes``: those over an infinite horizon. Both, and ``objectives``, are
    those for models that do not switch; ``supports_switching``: whether the method plans for models
    that do. ``options``: the fields of its class with the first sentence of their description.
    """

    name: str
    title: str
    memory: str
    best_status: Status | None
    objectives: tuple[str, ...]
    policy_classes: tuple[str, ...]
    supports_switching: bool
    options: dict[str, str]
    infinite_horizon_classes: tuple[str, ...]


def list_capabilities() -> list[Capabilities]:
    """List the capabilities of all methods; ``pandas.DataFrame(list_capabilities())`` is a table.

    >>> from mmdp.core.methods import list_capabilities
    >>> cadp, *_ = list_capabilities()
    >>> cadp.title, cadp.memory, cadp.best_status.name
    ('coordinate ascent and dynamic programming', 'none', 'LOCAL_OPTIMUM')
    >>> cadp.options["max_iter"]
    'Cap on the sweeps of one ascent.'
    """
    return [_find_capabilities(name) for name in METHODS]


@functools.cache
def _find_capabilities(name: str) -> Capabilities:
    """Find the capabilities of a method by asking it about tiny models."""
    method_type, method = METHODS[name], METHODS[name]()
    supports_sample = functools.partial(supports, method, make_sample_model())

    def find_classes(horizon: float) -> tuple[str, ...]:
        """Return the names of the policy classes that the method finds over a horizon."""
        if method_type.default_class is None:  # "" is one policy per model
            return ("",) * supports_sample(horizon, Mean())
        return tuple(x.name for x in SAMPLE_CLASSES if supports_sample(horizon, Mean(), x))

    objectives = (key for key, x in SAMPLE_OBJECTIVES.items() if supports_sample(2, x))
    return Capabilities(
        name,
        method_type.title,
        "belief" if method_type.default_class_for(None).uses_belief else "none",
        method_type.best_status,
        tuple(objectives),
        tuple(dict.fromkeys([*find_classes(2), *find_classes(math.inf)])),
        supports(method, make_sample_model(switching=True), 2, Mean()),
        _read_option_docs(method_type),
        find_classes(math.inf),
    )


@check_arguments
def methods_supporting(
    *,
    policy_class: str | None = None,
    objective: str | None = None,
    proves_optimal: bool | None = None,
    switching: bool | None = None,
) -> list[str]:
    """List the names of the methods with the given capabilities.

    ``policy_class`` and ``objective`` are names as in :class:`Capabilities`; ``policy_class=""``
    means one policy per model. ``proves_optimal``: whether the method can prove optimality.
    ``switching``: whether it plans for switching models.

    >>> methods_supporting(policy_class="belief")
    ['qmdp', 'mixts', 'pomcp', 'rollout', 'grid']
    >>> methods_supporting(policy_class="markov", proves_optimal=True)
    ['exact', 'milp']
    """
    for argument, name, names in (
        ("policy_class", policy_class, ["", *POLICY_CLASSES]),
        ("objective", objective, SAMPLE_OBJECTIVES),
    ):
        if name is not None and name not in names:
            raise InputError(f"no {argument} is called {did_you_mean(name, names)}")
    return [
        row.name
        for row in list_capabilities()
        if (policy_class is None or policy_class in row.policy_classes)
        and (objective is None or objective in row.objectives)
        and (proves_optimal is None or (row.best_status is Status.OPTIMAL) == proves_optimal)
        and (switching is None or row.supports_switching == switching)
    ]


def methods_by_feature() -> dict[str, list[str]]:
    """List the methods for each feature that not every method supports."""
    return {
        "models that change over time": methods_supporting(switching=True),
        "an infinite horizon": [
            row.name for row in list_capabilities() if row.infinite_horizon_classes
        ],
        "a tied or monotone policy": methods_supporting(policy_class="tied"),
        "objectives other than the mean": methods_supporting(objective="cvar"),
    }


# ---------------------------------------------------------------------- asking
def check_supported(
    method: Method,
    model: MMDP,
    horizon: float | None,
    objective: Objective,
    policy_class: str | PolicyClass | None = None,
) -> ProblemSpec:
    """Return the problem spec; InputError if the method does not support it, with those that do.

    Without a ``policy_class`` it is the default of the method.
    """
    spec = _make_spec(method, model, horizon, objective, policy_class)
    if (reason := method.unsupported_reason(spec)) is None:
        return spec
    other_methods = [
        name
        for name, method_type in METHODS.items()
        if method_type.default_class is not None
        and supports(method_type(), model, horizon, objective, policy_class)
    ]
    remedies: list[str | Remedy] = (
        [Remedy("method", *other_methods, verb="choose")] if other_methods else []
    )
    if spec.reason_if_sharded():
        remedies.append("load the models without shard=")
    raise InputError(f"{method.name} cannot do this: {reason}", remedies)


def supports(
    method: Method,
    model: MMDP,
    horizon: float | None,
    objective: Objective,
    policy_class: PolicyClass | str | None = None,
) -> bool:
    """Return whether the method can solve the problem."""
    try:
        spec = _make_spec(method, model, horizon, objective, policy_class)
        return method.unsupported_reason(spec) is None
    except InputError:  # there is no such question
        return False


def _make_spec(
    method: Method,
    model: MMDP,
    horizon: float | None,
    objective: Objective,
    policy_class: PolicyClass | str | None,
) -> ProblemSpec:
    """Return the problem spec; without a policy class, with the default of the method."""
    resolved_class = (
        method.default_class_for(horizon) if policy_class is None else as_policy_class(policy_class)
    )
    return ProblemSpec(model, horizon, objective, resolved_class)


SAMPLE_CLASSES = [
    x([0]) if x in (Fixed, Tied) else x()  # type: ignore[call-arg]
    for x in POLICY_CLASSES.values()
]
SAMPLE_OBJECTIVES: dict[str, Objective] = {
    **{x.key: x for x in map(as_objective, EXAMPLE_TEXTS.split(", "))},
    CustomObjective.key: CustomObjective(lambda returns, weights: returns @ weights),
    "regret": WorstCase().on_regret(),
}


@functools.cache
def make_sample_model(*, switching: bool = False) -> MMDP:
    """Make two tiny models for finding capabilities."""
    model_transitions = [[0.5, 0.5]] * 2 if switching else None
    return MMDP(
        [[[[1.0], [1.0]]]] * 2, [[1.0, 0.0]], discount=0.5, model_transitions=model_transitions
    )


# ---------------------------------------------------------------------- names and tables of actions
def format_method_name(name: str) -> str:
    """Return the display name of a method.

    >>> format_method_name("mixts"), format_method_name("my own")
    ('MixTS', 'my own')
    """
    return METHODS[name].__name__ if name in METHODS else name


def require_markov_method(method: type[Method], purpose: str, *remedies: str | Remedy) -> None:
    """Raise InputError unless the method computes a Markov policy, and name those that do."""
    if method.default_class is not None and not method.default_class.uses_belief:
        return
    reason = (
        "has one policy per model" if method.default_class is None else "remembers what it has seen"
    )
    other_methods = Remedy("method", *methods_supporting(policy_class="markov"), verb="choose")
    raise InputError(
        f"{purpose} a policy of time and state, and {method.name} {reason}",
        [*remedies, other_methods],
    )


# ---------------------------------------------------------------------- options
_PARAMETER_PATTERN = re.compile(r"^(\w+)\n((?: {4}.*\n?|\n(?= {4}))+)", re.M)


def _read_option_docs(method: type[Method]) -> dict[str, str]:
    """Return the options of a method with the first sentence of each from the docstring."""
    sentences: dict[str, str] = {}
    for base in reversed(method.__mro__):
        _, _, parameters = inspect.cleandoc(base.__doc__ or "").partition("Parameters\n------")
        for name, text in _PARAMETER_PATTERN.findall(parameters):
            plain_text = " ".join(re.sub(r":\w+:`(.*?)`|``", r"\1", text).split())
            sentences.setdefault(name, re.split(r"(?<=\.)\s", plain_text)[0])
    return {field.name: sentences.get(field.name, "") for field in dataclasses.fields(method)}  # type: ignore[arg-type]
