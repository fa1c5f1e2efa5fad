"""mmdp evaluate: the return of a policy on every model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mmdp._version import __version__
from mmdp.cli import options
from mmdp.cli.console import LiveLine, align_numbers, print_facts, print_json, print_model_header
from mmdp.cli.options import (
    LoadArgs,
    check_output_path,
    command,
    option,
    to_finite_horizon,
    with_options,
    write_csv,
)
from mmdp.cli.types import PATH, OutputFileParam
from mmdp.core.objectives import Objective

if TYPE_CHECKING:
    from mmdp import Evaluation

FACT_TITLES = {
    "mean": "mean",
    "sd": "sd",
    "worst": "worst",
    "q10": "10% quantile",
    "median": "median",
    "q90": "90% quantile",
    "cvar10": "CVaR 10%",
    "bayes_regret": "Bayes regret",
    "max_regret": "max regret",
}


@command(
    "mmdp evaluate policy.csv data/riverswim --split test",
    "mmdp evaluate policy.csv models.npz --json",
    "mmdp evaluate policy.csv data/hiv --objective regret:worst",
    "mmdp evaluate policy.csv data/hiv --out per-model.csv",
    "mmdp evaluate policy.csv data/hiv --near-optimal 0.01",
    "mmdp evaluate rule.csv models --horizon 20",
)
@click.argument("policy", type=PATH, help="A policy file that mmdp solve wrote.")
@options.data
@option(
    "--out",
    "-o",
    type=OutputFileParam(".csv"),
    metavar="FILE",
    help="Write one row per model: .csv.",
)
@option(
    "--near-optimal",
    type=float,
    metavar="SHARE",
    help="Say how many decisions are free to choose if this share of what is at stake may be lost.",
)
@options.horizon
@options.objective
@options.backend
@options.as_json
@options.split
@with_options(LoadArgs)
def evaluate(
    policy: Path,
    data: Path,
    out: Path | None,
    near_optimal: float | None,
    horizon: float | None,
    objective: Objective,
    backend: str,
    as_json: bool,
    split: str,
    load_args: LoadArgs,
) -> None:
    """Compute the return of POLICY on every model of DATA.

    DATA may hold other models than those the policy was computed from, such as test models.
    A rule without a time column is followed for ever, or over --horizon N decisions.
    Regret is what the policy loses against each model's own best policy. Unless --objective says
    otherwise, what counts is what the file says that the policy was solved for.
    """
    import mmdp

    check_output_path(out, data, policy)
    model = load_args.read_models(data, split, quiet=as_json)
    loaded_policy = to_finite_horizon(
        mmdp.load_policy(policy, model), model.horizon if horizon is None else horizon
    )
    loaded_policy.check_horizon(horizon)
    if click.get_current_context().get_parameter_source("objective") is ParameterSource.DEFAULT:
        objective = mmdp.io.load_objective(policy) or objective
    with LiveLine("evaluating", quiet=as_json):
        evaluation = mmdp.evaluate(model, loaded_policy, backend=backend)
        evaluation.summary()  # regret is computed when first asked for: do it while the line shows
        near_optimal_actions = None
        if near_optimal is not None:
            near_optimal_actions = mmdp.measures.near_optimal_actions(
                model, loaded_policy, near_optimal, objective=objective
            )
    if out is not None:
        write_csv(evaluation.to_frame(), out)
    if as_json:
        document = _make_document(evaluation, policy, data, split, out, objective)
        near_optimal_shares = (
            {}
            if near_optimal_actions is None
            else {
                "free": near_optimal_actions.share_interchangeable,
                "free_alone": near_optimal_actions.share_near_optimal_alone,
            }
        )
        print_json(document | near_optimal_shares)
        return
    print_model_header(data, model)
    summary = evaluation.summary()
    facts = {title: summary[key] for key, title in FACT_TITLES.items() if key in summary}
    if not objective.is_mean:
        facts = {objective.name: evaluation.value(objective)} | facts
    print_facts(f"{policy}, horizon {loaded_policy.horizon}", align_numbers(facts))
    if near_optimal_actions is not None:
        print(f"{near_optimal_actions.description}.")
    if out is not None:
        print(f"returns by model written to {out}")


def _make_document(
    evaluation: Evaluation,
    policy: Path,
    data: Path,
    split: str,
    out: Path | None,
    objective: Objective,
) -> dict[str, Any]:
    assert evaluation.provenance is not None
    return {
        "policy": policy,
        "data": data,
        "split": split,
        "horizon": evaluation.provenance.horizon,
        "objective": str(objective),
        "value": evaluation.value(objective),
        **evaluation.summary(),
        "best": evaluation.best,
        "models": evaluation.model_labels,
        "weights": evaluation.weights,
        "returns": evaluation.returns,
        "regret": evaluation.regret,
        "backend": evaluation.provenance.backend,
        "version": __version__,
        "out": out,
    }
