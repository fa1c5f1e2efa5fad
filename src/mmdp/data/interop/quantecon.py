"""quantecon: models in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd

from mmdp.core.arguments import Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.shapes import Array, IndexArray
from mmdp.data.interop._one_model import check_model_index, check_stationary
from mmdp.data.io.tables import from_frame


class QuantEconProblem(Protocol):
    """A ``quantecon.markov.DiscreteDP``: by state and action, or by state-action pairs."""

    R: Array  # (S, A), or (L,) by pair
    Q: Array  # (S, A, S'), or (L, S') by pair, dense or sparse
    beta: float
    s_indices: IndexArray | None  # (L,); None if by state and action
    a_indices: IndexArray | None


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
    if model.is_switching:
        raise InputError(
            "quantecon cannot hold a model that switches; hold it still with "
            "replace(model_transitions=None)"
        )
    index = check_model_index(model, model_index)
    import scipy.sparse

    s, a = np.nonzero(model.allowed)
    matrices = [model.transition_matrix(index, action) for action in range(model.n_actions)]
    q = scipy.sparse.csr_matrix(scipy.sparse.vstack(matrices))[a * model.n_states + s]
    r = model.rewards[index, s, a]
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
    if len({x.beta for x in problems}) > 1 and "discount" not in fields:
        raise InputError("the problems have different discounts (beta); give one by discount=")
    import scipy.sparse

    tables = []
    for m, x in enumerate(problems):
        r, is_by_pair = np.asarray(x.R, dtype=np.float64), np.ndim(x.R) == 1
        indices: Any = (x.s_indices, x.a_indices) if is_by_pair else np.indices(r.shape)
        s, a = (np.reshape(ids, -1) for ids in indices)
        q = scipy.sparse.coo_array(x.Q if is_by_pair else np.reshape(x.Q, (r.size, -1)))
        columns = (m, s[q.row], a[q.row], q.col, q.data, r.reshape(-1)[q.row])
        names = ("model", "state", "action", "next_state", "probability", "reward")
        tables.append(pd.DataFrame(dict(zip(names, columns, strict=True))))
    frame = pd.concat(tables, ignore_index=True)
    sizes = {"states": problems[0].Q.shape[-1], "actions": int(frame["action"].max()) + 1}
    frame = frame[frame["reward"] != -np.inf].reset_index(drop=True)
    return from_frame(frame, **({"discount": float(problems[0].beta), **sizes} | fields))
