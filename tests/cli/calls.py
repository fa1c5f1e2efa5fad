"""Calling the command line, here or as a process of its own, and models to call it with."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

import mmdp
from mmdp.cli.app import app

HORIZON = 6
QUICK_DEFAULTS = {"report": {"time_limit": 1.0}}  # unless a test says --time-limit
COLUMNS = "idstatefrom,idaction,idstateto,idoutcome,probability,reward"
STATES, ACTIONS, DISCOUNT = 3, 2, 0.9
LOG = """episode,time,state,action,next_state,reward
1,0,well,wait,well,1
1,1,well,wait,ill,1
1,2,ill,treat,well,-1
2,0,well,treat,well,0
2,1,well,wait,ill,1
2,2,ill,wait,ill,0
2,3,ill,treat,well,-1
"""


class CommandResult:
    """Exit status, stdout and stderr of one run."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        def refuse(name: str) -> float:
            raise AssertionError(f"{name} in JSON")

        document: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return document

    def parse_facts(self) -> dict[str, str]:
        """The indented ``name  value`` lines."""
        pairs = [line.strip().split("  ", 1) for line in self.out.splitlines() if line[:2] == "  "]
        return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def run(*arguments: object, stdin: str | bytes | None = None) -> CommandResult:
    """Run with these arguments and ``given`` on standard input; a report takes a second."""
    invocation = CliRunner(env={"COLUMNS": "80"}).invoke(
        app, [str(x) for x in arguments], input=stdin, default_map=QUICK_DEFAULTS
    )
    if invocation.exception is not None and not isinstance(invocation.exception, SystemExit):
        raise invocation.exception
    stdout = re.sub(
        r"\x1b\[[0-9;]*m", "", invocation.stdout
    )  # FORCE_COLOR may be set around the tests
    return CommandResult(invocation.exit_code, stdout, invocation.stderr)


def run_refused(*arguments: object, stdin: str | None = None) -> str:
    """The one line that a bad call prints."""
    result = run(*arguments, stdin=stdin)
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert result.err.startswith("mmdp: ")
    return result.err


def run_in_process(*arguments: object, **options: Any) -> CommandResult:
    """Run in a process of its own."""
    command = [sys.executable, "-m", "mmdp", *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    return CommandResult(completed.returncode, completed.stdout, completed.stderr)


def fits_width(text: str, width: int = 80) -> bool:
    return max(map(len, text.splitlines())) <= width


def make_model(n_models: int, seed: int) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    transitions = rng.dirichlet(np.ones(STATES), size=(n_models, STATES, ACTIONS))
    rewards = rng.normal(size=(n_models, STATES, ACTIONS))
    return mmdp.MMDP(transitions, rewards, initial=[0.5, 0.25, 0.25], discount=DISCOUNT)


def write_models(model: mmdp.MMDP, path: Path) -> None:
    """In the paper's columns, written here so that nothing of mmdp.io is used."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS.split(","))
        for m, s, a, n in np.ndindex(model.transitions.shape):
            p, r = float(model.transitions[m, s, a, n]), float(model.rewards[m, s, a])
            rows.writerow([s, a, n, m, repr(p), repr(r)])
