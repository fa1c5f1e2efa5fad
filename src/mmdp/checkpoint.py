"""Checkpoints: the best policy of a long solve in a file, from which the next solve goes on.

A checkpoint is a policy file (:func:`mmdp.load_policy` reads it) that also says which problem it
belongs to.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any

from mmdp.errors import InputError, NotWritten, Remedy
from mmdp.kernels.problem import TIE
from mmdp.methods import METHODS, Callback, Context, Method, Outcome, Progress
from mmdp.solution import Status

EVERY = 10.0  # seconds between two writes
SHARE = 20.0  # and at least this many times as long as a write takes


class Checkpoint:
    """The file of one solve. ``resume`` it first, then give ``watch`` as the callback."""

    def __init__(self, path: str | os.PathLike[str], context: Context, method: Method) -> None:
        from mmdp.io.writing import check_writable

        if not context.kind.starts:
            kind = context.kind.name
            raise InputError(f"a solve cannot go on from a {kind} policy; leave out checkpoint")
        if not method.resumes:
            able = [name for name, other in METHODS.items() if other.resumes]
            raise InputError(
                f"{method.name} cannot go on from a checkpoint",
                ["leave it out", Remedy("method", *able, do="choose")],
            )
        self.path, self.context = Path(path), context
        if self.path.suffix.lower() != ".json":
            raise InputError(f"{self.path}: choose a name for the checkpoint that ends in .json")
        check_writable(self.path)
        self.problem = {
            "model": context.model.fingerprint(),
            "horizon": None if context.kind.endless else context.horizon,
            "objective": str(context.objective), "policy": context.kind.name,
            "restriction": context.kind.settings(context.model, context.horizon),
        }  # fmt: skip
        self._value, self._next = -math.inf, 0.0
        self._failed = False

    def resume(self) -> None:
        """Record the policy in the file, if there is one: searches start from it."""
        if not self.path.exists():
            return
        policy, known = self._read(), self.context
        self._value = self._worth(policy)
        known.keep(known.kind.table_of(policy, known.model), self._value)

    def at_least(self, outcome: Outcome) -> Outcome:
        """The outcome, recorded; or the best policy so far if the one in the file is better.

        A search may go down from where it starts, or end before it comes back to it.
        """
        known = self.context
        value = self._worth(known.kind.policy_of(known.model, outcome.policy))
        known.keep(outcome.policy, value)
        if value >= self._value - TIE * abs(self._value):
            return outcome
        ended = outcome.status in (Status.OPTIMAL, Status.LOCAL_OPTIMUM)
        return Outcome(
            known.best_policy, Status.COMPLETED if ended else outcome.status, outcome.iterations,
            trace=[known.best_value],
            details={k: x for k, x in outcome.details.items() if k == "unrestricted"},
        )  # fmt: skip

    def _worth(self, policy: Any) -> float:
        return self.context.worth(policy.returns(self.context.model, self.context.kernel))

    def _read(self) -> Any:
        from mmdp.io import load_policy

        again = "name another file, or remove this one"
        try:
            found = json.loads(self.path.read_text(encoding="utf-8")).get("checkpoint")
        except (OSError, ValueError, AttributeError):
            found = None
        if not isinstance(found, dict):
            raise InputError(f"{self.path}: not a checkpoint; {again}")
        other = [name for name, value in self.problem.items() if found.get(name) != value]
        if other:
            raise InputError(
                f"{self.path}: the checkpoint of another problem (another {other[0]}); {again}"
            )
        return load_policy(self.path, self.context.model)

    def watch(self, callback: Callback | None) -> Callback:
        """A callback that also writes the file every so often."""

        def called(progress: Progress) -> None:
            if time.monotonic() >= self._next:
                self.write()
            if callback is not None:
                callback(progress)

        return called

    def write(self) -> None:
        """Keep the best policy so far, if it is better than what is kept.

        A file that cannot be written does not end the solve: the first time there is a warning.
        """
        from mmdp.io.policies import policy_document
        from mmdp.io.writing import write_whole

        best, started = self.context, time.monotonic()
        if best.best_policy is None or not best.best_value > self._value:
            return
        policy: Any = best.kind.policy_of(best.model, best.best_policy)
        document = policy_document(policy, checkpoint=self.problem, value=best.best_value)
        try:
            write_whole(self.path, json.dumps(document) + "\n")
            self._value = best.best_value
        except InputError as error:
            if not self._failed:
                warnings.warn(f"{error}; the best policy is not kept", NotWritten, stacklevel=2)
            self._failed = True
        self._next = time.monotonic() + max(EVERY, SHARE * (time.monotonic() - started))
