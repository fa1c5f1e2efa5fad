"""Public names of :mod:`mmdp.core.distributed`."""

from mmdp.core.distributed import *
from mmdp.core.distributed import __all__, __doc__
