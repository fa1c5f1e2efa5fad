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

Table = Literal["mean_return", "sd_return", "minutes"]
Figures = dict[tuple[str, int, str], float]


@cache
def _figures(table: str) -> Figures:
    text = resources.files("mmdp.paper").joinpath("figures.json").read_text(encoding="utf-8")
    return {(domain, horizon, name): x for domain, horizon, name, x in json.loads(text)[table]}


def paper_figures(table: Table) -> Figures:
    """(domain, horizon, algorithm) -> printed figure.

    >>> paper_figures("mean_return")["RS", 50, "CADP"]
    204
    """
    return _figures(table)


def misprints() -> Figures:
    """(domain, horizon, algorithm) -> the standard deviation that the published data gives.

    The paper prints another one there, which contradicts its own rows.

    >>> misprints()["HIV", 5, "CADP"], paper_figures("sd_return")["HIV", 5, "CADP"]
    (7729, 9342)
    """
    return _figures("misprints")
