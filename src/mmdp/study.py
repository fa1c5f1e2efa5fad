"""Many solves: a grid of models, horizons, methods and more, on any executor, resumable.

:func:`study` lays out the grid as cells. A :class:`Cell` knows what determines its figures, and
its key is a digest of that. Finished cells are files named by their keys, so that a study that
is run again computes what is missing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mmdp._version import __version__
from mmdp.arguments import Label, Read, Seconds, checked, fits
from mmdp.clock import ending, unanswered
from mmdp.errors import InputError, NotWritten
from mmdp.identity import digest, facts
from mmdp.kernels import BACKENDS
from mmdp.methods import Method
from mmdp.model import MMDP
from mmdp.objective import as_objective
from mmdp.policy import PolicyKind
from mmdp.solution import Evaluation, Solution
from mmdp.solve import evaluate, read_method, solve
from mmdp.validate import check_seed, check_whole
from mmdp.words import LONGEST, shortened
from mmdp.workers import Lost, kept, spread

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1  # version of the files in out/cells: a new number makes the old ones stale
AXES = ("model", "horizon", "method", "objective", "policy", "seed")
FIGURES = (
    "value", "mean", "sd", "stderr", "worst", "test_value", "test_mean", "test_sd", "test_stderr",
    "test_worst", "bound", "gap", "status", "iterations", "seconds", "test_seconds", "error",
)  # fmt: skip
FAILED, INTERRUPTED = "FAILED", "INTERRUPTED"

Row = dict[str, Any]


class StudyProgress(NamedTuple):
    """What the callback of a study sees after each cell; ``left`` is NaN if nothing is known."""

    done: int
    total: int
    reused: int  # how many of them were found in ``out``
    seconds: float
    left: float  # seconds, estimated
    row: Row


@checked
def study(
    models: Any,
    horizons: Any = None,
    methods: Any = "cadp",
    *,
    objectives: Any = "mean",
    policies: Any = None,
    seeds: Any = 0,
    test: Any = None,
    certify: bool | Seconds = False,
    time_limit: Seconds | None = None,
    backend: str = "auto",
    out: str | Path | None = None,
    jobs: int = 1,
    executor: Read[Executor | None] = None,
    callback: Callable[[StudyProgress], object] | None = None,
) -> pd.DataFrame:
    """Solve a grid of problems and evaluate each policy on test models: one row per cell.

    ``models`` are an :class:`MMDP`, a pair of training and test models (such as a
    :class:`mmdp.domains.Domain`), or a function without arguments that makes either; or a
    mapping from names to these. A worker calls the function itself, so that
    ``functools.partial(mmdp.domains.hiv, seed=3)`` travels instead of models. Every other axis
    is one value, a sequence, or a mapping from names to values.

    Parameters
    ----------
    horizons, methods, objectives, policies, seeds
        The arguments of :func:`mmdp.solve`, one or several of each.
    test
        Test models for every cell, in place of those that ``models`` bring; or a mapping from the
        names of models.
    certify, time_limit, backend
        As for :func:`mmdp.solve`.
    out
        A folder that keeps each cell as soon as it is finished. A study that is run again
        computes only what is missing there. Cells that failed are tried again. If a cell cannot
        be written, there is a warning, and its row is in the table all the same.
    jobs
        Local processes, which share the cores. A script needs ``if __name__ == "__main__":``
        around its own work, because each process imports it.
    executor
        Any ``concurrent.futures.Executor`` instead, for example ``client.get_executor()`` of Dask.
        Unless it is one of Dask, its workers must see the folder ``out``.
    callback
        Called with a :class:`StudyProgress` after each cell.

    The table has the axes, then ``value`` (of the objective), ``mean``, ``sd``, ``stderr`` and
    ``worst`` over the models, the same on the test models as ``test_value`` and so on, ``bound``
    and ``gap`` if certified, ``status``, ``iterations``, ``seconds``, ``test_seconds`` and
    ``error``. A cell that fails has status FAILED and its error in one line; if only its test
    fails, it has the figures of its solve and the error. After Ctrl-C the cells without a result
    have status INTERRUPTED. Test models whose labels are in another order are put in that of the
    training models.

    A result is identified by what determines it: the numbers and labels in the models, or the
    function that makes them with its arguments (its source text and the values that it uses, but
    not the files that it reads), and all that :func:`mmdp.solve` is asked for, and the version of
    mmdp. The names that you give to models, methods and so on do not count.

    >>> import mmdp
    >>> table = mmdp.study(mmdp.domains.two_models(), horizons=[2, 4], methods=["cadp", "mvp"])
    >>> table[["model", "horizon", "method", "status"]]
            model  horizon method         status
    0  two_models        2   cadp  LOCAL_OPTIMUM
    1  two_models        2    mvp      COMPLETED
    2  two_models        4   cadp  LOCAL_OPTIMUM
    3  two_models        4    mvp      COMPLETED
    """
    cells = cells_of(
        models, horizons, methods, objectives=objectives, policies=policies, seeds=seeds,
        test=test, certify=certify, time_limit=time_limit, backend=backend,
    )  # fmt: skip
    run = Run(cells, out=out, jobs=jobs, executor=executor, callback=callback)
    return run.frame()


# ---------------------------------------------------------------------- the grid
@dataclass(frozen=True, eq=False)
class Source:
    """Models or how to make them, with the digest that identifies them.

    Only the digest travels with a cell: the models are sent once, by themselves.
    """

    given: Any
    key: str

    def __getstate__(self) -> dict[str, Any]:
        return {"given": None, "key": self.key}

    @classmethod
    def of(cls, given: Any) -> Source:
        """
        >>> one = MMDP([[[[1.0]]]], [[2.0]])
        >>> Source.of(one).key == Source.of(one.replace(name="renamed")).key
        True
        """
        if not (callable(given) or isinstance(given, MMDP)):
            given = _pair(given)
        return cls(given, digest(facts(given)))

    @property
    def first(self) -> MMDP | None:
        """The models, or the training models of a pair; None if a function makes them."""
        found = self.given[0] if isinstance(self.given, tuple) else self.given
        return found if isinstance(found, MMDP) else None


@dataclass(frozen=True, eq=False)
class Cell:
    """One solve with its evaluation: the names for the table, and what determines the figures.

    ``episodes`` per test model are simulated for a policy with memory; None: as many as the
    method says.
    """

    names: Mapping[str, Any]
    source: Source
    test: Source | None
    horizon: float | None
    method: Method
    objective: Any = "mean"
    policy: Any = None
    seed: int | None = 0
    certify: bool | float = False
    time_limit: float | None = None
    backend: str = "auto"
    episodes: int | None = None

    @functools.cached_property
    def question(self) -> dict[str, Any]:
        """All that the figures depend on, in JSON's types."""
        plain = {x.name: facts(getattr(self, x.name)) for x in dataclasses.fields(self)[3:]}
        plain["policy"] = self._settings() or plain["policy"]
        test = None if self.test is None else self.test.key
        known = {"format": FORMAT, "version": __version__, "cell": type(self).__name__}
        return {**known, "models": self.source.key, "test": test, **plain}

    def _settings(self) -> Any:
        """What a kind of policy means on the models; None if not known."""
        train, kind = self.source.first, self.policy
        if train is None or not isinstance(kind, PolicyKind):
            return None
        with suppress(InputError):  # the cell will raise it
            found = kind.settings(train, kind.steps(train, self.horizon))
            return None if found is None else [kind.name, found]
        return None

    @functools.cached_property
    def key(self) -> str:
        return digest(self.question)

    @property
    def file(self) -> str:
        """A name that people can read, with the key at its end."""
        label = "-".join(str(self.names[x]) for x in ("model", "horizon", "method"))
        return re.sub(r"[^\w.+-]+", "_", label)[:60] + f"-{self.key}.json"

    @property
    def sources(self) -> list[Source]:
        return [self.source, *([] if self.test is None else [self.test])]

    def figures(self, given: Any, given_test: Any = None) -> Row:
        """The figures of its row, from what ``sources`` give."""
        train, test = made(self.source.key, given)
        if self.test is not None:
            test = made(self.test.key, given_test)[0].ordered_like(train)
        return self.row(solved_and_tested(train, test, **self.ready(train, test).asked))

    def ready(self, train: MMDP, test: MMDP | None) -> Cell:
        """What to ask about these models."""
        return self

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments of :func:`solved_and_tested`."""
        return {x.name: getattr(self, x.name) for x in dataclasses.fields(Cell)[3:]}

    def row(self, found: Found) -> Row:
        solution = found.solution
        row: Row = {
            **_over_models(solution.evaluation, self.objective), "value": solution.value,
            "bound": solution.bound, "gap": solution.gap, "status": solution.status.name,
            "iterations": solution.iterations, "seconds": solution.seconds,
            "horizon": solution.provenance.horizon, "version": __version__,
        }  # fmt: skip
        if self.policy is None and solution.policy is not None:
            row["policy"] = solution.provenance.policy.name
        try:
            if (tested := found.evaluation) is not None:
                figures = {**_over_models(tested, self.objective), "seconds": found.seconds}
                row |= {f"test_{name}": x for name, x in figures.items()}
        except Exception as error:  # the solve is kept
            row["error"] = f"on the test models: {_failed(error)['error']}"
        return row


class Found(NamedTuple):
    """A solution, and its evaluation on test models, or why there is none."""

    solution: Solution
    test: Evaluation | Exception | None
    seconds: float  # spent on the test

    @property
    def evaluation(self) -> Evaluation | None:
        """On the test models, if there are any; raises what their evaluation raised."""
        if isinstance(self.test, Exception):
            raise self.test
        return self.test


def solved_and_tested(
    model: MMDP, test: MMDP | None = None, horizon: float | None = None,
    method: str | Method = "cadp", *, episodes: int | None = None, seed: int | None = 0,
    backend: Any = "auto", **asked: Any,
) -> Found:  # fmt: skip
    """Solve, and evaluate the policy on test models; Oracle has no policy and solves these too.

    ``episodes`` per test model are simulated for a policy with memory, by default as many as the
    method takes. The other arguments are those of :func:`mmdp.solve`.

    >>> import mmdp
    >>> train, test = mmdp.domains.riverswim(n_train=5, n_test=5)
    >>> found = solved_and_tested(train, test, 9, "oracle")
    >>> found.evaluation.mean == mmdp.solve(test, 9, "oracle").value
    True
    """
    chosen, alike = read_method(method), {"seed": seed, "backend": backend}
    solution = solve(model, horizon, chosen, **alike, **asked)
    if test is None:
        return Found(solution, None, math.nan)
    started = time.perf_counter()
    found: Evaluation | Exception
    try:
        if solution.policy is None:
            found = solve(test, horizon, chosen, **alike, **asked | {"certify": False}).evaluation
        else:
            count = episodes or getattr(chosen, "episodes", None)
            found = evaluate(solution, test, episodes=count, **alike)
    except Exception as error:
        found = error
    return Found(solution, found, time.perf_counter() - started)


def cells_of(
    models: Any, horizons: Any = None, methods: Any = "cadp", *, objectives: Any = "mean",
    policies: Any = None, seeds: Any = 0, test: Any = None, **settings: Any,
) -> list[Cell]:  # fmt: skip
    """The grid, cell by cell; ``settings`` are the other fields of a cell."""
    named = models if isinstance(models, Mapping) else {_name(models): models}
    if not named:
        raise InputError("models must hold at least one model")
    tests = test if isinstance(test, Mapping) else dict.fromkeys(named, test)
    sources = {name: Source.of(given) for name, given in named.items()}
    tested = {id(x): Source.of(x) for x in tests.values() if x is not None}
    _check_sources([*sources.values(), *tested.values()])
    axes = (
        _axis("horizons", horizons, str, _horizon),
        _axis("methods", methods, _method_name, read_method),
        _axis("objectives", objectives, lambda x: str(as_objective(x))),
        _axis("policies", policies, _kind_name),
        _axis("seeds", seeds, str),
    )
    _check(settings, axes[2], axes[4])
    return [
        Cell(
            dict(zip(AXES, (name, horizon, how, aim, kind or _first(method), seed), strict=True)),
            sources[name], tested.get(id(tests.get(name))), horizon, method, objective, policy,
            seed, **settings,
        )
        for name in named
        for (_, horizon), (how, method), (aim, objective), (kind, policy), (_, seed)
        in itertools.product(*(axis.items() for axis in axes))
    ]  # fmt: skip


def _axis(
    what: str, given: Any, name: Callable[[Any], str], read: Callable[[Any], Any] = lambda x: x
) -> dict[str, Any]:
    """Name to value, of one value or several. Other values of the same name are numbered."""
    if isinstance(given, Mapping):
        pairs = [(str(key), read(x)) for key, x in given.items()]
    else:
        one = isinstance(given, str) or not isinstance(given, Iterable)
        pairs = [(name(x), read(x)) for x in ([given] if one else given)]
    if not pairs:
        raise InputError(f"{what} must hold at least one value")
    found: dict[str, Any] = {}
    for label, x in pairs:
        numbered = (label if i == 1 else f"{label} ({i})" for i in itertools.count(1))
        free = next(n for n in numbered if n not in found or facts(found[n]) == facts(x))
        found[free] = x.item() if isinstance(x, np.generic) else x
    return found


def _horizon(given: Any) -> Any:
    if not fits(given, Label | None):
        raise InputError(f"a horizon is a number of decisions, not {shortened(given)}")
    return given


def _check_sources(sources: Sequence[Source]) -> None:
    """Refuse two functions with the same key: one would stand for both."""
    known: dict[str, Any] = {}
    for source in sources:
        made_by = getattr(source.given, "func", source.given)  # inside a partial
        other = known.setdefault(source.key, made_by)
        if callable(made_by) and other is not made_by:
            raise InputError(
                f"two functions make the same models: {shortened(made_by)} and "
                f"{shortened(other)}; give the same function to both names, or other arguments"
            )


def _check(settings: Mapping[str, Any], objectives: Mapping[str, Any], seeds: Any) -> None:
    """Refuse now what every cell would refuse."""
    backend = settings.get("backend", "auto")
    if backend not in ("auto", *BACKENDS):
        raise InputError(
            f"no backend is called {backend!r}; choose one of auto, {', '.join(BACKENDS)}"
        )
    for objective in objectives.values():
        as_objective(objective)
    for seed in seeds.values():
        check_seed(seed)


def _name(models: Any) -> str:
    """What models without a name are called."""
    return str(getattr(models, "name", None) or getattr(models, "__name__", None) or "model")


def _method_name(method: Any) -> str:
    """A method by its name and the options that are not the usual ones.

    >>> import mmdp
    >>> _method_name("wsu"), _method_name(mmdp.CADP(starts=4, sweeps="paper"))
    ('wsu', 'cadp(starts=4, sweeps=paper)')
    """
    chosen = read_method(method)
    if not dataclasses.is_dataclass(chosen):
        return chosen.name
    given = [
        f"{x.name}={shortened(getattr(chosen, x.name))}"
        for x in dataclasses.fields(chosen)
        if getattr(chosen, x.name) is not x.default and getattr(chosen, x.name) != x.default
    ]
    return f"{chosen.name}({', '.join(given)})" if given else chosen.name


def _kind_name(policy: Any) -> str:
    """A kind of policy with its settings, or by its name alone if they are long.

    >>> import mmdp
    >>> _kind_name(mmdp.Memory(nodes=2)), _kind_name(mmdp.Tied([0, 1] * 50))
    ('Memory(nodes=2)', 'tied')
    """
    if policy is None or isinstance(policy, str):
        return policy or ""
    text = str(policy)
    return policy.name if len(text) > LONGEST and hasattr(policy, "name") else shortened(text)


def _first(method: Method) -> str:
    """The kind of policy that a method finds unless asked for another."""
    return "one per model" if method.finds is None else method.finds.name


# ---------------------------------------------------------------------- one cell
def compute(cell: Cell, *sources: Any, strict: bool = False) -> Row:
    """The figures of a cell, or its error; Ctrl-C is raised, as the best so far is no result."""
    with unanswered():
        try:
            return cell.figures(*sources)
        except Exception as error:
            if strict:
                raise
            return _failed(error)


def _failed(error: BaseException) -> Row:
    message = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return {"status": FAILED, "error": shortened(message, 300)}


def _over_models(found: Evaluation, objective: Any) -> Row:
    return {
        "value": found.value(objective), "mean": found.mean, "sd": found.sd,
        "stderr": found.stderr, "worst": found.worst,
        "episode_sd": found.details.get("episode_sd"),
    }  # fmt: skip


def made(key: str, given: Any) -> tuple[MMDP, MMDP | None]:
    """The models; what a function made is kept, as other cells need it too."""
    if not callable(given):
        return _pair(given)
    pair: tuple[MMDP, MMDP | None] = kept(f"made {key}", lambda: _pair(given()))
    return pair


def _pair(given: Any) -> tuple[MMDP, MMDP | None]:
    """Training models, and test models if there are any."""
    if isinstance(given, MMDP):
        return given, None
    pair = tuple(given) if isinstance(given, Iterable) else ()
    if [isinstance(x, MMDP) for x in pair] == [True, True]:
        return pair[0], pair[1].ordered_like(pair[0])
    if len(pair) == 2 and isinstance(pair[0], MMDP) and pair[1] is None:
        return pair
    raise InputError(
        "models must be an MMDP, a pair of training and test models or a function that makes "
        f"either, not {type(given).__name__}; use mmdp.load(path) for files"
    )


# ---------------------------------------------------------------------- all cells
class Run:
    """Computes the cells that ``out`` does not hold; ``rows`` has them in the order given.

    After Ctrl-C, ``interrupted`` is True, and cells without a result have the status INTERRUPTED.
    If there is no result at all, KeyboardInterrupt is raised. ``strict``: an error of a cell is
    raised, not a row.
    """

    def __init__(
        self, cells: Sequence[Cell], *, out: str | Path | None = None, jobs: int = 1,
        executor: Executor | None = None, fresh: bool = False, strict: bool = False,
        callback: Callable[[StudyProgress], object] | None = None,
    ) -> None:  # fmt: skip
        check_whole(jobs, "jobs")
        if executor is not None and not isinstance(executor, Executor):
            raise InputError(
                f"executor must be a concurrent.futures.Executor, not {type(executor).__name__}; "
                "for Dask pass client.get_executor()"
            )
        self.cells, self.jobs, self.executor, self.strict = cells, jobs, executor, strict
        self.folder = None if out is None else _prepared(Path(out))
        kept = () if self.folder is None else self.folder.glob("[!.]*.json")
        self.files = {file.stem.rpartition("-")[2]: file for file in kept}  # by key
        self.callback, self.started = callback, time.perf_counter()
        self.reused, self.failed = 0, False
        self.found: dict[Cell, Row] = {}
        with ending(lambda: self.found) as end:
            self._compute([cell for cell in cells if fresh or not self._read(cell)])
        self.interrupted = end.interrupted

    @property
    def rows(self) -> list[Row]:
        return [
            {**cell.names, **self.found.get(cell, {"status": INTERRUPTED})} for cell in self.cells
        ]

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        table = pd.DataFrame(self.rows).reindex(columns=[*AXES, *FIGURES])
        if (horizons := [row["horizon"] for row in self.rows]).count(math.inf):
            table["horizon"] = pd.Series(horizons, dtype=object)  # 3 next to inf, not 3.0
        return table.astype({"bound": float, "gap": float, "iterations": "Int64", "error": object})

    def _compute(self, missing: Sequence[Cell]) -> None:
        if self.jobs > 1 or self.executor is not None:
            missing = _long_ones_first(missing)
        things = {x.key: x.given for cell in missing for x in cell.sources}
        answers = spread(
            functools.partial(compute, strict=self.strict),
            [(cell, [x.key for x in cell.sources]) for cell in missing], things,
            jobs=min(self.jobs, max(len(missing), 1)), executor=self.executor, folder=self.folder,
        )  # fmt: skip
        with closing(answers):
            for cell, answer in answers:
                if isinstance(answer, Lost) and self.strict:
                    raise answer.error
                row = _failed(answer.error) if isinstance(answer, Lost) else answer
                self._write(cell, row)
                self._note(cell, row)

    def _note(self, cell: Cell, row: Row) -> None:
        self.found[cell] = row
        if self.callback is not None:
            seconds, done = time.perf_counter() - self.started, len(self.found)
            computed, total = done - self.reused, len(self.cells)
            left = (total - done) * seconds / computed if computed else math.nan
            figures = {**cell.names, **row}
            self.callback(StudyProgress(done, total, self.reused, seconds, left, figures))

    # ------------------------------------------------------------ files
    def _read(self, cell: Cell) -> bool:
        """Whether the cell is kept; one that is damaged is not."""
        if not self.files or cell.key not in self.files:
            return False
        try:
            found = json.loads(self.files[cell.key].read_text(encoding="utf-8"))
            if found["question"] != cell.question or found["answer"].get("error"):
                return False
        except (OSError, ValueError, TypeError, LookupError):
            return False
        self.reused += 1
        self._note(cell, found["answer"])
        return True

    def _write(self, cell: Cell, row: Row) -> None:
        from mmdp.io.writing import write_whole

        if self.folder is not None and row["status"] != FAILED:
            text = json.dumps({"question": cell.question, "answer": row})
            try:
                write_whole(self.files.get(cell.key, self.folder / cell.file), text)
            except InputError as error:
                if not self.failed:
                    warnings.warn(f"{error}; cells are not kept", NotWritten, stacklevel=2)
                self.failed = True


def _long_ones_first(cells: Sequence[Cell]) -> list[Cell]:
    """Models in the order given, each with its long horizons first.

    A long cell at the very end would keep all workers but one waiting.
    """
    order = {key: i for i, key in enumerate(dict.fromkeys(cell.source.key for cell in cells))}

    def place(cell: Cell) -> tuple[int, float]:
        known = isinstance(cell.horizon, (int, float))  # other horizons fail in their cells
        return order[cell.source.key], -(cell.horizon if known and cell.horizon else math.inf)

    return sorted(cells, key=place)


def _prepared(out: Path) -> Path:
    """The folder of the cells, made if need be."""
    from mmdp.io.writing import check_writable

    folder = check_writable(out) / "cells"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror})") from None
    return folder
