"""Models from data: logged transitions, or samples of uncertain parameters.

:func:`fit` samples models from the Dirichlet posterior of a table of logged transitions.
:func:`from_samples` converts parameter samples (of a probabilistic sensitivity analysis or a
Bayesian posterior) to models by a user function, and keeps the parameters.
:func:`weights_by_step` computes the model weights after each observed step, and
:func:`predictive_probabilities` the probability of each step.
:func:`find_unseen_pairs` lists the state-action pairs that the log of fitted models lacks, and
:func:`coverage` counts how often ranges over such models cover the true return.
"""

from mmdp.data.posterior.check import coverage, find_unseen_pairs
from mmdp.data.posterior.dirichlet import Fit, fit, fit_folder
from mmdp.data.posterior.samples import (
    effective_sample_size,
    from_samples,
)
from mmdp.data.posterior.update import predictive_probabilities, weights_by_step

__all__ = [
    "Fit",
    "coverage",
    "effective_sample_size",
    "find_unseen_pairs",
    "fit",
    "fit_folder",
    "from_samples",
    "predictive_probabilities",
    "weights_by_step",
]
