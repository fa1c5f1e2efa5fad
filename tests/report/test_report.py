"""The report: what it says, that labels stay text, and that a real browser shows it all."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import report
from mmdp.bounds import Bound
from mmdp.economics import Counting
from mmdp.report import PICTURES, findings, sections
from mmdp.report.compare import compared
from mmdp.report.desk import Desk
from mmdp.words import at_most, at_most_percent, number, percent
from tests import chromium
from tests.cli.calls import run
from tests.report.pages import (
    IMAGE,
    LONG,
    QUOTES,
    READY,
    SCRIPT,
    Page,
    drawn_data,
    unpack,
    written,
)  # fmt: skip


@pytest.fixture(scope="module")
def small() -> mmdp.MMDP:
    rng = np.random.default_rng(5)
    transitions = rng.dirichlet(np.ones(4), size=(60, 4, 3))
    return mmdp.MMDP(
        transitions, rng.normal(size=(4, 3)), initial=[1, 0, 0, 0], discount=0.9,
        parameters={"p": transitions[:, 0, 0, 0], "q": transitions[:, 1, 1, 1]}, name="small",
    )  # fmt: skip


@pytest.fixture(scope="module")
def evil() -> mmdp.MMDP:
    rng = np.random.default_rng(6)
    transitions = rng.dirichlet(np.ones(4), size=(40, 4, 3))
    return mmdp.MMDP(
        transitions, rng.normal(size=(4, 3)), states=[SCRIPT, IMAGE, QUOTES, LONG],
        actions=[LONG + "!", "$a$ <b>bold", SCRIPT], models=[f"<i>{m}{SCRIPT}" for m in range(40)],
        parameters={f"p{SCRIPT}": rng.normal(size=40), f"q{IMAGE}": transitions[:, 0, 0, 0]},
        name=f"evil {SCRIPT}", citation=IMAGE, times={f"<b>{SCRIPT}": [IMAGE, SCRIPT, LONG]},
        unit=f"$ {SCRIPT}",
    )  # fmt: skip


# ------------------------------------------------------------------ what it says
def test_the_figures_are_those_of_the_evaluation(tmp_path: Path, small: mmdp.MMDP) -> None:
    test = small.subset(range(30))
    page = written(tmp_path, small, horizon=6, test=test)
    solution = mmdp.solve(small, 6)
    found, tested = solution.evaluation, mmdp.evaluate(solution, test)
    oracle = mmdp.solve(small, 6, "oracle").value
    for expected in (
        f"returns {number(solution.value)} on average over the 60 models",
        f"The worst is model {int(found.returns.argmin())} with {number(found.worst)}",
        f"the worst tenth average {number(found.cvar(0.1))}",
        f"could return {number(oracle)} on average, {number(oracle - solution.value)} more",
        solution.status.value,
        f"On 30 models not used to compute it, it returns {number(tested.mean)}",
        "always state 0",
        "6 decisions, at times 0 to 5",
    ):
        assert expected in page.text
    for method in ("wsu", "mvp"):
        assert number(mmdp.solve(small, 6, method).value, 5) in page.text


def test_the_heat_map_holds_the_policy_and_its_table(tmp_path: Path, small: mmdp.MMDP) -> None:
    from mmdp.measures import policy_table

    solution = mmdp.solve(small, 6)
    page = written(tmp_path, small, horizon=6)
    data, shape = drawn_data(page), (6, 4)
    place = unpack(data["place"], "<u2", shape)
    assert (np.array(data["used"])[place] == solution.policy.actions).all()
    table = policy_table(solution, small)
    for name, column in (("margin", "margin"), ("probability", "visited"), ("agree", "agree")):
        shown = unpack(data["numbers"][name], "<f4", shape)
        assert shown.ravel() == pytest.approx(table[column].to_numpy(), nan_ok=True, rel=1e-5)
    gradient = mmdp.gradient(solution.policy, small)
    np.put_along_axis(gradient, solution.policy.actions[:, :, None].astype(int), -np.inf, axis=2)
    reached = table["visited"].to_numpy().reshape(shape) > 0
    runner = unpack(data["runner"], "<i4", shape)
    assert (runner == np.where(reached, gradient.argmax(axis=2), -1)).all()


def test_the_policy_in_words_is_the_policy(tmp_path: Path, small: mmdp.MMDP) -> None:
    policy = mmdp.MarkovPolicy([[0, 1, 2, 0], [0, 1, 1, 2], [1, 1, 1, 2]])
    page = written(tmp_path, small, policy=policy, methods=())
    for runs in (
        "0–1: action 0; 2: action 1",
        "0–2: action 1",
        "0: action 2; 1–2: action 1",
        "0: action 0; 1–2: action 2",
    ):
        assert runs in page.text
    assert number(mmdp.evaluate(policy, small).mean) in page.text


def test_a_bound_is_told_as_a_gap(tmp_path: Path, small: mmdp.MMDP) -> None:
    value = mmdp.solve(small, 4).value
    page = written(tmp_path, small, horizon=4, bound=Bound(value * 1.02, "pairs", "history"))
    assert f"No policy returns more than {at_most(value * 1.02)}" in page.text
    page = written(tmp_path, small, horizon=4, bound=value * 1.1125)
    missing = at_most(value * 0.1125)
    assert f"{missing} missing to the best, at most" in page.text
    best = f"No policy of time and state returns more than {at_most(value * 1.1125)}"
    assert f"{best}: at most {missing} is missing (" in page.text
    assert f"at most {at_most(value * 0.1125)} is missing" in page.text
    page = written(tmp_path, small, horizon=4, bound=value)
    assert "proven to be the best policy of time and state" in page.text
    page = written(tmp_path, small, horizon=4)
    assert "A tighter bound was not asked for" in page.text
    missing = mmdp.solve(small, 4, "oracle").value - value
    table = mmdp.solve(small, 4).policy
    share = at_most_percent(missing / mmdp.measures.stake(table, small).amount)
    assert f"at most {at_most(missing)} is missing ({share} of what is at stake)" in page.text
    with pytest.raises(mmdp.InputError, match="is below the policy's own value"):
        report.write(small, tmp_path / "r.html", horizon=4, bound=value * 0.9)


def test_value_of_information_is_that_of_the_measures(tmp_path: Path, small: mmdp.MMDP) -> None:
    from mmdp.measures import evpi, evppi

    page = written(tmp_path, small, horizon=4, information=None)  # small: done unasked
    assert f"worth at most {at_most(evpi(small, 4))} on average" in page.text
    for name in ("p", "q"):
        assert f"{name} {number(evppi(small, 4, name))}" in page.text
    page = written(tmp_path, small, horizon=4)
    assert "takes many solves and was left out" in page.text


def test_were_there_enough_models(tmp_path: Path, small: mmdp.MMDP) -> None:
    from mmdp.measures import enough_models, stability

    test = small.subset(range(30))
    page = written(tmp_path, small, horizon=4, test=test, enough=None, resamples=None)
    table = enough_models(small, 4, [5, 10, 20, 50, 60], test=test, repeats=10, seed=0)
    change = table["test"].iloc[-1] - table["test"].iloc[2]
    assert 0 < abs(change) < 1e-12  # rounding, which is no difference
    assert "from 60 models instead of 20 returns as much on held-out models." in page.text
    found = stability(small, 4, resamples=20, seed=0)
    assert f"changes {percent(found.share)} of the decisions that come up" in page.text
    halves = written(tmp_path, small, horizon=4, enough=True)
    assert "from 30 models instead of 10 returns" in halves.text
    assert "on the other half of the models" in halves.text


def test_what_takes_many_solves_is_left_out_and_said(tmp_path: Path, small: mmdp.MMDP) -> None:
    left = written(tmp_path, small, horizon=4, enough=None, resamples=None, seconds=0)
    assert "Solving with fewer models takes many solves of this size and was left out" in left.text
    assert "Solving again on redrawn models takes many solves" in left.text
    assert "--enough" in left.text
    asked = written(tmp_path, small, horizon=4, enough=True, resamples=3, seconds=0)
    assert "solves of this size and was left out" not in asked.text
    assert "Drawing the models again 3 times" in asked.text
    given = written(tmp_path, small, policy=mmdp.MarkovPolicy.uniform(small, 4), resamples=None)
    assert "leave the policy out to see it" in given.text


def cost_and_effect(model: mmdp.MMDP) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    shape = (model.n_models, model.n_states, model.n_actions)
    return {
        "effects": rng.uniform(0, 1, shape) + np.arange(3), "costs": rng.uniform(0, 9, shape)
        + 20 * np.arange(3), "thresholds": [0.0, 15.0, 60.0],
    }  # fmt: skip


def test_willingness_to_pay_is_that_of_the_measures(tmp_path: Path, small: mmdp.MMDP) -> None:
    from mmdp.economics import willingness_to_pay

    given = cost_and_effect(small)
    page = written(tmp_path, small, horizon=3, **given)
    mine = {"this policy": mmdp.solve(small, 3).policy}
    frontier = willingness_to_pay(
        small, given["effects"], given["costs"], given["thresholds"], 3, policies=mine
    ).frontier
    assert len(set(frontier["policy"])) > 1
    for row in frontier.itertuples():
        cells = (
            f"{number(row.threshold)} {row.policy} {number(row.effect)} {number(row.cost, 5)} "
            f"{number(row.nmb, 5)} {percent(row.probability)} {number(row.icer)} "
            f"{number(row.evpi)}"
        )
        assert cells in page.text
    assert any(at.get("data-plot") == "willingness" for _, at in page.elements)
    assert any(at.get("data-plot") == "loss" for _, at in page.elements)
    assert "willingness" not in written(tmp_path, small, horizon=3).text
    del given["costs"]
    with pytest.raises(mmdp.InputError, match="give all three or none"):
        written(tmp_path, small, horizon=3, **given)


@pytest.mark.parametrize(
    ("header", "rows", "told"),
    [
        (
            "state,action,effect,cost,arm",
            "0,0,1,2,0\n0,1,3,4,0",
            "unknown column 'arm' in line 1",
        ),
        ("state,action,effect,costs,cost", "0,0,1,2,9\n0,1,3,4,9", "unknown column 'costs' (did"),
        ("state,action,effect,cost", "0,0,5,2\n0,1,5,4", "line 2: effect is 5 in this and every"),
        ("state,action,effect,cost", "0,0,5,2\n0,1,6,2", "line 2: cost is 2 in this and every"),
    ],
)
def test_effects_that_would_be_ignored_are_refused(
    tmp_path: Path, header: str, rows: str, told: str
) -> None:
    file = tmp_path / "effects.csv"
    file.write_text(f"{header}\n{rows}\n")
    one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 1.0]])
    with pytest.raises(mmdp.InputError) as caught:
        report.read_effects(file, one)
    assert told in str(caught.value)


def risky() -> mmdp.MMDP:
    """Two models: the first action is best on average, the second in the worse model."""
    return mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[0.0, 1.0]], [[9.0, 1.0]]])


def test_the_policy_of_a_method_is_listed_once() -> None:
    def listed(policy: Any) -> list[str]:
        return [row.name for row in findings.methods(Desk(risky(), None, policy)).rows][:-1]

    assert listed(mmdp.solve(risky(), 3)) == ["CADP", "WSU", "MVP"]
    careful = mmdp.solve(risky(), 3, objective=mmdp.CVaR(0.1))
    assert listed(careful) == ["CADP (CVaR 10%)", "CADP", "WSU", "MVP"]
    assert listed(careful.policy) == ["the given policy", "CADP", "WSU", "MVP"]


def test_a_policy_that_is_best_for_several_tails_has_their_names() -> None:
    desk = Desk(risky(), 1, frontier=True)
    found = compared(desk, sections.compute(desk, sections.chosen(desk, 20.0)[0]))
    assert [x.name for x in found.rivals[: found.along]] == [
        "this policy (best on average)", "best for the worst 50% to 1%",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [2, 9])
def test_policies_to_compare_with_are_always_drawn(count: int, small: mmdp.MMDP) -> None:
    """However many there are on the frontier; those that were found have what room is left."""
    given = {**cost_and_effect(small), "thresholds": [0.0, 1, 2, 3, 5, 7, 9, 12, 15, 20, 30]}
    named = {f"plan {i}": {0: i % 3, 1: i // 3, 2: 0, 3: 0} for i in range(count)}
    desk = Desk(small, 3, compare=named, **given)
    found = findings.willingness(desk)
    own = [x for x in found.policies if x not in found.found]
    assert len(own) >= count
    for kind in ("willingness", "loss"):
        axis = PICTURES[kind].draw(desk, found)
        assert axis is not None
        *drawn, _ = axis.get_legend_handles_labels()[1]
        assert {*own} <= {*drawn}
        assert len(drawn) == min(max(7, len(own)), len({*own, *found.frontier["policy"]}))
        legend = axis.get_legend()
        assert legend is not None
        told = f"{len(drawn)} of {len(found.policies)} policies"
        assert legend.get_title().get_text() == told * (len(drawn) < len(found.policies))
    axis = PICTURES["returns"].draw(desk, 0.0)
    assert axis is not None
    assert {*named} <= {*axis.get_legend_handles_labels()[1]}


def test_what_a_return_is_is_told_with_the_threshold(tmp_path: Path, small: mmdp.MMDP) -> None:
    """By the rewards themselves, by net_benefit, or by the words of the model."""
    given, counting = cost_and_effect(small), Counting(0.035, 0.0)
    e, c = given["effects"], given["costs"]
    by_hand = small.replace(rewards=15 * e - c, unit="£")
    told = "A return is the expected net benefit at £15 per unit of effect, in £, over 3 decisions"
    page = written(tmp_path, by_hand, horizon=3, **given)
    assert told in page.text
    assert page.text.index(told) < page.text.index("The answer")
    assert page.text.index("errors in observing it".capitalize()) < page.text.index("The answer")
    other = written(tmp_path, by_hand.replace(rewards=14.9 * e - c * 1.1), horizon=3, **given)
    assert "A return is the expected sum of rewards, in £, over" in other.text
    priced = counting.net_benefit(small.replace(unit="£"), e, c, 15, 3)
    mmdp.save(priced, tmp_path / "priced")
    mmdp.save(priced, tmp_path / "priced.npz")
    for file in ("priced", "priced.npz"):
        assert told in written(tmp_path, mmdp.load(tmp_path / file), horizon=3).text
    words = "net benefit at £15 per QALY, per patient"
    priced = counting.net_benefit(small.replace(quantity=words), e, c, 15, 3)
    assert f"A return is the expected {words} over 3" in written(tmp_path, priced).text


def test_a_restricted_policy_is_compared_with_others_of_its_kind(
    tmp_path: Path, small: mmdp.MMDP
) -> None:
    given, tied = cost_and_effect(small), mmdp.Tied([0] * small.n_states)
    given["thresholds"] = [19.0, 20.0, 21.0]
    mine = mmdp.solve(small, 3, policy=tied)
    blind = findings.willingness(Desk(small, None, mine, **given))
    assert blind.found
    for policy in blind.policies.values():  # nobody acts on what they do not see
        assert (policy.actions == policy.actions[:, :1]).all()
    assert "among tied policies" in written(tmp_path, small, policy=mine, **given).text
    free = findings.willingness(Desk(small, 3, **given))
    assert (free.frontier["nmb"] > blind.frontier["nmb"]).any()
    assert (
        "among all that depend on time and state"
        in written(tmp_path, small, horizon=3, **given).text
    )


def test_a_comparator_that_is_this_policy_says_so(small: mmdp.MMDP) -> None:
    mine = mmdp.solve(small, 3)
    given = {"compare": {"ours": mine, "0": 0}, **cost_and_effect(small)}
    found = findings.willingness(Desk(small, None, mine, **given))  # type: ignore[arg-type]
    assert list(found.policies)[:2] == ["ours (this policy)", "0"]


def test_the_rates_are_told(tmp_path: Path, small: mmdp.MMDP) -> None:
    given, counting = cost_and_effect(small), Counting(0.015, 0.035, "half-cycle")
    priced = counting.net_benefit(small, given["effects"], given["costs"], 15, 3)
    page = written(tmp_path, priced, horizon=3, counting=counting, **given)
    assert f"Over time, {counting.text}." in page.text
    assert "1 per step, besides that of costs and effects in the rewards" in page.text


def test_effects_from_a_table(tmp_path: Path, small: mmdp.MMDP) -> None:
    given, file = cost_and_effect(small), tmp_path / "effects.csv"
    head = "model,state,action,effect,cost\n"
    rows = [
        f"{m},{s},{a},{float(given['effects'][m, s, a])!r},{float(given['costs'][m, s, a])!r}"
        for m in range(60) for s in range(4) for a in range(3)
    ]  # fmt: skip
    file.write_text(head + "\n".join(rows[::-1]))
    effects, costs = report.read_effects(file, small)
    np.testing.assert_array_equal(effects, given["effects"])
    np.testing.assert_array_equal(costs, given["costs"])
    labelled = small.replace(actions=["wait", "treat", "operate"])
    good = [f"{s},{a},1,2" for s in range(4) for a in ("wait", "treat", "operate")]
    for head, lines, match in (
        ("state,action,efect,cost", good, "unknown column 'efect'.*no column 'effect'"),
        ("state,action,effect,cost", good[1:], "state '0', action 'wait' is not given"),
        ("state,action,effect,cost", [*good, good[0]], "is given twice"),
        ("state,action,effect,cost", ["0,trat,1,2", *good], "line 2.*did you mean 'treat'"),
        ("state,action,effect,cost", ["0,wait,x,2", *good[1:]], "line 2: effect is 'x'"),
        ("state,action,effect,cost", [], "a header but no rows"),
    ):
        file.write_text("\n".join([head, *lines]) + "\n")
        with pytest.raises(mmdp.InputError, match=match) as caught:
            report.read_effects(file, labelled)
        assert "\n" not in str(caught.value)


def test_effects_may_have_ages_next_to_the_time(tmp_path: Path) -> None:
    file = tmp_path / "effects.csv"
    one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 1.0]], times={"age": [50, 51]})
    rows = [f"{t},{50 + t},0,{a},{t + a},{t - a}" for t in (1, 0) for a in (0, 1)]
    file.write_text("\n".join(["time,age,state,action,effect,cost", *rows]))
    assert np.asarray(report.read_effects(file, one)[0])[:, 0, 0].tolist() == [[0, 1], [1, 2]]
    for columns in ("action,effect,cost,age,state", "action,effect,cost,time,modle,state"):
        file.write_text(f"{columns}\n")
        with pytest.raises(mmdp.InputError, match=r"unknown column '(age|modle)'.*counts from 0"):
            report.read_effects(file, one)


def test_cost_and_effect_on_the_command_line(tmp_path: Path, small: mmdp.MMDP) -> None:
    def say(*arguments: object) -> tuple[int, str]:
        found = run(*arguments)
        return found.code, found.out + found.err

    mmdp.save(small, tmp_path / "models")
    rows = [f"{s},{a},{a},{10 * a + s}" for s in range(4) for a in range(3)]
    (tmp_path / "effects.csv").write_text("\n".join(["state,action,effect,cost", *rows]))
    given = ("--effects", tmp_path / "effects.csv", "--thresholds", "5,20")
    out = tmp_path / "report.html"
    assert say("report", tmp_path / "models", "-T", 3, "-o", out, *given)[0] == 0
    page = Page(out.read_text(encoding="utf-8")).text
    # at 20 for a unit that costs 10 the largest effect is the best: 2 at each of 3 discounted steps
    effect = 2 * (1 + 0.9 + 0.81)
    assert re.search(rf" 20 policy \d {number(effect)} ", page)
    picture = tmp_path / "w.png"
    assert say("plot", "willingness", tmp_path / "models", "-T", 3, "-o", picture, *given)[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    beside = (*given, "--compare", "never treat=0", "--cost-rate", "0.05", "--effect-rate", "0")
    assert say("report", tmp_path / "models", "-T", 3, "-o", out, *beside)[0] == 0
    page = Page(out.read_text(encoding="utf-8")).text
    # 2 units at each of 3 steps, not discounted; action 0 has none
    assert re.search(r" 20 policy \d 6(\.0+)? ", page)
    assert re.search(rf" never treat [\d.]+ {number(0.0)} ", page)
    mmdp.save_policy(mmdp.MarkovPolicy(np.ones((3, 4), int), n_actions=3), tmp_path / "one.csv")
    usual = (*given, "--compare", f"usual={tmp_path / 'one.csv'}", "--within-cycle", "simpson")
    assert say("plot", "loss", tmp_path / "models", "-T", 3, "-o", picture, *usual)[0] == 0
    for arguments, told in (
        (given[:2], "belong together"),
        (("--cost-rate", "0.1"), "this option is about costs and effects; give --effects too"),
        ((*given, "--compare", "never"), "'never' is not NAME=POLICY"),
        ((*given, "--compare", "a=0", "--compare", "a=1"), "'a=1' is named twice"),
        ((*given, "--compare", "a=9"), "policy 'a': unknown action '9'; choose from 0..2"),
        ((*given, "--cost-rate", "0.9"), "cost_rate is a discount rate per step"),
        ((*given[:3], "5;20"), "give numbers separated by commas"),
    ):
        code, printed = say("report", tmp_path / "models", "-T", 3, "-o", out, *arguments)
        assert code == 2
        assert told in printed


def long_walk(n: int = 2000) -> mmdp.MMDP:
    """n states in a ring, from state 0.45 n to the right."""
    from scipy import sparse

    stay, right = sparse.identity(n, format="csr"), sparse.eye(n, k=1, format="csr")
    right = right + sparse.csr_matrix(([1.0], ([n - 1], [0])), shape=(n, n))
    matrices = [[p * right + (1 - p) * stay, stay] for p in (1.0, 0.7)]
    rewards = np.stack([np.sin(np.arange(n)), np.zeros(n)], axis=1)
    return mmdp.MMDP(matrices, rewards, initial=np.eye(n)[9 * n // 20])


def test_a_heat_map_of_many_cells_keeps_the_states_that_are_visited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmdp.report.heatmap.MOST_CELLS", 5_000)
    model, T, kept = long_walk(400), 50, 100
    solution = mmdp.solve(model, T)
    page = written(tmp_path, model, policy=solution, methods=())
    assert f"The {400 - kept} least visited states are left out" in page.text
    data = drawn_data(page)
    states = np.array(data["states"], dtype=int)
    assert len(states) == kept
    visited = mmdp.model_weights(solution.policy, model).sum(axis=(0, 1))
    assert set(np.flatnonzero(visited)) <= set(states.tolist())
    place = unpack(data["place"], "<u2", (T, kept))
    assert (np.array(data["used"])[place] == solution.policy.actions[:, states]).all()
    assert "the 60 most visited" in page.text


def test_warnings(tmp_path: Path, small: mmdp.MMDP) -> None:
    quiet = written(tmp_path, small, horizon=4).text
    assert "No initial distribution" not in quiet
    assert "few models" not in quiet
    few = small.subset([0, 1, 2]).replace(initial=None)
    loud = written(
        tmp_path, few, horizon=4, unseen=[("0", "0"), ("0", "1"), ("0", "2")],
        notes=["the log ends in 1999"],
    ).text  # fmt: skip
    assert "No initial distribution was given" in loud
    assert "There are few models (3):" in loud
    assert "3 state-action pairs of 12 were never seen" in loud
    skewed = written(tmp_path, few.replace(weights=[0.261, 0.529, 0.21]), horizon=4).text
    assert "There are few models (3):" in skewed
    assert "as good as 2.55 equal ones" in skewed
    action = mmdp.solve(few, 4).policy.actions[0, 0]
    assert re.search(rf"takes such actions: .*{action} in state 0", loud)
    assert "the log ends in 1999" in loud
    given = mmdp.MarkovPolicy.random(small, 4, seed=1)
    gain = mmdp.solve(small, 4).value - mmdp.evaluate(given, small).mean
    beaten = written(tmp_path, small, policy=given).text
    assert f"CADP finds one that returns {number(gain)} more" in beaten
    weighted = small.replace(weights=[0.0, *[1 / 59] * 59])
    assert "1 model of weight 0 did not count" in written(tmp_path, weighted, horizon=3).text


def test_unstable_decisions_are_told(tmp_path: Path) -> None:
    # two actions that are nearly equally good: the resample decides. An odd number of signs
    # never adds up to 0, so that no decision hangs on rounding, which differs between kernels
    sign = np.where(np.arange(41) % 2, 1.0, -1.0)
    rewards = np.stack([np.zeros(41), sign], axis=1)[:, None, :]
    torn = mmdp.MMDP(np.ones((41, 1, 2, 1)), rewards)
    found = findings.resamples(Desk(torn, 1))
    assert found is not None
    page = written(tmp_path, torn, horizon=1, resamples=None)
    assert found.share > 0.2
    assert f"{percent(found.share)} of the decisions that come up change" in page.text


def test_a_solution_for_other_models_proves_nothing(tmp_path: Path, small: mmdp.MMDP) -> None:
    solution = mmdp.solve(small, 4)
    same = written(tmp_path, small, policy=solution).text
    assert solution.status.value in same.split("How good is it?")[1].split("mean return")[0]
    other = written(tmp_path, small.subset(range(10)), policy=solution, methods=()).text
    assert "The policy was given; its figures are exact" in other


def test_randomised_policies_and_planners(tmp_path: Path, small: mmdp.MMDP) -> None:
    mixed = mmdp.MarkovPolicy.uniform(small, 3)
    page = written(tmp_path, small, policy=mixed, methods=("cadp", mmdp.QMDP(episodes=2)))
    assert "The most probable action is shown" in page.text
    assert "± is two standard errors of a simulated mean" in page.text
    assert "QMDP" in page.text


def test_one_model_one_state(tmp_path: Path) -> None:
    page = written(tmp_path, mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]]), horizon=1)
    assert "returns 3 on average over the one model" in page.text
    assert "There is only one model" in page.text


@pytest.mark.parametrize(
    ("unseen", "told"),
    [("prior", "what happens there comes from the prior alone"),
     ("forbid", "no policy may take them"),
     ("absorb", "the models stay there and earn 0")],
)  # fmt: skip
def test_pages_say_what_the_log_of_the_models_lacks(tmp_path: Path, unseen: Any, told: str) -> None:
    """Whether the models come from fit or from the folder that it wrote."""
    log = {"state": ["a", "a", "b", "b", "a"], "action": ["x", "x", "x", "y", "x"],
           "next_state": ["b", "a", "a", "b", "b"], "reward": [0, 1, 2, 3, 0]}  # fmt: skip
    found = mmdp.posterior.fit_folder(log, tmp_path / "models", models=30, unseen=unseen)
    assert found.unseen == (("a", "y"),)
    for model in (found.train, mmdp.load(tmp_path / "models")):
        text = written(tmp_path, model, horizon=4).text
        assert f"1 state-action pair of 4 was never seen in the data; {told}." in text
        expected = mmdp.posterior.coverage(model, mmdp.solve(model, 4))
        assert f"fitted anew, {expected.covered} gave a range that did" in text
    assert "never seen" not in written(tmp_path, risky(), horizon=2).text


# ------------------------------------------------------------------ labels stay text
def test_labels_are_text(tmp_path: Path, evil: mmdp.MMDP) -> None:
    page = written(
        tmp_path, evil, horizon=5, unseen=[(SCRIPT, SCRIPT)], notes=[IMAGE], resamples=2,
        information=True,
    )  # fmt: skip
    assert [tag for tag, _ in page.elements].count("script") == 3
    assert not {"img", "i", "b"} & {tag for tag, at in page.elements if at.get("src")}
    assert not any(name.startswith("on") for _, at in page.elements for name in at)
    assert drawn_data(page)["states"] == [SCRIPT, IMAGE, QUOTES, LONG]
    assert "<script>window.ran" in page.text  # shown, not run
    titles = {at.get("title") for _, at in page.elements}
    assert {LONG, SCRIPT} <= titles
    assert LONG not in page.text  # cut, whole in the title


def test_nothing_comes_from_elsewhere(tmp_path: Path, evil: mmdp.MMDP) -> None:
    page = written(tmp_path, evil, horizon=5)
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    policy = next(at["content"] for _, at in page.elements if at.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def test_the_page_is_made_of_named_parts(tmp_path: Path, small: mmdp.MMDP) -> None:
    page = written(tmp_path, small, horizon=4)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("h1") == 1
    assert tags.count("table") == tags.count("caption")
    for tag, at in page.elements:
        if tag == "svg":
            assert at["role"] == "img"
            assert at["aria-label"]
    ids = [at["id"] for _, at in page.elements if "id" in at]
    assert len(ids) == len(set(ids))


# ------------------------------------------------------------------ files and bad input
def test_whole_or_nothing(tmp_path: Path, small: mmdp.MMDP) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    with pytest.raises(mmdp.InputError, match="no method is called"):
        report.write(small, target, horizon=3, methods=("cadp", "nothing"))
    assert target.read_text() == "old"
    assert [x.name for x in tmp_path.iterdir()] == ["report.html"]


def test_bad_input(tmp_path: Path, small: mmdp.MMDP) -> None:
    def refused(match: str, model: Any = small, out: str = "r.html", **options: Any) -> None:
        with pytest.raises(mmdp.InputError, match=match) as caught:
            report.write(model, tmp_path / out, **options)
        assert "\n" not in str(caught.value)

    refused("ends in .html", out="r.txt", horizon=3)
    refused("no folder", out="none/r.html", horizon=3)
    refused("give the horizon")
    refused("about an MMDP, not int", model=3, horizon=3)
    refused("needs a policy or a method", horizon=3, methods=())
    refused(
        "oracle has one policy per model; choose methods='cadp'",
        horizon=3,
        methods=("oracle", "cadp"),
    )
    refused("a report shows a policy or the Solution", horizon=3, policy="policy.csv")
    refused("the policy covers 2 time steps", horizon=3,
            policy=mmdp.MarkovPolicy.uniform(small, 2))  # fmt: skip
    other = mmdp.MMDP(np.ones((1, 1, 1, 1)), [[1.0]])
    refused("the test models have 1 states", horizon=3, test=other)


@pytest.mark.parametrize("kind", sorted(report.PICTURES))
def test_every_plot_as_a_file(tmp_path: Path, small: mmdp.MMDP, kind: str) -> None:
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        target = report.draw(
            kind, small, tmp_path / f"{kind}{ending}", horizon=4, **cost_and_effect(small)
        )
        assert target.read_bytes().startswith(start)


def test_plots_that_cannot_be_drawn(tmp_path: Path, small: mmdp.MMDP) -> None:
    for kind, match, options in (
        ("regrets", "'regret'", {}),
        ("trace", "no method is cadp", {"methods": ("wsu",)}),
        ("regret", "ends in .png or .svg", {"out": "r.pdf"}),
        ("willingness", "needs effects, costs and thresholds", {}),
        ("enough", "a method to solve with", {"methods": (), "policy": mmdp.solve(small, 4)}),
    ):
        out = tmp_path / str(options.pop("out", "r.png"))
        with pytest.raises(mmdp.InputError, match=match):
            report.draw(kind, small, out, horizon=4, **options)
    one = small.subset([0])
    with pytest.raises(mmdp.InputError, match="two models or more"):
        report.draw("weights", one, tmp_path / "r.png", horizon=4)


# ------------------------------------------------------------------ in a real browser
def fake_apt(folder: Path, script: str) -> None:
    for name, text in (("apt-get", script), ("made", "#!/bin/sh\nexit 0\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def test_chromium_is_installed_only_if_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    monkeypatch.setattr(chromium.os, "geteuid", lambda: 0)
    assert chromium.install() == "no chromium, and apt-get is not here: browser tests are skipped"
    # the first install fails, as on a machine without lists of packages; stdin has nobody
    fake_apt(
        tmp_path,
        f'#!/bin/sh\necho "$2" >> {tmp_path}/calls\n'
        'read answer && exit 1\ntest "$DEBIAN_FRONTEND" = noninteractive || exit 1\n'
        f"if [ $2 = update ]; then echo 1 > {tmp_path}/updated; exit 0; fi\n"
        f"test -e {tmp_path}/updated && read x < {tmp_path}/made && "
        f"echo '#!/bin/sh' > {tmp_path}/chromium && /bin/chmod 755 {tmp_path}/chromium\n",
    )
    monkeypatch.setattr(chromium.os, "geteuid", lambda: 1000)
    assert "apt-get needs root" in chromium.install()
    assert not (tmp_path / "calls").exists()
    monkeypatch.setattr(chromium.os, "geteuid", lambda: 0)
    assert chromium.install() == f"browser tests use {tmp_path}/chromium"
    assert (tmp_path / "calls").read_text().split() == ["install", "update", "install"]
    (tmp_path / "chromium").write_text("#!/bin/sh\nexit 1\n")  # found, but it does not start
    fake_apt(tmp_path, "#!/bin/sh\nwhile :; do :; done\n")
    assert "could not be installed" in chromium.install(wait=0.1)


PLOTS = ("methods", "trace", "returns", "regret", "weights", "enough")
DOMAINS: dict[str, tuple[Callable[[], Any], int]] = {
    "RS": (lambda: mmdp.domains.riverswim(seed=0), 50),
    "HIV": (lambda: mmdp.domains.hiv(seed=0), 15),
    "INV": (lambda: mmdp.domains.inventory(seed=0, preset="paper"), 50),
    "POPS": (lambda: mmdp.domains.population_small(seed=0), 50),
    "500 states": (lambda: mmdp.domains.garnet(n_states=500, seed=0), 50),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.slow] * (x in ("RS", "POPS"))) for x in DOMAINS],
)
def test_browser_shows_every_plot(browser: chromium.Chromium, tmp_path: Path, name: str) -> None:
    make, horizon = DOMAINS[name]
    train = make().train.subset(slice(20))
    few = dict(list(train.parameters.items())[:3])
    train = train.replace(parameters=few)
    solution = mmdp.solve(train, horizon)
    shape = train.rewards.shape[-2:]
    given = {
        "effects": np.tile(np.arange(shape[1]), (shape[0], 1)), "costs": np.ones(shape),
        "thresholds": [0, 1, 2],
    }  # fmt: skip
    terminal = {} if train.terminal.any() else given
    target = report.write(
        train, tmp_path / "report.html", policy=solution, methods=("wsu",), seconds=0, enough=True,
        information=name == "HIV", **terminal,
    )  # fmt: skip
    browser.open(target, READY)
    parameters = ("information",) if name == "HIV" else ()  # POPS: many and large, not unasked
    for kind in (*PLOTS, *parameters, *(("willingness",) if terminal else ())):
        if kind == "trace" and len(solution.trace) == 1:
            continue
        wide, high = browser.run(
            f"(b => [b.width, b.height])(document.querySelector('figure[data-plot={kind}] svg')"
            ".getBoundingClientRect())"
        )
        assert wide > 300
        assert high > 80
    colours = browser.run(
        "(c => new Set(new Uint32Array(c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data.buffer)).size)"
        "(document.querySelector('#map canvas'))"
    )
    assert colours > len(np.unique(solution.policy.actions))
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.logged == []
    assert browser.requests == [target.as_uri()]
    _check_cells(browser, train, solution)


def _check_cells(browser: chromium.Chromium, model: mmdp.MMDP, solution: mmdp.Solution) -> None:
    """Walk the map by keyboard and hear what the policy does."""
    if browser.run("!!document.getElementById('rows')"):
        browser.run("(e => { e.value = 'all'; e.dispatchEvent(new Event('change')) })"
                    "(document.getElementById('rows'))")  # fmt: skip
    browser.run("document.getElementById('map').focus()")
    names = [x if model.labelled["action"] else f"action {x}" for x in model.action_labels]
    rows = np.flatnonzero(model.deciding)  # a state without a decision has no row
    last, low = solution.policy.horizon - 1, min(12, len(rows) - 1)
    for keys, (t, row) in (
        ((), (0, 0)),
        (("ArrowDown", "ArrowRight"), (1, 1)),
        (("ArrowDown", "End"), (last, 2)),
        (("PageDown",), (last, low)),
        (("ArrowLeft", "ArrowUp"), (last - 1, low - 1)),
        (("Home", "ArrowLeft"), (0, low - 1)),
    ):
        s = rows[row]
        browser.press(*keys)
        said = browser.run("document.getElementById('said').textContent")
        action = names[solution.policy.actions[t, s]]
        assert said.startswith(f"Time {t}, state {model.state_labels[s]}: {action} (")


def test_browser_draws_half_a_million_cells(browser: chromium.Chromium, tmp_path: Path) -> None:
    model = long_walk()
    solution = mmdp.solve(model, 250, "wsu")
    target = report.write(model, tmp_path / "report.html", policy=solution, methods=(), seconds=0)
    browser.open(target, READY)
    browser.run("(e => { e.value = 'all'; e.dispatchEvent(new Event('change')) })"
                "(document.getElementById('rows'))")  # fmt: skip
    browser.run("document.getElementById('map').focus()")
    browser.press("End")
    said = browser.run("document.getElementById('said').textContent")
    assert said.startswith("Time 249, state 0: action")
    high = browser.run("document.querySelector('#map canvas').height")
    assert high >= 1600
    assert browser.logged == []


def test_browser_runs_no_label(browser: chromium.Chromium, tmp_path: Path, evil: mmdp.MMDP) -> None:
    target = report.write(evil, tmp_path / "report.html", horizon=5, notes=[SCRIPT, IMAGE],
                          unseen=[(SCRIPT, SCRIPT)])  # fmt: skip
    browser.open(target, READY)
    browser.run("document.getElementById('map').focus()")
    assert SCRIPT in browser.run("document.getElementById('said').textContent")
    x, y = browser.run(
        "(e => { e.scrollIntoView(); const b = e.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + 60] })(document.querySelector('#map canvas'))"
    )
    browser.point(x, y)
    tip = browser.run("document.getElementById('tip')")
    assert tip is not None
    assert IMAGE in browser.run("document.getElementById('tip').textContent")
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("window.ran === undefined")
    assert browser.logged == []
    assert browser.requests == [target.as_uri()]


def test_browser_views_dark_and_print(
    browser: chromium.Chromium, tmp_path: Path, small: mmdp.MMDP
) -> None:
    target = report.write(small, tmp_path / "report.html", horizon=6)
    browser.open(target, READY)
    seen = set()
    for look in ("action", "margin", "probability", "agree", "changes"):
        browser.run(f"(e => {{ e.value = '{look}'; e.dispatchEvent(new Event('change')) }})"
                    "(document.getElementById('look'))")  # fmt: skip
        seen.add(browser.run("document.querySelector('#map canvas').toDataURL()"))
    assert len(seen) == 5
    browser.screen(dark=True)
    back, ink = browser.run(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle("
        "document.querySelector('figure svg text')).fill]"
    )
    assert sum(map(int, re.findall(r"\d+", back)[:3])) < 150
    assert sum(map(int, re.findall(r"\d+", ink)[:3])) > 600
    browser.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    browser.screen(390, 800)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.screen()
    assert browser.logged == []


def test_the_page_shows_what_memory_gains_and_its_flow_chart(tmp_path: Path) -> None:
    model = mmdp.domains.two_models().train
    page = written(tmp_path, model, horizon=9, memory=2)
    assert "What would memory gain?" in page.text
    told = mmdp.value_of_memory(model, 9, nodes=(1, 2)).attrs["text"]
    assert page.text.count(told[0].upper() + told[1:]) == 2  # in the answer, and further down
    assert "Node 0 (start)" in page.text
    assert "What would memory gain?" not in written(tmp_path, model, horizon=9).text
    assert report.draw("memory", model, tmp_path / "memory.png", horizon=9, memory=2).is_file()


def test_browser_cuts_neither_figures_nor_captions(
    browser: chromium.Chromium, tmp_path: Path, small: mmdp.MMDP
) -> None:
    """Returns of seven digits on narrow and wide screens."""
    rich = small.replace(rewards=1e6 * (2 + small.rewards))
    target = report.write(rich, tmp_path / "report.html", horizon=3, **cost_and_effect(small))
    wrapped = (
        "[...document.querySelectorAll('.figures b')].filter(e => e.scrollWidth > e.clientWidth "
        "|| e.getBoundingClientRect().height > 45).map(e => e.textContent)"
    )
    cut = (
        "[...document.querySelectorAll('caption')].filter(e => "
        "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.textContent)"
    )
    for wide in (400, 900, 1400):
        browser.screen(wide, 900)
        browser.open(target, READY)
        assert browser.run(wrapped) == []
        assert browser.run(cut) == []
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.screen()


# ------------------------------------------------------------------ the table of sections
def estimates(desk: Desk) -> dict[str, float]:
    return {x.key: x.seconds(desk) for x in sections.SECTIONS if x.tells(desk)}


def test_the_budget_is_spent_from_the_top(small: mmdp.MMDP) -> None:
    """A part is there exactly if it fits beside what must be there and what was chosen above.

    A tenth of the budget is for such parts in any case.
    """
    desk = Desk(small, 40)
    takes = estimates(desk)
    always = [x.key for x in sections.SECTIONS if x.ask is None and x.key in takes]
    assert len(takes) > 10
    assert len(always) > 5
    for seconds in (0.0, 0.1, *np.cumsum(sorted(takes.values())), 1e9):
        found, left = sections.chosen(desk, seconds)
        keys = [x.key for x in found]
        assert keys == [key for key in takes if key in keys]  # in the order of the page
        assert {*keys, *left} == {*takes}
        assert {*always} <= {*keys}
        base = min(sum(takes[key] for key in takes if key in always), 0.9 * seconds)
        for key, missing in left.items():
            above = [k for k in list(takes)[: list(takes).index(key)] if k in keys]
            spent = base + sum(takes[k] for k in above if k not in always)
            assert spent + takes[key] > seconds - 1e-9  # but for rounding
            assert missing.budget
        extra = [key for key in keys if key not in always]
        assert not extra or base + sum(takes[k] for k in extra) <= seconds + 1e-9
    assert not sections.chosen(desk, 1e9)[1]


def test_what_is_asked_for_or_declined_needs_no_budget(small: mmdp.MMDP) -> None:
    desk = Desk(small, 4, frontier=True, memory=0, resamples=3, enough=False)
    for seconds, others in ((0.0, set()), (1e9, {"simpler", "information"})):
        found, left = sections.chosen(desk, seconds)
        keys = {x.key for x in found}
        assert {"frontier", "resamples"} | others <= keys
        assert not {"memory", "enough"} & keys
        assert not left["memory"].budget


def test_the_page_says_what_it_left_out(tmp_path: Path, small: mmdp.MMDP) -> None:
    file = report.write(small, tmp_path / "r.html", horizon=4, seconds=0)
    text = Page(file.read_text(encoding="utf-8")).text
    for words in (
        "To stay within about", "simpler policies (about", "safer policies (about",
        "frontier=True , --frontier", "the value of each parameter (about", "memory=3 , --memory 3",
        "enough=True , --enough", "resamples=20 , --enough",
    ):  # fmt: skip
        assert words in text, words
    needed = re.search(r"With seconds=(\d+) or --seconds \1 it has everything", text)
    assert needed is not None
    desk = Desk(small, 4)
    assert not sections.chosen(desk, float(needed[1]))[1]


def test_each_solve_and_evaluation_is_made_once(
    tmp_path: Path, small: mmdp.MMDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmdp.report import desk as module

    made: list[Any] = []

    def counting(name: str) -> Any:
        original = getattr(module, name)

        def call(first: Any, *rest: Any, **options: Any) -> Any:
            content = first.parts if name == "evaluate" else rest[1]
            made.append((name, str(content), id(rest[0]) if name == "evaluate" else 0))
            return original(first, *rest, **options)

        return call

    for name in ("solve", "evaluate"):
        monkeypatch.setattr(module, name, counting(name))
    written(tmp_path, small, horizon=6, test=small.subset(range(30)))
    assert len(made) == len(set(made))
    assert [x[0] for x in made].count("solve") == 3


def test_nothing_is_computed_while_the_page_is_filled(
    tmp_path: Path, small: mmdp.MMDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmdp import kernels
    from mmdp.draw import axes
    from mmdp.report import page as module

    render = module.render

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a template computes")

    def alone(template: str, **facts: Any) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "get", refuse)
            patch.setattr(axes, "_drawn", refuse)
            return str(render(template, **facts))

    monkeypatch.setattr(module, "render", alone)
    page = written(tmp_path, small, horizon=4, frontier=True, information=True, enough=True)
    assert "What safety costs" in page.text


def test_progress_names_every_section(tmp_path: Path, small: mmdp.MMDP) -> None:
    said: list[str] = []
    report.write(small, tmp_path / "r.html", horizon=4, say=said.append)
    found, _ = sections.chosen(Desk(small, 4), report.SECONDS)
    assert len(said) == len(found) + 1
    for line, section in zip(said, found, strict=False):
        assert line.startswith(section.words)


def test_refusals_name_the_nearest_way(tmp_path: Path, small: mmdp.MMDP) -> None:
    two, out = mmdp.domains.two_models().train, tmp_path / "r.html"
    nodes = mmdp.solve(two, 9, policy=mmdp.Memory(nodes=2))
    with pytest.raises(mmdp.InputError, match="needs a policy or a method that computes one"):
        report.write(two, out, policy=nodes.policy, methods=[])
    for wrong, match in (({"frontire": True}, "did you mean 'frontier'"), ({"seconds": -1}, "at")):
        with pytest.raises(mmdp.InputError, match=match):
            report.write(small, out, horizon=3, **wrong)
    with pytest.raises(mmdp.InputError, match="no argument 'title'"):
        report.draw("regret", small, tmp_path / "r.png", horizon=3, title="x")  # type: ignore[call-arg]


def test_a_gap_that_is_proven_closed_is_no_gap(tmp_path: Path, small: mmdp.MMDP) -> None:
    import dataclasses

    found = mmdp.solve(small, 4)
    near = Bound(found.value + 5e-7 * abs(found.value), "exact", "markov")
    proven = dataclasses.replace(found, certificate=near, status=mmdp.Status.OPTIMAL)
    page = written(tmp_path, small, policy=proven)
    assert "It is proven to be the best policy of time and state." in page.text
    assert "0 missing to the best, at most" in page.text
    assert "(gap 0%)" in repr(proven)
    open_ = dataclasses.replace(found, certificate=near)
    missing = at_most(near.value - found.value)
    assert f"at most {missing} is missing" in written(tmp_path, small, policy=open_).text
    assert "(gap 0.0001%)" in repr(open_)


# ------------------------------------------------------------------ times, units, many states
def test_the_page_shows_ages_and_the_unit(tmp_path: Path, small: mmdp.MMDP) -> None:
    named = small.replace(times={"age": range(40, 45)}, unit="$")
    policy = mmdp.MarkovPolicy.for_model(named, [[0, 1, 0, 1]] * 3 + [[1, 1, 0, 1]] * 4)
    page = written(tmp_path, named, policy=policy)
    data, value = drawn_data(page), number(mmdp.evaluate(policy, named).mean)
    assert (data["clock"], data["times"]) == ("age", [str(40 + t) for t in range(7)])
    assert "7 decisions, from age 40 to 46" in page.text
    assert "Action by age 0" in page.text
    assert "40–42: action 0; 43–46: action 1" in page.text
    assert f"returns {'−' * (value[0] == '−')}${value.lstrip('−')} on average" in page.text
    assert "return in $ (dotted: mean)" in page.text


def test_a_map_begins_with_the_states_that_come_up(tmp_path: Path) -> None:
    size, T = 50, 6  # from 0 a step to the right at most: states beyond T are never met
    P = np.zeros((2, size, 2, size))
    for s in range(size):
        P[:, s, :, s] += 0.5
        P[:, s, :, min(s + 1, size - 1)] += 0.5
    labels = [f"row={s // 10}, column={s % 10}" for s in range(size)]
    rng = np.random.default_rng(0)
    model = mmdp.MMDP(P, rng.random((size, 2)), initial=np.eye(size)[0], states=labels)
    page = written(tmp_path, model, horizon=T)
    data = drawn_data(page)
    assert data["first"] == list(range(T))
    assert "the 6 most visited (100% of the decisions)" in page.text
    values = [x for tag, x in page.elements if tag == "optgroup"]
    assert [x["label"] for x in values] == ["row", "column"]
    assert "column=9" in page.text
    assert ("figure", {"data-plot": "policy"}) in page.elements  # the map of two axes
    few = written(tmp_path, model.replace(states=None).subset([0]), horizon=T)
    assert ("figure", {"data-plot": "policy"}) not in few.elements
