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
from mmdp.data.posterior.counts import TransitionCounts
from mmdp.data.posterior.log import TransitionLog
from mmdp.data.posterior.prior import DirichletRows
from mmdp.data.schema import IntArray, Mask, Table, TableSource, assign_roles

RewardFunction = Callable[[str | int, str | int, str | int], float]
SIGNIFICANCE_LEVEL = 0.01  # of the test whether rewards depend on the next state


@dataclass(frozen=True)
class RewardPosterior:
    """Values or posterior of rewards by pair (S A,) or, if ``is_by_next_state``, by key (nnz,).

    Those in ``is_absorbing`` are 0.
    """

    shape: tuple[int, int]
    is_absorbing: Mask
    is_by_next_state: bool = False
    values: Array | None = None
    posterior_params: tuple[Array, Array, Array, Array] | None = None
    warnings: list[str] = field(default_factory=list)

    def sample(
        self, n_samples: int, rng: np.random.Generator, kept: slice = slice(None)
    ) -> tuple[Array | None, Array | None]:
        """Sample rewards of models: (1, S, A, M) by pair, or (1, nnz, M) by next state.

        ``kept``: the slice of the samples to return. The other of the two is None.
        """
        n_kept = len(range(n_samples)[kept])
        if self.values is not None:
            rewards = np.repeat(
                np.where(self.is_absorbing, 0.0, self.values)[:, None], n_kept, axis=1
            )
        else:
            assert self.posterior_params is not None
            mean, kappa, a, b = (x[:, None] for x in self.posterior_params)
            variance = b / rng.standard_gamma(np.broadcast_to(a, (len(a), n_samples)))
            rewards = mean + rng.standard_normal((len(a), n_samples)) * np.sqrt(variance / kappa)
            rewards[self.is_absorbing] = 0.0
            rewards = np.ascontiguousarray(rewards[:, kept])
        return (
            (None, rewards[None])
            if self.is_by_next_state
            else (rewards.reshape(1, *self.shape, n_kept), None)
        )


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
        self, log: TransitionLog, posterior_rows: DirichletRows, data: TransitionCounts
    ) -> RewardPosterior:
        """Make the values, or the posterior, of the reward of every pair or transition."""
        if self._is_source("average", "normal"):
            return self._posterior_from_log(log, posterior_rows, data)
        source, keys, is_absorbing = (
            as_frame(self.source),
            posterior_rows.keys,
            posterior_rows.is_absorbing,
        )
        if isinstance(source, (str, os.PathLike, pd.DataFrame)):
            return _posterior_from_table(source, log, keys, is_absorbing)
        if callable(source):
            values, shape = (
                _evaluate_function(source, log, keys, is_absorbing),
                (data.n_states, data.n_actions),
            )
            return RewardPosterior(
                shape, is_absorbing[keys // data.n_states], is_by_next_state=True, values=values
            )
        return _posterior_from_array(source, log, keys, is_absorbing)

    def _posterior_from_log(
        self, log: TransitionLog, posterior_rows: DirichletRows, data: TransitionCounts
    ) -> RewardPosterior:
        """Make the averages or the posterior of the rewards of a log."""
        if log.reward is None:
            log.source.fail(
                "no column 'reward'",
                remedies=["add it", Remedy("rewards", "FILE", verb="give a table by")],
            )
        pair_ids, log_moments = (
            posterior_rows.keys // data.n_states,
            _RewardMoments.from_log(log, log.reward, data),
        )
        moments = log_moments.select(~posterior_rows.is_absorbing[data.keys // data.n_states])
        mean_reward, is_absorbing = log_moments.overall_mean, posterior_rows.is_absorbing
        pair_moments = moments.group_by(moments.ids // data.n_states)
        is_by_next_state = _is_by_next_state(moments, pair_moments, data)
        if is_by_next_state:
            is_absorbing, cell_moments = is_absorbing[pair_ids], moments.lookup(posterior_rows.keys)
            default_rewards = _make_default_rewards(moments, posterior_rows.keys, data, mean_reward)
        else:
            cell_moments, default_rewards = (
                pair_moments.lookup(np.arange(len(is_absorbing))),
                np.full(len(is_absorbing), mean_reward),
            )
        is_guessed = (
            (cell_moments.n if is_by_next_state else cell_moments.n[pair_ids]) == 0
        ) & ~posterior_rows.is_absorbing[pair_ids]
        notes = _make_notes(is_by_next_state, is_guessed.any() and self.prior is None, mean_reward)
        shape = (data.n_states, data.n_actions)
        if self.source == "average":
            values = np.where(cell_moments.n > 0, cell_moments.mean, default_rewards)
            return RewardPosterior(
                shape, is_absorbing, is_by_next_state, values=values, warnings=notes
            )
        if self.prior is None:
            posterior_params = _update_posterior(
                cell_moments, default_rewards, 1.0, 2.0, log_moments.overall_variance
            )
        else:
            posterior_params = _update_posterior(cell_moments, *_check_prior(self.prior))
        return RewardPosterior(
            shape, is_absorbing, is_by_next_state, posterior_params=posterior_params, warnings=notes
        )


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
    """Whether rewards belong to transitions rather than to pairs (s, a).

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
    rewards: Any, log: TransitionLog, keys: IntArray, is_absorbing: Mask
) -> RewardPosterior:
    """Make rewards of an array (S,), (S, A) or (S, A, S')."""
    n_states, n_actions = log.states.size, log.actions.size
    check_not_masked(rewards, "rewards")
    labeled = align_to_labels(rewards, "rewards", log.states.labels or range(n_states))
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
    if array.shape == (n_states, n_actions):
        return RewardPosterior((n_states, n_actions), is_absorbing, values=array.reshape(-1))
    if array.shape != (n_states, n_actions, n_states):
        raise InputError(
            f"rewards has shape {array.shape}; give (S,) = ({n_states},), (S, A) = "
            f"{n_states, n_actions} or (S, A, S') = {n_states, n_actions, n_states}"
        )
    values, is_entry_absorbing = array.reshape(-1)[keys], is_absorbing[keys // n_states]
    return RewardPosterior(
        (n_states, n_actions), is_entry_absorbing, is_by_next_state=True, values=values
    )


def _evaluate_function(
    function: RewardFunction, log: TransitionLog, keys: IntArray, is_absorbing: Mask
) -> Array:
    """Evaluate a reward function (nnz,) at every transition, by labels or ids."""
    n_states, n_actions = log.states.size, log.actions.size
    values = np.zeros(len(keys))
    for i, key in enumerate(keys.tolist()):
        row, next_state = divmod(key, n_states)
        if is_absorbing[row]:
            continue
        arguments = (
            log.states.get_label(row // n_actions),
            log.actions.get_label(row % n_actions),
            log.states.get_label(next_state),
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
    rewards: str | os.PathLike[str] | pd.DataFrame,
    log: TransitionLog,
    keys: IntArray,
    is_absorbing: Mask,
) -> RewardPosterior:
    """Make rewards of a table by state, by state and action, or by transition."""
    table = _read_rewards_table(rewards)
    source, n_states, n_actions = table.source, log.states.size, log.actions.size
    labels = {"state": log.states, "action": log.actions, "next_state": log.states}
    axes = {role: x for role, x in labels.items() if role in table}
    index, sizes = table.find_cells(axes, "this reward")
    cell_ids, values = np.ravel_multi_index(index, sizes), table.parse_floats("reward")
    source.fail_where(~np.isfinite(values), "reward is missing; fill it in")
    if "next_state" in table:
        return _posterior_by_transition(cell_ids, values, log, keys, is_absorbing)
    cell_values = np.full(int(np.prod(sizes)), np.nan)
    cell_values[cell_ids] = values
    row_values = cell_values if "action" in table else np.repeat(cell_values, n_actions)
    row_values[is_absorbing] = 0.0
    is_needed = np.zeros(len(row_values), dtype=bool)
    is_needed[keys // n_states] = True
    missing_rows = np.flatnonzero(np.isnan(row_values) & is_needed)
    if len(missing_rows):
        state, action = divmod(int(missing_rows[0]), n_actions)
        source.fail(
            f"no reward for state {log.states.format_id(state)}, action "
            f"{log.actions.format_id(action)} ({pluralize(len(missing_rows), 'pair')} like it); "
            "add a row"
        )
    return RewardPosterior((n_states, n_actions), is_absorbing, values=np.nan_to_num(row_values))


def _posterior_by_transition(
    cell_ids: IntArray, values: Array, log: TransitionLog, keys: IntArray, is_absorbing: Mask
) -> RewardPosterior:
    """Make rewards by transition; those that the table lacks are 0."""
    order = np.argsort(cell_ids)
    positions = np.minimum(np.searchsorted(cell_ids[order], keys), len(cell_ids) - 1)
    is_given = cell_ids[order][positions] == keys
    is_sampled = ~is_absorbing[keys // log.states.size]
    n_missing = int((~is_given & is_sampled).sum())
    earn_phrase = choose_verb_form(n_missing, "it earns", "they earn")
    note = f"the rewards table lacks {pluralize(n_missing, 'possible transition')}; {earn_phrase} 0"
    return RewardPosterior(
        (log.states.size, log.actions.size),
        ~is_sampled,
        is_by_next_state=True,
        values=np.where(is_given, values[order][positions], 0.0),
        warnings=[note] if n_missing else [],
    )


def _read_rewards_table(rewards: str | os.PathLike[str] | pd.DataFrame) -> Table:
    """Read a table of rewards from a file, or take a DataFrame; check its columns."""
    if isinstance(rewards, pd.DataFrame):
        table = Table.from_frame(rewards, TableSource("rewards"))
    elif Path(rewards).is_file():
        table = read_table(Path(rewards))
    else:
        raise InputError(f'rewards: no file {rewards}; give "average", "normal" or a table')
    known = ("state", "action", "next_state", "reward")
    required = known if "next_state" in table else ("state", "reward")
    assign_roles(table.columns, known, required, table.source, [f"expected {','.join(known)}"])
    if not len(table):
        table.source.fail("a header but no rows; expected one row per reward")
    return table
