"""Rewards of the fitted models: known, averaged, or drawn from their posterior."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from mmdp.arguments import checked
from mmdp.errors import InputError, Remedy
from mmdp.io.frames import as_frame
from mmdp.io.labels import Ints, Names
from mmdp.io.parquet import read_frame
from mmdp.io.reading import Source, numbers
from mmdp.posterior.counts import Counts
from mmdp.posterior.log import Log
from mmdp.posterior.prior import Bools, Rows
from mmdp.support import Array, refuse_masked
from mmdp.validate import by_label
from mmdp.words import by_count, counted, number

SIGNIFICANT = 0.01  # of the test whether rewards depend on the next state


@dataclass(frozen=True)
class RewardLaw:
    """Rewards by row (S A,) or, if ``by_next``, by key (nnz,): their values, or a posterior.

    ``still``: those of rows that stay, which earn 0.
    """

    shape: tuple[int, int]
    still: Bools
    by_next: bool = False
    values: Array | None = None
    posterior: tuple[Array, Array, Array, Array] | None = None
    warnings: list[str] = field(default_factory=list)

    def draw(
        self, count: int, rng: np.random.Generator, keep: slice = slice(None)
    ) -> tuple[Array | None, Array | None]:
        """((1, S, A, M) expected, (1, nnz, M) per next state): one of the two.

        ``keep``: which of the ``count`` models are returned.
        """
        size = len(range(count)[keep])
        if self.values is not None:
            drawn = np.repeat(np.where(self.still, 0.0, self.values)[:, None], size, axis=1)
        else:
            assert self.posterior is not None
            mean, kappa, a, b = (x[:, None] for x in self.posterior)
            variance = b / rng.standard_gamma(np.broadcast_to(a, (len(a), count)))
            drawn = mean + rng.standard_normal((len(a), count)) * np.sqrt(variance / kappa)
            drawn[self.still] = 0.0
            drawn = np.ascontiguousarray(drawn[:, keep])
        return (None, drawn[None]) if self.by_next else (drawn.reshape(1, *self.shape, size), None)


@checked
@dataclass(frozen=True, eq=False)
class Rewards:
    """What :func:`fit` takes for rewards; a row that only stays in its state earns 0.

    Parameters
    ----------
    source
        ``"average"`` of the log; ``"normal"``, drawn from their Normal-inverse-gamma posterior;
        both by (s, a, s') if rewards of a pair (s, a) differ by next state (noisy ones: by an F
        test at 1%) or, without noise, do not differ by action on the same way from s to s'; by
        (s, a) otherwise. Or known: an array (S,), (S, A) or (S, A, S'), a table (a
        DataFrame or the path of one) with columns state, action, next_state (the last two may
        be left out) and reward, or a function of (state, action, next_state).
    prior
        (mean, kappa, a, b) of the Normal-inverse-gamma prior. By default the overall mean (by
        next state: that of those to the same one) and variance of the log's rewards count as one
        observation: (mean, 1, 2, variance).

    >>> import mmdp
    >>> log = {"state": [0, 0], "action": [0, 0], "next_state": [0, 0], "reward": [3.0, 5.0]}
    >>> drawn = mmdp.Rewards("normal", prior=(0.0, 1.0, 2.0, 1.0))
    >>> model = mmdp.fit(log, models=2000, rewards=drawn).train
    >>> bool(abs(model.rewards.mean() - 8 / 3) < 0.1)  # (1 * 0 + 3 + 5) / (1 + 2)
    True
    """

    source: Any = "average"
    prior: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.prior is not None and not self._is("normal"):
            raise InputError('a prior of rewards (reward_prior) is for rewards="normal"')

    def _is(self, *words: str) -> bool:
        return isinstance(self.source, str) and self.source in words

    def law(self, log: Log, rows: Rows, data: Counts) -> RewardLaw:
        """The means, or the posterior, of every row or transition."""
        if self._is("average", "normal"):
            return self._of_log(log, rows, data)
        source, keys, still = as_frame(self.source), rows.keys, rows.still
        if isinstance(source, (str, os.PathLike, pd.DataFrame)):
            return _from_table(source, log, keys, still)
        if callable(source):
            values, shape = (
                _from_function(source, log, keys, still),
                (data.n_states, data.n_actions),
            )
            return RewardLaw(shape, still[keys // data.n_states], by_next=True, values=values)
        return _from_array(source, log, keys, still)

    def _of_log(self, log: Log, rows: Rows, data: Counts) -> RewardLaw:
        if log.reward is None:
            log.source.fail(
                "no column 'reward'",
                remedies=["add it", Remedy("rewards", "FILE", do="give a table by")],
            )
        row, all_seen = rows.keys // data.n_states, _Moments.of_log(log, log.reward, data)
        seen = all_seen.some(~rows.still[data.keys // data.n_states])
        typical, still = all_seen.typical, rows.still
        by_pair = seen.by(seen.ids // data.n_states)
        by_next = _are_by_next(seen, by_pair, data)
        if by_next:
            still, cells = still[row], seen.at(rows.keys)
            guess = _first_known(seen, rows.keys, data, typical)
        else:
            cells, guess = by_pair.at(np.arange(len(still))), np.full(len(still), typical)
        guessed = ((cells.n if by_next else cells.n[row]) == 0) & ~rows.still[row]
        notes = _notes(by_next, guessed.any() and self.prior is None, typical)
        shape = (data.n_states, data.n_actions)
        if self.source == "average":
            values = np.where(cells.n > 0, cells.mean, guess)
            return RewardLaw(shape, still, by_next, values=values, warnings=notes)
        if self.prior is None:
            found = _posterior(cells, guess, 1.0, 2.0, all_seen.variance)
        else:
            found = _posterior(cells, *_read_prior(self.prior))
        return RewardLaw(shape, still, by_next, posterior=found, warnings=notes)


# ---------------------------------------------------------------------- from the log
class _Moments(NamedTuple):
    """Number, mean and sum of squares about the mean of the rewards of each id, in order."""

    ids: Ints
    n: Array
    mean: Array
    squares: Array

    @classmethod
    def of_log(cls, log: Log, reward: Array, data: Counts) -> _Moments:
        """Those of the transitions (s A + a) S + s' that occur."""
        key = (log.state * data.n_actions + log.action) * data.n_states + log.next_state
        cells, n = np.searchsorted(data.keys, key), data.counts.astype(np.float64)
        times = 1 if log.count is None else log.count
        mean = _sums(cells, times * reward, len(n)) / n
        return cls(data.keys, n, mean, _sums(cells, times * (reward - mean[cells]) ** 2, len(n)))

    @property
    def typical(self) -> float:
        return float(np.average(self.mean, weights=self.n))

    @property
    def variance(self) -> float:
        return float(self.by(np.zeros_like(self.ids)).squares[0] / self.n.sum())

    def some(self, chosen: Bools) -> _Moments:
        return _Moments(self.ids[chosen], *(x[chosen] for x in self[1:]))

    def by(self, groups: Ints) -> _Moments:
        """Those of groups of ids."""
        names, group = np.unique(groups, return_inverse=True)
        n = _sums(group, self.n, len(names))
        mean = _sums(group, self.n * self.mean, len(names)) / n
        squares = self.squares + self.n * (self.mean - mean[group]) ** 2
        return _Moments(names, n, mean, _sums(group, squares, len(names)))

    def at(self, wanted: Ints) -> _Moments:
        """Those of the ids that are wanted; 0 if there are none."""
        place = np.minimum(np.searchsorted(self.ids, wanted), max(len(self.ids) - 1, 0))
        known = self.ids[place] == wanted if len(self.ids) else np.zeros(len(wanted), bool)
        found = (np.where(known, x[place] if len(x) else 0.0, 0.0) for x in self[1:])
        return _Moments(wanted, *found)

    @property
    def is_exact(self) -> bool:
        """Whether the rewards of an id are all the same, up to rounding."""
        return bool(self.squares.sum() <= 1e-12 * (self.n @ self.mean**2))

    def differs_from(self, groups: _Moments) -> bool:
        """Whether the means within groups differ: a one-way analysis of variance."""
        within, total = float(self.squares.sum()), float(groups.squares.sum())
        if groups.is_exact or self.is_exact:
            return not groups.is_exact
        freedom = len(self.ids) - len(groups.ids), int(self.n.sum()) - len(self.ids)
        if not freedom[0]:
            return False
        ratio = ((total - within) / freedom[0]) / (within / freedom[1])
        return bool(fdtrc(*freedom, ratio) < SIGNIFICANT)


def _sums(places: Ints, values: Array, size: int) -> Array:
    return np.bincount(places, values, size).astype(np.float64, copy=False)


def _are_by_next(seen: _Moments, by_pair: _Moments, data: Counts) -> bool:
    """Whether rewards belong to transitions rather than to pairs (s, a).

    They do if those of a pair differ by next state. Short logs may not have a pair with two next
    states where it matters: rewards without noise belong to transitions too, unless they differ
    by action on the same way from s to s'.
    """
    if seen.differs_from(by_pair):
        return True
    state = seen.ids // (data.n_states * data.n_actions)
    varies = seen.is_exact and seen.differs_from(seen.by(state))
    return varies and not seen.differs_from(seen.by(_move(seen.ids, data)))


def _move(keys: Ints, data: Counts) -> Ints:
    """s S + s' of the keys (s A + a) S + s'."""
    return keys // (data.n_states * data.n_actions) * data.n_states + keys % data.n_states


def _first_known(seen: _Moments, keys: Ints, data: Counts, typical: float) -> Array:
    """(nnz,) the average from the same s to the same s', else to the same s', else of the log."""
    found = np.full(len(keys), typical)
    for ids, wanted in (
        (seen.ids % data.n_states, keys % data.n_states),
        (_move(seen.ids, data), _move(keys, data)),
    ):
        group = seen.by(ids).at(wanted)
        found = np.where(group.n > 0, group.mean, found)
    return found


def _notes(by_next: bool, guessed: bool, typical: float) -> list[str]:
    """What to say about how rewards were read, and those that the log does not have."""
    found = ["rewards are by state, action and next state"] * by_next
    if guessed:
        guess = (
            "a transition never seen earns the average of those to its next state" if by_next
            else f"what was never seen earns the log's average reward, {number(typical)}"
        )  # fmt: skip
        found.append(f"{guess}; if you know better, give a table of rewards")
    return found


def _read_prior(prior: Sequence[float]) -> tuple[float, ...]:
    given = tuple(prior)
    if len(given) != 4 or not np.isfinite(given).all() or min(given[1:3]) <= 0 or given[3] < 0:
        raise InputError(
            "reward_prior must be (mean, kappa, a, b) with kappa and a above 0 and b at least "
            f"0, not {prior!r}"
        )
    return given


def _posterior(
    x: _Moments, mu: Array | float, kappa: float, a: float, b: float
) -> tuple[Array, Array, Array, Array]:
    """(mu_n, kappa_n, a_n, b_n) of the Normal-inverse-gamma posterior."""
    together = kappa + x.n
    spread = kappa * x.n * (x.mean - mu) ** 2 / (2 * together)
    mean = (kappa * mu + x.n * x.mean) / together
    return mean, together, a + x.n / 2, b + x.squares / 2 + spread


# ---------------------------------------------------------------------- known
def _from_array(rewards: Any, log: Log, keys: Ints, still: Bools) -> RewardLaw:
    n_states, n_actions = log.states.size, log.actions.size
    refuse_masked(rewards, "rewards")
    by_state = by_label(rewards, "rewards", log.states.labels or range(n_states))
    try:
        array = np.asarray(by_state, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            'rewards must be "average", "normal", an array, a table or a function, not '
            f"{type(rewards).__name__}"
        ) from None
    if not np.isfinite(array).all():
        raise InputError("rewards must be finite numbers")
    if array.shape == (n_states,):
        array = np.repeat(array[:, None], n_actions, axis=1)
    if array.shape == (n_states, n_actions):
        return RewardLaw((n_states, n_actions), still, values=array.reshape(-1))
    if array.shape != (n_states, n_actions, n_states):
        raise InputError(
            f"rewards of shape {array.shape} fit neither (S,) = ({n_states},), (S, A) = "
            f"{n_states, n_actions} nor (S, A, S') = {n_states, n_actions, n_states}"
        )
    values, on_keys = array.reshape(-1)[keys], still[keys // n_states]
    return RewardLaw((n_states, n_actions), on_keys, by_next=True, values=values)


def _from_function(function: Any, log: Log, keys: Ints, still: Bools) -> Array:
    """(nnz,) the function at every transition of the support, given labels or ids."""
    n_states, n_actions = log.states.size, log.actions.size
    values = np.zeros(len(keys))
    for i, key in enumerate(keys.tolist()):
        row, after = divmod(key, n_states)
        if still[row]:
            continue
        place = (
            log.states.shown(row // n_actions), log.actions.shown(row % n_actions),
            log.states.shown(after),
        )  # fmt: skip
        values[i] = _called(function, place)
    return values


def _called(function: Any, place: tuple[str | int, str | int, str | int]) -> float:
    where = f"rewards function at state {place[0]!r}, action {place[1]!r}, next {place[2]!r}"
    try:
        value = float(function(*place))
    except Exception as error:
        raise InputError(f"{where} raised {type(error).__name__}: {error}") from error
    if not np.isfinite(value):
        raise InputError(f"{where} gives {value}; rewards must be finite")
    return value


def _from_table(table: Any, log: Log, keys: Ints, still: Bools) -> RewardLaw:
    """A table by state, by state and action, or by transition."""
    frame, source = _read_table(table)
    columns = _table_columns(frame, source)
    if not len(frame):
        source.fail("a header but no rows; expected one row per reward")
    names = {"state": log.states, "action": log.actions, "next_state": log.states}
    ids = {c: _places(frame[c], names[c], source) for c in columns if c != "reward"}
    values = numbers(frame["reward"].reset_index(drop=True), "reward", source)
    source.refuse(~np.isfinite(values), "reward is missing; fill it in")
    n_states, n_actions = log.states.size, log.actions.size
    sizes = [names[c].size for c in ids]
    flat = np.ravel_multi_index(tuple(ids.values()), sizes)
    source.refuse(pd.Series(flat).duplicated(), "this reward is given twice; keep one row")
    if "next_state" in ids:
        return _by_transition(flat, values, log, keys, still)
    given = np.full(int(np.prod(sizes)), np.nan)
    given[flat] = values
    full = np.repeat(given, n_actions) if "action" not in ids else given
    full[still] = 0.0
    needed = np.zeros(len(full), dtype=bool)
    needed[keys // n_states] = True
    lacking = np.flatnonzero(np.isnan(full) & needed)
    if len(lacking):
        state, action = divmod(int(lacking[0]), n_actions)
        source.fail(
            f"no reward for state {log.states.of(state)}, action {log.actions.of(action)} "
            f"({counted(len(lacking), 'pair')} like it); add a row"
        )
    return RewardLaw((n_states, n_actions), still, values=np.where(np.isnan(full), 0.0, full))


def _by_transition(flat: Ints, values: Array, log: Log, keys: Ints, still: Bools) -> RewardLaw:
    order = np.argsort(flat)
    at = np.minimum(np.searchsorted(flat[order], keys), len(flat) - 1)
    found = flat[order][at] == keys
    free = ~still[keys // log.states.size]
    lacking = int((~found & free).sum())
    earns = by_count(lacking, "it earns", "they earn")
    note = f"the rewards table lacks {counted(lacking, 'possible transition')}; {earns} 0"
    return RewardLaw(
        (log.states.size, log.actions.size),
        ~free,
        by_next=True,
        values=np.where(found, values[order][at], 0.0),
        warnings=[note] if lacking else [],
    )


def _read_table(table: Any) -> tuple[pd.DataFrame, Source]:
    if isinstance(table, pd.DataFrame):
        return table, Source("rewards")
    path = Path(table)
    if not path.is_file():
        raise InputError(f'rewards: no file {path}; give "average", "normal" or a table')
    return read_frame(path), Source(path)


def _table_columns(frame: pd.DataFrame, source: Source) -> list[str]:
    known = ("state", "action", "next_state", "reward")
    columns = [str(x) for x in frame.columns]
    needed = ["state", "reward", *(["action"] if "next_state" in columns else [])]
    source.check_columns(columns, known, needed, "expected state,action,next_state,reward")
    return [x for x in known if x in columns]


def _places(column: pd.Series, names: Names, source: Source) -> Ints:
    found = names.find(column)
    source.refuse(found < 0, lambda i: names.unknown(column.iloc[i]))
    return found
