"""The experiment: every cell of the paper's tables and figures, with a cache of cells."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmdp
from mmdp.core.errors import InputError
from mmdp.core.identity import compute_digest
from mmdp.core.methods import Method
from mmdp.core.methods.belief import BeliefMethod
from mmdp.core.policies import MarkovPolicy
from mmdp.core.timing import raise_if_interrupted
from mmdp.core.validate import check_int
from mmdp.insight.paper.cases import (
    BELIEF_METHODS,
    CASES,
    PAPER_METHODS,
    SEED,
    SIMULATION_SETTINGS,
    PaperCase,
    choose_n_episodes,
    make_method,
)
from mmdp.insight.paper.printed import TableName, read_misprints, read_paper_values
from mmdp.insight.study import (
    EvaluatedSolution,
    ModelSource,
    StudyProgress,
    StudyRow,
    StudyRunner,
    make_models,
)
from mmdp.insight.study import StudyCell as StudyCell

if TYPE_CHECKING:
    import pandas as pd

FigureRow = dict[str, str | float]  # one point of a figure
RESULT_COLUMNS = (
    "domain",
    "horizon",
    "method",
    "models",
    "mean",
    "sd",
    "stderr",
    "seconds",
    "paper_mean",
    "mean_equal",
    "paper_sd",
    "sd_equal",
    "sd_misprinted",
    "paper_minutes",
)

CACHE_FORMAT = 5  # of the files in out_dir/cells: another number makes the old ones stale
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
    mean: float
    sd: float
    stderr: float
    seconds: float
    source: str

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

        rows = [
            (
                *cell.key,
                cell.source,
                cell.mean,
                cell.sd,
                cell.stderr,
                cell.seconds,
                cell.printed_value("mean_return"),
                cell.matches_paper("mean_return"),
                cell.printed_value("sd_return"),
                cell.matches_paper("sd_return"),
                cell.is_misprint("sd_return"),
                cell.printed_value("minutes"),
            )
            for cell in self.cells
        ]
        return pd.DataFrame(rows, columns=list(RESULT_COLUMNS))


ProgressCallback = Callable[[str, int, int], None]


class PaperExperiment:
    """The whole experiment; ``callback(text, n_done, n_total)`` is called after every cell.

    Parameters
    ----------
    out_dir
        The folder of the results.
    data_dir
        CSV folders to use instead of the packaged models.
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
        data_dir: Path | None = None,
        full: bool = False,
        domains: Sequence[str] = tuple(CASES),
        seed: int = SEED,
        no_cache: bool = False,
        n_jobs: int = 1,
        callback: ProgressCallback | None = None,
    ) -> None:
        unknown = [name for name in domains if name not in CASES]
        if unknown:
            raise InputError(
                f"domain {unknown[0]!r} does not exist; choose from {', '.join(CASES)}"
            )
        check_int(seed, "seed", 0)
        if data_dir is not None:
            _check_data(data_dir)
        self.out_dir, self.data_dir, self.full, self.seed = out_dir, data_dir, full, seed
        self.cases = [CASES[name] for name in domains]
        self._data_keys = {name: case.fingerprint(data_dir) for name, case in CASES.items()}
        self.no_cache, self.n_jobs, self.n_done, self.n_reused = no_cache, n_jobs, 0, 0
        self.callback = callback or (lambda text, done, total: None)
        self.table_cells = [cell for case in self.cases for cell in self.make_table_cells(case)]
        self.n_total = len(self.table_cells) + 3

    @property
    def generated_domains(self) -> list[str]:
        """The domains whose models are sampled: neither published nor in the data folder."""
        return [
            case.name for case in self.cases if case.generate and self._data_keys[case.name] is None
        ]

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
            [_make_cell(row) for row in rows],
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
        errors = [row["error"] for row in runner.rows if row.get("error")]
        if errors:
            raise InputError(errors[0])
        return runner.rows

    def _on_progress(self, progress: StudyProgress) -> None:
        """Count finished cells and call the callback."""
        self.n_done, self.n_reused = progress.n_done, progress.n_reused
        row = progress.row
        self.callback(
            f"{row['model']} T={row['horizon']} {row['method']}", self.n_done, self.n_total
        )

    # ------------------------------------------------------------ what is computed
    def make_table_cells(self, case: PaperCase) -> list[TableCell]:
        """Make the cells of one domain's tables."""
        return [
            TableCell(
                {
                    "model": case.name,
                    "horizon": horizon,
                    "method": name,
                    "source": case.find_source(self.data_dir),
                },
                self._make_model_source(case),
                None,
                horizon,
                method,
                seed=self.seed,
                backend="numba",
                version_key=self._make_version_key(
                    SIMULATION_SETTINGS if name in BELIEF_METHODS else None
                ),
            )
            for horizon in (case.horizons if self.full else case.quick_horizons())
            for name, method in PAPER_METHODS.items()
        ]

    def make_figure_cells(self) -> list[FigureCell]:
        """Make the cells of the figures: ``figure``, ``regret`` and ``queries``."""
        two_models = ModelSource.from_models(mmdp.domains.two_models)
        query_counts = FULL_QUERY_COUNTS if self.full else QUERY_COUNTS
        figures = {
            "figure": (self._make_model_source(CASES["POPS"]), 50, _compute_ascent, None),
            "regret": (two_models, None, _compute_regret, [REGRET_HORIZONS, REGRET_QUERIES]),
            "queries": (
                self._make_model_source(CASES["RS"]),
                50,
                _compute_query_curve,
                query_counts,
            ),
        }
        return [
            FigureCell(
                {"model": name, "horizon": horizon, "method": "picture"},
                source,
                None,
                horizon,
                mmdp.methods.CADP(sweep_type="paper"),
                seed=self.seed,
                backend="numba",
                version_key=self._make_version_key(settings),
                compute=compute,
            )
            for name, (source, horizon, compute, settings) in figures.items()
        ]

    def _make_model_source(self, case: PaperCase) -> ModelSource:
        """Make the source of a domain's models; files are identified by their content."""
        key = compute_digest([case.name, self.seed, self._data_keys[case.name]])
        return ModelSource(partial(_load_pair, case.name, self.seed, self.data_dir), key)

    def _make_version_key(self, settings: object) -> list[Any]:
        """Make the key of the versions and settings that cached results depend on."""
        return [CACHE_FORMAT, mmdp.__version__, settings]


def _load_pair(name: str, seed: int, data_dir: Path | None) -> tuple[mmdp.MMDP, mmdp.MMDP]:
    """Load the training and test models of a domain."""
    train, test, _ = CASES[name].load_models(seed, data_dir)
    return train, test


@dataclass(frozen=True, eq=False)
class TableCell(StudyCell):
    """A cell of the tables; belief methods share CADP's policy as their baseline.

    ``version_key``: inputs of the figures besides the fields of every cell.
    """

    version_key: list[Any] | None = None

    def adapt_to_models(self, train: mmdp.MMDP, test: mmdp.MMDP | None) -> StudyCell:
        """Set the baseline and the number of episodes of a belief method."""
        _warm_up()
        if not isinstance(self.method, BeliefMethod):
            return self
        assert test is not None
        assert self.horizon is not None
        if self._baseline_key not in _baselines:
            _baselines[self._baseline_key] = _solve_markov(self, train, PAPER_METHODS["CADP"])
        name, horizon = str(self.labels["method"]), int(self.horizon)
        return replace(
            self,
            method=replace(self.method, baseline=_baselines[self._baseline_key]),
            n_episodes=choose_n_episodes(name, test.n_models, horizon, train.n_models),
        )

    def make_row(self, evaluated_solution: EvaluatedSolution) -> StudyRow:
        """Make the row of results, and keep CADP's policy as a baseline."""
        policy = evaluated_solution.solution.policy
        if isinstance(self.method, mmdp.methods.CADP) and isinstance(policy, MarkovPolicy):
            _baselines[self._baseline_key] = policy
        return super().make_row(evaluated_solution)

    @property
    def _baseline_key(self) -> tuple[str, float | None]:
        """Models and horizon of the cell."""
        return self.source.key, self.horizon


_baselines: dict[tuple[str, float | None], MarkovPolicy] = {}  # CADP's, of this process


def _make_cell(row: StudyRow) -> PaperCell:
    """Make a cell of the tables from a row of the study."""
    name, sd, seconds = row["method"], row["test_sd"], row["seconds"]
    if name == "Oracle":  # it solves the test models themselves
        seconds = row["test_seconds"]
    elif name in BELIEF_METHODS:  # they decide while they are simulated
        sd, seconds = row["test_episode_sd"], seconds + row["test_seconds"]
    return PaperCell(
        row["model"],
        row["horizon"],
        name,
        row["test_mean"],
        sd,
        row["test_stderr"],
        seconds,
        row["source"],
    )


@dataclass(frozen=True, eq=False)
class FigureCell(StudyCell):
    """A cell with the data of a figure, computed by a function of the cell and its models."""

    version_key: list[Any] | None = None
    compute: Callable[[FigureCell, mmdp.MMDP, mmdp.MMDP], object] | None = None

    def compute_row(self, source: ModelSource, test_source: ModelSource | None = None) -> StudyRow:
        """Compute the data of the figure from the models."""
        assert self.compute is not None
        train, test = make_models(source)
        assert test is not None
        return {"status": "COMPLETED", "data": self.compute(self, train, test)}


def _solve_cell(cell: StudyCell, train: mmdp.MMDP, method: Method) -> mmdp.Solution:
    """Solve the training models with the settings of a cell."""
    return mmdp.solve(train, cell.horizon, method, seed=cell.seed, backend=cell.backend)


def _solve_markov(cell: StudyCell, train: mmdp.MMDP, method: Method) -> MarkovPolicy:
    """Solve the training models by a method with Markov policies; return the policy."""
    policy = _solve_cell(cell, train, method).policy
    assert isinstance(policy, MarkovPolicy)
    return policy


def _compute_ascent(cell: FigureCell, train: mmdp.MMDP, test: mmdp.MMDP) -> dict[str, list[float]]:
    """Compute the training return by iteration of CADP from three initial policies on POPS."""
    inits = {"WSU": "wsu", "MVP": "mvp", "random": "random"}
    return {
        label: _solve_cell(
            cell, train, mmdp.methods.CADP(init=init, sweep_type="paper")
        ).trace.tolist()
        for label, init in inits.items()
    }


def _compute_regret(cell: FigureCell, model: mmdp.MMDP, test: mmdp.MMDP) -> list[FigureRow]:
    """Compute Bayes regret by horizon on the example of the third theorem."""
    methods = (
        cell.method,
        mmdp.methods.MixTS(resample="step"),
        mmdp.methods.POMCP(n_queries=REGRET_QUERIES),
    )
    rows: list[FigureRow] = []
    for horizon in REGRET_HORIZONS:
        oracle = mmdp.solve(model, horizon, "oracle").value
        for method in methods:
            solution = mmdp.solve(model, horizon, method, seed=cell.seed)
            rows.append(
                {
                    "horizon": horizon,
                    "method": solution.method,
                    "regret": oracle - solution.value,
                    "stderr": solution.evaluation.stderr,
                }
            )
    return rows


def _compute_query_curve(cell: FigureCell, train: mmdp.MMDP, test: mmdp.MMDP) -> list[FigureRow]:
    """Compute POMCP's return on RS by the number of tree queries, paired with CADP."""
    assert cell.version_key is not None
    subset, baseline = test.subset(slice(0, 100)), _solve_markov(cell, train, cell.method)
    rows: list[FigureRow] = []
    for n_queries in cell.version_key[2]:
        method = mmdp.methods.POMCP(n_queries=n_queries, n_episodes=2, baseline=baseline)
        planner = _solve_cell(cell, train, method)
        details = mmdp.evaluate(subset, planner, n_episodes=4, seed=cell.seed).details
        rows.append(
            {
                "queries": n_queries,
                "difference": details["difference"],
                "stderr": details["difference_stderr"],
            }
        )
    return rows


def _check_data(data_dir: Path) -> None:
    """Refuse a data folder that is missing or holds no published models."""
    if not data_dir.is_dir():
        raise InputError(f"the data folder {data_dir} does not exist; give a folder with --data")
    if not any(case.has_files(data_dir) for case in CASES.values()):
        folders = ", ".join(case.folder for case in CASES.values())
        raise InputError(
            f"{data_dir} holds no published models; expected training.csv in one of the folders "
            f"{folders}"
        )


@cache
def _warm_up() -> None:
    """Compile the kernels before any cell is timed, once in a process."""
    from mmdp.core.testing import make_random_model

    model = make_random_model(1, n_models=8, n_states=3, n_actions=2, horizon=0)
    for name in ("cadp", "gradient"):
        mmdp.solve(model, 2, name, seed=0, backend="numba")
    for name in BELIEF_METHODS:
        planner = mmdp.solve(model, 2, make_method(name, None), seed=0, backend="numba")
        mmdp.evaluate(model, planner, n_episodes=2, seed=0, backend="numba")
    dense_model = make_random_model(
        1, n_models=2, n_states=40, n_actions=2, horizon=0, storage="dense"
    )
    mmdp.solve(dense_model, 2, "mvp", seed=0, backend="numba")  # long rows use another pass
