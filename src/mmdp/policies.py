"""Public names of :mod:`mmdp.core.policies`."""

from mmdp.core.policies import *
from mmdp.core.policies import __all__, __doc__
