"""mmdp update: from a plan to a count to new weights, year by year."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.data.posterior.update import read_model_steps
from tests.cli.calls import run, run_refused
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "adaptive-management.md").read_text(encoding="utf-8")


@pytest.fixture
def ducks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mmdp.MMDP:
    """The models of the page, in the folder ``models``."""
    script = (ROOT / "examples" / "ducks.py").read_text(encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["ducks.py", str(tmp_path)])
    exec(script.split("# %% plan")[0], {})
    monkeypatch.chdir(tmp_path)
    return mmdp.load(tmp_path / "models")


def test_eight_years_in_four_commands_are_those_of_the_page(ducks: mmdp.MMDP) -> None:
    commands = re.findall(r"^(?:mmdp|echo) .*?(?=  )", PAGE, re.M)
    assert [x.split()[1] for x in commands] == ["solve", '"2026,3', "update", "plot"]
    solve, _, update, plot = (x.split()[1:] for x in commands)
    page_rows = re.findall(r"^(20\d\d): (\d m), (\w+) +-> (\d m), compensatory (.*)$", PAGE, re.M)
    assert len(page_rows) == 8
    log, truth, rng = Path("log.csv"), ducks.transitions[1], np.random.default_rng(8)
    log.write_text("time,state,action,next_state\n")
    for year, state, rule, next_state, weight in page_rows:
        planned = run("solve", *(["models", *solve[2:]] if year == "2026" else solve[1:]))
        assert f"in {state}, where it starts: {rule}\n" in planned.out
        row = truth[ducks.state_labels.index(state), ducks.action_labels.index(rule)]
        assert ducks.state_labels[rng.choice(7, p=row)] == next_state
        log.write_text(log.read_text() + f"{year},{state},{rule},{next_state}\n")
        result = run(*update)
        assert result.code == 0, result.err
        assert f"{mmdp.load('now').weights[1]:.2f}" == weight
    assert result.out.strip() in PAGE
    assert "<svg" in Path("weights.svg").read_text(encoding="utf-8")
    assert run(*plot).code == 0
    assert "weight of compensatory" in Path("map.svg").read_text(encoding="utf-8")
    output = run("update", "models", "log.csv", "--out", "now.npz", "--json").json
    assert (output["steps"], output["start"]) == (8, "5 m")
    assert sum(output["weights"].values()) == pytest.approx(1)
    expected = mmdp.posterior.predictive_probabilities(ducks, "log.csv")
    assert output["probabilities"] == pytest.approx(expected.tolist())
    assert json.dumps(output)


def test_several_sites_keep_the_start_and_mistakes_are_named(ducks: mmdp.MMDP) -> None:
    log = Path("log.csv")
    log.write_text("episode,state,action,next_state\nx,3 m,liberal,2 m\ny,6 m,closed,6 m\n")
    result = run("update", "models", log, "--out", "now")
    assert result.parse_facts()["starts in"] == "as before"
    P, now = ducks.transitions, mmdp.load("now")
    expected = P[:, 2, 2, 1] * P[:, 5, 0, 5]
    np.testing.assert_allclose(now.weights, expected / expected.sum())
    np.testing.assert_array_equal(now.initial, ducks.initial)
    log.write_text("state,action,next_state\n3 m,open,2 m\n")
    message = run_refused("update", "models", log, "--out", "now")
    assert "line 2: action 'open' is not among the 3 actions" in message
    assert "--actions" not in message
    assert "this is read, not written" in run_refused("update", "models", log, "--out", "models")


def test_a_step_given_twice_is_refused(ducks: mmdp.MMDP) -> None:
    log, update = Path("log.csv"), ("update", "models", Path("log.csv"), "--out", "now")
    first = "time,state,action,next_state\n2026,3 m,liberal,2 m\n2027,2 m,closed,4 m\n"
    log.write_text(first + "2026,3 m,liberal,2 m\n")
    assert "log.csv, line 4: another step has this time" in run_refused(*update)
    for rest in ("2028,4 m,closed,5 m\n", "2030,5 m,closed,5 m\n"):  # nobody counted for two years
        log.write_text(first + rest)
        assert run(*update).err == ""


def test_dates_put_steps_in_order_and_count_decisions(ducks: mmdp.MMDP) -> None:
    rows = {
        "time": ["2027-04-02", "2026-04-01"],
        "state": ["2 m", "3 m"],
        "action": ["closed", "liberal"],
        "next_state": ["4 m", "2 m"],
    }
    steps = read_model_steps(ducks, rows)
    assert steps.weight_times.tolist() == [0, 1, 2]
    assert steps.rows.tolist() == [1, 0]


def test_a_step_that_no_model_expects_is_noted_by_its_line(ducks: mmdp.MMDP) -> None:
    mixed = 1e-9 / 7 + (1 - 1e-9) * np.eye(7)[:, None].repeat(3, axis=1)
    mmdp.save(
        mmdp.MMDP(
            [mixed], np.zeros((7, 3)), states=ducks.state_labels, actions=ducks.action_labels
        ),
        "still.npz",
    )
    Path("log.csv").write_text("state,action,next_state\n3 m,closed,3 m\n3 m,closed,5 m\n")
    result = run("update", "still.npz", "log.csv", "--out", "now")
    assert result.err.startswith(
        "mmdp: note: log.csv, line 3: 'closed' from '3 m' to '5 m' had a prob"
    )
    assert result.parse_facts()["least likely"] == "line 3, with probability 1.4e-10"
