"""Public names of :mod:`mmdp.insight.plots`."""

from mmdp.insight.plots import *
from mmdp.insight.plots import __all__, __doc__
