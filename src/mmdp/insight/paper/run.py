"""The experiment: every cell of the paper's tables and figures, with a cache of cells."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmdp
from mmdp.core.errors import InputError
from mmdp.core.methods import Method
from mmdp.core.methods.belief import BeliefMethod
from mmdp.core.policies import MarkovPolicy
from mmdp.core.timing import raise_if_interrupted
from mmdp.core.validate import check_int
from mmdp.insight.paper.cases import BELIEF_METHODS, CASES, PAPER_METHODS, SEED, PaperCase
from mmdp.insight.paper.printed import TableName, read_misprints, read_paper_values
from mmdp.insight.study import (
    ModelSource,
    StudyCell,
    StudyProgress,
    StudyRow,
    StudyRunner,
    make_models,
    solve_and_test,
)

if TYPE_CHECKING:
    import pandas as pd

FigureRow = dict[str, str | float]  # one point of a figure
QUERY_COUNTS = (5, 50, 500)
FULL_QUERY_COUNTS = (*QUERY_COUNTS, 5000)
REGRET_HORIZONS = (2, 4, 8, 16, 32, 64)
REGRET_QUERIES = 200


@dataclass(frozen=True)
class PaperCell:
    """Our figures for one (domain, horizon, method), and the source of the models."""

    domain: str
    horizon: int
    method: str
    source: str
    mean: float
    sd: float
    stderr: float
    seconds: float

    @classmethod
    def from_row(cls, row: StudyRow) -> PaperCell:
        """Make a cell of the tables from a row of the study."""
        name, sd, seconds = row["method"], row["test_sd"], row["seconds"]
        if name == "Oracle":  # it solves the test models themselves
            seconds = row["test_seconds"]
        elif name in BELIEF_METHODS:  # they decide while they are simulated
            sd, seconds = row["test_episode_sd"], seconds + row["test_seconds"]
        domain, mean, stderr = row["model"], row["test_mean"], row["test_stderr"]
        return cls(domain, row["horizon"], name, CASES[domain].source, mean, sd, stderr, seconds)

    @property
    def key(self) -> tuple[str, int, str]:
        """Domain, horizon and method of the cell."""
        return self.domain, self.horizon, self.method

    @property
    def unit(self) -> int:
        """Unit of the paper's returns and deviations: 1 or 1000."""
        return CASES[self.domain].unit_for(self.horizon)

    def our_value(self, table: TableName) -> float:
        """Get our figure of one table for this cell."""
        return {"mean_return": self.mean, "sd_return": self.sd, "minutes": self.seconds / 60}[table]

    def printed_value(self, table: TableName) -> float | None:
        """Get the paper's figure of one table for this cell; None without one."""
        return read_paper_values(table).get(self.key)

    def matches_paper(self, table: TableName) -> bool | None:
        """Test whether our figure, truncated as in the paper, equals its own; None without one."""
        printed_value = self.printed_value(table)
        if printed_value is None:
            return None
        return math.trunc(self.our_value(table) / self.unit) * self.unit == printed_value

    def is_misprint(self, table: TableName) -> bool:
        """Test whether the paper's figure contradicts its own rows."""
        return table == "sd_return" and self.key in read_misprints()

    def to_dict(self) -> dict[str, Any]:
        """Convert to a row of results.csv, with the paper's figures."""
        return {
            "domain": self.domain,
            "horizon": self.horizon,
            "method": self.method,
            "models": self.source,
            "mean": self.mean,
            "sd": self.sd,
            "stderr": self.stderr,
            "seconds": self.seconds,
            "paper_mean": self.printed_value("mean_return"),
            "mean_equal": self.matches_paper("mean_return"),
            "paper_sd": self.printed_value("sd_return"),
            "sd_equal": self.matches_paper("sd_return"),
            "sd_misprinted": self.is_misprint("sd_return"),
            "paper_minutes": self.printed_value("minutes"),
        }


@dataclass(frozen=True)
class PaperResults:
    """Results of the experiment: cells of the tables, data of the figures, reused cells."""

    cells: list[PaperCell]
    ascent_values: dict[str, list[float]]
    regret_rows: list[FigureRow]
    query_rows: list[FigureRow]
    seconds: float
    n_reused: int

    def to_frame(self) -> pd.DataFrame:
        """Tabulate the cells, one row per (domain, horizon, method), with the paper's figures."""
        import pandas as pd

        return pd.DataFrame([cell.to_dict() for cell in self.cells])


class PaperExperiment:
    """The whole experiment; ``callback(text, n_done, n_total)`` is called after every cell.

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

    def __init__(
        self,
        out_dir: Path,
        *,
        full: bool = False,
        domains: Sequence[str] = tuple(CASES),
        seed: int = SEED,
        no_cache: bool = False,
        n_jobs: int = 1,
        callback: Callable[[str, int, int], object] | None = None,
    ) -> None:
        unknown = [name for name in domains if name not in CASES]
        if unknown:
            raise InputError(
                f"domain {unknown[0]!r} does not exist; choose from {', '.join(CASES)}"
            )
        check_int(seed, "seed", 0)
        self.out_dir, self.full, self.seed, self.callback = out_dir, full, seed, callback
        self.no_cache, self.n_jobs, self.n_done, self.n_reused = no_cache, n_jobs, 0, 0
        self.table_cells = [x for name in domains for x in self.make_table_cells(CASES[name])]
        self.n_total = len(self.table_cells) + 3

    def run(self) -> PaperResults:
        """Compute all cells, or reuse cached ones.

        :func:`mmdp.insight.paper.page.write_results` writes the files. Ctrl-C raises
        KeyboardInterrupt; ``n_done`` of ``n_total`` results are cached by then.
        """
        start_time = time.perf_counter()
        *rows, ascent_row, regret_row, query_row = self.run_cells(
            [*self.table_cells, *self.make_figure_cells()]
        )
        return PaperResults(
            [PaperCell.from_row(row) for row in rows],
            ascent_row["data"],
            regret_row["data"],
            query_row["data"],
            time.perf_counter() - start_time,
            self.n_reused,
        )

    def run_cells(self, cells: Sequence[StudyCell]) -> list[StudyRow]:
        """Run the cells as a study; raise if a cell failed or was interrupted."""
        runner = StudyRunner(
            cells,
            cache_dir=self.out_dir,
            n_jobs=self.n_jobs,
            ignore_cache=self.no_cache,
            callback=self._on_progress,
        )
        raise_if_interrupted(runner.is_interrupted)
        for row in runner.rows:
            if row.get("error"):
                raise InputError(row["error"])
        return runner.rows

    def _on_progress(self, progress: StudyProgress) -> None:
        """Count finished cells and call the callback."""
        self.n_done, self.n_reused, row = progress.n_done, progress.n_reused, progress.row
        if self.callback is not None:
            text = f"{row['model']} T={row['horizon']} {row['method']}"
            self.callback(text, self.n_done, self.n_total)

    # ------------------------------------------------------------ what is computed
    def make_table_cells(self, case: PaperCase) -> list[TableCell]:
        """Make the cells of one domain's tables."""
        return [
            TableCell(
                {"model": case.name, "horizon": horizon, "method": name},
                self._make_source(case),
                None,
                horizon,
                method,
                seed=self.seed,
                backend="numba",
                n_episodes=case.choose_n_episodes(name, horizon),
            )
            for horizon in case.choose_horizons(self.full)
            for name, method in PAPER_METHODS.items()
        ]

    def make_figure_cells(self) -> list[FigureCell]:
        """Make the cells of the figures: ``figure``, ``regret`` and ``queries``."""
        query_counts = FULL_QUERY_COUNTS if self.full else QUERY_COUNTS
        figures: dict[str, tuple[ModelSource, Callable[..., object]]] = {
            "figure": (self._make_source(CASES["POPS"]), _compute_ascent),
            "regret": (
                ModelSource.from_models(mmdp.domains.two_models),
                partial(_compute_regret, REGRET_HORIZONS, REGRET_QUERIES),
            ),
            "queries": (
                self._make_source(CASES["RS"]),
                partial(_compute_query_curve, query_counts),
            ),
        }
        return [
            FigureCell(
                {"model": name, "horizon": 50, "method": "picture"},
                source,
                None,
                50,
                PAPER_METHODS["CADP"],
                seed=self.seed,
                backend="numba",
                compute=compute,
            )
            for name, (source, compute) in figures.items()
        ]

    def _make_source(self, case: PaperCase) -> ModelSource:
        """Make the source of a domain's models."""
        return ModelSource.from_models(case.make_factory(self.seed))


@dataclass(frozen=True, eq=False)
class TableCell(StudyCell):
    """A cell of the tables; belief methods have CADP's policy as their baseline."""

    def adapt_to_models(self, train: mmdp.MMDP, test: mmdp.MMDP | None) -> StudyCell:
        """Set the baseline of a belief method."""
        _warm_up()
        if not isinstance(self.method, BeliefMethod):
            return self
        baseline = _solve_baseline(train, self.horizon, self.seed)
        return replace(self, method=replace(self.method, baseline=baseline))


@lru_cache(1)  # three belief methods in turn have the same baseline
def _solve_baseline(train: mmdp.MMDP, horizon: float | None, seed: int | None) -> MarkovPolicy:
    """Solve the training models by CADP; return the policy."""
    policy = mmdp.solve(train, horizon, PAPER_METHODS["CADP"], seed=seed, backend="numba").policy
    assert isinstance(policy, MarkovPolicy)
    return policy


@dataclass(frozen=True, eq=False)
class FigureCell(StudyCell):
    """A cell with the data of a figure, computed by a function of the cell and its models."""

    compute: Callable[..., object] | None = None

    def compute_row(self, source: ModelSource, test_source: ModelSource | None = None) -> StudyRow:
        """Compute the data of the figure from the models."""
        assert self.compute is not None
        return {"status": "COMPLETED", "data": self.compute(self, *make_models(source))}

    def solve(self, train: mmdp.MMDP, method: Method) -> mmdp.Solution:
        """Solve the training models with the settings of the cell."""
        return mmdp.solve(train, self.horizon, method, seed=self.seed, backend=self.backend)


def _compute_ascent(cell: FigureCell, train: mmdp.MMDP, test: mmdp.MMDP) -> dict[str, list[float]]:
    """Compute the training return by iteration of CADP from three initial policies on POPS."""
    inits = {"WSU": "wsu", "MVP": "mvp", "random": "random"}
    return {
        label: cell.solve(train, mmdp.methods.CADP(init=init, sweep_type="paper")).trace.tolist()
        for label, init in inits.items()
    }


def _compute_regret(
    horizons: Sequence[int], n_queries: int, cell: FigureCell, model: mmdp.MMDP, test: mmdp.MMDP
) -> list[FigureRow]:
    """Compute Bayes regret by horizon on the example of the third theorem."""
    methods = (
        cell.method,
        mmdp.methods.MixTS(resample="step"),
        mmdp.methods.POMCP(n_queries=n_queries),
    )
    rows: list[FigureRow] = []
    for horizon in horizons:
        oracle = mmdp.solve(model, horizon, "oracle").value
        for method in methods:
            solution = mmdp.solve(model, horizon, method, seed=cell.seed)
            regret, stderr = oracle - solution.value, solution.evaluation.stderr
            rows.append(
                {"horizon": horizon, "method": solution.method, "regret": regret, "stderr": stderr}
            )
    return rows


def _compute_query_curve(
    query_counts: Sequence[int], cell: FigureCell, train: mmdp.MMDP, test: mmdp.MMDP
) -> list[FigureRow]:
    """Compute POMCP's return on RS by the number of tree queries, paired with CADP."""
    subset, baseline = (
        test.subset(slice(0, 100)),
        _solve_baseline(train, cell.horizon, cell.seed),
    )
    rows: list[FigureRow] = []
    for n_queries in query_counts:
        method = mmdp.methods.POMCP(n_queries=n_queries, n_episodes=2, baseline=baseline)
        planner = cell.solve(train, method)
        details = mmdp.evaluate(subset, planner, n_episodes=4, seed=cell.seed).details
        difference, stderr = details["difference"], details["difference_stderr"]
        rows.append({"queries": n_queries, "difference": difference, "stderr": stderr})
    return rows


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
