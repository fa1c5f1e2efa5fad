"""Drawing: one palette, one map of a policy, curves and flow charts.

The pictures show numbers and tables and know no models; users call :mod:`mmdp.plots`.
"""
