"""mmdp convert: models in another format, or with the net benefit as their reward."""

from __future__ import annotations

import math
from pathlib import Path

from mmdp.cli.console import LiveLine, print_facts
from mmdp.cli.data import ADVANCED, Data
from mmdp.cli.economics import Economics
from mmdp.cli.files import check_output_path
from mmdp.cli.signatures import command
from mmdp.core.errors import InputError
from mmdp.core.text import format_bytes


@command(
    "mmdp convert data/riverswim --out models.npz",
    "mmdp convert data/riverswim --out models.pomdpx",
    "mmdp convert models.npz --out models --shards 16",
    "mmdp convert models --effects effects.csv --wtp 20000 -o priced.npz",
    advanced=ADVANCED,
)
def convert(
    data: Data,
    *,
    out: Path,
    shards: int | None = None,
    horizon: float | None = None,
    wtp: float | None = None,
    economics: Economics,
) -> None:
    """Write the models of DATA in another format, or with another reward.

    npz is the fastest to read. A folder of shards is loaded file by file with little more memory
    than the models take, and lets each of many processes read its own models only.

    With --effects and --wtp the reward becomes the net benefit, for solve, report and every
    other command. If effects and costs have rates of their own, or times have weights, it varies
    with time: give the --horizon then.

    Parameters
    ----------
    out
        Where to write: .npz, .parquet, .csv, .pomdpx, .pomdp or a folder.
    shards
        Write a folder of this many files, each with some models.
    horizon
        Number of decisions, if rewards vary with time.
    wtp
        The value of one unit of effect: the reward is this times the effect, minus the cost.
    """
    import mmdp

    check_output_path(out, data.path)
    model = data.read(quiet=False)
    amounts = economics.read(model, wtp, "--wtp")
    if wtp is not None:
        if not 0 <= wtp < math.inf:
            raise InputError(f"--wtp must be a number of at least 0, not {wtp}")
        if horizon == math.inf:
            raise InputError("give --horizon, the number of decisions over which the rewards vary")
        model = economics.discounting.make_net_benefit_model(
            model,
            amounts["effects"],
            amounts["costs"],
            wtp,
            None if horizon is None else int(horizon),
        )
    elif horizon is not None:
        raise InputError("--horizon is for rewards that vary with time; give --effects too")
    with LiveLine(f"writing {out}"):
        if shards is not None:
            mmdp.io.save_shards(model, out, shards)
        elif out.suffix.lower() in (".pomdp", ".pomdpx"):
            mmdp.interop.save_pomdp(model, out)
        else:
            mmdp.save(model, out)
    files = [file for file in out.iterdir() if file.is_file()] if out.is_dir() else [out]
    size = format_bytes(sum(file.stat().st_size for file in files))
    facts = [("models", f"{model.n_models:,}"), ("written", size)]
    if out.suffix.lower() == ".pomdp" and model.problem.initial.any(axis=1).sum() > 1:
        reason = "such a file cannot say that the first state is seen"
        facts.append(("added", f"a step from a state 'start', which discounts once more: {reason}"))
    print_facts(str(out), facts)
