"""Risk and robustness: how policies do in the worst models, and how they depend on the sample.

The risk frontier has policies from the best mean return to the best return in the worst models.
Stability is that of decisions over resamples of the models; the curve by sample size compares
values on the models of a policy and on others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from mmdp.core import kernels
from mmdp.core.arguments import PositiveInt, Seconds, Seed, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.kernels import Backend
from mmdp.core.methods import CADP, Method, SolveContext
from mmdp.core.methods.registry import check_supported, require_markov_method
from mmdp.core.model import MMDP
from mmdp.core.objectives import CVaR, Mean, Objective
from mmdp.core.policies import MarkovPolicy, require_markov
from mmdp.core.shapes import Array, IndexArray, IntArray, Mask
from mmdp.core.solution import Evaluation, Solution, Status
from mmdp.core.solve import as_method, evaluate, solve
from mmdp.core.timing import Callback, Progress, allow_stop, propagate_interrupts, show_progress
from mmdp.core.validate import check_int, check_problem_size
from mmdp.insight.measures.decisions import tabulate_decisions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEFAULT_ALPHAS = (0.5, 0.2, 0.1, 0.05, 0.01)


@dataclass(frozen=True, eq=False, repr=False)
class RiskFrontier:
    """Solutions for the mean and for CVaR at several levels, compared by mean and tail.

    ``solutions`` has one per objective, the mean first. All are compared by the mean over the worst
    share ``tail`` of the models. ``test_evaluations`` are their evaluations on test models, if
    there are any.
    """

    solutions: tuple[Solution, ...]
    tail: float
    test_evaluations: tuple[Evaluation, ...] = ()

    @property
    def means(self) -> Array:
        """Mean return (n,) of each policy."""
        return np.array([solution.evaluation.mean for solution in self.solutions])

    @property
    def cvars(self) -> Array:
        """CVaR (n,) of each policy at ``tail``."""
        return np.array([solution.evaluation.cvar(self.tail) for solution in self.solutions])

    def to_frame(self) -> pd.DataFrame:
        """Tabulate value, bound, gap, mean, tail and worst return of each objective's policy.

        ``mean_loss`` is the loss of mean return against the policy that is best on average,
        ``tail_gain`` the gain in the tail. ``is_efficient``: no other policy of the table is as
        good both on average and in the tail, and better in one.
        """
        means, cvars = self.means, self.cvars
        columns = {
            "objective": [solution.objective.name for solution in self.solutions],
            **{x: [getattr(y, x) for y in self.solutions] for x in ("value", "bound", "gap")},
            "mean": means,
            "tail": cvars,
            "worst": [solution.evaluation.worst for solution in self.solutions],
            "mean_loss": means[0] - means,
            "tail_gain": cvars - cvars[0],
            "is_efficient": _find_efficient(means, cvars),
        }
        if self.test_evaluations:
            columns["test_mean"] = [test.mean for test in self.test_evaluations]
            columns["test_tail"] = [test.cvar(self.tail) for test in self.test_evaluations]
        return pd.DataFrame(columns)

    @check_arguments
    def plot(self, axis: Axes | None = None) -> Axes:
        """Plot mean against tail, one point per policy (see :func:`mmdp.plots.risk_frontier`)."""
        from mmdp.insight import plots

        return plots.risk_frontier(self.to_frame(), axis, tail=self.tail)

    def __repr__(self) -> str:
        table = self.to_frame()[["objective", "value", "mean", "tail", "worst"]]
        title = f"Risk frontier, tail: CVaR {100 * self.tail:g}%"
        return f"{title}\n{table.to_string(index=False, float_format='{:,.6g}'.format)}"


@check_arguments
def risk_frontier(
    model: MMDP,
    horizon: float | None = None,
    alphas: float | Sequence[float] = DEFAULT_ALPHAS,
    *,
    tail: float = 0.1,
    test_model: MMDP | None = None,
    certify_time: Seconds | None = None,
    method: CADP | None = None,
    backend: str | Backend = "auto",
    seed: Seed = 0,
    callback: Callback | None = None,
) -> RiskFrontier:
    """Solve for the mean and for CVaR at several levels, to show the cost of safety.

    Parameters
    ----------
    model, horizon
        The problem, as for :func:`mmdp.solve`.
    alphas
        Weights of the tails, or a single one: a policy for :class:`mmdp.objectives.CVaR` with each
        of them, after that for the mean.
    tail
        Share of worst models over whose mean all policies are compared.
    test_model
        Test models to evaluate the policies on.
    certify_time
        Seconds to spend on a proof of how good each policy is. See :func:`mmdp.solve`; None: none.
    method
        :class:`mmdp.methods.CADP` with options.
    backend, seed
        As for :func:`mmdp.solve`.
    callback
        Called with a :class:`mmdp.solution.Progress` after each objective: its name is the stage.

    If the policy for one objective is better for another objective than the one found, that is
    solved again from it. Ctrl-C returns the solutions so far.

    >>> import mmdp
    >>> train, _ = mmdp.domains.riverswim(seed=0)
    >>> frontier = mmdp.measures.risk_frontier(train, 10, [0.2])
    >>> frontier.to_frame()[["mean_loss", "tail_gain"]].round(2).iloc[1].tolist()
    [3.36, 1.37]
    """
    CVaR(tail)  # a tail that is no share is refused before anything is solved
    objectives: list[Objective] = [
        Mean(),
        *(CVaR(a) for a in sorted({*np.ravel(alphas).tolist()}, reverse=True)),
    ]
    if len(objectives) == 1:
        raise InputError("alphas is empty; give at least one share of the models, such as 0.1")
    base_method, solutions = method or CADP(), list[Solution]()
    options: dict[str, Any] = {"backend": backend, "seed": seed}
    for objective in objectives:
        with allow_stop(lambda: solutions, accept_interrupts=True) as stop_state:
            solution = solve(model, horizon, base_method, objective=objective, **options)
        if stop_state.exception is not None:  # before the next one had a policy
            break
        solutions.append(solution)
        if solution.status is Status.INTERRUPTED:
            break
    report = show_progress(callback)
    refined, is_stopped = list[Solution](), len(solutions) < len(objectives)
    is_stopped = is_stopped or solutions[-1].status is Status.INTERRUPTED
    for current in solutions:
        best = max(solutions, key=lambda x: x.evaluation.value(current.objective))
        if not is_stopped and (best is not current or certify_time is not None):
            solution = solve(
                model,
                horizon,
                replace(base_method, init=best.policy),
                objective=current.objective,
                certify_time=certify_time,
                **options,
            )
            is_stopped = solution.status is Status.INTERRUPTED
            if solution.certificate is not None or solution.value >= current.value:
                current = solution
        refined.append(current)
        name, value = current.objective.name, current.value
        bound = math.nan if current.bound is None else current.bound
        report(Progress(name, len(refined), value, value, bound, elapsed=current.seconds))
    tests = (
        [] if test_model is None else [evaluate(test_model, x, backend=backend) for x in refined]
    )
    return RiskFrontier(tuple(refined), tail, tuple(tests))


def _find_efficient(means: Array, cvars: Array) -> list[bool]:
    """Find the points (mean, CVaR) that no other point dominates."""
    lead = np.array([means[:, None] - means, cvars[:, None] - cvars])
    is_dominating = (lead >= 0).all(axis=0) & (lead > 0).any(axis=0)
    is_dominated: Mask = np.any(is_dominating, axis=0)
    return (~is_dominated).tolist()


# ---------------------------------------------------------------------- robustness
@dataclass(frozen=True, eq=False, repr=False)
class Stability:
    """Changes of the policy over bootstrap resamples of the models.

    ``share_changed``: the share of decisions that change in a resample, weighted by the probability
    of meeting them; ``shares_changed`` (R,) that share in each resample; ``change_frequency``
    (T, S) how often the decision there changes; ``visit_probs`` (T, S) the probability of meeting
    it; ``losses`` (R,) the loss of the resample's policy on the full set of models (below 0: it is
    better, as the method found a local optimum).
    """

    share_changed: float
    shares_changed: Array
    change_frequency: Array
    visit_probs: Array
    losses: Array
    policy: MarkovPolicy

    @check_arguments
    def to_frame(self, model: MMDP) -> pd.DataFrame:
        """Tabulate each time and state: ``action``, ``visit_prob``, ``change_frequency``."""
        columns = {
            "action": np.array(model.action_labels, dtype=object)[self.policy.actions],
            "visit_prob": self.visit_probs,
            "change_frequency": self.change_frequency,
        }
        return tabulate_decisions(model, columns)

    def __repr__(self) -> str:
        return (
            f"Stability({self.share_changed:.1%} of decisions change in a resample of the models, "
            f"{self.shares_changed.max():.1%} at most; mean loss {self.losses.mean():.4g})"
        )


@check_arguments
@propagate_interrupts()
def stability(
    model: MMDP,
    horizon: int | None = None,
    *,
    n_resamples: int = 20,
    seed: Seed = 0,
    method: str | Method = "cadp",
) -> Stability:
    """Solve again on bootstrap resamples of the models and count the decisions that change.

    Each resample draws M models with replacement by their weights. CADP then starts from two
    policies: WSU's for the models drawn, and the full problem's. A decision at (t, s) is
    weighted by the probability that the full problem's policy meets it; all times count alike.
    States in which no action changes anything (:attr:`mmdp.MMDP.has_choice`) do not count.

    >>> import mmdp, mmdp.measures
    >>> sure = mmdp.MMDP([[[[1.0], [1.0]]]] * 4, [[2.0, 3.0]])
    >>> mmdp.measures.stability(sure, 3, n_resamples=5)
    Stability(0.0% of decisions change in a resample of the models, 0.0% at most; mean loss 0)
    """
    check_int(n_resamples, "n_resamples", item_bytes=16)
    solution = solve(model, horizon, method, seed=seed)
    return stability_from_solution(solution, model, n_resamples, seed, method)


def stability_from_solution(
    solution: Solution, model: MMDP, n_resamples: int, seed: int | None, method: str | Method
) -> Stability:
    """Compute :func:`stability` from the method's solution for all models."""
    policy = require_markov(solution, "stability needs")
    solver = ReweightedSolver(model, solution.provenance.horizon, method, seed, 2 * n_resamples)
    visit_probs = model.mask_visits(solver.context.prepared.forward(policy.actions).sum(axis=2))
    rng, change_frequency = np.random.default_rng(seed), np.zeros(visit_probs.shape)
    shares_changed, losses = np.empty(n_resamples), np.empty(n_resamples)
    for i in range(n_resamples):
        weights = rng.multinomial(model.n_models, model.weights) / model.n_models
        resampled = solver.solve_reweighted(weights, policy.actions)
        is_different = resampled.actions != policy.actions
        change_frequency += is_different
        shares_changed[i] = visit_probs[is_different].sum() / visit_probs.sum()
        losses[i] = solution.value - resampled.returns @ model.weights
    change_frequency /= n_resamples
    share = float(shares_changed.mean())
    return Stability(share, shares_changed, change_frequency, visit_probs, losses, policy)


def with_single_init(method: str | Method) -> Method:
    """Set n_init=1 in a CADP whose n_init is "auto"; other methods are returned unchanged.

    Then all resamples are searched equally long.
    """
    resolved = as_method(method)
    if isinstance(resolved, CADP) and resolved.n_init == "auto":
        return replace(resolved, n_init=1)
    return resolved


class ReweightedPolicy(NamedTuple):
    """A policy (T, S) for some weights of the models, and its returns (M,)."""

    actions: IntArray
    returns: Array


class ReweightedSolver:
    """Solver of one problem ``n_solves`` times with other weights; it is prepared once."""

    def __init__(
        self,
        model: MMDP,
        horizon: float | None,
        method: str | Method,
        seed: int | None,
        n_solves: int,
    ) -> None:
        self.method = with_single_init(method)
        require_markov_method(type(self.method), "resampling the models needs")
        spec, problem = check_supported(self.method, model, horizon, Mean()), model.problem
        n_steps = spec.planning_horizon
        check_problem_size(problem, n_steps, self.method.estimate_bytes(spec))
        passes = n_solves * self.method.estimate_passes(problem, n_steps)
        backend = kernels.get_backend("auto", problem, n_steps, n_passes=passes)
        self.context = SolveContext(
            model, n_steps, backend, policy_class=spec.policy_class, seed=seed
        )

    def solve_reweighted(
        self, weights: Array, incumbent: IntArray | None = None
    ) -> ReweightedPolicy:
        """Solve the problem with these weights (M,) of the models.

        With an ``incumbent`` (T, S), CADP starts from that too and keeps the better result, and in
        states that the policy never visits the incumbent's action is taken.
        """
        subcontext = self.context.subcontext(weights=weights)
        result = self._run_method(self.method, subcontext)
        if incumbent is None:
            return result
        if isinstance(self.method, CADP):
            init = MarkovPolicy.for_model(subcontext.model, incumbent)
            restarted = self._run_method(replace(self.method, init=init), subcontext.subcontext())
            gain = (restarted.returns - result.returns) @ weights
            if gain >= -1e-12 * subcontext.return_span:
                result = restarted
        is_visited = subcontext.prepared.forward(result.actions).sum(axis=2) > 0
        return result._replace(actions=np.where(is_visited, result.actions, incumbent))

    def _run_method(self, method: Method, context: SolveContext) -> ReweightedPolicy:
        """Run the method and evaluate its policy in all models."""
        result = method.run(context)
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        return ReweightedPolicy(result.policy, context.compute_returns(result.policy))


@check_arguments
@propagate_interrupts()
def sample_size_curve(
    model: MMDP,
    horizon: int | None = None,
    sizes: Sequence[int] | None = None,
    *,
    test_model: MMDP | None = None,
    n_repeats: PositiveInt = 5,
    seed: Seed = 0,
    method: str | Method = "cadp",
) -> pd.DataFrame:
    """Tabulate train and test values by the number of models that the policy is computed from.

    For each size, ``n_repeats`` subsets of the models are drawn and solved, by CADP with
    ``n_init=1`` unless ``method`` says otherwise. Columns: ``models``,
    ``train`` (mean value on the models solved), ``test`` (mean value on test models), ``gap``
    (train - test: how much the policy fits its own models), ``gap_sd`` over repeats,
    ``best_test``, the highest test value of a repeat, and ``test_sd`` over repeats. When
    ``test`` no longer grows with ``models``, there are enough.

    A subset may happen to hold good models. The policy of all models is the control variate:
    ``train`` is the value on the subset, plus what that policy gets on all models, minus what
    it gets on the subset.

    Without ``test_model``, half of the models are held out for testing. ``sizes`` are by default
    1, 2, 5, 10, 20, 50 ... up to all of them.

    >>> import mmdp, mmdp.measures
    >>> train, test = mmdp.domains.riverswim(seed=0)
    >>> table = mmdp.measures.sample_size_curve(train, 10, [2, 50], test_model=test, n_repeats=2)
    >>> bool(table["gap"].iloc[0] > table["gap"].iloc[1])
    True
    """
    rng = np.random.default_rng(seed)
    train_ids: IndexArray = np.arange(model.n_models)
    if test_model is None:
        if model.n_models < 2:
            raise InputError(
                "a single model cannot be split into train and test models; give test_model="
            )
        halves = np.split(rng.permutation(train_ids), [len(train_ids) // 2])
        test_ids, train_ids = map(np.sort, halves)
        test_weights = _subset_weights(model.weights, test_ids)
    counts = _choose_sizes(sizes, len(train_ids))
    solver = ReweightedSolver(model, horizon, method, seed, n_repeats * len(counts))
    train_weights = _subset_weights(model.weights, train_ids)
    full_policy = solver.solve_reweighted(train_weights)
    test_context = None
    if test_model is not None:
        MarkovPolicy.for_model(model, full_policy.actions).check(test_model)
        horizon, backend = solver.context.horizon, solver.context.backend
        policy_class = solver.context.policy_class
        test_context = SolveContext(test_model, horizon, backend, policy_class=policy_class)

    def test_value(reweighted: ReweightedPolicy) -> float:
        if test_context is None:
            return float(reweighted.returns @ test_weights)
        return test_context.compute_mean(test_context.compute_returns(reweighted.actions))

    full_value = float(full_policy.returns @ train_weights)
    rows = []
    for size in counts:
        if size == len(train_ids):  # there is one subset of all models only
            rows.append((size, full_value, test_value(full_policy)))
            continue
        for _ in range(n_repeats):
            subset = rng.choice(train_ids, size, replace=False)
            weights = _subset_weights(model.weights, subset)
            reweighted = solver.solve_reweighted(weights)
            gain = float((reweighted.returns - full_policy.returns) @ weights)
            rows.append((size, full_value + gain, test_value(reweighted)))
    frame = pd.DataFrame(rows, columns=["models", "train", "test"])
    frame["gap"] = frame["train"] - frame["test"]
    groups = frame.groupby("models", sort=False)
    table, sd = groups.mean(), groups.std().fillna(0.0)  # of one value: none
    table["gap_sd"], table["best_test"], table["test_sd"] = (
        sd["gap"],
        groups["test"].max(),
        sd["test"],
    )
    return table.reset_index()


def list_round_sizes(smallest: int, largest: int) -> list[int]:
    """List 1, 2, 5, 10, 20 and so on from the smallest size on, and the largest."""
    candidates = [a * 10**b for b in range(7) for a in (1, 2, 5)]
    return [*(x for x in candidates if smallest <= x < largest), largest]


def _subset_weights(weights: Array, ids: IndexArray) -> Array:
    """Normalize the weights (M,) of the chosen models to sum to 1; 0 for the others."""
    result = np.zeros_like(weights)
    result[ids] = weights[ids] / weights[ids].sum()
    return result


def _choose_sizes(sizes: Sequence[int] | None, n_available: int) -> list[int]:
    """Check the numbers of models, or choose 1, 2, 5, 10, ... up to all of them."""
    if sizes is None:
        return list_round_sizes(1, n_available)
    for size in sizes:
        check_int(size, "a size")
        if size > n_available:
            raise InputError(
                f"size {size} is larger than the {n_available} available models; give smaller sizes"
            )
    if not len(sizes):
        raise InputError("sizes is empty; give at least one number of models")
    return [int(size) for size in sizes]
