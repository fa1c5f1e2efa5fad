"""mmdp info."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mmdp
from tests.cli.calls import run


def test_info(folder: Path, train: mmdp.MMDP) -> None:
    facts = run("info", folder).parse_facts()
    assert (facts["models"], facts["states"], facts["actions"]) == ("5", "3", "2")
    assert (facts["discount"], facts["horizon"], facts["weights"]) == ("0.9", "any", "uniform")
    assert (facts["initial"], facts["initial states"]) == ("given", "3 states")
    assert facts["not allowed"] == "0 of 6 state-action pairs"
    low, _, high = facts["rewards"].split()
    assert [float(low), float(high)] == pytest.approx(
        [train.rewards.min(), train.rewards.max()], rel=1e-5
    )


def test_info_says_that_models_begin_apart(tmp_path: Path) -> None:
    model = mmdp.MMDP(np.full((2, 3, 1, 3), 1 / 3), [[1.0]] * 3, initial=[[1, 0, 0], [0, 1, 0]])
    mmdp.save(model, tmp_path / "m.npz")
    assert run("info", tmp_path / "m.npz", "--json").json["initial_per_model"]


def test_info_tells_labels_masks_weights_and_time(tmp_path: Path) -> None:
    transitions = np.zeros((2, 2, 2, 2))
    transitions[:, :, 0, :] = 0.5
    transitions[:, 0, 1, :] = 0.5
    model = mmdp.MMDP(
        np.repeat(transitions[None], 3, axis=0),
        np.ones((3, 2, 2, 2)),
        weights=[0.25, 0.75],
        states=["well", "[bold]ill"],
        actions=["wait", "treat"],
        models=["a", "b"],
    )
    mmdp.save(model, tmp_path / "m.npz")
    facts, output = (
        run("info", tmp_path / "m.npz").parse_facts(),
        run("info", tmp_path / "m.npz", "--json"),
    )
    assert facts["states"] == "2: well, [bold]ill"
    listed = model.replace(states=["well, or so", "ill"])
    mmdp.save(listed, tmp_path / "listed.npz")
    assert run("info", tmp_path / "listed.npz").parse_facts()["states"] == "2: 'well, or so', ill"
    mmdp.save(model.replace(time_labels={"age": range(40, 43)}, unit="$"), tmp_path / "aged.npz")
    model_with_ages = run("info", tmp_path / "aged.npz")
    assert model_with_ages.parse_facts()["times"] == "age 40 to 42"
    assert model_with_ages.parse_facts()["rewards"] == "1 to $1"
    model_with_ages = run("info", tmp_path / "aged.npz", "--json")
    assert (model_with_ages.json["time_labels"], model_with_ages.json["unit"]) == (
        {"age": ["40", "41", "42"]},
        "$",
    )
    assert facts["horizon"] == "3 (time-varying)"
    assert facts["weights"] == "0.25 to 0.75"
    assert facts["not allowed"] == "1 of 4 state-action pairs"
    assert facts["initial"] == "uniform (not given)"
    assert output.json["reward_range"] == [1.0, 1.0]
    assert output.json["labels"]["action"] == ["wait", "treat"]
    assert not output.json["initial_given"]
    assert output.err == ""
