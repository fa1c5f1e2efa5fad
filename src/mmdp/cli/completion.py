"""mmdp completion: a script for the shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mmdp.cli.options import command

SHELLS = ("bash", "zsh", "fish")


@command(
    "mmdp completion bash >> ~/.bashrc",
    "mmdp completion zsh >> ~/.zshrc",
    "mmdp completion fish > ~/.config/fish/completions/mmdp.fish",
)
@click.argument("shell", type=click.Choice(SHELLS), help="Your shell.")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script for the Tab key of your shell.

    It completes commands, options, methods and files. Run the line for your shell once, then
    open a new terminal.
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    print(completion_class(ctx.find_root().command, {}, "mmdp", "_MMDP_COMPLETE").source())
