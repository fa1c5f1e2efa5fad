"""Rewards of fitted models: known, averaged, or sampled from their posterior."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from mmdp.core.errors import InputError, Remedy
from mmdp.core.text import format_number, pluralize
from mmdp.core.transitions import Array, check_not_masked
from mmdp.core.validate import align_to_labels
from mmdp.data.io.parquet import read_table
from mmdp.data.io.reading import as_frame
from mmdp.data.io.writing import PathLike
from mmdp.data.posterior.log import TransitionLog
from mmdp.data.posterior.prior import DirichletRows, TransitionCounts
from mmdp.data.schema import IntArray, Mask, Table, TableSource, assign_roles

SIGNIFICANCE_LEVEL = 0.01  # of the test whether rewards depend on the next state
TABLE_ROLES = ("state", "action", "next_state", "reward")


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
        is_absorbing = self.rows.is_absorbing
        if self.is_by_next_state:
            rewards[is_absorbing[self.rows.pair_ids]] = 0.0
            return None, rewards[None]
        rewards[is_absorbing] = 0.0
        return rewards.reshape(1, *self.rows.shape, n_kept), None


def make_reward_posterior(
    rewards: Any, log: TransitionLog, rows: DirichletRows, data: TransitionCounts
) -> RewardPosterior:
    """Make the values, or the posterior, of the reward of every pair or transition.

    ``rewards`` is "average", "normal", an array, a table or its path.
    """
    rewards = as_frame(rewards)
    if isinstance(rewards, str) and rewards in ("average", "normal"):
        return _posterior_from_log(rewards == "normal", log, rows, data)
    if isinstance(rewards, (str, os.PathLike, pd.DataFrame)):
        return _posterior_from_table(rewards, rows, data)
    return _posterior_from_array(rewards, rows, data)


# ---------------------------------------------------------------------- from the log
class RewardMoments(NamedTuple):
    """Number, mean and sum of squares about the mean of the rewards of each id, in order."""

    ids: IntArray
    n: Array
    mean: Array
    sum_squares: Array

    @classmethod
    def from_log(cls, log: TransitionLog, reward: Array, data: TransitionCounts) -> RewardMoments:
        """Compute the moments of the rewards of each transition (s A + a) S + s' that occurs."""
        row_keys = (log.state * data.n_actions + log.action) * data.n_states + log.next_state
        cell_ids, n = pd.factorize(row_keys, sort=True)[0], data.counts.astype(np.float64)
        multiplicity = 1 if log.counts is None else log.counts
        mean = _sum_by_id(cell_ids, multiplicity * reward, len(n)) / n
        squares = multiplicity * (reward - mean[cell_ids]) ** 2
        return cls(data.keys, n, mean, _sum_by_id(cell_ids, squares, len(n)))

    def select(self, mask: Mask) -> RewardMoments:
        """Select the ids in a mask."""
        return RewardMoments(self.ids[mask], self.n[mask], self.mean[mask], self.sum_squares[mask])

    def group_by(self, group_keys: IntArray) -> RewardMoments:
        """Combine the moments of ids with the same group key."""
        group_ids, inverse = np.unique(group_keys, return_inverse=True)
        n = _sum_by_id(inverse, self.n, len(group_ids))
        mean = _sum_by_id(inverse, self.n * self.mean, len(group_ids)) / n
        sum_squares = self.sum_squares + self.n * (self.mean - mean[inverse]) ** 2
        return RewardMoments(group_ids, n, mean, _sum_by_id(inverse, sum_squares, len(group_ids)))

    def lookup(self, ids: IntArray) -> RewardMoments:
        """Look up the moments of ids; 0 for ids without rewards."""
        moments = pd.DataFrame(self._asdict()).set_index("ids").reindex(ids, fill_value=0.0)
        return RewardMoments(ids, *moments.to_numpy(np.float64).T)

    @property
    def is_exact(self) -> bool:
        """Whether the rewards of each id are all equal, up to rounding."""
        return bool(self.sum_squares.sum() <= 1e-12 * (self.n @ self.mean**2))

    def differs_from(self, groups: RewardMoments) -> bool:
        """Test whether the means within groups differ, by a one-way analysis of variance."""
        if groups.is_exact or self.is_exact:
            return not groups.is_exact
        within, total = float(self.sum_squares.sum()), float(groups.sum_squares.sum())
        dof = len(self.ids) - len(groups.ids), int(self.n.sum()) - len(self.ids)
        if not dof[0]:
            return False
        f_ratio = ((total - within) / dof[0]) / (within / dof[1])
        return bool(fdtrc(*dof, f_ratio) < SIGNIFICANCE_LEVEL)


def _sum_by_id(ids: IntArray, values: Array, size: int) -> Array:
    return np.bincount(ids, values, size).astype(np.float64, copy=False)


def _posterior_from_log(
    is_sampled: bool, log: TransitionLog, rows: DirichletRows, data: TransitionCounts
) -> RewardPosterior:
    """Make the averages or, if they are to be sampled, the posterior of the rewards of a log."""
    if log.reward is None:
        log.source.fail(
            "no column 'reward'",
            remedies=["add it", Remedy("rewards", "FILE", verb="give a table by")],
        )
    log_moments = RewardMoments.from_log(log, log.reward, data)
    _, (n_total,), (mean_reward,), (total_squares,) = log_moments.group_by(0 * data.keys)
    is_counted = ~rows.is_absorbing[data.keys // data.n_states]
    moments = log_moments.select(is_counted)
    pair_moments = moments.group_by(moments.ids // data.n_states)
    is_by_next_state = _is_by_next_state(moments, pair_moments, data)
    if is_by_next_state:
        cell_moments, cell_pairs = moments.lookup(rows.keys), rows.pair_ids
        default_rewards = _make_default_rewards(moments, rows.keys, data, mean_reward)
    else:
        cell_pairs = np.arange(len(rows.allowed))
        cell_moments = pair_moments.lookup(cell_pairs)
        default_rewards = np.full(len(cell_pairs), mean_reward)
    is_used = (rows.allowed & ~rows.is_absorbing)[cell_pairs]
    is_guessed = bool((is_used & (cell_moments.n == 0)).any())
    notes = _make_notes(is_by_next_state, is_guessed, mean_reward)
    if not is_sampled:
        values = np.where(cell_moments.n > 0, cell_moments.mean, default_rewards)
        return RewardPosterior(rows, values, is_by_next_state, warnings=notes)
    mean, *spread = _update_posterior(cell_moments, default_rewards, total_squares / n_total)
    return RewardPosterior(rows, mean, is_by_next_state, (spread[0], spread[1], spread[2]), notes)


def _is_by_next_state(
    moments: RewardMoments, pair_moments: RewardMoments, data: TransitionCounts
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
    moments: RewardMoments, keys: IntArray, data: TransitionCounts, mean_reward: float
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


def _update_posterior(
    moments: RewardMoments, prior_mean: Array, prior_variance: float
) -> tuple[Array, Array, Array, Array]:
    """Compute (mu_n, kappa_n, a_n, b_n) of the Normal-inverse-gamma posterior.

    The mean and variance of the prior count as one observation: (mean, 1, 2, variance).
    """
    kappa_n = 1.0 + moments.n
    mean_shift = moments.n * (moments.mean - prior_mean) ** 2 / (2 * kappa_n)
    mu_n = (prior_mean + moments.n * moments.mean) / kappa_n
    return mu_n, kappa_n, 2.0 + moments.n / 2, prior_variance + moments.sum_squares / 2 + mean_shift


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
            'rewards must be "average", "normal", an array or a table, not '
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


def _posterior_from_table(
    rewards: PathLike | pd.DataFrame, rows: DirichletRows, data: TransitionCounts
) -> RewardPosterior:
    """Make rewards of a table by state, by state and action, or by transition."""
    if isinstance(rewards, pd.DataFrame):
        table = Table.from_frame(rewards, TableSource("rewards"))
    elif Path(rewards).is_file():
        table = read_table(Path(rewards))
    else:
        raise InputError(f'rewards: no file {rewards}; give "average", "normal" or a table')
    is_by_next_state = "next_state" in table
    required = TABLE_ROLES if is_by_next_state else ("state", "reward")
    expected = f"expected {','.join(TABLE_ROLES)}"
    assign_roles(table.columns, TABLE_ROLES, required, table.source, expected)
    labels = {"state": data.states, "action": data.actions, "next_state": data.states}
    axes = {role: x for role, x in labels.items() if role in table}
    index, sizes = table.find_cells(axes, "this reward")
    values = table.parse_floats("reward")
    table.source.fail_where(~np.isfinite(values), "reward is missing; fill it in")
    keys = rows.keys if is_by_next_state else np.arange(len(rows.allowed))
    table_values = pd.Series(values, np.ravel_multi_index(index, sizes))
    found = table_values.reindex(keys if "action" in table else keys // data.n_actions).to_numpy()
    pairs = rows.pair_ids if is_by_next_state else keys
    missing_pairs = pairs[np.isnan(found) & (rows.allowed & ~rows.is_absorbing)[pairs]]
    notes = []
    if len(missing_pairs) and not is_by_next_state:
        table.source.fail(
            f"no reward for {data.describe_pair(int(missing_pairs[0]))} "
            f"({pluralize(len(missing_pairs), 'pair')} like it); add a row"
        )
    if len(missing_pairs):
        transitions_text = pluralize(len(missing_pairs), "possible transition")
        notes = [f"the rewards table lacks {transitions_text}, and nothing is earned there"]
    return RewardPosterior(rows, np.nan_to_num(found), is_by_next_state, warnings=notes)
