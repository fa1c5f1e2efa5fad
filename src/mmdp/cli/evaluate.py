"""mmdp evaluate: the return of a policy on every model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmdp._version import __version__
from mmdp.cli.console import (
    LiveLine,
    align_numbers,
    pick,
    print_facts,
    print_json,
    print_model_header,
)
from mmdp.cli.data import ADVANCED, Data
from mmdp.cli.files import check_output_path, to_finite_horizon, write_csv
from mmdp.cli.signatures import command
from mmdp.cli.types import PathParam

if TYPE_CHECKING:
    from mmdp.core.objectives import Objective

TableFile = Annotated[Path, PathParam(".csv")]
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
    sources=["mmdp.core.solve:evaluate"],
    advanced=f"backend n_episodes seed {ADVANCED}",
)
def evaluate(
    policy: Path,
    data: Data,
    *,
    out: TableFile | None = None,
    near_optimal: float | None = None,
    horizon: float | None = None,
    objective: Objective | None = None,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Compute the return of POLICY on every model of DATA.

    DATA may hold other models than those the policy was computed from, such as test models.
    A rule without a time column is followed for ever, or over --horizon N decisions.
    Regret is what the policy loses against each model's own best policy.

    Parameters
    ----------
    policy
        A policy file that mmdp solve wrote.
    out
        Write one row per model: .csv.
    near_optimal
        Say how many decisions are free to choose if this share of what is at stake may be lost.
    horizon
        Number of decisions over which to follow a rule without times, or inf.
    objective
        What counts over the models, such as cvar:0.1; by default what the file says that the policy
        was solved for.
    """
    import mmdp

    check_output_path(out, data.path, policy)
    model = data.read(quiet=as_json)
    loaded_policy = to_finite_horizon(
        mmdp.load_policy(policy, model), model.horizon if horizon is None else horizon
    )
    loaded_policy.check_horizon(horizon)
    objective = objective or mmdp.io.load_objective(policy) or mmdp.objectives.Mean()
    with LiveLine("evaluating", quiet=as_json):
        evaluation = mmdp.evaluate(model, loaded_policy, **options)
        summary = evaluation.summary()  # computes regret while the line shows
        near_optimal_actions = None
        if near_optimal is not None:
            near_optimal_actions = mmdp.measures.near_optimal_actions(
                model, loaded_policy, near_optimal, objective=objective
            )
    if out is not None:
        write_csv(evaluation.to_frame(), out)
    if as_json:
        document = {
            "policy": policy,
            "data": data,
            "split": data.split,
            "objective": str(objective),
            "value": evaluation.value(objective),
            **summary,
            **pick(evaluation, "best weights returns regret"),
            **pick(evaluation.provenance, "horizon backend"),
            "models": evaluation.model_labels,
            "version": __version__,
            "out": out,
        }
        if near_optimal_actions is not None:
            document["free"] = near_optimal_actions.share_interchangeable
            document["free_alone"] = near_optimal_actions.share_near_optimal_alone
        print_json(document)
        return
    print_model_header(data, model)
    facts = {title: summary[key] for key, title in FACT_TITLES.items() if key in summary}
    if not objective.is_mean:
        facts = {objective.name: evaluation.value(objective)} | facts
    print_facts(f"{policy}, horizon {loaded_policy.horizon}", align_numbers(facts))
    if near_optimal_actions is not None:
        print(f"{near_optimal_actions.description}.")
    if out is not None:
        print(f"returns by model written to {out}")
