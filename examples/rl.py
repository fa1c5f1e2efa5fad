"""Reinforcement learning across models: Q-learning on all of them at once, and a planner.

python examples/rl.py OUT      # writes learned.csv and report.html into OUT; needs mmdp[gym]
"""

# %% environments
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pandas as pd

import mmdp

out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/rl")
out.mkdir(parents=True, exist_ok=True)

T, n = 20, 500
train, test = mmdp.domains.riverswim(seed=0)
envs = mmdp.interop.to_gymnasium_vector(train, num_envs=n, horizon=T)
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
        next_states, rewards, *_ = envs.step(actions)
        steps.append((t, states, actions, rewards, next_states))
        states = next_states
    for t, s, a, r, next_states in reversed(steps):
        target = r + train.discount * Q[t + 1, next_states].max(axis=1)
        total, count = np.zeros((2, train.n_states, train.n_actions))
        np.add.at(total, (s, a), target)
        np.add.at(count, (s, a), 1.0)
        Q[t] += 0.1 * (count > 0) * (total / np.maximum(count, 1) - Q[t])
    states, *_ = envs.step(actions)  # the next step begins another episode
learned = mmdp.policies.MarkovPolicy.for_model(train, Q[:T].argmax(axis=2))
mmdp.save_policy(learned, out / "learned.csv")

# %% compare
solution = mmdp.solve(train, T)
for name, policy in (("Q-learning", learned), ("CADP", solution.policy)):
    train_evaluation, test_evaluation = mmdp.evaluate(train, policy), mmdp.evaluate(test, policy)
    print(
        f"{name:10}  train {train_evaluation.mean:7.3f}  test {test_evaluation.mean:7.3f}  "
        f"worst {test_evaluation.worst:6.3f}"
    )
bound = mmdp.bound(train, T, "pairs")
print(f"no policy returns more than {bound.value:.3f} on the training models")

# %% planners
held_out = test.subset(range(100))  # simulated below, so fewer of them
print(f"{'cadp':8}  {mmdp.evaluate(held_out, solution).mean:.2f}")
for name in ("rollout", "qmdp", "mixts", "pomcp"):
    evaluation = mmdp.evaluate(held_out, mmdp.solve(train, T, name), n_episodes=20)
    print(f"{name:8}  {evaluation.mean:.2f} ± {2 * evaluation.stderr:.2f}")

# %% page
mmdp.report.write(
    train,
    out / "report.html",
    policy=solution,
    test_model=test,
    methods=["cadp", "mvp", "qmdp"],
    title="Riverswim",
)


# %% own environment
class Ferry(gymnasium.Env):
    """Wait at the bank, or cross: quickly, which may fail, or slowly, which is safe."""

    observation_space = gymnasium.spaces.Discrete(3)  # this bank, the other bank, sunk
    action_space = gymnasium.spaces.Discrete(3)  # wait, quickly, slowly

    def __init__(self, sink_rate: float) -> None:
        self.sink_rate = sink_rate

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return self.state, {}

    def step(self, action):
        reward, sink_prob = [0.0, 1.0, 0.6][action], [0.0, self.sink_rate, 0.01][action]
        if self.np_random.random() < sink_prob:
            self.state, reward = 2, 0.0
        elif action > 0:
            self.state = 1 - self.state
        return self.state, reward, self.state == 2, False, {}


# %% log
env, log, rng = Ferry(sink_rate=0.08), [], np.random.default_rng(0)
for episode in range(20):
    state, _ = env.reset(seed=episode)
    for time in range(T):
        action = int(rng.integers(3))
        next_states, reward, ended, _, _ = env.step(action)
        log.append((episode, time, state, action, next_states, reward, ended))
        state = next_states
        if ended:
            break
columns = ["episode", "time", "state", "action", "next_state", "reward", "terminated"]
log = pd.DataFrame(log, columns=columns)
fitted = mmdp.fit(log, n_models=100, n_test_models=200, discount=0.95)
print(len(log), "transitions,", fitted.train)

# %% play
learner = mmdp.solve(fitted.train, T, "qmdp")
agent = mmdp.interop.Agent(learner)
returns = []
for episode in range(200):
    state, _ = env.reset(seed=1000 + episode)
    agent.reset()
    total, reward, ended = 0.0, None, False
    for time in range(T):
        state, reward, ended, _, _ = env.step(agent(state, reward))
        total += fitted.train.discount**time * reward
        if ended:
            break
    returns.append(total)
expected = mmdp.evaluate(fitted.test, learner)
print(f"in the models {expected.mean:.2f} (sd {expected.sd:.2f}), in the environment", end=" ")
print(f"{np.mean(returns):.2f} ± {2 * np.std(returns) / len(returns) ** 0.5:.2f}")
print(mmdp.posterior.coverage(fitted.train, mmdp.solve(fitted.train, T)))
