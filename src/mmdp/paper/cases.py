"""The paper's experiments as data: domains, horizons, methods and their options."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mmdp
from mmdp.methods.base import Method
from mmdp.methods.belief import Planning
from mmdp.methods.table import title_of
from mmdp.policy import MarkovPolicy

# More steps gain nothing after rounding: on POPS 12 give -440.45, any number -440.44.
GRADIENT_STEPS = 12
# The published POMCP used 50 tree queries per decision.
POMCP_QUERIES = 50
SEED = 0
EPISODES_IN_ALL = 20_000
QUERIES_IN_ALL = 2_000_000
# What a kept result depends on besides its method's options.
SIMULATION = {
    "episodes_in_all": EPISODES_IN_ALL, "queries_in_all": QUERIES_IN_ALL,
    "pomcp_queries": POMCP_QUERIES,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One of the paper's domains: the source of its models and the horizons of its tables."""

    name: str
    folder: str
    main: int
    horizons: tuple[int, ...]
    unit: int = 1  # the main table prints HIV in thousands
    generate: Callable[..., Any] | None = None  # None: the published models are in the package

    def models(self, seed: int, data: Path | None) -> tuple[mmdp.MMDP, mmdp.MMDP, str]:
        """(train, test, source)."""
        source = self.source(data)
        if data is not None and source == "file":
            folder = data / self.folder
            train, test = (mmdp.load(folder, split=x, name=self.name) for x in ("train", "test"))
            return train, test, source
        if self.generate is None:
            return *mmdp.domains.published(self.folder), source
        return *self.generate(seed=seed), source

    def source(self, data: Path | None) -> str:
        """Where the models come from: a file in ``data``, published or generated."""
        if data is not None and self.found_in(data):
            return "file"
        return "published" if self.generate is None else "generated"

    def found_in(self, data: Path) -> bool:
        """Whether ``data`` holds this domain's models."""
        return (data / self.folder / "training.csv").is_file()

    def quick(self) -> tuple[int, ...]:
        """The horizons that need no ``--full``: all of the published models, else the main one."""
        return self.horizons if self.generate is None else (self.main,)

    def unit_at(self, horizon: int) -> int:
        """What the paper's figures count at ``horizon``."""
        return self.unit if horizon == self.main else 1

    def fingerprint(self, data: Path | None) -> str | None:
        """A digest of the files in ``data`` that are used; None if none are."""
        if data is None or not self.found_in(data):
            return None
        digest = hashlib.sha256()
        for file in sorted((data / self.folder).glob("*.csv")):
            digest.update(f"{file.name} {file.stat().st_size} ".encode())
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def _inventory(seed: int) -> mmdp.domains.Domain:
    return mmdp.domains.inventory(seed=seed, preset="paper")


LONG = (50, 100, 150)
CASES = {
    case.name: case
    for case in (
        Case("RS", "riverswim", 50, LONG),
        Case("POP", "population", 50, LONG, generate=mmdp.domains.population),
        Case("POPS", "population_small", 50, LONG, generate=mmdp.domains.population_small),
        Case("INV", "inventory", 50, LONG, generate=_inventory),
        Case("HIV", "hiv", 15, (5, 15, 20), unit=1000),
    )
}


# The rows of the paper's tables. Planners plan on the training models; two episodes per model
# suffice there, since the tables show their simulation on the test models.
METHODS: dict[str, Method] = {
    title_of(method.name): method
    for method in (
        mmdp.CADP(sweeps="paper"),
        mmdp.WSU(),
        mmdp.MVP(),
        mmdp.Mirror(max_iterations=GRADIENT_STEPS),
        mmdp.Gradient(max_iterations=GRADIENT_STEPS),
        mmdp.MixTS(episodes=2),
        mmdp.QMDP(episodes=2),
        mmdp.POMCP(queries=POMCP_QUERIES, episodes=2),
        mmdp.Oracle(keep_policies=False),
    )
}
PLANNERS = tuple(name for name, method in METHODS.items() if isinstance(method, Planning))
# The others: the published code does what the text says.
COMPARABLE = tuple(name for name in METHODS if name not in ("Mirror", "Gradient", *PLANNERS))


def method_for(name: str, baseline: MarkovPolicy | None) -> Method:
    """The method behind a row of the paper's tables."""
    method = METHODS[name]
    return replace(method, baseline=baseline) if isinstance(method, Planning) else method


def episodes_for(name: str, n_models: int, horizon: int, n_train: int) -> int:
    """Simulated episodes per test model, so that every cell costs about the same."""
    total = EPISODES_IN_ALL // max(1, n_train // 200)
    if name == "POMCP":
        total = min(total, QUERIES_IN_ALL // (POMCP_QUERIES * horizon))
    return max(4 if name != "POMCP" else 2, total // n_models)
