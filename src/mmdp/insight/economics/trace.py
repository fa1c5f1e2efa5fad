"""Cohort trace: the share of patients in each state by time, under named policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from mmdp.core.arguments import Label, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.validate import check_horizon
from mmdp.insight.economics.comparators import make_named_policies
from mmdp.insight.measures.gradients import model_weights


@check_arguments
def cohort_trace(
    model: MMDP,
    policies: Mapping[str, object],
    horizon: int | None = None,
    *,
    groups: Sequence[Label] | None = None,
) -> pd.DataFrame:
    """Tabulate the share of a cohort in each state at each time, under each policy.

    Columns ``policy, time, state, share``. Labels of times, such as ages, come after the time.

    It is the mean over the models, with their weights. ``policies`` are given as for
    :func:`cost_effectiveness`; ``groups`` names a group for each state, to join those of a tunnel.
    :func:`mmdp.plots.cohort_trace` and :func:`mmdp.plots.survival` draw it.

    >>> import mmdp, mmdp.economics
    >>> P = [[[[0.5, 0.5], [0.8, 0.2]], [[0.0, 1.0], [0.0, 1.0]]]]
    >>> model = mmdp.MMDP(P, [[0, 0], [0, 0]], initial=[1, 0], states=["ill", "dead"],
    ...                   actions=["wait", "treat"])
    >>> trace = mmdp.economics.cohort_trace(model, {"never": "wait", "always": "treat"}, 3)
    >>> trace.pivot(index="time", columns=["policy", "state"], values="share").round(2).to_numpy()
    array([[1.  , 0.  , 1.  , 0.  ],
           [0.5 , 0.5 , 0.8 , 0.2 ],
           [0.25, 0.75, 0.64, 0.36]])
    """
    n_steps = check_horizon(model.horizon, horizon)
    state_groups = [str(x) for x in (model.state_labels if groups is None else groups)]
    if len(state_groups) != model.n_states:
        raise InputError(
            f"{len(state_groups)} groups for {model.n_states} states; give one for each"
        )
    group_names, rows = list(dict.fromkeys(state_groups)), []
    group_ids = np.array([group_names.index(name) for name in state_groups])
    for name, policy in make_named_policies(policies, model, n_steps).items():
        state_probs = model_weights(model, policy).sum(axis=1)
        for s, state in enumerate(group_names):
            group_shares = state_probs[:, group_ids == s].sum(axis=1)
            rows += [(name, t, state, x) for t, x in enumerate(group_shares.tolist())]
    frame = pd.DataFrame(rows, columns=["policy", "time", "state", "share"])
    return pd.DataFrame(model.time_labels.add_column(frame))
