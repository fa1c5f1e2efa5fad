"""mmdp report: one page about a decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from mmdp.cli import options
from mmdp.cli.console import Working, complain
from mmdp.cli.options import (
    Loading,
    Willingness,
    check_finite,
    command,
    given_policy,
    option,
    takes,
)
from mmdp.cli.types import PATH, Goal, Seconds
from mmdp.clock import unanswered
from mmdp.errors import InputError
from mmdp.objective import Objective
from mmdp.policy import markov_policy


@command(
    "mmdp report models --horizon 50 --out report.html",
    "mmdp report models --policy policy.csv --out report.html",
    "mmdp report models -T 15 --objective cvar:0.1 --out safe.html",
    "mmdp report data/hiv -T 15 --certify 10 --information",
    "mmdp report models -T 15 --effects effects.csv --thresholds 0,20000,50000",
    "mmdp report models -T 15 --effects effects.csv --thresholds 20000 --compare never=wait",
)
@options.data
@options.horizon
@options.policy
@option(
    "--out", "-o", type=PATH, metavar="FILE", default="report.html", show_default=True,
    help="The page to write.",
)  # fmt: skip
@options.rivals
@option(
    "--objective", type=Goal(), metavar="NAME",
    help="What counts over the models, such as cvar:0.1.  [default: what the policy is proven "
    "for, otherwise the mean]",
)  # fmt: skip
@option("--certify", type=Seconds(), help="Spend S seconds on a proof of how good the policy is.")
@option("--information", is_flag=True, help="Add the value of knowing each parameter.")
@option("--enough", is_flag=True, help="Check whether there are enough models (solves many times).")
@option(
    "--memory", type=int, metavar="N",
    help="Add what a policy with up to N nodes of memory gains, and its flow chart.",
)  # fmt: skip
@option("--frontier", is_flag=True, help="Add safer policies and what they cost (several solves).")
@takes(Willingness)
@options.seed()
@takes(Loading)
def report(
    data: Path, horizon: int | None, policy: Path | None, out: Path, methods: Sequence[str],
    objective: Objective | None, certify: float | None, information: bool, enough: bool,
    memory: int | None, frontier: bool, willingness: Willingness, seed: int, loading: Loading,
) -> None:  # fmt: skip
    """Write a page that explains a policy, its risks and rivals.

    The page is a single HTML file and needs no network. With --policy it is about that policy
    and its horizon, and shows what mmdp solve --certify has proven about it; otherwise CADP
    computes one for the --objective. After Ctrl-C nothing is written, and the exit status is 130.
    """
    import mmdp

    check_finite(horizon)
    with Working(f"reading {data}") as working, unanswered():
        model = loading.read(data, quiet=True)
        given = shown = None
        if policy is not None:
            instead = ["give --memory N in place of --policy", "draw it with mmdp plot chart"]
            file = given_policy(policy, model, horizon, "a report shows", instead)
            given = markov_policy(file, "a report shows")
            # a stationary one is shown as such
            shown = given_policy(policy, model, math.inf, "a report shows", instead)
        steps = horizon if given is None or horizon is not None else given.horizon
        test = loading.read_test(data, model, quiet=True)
        proof, notes = None, []
        if policy is not None:
            try:
                proof = mmdp.io.load_certificate(policy, model)
                if proof is not None and shown is not None and shown.horizon == math.inf:
                    proof = None
                    raise InputError("what is proven is about an infinite horizon")
                if proof is not None and objective not in (None, proof.objective):
                    raise InputError(f"what is proven is about {proof.objective}, not {objective}")
            except InputError as error:  # the page is about the policy all the same
                if certify is None:
                    notes = [f"no proof is shown: {error.problem}; --certify 10 proves it again"]
                    complain(f"note: {notes[0]}")
        if objective is None:
            objective = mmdp.Mean() if proof is None else proof.objective
        if certify is not None:
            working.say("proving a bound")
            proof = mmdp.bound(
                model, steps, time_limit=certify, incumbent=given, objective=objective
            )
        mmdp.report.write(
            model, out, horizon=steps, policy=shown, test=test, methods=methods, bound=proof,
            objective=objective,
            seed=seed, unseen=mmdp.report.read_unseen(data), notes=notes,
            information=True if information else None, say=working.say,
            memory=memory, frontier=True if frontier else None,
            enough=True if enough else None, resamples=20 if enough else None,
            **willingness.options(model),
        )  # fmt: skip
    print(f"report written to {out}")
