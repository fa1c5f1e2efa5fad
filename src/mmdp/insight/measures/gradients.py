"""The quantities of the paper's first theorem: model weights and the policy gradient."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmdp.core import kernels
from mmdp.core.arguments import Unchecked, check_arguments
from mmdp.core.kernels import Backend, PreparedProblem
from mmdp.core.model import MMDP
from mmdp.core.policies import MarkovPolicy, require_markov
from mmdp.core.solution import Solution

Array = npt.NDArray[np.float64]


@check_arguments
def model_weights(
    model: MMDP, policy: Unchecked[MarkovPolicy | Solution], *, backend: str | Backend = "auto"
) -> Array:
    """Compute the model weights b_{t,m}(s) = P[model is m, state at t is s] under a Markov policy.

    These are definition 4.1 of the paper.

    Returns
    -------
    (T, M, S) floats; they sum to 1 over models and states at every time.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[1.0], [0.0]], initial=[1, 0])
    >>> mmdp.measures.model_weights(one, mmdp.policies.MarkovPolicy([[0, 0], [0, 0]]))[1].tolist()
    [[0.5, 0.5]]
    """
    policy = require_markov(policy, "model weights need")
    return np.moveaxis(prepare_policy(model, policy, backend).forward(policy.to_table(model)), 2, 1)


@check_arguments
def policy_gradient(
    model: MMDP, policy: Unchecked[MarkovPolicy | Solution], *, backend: str | Backend = "auto"
) -> Array:
    """Compute the gradient of the mean return, d rho / d pi_t(s, a), at a Markov policy.

    By the paper's first theorem it is gamma^t sum_m b_{t,m}(s) q_{t,m}(s, a).

    Returns
    -------
    (T, S, A) floats; NaN for actions that are not allowed.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> mmdp.measures.policy_gradient(one, mmdp.policies.MarkovPolicy([[0], [1]])).tolist()
    [[[3.5, 4.5]], [[1.0, 1.5]]]
    """
    policy = require_markov(policy, "the gradient needs")
    prepared, table = prepare_policy(model, policy, backend), policy.to_table(model)
    b = prepared.forward(table)
    backward_pass = prepared.backward("policy", policy=table, weights=b, keep=("gradient",))
    discount_factors = model.discount ** np.arange(policy.horizon)[:, None, None].astype(float)
    return discount_factors * np.where(model.allowed, backward_pass.gradient, np.nan)


def prepare_policy(
    model: MMDP, policy: MarkovPolicy, backend: str | Backend = "auto", n_passes: int = 2
) -> PreparedProblem:
    """Check a policy and prepare the model for the passes that evaluate it."""
    policy.check(model)
    problem = model.problem
    resolved_backend = kernels.get_backend(backend, problem, policy.horizon, n_passes=n_passes)
    return resolved_backend.prepare(problem, policy.horizon)
