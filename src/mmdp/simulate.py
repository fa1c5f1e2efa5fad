"""Episodes: the return of any policy with error bars.

Models and their first states are strata, the same random numbers serve every policy, and CADP's
Markov policy, whose return is known exactly, is the control variate. Errors are such that two of
them make a 95% interval of the mean, however few episodes there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp import kernels
from mmdp.arguments import Read, Seed, checked
from mmdp.clock import Ending, clock, ending
from mmdp.errors import InputError
from mmdp.kernels import Kernel, Plan
from mmdp.kernels.endless import check_endless, decisions
from mmdp.kernels.numpy.episodes import first_states
from mmdp.kernels.planner import PlannerTables
from mmdp.kernels.rewards import sizes
from mmdp.methods.belief import EPISODES, passes_of
from mmdp.model import MMDP
from mmdp.policy import Planner, Policy, followed
from mmdp.solution import Evaluation, Solution, widened
from mmdp.support import check_memory
from mmdp.validate import check_seed, check_whole, check_whole_model

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SEARCHES_IN_ALL = 2_000_000  # tree queries that a simulation makes by default, over all episodes
MIN_EPISODES = 4  # least number per model, however many queries they take
LEFT_OUT = 1e-6  # weight of the decisions of an infinite horizon that are not simulated
QUICK = 0.2  # seconds that a part of the episodes should take
CONTROLLED = 500  # episodes in all before a control is used: a few may not differ from it
CHAINS = 2  # runs of episodes that carry a belief on
EXPECTED = 4  # episodes that begin in a stratum, on average
FASTER = 16  # a part has at most this many times the episodes of the one before


@checked
def simulate(
    policy: Read[Planner | Solution],
    model: MMDP,
    *,
    episodes: int | None = None,
    seed: Seed = 0,
    control: bool = True,
    threads: int | None = None,
    backend: str | Kernel = "auto",
    check_time: Callable[[], None] | None = None,
    off_grid: bool = False,
) -> Evaluation:
    """Simulate ``episodes`` per model; returns with standard errors.

    For a planner, ``details`` holds the paired ``difference`` to CADP (with the same random
    numbers) and its ``difference_stderr``, ``impossible`` (the transitions that no model of
    the planner explains) and ``episode_sd`` (over models and episodes). With ``control`` the
    return of CADP's policy, which is known exactly, is a control variate unless there are few
    episodes. ``backend``: as for
    :func:`mmdp.solve`; ``threads`` (all by default) are numba's.

    Over an infinite horizon, decisions are simulated until the rest weighs at most a millionth.
    ``details`` then has their number, ``horizon``, and ``left_out``, the most that the others can
    add to a return or take from it.

    ``check_time`` is called after every few episodes per model and may raise
    ``mmdp.clock.Stop`` to end early with what is done. Ctrl-C does the same then, and
    ``details`` has ``interrupted``. Episodes do not depend on how many of them are simulated at
    a time. A planner that carries its belief from one episode to the next runs them all at once,
    and twice: its episodes depend on each other, so the error is that between the two runs.

    ``off_grid`` plays the function of a model from :func:`mmdp.from_step` as it is, without
    rounding states to its grid: the policy decides by the nearest point, and the result is what it
    is worth outside the model. It takes policies of time and state.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[0.5, 0.5]], [[0.5, 0.5]]]] * 2, [[1.0], [0.0]], initial=[1, 0])
    >>> report = mmdp.simulate(mmdp.MarkovPolicy([[0, 0]] * 3), two, episodes=400, seed=1)
    >>> abs(report.mean - 2.0) < 4 * report.stderr
    True
    """
    check_whole_model(model.problem, "a simulation")
    known = followed(policy, "simulate() takes a policy or a planner from solve()")
    known.check(model)
    horizon, cut = _simulated(known.horizon, model)
    if off_grid:
        return _off_grid(known, model, horizon, episodes, seed, cut)
    made = known.tables_for(model, horizon)
    if made is None:
        return _simulate_plainly(known, model, horizon, episodes, seed, cut)
    count, number = _episodes_of(made, model, horizon, episodes), _seed_of(seed)
    if threads is not None:
        check_whole(threads, "threads")
    passes = math.inf if made.queries else passes_of(made.problem, count, carry=made.carry)
    kernel = kernels.get(backend, model.problem, horizon, passes=passes, threads=threads)
    plan = kernel.plan(model.problem, horizon)
    if cut:  # what comes at the end of a finite horizon plays no part
        plan = plan.but(terminal=np.zeros_like(model.problem.terminal))
    run = _Episodes(plan, made, model, number)
    end = run.simulate(count, check_time)
    returns = apart = run.returns
    details: dict[str, Any] = {
        "episodes_wanted": count, "impossible": int(run.impossible.sum()), **cut,
    }  # fmt: skip
    if end.interrupted:
        details["interrupted"] = True
    if known.baseline is not None and control:
        paired = _paired(run, known.baseline)
        difference = run.apart(returns - paired)
        details["difference"] = float(model.weights @ run.strata.means(difference))
        between = run.strata.errors(difference, model.weights)
        details["difference_stderr"] = float(np.linalg.norm(model.weights * between))
        if returns.size >= CONTROLLED:
            slope = details["control_slope"] = _slope(returns, paired)
            exact = known.baseline.returns(model, kernel)  # for ever: it differs by ``left_out``
            apart = returns - slope * (paired - exact[:, None])
    return _evaluation(returns, model, details, run.apart(apart), run.strata)


def _simulated(horizon: float, model: MMDP) -> tuple[int, dict[str, Any]]:
    """How many decisions are simulated, and what is left out after them if any is."""
    if horizon < math.inf:
        return int(horizon), {}
    check_endless(model.problem, model.horizon, model.state_labels)
    steps, left = decisions(model.problem, LEFT_OUT)
    return steps, {"horizon": steps, "left_out": left * float(sizes(model.problem.r).max())}


def _evaluation(
    returns: Array, model: MMDP, details: Mapping[str, Any], apart: Array | None = None,
    strata: _Strata | None = None,
) -> Evaluation:  # fmt: skip
    """Means and errors of the returns (M, episodes), or of independent ones in place of them."""
    known = {"episodes": returns.shape[1], "episode_sd": _overall_sd(returns, model.weights)}
    independent = returns if apart is None else apart
    strata = strata or _Strata(independent.shape)
    return Evaluation(
        returns=strata.means(independent),
        weights=model.weights,
        errors=strata.errors(independent, model.weights),
        model_labels=model.model_labels if model.labelled["model"] else None,
        details={**known, **details},
    )


def _simulate_plainly(
    planner: Policy, model: MMDP, horizon: int, episodes: int | None, seed: int | None,
    cut: dict[str, Any],
) -> Evaluation:  # fmt: skip
    """Any policy, step by step in Python."""
    count = _episodes_of(None, model, horizon, episodes or max(2, 200 // model.n_models))
    number, end = _seed_of(seed), model.problem.terminal * (not cut)
    returns = np.array(
        [[_one_episode(planner, model, horizon, end, m, number, e) for e in range(count)]
         for m in range(model.n_models)]
    )  # fmt: skip
    return _evaluation(returns, model, cut)


def _off_grid(
    policy: Policy, model: MMDP, horizon: int, episodes: int | None, seed: int | None,
    cut: dict[str, Any],
) -> Evaluation:  # fmt: skip
    """Episodes of the function that the model was built from."""
    if model.function is None:
        raise InputError(
            "off_grid plays a function, and this model has none (files do not keep it)",
            ["build the model with mmdp.from_step in this session"],
        )
    if reason := model.problem.not_still("off_grid plays models that stay as they are"):
        raise InputError(reason)
    count = _episodes_of(None, model, horizon, episodes)
    returns = model.function.play(model, policy.over(horizon).table, count, _seed_of(seed), not cut)
    return _evaluation(returns, model, {"off_grid": True, **cut})


def _one_episode(
    planner: Policy, model: MMDP, horizon: int, terminal: Array, m: int, seed: int, episode: int
) -> float:
    rng = np.random.default_rng([seed, m, episode])
    x, total, factor = model.problem, 0.0, 1.0
    memory = planner.start(int(rng.integers(2**31)))
    s = int(rng.choice(model.n_states, p=x.begins(m)))
    for t in range(horizon):
        a = int(planner.act(memory, t, s))
        if not (0 <= a < model.n_actions and model.allowed[s, a]):
            raise InputError(
                f"the planner takes action {a} in state {model.state_labels[s]!r} at time {t}, "
                "which the model does not allow"
            )
        row = x.storage.row(t, s * model.n_actions + a)
        chances = row.p[:, m]
        reward = float(x.paid(t, s, a, m))
        total += factor * reward
        if not chances.sum() > 0:  # an action missing in this model ends the episode
            return total
        after = int(rng.choice(row.after, p=chances / chances.sum()))
        memory = planner.update(memory, t, s, a, after, reward)
        s, m, factor = after, x.next_model(m, rng), factor * model.discount
    return total + factor * float(terminal[s, m])


def _episodes_of(
    made: PlannerTables | None, model: MMDP, horizon: int, episodes: int | None
) -> int:
    if episodes is None:
        searches = 0 if made is None else made.queries * horizon
        total = SEARCHES_IN_ALL // searches if searches else EPISODES
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

    def __init__(self, plan: Plan, made: PlannerTables, model: MMDP, seed: int) -> None:
        self.plan, self.made, self.model, self.seed = plan, made, model, seed
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

    @cached_property
    def strata(self) -> _Strata:
        """The strata of what is independent, when all episodes are done."""
        M, n = self.model.n_models, self.done
        if self.made.carry:
            return _Strata((M, CHAINS))
        models, episodes = np.indices((M, n)).reshape(2, -1)
        first = first_states(self.plan.problem, self.seed, models, episodes)
        return _Strata((M, n), first.reshape(M, n), self.plan.problem.initial)

    @property
    def done(self) -> int:
        return sum(part.shape[1] for part in self._parts)

    def simulate(self, count: int, check_time: Callable[[], None] | None = None) -> Ending:
        """``count`` episodes; with ``check_time`` they may end early."""
        with ending(lambda: check_time is not None and self._parts, answered=True) as end:
            for size in [count] * CHAINS if self.made.carry else _sizes(count):
                returns, unexplained = self.plan.simulate(
                    self.model.pattern_rewards, self.made, size, self.seed, first=self.done
                )
                self._parts.append(returns)
                self.impossible += unexplained
                if check_time is not None and self.done < count:
                    check_time()
        return end


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


def _paired(run: _Episodes, baseline: Policy) -> Array:
    """(M, episodes) simulated returns of the control variate."""
    baseline.check(run.model)
    made = baseline.tables_for(run.model, run.plan.horizon)
    assert made is not None
    same = _Episodes(run.plan, made, run.model, run.seed)
    same.simulate(run.done)
    return same.returns


def _slope(x: Array, y: Array) -> float:
    """Regression slope of x on y within models; 0 if y does not vary."""
    dx, dy = (z - z.mean(axis=1, keepdims=True) for z in (x, y))
    variance = float((dy * dy).sum())
    return float((dx * dy).sum()) / variance if variance > 0 else 0.0


class _Strata:
    """Groups of first states in every model, as episodes are spread over them.

    A group has successive states that ``EXPECTED`` episodes begin in on average, or is a single
    state with more. Without first states, or if a group has fewer than two episodes, a model is one
    group.
    """

    def __init__(
        self, shape: tuple[int, int], first: Ints | tuple[()] = (), initial: Array | None = None
    ) -> None:
        self.group, shares = np.zeros(shape, np.int64), [np.ones(1)] * shape[0]
        made = [] if initial is None else [_groups(x, EXPECTED / shape[1]) for x in initial.T]
        for m, states in enumerate(first):
            last, share = made[m % len(made)]  # one for all models if they begin alike
            group = np.searchsorted(last, states)
            if np.bincount(group, minlength=len(share)).min() > 1:
                self.group[m], shares[m] = group, share
        size = max(map(len, shares))
        self.shares = np.array([np.pad(share, (0, size - len(share))) for share in shares])
        self.counts = np.maximum(self._sums(np.ones(shape)), 1)

    def _sums(self, x: Array) -> Array:
        """(M, groups) the sum of x (M, n) over each group."""
        rows = np.arange(len(x))[:, None] * self.shares.shape[1]
        sums = np.bincount((rows + self.group).ravel(), x.ravel(), self.shares.size)
        return np.asarray(sums, np.float64).reshape(self.shares.shape)

    def means(self, x: Array) -> Array:
        """(M,) estimates of the mean of x (M, n) in each model."""
        return np.asarray((self.shares * self._sums(x) / self.counts).sum(axis=1))

    def errors(self, x: Array, weights: Array) -> Array:
        """(M,) their standard errors, for a 95% interval of the weighted mean.

        Its degrees of freedom are Satterthwaite's.
        """
        means = self._sums(x) / self.counts
        spread = self._sums((x - np.take_along_axis(means, self.group, 1)) ** 2)
        free = np.maximum(self.counts - 1, 1)
        variance = self.shares**2 * spread / free / self.counts
        total = weights[:, None] ** 2 * variance
        known = float((total**2 / free).sum())
        return np.sqrt(variance.sum(axis=1)) * widened(total.sum() ** 2 / known if known else 1.0)


def _groups(initial: Array, least: float) -> tuple[Ints, Array]:
    """The last state of every group but the last, and the probabilities of all groups.

    A group has successive states of probability ``least`` together, or a little more.
    """
    total = np.cumsum(initial) / initial.sum()
    last: list[int] = []
    done = 0.0
    while (state := int(np.searchsorted(total, done + least))) < len(total):
        done = total[state]
        if 1 - done < least:
            break
        last.append(state)
    edges = np.array(last, np.int64)
    return edges, np.diff(total[edges], prepend=0.0, append=1.0)


def _overall_sd(returns: Array, weights: Array) -> float:
    mean = float(weights @ returns.mean(axis=1))
    return float(np.sqrt(weights @ ((returns - mean) ** 2).mean(axis=1)))
