"""mmdp fit, and the way from a log to a report and a picture."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp.data.domains._common import DATA_DIR
from tests.cli.calls import LOG, run, run_refused


def test_from_a_log_to_a_report_in_three_commands(tmp_path: Path) -> None:
    log, models, policy, page = (
        tmp_path / name for name in ("log.csv", "models", "policy.csv", "report.html")
    )
    log.write_text(LOG)
    sizes = ("--n-models", 30, "--n-test-models", 10)
    fitted = run("fit", log, *sizes, "--discount", 0.9, "-o", models)
    assert fitted.code == 0, fitted.err
    assert fitted.parse_facts()["models"] == "30 to solve, 10 held out"
    assert fitted.parse_facts()["log"] == "7 transitions"
    assert run("solve", models, "-T", 8, "-o", policy).code == 0
    result = run("report", models, "--policy", policy, "--out", page)
    assert result.code == 0, result.err
    text = page.read_text(encoding="utf-8")
    value = mmdp.evaluate(mmdp.load(models), mmdp.load_policy(policy)).mean
    assert f"{value:.4g}" in text
    assert "treat" in text
    picture = tmp_path / "policy.svg"
    assert run("plot", "policy", models, "--policy", policy, "--out", picture).code == 0
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_fit_and_plot_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG.replace("next_state", "next_sate"))
    message = run_refused("fit", log, "--out", tmp_path / "models")
    assert "next_state" in message
    assert not (tmp_path / "models").exists()
    assert "no picture is called 'polcy'" in run_refused(
        "plot", "polcy", tmp_path, "--out", "x.png"
    )


def test_plot_names_every_picture() -> None:
    words = set(re.findall(r"\w+", run("plot", "--help").out))
    assert set(mmdp.report.FIGURES) <= words


def test_a_table_of_counts_is_fitted_too(tmp_path: Path) -> None:
    facts = fit_facts("state,action,next_state,reward,count\na,x,b,1,41\nb,x,a,0,2\n", tmp_path)
    assert facts["log"] == "43 transitions"


# ---------------------------------------------------------------------- real logs
def fit_facts(log: str, tmp_path: Path, *options: object) -> dict[str, str]:
    """The facts of a fit of this log."""
    out, file = tmp_path / "models", tmp_path / "log.csv"
    file.write_text(log)
    result = run("fit", file, "--n-models", 2, "--overwrite", "-o", out, *options)
    assert result.code == 0, result.err
    return result.parse_facts()


def test_states_that_the_published_log_never_shows(tmp_path: Path) -> None:
    log = (DATA_DIR / "riverswim_log.csv").read_text()
    rewards = tmp_path / "rewards.csv"
    rewards.write_text("state,reward\n" + "".join(f"{s},{s}\n" for s in range(20)))
    facts = fit_facts(log, tmp_path, "--states", 20, "--rewards", rewards)
    assert facts["states"] == "20"
    model = mmdp.load(tmp_path / "models")
    assert (model.n_states, model.rewards[0, 19, 0]) == (20, 19)
    n_shown = int(max(log.replace("\n", ",").split(",")[3:-1], key=int)) + 1
    assert n_shown < 20
    steps = pd.read_csv(DATA_DIR / "riverswim_log.csv")
    assert mmdp.fit(steps, n_models=1, rewards=np.zeros(n_shown)).train.n_states == n_shown
    assert mmdp.fit(steps, n_models=1, states=20, rewards=np.zeros(20)).train.n_states == 20


def test_labels_that_the_log_never_shows(tmp_path: Path) -> None:
    options = ("--states", "dead,ill,well", "--actions", "treat,wait,pray")
    assert fit_facts(LOG, tmp_path, *options)["states"] == "3"
    model = mmdp.load(tmp_path / "models")
    assert model.state_labels == ("dead", "ill", "well")
    assert model.action_labels == ("treat", "wait", "pray")
    assert model.initial.tolist() == [0, 0, 1]
    out = ("--out", tmp_path / "other")
    (tmp_path / "log.csv").write_text(LOG)
    message = run_refused("fit", tmp_path / "log.csv", *out, "--states", "ill,dead")
    assert (
        "state 'well' is not among the 2 states given; correct it, or add it: --states" in message
    )
    message = run_refused("fit", tmp_path / "log.csv", *out, "--states", 3)
    assert (
        "states have labels, so their number is not enough; name them all with --states" in message
    )


def test_ids_from_one_and_steps_as_times(tmp_path: Path) -> None:
    log = "episode,step,state,action,next_state,reward\n7,2,1,2,3,1\n7,1,2,1,1,4\n"
    facts = fit_facts(log, tmp_path, "--states", 4)
    assert (facts["states"], facts["actions"]) == ("4", "2")
    model = mmdp.load(tmp_path / "models")
    assert model.state_labels == ("1", "2", "3", "4")
    assert model.initial.tolist() == [0, 1, 0, 0]  # the earliest step is in the second row
    assert "the ids of this log count from 1" in mmdp.fit(pd.read_csv(StringIO(log))).warnings
    from_zero = log.replace("2,1,1,4", "2,0,1,4")
    assert mmdp.fit(pd.read_csv(StringIO(from_zero)), n_models=1).train.n_states == 4


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            "a,x,a,1\na,y,b,1\n",
            "never seen: 2 of 4 state-action pairs, sampled from the prior alone",
        ),
        ("a,x,b,1\n", "never left in the log: 'b'; name states that end an episode absorbing"),
        ("0,0,3,1\n3,0,0,1\n", "states that never occur in the log: 2"),
    ],
)
def test_notes_count_what_the_log_lacks(log: str, message: str) -> None:
    frame = pd.read_csv(StringIO("state,action,next_state,reward\n" + log))
    assert any(message in warning for warning in mmdp.fit(frame, n_models=1).warnings)


def test_a_file_of_models_is_no_log(tmp_path: Path) -> None:
    file = tmp_path / "training.csv"
    mmdp.save(mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]]), file)
    message = run_refused("fit", file, "--out", tmp_path / "models")
    assert "training.csv: holds models (column probability), not a log; solve it" in message
    assert not (tmp_path / "models").exists()


def test_discount_and_first_state(tmp_path: Path) -> None:
    file = tmp_path / "models.csv"
    file.write_text("state,action,next_state,probability,reward\nup,go,down,1,4\ndown,go,up,1,1\n")
    words = ("solve", file, "-T", 2, "--json", "--initial")
    assert run(*words, "up", "--discount", 0.5).json["value"] == 4.5
    assert run(*words, "up=0.5,down=0.5").json["value"] == 5.0
    assert "unknown label 'left'" in run_refused(*words, "left")


def test_files_that_only_happen_to_lie_beside(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("state,action,next_state,probability,reward\nup,go,up,1,4\n")
    (tmp_path / "weights.csv").write_text("kg,name\n3,Ann\n")
    assert "weights.csv" in run_refused("info", tmp_path / "my.csv")
    assert run("info", tmp_path / "my.csv", "--load-option", "sidecars=false").code == 0
    assert mmdp.load(tmp_path / "my.csv", sidecars=False).rewards.tolist() == [[[4.0]]]
