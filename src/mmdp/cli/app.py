"""The application: its commands, and how errors become one line and an exit status."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from mmdp._version import __version__
from mmdp.cli import (
    bound,
    compare,
    completion,
    convert,
    doctor,
    domain,
    evaluate,
    export,
    fit,
    frontier,
    info,
    methods,
    paper,
    plot,
    report,
    solve,
    study,
    update,
)
from mmdp.cli.console import complain, notice
from mmdp.cli.options import INTERRUPTED, examples
from mmdp.clock import listening
from mmdp.errors import InputError, MMDPWarning, Remedy
from mmdp.words import either

COMMANDS = (  # as the help lists them
    solve.solve, evaluate.evaluate, compare.compare, methods.methods, bound.bound,
    frontier.frontier, info.info, domain.domain, fit.fit, update.update, convert.convert,
    report.report, plot.plot, export.export, study.study, paper.paper, doctor.doctor,
    completion.completion,
)  # fmt: skip


class App(click.Group):
    """The group of all commands. ``main`` exits; with ``standalone_mode=False`` it raises."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with listening(lambda: notice("compiling for this machine, once")), _noting():
                return super().invoke(ctx)
        except InputError as error:
            known = self.commands[ctx.invoked_subcommand or ""].params
            raise InputError(error.text(partial(as_option, known))) from None
        except KeyboardInterrupt:
            complain("interrupted before the end")
            return INTERRUPTED

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **rest: Any
    ) -> Any:
        call = partial(super().main, args, standalone_mode=False, **rest)
        return sys.exit(exit_status(call)) if standalone_mode else call()


@contextmanager
def _noting() -> Iterator[None]:
    """Warnings of the library as notes in one line, without a place in the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", MMDPWarning)
        plain = warnings.showwarning

        def show(message: Any, category: Any, *rest: Any) -> None:
            if issubclass(category, MMDPWarning):
                complain(f"note: {message}")
            else:
                plain(message, category, *rest)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def as_option(known: Iterable[click.Parameter], remedy: Remedy) -> str | None:
    """The remedy in the words of a command with these parameters; None if it has no such option.

    >>> column = click.Option(["--column", "columns"])
    >>> as_option([column], Remedy("columns", {"state": "from"}))
    'pass --column state=from'
    >>> as_option([column], Remedy("allowed"))
    """
    flag = next((x.opts[0] for x in known if x.name == remedy.argument), None)
    if flag is None:
        return None
    words = [remedy.do, flag, either(_typed(value, flag) for value in remedy.values)]
    return " ".join(filter(None, words))


def _typed(value: object, flag: str) -> str:
    """What a user types after the flag for the value of an argument."""
    if isinstance(value, Mapping):
        return f" {flag} ".join(f"{key}={x}" for key, x in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return "" if isinstance(value, bool) else str(value)


def exit_status(call: Callable[[], Any]) -> int:
    """Run, and turn what went wrong into one line and an exit status."""
    try:
        status = call()
        sys.stdout.flush()
    except InputError as error:
        complain(str(error))
    except click.UsageError as error:
        complain(_usage(error))
    except BrokenPipeError:
        # nobody reads the output any more: keep Python from complaining when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        reason = error.strerror or str(error)
        complain(f"{error.filename}: {reason}" if error.filename else reason)
    except MemoryError:
        complain("not enough memory")
        return 1
    except click.Abort:
        return INTERRUPTED
    else:
        return status if isinstance(status, int) else 0
    return 2


def _usage(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else "mmdp"
    message = error.format_message().rstrip(".")
    return f"{message}{' See' if message.endswith('?') else '; see'} {path} --help"


@click.group(
    cls=App,
    commands=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "mmdp domain riverswim --out data/riverswim",
        "mmdp solve data/riverswim --horizon 50 --out policy.csv",
        "mmdp evaluate policy.csv data/riverswim --split test",
    ),
)
@click.version_option(__version__, message="mmdp %(version)s", help="Print the version.")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Find one policy that does well in every plausible model of the world.

    When the probabilities of a Markov decision process are uncertain, write down many models
    that the data allow and solve them together: a multi-model Markov decision process.

    DATA is a folder with training.csv (and test.csv), a .csv, .parquet, .npz, .pomdpx, .pomdp or
    .transitions file, FILE.py:NAME for models that a Python file builds, or - for standard input.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """The entry point of the ``mmdp`` script."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by >&-
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, mode), encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a label that the terminal cannot show must not end the command
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="mmdp")
    except KeyboardInterrupt:  # outside of a command: inside, it is caught there
        sys.exit(INTERRUPTED)
