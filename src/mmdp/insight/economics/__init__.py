"""Health economics: costs and effects of named policies in every sample of the parameters.

:func:`cost_effectiveness` compares policies that are given; :func:`willingness_to_pay` finds the
best ones at each threshold. Both give a :class:`CostEffectiveness`: acceptability curves, ratios,
the value of studies. :class:`OutcomeDiscounting` adds up costs and effects of different times.
"""

from mmdp.insight.economics.comparators import (
    WillingnessToPay,
    cohort_trace,
    cost_effectiveness,
    willingness_to_pay,
)
from mmdp.insight.economics.discounting import OutcomeDiscounting
from mmdp.insight.economics.outcomes import CostEffectiveness

__all__ = [
    "CostEffectiveness",
    "OutcomeDiscounting",
    "WillingnessToPay",
    "cohort_trace",
    "cost_effectiveness",
    "willingness_to_pay",
]
