"""Rules that people can carry out: never treat less when sicker, one for all, the same for ever.

python examples/simple_rules.py
"""

# %% models
import math

import numpy as np

import mmdp

stages, treatments = ["well", "mild", "severe", "dead"], ["wait", "pills", "surgery"]
rng = np.random.default_rng(0)


def sample_disease() -> tuple[np.ndarray, np.ndarray]:
    """Sample a disease: P (4, 3, 4) and a year's quality of life less the burden (4, 3)."""
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


P, r = (np.array(x) for x in zip(*(sample_disease() for _ in range(60)), strict=True))
model = mmdp.MMDP(
    P, r, initial=[0.5, 0.3, 0.2, 0], discount=0.95, states=stages, actions=treatments
)


def format_summary(solution: mmdp.Solution) -> str:
    rule = solution.policy.actions[5]  # in year 5
    return ", ".join(f"{stages[s]}: {treatments[rule[s]]}" for s in range(3))


unrestricted = mmdp.solve(model, 20)
print(format_summary(unrestricted))

# %% monotone
monotone = mmdp.policies.Monotone(states=[["well", "mild", "severe"], ["dead"]], actions=treatments)
solution = mmdp.solve(model, 20, policy_class=monotone)
print(format_summary(solution))
print(solution.restriction_cost_text)

# %% proven
certified = mmdp.solve(model, 20, policy_class=monotone, certify_time=3)
print("certainly below 1%:", certified.gap < 0.01)

# %% tied
groups = {"well": "at home", "mild": "in hospital", "severe": "in hospital", "dead": "dead"}
solution = mmdp.solve(model, 20, policy_class=mmdp.policies.Tied(groups))
print(format_summary(solution))
print(solution.restriction_cost_text)

# %% fixed
solution = mmdp.solve(model, 20, policy_class=mmdp.policies.Fixed({"mild": ["wait", "pills"]}))
print(format_summary(solution))
print(solution.restriction_cost_text)

# %% tree
solution = mmdp.solve(
    model, 20, policy_class=mmdp.policies.Tree(max_leaves=3, features={"stage": stages})
)
print(solution.policy.describe())
print(solution.restriction_cost_text)

# %% leaves
table = mmdp.measures.value_by_leaves(model, 20, n_leaves=4, features={"stage": stages})
print(table[["leaves", "value", "gain", "restriction_cost"]].round(4).to_string(index=False))
print(table.attrs["text"])

# %% stakes
facts = mmdp.measures.leaf_table(model, solution)
print(facts.round(3).to_string(index=False))

# %% stationary
solution = mmdp.solve(model, math.inf)
print(solution.policy.to_frame()[["state", "action"]].to_string(index=False))
print(solution.restriction_cost_text)

# %% exact
certified = mmdp.solve(model, math.inf, "exact")
print(certified.status.name, "after", certified.details["n_nodes"], "nodes")

# %% daily
solution = mmdp.solve(model, 20, policy_class="stationary")
print(format_summary(solution))
print(solution.restriction_cost_text)

# %% coin
sick, cured = 0, 1
P = np.zeros((2, 2, 2, 2))  # drug m cures in model m, the other one does nothing
P[:, cured, :, cured] = 1
for m in range(2):
    P[m, sick, m, cured] = P[m, sick, 1 - m, sick] = 1
infection = mmdp.MMDP(
    P,
    [[-1, -1], [0, 0]],
    initial=[1, 0],
    discount=0.99,
    states=["sick", "cured"],
    actions=["drug A", "drug B"],
)
deterministic = mmdp.solve(infection, math.inf)
randomized = mmdp.solve(infection, math.inf, policy_class=mmdp.policies.Stationary(randomized=True))
print(f"{deterministic.value:.2f} {randomized.value:.2f}")
print(randomized.randomization_text)

# %% worst
options = {"objective": "worst", "policy_class": mmdp.policies.Markov(randomized=True)}
print(mmdp.solve(infection, 20, **options).randomization_text)

# %% freedom
action_sets = mmdp.measures.near_optimal_actions(model, mmdp.solve(model, 20), 0.01)
print(action_sets.description)
rows = action_sets.to_frame().round(4)
print(rows[(rows["time"] == 10) & (rows["state"] != "dead")].to_string(index=False))
