"""mmdp domain."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mmdp
from tests.cli.calls import COLUMNS, fits, refused, run


def test_domain_writes_what_the_library_draws(tmp_path: Path) -> None:
    out = tmp_path / "new" / "hiv"
    done = run(
        "domain", "hiv", "--out", out, "--seed", 4, "--models", 3, "--test-models", 2
    )  # fmt: skip
    assert done.code == 0
    drawn = mmdp.domains.hiv(n_train=3, n_test=2, seed=4)
    for split, model in zip(("train", "test"), drawn, strict=True):
        read = mmdp.load(out, split=split)
        np.testing.assert_allclose(read.transitions, model.transitions, rtol=0, atol=1e-12)
        np.testing.assert_allclose(read.rewards, model.rewards, rtol=1e-12)
        np.testing.assert_allclose(read.initial, model.initial, rtol=0, atol=1e-12)
        assert read.discount == model.discount
    header = (out / "training.csv").read_text().splitlines()[0]
    assert header == COLUMNS


def test_domain_lists_itself() -> None:
    for arguments in ((), ("--list",)):
        done = run("domain", *arguments)
        assert all(name in done.out for name in mmdp.domains.DOMAINS)
        assert fits(done.out)
    assert set(run("domain", "--json").json["domains"]) == set(mmdp.domains.DOMAINS)


def test_domain_takes_the_options_of_the_domain(tmp_path: Path) -> None:
    options = ("--set", "n_states=7", "--set", "branching=2", "--models", 2)
    run("domain", "garnet", "--out", tmp_path, *options)
    assert mmdp.load(tmp_path).n_states == 7


def test_domain_refuses(tmp_path: Path) -> None:
    assert "did you mean 'riverswim'?" in refused("domain", "riverswin", "--out", tmp_path)
    assert "--out FOLDER" in refused("domain", "hiv")
    assert "no option of hiv is called 'x'" in refused(
        "domain", "hiv", "--out", tmp_path, "--set", "x=1"
    )
    garnet = ("domain", "garnet", "--out", tmp_path, "--set")
    assert "garnet" in refused(*garnet, "concentration=high")
    assert "KEY=VALUE" in refused("domain", "hiv", "--out", tmp_path, "--set", "x")
    assert "at least 1" in refused("domain", "hiv", "--out", tmp_path, "--models", 0)
    assert "seed must be a whole number of at least 0, not -1" in refused(
        "domain", "hiv", "--out", tmp_path, "--seed", -1
    )
    assert "expected a folder" in refused("domain", "hiv", "--out", tmp_path / "new.csv")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "pol.csv").write_text("x")
    message = refused("domain", "hiv", "--out", tmp_path / "pol.csv")
    assert "pol.csv: is a file; choose the name of a folder" in message
