"""How commands take options, and the options that several of them share, each spelled once."""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import click

from mmdp.cli.console import Working, complain
from mmdp.cli.python_file import PythonName
from mmdp.cli.types import (
    INPUT,
    PATH,
    Goal,
    Horizon,
    Names,
    Numbers,
    OutFolder,
    Seconds,
    Shares,
    Words,
)
from mmdp.errors import InputError
from mmdp.methods.table import COMPARED, METHODS
from mmdp.policy import Policy, markov_policy
from mmdp.validate import check_seed

if TYPE_CHECKING:
    from mmdp import MMDP
    from mmdp.economics import Counting
    from mmdp.methods import Method

INTERRUPTED = 130  # exit status after Ctrl-C
NOT_WRITTEN = 1  # exit status if a result is not where it was to be written
DECIDING, LOADING = "How to solve", "How to read DATA"  # headings of the help

F = TypeVar("F", bound=Callable[..., Any])


# ---------------------------------------------------------------- commands
class Command(click.Command):
    """A command whose help has its options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        headings: dict[str, list[tuple[str, str]]] = {"Options": [], DECIDING: [], LOADING: []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None and isinstance(parameter, click.Option):
                headings[getattr(parameter, "heading", "Options")].append(row)
        for heading, rows in headings.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class Option(click.Option):
    """An option under a heading of the help."""

    def __init__(self, *arguments: Any, heading: str = "Options", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.heading = heading


def command(*lines: str) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command; its help ends with these example lines."""
    return click.command(cls=Command, epilog=examples(*lines))


def examples(*lines: str) -> str:
    """The end of a help text; the first mark keeps click from joining the lines."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """As click's; ``heading`` is where the help lists it."""
    return click.option(*names, cls=Option, **settings)


def takes(kind: type) -> Callable[[F], F]:
    """Give a command the options that annotate the fields of a dataclass.

    It receives them as one object, under the name of the class in small letters.
    """
    fields = get_type_hints(kind, include_extras=True)

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(**values: Any) -> Any:
            own = {name: values.pop(name) for name in fields}
            return function(**values, **{kind.__name__.lower(): kind(**own)})

        for field in reversed(fields.values()):
            (add,) = field.__metadata__
            add(run)
        return run  # type: ignore[return-value]

    return decorate


# ---------------------------------------------------------------- shared options
data = click.argument(
    "data",
    type=INPUT,
    help="The models: a folder with training.csv, a .csv, .parquet, .npz, .pomdpx, .pomdp or "
    ".transitions file, FILE.py:NAME for models that a Python file builds, or - for standard "
    "input.",
)
horizon = option(
    "--horizon", "-T", type=Horizon(), metavar="N|inf",
    help="Number of decisions, or inf. Models that vary with time have their own.",
)  # fmt: skip
split = option(
    "--split", type=Words("train", "test", "true"), default="train", show_default=True,
    heading=LOADING, help="Which models of a folder to read.",
)  # fmt: skip
backend = option(
    "--backend", type=Words("auto", "numpy", "numba", "jax"), default="auto", show_default=True,
    help="Kernel to compute with.",
)  # fmt: skip
as_json = option(
    "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."
)
policy = option("--policy", type=PATH, metavar="FILE", help="A policy that mmdp solve wrote.")
rivals = option(
    "--methods", type=Names("method", METHODS), metavar="A,B,...", default=",".join(COMPARED),
    show_default=True, help="Methods to compare; see mmdp methods.",
)  # fmt: skip
objective = option(
    "--objective", type=Goal(), metavar="NAME", default="mean", show_default=True,
    heading=DECIDING,
    help="What counts over the models: mean, cvar:0.1 (the worst tenth), var:0.1, evar:0.1, "
    "entropic:0.01, worst, mean-cvar:0.1:0.5, or regret: and one of these.",
)  # fmt: skip
episodes = option(
    "--episodes", type=int, metavar="N", heading=DECIDING,
    help="Simulated episodes per model, for policies with memory.",
)  # fmt: skip


jobs = option(
    "--jobs", "-j", type=int, default=1, show_default=True, metavar="N",
    help="Processes on this machine.",
)  # fmt: skip


def seed(default: int | None = 0) -> Callable[[F], F]:
    """--seed; None stands for a default of the library."""
    return option(
        "--seed", type=int, metavar="N", default=default, show_default=True,
        callback=_checked_seed, help="Seed of every random choice.",
    )  # fmt: skip


def _checked_seed(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    check_seed(value)
    return value


def time_limit(text: str) -> Callable[[F], F]:
    return option("--time-limit", type=Seconds(), help=text)


def out_folder(**settings: Any) -> Callable[[F], F]:
    return option(
        "--out", "-o", type=OutFolder(), metavar="FOLDER", help="Where to write.", **settings
    )


# ---------------------------------------------------------------- options as one object
@dataclass(frozen=True)
class Running:
    """How a solve runs: arguments of :func:`mmdp.solve`."""

    time_limit: Annotated[float | None, time_limit("Stop after S seconds with the best so far.")]
    seed: Annotated[int, seed()]
    backend: Annotated[str, backend]


def _rule(name: str, text: str, **settings: Any) -> Callable[[F], F]:
    return option(f"--{name}", heading=LOADING, help=text, **settings)


@dataclass(frozen=True)
class Loading:
    """How strictly files are read: arguments of :func:`mmdp.load`, None if not given."""

    normalize: Annotated[bool | None, _rule(
        "normalize", "Scale probabilities so that they sum to 1.", is_flag=True, default=None,
    )]  # fmt: skip
    duplicates: Annotated[str | None, _rule(
        "duplicates", "If a row is given twice, take the last one or the sum.",
        type=Words("last", "sum"),
    )]  # fmt: skip
    missing_actions: Annotated[str | None, _rule(
        "missing-actions", "An action that some models lack earns nothing in them.",
        type=Words("zero"),
    )]  # fmt: skip
    dead_ends: Annotated[str | None, _rule(
        "dead-ends", "A state without actions is never left and earns nothing.",
        type=Words("absorb"),
    )]  # fmt: skip
    id_gaps: Annotated[str | None, _rule(
        "id-gaps", "Renumber ids that have gaps.", type=Words("relabel"),
    )]  # fmt: skip
    extra_columns: Annotated[str | None, _rule(
        "extra-columns", "Skip columns that are not known.", type=Words("ignore"),
    )]  # fmt: skip
    compat: Annotated[str | None, _rule(
        "compat", "Read as the code published with the CADP paper does; or how a .transitions file "
        "is meant: every block an environment (memdp), or the first their mean (reca).",
        type=Words("cadp", "memdp", "reca"),
    )]  # fmt: skip
    sides: Annotated[bool | None, option(
        "--no-sides", "sides", flag_value=False, default=None, heading=LOADING,
        help="Do not read initial.csv, parameters.csv and the like next to a table.",
    )]  # fmt: skip
    discount: Annotated[float | None, _rule(
        "discount", "Discount factor per step; replaces the file's.", type=float, metavar="G",
    )]  # fmt: skip
    initial: Annotated[dict[str, float] | None, _rule(
        "initial", "The first state, or shares of several; replaces the file's.", type=Shares(),
    )]  # fmt: skip

    def read(self, path: Path, split: str = "train", *, quiet: bool) -> MMDP:
        import mmdp

        rules = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        python = PythonName.read(path)
        with Working(f"reading {path}", quiet=quiet):
            if python is not None:
                return python.model(split, rules)
            return mmdp.load(path, split=split, **rules)

    def read_test(self, path: Path, train: MMDP, *, quiet: bool) -> MMDP | None:
        """The test models that go with the training models, if there are any, in their order."""
        if (python := PythonName.read(path)) is not None:
            return self.read(path, "test", quiet=quiet) if "test" in python.models() else None
        folder = path if path.is_dir() else path.parent
        paired = path.is_dir() or path.stem == "training"
        if paired and any((folder / f"test.{kind}").is_file() for kind in ("csv", "parquet")):
            return self.read(folder, "test", quiet=quiet).ordered_like(train)
        return None


def _pairs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """``name=value`` options as a mapping."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value) or name in found:
            what = "is named twice" if name in found else "is not NAME=POLICY"
            raise InputError(f"{param.opts[0]} {text!r} {what}; e.g. 'never treat=wait'")
        found[name] = value
    return found


features = option(
    "--features", type=PATH, metavar="FILE", heading=DECIDING,
    help="What a tree may ask about: a CSV with state and columns of numbers or categories.",
)  # fmt: skip
against = option(
    "--compare", multiple=True, metavar="NAME=POLICY", callback=_pairs,
    help="What is done today, or could be: a policy file, or the action that is always taken. May "
    "be given several times.",
)  # fmt: skip


def named_rules(given: Mapping[str, str], model: MMDP) -> dict[str, Any]:
    """The policies of ``--compare``: labels of actions as they are, others from their files."""
    import mmdp

    def read(rule: str) -> Any:
        file = Path(rule).suffix in (".csv", ".json") or Path(rule).is_file()
        return mmdp.load_policy(rule, model) if file and rule not in model.action_labels else rule

    return {name: read(rule) for name, rule in given.items()}


@dataclass(frozen=True)
class Outcomes:
    """Effects and costs from a table, and how those of different times add up."""

    effects: Annotated[Path | None, option(
        "--effects", type=PATH, metavar="FILE",
        help="Effect and cost of actions: a CSV with state,action,effect,cost (and model, "
        "time, next_state).",
    )]  # fmt: skip
    effect_rate: Annotated[float | None, option(
        "--effect-rate", type=float, metavar="R",
        help="Discount rate of effects per step, such as 0.035. [default: that of the models]",
    )]  # fmt: skip
    cost_rate: Annotated[float | None, option(
        "--cost-rate", type=float, metavar="R", help="Discount rate of costs per step.",
    )]  # fmt: skip
    within_cycle: Annotated[str, option(
        "--within-cycle", type=Words("none", "half-cycle", "simpson"), default="none",
        show_default=True, help="Weights of the times, or your own, as in 0.5,1,1,0.5; n cycles "
        "need a horizon of n + 1. Policies are optimised with half-cycle weights in place of "
        "simpson's, which alternate.",
    )]  # fmt: skip

    @property
    def counting(self) -> Counting:
        import mmdp

        weights: Any = self.within_cycle.split(",") if "," in self.within_cycle else None
        return mmdp.economics.Counting(
            self.effect_rate,
            self.cost_rate,
            weights or self.within_cycle,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Pricing(Outcomes):
    """Rewards made of effects and costs."""

    value: Annotated[float | None, option(
        "--value", type=float, metavar="K",
        help="Use K times the effect minus the cost as the reward; K is the value of one unit.",
    )]  # fmt: skip

    def apply(self, model: MMDP, horizon: int | None) -> MMDP:
        """The model with the net benefit as its reward, if that is asked for."""
        import mmdp

        if (self.effects is None) != (self.value is None):
            raise InputError("--effects and --value belong together; give both or none")
        if self.effects is None or self.value is None:
            if self.counting != mmdp.economics.Counting():
                raise InputError("this option is about costs and effects; give --effects too")
            if horizon is not None:
                raise InputError("--horizon is for rewards that vary with time; give --effects too")
            return model
        if not 0 <= self.value < math.inf:
            raise InputError(f"--value must be a number of at least 0, not {self.value}")
        if horizon == math.inf:
            raise InputError("give --horizon, the number of decisions over which the rewards vary")
        worth, price = mmdp.report.read_effects(self.effects, model)
        return self.counting.net_benefit(model, worth, price, self.value, horizon)


@dataclass(frozen=True)
class Willingness(Outcomes):
    """Costs and effects kept separate, for the pages and pictures of willingness to pay."""

    thresholds: Annotated[list[float] | None, option(
        "--thresholds", type=Numbers("0,20000,50000"), help="Values of one unit of effect to try.",
    )]  # fmt: skip
    compare: Annotated[dict[str, str], against]

    def options(self, model: MMDP) -> dict[str, Any]:
        """The arguments of :func:`mmdp.report.write` and ``draw``."""
        import mmdp

        if (self.effects is None) != (self.thresholds is None):
            raise InputError("--effects and --thresholds belong together; give both or none")
        if self.effects is None:
            if self.counting != mmdp.economics.Counting():
                raise InputError("this option is about costs and effects; give --effects too")
            return {"compare": named_rules(self.compare, model)}
        worth, price = mmdp.report.read_effects(self.effects, model)
        return {
            "effects": worth, "costs": price, "thresholds": self.thresholds,
            "counting": self.counting, "compare": named_rules(self.compare, model),
        }  # fmt: skip


def check_finite(horizon: float | None) -> None:
    """Refuse an infinite horizon for a page or a picture."""
    if horizon == math.inf:
        raise InputError(
            "a page or picture shows a number of decisions, not infinitely many; write the policy "
            "with mmdp solve --horizon inf --out rule.csv, then give --policy rule.csv --horizon 50"
        )


def given_policy(
    file: Path | str, model: MMDP, horizon: float | None, purpose: str,
    remedies: Sequence[str] = (),
) -> Policy:  # fmt: skip
    """The policy of a file; a stationary one over ``horizon`` decisions.

    ``remedies`` are for one with memory.
    """
    import mmdp

    found = mmdp.load_policy(file, model)
    if found.horizon != math.inf:
        try:
            return markov_policy(found, purpose)
        except InputError as error:  # it has memory
            raise InputError(error.problem, remedies) from None
    steps = model.horizon if horizon is None else horizon
    if steps is None:
        raise InputError(
            f"{file}: a stationary policy; say over how many decisions with --horizon N"
        )
    return over(found, steps)


def over(policy: Policy, horizon: float | None) -> Policy:
    """A stationary policy over a number of decisions, if there is one; any other as it is."""
    lasts = policy.horizon != math.inf or horizon in (None, math.inf)
    return policy if lasts else policy.over(int(horizon or 0))


def build_method(name: str, options: Mapping[str, Any]) -> Method:
    """The method of that name with the options that were given."""
    chosen = {key: value for key, value in options.items() if value is not None}
    for key in chosen:
        owners = [n for n, m in METHODS.items() if key in _field_names(m)]
        if name not in owners:
            flag = key.replace("_", "-")
            raise InputError(f"--{flag} is not an option of {name}, only of {', '.join(owners)}")
    return METHODS[name](**chosen)


def _field_names(method: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(method)}


def check_out(out: Path | None, data: Path, *others: Path | str | None) -> None:
    """Refuse to write over what the command reads."""
    from mmdp.io.folders import is_read_with

    if out is None:
        return
    read = [Path(other) for other in others if other is not None]
    if is_read_with(out, data) or any(out.resolve() == path.resolve() for path in read):
        raise InputError(f"--out {out}: this is read, not written; choose another name")


def write_somewhere(write: Callable[[Path], object], target: Path) -> Path | None:
    """Where a result was written: at its place, else in a new temporary folder; None if nowhere.

    For results of long work, which a full disk must not lose.
    """
    try:
        write(target)
        return target
    except InputError as error:
        complain(str(error))
    try:
        other = Path(tempfile.mkdtemp(prefix="mmdp-")) / target.name
        write(other)
    except (InputError, OSError):
        complain("no other place was found either; it is printed instead")
        return None
    complain(f"written to {other} instead; move it where you want it")
    return other


def write_csv(frame: Any, path: Path) -> None:
    from mmdp.io import write_whole

    write_whole(path, lambda place: frame.to_csv(place, index=False))
