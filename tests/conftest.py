"""Fixtures shared by the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def paper_data() -> Path:
    """The folder of the data published with the paper; skips where it is absent."""
    given = os.environ.get("MMDP_PAPER_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data" / "cadp-uai2023"
    if not folder.is_dir():
        pytest.skip(f"published data not found at {folder}; set MMDP_PAPER_DATA to its folder")
    return folder
