"""The paper's experiments as data: domains, horizons, methods and their options."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mmdp
from mmdp.methods import Method
from mmdp.policy import MarkovPolicy

METHODS = ("CADP", "WSU", "MVP", "Mirror", "Gradient", "MixTS", "QMDP", "POMCP", "Oracle")
PLANNERS = ("MixTS", "QMDP", "POMCP")

# Rounding makes more steps needless: on POPS (seed 0) 12 give 333.24 of 333.28.
GRADIENT_STEPS = 12
# The published POMCP used 50 tree queries a decision.
POMCP_QUERIES = 50
# One of the seeds 0 to 15 whose population returns are negative as the paper's are; it is the
# closest to the paper on no domain. docs/paper.md has the figures.
SEED = 9
EPISODES_IN_ALL = 20_000
QUERIES_IN_ALL = 2_000_000
# What a kept result hangs on beside its method's options.
SIMULATION = {
    "episodes_in_all": EPISODES_IN_ALL, "queries_in_all": QUERIES_IN_ALL,
    "pomcp_queries": POMCP_QUERIES,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One of the paper's domains: how its models are made and the horizons of its tables."""

    name: str
    folder: str
    generate: Callable[..., Any]
    main: int
    horizons: tuple[int, ...]
    unit: int = 1  # the main table prints HIV in thousands

    def models(self, seed: int, data: Path | None) -> tuple[mmdp.MMDP, mmdp.MMDP, str]:
        """(train, test, where they come from); published files where ``data`` holds them."""
        if self.published(data):
            assert data is not None
            folder = data / self.folder
            train, test = (mmdp.load(folder, split=x, name=self.name) for x in ("train", "test"))
            return train, test, "published"
        train, test = self.generate(seed=seed)
        return train, test, "generated"

    def published(self, data: Path | None) -> bool:
        """Whether ``data`` holds this domain's models."""
        return data is not None and (data / self.folder / "training.csv").is_file()

    def fingerprint(self, data: Path | None) -> str | None:
        """A digest of the published files' contents; None where the models are generated."""
        if not self.published(data):
            return None
        assert data is not None
        digest = hashlib.sha256()
        for file in sorted((data / self.folder).glob("*.csv")):
            digest.update(f"{file.name} {file.stat().st_size} ".encode())
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def _inventory(seed: int) -> Any:
    return mmdp.domains.inventory(seed=seed, preset="paper")


def _generator(name: str) -> Callable[..., Any]:
    return lambda seed: getattr(mmdp.domains, name)(seed=seed)


CASES = {
    case.name: case
    for case in (
        Case("RS", "riverswim", _generator("riverswim"), 50, (50, 100, 150)),
        Case("POP", "population", _generator("population"), 50, (50, 100, 150)),
        Case("POPS", "population_small", _generator("population_small"), 50, (50, 100, 150)),
        Case("INV", "inventory", _inventory, 50, (50, 100, 150)),
        Case("HIV", "hiv", _generator("hiv"), 15, (5, 15, 20), unit=1000),
    )
}


def method_for(name: str, baseline: MarkovPolicy | None) -> Method:
    """The method behind a row of the paper's tables.

    MixTS, QMDP and POMCP plan on the training models; two episodes per model suffice there,
    since the table shows their simulation on the test models.
    """
    planner: dict[str, Any] = {"episodes": 2, "baseline": baseline}
    makers: dict[str, Callable[[], Method]] = {
        "CADP": lambda: mmdp.CADP(sweeps="paper"),
        "WSU": lambda: mmdp.WSU(),
        "MVP": lambda: mmdp.MVP(),
        "Mirror": lambda: mmdp.Mirror(max_iterations=GRADIENT_STEPS),
        "Gradient": lambda: mmdp.Gradient(max_iterations=GRADIENT_STEPS),
        "MixTS": lambda: mmdp.MixTS(**planner),
        "QMDP": lambda: mmdp.QMDP(**planner),
        "POMCP": lambda: mmdp.POMCP(queries=POMCP_QUERIES, **planner),
        "Oracle": lambda: mmdp.Oracle(keep_policies=False),
    }
    return makers[name]()


def episodes_for(name: str, n_models: int, horizon: int, n_train: int) -> int:
    """Simulated episodes per test model, so that every cell costs about the same."""
    total = EPISODES_IN_ALL // max(1, n_train // 200)
    if name == "POMCP":
        total = min(total, QUERIES_IN_ALL // (POMCP_QUERIES * horizon))
    return max(4 if name != "POMCP" else 2, total // n_models)
