"""A kind of policy of your own: the rule changes only at the beginning of a season.

python examples/new_policy.py
"""

# %% policy
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import mmdp
from mmdp.kernels.problem import Sweeps
from mmdp.methods import Context
from mmdp.policy import Markov
from mmdp.search.kinds import LANDSCAPES
from mmdp.search.landscape import Changes, Landscape, Slope


@dataclass(frozen=True)
class Seasons(Markov):
    """One action per state for ``length`` decisions in a row, then perhaps another."""

    length: int

    name: ClassVar[str] = "seasons"
    title = "the season and the state"
    change = "change of the action in a single state and season"
    masks: ClassVar[bool] = False  # decisions bind each other
    restricted: ClassVar[bool] = True

    def settings(self, model: mmdp.MMDP, horizon: int) -> int:
        return self.length


class SeasonTables(Landscape):
    """Tables (T, S) of actions; a block is a state in a season, and its changes are tried."""

    starts: ClassVar[tuple[str, ...]] = ("wsu",)

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        super().__init__(context)
        self.season = np.arange(context.horizon) // context.kind.length  # (T,)

    def start(self, name: str, seed: int) -> np.ndarray:
        context = self.context
        random = mmdp.MarkovPolicy.random(context.model, context.horizon, seed).actions
        return self.inside(context.wsu()[0] if name == "wsu" else random)

    def inside(self, table: np.ndarray) -> np.ndarray:
        """The nearest table of the kind: all season long what its first decision says."""
        return table[self.season * self.context.kind.length]

    def seconds(self, name: str) -> float:
        """By size: ten rounds in which every change takes a pass."""
        x = self.context.problem
        tried = (self.season[-1] + 1) * x.n_states * x.n_actions
        return x.seconds(self.context.horizon, 10 * tried)

    def returns(self, point: np.ndarray) -> np.ndarray:
        return self.context.returns(point)

    def changes(self, point: np.ndarray, slope: Slope) -> Changes:
        """What every action adds to the returns (M,), block by block; the last season first."""
        table, rho = point.copy(), self.returns(point)
        for season in reversed(range(self.season[-1] + 1)):
            for s in range(self.context.problem.n_states):
                self.context.check_time()
                trials = np.repeat(table[None], self.context.problem.n_actions, axis=0)
                trials[:, self.season == season, s] = np.arange(len(trials))[:, None]
                trials = trials[self.context.model.allowed[s]]
                returns = np.array([self.returns(trial) for trial in trials])
                chosen = (yield (returns - rho)[None])[0]
                if chosen >= 0:
                    table, rho = trials[chosen], returns[chosen]
        return table, rho


LANDSCAPES[Seasons] = SeasonTables

# %% use
train, test = mmdp.domains.riverswim(n_train=20, seed=0)
for policy in ("markov", Seasons(3), Seasons(6)):
    found = mmdp.solve(train, 12, policy=policy, objective=mmdp.CVaR(0.2))
    free = found.details.get("unrestricted", found.value)
    print(f"{policy!s:18} {found.value:7.3f}  {found.status.name}, {free:.3f} if free")
