"""mmdp domain: benchmark models, written as files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmdp.cli import options
from mmdp.cli.console import Working, notice, show_facts, show_json, sizes
from mmdp.cli.options import command, option
from mmdp.cli.types import refuse_name
from mmdp.errors import InputError
from mmdp.words import counted

if TYPE_CHECKING:
    from mmdp import MMDP

# the options of the command, and what the functions of the domains call them
ALIASES = {"models": ("n_train", "n_models"), "test_models": ("n_test",), "seed": ("seed",)}


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from mmdp.domains import DOMAINS

    return [name for name in DOMAINS if name.startswith(incomplete)]


@command(
    "mmdp domain --list",
    "mmdp domain riverswim --out data/riverswim",
    "mmdp domain hiv --out data/hiv --seed 1 --models 200 --test-models 1000",
    "mmdp domain garnet --out data/garnet --set n_states=500 --set branching=10",
)
@click.argument("name", required=False, shell_complete=_complete, help="The domain.")
@options.out_folder()
@option("--models", type=int, metavar="N", help="Number of training models.")
@option("--test-models", type=int, metavar="N", help="Number of test models.")
@options.seed(None)
@option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Another option of the domain; may be given several times.",
)  # fmt: skip
@option("--list", "as_list", is_flag=True, help="List the domains.")
@options.as_json
def domain(
    name: str | None, out: Path | None, models: int | None, test_models: int | None,
    seed: int | None, settings: Sequence[str], as_list: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write the models of a benchmark domain as CSV files.

    The folder gets training.csv, test.csv, initial.csv and parameters.csv; solve, compare and
    info read it. Without NAME the domains are listed.
    """
    from mmdp.clock import heard
    from mmdp.domains import DESCRIPTIONS, DOMAINS
    from mmdp.io.folders import replace_folder

    if as_list or name is None:
        _list(DESCRIPTIONS, as_json)
        return
    if name not in DOMAINS:
        refuse_name("domain", name, DOMAINS)
    if out is None:
        raise InputError(f"say where to write {name}: --out FOLDER")
    counts = {"seed": seed, "models": models, "test_models": test_models}
    arguments = _arguments(name, DOMAINS[name], counts, settings)
    with Working(f"drawing the models of {name}", quiet=as_json) as working, heard(notice):
        train, test = _draw(name, DOMAINS[name], arguments)
        working.say(f"writing {out}")
        replace_folder(out, train, test)
    if as_json:
        drawn = {"models": train.n_models, "test_models": test.n_models}
        show_json({"domain": name, "out": out, **drawn, "options": arguments})
    else:
        print(f"{out}\n{sizes(train)}; {counted(test.n_models, 'test model')}")


def _list(descriptions: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        show_json({"domains": descriptions})
    else:
        show_facts("benchmark domains", descriptions.items())


def _arguments(
    name: str, function: Any, counts: Mapping[str, int | None], settings: Sequence[str]
) -> dict[str, Any]:
    """The arguments of a domain's function, by its own names."""
    known = inspect.signature(function).parameters
    arguments: dict[str, Any] = {}
    for key, value in counts.items():
        if value is None:
            continue
        own = next((alias for alias in ALIASES[key] if alias in known), None)
        if own is None:
            raise InputError(f"{name} has no --{key.replace('_', '-')}: it is always the same")
        arguments[own] = value
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: write KEY=VALUE")
        if key not in known:
            refuse_name(f"option of {name}", key, known)
        arguments[key] = _literal(text)
    return arguments


def _literal(text: str) -> Any:
    """A number, true, false, null or a list if it reads as one; else the text.

    >>> _literal("0.5"), _literal("paper"), _literal("[1, 2]")
    (0.5, 'paper', [1, 2])
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _draw(name: str, function: Any, arguments: Mapping[str, Any]) -> tuple[MMDP, MMDP]:
    try:
        train, test = function(**arguments)
    except InputError as error:
        raise error.at(name) from None
    return train, test
