"""The command line: parse, call the library, print.

A command is a file with one function under ``@command(example, ...)``. Its options are its own
parameters and those of the library functions that it names as ``sources``: names, types, defaults
and help are read from their signatures and docstrings (:mod:`mmdp.cli.signatures`). It reads models
with :class:`~mmdp.cli.console.Data`, calls the library, which shows its progress
(:class:`~mmdp.core.timing.ProgressLine`), and prints through :mod:`mmdp.cli.console`. It raises
its errors: :mod:`mmdp.cli.app` turns them into one line on stderr and an exit status. A number
that a command returns is its exit status.
"""

from mmdp.cli.app import main

__all__ = ["main"]
