"""Public names of :mod:`mmdp.data.posterior`."""

from mmdp.data.posterior import *
from mmdp.data.posterior import __all__, __doc__
