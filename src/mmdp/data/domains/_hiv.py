"""HIV: choose one of three treatments as health declines; rewards are net monetary benefits.

The distributions are fitted to the 100 published models; no marginal or joint test tells
generated models from published ones.
"""

from __future__ import annotations

import numpy as np

from mmdp.core.arguments import Seed, check_arguments
from mmdp.core.model import MMDP
from mmdp.core.shapes import Array
from mmdp.data.domains._common import CADP_PAPER, Domain, sample_domain

ROW_COUNTS = ((1606, 452, 149, 20), (731, 512, 15), (2047, 682))
RISK_MEDIANS, RISK_LOG_SD = (0.75, 0.509), 0.17
UTILITY_MEANS, UTILITY_SDS = (0.90, 0.80, 0.50), (0.085, 0.095, 0.045)
BASE_COSTS, DRUG_COSTS, COST_VARIATION = (10000, 15000, 25000), (0, 3300, 10300), 0.25
WILLINGNESS_TO_PAY = 50000.0
INITIAL = (0.34555265223581244, 0.11398248497540195, 0.5404648627887856, 0.0)
CITATION = (
    "Steimle, Kaufman and Denton, Multi-model Markov Decision Processes, IISE Transactions, "
    "2021; parameters adapted from Chen et al. 2017, rewards from Bala and Mauskopf 2006; as in "
) + CADP_PAPER


@check_arguments
def hiv(n_train: int = 50, n_test: int = 50, seed: Seed = 0) -> Domain:
    """Generate models of HIV treatment: 3 health states and death, 3 treatments, discount 0.9.

    Each model samples, all independent: the rows of treatment A (Dirichlet), the relative risks
    of treatments B and C (lognormal), the utilities of the health states (Beta) and nine
    costs (Gamma). Treatment a moves from s to a worse state with probability
    rr_a p_0(s'|s). With x(s, a) = 50000 u_s - c(s, a), the reward is
    r(s, a) = sum_s' p(s'|s, a) x(s', a).

    ``train.parameters``: ``p_0_1`` (treatment A, from 0 to 1) and so on, ``rr_1``, ``rr_2``,
    ``u_0`` to ``u_2``, ``c_0_0`` (state, treatment) to ``c_2_2``, each (M,). There is no
    published true model, so ``Domain.true_model`` is None.

    >>> import mmdp
    >>> train, test = mmdp.domains.hiv(seed=0)
    >>> train.n_models, train.state_labels, train.action_labels[1]
    (50, ('health A', 'health B', 'health C', 'death'), 'treatment B')
    """
    return sample_domain(_sample_models, n_train, n_test, seed)


def _sample_models(rng: np.random.Generator, n_models: int) -> MMDP:
    """Sample the parameters of n models, each an array (n,) by name, and make the models."""
    samples: dict[str, Array] = {}
    for s, counts in enumerate(ROW_COUNTS):
        row = rng.dirichlet(counts, size=n_models)
        samples.update({f"p_{s}_{s + k}": row[:, k] for k in range(len(counts))})
    for a, median in enumerate(RISK_MEDIANS, start=1):
        samples[f"rr_{a}"] = rng.lognormal(np.log(median), RISK_LOG_SD, n_models)
    for s, (mean, sd) in enumerate(zip(UTILITY_MEANS, UTILITY_SDS, strict=True)):
        concentration = mean * (1 - mean) / sd**2 - 1
        samples[f"u_{s}"] = rng.beta(mean * concentration, (1 - mean) * concentration, n_models)
    shape = 1 / COST_VARIATION**2
    for s, base_cost in enumerate(BASE_COSTS):
        for a, drug_cost in enumerate(DRUG_COSTS):
            samples[f"c_{s}_{a}"] = rng.gamma(shape, (base_cost + drug_cost) / shape, n_models)
    return _make_models(samples, n_models)


def _make_models(samples: dict[str, Array], n_models: int) -> MMDP:
    """Make one model for each sample of the parameters."""
    transitions = np.zeros((n_models, 4, 3, 4))
    benefit = np.zeros((n_models, 4, 3))
    transitions[:, 3, :, 3] = 1.0
    risks = np.stack([np.ones(n_models), samples["rr_1"], samples["rr_2"]], axis=1)
    for s in range(3):
        for worse_state in range(s + 1, 4):
            transitions[:, s, :, worse_state] = risks * samples[f"p_{s}_{worse_state}"][:, None]
        transitions[:, s, :, s] = 1.0 - transitions[:, s].sum(axis=2)
        for a in range(3):
            benefit[:, s, a] = WILLINGNESS_TO_PAY * samples[f"u_{s}"] - samples[f"c_{s}_{a}"]
    return MMDP(
        transitions,
        np.einsum("msan,mna->msa", transitions, benefit),
        initial=INITIAL,
        discount=0.9,
        states=("health A", "health B", "health C", "death"),
        actions=("treatment A", "treatment B", "treatment C"),
        parameters=samples,
        name="hiv",
        citation=CITATION,
    )
