"""The plots show the numbers they are given; files are written whole or not at all."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import matplotlib.colors
import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp.core.testing import make_random_model
from mmdp.core.text import format_percent
from mmdp.insight import plots
from mmdp.insight.draw.axes import MAX_LABEL_LENGTH, MAX_TICK_LABELS
from mmdp.insight.draw.maps import PolicyMap
from mmdp.insight.draw.palette import MARKERS, make_action_colors
from mmdp.insight.plots import effective_size_by_time
from tests.cli.calls import run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def model() -> mmdp.MMDP:
    rng = np.random.default_rng(3)
    transitions = rng.dirichlet(np.ones(3), size=(6, 3, 2))
    weights = rng.dirichlet(np.ones(6))
    return mmdp.MMDP(transitions, rng.normal(size=(3, 2)), weights=weights, discount=0.9)


def test_heatmap_shows_the_action_of_every_cell() -> None:
    actions = np.array([[0, 2, 2], [2, 0, 5], [5, 5, 0], [0, 0, 0]])
    ax = plots.policy_heatmap(mmdp.policies.MarkovPolicy(actions))
    mesh: Any = ax.collections[0]
    shown_colors = mesh.to_rgba(np.asarray(mesh.get_array()).reshape(3, 4))[..., :3]
    color = make_action_colors(6)
    for (t, s), action in np.ndenumerate(actions):
        assert shown_colors[s, t] == pytest.approx(
            matplotlib.colors.to_rgb(color[action]), abs=0.01
        )
    letter = {0: "A", 2: "C", 5: "F"}
    for text in ax.texts:  # in the middle of a run of equal actions
        t, s = (int(x) for x in text.get_position())
        assert text.get_text() == letter[int(actions[t, s])]
    assert len(ax.texts) == 3 + (actions[1:] != actions[:-1]).sum()
    legend = [x.get_text() for x in ax.get_legend().get_texts()]  # type: ignore[union-attr]
    assert legend == ["A  0", "C  2", "F  5"]


def test_heatmap_of_a_solution_is_that_of_its_policy(model: mmdp.MMDP) -> None:
    solution = mmdp.solve(model, 4)
    letters = [
        [x.get_text() for x in plots.policy_heatmap(y).texts] for y in (solution, solution.policy)
    ]
    assert letters[0] == letters[1]
    assert set(letters[0]) == {"A", "B"}


def test_heatmap_of_many_states_labels_some_of_them() -> None:
    policy = mmdp.policies.MarkovPolicy(np.random.default_rng(0).integers(0, 9, size=(50, 500)))
    ax = plots.policy_heatmap(policy)
    assert len(ax.get_yticks()) <= MAX_TICK_LABELS
    assert ax.get_yticklabels()[-1].get_text() == "499"
    assert not ax.texts  # no letters where they do not fit


# ---------------------------------------------------------------------- two named axes
def make_shop(states: dict[str, Any]) -> mmdp.MMDP:
    def step(state: Any, action: Any, event: Any) -> Any:
        stock = np.maximum(state["stock"] - event["demand"], 0)
        next_state = {**state, "stock": np.minimum(stock + action["order"], 4)}
        return next_state, 5 * (state["stock"] - stock) - 3 * action["order"] - 0.1 * stock

    return mmdp.from_step(
        step,
        states=states,
        actions={"order": range(4)},
        events={"demand": range(3)},
        event_probs=lambda: [0.2, 0.3, 0.5],
        is_terminal=lambda state: state["stock"] > 4,
        initial={name: next(iter(values)) for name, values in states.items()},
    )


def test_maps_of_two_axes_show_what_the_policy_of_a_file_does(tmp_path: Path) -> None:
    model = make_shop({"stock": range(5), "mode": ["on", "off"], "day": range(7)})
    mmdp.save(model, tmp_path / "model.npz")
    solution = mmdp.solve(mmdp.load(tmp_path / "model.npz"), 6)
    for name in ("policy.csv", "policy.json"):
        mmdp.save_policy(solution, tmp_path / name)
        policy = mmdp.load_policy(tmp_path / name)
        action = solution.policy.action(0, state=1 * 14 + 0 * 7 + 5)
        assert policy.action(0, stock=1, mode="on", day=5) == action
    ax = plots.policy_heatmap(policy)
    axes = ax.get_figure().axes  # type: ignore[union-attr]
    assert [x.get_title() for x in axes] == [
        f"mode={mode}, time {t}" for mode in ("on", "off") for t in (0, 2, 3, 5)
    ]
    assert (ax.get_ylabel(), axes[-1].get_xlabel()) == ("stock", "day")
    colors = make_action_colors(4)
    for one in axes:
        mode, time = one.get_title().removeprefix("mode=").split(", time ")
        mesh: Any = one.collections[0]
        shown_colors = mesh.to_rgba(np.asarray(mesh.get_array()).reshape(5, 7))[..., :3]
        for stock, day in np.ndindex(5, 7):
            action = policy.action(time=int(time), stock=stock, mode=mode, day=day)
            color = matplotlib.colors.to_rgb(colors[int(action.removeprefix("order="))])
            assert shown_colors[stock, day] == pytest.approx(color, abs=0.01)


def test_labels_of_words_are_whole_and_cover_no_others() -> None:
    """Below small maps, and beside them; numbers are thinned out instead."""
    health = ["primary", "well standard", "well NP1", "failed", "well revised", "dead"]
    states = [f"age={age}, health={x}" for age in range(55, 100, 5) for x in health]
    names = ["prosthesis=standard, failed_hip=revise", "prosthesis=NP1, failed_hip=leave"]
    actions = np.arange(len(states)) % 2
    policy = mmdp.policies.StationaryPolicy(actions, state_labels=states, action_labels=names)
    ax = plots.policy_heatmap(policy)
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    labels = [x for x in ax.get_xticklabels() if x.get_text()]
    assert [x.get_text() for x in labels] == health
    boxes = [x.get_window_extent() for x in labels]
    assert not any(x.count_overlaps([*boxes[:i], *boxes[i + 1 :]]) for i, x in enumerate(boxes))
    assert [x.get_text() for x in ax.get_yticklabels()] == ["55", "65", "75", "85", "95"]
    legend = ax.figure.axes[0].get_legend()
    assert legend is not None
    assert [x.get_text()[3:] for x in legend.get_texts()] == names
    figure_box = ax.figure.bbox
    assert legend.get_window_extent().x1 <= figure_box.x1


def test_states_left_out_of_a_map_of_two_axes_stay_empty() -> None:
    rows = ["x=0, y=0", "x=0, y=1", "x=1, y=1", "ended"]
    ax = PolicyMap(np.array([[1, 0, 1, 0]]), rows, ["a", "b"]).plot()
    mesh: Any = ax.collections[0]
    assert np.ma.filled(mesh.get_array(), 9).reshape(2, 2).tolist() == [[1, 0], [9, 1]]
    for other in (["x=0, y=0", "x=1"], ["x=0, y=0", "end", "lost"], ["x=0", "x=1"]):
        ax = PolicyMap(np.zeros((1, len(other)), int), other, ["a"]).plot()
        assert ax.get_ylabel() == "state"


def test_colors_of_actions_differ() -> None:
    for count in (1, 2, 8, 9, 30):
        assert len(set(make_action_colors(count))) == count


def test_returns_distribution_is_the_weighted_share() -> None:
    rng = np.random.default_rng(1)
    x, weights = rng.normal(size=30).round(1), rng.dirichlet(np.ones(30))
    line = plots.returns_distribution({"policy": x}, weights).lines[0]
    xs, ys = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    for value in np.unique(x):
        # the height of the step that begins at the value
        assert ys[np.flatnonzero(xs == value)[-1]] == pytest.approx(weights[x <= value].sum())


def test_regret_distribution_counts_weights() -> None:
    rng = np.random.default_rng(2)
    regret, weights = rng.exponential(size=50), rng.dirichlet(np.ones(50))
    bars: Any = plots.regret_distribution(regret, weights).patches
    edges = np.linspace(0, regret.max(), len(bars) + 1)
    for i, bar in enumerate(bars):
        is_in_bin = (regret >= edges[i]) & ((regret < edges[i + 1]) | (i == len(bars) - 1))
        assert bar.get_height() == pytest.approx(weights[is_in_bin].sum(), abs=1e-12)


def test_regret_of_nothing_is_drawn() -> None:
    assert plots.regret_distribution([0.0, 0.0, -1e-12]).get_xlim()[1] > 0


def test_effective_size_is_the_mutual_information(model: mmdp.MMDP) -> None:
    from scipy.stats import entropy

    b = mmdp.measures.model_weights(model, mmdp.policies.MarkovPolicy.uniform(model, 5))
    effective_sizes = effective_size_by_time(b)
    for t in range(5):
        joint = b[t]
        information = entropy(joint.ravel(), np.outer(joint.sum(1), joint.sum(0)).ravel())
        assert effective_sizes[t, 0] == pytest.approx(np.exp(entropy(model.weights) - information))
        assert effective_sizes[t, 1] <= effective_sizes[t, 0] + 1e-12
    assert effective_sizes[0, 0] == pytest.approx(np.exp(entropy(model.weights)))


def test_weights_in_a_state_follow_bayes(model: mmdp.MMDP) -> None:
    policy = mmdp.policies.MarkovPolicy(np.zeros((4, 3), dtype=int), n_actions=2)
    weights = mmdp.measures.model_weights(model, policy)[:, :, 2]
    ax = plots.weights_by_step(weights, range(4), model.model_labels, max_models=6)
    drawn_lines = {str(x.get_label()): np.asarray(x.get_ydata()) for x in ax.lines}
    chain = model.transitions[:, :, 0]
    reached = np.full((6, 3), 1 / 3)
    for t in range(4):
        posterior = model.weights * reached[:, 2]
        posterior = posterior / posterior.sum()
        for m in range(6):
            assert drawn_lines[f"model {m}"][t] == pytest.approx(posterior[m])
        reached = np.einsum("ms,msz->mz", reached, chain)


def test_comparison_puts_points_at_the_means() -> None:
    ax = plots.methods_comparison(
        {"a": 3.0, "b": 1.0}, {"a": 0.0, "b": 0.25}, ranges={"a": (1.0, 4.0)}
    )
    points = [
        (float(x.get_xdata()[0]), float(x.get_ydata()[0]))  # type: ignore[index]
        for x in ax.lines
        if str(x.get_marker()) in MARKERS
    ]
    assert points == [(3.0, 0.0), (1.0, 1.0)]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first on top


# ------------------------------------------------------------------ files
def test_svg_keeps_labels_as_text_and_runs_nothing(tmp_path: Path) -> None:
    evil = "</text><script>alert(1)</script> $x$"
    policy = mmdp.policies.MarkovPolicy(
        [[0, 1]], state_labels=[evil[:22], "y" * 80], action_labels=['"q" & <b>', "$a$ $b$"]
    )
    target = plots.save_figure(plots.policy_heatmap(policy), tmp_path / "policy.svg")
    root = ET.fromstring(target.read_text(encoding="utf-8"))
    texts = ["".join(x.itertext()).strip() for x in root.iter(f"{SVG}text")]
    assert evil[:22] in texts
    assert "B  $a$ $b$" in texts
    assert 'A  "q" & <b>' in texts
    assert "y" * (MAX_LABEL_LENGTH - 1) + "…" in texts
    assert not list(root.iter(f"{SVG}script"))


def test_same_input_same_file(tmp_path: Path) -> None:
    files = [
        plots.save_figure(plots.regret_distribution([1.0, 2.0, 4.0]), tmp_path / f"{i}.svg")
        for i in range(2)
    ]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_png_is_a_png(tmp_path: Path) -> None:
    target = plots.save_figure(plots.regret_distribution([1.0, 2.0]), tmp_path / "r.PNG")
    assert target.read_bytes().startswith(b"\x89PNG\r\n")


def test_bad_names_are_refused(tmp_path: Path) -> None:
    ax = plots.regret_distribution([1.0])
    with pytest.raises(mmdp.InputError, match=r"ends in \.png or \.svg"):
        plots.save_figure(ax, tmp_path / "r.pdf")
    with pytest.raises(mmdp.InputError, match="no folder"):
        plots.save_figure(ax, tmp_path / "none" / "r.png")
    assert not list(tmp_path.iterdir())


def test_an_old_file_survives_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "r.png"
    target.write_bytes(b"old")

    def raise_error(*_: object) -> bytes:
        raise RuntimeError("no drawing")

    monkeypatch.setattr(plots, "to_png", raise_error)
    with pytest.raises(RuntimeError):
        plots.save_figure(plots.regret_distribution([1.0]), target)
    assert target.read_bytes() == b"old"
    assert [x.name for x in tmp_path.iterdir()] == ["r.png"]


def test_a_frontier_has_a_point_for_each_objective() -> None:
    rows = {
        "objective": ["mean", "CVaR 50%", "CVaR 1%"],
        "mean": [44424.0, 44287, 42046],
        "tail": [18730.0, 19016, 16998],
        "is_efficient": [True, True, False],
    }
    tested = {"test_mean": [44000.0, 44100, 42000], "test_tail": [18000.0, 18500, 16000]}
    ax = plots.risk_frontier(pd.DataFrame({**rows, **tested}))
    handles, labels = ax.get_legend_handles_labels()
    assert labels == rows["objective"]
    points = [tuple(np.ravel(handle.get_xydata())) for handle in handles]  # type: ignore[attr-defined]
    assert points == list(zip(rows["mean"], rows["tail"], strict=True))
    hollow = [x for x in ax.lines if x.get_fillstyle() == "none"]
    assert [tuple(np.ravel(x.get_xydata())) for x in hollow] == list(
        zip(*tested.values(), strict=True)
    )
    assert len(ax.lines[0].get_xdata()) == 2  # type: ignore[arg-type]


def test_a_tree_has_a_row_for_each_node(tmp_path: Path) -> None:
    """Questions with their numbers however long they are, leaves with their figures."""
    model = make_random_model(7, n_models=3, n_states=5, horizon=0, discount=0.7, has_masks=False)
    name = "what the ward's nurse wrote down on the first day of the $week$ <b>"
    policy_class = mmdp.policies.Tree(3, {f"{name} (mg)": range(5)}, use_time=False)
    solution = mmdp.solve(model, 4, policy_class=policy_class)
    facts = mmdp.measures.leaf_table(model, solution)
    texts = [text.get_text() for text in plots.tree(solution, facts).texts]
    splits = [x for x in texts if x.endswith("?")]
    assert len(splits) == solution.policy.n_leaves - 1 == 2
    assert all(re.search(r"is at most \d mg\?$", x) for x in splits)
    notes = [x for x in texts if "of visits" in x]
    assert [x.split(";")[0] for x in notes] == [
        f"{format_percent(x)} of visits" for x in facts["share"]
    ]
    assert [x in note for x, note in zip(facts["second_best"], notes, strict=True)] == [True] * 3
    texts_without_facts = [text.get_text() for text in plots.tree(solution.policy).texts]
    assert not any("visits" in x for x in texts_without_facts)
    file, out = tmp_path / "tree.json", tmp_path / "tree.svg"
    mmdp.save(model, tmp_path / "models.npz")
    mmdp.save_policy(solution.policy, file)
    run("plot", "tree", tmp_path / "models.npz", "--policy", file, "--out", out)
    assert "of visits" in out.read_text()
    with pytest.raises(mmdp.InputError, match="shows a tree, not a MarkovPolicy"):
        plots.tree(solution.policy.to_markov(4))


@pytest.mark.parametrize(("states", "policies"), [(9, 1), (5, 5), (4, 7)])
def test_the_legend_of_a_trace_tells_every_line_from_the_others(
    states: int, policies: int, tmp_path: Path
) -> None:
    rows = [
        (f"plan {d}", t, f"state {s}", 1 / states)
        for d in range(policies)
        for t in range(2)
        for s in range(states)
    ]
    ax = plots.cohort_trace(pd.DataFrame(rows, columns=["policy", "time", "state", "share"]))
    plots.save_figure(ax, tmp_path / "trace.png")
    looks = {(line.get_color(), str(line._dash_pattern)) for line in ax.lines}
    assert len(looks) == states * policies
    legend = ax.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == states + policies * (policies > 1)
    # the axis keeps its height, and no entry is cut off
    assert legend.get_window_extent().y0 >= 0
    assert ax.get_window_extent().height > legend.get_window_extent().height


def test_pictures_have_ages_below(tmp_path: Path) -> None:
    P = [[[[0.5, 0.5], [0.8, 0.2]], [[0.0, 1.0], [0.0, 1.0]]]]
    model = mmdp.MMDP(
        P,
        [[1.0, 0.9], [0.0, 0.0]],
        initial=[1, 0],
        states=["ill", "dead"],
        time_labels={"age": range(40, 44)},
    )
    trace = mmdp.economics.cohort_trace(model, {"never": 0}, 6)
    assert trace["age"].tolist() == (trace["time"] + 40).tolist()
    solution = mmdp.solve(model, 6)
    weights = mmdp.measures.model_weights(model, solution)
    for ax in (
        plots.cohort_trace(trace),
        plots.survival(trace),
        plots.policy_heatmap(solution),
        plots.weights_over_time(weights, time_labels=model.time_labels),
    ):
        plots.save_figure(ax, tmp_path / "picture.svg")
        ticks = {
            int(x): text.get_text()
            for x, text in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
            if 0 <= x < 6
        }
        assert ticks == {x: str(40 + x) for x in ticks}
        assert len(ticks) > 1
        assert ax.get_xlabel() == "age"
    assert "Actions by age and state" in solution.policy._repr_html_()
    assert "at age 41" in mmdp.policies.MarkovPolicy(
        probabilities=[[[0.5, 0.5]]] * 2, time_labels={"age": [40, 41]}
    ).describe_randomization([1, 0])
    near_optimal = mmdp.measures.near_optimal_actions(model, solution).to_frame()
    for table in (
        near_optimal,
        mmdp.measures.policy_table(model, solution),
        solution.policy.to_frame(),
    ):
        assert (table["age"] == table["time"] + 40).all()


def test_values_that_differ_by_rounding_are_drawn_on_one_line() -> None:
    one = mmdp.MMDP(np.ones((1, 1, 2, 1)), [[0.1, 0.7]])
    axis = mmdp.plots.value_by_nodes(mmdp.measures.value_by_nodes(one, 9, n_nodes=(1, 2)))
    assert np.ptp(axis.get_ylim()) > 0.1  # around 6.3, not around its 15th digit


def test_a_solution_without_a_single_policy_has_no_map(model: mmdp.MMDP, tmp_path: Path) -> None:
    solution = mmdp.solve(model, 2, "oracle")
    with pytest.raises(mmdp.InputError, match="a map shows a policy.* one policy per model"):
        plots.policy_heatmap(solution)
    with pytest.raises(mmdp.InputError, match="a belief map shows a plan by state and belief"):
        mmdp.report.draw(model, "belief", tmp_path / "map.svg", policy=solution)
