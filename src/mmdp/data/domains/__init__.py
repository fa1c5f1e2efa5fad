"""Benchmark domains: seeded generators of train and test models.

Every function returns a :class:`Domain`, which unpacks as ``train, test``. :func:`load_published`
gives the models published with the paper; the others sample new ones. ``DOMAINS`` lists those by
the name for the command ``mmdp domain NAME``, and ``DESCRIPTIONS`` describes each in one line.

>>> import mmdp
>>> list(mmdp.domains.DOMAINS)[-2:]
['garnet', 'perishable']
"""

from __future__ import annotations

from collections.abc import Callable

from mmdp.data.domains._common import DESCRIPTIONS, Domain
from mmdp.data.domains._garnet import garnet
from mmdp.data.domains._hiv import hiv
from mmdp.data.domains._inventory import inventory
from mmdp.data.domains._perishable import perishable
from mmdp.data.domains._population import population, population_small
from mmdp.data.domains._published import load_published
from mmdp.data.domains._riverswim import riverswim
from mmdp.data.domains._two_models import two_models

DOMAINS: dict[str, Callable[..., Domain]] = {
    make.__name__: make
    for make in (
        riverswim,
        population,
        population_small,
        inventory,
        hiv,
        two_models,
        garnet,
        perishable,
    )
}
__all__ = [
    "DESCRIPTIONS",
    "DOMAINS",
    "Domain",
    "garnet",
    "hiv",
    "inventory",
    "load_published",
    "perishable",
    "population",
    "population_small",
    "riverswim",
    "two_models",
]
