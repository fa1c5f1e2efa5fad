"""Public names of :mod:`mmdp.core.methods`."""

from mmdp.core.methods import *
from mmdp.core.methods import __all__, __doc__
