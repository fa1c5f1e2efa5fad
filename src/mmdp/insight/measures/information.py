"""Value of information: EVPI and EVPPI.

Definitions (as in dampack's ``calc_evpi`` and ``calc_evppi`` and in the reports of the ISPOR
Value of Information task force: Rothery et al., Value of Information Analytical Methods,
Value in Health 23(3), 2020). With NB(d, theta) the return of decision d under parameters
theta, here a Markov policy in a model:

    EVPI        = E_theta[ max_d NB(d, theta) ] - max_d E_theta[ NB(d, theta) ]
    EVPPI(phi)  = E_phi[ max_d E[ NB(d, theta) | phi ] ] - max_d E_theta[ NB(d, theta) ]

The expectation is over the models with their weights. The last maximum is found by a method
of :func:`mmdp.solve`; CADP finds a local one, so both figures may be too large by its gap.

If decisions are restricted to a policy class (tied, monotone, fixed), every maximum is over that
class: someone who knows the model takes its best policy of the class, which CADP finds up to local
optima.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core import kernels
from mmdp.core.arguments import PositiveInt, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.methods import CADP, Method
from mmdp.core.model import MMDP
from mmdp.core.policies import require_markov
from mmdp.core.shapes import Array, IndexArray
from mmdp.core.solution import Solution
from mmdp.core.solve import evaluate, solve
from mmdp.core.text import did_you_mean, join_first
from mmdp.core.timing import propagate_interrupts
from mmdp.core.transitions import as_float_array
from mmdp.core.validate import align_to_labels

Estimator = Literal["auto", "exact", "bins", "regression"]
# distinct values up to which "auto" conditions on each one; groups of models for policies
MAX_GROUPS = 12
PASSES_PER_GROUP = 200  # of the two solves of a group of models, about
SECONDS_PER_GROUP = 0.008  # which they take besides, however small the models
MAX_KNOTS = 30  # of a smoothing spline


class Estimate(NamedTuple):
    """An estimated value and its standard error."""

    value: float
    stderr: float


@check_arguments
@propagate_interrupts()
def evpi(
    model: MMDP, horizon: int | None = None, *, method: str | Method | Solution = "cadp"
) -> float:
    """Compute the EVPI: the expected gain from knowing the model before acting.

    It is the weighted mean of each model's own optimum minus the value of the best single policy.
    ``method`` finds that policy; or give the solution. If its policy class is restricted, each
    model's own optimum is of that class too.

    >>> import mmdp, mmdp.measures
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.measures.evpi(two, 1)                       # (3 + 5) / 2 - (2 + 5) / 2
    0.5
    """
    return GroupSolver(model, horizon, method, model.n_models).evpi


@check_arguments
@propagate_interrupts()
def evppi(
    model: MMDP,
    horizon: int | None,
    parameter: str | Sequence[str] | npt.NDArray[np.generic],
    *,
    method: str | Method | Solution = "cadp",
    estimator: Estimator = "auto",
    bins: PositiveInt = 8,
) -> float:
    """Compute the EVPPI: the expected gain from knowing one or several parameters before acting.

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
        E[NB | phi]. With few models it sees only coarse shapes: of a value that depends on details
        of the parameter it may find a small part. ``"auto"``: exact up to 12 distinct values,
        else regression.

    The result is at least 0 and at most the EVPI.

    >>> import mmdp, mmdp.measures
    >>> rewards = [[[2.0, 3.0]], [[5.0, 0.0]]]
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, rewards, parameters={"x": [1, 2], "y": [7, 7]})
    >>> mmdp.measures.evppi(two, 1, "x"), mmdp.measures.evppi(two, 1, "y")
    (0.5, 0.0)
    """
    values = read_parameter_values(parameter, model.parameters, model.model_labels)
    groups = GroupSolver(model, horizon, method)
    return groups.compute_evppi(values, _resolve_estimator(estimator, values), bins)


@check_arguments
@propagate_interrupts()
def voi_table(
    model: MMDP,
    horizon: int | None = None,
    *,
    method: str | Method | Solution = "cadp",
    estimator: Estimator = "auto",
    bins: PositiveInt = 8,
) -> pd.DataFrame:
    """Tabulate the EVPI and, largest first, the EVPPI of each parameter of the model.

    Columns ``parameter`` (``"(everything)"`` for the EVPI), ``value``, ``share`` of the EVPI
    and ``estimator``.

    >>> import mmdp, mmdp.measures
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]],
    ...                 parameters={"x": [1, 2], "y": [7, 7]})
    >>> print(mmdp.measures.voi_table(two, 1).to_string(index=False))
       parameter  value  share estimator
    (everything)    0.5    1.0     exact
               x    0.5    1.0     exact
               y    0.0    0.0     exact
    """
    groups = GroupSolver(model, horizon, method, MAX_GROUPS * len(model.parameters))
    rows = []
    for name, column in model.parameters.items():
        resolved = _resolve_estimator(estimator, column[:, None])
        value = groups.compute_evppi(column[:, None], resolved, bins)
        rows.append((name, value, value / groups.evpi if groups.evpi > 0 else 0.0, resolved))
    rows.sort(key=lambda row: -row[1])
    evpi_row = ("(everything)", groups.evpi, 1.0, "exact")
    return pd.DataFrame([evpi_row, *rows], columns=["parameter", "value", "share", "estimator"])


def resolve_solution(model: MMDP, horizon: int | None, method: str | Method | Solution) -> Solution:
    """Solve the model, or check that a given solution with a Markov policy is for this model."""
    solution = method if isinstance(method, Solution) else solve(model, horizon, method)
    policy = require_markov(solution, "the value of information needs")
    if solution is method:
        evaluation = evaluate(model, policy)  # refuses other labels
        same_weights = np.array_equal(evaluation.weights, solution.evaluation.weights)
        atol = 1e-9 * np.abs(evaluation.returns).max()
        if not same_weights or not np.allclose(
            evaluation.returns, solution.returns, rtol=0, atol=atol
        ):
            raise InputError("the solution is for other models; solve this model, or give a method")
        solution = dataclasses.replace(solution, evaluation=evaluation)
    return solution


def read_parameter_values(
    parameter: Any, parameters: Mapping[str, Array], model_labels: Sequence[object]
) -> Array:
    """Read the values of one or several parameters, from names or an array. Returns: (M, k)."""
    if isinstance(parameter, str):
        parameter = [parameter]
    names = list(parameter) if isinstance(parameter, (list, tuple)) else []
    if names and all(isinstance(x, str) for x in names):
        for name in names:
            if name not in parameters:
                available = f"it has {join_first(parameters)}" if parameters else "it has none"
                raise InputError(
                    f"no parameter {did_you_mean(name, parameters)} in the model; {available}"
                )
        return np.stack([parameters[name] for name in names], axis=1)
    columns = [x for _, x in parameter.items()] if hasattr(parameter, "columns") else parameter
    array = as_float_array(align_to_labels(columns, "the parameter", model_labels), "the parameter")
    n_models = len(model_labels)
    return check_columns(
        array.T if hasattr(parameter, "columns") else array,
        "the parameter",
        n_models,
        f"give a name, or finite values (M,) or (M, k) for M = {n_models} models",
    )


def check_columns(array: Array, name: str, n_rows: int, remedy: str) -> Array:
    """Check finite numbers (n,) or (n, k) for n rows. Returns: (n, k)."""
    if array.ndim not in (1, 2) or len(array) != n_rows or not np.isfinite(array).all():
        raise InputError(f"{name} has shape {array.shape} or is not finite; {remedy}")
    return array.reshape(n_rows, -1)


def _resolve_estimator(estimator: str, values: Array) -> str:
    """Resolve the estimator: "auto" becomes "exact" or "regression" by the values."""
    if estimator != "auto":
        return estimator
    return "exact" if len(np.unique(values, axis=0)) <= MAX_GROUPS else "regression"


# ---------------------------------------------------------------------- conditioning
class GroupSolver:
    """Solver of groups of models, in the policy class and horizon of the best overall solution.

    All solves, about as many as ``n_groups``, are made on one backend, so that loading compiled
    code counts once.
    """

    def __init__(
        self,
        model: MMDP,
        horizon: int | None,
        method: str | Method | Solution,
        n_groups: int = MAX_GROUPS,
    ) -> None:
        self.model, self.best_solution = model, resolve_solution(model, horizon, method)
        self.method = self.best_solution.method if isinstance(method, Solution) else method
        self.policy_class = self.best_solution.provenance.policy_class
        self.n_steps = int(self.best_solution.provenance.horizon)
        self.backend = kernels.get_backend(
            "auto",
            model.problem,
            self.n_steps,
            n_passes=PASSES_PER_GROUP * n_groups,
            prefer_loaded=True,
        )

    @cached_property
    def evpi(self) -> float:
        """Weighted mean of oracle minus policy returns, at least 0."""
        gains = self.compute_class_oracle() - self.best_solution.returns
        return max(float(self.model.weights @ gains), 0.0)

    def compute_class_oracle(self) -> Array:
        """Approximate the best return in each model of a policy of the solution's policy class.

        By CADP, so it may be less than the best; never less than the solution itself returns.

        Returns: (M,).
        """
        if not self.policy_class.is_restricted:
            return self.best_solution.evaluation.oracle
        oracle_returns = self.best_solution.returns.copy()
        for m in np.flatnonzero(self.model.weights):
            mean = self.solve(np.array([m]), "cadp").evaluation.mean
            oracle_returns[m] = max(oracle_returns[m], mean)
        return oracle_returns

    def compute_evppi(self, values: Array, estimator: str, bins: int) -> float:
        """Compute the EVPPI of parameter values (M, k) by one estimator.

        A finite set of policies makes the estimate of a regression smaller, never larger. Groups
        along the parameter find the policies that pay at some of its values.
        """
        if estimator == "regression":
            bins = MAX_GROUPS if values.shape[1] == 1 else 2
            policies = [self.best_solution.policy]
            for members, mean in self.iter_groups(_bin_columns(values[:, :4], bins)):
                solution = self.solve(members, self.method)
                if solution.value > mean and solution.policy not in policies:
                    policies.append(solution.policy)
            returns = np.stack([evaluate(self.model, x).returns for x in policies], axis=1)
            value = estimate_voi(returns, values, self.model.weights)
        else:
            keys = values if estimator == "exact" else _bin_columns(values, bins)
            value = sum(self.compute_gain(*group) for group in self.iter_groups(keys))
        return float(np.clip(value, 0.0, self.evpi))

    def iter_groups(self, values: Array) -> Iterator[tuple[IndexArray, float]]:
        """Yield the models with equal values (M, k), and what the best overall returns in them."""
        groups = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
        for group in range(int(groups.max()) + 1):
            members = np.flatnonzero(groups == group)
            weights = self.model.weights[members]
            if weights.sum() > 0:
                yield members, float(self.best_solution.returns[members] @ weights / weights.sum())

    def compute_gain(self, members: IndexArray, mean: float) -> float:
        """Compute the gain from knowing that one of these models holds, times their weight."""
        is_single = len(self.model.problem.reachable_models(members)) == 1
        if is_single and not self.policy_class.is_restricted:  # its own optimum
            gain = float(self.best_solution.evaluation.regret[members[0]])
        else:
            gain = self.solve(members, self.method).value - mean
        # never worse than the policy that ignores the parameter
        return float(self.model.weights[members].sum()) * max(gain, 0.0)

    def solve(self, members: IndexArray, method: str | Method) -> Solution:
        """Solve for members at the start, with all models that they may switch to."""
        reachable = self.model.problem.reachable_models(members)
        model = self.model.subset(reachable)
        if len(reachable) > len(members):
            weights = np.where(np.isin(reachable, members), self.model.weights[reachable], 0.0)
            model = model.replace(weights=weights / weights.sum())
        horizon, policy = self.n_steps, self.best_solution.policy
        options: dict[str, Any] = {"policy_class": self.policy_class, "backend": self.backend}
        if self.policy_class.uses_growth:  # it starts from a given policy too: one solve is enough
            method = CADP(init=policy) if method == "cadp" else method
            return solve(model, horizon, method, **options)
        solution = solve(model, horizon, method, **options)
        if solution.method != "cadp" or model.n_models == 1:
            return solution
        restarted = solve(model, horizon, CADP(init=policy, n_init=1), **options)
        return max(solution, restarted, key=lambda x: x.value)


def _bin_columns(values: Array, bins: int) -> Array:
    """Replace each column of values (M, k) by the numbers of its quantile bins."""
    from scipy.stats import rankdata

    return np.floor((rankdata(values, "min", axis=0) - 1) * bins / len(values))


# ---------------------------------------------------------------------- regression
def estimate_voi(returns: Array, values: Array, weights: Array) -> float:
    """Estimate the value of information by regression of the returns (M, D) on values (M, k).

    It is the weighted mean of the largest fitted gain over decision 0, whose own gain is 0.
    """
    fitted = fit_smoothing_spline(values, returns - returns[:, :1], weights)
    return float(weights @ fitted.max(axis=1) - (weights @ fitted).max())


def fit_smoothing_spline(values: Array, y: Array, weights: Array) -> Array:
    """Fit a smoothing spline of values (M, k) to each column of y (M, D). Returns: (M, D).

    f(x) = a + b x + sum_j c_j |x - x_j|^3 over some of the points x_j, which is a natural cubic
    spline if k = 1. It minimizes sum_m w_m (y_m - f(x_m))^2 + lambda c' |x_i - x_j|^3 c, and lambda
    has the least generalized cross-validation, separately for each column:
    RSS / (1 - edf / n)^2 with edf effective parameters for n models.

    >>> x = np.linspace(-1, 1, 50)[:, None]
    >>> fitted = fit_smoothing_spline(x, np.cos(5 * x), np.full(50, 0.02))
    >>> bool(np.abs(fitted - np.cos(5 * x)).max() < 0.01)
    True
    """
    from scipy.linalg import eigh, null_space

    n_effective, ones = 1 / (weights @ weights), np.ones((len(values), 1))
    scale = values.std(axis=0)
    x = (values - values.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    knots = np.unique(x, axis=0)
    n_knots = int(min(len(knots), MAX_KNOTS, max(n_effective // 3, x.shape[1] + 2)))
    knots = knots[np.linspace(0, len(knots) - 1, n_knots).round().astype(int)]
    # c is orthogonal to lines, so that the penalty is positive
    null_basis, n_linear = null_space(np.hstack([ones[:n_knots], knots]).T), x.shape[1] + 1
    basis = np.hstack([ones, x, _cubic_kernel(x, knots) @ null_basis])
    gram = basis.T @ (weights[:, None] * basis)
    penalty = np.zeros_like(gram)
    penalty[n_linear:, n_linear:] = null_basis.T @ _cubic_kernel(knots, knots) @ null_basis
    ridge = 1e-9 * np.trace(gram) / len(gram) * np.eye(len(gram))
    roughness, modes = eigh(penalty, gram + ridge)  # modes' gram modes = 1
    roughness[:n_linear] = 0.0  # the lines, which are never penalized
    z = modes.T @ (basis.T @ (weights[:, None] * y))
    max_roughness = max(roughness[-1], 1e-9)  # 0 if there are lines only
    min_roughness = max(roughness[min(n_linear, len(roughness) - 1)], 1e-12 * max_roughness)
    shrinkage = 1 / (
        1 + np.geomspace(1e-4 / max_roughness, 1e4 / min_roughness, 40)[:, None] * roughness
    )  # (lambdas, modes)
    total = weights @ y**2
    rss = np.maximum(total - (1 - (1 - shrinkage) ** 2) @ z**2, 1e-14 * total)
    residual_share = np.maximum(1 - shrinkage.sum(axis=1) / n_effective, 1e-3)
    best_penalty = (rss / residual_share[:, None] ** 2).argmin(axis=0)
    return basis @ (modes @ (shrinkage[best_penalty].T * z))


def _cubic_kernel(x: Array, knots: Array) -> Array:
    """Compute |x - knot|^3 for points x (n, k) and knots (m, k). Returns: (n, m)."""
    squares: Array = ((x[:, None] - knots) ** 2).sum(axis=2)
    return squares**1.5
