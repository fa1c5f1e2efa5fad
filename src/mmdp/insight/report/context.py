"""Report context: a problem, a policy for it, and each solve and evaluation, made once.

Everything is computed when a method is called, and once: sections that need the same solve share
it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypedDict, TypeGuard, Unpack

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import FiniteFloat, NonNegativeInt
from mmdp.core.bounds import Bound
from mmdp.core.errors import InputError, Remedy
from mmdp.core.identity import compute_digest, describe_object
from mmdp.core.methods import CADP, Method
from mmdp.core.methods.registry import DEFAULT_COMPARISON, format_method_name, supports
from mmdp.core.model import MMDP
from mmdp.core.objectives import Mean, Objective, as_objective
from mmdp.core.policies import (
    Markov,
    MarkovPolicy,
    MemoryPolicy,
    Policy,
    PolicyClass,
    require_markov,
)
from mmdp.core.shapes import Array
from mmdp.core.solution import Evaluation, Solution
from mmdp.core.solve import as_method, evaluate, solve
from mmdp.core.text import (
    ROUNDING_RTOL,
    did_you_mean,
    format_bound,
    format_number,
    format_with_unit,
)
from mmdp.core.timing import show_progress
from mmdp.core.validate import check_horizon
from mmdp.data.posterior import find_unseen_pairs
from mmdp.insight.economics import OutcomeDiscounting
from mmdp.insight.economics.comparators import make_named_policies
from mmdp.insight.measures.decisions import PolicyCells, compute_policy_cells, model_weights
from mmdp.insight.measures.simplicity import NEGLIGIBLE_SHARE, PhasedPolicy, fit_phases
from mmdp.insight.measures.stakes import (
    ConstantPolicy,
    ValueAtStake,
    make_constant_policies,
    value_at_stake,
)

STAKE_TOLERANCE = 0.01  # share of the value at stake that what is nearly as good may lose
Callback = Callable[[str], object]


class ReportOptions(TypedDict, total=False):
    """Options of reports and figures; see :func:`mmdp.report.write` for their meaning."""

    test_model: MMDP | None
    methods: Sequence[str | Method]
    bound: Bound | FiniteFloat | None
    objective: str | Objective | None
    seed: int | None
    unseen_pairs: Sequence[tuple[str | int, str | int]]
    small_tree: bool | None
    frontier: bool | None
    voi: bool | None
    max_nodes: NonNegativeInt | None
    sample_size: bool | None
    n_resamples: NonNegativeInt | None
    effects: npt.ArrayLike | None
    costs: npt.ArrayLike | None
    wtp_grid: Sequence[float]
    comparators: Mapping[str, object] | None
    discounting: OutcomeDiscounting | None


class EconomicInputs(NamedTuple):
    """Effects, costs and values of one unit of effect, for a willingness-to-pay sweep."""

    effects: npt.ArrayLike
    costs: npt.ArrayLike
    wtp_grid: tuple[float, ...]
    discounting: OutcomeDiscounting


class ReportContext:
    """A model, a policy for it, and the solves and evaluations made about the two so far.

    ``is_given``: whether the user gave the policy; otherwise a method of the page computes it.
    ``solution``: the solution of the policy; None if unknown or for other models. ``request``: the
    options by name. ``infinite_policy``: the given policy if it is for an infinite horizon, of
    which the page counts the first decisions; otherwise None. ``policy_text``: a given tree in
    words, otherwise empty. ``comparators``: policies to compare with, by name. ``controller``: a
    given finite-state controller; the rest of the page is then about the Markov policy that the
    first method computes. ``method`` is the first of the ``methods``, CADP if there are none.
    """

    def __init__(
        self,
        model: MMDP,
        horizon: int | None = None,
        policy: Policy | Solution | None = None,
        *,
        callback: Callback | None = None,
        **options: Unpack[ReportOptions],
    ) -> None:
        if not isinstance(model, MMDP):
            raise InputError(
                f"a report is about an MMDP, not {type(model).__name__}; pass the model first"
            )
        for name in options.keys() - ReportOptions.__annotations__.keys():
            suggestion = did_you_mean(name, ReportOptions.__annotations__)
            raise InputError(f"there is no argument {suggestion}")
        self.model, self.callback, self.request = model, show_progress(callback), options
        self.test_model, self.seed = options.get("test_model"), options.get("seed", 0)
        self.methods = tuple(map(as_method, options.get("methods", DEFAULT_COMPARISON)))
        self.method = self.methods[0] if self.methods else CADP()
        self.unseen_pairs = tuple(options.get("unseen_pairs", find_unseen_pairs(model)))
        if (policy is None or isinstance(policy, MemoryPolicy)) and not self.methods:
            raise InputError(
                "a report needs a policy or a method that computes one; pass policy= or methods="
            )
        bound = options.get("bound")
        self.objective = _find_objective(options.get("objective"), policy, bound)
        self.has_risk_objective = not self.objective.is_mean
        given_policy = policy.policy if isinstance(policy, Solution) else policy
        self.controller = given_policy if isinstance(given_policy, MemoryPolicy) else None
        if self.controller is not None:
            self.controller.check(model, horizon)
            given_policy, policy, horizon = None, None, self.controller.horizon
        self.is_given, self.policy_class = policy is not None, _find_policy_class(policy)
        if policy is not None:
            self.policy = _to_markov(policy, horizon if self.is_stationary else None)
            horizon = self.policy.horizon if horizon is None else horizon
        is_infinite = given_policy is not None and given_policy.horizon == np.inf
        self.infinite_policy = given_policy if is_infinite and model.horizon is None else None
        self.policy_text = (
            given_policy.describe() if given_policy is not None and given_policy.has_rules else ""
        )
        self.horizon = check_horizon(model.horizon, horizon)
        if policy is not None:
            self.policy.check(model, self.horizon)
        self._check_test_model()
        self.comparators = make_named_policies(
            options.get("comparators") or {}, model, self.horizon
        )
        self.economic_inputs = self._read_economic_inputs()
        self._solutions: dict[tuple[int, str], Solution] = {}
        self._evaluations: dict[tuple[int, str], Evaluation] = {}
        if policy is None:
            solution = self.solve_by(self.method, self.objective)
            self.policy, self.evaluation = _to_markov(solution), solution.evaluation
            self.solution: Solution | None = solution
        else:
            self.evaluation = self.evaluate(self.policy)
            self.solution = policy if self._has_these_returns(policy) else None
        self.name = "the given policy" if self.solution is None else format_title(self.solution)
        self.value = self.evaluation.value(self.objective)
        self.test_evaluation = self.evaluate_test(self.policy)
        self.bound = self._read_bound(bound)
        self.has_own_bound = self.solution is not None and self.bound is self.solution.certificate
        if self.solution is not None and self.solution.certificate is None:
            self.solution = replace(self.solution, certificate=self.bound)

    def _check_test_model(self) -> None:
        """Refuse test models of another size."""
        test_model = self.model if self.test_model is None else self.test_model
        test_sizes, sizes = ((x.n_states, x.n_actions) for x in (test_model, self.model))
        if test_sizes != sizes:
            raise InputError(
                f"the test models have {test_sizes[0]} states and {test_sizes[1]} actions, the "
                f"models {sizes[0]} and {sizes[1]}; give test models of the same problem"
            )

    def _read_economic_inputs(self) -> EconomicInputs | None:
        """Read effects, costs and ``wtp_grid`` from the request; None if none is given."""
        request = self.request
        effects, costs = request.get("effects"), request.get("costs")
        wtp_grid = tuple(request.get("wtp_grid") or ())
        discounting = request.get("discounting") or OutcomeDiscounting()
        if effects is None and costs is None and not wtp_grid:
            if discounting != OutcomeDiscounting():
                raise InputError(
                    "discounting applies to effects and costs, but neither was given; pass "
                    "effects= and costs= too"
                )
            return None
        if effects is None or costs is None or not wtp_grid:
            raise InputError(
                "willingness to pay needs effects, costs and wtp_grid; give all three or none"
            )
        if not self.model.rewards.any():
            raise InputError(
                "the rewards of the models are all 0, so that every policy returns 0",
                [
                    "make the net benefit their reward first: "
                    "OutcomeDiscounting.make_net_benefit_model in Python, "
                    "mmdp convert --effects FILE --wtp K on the command line"
                ],
            )
        return EconomicInputs(effects, costs, wtp_grid, discounting)

    # -------------------------------------------------------------- the policy
    def _has_these_returns(self, policy: Policy | Solution) -> TypeGuard[Solution]:
        """Return whether it is a solution for these models, over a finite horizon."""
        if not isinstance(policy, Solution) or self.is_stationary:
            return False
        x, y = policy.returns, self.evaluation.returns
        return len(x) == len(y) and np.allclose(x, y, 1e-6, 1e-9 * np.abs(y).max())

    def _read_bound(self, bound: Bound | float | None) -> Bound | None:
        """Check the given bound, or that of the solution, against the model and the value."""
        if bound is None and self.solution is not None:
            bound = self.solution.certificate
        if bound is None:
            return None
        if not isinstance(bound, Bound):
            bound = Bound(float(bound), "given", "markov")
        elif bound.objective != self.objective:
            return None
        if bound.model_fingerprint and bound.model_fingerprint != self.model.fingerprint():
            raise InputError(
                "the bound was proven for other models; compute it for these, or give the policy "
                "alone"
            )
        if not bound.value >= self.value - 1e-6 * abs(self.value):
            raise InputError(
                f"the bound {bound.value:,.8g} is below the policy's own value {self.value:,.8g}, "
                "so it is no bound for this problem; compute it for these models and this horizon"
            )
        return bound

    @property
    def is_stationary(self) -> bool:
        """Whether the policy is stationary, as its policy class tells."""
        return self.policy_class.is_infinite_horizon

    @property
    def action_names(self) -> list[str]:
        """Labels of the actions; ``action 0`` and so on if the model has none."""
        labels = self.model.action_labels
        return list(labels) if self.model.has_labels["action"] else [f"action {x}" for x in labels]

    # -------------------------------------------------------------- computed once
    def find_policy_class(self, method: Method) -> PolicyClass | None:
        """Get the policy class if the method supports it with a finite horizon, else None."""
        is_supported = not self.is_stationary and supports(
            method, self.model, self.horizon, Mean(), self.policy_class
        )
        return self.policy_class if is_supported else None

    def solve_by(self, method: Method, objective: Objective = Mean()) -> Solution:  # noqa: B008
        """Solve by a method of the page; for the mean in the policy class."""
        key = id(method), str(objective)
        if key not in self._solutions:
            self._solutions[key] = solve(
                self.model,
                self.horizon,
                method,
                objective=objective,
                policy_class=self.find_policy_class(method) if objective.is_mean else None,
                seed=self.seed,
            )
        return self._solutions[key]

    @property
    def solutions(self) -> list[Solution]:
        """Solution of every method for the mean over the models."""
        return [self.solve_by(method) for method in self.methods]

    @functools.cached_property
    def best_solution(self) -> Solution | None:
        """The solution of the page's policy class with the highest mean; None if there is none."""
        own = [self.solution] if self.solution is not None and self.is_given else []
        same_class = [
            x
            for x in [*self.solutions, *own]
            if x.markov_policy is not None
            and x.provenance.policy_class.name == self.policy_class.name
        ]
        best_mean = max((x.evaluation.mean for x in same_class), default=-np.inf)
        min_mean = best_mean - ROUNDING_RTOL * abs(best_mean)
        # the first of those that differ by rounding
        return next((x for x in same_class if x.evaluation.mean >= min_mean), None)

    def evaluate(self, policy: Policy, model: MMDP | None = None) -> Evaluation:
        """Evaluate a policy, on the models of the page unless others are given."""
        model = self.model if model is None else model
        key = id(model), compute_digest(describe_object([policy.name, policy.defining_values]))
        if key not in self._evaluations:
            self._evaluations[key] = evaluate(model, policy, seed=self.seed)
        return self._evaluations[key]

    def evaluate_test(self, policy: Policy) -> Evaluation | None:
        """Evaluate a policy on the test models; None if there are none."""
        return None if self.test_model is None else self.evaluate(policy, self.test_model)

    @functools.cached_property
    def cells(self) -> PolicyCells:
        """Margin, runner-up, agreement and visits for each time and state."""
        return compute_policy_cells(self.policy, self.model)

    @functools.cached_property
    def visit_probs(self) -> Array:
        """The probability of a decision at each time and state: (T, S)."""
        return self.model.mask_visits(self.cells.visit_probs)

    def compute_visit_probs(self, policy: MarkovPolicy) -> Array:
        """Compute the probability of a decision at each time and state under a policy: (T, S)."""
        if policy == self.policy:
            return self.visit_probs
        return self.model.mask_visits(model_weights(self.model, policy).sum(axis=1))

    @functools.cached_property
    def stake(self) -> ValueAtStake:
        """The value at stake, of which the page takes shares."""
        return value_at_stake(
            self.model,
            self.solution or self.policy,
            objective=self.objective,
            comparators={**self.comparators, **dict(self.constant_policies)},
            value=self.best_value,
        )

    @property
    def infinite_mean(self) -> float | None:
        """Mean of the given policy over its infinite horizon.

        None without a discount, or if these models have no such mean, as they change for example.
        """
        if self.infinite_policy is None or self.model.discount == 1:
            return None
        try:
            return self.evaluate(self.infinite_policy).mean
        except InputError:
            return None

    @property
    def best_value(self) -> float:
        """Objective value of the best policy known: this one, or what a method of the page found.

        Policies that remember what they have seen do not count.
        """
        solutions = [x for x in self.solutions if x.markov_policy is not None]
        values = [x.evaluation.value(self.objective) for x in solutions]
        if self.objective.is_mean:
            values += [x.best_value for x in solutions]
        if self.free_value is not None:
            values.append(self.free_value)
        best_value = max(values, default=self.value)
        is_better = drop_rounding(best_value - self.value, self.value) > 0
        return best_value if is_better else self.value

    @property
    def mean_stake(self) -> ValueAtStake:
        """The value at stake of which gains on average are shares: none if another value counts."""
        return ValueAtStake(0.0, "", self.model.unit) if self.has_risk_objective else self.stake

    @property
    def free_value(self) -> float | None:
        """Objective value of the best policy found without the restriction; None if unknown."""
        if self.solution is not None:
            return self.solution.details.get("unrestricted_value")
        if not self.policy_class.is_restricted or self.is_stationary or not self.methods:
            return None
        return self.solve_by(self.method, self.objective).best_value

    @property
    def negligible(self) -> float:
        """The largest gain that the page calls negligible: 0.1% of the value at stake."""
        return NEGLIGIBLE_SHARE * self.stake.amount

    @property
    def tolerance(self) -> float:
        """The loss of what is nearly as good: 1% of the value at stake."""
        return STAKE_TOLERANCE * self.stake.amount

    def compute_loss(self, evaluation: Evaluation) -> float:
        """Compute how much less another policy has of the objective; below 0 if it gains."""
        return compute_difference(self.objective, self.evaluation, evaluation)

    @functools.cached_property
    def constant_policies(self) -> list[ConstantPolicy]:
        """The policies of the class that always take one action, the best first."""
        return make_constant_policies(self.policy, self.model, self.policy_class, self.objective)

    @functools.cached_property
    def phased_policy(self) -> PhasedPolicy:
        """The policy in a few phases with one stationary policy each."""
        return fit_phases(self.policy, self.model, self.visit_probs, policy_class=self.policy_class)

    # -------------------------------------------------------------- amounts in words
    def format_amount(self, value: float, digits: int = 4) -> str:
        """Format an amount with the unit of returns; a rounding error is 0."""
        return format_with_unit(format_number(self._drop_rounding(value), digits), self.model.unit)

    def format_difference(self, value: float) -> str:
        """Format a difference of two returns, with their unit."""
        return self.format_amount(value, 3)

    def format_bound(self, value: float, digits: int = 3) -> str:
        """Format a proven bound with the unit of returns, rounded up."""
        return format_with_unit(format_bound(self._drop_rounding(value), digits), self.model.unit)

    def _drop_rounding(self, value: float) -> float:
        """Return an amount, or 0 if it is a rounding error of the returns."""
        scale = np.abs([self.evaluation.returns, self.evaluation.oracle]).max()
        return drop_rounding(value, scale)

    def estimate_seconds(self, passes: float) -> float:
        """Estimate the seconds of a number of passes over the models, from sizes alone."""
        return self.model.problem.estimate_seconds(self.horizon, passes)


def compute_difference(objective: Objective, evaluation: Evaluation, other: Evaluation) -> float:
    """Compute the difference of two objective values; 0 if it is a rounding error."""
    scale = max(np.abs(x.returns).max() for x in (evaluation, other))
    return drop_rounding(evaluation.value(objective) - other.value(objective), scale)


def drop_rounding(difference: float, scale: float) -> float:
    """Return a difference of values of this size, or 0 if it is a rounding error."""
    return 0.0 if abs(difference) <= ROUNDING_RTOL * abs(scale) else difference


def format_title(solution: Solution) -> str:
    """Format the method of a solution, its restricted policy class and its risk objective."""
    policy_class, objective = solution.provenance.policy_class, solution.objective
    qualifiers = [policy_class.name] * policy_class.is_restricted + [objective.name] * (
        not objective.is_mean
    )
    return format_method_name(solution.method) + (
        f" ({', '.join(qualifiers)})" if qualifiers else ""
    )


def _find_objective(
    objective: str | Objective | None,
    policy: Policy | Solution | None,
    bound: Bound | float | None,
) -> Objective:
    """Find the objective: the given one, else that of the solution or of the bound."""
    if objective is not None:
        return as_objective(objective)
    if isinstance(policy, Solution):
        return policy.objective
    return bound.objective if isinstance(bound, Bound) else Mean()


def _find_policy_class(policy: Policy | Solution | None) -> PolicyClass:
    """Find the policy class of a solution or policy; Markov if it has none."""
    if isinstance(policy, Solution):
        return policy.provenance.policy_class
    return getattr(policy, "policy_class", Markov())


def _to_markov(policy_or_solution: Policy | Solution, horizon: int | None = None) -> MarkovPolicy:
    """Convert a policy or solution to a Markov policy; a stationary one needs the horizon."""
    policy = getattr(policy_or_solution, "policy", policy_or_solution)
    if horizon is None and getattr(policy, "horizon", 0) == np.inf:
        raise InputError(
            "a report shows a number of decisions, but this policy is stationary",
            [Remedy("horizon", 50)],
        )
    return require_markov(policy_or_solution, "a report shows", horizon, method_argument="methods")
