"""One solve over many processes, each with some of the models: ``backend="jax"`` spread out.

Every process runs the same script. Inside :func:`connected` it gives ``part=part()`` wherever
models are loaded or drawn, and makes the same calls in the same order as the others::

    with mmdp.hosts.connected():
        model = mmdp.load("models", part=mmdp.hosts.part())
        solution = mmdp.solve(model, 50, backend="jax")
        if mmdp.hosts.part()[0] == 0:
            mmdp.save_policy(solution, "policy.csv")

Every process gets the same solution. ``examples/many_hosts.py`` is such a script.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from mmdp.arguments import PositiveInt, checked
from mmdp.errors import InputError, LostProcess

# (number of this process, number of processes) in the environment, by what started them
LAUNCHERS = {
    "srun": ("SLURM_PROCID", "SLURM_NTASKS"),
    "mpirun of Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpirun of MPICH": ("PMI_RANK", "PMI_SIZE"),
}
PORT = 41732  # that process 0 listens on, if no address is given

_joined = (0, 1)  # this process among those that are connected


@checked
@contextmanager
def connected(
    address: str | None = None,
    process: int | None = None,
    processes: int | None = None,
    *,
    patience: PositiveInt = 20,
) -> Iterator[None]:
    """Inside, this process is joined with the others. Begin it before anything else uses jax.

    Parameters
    ----------
    address
        ``host:port`` of process 0. Found automatically under ``srun`` and on a single machine.
    process, processes
        The number of this process, from 0, and how many there are. Found automatically under
        ``srun`` and ``mpirun``.
    patience
        Seconds without a sign of life after which a process counts as dead.

    An error inside ends this process at once, and with it the others: each prints what went wrong
    and exits with status 1 (2 for bad input, 130 after Ctrl-C). No process waits for one that is
    gone. A single process is left as it is.

    >>> with connected():
    ...     print(part())
    (0, 1)
    """
    index, count = _numbered(process, processes)
    if count == 1:
        yield
        return
    _join(address or _address(count), index, count, patience)
    try:
        yield
    except BaseException as error:
        _end(error, f"process {index} of {count}")
    import jax

    jax.distributed.shutdown()  # type: ignore[no-untyped-call]


def part() -> tuple[int, int]:
    """(number of this process, number of processes), for ``part=`` of load(), fit() and others.

    >>> part()
    (0, 1)
    """
    return _joined


def _numbered(process: int | None, processes: int | None) -> tuple[int, int]:
    """The number of this process and how many there are, by argument or by launcher."""
    index, count = next(
        (
            (int(os.environ[mine]), int(os.environ[all_]))
            for mine, all_ in LAUNCHERS.values()
            if mine in os.environ and all_ in os.environ
        ),
        (0, 1),
    )
    index = index if process is None else process
    count = count if processes is None else processes
    if not 0 <= index < count:
        raise InputError(f"process {index} of {count}: processes are numbered from 0")
    return index, count


def _address(processes: int) -> str | None:
    """The address of process 0; None if jax finds it by itself."""
    if "SLURM_JOB_NODELIST" in os.environ or "SLURM_STEP_NODELIST" in os.environ:
        return None
    if int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", processes)) == processes:
        return f"localhost:{PORT}"
    raise InputError("the processes are on several machines; give the address of process 0")


def _join(address: str | None, index: int, count: int, patience: int) -> None:
    global _joined
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    try:
        jax.distributed.initialize(
            address, count, index, initialization_timeout=max(60, patience),
            heartbeat_timeout_seconds=patience, shutdown_timeout_seconds=max(60, patience),
        )  # fmt: skip
    except RuntimeError as error:
        raise InputError(
            f"process {index} of {count} is not connected ({str(error).splitlines()[0]})",
            ["start all processes within a minute, with the same address"],
        ) from None
    _joined = (index, count)


def _end(error: BaseException, who: str) -> None:
    """Say what went wrong and end this process without waiting for the others."""
    if isinstance(error, (InputError, LostProcess)):
        print(f"{who}: {error}", file=sys.stderr)
    elif not isinstance(error, SystemExit):
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    known = {InputError: 2, KeyboardInterrupt: 130, SystemExit: getattr(error, "code", None)}
    status = next((code for kind, code in known.items() if isinstance(error, kind)), 1)
    os._exit(status if isinstance(status, int) else 1)
