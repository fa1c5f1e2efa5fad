"""mmdp domain."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mmdp
from tests.cli.calls import COLUMNS, fits_width, run, run_refused


def test_domain_writes_what_the_library_samples(tmp_path: Path) -> None:
    out = tmp_path / "new" / "hiv"
    result = run("domain", "hiv", "--out", out, "--seed", 4, "--n-models", 3, "--n-test-models", 2)
    assert result.code == 0
    domain = mmdp.domains.hiv(n_train=3, n_test=2, seed=4)
    for split, model in zip(("train", "test"), domain, strict=True):
        read = mmdp.load(out, split=split)
        np.testing.assert_allclose(read.transitions, model.transitions, rtol=0, atol=1e-12)
        np.testing.assert_allclose(read.rewards, model.rewards, rtol=1e-12)
        np.testing.assert_allclose(read.initial, model.initial, rtol=0, atol=1e-12)
        assert read.discount == model.discount
    header = (out / "training.csv").read_text().splitlines()[0]
    assert header == COLUMNS


def test_domain_lists_itself() -> None:
    result = run("domain")
    assert all(name in result.out for name in mmdp.domains.DOMAINS)
    assert fits_width(result.out)
    assert set(run("domain", "--json").json["domains"]) == set(mmdp.domains.DOMAINS)


def test_domain_takes_the_options_of_the_domain(tmp_path: Path) -> None:
    options = ("--set", "n_states=7", "--set", "branching=2", "--n-models", 2)
    run("domain", "garnet", "--out", tmp_path, *options)
    assert mmdp.load(tmp_path).n_states == 7


def test_domain_refuses(tmp_path: Path) -> None:
    assert "did you mean 'riverswim'?" in run_refused("domain", "riverswin", "--out", tmp_path)
    assert "--out FOLDER" in run_refused("domain", "hiv")
    assert "no option of hiv is called 'x'" in run_refused(
        "domain", "hiv", "--out", tmp_path, "--set", "x=1"
    )
    garnet = ("domain", "garnet", "--out", tmp_path, "--set")
    assert "concentration" in run_refused(*garnet, "concentration=high")
    assert "KEY=VALUE" in run_refused("domain", "hiv", "--out", tmp_path, "--set", "x")
    assert "at least 1" in run_refused("domain", "hiv", "--out", tmp_path, "--n-models", 0)
    assert "seed must be a whole number of at least 0" in run_refused(
        "domain", "hiv", "--out", tmp_path, "--seed", -1
    )
    assert "expected a folder" in run_refused("domain", "hiv", "--out", tmp_path / "new.csv")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "pol.csv").write_text("x")
    message = run_refused("domain", "hiv", "--out", tmp_path / "pol.csv")
    assert "pol.csv: is a file; choose the name of a folder" in message
