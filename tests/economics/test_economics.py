"""Health economics against a plain cohort simulation: loops over draws, cycles and policies.

The model is the HIV example of Briggs, Claxton and Sculpher, Decision Modelling for Health
Economic Evaluation (2006), exercises 2.5 and 4.7, after Chancellor et al. 1997: four states,
zidovudine alone or with lamivudine for two years, costs discounted at 6%, life years not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import scipy.stats

import mmdp
from mmdp import economics
from mmdp.economics import CostEffectiveness, Counting

COUNTS = ((1251, 350, 116, 17), (731, 512, 15), (1312, 437))
CARE, ZIDOVUDINE, LAMIVUDINE = (1701 + 1055, 1774 + 1278, 6948 + 2059), 2278.0, 2086.5
YEARS = 20
THRESHOLDS = [0.0, 2000.0, 5000.0, 6000.0, 7000.0, 10000.0, 20000.0, 50000.0]
PLANS = {
    "monotherapy": "mono",
    "two years": ["combination"] * 2 + ["mono"] * (YEARS - 2),
    "five years": ["combination"] * 5 + ["mono"] * (YEARS - 5),
    "always": "combination",
}
Draw = Mapping[str, Any]


def mean_draw() -> dict[str, Any]:
    rows = [np.array(x, float) / sum(x) for x in COUNTS]
    return {"rows": rows, "risk": 0.509, "care": np.array(CARE, float)}


def random_draws(n: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "rows": [rng.dirichlet(x) for x in COUNTS],
            "risk": rng.lognormal(np.log(0.509), 0.173),
            "care": rng.gamma(1.0, np.array(CARE)),
        }
        for _ in range(n)
    ]


def matrix(draw: Draw, combination: bool) -> np.ndarray:
    p = np.zeros((4, 4))
    p[3, 3] = 1.0
    for s, row in enumerate(draw["rows"]):
        p[s, s + 1 :] = row[1:] * (draw["risk"] if combination else 1.0)
        p[s, s] = 1 - p[s, s + 1 :].sum()
    return p


def cohort(
    draw: Draw, years_on: int, rates: tuple[float, float] = (0.0, 0.06)
) -> tuple[float, float]:
    """Life years and cost of one cohort: a year's figures are those of the state at its end."""
    x, life, cost = np.array([1.0, 0, 0, 0]), 0.0, 0.0
    for year in range(1, YEARS + 1):
        on = year <= years_on
        x = x @ matrix(draw, on)
        alive = x[:3].sum()
        life += alive / (1 + rates[0]) ** year
        bill = x[:3] @ draw["care"] + alive * (ZIDOVUDINE + LAMIVUDINE * on)
        cost += bill / (1 + rates[1]) ** year
    return life, cost


def as_model(draws: list[dict[str, Any]]) -> tuple[mmdp.MMDP, np.ndarray, np.ndarray]:
    """(model, effects, costs), both (M, S, A) and paid at the end of the year."""
    p = np.array([[matrix(x, False), matrix(x, True)] for x in draws]).transpose(0, 2, 1, 3)
    alive = np.array([1.0, 1.0, 1.0, 0.0])
    care = np.array([[*x["care"], 0.0] for x in draws])
    drug = np.array([ZIDOVUDINE, ZIDOVUDINE + LAMIVUDINE])
    bill = care[:, :, None] + alive[:, None] * drug  # (M, next state, A)
    model = mmdp.MMDP(
        p, np.zeros((4, 2)), initial=[1, 0, 0, 0], states=list("ABCD"),
        actions=["mono", "combination"], parameters={"risk": [x["risk"] for x in draws]},
    )  # fmt: skip
    return model, p @ alive, np.einsum("msan,mna->msa", p, bill) / 1.06


UK = Counting(effect_rate=0.0, cost_rate=0.06)


@pytest.fixture(scope="module")
def draws() -> list[dict[str, Any]]:
    return random_draws(1000)


@pytest.fixture(scope="module")
def found(draws: list[dict[str, Any]]) -> CostEffectiveness:
    model, effects, costs = as_model(draws)
    return economics.cost_effectiveness(model, effects, costs, PLANS, YEARS, counting=UK)


@pytest.fixture(scope="module")
def by_hand(draws: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """(D, M) effects and costs from the loops."""
    table = np.array([[cohort(x, years) for x in draws] for years in (0, 2, 5, YEARS)])
    return table[:, :, 0], table[:, :, 1]


# ---------------------------------------------------------------------- the book
def test_the_books_figures() -> None:
    model, effects, costs = as_model([mean_draw()])
    two = {name: PLANS[name] for name in ("monotherapy", "two years")}
    table = economics.cost_effectiveness(model, effects, costs, two, YEARS, counting=UK).icers()
    assert table["cost"].round().tolist() == [44663, 50602]
    assert table["effect"].round(3).tolist() == [7.991, 8.937]
    assert round(table["icer"][1]) == 6276
    assert table["icer"].isna().tolist() == [True, False]


# ---------------------------------------------------------------------- 1,000 draws
def test_costs_and_effects_of_every_draw(
    found: CostEffectiveness, by_hand: tuple[np.ndarray, np.ndarray]
) -> None:
    assert found.policies == tuple(PLANS)
    np.testing.assert_allclose(found.effects, by_hand[0], rtol=1e-11)
    np.testing.assert_allclose(found.costs, by_hand[1], rtol=1e-11)


def test_curves_frontier_loss_and_evpi(
    found: CostEffectiveness, by_hand: tuple[np.ndarray, np.ndarray]
) -> None:
    curves = found.acceptability(THRESHOLDS).set_index(["threshold", "policy"])
    frontier = found.frontier(THRESHOLDS).set_index("threshold")
    names, (e, c) = list(PLANS), by_hand
    chosen = set()
    for k in THRESHOLDS:
        best_in, losses, means, best = [0.0] * 4, [0.0] * 4, [0.0] * 4, 0.0
        for m in range(1000):
            nmb = [k * e[d, m] - c[d, m] for d in range(4)]
            best_in[nmb.index(max(nmb))] += 1 / 1000
            best += max(nmb) / 1000
            for d in range(4):
                means[d] += nmb[d] / 1000
                losses[d] += (max(nmb) - nmb[d]) / 1000
        top = means.index(max(means))
        chosen.add(names[top])
        row = frontier.loc[k]
        assert row["policy"] == names[top]
        assert row["probability"] == pytest.approx(best_in[top], abs=1e-9)
        assert row["evpi"] == pytest.approx(best - max(means), rel=1e-9, abs=1e-6)
        assert row["evpi"] == pytest.approx(min(losses), rel=1e-9, abs=1e-6)
        for d, name in enumerate(names):
            curve = curves.loc[(k, name)]
            assert curve["probability"] == pytest.approx(best_in[d], abs=1e-9)
            assert curve["nmb"] == pytest.approx(means[d], rel=1e-9)
            assert curve["loss"] == pytest.approx(losses[d], rel=1e-9, abs=1e-6)
    assert len(chosen) >= 2  # the frontier does change


def study_of(n: int) -> Callable[[Any, np.random.Generator], np.ndarray]:
    """A trial that counts how many of n patients get worse when risk / 2 of them do."""
    return lambda x, rng: rng.binomial(n, np.minimum(x["risk"] / 2, 1.0)).astype(float)


@pytest.mark.parametrize("n", [20, 200])
@pytest.mark.parametrize("threshold", [5000.0, 6000.0])
def test_evsi_equals_bayes_over_the_draws(
    found: CostEffectiveness, n: int, threshold: float
) -> None:
    """Every possible result of the trial, with the posterior over the 1,000 draws."""
    nmb = threshold * found.effects - found.costs
    risk = found.parameters["risk"]
    exact = -nmb.mean(axis=1).max()
    for x in range(n + 1):
        likelihood = scipy.stats.binom.pmf(x, n, np.minimum(risk / 2, 1.0))
        exact += max(float((nmb[d] * likelihood).mean()) for d in range(4))
    # the mean over 20 simulated trials leaves the chance of the trial, not of the draws
    seen = [found.evsi(threshold, study_of(n), seed=seed, resamples=50) for seed in range(20)]
    values = np.array([x.value for x in seen])
    errors = np.array([x.error for x in seen])
    assert (np.abs(values - exact) <= 4 * errors.mean()).all()
    assert values.mean() == pytest.approx(exact, abs=0.6 * errors.mean())
    assert values.std() <= 1.5 * errors.mean()
    evpi = found.frontier([threshold])["evpi"][0]
    assert (values <= evpi).all()


def test_the_error_is_that_of_other_draws() -> None:
    """New draws of a normal-normal trial: the spread is the error that is told."""
    seen = []
    for seed in range(40):
        gain = np.random.default_rng(seed).normal(0.1, 1.0, 800)
        table = {"old": 0 * gain, "new": gain}
        free = {"old": 0 * gain, "new": 0 * gain}
        one = CostEffectiveness.from_tables(table, free, parameters={"gain": gain})
        trial = one.evsi(1.0, lambda x, rng: rng.normal(x["gain"], 1.0), seed=seed, resamples=40)
        seen.append((*trial, one.evppi(1.0, "gain", resamples=2).value))
    values, errors, known = np.array(seen).T
    assert values.std() == pytest.approx(errors.mean(), rel=0.35)
    sd = np.sqrt(0.5)  # of the posterior mean
    exact = 0.1 * scipy.stats.norm.cdf(0.1 / sd) + sd * scipy.stats.norm.pdf(0.1 / sd) - 0.1
    assert values.mean() == pytest.approx(exact, abs=4 * errors.mean() / np.sqrt(40))
    perfect = 0.1 * scipy.stats.norm.cdf(0.1) + scipy.stats.norm.pdf(0.1) - 0.1
    assert known.mean() == pytest.approx(perfect, abs=4 * errors.mean() / np.sqrt(40))


def test_a_seed_that_made_the_draws_does_not_predict_the_study() -> None:
    gain = np.random.default_rng(0).normal(0.0, 1.0, 4000)
    free = {"old": 0 * gain, "new": 0 * gain}
    one = CostEffectiveness.from_tables(
        {"old": 0 * gain, "new": gain}, free, parameters={"gain": gain}
    )
    noise = one.evsi(1.0, lambda x, rng: rng.normal(0.0, 1.0, len(x["gain"])), seed=0)
    assert noise.value < 0.03  # a study of nothing is worth nothing


def test_draws_without_weight_count_for_nothing() -> None:
    gain = np.array([-1.0, 0.5, 1.0])
    sure = [
        CostEffectiveness.from_tables({"old": 0 * x, "new": x}, {"old": 0 * x, "new": 0 * x}, **kw)
        for x, kw in ((gain, {}), (np.r_[gain, 9.0 * gain], {"weights": [1 / 3] * 3 + [0.0] * 3}))
    ]
    values = [x.evsi(1.0, x.effects[1], resamples=20) for x in sure]
    assert values[1] == pytest.approx(values[0], rel=1e-12)


# ---------------------------------------------------------------------- counting
def test_separate_rates(draws: list[dict[str, Any]]) -> None:
    model, effects, costs = as_model(draws[:5])
    counting = Counting(effect_rate=0.015, cost_rate=0.035)
    # at the end of the year: one more year of discount than the time of the decision
    table = economics.cost_effectiveness(
        model, effects / 1.015, costs * 1.06 / 1.035, PLANS, YEARS, counting=counting
    )
    for d, years in enumerate((0, 2, 5, YEARS)):
        for m in range(5):
            life, cost = cohort(draws[m], years, (0.015, 0.035))
            assert table.effects[d, m] == pytest.approx(life, rel=1e-11)
            assert table.costs[d, m] == pytest.approx(cost, rel=1e-11)


def test_a_rate_is_the_models_discount_unless_given(draws: list[dict[str, Any]]) -> None:
    model, effects, costs = as_model(draws[:3])
    model = model.replace(discount=0.9)
    plain = economics.cost_effectiveness(model, effects, costs, PLANS, YEARS)
    same = economics.cost_effectiveness(
        model, effects, costs, PLANS, YEARS, counting=Counting(effect_rate=1 / 0.9 - 1)
    )
    np.testing.assert_allclose(plain.effects, same.effects, rtol=1e-12)
    np.testing.assert_allclose(plain.costs, same.costs, rtol=1e-12)


@pytest.mark.parametrize("correction", ["half-cycle", "simpson"])
def test_within_cycle_weights_on_the_trace(draws: list[dict[str, Any]], correction: Any) -> None:
    """Life years of the trace from time 0 to 20, added up by scipy's rule."""
    model, _, costs = as_model(draws[:3])
    alive = np.array([[1.0, 1], [1, 1], [1, 1], [0, 0]])
    table = economics.cost_effectiveness(
        model, alive, costs, {"mono": 0}, YEARS + 1,
        counting=Counting(effect_rate=0.03, within_cycle=correction),
    )  # fmt: skip
    rule = scipy.integrate.trapezoid if correction == "half-cycle" else scipy.integrate.simpson
    for m in range(3):
        p, x, trace = matrix(draws[m], False), np.array([1.0, 0, 0, 0]), []
        for t in range(YEARS + 1):
            trace.append(x[:3].sum() * 1.03**-t)
            x = x @ p
        assert table.effects[0, m] == pytest.approx(rule(trace, dx=1.0), rel=1e-12)


@pytest.mark.parametrize("chance", [0.9, 1.0])
def test_simpsons_weights_count_and_are_not_optimised(chance: float) -> None:
    """A treatment pays a year later, so weights that alternate would make it every second year."""
    well, ill = [0.0, 1.0], [1.0, 0.0]  # to (ill, well)
    cured = [1 - chance, chance]
    model = mmdp.MMDP([[[ill, cured], [ill, cured]]] * 2, [[0.0, 0.0]] * 2, initial=well)
    effects, costs = [[0.0, 0.0], [1.0, 1.0]], [[0.0, 8.0], [0.0, 8.0]]
    counting, T = Counting(within_cycle="simpson"), 9
    sweep = economics.willingness_to_pay(model, effects, costs, [10.0], T, counting=counting)
    policy = sweep.policies[sweep.frontier["policy"][0]].actions
    assert policy[1:-2].all()  # at the last two times the gain is halved, or none
    assert not policy[-1].any()
    x, years, paid = np.array(well), [], []
    for t in range(T):  # the cohort trace, added up by scipy's rule
        years.append(x[1])
        paid.append(8.0 * policy[t, 0])
        x = np.array(cured if policy[t, 0] else ill)
    assert sweep.frontier["effect"][0] == pytest.approx(scipy.integrate.simpson(years, dx=1.0))
    assert sweep.frontier["cost"][0] == pytest.approx(scipy.integrate.simpson(paid, dx=1.0))
    priced = counting.net_benefit(model, effects, costs, 10.0, T)
    smooth = Counting(within_cycle="half-cycle").net_benefit(model, effects, costs, 10.0, T)
    np.testing.assert_array_equal(priced.rewards, smooth.rewards)
    assert "half-cycle weights in the search" in counting.text
    with pytest.raises(mmdp.InputError, match="odd horizon"):
        counting.net_benefit(model, effects, costs, 10.0, 8)


# ---------------------------------------------------------------------- the sweep
def test_the_sweep_names_its_comparators_and_never_does_worse(
    draws: list[dict[str, Any]],
) -> None:
    model, effects, costs = as_model(draws[:60])
    levels = [0.0, 5000.0, 8000.0, 20000.0]
    sweep = economics.willingness_to_pay(
        model, effects, costs, levels, YEARS, policies=PLANS, counting=UK
    )
    assert list(sweep.policies)[:4] == list(PLANS)
    fixed = economics.cost_effectiveness(model, effects, costs, PLANS, YEARS, counting=UK)
    assert (sweep.frontier["nmb"] >= fixed.frontier(levels)["nmb"] - 1e-9).all()
    mono = economics.willingness_to_pay(
        model, effects, costs, [0.0], YEARS, policies=PLANS, counting=UK
    )
    assert mono.frontier["cost"][0] <= fixed.frontier([0.0])["cost"][0] + 1e-9
    # what it found is worth what the loops say
    name = sweep.frontier["policy"].iloc[-1]
    d, actions = sweep.outcomes.policies.index(name), sweep.policies[name].actions
    for m in range(3):
        x, life, cost = np.array([1.0, 0, 0, 0]), 0.0, 0.0
        both = [matrix(draws[m], on) for on in (False, True)]
        for t in range(YEARS):
            for s in range(4):
                after = x[s] * both[actions[t, s]][s]
                drug = ZIDOVUDINE + LAMIVUDINE * actions[t, s]
                life += after[:3].sum()
                bill = after[:3] @ draws[m]["care"] + after[:3].sum() * drug
                cost += bill / 1.06 ** (t + 1)
            x = sum(x[s] * both[actions[t, s]][s] for s in range(4))
        assert sweep.effects[d, m] == pytest.approx(life, rel=1e-11)
        assert sweep.costs[d, m] == pytest.approx(cost, rel=1e-11)


@pytest.mark.parametrize("seed", range(5))
def test_icers_are_the_corners_of_the_net_benefit(seed: int) -> None:
    """A policy is not dominated if it has the largest net benefit at some threshold."""
    rng = np.random.default_rng(seed)
    e, c = rng.random(12), 100 * rng.random(12)
    names = [f"p{i}" for i in range(12)]
    table = CostEffectiveness.from_tables(
        dict(zip(names, e[:, None], strict=True)), dict(zip(names, c[:, None], strict=True))
    ).icers()
    levels = np.concatenate([[0.0], np.geomspace(1e-3, 1e7, 40001)])
    best = set(np.array(names)[(levels[:, None] * e - c).argmax(axis=1)])
    kept = table[table["status"] == "ND"]
    assert set(kept["policy"]) == best
    assert kept["icer"].dropna().is_monotonic_increasing
    dominated = {
        names[i] for i in range(12)
        if any(e[j] >= e[i] and c[j] <= c[i] for j in range(12) if j != i)
    }  # fmt: skip
    assert set(table.loc[table["status"] == "D", "policy"]) == dominated
    assert list(table["status"]) == sorted(table["status"], key=["ND", "ED", "D"].index)


def test_ties_share_the_probability() -> None:
    same = {"a": [1.0, 2.0], "b": [1.0, 3.0]}
    table = CostEffectiveness.from_tables(same, {"a": [0, 0], "b": [0, 0]}, weights=[0.4, 0.6])
    assert table.acceptability([1.0])["probability"].tolist() == pytest.approx([0.2, 0.8])


# ---------------------------------------------------------------------- bad input
def tiny() -> mmdp.MMDP:
    return mmdp.MMDP(
        [[[[1, 0], [1, 0]], [[0, 1], [0, 0]]]], [[0, 0], [0, 0]], initial=[1, 0],
        allowed=[[True, True], [True, False]], states=["ill", "dead"], actions=["wait", "treat"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("treta", "policy 'x': unknown action 'treta' (did you mean 'treat'?); choose from wait"),
        (7, "policy 'x': unknown action '7'"),
        (["wait"], "policy 'x': 1 actions for 2 decisions; give one for each"),
        (
            {"ail": "wait"},
            "policy 'x': the rule: the model has no label 'ail' (did you mean 'ill'?)",
        ),
        ({"dead": "wait"}, "policy 'x': no action for state 'ill'; name every state that has a c"),
        ({"ill": "wait", "dead": "treat"}, "policy 'x': the policy takes action 'treat' in state"),
        (
            1.5,
            "policy 'x': a comparison needs a policy or the Solution it comes from, not fl",
        ),
        (mmdp.MarkovPolicy([[0, 0]]), "policy 'x': the policy covers 1 time steps, the horizon is"),
    ],
)
def test_a_policy_that_cannot_be_followed_is_one_line(rule: Any, told: str) -> None:
    with pytest.raises(mmdp.InputError) as caught:
        economics.cost_effectiveness(tiny(), [[1, 1], [0, 0]], [[0, 5], [0, 0]], {"x": rule}, 2)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_costs_and_effects_may_be_named_by_state() -> None:
    once = {"dead": [[0, 0], [0, 0]], "ill": {"treat": {"dead": 9, "ill": 1}, "wait": [0, 7]}}
    named = economics.cost_effectiveness(
        tiny(), {"dead": [0, 0], "ill": {"treat": 3, "wait": 2}},
        {"rewards": {"dead": [0, 0], "ill": [1, 5]}, "next_rewards": once}, {"x": "treat"}, 2,
    )  # fmt: skip
    plain = economics.cost_effectiveness(
        tiny(), [[2, 3], [0, 0]],
        {"rewards": [[1, 5], [0, 0]], "next_rewards": [[[0, 7], [1, 9]], [[0, 0], [0, 0]]]},
        {"x": "treat"}, 2,
    )  # fmt: skip
    for found in (named, plain):
        assert (found.costs.tolist(), found.effects.tolist()) == ([[12.0]], [[6.0]])


def test_states_without_a_choice_need_no_mention() -> None:
    stationary = mmdp.StationaryPolicy([1, 0])
    for rule in ("treat", 1, ["treat", "treat"], {"ill": "treat"}, stationary):
        table = economics.cost_effectiveness(
            tiny(), [[1, 1], [0, 0]], [[0, 5], [0, 0]], {"x": rule}, 2
        )
        assert table.costs.tolist() == [[10.0]]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: Counting().models(
                tiny(), {"rewards": [[0, 1], [0, 0]], "once": 1}, [[0, 5]], 2
            ),
            "effects: unknown part 'once'; use rewards or next_rewards",
        ),
        (
            lambda: Counting().models(tiny(), {"ill": 1, "dead": 0}, [[0, 5], [0, 0]], 2),
            "effects: rewards: the model has no label 'ill' here; use wait, treat",
        ),
        (lambda: Counting(cost_rate=0.97), "cost_rate is a discount rate per step from 0 to below"),
        (lambda: Counting(effect_rate=-0.1), "effect_rate is a discount rate"),
        (lambda: Counting(within_cycle="half"), "is none, half-cycle or simpson, not"),  # type: ignore[arg-type]
        (
            lambda: Counting(within_cycle="simpson").times(4),
            "so an odd horizon of 3 or more (it is 4)",
        ),
        (lambda: Counting(within_cycle="half-cycle").times(1), "needs a horizon of 2 or more"),
        (lambda: economics.cost_effectiveness(tiny(), 0, 0, {}, 2), "name at least one policy"),
        (lambda: CostEffectiveness.from_tables({"a": [1]}, {"b": [1]}), "no policy 'a'"),
        (lambda: CostEffectiveness.from_tables({"a": [1]}, {"a": [1, 2]}), "costs have 2"),
        (lambda: CostEffectiveness.from_tables({"a": ["x"]}, {"a": [1]}), "parameter 'a'"),
        (lambda: one().acceptability([]), "thresholds must be finite"),
        (lambda: one().net_benefit(-1), "thresholds must be finite"),
        (lambda: one().evsi(1.0, [1.0]), "a study returns finite numbers (2,) or (2, k) for 2"),
        (
            lambda: one().evsi(1.0, lambda x, rng: x["p"]),
            "study raised KeyError: 'p'; the parameters are q",
        ),
        (
            lambda: one().evsi(1.0, [1.0, 2.0], resamples=1),
            "resamples must be a whole number of at least 2",
        ),
        (lambda: one().evppi(1.0, "p"), "no parameter 'p'"),
    ],
)
def test_bad_input_is_one_line(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(mmdp.InputError) as caught:
        call()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def one() -> CostEffectiveness:
    return CostEffectiveness.from_tables({"a": [1, 2]}, {"a": [0, 0]}, parameters={"q": [0.1, 0.2]})


# ---------------------------------------------------------------------- what is shown
def test_a_policy_found_that_changes_nothing_is_not_listed_again() -> None:
    """Waiting and treating are the same for the dead: the found policy may do either there."""
    P = [[[[1, 0], [1, 0]], [[0, 1], [0, 1]]]] * 2
    model = mmdp.MMDP(P, [[0, 0], [0, 0]], initial=[1, 0], actions=["wait", "treat"])
    effects, costs = [[0, 1], [0, 0]], [[0, 10], [0, 0]]
    sweep = economics.willingness_to_pay(
        model, effects, costs, [5.0, 20.0], 2,
        policies={"never": {0: "wait", 1: "treat"}, "always": "treat"},
    )  # fmt: skip
    assert list(sweep.policies) == ["never", "always"]
    assert sweep.found == ()
    assert sweep.frontier["policy"].tolist() == ["never", "always"]
    assert sweep.frontier["probability"].tolist() == [1.0, 1.0]


def test_what_python_and_notebooks_show_is_a_table(found: CostEffectiveness) -> None:
    first, head, *rows = repr(found).splitlines()
    assert first == "Cost and effect of 4 policies, 1,000 draws"
    assert head.split() == list(found.icers().columns)
    assert len(rows) == 4
    assert "monotherapy" in rows[0]
    told = re.sub("<[^>]*>", " ", found._repr_html_())
    cost = found.icers()["cost"][0]
    assert f"{cost:,.0f}" in told
    assert f"{cost:,.0f}" in rows[0]
    evil = CostEffectiveness.from_tables({"<b>x</b>": [1.0]}, {"<b>x</b>": [1.0]})
    assert "<b>x" not in evil._repr_html_()
    sweep = economics.willingness_to_pay(
        tiny(), [[1, 1], [0, 0]], [[0, 5], [0, 0]], [1, 9], horizon=2
    )
    assert repr(sweep).splitlines()[0] == "The best of 1 policy by willingness to pay"
    assert "policy 1" in sweep._repr_html_()


def test_many_parameters_are_counted_and_a_wrong_shape_is_called_by_its_name() -> None:
    x = {f"p{i}": [0.1, 0.2] for i in range(11)}
    many = CostEffectiveness.from_tables({"a": [1, 2]}, {"a": [0, 0]}, parameters=x)
    with pytest.raises(mmdp.InputError, match="it has p0, p1, p2, p3, p4, p5, p6, p7 and 3 more"):
        many.evppi(1.0, "q")
    with pytest.raises(mmdp.InputError, match="^costs: rewards of shape"):
        economics.cost_effectiveness(tiny(), [[1, 1], [0, 0]], [0, 5], {"x": "wait"}, 2)


@pytest.mark.parametrize("unit", [1.0, 1e-13, 1e13])
def test_the_unit_of_costs_and_effects_does_not_matter(unit: float) -> None:
    one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]])
    effects, costs = unit * np.array([[0.0, 1.0]]), unit * np.array([[0.0, 10.0]])
    found = economics.cost_effectiveness(one, effects, costs, {"wait": 0, "treat": 1}, 1)
    frontier = found.frontier([1.0, 50.0])
    assert frontier["policy"].tolist() == ["wait", "treat"]
    assert frontier["evpi"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("given", [np.ones((2, 2)), [0.5, -1.0], [0.5, "x"], None])
def test_weights_of_times_are_named_or_one_for_each(given: Any) -> None:
    with pytest.raises(mmdp.InputError, match="within_cycle is none, half-cycle or simpson, or"):
        economics.Counting(within_cycle=given)


def test_own_weights_are_those_of_the_name(draws: list[dict[str, Any]]) -> None:
    model, effects, costs = as_model(draws[:3])
    named = Counting(effect_rate=0.03, cost_rate=0.06, within_cycle="half-cycle")
    own = Counting(effect_rate=0.03, cost_rate=0.06, within_cycle=named.times(YEARS))
    assert own == Counting(0.03, 0.06, list(named.times(YEARS)))  # it can be compared
    assert own.text.endswith("; times have given weights")
    for a, b in zip(*(x.models(model, effects, costs, YEARS) for x in (named, own)), strict=True):
        np.testing.assert_array_equal(a.rewards, b.rewards)
    with pytest.raises(mmdp.InputError, match="20 weights for 5 times"):
        own.models(model, effects, costs, 5)


# ---------------------------------------------------------------------- a published cohort model
# Alarid-Escudero et al., A Tutorial on Time-Dependent Cohort State-Transition Models in R Using a
# Cost-Effectiveness Analysis Example, Medical Decision Making 43(1), 2023 (arXiv:2108.13552v2):
# inputs in its table of parameters, deaths per person and year of the US life table 2015, ages 25
# to 99, in its repository (DARTH-git/cohort-modeling-tutorial-timedep, data/).
DEATHS = np.array([
    1014, 999, 1070, 1087, 1162, 1167, 1213, 1289, 1331, 1375, 1420, 1490, 1550, 1616, 1657, 1747,
    1902, 2052, 2173, 2395, 2559, 2807, 3023, 3349, 3712, 4085, 4490, 4905, 5364, 5806, 6253, 6775,
    7395, 7895, 8418, 8974, 9666, 10456, 11384, 11838, 12667, 13593, 14700, 15732, 17340, 18758,
    20967, 22917, 24913, 26767, 29707, 32412, 35982, 39238, 43595, 48727, 53735, 59911, 66618,
    74051, 82190, 90754, 103968, 115093, 124341, 137872, 154177, 172393, 194100, 212654, 243752,
    259087, 287781, 316429, 339149,
]) / 1e6  # fmt: skip
CYCLES = len(DEATHS)
SICK = ["healthy", "sick", "sicker", "dead"]
CARES = ["SoC", "A", "B", "AB"]
TUNNELS = {"sick": CYCLES}


def sick_sicker(x: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(T, S, A, S') for those who are sick for the x["since"]-th year; nothing after the last."""
    years = np.append(DEATHS, DEATHS[-1])[:, None]
    well = 1 - np.exp(-0.5)
    k, scale, shape = x["since"], x["scale"], x["shape"]
    rate = (k * scale) ** shape - ((k - 1) * scale) ** shape
    worse = 1 - np.exp(-rate * np.array([1.0, 1.0, 0.6, 0.6]))
    p = np.zeros((CYCLES + 1, 4, 4, 4))
    for s, hazard in enumerate((1, 3, 10)):
        p[:, s, :, 3] = 1 - np.exp(-hazard * years)
    live = 1 - p[:, :3, :, 3]
    p[:, 0, :, 1] = live[:, 0] * (1 - np.exp(-0.15))
    p[:, 0, :, 0] = live[:, 0] * np.exp(-0.15)
    p[:, 1, :, 0], p[:, 1, :, 2] = live[:, 1] * well, live[:, 1] * worse
    p[:, 1, :, 1] = live[:, 1] * (1 - well - worse)
    p[:, 2, :, 2], p[:, 3, :, 3] = live[:, 2], 1.0
    return p, np.zeros((4, 4))


def amounts() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """QALYs and costs: of a year in each state, and of becoming sick and of dying."""
    drug = np.array([0, 12_000, 13_000, 25_000]) * np.array([[0], [1], [1], [0]])
    qalys = np.array([[1.0] * 4, [0.75, 0.95, 0.75, 0.95], [0.5] * 4, [0.0] * 4])
    lost, paid = np.zeros((4, 4, 4)), np.zeros((4, 4, 4))
    lost[0, :, 1], paid[0, :, 1], paid[:3, :, 3] = -0.01, 1000, 2000
    costs = np.array([[2000.0], [4000.0], [15_000.0], [0.0]]) + drug
    return (
        {"rewards": qalys, "next_rewards": lost}, {"rewards": costs, "next_rewards": paid}
    )  # fmt: skip


def cea(scale: float, shape: float, weights: Any) -> tuple[mmdp.MMDP, CostEffectiveness]:
    model = mmdp.from_draws(
        {"scale": [scale], "shape": [shape]}, sick_sicker, tunnels=TUNNELS, states=SICK,
        actions=CARES, initial=[1, 0, 0, 0],
    )  # fmt: skip
    own = [SICK.index(name) for name in mmdp.posterior.without_tunnels(model, TUNNELS)]
    worth, price = (
        {"rewards": x["rewards"][own], "next_rewards": x["next_rewards"][own][:, :, own]}
        for x in amounts()
    )
    counting = Counting(0.03, 0.03, weights)
    plans = {name: name for name in CARES}
    found = economics.cost_effectiveness(model, worth, price, plans, counting=counting)
    return model, found


def test_the_tutorials_table_to_its_printed_digits() -> None:
    """Its table of results: a constant rate of .105, so that the 75 tunnels change nothing.

    Its weights 1/3, 2/3, 4/3, ... are Simpson's with the two middle ones exchanged, and its 75
    cycles are an odd number, so they are given as weights.
    """
    weights = np.where(np.arange(CYCLES + 1) % 2, 2 / 3, 4 / 3)
    weights[[0, -1]] = 1 / 3
    model, found = cea(0.105, 1.0, weights)
    assert model.n_states == 78
    table = found.icers().set_index("policy")
    printed = {
        "SoC": ("116,374", "18.879", "ND"), "B": ("202,536", "20.199", "ND"),
        "AB": ("296,300", "21.097", "ND"), "A": ("218,789", "19.636", "D"),
    }  # fmt: skip
    for name, row in printed.items():
        own = table.loc[name]
        assert (f"{own['cost']:,.0f}", f"{own['effect']:.3f}", own["status"]) == row
    added = [f"{x:,.0f}" for x in table.loc[["B", "AB"], ["added_cost", "icer"]].to_numpy().ravel()]
    assert added == ["86,162", "65,288", "93,764", "104,461"]
    assert [f"{x:.3f}" for x in table.loc[["B", "AB"], "added_effect"]] == ["1.320", "0.898"]


@pytest.mark.parametrize("correction", ["half-cycle", "own"])
def test_the_tutorials_tunnels_are_a_cohort_by_year_of_sickness(correction: str) -> None:
    """Its second model, a Weibull time to becoming sicker, against a loop over the cohort."""
    weights = np.ones(CYCLES + 1)
    weights[[0, -1]] = 0.5 if correction == "half-cycle" else 1.0
    _, found = cea(0.08, 1.1, correction if correction == "half-cycle" else weights)
    (qaly, cost), steps = amounts(), np.arange(CYCLES + 1)
    factors = weights / 1.03**steps
    p = [sick_sicker({"scale": 0.08, "shape": 1.1, "since": k + 1})[0] for k in range(CYCLES)]
    for a in range(4):
        healthy, sick, sicker, dead = 1.0, np.zeros(CYCLES), 0.0, 0.0
        totals, moved = np.zeros(2), np.zeros((4, 4))
        for t in steps:
            at = np.array([healthy, sick.sum(), sicker, dead])
            for i, x in enumerate((qaly, cost)):
                once = (moved * x["next_rewards"][:, a]).sum()
                totals[i] += factors[t] * (at @ x["rewards"][:, a] + once)
            rows = np.stack([p[k][t, 1, a] for k in range(CYCLES)])
            moved = p[0][t, :, a] * at[:, None]
            moved[1] = sick @ rows
            stay = sick * rows[:, 1]
            sick = np.append(moved[0, 1], stay[:-1])
            sick[-1] += stay[-1]
            healthy, _, sicker, dead = moved.sum(axis=0)
        np.testing.assert_allclose([found.effects[a, 0], found.costs[a, 0]], totals, rtol=1e-10)


def test_the_trace_is_the_cohort_by_hand() -> None:
    model, _ = cea(0.08, 1.1, "half-cycle")
    names = mmdp.posterior.without_tunnels(model, TUNNELS)
    found = economics.cohort_trace(model, {"SoC": "SoC", "B": "B"}, groups=names)
    assert len(found) == 2 * (CYCLES + 1) * 4
    wide = found[found["policy"] == "B"].pivot(index="time", columns="state", values="share")
    at = np.eye(model.n_states)[0]
    for t in range(CYCLES + 1):
        by_hand = {name: at[np.array(names) == name].sum() for name in SICK}
        assert wide.loc[t].to_dict() == pytest.approx(by_hand, abs=1e-12)
        at = at @ model.matrix(0, 2, t).toarray()
    lines = mmdp.plots.survival(found).lines
    alive = [float(y.get_ydata()[-1]) for y in lines]
    ends = [
        1 - found.query(f"policy == '{x}' and time == {CYCLES} and state == 'dead'")["share"].item()
        for x in ("SoC", "B")
    ]
    assert alive == pytest.approx(ends, abs=1e-12)
    assert len(mmdp.plots.cohort_trace(found).lines) == 8
    with pytest.raises(mmdp.InputError, match="no state 'Dead'"):
        mmdp.plots.survival(found, dead="Dead")
    with pytest.raises(mmdp.InputError, match="4 groups for 78 states"):
        economics.cohort_trace(model, {"SoC": "SoC"}, groups=SICK)


def test_the_sweep_keeps_to_a_kind_of_policy(draws: list[dict[str, Any]]) -> None:
    model, effects, costs = as_model(draws[:20])
    tied = mmdp.Tied(["treated"] * 3 + ["dead"])
    args: Any = (model, effects, costs, [5000.0, 8000.0], 6)
    found = economics.willingness_to_pay(*args, policy=tied)
    for policy in found.policies.values():
        assert (policy.actions[:, :3] == policy.actions[:, :1]).all()
    free = economics.willingness_to_pay(*args)
    assert (free.frontier["nmb"] >= found.frontier["nmb"] - 1e-9).all()
