"""Helpers of all benchmark domains: the class Domain, seeds and checks of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.validate import check_int, check_seed

Array = npt.NDArray[np.float64]
ParameterSamples = dict[str, Array]  # parameters by name, one entry per model
Fields = Mapping[str, Array]  # values by name of a state, an action, an event or a sample
DATA_DIR = resources.files("mmdp.data.domains") / "data"

CADP_PAPER = (
    "Su and Petrik, Solving Multi-Model MDPs by Coordinate Ascent and Dynamic Programming, UAI 2023"
)


@dataclass(frozen=True, eq=False, repr=False)
class Domain:
    """A pair of training and test models with a name, description and citation.

    It unpacks as ``train, test``. ``true_model`` is the model that the data was logged
    from, as a one-model MMDP, if the domain has one.

    >>> import mmdp
    >>> domain = mmdp.domains.two_models()
    >>> train, test = domain
    >>> domain.name, train is domain.train, test is domain[1]
    ('two_models', True, True)
    """

    name: str
    train: MMDP
    test: MMDP
    true_model: MMDP | None
    description: str
    citation: str

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


def check_choice(value: str, name: str, choices: tuple[str, ...]) -> str:
    """Check that a value is one of the choices, and return it."""
    if value not in choices:
        raise InputError(f"{name}={value!r} is not supported; choose from {', '.join(choices)}")
    return value


def spawn_generators(seed: int | np.integer | None, count: int) -> list[np.random.Generator]:
    """Make independent random generators from one seed.

    Train, test and log have separate streams, so that the size of one set does not change the
    others.
    """
    check_seed(seed)
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]


def sample_parameters(
    n_train: int,
    n_test: int,
    seed: int | None,
    sampler: Callable[[np.random.Generator, int], ParameterSamples],
) -> tuple[ParameterSamples, ParameterSamples]:
    """Sample the parameters of the train and the test models, by ``sampler(rng, count)``."""
    counts = (
        check_int(n, name, item_bytes=8) for n, name in ((n_train, "n_train"), (n_test, "n_test"))
    )
    train, test = map(sampler, spawn_generators(seed, 2), counts)
    return train, test
