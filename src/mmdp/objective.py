"""Objectives: what counts over the models.

A policy has a return rho_m in every model m. An objective F turns the returns rho (M,) and the
weights lambda (M,) of the models into one number, which :func:`mmdp.solve` maximises. Rewards are
good, so the bad tail is the *lower* one. alpha is the weight of that tail: ``CVaR(0.1)`` is the
mean over the worst tenth of the models.

=======================  =====================  ===============================================
objective                as text                value
=======================  =====================  ===============================================
Mean()                   ``mean``               sum_m lambda_m rho_m
CVaR(alpha)              ``cvar:0.1``           mean over the worst share alpha of the models
VaR(alpha)               ``var:0.1``            the alpha-quantile
EVaR(alpha)              ``evar:0.1``           sup_b -1/b log(sum lambda exp(-b rho) / alpha)
Entropic(beta)           ``entropic:0.01``      -1/beta log(sum lambda exp(-beta rho))
WorstCase()              ``worst``              min_m rho_m
MeanCVaR(alpha, share)   ``mean-cvar:0.1:0.5``  share * mean + (1 - share) * CVaR
Custom(function)         only in Python         function(returns, weights)
=======================  =====================  ===============================================

``of_regret()``, as text ``regret:worst``, takes rho_m - rho*_m in place of rho_m. rho*_m is the
return of the policy that is optimal for model m alone, so the value is zero or negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.arguments import Read, checked
from mmdp.errors import InputError
from mmdp.words import suggested

Array = npt.NDArray[np.float64]
Function = Callable[[Array, Array], npt.ArrayLike]

RUNGS = (8.0, 4.0, 2.0)  # multiples of alpha: wider tails that a search goes through first
SAME = 1e-12  # weights that differ by less are the same
COLDEST, STEPS = 1e-6, 40  # least temperature of EVaR, a share of the least step; steps to find it
SMALLEST = 1e-100  # lower limit of such a step, as a share of the spread
EXACT, INSIDE = 1e-10, 1e-9  # relative error of its KL, and the share of equal weights against it


class Objective:
    """What counts over the models: a function F of their returns rho.

    Three flags say what is known of F. ``monotone``: it never falls if a return rises; None if
    that is not known. ``concave``: it is the minimum over weights xi of
    sum_m lambda_m xi_m rho_m + penalty(xi). ``regret``: rho is the return less that of the model's
    own optimal policy.
    """

    kind: ClassVar[str]
    monotone: bool | None = True
    concave: bool = True
    regret: bool = False
    linear: ClassVar[bool] = False  # the mean itself
    called: ClassVar[str] = ""  # its name, and a sentence about it, with its numbers in braces
    says: ClassVar[str] = ""

    def value(self, returns: Array, weights: Array) -> Array:
        """F of many policies at once: values (...) from returns (..., M) and weights (M,)."""
        found: Array = (self.tilt(returns, weights) * returns) @ weights
        return found

    def tilt(self, returns: Array, weights: Array) -> Array:
        """(..., M) xi: lambda_m xi_m is a supergradient of F at these returns."""
        raise InputError(f"{self} is not concave, so it has no tilted weights")

    def penalty(self, xi: Array, weights: Array) -> float:
        """What to add to sum lambda xi rho so that it bounds F(rho)."""
        return 0.0

    def ladder(self, weights: Array) -> list[Objective]:
        """Easier objectives that a search solves for on the way from the mean to this one."""
        return []

    def of_regret(self) -> Regret:
        """The same objective of what each model loses against its own optimal policy.

        >>> str(WorstCase().of_regret())
        'regret:worst'
        """
        return Regret(self)

    def counted(self, returns: Array, own: Callable[[], Array]) -> Array:
        """rho: the returns (..., M), or for a regret the returns less the models' own optima."""
        return returns - own() if self.regret else returns

    @property
    def formula(self) -> Objective | None:
        """What machines compile: F of rho, if value and tilt take their arrays too; else None."""
        return self if type(self) in COMPILED else None

    @property
    def name(self) -> str:
        """The usual way to write it: ``CVaR 10%``."""
        return self._filled(self.called) or str(self)

    @property
    def sentence(self) -> str:
        """What it means, in one sentence."""
        return self._filled(self.says) or f"{self.name}."

    def _filled(self, text: str) -> str:
        """The text with the numbers of this objective."""
        shares = {name: _percent(x) for name, x in vars(self).items() if name in ("alpha", "share")}
        return text.format(self, rest=_percent(1 - getattr(self, "share", 0.0)), **shares)

    def __str__(self) -> str:
        given = astuple(self)  # type: ignore[call-overload]
        return ":".join([self.kind, *(repr(float(x) if _is_number(x) else x) for x in given)])


@dataclass(frozen=True)
class Mean(Objective):
    """The mean return, sum_m lambda_m rho_m.

    >>> float(Mean().value(np.array([0.0, 10.0]), np.array([0.5, 0.5])))
    5.0
    """

    kind: ClassVar[str] = "mean"
    linear: ClassVar[bool] = True
    says: ClassVar[str] = "The mean over the models."

    def value(self, returns: Array, weights: Array) -> Array:
        found: Array = returns @ weights
        return found

    def tilt(self, returns: Array, weights: Array) -> Array:
        return np.ones_like(returns)


@dataclass(frozen=True)
class Tail(Objective):
    """An objective of the worst models, whose weights add up to alpha."""

    alpha: float

    def __post_init__(self) -> None:
        if not (_is_number(self.alpha) and 0 < self.alpha <= 1):
            raise InputError(
                f"alpha of {type(self).__name__}, the weight of the tail, is above 0 and at most "
                f"1, not {self.alpha!r}"
            )

    def ladder(self, weights: Array) -> list[Objective]:
        wider = (k * self.alpha for k in RUNGS)
        return [replace(self, alpha=alpha) for alpha in wider if alpha < 1]


@dataclass(frozen=True)
class CVaR(Tail):
    """The mean return over the worst models, whose weights add up to alpha.

    CVaR_alpha = min sum_m lambda_m xi_m rho_m over 0 <= xi <= 1 / alpha, sum lambda xi = 1. The
    tail is the lower one, and alpha is its weight: 0.1 is the worst tenth, 1 is the mean.

    >>> CVaR(0.5).value(np.array([[0.0, 10.0, 20.0, 30.0]]), np.full(4, 0.25))
    array([5.])
    """

    kind: ClassVar[str] = "cvar"
    called: ClassVar[str] = "CVaR {alpha}"
    says: ClassVar[str] = "The mean over the worst {alpha} of the models, by weight."

    def value(self, returns: Array, weights: Array) -> Array:
        return _tail_mean(self.alpha, returns, weights)

    def tilt(self, returns: Array, weights: Array) -> Array:
        return _tail(self.alpha, returns, weights)


@dataclass(frozen=True)
class VaR(Tail):
    """The alpha-quantile: the smallest x such that models of weight alpha return at most x.

    So all but the worst share alpha of the models return x or more: alpha is the weight of the
    lower tail. VaR is not concave, and only the models' own optima bound it.

    >>> float(VaR(0.5).value(np.array([0.0, 10.0, 20.0, 30.0]), np.full(4, 0.25)))
    10.0
    """

    kind: ClassVar[str] = "var"
    called: ClassVar[str] = "VaR {alpha}"
    says: ClassVar[str] = "The return that all but the worst {alpha} of the models reach."
    concave = False

    def value(self, returns: Array, weights: Array) -> Array:
        return quantile(returns, weights, self.alpha)

    def ladder(self, weights: Array) -> list[Objective]:
        tail = CVaR(self.alpha)
        return [*tail.ladder(weights), tail]


@dataclass(frozen=True)
class EVaR(Tail):
    """Entropic value at risk: the worst mean over weights that are near the given ones.

    EVaR_alpha = sup_{beta > 0} -1/beta log(sum lambda exp(-beta rho) / alpha)
    = min sum lambda xi rho over KL(xi lambda || lambda) <= -log alpha. alpha is the weight of the
    lower tail, as for CVaR. EVaR is at most CVaR_alpha and at least the worst case.

    >>> round(float(EVaR(0.5).value(np.array([0.0, 10.0, 20.0, 30.0]), np.full(4, 0.25))), 4)
    2.9577
    """

    kind: ClassVar[str] = "evar"
    called: ClassVar[str] = "EVaR {alpha}"
    says: ClassVar[str] = (
        "The worst mean over weights of the models that a tail of {alpha} could have, measured by "
        "entropy."
    )

    def value(self, returns: Array, weights: Array) -> Array:
        least = _least(returns, weights)
        s, x = self._temperature(returns - least, weights), returns - least
        log = _gibbs(x / s, weights)[1] - math.log(self.alpha)
        found: Array = least[..., 0] + np.maximum(-s[..., 0] * log, 0.0)
        return returns @ weights if self.alpha == 1 else found

    def tilt(self, returns: Array, weights: Array) -> Array:
        if self.alpha == 1:
            return np.ones_like(returns)
        x = returns - _least(returns, weights)
        xi = _gibbs(x / self._temperature(x, weights), weights)[0]
        return xi + INSIDE * (1.0 - xi)  # rounding must not take it out of the envelope

    def _temperature(self, x: Array, weights: Array) -> Array:
        """(..., 1) s = 1 / beta: the least one for which exp(-x / s) has KL <= -log alpha.

        Newton's steps on log s, or a halving if one would leave the bracket.
        """
        most = -math.log(self.alpha) or 1.0
        spread = np.where(weights > 0, x, 0.0).max(axis=-1, keepdims=True)
        unit = np.where(spread > 0, spread, 1.0)
        x = np.where(weights > 0, x / unit, 0.0)
        # a single return that is far above the others must not hide how these differ
        step = np.where(x > 0, x, 1.0).min(axis=-1, keepdims=True)
        lo = np.log(COLDEST * np.maximum(step, SMALLEST))
        worst = ((x <= 0.0) @ weights)[..., None] >= self.alpha  # then the worst case is near
        log_s = hi = np.where(worst, lo, -0.5 * math.log(most))  # KL <= 1 / (8 s^2) < most
        for _ in range(STEPS):
            energy = x / np.exp(log_s)
            xi, log_mean = _gibbs(energy, weights)
            mean = (xi * energy) @ weights
            variance = (xi * energy**2) @ weights - mean**2
            excess = (-mean - log_mean - most)[..., None]  # KL - most; its slope is -variance
            hi, lo = np.where(excess <= 0, log_s, hi), np.where(excess <= 0, lo, log_s)
            near = np.abs(excess) < EXACT * most
            if (near | (hi - lo < 1e-9)).all():
                break
            newton = log_s + excess / np.maximum(variance, 1e-300)[..., None]
            inside = (newton > lo) & (newton < hi)
            log_s = np.where(near, log_s, np.where(inside, newton, (lo + hi) / 2))
        return unit * np.exp(np.where(near, log_s, hi))


@dataclass(frozen=True)
class Entropic(Objective):
    """The certainty equivalent of exponential utility, -1/beta log(sum lambda exp(-beta rho)).

    Low returns count more than high ones. A small beta > 0 is near the mean, a large one near the
    worst case. beta is in units of 1 / return. There is no alpha, the weight of the tail.

    >>> round(float(Entropic(0.1).value(np.array([0.0, 10.0]), np.full(2, 0.5))), 4)
    3.7989
    """

    beta: float

    kind: ClassVar[str] = "entropic"
    called: ClassVar[str] = "entropic {0.beta:g}"
    says: ClassVar[str] = "The certainty equivalent of exponential utility with beta = {0.beta:g}."

    def __post_init__(self) -> None:
        if not (_is_number(self.beta) and 0 < self.beta < math.inf):
            raise InputError(f"beta must be a positive number, not {self.beta!r}")

    def value(self, returns: Array, weights: Array) -> Array:
        xp = _module(returns)
        log = xp.log(xp.where(weights > 0, weights, 1.0))
        terms = xp.where(weights > 0, log - self.beta * returns, -np.inf)
        # relative to the largest term of the sum, whose digits then count
        largest = xp.take_along_axis(returns, terms.argmax(axis=-1)[..., None], axis=-1)
        log_mean = _gibbs(self.beta * (returns - largest), weights)[1]
        found: Array = largest[..., 0] - log_mean / self.beta
        return found

    def tilt(self, returns: Array, weights: Array) -> Array:
        return _gibbs(self.beta * (returns - _least(returns, weights)), weights)[0]

    def penalty(self, xi: Array, weights: Array) -> float:
        """KL(xi lambda || lambda) / beta."""
        return float(_divergence(xi, weights)[..., 0]) / self.beta

    def ladder(self, weights: Array) -> list[Objective]:
        return [Entropic(self.beta / k) for k in RUNGS]


@dataclass(frozen=True)
class WorstCase(Objective):
    """The lowest return over the models of positive weight.

    It is the limit of CVaR as alpha, the weight of the lower tail, goes to 0.

    >>> float(WorstCase().value(np.array([3.0, 1.0, 0.0]), np.array([0.5, 0.5, 0.0])))
    1.0
    """

    kind: ClassVar[str] = "worst"
    called: ClassVar[str] = "worst case"
    says: ClassVar[str] = "The worst of the models."

    def value(self, returns: Array, weights: Array) -> Array:
        return _least(returns, weights)[..., 0]

    def tilt(self, returns: Array, weights: Array) -> Array:
        xp = _module(returns)
        worst = xp.where(weights > 0, returns, np.inf).argmin(axis=-1)[..., None]
        xi: Array = xp.where(xp.arange(len(weights)) == worst, 1.0 / weights[worst], 0.0)
        return xi

    def ladder(self, weights: Array) -> list[Objective]:
        return CVaR(float(weights[weights > 0].min())).ladder(weights)


@dataclass(frozen=True)
class MeanCVaR(Tail):
    """``share`` times the mean plus ``1 - share`` times CVaR_alpha.

    alpha is the weight of the lower tail, as for :class:`CVaR`.

    >>> float(MeanCVaR(0.5, 0.5).value(np.array([0.0, 10.0, 20.0, 30.0]), np.full(4, 0.25)))
    10.0
    """

    share: float

    kind: ClassVar[str] = "mean-cvar"
    called: ClassVar[str] = "{share} mean, {rest} CVaR {alpha}"
    says: ClassVar[str] = (
        "{share} of the mean plus {rest} of the mean over the worst {alpha} of the models."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (_is_number(self.share) and 0 <= self.share <= 1):
            raise InputError(f"share, the weight of the mean, is from 0 to 1, not {self.share!r}")

    def value(self, returns: Array, weights: Array) -> Array:
        tail = _tail_mean(self.alpha, returns, weights)
        found: Array = self.share * (returns @ weights) + (1 - self.share) * tail
        return found

    def tilt(self, returns: Array, weights: Array) -> Array:
        return self.share + (1 - self.share) * _tail(self.alpha, returns, weights)


@checked
@dataclass(frozen=True)
class Custom(Objective):
    """A function of your own: values (...) from returns (..., M) and weights (M,).

    Bounds hold only if the value never falls when a return rises. If so, say ``monotone=True``.
    None means "not known"; then, and if it is False, bounds are refused.

    >>> middle = Custom(lambda returns, weights: np.median(returns, axis=-1))
    >>> middle.value(np.array([[1.0, 2.0, 9.0]]), np.full(3, 1 / 3))
    array([2.])
    """

    function: Read[Function]
    monotone: bool | None = None

    kind: ClassVar[str] = "custom"
    concave = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError(f"an objective is a function, not {self.function!r}")

    def value(self, returns: Array, weights: Array) -> Array:
        # copies, which the function may change
        found = np.asarray(self.function(np.array(returns), np.array(weights)))
        if found.shape != returns.shape[:-1]:
            raise InputError(
                f"objective {self.name} returned shape {found.shape} for returns of shape "
                f"{returns.shape}; it must return {returns.shape[:-1]}, one value for each row of "
                "models"
            )
        if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
            what = f"values of type {found.dtype}"
            if found.dtype.kind == "f":
                what = "NaN" if np.isnan(found).any() else "infinity"
            raise InputError(f"objective {self.name} returned {what}; it must return numbers")
        return found.astype(np.float64)

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def sentence(self) -> str:
        return f"The function {self.name} of the returns and the weights."

    def __str__(self) -> str:
        return f"custom:{self.name}"


@checked
@dataclass(frozen=True)
class Regret(Objective):
    """An objective of rho_m - rho*_m, made by ``of_regret()``; its values are at most 0.

    :meth:`counted` subtracts rho*, the returns of the models' own optimal policies. ``value`` and
    ``tilt`` are given the difference. alpha, if there is one, is the weight of its lower tail.

    >>> regret = WorstCase().of_regret()
    >>> rho = regret.counted(np.array([3.0, 1.0]), lambda: np.array([4.0, 5.0]))
    >>> float(regret.value(rho, np.array([0.5, 0.5])))
    -4.0
    """

    inner: Objective

    regret = True

    def __post_init__(self) -> None:
        if self.inner.regret:
            raise InputError(f"{self.inner} is a regret already")
        for flag in ("kind", "monotone", "concave"):
            object.__setattr__(self, flag, getattr(self.inner, flag))

    def value(self, returns: Array, weights: Array) -> Array:
        return self.inner.value(returns, weights)

    def tilt(self, returns: Array, weights: Array) -> Array:
        return self.inner.tilt(returns, weights)

    def penalty(self, xi: Array, weights: Array) -> float:
        return self.inner.penalty(xi, weights)

    def ladder(self, weights: Array) -> list[Objective]:
        return [Regret(each) for each in self.inner.ladder(weights)]

    @property
    def formula(self) -> Objective | None:
        return self.inner.formula

    @property
    def name(self) -> str:
        return f"{self.inner.name} of regret"

    @property
    def sentence(self) -> str:
        return (
            f"{self.inner.sentence[:-1]}, of what each loses against its own optimal policy, as a "
            "negative number."
        )

    def __str__(self) -> str:
        return f"regret:{self.inner}"


KINDS: dict[str, type[Objective]] = {
    x.kind: x for x in (Mean, CVaR, VaR, EVaR, Entropic, WorstCase, MeanCVaR)
}
COMPILED = (CVaR, Entropic, MeanCVaR, WorstCase)  # see Objective.formula
EXAMPLES = "mean, cvar:0.1, var:0.1, evar:0.1, entropic:0.01, worst, mean-cvar:0.1:0.5"


def as_objective(given: str | Objective | Function) -> Objective:
    """An objective, or the one that a text names: ``cvar:0.1``, ``regret:worst``.

    >>> as_objective("mean-cvar:0.1:0.5"), as_objective("regret:cvar:0.2").name
    (MeanCVaR(alpha=0.1, share=0.5), 'CVaR 20% of regret')
    """
    if isinstance(given, Objective):
        return given
    if isinstance(given, type) and issubclass(given, Objective):
        wants = ", ".join(field.name for field in fields(given))  # type: ignore[arg-type]
        raise InputError(f"{given.__name__} is a class; write mmdp.{given.__name__}({wants})")
    if not isinstance(given, str):
        return Custom(given)  # type: ignore[arg-type]
    kind, *numbers = given.strip().lower().split(":")
    if kind == "regret" and numbers:
        return Regret(as_objective(":".join(numbers)))
    if kind == "regret":
        raise InputError(f"write regret: and one of {EXAMPLES}, e.g. regret:worst")
    if kind not in KINDS:
        wrong = suggested(kind, [*KINDS, "regret:worst"])
        raise InputError(f"no objective is called {wrong}; {_grammar()}")
    wanted = [field.name for field in fields(KINDS[kind])]  # type: ignore[arg-type]
    try:
        found = [float(x) for x in numbers]
    except ValueError:
        found = []
    if len(found) != len(wanted) or len(found) != len(numbers):
        form = ":".join([kind, *(name.upper() for name in wanted)])
        raise InputError(f"objective {given!r} is not of the form {form}; {_grammar()}")
    return KINDS[kind](*found)


def _grammar() -> str:
    return f"write one of {EXAMPLES}, or regret: before it"


def quantile(returns: Array, weights: Array, level: float) -> Array:
    """The smallest return x such that P(return <= x) >= level: returns (..., M) to (...)."""
    order = _order(returns)
    mass = np.cumsum(weights[order], axis=-1)
    enough = (mass >= level * (1 - SAME)) & (weights[order] > 0)
    last = len(weights) - 1 - (weights[order] > 0)[..., ::-1].argmax(axis=-1)
    place = np.where(enough.any(axis=-1), enough.argmax(axis=-1), last)
    at = np.take_along_axis(order, place[..., None], axis=-1)
    return np.take_along_axis(returns, at, axis=-1)[..., 0]


# ---------------------------------------------------------------------- parts
def _module(x: Any) -> Any:
    """numpy, or the module of the same functions that an array of a machine belongs to."""
    return np if isinstance(x, np.ndarray) else x.__array_namespace__()


def _order(x: Any) -> npt.NDArray[np.intp]:
    """(..., M) the places of the least, the next and so on; equal ones as they come."""
    found: npt.NDArray[np.intp] = (
        np.argsort(x, axis=-1, kind="stable") if _module(x) is np else x.argsort(axis=-1)
    )
    return found


def _tail(alpha: float, returns: Array, weights: Array) -> Array:
    """(..., M) xi of CVaR_alpha: 1 / alpha for the worst models, whose weights add up to alpha."""
    order, xp = _order(returns), _module(returns)
    sorted_weights = weights[order]
    sums = xp.cumsum(sorted_weights, axis=-1)
    before = xp.concatenate([xp.zeros_like(sums[..., :1]), sums[..., :-1]], axis=-1)
    taken = xp.clip(alpha - before, 0.0, sorted_weights)
    taken = taken / taken.sum(axis=-1, keepdims=True)
    share = taken / xp.where(sorted_weights > 0, sorted_weights, 1.0)
    xi: Array = xp.take_along_axis(share, _order(order), axis=-1)
    return xi


def _tail_mean(alpha: float, returns: Array, weights: Array) -> Array:
    """(...) CVaR_alpha."""
    total: Array
    if _module(weights) is not np or not np.ptp(weights) <= SAME * weights[0]:
        total = (_tail(alpha, returns, weights) * returns) @ weights
        return total
    n = min(alpha * len(weights), float(len(weights)))  # models in the tail
    whole = min(int(n), len(weights) - 1)
    least = np.partition(returns, whole, axis=-1)
    total = least[..., :whole].sum(axis=-1) + (n - whole) * least[..., whole]
    return total / n


def _least(returns: Array, weights: Array) -> Array:
    """(..., 1) the lowest return over the models of positive weight."""
    found: Array = _module(returns).where(weights > 0, returns, np.inf).min(axis=-1, keepdims=True)
    return found


def _gibbs(energy: Array, weights: Array) -> tuple[Array, Array]:
    """(..., M) weights proportional to exp(-energy), and the log of their mean."""
    xp = _module(energy)
    energy = xp.where(weights > 0, energy, 0.0)
    raw, less = xp.exp(-energy) * (weights > 0), xp.expm1(-energy) @ weights
    total = raw @ weights
    # log1p keeps the digits of small energies, log those of a small mean
    log = xp.where(less > -0.5, xp.log1p(xp.maximum(less, -0.5)), xp.log(total))
    return raw / total[..., None], log


def _divergence(xi: Array, weights: Array) -> Array:
    """(..., 1) KL(xi lambda || lambda) = sum lambda (xi log xi - xi + 1), by terms >= 0.

    So the digits are kept if all xi are near 1.
    """
    log = np.log(xi, out=np.zeros_like(xi), where=xi > 0)
    near = np.abs(xi - 1.0) < 0.5
    u = np.where(near, xi - 1.0, 0.0)
    terms = np.where(near, (1.0 + u) * np.log1p(u) - u, xi * log - xi + 1.0)
    found: Array = (np.maximum(terms, 0.0) @ weights)[..., None]
    return found


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, np.number)) and not isinstance(x, bool)


def _percent(share: float) -> str:
    return f"{100 * share:.6g}%"
