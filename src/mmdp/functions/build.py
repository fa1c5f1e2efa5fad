"""From what a step does to a model: shared events, or tables if draws lead to other states."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.functions.axes import Array
from mmdp.kernels.events import Events
from mmdp.kernels.rewards import ByEvent
from mmdp.model import MMDP
from mmdp.posterior.draws import flat_parameters
from mmdp.support import Columns, Support, check_memory, support_of

if TYPE_CHECKING:
    from mmdp.functions.step import Steps

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Leads(NamedTuple):
    """Where events lead in one draw at one time; rows that play no part stay where they are."""

    after: npt.NDArray[np.int32]  # (S, A, W, C)
    share: Array | None  # (S, A, W, C) of each corner; None if C = 1

    def like(self, other: Leads) -> bool:
        shares: tuple[Any, Any] = self.share, other.share
        return np.array_equal(self.after, other.after) and np.array_equal(*shares)


class Chances(NamedTuple):
    """Chances of events, and which of them each pair of state and action has."""

    table: Array  # (T or 1, K, W, M)
    kind: npt.NDArray[np.int32] | None  # (T or 1, S, A)

    def at(self, t: int, pairs: Ids) -> tuple[Array, Ids]:
        """((K, W, M) chances at time t, the kind of each pair s A + a)."""
        table = self.table[min(t, len(self.table) - 1)]
        if self.kind is None:
            return table, np.zeros(len(pairs), np.int64)
        return table, self.kind[min(t, len(self.kind) - 1)].reshape(-1)[pairs].astype(np.int64)

    def possible(self, times: Iterable[int], pairs: Ids, w: Ids) -> Mask:
        """(n,) whether some model may meet event w of a pair at one of these times."""
        found = np.zeros(len(pairs), bool)
        for t in times:
            table, kind = self.at(t, pairs)
            found |= np.asarray(table.any(axis=2))[kind, w]
        return found

    @property
    def steps(self) -> int:
        return max(len(self.table), 1 if self.kind is None else len(self.kind))


def build(x: Steps, **fields: Any) -> MMDP:
    """The model: shared events if all draws lead to the same states, else tables."""
    S, A = x.n_states, x.actions.size
    over, mask = x.over(), x.mask()
    if over.all():
        raise InputError("until holds in every state, so there is nothing to decide; check it")
    chances = x.chances(mask & ~over[:, None])
    found, paid = _stepped(x, mask & ~over[:, None], over, chances)
    open_ = np.ones((S, A), bool)
    open_[: len(mask)] = mask | over[:, None]
    fields |= {
        "initial": x.initial(), "terminal": x.terminals(), "allowed": open_,
        "states": x.state_labels, "actions": x.actions.labels(),
        "parameters": flat_parameters(x.draws) or None,
    }  # fmt: skip
    if all(y is row[0] for row in found for y in row):
        events = _events(found, chances)
        r = paid if x.step.per_draw() else events.rewards(paid).smallest()
        return MMDP.from_support(events, r, **fields).with_function(x)
    return MMDP.from_support(_tables(x, found, chances, open_), paid, **fields).with_function(x)


def _stepped(x: Steps, mask: Mask, over: Mask, chances: Chances) -> tuple[list[list[Leads]], Array]:
    """Where events lead by time and draw (one if it reads none), and what they earn.

    Rewards are (T or 1, S, A, W) if the step reads no draw, else (T or 1, S, A, M).
    """
    T, steps = x.steps(x.step, x.chance), x.steps(x.step)
    found: list[list[Leads]] = [[] for _ in range(steps)]

    def asked(m: int, t: int) -> Array:
        """(1, S, A, W) rewards; where events lead is added to what was found."""
        leads, reward = x.stepped(m, t, mask, over, chances)
        row = found[t]
        row.append(row[0] if row and leads.like(row[0]) else leads)
        return reward.reshape(1, *leads.after.shape[:3])

    first = [asked(0, t) for t in range(steps)]
    if not x.step.per_draw():
        return found, np.concatenate(first)
    size = first[0].shape[1:3]
    check_memory(8 * T * math.prod(size) * x.n_models, "the rewards of all models")
    r = np.empty((T, *size, x.n_models))
    for m, t in np.ndindex(x.n_models, steps):
        reward = first[t] if m == 0 else asked(m, t)
        own = ByEvent(reward, chances.table[..., m : m + 1], chances.kind)
        for i in [t] if steps > 1 else range(T):
            r[i, ..., m] = own[i][..., 0]
    return found, r


def _events(found: list[list[Leads]], chances: Chances) -> Events:
    after = np.stack([row[0].after for row in found])
    shares = [row[0].share for row in found]
    share = None if shares[0] is None else np.stack([y for y in shares if y is not None])
    return Events(after, chances.table, chances.kind, share)


def _tables(x: Steps, found: list[list[Leads]], chances: Chances, open_: Mask) -> Support:
    """The support of models whose next states differ."""
    S, A = open_.shape
    T = max(len(found), chances.steps)
    pairs = np.flatnonzero(open_)
    roles = ("model", "time", "state", "action", "next_state", "probability")
    columns: dict[str, list[npt.NDArray[Any]]] = {role: [] for role in roles}
    for t in range(T):
        table, kind = chances.at(t, pairs)
        row = found[min(t, len(found) - 1)]
        for m, leads in enumerate(row * x.n_models if len(row) == 1 else row):
            W, C = leads.after.shape[2:]
            p = np.repeat(table[kind][:, :, m, None], C, axis=2)
            if leads.share is not None:
                p = p * leads.share.reshape(S * A, W, C)[pairs]
            i, w, c = np.nonzero(p)
            here = pairs[i]
            to = leads.after.reshape(S * A, W, C)[here, w, c]
            at = np.full(len(i), m), np.full(len(i), t), here // A, here % A, to, p[i, w, c]
            for role, part in zip(roles, at, strict=True):
                columns[role].append(part)
    entries = {role: np.concatenate(parts) for role, parts in columns.items()}
    if T == 1:
        del entries["time"]
    return support_of(Columns(entries, (x.n_models, S, A), T), "auto")
