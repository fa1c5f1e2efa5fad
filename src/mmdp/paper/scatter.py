"""How much one set of drawn models differs from the next: python -m mmdp.paper.scatter"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import mmdp
from mmdp.paper.cases import CASES, COMPARABLE, Case, method_for
from mmdp.paper.figures import paper_figures
from mmdp.solution import Evaluation

if TYPE_CHECKING:
    import pandas as pd

SEEDS = range(20)


def scatter(case: Case, seeds: Sequence[int] = SEEDS) -> pd.DataFrame:
    """Returns at the main horizon over ``seeds`` of draws, one row per method.

    ``standard error`` is the standard deviation over seeds of the mean return on the test
    models: the error of a figure from one set of draws, such as the paper's. ``paper sd`` and
    ``our sd`` are over test models, ours averaged over seeds.
    """
    import pandas as pd

    found = [_evaluations(case, seed) for seed in seeds]
    rows = {}
    for name in COMPARABLE:
        key = (case.name, case.main, name)
        means = pd.Series([reports[name].mean for reports in found])
        rows[name] = {
            "paper": paper_figures("mean_return")[key],
            f"seed {seeds[0]}": means[0],
            "mean": means.mean(),
            "standard error": means.std(),
            "paper sd": paper_figures("sd_return")[key],
            "our sd": sum(reports[name].sd for reports in found) / len(found),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _evaluations(case: Case, seed: int) -> dict[str, Evaluation]:
    """By method, on the test models that ``seed`` draws."""
    train, test, _ = case.models(seed, None)
    found = {}
    for name in COMPARABLE:
        method = method_for(name, None)
        if name == "Oracle":
            found[name] = mmdp.solve(test, case.main, method).evaluation
        else:
            found[name] = mmdp.evaluate(mmdp.solve(train, case.main, method), test)
    return found


if __name__ == "__main__":
    for name in ("POPS", "INV"):
        print(f"{name}, T = {CASES[name].main}: return on the test models, {len(SEEDS)} seeds")
        print(scatter(CASES[name]).round().astype(int).to_string())
