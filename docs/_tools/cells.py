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
PLACE = re.compile(r"(<!-- cell (\S+): ([^>]+?) -->\n).*?(<!-- end -->)", re.S)


def cells(script: Path) -> dict[str, str]:
    """Code by the name of its cell; what stands before the first is left out."""
    parts = re.split(r"^# %% (.+)\n", script.read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], (part.strip("\n") for part in parts[2::2]), strict=True))


def run(script: Path, out: Path, last: str = "") -> tuple[dict[str, str], dict[str, Any]]:
    """What each cell prints when the script runs with the folder ``out`` as its argument.

    Also the names it leaves behind. It stops after the cell ``last``.
    """
    printed: dict[str, str] = {}
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    before, sys.argv = sys.argv, [script.name, str(out)]
    try:
        for name, code in cells(script).items():
            text = io.StringIO()
            with contextlib.redirect_stdout(text):
                exec(compile(code, f"{script.name}, cell {name}", "exec", dont_inherit=True), names)
            printed[name] = "\n".join(x.rstrip() for x in text.getvalue().rstrip().split("\n"))
            if name == last:
                break
    finally:
        sys.argv = before
    return printed, names


def scripts(page: Path) -> list[str]:
    """The scripts that a page shows."""
    return list(dict.fromkeys(x[1] for x in PLACE.findall(page.read_text(encoding="utf-8"))))


def refreshed(page: Path, out: Path) -> str:
    """The page as it should be: every cell as the script has it and prints it now."""
    code = {name: cells(ROOT / name) for name in scripts(page)}
    printed = {name: run(ROOT / name, out / Path(name).stem)[0] for name in scripts(page)}

    def fill(found: re.Match[str]) -> str:
        head, script, cell, end = found.groups()
        text = f"{head}```python\n{code[script][cell]}\n```\n"
        output = printed[script][cell]
        return text + (f"\n```text\n{output}\n```\n" if output else "") + end

    return PLACE.sub(fill, page.read_text(encoding="utf-8"))


def main(check: bool) -> int:
    stale = 0
    for page in sorted(PAGES.glob("*.md")):
        if not scripts(page):
            continue
        with tempfile.TemporaryDirectory() as out:
            text = refreshed(page, Path(out))
        if text != page.read_text(encoding="utf-8"):
            stale += 1
            print(f"{page.name}: {'differs from its script' if check else 'refreshed'}")
            if not check:
                page.write_text(text, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
