"""A storage of your own: models as low-rank products, p_m(s'|s,a) = sum_k L[s,a,k] R_m[k,s'].

python examples/new_storage.py
"""

# %% storage
import numpy as np

import mmdp
from mmdp.kernels import Plan, Problem
from mmdp.kernels.storage import Computed


class LowRank(Computed):
    """What happens, L (S, A, K), is shared by all models; where it leads, R (M, K, S), is not."""

    def __init__(self, happens: np.ndarray, leads: np.ndarray) -> None:
        self.L, self.R = happens, leads
        self.shape = (len(leads), *happens.shape[:2])

    def plan(self, problem: Problem, horizon: int) -> Plan:
        return LowRankPlan(problem, horizon)


class LowRankPlan(Plan):
    """K (S + S A) multiply-adds per model and step instead of S A S."""

    def expect(self, t: int, v: np.ndarray) -> np.ndarray:
        """(S, A, M) from the values v (S, M)."""
        x = self.problem.storage
        return np.einsum("sak,km->sam", x.L, np.einsum("mkz,zm->km", x.R, v))

    def push(self, t: int, b: np.ndarray, row: np.ndarray) -> np.ndarray:
        """(S, M) from b (S, M), under actions (S,) or probabilities (S, A)."""
        x = self.problem.storage
        share = np.eye(self.problem.n_actions)[row] if row.ndim == 1 else row
        return np.einsum("mkz,km->zm", x.R, np.einsum("sak,sa,sm->km", x.L, share, b))


# %% use
rng, M, S, A, K = np.random.default_rng(0), 100, 30, 4, 3
low = LowRank(rng.dirichlet(np.ones(K), (S, A)), rng.dirichlet(np.full(S, 0.2), (M, K)))
model = mmdp.MMDP(low, rng.normal(size=(S, A)), discount=0.95)
for backend in ("numpy", "numba"):
    found = mmdp.solve(model, 20, objective=mmdp.CVaR(0.2), backend=backend)
    print(f"{backend:6} {found.value:.6f}")
tables = mmdp.MMDP(model.transitions, model.rewards, discount=0.95)
print(f"tables {mmdp.solve(tables, 20, objective=mmdp.CVaR(0.2)).value:.6f}")
