"""Seconds and peak memory of building a model from arrays, coordinates, matrices or draws.

Every case runs in a process of its own (Linux: resident memory and its high-water mark). The
peak is what was added to the input, the finished model included, and is shown as a multiple of
the model. A dense array is compared with ``numpy.sum`` over it and with one plain transposing copy
(``numpy.copyto`` into an array with models last), which any building from it has to make.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import mmdp
from benchmarks.fitting import forget_peak, status
from benchmarks.timing import Contestant, interleave
from mmdp.posterior import from_draws

ROUNDS = 3  # the fastest of which counts
NEXT = 8  # next states of a sparse row
AGES = 76
Build = Callable[[], mmdp.MMDP]


def dense(share: float) -> tuple[Build, Any]:
    """An array of 50 models x 716 states x 25 actions at ``share`` 1: 5 GB."""
    S, A = max(4, int(716 * share**0.5)), 25
    p = np.random.default_rng(0).random((50, S, A, S))
    p /= p.sum(axis=-1, keepdims=True)
    return lambda: mmdp.MMDP(p, np.zeros((S, A))), p


def columns(share: float) -> dict[str, Any]:
    """One entry per transition: 500 models x 2,000 states x 8 actions at ``share`` 1."""
    M, S, A = max(2, int(500 * share)), 2000 if share > 1e-3 else 50, 8
    m, s, a, k = (x.reshape(-1) for x in np.indices((M, S, A, NEXT)))
    p = np.random.default_rng(0).random((M, S, A, NEXT))
    p /= p.sum(axis=-1, keepdims=True)
    return {"model": m, "state": s, "action": a, "next_state": (s * 7 + a + 31 * k) % S,
            "probability": p.reshape(-1), "shape": (M, S, A)}  # fmt: skip


def coordinates(share: float) -> tuple[Build, None]:
    given = columns(share)
    rewards = np.zeros(given["shape"][1:])
    return lambda: mmdp.MMDP.from_coordinates(**given, rewards=rewards), None


def matrices(share: float) -> tuple[Build, None]:
    c = columns(share)
    M, S, A = c["shape"]
    rows, cols, p = (c[x].reshape(M, S, A, NEXT) for x in ("state", "next_state", "probability"))
    nest = [
        [
            scipy.sparse.csr_array(
                (p[m, :, a].reshape(-1), (rows[m, :, a].reshape(-1), cols[m, :, a].reshape(-1))),
                shape=(S, S),
            )
            for a in range(A)
        ]
        for m in range(M)
    ]  # fmt: skip
    return lambda: mmdp.MMDP(nest, np.zeros((S, A))), None


def draws(share: float) -> tuple[Build, None]:
    """78 states, 76 ages and 1,000 draws at ``share`` 1: 92 million non-zeros from a function."""
    S, A, count = 78, 2, max(2, int(1000 * share))
    indptr = np.arange(S + 1) * NEXT
    indices = ((np.arange(S)[:, None] + 5 * np.arange(NEXT)) % S).reshape(-1)
    indices = np.sort(indices.reshape(S, NEXT), axis=1).reshape(-1)

    def build(x: dict[str, Any]) -> tuple[Any, Any]:
        p = 1 + x["risk"] * np.random.default_rng(0).random((AGES, A, S, NEXT))
        p /= p.sum(axis=-1, keepdims=True)
        nest = [
            [scipy.sparse.csr_array((y.reshape(-1), indices, indptr), shape=(S, S)) for y in by_age]
            for by_age in p
        ]
        return nest, np.zeros((S, A))

    risks = np.random.default_rng(1).random(count)
    return lambda: from_draws({"risk": risks}, build, vectorized=False), None


CASES = {"dense": dense, "coordinates": coordinates, "matrices": matrices, "draws": draws}


def measure(case: str, share: float) -> dict[str, float]:
    CASES[case](1e-6)[0]()  # what a first model imports belongs to the program
    build, array = CASES[case](share)
    forget_peak()
    before = status("VmRSS")
    model = build()
    found = {"peak": float(status("VmHWM") - before), "model": model.memory}
    found |= {"entries": model.problem.p.size}
    del model
    contestants = {"seconds": Contestant(build)}
    if array is not None:
        contestants |= {"reading": Contestant(array.sum)}
        contestants |= {"copying": Contestant(lambda: _transposed(array))}
    times = interleave(contestants, ROUNDS)
    return found | {name: x.best for name, x in times.items()}


def _transposed(array: Any) -> Any:
    flat = array.reshape(len(array), -1)
    copy = np.empty(flat.shape[::-1])
    np.copyto(copy, flat.T)
    return copy


def _fresh(case: str, share: float) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.building", "--measure", case, "--share", str(share)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--share", type=float, default=0.1, help="of the full sizes; 1 needs 16 GB")
    parser.add_argument("--case", action="append", choices=CASES, help="one case (repeatable)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.measure:
        print(json.dumps(measure(given.measure, given.share)))
        return 0
    found = {case: _fresh(case, given.share) for case in given.case or CASES}
    if given.json:
        print(json.dumps({"share": given.share, "cases": found}, indent=1))
        return 0
    print(f"{'from':14}{'entries':>12}{'model MB':>10}{'seconds':>9}{'peak':>8}")
    for case, x in found.items():
        note = "".join(f"  {k} {x[k]:.2f} s" for k in ("reading", "copying") if k in x)
        print(
            f"{case:14}{x['entries']:12,.0f}{x['model'] / 1e6:10.0f}{x['seconds']:9.2f}"
            f"{x['peak'] / x['model']:7.2f}x{note}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
