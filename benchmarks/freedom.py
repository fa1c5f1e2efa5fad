"""How many decisions are free: the share at which people may choose, by domain and tolerance.

    python -m benchmarks.freedom [RS HIV INV POPS] [--objective cvar:0.1] [--endless]

"mixed" are decisions with two actions or more that may be mixed freely, everywhere at once, with a
total loss under the tolerance; "alone" those at which another action costs less than that if only
this decision is changed. Shares of the decisions that come up.
"""

from __future__ import annotations

import argparse
import math
import time

import mmdp
from benchmarks.trees import CASES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--objective", default="mean", metavar="GOAL")
    parser.add_argument("--endless", action="store_true", help="a rule for every day, for ever")
    options = parser.parse_args()
    print("| case | horizon | value | tolerance | mixed | alone | floor | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for case in options.cases:
        make, steps, _ = CASES[case]
        train, _ = make()
        horizon = math.inf if options.endless else steps
        solution = mmdp.solve(train, horizon, objective=options.objective)
        for tolerance in (0.001, 0.01):
            begun = time.perf_counter()
            found = mmdp.freedom(solution, train, tolerance)
            took = time.perf_counter() - begun
            print(
                f"| {case} | {horizon} | {found.value:,.2f} | {tolerance:.1%} | {found.share:.1%} "
                f"| {found.share_alone:.1%} | {found.floor:,.2f} | {took:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
