"""The page answers first: its sentences agree with figures computed another way."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mmdp
from mmdp.cli.app import app
from mmdp.cli.report import _choose_tighter
from mmdp.core.bounds import Bound
from mmdp.core.text import format_bound, format_bound_percent, format_number, format_percent
from mmdp.insight import report
from mmdp.insight.report import findings
from mmdp.insight.report.context import ReportContext
from tests import chromium
from tests.insight.report.pages import IMAGE, READY, SCRIPT, Page, unpack, write_page


@pytest.fixture(scope="module")
def swim() -> mmdp.MMDP:
    train, _ = mmdp.domains.riverswim(seed=0)
    return train.subset(range(20))


@pytest.fixture(scope="module")
def safe(swim: mmdp.MMDP, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Page]:
    """A page with the frontier, and its text."""
    folder = tmp_path_factory.mktemp("safe")
    page = write_page(folder, swim, horizon=12, frontier=True, test_model=swim.subset(range(10)))
    return folder / "report.html", page


def read_policy_from_text(text: str, model: mmdp.MMDP, horizon: int) -> mmdp.policies.MarkovPolicy:
    """The policy that a reader of the words would follow."""
    table, first_time = np.full((horizon, model.n_states), -1), 0
    for phase, clause in re.findall(r"(For the first|then for|for the last) ([^;.]+)", text):
        steps = int(clause.split()[0])
        assert phase != "for the last" or first_time + steps == horizon
        for action, first, last in re.findall(r"(swim \w+) in states? (\d+)(?:–(\d+))?", clause):
            states = slice(int(first), int(last or first) + 1)
            table[first_time : first_time + steps, states] = model.action_labels.index(action)
        first_time += steps
    assert (table >= 0).all()
    return mmdp.policies.MarkovPolicy(table)


def constant_policy_means(model: mmdp.MMDP) -> list[float]:
    """Mean returns of always taking an action."""
    policies = [mmdp.policies.MarkovPolicy(np.full((12, 20), a), n_actions=2) for a in range(2)]
    return [mmdp.evaluate(model, x).mean for x in policies]


def test_words_give_the_policy_and_its_cost(swim: mmdp.MMDP, safe: tuple[Path, Page]) -> None:
    text = safe[1].text
    words = text.split("What to do ")[1].split("How safe")[0]
    policy, best = read_policy_from_text(words, swim, 12), mmdp.solve(swim, 12)
    cost = best.value - mmdp.evaluate(swim, policy).mean
    assert cost > 0
    section = format_percent(cost / (best.value - max(constant_policy_means(swim))))
    assert f"to the letter costs {format_number(cost, 3)} ({section} of what is at stake)" in text
    visited = mmdp.measures.model_weights(swim, best.policy).sum(axis=(1))
    share = visited[policy.actions == best.policy.actions].sum() / visited.sum()
    share_text = format_percent(share) if share < 0.99 else "more than 99%"
    assert f"These words are right for {share_text} of the decisions" in words
    constant_means = constant_policy_means(swim)
    label = swim.action_labels[int(np.argmax(constant_means))]
    assert f"Always {label} costs {format_number(best.value - max(constant_means), 3)}" in text


def test_safety_is_that_of_the_objective(swim: mmdp.MMDP, safe: tuple[Path, Page]) -> None:
    mean, text = mmdp.solve(swim, 12).evaluation, safe[1].text
    points = [
        mmdp.solve(swim, 12, objective=mmdp.objectives.CVaR(a)) for a in (0.5, 0.2, 0.1, 0.05, 0.01)
    ]
    best = max((x.evaluation for x in points), key=lambda x: x.cvar(0.1))
    gain, cost = best.cvar(0.1) - mean.cvar(0.1), mean.mean - best.mean
    assert gain > 0
    assert (
        f"lifts them by {format_number(gain, 3)} to {format_number(best.cvar(0.1))} and gives up "
        f"{format_number(cost, 3)} "
        f"({format_percent(cost / (mean.mean - max(constant_policy_means(swim))))} of what is at "
        "stake) on average" in text
    )
    row = f"best for the worst 10% {format_number(points[2].evaluation.mean, 5)}"
    assert row in text


def test_risk_averse_policy_is_measured_by_its_objective(swim: mmdp.MMDP, tmp_path: Path) -> None:
    """By the mean the simplest rules beat it, and costing nothing is what the page must not say."""
    objective = mmdp.objectives.CVaR(0.1)
    safe = mmdp.solve(swim, 12, objective=objective)
    bound = Bound(1.1 * safe.value, "pairs", "markov", objective=objective)
    constant_policies = [
        mmdp.policies.MarkovPolicy(np.full((12, 20), a), n_actions=2) for a in range(2)
    ]
    tails = [mmdp.evaluate(swim, x).value(objective) for x in constant_policies]
    text = write_page(
        tmp_path, swim, policy=safe, methods=["mvp"], frontier=False, bound=bound
    ).text
    assert (
        f"on average over the 20 models. What counts is the mean over the worst 10% of the "
        f"models, by weight (CVaR 10%): {format_number(safe.value)} ." in text
    )
    assert "The policy found by CADP (CVaR 10%) returns" in text
    missing, stake = bound.value - safe.value, safe.value - max(tails)
    assert (
        f"has a CVaR 10% of more than {format_bound(bound.value)}: this policy is at most "
        f"{format_bound(missing, 3)} "
        f"({format_bound_percent(missing / stake)} of what is at stake) below the best." in text
    )
    cost_match = re.search(r"Always [^.]* worsens the CVaR 10% by ([\d.]+\d)", text)
    assert cost_match is not None
    assert cost_match[1] in {format_number(safe.value - x, 3) for x in tails}
    assert "finds one that returns" not in text
    options = {"policy": safe.policy, "methods": ["mvp"]}
    bare = write_page(tmp_path, swim, objective="cvar:0.1", frontier=True, **options)
    oracle_value = mmdp.solve(swim, 12, "oracle").evaluation.value(objective)
    assert f"so this policy is at most {format_bound(oracle_value - safe.value, 3)}" in bare.text
    compared = json.loads(bare.scripts[1])
    this_name, other_name = (compared["names"][i] for i in compared["initialPair"])
    assert this_name == "this policy (best for the worst 10%)"  # the safest, so beside another one
    assert other_name == "best on average"
    tested = write_page(tmp_path, swim, policy=safe, test_model=swim, methods=["cadp"]).text
    assert "is ahead of it there" not in tested  # by the mean, which is not what counts
    text_without_frontier = write_page(tmp_path, swim, frontier=False, **options).text
    assert "What counts is" not in text_without_frontier


def test_a_parameter_that_identifies_the_model_is_not_recommended(
    swim: mmdp.MMDP, tmp_path: Path
) -> None:
    """Four models: x differs in all of them, y has two values."""
    four_models = swim.subset(range(4)).replace(parameters={"x": [1, 2, 3, 4], "y": [0, 0, 1, 1]})
    options = {"horizon": 12, "voi": True}
    text = write_page(tmp_path, four_models, **options).text
    assert "x has a different value in every model, so knowing it means knowing the model." in text
    assert "Knowing x alone is worth" not in text
    both = four_models.replace(parameters={"x": [1, 2, 3, 4], "z": [4, 1, 3, 2]})
    assert "x and z have a different value in every" in write_page(tmp_path, both, **options).text
    groups = four_models.replace(parameters={"y": [0, 0, 1, 1]})
    text = write_page(tmp_path, groups, **options).text
    assert "different value in every model" not in text
    assert "Knowing y alone is worth" in text


def test_memory_and_knowledge_are_bounded_by_oracle(
    swim: mmdp.MMDP, safe: tuple[Path, Page]
) -> None:
    max_gain = mmdp.solve(swim, 12, "oracle").value - mmdp.solve(swim, 12).value
    assert (
        f"models are plausible could return at most {format_bound(max_gain, 3)} (" in safe[1].text
    )
    share = format_bound_percent(
        max_gain / (mmdp.solve(swim, 12).value - max(constant_policy_means(swim)))
    )
    gain_text = f"{format_bound(max_gain, 3)} ({share} of what is at stake)"
    sentence = f"is worth at most {gain_text}, compared with this"
    assert sentence in safe[1].text
    assert "--max-nodes 3" in safe[1].text


def test_a_history_bound_limits_what_memory_gains(tmp_path: Path, swim: mmdp.MMDP) -> None:
    value = mmdp.solve(swim, 12).value
    half = (mmdp.solve(swim, 12, "oracle").value - value) / 2
    page = write_page(tmp_path, swim, horizon=12, bound=Bound(value + half, "pairs", "history"))
    assert f"plausible could return at most {format_bound(half, 3)} (" in page.text


def test_the_comparison_holds_every_policy(swim: mmdp.MMDP, safe: tuple[Path, Page]) -> None:
    data = json.loads(safe[1].scripts[1])
    palette = json.loads(safe[1].scripts[0])["usedActions"]
    wsu = mmdp.solve(swim, 12, "wsu")
    i, shape = data["names"].index("WSU"), (12, 20)
    action_positions = unpack(data["actionIds"][i], "<u2", shape)
    assert (np.array(palette)[action_positions & 0x7FFF] == wsu.policy.actions).all()
    visited = mmdp.measures.model_weights(swim, wsu.policy).sum(axis=1)
    assert ((action_positions & 0x8000 == 0) == (visited > 0)).all()
    assert unpack(data["returns"][i], "<f4", (1, 20))[0] == pytest.approx(wsu.returns, rel=1e-6)
    assert data["names"][0] == "this policy (best on average)"
    solution = mmdp.solve(swim, 12)
    assert data["shareBetter"][0][i] == pytest.approx(
        (solution.returns > wsu.returns + 1e-9).mean()
    )
    differ = mmdp.measures.model_weights(swim, solution.policy).sum(axis=1)
    differ = differ[solution.policy.actions != wsu.policy.actions].sum() / 12
    assert data["shareDiffering"][0][i] == pytest.approx(differ)
    assert data["figures"][0]["test_mean"] == pytest.approx(solution.returns[:10].mean())


def test_large_problems_say_what_was_left_out(tmp_path: Path, swim: mmdp.MMDP) -> None:
    page = write_page(tmp_path, swim, horizon=12, frontier=None, max_nodes=None, time_limit=0)
    assert "What a safer policy would cost was left out" in page.text
    assert "Safer policies take several solves of this size" in page.text
    assert "--frontier" in page.text
    assert "One rule for all steps" not in page.text
    assert "What would memory gain?" not in page.text


def test_a_rule_too_long_for_words_lists_its_actions() -> None:
    train, _ = mmdp.domains.population_small(seed=0)
    summary = findings.summarize(ReportContext(train.subset(range(5)), 8))
    assert summary.sentences == []


def test_labelled_states_and_phases(tmp_path: Path) -> None:
    model = mmdp.MMDP(
        np.full((2, 2, 2, 2), 0.5),
        np.zeros((2, 2)),
        states=["well", "ill"],
        actions=["wait", "treat"],
    )
    policy = mmdp.policies.MarkovPolicy([[0, 1]] * 3 + [[0, 0]])
    page = write_page(tmp_path, model, policy=policy, methods=())
    assert (
        "For the first 3 steps: wait in state well, treat in state ill; "
        "at the last step: wait in every state." in page.text
    )


def test_a_tree_is_shown_by_its_splits(swim: mmdp.MMDP, tmp_path: Path) -> None:
    solution = mmdp.solve(swim, 12, policy_class=mmdp.policies.Tree(3))
    rule_html = f'<pre id="rule">{solution.policy.describe()}</pre>'
    mmdp.save(swim, tmp_path / "models")
    mmdp.save_policy(solution, tmp_path / "rule.json")
    out = tmp_path / "report.html"
    arguments = ["report", str(tmp_path / "models"), "--policy", str(tmp_path / "rule.json")]
    result = CliRunner().invoke(app, [*arguments, "-o", str(out), "--time-limit", "1"])
    assert result.exit_code == 0, result.output
    assert rule_html in out.read_text(encoding="utf-8")
    page = write_page(tmp_path, swim, policy=solution)
    assert rule_html in out.read_text(encoding="utf-8")
    simple = page.text.split("Would something simpler do? ")[1].split("Would memory")[0]
    best_constant = max(
        mmdp.evaluate(swim, mmdp.policies.MarkovPolicy(np.full((12, 20), a))).mean for a in (0, 1)
    )
    assert simple.startswith("Always swim ")  # one rule for all steps is a table, not simpler
    assert f"costs {format_number(solution.value - best_constant, 3)}" in simple


def test_named_axes_are_shown_as_axes(tmp_path: Path) -> None:
    model = mmdp.from_step(
        lambda state, action: (dict(state), state["stock"] * action["sell"]),
        states={"stock": range(5), "mode": ["on", "<b>"]},
        actions={"sell": [0, 1]},
    )
    page = write_page(tmp_path, model, horizon=2, methods=("mvp",))
    assert "10: stock 0 to 4, mode on or <b>" in page.text


def test_the_frontier_on_the_command_line(tmp_path: Path) -> None:
    model = mmdp.domains.two_models().train
    mmdp.save(model, tmp_path / "models")
    out = tmp_path / "report.html"
    arguments = ["report", str(tmp_path / "models"), "-T", "3", "-o", str(out), "--frontier"]
    result = CliRunner().invoke(app, [*arguments, "--max-nodes", "0", "--time-limit", "0.001"])
    assert result.exit_code == 0, result.output
    text = Page(out.read_text(encoding="utf-8")).text
    assert "this policy (best on average)" in text
    assert "To stay within about 1.0 ms by estimates from sizes, this page leaves out" in text


def test_the_page_shows_the_tighter_of_two_proofs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof in the file closes the gap; the one that is asked for proves less, or more."""
    model = mmdp.domains.two_models().train
    mmdp.save(model, tmp_path / "models")
    solution = mmdp.solve(model, 3, certify_time=5)
    assert solution.status is mmdp.Status.OPTIMAL
    mmdp.save_policy(solution, tmp_path / "policy.json")
    out = tmp_path / "report.html"
    arguments = [
        *("report", str(tmp_path / "models"), "--policy", str(tmp_path / "policy.json")),
        *("--certify-time", "1", "--max-nodes", "0", "--time-limit", "0", "-o", str(out)),
    ]
    new_bound = Bound(solution.value + 7, "oracle", "history")
    monkeypatch.setattr(mmdp, "bound", lambda *_, **__: new_bound)

    def read_page() -> str:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return Page(out.read_text(encoding="utf-8")).text

    assert "It is proven to be the best" in read_page()
    # one that leaves out policies that draw actions at random is not on the same policies
    narrow_bound = Bound(solution.value, "exact", "deterministic markov")
    assert _choose_tighter(narrow_bound, new_bound) is new_bound
    # a policy without a proof
    mmdp.save_policy(solution.policy, tmp_path / "policy.json")
    assert f"returns more than {format_bound(solution.value + 7)}" in read_page()


# ------------------------------------------------------------------ in a real browser
def read_text(browser: chromium.Chromium, name: str) -> Any:
    return browser.evaluate(f"document.getElementById('{name}').textContent")


def test_browser_has_the_summary_above_the_fold(
    browser: chromium.Chromium, safe: tuple[Path, Page]
) -> None:
    for width, height, last in ((1400, 900, "#summary h3:last-of-type"), (400, 800, "#glance")):
        browser.set_screen(width, height)
        browser.open(safe[0], READY)
        bottom = f"document.querySelector('{last}').getBoundingClientRect().bottom"
        assert browser.evaluate(bottom) <= height
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        clipped = browser.evaluate(
            "[...document.querySelectorAll('#frontier svg text')].filter(e => { const b = "
            "e.getBoundingClientRect(), f = e.closest('svg').getBoundingClientRect(); "
            "return b.left < f.left - 1 || b.right > f.right + 1 }).map(e => e.textContent)"
        )
        assert clipped == []
    browser.set_screen()
    assert browser.log_entries == []
    assert browser.requests == [safe[0].as_uri()]


def test_browser_moves_along_the_frontier(
    browser: chromium.Chromium, swim: mmdp.MMDP, safe: tuple[Path, Page]
) -> None:
    browser.open(safe[0], READY)
    data = json.loads(safe[1].scripts[1])
    browser.evaluate("document.getElementById('safety').focus()")
    browser.press("Home")
    assert read_text(browser, "one-name") == data["names"][0]
    drawn_points = set()
    for i in range(1, data["nFrontier"]):
        browser.press("ArrowRight")
        assert read_text(browser, "pair-summary").startswith(
            f"B{data['names'][i][1:]}, compared with this"
        )
        drawn_points.add(browser.evaluate("document.querySelector('#one-map canvas').toDataURL()"))
        dots = "document.querySelectorAll('#each .more, #each .less').length"
        assert browser.evaluate(dots) == swim.n_models
    assert len(drawn_points) == len(set(data["actionIds"][1 : data["nFrontier"]]))
    assert "of the models and less in" in read_text(browser, "pair-summary")
    assert browser.log_entries == []


def test_browser_compares_cells_by_mouse_and_keyboard(
    browser: chromium.Chromium, swim: mmdp.MMDP, safe: tuple[Path, Page]
) -> None:
    browser.open(safe[0], READY)
    names = json.loads(safe[1].scripts[1])["names"]
    i = names.index("WSU")
    browser.evaluate(
        f"(e => {{ e.value = '{i}'; e.dispatchEvent(new Event('change')) }})"
        "(document.getElementById('one'))"
    )
    wsu_actions, cadp_actions = (
        mmdp.solve(swim, 12, "wsu").policy.actions,
        mmdp.solve(swim, 12).policy.actions,
    )
    t, s = (int(x) for x in np.argwhere(wsu_actions != cadp_actions)[0])
    browser.evaluate("document.getElementById('one-map').focus()")
    browser.press(*["ArrowRight"] * t, *["ArrowDown"] * s)
    announced = read_text(browser, "compared")
    assert announced.startswith(f"Time {t}, state {s}: {swim.action_labels[wsu_actions[t, s]]} (")
    assert f"with WSU, {swim.action_labels[cadp_actions[t, s]]} (" in announced
    x, y = browser.evaluate(
        "(e => { e.scrollIntoView(); const b = e.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + 60] })(document.querySelector('#other-map canvas'))"
    )
    browser.move_mouse(x, y)
    assert "Time " in read_text(browser, "tip")
    x, y = browser.evaluate(
        "(e => { e.scrollIntoView(); const b = e.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2] })"
        "(document.querySelector('#plane .safer'))"
    )
    browser.move_mouse(x, y)
    assert "compared with" in read_text(browser, "tip")
    assert read_text(browser, "one-name") in names[: json.loads(safe[1].scripts[1])["nFrontier"]]
    assert browser.log_entries == []


def test_browser_fades_unreachable_cells_of_a_stationary_rule(
    browser: chromium.Chromium, tmp_path: Path
) -> None:
    P = np.zeros((2, 3, 2, 3))
    P[:, 0, :, 1] = P[:, 1, 0, 1] = P[:, 1, 1, 2] = P[:, 2, :, 2] = 1
    line = mmdp.MMDP(P, [[1.0, 0], [0, 1], [1, 0]], initial=[1, 0, 0], discount=0.9)
    for second, pale in ((1, False), (0, True)):  # state 2 is reached at time 2, or never
        rule = mmdp.policies.StationaryPolicy([0, second, 0], n_actions=2)
        browser.open(report.write(line, tmp_path / "r.html", policy=rule, horizon=4), READY)
        assert read_text(browser, "legend").endswith("never reached") == pale
    assert browser.log_entries == []


def test_browser_shows_hostile_names_as_text(browser: chromium.Chromium, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    evil = mmdp.MMDP(
        rng.dirichlet(np.ones(2), size=(6, 2, 2)),
        rng.normal(size=(6, 2, 2)),
        states=[SCRIPT, IMAGE],
        actions=[IMAGE, SCRIPT],
        models=[f"{SCRIPT}{m}" for m in range(6)],
    )
    target = report.write(evil, tmp_path / "r.html", horizon=3, frontier=True, max_nodes=2)
    browser.open(target, READY)
    browser.evaluate("document.getElementById('one-map').focus()")
    assert SCRIPT in read_text(browser, "compared")
    x, y = browser.evaluate(
        "(e => { e.scrollIntoView(); const b = e.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + 60] })(document.getElementById('each'))"
    )
    browser.move_mouse(x, y)
    assert read_text(browser, "tip").startswith(f"Model {SCRIPT}")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("window.ran === undefined")
    assert browser.log_entries == []
    assert browser.requests == [target.as_uri()]


def test_perfect_information_note_if_rows_are_sampled_independently(tmp_path: Path) -> None:
    """An episode that ends: discount 1, models that begin apart, and what is done today."""
    rng, n_ill = np.random.default_rng(0), 9
    dead, alive, end = range(n_ill, n_ill + 3)
    mean, rewards = np.zeros((12, 3, 12)), np.zeros((12, 3, 12))
    mean[:n_ill, :, :n_ill] = 0.85 * rng.dirichlet(np.ones(n_ill), size=(n_ill, 3))
    mean[:n_ill, :, [dead, alive]] = 0.15 * rng.dirichlet([1, 4], size=(n_ill, 3))
    mean[n_ill:, :, end], rewards[:, :, alive] = 1, 1
    usual = np.eye(3)[np.zeros(12, int)]
    usual[:n_ill] = rng.dirichlet(np.ones(3), size=n_ill)
    clinicians = mmdp.policies.StationaryPolicy(probabilities=usual)
    model = mmdp.fit(
        {"state": [end], "action": [0], "next_state": [end]},
        prior=mean,
        concentration=20.0,
        absorbing=[end],
        rewards=rewards,
        initial=np.eye(12)[0],
        states=12,
        actions=3,
        n_models=12,
        seed=0,
    ).train.replace(initial=rng.dirichlet(np.ones(12), size=12))
    solution = mmdp.solve(model, math.inf)
    long = mmdp.evaluate(model, solution.policy.to_markov(1000))
    assert long.returns == pytest.approx(solution.returns, abs=1e-9)
    page = report.write(
        model,
        tmp_path / "icu.html",
        horizon=60,
        policy=solution,
        comparators={"clinicians": clinicians},
    )
    text = page.read_text(encoding="utf-8")
    assert "clinicians" in text


def test_browser_chooses_states_by_a_value_with_a_comma(
    browser: chromium.Chromium, tmp_path: Path
) -> None:
    labels = [f"{x}, stock={i}" for x in ("sky=wet, cold", "sky=dry") for i in range(25)]
    model = mmdp.MMDP(
        np.eye(50)[None, :, None], np.ones((50, 1)), states=labels, initial=np.eye(50)[0]
    )
    out = mmdp.report.write(model, tmp_path / "page.html", horizon=2, time_limit=0.001)
    browser.open(out, READY)
    for row in ("sky=wet, cold", "stock=3"):
        browser.evaluate(
            f"(e => {{ e.value = '{row}'; e.dispatchEvent(new Event('change')) }})"
            "(document.getElementById('rows'))"
        )
        browser.evaluate("document.getElementById('map').focus()")
        browser.press("Home", "ArrowDown", "ArrowUp")
        assert row in read_text(browser, "said")
    assert browser.log_entries == []


# ---------------------------------------------------------------------- nothing or little to gain
def test_what_gains_nothing_is_said_in_words(tmp_path: Path) -> None:
    """Two models in which the same action is best: nothing is gained by knowing the model."""
    same = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[1.0, 2.0]], [[0.0, 5.0]]], unit="kt")
    text = write_page(tmp_path, same, horizon=2).text
    assert "No policy that learns which models are plausible returns more than this policy." in text
    assert (
        "Knowing the model before the first decision is worth nothing, compared with this policy."
        in text
    )
    assert "compared with this policy. No study can pay for itself." in text
    assert "Someone who knew the true model could return no more, in any model." in text
    assert "at most 0 kt" not in text
    given = mmdp.solve(same, 2, policy_class=mmdp.policies.Memory(1))
    text = write_page(tmp_path, same, policy=given).text
    assert "The given policy, whose only node remembers nothing, returns 7 kt on average" in text


@pytest.mark.parametrize("gain", [0.05, 1.0])
def test_a_safer_policy_that_gains_next_to_nothing_is_not_praised(
    gain: float, tmp_path: Path
) -> None:
    """Treating lifts the worst model and costs 4 in the other; 100 is at stake."""
    model = mmdp.MMDP(
        np.ones((2, 1, 3, 1)),
        [[[0.0, gain, 0.0]], [[200.0, 196.0, 0.0]]],
        actions=["wait", "treat", "leave"],
    )
    text = write_page(
        tmp_path, model, horizon=1, frontier=True, comparators={"today": "leave"}, methods=["cadp"]
    ).text
    assert "What is at stake: 100 between today and this policy." in text
    if gain < 0.1:  # 0.1% of what is at stake
        assert "No policy was found that lifts the worst tenth by more than 0.100 (0.10% of" in text
    else:
        assert re.search(r"lifts the worst tenth by 1 to 1 and gives up 1\.50 \(1\.5% of", text)


def test_a_bound_on_memory_is_used_to_say_what_is_missing(tmp_path: Path, swim: mmdp.MMDP) -> None:
    few = swim.subset(range(4))
    own, oracle = mmdp.solve(few, 6), mmdp.solve(few, 6, "oracle")
    table = mmdp.measures.value_by_nodes(few, 6, n_nodes=(1, 2), time_limit=5)
    most = table["value"].iloc[-2]
    assert own.value < most < oracle.value
    assert table["recovered"].isna().all()  # the belief gains nothing but rounding
    text = write_page(tmp_path, few, policy=own, max_nodes=2).text
    assert "A tighter bound was not asked for" not in text
    found = re.search(
        r"with memory or without, returns more than (\S+): this policy is at most (\S+)", text
    )
    assert found is not None
    room = most - own.value
    assert room <= float(found[2]) * (1 + 1e-9) <= 1.01 * room
    assert room <= float(found[1]) - own.value + 1e-12 <= 2 * room


def test_a_bound_has_the_digits_of_what_is_missing(tmp_path: Path, swim: mmdp.MMDP) -> None:
    own = mmdp.solve(swim, 12)
    missing = own.value * 2.3e-7
    most = Bound(own.value + missing, "pairs", "markov")
    text = write_page(tmp_path, swim, policy=own, bound=most).text
    found = re.search(r"No policy of time and state returns more than ([\d,.]+): this policy", text)
    assert found is not None
    told = float(found[1].replace(",", "")) - own.value
    assert missing <= told <= 1.5 * missing  # not 0.05 more where 0.00001 is missing


# ---------------------------------------------------------------------- rounding, and all or none
def test_rounding_errors_are_not_reported_as_differences(tmp_path: Path) -> None:
    """Every model returns 0.7, and their weights do not add up to 1 in the last digit."""
    test = mmdp.MMDP(np.ones((10, 1, 2, 1)), np.full((10, 1, 2), [0.7, 0.1]), weights=[0.1] * 10)
    rngs = [np.random.default_rng(i) for i in range(9)]
    weighted = [test.replace(weights=rng.dirichlet(np.ones(10))) for rng in rngs]

    def mean(model: mmdp.MMDP) -> float:
        return mmdp.evaluate(model, mmdp.policies.MarkovPolicy([[0]])).mean

    model = max(weighted, key=mean)
    assert 0 < mean(model) - mean(test) < 1e-12
    text = write_page(tmp_path, model, horizon=1, test_model=test, comparators={"today": 0}).text
    assert "less than on its own models" not in text
    assert "It returns as much as today" in text
    assert not re.search(r"\de[-−]\d", text)


def test_a_grid_that_loses_only_rounding_is_fine_enough(tmp_path: Path) -> None:
    """Levels move from one point of the grid to another: the function returns the same."""
    model = mmdp.from_step(
        lambda state, action: (
            {"level": np.minimum(state["level"] + 0.1 * action["add"], 1.0)},
            0.1 * state["level"] - 0.01 * action["add"],
        ),
        states={"level": mmdp.Grid(0, 1, 11)},
        actions={"add": [0, 1]},
        initial={"level": 0.0},
        discount=0.9,
    )
    page = write_page(tmp_path, model, horizon=9)
    assert "Without the grid." in page.text
    assert "make the grid finer" not in page.text


def test_what_holds_in_all_models_or_in_none_is_said_so(tmp_path: Path) -> None:
    model = mmdp.MMDP(
        np.ones((5, 1, 2, 1)), [[[1.0, 3.0]]] * 4 + [[[2.0, 3.0]]], actions=["wait", "treat"]
    )
    treat = mmdp.solve(model, 1)
    text = write_page(tmp_path, model, policy=treat, comparators={"today": "wait"}).text
    assert "than today, and more in all 5 models." in text
    assert "In all of the models the policy is within" in text
    wait = mmdp.policies.MarkovPolicy([[0]])
    text = write_page(tmp_path, model, policy=wait, comparators={"best": "treat"}).text
    assert "than best, and more in none of the 5 models." in text or "less than best." in text
    assert "In every model the policy loses at least 1 (56% of what is at stake) against" in text


def test_one_policy_is_the_best_on_average_and_for_the_worst_models(tmp_path: Path) -> None:
    """In both models treating returns more, so there is nothing to move along."""
    model = mmdp.MMDP(np.ones((2, 1, 2, 1)), [[[1.0, 3.0]], [[2.0, 5.0]]])
    text = write_page(tmp_path, model, horizon=1, frontier=True).text
    assert "The policy that is best on average is also the best found for the worst models" in text
    assert "Move along them" not in text


def test_a_proof_is_never_beside_a_denial_of_it(tmp_path: Path) -> None:
    """WSU claims nothing, but returns as much as someone who knows the model."""
    model = mmdp.MMDP(np.ones((2, 1, 2, 1)), [[[1.0, 3.0]], [[2.0, 5.0]]])
    solution = mmdp.solve(model, 1, "wsu")
    assert solution.status_text == "the method ran to its end; optimality is not proven"
    assert mmdp.solve(model, 1, "wsu", certify_time=1).status_text.startswith("proven optimal")
    text = write_page(tmp_path, model, policy=solution).text
    assert "than someone who knows the model, and this one does as well" in text
    assert "not proven" not in text
    assert "WSU: the method ran to its end." in text
