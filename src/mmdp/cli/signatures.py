"""Commands made from signatures and docstrings.

An option is a parameter of a Python function: its name, annotation and default are read from the
signature, its help is the first sentence of its entry in the docstring. A command is a function
too: its positional parameters are arguments, its keyword-only ones options (required without a
default), and its ``**options`` are parameters of library functions (see :func:`take_from`). A
parameter whose annotation is a class under :func:`take_from`, such as that of DATA, stands for the
options of that class. What a terminal cannot express, such as a callback, is left out.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click

from mmdp.cli.types import TYPES, TYPES_BY_NAME, check_output_path, make_keyword_type
from mmdp.core.arguments import get_type_hints

ParamType = click.ParamType[Any]
Target = Callable[..., Any]  # a function or a class
HELP = {"as_json": "Print one JSON document and nothing else."}  # where no docstring says it
SPELLINGS = {  # of options that are not named by their parameters, and short ones
    "as_json": ["--json"],
    "horizon": ["--horizon", "-T"],
    "method": ["--method", "-m"],
    "methods": ["--methods", "-m"],
    "n_jobs": ["--jobs", "-j"],
    "out": ["--out", "-o"],
    "quiet": ["--quiet", "-q"],
    "settings": ["--set"],
}

YES_OR_NO = type(click.BOOL)()  # of a flag that can be declined too


def take_from(*sources: str) -> Callable[[Target], Target]:
    """Let the ``**options`` of a function be the parameters of others.

    A source is the place of a function, as in ``"mmdp.core.solve:solve"``, with the names of the
    parameters to take if not all: ``"mmdp.core.methods:CADP init n_init"``. It is imported when the
    options are needed. Those of a class have no default: None stands for one that is not given.
    A class under this decorator stands for options that several commands share, as one object.
    """

    def decorate(target: Target) -> Target:
        target.sources = sources  # type: ignore[attr-defined]
        return target

    return decorate


# ---------------------------------------------------------------- signatures
def list_options(target: Target) -> list[click.Parameter]:
    """List what a function takes, with its groups and sources, each name once."""
    found: dict[str, Any] = {}
    for parameter in taken_options(target):
        found.setdefault(str(parameter.name), parameter)
    for own in _own_options(target):
        own.help = own.help or getattr(found.get(own.name), "help", "")
        found[own.name] = own
    return sorted(found.values(), key=lambda parameter: isinstance(parameter, click.Option))


def taken_options(target: Target) -> Iterator[click.Parameter]:
    """Go through the options that ``**options`` of a function stands for."""
    for source in getattr(target, "sources", ()):
        place, *names = source.split()
        for option in list_options(pkgutil.resolve_name(place)):
            if not names or option.name in names:
                yield option


def _own_options(target: Target) -> Iterator[Any]:
    texts, is_library = HELP | read_help(target), not hasattr(target, "sources")
    for parameter, hint in _list_parameters(target):
        is_argument = parameter.kind is not inspect.Parameter.KEYWORD_ONLY and not is_library
        name, default = parameter.name, parameter.default
        if is_library and isinstance(target, type):
            default = None
        if (group := _find_group(hint)) is not None:
            for option in list_options(group):
                if isinstance(option, click.Argument):
                    text = texts.get(name) or str(option.help)
                    option = _make_parameter(name, option.type, default, text, True)
                yield option
        elif option_type := TYPES_BY_NAME.get(name) or _choose_type(hint):
            yield _make_parameter(name, option_type, default, texts.get(name, ""), is_argument)


def _make_parameter(
    name: str, option_type: Any, default: Any, text: str, is_argument: bool
) -> click.Parameter:
    is_required = default is inspect.Parameter.empty
    text = f"{text} {getattr(option_type, 'describe', str)()}".strip()
    if is_argument:
        return click.Argument([name], type=option_type, required=is_required, help=text)
    is_repeated = getattr(option_type, "is_repeated", False)  # then named in the singular
    flags = SPELLINGS.get(name, [to_flag(name.removesuffix("s") if is_repeated else name)])
    if option_type is YES_OR_NO:
        flags = [f"{flags[0]}/--no-{flags[0][2:]}"]
    return click.Option(
        [*flags, name],
        type=option_type,
        is_flag=option_type in (click.BOOL, YES_OR_NO),
        required=is_required,
        **({} if is_required else {"default": default}),  # None is a default too
        show_default=not is_required and default not in (None, False),
        multiple=is_repeated,
        callback=option_type.collect if is_repeated else None,
        metavar=getattr(option_type, "metavar", None),
        help=text,
    )


def to_flag(name: str) -> str:
    """Convert an argument name to an option of the command line.

    >>> to_flag("n_init")
    '--n-init'
    """
    return f"--{name.replace('_', '-')}"


def _list_parameters(target: Target) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Go through the parameters with their types; ``**options`` are those that its type names."""
    parameters = inspect.signature(target).parameters
    function: Any = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    for name, hint in get_type_hints(function).items():
        option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        yield parameters.get(name, option), hint


def _iter_types(hint: Any) -> Iterator[Any]:
    """Go through a type, and all in a union or an annotated type."""
    yield hint
    is_composed = get_origin(hint) in (Annotated, Union, UnionType)
    for part in get_args(hint) if is_composed else ():
        yield from _iter_types(part)


def _find_group(hint: Any) -> Target | None:
    """Find the class that stands for several options, if the parameter is of one."""
    return next((x for x in _iter_types(hint) if hasattr(x, "sources")), None)


def _choose_type(hint: Any) -> ParamType | None:
    """Choose how a text is read as a value of a type; None if it cannot be."""
    types = [*_iter_types(hint)]
    for x in types:
        if isinstance(x, click.ParamType):
            return x
        if get_origin(x) is Literal:
            return make_keyword_type(*get_args(x))
    if bool in types and type(None) in types:
        return YES_OR_NO
    return next((option_type for known, option_type in TYPES.items() if known in types), None)


# ---------------------------------------------------------------- docstrings
def read_help(target: Target) -> dict[str, str]:
    """Read what a docstring says about each parameter: the first sentence of its entry.

    >>> from mmdp.core.solve import solve
    >>> read_help(solve)["seed"]
    'Seed of every random choice.'
    """
    texts: dict[str, str] = {}
    sections = r"^(?:Other )?Parameters\n-+\n(.*?)(?:\n\n|\Z)"
    for section in re.findall(sections, inspect.getdoc(target) or "", re.DOTALL | re.MULTILINE):
        for names, text in re.findall(r"^(\S.*)\n((?: .*\n?)+)", section, re.MULTILINE):
            sentence = re.split(r"(?<=\.) (?=[A-Z`:])", " ".join(text.split()))[0]
            texts |= {name: _format_sentence(sentence, name) for name in names.split(", ")}
    return texts


def _format_sentence(sentence: str, name: str) -> str:
    """Format a sentence as plain text; "as for" a function means what is said there.

    >>> _format_sentence('One of ``"a"``, :class:`mmdp.MMDP`.', "x")
    'One of a, mmdp.MMDP.'
    >>> _format_sentence("As for :func:`mmdp.solve`.", "seed")
    'Seed of every random choice.'
    """
    reference = re.search(r"[Aa]s for :\w+:`([\w.]+)`", sentence)
    if reference is not None:
        sentence = read_help(pkgutil.resolve_name(reference[1])).get(name, sentence)
    return re.sub(r"``\"?(.*?)\"?``|:\w+:`~?(.*?)`", r"\1\2", sentence)


# ---------------------------------------------------------------- commands
def bind(target: Target, values: Mapping[str, Any]) -> Any:
    """Call a function with its parameters among the values; groups become objects.

    ``**options`` get those that are not None.
    """
    arguments: dict[str, Any] = {}
    for parameter, hint in _list_parameters(target):
        name, group = parameter.name, _find_group(hint)
        arguments[name] = values.get(name)
        if group is not None and values.get(name, group) is not None:
            arguments[name] = bind(group, {**values, "path": values.get(name)})
    taken = {str(option.name) for option in taken_options(target)} - arguments.keys()
    return target(**arguments, **{x: values[x] for x in taken if values.get(x) is not None})


class SignatureCommand(click.Command):
    """A command made from a function; its options are read when they are first needed.

    Those named in ``advanced`` are shown by ``--help-all`` alone.
    """

    def __init__(self, function: Target, examples: Sequence[str], advanced: str) -> None:
        super().__init__(
            function.__name__,
            callback=lambda **values: bind(function, values),
            help=(inspect.getdoc(function) or "").partition("\n\nParameters\n")[0],
            epilog=format_examples(*examples),
        )
        self.function, self.examples, self.advanced = function, examples, advanced.split()
        del self.params

    def invoke(self, ctx: click.Context) -> Any:
        check_output_path(ctx.params)
        return super().invoke(ctx)

    @cached_property
    def params(self) -> list[click.Parameter]:  # type: ignore[override]
        params: list[Any] = list_options(self.function)
        for param in params:
            param.hidden = param.name in self.advanced
        return params + [_HELP_ALL_OPTION] * bool(self.advanced)


def command(
    *examples: str, sources: Sequence[str] = (), advanced: str = ""
) -> Callable[[Target], SignatureCommand]:
    """Make a function a command; ``sources`` are those of :func:`take_from`."""
    return lambda function: SignatureCommand(take_from(*sources)(function), examples, advanced)


def format_examples(*lines: str) -> str:
    """Format examples as the end of a help text; the mark keeps click from joining lines."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def _print_help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        assert isinstance(ctx.command, SignatureCommand)
        command = SignatureCommand(ctx.command.function, ctx.command.examples, "")
        click.echo(command.get_help(ctx))
        ctx.exit()


_HELP_ALL_OPTION = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_help_all,
    help="Show all options and exit.",
)
