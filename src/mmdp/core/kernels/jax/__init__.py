"""The accelerator backend: whole passes and whole ascents compiled by jax.

Symbols as in :mod:`mmdp.core.kernels.problem`. There are two layouts, with models last:

============  ==================  ===========  ==============  ===========  =======
operations    p at each t         v, b         q               G            action
============  ==================  ===========  ==============  ===========  =======
StepOps       (R, L, M)           (S, M)       (S, A, M)       (S, A)       (S,)
EventStepOps  (K, W, M)           (S, M)       (S, A, M)       (S, A)       (S,)
============  ==================  ===========  ==============  ===========  =======

R rows of L entries: L = S if p is dense. A sparse pattern is padded with zeros to rows of one
length; rows far longer than the mean are split, and ``part_rows`` says to which row s * A + a each
part belongs. EventStepOps: W events that all models share, with L = W times the corners of a cell
next states in each row. Everything is computed per model, except the sum over models in G: the
model axis can be divided over devices, which then exchange (S, A) numbers per time step.

Arrays are arguments of the compiled functions, never constants in them. 64-bit numbers are
switched on inside the compiled calls only; jax's settings are as they were for everyone else.
"""

from mmdp.core.errors import InputError

try:
    import jax  # noqa: F401
except ImportError as missing:
    raise InputError(
        "backend 'jax' needs jax; install it with: pip install 'mmdp[jax]'"
    ) from missing
