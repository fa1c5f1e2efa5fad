"""The benchmarks' peers solve what mmdp solves, and the benchmark runs to its end."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import cpu, memory, rows, studies, suite
from benchmarks.instances import (
    BAND,
    FULL,
    QUICK,
    Instance,
    Shape,
    SingleModel,
    make_dense_mdp,
    make_population,
    make_riverswim,
    make_sparse_mdp,
    make_sparse_model,
)
from benchmarks.peers import PEERS, TOOLBOXES, run_cadp
from benchmarks.rows import Contestant, Goal, Row, Times

import mmdp
from mmdp.core.kernels.cpu.backend import NumbaBackend

SMALL = {
    "riverswim": make_riverswim(n_models=6, n_states=8, horizon=9, seed=1),
    "banded": make_population(n_models=7, n_states=25, horizon=8, seed=2),
    "dense": make_population(n_models=5, n_states=12, band=None, horizon=8, seed=3),
    "one model": make_population(n_models=1, n_states=24, horizon=6, seed=4),
}


@pytest.fixture(params=SMALL)
def instance(request: pytest.FixtureRequest) -> Instance:
    return SMALL[request.param]


@pytest.mark.parametrize("name", PEERS)
def test_peer_finds_the_policy_and_value_of_mmdp(name: str, instance: Instance) -> None:
    paper = mmdp.methods.CADP(sweep_type="paper")
    solution = mmdp.solve(instance.model, instance.horizon, paper, backend="numpy")
    result = run_cadp(PEERS[name](instance))
    assert result.value == pytest.approx(solution.value, rel=1e-12)
    assert (result.policy == solution.policy.actions).all()
    assert result.sweeps == solution.iterations


@pytest.mark.parametrize("name", PEERS)
def test_peer_passes_match_weights_and_evaluation(name: str) -> None:
    instance = SMALL["banded"]
    peer = PEERS[name](instance)
    policy, value = peer.backward(peer.prior())
    assert value == pytest.approx(
        mmdp.evaluate(instance.model, mmdp.policies.MarkovPolicy(policy, n_actions=5)).mean,
        rel=1e-12,
    )
    b = peer.forward(policy)
    axes = "tms" if name == "plain numpy" else "smt"
    weights = np.einsum(f"{axes}->tms", b)
    expected = mmdp.measures.model_weights(
        instance.model, mmdp.policies.MarkovPolicy(policy, n_actions=5)
    )
    np.testing.assert_allclose(weights, expected, atol=1e-15)


def test_instances_have_the_pattern_they_promise() -> None:
    banded, dense = make_population(3), make_population(3, band=None)
    counts = (banded.transitions > 0).sum(axis=-1)
    assert (counts == BAND).all()
    assert banded.model.storage == "sparse"
    assert (dense.transitions > 0).all()
    assert dense.model.storage == "dense"
    river = make_riverswim()
    assert river.shape == (100, 20, 2)
    np.testing.assert_allclose(river.transitions.sum(axis=-1), 1.0, atol=1e-14)
    assert (river.transitions[:, 19, 0, 18] == 1).all()
    moves = river.transitions[:, 10, 1, 9:12]  # left, stay, right
    np.testing.assert_allclose(river.transitions[:, 19, 1, 19], moves[:, 1] + moves[:, 2])
    np.testing.assert_allclose(river.rewards[:, 19, 1], 100 * (moves[:, 1] + moves[:, 2]))
    assert (river.rewards[:, :, 0] == 5).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_our_contestant_is_a_whole_solve(threads: int) -> None:
    instance = SMALL["banded"]
    contestant, sweeps = cpu.prepare_paper(instance, threads)
    solution = contestant.run()
    assert isinstance(solution, mmdp.Solution)
    paper = mmdp.methods.CADP(sweep_type="paper")
    solo_solution = mmdp.solve(instance.model, instance.horizon, paper, backend=NumbaBackend(1))
    assert (solution.policy.actions == solo_solution.policy.actions).all()
    assert sweeps == solo_solution.iterations


def test_interleave_runs_in_turn_and_scales() -> None:
    order: list[str] = []
    times = rows.interleave(
        {
            "a": Contestant(lambda: order.append("a"), scale=1e9),
            "b": Contestant(lambda: order.append("b")),
        },
        n_rounds=2,
    )
    assert order == ["a", "b", "a", "b"]
    assert len(times["a"].rounds) == 2
    assert times["a"].best > times["b"].best  # a second is counted as a billion
    assert rows.add_times([Times((1.0, 5.0)), Times((2.0, 2.0))]).rounds == (3.0, 7.0)


def test_interleave_stops_when_the_time_is_over_but_makes_the_first_rounds() -> None:
    slow = {"a": Contestant(lambda: time.sleep(0.005))}
    assert len(rows.interleave(slow, n_rounds=50, budget=0.0, min_rounds=2)["a"].rounds) == 2
    contestants = {"a": Contestant(lambda: 7.0, has_own_clock=True, scale=2.0)}
    assert rows.interleave(contestants, n_rounds=1)["a"].rounds == (14.0,)


def test_blas_threads_are_set_and_given_back() -> None:
    import threadpoolctl

    def count_threads() -> set[int]:
        pools = threadpoolctl.threadpool_info()
        return {x["num_threads"] for x in pools if x["user_api"] == "blas"}

    n_threads_before = count_threads()
    with rows.limit_blas_threads(1):
        assert count_threads() <= {1}
    assert count_threads() == n_threads_before


def test_verdict_compares_with_floor_and_aim() -> None:
    at_least, at_most = Goal(2.0, 3.0), Goal(1.5, 1.2, "max")
    range_goal = Goal(0.9, 1.1, "range")
    assert [at_least.judge(x) for x in (1.9, 2.0, 3.0)] == ["MISSED", "ok", "aim"]
    assert [at_most.judge(x) for x in (1.6, 1.5, 1.2)] == ["MISSED", "ok", "aim"]
    assert [range_goal.judge(x) for x in (0.89, 1.0, 1.11)] == ["MISSED", "aim", "MISSED"]
    assert Row("x", None, goal=at_least).verdict == "not run"
    assert Row("x", 1.0).verdict == ""


def test_ratio_row_is_peer_over_ours_with_the_spread_of_the_rounds() -> None:
    peer, ours = Times((6.0, 9.0, 12.0)), Times((2.0, 3.0, 2.0))
    row = rows.make_ratio_row("x", peer, ours, goal=Goal(2, 4), note="n", details={"sweeps": 3})
    assert row.value == 6.0 / 2.0
    assert (row.low, row.high) == (3.0, 6.0)
    assert row.spread == pytest.approx(np.subtract(*np.quantile([3, 3, 6], [0.75, 0.25])) / 3)
    assert row.details == {"ours_seconds": 2.0, "peer_seconds": 6.0, "sweeps": 3}
    assert Row.from_dict(json.loads(json.dumps(row.to_dict()))) == row


# ------------------------------------------------------------------ what is measured
def test_sparse_model_has_the_shape_and_is_filled_in_place() -> None:
    shape = Shape(3, 700, 2, 5, 4)  # more rows than a block
    model = make_sparse_model(shape)
    x = model.problem
    assert (model.n_models, model.n_states, model.n_actions) == shape[:3]
    assert x.p.size == shape.n_nonzeros
    np.testing.assert_allclose(x.p.reshape(1400, 5, 3).sum(axis=1), 1.0, atol=1e-12)
    assert x.indices.reshape(1400, 5)[700].tolist() == [348, 349, 350, 351, 352]


@pytest.mark.parametrize("name", TOOLBOXES)
@pytest.mark.parametrize(
    "single", [make_dense_mdp(9, 3), make_sparse_mdp(11, 3, 4)], ids=["dense", "sparse"]
)
def test_toolboxes_find_the_values_of_mmdp(name: str, single: SingleModel) -> None:
    pytest.importorskip(name)
    run = TOOLBOXES[name](single, 6)
    run()  # a second run must start afresh
    solution = mmdp.solve(single.model, 6, backend="numpy")
    assert run().mean() == pytest.approx(solution.value, rel=1e-12)


def test_reader_reads_every_number_on_every_thread() -> None:
    array = np.arange(1001.0)
    for threads in (1, 2, 3):
        assert cpu.Reader(array, 4, threads).run() == 4 * array.sum()


def test_neighbours_are_busy_and_gone_afterwards() -> None:
    with cpu.keep_busy(2) as processes:
        assert [process.poll() for process in processes] == [None, None]
    assert all(process.poll() is not None for process in processes)


def test_time_to_value_is_that_of_the_first_value_that_is_good_enough() -> None:
    def solve(callback: Callable[[mmdp.solution.Progress], object]) -> mmdp.Solution:
        for i, value in enumerate((1.0, 3.0, 4.0)):
            callback(mmdp.solution.Progress("x", i, value, value, elapsed=1e6 * i))
        return mmdp.solve(SMALL["one model"].model, 2)

    assert cpu.time_to_value(solve, 2.5) == 1e6
    assert cpu.time_to_value(solve, 1.0) == 0.0
    assert cpu.time_to_value(solve, 9.0) < 1e6  # never: the seconds of the whole solve


def test_memory_counts_arrays_that_a_solve_keeps() -> None:
    pytest.importorskip("resource", reason="memory is measured on Linux")
    two_way = rows.run_fresh(memory.solve_fresh, "POP", "two-way", True)
    M, S, A, T = QUICK.n_models["POP"], QUICK.n_states, 5, QUICK.horizon
    assert two_way["stored"] == 8 * M * S * A * S  # stored densely: 22 of 23 next states
    assert two_way["kept"] == 8 * T * M * S * (A + 2)
    paper = rows.run_fresh(memory.solve_fresh, "POP", "paper", True)
    assert paper["kept"] == 2 * 8 * T * M * S


def test_every_node_of_a_controller_has_weight() -> None:
    """A sweep skips nodes without weight, and would be too cheap."""
    tables = [np.zeros((4, 25), np.int32), np.ones((4, 25), np.int32)]
    prepared = mmdp.core.kernels.get_backend("numpy").prepare(SMALL["banded"].model.problem, 4)
    _, b = prepared.compute_node_weights(cpu.make_controller(tables))
    assert (b[-1].sum(axis=(0, 2)) > 0).all()


def test_a_fresh_process_says_why_it_failed() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'no such case'"):
        rows.run_fresh(memory.build_fresh, "no such case", 1e-6)


# ------------------------------------------------------------------ studies
def test_coverage_is_that_of_the_true_return() -> None:
    ferry = studies.make_ferry()
    log = studies.simulate_log(ferry, 10, np.random.default_rng(0))
    steps = list(zip(log["state"], log["action"], log["next_state"], strict=True))
    assert all(ferry.p[x] > 0 for x in steps)
    assert all(
        last == (after == 2) for (*_, after), last in zip(steps, log["terminated"], strict=True)
    )
    shifted_ferry = ferry._replace(r=ferry.r + 1000.0)
    assert studies.is_covered(ferry, log, 0)
    assert not studies.is_covered(shifted_ferry, log, 0)


def test_bounds_are_above_the_value() -> None:
    model = mmdp.domains.garnet(n_models=3, n_states=4, n_actions=2, branching=2).train
    value = mmdp.solve(model, 4, "exact").value
    for method in studies.BOUNDS:
        assert studies.compute_bound(model, 4, method, 0.2)[1] >= value * (1 - 1e-9)


# ------------------------------------------------------------------ the command
def run_bench(*arguments: object) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a quick trial."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = suite.main(["--quick", *map(str, arguments)])
    return code, out.getvalue(), err.getvalue()


class Trial(NamedTuple):
    """A quick run: its folder and what it printed."""

    folder: Path
    printed: str


DEVICE = ("gpu", "gpu-events", "weak", "shards")
LONG = ("first", "loops", "memory", "building", "fitting", "large")  # compiled again, new processes


@pytest.fixture(
    scope="module", params=["quick", pytest.param("everything", marks=pytest.mark.slow)]
)
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A run of everything, or of all but what takes long and what is on a device."""
    folder, names = tmp_path_factory.mktemp("bench"), list(suite.SECTIONS)
    if request.param == "quick":
        names = [name for name in names if name not in (*LONG, *DEVICE)]
    code, printed, stderr = run_bench("--only", ",".join(names), "--out", folder)
    assert code == 0, stderr
    document = json.loads((folder / "bench.json").read_text())
    assert list(document["seconds"]) == names
    return Trial(folder, printed)


def test_every_floor_has_its_row(trial: Trial) -> None:
    document = json.loads((trial.folder / "bench.json").read_text())
    titles = {row["section"] for row in document["rows"]}
    measured = {
        (x["section"], x["check"], x["threads"])
        for x in [row | {"threads": row["n_threads"]} for row in document["rows"]]
    }
    floors = {
        (section.title, *key)
        for section in suite.SECTIONS.values()
        for key in section.floors
        if section.title in titles
    }
    assert {x for x in floors - measured if "mdpax" not in x[1]} == set()  # not in a trial
    assert document["failures"] == []
    for row in document["rows"]:
        assert row["check"][:47] in trial.printed
        assert row["goal"] is None
        if "ours_seconds" in row["details"]:
            ratio = row["details"]["peer_seconds"] / row["details"]["ours_seconds"]
            assert row["value"] == pytest.approx(ratio)
            assert row["low"] <= row["high"]
    lines = trial.printed.splitlines()
    assert all(len(line) <= 100 for line in lines if str(trial.folder) not in line)
    assert {"cpu", "cores", "numpy", "numba", "memory_gb"} <= document["machine"].keys()


def test_files_say_the_same_as_the_terminal(trial: Trial) -> None:
    saved = (trial.folder / "bench.md").read_text(encoding="utf-8")
    document = json.loads((trial.folder / "bench.json").read_text())
    assert all(f"| {row['check']} |" in saved for row in document["rows"])
    count = sum(row["value"] is not None for row in document["rows"])
    for text in (trial.printed, saved):
        assert f"{count} figures" in text
        assert "quick trial" in text


def use_sections(monkeypatch: pytest.MonkeyPatch, **sections: suite.Section) -> None:
    monkeypatch.setattr(suite, "SECTIONS", sections)


def measure_two(sizes: Any) -> Iterator[Row]:
    yield Row("one", 1.0)
    yield Row("two", 2.5, n_threads=2)


TWO = suite.Section("a title", measure_two, {("two", 2): Goal(2, 3), ("one", 1): Goal(5, 6)})


def test_a_run_of_everything_writes_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "RESULTS.md"
    monkeypatch.setattr(suite, "RESULTS", results)
    other = suite.Section("other", measure_two, is_optional=True)
    use_sections(monkeypatch, two=TWO, other=other)
    for partial in ("--quick", "--only=two"):
        assert suite.main([partial, "--json", "--out", str(tmp_path)]) == 0
        assert not results.exists()
    for _ in range(2):  # the second over the first
        assert suite.main(["--json", "--out", str(tmp_path)]) == 0
    text = results.read_text(encoding="utf-8")
    assert text == (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert text.count("| **a title** ") == 1
    assert "2 floors: 1 reached, 1 missed" in text
    assert "| two | 2 | 2.50 × |  | 2 | 3 | ok |" in text
    assert "other" not in text


def test_a_quick_trial_has_no_floors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_sections(monkeypatch, two=TWO)
    code, printed, stderr = run_bench("--json", "--out", tmp_path / "x")
    assert (code, stderr) == (0, "")
    document = json.loads(printed)
    assert [row["verdict"] for row in document["rows"]] == ["", ""]
    assert [Path(x).name for x in document["files"]] == ["bench.json", "bench.md"]
    assert list(document["seconds"]) == ["two"]


def test_bad_arguments_are_one_line(tmp_path: Path) -> None:
    for arguments, words in (
        (["--only", "loop"], "no section is called 'loop'; choose from first, loops, numpy"),
        (["--merge", str(tmp_path / "no.json")], "no such file"),
    ):
        code, printed, stderr = run_bench(*arguments, "--out", tmp_path)
        assert (code, printed) == (2, "")
        assert words in stderr
        assert stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError("no such luck\nsecond line"), None])
def test_a_section_that_fails_or_lacks_a_peer_is_a_row(
    error: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(sizes: Any) -> Iterator[Row]:
        yield Row("one", 1.0)
        raise error or rows.UnavailableError("a peer is not installed")

    use_sections(monkeypatch, bad=suite.Section("bad", measure, TWO.floors), two=TWO)
    monkeypatch.setattr(suite, "RESULTS", tmp_path / "RESULTS.md")
    assert suite.main(["--out", str(tmp_path)]) == int(error is not None)
    document = json.loads((tmp_path / "bench.json").read_text())
    bad = {row["check"]: row for row in document["rows"] if row["section"] == "bad"}
    assert bad["one"]["verdict"] == "MISSED"
    expected_note = (
        "a peer is not installed" if error is None else "FAILED: ValueError: no such luck"
    )
    assert (bad["two"]["verdict"], bad["two"]["note"]) == ("not run", expected_note)
    assert ("bad: rest of the section" in bad) == (error is not None)
    assert document["failures"] == (["bad"] if error else [])
    assert [x["value"] for x in document["rows"] if x["section"] == "a title"] == [1.0, 2.5]


def test_sections_of_another_run_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sizes: Any) -> Iterator[Row]:
        raise rows.UnavailableError("no device here")
        yield

    monkeypatch.setattr(suite, "RESULTS", tmp_path / "RESULTS.md")
    use_sections(monkeypatch, two=TWO)
    assert suite.main(["--out", str(tmp_path / "there")]) == 0
    use_sections(monkeypatch, two=suite.Section(TWO.title, refuse, TWO.floors))
    for merge, values in (([], [None, None]), (["--merge", "there"], [1.0, 2.5])):
        options = [str(tmp_path / x / "bench.json") if x == "there" else x for x in merge]
        assert suite.main([*options, "--out", str(tmp_path)]) == 0
        document = json.loads((tmp_path / "bench.json").read_text())
        assert [row["value"] for row in document["rows"]] == values


def test_a_missing_toolbox_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(single: SingleModel, horizon: int) -> Callable[[], Any]:
        raise ModuleNotFoundError("No module named 'quantecon'")

    monkeypatch.setitem(TOOLBOXES, "quantecon", prepare)
    section = suite.SECTIONS["single"]
    measured_rows = list(suite.Run(FULL).measure("single", section))
    assert {(row.check, row.n_threads) for row in measured_rows} == set(section.floors)
    assert {row.verdict for row in measured_rows} == {"not run"}
    assert all("pip install 'mmdp[bench]'" in rows.format_line(row) for row in measured_rows)
