"""The application: its commands, and how errors become one line and an exit status."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import click
from click.shell_completion import get_completion_class

from mmdp._version import __version__
from mmdp.cli.console import EXIT_INTERRUPTED, print_stderr
from mmdp.cli.data import is_load_option
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
    """The group of all commands. ``main`` exits; with ``standalone_mode=False`` it raises."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with InterruptFlag() as flag, _print_warnings_as_notes():
                status = super().invoke(ctx)
            return status or EXIT_INTERRUPTED * flag.is_set
        except InputError as error:
            parameters = self.commands[ctx.invoked_subcommand or ""].params
            flags = {str(x.name): x.opts[0] for x in parameters if isinstance(x, click.Option)}
            message = ARGUMENT.sub(lambda match: flags.get(match[0], match[0]), error.message)
            error.message = message.replace(" or None, not ", ", not ")
            raise InputError(error.format_message(partial(format_remedy, parameters))) from None
        except KeyboardInterrupt as error:
            print_stderr(f"interrupted{f'; {error}' if error.args else ' before the end'}")
            return EXIT_INTERRUPTED

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **rest: Any
    ) -> Any:
        call = partial(super().main, args, standalone_mode=False, **rest)
        return sys.exit(run_with_exit_status(call)) if standalone_mode else call()


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


def format_remedy(parameters: Iterable[click.Parameter], remedy: Remedy) -> str | None:
    """Format a remedy in the words of a command; None if it has no such option.

    >>> column = click.Option(["--column", "columns"])
    >>> format_remedy([column], Remedy("columns", {"state": "from"}))
    'pass --column state=from'
    >>> format_remedy([column], Remedy("allowed"))
    >>> load_option = click.Option(["--load-option"], multiple=True)
    >>> format_remedy([load_option], Remedy("duplicates", "last", "sum"))
    'pass --load-option duplicates=last or duplicates=sum'
    """
    flags = {x.name: x.opts[0] for x in parameters}
    flag = flags.get(remedy.argument)
    words = [_format_value(value, flag or "") for value in remedy.values]
    if flag is None and "load_option" in flags and is_load_option(remedy.argument):
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


def run_with_exit_status(call: Callable[[], object]) -> int:
    """Run, and turn what went wrong into one line and an exit status."""
    try:
        status = call()
        sys.stdout.flush()
    except InputError as error:
        print_stderr(str(error))
    except click.UsageError as error:
        print_stderr(_format_usage_error(error))
    except BrokenPipeError:
        # nobody reads the output any more: keep Python from complaining when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        reason = error.strerror or str(error)
        print_stderr(f"{error.filename}: {reason}" if error.filename else reason)
    except MemoryError:
        print_stderr("not enough memory")
        return 1
    except click.Abort:
        return EXIT_INTERRUPTED
    else:
        return status if isinstance(status, int) else 0
    return 2


def _format_usage_error(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else "mmdp"
    message = error.format_message().rstrip(".")
    return f"{message}{' See' if message.endswith('?') else '; see'} {path} --help"


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
@click.version_option(__version__, message="mmdp %(version)s", help="Print the version.")
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
