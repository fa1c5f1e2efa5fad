"""Solve one problem with many processes, each with a shard of the models (``backend="jax"``).

Every process runs the same script. Inside :func:`join_processes` it passes
``shard=process_shard()`` to every function that loads or samples models, and makes the same calls
in the same order as the others::

    with mmdp.distributed.join_processes():
        model = mmdp.load("models", shard=mmdp.distributed.process_shard())
        solution = mmdp.solve(model, 50, backend="jax")
        if mmdp.distributed.process_shard()[0] == 0:
            mmdp.save_policy(solution, "policy.csv")

Every process gets the same solution. ``examples/many_hosts.py`` is such a script.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from mmdp.core.arguments import PositiveInt, check_arguments
from mmdp.core.errors import InputError, LostProcessError

__all__ = ["join_processes", "process_shard"]

# (number of this process, number of processes) in the environment, by what started them
LAUNCHER_VARIABLES = {
    "srun": ("SLURM_PROCID", "SLURM_NTASKS"),
    "mpirun of Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpirun of MPICH": ("PMI_RANK", "PMI_SIZE"),
}
DEFAULT_PORT = 41732  # that process 0 listens on, if no address is given

_current_shard = (0, 1)  # this process among those that are connected


@check_arguments
@contextmanager
def join_processes(
    address: str | None = None,
    process_index: int | None = None,
    n_processes: int | None = None,
    *,
    heartbeat_timeout: PositiveInt = 20,
) -> Iterator[None]:
    """Join this process with the others inside the block; enter it before any use of jax.

    Parameters
    ----------
    address
        ``host:port`` of process 0. Found automatically under ``srun`` and on a single machine.
    process_index, n_processes
        The number of this process, from 0, and how many there are. Found automatically under
        ``srun`` and ``mpirun``.
    heartbeat_timeout
        Seconds without a sign of life after which a process counts as dead.

    An error inside ends this process at once, and with it the others: each prints what went wrong
    and exits with status 1 (2 for bad input, 130 after Ctrl-C). No process waits for one that is
    gone. A single process is left as it is.

    >>> with join_processes():
    ...     print(process_shard())
    (0, 1)
    """
    index, count = _find_process_index(process_index, n_processes)
    if count == 1:
        yield
        return
    _initialize_jax(address or _find_address(count), index, count, heartbeat_timeout)
    try:
        yield
    except BaseException as error:
        _exit_process(error, f"process {index} of {count}")
    import jax

    jax.distributed.shutdown()  # type: ignore[no-untyped-call]


def process_shard() -> tuple[int, int]:
    """Return (index of this process, number of processes), as ``shard=`` of load() takes it.

    >>> process_shard()
    (0, 1)
    """
    return _current_shard


def _find_process_index(process_index: int | None, n_processes: int | None) -> tuple[int, int]:
    """Find the index and the number of processes from the arguments or the launcher."""
    launched = (
        tuple(int(os.environ[name]) for name in names)
        for names in LAUNCHER_VARIABLES.values()
        if os.environ.keys() >= {*names}
    )
    index, count = next(launched, (0, 1))
    index = index if process_index is None else process_index
    count = count if n_processes is None else n_processes
    if not 0 <= index < count:
        raise InputError(f"process {index} of {count}: processes are numbered from 0")
    return index, count


def _find_address(n_processes: int) -> str | None:
    """Find the address of process 0; None if jax finds it by itself."""
    if "SLURM_JOB_NODELIST" in os.environ or "SLURM_STEP_NODELIST" in os.environ:
        return None
    if int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", n_processes)) == n_processes:
        return f"localhost:{DEFAULT_PORT}"
    raise InputError("the processes are on several machines; give the address of process 0")


def _initialize_jax(address: str | None, index: int, count: int, heartbeat_timeout: int) -> None:
    """Join the processes of jax, and record the shard of this one."""
    global _current_shard
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    try:
        jax.distributed.initialize(
            address,
            count,
            index,
            initialization_timeout=max(60, heartbeat_timeout),
            heartbeat_timeout_seconds=heartbeat_timeout,
            shutdown_timeout_seconds=max(60, heartbeat_timeout),
        )
    except RuntimeError as error:
        raise InputError(
            f"process {index} of {count} is not connected ({str(error).splitlines()[0]})",
            ["start all processes within a minute, with the same address"],
        ) from None
    _current_shard = (index, count)


def _exit_process(error: BaseException, process_name: str) -> None:
    """Print the error and end this process without waiting for the others."""
    if isinstance(error, (InputError, LostProcessError)):
        print(f"{process_name}: {error}", file=sys.stderr)
    elif not isinstance(error, SystemExit):
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    exit_codes = {InputError: 2, KeyboardInterrupt: 130}
    status = next((code for x, code in exit_codes.items() if isinstance(error, x)), 1)
    code = getattr(error, "code", status)  # of SystemExit
    os._exit(code if isinstance(code, int) else 1)
