"""What knowing more is worth: EVPI and EVPPI.

Definitions (as in dampack's ``calc_evpi`` and ``calc_evppi`` and in the reports of the ISPOR
Value of Information task force: Rothery et al., Value of Information Analytical Methods,
Value in Health 23(3), 2020). With NB(d, theta) the return of decision d under parameters
theta, here a Markov policy in a model:

    EVPI        = E_theta[ max_d NB(d, theta) ] - max_d E_theta[ NB(d, theta) ]
    EVPPI(phi)  = E_phi[ max_d E[ NB(d, theta) | phi ] ] - max_d E_theta[ NB(d, theta) ]

The expectation is over the models with their weights. The last maximum is found by a method
of :func:`mmdp.solve`; CADP finds a local one, so both figures may be too large by its gap.

If decisions are restricted to a kind of policy (tied, monotone, fixed), every maximum is over that
kind: someone who knows the model takes its best policy of that kind, which CADP finds up to local
maxima.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.arguments import PositiveInt, checked
from mmdp.clock import unanswered
from mmdp.errors import InputError
from mmdp.methods import CADP, Method
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy, markov_policy
from mmdp.solution import Solution
from mmdp.solve import evaluate, solve
from mmdp.support import float_array
from mmdp.validate import by_label
from mmdp.words import some, suggested

Array = npt.NDArray[np.float64]
Estimator = Literal["auto", "exact", "bins", "regression"]
FEW = 12  # distinct values up to which "auto" conditions on each one; groups of models for policies
KNOTS = 30  # the most points that a smooth function bends at


class Estimate(NamedTuple):
    """A figure and one standard error of it."""

    value: float
    error: float


@checked
@unanswered()
def evpi(
    model: MMDP, horizon: int | None = None, *, method: str | Method | Solution = "cadp"
) -> float:
    """Expected value of perfect information: what knowing the model before acting is worth.

    The weighted mean of each model's own optimum minus the value of the best single policy.
    ``method`` finds that policy; or give the solution. If that is of a restricted kind, each
    model's own optimum is of that kind too.

    >>> import mmdp, mmdp.measures
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.measures.evpi(two, 1)                       # (3 + 5) / 2 - (2 + 5) / 2
    0.5
    """
    return _evpi(model, best_for(model, horizon, method))


@checked
@unanswered()
def evppi(
    model: MMDP,
    horizon: int | None,
    parameter: str | Sequence[str] | npt.NDArray[Any],
    *,
    method: str | Method | Solution = "cadp",
    estimator: Estimator = "auto",
    bins: PositiveInt = 8,
) -> float:
    """Expected value of knowing one parameter, or several together, before acting.

    Parameters
    ----------
    parameter
        A name of ``model.parameters``, several names, or an array (M,) or (M, k).
    estimator
        ``"exact"``: models with the same value form a group, and each group is solved:
        sum over groups of weight times best value, minus the best value of all. ``"bins"``:
        the same with groups of similar values (quantiles, ``bins`` for each parameter), which
        is the value of knowing the bin in these models; with few models per bin it is too
        large. ``"regression"``: the single-loop estimator of Strong, Oakley and Brennan
        (Medical Decision Making 34(3), 2014): the returns of several policies (the best one,
        those of groups along the parameter) are regressed on the parameter by a smoothing
        spline (several parameters: by its radial form), and the fitted values stand for
        E[NB | phi]. With few models it sees only coarse shapes: of a value that hangs on details
        of the parameter it may find a small part. ``"auto"``: exact up to 12 distinct values,
        else regression.

    The result is at least 0 and at most the EVPI.

    >>> import mmdp, mmdp.measures
    >>> rewards = [[[2.0, 3.0]], [[5.0, 0.0]]]
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, rewards, parameters={"x": [1, 2], "y": [7, 7]})
    >>> mmdp.measures.evppi(two, 1, "x"), mmdp.measures.evppi(two, 1, "y")
    (0.5, 0.0)
    """
    values = parameter_values(parameter, model.parameters, model.model_labels)
    best = best_for(model, horizon, method)
    worth = _evppi(model, best, values, _chosen(estimator, values), bins, method)
    return float(np.clip(worth, 0.0, _evpi(model, best)))


@checked
@unanswered()
def information_table(
    model: MMDP,
    horizon: int | None = None,
    *,
    method: str | Method | Solution = "cadp",
    estimator: Estimator = "auto",
    bins: PositiveInt = 8,
) -> pd.DataFrame:
    """EVPPI of every parameter of the model, largest first, under a first row with the EVPI.

    Columns ``parameter`` (``"(everything)"`` for the EVPI), ``value``, ``share`` of the EVPI
    and ``estimator``.

    >>> import mmdp, mmdp.measures
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]],
    ...                 parameters={"x": [1, 2], "y": [7, 7]})
    >>> print(mmdp.measures.information_table(two, 1).to_string(index=False))
       parameter  value  share estimator
    (everything)    0.5    1.0     exact
               x    0.5    1.0     exact
               y    0.0    0.0     exact
    """
    best = best_for(model, horizon, method)
    total, rows = _evpi(model, best), []
    for name, column in model.parameters.items():
        values = column[:, None]
        chosen = _chosen(estimator, values)
        worth = _evppi(model, best, values, chosen, bins, method)
        worth = float(np.clip(worth, 0.0, total))
        rows.append((name, worth, worth / total if total > 0 else 0.0, chosen))
    rows.sort(key=lambda row: -row[1])
    head = ("(everything)", total, 1.0, "exact")
    return pd.DataFrame([head, *rows], columns=["parameter", "value", "share", "estimator"])


def best_for(model: MMDP, horizon: int | None, method: str | Method | Solution) -> Solution:
    found = method if isinstance(method, Solution) else solve(model, horizon, method)
    policy = markov_policy(found, "the value of information needs")
    if found is method:
        here = evaluate(policy, model)  # refuses other labels
        same = np.array_equal(here.weights, found.evaluation.weights)
        close = 1e-9 * np.abs(here.returns).max()
        if not same or not np.allclose(here.returns, found.returns, rtol=0, atol=close):
            raise InputError("the solution is for other models; solve this model, or give a method")
        found = dataclasses.replace(found, evaluation=here)
    return found


def own_within(model: MMDP, best: Solution) -> Array:
    """(M,) about what each model's own best policy of the solution's kind returns.

    By CADP, so it may be less than the best; never less than the solution itself returns.
    """
    if not best.provenance.policy.restricted:
        return best.evaluation.oracle
    own = best.returns.copy()
    for m in np.flatnonzero(model.weights):
        found = _solve_group(_group(model, np.array([m])), best, "cadp")
        own[m] = max(own[m], found.evaluation.mean)
    return own


def _evpi(model: MMDP, best: Solution) -> float:
    return max(float(model.weights @ (own_within(model, best) - best.returns)), 0.0)


def parameter_values(parameter: Any, known: Mapping[str, Array], models: Sequence[Any]) -> Array:
    """(M, k) values of the parameters asked about: names of ``known``, or an array."""
    if isinstance(parameter, str):
        parameter = [parameter]
    names = list(parameter) if isinstance(parameter, (list, tuple)) else []
    if names and all(isinstance(x, str) for x in names):
        for name in names:
            if name not in known:
                there = f"it has {some(known)}" if known else "it has none"
                raise InputError(f"no parameter {suggested(name, known)} in the model; {there}")
        return np.stack([known[name] for name in names], axis=1)
    columns = [x for _, x in parameter.items()] if hasattr(parameter, "columns") else parameter
    array = float_array(by_label(columns, "the parameter", models), "the parameter")
    array, count = array.T if hasattr(parameter, "columns") else array, len(models)
    if array.ndim not in (1, 2) or len(array) != count or not np.isfinite(array).all():
        raise InputError(
            f"a parameter is a name or finite values (M,) or (M, k) for {count} models; "
            f"got shape {array.shape}"
        )
    return array.reshape(len(array), -1)


def _chosen(estimator: str, values: Array) -> str:
    if estimator not in ("auto", "exact", "bins", "regression"):
        raise InputError(f"estimator must be auto, exact, bins or regression, not {estimator!r}")
    if estimator != "auto":
        return estimator
    return "exact" if len(np.unique(values, axis=0)) <= FEW else "regression"


def _evppi(
    model: MMDP, best: Solution, values: Array, estimator: str, bins: int, method: Any,
) -> float:  # fmt: skip
    if estimator == "regression":
        pool = _pool(model, best, values, method)
        worth = regressed(pool, values, model.weights)
    else:
        groups = _groups(values if estimator == "exact" else _binned(values, bins))
        worth = sum(
            _gain(model, best, np.flatnonzero(groups == g), method) for g in np.unique(groups)
        )
    return worth


def _gain(model: MMDP, best: Solution, members: npt.NDArray[np.int64], method: Any) -> float:
    """What knowing that one of these models holds gains, times their weight."""
    weight = float(model.weights[members].sum())
    alone = len(model.problem.becoming(members)) == 1
    if alone and not best.provenance.policy.restricted:
        return weight * max(float(best.evaluation.regret[members[0]]), 0.0)  # its own optimum
    return 0.0 if weight <= 0 else _solved_group(model, best, members, method).gain


# ---------------------------------------------------------------------- conditioning
class _Solved(NamedTuple):
    policy: MarkovPolicy
    gain: float  # group weight times (best value of the group - value of the best overall)


def _groups(values: Array) -> npt.NDArray[np.int64]:
    """(M,) number of the group of equal values."""
    return np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)


def _binned(values: Array, bins: int) -> Array:
    """Every column replaced by the number of its quantile bin."""
    if bins < 1:
        raise InputError(f"bins must be at least 1, not {bins}")
    ranks = np.stack([np.searchsorted(np.sort(x), x) for x in values.T], axis=1)
    return np.floor(ranks * bins / len(values))


def _solve_groups(
    model: MMDP, best: Solution, groups: npt.NDArray[np.int64], method: Any
) -> list[_Solved]:
    parts = [np.flatnonzero(groups == group) for group in range(int(groups.max()) + 1)]
    return [
        _solved_group(model, best, part, method) for part in parts if model.weights[part].sum() > 0
    ]


def _solved_group(
    model: MMDP, best: Solution, members: npt.NDArray[np.int64], method: Any
) -> _Solved:
    weight = float(model.weights[members].sum())
    own = float(best.returns[members] @ model.weights[members]) / weight
    found = _solve_group(_group(model, members), best, method)
    # never worse than the policy that ignores the parameter
    policy = found.policy if found.value > own else best.policy
    return _Solved(policy, weight * max(found.value - own, 0.0))


def _group(model: MMDP, members: npt.NDArray[np.int64]) -> MMDP:
    """The problem if one of these models holds at the start, with those that they turn into."""
    every = model.problem.becoming(members)
    if len(every) == len(members):
        return model.subset(members)
    weights = np.where(np.isin(every, members), model.weights[every], 0.0)
    return model.subset(every).replace(weights=weights / weights.sum())


def _solve_group(part: MMDP, best: Solution, method: Any) -> Solution:
    horizon = best.provenance.horizon
    chosen: Any = best.method if isinstance(method, Solution) else method
    grows = best.provenance.policy.grows  # from the given policy too: one solve is enough
    if grows and chosen == "cadp":
        chosen = CADP(init=best.policy)
    found = solve(part, horizon, chosen, policy=best.provenance.policy)
    if found.method == "cadp" and part.n_models > 1 and not grows:
        again = solve(part, horizon, CADP(init=best.policy), policy=best.provenance.policy)
        return max(found, again, key=lambda x: x.value)
    return found


# ---------------------------------------------------------------------- regression
def _pool(model: MMDP, best: Solution, values: Array, method: Any) -> Array:
    """(M, D) returns of the decisions: the best policy, and those of groups of models.

    A finite set of policies makes the estimate smaller, never larger. Groups along the
    parameter find the policies that pay at some of its values.
    """
    per_column = FEW if values.shape[1] == 1 else 2
    groups = _groups(_binned(values[:, :4], per_column))
    policies = [x.policy for x in _solve_groups(model, best, groups, method)]
    returns = [best.returns]
    seen = [best.policy]
    for policy in policies:
        if not any(policy == other for other in seen):
            seen.append(policy)
            returns.append(evaluate(policy, model).returns)
    return np.stack(returns, axis=1)


def regressed(returns: Array, values: Array, weights: Array) -> float:
    """Weighted mean of the largest fitted gain over decision 0; its own gain is 0."""
    fitted = smoothed(values, returns - returns[:, :1], weights)
    return float(weights @ fitted.max(axis=1) - (weights @ fitted).max())


def smoothed(values: Array, y: Array, weights: Array) -> Array:
    """(M, D) fitted values of each column of y (M, D), smooth functions of the values (M, k).

    f(x) = a + b x + sum_j c_j |x - x_j|^3 over some of the points x_j, which is a natural cubic
    spline if k = 1. It minimises sum_m w_m (y_m - f(x_m))^2 + lambda c' |x_i - x_j|^3 c, and lambda
    has the least generalised cross-validation, separately for each column:
    RSS / (1 - edf / n)^2 with edf effective parameters for n models.

    >>> x = np.linspace(-1, 1, 50)[:, None]
    >>> found = smoothed(x, np.cos(5 * x), np.full(50, 0.02))
    >>> bool(np.abs(found - np.cos(5 * x)).max() < 0.01)
    True
    """
    from scipy.linalg import eigh, null_space

    n, one = 1 / (weights @ weights), np.ones((len(values), 1))
    spread = values.std(axis=0)
    x = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    points = np.unique(x, axis=0)
    count = int(min(len(points), KNOTS, max(n // 3, x.shape[1] + 2)))
    points = points[np.linspace(0, len(points) - 1, count).round().astype(int)]
    # c is orthogonal to lines, so that the penalty is positive
    free, line = null_space(np.hstack([one[:count], points]).T), x.shape[1] + 1
    basis = np.hstack([one, x, _cubes(x, points) @ free])
    gram = basis.T @ (weights[:, None] * basis)
    penalty = np.zeros_like(gram)
    penalty[line:, line:] = free.T @ _cubes(points, points) @ free
    ridge = 1e-9 * np.trace(gram) / len(gram) * np.eye(len(gram))
    rough, modes = eigh(penalty, gram + ridge)  # modes' gram modes = 1
    rough[:line] = 0.0  # the lines, which are never penalised
    z = modes.T @ (basis.T @ (weights[:, None] * y))
    most = max(rough[-1], 1e-9)  # 0 if there are lines only
    least = max(rough[min(line, len(rough) - 1)], 1e-12 * most)
    keep = 1 / (1 + np.geomspace(1e-4 / most, 1e4 / least, 40)[:, None] * rough)  # (lambdas, modes)
    total = weights @ y**2
    left = np.maximum(total - (1 - (1 - keep) ** 2) @ z**2, 1e-14 * total)
    spare = np.maximum(1 - keep.sum(axis=1) / n, 1e-3)
    best = (left / spare[:, None] ** 2).argmin(axis=0)
    fitted: Array = basis @ (modes @ (keep[best].T * z))
    return fitted


def _cubes(x: Array, points: Array) -> Array:
    """(n, m) |x - point|^3."""
    squares: Array = ((x[:, None] - points) ** 2).sum(axis=2)
    return squares**1.5
