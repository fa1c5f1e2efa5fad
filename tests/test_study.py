"""Studies: the figures are those of solve() and evaluate(), nothing is lost and nothing twice."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import mmdp
from mmdp import workers
from mmdp.identity import facts
from mmdp.kernels.cpu.threads import default_threads
from mmdp.study import Cell, Run, Source, StudyProgress, cells_of
from mmdp.testing import random_model
from tests.noted import Noted, killed_and_started_again, small, steady
from tests.processes import PATIENCE, running


def pair(seed: int) -> tuple[mmdp.MMDP, mmdp.MMDP]:
    return small(seed), small(seed + 1)


# ---------------------------------------------------------------------- the figures
def test_rows_are_what_solve_and_evaluate_find() -> None:
    models = {"a": small(1), "b": small(2)}
    test = small(9, n_models=7)
    methods = ["wsu", mmdp.CADP(starts=3), "oracle"]
    table = mmdp.study(
        models, [2, 5], methods, objectives=["mean", "cvar:0.5"], seeds=[0, 1], test=test
    )
    assert len(table) == 2 * 2 * 3 * 2 * 2
    assert table["method"].unique().tolist() == ["wsu", "cadp(starts=3)", "oracle"]
    done = table[table["error"].isna()]
    refused = table[table["error"].notna()]
    assert set(refused["objective"]) == {"cvar:0.5"}  # by wsu and oracle
    assert refused["error"].str.contains("it maximises the mean, not").all()
    by_name = dict(zip(table["method"].unique(), methods, strict=True))
    for row in done.itertuples():
        solution = mmdp.solve(
            models[row.model], row.horizon, by_name[row.method], objective=row.objective,
            seed=row.seed,
        )  # fmt: skip
        found = solution.evaluation
        figures = solution.value, found.sd, found.worst
        assert (row.value, row.sd, row.worst) == pytest.approx(figures, rel=1e-12)
        if row.method == "oracle":
            expected = mmdp.solve(test, row.horizon, "oracle").evaluation
        else:
            expected = mmdp.evaluate(solution, test)
        assert row.test_value == pytest.approx(expected.value(row.objective), rel=1e-12)
        figures = expected.mean, expected.sd, expected.worst
        assert (row.test_mean, row.test_sd, row.test_worst) == pytest.approx(figures, rel=1e-12)
        assert (row.status, row.iterations) == (solution.status.name, solution.iterations)


def test_certificates_and_simulations() -> None:
    table = mmdp.study(small(3), 3, ["cadp", mmdp.QMDP(episodes=5)], test=small(4), certify=0.5)
    cadp, qmdp = table.to_dict("records")
    known = mmdp.solve(small(3), 3, "exact").value
    assert cadp["value"] <= known <= cadp["bound"]
    assert cadp["gap"] == pytest.approx((cadp["bound"] - cadp["value"]) / abs(cadp["value"]))
    assert "certify bounds a policy of time and state" in qmdp["error"]
    plain = mmdp.study(small(3), 3, mmdp.QMDP(episodes=5), seeds=2, test=small(4)).iloc[0]
    solution = mmdp.solve(small(3), 3, mmdp.QMDP(episodes=5), seed=2)
    found = mmdp.evaluate(solution, small(4), episodes=5, seed=2)
    assert plain["policy"] == "belief"
    assert plain["stderr"] == pytest.approx(solution.evaluation.stderr, rel=1e-12)
    figures = found.mean, found.stderr
    assert (plain["test_mean"], plain["test_stderr"]) == pytest.approx(figures, rel=1e-12)


def test_models_bring_their_test_models_or_are_made_by_a_function() -> None:
    train, test = pair(5)
    expected = mmdp.evaluate(mmdp.solve(train, 4), test).mean
    for models in ((train, test), partial(pair, 5), {"x": partial(pair, seed=5)}):
        row = mmdp.study(models, 4).iloc[0]
        assert row["test_mean"] == pytest.approx(expected, rel=1e-12)
    other = mmdp.study(partial(pair, 5), 4, test=small(8)).iloc[0]
    expected = mmdp.evaluate(mmdp.solve(train, 4), small(8)).mean
    assert other["test_mean"] == pytest.approx(expected, rel=1e-12)


def test_kinds_of_policy_are_an_axis(tmp_path: Path) -> None:
    policies = ["markov", mmdp.Monotone(), mmdp.Fixed([[0, -1, -1]] * 3)]
    for _ in range(2):
        table = mmdp.study(small(1), 3, policies=policies, out=tmp_path)
        for row, policy in zip(table.itertuples(), policies, strict=True):
            assert row.value == pytest.approx(mmdp.solve(small(1), 3, policy=policy).value)
        assert table["value"].is_monotonic_decreasing
    assert table["policy"][0] == "markov"
    assert table["policy"][1].startswith("Monotone(")
    endless = mmdp.study(small(1), [3, math.inf], out=tmp_path)
    assert endless["policy"].tolist() == ["markov", "stationary"]
    assert endless["value"][1] == pytest.approx(mmdp.solve(small(1), math.inf).value)


def test_names_of_the_axes() -> None:
    table = mmdp.study(small(1), {"short": 2}, {"ours": mmdp.CADP(starts=1)})
    assert table.loc[0, ["model", "horizon", "method"]].tolist() == ["model", 2, "ours"]
    assert mmdp.study(small(1).replace(name="river"), 2)["model"].item() == "river"


def test_values_of_the_same_name_are_numbered() -> None:
    ends = [lambda x, w: x.min(axis=-1), lambda x, w: x.max(axis=-1)]
    table = mmdp.study(small(1), 3, objectives=ends)
    assert table["value"][0] < mmdp.solve(small(1), 3).value < table["value"][1]
    assert table["objective"][1] == f"{table['objective'][0]} (2)"
    groups = [[0] * 50 + [1] * 50, [0] * 51 + [1] * 49]
    long = random_model(1, n_models=2, n_states=100, n_actions=2, horizon=0)
    table = mmdp.study(long, 3, policies=[mmdp.Tied(x) for x in groups])
    known = [mmdp.solve(long, 3, policy=mmdp.Tied(x)).value for x in groups]
    assert table["value"].tolist() == pytest.approx(known)
    starts = [mmdp.solve(long, 3, x).policy for x in ("mvp", "wsu")]
    assert len(mmdp.study(long, 3, [mmdp.CADP(init=x) for x in starts])) == 2
    assert len(mmdp.study(small(1), [2, 2], ["cadp", mmdp.CADP()])) == 1


# ---------------------------------------------------------------------- what is kept
class Counting:
    """Counts the cells that are computed here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, plain = 0, Cell.figures

        def figures(cell: Cell, *sources: Any) -> dict[str, Any]:
            self.count += 1
            return plain(cell, *sources)

        monkeypatch.setattr(Cell, "figures", figures)

    def of(self, call: Callable[[], object]) -> int:
        before = self.count
        call()
        return self.count - before


def test_a_second_run_computes_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(monkeypatch)
    ask: Callable[..., Any] = partial(mmdp.study, small(1), test=small(2), out=tmp_path)
    first = ask([2, 3], ["wsu", "cadp"])
    assert counting.of(lambda: assert_frame_equal(ask([2, 3], ["wsu", "cadp"]), first)) == 0
    assert counting.of(lambda: ask([2, 3, 4], ["wsu", "cadp"])) == 2
    renamed = partial(mmdp.study, {"other": small(1)}, out=tmp_path)
    assert counting.of(lambda: renamed(2, "wsu", test=small(2))) == 0
    for other in (
        lambda: ask(2, "wsu", seeds=1),
        lambda: ask(2, mmdp.CADP(tol=0.1)),
        lambda: ask(2, "cadp", objectives="worst"),
        lambda: ask(2, "cadp", certify=True),
        lambda: ask(2, "cadp", time_limit=50),
        lambda: ask(2, "cadp", backend="numpy"),
        lambda: renamed(2, "wsu", test=small(3)),
        lambda: renamed(2, "wsu"),
        lambda: mmdp.study(small(1).replace(discount=0.5), 2, "wsu", test=small(2), out=tmp_path),
    ):
        assert counting.of(other) == 1
        assert counting.of(other) == 0
    monkeypatch.setattr(sys.modules["mmdp.study"], "__version__", "0.0.0")
    assert counting.of(lambda: ask(2, "wsu")) == 1


@pytest.mark.parametrize("content", ["", '{"question": {}', "[]", '{"question": {}}', "\x00"])
def test_a_damaged_file_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    first = mmdp.study(small(1), [2, 3], "wsu", out=tmp_path)
    file = next((tmp_path / "cells").glob("*-2-wsu-*.json"))
    whole = json.loads(file.read_text())["question"]
    file.write_text(content)
    counting = Counting(monkeypatch)
    again = mmdp.study(small(1), [2, 3], "wsu", out=tmp_path)
    assert counting.count == 1
    assert_frame_equal(steady(again), steady(first))
    assert json.loads(file.read_text())["question"] == whole


def test_a_cell_that_fails_is_a_row_and_is_tried_again(tmp_path: Path) -> None:
    methods = ["wsu", Noted(harm="raise")]
    for _ in range(2):
        table = mmdp.study(small(1), [2, 3], methods, out=tmp_path)
        assert table["status"].tolist() == 2 * ["COMPLETED", "FAILED"]
        assert table["error"].dropna().tolist() == 2 * ["RuntimeError: as asked"]
        assert table["value"].isna().tolist() == 2 * [False, True]
        assert len(list((tmp_path / "cells").iterdir())) == 2


def named(seed: int, states: str) -> mmdp.MMDP:
    return small(seed).replace(states=states)


def test_a_kind_of_policy_is_known_by_what_it_means_on_the_models(tmp_path: Path) -> None:
    """Its names may mean other states; what means the same is not computed again."""
    fixed = mmdp.Fixed({"x": 0})
    for states in ("xyz", "yxz", "zyx"):
        model = named(1, states)
        row = mmdp.study(model, 3, policies=fixed, out=tmp_path).iloc[0]
        assert row["value"] == mmdp.solve(model, 3, policy=fixed).value
    told: list[StudyProgress] = []
    same = mmdp.Fixed([0, -1, -1])
    mmdp.study(named(1, "xyz"), 3, policies=same, out=tmp_path, callback=told.append)
    assert told[0].reused == 1
    failed = mmdp.study(named(1, "xyz"), 3, policies=mmdp.Fixed({"w": 0}), out=tmp_path)
    assert "no label 'w'" in failed["error"][0]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_models_with_the_same_numbers_and_other_labels_are_told_apart(jobs: int) -> None:
    """What is asked by labels means other states in each of them."""
    models = {states: named(1, states) for states in ("xyz", "yxz", "zyx")}
    kinds = [mmdp.Fixed({"x": 0}), mmdp.Tied({"x": "a", "y": "a", "z": "b"})]
    table = mmdp.study(models, 3, policies=kinds, jobs=jobs)
    alone = [mmdp.solve(x, 3, policy=kind).value for x in models.values() for kind in kinds]
    assert table["value"].tolist() == pytest.approx(alone, rel=1e-12)
    assert len(set(table["value"])) > 1
    inside = {states: made_from(model) for states, model in models.items()}
    again = mmdp.study(inside, 3, policies=kinds, jobs=1)
    assert again["value"].tolist() == pytest.approx(alone, rel=1e-12)


def made_from(model: mmdp.MMDP) -> Callable[[], mmdp.MMDP]:
    return lambda: model


@pytest.mark.parametrize("apart", [True, False])
def test_test_models_are_put_in_the_order_of_the_labels(tmp_path: Path, apart: bool) -> None:
    train, test = named(1, "xyz"), named(2, "xyz")
    expected = mmdp.evaluate(mmdp.solve(train, 3), test).mean
    order = [2, 0, 1]
    other = mmdp.MMDP(
        test.transitions[:, order][..., order], test.rewards[:, order], initial=test.initial[order],
        terminal=test.terminal[:, order], discount=test.discount, states="zxy",
        actions=test.fields()["actions"],
    )  # fmt: skip
    assert other.ordered_like(train).fingerprint() == test.fingerprint()
    for again, wanted in ((other, expected), (other.replace(states="xyz"), None)):
        given = {"models": train, "test": again} if apart else {"models": (train, again)}
        row = mmdp.study(**given, horizons=3, out=tmp_path).iloc[0]
        assert (row["test_mean"] == pytest.approx(expected, rel=1e-12)) == (wanted is not None)


def test_a_solve_is_kept_if_its_test_fails(tmp_path: Path) -> None:
    model, other = small(1), small(2).replace(states=list("abc"))
    row = mmdp.study(model.replace(states=list("xyz")), 3, test=other, out=tmp_path).iloc[0]
    assert row["value"] == mmdp.solve(model, 3).value
    assert row["status"] == "LOCAL_OPTIMUM"
    assert row["error"].startswith("on the test models: the policy's states are named differently")
    (kept,) = (tmp_path / "cells").iterdir()
    assert json.loads(kept.read_text())["answer"]["value"] == row["value"]


def test_a_result_is_known_by_what_determines_it() -> None:
    same = facts(partial(pair, 3)), facts(partial(pair, 3))
    assert same[0] == same[1] != facts(partial(pair, 4))
    policy = mmdp.solve(small(1), 2).policy
    start = mmdp.solve(small(2), 2).policy
    assert facts(mmdp.CADP(init=policy)) != facts(mmdp.CADP(init=start))
    again = pickle.loads(pickle.dumps(mmdp.CADP(init=policy)))
    assert facts(again) == facts(mmdp.CADP(init=policy))
    json.dumps(facts(mmdp.CADP(init=policy)))


SHIFT = 1


def shifted(seed: int) -> mmdp.MMDP:
    return small(seed + SHIFT)


def values(models: Any, **settings: Any) -> list[float]:
    return list(mmdp.study(models, 3, **settings)["value"])


def test_functions_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = [mmdp.solve(small(i), 3).value for i in range(3)]
    assert len(set(each)) == 3
    defaults = {f"seed {i}": (lambda i=i: small(i)) for i in range(3)}
    assert values(defaults, out=tmp_path) == pytest.approx(each)
    line = {"a": lambda: small(0), "b": lambda: small(1)}
    assert values(line, out=tmp_path) == pytest.approx(each[:2])
    assert values(lambda: shifted(1), out=tmp_path) == pytest.approx(each[2:])
    monkeypatch.setitem(globals(), "SHIFT", -1)  # read by a function that a function calls
    assert values(lambda: shifted(1), out=tmp_path) == pytest.approx(each[:1])
    around = {f"seed {i}": made_around(i) for i in range(3)}
    assert values(around, out=tmp_path) == pytest.approx(each)


def made_around(seed: int) -> Callable[[], mmdp.MMDP]:
    def inner() -> mmdp.MMDP:
        return small(seed)

    return inner


def written(folder: Path, text: str) -> Any:
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


def test_a_function_is_its_text_and_the_values_it_uses(tmp_path: Path) -> None:
    """Nothing else: what is written here is the same whatever Python compiles it to."""
    text = FUNCTION[FUNCTION.index("def made") : FUNCTION.index("    return made")].strip()
    assert facts(written(tmp_path, FUNCTION).make(7)) == [
        "function", text, None, [["scale", [1.5]]], [["around", 7]],
        [["Path", "pathlib.Path"], ["SHIFT", [["up", 1]]], ["np", ["module", "numpy"]],
         ["np.exp", "numpy.exp"]],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("1.5", "1.6", False), ('"up": 1', '"up": 3', False), ("np.exp", "np.log", False),
        ("}, 2", "}, 3", True), ("def decorate", "# aside\ndef decorate", True),
    ],
)  # fmt: skip
def test_what_changes_the_key_of_a_function(tmp_path: Path, old: str, new: str, same: bool) -> None:
    before, after = (written(tmp_path, x).make(7) for x in (FUNCTION, FUNCTION.replace(old, new)))
    assert (facts(before) == facts(after)) == same
    assert facts(before) != facts(written(tmp_path, FUNCTION).make(8))


CHANCES = """
import numpy as np
from scipy.stats import norm, poisson
late = poisson(FIRST, loc=1)
def chances(mean):
    p = poisson.pmf(np.arange(9), mean) + late.pmf(np.arange(9))
    return p / p.sum() * norm.cdf(0)
"""


def test_objects_of_packages_are_known_by_their_names_or_what_they_hold(tmp_path: Path) -> None:
    """scipy.stats.poisson holds itself, and the state of numpy's random numbers."""
    found = [facts(written(tmp_path, CHANCES.replace("FIRST", x)).chances) for x in "334"]
    assert found[0] == found[1] != found[2]
    assert ["poisson.pmf", "scipy.stats.poisson"] in found[0][-1]
    code = "from mmdp.identity import *; from scipy.stats import poisson; print(facts(poisson(3)))"
    told = [subprocess.check_output([sys.executable, "-c", code]) for _ in range(2)]
    assert told[0] == told[1] != b"None"


class Node:
    def __init__(self, value: Any) -> None:
        self.value, self.me = value, self


def test_what_objects_hold_is_seen() -> None:
    arrays = np.array(["a", None]), np.array(["b", None])
    for one, other in (
        (pd.DataFrame({"x": [1]}), pd.DataFrame({"x": [2]})),
        (pd.Series([1], ["a"]), pd.Series([1], ["b"])),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (Node(1), Node(2)), arrays, (Node(1).__init__, Node(2).__init__),
    ):  # fmt: skip
        assert facts(one) == facts(copy.deepcopy(one)) != facts(other)
        json.dumps(facts(one))
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    for unknown in (object(), iter([1]), deep, threading.Lock()):
        with pytest.raises(mmdp.InputError, match="plain values"):
            facts({"x": unknown})


def test_several_functions_on_a_line_are_told_apart(tmp_path: Path) -> None:
    made = written(tmp_path, "a, b = (lambda: 'é', lambda: (lambda: 2))\n")
    told = [facts(x)[1] for x in (made.a, made.b, made.b())]
    assert told == ["lambda: 'é'", "lambda: (lambda: 2)", "lambda: 2"]
    texts = ["lambda: 1", "lambda: True", "lambda x: 1", "lambda *x: 1", "lambda: 1 + 1"]
    inside = written(tmp_path, f"def made(): return [{', '.join(texts)}]\n")
    assert [facts(x)[1] for x in inside.made()] == texts  # Python 3.12 keeps no place of them


def test_a_source_that_is_not_what_runs_is_refused(tmp_path: Path) -> None:
    typed: dict[str, Any] = {"small": small, "__name__": "__main__"}
    exec("def made(): return small(1)", typed)  # as typed at a prompt
    with pytest.raises(mmdp.InputError, match="source of __main__.made is not known.*in a file"):
        mmdp.study(typed["made"], 2)
    module = written(tmp_path, "def made(x):\n    return x + 1\n")
    facts(module.made)
    Path(module.__file__).write_text("def made(x):\n    return x - 1\n")
    with pytest.raises(mmdp.InputError, match="made was edited after it was imported"):
        facts(module.made)
    with pytest.raises(mmdp.InputError, match="cannot tell <list_iterator"):
        facts(made_around(iter([1])))  # type: ignore[arg-type]


def test_objectives_that_are_functions_are_told_apart(tmp_path: Path) -> None:
    for _ in range(2):
        ends = {"min": lambda x, w: x.min(axis=-1), "max": lambda x, w: x.max(axis=-1)}
        low, high = values(small(1), objectives=ends, out=tmp_path)
        assert low < mmdp.solve(small(1), 3).value < high


CLASS = """
from dataclasses import dataclass
from tests.noted import Noted
@dataclass(frozen=True)
class Own(Noted):
    more: int = 0
    def run(self, x): return FACTOR, super().run(x)
"""


def test_classes_are_told_apart_by_what_is_written_in_them(tmp_path: Path) -> None:
    """What a dataclass adds by itself does not count."""
    told = []
    for factor in ("1", "1", "2"):
        module = written(tmp_path, CLASS.replace("FACTOR", factor))
        sys.modules[module.__name__] = module
        told.append(facts(module.Own(file="a")))
        pickle.dumps(module.Own())
        assert facts(module.Own(file="a")) == told[-1]
    assert told[0] == told[1] != told[2]
    json.dumps(told)
    assert facts(Noted("a")) != facts(Noted("b"))


def test_what_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(mmdp.InputError, match="two functions make the same models"):
        mmdp.study({"a": lambda: small(1), "b": lambda: small(1)}, 2)
    assert len(mmdp.study({"a": partial(pair, 1), "b": partial(pair, 1)}, 2)) == 2
    with pytest.raises(mmdp.InputError, match="give a model, or a function that uses plain"):
        mmdp.study(partial(pair, iter([1])), 2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"models": "data"}, "not str; use mmdp.load"),
        ({"models": {}}, "at least one model"),
        ({"models": [1, 2]}, "a pair of training and test models"),
        ({"horizons": []}, "horizons must hold at least one value"),
        ({"methods": "capd"}, "no method is called 'capd'"),
        ({"objectives": "cvr:0.1"}, "no objective is called 'cvr'"),
        ({"seeds": -1}, "seed must be"),
        ({"jobs": 0}, "jobs must be"),
        ({"backend": "fortran"}, "no backend is called 'fortran'"),
        ({"executor": 3}, "pass client.get_executor()"),
        ({"time_limit": -1}, "time_limit must be"),
    ],
)
def test_what_every_cell_would_refuse_is_refused_at_once(
    arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(mmdp.InputError, match=told.replace("(", r"\(").replace(")", r"\)")):
        mmdp.study(**{"models": small(1), "horizons": 2, **arguments})


def test_progress_says_what_is_left(tmp_path: Path) -> None:
    heard: list[StudyProgress] = []
    mmdp.study(small(1), [2, 3], "wsu", out=tmp_path, callback=heard.append)
    assert [(x.done, x.total, x.reused) for x in heard] == [(1, 2, 0), (2, 2, 0)]
    assert heard[0].left > 0 == heard[1].left
    heard.clear()
    mmdp.study(small(1), [2, 3, 4], "wsu", out=tmp_path, callback=heard.append)
    assert [x.reused for x in heard] == [1, 2, 2]
    assert math.isnan(heard[1].left)
    assert heard[-1].row["horizon"] == 4


# ---------------------------------------------------------------------- Ctrl-C
def interrupt_at(count: int) -> Callable[[StudyProgress], None]:
    def callback(progress: StudyProgress) -> None:
        if progress.done == count:
            signal.raise_signal(signal.SIGINT)

    return callback


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    cut = mmdp.study(small(1), range(2, 7), "wsu", out=tmp_path, callback=interrupt_at(2))
    assert cut["status"].tolist() == 2 * ["COMPLETED"] + 3 * ["INTERRUPTED"]
    assert len(list((tmp_path / "cells").iterdir())) == 2
    whole = mmdp.study(small(1), range(2, 7), "wsu", out=tmp_path)
    assert_frame_equal(steady(whole), steady(mmdp.study(small(1), range(2, 7), "wsu")))


def test_the_best_so_far_of_an_interrupted_cell_is_no_result(tmp_path: Path) -> None:
    """solve() by itself answers the same Ctrl-C with the best so far."""
    alone = mmdp.solve(small(1), 2, Noted(harm="interrupt"))
    assert alone.status is mmdp.Status.INTERRUPTED
    methods = ["wsu", Noted(harm="interrupt"), "cadp"]
    cut = mmdp.study(small(1), 2, methods, out=tmp_path)
    assert cut["status"].tolist() == ["COMPLETED", "INTERRUPTED", "INTERRUPTED"]
    assert len(list((tmp_path / "cells").iterdir())) == 1
    with pytest.raises(KeyboardInterrupt):
        mmdp.study(small(1), 2, Noted(harm="interrupt"), out=tmp_path)


# ---------------------------------------------------------------------- processes
def test_processes_find_the_same_and_one_that_dies_takes_no_other_cell(tmp_path: Path) -> None:
    models = {"made": partial(pair, 5), "given": small(1)}
    axes: Any = (models, 3, ["wsu", "cadp"])
    here = mmdp.study(*axes, seeds=[0, 1], test={"given": small(7)})
    good = cells_of(*axes, seeds=[0, 1], test={"given": small(7)})
    bad = cells_of(small(1), 3, Noted(harm="die"))
    spread = Run([*good[:3], *bad, *good[3:]], out=tmp_path, jobs=2).frame()
    assert spread["status"][3] == "FAILED"
    assert (
        spread["error"][3] == "ProcessDied: the process that computed it ended with exit status 9"
    )
    assert len(list((tmp_path / "cells").iterdir())) == len(here)
    kept = spread.drop(index=3).reset_index(drop=True).astype(here.dtypes)
    assert_frame_equal(steady(kept), steady(here), rtol=1e-12)


class Stubborn(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("stays here")


class TwoParts(Exception):
    """Pickles by one argument and needs two."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


def misbehave(how: str) -> int:
    if how == "stubborn":
        raise Stubborn("no")
    if how == "two":
        raise TwoParts("n", "o")
    if how == "die":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def test_calls_that_fail_in_a_process_say_why_and_the_next_ones_are_answered() -> None:
    processes = workers.Processes(1)
    try:
        pid = processes.submit(misbehave, "").result()
        assert pid != os.getpid()
        told = {
            "stubborn": (RuntimeError, "Stubborn: no"),
            "two": (RuntimeError, "TwoParts: no"),
            "die": (workers.ProcessDied, "ended with exit status 7"),
            "kill": (workers.ProcessDied, "was killed by signal 9"),
        }
        for how, (error, message) in told.items():
            with pytest.raises(error, match=message):
                processes.submit(misbehave, how).result()
        with pytest.raises((AttributeError, pickle.PicklingError)):
            processes.submit(lambda: 1).result()
        replaced = processes.submit(misbehave, "").result()
        assert replaced not in (pid, os.getpid())
        assert processes.submit(misbehave, "").result() == replaced
    finally:
        processes.stop()
    for child in multiprocessing.active_children():
        if child.pid == replaced:
            child.join()
    with pytest.raises(ProcessLookupError):
        os.kill(replaced, 0)


LONG_CALL = """
import time
from mmdp import workers

def work():
    print("begun", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    workers.Processes(1).submit(work).result()
"""


def test_a_process_ends_with_its_program_even_in_the_middle_of_a_call(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LONG_CALL)
    with running(sys.executable, script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
        # waits for all who could write there
        assert process.communicate(timeout=PATIENCE) == ("", "")


def test_a_horizon_that_is_none_fails_as_a_cell_of_its_own() -> None:
    found = mmdp.study(small(3), [2, "x"], "wsu", jobs=2)  # type: ignore[list-item]
    assert found["status"].tolist() == ["COMPLETED", "FAILED"]


def test_long_horizons_are_handed_out_first(tmp_path: Path) -> None:
    """Model by model; the table is in the order given."""
    heard: list[tuple[str, Any]] = []

    def note(progress: StudyProgress) -> None:
        heard.append((progress.row["model"], progress.row["horizon"]))

    models = {"b": small(1), "a": small(2)}
    with ThreadPoolExecutor(1) as executor:
        table = mmdp.study(models, [2, math.inf, 4], executor=executor, callback=note)
    assert heard == [(name, T) for name in "ba" for T in (math.inf, 4, 2)]
    assert table["horizon"].tolist() == [2, math.inf, 4] * 2


def test_any_executor(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as executor:
        spread = mmdp.study(small(1), range(2, 9), "cadp", out=tmp_path, executor=executor)
    assert_frame_equal(steady(spread), steady(mmdp.study(small(1), range(2, 9), "cadp")))
    assert not [x for x in (tmp_path / "cells").iterdir() if x.suffix != ".json"]


def test_an_executor_that_is_broken_fails_every_cell_and_says_so() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    table = mmdp.study(small(1), [2, 3], executor=executor)
    assert table["error"].str.contains("after shutdown").all()


def test_models_travel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell is small whatever its models are, and a model is one file for all of its cells."""
    model = random_model(1, n_models=40, n_states=30, n_actions=2, horizon=0)
    written: list[int] = []
    plain = workers.store

    def store(thing: Any, path: Path) -> None:
        plain(thing, path)
        written.append(path.stat().st_size)

    monkeypatch.setattr(workers, "store", store)
    cells = cells_of(model, range(2, 52), "wsu", test=model)
    assert max(len(pickle.dumps(cell)) for cell in cells) < 2000
    with ThreadPoolExecutor(2) as executor:
        mmdp.study(model, range(2, 52), "wsu", test=model, executor=executor)
    assert len(written) == 1
    assert model.memory < written[0] < 1.1 * model.memory + 10_000


def test_a_mapped_model_is_the_same_model(tmp_path: Path) -> None:
    model = small(1).replace(models=list("abcd"), parameters={"x": [1.0, 2.0, 3.0, 4.0]})
    workers.store(model, tmp_path / "model")
    again = workers.opened(str(tmp_path / "model"))
    assert again.fingerprint() == model.fingerprint()
    assert (again.model_labels, again.storage) == (model.model_labels, model.storage)
    assert not again.problem.p.flags.owndata
    assert again.problem.p.ctypes.data % workers.ALIGNED == 0
    with pytest.raises(mmdp.InputError, match="does not see the file"):
        workers.opened(str(tmp_path / "elsewhere"))


def test_processes_share_the_cores() -> None:
    assert workers.Processes(10_000).threads == 1
    assert workers.Processes(1).threads == default_threads()
    told = dict(workers.spread(_threads, [(0, [])], {}, executor=ThreadPoolExecutor(1)))
    assert told == {0: 1}


def _threads(task: int) -> int:
    return default_threads()


# ---------------------------------------------------------------------- killed and run again
SCRIPT = """
import sys
import mmdp
from tests.noted import Noted, small

if __name__ == "__main__":
    out, go, log, jobs = sys.argv[1:]
    table = mmdp.study(small(1), [2, 3], Noted(log, go=go), seeds=range(6), out=out,
                       jobs=int(jobs), test=small(2))
    table.to_csv(out + "/table.csv", index=False)
"""


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_a_third_and_started_again(tmp_path: Path, jobs: int) -> None:
    script, out, log = tmp_path / "script.py", tmp_path / "out", tmp_path / "log"
    script.write_text(SCRIPT)
    before = killed_and_started_again(script, out, tmp_path / "go", log, jobs, silent=True)
    assert {file: file.read_bytes() for file in before} == before
    finished = log.read_text().split()
    assert 12 <= len(finished) < 12 + jobs  # two that began as the fourth end in the kill
    table = pd.read_csv(out / "table.csv")
    expected = mmdp.study(small(1), [2, 3], "wsu", seeds=range(6), test=small(2))
    columns = ["horizon", "seed", "value", "test_mean", "status"]
    assert_frame_equal(table[columns], expected[columns])
    assert not [x for x in (out / "cells").iterdir() if x.suffix != ".json"]


def test_sources_leave_their_models_behind() -> None:
    source = Source.of(small(1))
    assert pickle.loads(pickle.dumps(source)).given is None
