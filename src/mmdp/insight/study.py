"""Many solves: a grid of models, horizons, methods and more, on any executor, resumable.

:func:`study` lays out the grid as cells. A :class:`StudyCell` holds the inputs that determine
its row, and its key is a digest of them. Finished cells are files named by their keys, so that a
study that is run again computes the missing cells only.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from mmdp._version import __version__
from mmdp.core.arguments import (
    Label,
    Seconds,
    Seed,
    Unchecked,
    check_arguments,
    check_type,
    is_of_type,
)
from mmdp.core.errors import FileNotWrittenWarning, InputError
from mmdp.core.identity import compute_digest, describe_object
from mmdp.core.kernels import BACKENDS
from mmdp.core.methods import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.methods.registry import supports
from mmdp.core.model import MMDP
from mmdp.core.objectives import as_objective
from mmdp.core.policies import Policy
from mmdp.core.solution import Evaluation, Status
from mmdp.core.solve import as_method, evaluate, solve
from mmdp.core.text import MAX_LABEL_LENGTH, format_duration, shorten
from mmdp.core.timing import allow_stop, propagate_interrupts, show_progress
from mmdp.core.validate import check_int
from mmdp.core.workers import Call, LostTask, map_tasks

if TYPE_CHECKING:
    import pandas as pd

CELL_FORMAT = 3  # version of the files in cache_dir/cells: a new number makes the old ones stale
MAX_CACHED = 4  # models that a process keeps for its next cells
STUDY_AXES = ("model", "horizon", "method", "objective", "policy_class", "seed")
STATISTICS = ("value", "mean", "sd", "stderr", "worst")
SIMULATED = ("episode_sd", "difference", "difference_stderr")  # of a policy with memory
RESULT_COLUMNS = (
    *STATISTICS,
    *(f"test_{name}" for name in STATISTICS),
    *("bound", "gap", "status", "iterations", "seconds", "test_seconds", "error"),
)
FAILED, INTERRUPTED = "FAILED", "INTERRUPTED"

StudyRow = dict[str, Any]


class StudyProgress(NamedTuple):
    """Progress of a study after a cell, as its callback gets it."""

    n_done: int
    n_total: int
    n_reused: int  # number of cells read from ``cache_dir``
    elapsed: float
    remaining: float  # seconds, estimated; NaN if unknown
    row: StudyRow

    def __str__(self) -> str:
        """Format the progress as a line shows it."""
        left = f", {format_duration(self.remaining)} left" * (self.remaining == self.remaining)
        return f"{self.n_done:,} of {self.n_total:,}{left}"


@check_arguments
def study(
    models: Any,
    horizons: Any = None,
    methods: Any = "cadp",
    *,
    objectives: Any = "mean",
    policy_classes: Any = None,
    seeds: Any = 0,
    test_model: Any = None,
    certify_time: Seconds | None = None,
    time_limit: Seconds | None = None,
    backend: str = "auto",
    cache_dir: str | Path | None = None,
    n_jobs: int = 1,
    executor: Unchecked[Executor | None] = None,
    callback: Callable[[StudyProgress], object] | None = None,
) -> pd.DataFrame:
    """Solve a grid of problems and evaluate each policy on test models; return one row per cell.

    ``models`` are an :class:`MMDP`, a pair of training and test models (such as a
    :class:`mmdp.domains.Domain`), or a function without arguments that makes either; or a
    mapping from names to these. A worker calls the function itself, so that
    ``functools.partial(mmdp.domains.hiv, seed=3)`` travels instead of models. Every other axis
    is one value, a sequence, or a mapping from names to values.

    Parameters
    ----------
    horizons, methods, objectives, policy_classes, seeds
        The arguments of :func:`mmdp.solve`, one or several of each. Among the methods may be
        policies to compare with, such as ``{"cadp": "cadp", "today": policy}``.
    test_model
        Test models for every cell, in place of those that ``models`` bring; or a mapping from the
        names of models.
    certify_time, time_limit, backend
        As for :func:`mmdp.solve`.
    cache_dir
        A folder that keeps each cell as soon as it is finished. A study that is run again
        computes only what is missing there. Cells that failed are tried again. If a cell cannot
        be written, there is a warning, and its row is in the table all the same.
    n_jobs
        Local processes, which share the cores. A script needs ``if __name__ == "__main__":``
        around its own work, because each process imports it.
    executor
        Any ``concurrent.futures.Executor`` instead, for example ``client.get_executor()`` of Dask.
        Unless it is one of Dask, its workers must see the folder ``cache_dir``.
    callback
        Called with a :class:`StudyProgress` after each cell.

    The table has the axes, then ``value`` (of the objective), ``mean``, ``sd``, ``stderr`` and
    ``worst`` over the models, the same on the test models as ``test_value`` and so on, ``bound``
    and ``gap`` if certified, ``status``, ``iterations``, ``seconds``, ``test_seconds`` and
    ``error``. A cell that fails has status FAILED and its error in one line; if only its test
    fails, it has the figures of its solve and the error. After Ctrl-C the cells without a result
    have status INTERRUPTED. Test models whose labels are in another order are put in that of the
    training models. The table is a pandas DataFrame: ``to_latex()`` or
    ``to_csv()`` write it for a paper.

    A result is identified by what determines it: the numbers and labels in the models, or the
    function that makes them with its arguments (its compiled code and the values that it uses, but
    not the files that it reads), all arguments of :func:`mmdp.solve`, and the version of mmdp. The
    names that you give to models, methods and so on do not count.

    >>> import mmdp
    >>> table = mmdp.study(mmdp.domains.two_models(), horizons=[2, 4], methods=["cadp", "mvp"])
    >>> table[["model", "horizon", "method", "status"]]
            model  horizon method         status
    0  two_models        2   cadp  LOCAL_OPTIMUM
    1  two_models        2    mvp      COMPLETED
    2  two_models        4   cadp  LOCAL_OPTIMUM
    3  two_models        4    mvp      COMPLETED
    """
    axes = models, horizons, methods, objectives, policy_classes, seeds, test_model
    cells = make_cells(*axes, certify_time=certify_time, time_limit=time_limit, backend=backend)
    return StudyRunner(cells, cache_dir, n_jobs, executor, callback=callback).to_frame()


# ---------------------------------------------------------------------- models
@dataclass(frozen=True)
class ModelSource:
    """Models or a function that makes them, with the digest that identifies them.

    Only the digest travels with a cell: the models are sent once, by themselves.
    """

    models_or_factory: object = field(compare=False)
    key: str

    def __getstate__(self) -> dict[str, object]:
        """Keep the digest alone for pickle."""
        return {"models_or_factory": None, "key": self.key}

    @classmethod
    def from_models(cls, models_or_factory: object) -> ModelSource:
        """Make the source of models, a pair of them, or a function that makes either.

        >>> one = MMDP([[[[1.0]]]], [[2.0]])
        >>> renamed = one.replace(name="renamed")
        >>> ModelSource.from_models(one) == ModelSource.from_models(renamed)
        True
        """
        if not (callable(models_or_factory) or isinstance(models_or_factory, MMDP)):
            models_or_factory = _as_train_test_pair(models_or_factory)
        return cls(models_or_factory, compute_digest(describe_object(models_or_factory)))


@functools.lru_cache(MAX_CACHED)
def make_models(source: ModelSource) -> tuple[MMDP, MMDP | None]:
    """Make training and test models, or None without the latter; the last few are cached."""
    models = source.models_or_factory
    return _as_train_test_pair(models() if callable(models) else models)


def _as_train_test_pair(models: object) -> tuple[MMDP, MMDP | None]:
    """Convert models, or a pair of them, to training models and test models or None."""
    if isinstance(models, MMDP):
        return models, None
    match tuple(models) if isinstance(models, Iterable) else ():
        case (MMDP() as train, MMDP() as test):
            return train, test.reorder_like(train)
        case (MMDP() as train, None):
            return train, None
    raise InputError(
        "models must be an MMDP, a pair of training and test models or a function that makes "
        f"either, not {type(models).__name__}; use mmdp.load(path) for files"
    )


# ---------------------------------------------------------------------- one cell
@dataclass(frozen=True, eq=False)
class StudyCell:
    """One solve and test of a study: its labels in the table and the inputs of its results.

    ``n_episodes`` per test model are simulated for a belief policy; None: the number of the
    method.
    """

    labels: Mapping[str, Any]
    source: ModelSource
    test_source: ModelSource | None
    horizon: float | None
    method: Method
    objective: Any = "mean"
    policy_class: Any = None
    seed: int | None = 0
    certify_time: float | None = None
    time_limit: float | None = None
    backend: str = "auto"
    n_episodes: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of :func:`solve_and_test` beside the models."""
        return {x.name: getattr(self, x.name) for x in dataclasses.fields(self)[3:]}

    @functools.cached_property
    def inputs(self) -> dict[str, object]:
        """Everything that the results depend on, as JSON values."""
        return {
            "format": CELL_FORMAT,
            "version": __version__,
            "cell": type(self).__name__,
            "models": [source.key for source in self.sources],
            **{name: describe_object(value) for name, value in self.settings.items()},
        }

    @functools.cached_property
    def key(self) -> str:
        return compute_digest(self.inputs)

    @property
    def sources(self) -> list[ModelSource]:
        return [x for x in (self.source, self.test_source) if x is not None]

    def compute_row(self, source: ModelSource, test_source: ModelSource | None = None) -> StudyRow:
        """Solve and test the models of these sources; return the results of the row."""
        train, test = make_models(source)
        if test_source is not None:
            test = make_models(test_source)[0].reorder_like(train)
        return solve_and_test(train, test, **self.settings)


def solve_and_test(
    model: MMDP,
    test_model: MMDP | None = None,
    horizon: float | None = None,
    method: str | Method = "cadp",
    *,
    objective: Any = "mean",
    n_episodes: int | None = None,
    or_mean: bool = False,
    **options: Any,
) -> StudyRow:
    """Solve a model, evaluate the policy on test models and return the results of a row.

    Oracle has no single policy: it solves the test models too. ``n_episodes`` per test model are
    simulated for a belief policy, by default the number of the method. With ``or_mean`` a method
    that does not support the objective maximizes the mean. ``options`` are others of
    :func:`mmdp.solve`.

    >>> import mmdp
    >>> train, test = mmdp.domains.riverswim(n_train=5, n_test=5)
    >>> row = solve_and_test(train, test, 9, "oracle")
    >>> row["test_mean"] == mmdp.solve(test, 9, "oracle").value
    True
    """
    method = as_method(method)
    is_supported = not or_mean or supports(method, model, horizon, as_objective(objective))
    options["objective"] = objective if is_supported else "mean"
    solution = solve(model, horizon, method, **options)
    row: StudyRow = {
        **_summarize_evaluation(solution.evaluation, objective),
        "bound": solution.bound,
        "gap": solution.gap,
        "status": solution.status.name,
        "iterations": solution.iterations,
        "seconds": solution.seconds,
        "horizon": solution.provenance.horizon,
        "version": __version__,
    }
    if options.get("policy_class") is None and solution.policy is not None:
        row["policy_class"] = solution.provenance.policy_class.name
    if test_model is None:
        return row
    start_time = time.perf_counter()
    try:
        if solution.policy is None:
            options["certify_time"] = None
            evaluation = solve(test_model, horizon, method, **options).evaluation
        else:
            n_episodes = n_episodes or getattr(method, "n_episodes", None)
            common = {key: options[key] for key in ("seed", "backend") if key in options}
            evaluation = evaluate(test_model, solution, n_episodes=n_episodes, **common)
        results = _summarize_evaluation(evaluation, objective)
    except Exception as error:  # the solve is kept
        row["error"] = f"on the test models: {_make_failed_row(error)['error']}"
        return row
    results["seconds"] = time.perf_counter() - start_time
    return row | {f"test_{name}": value for name, value in results.items()}


def compute_cell(cell: StudyCell, *models: object) -> StudyRow:
    """Compute the results of a cell, or a row with its error; Ctrl-C is raised."""
    with propagate_interrupts():
        try:
            return cell.compute_row(*map(ModelSource, models, (x.key for x in cell.sources)))
        except Exception as error:
            return _make_failed_row(error)


def _make_failed_row(error: BaseException) -> StudyRow:
    """Make the row of a cell that failed, with its error in one line."""
    message = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return {"status": FAILED, "error": shorten(message, 300)}


def _summarize_evaluation(evaluation: Evaluation, objective: Any) -> StudyRow:
    """Summarize an evaluation in columns of the table, and by what only a few methods know."""
    return {
        "value": evaluation.value(objective),
        **{name: getattr(evaluation, name) for name in STATISTICS[1:]},
        **{name: evaluation.details.get(name) for name in SIMULATED},
    }


# ---------------------------------------------------------------------- the grid
@dataclass(frozen=True)
class GivenPolicy(Method):
    """A policy that was given, as if a method had found it."""

    policy: Policy

    name: ClassVar[str] = "given"
    covers_unreachable: ClassVar[bool] = True

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return None: a policy has its value by every objective."""
        return None

    def run(self, context: SolveContext) -> MethodResult:
        """Return the policy; a stationary one over the horizon, if that is finite."""
        policy, is_infinite = self.policy, context.policy_class.is_infinite_horizon
        if policy.horizon == math.inf and not is_infinite:
            policy = policy.to_markov(context.horizon)
        policy.check(context.model, math.inf if is_infinite else context.horizon)
        return MethodResult(policy, Status.COMPLETED, 0)


def as_method_or_policy(value: str | Method | Policy) -> Method:
    """Return the method of a name, a method as it is, or one that returns a given policy."""
    return GivenPolicy(value) if isinstance(value, Policy) else as_method(value)


def make_cells(
    models: object,
    horizons: object = None,
    methods: object = "cadp",
    objectives: object = "mean",
    policy_classes: object = None,
    seeds: object = 0,
    test_model: object = None,
    *,
    cell_type: type[StudyCell] = StudyCell,
    backend: str = "auto",
    **settings: Any,
) -> list[StudyCell]:
    """Make the cells of a grid; ``settings`` are the other fields of every cell."""
    if not isinstance(models, Mapping):
        name = getattr(models, "name", None) or getattr(models, "__name__", None) or "model"
        models = {str(name): models}
    if not models:
        raise InputError("models must hold at least one model")
    tests = test_model if isinstance(test_model, Mapping) else dict.fromkeys(models, test_model)
    sources = {name: ModelSource.from_models(x) for name, x in models.items()}
    test_sources = {name: ModelSource.from_models(x) for name, x in tests.items() if x is not None}
    settings["backend"] = backend
    if backend not in ("auto", *BACKENDS):
        raise InputError(
            f"no backend is called {backend!r}; choose one of auto, {', '.join(BACKENDS)}"
        )
    axes = (
        _parse_axis("horizons", horizons),
        _parse_axis("methods", methods, _format_method, as_method_or_policy),
        _parse_axis("objectives", objectives, lambda x: str(as_objective(x))),
        _parse_axis("policy_classes", policy_classes, _format_policy_class),
        _parse_axis("seeds", seeds),
    )
    cells = []
    for name, *choices in itertools.product(models, *(axis.items() for axis in axes)):
        labels, values = zip(*choices, strict=True)
        horizon, method, objective, _, seed = values
        if not is_of_type(horizon, Label | None):
            raise InputError(f"a horizon is a number of decisions, not {shorten(horizon)}")
        as_objective(objective)
        check_type("seed", seed, Seed)
        default_class = getattr(method.default_class, "name", "one per model")
        row = name, horizon, *labels[1:3], labels[3] or default_class, seed
        row_labels = dict(zip(STUDY_AXES, row, strict=True))
        sources_of_row = sources[name], test_sources.get(name)
        cells.append(cell_type(row_labels, *sources_of_row, *values, **settings))
    return cells


def _parse_axis(
    argument: str,
    values: object,
    make_label: Callable[[Any], str] = str,
    parse: Callable[[Any], Any] = lambda x: x,
) -> dict[str, Any]:
    """Convert one value, or several, to a dict by label; repeated labels get numbers."""
    if isinstance(values, Mapping):
        pairs = [(str(key), parse(value)) for key, value in values.items()]
    else:
        is_scalar = isinstance(values, str) or getattr(values, "shape", None) == ()
        several = values if isinstance(values, Iterable) and not is_scalar else [values]
        pairs = [(make_label(value), value) for value in map(parse, several)]
    if not pairs:
        raise InputError(f"{argument} must hold at least one value")
    values_by_label: dict[str, Any] = {}
    descriptions: dict[str, object] = {}
    for label, value in pairs:
        description = describe_object(value)
        names = (label if i == 1 else f"{label} ({i})" for i in itertools.count(1))
        name = next(x for x in names if x not in descriptions or descriptions[x] == description)
        descriptions[name] = description
        values_by_label[name] = value.item() if isinstance(value, np.generic) else value
    return values_by_label


def _format_method(method: Method) -> str:
    """Format a method as its name with the options that differ from their defaults.

    >>> import mmdp
    >>> _format_method(mmdp.methods.WSU())
    'wsu'
    >>> _format_method(mmdp.methods.CADP(n_init=4, sweep_type="paper"))
    'cadp(n_init=4, sweep_type=paper)'
    """
    options: Any = dataclasses.fields(method) if dataclasses.is_dataclass(method) else ()
    option_texts = [
        f"{option.name}={shorten(value)}"
        for option in options
        for value in [getattr(method, option.name)]
        if value is not option.default and value != option.default
    ]
    return f"{method.name}({', '.join(option_texts)})" if option_texts else method.name


def _format_policy_class(policy_class: object) -> str:
    """Format a policy class with its settings, or as its name alone if they are long.

    >>> import mmdp
    >>> _format_policy_class(mmdp.policies.Memory(max_nodes=2))
    'Memory(max_nodes=2)'
    >>> _format_policy_class(mmdp.policies.Tied([0, 1] * 50))
    'tied'
    """
    text = "" if policy_class is None else str(policy_class)
    is_short = len(text) <= MAX_LABEL_LENGTH
    return text if is_short else shorten(getattr(policy_class, "name", text))


# ---------------------------------------------------------------------- all cells
class StudyRunner:
    """Runner of the cells that ``cache_dir`` does not hold; ``rows`` has all in the order given.

    After Ctrl-C, ``is_interrupted`` is True, and cells without a result have the status
    INTERRUPTED. If there is no result at all, KeyboardInterrupt is raised.
    """

    def __init__(
        self,
        cells: Sequence[StudyCell],
        cache_dir: str | Path | None = None,
        n_jobs: int = 1,
        executor: Executor | None = None,
        *,
        ignore_cache: bool = False,
        callback: Callable[[StudyProgress], object] | None = None,
    ) -> None:
        check_int(n_jobs, "n_jobs")
        if executor is not None and not isinstance(executor, Executor):
            raise InputError(
                f"executor must be a concurrent.futures.Executor, not {type(executor).__name__}; "
                "for Dask pass client.get_executor()"
            )
        self.cells, self.n_jobs, self.executor = cells, n_jobs, executor
        self.callback = show_progress(callback)
        self.folder = None if cache_dir is None else _make_cell_folder(Path(cache_dir))
        self.start_time, self.n_reused = time.perf_counter(), 0
        self.rows_by_cell: dict[StudyCell, StudyRow] = {}
        with allow_stop(lambda: self.rows_by_cell, accept_interrupts=True) as stop_state:
            self._compute_cells(
                [cell for cell in cells if ignore_cache or not self._load_cell(cell)]
            )
        self.is_interrupted = stop_state.is_interrupted

    @property
    def rows(self) -> list[StudyRow]:
        """Labels and results of every cell, in the order given."""
        return [
            {**cell.labels, **self.rows_by_cell.get(cell, {"status": INTERRUPTED})}
            for cell in self.cells
        ]

    def to_frame(self) -> pd.DataFrame:
        """Convert the rows to a data frame with the axes and the result columns."""
        import pandas as pd

        table = pd.DataFrame(self.rows).reindex(columns=[*STUDY_AXES, *RESULT_COLUMNS])
        if (horizons := [row["horizon"] for row in self.rows]).count(math.inf):
            table["horizon"] = pd.Series(horizons, dtype=object)  # 3 next to inf, not 3.0
        return table.astype({"bound": float, "gap": float, "iterations": "Int64", "error": object})

    def _compute_cells(self, missing: Sequence[StudyCell]) -> None:
        """Compute these cells in worker processes; save and record each as it finishes."""
        results = map_tasks(
            compute_cell,
            [Call(cell, [source.key for source in cell.sources]) for cell in missing],
            {source.key: source.models_or_factory for cell in missing for source in cell.sources},
            n_jobs=min(self.n_jobs, max(len(missing), 1)),
            executor=self.executor,
            folder=self.folder,
        )
        try:
            with closing(results):
                for cell, result in results:
                    if isinstance(result, LostTask):
                        result = _make_failed_row(result.error)
                    self._save_cell(cell, result)
                    self._record_row(cell, result)
        finally:
            make_models.cache_clear()

    def _record_row(self, cell: StudyCell, row: StudyRow) -> None:
        """Keep the row of a cell and call the callback."""
        self.rows_by_cell[cell] = row
        elapsed, n_done = time.perf_counter() - self.start_time, len(self.rows_by_cell)
        n_computed, n_total = n_done - self.n_reused, len(self.cells)
        remaining = (n_total - n_done) * elapsed / n_computed if n_computed else math.nan
        counts = n_done, n_total, self.n_reused, elapsed, remaining
        self.callback(StudyProgress(*counts, {**cell.labels, **row}))

    # ------------------------------------------------------------ files
    def _load_cell(self, cell: StudyCell) -> bool:
        """Read the row of a cell from its file; return whether there is a sound one."""
        if self.folder is None:
            return False
        try:
            file = self.folder / f"{cell.key}.json"
            stored_cell = json.loads(file.read_text(encoding="utf-8"))
            if stored_cell["inputs"] != cell.inputs or stored_cell["row"].get("error"):
                return False
        except (OSError, ValueError, TypeError, LookupError):
            return False
        self.n_reused += 1
        self._record_row(cell, stored_cell["row"])
        return True

    def _save_cell(self, cell: StudyCell, row: StudyRow) -> None:
        """Write the row of a cell to its file; if that fails, no other is written."""
        from mmdp.data.io.writing import write_atomic

        if self.folder is None or row["status"] == FAILED:
            return
        text = json.dumps({"inputs": cell.inputs, "row": row})
        try:
            write_atomic(self.folder / f"{cell.key}.json", text)
        except InputError as error:
            warnings.warn(f"{error}; cells are not kept", FileNotWrittenWarning, stacklevel=2)
            self.folder = None


def _make_cell_folder(cache_dir: Path) -> Path:
    """Make the folder of the cells if it does not exist, and return it."""
    from mmdp.data.io.writing import check_writable

    folder = check_writable(cache_dir) / "cells"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot make this folder ({error.strerror})") from None
    return folder
