"""The value of memory: a table whose rows are in order, and a sentence."""

from __future__ import annotations

import numpy as np
import pytest

import mmdp
from mmdp import plots
from mmdp.measures import memory_gain
from mmdp.testing import best_with_memory, random_model


def test_rows_are_in_order_and_below_the_bound() -> None:
    model = random_model(1, n_models=3, n_states=2, n_actions=2, horizon=0, discount=0.9)
    table = mmdp.value_of_memory(model, 3, nodes=(1, 2, 4), time_limit=1, episodes=2000)
    value = dict(zip(table["policy"], table["value"], strict=True))
    best = best_with_memory(model, 3)
    assert value["Markov"] <= value["2 nodes"] <= value["4 nodes"] <= best + 1e-9
    assert best <= value["at most (pairs)"] <= value["Oracle"] + 1e-6
    error = float(table["stderr"].max())
    assert value["Markov"] - 3 * error <= value["belief rollout"] <= best + 3 * error
    recovered = dict(zip(table["policy"], table["recovered"], strict=True))
    assert recovered["Markov"] == 0
    assert recovered["belief rollout"] == 1
    assert np.isnan(recovered["Oracle"])
    assert "; 4 nodes " in table.attrs["text"]
    axis = plots.value_of_memory(table)
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "2", "4"]


def test_one_model_needs_no_memory_and_it_says_so() -> None:
    table = mmdp.value_of_memory(random_model(2, n_models=1, horizon=0), 4, nodes=(1, 2))
    assert table["value"].iloc[1] == pytest.approx(table["value"].iloc[0])
    assert table.attrs["text"].startswith("memory gains nothing: it is proven that no policy gains")


@pytest.mark.parametrize(("nodes", "told"), [((), "nodes is empty"), ((0,), "nodes must be")])
def test_bad_nodes(nodes: tuple[int, ...], told: str) -> None:
    with pytest.raises(mmdp.InputError, match=told):
        mmdp.value_of_memory(random_model(2, horizon=0), 4, nodes=nodes)


def test_a_short_simulation_says_whether_memory_would_pay() -> None:
    """From home each model leads to a place of its own and back; action 1 pays or costs there."""
    ways = np.zeros((2, 3, 2, 3))
    ways[0, 0, :, 1] = ways[1, 0, :, 2] = ways[:, 1:, :, 0] = 1.0
    rewards = np.zeros((2, 3, 2))
    rewards[:, 0, 1] = 1.0, -1.0
    model = mmdp.MMDP(ways, rewards, initial=[1, 0, 0])
    plain = mmdp.solve(model, 8, certify=1)
    assert plain.memory_text == ""  # nothing is simulated unasked
    found = memory_gain(plain, model)
    assert best_with_memory(model, 8) - found.value == pytest.approx(1.5)
    assert found.details["memory_gain"] == pytest.approx(1.5)
    assert "a policy that learns gains about 1.5" in repr(found)
    assert found.certificate == plain.certificate
    one = model.subset([0])
    assert memory_gain(mmdp.solve(one, 8), one).memory_text == ""
    assert memory_gain(plain, model, seconds=1e-9) is plain  # too large for that time
    other = mmdp.solve(model, 8, objective="worst")
    assert memory_gain(other, model) is other
