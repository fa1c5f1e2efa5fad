"""How regret grows with the horizon."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mmdp.clock import unanswered
from mmdp.methods import Method
from mmdp.model import MMDP
from mmdp.policy import PolicyKind
from mmdp.solve import solve


@unanswered()
def regret_by_horizon(
    model: MMDP,
    horizons: Sequence[int],
    methods: Sequence[str | Method | PolicyKind] = ("cadp", "mixts"),
    *,
    seed: int | None = 0,
) -> pd.DataFrame:
    """Bayes regret against Oracle by horizon and method: columns horizon, method, regret, stderr.

    A kind of policy such as ``mmdp.Memory(nodes=2)`` stands for CADP over these policies.

    On :func:`mmdp.domains.two_models` every Markov policy's regret grows linearly (the paper's
    third theorem) while a policy with memory loses nothing more once it has learnt the model.

    >>> import mmdp, mmdp.measures
    >>> model, _ = mmdp.domains.two_models()
    >>> frame = mmdp.measures.regret_by_horizon(model, [8, 16], ["cadp", mmdp.Memory(nodes=2)])
    >>> frame["regret"].round(6).tolist()
    [2.0, 1.0, 4.0, 1.0]
    """
    rows = []
    for horizon in horizons:
        oracle = solve(model, horizon, "oracle").value
        for method in methods:
            if isinstance(method, PolicyKind):
                found, name = solve(model, horizon, policy=method, seed=seed), repr(method)
            else:
                found = solve(model, horizon, method, seed=seed)
                name = found.method
            rows.append((horizon, name, oracle - found.value, found.evaluation.stderr))
    return pd.DataFrame(rows, columns=["horizon", "method", "regret", "stderr"])
