"""Objectives: risk measures that turn the returns of all models into one value to maximize.

A policy has a return rho_m in every model m. An objective F turns the returns rho (M,) and the
weights lambda (M,) of the models into one number, which :func:`mmdp.solve` maximises. Rewards are
good, so the bad tail is the *lower* one. alpha is the weight of that tail: ``CVaR(0.1)`` is the
mean over the worst tenth of the models.

=========================  =====================  ===============================================
objective                  as text                value
=========================  =====================  ===============================================
Mean()                     ``mean``               sum_m lambda_m rho_m
CVaR(alpha)                ``cvar:0.1``           mean over the worst share alpha of the models
VaR(alpha)                 ``var:0.1``            the alpha-quantile
EVaR(alpha)                ``evar:0.1``           sup_b -1/b log(sum lambda exp(-b rho) / alpha)
Entropic(beta)             ``entropic:0.01``      -1/beta log(sum lambda exp(-beta rho))
WorstCase()                ``worst``              min_m rho_m
MeanCVaR(alpha, w)         ``mean-cvar:0.1:0.5``  w * mean + (1 - w) * CVaR
CustomObjective(function)  only in Python         function(returns, weights)
=========================  =====================  ===============================================

``on_regret()``, as text ``regret:worst``, takes rho_m - rho*_m in place of rho_m. rho*_m is the
return of the policy that is optimal for model m alone, so the value is zero or negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, replace
from types import ModuleType
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import (
    PositiveFloat,
    Probability,
    ValueConstraint,
    as_instance,
    check_arguments,
)
from mmdp.core.errors import InputError
from mmdp.core.shapes import Array
from mmdp.core.text import did_you_mean

__all__ = [
    "CVaR",
    "CustomObjective",
    "EVaR",
    "Entropic",
    "Mean",
    "MeanCVaR",
    "Objective",
    "Regret",
    "VaR",
    "WorstCase",
    "as_objective",
]

TailWeight = Annotated[
    float, ValueConstraint(lambda x: 0 < x <= 1, "the weight of a tail, above 0 and at most 1")
]
ObjectiveFunction = Callable[[Array, Array], npt.ArrayLike]

# multiples of alpha: wider tails that a search goes through first
CONTINUATION_FACTORS = (8.0, 4.0, 2.0)
WEIGHT_RTOL = 1e-12  # weights that differ by less are the same
# least temperature of EVaR, a share of the least step; steps to find it
MIN_TEMPERATURE, MAX_NEWTON_STEPS = 1e-6, 40
MIN_RELATIVE_STEP = 1e-100  # lower limit of such a step, as a share of the spread
# relative error of its KL, and the share of equal weights against it
KL_RTOL, UNIFORM_WEIGHT = 1e-10, 1e-9


class Objective:
    """A risk measure: a function F of the returns rho of the models.

    Three flags state properties of F. ``is_monotone``: it never falls if a return rises; None if
    that is not known. ``is_concave``: it is the minimum over weights xi of
    sum_m lambda_m xi_m rho_m + penalty(xi). ``uses_regret``: rho is the return less that of the
    model's optimal policy.
    """

    key: ClassVar[str]
    is_monotone: bool | None = True
    is_concave: bool = True
    uses_regret: bool = False
    is_mean: ClassVar[bool] = False  # the mean itself
    # its name, and a sentence about it, with its numbers in braces
    name_template: ClassVar[str] = ""
    sentence_template: ClassVar[str] = ""

    def value(self, returns: Array, weights: Array) -> Array:
        """Compute F for many policies at once: values (...) of returns (..., M), weights (M,)."""
        return (self.dual_density(returns, weights) * returns) @ weights

    def dual_density(self, returns: Array, weights: Array) -> Array:
        """Compute the dual density xi (..., M): lambda_m xi_m is a supergradient of F here."""
        raise InputError(f"{self} is not concave, so it has no risk weights")

    def penalty(self, xi: Array, weights: Array) -> float:
        """Compute the number to add to sum lambda xi rho so that it bounds F(rho)."""
        return 0.0

    def continuation_path(self, weights: Array) -> list[Objective]:
        """List easier objectives that a search solves before this one, the easiest first."""
        return []

    def on_regret(self) -> Regret:
        """Return the same objective of the regret of each model against its optimal policy.

        >>> str(WorstCase().on_regret())
        'regret:worst'
        """
        return Regret(self)

    def relative_returns(self, returns: Array, compute_oracle: Callable[[], Array]) -> Array:
        """Compute rho (..., M): the returns, less the models' optima if it uses regret."""
        return returns - compute_oracle() if self.uses_regret else returns

    @property
    def compilable_form(self) -> Objective | None:
        """Objective that jax can compile, as its functions take jax arrays; None if it cannot."""
        return self if type(self) in COMPILABLE else None

    @property
    def name(self) -> str:
        """Usual notation: ``CVaR 10%``."""
        return self._fill_template(self.name_template) or str(self)

    @property
    def sentence(self) -> str:
        """One sentence that explains the objective."""
        return self._fill_template(self.sentence_template) or f"{self.name}."

    def _fill_template(self, template: str) -> str:
        """Fill the parameters of this objective into a template, shares as percentages."""
        shares = {name: f"{100 * getattr(self, name, 0):.6g}%" for name in ("alpha", "mean_weight")}
        return template.format(self, **shares)

    def __str__(self) -> str:
        parameters = astuple(self)  # type: ignore[call-overload]
        return ":".join([self.key, *map(str, parameters)])


@dataclass(frozen=True)
class Mean(Objective):
    """The mean return, sum_m lambda_m rho_m.

    >>> float(Mean().value(np.array([0.0, 10.0]), np.array([0.5, 0.5])))
    5.0
    """

    key = "mean"
    is_mean = True
    sentence_template = "The mean over the models."

    def value(self, returns: Array, weights: Array) -> Array:
        """Compute the mean return over the models."""
        return returns @ weights

    def dual_density(self, returns: Array, weights: Array) -> Array:
        """Compute the dual density, 1 for all models."""
        return np.ones_like(returns)


@dataclass(frozen=True)
class TailObjective(Objective):
    """An objective of the worst models, whose weights add up to alpha."""

    alpha: TailWeight

    def continuation_path(self, weights: Array) -> list[Objective]:
        """List the same objective with wider tails, the widest first."""
        wider_alphas = (factor * self.alpha for factor in CONTINUATION_FACTORS)
        return [replace(self, alpha=alpha) for alpha in wider_alphas if alpha < 1]


@check_arguments
@dataclass(frozen=True)
class CVaR(TailObjective):
    """The mean return over the worst models, whose weights add up to alpha.

    CVaR_alpha = min sum_m lambda_m xi_m rho_m over 0 <= xi <= 1 / alpha, sum lambda xi = 1. The
    tail is the lower one, and alpha is its weight: 0.1 is the worst tenth, 1 is the mean
    (Rockafellar and Uryasev 2000).

    >>> CVaR(0.5).value(np.array([[0.0, 10.0, 20.0, 30.0]]), np.full(4, 0.25))
    array([5.])
    """

    key = "cvar"
    name_template = "CVaR {alpha}"
    sentence_template = "The mean over the worst {alpha} of the models, by weight."

    def value(self, returns: Array, weights: Array) -> Array:
        """Compute the mean return over the worst share alpha of the models."""
        if _get_array_module(weights) is not np or not np.ptp(weights) <= WEIGHT_RTOL * weights[0]:
            return (CVaR.dual_density(self, returns, weights) * returns) @ weights
        n_tail = min(self.alpha * len(weights), float(len(weights)))  # models in the tail
        n_whole = min(int(n_tail), len(weights) - 1)
        lowest_returns = np.partition(returns, n_whole, axis=-1)
        total: Array = lowest_returns[..., :n_whole].sum(axis=-1)
        return (total + (n_tail - n_whole) * lowest_returns[..., n_whole]) / n_tail

    def dual_density(self, returns: Array, weights: Array) -> Array:
        """Compute the dual density: 1 / alpha in the worst tail, 0 elsewhere."""
        order, xp = _stable_argsort(returns), _get_array_module(returns)
        sorted_weights = weights[order]
        cumulative_weights = xp.cumsum(sorted_weights, axis=-1)
        preceding_weights = xp.concatenate(
            [xp.zeros_like(cumulative_weights[..., :1]), cumulative_weights[..., :-1]], axis=-1
        )
        tail_weights = xp.clip(self.alpha - preceding_weights, 0.0, sorted_weights)
        tail_weights = tail_weights / tail_weights.sum(axis=-1, keepdims=True)
        sorted_density = tail_weights / xp.where(sorted_weights > 0, sorted_weights, 1.0)
        return xp.take_along_axis(sorted_density, _stable_argsort(order), axis=-1)


@check_arguments
@dataclass(frozen=True)
class VaR(TailObjective):
    """The alpha-quantile: the smallest x such that models of weight alpha return at most x.

    So all but the worst share alpha of the models return x or more: alpha is the weight of the
    lower tail. VaR is not concave, and only the models' own optima bound it.

    >>> float(VaR(0.5).value(np.array([0.0, 10.0, 20.0, 30.0]), np.full(4, 0.25)))
    10.0
    """

    key = "var"
    name_template = "VaR {alpha}"
    sentence_template = "The return that all but the worst {alpha} of the models reach."
    is_concave = False

    def value(self, returns: Array, weights: Array) -> Array:
        """Compute the alpha-quantile of the returns."""
        return weighted_quantile(returns, weights, self.alpha)

    def continuation_path(self, weights: Array) -> list[Objective]:
        """List the CVaR of wider tails and of the same one, the widest first."""
        tail = CVaR(self.alpha)
        return [*tail.continuation_path(weights), tail]


@check_arguments
@dataclass(frozen=True)
class EVaR(TailObjective):
    """Entropic value at risk: the worst mean over weights that are near the given ones.

    EVaR_alpha = sup_{beta > 0} -1/beta log(sum lambda exp(-beta rho) / alpha)
    = min sum lambda xi rho over KL(xi lambda || lambda) <= -log alpha. alpha is the weight of the
    lower tail, as for CVaR. EVaR is at most CVaR_alpha and at least the worst case (Ahmadi-Javid
    2012).

    >>> round(float(EVaR(0.5).value(np.array([0.0, 10.0, 20.0, 30.0]), np.full(4, 0.25))), 4)
    2.9577
    """

    key = "evar"
    name_template = "EVaR {alpha}"
    sentence_template = (
        "The worst mean over weights of the models that a tail of {alpha} could have, measured by "
        "entropy."
    )

    def value(self, returns: Array, weights: Array) -> Array:
        """Compute the entropic value at risk, at its optimal temperature."""
        min_returns = _min_return(returns, weights)
        excess_returns = returns - min_returns
        temperature = self._find_temperature(excess_returns, weights)
        log_ratio = _gibbs_density(excess_returns / temperature, weights)[1] - math.log(self.alpha)
        values: Array = min_returns[..., 0] + np.maximum(-temperature[..., 0] * log_ratio, 0.0)
        return returns @ weights if self.alpha == 1 else values

    def dual_density(self, returns: Array, weights: Array) -> Array:
        """Compute the dual density: the Gibbs density at the optimal temperature."""
        if self.alpha == 1:
            return np.ones_like(returns)
        excess_returns = returns - _min_return(returns, weights)
        temperature = self._find_temperature(excess_returns, weights)
        xi = _gibbs_density(excess_returns / temperature, weights)[0]
        return xi + UNIFORM_WEIGHT * (1.0 - xi)  # rounding must not take it out of the envelope

    def _find_temperature(self, excess_returns: Array, weights: Array) -> Array:
        """Find the least temperature s (..., 1) for which exp(-x / s) has KL <= -log alpha.

        Newton's steps on log s to the root of log KL, or a halving if one would leave the bracket.
        """
        max_kl = -math.log(self.alpha) or 1.0
        max_excess = np.where(weights > 0, excess_returns, 0.0).max(axis=-1, keepdims=True)
        unit = np.where(max_excess > 0, max_excess, 1.0)
        excess_returns = np.where(weights > 0, excess_returns / unit, 0.0)
        # a single return that is far above the others must not hide how these differ
        min_positive = np.where(excess_returns > 0, excess_returns, 1.0).min(axis=-1, keepdims=True)
        log_low = np.log(MIN_TEMPERATURE * np.maximum(min_positive, MIN_RELATIVE_STEP))
        is_worst_case = (excess_returns <= 0.0) @ weights >= self.alpha  # then it is near
        # KL <= 1 / (8 s^2) < most
        log_s = log_high = np.where(is_worst_case[..., None], log_low, -0.5 * math.log(max_kl))
        for _ in range(MAX_NEWTON_STEPS):
            energy = excess_returns / np.exp(log_s)
            xi, log_mean = _gibbs_density(energy, weights)
            mean = (xi * energy) @ weights
            variance = (xi * energy**2) @ weights - mean**2
            kl = (-mean - log_mean)[..., None]  # its slope is -variance
            kl_excess = kl - max_kl
            log_high = np.where(kl_excess <= 0, log_s, log_high)
            log_low = np.where(kl_excess <= 0, log_low, log_s)
            is_converged = np.abs(kl_excess) < KL_RTOL * max_kl
            if (is_converged | (log_high - log_low < 1e-9)).all():
                break
            log_ratio = np.log(np.maximum(kl, 1e-300) / max_kl)
            newton_step = log_s + kl * log_ratio / np.maximum(variance, 1e-300)[..., None]
            is_inside = (newton_step > log_low) & (newton_step < log_high)
            next_log_s = np.where(is_inside, newton_step, (log_low + log_high) / 2)
            log_s = np.where(is_converged, log_s, next_log_s)
        return unit * np.exp(np.where(is_converged, log_s, log_high))


@check_arguments
@dataclass(frozen=True)
class Entropic(Objective):
    """The certainty equivalent of exponential utility, -1/beta log(sum lambda exp(-beta rho)).

    Low returns count more than high ones. A small beta > 0 is near the mean, a large one near the
    worst case. beta is in units of 1 / return. There is no alpha, the weight of the tail.

    >>> round(float(Entropic(0.1).value(np.array([0.0, 10.0]), np.full(2, 0.5))), 4)
    3.7989
    """

    beta: PositiveFloat

    key = "entropic"
    name_template = "entropic {0.beta:g}"
    sentence_template = "The certainty equivalent of exponential utility with beta = {0.beta:g}."

    def value(self, returns: Array, weights: Array) -> Array:
        """Compute -1/beta log(sum lambda exp(-beta rho)) without overflow."""
        xp = _get_array_module(returns)
        log_weights = xp.log(xp.where(weights > 0, weights, 1.0))
        terms = xp.where(weights > 0, log_weights - self.beta * returns, -np.inf)
        # relative to the largest term of the sum, whose digits then count
        reference = xp.take_along_axis(returns, terms.argmax(axis=-1)[..., None], axis=-1)
        log_mean = _gibbs_density(self.beta * (returns - reference), weights)[1]
        return reference[..., 0] - log_mean / self.beta

    def dual_density(self, returns: Array, weights: Array) -> Array:
        """Compute the dual density: the Gibbs density of the returns."""
        return _gibbs_density(self.beta * (returns - _min_return(returns, weights)), weights)[0]

    def penalty(self, xi: Array, weights: Array) -> float:
        """Compute KL(xi lambda || lambda) / beta = sum lambda (xi log xi - xi + 1) / beta.

        It is rounded up. Each term, and the sum of the weights, which is 1 up to rounding, has a
        relative error; a small beta makes much of it.
        """
        deviation = np.where(np.abs(xi - 1.0) < 0.5, xi - 1.0, 0.0)
        xi_log_xi = xi * np.log(xi, out=np.zeros_like(xi), where=xi > 0)
        # terms >= 0, which keep the digits if all xi are near 1
        near_terms = (1.0 + deviation) * np.log1p(deviation) - deviation
        terms = np.where(np.abs(xi - 1.0) < 0.5, near_terms, xi_log_xi - xi + 1.0)
        sizes = np.abs(xi_log_xi) + np.abs(xi - 1.0)
        error = 4 * np.finfo(float).eps * (len(weights) + 4) * float(sizes @ weights)
        return (float(np.maximum(terms, 0.0) @ weights) + error) / self.beta

    def continuation_path(self, weights: Array) -> list[Objective]:
        """List the same objective with smaller beta, the smallest first."""
        return [Entropic(self.beta / factor) for factor in CONTINUATION_FACTORS]


@dataclass(frozen=True)
class WorstCase(Objective):
    """The lowest return over the models of positive weight.

    It is the limit of CVaR as alpha, the weight of the lower tail, goes to 0.

    >>> float(WorstCase().value(np.array([3.0, 1.0, 0.0]), np.array([0.5, 0.5, 0.0])))
    1.0
    """

    key = "worst"
    name_template = "worst case"
    sentence_template = "The worst of the models."

    def value(self, returns: Array, weights: Array) -> Array:
        """Compute the smallest return of a model with positive weight."""
        return _min_return(returns, weights)[..., 0]

    def dual_density(self, returns: Array, weights: Array) -> Array:
        """Compute the dual density: all weight on the worst model."""
        xp = _get_array_module(returns)
        worst_model = xp.where(weights > 0, returns, np.inf).argmin(axis=-1)[..., None]
        is_worst = xp.arange(len(weights)) == worst_model
        return xp.where(is_worst, 1.0 / weights[worst_model], 0.0)

    def continuation_path(self, weights: Array) -> list[Objective]:
        """List the CVaR of tails wider than one model, the widest first."""
        return CVaR(float(weights[weights > 0].min())).continuation_path(weights)


@check_arguments
@dataclass(frozen=True)
class MeanCVaR(CVaR):
    """``mean_weight`` times the mean plus ``1 - mean_weight`` times CVaR_alpha.

    alpha is the weight of the lower tail, as for :class:`CVaR`.

    >>> float(MeanCVaR(0.5, 0.5).value(np.array([0.0, 10.0, 20.0, 30.0]), np.full(4, 0.25)))
    10.0
    """

    mean_weight: Probability

    key = "mean-cvar"
    name_template = "{mean_weight} mean, the rest CVaR {alpha}"
    sentence_template = (
        "{mean_weight} of the mean, and for the rest the mean over the worst {alpha} of the models."
    )

    def value(self, returns: Array, weights: Array) -> Array:
        """Compute the weighted mean of the mean return and CVaR."""
        cvar = super().value(returns, weights)
        return self.mean_weight * (returns @ weights) + (1 - self.mean_weight) * cvar

    def dual_density(self, returns: Array, weights: Array) -> Array:
        """Compute the dual density: the weighted mean of 1 and the density of CVaR."""
        return self.mean_weight + (1 - self.mean_weight) * super().dual_density(returns, weights)


@check_arguments
@dataclass(frozen=True)
class CustomObjective(Objective):
    """A function of your own: values (...) from returns (..., M) and weights (M,).

    Bounds hold only if the value never falls when a return rises. If so, say ``is_monotone=True``.
    None means "not known"; then, and if it is False, bounds are refused.

    >>> middle = CustomObjective(lambda returns, weights: np.median(returns, axis=-1))
    >>> middle.value(np.array([[1.0, 2.0, 9.0]]), np.full(3, 1 / 3))
    array([2.])
    """

    function: ObjectiveFunction
    is_monotone: bool | None = None

    key = "custom"
    is_concave = False

    def value(self, returns: Array, weights: Array) -> Array:
        """Call the function, and check the shape and type of what it returns."""
        # copies, which the function may change
        values = np.asarray(self.function(np.array(returns), np.array(weights)))
        if values.shape != returns.shape[:-1]:
            raise InputError(
                f"objective {self.name} returned shape {values.shape} for returns of shape "
                f"{returns.shape}; it must return {returns.shape[:-1]}, one value for each row of "
                "models"
            )
        if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            description = f"values of type {values.dtype}"
            if values.dtype.kind == "f":
                description = "NaN" if np.isnan(values).any() else "infinity"
            raise InputError(
                f"objective {self.name} returned {description}; it must return numbers"
            )
        return values.astype(np.float64)

    @property
    def name(self) -> str:
        """Name of the user's function, or of its type if it has none."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def sentence(self) -> str:
        """Definition of the objective as a sentence."""
        return f"The function {self.name} of the returns and the weights."

    def __str__(self) -> str:
        return f"custom:{self.name}"


@check_arguments
@dataclass(frozen=True)
class Regret(Objective):
    """An objective of rho_m - rho*_m, made by ``on_regret()``; its values are at most 0.

    :meth:`relative_returns` subtracts rho*, the returns of the models' optimal policies. ``value``
    and ``dual_density`` get the difference. alpha, if there is one, is the weight of its lower
    tail.

    >>> regret = WorstCase().on_regret()
    >>> rho = regret.relative_returns(np.array([3.0, 1.0]), lambda: np.array([4.0, 5.0]))
    >>> float(regret.value(rho, np.array([0.5, 0.5])))
    -4.0
    """

    inner: Objective

    uses_regret = True

    def __post_init__(self) -> None:
        if self.inner.uses_regret:
            raise InputError(f"{self.inner} is a regret already")
        # of relative returns, they are those of the inner objective
        for name in ("key", "is_monotone", "is_concave", "value", "dual_density", "penalty"):
            object.__setattr__(self, name, getattr(self.inner, name))

    def continuation_path(self, weights: Array) -> list[Objective]:
        """List the regret forms of the inner objective's easier objectives."""
        return [Regret(objective) for objective in self.inner.continuation_path(weights)]

    @property
    def compilable_form(self) -> Objective | None:
        """Form of the inner objective that jax can compile; None if there is none."""
        return self.inner.compilable_form

    @property
    def name(self) -> str:
        """Name of the inner objective, "of regret"."""
        return f"{self.inner.name} of regret"

    @property
    def sentence(self) -> str:
        """Definition of the objective as a sentence."""
        return (
            f"{self.inner.sentence[:-1]}, of what each loses against its own optimal policy, as a "
            "negative number."
        )

    def __str__(self) -> str:
        return f"regret:{self.inner}"


OBJECTIVES: dict[str, type[Objective]] = {
    x.key: x for x in (Mean, CVaR, VaR, EVaR, Entropic, WorstCase, MeanCVaR)
}
COMPILABLE = (CVaR, Entropic, MeanCVaR, WorstCase)  # see Objective.compilable_form
EXAMPLE_TEXTS = "mean, cvar:0.1, var:0.1, evar:0.1, entropic:0.01, worst, mean-cvar:0.1:0.5"


def as_objective(objective: str | Objective | ObjectiveFunction) -> Objective:
    """Convert a text such as ``cvar:0.1`` or ``regret:worst``, or a function, to an objective.

    >>> as_objective("mean-cvar:0.1:0.5"), as_objective("regret:cvar:0.2").name
    (MeanCVaR(alpha=0.1, mean_weight=0.5), 'CVaR 20% of regret')
    """
    if isinstance(objective, (Objective, type)):
        return as_instance(objective, OBJECTIVES, Objective, "objective", "mmdp.objectives")
    if not isinstance(objective, str):
        return CustomObjective(objective)  # type: ignore[arg-type]
    key, *parameters = objective.strip().lower().split(":")
    if key == "regret" and parameters:
        return Regret(as_objective(":".join(parameters)))
    grammar = f"write one of {EXAMPLE_TEXTS}, or regret: before it"
    if key not in OBJECTIVES:
        suggestion = did_you_mean(key, [*OBJECTIVES, "regret:worst"])
        raise InputError(f"no objective is called {suggestion}; {grammar}")
    names = [field.name for field in fields(OBJECTIVES[key])]  # type: ignore[arg-type]
    try:
        numbers = [float(x) for x in parameters]
    except ValueError:
        numbers = []
    if not len(numbers) == len(parameters) == len(names):
        expected_form = ":".join([key, *map(str.upper, names)])
        raise InputError(f"objective {objective!r} is not of the form {expected_form}; {grammar}")
    return OBJECTIVES[key](*numbers)


def weighted_quantile(returns: Array, weights: Array, level: float) -> Array:
    """Find the smallest return x with P(return <= x) >= level: returns (..., M) to (...)."""

    def find_rank(sorted_weights: Array) -> npt.NDArray[np.intp]:
        cumulative_weights = np.cumsum(sorted_weights, axis=-1)
        threshold = np.minimum(level, cumulative_weights[..., -1:]) * (1 - WEIGHT_RTOL)
        return ((cumulative_weights >= threshold) & (sorted_weights > 0)).argmax(axis=-1)

    if np.ptp(weights) == 0:  # the rank is the same whatever the order
        rank = find_rank(weights)
        return np.partition(returns, rank, axis=-1)[..., rank]
    order = _stable_argsort(returns)
    model_index = np.take_along_axis(order, find_rank(weights[order])[..., None], axis=-1)
    return np.take_along_axis(returns, model_index, axis=-1)[..., 0]


# ---------------------------------------------------------------------- parts
def _get_array_module(x: npt.NDArray[np.generic]) -> ModuleType:
    """Get numpy, or the module with the same functions for arrays of another library."""
    return np if isinstance(x, np.ndarray) else x.__array_namespace__()


def _stable_argsort(x: npt.NDArray[np.generic]) -> npt.NDArray[np.intp]:
    """Sort along the last axis; return indices (..., M), equal ones in their order."""
    return (
        np.argsort(x, axis=-1, kind="stable") if _get_array_module(x) is np else x.argsort(axis=-1)
    )


def _min_return(returns: Array, weights: Array) -> Array:
    """Find the lowest return (..., 1) over the models of positive weight."""
    xp = _get_array_module(returns)
    return xp.where(weights > 0, returns, np.inf).min(axis=-1, keepdims=True)


def _gibbs_density(energy: Array, weights: Array) -> tuple[Array, Array]:
    """Compute the density (..., M) proportional to exp(-energy), and the log of its mean."""
    xp = _get_array_module(energy)
    energy = xp.where(weights > 0, energy, 0.0)
    unnormalized_density = xp.exp(-energy) * (weights > 0)
    mean_minus_one = xp.expm1(-energy) @ weights
    total = unnormalized_density @ weights
    # log1p keeps the digits of small energies, log those of a small mean
    log_mean = xp.where(
        mean_minus_one > -0.5, xp.log1p(xp.maximum(mean_minus_one, -0.5)), xp.log(total)
    )
    return unnormalized_density / total[..., None], log_mean
