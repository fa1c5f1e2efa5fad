"""What every benchmark domain shares: the returned pair, seeds and checks of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.validate import check_seed, check_whole

Array = npt.NDArray[np.float64]
Draws = dict[str, Array]  # parameters by name, one entry per model
DATA = resources.files("mmdp.domains") / "data"

CADP_PAPER = (
    "Su and Petrik, Solving Multi-Model MDPs by Coordinate Ascent and Dynamic Programming, UAI 2023"
)


@dataclass(frozen=True, eq=False, repr=False)
class Domain:
    """Models to compute a policy from and models to test it on; unpacks as that pair.

    ``true`` is the model that the data was logged from, as a one-model MMDP, if the domain
    has one.

    >>> import mmdp
    >>> domain = mmdp.domains.two_models()
    >>> train, test = domain
    >>> domain.name, train is domain.train, test is domain[1]
    ('two_models', True, True)
    """

    name: str
    train: MMDP
    test: MMDP
    true: MMDP | None
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


def check_choice(value: str, what: str, choices: tuple[str, ...]) -> str:
    """One of ``choices``, or one line that lists them."""
    if value not in choices:
        raise InputError(f"{what} must be one of {', '.join(choices)}, not {value!r}")
    return value


def generators(seed: int | np.integer[Any] | None, count: int) -> list[np.random.Generator]:
    """Independent generators from one seed.

    Train, test and log have separate streams, so that the size of one set does not change the
    others.
    """
    check_seed(seed)
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]


def drawn(
    n_train: int, n_test: int, seed: int | None, draw: Callable[[np.random.Generator, int], Draws]
) -> tuple[Draws, Draws]:
    """Parameters of the train and of the test models, by ``draw(rng, count)``."""
    counts = check_whole(n_train, "n_train"), check_whole(n_test, "n_test")
    train, test = map(draw, generators(seed, 2), counts)
    return train, test
