"""Measure speed and memory against peers, floors and the machine.

    python -m benchmarks.suite [--quick] [--only A,B,...]

``make bench`` runs it: five minutes on a quiet machine. It writes bench.json, bench.md and
bench.png; a run of all sections also writes benchmarks/RESULTS.md. A section is a function that
takes the sizes and yields rows as they are measured. If one fails, that becomes a row too, the
next one runs, and the exit status is 1. A missed floor is shown and is no error. A quick trial
prints figures without verdicts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import (
    accelerator,
    core,
    first,
    growth,
    machine,
    memory,
    picture,
    single,
    table,
    timing,
)
from benchmarks.sizes import FULL, QUICK, Sizes
from benchmarks.table import Goal, Row
from mmdp import InputError, __version__
from mmdp.cli.console import Steps, complain, show_json
from mmdp.io import write_all

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
HEAD = """# Results of the benchmark

Written by `make bench`. [How the figures are made](README.md) says what each row compares.

"""


@dataclass(frozen=True)
class Section:
    """Rows that belong together; ``asked``: run only on request.

    ``floors``: the (threads, goal) of the rows that have a goal. If the section fails, they are
    shown as not run.
    """

    title: str
    rows: Callable[[Sizes, Options], Iterator[Row]]
    floors: Sequence[tuple[int | None, Goal | None]] = ()
    asked: bool = False


@dataclass(frozen=True)
class Options:
    """What a run is asked to do; ``only``: names of sections, empty for all."""

    quick: bool = False
    large: bool = False
    only: tuple[str, ...] = ()
    gpu_json: Path | None = None

    @property
    def whole(self) -> bool:
        """Whether this is a full run, whose table is worth keeping."""
        return not self.quick and not self.only

    def chosen(self) -> dict[str, Section]:
        unknown = [name for name in self.only if name not in SECTIONS]
        if unknown:
            raise InputError(
                f"no section is called {unknown[0]!r}; choose from {', '.join(SECTIONS)}"
            )
        return {
            name: section
            for name, section in SECTIONS.items()
            if (name in self.only)
            or (not self.only and not section.asked)
            or (name == "large" and self.large)
        }


def _of_sizes(rows: Callable[[Sizes], Iterator[Row]]) -> Callable[[Sizes, Options], Iterator[Row]]:
    return lambda sizes, options: rows(sizes)


def _each(goal: Goal, *threads: int | None) -> list[tuple[int | None, Goal | None]]:
    return [(count, goal) for count in threads]


SECTIONS: dict[str, Section] = {
    "first": Section(
        "first calls on a machine without caches", _of_sizes(first.first),
        [(None, goal) for goal in first.GOALS],
    ),
    "loops": Section(
        "against the authors' loops, compiled", _of_sizes(core.loops),
        [(1, goal) for goal in core.LOOP_GOALS.values()],
    ),
    "numpy": Section(
        "against plain numpy", _of_sizes(core.plain_numpy),
        [*core.NUMPY_GOALS["banded"].items(), *core.NUMPY_GOALS["dense"].items()] * 2,
    ),
    "single": Section(
        "one model, against the toolboxes", _of_sizes(single.one_model),
        [*single.GOALS.items()] * 2,
    ),
    "bandwidth": Section(
        "share of the read bandwidth", _of_sizes(machine.bandwidth),
        [*machine.SHARE_GOALS.items()],
    ),
    "sweeps": Section("two-way sweeps", _of_sizes(machine.two_way), _each(machine.SWEEPS_GOAL, 1)),
    "neighbours": Section(
        "busy neighbours", _of_sizes(machine.neighbours), _each(machine.BESIDE_GOAL, 2, 2, 2)
    ),
    "rollouts": Section(
        "belief rollouts", _of_sizes(machine.rollouts), _each(machine.ROLLOUT_GOAL, 1, 2, 1, 2)
    ),
    "growth": Section("growth", _of_sizes(growth.growth), _each(growth.GOAL, 2, 2, 2)),
    "loading": Section("loading", _of_sizes(memory.loading), _each(memory.LOAD_GOAL, None)),
    "memory": Section("peak memory", _of_sizes(memory.memory), _each(memory.PEAK_GOAL, None, None)),
    "large": Section("a large case", _of_sizes(memory.large), asked=True),
    "gpu": Section(
        "on a GPU",
        lambda sizes, options: accelerator.accelerator(options.gpu_json, options.quick),
        [(None, held[-1]) for held in accelerator.HELD],
    ),
}  # fmt: skip


@dataclass
class Report:
    """What a run has found so far."""

    options: Options
    rows: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    load: list[float | None] = field(default_factory=list)  # at the start and at the end

    @property
    def sizes(self) -> Sizes:
        return QUICK if self.options.quick else FULL

    @property
    def verdicts(self) -> bool:
        """Tiny sizes say nothing about speed, so a trial is not judged."""
        return not self.options.quick

    def document(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "machine": timing.machine(),
            "load": self.load,
            "quick": self.options.quick,
            "seconds": self.seconds,
            "failed": self.failed,
            "rows": [row.document(self.verdicts) for row in self.rows],
        }

    def write(self, folder: Path) -> dict[str, Path]:
        """bench.json, bench.md and bench.png."""
        document = self.document()
        files = {kind: folder / f"bench.{kind}" for kind in ("json", "md", "png")}
        write_all(
            {
                files["json"]: json.dumps(document, indent=1) + "\n",
                files["md"]: page(document),
                files["png"]: lambda path: picture.draw(self.rows, path, self.verdicts),
            }
        )
        return files


def run(
    report: Report,
    *,
    say: Callable[[str, int, int], None] = lambda text, done, total: None,
    show: Callable[[str], None] = lambda line: None,
) -> None:
    """Run the chosen sections; ``say`` moves a progress bar, ``show`` prints a line."""
    chosen = report.options.chosen()
    report.load = [timing.load()]
    for line in heading(report):
        show(line)
    for done, (name, section) in enumerate(chosen.items()):
        say(f"{name}: {section.title}", done, len(chosen))
        show(f"\n{name}: {section.title}")
        start = time.perf_counter()
        for row in _guarded(name, section, report):
            report.rows.append(row)
            show(table.text(row, report.verdicts))
        report.seconds[name] = round(time.perf_counter() - start, 1)
    report.load.append(timing.load())
    say("done", len(chosen), len(chosen))


def _guarded(name: str, section: Section, report: Report) -> Iterator[Row]:
    """The rows of a section; an error becomes its last row."""
    left = [floor for floor in section.floors if floor[1] is not None]
    try:
        for row in section.rows(report.sizes, report.options):
            if row.goal is not None:
                left.remove((row.threads, row.goal))
            yield replace(row, section=section.title)
    except Exception as error:
        report.failed.append(name)
        lines = str(error).splitlines() or [""]
        said = f"FAILED: {type(error).__name__}: {lines[0]}"
        yield Row(f"{name}: the rest of this section", None, note=said, section=section.title)
        for threads, goal in left:
            check = f"{name}: a floor of this section"
            yield Row(check, None, "", threads, goal, note=said, section=section.title)


def heading(report: Report) -> list[str]:
    """The machine and the heads of the columns; 100 columns at most."""
    lines = [*table.machine_lines(), f"mmdp {__version__}, load at the start {report.load[0]}"]
    if report.options.quick:
        lines.append("quick trial: tiny sizes, so the figures say nothing about speed")
    return [*lines, "×: how often our time fits in the peer's; minima of interleaved runs", "",
            table.columns(report.verdicts).head()]  # fmt: skip


# ------------------------------------------------------------------ the page
def page(document: dict[str, Any]) -> str:
    """The machine and the table of a run as a Markdown page."""
    rows = [table.from_document(row) for row in document["rows"]]
    first, second = table.machine_lines(document["machine"])
    load = " and ".join(str(x) for x in document["load"])
    verdicts = not document["quick"]
    trial = [] if verdicts else ["**A quick trial on tiny sizes: no measure of speed.**", ""]
    return HEAD + "\n".join(
        [
            *trial,
            f"{first}, {document['machine']['memory_gb']} GB. {second[0].upper()}{second[1:]}, "
            f"mmdp {document['version']}. "
            f"Load at the start and the end of the run: {load}. "
            f"{sum(document['seconds'].values()):.0f} s in all. {table.summary(rows, verdicts)}.",
            "",
            table.markdown(rows, verdicts),
        ]
    )


# ------------------------------------------------------------------ the command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; the exit status."""
    given = _parser().parse_args(arguments)
    try:
        return _measure(given)
    except InputError as error:
        complain(str(error))
        return 2


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("out/bench"), metavar="FOLDER", help="where to write")
    add("--quick", action="store_true", help="a trial on tiny sizes, under a minute")
    add("--only", default="", metavar="A,B,...", help=f"only some of {', '.join(SECTIONS)}")
    add("--large", action="store_true", help="also a case of 200 million non-zeros (3 GB)")
    add("--gpu-json", type=Path, metavar="FILE", help="figures that benchmarks.gpu wrote elsewhere")
    add("--json", action="store_true", help="print one JSON document and nothing else")
    return parser


def _measure(given: argparse.Namespace) -> int:
    if given.gpu_json is not None and not given.gpu_json.is_file():
        raise InputError(
            f"{given.gpu_json}: no such file; write it with python -m benchmarks.gpu --json"
        )
    only = tuple(x.strip() for x in given.only.split(",") if x.strip())
    report = Report(Options(given.quick, given.large, only, given.gpu_json))
    report.options.chosen()
    given.out.mkdir(parents=True, exist_ok=True)
    show = (lambda line: None) if given.json else (lambda line: print(line, flush=True))
    try:
        with Steps(quiet=given.json) as steps:
            run(report, say=steps.say, show=show)
    except KeyboardInterrupt:
        report.write(given.out)
        complain(f"interrupted; what was measured is in {given.out}")
        return 130
    files = report.write(given.out)
    if report.options.whole:
        write_all({RESULTS: page(report.document())})
    if given.json:
        show_json({**report.document(), "files": list(files.values())})
    else:
        spent = sum(report.seconds.values())
        found = table.summary(report.rows, report.verdicts)
        print(f"\n{found}; {spent:.0f} s; written to {given.out / 'bench.md'}, .json and .png")
    if report.failed:
        complain(f"failed: {', '.join(report.failed)}; the last row of each says why")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
