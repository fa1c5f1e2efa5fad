"""An inventory decision: how much to order each week, after six weeks of sales.

python examples/inventory.py OUT      # writes policy.csv and report.html into the folder OUT
"""

# %% models
import sys
from pathlib import Path

import mmdp
from mmdp import measures

out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/inventory")
out.mkdir(parents=True, exist_ok=True)

# Demand is Poisson; its rate has a Gamma posterior given these weeks. One model per draw.
weekly_sales = [6, 9, 7, 8, 5, 9]
train, test = mmdp.domains.inventory(n_train=100, n_test=200, seed=0, demands=weekly_sales)
rate = train.parameters["rate"]
print(train)
print(f"demand per week: {rate.mean():.1f} on average, {rate.min():.1f} to {rate.max():.1f}")

# %% policy
T = 50
solution = mmdp.solve(train, T)
mmdp.save_policy(solution, out / "policy.csv")
average = mmdp.solve(train, T, "mvp")
print("stock         ", *(f"{s:3}" for s in range(0, 21, 2)))
print("order         ", *(f"{a:3}" for a in solution.policy.actions[0, ::2]))
print("average demand", *(f"{a:3}" for a in average.policy.actions[0, ::2]))

# %% risk
for name, policy in (("CADP", solution), ("average demand", average)):
    evaluation = mmdp.evaluate(test, policy)
    print(
        f"{name:15} mean {evaluation.mean:.2f}  worst tenth {evaluation.cvar(0.1):.2f}  "
        f"regret {evaluation.bayes_regret:.2f}"
    )

# %% information
for weeks in (2, 6, 26):
    observed_sales = (weekly_sales * 5)[:weeks]
    models = mmdp.domains.inventory(n_train=100, seed=0, demands=observed_sales).train
    print(f"after {weeks:2} weeks, knowing the rate is worth {measures.evpi(models, T):5.2f}")

# %% learning
qmdp = mmdp.evaluate(test, mmdp.solve(train, T, "qmdp"), n_episodes=20, seed=0)
print(f"a policy that learns the rate while it sells: {qmdp.mean:.1f} +- {2 * qmdp.stderr:.1f}")

# %% enough models
sizes = measures.sample_size_curve(train, T, [5, 20, 50, 100], test_model=test)
print(sizes[["models", "test", "test_sd"]].round(2).to_string(index=False))

# %% report
mmdp.report.write(
    train, out / "report.html", policy=solution, test_model=test, title="How much to order"
)
print("wrote", ", ".join(sorted(file.name for file in out.iterdir())))
