"""mmdp report: one page about a decision."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdp.cli.console import LiveLine, print_stderr
from mmdp.cli.data import ADVANCED, TrainingData
from mmdp.cli.economics import Economics, read_comparators
from mmdp.cli.files import check_finite_horizon, load_finite_policy
from mmdp.cli.signatures import command
from mmdp.core.errors import InputError
from mmdp.core.policies import require_markov
from mmdp.core.timing import propagate_interrupts

if TYPE_CHECKING:
    from mmdp import MMDP, Bound
    from mmdp.core.arguments import Seconds
    from mmdp.core.objectives import Objective


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
    """Write a page that explains a policy, its risks and rivals.

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
        Seconds to spend on a proof of how good the policy is.
    """
    import mmdp

    check_finite_horizon(options.get("horizon"))
    with LiveLine(f"reading {data}") as live_line, propagate_interrupts():
        model = data.read()
        incumbent, certificate = None, None
        if policy is not None:
            shown_policy = mmdp.load_policy(policy, model)  # stationary ones, trees and charts too
            if shown_policy.policy_class.uses_belief:
                raise InputError(
                    f"{policy}: a page shows no plan by state and belief",
                    ["draw it with mmdp plot belief"],
                )
            if not shown_policy.memory_note:
                finite_policy = load_finite_policy(
                    policy, model, options.get("horizon"), "a report shows"
                )
                incumbent = require_markov(finite_policy, "a report shows")
            options.setdefault("horizon", int((incumbent or shown_policy).horizon))
            options["policy"] = shown_policy
            try:
                certificate = _load_certificate(policy, model, shown_policy.horizon, objective)
            except InputError as error:  # the page is about the policy all the same
                if certify_time is None:
                    remedy = "--certify-time 10 proves it again"
                    options["notes"] = [f"no proof is shown: {error.message}; {remedy}"]
                    print_stderr(f"note: {options['notes'][0]}")
        test_model = data.read_test(model)
        if objective is None and certificate is not None:
            objective = certificate.objective
        if objective is None and policy is not None:
            objective = mmdp.io.load_objective(policy)
        objective = objective or mmdp.objectives.Mean()
        if certify_time is not None:
            live_line.update("proving a bound")
            certificate = mmdp.bound(
                model,
                options.get("horizon"),
                time_limit=certify_time,
                incumbent=incumbent,
                objective=objective,
            )
        options |= economics.read(model, options.get("wtp_grid"), "--wtp-grid")
        options["comparators"] = read_comparators(options.get("comparators", {}), model)
        if options.get("sample_size"):
            options["n_resamples"] = 20
        mmdp.report.write(
            model,
            out,
            test_model=test_model,
            bound=certificate,
            objective=objective,
            callback=live_line.update,
            **options,
        )
    print(f"report written to {out}")


def _load_certificate(
    file: Path, model: MMDP, horizon: float, objective: Objective | None
) -> Bound | None:
    """Load what the policy's file proves; refuse a proof about something else than the page."""
    import mmdp

    certificate = mmdp.io.load_certificate(file, model)
    if certificate is not None and horizon == math.inf:
        raise InputError("the proof is for an infinite horizon")
    if certificate is not None and objective not in (None, certificate.objective):
        raise InputError(f"the proof is for {certificate.objective}, not {objective}")
    return certificate
