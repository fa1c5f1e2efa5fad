"""The application: its commands, and how errors become one line and an exit status."""

from __future__ import annotations

import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, NoReturn

import click
from click.shell_completion import get_completion_class

import mmdp
from mmdp.cli.console import EXIT_INTERRUPTED, print_stderr
from mmdp.cli.info import info
from mmdp.cli.models import convert, domain, fit, update
from mmdp.cli.report import export, paper, plot, report
from mmdp.cli.signatures import command, format_examples
from mmdp.cli.solve import bound, evaluate, solve
from mmdp.cli.study import study
from mmdp.core.errors import InputError, MMDPWarning, Remedy
from mmdp.core.text import join_or
from mmdp.core.timing import InterruptFlag

ARGUMENT = re.compile(r"^\w+(?= must be |=\S)")  # that a message is about
Shell = Annotated[str, click.Choice(("bash", "zsh", "fish"))]


@command(
    "mmdp completion bash >> ~/.bashrc",
    "mmdp completion zsh >> ~/.zshrc",
    "mmdp completion fish > ~/.config/fish/completions/mmdp.fish",
)
def completion(shell: Shell) -> None:
    """Print a script for the Tab key of your shell.

    It completes commands, options, methods and files. Run the line for your shell once, then
    open a new terminal.

    Parameters
    ----------
    shell
        Your shell.
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    print(completion_class(app, {}, "mmdp", "_MMDP_COMPLETE").source())


COMMANDS = [  # as the help lists them
    *(solve, evaluate, bound, report, export, fit, update, convert, domain, study, plot),
    *(info, paper, completion),
]


class App(click.Group):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with InterruptFlag() as flag, _print_warnings_as_notes():
                status = super().invoke(ctx)
            return status or EXIT_INTERRUPTED * flag.is_set
        except InputError as error:
            parameters = self.commands[ctx.invoked_subcommand or ""].params
            flags = {str(x.name): x.opts[0] for x in parameters}
            message = ARGUMENT.sub(lambda match: flags.get(match[0], match[0]), error.message)
            error.message = message.replace(" or None, not ", ", not ")
            print_stderr(error.format_message(partial(format_remedy, flags)))
            return 2
        except KeyboardInterrupt as error:
            print_stderr(f"interrupted{f'; {error}' if error.args else ' before the end'}")
            return EXIT_INTERRUPTED

    def main(self, *args: Any, **options: Any) -> NoReturn:  # type: ignore[override]
        """Run, turn what went wrong into one line and exit."""
        status: object = 2
        try:
            status = super().main(*args, **options | {"standalone_mode": False})
            sys.stdout.flush()
        except click.UsageError as error:
            path = "mmdp" if error.ctx is None else error.ctx.command_path
            message = error.format_message().rstrip(".")
            print_stderr(f"{message}{' See' if message.endswith('?') else '; see'} {path} --help")
        except BrokenPipeError:
            # nobody reads the output any more: keep Python from complaining when it flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 1
        except OSError as error:
            reason = error.strerror or str(error)
            print_stderr(f"{error.filename}: {reason}" if error.filename else reason)
        except MemoryError:
            print_stderr("not enough memory")
            status = 1
        except click.Abort:
            status = EXIT_INTERRUPTED
        sys.exit(status if isinstance(status, int) else 0)


@contextmanager
def _print_warnings_as_notes() -> Iterator[None]:
    """Warnings of the library as notes in one line, without a place in the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", MMDPWarning)
        default_showwarning = warnings.showwarning

        def show_warning(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if issubclass(category, MMDPWarning):
                print_stderr(f"note: {message}")
            else:
                default_showwarning(message, category, *rest)

        warnings.showwarning = show_warning  # type: ignore[assignment]
        yield


def format_remedy(flags: Mapping[str, str], remedy: Remedy) -> str | None:
    """Format a remedy with the options of a command, by name; None if it has no such option.

    >>> format_remedy({"columns": "--column"}, Remedy("columns", {"state": "from"}))
    'pass --column state=from'
    >>> format_remedy({"columns": "--column"}, Remedy("allowed"))
    >>> load_option = {"load_option": "--load-option"}
    >>> format_remedy(load_option, Remedy("duplicates", "last", "sum"))
    'pass --load-option duplicates=last or duplicates=sum'
    """
    flag = flags.get(remedy.argument)
    words = [_format_value(value, flag or "") for value in remedy.values]
    load_options = inspect.signature(mmdp.load).parameters if "load_option" in flags else ()
    if flag is None and remedy.argument in load_options:
        flag, words = flags["load_option"], [f"{remedy.argument}={x}" for x in words]
    return flag and " ".join(filter(None, [remedy.verb, flag, join_or(words)]))


def _format_value(value: object, flag: str) -> str:
    """Format the value of an argument as a user types it after the flag."""
    if isinstance(value, Mapping):
        return f" {flag} ".join(f"{key}={x}" for key, x in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "" if flag else str(value).lower()
    return str(value)


@click.group(
    cls=App,
    commands=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=format_examples(
        "mmdp domain riverswim --out data/riverswim",
        "mmdp solve data/riverswim --horizon 50 --out policy.csv",
        "mmdp evaluate policy.csv data/riverswim --split test",
    ),
)
@click.version_option(mmdp.__version__, message="mmdp %(version)s", help="Print the version.")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Find one policy that does well over many plausible models.

    When the probabilities of a Markov decision process are uncertain, take many models that agree
    with the data and solve them together: a multi-model Markov decision process.

    DATA is a folder with training.csv (and test.csv), a .csv, .parquet, .npz, .pomdpx or .pomdp
    file, or FILE.py:NAME for models that a Python file builds.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Run the ``mmdp`` script; it shows progress where stderr is no terminal too."""
    os.environ.setdefault("MMDP_PROGRESS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a label that the terminal cannot show must not end the command
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="mmdp")
    except KeyboardInterrupt:  # outside of a command: inside, it is caught there
        sys.exit(EXIT_INTERRUPTED)
