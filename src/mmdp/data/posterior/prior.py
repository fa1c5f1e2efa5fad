"""Counts of a log, prior of transitions, and the rows of the posterior: their sum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Label, check_arguments
from mmdp.core.errors import InputError, MemoryLimitError, Remedy
from mmdp.core.text import format_bytes, pluralize
from mmdp.core.transitions import MAX_DENSE_BYTES, Array, as_float_array
from mmdp.core.validate import align_to_labels
from mmdp.data.posterior.log import TransitionLog
from mmdp.data.schema import ColumnLabels, Fields, IntArray, Mask, TableSource

ScalarT = TypeVar("ScalarT", bound=np.generic)
UnseenRule = Literal["prior", "error", "absorb", "forbid"]
JEFFREYS_COUNT = 0.5  # the pseudo-count of Jeffreys' prior


class TransitionCounts(NamedTuple):
    """Counts of the transitions (s A + a) S + s' that occur, sorted, and of pairs (S A,).

    With the states and actions of their log, its source, and the states that end episodes.
    """

    states: ColumnLabels
    actions: ColumnLabels
    keys: IntArray
    counts: IntArray
    pair_counts: IntArray
    terminal_states: IntArray
    source: TableSource

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.states.size

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.actions.size

    @classmethod
    def from_log(cls, log: TransitionLog) -> TransitionCounts:
        """Count the transitions of a log."""
        n_states, n_pairs = log.states.size, log.states.size * log.actions.size
        _check_n_pairs(log)
        pair_ids = log.state * log.actions.size + log.action
        pair_counts = _count_occurrences(pair_ids, log, n_pairs)
        ids = pair_ids * n_states + log.next_state
        if n_pairs * n_states <= max(2 * len(log), 100_000):
            count_table = _count_occurrences(ids, log, n_pairs * n_states)
            keys = np.flatnonzero(count_table)
            counts = count_table[keys]
        elif log.counts is None:
            keys, counts = np.unique(ids, return_counts=True)
        else:
            keys, inverse = np.unique(ids, return_inverse=True)
            counts = _count_occurrences(inverse, log, len(keys))
        return cls(
            log.states, log.actions, keys, counts, pair_counts, log.terminal_states, log.source
        )

    def describe_pair(self, pair: int) -> str:
        """Format the state and action of a pair s A + a."""
        s, a = divmod(pair, self.n_actions)
        return f"state {self.states.format_id(s)}, action {self.actions.format_id(a)}"


def _count_occurrences(ids: IntArray, log: TransitionLog, size: int) -> IntArray:
    """Count how often the log has each id; returns (size,), exact below 2^53."""
    return np.bincount(ids, log.counts, size).astype(np.int64, copy=False)


def _check_n_pairs(log: TransitionLog) -> None:
    """Refuse a number of pairs out of proportion to the rows, before arrays are allocated."""
    n_pairs = log.states.size * log.actions.size
    if n_pairs * 8 > MAX_DENSE_BYTES // 4 and n_pairs > 64 * len(log):
        raise MemoryLimitError(
            f"{log.source.location}: {pluralize(log.states.size, 'state')} and "
            f"{pluralize(log.actions.size, 'action')} make {n_pairs:,} pairs for "
            f"{pluralize(len(log), 'row')}; number states and actions from 0 without gaps, or name "
            "those that exist by states= and actions="
        )


def check_fit_size(n_entries: int, data: TransitionCounts, n_models: int) -> None:
    """Refuse models that would exceed the memory limit."""
    n_bytes = 8 * n_models * (n_entries + data.n_states * data.n_actions)
    if n_bytes > MAX_DENSE_BYTES:
        raise MemoryLimitError(
            f"{data.source.location}: {n_entries:,} possible transitions ("
            f"{pluralize(data.n_states, 'state')}, {pluralize(data.n_actions, 'action')}) in "
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

    ``shape`` is (S, A). Pairs in ``is_absorbing`` stay in their state and earn 0.
    """

    shape: tuple[int, int]
    keys: IntArray
    alpha: Array
    allowed: Mask
    is_absorbing: Mask
    unseen_rows: IntArray
    prior_totals: Array

    @property
    def pair_ids(self) -> IntArray:
        """Pair s A + a of each key."""
        return self.keys // self.shape[0]


@check_arguments
@dataclass(frozen=True, eq=False)
class Prior:
    """Prior of the transitions for :func:`fit`.

    Parameters
    ----------
    pseudo_counts
        ``"pooled"``: half an observation of each next state that followed the state in the log,
        after any action. With fewer than two next states, another half is spread over all states,
        so that a transition seen once is not certain. ``"symmetric"``: one of every next state of
        the support. Or an array (S, S') or one that broadcasts to (S, A, S'), 0 for impossible
        transitions.
    concentration
        A factor for the pseudo-counts.
    support
        Possible next states: ``"all"`` that the pseudo-counts allow; ``"seen"``, those that
        followed the same action, so that a single one is certain in every model; or
        a mask (S, S') or one that broadcasts to (S, A, S').
    unseen
        How to treat a pair (s, a) that is not in the log. ``"prior"``: sample it from the prior
        (its reward is then the overall average). ``"error"``: refuse. ``"absorb"``: stay there
        and earn 0. ``"forbid"``: do not allow it (a state that is never left stays and earns 0).
    absorbing
        States that end an episode: they stay and earn 0, even if the log has other transitions. So
        do those in which a log with a column ``terminated`` ends its episodes.

    >>> import mmdp
    >>> log = {"state": ["up", "down"], "action": ["run", "run"], "next_state": ["up", "down"]}
    >>> few = mmdp.posterior.Prior("symmetric", concentration=0.5, absorbing=["down"])
    >>> model = mmdp.fit(log, n_models=2000, prior=few, rewards=[[1.0], [0.0]]).train
    >>> bool(abs(model.transitions[:, 0, 0, 0].mean() - 1.5 / 2) < 0.02)  # Beta(1.5, 0.5)
    True
    """

    pseudo_counts: npt.ArrayLike | Literal["pooled", "symmetric"] = "pooled"
    concentration: float = 1.0
    support: npt.ArrayLike | Literal["all", "seen"] = "all"
    unseen: UnseenRule = "prior"
    absorbing: Iterable[Label] = ()

    def __post_init__(self) -> None:
        if isinstance(self.absorbing, str):
            raise InputError(f"absorbing={self.absorbing!r} is text; give a list of states")
        if not (np.isfinite(self.concentration) and self.concentration > 0):
            raise InputError(f"concentration must be a positive number, not {self.concentration!r}")

    def to_dict(self, data: TransitionCounts) -> Fields:
        """Convert to a dict of fields, states as ids; None in place of arrays with labels."""
        values = {
            name: x if isinstance(x, (str, int, float, np.ndarray)) else None
            for name, x in vars(self).items()
        }
        return values | {"absorbing": self._find_absorbing(data)}

    def _find_absorbing(self, data: TransitionCounts) -> list[int]:
        """Find the ids of the states that end an episode."""
        return sorted({*data.states.get_ids(self.absorbing), *data.terminal_states.tolist()})

    def make_rows(self, data: TransitionCounts) -> DirichletRows:
        """Make the Dirichlet parameters of every row from the counts of the log."""
        n_actions, n_rows = data.n_actions, data.n_states * data.n_actions
        is_absorbing, allowed, unseen_rows = self._classify_rows(data)
        keys, alpha = self._make_prior_counts(data, allowed & ~is_absorbing)
        alpha = alpha * self.concentration
        prior_totals = np.bincount(keys // data.n_states, alpha, n_rows).astype(np.float64)
        _check_supported(keys, data, ~is_absorbing)
        empty_rows = np.flatnonzero(allowed & ~is_absorbing & (prior_totals == 0))
        if len(empty_rows):
            _fail_empty(empty_rows, data)
        is_seen = ~is_absorbing[data.keys // data.n_states]
        alpha[np.searchsorted(keys, data.keys[is_seen])] += data.counts[is_seen]
        absorbing_rows = np.flatnonzero(is_absorbing)
        keys = np.concatenate([keys, absorbing_rows * data.n_states + absorbing_rows // n_actions])
        alpha = np.concatenate([alpha, np.ones(len(absorbing_rows))])
        order = np.argsort(keys, kind="stable")
        shape = (data.n_states, n_actions)
        return DirichletRows(
            shape, keys[order], alpha[order], allowed, is_absorbing, unseen_rows, prior_totals
        )

    def _classify_rows(self, data: TransitionCounts) -> tuple[Mask, Mask, IntArray]:
        """Find the absorbing rows and the allowed rows (S A,), and the ids of unseen rows."""
        n_actions = data.n_actions
        is_terminal = np.zeros(data.n_states, dtype=bool)
        is_terminal[self._find_absorbing(data)] = True
        is_absorbing = np.repeat(is_terminal, n_actions)
        unseen_rows = np.flatnonzero((data.pair_counts == 0) & ~is_absorbing)
        allowed = np.ones(len(is_absorbing), dtype=bool)
        if self.unseen == "absorb":
            is_absorbing[unseen_rows] = True
        elif self.unseen == "forbid":
            is_left = np.repeat(
                (data.pair_counts.reshape(-1, n_actions) > 0).any(axis=1) | is_terminal, n_actions
            )
            allowed[unseen_rows] = ~is_left[unseen_rows]
            is_absorbing[unseen_rows] = ~is_left[unseen_rows]
        elif self.unseen == "error" and len(unseen_rows):
            _fail_unseen(unseen_rows, data)
        return is_absorbing, allowed, unseen_rows

    def _make_prior_counts(
        self, data: TransitionCounts, is_sampled: Mask
    ) -> tuple[IntArray, Array]:
        """Make the keys of the sampled rows, with pseudo-counts before scaling."""
        shape = (data.n_states, data.n_actions, data.n_states)
        states = data.states.axis_labels
        is_pooled = isinstance(self.pseudo_counts, str) and self.pseudo_counts == "pooled"
        if not isinstance(self.support, str):
            mask = _broadcast_prior(self.support, shape, "support", np.bool_, states)
            keys = np.flatnonzero(mask.reshape(-1) & np.repeat(is_sampled, data.n_states))
        elif self.support == "seen":
            keys = data.keys[is_sampled[data.keys // data.n_states]]
        elif is_pooled:
            return _make_pooled_counts(data, is_sampled)
        else:
            if isinstance(self.pseudo_counts, str):
                check_fit_size(data.n_states * int(is_sampled.sum()), data, 1)
            rows = np.flatnonzero(is_sampled)
            keys = (rows[:, None] * data.n_states + np.arange(data.n_states)).reshape(-1)
        if isinstance(self.pseudo_counts, str):
            return keys, np.full(len(keys), JEFFREYS_COUNT if is_pooled else 1.0)
        pseudo_counts = _broadcast_prior(self.pseudo_counts, shape, "prior", np.float64, states)
        if not (np.isfinite(pseudo_counts).all() and pseudo_counts.min() >= 0):
            raise InputError("prior has pseudo-counts below 0 or not finite; give finite ones >= 0")
        alpha = pseudo_counts.reshape(-1)[keys]
        return keys[alpha > 0], alpha[alpha > 0]


def _make_pooled_counts(data: TransitionCounts, is_sampled: Mask) -> tuple[IntArray, Array]:
    """Make the keys of the sampled rows with half an observation of each next state of the state.

    With fewer than two next states of a state, another half is spread over all states.
    """
    n, actions = data.n_states, np.arange(data.n_actions)
    seen_moves = np.unique(data.keys // (n * data.n_actions) * n + data.keys % n)  # s S + s'
    n_next = np.bincount(seen_moves // n, minlength=n)
    n_sampled = is_sampled.reshape(n, -1).sum(axis=1)
    check_fit_size(int((np.where(n_next < 2, n, n_next) * n_sampled).sum()), data, 1)
    sparse_states = np.flatnonzero((n_next < 2) & (n_sampled > 0))
    spread_moves = (sparse_states[:, None] * n + np.arange(n)).reshape(-1)
    moves = np.union1d(seen_moves, spread_moves)
    alpha = JEFFREYS_COUNT * np.isin(moves, seen_moves) + JEFFREYS_COUNT / n * np.isin(
        moves, spread_moves
    )
    keys = ((moves // n)[:, None] * data.n_actions + actions) * n + (moves % n)[:, None]
    is_chosen = is_sampled[keys // n]
    keys, alpha = keys[is_chosen], np.broadcast_to(alpha[:, None], keys.shape)[is_chosen]
    order = np.argsort(keys)
    return keys[order], alpha[order]


def _broadcast_prior(
    values: Any,
    shape: tuple[int, int, int],
    argument: str,
    dtype: type[ScalarT],
    states: Sequence[object],
) -> npt.NDArray[ScalarT]:
    """Broadcast a prior or a support to (S, A, S'), aligned to the states if it has labels."""
    try:
        array = as_float_array(align_to_labels(values, argument, states, states), argument)
        if dtype is np.bool_ and not np.isin(array, (0, 1)).all():
            raise InputError(f"{argument} must hold booleans; give True or False")
        # (S, S') is the same for all actions
        if array.shape == (shape[0], shape[2]):
            if shape[0] == shape[1]:
                raise InputError(
                    f"{argument} of shape {array.shape} could be by state or by action and next "
                    f"state; give it as (S, 1, S') or (1, A, S')"
                )
            array = array[:, None, :]
        return np.broadcast_to(array.astype(dtype), shape)
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{argument} of shape {np.shape(values)} does not broadcast to (S, A, S') = {shape}"
        ) from None


def _fail_unseen(unseen_rows: IntArray, data: TransitionCounts) -> NoReturn:
    """Raise the error of state-action pairs that are not in the log."""
    examples = "; ".join(data.describe_pair(int(row)) for row in unseen_rows[:3])
    ellipsis = " ..." if len(unseen_rows) > 3 else ""
    data.source.fail(
        f"{pluralize(len(unseen_rows), 'state-action pair')} never seen ({examples}{ellipsis})",
        remedies=[
            Remedy("unseen", "prior", "absorb", "forbid", verb="choose"),
            Remedy("absorbing", verb="name the states that end an episode with"),
        ],
    )


def _fail_empty(rows: IntArray, data: TransitionCounts) -> NoReturn:
    """Raise the error of rows without possible next states."""
    data.source.fail(
        f"no next state is possible for {data.describe_pair(int(rows[0]))}, which the log lacks "
        f"({pluralize(len(rows), 'pair')} like it)",
        remedies=[
            Remedy("support", verb="widen"),
            Remedy("prior", verb="widen"),
            Remedy("unseen", "absorb", "forbid", verb="choose"),
        ],
    )


def _check_supported(keys: IntArray, data: TransitionCounts, is_sampled: Mask) -> None:
    """Refuse a log with a transition that the prior or the support rules out."""
    seen_keys = data.keys[is_sampled[data.keys // data.n_states]]
    is_outside = ~np.isin(seen_keys, keys, assume_unique=True)
    if is_outside.any():
        pair, next_state = divmod(int(seen_keys[np.argmax(is_outside)]), data.n_states)
        data.source.fail(
            f"the log has {data.describe_pair(pair)} leading to "
            f"{data.states.format_id(next_state)}, which support= or the prior rules out "
            f"({pluralize(int(is_outside.sum()), 'transition')} like it); allow it or correct the "
            "log"
        )
