"""Episodes of a user's function without its grid: the honest value of a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.functions.axes import Array
from mmdp.kernels.distributions import SUM_TOLERANCE
from mmdp.model import MMDP

if TYPE_CHECKING:
    from mmdp.functions.step import Steps

State = dict[str, npt.NDArray[Any]]  # (n,) values by axis


class Played:
    """Episodes side by side in each model, from values that need not be on a grid.

    The policy decides by the nearest point of the grid: of the corners around a state the one with
    the largest weight at which it is not over and whose action is allowed in the state itself.
    """

    def __init__(self, steps: Steps, model: MMDP, table: npt.NDArray[Any]) -> None:
        self.steps, self.model, self.table = steps, model, table
        self.over = np.append(steps.over(), True)

    def returns(self, episodes: int, seed: int, ends: bool) -> Array:
        """(M, episodes); ``ends``: with the values of ending after the last decision."""
        return np.array(
            [self._returns(m, episodes, seed, ends) for m in range(self.model.n_models)]
        )

    def _returns(self, m: int, episodes: int, seed: int, ends: bool) -> Array:
        rng = np.random.default_rng([seed, m])
        state = self._start(m, rng.random(episodes))
        ended, alive = self.steps.ended(state, episodes), np.arange(episodes)
        alive, state = alive[~ended], {k: v[~ended] for k, v in state.items()}
        total, factor = np.zeros(episodes), 1.0
        for t in range(len(self.table)):
            if not len(alive):
                break
            chosen, happens = rng.random((2, episodes))  # the same numbers for every policy
            u = self._decided(t, state, chosen[alive])
            w = self._happened(m, t, state, u, happens[alive])
            state, reward, ended = self._after(m, t, state, u, w)
            total[alive] += factor * reward
            factor *= self.model.discount
            alive, state = alive[~ended], {k: v[~ended] for k, v in state.items()}
        if ends and self.steps.terminal is not None:
            given = self.steps.given(m, 0)
            total[alive] += factor * self.steps.terminal(state=state, **given)
        return total

    def _start(self, m: int, u: Array) -> State:
        """First states: as they were given, or points of model m's initial distribution."""
        (values, p), S = self.steps.first(m), self.steps.states.size
        mine = np.broadcast_to(self.model.initial, (self.model.n_models, self.model.n_states))[m]
        if not np.array_equal(self.steps.initial_of(m), mine):
            values, p = self.steps.states.at(np.arange(S)), mine[:S]
        which = np.minimum(np.searchsorted(np.cumsum(p), u * p.sum(), side="right"), len(p) - 1)
        return {k: v[which] for k, v in values.items()}

    def _decided(self, t: int, state: State, u: Array) -> npt.NDArray[np.int64]:
        """(n,) the action in each state."""
        ids, weights = self.steps.states.place(state)
        row = self.table[t][ids]  # (n, C) actions, or (n, C, A) probabilities
        if row.ndim == 3:
            row = (u[:, None, None] * row.sum(axis=2, keepdims=True) >= row.cumsum(axis=2)).sum(2)
        if weights is None:
            return row[:, 0].astype(np.int64)
        open_ = ~self.over[ids]
        if self.steps.allowed is not None:
            C = ids.shape[1]
            allowed = self.steps.allowed(
                state={k: np.repeat(v, C) for k, v in state.items()},
                action=self.steps.actions.at(row.reshape(-1)), **self.steps.given(0, t),
            )  # fmt: skip
            open_ &= np.broadcast_to(allowed, row.size).reshape(row.shape)
        best = np.where(open_, weights, -1.0).argmax(axis=1)
        n = np.arange(len(row))
        if not open_[n, best].all():
            i = int(np.argmin(open_[n, best]))
            raise InputError(
                f"no point of the grid around {_words(state, i)} has an action that is allowed "
                "there; let allowed() be the same within a cell, or make the grid finer"
            )
        return row[n, best].astype(np.int64)

    def _happened(
        self, m: int, t: int, state: State, action: npt.NDArray[np.int64], u: Array
    ) -> npt.NDArray[np.int64]:
        """(n,) the event that each state meets."""
        f = self.steps.chance
        if f is None:
            return np.zeros(len(u), np.int64)
        columns = {
            "state": {k: v[:, None] for k, v in state.items()},
            "action": {k: v[:, None] for k, v in self.steps.actions.at(action).items()},
        }
        p = self.steps.read_chance(f(**columns, **self.steps.given(m, t)), len(u))
        reached = p.cumsum(axis=1)
        bad = ~(np.abs(reached[:, -1] - 1) <= SUM_TOLERANCE) | ~(p >= 0).all(axis=1)
        if bad.any():
            raise InputError(
                f"chance at {_words(state, int(np.argmax(bad)))}, off the grid: the probabilities "
                "must be 0 or more and sum to 1"
            )
        return (u[:, None] * reached[:, -1:] >= reached).sum(axis=1)

    def _after(
        self, m: int, t: int, state: State, action: npt.NDArray[np.int64],
        event: npt.NDArray[np.int64],
    ) -> tuple[State, Array, npt.NDArray[np.bool_]]:  # fmt: skip
        """Next states, rewards, and which episodes are over."""
        steps, n = self.steps, len(action)
        given = {
            "state": state, "action": steps.actions.at(action), "event": steps.events.at(event)
        }  # fmt: skip

        def where(i: int) -> str:
            taken = [steps.actions.label(int(action[i])), steps.events.label(int(event[i]))]
            return ", ".join(filter(None, [_words(state, i), *taken]))

        answer = steps.ask(given, n, m, t, where)
        reward = answer.pop("the reward")
        ended = steps.ended(answer, n)
        steps.places(answer, ended, where)  # which must be on their axes
        return answer, reward, ended


def _words(state: State, i: int) -> str:
    return ", ".join(f"{k}={v[i]:.6g}" if v.dtype.kind == "f" else f"{k}={v[i]}"
                     for k, v in state.items())  # fmt: skip
