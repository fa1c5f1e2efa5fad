"""The value of memory: a table whose rows are in order, and a sentence."""

from __future__ import annotations

import numpy as np
import pytest

import mmdp
from mmdp.core.testing import find_best_history_value, make_random_model
from mmdp.insight import plots


def test_rows_are_in_order_and_below_the_bound() -> None:
    model = make_random_model(1, n_models=3, n_states=2, n_actions=2, horizon=0, discount=0.9)
    table = mmdp.measures.value_by_nodes(model, 3, n_nodes=(1, 2, 4), time_limit=1, n_episodes=2000)
    value = dict(zip(table["policy"], table["value"], strict=True))
    best = find_best_history_value(model, 3)
    assert value["Markov"] <= value["2 nodes"] <= value["4 nodes"] <= best + 1e-9
    assert best <= value["at most (pairs)"] <= value["Oracle"] + 1e-6
    error = float(table["stderr"].max())
    assert value["Markov"] - 3 * error <= value["belief rollout"] <= best + 3 * error
    recovered = dict(zip(table["policy"], table["recovered"], strict=True))
    assert recovered["Markov"] == 0
    assert recovered["belief rollout"] == 1
    assert np.isnan(recovered["Oracle"])
    assert "; 4 nodes " in table.attrs["text"]
    axis = plots.value_by_nodes(table)
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "2", "4"]


def test_one_model_needs_no_memory() -> None:
    table = mmdp.measures.value_by_nodes(
        make_random_model(2, n_models=1, horizon=0), 4, n_nodes=(1, 2)
    )
    assert table["value"].iloc[1] == pytest.approx(table["value"].iloc[0])
    assert table.attrs["text"].startswith(
        "memory gains nothing: it is proven that no policy is better"
    )


@pytest.mark.parametrize(("n_nodes", "message"), [((), "n_nodes is empty"), ((0,), "n_nodes")])
def test_bad_node_counts_are_refused(n_nodes: tuple[int, ...], message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.measures.value_by_nodes(make_random_model(2, horizon=0), 4, n_nodes=n_nodes)
