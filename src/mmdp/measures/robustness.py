"""Are there enough models? Stability over resamples, and the train/test gap by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp import kernels
from mmdp.arguments import Seed, checked
from mmdp.clock import pass_on, unanswered
from mmdp.errors import InputError
from mmdp.kernels.problem import IntArray
from mmdp.methods import CADP, Context, Method
from mmdp.methods.table import asked, need_table
from mmdp.model import MMDP
from mmdp.objective import Mean
from mmdp.policy import MarkovPolicy, markov_policy
from mmdp.solution import Solution, Status
from mmdp.solve import read_method, solve
from mmdp.validate import check_whole

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Stability:
    """How much the policy depends on the models that happened to be drawn.

    ``share``: the share of decisions that change in a resample, weighted by the probability of
    meeting them; ``changed`` (R,) that share in each resample; ``frequency`` (T, S) how often
    the decision there changes; ``visited`` (T, S) the probability of meeting it; ``losses``
    (R,) what the resample's policy loses on the full set of models (below 0: it is better, as
    the method found a local optimum).
    """

    share: float
    changed: Array
    frequency: Array
    visited: Array
    losses: Array
    policy: MarkovPolicy

    @checked
    def to_frame(self, model: MMDP) -> pd.DataFrame:
        """One row per time and state: action, visited, frequency of change."""
        horizon, n_states = self.frequency.shape
        labels = np.array(model.action_labels, dtype=object)
        columns = {
            "time": np.repeat(np.arange(horizon), n_states),
            "state": np.tile(np.array(model.state_labels, dtype=object), horizon),
            "action": labels[self.policy.actions.reshape(-1)],
            "visited": self.visited.reshape(-1),
            "changes": self.frequency.reshape(-1),
        }
        return pd.DataFrame(model.times.beside(columns))

    def __repr__(self) -> str:
        return (
            f"Stability({self.share:.1%} of decisions change in a resample of the models, "
            f"{self.changed.max():.1%} at most; mean loss {self.losses.mean():.4g})"
        )


@checked
@unanswered()
def stability(
    model: MMDP,
    horizon: int | None = None,
    *,
    resamples: int = 20,
    seed: Seed = 0,
    method: str | Method = "cadp",
) -> Stability:
    """Solve again on bootstrap resamples of the models and count the decisions that change.

    Each resample draws M models with replacement by their weights. CADP climbs from two starts
    then: WSU's policy for the models drawn, and the full problem's policy. A decision at (t, s) is
    weighted by the probability that the full problem's policy meets it; all times count alike.
    States in which no action changes anything (:attr:`mmdp.MMDP.deciding`) do not count.

    >>> import mmdp, mmdp.measures
    >>> sure = mmdp.MMDP([[[[1.0], [1.0]]]] * 4, [[2.0, 3.0]])
    >>> mmdp.measures.stability(sure, 3, resamples=5)
    Stability(0.0% of decisions change in a resample of the models, 0.0% at most; mean loss 0)
    """
    check_whole(resamples, "resamples")
    full = solve(model, horizon, method, seed=seed)
    return stability_of(full, model, resamples, seed, method)


def stability_of(
    full: Solution, model: MMDP, resamples: int, seed: int | None, method: str | Method
) -> Stability:
    """What :func:`stability` finds, from the method's solution for all models."""
    policy = markov_policy(full, "stability needs")
    redrawn = Redrawn(model, full.provenance.horizon, method, seed, 2 * resamples)
    visited = model.decisions(redrawn.visited(policy.actions))
    rng = np.random.default_rng(seed)
    frequency = np.zeros(visited.shape)
    changed, losses = np.empty(resamples), np.empty(resamples)
    for i in range(resamples):
        counts = rng.multinomial(model.n_models, model.weights)
        found = redrawn.solved(counts / counts.sum(), policy.actions)
        differs = found.actions != policy.actions
        frequency += differs
        changed[i] = (visited * differs).sum() / visited.sum()
        losses[i] = full.value - float(found.returns @ model.weights)
    share = float(changed.mean())
    return Stability(share, changed, frequency / resamples, visited, losses, policy)


def one_start(method: str | Method) -> Method:
    """The method; a CADP that may choose its starts takes one.

    It does so for all draws alike, so that none is searched for longer than another.
    """
    chosen = read_method(method)
    if isinstance(chosen, CADP) and chosen.starts == "auto":
        return replace(chosen, starts=1)
    return chosen


class Solved(NamedTuple):
    """A policy (T, S) for some weights of the models, and its return (M,) in every model."""

    actions: IntArray
    returns: Array


class Redrawn:
    """One problem with other weights of its models, ``draws`` times; it is laid out once."""

    def __init__(
        self, model: MMDP, horizon: float | None, method: str | Method, seed: int | None,
        draws: int,
    ) -> None:  # fmt: skip
        self.method = one_start(method)
        need_table(type(self.method), "drawing the models again needs")
        question, x = asked(self.method, model, horizon, Mean()), model.problem
        passes = draws * self.method.passes(x, question.steps)
        kernel = kernels.get("auto", x, question.steps, passes=passes)
        self.context = Context(model, question.steps, kernel, kind=question.kind, seed=seed)

    def visited(self, actions: IntArray) -> Array:
        """(T, S) the probability of being there."""
        found: Array = self.context.plan.forward(actions).sum(axis=2)
        return found

    def solved(self, weights: Array, known: IntArray | None = None) -> Solved:
        """The policy of the method if the models had these weights (M,).

        With a ``known`` one, CADP climbs from that too and keeps the better end, and where the
        policy never goes it is the known one.
        """
        inner = self.context.quiet(weights=weights)
        found = self._run(self.method, inner)
        if known is None:
            return found
        if isinstance(self.method, CADP):
            start = MarkovPolicy.for_model(inner.model, known)
            other = self._run(replace(self.method, init=start), inner.quiet())
            if other.returns @ weights >= found.returns @ weights - 1e-12 * inner.stakes:
                found = other
        there = inner.plan.forward(found.actions).sum(axis=2) > 0
        return found._replace(actions=np.where(there, found.actions, known))

    def _run(self, method: Method, context: Context) -> Solved:
        outcome = method.run(context)
        pass_on(outcome.status is Status.INTERRUPTED)
        return Solved(outcome.policy, context.returns(outcome.policy))


@checked
@unanswered()
def enough_models(
    model: MMDP,
    horizon: int | None = None,
    sizes: Sequence[int] | None = None,
    *,
    test: MMDP | None = None,
    repeats: int = 5,
    seed: Seed = 0,
    method: str | Method = "cadp",
) -> pd.DataFrame:
    """Train and test value against the number of models the policy is computed from.

    For each size, ``repeats`` subsets of the models are drawn and solved, by CADP from one start
    unless ``method`` says how many. Columns: ``models``,
    ``train`` (mean value on the models solved), ``test`` (mean value on test models), ``gap``
    (train - test: how much the policy fits its own models), ``gap_sd`` over repeats,
    ``best_test``, the highest test value of a repeat, and ``test_sd`` over repeats. When
    ``test`` no longer grows with ``models``, there are enough.

    A subset may happen to hold good models. The policy of all models is the control variate:
    ``train`` is the value on the subset, plus what that policy gets on all models, minus what
    it gets on the subset.

    Without ``test``, half of the models are held out for testing. ``sizes`` are by default
    1, 2, 5, 10, 20, 50 ... up to all of them.

    >>> import mmdp, mmdp.measures
    >>> train, test = mmdp.domains.riverswim(seed=0)
    >>> table = mmdp.measures.enough_models(train, 10, [2, 50], test=test, repeats=2)
    >>> bool(table["gap"].iloc[0] > table["gap"].iloc[1])
    True
    """
    check_whole(repeats, "repeats")
    rng = np.random.default_rng(seed)
    drawn: npt.NDArray[np.int64] = np.arange(model.n_models)
    held_out = None
    if test is None:
        if model.n_models < 2:
            raise InputError("one model cannot be split; give test= models")
        held_out, drawn = (np.sort(x) for x in np.split(rng.permutation(drawn), [len(drawn) // 2]))
    counts = _sizes(sizes, len(drawn))
    redrawn = Redrawn(model, horizon, method, seed, repeats * len(counts))
    whole = _share(model.weights, drawn)
    full = redrawn.solved(whole)
    tested = _tester(redrawn, full, test, held_out)
    rows = []
    for size in counts:
        count = repeats if size < len(drawn) else 1  # all models are drawn in one way only
        values = np.empty((count, 2))
        for row in values:
            chosen = rng.choice(drawn, size, replace=False) if size < len(drawn) else drawn
            part = _share(model.weights, chosen)
            found = redrawn.solved(part) if size < len(drawn) else full
            control = float(full.returns @ whole) - float(full.returns @ part)
            row[:] = found.returns @ part + control, tested(found)
        gaps, on_test = values[:, 0] - values[:, 1], values[:, 1]
        spread, rough = (x.std(ddof=1) if count > 1 else 0.0 for x in (gaps, on_test))
        rows.append((size, *values.mean(axis=0), gaps.mean(), spread, on_test.max(), rough))
    columns = ["models", "train", "test", "gap", "gap_sd", "best_test", "test_sd"]
    return pd.DataFrame(rows, columns=columns)


def _share(weights: Array, chosen: npt.NDArray[np.int64]) -> Array:
    """(M,) the weights of the chosen models, which sum to 1; 0 for the others."""
    found = np.zeros_like(weights)
    found[chosen] = weights[chosen] / weights[chosen].sum()
    return found


def _tester(
    redrawn: Redrawn, full: Solved, test: MMDP | None, held_out: npt.NDArray[np.int64] | None
) -> Callable[[Solved], float]:
    """What gives the mean return on the test models, or on those that are held out."""
    if test is None:
        assert held_out is not None
        share = _share(redrawn.context.model.weights, held_out)
        return lambda found: float(found.returns @ share)
    context = redrawn.context
    apart = Context(test, context.horizon, context.kernel, kind=context.kind)
    MarkovPolicy.for_model(context.model, full.actions).check(test)
    return lambda found: apart.mean(apart.returns(found.actions))


def _sizes(sizes: Sequence[int] | None, available: int) -> list[int]:
    if sizes is None:
        steps = [a * 10**b for b in range(7) for a in (1, 2, 5)]
        return [*(x for x in steps if x < available), available]
    for size in sizes:
        check_whole(size, "a size")
        if size > available:
            raise InputError(f"size {size} is more than the {available} models to draw from")
    if not len(sizes):
        raise InputError("sizes must hold at least one number of models")
    return [int(size) for size in sizes]
