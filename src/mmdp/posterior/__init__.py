"""Models from data: logged transitions, or draws of uncertain parameters.

:func:`fit` draws models from the Dirichlet posterior of a table of logged transitions, given a
:class:`Prior` and :class:`Rewards`.
:func:`from_draws` turns draws of parameters (from a probabilistic sensitivity analysis or a
Bayesian posterior) into models by a function of yours, and keeps the parameters.
:func:`weights_by_step` has the weights of models after each of some observed steps, and
:func:`predictive_probabilities` how likely each step was.
:func:`never_seen` has what the log of fitted models lacks, and :func:`coverage` how often ranges
over such models cover the truth.
"""

from mmdp.posterior.check import coverage, never_seen
from mmdp.posterior.dirichlet import Fit, fit, fit_folder
from mmdp.posterior.draws import effective_models, from_draws, weights_from_log_likelihood
from mmdp.posterior.prior import Prior
from mmdp.posterior.rewards import Rewards
from mmdp.posterior.tunnels import without_tunnels
from mmdp.posterior.update import predictive_probabilities, weights_by_step

__all__ = [
    "Fit", "Prior", "Rewards", "coverage", "effective_models", "fit", "fit_folder", "from_draws",
    "never_seen", "predictive_probabilities", "weights_by_step",
    "weights_from_log_likelihood", "without_tunnels",
]  # fmt: skip
