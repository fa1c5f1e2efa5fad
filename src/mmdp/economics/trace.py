"""Where the patients are: the share in each state by time, under named policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mmdp.arguments import Label, checked
from mmdp.economics.comparators import named_policies
from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.solve import model_weights
from mmdp.validate import check_horizon


@checked
def cohort_trace(
    model: MMDP,
    policies: Mapping[str, Any],
    horizon: int | None = None,
    *,
    groups: Sequence[Label] | None = None,
) -> pd.DataFrame:
    """The share of a cohort in each state at each time: ``policy, time, state, share``.

    Labels of times, such as ages, come after the time.

    It is the mean over the models, with their weights. ``policies`` are given as for
    :func:`cost_effectiveness`; ``groups`` names a group for each state, to join those of a tunnel
    (:func:`mmdp.posterior.without_tunnels`). :func:`mmdp.plots.cohort_trace` and
    :func:`mmdp.plots.survival` draw it.

    >>> import mmdp, mmdp.economics
    >>> P = [[[[0.5, 0.5], [0.8, 0.2]], [[0.0, 1.0], [0.0, 1.0]]]]
    >>> model = mmdp.MMDP(P, [[0, 0], [0, 0]], initial=[1, 0], states=["ill", "dead"],
    ...                   actions=["wait", "treat"])
    >>> found = mmdp.economics.cohort_trace(model, {"never": "wait", "always": "treat"}, 3)
    >>> found.pivot(index="time", columns=["policy", "state"], values="share").round(2).to_numpy()
    array([[1.  , 0.  , 1.  , 0.  ],
           [0.5 , 0.5 , 0.8 , 0.2 ],
           [0.25, 0.75, 0.64, 0.36]])
    """
    steps = check_horizon(model.horizon, horizon)
    names = [str(x) for x in (model.state_labels if groups is None else groups)]
    if len(names) != model.n_states:
        raise InputError(f"{len(names)} groups for {model.n_states} states; give one for each")
    order, rows = list(dict.fromkeys(names)), []
    place = np.array([order.index(name) for name in names])
    for name, policy in named_policies(policies, model, steps).items():
        share = model_weights(policy, model).sum(axis=1)
        for s, state in enumerate(order):
            by_time = share[:, place == s].sum(axis=1)
            rows += [(name, t, state, x) for t, x in enumerate(by_time.tolist())]
    frame = pd.DataFrame(rows, columns=["policy", "time", "state", "share"])
    return pd.DataFrame(model.times.beside(frame))
