"""The accelerator kernel (see :mod:`mmdp.kernels.jax.kernel`)."""
