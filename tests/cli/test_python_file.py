"""FILE.py:NAME in place of data."""

from __future__ import annotations

from pathlib import Path

import pytest

import mmdp
from tests.cli.calls import run, run_refused

SHOP = """
import numpy as np
import mmdp
from parts import CAPACITY

def step(state, action, event):
    left = np.maximum(state["stock"] - event["demand"], 0)
    sold = state["stock"] - left
    return {"stock": np.minimum(left + action["order"], CAPACITY)}, 5 * sold - 3 * action["order"]

def build(p):
    return mmdp.from_step(
        step, states={"stock": range(CAPACITY + 1)}, actions={"order": range(3)},
        events={"demand": range(3)},
        event_probs=lambda sample: [0.5 - sample["p"], 0.5, sample["p"]],
        samples={"p": p}, initial={"stock": 2}, discount=0.95)

model = build([0.1, 0.3])
both = model, build([0.2, 0.4, 0.5])
number = 3
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "parts.py").write_text("CAPACITY = 4\n")
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path / "shop.py"


def test_commands_take_a_model_from_a_python_file(shop: Path, tmp_path: Path) -> None:
    facts = run("info", f"{shop}:model").parse_facts()
    assert facts["states"] == "5: stock=0, stock=1, stock=2, stock=3, stock=4"
    assert facts["storage"].startswith("events")
    solved = run("solve", f"{shop}:model", "-T", 5, "--json", "--out", tmp_path / "p.csv")
    changed = run("solve", f"{shop}:model", "-T", 5, "--json", "--initial", "stock=0=1")
    assert solved.json["value"] > changed.json["value"]
    for state in ("stock=0", " stock = 0"):
        named = run("solve", f"{shop}:model", "-T", 5, "--json", "--initial", state)
        assert named.json["value"] == changed.json["value"]
    assert "order=" in (tmp_path / "p.csv").read_text()
    policy = mmdp.load_policy(tmp_path / "p.csv")
    assert policy.action(0, stock=4) == "order=0"


def test_a_pair_has_test_models(shop: Path) -> None:
    assert run("info", f"{shop}:both", "--split", "test").parse_facts()["models"] == "3"
    compared = run("study", f"{shop}:both", "-T", 4, "--methods", "cadp,mvp", "--json")
    assert compared.json["test_models"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (":modl", "no model is called 'modl' (did you mean 'model'?); choose model or both"),
        ("", "name the model in it, like"),
        (":number", "no model is called 'number'"),
        (":model --split test", "no test models; write a pair (train, test)"),
        (":model --load-option normalize=true", "normalize is for files of tables"),
    ],
)
def test_what_a_python_file_cannot_give_is_refused(
    shop: Path, arguments: str, message: str
) -> None:
    name, *more = arguments.split(" ")
    result = run("info", f"{shop}{name}", *more)
    assert result.code == 2
    assert message in " ".join(result.err.split())


def test_errors_in_the_file_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import mmdp\nmodel = 1 / 0\n")
    result = run("info", f"{tmp_path / 'bad.py'}:model")
    assert (result.code, "bad.py raised ZeroDivisionError" in " ".join(result.err.split())) == (
        2,
        True,
    )
    assert "no such file" in run("info", f"{tmp_path / 'none.py'}:model").err


def test_mistakes_with_a_python_file_say_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "hiv.py"
    code = "import mmdp\nmodel = mmdp.domains.load_published('hiv')[0]\ndef make(): return model\n"
    file.write_text(code)
    message = run_refused("solve", f"{file}:make", "-T", 3)
    assert "make is a function; write model = make(...)" in message
    policy = tmp_path / "best.csv"
    assert run("solve", f"{file}:model", "-T", 3, "--out", policy).code == 0
    message = run_refused("evaluate", f"{file}:model", policy)
    assert message == f"mmdp: the policy comes first: mmdp evaluate {policy} {file}:model\n"
    message = run_refused("solve", policy, "-T", 3)
    assert message.endswith("this is a policy, not a model; give a model\n")
    with pytest.raises(mmdp.InputError, match="or read the policy with load_policy\\(\\)$"):
        mmdp.load(policy)
    for path, name in ((file, "model"), (f"{file}:both", "both")):
        with pytest.raises(mmdp.InputError, match=f"import it: from hiv import {name}$"):
            mmdp.load(path)
