"""FILE.py:NAME: models that a Python file builds, such as those of mmdp.from_step."""

from __future__ import annotations

import runpy
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmdp.cli.console import show_status
from mmdp.core.errors import InputError, Remedy
from mmdp.core.text import did_you_mean, join_or

if TYPE_CHECKING:
    from mmdp import MMDP


class PythonObject(NamedTuple):
    """A name in a Python file."""

    file: Path
    name: str

    @classmethod
    def parse(cls, path: Path) -> PythonObject | None:
        """``inventory.py:load_model``; None if the path is of another form.

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
        """What the file has under this name: models, or a pair of train and test models."""
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
        """One of them, with what replaces its discount and first state."""
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
