"""Tunnel states: states that remember how long ago they were entered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mmdp.errors import InputError
from mmdp.io.labels import Ints
from mmdp.model import MMDP
from mmdp.support import Support
from mmdp.validate import ids_of


def with_tunnels(at: Callable[[int], MMDP], tunnels: Mapping[Any, int]) -> MMDP:
    """One model whose states in ``tunnels`` are split by the time since they were entered.

    ``at(k)`` has the rows of those who are in their state for the k-th step; see
    :func:`mmdp.from_draws`. Who stays goes from part k to part k + 1, and stays in the last one;
    who comes from elsewhere begins in part 1.
    """
    first = at(1)
    A, length = first.n_actions, _lengths(tunnels, first)
    start, size = np.cumsum(length) - length, int(length.sum())
    found: list[_Part] = []
    kept = False
    for k in range(int(length.max())):
        model = at(k + 1) if k else first
        x, rows, per_next = model.problem, model.problem.rows(), model.pattern_rewards
        split, here = np.flatnonzero(length > k), np.flatnonzero(length[rows // A] > k)
        s, a, to = rows[here] // A, rows[here] % A, x.indices[here]
        column = start[to] + (to == s) * np.minimum(k + 1, length[s] - 1)
        earned = x.r[:, s, a] if per_next is None else per_next[:, here]
        found.append(_Part(
            start[split] + k, ((start[s] + k) * A + a) * size + column, x.p[:, here], earned,
            x.r[:, split], model.terminal[:, split], model.allowed[split],
        ))  # fmt: skip
        kept |= per_next is not None
    part = _Part(*(_joined(x) for x in zip(*found, strict=True)))
    place, order = np.argsort(part.place), np.argsort(part.keys)
    shape = (x.p.shape[2], size, A)
    support = Support.on_keys(shape, part.keys[order], part.p[:, order], horizon=first.horizon)
    initial = np.zeros((*first.initial.shape[:-1], size))
    initial[..., start] = first.initial
    labels = zip(first.state_labels, length.tolist(), strict=True)
    return MMDP.from_support(
        support, None if kept else part.r[:, place],
        next_rewards=part.earned[:, order] if kept else None,
        initial=initial, weights=first.weights, discount=first.discount,
        terminal=part.terminal[:, place], allowed=part.allowed[place],
        model_transitions=first.fields()["model_transitions"],
        states=[_label(name, k, n) for name, n in labels for k in range(n)],
        actions=first.action_labels if first.labelled["action"] else None,
        models=first.model_labels if first.labelled["model"] else None,
        allow_missing=first.has_missing, parameters=first.parameters, name=first.name,
        times=first.times, unit=first.unit, quantity=first.quantity,
    )  # fmt: skip


class _Part(NamedTuple):
    """What the models of one k give: places of states, and entries on keys (s A + a) S + s'."""

    place: Any
    keys: Any
    p: Any
    earned: Any
    r: Any
    terminal: Any
    allowed: Any


def _joined(parts: Sequence[Any]) -> Any:
    """Joined along states or entries: the first axis, or the second of those with time first."""
    if parts[0].ndim == 1 or parts[0].dtype == np.bool_:
        return np.concatenate(parts)
    times = max(len(part) for part in parts)  # 1 of what does not vary with time
    return np.concatenate([np.broadcast_to(x, (times, *x.shape[1:])) for x in parts], axis=1)


def without_tunnels(model: MMDP, tunnels: Mapping[Any, int]) -> list[str]:
    """(S,) the state that each state was before ``tunnels`` split it: groups for those who act.

    >>> import numpy as np, mmdp
    >>> from mmdp.posterior import without_tunnels
    >>> def build(x):                          # wait or treat; recovery gets less likely
    ...     well = np.array([0.4, 0.6]) * x["p"] / x["since"]
    ...     sick = np.stack([well, 1 - well], axis=-1)
    ...     return np.stack([[[1.0, 0.0]] * 2, sick]), [[1.0, 1.0], [0.0, -0.1]]
    >>> model = mmdp.from_draws(
    ...     {"p": [0.8, 1.0]}, build, tunnels={"sick": 3}, states=["well", "sick"], initial=[0, 1])
    >>> model.state_labels
    ('well', 'sick 1', 'sick 2', 'sick 3+')
    >>> unseen = mmdp.Tied(without_tunnels(model, {"sick": 3}))     # nobody knows since when
    >>> mmdp.solve(model, 5, policy=unseen).value <= mmdp.solve(model, 5).value
    True
    """
    parts = {_label(str(name), k, n): str(name) for name, n in tunnels.items() for k in range(n)}
    return [parts.get(label, label) for label in model.state_labels]


def _label(name: str, k: int, length: int) -> str:
    return name if length == 1 else f"{name} {k + 1}{'+' * (k + 1 == length)}"


def _lengths(tunnels: Mapping[Any, int], model: MMDP) -> Ints:
    """(S,) into how many parts each state is split."""
    length = np.ones(model.n_states, dtype=np.int64)
    if not isinstance(tunnels, Mapping) or not tunnels:
        raise InputError('tunnels are numbers of steps by state, such as {"sick": 75}')
    places = ids_of(tunnels, model.state_labels, "tunnels")
    for s, (name, n) in zip(places, tunnels.items(), strict=True):
        if not isinstance(n, (int, np.integer)) or n < 1:
            raise InputError(f"tunnels: {name!r} has {n!r} parts; give a whole number from 1 on")
        length[s] = n
    return length
