"""The models published with the paper, from the folder ``data`` next to this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mmdp.arguments import checked
from mmdp.domains import _hiv, _riverswim
from mmdp.domains._common import DATA, Domain, check_choice
from mmdp.model import MMDP
from mmdp.support import Support

MODULES = {"riverswim": _riverswim, "hiv": _hiv}


@checked
def published(name: str) -> Domain:
    """The models published with the paper: ``"riverswim"`` (RS) or ``"hiv"`` (HIV).

    Riverswim has 100 training and 700 test models, HIV 50 and 50. On them CADP, WSU, MVP and
    Oracle give the digits that the paper prints. The generators of the same names draw new
    models instead.

    >>> import mmdp
    >>> train, test = mmdp.domains.published("riverswim")
    >>> solution = mmdp.solve(train, 50, mmdp.CADP(sweeps="paper"))
    >>> round(mmdp.evaluate(solution, test).mean, 2)  # the paper prints 204
    204.74
    """
    module = MODULES[check_choice(name, "name", tuple(MODULES))]
    words = {
        "states": module.STATES, "actions": module.ACTIONS, "name": name,
        "citation": module.CITATION,
    }  # fmt: skip
    with (DATA / f"{name}.npz").open("rb") as file, np.load(file) as arrays:
        train, test = (_model(arrays, split, words) for split in ("train", "test"))
    true = _riverswim.true_model() if module is _riverswim else None
    return Domain(name, train, test, true, module.DESCRIPTION, module.CITATION)


def _model(arrays: Mapping[str, Any], split: str, words: Mapping[str, Any]) -> MMDP:
    """The models of ``split``; ``data/make.py`` wrote the arrays."""
    p, initial = arrays[f"{split}_p"], arrays["initial"]
    n_actions = (len(arrays["indptr"]) - 1) // len(initial)
    support = Support(
        (p.shape[2], len(initial), n_actions), arrays["indptr"], arrays["indices"], p,
        dense=False, rewards=None, horizon=None,
    )  # fmt: skip
    return MMDP.from_support(
        support, arrays.get(f"{split}_r"), next_rewards=arrays.get(f"{split}_next_rewards"),
        initial=initial, discount=float(arrays["discount"]), **words,
    )  # fmt: skip
