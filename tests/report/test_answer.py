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
from mmdp import report
from mmdp.bounds import Bound
from mmdp.cli.app import app
from mmdp.report import findings
from mmdp.report.desk import Desk
from mmdp.words import at_most, at_most_percent, number, percent
from tests import chromium
from tests.report.pages import IMAGE, READY, SCRIPT, Page, unpack, written


@pytest.fixture(scope="module")
def swim() -> mmdp.MMDP:
    train, _ = mmdp.domains.riverswim(seed=0)
    return train.subset(range(20))


@pytest.fixture(scope="module")
def safe(swim: mmdp.MMDP, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Page]:
    """A page with the frontier, and its text."""
    folder = tmp_path_factory.mktemp("safe")
    page = written(folder, swim, horizon=12, frontier=True, test=swim.subset(range(10)))
    return folder / "report.html", page


def followed(text: str, model: mmdp.MMDP, horizon: int) -> mmdp.MarkovPolicy:
    """The policy that a reader of the words would follow."""
    table, start = np.full((horizon, model.n_states), -1), 0
    for when, what in re.findall(r"(For the first|then for|for the last) ([^;.]+)", text):
        steps = int(what.split()[0])
        assert when != "for the last" or start + steps == horizon
        for action, first, last in re.findall(r"(swim \w+) in states? (\d+)(?:–(\d+))?", what):
            states = slice(int(first), int(last or first) + 1)
            table[start : start + steps, states] = model.action_labels.index(action)
        start += steps
    assert (table >= 0).all()
    return mmdp.MarkovPolicy(table)


def constant(model: mmdp.MMDP) -> list[float]:
    """Mean returns of always taking an action."""
    every = [mmdp.MarkovPolicy(np.full((12, 20), a), n_actions=2) for a in range(2)]
    return [mmdp.evaluate(x, model).mean for x in every]


def test_the_words_can_be_followed_and_cost_what_is_said(
    swim: mmdp.MMDP, safe: tuple[Path, Page]
) -> None:
    text = safe[1].text
    words = text.split("What to do ")[1].split("How safe")[0]
    policy, best = followed(words, swim, 12), mmdp.solve(swim, 12)
    cost = best.value - mmdp.evaluate(policy, swim).mean
    assert cost > 0
    part = percent(cost / (best.value - max(constant(swim))))
    assert f"to the letter costs {number(cost, 3)} ({part} of what is at stake)" in text
    visited = mmdp.model_weights(best.policy, swim).sum(axis=(1))
    share = visited[policy.actions == best.policy.actions].sum() / visited.sum()
    told = percent(share) if share < 0.99 else "more than 99%"
    assert f"These words are right for {told} of the decisions" in words
    always = constant(swim)
    label = swim.action_labels[int(np.argmax(always))]
    assert f"Always {label} costs {number(best.value - max(always), 3)}" in text


def test_safety_is_that_of_the_objective(swim: mmdp.MMDP, safe: tuple[Path, Page]) -> None:
    mean, text = mmdp.solve(swim, 12).evaluation, safe[1].text
    points = [mmdp.solve(swim, 12, objective=mmdp.CVaR(a)) for a in (0.5, 0.2, 0.1, 0.05, 0.01)]
    best = max((x.evaluation for x in points), key=lambda x: x.cvar(0.1))
    gain, cost = best.cvar(0.1) - mean.cvar(0.1), mean.mean - best.mean
    assert gain > 0
    assert (
        f"lifts them by {number(gain, 3)} to {number(best.cvar(0.1))} and gives up "
        f"{number(cost, 3)} ({percent(cost / (mean.mean - max(constant(swim))))} of what is at "
        "stake) on average" in text
    )
    row = f"best for the worst 10% {number(points[2].evaluation.mean, 5)}"
    assert row in text


def test_a_safe_policy_is_measured_by_what_it_is_for(swim: mmdp.MMDP, tmp_path: Path) -> None:
    """By the mean the simplest rules beat it, and costing nothing is what the page must not say."""
    goal = mmdp.CVaR(0.1)
    safe = mmdp.solve(swim, 12, objective=goal)
    most = Bound(1.1 * safe.value, "pairs", "markov", objective=goal)
    always = [mmdp.MarkovPolicy(np.full((12, 20), a), n_actions=2) for a in range(2)]
    tails = [mmdp.evaluate(x, swim).value(goal) for x in always]
    text = written(tmp_path, swim, policy=safe, methods=["mvp"], frontier=False, bound=most).text
    assert (
        f"on average over the 20 models. What counts is the mean over the worst 10% of the "
        f"models, by weight (CVaR 10%): {number(safe.value)} ." in text
    )
    assert "The policy found by CADP (CVaR 10%) returns" in text
    missing, stake = most.value - safe.value, safe.value - max(tails)
    assert (
        f"has a CVaR 10% of more than {at_most(most.value)}: at most {at_most(missing)} is "
        f"missing ({at_most_percent(missing / stake)} of what is at stake)." in text
    )
    told = re.search(r"By CVaR 10%, following .*? Always [^.]* costs ([\d.]+)", text)
    assert told is not None
    assert told[1] in {number(safe.value - x, 3) for x in tails}
    assert "finds one that returns" not in text
    options = {"policy": safe.policy, "methods": ["mvp"]}
    bare = written(tmp_path, swim, objective="cvar:0.1", frontier=True, **options)
    own = mmdp.solve(swim, 12, "oracle").evaluation.value(goal)
    assert f"at most {at_most(own - safe.value)} is missing" in bare.text
    compared = json.loads(bare.scripts[1])
    this, other = (compared["names"][i] for i in compared["start"])
    assert this == "this policy (best for the worst 10%)"  # the safest, so beside another one
    assert other == "best on average"
    tested = written(tmp_path, swim, policy=safe, test=swim, methods=["cadp"]).text
    assert "is ahead of it there" not in tested  # by the mean, which is not what counts
    plain = written(tmp_path, swim, frontier=False, **options).text
    assert "What counts is" not in plain


def test_a_parameter_that_gives_the_model_away_is_not_praised(
    swim: mmdp.MMDP, tmp_path: Path
) -> None:
    """Four models: x differs in all of them, y has two values."""
    few = swim.subset(range(4)).replace(parameters={"x": [1, 2, 3, 4], "y": [0, 0, 1, 1]})
    options = {"horizon": 12, "information": True}
    text = written(tmp_path, few, **options).text
    assert "x has another value in every model, so to know it is to know the model." in text
    assert "Knowing x alone is worth" not in text
    both = few.replace(parameters={"x": [1, 2, 3, 4], "z": [4, 1, 3, 2]})
    assert "x and z have another value in every" in written(tmp_path, both, **options).text
    groups = few.replace(parameters={"y": [0, 0, 1, 1]})
    text = written(tmp_path, groups, **options).text
    assert "another value in every model" not in text
    assert "Knowing y alone is worth" in text


def test_memory_and_knowledge_are_bounded_by_oracle(
    swim: mmdp.MMDP, safe: tuple[Path, Page]
) -> None:
    most = mmdp.solve(swim, 12, "oracle").value - mmdp.solve(swim, 12).value
    assert f"models are plausible could gain at most {at_most(most)} (" in safe[1].text
    part = at_most_percent(most / (mmdp.solve(swim, 12).value - max(constant(swim))))
    told = f"is worth at most {at_most(most)} ({part} of what is at stake)"
    assert told in safe[1].text
    assert "--memory 3" in safe[1].text


def test_a_history_bound_limits_what_memory_gains(tmp_path: Path, swim: mmdp.MMDP) -> None:
    value = mmdp.solve(swim, 12).value
    half = (mmdp.solve(swim, 12, "oracle").value - value) / 2
    page = written(
        tmp_path, swim, horizon=12, bound=Bound(value + half, "pairs", "history")
    )  # fmt: skip
    assert f"plausible could gain at most {at_most(half)} (" in page.text


def test_the_comparison_holds_every_policy(swim: mmdp.MMDP, safe: tuple[Path, Page]) -> None:
    data = json.loads(safe[1].scripts[1])
    palette = json.loads(safe[1].scripts[0])["used"]
    wsu = mmdp.solve(swim, 12, "wsu")
    i, shape = data["names"].index("WSU"), (12, 20)
    place = unpack(data["place"][i], "<u2", shape)
    assert (np.array(palette)[place & 0x7FFF] == wsu.policy.actions).all()
    visited = mmdp.model_weights(wsu.policy, swim).sum(axis=1)
    assert ((place & 0x8000 == 0) == (visited > 0)).all()
    assert unpack(data["returns"][i], "<f4", (1, 20))[0] == pytest.approx(wsu.returns, rel=1e-6)
    assert data["names"][0] == "this policy (best on average)"
    mine = mmdp.solve(swim, 12)
    assert data["wins"][0][i] == pytest.approx((mine.returns > wsu.returns + 1e-9).mean())
    differ = mmdp.model_weights(mine.policy, swim).sum(axis=1)
    differ = differ[mine.policy.actions != wsu.policy.actions].sum() / 12
    assert data["differ"][0][i] == pytest.approx(differ)
    assert data["figures"][0]["test_mean"] == pytest.approx(mine.returns[:10].mean())


def test_large_problems_say_what_was_left_out(tmp_path: Path, swim: mmdp.MMDP) -> None:
    page = written(tmp_path, swim, horizon=12, frontier=None, memory=None, seconds=0)
    assert "What a safer policy would cost was left out" in page.text
    assert "Safer policies take several solves of this size" in page.text
    assert "--frontier" in page.text
    assert "One rule for all steps" not in page.text
    assert "What would memory gain?" not in page.text


def test_a_rule_of_too_many_words_is_told_by_its_actions() -> None:
    train, _ = mmdp.domains.population_small(seed=0)
    found = findings.answer(Desk(train.subset(range(5)), 8))
    assert found.sentences == []


def test_labelled_states_and_phases(tmp_path: Path) -> None:
    model = mmdp.MMDP(
        np.full((2, 2, 2, 2), 0.5), np.zeros((2, 2)), states=["well", "ill"],
        actions=["wait", "treat"],
    )  # fmt: skip
    policy = mmdp.MarkovPolicy([[0, 1]] * 3 + [[0, 0]])
    page = written(tmp_path, model, policy=policy, methods=())
    assert (
        "For the first 3 steps: wait in state well, treat in state ill; "
        "at the last step: wait in every state." in page.text
    )


def test_a_tree_is_told_by_its_questions(swim: mmdp.MMDP, tmp_path: Path) -> None:
    solution = mmdp.solve(swim, 12, policy=mmdp.Tree(3))
    told = f'<pre id="rule">{solution.policy.text()}</pre>'
    mmdp.save(swim, tmp_path / "models")
    mmdp.save_policy(solution, tmp_path / "rule.json")
    out = tmp_path / "report.html"
    arguments = ["report", str(tmp_path / "models"), "--policy", str(tmp_path / "rule.json")]
    found = CliRunner().invoke(app, [*arguments, "-o", str(out), "--seconds", "1"])
    assert found.exit_code == 0, found.output
    assert told in out.read_text(encoding="utf-8")
    page = written(tmp_path, swim, policy=solution)
    assert told in out.read_text(encoding="utf-8")
    simple = page.text.split("Would something simpler do? ")[1].split("Would memory")[0]
    always = max(mmdp.evaluate(mmdp.MarkovPolicy(np.full((12, 20), a)), swim).mean for a in (0, 1))
    assert simple.startswith("Always swim ")  # one rule for all steps is a table, not simpler
    assert f"costs {number(solution.value - always, 3)}" in simple


def test_named_axes_are_told_as_axes(tmp_path: Path) -> None:
    model = mmdp.from_step(
        lambda state, action: (dict(state), state["stock"] * action["sell"]),
        states={"stock": range(5), "mode": ["on", "<b>"]}, actions={"sell": [0, 1]},
    )  # fmt: skip
    page = written(tmp_path, model, horizon=2, methods=("mvp",))
    assert "10: stock 0 to 4, mode on or <b>" in page.text


def test_the_frontier_on_the_command_line(tmp_path: Path) -> None:
    model = mmdp.domains.two_models().train
    mmdp.save(model, tmp_path / "models")
    out = tmp_path / "report.html"
    arguments = ["report", str(tmp_path / "models"), "-T", "3", "-o", str(out), "--frontier"]
    found = CliRunner().invoke(app, [*arguments, "--memory", "0", "--seconds", "0.001"])
    assert found.exit_code == 0, found.output
    text = Page(out.read_text(encoding="utf-8")).text
    assert "this policy (best on average)" in text
    assert "To stay within about 1.0 ms, this page leaves out simpler policies" in text


# ------------------------------------------------------------------ in a real browser
def said(browser: chromium.Chromium, name: str) -> Any:
    return browser.run(f"document.getElementById('{name}').textContent")


def test_browser_has_the_answer_above_the_fold(
    browser: chromium.Chromium, safe: tuple[Path, Page]
) -> None:
    for wide, high, last in ((1400, 900, "#answer h3:last-of-type"), (400, 800, "#glance")):
        browser.screen(wide, high)
        browser.open(safe[0], READY)
        bottom = f"document.querySelector('{last}').getBoundingClientRect().bottom"
        assert browser.run(bottom) <= high
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        cut = browser.run(
            "[...document.querySelectorAll('#frontier svg text')].filter(e => { const b = "
            "e.getBoundingClientRect(), f = e.closest('svg').getBoundingClientRect(); "
            "return b.left < f.left - 1 || b.right > f.right + 1 }).map(e => e.textContent)"
        )
        assert cut == []
    browser.screen()
    assert browser.logged == []
    assert browser.requests == [safe[0].as_uri()]


def test_browser_moves_along_the_frontier(
    browser: chromium.Chromium, swim: mmdp.MMDP, safe: tuple[Path, Page]
) -> None:
    browser.open(safe[0], READY)
    data = json.loads(safe[1].scripts[1])
    browser.run("document.getElementById('safety').focus()")
    browser.press("Home")
    assert said(browser, "one-name") == data["names"][0]
    drawn = set()
    for i in range(1, data["along"]):
        browser.press("ArrowRight")
        assert said(browser, "summary").startswith(f"B{data['names'][i][1:]}, compared with this")
        drawn.add(browser.run("document.querySelector('#one-map canvas').toDataURL()"))
        dots = "document.querySelectorAll('#each .more, #each .less').length"
        assert browser.run(dots) == swim.n_models
    assert len(drawn) == len(set(data["place"][1 : data["along"]]))
    assert "of the models and less in" in said(browser, "summary")
    assert browser.logged == []


def test_browser_compares_cells_by_mouse_and_keyboard(
    browser: chromium.Chromium, swim: mmdp.MMDP, safe: tuple[Path, Page]
) -> None:
    browser.open(safe[0], READY)
    names = json.loads(safe[1].scripts[1])["names"]
    i = names.index("WSU")
    browser.run(f"(e => {{ e.value = '{i}'; e.dispatchEvent(new Event('change')) }})"
                "(document.getElementById('one'))")  # fmt: skip
    wsu, mine = mmdp.solve(swim, 12, "wsu").policy.actions, mmdp.solve(swim, 12).policy.actions
    t, s = (int(x) for x in np.argwhere(wsu != mine)[0])
    browser.run("document.getElementById('one-map').focus()")
    browser.press(*["ArrowRight"] * t, *["ArrowDown"] * s)
    heard = said(browser, "compared")
    assert heard.startswith(f"Time {t}, state {s}: {swim.action_labels[wsu[t, s]]} (")
    assert f"with WSU, {swim.action_labels[mine[t, s]]} (" in heard
    x, y = browser.run(
        "(e => { e.scrollIntoView(); const b = e.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + 60] })(document.querySelector('#other-map canvas'))"
    )
    browser.point(x, y)
    assert "Time " in said(browser, "tip")
    x, y = browser.run(
        "(e => { e.scrollIntoView(); const b = e.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2] })"
        "(document.querySelector('#plane .safer'))"
    )
    browser.point(x, y)
    assert "compared with" in said(browser, "tip")
    assert said(browser, "one-name") in names[: json.loads(safe[1].scripts[1])["along"]]
    assert browser.logged == []


def test_browser_has_a_rule_for_all_times_pale_where_it_never_leads(
    browser: chromium.Chromium, tmp_path: Path
) -> None:
    P = np.zeros((2, 3, 2, 3))
    P[:, 0, :, 1] = P[:, 1, 0, 1] = P[:, 1, 1, 2] = P[:, 2, :, 2] = 1
    line = mmdp.MMDP(P, [[1.0, 0], [0, 1], [1, 0]], initial=[1, 0, 0], discount=0.9)
    for second, pale in ((1, False), (0, True)):  # state 2 is reached at time 2, or never
        rule = mmdp.StationaryPolicy([0, second, 0], n_actions=2)
        browser.open(report.write(line, tmp_path / "r.html", policy=rule, horizon=4), READY)
        assert said(browser, "legend").endswith("never reached") == pale
    assert browser.logged == []


def test_browser_shows_hostile_names_as_text(browser: chromium.Chromium, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    evil = mmdp.MMDP(
        rng.dirichlet(np.ones(2), size=(6, 2, 2)), rng.normal(size=(6, 2, 2)),
        states=[SCRIPT, IMAGE], actions=[IMAGE, SCRIPT], models=[f"{SCRIPT}{m}" for m in range(6)],
    )  # fmt: skip
    target = report.write(evil, tmp_path / "r.html", horizon=3, frontier=True, memory=2)
    browser.open(target, READY)
    browser.run("document.getElementById('one-map').focus()")
    assert SCRIPT in said(browser, "compared")
    x, y = browser.run(
        "(e => { e.scrollIntoView(); const b = e.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + 60] })(document.getElementById('each'))"
    )
    browser.point(x, y)
    assert said(browser, "tip").startswith(f"Model {SCRIPT}")
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("window.ran === undefined")
    assert browser.logged == []
    assert browser.requests == [target.as_uri()]


def test_perfect_information_is_out_of_reach_if_rows_were_drawn_apart(tmp_path: Path) -> None:
    """An episode that ends: discount 1, models that begin apart, and what is done today."""
    from benchmarks.icu import clinicians, drawn, made_up

    data = made_up(states=12, actions=3)
    model = drawn(data, 12).replace(
        initial=np.random.default_rng(0).dirichlet(np.ones(12), size=12)
    )
    found = mmdp.solve(model, math.inf)
    long = mmdp.evaluate(found.policy.over(1000), model)
    assert long.returns == pytest.approx(found.returns, abs=1e-9)
    page = report.write(
        model, tmp_path / "icu.html", horizon=60, policy=found,
        compare={"clinicians": clinicians(data)},
    )  # fmt: skip
    text = page.read_text(encoding="utf-8")
    assert "clinicians" in text


def test_browser_chooses_states_by_a_value_with_a_comma(
    browser: chromium.Chromium, tmp_path: Path
) -> None:
    labels = [f"{x}, stock={i}" for x in ("sky=wet, cold", "sky=dry") for i in range(25)]
    model = mmdp.MMDP(
        np.eye(50)[None, :, None], np.ones((50, 1)), states=labels, initial=np.eye(50)[0]
    )
    out = mmdp.report.write(model, tmp_path / "page.html", horizon=2, seconds=0.001)
    browser.open(out, READY)
    for row in ("sky=wet, cold", "stock=3"):
        browser.run(f"(e => {{ e.value = '{row}'; e.dispatchEvent(new Event('change')) }})"
                    "(document.getElementById('rows'))")  # fmt: skip
        browser.run("document.getElementById('map').focus()")
        browser.press("Home", "ArrowDown", "ArrowUp")
        assert row in said(browser, "said")
    assert browser.logged == []
