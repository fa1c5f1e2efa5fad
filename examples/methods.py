"""Every method on three problems: mean return on models it was not computed from.

python examples/methods.py
"""

# %% compare
import mmdp

CASES = {
    "riverswim": (mmdp.domains.riverswim(seed=0), 50),
    "hiv": (mmdp.domains.hiv(seed=0), 15),
    "inventory": (mmdp.domains.inventory(seed=0, preset="paper"), 50),
}
METHODS = [
    "mvp",
    "wsu",
    "mirror",
    "gradient",
    "cadp",
    mmdp.methods.MixTS(),
    mmdp.methods.QMDP(),
    mmdp.methods.Rollout(),
]


def compute_mean(method, domain, horizon) -> str:
    evaluation = mmdp.evaluate(domain.test, mmdp.solve(domain.train, horizon, method), seed=0)
    return f"{evaluation.mean:9,.1f}" + (
        f" ± {2 * evaluation.stderr:<6,.1f}" if evaluation.stderr else " " * 9
    )


print(" " * 8, *(f"{name:>9}         " for name in CASES))
for method in METHODS:
    name = getattr(method, "name", method)
    print(f"{name:8}", *(compute_mean(method, *case) for case in CASES.values()))
oracle = [mmdp.solve(domain.test, horizon, "oracle").value for domain, horizon in CASES.values()]
print("oracle  ", *(f"{value:9,.1f}         " for value in oracle))
