"""fit: models sampled from the Dirichlet posterior of logged transitions.

Symbols: n(s, a, s') counts of the log, alpha(s, a, s') pseudo-counts of the prior. Every row is
independent, p(. | s, a) ~ Dirichlet(alpha + n) on the support. A mean reward is known, the
average of the log, or sampled with r | sigma^2 ~ Normal(mu_n, sigma^2 / kappa_n) and
sigma^2 ~ InverseGamma(a_n, b_n).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import fdtrc

from mmdp.core.arguments import (
    Label,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    StateText,
    check_arguments,
)
from mmdp.core.errors import InputError, MemoryLimitError, Remedy
from mmdp.core.kernels.problem import Shard
from mmdp.core.model import MMDP, Evidence
from mmdp.core.shapes import AnyArray, Array, IndexArray, Mask
from mmdp.core.text import format_bytes, format_number, join_first, pluralize
from mmdp.core.transitions import (
    MAX_DENSE_BYTES,
    SparseTransitions,
    as_float_array,
    check_not_masked,
)
from mmdp.core.validate import align_to_labels
from mmdp.data.io.folders import TABLE_FILES, is_read_with, replace_folder
from mmdp.data.io.reading import as_frame, read_table
from mmdp.data.io.writing import PathLike, Writer, check_writable, format_csv
from mmdp.data.posterior.log import TransitionLog, read_log, split_terminal_states
from mmdp.data.sampling import sample_dirichlet_rows, spawn_generators
from mmdp.data.schema import ColumnLabels, Fields, Table, TableSource, ValuesByLabel, assign_roles

UnseenRule = Literal["prior", "absorb", "forbid"]
UNSEEN_TEXTS = {
    "prior": "sampled from the prior alone",
    "absorb": "made to stay and earn 0",
    "forbid": "forbidden",
}
SIGNIFICANCE_LEVEL = 0.01  # of the test whether rewards depend on the next state
JEFFREYS_COUNT = 0.5  # the pseudo-count of Jeffreys' prior
TABLE_ROLES = ("state", "action", "next_state", "reward")


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """Models sampled from a posterior; unpacks as the pair (train, test).

    ``train`` and ``test`` (None without test models) hold models from the same posterior.
    ``counts`` is a table (state, action, next_state, count) of the log, ``pair_counts`` (S, A) how
    often each pair is in the log, ``unseen_pairs`` the pairs that are not, as (state, action)
    labels or ids, and ``warnings`` sentences about problems of the data.
    """

    train: MMDP
    test: MMDP | None
    unseen_pairs: tuple[tuple[str | int, str | int], ...]
    warnings: tuple[str, ...]
    _data: TransitionCounts

    @cached_property
    def pair_counts(self) -> IndexArray:
        """How often each state-action pair (S, A) is in the log."""
        return self._data.pair_counts.reshape(self._data.shape)

    @cached_property
    def counts(self) -> pd.DataFrame:
        """Table (state, action, next_state, count) of the log."""
        (n_states, n_actions), data = self._data.shape, self._data
        state, action, next_state = np.unravel_index(data.keys, (n_states, n_actions, n_states))
        states, actions = (np.asarray(x.axis_labels) for x in (data.states, data.actions))
        columns = {
            "state": states[state],
            "action": actions[action],
            "next_state": states[next_state],
        }
        return pd.DataFrame(columns | {"count": data.counts})

    def __iter__(self) -> Iterator[MMDP | None]:
        return iter((self.train, self.test))

    def __repr__(self) -> str:
        n_test = 0 if self.test is None else self.test.n_models
        lines = [
            f"Fit({pluralize(int(self.pair_counts.sum()), 'transition')}; "
            f"{self.train.n_models} train and {n_test} test models, "
            f"{pluralize(self.train.n_states, 'state')}, "
            f"{pluralize(self.train.n_actions, 'action')}; {len(self.unseen_pairs)} of "
            f"{self.pair_counts.size} state-action pairs unseen)"
        ]
        return "\n".join(lines + [f"  warning: {warning}" for warning in self.warnings])


@check_arguments
def fit(
    log: Any,
    *,
    n_models: PositiveInt = 200,
    n_test_models: NonNegativeInt = 0,
    prior: npt.ArrayLike | Literal["pooled", "symmetric"] = "pooled",
    concentration: PositiveFloat = 1.0,
    support: Literal["all", "seen"] = "all",
    unseen: UnseenRule = "prior",
    absorbing: Iterable[Label] = (),
    rewards: Any = "average",
    columns: Mapping[str, str] | None = None,
    states: PositiveInt | Iterable[object] | None = None,
    actions: PositiveInt | Iterable[object] | None = None,
    initial: StateText | ValuesByLabel | None = None,
    discount: float = 1.0,
    name: str | None = None,
    time_labels: Any = None,
    unit: str | None = None,
    quantity: str | None = None,
    seed: Seed = 0,
    shard: tuple[int, int] | None = None,
) -> Fit:
    """Sample models from the posterior of logged transitions.

    Parameters
    ----------
    log
        Path of a ``.csv`` or ``.parquet`` file, a DataFrame or a mapping of columns, one row
        per transition: ``state``, ``action``, ``next_state`` and, if known, ``reward``,
        ``episode``, ``time`` or ``step`` (orders the rows of an episode) and ``terminated``
        (whether the episode ends in the next state). A row with ``count`` n stands for n such
        rows, as in published tables of counts. Labels, or ids from 0; if no id is 0 and the lowest
        is 1, they count from 1 and stay as labels.
    n_models
        Number of models to compute a policy from.
    n_test_models
        Number of test models, from the same posterior.
    prior
        Pseudo-counts: ``"pooled"`` over the actions of a state, ``"symmetric"``, or an array.
        Pooled: half an observation of each next state that followed the state in the log, after any
        action. With fewer than two next states, another half is spread over all states, so that a
        transition seen once is not certain. Symmetric: one of every next state. An array is
        (S, S'), or one that broadcasts to (S, A, S'), 0 for impossible transitions.
    concentration
        Factor for the pseudo-counts of the prior.
    support
        Possible next states: ``"all"`` that the prior allows, or ``"seen"`` after the same action.
        With the latter a single one is certain in every model.
    unseen
        How to treat a pair (s, a) that is not in the log. ``"prior"``: sample it from the prior
        (its reward is then the overall average). ``"absorb"``: stay there and earn 0.
        ``"forbid"``: do not allow it (a state that is never left stays and earns 0).
    absorbing
        States that end an episode: they stay and earn 0, even if the log has other transitions. So
        do those in which a log with a column ``terminated`` ends its episodes.
    rewards
        The ``"average"`` of the log, ``"normal"`` (sampled from their posterior), or a table.
        The first two are by (s, a, s') if rewards of a pair (s, a) differ by next state (noisy
        ones: by an F test at 1%) or, without noise, do not differ by action from s to the same s';
        by (s, a) otherwise. The prior of normal rewards is Normal-inverse-gamma, with the mean and
        variance of the log's rewards as one observation. Known rewards are a table (a
        DataFrame or the path of one) with columns state, action, next_state (the last two may
        be left out) and reward, or an array (S,), (S, A) or (S, A, S'). Absorbing states earn 0.
    columns
        Names of columns that are not called by their role. ``{"state": "from"}``, for example.
    states
        Number of states or their labels in order, for those that the log lacks; by default those
        that occur.
    actions
        Number of actions or their labels in order, as for states.
    initial
        The first state, or the probabilities of several; by default those of the episodes in the
        log, if it has any, else uniform. As for :func:`mmdp.load`.
    discount
        Discount factor per step, from 0 to 1.
    name, time_labels, unit, quantity
        Fields of the models.
    seed
        Seed of the random numbers; train and test have separate streams.
    shard
        ``(i, n)``: keep shard i of n of the models, for one of n processes (see
        :mod:`mmdp.distributed`). They are those that a single process would sample.

    >>> import mmdp.data.posterior
    >>> log = {"state": ["up", "up", "up", "down"], "action": ["run", "run", "run", "fix"],
    ...        "next_state": ["up", "up", "down", "up"], "reward": [5, 5, 5, -2]}
    >>> result = mmdp.posterior.fit(log, n_models=500, unseen="forbid")
    >>> result.unseen_pairs
    (('up', 'fix'), ('down', 'run'))
    >>> mean = result.train.transitions.mean(axis=0)[0, 0]       # Dirichlet(2.5, 1.5)
    >>> bool(abs(mean[0] - 2.5 / 4) < 0.03)
    True
    """
    if isinstance(absorbing, str):
        raise InputError(f"absorbing={absorbing!r} is text; give a list of states")
    parsed_log = split_terminal_states(read_log(log, columns, states, actions))
    data = TransitionCounts.from_log(parsed_log)
    notes, initial_states = parsed_log.notes, parsed_log.initial_states
    del parsed_log  # frees its columns
    labels = data.states.axis_labels
    if not isinstance(prior, str):  # it is kept, and the user's may change
        prior = as_float_array(align_to_labels(prior, "prior", labels, labels), "prior").copy()
    prior_spec = Prior(prior, concentration, support, unseen, tuple(absorbing))
    rows = prior_spec.make_rows(data)
    n_kept = (n_models + n_test_models) // (1 if shard is None else shard[1])
    check_fit_size(len(rows.keys), data, n_kept)
    reward_posterior = make_reward_posterior(rewards, rows)
    if initial is None and initial_states is not None:
        initial = np.bincount(initial_states, minlength=data.states.size) / len(initial_states)
    fields: Fields = {
        "states": data.states.labels,
        "actions": data.actions.labels,
        "initial": initial,
        "discount": discount,
        "name": name,
        "time_labels": time_labels,
        "unit": unit,
        "quantity": quantity,
    }
    evidence = Evidence(data.keys, data.counts, prior_spec.to_dict(data))

    def sample(n: int, rng: np.random.Generator) -> MMDP:
        return sample_models(reward_posterior, n, rng, fields, shard).with_evidence(evidence)

    train_rng, test_rng = spawn_generators(seed, 2)
    train = sample(n_models, train_rng)
    test = sample(n_test_models, test_rng) if n_test_models else None
    unseen_pairs = tuple(
        (data.states.axis_labels[s], data.actions.axis_labels[a])
        for s, a in np.argwhere(rows.is_unseen.reshape(data.shape)).tolist()
    )
    warnings = (*notes, *_make_warnings(rows, prior_spec), *reward_posterior.warnings)
    return Fit(train, test, unseen_pairs, warnings, data)


@check_arguments
def fit_folder(log: Any, path: str | Path, *, overwrite: bool = False, **options: Any) -> Fit:
    """Fit models to a log and write them as a folder that :func:`mmdp.load` reads.

    Takes the options of :func:`fit`. The folder gets ``training.csv``, ``test.csv`` if there are
    test models, the files that :func:`mmdp.save` writes with them, and ``counts.csv``,
    ``unseen.csv`` and ``fit.json`` (warnings and sizes). A folder that holds models already is
    refused, unless ``overwrite`` is set: then the files of an earlier fit are replaced, all at
    once; other files stay.

    >>> import tempfile, pathlib, mmdp.posterior
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "models"
    >>> log = {"state": [0, 1], "action": [0, 0], "next_state": [1, 0], "reward": [1.0, 0.0]}
    >>> _ = mmdp.posterior.fit_folder(log, out, n_models=3)
    >>> mmdp.load(out).n_models
    3
    """
    folder = check_writable(path)
    existing = [x for x in (*TABLE_FILES, "model.npz") if (folder / x).exists()]
    if existing and not overwrite:
        raise InputError(
            f"{folder}: holds {existing[0]} already",
            ["name another folder", Remedy("overwrite", True)],
        )
    if isinstance(log, (str, os.PathLike)) and is_read_with(Path(log), folder):
        raise InputError(f"{log}: the models would overwrite this log; name another folder")
    result = fit(log, **options)
    evidence = result.train.evidence
    assert evidence is not None
    unseen_frame = pd.DataFrame(list(result.unseen_pairs), columns=["state", "action"])
    summary = {
        "transitions": int(result.pair_counts.sum()),
        "models": result.train.n_models,
        "test_models": 0 if result.test is None else result.test.n_models,
        "unseen": len(result.unseen_pairs),
        "warnings": list(result.warnings),
        "prior": {k: None if isinstance(x, np.ndarray) else x for k, x in evidence.prior.items()},
    }
    extra_files: dict[str, Writer] = {
        "counts.csv": format_csv(result.counts),
        "unseen.csv": format_csv(unseen_frame),
        "fit.json": json.dumps(summary, indent=1, ensure_ascii=False) + "\n",
    }
    replace_folder(folder, result.train, result.test, extra_files)
    return result


def sample_models(
    reward_posterior: RewardPosterior,
    n_models: int,
    rng: np.random.Generator,
    fields: Fields,
    shard: tuple[int, int] | None = None,
) -> MMDP:
    """Sample transitions and rewards of models from their posteriors; keep those of a shard."""
    rows = reward_posterior.rows
    shape, keys = rows.data.shape, rows.keys
    model_shard = None if shard is None else Shard.parse(shard, n_models)
    kept = slice(0, n_models) if model_shard is None else model_shard.local_models
    is_dense = len(keys) == len(rows.allowed) * shape[0]
    transitions = SparseTransitions.from_flat_indices(
        (kept.stop - kept.start, *shape), None if is_dense else keys, np.empty(0)
    )
    p = sample_dirichlet_rows(rows.alpha, transitions.indptr, n_models, rng, kept)
    transitions.values = p[None]
    rewards, next_rewards = reward_posterior.sample(n_models, rng, kept)
    return MMDP.from_sparse(
        transitions,
        rewards,
        next_rewards=next_rewards,
        allowed=rows.allowed.reshape(shape),
        shard=model_shard,
        **fields,
    )


def _make_warnings(rows: DirichletRows, prior: Prior) -> list[str]:
    """Make sentences about unseen pairs, states never left, and the weight of the prior."""
    data, messages = rows.data, []
    n_states, pair_counts = data.states.size, data.pair_counts
    n_unseen = int(rows.is_unseen.sum())
    if n_unseen:
        pairs_text = f"{n_unseen} of {len(rows.allowed)} state-action pairs"
        messages.append(f"never seen: {pairs_text}, {UNSEEN_TEXTS[prior.unseen]}")
    is_left = pair_counts.reshape(n_states, -1).any(axis=1)
    is_entered = np.isin(np.arange(n_states), data.keys % n_states)
    ends = rows.is_absorbing.reshape(n_states, -1).all(axis=1)
    never_left = np.flatnonzero(is_entered & ~is_left & ~ends).tolist()
    if never_left:
        names = join_first(map(data.states.format_id, never_left), 5)
        messages.append(
            f"never left in the log: {names}; name states that end an episode absorbing"
        )
    n_absent = int((~is_entered & ~is_left).sum())
    if n_absent:
        messages.append(f"states that never occur in the log: {n_absent}")
    is_seen = (pair_counts > 0) & ~rows.is_absorbing
    n_seen = int(is_seen.sum())
    n_prior_dominated = int((rows.prior_totals > pair_counts)[is_seen].sum())
    if n_prior_dominated > 0.5 * n_seen:
        messages.append(
            f"the prior outweighs the data in {n_prior_dominated} of {n_seen} pairs "
            "seen; collect more data, or give your knowledge by prior= or support="
        )
    row_lengths = np.bincount(data.to_pairs(rows.keys), minlength=len(is_seen))
    n_certain = int((row_lengths[is_seen] == 1).sum())
    if n_certain and prior.support == "seen":
        messages.append(
            f"{n_certain} of {n_seen} pairs seen lead to one state for certain, as "
            'support="seen" rules out all others; ranges over the models are too narrow'
        )
    return messages


# ---------------------------------------------------------------------- counts and prior
class RewardMoments(NamedTuple):
    """Number, mean and sum of squares about the mean of the rewards of each id, in order."""

    ids: IndexArray
    n: AnyArray
    mean: AnyArray
    sum_squares: AnyArray

    def group_by(self, group_keys: IndexArray) -> RewardMoments:
        """Combine the moments of ids with the same group key."""
        codes, group_ids = pd.factorize(group_keys, sort=True)
        return self.combine(codes, group_ids)

    def combine(self, codes: IndexArray, group_ids: IndexArray) -> RewardMoments:
        """Combine the moments of the ids with each code, the index of a group."""
        n = np.bincount(codes, self.n)
        mean = np.bincount(codes, self.n * self.mean) / n
        sum_squares = self.sum_squares + self.n * (self.mean - mean[codes]) ** 2
        return RewardMoments(group_ids, n, mean, np.bincount(codes, sum_squares))

    def lookup(self, ids: IndexArray) -> RewardMoments:
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


class TransitionCounts(NamedTuple):
    """Counts of the transitions (s A + a) S + s' that occur, sorted, and their rewards if known.

    With the states and actions of their log, its source, and the states that end episodes.
    """

    states: ColumnLabels
    actions: ColumnLabels
    keys: IndexArray
    counts: IndexArray
    source: TableSource
    terminal_states: IndexArray
    rewards: RewardMoments | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of states and of actions."""
        return self.states.size, self.actions.size

    @property
    def pair_counts(self) -> IndexArray:
        """Number of transitions (S A,) from each pair s A + a; exact below 2^53."""
        n_pairs = self.states.size * self.actions.size
        return np.bincount(self.to_pairs(self.keys), self.counts, n_pairs).astype(np.int64)

    def to_pairs(self, keys: IndexArray) -> IndexArray:
        """Convert keys (s A + a) S + s' to s A + a."""
        return keys // self.states.size

    def to_moves(self, keys: IndexArray) -> IndexArray:
        """Convert keys (s A + a) S + s' to s S + s'."""
        n_states, n_actions = self.shape
        return keys // (n_states * n_actions) * n_states + keys % n_states

    @classmethod
    def from_log(cls, log: TransitionLog) -> TransitionCounts:
        """Count the transitions of a log."""
        state, action, next_state = (log.frame[x] for x in ("state", "action", "next_state"))
        row_keys = (state * log.actions.size + action) * log.states.size + next_state
        codes, keys = pd.factorize(row_keys.to_numpy(), sort=True)
        del row_keys
        n_rows = log.frame.get("counts")
        counts = np.bincount(codes, n_rows).astype(np.int64, copy=False)
        rewards = None
        if "reward" in log.frame:
            reward = log.frame["reward"].to_numpy()
            n = np.ones(len(reward)) if n_rows is None else n_rows.to_numpy()
            rewards = RewardMoments(codes, n, reward, np.zeros(1)).combine(codes, keys)
        data = cls(log.states, log.actions, keys, counts, log.source, log.terminal_states, rewards)
        check_fit_size(0, data, 1)
        return data

    def describe_pair(self, pair: int) -> str:
        """Format the state and action of a pair s A + a."""
        s, a = divmod(pair, self.actions.size)
        return f"state {self.states.format_id(s)}, action {self.actions.format_id(a)}"


def check_fit_size(n_entries: int, data: TransitionCounts, n_models: int) -> None:
    """Refuse models that would exceed the memory limit."""
    n_bytes = 8 * n_models * (n_entries + math.prod(data.shape))
    if n_bytes > MAX_DENSE_BYTES:
        raise MemoryLimitError(
            f"{data.source.location}: {n_entries:,} possible transitions ("
            f"{pluralize(data.states.size, 'state')}, {pluralize(data.actions.size, 'action')}) in "
            f"{pluralize(n_models, 'model')} would take {format_bytes(n_bytes)}",
            [
                Remedy("support", "seen", verb="leave out next states that the log lacks with"),
                Remedy("unseen", "forbid", verb="leave out pairs that the log lacks with"),
                "sample fewer models",
                "merge states",
            ],
        )


class DirichletRows(NamedTuple):
    """Dirichlet parameters alpha + n on sorted keys, and masks (S A,) of the pairs.

    Pairs in ``is_absorbing`` stay in their state and earn 0.
    """

    data: TransitionCounts
    keys: IndexArray
    alpha: Array
    allowed: Mask
    is_absorbing: Mask
    is_unseen: Mask
    prior_totals: Array


@dataclass(frozen=True, eq=False)
class Prior:
    """Prior of the transitions; its fields are options of :func:`fit`."""

    pseudo_counts: Any = "pooled"  # or "symmetric", or an array
    concentration: float = 1.0
    support: Literal["all", "seen"] = "all"
    unseen: UnseenRule = "prior"
    absorbing: Iterable[object] = ()

    def to_dict(self, data: TransitionCounts) -> Fields:
        """Convert to a dict of fields, states as ids."""
        return vars(self) | {"absorbing": self._find_absorbing(data)}

    def _find_absorbing(self, data: TransitionCounts) -> list[int]:
        """Find the ids of the states that end an episode."""
        return sorted({*data.states.get_ids(self.absorbing), *data.terminal_states.tolist()})

    def make_rows(self, data: TransitionCounts) -> DirichletRows:
        """Make the Dirichlet parameters of every row from the counts of the log."""
        (n_states, n_actions), is_seen = data.shape, data.pair_counts > 0
        is_terminal = np.zeros(n_states, dtype=bool)
        is_terminal[self._find_absorbing(data)] = True
        is_absorbing = np.repeat(is_terminal, n_actions)
        is_unseen, allowed = ~is_seen & ~is_absorbing, np.ones_like(is_absorbing)
        if self.unseen == "absorb":
            is_absorbing = is_absorbing | is_unseen
        elif self.unseen == "forbid":
            is_left = np.repeat(is_seen.reshape(n_states, -1).any(axis=1), n_actions)
            allowed = ~is_unseen | ~is_left
            is_absorbing |= is_unseen & allowed  # a state that is never left stays
        is_sampled = allowed & ~is_absorbing
        keys, pseudo_counts = self._make_pseudo_counts(data, is_sampled)
        alpha = pseudo_counts * self.concentration
        prior_totals = np.bincount(data.to_pairs(keys), alpha, len(allowed)).astype(np.float64)
        is_counted = is_sampled[data.to_pairs(data.keys)]
        seen_keys = data.keys[is_counted]
        impossible_keys = seen_keys[~np.isin(seen_keys, keys, assume_unique=True)]
        if len(impossible_keys):
            pair, next_state = divmod(int(impossible_keys[0]), n_states)
            data.source.fail(
                f"the log has {data.describe_pair(pair)} leading to "
                f"{data.states.format_id(next_state)}, which the prior rules out "
                f"({pluralize(len(impossible_keys), 'transition')} in all); allow it or correct "
                "the log"
            )
        empty_rows = np.flatnonzero(is_sampled & (prior_totals == 0))
        if len(empty_rows):
            data.source.fail(
                f"no next state is possible for {data.describe_pair(int(empty_rows[0]))}, which "
                f"the log lacks ({pluralize(len(empty_rows), 'pair')} in all)",
                remedies=[
                    Remedy("support", verb="widen"),
                    Remedy("prior", verb="widen"),
                    Remedy("unseen", "absorb", "forbid", verb="choose"),
                ],
            )
        alpha[np.searchsorted(keys, seen_keys)] += data.counts[is_counted]
        absorbing_rows = np.flatnonzero(is_absorbing)
        keys = np.append(keys, absorbing_rows * n_states + absorbing_rows // n_actions)
        alpha, order = np.append(alpha, np.ones(len(absorbing_rows))), np.argsort(keys)
        return DirichletRows(
            data, keys[order], alpha[order], allowed, is_absorbing, is_unseen, prior_totals
        )

    def _make_pseudo_counts(
        self, data: TransitionCounts, is_sampled: Mask
    ) -> tuple[IndexArray, Array]:
        """Make the keys of the sampled rows, with pseudo-counts before scaling."""
        (n, n_actions), is_named = data.shape, isinstance(self.pseudo_counts, str)
        is_pooled = is_named and self.pseudo_counts == "pooled"
        if self.support == "seen":
            keys = data.keys[is_sampled[data.to_pairs(data.keys)]]
        elif is_pooled:
            return _make_pooled_counts(data, is_sampled)
        else:
            check_fit_size(n * int(is_sampled.sum()), data, 1)
            keys = (np.flatnonzero(is_sampled)[:, None] * n + np.arange(n)).reshape(-1)
        if is_named:
            return keys, np.full(len(keys), JEFFREYS_COUNT if is_pooled else 1.0)
        pseudo_counts = _broadcast_pseudo_counts(self.pseudo_counts, (n, n_actions, n))
        pseudo_counts = pseudo_counts.reshape(-1)[keys]
        return keys[pseudo_counts > 0], pseudo_counts[pseudo_counts > 0]


def _make_pooled_counts(data: TransitionCounts, is_sampled: Mask) -> tuple[IndexArray, Array]:
    """Make the keys of the sampled rows with half an observation of each next state of the state.

    With fewer than two next states of a state, another half is spread over all states.
    """
    n, n_actions = data.shape
    seen_moves = np.unique(data.to_moves(data.keys))
    n_next = np.bincount(seen_moves // n, minlength=n)
    n_sampled = is_sampled.reshape(n, -1).sum(axis=1)
    check_fit_size(int((np.where(n_next < 2, n, n_next) * n_sampled).sum()), data, 1)
    spread_states = np.flatnonzero((n_next < 2) & (n_sampled > 0))
    spread_moves = (spread_states[:, None] * n + np.arange(n)).reshape(-1)
    moves = np.union1d(seen_moves, spread_moves)
    counts = np.isin(moves, seen_moves) + np.isin(moves, spread_moves) / n
    pairs = (moves // n)[:, None] * n_actions + np.arange(n_actions)
    keys = (pairs * n + (moves % n)[:, None])[is_sampled[pairs]]
    counts = np.broadcast_to(JEFFREYS_COUNT * counts[:, None], pairs.shape)[is_sampled[pairs]]
    order = np.argsort(keys)
    return keys[order], counts[order]


def _broadcast_pseudo_counts(values: Any, shape: tuple[int, int, int]) -> Array:
    """Check pseudo-counts and broadcast them to (S, A, S')."""
    array = as_float_array(values, "prior")
    if not (np.isfinite(array).all() and array.min(initial=0.0) >= 0):
        raise InputError("prior has pseudo-counts below 0 or not finite; give finite ones >= 0")
    if array.shape == (shape[0], shape[2]):  # the same for all actions
        if shape[0] == shape[1]:
            raise InputError(
                f"prior of shape {array.shape} could be by state or by action and next "
                "state; give it as (S, 1, S') or (1, A, S')"
            )
        array = array[:, None, :]
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise InputError(
            f"prior of shape {array.shape} does not broadcast to (S, A, S') = {shape}"
        ) from None


# ---------------------------------------------------------------------- rewards
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
    is_earned = ~rows.is_absorbing[data.to_pairs(data.keys)]
    moments = RewardMoments._make(x[is_earned] for x in data.rewards)
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
    table_values = pd.Series(table.parse_floats("reward"), table.find_cells(axes, "this reward"))
    table.source.fail_where(~np.isfinite(table_values), "reward is missing; fill it in")
    pairs = data.to_pairs(rows.keys) if is_by_next_state else np.arange(len(rows.allowed))
    cells = rows.keys if is_by_next_state else pairs
    found = table_values.reindex(
        cells if "action" in table else cells // data.actions.size
    ).to_numpy()
    missing_pairs = pairs[np.isnan(found) & (rows.allowed & ~rows.is_absorbing)[pairs]]
    notes = []
    if len(missing_pairs) and not is_by_next_state:
        table.source.fail(
            f"no reward for {data.describe_pair(int(missing_pairs[0]))} "
            f"({pluralize(len(missing_pairs), 'pair')} in all); add a row"
        )
    if len(missing_pairs):
        transitions_text = pluralize(len(missing_pairs), "possible transition")
        notes = [f"the rewards table lacks {transitions_text}, and nothing is earned there"]
    return RewardPosterior(rows, np.nan_to_num(found), is_by_next_state, warnings=notes)
