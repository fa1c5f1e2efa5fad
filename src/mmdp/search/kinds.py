"""Which landscape belongs to a kind of policy."""

from __future__ import annotations

from mmdp.kernels.problem import Sweeps
from mmdp.policy import Monotone, PolicyKind, Tied, Tree
from mmdp.search.context import Context
from mmdp.search.landscape import Landscape
from mmdp.search.rules import MonotoneRules, Rules, TiedRules
from mmdp.search.tables import MonotoneTables, Tables, TiedTables
from mmdp.search.trees import Trees

# those whose rows are restricted; the actions that a kind leaves open are the plan's
TABLES: dict[type[PolicyKind], type[Tables]] = {Tied: TiedTables, Monotone: MonotoneTables}
RULES: dict[type[PolicyKind], type[Rules]] = {Tied: TiedRules, Monotone: MonotoneRules}


def landscape_of(context: Context, sweeps: Sweeps = "two-way") -> Landscape:
    """The landscape of the policies that the context asks for."""
    kind = type(context.kind)
    if kind is Tree:
        return Trees(context)
    if context.kind.endless:
        return RULES.get(kind, Rules)(context)
    return TABLES.get(kind, Tables)(context, sweeps)
