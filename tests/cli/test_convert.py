"""mmdp convert."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mmdp
from tests.cli.calls import refused, run


def test_models_in_every_format_are_the_same(folder: Path, tmp_path: Path) -> None:
    before = mmdp.load(folder)
    data = folder
    for out, options in (
        ("models.npz", ()),
        ("parts", ("--parts", 2)),
        ("tables", ("--parts", 2, "--format", "parquet")),
        ("one.parquet", ()),
        ("plain", ()),
        ("models.pomdpx", ()),
    ):
        assert run("convert", data, "--out", tmp_path / out, *options).code == 0
        data = tmp_path / out
        np.testing.assert_array_equal(mmdp.load(data).transitions, before.transitions)
        np.testing.assert_allclose(mmdp.load(data).weights, before.weights, rtol=1e-14)
    assert len(list((tmp_path / "tables").glob("part-*.parquet"))) == 2


def test_what_cannot_be_written_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "give --parts" in refused("convert", folder, "--out", tmp_path / "x", "--format", "npz")
    told = refused("convert", folder, "--out", tmp_path / "x", "--parts", 99)
    assert "models cannot be divided into 99 parts" in told
    assert "unknown suffix '.xls'" in refused("convert", folder, "--out", tmp_path / "a.xls")
