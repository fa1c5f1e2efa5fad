"""mmdp report, plot, export and paper: pages, pictures of a policy, a policy elsewhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import click

import mmdp
from mmdp.cli.console import (
    ADVANCED,
    TrainingData,
    check_order,
    print_json,
    print_stderr,
    print_table,
    read_comparators,
    repeat_policy,
)
from mmdp.cli.signatures import command, take_from
from mmdp.cli.types import OutputFolder, TextParam, make_keyword_type
from mmdp.core.arguments import Seconds
from mmdp.core.errors import InputError
from mmdp.core.kernels.infinite import find_truncation_horizon
from mmdp.core.objectives import Objective
from mmdp.core.policies import MarkovPolicy, Policy, require_markov
from mmdp.core.timing import progress_line, propagate_interrupts

TAIL_SHARE = 0.001  # of the weight of decisions after those that a page shows
Figure = Annotated[str, TextParam("NAME", role="picture", words="mmdp.insight.report:FIGURES")]
Target = Annotated[str, make_keyword_type("python", "javascript", "sql", "excel", "html")]


@take_from("mmdp.insight.economics.discounting:OutcomeDiscounting")
class Economics:
    """Effects and costs from a table, and how those of different times add up.

    Parameters
    ----------
    effects
        Effect and cost of actions: a CSV with state,action,effect,cost (and model, time,
        next_state).
    """

    def __init__(self, *, effects: Path | None = None, **options: Any) -> None:
        self.file, self.discounting = effects, mmdp.economics.OutcomeDiscounting(**options)

    def read(self, model: mmdp.MMDP, wtp: object, wtp_flag: str) -> dict[str, Any]:
        """Effects, costs and their discounting, if they are given; refuse one without its worth."""
        if (self.file is None) != (wtp is None):
            raise InputError(f"--effects and {wtp_flag} belong together; give both or none")
        if self.file is not None:
            effects, costs = mmdp.report.read_effects(self.file, model)
            return {"effects": effects, "costs": costs, "discounting": self.discounting}
        if self.discounting != mmdp.economics.OutcomeDiscounting():
            raise InputError("this option is about costs and effects; give --effects too")
        return {}


@command(
    "mmdp report models --horizon 50 --out report.html",
    "mmdp report models --policy policy.csv --time-limit 60 --out report.html",
    "mmdp report models -T 15 --objective cvar:0.1 --out safe.html",
    "mmdp report data/hiv -T 15 --certify-time 10 --voi",
    "mmdp report models -T 15 --effects effects.csv --wtp-grid 0,20000,50000",
    "mmdp report models -T 15 --comparator today=now.csv --comparator never=wait",
    sources=[
        "mmdp.insight.report:write horizon methods time_limit voi sample_size max_nodes frontier"
        " wtp_grid comparators seed"
    ],
    advanced=ADVANCED,
)
def report(
    data: TrainingData,
    *,
    policy: Path | None = None,
    out: Path = Path("report.html"),
    objective: Objective | None = None,
    certify_time: Seconds | None = None,
    economics: Economics,
    **options: Any,
) -> None:
    """Write a page about a policy, its risks and alternatives.

    The page is a single HTML file and needs no network. With --policy it is about that policy
    and its horizon, and shows what mmdp solve --certify-time has proven about it; otherwise CADP
    computes one for the --objective. After Ctrl-C nothing is written, and the exit status is 130.

    Parameters
    ----------
    policy
        A policy that mmdp solve wrote.
    out
        The page to write.
    objective
        Objective over the models, such as cvar:0.1; by default that of the policy's proof,
        otherwise the mean.
    certify_time
        Seconds to spend on a proof of how good the policy is; the page shows the tighter of this
        and the one in the policy's file.
    """
    incumbent = certificate = None
    with progress_line.open("report"), propagate_interrupts():
        model = _read_models(data, options.get("horizon"))
        if policy is not None:
            options["policy"] = given_policy = mmdp.load_policy(policy, model)
            incumbent = _set_horizon(given_policy, model, options)
            objective = objective or given_policy.objective
            file_certificate, reason = _load_certificate(policy, model)
            if file_certificate is not None:
                objective = objective or file_certificate.objective
                reason = _find_mismatch(file_certificate, given_policy, objective)
                certificate = None if reason else file_certificate
            if reason and certify_time is None:
                note = f"no proof is shown: {reason}; --certify-time 10 proves it again"
                options["notes"] = [note.replace("no", "No", 1)]
                print_stderr(f"note: {note}")
        if certify_time is not None:
            new_certificate = mmdp.bound(
                model,
                options.get("horizon"),
                time_limit=certify_time,
                incumbent=incumbent if isinstance(incumbent, MarkovPolicy) else None,
                objective=objective or "mean",
            )
            certificate = _choose_tighter(certificate, new_certificate)
        _read_tables(options, economics, model)
        if options.get("sample_size"):
            options["n_resamples"] = 20
        test_model = data.read_test(model)
        options |= {"test_model": test_model, "bound": certificate, "objective": objective}
        mmdp.report.write(model, out, **options)
    print(f"report written to {out}")


def _find_mismatch(certificate: mmdp.Bound, policy: Policy, objective: Objective) -> str:
    """Say for which other objective or horizon a certificate is; empty if it is for the page's."""
    is_infinite = policy.horizon == math.inf
    if not is_infinite and objective == certificate.objective:
        return ""
    horizon_text = "an infinite horizon" if is_infinite else f"{policy.horizon} decisions"
    return f"the one in the file is for the {certificate.objective.name} over {horizon_text}"


def _choose_tighter(certificate: mmdp.Bound | None, new_certificate: mmdp.Bound) -> mmdp.Bound:
    """Choose the lower of two bounds; the new one if the other leaves out Markov policies.

    The page says which policies the bound is on.
    """
    if certificate is None or certificate.scope not in ("history", "markov", new_certificate.scope):
        return new_certificate
    return min(new_certificate, certificate, key=lambda bound: bound.value)


def _read_models(data: TrainingData, horizon: float | None) -> mmdp.MMDP:
    """Read the models of a page or picture; refuse an infinite horizon, of which neither tells."""
    model = data.read()
    if horizon != math.inf:
        return model
    share_text, n_steps = "", "N"
    if 0 < model.discount < 1:
        n_steps = str(find_truncation_horizon(model.problem, TAIL_SHARE)[0])
        share_text = (
            f"at discount {model.discount:g} the first {n_steps} have {1 - TAIL_SHARE:.1%} of the "
            "weight: "
        )
    raise InputError(
        f"{data}: pages and pictures show a number of decisions; {share_text}give --horizon "
        f"{n_steps}"
    )


def _set_horizon(policy: Policy, model: mmdp.MMDP, options: dict[str, Any]) -> Policy:
    """Return the policy over the horizon, which is its own if none is given."""
    policy = repeat_policy(policy, model, options.get("horizon"))
    if policy.horizon != math.inf:
        options.setdefault("horizon", int(policy.horizon))
    return policy


def _read_tables(options: dict[str, Any], economics: Economics, model: mmdp.MMDP) -> None:
    """Read the effects, costs and policies to compare with, which the options name."""
    options |= economics.read(model, options.get("wtp_grid"), "--wtp-grid")
    options["comparators"] = read_comparators(options.get("comparators", {}), model)


def _load_certificate(policy: Path, model: mmdp.MMDP) -> tuple[mmdp.Bound | None, str]:
    """Load the certificate of a policy's file, or say why it is not about these models."""
    try:
        return mmdp.io.load_certificate(policy, model), ""
    except InputError as error:  # the page or file is about the policy all the same
        return None, error.message


@command(
    "mmdp plot policy models --horizon 50 --out policy.png",
    "mmdp plot returns models --horizon 50 --policy policy.csv --out returns.svg",
    "mmdp plot chart models --policy chart.csv --out chart.svg",
    "mmdp plot tree models --policy tree.json --out tree.svg",
    sources=["mmdp.insight.report:write horizon methods wtp_grid comparators seed"],
    advanced=ADVANCED,
)
def plot(
    figure: Figure,
    data: TrainingData,
    *,
    out: Path,
    policy: Path | None = None,
    economics: Economics,
    **options: Any,
) -> None:
    """Draw one of the report's pictures as PNG or SVG.

    A chart is the flow chart of a policy that mmdp solve --max-nodes wrote. A tree has the splits
    and leaves of a policy that mmdp solve --max-leaves wrote as .json, with the share of visits and
    what is at stake. A belief map is that of mmdp solve --method grid, or of the .json that it
    wrote.

    Parameters
    ----------
    figure
        What to draw.
    out
        A .png or .svg file.
    policy
        A policy that mmdp solve wrote.
    """
    model = _read_models(data, options.get("horizon"))
    if policy is not None:
        shown_policy = _set_horizon(mmdp.load_policy(policy, model), model, options)
        options["policy"] = shown_policy
        if figure not in ("chart", "belief") and shown_policy.horizon != math.inf:
            require_markov(shown_policy, "this picture shows")
    _read_tables(options, economics, model)
    mmdp.report.draw(model, figure, out, **options)
    print(f"{figure} drawn in {out}")


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
    """Write a policy as one file that works without mmdp.

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
    from mmdp.insight.exports import render_policy

    check_order(policy, data)
    model = None if data is None else data.read()
    loaded_policy = mmdp.load_policy(policy, model)
    bound, reason = (None, "") if model is None else _load_certificate(policy, model)
    if reason:
        print_stderr(f"note: no proof is shown: {reason}")
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


@command(
    "mmdp paper",
    "mmdp paper --full --out out/full",
    "mmdp paper --domain RS --domain HIV",
    sources=["mmdp.insight.paper.run:run_paper full domains seed n_jobs no_cache"],
)
def paper(
    *,
    out: OutputFolder = Path("out"),
    as_json: bool = False,
    **options: Any,
) -> None:
    """Compute the tables and the figure of the CADP paper.

    The paper is Su and Petrik, Solving Multi-Model MDPs by Coordinate Ascent and Dynamic
    Programming (UAI 2023). FOLDER gets results.csv, pictures and one page, paper.html, with the
    computed figures next to the printed ones.

    Results computed before with the same options are reused, also after Ctrl-C (exit status
    130).

    Parameters
    ----------
    out
        Where to write.
    """
    from mmdp.insight.paper.page import format_terminal_tables, write_results
    from mmdp.insight.paper.run import run_paper

    with progress_line.open("paper"):
        results = run_paper(out, **options)
        files = write_results(results, out)
    if as_json:
        print_json({"results": results.records, "seconds": results.seconds, "files": files})
        return
    for title, columns, rows in format_terminal_tables(results.records):
        print(f"\n{title}")
        print_table(columns, rows)
    reused_text = f", {results.n_reused} of {results.n_cells} results reused" * bool(
        results.n_reused
    )
    print(f"\n{results.seconds:.1f} s{reused_text}; open {out / 'paper.html'}")
