"""Stability of the policy over resamples of the models, and train/test gap by sample size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from mmdp.core import kernels
from mmdp.core.arguments import PositiveInt, Seed, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.methods import CADP, Method, SolveContext
from mmdp.core.methods.registry import check_supported, require_markov_method
from mmdp.core.model import MMDP
from mmdp.core.objectives import Mean
from mmdp.core.policies import MarkovPolicy, require_markov
from mmdp.core.shapes import Array, IndexArray, IntArray
from mmdp.core.solution import Solution, Status
from mmdp.core.solve import as_method, solve
from mmdp.core.timing import propagate_interrupts
from mmdp.core.validate import check_int, check_problem_size
from mmdp.insight.measures.decisions import tabulate_decisions


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
    visit_probs = model.mask_visits(solver.visit_probs(policy.actions))
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

    def visit_probs(self, actions: IntArray) -> Array:
        """Compute the probabilities (T, S) of visiting each state under a Markov policy."""
        return self.context.prepared.forward(actions).sum(axis=2)

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
