"""The main job: every cell of the paper's tables; cells computed before are reused."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmdp
from mmdp.clock import pass_on
from mmdp.errors import InputError
from mmdp.identity import digest
from mmdp.methods import Method
from mmdp.methods.belief import Planning
from mmdp.methods.table import title_of
from mmdp.paper.cases import (
    CASES,
    METHODS,
    PLANNERS,
    SEED,
    SIMULATION,
    Case,
    episodes_for,
    method_for,
)
from mmdp.paper.figures import Table, misprints, paper_figures
from mmdp.policy import MarkovPolicy
from mmdp.study import Cell as StudyCell
from mmdp.study import Found, Row, Run, Source, StudyProgress, made
from mmdp.validate import check_whole

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("domain", "horizon", "method", "models", "mean", "sd", "stderr", "seconds",
           "paper_mean", "mean_equal", "paper_sd", "sd_equal", "sd_misprinted",
           "paper_minutes")  # fmt: skip

FORMAT = 4  # of the files in out/cells: another number makes the old ones stale
QUERIES = (5, 50, 500)
FULL_QUERIES = (*QUERIES, 5000)
REGRET_HORIZONS = (2, 4, 8, 16, 32, 64)
REGRET_QUERIES = 200


@dataclass(frozen=True)
class Cell:
    """One (domain, horizon, method): our figures and how they came about."""

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
        return self.domain, self.horizon, self.method

    @property
    def unit(self) -> int:
        """What the paper's returns and deviations count in: ones or thousands."""
        return CASES[self.domain].unit_at(self.horizon)

    def ours(self, table: Table) -> float:
        return {"mean_return": self.mean, "sd_return": self.sd, "minutes": self.seconds / 60}[table]

    def printed(self, table: Table) -> float | None:
        """The paper's figure for this cell."""
        return paper_figures(table).get(self.key)

    def equals(self, table: Table) -> bool | None:
        """Whether ours, truncated as the paper does, is its figure; None without one."""
        printed = self.printed(table)
        if printed is None:
            return None
        return math.trunc(self.ours(table) / self.unit) * self.unit == printed

    def misprinted(self, table: Table) -> bool:
        """Whether the paper's figure contradicts its own rows."""
        return table == "sd_return" and self.key in misprints()


@dataclass(frozen=True)
class Results:
    """What the job found: the table, the figure's data and what was reused."""

    cells: list[Cell]
    figure: dict[str, list[float]]
    regret: list[dict[str, Any]]
    queries: list[dict[str, Any]]
    seconds: float
    reused: int

    def frame(self) -> pd.DataFrame:
        """One row per (domain, horizon, method), with the paper's figures."""
        import pandas as pd

        rows = [
            (*c.key, c.source, c.mean, c.sd, c.stderr, c.seconds,
             c.printed("mean_return"), c.equals("mean_return"),
             c.printed("sd_return"), c.equals("sd_return"), c.misprinted("sd_return"),
             c.printed("minutes"))
            for c in self.cells
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=list(COLUMNS))


Report = Callable[[str, int, int], None]


class Job:
    """The whole experiment; ``report(text, done, total)`` is called after every step."""

    def __init__(
        self,
        out: Path,
        *,
        data: Path | None = None,
        full: bool = False,
        domains: Sequence[str] = tuple(CASES),
        seed: int = SEED,
        fresh: bool = False,
        jobs: int = 1,
        report: Report | None = None,
    ) -> None:
        unknown = [name for name in domains if name not in CASES]
        if unknown:
            raise InputError(f"no domain is called {unknown[0]!r}; choose from {', '.join(CASES)}")
        check_whole(seed, "seed", 0)
        if data is not None:
            _check_data(data)
        self.out, self.data, self.full, self.seed = out, data, full, seed
        self.cases = [CASES[name] for name in domains]
        self._data_keys = {name: case.fingerprint(data) for name, case in CASES.items()}
        self.fresh, self.jobs, self.done, self.reused = fresh, jobs, 0, 0
        self.report = report or (lambda text, done, total: None)
        self.tables = [cell for case in self.cases for cell in self.cells(case)]
        self.total = len(self.tables) + 3

    @property
    def generated(self) -> list[str]:
        """The domains whose models are drawn: neither published nor in the data folder."""
        return [c.name for c in self.cases if c.generate and self._data_keys[c.name] is None]

    def run(self) -> Results:
        """Compute (or reuse) everything; files are written by :func:`mmdp.paper.write`.

        Ctrl-C raises KeyboardInterrupt; ``done`` of ``total`` results are kept by then.
        """
        started = time.perf_counter()
        *rows, figure, regret, queries = self.rows([*self.tables, *self.extras()])
        return Results(
            [_cell(row) for row in rows], figure["answer"], regret["answer"], queries["answer"],
            time.perf_counter() - started, self.reused,
        )  # fmt: skip

    def rows(self, cells: Sequence[StudyCell]) -> list[Row]:
        """The cells as a study, with nothing missing."""
        run = Run(cells, out=self.out, jobs=self.jobs, fresh=self.fresh, callback=self._heard)
        pass_on(run.interrupted)
        failed = [row["error"] for row in run.rows if row.get("error")]
        if failed:
            raise InputError(failed[0])
        return run.rows

    def _heard(self, progress: StudyProgress) -> None:
        self.done, self.reused = progress.done, progress.reused
        row = progress.row
        self.report(f"{row['model']} T={row['horizon']} {row['method']}", self.done, self.total)

    # ------------------------------------------------------------ what is computed
    def cells(self, case: Case) -> list[TableCell]:
        """The cells of one domain's tables."""
        return [
            TableCell(
                {"model": case.name, "horizon": horizon, "method": name,
                 "source": case.source(self.data)},
                self._models(case), None, horizon, method, seed=self.seed, backend="numba",
                edition=self._edition(SIMULATION if name in PLANNERS else None),
            )
            for horizon in (case.horizons if self.full else case.quick())
            for name, method in METHODS.items()
        ]  # fmt: skip

    def extras(self) -> list[Extra]:
        """What the pictures show: ``figure``, ``regret`` and ``queries``."""
        two = Source.of(mmdp.domains.two_models)
        counts = FULL_QUERIES if self.full else QUERIES
        known = {
            "figure": (self._models(CASES["POPS"]), 50, _figure, None),
            "regret": (two, None, _regret, [REGRET_HORIZONS, REGRET_QUERIES]),
            "queries": (self._models(CASES["RS"]), 50, _queries, counts),
        }
        return [
            Extra(
                {"model": name, "horizon": horizon, "method": "picture"}, source, None, horizon,
                mmdp.CADP(sweeps="paper"), seed=self.seed, backend="numba",
                edition=self._edition(about), draw=draw,
            )
            for name, (source, horizon, draw, about) in known.items()
        ]  # fmt: skip

    def _models(self, case: Case) -> Source:
        """How to make a domain's models; files are known by their content, not by their place."""
        key = digest([case.name, self.seed, self._data_keys[case.name]])
        return Source(partial(_pair, case.name, self.seed, self.data), key)

    def _edition(self, about: Any) -> Any:
        return [FORMAT, mmdp.__version__, about]


def _pair(name: str, seed: int, data: Path | None) -> tuple[mmdp.MMDP, mmdp.MMDP]:
    train, test, _ = CASES[name].models(seed, data)
    return train, test


@dataclass(frozen=True, eq=False)
class TableCell(StudyCell):
    """A cell of the tables; planners share CADP's policy, and simulate about the same each.

    ``edition``: what the figures depend on besides the fields of every cell.
    """

    edition: Any = None

    def ready(self, train: mmdp.MMDP, test: mmdp.MMDP | None) -> StudyCell:
        _warm_up()
        if not isinstance(self.method, Planning):
            return self
        assert test is not None
        assert self.horizon is not None
        if self._at not in _baselines:
            _baselines[self._at] = _solved(self, train, METHODS["CADP"]).policy
        name, steps = title_of(self.method.name), int(self.horizon)
        return replace(
            self, method=replace(self.method, baseline=_baselines[self._at]),
            episodes=episodes_for(name, test.n_models, steps, train.n_models),
        )  # fmt: skip

    def row(self, found: Found) -> Row:
        if isinstance(self.method, mmdp.CADP):
            _baselines[self._at] = found.solution.policy
        return super().row(found)

    @property
    def _at(self) -> tuple[str, float | None]:
        return self.source.key, self.horizon


_baselines: dict[tuple[str, float | None], MarkovPolicy] = {}  # CADP's, of this process


def _cell(row: Row) -> Cell:
    """What the tables show of a row."""
    name, sd, seconds = row["method"], row["test_sd"], row["seconds"]
    if name == "Oracle":  # it solves the test models themselves
        seconds = row["test_seconds"]
    elif name in PLANNERS:  # they decide while they are simulated
        sd, seconds = row["test_episode_sd"], seconds + row["test_seconds"]
    return Cell(
        row["model"], row["horizon"], name, row["test_mean"], sd, row["test_stderr"], seconds,
        row["source"],
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Extra(StudyCell):
    """The data of a picture, by a function of the cell and its models."""

    edition: Any = None
    draw: Any = None

    def figures(self, given: Any, given_test: Any = None) -> Row:
        train, test = made(self.source.key, given)
        return {"status": "COMPLETED", "answer": self.draw(self, train, test)}


def _solved(cell: StudyCell, train: mmdp.MMDP, method: Method) -> mmdp.Solution:
    return mmdp.solve(train, cell.horizon, method, seed=cell.seed, backend=cell.backend)


def _figure(cell: Extra, train: mmdp.MMDP, test: mmdp.MMDP) -> dict[str, list[float]]:
    """Training return by iteration of CADP from three starts on POPS."""
    starts = {"WSU": "wsu", "MVP": "mvp", "random": "random"}
    return {
        label: _solved(cell, train, mmdp.CADP(init=init, sweeps="paper")).trace.tolist()
        for label, init in starts.items()
    }


def _regret(cell: Extra, model: mmdp.MMDP, test: mmdp.MMDP) -> list[dict[str, Any]]:
    """Bayes regret by horizon on the example of the third theorem."""
    methods = (cell.method, mmdp.MixTS(resample="step"), mmdp.POMCP(queries=REGRET_QUERIES))
    rows = []
    for horizon in REGRET_HORIZONS:
        oracle = mmdp.solve(model, horizon, "oracle").value
        for method in methods:
            solution = mmdp.solve(model, horizon, method, seed=cell.seed)
            rows.append(
                {"horizon": horizon, "method": solution.method, "regret": oracle - solution.value,
                 "stderr": solution.evaluation.stderr}
            )  # fmt: skip
    return rows


def _queries(cell: Extra, train: mmdp.MMDP, test: mmdp.MMDP) -> list[dict[str, Any]]:
    """POMCP's return on RS by the number of tree queries, paired with CADP."""
    part, baseline = test.subset(slice(0, 100)), _solved(cell, train, cell.method).policy
    rows = []
    for queries in cell.edition[2]:
        method = mmdp.POMCP(queries=queries, episodes=2, baseline=baseline)
        planner = _solved(cell, train, method)
        found = mmdp.evaluate(planner, part, episodes=4, seed=cell.seed).details
        rows.append(
            {"queries": queries, "difference": found["difference"],
             "stderr": found["difference_stderr"]}
        )  # fmt: skip
    return rows


def _check_data(data: Path) -> None:
    if not data.is_dir():
        raise InputError(f"the data folder {data} does not exist; give a folder with --data")
    if not any(case.found_in(data) for case in CASES.values()):
        folders = ", ".join(case.folder for case in CASES.values())
        raise InputError(
            f"{data}: no published models here; looked for training.csv in the folders {folders}"
        )


@cache
def _warm_up() -> None:
    """Compile before any cell is timed, once in a process."""
    from mmdp.testing import random_model

    model = random_model(1, n_models=8, n_states=3, n_actions=2, horizon=0)
    for name in ("cadp", "gradient"):
        mmdp.solve(model, 2, name, seed=0, backend="numba")
    for name in PLANNERS:
        planner = mmdp.solve(model, 2, method_for(name, None), seed=0, backend="numba")
        mmdp.evaluate(planner, model, episodes=2, seed=0, backend="numba")
    rows = random_model(1, n_models=2, n_states=40, n_actions=2, horizon=0, storage="dense")
    mmdp.solve(rows, 2, "mvp", seed=0, backend="numba")  # long rows have a pass of their own
