"""Value at stake: the difference of two policies, of which gains and losses are shares.

The zero of returns is arbitrary (all life years lived, a budget, a stock that is there anyway), so
a share of a value says nothing. The difference between two policies does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mmdp.core.arguments import FiniteFloat, check_arguments
from mmdp.core.model import MMDP
from mmdp.core.objectives import Objective, ObjectiveFunction, as_objective
from mmdp.core.policies import Markov, MarkovPolicy, Policy, PolicyClass, StationaryPolicy
from mmdp.core.solution import Solution
from mmdp.core.solve import evaluate
from mmdp.core.text import (
    ROUNDING_RTOL,
    format_bound_percent,
    format_number,
    format_percent,
    format_with_unit,
    shorten,
)

MAX_ACTIONS = 20  # number of constant policies that are tried
REL_TOL = 1e-12  # values that differ by less than this share are equal


class ValueAtStake(NamedTuple):
    """The difference in objective value between ``policy`` and a ``reference`` policy.

    ``objective`` is the name of the objective, empty for the mean.
    """

    amount: float
    reference: str
    unit: str | None = None
    policy: str = "this policy"
    objective: str = ""

    @check_arguments
    def to_share(self, amount: float) -> float:
        """Convert an amount to a share of the value at stake; NaN if that is 0."""
        return amount / self.amount if self.amount else math.nan

    @check_arguments
    def format_share(self, amount: float, *, round_up: bool = False) -> str:
        """Format the share of the value at stake in brackets; empty if it is above 100%.

        If less is at stake than the amount, or nothing, a share says nothing. ``round_up`` is for
        amounts that are proven bounds.

        >>> at_stake = ValueAtStake(50.0, "always wait")
        >>> at_stake.format_share(2.0), at_stake.format_share(90.0)
        (' (4.0% of what is at stake)', '')
        """
        if not amount or not self.amount or self.to_share(amount) > 1 + ROUNDING_RTOL:
            return ""
        format_text = format_bound_percent if round_up else format_percent
        return f" ({format_text(self.to_share(amount))} of what is at stake)"

    @property
    def description(self) -> str:
        """The value at stake, as a clause.

        >>> ValueAtStake(202.5, "today", "£").description
        '£202 between today and this policy'
        >>> ValueAtStake(3.5, "today", "kt", objective="CVaR 20%").description
        '3.50 kt in the CVaR 20% between today and this policy'
        """
        amount_text = format_with_unit(format_number(self.amount, 3), self.unit)
        objective_text = f" in the {self.objective}" if self.objective else ""
        return f"{amount_text}{objective_text} between {self.reference} and {self.policy}"


@check_arguments
def value_at_stake(
    model: MMDP,
    policy: Policy | Solution,
    *,
    objective: str | Objective | None = None,
    comparators: Mapping[str, Policy | Solution] | None = None,
    value: FiniteFloat | None = None,
) -> ValueAtStake:
    """Compute the value at stake: the difference between a policy and a reference policy.

    Shares of gains, losses and gaps are taken of it.

    Parameters
    ----------
    model
        The models that the policy is followed in.
    policy
        The best policy at hand. Of a solution for these models, the best policy known counts:
        that without the restriction, if it is better.
    objective
        The objective over the models; by default the solution's own, or the mean.
    comparators
        Policies by name, such as current practice. After them come the policies that always
        take the same action, the best first. The first with another value is the reference.
    value
        Objective value of the policy, if that of a better one is known.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[52.0, 53.0]], [[55.0, 50.0]]],
    ...                 actions=["wait", "treat"])
    >>> mmdp.measures.value_at_stake(two, mmdp.policies.MarkovPolicy([[1], [1]]))
    ValueAtStake(amount=4.0, reference='always wait', unit=None, policy='this policy', objective='')
    """
    solution = policy if isinstance(policy, Solution) else None
    risk_measure = choose_objective(objective, policy)
    plain_policy: Any = policy if solution is None else solution.policy
    policy_class = Markov() if solution is None else solution.provenance.policy_class

    def objective_value(other: Policy | Solution) -> float:
        return evaluate(model, other).value(risk_measure)

    def iter_references() -> Iterator[tuple[str, Policy | Solution]]:
        yield from (comparators or {}).items()
        yield from make_constant_policies(plain_policy, model, policy_class, risk_measure)

    policy_value = objective_value(plain_policy)
    if value is None:
        value = policy_value
        # the best policy known, if the solution is for these models
        if solution is not None and solution.objective == risk_measure:
            is_same = math.isclose(solution.value, policy_value, rel_tol=1e-9)
            value = solution.best_value if is_same else policy_value
    is_better = _significant_difference(value, policy_value)
    best = "the best policy found" if is_better else "this policy"
    for name, other in iter_references():
        if amount := _significant_difference(value, objective_value(other)):
            objective_name = "" if risk_measure.is_mean else risk_measure.name
            return ValueAtStake(amount, name, model.unit, best, objective_name)
    return ValueAtStake(0.0, "any action", model.unit)


def choose_objective(
    objective: str | Objective | ObjectiveFunction | None, policy: Policy | Solution
) -> Objective:
    """Choose the objective: the given one, otherwise that of a solution, or the mean."""
    if objective is None:
        objective = policy.objective if isinstance(policy, Solution) else "mean"
    return as_objective(objective)


def _significant_difference(x: float, y: float) -> float:
    return abs(x - y) if abs(x - y) > REL_TOL * max(abs(x), abs(y)) else 0.0


class ConstantPolicy(NamedTuple):
    """A named policy that takes the same action wherever there is a choice."""

    name: str
    policy: Policy


def make_constant_policies(
    policy: Policy,
    model: MMDP,
    policy_class: PolicyClass = Markov(),  # noqa: B008
    objective: str | Objective = "mean",
) -> list[ConstantPolicy]:
    """Make the policies that always take the same action, the best first.

    They have the horizon of ``policy``. Where only one action is allowed, or none changes anything,
    the first allowed one is taken. If fewer than two actions are allowed wherever there is a
    choice, each is tried wherever it is allowed. If there are more than 20 actions, those are
    tried that ``policy`` takes most.
    """
    risk_measure, is_infinite = as_objective(objective), policy.horizon == math.inf
    n_times = 1 if is_infinite else int(policy.horizon)
    allowed = (model.problem if is_infinite else policy_class.make_problem(model, n_times)).allowed[
        :n_times
    ]
    has_choice = model.problem.has_choice()[:n_times] & (allowed.sum(axis=2) > 1)
    is_always_allowed = np.all(allowed | ~has_choice[:, :, None], axis=(0, 1))
    # a belief policy has no table
    actions = np.array([]) if policy.policy_class.uses_belief else policy.actions
    counts = np.bincount(np.ravel(actions).astype(np.int64), minlength=model.n_actions)
    candidates = np.argsort(-counts, kind="stable")
    if is_always_allowed.sum() >= 2:
        candidates = candidates[is_always_allowed[candidates]]
    constants = []
    for a in candidates[:MAX_ACTIONS].tolist():
        row = np.where(allowed[:, :, a], a, allowed.argmax(axis=2)).astype(np.int32)
        table = row[0] if is_infinite else np.broadcast_to(row, (n_times, row.shape[1]))
        label = "action " * (not model.has_labels["action"]) + model.action_labels[a]
        template = "always {}" if is_always_allowed[a] else "{} wherever it is allowed"
        constant_policy = (StationaryPolicy if is_infinite else MarkovPolicy).for_model(
            model, table
        )
        constants.append(ConstantPolicy(template.format(shorten(label)), constant_policy))
    return sorted(
        constants, key=lambda constant: -evaluate(model, constant.policy).value(risk_measure)
    )
