"""Measure speed and memory against peers, floors and the machine.

    python -m benchmarks.suite [--quick] [--only A,B,...]

``make bench`` runs it. It writes bench.json and bench.md; a run of all sections also writes
benchmarks/RESULTS.md. ``SECTIONS`` is the table of what is measured and of the floors: a section
is a function of the sizes that yields rows as they are measured, and a floor is found by the check
and the threads of a row. If a section fails, that becomes a row, the next one runs, and the exit
status is 1. A missed floor is shown and is no error. A quick trial has no floors.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import cpu, gpu, memory
from benchmarks.instances import FULL, QUICK, Sizes
from benchmarks.rows import (
    HEADS,
    LINE,
    ROOT,
    Goal,
    Row,
    UnavailableError,
    describe_machine,
    format_line,
    format_machine,
    format_markdown,
    read_load,
    summarize,
)
from mmdp import InputError, __version__
from mmdp.cli.console import print_json, print_stderr
from mmdp.core.timing import progress_line
from mmdp.data.io import write_all_atomic

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
Floors = dict[tuple[str, int | None], Goal]


@dataclass(frozen=True)
class Section:
    """Rows that belong together, with floors by check and threads."""

    title: str
    measure: Callable[[Sizes], Iterator[Row]]
    floors: Floors = field(default_factory=dict)
    is_optional: bool = False  # runs only if it is named


def _repeat(goal: Goal, *checks: str, n_threads: Sequence[int | None] = (None,)) -> Floors:
    return {(check, n): goal for check in checks for n in n_threads}


SECTIONS: dict[str, Section] = {
    "first": Section(
        "first calls with empty caches",
        cpu.measure_first_calls,
        {
            ("first default solve", None): Goal(6, 4, "max"),
            ("first bound", None): Goal(8, 6, "max"),
            ("first planner simulation", None): Goal(6, 4, "max"),
            ("first mmdp solve, riverswim", None): Goal(2, 1, "max"),
        },
    ),
    "loops": Section(
        "against the authors' loops, compiled",
        cpu.measure_loops,
        {
            ("RS vs authors' loops", 1): Goal(25, 40),
            ("POPS vs authors' loops", 1): Goal(35, 60),
            ("POP vs authors' loops", 1): Goal(75, 100),
        },
    ),
    "numpy": Section(
        "against plain numpy",
        cpu.measure_numpy,
        {
            **_repeat(
                Goal(2.5, 5),
                "POPS banded vs plain numpy",
                "POP banded vs plain numpy",
                n_threads=[1],
            ),
            **_repeat(
                Goal(1.2, 1.5),
                "POPS dense vs plain numpy",
                "POP dense vs plain numpy",
                n_threads=[1],
            ),
            **_repeat(
                Goal(1.8, 3), "POPS dense vs plain numpy", "POP dense vs plain numpy", n_threads=[2]
            ),
        },
    ),
    "single": Section(
        "one model, against the toolboxes",
        cpu.measure_single_model,
        {
            (f"one model, {pattern} vs quantecon", n): goal
            for pattern in ("dense", "sparse")
            for n, goal in ((1, Goal(1, 1.5)), (2, Goal(1.3, 2)))
        },
    ),
    "bandwidth": Section(
        "share of the read bandwidth",
        cpu.measure_bandwidth,
        {
            ("POP banded: backward step, share of reading", 1): Goal(0.80, 0.90),
            ("POP banded: backward step, share of reading", 2): Goal(0.75, 0.85),
        },
    ),
    "sweeps": Section(
        "two-way sweeps",
        cpu.measure_two_way,
        {
            ("two-way vs the paper's, median whole solve", 1): Goal(1.5, 2.5),
        },
    ),
    "cvar": Section(
        "sweeps of CVaR",
        cpu.measure_cvar_sweep,
        _repeat(
            Goal(2, 1.5, "max"),
            "POP: first sweep of CVaR / sweep of the mean",
            "POP: last sweep of CVaR / sweep of the mean",
            n_threads=[1],
        ),
    ),
    "nodes": Section(
        "sweeps of controllers",
        cpu.measure_controller_sweep,
        _repeat(
            Goal(1.5, 1, "max"),
            "POPS: sweep of 2 nodes / 4 sweeps",
            "POPS: sweep of 5 nodes / 25 sweeps",
            n_threads=[1, 2],
        ),
    ),
    "events": Section(
        "exogenous events",
        cpu.measure_events,
        {
            ("events: backward step vs plain numpy", 2): Goal(20, 40),
        },
    ),
    "neighbours": Section(
        "busy neighbours",
        cpu.measure_neighbours,
        {
            (f"{name}: 2 threads / 1, beside 2 busy neighbours", 2): Goal(1.5, 1, "max")
            for name in ("RS", "POPS", "POP")
        },
    ),
    "rollouts": Section(
        "belief rollouts",
        cpu.measure_rollouts,
        _repeat(
            Goal(2e6, 4e6),
            "POPS: belief rollouts, QMDP",
            "POPS: belief rollouts, rollout",
            n_threads=[1, 2],
        ),
    ),
    "growth": Section(
        "growth",
        cpu.measure_growth,
        {
            (f"log-log slope in {axis}", 2): Goal(0.9, 1.1, "range")
            for axis in ("models", "states", "horizon")
        },
    ),
    "loading": Section(
        "loading",
        memory.measure_loading,
        {
            ("POPS: mmdp.load / pandas.read_csv", None): Goal(1.5, 1.3, "max"),
        },
    ),
    "memory": Section(
        "peak memory of a solve",
        memory.measure_peak,
        _repeat(
            Goal(1.5, 1.2, "max"),
            "POP: peak / transitions, paper",
            "POP: peak / transitions, two-way",
        ),
    ),
    "building": Section(
        "building a model",
        memory.measure_building,
        _repeat(
            Goal(2.5, 1.5, "max"),
            "from dense: peak / model",
            "from coordinates: peak / model",
            "from matrices: peak / model",
        ),
    ),
    "gpu": Section(
        "on a GPU",
        gpu.measure_gpu,
        {
            ("GPU, POP models, sweep", None): Goal(3, 2, "max"),
            ("GPU, POP models, backward: share of copying", None): Goal(0.55, 0.80),
            ("GPU, many models, backward: share of copying", None): Goal(0.70, 0.85),
            ("GPU, population, CVaR(0.1), solve", None): Goal(4, 1, "max"),
            ("GPU, POP models, repeated solve, one init", None): Goal(12, 9, "max"),
        },
    ),
    "gpu-events": Section(
        "exogenous events on a GPU",
        gpu.measure_gpu_events,
        {
            ("GPU, events, median sweep", None): Goal(4, 1.5, "max"),
            ("GPU, events, to the local optimum", None): Goal(100, 30, "max"),
            **_repeat(
                Goal(10, 40), *(f"GPU, {n:,} states vs mdpax" for n in (14_641, 161_051, 1_771_561))
            ),
        },
    ),
    "fitting": Section("fits to a long log", memory.measure_fitting, is_optional=True),
    "large": Section("a large case", memory.measure_large, is_optional=True),
    "weak": Section("weak scaling on a GPU", gpu.measure_weak_scaling, is_optional=True),
    "shards": Section("a model in shards, on a GPU", gpu.measure_shards, is_optional=True),
}


def choose_sections(names: Sequence[str]) -> dict[str, Section]:
    """Return the named sections, or all that are not optional."""
    for name in names:
        if name not in SECTIONS:
            raise InputError(f"no section is called {name!r}; choose from {', '.join(SECTIONS)}")
    return {
        name: section
        for name, section in SECTIONS.items()
        if name in names or not (names or section.is_optional)
    }


# ------------------------------------------------------------------ a run
@dataclass
class Run:
    """The rows of a run so far; ``merged`` are rows of another run by section title."""

    sizes: Sizes
    merged: Mapping[str, list[Row]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    load: list[float | None] = field(default_factory=list)  # at the start and at the end

    def measure(self, name: str, section: Section) -> Iterator[Row]:
        """Yield the rows of a section; an error becomes a row, and rows for its floors."""
        floors = {} if self.sizes.is_trial else dict(section.floors)
        rows, reason = iter(self.merged.get(section.title, ())), "not in the merged file"
        if section.title not in self.merged:
            rows = section.measure(self.sizes)
        start = time.perf_counter()
        try:
            for row in rows:
                goal = floors.pop((row.check, row.n_threads), None)
                yield replace(row, goal=goal, section=section.title)
        except UnavailableError as missing:
            reason = str(missing)
            if not floors:
                yield Row(f"{name}: not run", None, note=reason, section=section.title)
        except Exception as error:
            self.failures.append(name)
            text = (str(error).splitlines() or [""])[0]
            reason = f"FAILED: {type(error).__name__}: {text}"
            yield Row(f"{name}: rest of the section", None, note=reason, section=section.title)
        for (check, n_threads), goal in floors.items():
            yield Row(check, None, "", n_threads, goal, note=reason, section=section.title)
        self.seconds[name] = round(time.perf_counter() - start, 1)

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "machine": describe_machine(),
            "load": self.load,
            "quick": self.sizes.is_trial,
            "seconds": self.seconds,
            "failures": self.failures,
            "rows": [row.to_dict() for row in self.rows],
        }

    def format_page(self) -> str:
        """Return the machine and the table as a Markdown page."""
        trial = "**A quick trial on tiny sizes: no measure of speed.** " * self.sizes.is_trial
        machine = format_machine(describe_machine()).replace("\n", ". ")
        return (
            "# Results of the benchmark\n\nWritten by `make bench`. [How the figures are made]"
            f"(README.md) says what each row compares.\n\n{trial}{machine}, mmdp {__version__}. "
            f"Load at the start and the end of the run: {' and '.join(map(str, self.load))}. "
            f"{sum(self.seconds.values()):.0f} s in all. {summarize(self.rows)}.\n\n"
            + format_markdown(self.rows)
        )

    def write(self, folder: Path) -> list[Path]:
        files = [folder / "bench.json", folder / "bench.md"]
        texts = json.dumps(self.to_dict(), indent=1) + "\n", self.format_page()
        write_all_atomic(dict(zip(files, texts, strict=True)))
        return files


def read_rows(file: Path) -> dict[str, list[Row]]:
    """Read the rows that another run measured, by section title."""
    if not file.is_file():
        raise InputError(f"{file}: no such file; write it with make bench ARGS='--out FOLDER'")
    by_section: dict[str, list[Row]] = {}
    for row in map(Row.from_dict, json.loads(file.read_text(encoding="utf-8"))["rows"]):
        by_section.setdefault(row.section, []).append(row)
    return {
        title: rows for title, rows in by_section.items() if any(x.value is not None for x in rows)
    }


# ------------------------------------------------------------------ the command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections that the arguments name; return the exit status."""
    options = _make_parser().parse_args(arguments)
    try:
        return _run(options)
    except InputError as error:
        print_stderr(str(error))
        return 2


def _make_parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("out/bench"), metavar="FOLDER", help="where to write")
    add("--quick", action="store_true", help="a trial on tiny sizes, under a minute")
    add("--only", default="", metavar="A,B,...", help=f"only some of {', '.join(SECTIONS)}")
    add("--merge", type=Path, metavar="FILE", help="take sections from bench.json of another run")
    add("--json", action="store_true", help="print one JSON document and nothing else")
    return parser


def _run(options: argparse.Namespace) -> int:
    names = [x.strip() for x in options.only.split(",") if x.strip()]
    sections = choose_sections(names)
    merged = {} if options.merge is None else read_rows(options.merge)
    run = Run(QUICK if options.quick else FULL, merged, load=[read_load()])
    options.out.mkdir(parents=True, exist_ok=True)
    show = (lambda line: None) if options.json else (lambda line: print(line, flush=True))
    show(f"{format_machine(describe_machine())}, mmdp {__version__}, load {run.load[0]}")
    show("quick trial: tiny sizes, no measure of speed" * options.quick)
    show(LINE.format(*HEADS))
    try:
        with progress_line.open("bench") as call:
            for i, (name, section) in enumerate(sections.items()):
                call.activity = f"{i} of {len(sections)} sections, {name}"
                show(f"\n{name}: {section.title}")
                for row in run.measure(name, section):
                    run.rows.append(row)
                    show(format_line(row))
    except KeyboardInterrupt:
        run.write(options.out)
        print_stderr(f"interrupted; the rows so far are in {options.out}")
        return 130
    run.load.append(read_load())
    files = run.write(options.out)
    if not options.quick and not names:
        write_all_atomic({RESULTS: run.format_page()})
    if options.json:
        print_json({**run.to_dict(), "files": files})
    seconds = sum(run.seconds.values())
    show(f"\n{summarize(run.rows)}; {seconds:.0f} s; written to {options.out}")
    if run.failures:
        print_stderr(f"failed: {', '.join(run.failures)}; the last rows of each say why")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
