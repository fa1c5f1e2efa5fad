"""Episodes: the return of any policy with error bars.

Models are strata, the same random numbers serve every policy, and CADP's Markov policy,
whose return is known exactly, is the control variate. Errors are such that two of them make a 95%
interval of the mean, however few episodes there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp import kernels
from mmdp.errors import InputError
from mmdp.interrupts import answer
from mmdp.kernels import Kernel
from mmdp.kernels.compiling import clock
from mmdp.kernels.planner import ACTIONS, NODES, PROBABILITIES, PlannerTables
from mmdp.methods.base import Context, Stop
from mmdp.methods.belief import EPISODES, BeliefPlanner, passes_of
from mmdp.model import MMDP
from mmdp.policy import ExactPolicy, MarkovPolicy, MemoryPolicy, Planner
from mmdp.policy.markov import check_labels
from mmdp.solution import Evaluation, widened
from mmdp.support import check_memory
from mmdp.validate import check_seed, check_whole, check_whole_model

Array = npt.NDArray[np.float64]

SEARCHES_IN_ALL = 2_000_000  # tree queries that a simulation makes by default, over all episodes
MIN_EPISODES = 4  # per model, however many queries they take
QUICK = 0.2  # seconds that a part of the episodes should take
CONTROLLED = 500  # episodes in all from which on a control is used: few may not differ from it
CHAINS = 2  # of episodes that carry a belief on
FASTER = 16  # a part has at most so many times the episodes of the one before


def simulate(
    policy: ExactPolicy | Planner,
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
    return of CADP's policy, which is known exactly, is a control variate unless there are few
    episodes. ``backend``: as for
    :func:`mmdp.solve`; ``threads`` (all by default) are numba's.

    ``check_time`` is called after every few episodes per model and may raise
    ``mmdp.methods.base.Stop`` to end early with what is done. Ctrl-C does the same then, and
    ``details`` has ``interrupted``. Episodes do not depend on how many of them are simulated at
    a time. A planner that carries its belief from one episode to the next runs them all at once,
    and twice: its episodes depend on each other, so the error is that between the two runs.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[0.5, 0.5]], [[0.5, 0.5]]]] * 2, [[1.0], [0.0]], initial=[1, 0])
    >>> report = mmdp.simulate(mmdp.MarkovPolicy([[0, 0]] * 3), two, episodes=400, seed=1)
    >>> abs(report.mean - 2.0) < 4 * report.stderr
    True
    """
    check_whole_model(model.problem, "a simulation")
    if isinstance(policy, Planner) and not isinstance(policy, (BeliefPlanner, MemoryPolicy)):
        return _simulate_plainly(policy, model, episodes, seed)
    made, horizon = _tables_of(policy, model)
    count = _episodes_of(policy, model, episodes)
    number = _seed_of(seed)
    if threads is not None:
        check_whole(threads, "threads")
    passes = math.inf if made.queries else passes_of(made.problem, count, carry=made.carry)
    drifting = made.problem if made.problem.drift is not None else model.problem
    kernel = kernels.get(backend, drifting, horizon, passes=passes, threads=threads)
    run = _Episodes(kernel, made, model, horizon, number)
    stopped = run.simulate(count, check_time)
    returns, wanted, count = run.returns, count, run.done
    details: dict[str, Any] = {
        "episodes": count,
        "episodes_wanted": wanted,
        "impossible": int(run.impossible.sum()),
        "episode_sd": _overall_sd(returns, model.weights),
    }
    if isinstance(stopped, KeyboardInterrupt):
        details["interrupted"] = True
    apart = run.apart(returns)
    if isinstance(policy, BeliefPlanner) and control:
        paired, exact = _baseline(run, policy.baseline)
        difference = run.apart(returns - paired)
        details["difference"] = float(model.weights @ difference.mean(axis=1))
        between = _errors(difference, model.weights)
        details["difference_stderr"] = float(np.linalg.norm(model.weights * between))
        if returns.size >= CONTROLLED:
            slope = details["control_slope"] = _slope(returns, paired)
            apart = run.apart(returns - slope * (paired - exact[:, None]))
    return Evaluation(
        returns=apart.mean(axis=1),
        weights=model.weights,
        errors=_errors(apart, model.weights),
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
        errors=_errors(returns, model.weights),
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
        if x.drift is not None:
            m = int(rng.choice(model.n_models, p=x.drift[m] / x.drift[m].sum()))
    return total + factor * float(x.terminal[s, m])


def _tables_of(policy: ExactPolicy | Planner, model: MMDP) -> tuple[PlannerTables, int]:
    if isinstance(policy, MarkovPolicy):
        policy.check(model)
        table = policy.table_for(model)
        if policy.deterministic:
            made = PlannerTables(ACTIONS, model.problem, actions=table)
        else:
            made = PlannerTables(PROBABILITIES, model.problem, probabilities=table)
        return made, policy.horizon
    if isinstance(policy, MemoryPolicy):
        policy.check(model)
        return PlannerTables(NODES, model.problem, controller=policy.controller), policy.horizon
    if not isinstance(policy, BeliefPlanner):
        raise InputError(
            f"simulate() takes a MarkovPolicy or a planner from solve(), not "
            f"{type(policy).__name__}; a stationary policy has over(T), the same over T decisions"
        )
    own = policy.model
    if (own.n_states, own.n_actions) != (model.n_states, model.n_actions):
        raise InputError(
            f"the planner is for {own.n_states} states and {own.n_actions} actions, the model "
            f"has {model.n_states} states and {model.n_actions} actions"
        )
    names = (own.state_labels if own.labelled["state"] else None,
             own.action_labels if own.labelled["action"] else None)  # fmt: skip
    check_labels(*names, model, "the planner", "plan for models with these names")
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


class _Episodes:
    """Episodes of one planner in every model, simulated part by part."""

    def __init__(
        self, kernel: Kernel, made: PlannerTables, model: MMDP, horizon: int, seed: int
    ) -> None:
        self.kernel, self.made, self.model = kernel, made, model
        self.horizon, self.seed = horizon, seed
        self.impossible = np.zeros(model.n_models, dtype=np.int64)
        self._parts: list[Array] = []

    @property
    def returns(self) -> Array:
        """(M, episodes so far)."""
        return np.concatenate(self._parts, axis=1)

    def apart(self, returns: Array) -> Array:
        """(M, n) what is independent: each return, or the means of chains of carried episodes."""
        if not self.made.carry:
            return returns
        return returns.reshape(len(returns), CHAINS, -1).mean(axis=2)

    @property
    def done(self) -> int:
        return sum(part.shape[1] for part in self._parts)

    def simulate(
        self, count: int, check_time: Callable[[], None] | None = None
    ) -> BaseException | None:
        """So many episodes; with ``check_time``, what ended them early if anything did."""
        x = self.model
        try:
            for size in [count] * CHAINS if self.made.carry else _sizes(count):
                returns, unexplained = self.kernel.simulate(
                    x.problem, x.pattern_rewards, self.made, self.horizon, size, self.seed,
                    first=self.done,
                )  # fmt: skip
                self._parts.append(returns)
                self.impossible += unexplained
                if check_time is not None and self.done < count:
                    check_time()
        except (Stop, KeyboardInterrupt) as stop:
            if check_time is None or not self._parts:
                raise
            answer(stop)
            return stop
        return None


def _sizes(count: int) -> Iterator[int]:
    """All episodes in parts of about ``QUICK`` seconds each, two episodes if they are slow."""
    size = 2
    while count:
        started = clock()
        part = min(size, count)
        yield part
        count -= part
        quicker = QUICK / max(clock() - started, 1e-9)
        size = max(2, int(size * min(quicker, FASTER)))


def _baseline(run: _Episodes, baseline: MarkovPolicy) -> tuple[Array, Array]:
    """((M, episodes) simulated, (M,) exact) returns of the control variate."""
    made, horizon = _tables_of(baseline, run.model)
    same = _Episodes(run.kernel, made, run.model, horizon, run.seed)
    same.simulate(run.done)
    context = Context(run.model, horizon, run.kernel, method="evaluate")
    return same.returns, context.returns(baseline.table_for(run.model))


def _slope(x: Array, y: Array) -> float:
    """Regression slope of x on y within models; 0 if y does not vary."""
    dx, dy = (z - z.mean(axis=1, keepdims=True) for z in (x, y))
    variance = float((dy * dy).sum())
    return float((dx * dy).sum()) / variance if variance > 0 else 0.0


def _errors(x: Array, weights: Array) -> Array:
    """(M,) standard errors of the means of x (M, n), for a 95% interval of the weighted mean.

    Its degrees of freedom are Satterthwaite's: (sum_m u_m)^2 / sum_m u_m^2 / (n - 1) with
    u_m = weight_m^2 s_m^2.
    """
    errors = x.std(axis=1, ddof=1) / np.sqrt(x.shape[1])
    total = float(np.linalg.norm(weights * errors))
    shares = (weights * errors / total) ** 2 if total > 0 else np.ones(1)
    return errors * widened((x.shape[1] - 1) / float(shares @ shares))


def _overall_sd(returns: Array, weights: Array) -> float:
    mean = float(weights @ returns.mean(axis=1))
    return float(np.sqrt(weights @ ((returns - mean) ** 2).mean(axis=1)))
