"""mmdp solve: one policy for all models."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmdp.cli import options
from mmdp.cli.console import (
    WIDTH,
    Working,
    aligned,
    introduce,
    show_facts,
    show_json,
    show_table,
)
from mmdp.cli.options import (
    DECIDING,
    INTERRUPTED,
    NOT_WRITTEN,
    Loading,
    Running,
    build_method,
    check_out,
    command,
    given_policy,
    option,
    takes,
    write_somewhere,
)
from mmdp.cli.types import PATH, Count, Name, OutFile, Seconds
from mmdp.errors import InputError
from mmdp.methods.table import (
    METHODS,
    able,
    asked,
    need_table,
    sample,
)
from mmdp.objective import Objective
from mmdp.policy import KINDS, Markov, Memory, Stationary, Tied, Tree
from mmdp.solution import POLICIES, PROVEN, Part, no_part
from mmdp.words import at_most, clock, counted, either, figures, two_errors

if TYPE_CHECKING:
    from mmdp import MMDP, MarkovPolicy, Solution, StationaryPolicy
    from mmdp.measures import Stake
    from mmdp.methods import Method
    from mmdp.policy import PolicyKind

FIXED = "fixed"  # needs actions that no option gives
BY_NAME = [name for name in KINDS if name != FIXED]
DRAWING: dict[str, type[Markov | Stationary]] = {"markov": Markov, "stationary": Stationary}
STARTS = ("wsu", "mvp", "random", "uniform", "mirror", "gradient")
PREVIEW_ROWS = 6
MOST_STATES = 30  # of a stationary policy that is shown as a table


@dataclass(frozen=True)
class Deciding:
    """The method and its options; None if not given."""

    method: Annotated[str, option(
        "--method", "-m", type=Name("method", METHODS), metavar="NAME", default="cadp",
        show_default=True, heading=DECIDING,
        help=f"{either(able(policy='markov', optimal=False))}; with a proof: "
        f"{either(able(policy='markov', optimal=True))}; with memory: "
        f"{either(able(policy='belief'))}; as a bound: {either(able(policy=''))}. mmdp methods "
        "says what each does.",
    )]  # fmt: skip
    init: Annotated[str | None, option(
        "--init", metavar="START", heading=DECIDING,
        help=f"The policy to improve first: {either([*STARTS, 'a policy file'])}.",
    )]  # fmt: skip
    starts: Annotated[int | str | None, option(
        "--starts", type=Count(), metavar="auto|K", heading=DECIDING,
        help="Number of starting points; the best result is kept.",
    )]  # fmt: skip
    max_iterations: Annotated[int | None, option(
        "--max-iterations", type=int, metavar="N", heading=DECIDING, help="Stop after N iterations."
    )]  # fmt: skip
    episodes: Annotated[int | None, options.episodes]

    def build(self, **others: Any) -> Method:
        given = dataclasses.asdict(self) | others
        return build_method(given.pop("method"), given)

    def build_for(self, model: MMDP, horizon: float | None) -> Method:
        """The method; its start may be a policy file for this model."""
        if self.init is None or self.init in STARTS:
            return self.build()
        if not Path(self.init).exists():
            raise InputError(
                f"--init {self.init}: no start and no file has this name; "
                f"choose {either([*STARTS, 'a policy file'])}"
            )
        return self.build(init=given_policy(self.init, model, horizon, "--init starts from"))


@dataclass(frozen=True)
class Kind:
    """What a decision may depend on; None if not given."""

    policy: Annotated[str | None, option(
        "--policy", type=Name("kind of policy", KINDS), metavar="KIND", heading=DECIDING,
        help=f"What a decision may depend on: {either(BY_NAME)}; fixed in Python only.",
    )]  # fmt: skip
    groups: Annotated[Path | None, option(
        "--groups", type=PATH, metavar="FILE", heading=DECIDING,
        help="Take the same action in all states of a group: a CSV with state,group.",
    )]  # fmt: skip
    monotone: Annotated[bool, option(
        "--monotone", is_flag=True, heading=DECIDING,
        help="Never take a lower action in a higher state, in the order of the data.",
    )]  # fmt: skip
    memory: Annotated[int | None, option(
        "--memory", type=int, metavar="N", heading=DECIDING,
        help="Let the policy remember: a flow chart of at most N nodes.",
    )]  # fmt: skip
    leaves: Annotated[int | None, option(
        "--leaves", type=int, metavar="N", heading=DECIDING,
        help="Find one small tree of questions with at most N leaves.",
    )]  # fmt: skip
    features: Annotated[Path | None, options.features]
    randomised: Annotated[bool, option(
        "--randomised", is_flag=True, heading=DECIDING,
        help="Let the policy draw its actions at random (markov and stationary policies).",
    )]  # fmt: skip

    def build(self, horizon: float | None) -> PolicyKind | str | None:
        """The argument ``policy`` of :func:`mmdp.solve`."""
        implied = {
            "tied": self.groups is not None, "monotone": self.monotone,
            "memory": self.memory is not None,
            "tree": self.leaves is not None or self.features is not None,
            self.policy or "": self.policy is not None,
        }  # fmt: skip
        names = [name for name, given in implied.items() if given]
        if len(names) > 1:
            raise InputError(f"a policy is of one kind, not {either(names, ' and ')}")
        if names == [FIXED]:
            raise InputError(
                "a fixed policy needs its actions: in Python only, by mmdp.Fixed(actions)"
            )
        if names == ["tied"] and self.groups is None:
            raise InputError("a tied policy needs groups; give them with --groups FILE")
        if self.randomised:
            name = next(iter(names), "stationary" if horizon == math.inf else "markov")
            if name not in DRAWING:
                raise InputError(
                    f"a {name} policy draws no actions, only one that is {either(DRAWING)}; leave "
                    "out --randomised"
                )
            return DRAWING[name](randomised=True)
        if self.memory is not None:
            return Memory(self.memory)
        if names == ["tree"]:
            return Tree(Tree.leaves if self.leaves is None else self.leaves, self.features)
        return Tied(self.groups) if self.groups is not None else next(iter(names), None)


@command(
    "mmdp solve data/riverswim --horizon 50 --out policy.csv",
    "mmdp solve models.npz -T 20 --starts 16 --seed 1 --time-limit 60",
    "mmdp solve data/hiv -T 15 --method gradient --json",
    "mmdp solve data/riverswim -T 50 --certify 30",
    "mmdp solve large.npz -T 50 --starts 500 --checkpoint best.json",
    "mmdp solve data/riverswim -T 50 --objective cvar:0.1 --certify 10",
    "mmdp solve data/hiv -T 5 --method exact --time-limit 60",
    "mmdp solve data/riverswim -T 50 --memory 3 --out chart.csv",
    "mmdp solve data/riverswim --horizon inf --out rule.csv",
    "mmdp solve data/hiv -T 15 --groups groups.csv",
    "mmdp solve data/riverswim -T 50 --leaves 4",
    "mmdp solve data/hiv -T inf --objective worst --randomised",
)
@options.data
@options.horizon
@option(
    "--out", "-o", type=OutFile(".csv", ".parquet", ".json"), metavar="FILE",
    help="Write the policy: .csv, .parquet or .json.",
)  # fmt: skip
@option(
    "--certify", type=Seconds(),
    help="Spend S more seconds (compilation excluded) on a proof of how much better any policy "
    "without memory could be; with --memory, any policy at all.",
)  # fmt: skip
@options.objective
@option(
    "--checkpoint", type=OutFile(".json"), metavar="FILE",
    help="Keep the best policy so far in FILE, and start from it if it is there.",
)  # fmt: skip
@takes(Deciding)
@takes(Kind)
@takes(Running)
@options.as_json
@option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@options.split
@takes(Loading)
def solve(
    data: Path, horizon: float | None, out: Path | None, certify: float | None,
    checkpoint: Path | None, objective: Objective, deciding: Deciding, kind: Kind, running: Running,
    as_json: bool, quiet: bool, split: str, loading: Loading,
) -> int:  # fmt: skip
    """Compute one policy for all models of DATA.

    The policy says which action to take at each time in each state, so that the return is high
    on average over the models, or by another --objective. The default method, CADP, improves a
    policy until no change of a single action helps.

    Ctrl-C and --time-limit give the best policy so far and say so; after Ctrl-C the exit status
    is 130. If --out cannot be written, the policy is saved elsewhere or printed, and the exit
    status is 1.
    """
    import mmdp
    from mmdp.io.policies import policy_document
    from mmdp.measures import memory_gain

    policy, chosen = kind.build(horizon), METHODS[deciding.method]
    # what cannot be done is reported before anything is read
    asked(deciding.build(), sample(), horizon or 2, objective, policy)
    check_out(out, data, deciding.init, checkpoint)
    grid = chosen is mmdp.BeliefGrid
    if out is not None and not (grid and out.suffix.lower() == ".json"):
        plan = "write a plan for up to four models with --method grid --out policy.json"
        instead = ["give --out policy.json"] if grid else ["leave out --out", plan]
        need_table(chosen, f"a {out.suffix} file holds" if grid else "--out writes", *instead)
    if certify is not None:
        every = "bound every policy by mmdp bound DATA --method pairs"
        need_table(chosen, "--certify bounds", "leave it out", every)
    silent = quiet or as_json
    model = loading.read(data, split, quiet=silent)
    method = deciding.build_for(model, math.inf if kind.policy == "stationary" else horizon)
    solving = f"solving with {deciding.method}"
    with Working(solving, quiet=silent) as working:
        solution = mmdp.solve(
            model, horizon, method, objective=objective, policy=policy,
            **dataclasses.asdict(running), certify=certify or False, checkpoint=checkpoint,
            callback=working.progress,
        )  # fmt: skip
        if certify is not None and solution.status.name != "INTERRUPTED":
            solution = memory_gain(solution, model, seconds=certify)
    wanted = out
    if wanted is not None:
        out = write_somewhere(partial(mmdp.save_policy, solution), wanted)
    if as_json:
        show_json(document(solution, data, out, deciding.init))
    elif not quiet:
        show(solution, model, data, out)
    if out != wanted:
        if out is None and grid and not as_json:
            show_json(policy_document(solution.policy))
        elif out is None and not as_json:
            print(solution.to_frame().to_csv(index=False), end="")
        return NOT_WRITTEN
    return INTERRUPTED if working.pressed or solution.status.name == "INTERRUPTED" else 0


def document(solution: Solution, data: Path, out: Path | None, init: str | None) -> dict[str, Any]:
    """What --json prints."""

    found, source, proven = solution.evaluation, solution.provenance, solution.certificate
    options = dict(source.options)
    if "init" in options and not isinstance(options["init"], str):
        options["init"] = init
    document = {
        "data": data, "method": solution.method, "horizon": source.horizon,
        "kind": source.policy.name, "price": solution.price,
        "tossing": solution.details.get("tossing"),
        "objective": str(solution.objective), "value": solution.value, "mean": found.mean,
        "stderr": found.stderr, "sd": found.sd, "worst": found.worst,
        "cvar10": found.cvar(0.1),
        "bound": solution.bound, "gap": solution.gap,
        "bound_method": None if proven is None else proven.method,
        "bounds": None if proven is None else proven.bounds,
        "status": solution.status.name,
        "status_text": solution.outcome, "iterations": solution.iterations,
        "seconds": solution.seconds,
        "bound_seconds": None if proven is None else proven.seconds,
        "options": options, "seed": source.seed,
        "backend": source.backend, "version": source.version, "trace": solution.trace,
        "out": out,
    }  # fmt: skip
    if out is None and getattr(solution.policy, "exact", False):
        document["policy"] = solution.policy.parts
    return document


def proof(solution: Solution, part: Part = no_part) -> str:
    """How good the policy is proven to be, in a sentence; ``part`` adds a share to an amount."""
    assert solution.certificate is not None
    assert solution.gap is not None
    value, most = figures([solution.value, solution.bound], up=[1])
    policy = POLICIES[solution.certificate.bounds]
    missing = max(solution.certificate.value - solution.value, 0.0)
    amount = f"{at_most(missing, 3)}{part(missing)}"
    if solution.status.name == "OPTIMAL":
        rest = f" by more than {amount}" if solution.gap > PROVEN else ""
        return f"value {value}, proven optimal: no {policy} is better{rest}"
    return f"value {value}, at most {most}: the best {policy} could have up to {amount} more"


def show(solution: Solution, model: MMDP, data: Path, out: Path | None) -> None:

    introduce(data, model)
    stake = _stake(solution, model)
    show_facts(solution.title, _facts(solution, stake))
    words = "" if solution.policy is None else solution.policy.text()
    if solution.certificate is not None:
        print(textwrap.fill(proof(solution, partial(stake.part, up=True)), WIDTH))
    if out is not None:
        print(f"policy written to {out}")
        if solution.certificate is not None:
            from mmdp.io.policies import certificate_beside

            kept = certificate_beside(out) if out.suffix.lower() == ".csv" else out
            print(f"its proof is kept in {kept}")
        if words:
            print(f"\n{words}")
    elif solution.policy is None:
        print("each model has a policy of its own; no single policy can do better")
    elif solution.evaluation.errors is not None:
        episodes = counted(solution.evaluation.details["episodes"], "episode")
        print(f"simulated, {episodes} per model; a policy with memory has no table of actions")
    elif words:
        print(f"\n{words}")
    else:
        show_policy(solution.policy, model)


def _stake(solution: Solution, model: MMDP) -> Stake:
    """What is at stake, if an amount is shown that may be a share of it; else nothing."""
    from mmdp.measures import Stake, stake

    amounts = solution.certificate or solution.price_text or solution.tossing_text
    known = bool(amounts) and getattr(solution.policy, "exact", False)
    best = max(solution.value, solution.details.get("unrestricted", -math.inf))
    return stake(solution, model, value=best) if known else Stake(0.0, "")


def _facts(solution: Solution, stake: Stake) -> list[tuple[str, str]]:
    found = solution.evaluation
    mean = {} if solution.objective.linear else {"mean": found.mean}
    facts = aligned({
        "value": solution.value, **mean, "sd": found.sd, "worst": found.worst,
        "CVaR 10%": found.cvar(0.1),
    })  # fmt: skip
    if found.errors is not None and not mean:
        facts[0] = ("value", f"{facts[0][1]} ± {two_errors([found.stderr])[0]}")
    facts += [
        ("status", f"{solution.status.name}: {solution.outcome}"),
        ("iterations", f"{solution.iterations:,}{_starts(solution)}"),
        ("seconds", f"{clock(solution.seconds)} ({solution.provenance.backend})"),
    ]
    if solution.price_text:
        facts.insert(1, ("price", solution.describe_price(stake.part)))
    if solution.tossing_text:
        facts.append(("drawing", solution.describe_tossing(stake.part)))
    if solution.memory_text:
        facts.append(("memory", f"{solution.memory_text}; try --memory 3"))
    if stake.amount:
        facts.insert(1, ("at stake", stake.text))
    proven = solution.certificate
    if proven is not None:
        spent = f"{clock(proven.seconds)} of these seconds, compilation included"
        facts.append(("proof", f"by {proven.method}, {spent}"))
    return facts


def _starts(solution: Solution) -> str:
    starts = solution.details.get("starts", [])
    return f", best of {counted(len(starts), 'start')}" if len(starts) > 1 else ""


def show_policy(policy: MarkovPolicy | StationaryPolicy, model: MMDP) -> None:
    """The policy as a small table, equal times together; or a hint if it is large."""
    labels, names = model.action_labels, model.state_labels
    table, most = policy.drawn()[0].tolist(), "" if policy.deterministic else ", most probable"
    if policy.horizon == math.inf and policy.n_states <= MOST_STATES:
        print("\npolicy: action by state")
        taken = [policy.action_text([s]) for s in range(policy.n_states)]
        show_table(("state", "action"), list(zip(names, taken, strict=True)), left=2)
        return
    widest = max(map(len, labels))
    if len("time 000-000") + sum(max(len(name), widest) + 2 for name in names) > WIDTH:
        print(
            f"the policy has {len(table):,} x {policy.n_states:,} entries; "
            "write it with --out policy.csv"
        )
        return
    spans = _equal_times(table)
    rows = [
        (policy.times.run(a, b, "-"), *(labels[i] for i in actions))
        for a, b, actions in spans[:PREVIEW_ROWS]
    ]
    print(f"\npolicy: action by {policy.times.name} and state{most}")
    show_table((policy.times.name, *names), rows, left=1 + len(names))
    if len(spans) > PREVIEW_ROWS:
        print(f"and {counted(len(spans) - PREVIEW_ROWS, 'more row')}; all with --out policy.csv")


def _equal_times(table: list[list[int]]) -> list[tuple[int, int, list[int]]]:
    """First and last time of each run of equal rows.

    >>> _equal_times([[0, 1], [0, 1], [1, 1]])
    [(0, 1, [0, 1]), (2, 2, [1, 1])]
    """
    spans: list[tuple[int, int, list[int]]] = []
    for t, row in enumerate(table):
        if spans and spans[-1][2] == row:
            spans[-1] = (spans[-1][0], t, row)
        else:
            spans.append((t, t, row))
    return spans
