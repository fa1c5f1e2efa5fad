"""Episodes: the return of any policy with error bars.

Models are strata, the same random numbers serve every policy, and CADP's Markov policy,
whose return is known exactly, is the control variate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp import kernels
from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.kernels.planner import ACTIONS, PROBABILITIES, PlannerTables
from mmdp.methods.base import Context, Stop
from mmdp.methods.belief import EPISODES, BeliefPlanner, passes_of
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy, Planner
from mmdp.solution import Evaluation
from mmdp.support import check_memory
from mmdp.validate import check_seed, check_whole, check_whole_model

Array = npt.NDArray[np.float64]

SEARCHES_IN_ALL = 2_000_000  # tree queries that a simulation makes by default, over all episodes
MIN_EPISODES = 4  # per model, however many queries they take


def simulate(
    policy: MarkovPolicy | Planner,
    model: MMDP,
    *,
    episodes: int | None = None,
    seed: int | None = 0,
    control: bool = True,
    threads: int | None = None,
    backend: str | Kernel = "auto",
    check_time: Callable[[], None] | None = None,
) -> Evaluation:
    """Simulate ``episodes`` per model; returns with standard errors.

    For a planner, ``details`` holds the paired ``difference`` to CADP (with the same random
    numbers) and its ``difference_stderr``, ``impossible`` (the transitions that no model of
    the planner explains) and ``episode_sd`` (over models and episodes). With ``control`` the
    return of CADP's policy, which is known exactly, is a control variate. ``backend``: as for
    :func:`mmdp.solve`; ``threads`` (all by default) are numba's. ``check_time`` is called
    between batches of two episodes per model and may raise ``mmdp.methods.base.Stop`` to end
    early with what is done.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[0.5, 0.5]], [[0.5, 0.5]]]] * 2, [[1.0], [0.0]], initial=[1, 0])
    >>> report = mmdp.simulate(mmdp.MarkovPolicy([[0, 0]] * 3), two, episodes=400, seed=1)
    >>> abs(report.mean - 2.0) < 4 * report.stderr
    True
    """
    check_whole_model(model.problem, "a simulation")
    if isinstance(policy, Planner) and not isinstance(policy, BeliefPlanner):
        return _simulate_plainly(policy, model, episodes, seed)
    made, horizon = _tables_of(policy, model)
    count = _episodes_of(policy, model, episodes)
    number = _seed_of(seed)
    if threads is not None:
        check_whole(threads, "threads")
    passes = math.inf if made.queries else passes_of(made.problem, count, carry=made.carry)
    kernel = kernels.get(backend, model.problem, horizon, passes=passes, threads=threads)
    batches = _batches(count, number, check_time is not None and not made.carry)
    returns, impossible = _run(kernel, made, model, horizon, batches, check_time)
    batches = batches[: _batches_in(returns.shape[1], batches)]
    wanted, count = count, returns.shape[1]
    details: dict[str, Any] = {
        "episodes": count,
        "episodes_wanted": wanted,
        "impossible": int(impossible.sum()),
        "episode_sd": _overall_sd(returns, model.weights),
    }
    adjusted = returns
    if isinstance(policy, BeliefPlanner) and control:
        paired, exact = _baseline(kernel, policy.baseline, model, batches)
        difference = returns - paired
        details["difference"] = float(model.weights @ difference.mean(axis=1))
        details["difference_stderr"] = _stderr(difference, model.weights)
        slope = _slope(returns, paired)
        adjusted = returns - slope * (paired - exact[:, None])
        details["control_slope"] = slope
    errors = adjusted.std(axis=1, ddof=1) / np.sqrt(count)
    return Evaluation(
        returns=adjusted.mean(axis=1),
        weights=model.weights,
        errors=errors,
        model_labels=model.model_labels if model.labelled["model"] else None,
        details=details,
    )


def _simulate_plainly(
    planner: Planner, model: MMDP, episodes: int | None, seed: int | None
) -> Evaluation:
    """Any object of the Planner protocol, step by step in Python."""
    count = _episodes_of(planner, model, episodes or max(2, 200 // model.n_models))
    number = _seed_of(seed)
    returns = np.array(
        [[_one_episode(planner, model, m, number, e) for e in range(count)]
         for m in range(model.n_models)]
    )  # fmt: skip
    return Evaluation(
        returns=returns.mean(axis=1),
        weights=model.weights,
        errors=returns.std(axis=1, ddof=1) / np.sqrt(count),
        model_labels=model.model_labels if model.labelled["model"] else None,
        details={"episodes": count, "episode_sd": _overall_sd(returns, model.weights)},
    )


def _one_episode(planner: Planner, model: MMDP, m: int, seed: int, episode: int) -> float:
    rng = np.random.default_rng([seed, m, episode])
    x, total, factor = model.problem, 0.0, 1.0
    memory = planner.start(int(rng.integers(2**31)))
    s = int(rng.choice(model.n_states, p=model.initial))
    for t in range(planner.horizon):
        a = int(planner.act(memory, t, s))
        if not (0 <= a < model.n_actions and model.allowed[s, a]):
            raise InputError(
                f"the planner takes action {a} in state {model.state_labels[s]!r} at time {t}, "
                "which the model does not allow"
            )
        row = slice(*x.indptr[s * model.n_actions + a : s * model.n_actions + a + 2])
        chances = x.p[t if len(x.p) > 1 else 0, row, m]
        reward = float(x.r[t if len(x.r) > 1 else 0, s, a, m])
        total += factor * reward
        if not chances.sum() > 0:  # an action missing in this model ends the episode
            return total
        after = int(rng.choice(x.indices[row], p=chances / chances.sum()))
        memory = planner.update(memory, t, s, a, after, reward)
        s, factor = after, factor * model.discount
    return total + factor * float(x.terminal[s, m])


def _tables_of(policy: MarkovPolicy | Planner, model: MMDP) -> tuple[PlannerTables, int]:
    if isinstance(policy, MarkovPolicy):
        policy.check(model)
        table = policy.table_for(model)
        if policy.deterministic:
            made = PlannerTables(ACTIONS, model.problem, actions=table)
        else:
            made = PlannerTables(PROBABILITIES, model.problem, probabilities=table)
        return made, policy.horizon
    if not isinstance(policy, BeliefPlanner):
        raise InputError(
            f"simulate() takes a MarkovPolicy or a planner from solve(), not "
            f"{type(policy).__name__}"
        )
    own = policy.model
    if (own.n_states, own.n_actions) != (model.n_states, model.n_actions):
        raise InputError(
            f"the planner is for {own.n_states} states and {own.n_actions} actions, the model "
            f"has {model.n_states} states and {model.n_actions} actions"
        )
    if not (own.allowed <= model.allowed).all():
        raise InputError("the planner may take actions that the model does not allow")
    if model.horizon not in (None, policy.horizon):
        raise InputError(
            f"the planner covers {policy.horizon} time steps, the model varies over {model.horizon}"
        )
    return policy.tables, policy.horizon


def _episodes_of(policy: Any, model: MMDP, episodes: int | None) -> int:
    if episodes is None:
        total = EPISODES
        if isinstance(policy, BeliefPlanner) and policy.tables.queries:
            total = SEARCHES_IN_ALL // (policy.tables.queries * policy.horizon)
        return max(MIN_EPISODES, total // model.n_models)
    if not isinstance(episodes, (int, np.integer)) or episodes < 2:
        raise InputError(
            f"episodes must be a whole number of at least 2 (for an error bar), not {episodes!r}"
        )
    check_memory(16 * int(episodes) * model.n_models, f"{episodes:,} episodes per model")
    return int(episodes)


def _seed_of(seed: int | None) -> int:
    check_seed(seed)
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(2))


def _batches(episodes: int, seed: int, small: bool) -> list[tuple[int, int]]:
    """(episodes, seed) of each batch: one, or many small ones to look at the clock between."""
    if not small:
        return [(episodes, seed)]
    sizes = [2] * (episodes // 2 - 1) + [2 + episodes % 2]
    return [(size, seed + k) for k, size in enumerate(sizes)]


def _batches_in(episodes: int, batches: list[tuple[int, int]]) -> int:
    """How many of the batches make up that many episodes."""
    done = np.cumsum([size for size, _ in batches])
    return int(np.searchsorted(done, episodes)) + 1


def _run(
    kernel: Kernel, made: PlannerTables, model: MMDP, horizon: int,
    batches: list[tuple[int, int]], check_time: Callable[[], None] | None = None,
) -> tuple[Array, npt.NDArray[np.int64]]:  # fmt: skip
    parts: list[Array] = []
    impossible = np.zeros(model.n_models, dtype=np.int64)
    for episodes, seed in batches:
        if check_time is not None and parts:
            try:
                check_time()
            except Stop:
                break
        returns, unexplained = kernel.simulate(
            model.problem, model.pattern_rewards, made, horizon, episodes, seed
        )
        parts.append(returns)
        impossible += unexplained
    return np.concatenate(parts, axis=1), impossible


def _baseline(
    kernel: Kernel, baseline: MarkovPolicy, model: MMDP, batches: list[tuple[int, int]]
) -> tuple[Array, Array]:
    """((M, episodes) simulated, (M,) exact) returns of the control variate."""
    made, horizon = _tables_of(baseline, model)
    paired, _ = _run(kernel, made, model, horizon, batches)
    context = Context(model, horizon, kernel, method="evaluate")
    return paired, context.returns(baseline.table_for(model))


def _slope(x: Array, y: Array) -> float:
    """Regression slope of x on y within models; 0 if y does not vary."""
    dx, dy = (z - z.mean(axis=1, keepdims=True) for z in (x, y))
    variance = float((dy * dy).sum())
    return float((dx * dy).sum()) / variance if variance > 0 else 0.0


def _stderr(x: Array, weights: Array) -> float:
    errors = x.std(axis=1, ddof=1) / np.sqrt(x.shape[1])
    return float(np.sqrt((weights**2) @ (errors**2)))


def _overall_sd(returns: Array, weights: Array) -> float:
    mean = float(weights @ returns.mean(axis=1))
    return float(np.sqrt(weights @ ((returns - mean) ** 2).mean(axis=1)))
