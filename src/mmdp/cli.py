"""The command line: parse, call the library, print.

A command is a function under ``@command(example, ...)``. It loads with :func:`_load`, calls
the library inside a :class:`Working` block (the live line on stderr) and prints through
:mod:`mmdp.console`. Errors are raised, never printed: :class:`_Group` turns them into one line
on stderr and exit status 2.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import io
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from mmdp._version import __version__
from mmdp.console import (
    Interrupts,
    Steps,
    Working,
    aligned,
    at_most_percent,
    clock,
    complain,
    errors,
    figures,
    show_facts,
    show_json,
    show_table,
)
from mmdp.errors import InputError, shown

if TYPE_CHECKING:
    from mmdp import MMDP, Bound, Evaluation, MarkovPolicy, Solution
    from mmdp.methods import Method

WIDTH = 80  # columns that every table fits
PREVIEW_ROWS = 6
PROVEN = 1e-8  # relative gap that is not worth a word
LOADING = "Loading"  # help panels
METHOD = "Method"

F = TypeVar("F", bound=Callable[..., Any])
Loading = Mapping[str, Any]  # the options of mmdp.load


# ---------------------------------------------------------------- errors and exit codes
def _base_of_usage_errors() -> type[Exception]:
    """ClickException, wherever this version of typer keeps it."""
    return next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


_UsageError = _base_of_usage_errors()


def _usage_message(error: Any) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mmdp"
    message = error.format_message().rstrip(".")
    return f"{message}{' See' if message.endswith('?') else '; see'} {path} --help"


def _os_message(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _as_options(message: str) -> str:
    """Name the options of the command line where the library names its arguments.

    >>> _as_options("load with normalize=True or duplicates='last' or 'sum'")
    'load with --normalize or --duplicates last or --duplicates sum'
    """

    def option(match: re.Match[str]) -> str:
        name = match["name"].replace("_", "-")
        values = [value.strip("'\"") for value in match["values"].split(" or ")]
        return " or ".join(f"--{name}" if x == "True" else f"--{name} {x}" for x in values)

    for words, ours in _LIBRARY_WORDS.items():
        message = message.replace(words, ours)
    known = "|".join([*_LOADING, "split", "horizon", "method"])
    quoted = r"'[\w-]+'|\"[\w-]+\""
    return re.sub(
        rf"\b(?P<name>{known})=(?P<values>(?:{quoted})(?: or {quoted})*|\w+)", option, message
    )


# Remedies that only exist in Python, and what helps on the command line.
_LIBRARY_WORDS = {
    ", forbid the action with `allowed`, or pass allow_missing=True "
    "(missing_actions='zero' when loading)": ", or pass missing_actions='zero'",
    "that `allowed` forbids": "that are not allowed",
    "time_limit must": "--time-limit must",
    "(columns= names others)": "(--column ROLE=NAME names others)",
    'restrict support= ("seen" or a mask)': "restrict it by --support seen",
    'unseen="prior", "absorb" or "forbid"': "--unseen prior, absorb or forbid",
    "by absorbing=": "by --absorbing",
    "or pass overwrite": "or pass --overwrite",
}


def _exit_code(call: Callable[[], Any]) -> int:
    """Run, and turn what went wrong into one line and an exit status."""
    try:
        code = call()
        sys.stdout.flush()
    except InputError as error:
        complain(_as_options(str(error)))
    except _UsageError as error:
        complain(_usage_message(error))
    except BrokenPipeError:
        # nobody reads any more: keep Python from complaining when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        complain(_os_message(error))
    except MemoryError:
        complain("not enough memory")
        return 1
    except typer.Abort:
        return 130
    else:
        return code if isinstance(code, int) else 0
    return 2


class _Examples:
    """Help that ends with the epilog as it was typed: typer would join its lines."""

    epilog: str | None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        examples, self.epilog = self.epilog, None
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        finally:
            self.epilog = examples
        formatter.write(f"{examples}\n" if examples else "")


class _Command(_Examples, TyperCommand):
    pass


class _Group(_Examples, TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("interrupted, nothing was found yet")
            raise typer.Exit(130) from None

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **rest: Any
    ) -> Any:
        def call() -> Any:
            return super(_Group, self).main(args, standalone_mode=False, **rest)

        return sys.exit(_exit_code(call)) if standalone_mode else call()


def _unknown(what: str, name: str, known: Iterable[str]) -> NoReturn:
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"
    raise InputError(f"no {what} is called {name!r}; {hint}")


# ---------------------------------------------------------------- the application
app = typer.Typer(
    cls=_Group,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        " Examples:\n"
        "   mmdp domain riverswim --out data/riverswim\n"
        "   mmdp solve data/riverswim --horizon 50 --out policy.csv\n"
        "   mmdp evaluate policy.csv data/riverswim --split test"
    ),
)


def command(*examples: str) -> Callable[[F], F]:
    """Register a command; its help ends with these example lines."""
    epilog = "\n".join([" Examples:", *(f"   {line}" for line in examples)])
    return app.command(cls=_Command, epilog=epilog)


def main() -> None:
    """The entry point of the ``mmdp`` script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a label that the terminal cannot show must not end the command
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="mmdp")
    except KeyboardInterrupt:  # between commands: what they do themselves is caught there
        sys.exit(130)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mmdp {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """One policy that is good over every plausible model of the world.

    Multi-model Markov decision processes: solve, evaluate, compare policies.
    DATA is a folder with training.csv (and test.csv), or a .csv, .parquet or
    .npz file.
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


# ---------------------------------------------------------------- options that commands share
Data = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="Models: a folder, or a .csv, .parquet or .npz file."),
]
Horizon = Annotated[
    int | None,
    typer.Option(
        "--horizon", "-T", metavar="N",
        help="Number of decisions. A time-varying model has its own.",
    ),
]  # fmt: skip


def _check_seed(seed: int | None) -> int | None:
    if seed is not None and seed < 0:
        raise InputError(f"seed must be a whole number of at least 0, not {seed}")
    return seed


Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", metavar="N", callback=_check_seed, help="Seed of every random choice."
    ),
]  # fmt: skip
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="S", help="Seconds; then the best policy so far."),
]
Backend = Annotated[
    str, typer.Option("--backend", metavar="auto|numba|numpy", help="Who does the numerical work.")
]
Episodes = Annotated[
    int | None,
    typer.Option(
        "--episodes", metavar="N",
        help="Episodes per model for policies with memory, which are simulated.",
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Split = Annotated[
    str,
    typer.Option(
        "--split", metavar="train|test|true", rich_help_panel=LOADING,
        help="Which models of a folder to read.",
    ),
]  # fmt: skip


def _loading(metavar: str, text: str) -> Any:
    return Annotated[str | None, typer.Option(metavar=metavar, rich_help_panel=LOADING, help=text)]


_LOADING: dict[str, Any] = {
    "compat": _loading("cadp", "Read as the code published with the paper does."),
    "normalize": Annotated[
        bool | None,
        typer.Option("--normalize", rich_help_panel=LOADING, help="Scale rows to sum to 1."),
    ],
    "duplicates": _loading("last|sum", "Accept rows that occur twice."),
    "missing_actions": _loading("zero", "Accept actions that some models lack."),
    "dead_ends": _loading("absorb", "Accept states without actions."),
    "id_gaps": _loading("relabel", "Accept gaps in the ids."),
    "extra_columns": _loading("ignore", "Accept columns that are not known."),
}


def loads(function: F) -> F:
    """Give a command the loader's options; it receives them as one mapping, ``loading``."""

    @functools.wraps(function)
    def run(**given: Any) -> Any:
        options = {name: given.pop(name) for name in _LOADING}
        loading = {name: value for name, value in options.items() if value is not None}
        return function(**given, loading=loading)

    own = inspect.signature(function, eval_str=True)
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _LOADING.items()
    ]
    kept = [x for x in own.parameters.values() if x.name != "loading"]
    run.__signature__ = own.replace(parameters=[*kept, *extra])  # type: ignore[attr-defined]
    return cast("F", run)


def _load(path: Path, loading: Loading, *, split: str = "train", quiet: bool = True) -> MMDP:
    import mmdp

    with Working(f"reading {path}", quiet=quiet):
        return mmdp.load(path, split=split, **loading)


def _sizes(model: MMDP) -> str:
    parts = [
        shown(model.n_models, "model"), shown(model.n_states, "state"),
        shown(model.n_actions, "action"), f"discount {model.discount:g}",
    ]  # fmt: skip
    return ", ".join(parts)


def _build_method(name: str, options: Mapping[str, Any]) -> Method:
    """The method of that name with the options that were given."""
    from mmdp import METHODS

    if name not in METHODS:
        _unknown("method", name, METHODS)
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        owners = [n for n, m in METHODS.items() if key in _option_names(m)]
        if name not in owners:
            flag = key.replace("_", "-")
            raise InputError(f"--{flag} is not an option of {name}, only of {', '.join(owners)}")
    return METHODS[name](**given)


def _option_names(method: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(method)}


def _check_out(out: Path | None, endings: Sequence[str]) -> None:
    """Refuse an output that cannot be written before the work, not after it."""
    if out is None:
        return
    if out.suffix.lower() not in endings:
        raise InputError(f"{out}: choose a name that ends in {' or '.join(endings)}")
    if not out.parent.is_dir():
        raise InputError(f"{out}: the folder {out.parent} does not exist")
    if out.is_dir():
        raise InputError(f"{out}: is a folder; choose the name of a file")


def _write_csv(frame: Any, path: Path) -> None:
    from mmdp.io import write_whole

    write_whole(path, lambda place: frame.to_csv(place, index=False))


# ---------------------------------------------------------------- solve
@command(
    "mmdp solve data/riverswim --horizon 50 --out policy.csv",
    "mmdp solve models.npz -T 20 --starts 16 --seed 1 --time-limit 60",
    "mmdp solve data/hiv -T 15 --method gradient --json",
    "mmdp solve data/riverswim -T 50 --certify 30",
    "mmdp solve data/hiv -T 5 --method exact --time-limit 60",
)
@loads
def solve(
    data: Data,
    horizon: Horizon = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the policy: .csv, .parquet or .json."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method", "-m", metavar="NAME", rich_help_panel=METHOD,
            help="cadp, wsu, mvp, gradient, mirror or oracle; with a proof: exact or milp; "
            "with memory: qmdp, mixts, pomcp or rollout.",
        ),
    ] = "cadp",
    init: Annotated[
        str | None,
        typer.Option(
            "--init", metavar="START", rich_help_panel=METHOD,
            help="Start from wsu, mvp, random, uniform, or a policy file.",
        ),
    ] = None,
    starts: Annotated[
        int | None,
        typer.Option(
            "--starts", metavar="K", rich_help_panel=METHOD,
            help="Starts; all but the first are random. The best is kept.",
        ),
    ] = None,
    max_iterations: Annotated[
        int | None,
        typer.Option(
            "--max-iterations", metavar="N", rich_help_panel=METHOD, help="Cap on the iterations."
        ),
    ] = None,
    episodes: Episodes = None,
    seed: Seed = None,
    time_limit: TimeLimit = None,
    certify: Annotated[
        float | None,
        typer.Option(
            "--certify", metavar="S",
            help="Prove in S more seconds how much better any policy could be.",
        ),
    ] = None,
    backend: Backend = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
    split: Split = "train",
    *,
    loading: Loading,
) -> None:  # fmt: skip
    """Compute one policy for all models of DATA.

    The default method is CADP started from WSU. Ctrl-C and --time-limit give
    the best policy so far and say so; after Ctrl-C the exit status is 130.
    """
    import mmdp

    options = {
        "init": init, "starts": starts, "max_iterations": max_iterations, "episodes": episodes,
    }  # fmt: skip
    chosen = _build_method(method, options)
    _check_out(out, (".csv", ".parquet", ".json"))
    if out is not None:
        _check_has_table(method)
    if certify is not None:
        _check_certify(certify, method)
    silent = quiet or as_json
    model = _load(data, loading, split=split, quiet=silent)
    if init is not None and init not in ("wsu", "mvp", "random", "uniform"):
        chosen = _build_method(method, {**options, "init": _start_from(init, model)})
    solving = f"solving with {method} (a first run compiles)"
    with Working(solving, quiet=silent) as working, Interrupts() as interrupts:
        solution = mmdp.solve(
            model, horizon, chosen, backend=backend, seed=seed, time_limit=time_limit,
            certify=certify or False, callback=working.progress,
        )  # fmt: skip
    if out is not None:
        mmdp.save_policy(solution.policy, out)
    if as_json:
        show_json(_solution_document(solution, data, out, init))
    elif not quiet:
        _note_assumptions(model)
        _show_solution(solution, model, data, out)
    if interrupts.seen or solution.status.name == "INTERRUPTED":
        raise typer.Exit(130)


def _check_certify(seconds: float, method: str) -> None:
    from mmdp.methods import PLANNERS

    if not seconds > 0:
        raise InputError(f"--certify must be a positive number of seconds, not {seconds:g}")
    if method == "oracle":
        raise InputError("oracle is an upper bound itself; leave out --certify")
    if method in PLANNERS:
        raise InputError(
            f"--certify bounds Markov policies, and {method} has memory; "
            "mmdp bound DATA --method pairs bounds every policy"
        )


def _check_has_table(method: str) -> None:
    """Refuse to write a policy that no table can hold, before the work."""
    from mmdp.methods import MARKOV_METHODS, PLANNERS

    if method == "oracle":
        raise InputError(
            "oracle has one policy per model, so there is none to write; leave out --out"
        )
    if method in PLANNERS:
        raise InputError(
            f"{method} remembers what it has seen, so no table of actions can be written; "
            f"leave out --out, or choose one of {', '.join(MARKOV_METHODS)}"
        )


def _start_from(init: str, model: MMDP) -> MarkovPolicy:
    import mmdp

    if not Path(init).exists():
        raise InputError(
            f"--init {init}: no start and no file is called so; "
            "choose wsu, mvp, random, uniform or a policy file"
        )
    policy: MarkovPolicy = mmdp.load_policy(init, model)
    return policy


def _note_assumptions(model: MMDP) -> None:
    for warning in _warnings(model):
        complain(f"note: {warning}")


def _solution_document(
    solution: Solution, data: Path, out: Path | None, init: str | None
) -> dict[str, Any]:
    import mmdp

    found, source = solution.evaluation, solution.provenance
    options = dict(source.options)
    if "init" in options and not isinstance(options["init"], str):
        options["init"] = init
    document = {
        "data": data, "method": solution.method, "horizon": source.horizon,
        "value": solution.value, "stderr": found.stderr, "sd": found.sd, "worst": found.worst,
        "cvar10": found.cvar(0.1),
        "bound": solution.bound, "gap": solution.gap, **_bound_origin(solution),
        "status": solution.status.name,
        "status_text": solution.status.value, "iterations": solution.iterations,
        "seconds": solution.seconds, "options": options, "seed": source.seed,
        "backend": source.backend, "version": source.version, "trace": solution.trace,
        "out": out,
    }  # fmt: skip
    if out is None and isinstance(solution.policy, mmdp.MarkovPolicy):
        kind = "actions" if solution.policy.deterministic else "probabilities"
        document["policy"] = {kind: solution.policy.table}
    return document


def _bound_origin(solution: Solution) -> dict[str, str | None]:
    """Which method gave the bound, and whether it holds for every policy or the Markov ones."""
    if solution.bound is None:
        return {"bound_method": None, "bounds": None}
    certificate = solution.details.get("certificate")
    if certificate is not None and certificate.value <= solution.bound:
        return {"bound_method": certificate.method, "bounds": certificate.bounds}
    return {"bound_method": solution.method, "bounds": "markov"}


def _certificate(solution: Solution) -> str:
    """How good the policy is proven to be, in a sentence."""
    assert solution.bound is not None
    assert solution.gap is not None
    value, most = figures([solution.value, solution.bound])
    policy = "policy" if _bound_origin(solution)["bounds"] == "history" else "Markov policy"
    if solution.status.name == "OPTIMAL":
        rest = f" by more than {at_most_percent(solution.gap)}" if solution.gap > PROVEN else ""
        return f"value {value}, proven optimal: no {policy} is better{rest}"
    if solution.gap == math.inf:
        return f"value {value}; no {policy} has more than {most}"
    within = f"within {at_most_percent(solution.gap)} of the best any {policy} can do"
    return f"value {value}, at most {most}: {within}"


def _show_solution(solution: Solution, model: MMDP, data: Path, out: Path | None) -> None:
    found = solution.evaluation
    facts = aligned({
        "value": solution.value, "sd": found.sd, "worst": found.worst, "CVaR 10%": found.cvar(0.1),
    })  # fmt: skip
    if found.errors is not None:
        facts[0] = ("value", f"{facts[0][1]} ± {errors([found.stderr])[0]}")
    facts += [
        ("status", f"{solution.status.name}: {solution.status.value}"),
        ("iterations", f"{solution.iterations:,}"),
        ("seconds", f"{clock(solution.seconds)} ({solution.provenance.backend})"),
    ]
    certificate = solution.details.get("certificate")
    if certificate is not None:
        facts.append(("bound", f"{certificate.method}, {clock(certificate.seconds)} s"))
    print(f"{data}\n{_sizes(model)}")
    show_facts(f"{solution.method}, horizon {solution.provenance.horizon}", facts)
    if solution.bound is not None and solution.policy is not None:
        print(textwrap.fill(_certificate(solution), WIDTH))
    if out is not None:
        print(f"policy written to {out}")
    elif solution.policy is None:
        print("each model has a policy of its own; no single policy can do better")
    elif found.errors is not None:
        episodes = shown(found.details["episodes"], "episode")
        print(f"simulated, {episodes} per model; a policy with memory has no table of actions")
    else:
        _show_policy(solution.policy, model)


def _show_policy(policy: MarkovPolicy, model: MMDP) -> None:
    """The policy as a small table, equal times together; or a hint where it is large."""
    labels, names = model.action_labels, model.state_labels
    widest = max(map(len, labels))
    if len("time 000-000") + sum(max(len(name), widest) + 2 for name in names) > WIDTH:
        print(
            f"the policy has {policy.horizon:,} x {policy.n_states:,} entries; "
            "write it with --out policy.csv"
        )
        return
    spans = _equal_times(policy.actions.tolist())
    rows = [
        (str(a) if a == b else f"{a}-{b}", *(labels[i] for i in actions))
        for a, b, actions in spans[:PREVIEW_ROWS]
    ]
    print(
        "\npolicy: action by time and state" + ("" if policy.deterministic else ", most probable")
    )
    show_table(("time", *names), rows, left=1 + len(names))
    if len(spans) > PREVIEW_ROWS:
        print(f"and {shown(len(spans) - PREVIEW_ROWS, 'more row')}; all with --out policy.csv")


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


# ---------------------------------------------------------------- evaluate
@command(
    "mmdp evaluate policy.csv data/riverswim --split test",
    "mmdp evaluate policy.csv models.npz --json",
    "mmdp evaluate policy.csv data/hiv --out per-model.csv",
)
@loads
def evaluate(
    policy: Annotated[
        Path, typer.Argument(metavar="POLICY", help="A policy file written by solve.")
    ],
    data: Data,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write one row per model: .csv.")
    ] = None,
    backend: Backend = "auto",
    as_json: Json = False,
    split: Split = "train",
    *,
    loading: Loading,
) -> None:
    """The exact return of POLICY on every model of DATA.

    DATA may hold other models than those the policy was computed for. Regret
    compares with each model's own optimal policy.
    """
    import mmdp

    _check_out(out, (".csv",))
    model = _load(data, loading, split=split, quiet=as_json)
    followed = mmdp.load_policy(policy, model)
    with Working("evaluating", quiet=as_json):
        found = mmdp.evaluate(followed, model, backend=backend)
        found.summary()  # regret is computed when first asked for: do it while the line shows
    if out is not None:
        _write_csv(found.to_frame(), out)
    if as_json:
        show_json(_evaluation_document(found, policy, data, split, out))
    else:
        _note_assumptions(model)
        print(f"{data}\n{_sizes(model)}")
        _show_evaluation(found.summary(), f"{policy}, horizon {followed.horizon}")
        if out is not None:
            print(f"returns by model written to {out}")


def _evaluation_document(
    found: Evaluation, policy: Path, data: Path, split: str, out: Path | None
) -> dict[str, Any]:
    assert found.provenance is not None
    return {
        "policy": policy, "data": data, "split": split, "horizon": found.provenance.horizon,
        **found.summary(), "best": found.best, "models": found.model_labels,
        "weights": found.weights, "returns": found.returns, "regret": found.regret,
        "backend": found.provenance.backend, "version": __version__, "out": out,
    }  # fmt: skip


def _show_evaluation(figures: Mapping[str, float], title: str) -> None:
    names = {
        "mean": "mean", "sd": "sd", "worst": "worst", "q10": "10% quantile", "median": "median",
        "q90": "90% quantile", "cvar10": "CVaR 10%", "bayes_regret": "Bayes regret",
        "max_regret": "max regret",
    }  # fmt: skip
    show_facts(title, aligned({names[key]: figures[key] for key in names if key in figures}))


# ---------------------------------------------------------------- compare
@command(
    "mmdp compare data/riverswim --horizon 50",
    "mmdp compare data/hiv -T 15 --methods cadp,wsu,mvp --out table.csv",
    "mmdp compare data/riverswim -T 50 --methods cadp,qmdp,mixts --episodes 100",
    "mmdp compare train.npz -T 20 --test-data test.npz --json",
)
@loads
def compare(
    data: Data,
    horizon: Horizon = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods", "-m", metavar="A,B,...",
            help="Methods, in this order; by default those without memory.",
        ),
    ] = None,
    test: Annotated[
        bool | None,
        typer.Option(
            "--test/--no-test", show_default=False,
            help="Evaluate on the folder's test models; by default where there are any.",
        ),
    ] = None,
    test_data: Annotated[
        Path | None, typer.Option("--test-data", help="Test models in a place of their own.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the table: .csv.")] = None,
    episodes: Episodes = None,
    seed: Seed = None,
    time_limit: TimeLimit = None,
    backend: Backend = "auto",
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:  # fmt: skip
    """Methods on DATA side by side.

    Oracle, the last row, solves each model on its own: no policy does better.
    Regret is the distance to it, on the test models where there are any.
    Policies with memory are simulated: ± is the standard error. A time limit
    holds for each method; after Ctrl-C the exit status is 130.
    """
    chosen = _chosen_methods(methods, episodes)
    _check_out(out, (".csv",))
    train = _load(data, loading, quiet=as_json)
    held_out = None
    if test_data is not None or test is not False:
        held_out = _load_test(data, test_data, test is True, as_json, loading)
    solving = {"backend": backend, "seed": seed, "time_limit": time_limit}
    with Working("comparing (a first run compiles)", quiet=as_json) as working:
        rows = _compare_rows(chosen, train, held_out, horizon, solving, working)
    if out is not None:
        import pandas as pd

        _write_csv(pd.DataFrame(rows).drop(columns="status_text"), out)
    if as_json:
        tested = None if held_out is None else held_out.n_models
        document = {"data": data, "models": train.n_models, "test_models": tested}
        show_json({**document, "methods": rows, "version": __version__, "out": out})
    else:
        _note_assumptions(train)
        _show_comparison(rows, train, held_out, data)
        if out is not None:
            print(f"table written to {out}")
    if rows[-1]["status"] == "INTERRUPTED":
        raise typer.Exit(130)


def _chosen_methods(methods: str | None, episodes: int | None) -> list[Method]:
    """The methods asked for, Oracle moved to the end."""
    from mmdp import Oracle
    from mmdp.methods import MARKOV_METHODS, PLANNERS

    asked = ",".join(MARKOV_METHODS) if methods is None else methods
    names = dict.fromkeys(name.strip() for name in asked.split(",") if name.strip())
    names.pop("oracle", None)
    simulated = [name for name in names if name in PLANNERS]
    if episodes is not None and not simulated:
        raise InputError("--episodes is for methods with memory, and none of these has any")
    chosen = [
        _build_method(name, {"episodes": episodes if name in simulated else None}) for name in names
    ]
    return [*chosen, Oracle(keep_policies=False)]


def _load_test(
    data: Path, test_data: Path | None, wanted: bool, quiet: bool, loading: Loading
) -> MMDP | None:
    if test_data is not None:
        return _load(test_data, loading, quiet=quiet)
    folder = data if data.is_dir() else data.parent
    paired = data.is_dir() or data.stem == "training"
    if paired and any((folder / f"test.{kind}").is_file() for kind in ("csv", "parquet")):
        return _load(folder, loading, split="test", quiet=quiet)
    if wanted:
        raise InputError(f"{data} has no test models; name them with --test-data")
    return None


def _compare_rows(
    methods: Sequence[Method], train: MMDP, test: MMDP | None, horizon: int | None,
    solving: Mapping[str, Any], working: Working,
) -> list[dict[str, Any]]:  # fmt: skip
    rows: list[dict[str, Any]] = []
    for method in methods:
        working.say(f"solving with {method.name}")
        options = {**solving, "callback": working.progress}
        rows.append(_compare_row(method, train, test, horizon, options))
        if rows[-1]["status"] == "INTERRUPTED":
            break
    return rows


def _compare_row(
    method: Method, train: MMDP, test: MMDP | None, horizon: int | None, solving: Mapping[str, Any]
) -> dict[str, Any]:
    import mmdp

    solution = mmdp.solve(train, horizon, method, **solving)
    found = solution.evaluation
    row: dict[str, Any] = {
        "method": method.name, "horizon": solution.provenance.horizon, "train": solution.value,
        "train_stderr": _error_of(found), "train_sd": found.sd, "regret": found.bayes_regret,
    }  # fmt: skip
    if test is not None:
        if method.name == "oracle":
            found = mmdp.solve(test, horizon, method, backend=solving["backend"]).evaluation
        else:
            found = mmdp.evaluate(
                solution, test, episodes=getattr(method, "episodes", None),
                seed=solving["seed"], backend=solving["backend"],
            )  # fmt: skip
        row |= {
            "test": found.mean, "test_stderr": _error_of(found), "test_sd": found.sd,
            "test_regret": found.bayes_regret,
        }  # fmt: skip
    return row | {
        "iterations": solution.iterations, "seconds": solution.seconds,
        "status": solution.status.name, "status_text": solution.status.value,
    }  # fmt: skip


def _error_of(found: Evaluation) -> float | None:
    return None if found.errors is None else found.stderr


def _show_comparison(
    rows: Sequence[Mapping[str, Any]], train: MMDP, test: MMDP | None, data: Path
) -> None:
    simulated = any(row["train_stderr"] is not None for row in rows)
    keys = {"train": "train", "train_sd": "sd", "regret": "regret"}
    if test is not None:
        keys = {"train": "train", "test": "test", "test_sd": "test sd", "test_regret": "regret"}
    columns = [("method", [row["method"] for row in rows])]
    for key, title in keys.items():
        columns.append((title, figures([row[key] for row in rows])))
        if simulated and f"{key}_stderr" in rows[0]:
            columns.append(("±", errors([row[f"{key}_stderr"] for row in rows])))
    if not simulated:  # a planner has no iterations, and a line is short
        columns.append(("iter.", [f"{row['iterations']:,}" for row in rows]))
    columns.append(("seconds", [clock(row["seconds"]) for row in rows]))
    models = shown(test.n_models, "test model") if test is not None else "no test models"
    print(f"{data}\n{_sizes(train)}\n{models}, horizon {rows[0]['horizon']}")
    titles, cells = zip(*columns, strict=True)
    show_table(titles, list(zip(*cells, strict=True)))
    for row in rows:
        if row["status"] in ("TIME_LIMIT", "ITERATION_LIMIT", "INTERRUPTED"):
            print(f"{row['method']}: {row['status_text']}")


# ---------------------------------------------------------------- bound
@command(
    "mmdp bound data/riverswim --horizon 50",
    "mmdp bound data/hiv -T 15 --method pairs --time-limit 60 --json",
)
@loads
def bound(
    data: Data,
    horizon: Horizon = None,
    method: Annotated[
        str,
        typer.Option(
            "--method", "-m", metavar="NAME",
            help="best, oracle, qmdp, pairs, dual, pair-dual or lp.",
        ),
    ] = "best",
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", metavar="S", help="Seconds of the search; 10 by default."),
    ] = None,
    as_json: Json = False,
    split: Split = "train",
    *,
    loading: Loading,
) -> None:  # fmt: skip
    """A proven upper bound on the value of every policy for DATA.

    oracle, qmdp and pairs hold for policies with memory too; dual, pair-dual
    and lp for Markov policies, which see the time and the state. best takes
    the least of them. After Ctrl-C: the least so far, and exit status 130.
    """
    import mmdp
    from mmdp.bounds import BOUNDS

    if method not in BOUNDS:
        _unknown("bound", method, BOUNDS)
    model = _load(data, loading, split=split, quiet=as_json)
    searching = f"bounding with {method} (a first run compiles)"
    with Working(searching, quiet=as_json) as working, Interrupts() as interrupts:
        found = mmdp.bound(
            model, horizon, method, time_limit=time_limit,
            callback=lambda p: working.say(f"{p.method}: at most {p.value:,.8g}"),
        )  # fmt: skip
    steps = horizon if horizon is not None else model.horizon
    if as_json:
        show_json({
            "data": data, "horizon": steps, "value": found.value, "bounds": found.bounds,
            "method": found.method, "incumbent": found.details.get("incumbent"),
            "seconds": found.seconds, "version": __version__,
        })  # fmt: skip
    else:
        _note_assumptions(model)
        print(f"{data}\n{_sizes(model)}")
        show_facts(f"upper bound, horizon {steps}", _bound_facts(found))
    if interrupts.seen:
        raise typer.Exit(130)


def _bound_facts(found: Bound) -> list[tuple[str, str]]:
    known = found.details.get("incumbent")
    most, reached = figures([found.value, known])
    kinds = {"history": "every policy, also with memory", "markov": "every Markov policy"}
    facts = [("value", most), ("holds for", kinds[found.bounds])]
    if known is not None:
        gap = found.gap(known)
        within = f", within {at_most_percent(gap)}" if gap < math.inf else ""
        facts.append(("CADP reaches", f"{reached}{within}"))
    return [*facts, ("method", found.method), ("seconds", clock(found.seconds))]


# ---------------------------------------------------------------- info
@command("mmdp info data/riverswim", "mmdp info models.npz --json")
@loads
def info(
    data: Data,
    as_json: Json = False,
    split: Split = "train",
    *,
    loading: Loading,
) -> None:
    """What DATA holds: sizes, labels, storage, discount, and what was assumed."""
    model = _load(data, loading, split=split, quiet=as_json)
    if as_json:
        show_json({"data": data, **_description(model)})
    else:
        show_facts(str(data), _description_facts(model))
        _note_assumptions(model)


def _description(model: MMDP) -> dict[str, Any]:
    """Everything ``info`` knows about a model."""
    import numpy as np

    rewards = model.rewards[np.broadcast_to(model.allowed, model.rewards.shape)]
    weights = model.weights
    return {
        "name": model.name, "models": model.n_models, "states": model.n_states,
        "actions": model.n_actions, "horizon": model.horizon, "discount": model.discount,
        "initial_given": model.initial_given, "initial_states": int((model.initial > 0).sum()),
        "weights_uniform": bool(np.ptp(weights) <= 1e-12),
        "weights_range": [weights.min(), weights.max()],
        "not_allowed": int((~model.allowed).sum()), "pairs": model.allowed.size,
        "reward_range": [rewards.min(), rewards.max()], "next_rewards": model.has_next_rewards,
        "terminal": bool(model.terminal.any()), "storage": model.storage,
        "density": model.density, "memory": model.memory,
        "labels": {
            what: getattr(model, f"{what}_labels") for what, own in model.labelled.items() if own
        },
        "parameters": sorted(model.parameters), "citation": model.citation,
        "warnings": _warnings(model),
    }  # fmt: skip


def _description_facts(model: MMDP) -> list[tuple[str, str]]:
    from mmdp.support import readable_bytes

    facts = _description(model)
    lowest, highest = facts["weights_range"]
    low, high = (f"{x:,.6g}" for x in facts["reward_range"])
    kind = "per next state" if facts["next_rewards"] else "per state and action"
    labelled = model.labelled
    rows = [
        ("models", _listed(model.n_models, model.model_labels, labelled["model"])),
        ("states", _listed(model.n_states, model.state_labels, labelled["state"])),
        ("actions", _listed(model.n_actions, model.action_labels, labelled["action"])),
        ("horizon", f"{model.horizon} (time-varying)" if model.horizon else "any"),
        ("discount", f"{model.discount:g}"),
        ("initial", f"given, {shown(facts['initial_states'], 'state')} possible"
         if model.initial_given else "uniform (not given)"),
        ("weights", "uniform" if facts["weights_uniform"] else f"{lowest:.4g} to {highest:.4g}"),
        ("not allowed", f"{facts['not_allowed']:,} of {facts['pairs']:,} state-action pairs"),
        ("rewards", f"{low} to {high}, {kind}"),
        ("storage",
         f"{model.storage}, density {model.density:.3g}, {readable_bytes(model.memory)}"),
    ]  # fmt: skip
    if facts["terminal"]:
        rows.insert(9, ("terminal", "values of ending in a state are given"))
    if facts["parameters"]:
        rows.append(("parameters", ", ".join(facts["parameters"])))
    if model.citation:
        rows.append(("source", model.citation))
    return rows


def _listed(count: int, labels: Sequence[str], own: bool, most: int = 8) -> str:
    """The count, and the first labels where the model has labels of its own."""
    if not own or all(label == str(i) for i, label in enumerate(labels)):
        return f"{count:,}"
    names = [repr(x) if "," in x else x for x in labels[:most]] + ["..."] * (count > most)
    return f"{count:,}: {', '.join(names)}"


def _warnings(model: MMDP) -> list[str]:
    found = []
    if not model.initial_given:
        found.append("no initial distribution is given; every state is equally likely at the start")
    unused = int((model.weights == 0).sum())
    if unused:
        found.append(f"{shown(unused, 'model')} of weight 0")
    return found


# ---------------------------------------------------------------- domain
@command(
    "mmdp domain --list",
    "mmdp domain riverswim --out data/riverswim",
    "mmdp domain hiv --out data/hiv --seed 1 --models 200 --test-models 1000",
    "mmdp domain garnet --out data/garnet --set n_states=500 --set branching=10",
)
def domain(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The domain.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Where to write it.")
    ] = None,
    seed: Seed = None,
    models: Annotated[
        int | None, typer.Option("--models", metavar="N", help="Number of training models.")
    ] = None,
    test_models: Annotated[
        int | None, typer.Option("--test-models", metavar="N", help="Number of test models.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another option of the domain."),
    ] = None,
    as_list: Annotated[bool, typer.Option("--list", help="List the domains.")] = False,
    as_json: Json = False,
) -> None:
    """Write a benchmark domain's training and test models.

    FOLDER gets training.csv, test.csv, initial.csv and parameters.csv in the
    columns of the paper; solve, compare and info read it.
    """
    from mmdp.domains import DESCRIPTIONS, DOMAINS

    if as_list or name is None:
        _list_domains(DESCRIPTIONS, as_json)
        return
    if name not in DOMAINS:
        _unknown("domain", name, DOMAINS)
    if out is None:
        raise InputError(f"say where to write {name}: --out FOLDER")
    _check_is_folder(out)
    counts = {"seed": seed, "models": models, "test_models": test_models}
    arguments = _domain_arguments(name, DOMAINS[name], counts, settings or [])
    with Working(f"drawing the models of {name}", quiet=as_json) as working:
        train, test = _draw(name, DOMAINS[name], arguments)
        working.say(f"writing {out}")
        _write_domain(train, test, out)
    if as_json:
        sizes = {"models": train.n_models, "test_models": test.n_models}
        show_json({"domain": name, "out": out, **sizes, "options": arguments})
    else:
        print(f"{out}\n{_sizes(train)}; {shown(test.n_models, 'test model')}")


def _draw(name: str, function: Any, arguments: Mapping[str, Any]) -> tuple[MMDP, MMDP]:
    try:
        train, test = function(**arguments)
    except TypeError as error:  # a word where --set should have given a number
        raise InputError(f"{name} cannot be drawn with {dict(arguments)}: {error}") from None
    return train, test


def _list_domains(descriptions: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        show_json({"domains": descriptions})
    else:
        show_facts("benchmark domains", descriptions.items())


def _domain_arguments(
    name: str, function: Any, counts: Mapping[str, int | None], settings: Sequence[str]
) -> dict[str, Any]:
    """The arguments of a domain's function, by its own names."""
    known = inspect.signature(function).parameters
    aliases = {"models": ("n_train", "n_models"), "test_models": ("n_test",), "seed": ("seed",)}
    arguments: dict[str, Any] = {}
    for key, value in counts.items():
        if value is None:
            continue
        own = next((alias for alias in aliases[key] if alias in known), None)
        if own is None:
            raise InputError(f"{name} has no --{key.replace('_', '-')}: it is always the same")
        arguments[own] = value
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: write KEY=VALUE")
        if key not in known:
            _unknown(f"option of {name}", key, known)
        arguments[key] = _literal(text)
    return arguments


def _literal(text: str) -> Any:
    """A number, true, false, null or a list where it reads as one; else the text.

    >>> _literal("0.5"), _literal("paper"), _literal("[1, 2]")
    (0.5, 'paper', [1, 2])
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _write_domain(train: MMDP, test: MMDP, folder: Path) -> None:
    import mmdp

    folder.mkdir(parents=True, exist_ok=True)
    mmdp.save(train, folder)
    mmdp.save(test, folder, split="test")


# ---------------------------------------------------------------- fit
@command(
    "mmdp fit log.csv --models 200 --out models",
    "mmdp fit log.csv --out models --rewards normal --unseen absorb",
    "mmdp fit log.parquet --out models --column state=from --column next_state=to",
)
def fit(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Logged transitions, CSV or Parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where to write.")],
    models: Annotated[int, typer.Option("--models", metavar="N", help="Posterior models.")] = 200,
    test_models: Annotated[
        int, typer.Option("--test-models", metavar="N", help="Held-out models.")
    ] = 0,
    concentration: Annotated[
        float, typer.Option("--concentration", metavar="X", help="Prior weight of a next state.")
    ] = 1.0,
    support: Annotated[
        str, typer.Option("--support", metavar="all|seen", help="Next states that may happen.")
    ] = "all",
    unseen: Annotated[
        str,
        typer.Option(
            "--unseen", metavar="prior|error|absorb|forbid", help="State-action pairs never seen."
        ),
    ] = "prior",
    absorbing: Annotated[
        list[str] | None,
        typer.Option("--absorbing", metavar="LABEL", help="A state that ends an episode."),
    ] = None,
    rewards: Annotated[
        str,
        typer.Option("--rewards", metavar="average|normal|FILE", help="Where rewards come from."),
    ] = "average",
    discount: Annotated[float, typer.Option("--discount", metavar="G", help="0 to 1.")] = 1.0,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="ROLE=NAME", help="A column of another name."),
    ] = None,
    seed: Seed = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace models that are there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Draw models from the posterior of logged transitions.

    LOG has the columns state, action, next_state and, where known, reward,
    episode and time; labels are welcome. FOLDER then holds models that solve,
    compare and report read.
    """
    from mmdp.posterior import fit_folder

    names = dict(setting.partition("=")[::2] for setting in columns or [])
    with Working(f"fitting {log}", quiet=as_json):
        found = fit_folder(
            log, out, overwrite=overwrite, models=models, test_models=test_models,
            concentration=concentration, support=support, unseen=unseen,
            absorbing=absorbing or (), rewards=rewards, discount=discount,
            columns=names or None, seed=0 if seed is None else seed,
        )  # fmt: skip
    if as_json:
        show_json({"out": out, "models": found.train.n_models, "warnings": list(found.warnings)})
        return
    test = 0 if found.test is None else found.test.n_models
    facts = [
        ("log", shown(int(found.visits.sum()), "transition")),
        ("models", f"{found.train.n_models:,} to solve, {test:,} held out"),
        ("states", f"{found.train.n_states:,}"),
        ("actions", f"{found.train.n_actions:,}"),
        ("unseen", f"{len(found.unseen):,} of {found.visits.size:,} state-action pairs"),
    ]
    show_facts(str(out), [*facts, *(("mind", warning) for warning in found.warnings)])


# ---------------------------------------------------------------- report and plot
Effects = Annotated[
    Path | None,
    typer.Option(
        "--effects", metavar="FILE",
        help="Effect and cost apart: a CSV with state,action,effect,cost (and model).",
    ),
]  # fmt: skip
Thresholds = Annotated[
    str | None,
    typer.Option(
        "--thresholds", metavar="A,B,...", help="What one unit of effect may be worth."
    ),
]  # fmt: skip


def _willingness(effects: Path | None, thresholds: str | None, model: MMDP) -> dict[str, Any]:
    """The options of a report for cost and effect."""
    import mmdp

    if (effects is None) != (thresholds is None):
        raise InputError("--effects and --thresholds belong together; give both or none")
    if effects is None or thresholds is None:
        return {}
    try:
        levels = [float(x) for x in thresholds.split(",")]
    except ValueError:
        raise InputError(
            f"--thresholds {thresholds!r}: give numbers with commas between, e.g. 0,20000,50000"
        ) from None
    worth, price = mmdp.report.read_effects(effects, model)
    return {"effects": worth, "costs": price, "thresholds": levels}


@command(
    "mmdp report models --horizon 50 --out report.html",
    "mmdp report models --policy policy.csv --out report.html",
    "mmdp report data/hiv -T 15 --certify 10 --information",
    "mmdp report models -T 15 --effects effects.csv --thresholds 0,20000,50000",
)
@loads
def report(
    data: Data,
    loading: Loading,
    horizon: Horizon = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="FILE", help="A policy to report on instead of CADP's."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")
    ] = Path("report.html"),
    methods: Annotated[
        str, typer.Option("--methods", metavar="A,B,...", help="Methods to compare.")
    ] = "cadp,wsu,mvp",
    certify: Annotated[
        float | None,
        typer.Option("--certify", metavar="SECONDS", help="Prove how good the policy is."),
    ] = None,
    information: Annotated[
        bool, typer.Option("--information", help="The value of learning each parameter.")
    ] = False,
    enough: Annotated[
        bool,
        typer.Option("--enough", help="Were there enough models? However many solves it takes."),
    ] = False,
    effects: Effects = None,
    thresholds: Thresholds = None,
    seed: Seed = None,
) -> None:
    """Write one page that explains the policy, its risks and its rivals.

    The page needs no network. With --policy the horizon is the policy's.
    """
    import mmdp

    with Working(f"reading {data}") as working:
        model = _load(data, loading)
        given = None if policy is None else mmdp.load_policy(policy, model)
        steps = horizon if given is None or horizon is not None else given.horizon
        test = _load_test(data, None, False, True, loading)
        proof = None
        if certify is not None:
            working.say("proving a bound")
            proof = mmdp.bound(model, steps, time_limit=certify, incumbent=given)
        mmdp.report.write(
            model, out, horizon=steps, policy=given, test=test,
            methods=tuple(x.strip() for x in methods.split(",")), bound=proof,
            seed=0 if seed is None else seed, unseen=mmdp.report.read_unseen(data),
            information=True if information else None, say=working.say,
            enough=True if enough else None, resamples=20 if enough else None,
            **_willingness(effects, thresholds, model),
        )  # fmt: skip
    print(f"report written to {out}")


@command(
    "mmdp plot policy models --horizon 50 --out policy.png",
    "mmdp plot returns models --horizon 50 --policy policy.csv --out returns.svg",
)
@loads
def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What to draw; see below.")],
    data: Data,
    loading: Loading,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help=".png or .svg")],
    horizon: Horizon = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="A policy to draw.")
    ] = None,
    methods: Annotated[
        str, typer.Option("--methods", metavar="A,B,...", help="Methods to compare.")
    ] = "cadp,wsu,mvp",
    effects: Effects = None,
    thresholds: Thresholds = None,
    seed: Seed = None,
) -> None:
    """Draw one of the report's pictures as PNG or SVG.

    KIND is policy, methods, returns, regret, weights, trace, information,
    enough or willingness.
    """
    import mmdp

    if kind not in mmdp.report.PICTURES:
        _unknown("picture", kind, mmdp.report.PICTURES)
    with Working(f"drawing {kind}") as working:
        model = _load(data, loading)
        given = None if policy is None else mmdp.load_policy(policy, model)
        mmdp.report.draw(
            kind, model, out, horizon=horizon if given is None else given.horizon, policy=given,
            methods=tuple(x.strip() for x in methods.split(",")),
            seed=0 if seed is None else seed, say=working.say,
            **_willingness(effects, thresholds, model),
        )  # fmt: skip
    print(f"{kind} drawn in {out}")


# ---------------------------------------------------------------- paper
@command(
    "mmdp paper",
    "mmdp paper --full --out out/full",
    "mmdp paper --data data/cadp-uai2023 --domain RS --domain HIV",
)
def paper(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where to write it.")
    ] = Path("out"),
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FOLDER", help="CSV folders to use instead of the models here."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Every horizon of POP, POPS and INV (some minutes).")
    ] = False,
    domains: Annotated[
        list[str] | None,
        typer.Option("--domain", metavar="NAME", help="Only RS, POP, POPS, INV or HIV."),
    ] = None,
    seed: Seed = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compute again what FOLDER/cells holds.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compute the paper's tables and figure beside its printed figures.

    Writes results.csv, PNGs and one page, paper.html, into FOLDER. What was
    computed before with the same options is reused, also after Ctrl-C (exit
    status 130).
    """
    from mmdp.paper.cases import CASES, SEED
    from mmdp.paper.page import terminal_tables, write
    from mmdp.paper.run import Job

    job = Job(
        out, data=data, full=full, domains=tuple(domains or CASES),
        seed=SEED if seed is None else seed, fresh=fresh,
    )  # fmt: skip
    _make_folder(out)
    if data is not None and job.generated and not as_json:
        complain(f"note: {data} has no models of {', '.join(job.generated)}; these are generated")
    try:
        with Steps(quiet=as_json) as steps:
            job.report = steps.say
            results = job.run()
        files = write(results, out)
    except KeyboardInterrupt:
        kept = f"{job.done} of {job.total} results kept in {out / 'cells'}"
        complain(f"interrupted; {kept}; run again to go on")
        raise typer.Exit(130) from None
    if as_json:
        records = results.frame().to_dict("records")
        document = {"results": records, "generated": job.generated}
        show_json({**document, "seconds": results.seconds, "files": files})
        return
    for title, columns, rows in terminal_tables(results):
        print(f"\n{title}")
        show_table(columns, rows)
    reused = f", {results.reused} of {job.total} results reused" * bool(results.reused)
    print(f"\n{results.seconds:.1f} s{reused}; open {out / 'paper.html'}")


# ---------------------------------------------------------------- bench
@command(
    "mmdp bench",
    "mmdp bench --quick --out out/trial",
    "mmdp bench --only loops,bandwidth",
)
def bench(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where to write it.")
    ] = Path("out/bench"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A trial on tiny sizes, under a minute.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="A,B,...", help="Only these sections; see the table."),
    ] = None,
    large: Annotated[
        bool, typer.Option("--large", help="Also a case of 200 million non-zeros (3 GB).")
    ] = False,
    gpu_json: Annotated[
        Path | None,
        typer.Option(
            "--gpu-json", metavar="FILE", help="GPU figures that benchmarks/gpu.py wrote elsewhere."
        ),
    ] = None,
    docs: Annotated[
        bool, typer.Option("--docs", help="Put the table into docs/performance.md.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure speed and memory against peers, floors and the machine.

    Runs from a clone of the repository, five minutes on a quiet machine.
    Writes bench.json, bench.md and bench.png into FOLDER. A missed floor is
    shown and is no error; exit status 1 means that a section failed.
    """
    suite = _benchmarks()
    names = tuple(x.strip() for x in (only or "").split(",") if x.strip())
    if gpu_json is not None and not gpu_json.is_file():
        raise InputError(f"{gpu_json}: no such file; write it with python -m benchmarks.gpu --json")
    options = suite.Options(quick=quick, large=large, only=names, gpu_json=gpu_json)
    options.chosen()
    _make_folder(out)
    report = suite.Report(options)
    try:
        with Steps(quiet=as_json) as steps:
            suite.run(report, say=steps.say, show=_nothing if as_json else _print_line)
    except KeyboardInterrupt:
        report.write(out)
        complain(f"interrupted; what was measured is in {out}")
        raise typer.Exit(130) from None
    files = report.write(out)
    if docs:
        suite.fill_page(report.document())
    if as_json:
        show_json({**report.document(), "files": list(files.values())})
    else:
        summary = suite.table.summary(report.rows)
        spent = sum(report.seconds.values())
        print(f"\n{summary}; {spent:.0f} s; written to {out / 'bench.md'}, .json and .png")
    if report.failed:
        complain(f"failed: {', '.join(report.failed)}; the last row of each says why")
        raise typer.Exit(1)


def _print_line(line: str) -> None:
    print(line, flush=True)


def _nothing(line: str) -> None:
    """In place of the lines of a table that nobody wants."""


def _benchmarks() -> Any:
    """The module benchmarks.suite of the clone that this package, or the shell, is in."""
    import importlib

    here = Path(__file__).resolve().parents[2]
    root = next((x for x in (here, Path.cwd()) if (x / "benchmarks" / "suite.py").is_file()), None)
    if root is None:
        raise InputError(
            "mmdp bench needs the folder benchmarks/ of the repository: clone it, "
            "pip install -e '.[bench]' there and run mmdp bench in the clone"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        return importlib.import_module("benchmarks.suite")
    except ModuleNotFoundError as error:
        raise InputError(
            f"mmdp bench needs {error.name}: pip install -e '.[bench]' in the clone"
        ) from None


def _check_is_folder(path: Path) -> None:
    """Refuse a file, and what is named like one, where a folder is wanted."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file; choose the name of a folder")
    if path.suffix in (".csv", ".parquet", ".npz", ".json") and not path.exists():
        raise InputError(f"{path}: a folder is wanted; leave out {path.suffix}")


def _make_folder(path: Path) -> None:
    """Make the output folder now, so that a bad path costs no work."""
    _check_is_folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {path}: {error.strerror}") from None
