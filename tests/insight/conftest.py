"""One browser for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    program = chromium.find()
    if program is None:
        pytest.skip("no chromium here; make browser installs it")
    chrome = chromium.Chromium(program, tmp_path_factory.mktemp("chromium"))
    chrome.set_screen()
    yield chrome
    chrome.close()
