"""mmdp export: a policy as a file that runs without mmdp."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from mmdp.cli.console import print_stderr
from mmdp.cli.data import ADVANCED, TrainingData
from mmdp.cli.files import check_output_path
from mmdp.cli.signatures import command
from mmdp.cli.types import make_keyword_type
from mmdp.core.errors import InputError

if TYPE_CHECKING:
    from mmdp import MMDP, Bound

Target = Annotated[str, make_keyword_type("python", "javascript", "sql", "excel", "html")]


@command(
    "mmdp export policy.json --to python --out rule.py",
    "mmdp export tree.json data/riverswim --out card.html",
    "mmdp export policy.csv --to sql",
    advanced=ADVANCED,
)
def export(
    policy: Path,
    data: TrainingData | None = None,
    *,
    to: Target | None = None,
    out: Path | None = None,
) -> None:
    """Write a policy as one file that needs nothing else.

    python and javascript have a function of the time and the state (and the node of a flow
    chart), sql and excel a table to look it up, html is a page for a phone. With DATA the file
    says the policy's value on the models by the objective that it was solved for (of a .csv: the
    mean, unless a proof names another), and what is proven about it; a page also says what
    the next best action would cost in each state. A tree keeps its questions if it was saved as
    .json.

    Parameters
    ----------
    policy
        A policy that mmdp solve wrote.
    data
        The models it is for.
    to
        What to write; by default what the suffix of --out says.
    out
        Where to write; printed if not given.
    """
    import mmdp
    from mmdp.insight.exports import render_policy

    check_output_path(out, policy if data is None else data.path, policy)
    model = None if data is None else data.read()
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
    """Load the certificate of a policy's file, if it is about these models."""
    import mmdp

    try:
        return mmdp.io.load_certificate(policy, model)
    except InputError as error:  # the file is about the policy all the same
        print_stderr(f"note: no proof is shown: {error.message}")
        return None
