"""Every test presses Ctrl-C for the first time."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _first_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdp.clock._answered", False)
