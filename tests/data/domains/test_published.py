"""The published models: the paper's figures, and the CSV files they were packed from."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mmdp
from mmdp.insight.paper.cases import read_paper_values

# mean return over the test models, computed twice, independently of this package
MEAN_RETURNS = {
    ("riverswim", 50): {"cadp": 204.74, "wsu": 203.62, "mvp": 201.87, "oracle": 210.60},
    ("riverswim", 100): {"cadp": 207.27, "wsu": 206.11, "mvp": 204.01, "oracle": 213.27},
    ("riverswim", 150): {"cadp": 207.29, "wsu": 206.12, "mvp": 204.02, "oracle": 213.28},
    ("hiv", 5): {"cadp": 33348.60, "wsu": 33348.60, "mvp": 33348.60, "oracle": 40159.38},
    ("hiv", 15): {"cadp": 42235.35, "wsu": 42227.45, "mvp": 42227.45, "oracle": 53082.33},
    ("hiv", 20): {"cadp": 42566.57, "wsu": 42564.15, "mvp": 42564.15, "oracle": 53856.99},
}
N_ITERATIONS = {
    ("riverswim", 50): 5,
    ("riverswim", 100): 5,
    ("riverswim", 150): 8,
    ("hiv", 5): 1,
    ("hiv", 15): 2,
    ("hiv", 20): 2,
}
PAPER_NAMES = {
    "riverswim": "RS",
    "hiv": "HIV",
    "cadp": "CADP",
    "wsu": "WSU",
    "mvp": "MVP",
    "oracle": "Oracle",
}


@pytest.mark.parametrize("name", ["riverswim", "hiv"])
def test_published_models_are_those_of_the_csv_files(paper_data, name):
    for split, model in zip(("train", "test"), mmdp.domains.load_published(name), strict=True):
        loaded = mmdp.load(paper_data / name, split=split)
        for field, field_value in loaded.problem._replace(storage=None)._asdict().items():
            np.testing.assert_array_equal(
                getattr(model.problem._replace(storage=None), field), field_value
            )
        for array, expected in zip(model.problem.storage, loaded.problem.storage, strict=True):
            np.testing.assert_array_equal(array, expected)
        np.testing.assert_array_equal(model.pattern_rewards, loaded.pattern_rewards)


def test_published_models_have_names_and_labels():
    river, hiv = (mmdp.domains.load_published(name) for name in ("riverswim", "hiv"))
    assert [len(x.weights) for x in (*river, *hiv)] == [100, 700, 50, 50]
    assert river.train.action_labels == mmdp.domains.riverswim(1, 1).train.action_labels
    assert hiv.test.state_labels == mmdp.domains.hiv(1, 1).train.state_labels
    assert (river.name, hiv.test.name) == ("riverswim", "hiv")
    assert river.true_model.n_models == 1
    assert hiv.true_model is None


def iter_evaluations(name, horizon):
    train, test = mmdp.domains.load_published(name)
    for method in ("cadp", "wsu", "mvp"):
        solution = mmdp.solve(
            train, horizon, mmdp.methods.CADP(sweep_type="paper") if method == "cadp" else method
        )
        yield method, solution, mmdp.evaluate(test, solution)
    oracle = mmdp.solve(test, horizon, "oracle")
    yield "oracle", oracle, oracle.evaluation


@pytest.mark.parametrize(("name", "horizon"), MEAN_RETURNS)
def test_means_deviations_and_iterations(name, horizon):
    unit = 1000 if (name, horizon) == ("hiv", 15) else 1  # printed in thousands
    for method, solution, evaluation in iter_evaluations(name, horizon):
        key = (PAPER_NAMES[name], horizon, PAPER_NAMES[method])
        assert round(evaluation.mean, 2) == MEAN_RETURNS[name, horizon][method], method
        assert math.trunc(evaluation.mean / unit) * unit == read_paper_values("mean_return")[key], (
            method
        )
        deviation = read_paper_values("misprints").get(key, read_paper_values("sd_return")[key])
        assert math.trunc(evaluation.sd / unit) * unit == deviation, method
        if method == "cadp":
            assert solution.iterations == N_ITERATIONS[name, horizon]


def test_the_misprints_contradict_the_papers_own_rows():
    sd, mean = read_paper_values("sd_return"), read_paper_values("mean_return")
    assert list(read_paper_values("misprints")) == [("HIV", 5, "CADP"), ("HIV", 20, "CADP")]
    assert mean["HIV", 5, "CADP"] == mean["HIV", 5, "WSU"]
    assert (
        sd["HIV", 5, "CADP"]
        != sd["HIV", 5, "WSU"]
        == read_paper_values("misprints")["HIV", 5, "CADP"]
    )
    assert mean["HIV", 20, "CADP"] == mean["HIV", 20, "Mirror"]
    assert (
        sd["HIV", 20, "CADP"]
        != sd["HIV", 20, "Mirror"]
        == read_paper_values("misprints")["HIV", 20, "CADP"]
    )


def test_natural_gradient_from_the_uniform_policy():
    train, _ = mmdp.domains.load_published("riverswim")
    solution = mmdp.solve(train, 50, mmdp.methods.NaturalGradient(init="uniform"))
    assert round(solution.value, 2) >= 201.40
    assert solution.value >= solution.details["randomized_value"]
    assert solution.details["stationarity"] < 1e-3


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_backends_agree_on_the_published_models(backend):
    train, _ = mmdp.domains.load_published("riverswim")
    assert round(mmdp.solve(train, 50, backend=backend).value, 2) == 201.42
