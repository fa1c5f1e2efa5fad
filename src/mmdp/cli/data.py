"""DATA: models from a file or folder, from a Python file (FILE.py:NAME) or standard input."""

from __future__ import annotations

import runpy
import sys
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click

from mmdp.cli.console import LiveLine, show_status
from mmdp.cli.signatures import OptionGroup, list_options, read_help, take_from
from mmdp.cli.types import InputPath, TextParam, check_name
from mmdp.core.errors import InputError, Remedy
from mmdp.core.text import did_you_mean, join_or

if TYPE_CHECKING:
    from mmdp import MMDP

ADVANCED = "load_option discount initial split"  # options of DATA, for --help-all


# ---------------------------------------------------------------- --load-option
@cache
def list_load_settings() -> dict[str, list[str]]:
    """List the arguments of :func:`mmdp.load` for files that are not as they should be.

    Each has the values other than its default.

    >>> list_load_settings()["duplicates"], list_load_settings()["normalize"]
    (['last', 'sum'], ['true'])
    """
    from mmdp.data.io.models import load

    settings = {}
    for option in list_options(load):
        default = str(option.default).lower()
        words = (
            ["true", "false"] if option.type is click.BOOL else getattr(option.type, "words", [])
        )
        settings[str(option.name)] = [word for word in words if word != default]
    return {key: words for key, words in settings.items() if words and key not in NO_SETTINGS}


class LoadOptionParam(TextParam):
    """``KEY=VALUE``: an argument of :func:`mmdp.load`."""

    def __init__(self) -> None:
        super().__init__("KEY=VALUE", self.parse_setting, is_repeated=True)

    def parse_setting(self, text: str) -> tuple[str, str | bool]:
        key, _, value = text.partition("=")
        key, known = key.replace("-", "_"), list_load_settings()
        check_name("load option", key, known)
        if value not in known[key]:
            expected = join_or(f"{key}={word}" for word in known[key])
            raise InputError(f"--load-option {text!r} is not known; expected {expected}")
        return key, {"true": True, "false": False}.get(value, value)

    def describe(self) -> str:
        from mmdp.data.io.models import load

        texts, settings = read_help(load), list_load_settings().items()
        return " ".join(f"{key}={'|'.join(words)}: {texts[key]}" for key, words in settings)


NO_SETTINGS = ("split", "storage")
LoadOptions = Annotated[dict[str, str | bool], LoadOptionParam()]


# ---------------------------------------------------------------- models
@take_from("mmdp.data.io.models:load discount initial")
class TrainingData(OptionGroup):
    """Training models to read, which may have test models beside them.

    Parameters
    ----------
    path
        The models: a folder, a file, FILE.py:NAME or -; see mmdp --help.
    load_option
        How to read files that are not as they should be.
    """

    def __init__(
        self, path: InputPath, *, load_option: LoadOptions | None = None, **options: Any
    ) -> None:
        self.path, self.split = path, options.pop("split", "train")
        self.options: dict[str, Any] = options | (load_option or {})

    def read(self, *, quiet: bool = True) -> MMDP:
        """Read the models."""
        import mmdp

        python_object = PythonObject.parse(self.path)
        with LiveLine(f"reading {self.path}", quiet=quiet):
            if python_object is not None:
                return python_object.load_model(self.split, dict(self.options))
            return mmdp.load(self.path, split=self.split, **self.options)

    def read_test(self, train: MMDP) -> MMDP | None:
        """Read the test models that go with the training models, if any, in their order."""
        if (python_object := PythonObject.parse(self.path)) is not None:
            has_test = "test" in python_object.load_models()
            return self.at(self.path, split="test").read() if has_test else None
        folder = self.path if self.path.is_dir() else self.path.parent
        is_training = self.path.is_dir() or self.path.stem == "training"
        files = (folder / f"test.{suffix}" for suffix in ("csv", "parquet"))
        if is_training and any(file.is_file() for file in files):
            return self.at(folder, split="test").read().reorder_like(train)
        return None

    def at(self, path: Path, **options: Any) -> TrainingData:
        """Return the data at another path, read in the same way but for these options."""
        return TrainingData(path, **self.options | options)

    def __str__(self) -> str:
        return str(self.path)


@take_from("mmdp.data.io.models:load split discount initial")
class Data(TrainingData):
    __doc__ = TrainingData.__doc__


class PythonObject(NamedTuple):
    """A name in a Python file."""

    file: Path
    name: str

    @classmethod
    def parse(cls, path: Path) -> PythonObject | None:
        """Parse ``inventory.py:load_model``; None if the path is of another form.

        >>> PythonObject.parse(Path("shop/inventory.py:model")).name
        'model'
        """
        file, _, name = str(path).rpartition(":")
        if file.endswith(".py"):
            return cls(Path(file), name)
        if name.endswith(".py"):
            raise InputError(f"{path}: name the model in it, like {path}:model")
        return None

    def load_models(self) -> dict[str, MMDP]:
        """Load what a file has under a name: models, or a pair of train and test models."""
        import mmdp

        namespace = _run_file(self.file)
        if self.name not in namespace:
            model_names = [
                k for k, v in namespace.items() if isinstance(v, (mmdp.MMDP, mmdp.domains.Domain))
            ]
            hint = f"it has {join_or(model_names, ' and ')}" if model_names else "it has no models"
            raise InputError(
                f"{self.file}: no {did_you_mean(self.name, model_names)} in this file; {hint}"
            )
        value = namespace[self.name]
        if isinstance(value, mmdp.MMDP):
            return {"train": value}
        models = tuple(value) if isinstance(value, (tuple, mmdp.domains.Domain)) else ()
        if len(models) != 2 or not all(isinstance(x, mmdp.MMDP) for x in models):
            raise InputError(
                f"{self.file}: {self.name} is {type(value).__name__}; expected an MMDP, or a pair "
                "of train and test models"
            )
        return dict(zip(("train", "test"), models, strict=True))

    def load_model(self, split: str, options: dict[str, Any]) -> MMDP:
        """Load the model of a split, with the options that replace its discount and first state."""
        models = self.load_models()
        if split not in models:
            raise InputError(
                f"{self.file}: {self.name} has no {split} models",
                [f"write {self.name} = (train, test)", Remedy("split", verb="leave out")],
            )
        changes = {key: options.pop(key) for key in ("discount", "initial") if key in options}
        if options:
            raise InputError(
                f"{next(iter(options))} is for files of tables; {self.file} builds its models"
            )
        return models[split].replace(**changes) if changes else models[split]


@lru_cache(maxsize=1)  # train and test models come from one run
def _run_file(file: Path) -> dict[str, Any]:
    from mmdp.core.timing import redirect_bars

    if not file.is_file():
        raise InputError(f"{file}: no such file; check the path")
    sys.path.insert(0, str(file.parent))  # as Python does for a file that it runs
    try:
        with redirect_bars(show_status):
            return runpy.run_path(str(file))
    except InputError as error:
        raise error.with_location(file) from None
    except Exception as error:
        raise InputError(f"{file} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent))
