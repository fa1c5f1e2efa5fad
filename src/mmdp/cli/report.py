"""mmdp report: one page about a decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmdp.cli import options
from mmdp.cli.console import LiveLine, print_stderr
from mmdp.cli.options import (
    LoadArgs,
    WtpArgs,
    check_finite_horizon,
    command,
    load_finite_policy,
    option,
    with_options,
)
from mmdp.cli.types import PATH, ObjectiveParam, SecondsParam
from mmdp.core.errors import InputError
from mmdp.core.objectives import Objective
from mmdp.core.policies import require_markov
from mmdp.core.timing import propagate_interrupts

if TYPE_CHECKING:
    from mmdp.core.bounds import Bound
    from mmdp.core.model import MMDP


@dataclass(frozen=True)
class ReportArgs:
    """What the page contains."""

    out: Annotated[
        Path,
        option(
            "--out",
            "-o",
            type=PATH,
            metavar="FILE",
            default="report.html",
            show_default=True,
            help="The page to write.",
        ),
    ]
    objective: Annotated[
        Objective | None,
        option(
            "--objective",
            type=ObjectiveParam(),
            metavar="NAME",
            help="Objective over the models, such as cvar:0.1.  [default: that of the policy's "
            "proof, otherwise mean]",
        ),
    ]
    certify_time: Annotated[
        float | None,
        option(
            "--certify-time",
            type=SecondsParam(),
            help="Spend S seconds on a proof of how good the policy is.",
        ),
    ]
    time_limit: Annotated[
        float,
        option(
            "--time-limit",
            type=SecondsParam(),
            default=20.0,
            show_default=True,
            help="Leave out sections that would take longer than about S seconds in all; those "
            "that the flags below ask for are always included.",
        ),
    ]
    voi: Annotated[
        bool,
        option(
            "--voi",
            is_flag=True,
            help="Add the value of knowing each parameter.",
        ),
    ]
    sample_size: Annotated[
        bool,
        option(
            "--sample-size",
            is_flag=True,
            help="Check whether there are enough models (solves many times).",
        ),
    ]
    max_nodes: Annotated[
        int | None,
        option(
            "--max-nodes",
            type=int,
            metavar="N",
            help="Add what a policy with up to N nodes of memory gains, and its flow chart.",
        ),
    ]
    frontier: Annotated[
        bool,
        option(
            "--frontier",
            is_flag=True,
            help="Add safer policies and what they cost (several solves).",
        ),
    ]

    def to_section_options(self) -> dict[str, Any]:
        """The arguments of :func:`mmdp.report.write` for what was asked for."""
        return {
            "time_limit": self.time_limit,
            "max_nodes": self.max_nodes,
            "frontier": self.frontier or None,
            "voi": self.voi or None,
            "sample_size": self.sample_size or None,
            "n_resamples": 20 if self.sample_size else None,
        }

    def load_certificate(
        self, file: Path, model: MMDP, is_stationary: bool
    ) -> tuple[Bound | None, list[str]]:
        """What the policy's file proves, and a note if that cannot be shown."""
        import mmdp

        try:
            certificate = mmdp.io.load_certificate(file, model)
            if certificate is not None and is_stationary:
                raise InputError("the proof is for an infinite horizon")
            if certificate is not None and self.objective not in (None, certificate.objective):
                raise InputError(f"the proof is for {certificate.objective}, not {self.objective}")
            return certificate, []
        except InputError as error:  # the page is about the policy all the same
            if self.certify_time is not None:
                return None, []
            return None, [f"no proof is shown: {error.message}; --certify-time 10 proves it again"]


@command(
    "mmdp report models --horizon 50 --out report.html",
    "mmdp report models --policy policy.csv --time-limit 60 --out report.html",
    "mmdp report models -T 15 --objective cvar:0.1 --out safe.html",
    "mmdp report data/hiv -T 15 --certify-time 10 --voi",
    "mmdp report models -T 15 --effects effects.csv --wtp-grid 0,20000,50000",
    "mmdp report models -T 15 --comparator today=now.csv --comparator never=wait",
)
@options.data
@options.horizon
@options.policy
@options.methods_option
@with_options(ReportArgs)
@with_options(WtpArgs)
@options.seed()
@with_options(LoadArgs)
def report(
    data: Path,
    horizon: int | None,
    policy: Path | None,
    methods: Sequence[str],
    report_args: ReportArgs,
    wtp_args: WtpArgs,
    seed: int,
    load_args: LoadArgs,
) -> None:
    """Write a page that explains a policy, its risks and rivals.

    The page is a single HTML file and needs no network. With --policy it is about that policy
    and its horizon, and shows what mmdp solve --certify-time has proven about it; otherwise CADP
    computes one for the --objective. After Ctrl-C nothing is written, and the exit status is 130.
    """
    import mmdp

    check_finite_horizon(horizon)
    with LiveLine(f"reading {data}") as live_line, propagate_interrupts():
        model = load_args.read_models(data, quiet=True)
        incumbent, shown_policy, certificate, notes = None, None, None, list[str]()
        if policy is not None:
            shown_policy = mmdp.load_policy(
                policy, model
            )  # stationary ones, trees and charts as such
            if shown_policy.policy_class.uses_belief:
                raise InputError(
                    f"{policy}: a page shows no plan by state and belief",
                    ["draw it with mmdp plot belief"],
                )
            if not shown_policy.memory_note:
                finite_policy = load_finite_policy(policy, model, horizon, "a report shows")
                incumbent = require_markov(finite_policy, "a report shows")
            horizon = int((incumbent or shown_policy).horizon) if horizon is None else horizon
            certificate, notes = report_args.load_certificate(
                policy, model, shown_policy.horizon == math.inf
            )
            for note in notes:
                print_stderr(f"note: {note}")
        test_model = load_args.read_test_models(data, model, quiet=True)
        objective = report_args.objective
        if objective is None:
            file_objective = None if policy is None else mmdp.io.load_objective(policy)
            objective = (
                (file_objective or mmdp.objectives.Mean())
                if certificate is None
                else certificate.objective
            )
        if report_args.certify_time is not None:
            live_line.update("proving a bound")
            certificate = mmdp.bound(
                model,
                horizon,
                time_limit=report_args.certify_time,
                incumbent=incumbent,
                objective=objective,
            )
        mmdp.report.write(
            model,
            report_args.out,
            horizon=horizon,
            policy=shown_policy,
            test_model=test_model,
            methods=methods,
            bound=certificate,
            objective=objective,
            seed=seed,
            notes=notes,
            callback=live_line.update,
            **report_args.to_section_options(),
            **wtp_args.to_report_options(model),
        )
    print(f"report written to {report_args.out}")
