"""The paper's experiments as data: domains, horizons, methods and their options, printed figures.

Printed means and deviations are over the test models, truncated towards zero; HIV at T = 15 is
printed in thousands. The minutes of HIV are given for other horizons than its returns.
``figures.json`` has the notes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from typing import Literal, NamedTuple

import mmdp
from mmdp.core.methods.base import Method
from mmdp.core.methods.belief import BeliefMethod

# More steps gain nothing after rounding: on POPS 12 give -440.45, any number -440.44.
GRADIENT_STEPS = 12
# The published POMCP used 50 tree queries per decision.
POMCP_QUERIES = 50
SEED = 0
TOTAL_EPISODES = 20_000
TOTAL_QUERIES = 2_000_000


class PaperCase(NamedTuple):
    """A domain of the paper: the source of its models and the horizons of its tables.

    ``generate(seed)`` samples its models; without it the published ones, which are in the package
    as ``folder``, are used.
    """

    name: str
    folder: str
    n_train: int
    n_test: int
    generate: Callable[..., mmdp.domains.Domain] | None = None
    main_horizon: int = 50
    horizons: tuple[int, ...] = (50, 100, 150)
    unit: int = 1  # the main table prints HIV in thousands

    @property
    def source(self) -> str:
        """Source of the models: "published" or "generated"."""
        return "published" if self.generate is None else "generated"

    def make_factory(self, seed: int) -> Callable[[], mmdp.domains.Domain]:
        """Make the function that loads or samples the training and test models."""
        if self.generate is None:
            return partial(mmdp.domains.load_published, self.folder)  # type: ignore[arg-type]
        return partial(self.generate, seed=seed)

    def choose_horizons(self, full: bool) -> tuple[int, ...]:
        """Choose the horizons: all if ``full`` or for published models, else the main one."""
        return self.horizons if full or self.generate is None else (self.main_horizon,)

    def choose_n_episodes(self, method: str, horizon: int) -> int | None:
        """Choose the episodes per test model so that every cell costs about the same.

        None for methods that are not simulated.
        """
        if method not in BELIEF_METHODS:
            return None
        total_episodes = TOTAL_EPISODES // max(1, self.n_train // 200)
        if method == "POMCP":
            total_episodes = min(total_episodes, TOTAL_QUERIES // (POMCP_QUERIES * horizon))
        return max(2 if method == "POMCP" else 4, total_episodes // self.n_test)


make_inventory = partial(mmdp.domains.inventory, preset="paper")
CASES = {
    case.name: case
    for case in (
        PaperCase("RS", "riverswim", 100, 700),
        PaperCase("POP", "population", 1000, 1000, mmdp.domains.population),
        PaperCase("POPS", "population_small", 100, 100, mmdp.domains.population_small),
        PaperCase("INV", "inventory", 100, 200, make_inventory),
        PaperCase("HIV", "hiv", 50, 50, main_horizon=15, horizons=(5, 15, 20), unit=1000),
    )
}


# The rows of the paper's tables, by their names in ``figures.json``. Belief methods plan on the
# training models; two episodes per model suffice there, since the tables show their simulation
# on the test models.
PAPER_METHODS: dict[str, Method] = {
    "CADP": mmdp.methods.CADP(sweep_type="paper"),
    "WSU": mmdp.methods.WSU(),
    "MVP": mmdp.methods.MVP(),
    "Mirror": mmdp.methods.MirrorAscent(max_iter=GRADIENT_STEPS),
    "Gradient": mmdp.methods.NaturalGradient(max_iter=GRADIENT_STEPS),
    "MixTS": mmdp.methods.MixTS(n_episodes=2),
    "QMDP": mmdp.methods.QMDP(n_episodes=2),
    "POMCP": mmdp.methods.POMCP(n_queries=POMCP_QUERIES, n_episodes=2),
    "Oracle": mmdp.methods.Oracle(keep_policies=False),
}
BELIEF_METHODS = tuple(
    name for name, method in PAPER_METHODS.items() if isinstance(method, BeliefMethod)
)
# The others: the published code does what the text says.
COMPARABLE_METHODS = tuple(
    name for name in PAPER_METHODS if name not in ("Mirror", "Gradient", *BELIEF_METHODS)
)


# ---------------------------------------------------------------------- printed figures
TableName = Literal["mean_return", "sd_return", "minutes", "misprints"]
CellKey = tuple[str, int, str]  # domain, horizon, method


@cache
def read_paper_values(table: TableName) -> dict[CellKey, float]:
    """Read a table of printed figures by (domain, horizon, algorithm).

    ``"misprints"`` are the correct standard deviations where the paper prints others, which
    contradict its own rows.

    >>> read_paper_values("mean_return")["RS", 50, "CADP"]
    204
    >>> read_paper_values("misprints")["HIV", 5, "CADP"]
    7729
    """
    text = resources.files(__package__).joinpath("figures.json").read_text(encoding="utf-8")
    return {(*key, name): value for *key, name, value in json.loads(text)[table]}


def find_unit(key: CellKey) -> int:
    """Find the unit of the paper's returns and deviations: 1 or 1000."""
    case = CASES[key[0]]
    return case.unit if key[1] == case.main_horizon else 1


def has_paper_digits(value: float, key: CellKey, table: TableName) -> bool | None:
    """Test whether a figure, truncated as in the paper, is the printed one; None without one."""
    printed, unit = read_paper_values(table).get(key), find_unit(key)
    return None if printed is None else int(value / unit) * unit == printed
