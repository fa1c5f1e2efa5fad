"""The CPU kernel: compiled by numba on first use (see :mod:`mmdp.core.kernels.cpu.backend`)."""
