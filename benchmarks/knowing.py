"""How many files know each special case: what should have one home.

python benchmarks/knowing.py         # the table
python benchmarks/knowing.py drift   # the files, and the lines in them

A file counts if its code says so; comments and docstrings do not. Files that read and write models
(``io/``, ``ecosystem/``, ``model.py``) must know them all and are left out.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src" / "mmdp"
LEFT_OUT = ("io", "ecosystem", "model.py")
KNOWS = {
    "drift": r"\bdrifts?\b|problem\.apart\b",
    "parts": r"\.part\b|problem import.*\bPart\b|\bmodels_here\b",
    "a policy's class": r"isinstance\([^#]*\b\w*Policy\b",
    "a kind's class": r"isinstance\([^#]*\b(Markov|Memory|Stationary|Tied|Monotone|Fixed|Belief)\b",
    "Ctrl-C": r"KeyboardInterrupt|SIGINT|\bEARLY\b",
    "objective == Mean()": r"[=!]= Mean\(\)|isinstance\([^#]*\bMean\b",
}


def code(file: Path) -> dict[int, str]:
    """The lines of a file by number, without comments and docstrings."""
    text = file.read_text(encoding="utf-8")
    lines = {n: line.split("  # ")[0] for n, line in enumerate(text.splitlines(), 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for n in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines.pop(n, None)
    return {n: line for n, line in lines.items() if not line.lstrip().startswith("#")}


def known() -> dict[str, dict[str, list[int]]]:
    """The lines by what they know and by file."""
    files = [x for x in sorted(SRC.rglob("*.py")) if x.relative_to(SRC).parts[0] not in LEFT_OUT]
    lines = {str(x.relative_to(SRC)): code(x) for x in files}
    found = {
        what: {file: [n for n, line in text.items() if re.search(pattern, line)]
               for file, text in lines.items()}
        for what, pattern in KNOWS.items()
    }  # fmt: skip
    return {what: {file: n for file, n in by.items() if n} for what, by in found.items()}


if __name__ == "__main__":
    found = known()
    for what in sys.argv[1:]:
        for name in (x for x in found if what in x):
            for file, numbers in found[name].items():
                print(f"{name:20} {file:32} {' '.join(map(str, numbers))}")
    if not sys.argv[1:]:
        for what, files in found.items():
            print(f"{what:20} {len(files):3} files")
