"""A storage of your own: models as low-rank products, p_m(s'|s,a) = sum_k L[s,a,k] R_m[k,s'].

python examples/new_storage.py
"""

# %% storage
import numpy as np

import mmdp
from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.kernels.storage import CustomStorage


class LowRank(CustomStorage):
    """What happens, L (S, A, K), is shared by all models; where it leads, R (M, K, S), is not."""

    def __init__(self, event_probs: np.ndarray, next_state_probs: np.ndarray) -> None:
        self.L, self.R = event_probs, next_state_probs
        self.shape = (len(next_state_probs), *event_probs.shape[:2])

    def prepare(self, problem: Problem, horizon: int) -> PreparedProblem:
        return LowRankProblem(problem, horizon)


class LowRankProblem(PreparedProblem):
    """K (S + S A) multiply-adds per model and step instead of S A S."""

    def expect_next(self, t: int, v: np.ndarray) -> np.ndarray:
        """Compute (S, A, M) from the values v (S, M)."""
        x = self.problem.storage
        return np.einsum("sak,km->sam", x.L, np.einsum("mkz,zm->km", x.R, v))

    def push_forward(self, t: int, b: np.ndarray, policy_row: np.ndarray) -> np.ndarray:
        """Compute (S, M) from b (S, M), under actions (S,) or probabilities (S, A)."""
        x = self.problem.storage
        action_probs = (
            np.eye(self.problem.n_actions)[policy_row] if policy_row.ndim == 1 else policy_row
        )
        return np.einsum("mkz,km->zm", x.R, np.einsum("sak,sa,sm->km", x.L, action_probs, b))


# %% use
rng, M, S, A, K = np.random.default_rng(0), 100, 30, 4, 3
storage = LowRank(rng.dirichlet(np.ones(K), (S, A)), rng.dirichlet(np.full(S, 0.2), (M, K)))
model = mmdp.MMDP(storage, rng.normal(size=(S, A)), discount=0.95)
for backend in ("numpy", "numba"):
    solution = mmdp.solve(model, 20, objective=mmdp.objectives.CVaR(0.2), backend=backend)
    print(f"{backend:6} {solution.value:.6f}")
tables = mmdp.MMDP(model.transitions, model.rewards, discount=0.95)
print(f"tables {mmdp.solve(tables, 20, objective=mmdp.objectives.CVaR(0.2)).value:.6f}")
