"""Results of solve(), evaluate() and bound(): Solution, Evaluation, Bound, Status, Progress."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mmdp.core.arguments import FiniteFloat, Probability, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.objectives import (
    CVaR,
    Mean,
    Objective,
    ObjectiveFunction,
    WorstCase,
    as_objective,
    weighted_quantile,
)
from mmdp.core.policies import Markov, MarkovPolicy, Policy, PolicyClass, StationaryPolicy
from mmdp.core.policies.markov import TablePolicy
from mmdp.core.shapes import Array, ModelActionTable, ModelVector
from mmdp.core.text import (
    ROUNDING_RTOL,
    format_bound,
    format_bound_percent,
    format_column,
    format_number,
    format_with_unit,
    join_first,
    pluralize,
    render_facts,
)
from mmdp.core.timing import Progress, compute_gap

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Bound",
    "BoundScope",
    "Evaluation",
    "Progress",
    "Provenance",
    "Solution",
    "Status",
]

OPTIMALITY_GAP = 1e-9  # relative gap at which a policy counts as proven optimal
ROUNDING_GAP = 1e-6  # relative gap of a proven optimum that counts as rounding


class Status(enum.Enum):
    """How a solve ended, and what that proves."""

    OPTIMAL = "proven optimal"
    LOCAL_OPTIMUM = "no change of the action in a single state and time improves it"
    COMPLETED = "the method ran to its end"
    ITERATION_LIMIT = "stopped at the iteration limit; the best policy so far"
    TIME_LIMIT = "stopped at the time limit; the best policy so far"
    INTERRUPTED = "stopped by Ctrl-C; the best policy so far"


BoundScope = Literal[
    "history", "markov", "stationary", "deterministic markov", "deterministic stationary", "fixed"
]
SCOPE_NAMES: dict[BoundScope, str] = {
    "history": "policy",
    "markov": "Markov policy",
    "stationary": "stationary policy",
    "deterministic markov": "deterministic Markov policy",
    "deterministic stationary": "deterministic stationary policy",
    "fixed": "deterministic policy with these decisions given",
}


AmountSuffix = Callable[[float], str]  # text after an amount in a sentence, such as a share


def compute_t_factor(dof: float) -> float:
    """Compute the factor that turns two standard errors into a 95% interval (Student's t).

    >>> round(compute_t_factor(3.0), 2), round(compute_t_factor(30.0), 2), compute_t_factor(1000.0)
    (1.59, 1.02, 1.0)
    """
    from scipy.special import stdtrit

    return max(float(stdtrit(dof, 0.975)) / 2, 1.0)


def describe_restriction_cost(
    policy_class: PolicyClass,
    value: float,
    unrestricted_value: float | None,
    markov_bound: float | None,
    unit: str | None = None,
    suffix: AmountSuffix = lambda amount: "",
    comparator: str = "",
) -> str:
    """Describe what a restricted policy of this value loses, and what it loses at most.

    ``unrestricted_value`` is that of the best policy found without the restriction, and
    ``markov_bound`` a bound on all of those; None if unknown. ``comparator`` names that policy.
    """
    subject = f"being {policy_class.restriction_text or policy_class.name} costs"
    cost = 0.0 if unrestricted_value is None else max(unrestricted_value - value, 0.0)
    bound_text = ""
    if markov_bound is not None:
        missing = max(markov_bound - value, cost)
        bound_text = f"at most {format_with_unit(format_bound(missing, 3), unit)}"
    if unrestricted_value is None:
        return f"{subject} {bound_text or 'an unknown amount'}"
    amount = "nothing"
    if cost > ROUNDING_RTOL * max(abs(unrestricted_value), abs(value)):
        amount = f"{format_with_unit(format_number(cost, 3), unit)}{suffix(cost)}"
    comparison = f" against {comparator}" if comparator else ""
    return ", ".join(filter(None, [f"{subject} {amount}{comparison}", bound_text]))


@dataclass(frozen=True)
class Bound:
    """A proven upper bound on the value of the best policy.

    ``scope`` is the set of policies that it bounds: ``"history"`` every policy, including those
    that learn from the past; ``"markov"`` policies of time and state; ``"stationary"`` policies of
    the state alone, over an infinite horizon. These hold for randomized policies too;
    ``"deterministic markov"`` and ``"deterministic stationary"`` do not, nor does ``"fixed"``,
    which bounds policies with the decisions of :class:`mmdp.policies.Fixed`. ``value`` is rounded
    up: it includes an allowance for floating-point error. ``objective`` is the objective of the
    value. ``seconds`` is the time that the proof took, ``model_fingerprint`` the
    :meth:`mmdp.MMDP.fingerprint` of the models if it is known.

    >>> from mmdp import Bound
    >>> Bound(103.0, "oracle", "history").gap(100.0)
    0.03
    """

    value: float
    method: str
    scope: BoundScope
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    model_fingerprint: str = ""
    objective: Objective = Mean()  # noqa: RUF009 (frozen)

    @check_arguments
    def gap(self, value: FiniteFloat) -> float:
        """Compute (bound - value) / abs(value), the relative gap of a policy of this value."""
        return compute_gap(self.value, value)

    @property
    def markov_bound(self) -> float | None:
        """Lowest known bound on all Markov policies, randomized ones too; None if there is none.

        If the scope of the bound is smaller, it is one of ``details["bounds_by_method"]``.
        """
        if self.scope in ("markov", "history"):
            return self.value
        return min(self.details.get("bounds_by_method", {}).values(), default=None)

    @check_arguments
    def share_closed(self, value: FiniteFloat, oracle: FiniteFloat) -> float:
        """Compute the share of the wait-and-see gap it closes, from the values of both ends."""
        if oracle <= value:
            return 1.0
        return (oracle - self.value) / (oracle - value)

    def __repr__(self) -> str:
        scope_text = f"any {SCOPE_NAMES[self.scope]}"
        return f"Bound({self.value:,.10g} for {scope_text}; {self.method}, {self.seconds:.3g} s)"


@dataclass(frozen=True)
class Provenance:
    """The method, options and version of a result: enough to compute it again."""

    method: str
    options: Mapping[str, object]
    horizon: float  # the number of decisions, infinite if there is no last one
    backend: str
    seed: int | None
    version: str
    seconds: float
    objective: Objective = field(default_factory=Mean)
    policy_class: PolicyClass = field(default_factory=Markov)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Returns of one policy on every model of a problem.

    ``returns`` (M,) and ``weights`` (M,); ``standard_errors`` (M,) of simulated returns, None if
    they are exact; after few episodes they are larger, so that ``mean`` ± two ``stderr`` is a 95%
    interval (Student's t). The models are a discrete distribution with these weights: the standard
    deviation is that of a population.

    >>> import numpy as np
    >>> from mmdp import Evaluation
    >>> e = Evaluation(np.array([0.0, 10.0, 20.0, 30.0]), np.full(4, 0.25))
    >>> e.mean, e.cvar(0.5), e.quantile(0.5), e.worst
    (15.0, 5.0, 10.0, 0.0)
    """

    returns: ModelVector
    weights: ModelVector
    standard_errors: ModelVector | None = None
    model_labels: tuple[str, ...] | None = None
    provenance: Provenance | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    unit: str | None = None  # of the returns, if the model says it
    _compute_oracle: Callable[[], ModelVector] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Keep the returns of the oracle for pickle, in place of the models that give them."""
        if self._compute_oracle is None:
            return self.__dict__
        oracle_maker = partial(np.asarray, self.oracle)  # from then on __dict__ has the oracle
        return {**self.__dict__, "_compute_oracle": oracle_maker}

    @property
    def mean(self) -> float:
        """Weighted mean return rho(pi)."""
        return float(self.returns @ self.weights)

    @property
    def sd(self) -> float:
        """Population standard deviation of the models' returns."""
        return float(np.sqrt(((self.returns - self.mean) ** 2) @ self.weights))

    @property
    def stderr(self) -> float:
        """Standard error of ``mean`` from simulation; 0 if returns are exact."""
        if self.standard_errors is None:
            return 0.0
        return float(np.sqrt((self.weights**2) @ (self.standard_errors**2)))

    @property
    def worst(self) -> float:
        """Lowest return over the models of positive weight."""
        return self.value(WorstCase())

    @property
    def best(self) -> float:
        """Highest return over the models of positive weight."""
        return float(self.returns[self.weights > 0].max())

    @check_arguments
    def compare_mean(self, other: Evaluation) -> tuple[float, float]:
        """Compute the difference of mean returns to another policy, and its standard error.

        The differences are taken model by model. The standard error is that of models sampled from
        a distribution, and includes that of simulated returns. It is larger for few models, so
        that the difference ± two standard errors is a 95% interval.

        >>> import numpy as np
        >>> from mmdp import Evaluation
        >>> one, two = (Evaluation(np.array(x), np.full(2, 0.5)) for x in ([3.0, 7.0], [1.0, 3.0]))
        >>> difference, stderr = one.compare_mean(two)
        >>> difference, round(stderr, 3)  # Student's t for two models
        (3.0, 6.353)
        """
        if self.weights.shape != other.weights.shape or (self.weights != other.weights).any():
            raise InputError(
                "the two policies were evaluated on different models; evaluate both on one MMDP"
            )
        weights, differences = self.weights, self.returns - other.returns
        mean, count = float(weights @ differences), int((weights > 0).sum())
        variance = float(weights**2 @ (differences - mean) ** 2) * count / max(count - 1, 1)
        between_models = compute_t_factor(max(count - 1, 1)) * math.sqrt(variance)
        return mean, math.hypot(between_models, self.stderr, other.stderr)

    @check_arguments
    def quantile(self, alpha: Probability) -> float:
        """Find the smallest return x such that P(return <= x) >= alpha."""
        return float(weighted_quantile(self.returns, self.weights, alpha))

    @check_arguments
    def cvar(self, alpha: float) -> float:
        """Compute the mean return over the worst share ``alpha`` of the models (1: the mean)."""
        return self.value(CVaR(alpha))

    @check_arguments
    def value(self, objective: str | Objective | ObjectiveFunction) -> float:
        """Compute the value of any objective on these models, for example ``value(CVaR(0.1))``.

        A text names one too: ``value("regret:worst")`` (see :mod:`mmdp.objectives`).

        >>> import numpy as np
        >>> from mmdp import Evaluation
        >>> Evaluation(np.array([0.0, 10.0]), np.full(2, 0.5)).value("mean-cvar:0.5:0.5")
        2.5
        """
        resolved_objective = as_objective(objective)
        relative_returns = resolved_objective.relative_returns(self.returns, lambda: self.oracle)
        return float(resolved_objective.value(relative_returns, self.weights))

    @cached_property
    def oracle(self) -> ModelVector:
        """Return of each model's optimal policy (M,)."""
        if self._compute_oracle is None:
            raise InputError(
                "regret needs the model; use an Evaluation of mmdp.evaluate() or mmdp.solve()"
            )
        return self._compute_oracle()

    @property
    def regret(self) -> ModelVector:
        """Regret of each model against its optimal policy (M,), at least 0."""
        return self.oracle - self.returns

    @property
    def bayes_regret(self) -> float:
        """Weighted mean of ``regret`` (eq. regret)."""
        return float(self.regret @ self.weights)

    @property
    def max_regret(self) -> float:
        """Highest ``regret`` over the models of positive weight."""
        return float(self.regret[self.weights > 0].max())

    @check_arguments
    def to_frame(self, *, regret: bool = True) -> pd.DataFrame:
        """Convert to a table with one row per model: label, weight, return, oracle, regret."""
        import pandas as pd

        labels = self.model_labels or tuple(map(str, range(len(self.returns))))
        columns: dict[str, object] = {
            "model": labels,
            "weight": self.weights,
            "return": self.returns,
        }
        if self.standard_errors is not None:
            columns["stderr"] = self.standard_errors
        if regret and self._compute_oracle is not None:
            columns["oracle"], columns["regret"] = self.oracle, self.regret
        return pd.DataFrame(columns)

    def summary(self) -> dict[str, float]:
        """Compute the statistics of the returns that tables show, by name."""
        statistics = {
            "mean": self.mean,
            "sd": self.sd,
            "stderr": self.stderr,
            "worst": self.worst,
            "q10": self.quantile(0.1),
            "median": self.quantile(0.5),
            "q90": self.quantile(0.9),
            "cvar10": self.cvar(0.1),
        }
        if self._compute_oracle is not None:
            statistics |= {"bayes_regret": self.bayes_regret, "max_regret": self.max_regret}
        return statistics

    def _repr_html_(self) -> str:
        """Render the statistics that need no solving, for notebooks."""
        statistics = {
            "mean": self.mean,
            "sd": self.sd,
            "worst": self.worst,
            "CVaR 10%": self.cvar(0.1),
            "median": self.quantile(0.5),
            "best": self.best,
        }
        return render_facts(
            f"Evaluation on {pluralize(len(self.returns), 'model')}",
            zip(statistics, format_column(list(statistics.values())), strict=True),
        )

    def __repr__(self) -> str:
        is_exact = self.standard_errors is None
        error = "" if is_exact else f" ± {format_number(2 * self.stderr, 3)}"
        return (
            f"Evaluation(mean {format_number(self.mean, 6)}{error}, sd {format_number(self.sd)}, "
            f"worst {format_number(self.worst, 6)}, CVaR 10% {format_number(self.cvar(0.1), 6)}, "
            f"{len(self.returns)} models)"
        )


def make_evaluation(
    model: MMDP,
    returns: ModelVector,
    standard_errors: ModelVector | None = None,
    details: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Make the Evaluation of returns (M,) on the models, with their weights, labels and unit."""
    labels = model.label_index("model").labels
    return Evaluation(
        returns, model.weights, standard_errors, labels, None, details or {}, model.unit
    )


@dataclass(frozen=True, eq=False)
class Solution:
    """A policy with its value on the models it was computed for.

    ``value`` is that of the ``objective``; ``evaluation`` has the mean and other statistics.
    ``policy`` is None for the method ``oracle``, which has ``model_policies`` (T, M, S), one per
    model. ``certificate`` is a proven bound on the best policy, if there is one
    (``certify_time=``, or a method that proves). ``iterations`` counts the method's steps: sweeps
    of the best ascent, accepted gradient steps, nodes of a tree; 1 for a single pass. ``trace``
    (n,) holds the value after each improvement of the best ascent, that of the init first. If a
    limit ends the solve, both are about all ascents so far.
    """

    policy: Policy
    value: float
    returns: ModelVector
    status: Status
    iterations: int
    trace: Array
    provenance: Provenance
    evaluation: Evaluation
    certificate: Bound | None = None
    model_policies: ModelActionTable | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bound(self) -> float | None:
        """Proven upper bound on the value of the best policy; None without certificate."""
        return None if self.certificate is None else self.certificate.value

    @property
    def gap(self) -> float | None:
        """Relative gap (bound - value) / abs(value); None without certificate."""
        return None if self.certificate is None else self.certificate.gap(self.value)

    @property
    def status_text(self) -> str:
        """Sentence that says how the solve ended and what that proves.

        Randomized policies may be better than the best deterministic one if the
        horizon is infinite or the objective is not the mean.
        """
        if self.status is Status.OPTIMAL and self.policy is not None:
            # without a certificate it is that of the only model
            scope = "history" if self.certificate is None else self.certificate.scope
            caveat = "; a randomized one may be" if scope.startswith("determ") else ""
            return f"{self.status.value}: no {SCOPE_NAMES[scope]} is better{caveat}"
        if self.status is Status.LOCAL_OPTIMUM:
            policy_class = self.provenance.policy_class
            single_change = "" if self.objective.is_mean else policy_class.single_change_text
            return f"no {single_change or policy_class.change_text} improves it"
        is_unproven = self.status is Status.COMPLETED and self.certificate is None
        return self.status.value + "; optimality is not proven" * is_unproven

    @property
    def restriction_cost(self) -> float | None:
        """Cost of the restriction of the policy class: the unrestricted value less this one.

        ``details["unrestricted_value"]`` is the value of the best policy found without the
        restriction. None if the class is not restricted, or if that value is not known.
        """
        unrestricted_value = self.details.get("unrestricted_value")
        return None if unrestricted_value is None else max(unrestricted_value - self.value, 0.0)

    @property
    def best_value(self) -> float:
        """Value of the best policy known: this one, or a better one without the restriction."""
        return max(self.value, self.details.get("unrestricted_value", -math.inf))

    @property
    def restriction_cost_text(self) -> str:
        """Sentence on the cost of the restriction; empty if the policy class is not restricted."""
        policy_class = self.provenance.policy_class
        if not policy_class.is_restricted or self.policy is None:
            return ""
        comparator = ""
        if policy_class.is_infinite_horizon and policy_class.name != "stationary":
            # the restriction is to stationary policies too
            is_timed = "comparison_horizon" in self.details
            scope_text = "policy of time and state" if is_timed else "stationary policy"
            comparator = f"the best {scope_text} found"
        return describe_restriction_cost(
            policy_class,
            self.value,
            self.details.get("unrestricted_value"),
            None if self.certificate is None else self.certificate.markov_bound,
            self.evaluation.unit,
            comparator=comparator,
        )

    @property
    def randomization_text(self) -> str:
        """Sentence on the gain of random actions; empty if the policy class is deterministic."""
        return self.describe_randomization()

    @check_arguments
    def describe_randomization(self, suffix: AmountSuffix = lambda amount: "") -> str:
        """Describe the gain of random actions; ``suffix`` gives the text after the amount.

        ``details["randomization_gain"]`` is the value less that of the best deterministic policy
        found.
        """
        gain, policy = self.details.get("randomization_gain"), self.policy
        if gain is None or not isinstance(policy, TablePolicy):
            return ""
        if not (gain > 0 and len(policy.randomized_cells)):
            return "drawing actions at random earns nothing"
        if self.provenance.policy_class.name == "stationary" and policy.horizon < math.inf:
            # all rows are equal
            policy = StationaryPolicy.from_table(policy.table[0], **policy.label_kwargs)
        axis_names = " and ".join(f"{axis}s" for axis in policy.axes)
        cells = policy.randomized_cells.tolist()
        examples = join_first(map(policy.describe_randomization, cells), 3, "; ")
        share_text = f"{len(cells):,} of {policy.actions.size:,} {axis_names}"
        amount = f"{format_with_unit(format_number(gain, 3), self.evaluation.unit)}{suffix(gain)}"
        return f"drawing actions at random earns {amount}, in {share_text}: {examples}"

    @property
    def evpi(self) -> float:
        """Upper bound on the expected value of perfect information: oracle value less mean.

        It equals that value if the policy is optimal, and overestimates it otherwise. It does so
        too if the policy class is restricted, since the oracle is not:
        :func:`mmdp.measures.evpi` keeps to the class.
        """
        return self.evaluation.bayes_regret

    @property
    def seconds(self) -> float:
        """Seconds of the solve, including those of the proof (``certificate.seconds``)."""
        return self.provenance.seconds

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.provenance.method

    @property
    def objective(self) -> Objective:
        """Objective that was maximized over the models."""
        return self.provenance.objective

    @property
    def title(self) -> str:
        """Method and horizon, with objective and policy class if they are not the defaults."""
        provenance = self.provenance
        parts = [f"{provenance.method}, horizon {provenance.horizon}"]
        if not provenance.objective.is_mean:
            parts.append(provenance.objective.name)
        if provenance.policy_class.name not in ("markov", "belief"):
            parts.append(provenance.policy_class.name)
        return ", ".join(parts)

    def to_frame(self) -> pd.DataFrame:
        """Convert the policy to a tidy table (see :meth:`MarkovPolicy.to_frame`)."""
        if self.policy is None:
            raise InputError(f"{self.method} has no single policy; see model_policies")
        return self.policy.to_frame()

    @property
    def markov_policy(self) -> MarkovPolicy | None:
        """Policy as a table of time and state, also of a tree; None if it is neither."""
        return None if self.policy is None else self.policy.as_markov

    @property
    def summary_rows(self) -> list[tuple[str, str]]:
        """Rows (name, text): value, bound, restriction, statistics over the models, status."""
        evaluation = self.evaluation
        value, bound_text = format_column([self.value, self.bound], round_up=[1])
        statistics = {} if self.objective.is_mean else {"mean": evaluation.mean}
        statistics |= {
            "sd": evaluation.sd,
            "worst": evaluation.worst,
            "CVaR 10%": evaluation.cvar(0.1),
        }
        if self.objective.is_mean and evaluation.standard_errors is not None:
            value += f" ± {format_number(2 * evaluation.stderr, 2)}"
        rows, proof_text = [("value", value)], ""
        if self.certificate is not None and self.gap is not None:
            is_closed = self.status is Status.OPTIMAL and self.gap <= ROUNDING_GAP
            gap_text = "0%" if is_closed else format_bound_percent(self.gap)
            scope = self.certificate.scope
            scope_text = f" for any {SCOPE_NAMES[scope]}" if scope.startswith("determ") else ""
            rows.append(("at most", f"{bound_text} (gap {gap_text}){scope_text}"))
            proof_text = f" (proof {self.certificate.seconds:.3g} s)"
        statistic_texts = (f"{name} {format_number(x, 6)}" for name, x in statistics.items())
        seconds_text = f"{self.seconds:.3g} s{proof_text}"
        rows += [
            ("restriction", self.restriction_cost_text),
            ("random", self.randomization_text),
            ("over models", ", ".join(statistic_texts)),
            ("status", f"{self.status.name}: {self.status_text}"),
            ("iterations", f"{self.iterations}, {seconds_text}, {self.provenance.backend}"),
        ]
        return [(name, text.replace("−", "-")) for name, text in rows if text]

    def _repr_html_(self) -> str:
        """Render the rows of __repr__ and a heat map of the policy, for notebooks."""
        policy_html = "" if self.policy is None else self.policy._repr_html_()
        return render_facts(f"Solution: {self.title}", self.summary_rows) + policy_html

    def __repr__(self) -> str:
        rows = [f"  {name:<11} {text}" for name, text in self.summary_rows]
        return "\n".join([f"Solution({self.title})", *rows])
