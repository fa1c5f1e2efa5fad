"""An invasive weed: does spraying still work here? A belief, and a flow chart instead of it.

python examples/weeds.py OUT      # writes policy.csv, chart.svg, chart.dot and memory.svg into OUT
"""

# %% models
import sys
from pathlib import Path

import numpy as np

import mmdp
from mmdp import plots

out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/weeds")
out.mkdir(parents=True, exist_ok=True)

covers, actions = ["clean", "few", "many", "thick"], ["wait", "spray", "pull"]
damage, cost = np.array([0.0, 1.0, 4.0, 9.0]), np.array([0.0, 0.5, 3.0])
works = np.array([0.05, 0.2, 0.4, 0.6, 0.8, 0.95])  # how often spraying works: six hypotheses


def season(success: float) -> np.ndarray:
    """(4, 4) one season: the weed falls by one class if the action works, else it may spread."""
    step = np.zeros((4, 4))
    for s in range(4):
        step[s, max(s - 1, 0)] += success
        step[s, min(s + 1, 3)] += (1 - success) * 0.5
        step[s, s] += (1 - success) * 0.5
    return step


P = np.array([np.stack([season(0.0), season(x), season(0.7)], axis=1) for x in works])
model = mmdp.MMDP(
    P, -(damage[:, None] + cost), initial=[0, 0, 1, 0], discount=0.95, states=covers,
    actions=actions, models=[f"works {x:.0%}" for x in works], parameters={"works": works},
)  # fmt: skip
print(model)

# %% one rule
T = 20  # seasons
rule = mmdp.solve(model, T)
print(f"one rule for all hypotheses: {rule.value:.2f}")
print("first season:", dict(zip(covers, (actions[a] for a in rule.policy.actions[0]), strict=True)))

# %% memory
table = mmdp.value_of_memory(model, T, nodes=(1, 2, 3, 4), time_limit=2)
print(table.round(2).to_string(index=False))
print(table.attrs["text"])
(out / "memory.svg").write_text(plots.svg(plots.value_of_memory(table)))

# %% chart
solution = mmdp.solve(model, T, policy=mmdp.Memory(nodes=3))
policy = solution.policy.merged(model)
chart = policy.flow_chart()
print(chart.words)
(out / "chart.svg").write_text(chart.svg())
(out / "chart.dot").write_text(chart.dot())

# %% follow
node = policy.start()
cover = covers.index("many")
for year, after in enumerate(["many", "thick", "many", "few"]):
    action = policy.act(node, year, cover)
    node = policy.update(node, year, cover, action, covers.index(after))
    print(f"year {year}: {covers[cover]:5} -> {actions[action]:5} -> {after:5}, now in node {node}")
    cover = covers.index(after)

# %% check
exact = mmdp.evaluate(policy, model)
seen = mmdp.simulate(policy, model, episodes=2000, seed=1)
print(f"exact {exact.mean:.3f}, simulated {seen.mean:.3f} ± {2 * seen.stderr:.3f}")
for name, value in zip(model.model_labels, exact.returns, strict=True):
    print(f"if spraying {name:9} {value:7.2f}")
mmdp.save_policy(policy, out / "policy.csv")

# %% safe
safe = mmdp.solve(model, T, policy=mmdp.Memory(nodes=3), objective=mmdp.CVaR(0.1))
for name, found in (("on average", solution), ("for the worst tenth", safe)):
    tail = found.evaluation.cvar(0.1)
    print(f"best {name:19}: average {found.evaluation.mean:.2f}, worst tenth {tail:.2f}")

# %% proof
bound = mmdp.bound(model, T, "pairs")
missing = (bound.value - solution.value) / abs(solution.value)
print(f"no policy gets more than {bound.value:.2f} on average: {missing:.1%} more than the chart")

# %% page
mmdp.report.write(model, out / "report.html", horizon=T, memory=3, title="A weed in a reserve")
print("wrote", ", ".join(sorted(file.name for file in out.iterdir())))

# %% card
mmdp.export(policy, out / "card.html", model=model, bound=bound)
print(mmdp.freedom(policy, model, 0.01).text)
