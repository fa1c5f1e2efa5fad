"""The table of kinds of policy."""

from __future__ import annotations

from typing import Any

from mmdp.arguments import checked
from mmdp.errors import InputError
from mmdp.policy.kinds import Belief, PolicyKind
from mmdp.policy.markov import Markov
from mmdp.policy.memory import Memory
from mmdp.policy.restricted import Fixed, Monotone, Tied
from mmdp.policy.stationary import Stationary
from mmdp.policy.tree import Tree
from mmdp.words import either, suggested

KINDS: dict[str, type[PolicyKind]] = {
    kind.name: kind for kind in (Markov, Memory, Stationary, Tied, Monotone, Fixed, Tree, Belief)
}


@checked
def read_kind(given: Any) -> PolicyKind:
    """The kind of policy that was asked for, by name or as an object.

    >>> read_kind("markov"), read_kind(Monotone())
    (Markov(), Monotone(states=None, actions=None))
    """
    if isinstance(given, PolicyKind):
        return given
    if isinstance(given, type) and issubclass(given, PolicyKind):
        return given.by_name()
    if not isinstance(given, str):
        raise InputError(
            f"policy must be the name of a kind of policy or an object such as mmdp.Monotone(), "
            f"not {given!r}"
        )
    if given not in KINDS:
        raise InputError(
            f"no kind of policy is called {suggested(given, KINDS)}; choose {either(KINDS)}"
        )
    return KINDS[given].by_name()
