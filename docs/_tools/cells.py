"""The scripts of examples/ in the pages: their code, cell by cell, with what it prints.

    python docs/_tools/cells.py            # run the scripts and put code and output into the pages
    python docs/_tools/cells.py --check    # report pages that differ from their script

A script is cut at lines ``# %% name``. A page holds ``<!-- cell examples/hiv.py: name -->``, then
what this tool writes, then ``<!-- end -->``.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs"
CELL_PATTERN = re.compile(r"(<!-- cell (\S+): ([^>]+?) -->\n).*?(<!-- end -->)", re.S)


def read_cells(script: Path) -> dict[str, str]:
    """Read the code of each cell of a script, by name; code before the first cell is left out."""
    parts = re.split(r"^# %% (.+)\n", script.read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], (part.strip("\n") for part in parts[2::2]), strict=True))


def run_script(script: Path, out: Path, last: str = "") -> tuple[dict[str, str], dict[str, Any]]:
    """Run a script with the folder ``out`` as its argument, up to the cell ``last``.

    Returns:
        The output of each cell by name, and the global variables of the script.
    """
    printed: dict[str, str] = {}
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    before, sys.argv = sys.argv, [script.name, str(out)]
    try:
        for name, code in read_cells(script).items():
            text = io.StringIO()
            with contextlib.redirect_stdout(text):
                exec(compile(code, f"{script.name}, cell {name}", "exec", dont_inherit=True), names)
            printed[name] = "\n".join(x.rstrip() for x in text.getvalue().rstrip().split("\n"))
            if name == last:
                break
    finally:
        sys.argv = before
    return printed, names


def list_scripts(page: Path) -> list[str]:
    """List the scripts that a page shows."""
    return list(dict.fromkeys(x[1] for x in CELL_PATTERN.findall(page.read_text(encoding="utf-8"))))


def refresh_page(page: Path, out: Path) -> str:
    """Return the text of a page with the current code and output of every cell."""
    code = {name: read_cells(ROOT / name) for name in list_scripts(page)}
    printed = {
        name: run_script(ROOT / name, out / Path(name).stem)[0] for name in list_scripts(page)
    }

    def fill(found: re.Match[str]) -> str:
        head, script, cell, end = found.groups()
        text = f"{head}```python\n{code[script][cell]}\n```\n"
        output = printed[script][cell]
        return text + (f"\n```text\n{output}\n```\n" if output else "") + end

    return CELL_PATTERN.sub(fill, page.read_text(encoding="utf-8"))


def main(check: bool) -> int:
    stale = 0
    for page in sorted(PAGES.glob("*.md")):
        if not list_scripts(page):
            continue
        with tempfile.TemporaryDirectory() as out:
            text = refresh_page(page, Path(out))
        if text != page.read_text(encoding="utf-8"):
            stale += 1
            print(f"{page.name}: {'differs from its script' if check else 'refreshed'}")
            if not check:
                page.write_text(text, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
