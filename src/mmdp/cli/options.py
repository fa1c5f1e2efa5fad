"""How commands take options, and the options that several of them share, each spelled once."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import click

from mmdp.cli.console import LiveLine, print_stderr
from mmdp.cli.python_file import PythonObject
from mmdp.cli.types import (
    INPUT,
    PATH,
    DistributionParam,
    HorizonParam,
    KeywordParam,
    NamesParam,
    NumbersParam,
    ObjectiveParam,
    OutputFolderParam,
    SecondsParam,
    raise_unknown_name,
)
from mmdp.core.errors import InputError
from mmdp.core.methods.registry import DEFAULT_COMPARISON, METHODS
from mmdp.core.policies import Policy, require_markov
from mmdp.core.text import join_or
from mmdp.core.validate import check_seed

if TYPE_CHECKING:
    from mmdp import MMDP
    from mmdp.core.methods import Method
    from mmdp.insight.economics import OutcomeDiscounting

EXIT_INTERRUPTED = 130  # exit status after Ctrl-C
EXIT_NOT_WRITTEN = 1  # exit status if a result is not where it was to be written
SOLVE_HEADING, LOAD_HEADING = "How to solve", "How to read DATA"  # headings of the help

F = TypeVar("F", bound=Callable[..., Any])


# ---------------------------------------------------------------- commands
class HeadedCommand(click.Command):
    """A command whose help has its options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        headings: dict[str, list[tuple[str, str]]] = {
            "Options": [],
            SOLVE_HEADING: [],
            LOAD_HEADING: [],
        }
        shows_all = ctx.meta.get(HELP_ALL, False)
        for parameter in self.get_params(ctx):
            if getattr(parameter, "is_advanced", False) and not shows_all:
                continue
            row = parameter.get_help_record(ctx)
            if row is not None and isinstance(parameter, click.Option):
                headings[getattr(parameter, "heading", "Options")].append(row)
        for heading, rows in headings.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        parameters = super().get_params(ctx)
        if any(getattr(parameter, "is_advanced", False) for parameter in parameters):
            parameters.append(_HELP_ALL_OPTION)
        return parameters


def _print_help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


HELP_ALL = "mmdp.help_all"  # key of click's context: whether advanced options are shown
_HELP_ALL_OPTION = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_help_all,
    help="Show all options and exit.",
)


class HeadedOption(click.Option):
    """An option under a heading of the help; an advanced one is shown by ``--help-all`` alone."""

    def __init__(
        self,
        *arguments: Any,
        heading: str = "Options",
        is_advanced: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.heading, self.is_advanced = heading, is_advanced


def command(*lines: str) -> Callable[[Callable[..., Any]], HeadedCommand]:
    """Make a function a command; its help ends with these example lines."""
    return click.command(cls=HeadedCommand, epilog=format_examples(*lines))


def format_examples(*lines: str) -> str:
    """The end of a help text; the first mark keeps click from joining the lines."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Declare an option as click does, with a ``heading`` of the help and ``is_advanced``."""
    return click.option(*names, cls=HeadedOption, **settings)


def to_snake_case(name: str) -> str:
    """Convert a class name to an argument name.

    >>> to_snake_case("PolicyClassArgs")
    'policy_class_args'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def with_options(options_class: type) -> Callable[[F], F]:
    """Give a command the options that annotate the fields of a dataclass.

    It receives them as one object, under the name of the class in snake case.
    """
    fields = get_type_hints(options_class, include_extras=True)

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run_command(**values: Any) -> Any:
            field_values = {name: values.pop(name) for name in fields}
            return function(
                **values, **{to_snake_case(options_class.__name__): options_class(**field_values)}
            )

        for field in reversed(fields.values()):
            (add_option,) = field.__metadata__
            add_option(run_command)
        return run_command  # type: ignore[return-value]

    return decorate


# ---------------------------------------------------------------- shared options
data = click.argument(
    "data",
    type=INPUT,
    help="The models: a folder, a file, FILE.py:NAME or -; see mmdp --help.",
)
horizon = option(
    "--horizon",
    "-T",
    type=HorizonParam(),
    metavar="N|inf",
    help="Number of decisions, or inf.",
)
split = option(
    "--split",
    type=KeywordParam("train", "test", "true"),
    default="train",
    show_default=True,
    heading=LOAD_HEADING,
    is_advanced=True,
    help="Which models of a folder to read.",
)
backend = option(
    "--backend",
    is_advanced=True,
    type=KeywordParam("auto", "numpy", "numba", "jax"),
    default="auto",
    show_default=True,
    help="Backend to compute with.",
)
as_json = option(
    "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."
)
policy = option("--policy", type=PATH, metavar="FILE", help="A policy that mmdp solve wrote.")
methods_option = option(
    "--methods",
    type=NamesParam("method", METHODS),
    metavar="A,B,...",
    default=",".join(DEFAULT_COMPARISON),
    show_default=True,
    help="Methods to compare; see mmdp info.",
)
objective = option(
    "--objective",
    type=ObjectiveParam(),
    metavar="NAME",
    default="mean",
    show_default=True,
    heading=SOLVE_HEADING,
    help="mean, cvar:0.1 (of the worst tenth), var:0.1, evar:0.1, entropic:0.01, worst, "
    "mean-cvar:0.1:0.5, or regret: and one of these.",
)
n_episodes = option(
    "--n-episodes",
    is_advanced=True,
    type=int,
    metavar="N",
    heading=SOLVE_HEADING,
    help="Simulated episodes per model, for policies with memory.",
)


jobs = option(
    "--jobs",
    "-j",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="Processes on this machine.",
)


def seed(default: int | None = 0) -> Callable[[F], F]:
    """--seed; None stands for a default of the library."""
    return option(
        "--seed",
        type=int,
        metavar="N",
        default=default,
        show_default=True,
        callback=_validate_seed,
        help="Seed of every random choice.",
    )


def _validate_seed(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    check_seed(value)
    return value


def time_limit(help_text: str) -> Callable[[F], F]:
    return option("--time-limit", type=SecondsParam(), help=help_text)


def out_folder(**settings: Any) -> Callable[[F], F]:
    return option(
        "--out",
        "-o",
        type=OutputFolderParam(),
        metavar="FOLDER",
        help="Where to write.",
        **settings,
    )


# ---------------------------------------------------------------- options as one object
@dataclass(frozen=True)
class RunArgs:
    """How a solve runs: arguments of :func:`mmdp.solve`."""

    time_limit: Annotated[float | None, time_limit("Stop after S seconds with the best so far.")]
    seed: Annotated[int, seed()]
    backend: Annotated[str, backend]


LOAD_OPTIONS: dict[str, tuple[str, ...]] = {
    "normalize": ("true",),
    "duplicates": ("last", "sum"),
    "missing_actions": ("zero",),
    "dead_ends": ("absorb",),
    "id_gaps": ("relabel",),
    "extra_columns": ("ignore",),
    "compat": ("cadp", "memdp", "reca"),
    "sidecars": ("false",),
}


def _parse_load_options(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str | bool]:
    """Parse ``KEY=VALUE`` texts into arguments of :func:`mmdp.load`."""
    parsed: dict[str, str | bool] = {}
    for text in texts:
        key, _, value = text.partition("=")
        key = key.replace("-", "_")
        if key not in LOAD_OPTIONS:
            raise_unknown_name("load option", key, LOAD_OPTIONS)
        if value not in LOAD_OPTIONS[key]:
            expected = join_or(f"{key}={known}" for known in LOAD_OPTIONS[key])
            raise InputError(f"{param.opts[0]} {text!r} is not known; expected {expected}")
        parsed[key] = {"true": True, "false": False}.get(value, value)
    return parsed


@dataclass(frozen=True)
class LoadArgs:
    """How files are read: arguments of :func:`mmdp.load`, None if not given."""

    load_option: Annotated[
        dict[str, str | bool],
        option(
            "--load-option",
            multiple=True,
            metavar="KEY=VALUE",
            callback=_parse_load_options,
            heading=LOAD_HEADING,
            is_advanced=True,
            help="How to read files that are not as they should be; may be given several times. "
            "normalize=true: scale probabilities to sum to 1. duplicates=last|sum: of rows given "
            "twice. missing_actions=zero: actions that some models lack earn nothing there. "
            "dead_ends=absorb: states without actions are never left. id_gaps=relabel: renumber "
            "ids. extra_columns=ignore. compat=cadp: read as the code of the CADP paper does; "
            "memdp or reca: what the first block of a .transitions file is. sidecars=false: do not "
            "read initial.csv, parameters.csv and the like next to a table.",
        ),
    ]
    discount: Annotated[
        float | None,
        option(
            "--discount",
            type=float,
            metavar="G",
            heading=LOAD_HEADING,
            is_advanced=True,
            help="Discount factor per step; replaces the file's.",
        ),
    ]
    initial: Annotated[
        dict[str, float] | None,
        option(
            "--initial",
            type=DistributionParam(),
            heading=LOAD_HEADING,
            is_advanced=True,
            help="The first state, or probabilities of several; replaces the file's.",
        ),
    ]

    def read_models(self, path: Path, split: str = "train", *, quiet: bool) -> MMDP:
        import mmdp

        given = {"discount": self.discount, "initial": self.initial}
        options: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        options |= self.load_option
        python_object = PythonObject.parse(path)
        with LiveLine(f"reading {path}", quiet=quiet):
            if python_object is not None:
                return python_object.load_model(split, options)
            return mmdp.load(path, split=split, **options)

    def read_test_models(self, path: Path, train: MMDP, *, quiet: bool) -> MMDP | None:
        """The test models that go with the training models, if there are any, in their order."""
        if (python_object := PythonObject.parse(path)) is not None:
            return (
                self.read_models(path, "test", quiet=quiet)
                if "test" in python_object.load_models()
                else None
            )
        folder = path if path.is_dir() else path.parent
        is_training = path.is_dir() or path.stem == "training"
        if is_training and any(
            (folder / f"test.{suffix}").is_file() for suffix in ("csv", "parquet")
        ):
            return self.read_models(folder, "test", quiet=quiet).reorder_like(train)
        return None


def _parse_pairs(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """``name=value`` options as a mapping."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (name and separator and value) or name in pairs:
            problem = "is named twice" if name in pairs else "is not NAME=POLICY"
            raise InputError(f"{param.opts[0]} {text!r} {problem}; e.g. 'never treat=wait'")
        pairs[name] = value
    return pairs


features = option(
    "--features",
    is_advanced=True,
    type=PATH,
    metavar="FILE",
    heading=SOLVE_HEADING,
    help="What a tree may ask about: a CSV with state and columns of numbers or categories.",
)
comparator = option(
    "--comparator",
    multiple=True,
    metavar="NAME=POLICY",
    callback=_parse_pairs,
    help="What is done today, or could be: a policy file, or the action that is always taken. May "
    "be given several times.",
)


def read_comparators(strategies: Mapping[str, str], model: MMDP) -> dict[str, Any]:
    """Read the policies of ``--comparator``: a policy file, or the label of an action."""
    import mmdp

    def read_strategy(strategy: str) -> Any:
        is_file = Path(strategy).suffix in (".csv", ".json") or Path(strategy).is_file()
        return (
            mmdp.load_policy(strategy, model)
            if is_file and strategy not in model.action_labels
            else strategy
        )

    return {name: read_strategy(strategy) for name, strategy in strategies.items()}


@dataclass(frozen=True)
class EconomicArgs:
    """Effects and costs from a table, and how those of different times add up."""

    effects: Annotated[
        Path | None,
        option(
            "--effects",
            type=PATH,
            metavar="FILE",
            help="Effect and cost of actions: a CSV with state,action,effect,cost (and model, "
            "time, next_state).",
        ),
    ]
    effect_rate: Annotated[
        float | None,
        option(
            "--effect-rate",
            type=float,
            metavar="R",
            help="Discount rate of effects per step, such as 0.035. [default: that of the models]",
        ),
    ]
    cost_rate: Annotated[
        float | None,
        option(
            "--cost-rate",
            type=float,
            metavar="R",
            help="Discount rate of costs per step.",
        ),
    ]
    within_cycle: Annotated[
        str,
        option(
            "--within-cycle",
            type=KeywordParam("none", "half-cycle", "simpson"),
            default="none",
            show_default=True,
            help="Weights of the times, or your own, as in 0.5,1,1,0.5; n cycles "
            "need a horizon of n + 1. Policies are optimised with half-cycle weights in place of "
            "simpson's, which alternate.",
        ),
    ]

    @property
    def discounting(self) -> OutcomeDiscounting:
        import mmdp

        weights: Any = self.within_cycle.split(",") if "," in self.within_cycle else None
        return mmdp.economics.OutcomeDiscounting(
            self.effect_rate,
            self.cost_rate,
            weights or self.within_cycle,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class NetBenefitArgs(EconomicArgs):
    """Rewards made of effects and costs."""

    wtp: Annotated[
        float | None,
        option(
            "--wtp",
            type=float,
            metavar="K",
            help="Use K times the effect minus the cost as the reward; K is the value of one unit.",
        ),
    ]

    def apply_to(self, model: MMDP, horizon: int | None) -> MMDP:
        """The model with the net benefit as its reward, if that is asked for."""
        import mmdp

        if (self.effects is None) != (self.wtp is None):
            raise InputError("--effects and --wtp belong together; give both or none")
        if self.effects is None or self.wtp is None:
            if self.discounting != mmdp.economics.OutcomeDiscounting():
                raise InputError("this option is about costs and effects; give --effects too")
            if horizon is not None:
                raise InputError("--horizon is for rewards that vary with time; give --effects too")
            return model
        if not 0 <= self.wtp < math.inf:
            raise InputError(f"--wtp must be a number of at least 0, not {self.wtp}")
        if horizon == math.inf:
            raise InputError("give --horizon, the number of decisions over which the rewards vary")
        effects, costs = mmdp.report.read_effects(self.effects, model)
        return self.discounting.make_net_benefit_model(model, effects, costs, self.wtp, horizon)


@dataclass(frozen=True)
class WtpArgs(EconomicArgs):
    """Costs and effects kept separate, for the pages and pictures of willingness to pay."""

    wtp_grid: Annotated[
        list[float] | None,
        option(
            "--wtp-grid",
            type=NumbersParam("0,20000,50000"),
            help="Values of one unit of effect to try.",
        ),
    ]
    comparator: Annotated[dict[str, str], comparator]

    def to_report_options(self, model: MMDP) -> dict[str, Any]:
        """The arguments of :func:`mmdp.report.write` and ``draw``."""
        import mmdp

        if (self.effects is None) != (self.wtp_grid is None):
            raise InputError("--effects and --wtp-grid belong together; give both or none")
        if self.effects is None:
            if self.discounting != mmdp.economics.OutcomeDiscounting():
                raise InputError("this option is about costs and effects; give --effects too")
            return {"comparators": read_comparators(self.comparator, model)}
        effects, costs = mmdp.report.read_effects(self.effects, model)
        return {
            "effects": effects,
            "costs": costs,
            "wtp_grid": self.wtp_grid,
            "discounting": self.discounting,
            "comparators": read_comparators(self.comparator, model),
        }


def check_finite_horizon(horizon: float | None) -> None:
    """Refuse an infinite horizon for a page or a picture."""
    if horizon == math.inf:
        raise InputError(
            "a page or picture shows a number of decisions, not infinitely many; write the policy "
            "with mmdp solve --horizon inf --out rule.csv, then give --policy rule.csv --horizon 50"
        )


def load_finite_policy(
    file: Path | str,
    model: MMDP,
    horizon: float | None,
    purpose: str,
    remedies: Sequence[str] = (),
) -> Policy:
    """The policy of a file; a stationary one over ``horizon`` decisions.

    ``remedies`` are for one with memory.
    """
    import mmdp

    policy = mmdp.load_policy(file, model)
    if policy.horizon != math.inf:
        try:
            return require_markov(policy, purpose)
        except InputError as error:  # it has memory
            raise InputError(error.message, remedies) from None
    n_times = model.horizon if horizon is None else horizon
    if n_times is None:
        raise InputError(
            f"{file}: a stationary policy; say over how many decisions with --horizon N"
        )
    return to_finite_horizon(policy, n_times)


def to_finite_horizon(policy: Policy, horizon: float | None) -> Policy:
    """A stationary policy over a number of decisions, if there is one; any other as it is."""
    is_unchanged = policy.horizon != math.inf or horizon in (None, math.inf)
    return policy if is_unchanged else policy.to_markov(int(horizon or 0))


def to_flag(name: str) -> str:
    """Convert an argument name to an option of the command line.

    >>> to_flag("n_init")
    '--n-init'
    """
    return f"--{name.replace('_', '-')}"


def build_method(
    name: str, options: Mapping[str, Any], format_option: Callable[[str], str] = to_flag
) -> Method:
    """Make the method of that name with those of the options that are not None.

    ``format_option`` spells an option in the message about one that the method does not have.
    """
    given_options = {key: value for key, value in options.items() if value is not None}
    for key in given_options:
        owners = [n for n, m in METHODS.items() if key in _field_names(m)]
        if name not in owners:
            raise InputError(
                f"{format_option(key)} is not an option of {name}, only of {', '.join(owners)}"
            )
    return METHODS[name](**given_options)


def _field_names(method: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(method)}


def check_output_path(out: Path | None, data: Path, *inputs: Path | str | None) -> None:
    """Refuse to write over what the command reads."""
    from mmdp.data.io.folders import is_read_with

    if out is None:
        return
    input_paths = [Path(input_path) for input_path in inputs if input_path is not None]
    if is_read_with(out, data) or any(out.resolve() == path.resolve() for path in input_paths):
        raise InputError(f"--out {out}: this is read, not written; choose another name")


def write_with_fallback(write: Callable[[Path], object], target: Path) -> Path | None:
    """Where a result was written: at its place, else in a new temporary folder; None if nowhere.

    For results of long work, which a full disk must not lose.
    """
    try:
        write(target)
        return target
    except InputError as error:
        print_stderr(str(error))
    try:
        fallback_path = Path(tempfile.mkdtemp(prefix="mmdp-")) / target.name
        write(fallback_path)
    except (InputError, OSError):
        print_stderr("no other place was found either; it is printed instead")
        return None
    print_stderr(f"written to {fallback_path} instead; move it where you want it")
    return fallback_path


def write_csv(frame: Any, path: Path) -> None:
    from mmdp.data.io import write_atomic

    write_atomic(path, lambda temp_path: frame.to_csv(temp_path, index=False))
