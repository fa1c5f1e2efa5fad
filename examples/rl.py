"""Reinforcement learning across models: Q-learning on all of them at once, beside a planner.

python examples/rl.py OUT      # writes learned.csv into the folder OUT; needs mmdp[gym]
"""

# %% environments
import sys
from pathlib import Path

import numpy as np

import mmdp

out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/rl")
out.mkdir(parents=True, exist_ok=True)

T, n = 20, 500
train, test = mmdp.domains.riverswim(seed=0)
envs = mmdp.ecosystem.to_gymnasium_vector(train, num_envs=n, horizon=T)
states, info = envs.reset(seed=0)
print(n, "episodes at once, of models", info["model"][:8], "...")

# %% learn
Q = np.zeros((T + 1, train.n_states, train.n_actions))
rng = np.random.default_rng(0)
for episode in range(300):
    steps = []
    for t in range(T):
        explore = rng.random(n) < max(0.1, 1 - episode / 150)
        actions = np.where(explore, rng.integers(2, size=n), Q[t, states].argmax(axis=1))
        after, rewards, *_ = envs.step(actions)
        steps.append((t, states, actions, rewards, after))
        states = after
    for t, s, a, r, after in reversed(steps):
        target = r + train.discount * Q[t + 1, after].max(axis=1)
        total, count = np.zeros((2, train.n_states, train.n_actions))
        np.add.at(total, (s, a), target)
        np.add.at(count, (s, a), 1.0)
        Q[t] += 0.1 * (count > 0) * (total / np.maximum(count, 1) - Q[t])
    states, *_ = envs.step(actions)  # the next step begins another episode
learned = mmdp.MarkovPolicy.for_model(train, Q[:T].argmax(axis=2))
mmdp.save_policy(learned, out / "learned.csv")

# %% compare
planned = mmdp.solve(train, T)
for name, policy in (("Q-learning", learned), ("CADP", planned.policy)):
    here, there = mmdp.evaluate(policy, train), mmdp.evaluate(policy, test)
    print(f"{name:10}  train {here.mean:7.3f}  test {there.mean:7.3f}  worst {there.worst:6.3f}")
bound = mmdp.bound(train, T, "pairs")
print(f"no policy returns more than {bound.value:.3f} on the training models")
