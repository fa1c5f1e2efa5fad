"""The paper's pictures from a few queries and short horizons, to compute them in a second."""

from __future__ import annotations

import pytest

FEW_QUERIES = (2, 5, 10)


def limit_queries(patch: pytest.MonkeyPatch) -> None:
    """Let jobs of this process search less for the pictures; the tables stay as they are."""
    patch.setattr("mmdp.insight.paper.run.QUERY_COUNTS", FEW_QUERIES)
    patch.setattr("mmdp.insight.paper.run.REGRET_HORIZONS", (2, 4, 8))
    patch.setattr("mmdp.insight.paper.run.REGRET_QUERIES", 20)
