"""Public names of :mod:`mmdp.insight.measures`."""

from mmdp.insight.measures import *
from mmdp.insight.measures import __all__, __doc__
