"""What knowing one row is worth, if the rows of the models were drawn apart.

Models of :func:`mmdp.fit` have rows p(. | s, a) that are drawn independently. The EVPI then asks
what it is worth to know all of them at once, which no study will tell. A study may tell one row.
With v the mean over the models of the policy's values, x_{t,m} = r_m(s, a) + gamma sum_s'
p_m(s' | s, a) v_{t+1}(s') is what row (s, a) of model m returns from there, q its mean, and o_t the
largest q of the other actions of s. Choosing at s by the row that is known gains

    sum_t gamma^t P[S_t = s] (E_m[ max(x_{t,m}, o_t) ] - max(q_t, o_t)).

Where no state is met twice this is exact for the choice at s alone, so a lower bound of the EVPPI
of the row. Where states are met again it neglects that a row changes how often, and with what
value, one comes back: with three states over 12 steps it was 5 to 30% above the EVPPI, over 3 steps
within 15% of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp import kernels
from mmdp.clock import unanswered
from mmdp.measures.information import best_for, evpi
from mmdp.methods import Method
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy, markov_policy
from mmdp.solution import Solution
from mmdp.words import number, percent

Array = npt.NDArray[np.float64]
MANY = 10  # unknowns that vary on their own, from which on nobody will know them all


class RowInformation(NamedTuple):
    """What :func:`row_information` found.

    ``table`` has ``state, action, value, share`` of every row that differs between models, the
    one worth most first; ``evpi`` is what knowing all of them is worth, and ``share`` is of that.
    ``unknowns`` is how many of them vary on their own: R^2 / sum_ij c_ij^2 over the correlations
    of the R rows, less what chance adds to them; 1 if one parameter moves all rows.
    """

    table: pd.DataFrame
    evpi: float
    unknowns: float

    @property
    def apart(self) -> bool:
        """Whether perfect information is out of reach: many rows, most of them on their own."""
        return self.unknowns >= max(MANY, len(self.table) / 2)

    @property
    def text(self) -> str:
        """In a sentence or two; about the row worth most."""
        if not len(self.table) or self.evpi <= 0:
            return "Knowing more about the models would not change what they return."
        first = self.table.iloc[0]
        one = (
            f"Knowing what action {first['action']!r} does in state {first['state']!r} is worth "
            f"about {number(first['value'], 3)}"
        )
        if not self.apart:
            return f"{one}, knowing the model {number(self.evpi, 3)}."
        return (
            f"The models have about {self.unknowns:,.0f} unknowns that vary on their own, so that "
            f"nobody will know them all: the {number(self.evpi, 3)} that this would be worth is "
            f"out of reach. {one}, {percent(first['share'])} of it, and no other row is worth more."
        )


@unanswered()
def row_information(
    model: MMDP, horizon: int | None = None, *, method: str | Method | Solution = "cadp"
) -> RowInformation:
    """What knowing each row p(. | s, a) is worth, and whether all of them could be known.

    ``method`` finds the best single policy; or give the solution. Someone who knows a row may
    choose freely in its state, whatever the kind of that policy.

    >>> import mmdp, mmdp.measures
    >>> log = {"state": [0, 0, 0, 1], "action": [0, 0, 1, 0], "next_state": [0, 1, 1, 1]}
    >>> model = mmdp.fit(log, models=200, rewards=[[0.0, 0.0], [1.0, 1.0]]).train
    >>> found = mmdp.measures.row_information(model, 5)
    >>> print(found.table.round(2).to_string(index=False))
    state action  value  share
        1      1   0.17   0.44
        1      0   0.11   0.29
        0      1   0.10   0.26
        0      0   0.05   0.14
    >>> found.apart                                         # four rows can be studied
    False
    """
    best = best_for(model, horizon, method)
    policy = markov_policy(best, "the value of rows needs")
    return rows_under(policy, model, evpi(model, method=best))


def rows_under(policy: MarkovPolicy, model: MMDP, total: float) -> RowInformation:
    """:func:`row_information` of this policy, if knowing all rows is worth ``total``."""
    T, table = policy.horizon, policy.table_for(model)
    plan = kernels.get("auto", model.problem, T, passes=3).plan(model.problem, T)
    visits = plan.forward(table).sum(axis=2)
    values = plan.backward("given", policy=table, keep=("values",)).values
    assert values is not None
    worth, shown = np.zeros(model.allowed.shape), np.empty(0)
    for t in range(T):
        v = np.repeat((values[t + 1] @ model.weights)[:, None], model.n_models, axis=1)
        x = plan.step(t, np.ascontiguousarray(v))
        q = np.where(model.allowed, x @ model.weights, -np.inf)
        shown = x if t == 0 else shown
        other = _largest_other(q)
        gain = np.maximum(x, other[:, :, None]) @ model.weights - np.maximum(q, other)
        worth += model.discount**t * visits[t][:, None] * np.where(model.allowed, gain, 0.0)
    differ = model.allowed & (np.ptp(shown, axis=2) > 1e-12 * np.abs(shown).max())
    s, a = np.nonzero(differ)
    found: dict[str, Any] = {
        "state": np.array(model.state_labels, dtype=object)[s],
        "action": np.array(model.action_labels, dtype=object)[a],
        "value": np.minimum(worth[s, a], total),
    }
    frame = pd.DataFrame(found).sort_values("value", ascending=False, kind="stable")
    frame["share"] = frame["value"] / total if total > 0 else 0.0
    return RowInformation(
        frame.reset_index(drop=True), total, _unknowns(shown[s, a], model.weights)
    )


def _largest_other(q: Array) -> Array:
    """(S, A) the largest q of the other actions; -inf if there is none."""
    order = np.sort(np.concatenate([np.full((len(q), 1), -np.inf), q], axis=1), axis=1)
    first = q.argmax(axis=1)[:, None] == np.arange(q.shape[1])
    return np.where(first, order[:, -2:-1], order[:, -1:])


def _unknowns(x: Array, weights: Array) -> float:
    """How many of R rows (R, M) vary on their own; see :class:`RowInformation`."""
    if not len(x):
        return 0.0
    z = (x - (x @ weights)[:, None]) * np.sqrt(weights)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    size, draws = len(x), 1 / float(weights @ weights)
    squares = float(((z.T @ z) ** 2).sum())  # of all correlations, by the smaller Gram matrix
    chance = size * (size - 1) / max(draws - 1, 1.0)
    return size**2 / max(squares - chance, size)
