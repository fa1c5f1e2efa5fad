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
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.arguments import Seed, checked
from mmdp.domains._common import generators
from mmdp.errors import InputError, Remedy
from mmdp.io.folders import TABLES, is_read_with, replace_folder
from mmdp.io.labels import Ints
from mmdp.io.writing import Writer, check_writable, csv_text
from mmdp.kernels.problem import Part
from mmdp.model import MMDP, Evidence
from mmdp.posterior.counts import Counts, check_size
from mmdp.posterior.log import Log, read_log
from mmdp.posterior.prior import Prior, Rows, Unseen
from mmdp.posterior.rewards import RewardLaw, Rewards
from mmdp.support import Array, Support
from mmdp.validate import check_whole
from mmdp.words import by_count, counted, suggested

Of = TypeVar("Of", Prior, Rewards)
OF_LOG = ("columns", "states", "actions")
OF_PRIOR = ("concentration", "support", "unseen", "absorbing")
OF_MODELS = ("initial", "discount", "name", "times", "unit", "quantity")


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


class Options(TypedDict, total=False):
    """Other options of :func:`fit`: of the log, of prior and rewards, and of the models."""

    columns: Mapping[str, str] | None
    states: int | Iterable[object] | None
    actions: int | Iterable[object] | None
    concentration: float
    support: npt.ArrayLike | Literal["all", "seen"]
    unseen: Unseen
    absorbing: Iterable[object]
    reward_prior: Sequence[float] | None
    initial: npt.ArrayLike | Mapping[Any, float] | None
    discount: float
    name: str | None
    times: Any
    unit: str | None
    quantity: str | None


@checked
def fit(
    log: Any,
    *,
    models: int = 200,
    test_models: int = 0,
    prior: Prior | npt.ArrayLike | Literal["pooled", "symmetric"] = "pooled",
    rewards: Any = "average",
    seed: Seed = 0,
    part: tuple[int, int] | None = None,
    **options: Unpack[Options],
) -> Fit:
    """Draw models from the posterior of logged transitions.

    Parameters
    ----------
    log
        Path of a ``.csv`` or ``.parquet`` file, a DataFrame or a mapping of columns, one row
        per transition: ``state``, ``action``, ``next_state`` and, if known, ``reward``,
        ``episode``, ``time`` or ``step`` (orders the rows of an episode) and ``terminated``
        (whether nothing follows the next state). A row with ``count`` n stands for n such rows, as
        in published tables of counts. Labels, or ids from 0; if no id
        is 0 and the lowest is 1, they count from 1 and stay as labels.
    models, test_models
        Number of models to compute a policy from, and of test models from the same posterior.
    prior
        A :class:`Prior`, or its pseudo-counts: ``"pooled"`` over the actions of a state,
        ``"symmetric"`` or an array.
    rewards
        :class:`Rewards`, or their source: ``"average"`` of the log, ``"normal"`` (drawn), or what
        is known: an array, a table or a function.
    seed
        Seed of the draws; train and test have separate streams.
    part
        ``(i, n)``: keep part i of n of the models, for one of n processes (see
        :mod:`mmdp.hosts`). They are those that a single process would draw.

    Other Parameters
    ----------------
    concentration, support, unseen, absorbing
        Shorthands: fields of :class:`Prior`.
    reward_prior
        A shorthand: ``prior`` of :class:`Rewards`.
    states, actions
        Their number, or their labels in order, for those that the log never shows; by default
        those that occur.
    columns
        Role to name, for other column names: ``{"state": "from", "next_state": "to"}``.
    initial
        Initial distribution, (S,) or by label; by default the share of episodes that start in
        each state if the log has episodes, else uniform.
    discount, name, times, unit, quantity
        Those of the models.

    >>> import mmdp.posterior
    >>> log = {"state": ["up", "up", "up", "down"], "action": ["run", "run", "run", "fix"],
    ...        "next_state": ["up", "up", "down", "up"], "reward": [5, 5, 5, -2]}
    >>> found = mmdp.posterior.fit(log, models=500, unseen="forbid")
    >>> found.unseen
    (('up', 'fix'), ('down', 'run'))
    >>> mean = found.train.transitions.mean(axis=0)[0, 0]       # Dirichlet(2.5, 1.5)
    >>> bool(abs(mean[0] - 2.5 / 4) < 0.03)
    True
    """
    check_whole(models, "models")
    check_whole(test_models, "test_models", 0)
    given = _known(options)
    belief = _read(Prior, prior, _taken(given, OF_PRIOR))
    spread = {"prior": given["reward_prior"]} if "reward_prior" in given else {}
    earning = _read(Rewards, rewards, spread)
    read = read_log(log, **_taken(given, OF_LOG))
    data = Counts.of(read)
    rows = belief.rows(data, read)
    shares = [Share.of(part, count) for count in (models, test_models)]
    check_size(len(rows.keys), data, sum(share.size for share in shares), read)
    law = earning.law(read, rows, data)
    fields: dict[str, Any] = {"states": read.states.labels, "actions": read.actions.labels}
    fields |= _taken(given, OF_MODELS)
    if fields.get("initial") is None and read.first is not None:
        fields["initial"] = np.bincount(read.first, minlength=data.n_states) / len(read.first)
    streams = generators(seed, 2)
    evidence = Evidence(data.keys, data.counts, belief.settings(read))
    train, test = (
        draw(rows, law, data, share, stream, fields).with_evidence(evidence)
        if share.drawn else None
        for share, stream in zip(shares, streams, strict=True)
    )  # fmt: skip
    assert train is not None
    missing = tuple(
        (read.states.shown(row // data.n_actions), read.actions.shown(row % data.n_actions))
        for row in rows.unseen.tolist()
    )
    warnings = (*read.notes, *_warnings(data, rows, read, belief), *law.warnings)
    visits = data.visits.reshape(data.n_states, data.n_actions)
    return Fit(train, test, visits, missing, warnings, (data.keys, data.counts))


def _known(options: Mapping[str, Any]) -> Mapping[str, Any]:
    known = Options.__annotations__
    for name in options.keys() - known.keys():
        raise InputError(f"fit has no option {suggested(name, [*known, *fit.__annotations__])}")
    return options


def _taken(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}


def _read(kind: type[Of], given: Any, shorthands: Mapping[str, Any]) -> Of:
    """An object as it is, or one made of its first field and the shorthands for others."""
    if not isinstance(given, kind):
        return kind(given, **shorthands)
    if shorthands:
        raise InputError(f"{kind.__name__} has its own {next(iter(shorthands))}; give it there")
    return given


@checked
def fit_folder(log: Any, out: str | Path, *, overwrite: bool = False, **options: Any) -> Fit:
    """:func:`fit`, written as a folder that :func:`mmdp.load` reads; takes its options.

    ``out`` gets ``training.csv``, ``test.csv`` if test models are asked for, the files that
    :func:`mmdp.save` writes with them, and ``counts.csv``, ``unseen.csv`` and ``fit.json``
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
    evidence = found.train.evidence
    assert evidence is not None
    pairs = pd.DataFrame(list(found.unseen), columns=["state", "action"])
    document = {
        "transitions": int(found.visits.sum()),
        "models": found.train.n_models,
        "test_models": 0 if found.test is None else found.test.n_models,
        "unseen": len(found.unseen),
        "warnings": list(found.warnings),
        "prior": {k: None if isinstance(x, np.ndarray) else x for k, x in evidence.prior.items()},
    }
    more: dict[str, Writer] = {
        "counts.csv": csv_text(found.counts),
        "unseen.csv": csv_text(pairs),
        "fit.json": json.dumps(document, indent=1, ensure_ascii=False) + "\n",
    }
    replace_folder(folder, found.train, found.test, more)
    return found


# ---------------------------------------------------------------------- draws
class Share(NamedTuple):
    """How many models are drawn, and which of them are kept."""

    drawn: int
    keep: slice
    part: Part | None

    @classmethod
    def of(cls, part: Any, count: int) -> Share:
        chosen = None if part is None or not count else Part.read(part, count)
        return cls(count, slice(0, count) if chosen is None else chosen.models_here, chosen)

    @property
    def size(self) -> int:
        return int(self.keep.stop - self.keep.start)


def draw(
    rows: Rows, law: RewardLaw, data: Counts, share: Share, rng: np.random.Generator,
    fields: Mapping[str, Any],
) -> MMDP:  # fmt: skip
    shape = (share.size, data.n_states, data.n_actions)
    per_row = np.bincount(rows.keys // data.n_states, minlength=len(rows.allowed))
    indptr = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int64)
    values = dirichlet_rows(rows.alpha, indptr, share.drawn, rng, keep=share.keep)
    dense = len(rows.keys) == data.cells
    indices = (rows.keys % data.n_states).astype(np.int32)
    support = Support(shape, indptr, indices, values[None], dense, None, None)
    expected, per_next = law.draw(share.drawn, rng, share.keep)
    allowed = rows.allowed.reshape(data.n_states, data.n_actions)
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
def _warnings(data: Counts, rows: Rows, log: Log, prior: Prior) -> list[str]:
    found: list[str] = []
    if len(rows.unseen):
        done = {
            "prior": "drawn from the prior alone", "absorb": "made to stay and earn 0",
            "forbid": "forbidden",
        }[prior.unseen]  # fmt: skip
        count, was = len(rows.unseen), by_count(len(rows.unseen), "was", "were")
        found.append(
            f"{count} of {len(rows.allowed)} state-action pairs {was} never seen and "
            f"{by_count(count, 'is', 'are')} {done}"
        )
    left = data.visits.reshape(data.n_states, -1).sum(axis=1) > 0
    entered = np.zeros(data.n_states, dtype=bool)
    entered[data.keys % data.n_states] = True
    ends = np.flatnonzero(entered & ~left & ~rows.still.reshape(data.n_states, -1).all(axis=1))
    if len(ends):
        some = ", ".join(log.states.of(int(s)) for s in ends[:5]) + (
            " ..." if len(ends) > 5 else ""
        )
        they, them = (by_count(len(ends), *x) for x in (("it ends", "they end"), ("it", "them")))
        found.append(f"never left in the log: {some}; if {they} an episode, name {them} absorbing")
    absent = int((~entered & ~left).sum())
    if absent:
        occurs = by_count(absent, "occurs", "occur")
        found.append(f"{counted(absent, 'state')} never {occurs} in the log")
    seen = (data.visits > 0) & ~rows.still
    heavy = int((rows.prior_mass[seen] > data.visits[seen]).sum())
    if seen.any() and heavy > 0.5 * seen.sum():
        found.append(
            f"the prior outweighs the data in {heavy} of {int(seen.sum())} pairs seen; collect "
            "more data, or say what you know by prior= or support="
        )
    if isinstance(prior.support, str) and prior.support == "seen":
        per_row = np.bincount(rows.keys // data.n_states, minlength=len(seen))
        certain = int((seen & (per_row == 1)).sum())
        if certain:
            found.append(
                f"{certain} of {int(seen.sum())} pairs seen lead to one state for certain, as "
                'support="seen" rules out all others; ranges over the models are too narrow'
            )
    return found
