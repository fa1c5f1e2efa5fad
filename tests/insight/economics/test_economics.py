"""Health economics against a plain cohort simulation: loops over samples, cycles and policies.

The model is the HIV example of Briggs, Claxton and Sculpher, Decision Modelling for Health
Economic Evaluation (2006), exercises 2.5 and 4.7, after Chancellor et al. 1997: four states,
zidovudine alone or with lamivudine for two years, costs discounted at 6%, life years not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

import mmdp
from mmdp.insight import economics
from mmdp.insight.economics import CostEffectiveness, OutcomeDiscounting

TRANSITION_COUNTS = ((1251, 350, 116, 17), (731, 512, 15), (1312, 437))
CARE_COSTS, ZIDOVUDINE, LAMIVUDINE = (1701 + 1055, 1774 + 1278, 6948 + 2059), 2278.0, 2086.5
YEARS = 20
THRESHOLDS = [0.0, 2000.0, 5000.0, 6000.0, 7000.0, 10000.0, 20000.0, 50000.0]
STRATEGIES = {
    "monotherapy": "mono",
    "two years": ["combination"] * 2 + ["mono"] * (YEARS - 2),
    "five years": ["combination"] * 5 + ["mono"] * (YEARS - 5),
    "always": "combination",
}
Sample = Mapping[str, Any]


def make_mean_sample() -> dict[str, Any]:
    rows = [np.array(x, float) / sum(x) for x in TRANSITION_COUNTS]
    return {"rows": rows, "risk": 0.509, "care": np.array(CARE_COSTS, float)}


def make_random_samples(n_samples: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "rows": [rng.dirichlet(x) for x in TRANSITION_COUNTS],
            "risk": rng.lognormal(np.log(0.509), 0.173),
            "care": rng.gamma(1.0, np.array(CARE_COSTS)),
        }
        for _ in range(n_samples)
    ]


def make_transition_matrix(sample: Sample, combination: bool) -> np.ndarray:
    p = np.zeros((4, 4))
    p[3, 3] = 1.0
    for s, row in enumerate(sample["rows"]):
        p[s, s + 1 :] = row[1:] * (sample["risk"] if combination else 1.0)
        p[s, s] = 1 - p[s, s + 1 :].sum()
    return p


def simulate_cohort(
    sample: Sample, years_on: int, rates: tuple[float, float] = (0.0, 0.06)
) -> tuple[float, float]:
    """Life years and cost of one cohort: a year's figures are those of the state at its end."""
    state_probs, life_years, cost = np.array([1.0, 0, 0, 0]), 0.0, 0.0
    for year in range(1, YEARS + 1):
        is_treated = year <= years_on
        state_probs = state_probs @ make_transition_matrix(sample, is_treated)
        alive = state_probs[:3].sum()
        life_years += alive / (1 + rates[0]) ** year
        yearly_cost = state_probs[:3] @ sample["care"] + alive * (
            ZIDOVUDINE + LAMIVUDINE * is_treated
        )
        cost += yearly_cost / (1 + rates[1]) ** year
    return life_years, cost


def samples_to_model(samples: list[dict[str, Any]]) -> tuple[mmdp.MMDP, np.ndarray, np.ndarray]:
    """(model, effects, costs), both (M, S, A) and paid at the end of the year."""
    p = np.array(
        [
            [make_transition_matrix(sample, False), make_transition_matrix(sample, True)]
            for sample in samples
        ]
    ).transpose(0, 2, 1, 3)
    is_alive = np.array([1.0, 1.0, 1.0, 0.0])
    care_costs = np.array([[*sample["care"], 0.0] for sample in samples])
    drug_costs = np.array([ZIDOVUDINE, ZIDOVUDINE + LAMIVUDINE])
    yearly_costs = care_costs[:, :, None] + is_alive[:, None] * drug_costs  # (M, next state, A)
    model = mmdp.MMDP(
        p,
        np.zeros((4, 2)),
        initial=[1, 0, 0, 0],
        states=list("ABCD"),
        actions=["mono", "combination"],
        parameters={"risk": [sample["risk"] for sample in samples]},
    )
    return model, p @ is_alive, np.einsum("msan,mna->msa", p, yearly_costs) / 1.06


UK_DISCOUNTING = OutcomeDiscounting(effect_rate=0.0, cost_rate=0.06)


@pytest.fixture(scope="module")
def samples() -> list[dict[str, Any]]:
    return make_random_samples(1000)


@pytest.fixture(scope="module")
def analysis(samples: list[dict[str, Any]]) -> CostEffectiveness:
    model, effects, costs = samples_to_model(samples)
    return economics.cost_effectiveness(
        model, effects, costs, STRATEGIES, YEARS, discounting=UK_DISCOUNTING
    )


@pytest.fixture(scope="module")
def cohort_outcomes(samples: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """(D, M) effects and costs from the loops."""
    table = np.array(
        [[simulate_cohort(sample, years) for sample in samples] for years in (0, 2, 5, YEARS)]
    )
    return table[:, :, 0], table[:, :, 1]


# ---------------------------------------------------------------------- the book
def test_the_books_figures() -> None:
    model, effects, costs = samples_to_model([make_mean_sample()])
    strategies = {name: STRATEGIES[name] for name in ("monotherapy", "two years")}
    table = economics.cost_effectiveness(
        model, effects, costs, strategies, YEARS, discounting=UK_DISCOUNTING
    ).icers()
    assert table["cost"].round().tolist() == [44663, 50602]
    assert table["effect"].round(3).tolist() == [7.991, 8.937]
    assert round(table["icer"][1]) == 6276
    assert table["icer"].isna().tolist() == [True, False]


# ---------------------------------------------------------------------- 1,000 samples
def test_costs_and_effects_of_every_sample(
    analysis: CostEffectiveness, cohort_outcomes: tuple[np.ndarray, np.ndarray]
) -> None:
    assert analysis.policies == tuple(STRATEGIES)
    np.testing.assert_allclose(analysis.effects, cohort_outcomes[0], rtol=1e-11)
    np.testing.assert_allclose(analysis.costs, cohort_outcomes[1], rtol=1e-11)


def test_curves_frontier_loss_and_evpi(
    analysis: CostEffectiveness, cohort_outcomes: tuple[np.ndarray, np.ndarray]
) -> None:
    curves = analysis.acceptability(THRESHOLDS).set_index(["threshold", "policy"])
    frontier = analysis.frontier(THRESHOLDS).set_index("threshold")
    names, (effects, costs) = list(STRATEGIES), cohort_outcomes
    best_policies = set()
    for threshold in THRESHOLDS:
        probs_best, losses, means, mean_best = [0.0] * 4, [0.0] * 4, [0.0] * 4, 0.0
        for m in range(1000):
            nmb = [threshold * effects[d, m] - costs[d, m] for d in range(4)]
            probs_best[nmb.index(max(nmb))] += 1 / 1000
            mean_best += max(nmb) / 1000
            for d in range(4):
                means[d] += nmb[d] / 1000
                losses[d] += (max(nmb) - nmb[d]) / 1000
        best_id = means.index(max(means))
        best_policies.add(names[best_id])
        row = frontier.loc[threshold]
        assert row["policy"] == names[best_id]
        assert row["probability"] == pytest.approx(probs_best[best_id], abs=1e-9)
        assert row["evpi"] == pytest.approx(mean_best - max(means), rel=1e-9, abs=1e-6)
        assert row["evpi"] == pytest.approx(min(losses), rel=1e-9, abs=1e-6)
        for d, name in enumerate(names):
            curve = curves.loc[(threshold, name)]
            assert curve["probability"] == pytest.approx(probs_best[d], abs=1e-9)
            assert curve["nmb"] == pytest.approx(means[d], rel=1e-9)
            assert curve["loss"] == pytest.approx(losses[d], rel=1e-9, abs=1e-6)
    assert len(best_policies) >= 2  # the frontier does change


def make_trial(n_patients: int) -> Callable[[Any, np.random.Generator], np.ndarray]:
    """A trial that counts how many of n patients get worse when risk / 2 of them do."""
    return lambda params, rng: rng.binomial(n_patients, np.minimum(params["risk"] / 2, 1.0)).astype(
        float
    )


@pytest.mark.parametrize(
    ("n_patients", "threshold"),
    [
        (20, 5000.0),
        (200, 6000.0),
        pytest.param(20, 6000.0, marks=pytest.mark.slow),
        pytest.param(200, 5000.0, marks=pytest.mark.slow),
    ],
)
def test_evsi_equals_bayes_over_the_samples(
    analysis: CostEffectiveness, n_patients: int, threshold: float
) -> None:
    """Every possible result of the trial, with the posterior over the 1,000 samples."""
    nmb = threshold * analysis.effects - analysis.costs
    risk = analysis.parameters["risk"]
    exact = -nmb.mean(axis=1).max()
    for x in range(n_patients + 1):
        likelihood = scipy.stats.binom.pmf(x, n_patients, np.minimum(risk / 2, 1.0))
        exact += max(float((nmb[d] * likelihood).mean()) for d in range(4))
    # the mean over 20 simulated trials leaves the chance of the trial, not of the samples
    trials = [
        analysis.evsi(threshold, make_trial(n_patients), seed=seed, n_resamples=50)
        for seed in range(20)
    ]
    values = np.array([x.value for x in trials])
    errors = np.array([x.stderr for x in trials])
    assert (np.abs(values - exact) <= 4 * errors.mean()).all()
    assert values.mean() == pytest.approx(exact, abs=0.6 * errors.mean())
    assert values.std() <= 1.5 * errors.mean()
    evpi = analysis.frontier([threshold])["evpi"][0]
    assert (values <= evpi).all()


def test_evsi_error_equals_the_spread_over_samples() -> None:
    """New samples of a normal-normal trial: the spread is the error that is told."""
    rows = []
    for seed in range(40):
        gain = np.random.default_rng(seed).normal(0.1, 1.0, 800)
        effects = {"old": 0 * gain, "new": gain}
        zero_costs = {"old": 0 * gain, "new": 0 * gain}
        analysis = CostEffectiveness.from_tables(effects, zero_costs, parameters={"gain": gain})
        trial = analysis.evsi(
            1.0, lambda params, rng: rng.normal(params["gain"], 1.0), seed=seed, n_resamples=40
        )
        rows.append((*trial, analysis.evppi(1.0, "gain", n_resamples=2).value))
    values, errors, evppi_values = np.array(rows).T
    assert values.std() == pytest.approx(errors.mean(), rel=0.35)
    sd = np.sqrt(0.5)  # of the posterior mean
    exact = 0.1 * scipy.stats.norm.cdf(0.1 / sd) + sd * scipy.stats.norm.pdf(0.1 / sd) - 0.1
    assert values.mean() == pytest.approx(exact, abs=4 * errors.mean() / np.sqrt(40))
    exact_evppi = 0.1 * scipy.stats.norm.cdf(0.1) + scipy.stats.norm.pdf(0.1) - 0.1
    assert evppi_values.mean() == pytest.approx(exact_evppi, abs=4 * errors.mean() / np.sqrt(40))


def test_the_sample_seed_does_not_predict_the_trial() -> None:
    gain = np.random.default_rng(0).normal(0.0, 1.0, 4000)
    zero_costs = {"old": 0 * gain, "new": 0 * gain}
    analysis = CostEffectiveness.from_tables(
        {"old": 0 * gain, "new": gain}, zero_costs, parameters={"gain": gain}
    )
    noise = analysis.evsi(
        1.0, lambda params, rng: rng.normal(0.0, 1.0, len(params["gain"])), seed=0
    )
    assert noise.value < 0.03  # a study of nothing is worth nothing


def test_samples_of_zero_weight_change_nothing() -> None:
    gain = np.array([-1.0, 0.5, 1.0])
    analyses = [
        CostEffectiveness.from_tables({"old": 0 * x, "new": x}, {"old": 0 * x, "new": 0 * x}, **kw)
        for x, kw in ((gain, {}), (np.r_[gain, 9.0 * gain], {"weights": [1 / 3] * 3 + [0.0] * 3}))
    ]
    values = [x.evsi(1.0, x.effects[1], n_resamples=20) for x in analyses]
    assert values[1] == pytest.approx(values[0], rel=1e-12)


# ---------------------------------------------------------------------- counting
def test_separate_rates(samples: list[dict[str, Any]]) -> None:
    model, effects, costs = samples_to_model(samples[:5])
    discounting = OutcomeDiscounting(effect_rate=0.015, cost_rate=0.035)
    # at the end of the year: one more year of discount than the time of the decision
    table = economics.cost_effectiveness(
        model, effects / 1.015, costs * 1.06 / 1.035, STRATEGIES, YEARS, discounting=discounting
    )
    for d, years in enumerate((0, 2, 5, YEARS)):
        for m in range(5):
            life_years, cost = simulate_cohort(samples[m], years, (0.015, 0.035))
            assert table.effects[d, m] == pytest.approx(life_years, rel=1e-11)
            assert table.costs[d, m] == pytest.approx(cost, rel=1e-11)


def test_a_rate_is_the_models_discount_unless_given(samples: list[dict[str, Any]]) -> None:
    model, effects, costs = samples_to_model(samples[:3])
    model = model.replace(discount=0.9)
    default_rates = economics.cost_effectiveness(model, effects, costs, STRATEGIES, YEARS)
    explicit_rates = economics.cost_effectiveness(
        model,
        effects,
        costs,
        STRATEGIES,
        YEARS,
        discounting=OutcomeDiscounting(effect_rate=1 / 0.9 - 1),
    )
    np.testing.assert_allclose(default_rates.effects, explicit_rates.effects, rtol=1e-12)
    np.testing.assert_allclose(default_rates.costs, explicit_rates.costs, rtol=1e-12)


@pytest.mark.parametrize("correction", ["half-cycle", "simpson"])
def test_within_cycle_weights_on_the_trace(samples: list[dict[str, Any]], correction: Any) -> None:
    """Life years of the trace from time 0 to 20, added up by scipy's rule."""
    model, _, costs = samples_to_model(samples[:3])
    is_alive = np.array([[1.0, 1], [1, 1], [1, 1], [0, 0]])
    table = economics.cost_effectiveness(
        model,
        is_alive,
        costs,
        {"mono": 0},
        YEARS + 1,
        discounting=OutcomeDiscounting(effect_rate=0.03, within_cycle=correction),
    )
    integrate = scipy.integrate.trapezoid if correction == "half-cycle" else scipy.integrate.simpson
    for m in range(3):
        p, x, trace = make_transition_matrix(samples[m], False), np.array([1.0, 0, 0, 0]), []
        for t in range(YEARS + 1):
            trace.append(x[:3].sum() * 1.03**-t)
            x = x @ p
        assert table.effects[0, m] == pytest.approx(integrate(trace, dx=1.0), rel=1e-12)


@pytest.mark.parametrize("cure_prob", [0.9, 1.0])
def test_simpson_weights_are_not_used_in_the_search(cure_prob: float) -> None:
    """A treatment pays a year later, so weights that alternate would make it every second year."""
    well, ill = [0.0, 1.0], [1.0, 0.0]  # to (ill, well)
    cured = [1 - cure_prob, cure_prob]
    model = mmdp.MMDP([[[ill, cured], [ill, cured]]] * 2, [[0.0, 0.0]] * 2, initial=well)
    effects, costs = [[0.0, 0.0], [1.0, 1.0]], [[0.0, 8.0], [0.0, 8.0]]
    discounting, T = OutcomeDiscounting(within_cycle="simpson"), 9
    sweep = economics.willingness_to_pay(model, effects, costs, [10.0], T, discounting=discounting)
    policy = sweep.policies[sweep.frontier["policy"][0]].actions
    assert policy[1:-2].all()  # at the last two times the gain is halved, or none
    assert not policy[-1].any()
    state_probs, yearly_effects, yearly_costs = np.array(well), [], []
    for t in range(T):  # the cohort trace, added up by scipy's rule
        yearly_effects.append(state_probs[1])
        yearly_costs.append(8.0 * policy[t, 0])
        state_probs = np.array(cured if policy[t, 0] else ill)
    assert sweep.frontier["effect"][0] == pytest.approx(
        scipy.integrate.simpson(yearly_effects, dx=1.0)
    )
    assert sweep.frontier["cost"][0] == pytest.approx(scipy.integrate.simpson(yearly_costs, dx=1.0))
    simpson_model = discounting.make_net_benefit_model(model, effects, costs, 10.0, T)
    half_cycle_model = OutcomeDiscounting(within_cycle="half-cycle").make_net_benefit_model(
        model, effects, costs, 10.0, T
    )
    np.testing.assert_array_equal(simpson_model.rewards, half_cycle_model.rewards)
    assert "half-cycle weights in the search" in discounting.description
    with pytest.raises(mmdp.InputError, match="odd horizon"):
        discounting.make_net_benefit_model(model, effects, costs, 10.0, 8)


# ---------------------------------------------------------------------- the sweep
def test_the_sweep_names_its_comparators_and_never_does_worse(
    samples: list[dict[str, Any]],
) -> None:
    model, effects, costs = samples_to_model(samples[:60])
    thresholds = [0.0, 5000.0, 8000.0, 20000.0]
    sweep = economics.willingness_to_pay(
        model, effects, costs, thresholds, YEARS, policies=STRATEGIES, discounting=UK_DISCOUNTING
    )
    assert list(sweep.policies)[:4] == list(STRATEGIES)
    comparison = economics.cost_effectiveness(
        model, effects, costs, STRATEGIES, YEARS, discounting=UK_DISCOUNTING
    )
    assert (sweep.frontier["nmb"] >= comparison.frontier(thresholds)["nmb"] - 1e-9).all()
    zero_threshold_sweep = economics.willingness_to_pay(
        model, effects, costs, [0.0], YEARS, policies=STRATEGIES, discounting=UK_DISCOUNTING
    )
    assert zero_threshold_sweep.frontier["cost"][0] <= comparison.frontier([0.0])["cost"][0] + 1e-9
    # what it found is worth what the loops say
    name = sweep.frontier["policy"].iloc[-1]
    d, actions = sweep.outcomes.policies.index(name), sweep.policies[name].actions
    for m in range(3):
        state_probs, life_years, cost = np.array([1.0, 0, 0, 0]), 0.0, 0.0
        matrices = [make_transition_matrix(samples[m], is_treated) for is_treated in (False, True)]
        for t in range(YEARS):
            for s in range(4):
                next_probs = state_probs[s] * matrices[actions[t, s]][s]
                drug_cost = ZIDOVUDINE + LAMIVUDINE * actions[t, s]
                life_years += next_probs[:3].sum()
                yearly_cost = next_probs[:3] @ samples[m]["care"] + next_probs[:3].sum() * drug_cost
                cost += yearly_cost / 1.06 ** (t + 1)
            state_probs = sum(state_probs[s] * matrices[actions[t, s]][s] for s in range(4))
        assert sweep.effects[d, m] == pytest.approx(life_years, rel=1e-11)
        assert sweep.costs[d, m] == pytest.approx(cost, rel=1e-11)


@pytest.mark.parametrize("seed", range(5))
def test_icers_are_the_corners_of_the_net_benefit(seed: int) -> None:
    """A policy is not dominated if it has the largest net benefit at some threshold."""
    rng = np.random.default_rng(seed)
    effects, costs = rng.random(12), 100 * rng.random(12)
    names = [f"p{i}" for i in range(12)]
    table = CostEffectiveness.from_tables(
        dict(zip(names, effects[:, None], strict=True)),
        dict(zip(names, costs[:, None], strict=True)),
    ).icers()
    thresholds = np.concatenate([[0.0], np.geomspace(1e-3, 1e7, 40001)])
    best = set(np.array(names)[(thresholds[:, None] * effects - costs).argmax(axis=1)])
    not_dominated = table[table["status"] == "ND"]
    assert set(not_dominated["policy"]) == best
    assert not_dominated["icer"].dropna().is_monotonic_increasing
    dominated = {
        names[i]
        for i in range(12)
        if any(effects[j] >= effects[i] and costs[j] <= costs[i] for j in range(12) if j != i)
    }
    assert set(table.loc[table["status"] == "D", "policy"]) == dominated
    assert list(table["status"]) == sorted(table["status"], key=["ND", "ED", "D"].index)


def test_ties_share_the_probability() -> None:
    effects = {"a": [1.0, 2.0], "b": [1.0, 3.0]}
    table = CostEffectiveness.from_tables(effects, {"a": [0, 0], "b": [0, 0]}, weights=[0.4, 0.6])
    assert table.acceptability([1.0])["probability"].tolist() == pytest.approx([0.2, 0.8])


# ---------------------------------------------------------------------- bad input
def make_tiny_model() -> mmdp.MMDP:
    return mmdp.MMDP(
        [[[[1, 0], [1, 0]], [[0, 1], [0, 0]]]],
        [[0, 0], [0, 0]],
        initial=[1, 0],
        allowed=[[True, True], [True, False]],
        states=["ill", "dead"],
        actions=["wait", "treat"],
    )


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("treta", "policy 'x': unknown action 'treta' (did you mean 'treat'?); choose from wait"),
        (7, "policy 'x': unknown action '7'"),
        (["wait"], "policy 'x': 1 actions for 2 decisions; give one for each"),
        (
            {"ail": "wait"},
            "policy 'x': the rule: unknown label 'ail' (did you mean 'ill'?)",
        ),
        (
            {"dead": "wait"},
            "policy 'x': no action for state 'ill'; give one for each state that has a c",
        ),
        ({"ill": "wait", "dead": "treat"}, "policy 'x': the policy takes action 'treat' in state"),
        (
            1.5,
            "policy 'x': a comparison needs a policy or the Solution it comes from, not fl",
        ),
        (
            mmdp.policies.MarkovPolicy([[0, 0]]),
            "policy 'x': the policy covers 1 time steps, the horizon is",
        ),
    ],
)
def test_an_infeasible_policy_gives_a_one_line_error(policy: Any, message: str) -> None:
    with pytest.raises(mmdp.InputError) as error_info:
        economics.cost_effectiveness(
            make_tiny_model(), [[1, 1], [0, 0]], [[0, 5], [0, 0]], {"x": policy}, 2
        )
    assert message in str(error_info.value)
    assert "\n" not in str(error_info.value)


def test_costs_and_effects_may_be_named_by_state() -> None:
    transition_costs = {
        "dead": [[0, 0], [0, 0]],
        "ill": {"treat": {"dead": 9, "ill": 1}, "wait": [0, 7]},
    }
    from_labels = economics.cost_effectiveness(
        make_tiny_model(),
        {"dead": [0, 0], "ill": {"treat": 3, "wait": 2}},
        {"rewards": {"dead": [0, 0], "ill": [1, 5]}, "next_rewards": transition_costs},
        {"x": "treat"},
        2,
    )
    from_arrays = economics.cost_effectiveness(
        make_tiny_model(),
        [[2, 3], [0, 0]],
        {"rewards": [[1, 5], [0, 0]], "next_rewards": [[[0, 7], [1, 9]], [[0, 0], [0, 0]]]},
        {"x": "treat"},
        2,
    )
    for result in (from_labels, from_arrays):
        assert (result.costs.tolist(), result.effects.tolist()) == ([[12.0]], [[6.0]])


def test_states_without_a_choice_need_no_mention() -> None:
    stationary = mmdp.policies.StationaryPolicy([1, 0])
    for rule in ("treat", 1, ["treat", "treat"], {"ill": "treat"}, stationary):
        table = economics.cost_effectiveness(
            make_tiny_model(), [[1, 1], [0, 0]], [[0, 5], [0, 0]], {"x": rule}, 2
        )
        assert table.costs.tolist() == [[10.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: OutcomeDiscounting().make_outcome_models(
                make_tiny_model(), {"rewards": [[0, 1], [0, 0]], "once": 1}, [[0, 5]], 2
            ),
            "effects: unknown part 'once'; use rewards or next_rewards",
        ),
        (
            lambda: OutcomeDiscounting().make_outcome_models(
                make_tiny_model(), {"ill": 1, "dead": 0}, [[0, 5], [0, 0]], 2
            ),
            "effects: rewards: unknown label 'ill'; choose from wait, treat",
        ),
        (
            lambda: OutcomeDiscounting(cost_rate=0.97),
            "cost_rate=0.97 is not a discount rate per step from 0 to below",
        ),
        (lambda: OutcomeDiscounting(effect_rate=-0.1), "effect_rate=-0.1 is not a discount rate"),
        (lambda: OutcomeDiscounting(within_cycle="half"), "choose none, half-cycle or simpson"),  # type: ignore[arg-type]
        (
            lambda: OutcomeDiscounting(within_cycle="simpson").time_weights(4),
            "so an odd horizon of 3 or more (it is 4)",
        ),
        (
            lambda: OutcomeDiscounting(within_cycle="half-cycle").time_weights(1),
            "needs a horizon of 2 or more",
        ),
        (
            lambda: economics.cost_effectiveness(make_tiny_model(), 0, 0, {}, 2),
            "name at least one policy",
        ),
        (lambda: CostEffectiveness.from_tables({"a": [1]}, {"b": [1]}), "no policy 'a'"),
        (lambda: CostEffectiveness.from_tables({"a": [1]}, {"a": [1, 2]}), "costs have 2"),
        (lambda: CostEffectiveness.from_tables({"a": ["x"]}, {"a": [1]}), "parameter 'a'"),
        (
            lambda: make_one_policy_analysis().acceptability([]),
            "thresholds is not valid; give one or more finite",
        ),
        (
            lambda: make_one_policy_analysis().net_benefit(-1),
            "thresholds is not valid; give one or more finite",
        ),
        (
            lambda: make_one_policy_analysis().evsi(1.0, [1.0]),
            "return finite numbers (2,) or (2, k), one row per sample",
        ),
        (
            lambda: make_one_policy_analysis().evsi(1.0, lambda x, rng: x["p"]),
            "study raised KeyError: 'p'; the parameters are q",
        ),
        (
            lambda: make_one_policy_analysis().evsi(1.0, [1.0, 2.0], n_resamples=1),
            "n_resamples must be a whole number of at least 2",
        ),
        (lambda: make_one_policy_analysis().evppi(1.0, "p"), "no parameter 'p'"),
    ],
)
def test_bad_input_is_one_line(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(mmdp.InputError) as error_info:
        call()
    assert message in str(error_info.value)
    assert "\n" not in str(error_info.value)


def make_one_policy_analysis() -> CostEffectiveness:
    return CostEffectiveness.from_tables({"a": [1, 2]}, {"a": [0, 0]}, parameters={"q": [0.1, 0.2]})


# ---------------------------------------------------------------------- what is shown
def test_an_equivalent_policy_is_not_listed_again() -> None:
    """Waiting and treating are the same for the dead: the found policy may do either there."""
    P = [[[[1, 0], [1, 0]], [[0, 1], [0, 1]]]] * 2
    model = mmdp.MMDP(P, [[0, 0], [0, 0]], initial=[1, 0], actions=["wait", "treat"])
    effects, costs = [[0, 1], [0, 0]], [[0, 10], [0, 0]]
    sweep = economics.willingness_to_pay(
        model,
        effects,
        costs,
        [5.0, 20.0],
        2,
        policies={"never": {0: "wait", 1: "treat"}, "always": "treat"},
    )
    assert list(sweep.policies) == ["never", "always"]
    assert sweep.found_names == ()
    assert sweep.frontier["policy"].tolist() == ["never", "always"]
    assert sweep.frontier["probability"].tolist() == [1.0, 1.0]


def test_repr_and_html_are_tables(analysis: CostEffectiveness) -> None:
    title, header, *rows = repr(analysis).splitlines()
    assert title == "Cost and effect of 4 policies, 1,000 samples"
    assert header.split() == list(analysis.icers().columns)
    assert len(rows) == 4
    assert "monotherapy" in rows[0]
    html_text = re.sub("<[^>]*>", " ", analysis._repr_html_())
    cost = analysis.icers()["cost"][0]
    assert f"{cost:,.0f}" in html_text
    assert f"{cost:,.0f}" in rows[0]
    markup_analysis = CostEffectiveness.from_tables({"<b>x</b>": [1.0]}, {"<b>x</b>": [1.0]})
    assert "<b>x" not in markup_analysis._repr_html_()
    sweep = economics.willingness_to_pay(
        make_tiny_model(), [[1, 1], [0, 0]], [[0, 5], [0, 0]], [1, 9], horizon=2
    )
    assert repr(sweep).splitlines()[0] == "The best of 1 policy by willingness to pay"
    assert "policy 1" in sweep._repr_html_()


def test_errors_name_parameters_and_shapes() -> None:
    parameters = {f"p{i}": [0.1, 0.2] for i in range(11)}
    analysis = CostEffectiveness.from_tables({"a": [1, 2]}, {"a": [0, 0]}, parameters=parameters)
    with pytest.raises(mmdp.InputError, match="it has p0, p1, p2, p3, p4, p5, p6, p7 and 3 more"):
        analysis.evppi(1.0, "q")
    with pytest.raises(mmdp.InputError, match="^costs: rewards of shape"):
        economics.cost_effectiveness(make_tiny_model(), [[1, 1], [0, 0]], [0, 5], {"x": "wait"}, 2)


@pytest.mark.parametrize("unit", [1.0, 1e-13, 1e13])
def test_the_unit_of_costs_and_effects_does_not_matter(unit: float) -> None:
    model = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]])
    effects, costs = unit * np.array([[0.0, 1.0]]), unit * np.array([[0.0, 10.0]])
    result = economics.cost_effectiveness(model, effects, costs, {"wait": 0, "treat": 1}, 1)
    frontier = result.frontier([1.0, 50.0])
    assert frontier["policy"].tolist() == ["wait", "treat"]
    assert frontier["evpi"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("weights", [np.ones((2, 2)), [0.5, -1.0], [0.5, "x"], None])
def test_invalid_within_cycle_weights_are_refused(weights: Any) -> None:
    with pytest.raises(mmdp.InputError, match="choose none, half-cycle or simpson, or"):
        economics.OutcomeDiscounting(within_cycle=weights)


def test_given_weights_equal_the_named_ones(samples: list[dict[str, Any]]) -> None:
    model, effects, costs = samples_to_model(samples[:3])
    named_discounting = OutcomeDiscounting(
        effect_rate=0.03, cost_rate=0.06, within_cycle="half-cycle"
    )
    given_discounting = OutcomeDiscounting(
        effect_rate=0.03, cost_rate=0.06, within_cycle=named_discounting.time_weights(YEARS)
    )
    assert given_discounting == OutcomeDiscounting(
        0.03, 0.06, list(named_discounting.time_weights(YEARS))
    )  # it can be compared
    assert given_discounting.description.endswith("; times have given weights")
    for a, b in zip(
        *(
            x.make_outcome_models(model, effects, costs, YEARS)
            for x in (named_discounting, given_discounting)
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(a.rewards, b.rewards)
    with pytest.raises(mmdp.InputError, match="20 weights for 5 times"):
        given_discounting.make_outcome_models(model, effects, costs, 5)


# ---------------------------------------------------------------------- a published cohort model
# Alarid-Escudero et al., A Tutorial on Time-Dependent Cohort State-Transition Models in R Using a
# Cost-Effectiveness Analysis Example, Medical Decision Making 43(1), 2023 (arXiv:2108.13552v2):
# inputs in its table of parameters, deaths per person and year of the US life table 2015, ages 25
# to 99, in its repository (DARTH-git/cohort-modeling-tutorial-timedep, data/).
DEATH_RATES = (
    np.array(
        [
            1014,
            999,
            1070,
            1087,
            1162,
            1167,
            1213,
            1289,
            1331,
            1375,
            1420,
            1490,
            1550,
            1616,
            1657,
            1747,
            1902,
            2052,
            2173,
            2395,
            2559,
            2807,
            3023,
            3349,
            3712,
            4085,
            4490,
            4905,
            5364,
            5806,
            6253,
            6775,
            7395,
            7895,
            8418,
            8974,
            9666,
            10456,
            11384,
            11838,
            12667,
            13593,
            14700,
            15732,
            17340,
            18758,
            20967,
            22917,
            24913,
            26767,
            29707,
            32412,
            35982,
            39238,
            43595,
            48727,
            53735,
            59911,
            66618,
            74051,
            82190,
            90754,
            103968,
            115093,
            124341,
            137872,
            154177,
            172393,
            194100,
            212654,
            243752,
            259087,
            287781,
            316429,
            339149,
        ]
    )
    / 1e6
)
CYCLES = len(DEATH_RATES)
SICK_STATES = ["healthy", "sick", "sicker", "dead"]
TREATMENTS = ["SoC", "A", "B", "AB"]
# a state and the year since it was entered: the year matters to the sick alone
STAGES = [(0, 1), *((1, k) for k in range(1, CYCLES + 1)), (2, 1), (3, 1)]
STAGE_STATES = [SICK_STATES[s] for s, _ in STAGES]


def build_sick_sicker(params: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(T, S, A, S') for those who are sick for the x["since"]-th year; nothing after the last."""
    death_rates = np.append(DEATH_RATES, DEATH_RATES[-1])[:, None]
    recovery_prob = 1 - np.exp(-0.5)
    k, scale, shape = params["since"], params["scale"], params["shape"]
    rate = (k * scale) ** shape - ((k - 1) * scale) ** shape
    worsening_probs = 1 - np.exp(-rate * np.array([1.0, 1.0, 0.6, 0.6]))
    p = np.zeros((CYCLES + 1, 4, 4, 4))
    for s, hazard in enumerate((1, 3, 10)):
        p[:, s, :, 3] = 1 - np.exp(-hazard * death_rates)
    survival = 1 - p[:, :3, :, 3]
    p[:, 0, :, 1] = survival[:, 0] * (1 - np.exp(-0.15))
    p[:, 0, :, 0] = survival[:, 0] * np.exp(-0.15)
    p[:, 1, :, 0], p[:, 1, :, 2] = survival[:, 1] * recovery_prob, survival[:, 1] * worsening_probs
    p[:, 1, :, 1] = survival[:, 1] * (1 - recovery_prob - worsening_probs)
    p[:, 2, :, 2], p[:, 3, :, 3] = survival[:, 2], 1.0
    return p, np.zeros((4, 4))


def build_stages(params: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(T, S, A, S') with the sick split by the year since they fell ill."""
    p = np.zeros((CYCLES + 1, len(STAGES), 4, len(STAGES)))
    for i, (s, k) in enumerate(STAGES):
        row = build_sick_sicker({**params, "since": k})[0][:, s]
        for target in range(4):
            next_year = min(k + 1, CYCLES) if s == target == 1 else 1
            p[:, i, :, STAGES.index((target, next_year))] = row[:, :, target]
    return p, np.zeros((len(STAGES), 4))


def make_qalys_and_costs() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """QALYs and costs: of a year in each state, and of becoming sick and of dying."""
    drug_costs = np.array([0, 12_000, 13_000, 25_000]) * np.array([[0], [1], [1], [0]])
    qalys = np.array([[1.0] * 4, [0.75, 0.95, 0.75, 0.95], [0.5] * 4, [0.0] * 4])
    transition_qalys, transition_costs = np.zeros((4, 4, 4)), np.zeros((4, 4, 4))
    transition_qalys[0, :, 1], transition_costs[0, :, 1], transition_costs[:3, :, 3] = (
        -0.01,
        1000,
        2000,
    )
    costs = np.array([[2000.0], [4000.0], [15_000.0], [0.0]]) + drug_costs
    return (
        {"rewards": qalys, "next_rewards": transition_qalys},
        {"rewards": costs, "next_rewards": transition_costs},
    )


def analyze_sick_sicker(
    scale: float, shape: float, weights: Any
) -> tuple[mmdp.MMDP, CostEffectiveness]:
    model = mmdp.from_samples(
        {"scale": [scale], "shape": [shape]},
        build_stages,
        states=[f"{SICK_STATES[s]} {k}" for s, k in STAGES],
        actions=TREATMENTS,
        initial={"healthy 1": 1.0},
    )
    state_ids = [s for s, _ in STAGES]
    effects, costs = (
        {
            "rewards": outcome["rewards"][state_ids],
            "next_rewards": outcome["next_rewards"][state_ids][:, :, state_ids],
        }
        for outcome in make_qalys_and_costs()
    )
    discounting = OutcomeDiscounting(0.03, 0.03, weights)
    strategies = {name: name for name in TREATMENTS}
    result = economics.cost_effectiveness(
        model, effects, costs, strategies, discounting=discounting
    )
    return model, result


def test_the_tutorials_table_to_its_printed_digits() -> None:
    """Its table of results: a constant rate of .105, so that years since entry do not matter.

    Its weights 1/3, 2/3, 4/3, ... are Simpson's with the two middle ones exchanged, and its 75
    cycles are an odd number, so they are given as weights.
    """
    weights = np.where(np.arange(CYCLES + 1) % 2, 2 / 3, 4 / 3)
    weights[[0, -1]] = 1 / 3
    model, result = analyze_sick_sicker(0.105, 1.0, weights)
    assert model.n_states == 78
    table = result.icers().set_index("policy")
    printed = {
        "SoC": ("116,374", "18.879", "ND"),
        "B": ("202,536", "20.199", "ND"),
        "AB": ("296,300", "21.097", "ND"),
        "A": ("218,789", "19.636", "D"),
    }
    for name, row in printed.items():
        table_row = table.loc[name]
        assert (
            f"{table_row['cost']:,.0f}",
            f"{table_row['effect']:.3f}",
            table_row["status"],
        ) == row
    added = [f"{x:,.0f}" for x in table.loc[["B", "AB"], ["added_cost", "icer"]].to_numpy().ravel()]
    assert added == ["86,162", "65,288", "93,764", "104,461"]
    assert [f"{x:.3f}" for x in table.loc[["B", "AB"], "added_effect"]] == ["1.320", "0.898"]


@pytest.mark.parametrize("correction", ["half-cycle", "own"])
def test_tutorial_tunnels_equal_a_cohort_loop(correction: str) -> None:
    """Its second model, a Weibull time to becoming sicker, against a loop over the cohort."""
    weights = np.ones(CYCLES + 1)
    weights[[0, -1]] = 0.5 if correction == "half-cycle" else 1.0
    _, result = analyze_sick_sicker(
        0.08, 1.1, correction if correction == "half-cycle" else weights
    )
    (qalys, costs), times = make_qalys_and_costs(), np.arange(CYCLES + 1)
    factors = weights / 1.03**times
    p = [build_sick_sicker({"scale": 0.08, "shape": 1.1, "since": k + 1})[0] for k in range(CYCLES)]
    for a in range(4):
        healthy, sick, sicker, dead = 1.0, np.zeros(CYCLES), 0.0, 0.0
        totals, flows = np.zeros(2), np.zeros((4, 4))
        for t in times:
            state_probs = np.array([healthy, sick.sum(), sicker, dead])
            for i, outcome in enumerate((qalys, costs)):
                transition_total = (flows * outcome["next_rewards"][:, a]).sum()
                totals[i] += factors[t] * (
                    state_probs @ outcome["rewards"][:, a] + transition_total
                )
            rows = np.stack([p[k][t, 1, a] for k in range(CYCLES)])
            flows = p[0][t, :, a] * state_probs[:, None]
            flows[1] = sick @ rows
            still_sick = sick * rows[:, 1]
            sick = np.append(flows[0, 1], still_sick[:-1])
            sick[-1] += still_sick[-1]
            healthy, _, sicker, dead = flows.sum(axis=0)
        np.testing.assert_allclose([result.effects[a, 0], result.costs[a, 0]], totals, rtol=1e-10)


def test_cohort_trace_equals_matrix_products() -> None:
    model, _ = analyze_sick_sicker(0.08, 1.1, "half-cycle")
    groups = STAGE_STATES
    trace = economics.cohort_trace(model, {"SoC": "SoC", "B": "B"}, groups=groups)
    assert len(trace) == 2 * (CYCLES + 1) * 4
    trace_by_state = trace[trace["policy"] == "B"].pivot(
        index="time", columns="state", values="share"
    )
    state_probs = np.eye(model.n_states)[0]
    for t in range(CYCLES + 1):
        expected = {name: state_probs[np.array(groups) == name].sum() for name in SICK_STATES}
        assert trace_by_state.loc[t].to_dict() == pytest.approx(expected, abs=1e-12)
        state_probs = state_probs @ model.transition_matrix(0, 2, t).toarray()
    lines = mmdp.plots.survival(trace).lines
    alive = [float(y.get_ydata()[-1]) for y in lines]
    expected_alive = [
        1 - trace.query(f"policy == '{x}' and time == {CYCLES} and state == 'dead'")["share"].item()
        for x in ("SoC", "B")
    ]
    assert alive == pytest.approx(expected_alive, abs=1e-12)
    assert len(mmdp.plots.cohort_trace(trace).lines) == 8
    with pytest.raises(mmdp.InputError, match="no state 'Dead'"):
        mmdp.plots.survival(trace, dead="Dead")
    with pytest.raises(mmdp.InputError, match="4 groups for 78 states"):
        economics.cohort_trace(model, {"SoC": "SoC"}, groups=SICK_STATES)


def test_the_sweep_keeps_to_a_policy_class(samples: list[dict[str, Any]]) -> None:
    model, effects, costs = samples_to_model(samples[:20])
    policy_class = mmdp.policies.Tied(["treated"] * 3 + ["dead"])
    args: Any = (model, effects, costs, [5000.0, 8000.0], 6)
    sweep = economics.willingness_to_pay(*args, policy_class=policy_class)
    for policy in sweep.policies.values():
        assert (policy.actions[:, :3] == policy.actions[:, :1]).all()
    unrestricted_sweep = economics.willingness_to_pay(*args)
    assert (unrestricted_sweep.frontier["nmb"] >= sweep.frontier["nmb"] - 1e-9).all()


def test_the_trees_of_a_sweep_say_what_they_do(tmp_path: Path) -> None:
    """With ages as a number, a tree of two leaves; the page has the words of each policy."""
    rng, ages = np.random.default_rng(0), range(50, 54)
    P = np.broadcast_to(np.eye(4)[:, None], (6, 4, 2, 4))
    effects = np.zeros((6, 4, 2))
    effects[:, :, 1] = np.linspace(0.5, 2.0, 4) + rng.uniform(0, 0.1, size=(6, 1))
    costs = np.zeros((6, 4, 2))
    costs[:, :, 1] = 10.0
    model = mmdp.MMDP(
        P,
        12.0 * effects - costs,
        states=[f"age={x}" for x in ages],
        actions=["wait", "treat"],
        initial=np.full(4, 0.25),
    )
    tree = mmdp.solve(model, 1, policy_class=mmdp.policies.Tree(2, use_time=False))
    sweep = economics.willingness_to_pay(
        model, effects, costs, [0.0, 8.0], 1, policy_class=mmdp.policies.Tree(2, use_time=False)
    )
    texts = [sweep.policies[name].describe() for name in sweep.found_names]
    assert all(texts)
    assert any("if age is at most" in text for text in texts)
    page = mmdp.report.write(
        model,
        tmp_path / "page.html",
        policy=tree,
        effects=effects,
        costs=costs,
        wtp_grid=[0.0, 8.0],
    ).read_text(encoding="utf-8")
    for name, text in zip(sweep.found_names, texts, strict=True):
        assert f"<p>What {name} does:</p>\n<pre>{text}</pre>" in page
