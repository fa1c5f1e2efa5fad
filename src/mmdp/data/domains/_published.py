"""The models published with the paper, from the folder ``data`` next to this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from mmdp.core.arguments import check_arguments
from mmdp.core.model import MMDP
from mmdp.core.transitions import SparseTransitions
from mmdp.data.domains._common import DATA_DIR, Domain
from mmdp.data.domains._hiv import hiv
from mmdp.data.domains._riverswim import riverswim


@check_arguments
def load_published(name: Literal["riverswim", "hiv"]) -> Domain:
    """Load the models published with the paper: ``"riverswim"`` (RS) or ``"hiv"`` (HIV).

    Riverswim has 100 training and 700 test models, HIV 50 and 50. On them CADP, WSU, MVP and
    Oracle give the digits that the paper prints. The generators of the same names sample
    new models instead.

    >>> import mmdp
    >>> train, test = mmdp.domains.load_published("riverswim")
    >>> solution = mmdp.solve(train, 50, mmdp.methods.CADP(sweep_type="paper"))
    >>> round(mmdp.evaluate(test, solution).mean, 2)  # the paper prints 204
    204.74
    """
    generated = (riverswim if name == "riverswim" else hiv)(1, 1)
    arrays = dict(np.load(DATA_DIR / f"{name}.npz"))
    train, test = (_make_models(arrays, split, generated.train) for split in ("train", "test"))
    return Domain(train, test, generated.true_model)


def _make_models(arrays: Mapping[str, Any], split: str, like: MMDP) -> MMDP:
    """Make the models of a split ("train" or "test"), labeled like a generated model."""
    p = arrays[f"{split}_p"]
    shape = p.shape[2], like.n_states, like.n_actions
    return MMDP.from_sparse(
        SparseTransitions(shape, arrays["indptr"], arrays["indices"], p, is_dense=False),
        arrays.get(f"{split}_r"),
        next_rewards=arrays.get(f"{split}_next_rewards"),
        initial=arrays["initial"],
        discount=like.discount,
        states=like.state_labels,
        actions=like.action_labels,
        name=like.name,
        citation=like.citation,
    )
