"""The table of methods: which there are, and what each can do.

A method is asked what it can do (:meth:`mmdp.methods.base.Method.lacks`): by help, errors, pages
and this table.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
from typing import NamedTuple

from mmdp.arguments import checked
from mmdp.errors import InputError, Remedy
from mmdp.methods.base import Method
from mmdp.methods.belief_grid import BeliefGrid
from mmdp.methods.cadp import CADP
from mmdp.methods.exact import Exact
from mmdp.methods.gradient import Gradient, Mirror
from mmdp.methods.milp import MILP
from mmdp.methods.mixts import MixTS
from mmdp.methods.mvp import MVP
from mmdp.methods.oracle import Oracle
from mmdp.methods.pomcp import POMCP
from mmdp.methods.qmdp import QMDP
from mmdp.methods.question import Question
from mmdp.methods.rollout import Rollout
from mmdp.methods.wsu import WSU
from mmdp.model import MMDP
from mmdp.objective import EXAMPLES, Custom, Mean, Objective, WorstCase, as_objective
from mmdp.policy import (
    Belief,
    Fixed,
    Markov,
    Memory,
    Monotone,
    PolicyKind,
    Stationary,
    Tied,
    Tree,
    read_kind,
)
from mmdp.solution import Status
from mmdp.words import suggested

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        CADP, WSU, MVP, Gradient, Mirror, Oracle, QMDP, MixTS, POMCP, Rollout, BeliefGrid,
        Exact, MILP,
    )
}  # fmt: skip
COMPARED = (CADP.name, WSU.name, MVP.name)  # side by side in a report by default


class Capabilities(NamedTuple):
    """A row of the table, found by asking the method about tiny models.

    ``policies``: the kinds of policy that it finds; ``lasting``: those over an infinite horizon.
    Both, and ``objectives``, are those for models that never change; ``drifts``: whether the
    method plans for models that do. ``options``: the fields of its class, a sentence each.
    """

    name: str
    title: str
    memory: str
    proves: Status | None
    objectives: tuple[str, ...]
    policies: tuple[str, ...]
    drifts: bool
    options: dict[str, str]
    lasting: tuple[str, ...]


def capabilities() -> list[Capabilities]:
    """What every method can do; ``pandas.DataFrame(capabilities())`` makes it a table.

    >>> from mmdp.methods import capabilities
    >>> cadp, *_ = capabilities()
    >>> cadp.title, cadp.memory, cadp.proves.name
    ('coordinate ascent and dynamic programming', 'none', 'LOCAL_OPTIMUM')
    >>> cadp.options["max_iterations"]
    'Cap on the iterations of one start.'
    """
    return [_row(name) for name in METHODS]


@functools.cache
def _row(name: str) -> Capabilities:
    method, alone = METHODS[name], METHODS[name]()

    def kinds(horizon: float) -> tuple[str, ...]:
        if method.finds is None:
            return ()
        return tuple(x.name for x in KINDS_SAMPLED if can(alone, sample(), horizon, Mean(), x))

    objectives = (key for key, x in OBJECTIVES_SAMPLED.items() if can(alone, sample(), 2, x))
    return Capabilities(
        name, method.title, "belief" if method.default(None).learns else "none",
        method.proves, tuple(objectives), tuple(dict.fromkeys([*kinds(2), *kinds(math.inf)])),
        can(alone, sample(changes=True), 2, Mean()), _sentences(method), kinds(math.inf),
    )  # fmt: skip


@checked
def able(
    *,
    policy: str | None = None,
    objective: str | None = None,
    optimal: bool | None = None,
    drifts: bool | None = None,
) -> list[str]:
    """The names of the methods that can do what is asked.

    ``policy`` and ``objective`` are names as in :class:`Capabilities`; a ``policy`` of ``""``
    means no single policy. ``optimal``: whether the method can prove its answer optimal.
    ``drifts``: whether it plans for models that change.

    >>> able(policy="belief"), able(policy="markov", optimal=True)
    (['qmdp', 'mixts', 'pomcp', 'rollout', 'grid'], ['exact', 'milp'])
    """
    every = capabilities()
    for what, name, known in (
        ("policy", policy, {"", *(y for x in every for y in x.policies)}),
        ("objective", objective, {y for x in every for y in x.objectives}),
    ):
        if name is not None and name not in known:
            raise InputError(f"no {what} is called {suggested(name, known)}")
    return [
        x.name
        for x in every
        if (policy is None or policy in (x.policies or ("",)))
        and (objective is None or objective in x.objectives)
        and (optimal is None or (x.proves is Status.OPTIMAL) == optimal)
        and (drifts is None or x.drifts == drifts)
    ]


def by_case() -> dict[str, list[str]]:
    """The methods for what not every method can do, in words."""
    return {
        "models that change over time": able(drifts=True),
        "an infinite horizon": [x.name for x in capabilities() if x.lasting],
        "a tied or monotone policy": able(policy="tied"),
        "objectives other than the mean": able(objective="cvar"),
    }


# ---------------------------------------------------------------------- asking
def asked(
    method: Method, model: MMDP, horizon: float | None, objective: Objective,
    policy: str | PolicyKind | None = None,
) -> Question:  # fmt: skip
    """The question; InputError with the methods that can answer it if this one cannot.

    Without a ``policy`` it is about the kind that the method finds.
    """
    question, reason = _answer(method, model, horizon, objective, policy)
    if reason is None:
        return question
    others = [
        name for name, other in METHODS.items()
        if other.finds is not None and can(other(), model, horizon, objective, policy)
    ]  # fmt: skip
    remedies: list[str | Remedy] = [Remedy("method", *others, do="choose")] if others else []
    if question.not_whole():
        remedies.append("load the models without part=")
    raise InputError(f"{method.name} cannot do this: {reason}", remedies)


def can(
    method: Method, model: MMDP, horizon: float | None, objective: Objective,
    policy: PolicyKind | str | None = None,
) -> bool:  # fmt: skip
    """Whether the method can answer the question."""
    try:
        return _answer(method, model, horizon, objective, policy)[1] is None
    except InputError:  # there is no such question
        return False


def _answer(
    method: Method, model: MMDP, horizon: float | None, objective: Objective,
    policy: PolicyKind | str | None,
) -> tuple[Question, str | None]:  # fmt: skip
    """The question, and what the method lacks."""
    kind = method.default(horizon) if policy is None else read_kind(policy)
    question = Question(model, horizon, objective, kind)
    return question, method.lacks(question)


KINDS_SAMPLED = (
    Markov(), Tied([0]), Monotone(), Fixed([0]), Tree(), Memory(), Stationary(), Belief(),
)  # fmt: skip
OBJECTIVES_SAMPLED: dict[str, Objective] = {
    **{x.kind: x for x in map(as_objective, EXAMPLES.split(", "))},
    Custom.kind: Custom(lambda returns, weights: returns @ weights),
    "regret": WorstCase().of_regret(),
}


@functools.cache
def sample(*, changes: bool = False) -> MMDP:
    """Two tiny models to ask about."""
    chain = [[0.5, 0.5]] * 2 if changes else None
    return MMDP([[[[1.0], [1.0]]]] * 2, [[1.0, 0.0]], discount=0.5, model_transitions=chain)


# ---------------------------------------------------------------------- names and tables of actions
def title_of(name: str) -> str:
    """A method's name as people write it.

    >>> title_of("mixts"), title_of("my own")
    ('MixTS', 'my own')
    """
    return METHODS[name].__name__ if name in METHODS else name


def need_table(
    method: type[Method], purpose: str, *remedies: str | Remedy, argument: str = "method"
) -> None:
    """Refuse a method without a policy of time and state, and name those that have one.

    ``argument`` is the name of the caller's own argument for methods.
    """
    if method.finds is not None and not method.finds.learns:
        return
    why = "has one policy per model" if method.finds is None else "remembers what it has seen"
    others = Remedy(argument, *able(policy="markov"), do="choose")
    raise InputError(
        f"{purpose} a policy of time and state, and {method.name} {why}", [*remedies, others]
    )


# ---------------------------------------------------------------------- options
_PARAMETER = re.compile(r"^(\w+)\n((?: {4}.*\n?|\n(?= {4}))+)", re.M)


def _sentences(method: type[Method]) -> dict[str, str]:
    """Options of a method with the first sentence of each from the docstring."""
    found: dict[str, str] = {}
    for kind in reversed(method.__mro__):
        _, _, parameters = inspect.cleandoc(kind.__doc__ or "").partition("Parameters\n------")
        for name, text in _PARAMETER.findall(parameters):
            plain = " ".join(re.sub(r":\w+:`(.*?)`|``", r"\1", text).split())
            found.setdefault(name, re.split(r"(?<=\.)\s", plain)[0])
    return {x.name: found.get(x.name, "") for x in dataclasses.fields(method)}  # type: ignore[arg-type]
