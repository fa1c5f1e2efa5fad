"""What solves gave before is what they give now (see tests/golden.py)."""

from __future__ import annotations

import json

import pytest

from tests import golden


@pytest.mark.parametrize("every", [48, pytest.param(golden.THIN, marks=pytest.mark.slow)])
def test_solves_give_what_they_gave(every: int) -> None:
    known = json.loads(golden.FILE.read_text(encoding="utf-8"))
    for name, row in golden.rows(every).items():
        kept = known[name]
        assert row.keys() == kept.keys(), name
        if "refused" in row:
            assert row["refused"] == kept["refused"], name
            continue
        size = abs(kept["value"]) + kept["spread"]
        for what in ("value", "spread"):
            assert row[what] == pytest.approx(kept[what], abs=1e-9 * size), (name, what)
        assert (row["status"], row["policy"]) == (kept["status"], kept["policy"]), name
