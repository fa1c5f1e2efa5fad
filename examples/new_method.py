"""A method of your own in 40 lines: WSU with several perturbed weights; the best policy wins.

python examples/new_method.py
"""

# %% method
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import mmdp
from mmdp.methods import Context, Method, Outcome
from mmdp.testing import check_method


@dataclass(frozen=True)
class Perturbed(Method):
    """WSU with the model weights, then with ``tries`` random ones; keeps the best policy."""

    tries: int = 20
    name: ClassVar[str] = "perturbed"

    def run(self, context: Context) -> Outcome:
        rng = np.random.default_rng(context.seed)
        weights = context.problem.prior_weights()  # (1, 1, M): the same at every time and state
        for attempt in range(self.tries + 1):
            tried = weights if attempt == 0 else weights * rng.gamma(1.0, size=weights.shape[-1])
            policy, returns = context.weighted(tried)
            value = context.mean(returns)
            context.record(policy, value, last=attempt == self.tries)
        return Outcome(context.best_policy, mmdp.Status.COMPLETED, self.tries)


# %% use
check_method(Perturbed(tries=5))
train, test = mmdp.domains.riverswim(seed=0)
for method in ("wsu", Perturbed(), "cadp"):
    found = mmdp.solve(train, 50, method, seed=0)
    print(f"{found.method:10} {found.value:8.3f}  {found.status.name}")
