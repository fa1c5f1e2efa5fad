"""mmdp info: what a file or folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdp.cli import options
from mmdp.cli.console import note_assumptions, show_facts, show_json, warnings
from mmdp.cli.options import Loading, command, takes
from mmdp.words import counted, listed

if TYPE_CHECKING:
    from mmdp import MMDP


@command("mmdp info data/riverswim", "mmdp info models.npz --json")
@options.data
@options.as_json
@options.split
@takes(Loading)
def info(data: Path, as_json: bool, split: str, loading: Loading) -> None:
    """Describe DATA: its sizes, labels, rewards and storage.

    It also says what had to be assumed, such as an initial distribution that is not given.
    """
    model = loading.read(data, split, quiet=as_json)
    if as_json:
        show_json({"data": data, **_description(model)})
    else:
        show_facts(str(data), _facts(model))
        note_assumptions(model)


def _description(model: MMDP) -> dict[str, Any]:
    """Everything that ``info`` knows about a model."""
    import numpy as np

    from mmdp.kernels.rewards import blocks

    found = [r[:, model.allowed[states]] for states, r in blocks(model.problem.r)]
    ends = [(r.min(), r.max()) for r in found if r.size]
    weights = model.weights
    return {
        "name": model.name, "models": model.n_models, "states": model.n_states,
        "actions": model.n_actions, "horizon": model.horizon, "discount": model.discount,
        "initial_given": model.initial_given,
        "initial_per_model": model.initial.ndim > 1,
        "initial_states": int(model.problem.initial.any(axis=1).sum()),
        "weights_uniform": bool(np.ptp(weights) <= 1e-12),
        "weights_range": [weights.min(), weights.max()],
        "not_allowed": int((~model.allowed).sum()), "pairs": model.allowed.size,
        "reward_range": [min(x for x, _ in ends), max(y for _, y in ends)],
        "next_rewards": model.has_next_rewards, "models_change": model.drifts,
        "terminal": bool(model.terminal.any()), "storage": model.storage,
        "density": model.density, "memory": model.memory,
        "labels": {
            what: getattr(model, f"{what}_labels") for what, own in model.labelled.items() if own
        },
        "times": model.times.labels, "unit": model.unit,
        "parameters": sorted(model.parameters), "citation": model.citation,
        "warnings": warnings(model),
    }  # fmt: skip


def _facts(model: MMDP) -> list[tuple[str, str]]:
    from mmdp.words import readable_bytes

    facts = _description(model)
    lowest, highest = facts["weights_range"]
    low, high = (f"{x:,.6g}" for x in facts["reward_range"])
    kind = "per next state" if facts["next_rewards"] else "per state and action"
    labelled = model.labelled
    apart = ", each model its own" if model.initial.ndim > 1 else ""
    unit = f" {model.unit}" if model.unit else ""
    steps = f"{model.horizon} (time-varying)" if model.horizon else "any"
    named = f", {model.times.span(0, len(model.times.labels) - 1)}" if model.times.labels else ""
    rows = [
        ("models", listed(model.model_labels, labelled["model"])),
        ("states", listed(model.state_labels, labelled["state"])),
        ("actions", listed(model.action_labels, labelled["action"])),
        ("horizon", steps + named),
        ("discount", f"{model.discount:g}"),
        ("initial", f"given, {counted(facts['initial_states'], 'state')} possible{apart}"
         if model.initial_given else "uniform (not given)"),
        ("weights", "uniform" if facts["weights_uniform"] else f"{lowest:.4g} to {highest:.4g}"),
        ("not allowed", f"{facts['not_allowed']:,} of {facts['pairs']:,} state-action pairs"),
        ("rewards", f"{low} to {high}{unit}, {kind}"),
        ("storage",
         f"{model.storage}, density {model.density:.3g}, {readable_bytes(model.memory)}"),
    ]  # fmt: skip
    if facts["models_change"]:
        rows.insert(1, ("change", "the model changes by a chain of its own"))
    if facts["terminal"]:
        rows.insert(-1, ("terminal", "values of ending in a state are given"))
    if facts["parameters"]:
        rows.append(("parameters", ", ".join(facts["parameters"])))
    if model.citation:
        rows.append(("source", model.citation))
    return rows
