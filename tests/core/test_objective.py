"""What counts over the models: values against other formulas, texts, refusals."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog

import mmdp
from mmdp.core.objectives import OBJECTIVES, Objective, Regret, as_objective
from mmdp.core.testing import make_random_model
from tests.instances import HYPOTHESIS_SETTINGS, SEEDS, n_examples

BUILT_IN = ("mean", "cvar:0.3", "var:0.3", "evar:0.3", "entropic:0.2", "worst", "mean-cvar:0.2:0.4")
CONCAVE = tuple(x for x in BUILT_IN if not x.startswith("var"))


def make_returns(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (5, M) of five candidates and weights (M,), some of them zero or equal."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    weights = rng.dirichlet(np.ones(n)) * (rng.random(n) < 0.8)
    if weights.sum() == 0 or rng.random() < 0.3:
        weights = np.ones(n)
    returns = rng.choice([1.0, 100.0]) * rng.normal(size=(5, n)).round(int(rng.integers(0, 4)))
    return returns, weights / weights.sum()


def compute_objective(objective: str, rho: np.ndarray, lam: np.ndarray) -> float:
    """The value by the formula of the table, one candidate at a time."""
    name, *numbers = objective.split(":")
    parameter = [float(x) for x in numbers]
    is_possible = lam > 0
    rho, lam = rho[is_possible], lam[is_possible]
    if name == "mean":
        return float(lam @ rho)
    if name == "worst":
        return float(rho.min())
    if name == "var":
        return float(min(x for x in rho if lam[rho <= x].sum() >= parameter[0] - 1e-12))
    if name == "cvar":  # max over x of x - E (x - rho)+ / alpha, which is at one of the returns
        return float(max(x - lam @ np.maximum(x - rho, 0) / parameter[0] for x in rho))
    if name == "mean-cvar":
        tail = compute_objective(f"cvar:{parameter[0]}", rho, lam)
        return parameter[1] * float(lam @ rho) + (1 - parameter[1]) * tail
    beta, penalty = np.array(parameter), np.zeros(1)
    if name == "evar":
        beta = np.exp(np.linspace(-12, 12, 4001)) / (np.ptp(rho) or 1.0)
        penalty = np.full(len(beta), np.log(parameter[0]))
    minimum = rho.min()
    log = np.log(np.exp(-np.outer(beta, rho - minimum)) @ lam)
    return float(minimum + max(0.0 if name == "evar" else -np.inf, ((penalty - log) / beta).max()))


@pytest.mark.parametrize("beta", [1e-9, 1e-14, 1e-17])
@pytest.mark.parametrize("unit", [1.0, 1e-12, 1e3])
def test_a_small_beta_keeps_its_digits(beta: float, unit: float) -> None:
    """F = mean - beta variance / 2 + O(beta^2), and so is every tilted mean with its penalty."""
    rho, lam = np.array([3.0, 1.0, 10.0, 7.0, -90.0]) * unit, np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    mean = lam @ rho
    expected = mean - beta * (lam @ (rho - mean) ** 2) / 2
    F = mmdp.objectives.Entropic(beta)
    assert F.value(rho, lam) == pytest.approx(expected, rel=1e-11)
    xi = F.dual_density(rho, lam)
    assert (lam * xi) @ rho + F.penalty(xi, lam) == pytest.approx(F.value(rho, lam), rel=1e-13)
    small = np.abs(rho).max() * np.finfo(float).eps
    assert F.value(rho, lam) <= mean + 4 * small


def test_the_penalty_of_the_entropic_risk_is_rounded_up() -> None:
    """With 64 bits of mantissa, nothing allowed for; a low return far below the others.

    F is then near log(its weight) / beta, and rounding errors of the penalty are its last digits.
    """
    rng, Real = np.random.default_rng(0), np.longdouble
    for _ in range(1000):
        n = int(rng.integers(2, 6))
        lam, rho = rng.dirichlet(np.ones(n)), 10.0 ** rng.uniform(0, 15, n)
        F = mmdp.objectives.Entropic(float(rng.choice([0.3, 3.0])) / float(np.median(rho)))
        xi = F.dual_density(rho, lam)
        exact = lam.astype(Real) / lam.astype(Real).sum()
        weights = exact * xi / (exact @ xi)
        low = rho[np.argmax(np.log(lam) - F.beta * rho)]
        value = low - np.log(np.exp(-F.beta * (rho.astype(Real) - low)) @ exact) / Real(F.beta)
        upper_bound = weights @ rho + Real(F.penalty(xi, lam))
        assert value <= upper_bound <= value + 1e-13 * (abs(value) + 1 / F.beta)


@pytest.mark.parametrize("text", BUILT_IN)
@settings(max_examples=n_examples(40), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_values_are_those_of_the_formulas(text: str, seed: int) -> None:
    returns, weights = make_returns(seed)
    values = as_objective(text).value(returns, weights)
    rough = 1e-4 if text.startswith("evar") else 1e-9  # its formula is tried on a grid
    scale = np.ptp(returns) + np.abs(returns).max() + 1
    expected = [compute_objective(text, rho, weights) for rho in returns]
    assert values == pytest.approx(expected, abs=rough * scale)
    assert float(as_objective(text).value(returns[0], weights)) == pytest.approx(values[0])


@pytest.mark.parametrize("text", CONCAVE)
@settings(max_examples=n_examples(40), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_risk_weights_bound_the_value_and_are_tight(text: str, seed: int) -> None:
    returns, lam = make_returns(seed)
    objective = as_objective(text)
    scale = 1e-7 * (np.abs(returns).max() + 1)
    values, xi = objective.value(returns, lam), objective.dual_density(returns, lam)
    assert xi @ lam == pytest.approx(np.ones(len(xi)))
    assert (xi >= 0).all()
    for i in range(len(xi)):
        upper_bound = returns @ (lam * xi[i]) + objective.penalty(xi[i], lam)
        assert upper_bound[i] == pytest.approx(values[i], abs=scale)
        assert (upper_bound >= values - scale).all()


@settings(max_examples=n_examples(40), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_built_in_objectives_are_monotone_and_in_order(seed: int) -> None:
    returns, lam = make_returns(seed)
    higher = returns + np.abs(make_returns(seed + 1)[0][0, 0]) * (np.arange(len(lam)) % 2)
    slack = 1e-7 * (np.abs(higher).max() + 1)
    for text in BUILT_IN:
        objective = as_objective(text)
        assert (objective.value(higher, lam) >= objective.value(returns, lam) - slack).all()
    worst, evar, cvar, mean = (
        as_objective(x).value(returns, lam) for x in ("worst", "evar:0.3", "cvar:0.3", "mean")
    )
    assert (worst <= evar + slack).all()
    assert (evar <= cvar + slack).all()
    assert (cvar <= mean + slack).all()


@settings(max_examples=20, **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_cvar_is_the_least_mean_over_its_envelope(seed: int) -> None:
    returns, lam = make_returns(seed)
    lp_result = linprog(
        lam * returns[0], A_eq=lam[None], b_eq=[1.0], bounds=[(0, 1 / 0.3)] * len(lam)
    )
    assert float(mmdp.objectives.CVaR(0.3).value(returns[0], lam)) == pytest.approx(
        lp_result.fun, abs=1e-6
    )


@pytest.mark.parametrize("far", [1e2, 1e6, 1e9, 1e15])
def test_one_return_far_above_leaves_evar_of_the_others(far: float) -> None:
    """By the definition, as a maximum over beta."""
    rho, lam, alpha = np.array([0.0, 4.0, 4.0 * far]), np.full(3, 1 / 3), 0.4
    beta = np.exp(np.linspace(-40, 5, 200_001))
    true = (-np.log(np.exp(-beta[:, None] * rho) @ lam / alpha) / beta).max()
    assert mmdp.objectives.EVaR(alpha).value(rho, lam) == pytest.approx(true, rel=1e-6)


# ---------------------------------------------------------------------- texts
@pytest.mark.parametrize("text", [*BUILT_IN, *(f"regret:{x}" for x in BUILT_IN)])
def test_a_text_names_an_objective_and_back(text: str) -> None:
    objective = as_objective(text)
    assert str(objective) == text
    assert as_objective(objective) is objective
    assert objective.sentence.endswith(".")
    assert objective.uses_regret == text.startswith("regret")


def test_the_module_docstring_has_every_objective() -> None:
    assert mmdp.objectives.__doc__ is not None
    assert {x.split(":")[0] for x in BUILT_IN} == set(OBJECTIVES)
    assert all(f"``{name}" in mmdp.objectives.__doc__ for name in OBJECTIVES)


def test_flags() -> None:
    flags = {x: as_objective(x) for x in BUILT_IN}
    assert [x for x, o in flags.items() if not o.is_concave] == ["var:0.3"]
    assert all(o.is_monotone for o in flags.values())
    assert not Regret(mmdp.objectives.CustomObjective(np.matmul, is_monotone=False)).is_monotone


# ---------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "objective_class", [mmdp.objectives.CVaR, mmdp.objectives.VaR, mmdp.objectives.EVaR]
)
@pytest.mark.parametrize("alpha", [0, 2, -0.1, float("nan"), "0.1"])
def test_alpha_is_a_share(objective_class: type[Objective], alpha: object) -> None:
    message = "alpha must be the weight of a tail, above 0 and at most 1, not"
    with pytest.raises(mmdp.InputError, match=message):
        objective_class(alpha)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cvar", r"'cvar' is not of the form cvar:ALPHA; write one of mean, cvar:0.1"),
        ("cvar:x", "'cvar:x' is not of the form cvar:ALPHA"),
        ("cvar:0", "alpha must be the weight of a tail, above 0 and at most 1, not 0.0"),
        ("cvar:2", "alpha must be the weight of a tail, above 0 and at most 1, not 2.0"),
        ("mean:1", "'mean:1' is not of the form mean;"),
        ("cvr:0.1", r"no objective is called 'cvr' \(did you mean 'cvar'\?\)"),
        ("mean-cvar:0.1:2", "mean_weight must be a number from 0 to 1, not 2.0"),
        ("entropic:0", "beta must be a positive number, not 0.0"),
        ("regret", "write one of mean, cvar:0.1, .*, or regret: before it"),
        ("regret:regret:worst", "regret:worst is a regret already"),
    ],
)
def test_a_wrong_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        as_objective(text)


def return_scalar(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.float64(returns.mean())


def return_minus_infinity(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.full(returns.shape[:-1], -np.inf)


def return_nan(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.full(returns.shape[:-1], np.nan)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            return_scalar,
            r"objective return_scalar returned shape \(\) for returns of shape \(2, 3\)",
        ),
        (return_nan, "objective return_nan returned NaN"),
        (
            return_minus_infinity,
            "objective return_minus_infinity returned infinity; it must return numbers",
        ),
        (3, "function must be a function, not 3"),
        (mmdp.objectives.CVaR, r"CVaR needs alpha; pass objective=mmdp.objectives.CVaR\(alpha\)"),
        (int, "objective must be mean, cvar.*not <class 'int'>"),
    ],
)
def test_a_wrong_function_is_named(function: object, message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        as_objective(function).value(np.ones((2, 3)), np.full(3, 1 / 3))  # type: ignore[arg-type]


def test_a_class_without_parameters_stands_for_its_object() -> None:
    assert as_objective(mmdp.objectives.WorstCase) == mmdp.objectives.WorstCase()  # type: ignore[arg-type]


def test_a_function_may_change_what_it_is_given() -> None:
    def sort_and_minimum(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
        returns.sort(axis=-1)
        weights[:] = 0
        return returns[..., 0]

    model = make_random_model(4, n_models=4, n_states=3, n_actions=2, horizon=0)
    expected = mmdp.solve(model, 4, objective="worst", method=mmdp.methods.CADP(n_init=4))
    solution = mmdp.solve(model, 4, objective=sort_and_minimum, method=mmdp.methods.CADP(n_init=4))
    assert solution.value == solution.returns.min() <= expected.value + 1e-12
    returns, weights = np.array([2.0, 1.0]), np.full(2, 0.5)
    returns.setflags(write=False)
    assert mmdp.objectives.CustomObjective(sort_and_minimum).value(returns, weights) == 1
    assert weights.tolist() == [0.5, 0.5]


def test_an_unhashable_function_works_with_controllers() -> None:
    @dataclass
    class ShareOfMinimum:
        share: float

        def __call__(self, returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
            return returns.min(axis=-1)

    model = mmdp.domains.two_models().train
    objective = mmdp.objectives.CustomObjective(ShareOfMinimum(0.5))
    solution = mmdp.solve(model, 3, objective=objective, policy_class=mmdp.policies.Memory(2))
    assert solution.value == solution.returns.min()


@pytest.mark.parametrize("seed", range(20))
def test_cvar_of_tiny_weights_has_all_digits(seed: int) -> None:
    """Next to a weight of about one, tails of 1e-6 to 1e-12 against fractions."""
    rng = np.random.default_rng(seed)
    small = 10.0 ** -rng.uniform(6, 12) * rng.dirichlet(np.ones(3))
    weights, returns = np.array([1 - small.sum(), *small]), rng.normal(size=4)
    alpha = float(small.sum() * rng.uniform(0.3, 1.5))
    remaining, total = Fraction(alpha), Fraction(0)
    for m in np.argsort(returns):
        tail_weight = min(remaining, Fraction(float(weights[m])))
        remaining, total = (
            remaining - tail_weight,
            total + tail_weight * Fraction(float(returns[m])),
        )
    exact = float(total / Fraction(alpha))
    assert float(mmdp.objectives.CVaR(alpha).value(returns, weights)) == pytest.approx(
        exact, rel=0, abs=1e-14
    )
    model = mmdp.MMDP(np.ones((4, 1, 1, 1)), returns.reshape(4, 1, 1), weights=weights)
    solution = mmdp.solve(
        model, 1, objective=mmdp.objectives.CVaR(alpha), certify_time=0.1, backend="numpy"
    )
    assert solution.bound is not None
    assert exact - 1e-14 <= solution.bound <= exact + 1e-11
    assert solution.value == pytest.approx(exact, rel=0, abs=1e-14)


def test_a_quantile_below_the_smallest_differences_counts_tiny_weights() -> None:
    weights, returns = np.array([1 - 3e-13, 1e-13, 2e-13]), np.array([5.0, 1.0, 2.0])
    levels = [0.9e-13, 1.1e-13, 2.9e-13, 3.1e-13, 0.5]
    quantiles = [float(mmdp.objectives.VaR(level).value(returns, weights)) for level in levels]
    assert quantiles == [1.0, 2.0, 2.0, 5.0, 5.0]


def test_entropic_risk_keeps_its_digits_beside_a_model_of_tiny_weight() -> None:
    """Against fractions of long double: the lowest return has a weight of 1e-12."""
    rho, lam = np.array([-7.6e10, 6e-6, 5.8]), np.array([1.2e-12, 0.3, 0.7 - 1.2e-12])
    x = np.longdouble(3e-12) * (np.longdouble(5.8) - rho.astype(np.longdouble))
    exact = 5.8 - np.log1p(np.expm1(x) @ lam.astype(np.longdouble)) / np.longdouble(3e-12)
    value = mmdp.objectives.Entropic(3e-12).value(rho, lam)
    assert float(value) == pytest.approx(float(exact), rel=1e-12)
