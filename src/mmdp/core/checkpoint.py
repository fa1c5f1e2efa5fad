"""Checkpoints: the best policy of a long solve in a file, from which the next solve resumes.

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

from mmdp.core.errors import FileNotWrittenWarning, InputError, Remedy
from mmdp.core.identity import compute_digest, describe_object
from mmdp.core.kernels.problem import TIE_RTOL
from mmdp.core.methods import METHODS, Callback, Method, MethodResult, Progress, SolveContext
from mmdp.core.policies import Policy
from mmdp.core.solution import Status

WRITE_INTERVAL = 10.0  # seconds between two writes
WRITE_TIME_FACTOR = 20.0  # and at least this many times as long as a write takes


class Checkpoint:
    """The file with the best policy of one solve: ``resume`` first, then ``make_callback``."""

    def __init__(self, path: str | os.PathLike[str], context: SolveContext, method: Method) -> None:
        from mmdp.data.io.writing import check_writable

        if not (context.policy_class.can_initialize and method.can_resume):
            resumable_names = [name for name, x in METHODS.items() if x.can_resume]
            raise InputError(
                f"{method.name} cannot resume from a {context.policy_class.name} policy",
                ["leave out checkpoint", Remedy("method", *resumable_names, verb="choose")],
            )
        self.path, self.context = Path(path), context
        if self.path.suffix.lower() != ".json":
            raise InputError(f"{self.path}: the name of a checkpoint must end in .json")
        check_writable(self.path)
        self.problem_key = {
            "model": context.model.fingerprint(),
            "horizon": None if context.policy_class.is_infinite_horizon else context.horizon,
            "objective": str(context.objective),
            "policy_class": context.policy_class.name,
            "restriction": compute_digest(describe_object(context.policy_class)),
        }
        self._saved_value, self._next_write_time = -math.inf, 0.0

    def resume(self) -> None:
        """Read the policy in the file, if there is one, and make it the incumbent of the search."""
        if not self.path.exists():
            return
        policy, context = self._read_policy(), self.context
        self._saved_value = self._compute_value(policy)
        table = context.policy_class.policy_to_table(policy, context.model)
        context.keep_best(table, self._saved_value)

    def keep_better(self, result: MethodResult) -> MethodResult:
        """Return the result of the method, or the policy of the file if that is better.

        A search may end below the policy that it starts from.
        """
        context = self.context
        value = self._compute_value(context.policy_class.make_policy(context.model, result.policy))
        context.keep_best(result.policy, value)
        if value >= self._saved_value - TIE_RTOL * abs(self._saved_value):
            return result
        is_finished = result.status in (Status.OPTIMAL, Status.LOCAL_OPTIMUM)
        status = Status.COMPLETED if is_finished else result.status
        trace = [context.best_value]
        return MethodResult(context.best_policy, status, result.n_iterations, trace=trace)

    def _compute_value(self, policy: Policy) -> float:
        """Compute the objective value of a policy."""
        returns = policy.compute_returns(self.context.model, self.context.backend)
        return self.context.objective_value(returns)

    def _read_policy(self) -> Policy:
        """Read the policy of the file; refuse a file of another problem."""
        from mmdp.data.io import load_policy

        remedy = "name another file, or remove this one"
        try:
            stored_key = json.loads(self.path.read_text(encoding="utf-8")).get("checkpoint")
        except (OSError, ValueError, AttributeError):
            stored_key = None
        if not isinstance(stored_key, dict):
            raise InputError(f"{self.path}: not a checkpoint; {remedy}")
        for name, value in self.problem_key.items():
            if stored_key.get(name) != value:
                raise InputError(
                    f"{self.path}: the checkpoint of another problem (another {name}); {remedy}"
                )
        return load_policy(self.path, self.context.model)

    def make_callback(self, callback: Callback) -> Callback:
        """Make a callback that writes the file at intervals, and then calls ``callback``."""

        def write_and_report(progress: Progress) -> None:
            if time.monotonic() >= self._next_write_time:
                self.write()
            callback(progress)

        return write_and_report

    def write(self) -> None:
        """Write the best policy so far, if it is better than that of the file.

        A file that cannot be written does not end the solve; the first failure is a warning.
        """
        from mmdp.data.io.policies import policy_to_dict
        from mmdp.data.io.writing import write_atomic

        context, start_time = self.context, time.monotonic()
        if context.best_policy is None or not context.best_value > self._saved_value:
            return
        policy = context.policy_class.make_policy(context.model, context.best_policy)
        document = policy_to_dict(policy, checkpoint=self.problem_key, value=context.best_value)
        try:
            write_atomic(self.path, json.dumps(document) + "\n")
            self._saved_value = context.best_value
        except InputError as error:
            warnings.warn(
                f"{error}; the best policy is not saved", FileNotWrittenWarning, stacklevel=2
            )
        end_time = time.monotonic()
        pause = max(WRITE_INTERVAL, WRITE_TIME_FACTOR * (end_time - start_time))
        self._next_write_time = end_time + pause
