"""A method of your own in 40 lines: WSU with several perturbed weights; the best policy wins.

python examples/new_method.py
"""

# %% method
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import mmdp
from mmdp.methods import Method, MethodResult, SolveContext
from mmdp.testing import check_method


@dataclass(frozen=True)
class PerturbedWSU(Method):
    """WSU with the model weights, then with ``tries`` random ones; keeps the best policy."""

    n_tries: int = 20
    name: ClassVar[str] = "perturbed"

    def run(self, context: SolveContext) -> MethodResult:
        rng = np.random.default_rng(context.seed)
        weights = context.problem.prior_weights()  # (1, 1, M): the same at every time and state
        for attempt in range(self.n_tries + 1):
            result = weights if attempt == 0 else weights * rng.gamma(1.0, size=weights.shape[-1])
            policy, returns = context.maximize_weighted(result)
            value = context.compute_mean(returns)
            context.record(policy, value, is_last=attempt == self.n_tries)
        return MethodResult(context.best_policy, mmdp.Status.COMPLETED, self.n_tries)


# %% use
check_method(PerturbedWSU(n_tries=5))
train, test = mmdp.domains.riverswim(seed=0)
for method in ("wsu", PerturbedWSU(), "cadp"):
    solution = mmdp.solve(train, 50, method, seed=0)
    print(f"{solution.method:10} {solution.value:8.3f}  {solution.status.name}")
