"""The frontier of mean and tail."""

from __future__ import annotations

import numpy as np
import pytest

import mmdp
from mmdp.core.objectives import as_objective
from mmdp.core.testing import make_random_model
from tests.instances import make_tiny_model


# ---------------------------------------------------------------------- frontier
def test_each_point_is_the_best_of_all_points_for_its_objective() -> None:
    train, test = mmdp.domains.riverswim(seed=1)
    frontier = mmdp.measures.risk_frontier(train, 15, [0.5, 0.1, 0.02], test_model=test)
    for point in frontier.solutions:
        values = [
            other_point.evaluation.value(point.objective) for other_point in frontier.solutions
        ]
        assert point.value == pytest.approx(max(values))
    frame = frontier.to_frame()
    assert frame["objective"].tolist() == ["mean", "CVaR 50%", "CVaR 10%", "CVaR 2%"]
    assert frame["mean"].max() == frame["mean"][0]
    assert frame["tail"].max() == pytest.approx(frame["tail"][2])
    evaluation = mmdp.evaluate(test, frontier.solutions[2].policy)
    assert frame["test_tail"][2] == pytest.approx(evaluation.value(as_objective("cvar:0.1")))
    assert (frame["mean_loss"] >= 0).all()


def test_points_of_a_frontier_have_certificates() -> None:
    train, _ = mmdp.domains.riverswim(seed=1)
    frame = mmdp.measures.risk_frontier(train, 8, [0.2], certify_time=0.5).to_frame()
    assert (frame["bound"] >= frame["value"]).all()
    assert (frame["gap"] < 0.2).all()


def test_a_dominated_point_is_not_efficient() -> None:
    from mmdp.insight.measures.risk import _find_efficient

    assert _find_efficient(np.array([3.0, 2.0, 1.0]), np.array([1.0, 0.5, 2.0])) == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alphas": []}, "alphas is empty; give at least one"),
        ({"alphas": [2]}, "alpha must be the weight of a tail"),
        ({"tail": 0}, "alpha must be the weight of a tail"),
    ],
)
def test_bad_frontier_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    model, horizon = make_tiny_model(3)
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.measures.risk_frontier(model, horizon, **arguments)  # type: ignore[arg-type]


def test_one_level_may_be_a_number() -> None:
    model = make_random_model(1, n_models=3, n_states=3, n_actions=2, horizon=0)
    from_number, from_list = (
        mmdp.measures.risk_frontier(model, 2, 0.4),
        mmdp.measures.risk_frontier(model, 2, [0.4]),
    )
    assert [x.value for x in from_number.solutions] == [x.value for x in from_list.solutions]


def test_options_of_the_method_are_kept() -> None:
    model = make_random_model(1, n_models=3, n_states=3, n_actions=2, horizon=0)
    method = mmdp.methods.CADP(max_iter=7, tol=1e-3)
    for point in mmdp.measures.risk_frontier(
        model, 2, [0.4], method=method, certify_time=0.05
    ).solutions:
        assert point.provenance.options["max_iter"] == 7
        assert point.provenance.options["tol"] == 1e-3
