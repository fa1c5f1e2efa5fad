"""One solve over many processes, each with some of the models: ``backend="jax"`` spread out.

Every process runs the same script: :func:`connect`, then ``part=part()`` wherever models are
loaded or drawn, then the same calls in the same order. See ``examples/many_hosts.py``.
"""

from __future__ import annotations

import os

from mmdp.errors import InputError

# (number of this process, number of processes) in the environment, by what started them
LAUNCHERS = {
    "srun": ("SLURM_PROCID", "SLURM_NTASKS"),
    "mpirun of Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpirun of MPICH": ("PMI_RANK", "PMI_SIZE"),
}
PORT = 41732  # of process 0, if none is given


def connect(
    address: str | None = None,
    process: int | None = None,
    processes: int | None = None,
    *,
    patience: int = 20,
) -> None:
    """Join this process with the others; call it before anything else uses jax.

    Parameters
    ----------
    address
        ``host:port`` of process 0. Found by itself under ``srun`` and on a single machine.
    process, processes
        The number of this process, from 0, and how many there are. Found by themselves under
        ``srun`` and ``mpirun``.
    patience
        Seconds without a sign of life after which a process counts as dead. The others then end
        with a message instead of waiting for it.

    A single process need not connect, and may.
    """
    found = _launched()
    process = found[0] if process is None else process
    processes = found[1] if processes is None else processes
    if not 0 <= process < processes:
        raise InputError(f"process {process} of {processes}: processes are numbered from 0")
    if processes == 1:
        return
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    try:
        jax.distributed.initialize(
            address or _address(processes), processes, process,
            initialization_timeout=max(60, patience), heartbeat_timeout_seconds=patience,
            shutdown_timeout_seconds=max(60, patience),
        )  # fmt: skip
    except RuntimeError as error:
        raise InputError(
            f"process {process} of {processes} found no connection to process 0 ({error})",
            ["start all processes within a minute, with the same address"],
        ) from None


def part() -> tuple[int, int]:
    """(number of this process, number of processes), for ``part=`` of load(), fit() and others.

    >>> part()
    (0, 1)
    """
    import jax

    return jax.process_index(), jax.process_count()


def _launched() -> tuple[int, int]:
    """What srun or mpirun say; (0, 1) if neither started this process."""
    for names in LAUNCHERS.values():
        if all(name in os.environ for name in names):
            index, count = (int(os.environ[name]) for name in names)
            return index, count
    return 0, 1


def _address(processes: int) -> str | None:
    """Of process 0: None if jax finds it by itself."""
    if "SLURM_JOB_NODELIST" in os.environ or "SLURM_STEP_NODELIST" in os.environ:
        return None
    if int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", processes)) == processes:
        return f"localhost:{PORT}"
    raise InputError("the processes are on several machines; give the address of process 0")
