"""mmdp fit: models from logged transitions."""

from __future__ import annotations

from typing import Any

from mmdp.cli.console import LiveLine, print_facts, print_json
from mmdp.cli.signatures import command
from mmdp.cli.types import InputPath, OutputFolder
from mmdp.core.text import pluralize


@command(
    "mmdp fit log.csv --n-models 200 --out models",
    "mmdp fit log.csv --out models --rewards normal --unseen absorb",
    "mmdp fit log.csv --out models --states 20 --discount 0.95",
    "mmdp fit log.parquet --out models --column state=from --column next_state=to",
    sources=[
        "mmdp.data.posterior.dirichlet:fit n_models n_test_models prior concentration support"
        " unseen states actions absorbing rewards discount initial columns seed"
    ],
)
def fit(
    log: InputPath,
    *,
    out: OutputFolder,
    overwrite: bool = False,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Draw plausible models from logged transitions.

    LOG has the columns state, action and next_state, and may have reward, episode, time (or step)
    and terminated (whether nothing follows), or count if a row stands for several transitions;
    states and actions may be names, or ids from 0 or 1. Each model is a draw from the
    posterior distribution of the transition probabilities. The folder then holds models that
    solve, compare and report read.

    Parameters
    ----------
    log
        Transitions or their counts: .csv, .parquet, or - for standard input.
    out
        Where to write.
    overwrite
        Replace existing models.
    """
    from mmdp.data.posterior import fit_folder

    with LiveLine(f"fitting {log}", quiet=as_json):
        fitted = fit_folder(log, out, overwrite=overwrite, **options)
    if as_json:
        warnings = list(fitted.warnings)
        print_json({"out": out, "models": fitted.train.n_models, "warnings": warnings})
        return
    n_test = 0 if fitted.test is None else fitted.test.n_models
    unseen_text = f"{len(fitted.unseen_pairs):,} of {fitted.pair_counts.size:,} state-action pairs"
    facts = {
        "log": pluralize(int(fitted.pair_counts.sum()), "transition"),
        "models": f"{fitted.train.n_models:,} to solve, {n_test:,} held out",
        "states": f"{fitted.train.n_states:,}",
        "actions": f"{fitted.train.n_actions:,}",
        "unseen": unseen_text,
    }
    print_facts(str(out), [*facts.items(), *(("note", warning) for warning in fitted.warnings)])
