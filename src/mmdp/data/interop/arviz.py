"""ArviZ: the models' parameters as a posterior that its plots and diagnostics take."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.transitions import as_float_array

ArvizGroups = dict[str, dict[str, npt.NDArray[np.float64]]]


@check_arguments
def to_arviz(model: MMDP, returns: Mapping[str, npt.ArrayLike] | None = None) -> ArvizGroups:
    """Make the groups that ``arviz.from_dict`` takes: one chain with a draw per model.

    ``posterior`` has the parameters of the models and ``returns``, (M,) by name, such as those of
    a solution; ``sample_stats`` has the models' ``weight``. ArviZ is not needed here. The other
    way, :func:`mmdp.from_samples` reads an InferenceData or a DataTree.

    With ArviZ installed::

        groups = mmdp.interop.to_arviz(train, {"CADP": solution.returns})
        data = arviz.from_dict(**groups)                 # from ArviZ 1: from_dict(groups)
        arviz.plot_pair(data, var_names=["rr_1", "CADP"])

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0]]]] * 2, [[0.0]], parameters={"p": [0.1, 0.2]})
    >>> to_arviz(two, {"wait": [3, 4]})["posterior"]
    {'p': array([[0.1, 0.2]]), 'wait': array([[3., 4.]])}
    """
    variables: dict[str, object] = dict(model.parameters)
    for name, values in (returns or {}).items():
        array = as_float_array(values, f"returns of {name!r}")
        if array.shape != (model.n_models,):
            raise InputError(
                f"returns of {name!r} have shape {array.shape}; give one per model: "
                f"({model.n_models},)"
            )
        if name in variables:
            raise InputError(
                f"{name!r} is a parameter of the models; give the returns another name"
            )
        variables[name] = array
    if not variables:
        raise InputError(
            "the models carry no parameters; give MMDP(parameters=...) or use mmdp.from_samples"
        )
    posterior = {name: np.array(values, np.float64)[None] for name, values in variables.items()}
    return {"posterior": posterior, "sample_stats": {"weight": model.weights[None].copy()}}
