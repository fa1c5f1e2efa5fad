"""The paper's experiments as data: domains, horizons, methods and their options."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import mmdp
from mmdp.core.methods.base import Method
from mmdp.core.methods.belief import BeliefMethod
from mmdp.core.policies import MarkovPolicy

# More steps gain nothing after rounding: on POPS 12 give -440.45, any number -440.44.
GRADIENT_STEPS = 12
# The published POMCP used 50 tree queries per decision.
POMCP_QUERIES = 50
SEED = 0
TOTAL_EPISODES = 20_000
TOTAL_QUERIES = 2_000_000
# Inputs of a cached result besides the options of its method.
SIMULATION_SETTINGS = {
    "episodes_in_all": TOTAL_EPISODES,
    "queries_in_all": TOTAL_QUERIES,
    "pomcp_queries": POMCP_QUERIES,
}


@dataclass(frozen=True)
class PaperCase:
    """A domain of the paper: the source of its models and the horizons of its tables."""

    name: str
    folder: str
    main_horizon: int
    horizons: tuple[int, ...]
    unit: int = 1  # the main table prints HIV in thousands
    generate: Callable[..., mmdp.domains.Domain] | None = (
        None  # None: the published models are in the package
    )

    def load_models(self, seed: int, data_dir: Path | None) -> tuple[mmdp.MMDP, mmdp.MMDP, str]:
        """Load training models, test models and the name of their source."""
        source = self.find_source(data_dir)
        if data_dir is not None and source == "file":
            folder = data_dir / self.folder
            train, test = (
                mmdp.load(folder, split=split, name=self.name) for split in ("train", "test")
            )
            return train, test, source
        if self.generate is None:
            return *mmdp.domains.load_published(self.folder), source
        return *self.generate(seed=seed), source

    def find_source(self, data_dir: Path | None) -> str:
        """Find the source of the models: "file" (in ``data_dir``), "published" or "generated"."""
        if data_dir is not None and self.has_files(data_dir):
            return "file"
        return "published" if self.generate is None else "generated"

    def has_files(self, data_dir: Path) -> bool:
        """Test whether ``data_dir`` holds this domain's models."""
        return (data_dir / self.folder / "training.csv").is_file()

    def quick_horizons(self) -> tuple[int, ...]:
        """List the horizons without ``--full``: all for published models, else the main one."""
        return self.horizons if self.generate is None else (self.main_horizon,)

    def unit_for(self, horizon: int) -> int:
        """Get the unit of the paper's figures at a horizon: 1 or 1000."""
        return self.unit if horizon == self.main_horizon else 1

    def fingerprint(self, data_dir: Path | None) -> str | None:
        """Hash the files in ``data_dir`` that are used; None if none are."""
        if data_dir is None or not self.has_files(data_dir):
            return None
        digest = hashlib.sha256()
        for file in sorted((data_dir / self.folder).glob("*.csv")):
            digest.update(f"{file.name} {file.stat().st_size} ".encode())
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def _make_inventory(seed: int) -> mmdp.domains.Domain:
    """Generate the inventory domain with the posterior calibrated to the paper."""
    return mmdp.domains.inventory(seed=seed, preset="paper")


LONG_HORIZONS = (50, 100, 150)
CASES = {
    case.name: case
    for case in (
        PaperCase("RS", "riverswim", 50, LONG_HORIZONS),
        PaperCase("POP", "population", 50, LONG_HORIZONS, generate=mmdp.domains.population),
        PaperCase(
            "POPS", "population_small", 50, LONG_HORIZONS, generate=mmdp.domains.population_small
        ),
        PaperCase("INV", "inventory", 50, LONG_HORIZONS, generate=_make_inventory),
        PaperCase("HIV", "hiv", 15, (5, 15, 20), unit=1000),
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


def make_method(name: str, baseline: MarkovPolicy | None) -> Method:
    """Make the method of a row of the paper's tables, with a baseline if it plans on beliefs."""
    method = PAPER_METHODS[name]
    return replace(method, baseline=baseline) if isinstance(method, BeliefMethod) else method


def choose_n_episodes(name: str, n_models: int, horizon: int, n_train_models: int) -> int:
    """Choose the episodes per test model so that every cell costs about the same."""
    total_episodes = TOTAL_EPISODES // max(1, n_train_models // 200)
    if name == "POMCP":
        total_episodes = min(total_episodes, TOTAL_QUERIES // (POMCP_QUERIES * horizon))
    return max(4 if name != "POMCP" else 2, total_episodes // n_models)
