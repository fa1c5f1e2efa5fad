"""fit: models sampled from the Dirichlet posterior of logged transitions.

Symbols: n(s, a, s') counts of the log, alpha(s, a, s') pseudo-counts of the prior. Every row is
independent, p(. | s, a) ~ Dirichlet(alpha + n) on the support. A mean reward is known, the
average of the log, or sampled with r | sigma^2 ~ Normal(mu_n, sigma^2 / kappa_n) and
sigma^2 ~ InverseGamma(a_n, b_n).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.arguments import Seed, StateText, check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.problem import Shard
from mmdp.core.model import MMDP, Evidence
from mmdp.core.text import choose_verb_form, did_you_mean, pluralize
from mmdp.core.transitions import SparseTransitions
from mmdp.core.validate import check_int
from mmdp.data.io.folders import TABLE_FILES, is_read_with, replace_folder
from mmdp.data.io.writing import Writer, check_writable, format_csv
from mmdp.data.posterior.log import read_log
from mmdp.data.posterior.prior import (
    DirichletRows,
    Prior,
    TransitionCounts,
    UnseenRule,
    check_fit_size,
)
from mmdp.data.posterior.rewards import RewardPosterior, RewardSpec
from mmdp.data.sampling import sample_dirichlet_rows, spawn_generators
from mmdp.data.schema import Fields, IntArray, ValuesByLabel

SpecT = TypeVar("SpecT", Prior, RewardSpec)
LOG_OPTIONS = ("columns", "states", "actions")
PRIOR_OPTIONS = ("concentration", "support", "unseen", "absorbing")
MODEL_OPTIONS = ("initial", "discount", "name", "time_labels", "unit", "quantity")


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
    pair_counts: IntArray
    unseen_pairs: tuple[tuple[str | int, str | int], ...]
    warnings: tuple[str, ...]
    _key_counts: tuple[IntArray, IntArray]

    @cached_property
    def counts(self) -> pd.DataFrame:
        """Table (state, action, next_state, count) of the log."""
        keys, counts = self._key_counts
        n_states, n_actions = self.pair_counts.shape
        rows, next_state = np.divmod(keys, n_states)
        state, action = np.divmod(rows, n_actions)
        has_labels = self.train.has_labels
        columns: Fields = {}
        for name, ids, axis in (
            ("state", state, "state"),
            ("action", action, "action"),
            ("next_state", next_state, "state"),
        ):
            labels = pd.Index(getattr(self.train, f"{axis}_labels"))
            columns[name] = pd.Categorical.from_codes(ids, labels) if has_labels[axis] else ids
        return pd.DataFrame(columns | {"count": counts})

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


class FitOptions(TypedDict, total=False):
    """Other options of :func:`fit`: of the log, of prior and rewards, and of the models."""

    columns: Mapping[str, str] | None
    states: int | Iterable[object] | None
    actions: int | Iterable[object] | None
    concentration: float
    support: npt.ArrayLike | Literal["all", "seen"]
    unseen: UnseenRule
    absorbing: Iterable[object]
    reward_prior: Sequence[float] | None
    initial: StateText | ValuesByLabel | None
    discount: float
    name: str | None
    time_labels: Any
    unit: str | None
    quantity: str | None


@check_arguments
def fit(
    log: Any,
    *,
    n_models: int = 200,
    n_test_models: int = 0,
    prior: Prior | npt.ArrayLike | Literal["pooled", "symmetric"] = "pooled",
    rewards: Any = "average",
    seed: Seed = 0,
    shard: tuple[int, int] | None = None,
    **options: Unpack[FitOptions],
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
        Pseudo-counts: ``"pooled"`` over the actions of a state, or ``"symmetric"`` over all states.
        Or an array of them, or a :class:`Prior`.
    rewards
        The ``"average"`` of the log, ``"normal"`` (sampled from the posterior), or a file of known
        rewards. Or a :class:`RewardSpec`, an array, a table or a function.
    seed
        Seed of the random numbers; train and test have separate streams.
    shard
        ``(i, n)``: keep shard i of n of the models, for one of n processes (see
        :mod:`mmdp.distributed`). They are those that a single process would sample.

    Other Parameters
    ----------------
    concentration
        Factor for the pseudo-counts of the prior, 1 by default. This and the next three are
        shorthands for fields of :class:`Prior`.
    support
        Which next states are possible; all by default.
    unseen
        What to do with state-action pairs that are not in the log; the prior by default.
    absorbing
        States that end an episode.
    reward_prior
        A shorthand: ``prior`` of :class:`RewardSpec`.
    states
        Number of states or their labels in order, for those that the log lacks; by default those
        that occur.
    actions
        Number of actions or their labels in order, as for states.
    columns
        Names of columns that are not called by their role. ``{"state": "from"}``, for example.
    initial
        The first state, or the probabilities of several; by default those of the episodes in the
        log, if it has any, else uniform. As for :func:`mmdp.load`.
    discount
        Discount factor per step, from 0 to 1; 1 by default.
    name, time_labels, unit, quantity
        Fields of the models.

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
    check_int(n_models, "n_models")
    check_int(n_test_models, "n_test_models", 0)
    fit_options = _check_options({**options})
    prior_spec = _as_spec(Prior, prior, _select_options(fit_options, PRIOR_OPTIONS))
    reward_options = {"prior": fit_options["reward_prior"]} if "reward_prior" in fit_options else {}
    reward_spec = _as_spec(RewardSpec, rewards, reward_options)
    parsed_log = read_log(log, **_select_options(fit_options, LOG_OPTIONS))
    data = TransitionCounts.from_log(parsed_log)
    rows = prior_spec.make_rows(data)
    batches = [ModelBatch.from_shard(shard, count) for count in (n_models, n_test_models)]
    check_fit_size(len(rows.keys), data, sum(batch.n_kept for batch in batches))
    reward_posterior = reward_spec.make_posterior(parsed_log, rows, data)
    fields: Fields = {"states": data.states.labels, "actions": data.actions.labels}
    fields |= _select_options(fit_options, MODEL_OPTIONS)
    initial_states = parsed_log.initial_states
    if fields.get("initial") is None and initial_states is not None:
        counts = np.bincount(initial_states, minlength=data.n_states)
        fields["initial"] = counts / len(initial_states)
    evidence = Evidence(data.keys, data.counts, prior_spec.to_dict(data))
    train, test = (
        sample_models(reward_posterior, batch, rng, fields).with_evidence(evidence)
        if batch.n_models
        else None
        for batch, rng in zip(batches, spawn_generators(seed, 2), strict=True)
    )
    assert train is not None
    unseen_pairs = tuple(
        (data.states.get_label(row // data.n_actions), data.actions.get_label(row % data.n_actions))
        for row in rows.unseen_rows.tolist()
    )
    warnings = [*parsed_log.notes, *_make_warnings(data, rows, prior_spec)]
    warnings += reward_posterior.warnings
    pair_counts = data.pair_counts.reshape(data.n_states, data.n_actions)
    return Fit(train, test, pair_counts, unseen_pairs, tuple(warnings), (data.keys, data.counts))


def _check_options(options: Fields) -> Fields:
    """Refuse unknown options of fit."""
    known = FitOptions.__annotations__
    for name in options.keys() - known.keys():
        raise InputError(f"fit has no option {did_you_mean(name, [*known, *fit.__annotations__])}")
    return options


def _select_options(options: Fields, names: Sequence[str]) -> Fields:
    return {name: options[name] for name in names if name in options}


def _as_spec(spec_class: type[SpecT], value: Any, shorthands: Fields) -> SpecT:
    """Return a specification unchanged, or make one of its first field and shorthands."""
    if not isinstance(value, spec_class):
        return spec_class(value, **shorthands)
    if shorthands:
        raise InputError(
            f"{next(iter(shorthands))}= is given next to a {spec_class.__name__}; give it to "
            f"{spec_class.__name__}()"
        )
    return value


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


# ---------------------------------------------------------------------- sampling
class ModelBatch(NamedTuple):
    """Number of models to sample, and the slice of them to keep."""

    n_models: int
    kept: slice
    shard: Shard | None

    @classmethod
    def from_shard(cls, shard: tuple[int, int] | None, n_models: int) -> ModelBatch:
        """Keep the models of a shard (i, n), or all if it is None."""
        model_shard = None if shard is None or not n_models else Shard.parse(shard, n_models)
        return cls(
            n_models,
            slice(0, n_models) if model_shard is None else model_shard.local_models,
            model_shard,
        )

    @property
    def n_kept(self) -> int:
        """Number of models that are kept."""
        return int(self.kept.stop - self.kept.start)


def sample_models(
    reward_posterior: RewardPosterior,
    batch: ModelBatch,
    rng: np.random.Generator,
    fields: Fields,
) -> MMDP:
    """Sample transitions and rewards of models from their posteriors."""
    rows = reward_posterior.rows
    is_dense = len(rows.keys) == len(rows.allowed) * rows.shape[0]
    transitions = SparseTransitions.from_flat_indices(
        (batch.n_kept, *rows.shape), None if is_dense else rows.keys, np.empty(0)
    )
    transitions.values = sample_dirichlet_rows(
        rows.alpha, transitions.indptr, batch.n_models, rng, kept=batch.kept
    )[None]
    rewards, next_rewards = reward_posterior.sample(batch.n_models, rng, batch.kept)
    return MMDP.from_sparse(
        transitions,
        rewards,
        next_rewards=next_rewards,
        allowed=rows.allowed.reshape(rows.shape),
        shard=batch.shard,
        **fields,
    )


# ---------------------------------------------------------------------- warnings
def _make_warnings(data: TransitionCounts, rows: DirichletRows, prior: Prior) -> list[str]:
    """Make sentences about unseen pairs, states never left, and the weight of the prior."""
    messages: list[str] = []
    if len(rows.unseen_rows):
        treatment = {
            "prior": "sampled from the prior alone",
            "absorb": "made to stay and earn 0",
            "forbid": "forbidden",
        }[prior.unseen]
        count = len(rows.unseen_rows)
        messages.append(
            f"{count} of {len(rows.allowed)} state-action pairs "
            f"{choose_verb_form(count, 'was', 'were')} never seen and "
            f"{choose_verb_form(count, 'is', 'are')} {treatment}"
        )
    is_left = data.pair_counts.reshape(data.n_states, -1).sum(axis=1) > 0
    is_entered = np.zeros(data.n_states, dtype=bool)
    is_entered[data.keys % data.n_states] = True
    never_left = np.flatnonzero(
        is_entered & ~is_left & ~rows.is_absorbing.reshape(data.n_states, -1).all(axis=1)
    )
    if len(never_left):
        shown_names = ", ".join(data.states.format_id(int(s)) for s in never_left[:5]) + (
            " ..." if len(never_left) > 5 else ""
        )
        phrase = choose_verb_form(
            len(never_left), "it ends an episode, name it", "they end an episode, name them"
        )
        messages.append(f"never left in the log: {shown_names}; if {phrase} absorbing")
    n_absent = int((~is_entered & ~is_left).sum())
    if n_absent:
        occur_verb = choose_verb_form(n_absent, "occurs", "occur")
        messages.append(f"{pluralize(n_absent, 'state')} never {occur_verb} in the log")
    is_seen = (data.pair_counts > 0) & ~rows.is_absorbing
    n_prior_dominated = int((rows.prior_totals[is_seen] > data.pair_counts[is_seen]).sum())
    if is_seen.any() and n_prior_dominated > 0.5 * is_seen.sum():
        messages.append(
            f"the prior outweighs the data in {n_prior_dominated} of {int(is_seen.sum())} pairs "
            "seen; collect more data, or give your knowledge by prior= or support="
        )
    if isinstance(prior.support, str) and prior.support == "seen":
        row_lengths = np.bincount(rows.pair_ids, minlength=len(is_seen))
        n_certain = int((is_seen & (row_lengths == 1)).sum())
        if n_certain:
            messages.append(
                f"{n_certain} of {int(is_seen.sum())} pairs seen lead to one state for certain, as "
                'support="seen" rules out all others; ranges over the models are too narrow'
            )
    return messages
