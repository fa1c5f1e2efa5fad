"""From draws of costs and effects to a page: two HIV therapies, as in a textbook.

python examples/cost_effectiveness.py OUT      # writes the draws, a picture and report.html
"""

# %% draws
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import mmdp
from mmdp import economics

out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/cost_effectiveness")
out.mkdir(parents=True, exist_ok=True)

rng, n = np.random.default_rng(1), 1000
transition_counts = {"A": (1251, 350, 116, 17), "B": (731, 512, 15), "C": (1312, 437)}
samples = {"risk": rng.lognormal(np.log(0.509), 0.17, n)}  # of getting worse, on both drugs
for state, row in transition_counts.items():
    for next_state, p in zip("ABCD"[-len(row) :], rng.dirichlet(row, n).T, strict=True):
        samples[f"p_{state}{next_state}"] = p
for state, mean in {"A": 2756, "B": 3052, "C": 9007}.items():
    samples[f"care_{state}"] = rng.gamma(1.0, mean, n)
pd.DataFrame(samples).to_csv(out / "draws.csv", index=False)


# %% models
def build_model(x):
    P = np.zeros((4, 2, 4))
    for s, state in enumerate("ABC"):
        for worse in range(s + 1, 4):
            P[s, :, worse] = x[f"p_{state}{'ABCD'[worse]}"] * np.array([1.0, x["risk"]])
        P[s, :, s] = 1 - P[s].sum(axis=1)
    P[3, :, 3] = 1.0
    return P, np.zeros((4, 2))


model = mmdp.from_samples(
    out / "draws.csv",
    build_model,
    initial=[1, 0, 0, 0],
    actions=["one drug", "both drugs"],
    states=["CD4 200-500", "CD4 < 200", "AIDS", "dead"],
)
print(model)

# %% cost and effect
# Both are those of the state at the end of the year; costs are a year further in the future.
alive, drugs = np.array([1.0, 1.0, 1.0, 0.0]), np.array([2278.0, 2278.0 + 2086.5])
care = np.stack([*(model.parameters[f"care_{s}"] for s in "ABC"), np.zeros(n)], axis=1)
effects = model.transitions @ alive
yearly = care[:, :, None] + alive[:, None] * drugs
costs = np.einsum("msan,mna->msa", model.transitions, yearly) / 1.06
discounting = economics.OutcomeDiscounting(effect_rate=0.0, cost_rate=0.06)

# %% policies
T = 20
strategies = {
    "one drug": "one drug",
    "both for 2 years": ["both drugs"] * 2 + ["one drug"] * 18,
    "both until AIDS": {
        "CD4 200-500": "both drugs",
        "CD4 < 200": "both drugs",
        "AIDS": "one drug",
        "dead": "one drug",
    },
    "both for life": "both drugs",
}
comparison = economics.cost_effectiveness(
    model, effects, costs, strategies, T, discounting=discounting
)
print(comparison.icers().round(2).to_string(index=False))

# %% frontier
print(comparison.frontier([0, 2_500, 5_000, 6_000, 8_000, 12_000]).round(2).to_string(index=False))
thresholds = range(0, 16_001, 250)
picture = mmdp.plots.acceptability_curves(
    comparison.acceptability(thresholds), comparison.frontier(thresholds)
)
mmdp.plots.save_figure(picture, out / "acceptability.svg")

# %% parameters
for name in ("risk", "care_A", "care_B", "care_C"):
    value, error = comparison.evppi(6_000, name)
    print(f"{name:7} {value:5.0f} ± {2 * error:.0f}")


# %% study
def make_trial(patients):
    def simulate(x, rng):
        """How many patients get worse in a year on one drug, and on both."""
        worse = 1 - x["p_AA"]
        arms = [rng.binomial(patients, worse), rng.binomial(patients, worse * x["risk"])]
        return np.stack(arms, axis=1)

    return simulate


for patients in (50, 200, 1000):
    value, error = comparison.evsi(6_000, make_trial(patients))
    print(f"{patients:5} patients per arm: {value:4.0f} ± {2 * error:.0f}")

# %% optimal
sweep = economics.willingness_to_pay(
    model, effects, costs, [5_000, 6_000, 10_000], T, policies=strategies, discounting=discounting
)
print(sweep.frontier.round(2).to_string(index=False))

# %% safe
net_benefit_model = discounting.make_net_benefit_model(model, effects, costs, 6_000, T)
solution = mmdp.solve(net_benefit_model)
safe_solution = mmdp.solve(net_benefit_model, objective=mmdp.objectives.CVaR(0.1))
strategies_compared = {"best on average": solution, "safe": safe_solution, **strategies}
all_strategies = economics.cost_effectiveness(
    model, effects, costs, strategies_compared, T, discounting=discounting
)
for name, nmb in zip(
    strategies_compared, np.sort(all_strategies.net_benefit(6_000), axis=1), strict=True
):
    print(f"{name:17} mean {nmb.mean():6,.0f}  worst tenth {nmb[: n // 10].mean():8,.0f}")

# %% report
mmdp.report.write(
    net_benefit_model,
    out / "report.html",
    policy=solution,
    title="HIV: one drug or two",
    effects=effects,
    costs=costs,
    wtp_grid=thresholds[::8],
    comparators=strategies,
    discounting=discounting,
)
print("wrote", ", ".join(sorted(file.name for file in out.iterdir())))
