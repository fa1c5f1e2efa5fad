"""The paper's job: cells, resuming, files, the page."""

from __future__ import annotations

import math
import re

import pandas as pd
import pytest

import mmdp
from mmdp.paper.cases import CASES, METHODS
from mmdp.paper.figures import paper_figures
from mmdp.paper.page import write
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
