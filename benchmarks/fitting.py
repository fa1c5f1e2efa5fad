"""Models from a long log: seconds and peak memory of a fit, by the form of the log.

    python -m benchmarks.fitting --rows 1000000            # a table
    python -m benchmarks.fitting --rows 100000 --json      # the same for programs

"fit" is :func:`mmdp.fit`, "folder" what ``mmdp fit`` does: the same and the models written as CSV.
Every form runs in a process of its own. The size of the table is that of the DataFrame with the
same columns; the peak is what the process holds beyond what it held before reading (resident
memory, Linux). The log is written before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FORMS = ("frame", "csv", "parquet", "labels.csv", "labels.parquet")
SECONDS, RATIO = 10.0, 4.0  # floors for a million rows on two cores
STATES, ACTIONS, STEPS = 50, 4, 20


def make_log(rows: int, labels: bool):  # type: ignore[no-untyped-def]
    """A random walk of ``rows`` rows as a DataFrame: ids, or labels in text."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(0)
    state = rng.integers(STATES, size=rows)
    frame = pd.DataFrame(
        {
            "episode": np.arange(rows) // STEPS,
            "time": np.arange(rows) % STEPS,
            "state": state,
            "action": rng.integers(ACTIONS, size=rows),
            "next_state": (state + rng.integers(10, size=rows)) % STATES,
            "reward": rng.normal(size=rows),
        }
    )
    if labels:
        names = np.array([f"place {i:03}" for i in range(STATES)], dtype=object)
        for column in ("state", "next_state"):
            frame[column] = names[frame[column]]
        frame["action"] = np.array([f"move {i}" for i in range(ACTIONS)], dtype=object)[
            frame["action"]
        ]
    return frame


def write(frame, folder: Path, form: str) -> Path:  # type: ignore[no-untyped-def]
    path = folder / f"log.{form.split('.')[-1]}"
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    return path


def status(field: str) -> int:
    """Bytes that the system reports: VmRSS is in memory now, VmHWM the most there has been."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak() -> None:
    """Let VmHWM begin again from what is in memory now."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(what: str, form: str, rows: int, models: int, path: str) -> dict[str, float]:
    """Fit in this process; ``path`` has the log, and is empty if the form is a frame."""
    from mmdp.posterior import fit, fit_folder

    log = path or make_log(rows, False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # what a first fit imports and allocates once belongs to the program, not to the log
        small = make_log(1000, form.startswith("labels"))
        fit_folder(write(small, folder, form) if path else small, folder / "first", models=2)
        forget_peak()
        before, start = status("VmRSS"), time.perf_counter()
        if what == "fit":
            fit(log, models=models)
        else:
            fit_folder(log, folder / "models", models=models)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "peak": status("VmHWM") - before}


def run(form: str, rows: int, models: int = 200) -> dict[str, float]:
    """One form: the fit, and the fit written as a folder, in a fresh process each."""
    frame = make_log(rows, form.startswith("labels"))
    size = int(frame.memory_usage(deep=True, index=False).sum())
    found: dict[str, float] = {"table": size}
    with tempfile.TemporaryDirectory() as folder:
        path = "" if form == "frame" else str(write(frame, Path(folder), form))
        del frame
        for what in ("fit", "folder"):
            part = _fresh([what, form, path], ["--rows", str(rows), "--models", str(models)])
            found[f"{what}_seconds"] = part["seconds"]
            # a frame was there before
            found[f"{what}_ratio"] = part["peak"] / size + (form == "frame")
    return found


def _fresh(measured: list[str], sizes: list[str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fitting", "--measure", *measured, *sizes],
        capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--form", action="append", choices=FORMS, help="one form (repeatable)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.measure:
        what, form, path = given.measure
        print(json.dumps(measure(what, form, given.rows, given.models, path)))
        return 0
    found = {form: run(form, given.rows, given.models) for form in given.form or FORMS}
    if given.json:
        print(json.dumps({"rows": given.rows, "models": given.models, "forms": found}, indent=1))
        return 0
    print(
        f"{given.rows:,} rows, {given.models:,} models; the floors for a million rows are "
        f"{SECONDS:g} s and {RATIO:g} times the table"
    )
    print(f"{'form':16}{'table MB':>10}{'fit s':>8}{'peak':>8}{'folder s':>10}{'peak':>8}")
    for form, x in found.items():
        print(
            f"{form:16}{x['table'] / 1e6:10.1f}{x['fit_seconds']:8.2f}{x['fit_ratio']:7.2f}x"
            f"{x['folder_seconds']:10.2f}{x['folder_ratio']:7.2f}x"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
