"""Health economics: what named policies cost and give in every draw, and which are worth it.

:func:`cost_effectiveness` compares policies that are given; :func:`willingness_to_pay` finds the
best ones at each price. Both give a :class:`CostEffectiveness`: acceptability curves, ratios, the
value of studies. :class:`Counting` adds up the costs and effects of different times.
"""

from mmdp.economics.comparators import cost_effectiveness
from mmdp.economics.counting import Counting
from mmdp.economics.outcomes import CostEffectiveness
from mmdp.economics.trace import cohort_trace
from mmdp.economics.willingness import WillingnessToPay, willingness_to_pay

__all__ = [
    "CostEffectiveness", "Counting", "WillingnessToPay", "cohort_trace", "cost_effectiveness",
    "willingness_to_pay",
]  # fmt: skip
