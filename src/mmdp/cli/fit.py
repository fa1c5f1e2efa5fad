"""mmdp fit: models from logged transitions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmdp.cli import options
from mmdp.cli.console import Working, show_facts, show_json
from mmdp.cli.options import command, option
from mmdp.cli.types import INPUT, Listed, Shares, Words
from mmdp.words import counted

if TYPE_CHECKING:
    from mmdp.posterior import Fit


@command(
    "mmdp fit log.csv --models 200 --out models",
    "mmdp fit log.csv --out models --rewards normal --unseen absorb",
    "mmdp fit log.csv --out models --states 20 --discount 0.95",
    "mmdp fit log.parquet --out models --column state=from --column next_state=to",
)
@click.argument(
    "log", type=INPUT, help="Transitions or their counts: .csv, .parquet, or - for standard input."
)
@options.out_folder(required=True)
@option("--models", type=int, metavar="N", default=200, show_default=True, help="Models to draw.")
@option(
    "--test-models", type=int, metavar="N", default=0, show_default=True,
    help="Test models to draw.",
)  # fmt: skip
@option(
    "--prior", type=Words("pooled", "symmetric"), default="pooled", show_default=True,
    help="Expect the next states that followed the state after any action, or all states alike.",
)  # fmt: skip
@option(
    "--concentration", type=float, metavar="X", default=1.0, show_default=True,
    help="Factor for the pseudo-counts of the prior.",
)  # fmt: skip
@option(
    "--support", type=Words("all", "seen"), default="all", show_default=True,
    help="Which next states are possible.",
)  # fmt: skip
@option(
    "--unseen", type=Words("prior", "error", "absorb", "forbid"), default="prior",
    show_default=True, help="What to do with state-action pairs that are not in the log.",
)  # fmt: skip
@option(
    "--states", type=Listed(),
    help="Number of states or their labels in order, for those that the log never shows.",
)  # fmt: skip
@option("--actions", type=Listed(), help="Number of actions, or their labels in order.")
@option(
    "--absorbing", multiple=True, metavar="STATE",
    help="A state that ends an episode; may be given several times.",
)  # fmt: skip
@option(
    "--rewards", metavar="average|normal|FILE", default="average", show_default=True,
    help="Take the average of the log, draw from the posterior, or read a file.",
)  # fmt: skip
@option(
    "--discount", type=float, metavar="G", default=1.0, show_default=True,
    help="Discount factor per step: 0 to 1.",
)  # fmt: skip
@option(
    "--initial", type=Shares(),
    help="The first state, or shares of several; by default those of the episodes.",
)  # fmt: skip
@option(
    "--column", "columns", multiple=True, metavar="ROLE=NAME",
    help="Another name for a column; may be given several times.",
)  # fmt: skip
@options.seed()
@option("--overwrite", is_flag=True, help="Replace existing models.")
@options.as_json
def fit(log: Path, out: Path, columns: Sequence[str], as_json: bool, **options: Any) -> None:
    """Draw plausible models from logged transitions.

    LOG has the columns state, action and next_state, and may have reward, episode, time (or step)
    and terminated (whether nothing follows), or count if a row stands for several transitions;
    states and actions may be names, or ids from 0 or 1. Each model is a draw from the
    posterior distribution of the transition probabilities. The folder then holds models that
    solve, compare and report read.
    """
    from mmdp.posterior import fit_folder

    named = dict(setting.partition("=")[::2] for setting in columns)
    with Working(f"fitting {log}", quiet=as_json):
        found = fit_folder(log, out, columns=named or None, **options)
    if as_json:
        show_json({"out": out, "models": found.train.n_models, "warnings": list(found.warnings)})
    else:
        show_facts(str(out), _facts(found))


def _facts(found: Fit) -> list[tuple[str, str]]:
    test = 0 if found.test is None else found.test.n_models
    return [
        ("log", counted(int(found.visits.sum()), "transition")),
        ("models", f"{found.train.n_models:,} to solve, {test:,} held out"),
        ("states", f"{found.train.n_states:,}"),
        ("actions", f"{found.train.n_actions:,}"),
        ("unseen", f"{len(found.unseen):,} of {found.visits.size:,} state-action pairs"),
        *(("note", warning) for warning in found.warnings),
    ]
