"""Drawing: one palette, one map of a policy, curves and flow charts.

Pictures of numbers and tables alone; :mod:`mmdp.plots` is the front for users.
"""
