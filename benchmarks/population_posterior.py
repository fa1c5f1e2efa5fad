"""The draws of the population domain's growth, by a Gibbs sampler made for its posterior.

    python -m benchmarks.population_posterior      # writes src/mmdp/domains/data/population.npz

The model of a logged step i, with population x, action a and next population y:

    y_i   ~ Normal(mean_i + ext_i, precision sigma[a])
    ext_i ~ Normal(ext_mu, precision ext_prec)
    mean  = mu x for a = 0, else mu0 x + mu1 x^2 + mu2 x^3

    mu ~ U(0.5, 3), mu0 ~ N(1, precision 1), mu1, mu2 ~ N(0, precision 10),
    ext_mu ~ U(0, 20), sigma[a], ext_prec ~ U(0, 5)

The sampler is collapsed. With ext_i integrated out, y_i has variance
V[a] = 1/sigma[a] + 1/ext_prec, and mu, the block (mu0, mu1, mu2) and ext_mu are jointly
normal, cut to their ranges: ext_mu is drawn first, with the others integrated out, then mu
and the block given ext_mu. The precisions move in three ways: V[a] with W = 1/ext_prec kept
(:func:`_redraw_variances`), W with V kept (:func:`_split_variance`), and all together given
ext_i (:func:`_draw_precisions`). The first two also integrate ext_i out.

The last move needs ext_i only through sum (y - mean - ext)^2 and sum (ext - ext_mu)^2 for each
action. With the residuals d_i = y_i - mean_i - ext_mu of n steps and D = sum d_i^2, the vector
e = ext - ext_mu is normal with mean w d and variance v, w = W / V, v = w / sigma. Its part
along d is w sqrt(D) + sqrt(v) z and its squared length across is v chi^2_{n-1}; both sums
follow. So a sweep needs the sums of each action only, never the log, and runs many chains at
once. A textbook sampler that keeps every ext_i needs thousands of sweeps instead, because
ext_mu is nearly collinear with the coefficients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammainc, gammaincinv, ndtr, ndtri

from mmdp.data.domains._common import DATA_DIR
from mmdp.data.domains._population import (
    CAPACITY,
    DISCOUNT,
    LOG_START,
    N_ACTIONS,
    N_SAMPLES,
    N_STATES,
    REWARDS,
    make_true_transitions,
)
from mmdp.data.sampling import spawn_generators

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOG_STEPS = 300
SCALE = 50.0  # x is divided by this inside the sampler, to keep the block well conditioned
MU_RANGE, EXT_RANGE, MAX_PRECISION = (0.5, 3.0), (0.0, 20.0), 5.0
MU_SCALED = (SCALE * MU_RANGE[0], SCALE * MU_RANGE[1])
PRIOR_MEAN = np.array([1.0, 0.0, 0.0])
PRIOR_PRECISION = np.array([1.0, 10.0, 10.0])
CHAINS, BURN_IN, THIN = 50, 200, 10


class Log(NamedTuple):
    """(n,) states, actions and next states of logged steps."""

    state: Ints
    action: Ints
    next_state: Ints


class Sums(NamedTuple):
    """What the sampler needs from a log, per action (A, ...).

    ``n`` steps; ``yy`` = sum y^2; ``y1`` = sum y; ``fy`` = sum f y, ``f1`` = sum f and
    ``ff`` = sum f f' with features f = (x, x^2, x^3), scaled.
    """

    n: Array
    yy: Array
    y1: Array
    fy: Array
    f1: Array
    ff: Array


class State(NamedTuple):
    """One state of C chains: coefficients of x (C,) and of f (C, 3), scaled."""

    mu: Array
    block: Array
    ext_mu: Array
    sigma: Array
    ext_prec: Array


def compute_sums(log: Log) -> Sums:
    x, y = log.state / SCALE, log.next_state.astype(np.float64)
    f = np.stack([x, x**2, x**3], axis=1)
    is_action = (log.action[None, :] == np.arange(N_ACTIONS)[:, None]).astype(np.float64)
    return Sums(
        is_action.sum(axis=1),
        is_action @ y**2,
        is_action @ y,
        is_action @ (f * y[:, None]),
        is_action @ f,
        np.einsum("ai,ij,ik->ajk", is_action, f, f),
    )


def sample_posterior(log: Log, n: int, rng: np.random.Generator) -> dict[str, Array]:
    """Sample n posterior draws of ``mu, mu0, mu1, mu2, ext_mu``, nearly independent.

    The draws of :func:`sample_chains`, mixed over chains so that any part of them is alike.

    >>> log = simulate_log(np.random.default_rng(0))
    >>> sample_posterior(log, 7, np.random.default_rng(1))["mu"].shape
    (7,)
    """
    chains = min(n, CHAINS)
    draws = sample_chains(log, chains, -(-n // chains), rng)
    return {name: x.T.reshape(-1)[:n] for name, x in draws.items()}


def sample_chains(
    log: Log,
    chains: int,
    draws: int,
    rng: np.random.Generator,
    *,
    burn_in: int = BURN_IN,
    thin: int = THIN,
) -> dict[str, Array]:
    """Sample arrays (chains, draws) of ``mu, mu0, mu1, mu2, ext_mu``; chains start at the prior."""
    sums = compute_sums(log)
    state = _initialize_state(chains, rng)
    samples = np.empty((draws, 5, chains))
    for sweep in range(burn_in + draws * thin):
        state = _run_sweep(state, sums, rng)
        late = sweep - burn_in
        if late >= 0 and (late + 1) % thin == 0:
            samples[late // thin] = [state.mu, *state.block.T, state.ext_mu]
    powers = np.array([1, 1, 2, 3, 0])  # coefficients of the scaled x back to those of x
    samples /= SCALE ** powers[:, None]
    names = ("mu", "mu0", "mu1", "mu2", "ext_mu")
    return {name: samples[:, i].T.copy() for i, name in enumerate(names)}


def load_published_log() -> Log:
    with (DATA_DIR / "population_log.csv").open(encoding="utf-8") as file:
        return Log(*np.loadtxt(file, dtype=np.int64, delimiter=",", skiprows=1).T)


def find_optimal_actions(kernel: Array, tolerance: float = 1e-10) -> Ints:
    """Find the optimal stationary policy (S,) of one model by value iteration."""
    r, v = REWARDS, np.zeros(N_STATES)
    while True:
        q = r + DISCOUNT * kernel @ v
        new = q.max(axis=1)
        if np.abs(new - v).max() < tolerance * np.abs(new).max():
            return q.argmax(axis=1)
        v = new


def simulate_log(rng: np.random.Generator) -> Log:
    """Simulate a log of the true model under its optimal policy from population 10."""
    kernel = make_true_transitions()
    policy = find_optimal_actions(kernel)
    cumulative = np.cumsum(kernel[np.arange(N_STATES), policy], axis=1)
    path = np.empty(LOG_STEPS + 1, dtype=np.int64)
    path[0] = LOG_START
    for i, u in enumerate(rng.random(LOG_STEPS)):
        path[i + 1] = min(np.searchsorted(cumulative[path[i]], u, side="right"), CAPACITY)
    return Log(path[:-1], policy[path[:-1]], path[1:])


def _initialize_state(chains: int, rng: np.random.Generator) -> State:
    # precisions start low: a chain that starts with a spurious exact fit forgets it slowly
    return State(
        SCALE * rng.uniform(*MU_RANGE, chains),
        np.zeros((chains, 3)),
        rng.uniform(*EXT_RANGE, chains),
        rng.uniform(0.0, 0.1, (chains, N_ACTIONS)),
        rng.uniform(0.0, 0.1, chains),
    )


def _run_sweep(state: State, sums: Sums, rng: np.random.Generator) -> State:
    """Run one sweep: ext_mu, mu, block with ext_i integrated out, then the precisions."""
    precision = 1.0 / (1.0 / state.sigma + 1.0 / state.ext_prec[:, None])  # 1 / V, (C, A)
    block = _condition_block(precision[:, 1:], sums)
    ext = _sample_ext(state.ext_mu, precision, block, sums, rng)
    mean, scale = _condition_mu(precision[:, 0], ext, sums)
    mu = _sample_truncated_normal(mean, scale, MU_SCALED, rng)
    noise = np.linalg.solve(np.swapaxes(block.root, 1, 2), rng.standard_normal((len(ext), 3, 1)))
    new_block = block.mean - ext[:, None] * block.slope + noise[:, :, 0]
    squares = _sum_residual_squares(mu, new_block, ext, sums)
    state = _resample_variances(state, squares, sums.n, rng)
    state = _split_variance(state, sums.n > 0, rng)
    sigma, ext_prec = _sample_precisions(state, squares, sums.n, rng)
    return State(mu, new_block, ext, sigma, ext_prec)


class Block(NamedTuple):
    """(mu0, mu1, mu2) given ext_mu: Normal(mean - ext_mu slope, (root root')^-1), scaled.

    ``precision`` (C,) and ``pull`` (C,) are what the block takes from the precision and from the
    precision times mean of ext_mu when it is integrated out.
    """

    mean: Array
    slope: Array
    root: Array
    precision: Array
    pull: Array


def _condition_block(precision: Array, sums: Sums) -> Block:
    powers = SCALE ** np.arange(1, 4)
    prior = PRIOR_PRECISION / powers**2
    q = np.diag(prior) + np.einsum("ca,aij->cij", precision, sums.ff[1:])
    pull = precision @ sums.fy[1:] + prior * PRIOR_MEAN * powers
    ones = precision @ sums.f1[1:]
    solution = np.linalg.solve(q, np.stack([pull, ones], axis=2))
    mean, slope = solution[:, :, 0], solution[:, :, 1]
    root = np.linalg.cholesky(q)
    return Block(mean, slope, root, (ones * slope).sum(axis=1), (ones * mean).sum(axis=1))


def _condition_mu(precision: Array, ext: Array, sums: Sums) -> tuple[Array, Array]:
    """Compute mean and deviation of mu (scaled) before truncation; infinite if unobserved."""
    xx = sums.ff[0, 0, 0]
    if xx == 0:
        return np.zeros_like(ext), np.full_like(ext, np.inf)
    return (sums.fy[0, 0] - ext * sums.f1[0, 0]) / xx, 1.0 / np.sqrt(precision * xx)


def _sample_ext(
    old: Array, precision: Array, block: Block, sums: Sums, rng: np.random.Generator
) -> Array:
    """Sample ext_mu (C,) with mu and the block integrated out; they are nearly collinear with it.

    Without the range of mu the law is a cut normal. That one proposes; the share of mu's law
    that lies in its range accepts (Metropolis-Hastings).
    """
    ext_precision = precision @ sums.n - block.precision
    pull = precision @ sums.y1 - block.pull
    xx = sums.ff[0, 0, 0]
    if xx > 0:
        ext_precision -= precision[:, 0] * sums.f1[0, 0] ** 2 / xx
        pull -= precision[:, 0] * sums.f1[0, 0] * sums.fy[0, 0] / xx
    flat = ext_precision <= 1e-12 * (
        precision @ sums.n
    )  # the log says nothing; only rounding is left
    safe = np.where(flat, 1.0, ext_precision)
    scale = np.where(flat, np.inf, 1.0 / np.sqrt(safe))
    new = _sample_truncated_normal(np.where(flat, 0.0, pull / safe), scale, EXT_RANGE, rng)
    share = [
        _compute_interval_probability(*_condition_mu(precision[:, 0], e, sums), MU_SCALED)
        for e in (new, old)
    ]
    return np.where(rng.random(len(old)) * share[1] <= share[0], new, old)


def _sum_fitted_means(mu: Array, block: Array, f: Array) -> Array:
    """Sum the fitted means (C, A), from the sums ``f`` (A, 3) of the features."""
    fitted = block @ f.T
    fitted[:, 0] = mu * f[0, 0]
    return fitted


def _sum_residual_squares(mu: Array, block: Array, ext: Array, sums: Sums) -> Array:
    """Compute D = sum (y - mean - ext_mu)^2 (C, A), expanded in the sums."""
    square = np.einsum("ci,aij,cj->ca", block, sums.ff, block)
    square[:, 0] = mu**2 * sums.ff[0, 0, 0]
    e = ext[:, None]
    cross = _sum_fitted_means(mu, block, sums.fy) - e * _sum_fitted_means(mu, block, sums.f1)
    total = sums.yy - 2.0 * e * sums.y1 + e**2 * sums.n + square - 2.0 * cross
    return np.maximum(total, 0.0)


def _split_variance(
    state: State, is_observed: npt.NDArray[np.bool_], rng: np.random.Generator
) -> State:
    """Move variance between W = 1/ext_prec and T[a] = 1/sigma[a], with V = W + T kept.

    The log says nothing about this split. Uniform precisions give it the density
    W^-2 prod_a (V[a] - W)^-2 over the observed actions, W and all T above 1/5, with a peak at
    both ends. The proposal is an even mixture of the peaks W^-2 and (V_min - W)^-2, which are
    mirror images, and the ratio of target and proposal accepts (Metropolis-Hastings). Without
    this move a chain stays near one end for hundreds of sweeps.
    """
    if not is_observed.any():
        return state
    old = 1.0 / state.ext_prec
    total = old[:, None] + 1.0 / state.sigma[:, is_observed]
    least = total.min(axis=1)
    low, high = 1.0 / MAX_PRECISION, least - 1.0 / MAX_PRECISION
    u = rng.random(len(old))
    new = 1.0 / (u / np.maximum(high, low) + (1.0 - u) / low)
    new = np.where(rng.random(len(old)) < 0.5, new, least - new)

    def excess(w: Array) -> Array:  # log of target / proposal
        peaks = np.log(w**-2 + (least - w) ** -2)
        return -2.0 * (np.log(w) + np.log(total - w[:, None]).sum(axis=1)) - peaks

    accept = np.log1p(-rng.random(len(old))) < excess(new) - excess(old)
    w = np.where(accept, new, old)
    sigma = state.sigma.copy()
    sigma[:, is_observed] = 1.0 / (total - w[:, None])
    return state._replace(sigma=np.minimum(sigma, MAX_PRECISION), ext_prec=1.0 / w)


def _resample_variances(state: State, squares: Array, n: Array, rng: np.random.Generator) -> State:
    """Move each V[a] with W kept; an action that the log lacks draws from the prior.

    The density is V^(-n/2) exp(-D / 2V) (V - W)^-2 for V > W + 1/5. The proposal is a gamma
    for 1/V, cut, so that the ratio of target and proposal is (V / (V - W))^2.
    """
    w = 1.0 / state.ext_prec[:, None]
    old = w + 1.0 / state.sigma
    top = np.broadcast_to(1.0 / (w + 1.0 / MAX_PRECISION), old.shape)
    new = 1.0 / _sample_truncated_gamma(
        np.broadcast_to(n / 2 + 1, old.shape), squares / 2, top, rng
    )
    new = np.maximum(new, w + 1.0 / MAX_PRECISION)
    ratio = (new * (old - w) / ((new - w) * old)) ** 2
    v = np.where(rng.random(old.shape) < ratio, new, old)
    prior = rng.uniform(0.0, MAX_PRECISION, old.shape)
    sigma = np.where(n > 0, np.minimum(1.0 / (v - w), MAX_PRECISION), prior)
    return state._replace(sigma=sigma)


def _sample_precisions(
    state: State, squares: Array, n: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Sample new sigma (C, A) and ext_prec (C,): draw the two sums of squares, then the gammas."""
    ext_variance = 1.0 / state.ext_prec[:, None]
    share = ext_variance / (ext_variance + 1.0 / state.sigma)
    spread = share / state.sigma
    root = np.sqrt(squares)
    ext_part = share * root + np.sqrt(spread) * rng.standard_normal(squares.shape)
    orthogonal_part = (
        spread * 2.0 * rng.standard_gamma(np.broadcast_to(np.maximum(n - 1, 0) / 2, root.shape))
    )
    is_observed = n > 0
    action_squares = np.where(is_observed, (root - ext_part) ** 2 + orthogonal_part, 0.0)
    ext_squares = np.where(is_observed, ext_part**2 + orthogonal_part, 0.0).sum(axis=1)
    top = np.full(action_squares.shape, MAX_PRECISION)
    sigma = _sample_truncated_gamma(
        np.broadcast_to(n / 2 + 1, action_squares.shape), action_squares / 2, top, rng
    )
    shape = np.full(len(action_squares), n.sum() / 2 + 1)
    return sigma, _sample_truncated_gamma(shape, ext_squares / 2, top[:, 0], rng)


def _standardize_bounds(
    mean: Array, scale: Array, bounds: tuple[float, float]
) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """Standardize bounds, mirrored if that puts them in the lower tail of ndtr."""
    low, high = bounds
    flip = mean < (low + high) / 2
    a = np.where(flip, mean - high, low - mean) / scale
    b = np.where(flip, mean - low, high - mean) / scale
    return a, b, flip


def _compute_interval_probability(mean: Array, scale: Array, bounds: tuple[float, float]) -> Array:
    """Compute P(low < Normal(mean, scale) < high); 1 for an infinite scale."""
    a, b, _ = _standardize_bounds(mean, scale, bounds)
    return np.where(np.isinf(scale), 1.0, ndtr(b) - ndtr(a))


def _sample_truncated_normal(
    mean: Array, scale: Array, bounds: tuple[float, float], rng: np.random.Generator
) -> Array:
    """Sample Normal(mean, scale) within bounds by inversion; uniform for an infinite scale."""
    low, high = bounds
    u = rng.random(mean.shape)
    uniform = np.isinf(scale)
    a, b, flip = _standardize_bounds(mean, scale, bounds)
    z = np.where(uniform, 0.0, ndtri(ndtr(a) + u * (ndtr(b) - ndtr(a))))
    step = np.where(uniform, 0.0, np.where(uniform, 1.0, scale) * z)
    values = np.clip(np.where(flip, mean - step, mean + step), low, high)
    return np.where(uniform, low + u * (high - low), values)


def _sample_truncated_gamma(
    shape: Array, rate: Array, top: Array, rng: np.random.Generator
) -> Array:
    """Sample Gamma(shape, rate) within (0, top): a plain draw if inside, else inversion."""
    safe = np.maximum(rate, 1e-300)
    values = rng.standard_gamma(shape) / safe
    exceeds_top = ~(values < top)
    u = rng.random(values.shape)[exceeds_top]
    k, r, limit = shape[exceeds_top], safe[exceeds_top], top[exceeds_top]
    mass = gammainc(k, limit * r)
    power = limit * u ** (1.0 / k)  # the limit for small rates, if the mass underflows
    values[exceeds_top] = np.where(mass > 1e-280, gammaincinv(k, u * mass) / r, power)
    return np.clip(values, 1e-12, top)


def sample_packed(n: int) -> dict[str, Array]:
    """Sample (2 n,) draws of ``mu, mu0, mu1, mu2``: n for training, then n for testing."""
    streams = spawn_generators(0, 3)[1:]  # the first was once that of a simulated log
    sets = [sample_posterior(load_published_log(), n, rng) for rng in streams]
    return {k: np.concatenate([x[k] for x in sets]) for k in ("mu", "mu0", "mu1", "mu2")}


if __name__ == "__main__":
    np.savez_compressed(DATA_DIR / "population.npz", **sample_packed(N_SAMPLES))
