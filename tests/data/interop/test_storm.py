"""Storm's models; skipped without stormpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.data import interop

DRN_FILE = """@type: MDP
@parameters

@reward_models
r
@nr_states
2
@nr_choices
3
@model
state 0 [1] init
\taction go [3]
\t\t0 : {p}
\t\t1 : {q}
\taction wait [0]
\t\t1 : 1
state 1 [0]
\taction go [2]
\t\t0 : 1
"""
PRISM_FILE = """mdp
const double p = {p};
module machine
  x : [0..1] init 0;
  [go] x=0 -> p:(x'=0) + 1-p:(x'=1);
  [wait] x=0 -> (x'=1);
  [go] x=1 -> (x'=0);
endmodule
rewards "r"
  x=0 : 1;
  [go] x=0 : 3;
  [go] x=1 : 2;
endrewards
"""


def make_expected_model() -> mmdp.MMDP:
    p = np.zeros((2, 2, 2, 2))
    p[:, 0, 0] = [[0.5, 0.5], [0.25, 0.75]]
    p[:, 0, 1] = [0, 1]
    p[:, 1, 0] = [1, 0]
    allowed = [[True, True], [True, False]]
    return mmdp.MMDP(p, [[4.0, 1.0], [2.0, 0.0]], allowed=allowed, initial=[1, 0], discount=0.9)


@pytest.mark.parametrize(("text", "suffix"), [(DRN_FILE, "drn"), (PRISM_FILE, "prism")])
def test_files_are_models(tmp_path: Path, text: str, suffix: str) -> None:
    pytest.importorskip("stormpy", reason="stormpy is not there")
    files = [tmp_path / f"{i}.{suffix}" for i in range(2)]
    for file, p in zip(files, (0.5, 0.25), strict=True):
        file.write_text(text.replace("{p}", str(p)).replace("{q}", str(1 - p)))
    align = "numbers" if suffix == "drn" else "variables"
    loaded, model = interop.from_storm(files, discount=0.9, align=align), make_expected_model()
    np.testing.assert_allclose(loaded.transitions, model.transitions)
    np.testing.assert_allclose(loaded.rewards * model.allowed, model.rewards * model.allowed)
    np.testing.assert_array_equal(loaded.allowed, model.allowed)
    assert mmdp.solve(loaded, 6).value == pytest.approx(mmdp.solve(model, 6).value)
    assert loaded.action_labels == ("go", "wait")
    if suffix == "prism":
        assert loaded.state_labels == ("x=0", "x=1")


def test_what_storm_cannot_read_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("stormpy", reason="stormpy is not there")
    (tmp_path / "a.drn").write_text("@type: MDP\nnonsense")
    with pytest.raises(mmdp.InputError, match="Storm cannot read it") as error_info:
        interop.from_storm(tmp_path / "a.drn")
    assert "\n" not in str(error_info.value)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(mmdp.InputError, match="its suffix is not .drn, .prism"):
        interop.from_storm(tmp_path / "a.txt")
    with pytest.raises(mmdp.InputError, match="no such file"):
        interop.from_storm(tmp_path / "none.drn")


GRID_FILE = """mdp
const double p;
const int limit = 3;
module walker
  x : [0..3] init START;
  wet : bool init false;
COMMANDS
endmodule
rewards "r"
  [left] true : x;
  [right] true : 2 * x;
endrewards
"""
COMMANDS = (
    "[left] x>0 -> p:(x'=x-1) + 1-p:(x'=x);",
    "[right] x<limit -> p:(x'=x+1) + 1-p:(x'=x)&(wet'=true);",
    "[stay] x=limit -> true;",
    "[stay] x=0 -> true;",
)


def write_grid(file: Path, commands: tuple[str, ...] = COMMANDS, initial: int = 1) -> Path:
    text = GRID_FILE.replace("COMMANDS", "\n".join(f"  {x}" for x in commands))
    file.write_text(text.replace("START", str(initial)))
    return file


def make_walk_transitions(probs: list[float], labels: tuple[str, ...]) -> np.ndarray:
    """(M, S, A, S') of the same walk, on the states of these labels."""
    states = [dict(assignment.split("=") for assignment in label.split(", ")) for label in labels]
    state_ids = {(int(x["x"]), x["wet"] == "true"): i for i, x in enumerate(states)}
    P = np.zeros((len(probs), len(states), 3, len(states)))
    for m, p in enumerate(probs):
        for (x, is_wet), i in state_ids.items():
            if x > 0:
                P[m, i, 0, state_ids[x - 1, is_wet]] += p
                P[m, i, 0, i] += 1 - p
            if x < 3:
                P[m, i, 1, state_ids[x + 1, is_wet]] += p
                P[m, i, 1, state_ids[x, True]] += 1 - p
            if x in (0, 3):
                P[m, i, 2, i] = 1
    return P


def test_states_are_matched_by_their_variables(tmp_path: Path) -> None:
    """Whatever the order in which Storm finds them, and which of them a model reaches."""
    pytest.importorskip("stormpy", reason="stormpy is not there")
    probs = [0.25, 0.75, 0.5]
    files = [
        write_grid(tmp_path / f"{i}.prism", COMMANDS[i:] + COMMANDS[:i], 1 + i) for i in range(3)
    ]
    loaded = interop.from_storm(files, constants=[{"p": p} for p in probs], discount=0.9)
    order = [loaded.action_labels.index(x) for x in ("left", "right", "stay")]
    np.testing.assert_allclose(
        loaded.transitions[:, :, order],
        make_walk_transitions(probs, loaded.state_labels),
        atol=1e-15,
    )
    initial_states = [loaded.state_labels.index(f"wet=false, x={1 + m}") for m in range(3)]
    np.testing.assert_array_equal(loaded.initial.argmax(axis=1), initial_states)


def test_a_state_that_a_model_never_reaches(tmp_path: Path) -> None:
    pytest.importorskip("stormpy", reason="stormpy is not there")
    file = write_grid(tmp_path / "a.prism")
    two_models = interop.from_storm(file, constants=[{"p": 1}, {"p": np.float64(0.5)}])
    one_model = interop.from_storm(file, constants={"p": 1})
    assert set(one_model.state_labels) == {f"wet=false, x={x}" for x in range(4)}
    assert two_models.n_states == 8
    values = [
        mmdp.solve(two_models.subset([0]), 6, "exact").value,
        mmdp.solve(one_model, 6, "exact").value,
    ]
    assert values[0] == pytest.approx(values[1])
    with pytest.raises(mmdp.InputError, match="model 0 does not reach state 'wet=true"):
        interop.from_storm(file, constants=[{"p": 1}, {"p": 0.5}], initial=np.full(8, 1 / 8))


def test_models_that_do_not_match_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("stormpy", reason="stormpy is not there")
    file = write_grid(tmp_path / "a.prism")
    constants, explicit = {"p": 0.5}, tmp_path / "a.drn"
    explicit.write_text(DRN_FILE.replace("{p}", "0.5").replace("{q}", "0.5"))
    other_file = tmp_path / "b.prism"
    other_file.write_text(PRISM_FILE.replace("{p}", "0.5"))
    unlabeled_file = write_grid(tmp_path / "c.prism", (*COMMANDS, "[] x=0 -> true;"))
    repeated_file = write_grid(tmp_path / "d.prism", (*COMMANDS, "[left] x=1 -> true;"))
    incomplete_file = write_grid(tmp_path / "e.prism", COMMANDS[:3])
    arguments_by_message = {
        "undefined constants: p.*give values with constants=": {"models": file},
        "unknown undefined constant 'q'": {"models": file, "constants": {"q": 1}},
        "constants belong to PRISM files": {"models": explicit, "constants": constants},
        "2 constants for 3 models": {"models": [file] * 3, "constants": [constants] * 2},
        "constants must be a mapping": {"models": file, "constants": [0.5]},
        "Storm numbers states in the order.*align='numbers'": {"models": [explicit, explicit]},
        "has the variables x, model 0 wet, x": {
            "models": [file, other_file],
            "constants": [constants, {}],
        },
        "x=0'.*has no transitions though other models": {
            "models": [file, unlabeled_file],
            "constants": constants,
        },
        "two choices are called 'left'": {"models": repeated_file, "constants": constants},
        "has no transitions though other models": {
            "models": [file, incomplete_file],
            "constants": constants,
        },
        "align must be one of": {"models": file, "constants": constants, "align": "x"},
    }
    for message, arguments in arguments_by_message.items():
        with pytest.raises(mmdp.InputError, match=message) as error_info:
            interop.from_storm(**arguments)
        assert "\n" not in str(error_info.value)
    assert interop.from_storm(explicit).n_models == 1


TWO_STATE_FILE = """mdp
module m
  s : [0..2] init 0;
  [a] s=0 -> 0.5:(s'={i})+0.5:(s'={j});
  [b] s=0 -> (s'={i});
  [a] s>0 -> true;
  [b] s>0 -> true;
endmodule
rewards "r"
  [a] s=1 : 1;
  [b] s=2 : 1;
endrewards
"""


def test_storms_numbers_do_not_matter(tmp_path: Path) -> None:
    """Action a in state 1 and action b in state 2 earn 1 in both models, ten times."""
    pytest.importorskip("stormpy", reason="stormpy is not there")
    for name, i, j in (("a", 1, 2), ("b", 2, 1)):
        text = TWO_STATE_FILE.replace("{i}", str(i)).replace("{j}", str(j))
        (tmp_path / f"{name}.prism").write_text(text)
    model = interop.from_storm([tmp_path / "a.prism", tmp_path / "b.prism"], discount=1.0)
    assert mmdp.solve(model, 11, "exact").value == pytest.approx(10.0)
