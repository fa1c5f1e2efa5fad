"""What is believed before the log, and the posterior's rows: prior pseudo-counts plus counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.arguments import Label, checked
from mmdp.domains._common import check_choice
from mmdp.errors import InputError, Remedy
from mmdp.io.labels import Ints
from mmdp.posterior.counts import Counts, check_size
from mmdp.posterior.log import Log
from mmdp.support import Array, refuse_masked
from mmdp.validate import by_label
from mmdp.words import counted

Bools = npt.NDArray[np.bool_]
Unseen = Literal["prior", "error", "absorb", "forbid"]
UNSEEN = ("prior", "error", "absorb", "forbid")
PRIORS = ("pooled", "symmetric")
HALF = 0.5  # the pseudo-count of Jeffreys' prior


class Rows(NamedTuple):
    """alpha + n on the sorted keys; ``still`` (S A,) rows that stay and earn 0."""

    keys: Ints
    alpha: Array
    allowed: Bools
    still: Bools
    unseen: Ints
    prior_mass: Array


@checked
@dataclass(frozen=True, eq=False)
class Prior:
    """What :func:`fit` assumes about transitions before it sees the log.

    Parameters
    ----------
    pseudo_counts
        ``"pooled"``: half an observation of each next state that followed the state in the log,
        whatever the action was. Where fewer than two did, another half is spread over all states,
        so that nothing seen once is certain. ``"symmetric"``: one of every next state of the
        support. Or an array (S, S') or one that broadcasts to (S, A, S'), 0 for what is impossible.
    concentration
        A factor for the pseudo-counts.
    support
        Possible next states: ``"all"`` that the pseudo-counts allow; ``"seen"``, those that
        followed the same action, so that one which was always seen is certain in every model; or
        a mask (S, S') or one that broadcasts to (S, A, S').
    unseen
        What to do with a pair (s, a) that is not in the log. ``"prior"``: draw it from the prior
        (its reward is then the overall average). ``"error"``: refuse. ``"absorb"``: stay there
        and earn 0. ``"forbid"``: do not allow it (a state that is never left stays and earns 0).
    absorbing
        States that end an episode: they stay and earn 0, whatever the log says. So do those in
        which a log with a column ``terminated`` ends its episodes.

    >>> import mmdp
    >>> log = {"state": ["up", "down"], "action": ["run", "run"], "next_state": ["up", "down"]}
    >>> few = mmdp.Prior("symmetric", concentration=0.5, absorbing=["down"])
    >>> model = mmdp.fit(log, models=2000, prior=few, rewards=[[1.0], [0.0]]).train
    >>> bool(abs(model.transitions[:, 0, 0, 0].mean() - 1.5 / 2) < 0.02)  # Beta(1.5, 0.5)
    True
    """

    pseudo_counts: npt.ArrayLike | Literal["pooled", "symmetric"] = "pooled"
    concentration: float = 1.0
    support: npt.ArrayLike | Literal["all", "seen"] = "all"
    unseen: Unseen = "prior"
    absorbing: Iterable[Label] = ()

    def __post_init__(self) -> None:
        if isinstance(self.absorbing, str):
            raise InputError(f"absorbing={self.absorbing!r} is text; give a list of states")
        check_choice(self.unseen, "unseen", UNSEEN)
        if isinstance(self.support, str):
            check_choice(self.support, "support", ("all", "seen"))
        if isinstance(self.pseudo_counts, str) and self.pseudo_counts not in PRIORS:
            raise InputError(
                f'prior must be "pooled", "symmetric" or an array (S, A, S\'), not '
                f"{self.pseudo_counts!r}"
            )
        if not (np.isfinite(self.concentration) and self.concentration > 0):
            raise InputError(f"concentration must be a positive number, not {self.concentration!r}")

    def settings(self, log: Log) -> dict[str, Any]:
        """The fields, states as ids; None in place of arrays with labels."""
        plain = {name: x if isinstance(x, (str, int, float, np.ndarray)) else None
                 for name, x in vars(self).items()}  # fmt: skip
        named = [log.states.place(x) for x in self.absorbing]
        return plain | {"absorbing": sorted({*named, *log.ends.tolist()})}

    def rows(self, data: Counts, log: Log) -> Rows:
        """The Dirichlet parameters of every row, given the counts of the log."""
        n_actions, n_rows = data.n_actions, data.n_states * data.n_actions
        still, allowed, never = self._kinds(data, log)
        keys, alpha = self._on_support(data, log, allowed & ~still)
        alpha = alpha * self.concentration
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
        return Rows(keys[order], alpha[order], allowed, still, never, mass)

    def _kinds(self, data: Counts, log: Log) -> tuple[Bools, Bools, Ints]:
        """Rows (S A,) that stay and earn 0, rows that are allowed, ids of those never seen."""
        n_actions = data.n_actions
        ends = np.zeros(data.n_states, dtype=bool)
        ends[[log.states.place(x) for x in self.absorbing]] = True
        ends[log.ends] = True
        still = np.repeat(ends, n_actions)
        never = np.flatnonzero((data.visits == 0) & ~still)
        allowed = np.ones(len(still), dtype=bool)
        if self.unseen == "absorb":
            still[never] = True
        elif self.unseen == "forbid":
            left = np.repeat((data.visits.reshape(-1, n_actions) > 0).any(axis=1) | ends, n_actions)
            allowed[never] = ~left[never]
            still[never] = ~left[never]
        elif self.unseen == "error" and len(never):
            _fail_unseen(never, data, log)
        return still, allowed, never

    def _on_support(self, data: Counts, log: Log, free: Bools) -> tuple[Ints, Array]:
        """Keys of the rows that are drawn, with the prior before it is scaled."""
        shape = (data.n_states, data.n_actions, data.n_states)
        states: Sequence[object] = log.states.labels or range(log.states.size)
        pooled = isinstance(self.pseudo_counts, str) and self.pseudo_counts == "pooled"
        if not isinstance(self.support, str):
            mask = _broadcast(self.support, shape, "support", np.bool_, states)
            keys = np.flatnonzero(mask.reshape(-1) & np.repeat(free, data.n_states))
        elif self.support == "seen":
            keys = data.keys[free[data.keys // data.n_states]]
        elif pooled:
            return _pooled(data, log, free)
        else:
            if isinstance(self.pseudo_counts, str):
                check_size(data.n_states * int(free.sum()), data, 1, log)
            rows = np.flatnonzero(free)
            keys = (rows[:, None] * data.n_states + np.arange(data.n_states)).reshape(-1)
        if isinstance(self.pseudo_counts, str):
            return keys, np.full(len(keys), HALF if pooled else 1.0)
        weights = _broadcast(self.pseudo_counts, shape, "prior", np.float64, states)
        if not (np.isfinite(weights).all() and weights.min() >= 0):
            raise InputError("prior pseudo-counts must be finite and at least 0")
        alpha = weights.reshape(-1)[keys]
        return keys[alpha > 0], alpha[alpha > 0]


def _pooled(data: Counts, log: Log, free: Bools) -> tuple[Ints, Array]:
    """Keys of the rows in ``free`` with half an observation of what followed any of their actions.

    Where fewer than two states followed a state, another half is spread over all states.
    """
    n, actions = data.n_states, np.arange(data.n_actions)
    seen = np.unique(data.keys // (n * data.n_actions) * n + data.keys % n)  # s S + s'
    n_next, n_free = np.bincount(seen // n, minlength=n), free.reshape(n, -1).sum(axis=1)
    check_size(int((np.where(n_next < 2, n, n_next) * n_free).sum()), data, 1, log)
    few = np.flatnonzero((n_next < 2) & (n_free > 0))
    spread = (few[:, None] * n + np.arange(n)).reshape(-1)
    pairs = np.union1d(seen, spread)
    alpha = HALF * np.isin(pairs, seen) + HALF / n * np.isin(pairs, spread)
    keys = ((pairs // n)[:, None] * data.n_actions + actions) * n + (pairs % n)[:, None]
    chosen = free[keys // n]
    keys, alpha = keys[chosen], np.broadcast_to(alpha[:, None], keys.shape)[chosen]
    order = np.argsort(keys)
    return keys[order], alpha[order]


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


def _place(row: int, data: Counts, log: Log) -> str:
    state, action = divmod(row, data.n_actions)
    return f"state {log.states.of(state)}, action {log.actions.of(action)}"


def _fail_unseen(never: Ints, data: Counts, log: Log) -> None:
    some = "; ".join(_place(int(row), data, log) for row in never[:3])
    more = " ..." if len(never) > 3 else ""
    log.source.fail(
        f"{counted(len(never), 'state-action pair')} never seen ({some}{more})",
        remedies=[
            Remedy("unseen", "prior", "absorb", "forbid", do="choose"),
            Remedy("absorbing", do="name the states that end an episode with"),
        ],
    )


def _fail_empty(row: int, data: Counts, log: Log, count: int) -> None:
    log.source.fail(
        f"no next state is possible for {_place(row, data, log)}, which the log never shows "
        f"({counted(count, 'pair')} like it)",
        remedies=[
            Remedy("support", do="widen"),
            Remedy("prior", do="widen"),
            Remedy("unseen", "absorb", "forbid", do="choose"),
        ],
    )


def _check_supported(keys: Ints, data: Counts, log: Log, free: Bools) -> None:
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
