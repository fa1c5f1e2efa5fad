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


def step(state, action, event):  # arrays in, arrays out
    left = np.maximum(state["stock"] - event["demand"], 0)
    sold = state["stock"] - left
    profit = 5 * sold - 3 * action["order"] - 0.2 * left
    return {"stock": np.minimum(left + state["ordered"], 20), "ordered": action["order"]}, profit


def demand(draw):
    p = poisson.pmf(np.arange(21), draw["mean"])
    return p / p.sum()


# %% model
def models(means):
    return mmdp.from_step(
        step,
        states={"stock": range(21), "ordered": range(11)},
        actions={"order": range(11)},
        events={"demand": range(21)},
        chance=demand,
        draws={"mean": means},
        initial={"stock": 10, "ordered": 0},
        discount=0.95,
    )


rng = np.random.default_rng(0)
train, test = models(rng.gamma(9, 0.5, 20)), models(rng.gamma(9, 0.5, 100))
print(train)

# %% decision
solution = mmdp.solve(train, 26)
print(solution.policy.action(stock=10, ordered=0), solution.policy.action(stock=3, ordered=5))
print(f"test models: {mmdp.evaluate(solution, test).mean:.1f}")
average = mmdp.solve(train, 26, "mvp")
print(f"planned for the average demand: {mmdp.evaluate(average, test).mean:.1f}")

# %% page
page = mmdp.report.write(
    train, out / "report.html", policy=solution, test=test, methods=["cadp", "mvp"], seconds=1
)
picture = mmdp.plots.save(mmdp.plots.policy_heatmap(solution), out / "policy.png")
print(page.name, picture.name)

# %% rule
rule = mmdp.solve(train, 26, policy=mmdp.Tree(leaves=5))
print(rule.policy.text())
print(rule.price_text)
print(f"test models: {mmdp.evaluate(rule, test).mean:.1f}")

# %% card
mmdp.export(rule, out / "card.html", model=train)
mmdp.export(rule, out / "reorder.py", model=train)
reorder = runpy.run_path(str(out / "reorder.py"))  # which needs nothing but Python
print(reorder["rule"](time=3, stock=6))

# %% lake
LOADS = np.linspace(0, 0.8, 9)


def flow(state, action, event, draw):  # phosphorus in a lake that recycles it
    p = state["phosphorus"]
    recycled = p**4 / (1 + p**4)
    after = p * (1 - draw["outflow"]) + recycled + action["load"] + event["rain"]
    return {"phosphorus": np.minimum(after, 4)}, 2 * action["load"] - 0.4 * p**2


def lakes(outflow, points):
    return mmdp.from_step(
        flow,
        states={"phosphorus": mmdp.Grid(0, 4, points)},
        actions={"load": LOADS},
        events={"rain": [0.0, 0.1, 0.3]},
        chance=lambda: [0.6, 0.3, 0.1],
        draws={"outflow": outflow},
        initial={"phosphorus": 0.5},
        discount=0.95,
    )


outflow, unseen = rng.uniform(0.3, 0.6, 20), rng.uniform(0.3, 0.6, 50)
print("points   on the grid   off the grid")
for points in (9, 21, 81):
    policy = mmdp.solve(lakes(outflow, points), 20).policy
    lake = lakes(unseen, points)
    on, off = mmdp.evaluate(policy, lake), mmdp.simulate(policy, lake, off_grid=True, episodes=200)
    print(f"{points:6} {on.mean:13.2f} {off.mean:10.2f} ± {2 * off.stderr:.2f}")

# %% environment
VALLEY = {"position": mmdp.Grid(-1.2, 0.6, 21), "velocity": mmdp.Grid(-0.07, 0.07, 21)}


def arrived(state):
    return state["position"] >= 0.5


constants = {"force": rng.uniform(0.0007, 0.0013, 5), "gravity": rng.uniform(0.002, 0.003, 5)}
stepped = mmdp.ecosystem.from_gymnasium(
    "MountainCar-v0", axes=VALLEY, draws=constants, until=arrived
)
print(stepped)


# %% car
def drive(state, action, draw):  # the same, for all rows at once
    slope = draw["gravity"] * np.cos(3 * state["position"])
    velocity = np.clip(state["velocity"] + draw["force"] * action["push"] - slope, -0.07, 0.07)
    position = np.clip(state["position"] + velocity, -1.2, 0.6)
    velocity = np.where((position == -1.2) & (velocity < 0), 0.0, velocity)
    return {"position": position, "velocity": velocity}, -1.0


cars = mmdp.from_step(
    drive, states=VALLEY, actions={"push": [-1, 0, 1]}, draws=constants, until=arrived
)
print("the same model:", np.allclose(cars.transitions, stepped.transitions))
