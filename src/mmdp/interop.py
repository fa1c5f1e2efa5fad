"""Public names of :mod:`mmdp.data.interop`."""

from mmdp.data.interop import *
from mmdp.data.interop import __all__, __doc__
