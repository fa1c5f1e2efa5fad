"""mmdp solve: one policy for all models."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmdp.cli.console import (
    EXIT_INTERRUPTED,
    EXIT_NOT_WRITTEN,
    WIDTH,
    LiveLine,
    align_numbers,
    pick,
    print_facts,
    print_json,
    print_model_header,
    print_table,
)
from mmdp.cli.data import ADVANCED, Data
from mmdp.cli.files import check_output_path, load_finite_policy, write_with_fallback
from mmdp.cli.signatures import command, to_flag
from mmdp.cli.types import FIXED_CLASS, PathParam
from mmdp.core.errors import InputError
from mmdp.core.methods.registry import (
    METHODS,
    check_supported,
    make_sample_model,
    require_markov_method,
)
from mmdp.core.policies import POLICY_CLASSES, MarkovPolicy, StationaryPolicy
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

INITS = ("wsu", "mvp", "random", "uniform", "mirror", "gradient")
METHOD_OPTIONS = ("init", "n_init", "max_iter", "n_episodes")
CLASS_OPTIONS = {  # options that imply a policy class
    "groups": "tied",
    "monotone": "monotone",
    "max_nodes": "memory",
    "max_leaves": "tree",
    "features": "tree",
}
RANDOMIZABLE_CLASSES = ("markov", "stationary")
PREVIEW_ROWS = 6
MAX_TABLE_STATES = 30  # of a stationary policy that is shown as a table

PolicyFile = Annotated[Path, PathParam(".csv", ".parquet", ".json")]
CheckpointFile = Annotated[Path, PathParam(".json")]


@command(
    "mmdp solve data/riverswim --horizon 50 --certify-time 30 --out policy.csv",
    "mmdp solve data/hiv -T 15 --objective cvar:0.1 --max-leaves 4 -o tree.json",
    "mmdp solve data/riverswim --horizon inf --out rule.csv",
    sources=[
        "mmdp.core.solve:solve",
        "mmdp.core.methods.cadp:CADP init n_init max_iter",
        "mmdp.core.methods.qmdp:QMDP n_episodes",
        "mmdp.core.policies:Tied groups",
        "mmdp.core.policies:Memory max_nodes",
        "mmdp.core.policies:Tree max_leaves features",
        "mmdp.core.policies:Markov randomized",
    ],
    advanced="backend checkpoint init max_iter n_episodes groups monotone features quiet "
    + ADVANCED,
)
def solve(
    data: Data,
    *,
    out: PolicyFile | None = None,
    checkpoint: CheckpointFile | None = None,
    monotone: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    **options: Any,
) -> int:
    """Compute one policy for all models of DATA.

    Ctrl-C (exit status 130) and --time-limit give the best policy so far. If --out cannot be
    written, the policy is saved elsewhere or printed, and the exit status is 1.

    Parameters
    ----------
    out
        Write the policy: .csv, .parquet or .json.
    monotone
        Never take a lower action in a higher state, in the order of the data.
    quiet
        Print nothing but errors.
    """
    import mmdp
    from mmdp.data.io.policies import policy_to_dict
    from mmdp.insight.measures import with_memory_gain

    name, horizon, certify_time = (
        options.pop("method"),
        options.pop("horizon", None),
        options.get("certify_time"),
    )
    method_options = {key: options.pop(key) for key in METHOD_OPTIONS if key in options}
    init, method_class = method_options.get("init"), METHODS[name]
    class_name = options.pop("policy_class", None)
    class_options = {key: options.pop(key) for key in CLASS_OPTIONS if key in options}
    policy_class = build_policy_class(
        class_name,
        class_options | ({"monotone": True} if monotone else {}),
        horizon,
        randomized=options.pop("randomized", False),
    )
    # what cannot be done is reported before anything is read
    check_supported(
        build_method(name, method_options),
        make_sample_model(),
        horizon or 2,
        options["objective"],
        policy_class,
    )
    check_output_path(out, data.path, init, checkpoint)
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
    model = data.read(quiet=is_silent)
    if init is not None and init not in INITS:
        init_horizon = math.inf if class_name == "stationary" else horizon
        method_options["init"] = load_finite_policy(init, model, init_horizon, "--init starts from")
    with LiveLine(f"solving with {name}", quiet=is_silent) as live_line:
        solution = mmdp.solve(
            model,
            horizon,
            build_method(name, method_options),
            policy_class=policy_class,
            checkpoint=checkpoint,
            callback=live_line.show_progress,
            **options,
        )
        if certify_time is not None and solution.status.name != "INTERRUPTED":
            solution = with_memory_gain(model, solution, time_limit=certify_time)
    requested_path = out
    if requested_path is not None:
        out = write_with_fallback(partial(mmdp.save_policy, solution), requested_path)
    if as_json:
        print_json(make_document(solution, data, out, init))
    elif not quiet:
        print_solution(solution, model, data, out)
    if out != requested_path:
        if out is None and is_grid and not as_json:
            print_json(policy_to_dict(solution.policy))
        elif out is None and not as_json:
            print(solution.to_frame().to_csv(index=False), end="")
        return EXIT_NOT_WRITTEN
    return EXIT_INTERRUPTED if live_line.is_set or solution.status.name == "INTERRUPTED" else 0


def build_method(
    name: str, options: Mapping[str, Any], format_option: Callable[[str], str] = to_flag
) -> Method:
    """Make the method of that name with these options.

    ``format_option`` spells an option in the message about one that the method does not have.
    """
    for key in options:
        owners = [n for n, m in METHODS.items() if key in inspect.signature(m).parameters]
        if name not in owners:
            raise InputError(
                f"{format_option(key)} is not an option of {name}, only of {', '.join(owners)}"
            )
    init = options.get("init")
    if isinstance(init, str) and init not in INITS and not Path(init).exists():
        raise InputError(
            f"--init {init}: no start and no file has this name; "
            f"choose {join_or([*INITS, 'a policy file'])}"
        )
    return METHODS[name](**options)


def build_policy_class(
    name: str | None, options: Mapping[str, Any], horizon: float | None, *, randomized: bool
) -> PolicyClass | str | None:
    """Build ``policy_class`` of :func:`mmdp.solve`, named or implied by its options."""
    implied = [CLASS_OPTIONS[key] for key in CLASS_OPTIONS if key in options]
    names = list(dict.fromkeys([*implied, *([] if name is None else [name])]))
    if len(names) > 1:
        raise InputError(f"options select several policy classes ({', '.join(names)}); keep one")
    name = next(iter(names), None)
    if name == FIXED_CLASS:
        raise InputError(
            "a fixed policy needs its actions: in Python only, by mmdp.policies.Fixed(actions)"
        )
    if name == "tied" and "groups" not in options:
        raise InputError("a tied policy needs groups; give them with --groups FILE")
    if not randomized:
        settings = {key: value for key, value in options.items() if key != "monotone"}
        return POLICY_CLASSES[name](**settings) if name and settings else name
    name = name or ("stationary" if horizon == math.inf else "markov")
    if name not in RANDOMIZABLE_CLASSES:
        raise InputError(
            f"a {name} policy draws no actions, only one that is {join_or(RANDOMIZABLE_CLASSES)}; "
            "leave out --randomized"
        )
    make: Callable[..., PolicyClass] = POLICY_CLASSES[name]
    return make(randomized=True)


def make_document(
    solution: Solution, data: Data, out: Path | None, init: str | None
) -> dict[str, object]:
    """Make the JSON document of a solution."""
    provenance, certificate = solution.provenance, solution.certificate
    method_options = dict(provenance.options)
    if "init" in method_options and not isinstance(method_options["init"], str):
        method_options["init"] = init
    document = {
        "data": data,
        **pick(solution, "method value restriction_cost bound gap status_text iterations seconds"),
        **pick(solution.evaluation, "mean stderr sd worst"),
        **pick(provenance, "horizon seed backend version"),
        "policy_class": provenance.policy_class.name,
        "randomization_gain": solution.details.get("randomization_gain"),
        "objective": str(solution.objective),
        "cvar10": solution.evaluation.cvar(0.1),
        "status": solution.status.name,
        "options": method_options,
        "trace": solution.trace,
        "out": out,
    }
    for name in ("method", "scope", "seconds"):
        document[f"bound_{name}"] = getattr(certificate, name, None)
    if out is None and getattr(solution.policy, "has_exact_returns", False):
        document["policy"] = solution.policy.defining_values
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


def print_solution(solution: Solution, model: MMDP, data: Data, out: Path | None) -> None:
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
    """Compute what is at stake if an amount is shown that may be a share of it; else None."""
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
    """Print the policy as a small table, equal times together, or a hint if it is large."""
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
    groups = [list(times) for _, times in groupby(range(len(table)), key=table.__getitem__)]
    return [(times[0], times[-1], table[times[0]]) for times in groups]
