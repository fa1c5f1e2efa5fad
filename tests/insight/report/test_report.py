"""The report: what it says, that labels stay text, and that a real browser shows it all."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.bounds import Bound
from mmdp.core.text import format_bound, format_bound_percent, format_number, format_percent
from mmdp.insight import report
from mmdp.insight.economics import OutcomeDiscounting, willingness_to_pay
from mmdp.insight.report import PAGE_FIGURES, findings, sections
from mmdp.insight.report.context import ReportContext
from mmdp.insight.report.interactive import PolicyComparison
from tests import chromium
from tests.cli.calls import run
from tests.insight.report.pages import (
    IMAGE,
    LONG_LABEL,
    QUOTES,
    READY,
    SCRIPT,
    Page,
    read_script_data,
    unpack,
    write_page,
)


@pytest.fixture(scope="module")
def small() -> mmdp.MMDP:
    rng = np.random.default_rng(5)
    transitions = rng.dirichlet(np.ones(4), size=(60, 4, 3))
    return mmdp.MMDP(
        transitions,
        rng.normal(size=(4, 3)),
        initial=[1, 0, 0, 0],
        discount=0.9,
        parameters={"p": transitions[:, 0, 0, 0], "q": transitions[:, 1, 1, 1]},
        name="small",
    )


@pytest.fixture(scope="module")
def evil() -> mmdp.MMDP:
    rng = np.random.default_rng(6)
    transitions = rng.dirichlet(np.ones(4), size=(40, 4, 3))
    return mmdp.MMDP(
        transitions,
        rng.normal(size=(4, 3)),
        states=[SCRIPT, IMAGE, QUOTES, LONG_LABEL],
        actions=[LONG_LABEL + "!", "$a$ <b>bold", SCRIPT],
        models=[f"<i>{m}{SCRIPT}" for m in range(40)],
        parameters={f"p{SCRIPT}": rng.normal(size=40), f"q{IMAGE}": transitions[:, 0, 0, 0]},
        name=f"evil {SCRIPT}",
        citation=IMAGE,
        time_labels={f"<b>{SCRIPT}": [IMAGE, SCRIPT, LONG_LABEL]},
        unit=f"$ {SCRIPT}",
    )


# ------------------------------------------------------------------ what it says
def test_the_figures_are_those_of_the_evaluation(tmp_path: Path, small: mmdp.MMDP) -> None:
    test = small.subset(range(30))
    page = write_page(tmp_path, small, horizon=6, test_model=test)
    solution = mmdp.solve(small, 6)
    evaluation, test_evaluation = solution.evaluation, mmdp.evaluate(test, solution)
    oracle = mmdp.solve(small, 6, "oracle").value
    for expected in (
        f"returns {format_number(solution.value)} on average over the 60 models",
        f"The worst is model {int(evaluation.returns.argmin())} with "
        f"{format_number(evaluation.worst)}",
        f"the worst tenth average {format_number(evaluation.cvar(0.1))}",
        f"could return {format_number(oracle)} on average, "
        f"{format_number(oracle - solution.value, 3)} more",
        solution.status.value,
        f"On 30 models not used to compute it, it returns {format_number(test_evaluation.mean)}",
        "always state 0",
        "6 decisions, at times 0 to 5",
    ):
        assert expected in page.text
    for method in ("wsu", "mvp"):
        assert format_number(mmdp.solve(small, 6, method).value, 5) in page.text


def test_the_heat_map_holds_the_policy_and_its_table(tmp_path: Path, small: mmdp.MMDP) -> None:
    from mmdp.insight.measures import policy_table

    solution = mmdp.solve(small, 6)
    page = write_page(tmp_path, small, horizon=6)
    data, shape = read_script_data(page), (6, 4)
    action_positions = unpack(data["actionIds"], "<u2", shape)
    assert (np.array(data["usedActions"])[action_positions] == solution.policy.actions).all()
    table = policy_table(small, solution)
    for name, column in (
        ("margin", "margin"),
        ("probability", "visit_prob"),
        ("agreement", "agreement"),
    ):
        shown_values = unpack(data["layers"][name], "<f4", shape)
        assert shown_values.ravel() == pytest.approx(
            table[column].to_numpy(), nan_ok=True, rel=1e-5
        )
    gradient = mmdp.measures.policy_gradient(small, solution.policy)
    np.put_along_axis(gradient, solution.policy.actions[:, :, None].astype(int), -np.inf, axis=2)
    reachable = table["visit_prob"].to_numpy().reshape(shape) > 0
    runner = unpack(data["runnerUp"], "<i4", shape)
    assert (runner == np.where(reachable, gradient.argmax(axis=2), -1)).all()


def test_the_policy_in_words_is_the_policy(tmp_path: Path, small: mmdp.MMDP) -> None:
    policy = mmdp.policies.MarkovPolicy([[0, 1, 2, 0], [0, 1, 1, 2], [1, 1, 1, 2]])
    page = write_page(tmp_path, small, policy=policy, methods=())
    for runs in (
        "0–1: action 0; 2: action 1",
        "0–2: action 1",
        "0: action 2; 1–2: action 1",
        "0: action 0; 1–2: action 2",
    ):
        assert runs in page.text
    assert format_number(mmdp.evaluate(small, policy).mean) in page.text


def test_a_bound_is_shown_as_a_gap(tmp_path: Path, small: mmdp.MMDP) -> None:
    value = mmdp.solve(small, 4).value
    page = write_page(tmp_path, small, horizon=4, bound=Bound(value * 1.02, "pairs", "history"))
    assert f"No policy returns more than {format_bound(value * 1.02)}" in page.text
    page = write_page(tmp_path, small, horizon=4, bound=value * 1.1125)
    missing = format_bound(value * 0.1125, 3)
    assert f"{missing} missing to the best, at most" in page.text
    best = f"No policy of time and state returns more than {format_bound(value * 1.1125)}"
    assert f"{best}: this policy is at most {missing} (" in page.text
    page = write_page(tmp_path, small, horizon=4, bound=value)
    assert "proven to be the best policy of time and state" in page.text
    page = write_page(tmp_path, small, horizon=4)
    assert "A tighter bound was not asked for" in page.text
    missing = mmdp.solve(small, 4, "oracle").value - value
    table = mmdp.solve(small, 4).policy
    share = format_bound_percent(missing / mmdp.measures.value_at_stake(small, table).amount)
    assert (
        f"at most {format_bound(missing, 3)} ({share} of what is at stake) below the best"
        in page.text
    )
    with pytest.raises(mmdp.InputError, match="is below the policy's own value"):
        report.write(small, tmp_path / "r.html", horizon=4, bound=value * 0.9)


def test_value_of_information_is_that_of_the_measures(tmp_path: Path, small: mmdp.MMDP) -> None:
    from mmdp.insight.measures import evpi, evppi

    page = write_page(tmp_path, small, horizon=4, voi=None)  # small: done unasked
    # in the summary and in the section
    assert page.text.count(f"is worth at most {format_bound(evpi(small, 4), 3)} ") == 2
    for name in ("p", "q"):
        assert f"{name} {format_number(evppi(small, 4, name))}" in page.text
    page = write_page(tmp_path, small, horizon=4)
    assert "takes many solves and was left out" in page.text


def test_sample_size_section(tmp_path: Path, small: mmdp.MMDP) -> None:
    from mmdp.insight.measures import sample_size_curve, stability

    test = small.subset(range(30))
    page = write_page(
        tmp_path, small, horizon=4, test_model=test, sample_size=None, n_resamples=None
    )
    table = sample_size_curve(small, 4, [5, 10, 20, 50, 60], test_model=test, n_repeats=10, seed=0)
    change = table["test"].iloc[-1] - table["test"].iloc[2]
    assert abs(change) < 1e-12  # rounding, which is no difference
    assert "from 60 models instead of 20 returns as much on held-out models." in page.text
    stability_table = stability(small, 4, n_resamples=20, seed=0)
    assert (
        f"changes {format_percent(stability_table.share_changed)} of the decisions that come up"
        in page.text
    )
    halves = write_page(tmp_path, small, horizon=4, sample_size=True)
    assert "from 30 models instead of 10 returns" in halves.text
    assert "on the other half of the models" in halves.text


def test_expensive_sections_are_skipped_and_listed(tmp_path: Path, small: mmdp.MMDP) -> None:
    default_page = write_page(
        tmp_path, small, horizon=4, sample_size=None, n_resamples=None, time_limit=0
    )
    assert "Solving with fewer models takes many solves and was left out" in default_page.text
    assert "Solving again on resampled models takes many solves" in default_page.text
    assert "--sample-size" in default_page.text
    requested_page = write_page(
        tmp_path, small, horizon=4, sample_size=True, n_resamples=3, time_limit=0
    )
    assert "solves of this size and was left out" not in requested_page.text
    assert "Resampling the models 3 times" in requested_page.text
    given_policy_page = write_page(
        tmp_path, small, policy=mmdp.policies.MarkovPolicy.uniform(small, 4), n_resamples=None
    )
    assert "omit the policy to see it" in given_policy_page.text


def make_effects(model: mmdp.MMDP) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    shape = (model.n_models, model.n_states, model.n_actions)
    return {
        "effects": rng.uniform(0, 1, shape) + np.arange(3),
        "costs": rng.uniform(0, 9, shape) + 20 * np.arange(3),
        "wtp_grid": [0.0, 15.0, 60.0],
    }


def test_willingness_to_pay_is_that_of_the_measures(tmp_path: Path, small: mmdp.MMDP) -> None:
    options = make_effects(small)
    page = write_page(tmp_path, small, horizon=3, **options)
    policies = {"this policy": mmdp.solve(small, 3).policy}
    frontier = willingness_to_pay(
        small, options["effects"], options["costs"], options["wtp_grid"], 3, policies=policies
    ).frontier
    assert len(set(frontier["policy"])) > 1
    for row in frontier.itertuples():
        cells = (
            f"{format_number(row.threshold)} {row.policy} {format_number(row.effect)} "
            f"{format_number(row.cost, 5)} "
            f"{format_number(row.nmb, 5)} {format_percent(row.probability)} "
            f"{format_number(row.icer)} "
            f"{format_number(row.evpi)}"
        )
        assert cells in page.text
    assert any(at.get("data-plot") == "willingness" for _, at in page.elements)
    assert any(at.get("data-plot") == "loss" for _, at in page.elements)
    assert "willingness" not in write_page(tmp_path, small, horizon=3).text
    del options["costs"]
    with pytest.raises(mmdp.InputError, match="give all three or none"):
        write_page(tmp_path, small, horizon=3, **options)


@pytest.mark.parametrize("policy_class", [None, mmdp.policies.Tree(2)])
def test_the_page_says_what_the_policies_of_the_sweep_do(
    policy_class: mmdp.policies.Tree | None, tmp_path: Path, small: mmdp.MMDP
) -> None:
    options, own = make_effects(small), mmdp.solve(small, 3, policy_class=policy_class)
    text = write_page(tmp_path, small, policy=own, **options).text
    found = willingness_to_pay(
        small, *options.values(), 3, policy_class=policy_class, policies={"this policy": own.policy}
    )
    assert found.found_names
    for name in found.found_names:
        policy, d = found.policies[name], found.outcomes.policies.index(name)
        table = policy.to_markov(3)
        effects = mmdp.evaluate(small.replace(rewards=options["effects"]), table).returns
        np.testing.assert_allclose(effects, found.effects[d])
        if policy_class is not None:
            assert f"What {name} does: {' '.join(policy.describe().split())}" in text
            continue
        visits = mmdp.measures.model_weights(small, table).sum(axis=1)
        usual = np.bincount(table.actions.ravel(), visits.ravel()) / visits.sum()
        most = f"action {usual.argmax()} ({format_percent(usual.max())} of the decisions)"
        assert f"What {name} does most: {most}" in text


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (
            "state,action,effect,cost,arm",
            "0,0,1,2,0\n0,1,3,4,0",
            "unknown column 'arm'; name state,action,effect,cost in line 1",
        ),
        ("state,action,effect,costs,cost", "0,0,1,2,9\n0,1,3,4,9", "unknown column 'costs' (did"),
        ("state,action,effect,cost", "0,0,5,2\n0,1,5,4", "line 2: effect is 5 in this and every"),
        ("state,action,effect,cost", "0,0,5,2\n0,1,6,2", "line 2: cost is 2 in this and every"),
    ],
)
def test_effects_that_would_be_ignored_are_refused(
    tmp_path: Path, header: str, rows: str, message: str
) -> None:
    file = tmp_path / "effects.csv"
    file.write_text(f"{header}\n{rows}\n")
    one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 1.0]])
    with pytest.raises(mmdp.InputError) as caught:
        report.read_effects(file, one)
    assert message in str(caught.value)


def risky() -> mmdp.MMDP:
    """Two models: the first action is best on average, the second in the worse model."""
    return mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[0.0, 1.0]], [[9.0, 1.0]]])


def test_the_policy_of_a_method_is_listed_once() -> None:
    def list_names(policy: Any) -> list[str]:
        return [
            row.name for row in findings.compare_methods(ReportContext(risky(), None, policy)).rows
        ][:-1]

    assert list_names(mmdp.solve(risky(), 3)) == ["CADP", "WSU", "MVP"]
    careful = mmdp.solve(risky(), 3, objective=mmdp.objectives.CVaR(0.1))
    assert list_names(careful) == ["CADP (CVaR 10%)", "CADP", "WSU", "MVP"]
    assert list_names(careful.policy) == ["the given policy", "CADP", "WSU", "MVP"]


def test_a_policy_that_is_best_for_several_tails_has_their_names() -> None:
    context = ReportContext(risky(), 1, frontier=True)
    chosen, _ = sections.choose_sections(context, 20.0)
    results = findings.SectionResults(**sections.compute_sections(context, chosen))
    comparison = PolicyComparison(context, results)
    assert [x.name for x in comparison.rows[: comparison.n_frontier]] == [
        "this policy (best on average)",
        "best for the worst 50% to 1%",
    ]


@pytest.mark.parametrize("count", [2, 9])
def test_comparators_are_always_drawn(count: int, small: mmdp.MMDP) -> None:
    """However many there are on the frontier; those that were found have what room is left."""
    options = {**make_effects(small), "wtp_grid": [0.0, 1, 2, 3, 5, 7, 9, 12, 15, 20, 30]}
    comparators = {f"plan {i}": {0: i % 3, 1: i // 3, 2: 0, 3: 0} for i in range(count)}
    context = ReportContext(small, 3, comparators=comparators, **options)
    sweep = findings.compute_willingness_to_pay(context)
    willingness = sweep.table
    comparator_names = [x for x in willingness.policies if x not in willingness.found_names]
    assert len(comparator_names) >= count
    for figure in ("willingness", "loss"):
        ax = PAGE_FIGURES[figure].draw(context, sweep)
        assert ax is not None
        *drawn_labels, _ = ax.get_legend_handles_labels()[1]
        assert {*comparator_names} <= {*drawn_labels}
        assert len(drawn_labels) == min(
            max(7, len(comparator_names)), len({*comparator_names, *willingness.frontier["policy"]})
        )
        legend = ax.get_legend()
        assert legend is not None
        count_text = f"{len(drawn_labels)} of {len(willingness.policies)} policies"
        assert legend.get_title().get_text() == count_text * (
            len(drawn_labels) < len(willingness.policies)
        )
    ax = PAGE_FIGURES["returns"].draw(context, 0.0)
    assert ax is not None
    assert {*comparators} <= {*ax.get_legend_handles_labels()[1]}


def test_return_description_names_the_threshold(tmp_path: Path, small: mmdp.MMDP) -> None:
    """By make_net_benefit_model, or by the words of the model."""
    options, discounting = make_effects(small), OutcomeDiscounting(0.035, 0.0)
    e, c = options["effects"], options["costs"]
    sentence = (
        "A return is the expected net benefit at £15 per unit of effect, in £, over 3 decisions"
    )
    by_hand = small.replace(rewards=15 * e - c, unit="£")
    page = write_page(tmp_path, by_hand, horizon=3, **options)
    sum_sentence = "A return is the expected sum of rewards, in £, over"
    assert page.text.index(sum_sentence) < page.text.index("The answer")
    assert page.text.index("errors in observing it".capitalize()) < page.text.index("The answer")
    net_benefit_model = discounting.make_net_benefit_model(small.replace(unit="£"), e, c, 15, 3)
    mmdp.save(net_benefit_model, tmp_path / "priced")
    mmdp.save(net_benefit_model, tmp_path / "priced.npz")
    for file in ("priced", "priced.npz"):
        assert sentence in write_page(tmp_path, mmdp.load(tmp_path / file), horizon=3).text
    words = "net benefit at £15 per QALY, per patient"
    net_benefit_model = discounting.make_net_benefit_model(
        small.replace(quantity=words), e, c, 15, 3
    )
    assert (
        f"A return is the expected {words} over 3" in write_page(tmp_path, net_benefit_model).text
    )


def test_a_restricted_policy_is_compared_within_its_class(tmp_path: Path, small: mmdp.MMDP) -> None:
    options, tied = make_effects(small), mmdp.policies.Tied([0] * small.n_states)
    options["wtp_grid"] = [19.0, 20.0, 21.0]
    solution = mmdp.solve(small, 3, policy_class=tied)
    blind = findings.compute_willingness_to_pay(
        ReportContext(small, None, solution, **options)
    ).table
    assert blind.found_names
    for policy in blind.policies.values():  # nobody acts on what they do not see
        assert (policy.actions == policy.actions[:, :1]).all()
    assert "among tied policies" in write_page(tmp_path, small, policy=solution, **options).text
    unrestricted = findings.compute_willingness_to_pay(ReportContext(small, 3, **options)).table
    assert (unrestricted.frontier["nmb"] > blind.frontier["nmb"]).any()
    assert (
        "among all policies of time and state"
        in write_page(tmp_path, small, horizon=3, **options).text
    )


def test_a_comparator_that_is_this_policy_says_so(small: mmdp.MMDP) -> None:
    solution = mmdp.solve(small, 3)
    options = {"comparators": {"ours": solution, "0": 0}, **make_effects(small)}
    willingness = findings.compute_willingness_to_pay(
        ReportContext(small, None, solution, **options)
    ).table  # type: ignore[arg-type]
    assert list(willingness.policies)[:2] == ["ours (this policy)", "0"]


def test_discount_rates_are_shown(tmp_path: Path, small: mmdp.MMDP) -> None:
    options, discounting = make_effects(small), OutcomeDiscounting(0.015, 0.035, "half-cycle")
    net_benefit_model = discounting.make_net_benefit_model(
        small, options["effects"], options["costs"], 15, 3
    )
    page = write_page(tmp_path, net_benefit_model, horizon=3, discounting=discounting, **options)
    assert f"Over time, {discounting.description}." in page.text
    assert "1 per step, besides that of costs and effects in the rewards" in page.text


def test_effects_from_a_table(tmp_path: Path, small: mmdp.MMDP) -> None:
    options, file = make_effects(small), tmp_path / "effects.csv"
    head = "model,state,action,effect,cost\n"
    rows = [
        f"{m},{s},{a},{float(options['effects'][m, s, a])!r},{float(options['costs'][m, s, a])!r}"
        for m in range(60)
        for s in range(4)
        for a in range(3)
    ]
    file.write_text(head + "\n".join(rows[::-1]))
    effects, costs = report.read_effects(file, small)
    np.testing.assert_array_equal(effects, options["effects"])
    np.testing.assert_array_equal(costs, options["costs"])
    labelled = small.replace(actions=["wait", "treat", "operate"])
    valid_rows = [f"{s},{a},1,2" for s in range(4) for a in ("wait", "treat", "operate")]
    for head, lines, match in (
        ("state,action,efect,cost", valid_rows, "unknown column 'efect'.*no column 'effect'"),
        ("state,action,effect,cost", valid_rows[1:], "state '0', action 'wait' is not given"),
        ("state,action,effect,cost", [*valid_rows, valid_rows[0]], "is given twice"),
        ("state,action,effect,cost", ["0,trat,1,2", *valid_rows], "line 2.*did you mean 'treat'"),
        ("state,action,effect,cost", ["0,wait,x,2", *valid_rows[1:]], "line 2: effect is 'x'"),
        ("state,action,effect,cost", [], "a header but no rows"),
    ):
        file.write_text("\n".join([head, *lines]) + "\n")
        with pytest.raises(mmdp.InputError, match=match) as caught:
            report.read_effects(file, labelled)
        assert "\n" not in str(caught.value)


def test_effects_may_have_ages_next_to_the_time(tmp_path: Path) -> None:
    file = tmp_path / "effects.csv"
    one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 1.0]], time_labels={"age": [50, 51]})
    rows = [f"{t},{50 + t},0,{a},{t + a},{t - a}" for t in (1, 0) for a in (0, 1)]
    file.write_text("\n".join(["time,age,state,action,effect,cost", *rows]))
    assert np.asarray(report.read_effects(file, one)[0])[:, 0, 0].tolist() == [[0, 1], [1, 2]]
    for columns in ("action,effect,cost,age,state", "action,effect,cost,time,modle,state"):
        file.write_text(f"{columns}\n")
        with pytest.raises(mmdp.InputError, match=r"unknown column '(age|modle)'.*counts from 0"):
            report.read_effects(file, one)


def test_cost_and_effect_on_the_command_line(tmp_path: Path, small: mmdp.MMDP) -> None:
    def run_command(*arguments: object) -> tuple[int, str]:
        result = run(*arguments)
        return result.code, result.out + result.err

    mmdp.save(small, tmp_path / "models")
    rows = [f"{s},{a},{a},{10 * a + s}" for s in range(4) for a in range(3)]
    (tmp_path / "effects.csv").write_text("\n".join(["state,action,effect,cost", *rows]))
    options = ("--effects", tmp_path / "effects.csv", "--wtp-grid", "5,20")
    out = tmp_path / "report.html"
    assert run_command("report", tmp_path / "models", "-T", 3, "-o", out, *options)[0] == 0
    page = Page(out.read_text(encoding="utf-8")).text
    # at 20 for a unit that costs 10 the largest effect is the best: 2 at each of 3 discounted steps
    effect = 2 * (1 + 0.9 + 0.81)
    assert re.search(rf" 20 policy \d {format_number(effect)} ", page)
    picture = tmp_path / "w.png"
    assert (
        run_command("plot", "willingness", tmp_path / "models", "-T", 3, "-o", picture, *options)[0]
        == 0
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    comparators = (
        *options,
        "--comparator",
        "never treat=0",
        "--cost-rate",
        "0.05",
        "--effect-rate",
        "0",
    )
    assert run_command("report", tmp_path / "models", "-T", 3, "-o", out, *comparators)[0] == 0
    page = Page(out.read_text(encoding="utf-8")).text
    # 2 units at each of 3 steps, not discounted; action 0 has none
    assert re.search(r" 20 policy \d 6(\.0+)? ", page)
    assert re.search(rf" never treat [\d.]+ {format_number(0.0)} ", page)
    mmdp.save_policy(
        mmdp.policies.MarkovPolicy(np.ones((3, 4), int), n_actions=3), tmp_path / "one.csv"
    )
    usual = (*options, "--comparator", f"usual={tmp_path / 'one.csv'}", "--within-cycle", "simpson")
    assert run_command("plot", "loss", tmp_path / "models", "-T", 3, "-o", picture, *usual)[0] == 0
    for arguments, message in (
        (options[:2], "belong together"),
        (("--cost-rate", "0.1"), "this option is about costs and effects; give --effects too"),
        ((*options, "--comparator", "never"), "'never': expected NAME=POLICY"),
        ((*options, "--comparator", "a=0", "--comparator", "a=1"), "has a name twice"),
        ((*options, "--comparator", "a=9"), "policy 'a': unknown action '9'; choose from 0..2"),
        ((*options, "--cost-rate", "0.9"), "--cost-rate=0.9 is not a discount rate per step"),
        ((*options[:3], "5;20"), "expected X,Y,..."),
    ):
        code, printed = run_command("report", tmp_path / "models", "-T", 3, "-o", out, *arguments)
        assert code == 2
        assert message in printed


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
    monkeypatch.setattr("mmdp.insight.report.interactive.MAX_CELLS", 5_000)
    model, T, n_kept = long_walk(400), 50, 100
    solution = mmdp.solve(model, T)
    page = write_page(tmp_path, model, policy=solution, methods=())
    assert f"The {400 - n_kept} least visited states are left out" in page.text
    data = read_script_data(page)
    states = np.array(data["states"], dtype=int)
    assert len(states) == n_kept
    visited = mmdp.measures.model_weights(model, solution.policy).sum(axis=(0, 1))
    assert set(np.flatnonzero(visited)) <= set(states.tolist())
    action_positions = unpack(data["actionIds"], "<u2", (T, n_kept))
    assert (
        np.array(data["usedActions"])[action_positions] == solution.policy.actions[:, states]
    ).all()
    assert "the 60 most visited" in page.text


def test_warnings(tmp_path: Path, small: mmdp.MMDP) -> None:
    page_without_warnings = write_page(tmp_path, small, horizon=4).text
    assert "No initial distribution" not in page_without_warnings
    assert "few models" not in page_without_warnings
    three_models = small.subset([0, 1, 2]).replace(initial=None)
    page_with_warnings = write_page(
        tmp_path,
        three_models,
        horizon=4,
        unseen_pairs=[("0", "0"), ("0", "1"), ("0", "2")],
        notes=["the log ends in 1999"],
    ).text
    assert "No initial distribution was given" in page_with_warnings
    assert "There are few models (3):" in page_with_warnings
    assert "3 state-action pairs of 12 were never seen" in page_with_warnings
    skewed = write_page(
        tmp_path, three_models.replace(weights=[0.261, 0.529, 0.21]), horizon=4
    ).text
    assert "There are few models (3):" in skewed
    assert "effective sample size 2.6" in skewed
    action = mmdp.solve(three_models, 4).policy.actions[0, 0]
    assert re.search(rf"takes such actions: .*{action} in state 0", page_with_warnings)
    assert "the log ends in 1999" in page_with_warnings
    random_policy = mmdp.policies.MarkovPolicy.random(small, 4, seed=1)
    gain = mmdp.solve(small, 4).value - mmdp.evaluate(small, random_policy).mean
    beaten = write_page(tmp_path, small, policy=random_policy).text
    assert f"CADP finds one that returns {format_number(gain, 3)} more" in beaten
    weighted = small.replace(weights=[0.0, *[1 / 59] * 59])
    assert "1 model of weight 0 does not count" in write_page(tmp_path, weighted, horizon=3).text


def test_unstable_decisions_are_shown(tmp_path: Path) -> None:
    # two actions that are nearly equally good: the resample decides. An odd number of signs
    # never adds up to 0, so that no decision hangs on rounding, which differs between kernels
    sign = np.where(np.arange(41) % 2, 1.0, -1.0)
    rewards = np.stack([np.zeros(41), sign], axis=1)[:, None, :]
    model = mmdp.MMDP(np.ones((41, 1, 2, 1)), rewards)
    resamples = findings.compute_stability(ReportContext(model, 1))
    assert resamples is not None
    page = write_page(tmp_path, model, horizon=1, n_resamples=None)
    assert resamples.share_changed > 0.2
    assert (
        f"{format_percent(resamples.share_changed)} of the decisions that come up change"
        in page.text
    )


def test_a_solution_for_other_models_proves_nothing(tmp_path: Path, small: mmdp.MMDP) -> None:
    solution = mmdp.solve(small, 4)
    same = write_page(tmp_path, small, policy=solution).text
    assert solution.status.value in same.split("How good is it?")[1].split("mean return")[0]
    other = write_page(tmp_path, small.subset(range(10)), policy=solution, methods=()).text
    assert "The policy was given; its figures are exact" in other


def test_randomized_policies_and_planners(tmp_path: Path, small: mmdp.MMDP) -> None:
    randomized = mmdp.policies.MarkovPolicy.uniform(small, 3)
    page = write_page(
        tmp_path, small, policy=randomized, methods=("cadp", mmdp.methods.QMDP(n_episodes=2))
    )
    assert "The most probable action is shown" in page.text
    assert "± is two standard errors of a simulated mean" in page.text
    assert "QMDP" in page.text


@pytest.mark.pictures
def test_one_model_one_state(tmp_path: Path) -> None:
    page = write_page(tmp_path, mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]]), horizon=1)
    assert "returns 3 on average over the one model" in page.text
    assert "There is only one model" in page.text


@pytest.mark.parametrize(
    ("unseen", "message"),
    [
        ("prior", "what happens there comes from the prior alone"),
        ("forbid", "no policy may take them"),
        ("absorb", "the models stay in that state and earn 0"),
    ],
)
def test_pages_say_what_the_log_of_the_models_lacks(
    tmp_path: Path, unseen: Any, message: str
) -> None:
    """Whether the models come from fit or from the folder that it wrote."""
    log = {
        "state": ["a", "a", "b", "b", "a"],
        "action": ["x", "x", "x", "y", "x"],
        "next_state": ["b", "a", "a", "b", "b"],
        "reward": [0, 1, 2, 3, 0],
    }
    fit_result = mmdp.posterior.fit_folder(log, tmp_path / "models", n_models=30, unseen=unseen)
    assert fit_result.unseen_pairs == (("a", "y"),)
    for model in (fit_result.train, mmdp.load(tmp_path / "models")):
        text = write_page(tmp_path, model, horizon=4).text
        assert f"1 state-action pair of 4 was never seen in the data; {message}." in text
        expected = mmdp.posterior.coverage(model, mmdp.solve(model, 4))
        assert f"fitted again, {expected.n_covered} gave a range that did" in text
    assert "never seen" not in write_page(tmp_path, risky(), horizon=2).text


# ------------------------------------------------------------------ labels stay text
@pytest.mark.pictures
def test_labels_are_text(tmp_path: Path, evil: mmdp.MMDP) -> None:
    page = write_page(
        tmp_path,
        evil,
        horizon=5,
        unseen_pairs=[(SCRIPT, SCRIPT)],
        notes=[IMAGE],
        n_resamples=2,
        voi=True,
    )
    assert [tag for tag, _ in page.elements].count("script") == 3
    assert not {"img", "i", "b"} & {tag for tag, at in page.elements if at.get("src")}
    assert not any(name.startswith("on") for _, at in page.elements for name in at)
    assert read_script_data(page)["states"] == [SCRIPT, IMAGE, QUOTES, LONG_LABEL]
    assert "<script>window.ran" in page.text  # shown, not run
    titles = {at.get("title") for _, at in page.elements}
    assert {LONG_LABEL, SCRIPT} <= titles
    assert LONG_LABEL not in page.text  # cut, whole in the title


@pytest.mark.pictures
def test_nothing_comes_from_elsewhere(tmp_path: Path, evil: mmdp.MMDP) -> None:
    page = write_page(tmp_path, evil, horizon=5)
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    policy = next(at["content"] for _, at in page.elements if at.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


@pytest.mark.pictures
def test_the_page_is_made_of_named_parts(tmp_path: Path, small: mmdp.MMDP) -> None:
    page = write_page(tmp_path, small, horizon=4)
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
    def check_refused(match: str, model: Any = small, out: str = "r.html", **options: Any) -> None:
        with pytest.raises(mmdp.InputError, match=match) as caught:
            report.write(model, tmp_path / out, **options)
        assert "\n" not in str(caught.value)

    check_refused("ends in .html", out="r.txt", horizon=3)
    check_refused("no folder", out="none/r.html", horizon=3)
    check_refused("give the horizon")
    check_refused("about an MMDP, not int", model=3, horizon=3)
    check_refused("needs a policy or a method", horizon=3, methods=())
    check_refused(
        "oracle has one policy per model; choose methods='cadp'",
        horizon=3,
        methods=("oracle", "cadp"),
    )
    check_refused("a report shows a policy or the Solution", horizon=3, policy="policy.csv")
    check_refused(
        "the policy covers 2 time steps",
        horizon=3,
        policy=mmdp.policies.MarkovPolicy.uniform(small, 2),
    )
    other = mmdp.MMDP(np.ones((1, 1, 1, 1)), [[1.0]])
    check_refused("the test models have 1 states", horizon=3, test_model=other)


@pytest.mark.parametrize("figure", sorted(report.PAGE_FIGURES))
def test_every_plot_as_a_file(tmp_path: Path, small: mmdp.MMDP, figure: str) -> None:
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        target = report.draw(
            small, figure, tmp_path / f"{figure}{ending}", horizon=4, **make_effects(small)
        )
        assert target.read_bytes().startswith(start)


@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_a_given_tree_is_the_one_that_is_drawn(
    tmp_path: Path, small: mmdp.MMDP, objective: str
) -> None:
    tree = mmdp.solve(small, 4, policy_class=mmdp.policies.Tree(2), objective=objective)
    file = tmp_path / "tree.json"
    mmdp.save_policy(tree, file)
    leaf_rows = mmdp.measures.leaf_table(small, tree)
    expected = mmdp.plots.to_svg(mmdp.plots.tree(tree, leaf_rows))
    for policy in (tree, mmdp.load_policy(file, small)):
        drawn_file = report.draw(small, "tree", tmp_path / "tree.svg", policy=policy)
        assert drawn_file.read_text(encoding="utf-8") == expected


def test_plots_that_cannot_be_drawn(tmp_path: Path, small: mmdp.MMDP) -> None:
    for figure, match, options in (
        ("regrets", "'regret'", {}),
        ("trace", "no method is cadp", {"methods": ("wsu",)}),
        ("regret", "ends in .png or .svg", {"out": "r.pdf"}),
        ("willingness", "needs effects, costs and wtp_grid", {}),
        ("sample_size", "a method to solve with", {"methods": (), "policy": mmdp.solve(small, 4)}),
    ):
        out = tmp_path / str(options.pop("out", "r.png"))
        with pytest.raises(mmdp.InputError, match=match):
            report.draw(small, figure, out, horizon=4, **options)
    one = small.subset([0])
    with pytest.raises(mmdp.InputError, match="two models or more"):
        report.draw(one, "weights", tmp_path / "r.png", horizon=4)


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


PLOTS = ("methods", "trace", "returns", "regret", "weights", "sample_size")
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
    some_parameters = dict(list(train.parameters.items())[:3])
    train = train.replace(parameters=some_parameters)
    solution = mmdp.solve(train, horizon)
    shape = train.rewards.shape[-2:]
    options = {
        "effects": np.tile(np.arange(shape[1]), (shape[0], 1)),
        "costs": np.ones(shape),
        "wtp_grid": [0, 1, 2],
    }
    terminal = {} if train.terminal.any() else options
    target = report.write(
        train,
        tmp_path / "report.html",
        policy=solution,
        methods=("wsu",),
        time_limit=0,
        sample_size=True,
        voi=name == "HIV",
        **terminal,
    )
    browser.open(target, READY)
    parameters = ("voi",) if name == "HIV" else ()  # POPS: many and large, not unasked
    for figure in (*PLOTS, *parameters, *(("willingness",) if terminal else ())):
        if figure == "trace" and len(solution.trace) == 1:
            continue
        width, height = browser.evaluate(
            f"(b => [b.width, b.height])(document.querySelector('figure[data-plot={figure}] svg')"
            ".getBoundingClientRect())"
        )
        assert width > 300
        assert height > 80
    colors = browser.evaluate(
        "(c => new Set(new Uint32Array(c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data.buffer)).size)"
        "(document.querySelector('#map canvas'))"
    )
    assert colors > len(np.unique(solution.policy.actions))
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.log_entries == []
    assert browser.requests == [target.as_uri()]
    _check_cells(browser, train, solution)


def _check_cells(browser: chromium.Chromium, model: mmdp.MMDP, solution: mmdp.Solution) -> None:
    """Walk the map by keyboard and hear what the policy does."""
    if browser.evaluate("!!document.getElementById('rows')"):
        browser.evaluate(
            "(e => { e.value = 'all'; e.dispatchEvent(new Event('change')) })"
            "(document.getElementById('rows'))"
        )
    browser.evaluate("document.getElementById('map').focus()")
    names = [x if model.has_labels["action"] else f"action {x}" for x in model.action_labels]
    rows = np.flatnonzero(model.has_choice)  # a state without a decision has no row
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
        announced = browser.evaluate("document.getElementById('said').textContent")
        action = names[solution.policy.actions[t, s]]
        assert announced.startswith(f"Time {t}, state {model.state_labels[s]}: {action} (")


def test_browser_draws_half_a_million_cells(browser: chromium.Chromium, tmp_path: Path) -> None:
    model = long_walk()
    solution = mmdp.solve(model, 250, "wsu")
    target = report.write(
        model, tmp_path / "report.html", policy=solution, methods=(), time_limit=0
    )
    browser.open(target, READY)
    browser.evaluate(
        "(e => { e.value = 'all'; e.dispatchEvent(new Event('change')) })"
        "(document.getElementById('rows'))"
    )
    browser.evaluate("document.getElementById('map').focus()")
    browser.press("End")
    announced = browser.evaluate("document.getElementById('said').textContent")
    assert announced.startswith("Time 249, state 0: action")
    height = browser.evaluate("document.querySelector('#map canvas').height")
    assert height >= 1600
    assert browser.log_entries == []


def test_browser_runs_no_label(browser: chromium.Chromium, tmp_path: Path, evil: mmdp.MMDP) -> None:
    target = report.write(
        evil,
        tmp_path / "report.html",
        horizon=5,
        notes=[SCRIPT, IMAGE],
        unseen_pairs=[(SCRIPT, SCRIPT)],
    )
    browser.open(target, READY)
    browser.evaluate("document.getElementById('map').focus()")
    assert SCRIPT in browser.evaluate("document.getElementById('said').textContent")
    x, y = browser.evaluate(
        "(e => { e.scrollIntoView(); const b = e.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + 60] })(document.querySelector('#map canvas'))"
    )
    browser.move_mouse(x, y)
    tip = browser.evaluate("document.getElementById('tip')")
    assert tip is not None
    assert IMAGE in browser.evaluate("document.getElementById('tip').textContent")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("window.ran === undefined")
    assert browser.log_entries == []
    assert browser.requests == [target.as_uri()]


def test_browser_views_dark_and_print(
    browser: chromium.Chromium, tmp_path: Path, small: mmdp.MMDP
) -> None:
    target = report.write(small, tmp_path / "report.html", horizon=6)
    browser.open(target, READY)
    looks = set()
    for look in ("action", "margin", "probability", "agreement", "change_frequency"):
        browser.evaluate(
            f"(e => {{ e.value = '{look}'; e.dispatchEvent(new Event('change')) }})"
            "(document.getElementById('look'))"
        )
        looks.add(browser.evaluate("document.querySelector('#map canvas').toDataURL()"))
    assert len(looks) == 5
    browser.set_screen(dark=True)
    back, filter_of_pictures = browser.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle("
        "document.querySelector('figure[data-plot] svg')).filter]"
    )
    assert sum(map(int, re.findall(r"\d+", back)[:3])) < 150
    assert filter_of_pictures.startswith("invert(1)")  # black on transparent becomes white
    browser.save_pdf(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    browser.set_screen(390, 800)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    browser.set_screen()
    assert browser.log_entries == []


def test_the_page_shows_what_memory_gains_and_its_flow_chart(tmp_path: Path) -> None:
    model = mmdp.domains.two_models().train
    page = write_page(tmp_path, model, horizon=9, max_nodes=2)
    assert "What would memory gain?" in page.text
    message = mmdp.measures.value_by_nodes(model, 9, n_nodes=(1, 2)).attrs["text"]
    assert page.text.count(message[0].upper() + message[1:]) == 2  # in the answer, and further down
    assert "Node 0 (start)" in page.text
    assert "What would memory gain?" not in write_page(tmp_path, model, horizon=9).text
    assert report.draw(model, "memory", tmp_path / "memory.png", horizon=9, max_nodes=2).is_file()


def test_browser_cuts_neither_figures_nor_captions(
    browser: chromium.Chromium, tmp_path: Path, small: mmdp.MMDP
) -> None:
    """Returns of seven digits on narrow and wide screens."""
    rich = small.replace(rewards=1e6 * (2 + small.rewards))
    target = report.write(rich, tmp_path / "report.html", horizon=3, **make_effects(small))
    wrapped = (
        "[...document.querySelectorAll('.figures b')].filter(e => e.scrollWidth > e.clientWidth "
        "|| e.getBoundingClientRect().height > 45).map(e => e.textContent)"
    )
    find_clipped = (
        "[...document.querySelectorAll('caption')].filter(e => "
        "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.textContent)"
    )
    for width in (400, 900, 1400):
        browser.set_screen(width, 900)
        browser.open(target, READY)
        assert browser.evaluate(wrapped) == []
        assert browser.evaluate(find_clipped) == []
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    browser.set_screen()


# ------------------------------------------------------------------ the table of sections
def estimate_section_seconds(context: ReportContext) -> dict[str, float]:
    return {
        x.key: x.estimate_seconds(context) for x in sections.SECTIONS if x.is_applicable(context)
    }


def test_the_budget_is_spent_from_the_top(small: mmdp.MMDP) -> None:
    """A part is there exactly if it fits beside what must be there and what was chosen above.

    A tenth of the budget is for such parts in any case.
    """
    context = ReportContext(small, 40)
    section_seconds = estimate_section_seconds(context)
    required_keys = [
        x.key
        for x in sections.SECTIONS
        if x.heading and not x.request_hint and x.key in section_seconds
    ]
    assert len(section_seconds) > 10
    assert len(required_keys) > 5
    for time_limit in (0.0, 0.1, *np.cumsum(sorted(section_seconds.values())), 1e9):
        chosen, skipped = sections.choose_sections(context, time_limit)
        keys = [x.key for x in chosen]
        assert keys == [key for key in section_seconds if key in keys]  # in the order of the page
        assert {*keys, *skipped} == {*section_seconds}
        assert {*required_keys} <= {*keys}
        base = min(
            sum(section_seconds[key] for key in section_seconds if key in required_keys),
            0.9 * time_limit,
        )
        for key, missing in skipped.items():
            above = [
                k for k in list(section_seconds)[: list(section_seconds).index(key)] if k in keys
            ]
            spent = base + sum(section_seconds[k] for k in above if k not in required_keys)
            assert spent + section_seconds[key] > time_limit - 1e-9  # but for rounding
            assert missing.is_over_budget
        extra = [key for key in keys if key not in required_keys]
        assert not extra or base + sum(section_seconds[k] for k in extra) <= time_limit + 1e-9
    assert not sections.choose_sections(context, 1e9)[1]


def test_announced_seconds_are_those_of_this_machine(
    small: mmdp.MMDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first section takes three times its estimate of 6 s, so the second is to take 18 s.

    One of 2 s says nothing: loading of compiled code may be most of what it takes.
    """
    cpu_times, texts = iter([100.0, 118.0, 136.0]), list[str]()
    monkeypatch.setattr(sections.time, "process_time", lambda: next(cpu_times))
    context = ReportContext(small, 40, callback=texts.append)
    row = sections.Section("a", "A", "work", lambda context: None, lambda context: 6.0)
    sections.compute_sections(context, [row, row])
    assert texts[-2:] == ["work (1 of 2, about 6.0 s)", "work (2 of 2, about 18.0 s)"]
    assert row.estimate_seconds(context) == 6.0  # what is chosen depends on sizes alone
    cpu_times = iter([100.0])
    row = row._replace(estimate_seconds=lambda context: 2.0)
    sections.compute_sections(context, [row, row])
    assert texts[-1] == "work (2 of 2, about 2.0 s)"


def test_requested_and_declined_sections_need_no_budget(small: mmdp.MMDP) -> None:
    context = ReportContext(small, 4, frontier=True, max_nodes=0, n_resamples=3, sample_size=False)
    for section_seconds, others in ((0.0, set()), (1e9, {"simpler", "voi"})):
        chosen, skipped = sections.choose_sections(context, section_seconds)
        keys = {x.key for x in chosen}
        assert {"frontier", "stability"} | others <= keys
        assert not {"memory", "sample_size"} & keys
        assert not skipped["memory"].is_over_budget


def test_the_page_says_what_it_left_out(tmp_path: Path, small: mmdp.MMDP) -> None:
    file = report.write(small, tmp_path / "r.html", horizon=4, time_limit=0)
    text = Page(file.read_text(encoding="utf-8")).text
    for words in (
        "To stay within about",
        "simpler policies (about",
        "safer policies (about",
        "frontier=True , --frontier",
        "the value of each parameter (about",
        "max_nodes=3 , --max-nodes 3",
        "sample_size=True , --sample-size",
        "n_resamples=20 , --sample-size",
    ):
        assert words in text, words
    needed = re.search(r"With time_limit=(\d+) or --time-limit \1 it has these too", text)
    assert needed is not None
    left_out = re.search(r"this page leaves out (.*?)\. With time_limit", text)
    assert left_out is not None
    units = {"ms": 0.001, "s": 1.0}
    seconds = re.findall(r"\(about ([\d.]+) (ms|s)\b", left_out[1])
    # the limit counts the same estimates
    assert sum(float(x) * units[unit] for x, unit in seconds) <= float(needed[1])
    context = ReportContext(small, 4)
    skipped = sections.choose_sections(context, 0.0)[1]
    for x in skipped.values():
        assert x.seconds == x.section.estimate_seconds(context)
    assert not sections.choose_sections(context, float(needed[1]))[1]


def test_each_solve_and_evaluation_is_made_once(
    tmp_path: Path, small: mmdp.MMDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmdp.insight.report import context as module

    made: list[Any] = []

    def count_calls(name: str) -> Any:
        original = getattr(module, name)

        def call(first: Any, *rest: Any, **options: Any) -> Any:
            content = rest[0].defining_values if name == "evaluate" else rest[1]
            made.append((name, str(content), id(first) if name == "evaluate" else 0))
            return original(first, *rest, **options)

        return call

    for name in ("solve", "evaluate"):
        monkeypatch.setattr(module, name, count_calls(name))
    write_page(tmp_path, small, horizon=6, test_model=small.subset(range(30)))
    assert len(made) == len(set(made))
    assert [x[0] for x in made].count("solve") == 3


@pytest.mark.pictures
def test_nothing_is_computed_while_the_page_is_filled(
    tmp_path: Path, small: mmdp.MMDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmdp.core import kernels
    from mmdp.insight.draw import axes

    render = report.render_page

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a template computes")

    def render_without_solving(template: str, **facts: Any) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "get_backend", refuse)
            patch.setattr(axes, "_render_figure", refuse)
            return str(render(template, **facts))

    monkeypatch.setattr(report, "render_page", render_without_solving)
    page = write_page(tmp_path, small, horizon=4, frontier=True, voi=True, sample_size=True)
    assert "What safety costs" in page.text


def test_progress_names_every_section(tmp_path: Path, small: mmdp.MMDP) -> None:
    messages: list[str] = []
    report.write(small, tmp_path / "r.html", horizon=4, callback=messages.append)
    chosen, _ = sections.choose_sections(ReportContext(small, 4), report.DEFAULT_TIME_LIMIT)
    assert len(messages) == len(chosen) + 1
    # the methods first, as shares are of what the best policy found has at stake
    chosen.sort(key=lambda section: section.key != "methods")
    for line, section in zip(messages, chosen, strict=False):
        assert line.startswith(section.description)


def test_refusals_name_the_nearest_way(tmp_path: Path, small: mmdp.MMDP) -> None:
    two, out = mmdp.domains.two_models().train, tmp_path / "r.html"
    nodes = mmdp.solve(two, 9, policy_class=mmdp.policies.Memory(max_nodes=2))
    with pytest.raises(mmdp.InputError, match="needs a policy or a method that computes one"):
        report.write(two, out, policy=nodes.policy, methods=[])
    for wrong, match in (
        ({"frontire": True}, "did you mean 'frontier'"),
        ({"time_limit": -1}, ">= 0"),
    ):
        with pytest.raises(mmdp.InputError, match=match):
            report.write(small, out, horizon=3, **wrong)
    with pytest.raises(mmdp.InputError, match="no argument 'title'"):
        report.draw(small, "regret", tmp_path / "r.png", horizon=3, title="x")  # type: ignore[call-arg]


def test_a_gap_that_is_proven_closed_is_no_gap(tmp_path: Path, small: mmdp.MMDP) -> None:
    import dataclasses

    solution = mmdp.solve(small, 4)
    near_bound = Bound(solution.value + 5e-7 * abs(solution.value), "exact", "markov")
    proven = dataclasses.replace(solution, certificate=near_bound, status=mmdp.Status.OPTIMAL)
    page = write_page(tmp_path, small, policy=proven)
    assert "It is proven to be the best policy of time and state." in page.text
    assert "0 missing to the best, at most" in page.text
    assert "(gap 0%)" in repr(proven)
    open_bound = dataclasses.replace(solution, certificate=near_bound)
    missing = format_bound(near_bound.value - solution.value, 3)
    assert (
        f"this policy is at most {missing}" in write_page(tmp_path, small, policy=open_bound).text
    )
    assert "(gap 0.0001%)" in repr(open_bound)


# ------------------------------------------------------------------ times, units, many states
@pytest.mark.pictures
def test_the_page_shows_ages_and_the_unit(tmp_path: Path, small: mmdp.MMDP) -> None:
    named = small.replace(time_labels={"age": range(40, 45)}, unit="$")
    policy = mmdp.policies.MarkovPolicy.for_model(named, [[0, 1, 0, 1]] * 3 + [[1, 1, 0, 1]] * 4)
    page = write_page(tmp_path, named, policy=policy)
    data, value = read_script_data(page), format_number(mmdp.evaluate(named, policy).mean)
    assert (data["timeName"], data["times"]) == ("age", [str(40 + t) for t in range(7)])
    assert "7 decisions, from age 40 to 46" in page.text
    assert "Action by age 0" in page.text
    assert "40–42: action 0; 43–46: action 1" in page.text
    assert f"returns {'−' * (value[0] == '−')}${value.lstrip('−')} on average" in page.text
    assert "return in $ (dotted: mean)" in page.text


def test_a_map_begins_with_the_visited_states(tmp_path: Path) -> None:
    size, T = 50, 6  # from 0 a step to the right at most: states beyond T are never met
    P = np.zeros((2, size, 2, size))
    for s in range(size):
        P[:, s, :, s] += 0.5
        P[:, s, :, min(s + 1, size - 1)] += 0.5
    labels = [f"row={s // 10}, column={s % 10}" for s in range(size)]
    rng = np.random.default_rng(0)
    model = mmdp.MMDP(P, rng.random((size, 2)), initial=np.eye(size)[0], states=labels)
    page = write_page(tmp_path, model, horizon=T)
    data = read_script_data(page)
    assert data["defaultRows"] == list(range(T))
    assert "the 6 most visited (100% of the decisions)" in page.text
    values = [x for tag, x in page.elements if tag == "optgroup"]
    assert [x["label"] for x in values] == ["row", "column"]
    assert "column=9" in page.text
    assert ("figure", {"data-plot": "policy"}) in page.elements  # the map of two axes
    one_model_page = write_page(tmp_path, model.replace(states=None).subset([0]), horizon=T)
    assert ("figure", {"data-plot": "policy"}) not in one_model_page.elements
