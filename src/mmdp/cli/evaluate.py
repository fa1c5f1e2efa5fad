"""mmdp evaluate: the return of a policy on every model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mmdp._version import __version__
from mmdp.cli import options
from mmdp.cli.console import Working, aligned, introduce, show_facts, show_json
from mmdp.cli.options import Loading, check_out, command, option, over, takes, write_csv
from mmdp.cli.types import PATH, OutFile
from mmdp.objective import Objective

if TYPE_CHECKING:
    from mmdp import Evaluation

FIGURES = {
    "mean": "mean", "sd": "sd", "worst": "worst", "q10": "10% quantile", "median": "median",
    "q90": "90% quantile", "cvar10": "CVaR 10%", "bayes_regret": "Bayes regret",
    "max_regret": "max regret",
}  # fmt: skip


@command(
    "mmdp evaluate policy.csv data/riverswim --split test",
    "mmdp evaluate policy.csv models.npz --json",
    "mmdp evaluate policy.csv data/hiv --objective regret:worst",
    "mmdp evaluate policy.csv data/hiv --out per-model.csv",
    "mmdp evaluate policy.csv data/hiv --freedom 0.01",
    "mmdp evaluate rule.csv models --horizon 20",
)
@click.argument("policy", type=PATH, help="A policy file that mmdp solve wrote.")
@options.data
@option(
    "--out", "-o", type=OutFile(".csv"), metavar="FILE", help="Write one row per model: .csv."
)  # fmt: skip
@option(
    "--freedom", type=float, metavar="SHARE",
    help="Say how many decisions are free to choose if this share of what is at stake may be lost.",
)  # fmt: skip
@options.horizon
@options.objective
@options.backend
@options.as_json
@options.split
@takes(Loading)
def evaluate(
    policy: Path, data: Path, out: Path | None, freedom: float | None,
    horizon: float | None, objective: Objective, backend: str, as_json: bool, split: str,
    loading: Loading,
) -> None:  # fmt: skip
    """Compute the return of POLICY on every model of DATA.

    DATA may hold other models than those the policy was computed from, such as test models.
    A rule without a time column is followed for ever, or over --horizon N decisions.
    Regret is what the policy loses against each model's own best policy. Unless --objective says
    otherwise, what counts is what the file says that the policy was solved for.
    """
    import mmdp

    check_out(out, data, policy)
    model = loading.read(data, split, quiet=as_json)
    followed = over(mmdp.load_policy(policy, model), model.horizon if horizon is None else horizon)
    followed.check_horizon(horizon)
    if click.get_current_context().get_parameter_source("objective") is ParameterSource.DEFAULT:
        objective = mmdp.io.load_objective(policy) or objective
    with Working("evaluating", quiet=as_json):
        found = mmdp.evaluate(followed, model, backend=backend)
        found.summary()  # regret is computed when first asked for: do it while the line shows
        free = None
        if freedom is not None:
            free = mmdp.freedom(followed, model, freedom, objective=objective)
    if out is not None:
        write_csv(found.to_frame(), out)
    if as_json:
        document = _document(found, policy, data, split, out, objective)
        shares = {} if free is None else {"free": free.share, "free_alone": free.share_alone}
        show_json(document | shares)
        return
    introduce(data, model)
    known = found.summary()
    facts = {title: known[key] for key, title in FIGURES.items() if key in known}
    if not objective.linear:
        facts = {objective.name: found.value(objective)} | facts
    show_facts(f"{policy}, horizon {followed.horizon}", aligned(facts))
    if free is not None:
        print(f"{free.text}.")
    if out is not None:
        print(f"returns by model written to {out}")


def _document(
    found: Evaluation, policy: Path, data: Path, split: str, out: Path | None, objective: Objective
) -> dict[str, Any]:
    assert found.provenance is not None
    return {
        "policy": policy, "data": data, "split": split, "horizon": found.provenance.horizon,
        "objective": str(objective), "value": found.value(objective),
        **found.summary(), "best": found.best, "models": found.model_labels,
        "weights": found.weights, "returns": found.returns, "regret": found.regret,
        "backend": found.provenance.backend, "version": __version__, "out": out,
    }  # fmt: skip
