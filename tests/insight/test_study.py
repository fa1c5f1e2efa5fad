"""Studies: the figures are those of solve() and evaluate(), nothing is lost and nothing twice."""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from pandas.testing import assert_frame_equal

import mmdp
from mmdp.core import workers
from mmdp.core.identity import compute_digest, describe_object
from mmdp.core.kernels.cpu.threads import default_n_threads
from mmdp.core.testing import make_random_model
from mmdp.insight.study import ModelSource, StudyCell, StudyProgress, StudyRunner, make_cells
from tests.faults import LoggingMethod, drop_times, kill_and_restart, make_small_model


def make_pair(seed: int) -> tuple[mmdp.MMDP, mmdp.MMDP]:
    return make_small_model(seed), make_small_model(seed + 1)


# ---------------------------------------------------------------------- the figures
def test_rows_are_what_solve_and_evaluate_find() -> None:
    models = {"a": make_small_model(1), "b": make_small_model(2)}
    test = make_small_model(9, n_models=7)
    methods = ["wsu", mmdp.methods.CADP(n_init=3), "oracle"]
    table = mmdp.study(
        models, [2, 5], methods, objectives=["mean", "cvar:0.5"], seeds=[0, 1], test_model=test
    )
    assert len(table) == 2 * 2 * 3 * 2 * 2
    assert table["method"].unique().tolist() == ["wsu", "cadp(n_init=3)", "oracle"]
    solved_rows = table[table["error"].isna()]
    refused = table[table["error"].notna()]
    assert set(refused["objective"]) == {"cvar:0.5"}  # by wsu and oracle
    assert refused["error"].str.contains("it maximises the mean, not").all()
    by_name = dict(zip(table["method"].unique(), methods, strict=True))
    for row in solved_rows.itertuples():
        solution = mmdp.solve(
            models[row.model],
            row.horizon,
            by_name[row.method],
            objective=row.objective,
            seed=row.seed,
        )
        evaluation = solution.evaluation
        figures = solution.value, evaluation.sd, evaluation.worst
        assert (row.value, row.sd, row.worst) == pytest.approx(figures, rel=1e-12)
        if row.method == "oracle":
            expected = mmdp.solve(test, row.horizon, "oracle").evaluation
        else:
            expected = mmdp.evaluate(test, solution)
        assert row.test_value == pytest.approx(expected.value(row.objective), rel=1e-12)
        figures = expected.mean, expected.sd, expected.worst
        assert (row.test_mean, row.test_sd, row.test_worst) == pytest.approx(figures, rel=1e-12)
        assert (row.status, row.iterations) == (solution.status.name, solution.iterations)


def test_certificates_and_simulations() -> None:
    table = mmdp.study(
        make_small_model(3),
        3,
        ["cadp", mmdp.methods.QMDP(n_episodes=5)],
        test_model=make_small_model(4),
        certify_time=0.5,
    )
    cadp, qmdp = table.to_dict("records")
    known = mmdp.solve(make_small_model(3), 3, "exact").value
    assert cadp["value"] <= known <= cadp["bound"]
    assert cadp["gap"] == pytest.approx((cadp["bound"] - cadp["value"]) / abs(cadp["value"]))
    assert "certify_time bounds a policy of time and state" in qmdp["error"]
    uncertified = mmdp.study(
        make_small_model(3),
        3,
        mmdp.methods.QMDP(n_episodes=5),
        seeds=2,
        test_model=make_small_model(4),
    ).iloc[0]
    solution = mmdp.solve(make_small_model(3), 3, mmdp.methods.QMDP(n_episodes=5), seed=2)
    evaluation = mmdp.evaluate(make_small_model(4), solution, n_episodes=5, seed=2)
    assert uncertified["policy_class"] == "belief"
    assert uncertified["stderr"] == pytest.approx(solution.evaluation.stderr, rel=1e-12)
    figures = evaluation.mean, evaluation.stderr
    assert (uncertified["test_mean"], uncertified["test_stderr"]) == pytest.approx(
        figures, rel=1e-12
    )


def test_models_bring_their_test_models_or_are_made_by_a_function() -> None:
    train, test = make_pair(5)
    expected = mmdp.evaluate(test, mmdp.solve(train, 4)).mean
    for models in ((train, test), partial(make_pair, 5), {"x": partial(make_pair, seed=5)}):
        row = mmdp.study(models, 4).iloc[0]
        assert row["test_mean"] == pytest.approx(expected, rel=1e-12)
    other = mmdp.study(partial(make_pair, 5), 4, test_model=make_small_model(8)).iloc[0]
    expected = mmdp.evaluate(make_small_model(8), mmdp.solve(train, 4)).mean
    assert other["test_mean"] == pytest.approx(expected, rel=1e-12)


def test_policy_classes_are_an_axis(tmp_path: Path) -> None:
    policies = ["markov", mmdp.policies.Monotone(), mmdp.policies.Fixed([[0, -1, -1]] * 3)]
    for _ in range(2):
        table = mmdp.study(make_small_model(1), 3, policy_classes=policies, cache_dir=tmp_path)
        for row, policy in zip(table.itertuples(), policies, strict=True):
            assert row.value == pytest.approx(
                mmdp.solve(make_small_model(1), 3, policy_class=policy).value
            )
        assert table["value"].is_monotonic_decreasing
    assert table["policy_class"][0] == "markov"
    assert table["policy_class"][1].startswith("Monotone(")
    infinite_table = mmdp.study(make_small_model(1), [3, math.inf], cache_dir=tmp_path)
    assert infinite_table["policy_class"].tolist() == ["markov", "stationary"]
    assert infinite_table["value"][1] == pytest.approx(
        mmdp.solve(make_small_model(1), math.inf).value
    )


def test_policies_are_compared_with_methods(tmp_path: Path) -> None:
    model, test = make_small_model(1), make_small_model(2)
    rule = mmdp.solve(model, math.inf).policy
    policies = {
        "today": mmdp.solve(model, 4, "mvp").policy,
        "rule": rule,
        "chart": mmdp.solve(model, 4, policy_class=mmdp.policies.Memory(2)).policy,
    }
    table = mmdp.study(
        (model, test), 4, {"cadp": "cadp", **policies}, objectives="cvar:0.5", cache_dir=tmp_path
    ).set_index("method")
    for name, policy in {**policies, "rule": rule.to_markov(4)}.items():
        assert table["value"][name] == pytest.approx(mmdp.evaluate(model, policy).value("cvar:0.5"))
        expected = mmdp.evaluate(test, policy).value("cvar:0.5")
        assert table["test_value"][name] == pytest.approx(expected)
    infinite = mmdp.study(model, math.inf, policies)
    assert infinite["error"].isna().tolist() == [False, True, False]
    assert infinite["value"][1] == pytest.approx(mmdp.evaluate(model, rule).mean)


def test_names_of_the_axes() -> None:
    table = mmdp.study(make_small_model(1), {"short": 2}, {"ours": mmdp.methods.CADP(n_init=1)})
    assert table.loc[0, ["model", "horizon", "method"]].tolist() == ["model", 2, "ours"]
    assert mmdp.study(make_small_model(1).replace(name="river"), 2)["model"].item() == "river"


def test_values_of_the_same_name_are_numbered() -> None:
    objectives = [lambda x, w: x.min(axis=-1), lambda x, w: x.max(axis=-1)]
    table = mmdp.study(make_small_model(1), 3, objectives=objectives)
    assert table["value"][0] < mmdp.solve(make_small_model(1), 3).value < table["value"][1]
    assert table["objective"][1] == f"{table['objective'][0]} (2)"
    groups = [[0] * 50 + [1] * 50, [0] * 51 + [1] * 49]
    long = make_random_model(1, n_models=2, n_states=100, n_actions=2, horizon=0)
    table = mmdp.study(long, 3, policy_classes=[mmdp.policies.Tied(x) for x in groups])
    known = [mmdp.solve(long, 3, policy_class=mmdp.policies.Tied(x)).value for x in groups]
    assert table["value"].tolist() == pytest.approx(known)
    init_policies = [mmdp.solve(long, 3, x).policy for x in ("mvp", "wsu")]
    assert len(mmdp.study(long, 3, [mmdp.methods.CADP(init=x) for x in init_policies])) == 2
    assert len(mmdp.study(make_small_model(1), [2, 2], ["cadp", mmdp.methods.CADP()])) == 1


# ---------------------------------------------------------------------- what is kept
class CellCounter:
    """Counts the cells that are computed here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, original = 0, StudyCell.compute_row

        def figures(cell: StudyCell, *sources: Any) -> dict[str, Any]:
            self.count += 1
            return original(cell, *sources)

        monkeypatch.setattr(StudyCell, "compute_row", figures)

    def count_during(self, call: Callable[[], object]) -> int:
        before = self.count
        call()
        return self.count - before


def test_a_second_run_computes_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = CellCounter(monkeypatch)
    run_study: Callable[..., Any] = partial(
        mmdp.study, make_small_model(1), test_model=make_small_model(2), cache_dir=tmp_path
    )
    first = run_study([2, 3], ["wsu", "cadp"])
    assert (
        counter.count_during(lambda: assert_frame_equal(run_study([2, 3], ["wsu", "cadp"]), first))
        == 0
    )
    assert counter.count_during(lambda: run_study([2, 3, 4], ["wsu", "cadp"])) == 2
    renamed = partial(mmdp.study, {"other": make_small_model(1)}, cache_dir=tmp_path)
    assert counter.count_during(lambda: renamed(2, "wsu", test_model=make_small_model(2))) == 0
    for other in (
        lambda: run_study(2, "wsu", seeds=1),
        lambda: run_study(2, mmdp.methods.CADP(tol=0.1)),
        lambda: run_study(2, "cadp", objectives="worst"),
        lambda: run_study(2, "cadp", certify_time=5),
        lambda: run_study(2, "cadp", time_limit=50),
        lambda: run_study(2, "cadp", backend="numpy"),
        lambda: renamed(2, "wsu", test_model=make_small_model(3)),
        lambda: renamed(2, "wsu"),
        lambda: mmdp.study(
            make_small_model(1).replace(discount=0.5),
            2,
            "wsu",
            test_model=make_small_model(2),
            cache_dir=tmp_path,
        ),
    ):
        assert counter.count_during(other) == 1
        assert counter.count_during(other) == 0
    monkeypatch.setattr(sys.modules["mmdp.insight.study"], "__version__", "0.0.0")
    assert counter.count_during(lambda: run_study(2, "wsu")) == 1


@pytest.mark.parametrize("content", ["", '{"inputs": {}', "[]", '{"inputs": {}}', "\x00"])
def test_a_damaged_file_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    first = mmdp.study(make_small_model(1), [2, 3], "wsu", cache_dir=tmp_path)
    file = min((tmp_path / "cells").iterdir())
    saved_inputs = json.loads(file.read_text())["inputs"]
    file.write_text(content)
    counter = CellCounter(monkeypatch)
    second = mmdp.study(make_small_model(1), [2, 3], "wsu", cache_dir=tmp_path)
    assert counter.count == 1
    assert_frame_equal(drop_times(second), drop_times(first))
    assert json.loads(file.read_text())["inputs"] == saved_inputs


def test_a_cell_that_fails_is_a_row_and_is_tried_again(tmp_path: Path) -> None:
    methods = ["wsu", LoggingMethod(fault="raise")]
    for _ in range(2):
        table = mmdp.study(make_small_model(1), [2, 3], methods, cache_dir=tmp_path)
        assert table["status"].tolist() == 2 * ["COMPLETED", "FAILED"]
        assert table["error"].dropna().tolist() == 2 * ["RuntimeError: as asked"]
        assert table["value"].isna().tolist() == 2 * [False, True]
        assert len(list((tmp_path / "cells").iterdir())) == 2


def make_labeled_model(seed: int, states: str) -> mmdp.MMDP:
    return make_small_model(seed).replace(states=states)


def test_labels_of_a_policy_class_are_those_of_its_model(tmp_path: Path) -> None:
    """Its names may mean other states."""
    fixed = mmdp.policies.Fixed({"x": 0})
    for states in ("xyz", "yxz", "zyx"):
        model = make_labeled_model(1, states)
        row = mmdp.study(model, 3, policy_classes=fixed, cache_dir=tmp_path).iloc[0]
        assert row["value"] == mmdp.solve(model, 3, policy_class=fixed).value
    failed = mmdp.study(
        make_labeled_model(1, "xyz"),
        3,
        policy_classes=mmdp.policies.Fixed({"w": 0}),
        cache_dir=tmp_path,
    )
    assert "unknown label 'w'" in failed["error"][0]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_models_with_other_labels_have_other_keys(jobs: int) -> None:
    """What is asked by labels means other states in each of them."""
    models = {states: make_labeled_model(1, states) for states in ("xyz", "yxz", "zyx")}
    policy_classes = [
        mmdp.policies.Fixed({"x": 0}),
        mmdp.policies.Tied({"x": "a", "y": "a", "z": "b"}),
    ]
    table = mmdp.study(models, 3, policy_classes=policy_classes, n_jobs=jobs)
    values = [
        mmdp.solve(x, 3, policy_class=policy_class).value
        for x in models.values()
        for policy_class in policy_classes
    ]
    assert table["value"].tolist() == pytest.approx(values, rel=1e-12)
    assert len(set(table["value"])) > 1
    inside = {states: make_source(model) for states, model in models.items()}
    second = mmdp.study(inside, 3, policy_classes=policy_classes, n_jobs=1)
    assert second["value"].tolist() == pytest.approx(values, rel=1e-12)


def make_source(model: mmdp.MMDP) -> Callable[[], mmdp.MMDP]:
    return lambda: model


@pytest.mark.parametrize("apart", [True, False])
def test_test_models_are_put_in_the_order_of_the_labels(tmp_path: Path, apart: bool) -> None:
    train, test = make_labeled_model(1, "xyz"), make_labeled_model(2, "xyz")
    expected = mmdp.evaluate(test, mmdp.solve(train, 3)).mean
    order = [2, 0, 1]
    other = mmdp.MMDP(
        test.transitions[:, order][..., order],
        test.rewards[:, order],
        initial=test.initial[order],
        terminal=test.terminal[:, order],
        discount=test.discount,
        states="zxy",
        actions=test.to_kwargs()["actions"],
    )
    assert other.reorder_like(train).fingerprint() == test.fingerprint()
    for test_model, expected_value in ((other, expected), (other.replace(states="xyz"), None)):
        arguments = (
            {"models": train, "test_model": test_model}
            if apart
            else {"models": (train, test_model)}
        )
        row = mmdp.study(**arguments, horizons=3, cache_dir=tmp_path).iloc[0]
        assert (row["test_mean"] == pytest.approx(expected, rel=1e-12)) == (
            expected_value is not None
        )


def test_a_solve_is_kept_if_its_test_fails(tmp_path: Path) -> None:
    model, other = make_small_model(1), make_small_model(2).replace(states=list("abc"))
    row = mmdp.study(
        model.replace(states=list("xyz")), 3, test_model=other, cache_dir=tmp_path
    ).iloc[0]
    assert row["value"] == mmdp.solve(model, 3).value
    assert row["status"] == "LOCAL_OPTIMUM"
    assert row["error"].startswith("on the test models: the policy's states are named differently")
    (cell_file,) = (tmp_path / "cells").iterdir()
    assert json.loads(cell_file.read_text())["row"]["value"] == row["value"]


def test_a_result_is_known_by_what_determines_it() -> None:
    same = describe_object(partial(make_pair, 3)), describe_object(partial(make_pair, 3))
    assert same[0] == same[1] != describe_object(partial(make_pair, 4))
    policy = mmdp.solve(make_small_model(1), 2).policy
    start = mmdp.solve(make_small_model(2), 2).policy
    assert describe_object(mmdp.methods.CADP(init=policy)) != describe_object(
        mmdp.methods.CADP(init=start)
    )
    copied = pickle.loads(pickle.dumps(mmdp.methods.CADP(init=policy)))
    assert describe_object(copied) == describe_object(mmdp.methods.CADP(init=policy))
    json.dumps(describe_object(mmdp.methods.CADP(init=policy)))


SHIFT = 1


def make_shifted_model(seed: int) -> mmdp.MMDP:
    return make_small_model(seed + SHIFT)


def study_values(models: Any, **settings: Any) -> list[float]:
    return list(mmdp.study(models, 3, **settings)["value"])


def test_functions_have_their_own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [mmdp.solve(make_small_model(i), 3).value for i in range(3)]
    assert len(set(expected)) == 3
    defaults = {f"seed {i}": (lambda i=i: make_small_model(i)) for i in range(3)}
    assert study_values(defaults, cache_dir=tmp_path) == pytest.approx(expected)
    line = {"a": lambda: make_small_model(0), "b": lambda: make_small_model(1)}
    assert study_values(line, cache_dir=tmp_path) == pytest.approx(expected[:2])
    assert study_values(lambda: make_shifted_model(1), cache_dir=tmp_path) == pytest.approx(
        expected[2:]
    )
    monkeypatch.setitem(globals(), "SHIFT", -1)  # read by a function that a function calls
    assert study_values(lambda: make_shifted_model(1), cache_dir=tmp_path) == pytest.approx(
        expected[:1]
    )
    around = {f"seed {i}": make_closure(i) for i in range(3)}
    assert study_values(around, cache_dir=tmp_path) == pytest.approx(expected)


def make_closure(seed: int) -> Callable[[], mmdp.MMDP]:
    def inner() -> mmdp.MMDP:
        return make_small_model(seed)

    return inner


def import_text(folder: Path, text: str) -> Any:
    """What a file defines, imported anew."""
    file = folder / f"m{hash(text)}.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FUNCTION = """
import numpy as np
from pathlib import Path
SHIFT, OTHER = {"up": 1}, 2
def decorate(function):
    return function
def make(around):
    @decorate
    def made(seed, *, scale=[1.5]):
        "é"
        other = [np.exp(x) for x in Path("a").parts if x in SHIFT]
        return other, around
    return made
"""


def test_a_function_is_its_code_and_the_values_it_uses(tmp_path: Path) -> None:
    name, _, *values = describe_object(import_text(tmp_path, FUNCTION).make(7))
    assert name == "make.<locals>.made"
    assert values == [
        None,
        [["scale", [1.5]]],
        [7],
        [
            ["Path", "pathlib.Path"],
            ["SHIFT", [["up", 1]]],
            ["np", ["module", "numpy", None]],
        ],
    ]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("1.5", "1.6", False),
        ('"up": 1', '"up": 3', False),
        ("np.exp", "np.log", False),
        ("}, 2", "}, 3", True),
        ("def decorate", "# aside\ndef decorate", True),
    ],
)
def test_what_changes_the_key_of_a_function(tmp_path: Path, old: str, new: str, same: bool) -> None:
    key_before, key_after = (
        import_text(tmp_path, x).make(7) for x in (FUNCTION, FUNCTION.replace(old, new))
    )
    assert (describe_object(key_before) == describe_object(key_after)) == same
    assert describe_object(key_before) != describe_object(import_text(tmp_path, FUNCTION).make(8))


SCIPY_FUNCTION = """
import numpy as np
from scipy.stats import norm, poisson
late = poisson(FIRST, loc=1)
def chances(mean):
    p = poisson.pmf(np.arange(9), mean) + late.pmf(np.arange(9))
    return p / p.sum() * norm.cdf(0)
"""


def test_objects_of_packages_are_keyed_by_name_or_content(tmp_path: Path) -> None:
    """scipy.stats.poisson holds itself, and the state of numpy's random numbers."""
    descriptions = [
        describe_object(import_text(tmp_path, SCIPY_FUNCTION.replace("FIRST", x)).chances)
        for x in "334"
    ]
    assert descriptions[0] == descriptions[1] != descriptions[2]
    assert ["poisson", "scipy.stats._discrete_distns.poisson"] in descriptions[0][-1]
    code = (
        "from mmdp.core.identity import *; from scipy.stats import poisson; "
        "print(describe_object(poisson(3)))"
    )
    outputs = [subprocess.check_output([sys.executable, "-c", code]) for _ in range(2)]
    assert outputs[0] == outputs[1] != b"None"


class Node:
    def __init__(self, value: Any) -> None:
        self.value, self.me = value, self


def test_what_objects_hold_is_seen() -> None:
    arrays = np.array(["a", None]), np.array(["b", None])
    for one, other in (
        (pd.DataFrame({"x": [1]}), pd.DataFrame({"x": [2]})),
        (pd.Series([1], ["a"]), pd.Series([1], ["b"])),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (Node(1), Node(2)),
        arrays,
        (Node(1).__init__, Node(2).__init__),
    ):
        assert describe_object(one) == describe_object(copy.deepcopy(one)) != describe_object(other)
        json.dumps(describe_object(one))
    for unknown in (object(), iter([1]), threading.Lock()):
        with pytest.raises(mmdp.InputError, match="plain values"):
            describe_object({"x": unknown})


def test_several_functions_on_a_line_have_their_own_keys(tmp_path: Path) -> None:
    """Their names and lines are the same, and so is the code of some but for its constants."""
    texts = ["lambda: 1", "lambda: True", "lambda: 'é'", "lambda x: 1", "lambda *x: 1"]
    texts += ["lambda: (lambda: 1)", "lambda: (lambda: 2)", "lambda: a(1)", "lambda: b(1)"]
    texts += [
        "lambda x=1: x",
        "lambda x=2: x",
        "lambda *, x=1: x",
        "lambda x: x.a",
        "lambda x: x.b",
    ]
    made = import_text(tmp_path, f"a, b = str, int\ndef made(): return [{', '.join(texts)}]\n")
    keys = [json.dumps(describe_object(x)) for x in made.made()]
    assert len(set(keys)) == len(texts)
    assert keys == [json.dumps(describe_object(x)) for x in made.made()]


def test_a_function_is_what_runs_not_what_its_file_says_by_now(tmp_path: Path) -> None:
    typed: dict[str, Any] = {"small": make_small_model, "__name__": "__main__"}
    exec("def made(): return small(1)", typed)  # as typed at a prompt
    first = describe_object(typed["made"])
    exec("def made(): return small(2)", typed)
    assert describe_object(typed["made"]) != first
    module = import_text(tmp_path, "def made(x):\n    return x + 1\n")
    before = describe_object(module.made)
    Path(module.__file__).write_text("def made(x):\n    return x - 1\n")
    assert describe_object(module.made) == before
    with pytest.raises(
        mmdp.InputError, match="<list_iterator.* looks like any other list_iterator, so results"
    ):
        describe_object(make_closure(iter([1])))  # type: ignore[arg-type]


def test_a_module_of_ones_own_is_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_helpers.py").write_text("SHIFT = 1\n")
    module = import_text(tmp_path, "import own_helpers\ndef made(): return own_helpers.SHIFT\n")
    before = describe_object(module.made)
    (tmp_path / "own_helpers.py").write_text("SHIFT = 2\n")
    assert describe_object(module.made) != before


@pytest.mark.parametrize(
    "text",
    [
        "def made():\n    from own_package import rates\n    return rates.SHIFT\n",
        "def made():\n    import own_package.rates\n    return own_package.rates.SHIFT\n",
        "import own_package.rates\ndef made(): return own_package.rates.SHIFT\n",
    ],
)
def test_modules_imported_in_a_body_or_by_a_dotted_name_are_their_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_package", "own_package.rates"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").touch()
    (tmp_path / "own_package" / "rates.py").write_text("SHIFT = 1\n")
    module = import_text(tmp_path, text)
    before = describe_object(module.made)
    assert describe_object(module.made) == before
    (tmp_path / "own_package" / "rates.py").write_text("SHIFT = 2\n")
    assert describe_object(module.made) != before


def test_objectives_that_are_functions_have_their_own_keys(tmp_path: Path) -> None:
    for _ in range(2):
        objectives = {"min": lambda x, w: x.min(axis=-1), "max": lambda x, w: x.max(axis=-1)}
        low, high = study_values(make_small_model(1), objectives=objectives, cache_dir=tmp_path)
        assert low < mmdp.solve(make_small_model(1), 3).value < high


CLASS = """
from dataclasses import dataclass
from tests.faults import LoggingMethod
@dataclass(frozen=True)
class Own(LoggingMethod):
    more: int = 0
    def run(self, x): return FACTOR, super().run(x)
"""


def test_classes_are_keyed_by_their_source(tmp_path: Path) -> None:
    """What a dataclass adds by itself does not count."""
    keys = []
    for factor in ("1", "1", "2"):
        module = import_text(tmp_path, CLASS.replace("FACTOR", factor))
        sys.modules[module.__name__] = module
        keys.append(describe_object(module.Own(file="a")))
        pickle.dumps(module.Own())
        assert describe_object(module.Own(file="a")) == keys[-1]
    assert keys[0] == keys[1] != keys[2]
    json.dumps(keys)
    assert describe_object(LoggingMethod("a")) != describe_object(LoggingMethod("b"))


def test_what_has_no_key_is_refused() -> None:
    same = mmdp.study({"a": lambda: make_small_model(1), "b": lambda: make_small_model(1)}, 2)
    assert same["value"].tolist() == [mmdp.solve(make_small_model(1), 2).value] * 2
    with pytest.raises(mmdp.InputError, match="give a model, or a function that uses plain"):
        mmdp.study(partial(make_pair, iter([1])), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"models": "data"}, "not str; use mmdp.load"),
        ({"models": {}}, "at least one model"),
        ({"models": [1, 2]}, "a pair of training and test models"),
        ({"horizons": []}, "horizons must hold at least one value"),
        ({"methods": "capd"}, "no method is called 'capd'"),
        ({"objectives": "cvr:0.1"}, "no objective is called 'cvr'"),
        ({"seeds": -1}, "seed must be"),
        ({"n_jobs": 0}, "n_jobs must be"),
        ({"backend": "fortran"}, "no backend is called 'fortran'"),
        ({"executor": 3}, "pass client.get_executor()"),
        ({"time_limit": -1}, "time_limit must be"),
    ],
)
def test_what_every_cell_would_refuse_is_refused_at_once(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(mmdp.InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        mmdp.study(**{"models": make_small_model(1), "horizons": 2, **arguments})


def test_progress_says_what_is_left(tmp_path: Path) -> None:
    progress: list[StudyProgress] = []
    mmdp.study(make_small_model(1), [2, 3], "wsu", cache_dir=tmp_path, callback=progress.append)
    assert [(x.n_done, x.n_total, x.n_reused) for x in progress] == [(1, 2, 0), (2, 2, 0)]
    assert progress[0].remaining > 0 == progress[1].remaining
    progress.clear()
    mmdp.study(make_small_model(1), [2, 3, 4], "wsu", cache_dir=tmp_path, callback=progress.append)
    assert [x.n_reused for x in progress] == [1, 2, 2]
    assert math.isnan(progress[1].remaining)
    assert progress[-1].row["horizon"] == 4


# ---------------------------------------------------------------------- Ctrl-C
def interrupt_at(count: int) -> Callable[[StudyProgress], None]:
    def callback(progress: StudyProgress) -> None:
        if progress.n_done == count:
            signal.raise_signal(signal.SIGINT)

    return callback


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    partial_table = mmdp.study(
        make_small_model(1), range(2, 7), "wsu", cache_dir=tmp_path, callback=interrupt_at(2)
    )
    assert partial_table["status"].tolist() == 2 * ["COMPLETED"] + 3 * ["INTERRUPTED"]
    assert len(list((tmp_path / "cells").iterdir())) == 2
    full_table = mmdp.study(make_small_model(1), range(2, 7), "wsu", cache_dir=tmp_path)
    assert_frame_equal(
        drop_times(full_table), drop_times(mmdp.study(make_small_model(1), range(2, 7), "wsu"))
    )


def test_the_best_so_far_of_an_interrupted_cell_is_no_result(tmp_path: Path) -> None:
    methods = ["wsu", LoggingMethod(fault="interrupt"), "cadp"]
    table = mmdp.study(make_small_model(1), 2, methods, cache_dir=tmp_path)
    assert table["status"].tolist() == ["COMPLETED", "INTERRUPTED", "INTERRUPTED"]
    assert len(list((tmp_path / "cells").iterdir())) == 1
    with pytest.raises(KeyboardInterrupt):
        mmdp.study(make_small_model(1), 2, LoggingMethod(fault="interrupt"), cache_dir=tmp_path)


def test_solve_by_itself_answers_the_same_ctrl_c_and_the_next_one_ends_a_study() -> None:
    alone = mmdp.solve(make_small_model(1), 2, LoggingMethod(fault="interrupt"))
    assert alone.status is mmdp.Status.INTERRUPTED
    with pytest.raises(KeyboardInterrupt):
        mmdp.study(make_small_model(1), [2, 3], "wsu", callback=interrupt_at(1))


# ---------------------------------------------------------------------- processes
def test_processes_find_the_same_and_one_that_dies_takes_no_other_cell(tmp_path: Path) -> None:
    models = {"made": partial(make_pair, 5), "given": make_small_model(1)}
    axes: Any = (models, 3, ["wsu", "cadp"])
    local_table = mmdp.study(*axes, seeds=[0, 1], test_model={"given": make_small_model(7)})
    good_cells = make_cells(*axes, seeds=[0, 1], test_model={"given": make_small_model(7)})
    bad_cells = make_cells(make_small_model(1), 3, LoggingMethod(fault="die"))
    parallel_table = StudyRunner(
        [*good_cells[:3], *bad_cells, *good_cells[3:]], cache_dir=tmp_path, n_jobs=2
    ).to_frame()
    assert parallel_table["status"][3] == "FAILED"
    assert parallel_table["error"][3].endswith("the process that computed it died, every time")
    assert len(list((tmp_path / "cells").iterdir())) == len(local_table)
    finished = parallel_table.drop(index=3).reset_index(drop=True).astype(local_table.dtypes)
    assert_frame_equal(drop_times(finished), drop_times(local_table), rtol=1e-12)


def misbehave(task: tuple[int, str]) -> int:
    _, fault = task
    if fault == "raise":
        raise RuntimeError("as asked")
    if fault == "die":
        os._exit(7)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@pytest.mark.parametrize(
    "faults",
    [
        ["", "raise", "", "kill", ""],
        pytest.param(["", "raise", "", "die", "", "kill", ""], marks=pytest.mark.slow),
    ],
    ids=len,
)
def test_calls_that_fail_in_a_process_say_why_and_the_others_are_answered(
    faults: list[str],
) -> None:
    calls = [workers.Call((i, fault), ()) for i, fault in enumerate(faults)]
    results = dict(workers.map_tasks(misbehave, calls, {}, n_jobs=2))
    assert len(results) == len(faults)
    for (_, fault), result in results.items():
        if fault:
            assert isinstance(result, workers.LostTask)
            assert ("as asked" if fault == "raise" else "died") in str(result.error)
        else:
            assert result != os.getpid()
            with pytest.raises(ProcessLookupError):  # no process is left
                os.kill(result, 0)


def test_a_horizon_that_is_none_fails_as_a_cell_of_its_own() -> None:
    table = mmdp.study(make_small_model(3), [2, "x"], "wsu", n_jobs=2)  # type: ignore[list-item]
    assert table["status"].tolist() == ["COMPLETED", "FAILED"]


def test_any_executor(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as executor:
        table = mmdp.study(
            make_small_model(1), range(2, 9), "cadp", cache_dir=tmp_path, executor=executor
        )
    assert_frame_equal(
        drop_times(table), drop_times(mmdp.study(make_small_model(1), range(2, 9), "cadp"))
    )
    assert not [x for x in (tmp_path / "cells").iterdir() if x.suffix != ".json"]


def test_an_executor_that_is_broken_fails_every_cell_and_says_so() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    table = mmdp.study(make_small_model(1), [2, 3], executor=executor)
    assert table["error"].str.contains("after shutdown").all()


def test_models_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell is small whatever its models are, and a model is one file for all of its cells."""
    model = make_random_model(1, n_models=40, n_states=30, n_actions=2, horizon=0)
    sizes: list[int] = []
    original = workers._send_object

    def send(*arguments: Any) -> Any:
        reference = original(*arguments)
        sizes.append(Path(reference.path).stat().st_size)
        return reference

    monkeypatch.setattr(workers, "_send_object", send)
    cells = make_cells(model, range(2, 52), "wsu", test_model=model)
    assert max(len(pickle.dumps(cell)) for cell in cells) < 2000
    with ThreadPoolExecutor(2) as executor:
        mmdp.study(model, range(2, 52), "wsu", test_model=model, executor=executor)
    assert len(sizes) == 1
    assert model.nbytes < sizes[0] < 1.1 * model.nbytes + 10_000


@pytest.mark.parametrize("is_mapped", [True, False])
def test_a_model_from_a_file_is_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mapped: bool
) -> None:
    monkeypatch.setattr(workers, "MIN_MAPPED_SIZE", 0 if is_mapped else math.inf)
    model = make_small_model(1).replace(models=list("abcd"), parameters={"x": [1.0, 2.0, 3.0, 4.0]})
    reference = workers._send_object(model, None, str(tmp_path))
    loaded = workers._load_object(reference.path)
    assert loaded.fingerprint() == model.fingerprint()
    assert (loaded.model_labels, loaded.storage) == (model.model_labels, model.storage)
    assert isinstance(loaded.problem.p, np.memmap) == is_mapped
    assert mmdp.solve(loaded, 3).value == mmdp.solve(model, 3).value
    with pytest.raises(mmdp.InputError, match="does not see the file"):
        workers._load_object(str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("n_jobs", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_share_the_cores(n_jobs: int) -> None:
    calls = [workers.Call(0, ())]
    ((_, n_threads),) = workers.map_tasks(_count_threads, calls, {}, n_jobs=n_jobs)
    assert n_threads == max(1, default_n_threads() // n_jobs)
    results = dict(workers.map_tasks(_count_threads, calls, {}, executor=ThreadPoolExecutor(1)))
    assert results == {0: 1}


def _count_threads(task: int) -> int:
    return default_n_threads()


# ---------------------------------------------------------------------- killed and run again
SCRIPT = """
import sys
import mmdp
from tests.faults import LoggingMethod, make_small_model

if __name__ == "__main__":
    out, go, log, jobs = sys.argv[1:]
    table = mmdp.study(make_small_model(1), [2, 3], LoggingMethod(log, go_file=go),
                       seeds=range(6), cache_dir=out, n_jobs=int(jobs),
                       test_model=make_small_model(2))
    table.to_csv(out + "/table.csv", index=False)
"""


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_a_third_and_started_again(tmp_path: Path, jobs: int) -> None:
    script, out, log = tmp_path / "script.py", tmp_path / "out", tmp_path / "log"
    script.write_text(SCRIPT)
    before = kill_and_restart(script, out, tmp_path / "go", log, jobs)
    assert {file: file.read_bytes() for file in before} == before
    finished = log.read_text().split()
    # processes that outlive their program finish the calls that they were given
    assert 12 <= len(finished) <= 12 + (2 * jobs if jobs > 1 else 0)
    table = pd.read_csv(out / "table.csv")
    expected = mmdp.study(
        make_small_model(1), [2, 3], "wsu", seeds=range(6), test_model=make_small_model(2)
    )
    columns = ["horizon", "seed", "value", "test_mean", "status"]
    assert_frame_equal(table[columns], expected[columns])


def test_sources_are_pickled_without_models() -> None:
    source = ModelSource.from_models(make_small_model(1))
    assert pickle.loads(pickle.dumps(source)).models_or_factory is None


def handle_first(f: Any, g: Any) -> float:
    try:
        f()
        g()
    except ValueError:
        return 1.0
    return 7.0


def handle_both(f: Any, g: Any) -> float:
    try:
        f()
    except ValueError:
        return 1.0
    else:
        g()
    return 7.0


class Scaled(NamedTuple):
    """A tuple whose methods count, too."""

    rate: float = 1.0

    def build(self) -> float:
        return self.rate


class ScaledTwice(Scaled):
    __slots__ = ()

    def build(self) -> float:
        return 2 * self.rate


def make_wrapper(rate: float) -> Callable[..., float]:
    @functools.wraps(mmdp.domains.hiv)
    def build() -> float:
        return rate

    return build


class FirstPartial:
    make = functools.partial(max, 1.0)


class SecondPartial:
    make = functools.partial(max, 7.0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Scaled().build, ScaledTwice().build),
        (Scaled(1.0).build, Scaled(2.0).build),
        (scipy.stats.poisson(1.0).pmf, scipy.stats.poisson(5.0).pmf),
        (make_wrapper(1.0), make_wrapper(7.0)),
        (vars(FirstPartial)["make"], vars(SecondPartial)["make"]),
        (defaultdict(lambda: 1.0), defaultdict(lambda: 7.0)),
        (np.ma.array([1.0, 2.0], mask=[0, 1]), np.ma.array([1.0, 2.0], mask=[1, 0])),
    ],
)
def test_what_differs_has_another_key(first: Any, second: Any) -> None:
    assert describe_object(first) == describe_object(first)
    assert compute_digest(describe_object(first)) != compute_digest(describe_object(second))


def test_the_scope_of_an_exception_handler_is_part_of_the_code() -> None:
    for name in ("handle_first", "handle_both"):
        globals()[name].__qualname__ = globals()[name].__name__ = "handle"
    codes = [x.__code__.replace(co_name="handle") for x in (handle_first, handle_both)]
    assert describe_object(codes[0]) != describe_object(codes[1])
    moved = codes[0].replace(co_exceptiontable=b"")
    assert describe_object(codes[0]) != describe_object(moved)
