"""mmdp convert: models in another format, or with the net benefit as their reward."""

from __future__ import annotations

from pathlib import Path

from mmdp.cli import options
from mmdp.cli.console import Working, show_facts
from mmdp.cli.options import (
    Loading,
    Pricing,
    check_out,
    command,
    option,
    takes,
)
from mmdp.cli.types import PATH, Words
from mmdp.errors import InputError
from mmdp.words import readable_bytes


@command(
    "mmdp convert data/riverswim --out models.npz",
    "mmdp convert data/riverswim --out models.pomdpx",
    "mmdp convert models.npz --out models --parts 16",
    "mmdp convert models.npz --out models --parts 16 --format parquet",
    "mmdp convert models --effects effects.csv --value 20000 -T 30 --cost-rate 0.035 -o priced.npz",
)
@options.data
@option(
    "--out", "-o", type=PATH, metavar="PATH", required=True,
    help="Where to write: .npz, .parquet, .csv, .pomdpx, .pomdp or a folder.",
)  # fmt: skip
@option("--parts", type=int, metavar="N", help="Write a folder of N files, each with some models.")
@option(
    "--format", "kind", type=Words("npz", "parquet"), help="Format of the parts; npz if not given."
)
@options.horizon
@takes(Pricing)
@options.split
@takes(Loading)
def convert(
    data: Path, out: Path, parts: int | None, kind: str | None, horizon: int | None,
    pricing: Pricing, split: str, loading: Loading,
) -> None:  # fmt: skip
    """Write the models of DATA in another format, or with another reward.

    npz is the fastest to read. A folder of parts is loaded file by file with little more memory
    than the models take, and lets each of many processes read its own models only.

    With --effects and --value the reward becomes the net benefit, for solve, report and every
    other command. If effects and costs have rates of their own, or times have weights, it varies
    with time: give the --horizon then.
    """
    import mmdp

    check_out(out, data)
    if kind is not None and parts is None:
        raise InputError("--format is the format of parts; give --parts, or a suffix to --out")
    model = pricing.apply(loading.read(data, split, quiet=False), horizon)
    with Working(f"writing {out}", quiet=False):
        if parts is None and out.suffix.lower() in (".pomdp", ".pomdpx"):
            mmdp.ecosystem.save_pomdp(model, out)
        elif parts is None:
            mmdp.save(model, out)
        else:
            mmdp.io.save_parts(model, out, parts, suffix=f".{kind or 'npz'}")
    files = [file for file in out.iterdir() if file.is_file()] if out.is_dir() else [out]
    size = readable_bytes(sum(file.stat().st_size for file in files))
    facts = [("models", f"{model.n_models:,}"), ("written", size)]
    if out.suffix.lower() == ".pomdp" and model.problem.initial.any(axis=1).sum() > 1:
        why = "such a file cannot say that the first state is seen"
        facts.append(("added", f"a step from a state 'start', which discounts once more: {why}"))
    show_facts(str(out), facts)
