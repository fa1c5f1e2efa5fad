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
QUICKLY = {"report": {"seconds": 1.0}}  # unless a test says --seconds
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


class Result:
    """Exit status, stdout and stderr of one run."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        def refuse(name: str) -> float:
            raise AssertionError(f"{name} in JSON")

        found: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return found

    def facts(self) -> dict[str, str]:
        """The indented ``name  value`` lines."""
        pairs = [line.strip().split("  ", 1) for line in self.out.splitlines() if line[:2] == "  "]
        return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def run(*arguments: object, given: str | bytes | None = None) -> Result:
    """Run with these arguments and ``given`` on standard input; a report takes a second."""
    done = CliRunner(env={"COLUMNS": "80"}).invoke(
        app, [str(x) for x in arguments], input=given, default_map=QUICKLY
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)  # FORCE_COLOR may be set around the tests
    return Result(done.exit_code, plain, done.stderr)


def refused(*arguments: object, given: str | None = None) -> str:
    """The one line that a bad call prints."""
    done = run(*arguments, given=given)
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("mmdp: ")
    return done.err


def run_alone(*arguments: object, **options: Any) -> Result:
    """Run in a process of its own."""
    command = [sys.executable, "-m", "mmdp", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    return Result(done.returncode, done.stdout, done.stderr)


def fits(text: str, width: int = 80) -> bool:
    return max(map(len, text.splitlines())) <= width


def draw(n_models: int, seed: int) -> mmdp.MMDP:
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
