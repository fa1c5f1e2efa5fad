"""Certificates: bounds proven for a policy, stored with its file.

A certificate names its policy and its models by a digest of each, and holds for these only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmdp.core.errors import InputError, Remedy
from mmdp.core.model import MMDP
from mmdp.core.objectives import CustomObjective, as_objective
from mmdp.core.policies import Policy
from mmdp.core.solution import SCOPE_NAMES, Bound, Solution

CERTIFICATE_FORMAT = "mmdp-certificate-1"
PROVE_AGAIN = Remedy("certify_time", 10, verb="prove it again with")


def certificate_to_dict(solution: object) -> dict[str, object] | None:
    """Convert the certificate of a solution to JSON types; None if there is none."""
    if (
        not isinstance(solution, Solution)
        or solution.certificate is None
        or not solution.certificate.model_fingerprint
    ):
        return None
    if solution.objective.key == CustomObjective.key:  # a function cannot be kept in a file
        return None
    certificate, provenance = solution.certificate, solution.provenance
    return {
        "format": CERTIFICATE_FORMAT,
        "objective": str(solution.objective),
        "value": solution.value,
        "bound": certificate.value,
        "bounds": certificate.scope,
        "method": certificate.method,
        "seconds": certificate.seconds,
        "models": certificate.model_fingerprint,
        "horizon": None if provenance.policy_class.is_infinite_horizon else provenance.horizon,
        "policy": _hash_policy(solution.policy),
        "solution": {
            "method": provenance.method,
            "options": _to_json_types(provenance.options),
            "seed": provenance.seed,
            "backend": provenance.backend,
            "version": provenance.version,
            "seconds": provenance.seconds,
            "iterations": solution.iterations,
            "status": solution.status.name,
        },
    }


def certificate_from_dict(document: Any, policy: Policy, model: MMDP) -> Bound:
    """Restore a certificate; refuse one of another policy or of other models."""
    try:
        if document["format"] != CERTIFICATE_FORMAT:
            raise ValueError
        bound, value = float(document["bound"]), float(document["value"])
        if not (math.isfinite(bound) and document["bounds"] in SCOPE_NAMES):
            raise ValueError
        certificate = Bound(
            bound,
            str(document["method"]),
            document["bounds"],
            seconds=float(document["seconds"]),
            model_fingerprint=str(document["models"]),
            objective=as_objective(str(document["objective"])),
            details={"value": value, "solution": dict(document["solution"])},
        )
        policy_hash = document["policy"]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            "this is not a certificate of this version of mmdp", [PROVE_AGAIN]
        ) from None
    if policy_hash != _hash_policy(policy):
        raise InputError("the policy was changed after its bound was proven", [PROVE_AGAIN])
    if certificate.model_fingerprint != model.fingerprint():
        raise InputError("its bound was proven for other models", [PROVE_AGAIN])
    return certificate


def _hash_policy(policy: Policy) -> str:
    """Compute a digest of the table of actions or probabilities of a policy."""
    table = np.ascontiguousarray(policy.table)
    return hashlib.sha256(repr(table.shape).encode() + table.tobytes()).hexdigest()


def _to_json_types(options: Mapping[str, object]) -> dict[str, object]:
    """Convert options to JSON types; other objects become the name of their class."""
    json_types = (str, int, float, bool, type(None))
    return {k: v if isinstance(v, json_types) else type(v).__name__ for k, v in options.items()}
