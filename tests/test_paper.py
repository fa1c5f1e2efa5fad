"""The paper's job: cells, resuming, files, the page."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil

import pandas as pd
import pytest

import mmdp
from mmdp.paper.cases import CASES, METHODS
from mmdp.paper.figures import paper_figures
from mmdp.paper.page import _figure, _mean_cell, write
from mmdp.paper.run import COLUMNS, Job


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """HIV only: the whole job in a few seconds."""
    out = tmp_path_factory.mktemp("paper")
    heard = []
    job = Job(out, domains=["HIV"], report=lambda text, done, total: heard.append((done, total)))
    results = job.run()
    return out, results, heard


def test_one_row_per_domain_horizon_and_method(small):
    out, results, _ = small
    files = write(results, out)
    table = pd.read_csv(out / "results.csv")
    assert tuple(table.columns) == COLUMNS
    assert table["method"].tolist() == list(METHODS)
    assert set(table["domain"]) == {"HIV"}
    assert {path.name for path in files} == {
        "results.csv", "figure.png", "regret.png", "queries.png", "paper.html",
    }  # fmt: skip
    row = table.set_index("method").loc["CADP"]
    assert row["paper_mean"] == 42000
    assert (table.loc[table["method"].isin(["CADP", "WSU", "Oracle"]), "stderr"] == 0).all()
    assert (table.loc[table["method"].isin(["QMDP", "MixTS", "POMCP"]), "stderr"] > 0).all()


def test_cells_hold_what_the_library_computes(small):
    _, results, _ = small
    train, test = mmdp.domains.hiv(seed=9)
    cells = {c.method: c for c in results.cells}
    for name in ("CADP", "WSU", "MVP"):
        report = mmdp.evaluate(mmdp.solve(train, 15, name.lower()), test)
        assert cells[name].mean == pytest.approx(report.mean, rel=1e-12)
        assert cells[name].sd == pytest.approx(report.sd, rel=1e-12)
    assert cells["Oracle"].mean == pytest.approx(mmdp.solve(test, 15, "oracle").value, rel=1e-12)


def test_progress_counts_every_step_and_reaches_the_end(small):
    _, _, heard = small
    done, total = zip(*heard, strict=True)
    assert list(done) == sorted(done)
    assert set(total) == {len(METHODS) + 3}


def test_running_again_reuses_everything(small):
    out, first, _ = small
    again = Job(out, domains=["HIV"]).run()
    assert again.reused == len(METHODS) + 3
    assert again.cells == first.cells
    assert Job(out, domains=["HIV"], seed=1).run().reused == 0


@pytest.mark.parametrize(
    "content", ["", '{"question": {}', "[]", "null", '{"question": {}, "answer": {}}', "\x00"]
)
def test_a_damaged_result_is_computed_again(small, content):
    out, first, _ = small
    path = next((out / "cells").glob("HIV-15-WSU-*.json"))
    before = path.read_text()
    path.write_text(content)
    again = Job(out, domains=["HIV"]).run()
    assert again.reused == len(METHODS) + 2
    for old, new in zip(first.cells, again.cells, strict=True):
        assert (new.method, new.mean) == (old.method, pytest.approx(old.mean, rel=1e-12))
    assert json.loads(path.read_text())["question"] == json.loads(before)["question"]
    path.write_text(before)


@pytest.fixture
def published(tmp_path):
    """A small HIV folder in the published layout."""
    train, test = mmdp.domains.hiv(n_train=4, n_test=4, seed=0)
    (tmp_path / "data").mkdir()
    mmdp.save(train, tmp_path / "data" / "hiv")
    mmdp.save(test, tmp_path / "data" / "hiv", split="test")
    return tmp_path / "data"


def run_cells(job):
    return list(job._case(CASES["HIV"]))


def test_changed_files_are_not_answered_from_what_was_kept(tmp_path, published):
    out = tmp_path / "out"
    first = run_cells(Job(out, domains=["HIV"], data=published))
    job = Job(out, domains=["HIV"], data=published)
    assert run_cells(job) == first
    assert job.reused == len(METHODS)
    copied = tmp_path / "elsewhere"
    shutil.copytree(published, copied)
    job = Job(out, domains=["HIV"], data=copied)
    assert run_cells(job) == first
    assert job.reused == len(METHODS)  # the same content in another place
    _, other = mmdp.domains.hiv(n_train=4, n_test=4, seed=1)
    mmdp.save(other, published / "hiv", split="test")
    job = Job(out, domains=["HIV"], data=published)
    cells = {c.method: c for c in run_cells(job)}
    assert job.reused == 0
    assert cells["Oracle"].mean == pytest.approx(mmdp.solve(other, 15, "oracle").value, rel=1e-12)


@pytest.mark.parametrize("name", ["FORMAT", "SIMULATION"])
def test_other_constants_are_another_question(tmp_path, published, monkeypatch, name):
    from mmdp.paper import run

    run_cells(Job(tmp_path / "out", domains=["HIV"], data=published))
    changed = {"FORMAT": run.FORMAT + 1, "SIMULATION": {**run.SIMULATION, "episodes_in_all": 1}}
    monkeypatch.setattr(run, name, changed[name])
    job = Job(tmp_path / "out", domains=["HIV"], data=published)
    run_cells(job)
    assert job.reused == {"FORMAT": 0, "SIMULATION": len(METHODS) - 3}[name]


def test_job_says_which_domains_are_generated(tmp_path, published):
    job = Job(tmp_path, data=published)
    assert job.generated == ["RS", "POP", "POPS", "INV"]
    assert Job(tmp_path).generated == list(CASES)


def test_an_error_that_is_rounding_is_not_shown(small):
    _, results, _ = small
    cell = next(c for c in results.cells if c.method == "MixTS")
    assert "±" in _mean_cell(cell)
    rounding = dataclasses.replace(cell, stderr=1.5e-13)
    assert "±" not in _mean_cell(rounding)
    assert f"{cell.mean:,.2f}" in _mean_cell(rounding)


def test_queries_of_the_plot(small, tmp_path):
    _, results, _ = small
    assert [row["queries"] for row in results.queries] == [5, 50, 500]
    assert Job(tmp_path, full=True)._query_counts == (5, 50, 500, 5000)


def test_figure_draws_a_start_that_has_arrived_at_the_bottom(small):
    out, results, _ = small
    _, right = _figure(results)
    ends = [line.get_ydata()[-1] for line in right.get_lines()]
    assert min(ends) == 1e-4
    assert 1e-5 < right.get_ylim()[0] < 1e-4
    write(results, out)
    assert "0 drawn at 1e-4" in (out / "paper.html").read_text(encoding="utf-8")


def test_the_page_is_self_contained_and_complete(small):
    out, results, _ = small
    write(results, out)
    page = (out / "paper.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "http" not in page
    assert page.count("<img") == 3
    assert page.count("<table>") == 3
    for name in METHODS:
        assert f'<th scope="row">{name}</th>' in page
    assert "Where our figures differ" in page


@pytest.mark.parametrize("name", ["RS", "HIV"])
def test_published_cells_at_every_horizon(paper_data, name):
    """With the published files every CADP, WSU, MVP and Oracle mean has the paper's digits."""
    case = CASES[name]
    train, test, source = case.models(0, paper_data)
    assert source == "published"
    for horizon in case.horizons:
        unit = case.unit if horizon == case.main else 1
        for method in ("CADP", "WSU", "MVP", "Oracle"):
            if method == "Oracle":
                mean = mmdp.solve(test, horizon, "oracle").value
            else:
                mean = mmdp.evaluate(mmdp.solve(train, horizon, method.lower()), test).mean
            printed = paper_figures("mean_return")[name, horizon, method]
            assert math.trunc(mean / unit) * unit == printed


def test_unknown_domain_and_missing_folder(tmp_path):
    with pytest.raises(mmdp.InputError, match="no domain is called 'XY'; choose from RS, POP"):
        Job(tmp_path, domains=["XY"])
    with pytest.raises(mmdp.InputError, match="does not exist; give a folder with --data"):
        Job(tmp_path, data=tmp_path / "nowhere")
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "true.csv").touch()
    wanted = "looked for training.csv in the folders riverswim, .*inventory, hiv"
    with pytest.raises(mmdp.InputError, match=wanted):
        Job(tmp_path, data=tmp_path)
    for seed in (-3, 1.5, True):
        with pytest.raises(mmdp.InputError, match="seed must be a whole number of at least 0"):
            Job(tmp_path, seed=seed)
