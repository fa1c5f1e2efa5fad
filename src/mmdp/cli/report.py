"""mmdp report: one page about a decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from mmdp.bounds import Bound
    from mmdp.model import MMDP


@dataclass(frozen=True)
class Page:
    """What the page contains."""

    out: Annotated[Path, option(
        "--out", "-o", type=PATH, metavar="FILE", default="report.html", show_default=True,
        help="The page to write.",
    )]  # fmt: skip
    objective: Annotated[Objective | None, option(
        "--objective", type=Goal(), metavar="NAME",
        help="What counts over the models, such as cvar:0.1.  [default: what the policy is proven "
        "for, otherwise the mean]",
    )]  # fmt: skip
    certify: Annotated[float | None, option(
        "--certify", type=Seconds(), help="Spend S seconds on a proof of how good the policy is.",
    )]  # fmt: skip
    seconds: Annotated[float, option(
        "--seconds", type=Seconds(), default=20.0, show_default=True,
        help="Leave out what would take the page beyond about S seconds, and say how to get it; "
        "what the flags below ask for is always included.",
    )]  # fmt: skip
    information: Annotated[bool, option(
        "--information", is_flag=True, help="Add the value of knowing each parameter.",
    )]  # fmt: skip
    enough: Annotated[bool, option(
        "--enough", is_flag=True, help="Check whether there are enough models (solves many times).",
    )]  # fmt: skip
    memory: Annotated[int | None, option(
        "--memory", type=int, metavar="N",
        help="Add what a policy with up to N nodes of memory gains, and its flow chart.",
    )]  # fmt: skip
    frontier: Annotated[bool, option(
        "--frontier", is_flag=True, help="Add safer policies and what they cost (several solves).",
    )]  # fmt: skip

    def parts(self) -> dict[str, Any]:
        """The arguments of :func:`mmdp.report.write` for what was asked for."""
        return {
            "seconds": self.seconds, "memory": self.memory, "frontier": self.frontier or None,
            "information": self.information or None, "enough": self.enough or None,
            "resamples": 20 if self.enough else None,
        }  # fmt: skip

    def known_proof(
        self, file: Path, model: MMDP, stationary: bool
    ) -> tuple[Bound | None, list[str]]:
        """What the policy's file proves, and a note if that cannot be shown."""
        import mmdp

        try:
            proof = mmdp.io.load_certificate(file, model)
            if proof is not None and stationary:
                raise InputError("the proof is for an infinite horizon")
            if proof is not None and self.objective not in (None, proof.objective):
                raise InputError(f"the proof is for {proof.objective}, not {self.objective}")
            return proof, []
        except InputError as error:  # the page is about the policy all the same
            if self.certify is not None:
                return None, []
            return None, [f"no proof is shown: {error.problem}; --certify 10 proves it again"]


@command(
    "mmdp report models --horizon 50 --out report.html",
    "mmdp report models --policy policy.csv --seconds 60 --out report.html",
    "mmdp report models -T 15 --objective cvar:0.1 --out safe.html",
    "mmdp report data/hiv -T 15 --certify 10 --information",
    "mmdp report models -T 15 --effects effects.csv --thresholds 0,20000,50000",
    "mmdp report models -T 15 --compare today=practice.csv --compare never=wait",
)
@options.data
@options.horizon
@options.policy
@options.rivals
@takes(Page)
@takes(Willingness)
@options.seed()
@takes(Loading)
def report(
    data: Path, horizon: int | None, policy: Path | None, methods: Sequence[str], page: Page,
    willingness: Willingness, seed: int, loading: Loading,
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
        table, shown, proof, notes = None, None, None, list[str]()
        if policy is not None:
            shown = mmdp.load_policy(policy, model)  # stationary ones, trees and charts as such
            if shown.kind.learns:
                raise InputError(
                    f"{policy}: a page shows no plan by state and belief",
                    ["draw it with mmdp plot belief"],
                )
            if not shown.memory:
                file = given_policy(policy, model, horizon, "a report shows")
                table = markov_policy(file, "a report shows")
            horizon = int((table or shown).horizon) if horizon is None else horizon
            proof, notes = page.known_proof(policy, model, shown.horizon == math.inf)
            for note in notes:
                complain(f"note: {note}")
        test = loading.read_test(data, model, quiet=True)
        objective = page.objective
        if objective is None:
            known = None if policy is None else mmdp.io.load_objective(policy)
            objective = (known or mmdp.Mean()) if proof is None else proof.objective
        if page.certify is not None:
            working.say("proving a bound")
            proof = mmdp.bound(
                model, horizon, time_limit=page.certify, incumbent=table, objective=objective
            )
        mmdp.report.write(
            model, page.out, horizon=horizon, policy=shown, test=test, methods=methods, bound=proof,
            objective=objective, seed=seed, notes=notes,
            say=working.say, **page.parts(), **willingness.options(model),
        )  # fmt: skip
    print(f"report written to {page.out}")
