"""mmdp fit, update, convert and domain: models from logs, other files or benchmarks, as files."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import mmdp
from mmdp import MMDP
from mmdp.cli.console import ADVANCED, Data, print_facts, print_json, print_stderr, print_table
from mmdp.cli.report import Economics
from mmdp.cli.signatures import command
from mmdp.cli.types import FigureFile, OutputFolder, Settings, TextParam, find_named
from mmdp.core.errors import InputError
from mmdp.core.text import format_bytes, format_number, pluralize
from mmdp.core.timing import progress_line

MAX_SHOWN_MODELS = 12  # models in the table of weights
DomainName = Annotated[str, TextParam("NAME", role="domain", words="mmdp.data.domains:DOMAINS")]


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
    log: Path,
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
        Transitions or their counts: .csv or .parquet.
    out
        Where to write.
    overwrite
        Replace existing models.
    """
    from mmdp.data.posterior import fit_folder

    fitted = fit_folder(log, out, overwrite=overwrite, **options)
    if as_json:
        warnings = list(fitted.warnings)
        print_json({"out": out, "models": fitted.train.n_models, "warnings": warnings})
        return
    n_test = 0 if fitted.test is None else fitted.test.n_models
    facts = {
        "log": pluralize(int(fitted.pair_counts.sum()), "transition"),
        "models": f"{fitted.train.n_models:,} to solve, {n_test:,} held out",
        "states": f"{fitted.train.n_states:,}",
        "actions": f"{fitted.train.n_actions:,}",
        "unseen": f"{len(fitted.unseen_pairs):,} of {fitted.pair_counts.size:,} state-action pairs",
    }
    print_facts(out, [*facts.items(), *(("note", warning) for warning in fitted.warnings)])


@command(
    "mmdp update models log.csv --out now",
    "mmdp update models log.csv --out now.npz --plot weights.svg",
    advanced=ADVANCED,
)
def update(
    data: Data, log: Path, *, out: Path, plot: FigureFile | None = None, as_json: bool = False
) -> None:
    """Weight the models of DATA by how well they explain LOG.

    LOG has the columns state, action and next_state, and may have episode and time (or step), as
    for mmdp fit; labels, or ids from 0. Give the models as they were before the log and all
    that was seen since: nothing is counted twice. The new models start in the last state seen,
    unless the log has several episodes, so mmdp solve plans what comes next.

    Parameters
    ----------
    log
        What was seen: .csv or .parquet.
    out
        Where to write the models: .npz, .parquet, .csv or a folder.
    plot
        Draw the weights by step.
    """
    from mmdp.data.posterior.update import filter_weights, read_model_steps, update_model
    from mmdp.insight.plots import weights_by_step

    model = data.read()
    with progress_line.open("update"):
        steps = read_model_steps(model, log)
        weights, probabilities = filter_weights(model, steps)
        is_single_episode = steps.n_episodes == 1
        initial = "last" if is_single_episode else None
        updated_model = update_model(model, steps, weights[-1], initial)
    mmdp.save(updated_model, out)
    labels = updated_model.model_labels
    if plot is not None:
        mmdp.plots.save_figure(weights_by_step(weights, steps.weight_times, labels), plot)
    initial_state = model.state_labels[steps.next_state[-1]] if is_single_episode else None
    if as_json:
        document = {"out": out, "steps": len(steps.time), "start": initial_state}
        document["weights"] = dict(zip(labels, weights[-1], strict=True))
        document["probabilities"] = probabilities[steps.rows.argsort()]  # as in the log
        print_json(document)
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
    print_facts(out, facts.items())
    top_models = weights[-1].argsort(kind="stable")[::-1][:MAX_SHOWN_MODELS]
    print_table(
        ("model", "before", "now"),
        [(labels[m], f"{weights[0, m]:.3f}", f"{weights[-1, m]:.3f}") for m in top_models],
    )
    if plot is not None:
        print(f"weights drawn in {plot}")


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
    horizon: int | None = None,
    wtp: float | None = None,
    economics: Economics,
) -> None:
    """Convert the models of DATA to another format or reward.

    A folder gets the test models of DATA too, any other file the models of --split only.

    npz is the fastest to read. A folder of shards is loaded file by file with little more memory
    than the models take, and lets each of many processes read its own models only.

    With --effects and --wtp the reward becomes the net benefit, for solve, report and every
    other command. If effects and costs have rates of their own, or times have weights, it varies
    with time: give the --horizon then. A .pomdp file cannot say that the first state is seen: if
    there are several, it has a step from a state 'start' before them, which discounts once more.

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

    def convert_rewards(model: MMDP) -> MMDP:
        amounts = economics.read(model, wtp, "--wtp")
        if wtp is not None:
            return economics.discounting.make_net_benefit_model(
                model, amounts["effects"], amounts["costs"], wtp, horizon
            )
        if horizon is not None:
            raise InputError("--horizon is for rewards that vary with time; give --effects too")
        return model

    model, test_model = convert_rewards(data.read()), None
    has_test = data.split == "train" and not data.path.is_file() and data.has_test
    if has_test and shards is None and (out.is_dir() or not out.suffix):
        test_model = data.read_test(model)
        test_model = test_model and convert_rewards(test_model)
    if shards is not None:
        mmdp.io.save_shards(model, out, shards)
    elif out.suffix.lower() in (".pomdp", ".pomdpx"):
        mmdp.interop.save_pomdp(model, out)
    else:
        mmdp.save(model, out)
    facts = [("models", f"{model.n_models:,}")]
    if test_model is not None:
        mmdp.save(test_model, out, split="test")
        facts.append(("test models", f"{test_model.n_models:,}"))
    elif has_test:
        print_stderr(
            f"{out} has the training models of {data} only; --split test writes the others"
        )
    files = [file for file in out.iterdir() if file.is_file()] if out.is_dir() else [out]
    size = format_bytes(sum(file.stat().st_size for file in files))
    print_facts(out, [*facts, ("written", size)])


@command(
    "mmdp domain",
    "mmdp domain riverswim --out data/riverswim",
    "mmdp domain hiv --out data/hiv --seed 1 --n-models 200 --n-test-models 1000",
    "mmdp domain garnet --out data/garnet --set n_states=500 --set branching=10",
)
def domain(
    name: DomainName | None = None,
    *,
    out: OutputFolder | None = None,
    n_models: int | None = None,
    n_test_models: int | None = None,
    seed: int | None = None,
    settings: Settings | None = None,
    as_json: bool = False,
) -> None:
    """Write the models of a benchmark domain as CSV files.

    The folder gets training.csv, test.csv, initial.csv and parameters.csv; solve, study and
    info read it. Without NAME the domains are listed.

    Parameters
    ----------
    name
        The domain.
    out
        Where to write.
    n_models
        Number of training models.
    n_test_models
        Number of test models.
    seed
        Seed of every random choice.
    settings
        Another option of the domain.
    """
    from mmdp.data.domains import DESCRIPTIONS, DOMAINS
    from mmdp.data.io.folders import replace_folder

    if name is None:
        if as_json:
            print_json({"domains": DESCRIPTIONS})
        else:
            print_facts("benchmark domains", DESCRIPTIONS.items())
        return
    if out is None:
        raise InputError(f"say where to write {name}: --out FOLDER")
    known = inspect.signature(DOMAINS[name]).parameters
    counts = {"seed": seed, "n_test": n_test_models}
    counts["n_models" if "n_models" in known else "n_train"] = n_models
    given_counts = {key: value for key, value in counts.items() if value is not None}
    arguments = given_counts | (settings or {})
    make = find_named("domain", DOMAINS, name, arguments)
    with progress_line.open("domain"):
        train, test = make(**arguments)
        replace_folder(out, train, test)
    if as_json:
        sizes = {"models": train.n_models, "test_models": test.n_models}
        print_json({"domain": name, "out": out, **sizes, "options": arguments})
    else:
        print(f"{out}\n{train}\n{pluralize(test.n_models, 'test model')}")
