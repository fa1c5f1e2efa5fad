"""Models, their files and a policy, shared by the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import mmdp
from tests.cli.calls import DISCOUNT, HORIZON, make_model, write_models


@pytest.fixture(scope="session")
def train() -> mmdp.MMDP:
    return make_model(5, seed=1)


@pytest.fixture(scope="session")
def test() -> mmdp.MMDP:
    return make_model(7, seed=2)


@pytest.fixture(scope="session")
def folder(train: mmdp.MMDP, test: mmdp.MMDP, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    write_models(train, path / "training.csv")
    write_models(test, path / "test.csv")
    (path / "initial.csv").write_text("idstate,probability\n0,0.5\n1,0.25\n2,0.25\n")
    (path / "parameters.csv").write_text(f"parameter,value\ndiscount,{DISCOUNT}\n")
    return path


@pytest.fixture(scope="session")
def policy_file(folder: Path, train: mmdp.MMDP, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("policy") / "policy.csv"
    mmdp.save_policy(mmdp.solve(train, HORIZON, "wsu").policy, out)
    return out
