"""What commands read and write besides models: policies, tables, results that must not be lost."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmdp.cli.console import print_stderr
from mmdp.core.errors import InputError
from mmdp.core.policies import Policy, require_markov

if TYPE_CHECKING:
    import pandas as pd

    from mmdp import MMDP


def load_finite_policy(
    file: Path | str,
    model: MMDP,
    horizon: float | None,
    purpose: str,
    remedies: Sequence[str] = (),
) -> Policy:
    """Load the policy of a file; a stationary one over ``horizon`` decisions.

    ``remedies`` are for one with memory.
    """
    import mmdp

    policy = mmdp.load_policy(file, model)
    if policy.horizon != math.inf:
        try:
            return require_markov(policy, purpose)
        except InputError as error:  # it has memory
            raise InputError(error.message, remedies) from None
    n_times = model.horizon if horizon is None else horizon
    if n_times is None:
        raise InputError(
            f"{file}: a stationary policy; say over how many decisions with --horizon N"
        )
    return to_finite_horizon(policy, n_times)


def to_finite_horizon(policy: Policy, horizon: float | None) -> Policy:
    """Repeat a stationary policy over a number of decisions; return any other as it is."""
    is_unchanged = policy.horizon != math.inf or horizon in (None, math.inf)
    return policy if is_unchanged else policy.to_markov(int(horizon or 0))


def check_finite_horizon(horizon: float | None) -> None:
    """Refuse an infinite horizon for a page or a picture."""
    if horizon == math.inf:
        raise InputError(
            "a page or picture shows a number of decisions, not infinitely many; write the policy "
            "with mmdp solve --horizon inf --out rule.csv, then give --policy rule.csv --horizon 50"
        )


def check_output_path(out: Path | None, data: Path, *inputs: Path | str | None) -> None:
    """Refuse to write over what the command reads."""
    from mmdp.data.io.folders import is_read_with

    if out is None:
        return
    input_paths = [Path(input_path) for input_path in inputs if input_path is not None]
    if is_read_with(out, data) or any(out.resolve() == path.resolve() for path in input_paths):
        raise InputError(f"--out {out}: this is read, not written; choose another name")


def write_with_fallback(write: Callable[[Path], object], target: Path) -> Path | None:
    """Write a result at its path, else in a new temporary folder; return where, or None.

    For results of long work, which a full disk must not lose.
    """
    try:
        write(target)
        return target
    except InputError as error:
        print_stderr(str(error))
    try:
        fallback_path = Path(tempfile.mkdtemp(prefix="mmdp-")) / target.name
        write(fallback_path)
    except (InputError, OSError):
        print_stderr("no other place was found either; it is printed instead")
        return None
    print_stderr(f"written to {fallback_path} instead; move it where you want it")
    return fallback_path


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    from mmdp.data.io import write_atomic

    write_atomic(path, lambda temp_path: frame.to_csv(temp_path, index=False))
