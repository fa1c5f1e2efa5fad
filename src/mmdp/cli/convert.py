"""mmdp convert: models in another format, or with the net benefit as their reward."""

from __future__ import annotations

from pathlib import Path

from mmdp.cli import options
from mmdp.cli.console import LiveLine, print_facts
from mmdp.cli.options import (
    LoadArgs,
    NetBenefitArgs,
    check_output_path,
    command,
    option,
    with_options,
)
from mmdp.cli.types import PATH, KeywordParam
from mmdp.core.errors import InputError
from mmdp.core.text import format_bytes


@command(
    "mmdp convert data/riverswim --out models.npz",
    "mmdp convert data/riverswim --out models.pomdpx",
    "mmdp convert models.npz --out models --shards 16",
    "mmdp convert models.npz --out models --shards 16 --format parquet",
    "mmdp convert models --effects effects.csv --wtp 20000 -o priced.npz",
)
@options.data
@option(
    "--out",
    "-o",
    type=PATH,
    metavar="PATH",
    required=True,
    help="Where to write: .npz, .parquet, .csv, .pomdpx, .pomdp or a folder.",
)
@option("--shards", type=int, metavar="N", help="Write a folder of N files, each with some models.")
@option(
    "--format",
    "file_format",
    type=KeywordParam("npz", "parquet"),
    help="Format of the shards; npz if not given.",
)
@options.horizon
@with_options(NetBenefitArgs)
@options.split
@with_options(LoadArgs)
def convert(
    data: Path,
    out: Path,
    shards: int | None,
    file_format: str | None,
    horizon: int | None,
    net_benefit_args: NetBenefitArgs,
    split: str,
    load_args: LoadArgs,
) -> None:
    """Write the models of DATA in another format, or with another reward.

    npz is the fastest to read. A folder of shards is loaded file by file with little more memory
    than the models take, and lets each of many processes read its own models only.

    With --effects and --wtp the reward becomes the net benefit, for solve, report and every
    other command. If effects and costs have rates of their own, or times have weights, it varies
    with time: give the --horizon then.
    """
    import mmdp

    check_output_path(out, data)
    if file_format is not None and shards is None:
        raise InputError("--format is the format of shards; give --shards, or a suffix to --out")
    model = net_benefit_args.apply_to(load_args.read_models(data, split, quiet=False), horizon)
    with LiveLine(f"writing {out}", quiet=False):
        if shards is None and out.suffix.lower() in (".pomdp", ".pomdpx"):
            mmdp.interop.save_pomdp(model, out)
        elif shards is None:
            mmdp.save(model, out)
        else:
            mmdp.io.save_shards(model, out, shards, suffix=f".{file_format or 'npz'}")
    files = [file for file in out.iterdir() if file.is_file()] if out.is_dir() else [out]
    size = format_bytes(sum(file.stat().st_size for file in files))
    facts = [("models", f"{model.n_models:,}"), ("written", size)]
    if out.suffix.lower() == ".pomdp" and model.problem.initial.any(axis=1).sum() > 1:
        reason = "such a file cannot say that the first state is seen"
        facts.append(("added", f"a step from a state 'start', which discounts once more: {reason}"))
    print_facts(str(out), facts)
