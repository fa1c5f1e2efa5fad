"""The main job: every cell of the paper's tables; cells computed before are reused."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmdp
from mmdp.errors import InputError
from mmdp.interrupts import unanswered
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
    train_value: float
    iterations: int
    status: str
    source: str
    details: dict[str, Any]

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
        """One row per (domain, horizon, method) beside the paper's figures."""
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
    """The whole experiment; ``report(text, done, total)`` is called at every step."""

    def __init__(
        self,
        out: Path,
        *,
        data: Path | None = None,
        full: bool = False,
        domains: Sequence[str] = tuple(CASES),
        seed: int = SEED,
        fresh: bool = False,
        report: Report | None = None,
    ) -> None:
        unknown = [name for name in domains if name not in CASES]
        if unknown:
            raise InputError(f"no domain is called {unknown[0]!r}; choose from {', '.join(CASES)}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError(f"seed must be a whole number of at least 0, not {seed!r}")
        if data is not None:
            _check_data(data)
        self.out, self.data, self.full, self.seed = out, data, full, seed
        self.cases = [CASES[name] for name in domains]
        self._data_keys = {name: case.fingerprint(data) for name, case in CASES.items()}
        self.fresh, self.reused = fresh, 0
        self.report = report or (lambda text, done, total: None)
        self.done, self._warm = 0, False
        self.total = sum(len(self._horizons(c)) * len(METHODS) for c in self.cases) + 3

    @property
    def generated(self) -> list[str]:
        """The domains whose models are drawn: neither published nor in the data folder."""
        return [c.name for c in self.cases if c.generate and self._data_keys[c.name] is None]

    @unanswered()
    def run(self) -> Results:
        """Compute (or reuse) everything; files are written by :func:`mmdp.paper.write`.

        Ctrl-C raises KeyboardInterrupt; ``done`` of ``total`` results are kept by then.
        """
        started = time.perf_counter()
        cells = [cell for case in self.cases for cell in self._case(case)]
        figure = self._kept("figure", {"data": self._data_keys["POPS"]}, self._figure)
        regret_key = {"horizons": REGRET_HORIZONS, "queries": REGRET_QUERIES}
        regret = self._kept("regret", regret_key, self._regret)
        queries_key = {"data": self._data_keys["RS"], "queries": self._query_counts}
        queries = self._kept("queries", queries_key, self._queries)
        seconds = time.perf_counter() - started
        return Results(cells, figure, regret, queries, seconds, self.reused)

    @property
    def _query_counts(self) -> tuple[int, ...]:
        return FULL_QUERIES if self.full else QUERIES

    def _horizons(self, case: Case) -> tuple[int, ...]:
        return case.horizons if self.full else case.quick()

    def _case(self, case: Case) -> Iterator[Cell]:
        made: list[Any] = []

        def models() -> tuple[mmdp.MMDP, mmdp.MMDP, str]:
            if not made:
                self._say(f"{case.name}: models")
                made.extend(case.models(self.seed, self.data))
            return made[0], made[1], made[2]

        for horizon in self._horizons(case):
            baseline: list[MarkovPolicy] = []
            for name in METHODS:
                self._say(f"{case.name} T={horizon} {name}")
                key = {
                    "domain": case.name, "horizon": horizon, "method": name,
                    "options": repr(method_for(name, None)), "data": self._data_keys[case.name],
                }  # fmt: skip
                if name in PLANNERS:
                    key["simulation"] = SIMULATION
                yield self._kept(
                    "cell", key, lambda name=name, horizon=horizon, baseline=baseline: asdict(  # type: ignore[misc]
                        self._cell(case, horizon, name, models(), baseline)
                    ),
                    read=lambda answer: Cell(**answer),
                )  # fmt: skip

    def _cell(
        self, case: Case, horizon: int, name: str,
        models: tuple[mmdp.MMDP, mmdp.MMDP, str], baseline: list[MarkovPolicy],
    ) -> Cell:  # fmt: skip
        train, test, source = models
        if not self._warm:
            self._say("compiling")
            _warm_up()
            self._warm = True
        if name in PLANNERS and not baseline:
            baseline.append(mmdp.solve(train, horizon, backend="numba").policy)
        started = time.perf_counter()
        if name == "Oracle":
            solution = mmdp.solve(test, horizon, method_for(name, None), backend="numba")
            evaluation, sd, details = solution.evaluation, solution.evaluation.sd, {}
            seconds = solution.seconds
        else:
            known = baseline[0] if baseline else None
            solution = mmdp.solve(
                train, horizon, method_for(name, known), seed=self.seed, backend="numba"
            )
            seconds = solution.seconds
            if name in PLANNERS:
                episodes = episodes_for(name, test.n_models, horizon, train.n_models)
                evaluation = mmdp.evaluate(
                    solution, test, episodes=episodes, seed=self.seed, backend="numba"
                )
                sd, details = float(evaluation.details["episode_sd"]), dict(evaluation.details)
                seconds = time.perf_counter() - started  # decisions are made as episodes run
            else:
                evaluation = mmdp.evaluate(solution, test, backend="numba")
                sd, details = evaluation.sd, {}
        if name == "CADP":
            baseline.append(solution.policy)
        return Cell(
            case.name, horizon, name, evaluation.mean, sd, evaluation.stderr, seconds,
            solution.value, solution.iterations, solution.status.name, source, details,
        )  # fmt: skip

    def _figure(self) -> dict[str, list[float]]:
        """Training return by iteration of CADP from three starts on POPS."""
        train, _, _ = CASES["POPS"].models(self.seed, self.data)
        starts = {"WSU": "wsu", "MVP": "mvp", "random": "random"}
        return {
            label: mmdp.solve(
                train, 50, mmdp.CADP(init=init, sweeps="paper"), seed=self.seed, backend="numba"
            ).trace.tolist()
            for label, init in starts.items()
        }  # fmt: skip

    def _regret(self) -> list[dict[str, Any]]:
        """Bayes regret by horizon on the example of the third theorem."""
        model, _ = mmdp.domains.two_models()
        methods = (
            mmdp.CADP(sweeps="paper"),
            mmdp.MixTS(resample="step"),
            mmdp.POMCP(queries=REGRET_QUERIES),
        )
        frame = mmdp.measures.regret_by_horizon(model, REGRET_HORIZONS, methods, seed=self.seed)
        return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]

    def _queries(self) -> list[dict[str, Any]]:
        """POMCP's return on RS by the number of tree queries, paired with CADP."""
        train, test, _ = CASES["RS"].models(self.seed, self.data)
        part = test.subset(slice(0, 100))
        baseline = mmdp.solve(train, 50, mmdp.CADP(sweeps="paper"), backend="numba").policy
        rows = []
        for queries in self._query_counts:
            planner = mmdp.solve(
                train, 50, mmdp.POMCP(queries=queries, episodes=2, baseline=baseline),
                seed=self.seed, backend="numba",
            )  # fmt: skip
            found = mmdp.evaluate(planner, part, episodes=4, seed=self.seed).details
            rows.append(
                {"queries": queries, "difference": found["difference"],
                 "stderr": found["difference_stderr"]}
            )  # fmt: skip
        return rows

    # ------------------------------------------------------------ resuming
    def _say(self, text: str) -> None:
        self.report(text, self.done, self.total)

    def _kept(
        self, kind: str, key: dict[str, Any], compute: Callable[[], Any],
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> Any:  # fmt: skip
        """Read from out/cells if the same question was answered before, else compute."""
        question = {
            "kind": kind, **key, "seed": self.seed, "version": mmdp.__version__, "format": FORMAT,
        }  # fmt: skip
        text = json.dumps(question, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        label = "-".join(str(key[k]) for k in ("domain", "horizon", "method") if k in key) or kind
        path = self.out / "cells" / f"{label}-{digest}.json"
        if kind != "cell":
            self._say(kind)
        found = None if self.fresh else _stored(path, json.loads(text), read)
        if found is None:
            answer = json.loads(json.dumps(compute()))
            path.parent.mkdir(parents=True, exist_ok=True)
            mmdp.io.write_whole(path, json.dumps({"question": question, "answer": answer}))
            found = read(answer)
        else:
            self.reused += 1
        self.done += 1
        return found


def _stored(path: Path, question: dict[str, Any], read: Callable[[Any], Any]) -> Any:
    """The answer that was kept; None if there is none or the file is damaged."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return read(kept["answer"]) if kept["question"] == question else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _check_data(data: Path) -> None:
    if not data.is_dir():
        raise InputError(f"the data folder {data} does not exist; give a folder with --data")
    if not any(case.found_in(data) for case in CASES.values()):
        folders = ", ".join(case.folder for case in CASES.values())
        raise InputError(
            f"{data}: no published models here; looked for training.csv in the folders {folders}"
        )


def _warm_up() -> None:
    """Compile before any cell is timed."""
    from mmdp.testing import random_model

    model = random_model(1, n_models=8, n_states=3, n_actions=2, horizon=0)
    for name in ("cadp", "gradient"):
        mmdp.solve(model, 2, name, seed=0, backend="numba")
    for name in PLANNERS:
        planner = mmdp.solve(model, 2, method_for(name, None), seed=0, backend="numba")
        mmdp.evaluate(planner, model, episodes=2, seed=0, backend="numba")
    rows = random_model(1, n_models=2, n_states=40, n_actions=2, horizon=0, storage="dense")
    mmdp.solve(rows, 2, "mvp", seed=0, backend="numba")  # long rows have a pass of their own
