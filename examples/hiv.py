"""A health-economics decision: which HIV treatment, in which state of health, at which time.

python examples/hiv.py OUT      # writes policy.csv, report.html and card.html into the folder OUT
"""

# %% models
import sys
from pathlib import Path

import numpy as np

import mmdp
from mmdp import economics, measures

out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/hiv")
out.mkdir(parents=True, exist_ok=True)

# 100 draws of a probabilistic sensitivity analysis to decide from, 100 more to check the decision
train, test = mmdp.domains.hiv(n_train=100, n_test=100, seed=0)
print(train)
print(len(train.parameters), "uncertain parameters:", ", ".join(list(train.parameters)[:4]), "...")

# %% policy
T = 15
solution = mmdp.solve(train, T)
mmdp.save_policy(solution, out / "policy.csv")
table = measures.policy_table(train, solution)
print(table[table["time"] == 0].round(2).to_string(index=False))

# %% risk
test_evaluation = mmdp.evaluate(test, solution)
for name, evaluation in (("decided from", solution.evaluation), ("held out", test_evaluation)):
    print(
        f"{name:13} mean {evaluation.mean:7,.0f}  worst tenth {evaluation.cvar(0.1):7,.0f}  "
        f"worst model {evaluation.worst:8,.0f}  regret {evaluation.bayes_regret:7,.0f}"
    )

# %% certificate
bound = mmdp.bound(train, T, "pairs")
print(
    f"no policy returns more than {bound.value:,.0f}: at most {bound.gap(solution.value):.1%} more"
)

# %% information
information = measures.voi_table(train, T, method=solution)
print(information.head(5).round(2).to_string(index=False))

# %% cost and effect
# The reward of the domain is 50,000 QALY - cost, earned in the state that is reached.
P, x, alive = train.transitions, train.parameters, range(3)
utility = np.stack([*(x[f"u_{s}"] for s in alive), np.zeros(train.n_models)], axis=1)
drug_prices = np.zeros((train.n_models, 4, 3))
for s in alive:
    for a in range(3):
        drug_prices[:, s, a] = x[f"c_{s}_{a}"]
effects = np.einsum("msan,mn->msa", P, utility)
costs = np.einsum("msan,mna->msa", P, drug_prices)
assert np.allclose(50_000 * effects - costs, train.rewards)

# %% willingness to pay
thresholds = [0, 20_000, 30_000, 50_000, 75_000, 100_000, 150_000]
sweep = economics.willingness_to_pay(train, effects, costs, thresholds, T)
print(sweep.frontier.round(2).to_string(index=False))

# %% report
mmdp.report.write(
    train,
    out / "report.html",
    policy=solution,
    test_model=test,
    bound=bound,
    title="HIV treatment",
    effects=effects,
    costs=costs,
    wtp_grid=thresholds,
)
print("wrote", ", ".join(sorted(file.name for file in out.iterdir())))

# %% card
stage = {"health": ["A", "B", "C", "dead"]}
rule = mmdp.solve(train, T, policy_class=mmdp.policies.Tree(max_leaves=3, features=stage))
print(rule.policy.describe())
print(rule.restriction_cost_text)
mmdp.export(rule, out / "card.html", model=train, bound=bound)

# %% freedom
print(mmdp.measures.near_optimal_actions(train, rule, 0.01).description)
table = measures.policy_table(train, rule, tolerance=0.01)
near_optimal = table["near_optimal"].str.contains(" or ") & (table["state"] != "death")
print(table[near_optimal][["time", "state", "action", "near_optimal"]].to_string(index=False))
