"""Tables of polars, xarray and ArviZ are read as the same table of pandas is.

The libraries are tried if they are here; small stand-ins with their methods are always tried.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp.data import posterior
from mmdp.data.io import from_frame

TRANSITIONS = pd.DataFrame(
    {
        "state": ["up", "up", "down"],
        "action": "wait",
        "next_state": ["up", "down", "down"],
        "probability": [0.9, 0.1, 1.0],
        "reward": [4.0, 4.0, 0.0],
    }
)


class FrameWrapper:
    """A table of another library, which only knows how to become one of pandas."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def to_pandas(self) -> pd.DataFrame:
        return self.frame


def to_polars(frame: pd.DataFrame) -> Any:
    return importlib.import_module("polars").from_pandas(frame)


def to_xarray(frame: pd.DataFrame) -> Any:
    return importlib.import_module("xarray").Dataset({x: ("row", frame[x]) for x in frame.columns})


@pytest.fixture(params=["a stand-in", "polars", "xarray"])
def convert_frame(request: pytest.FixtureRequest) -> Any:
    if request.param == "a stand-in":
        return FrameWrapper
    pytest.importorskip(request.param, reason=f"{request.param} is not here")
    return {"polars": to_polars, "xarray": to_xarray}[request.param]


def assert_same_model(a: mmdp.MMDP, b: mmdp.MMDP) -> None:
    assert a.fingerprint() == b.fingerprint()
    assert a.state_labels == b.state_labels


def test_models(convert_frame: Any) -> None:
    assert_same_model(
        from_frame(convert_frame(TRANSITIONS), initial={"up": 1.0}),
        from_frame(TRANSITIONS, initial={"up": 1.0}),
    )


def test_logs_and_tables_of_rewards(convert_frame: Any) -> None:
    log = pd.DataFrame({"state": [0, 1, 0], "action": [0, 0, 0], "next_state": [1, 0, 1]})
    rewards = pd.DataFrame({"state": [0, 1], "action": [0, 0], "reward": [1.0, 2.0]})
    model = posterior.fit(convert_frame(log), n_models=3, rewards=convert_frame(rewards)).train
    assert_same_model(model, posterior.fit(log, n_models=3, rewards=rewards).train)


def build_model(params: dict[str, Any]) -> tuple[Any, Any]:
    p = np.asarray(params["p"])
    return np.stack([1 - p, p], axis=-1)[..., None, None, :] * np.ones((2, 1, 1)), [[0.0], [1.0]]


def test_samples(convert_frame: Any) -> None:
    samples = pd.DataFrame({"p": [0.1, 0.3, 0.2]})
    assert_same_model(
        mmdp.from_samples(convert_frame(samples), build_model),
        mmdp.from_samples(samples, build_model),
    )


def test_dimensions_of_samples_in_any_order() -> None:
    """Whatever the order of the dimensions is; a Dataset without chains too."""
    values = np.random.default_rng(0).random((2, 3, 4))
    names = ("group", "chain", "draw")
    variable = SimpleNamespace(values=values, dims=names)
    table = posterior.samples.read_samples(SimpleNamespace(data_vars={"x": variable}))
    np.testing.assert_array_equal(table["x"], values.reshape(2, 12).T)
    flat_variable = SimpleNamespace(values=values[0, 0], dims=("sample",))
    table = posterior.samples.read_samples(SimpleNamespace(data_vars={"x": flat_variable}))
    np.testing.assert_array_equal(table["x"], values[0, 0])


def test_draws_of_chains_are_models() -> None:
    samples = {"p": np.array([0.1, 0.3, 0.2, 0.4]), "q": np.array([5.0, 6.0, 7.0, 8.0])}
    model = mmdp.from_samples(samples, build_model)
    variables = {
        name: SimpleNamespace(values=x.reshape(2, 2), dims=("chain", "draw"))
        for name, x in samples.items()
    }
    loaded = mmdp.from_samples(
        SimpleNamespace(posterior=SimpleNamespace(data_vars=variables)), build_model
    )
    np.testing.assert_array_equal(loaded.transitions, model.transitions)
    np.testing.assert_array_equal(loaded.parameters["q"], samples["q"])


def test_arviz_itself() -> None:
    arviz = pytest.importorskip("arviz", reason="arviz is not here")
    model = mmdp.from_samples({"p": np.array([0.1, 0.3])}, build_model)
    groups = {"posterior": {name: x[None] for name, x in model.parameters.items()}}
    data = arviz.from_dict(**groups) if arviz.__version__ < "1" else arviz.from_dict(groups)
    np.testing.assert_array_equal(
        mmdp.from_samples(data, build_model).transitions, model.transitions
    )


def test_a_dataset_of_transitions_is_a_model() -> None:
    xr = pytest.importorskip("xarray", reason="xarray is not here")
    p = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 3, 2))
    dims = ("model", "state", "action", "next_state")
    labels = {"model": [0, 1], "state": list("abc"), "action": [0, 1], "next_state": list("abc")}
    rewards = np.arange(36.0).reshape(p.shape)
    data = xr.Dataset({"probability": (dims, p), "reward": (dims, rewards)}, coords=labels)
    model = from_frame(data)
    np.testing.assert_allclose(model.transitions, p)
    np.testing.assert_allclose(model.rewards, (p * rewards).sum(axis=3))
    assert model.state_labels == ("a", "b", "c")


@pytest.mark.parametrize("n_states", [3, np.int64(3)])
def test_a_number_of_states_is_not_enough_if_they_have_labels(n_states: int) -> None:
    """It was ignored, and the model had fewer states."""
    model = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[3.0], [0.0]])
    frame, labeled_frame = map(mmdp.io.to_frame, (model, model.replace(states=["up", "down"])))
    assert mmdp.io.from_frame(frame, states=n_states, dead_ends="absorb").n_states == 3
    with pytest.raises(mmdp.InputError, match="states have labels, so their number is not"):
        mmdp.io.from_frame(labeled_frame, states=n_states)
    assert mmdp.io.from_frame(labeled_frame, states=2).state_labels == ("up", "down")


def test_each_categorical_column_has_an_order() -> None:
    """Labels of the states come first, then those that only next states have."""
    frame = pd.DataFrame({"state": ["b", "a"], "action": 0, "next_state": ["b", "c"]})
    frame = frame.assign(probability=1.0, reward=0.0)
    ordered = frame.astype({"state": pd.CategoricalDtype(["a", "b"])})
    for table, labels in ((frame, ("b", "a", "c")), (ordered, ("a", "b", "c"))):
        assert mmdp.io.from_frame(table, dead_ends="absorb").state_labels == labels


@pytest.mark.parametrize("states", [1, ["up"]])
def test_ids_beyond_the_states_given_are_refused(states: object) -> None:
    frame = mmdp.io.to_frame(mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[3.0], [0.0]]))
    with pytest.raises(mmdp.InputError, match="state is 1, which is not one of the 1 state"):
        mmdp.io.from_frame(frame, states=states)
    with pytest.raises(mmdp.InputError, match="state is 1, which is not one of the 1 state"):
        mmdp.fit(frame.drop(columns="probability").assign(model=0), states=states)
