"""One solve over many processes, each with some of the models.

Started by srun or mpirun, every process finds the others by itself:

    srun --ntasks=8 python examples/many_hosts.py OUT --models models --horizon 50
    mpirun -n 2 python examples/many_hosts.py OUT --models models --horizon 50

Or in two terminals, also of two machines that reach each other:

    python examples/many_hosts.py OUT --process 0 --processes 2 --address localhost:41732
    python examples/many_hosts.py OUT --process 1 --processes 2 --address localhost:41732

Without --models it solves a small problem that comes with mmdp, and without others it is one
process like any other. Ctrl-C and --time-limit end all with the best policy so far.
"""

# %% script
import argparse
from pathlib import Path

import mmdp

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path, help="folder for the policy")
parser.add_argument("--models", help="a folder of parts, or any other model")
parser.add_argument("--horizon", type=int, default=20)
parser.add_argument("--time-limit", type=float)
parser.add_argument("--process", type=int, help="number of this process, from 0")
parser.add_argument("--processes", type=int, help="how many there are")
parser.add_argument("--address", help="host:port of process 0")
arguments = parser.parse_args()

with mmdp.distributed.join_processes(arguments.address, arguments.process, arguments.processes):
    shard = mmdp.distributed.process_shard()
    if arguments.models:
        model = mmdp.load(arguments.models, shard=shard)
    else:
        model = mmdp.domains.riverswim(seed=0).train.take_shard(*shard)
    solution = mmdp.solve(model, arguments.horizon, time_limit=arguments.time_limit)
    oracle = mmdp.bound(model, arguments.horizon, "oracle")
    if shard[0] == 0:  # all processes have the same solution; one writes it
        arguments.out.mkdir(parents=True, exist_ok=True)
        mmdp.save_policy(solution, arguments.out / "policy.csv")
        print(f"value {solution.value:.6g}, at most {oracle.value:.6g}: {solution.status.name}")
