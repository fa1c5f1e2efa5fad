"""Cassandra's POMDP files: the arrays they were written from, other ways to say it, bad ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.data import interop
from tests.cli.calls import run

UNTIDY_FILE = """# a machine that may be of two kinds, written loosely
discount : 0.9
values: cost          # so that signs change
states: good-new good-old  bad-new
        bad-old
actions: 2
observations: new old
start include: good-new bad-new

T:*:* identity-is-not-here
T: 0
identity
T: 0 : good-new
0.5 0.5 0.0 0.0
T : 0: 2
   0 0
   .25 .75
T: 1 : * reset
T: 1 : good-new : * 0.0
T: 1 : good-new : 0 1.0
T: 1 : good-old : * 0
T: 1 : good-old : good-new 1
T: 1 : 2 : * 0
T: 1 : bad-old : * 0
T: 1 : 2 : 2 1
T: 1 : bad-old : bad-new 1.0
O: *
1 0
0 1
1 0   0 1
R: 1 : * : * : * 3
R: 0 : * : * : old 2.0
R: 0 : bad-old : bad-old
9 7
R: 0 : bad-new
   1 0
   0 1
   1 0
   0 5
""".replace("T:*:* identity-is-not-here\n", "")


def write_pomdp(folder: Path, text: str = UNTIDY_FILE) -> Path:
    file = folder / "machine.POMDP"
    file.write_text(text, encoding="utf-8")
    return file


def make_machine_model() -> mmdp.MMDP:
    p = np.zeros((2, 2, 2, 2))
    p[0, :, 0] = [[0.5, 0.5], [0, 1]]
    p[1, :, 0] = [[0.25, 0.75], [0, 1]]
    p[:, :, 1] = [1, 0]
    r = np.zeros((2, 2, 2, 2))
    r[:, :, 1] = -3
    r[:, :, 0, 1] = -2
    r[1, 1, 0] = [0, -7]
    r[1, 0, 0] = [-1, -5]
    return mmdp.MMDP(p, next_rewards=r, initial=[1, 0], discount=0.9, states=["new", "old"])


# ---------------------------------------------------------------------- good files
def test_an_untidy_file_equals_its_arrays(tmp_path: Path) -> None:
    loaded, model = mmdp.load(write_pomdp(tmp_path)), make_machine_model()
    np.testing.assert_allclose(loaded.transitions, model.transitions)
    np.testing.assert_allclose(loaded.rewards, model.rewards)
    np.testing.assert_array_equal(loaded.initial, model.initial)
    assert loaded.state_labels == ("new", "old")
    loaded_solution, array_solution = (mmdp.solve(x, 6, "exact") for x in (loaded, model))
    assert loaded_solution.value == pytest.approx(array_solution.value, rel=1e-12)
    assert run("info", write_pomdp(tmp_path)).parse_facts()["states"] == "2: new, old"


@pytest.mark.parametrize("seed", range(3))
def test_what_is_exported_reads_back_the_same(tmp_path: Path, seed: int) -> None:
    """From a single first state; models with parts that do not communicate among them."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(4), size=(3, 4, 2))
    p[1:, :2, :, 2:] = p[1:, 2:, :, :2] = 0
    p /= p.sum(axis=-1, keepdims=True)
    model = mmdp.MMDP(
        p,
        rng.normal(size=(3, 4, 2)),
        initial=[0, 1, 0, 0],
        weights=[0.5, 0.2, 0.3],
        actions=["stay", "go"],
        states=["a", "b", "c", "d"],
        discount=0.9,
    )
    interop.save_pomdp(model, tmp_path / "m.pomdp")
    loaded = mmdp.load(tmp_path / "m.pomdp")
    np.testing.assert_allclose(loaded.transitions, model.transitions, atol=1e-15)
    np.testing.assert_allclose(loaded.rewards, model.rewards, atol=1e-12)
    np.testing.assert_allclose(loaded.weights, model.weights)
    assert (loaded.state_labels, loaded.action_labels) == (model.state_labels, model.action_labels)


def test_first_step_that_samples_the_model(tmp_path: Path) -> None:
    """Several first states are exported with a step before them, which costs one discount."""
    rng = np.random.default_rng(5)
    model = mmdp.MMDP(
        rng.dirichlet(np.ones(3), size=(2, 3, 2)),
        rng.normal(size=(2, 3, 2)),
        initial=[0.5, 0.2, 0.3],
        weights=[0.25, 0.75],
        discount=0.9,
    )
    interop.save_pomdp(model, tmp_path / "m.pomdp")
    loaded = mmdp.load(tmp_path / "m.pomdp")
    np.testing.assert_allclose(loaded.weights, model.weights)
    for horizon in (1, 5):
        delayed_value = mmdp.solve(loaded, horizon + 1, "exact").value
        assert delayed_value == pytest.approx(
            0.9 * mmdp.solve(model, horizon, "exact").value, rel=1e-12
        )


def test_an_unobserved_initial_state_becomes_a_state(tmp_path: Path) -> None:
    """The first action is taken blind. Its return by the hidden states, forward in time."""
    rng = np.random.default_rng(7)
    p = np.zeros((2, 4, 4))  # (a, x, x'); x = 2 m + s
    for m in range(2):
        p[:, 2 * m : 2 * m + 2, 2 * m : 2 * m + 2] = rng.dirichlet(np.ones(2), size=(2, 2))
    r, initial = rng.normal(size=(2, 4)), rng.dirichlet(np.ones(4))
    lines = ["discount: 0.9", "states: 4", "actions: 2", "observations: 2"]
    lines += ["start: " + " ".join(map(repr, initial.tolist()))]
    lines += [f"T: {a} {' '.join(map(repr, p[a].ravel().tolist()))}" for a in range(2)]
    lines += [f"O: * : {x} : {x % 2} 1" for x in range(4)]
    lines += [f"R: {a} : {x} : * : * {float(r[a, x])!r}" for a in range(2) for x in range(4)]
    loaded = mmdp.load(write_pomdp(tmp_path, "\n".join(lines)))
    assert loaded.state_labels == ("0", "1", "start")
    table = rng.integers(0, 2, size=(4, 3))
    observations = np.array([0, 1, 0, 1])
    belief, total = initial, 0.0
    for t in range(4):
        action = np.full(4, table[0, 2]) if t == 0 else table[t, observations]
        total += 0.9**t * float(belief @ r[action, np.arange(4)])
        belief = belief @ p[action, np.arange(4)]
    value = mmdp.evaluate(loaded, mmdp.policies.MarkovPolicy(table, n_actions=2)).mean
    assert value == pytest.approx(total, rel=1e-12)


# ---------------------------------------------------------------------- models that change
SWITCHING_FILE = """discount: 0.9
values: reward
states: wet-low dry-low wet-high dry-high
actions: wait
observations: low high
start: 0.25 0.75 0 0
T: wait
0.45 0.05 0.45 0.05
0.16 0.64 0.04 0.16
0.09 0.01 0.81 0.09
0.1  0.4  0.1  0.4
O: wait
1 0  1 0  0 1  0 1
R: wait : wet-low : dry-low : * 10
R: wait : wet-low : wet-low : * 1
"""


def test_states_observed_alike_are_a_switching_model(tmp_path: Path) -> None:
    loaded = mmdp.load(write_pomdp(tmp_path, SWITCHING_FILE))
    np.testing.assert_allclose(loaded.model_transitions, [[0.9, 0.1], [0.2, 0.8]], atol=1e-12)
    expected = [[[0.5, 0.5], [0.1, 0.9]], [[0.8, 0.2], [0.5, 0.5]]]
    np.testing.assert_allclose(loaded.transitions[:, :, 0], expected, atol=1e-12)
    np.testing.assert_allclose(loaded.rewards[..., 0], [[0.45 + 0.5, 0], [0, 0]], atol=1e-12)
    assert loaded.weights.tolist() == [0.25, 0.75]
    assert loaded.initial.tolist() == [1, 0]


@pytest.mark.parametrize("initial", ["0 0.25 0 0.75", "0.2 0.3 0.1 0.4"])
def test_the_value_is_that_of_the_hidden_process(tmp_path: Path, initial: str) -> None:
    text = SWITCHING_FILE.replace("0.25 0.75 0 0", initial)
    loaded = mmdp.load(write_pomdp(tmp_path, text))
    p = np.array([line.split() for line in SWITCHING_FILE.splitlines()[7:11]], dtype=float)
    r = 10 * p[:, 1] * [1, 0, 0, 0] + p[:, 0] * [1, 0, 0, 0]
    belief, total = np.array(initial.split(), dtype=float), 0.0
    for t in range(6):
        total, belief = total + 0.9**t * float(belief @ r), belief @ p
    assert mmdp.solve(loaded, 6).value == pytest.approx(total, rel=1e-12)


def test_a_switching_model_round_trip(tmp_path: Path) -> None:
    loaded = mmdp.load(write_pomdp(tmp_path, SWITCHING_FILE))
    interop.save_pomdp(loaded, tmp_path / "again.pomdp")
    reloaded = mmdp.load(tmp_path / "again.pomdp")
    for name in ("transitions", "rewards", "model_transitions", "weights", "initial"):
        np.testing.assert_allclose(getattr(reloaded, name), getattr(loaded, name), atol=1e-12)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "0.45 0.05 0.45 0.05",
            "0.35 0.15 0.45 0.05",
            "state 'wet-low' and others that are observed as 'low' are connected, so a hidden part "
            "changes; in an MMDP only the model is hidden, and it switches by a Markov chain that "
            "does not depend on the action and the state",
        ),
        ("1 0  1 0  0 1  0 1", "1 0  1 0  0 1  1 0", "so a hidden part changes"),
    ],
)
def test_other_changes_of_the_model_are_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(mmdp.InputError) as error_info:
        mmdp.load(write_pomdp(tmp_path, SWITCHING_FILE.replace(old, new)))
    assert message in str(error_info.value)


def test_switching_models_after_a_step_without_observation_are_refused(tmp_path: Path) -> None:
    """Several first states are exported with a step before them; .pomdpx needs none."""
    model = mmdp.load(write_pomdp(tmp_path, SWITCHING_FILE)).replace(initial=[0.5, 0.5])
    interop.save_pomdp(model, tmp_path / "spread.pomdp")
    with pytest.raises(mmdp.InputError, match="a hidden part changes"):
        mmdp.load(tmp_path / "spread.pomdp")
    interop.save_pomdp(model, tmp_path / "spread.pomdpx")
    assert mmdp.load(tmp_path / "spread.pomdpx").fingerprint() == model.fingerprint()


def test_a_first_action_must_not_choose_the_model(tmp_path: Path) -> None:
    interop.save_pomdp(make_machine_model().replace(initial=[0.5, 0.5]), tmp_path / "spread.pomdp")
    text = (tmp_path / "spread.pomdp").read_text()
    for line in ("T: * : start : m0_s0 0.25", "T: * : start : m1_s0 0.25"):
        assert line in text
    text += "T: a0 : start : m0_s0 0.5\nT: a0 : start : m1_s0 0.0\n"
    with pytest.raises(mmdp.InputError, match="the model depends on the action in 'start'"):
        mmdp.load(write_pomdp(tmp_path, text))


@pytest.mark.parametrize("suffix", ["pomdp", "pomdpx"])
def test_one_hidden_state_comes_back(tmp_path: Path, suffix: str) -> None:
    model = mmdp.MMDP(np.ones((1, 1, 2, 1)), [[1.0, 2.0]], discount=0.5)
    interop.save_pomdp(model, tmp_path / f"one.{suffix}")
    assert mmdp.load(tmp_path / f"one.{suffix}").fingerprint() == model.fingerprint()


# ---------------------------------------------------------------------- not an MMDP, bad files
TIGER_FILE = """discount: 0.95
values: reward
states: left right
actions: listen open
observations: l r
T: listen identity
T: open uniform
O: listen
0.85 0.15 0.15 0.85
O: open uniform
R: open : left : * : * -100
"""

BAD_FILES = [
    (
        UNTIDY_FILE,
        TIGER_FILE,
        "state 'left' is observed with errors, or not after every action (see action "
        "'listen'); in an MMDP the state is observed exactly",
    ),
    (
        "T: 1 : good-old : good-new 1",
        "T: 1 : good-old : bad-new 1",
        "state 'good-new' and others that are observed as 'new' are connected, so a hidden part",
    ),
    ("discount : 0.9", "discont : 0.9", "the file begins with 'discont' (did you mean"),
    ("discount : 0.9", "discount : nine", "line 2: discount is 'nine', not a number"),
    ("discount : 0.9", "discount : 2", "discount must be from 0 to 1"),
    ("discount : 0.9\n", "", "no discount: is given"),
    ("values: cost", "values: profit", "line 3: values is 'profit'; write reward or cost"),
    ("actions: 2", "actions: 0", "line 6: actions: '0' is not a whole number from 1 to 1,000,000"),
    ("actions: 2", "actions: 2\nactions: 2", "line 7: actions is given twice"),
    ("actions: 2", "actions: a a", "line 6: actions: needs at least one name, none twice"),
    (
        "observations: new old",
        "observations:",
        "line 7: observations: needs at least one name",
    ),
    (
        "start include: good-new",
        "start include: goood-new",
        "line 8: 'goood-new' (did you mean 'good-new'?) is not declared",
    ),
    (
        "start include: good-new bad-new",
        "start: 0.5 0.4 0 0",
        "line 8: start: probabilities sum to 0.9, not 1",
    ),
    (
        "start include: good-new bad-new",
        "start: 0.5 0.5",
        "line 8: 2 numbers for start:; expected 4",
    ),
    ("start include: good-new bad-new", "start exclude: *", "line 8: start exclude: leaves no"),
    ("0.5 0.5 0.0 0.0", "0.5 0.5 0.0", "line 12: 3 numbers for T:; expected 4"),
    ("0.5 0.5 0.0 0.0", "0.5 0.5 0.0 x", "line 12: T: is 'x', not a number"),
    ("0.5 0.5 0.0 0.0", "1.5 -.5 0.0 0", "line 12: negative probability -0.5"),
    (
        "0.5 0.5 0.0 0.0",
        "0.5 0.4 0.0 0",
        "T for 0 good-new: probabilities sum to 0.9, not 1; correct them, or pass "
        "--load-option normalize=true",
    ),
    ("T: 1 : good-new : 0 1.0", "T: 1 : good-new : 7 1.0", "line 19: '7' is not declared"),
    ("T: 1 : good-new : 0 1.0", "T: 5 : good-new : 0 1.0", "line 19: '5' is not declared"),
    (
        "T: 1 : good-new : 0 1.0",
        "T: 1 : good-new : 0 : 1 1.0",
        "19: T: needs one name between two colons, and at most 3 names",
    ),
    (
        "T: 1 : good-new : 0 1.0",
        "T: 1 good-new : 0 1.0",
        "line 19: T: needs one name between two colons",
    ),
    ("T: 1 : good-new : 0 1.0", "T: 1 : good-new : 0 1.0 2", "line 19: 2 numbers for T:; expected"),
    ("T: 1 : good-new : 0 1.0", "T: 1 : : 0 1", "line 19: T: needs one name"),
    ("O: *\n1 0", "O: *\nidentity", "line 26: 7 numbers for O:; expected 8"),
    ("O: *\n1 0", "O: *\n1 1", "O for 0 good-new: probabilities sum to 2, not 1"),
    ("R: 1 : * : * : * 3", "R: 1 3", "line 30: R: has an action only; give a state too"),
    ("R: 1 : * : * : * 3", "R: 1 : * : * : * inf", "line 30: R: is 'inf', not a number"),
    (UNTIDY_FILE, "", "the file begins with ''"),
    (
        UNTIDY_FILE,
        TIGER_FILE.replace("left right", "99999"),
        "a table of 2 x 99999 x 99999 would take 160 GB",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_bad_file_is_one_clear_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in UNTIDY_FILE
    file = write_pomdp(tmp_path, UNTIDY_FILE.replace(old, new, 1))
    result = run("info", file)
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert result.err.startswith(f"mmdp: {file}")
    assert message in result.err


def test_rewards_by_next_state_and_observation_for_every_state(tmp_path: Path) -> None:
    """One action, all states: the numbers are by next state and by what is seen there."""
    head = UNTIDY_FILE[: UNTIDY_FILE.index("R: 1")]
    by_next_state = np.array([1.0, 2.0, 3.0, 4.0])  # in the order of the hidden states
    matrix = "\n".join(f"{x} {x}" for x in by_next_state)
    for statement, (first, second) in {
        f"R: 0 : *\n{matrix}": ([1, 2], [3, 4]),
        "R: 0 : * : *\n5 6": ([5, 6], [5, 6]),
        "R: 0 : * : bad-old\n5 6": ([0, 0], [0, 6]),
    }.items():
        loaded = mmdp.load(write_pomdp(tmp_path, head + statement + "\n"))
        p = loaded.transitions[:, :, 0]
        expected = -(p * np.array([first, second])[:, None]).sum(axis=2)
        np.testing.assert_allclose(loaded.rewards[:, :, 0], expected)
