"""Rewards of the fitted models: known, averaged, or drawn from their posterior."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mmdp.arguments import checked
from mmdp.errors import InputError, Remedy
from mmdp.io.frames import as_frame
from mmdp.io.labels import Ints, Names
from mmdp.io.parquet import read_frame
from mmdp.io.reading import Source, numbers
from mmdp.posterior.log import Log
from mmdp.posterior.prior import Bools, Rows
from mmdp.support import Array, refuse_masked
from mmdp.validate import by_label
from mmdp.words import by_count, counted, number


@dataclass(frozen=True)
class RewardLaw:
    """How rewards come about: (S, A) means, or values (nnz,) on the keys, or a posterior."""

    shape: tuple[int, int]
    mean: Array | None = None
    on_keys: Array | None = None
    posterior: tuple[Array, Array, Array, Array] | None = None
    still: Bools | None = None
    warnings: list[str] = field(default_factory=list)

    def draw(
        self, count: int, rng: np.random.Generator, keep: slice = slice(None)
    ) -> tuple[Array | None, Array | None]:
        """((1, S, A, M) expected, (1, nnz, M) per next state): one of the two.

        ``keep``: which of the ``count`` models are returned.
        """
        size = len(range(count)[keep])
        if self.on_keys is not None:
            return None, np.repeat(self.on_keys[None, :, None], size, axis=2)
        if self.mean is not None:
            return np.repeat(self.mean.reshape(1, *self.shape, 1), size, axis=3), None
        assert self.posterior is not None
        assert self.still is not None
        mean, kappa, a, b = (x[:, None] for x in self.posterior)
        variance = b / rng.standard_gamma(np.broadcast_to(a, (len(a), count)))
        drawn = mean + rng.standard_normal((len(a), count)) * np.sqrt(variance / kappa)
        drawn[self.still] = 0.0
        return np.ascontiguousarray(drawn[:, keep]).reshape(1, *self.shape, size), None


@checked
@dataclass(frozen=True, eq=False)
class Rewards:
    """What :func:`fit` takes for rewards; a row that only stays in its state earns 0.

    Parameters
    ----------
    source
        ``"average"`` of the log by (s, a); ``"normal"``, drawn from the Normal-inverse-gamma
        posterior of each (s, a); or known: an array (S,), (S, A) or (S, A, S'), a table (a
        DataFrame or the path of one) with columns state, action, next_state (the last two may
        be left out) and reward, or a function of (state, action, next_state).
    prior
        (mean, kappa, a, b) of the Normal-inverse-gamma prior. By default the overall mean and
        variance of the log's rewards count as one observation: (mean, 1, 2, variance).

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

    def law(self, log: Log, rows: Rows, visits: Ints) -> RewardLaw:
        """The means, or the posterior, of every row."""
        if self._is("average", "normal"):
            return self._of_log(log, rows, visits)
        source, keys, still = as_frame(self.source), rows.keys, rows.still
        if isinstance(source, (str, os.PathLike, pd.DataFrame)):
            return _from_table(source, log, keys, still)
        if callable(source):
            shape = (log.states.size, log.actions.size)
            return RewardLaw(shape, on_keys=_from_function(source, log, keys, still))
        return _from_array(source, log, keys, still)

    def _of_log(self, log: Log, rows: Rows, visits: Ints) -> RewardLaw:
        shape, still = (log.states.size, log.actions.size), rows.still
        if log.reward is None:
            log.source.fail(
                "no column 'reward'",
                remedies=["add it", Remedy("rewards", "FILE", do="give a table by")],
            )
        pairs, reward = log.state * shape[1] + log.action, log.reward
        typical = float(np.average(reward, weights=log.count))
        notes = []
        if self.prior is None:
            notes = _guessed(typical, rows.keys // shape[0], visits, still)
        n, mean, squares = _moments(pairs, reward, log.count, visits)
        if self.source == "average":
            mean[n == 0] = typical
            return RewardLaw(shape, mean=np.where(still, 0.0, mean), warnings=notes)
        spread = float(np.average((reward - typical) ** 2, weights=log.count))
        prior = (typical, 1.0, 2.0, spread) if self.prior is None else self.prior
        found = _posterior(n, mean, squares, prior)
        return RewardLaw(shape, posterior=found, still=still, warnings=notes)


# ---------------------------------------------------------------------- from the log
def _guessed(typical: float, rows: Ints, visits: Ints, still: Bools) -> list[str]:
    """What to say if some pair that can be chosen has no reward in the log."""
    if not ((visits[rows] == 0) & ~still[rows]).any():
        return []
    return [f"what was never seen earns the log's average reward, {number(typical)}; if you know "
            "better, give a table of rewards"]  # fmt: skip


def _moments(
    rows: Ints, reward: Array, count: Ints | None, visits: Ints
) -> tuple[Array, Array, Array]:
    """(n, mean, sum of squares about the mean) of every row."""
    n, times = visits.astype(np.float64), 1 if count is None else count
    mean = np.bincount(rows, times * reward, len(n)) / np.maximum(n, 1)
    squares = np.bincount(rows, times * (reward - mean[rows]) ** 2, len(n)).astype(np.float64)
    return n, mean, squares


def _posterior(
    n: Array, mean: Array, squares: Array, prior: Sequence[float]
) -> tuple[Array, Array, Array, Array]:
    """(mu_n, kappa_n, a_n, b_n) of the Normal-inverse-gamma posterior."""
    given = tuple(prior)
    if len(given) != 4 or not np.isfinite(given).all() or min(given[1:3]) <= 0 or given[3] < 0:
        raise InputError(
            "reward_prior must be (mean, kappa, a, b) with kappa and a above 0 and b at least "
            f"0, not {prior!r}"
        )
    mu, kappa, a, b = given
    together = kappa + n
    spread = kappa * n * (mean - mu) ** 2 / (2 * together)
    return (kappa * mu + n * mean) / together, together, a + n / 2, b + squares / 2 + spread


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
        return RewardLaw(array.shape, mean=np.where(still.reshape(array.shape), 0.0, array))
    if array.shape != (n_states, n_actions, n_states):
        raise InputError(
            f"rewards of shape {array.shape} fit neither (S,) = ({n_states},), (S, A) = "
            f"{n_states, n_actions} nor (S, A, S') = {n_states, n_actions, n_states}"
        )
    values = array.reshape(-1)[keys] * ~still[keys // n_states]
    return RewardLaw((n_states, n_actions), on_keys=values)


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
    full = np.where(np.isnan(full), 0.0, full)
    return RewardLaw((n_states, n_actions), mean=full.reshape(n_states, n_actions))


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
        on_keys=np.where(found & free, values[order][at], 0.0),
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
