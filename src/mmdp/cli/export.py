"""mmdp export: a policy as a file that runs without mmdp."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mmdp.cli.console import print_stderr
from mmdp.cli.options import LoadArgs, check_output_path, command, option, with_options
from mmdp.cli.types import INPUT, PATH, KeywordParam
from mmdp.core.errors import InputError

if TYPE_CHECKING:
    from mmdp import MMDP, Bound


@command(
    "mmdp export policy.json --to python --out rule.py",
    "mmdp export tree.json data/riverswim --out card.html",
    "mmdp export policy.csv --to sql",
)
@click.argument("policy", type=PATH, help="A policy that mmdp solve wrote.")
@click.argument("data", type=INPUT, required=False, help="The models it is for.")
@option(
    "--to",
    type=KeywordParam("python", "javascript", "sql", "excel", "html"),
    help="What to write.  [default: by the suffix of --out]",
)
@option("--out", "-o", type=PATH, metavar="FILE", help="Where to write; printed if not given.")
@with_options(LoadArgs)
def export(
    policy: Path, data: Path | None, to: str | None, out: Path | None, load_args: LoadArgs
) -> None:
    """Write a policy as one file that needs nothing else.

    python, javascript and c have a function of the time and the state (and the node of a flow
    chart), sql and excel a table to look it up, html is a page for a phone. With DATA the file
    says the policy's value on the models by the objective that it was solved for (of a .csv: the
    mean, unless a proof names another), and what is proven about it; a page also says what
    the next best action would cost in each state. A tree keeps its questions if it was saved as
    .json.
    """
    import mmdp
    from mmdp.insight.exports import render_policy

    check_output_path(out, data or policy, policy)
    model = None if data is None else load_args.read_models(data, quiet=True)
    loaded_policy = mmdp.load_policy(policy, model)
    bound = None if model is None else _load_certificate(policy, model)
    if out is not None:
        mmdp.export(loaded_policy, out, to=to, model=model, bound=bound)
        print(f"policy exported to {out}")
        return
    if to is None:
        raise InputError("nothing says what to write; give --to python or --out rule.py")
    text = render_policy(loaded_policy, to, model, bound)
    if isinstance(text, bytes):
        raise InputError(f"{to} is no text; give --out rule.xlsx")
    click.echo(text, nl=False)


def _load_certificate(policy: Path, model: MMDP) -> Bound | None:
    """What is kept with the policy's file, if it is about these models."""
    import mmdp

    try:
        return mmdp.io.load_certificate(policy, model)
    except InputError as error:  # the file is about the policy all the same
        print_stderr(f"note: no proof is shown: {error.message}")
        return None
