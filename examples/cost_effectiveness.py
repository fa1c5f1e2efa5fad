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
counts = {"A": (1251, 350, 116, 17), "B": (731, 512, 15), "C": (1312, 437)}
draws = {"risk": rng.lognormal(np.log(0.509), 0.17, n)}  # of getting worse, on both drugs
for state, row in counts.items():
    for after, p in zip("ABCD"[-len(row) :], rng.dirichlet(row, n).T, strict=True):
        draws[f"p_{state}{after}"] = p
for state, mean in {"A": 2756, "B": 3052, "C": 9007}.items():
    draws[f"care_{state}"] = rng.gamma(1.0, mean, n)
pd.DataFrame(draws).to_csv(out / "draws.csv", index=False)


# %% models
def build(x):
    P = np.zeros((4, 2, 4))
    for s, state in enumerate("ABC"):
        for worse in range(s + 1, 4):
            P[s, :, worse] = x[f"p_{state}{'ABCD'[worse]}"] * np.array([1.0, x["risk"]])
        P[s, :, s] = 1 - P[s].sum(axis=1)
    P[3, :, 3] = 1.0
    return P, np.zeros((4, 2))


model = mmdp.from_draws(
    out / "draws.csv", build, initial=[1, 0, 0, 0], actions=["one drug", "both drugs"],
    states=["CD4 200-500", "CD4 < 200", "AIDS", "dead"],
)  # fmt: skip
print(model)

# %% cost and effect
# Both are those of the state at the end of the year; costs are a year further in the future.
alive, drugs = np.array([1.0, 1.0, 1.0, 0.0]), np.array([2278.0, 2278.0 + 2086.5])
care = np.stack([*(model.parameters[f"care_{s}"] for s in "ABC"), np.zeros(n)], axis=1)
effects = model.transitions @ alive
yearly = care[:, :, None] + alive[:, None] * drugs
costs = np.einsum("msan,mna->msa", model.transitions, yearly) / 1.06
british = economics.Counting(effect_rate=0.0, cost_rate=0.06)

# %% policies
T = 20
plans = {
    "one drug": "one drug",
    "both for 2 years": ["both drugs"] * 2 + ["one drug"] * 18,
    "both until AIDS": {
        "CD4 200-500": "both drugs", "CD4 < 200": "both drugs", "AIDS": "one drug",
        "dead": "one drug",
    },
    "both for life": "both drugs",
}  # fmt: skip
found = economics.cost_effectiveness(model, effects, costs, plans, T, counting=british)
print(found.icers().round(2).to_string(index=False))

# %% frontier
print(found.frontier([0, 2_500, 5_000, 6_000, 8_000, 12_000]).round(2).to_string(index=False))
thresholds = range(0, 16_001, 250)
picture = mmdp.plots.acceptability_curves(
    found.acceptability(thresholds), found.frontier(thresholds)
)
mmdp.plots.save(picture, out / "acceptability.svg")

# %% parameters
for name in ("risk", "care_A", "care_B", "care_C"):
    value, error = found.evppi(6_000, name)
    print(f"{name:7} {value:5.0f} ± {2 * error:.0f}")


# %% study
def trial(patients):
    def simulate(x, rng):
        """How many patients get worse in a year on one drug, and on both."""
        worse = 1 - x["p_AA"]
        arms = [rng.binomial(patients, worse), rng.binomial(patients, worse * x["risk"])]
        return np.stack(arms, axis=1)

    return simulate


for patients in (50, 200, 1000):
    value, error = found.evsi(6_000, trial(patients))
    print(f"{patients:5} patients per arm: {value:4.0f} ± {2 * error:.0f}")

# %% optimal
sweep = economics.willingness_to_pay(
    model, effects, costs, [5_000, 6_000, 10_000], T, policies=plans, counting=british
)
print(sweep.frontier.round(2).to_string(index=False))

# %% safe
priced = british.net_benefit(model, effects, costs, 6_000, T)
solution = mmdp.solve(priced)
safe = mmdp.solve(priced, objective=mmdp.CVaR(0.1))
compared = {"best on average": solution, "safe": safe, **plans}
every = economics.cost_effectiveness(model, effects, costs, compared, T, counting=british)
for name, nmb in zip(compared, np.sort(every.net_benefit(6_000), axis=1), strict=True):
    print(f"{name:17} mean {nmb.mean():6,.0f}  worst tenth {nmb[: n // 10].mean():8,.0f}")

# %% report
mmdp.report.write(
    priced, out / "report.html", policy=solution, title="HIV: one drug or two", effects=effects,
    costs=costs, thresholds=thresholds[::8], compare=plans, counting=british,
)  # fmt: skip
print("wrote", ", ".join(sorted(file.name for file in out.iterdir())))
