"""Ducks, hunted: two hypotheses, a rule every autumn, a count every spring.

python examples/ducks.py OUT      # writes models/, log.csv, map.svg and weights.svg into OUT
"""

# %% models
import sys
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd

import mmdp
from mmdp import plots

out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/ducks")
out.mkdir(parents=True, exist_ok=True)

ducks = np.arange(1, 8)  # millions in spring
rules, share = ["closed", "restrictive", "liberal"], np.array([0.0, 0.1, 0.25])  # what is shot
noise, edges = NormalDist(sigma=0.8), [-np.inf, *(ducks[:-1] + 0.5), np.inf]


def spring_transitions(survival: np.ndarray) -> np.ndarray:
    """Compute P[next spring's count] by this spring's and the rule, (7, 3, 7); survival is (3,)."""
    born = 1.2 * np.exp(-ducks / 7)  # young per adult: fewer if it is crowded
    expected = ducks[:, None] * survival * (1 + born[:, None])
    cumulative = [[[noise.cdf(e - n) for e in edges] for n in row] for row in expected]
    return np.diff(cumulative, axis=2)


hypotheses = {
    "additive": 0.65 * (1 - share),  # who is shot would have lived
    "compensatory": np.minimum(0.65, 0.84 * (1 - share)),  # others live in their place
}
reward = ducks[:, None] * share - 1.0 * (ducks < 3)[:, None]  # the bag; few ducks are a loss
model = mmdp.MMDP(
    [spring_transitions(x) for x in hypotheses.values()],
    reward,
    initial=np.eye(7)[2],
    discount=0.97,
    states=[f"{n} m" for n in ducks],
    actions=rules,
    models=hypotheses,
)
mmdp.save(model, out / "models")
print(model)

# %% plan
T = 20  # years ahead
solution = mmdp.solve(model, T, "grid")
print(f"value {solution.value:.4f}, at most {solution.bound:.4f}: {solution.gap:.3%} more")
print(solution.policy.describe())
plots.save_figure(plots.policy_heatmap(solution), out / "map.svg")

# %% worth
table = mmdp.solve(model, T)
pairs = mmdp.bound(model, T, "pairs")
oracle = mmdp.solve(model, T, "oracle")
print(f"one table of actions, which never learns: {table.value:.3f}")
print(f"state and belief:                         {solution.value:.3f}")
print(f"no policy has more than (pairs):          {pairs.value:.3f}")
print(f"knowing the truth from the start:         {oracle.value:.3f}")

# %% years
truth, rng = model.transitions[1], np.random.default_rng(8)  # what nobody knows
updated_model, count, log = model, "3 m", []
for year in range(2026, 2034):
    rule = mmdp.solve(updated_model, T, "grid").policy.best_action(0, count, updated_model.weights)
    s, a = model.state_labels.index(count), rules.index(rule)
    counted = model.state_labels[rng.choice(7, p=truth[s, a])]
    log.append({"time": year, "state": count, "action": rule, "next_state": counted})
    updated_model = updated_model.update(count, rule, counted, initial="last")
    print(f"{year}: {count}, {rule:11} -> {counted}, compensatory {updated_model.weights[1]:.2f}")
    count = counted
pd.DataFrame(log).to_csv(out / "log.csv", index=False)

# %% once
final_model = model.update(out / "log.csv", initial="last")
weights = mmdp.posterior.weights_by_step(model, out / "log.csv")
print(np.allclose(final_model.weights, updated_model.weights), weights[:, 1].round(2).tolist())
axis = plots.weights_by_step(weights, range(2026, 2035), model.model_labels)
plots.save_figure(axis, out / "weights.svg")

# %% agent
agent = mmdp.interop.Agent(solution)
for count in ["3 m", *(step["next_state"] for step in log[:3])]:
    print(f"{count}: {rules[agent(count)]:11}", {k: round(v, 2) for k, v in agent.belief.items()})
