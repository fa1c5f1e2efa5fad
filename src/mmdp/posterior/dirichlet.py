"""From logged transitions to models drawn from their posterior.

Symbols: n(s, a, s') counts of the log, alpha(s, a, s') pseudo-counts of the prior. Every row is
independent, p(. | s, a) ~ Dirichlet(alpha + n) on the support. A mean reward is known, the
average of the log, or drawn with r | sigma^2 ~ Normal(mu_n, sigma^2 / kappa_n) and
sigma^2 ~ InverseGamma(a_n, b_n).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.domains._common import check_choice, check_count, generators
from mmdp.errors import InputError, MemoryLimitError, Remedy
from mmdp.io.folders import TABLES, is_read_with, replace_folder
from mmdp.io.writing import Writer, check_writable
from mmdp.kernels.problem import Part
from mmdp.model import MMDP
from mmdp.posterior.log import Log, read_log
from mmdp.posterior.rewards import Rewards, read_rewards
from mmdp.support import MATERIALISE_LIMIT, Array, Support, refuse_masked
from mmdp.validate import by_label
from mmdp.words import by_count, counted, readable_bytes

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Unseen = Literal["prior", "error", "absorb", "forbid"]
UNSEEN = ("prior", "error", "absorb", "forbid")


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """Models of the posterior; unpacks as the pair (train, test).

    ``train`` and ``test`` (None if not asked for) hold models from the same posterior.
    ``counts`` is a table (state, action, next_state, count) of the log, ``visits`` (S, A) how
    often each pair was seen, ``unseen`` the pairs that are not in the log as (state, action)
    labels or ids, and ``warnings`` sentences about what to watch out for.
    """

    train: MMDP
    test: MMDP | None
    visits: Ints
    unseen: tuple[tuple[str | int, str | int], ...]
    warnings: tuple[str, ...]
    _table: tuple[Ints, Ints]

    @cached_property
    def counts(self) -> pd.DataFrame:
        keys, counts = self._table
        n_states, n_actions = self.visits.shape
        rows, next_state = np.divmod(keys, n_states)
        state, action = np.divmod(rows, n_actions)
        labelled = self.train.labelled
        columns: dict[str, Any] = {}
        for name, ids, kind in (
            ("state", state, "state"), ("action", action, "action"),
            ("next_state", next_state, "state"),
        ):  # fmt: skip
            labels = pd.Index(getattr(self.train, f"{kind}_labels"))
            columns[name] = pd.Categorical.from_codes(ids, labels) if labelled[kind] else ids
        return pd.DataFrame(columns | {"count": counts})

    def __iter__(self) -> Iterator[MMDP | None]:
        return iter((self.train, self.test))

    def __repr__(self) -> str:
        test = 0 if self.test is None else self.test.n_models
        lines = [
            f"Fit({counted(int(self.visits.sum()), 'transition')}; {self.train.n_models} train and "
            f"{test} test models, {counted(self.train.n_states, 'state')}, "
            f"{counted(self.train.n_actions, 'action')}; {len(self.unseen)} of "
            f"{self.visits.size} state-action pairs unseen)"
        ]
        return "\n".join(lines + [f"  warning: {text}" for text in self.warnings])


def fit(
    log: Any,
    *,
    models: int = 200,
    test_models: int = 0,
    prior: npt.ArrayLike | Literal["symmetric"] = "symmetric",
    concentration: float = 1.0,
    support: npt.ArrayLike | Literal["all", "seen"] = "all",
    rewards: Any = "average",
    reward_prior: Sequence[float] | None = None,
    unseen: Unseen = "prior",
    absorbing: Iterable[object] = (),
    states: int | Iterable[object] | None = None,
    actions: int | Iterable[object] | None = None,
    initial: npt.ArrayLike | Mapping[Any, float] | None = None,
    discount: float = 1.0,
    columns: Mapping[str, str] | None = None,
    seed: int | None = 0,
    name: str | None = None,
    part: tuple[int, int] | None = None,
) -> Fit:
    """Draw models from the posterior of logged transitions.

    Parameters
    ----------
    log
        Path of a ``.csv`` or ``.parquet`` file, a DataFrame or a mapping of columns, one row
        per transition: ``state``, ``action``, ``next_state`` and, if known, ``reward``,
        ``episode``, ``time`` or ``step`` (orders the rows of an episode). Labels, or ids from 0;
        if no id is 0 and the lowest is 1, they count from 1 and stay as labels.
    models, test_models
        Number of models to compute a policy from, and of test models from the same posterior.
    prior
        ``"symmetric"``: the same pseudo-count for every next state of the support; or an array
        (S, S') or one that broadcasts to (S, A, S'), 0 for what is impossible.
    concentration
        The pseudo-count (symmetric), or a factor for the array.
    support
        Possible next states: ``"all"``, ``"seen"`` (those in the log), or a mask (S, S')
        or one that broadcasts to (S, A, S').
    rewards
        ``"average"`` of the log by (s, a); ``"normal"``, drawn from the Normal-inverse-gamma
        posterior of each (s, a); or known: an array (S,), (S, A) or (S, A, S'), a table (a
        DataFrame or the path of one) with columns state, action, next_state (the last two may
        be left out) and reward, or a function of (state, action, next_state).
    reward_prior
        (mean, kappa, a, b) of the Normal-inverse-gamma prior. By default the overall mean and
        variance of the log's rewards count as one observation: (mean, 1, 2, variance).
    unseen
        What to do with a pair (s, a) that is not in the log. ``"prior"``: draw it from the prior
        (its reward is then the overall average). ``"error"``: refuse. ``"absorb"``: stay there
        and earn 0. ``"forbid"``: do not allow it (a state that is never left stays and earns 0).
    absorbing
        States that end an episode: they stay and earn 0, whatever the log says.
    states, actions
        Their number, or their labels in order, for those that the log never shows; by default
        those that occur.
    initial
        Initial distribution, (S,) or by label; by default the share of episodes that start in
        each state if the log has episodes, else uniform.
    columns
        Role to name, for other column names: ``{"state": "from", "next_state": "to"}``.
    seed
        Seed of the draws; train and test have separate streams.
    part
        ``(i, n)``: keep part i of n of the models, for one of n processes (see
        :mod:`mmdp.hosts`). They are those that a single process would draw.

    >>> import mmdp.posterior
    >>> log = {"state": ["up", "up", "up", "down"], "action": ["run", "run", "run", "fix"],
    ...        "next_state": ["up", "up", "down", "up"], "reward": [5, 5, 5, -2]}
    >>> found = mmdp.posterior.fit(log, models=500, unseen="forbid")
    >>> found.unseen
    (('up', 'fix'), ('down', 'run'))
    >>> mean = found.train.transitions.mean(axis=0)[0, 0]       # Dirichlet(3, 2)
    >>> bool(abs(mean[0] - 0.6) < 0.03)
    True
    """
    check_choice(unseen, "unseen", UNSEEN)
    check_count(models, "models")
    check_count(test_models, "test_models", 0)
    read = read_log(log, columns, states, actions)
    data = _Counts.of(read)
    plan = _plan(data, read, prior, concentration, support, unseen, absorbing)
    shares = [_Share.of(part, count) for count in (models, test_models)]
    _check_size(len(plan.keys), data, sum(share.size for share in shares), read)
    source = read_rewards(rewards, reward_prior, read, plan.keys, plan.still, data.visits)
    start = _initial(initial, read)
    labels = {"states": read.states.labels, "actions": read.actions.labels}
    fields = {**labels, "initial": start, "discount": discount, "name": name}
    streams = generators(seed, 2)
    train = _draw(plan, source, data, shares[0], streams[0], fields)
    test = _draw(plan, source, data, shares[1], streams[1], fields) if test_models else None
    missing = tuple(
        (read.states.shown(row // data.n_actions), read.actions.shown(row % data.n_actions))
        for row in plan.unseen.tolist()
    )
    warnings = (*read.notes, *_warnings(data, plan, read, unseen), *source.warnings)
    visits = data.visits.reshape(data.n_states, data.n_actions)
    return Fit(train, test, visits, missing, warnings, (data.keys, data.counts))


def fit_folder(log: Any, out: str | Path, *, overwrite: bool = False, **options: Any) -> Fit:
    """:func:`fit`, written as a folder that :func:`mmdp.load` reads; takes its options.

    ``out`` gets ``training.csv``, ``test.csv`` if test models are asked for, the files that
    :func:`mmdp.save` writes beside them, and ``counts.csv``, ``unseen.csv`` and ``fit.json``
    (warnings and sizes). A folder that holds models already is refused, unless ``overwrite``
    is set: then the files of an earlier fit are replaced, all at once, and no other is touched.

    >>> import tempfile, pathlib, mmdp.posterior
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "models"
    >>> log = {"state": [0, 1], "action": [0, 0], "next_state": [1, 0], "reward": [1.0, 0.0]}
    >>> _ = mmdp.posterior.fit_folder(log, out, models=3)
    >>> mmdp.load(out).n_models
    3
    """
    folder = check_writable(out)
    taken = [x for x in (*TABLES, "model.npz") if (folder / x).exists()]
    if taken and not overwrite:
        raise InputError(
            f"{folder}: holds {taken[0]} already",
            ["name another folder", Remedy("overwrite", True)],
        )
    if isinstance(log, (str, os.PathLike)) and is_read_with(Path(log), folder):
        raise InputError(f"{log}: the models would be written over it; name another folder")
    found = fit(log, **options)
    pairs = pd.DataFrame(list(found.unseen), columns=["state", "action"])
    document = {
        "transitions": int(found.visits.sum()),
        "models": found.train.n_models,
        "test_models": 0 if found.test is None else found.test.n_models,
        "unseen": len(found.unseen),
        "warnings": list(found.warnings),
    }
    more: dict[str, Writer] = {
        "counts.csv": found.counts.to_csv(index=False, lineterminator="\n"),
        "unseen.csv": pairs.to_csv(index=False, lineterminator="\n"),
        "fit.json": json.dumps(document, indent=1, ensure_ascii=False) + "\n",
    }
    replace_folder(folder, found.train, found.test, more)
    return found


# ---------------------------------------------------------------------- counts
class _Counts(NamedTuple):
    """Keys (s A + a) S + s' that occur, sorted, with their counts; visits (S A,)."""

    n_states: int
    n_actions: int
    keys: Ints
    counts: Ints
    visits: Ints

    @property
    def cells(self) -> int:
        return self.n_states * self.n_actions * self.n_states

    @classmethod
    def of(cls, log: Log) -> _Counts:
        n_states, n_actions = log.states.size, log.actions.size
        _check_pairs(log)
        rows = log.state * n_actions + log.action
        visits = np.bincount(rows, minlength=n_states * n_actions)
        rows = rows * n_states + log.next_state
        if n_states * n_actions * n_states <= max(2 * len(log), 100_000):
            table = np.bincount(rows, minlength=n_states * n_actions * n_states)
            keys = np.flatnonzero(table)
            return cls(n_states, n_actions, keys, table[keys], visits)
        keys, counts = np.unique(rows, return_counts=True)
        return cls(n_states, n_actions, keys, counts, visits)


def _check_pairs(log: Log) -> None:
    """Refuse a number of pairs out of proportion to the rows, before arrays of it are made."""
    pairs = log.states.size * log.actions.size
    if pairs * 8 > MATERIALISE_LIMIT // 4 and pairs > 64 * len(log):
        raise MemoryLimitError(
            f"{log.source.place}: {counted(log.states.size, 'state')} and "
            f"{counted(log.actions.size, 'action')} make {pairs:,} pairs for "
            f"{counted(len(log), 'row')}; number states and actions from 0 without gaps, or name "
            "those that exist by states= and actions="
        )


def _check_size(entries: int, data: _Counts, models: int, log: Log) -> None:
    """Refuse models that would not fit into memory, with their size."""
    size = 8 * models * (entries + data.n_states * data.n_actions)
    if size > MATERIALISE_LIMIT:
        raise MemoryLimitError(
            f"{log.source.place}: {entries:,} possible transitions ("
            f"{counted(data.n_states, 'state')}, {counted(data.n_actions, 'action')}) in "
            f"{counted(models, 'model')} would take {readable_bytes(size)}",
            [
                Remedy("support", "seen", do="leave out next states that never happened with"),
                "draw fewer models",
                "merge states",
            ],
        )


# ---------------------------------------------------------------------- the posterior's rows
class _Plan(NamedTuple):
    """alpha + n on the sorted keys; ``still`` (S A,) rows that stay for nothing."""

    keys: Ints
    alpha: Array
    allowed: Bools
    still: Bools
    unseen: Ints
    prior_mass: Array


def _plan(
    data: _Counts, log: Log, prior: Any, concentration: float, support: Any, unseen: Unseen,
    absorbing: Iterable[object],
) -> _Plan:  # fmt: skip
    if not (np.isfinite(concentration) and concentration > 0):
        raise InputError(f"concentration must be a positive number, not {concentration!r}")
    n_actions, n_rows = data.n_actions, data.n_states * data.n_actions
    ends = np.zeros(data.n_states, dtype=bool)
    ends[[log.states.place(x) for x in absorbing]] = True
    still = np.repeat(ends, n_actions)
    never = np.flatnonzero((data.visits == 0) & ~still)
    allowed = np.ones(n_rows, dtype=bool)
    if unseen == "absorb":
        still[never] = True
    elif unseen == "forbid":
        left = np.repeat((data.visits.reshape(-1, n_actions) > 0).any(axis=1) | ends, n_actions)
        allowed[never] = ~left[never]
        still[never] = ~left[never]
    elif unseen == "error" and len(never):
        _fail_unseen(never, data, log)
    entries = data.n_states * int((allowed & ~still).sum())
    if isinstance(support, str) and support == "all" and isinstance(prior, str):
        _check_size(entries, data, 1, log)
    keys, alpha = _prior_on_support(data, log, prior, support, allowed & ~still)
    alpha = alpha * concentration
    mass = np.bincount(keys // data.n_states, alpha, n_rows).astype(np.float64)
    _check_supported(keys, data, log, ~still)
    empty = np.flatnonzero(allowed & ~still & (mass == 0))
    if len(empty):
        _fail_empty(int(empty[0]), data, log, len(empty))
    seen = ~still[data.keys // data.n_states]
    alpha[np.searchsorted(keys, data.keys[seen])] += data.counts[seen]
    loops = np.flatnonzero(still)
    keys = np.concatenate([keys, loops * data.n_states + loops // n_actions])
    alpha = np.concatenate([alpha, np.ones(len(loops))])
    order = np.argsort(keys, kind="stable")
    return _Plan(keys[order], alpha[order], allowed, still, never, mass)


def _prior_on_support(
    data: _Counts, log: Log, prior: Any, support: Any, free: Bools
) -> tuple[Ints, Array]:
    """Keys of the rows that are drawn, with the prior before it is scaled."""
    shape = (data.n_states, data.n_actions, data.n_states)
    states: Sequence[object] = log.states.labels or range(log.states.size)
    weights = None
    if not isinstance(prior, str):
        weights = _broadcast(prior, shape, "prior", np.float64, states)
    if weights is None and prior != "symmetric":
        raise InputError(f'prior must be "symmetric" or an array (S, A, S\'), not {prior!r}')
    if weights is not None and not (np.isfinite(weights).all() and weights.min() >= 0):
        raise InputError("prior pseudo-counts must be finite and at least 0")
    if isinstance(support, str):
        check_choice(support, "support", ("all", "seen"))
        if support == "seen":
            keys = data.keys[free[data.keys // data.n_states]]
        else:
            rows = np.flatnonzero(free)
            keys = (rows[:, None] * data.n_states + np.arange(data.n_states)).reshape(-1)
    else:
        mask = _broadcast(support, shape, "support", np.bool_, states)
        keys = np.flatnonzero(mask.reshape(-1) & np.repeat(free, data.n_states))
    if weights is None:
        return keys, np.ones(len(keys))
    alpha = weights.reshape(-1)[keys]
    return keys[alpha > 0], alpha[alpha > 0]


def _broadcast(
    values: Any, shape: tuple[int, int, int], what: str, dtype: Any, states: Sequence[object]
) -> Any:
    try:
        refuse_masked(values, what)
        array = np.asarray(by_label(values, what, states, states))
        if dtype is np.bool_ and not np.isin(array, (0, 1)).all():
            raise InputError(f"{what} must hold booleans")
        # (S, S') says which moves exist whatever the action
        if array.shape == (shape[0], shape[2]):
            if shape[0] == shape[1]:
                raise InputError(
                    f"{what} of shape {array.shape} could be by state or by action and next "
                    f"state; give it as (S, 1, S') or (1, A, S')"
                )
            array = array[:, None, :]
        return np.broadcast_to(array.astype(dtype), shape)
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{what} of shape {np.shape(values)} does not broadcast to (S, A, S') = {shape}"
        ) from None


def _place(row: int, data: _Counts, log: Log) -> str:
    state, action = divmod(row, data.n_actions)
    return f"state {log.states.of(state)}, action {log.actions.of(action)}"


def _fail_unseen(never: Ints, data: _Counts, log: Log) -> None:
    some = "; ".join(_place(int(row), data, log) for row in never[:3])
    more = " ..." if len(never) > 3 else ""
    log.source.fail(
        f"{counted(len(never), 'state-action pair')} never seen ({some}{more})",
        remedies=[
            Remedy("unseen", "prior", "absorb", "forbid", do="choose"),
            Remedy("absorbing", do="name the states that end an episode with"),
        ],
    )


def _fail_empty(row: int, data: _Counts, log: Log, count: int) -> None:
    log.source.fail(
        f"no next state is possible for {_place(row, data, log)}, which the log never shows "
        f"({counted(count, 'pair')} like it)",
        remedies=[
            Remedy("support", do="widen"),
            Remedy("prior", do="widen"),
            Remedy("unseen", "absorb", "forbid", do="choose"),
        ],
    )


def _check_supported(keys: Ints, data: _Counts, log: Log, free: Bools) -> None:
    """A transition in the log must be possible."""
    seen = data.keys[free[data.keys // data.n_states]]
    outside = ~np.isin(seen, keys, assume_unique=True)
    if outside.any():
        row, after = divmod(int(seen[np.argmax(outside)]), data.n_states)
        log.source.fail(
            f"the log has {_place(row, data, log)} leading to {log.states.of(after)}, which "
            f"support= or the prior rules out ({counted(int(outside.sum()), 'transition')} like "
            "it); allow it or correct the log"
        )


def _initial(initial: Any, log: Log) -> Array | None:
    if initial is not None or log.first is None:
        return initial  # type: ignore[no-any-return]
    return np.bincount(log.first, minlength=log.states.size) / len(log.first)


# ---------------------------------------------------------------------- draws
class _Share(NamedTuple):
    """How many models are drawn, and which of them are kept."""

    drawn: int
    keep: slice
    part: Part | None

    @classmethod
    def of(cls, part: Any, count: int) -> _Share:
        chosen = None if part is None or not count else Part.read(part, count)
        return cls(count, slice(0, count) if chosen is None else chosen.models_here, chosen)

    @property
    def size(self) -> int:
        return int(self.keep.stop - self.keep.start)


def _draw(
    plan: _Plan, rewards: Rewards, data: _Counts, share: _Share, rng: np.random.Generator,
    fields: Mapping[str, Any],
) -> MMDP:  # fmt: skip
    shape = (share.size, data.n_states, data.n_actions)
    per_row = np.bincount(plan.keys // data.n_states, minlength=len(plan.allowed))
    indptr = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int64)
    values = dirichlet_rows(plan.alpha, indptr, share.drawn, rng, keep=share.keep)
    dense = len(plan.keys) == data.cells
    indices = (plan.keys % data.n_states).astype(np.int32)
    support = Support(shape, indptr, indices, values[None], dense, None, None)
    expected, per_next = rewards.draw(share.drawn, rng, share.keep)
    allowed = plan.allowed.reshape(data.n_states, data.n_actions)
    return MMDP.from_support(
        support, expected, next_rewards=per_next, allowed=allowed, part=share.part, **fields
    )


def dirichlet_rows(
    alpha: Array, indptr: Ints, count: int, rng: np.random.Generator, *,
    block: int = 1_000_000, keep: slice = slice(None),
) -> Array:  # fmt: skip
    """(nnz, count) draws; the entries indptr[i]:indptr[i + 1] are one Dirichlet(alpha) row.

    About ``block`` draws are made at a time, so that no second array of their size is needed.
    ``keep``: which of the ``count`` models are returned.

    >>> rng = np.random.default_rng(0)
    >>> draws = dirichlet_rows(np.array([2.0, 1.0, 5.0]), np.array([0, 2, 3]), 1000, rng)
    >>> draws[2].min(), bool(abs(draws[0].mean() - 2 / 3) < 0.03)
    (np.float64(1.0), True)
    """
    values = np.empty((len(alpha), len(range(count)[keep])))
    rows = np.flatnonzero(np.diff(indptr))
    step = max(1, block // max(1, count * int(np.diff(indptr).max(initial=1))))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        low, high = int(indptr[some[0]]), int(indptr[some[-1] + 1])
        whole = values.shape[1] == count
        part = values[low:high] if whole else np.empty((high - low, count))
        lengths = np.diff(indptr)[some]
        rng.standard_gamma(np.broadcast_to(alpha[low:high, None], part.shape), out=part)
        sums = np.add.reduceat(part, indptr[some] - low, axis=0)
        if (sums <= 0).any():
            _choose_vertex(part, sums, alpha[low:high], indptr[some] - low, rng)
        part /= np.repeat(sums, lengths, axis=0)
        if not whole:
            values[low:high] = part[:, keep]
    return values


def _choose_vertex(
    part: Array, sums: Array, alpha: Array, starts: Ints, rng: np.random.Generator
) -> None:
    """If all gammas of a row underflow, only the largest one matters: choose it."""
    ends = np.append(starts[1:], len(alpha))
    for row, m in np.argwhere(sums <= 0):
        own = alpha[starts[row] : ends[row]]
        part[starts[row] + rng.choice(len(own), p=own / own.sum()), m] = 1.0
        sums[row, m] = 1.0


# ---------------------------------------------------------------------- warnings
def _warnings(data: _Counts, plan: _Plan, log: Log, unseen: Unseen) -> list[str]:
    told: list[str] = []
    if len(plan.unseen):
        done = {
            "prior": "drawn from the prior alone", "absorb": "made to stay for nothing",
            "forbid": "forbidden",
        }[unseen]  # fmt: skip
        count, was = len(plan.unseen), by_count(len(plan.unseen), "was", "were")
        told.append(
            f"{count} of {len(plan.allowed)} state-action pairs {was} never seen and "
            f"{by_count(count, 'is', 'are')} {done}"
        )
    left = data.visits.reshape(data.n_states, -1).sum(axis=1) > 0
    entered = np.zeros(data.n_states, dtype=bool)
    entered[data.keys % data.n_states] = True
    ends = np.flatnonzero(entered & ~left & ~plan.still.reshape(data.n_states, -1).all(axis=1))
    if len(ends):
        some = ", ".join(log.states.of(int(s)) for s in ends[:5]) + (
            " ..." if len(ends) > 5 else ""
        )
        they, them = (by_count(len(ends), *x) for x in (("it ends", "they end"), ("it", "them")))
        told.append(f"never left in the log: {some}; if {they} an episode, name {them} absorbing")
    absent = int((~entered & ~left).sum())
    if absent:
        occurs = by_count(absent, "occurs", "occur")
        told.append(f"{counted(absent, 'state')} never {occurs} in the log")
    seen = (data.visits > 0) & ~plan.still
    heavy = int((plan.prior_mass[seen] > data.visits[seen]).sum())
    if seen.any() and heavy > 0.5 * seen.sum():
        told.append(
            f"the prior outweighs the data in {heavy} of {int(seen.sum())} pairs seen; lower "
            "concentration or restrict support"
        )
    return told
