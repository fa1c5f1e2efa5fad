"""Rules that people can carry out: never treat less when sicker, one for all, the same for ever.

python examples/simple_rules.py
"""

# %% models
import math

import numpy as np

import mmdp

stages, treatments = ["well", "mild", "severe", "dead"], ["wait", "pills", "surgery"]
rng = np.random.default_rng(0)


def disease() -> tuple[np.ndarray, np.ndarray]:
    """One plausible disease: P (4, 3, 4) and a year's quality of life less the burden (4, 3)."""
    cures = [0.0, rng.uniform(0.05, 0.25), rng.uniform(0.5, 0.9)]  # chance to improve
    worse = rng.uniform(0.1, 0.3)
    dies = np.array([0.01, 0.03, rng.uniform(0.08, 0.2)])
    operated = [0.01, 0.02, rng.uniform(0.05, 0.4)]  # deaths by surgery: the sick are frail
    P = np.zeros((4, 3, 4))
    P[3, :, 3] = 1.0
    for s in range(3):
        for a in range(3):
            death = dies[s] + operated[s] * (a == 2)
            better = (1 - death) * cures[a] * (s > 0)
            decline = (1 - death - better) * worse * (1 - cures[a]) * (s < 2)
            P[s, a, 3] = death
            P[s, a, s - 1] += better
            P[s, a, s + 1] += decline if s < 2 else 0.0
            P[s, a, s] += 1 - death - better - decline
    quality = np.array([1.0, 0.8, 0.4, 0.0])
    burden = np.array([0.0, 0.05, 0.3])
    return P, np.maximum(quality[:, None] - burden, 0.0)


P, r = (np.array(x) for x in zip(*(disease() for _ in range(60)), strict=True))
model = mmdp.MMDP(
    P, r, initial=[0.5, 0.3, 0.2, 0], discount=0.95, states=stages, actions=treatments
)  # fmt: skip


def summary(solution: mmdp.Solution) -> str:
    rule = solution.policy.actions[5]  # in year 5
    return ", ".join(f"{stages[s]}: {treatments[rule[s]]}" for s in range(3))


free = mmdp.solve(model, 20)
print(summary(free))

# %% monotone
rising = mmdp.Monotone(states=[["well", "mild", "severe"], ["dead"]], actions=treatments)
solution = mmdp.solve(model, 20, policy=rising)
print(summary(solution))
print(solution.price_text)

# %% proven
proven = mmdp.solve(model, 20, policy=rising, certify=3)
print("certainly below 1%:", proven.gap < 0.01)

# %% tied
groups = {"well": "at home", "mild": "in hospital", "severe": "in hospital", "dead": "dead"}
solution = mmdp.solve(model, 20, policy=mmdp.Tied(groups))
print(summary(solution))
print(solution.price_text)

# %% fixed
solution = mmdp.solve(model, 20, policy=mmdp.Fixed({"mild": ["wait", "pills"]}))
print(summary(solution))
print(solution.price_text)

# %% tree
solution = mmdp.solve(model, 20, policy=mmdp.Tree(leaves=3, features={"stage": stages}))
print(solution.policy.text())
print(solution.price_text)

# %% leaves
table = mmdp.value_of_leaves(model, 20, leaves=4, features={"stage": stages})
print(table[["leaves", "value", "gain", "price"]].round(4).to_string(index=False))
print(table.attrs["text"])

# %% stakes
facts = mmdp.measures.leaf_table(solution, model)
print(facts.round(3).to_string(index=False))

# %% stationary
solution = mmdp.solve(model, math.inf)
print(solution.policy.to_frame()[["state", "action"]].to_string(index=False))
print(solution.price_text)

# %% exact
proven = mmdp.solve(model, math.inf, "exact")
print(proven.status.name, "after", proven.details["nodes"], "nodes")

# %% daily
solution = mmdp.solve(model, 20, policy="stationary")
print(summary(solution))
print(solution.price_text)

# %% coin
sick, cured = 0, 1
P = np.zeros((2, 2, 2, 2))  # drug m cures in model m, the other one does nothing
P[:, cured, :, cured] = 1
for m in range(2):
    P[m, sick, m, cured] = P[m, sick, 1 - m, sick] = 1
infection = mmdp.MMDP(
    P, [[-1, -1], [0, 0]], initial=[1, 0], discount=0.99,
    states=["sick", "cured"], actions=["drug A", "drug B"],
)  # fmt: skip
one = mmdp.solve(infection, math.inf)
drawn = mmdp.solve(infection, math.inf, policy=mmdp.Stationary(randomised=True))
print(f"{one.value:.2f} {drawn.value:.2f}")
print(drawn.tossing_text)

# %% worst
goal = {"objective": "worst", "policy": mmdp.Markov(randomised=True)}
print(mmdp.solve(infection, 20, **goal).tossing_text)

# %% freedom
chosen = mmdp.freedom(mmdp.solve(model, 20), model, 0.01)
print(chosen.text)
rows = chosen.to_frame().round(4)
print(rows[(rows["time"] == 10) & (rows["state"] != "dead")].to_string(index=False))
