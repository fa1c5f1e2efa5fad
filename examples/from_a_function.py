"""From a function to a decision: a spare part with a delivery time, a lake, and a car.

python examples/from_a_function.py OUT
"""

# %% function
import runpy
import sys
from pathlib import Path

import numpy as np
from scipy.stats import poisson

import mmdp

out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/from_a_function")
out.mkdir(parents=True, exist_ok=True)


def shop_step(state, action, event):  # arrays in, arrays out
    stock = np.maximum(state["stock"] - event["demand"], 0)
    sold = state["stock"] - stock
    profit = 5 * sold - 3 * action["order"] - 0.2 * stock
    return {"stock": np.minimum(stock + state["ordered"], 20), "ordered": action["order"]}, profit


def demand(sample):
    p = poisson.pmf(np.arange(21), sample["mean"])
    return p / p.sum()


# %% model
def make_shops(means):
    return mmdp.from_step(
        shop_step,
        states={"stock": range(21), "ordered": range(11)},
        actions={"order": range(11)},
        events={"demand": range(21)},
        event_probs=demand,
        samples={"mean": means},
        initial={"stock": 10, "ordered": 0},
        discount=0.95,
    )


rng = np.random.default_rng(0)
train, test = make_shops(rng.gamma(9, 0.5, 20)), make_shops(rng.gamma(9, 0.5, 100))
print(train)

# %% decision
solution = mmdp.solve(train, 26)
policy = solution.policy
print(policy.action(0, stock=10, ordered=0), policy.action(0, stock=3, ordered=5))
print(f"test models: {mmdp.evaluate(test, solution).mean:.1f}")
average = mmdp.solve(train, 26, "mvp")
print(f"planned for the average demand: {mmdp.evaluate(test, average).mean:.1f}")

# %% page
page = mmdp.report.write(
    train,
    out / "report.html",
    policy=solution,
    test_model=test,
    methods=["cadp", "mvp"],
    time_limit=1,
)
picture = mmdp.plots.save_figure(mmdp.plots.policy_heatmap(solution), out / "policy.png")
print(page.name, picture.name)

# %% rule
rule = mmdp.solve(train, 26, policy_class=mmdp.policies.Tree(max_leaves=5))
print(rule.policy.describe())
print(rule.restriction_cost_text)
print(f"test models: {mmdp.evaluate(test, rule).mean:.1f}")

# %% card
mmdp.export(rule, out / "card.html", model=train)
mmdp.export(rule, out / "reorder.py", model=train)
reorder = runpy.run_path(str(out / "reorder.py"))  # which needs nothing but Python
print(reorder["decide_by_features"](time=3, stock=6))

# %% lake
LOADS = np.linspace(0, 0.8, 9)


def lake_step(state, action, event, sample):  # phosphorus in a lake that recycles it
    p = state["phosphorus"]
    recycled = p**4 / (1 + p**4)
    next_phosphorus = p * (1 - sample["outflow"]) + recycled + action["load"] + event["rain"]
    return {"phosphorus": np.minimum(next_phosphorus, 4)}, 2 * action["load"] - 0.4 * p**2


def make_lakes(outflow, points):
    return mmdp.from_step(
        lake_step,
        states={"phosphorus": mmdp.Grid(0, 4, points)},
        actions={"load": LOADS},
        events={"rain": [0.0, 0.1, 0.3]},
        event_probs=lambda: [0.6, 0.3, 0.1],
        samples={"outflow": outflow},
        initial={"phosphorus": 0.5},
        discount=0.95,
    )


outflow, unseen = rng.uniform(0.3, 0.6, 20), rng.uniform(0.3, 0.6, 50)
print("points   on the grid   off the grid")
for points in (9, 21, 81):
    policy = mmdp.solve(make_lakes(outflow, points), 20).policy
    lake = make_lakes(unseen, points)
    on_grid, off_grid = (
        mmdp.evaluate(lake, policy),
        mmdp.simulate(lake, policy, off_grid=True, n_episodes=200),
    )
    print(f"{points:6} {on_grid.mean:13.2f} {off_grid.mean:10.2f} ± {2 * off_grid.stderr:.2f}")

# %% environment
VALLEY = {"position": mmdp.Grid(-1.2, 0.6, 21), "velocity": mmdp.Grid(-0.07, 0.07, 21)}


def is_arrived(state):
    return state["position"] >= 0.5


constants = {"force": rng.uniform(0.0007, 0.0013, 5), "gravity": rng.uniform(0.002, 0.003, 5)}
stepped = mmdp.interop.from_gymnasium(
    "MountainCar-v0", axes=VALLEY, samples=constants, is_terminal=is_arrived
)
print(stepped)


# %% car
def car_step(state, action, sample):  # the same, for all rows at once
    slope = sample["gravity"] * np.cos(3 * state["position"])
    velocity = np.clip(state["velocity"] + sample["force"] * action["push"] - slope, -0.07, 0.07)
    position = np.clip(state["position"] + velocity, -1.2, 0.6)
    velocity = np.where((position == -1.2) & (velocity < 0), 0.0, velocity)
    return {"position": position, "velocity": velocity}, -1.0


cars = mmdp.from_step(
    car_step, states=VALLEY, actions={"push": [-1, 0, 1]}, samples=constants, is_terminal=is_arrived
)
print("the same model:", np.allclose(cars.transitions, stepped.transitions))
