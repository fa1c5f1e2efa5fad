"""Commands made from signatures and docstrings."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner

import mmdp
from mmdp.cli.app import app
from mmdp.cli.signatures import command, list_options, take_from
from tests.cli.calls import fits_width, run


def grow(
    model: mmdp.MMDP,
    depth: int = 3,
    *,
    color: Literal["red", "blue"] = "red",
    prune: bool | None = None,
    callback: Any = None,
) -> None:
    """Grow something.

    Parameters
    ----------
    depth
        How deep, as in ``"deep"`` water. A second sentence is for Python.
    color, prune
        Set for :func:`grow`.
    """


def test_an_option_is_a_parameter() -> None:
    seen: dict[str, Any] = {}

    @command("mmdp plant seed.txt", sources=[f"{__name__}:grow"], advanced="color")
    def plant(file: Path, *, out: Path, quiet: bool = False, **options: Any) -> None:
        """Plant it.

        Parameters
        ----------
        file
            What to plant.
        """
        seen.update(options, file=file, out=out, quiet=quiet)

    arguments = ["seed.txt", "-o", "x", "--depth", "5", "--no-prune"]
    assert CliRunner().invoke(plant, arguments).exit_code == 0
    expected = {"depth": 5, "color": "red", "prune": False}
    assert seen == {**expected, "file": Path("seed.txt"), "out": Path("x"), "quiet": False}
    seen.clear()
    assert CliRunner().invoke(plant, ["seed.txt", "-o", "x"]).exit_code == 0
    assert (seen["depth"], "prune" in seen) == (3, False)
    assert CliRunner().invoke(plant, ["seed.txt"]).exit_code == 2  # --out has no default
    text = " ".join(CliRunner().invoke(plant, ["--help"]).output.split())
    assert (
        "--depth INTEGER How deep, as in deep water. [default: 3] --prune / --no-prune Set" in text
    )
    assert "--color" not in text
    assert "--callback" not in text
    assert "--color red|blue" in CliRunner().invoke(plant, ["--help-all"]).output


def test_settings_of_a_class_have_no_default() -> None:
    @take_from("mmdp.core.policies:Tree max_leaves")
    def prune(**options: Any) -> None:
        """Prune."""

    (option,) = list_options(prune)
    assert inspect.signature(mmdp.policies.Tree).parameters["max_leaves"].default is not None
    assert (option.name, option.default) == ("max_leaves", None)


@pytest.mark.parametrize("name", app.commands)
def test_every_option_has_a_help_text_in_plain_words(name: str) -> None:
    for parameter in app.commands[name].params:
        text = getattr(parameter, "help", None)
        assert text, parameter.name
        assert "`" not in text
        assert "as for mmdp." not in text.lower()
        assert isinstance(parameter, (click.Option, click.Argument))


def test_the_help_of_solve_is_short() -> None:
    text = run("solve", "--help").out
    assert len(text.splitlines()) <= 40
    assert fits_width(text)
    assert "--backend" not in text
    assert "--backend" in run("solve", "--help-all").out
