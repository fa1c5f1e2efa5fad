"""The pages: their commands run, their code is what the examples print, their links lead somewhere.

Blocks of ``>>>`` lines run as doctests (pytest collects README.md and docs/); here are the shell
blocks, the scripts of examples/ and the site itself.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import mmdp
from mmdp.cli.app import app
from tests.cli.calls import QUICK_DEFAULTS
from tests.conftest import ROOT
from tests.shell import list_commands, write_log

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
BLOCK_LANGUAGES = {
    "sh",
    "bash",
    "python",
    "console",
    "text",
    "json",
    "csv",
    "bibtex",
}  # the last four are only shown


def list_blocks(text: str, language: str) -> list[str]:
    return [code for block_language, code in FENCE.findall(text) if block_language == language]


def load_tool(name: str) -> ModuleType:
    """A module of docs/_tools, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "_tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cells = load_tool("cells")
WITH_SCRIPTS = [page for page in PAGES if cells.list_scripts(page)]
LONG_PAGES = {  # every method on three problems, a car on a hill, many solves or episodes
    "choose-a-method.md",
    "from-your-function-to-a-decision.md",
    "walk-through-inventory.md",
    "walk-through-rl.md",
}


# ------------------------------------------------------------------ code
def test_every_block_has_a_checked_language() -> None:
    for name, text in TEXT.items():
        assert text.count("\n```") == 2 * len(FENCE.findall(text)), f"{name}: an open block"
        assert {language for language, _ in FENCE.findall(text)} <= BLOCK_LANGUAGES, name


@pytest.mark.parametrize("name", TEXT)
def test_python_is_a_doctest_or_a_cell_of_a_script(name: str) -> None:
    """Code that is neither would be run by nothing."""
    page = next(page for page in PAGES if page.name == name)
    script_cells = {code for script in cells.list_scripts(page) for code in _list_cells(script)}
    for code in list_blocks(TEXT[name], "python"):
        assert code.startswith(">>> ") or code.strip("\n") in script_cells, f"{name}: {code[:60]}"


def _list_cells(script: str) -> list[str]:
    return list(cells.read_cells(ROOT / script).values())


@pytest.mark.parametrize(
    "page",
    [pytest.param(x, marks=[pytest.mark.slow] * (x.name in LONG_PAGES)) for x in WITH_SCRIPTS],
    ids=lambda page: page.name,
)
def test_scripts_print_what_the_pages_show(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their reports hold what is asked for; nothing that is printed depends on the rest."""
    monkeypatch.setattr(mmdp.report, "write", partial(mmdp.report.write, time_limit=0))
    expected = cells.refresh_page(page, tmp_path)
    assert TEXT[page.name] == expected, "run: python docs/_tools/cells.py"


def test_every_example_is_shown_and_short() -> None:
    shown_scripts = {script for page in WITH_SCRIPTS for script in cells.list_scripts(page)}
    assert shown_scripts == {f"examples/{file.name}" for file in (ROOT / "examples").glob("*.py")}
    method = cells.read_cells(ROOT / "examples" / "new_method.py")["method"]
    assert len(method.splitlines()) <= 40  # "a new method in 40 lines"


def test_examples_take_their_folder_as_argument() -> None:
    for name in ("hiv", "inventory", "cost_effectiveness", "rl"):
        tree = ast.parse((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8"))
        assert f"python examples/{name}.py OUT" in (ast.get_docstring(tree) or "")


# ------------------------------------------------------------------ commands
WITH_COMMANDS = [name for name in TEXT if name != "README.md" and list_commands(TEXT[name])]


def run_command(line: str) -> tuple[int, str]:
    """Exit status and all that a command prints, here; reports hold what is asked for."""
    if not line.startswith("mmdp "):
        completed = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, check=False
        )
        return completed.returncode, completed.stdout + completed.stderr
    command, _, file = line.partition(" > ")
    result = CliRunner(env={"COLUMNS": "80"}).invoke(
        app, shlex.split(command)[1:], default_map=QUICK_DEFAULTS
    )
    if file:
        Path(file).write_text(result.stdout, encoding="utf-8")
    return result.exit_code, result.stderr + ("" if file else result.stdout)


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_commands_run_in_an_empty_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.csv")
    for line in list_commands(TEXT[name]):
        code, printed = run_command(line)
        assert code == 0, f"{line}: {printed}"
        assert printed.strip(), line


def list_dialogue(text: str) -> list[tuple[str, str]]:
    """(command, what it prints), in the order of the page."""
    pairs: list[tuple[str, str]] = []
    for block in list_blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, printed = part.partition("\n")
            pairs.append((command, " ".join(printed.split())))
    return pairs


@pytest.mark.parametrize("name", [name for name in TEXT if list_dialogue(TEXT[name])])
def test_dialogues_are_what_the_program_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command, expected in list_dialogue(TEXT[name]):
        code, printed = run_command(command)
        assert " ".join(printed.split()) == expected, command
        assert (code == 2) == expected.startswith("mmdp: "), command


# ------------------------------------------------------------------ links and the site
def list_anchors(text: str) -> set[str]:
    """Anchors of the headings of a page, as GitHub and mkdocs make them."""
    prose = FENCE.sub("", text)
    titles = re.findall(r"^#+ (.+)$", prose, re.M)
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    named = {re.sub(r"[ ]+", "-", title.strip()) for title in slugs}
    return named | set(re.findall(r"^::: (\S+)$", prose, re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = FENCE.sub("", TEXT[page.name])
    for target in re.findall(r"\]\(\s*([^)\s]+)\s*\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.is_file(), f"{page.name}: {target}"
        if anchor:
            assert anchor in list_anchors(file.read_text(encoding="utf-8")), (
                f"{page.name}: {target}"
            )


@pytest.mark.parametrize("pictures", ["blank", pytest.param("drawn", marks=pytest.mark.slow)])
def test_the_site_builds_without_warnings(pictures: str, tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings_handlers.python", reason="mkdocs is not here; make docs")
    completed = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "MMDP_PICTURES": pictures},
    )
    output = completed.stdout + completed.stderr
    assert completed.returncode == 0, output
    assert "WARNING" not in output
    page_names = {file.stem for file in (tmp_path / "site").glob("*.html")} - {"404"}
    assert page_names == {page.stem for page in PAGES if page.name != "README.md"}
    _check_reference((tmp_path / "site" / "api.html").read_text(encoding="utf-8"))
    assert not (tmp_path / "site" / "_tools").exists()
    small = {file.name for file in (tmp_path / "site").glob("*.svg") if file.stat().st_size < 1000}
    assert small == (set(load_tool("pictures").PICTURES) if pictures == "blank" else set())


def _check_reference(page: str) -> None:
    """Docstrings arrived as text and code, and every name that is asked for is there."""
    for name in re.findall(r"^::: (\S+)$", TEXT["api.md"], re.M):
        assert f'id="{name}"' in page, name
    words = re.sub(r"<[^>]+>", "", page)
    assert ":func:" not in words
    assert ":class:" not in words
    assert "<blockquote>" not in page  # >>> that no fence protects


def test_the_reference_has_every_public_name() -> None:
    documented = {
        name.rsplit(".", 1)[1] for name in re.findall(r"^::: (\S+)$", TEXT["api.md"], re.M)
    }
    public_names = {
        name for name in mmdp.__all__ if not isinstance(getattr(mmdp, name), ModuleType)
    }
    public_names |= {method.__name__ for method in mmdp.methods.METHODS.values()}
    public_names |= set(mmdp.economics.__all__) | set(mmdp.interop.__all__)
    assert public_names - {"InputError", "__version__"} <= documented
