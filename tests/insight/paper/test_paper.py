"""The paper's job: cells, resuming, files, the page."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from functools import partial

import pandas as pd
import pytest

import mmdp
from mmdp.core.text import format_number
from mmdp.insight.paper.cases import CASES, COMPARABLE_METHODS, PAPER_METHODS
from mmdp.insight.paper.page import (
    _plot_ascent,
    compute_error_bar,
    format_terminal_tables,
    write_results,
)
from mmdp.insight.paper.printed import read_paper_values
from mmdp.insight.paper.run import QUERY_COUNTS, PaperCell, PaperExperiment
from tests.insight.paper.quick import FEW_QUERIES, limit_queries

HIV_CELLS = 3 * len(PAPER_METHODS)  # three horizons


@pytest.fixture(autouse=True, scope="module")
def _limit_queries():
    with pytest.MonkeyPatch.context() as patch:
        limit_queries(patch)
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """HIV only, with its files: the whole job in a few seconds."""
    out = tmp_path_factory.mktemp("paper")
    progress = []
    job = PaperExperiment(
        out, domains=["HIV"], callback=lambda text, result, total: progress.append((result, total))
    )
    results = job.run()
    write_results(results, out)
    return out, results, progress


def test_one_row_per_domain_horizon_and_method(small):
    out, _, _ = small
    table = pd.read_csv(out / "results.csv")
    columns = "domain horizon method models mean sd stderr seconds paper_mean mean_equal paper_sd"
    assert [*table.columns] == [*columns.split(), "sd_equal", "sd_misprinted", "paper_minutes"]
    assert table["method"].tolist() == 3 * list(PAPER_METHODS)
    assert table["horizon"].unique().tolist() == [5, 15, 20]
    assert set(table["domain"]) == {"HIV"}
    assert set(table["models"]) == {"published"}
    assert {path.name for path in out.iterdir() if path.is_file()} == {
        "results.csv",
        "figure.png",
        "regret.png",
        "queries.png",
        "paper.html",
    }
    row = table.set_index(["horizon", "method"]).loc[15, "CADP"]
    assert row["paper_mean"] == 42000
    assert (table.loc[table["method"].isin(["CADP", "WSU", "Oracle"]), "stderr"] == 0).all()
    assert (table.loc[table["method"].isin(["QMDP", "MixTS", "POMCP"]), "stderr"] > 0).all()


def test_cells_hold_what_the_library_computes(small):
    _, results, _ = small
    train, test = mmdp.domains.load_published("hiv")
    cells = {c.method: c for c in results.cells if c.horizon == 15}
    for name, method in (
        ("CADP", mmdp.methods.CADP(sweep_type="paper")),
        ("WSU", "wsu"),
        ("MVP", "mvp"),
    ):
        report = mmdp.evaluate(test, mmdp.solve(train, 15, method))
        assert cells[name].mean == pytest.approx(report.mean, rel=1e-12)
        assert cells[name].sd == pytest.approx(report.sd, rel=1e-12)
    assert cells["Oracle"].mean == pytest.approx(mmdp.solve(test, 15, "oracle").value, rel=1e-12)


def test_progress_counts_every_step_and_reaches_the_end(small):
    _, _, progress = small
    n_done, total = zip(*progress, strict=True)
    assert list(n_done) == sorted(n_done)
    assert set(total) == {HIV_CELLS + 3}


def test_running_again_reuses_everything(small, tmp_path):
    out, first, _ = small
    second_results = PaperExperiment(out, domains=["HIV"]).run()
    assert second_results.n_reused == HIV_CELLS + 3
    assert second_results.cells == first.cells
    shutil.copytree(out / "cells", tmp_path / "cells")
    other = PaperExperiment(tmp_path, domains=["HIV"], seed=1)
    run_cells(other)
    assert other.n_reused == 0


@pytest.mark.parametrize(
    "content", ["", '{"inputs": {}', "[]", "null", '{"inputs": {}, "row": {}}', "\x00"]
)
def test_a_damaged_result_is_computed_again(small, content):
    out, first, _ = small
    experiment = PaperExperiment(out, domains=["HIV"])
    (cell,) = (x for x in experiment.table_cells if (x.horizon, x.labels["method"]) == (15, "WSU"))
    path = out / "cells" / f"{cell.key}.json"
    original_content = path.read_text()
    path.write_text(content)
    second_results = PaperExperiment(out, domains=["HIV"]).run()
    assert second_results.n_reused == HIV_CELLS + 2
    for old, new in zip(first.cells, second_results.cells, strict=True):
        assert (new.method, new.mean) == (old.method, pytest.approx(old.mean, rel=1e-12))
    assert json.loads(path.read_text())["inputs"] == json.loads(original_content)["inputs"]
    path.write_text(original_content)


def run_cells(job):
    return [PaperCell.from_row(row) for row in job.run_cells(job.make_table_cells(CASES["HIV"]))]


@pytest.mark.parametrize("name", CASES)
def test_cases_have_the_sizes_that_they_say(name):
    case = CASES[name]
    train, test = case.make_factory(0)()
    assert (train.n_models, test.n_models) == (case.n_train, case.n_test)


def test_an_error_that_is_rounding_is_not_shown(small):
    out, results, _ = small
    cell = next(c for c in results.cells if c.method == "MixTS")
    assert compute_error_bar(cell) == 2 * cell.stderr > 0
    assert compute_error_bar(dataclasses.replace(cell, stderr=1.5e-13)) is None
    page = (out / "paper.html").read_text(encoding="utf-8")
    assert (
        f"<strong>{cell.mean:,.2f}</strong> ± {format_number(compute_error_bar(cell), 2)}" in page
    )


def test_queries_of_the_plot(small, tmp_path):
    _, results, _ = small
    assert [row["queries"] for row in results.query_rows] == list(FEW_QUERIES)
    assert QUERY_COUNTS == (5, 50, 500)
    full = PaperExperiment(tmp_path, full=True).make_figure_cells()[-1]
    assert full.compute.args == ((5, 50, 500, 5000),)


def test_figure_draws_a_start_that_has_arrived_at_the_bottom(small):
    out, results, _ = small
    _, right = _plot_ascent(results)
    ends = [line.get_ydata()[-1] for line in right.get_lines()]
    assert min(ends) == 1e-4
    assert 1e-5 < right.get_ylim()[0] < 1e-4
    assert "0 drawn at 1e-4" in (out / "paper.html").read_text(encoding="utf-8")


def test_the_page_is_self_contained_and_complete(small):
    out, _, _ = small
    page = (out / "paper.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert not re.search(r"https?:", page)
    assert page.count("<img") == 3
    assert page.count("<table>") == 4
    for name in PAPER_METHODS:
        assert f'<th scope="row">{name}</th>' in page
    assert "Where our figures differ" in page


@pytest.fixture(scope="module")
def comparable_cells(tmp_path_factory):
    """CADP, WSU, MVP and Oracle on RS and HIV at every horizon of the paper."""
    job = PaperExperiment(tmp_path_factory.mktemp("equal"))
    cells = [cell for name in ("RS", "HIV") for cell in job.make_table_cells(CASES[name])]
    return [
        PaperCell.from_row(x)
        for x in job.run_cells([x for x in cells if x.labels["method"] in COMPARABLE_METHODS])
    ]


def test_the_papers_digits_at_every_horizon(comparable_cells):
    assert len({c.key for c in comparable_cells}) == 24
    assert all(c.matches_paper("mean_return") for c in comparable_cells)
    assert [c.key for c in comparable_cells if not c.matches_paper("sd_return")] == [
        ("HIV", 5, "CADP"),
        ("HIV", 20, "CADP"),
    ]
    assert [c.key for c in comparable_cells if c.is_misprint("sd_return")] == [
        ("HIV", 5, "CADP"),
        ("HIV", 20, "CADP"),
    ]


def test_another_digit_is_not_called_equal(comparable_cells):
    cell = comparable_cells[0]
    assert cell.key == ("RS", 50, "CADP")
    assert dataclasses.replace(cell, mean=204.999).matches_paper("mean_return")
    for mean in (203.999, 205.0, -204.7):
        assert not dataclasses.replace(cell, mean=mean).matches_paper("mean_return")
    assert dataclasses.replace(cell, method="Exact").matches_paper("mean_return") is None


def test_equal_cells_are_marked_everywhere(small):
    out, results, _ = small
    table = pd.read_csv(out / "results.csv").set_index(["horizon", "method"])
    means, deviations, _ = (
        {row[0]: row[1:] for row in rows} for _, _, rows in format_terminal_tables(results)
    )
    assert means["CADP"] == ["33,348 =", "42k =", "42,566 ="]
    assert means["Oracle"] == ["40,159 =", "53k =", "53,856 ="]
    assert means["POMCP"][0].endswith("(25,794)")
    assert deviations["CADP"] == ["7,729 (9,342*)", "11k =", "12,237 (11,309*)"]
    for horizon in (5, 15, 20):
        for name in COMPARABLE_METHODS:
            row = table.loc[horizon, name]
            assert row["mean_equal"]
            assert bool(row["sd_equal"]) != bool(row["sd_misprinted"])
    assert not table.loc[(5, "POMCP"), "mean_equal"]
    page = (out / "paper.html").read_text(encoding="utf-8")
    equal = (table["mean_equal"].astype(bool) & table["paper_mean"].notna()).sum()
    equal += (table["sd_equal"].astype(bool) & table["paper_sd"].notna()).sum()
    assert page.count("<small class=same>= paper") == equal
    assert "12 of the 12 mean returns" in page
    assert "paper 9,342* " in page
    assert page.count("whose deviation is 7,729, not 9,342") == 1


def test_population_small_on_the_published_log():
    """CADP above WSU and MVP on the test models of every seed, as in the paper's table."""
    samples = {seed: partial(mmdp.domains.population_small, seed=seed) for seed in range(3)}
    methods = {name: PAPER_METHODS[name] for name in COMPARABLE_METHODS}
    table = mmdp.study(samples, 50, methods).pivot(index="method", columns="model")["test_mean"]
    assert (table.loc["CADP"] > table.loc[["WSU", "MVP"]].max()).all()
    assert (table.loc["Oracle"] > table.loc["CADP"]).all()
    assert (table.std(axis=1) > 0).all()
    printed = read_paper_values("mean_return")
    assert [printed["POPS", 50, name] for name in COMPARABLE_METHODS] == [-1067, -1915, -2147, -882]
    train, test = mmdp.domains.population_small(seed=0)
    wsu = mmdp.evaluate(test, mmdp.solve(train, 50, "wsu")).mean
    assert table.loc["WSU", 0] == pytest.approx(wsu, rel=1e-12)


def test_unknown_domain_and_wrong_seed(tmp_path):
    with pytest.raises(mmdp.InputError, match="domain 'XY' does not exist; choose from RS, POP"):
        PaperExperiment(tmp_path, domains=["XY"])
    for seed in (-3, 1.5, True):
        with pytest.raises(mmdp.InputError, match="seed must be a whole number of at least 0"):
            PaperExperiment(tmp_path, seed=seed)


def test_the_page_has_paired_differences(small):
    """By evaluation of each method on the same test models; the paper's by its printed figures."""
    out, _, _ = small
    train, test = mmdp.domains.load_published("hiv")
    cadp = mmdp.evaluate(test, mmdp.solve(train, 5, PAPER_METHODS["CADP"])).returns
    gap = float((mmdp.solve(test, 5, "oracle").returns - cadp).mean())
    page = re.sub(r"<[^>]+>", " ", (out / "paper.html").read_text(encoding="utf-8"))
    printed = {
        name: read_paper_values("mean_return")["HIV", 5, name] for name in ("Oracle", "CADP")
    }
    rows = page.split("Paired differences of mean returns")[1].split("Standard deviation")[0]
    first = rows.split("Oracle − CADP")[-1].split("CADP − WSU")[0].split()
    assert first[0] == f"{gap:,.2f}"
    assert first[1:3] == ["paper", f"{printed['Oracle'] - printed['CADP']:,}"]


def test_the_third_theorem_as_it_should_read():
    """The least regret of a Markov policy against the best with memory, on the paper's example."""
    two = mmdp.domains.two_models().train
    for horizon in (4, 6, 8, 14):
        regret = mmdp.solve(two, horizon, "grid").value - mmdp.solve(two, horizon, "exact").value
        assert regret == pytest.approx(horizon / 4 - 1)
        bound = mmdp.bound(two, horizon, "pairs").value
        assert bound == pytest.approx(5 * horizon / 4 - 1)  # no policy has more
