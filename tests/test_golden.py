"""What solves gave before is what they give now (see tests/golden.py)."""

from __future__ import annotations

import json

import pytest

from tests import golden


@pytest.mark.parametrize("every", [48, pytest.param(golden.EVERY_NTH, marks=pytest.mark.slow)])
def test_solves_give_what_they_gave(every: int) -> None:
    golden_rows = json.loads(golden.FILE.read_text(encoding="utf-8"))
    for name, row in golden.compute_rows(every).items():
        saved_row = golden_rows[name]
        assert row.keys() == saved_row.keys(), name
        if "refused" in row:
            assert row["refused"] == saved_row["refused"], name
            continue
        size = abs(saved_row["value"]) + saved_row["spread"]
        for field in ("value", "spread"):
            assert row[field] == pytest.approx(saved_row[field], abs=1e-9 * size), (name, field)
        assert (row["status"], row["policy"]) == (saved_row["status"], saved_row["policy"]), name
