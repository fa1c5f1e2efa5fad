"""quantecon: models in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.data.interop._one_model import (
    check_model_index,
    check_not_switching,
    check_stationary,
    list_transitions,
)

if TYPE_CHECKING:
    import scipy.sparse

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class QuantEconProblem(Protocol):
    """A ``quantecon.markov.DiscreteDP``: by state and action, or by state-action pairs."""

    R: Array  # (S, A), or (L,) by pair
    Q: Array  # (S, A, S'), or (L, S') by pair, dense or sparse
    beta: float
    s_indices: Ids | None  # (L,); None if by state and action
    a_indices: Ids | None


@check_arguments
def to_quantecon(model: MMDP, model_index: int = 0) -> QuantEconProblem:
    """Convert a model to ``quantecon.markov.DiscreteDP`` in its form by state-action pairs.

    Actions that are not allowed have no pair; transitions are sparse if the model's are. A
    DiscreteDP has no initial distribution and no terminal values: quantecon's functions take them.

    With quantecon installed, ``to_quantecon(model, 0).solve().v`` are the optimal values.
    """
    try:
        from quantecon.markov import DiscreteDP
    except ImportError:
        raise InputError("this needs quantecon; install it with: pip install quantecon") from None
    check_stationary(model, "quantecon")
    check_not_switching(model, "quantecon")
    index = check_model_index(model, model_index)
    entries = list_transitions(model, index, fill_forbidden=False)
    s, a = np.nonzero(model.allowed)
    pair_ids = np.full(model.allowed.shape, -1)
    pair_ids[s, a] = np.arange(len(s))
    entry_pairs = pair_ids[entries.state, entries.action]
    import scipy.sparse

    q = scipy.sparse.csr_matrix(
        (entries.probability, (entry_pairs, entries.next_state)), shape=(len(s), model.n_states)
    )
    r = np.bincount(entry_pairs, entries.probability * entries.reward, len(s))
    return DiscreteDP(r, q.toarray() if model.storage == "dense" else q, model.discount, s, a)


@check_arguments
def from_quantecon(
    problem: Unchecked[QuantEconProblem | Sequence[QuantEconProblem]], **fields: Any
) -> MMDP:
    """Make models of a ``DiscreteDP``, or of a sequence of them: one model each.

    Both forms are read; a reward of -inf forbids the action. ``fields`` are other arguments of
    :class:`mmdp.MMDP`; the discount is the DiscreteDP's unless given.

    >>> from types import SimpleNamespace
    >>> import numpy as np, mmdp.interop
    >>> ddp = SimpleNamespace(R=np.array([[5.0, -np.inf], [1.0, 2.0]]), Q=np.full((2, 2, 2), 0.5),
    ...                       beta=0.9, s_indices=None, a_indices=None)
    >>> mmdp.interop.from_quantecon(ddp).allowed.tolist()
    [[True, False], [True, True]]
    """
    problems: list[QuantEconProblem] = list(problem) if isinstance(problem, Sequence) else [problem]
    if not problems or not all(hasattr(x, name) for x in problems for name in ("R", "Q", "beta")):
        raise InputError("from_quantecon() needs a DiscreteDP, or a list of them")
    pairs_by_model = [_read_pairs(x) for x in problems]
    n_states = problems[0].Q.shape[-1]
    n_actions = max(int(a.max()) + 1 for _, a, _, _ in pairs_by_model)
    rewards = np.zeros((len(problems), n_states, n_actions))
    coordinates = []
    for m, (s, a, r, q) in enumerate(pairs_by_model):
        coo = q.tocoo()
        coordinates.append((np.full(coo.nnz, m), s[coo.row], a[coo.row], coo.col, coo.data))
        rewards[m, s, a] = r
    names = ("model", "state", "action", "next_state", "probability")
    columns: dict[str, Any] = dict(
        zip(names, map(np.concatenate, zip(*coordinates, strict=True)), strict=True)
    )
    fields.setdefault("discount", float(problems[0].beta))
    return MMDP.from_coordinates(**columns, shape=rewards.shape, rewards=rewards, **fields)


def _read_pairs(problem: QuantEconProblem) -> tuple[Ids, Ids, Array, scipy.sparse.csr_matrix]:
    """Read the feasible pairs: states, actions, rewards and sparse transitions (L, S')."""
    import scipy.sparse

    r = np.asarray(problem.R, dtype=np.float64)
    if r.ndim == 1:
        s, a, q = np.asarray(problem.s_indices), np.asarray(problem.a_indices), problem.Q
    else:
        s, a = (x.reshape(-1) for x in np.indices(r.shape))
        r, q = r.reshape(-1), np.reshape(problem.Q, (r.size, -1))
    is_feasible = r > -np.inf
    rows = scipy.sparse.csr_matrix(q)[is_feasible]
    return s[is_feasible], a[is_feasible], r[is_feasible], rows
