"""The models published with the paper, from the folder ``data`` next to this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mmdp.core.arguments import check_arguments
from mmdp.core.model import MMDP
from mmdp.core.transitions import SparseTransitions
from mmdp.data.domains import _hiv, _riverswim
from mmdp.data.domains._common import DATA_DIR, Domain, check_choice

MODULES = {"riverswim": _riverswim, "hiv": _hiv}


@check_arguments
def load_published(name: str) -> Domain:
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
    module = MODULES[check_choice(name, "name", tuple(MODULES))]
    model_fields = {
        "states": module.STATES,
        "actions": module.ACTIONS,
        "name": name,
        "citation": module.CITATION,
    }
    with (DATA_DIR / f"{name}.npz").open("rb") as file, np.load(file) as arrays:
        train, test = (_make_model(arrays, split, model_fields) for split in ("train", "test"))
    true_model = _riverswim.make_true_model() if module is _riverswim else None
    return Domain(name, train, test, true_model, module.DESCRIPTION, module.CITATION)


def _make_model(arrays: Mapping[str, Any], split: str, model_fields: Mapping[str, Any]) -> MMDP:
    """Make the models of a split ("train" or "test") from the arrays of ``data/make.py``."""
    p, initial = arrays[f"{split}_p"], arrays["initial"]
    n_actions = (len(arrays["indptr"]) - 1) // len(initial)
    transitions = SparseTransitions(
        (p.shape[2], len(initial), n_actions),
        arrays["indptr"],
        arrays["indices"],
        p,
        is_dense=False,
        pattern_rewards=None,
        horizon=None,
    )
    return MMDP.from_sparse(
        transitions,
        arrays.get(f"{split}_r"),
        next_rewards=arrays.get(f"{split}_next_rewards"),
        initial=initial,
        discount=float(arrays["discount"]),
        **model_fields,
    )
