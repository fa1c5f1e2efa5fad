"""Draw docs/figure.png: the policy found for the published riverswim models, and its returns.

python docs/_tools/figure.py
"""

from __future__ import annotations

from pathlib import Path

import mmdp
from mmdp.insight import plots

HORIZON = 50
FILE = Path(__file__).resolve().parents[1] / "figure.png"


def main() -> None:
    train, test = mmdp.domains.load_published("riverswim")
    solution = mmdp.solve(train, HORIZON)
    returns = {
        "one policy for all models (CADP)": mmdp.evaluate(test, solution).returns,
        "each model's own optimum (Oracle)": mmdp.solve(test, HORIZON, "oracle").returns,
    }
    left, right = plots.new_axes(2, 13.0, 4.6)
    plots.policy_heatmap(solution.policy, left)
    left.set_title("What to do, at each time in each state")
    plots.returns_distribution(returns, axis=right)
    right.legend(frameon=False, loc="lower right")  # clear of the lines of the means
    right.set_title("What it returns on 700 test models")
    FILE.write_bytes(plots.to_png(left, dpi=110))


if __name__ == "__main__":
    main()
