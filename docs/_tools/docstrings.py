"""Docstrings as Markdown: roles become code, parameters a list, doctests code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):`~?([^`]+)`")
_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.M)


class AsMarkdown(griffe.Extension):
    """Rewrites the docstring of every object that is read."""

    def on_instance(self, *, obj: Any, **rest: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    r"""A docstring of this project as Markdown.

    >>> markdown("Sum, see :func:`mmdp.solve`.\n\n>>> 1 + 1\n2").split("\n")
    ['Sum, see `mmdp.solve`.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    text = _ROLE.sub(r"`\1`", text)
    parts = [_paragraph(part) for part in re.split(r"\n{2,}", _with_lists(text))]
    return "\n\n".join(parts)


def _paragraph(part: str) -> str:
    """A doctest stands in a fence; what else is indented stays as it is."""
    return f"```pycon\n{part}\n```" if part.lstrip().startswith(">>>") else part


def _with_lists(text: str) -> str:
    """``Parameters`` and its like: names at the margin, what they mean indented below."""
    pieces = _HEADING.split(text)
    done = pieces[0]
    for heading, body in zip(pieces[1::2], pieces[2::2], strict=True):
        done += f"**{heading}**\n\n{_items(body.strip(chr(10)))}\n\n"
    return done.rstrip()


def _items(body: str) -> str:
    r"""A line at the margin is a name if an indented line follows it.

    >>> _items("a, b\n    Numbers.\n\nAfter.")
    '- `a, b`: Numbers.\n\nAfter.'
    """
    lines, out, inside = body.split("\n"), [], False
    for i, line in enumerate(lines):
        follows = lines[i + 1] if i + 1 < len(lines) else ""
        if line[:1].strip() and follows.startswith("    "):
            out.append(f"- `{line.strip()}`:")
            inside = True
        elif inside and line.startswith("    "):
            joiner = " " if out[-1].endswith(":") and out[-1].startswith("- `") else "\n  "
            out[-1] += joiner + line.strip()
        else:
            inside = False
            out.append(line)
    return "\n".join(out)
