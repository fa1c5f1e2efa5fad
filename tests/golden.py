"""Golden rows: what solves gave once, to compare with after a change that should change nothing.

``python -m tests.golden`` writes tests/data/golden.json anew. The test run looks at some of the
rows, ``make test-all`` at all of them: every third question below.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mmdp
from mmdp.testing import random_model

THIN = 3  # every third question has a row
FILE = Path(__file__).parent / "data" / "golden.json"

OBJECTIVES = (
    "mean", "cvar:0.2", "worst", "entropic:0.01", "var:0.5", "mean-cvar:0.3:0.5", "evar:0.3",
    "regret:worst", "regret:cvar:0.5",
)  # fmt: skip


def problems() -> dict[str, tuple[mmdp.MMDP, int]]:
    """The models of the rows and their horizons."""
    hiv = mmdp.domains.published("hiv").train.subset(range(8))
    return {
        "riverswim": (mmdp.domains.riverswim(seed=0, n_train=8).train, 12),
        "hiv": (hiv, 6),
        "garnet": (mmdp.domains.garnet(6, 6, 3, seed=0).train, 8),
        "varying": (random_model(11, n_models=4, n_states=4, n_actions=3, horizon=5), 5),
        "masked": (random_model(5, n_models=5, n_states=5, n_actions=4, horizon=0, masks=True), 6),
        "changing": (_changing(), 7),
        "one": (random_model(3, n_models=1, n_states=5, n_actions=3, horizon=0), 6),
    }


def _changing() -> mmdp.MMDP:
    model = random_model(8, n_models=4, n_states=4, n_actions=3, horizon=0, masks=False)
    chain = np.full((4, 4), 0.05) + 0.8 * np.eye(4)
    return model.replace(model_transitions=chain)


def kinds(model: mmdp.MMDP) -> dict[str, Any]:
    free = np.full(model.n_states, -1)
    free[0] = int(np.flatnonzero(model.allowed[0])[-1])
    return {
        "markov": "markov",
        "fixed": mmdp.Fixed(free),
        "tied": mmdp.Tied(np.arange(model.n_states) // 2),
        "monotone": mmdp.Monotone(),
        "memory": mmdp.Memory(nodes=2),
    }


def questions() -> Iterator[tuple[str, mmdp.MMDP, float, Any, dict[str, Any]]]:
    """(name, model, horizon, method, options of solve)."""
    paper = mmdp.CADP(starts=1, sweeps="paper")
    for place, (model, T) in problems().items():
        for backend in ("numpy", "numba"):
            for kind, policy in kinds(model).items():
                for text in OBJECTIVES if backend == "numpy" else OBJECTIVES[:2]:
                    yield (
                        f"{place} {kind} {text} cadp {backend}", model, T, mmdp.CADP(starts=2),
                        {"policy": policy, "objective": text, "backend": backend},
                    )  # fmt: skip
            for name in ("wsu", "mvp", "gradient", "mirror", "qmdp", "rollout", "mixts", "oracle"):
                yield f"{place} {name} {backend}", model, T, name, {"backend": backend}
            yield f"{place} paper {backend}", model, T, paper, {"backend": backend}
        for name in ("exact", "milp"):
            yield f"{place} {name}", model, min(T, 4), name, {"time_limit": 20.0}
        for text in OBJECTIVES[:4]:
            options = {"objective": text, "backend": "numpy"}
            yield f"{place} endless {text}", model, math.inf, mmdp.CADP(starts=3), options
        yield f"{place} endless exact", model, math.inf, "exact", {"backend": "numpy"}


def rows(every: int = THIN) -> dict[str, dict[str, Any]]:
    """What every n-th question gives; a refusal is its message."""
    found: dict[str, dict[str, Any]] = {}
    for name, model, T, method, options in itertools.islice(questions(), 0, None, every):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                solution = mmdp.solve(model, T, method, **options)
        except mmdp.InputError as refusal:
            found[name] = {"refused": str(refusal)}
            continue
        found[name] = {
            "value": solution.value, "spread": float(solution.returns.std()),
            "status": solution.status.name, "policy": digest(solution.policy),
        }  # fmt: skip
    return found


def digest(policy: Any) -> str:
    """A short hash of what a policy does."""
    controller = getattr(policy, "controller", None)
    if controller is not None:
        parts = [np.asarray(x, np.int64) for x in controller]
    elif isinstance(policy, (mmdp.MarkovPolicy, mmdp.StationaryPolicy)):
        table = policy.table
        parts = [np.round(table, 9) if table.dtype.kind == "f" else table.astype(np.int64)]
    else:
        return ""
    return hashlib.sha256(b"".join(x.tobytes() for x in parts)).hexdigest()[:12]


if __name__ == "__main__":
    made = rows()
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in made.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    refused = sum("refused" in row for row in made.values())
    print(f"{len(made)} rows, {refused} of them refusals", file=sys.stderr)
