"""Public names of :mod:`mmdp.core.testing`."""

from mmdp.core.testing import *
from mmdp.core.testing import __all__, __doc__
