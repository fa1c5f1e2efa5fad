"""Public names of :mod:`mmdp.core.solution`."""

from mmdp.core.solution import *
from mmdp.core.solution import __all__, __doc__
