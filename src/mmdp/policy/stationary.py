"""Policies that are the same at all times, for problems without a last decision."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.arguments import checked
from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.kernels.endless import Endless
from mmdp.policy.base import labels_of
from mmdp.policy.kinds import PolicyKind
from mmdp.policy.markov import MarkovPolicy, TablePolicy
from mmdp.validate import check_whole

if TYPE_CHECKING:
    from mmdp.model import MMDP

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


@checked
@dataclass(frozen=True)
class Stationary(PolicyKind):
    """The same action in a state at all times.

    Over an infinite horizon the model must not vary with time. Without a discount its episodes must
    end by themselves: every policy must come to states that no action leaves or earns anything in.
    Terminal values play no part there, since there is no last decision. Over a number of decisions
    the policy is a table of time and state with equal rows.

    With ``randomised=True`` actions may be drawn at random: if one model needs another action than
    the others, a rule that sometimes takes it may earn more than every rule that never does.

    >>> import math, mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> solution = mmdp.solve(one, math.inf)
    >>> solution.policy, solution.value
    (StationaryPolicy(1 state, 2 actions, deterministic), 6.0)
    """

    randomised: bool = False

    name: ClassVar[str] = "stationary"
    title = "the state alone"
    change = "change of the action in a single state"
    endless = True
    masks = True
    restricted: ClassVar[bool] = True

    def over(self, horizon: float | None) -> Stationary:
        if horizon is None or horizon == math.inf:
            return Stationary(self.randomised)
        kind = copy.copy(self)
        put = object.__setattr__
        put(kind, "endless", False)
        put(kind, "masks", False)  # a decision binds those of other times
        return kind

    def policy_of(self, model: MMDP, table: npt.NDArray[Any]) -> TablePolicy:
        """Of a row; of a table of time and state with equal rows if there is a last decision."""
        policy = StationaryPolicy if self.endless else MarkovPolicy
        return policy.of_table(table, **labels_of(model))


class StationaryPolicy(TablePolicy):
    """One action (or a distribution over actions) for every state, at all times; frozen.

    Parameters
    ----------
    actions
        ``(S,)`` action ids; or
    probabilities
        ``(S, A)`` probabilities pi(s, a).
    n_actions, state_labels, action_labels, times
        As for :class:`mmdp.MarkovPolicy`.

    >>> import mmdp
    >>> policy = mmdp.StationaryPolicy([0, 1], action_labels=["run", "repair"])
    >>> policy.over(3).actions.tolist()
    [[0, 1], [0, 1], [0, 1]]
    """

    __slots__ = ()

    axes: ClassVar[tuple[str, ...]] = ("state",)

    @classmethod
    def of_row(cls, row: MarkovPolicy) -> StationaryPolicy:
        """The policy that repeats the only row of a table for ever."""
        if row.horizon != 1:
            raise InputError(f"a stationary policy has one row, not {row.horizon}")
        return cls.of_table(row.table[0], **row.labels)

    @property
    def kind(self) -> PolicyKind:
        return Stationary()

    @property
    def horizon(self) -> float:
        return math.inf

    @checked
    def over(self, horizon: int) -> MarkovPolicy:
        check_whole(horizon, "horizon")
        return MarkovPolicy.of_table(np.repeat(self.table[None], horizon, axis=0), **self.labels)

    def returns(self, model: MMDP, kernel: Kernel | None = None) -> Array:
        """(M,) its exact return on every model, over an infinite horizon."""
        return Endless.of(model.problem).returns(self.table_for(model))
