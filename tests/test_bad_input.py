"""Bad input is refused in one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import os
import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import mmdp
from mmdp.core.errors import MemoryLimitError
from mmdp.data import io

HEADER = "idstatefrom,idaction,idstateto,idoutcome,probability,reward\n"
GOOD = HEADER + "0,0,0,0,0.5,1\n0,0,1,0,0.5,1\n1,0,1,0,1,0\n"


def refusal_message(call: Callable[[], object], *parts: str) -> str:
    """The message of the InputError that ``call`` raises; it has one line and these parts."""
    with pytest.raises(mmdp.InputError) as error_info:
        call()
    message = str(error_info.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message


def file_refusal_message(folder: Path, text: str | bytes, *parts: str, **options: Any) -> str:
    """The message for a training.csv of this text; it names the file."""
    path = folder / "training.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refusal_message(lambda: mmdp.load(folder, **options), *parts)
    assert message.startswith(str(path))
    return message


def transitions() -> np.ndarray:
    return np.array([[[[0.5, 0.5]], [[0.0, 1.0]]], [[[0.25, 0.75]], [[0.0, 1.0]]]])


# ---------------------------------------------------------------------- probabilities
def test_negative_probability(tmp_path: Path) -> None:
    p = transitions()
    p[1, 0, 0] = [-0.5, 1.5]
    location = "model 1, state 0, action 0, next state 0"
    refusal_message(lambda: mmdp.MMDP(p, np.ones((2, 1))), "probability -0.5", location)
    text = GOOD.replace("1,0,1,0,1,0", "1,0,0,0,-0.5,0\n1,0,1,0,1.5,0")
    file_refusal_message(tmp_path, text, "line 4: negative probability -0.5", "from 0 to 1")


def test_row_that_does_not_sum_to_one(tmp_path: Path) -> None:
    p = transitions()
    p[1, 0, 0] = [0.23, 0.75]
    advice = "action 0 (1 row in all); divide by the sum: P / np.sum(P, axis=-1, keepdims=True)"
    message = refusal_message(
        lambda: mmdp.MMDP(p, np.ones((2, 1))), "0.98, not 1", "model 1, state 0", advice
    )
    assert "normalize" not in message  # which MMDP does not have
    mmdp.MMDP(p / np.sum(p, axis=-1, keepdims=True), np.ones((2, 1)))
    refusal_message(
        lambda: mmdp.MMDP(transitions(), np.ones((2, 1)), weights=[1, 1]),
        "weights must sum to 1, not 2; divide by the sum: weights / np.sum(weights, axis=-1",
    )
    text = GOOD.replace("0,0,1,0,0.5,1", "0,0,1,0,0.48,1")
    file_refusal_message(
        tmp_path, text, "0.98, not 1", "model 0, state 0, action 0", "normalize=True"
    )
    fixed = mmdp.load(tmp_path, normalize=True)
    np.testing.assert_allclose(fixed.transitions[0, 0, 0], [50 / 98, 48 / 98], rtol=1e-15)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("field", ["probability", "reward"])
def test_nan_and_inf(tmp_path: Path, value: str, field: str) -> None:
    p, r = transitions(), np.ones((2, 2, 1))
    (p[1, 1, 0] if field == "probability" else r[1, 1])[0] = float(value)
    refusal_message(lambda: mmdp.MMDP(p, r), "model 1, state 1, action 0")
    cells = f"{value},1" if field == "probability" else f"0.5,{value}"
    text = GOOD.replace("0,0,1,0,0.5,1", f"0,0,1,0,{cells}")
    shown_value = "'nan'" if value == "nan" else value
    file_refusal_message(tmp_path, text, f"line 3: {field} is {shown_value}", "finite number")


@pytest.mark.parametrize(("cell", "shown"), [("", "''"), ("NA", "'NA'"), ("0,5", "fields")])
def test_not_a_number(tmp_path: Path, cell: str, shown: str) -> None:
    file_refusal_message(
        tmp_path, GOOD.replace("1,0,1,0,1,0", f"1,0,1,0,{cell},0"), "line 4: ", shown
    )


def test_action_missing_in_one_model(tmp_path: Path) -> None:
    p = transitions()
    p[1, 0, 0] = 0.0
    parts = ("model 1, state 0, action 0", "has no transitions")
    refusal_message(lambda: mmdp.MMDP(p, np.ones((2, 1))), *parts, "allow_missing=True")
    text = GOOD + "1,0,1,1,1,0\n"
    file_refusal_message(tmp_path, text, *parts, "missing_actions='zero'")
    assert mmdp.load(tmp_path, missing_actions="zero").transitions[1, 0].sum() == 0.0


# ---------------------------------------------------------------------- rows and ids
def test_duplicate_rows(tmp_path: Path) -> None:
    location = "model 0, state 0, action 0, next state 1"
    text = GOOD.replace("1,0,1,0,1,0", "\n1,0,1,0,1,0\n0,0,1,0,0.5,1")  # a blank line counts
    file_refusal_message(
        tmp_path,
        text,
        f"line 6: {location} is given again (first at line 3; 1 duplicate)",
        "duplicates='last' or 'sum'",
    )
    frame = pd.DataFrame(
        {
            "state": ["a", "a"],
            "action": "x",
            "next_state": ["a", "a"],
            "probability": 0.5,
            "reward": 0.0,
        }
    )
    refusal_message(lambda: io.from_frame(frame), "frame, row 1", "state 'a', action 'x'")


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ("3,0,1,0,1,0", ("line 5: state is 3 but no state id is 2", "number them from 0")),
        ("1,2,1,0,1,0", ("line 5: action is 2 but no action id is 1",)),
        ("1,0,1,2,1,0", ("line 5: model is 2 but no model id is 1",)),
        ("1000000000,0,1,0,1,0", ("line 5: state is 1000000000 but no state id is 2",)),
        ("1,0,1,1000000000000,1,0", ("line 5: model is 1000000000000",)),
        ("-1,0,1,0,1,0", ("line 5: state is -1", "count from 0")),
        ("1,0.5,1,0,1,0", ("line 5: action is 0.5, not a whole number",)),
        ("1,x,1,0,1,0", ("line 5: idaction is 'x', not a number", "whole numbers from 0")),
        ("1,,1,0,1,0", ("line 5: idaction is '', not a number",)),
        ("1e300,0,1,0,1,0", ("line 5: state id 1e+300 is too large",)),
        ("1,0,1,0,1", ("line 5: reward is ''",)),
        ("1,0,1,0,1,0,0", ("line 5: 7 fields where the header has 6",)),
    ],
)
def test_ids(tmp_path: Path, row: str, parts: tuple[str, ...]) -> None:
    tracemalloc.start()
    file_refusal_message(tmp_path, GOOD + row + "\n", *parts)
    assert tracemalloc.get_traced_memory()[1] < 50e6  # nothing the size of the largest id
    tracemalloc.stop()


def test_times_without_gaps(tmp_path: Path) -> None:
    text = HEADER.replace("reward", "reward,idtime") + "0,0,0,0,1,0,0\n0,0,0,0,1,0,2\n"
    file_refusal_message(tmp_path, text, "line 3: time is 2 but no time is 1")


def test_one_time_lacks_a_row(tmp_path: Path) -> None:
    text = HEADER.replace("reward", "reward,idtime") + "0,0,0,0,1,0,0\n0,1,0,0,1,0,0\n"
    file_refusal_message(tmp_path, text + "0,0,0,0,1,0,1\n", "model 0, state 0, action 1, time 1")


# ---------------------------------------------------------------------- columns and files
def test_wrong_columns(tmp_path: Path) -> None:
    text = GOOD.replace("idaction", "idacton")
    file_refusal_message(
        tmp_path, text, "'idacton' (did you mean 'idaction'?)", "no column 'idaction'"
    )
    file_refusal_message(
        tmp_path, GOOD.replace("probability", "Probability"), "mean 'probability'?"
    )
    file_refusal_message(tmp_path, GOOD.replace(",", ";"), "separate the columns by commas")
    twice = GOOD.replace("idoutcome", "idaction")
    file_refusal_message(tmp_path, twice, "column 'idaction' is given twice")
    extra_column = GOOD.replace(",1\n", ",1,9\n").replace(",0\n", ",0,9\n")
    file_refusal_message(tmp_path, extra_column, "line 2: more fields than the header has (6)")
    frame = pd.DataFrame(
        {"state": [0], "action": [0], "nextstate": [0], "probability": [1.0], "reward": [1.0]}
    )
    refusal_message(lambda: io.from_frame(frame), "'nextstate' (did you mean 'next_state'?)")


def test_empty_files(tmp_path: Path) -> None:
    file_refusal_message(tmp_path, "", "the file is empty")
    file_refusal_message(tmp_path, " \n\n", "the file is empty")
    file_refusal_message(tmp_path, HEADER, "a header but no rows")


def test_missing_files(tmp_path: Path) -> None:
    refusal_message(lambda: mmdp.load(tmp_path / "no.csv"), "no such file")
    refusal_message(lambda: mmdp.load(tmp_path), "no training.csv in this folder")
    (tmp_path / "true.csv").write_text(GOOD)
    refusal_message(lambda: mmdp.load(tmp_path, split="test"), "no test.csv", "it has true.csv")
    (tmp_path / "a.xlsx").write_text("x")
    refusal_message(lambda: mmdp.load(tmp_path / "a.xlsx"), "unknown suffix '.xlsx'", ".csv")
    refusal_message(lambda: mmdp.load(tmp_path, split="both"), "split must be")
    refusal_message(lambda: mmdp.load_policy(tmp_path / "no.csv"), "no such file")


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.csv", b"\x89PNG\r\n\x1a\n\x00\x00", "not a CSV file but a PNG image"),
        ("a.csv", b"\xff\xfei\x00d\x00", "UTF-16"),
        ("a.csv", b"PK\x03\x04\x00\x00", "a zip archive"),
        ("a.csv", b"\x00\x01\x02", "binary data"),
        ("a.csv", HEADER.encode() + b"0,0,\xe9,0,1,1\n", "not UTF-8"),
        ("a.npz", b"some text", "not an npz file but text"),
        ("a.npz", b"PK\x03\x04 cut short", "damaged npz file"),
        ("a.parquet", b"some text", "not a Parquet file but text"),
        ("a.parquet", b"PAR1 cut short", "damaged Parquet file"),
    ],
)
def test_file_that_is_not_what_its_name_says(
    tmp_path: Path, name: str, content: bytes, part: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    refusal_message(lambda: mmdp.load(tmp_path / name), str(tmp_path / name), part)


def test_npz_of_others_and_damaged(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, p=np.ones(3))
    refusal_message(lambda: mmdp.load(path), "not a model saved by this version of mmdp")
    np.savez(path, p=np.array([{"a": 1}], dtype=object))
    refusal_message(lambda: mmdp.load(path), "not a model saved by this version of mmdp")
    mmdp.save(mmdp.MMDP(transitions(), np.ones((2, 1))), path)
    with np.load(path) as file:
        arrays = dict(file)
    for change in (
        {"indices": arrays["indices"] + 5},
        {"indptr": arrays["indptr"][:-1]},
        {"r": arrays["r"][:, :1]},
        {"allowed": arrays["allowed"] * 0.5},
        {"p": arrays["p"][:, :, :1]},
    ):
        np.savez(path, **{**arrays, **change})
        refusal_message(lambda: mmdp.load(path), str(path), "damaged npz file")
    np.savez(path, **{**arrays, "p": arrays["p"] * 0.98})
    refusal_message(lambda: mmdp.load(path), str(path), "sum to 0.98")
    np.savez(path, **{k: v for k, v in arrays.items() if k != "r"})
    refusal_message(lambda: mmdp.load(path), str(path), "damaged npz file")


def test_a_policy_is_not_a_model(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    mmdp.save_policy(mmdp.policies.MarkovPolicy([[0]]), tmp_path / "p.parquet")
    refusal_message(lambda: mmdp.load(tmp_path / "p.parquet"), "p.parquet")


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    model = mmdp.MMDP(transitions(), np.ones((2, 1)))
    refusal_message(lambda: mmdp.save(model, tmp_path / "m.parquet"), "pip install mmdp[parquet]")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- files beside a table
@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("initial", "idstate,probability\n0,0.5\n1,0.48\n", ("must sum to 1, not 0.98",)),
        ("initial", "idstate,probability\n0,0.5\n7,0.5\n", ("line 3", "no state '7'", "(0..1)")),
        ("initial", "idstate,probability\n0,0.5\n0,0.5\n", ("line 3", "given twice")),
        ("initial", "idstate,probabilty\n0,1\n", ("'probabilty' (did you mean 'probability'?)",)),
        ("initial", "idstate,probability\n0,x\n", ("line 2: probability is 'x'",)),
        ("weights", "idoutcome,weight\n0,0.98\n", ("weights must sum to 1, not 0.98",)),
        ("parameters", "parameter,value\ndiscont,0.9\n", ("line 2", "mean 'discount'?")),
        ("parameters", "parameter,value\ndiscount,1.5\n", ("line 2: discount must be", "1.5")),
        ("parameters", "parameter,value\ndiscount,x\n", ("line 2: discount is 'x'",)),
        ("terminal", "idstate,value\n0,nan\n", ("line 2: value is 'nan'",)),
        ("labels", "kind,id,label\nstate,0,a\n", ("no label for state 1",)),
        ("labels", "kind,id,label\nstat,0,a\n", ("line 2: kind is 'stat'",)),
        ("labels", "kind,id,label\naction,0,a\nstate,2,a\n", ("line 3: no state '2'",)),
        ("labels", "kind,id,label\naction,0,a\nmodel,0,a\naction,0,b\n", ("line 4: ", "twice")),
        (
            "labels",
            "kind,id,label\nstate,0,a\nstate,1,a\n",
            ("labels.csv, line 3: state label 'a' is used",),
        ),
        ("draws", "idoutcome,rate\n1,0.5\n", ("line 2: no model '1'",)),
    ],
)
def test_sidecar_files(tmp_path: Path, name: str, text: str, parts: tuple[str, ...]) -> None:
    (tmp_path / "training.csv").write_text(GOOD)
    (tmp_path / f"{name}.csv").write_text(text)
    refusal_message(lambda: mmdp.load(tmp_path), str(tmp_path), *parts)


def test_weights_and_start_can_be_scaled(tmp_path: Path) -> None:
    (tmp_path / "training.csv").write_text(GOOD)
    (tmp_path / "initial.csv").write_text("state,probability\n0,3\n1,1\n")
    (tmp_path / "weights.csv").write_text("model,weight\n0,7\n")
    refusal_message(lambda: mmdp.load(tmp_path), "initial must sum to 1, not 4", "normalize=True")
    model = mmdp.load(tmp_path, normalize=True)
    assert model.initial.tolist() == [0.75, 0.25]
    assert model.weights.tolist() == [1.0]
    (tmp_path / "weights.csv").write_text("model,weight\n0,0\n")
    refusal_message(lambda: mmdp.load(tmp_path, normalize=True), "weights must sum to 1, not 0")


def test_terminal_values_by_model_have_either_name(tmp_path: Path) -> None:
    (tmp_path / "training.csv").write_text(GOOD)
    for names in ("idoutcome,idstate,value", "model,state,value"):
        (tmp_path / "terminal.csv").write_text(f"{names}\n0,1,5\n")
        assert mmdp.load(tmp_path).terminal.tolist() == [[0.0, 5.0]]


def test_unknown_parameter_can_be_ignored(tmp_path: Path) -> None:
    (tmp_path / "training.csv").write_text(GOOD)
    (tmp_path / "parameters.csv").write_text("parameter,value\ndiscount,0.7\nseed,3\n")
    refusal_message(
        lambda: mmdp.load(tmp_path), "unknown parameter 'seed'", "extra_columns='ignore'"
    )
    assert mmdp.load(tmp_path, extra_columns="ignore").discount == 0.7


def test_weights_that_do_not_sum_to_one() -> None:
    refusal_message(
        lambda: mmdp.MMDP(transitions(), np.ones((2, 1)), weights=[0.5, 0.48]),
        "weights must sum to 1, not 0.98",
    )
    refusal_message(
        lambda: mmdp.MMDP(transitions(), np.ones((2, 1)), weights=[1.0]), "weights", "(2,)"
    )


def test_unknown_options(tmp_path: Path) -> None:
    (tmp_path / "training.csv").write_text(GOOD)
    options: dict[str, Any] = {"duplicates": "first"}
    refusal_message(lambda: mmdp.load(tmp_path, **options), "duplicates must be one of", "'last'")
    refusal_message(lambda: mmdp.load(tmp_path, compat="julia"), "compat must be 'cadp'")
    refusal_message(lambda: mmdp.load(tmp_path, initial={"7": 1.0}), "initial: unknown label '7'")
    model = mmdp.MMDP(np.full((2, 3, 1, 3), 1 / 3), np.zeros((3, 1)))
    refusal_message(
        lambda: model.replace(initial={"13": 1.0}), "unknown label '13'; choose from 0..2"
    )


# ---------------------------------------------------------------------- policies and horizons
def test_policy_of_the_wrong_shape() -> None:
    model = mmdp.MMDP(transitions(), np.ones((2, 1)))
    three = mmdp.policies.MarkovPolicy([[0, 0, 0]])
    refusal_message(lambda: mmdp.evaluate(model, three), "3 states", "2 states")
    refusal_message(
        lambda: mmdp.evaluate(model, mmdp.policies.MarkovPolicy([[0, 1]])), "2 actions", "1 action"
    )
    refusal_message(lambda: mmdp.policies.MarkovPolicy([0, 0]), "(time steps, states)")


@pytest.mark.parametrize("horizon", [0, -1])
def test_horizon_below_one(horizon: int) -> None:
    model = mmdp.MMDP(transitions(), np.ones((2, 1)))
    refusal_message(lambda: mmdp.solve(model, horizon), f"at least 1, not {horizon}")


def test_horizon_of_a_time_varying_model(tmp_path: Path) -> None:
    model = mmdp.MMDP(np.stack([transitions()] * 3), np.ones((3, 2, 2, 1)))
    mmdp.save(model, tmp_path / "m.csv")
    for one in (model, mmdp.load(tmp_path / "m.csv")):
        refusal_message(lambda one=one: mmdp.solve(one, 4), "3 time steps", "must be 3, not 4")
        policy = mmdp.policies.MarkovPolicy(np.zeros((4, 2), dtype=int))
        refusal_message(
            lambda one=one, policy=policy: mmdp.evaluate(one, policy), "covers 4 time steps"
        )


POLICY = "time,state,action\n0,0,0\n0,1,0\n1,0,0\n1,1,0\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (POLICY.replace("1,0,0\n", ""), ("no action for time 1, state '0'",)),
        (POLICY + "1,1,0\n", ("line 6: time 1, state 1 is given twice",)),
        (POLICY.replace("1,1,0", "1,1,4"), ("line 5: action 4 does not exist", "1 action")),
        (POLICY.replace("1,1,0", "1,9,0"), ("line 5: state 9 does not exist",)),
        (POLICY.replace("1,1,0", "1,1,go"), ("line 5: action 'go' is a label without an id",)),
        (POLICY.replace("1,1,0", "1,1,-2"), ("line 5: action is -2",)),
        (POLICY.replace("1,1,0", "x,1,0"), ("line 5: time is 'x', not a number",)),
        (POLICY.replace("action", "acton"), ("'acton' (did you mean 'action'?)",)),
        ("time,state,action\n", ("no rows",)),
        ("time,state,action,probability\n0,0,0,1\n0,1,0,0.98\n", ("time 0, state 1", "0.98")),
        ("time,state,action,probability\n0,0,0,1\n0,1,0,x\n", ("line 3: probability is 'x'",)),
    ],
)
def test_policy_files(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    model = mmdp.MMDP(transitions(), np.ones((2, 1)))
    path = tmp_path / "p.csv"
    path.write_text(text)
    refusal_message(lambda: mmdp.load_policy(path, model), str(path), *parts)


def test_policy_labels_the_model_does_not_have(tmp_path: Path) -> None:
    model = mmdp.MMDP(transitions(), np.ones((2, 1)), states=["up", "down"], actions=["go"])
    path = tmp_path / "p.csv"
    path.write_text("time,state,action\n0,up,go\n0,left,go\n")
    refusal_message(lambda: mmdp.load_policy(path, model), "line 3: the model has no state 'left'")
    path.write_text("time,state,action\n0,up,go\n")
    refusal_message(lambda: mmdp.load_policy(path, model), "no action for time 0, state 'down'")
    for name, text in (("p.json", "[1]"), ("q.json", "{"), ("r.txt", "x")):
        (tmp_path / name).write_text(text)
        refusal_message(lambda name=name: mmdp.load_policy(tmp_path / name), name)


def test_policy_with_a_huge_id_makes_no_huge_array(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("time,state,action\n0,0,0\n1000000,1000000,0\n")
    tracemalloc.start()
    refusal_message(lambda: mmdp.load_policy(path), "no action for time 0, state 1")
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


# ---------------------------------------------------------------------- memory
def test_small_sparse_file_never_becomes_a_large_array(tmp_path: Path) -> None:
    """20,000 states in a ring: 3.2 GB dense, half a megabyte as a file."""
    states = np.arange(20_000)
    frame = pd.DataFrame(
        {
            "idstatefrom": states,
            "idaction": 0,
            "idstateto": (states + 1) % 20_000,
            "probability": 1.0,
            "reward": states * 0.5,
        }
    )
    frame.to_csv(tmp_path / "training.csv", index=False)
    tracemalloc.start()
    model = mmdp.load(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    assert (model.storage, len(model.problem.indices)) == ("sparse", 20_000)
    refusal_message(lambda: mmdp.load(tmp_path, storage="dense"), "3.2 GB", 'storage="sparse"')
    with pytest.raises(MemoryLimitError, match="dense array would take"):
        _ = model.transitions
    mmdp.save(model, tmp_path / "m.npz")
    assert mmdp.load(tmp_path / "m.npz").nbytes == model.nbytes
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


def test_a_small_npz_never_becomes_a_large_array(tmp_path: Path) -> None:
    """240 MB of zeros that are 240 kB in the file; what compresses as models do is read."""
    path = tmp_path / "m.npz"
    model = mmdp.MMDP(np.random.default_rng(0).dirichlet(np.ones(9), (5, 9, 2)), np.ones((9, 2)))
    arrays = io.npz.model_to_arrays(model)
    arrays["count"] = np.asarray(len(arrays) + 1)
    np.savez_compressed(path, **arrays)
    assert mmdp.load(path).fingerprint() == model.fingerprint()
    np.savez_compressed(path, **{**arrays, "p": np.zeros((30_000_000, 1, 1))})
    tracemalloc.start()
    with pytest.raises(MemoryLimitError, match="its arrays would take 240 MB, but the file has 23"):
        mmdp.load(path)
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def test_few_rows_over_many_ids_are_refused_before_an_array_is_made(tmp_path: Path) -> None:
    n = np.arange(1000)
    frame = pd.DataFrame(
        {"state": n, "action": n, "next_state": n, "model": n, "probability": 1.0, "reward": 0.0}
    )
    tracemalloc.start()
    with pytest.raises(MemoryLimitError, match=r"1,000 rows .* would take 8 GB"):
        io.from_frame(frame)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_sparse_arrays_stay_sparse() -> None:
    eye = scipy.sparse.eye_array(20_000, format="csr")
    model = mmdp.MMDP([[eye]], np.zeros((20_000, 1)))
    assert model.storage == "sparse"
    assert model.nbytes < 2e6
    with pytest.raises(MemoryLimitError):
        mmdp.MMDP([[eye]], np.zeros((20_000, 1)), storage="dense")


# ---------------------------------------------------------------------- writing
def list_writers(folder: Path) -> list[Callable[[], object]]:
    model = mmdp.MMDP(transitions(), np.ones((2, 1)), initial=[1, 0])
    policy = mmdp.policies.MarkovPolicy([[0, 0]])
    models = ("m.npz", "m.csv", "m.parquet", "made")
    tables = ("p.csv", "p.json", "p.parquet")
    return [
        *(partial(mmdp.save, model, folder / name) for name in models),
        *(partial(mmdp.save_policy, policy, folder / name) for name in tables),
        partial(io.write_atomic, folder / "a.txt", "text"),
    ]


def test_no_folder_to_write_into(tmp_path: Path) -> None:
    for call in list_writers(tmp_path / "none"):
        refusal_message(call, str(tmp_path / "none"))
    (tmp_path / "file").write_text("x")
    for call in list_writers(tmp_path / "file"):  # a path below a regular file: no one may write it
        refusal_message(call, str(tmp_path / "file"))
    assert [x.name for x in tmp_path.iterdir()] == ["file"]


def test_path_is_a_folder(tmp_path: Path) -> None:
    model = mmdp.MMDP(transitions(), np.ones((2, 1)))
    (tmp_path / "m.csv").mkdir()
    (tmp_path / "p.json").mkdir()
    refusal_message(lambda: mmdp.save(model, tmp_path / "m.csv"), "is a folder")
    refusal_message(
        lambda: mmdp.save_policy(mmdp.policies.MarkovPolicy([[0]]), tmp_path / "p.json"),
        "is a folder",
    )
    refusal_message(lambda: mmdp.save(model, tmp_path / "m.xls"), "unknown suffix '.xls'")
    refusal_message(
        lambda: mmdp.save_policy(mmdp.policies.MarkovPolicy([[0]]), tmp_path / "p.x"), "suffix '.x'"
    )


def test_no_permission_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses the file; root would not notice chmod, so the refusal is played."""

    def raise_permission_error(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", raise_permission_error)
    for call in list_writers(tmp_path):
        refusal_message(call, str(tmp_path), "cannot be written (Permission denied)")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_real_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    for call in list_writers(tmp_path):
        refusal_message(call, str(tmp_path), "ermission denied")
    tmp_path.chmod(0o700)


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mmdp.MMDP(transitions(), np.ones((2, 1)), initial=[1, 0], weights=[0.25, 0.75])
    mmdp.save(model, tmp_path)
    contents = {x.name: x.read_bytes() for x in tmp_path.iterdir()}

    def write_half(columns: object, path: Path) -> None:
        path.write_text("idstatefrom,id")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io.folders, "_write_rows", write_half)
    other = model.replace(initial=[0, 1], weights=[0.5, 0.5])
    refusal_message(lambda: mmdp.save(other, tmp_path), "training.csv", "No space left on device")
    refusal_message(lambda: mmdp.save(other, tmp_path / "new"), "No space left on device")
    assert {x.name: x.read_bytes() for x in tmp_path.iterdir()} == contents


def test_writer_that_fails_for_any_reason(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"old")

    def writer(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        io.write_atomic(tmp_path / "a.png", writer)
    assert [(x.name, x.read_bytes()) for x in tmp_path.iterdir()] == [("a.png", b"old")]


def test_messages_never_show_temporary_names(tmp_path: Path) -> None:
    for call in list_writers(tmp_path / "none"):
        assert not re.search(r"-[0-9a-f]{12}", refusal_message(call).replace(str(tmp_path), ""))


@pytest.mark.parametrize("name", ["rewards", "weights", "initial", "terminal", "parameters"])
def test_complex_numbers_are_not_cut(name):
    """Numpy drops the imaginary part with a warning."""
    parts = {"rewards": np.ones((2, 2, 1)), "weights": np.ones(2) / 2, "initial": np.ones(2) / 2}
    parts |= {"terminal": np.ones((2, 2)), "parameters": np.ones(2)}
    values = parts[name] + 1j
    fields = {"rewards": parts["rewards"], name: values}
    if name == "parameters":
        fields[name] = {"rate": values}
    with pytest.raises(mmdp.InputError, match="must be real numbers, not complex ones"):
        mmdp.MMDP(np.full((2, 2, 1, 2), 0.5), **fields)
    with pytest.raises(mmdp.InputError, match="must be real numbers"):
        mmdp.MMDP(np.full((2, 2, 1, 2), 0.5 + 0j), parts["rewards"])


def test_complex_priors_are_refused() -> None:
    log = {"state": [0, 1], "action": [0, 0], "next_state": [1, 0], "reward": [1.0, 0.0]}
    for prior in (np.full((2, 1, 2), 1 + 1j), [[[1.0, 1j]], [[1.0, 1.0]]]):
        refusal_message(lambda prior=prior: mmdp.fit(log, n_models=2, prior=prior), "prior must be")
    refusal_message(
        lambda: mmdp.fit(log, n_models=2, support=np.ones((2, 1, 2)) + 0j), "support must be"
    )


def test_numbers_that_are_too_large() -> None:
    log = {"state": [0, 1], "action": [0, 0], "next_state": [1, 0], "reward": [1.0, 0.0]}
    large = "concentration is a whole number of about 1e30, too large"
    refusal_message(lambda: mmdp.fit(log, n_models=2, concentration=10**30), large)
    model = mmdp.fit(log, n_models=2, concentration=1e30).train
    np.testing.assert_allclose(model.transitions[:, 0, 0], [[0.25, 0.75]] * 2, rtol=1e-9)
    for wrong in (10**400, -(10**400)):
        refusal_message(lambda wrong=wrong: model.replace(discount=wrong), "discount must be")
    assert mmdp.solve(model, 2, seed=10**30).value == mmdp.solve(model, 2, seed=10**30).value


def test_labels_are_a_sequence() -> None:
    model = mmdp.MMDP(transitions(), np.ones((2, 1)))
    refusal_message(lambda: model.replace(states=5), "state labels must be a sequence", "not 5")
    refusal_message(lambda: model.replace(models=2.5), "model labels must be a sequence", "not 2.5")


# ---------------------------------------------------------------------- what is accepted, works
@pytest.mark.parametrize("error", [9e-9, -9e-9])
def test_sums_that_are_accepted_are_accepted_together(error: float) -> None:
    rng = np.random.default_rng(0)
    model = mmdp.MMDP(
        rng.dirichlet(np.ones(3), (2, 3, 2)) * (1 + error),
        rng.normal(size=(3, 2)),
        weights=np.array([0.25, 0.75]) * (1 + error),
        initial=np.full(3, 1 / 3) * (1 + error),
    )
    exact = mmdp.MMDP(model.transitions / (1 + error), model.rewards, weights=[0.25, 0.75])
    for method in ("cadp", "mvp", "exact"):
        close = pytest.approx(mmdp.solve(exact, 3, method).value, rel=1e-6)
        assert mmdp.solve(model, 3, method).value == close


@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("times", [(), (2,)])
def test_rewards_of_what_cannot_happen_do_not_count(storage: Any, times: tuple[int, ...]) -> None:
    """Model 0 never moves, so that NaN is its reward for moving; where model 1 moves, it counts."""
    p = np.array([[[[1.0, 0.0]], [[0.0, 1.0]]], [[[0.5, 0.5]], [[0.0, 1.0]]]])
    r = np.where(p > 0, 3.0, np.nan)
    p, r = np.broadcast_to(p, (*times, *p.shape)), np.broadcast_to(r, (*times, *r.shape))
    model = mmdp.MMDP(p, next_rewards=r, storage=storage)
    np.testing.assert_array_equal(model.rewards, np.full_like(model.rewards, 3.0))
    bad_rewards = r.copy()
    bad_rewards[..., 1, 0, 0, 1] = np.nan
    refusal_message(
        lambda: mmdp.MMDP(p, next_rewards=bad_rewards, storage=storage),
        "reward is nan at model 1, state 0, action 0",
        "next state 1",
    )


def test_suffixes_in_capitals(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    model = mmdp.MMDP(np.ones((2, 1, 1, 1)), [[2.0]], discount=0.9)
    for ending in ("CSV", "Npz", "PARQUET"):
        mmdp.save(model, tmp_path / f"m.{ending}")
        assert mmdp.load(tmp_path / f"m.{ending}").fingerprint() == model.fingerprint()
    for ending in ("CSV", "Json", "PARQUET"):
        mmdp.save_policy(mmdp.solve(model, 2, certify_time=1), tmp_path / f"p.{ending}")
        assert mmdp.load_policy(tmp_path / f"p.{ending}", model).horizon == 2
        assert io.load_certificate(tmp_path / f"p.{ending}", model) is not None
    log = tmp_path / "LOG.CSV"
    log.write_text("state,action,next_state,reward\nup , go,up,1\n")
    assert mmdp.fit(log, n_models=2).train.state_labels == ("up",)


def test_one_thing_in_place_of_another(tmp_path: Path) -> None:
    model = mmdp.MMDP(transitions(), np.ones((2, 1)), states=["CKD 3", "CKD 4"], actions=["wait"])
    solution = mmdp.solve(model, 2)
    refusal_message(
        lambda: mmdp.save(solution, tmp_path / "x.csv"), "not Solution", "save_policy()"
    )  # type: ignore[arg-type]
    refusal_message(
        lambda: mmdp.evaluate("test", solution),  # type: ignore[arg-type]
        "must be an MMDP, not 'test'",
        "mmdp.load(path)",
    )
    mmdp.save_policy(solution, tmp_path / "policy.csv")
    refusal_message(lambda: mmdp.load(tmp_path / "policy.csv"), "this is a policy", "load_policy()")
    refusal_message(lambda: solution.policy.action(state="CKD3"), "'CKD3' (did you mean 'CKD 3'?)")
