"""Policies that are the same at all times, for problems without a last decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError, Remedy
from mmdp.kernels import Kernel
from mmdp.kernels.endless import Endless, check_endless, planning_horizon
from mmdp.policy.kinds import PolicyKind
from mmdp.policy.markov import MarkovPolicy
from mmdp.validate import by_label
from mmdp.words import counted

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.model import MMDP

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Stationary(PolicyKind):
    """The same action in a state at all times, over an infinite horizon.

    The model must not vary with time and needs a discount below 1. Its terminal values play no
    part, since there is no end.

    >>> import math, mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> solution = mmdp.solve(one, math.inf)
    >>> solution.policy, solution.value
    (StationaryPolicy(1 state, 2 actions, deterministic), 6.0)
    """

    name: ClassVar[str] = "stationary"
    title: ClassVar[str] = "the state alone"
    change: ClassVar[str] = "change of the action in a single state"
    endless: ClassVar[bool] = True
    restricted: ClassVar[bool] = True

    def steps(self, model: MMDP, horizon: float | None) -> int:
        """The number of decisions for which a policy of time and state is put beside it."""
        if horizon is not None and horizon != math.inf:
            raise InputError(
                f"a stationary policy is for an infinite horizon, not for {horizon} decisions",
                [Remedy("horizon", math.inf), Remedy("policy", "markov")],
            )
        check_endless(model.problem, model.horizon)
        return planning_horizon(model.problem)

    def policy_of(self, model: MMDP, table: npt.NDArray[Any]) -> StationaryPolicy:
        return StationaryPolicy.of_row(MarkovPolicy.for_model(model, table[None]))


class StationaryPolicy:
    """One action (or a distribution over actions) for every state, at all times; frozen.

    Parameters
    ----------
    actions
        ``(S,)`` action ids; or
    probabilities
        ``(S, A)`` probabilities pi(s, a).
    n_actions, state_labels, action_labels
        As for :class:`mmdp.MarkovPolicy`.

    >>> import mmdp
    >>> policy = mmdp.StationaryPolicy([0, 1], action_labels=["run", "repair"])
    >>> policy.over(3).actions.tolist()
    [[0, 1], [0, 1], [0, 1]]
    """

    __slots__ = ("row",)

    row: MarkovPolicy
    kind: ClassVar[PolicyKind] = Stationary()
    horizon: ClassVar[float] = math.inf

    def __init__(
        self,
        actions: npt.ArrayLike | None = None,
        *,
        probabilities: npt.ArrayLike | None = None,
        n_actions: int | None = None,
        state_labels: Sequence[str] | None = None,
        action_labels: Sequence[str] | None = None,
    ) -> None:
        given = by_label(actions, "the policy", state_labels)
        shares = by_label(probabilities, "the policy", state_labels, action_labels)
        row = MarkovPolicy(
            None if given is None else [given],
            probabilities=None if shares is None else [shares],
            n_actions=n_actions, state_labels=state_labels, action_labels=action_labels,
        )  # fmt: skip
        object.__setattr__(self, "row", row)

    @classmethod
    def of_row(cls, row: MarkovPolicy) -> StationaryPolicy:
        """The policy that repeats the only row of a table for ever."""
        if row.horizon != 1:
            raise InputError(f"a stationary policy has one row, not {row.horizon}")
        policy = cls.__new__(cls)
        object.__setattr__(policy, "row", row)
        return policy

    @property
    def deterministic(self) -> bool:
        return self.row.deterministic

    @property
    def n_states(self) -> int:
        return self.row.n_states

    @property
    def n_actions(self) -> int:
        return self.row.n_actions

    @property
    def actions(self) -> IntArray:
        """(S,) action ids; of a randomised policy, the most probable action."""
        return self.row.actions[0]

    @property
    def probabilities(self) -> Array:
        """(S, A) pi(s, a)."""
        return self.row.probabilities[0]

    @property
    def table(self) -> npt.NDArray[Any]:
        """(S,) actions or (S, A) probabilities."""
        row: npt.NDArray[Any] = self.row.table[0]
        return row

    def over(self, horizon: int) -> MarkovPolicy:
        """The same decisions as a policy of time and state over ``horizon`` decisions."""
        row = self.row
        table = np.repeat(row.table, horizon, axis=0)
        return MarkovPolicy(
            table if row.deterministic else None,
            probabilities=None if row.deterministic else table,
            n_actions=row.n_actions, state_labels=row.state_labels,
            action_labels=row.action_labels,
        )  # fmt: skip

    def check(self, model: MMDP) -> None:
        """Raise InputError unless this policy can be followed in ``model`` for ever."""
        check_endless(model.problem, model.horizon)
        self.row.check(model)

    def returns(self, model: MMDP, kernel: Kernel | None = None) -> Array:
        """(M,) its exact return on every model, over an infinite horizon."""
        return Endless.of(model.problem).returns(self.row.table_for(model)[0])

    def to_frame(self) -> pd.DataFrame:
        """The policy as a tidy table: ``state, action``, ``probability`` if randomised."""
        return self.row.to_frame().drop(columns="time")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("StationaryPolicy is frozen")

    def __getstate__(self) -> MarkovPolicy:
        return self.row

    def __setstate__(self, row: MarkovPolicy) -> None:
        object.__setattr__(self, "row", row)

    def __eq__(self, other: object) -> bool:
        return self.row == other.row if isinstance(other, StationaryPolicy) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        """For notebooks: a map of the actions."""
        return self.row._repr_html_()

    def __repr__(self) -> str:
        kind = "deterministic" if self.deterministic else "randomised"
        states, actions = counted(self.n_states, "state"), counted(self.n_actions, "action")
        return f"StationaryPolicy({states}, {actions}, {kind})"
