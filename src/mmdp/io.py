"""Public names of :mod:`mmdp.data.io`."""

from mmdp.data.io import *
from mmdp.data.io import __all__, __doc__
