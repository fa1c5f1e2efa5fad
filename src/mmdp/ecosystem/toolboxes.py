"""pymdptoolbox and quantecon: arrays in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.arguments import checked
from mmdp.ecosystem._one_model import (
    Entries,
    check_model,
    check_stationary,
    check_still,
    entries_of,
)
from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.support import MATERIALISE_LIMIT
from mmdp.words import readable_bytes

Array = npt.NDArray[np.float64]


def to_mdptoolbox(model: MMDP, m: int = 0, *, sparse: bool | None = None) -> tuple[Any, Array]:
    """(P, R) of model ``m``: P[a] is (S, S'), R is (S, A) expected rewards.

    P is an array (A, S, S'), or with ``sparse`` (the default if the model's storage is) a
    list of scipy CSR matrices. An action that is not allowed repeats the lowest allowed one of
    its state, which changes no optimal value.

    >>> import mmdp, mmdp.ecosystem
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[1.0], [0.0]], storage="dense")
    >>> P, R = mmdp.ecosystem.to_mdptoolbox(one)
    >>> P[0].tolist(), R.tolist()
    ([[0.5, 0.5], [0.0, 1.0]], [[1.0], [0.0]])
    """
    e = _entries(model, m, "pymdptoolbox", fill=True)
    n_states, n_actions = model.n_states, model.n_actions
    rewards = np.zeros((n_states, n_actions))
    np.add.at(rewards, (e.state, e.action), e.probability * e.reward)
    if sparse is None:
        sparse = model.storage == "sparse"
    if sparse:
        return [_matrix(e, e.action == a, n_states) for a in range(n_actions)], rewards
    size = n_actions * n_states * n_states * 8
    if size > MATERIALISE_LIMIT:
        raise InputError(f"dense arrays would take {readable_bytes(size)}; pass sparse=True")
    p = np.zeros((n_actions, n_states, n_states))
    p[e.action, e.state, e.next_state] = e.probability
    return p, rewards


def from_mdptoolbox(P: Any, R: Any, **fields: Any) -> MMDP:
    """A problem from arrays as pymdptoolbox takes them.

    ``P``: (A, S, S') or a sequence over actions of (S, S') arrays or scipy matrices; ``R``:
    (S,), (S, A), (A, S, S'), or a sequence over actions of scipy matrices. Several models:
    ``P`` (M, A, S, S') with ``R`` (S,), (S, A) or (M, S, A). ``fields`` are other arguments of
    :class:`mmdp.MMDP`.

    >>> import mmdp.ecosystem
    >>> P = [[[0.5, 0.5], [0.8, 0.2]], [[0.0, 1.0], [0.1, 0.9]]]
    >>> model = mmdp.ecosystem.from_mdptoolbox(P, [[5.0, 10.0], [-1.0, 2.0]])
    >>> model.transitions[0, 0].tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    if hasattr(P[0], "tocoo"):
        return MMDP([list(P)], _mdptoolbox_rewards(R, P), **fields)
    p = np.asarray(P, dtype=np.float64)
    if p.ndim not in (3, 4) or p.shape[-1] != p.shape[-2]:
        raise InputError(f"P of shape {p.shape}; pymdptoolbox has (actions, states, next states)")
    moved = np.moveaxis(p, -3, -2)
    moved = moved if moved.ndim == 4 else moved[None]
    if p.ndim == 4 and np.ndim(R) == 3:
        return MMDP(moved, R, **fields)  # (M, S, A) already
    rewards = _mdptoolbox_rewards(R, p if p.ndim == 3 else p[0])
    by_next = rewards.ndim == 3 and rewards.shape == moved.shape[1:]
    return MMDP(moved, **{"next_rewards" if by_next else "rewards": rewards}, **fields)


def _mdptoolbox_rewards(R: Any, P: Any) -> Any:
    """(S, A), or (S, A, S') if rewards are given by transition."""
    n_actions, n_states, sparse = len(P), P[0].shape[0], hasattr(P[0], "tocoo")
    by_next = isinstance(R, (list, tuple)) and hasattr(R[0], "tocoo")
    array = np.empty(0) if by_next else np.asarray(R, dtype=np.float64)
    if array.shape == (n_states,):
        return np.repeat(array[:, None], n_actions, axis=1)
    if not (by_next or array.shape == (n_actions, n_states, n_states)):
        return array
    if sparse:  # expected rewards
        parts = [np.asarray(p.multiply(r).sum(axis=1)).ravel() for p, r in zip(P, R, strict=True)]
        return np.stack(parts, axis=1)
    return np.stack([x.toarray() if by_next else x for x in (R if by_next else array)], axis=1)


@checked
def to_quantecon(model: MMDP, m: int = 0) -> Any:
    """Model ``m`` as ``quantecon.markov.DiscreteDP`` in its form by state-action pairs.

    Actions that are not allowed have no pair; transitions are sparse if the model's are.

    With quantecon installed, ``to_quantecon(model, 0).solve().v`` are the optimal values.
    """
    try:
        from quantecon.markov import DiscreteDP
    except ImportError:
        raise InputError("this needs quantecon; install it with: pip install quantecon") from None
    e = _entries(model, m, "quantecon", fill=False)
    s, a = np.nonzero(model.allowed)
    place = np.full(model.allowed.shape, -1)
    place[s, a] = np.arange(len(s))
    rows = place[e.state, e.action]
    import scipy.sparse

    q: Any = scipy.sparse.csr_matrix(
        (e.probability, (rows, e.next_state)), shape=(len(s), model.n_states)
    )
    if model.storage == "dense":
        q = q.toarray()
    r = np.bincount(rows, e.probability * e.reward, len(s))
    return DiscreteDP(r, q, model.discount, s, a)


@checked
def from_quantecon(problem: Any, **fields: Any) -> MMDP:
    """A problem from a ``DiscreteDP``, or from a sequence of them: one model each.

    Both forms are read; a reward of -inf forbids the action. ``fields`` are other arguments of
    :class:`mmdp.MMDP`; the discount is the DiscreteDP's unless given.

    >>> from types import SimpleNamespace
    >>> import numpy as np, mmdp.ecosystem
    >>> ddp = SimpleNamespace(R=np.array([[5.0, -np.inf], [1.0, 2.0]]), Q=np.full((2, 2, 2), 0.5),
    ...                       beta=0.9, s_indices=None, a_indices=None)
    >>> mmdp.ecosystem.from_quantecon(ddp).allowed.tolist()
    [[True, False], [True, True]]
    """
    problems = list(problem) if isinstance(problem, (list, tuple)) else [problem]
    if not problems or not all(hasattr(x, name) for x in problems for name in ("R", "Q", "beta")):
        raise InputError("from_quantecon() needs a DiscreteDP, or a list of them")
    parts = [_pairs(x) for x in problems]
    n_states = problems[0].Q.shape[-1]
    n_actions = max(int(a.max()) + 1 for _, a, _, _ in parts)
    rewards = np.zeros((len(problems), n_states, n_actions))
    found = []
    for m, (s, a, r, q) in enumerate(parts):
        coo = q.tocoo()
        found.append((np.full(coo.nnz, m), s[coo.row], a[coo.row], coo.col, coo.data))
        rewards[m, s, a] = r
    names = ("model", "state", "action", "next_state", "probability")
    columns: dict[str, Any] = dict(
        zip(names, map(np.concatenate, zip(*found, strict=True)), strict=True)
    )
    fields.setdefault("discount", float(problems[0].beta))
    return MMDP.from_coordinates(**columns, shape=rewards.shape, rewards=rewards, **fields)


def _pairs(problem: Any) -> tuple[Any, Any, Array, Any]:
    """(states, actions, rewards, sparse (L, S') transitions) of the pairs that exist."""
    import scipy.sparse

    r = np.asarray(problem.R, dtype=np.float64)
    if r.ndim == 1:
        s, a = np.asarray(problem.s_indices), np.asarray(problem.a_indices)
        there = r > -np.inf
        return s[there], a[there], r[there], scipy.sparse.csr_matrix(problem.Q)[there]
    s, a = np.nonzero(r > -np.inf)
    q = np.asarray(problem.Q, dtype=np.float64)[s, a]
    return s, a, r[s, a], scipy.sparse.csr_matrix(q)


def _entries(model: MMDP, m: int, tool: str, *, fill: bool) -> Entries:
    """The transitions of model m, if the tool can hold it."""
    number = check_model(model, m)
    check_stationary(model, tool)
    check_still(model, tool)
    return entries_of(model, number, fill=fill)


def _matrix(e: Any, chosen: npt.NDArray[np.bool_], n_states: int) -> Any:
    import scipy.sparse

    return scipy.sparse.csr_matrix(
        (e.probability[chosen], (e.state[chosen], e.next_state[chosen])), (n_states, n_states)
    )
