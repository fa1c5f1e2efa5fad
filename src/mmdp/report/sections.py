"""The table of sections: headings, flags, what is left out and the budget all read it.

The page follows the table from top to bottom, and the budget is spent in the same order: what
readers want most comes first. A section without a heading belongs to the one above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mmdp.posterior.check import can_simulate
from mmdp.report import findings
from mmdp.report.desk import Desk
from mmdp.solve import read_method
from mmdp.words import duration

LARGEST_WEIGHTS = 50_000_000  # numbers in (T, M, S) model weights that are still computed
QUICK_OWN = 2_000  # models times steps up to which a policy of its own is computed for each model
CHEAP = 0.1  # share of the budget for what nobody asked for, if what was asked for takes it all
PICTURE = 0.2  # seconds that a picture takes

Sizes = Callable[[Desk], float]  # a figure or a truth about the problem, by its sizes alone


@dataclass(frozen=True)
class Section:
    """A part of the page.

    ``compute`` finds what the template of that ``key`` and the ``pictures`` show, in about
    ``passes`` over the problem. ``tells``: whether there is something to say at all. ``ask`` is
    how to ask for it, in Python and on the command line; without that it is always computed.
    ``unasked``: whether the budget may choose it although nobody asked. ``alone``: whether its
    template has something to say if it was not computed.
    """

    key: str
    heading: str
    words: str  # what it is about, for the progress line and for what was left out
    compute: Callable[[Desk], Any]
    passes: Sizes = lambda desk: 0
    pictures: tuple[str, ...] = ()
    tells: Sizes = lambda desk: True
    unasked: Sizes = lambda desk: True
    ask: tuple[str, ...] | None = None
    template: bool = True
    alone: bool = True
    proof: float = 0.0  # seconds of a search with a time limit, on average

    def seconds(self, desk: Desk) -> float:
        """About how long it takes."""
        return desk.seconds(self.passes(desk)) + PICTURE * len(self.pictures) + self.proof

    def asked(self, desk: Desk) -> bool | None:
        """Whether it was asked for; None: the budget decides."""
        wanted: Any = True if self.ask is None else desk.asked.get(self.key)
        if wanted is None:
            return None if self.unasked(desk) else False
        return bool(wanted)


def _several(desk: Desk) -> bool:
    return desk.model.n_models > 1


def _still(desk: Desk) -> bool:
    return not desk.model.problem.not_still("models are redrawn")


def _solving(desk: Desk) -> float:
    passes = [read_method(m).passes(desk.model.problem, desk.horizon) for m in desk.methods]
    return 10 + sum(passes)


def _weights_fit(desk: Desk) -> bool:
    size = desk.horizon * desk.model.n_models * desk.model.n_states
    return _several(desk) and size <= LARGEST_WEIGHTS


def _few_own(desk: Desk) -> bool:
    """Whether the best policy of the kind is soon found in each model; a tree's is not."""
    count = desk.model.n_models * desk.horizon
    return _several(desk) and desk.kind.restricted and not desk.words and count <= QUICK_OWN


SECTIONS = (
    Section("answer", "The answer", "the policy in words", findings.answer),
    Section(
        "simpler", "", "simpler policies", findings.simpler, lambda desk: 130, ask=(),
        template=False,
    ),
    Section(
        "rule", "", "the smallest rule that will do", findings.small_rule,
        findings.passes_of_rule, ("tree",), tells=findings.can_grow, ask=("rule=True",),
        template=False,
    ),
    Section(
        "freedom", "", "where people may choose", findings.free, lambda desk: 60,
        tells=findings.can_choose, ask=(), template=False,
    ),
    Section(
        "tossing", "", "what drawing actions earns", findings.tossing, findings.passes_of_tossing,
        tells=findings.may_toss, ask=(), template=False,
    ),
    Section(
        "off_grid", "", "the function without its grid", findings.off_grid, lambda desk: 100,
        tells=lambda desk: findings.has_grid(desk.model), ask=(), template=False,
    ),
    Section(
        "controller", "The given policy with memory", "the flow chart", findings.controller,
        tells=lambda desk: desk.controller is not None,
    ),
    Section("asked", "What was asked", "the problem", findings.asked),
    Section("policy", "The policy", "each time and state", Desk.cells),
    Section(
        "frontier", "What safety costs: policies side by side", "safer policies", findings.safer,
        lambda desk: 8_000, tells=_several, unasked=_still, ask=("frontier=True", "--frontier"),
    ),
    Section(
        "methods", "Methods side by side", "other methods", findings.methods, _solving,
        ("methods", "trace"),
    ),
    Section(
        "returns", "Returns and regret over the models", "returns by model",
        findings.near_optimal, pictures=("returns", "regret"),
    ),
    Section(
        "coverage", "", "ranges from simulated logs", findings.simulated_coverage,
        findings.passes_of_coverage, tells=lambda desk: can_simulate(desk.model), ask=(),
        template=False,
    ),
    Section(
        "weights", "Model weights over time", "model weights", findings.weights,
        pictures=("weights",), tells=_weights_fit,
    ),
    Section(
        "information", "What knowing more is worth", "the value of each parameter",
        findings.information, findings.passes_of_information, ("information",),
        _several, ask=("information=True", "--information"),
    ),
    Section(
        "within", "", "the best policy of each model", findings.within, lambda desk: 1_000,
        tells=_few_own, ask=(), template=False,
    ),
    Section(
        "memory", "What would memory gain?", "policies with memory", findings.memory,
        findings.passes_of_memory, ("memory",), _several, lambda desk: not desk.kind.restricted,
        ("memory=3", "--memory 3"), alone=False, proof=findings.PROVING / 2,
    ),
    Section(
        "enough", "Were there enough models?", "solving with fewer models", findings.sizes,
        findings.passes_of_sizes, ("enough",), _several, _still,
        ("enough=True", "--enough"),
    ),
    Section(
        "resamples", "", "solving on redrawn models", findings.resamples,
        findings.passes_of_resamples, tells=_several, unasked=_still,
        ask=("resamples=20", "--enough"),
    ),
    Section(
        "willingness", "Cost and effect: willingness to pay", "willingness to pay",
        findings.willingness, pictures=("willingness", "loss"),
        tells=lambda desk: desk.outcomes is not None,
    ),
    Section("source", "How this was computed", "the source", findings.source),
)  # fmt: skip


class Left(NamedTuple):
    """A section that was left out, about how long it takes, and whether the budget did so."""

    section: Section
    seconds: float
    budget: bool


def chosen(desk: Desk, seconds: float) -> tuple[list[Section], dict[str, Left]]:
    """The sections to compute, in their order, and those that are left out, by key.

    Sections that nobody asked for are chosen from the top down, as long as the estimates of all
    together stay within ``seconds``, or their own within a tenth of it. The estimates depend on
    sizes alone, so that the same call gives the same page.
    """
    telling = [section for section in SECTIONS if section.tells(desk)]
    rest = max(seconds - sum(x.seconds(desk) for x in telling if x.asked(desk)), CHEAP * seconds)
    found, left = list[Section](), dict[str, Left]()
    for section in telling:
        wanted, takes = section.asked(desk), section.seconds(desk)
        if wanted or (wanted is None and takes <= rest):
            rest -= 0 if wanted else takes
            found.append(section)
        else:
            left[section.key] = Left(section, takes, wanted is None)
    return found, left


def compute(desk: Desk, sections: Sequence[Section]) -> Mapping[str, Any]:
    """What the sections find, by key; None for those that are not among them."""
    found = dict.fromkeys(section.key for section in SECTIONS)
    for i, x in enumerate(sections):
        takes = x.seconds(desk)
        about = f", about {duration(takes)}" if takes >= 1 else ""
        desk.say(f"{x.words} ({i + 1} of {len(sections)}{about})")
        found[x.key] = x.compute(desk)
    return found
