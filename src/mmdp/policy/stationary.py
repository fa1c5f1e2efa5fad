"""Policies that are the same at all times, for problems without a last decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.kernels.endless import Endless
from mmdp.kernels.planner import PlannerTables
from mmdp.policy.base import Policy
from mmdp.policy.kinds import PolicyKind
from mmdp.policy.markov import Markov, MarkovPolicy, read_actions, read_probabilities
from mmdp.validate import by_label, check_whole

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
    title = "the state alone"
    change = "change of the action in a single state"
    endless = True
    masks: ClassVar[bool] = True
    restricted: ClassVar[bool] = True

    def for_ever(self) -> Stationary:
        return self

    def policy_of(self, model: MMDP, table: npt.NDArray[Any]) -> StationaryPolicy:
        return StationaryPolicy.of_row(Markov().policy_of(model, table[None]))


class StationaryPolicy(Policy):
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
            None if given is None else read_actions(given, "state")[None],
            probabilities=None if shares is None else read_probabilities(shares, "state")[None],
            n_actions=n_actions, state_labels=state_labels, action_labels=action_labels,
        )  # fmt: skip
        self._repeat(row)

    def _repeat(self, row: MarkovPolicy) -> None:
        self._set(row=row)
        self._set_labels(row.n_states, **row.labels)

    @classmethod
    def of_row(cls, row: MarkovPolicy) -> StationaryPolicy:
        """The policy that repeats the only row of a table for ever."""
        if row.horizon != 1:
            raise InputError(f"a stationary policy has one row, not {row.horizon}")
        policy = cls.__new__(cls)
        policy._repeat(row)
        return policy

    @property
    def kind(self) -> PolicyKind:
        return Stationary()

    @property
    def horizon(self) -> float:
        return math.inf

    @property
    def deterministic(self) -> bool:
        return self.row.deterministic

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

    @property
    def parts(self) -> dict[str, Any]:
        return {name: table[0] for name, table in self.row.parts.items()}

    def table_for(self, model: MMDP) -> npt.NDArray[Any]:
        row: npt.NDArray[Any] = self.row.table_for(model)[0]
        return row

    def over(self, horizon: int) -> MarkovPolicy:
        check_whole(horizon, "horizon")
        table = np.repeat(self.row.table, horizon, axis=0)
        if self.deterministic:
            return MarkovPolicy(table, **self.labels)
        return MarkovPolicy(probabilities=table, **self.labels)

    def _check_actions(self, model: MMDP) -> None:
        self.row._check_actions(model)

    def returns(self, model: MMDP, kernel: Kernel | None = None) -> Array:
        """(M,) its exact return on every model, over an infinite horizon."""
        return Endless.of(model.problem).returns(self.table_for(model))

    def tables_for(self, model: MMDP, horizon: int) -> PlannerTables:
        return self.over(horizon).tables_for(model, horizon)

    def start(self, seed: int | None = 0) -> np.random.Generator | None:
        """Nothing is remembered; a randomised policy draws from a generator."""
        return self.row.start(seed)

    def act(self, memory: np.random.Generator | None, time: int, state: int) -> int:
        """The action in this state, drawn if the policy is randomised."""
        return self.row.act(memory, 0, state)

    def to_frame(self) -> pd.DataFrame:
        """The policy as a tidy table: ``state, action``, ``probability`` if randomised."""
        return self.row.to_frame().drop(columns="time")

    def stored(self) -> dict[str, Any]:
        return self.row.stored()

    def drawn(self) -> tuple[IntArray, list[str]]:
        return self.row.drawn()

    @property
    def _trait(self) -> str:
        return self.row._trait
