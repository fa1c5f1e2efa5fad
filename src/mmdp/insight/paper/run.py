"""The experiment: every cell of the paper's tables and figures as a study."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import mmdp
from mmdp.core.errors import InputError
from mmdp.core.methods.belief import BeliefMethod
from mmdp.core.validate import check_int
from mmdp.insight.paper.cases import (
    BELIEF_METHODS,
    CASES,
    PAPER_METHODS,
    SEED,
    PaperCase,
    has_paper_digits,
    read_paper_values,
)
from mmdp.insight.study import (
    ModelSource,
    StudyCell,
    StudyRow,
    StudyRunner,
    make_cells,
    make_models,
    solve_and_test,
)

QUERY_COUNTS = (5, 50, 500)
FULL_QUERY_COUNTS = (*QUERY_COUNTS, 5000)
REGRET_HORIZONS = (2, 4, 8, 16, 32, 64)
REGRET_QUERIES = 200
N_QUERY_MODELS = 100  # test models of RS

Record = dict[str, Any]  # a row of results.csv, or a point of a figure


class PaperResults(NamedTuple):
    """Results: the rows of results.csv, and the data of the three figures.

    ``traces`` has the return by iteration of CADP from each start.
    """

    records: list[Record]
    traces: dict[str, list[float]]
    regrets: list[Record]
    differences: list[Record]
    n_cells: int
    n_reused: int
    seconds: float


def run_paper(
    out_dir: Path,
    *,
    full: bool = False,
    domains: Sequence[str] | None = None,
    seed: int = SEED,
    no_cache: bool = False,
    n_jobs: int = 1,
) -> PaperResults:
    """Compute all cells, or reuse those that the folder keeps in ``cells``.

    After Ctrl-C a KeyboardInterrupt says how many are kept.

    Parameters
    ----------
    out_dir
        The folder of the results.
    full
        Whether to solve for every horizon of POP, POPS and INV (some minutes).
    domains
        The domains: RS, POP, POPS, INV or HIV; all by default.
    seed
        Seed of every random choice; 0 by default.
    no_cache
        Whether to ignore the results that the folder keeps in ``cells``.
    n_jobs
        Local processes; 1 by default.
    """
    names, start_time = domains or tuple(CASES), time.perf_counter()
    for name in names:
        if name not in CASES:
            raise InputError(f"domain {name!r} does not exist; choose from {', '.join(CASES)}")
    check_int(seed, "seed", 0)
    groups: list[Sequence[StudyCell]] = [
        [cell for name in names for cell in make_table_cells(CASES[name], full, seed)],
        *make_figure_cells(full, seed),
    ]
    cells = [cell for group in groups for cell in group]
    runner = StudyRunner(cells, out_dir, n_jobs, ignore_cache=no_cache)
    if runner.is_interrupted:
        kept_text = f"{len(runner.rows_by_cell)} of {len(cells)} results kept in {runner.folder}"
        raise KeyboardInterrupt(f"{kept_text}; run again to go on")
    rows = iter(runner.rows)
    for row in runner.rows:
        if row.get("error"):
            raise InputError(row["error"])
    table, traces, regrets, queries = ([next(rows) for _ in group] for group in groups)
    oracle = {row["horizon"]: row["value"] for row in regrets if row["method"] == "Oracle"}
    return PaperResults(
        [make_record(row) for row in table],
        {row["method"]: row["trace"] for row in traces},
        [
            {**row, "regret": oracle[row["horizon"]] - row["value"]}
            for row in regrets
            if row["method"] != "Oracle"
        ],
        [
            {
                "queries": int(row["method"]),
                "difference": row["test_difference"],
                "stderr": row["test_difference_stderr"],
            }
            for row in queries
        ],
        len(cells),
        runner.n_reused,
        time.perf_counter() - start_time,
    )


def make_record(row: StudyRow) -> Record:
    """Make a row of results.csv, with the paper's figures, from a row of the study."""
    key = domain, horizon, name = row["model"], row["horizon"], row["method"]
    sd, seconds = row["test_sd"], row["seconds"]
    if name == "Oracle":  # it solves the test models themselves
        seconds = row["test_seconds"]
    elif name in BELIEF_METHODS:  # they decide while they are simulated
        sd, seconds = row["test_episode_sd"], seconds + row["test_seconds"]
    mean = row["test_mean"]
    return {
        "domain": domain,
        "horizon": horizon,
        "method": name,
        "models": CASES[domain].source,
        "mean": mean,
        "sd": sd,
        "stderr": row["test_stderr"],
        "seconds": seconds,
        "paper_mean": read_paper_values("mean_return").get(key),
        "mean_equal": has_paper_digits(mean, key, "mean_return"),
        "paper_sd": read_paper_values("sd_return").get(key),
        "sd_equal": has_paper_digits(sd, key, "sd_return"),
        "sd_misprinted": key in read_paper_values("misprints"),
        "paper_minutes": read_paper_values("minutes").get(key),
    }


# ---------------------------------------------------------------------- what is computed
def make_table_cells(case: PaperCase, full: bool, seed: int) -> list[PaperCell]:
    """Make the cells of one domain's tables."""
    source = ModelSource.from_models(case.make_factory(seed))
    return [
        PaperCell(
            {"model": case.name, "horizon": horizon, "method": name},
            source,
            None,
            horizon,
            method,
            seed=seed,
            backend="numba",
            n_episodes=case.choose_n_episodes(name, horizon),
        )
        for horizon in case.choose_horizons(full)
        for name, method in PAPER_METHODS.items()
    ]


def make_figure_cells(full: bool, seed: int) -> list[list[StudyCell]]:
    """Make the cells of CADP's ascent on POPS, of the regret by horizon, and of more queries."""
    pops, rs = ({name: CASES[name].make_factory(seed)} for name in ("POPS", "RS"))
    starts = {"WSU": "wsu", "MVP": "mvp", "random": "random"}
    ascents = {
        label: mmdp.methods.CADP(init=init, sweep_type="paper") for label, init in starts.items()
    }
    planners = {
        "CADP (Markov)": PAPER_METHODS["CADP"],
        "MixTS, resampled each step": mmdp.methods.MixTS(resample="step"),
        "POMCP": mmdp.methods.POMCP(n_queries=REGRET_QUERIES),
        "Oracle": PAPER_METHODS["Oracle"],
    }
    searches = {
        str(n): mmdp.methods.POMCP(n_queries=n, n_episodes=2)
        for n in (FULL_QUERY_COUNTS if full else QUERY_COUNTS)
    }
    timed: dict[str, Any] = {"seeds": seed, "backend": "numba"}
    return [
        make_cells(pops, 50, ascents, cell_type=AscentCell, **timed),
        make_cells({"two": _make_two_models}, REGRET_HORIZONS, planners, seeds=seed),
        make_cells(
            rs,
            50,
            searches,
            test_model=_load_query_models,
            cell_type=PaperCell,
            n_episodes=4,
            **timed,
        ),
    ]


def _make_two_models() -> mmdp.MMDP:
    """Make the example of the third theorem."""
    return mmdp.domains.two_models().train


def _load_query_models() -> mmdp.MMDP:
    """Load the test models on which POMCP is run with more and more queries."""
    return mmdp.domains.load_published("riverswim").test.subset(slice(N_QUERY_MODELS))


@dataclass(frozen=True, eq=False)
class PaperCell(StudyCell):
    """A cell in which belief methods have CADP's policy as their baseline."""

    def compute_row(self, source: ModelSource, test_source: ModelSource | None = None) -> StudyRow:
        """Set the baseline of a belief method, and compute the row."""
        _warm_up()
        cell: StudyCell = self
        if isinstance(self.method, BeliefMethod):
            baseline = _solve_baseline(make_models(source)[0], self.horizon, self.seed)
            cell = replace(self, method=replace(self.method, baseline=baseline))
        return StudyCell.compute_row(cell, source, test_source)


@lru_cache(1)  # three belief methods in turn have the same baseline
def _solve_baseline(train: mmdp.MMDP, horizon: float | None, seed: int | None) -> Any:
    """Solve the training models by CADP; return the policy."""
    return mmdp.solve(train, horizon, PAPER_METHODS["CADP"], seed=seed, backend="numba").policy


@dataclass(frozen=True, eq=False)
class AscentCell(StudyCell):
    """A cell whose row has the return of every iteration."""

    def compute_row(self, source: ModelSource, test_source: ModelSource | None = None) -> StudyRow:
        """Solve the training models."""
        train, _ = make_models(source)
        solution = mmdp.solve(
            train, self.horizon, self.method, seed=self.seed, backend=self.backend
        )
        return {"status": solution.status.name, "trace": solution.trace.tolist()}


@cache
def _warm_up() -> None:
    """Compile the kernels before any cell is timed, once in a process."""
    from mmdp.core.testing import make_random_model

    model = make_random_model(1, n_models=8, n_states=3, n_actions=2, horizon=0)
    dense_model = make_random_model(
        1, n_models=2, n_states=40, n_actions=2, horizon=0, storage="dense"
    )
    for method in PAPER_METHODS.values():
        solve_and_test(model, model, 2, method, backend="numba")
    mmdp.solve(dense_model, 2, "mvp", seed=0, backend="numba")  # long rows use another pass
