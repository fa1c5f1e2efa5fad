"""The frontier of mean and tail."""

from __future__ import annotations

import numpy as np
import pytest

import mmdp
from mmdp.objective import as_objective
from mmdp.testing import random_model
from tests.instances import tiny


# ---------------------------------------------------------------------- frontier
def test_each_point_is_the_best_of_all_points_for_its_objective() -> None:
    train, test = mmdp.domains.riverswim(seed=1)
    found = mmdp.frontier(train, 15, [0.5, 0.1, 0.02], test=test)
    for point in found.points:
        values = [other.evaluation.value(point.objective) for other in found.points]
        assert point.value == pytest.approx(max(values))
    frame = found.to_frame()
    assert frame["objective"].tolist() == ["mean", "CVaR 50%", "CVaR 10%", "CVaR 2%"]
    assert frame["mean"].max() == frame["mean"][0]
    assert frame["tail"].max() == pytest.approx(frame["tail"][2])
    again = mmdp.evaluate(found.points[2].policy, test)
    assert frame["test_tail"][2] == pytest.approx(again.value(as_objective("cvar:0.1")))
    assert (frame["gives_up"] >= 0).all()


def test_points_of_a_frontier_are_proven() -> None:
    train, _ = mmdp.domains.riverswim(seed=1)
    frame = mmdp.frontier(train, 8, [0.2], certify=0.5).to_frame()
    assert (frame["bound"] >= frame["value"]).all()
    assert (frame["gap"] < 0.2).all()


def test_a_point_that_is_worse_in_both_is_not_on_the_line() -> None:
    from mmdp.measures.safety import _best

    assert _best(np.array([3.0, 2.0, 1.0]), np.array([1.0, 0.5, 2.0])) == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"alphas": []}, "alphas must hold at least one"), ({"alphas": [2]}, "alpha of CVaR"),
     ({"tail": 0}, "alpha of CVaR")],
)  # fmt: skip
def test_what_a_frontier_refuses(arguments: dict[str, object], message: str) -> None:
    model, horizon = tiny(3)
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.frontier(model, horizon, **arguments)  # type: ignore[arg-type]


def test_one_share_will_do() -> None:
    model = random_model(1, n_models=3, n_states=3, n_actions=2, horizon=0)
    alone, listed = mmdp.frontier(model, 2, 0.4), mmdp.frontier(model, 2, [0.4])
    assert [x.value for x in alone.points] == [x.value for x in listed.points]


def test_options_of_the_method_are_kept_for_every_start() -> None:
    model = random_model(1, n_models=3, n_states=3, n_actions=2, horizon=0)
    method = mmdp.CADP(max_iterations=7, tol=1e-3)
    for point in mmdp.frontier(model, 2, [0.4], method=method, certify=0.05).points:
        assert point.provenance.options["max_iterations"] == 7
        assert point.provenance.options["tol"] == 1e-3
