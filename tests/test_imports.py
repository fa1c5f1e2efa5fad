"""Imports go one way: down the list of rooms, never up, never in a circle."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import mmdp
from tests.conftest import ROOT

# From the bottom up. A module may import those below it, and others of its line as long as no
# circle comes about. "mmdp" is the package itself: the public names and modules.
PUBLIC_MODULES = {file.stem for file in Path(mmdp.__file__).parent.glob("[a-z]*.py")}
STOREYS = ("core", "data", "insight", "cli")
ROOM_ORDER = (
    ("_version", "core", "data", "insight"),  # the packages themselves: empty
    (
        "core.arguments",
        "core.text",
        "core.errors",
        "core.timing",
        "core.shapes",
    ),
    ("core.kernels",),
    ("core.transitions", "core.validate", "core.model"),
    ("core.objectives", "core.policies", "core.identity"),
    ("core.solution", "core.evaluate"),
    ("core.search",),
    ("core.bounds",),
    ("core.methods",),
    ("core.simulate",),
    ("core.certificate", "core.checkpoint", "core.solve", "core.workers"),
    ("core.distributed", "core.testing"),
    ("data.schema", "data.sampling"),
    ("data.io", "data.domains", "data.posterior", "data.interop", "data.functions"),
    (
        "insight.draw",
        "insight.study",
        "insight.measures",
        "insight.economics",
        "insight.plots",
        "insight.pages",
        "insight.report",
        "insight.exports",
    ),
    ("mmdp",),
    ("insight.paper",),
    ("cli", "__main__"),
)

# Imports inside a function that may go up, with the reason: (module, room).
ALLOWED_LAZY: dict[tuple[str, str], str] = {
    ("mmdp.core.kernels.prepared", "core.kernels"): "compiled code loads when it is first used",
    ("mmdp.core.kernels.problem", "core.kernels"): "a storage prepares itself, above the arrays",
    ("mmdp.core.model", "data.posterior"): "a log is read as fit reads it",
    ("mmdp.core.policies.restricted", "data.io"): "groups may be given as a file",
    ("mmdp.core.policies.tree", "data.io"): "features may be given as a file",
    ("mmdp.core.policies.base", "insight.draw"): "notebooks show a policy as a map",
    (
        "mmdp.core.policies.controller",
        "insight.draw",
    ): "notebooks show a flow chart",
    ("mmdp.core.methods.belief_grid", "insight.draw"): "notebooks show a policy as a map",
    ("mmdp.core.checkpoint", "data.io"): "a checkpoint is a policy file",
}


class Import(NamedTuple):
    """One module imports another; ``lazy``: inside a function."""

    source: str
    target: str
    line: int
    lazy: bool


def list_modules(package: Path) -> dict[str, Path]:
    """Dotted name to file."""
    file_by_module = {}
    for file in sorted(package.rglob("*.py")):
        parts = [package.name, *file.relative_to(package).with_suffix("").parts]
        file_by_module[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return file_by_module


def list_imports(package: Path) -> list[Import]:
    """Every import between modules of the package, but for those that only type checkers see."""
    modules = list_modules(package)
    return [
        Import(name, target, line, lazy)
        for name, file in modules.items()
        for target, line, lazy in _iter_imports(ast.parse(file.read_text(encoding="utf-8")), False)
        for target in [_module(target, modules)]
        if target not in ("", name)
    ]


def _iter_imports(node: ast.AST, lazy: bool) -> Iterator[tuple[str, int, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "write imports in full"
            yield from ((f"{child.module}.{x.name}", child.lineno, lazy) for x in child.names)
        inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _iter_imports(child, lazy or inside)


def _module(name: str, modules: Mapping[str, Path]) -> str:
    """The module that an import loads: the name itself, or the module that holds the name."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def get_room(module: str) -> str:
    """``mmdp.data.io.tables`` is in room ``data.io``; public modules are in ``mmdp``."""
    package, *parts = module.split(".")
    if parts[:1] and parts[0] in STOREYS[:3]:
        return ".".join(parts[:2])
    if package == "mmdp" and len(parts) == 1 and parts[0] in PUBLIC_MODULES:
        return "mmdp"
    return parts[0] if parts else package


def find_wrong_imports(
    imports: Sequence[Import], lines: Sequence[Sequence[str]], lazy: Mapping[tuple[str, str], str]
) -> list[str]:
    """What goes up or round in a circle, a sentence each."""
    height = {room: i for i, line in enumerate(lines) for room in line}
    checked_imports = [
        x for x in imports if not (x.lazy and (x.source, get_room(x.target)) in lazy)
    ]
    errors = [
        f"{module} is in no line of the list of rooms"
        for module in sorted(
            {x.source for x in checked_imports} | {x.target for x in checked_imports}
        )
        if get_room(module) not in height
    ]
    errors += [
        f"{x.source}, line {x.line}: {x.target} is above it"
        for x in checked_imports
        if height.get(get_room(x.target), -1) > height.get(get_room(x.source), len(lines))
    ]
    between = [(get_room(x.source), get_room(x.target)) for x in checked_imports]
    return (
        errors + _find_cycle(between) + _find_cycle([(x.source, x.target) for x in checked_imports])
    )


def _find_cycle(edges: Sequence[tuple[str, str]]) -> list[str]:
    graph: dict[str, set[str]] = {}
    for source, target in edges:
        if source != target:
            graph.setdefault(source, set()).add(target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return ["in a circle: " + " <- ".join(error.args[1])]
    return []


# ---------------------------------------------------------------------- the package
def test_imports_go_down_only() -> None:
    imports = list_imports(Path(mmdp.__file__).parent)
    assert len(imports) > 300
    assert find_wrong_imports(imports, ROOM_ORDER, ALLOWED_LAZY) == []


def find_imports_between_tests(imports: Sequence[Import]) -> list[Import]:
    """Imports of one test module by another; what they share belongs in a helper."""
    return [x for x in imports if x.target.rpartition(".")[2].startswith("test_")]


def test_no_test_module_imports_another() -> None:
    imports = list_imports(ROOT / "tests")
    assert len(imports) > 30
    assert find_imports_between_tests(imports) == []


# ---------------------------------------------------------------------- the checker itself
def make_fake_package(folder: Path, files: Mapping[str, str]) -> list[Import]:
    """A package of three rooms, low, middle and high, with a few lines changed."""
    contents = {
        "__init__.py": "",
        "low.py": "import math\nfrom typing import TYPE_CHECKING\n",
        "middle/__init__.py": "from fake.middle.one import f\n",
        "middle/one.py": "from fake.low import x\nfrom fake.middle import two\n",
        "middle/two.py": "import fake.low\n",
        "high.py": "from fake import middle\ndef f():\n    from fake.middle.one import f\n",
    }
    for name, text in {**contents, **files}.items():
        file = folder / "fake" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return list_imports(folder / "fake")


FAKE_ROOM_ORDER = (("low",), ("middle", "fake"), ("high",))


def test_a_package_in_order_passes(tmp_path: Path) -> None:
    only_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fake.high\n"
    imports = make_fake_package(tmp_path, {"low.py": only_types})
    assert Import("fake.middle.one", "fake.middle.two", 2, False) in imports
    assert Import("fake.high", "fake.middle.one", 3, True) in imports
    assert find_wrong_imports(imports, FAKE_ROOM_ORDER, {}) == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"low.py": "import fake.high\n"}, "fake.low, line 1: fake.high is above it"),
        ({"low.py": "def f():\n    from fake import high\n"}, "line 2: fake.high is above it"),
        ({"low.py": "from fake.middle.two import x\n"}, "fake.middle.two is above it"),
        ({"middle/two.py": "import fake.middle.one\n"}, "in a circle: fake.middle"),
        ({"middle/two.py": "def f():\n    import fake.middle.one\n"}, "in a circle: fake.middle"),
        ({"other.py": "import fake.low\n"}, "fake.other is in no line"),
    ],
)
def test_a_cycle_or_an_upward_import_fails(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    errors = find_wrong_imports(make_fake_package(tmp_path, files), FAKE_ROOM_ORDER, {})
    assert any(message in text for text in errors), errors


def test_a_cycle_between_rooms_of_one_level_fails(tmp_path: Path) -> None:
    one_line = (("low", "middle", "fake", "high"),)
    assert find_wrong_imports(make_fake_package(tmp_path, {}), one_line, {}) == []
    imports = make_fake_package(tmp_path, {"low.py": "from fake import high\n"})
    assert any("in a circle" in text for text in find_wrong_imports(imports, one_line, {}))


def test_a_lazy_import_may_be_allowed_one_at_the_top_may_not(tmp_path: Path) -> None:
    allowed = {("fake.low", "high"): "a reason"}
    lazy = make_fake_package(tmp_path, {"low.py": "def f():\n    from fake import high\n"})
    assert find_wrong_imports(lazy, FAKE_ROOM_ORDER, allowed) == []
    at_the_top = make_fake_package(tmp_path, {"low.py": "from fake import high\n"})
    assert find_wrong_imports(at_the_top, FAKE_ROOM_ORDER, allowed) != []


def test_an_import_between_test_modules_is_found(tmp_path: Path) -> None:
    files = {"test_a.py": "", "middle/test_b.py": "from fake.test_a import x\n"}
    errors = find_imports_between_tests(make_fake_package(tmp_path, files))
    assert errors == [Import("fake.middle.test_b", "fake.test_a", 1, False)]
