"""An invasive weed: does spraying still work here? A belief, and a flow chart instead of it.

python examples/weeds.py OUT      # writes policy.csv, chart.svg and memory.svg into OUT
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
success_probs = np.array(
    [0.05, 0.2, 0.4, 0.6, 0.8, 0.95]
)  # how often spraying works: six hypotheses


def season_transitions(success: float) -> np.ndarray:
    """Compute a season (4, 4): the weed falls a class if the action works, else it may spread."""
    step = np.zeros((4, 4))
    for s in range(4):
        step[s, max(s - 1, 0)] += success
        step[s, min(s + 1, 3)] += (1 - success) * 0.5
        step[s, s] += (1 - success) * 0.5
    return step


P = np.array(
    [
        np.stack([season_transitions(0.0), season_transitions(x), season_transitions(0.7)], axis=1)
        for x in success_probs
    ]
)
model = mmdp.MMDP(
    P,
    -(damage[:, None] + cost),
    initial=[0, 0, 1, 0],
    discount=0.95,
    states=covers,
    actions=actions,
    models=[f"works {x:.0%}" for x in success_probs],
    parameters={"works": success_probs},
)
print(model)

# %% one rule
T = 20  # seasons
rule = mmdp.solve(model, T)
print(f"one rule for all hypotheses: {rule.value:.2f}")
print("first season:", dict(zip(covers, (actions[a] for a in rule.policy.actions[0]), strict=True)))

# %% memory
table = mmdp.measures.value_by_nodes(model, T, n_nodes=(1, 2, 3, 4), time_limit=2)
print(table.round(2).to_string(index=False))
print(table.attrs["text"])
(out / "memory.svg").write_text(plots.to_svg(plots.value_by_nodes(table)))

# %% chart
solution = mmdp.solve(model, T, policy_class=mmdp.policies.Memory(max_nodes=3))
policy = solution.policy.merge_nodes(model)
controller = policy.to_flow_chart()
print(controller.text)
(out / "chart.svg").write_text(controller.to_svg())

# %% follow
node = policy.initial_memory()
cover = covers.index("many")
for year, next_cover in enumerate(["many", "thick", "many", "few"]):
    action = policy.act(node, year, cover)
    node = policy.update(node, year, cover, action, covers.index(next_cover))
    print(
        f"year {year}: {covers[cover]:5} -> {actions[action]:5} -> {next_cover:5}, "
        f"now in node {node}"
    )
    cover = covers.index(next_cover)

# %% check
exact = mmdp.evaluate(model, policy)
evaluation = mmdp.simulate(model, policy, n_episodes=2000, seed=1)
print(f"exact {exact.mean:.3f}, simulated {evaluation.mean:.3f} ± {2 * evaluation.stderr:.3f}")
for name, value in zip(model.model_labels, exact.returns, strict=True):
    print(f"if spraying {name:9} {value:7.2f}")
mmdp.save_policy(policy, out / "policy.csv")

# %% safe
safe_solution = mmdp.solve(
    model, T, policy_class=mmdp.policies.Memory(max_nodes=3), objective=mmdp.objectives.CVaR(0.1)
)
for name, shown_solution in (("on average", solution), ("for the worst tenth", safe_solution)):
    tail = shown_solution.evaluation.cvar(0.1)
    print(f"best {name:19}: average {shown_solution.evaluation.mean:.2f}, worst tenth {tail:.2f}")

# %% proof
bound = mmdp.bound(model, T, "pairs")
missing = (bound.value - solution.value) / abs(solution.value)
print(f"no policy gets more than {bound.value:.2f} on average: {missing:.1%} more than the chart")

# %% page
mmdp.report.write(model, out / "report.html", horizon=T, max_nodes=3, title="A weed in a reserve")
print("wrote", ", ".join(sorted(file.name for file in out.iterdir())))

# %% card
mmdp.export(policy, out / "card.html", model=model, bound=bound)
print(mmdp.measures.near_optimal_actions(model, policy, 0.01).description)
