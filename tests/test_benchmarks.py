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
