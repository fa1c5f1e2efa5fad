"""A kind of policy of your own: the rule changes only at the beginning of a season.

python examples/new_policy.py
"""

# %% policy
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import mmdp
from mmdp.core.kernels.problem import SweepType
from mmdp.core.search.space import AscentDirection, ChangeGenerator, SearchSpace
from mmdp.core.search.spaces import MARKOV_SPACES
from mmdp.methods import SolveContext
from mmdp.policies import Markov


@dataclass(frozen=True)
class Seasons(Markov):
    """One action per state for ``length`` decisions in a row, then perhaps another."""

    length: int

    name: ClassVar[str] = "seasons"
    decision_inputs = "the season and the state"
    change_text = "change of the action in a single state and season"
    is_action_mask: ClassVar[bool] = False  # decisions bind each other
    is_restricted: ClassVar[bool] = True


class SeasonSpace(SearchSpace):
    """Tables (T, S) of actions; a block is a state in a season, and its changes are tried."""

    init_names: ClassVar[tuple[str, ...]] = ("wsu",)

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context)
        self.season = np.arange(context.horizon) // context.policy_class.length  # (T,)

    def compute_init(self, name: str, seed: int) -> np.ndarray:
        context = self.context
        random = mmdp.policies.MarkovPolicy.random(context.model, context.horizon, seed).actions
        return self.project(context.solve_wsu()[0] if name == "wsu" else random)

    def project(self, table: np.ndarray) -> np.ndarray:
        """Return the nearest table: all season long what its first decision says."""
        return table[self.season * self.context.policy_class.length]

    def estimate_ascent_seconds(self, name: str) -> float:
        """Estimate by size: ten rounds in which every change takes a pass."""
        x = self.context.problem
        n_changes = (self.season[-1] + 1) * x.n_states * x.n_actions
        return x.estimate_seconds(self.context.horizon, 10 * n_changes)

    def compute_returns(self, candidate: np.ndarray) -> np.ndarray:
        return self.context.compute_returns(candidate)

    def iter_changes(self, candidate: np.ndarray, direction: AscentDirection) -> ChangeGenerator:
        """Yield what every action adds to the returns (M,) by block, the last season first."""
        table, rho = candidate.copy(), self.compute_returns(candidate)
        for season in reversed(range(self.season[-1] + 1)):
            for s in range(self.context.problem.n_states):
                self.context.check_time()
                trials = np.repeat(table[None], self.context.problem.n_actions, axis=0)
                trials[:, self.season == season, s] = np.arange(len(trials))[:, None]
                trials = trials[self.context.model.allowed[s]]
                returns = np.array([self.compute_returns(trial) for trial in trials])
                action = (yield (returns - rho)[None])[0]
                if action >= 0:
                    table, rho = trials[action], returns[action]
        return table, rho


MARKOV_SPACES[Seasons] = SeasonSpace

# %% use
train, test = mmdp.domains.riverswim(n_train=20, seed=0)
for policy in ("markov", Seasons(3), Seasons(6)):
    solution = mmdp.solve(train, 12, policy_class=policy, objective=mmdp.objectives.CVaR(0.2))
    unrestricted = solution.details.get("unrestricted_value", solution.value)
    print(
        f"{policy!s:18} {solution.value:7.3f}  {solution.status.name}, {unrestricted:.3f} if free"
    )
