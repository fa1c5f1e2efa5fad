"""Which landscape belongs to a kind of policy."""

from __future__ import annotations

from mmdp.kernels.problem import Sweeps
from mmdp.policy import Monotone, PolicyKind, Stationary, Tied, Tree
from mmdp.search.context import Context
from mmdp.search.landscape import Landscape
from mmdp.search.rules import Daily, MonotoneRules, Rules, TiedRules
from mmdp.search.tables import MonotoneTables, Tables, TiedTables
from mmdp.search.trees import Trees

# Those whose decisions bind each other; the actions that a kind leaves open are the plan's. A kind
# of your own is added here.
LANDSCAPES: dict[type[PolicyKind], type[Landscape]] = {
    Monotone: MonotoneTables, Tied: TiedTables, Tree: Trees, Stationary: Daily,
}  # fmt: skip
RULES: dict[type[PolicyKind], type[Landscape]] = {
    Monotone: MonotoneRules, Tied: TiedRules, Tree: Trees,
}  # fmt: skip


def landscape_of(context: Context, sweeps: Sweeps = "two-way") -> Landscape:
    """The landscape of the policies that the context asks for."""
    kind = type(context.kind)
    found = RULES.get(kind, Rules) if context.kind.endless else LANDSCAPES.get(kind, Tables)
    return found(context, sweeps)
