"""Benchmark domains: seeded generators of train and test models.

Every function returns a :class:`Domain`, which unpacks as ``train, test``. :func:`load_published`
gives the models published with the paper; the others sample new ones. ``DOMAINS`` lists those by
the name for the command ``mmdp domain NAME``, and ``DESCRIPTIONS`` describes each in one line.

>>> import mmdp
>>> list(mmdp.domains.DOMAINS)[-3:]
['mountain_car', 'cart_pole', 'substitutes']
"""

from __future__ import annotations

from collections.abc import Callable

from mmdp.data.domains import (
    _cart_pole,
    _garnet,
    _harvest,
    _hiv,
    _inventory,
    _mountain_car,
    _perishable,
    _population,
    _riverswim,
    _substitutes,
    _two_models,
)
from mmdp.data.domains._cart_pole import cart_pole
from mmdp.data.domains._common import Domain
from mmdp.data.domains._garnet import garnet
from mmdp.data.domains._harvest import harvest
from mmdp.data.domains._hiv import hiv
from mmdp.data.domains._inventory import inventory
from mmdp.data.domains._mountain_car import mountain_car
from mmdp.data.domains._perishable import perishable
from mmdp.data.domains._population import population, population_small
from mmdp.data.domains._published import load_published
from mmdp.data.domains._riverswim import riverswim
from mmdp.data.domains._substitutes import substitutes
from mmdp.data.domains._two_models import two_models

__all__ = [
    "DESCRIPTIONS",
    "DOMAINS",
    "Domain",
    "cart_pole",
    "garnet",
    "harvest",
    "hiv",
    "inventory",
    "load_published",
    "mountain_car",
    "perishable",
    "population",
    "population_small",
    "riverswim",
    "substitutes",
    "two_models",
]

DOMAINS: dict[str, Callable[..., Domain]] = {
    "riverswim": riverswim,
    "population": population,
    "population_small": population_small,
    "inventory": inventory,
    "hiv": hiv,
    "two_models": two_models,
    "garnet": garnet,
    "perishable": perishable,
    "harvest": harvest,
    "mountain_car": mountain_car,
    "cart_pole": cart_pole,
    "substitutes": substitutes,
}

DESCRIPTIONS: dict[str, str] = {
    "riverswim": _riverswim.DESCRIPTION,
    "population": _population.DESCRIPTION,
    "population_small": _population.SMALL_DESCRIPTION,
    "inventory": _inventory.DESCRIPTION,
    "hiv": _hiv.DESCRIPTION,
    "two_models": _two_models.DESCRIPTION,
    "garnet": _garnet.DESCRIPTION,
    "perishable": _perishable.DESCRIPTION,
    "harvest": _harvest.DESCRIPTION,
    "mountain_car": _mountain_car.DESCRIPTION,
    "cart_pole": _cart_pole.DESCRIPTION,
    "substitutes": _substitutes.DESCRIPTION,
}
