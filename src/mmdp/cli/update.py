"""mmdp update: the weights of models after what was seen."""

from __future__ import annotations

from pathlib import Path

import click

from mmdp.cli import options
from mmdp.cli.console import Working, complain, show_facts, show_json, show_table
from mmdp.cli.options import Loading, check_out, command, option, takes
from mmdp.cli.types import INPUT, PATH, OutFile
from mmdp.words import counted, number

MOST_SHOWN = 12  # models in the table


@command(
    "mmdp update models log.csv --out now",
    "mmdp update models log.csv --out now.npz --plot weights.svg",
)
@options.data
@click.argument(
    "log", type=INPUT, help="What was seen: .csv, .parquet, or - for standard input."
)  # fmt: skip
@option(
    "--out", "-o", type=PATH, metavar="PATH", required=True,
    help="Where to write the models: .npz, .parquet, .csv or a folder.",
)  # fmt: skip
@option(
    "--plot", type=OutFile(".png", ".svg"), metavar="FILE", help="Draw the weights by step."
)  # fmt: skip
@options.as_json
@options.split
@takes(Loading)
def update(
    data: Path, log: Path, out: Path, plot: Path | None, as_json: bool, split: str, loading: Loading
) -> None:
    """Weight the models of DATA by how well they explain LOG.

    LOG has the columns state, action and next_state, and may have episode and time (or step), as
    for mmdp fit; labels, or ids from 0. Give the models as they were before the log and all
    that was seen since: nothing is counted twice. The new models start in the last state seen,
    unless the log has several episodes, so mmdp solve plans what comes next.
    """
    import mmdp
    from mmdp.draw.curves import weights_by_step
    from mmdp.posterior.update import believed, steps_of, updated

    check_out(out, data, log)
    model = loading.read(data, split, quiet=as_json)
    with Working(f"reading {log}", quiet=as_json):
        steps = steps_of(model, log)
        (weights, probabilities), alone = believed(model, steps), steps.episodes == 1
        found = updated(model, steps, weights[-1], "last" if alone else None)
        mmdp.save(found, out)
        if plot is not None:
            mmdp.plots.save(weights_by_step(weights, steps.times, found.model_labels), plot)
    for i in steps.jumps[:1]:
        where = f"{log}, {steps.source.at(int(steps.row[i]))}"
        begins = repr(model.state_labels[steps.state[i]])
        complain(f"note: {where} begins in {begins}, where the step before did not end")
    start = model.state_labels[steps.next_state[-1]] if alone else None
    if as_json:
        named = dict(zip(found.model_labels, weights[-1], strict=True))
        by_row = probabilities[steps.row.argsort()]  # as in the log
        show_json({"out": out, "steps": len(steps.time), "start": start, "weights": named,
                   "probabilities": by_row})  # fmt: skip
        return
    effective = mmdp.posterior.effective_models(weights[-1])
    facts = [("seen", counted(len(steps.time), "step")), ("starts in", start or "as before")]
    facts.append(("in play", f"{effective:.3g} of {counted(found.n_models, 'model')}"))
    i = int(probabilities.argmin())
    place = steps.source.at(int(steps.row[i]))
    facts.append(("least likely", f"{place}, with probability {number(probabilities[i], 2)}"))
    show_facts(str(out), facts)
    most = weights[-1].argsort(kind="stable")[::-1][:MOST_SHOWN]
    rows = [(found.model_labels[m], *(f"{weights[i, m]:.3f}" for i in (0, -1))) for m in most]
    show_table(("model", "before", "now"), rows)
    if plot is not None:
        print(f"weights drawn in {plot}")
