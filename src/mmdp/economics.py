"""Public names of :mod:`mmdp.insight.economics`."""

from mmdp.insight.economics import *
from mmdp.insight.economics import __all__, __doc__
