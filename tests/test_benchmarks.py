"""The benchmarks' peers solve what mmdp solves, and the benchmark runs to its end."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import accelerator, core, machine, memory, single, suite, table, timing
from benchmarks.instances import (
    BAND,
    Instance,
    OneModel,
    one_dense,
    one_sparse,
    population,
    riverswim,
    sparse_model,
)
from benchmarks.peers import PEERS, TOOLBOXES, cadp
from benchmarks.sizes import QUICK, Shape

import mmdp
from mmdp.kernels.cpu.kernel import NumbaKernel

SMALL = {
    "riverswim": riverswim(models=6, states=8, horizon=9, seed=1),
    "banded": population(models=7, states=25, horizon=8, seed=2),
    "dense": population(models=5, states=12, band=None, horizon=8, seed=3),
    "one model": population(models=1, states=24, horizon=6, seed=4),
}


@pytest.fixture(params=SMALL)
def instance(request: pytest.FixtureRequest) -> Instance:
    return SMALL[request.param]


@pytest.mark.parametrize("name", PEERS)
def test_peer_finds_the_policy_and_value_of_mmdp(name: str, instance: Instance) -> None:
    paper = mmdp.CADP(sweeps="paper")
    solution = mmdp.solve(instance.model, instance.horizon, paper, backend="numpy")
    result = cadp(PEERS[name](instance))
    assert result.value == pytest.approx(solution.value, rel=1e-12)
    assert (result.policy == solution.policy.actions).all()
    assert result.sweeps == solution.iterations


@pytest.mark.parametrize("name", PEERS)
def test_peer_passes_match_weights_and_evaluation(name: str) -> None:
    instance = SMALL["banded"]
    peer = PEERS[name](instance)
    policy, value = peer.backward(peer.prior())
    assert value == pytest.approx(
        mmdp.evaluate(mmdp.MarkovPolicy(policy, n_actions=5), instance.model).mean, rel=1e-12
    )
    b = peer.forward(policy)
    axes = "tms" if name == "plain numpy" else "smt"
    found = np.einsum(f"{axes}->tms", b)
    expected = mmdp.model_weights(mmdp.MarkovPolicy(policy, n_actions=5), instance.model)
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_instances_have_the_pattern_they_promise() -> None:
    banded, dense = population(3), population(3, band=None)
    counts = (banded.transitions > 0).sum(axis=-1)
    assert (counts == BAND).all()
    assert banded.model.storage == "sparse"
    assert (dense.transitions > 0).all()
    assert dense.model.storage == "dense"
    river = riverswim()
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
    contestant, sweeps = core.ours(instance, threads)
    solution = contestant.run()
    assert isinstance(solution, mmdp.Solution)
    paper = mmdp.CADP(sweeps="paper")
    plain = mmdp.solve(instance.model, instance.horizon, paper, backend=NumbaKernel(1))
    assert (solution.policy.actions == plain.policy.actions).all()
    assert sweeps == plain.iterations


def test_interleave_runs_in_turn_and_scales() -> None:
    order: list[str] = []
    found = timing.interleave(
        {
            "a": timing.Contestant(lambda: order.append("a"), scale=1e9),
            "b": timing.Contestant(lambda: order.append("b")),
        },
        rounds=2,
    )
    assert order == ["a", "b", "a", "b"]
    assert len(found["a"].rounds) == 2
    assert found["a"].best > found["b"].best  # a second is counted as a billion
    both = timing.total([timing.Times((1.0, 5.0)), timing.Times((2.0, 2.0))])
    assert both.rounds == (3.0, 7.0)
    assert timing.ratio(both, timing.Times((1.0, 0.5))) == (6.0, 3.0, 14.0)


def test_blas_threads_are_set_and_given_back() -> None:
    import threadpoolctl

    def count() -> set[int]:
        pools = threadpoolctl.threadpool_info()
        return {x["num_threads"] for x in pools if x["user_api"] == "blas"}

    before = count()
    with timing.blas_threads(1):
        assert count() <= {1}
    assert count() == before


def test_verdict_compares_with_floor_and_aim() -> None:
    least, most = table.Goal(2.0, 3.0), table.Goal(1.5, 1.2, "most")
    within = table.Goal(0.9, 1.1, "within")
    assert [least.reached(x) for x in (1.9, 2.0, 3.0)] == ["MISSED", "ok", "aim"]
    assert [most.reached(x) for x in (1.6, 1.5, 1.2)] == ["MISSED", "ok", "aim"]
    assert [within.reached(x) for x in (0.89, 1.0, 1.11)] == ["MISSED", "aim", "MISSED"]
    assert table.Row("x", None, goal=least).reached == "not run"
    assert table.Row("x", 1.0).reached == ""


def test_ratio_row_is_peer_over_ours_with_the_spread_of_the_rounds() -> None:
    peer, ours = timing.Times((6.0, 9.0, 12.0)), timing.Times((2.0, 3.0, 2.0))
    row = table.ratio_row("x", peer, ours, table.Goal(2, 4), note="n", details={"sweeps": 3})
    assert row.value == 6.0 / 2.0
    assert (row.low, row.high) == (3.0, 6.0)
    assert row.spread == pytest.approx(np.subtract(*np.quantile([3, 3, 6], [0.75, 0.25])) / 3)
    assert row.details == {"ours_seconds": 2.0, "peer_seconds": 6.0, "sweeps": 3}
    again = table.from_document(json.loads(json.dumps(row.document())))
    assert again == row


def test_interleave_stops_when_the_time_is_over_but_makes_the_least_rounds() -> None:
    slow = {"a": timing.Contestant(lambda: time.sleep(0.005))}
    assert len(timing.interleave(slow, rounds=50, budget=0.0, least=2)["a"].rounds) == 2
    said = {"a": timing.Contestant(lambda: 7.0, own_clock=True, scale=2.0)}
    assert timing.interleave(said, rounds=1)["a"].rounds == (14.0,)


# ------------------------------------------------------------------ what is measured
def test_sparse_model_has_the_shape_and_is_filled_in_place() -> None:
    model = sparse_model(Shape(3, 700, 2, 5, 4))  # more rows than a block
    x = model.problem
    assert (model.n_models, model.n_states, model.n_actions) == (3, 700, 2)
    assert x.p.size == Shape(3, 700, 2, 5, 4).nonzeros
    np.testing.assert_allclose(x.p.reshape(1400, 5, 3).sum(axis=1), 1.0, atol=1e-12)
    assert x.indices.reshape(1400, 5)[700].tolist() == [348, 349, 350, 351, 352]


@pytest.mark.parametrize("name", TOOLBOXES)
@pytest.mark.parametrize("one", [one_dense(9, 3), one_sparse(11, 3, 4)], ids=["dense", "sparse"])
def test_toolboxes_find_the_values_of_mmdp(name: str, one: OneModel) -> None:
    pytest.importorskip(name)
    run = TOOLBOXES[name](one, 6)
    run()  # a second run must start afresh
    solution = mmdp.solve(one.model, 6, backend="numpy")
    assert run().mean() == pytest.approx(solution.value, rel=1e-12)


def test_a_missing_toolbox_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(one: OneModel, horizon: int) -> Callable[[], Any]:
        raise ModuleNotFoundError("No module named 'quantecon'")

    monkeypatch.setitem(single.TOOLBOXES, "quantecon", missing)
    rows = [row for row in single.one_model(QUICK) if "quantecon" in row.check]
    assert [row.goal.floor for row in rows if row.goal is not None] == [1.0, 1.3] * 2
    assert {row.value for row in rows} == {None}
    assert all("not installed" in row.note for row in rows)
    assert "not installed" in table.text(rows[0])


def test_reader_reads_every_number_on_every_thread() -> None:
    array = np.arange(1001.0)
    for threads in (1, 2, 3):
        assert machine.Reader(array, 4, threads).run() == 4 * array.sum()


def test_neighbours_are_busy_and_gone_afterwards() -> None:
    with machine.busy(2) as processes:
        assert [process.poll() for process in processes] == [None, None]
    assert all(process.poll() is not None for process in processes)


def test_reach_is_the_time_of_the_first_value_that_is_good_enough() -> None:
    def solve(callback: Callable[[mmdp.Progress], object]) -> mmdp.Solution:
        for i, value in enumerate((1.0, 3.0, 4.0)):
            callback(mmdp.Progress("x", i, value, value, 10.0 * i))
        return mmdp.solve(SMALL["one model"].model, 2)

    assert machine._reach(solve, 2.5) == 10.0
    assert machine._reach(solve, 1.0) == 0.0
    assert machine._reach(solve, 9.0) < 9.0  # never: the seconds of the whole solve


def test_memory_counts_arrays_that_a_solve_keeps() -> None:
    pytest.importorskip("resource", reason="memory is measured on Linux")
    found = memory._fresh("solve", QUICK, "two-way")
    M, S, A, T = QUICK.models["POP"], QUICK.states, 5, QUICK.horizon
    assert found["stored"] == 8 * M * S * A * S  # stored densely: 22 of 23 next states
    assert found["kept"] == 8 * T * M * S * (A + 2)
    assert memory._fresh("solve", QUICK, "paper")["kept"] == 2 * 8 * T * M * S


def test_the_planned_case_adds_up() -> None:
    room, sweep = memory.planned(1e-10)  # seconds a byte: 10 GB/s
    assert memory.PLAN.nonzeros == 2_000_000_000
    assert room.value == pytest.approx(16 + 2 + 0.4)  # p, b and r in GB
    assert sweep.value == pytest.approx(50 * 1.6 * 1.1)  # a step takes 1.6 s, a forward one 0.16


def test_rows_of_a_gpu_file() -> None:
    measured = {
        "machine": {"device": "H"},
        "rows": [
            {"row": "POP double, sweep", "ms": 2.9, "gb_s": 2139.0, "share": 0.57},
            {"row": "POP double, backward", "ms": 2.2, "gb_s": 2373.0, "share": 0.63},
            {"row": "20000 models double, backward", "ms": 60.0, "share": 0.46},
            {"row": "crossover M=10", "ms": 13.0, "ratio": 7.5, "threads": 16},
        ],
    }
    rows = {row.check: row for row in accelerator.rows_of(measured)}
    assert (rows["H: POP float64, one sweep"].value, rows["H: POP float64, one sweep"].reached) == (
        2.9, "ok",
    )  # fmt: skip
    assert rows["H: POP float64 backward, share of copying"].reached == "ok"
    assert rows["H: 20,000 models backward, share of copying"].reached == "MISSED"
    assert "7.5 × faster than numba on 16 threads" in rows["H: crossover M=10"].note


# ------------------------------------------------------------------ the command
def bench(*arguments: object) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a quick trial."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = suite.main(["--quick", *map(str, arguments)])
    return code, out.getvalue(), err.getvalue()


class Trial(NamedTuple):
    """A quick run: its folder, what it printed and the sections that it is about."""

    folder: Path
    printed: str
    sections: list[str]


@pytest.fixture(
    scope="module", params=["with caches", pytest.param("everything", marks=pytest.mark.slow)]
)
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A run of everything, or of all but the section that compiles all kernels again."""
    folder, sections, only = tmp_path_factory.mktemp("bench"), list(suite.SECTIONS), []
    if request.param == "with caches":
        sections.remove("first")
        only = ["--only", ",".join(name for name in sections if name != "large")]
    code, printed, told = bench("--large", *only, "--out", folder)
    assert code == 0, told
    return Trial(folder, printed, sections)


def test_every_floor_is_a_row(trial: Trial) -> None:
    folder, printed, sections = trial
    document = json.loads((folder / "bench.json").read_text())
    found: dict[str, list[Any]] = {}
    for row in document["rows"]:
        if row["goal"] is not None:
            goal = (row["threads"], row["goal"]["floor"], row["goal"]["aim"])
            found.setdefault(row["section"], []).append(goal)
        assert row["check"] in printed
        if "ours_seconds" in row["details"]:
            ratio = row["details"]["peer_seconds"] / row["details"]["ours_seconds"]
            assert row["value"] == pytest.approx(ratio)
            assert row["low"] <= row["high"]
    for section in map(suite.SECTIONS.__getitem__, sections):  # what is shown if one fails
        held = [(n, g.floor, g.aim) for n, g in section.floors if g is not None]
        assert sorted(held, key=str) == sorted(found.get(section.title, []), key=str)
    assert document["failed"] == []
    assert all(len(line) <= 100 for line in printed.splitlines() if str(folder) not in line)
    assert {"cpu", "cores", "numpy", "numba", "memory_gb"} <= document["machine"].keys()


def test_files_say_the_same_as_the_terminal(trial: Trial) -> None:
    folder, printed, _ = trial
    written = (folder / "bench.md").read_text(encoding="utf-8")
    document = json.loads((folder / "bench.json").read_text())
    for row in map(table.from_document, document["rows"]):
        assert f"| {row.check} |" in written
    count = sum(row["value"] is not None for row in document["rows"])
    for text in (printed, written):
        assert f"{count} figures" in text
        assert "quick trial" in text
    assert (folder / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_of_everything_writes_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "RESULTS.md"
    monkeypatch.setattr(suite, "RESULTS", results)
    monkeypatch.setattr(suite, "FULL", QUICK)
    monkeypatch.setattr(suite, "SECTIONS", {"loading": suite.SECTIONS["loading"]})
    for partial in ("--quick", "--only=loading"):
        assert suite.main([partial, "--json", "--out", str(tmp_path)]) == 0
        assert not results.exists()
    for _ in range(2):  # the second over the first
        assert suite.main(["--json", "--out", str(tmp_path)]) == 0
    text = results.read_text(encoding="utf-8")
    assert text == (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert text.count("| **loading** ") == 1


def test_only_some_sections_as_json(tmp_path: Path) -> None:
    code, printed, told = bench("--only", "loading,growth", "--json", "--out", tmp_path / "x")
    assert (code, told) == (0, "")
    document = json.loads(printed)
    assert set(document["seconds"]) == {"loading", "growth"}
    assert [Path(x).name for x in document["files"]] == ["bench.json", "bench.md", "bench.png"]


def test_bad_arguments_are_one_line(tmp_path: Path) -> None:
    for arguments, words in (
        (["--only", "loop"], "no section is called 'loop'; choose from first, loops, numpy"),
        (["--gpu-json", str(tmp_path / "no.json")], "no such file"),
    ):
        code, printed, told = bench(*arguments, "--out", tmp_path)
        assert (code, printed) == (2, "")
        assert words in told
        assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_section_that_fails_is_a_row_and_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sizes: Any, options: Any) -> Iterator[table.Row]:
        yield table.Row("first", 1.0, goal=table.Goal(5, 6))
        raise ValueError("no such luck\nsecond line")

    floors = [(None, table.Goal(2, 3)), (1, table.Goal(5, 6))]
    monkeypatch.setitem(suite.SECTIONS, "loading", suite.Section("loading", broken, floors))
    code, _, told = bench("--only", "loading,memory", "--out", tmp_path)
    assert code == 1
    document = json.loads((tmp_path / "bench.json").read_text())
    checks = {row["check"]: row for row in document["rows"]}
    assert checks["first"]["value"] == 1.0
    assert checks["loading: the rest of this section"]["note"] == "FAILED: ValueError: no such luck"
    not_run = [row for row in document["rows"] if row["goal"] and row["value"] is None]
    assert [(row["threads"], row["goal"]["floor"]) for row in not_run] == [(None, 2)]
    assert any("peak" in check for check in checks)  # the next section ran
    assert "failed: loading" in told


def test_a_quick_trial_has_no_verdicts_and_a_full_run_has() -> None:
    rows = [table.Row("a", 2.0, goal=table.Goal(1, 3)), table.Row("b", 0.5, goal=table.Goal(1, 3))]
    for quick in (True, False):
        report = suite.Report(suite.Options(quick=quick), rows, {"loops": 1.0}, load=[0.0, 0.0])
        lines = [*suite.heading(report), *(table.text(row, report.verdicts) for row in rows)]
        texts = ["\n".join(lines), suite.page(report.document())]
        for text in texts:
            assert ("floor" in text, "missed" in text.lower()) == (not quick, not quick)
        assert all(("reached" in row) == (not quick) for row in report.document()["rows"])


@pytest.mark.parametrize("kind", [False, True])
def test_planning_peer_searches_the_same_problem(kind: bool) -> None:
    """With one model, one decision of the peer finds the best first action, in counted steps."""
    pytest.importorskip("pomdp_py")
    from benchmarks import planning

    instance = riverswim(models=1, states=4, horizon=3)
    q = mmdp.solve(instance.model, 3, mmdp.QMDP(episodes=2), seed=0).policy.tables.q[0, :, :, 0]
    peer = planning.Peer(instance, np.full(3, 100.0), kind)
    for s in range(4):
        peer.problem.steps = 0
        assert peer.decide(0, s, 2000) == q[s].argmax()
        assert peer.problem.steps == pytest.approx(2000 * 3, rel=0.4)  # the tree may go one deeper


@pytest.mark.parametrize("kind", [False, True])
def test_planning_peer_moves_with_the_probabilities_of_the_model(kind: bool) -> None:
    pytest.importorskip("pomdp_py")
    from benchmarks import planning

    instance = riverswim(models=2, states=4, horizon=3)
    peer = planning.Peer(instance, np.ones(3), kind)
    state = peer.problem.states[1][2] if kind else planning.State(1, 2)
    drawn = [peer.problem.sample(state, planning.Action(1)) for _ in range(4000)]
    after = [(x[0] if kind else x).s for x in drawn]
    found = np.bincount(after, minlength=4) / len(after)
    np.testing.assert_allclose(found, instance.transitions[1, 2, 1], atol=0.04)
    if kind:
        assert drawn[0][2] == instance.rewards[1, 2, 1]
        assert drawn[0][1].s == after[0]


def test_search_steps_add_up_the_remaining_horizons() -> None:
    pytest.importorskip("pomdp_py")
    from benchmarks import planning

    assert planning.search_steps(7, 5) == sum(7 * (5 - t) for t in range(5))


def test_planning_runs_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pomdp_py")
    from benchmarks import planning

    file = tmp_path / "planning.json"
    assert planning.main(["--json", str(file)], sizes=planning.TINY) == 0
    printed = capsys.readouterr().out
    rows = {(x["check"], x["threads"]): x for x in json.loads(file.read_text())["checks"]}
    for name in ("RS", "POPS"):
        peer, kind = rows[f"{name} pomdp-py", 1], rows[f"{name} pomdp-py kind", 1]
        for planner in ("POMCP", "QMDP", "rollout", "Markov"):
            for threads in (1, 2):
                ours = rows[f"{name} {planner}", threads]
                assert ours["ratio"] == pytest.approx(ours["rate"] / peer["rate"])
                assert ours["kind"] == pytest.approx(ours["rate"] / kind["rate"])
                assert ours["check"] in printed
    assert rows["POP QMDP", 1]["ratio"] is None  # too large for the peer
    assert rows["RS POMCP", 1]["goal"]["floor"] == 100
    assert rows["POPS QMDP", 1]["goal"] == {"floor": 2e6, "aim": 4e6, "of": "rate"}
    assert all(len(line) <= 100 for line in printed.splitlines())


def test_planning_verdict_looks_at_what_the_goal_is_of() -> None:
    pytest.importorskip("pomdp_py")
    from benchmarks import planning

    def verdict(rate: float, ratio: float | None, goal: planning.Goal | None) -> str:
        return planning.Check("x", 1, rate, ratio, ratio, ratio, ratio, goal).verdict

    assert [verdict(x, 1.0, planning.BELIEF_GOAL) for x in (1e6, 3e6, 5e6)] == [
        "BELOW", "floor", "aim",
    ]  # fmt: skip
    assert [verdict(9e9, x, planning.TREE_GOAL) for x in (99.0, 101.0, None)] == [
        "BELOW", "floor", "BELOW",
    ]  # fmt: skip
    assert verdict(1.0, 1.0, None) == ""


# ------------------------------------------------------------------ nodes of memory
def test_memory_nodes_runs_and_its_sweeps_are_those_of_the_solver() -> None:
    from benchmarks import memory_nodes
    from benchmarks.instances import population

    tiny = population(3, states=23, horizon=4)
    found = memory_nodes.sweeps(tiny, threads=(1,), rounds=1)
    assert set(found) == {(1, n) for n in (2, 3, 4, 5)}
    x = tiny.model.problem
    controller = memory_nodes.mixed([np.zeros((4, 23), np.int32), np.ones((4, 23), np.int32)])
    _, b = mmdp.kernels.get("numpy").plan(x, 4).node_weights(controller)
    assert (b[-1].sum(axis=(0, 2)) > 0).all()  # every node has weight, or a sweep skips it


def test_building_is_measured_from_every_input() -> None:
    from benchmarks import building

    for case in building.CASES:
        found = building.measure(case, 1e-6)
        assert min(found["seconds"], found["entries"], found["model"]) > 0
        assert ("copying" in found) == (case == "dense")


def test_the_machine_is_the_published_one_and_its_optimum_is_proven() -> None:
    from benchmarks import maintenance

    p, rewards = maintenance.nominal()
    np.testing.assert_allclose(p.sum(axis=-1), 1)
    assert p[7, 0, 7] == 1
    assert p[9, 0, 9] == 1
    np.testing.assert_allclose(p[2, 1:, 3], 0.3)
    assert rewards[:7].any() == 0
    model = maintenance.machine(3, 9.0, 0)
    assert model.initial.shape == (3, 10)
    proven = maintenance.solved("machine", 3, 9.0, 0, 20.0)
    assert "| 1 of 2 |" in maintenance.line("x", [proven, (math.inf, 2.0)])
    small = maintenance.random(2, 3, 0, actions=2)
    found = mmdp.solve(small, math.inf, "exact")
    every = [
        mmdp.evaluate(mmdp.StationaryPolicy(rule, n_actions=2), small).mean
        for rule in itertools.product(range(2), repeat=3)
    ]
    assert found.value == pytest.approx(max(every), rel=1e-9)
