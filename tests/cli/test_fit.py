"""mmdp fit, and the way from a log to a report and a picture."""

from __future__ import annotations

import re
from pathlib import Path

import mmdp
from tests.cli.calls import LOG, refused, run


def test_from_a_log_to_a_report_in_three_commands(tmp_path: Path) -> None:
    log, models, policy, page = (
        tmp_path / name for name in ("log.csv", "models", "policy.csv", "report.html")
    )
    log.write_text(LOG)
    fitted = run("fit", log, "--models", 30, "--test-models", 10, "--discount", 0.9, "-o", models)
    assert fitted.code == 0, fitted.err
    assert fitted.facts()["models"] == "30 to solve, 10 held out"
    assert fitted.facts()["log"] == "7 transitions"
    assert run("solve", models, "-T", 8, "-o", policy).code == 0
    done = run("report", models, "--policy", policy, "--out", page)
    assert done.code == 0, done.err
    text = page.read_text(encoding="utf-8")
    value = mmdp.evaluate(mmdp.load_policy(policy), mmdp.load(models)).mean
    assert f"{value:.4g}" in text
    assert "treat" in text
    picture = tmp_path / "policy.svg"
    assert run("plot", "policy", models, "--policy", policy, "--out", picture).code == 0
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_fit_and_plot_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG.replace("next_state", "next_sate"))
    message = refused("fit", log, "--out", tmp_path / "models")
    assert "next_state" in message
    assert not (tmp_path / "models").exists()
    assert "no picture is called 'polcy'" in refused("plot", "polcy", tmp_path, "--out", "x.png")


def test_plot_names_every_picture() -> None:
    words = set(re.findall(r"\w+", run("plot", "--help").out))
    assert set(mmdp.report.PICTURES) <= words
