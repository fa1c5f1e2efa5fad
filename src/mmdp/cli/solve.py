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
    LiveLine,
    align_numbers,
    print_facts,
    print_json,
    print_model_header,
    print_table,
)
from mmdp.cli.options import (
    EXIT_INTERRUPTED,
    EXIT_NOT_WRITTEN,
    SOLVE_HEADING,
    LoadArgs,
    RunArgs,
    build_method,
    check_output_path,
    command,
    load_finite_policy,
    option,
    with_options,
    write_with_fallback,
)
from mmdp.cli.types import PATH, CountParam, NameParam, OutputFileParam, SecondsParam
from mmdp.core.errors import InputError
from mmdp.core.methods.registry import (
    METHODS,
    check_supported,
    make_sample_model,
    require_markov_method,
)
from mmdp.core.objectives import Objective
from mmdp.core.policies import (
    POLICY_CLASSES,
    Markov,
    MarkovPolicy,
    Memory,
    Stationary,
    StationaryPolicy,
    Tied,
    Tree,
)
from mmdp.core.solution import OPTIMALITY_GAP, SCOPE_NAMES, AmountSuffix, format_no_suffix
from mmdp.core.text import (
    format_bound,
    format_column,
    format_seconds,
    format_two_stderrs,
    format_with_unit,
    join_or,
    pluralize,
)

if TYPE_CHECKING:
    from mmdp import MMDP, Solution
    from mmdp.core.methods import Method
    from mmdp.core.policies import PolicyClass
    from mmdp.insight.measures import ValueAtStake

FIXED_CLASS = "fixed"  # needs actions that no option gives
SELECTABLE_CLASSES = [name for name in POLICY_CLASSES if name != FIXED_CLASS]
RANDOMIZABLE_CLASSES: dict[str, type[Markov | Stationary]] = {
    "markov": Markov,
    "stationary": Stationary,
}
INITS = ("wsu", "mvp", "random", "uniform", "mirror", "gradient")
PREVIEW_ROWS = 6
MAX_TABLE_STATES = 30  # of a stationary policy that is shown as a table


@dataclass(frozen=True)
class MethodArgs:
    """The method and its options; None if not given."""

    method: Annotated[
        str,
        option(
            "--method",
            "-m",
            type=NameParam("method", METHODS),
            metavar="NAME",
            default="cadp",
            show_default=True,
            heading=SOLVE_HEADING,
            help=f"{join_or(METHODS)}; see mmdp info.",
        ),
    ]
    init: Annotated[
        str | None,
        option(
            "--init",
            is_advanced=True,
            metavar="START",
            heading=SOLVE_HEADING,
            help=f"The policy to improve first: {join_or([*INITS, 'a policy file'])}.",
        ),
    ]
    n_init: Annotated[
        int | str | None,
        option(
            "--n-init",
            type=CountParam(),
            metavar="auto|K",
            heading=SOLVE_HEADING,
            help="Number of initial policies; the best result is kept.",
        ),
    ]
    max_iter: Annotated[
        int | None,
        option(
            "--max-iter",
            is_advanced=True,
            type=int,
            metavar="N",
            heading=SOLVE_HEADING,
            help="Stop after N iterations.",
        ),
    ]
    n_episodes: Annotated[int | None, options.n_episodes]

    def build(self, **others: Any) -> Method:
        field_values = dataclasses.asdict(self) | others
        return build_method(field_values.pop("method"), field_values)

    def build_for(self, model: MMDP, horizon: float | None) -> Method:
        """The method; its start may be a policy file for this model."""
        if self.init is None or self.init in INITS:
            return self.build()
        if not Path(self.init).exists():
            raise InputError(
                f"--init {self.init}: no start and no file has this name; "
                f"choose {join_or([*INITS, 'a policy file'])}"
            )
        return self.build(init=load_finite_policy(self.init, model, horizon, "--init starts from"))


@dataclass(frozen=True)
class PolicyClassArgs:
    """What a decision may depend on; None if not given."""

    policy_class: Annotated[
        str | None,
        option(
            "--policy-class",
            type=NameParam("policy class", POLICY_CLASSES),
            metavar="CLASS",
            heading=SOLVE_HEADING,
            help=f"What a decision may depend on: {join_or(SELECTABLE_CLASSES)}.",
        ),
    ]
    groups: Annotated[
        Path | None,
        option(
            "--groups",
            is_advanced=True,
            type=PATH,
            metavar="FILE",
            heading=SOLVE_HEADING,
            help="Take the same action in all states of a group: a CSV with state,group.",
        ),
    ]
    monotone: Annotated[
        bool,
        option(
            "--monotone",
            is_advanced=True,
            is_flag=True,
            heading=SOLVE_HEADING,
            help="Never take a lower action in a higher state, in the order of the data.",
        ),
    ]
    max_nodes: Annotated[
        int | None,
        option(
            "--max-nodes",
            type=int,
            metavar="N",
            heading=SOLVE_HEADING,
            help="A flow chart with at most N nodes of memory.",
        ),
    ]
    max_leaves: Annotated[
        int | None,
        option(
            "--max-leaves",
            type=int,
            metavar="N",
            heading=SOLVE_HEADING,
            help="A decision tree with at most N leaves.",
        ),
    ]
    features: Annotated[Path | None, options.features]
    randomized: Annotated[
        bool,
        option(
            "--randomized",
            is_flag=True,
            heading=SOLVE_HEADING,
            help="Actions may be drawn at random.",
        ),
    ]

    def build(self, horizon: float | None) -> PolicyClass | str | None:
        """The argument ``policy`` of :func:`mmdp.solve`."""
        implied = {
            "tied": self.groups is not None,
            "monotone": self.monotone,
            "memory": self.max_nodes is not None,
            "tree": self.max_leaves is not None or self.features is not None,
            self.policy_class or "": self.policy_class is not None,
        }
        names = [name for name, is_given in implied.items() if is_given]
        if len(names) > 1:
            raise InputError(
                f"options select several policy classes ({', '.join(names)}); keep one"
            )
        if names == [FIXED_CLASS]:
            raise InputError(
                "a fixed policy needs its actions: in Python only, by mmdp.policies.Fixed(actions)"
            )
        if names == ["tied"] and self.groups is None:
            raise InputError("a tied policy needs groups; give them with --groups FILE")
        if self.randomized:
            name = next(iter(names), "stationary" if horizon == math.inf else "markov")
            if name not in RANDOMIZABLE_CLASSES:
                raise InputError(
                    f"a {name} policy draws no actions, only one that is "
                    f"{join_or(RANDOMIZABLE_CLASSES)}; leave "
                    "out --randomized"
                )
            return RANDOMIZABLE_CLASSES[name](randomized=True)
        if self.max_nodes is not None:
            return Memory(self.max_nodes)
        if names == ["tree"]:
            return Tree(
                Tree.max_leaves if self.max_leaves is None else self.max_leaves, self.features
            )
        return Tied(self.groups) if self.groups is not None else next(iter(names), None)


@command(
    "mmdp solve data/riverswim --horizon 50 --certify-time 30 --out policy.csv",
    "mmdp solve data/hiv -T 15 --objective cvar:0.1 --max-leaves 4 -o tree.json",
    "mmdp solve data/riverswim --horizon inf --out rule.csv",
)
@options.data
@options.horizon
@option(
    "--out",
    "-o",
    type=OutputFileParam(".csv", ".parquet", ".json"),
    metavar="FILE",
    help="Write the policy: .csv, .parquet or .json.",
)
@option(
    "--certify-time",
    type=SecondsParam(),
    help="Seconds to spend on a proof of how good the policy is.",
)
@options.objective
@option(
    "--checkpoint",
    is_advanced=True,
    type=OutputFileParam(".json"),
    metavar="FILE",
    help="Keep the best policy so far in FILE, and start from it if it is there.",
)
@with_options(MethodArgs)
@with_options(PolicyClassArgs)
@with_options(RunArgs)
@options.as_json
@option("--quiet", "-q", is_flag=True, is_advanced=True, help="Print nothing but errors.")
@options.split
@with_options(LoadArgs)
def solve(
    data: Path,
    horizon: float | None,
    out: Path | None,
    certify_time: float | None,
    checkpoint: Path | None,
    objective: Objective,
    method_args: MethodArgs,
    policy_class_args: PolicyClassArgs,
    run_args: RunArgs,
    as_json: bool,
    quiet: bool,
    split: str,
    load_args: LoadArgs,
) -> int:
    """Compute one policy for all models of DATA.

    Ctrl-C (exit status 130) and --time-limit give the best policy so far. If --out cannot be
    written, the policy is saved elsewhere or printed, and the exit status is 1.
    """
    import mmdp
    from mmdp.data.io.policies import policy_to_dict
    from mmdp.insight.measures import with_memory_gain

    policy_class, method_class = policy_class_args.build(horizon), METHODS[method_args.method]
    # what cannot be done is reported before anything is read
    check_supported(method_args.build(), make_sample_model(), horizon or 2, objective, policy_class)
    check_output_path(out, data, method_args.init, checkpoint)
    is_grid = method_class is mmdp.methods.BeliefGrid
    if out is not None and not (is_grid and out.suffix.lower() == ".json"):
        grid_hint = "write a plan for up to four models with --method grid --out policy.json"
        remedies = ["give --out policy.json"] if is_grid else ["leave out --out", grid_hint]
        require_markov_method(
            method_class, f"a {out.suffix} file holds" if is_grid else "--out writes", *remedies
        )
    if certify_time is not None:
        bound_hint = "bound every policy by mmdp bound DATA --method pairs"
        require_markov_method(method_class, "--certify-time bounds", "leave it out", bound_hint)
    is_silent = quiet or as_json
    model = load_args.read_models(data, split, quiet=is_silent)
    method = method_args.build_for(
        model, math.inf if policy_class_args.policy_class == "stationary" else horizon
    )
    message = f"solving with {method_args.method}"
    with LiveLine(message, quiet=is_silent) as live_line:
        solution = mmdp.solve(
            model,
            horizon,
            method,
            objective=objective,
            policy_class=policy_class,
            **dataclasses.asdict(run_args),
            certify_time=certify_time,
            checkpoint=checkpoint,
            callback=live_line.show_progress,
        )
        if certify_time is not None and solution.status.name != "INTERRUPTED":
            solution = with_memory_gain(model, solution, time_limit=certify_time)
    requested_path = out
    if requested_path is not None:
        out = write_with_fallback(partial(mmdp.save_policy, solution), requested_path)
    if as_json:
        print_json(make_document(solution, data, out, method_args.init))
    elif not quiet:
        print_solution(solution, model, data, out)
    if out != requested_path:
        if out is None and is_grid and not as_json:
            print_json(policy_to_dict(solution.policy))
        elif out is None and not as_json:
            print(solution.to_frame().to_csv(index=False), end="")
        return EXIT_NOT_WRITTEN
    return EXIT_INTERRUPTED if live_line.is_set or solution.status.name == "INTERRUPTED" else 0


def make_document(
    solution: Solution, data: Path, out: Path | None, init: str | None
) -> dict[str, Any]:
    """Make the JSON document of a solution."""
    evaluation, provenance, certificate = (
        solution.evaluation,
        solution.provenance,
        solution.certificate,
    )
    method_options = dict(provenance.options)
    if "init" in method_options and not isinstance(method_options["init"], str):
        method_options["init"] = init
    document = {
        "data": data,
        "method": solution.method,
        "horizon": provenance.horizon,
        "policy_class": provenance.policy_class.name,
        "restriction_cost": solution.restriction_cost,
        "randomization_gain": solution.details.get("randomization_gain"),
        "objective": str(solution.objective),
        "value": solution.value,
        "mean": evaluation.mean,
        "stderr": evaluation.stderr,
        "sd": evaluation.sd,
        "worst": evaluation.worst,
        "cvar10": evaluation.cvar(0.1),
        "bound": solution.bound,
        "gap": solution.gap,
        "bound_method": None if certificate is None else certificate.method,
        "bound_scope": None if certificate is None else certificate.scope,
        "status": solution.status.name,
        "status_text": solution.status_text,
        "iterations": solution.iterations,
        "seconds": solution.seconds,
        "bound_seconds": None if certificate is None else certificate.seconds,
        "options": method_options,
        "seed": provenance.seed,
        "backend": provenance.backend,
        "version": provenance.version,
        "trace": solution.trace,
        "out": out,
    }
    if out is None and getattr(solution.policy, "has_exact_returns", False):
        document["policy"] = solution.policy.arrays
    return document


def describe_bound(solution: Solution, format_share: AmountSuffix = format_no_suffix) -> str:
    """Say how good the policy is proven to be; ``format_share`` adds a share to an amount."""
    assert solution.certificate is not None
    assert solution.gap is not None
    value_text, bound_text = format_column([solution.value, solution.bound], round_up=[1])
    scope_text = SCOPE_NAMES[solution.certificate.scope]
    gap = max(solution.certificate.value - solution.value, 0.0)
    amount_text = format_with_unit(format_bound(gap, 3), solution.evaluation.unit)
    gap_text = f"{amount_text}{format_share(gap)}"
    if solution.status.name == "OPTIMAL":
        tolerance_text = f" by more than {gap_text}" if solution.gap > OPTIMALITY_GAP else ""
        return f"value {value_text}, proven optimal: no {scope_text} is better{tolerance_text}"
    limit_text = f"the best {scope_text} could have up to {gap_text} more"
    return f"value {value_text}, at most {bound_text}: {limit_text}"


def print_solution(solution: Solution, model: MMDP, data: Path, out: Path | None) -> None:
    """Print the value, the status and the proof of a solution, and its policy if it is small."""
    print_model_header(data, model)
    stake = _compute_stake(solution, model)
    print_facts(solution.title, _format_facts(solution, stake))
    policy_text = "" if solution.policy is None else solution.policy.describe()
    if solution.certificate is not None:
        print(
            textwrap.fill(
                describe_bound(solution, partial(stake.format_share, round_up=True)), WIDTH
            )
        )
    if out is not None:
        print(f"policy written to {out}")
        if solution.certificate is not None:
            from mmdp.data.io.policies import make_certificate_path

            certificate_path = make_certificate_path(out) if out.suffix.lower() == ".csv" else out
            print(f"its proof is kept in {certificate_path}")
        if policy_text:
            print(f"\n{policy_text}")
    elif solution.policy is None:
        print("each model has a policy of its own; no single policy can do better")
    elif solution.evaluation.standard_errors is not None:
        episodes = pluralize(solution.evaluation.details["n_episodes"], "episode")
        print(f"simulated, {episodes} per model; a policy with memory has no table of actions")
    elif policy_text:
        print(f"\n{policy_text}")
    elif isinstance(solution.policy, (MarkovPolicy, StationaryPolicy)):
        print_policy(solution.policy, model)


def _compute_stake(solution: Solution, model: MMDP) -> ValueAtStake:
    """What is at stake, if an amount is shown that may be a share of it; else nothing."""
    from mmdp.insight.measures import ValueAtStake, value_at_stake

    shows_amount = (
        solution.certificate or solution.restriction_cost_text or solution.randomization_text
    )
    can_compute = bool(shows_amount) and getattr(solution.policy, "has_exact_returns", False)
    return value_at_stake(model, solution) if can_compute else ValueAtStake(0.0, "", model.unit)


def _format_facts(solution: Solution, stake: ValueAtStake) -> list[tuple[str, str]]:
    evaluation = solution.evaluation
    mean_fact = {} if solution.objective.is_mean else {"mean": evaluation.mean}
    facts = align_numbers(
        {
            "value": solution.value,
            **mean_fact,
            "sd": evaluation.sd,
            "worst": evaluation.worst,
            "CVaR 10%": evaluation.cvar(0.1),
        }
    )
    if evaluation.standard_errors is not None and not mean_fact:
        facts[0] = ("value", f"{facts[0][1]} ± {format_two_stderrs([evaluation.stderr])[0]}")
    facts += [
        ("status", f"{solution.status.name}: {solution.status_text}"),
        ("iterations", f"{solution.iterations:,}{_format_n_init(solution)}"),
        ("seconds", f"{format_seconds(solution.seconds)} ({solution.provenance.backend})"),
    ]
    if solution.restriction_cost_text:
        facts.insert(1, ("restriction", solution.describe_restriction_cost(stake.format_share)))
    if solution.randomization_text:
        facts.append(("random", solution.describe_randomization(stake.format_share)))
    if solution.memory_text:
        facts.append(("memory", f"{solution.memory_text}; try --max-nodes 3"))
    if stake.amount:
        facts.insert(1, ("at stake", stake.description))
    certificate = solution.certificate
    if certificate is not None:
        time_text = f"{format_seconds(certificate.seconds)} of these seconds, compilation included"
        facts.append(("proof", f"by {certificate.method}, {time_text}"))
    return facts


def _format_n_init(solution: Solution) -> str:
    inits = solution.details.get("inits", [])
    return f", best of {pluralize(len(inits), 'start')}" if len(inits) > 1 else ""


def print_policy(policy: MarkovPolicy | StationaryPolicy, model: MMDP) -> None:
    """The policy as a small table, equal times together; or a hint if it is large."""
    labels, names = model.action_labels, model.state_labels
    table, suffix = (
        policy.to_map_rows()[0].tolist(),
        "" if policy.is_deterministic else ", most probable",
    )
    if policy.horizon == math.inf and policy.n_states <= MAX_TABLE_STATES:
        print("\npolicy: action by state")
        action_texts = [policy.describe_action([s]) for s in range(policy.n_states)]
        print_table(("state", "action"), list(zip(names, action_texts, strict=True)), n_left=2)
        return
    max_label_width = max(map(len, labels))
    if len("time 000-000") + sum(max(len(name), max_label_width) + 2 for name in names) > WIDTH:
        print(
            f"the policy has {len(table):,} x {policy.n_states:,} entries; "
            "write it with --out policy.csv"
        )
        return
    spans = _group_equal_times(table)
    rows = [
        (policy.time_labels.format_range(a, b, "-"), *(labels[i] for i in actions))
        for a, b, actions in spans[:PREVIEW_ROWS]
    ]
    print(f"\npolicy: action by {policy.time_labels.name} and state{suffix}")
    print_table((policy.time_labels.name, *names), rows, n_left=1 + len(names))
    if len(spans) > PREVIEW_ROWS:
        print(f"and {pluralize(len(spans) - PREVIEW_ROWS, 'more row')}; all with --out policy.csv")


def _group_equal_times(table: list[list[int]]) -> list[tuple[int, int, list[int]]]:
    """First and last time of each run of equal rows.

    >>> _group_equal_times([[0, 1], [0, 1], [1, 1]])
    [(0, 1, [0, 1]), (2, 2, [1, 1])]
    """
    spans: list[tuple[int, int, list[int]]] = []
    for t, row in enumerate(table):
        if spans and spans[-1][2] == row:
            spans[-1] = (spans[-1][0], t, row)
        else:
            spans.append((t, t, row))
    return spans
