"""Simulate episodes: estimate the return of any policy, with standard errors.

Models and their first states are strata, the same random numbers serve every policy, and CADP's
Markov policy, whose return is known exactly, is the control variate. Errors are such that two of
them make a 95% interval of the mean, however few episodes there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mmdp.core import kernels
from mmdp.core.arguments import PositiveInt, Seed, Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.kernels import Backend, PreparedProblem
from mmdp.core.kernels.infinite import check_infinite_horizon, find_truncation_horizon
from mmdp.core.kernels.planner import PlannerTables
from mmdp.core.kernels.rewards import max_abs_rewards
from mmdp.core.kernels.sampling import sample_initial_states
from mmdp.core.methods.belief import DEFAULT_TOTAL_EPISODES, estimate_planning_passes
from mmdp.core.model import MMDP
from mmdp.core.policies import Planner, Policy, as_policy
from mmdp.core.policies.markov import TablePolicy
from mmdp.core.shapes import Array, IndexArray
from mmdp.core.solution import Evaluation, Solution, compute_t_factor, make_evaluation
from mmdp.core.timing import StopState, allow_stop, solver_clock
from mmdp.core.validate import check_int, check_not_sharded

MAX_TREE_QUERIES = 2_000_000  # tree searches of a simulation by default, over all episodes
MIN_EPISODES = 4  # least number per model, however many queries they take
MAX_TRUNCATED_WEIGHT = 1e-6  # weight of the decisions of an infinite horizon that are not simulated
BATCH_SECONDS = 0.2  # seconds that a batch of episodes should take
MIN_CONTROL_EPISODES = 500  # episodes in all before a control is used: a few may not differ from it
N_CHAINS = 2  # chains of episodes in which the belief is carried from one to the next
EPISODES_PER_STRATUM = 4  # episodes that begin in a stratum, on average
MAX_BATCH_GROWTH = 16  # a batch has at most this many times the episodes of the one before


@check_arguments
def simulate(
    model: MMDP,
    policy: Unchecked[Planner | Solution],
    *,
    n_episodes: int | None = None,
    seed: Seed = 0,
    control_variate: bool = True,
    n_threads: PositiveInt | None = None,
    backend: str | Backend = "auto",
    off_grid: bool = False,
) -> Evaluation:
    """Simulate ``n_episodes`` of a policy per model; return the mean returns and standard errors.

    For a belief policy, ``details`` holds the paired ``difference`` to CADP (with the same random
    numbers) and its ``difference_stderr``, ``n_impossible`` (the number of transitions that no
    model of the policy explains) and ``episode_sd`` (over models and episodes). With
    ``control_variate`` the return of CADP's policy, which is known exactly, is a control variate
    unless there are few episodes. ``backend``: as for :func:`mmdp.solve`; ``n_threads`` (all by
    default) are numba's.

    An infinite horizon is truncated at the time whose discount factor is at most a millionth.
    ``details`` then has ``horizon``, the number of decisions, and ``truncation_error``, an upper
    bound on the effect of the later decisions on a return.

    Episodes do not depend on the size of the batches in which they are simulated. A policy that
    carries its belief from one episode to the next runs them all at once, and twice: its episodes
    depend on each other, so the standard error is that between the two runs.

    ``off_grid`` simulates the function of a model from :func:`mmdp.from_step` without rounding
    states to its grid: the policy decides by the nearest grid point. It takes Markov policies.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[0.5, 0.5]], [[0.5, 0.5]]]] * 2, [[1.0], [0.0]], initial=[1, 0])
    >>> policy = mmdp.policies.MarkovPolicy([[0, 0]] * 3)
    >>> evaluation = mmdp.simulate(two, policy, n_episodes=400, seed=1)
    >>> abs(evaluation.mean - 2.0) < 4 * evaluation.stderr
    True
    """
    return run_simulation(
        model, policy, n_episodes, seed, control_variate, n_threads, backend, off_grid
    )


def run_simulation(
    model: MMDP,
    policy: Planner | Solution,
    n_episodes: int | None = None,
    seed: int | None = 0,
    control_variate: bool = True,
    n_threads: int | None = None,
    backend: str | Backend = "auto",
    off_grid: bool = False,
    check_time: Callable[[], None] | None = None,
) -> Evaluation:
    """Simulate a policy as :func:`simulate` does, until ``check_time`` raises.

    ``check_time`` is called after every few episodes per model and may raise
    ``mmdp.core.timing.TimeUp`` to end early with the episodes so far. Ctrl-C does the same then,
    and ``details`` has ``is_interrupted``.
    """
    check_not_sharded(model.problem, "a simulation")
    resolved_policy = as_policy(policy, "simulate() takes a policy or a planner from solve()")
    resolved_policy.check(model)
    truncation: dict[str, object] = {}
    step_spec, horizon = model.step_spec, resolved_policy.horizon
    if horizon == math.inf:
        check_infinite_horizon(model.problem, model.horizon, model.state_labels)
        horizon, weight_left = find_truncation_horizon(model.problem, MAX_TRUNCATED_WEIGHT)
        error = weight_left * float(max_abs_rewards(model.problem.r).max())
        truncation = {"horizon": horizon, "truncation_error": error}
        model = model.replace(terminal=None)  # these values are for a last decision
    horizon = int(horizon)
    int_seed = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(2))
    if off_grid:
        if step_spec is None:
            raise InputError(
                "off_grid=True needs a step function, and this model has none (files do not keep "
                "it)",
                ["build the model with mmdp.from_step in this session"],
            )
        operation = "off_grid=True needs models that do not switch"
        if reason := model.problem.reason_if_switching(operation):
            raise InputError(reason)
        n_per_model = _choose_n_episodes(0, model, n_episodes)
        table = resolved_policy.to_markov(horizon).table
        returns = step_spec.simulate_off_grid(model, table, n_per_model, int_seed, not truncation)
        return _make_evaluation(returns, model, truncation | {"off_grid": True})
    tables = resolved_policy.make_simulation_tables(model)
    if tables is None:
        n_per_model = _choose_n_episodes(0, model, n_episodes or max(2, 200 // model.n_models))
        returns = _simulate_in_python(resolved_policy, model, horizon, n_per_model, int_seed)
        return _make_evaluation(returns, model, truncation)
    n_per_model = _choose_n_episodes(tables.n_queries * horizon, model, n_episodes)
    passes = (
        math.inf
        if tables.n_queries
        else estimate_planning_passes(
            tables.problem, n_per_model, carry_belief=tables.carries_belief
        )
    )
    resolved_backend = kernels.get_backend(
        backend, model.problem, horizon, n_passes=passes, n_threads=n_threads
    )
    prepared = resolved_backend.prepare(model.problem, horizon)
    runner = _EpisodeRunner(prepared, tables, model, int_seed)
    stop_state = runner.simulate(n_per_model, check_time)
    returns = controlled_returns = runner.returns
    details = truncation | {
        "n_episodes_requested": n_per_model,
        "n_impossible": runner.n_impossible,
    }
    if stop_state.is_interrupted:
        details["is_interrupted"] = True
    baseline = resolved_policy.control_variate
    if baseline is not None and control_variate:
        controlled_returns, comparison = _compare_with_baseline(runner, baseline, resolved_backend)
        details |= comparison
    return _make_evaluation(
        returns, model, details, runner.average_chains(controlled_returns), runner.strata
    )


def _compare_with_baseline(
    runner: _EpisodeRunner, baseline: TablePolicy, backend: Backend
) -> tuple[Array, dict[str, object]]:
    """Return the returns (M, n) less what chance gave the baseline, and the difference to it."""
    model, returns = runner.model, runner.returns
    baseline.check(model)
    tables = baseline.make_simulation_tables(model)
    baseline_runner = _EpisodeRunner(runner.prepared, tables, model, runner.seed)
    baseline_runner.simulate(runner.n_done)  # with the same random numbers
    difference = runner.average_chains(returns - baseline_runner.returns)
    stderrs = runner.strata.estimate_stderrs(difference, model.weights)
    comparison: dict[str, object] = {
        "difference": float(model.weights @ runner.strata.estimate_means(difference)),
        "difference_stderr": float(np.linalg.norm(model.weights * stderrs)),
    }
    if returns.size >= MIN_CONTROL_EPISODES:
        slope = comparison["control_slope"] = _fit_slope(returns, baseline_runner.returns)
        # over an infinite horizon it differs by at most ``truncation_error``
        exact_returns = baseline.compute_returns(model, backend)
        returns = returns - slope * (baseline_runner.returns - exact_returns[:, None])
    return returns, comparison


def _make_evaluation(
    returns: Array,
    model: MMDP,
    details: Mapping[str, object],
    independent_returns: Array | None = None,
    strata: _Strata | None = None,
) -> Evaluation:
    """Make the Evaluation of simulated returns (M, episodes), with their standard errors."""
    mean = float(model.weights @ returns.mean(axis=1))
    variance = float(model.weights @ ((returns - mean) ** 2).mean(axis=1))
    samples = returns if independent_returns is None else independent_returns
    strata = strata or _Strata(samples.shape)
    return make_evaluation(
        model,
        strata.estimate_means(samples),
        strata.estimate_stderrs(samples, model.weights),
        {"n_episodes": returns.shape[1], "episode_sd": math.sqrt(variance), **details},
    )


def _simulate_in_python(
    planner: Policy, model: MMDP, horizon: int, n_episodes: int, seed: int
) -> Array:
    """Simulate returns (M, episodes) of a policy of any class, decision by decision in Python."""
    problem = model.problem

    def simulate_episode(m: int, rng: np.random.Generator) -> float:
        """Simulate an episode that starts in model m; return its discounted sum of rewards."""
        memory, total, factor = planner.initial_memory(int(rng.integers(2**31))), 0.0, 1.0
        s = int(rng.choice(model.n_states, p=problem.get_initial(m)))
        for t in range(horizon):
            a = int(planner.act(memory, t, s))
            if not (0 <= a < model.n_actions and model.allowed[s, a]):
                raise InputError(
                    f"the policy takes action {a} in state {model.state_labels[s]!r} at time {t}, "
                    "which the model does not allow"
                )
            row = problem.storage.get_row(t, s * model.n_actions + a)
            probs, reward = row.p[:, m], float(problem.get_rewards(t, s, a, m))
            total += factor * reward
            if not probs.sum() > 0:  # an action missing in this model ends the episode
                return total
            next_state = int(rng.choice(row.next_states, p=probs / probs.sum()))
            memory = planner.update(memory, t, s, a, next_state, reward)
            s, m, factor = next_state, problem.sample_next_model(m, rng), factor * model.discount
        return total + factor * float(problem.terminal[s, m])

    return np.array(
        [
            [simulate_episode(m, np.random.default_rng([seed, m, e])) for e in range(n_episodes)]
            for m in range(model.n_models)
        ]
    )


def _choose_n_episodes(n_queries: int, model: MMDP, n_episodes: int | None) -> int:
    """Check the number of episodes per model, or choose it by the tree searches in an episode."""
    if n_episodes is None:
        total = MAX_TREE_QUERIES // n_queries if n_queries else DEFAULT_TOTAL_EPISODES
        return max(MIN_EPISODES, total // model.n_models)
    return check_int(n_episodes, "n_episodes", 2, 16 * model.n_models)  # 2 for a standard error


@dataclass
class _EpisodeRunner:
    """Batches of simulated episodes of one policy in every model."""

    prepared: PreparedProblem
    tables: PlannerTables
    model: MMDP
    seed: int
    n_impossible: int = 0  # steps that no model of the policy explains
    _batches: list[Array] = field(default_factory=list)

    @property
    def returns(self) -> Array:
        """Returns (M, n) of the episodes so far."""
        return np.concatenate(self._batches, axis=1)

    def average_chains(self, returns: Array) -> Array:
        """Reduce returns (M, n) to independent samples: unchanged, or means (M, 2) of chains."""
        if not self.tables.carries_belief:
            return returns
        return returns.reshape(len(returns), N_CHAINS, -1).mean(axis=2)

    @cached_property
    def strata(self) -> _Strata:
        """Strata of the independent samples, when all episodes are done."""
        M, n = self.model.n_models, self.n_done
        if self.tables.carries_belief:
            return _Strata((M, N_CHAINS))
        x, ids = self.prepared.problem, np.indices((M, n)).reshape(2, -1)
        initial_states = sample_initial_states(x, self.seed, *ids).reshape(M, n)
        return _Strata((M, n), initial_states, x.initial)

    @property
    def n_done(self) -> int:
        """Number of episodes per model so far."""
        return sum(batch.shape[1] for batch in self._batches)

    def simulate(self, n_episodes: int, check_time: Callable[[], None] | None = None) -> StopState:
        """Simulate ``n_episodes`` per model in batches; ``check_time`` may raise to end early."""
        has_chains, args = self.tables.carries_belief, (self.model.pattern_rewards, self.tables)
        sizes = [n_episodes] * N_CHAINS if has_chains else _iter_batch_sizes(n_episodes)
        with allow_stop(
            lambda: check_time is not None and self._batches, accept_interrupts=True
        ) as stop_state:
            for size in sizes:
                returns, n_unexplained = self.prepared.simulate(
                    *args, size, self.seed, first_episode=self.n_done
                )
                self._batches.append(returns)
                self.n_impossible += int(n_unexplained.sum())
                if check_time is not None and self.n_done < n_episodes:
                    check_time()
        return stop_state


def _iter_batch_sizes(n_episodes: int) -> Iterator[int]:
    """Yield batch sizes that take about ``BATCH_SECONDS`` each, at least two episodes."""
    size = 2
    while n_episodes:
        start_time = solver_clock()
        batch_size = min(size, n_episodes)
        yield batch_size
        n_episodes -= batch_size
        speedup = BATCH_SECONDS / max(solver_clock() - start_time, 1e-9)
        size = max(2, int(size * min(speedup, MAX_BATCH_GROWTH)))


def _fit_slope(x: Array, y: Array) -> float:
    """Compute the regression slope of x on y (M, n) within models; 0 if y does not vary."""
    dx, dy = (z - z.mean(axis=1, keepdims=True) for z in (x, y))
    variance = float((dy * dy).sum())
    return float((dx * dy).sum()) / variance if variance > 0 else 0.0


class _Strata:
    """Strata of the episodes of every model: groups of initial states.

    A group has successive states that ``EPISODES_PER_STRATUM`` episodes begin in on average, or is
    a single state with more. Without initial states (M, n), or if a group has fewer than two
    episodes, a model is one group.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        initial_states: IndexArray | None = None,
        initial: Array | None = None,
    ) -> None:
        ids, probs = np.zeros(shape, np.int64), [np.ones(1)] * shape[0]
        if initial_states is not None and initial is not None:
            groups = [_group_initial_states(x, EPISODES_PER_STRATUM / shape[1]) for x in initial.T]
            for m, states in enumerate(initial_states):
                last_states, group_probs = groups[m % len(groups)]  # one if models begin alike
                group_ids = np.searchsorted(last_states, states)
                if np.bincount(group_ids, minlength=len(group_probs)).min() > 1:
                    ids[m], probs[m] = group_ids, group_probs
        sizes = [len(x) for x in probs]
        self.models, self.probs = np.repeat(np.arange(shape[0]), sizes), np.concatenate(probs)
        self.ids = (ids + (np.cumsum(sizes) - sizes)[:, None]).ravel()  # of the episodes
        self.counts = np.bincount(self.ids)

    def _sum_groups(self, x: Array) -> Array:
        """Sum x (M, n) over the episodes of each group; returns (groups,)."""
        return np.asarray(np.bincount(self.ids, x.ravel()), np.float64)

    def estimate_means(self, x: Array) -> Array:
        """Estimate the mean (M,) of x (M, n) in each model, stratum by stratum."""
        group_means = self._sum_groups(x) / self.counts
        return np.asarray(np.bincount(self.models, self.probs * group_means), np.float64)

    def estimate_stderrs(self, x: Array, weights: Array) -> Array:
        """Estimate the standard errors (M,) of the means, for a 95% interval of the weighted mean.

        Its degrees of freedom are Satterthwaite's.
        """
        means, dof = self._sum_groups(x) / self.counts, np.maximum(self.counts - 1, 1)
        deviations = self._sum_groups((x.ravel() - means[self.ids]) ** 2)
        variance = self.probs**2 * deviations / dof / self.counts
        weighted_variance = weights[self.models] ** 2 * variance
        divisor = float((weighted_variance**2 / dof).sum())
        total_dof = float(weighted_variance.sum()) ** 2 / divisor if divisor else 1.0
        return np.sqrt(np.bincount(self.models, variance)) * compute_t_factor(total_dof)


def _group_initial_states(initial: Array, min_prob: float) -> tuple[IndexArray, Array]:
    """Split initial states into groups; return their last states but one and probabilities.

    A group has successive states of probability ``min_prob`` together, or a little more.
    """
    cumulative_probs = np.cumsum(initial) / initial.sum()
    last_states, covered_prob = list[int](), 0.0
    while 1 - covered_prob >= min_prob:
        state = int(np.searchsorted(cumulative_probs, covered_prob + min_prob))
        if state == len(cumulative_probs) or 1 - cumulative_probs[state] < min_prob:
            break
        covered_prob = cumulative_probs[state]
        last_states.append(state)
    edges = np.array(last_states, np.int64)
    return edges, np.diff(cumulative_probs[edges], prepend=0.0, append=1.0)
