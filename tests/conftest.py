"""Fixtures shared by the tests."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest

import mmdp

ROOT = Path(__file__).resolve().parents[1]
os.environ["MMDP_PROGRESS"] = "0"  # busy machines get no lines where tests read stderr


@pytest.fixture(scope="session")
def paper_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published CSV folders; written from the packaged models if they are not at hand."""
    data_path = os.environ.get("MMDP_PAPER_DATA")
    folder = Path(data_path) if data_path else ROOT.parent / "shared" / "data" / "cadp-uai2023"
    if data_path or folder.is_dir():
        return folder
    folder = tmp_path_factory.mktemp("published")
    for name in ("riverswim", "hiv"):
        train, test = mmdp.domains.load_published(name)
        mmdp.save(train, folder / name)
        mmdp.save(test, folder / name, split="test")
    for file in (ROOT / "tests" / "files").glob("*/*"):
        target = folder / file.parent.name / file.name.removesuffix(".xz")
        target.parent.mkdir(exist_ok=True)
        content = file.read_bytes()
        target.write_bytes(lzma.decompress(content) if file.suffix == ".xz" else content)
    return folder
