"""Commands made from signatures and docstrings.

An option is a parameter of a Python function: its name, annotation and default are read from the
signature, its help is the first sentence of its entry in the docstring. A command is a function
too: its positional parameters are arguments, its keyword-only ones options (required without a
default), and its ``**options`` are parameters of library functions (see :func:`take_from`). A
parameter whose annotation is a subclass of :class:`OptionGroup` stands for the options of that
class. What a terminal cannot express, such as a callback, is left out.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ForwardRef, Literal, get_args, get_origin

import click

from mmdp.cli.types import TYPES, TYPES_BY_NAME, make_keyword_type

Namespace = Mapping[str, Any]
ParamType = click.ParamType[Any]
Target = Callable[..., Any]  # a function or a class
HELP = {"as_json": "Print one JSON document and nothing else."}  # where no docstring says it
SPELLINGS = {  # of options that are not named like their parameters, and short ones
    "as_json": ["--json"],
    "columns": ["--column"],
    "comparators": ["--comparator"],
    "domains": ["--domain"],
    "horizon": ["--horizon", "-T"],
    "method": ["--method", "-m"],
    "methods": ["--methods", "-m"],
    "n_jobs": ["--jobs", "-j"],
    "out": ["--out", "-o"],
    "quiet": ["--quiet", "-q"],
    "settings": ["--set"],
}

YES_OR_NO = type(click.BOOL)()  # of a flag that can be declined too


class OptionGroup:
    """Options that several commands share, as one object."""


def take_from(*sources: str | Target) -> Callable[[Target], Target]:
    """Let the ``**options`` of a function be the parameters of others.

    A source is a function, or its place as in ``"mmdp.core.solve:solve"``, with the names of the
    parameters to take if not all: ``"mmdp.core.methods:CADP init n_init"``. It is imported when the
    options are needed. Those of a class have no default: None stands for one that is not given.
    """

    def decorate(target: Target) -> Target:
        target.sources = sources  # type: ignore[attr-defined]
        return target

    return decorate


# ---------------------------------------------------------------- signatures
def list_options(target: Target, *, as_options: bool = False) -> list[click.Parameter]:
    """List what a function takes, with its groups and sources, each name once."""
    found: dict[str, Any] = {}
    for parameter in taken_options(target):
        found.setdefault(str(parameter.name), parameter)
    for own in _own_options(target, as_options):
        own.help = own.help or getattr(found.get(own.name), "help", "")
        found[own.name] = own
    return sorted(found.values(), key=lambda parameter: isinstance(parameter, click.Option))


def taken_options(target: Target) -> Iterator[click.Parameter]:
    """Go through the options that ``**options`` of a function stands for."""
    for source in getattr(target, "sources", ()):
        if not isinstance(source, str):
            yield from list_options(source)
            continue
        place, *names = source.split()
        for option in list_options(pkgutil.resolve_name(place), as_options=True):
            if not names or option.name in names:
                yield option


def _own_options(target: Target, as_options: bool) -> Iterator[Any]:
    namespace, texts = _get_namespace(target), HELP | read_help(target)
    is_setting = isinstance(target, type) and not issubclass(target, OptionGroup)
    for parameter in _list_parameters(target, namespace):
        name, default = parameter.name, None if is_setting else parameter.default
        group = _find_group(parameter, namespace)
        if group is not None:
            for option in list_options(group):
                if isinstance(option, click.Argument):
                    text = texts.get(name) or str(option.help)
                    option = _make_parameter(name, option.type, default, text, True)
                yield option
        elif option_type := TYPES_BY_NAME.get(name) or _choose_type(
            parameter.annotation, namespace
        ):
            is_argument = parameter.kind is not inspect.Parameter.KEYWORD_ONLY and not as_options
            yield _make_parameter(name, option_type, default, texts.get(name, ""), is_argument)


def _make_parameter(
    name: str, option_type: Any, default: Any, text: str, is_argument: bool
) -> click.Parameter:
    is_required = default is inspect.Parameter.empty
    text = f"{text} {getattr(option_type, 'describe', str)()}".strip()
    if is_argument:
        return click.Argument([name], type=option_type, required=is_required, help=text)
    flags = SPELLINGS.get(name, [to_flag(name)])
    if option_type is YES_OR_NO:
        flags = [f"{flags[0]}/--no-{flags[0][2:]}"]
    is_repeated = getattr(option_type, "is_repeated", False)
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


def _get_namespace(target: Target) -> Namespace:
    return vars(sys.modules[inspect.unwrap(target).__module__])


def _list_parameters(target: Target, namespace: Namespace) -> Iterator[inspect.Parameter]:
    """Go through the parameters; ``**options: Unpack[Some]`` are the keys of the TypedDict Some."""
    for parameter in inspect.signature(target).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            yield parameter
        elif (match := re.match(r"Unpack\[(\w+)\]", str(parameter.annotation))) is not None:
            for name, hint in namespace[match[1]].__annotations__.items():
                text = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
                keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
                yield keyword.replace(annotation=text)


def _find_group(parameter: inspect.Parameter, namespace: Namespace) -> type[OptionGroup] | None:
    found = namespace.get(str(parameter.annotation).removesuffix(" | None"))
    return found if isinstance(found, type) and issubclass(found, OptionGroup) else None


def _choose_type(annotation: object, namespace: Namespace) -> ParamType | None:
    """Choose how a text is read as what an annotation names; None if it cannot be."""
    names = re.sub(r"^Unchecked\[(.*)\]$", r"\1", str(annotation)).split(" | ")
    for name in names:
        known = namespace.get(name)
        if name.startswith("Literal["):
            return make_keyword_type(*ast.literal_eval(name.removeprefix("Literal")))
        if get_origin(known) is Literal:
            return make_keyword_type(*get_args(known))
        if isinstance(option_type := getattr(known, "__metadata__", [None])[0], click.ParamType):
            return option_type
    if {"bool", "None"} <= set(names):
        return YES_OR_NO
    return next((option_type for name, option_type in TYPES.items() if name in names), None)


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
def bind(target: Target, values: Namespace) -> Any:
    """Call a function with its parameters among the values; groups become objects.

    ``**options`` get those that are not None.
    """
    namespace, arguments = _get_namespace(target), dict[str, Any]()
    for parameter in inspect.signature(target).parameters.values():
        name, group = parameter.name, _find_group(parameter, namespace)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            taken = {str(option.name) for option in taken_options(target)} - arguments.keys()
            arguments |= {key: values[key] for key in taken if values.get(key) is not None}
        elif group is None or values.get(name, group) is None:
            arguments[name] = values.get(name)
        else:
            arguments[name] = bind(group, {**values, "path": values.get(name)})
    return target(**arguments)


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
        self.function, self.advanced = function, advanced.split()
        del self.params

    @cached_property
    def params(self) -> list[click.Parameter]:  # type: ignore[override]
        params: list[Any] = list_options(self.function)
        for param in params:
            param.hidden = param.name in self.advanced
        return params + [_HELP_ALL_OPTION] * bool(self.advanced)


def command(
    *examples: str, sources: Sequence[str | Target] = (), advanced: str = ""
) -> Callable[[Target], SignatureCommand]:
    """Make a function a command; ``sources`` are those of :func:`take_from`."""
    return lambda function: SignatureCommand(take_from(*sources)(function), examples, advanced)


def format_examples(*lines: str) -> str:
    """Format examples as the end of a help text; the mark keeps click from joining lines."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def _print_help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        assert isinstance(ctx.command, SignatureCommand)
        click.echo(SignatureCommand(ctx.command.function, (), "").get_help(ctx))
        ctx.exit()


_HELP_ALL_OPTION = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_help_all,
    help="Show all options and exit.",
)
