"""Public names of :mod:`mmdp.core.objectives`."""

from mmdp.core.objectives import *
from mmdp.core.objectives import __all__, __doc__
