"""mmdp domain: benchmark models, written as files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from mmdp.cli.console import LiveLine, format_sizes, print_facts, print_json, show_status
from mmdp.cli.signatures import command, to_flag
from mmdp.cli.types import OutputFolder, TextParam, check_name, parse_pair
from mmdp.core.errors import InputError
from mmdp.core.text import pluralize

if TYPE_CHECKING:
    from mmdp import MMDP
    from mmdp.data.domains import Domain

DomainFunction = Callable[..., "Domain"]
# the options of the command, and what the functions of the domains call them
ALIASES = {"n_models": ("n_train", "n_models"), "n_test_models": ("n_test",), "seed": ("seed",)}
DomainName = Annotated[str, TextParam("NAME", role="domain", words="mmdp.data.domains:DOMAINS")]
Settings = Annotated[
    dict[str, str],
    TextParam("KEY=VALUE", parse_pair, "{flag} {text}: write KEY=VALUE", is_repeated=True),
]


@command(
    "mmdp domain --list",
    "mmdp domain riverswim --out data/riverswim",
    "mmdp domain hiv --out data/hiv --seed 1 --n-models 200 --n-test-models 1000",
    "mmdp domain garnet --out data/garnet --set n_states=500 --set branching=10",
)
def domain(
    name: DomainName | None = None,
    *,
    out: OutputFolder | None = None,
    n_models: int | None = None,
    n_test_models: int | None = None,
    seed: int | None = None,
    settings: Settings | None = None,
    as_list: bool = False,
    as_json: bool = False,
) -> None:
    """Write the models of a benchmark domain as CSV files.

    The folder gets training.csv, test.csv, initial.csv and parameters.csv; solve, study and
    info read it. Without NAME the domains are listed.

    Parameters
    ----------
    name
        The domain.
    out
        Where to write.
    n_models
        Number of training models.
    n_test_models
        Number of test models.
    seed
        Seed of every random choice.
    settings
        Another option of the domain.
    as_list
        List the domains.
    """
    from mmdp.core.timing import redirect_bars
    from mmdp.data.domains import DESCRIPTIONS, DOMAINS
    from mmdp.data.io.folders import replace_folder

    if as_list or name is None:
        if as_json:
            print_json({"domains": DESCRIPTIONS})
        else:
            print_facts("benchmark domains", DESCRIPTIONS.items())
        return
    if out is None:
        raise InputError(f"say where to write {name}: --out FOLDER")
    counts = {"seed": seed, "n_models": n_models, "n_test_models": n_test_models}
    arguments = _build_arguments(name, DOMAINS[name], counts, settings or {})
    with (
        LiveLine(f"drawing the models of {name}", quiet=as_json) as live_line,
        redirect_bars(show_status),
    ):
        train, test = _make_models(name, DOMAINS[name], arguments)
        live_line.update(f"writing {out}")
        replace_folder(out, train, test)
    if as_json:
        sizes_drawn = {"models": train.n_models, "test_models": test.n_models}
        print_json({"domain": name, "out": out, **sizes_drawn, "options": arguments})
    else:
        print(f"{out}\n{format_sizes(train)}; {pluralize(test.n_models, 'test model')}")


def _build_arguments(
    name: str,
    function: DomainFunction,
    counts: Mapping[str, int | None],
    settings: Mapping[str, str],
) -> dict[str, object]:
    """Build the arguments of a domain's function, by its own names."""
    known_parameters = inspect.signature(function).parameters
    arguments: dict[str, object] = {}
    for key, value in counts.items():
        if value is None:
            continue
        argument_name = next((alias for alias in ALIASES[key] if alias in known_parameters), None)
        if argument_name is None:
            raise InputError(f"{name} has no {to_flag(key)}: it is always the same")
        arguments[argument_name] = value
    for key, text in settings.items():
        check_name(f"option of {name}", key, known_parameters)
        arguments[key] = _parse_literal(text)
    return arguments


def _parse_literal(text: str) -> object:
    """Parse a number, true, false, null or a list; return any other text as it is.

    >>> _parse_literal("0.5"), _parse_literal("paper"), _parse_literal("[1, 2]")
    (0.5, 'paper', [1, 2])
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _make_models(
    name: str, function: DomainFunction, arguments: Mapping[str, Any]
) -> tuple[MMDP, MMDP]:
    try:
        train, test = function(**arguments)
    except InputError as error:
        raise error.with_location(name) from None
    return train, test
