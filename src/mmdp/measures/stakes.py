"""What is at stake: what shares of gains, losses and gaps are taken of.

The zero of returns is arbitrary (all life years lived, a budget, a stock that is there anyway), so
a share of a value says nothing. The difference between two policies does not depend on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mmdp.arguments import FiniteFloat, checked
from mmdp.model import MMDP
from mmdp.objective import Objective, as_objective
from mmdp.policy import Markov, MarkovPolicy, Policy, PolicyKind, StationaryPolicy
from mmdp.solution import Solution
from mmdp.solve import evaluate
from mmdp.words import at_most_percent, in_unit, number, percent, shortened

MOST_ACTIONS = 20  # that are tried everywhere
SAME = 1e-12  # values that differ by less than this share are equal


class Stake(NamedTuple):
    """By how much what counts differs between a policy and ``other``, such as ``always wait``."""

    amount: float
    other: str
    unit: str | None = None

    @checked
    def share(self, amount: float) -> float:
        """An amount as a share of what is at stake; NaN if nothing is."""
        return amount / self.amount if self.amount else math.nan

    @checked
    def part(self, amount: float, *, up: bool = False) -> str:
        """That share in brackets, rounded up if it was proven; empty if nothing is at stake.

        >>> Stake(50.0, "always wait").part(2.0)
        ' (4.0% of what is at stake)'
        """
        share = (at_most_percent if up else percent)(self.share(amount))
        return f" ({share} of what is at stake)" if self.amount and amount else ""

    @property
    def text(self) -> str:
        """What is at stake, as a clause.

        >>> Stake(202.5, "today", "£").text
        '£202 compared with today'
        """
        return f"{in_unit(number(self.amount, 3), self.unit)} compared with {self.other}"


@checked
def stake(
    policy: Policy | Solution, model: MMDP, *, objective: str | Objective | None = None,
    compare: Mapping[str, Policy | Solution] | None = None, value: FiniteFloat | None = None,
) -> Stake:  # fmt: skip
    """What is at stake in choosing a policy: shares of gains, losses and gaps are taken of it.

    Parameters
    ----------
    policy
        The best policy at hand.
    model
        The models it is followed in.
    objective
        What counts over the models; by default the solution's own, or the mean.
    compare
        Policies by name, such as what is done today. After them come the policies that always
        take the same action, the best first. The first whose value is another one counts.
    value
        What counts of the policy, if a better one is known that is not at hand.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[52.0, 53.0]], [[55.0, 50.0]]],
    ...                 actions=["wait", "treat"])
    >>> mmdp.measures.stake(mmdp.MarkovPolicy([[1], [1]]), two)
    Stake(amount=4.0, other='always wait', unit=None)
    """
    if objective is None:
        objective = policy.objective if isinstance(policy, Solution) else "mean"
    goal, followed = as_objective(objective), getattr(policy, "policy", policy)

    def counts(other: Any) -> float:
        return evaluate(other, model).value(goal)

    def always() -> Iterator[Constant]:  # computed if it is asked for
        yield from constant_policies(followed, model, objective=goal)

    value = counts(followed) if value is None else value
    for name, other in itertools.chain((compare or {}).items(), always()):
        if amount := _difference(value, counts(other)):
            return Stake(amount, name, model.unit)
    return Stake(0.0, "any action", model.unit)


def _difference(x: float, y: float) -> float:
    return abs(x - y) if abs(x - y) > SAME * max(abs(x), abs(y)) else 0.0


class Constant(NamedTuple):
    """A policy that takes the same action wherever there is a choice, and what it is called."""

    name: str
    policy: Policy


def constant_policies(
    policy: Any, model: MMDP, kind: PolicyKind = Markov(),  # noqa: B008
    objective: str | Objective = "mean",
) -> list[Constant]:  # fmt: skip
    """Policies that always take the same action, over the horizon of ``policy``, the best first.

    Where only one action is open, or none changes anything, the first open one is taken. If fewer
    than two actions are open wherever there is a choice, each is tried wherever it is open. If
    there are more than 20 actions, those are tried that ``policy`` takes most.
    """
    goal, endless = as_objective(objective), policy.horizon == math.inf
    steps = 1 if endless else int(policy.horizon)
    open_ = (model.problem if endless else kind.problem(model, steps)).allowed[:steps]
    choice = model.problem.deciding()[:steps] & (open_.sum(axis=2) > 1)
    always = np.all(open_ | ~choice[:, :, None], axis=(0, 1))
    taken = np.ravel(getattr(policy, "actions", np.zeros(0, np.int64)))  # a belief has no table
    used = np.bincount(taken, minlength=model.n_actions)
    order = [int(a) for a in np.argsort(-used, kind="stable") if always[a] or always.sum() < 2]
    found = []
    for a in order[:MOST_ACTIONS]:
        row = np.where(open_[:, :, a], a, open_.argmax(axis=2)).astype(np.int32)
        table = row[0] if endless else np.broadcast_to(row, (steps, row.shape[1]))
        label = "action " * (not model.labelled["action"]) + model.action_labels[a]
        form = "always {}" if always[a] else "{} wherever it is allowed"
        made = (StationaryPolicy if endless else MarkovPolicy).for_model(model, table)
        found.append(Constant(form.format(shortened(label)), made))
    return sorted(found, key=lambda x: -evaluate(x.policy, model).value(goal))
