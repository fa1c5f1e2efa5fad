"""mmdp info: a description of models, of the methods and of the system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmdp.cli import options
from mmdp.cli.console import list_assumptions, print_assumptions, print_facts, print_json
from mmdp.cli.methods import print_methods
from mmdp.cli.options import LoadArgs, command, with_options
from mmdp.cli.system import describe_system, print_system
from mmdp.cli.types import INPUT
from mmdp.core.methods.registry import list_capabilities
from mmdp.core.text import format_with_unit, pluralize, summarize_labels

if TYPE_CHECKING:
    from mmdp import MMDP


@command("mmdp info", "mmdp info data/riverswim", "mmdp info models.npz --json")
@click.argument("data", type=INPUT, required=False, help="The models to describe.")
@options.as_json
@options.split
@with_options(LoadArgs)
def info(data: Path | None, as_json: bool, split: str, load_args: LoadArgs) -> None:
    """Describe DATA; without it, the methods and what mmdp runs on.

    Of DATA: its sizes, labels, rewards and storage, and what had to be assumed, such as an
    initial distribution that is not given.

    Of mmdp, for bug reports too: what each method can do, versions, threads, devices, and whether
    each backend computes what numpy does. A policy with a belief has to see what happens at every
    step; one without needs only the time and the state. --json has the options of each method.
    """
    if data is None:
        if as_json:
            methods = {row.name: row._asdict() for row in list_capabilities()}
            print_json({"methods": methods, "system": describe_system(quiet=True)})
        else:
            print_methods()
            print()
            print_system()
        return
    model = load_args.read_models(data, split, quiet=as_json)
    if as_json:
        print_json({"data": data, **_describe_model(model)})
    else:
        print_facts(str(data), _format_facts(model))
        print_assumptions(model)


def _describe_model(model: MMDP) -> dict[str, Any]:
    """Everything that ``info`` knows about a model."""
    import numpy as np

    from mmdp.core.kernels.rewards import iter_blocks

    reward_blocks = [r[:, model.allowed[states]] for states, r in iter_blocks(model.problem.r)]
    reward_ranges = [(r.min(), r.max()) for r in reward_blocks if r.size]
    weights = model.weights
    return {
        "name": model.name,
        "models": model.n_models,
        "states": model.n_states,
        "actions": model.n_actions,
        "horizon": model.horizon,
        "discount": model.discount,
        "times": {x.name: x.labels} if (x := model.time_labels).labels else None,
        "unit": model.unit,
        "initial_given": model.has_initial,
        "initial_per_model": model.initial.ndim > 1,
        "initial_states": int(model.problem.initial.any(axis=1).sum()),
        "weights_uniform": bool(np.ptp(weights) <= 1e-12),
        "weights_range": [weights.min(), weights.max()],
        "not_allowed": int((~model.allowed).sum()),
        "pairs": model.allowed.size,
        "reward_range": [min(x for x, _ in reward_ranges), max(y for _, y in reward_ranges)],
        "next_rewards": model.has_next_rewards,
        "models_change": model.is_switching,
        "terminal": bool(model.terminal.any()),
        "storage": model.storage,
        "density": model.density,
        "memory": model.nbytes,
        "labels": {
            axis: getattr(model, f"{axis}_labels")
            for axis, has_own_labels in model.has_labels.items()
            if has_own_labels
        },
        "parameters": sorted(model.parameters),
        "citation": model.citation,
        "warnings": list_assumptions(model),
    }


def _format_facts(model: MMDP) -> list[tuple[str, str]]:
    from mmdp.core.text import format_bytes

    facts = _describe_model(model)
    lowest, highest = facts["weights_range"]
    low, high = (f"{x:,.6g}" for x in facts["reward_range"])
    reward_text = "per next state" if facts["next_rewards"] else "per state and action"
    has_labels = model.has_labels
    per_model_text = ", each model its own" if model.initial.ndim > 1 else ""
    rows = [
        ("models", summarize_labels(model.model_labels, has_labels["model"])),
        ("states", summarize_labels(model.state_labels, has_labels["state"])),
        ("actions", summarize_labels(model.action_labels, has_labels["action"])),
        ("horizon", f"{model.horizon} (time-varying)" if model.horizon else "any"),
        *model.time_labels.summary_rows,
        ("discount", f"{model.discount:g}"),
        (
            "initial",
            f"given, {pluralize(facts['initial_states'], 'state')} possible{per_model_text}"
            if model.has_initial
            else "uniform (not given)",
        ),
        ("weights", "uniform" if facts["weights_uniform"] else f"{lowest:.4g} to {highest:.4g}"),
        ("not allowed", f"{facts['not_allowed']:,} of {facts['pairs']:,} state-action pairs"),
        ("rewards", f"{low} to {format_with_unit(high, model.unit)}, {reward_text}"),
        ("storage", f"{model.storage}, density {model.density:.3g}, {format_bytes(model.nbytes)}"),
    ]
    if facts["models_change"]:
        rows.insert(1, ("change", "the model changes by a chain of its own"))
    if facts["terminal"]:
        rows.insert(-1, ("terminal", "values of ending in a state are given"))
    if facts["parameters"]:
        rows.append(("parameters", ", ".join(facts["parameters"])))
    if model.citation:
        rows.append(("source", model.citation))
    return rows
