"""mmdp update: the weights of models after what was seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mmdp.cli.console import LiveLine, print_facts, print_json, print_table
from mmdp.cli.data import ADVANCED, Data
from mmdp.cli.files import check_output_path
from mmdp.cli.signatures import command
from mmdp.cli.types import InputPath, PathParam
from mmdp.core.text import format_number, pluralize

FigureFile = Annotated[Path, PathParam(".png", ".svg")]
MAX_SHOWN_MODELS = 12  # models in the table


@command(
    "mmdp update models log.csv --out now",
    "mmdp update models log.csv --out now.npz --plot weights.svg",
    advanced=ADVANCED,
)
def update(
    data: Data,
    log: InputPath,
    *,
    out: Path,
    plot: FigureFile | None = None,
    as_json: bool = False,
) -> None:
    """Weight the models of DATA by how well they explain LOG.

    LOG has the columns state, action and next_state, and may have episode and time (or step), as
    for mmdp fit; labels, or ids from 0. Give the models as they were before the log and all
    that was seen since: nothing is counted twice. The new models start in the last state seen,
    unless the log has several episodes, so mmdp solve plans what comes next.

    Parameters
    ----------
    log
        What was seen: .csv, .parquet, or - for standard input.
    out
        Where to write the models: .npz, .parquet, .csv or a folder.
    plot
        Draw the weights by step.
    """
    import mmdp
    from mmdp.data.posterior.update import filter_weights, read_model_steps, update_model
    from mmdp.insight.draw.curves import weights_by_step

    check_output_path(out, data.path, log)
    model = data.read(quiet=as_json)
    with LiveLine(f"reading {log}", quiet=as_json):
        steps = read_model_steps(model, log)
        weights, probabilities = filter_weights(model, steps)
        is_single_episode = steps.n_episodes == 1
        updated_model = update_model(
            model, steps, weights[-1], "last" if is_single_episode else None
        )
        mmdp.save(updated_model, out)
        if plot is not None:
            mmdp.plots.save_figure(
                weights_by_step(weights, steps.weight_times, updated_model.model_labels), plot
            )
    initial_state = model.state_labels[steps.next_state[-1]] if is_single_episode else None
    labels = updated_model.model_labels
    if as_json:
        print_json(
            {
                "out": out,
                "steps": len(steps.time),
                "start": initial_state,
                "weights": dict(zip(labels, weights[-1], strict=True)),
                "probabilities": probabilities[steps.rows.argsort()],  # as in the log
            }
        )
        return
    effective_size = mmdp.posterior.effective_sample_size(weights[-1])
    i = int(probabilities.argmin())
    row_text = steps.source.describe_row(int(steps.rows[i]))
    facts = {
        "seen": pluralize(len(steps.time), "step"),
        "starts in": initial_state or "as before",
        "in play": f"{effective_size:.3g} of {pluralize(updated_model.n_models, 'model')}",
        "least likely": f"{row_text}, with probability {format_number(probabilities[i], 2)}",
    }
    print_facts(str(out), facts.items())
    top_models = weights[-1].argsort(kind="stable")[::-1][:MAX_SHOWN_MODELS]
    print_table(
        ("model", "before", "now"),
        [(labels[m], f"{weights[0, m]:.3f}", f"{weights[-1, m]:.3f}") for m in top_models],
    )
    if plot is not None:
        print(f"weights drawn in {plot}")
