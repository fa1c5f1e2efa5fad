"""Stationary policies: the same action in a state at all times."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError
from mmdp.core.kernels import Backend
from mmdp.core.kernels.infinite import InfiniteHorizon
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.policies.base import get_label_kwargs
from mmdp.core.policies.classes import PolicyClass
from mmdp.core.policies.markov import MarkovPolicy, TablePolicy
from mmdp.core.validate import check_int

if TYPE_CHECKING:
    from mmdp.core.model import MMDP

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


@check_arguments
@dataclass(frozen=True)
class Stationary(PolicyClass):
    """Stationary policies pi(s): the action depends on the state alone.

    Over an infinite horizon the model must not vary with time. Without a discount its episodes must
    end by themselves: every policy must come to states that no action leaves or earns anything in.
    Terminal values play no part there, since there is no last decision. Over a number of decisions
    the policy is a table of time and state with equal rows.

    With ``randomized=True`` actions may be drawn at random: if one model needs another action than
    the others, a rule that sometimes takes it may earn more than every rule that never does.

    >>> import math, mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> solution = mmdp.solve(one, math.inf)
    >>> solution.policy, solution.value
    (StationaryPolicy(1 state, 2 actions, deterministic), 6.0)
    """

    randomized: bool = False

    name: ClassVar[str] = "stationary"
    decision_inputs = "the state alone"
    change_text = "change of the action in a single state"
    is_infinite_horizon = True
    is_action_mask = True
    is_restricted: ClassVar[bool] = True

    def for_horizon(self, horizon: float | None) -> Stationary:
        """Return the class for the horizon: with a finite one, tables of equal rows."""
        if horizon is None or horizon == math.inf:
            return Stationary(self.randomized)
        policy_class = copy.copy(self)
        set_attribute = object.__setattr__
        set_attribute(policy_class, "is_infinite_horizon", False)
        set_attribute(
            policy_class, "is_action_mask", False
        )  # a decision binds those of other times
        return policy_class

    def make_policy(self, model: MMDP, table: PolicyTable) -> TablePolicy:
        """Make a stationary policy of a row; over a finite horizon, a Markov policy of a table."""
        policy_type = StationaryPolicy if self.is_infinite_horizon else MarkovPolicy
        return policy_type.from_table(table, **get_label_kwargs(model))


class StationaryPolicy(TablePolicy):
    """Stationary policy: an action (or a distribution over actions) by state; immutable.

    Parameters
    ----------
    actions
        ``(S,)`` action ids; or
    probabilities
        ``(S, A)`` probabilities pi(s, a).
    n_actions, state_labels, action_labels, time_labels
        As for :class:`mmdp.policies.MarkovPolicy`.

    >>> import mmdp
    >>> policy = mmdp.policies.StationaryPolicy([0, 1], action_labels=["run", "repair"])
    >>> policy.to_markov(3).actions.tolist()
    [[0, 1], [0, 1], [0, 1]]
    """

    __slots__ = ()

    axes: ClassVar[tuple[str, ...]] = ("state",)

    @classmethod
    def from_row(cls, row: MarkovPolicy) -> StationaryPolicy:
        """Make the stationary policy of a Markov policy with one row."""
        if row.horizon != 1:
            raise InputError(f"a stationary policy has one row, not {row.horizon}")
        return cls.from_table(row.table[0], **row.label_kwargs)

    @property
    def policy_class(self) -> PolicyClass:
        """Class of all stationary policies."""
        return Stationary()

    @property
    def horizon(self) -> float:
        """Infinity: the policy has no last decision."""
        return math.inf

    @check_arguments
    def to_markov(self, horizon: int) -> MarkovPolicy:
        """Repeat the policy over a finite horizon as a Markov policy."""
        check_int(horizon, "horizon", item_bytes=self.table.nbytes)
        return MarkovPolicy.from_table(
            np.repeat(self.table[None], horizon, axis=0), **self.label_kwargs
        )

    def compute_returns(self, model: MMDP, backend: Backend | None = None) -> Array:
        """Compute the exact infinite-horizon return of the policy on every model, (M,)."""
        return InfiniteHorizon.from_problem(model.problem).compute_returns(self.to_table(model))
