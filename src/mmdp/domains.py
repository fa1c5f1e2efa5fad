"""Public names of :mod:`mmdp.data.domains`."""

from mmdp.data.domains import *
from mmdp.data.domains import __all__, __doc__
