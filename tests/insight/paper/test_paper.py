"""The paper's job: cells, resuming, files, the page."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp.core.text import format_number
from mmdp.insight.paper.cases import (
    CASES,
    COMPARABLE_METHODS,
    PAPER_METHODS,
    has_paper_digits,
    read_paper_values,
)
from mmdp.insight.paper.page import (
    _plot_ascent,
    compute_error_bar,
    format_terminal_tables,
    index_records,
    write_results,
)
from mmdp.insight.paper.run import (
    QUERY_COUNTS,
    PaperResults,
    make_figure_cells,
    make_record,
    make_table_cells,
    run_paper,
)
from mmdp.insight.study import StudyRunner
from tests.insight.paper.quick import FEW_QUERIES, limit_queries

HIV_CELLS = 3 * len(PAPER_METHODS)  # three horizons
FIGURE_CELLS = 3 + 3 * 4 + 3  # starts, horizons of four methods, numbers of queries


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmdp.insight.study.show_progress", lambda callback: progress.append)
        results = run_paper(out, domains=["HIV"])
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
    cells = {c["method"]: c for c in results.records if c["horizon"] == 15}
    for name, method in (
        ("CADP", mmdp.methods.CADP(sweep_type="paper")),
        ("WSU", "wsu"),
        ("MVP", "mvp"),
    ):
        report = mmdp.evaluate(test, mmdp.solve(train, 15, method))
        assert cells[name]["mean"] == pytest.approx(report.mean, rel=1e-12)
        assert cells[name]["sd"] == pytest.approx(report.sd, rel=1e-12)
    assert cells["Oracle"]["mean"] == pytest.approx(mmdp.solve(test, 15, "oracle").value, rel=1e-12)


def test_progress_counts_every_step_and_reaches_the_end(small):
    _, _, progress = small
    n_done, total = zip(*((x.n_done, x.n_total) for x in progress), strict=True)
    assert list(n_done) == sorted(n_done)
    assert set(total) == {HIV_CELLS + FIGURE_CELLS}


def test_running_again_reuses_everything(small, tmp_path):
    out, first, _ = small
    second_results = run_paper(out, domains=["HIV"])
    assert second_results.n_reused == second_results.n_cells == HIV_CELLS + FIGURE_CELLS
    assert second_results.records == first.records
    assert second_results.traces == first.traces
    shutil.copytree(out / "cells", tmp_path / "cells")
    other = StudyRunner(make_table_cells(CASES["HIV"], False, 1), tmp_path)
    assert other.n_reused == 0


@pytest.mark.parametrize(
    "content", ["", '{"inputs": {}', "[]", "null", '{"inputs": {}, "row": {}}', "\x00"]
)
def test_a_damaged_result_is_computed_again(small, content):
    out, first, _ = small
    cells = make_table_cells(CASES["HIV"], False, 0)
    (cell,) = (x for x in cells if (x.horizon, x.labels["method"]) == (15, "WSU"))
    path = out / "cells" / f"{cell.key}.json"
    original_content = path.read_text()
    path.write_text(content)
    second_results = run_paper(out, domains=["HIV"])
    assert second_results.n_reused == HIV_CELLS + FIGURE_CELLS - 1
    for old, new in zip(first.records, second_results.records, strict=True):
        assert new["method"] == old["method"]
        assert new["mean"] == pytest.approx(old["mean"], rel=1e-12)
    assert json.loads(path.read_text())["inputs"] == json.loads(original_content)["inputs"]
    path.write_text(original_content)


@pytest.mark.parametrize("name", CASES)
def test_cases_have_the_sizes_that_they_say(name):
    case = CASES[name]
    train, test = case.make_factory(0)()
    assert (train.n_models, test.n_models) == (case.n_train, case.n_test)


def test_an_error_that_is_rounding_is_not_shown(small):
    out, results, _ = small
    cell = next(c for c in results.records if c["method"] == "MixTS")
    assert compute_error_bar(cell) == 2 * cell["stderr"] > 0
    assert compute_error_bar({**cell, "stderr": 1.5e-13}) is None
    page = (out / "paper.html").read_text(encoding="utf-8")
    assert (
        f"<strong>{cell['mean']:,.2f}</strong> ± {format_number(compute_error_bar(cell), 2)}"
        in page
    )


def test_queries_of_the_plot(small):
    _, results, _ = small
    assert [row["queries"] for row in results.differences] == list(FEW_QUERIES)
    assert QUERY_COUNTS == (5, 50, 500)
    cells = make_figure_cells(full=True, seed=0)[-1]
    assert [cell.method.n_queries for cell in cells] == [5, 50, 500, 5000]


def test_data_of_the_figures_are_what_the_library_computes(small):
    _, results, _ = small
    two = mmdp.domains.two_models().train
    for row in results.regrets:
        oracle = mmdp.solve(two, row["horizon"], "oracle").value
        assert row["regret"] == pytest.approx(oracle - row["value"], abs=1e-12)
        if row["method"] == "CADP (Markov)":
            value = mmdp.solve(two, row["horizon"], PAPER_METHODS["CADP"]).value
            assert (row["value"], row["stderr"]) == (pytest.approx(value), 0)
    assert [row["horizon"] for row in results.regrets[::3]] == [2, 4, 8]
    pops = mmdp.domains.population_small(seed=0).train
    for start, trace in results.traces.items():
        method = mmdp.methods.CADP(init=start.lower(), sweep_type="paper")
        assert trace == pytest.approx(mmdp.solve(pops, 50, method).trace.tolist())
    train, test = mmdp.domains.load_published("riverswim")
    baseline = mmdp.solve(train, 50, PAPER_METHODS["CADP"]).policy
    method = mmdp.methods.POMCP(n_queries=FEW_QUERIES[0], n_episodes=2, baseline=baseline)
    planner = mmdp.solve(train, 50, method)
    known = mmdp.evaluate(test.subset(slice(100)), planner, n_episodes=4).details
    point = results.differences[0]
    assert point["difference"] == pytest.approx(known["difference"])
    assert point["stderr"] == pytest.approx(known["difference_stderr"])


def test_figure_draws_a_start_that_has_arrived_at_the_bottom(small):
    out, results, _ = small
    _, right = _plot_ascent(results.traces)
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
def comparable_records(tmp_path_factory):
    """CADP, WSU, MVP and Oracle on RS and HIV at every horizon of the paper."""
    cells = [cell for name in ("RS", "HIV") for cell in make_table_cells(CASES[name], False, 0)]
    comparable = [x for x in cells if x.labels["method"] in COMPARABLE_METHODS]
    runner = StudyRunner(comparable, tmp_path_factory.mktemp("equal"))
    return index_records([make_record(row) for row in runner.rows])


def test_the_papers_digits_at_every_horizon(comparable_records):
    assert len(comparable_records) == 24
    assert all(record["mean_equal"] for record in comparable_records.values())
    misprints = [("HIV", 5, "CADP"), ("HIV", 20, "CADP")]
    assert [key for key, x in comparable_records.items() if not x["sd_equal"]] == misprints
    assert [key for key, x in comparable_records.items() if x["sd_misprinted"]] == misprints


def test_another_digit_is_not_called_equal():
    key = ("RS", 50, "CADP")
    assert has_paper_digits(204.999, key, "mean_return")
    for mean in (203.999, 205.0, -204.7):
        assert not has_paper_digits(mean, key, "mean_return")
    assert has_paper_digits(204.999, ("RS", 50, "Exact"), "mean_return") is None


def test_equal_cells_are_marked_everywhere(small):
    out, results, _ = small
    table = pd.read_csv(out / "results.csv").set_index(["horizon", "method"])
    means, deviations, _ = (
        {row[0]: row[1:] for row in rows} for _, _, rows in format_terminal_tables(results.records)
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
        run_paper(tmp_path, domains=["XY"])
    for seed in (-3, 1.5, True):
        with pytest.raises(mmdp.InputError, match="seed must be a whole number of at least 0"):
            run_paper(tmp_path, seed=seed)


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


@pytest.mark.parametrize("width", [1200, 1600])
def test_the_tables_of_all_domains_fit_a_window(tmp_path, browser, width):
    """With figures as wide as those of the paper, and times from ms to minutes."""
    seconds = iter(np.tile([0.0012, 0.407, 37.7, 0.812], 100).tolist())
    records = [
        make_record(
            {
                "model": case.name,
                "horizon": horizon,
                "method": name,
                "test_mean": read_paper_values("mean_return").get(key, -1092.0) + 0.37,
                "test_sd": read_paper_values("sd_return").get(key, 3198.0) + 0.37,
                "test_episode_sd": 3198.44,
                "test_stderr": 12.3,
                "seconds": next(seconds),
                "test_seconds": 0.0003,
            }
        )
        for case in CASES.values()
        for horizon in case.choose_horizons(full=False)
        for name in PAPER_METHODS
        for key in [(case.name, horizon, name)]
    ]
    traces = {"WSU": [-500.0, -440.44], "MVP": [-460.0, -440.44]}
    regrets = [{"method": "CADP", "horizon": 2, "regret": 0.5, "stderr": 0.1}]
    differences = [{"queries": 5, "difference": -1.0, "stderr": 0.3}]
    write_results(PaperResults(records, traces, regrets, differences, 1, 0, 1.0), tmp_path)
    browser.set_screen(width, 900)
    browser.open(tmp_path / "paper.html")
    boxes = "[...document.querySelectorAll('.scroll')]"
    assert browser.evaluate(f"{boxes}.length") == 4
    assert browser.evaluate(f"{boxes}.every(x => x.scrollWidth <= x.clientWidth)")
