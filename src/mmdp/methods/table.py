"""The table of methods: which there are, and what each can do.

What a method can do is written down in its class, once (see
:class:`mmdp.methods.base.Method`). Help, errors, pages and this table read it from there.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, NamedTuple

from mmdp.errors import InputError, Remedy
from mmdp.kernels import Problem
from mmdp.methods.base import Method
from mmdp.methods.cadp import CADP
from mmdp.methods.exact import Exact
from mmdp.methods.gradient import Gradient, Mirror
from mmdp.methods.milp import MILP
from mmdp.methods.mixts import MixTS
from mmdp.methods.mvp import MVP
from mmdp.methods.oracle import Oracle
from mmdp.methods.pomcp import POMCP
from mmdp.methods.qmdp import QMDP
from mmdp.methods.rollout import Rollout
from mmdp.methods.wsu import WSU
from mmdp.model import MMDP
from mmdp.objective import Mean, Objective
from mmdp.policy import MarkovPolicy, MemoryPolicy, PolicyKind, StationaryPolicy
from mmdp.solution import Solution, Status
from mmdp.validate import check_whole_model
from mmdp.words import counted

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        CADP, WSU, MVP, Gradient, Mirror, Oracle, QMDP, MixTS, POMCP, Rollout, Exact, MILP,
    )
}  # fmt: skip
COMPARED = (CADP.name, WSU.name, MVP.name)  # side by side in a report, unless others are asked for


class Capabilities(NamedTuple):
    """A row of the table.

    ``drifts``: whether the method plans for models that change; ``options``: the fields of its
    class, a sentence each.
    """

    name: str
    title: str
    memory: str
    proves: Status | None
    objectives: tuple[str, ...]
    policies: tuple[str, ...]
    drifts: bool
    options: dict[str, str]


def capabilities() -> list[Capabilities]:
    """What every method can do; ``pandas.DataFrame(capabilities())`` makes it a table.

    >>> from mmdp.methods import capabilities
    >>> cadp, *_ = capabilities()
    >>> cadp.title, cadp.memory, cadp.proves.name
    ('coordinate ascent and dynamic programming', 'none', 'LOCAL_OPTIMUM')
    >>> cadp.options["max_iterations"]
    'Cap on the iterations of one start.'
    """
    return [
        Capabilities(
            name, x.title, x.memory, x.proves, x.objectives, x.policies, x.drifts, _sentences(x)
        )
        for name, x in METHODS.items()
    ]  # fmt: skip


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
    (['qmdp', 'mixts', 'pomcp', 'rollout'], ['exact', 'milp'])
    """
    return [
        name
        for name, x in METHODS.items()
        if (policy is None or policy in (x.policies or ("",)))
        and (objective is None or objective in x.objectives)
        and (optimal is None or (x.proves is Status.OPTIMAL) == optimal)
        and (drifts is None or x.drifts == drifts)
    ]


def title_of(name: str) -> str:
    """A method's name as people write it.

    >>> title_of("mixts"), title_of("my own")
    ('MixTS', 'my own')
    """
    return METHODS[name].__name__ if name in METHODS else name


# ---------------------------------------------------------------------- refusals
def check_finds(method: Method, kind: PolicyKind) -> None:
    """Refuse a method that finds no policy of this kind, and name those that do."""
    if kind.name not in method.policies:
        others = Remedy("method", *able(policy=kind.name), do="choose")
        raise InputError(f"{method.name} finds no {kind.name} policy", [others])


def check_gives_table(
    method: Method | type[Method], purpose: str, *remedies: str | Remedy, argument: str = "method"
) -> None:
    """Refuse a method without a policy of time and state, and name those that have one.

    ``argument`` is the name of the caller's own argument for methods.
    """
    if "markov" in method.policies:
        return
    why = "remembers what it has seen" if method.memory != "none" else "has one policy per model"
    others = Remedy(argument, *able(policy="markov"), do="choose")
    raise InputError(
        f"{purpose} a policy of time and state, and {method.name} {why}", [*remedies, others]
    )


def maximises(method: Method | type[Method], objective: Objective) -> bool:
    """Whether the method can maximise the objective."""
    kinds = {objective.kind, *(["regret"] if objective.regret else [])}
    return kinds <= {*method.objectives}


def check_spreads(method: Method, objective: Objective, kind: PolicyKind, problem: Problem) -> None:
    """Refuse what cannot be done with models spread over processes, if they are."""
    if not method.spreads:
        others = Remedy("method", *(x for x, y in METHODS.items() if y.spreads), do="choose")
        check_whole_model(problem, method.name, [others])
    if objective.kind != "mean" or objective.regret:
        check_whole_model(problem, f"objective {objective}", [Remedy("objective", "mean")])
    if kind.name != "markov":
        check_whole_model(problem, f"a {kind.name} policy", [Remedy("policy", "markov")])
    if getattr(method, "polish", 0.0):
        check_whole_model(problem, "polish", ["leave it out"])


def check_maximises(method: Method | type[Method], objective: Objective) -> None:
    """Refuse an objective that the method cannot maximise, and name the methods that can."""
    if maximises(method, objective):
        return
    others = [name for name, other in METHODS.items() if maximises(other, objective)]
    raise InputError(
        f"{method.name} cannot maximise {objective}", [Remedy("method", *others, do="choose")]
    )


def check_plans_for(method: Method | type[Method], objective: Objective, model: MMDP) -> None:
    """Refuse what cannot be asked about models that change."""
    if not model.drifts:
        return
    if not method.drifts:
        raise InputError(
            f"{method.name} plans for models that never change, and these do",
            [Remedy("method", *able(drifts=True), do="choose")],
        )
    if objective != Mean():
        raise InputError(
            f"for models that change only the mean can be maximised, not {objective}",
            [Remedy("objective", "mean")],
        )


def markov_policy(given: Any, purpose: str, **told: str) -> MarkovPolicy:
    """The policy of time and state that was given, or that a solution has."""
    if isinstance(given, MarkovPolicy):
        return given
    plain = given.policy if isinstance(given, Solution) else given
    if isinstance(plain, MemoryPolicy):
        nodes = counted(plain.n_nodes, "node")
        raise InputError(
            f"{purpose} a policy of time and state, and this one has {nodes} of memory"
        )
    if isinstance(plain, StationaryPolicy):
        raise InputError(
            f"{purpose} a policy of time and state, and this one is stationary",
            ["give policy.over(T), the same over T decisions"],
        )
    if not isinstance(given, Solution):
        raise InputError(
            f"{purpose} a MarkovPolicy or the Solution it comes from, not {type(given).__name__}"
        )
    if isinstance(given.policy, (MarkovPolicy, StationaryPolicy)):
        return markov_policy(given.policy, purpose, **told)
    if given.method in METHODS:
        check_gives_table(METHODS[given.method], purpose, **told)
    raise InputError(f"{purpose} a policy of time and state, and {given.method} has none")


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
