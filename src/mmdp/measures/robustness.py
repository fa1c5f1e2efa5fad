"""Are there enough models? Stability over resamples, and the train/test gap by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.clock import unanswered
from mmdp.domains._common import check_count
from mmdp.errors import InputError
from mmdp.methods import Method
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy, markov_policy
from mmdp.solution import Solution
from mmdp.solve import evaluate, model_weights, solve

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

    def to_frame(self, model: MMDP) -> pd.DataFrame:
        """One row per time and state: action, visited, frequency of change."""
        horizon, n_states = self.frequency.shape
        labels = np.array(model.action_labels, dtype=object)
        return pd.DataFrame(
            {
                "time": np.repeat(np.arange(horizon), n_states),
                "state": np.tile(np.array(model.state_labels, dtype=object), horizon),
                "action": labels[self.policy.actions.reshape(-1)],
                "visited": self.visited.reshape(-1),
                "changes": self.frequency.reshape(-1),
            }
        )

    def __repr__(self) -> str:
        return (
            f"Stability({self.share:.1%} of decisions change in a resample of the models, "
            f"{self.changed.max():.1%} at most; mean loss {self.losses.mean():.4g})"
        )


@unanswered()
def stability(
    model: MMDP,
    horizon: int | None = None,
    *,
    resamples: int = 20,
    seed: int | None = 0,
    method: str | Method = "cadp",
) -> Stability:
    """Solve again on bootstrap resamples of the models and count the decisions that change.

    Each resample draws M models with replacement by their weights. A decision at (t, s) is
    weighted by the probability that the full problem's policy meets it; all times count alike.
    States in which no action changes anything (:attr:`mmdp.MMDP.deciding`) do not count.

    >>> import mmdp, mmdp.measures
    >>> sure = mmdp.MMDP([[[[1.0], [1.0]]]] * 4, [[2.0, 3.0]])
    >>> mmdp.measures.stability(sure, 3, resamples=5)
    Stability(0.0% of decisions change in a resample of the models, 0.0% at most; mean loss 0)
    """
    check_count(resamples, "resamples")
    full = solve(model, horizon, method, seed=seed)
    return stability_of(full, model, resamples, seed, method)


def stability_of(
    full: Solution, model: MMDP, resamples: int, seed: int | None, method: str | Method
) -> Stability:
    """What :func:`stability` finds, from the method's solution for all models."""
    visited = (
        model_weights(markov_policy(full, "stability needs"), model).sum(axis=1) * model.deciding
    )
    rng = np.random.default_rng(seed)
    frequency = np.zeros(visited.shape)
    changed, losses = np.empty(resamples), np.empty(resamples)
    for i in range(resamples):
        found = _resampled(model, full, rng, method, seed)
        differs = found.actions != full.policy.actions
        frequency += differs
        changed[i] = (visited * differs).sum() / visited.sum()
        losses[i] = full.value - evaluate(found, model).mean
    share = float(changed.mean())
    return Stability(share, changed, frequency / resamples, visited, losses, full.policy)


def _resampled(
    model: MMDP, full: Solution, rng: np.random.Generator, method: str | Method, seed: int | None
) -> MarkovPolicy:
    """The policy of one resample; where it is indifferent, the full problem's decision."""
    counts = rng.multinomial(model.n_models, model.weights)
    drawn = np.flatnonzero(counts)
    part = model.subset(drawn).replace(weights=counts[drawn] / counts.sum())
    found: Any = solve(part, full.provenance.horizon, method, seed=seed).policy
    reached = model_weights(found, part).sum(axis=1) > 0
    actions = np.where(reached, found.actions, full.policy.actions)
    return MarkovPolicy.for_model(model, actions)


@unanswered()
def enough_models(
    model: MMDP,
    horizon: int | None = None,
    sizes: Sequence[int] | None = None,
    *,
    test: MMDP | None = None,
    repeats: int = 5,
    seed: int | None = 0,
    method: str | Method = "cadp",
) -> pd.DataFrame:
    """Train and test value against the number of models the policy is computed from.

    For each size, ``repeats`` subsets of the models are drawn and solved. Columns: ``models``,
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
    check_count(repeats, "repeats")
    rng = np.random.default_rng(seed)
    if test is None:
        if model.n_models < 2:
            raise InputError("one model cannot be split; give test= models")
        order = rng.permutation(model.n_models)
        half = model.n_models // 2
        model, test = model.subset(np.sort(order[half:])), model.subset(np.sort(order[:half]))
    rows = []
    full = solve(model, horizon, method)
    for size in _sizes(sizes, model.n_models):
        count = repeats if size < model.n_models else 1  # all models are drawn in one way only
        values = np.array(
            [_train_and_test(model, test, full, size, rng, method) for _ in range(count)]
        )
        gaps, tested = values[:, 0] - values[:, 1], values[:, 1]
        spread, rough = (x.std(ddof=1) if count > 1 else 0.0 for x in (gaps, tested))
        rows.append((size, *values.mean(axis=0), gaps.mean(), spread, tested.max(), rough))
    columns = ["models", "train", "test", "gap", "gap_sd", "best_test", "test_sd"]
    return pd.DataFrame(rows, columns=columns)


def _sizes(sizes: Sequence[int] | None, available: int) -> list[int]:
    if sizes is None:
        steps = [a * 10**b for b in range(7) for a in (1, 2, 5)]
        return [*(x for x in steps if x < available), available]
    for size in sizes:
        check_count(size, "a size")
        if size > available:
            raise InputError(f"size {size} is more than the {available} models to draw from")
    if not len(sizes):
        raise InputError("sizes must hold at least one number of models")
    return [int(size) for size in sizes]


def _train_and_test(
    model: MMDP, test: MMDP, full: Solution, size: int, rng: np.random.Generator,
    method: str | Method,
) -> tuple[float, float]:  # fmt: skip
    if size == model.n_models:
        return full.value, evaluate(full, test).mean
    chosen = np.sort(rng.choice(model.n_models, size, replace=False))
    part = model.subset(chosen)
    found = solve(part, full.provenance.horizon, method)
    control = full.value - float(full.returns[chosen] @ part.weights)
    return found.value + control, evaluate(found, test).mean
