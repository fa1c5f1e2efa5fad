"""The package as users get it: built, installed into a clean environment, and run there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import mmdp
from tests.conftest import ROOT


def test_version_and_pythons_agree_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited is not None
    assert cited[1] == mmdp.__version__
    assert f"## {mmdp.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    pythons = [x.rpartition(" ")[2] for x in project["classifiers"] if ":: 3." in x]
    assert project["requires-python"] == f">={pythons[0]}"
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert f"python: {pythons}".replace("'", '"') in workflow


def run_clean(*words: str | Path, **options: object) -> str:
    """Run with no trace of this checkout or its environment; the output."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    completed = subprocess.run(
        [str(x) for x in words], env=env, text=True, capture_output=True, check=False, **options
    )  # type: ignore[call-overload]
    assert completed.returncode == 0, f"{words}: {completed.stderr[-2000:]}"
    return completed.stdout


def make_environment(folder: Path) -> Path:
    """The python of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


@pytest.fixture(scope="module")
def built_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel, made from the files that git would publish."""
    folder = tmp_path_factory.mktemp("package")
    python = make_environment(folder / "builder")
    git_files = subprocess.run(
        [str(python), "-m", "pip", "-q", "install", "build"], capture_output=True, check=False
    )
    if git_files.returncode:
        pytest.skip("pip reaches no index")
    listed = run_clean(
        "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT
    )
    source = folder / "source"
    for name in filter(None, listed.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
    run_clean(python, "-m", "build", "--outdir", folder / "dist", source)
    return folder / "dist"


@pytest.mark.slow
def test_what_is_in_the_packages(built_packages: Path) -> None:
    with zipfile.ZipFile(next(built_packages.glob("*.whl"))) as archive:
        wheel = archive.namelist()
    with tarfile.open(next(built_packages.glob("*.tar.gz"))) as source:
        sdist = source.getnames()
    module_paths = {
        x.relative_to(ROOT / "src").as_posix() for x in (ROOT / "src/mmdp").rglob("*.py")
    }
    assert module_paths <= set(wheel)
    for pattern in ("*.html.j2", "*.css", "*.js", "domains/data/*.npz", "py.typed"):
        files = list((ROOT / "src/mmdp").rglob(pattern))
        assert files
        assert {x.relative_to(ROOT / "src").as_posix() for x in files} <= set(wheel)
    assert not [x for x in wheel if x.startswith(("tests", "docs", "benchmarks"))]
    assert any(x.endswith("/src/mmdp/data/domains/data/LICENSE") for x in sdist)


@pytest.mark.slow
def test_it_installs_into_a_clean_environment_and_runs(
    built_packages: Path, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "clean")
    run_clean(
        python, "-m", "pip", "-q", "install", next(built_packages.glob("*.whl")), cwd=tmp_path
    )
    command = python.parent / "mmdp"
    assert run_clean(command, "--version").strip() == f"mmdp {mmdp.__version__}"
    module_path = run_clean(python, "-c", "import mmdp; print(mmdp.__file__)", cwd=tmp_path)
    assert str(tmp_path) in module_path
    run_clean(command, "domain", "riverswim", "--n-models", "5", "--out", "rs", cwd=tmp_path)
    run_clean(command, "report", "rs", "-T", "5", "--out", "page.html", cwd=tmp_path)
    assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    output = run_clean(command, "info", cwd=tmp_path)
    assert "numba     works" in output
    assert "jax not installed" in output
    reinstall = ("install", "--force-reinstall", "--no-deps")
    run_clean(
        python, "-m", "pip", "-q", *reinstall, next(built_packages.glob("*.tar.gz")), cwd=tmp_path
    )
    assert run_clean(command, "--version").strip() == f"mmdp {mmdp.__version__}"
