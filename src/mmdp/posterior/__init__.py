"""Models from data: logged transitions, or draws of uncertain parameters.

:func:`fit` goes from a table of logged transitions to models drawn from a Dirichlet posterior;
:func:`from_draws` maps draws of parameters (a probabilistic sensitivity analysis, the posterior
of a Bayesian model) through a function to models, and keeps the parameters.
"""

from mmdp.posterior.dirichlet import Fit, fit, fit_folder
from mmdp.posterior.draws import effective_models, from_draws, weights_from_log_likelihood

__all__ = [
    "Fit", "effective_models", "fit", "fit_folder", "from_draws", "weights_from_log_likelihood",
]  # fmt: skip
