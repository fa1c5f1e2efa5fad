"""The shell blocks of README and docs, and the log that their commands read."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import mmdp


def list_commands(text: str) -> list[str]:
    """The lines of a page's shell blocks that start with mmdp."""
    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.S)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("mmdp ")]


def write_log(path: Path) -> None:
    """A log of the riverswim's true model under a random policy."""
    true_model = mmdp.domains.riverswim().true_model
    rng, s, rows = np.random.default_rng(0), 0, ["episode,time,state,action,next_state,reward"]
    for t in range(400):
        a = int(rng.integers(2))
        next_state = int(rng.choice(20, p=true_model.transitions[0, s, a]))
        rows.append(f"{t // 40},{t % 40},{s},{a},{next_state},{true_model.rewards[0, s, a]}")
        s = next_state if t % 40 < 39 else 0
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
