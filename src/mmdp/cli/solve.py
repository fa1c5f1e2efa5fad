"""mmdp solve, evaluate and bound: one policy for all models, its returns, and the most possible."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import mmdp
from mmdp.cli.console import (
    ADVANCED,
    EXIT_FAILED,
    Data,
    check_order,
    pick,
    print_facts,
    print_json,
    print_model,
    repeat_policy,
    try_to_write,
    write_csv,
)
from mmdp.cli.signatures import command, to_flag
from mmdp.cli.types import PathParam, TableFile, TextParam, find_named
from mmdp.core.bounds import BOUND_METHODS
from mmdp.core.errors import InputError
from mmdp.core.methods.registry import METHODS, require_markov_method
from mmdp.core.objectives import Objective
from mmdp.core.policies import POLICY_CLASSES, PolicyClass
from mmdp.core.solution import SCOPE_NAMES
from mmdp.core.text import format_bound, format_column, format_seconds
from mmdp.core.timing import progress_line

METHOD_OPTIONS = ("init", "n_init", "max_iter", "n_episodes")
CLASS_OPTIONS = {  # options of policy classes, and the class that they imply
    "groups": "tied",
    "max_nodes": "memory",
    "max_leaves": "tree",
    "features": "tree",
    "randomized": None,
}
PREVIEW_ROWS = 20  # of a policy that is not written to a file

PolicyFile = Annotated[Path, PathParam(".csv", ".parquet", ".json")]
CheckpointFile = Annotated[Path, PathParam(".json")]
BoundMethod = Annotated[str, TextParam("NAME", role="bound", words=BOUND_METHODS)]


@command(
    "mmdp solve data/riverswim --horizon 50 --certify-time 30 --out policy.csv",
    "mmdp solve data/hiv -T 15 --objective cvar:0.1 --max-leaves 4 -o tree.json",
    "mmdp solve data/riverswim --horizon inf --out rule.csv",
    sources=[
        "mmdp.core.solve:solve",
        "mmdp.core.methods.cadp:CADP init n_init max_iter",
        "mmdp.core.methods.belief:QMDP n_episodes",
        "mmdp.core.policies:Tied groups",
        "mmdp.core.policies:Memory max_nodes",
        "mmdp.core.policies:Tree max_leaves features",
        "mmdp.core.policies:Markov randomized",
    ],
    advanced=f"backend checkpoint init max_iter n_episodes groups features quiet {ADVANCED}",
)
def solve(
    data: Data,
    *,
    out: PolicyFile | None = None,
    checkpoint: CheckpointFile | None = None,
    as_json: bool = False,
    quiet: bool = False,
    **options: Any,
) -> int:
    """Compute one policy for all models of DATA.

    Ctrl-C (exit status 130) and --time-limit give the best policy so far. If --out cannot be
    written, the policy is printed, and the exit status is 1.

    Parameters
    ----------
    out
        Write the policy: .csv, .parquet or .json.
    quiet
        Print nothing but errors.
    """
    from mmdp.data.io.policies import policy_to_dict

    name, horizon = options.pop("method"), options.pop("horizon", None)
    method_options = {key: options.pop(key) for key in METHOD_OPTIONS if key in options}
    class_options = {key: options.pop(key) for key in CLASS_OPTIONS if key in options}
    policy_class = make_policy_class(options.pop("policy_class", None), class_options, horizon)
    init = method_options.get("init")
    if out is not None and not (name == "grid" and out.suffix.lower() == ".json"):
        grid_hint = "write a plan for up to four models with --method grid --out policy.json"
        require_markov_method(METHODS[name], "--out writes", "leave out --out", grid_hint)
    with progress_line.open("solve", is_shown=not quiet):
        model = data.read()
        if init is not None and Path(init).is_file():
            method_options["init"] = repeat_policy(mmdp.load_policy(init, model), model, horizon)
        solution = mmdp.solve(
            model,
            horizon,
            find_named("method", METHODS, name, method_options)(**method_options),
            policy_class=policy_class,
            checkpoint=checkpoint,
            **options,
        )
    saved_path = try_to_write(partial(mmdp.save_policy, solution), out)
    if as_json:
        print_json({"data": data, **make_document(solution, init), "out": saved_path})
    elif not quiet:
        print_model(data, model)
        print_solution(solution, saved_path)
    if saved_path != out and not as_json:
        print_json(policy_to_dict(solution.policy))
    return EXIT_FAILED * (saved_path != out)


def make_policy_class(
    name: str | None, options: Mapping[str, object], horizon: float | None
) -> PolicyClass | str | None:
    """Make ``policy_class`` of :func:`mmdp.solve`, named or implied by its options."""
    implied = {to_flag(key): CLASS_OPTIONS[key] for key in options} | {"--policy-class": name}
    selected = {flag: x for flag, x in implied.items() if x is not None}
    if len({*selected.values()}) > 1:
        texts = ", ".join(f"{flag}: {x}" for flag, x in selected.items())
        raise InputError(f"options select several policy classes ({texts}); keep one")
    if not options:
        if name == "tied":
            raise InputError("a tied policy needs groups; give them with --groups FILE")
        return name
    default_name = "stationary" if horizon == math.inf else "markov"
    name = next(iter(selected.values()), default_name)
    return find_named("policy class", POLICY_CLASSES, name, options)(**options)


def make_document(solution: mmdp.Solution, init: str | None) -> dict[str, object]:
    """Make the JSON document of a solution; ``init`` is the file of its first policy."""
    provenance, certificate = solution.provenance, solution.certificate
    method_options = dict(provenance.options)
    if not isinstance(method_options.get("init", ""), str):
        method_options["init"] = init
    document = {
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
        **{f"bound_{x}": getattr(certificate, x, None) for x in ("method", "scope", "seconds")},
    }
    if getattr(solution.policy, "has_exact_returns", False):
        document["policy"] = solution.policy.defining_values
    return document


def print_solution(solution: mmdp.Solution, saved_path: Path | None) -> None:
    """Print the value, the status and the proof of a solution, and its policy in short."""
    print_facts(solution.title, solution.summary_rows)
    policy = solution.policy
    policy_text = policy.describe() if policy is not None and policy.has_rules else ""
    if saved_path is not None:
        print(f"policy written to {saved_path}")
        is_recorded = saved_path.suffix.lower() != ".csv" or solution.certificate is not None
        if not (is_recorded or solution.objective.is_mean):
            print(
                f"note: {saved_path} does not record the objective; write .json, or pass "
                f"--objective {solution.objective} to report and evaluate too"
            )
    elif not policy_text and getattr(policy, "has_exact_returns", False):
        frame = solution.to_frame().drop(columns=["idstate", "idaction"], errors="ignore")
        is_short = len(frame) <= PREVIEW_ROWS
        long_text = f"the policy has {len(frame):,} rows; write it with --out policy.csv"
        policy_text = frame.to_string(index=False) if is_short else long_text
    if policy_text:
        print(f"\n{policy_text}")


# ---------------------------------------------------------------- evaluate
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
    check_order(policy, data)
    model = data.read()
    loaded_policy = mmdp.load_policy(policy, model)
    objective = objective or loaded_policy.objective or mmdp.objectives.Mean()
    loaded_policy = repeat_policy(loaded_policy, model, horizon)
    loaded_policy.check_horizon(horizon)
    evaluation = mmdp.evaluate(model, loaded_policy, **options)
    value, summary = evaluation.value(objective), evaluation.summary()
    free_document: dict[str, object] = {}
    texts = [] if out is None else [f"returns by model written to {out}"]
    if near_optimal is not None:
        free_actions = mmdp.measures.near_optimal_actions(
            model, loaded_policy, near_optimal, objective=objective
        )
        free_document = pick(free_actions, "share_interchangeable share_near_optimal_alone")
        texts.insert(0, f"{free_actions.description}.")
    if out is not None:
        write_csv(evaluation.to_frame(), out)
    if as_json:
        print_json(
            {
                "policy": policy,
                "data": data,
                "split": data.split,
                "objective": str(objective),
                "value": value,
                **summary,
                **pick(evaluation, "best weights returns regret"),
                **pick(evaluation.provenance, "horizon backend"),
                "models": evaluation.model_labels,
                "version": mmdp.__version__,
                "out": out,
                **free_document,
            }
        )
        return
    print_model(data, model)
    facts = {objective.name: value, **summary}
    rows = zip(facts, format_column([*facts.values()]), strict=True)
    print_facts(f"{policy}, horizon {loaded_policy.horizon}", rows)
    for text in texts:
        print(text)


# ---------------------------------------------------------------- bound
@command(
    "mmdp bound data/riverswim --horizon 50",
    "mmdp bound data/hiv -T 15 --method pairs --time-limit 60 --json",
    "mmdp bound data/riverswim -T 50 --objective cvar:0.1",
    sources=["mmdp.core.bounds.api:bound"],
    advanced=f"backend seed {ADVANCED}",
)
def bound(
    data: Data, *, method: BoundMethod = "best", as_json: bool = False, **options: Any
) -> None:
    """Prove an upper bound on the value of every policy for DATA.

    The bounds oracle, qmdp and pairs hold for every policy, including those with memory. best is
    the least of them and of a dual that holds for Markov policies, which see the time and the
    state.

    Ctrl-C gives the least bound so far; the exit status is then 130.

    Parameters
    ----------
    method
        How to find a bound.
    """
    model = data.read()
    upper_bound = mmdp.bound(model, method=method, **options)
    horizon, incumbent = options.get("horizon", model.horizon), upper_bound.details.get("incumbent")
    if as_json:
        print_json(
            {
                "data": data,
                "horizon": horizon,
                "objective": str(upper_bound.objective),
                **pick(upper_bound, "value method seconds scope"),
                "incumbent": incumbent,
                "version": mmdp.__version__,
            }
        )
    else:
        facts = {
            "value": format_column([upper_bound.value], round_up=[0])[0],
            "holds for": f"every {SCOPE_NAMES[upper_bound.scope]}",
            "method": upper_bound.method,
            "seconds": format_seconds(upper_bound.seconds),
        }
        if incumbent is not None:
            gap_text = format_bound(max(upper_bound.value - incumbent, 0.0), 3)
            facts["CADP reaches"] = (
                f"{format_column([incumbent])[0]}, and no {SCOPE_NAMES[upper_bound.scope]} more "
                f"than {gap_text} above it"
            )
        print_model(data, model)
        print_facts(f"upper bound, horizon {horizon}, {upper_bound.objective.name}", facts.items())
