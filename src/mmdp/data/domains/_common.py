"""Helpers of all benchmark domains: the class Domain, and train and test models from one seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mmdp.core.model import MMDP
from mmdp.core.validate import check_int
from mmdp.data.sampling import spawn_generators

DATA_DIR = Path(__file__).parent / "data"
CADP_PAPER = (
    "Su and Petrik, Solving Multi-Model MDPs by Coordinate Ascent and Dynamic Programming, UAI 2023"
)
DESCRIPTIONS = {
    "riverswim": "swim against the current: 20 states, 2 actions, 100 train and 700 test models",
    "population": "pest control: 51 states, 5 actions, 1000 train and 1000 test models",
    "population_small": (
        "pest control with fewer models: 51 states, 5 actions, 100 train and 100 test"
    ),
    "inventory": "order stock for uncertain demand: 21 states, 11 actions, 100 train and 200 test",
    "hiv": "treatment as health declines: 4 states, 3 actions, 50 train and 50 test models",
    "two_models": "the third theorem's example: 4 states, 2 actions, 2 deterministic models",
    "garnet": "random sparse models around a common base, of any size",
    "perishable": "order what perishes: 121 states, 11 actions, 100 train and 200 test",
}


@dataclass(frozen=True, eq=False, repr=False)
class Domain:
    """A pair of training and test models; ``name`` and ``citation`` are those of the models.

    It unpacks as ``train, test``. ``true_model`` is the model that the data was logged
    from, as a one-model MMDP, if the domain has one.

    >>> import mmdp
    >>> domain = mmdp.domains.two_models()
    >>> train, test = domain
    >>> domain.name, train is domain.train, test is domain[1]
    ('two_models', True, True)
    """

    train: MMDP
    test: MMDP
    true_model: MMDP | None = None

    @property
    def name(self) -> str:
        """Name of the models."""
        return self.train.name or "domain"

    @property
    def description(self) -> str:
        """Description of a domain of the package in one line, empty for others."""
        return DESCRIPTIONS.get(self.name, "")

    @property
    def citation(self) -> str:
        """Publication that the models come from."""
        return self.train.citation or ""

    def __iter__(self) -> Iterator[MMDP]:
        return iter((self.train, self.test))

    def __getitem__(self, index: int) -> MMDP:
        return (self.train, self.test)[index]

    def __len__(self) -> int:
        return 2

    def __repr__(self) -> str:
        return (
            f"Domain({self.name}: {self.train.n_models} train and {self.test.n_models} test "
            f"models, {self.train.n_states} states, {self.train.n_actions} actions)"
        )


def sample_domain(
    sample_models: Callable[[np.random.Generator, int], MMDP],
    n_train: int,
    n_test: int,
    seed: int | None,
    true_model: MMDP | None = None,
) -> Domain:
    """Sample train and test models by ``sample_models(rng, count)``, with a stream each."""
    train_rng, test_rng = spawn_generators(seed, 2)
    return Domain(
        sample_models(train_rng, check_int(n_train, "n_train", item_bytes=8)),
        sample_models(test_rng, check_int(n_test, "n_test", item_bytes=8)),
        true_model,
    )
