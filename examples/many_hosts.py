"""One solve over many processes, each with some of the models.

Started by srun or mpirun, every process finds the others by itself:

    srun --ntasks=8 python examples/many_hosts.py --models models --horizon 50 --out policy.csv
    mpirun -n 2 python examples/many_hosts.py --models models --horizon 50 --out policy.csv

Or in two terminals, also of two machines that reach each other:

    python examples/many_hosts.py --process 0 --processes 2 --address localhost:41732
    python examples/many_hosts.py --process 1 --processes 2 --address localhost:41732

Without --models it solves a small problem that comes with mmdp.
Ctrl-C and --time-limit end all processes together with the best policy so far.
"""

from __future__ import annotations

import argparse

import mmdp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="a folder of parts, or any other model")
    parser.add_argument("--horizon", type=int, default=20)
    parser.add_argument("--time-limit", type=float)
    parser.add_argument("--out", help="file for the policy")
    parser.add_argument("--process", type=int, help="number of this process, from 0")
    parser.add_argument("--processes", type=int, help="how many there are")
    parser.add_argument("--address", help="host:port of process 0")
    given = parser.parse_args()
    with mmdp.hosts.connected(given.address, given.process, given.processes):
        solve(given)


def solve(given: argparse.Namespace) -> None:
    part = mmdp.hosts.part()
    if given.models:
        model = mmdp.load(given.models, part=part)
    else:
        model = mmdp.domains.riverswim(seed=0).train.take_part(*part)
    solution = mmdp.solve(model, given.horizon, backend="jax", time_limit=given.time_limit)
    oracle = mmdp.bound(model, given.horizon, "oracle", backend="jax")
    if part[0] == 0:  # all processes have the same solution; one writes it
        print(f"{model}")
        print(f"value {solution.value:.6g}, at most {oracle.value:.6g}: {solution.status.name}")
        if given.out:
            mmdp.save_policy(solution, given.out)


if __name__ == "__main__":
    main()
