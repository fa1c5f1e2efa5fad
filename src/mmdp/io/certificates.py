"""What was proven about a policy, as it is kept with its file.

A certificate names its policy and its models by a digest of each, and holds for these only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmdp.errors import InputError, Remedy
from mmdp.model import MMDP
from mmdp.objective import Custom, as_objective
from mmdp.policy import Policy
from mmdp.solution import POLICIES, Bound, Solution

FORMAT = "mmdp-certificate-1"
AGAIN = Remedy("certify", 10, do="prove it again with")


def as_document(given: Any) -> dict[str, Any] | None:
    """The certificate of a solution in JSON's types; None if there is none."""
    if not isinstance(given, Solution) or given.certificate is None or not given.certificate.model:
        return None
    if given.objective.kind == Custom.kind:  # a function cannot be kept in a file
        return None
    proven, source = given.certificate, given.provenance
    return {
        "format": FORMAT, "objective": str(given.objective), "value": given.value,
        "bound": proven.value, "bounds": proven.bounds, "method": proven.method,
        "seconds": proven.seconds, "models": proven.model,
        "horizon": None if source.policy.endless else source.horizon,
        "policy": _digest(given.policy),
        "solution": {
            "method": source.method, "options": _plain(source.options), "seed": source.seed,
            "backend": source.backend, "version": source.version, "seconds": source.seconds,
            "iterations": given.iterations, "status": given.status.name,
        },
    }  # fmt: skip


def from_document(stored: Any, policy: Policy, model: MMDP) -> Bound:
    """The proven bound; refused if it is about another policy or other models."""
    try:
        if stored["format"] != FORMAT:
            raise ValueError
        bound, value = float(stored["bound"]), float(stored["value"])
        if not (math.isfinite(bound) and stored["bounds"] in POLICIES):
            raise ValueError
        found = Bound(
            bound, str(stored["method"]), stored["bounds"], seconds=float(stored["seconds"]),
            model=str(stored["models"]), objective=as_objective(str(stored["objective"])),
            details={"value": value, "solution": dict(stored["solution"])},
        )  # fmt: skip
        about = stored["policy"]
    except (KeyError, TypeError, ValueError):
        raise InputError("not a certificate of this version of mmdp", [AGAIN]) from None
    if about != _digest(policy):
        raise InputError("the policy was changed after its bound was proven", [AGAIN])
    if found.model != model.fingerprint():
        raise InputError("its bound was proven for other models", [AGAIN])
    return found


def _digest(policy: Policy) -> str:
    """A digest of what a policy does: a table of actions, or of probabilities."""
    table = np.ascontiguousarray(policy.table)
    return hashlib.sha256(repr(table.shape).encode() + table.tobytes()).hexdigest()


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in JSON's types; a policy to start from is named only by its kind."""
    kept = (str, int, float, bool, type(None))
    return {k: v if isinstance(v, kept) else type(v).__name__ for k, v in options.items()}
