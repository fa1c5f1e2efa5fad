"""The policy that a local search begins with."""

from __future__ import annotations

from mmdp.errors import InputError
from mmdp.kernels.problem import Array, Table
from mmdp.methods.base import Context
from mmdp.methods.mvp import mvp_actions
from mmdp.policy import MarkovPolicy


def start_policy(
    context: Context, init: str | MarkovPolicy, seed: int | None
) -> tuple[Table, Array | None]:
    """The policy table a local search starts from, with its returns if they come for free."""
    if isinstance(init, MarkovPolicy):
        init.check(context.model, context.horizon)
        return init.table_for(context.model), None
    if init == "wsu":
        return context.wsu()
    if init == "mvp":
        return mvp_actions(context), None
    if init == "random":
        return MarkovPolicy.random(context.model, context.horizon, seed).table, None
    if init == "uniform":
        return MarkovPolicy.uniform(context.model, context.horizon).table, None
    raise InputError(
        f"no start is called {init!r}; choose wsu, mvp, random, uniform, mirror, gradient or "
        "give a MarkovPolicy"
    )
