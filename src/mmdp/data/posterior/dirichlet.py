"""fit: models sampled from the Dirichlet posterior of logged transitions.

Symbols: n(s, a, s') counts of the log, alpha(s, a, s') pseudo-counts of the prior. Every row is
independent, p(. | s, a) ~ Dirichlet(alpha + n) on the support. A mean reward is known, the
average of the log, or sampled with r | sigma^2 ~ Normal(mu_n, sigma^2 / kappa_n) and
sigma^2 ~ InverseGamma(a_n, b_n).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.arguments import (
    Label,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    StateText,
    check_arguments,
)
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.problem import Shard
from mmdp.core.model import MMDP, Evidence
from mmdp.core.text import join_first, pluralize
from mmdp.core.transitions import SparseTransitions
from mmdp.core.validate import align_to_labels
from mmdp.data.io.folders import TABLE_FILES, is_read_with, replace_folder
from mmdp.data.io.writing import Writer, check_writable, format_csv
from mmdp.data.posterior.log import read_log, split_terminal_states
from mmdp.data.posterior.prior import (
    DirichletRows,
    Prior,
    TransitionCounts,
    UnseenRule,
    check_fit_size,
)
from mmdp.data.posterior.rewards import RewardPosterior, make_reward_posterior
from mmdp.data.sampling import sample_dirichlet_rows, spawn_generators
from mmdp.data.schema import Fields, IntArray, ValuesByLabel

UNSEEN_TEXTS = {
    "prior": "sampled from the prior alone",
    "absorb": "made to stay and earn 0",
    "forbid": "forbidden",
}


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
    def pair_counts(self) -> IntArray:
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
    prior = align_to_labels(prior, "prior", labels, labels)
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
        (data.states.get_label(s), data.actions.get_label(a))
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
