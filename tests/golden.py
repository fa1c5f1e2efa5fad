"""Golden rows: what solves gave once, to compare with after a change that should change nothing.

``python -m tests.golden`` writes tests/files/golden.json anew. The test run looks at some of the
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
from mmdp.core.testing import make_random_model

EVERY_NTH = 3  # every third question has a row
FILE = Path(__file__).parent / "files" / "golden.json"

OBJECTIVES = (
    "mean",
    "cvar:0.2",
    "worst",
    "entropic:0.01",
    "var:0.5",
    "mean-cvar:0.3:0.5",
    "evar:0.3",
    "regret:worst",
    "regret:cvar:0.5",
)


def make_problems() -> dict[str, tuple[mmdp.MMDP, int]]:
    """The models of the rows and their horizons."""
    hiv = mmdp.domains.load_published("hiv").train.subset(range(8))
    return {
        "riverswim": (mmdp.domains.riverswim(seed=0, n_train=8).train, 12),
        "hiv": (hiv, 6),
        "garnet": (mmdp.domains.garnet(6, 6, 3, seed=0).train, 8),
        "varying": (make_random_model(11, n_models=4, n_states=4, n_actions=3, horizon=5), 5),
        "masked": (
            make_random_model(5, n_models=5, n_states=5, n_actions=4, horizon=0, has_masks=True),
            6,
        ),
        "changing": (_make_switching_model(), 7),
        "one": (make_random_model(3, n_models=1, n_states=5, n_actions=3, horizon=0), 6),
    }


def _make_switching_model() -> mmdp.MMDP:
    model = make_random_model(8, n_models=4, n_states=4, n_actions=3, horizon=0, has_masks=False)
    chain = np.full((4, 4), 0.05) + 0.8 * np.eye(4)
    return model.replace(model_transitions=chain)


def make_policy_classes(model: mmdp.MMDP) -> dict[str, Any]:
    fixed_actions = np.full(model.n_states, -1)
    fixed_actions[0] = int(np.flatnonzero(model.allowed[0])[-1])
    return {
        "markov": "markov",
        "fixed": mmdp.policies.Fixed(fixed_actions),
        "tied": mmdp.policies.Tied(np.arange(model.n_states) // 2),
        "monotone": mmdp.policies.Monotone(),
        "memory": mmdp.policies.Memory(max_nodes=2),
    }


def iter_cases() -> Iterator[tuple[str, mmdp.MMDP, float, Any, dict[str, Any]]]:
    """(name, model, horizon, method, options of solve)."""
    paper = mmdp.methods.CADP(n_init=1, sweep_type="paper")
    for problem, (model, T) in make_problems().items():
        for backend in ("numpy", "numba"):
            for class_name, policy_class in make_policy_classes(model).items():
                for text in OBJECTIVES if backend == "numpy" else OBJECTIVES[:2]:
                    yield (
                        f"{problem} {class_name} {text} cadp {backend}",
                        model,
                        T,
                        mmdp.methods.CADP(n_init=2),
                        {"policy_class": policy_class, "objective": text, "backend": backend},
                    )
            for name in ("wsu", "mvp", "gradient", "mirror", "qmdp", "rollout", "mixts", "oracle"):
                yield f"{problem} {name} {backend}", model, T, name, {"backend": backend}
            yield f"{problem} paper {backend}", model, T, paper, {"backend": backend}
        for name in ("exact", "milp"):
            yield f"{problem} {name}", model, min(T, 4), name, {"time_limit": 20.0}
        for text in OBJECTIVES[:4]:
            options = {"objective": text, "backend": "numpy"}
            yield f"{problem} endless {text}", model, math.inf, mmdp.methods.CADP(n_init=3), options
        yield f"{problem} endless exact", model, math.inf, "exact", {"backend": "numpy"}


def compute_rows(step: int = EVERY_NTH) -> dict[str, dict[str, Any]]:
    """What every n-th question gives; a refusal is its message."""
    rows_by_name: dict[str, dict[str, Any]] = {}
    for name, model, T, method, options in itertools.islice(iter_cases(), 0, None, step):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                solution = mmdp.solve(model, T, method, **options)
        except mmdp.InputError as refusal:
            rows_by_name[name] = {"refused": str(refusal)}
            continue
        rows_by_name[name] = {
            "value": solution.value,
            "spread": float(solution.returns.std()),
            "status": solution.status.name,
            "policy": hash_policy(solution.policy),
        }
    return rows_by_name


def hash_policy(policy: Any) -> str:
    """A short hash of what a policy does."""
    controller = getattr(policy, "controller", None)
    if controller is not None:
        arrays = [np.asarray(x, np.int64) for x in controller]
    elif isinstance(policy, (mmdp.policies.MarkovPolicy, mmdp.policies.StationaryPolicy)):
        table = policy.table
        arrays = [np.round(table, 9) if table.dtype.kind == "f" else table.astype(np.int64)]
    else:
        return ""
    return hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest()[:12]


if __name__ == "__main__":
    computed = compute_rows()
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in computed.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    n_refused = sum("refused" in row for row in computed.values())
    print(f"{len(computed)} rows, {n_refused} of them refusals", file=sys.stderr)
