"""Public names of :mod:`mmdp.insight.report`."""

from mmdp.insight.report import *
from mmdp.insight.report import __all__, __doc__
