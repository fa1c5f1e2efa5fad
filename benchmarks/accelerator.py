"""Rows of an accelerator: benchmarks/gpu.py in a process of its own, or its file from elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.table import Goal, Row

ROOT = Path(__file__).resolve().parents[1]
# (row of gpu.py, its figure, words, unit, goal)
HELD = (
    ("POP double, sweep", "ms", "POP float64, one sweep", "ms", Goal(3.0, 2.0, "most")),
    ("POP double, backward", "share", "POP float64 backward, share of copying", "%",
     Goal(0.55, 0.80)),
    ("20000 models double, backward", "share", "20,000 models backward, share of copying", "%",
     Goal(0.70, 0.85)),
)  # fmt: skip


def accelerator(given: Path | None, tiny: bool) -> Iterator[Row]:
    """The held figures, then all others with a time; without a device they are not run."""
    if given is not None:
        measured = json.loads(given.read_text(encoding="utf-8"))
    elif not device_here():
        for *_, check, unit, goal in HELD:
            note = "no GPU with jax here; --gpu-json FILE takes what gpu.py wrote elsewhere"
            yield Row(f"GPU: {check}", None, unit, None, goal, note=note)
        return
    else:
        measured = _run(tiny)
    yield from rows_of(measured)


def rows_of(measured: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a file of gpu.py."""
    found = {row["row"]: row for row in measured["rows"]}
    device = measured["machine"]["device"].removeprefix("NVIDIA ")
    for name, figure, check, unit, goal in HELD:
        value = found.get(name, {}).get(figure)
        note = _note(found[name]) if name in found else "not in the file of gpu.py"
        yield Row(f"{device}: {check}", value, unit, None, goal, note=note)
    for name, row in found.items():
        if "ms" in row and (name, "ms") not in {held[:2] for held in HELD}:
            yield Row(f"{device}: {name}"[:60], row["ms"], "ms", None, note=_note(row))


def _note(row: Mapping[str, Any]) -> str:
    parts = []
    if "gb_s" in row:
        parts.append(f"{row['gb_s']:.0f} GB/s")
    if "share" in row:
        parts.append(f"{100 * row['share']:.0f}% of copying")
    if "ratio" in row:
        parts.append(f"{row['ratio']:.1f} × faster than numba on {row['threads']} threads")
    if "times_plain" in row:
        parts.append(f"{row['times_plain']:.2f} × the plain call")
    if "times_faster_than_separate" in row:
        parts.append(f"{row['times_faster_than_separate']:.1f} × faster than separately")
    return ", ".join(parts)


def device_here() -> bool:
    """Whether jax sees an accelerator; asked in another process, which then lets go of it."""
    code = "import jax, sys; sys.exit(jax.devices()[0].platform == 'cpu')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return done.returncode == 0


def _run(tiny: bool) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gpu.json"
        command = [sys.executable, "-m", "benchmarks.gpu", "--json", str(file)]
        done = subprocess.run(
            [*command, *["--tiny"] * tiny],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        if not file.is_file():
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise RuntimeError(f"benchmarks/gpu.py: {lines[-1]}")
        return json.loads(file.read_text(encoding="utf-8"))
