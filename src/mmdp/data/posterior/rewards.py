"""Rewards of fitted models: known, averaged, or sampled from their posterior."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mmdp.core.errors import InputError, Remedy
from mmdp.core.text import format_number, pluralize
from mmdp.core.transitions import Array, check_not_masked
from mmdp.core.validate import align_to_labels
from mmdp.data.io.parquet import read_table
from mmdp.data.io.reading import as_frame
from mmdp.data.io.writing import PathLike
from mmdp.data.posterior.prior import DirichletRows, RewardMoments
from mmdp.data.schema import Table, TableSource, assign_roles

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
            rewards[is_absorbing[self.rows.data.to_pairs(self.rows.keys)]] = 0.0
            return None, rewards[None]
        rewards[is_absorbing] = 0.0
        return rewards.reshape(1, *self.rows.data.shape, n_kept), None


def make_reward_posterior(rewards: Any, rows: DirichletRows) -> RewardPosterior:
    """Make the values, or the posterior, of the reward of every pair or transition.

    ``rewards`` is "average", "normal", an array, a table or its path.
    """
    rewards = as_frame(rewards)
    if isinstance(rewards, str) and rewards in ("average", "normal"):
        return _posterior_from_log(rewards == "normal", rows)
    if isinstance(rewards, (str, os.PathLike, pd.DataFrame)):
        return _posterior_from_table(rewards, rows)
    return _posterior_from_array(rewards, rows)


# ---------------------------------------------------------------------- from the log
def _posterior_from_log(is_sampled: bool, rows: DirichletRows) -> RewardPosterior:
    """Make the averages or, if they are to be sampled, the posterior of the rewards of a log.

    The prior of sampled rewards is Normal-inverse-gamma; its mean and variance count as one
    observation.
    """
    data = rows.data
    if data.rewards is None:
        data.source.fail(
            "no column 'reward'",
            remedies=["add it", Remedy("rewards", "FILE", verb="give a table by")],
        )
    _, (n_total,), (mean_reward,), (total_squares,) = data.rewards.group_by(0 * data.keys)
    moments = data.rewards.select(~rows.is_absorbing[data.to_pairs(data.keys)])
    pair_moments = moments.group_by(data.to_pairs(moments.ids))
    is_by_next_state = _is_by_next_state(moments, pair_moments, rows)
    if is_by_next_state:
        cells, pairs = moments.lookup(rows.keys), data.to_pairs(rows.keys)
        unseen_text = "a transition never seen earns the average of those to its next state"
    else:
        pairs = np.arange(len(rows.allowed))
        cells, mean_text = pair_moments.lookup(pairs), format_number(mean_reward)
        unseen_text = f"a pair never seen earns the log's average reward, {mean_text}"
    is_seen = cells.n > 0
    is_guessed = bool((rows.allowed & ~rows.is_absorbing)[pairs[~is_seen]].any())
    notes = ["rewards are by state, action and next state"] * is_by_next_state
    notes += [f"{unseen_text}; give a table of rewards if they are known"] * is_guessed
    prior_mean = np.full(len(pairs), mean_reward)
    if is_by_next_state:  # the average from s to s', else to s', else of the log
        for to_group in (lambda keys: keys % data.states.size, data.to_moves):
            groups = moments.group_by(to_group(moments.ids)).lookup(to_group(rows.keys))
            prior_mean = np.where(groups.n > 0, groups.mean, prior_mean)
    if not is_sampled:
        values = np.where(is_seen, cells.mean, prior_mean)
        return RewardPosterior(rows, values, is_by_next_state, warnings=notes)
    kappa = 1.0 + cells.n
    mean_shift = cells.n * (cells.mean - prior_mean) ** 2 / (2 * kappa)
    b = total_squares / n_total + cells.sum_squares / 2 + mean_shift
    values = (prior_mean + cells.n * cells.mean) / kappa
    return RewardPosterior(rows, values, is_by_next_state, (kappa, 2.0 + cells.n / 2, b), notes)


def _is_by_next_state(
    moments: RewardMoments, pair_moments: RewardMoments, rows: DirichletRows
) -> bool:
    """Return whether rewards belong to transitions rather than to pairs (s, a).

    They do if those of a pair differ by next state. Short logs may lack pairs with two next
    states: rewards without noise belong to transitions too, unless they differ by action from s to
    the same s'.
    """
    if moments.differs_from(pair_moments):
        return True
    by_state = moments.group_by(moments.ids // len(rows.allowed))
    varies = moments.is_exact and moments.differs_from(by_state)
    return varies and not moments.differs_from(moments.group_by(rows.data.to_moves(moments.ids)))


# ---------------------------------------------------------------------- known rewards
def _posterior_from_array(rewards: Any, rows: DirichletRows) -> RewardPosterior:
    """Make rewards of an array (S,), (S, A) or (S, A, S')."""
    n_states, n_actions = shape = rows.data.shape
    check_not_masked(rewards, "rewards")
    labeled = align_to_labels(rewards, "rewards", rows.data.states.axis_labels)
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
    if array.shape == shape:
        return RewardPosterior(rows, array.reshape(-1))
    if array.shape != (*shape, n_states):
        raise InputError(
            f"rewards has shape {array.shape}; give (S,) = ({n_states},), (S, A) = "
            f"{shape} or (S, A, S') = {*shape, n_states}"
        )
    return RewardPosterior(rows, array.reshape(-1)[rows.keys], True)


def _posterior_from_table(rewards: PathLike | pd.DataFrame, rows: DirichletRows) -> RewardPosterior:
    """Make rewards of a table by state, by state and action, or by transition."""
    if isinstance(rewards, pd.DataFrame):
        table = Table.from_frame(rewards, TableSource("rewards"))
    elif Path(rewards).is_file():
        table = read_table(Path(rewards))
    else:
        raise InputError(f'rewards: no file {rewards}; give "average", "normal" or a table')
    data, is_by_next_state = rows.data, "next_state" in table
    required = TABLE_ROLES if is_by_next_state else ("state", "reward")
    expected = f"expected {','.join(TABLE_ROLES)}"
    assign_roles(table.columns, TABLE_ROLES, required, table.source, expected)
    labels = {"state": data.states, "action": data.actions, "next_state": data.states}
    axes = {role: x for role, x in labels.items() if role in table}
    index, sizes = table.find_cells(axes, "this reward")
    values = table.parse_floats("reward")
    table.source.fail_where(~np.isfinite(values), "reward is missing; fill it in")
    pairs = data.to_pairs(rows.keys) if is_by_next_state else np.arange(len(rows.allowed))
    cells = rows.keys if is_by_next_state else pairs
    table_values = pd.Series(values, np.ravel_multi_index(index, sizes))
    found = table_values.reindex(
        cells if "action" in table else cells // data.actions.size
    ).to_numpy()
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
