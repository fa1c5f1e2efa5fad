"""The benchmarks' peers solve what mmdp solves, and the benchmark runs to its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import core, timing
from benchmarks.instances import BAND, Instance, population, riverswim
from benchmarks.peers import PEERS, cadp

import mmdp
from mmdp.kernels.numba_kernel import NumbaKernel

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
    solution = mmdp.solve(instance.model, instance.horizon, backend="numpy")
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
    expected = mmdp.model_weights(instance.model, mmdp.MarkovPolicy(policy, n_actions=5))
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
    plain = mmdp.solve(instance.model, instance.horizon, backend=NumbaKernel(1))
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
    def verdict(ratio: float) -> str:
        return core.Check("x", 1, ratio, 0, 9, 2.0, 3.0, 1.0, 1.0, 1).verdict

    assert [verdict(x) for x in (1.9, 2.0, 3.0)] == ["BELOW", "floor", "aim"]


def test_benchmark_runs_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "core.json"
    assert core.main(["--json", str(file)], sizes=core.TINY) == 0
    printed = capsys.readouterr().out
    figures = json.loads(file.read_text())
    assert [row["check"] for row in figures["checks"] if row["floor"] is not None] == [
        "RS vs authors' loops", "POPS banded vs authors' loops", "POP banded vs authors' loops",
        "POPS banded vs plain numpy", "POP banded vs plain numpy",
        "POPS dense vs plain numpy", "POPS dense vs plain numpy",
        "POP dense vs plain numpy", "POP dense vs plain numpy",
    ]  # fmt: skip
    for row in figures["checks"]:
        assert row["ratio"] == pytest.approx(row["peer_seconds"] / row["ours_seconds"])
        assert row["low"] <= row["ratio"] * (1 + 1e-9)
        assert row["check"] in printed
    assert {"cpu", "cores", "numpy", "numba"} <= figures["machine"].keys()
    assert all(len(line) <= 100 for line in printed.splitlines())


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
