"""Rewards of fitted models: known, averaged, or sampled from their posterior."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.text import choose_verb_form, format_number, pluralize
from mmdp.core.transitions import Array, check_not_masked
from mmdp.core.validate import align_to_labels
from mmdp.data.io.parquet import read_table
from mmdp.data.io.reading import as_frame
from mmdp.data.io.writing import PathLike
from mmdp.data.posterior.log import TransitionLog
from mmdp.data.posterior.prior import DirichletRows, TransitionCounts
from mmdp.data.schema import IntArray, Mask, Table, TableSource, assign_roles

RewardFunction = Callable[[str | int, str | int, str | int], float]
SIGNIFICANCE_LEVEL = 0.01  # of the test whether rewards depend on the next state


@dataclass(frozen=True)
class RewardPosterior:
    """Rewards by pair (S A,) or, if ``is_by_next_state``, by key (nnz,); absorbing pairs earn 0.

    ``values`` are known, or the means of a posterior with ``spread`` (kappa, a, b).
    """

    rows: DirichletRows
    values: Array
    is_by_next_state: bool = False
    spread: tuple[Array, Array, Array] | None = None
    warnings: list[str] = field(default_factory=list)

    def sample(
        self, n_samples: int, rng: np.random.Generator, kept: slice = slice(None)
    ) -> tuple[Array | None, Array | None]:
        """Sample rewards of models: (1, S, A, M) by pair, or (1, nnz, M) by next state.

        ``kept``: the slice of the samples to return. The other of the two is None.
        """
        n_kept = len(range(n_samples)[kept])
        rewards = np.repeat(self.values[:, None], n_kept, axis=1)
        if self.spread is not None:
            kappa, a, b = (x[:, None] for x in self.spread)
            variance = b / rng.standard_gamma(np.broadcast_to(a, (len(a), n_samples)))
            noise = rng.standard_normal(variance.shape) * np.sqrt(variance / kappa)
            rewards += noise[:, kept]
        if self.is_by_next_state:
            rewards[self.rows.is_absorbing[self.rows.pair_ids]] = 0.0
            return None, rewards[None]
        rewards[self.rows.is_absorbing] = 0.0
        return rewards.reshape(1, *self.rows.shape, n_kept), None


@check_arguments
@dataclass(frozen=True, eq=False)
class RewardSpec:
    """Source of the rewards for :func:`fit`; absorbing states earn 0.

    Parameters
    ----------
    source
        ``"average"`` of the log; ``"normal"``, sampled from their Normal-inverse-gamma posterior;
        both by (s, a, s') if rewards of a pair (s, a) differ by next state (noisy ones: by an F
        test at 1%) or, without noise, do not differ by action from s to the same s'; by
        (s, a) otherwise. Or known: an array (S,), (S, A) or (S, A, S'), a table (a
        DataFrame or the path of one) with columns state, action, next_state (the last two may
        be left out) and reward, or a function of (state, action, next_state).
    prior
        (mean, kappa, a, b) of the Normal-inverse-gamma prior. By default the overall mean (by
        next state: that of those to the same one) and variance of the log's rewards count as one
        observation: (mean, 1, 2, variance).

    >>> import mmdp
    >>> log = {"state": [0, 0], "action": [0, 0], "next_state": [0, 0], "reward": [3.0, 5.0]}
    >>> drawn = mmdp.posterior.RewardSpec("normal", prior=(0.0, 1.0, 2.0, 1.0))
    >>> model = mmdp.fit(log, n_models=2000, rewards=drawn).train
    >>> bool(abs(model.rewards.mean() - 8 / 3) < 0.1)  # (1 * 0 + 3 + 5) / (1 + 2)
    True
    """

    source: Any = "average"
    prior: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.prior is not None and not self._is_source("normal"):
            raise InputError(
                'a prior of rewards (reward_prior) needs rewards="normal"; set it, or leave it out'
            )

    def _is_source(self, *words: str) -> bool:
        return isinstance(self.source, str) and self.source in words

    def make_posterior(
        self, log: TransitionLog, rows: DirichletRows, data: TransitionCounts
    ) -> RewardPosterior:
        """Make the values, or the posterior, of the reward of every pair or transition."""
        if self._is_source("average", "normal"):
            return self._posterior_from_log(log, rows, data)
        source = as_frame(self.source)
        if isinstance(source, (str, os.PathLike, pd.DataFrame)):
            return _posterior_from_table(source, rows, data)
        if callable(source):
            return RewardPosterior(rows, _evaluate_function(source, rows, data), True)
        return _posterior_from_array(source, rows, data)

    def _posterior_from_log(
        self, log: TransitionLog, rows: DirichletRows, data: TransitionCounts
    ) -> RewardPosterior:
        """Make the averages or the posterior of the rewards of a log."""
        if log.reward is None:
            log.source.fail(
                "no column 'reward'",
                remedies=["add it", Remedy("rewards", "FILE", verb="give a table by")],
            )
        log_moments = _RewardMoments.from_log(log, log.reward, data)
        moments = log_moments.select(~rows.is_absorbing[data.keys // data.n_states])
        mean_reward = log_moments.overall_mean
        pair_moments = moments.group_by(moments.ids // data.n_states)
        is_by_next_state = _is_by_next_state(moments, pair_moments, data)
        if is_by_next_state:
            cell_moments = moments.lookup(rows.keys)
            default_rewards = _make_default_rewards(moments, rows.keys, data, mean_reward)
            n_by_key = cell_moments.n
        else:
            cell_moments = pair_moments.lookup(np.arange(len(rows.allowed)))
            default_rewards = np.full(len(rows.allowed), mean_reward)
            n_by_key = cell_moments.n[rows.pair_ids]
        is_guessed = (n_by_key == 0) & ~rows.is_absorbing[rows.pair_ids]
        notes = _make_notes(is_by_next_state, is_guessed.any() and self.prior is None, mean_reward)
        if self.source == "average":
            values = np.where(cell_moments.n > 0, cell_moments.mean, default_rewards)
            return RewardPosterior(rows, values, is_by_next_state, warnings=notes)
        prior = (default_rewards, 1.0, 2.0, log_moments.overall_variance)
        mean, kappa, a, b = _update_posterior(
            cell_moments, *(prior if self.prior is None else _check_prior(self.prior))
        )
        return RewardPosterior(rows, mean, is_by_next_state, (kappa, a, b), notes)


# ---------------------------------------------------------------------- from the log
class _RewardMoments(NamedTuple):
    """Number, mean and sum of squares about the mean of the rewards of each id, in order."""

    ids: IntArray
    n: Array
    mean: Array
    sum_squares: Array

    @classmethod
    def from_log(cls, log: TransitionLog, reward: Array, data: TransitionCounts) -> _RewardMoments:
        """Compute the moments of the rewards of each transition (s A + a) S + s' that occurs."""
        key = (log.state * data.n_actions + log.action) * data.n_states + log.next_state
        cell_ids, n = np.searchsorted(data.keys, key), data.counts.astype(np.float64)
        multiplicity = 1 if log.counts is None else log.counts
        mean = _sum_by_id(cell_ids, multiplicity * reward, len(n)) / n
        return cls(
            data.keys,
            n,
            mean,
            _sum_by_id(cell_ids, multiplicity * (reward - mean[cell_ids]) ** 2, len(n)),
        )

    @property
    def overall_mean(self) -> float:
        """Mean of all rewards."""
        return float(np.average(self.mean, weights=self.n))

    @property
    def overall_variance(self) -> float:
        """Variance of all rewards."""
        return float(self.group_by(np.zeros_like(self.ids)).sum_squares[0] / self.n.sum())

    def select(self, mask: Mask) -> _RewardMoments:
        """Select the ids in a mask."""
        return _RewardMoments(self.ids[mask], *(x[mask] for x in self[1:]))

    def group_by(self, group_keys: IntArray) -> _RewardMoments:
        """Combine the moments of ids with the same group key."""
        group_ids, inverse = np.unique(group_keys, return_inverse=True)
        n = _sum_by_id(inverse, self.n, len(group_ids))
        mean = _sum_by_id(inverse, self.n * self.mean, len(group_ids)) / n
        sum_squares = self.sum_squares + self.n * (self.mean - mean[inverse]) ** 2
        return _RewardMoments(group_ids, n, mean, _sum_by_id(inverse, sum_squares, len(group_ids)))

    def lookup(self, ids: IntArray) -> _RewardMoments:
        """Look up the moments of ids; 0 for ids without rewards."""
        positions = np.minimum(np.searchsorted(self.ids, ids), max(len(self.ids) - 1, 0))
        is_known = self.ids[positions] == ids if len(self.ids) else np.zeros(len(ids), bool)
        moments = (np.where(is_known, x[positions] if len(x) else 0.0, 0.0) for x in self[1:])
        return _RewardMoments(ids, *moments)

    @property
    def is_exact(self) -> bool:
        """Whether the rewards of each id are all equal, up to rounding."""
        return bool(self.sum_squares.sum() <= 1e-12 * (self.n @ self.mean**2))

    def differs_from(self, groups: _RewardMoments) -> bool:
        """Test whether the means within groups differ, by a one-way analysis of variance."""
        within, total = float(self.sum_squares.sum()), float(groups.sum_squares.sum())
        if groups.is_exact or self.is_exact:
            return not groups.is_exact
        dof = len(self.ids) - len(groups.ids), int(self.n.sum()) - len(self.ids)
        if not dof[0]:
            return False
        f_ratio = ((total - within) / dof[0]) / (within / dof[1])
        return bool(fdtrc(*dof, f_ratio) < SIGNIFICANCE_LEVEL)


def _sum_by_id(ids: IntArray, values: Array, size: int) -> Array:
    return np.bincount(ids, values, size).astype(np.float64, copy=False)


def _is_by_next_state(
    moments: _RewardMoments, pair_moments: _RewardMoments, data: TransitionCounts
) -> bool:
    """Return whether rewards belong to transitions rather than to pairs (s, a).

    They do if those of a pair differ by next state. Short logs may lack pairs with two next
    states: rewards without noise belong to transitions too, unless they differ by action from s to
    the same s'.
    """
    if moments.differs_from(pair_moments):
        return True
    state = moments.ids // (data.n_states * data.n_actions)
    varies = moments.is_exact and moments.differs_from(moments.group_by(state))
    return varies and not moments.differs_from(
        moments.group_by(_compute_move_ids(moments.ids, data))
    )


def _compute_move_ids(keys: IntArray, data: TransitionCounts) -> IntArray:
    """Convert keys (s A + a) S + s' to s S + s'."""
    return keys // (data.n_states * data.n_actions) * data.n_states + keys % data.n_states


def _make_default_rewards(
    moments: _RewardMoments, keys: IntArray, data: TransitionCounts, mean_reward: float
) -> Array:
    """Make default rewards (nnz,): the average from s to s', else to s', else of the log."""
    rewards = np.full(len(keys), mean_reward)
    for seen_groups, wanted_groups in (
        (moments.ids % data.n_states, keys % data.n_states),
        (_compute_move_ids(moments.ids, data), _compute_move_ids(keys, data)),
    ):
        group_moments = moments.group_by(seen_groups).lookup(wanted_groups)
        rewards = np.where(group_moments.n > 0, group_moments.mean, rewards)
    return rewards


def _make_notes(is_by_next_state: bool, has_guesses: bool, mean_reward: float) -> list[str]:
    """Make notes about how rewards were read, and about rewards that the log lacks."""
    notes = ["rewards are by state, action and next state"] * is_by_next_state
    if has_guesses:
        guess_text = (
            "a transition never seen earns the average of those to its next state"
            if is_by_next_state
            else f"a pair never seen earns the log's average reward, {format_number(mean_reward)}"
        )
        notes.append(f"{guess_text}; give a table of rewards if they are known")
    return notes


def _check_prior(prior: Sequence[float]) -> tuple[float, float, float, float]:
    """Parse the parameters (mean, kappa, a, b) of a Normal-inverse-gamma prior."""
    params = tuple(prior)
    if len(params) != 4 or not np.isfinite(params).all() or min(params[1:3]) <= 0 or params[3] < 0:
        raise InputError(
            "reward_prior must be (mean, kappa, a, b) with kappa and a above 0 and b at least "
            f"0, not {prior!r}"
        )
    return params


def _update_posterior(
    moments: _RewardMoments, mu: Array | float, kappa: float, a: float, b: float
) -> tuple[Array, Array, Array, Array]:
    """Compute (mu_n, kappa_n, a_n, b_n) of the Normal-inverse-gamma posterior."""
    kappa_n = kappa + moments.n
    mean_shift = kappa * moments.n * (moments.mean - mu) ** 2 / (2 * kappa_n)
    mu_n = (kappa * mu + moments.n * moments.mean) / kappa_n
    return mu_n, kappa_n, a + moments.n / 2, b + moments.sum_squares / 2 + mean_shift


# ---------------------------------------------------------------------- known rewards
def _posterior_from_array(
    rewards: Any, rows: DirichletRows, data: TransitionCounts
) -> RewardPosterior:
    """Make rewards of an array (S,), (S, A) or (S, A, S')."""
    n_states, n_actions = rows.shape
    check_not_masked(rewards, "rewards")
    labeled = align_to_labels(rewards, "rewards", data.states.axis_labels)
    try:
        array = np.asarray(labeled, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            'rewards must be "average", "normal", an array, a table or a function, not '
            f"{type(rewards).__name__}"
        ) from None
    if not np.isfinite(array).all():
        raise InputError("rewards has numbers that are not finite; give finite ones")
    if array.shape == (n_states,):
        array = np.repeat(array[:, None], n_actions, axis=1)
    if array.shape == rows.shape:
        return RewardPosterior(rows, array.reshape(-1))
    if array.shape != (*rows.shape, n_states):
        raise InputError(
            f"rewards has shape {array.shape}; give (S,) = ({n_states},), (S, A) = "
            f"{rows.shape} or (S, A, S') = {*rows.shape, n_states}"
        )
    return RewardPosterior(rows, array.reshape(-1)[rows.keys], True)


def _evaluate_function(
    function: RewardFunction, rows: DirichletRows, data: TransitionCounts
) -> Array:
    """Evaluate a reward function (nnz,) at every transition, by labels or ids."""
    values = np.zeros(len(rows.keys))
    for i in np.flatnonzero(~rows.is_absorbing[rows.pair_ids]):
        pair, next_state = divmod(int(rows.keys[i]), data.n_states)
        state, action = divmod(pair, data.n_actions)
        arguments = (
            data.states.get_label(state),
            data.actions.get_label(action),
            data.states.get_label(next_state),
        )
        values[i] = _call_function(function, arguments)
    return values


def _call_function(
    function: RewardFunction, arguments: tuple[str | int, str | int, str | int]
) -> float:
    """Call a reward function; errors name the transition."""
    state, action, next_state = arguments
    location = f"rewards function at state {state!r}, action {action!r}, next {next_state!r}"
    try:
        value = float(function(*arguments))
    except Exception as error:
        raise InputError(f"{location} raised {type(error).__name__}: {error}") from error
    if not np.isfinite(value):
        raise InputError(f"{location} returned {value}; return a finite number")
    return value


def _posterior_from_table(
    rewards: PathLike | pd.DataFrame, rows: DirichletRows, data: TransitionCounts
) -> RewardPosterior:
    """Make rewards of a table by state, by state and action, or by transition."""
    table = _read_rewards_table(rewards)
    labels = {"state": data.states, "action": data.actions, "next_state": data.states}
    axes = {role: x for role, x in labels.items() if role in table}
    is_sampled = ~rows.is_absorbing[rows.pair_ids]
    if "next_state" in table:
        index, sizes = table.find_cells(axes, "this reward")
        cell_ids, values = np.ravel_multi_index(index, sizes), _parse_rewards(table)
        order = np.argsort(cell_ids)
        positions = np.minimum(np.searchsorted(cell_ids[order], rows.keys), len(cell_ids) - 1)
        is_given = cell_ids[order][positions] == rows.keys
        n_missing = int((~is_given & is_sampled).sum())
        earn_phrase = choose_verb_form(n_missing, "it earns", "they earn")
        transitions_text = pluralize(n_missing, "possible transition")
        note = f"the rewards table lacks {transitions_text}; {earn_phrase} 0"
        values = np.where(is_given, values[order][positions], 0.0)
        return RewardPosterior(rows, values, True, warnings=[note] if n_missing else [])
    _parse_rewards(table)
    values = table.read_values("reward", axes, fill=np.nan)
    pair_values = values.reshape(-1) if values.ndim == 2 else np.repeat(values, data.n_actions)
    missing_pairs = np.unique(rows.pair_ids[np.isnan(pair_values)[rows.pair_ids] & is_sampled])
    if len(missing_pairs):
        table.source.fail(
            f"no reward for {data.describe_pair(int(missing_pairs[0]))} "
            f"({pluralize(len(missing_pairs), 'pair')} like it); add a row"
        )
    return RewardPosterior(rows, np.nan_to_num(pair_values))


def _parse_rewards(table: Table) -> Array:
    """Parse the rewards of a table, and refuse missing ones."""
    values = table.parse_floats("reward")
    table.source.fail_where(~np.isfinite(values), "reward is missing; fill it in")
    return values


def _read_rewards_table(rewards: PathLike | pd.DataFrame) -> Table:
    """Read a table of rewards from a file, or take a DataFrame; check its columns."""
    if isinstance(rewards, pd.DataFrame):
        table = Table.from_frame(rewards, TableSource("rewards"))
    elif Path(rewards).is_file():
        table = read_table(Path(rewards))
    else:
        raise InputError(f'rewards: no file {rewards}; give "average", "normal" or a table')
    known = ("state", "action", "next_state", "reward")
    required = known if "next_state" in table else ("state", "reward")
    assign_roles(table.columns, known, required, table.source, f"expected {','.join(known)}")
    if not len(table):
        table.source.fail("a header but no rows; expected one row per reward")
    return table
