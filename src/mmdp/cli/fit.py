"""mmdp fit: models from logged transitions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmdp.cli import options
from mmdp.cli.console import LiveLine, print_facts, print_json
from mmdp.cli.options import command, option
from mmdp.cli.types import INPUT, DistributionParam, KeywordParam, LabelsParam
from mmdp.core.text import pluralize

if TYPE_CHECKING:
    from mmdp.data.posterior import Fit


@command(
    "mmdp fit log.csv --n-models 200 --out models",
    "mmdp fit log.csv --out models --rewards normal --unseen absorb",
    "mmdp fit log.csv --out models --states 20 --discount 0.95",
    "mmdp fit log.parquet --out models --column state=from --column next_state=to",
)
@click.argument(
    "log", type=INPUT, help="Transitions or their counts: .csv, .parquet, or - for standard input."
)
@options.out_folder(required=True)
@option("--n-models", type=int, metavar="N", default=200, show_default=True, help="Models to draw.")
@option(
    "--n-test-models",
    type=int,
    metavar="N",
    default=0,
    show_default=True,
    help="Test models to draw.",
)
@option(
    "--prior",
    type=KeywordParam("pooled", "symmetric"),
    default="pooled",
    show_default=True,
    help="Expect the next states that followed the state after any action, or all states alike.",
)
@option(
    "--concentration",
    type=float,
    metavar="X",
    default=1.0,
    show_default=True,
    help="Factor for the pseudo-counts of the prior.",
)
@option(
    "--support",
    type=KeywordParam("all", "seen"),
    default="all",
    show_default=True,
    help="Which next states are possible.",
)
@option(
    "--unseen",
    type=KeywordParam("prior", "error", "absorb", "forbid"),
    default="prior",
    show_default=True,
    help="What to do with state-action pairs that are not in the log.",
)
@option(
    "--states",
    type=LabelsParam(),
    help="Number of states or their labels in order, for those that the log never shows.",
)
@option("--actions", type=LabelsParam(), help="Number of actions, or their labels in order.")
@option(
    "--absorbing",
    multiple=True,
    metavar="STATE",
    help="A state that ends an episode; may be given several times.",
)
@option(
    "--rewards",
    metavar="average|normal|FILE",
    default="average",
    show_default=True,
    help="Take the average of the log, draw from the posterior, or read a file.",
)
@option(
    "--discount",
    type=float,
    metavar="G",
    default=1.0,
    show_default=True,
    help="Discount factor per step: 0 to 1.",
)
@option(
    "--initial",
    type=DistributionParam(),
    help="The first state, or shares of several; by default those of the episodes.",
)
@option(
    "--column",
    "columns",
    multiple=True,
    metavar="ROLE=NAME",
    help="Another name for a column; may be given several times.",
)
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
    from mmdp.data.posterior import fit_folder

    column_names = dict(setting.partition("=")[::2] for setting in columns)
    with LiveLine(f"fitting {log}", quiet=as_json):
        fit_result = fit_folder(log, out, columns=column_names or None, **options)
    if as_json:
        print_json(
            {"out": out, "models": fit_result.train.n_models, "warnings": list(fit_result.warnings)}
        )
    else:
        print_facts(str(out), _format_facts(fit_result))


def _format_facts(fit_result: Fit) -> list[tuple[str, str]]:
    n_test = 0 if fit_result.test is None else fit_result.test.n_models
    return [
        ("log", pluralize(int(fit_result.pair_counts.sum()), "transition")),
        ("models", f"{fit_result.train.n_models:,} to solve, {n_test:,} held out"),
        ("states", f"{fit_result.train.n_states:,}"),
        ("actions", f"{fit_result.train.n_actions:,}"),
        (
            "unseen",
            f"{len(fit_result.unseen_pairs):,} of {fit_result.pair_counts.size:,} "
            "state-action pairs",
        ),
        *(("note", warning) for warning in fit_result.warnings),
    ]
