"""The paper's printed figures as data.

Means and deviations are over the test models and printed truncated towards zero; HIV at
T = 15 is printed in thousands. The minutes of HIV are given for other horizons than its
returns. ``figures.json`` has the notes.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Literal

TableName = Literal["mean_return", "sd_return", "minutes"]
PrintedValues = dict[tuple[str, int, str], float]


@cache
def _read_table(table: str) -> PrintedValues:
    """Read one table of figures.json."""
    text = (
        resources.files("mmdp.insight.paper").joinpath("figures.json").read_text(encoding="utf-8")
    )
    return {
        (domain, horizon, name): value for domain, horizon, name, value in json.loads(text)[table]
    }


def read_paper_values(table: TableName) -> PrintedValues:
    """Read a table of printed figures by (domain, horizon, algorithm).

    >>> read_paper_values("mean_return")["RS", 50, "CADP"]
    204
    """
    return _read_table(table)


def read_misprints() -> PrintedValues:
    """Read the correct standard deviations of misprints by (domain, horizon, algorithm).

    The paper prints others there, which contradict its own rows.

    >>> read_misprints()["HIV", 5, "CADP"], read_paper_values("sd_return")["HIV", 5, "CADP"]
    (7729, 9342)
    """
    return _read_table("misprints")
