"""POMDPX files: the arrays they were written from, other ways to say the same, bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.data import interop
from tests.cli.calls import run

# A bird population on a managed reserve: how it responds to burning and to grazing is not known.
# Written by hand, in every way the format allows.
UNTIDY_FILE = """<?xml version='1.0' encoding="ISO-8859-1"?>
<!-- adaptive management of a reserve -->
<pomdpx version="1.0" id="birds" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
        xsi:noNamespaceSchemaLocation="pomdpx.xsd" >
 <Description>Oiseaux de la r\u00e9serve, &lt;three&gt; sizes </Description>
 <Discount>  0.95
 </Discount>
 <Variable>
   <StateVar vnameCurr="birds_1"   vnamePrev="birds_0" fullyObs = "true">
      <ValueEnum> few
            some   many </ValueEnum> </StateVar>
   <StateVar vnamePrev="theory_0" vnameCurr="theory_1"><NumValues> 2 </NumValues></StateVar>
   <ObsVar vname="nothing"><ValueEnum>none</ValueEnum></ObsVar>
   <ActionVar vname="do"><ValueEnum>wait burn graze</ValueEnum></ActionVar>
   <RewardVar vname="birdwatching"/><RewardVar vname="money"/>
 </Variable>
 <InitialStateBelief>
   <CondProb><Var>theory_0</Var><Parent>null</Parent><Parameter type="TBL">
     <Entry><Instance>-</Instance><ProbTable>uniform</ProbTable></Entry></Parameter></CondProb>
   <CondProb><Var> birds_0 </Var><Parent> null </Parent><Parameter>
     <Entry><Instance> some </Instance><ProbTable>1</ProbTable></Entry></Parameter></CondProb>
 </InitialStateBelief>
 <StateTransitionFunction>
   <CondProb><Var>theory_1</Var><Parent>do theory_0</Parent><Parameter type = "TBL">
      <Entry><Instance>* - -</Instance><ProbTable>identity</ProbTable></Entry>
   </Parameter></CondProb>
   <CondProb>
     <Var>birds_1</Var>
     <Parent>theory_0   do
             birds_0</Parent>
     <Parameter type="TBL">
       <!-- whatever we do, unless said below -->
       <Entry> <Instance>* * * -</Instance> <ProbTable>uniform</ProbTable> </Entry>
       <Entry><Instance>*  wait - -</Instance>
          <ProbTable>.7 .3 0.
             .2 <!-- the middle row --> .6 2e-1
             0  0.4 0.6</ProbTable></Entry>
       <Entry><Instance>s0 burn - -</Instance><ProbTable>identity</ProbTable></Entry>
       <Entry><Instance>s1 burn * -</Instance><ProbTable>0 0 1</ProbTable></Entry>
       <Entry><Instance>s0 graze few many</Instance><ProbTable>0.5</ProbTable></Entry>
       <Entry><Instance>s0 graze few some</Instance><ProbTable>0.25</ProbTable></Entry>
       <Entry><Instance>s0 graze few few</Instance><ProbTable>0.25</ProbTable></Entry>
     </Parameter>
   </CondProb>
 </StateTransitionFunction>
 <ObsFunction><CondProb><Var>nothing</Var><Parent>do birds_1 theory_1</Parent>
   <Parameter type="TBL"><Entry><Instance>* * * -</Instance><ProbTable>1.0</ProbTable></Entry>
   </Parameter></CondProb></ObsFunction>
 <RewardFunction>
   <Func><Var>birdwatching</Var><Parent>birds_1</Parent><Parameter type="TBL">
      <Entry><Instance>-</Instance><ValueTable>0 5 20</ValueTable></Entry></Parameter></Func>
   <Func><Var>money</Var><Parent>do</Parent><Parameter type="TBL">
      <Entry><Instance>*</Instance><ValueTable>-3</ValueTable></Entry>
      <Entry><Instance>wait</Instance><ValueTable>0</ValueTable></Entry></Parameter></Func>
 </RewardFunction>
</pomdpx>
"""


def make_reserve_model() -> mmdp.MMDP:
    """The same as arrays."""
    p = np.full((2, 3, 3, 3), 1 / 3)
    p[:, :, 0] = [[0.7, 0.3, 0], [0.2, 0.6, 0.2], [0, 0.4, 0.6]]
    p[0, :, 1] = np.eye(3)
    p[1, :, 1] = [0, 0, 1]
    p[0, 0, 2] = [0.25, 0.25, 0.5]
    r = np.tile([0.0, 5.0, 20.0], (2, 3, 3, 1))
    r[:, :, 1:] -= 3
    return mmdp.MMDP(
        p,
        next_rewards=r,
        initial=[0, 1, 0],
        discount=0.95,
        states=["few", "some", "many"],
        actions=["wait", "burn", "graze"],
    )


def write_pomdpx(folder: Path, text: str = UNTIDY_FILE, encoding: str = "latin-1") -> Path:
    file = folder / "birds.pomdpx"
    file.write_bytes(text.encode(encoding))
    return file


def assert_same(loaded: mmdp.MMDP, model: mmdp.MMDP) -> None:
    np.testing.assert_allclose(loaded.transitions, model.transitions, rtol=0, atol=1e-15)
    np.testing.assert_allclose(loaded.rewards, model.rewards, rtol=0, atol=1e-12)
    for name in ("initial", "weights", "discount"):
        np.testing.assert_allclose(getattr(loaded, name), getattr(model, name), atol=1e-15)
    for axis in ("state", "action", "model"):
        assert getattr(loaded, f"{axis}_labels") == getattr(model, f"{axis}_labels")


# ---------------------------------------------------------------------- good files
def test_an_untidy_file_equals_its_arrays(tmp_path: Path) -> None:
    loaded, model = mmdp.load(write_pomdpx(tmp_path)), make_reserve_model()
    assert_same(loaded, model)
    for horizon in (1, 4, 12):
        loaded_solution, array_solution = (mmdp.solve(x, horizon, "exact") for x in (loaded, model))
        assert loaded_solution.value == pytest.approx(array_solution.value, rel=1e-12)
        np.testing.assert_array_equal(loaded_solution.policy.table, array_solution.policy.table)


def test_the_command_line_reads_it(tmp_path: Path) -> None:
    facts = run("info", write_pomdpx(tmp_path)).parse_facts()
    assert facts["states"] == "3: few, some, many"
    assert facts["models"] == "2"
    assert facts["discount"] == "0.95"
    document = run("solve", write_pomdpx(tmp_path), "-T", 4, "--json").json
    assert document["value"] == pytest.approx(mmdp.solve(make_reserve_model(), 4).value)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_exported_reads_back_the_same(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels: dict[str, Any] = {}
    if seed % 2:
        labels = {"states": ["low", "mid", "high"], "actions": ["a-1", "b_2"], "models": ["x", "y"]}
    p = rng.dirichlet(np.full(3, 0.3), size=(2, 3, 2))
    r = rng.normal(size=(2, 3, 2, 3)) if seed < 2 else rng.normal(size=(2, 3, 2))
    rewards = {"next_rewards": r} if seed < 2 else {"rewards": r}
    model = mmdp.MMDP(
        p,
        **rewards,
        initial=rng.dirichlet(np.ones(3)),
        weights=rng.dirichlet(np.ones(2)),
        discount=0.9,
        **labels,
    )
    interop.save_pomdp(model, tmp_path / "m.pomdpx")
    loaded = mmdp.load(tmp_path / "m.pomdpx")
    np.testing.assert_array_equal(loaded.transitions, model.transitions)
    np.testing.assert_array_equal(loaded.weights, model.weights)
    np.testing.assert_array_equal(loaded.initial, model.initial)
    assert_same(loaded, model)
    assert loaded.has_next_rewards == model.has_next_rewards


def format_pomdpx(
    transitions: str, variables: str, initial: str, observations: str = "", reward: str = ""
) -> str:
    return (
        f"<pomdpx><Discount>0.9</Discount><Variable>{variables}"
        f"<ActionVar vname='a'><ValueEnum>u v</ValueEnum></ActionVar><RewardVar vname='r'/>"
        f"</Variable><InitialStateBelief>{initial}</InitialStateBelief>"
        f"<StateTransitionFunction>{transitions}</StateTransitionFunction>"
        + (f"<ObsFunction>{observations}</ObsFunction>" if observations else "")
        + f"<RewardFunction>{reward}</RewardFunction></pomdpx>"
    )


def format_state_variable(name: str, is_observed: bool = True, values: str = "0 1") -> str:
    observed_text = "true" if is_observed else "false"
    return (
        f"<StateVar vnamePrev='{name}' vnameCurr='{name}n' fullyObs='{observed_text}'>"
        f"<ValueEnum>{values}</ValueEnum></StateVar>"
    )


def format_table(var: str, parents: str, *entries: tuple[str, str], tag: str = "CondProb") -> str:
    value_tag = "ProbTable" if tag == "CondProb" else "ValueTable"
    rows = "".join(
        f"<Entry><Instance>{instance}</Instance><{value_tag}>{text}</{value_tag}></Entry>"
        for instance, text in entries
    )
    return f"<{tag}><Var>{var}</Var><Parent>{parents}</Parent><Parameter>{rows}</Parameter></{tag}>"


def format_array(array: np.ndarray) -> str:
    return " ".join(map(repr, array.ravel().tolist()))


def test_several_variables_become_their_product(tmp_path: Path) -> None:
    """Two states, one of which follows the other within a step, two theories, a joint reward."""
    rng = np.random.default_rng(1)
    x = rng.dirichlet(np.ones(2), size=(2, 2, 2))  # (a, m, x, x')
    y = rng.dirichlet(np.ones(3), size=(2, 2, 3))  # (x', k, y, y')
    r = rng.normal(size=(2, 3, 2, 2))  # (m, y, a, x')
    initial = rng.dirichlet(np.ones(3), size=2)  # (x, y)
    text = format_pomdpx(
        format_table("mn", "m", ("- -", "identity"))
        + format_table("kn", "k", ("- -", "identity"))
        + format_table("xn", "a m x", ("- - - -", format_array(x)))
        + format_table("yn", "xn k y", ("- - - -", format_array(y))),
        format_state_variable("m", False, "p q")
        + format_state_variable("x")
        + format_state_variable("k", False, "i j")
        + format_state_variable("y", True, "lo mid hi"),
        format_table("m", "null", ("-", "0.25 0.75"))
        + format_table("k", "m", ("- -", "1 0 0.5 0.5"))
        + format_table("x", "null", ("-", "uniform"))
        + format_table("y", "x", ("- -", format_array(initial))),
        reward=format_table("r", "m y a xn", ("- - - -", format_array(r)), tag="Func"),
    )
    loaded = mmdp.load(write_pomdpx(tmp_path, text))
    expected = np.einsum("amxz,zkyw->mkxyazw", x, y).reshape(4, 6, 2, 6)
    np.testing.assert_allclose(loaded.transitions, expected, atol=1e-15)
    expected_rewards = np.einsum("myaz,zkyw,amxz->mkxya", r, y, x).reshape(4, 6, 2)
    np.testing.assert_allclose(loaded.rewards, expected_rewards, atol=1e-12)
    np.testing.assert_allclose(loaded.weights, [0.25, 0, 0.375, 0.375])
    np.testing.assert_allclose(loaded.initial, (0.5 * initial).ravel())
    assert loaded.state_labels == ("0/lo", "0/mid", "0/hi", "1/lo", "1/mid", "1/hi")
    assert loaded.model_labels == ("p/i", "p/j", "q/i", "q/j")


def test_hidden_variables_that_change_make_a_chain(tmp_path: Path) -> None:
    """m stays, k changes as m says, h is drawn anew at every step; a reward comes after it."""
    rng = np.random.default_rng(3)
    k = rng.dirichlet(np.ones(3), size=(2, 3))  # (m, k, k')
    h = rng.dirichlet(np.ones(2), size=3)  # (k', h')
    x = rng.dirichlet(np.ones(2), size=(2, 3, 2))  # (a, k, x, x')
    r = rng.normal(size=(3, 2, 2))  # (k', h, x')
    text = format_pomdpx(
        format_table("mn", "m", ("- -", "identity"))
        + format_table("kn", "a mn k", ("* - - -", format_array(k)))
        + format_table("hn", "kn", ("- -", format_array(h)))
        + format_table("xn", "a k kn x", *((f"- - {i} - -", format_array(x)) for i in "123")),
        format_state_variable("m", False)
        + format_state_variable("x")
        + format_state_variable("k", False, "1 2 3")
        + format_state_variable("h", False),
        format_table("m", "null", ("-", "uniform"))
        + format_table("x", "null", ("1", "1"))
        + format_table("k", "m", ("* -", "0.5 0.5 0"))
        + format_table("h", "null", ("0", "1")),
        reward=format_table("r", "kn h xn", ("- - -", format_array(r)), tag="Func"),
    )
    loaded = mmdp.load(write_pomdpx(tmp_path, text))
    model_transitions = np.einsum("mn,mkl,lj,h->mkhnlj", np.eye(2), k, h, np.ones(2)).reshape(
        12, 12
    )
    np.testing.assert_allclose(loaded.model_transitions, model_transitions, atol=1e-15)
    transitions = np.broadcast_to(x.transpose(1, 2, 0, 3)[None, :, None], (2, 3, 2, 2, 2, 2))
    np.testing.assert_allclose(loaded.transitions, transitions.reshape(12, 2, 2, 2), atol=1e-15)
    rewards = np.einsum("mkl,lhz,akxz->mkhxa", k, r, x).reshape(12, 2, 2)
    np.testing.assert_allclose(loaded.rewards, rewards, atol=1e-12)


def test_a_switching_model_reads_back_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    model = mmdp.MMDP(
        rng.dirichlet(np.ones(3), (3, 3, 2)),
        rng.normal(size=(3, 3, 2)),
        discount=0.9,
        initial=[0.5, 0.5, 0],
        weights=[0, 0.4, 0.6],
        model_transitions=rng.dirichlet(np.ones(3), 3),
    )
    interop.save_pomdp(model, tmp_path / "m.pomdpx")
    loaded = mmdp.load(tmp_path / "m.pomdpx")
    assert loaded.fingerprint() == model.fingerprint()


def test_an_observation_may_be_rewarded(tmp_path: Path) -> None:
    p = np.random.default_rng(2).dirichlet(np.ones(2), size=(2, 2, 2))  # (a, m, x, x')
    text = format_pomdpx(
        format_table("mn", "m", ("- -", "identity"))
        + format_table("xn", "a m x", ("- - - -", format_array(p))),
        format_state_variable("m", False)
        + format_state_variable("x")
        + "<ObsVar vname='z'><NumValues>3</NumValues></ObsVar>"
        "<ObsVar vname='coin'><ValueEnum>head tail</ValueEnum></ObsVar>",
        format_table("m", "null", ("-", "uniform")) + format_table("x", "null", ("1", "1")),
        format_table("z", "a xn", ("* 0 -", "0.5 0 0.5"), ("* 1 -", "0 1 0"))
        + format_table("coin", "xn", ("0 -", "0.25 0.75"), ("1 -", "0 1")),
        format_table("r", "coin", ("head", "8"), tag="Func"),
    )
    loaded = mmdp.load(write_pomdpx(tmp_path, text))
    np.testing.assert_allclose(loaded.transitions, p.transpose(1, 2, 0, 3), atol=1e-15)
    np.testing.assert_allclose(loaded.rewards, 2.0 * loaded.transitions[..., 0], atol=1e-12)
    np.testing.assert_array_equal(loaded.initial, [0, 1])


def test_one_model_is_an_mdp(tmp_path: Path) -> None:
    text = format_pomdpx(
        format_table("xn", "x", ("- -", "identity")),
        format_state_variable("x"),
        format_table("x", "null", ("-", "uniform")),
    )
    loaded = mmdp.load(write_pomdpx(tmp_path, text), discount=0.5, initial={"1": 1.0})
    assert (loaded.n_models, loaded.discount, loaded.initial.tolist()) == (1, 0.5, [0, 1])


# ---------------------------------------------------------------------- not an MMDP
MODEL_VARIABLE, STATE_VARIABLE = format_state_variable("m", False), format_state_variable("x")
CONSTANT_MODEL_TABLE = format_table("mn", "m", ("- -", "identity"))
STATE_TABLE = format_table("xn", "m x", ("* * -", "uniform"))
INITIAL_TABLES = format_table("m", "null", ("-", "uniform")) + format_table("x", "null", ("0", "1"))
OBSERVATION_VARIABLE = "<ObsVar vname='z'><ValueEnum>k l</ValueEnum></ObsVar>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            format_pomdpx(
                format_table("mn", "a m", ("* - -", "identity"), ("u - -", ".9 .1 0 1"))
                + STATE_TABLE,
                MODEL_VARIABLE + STATE_VARIABLE,
                INITIAL_TABLES,
            ),
            "'mn' depends on 'a'; in an MMDP a hidden variable changes by itself",
        ),
        (
            format_pomdpx(
                format_table("mn", "x m", ("* - -", "identity"), ("0 - -", ".9 .1 0 1"))
                + STATE_TABLE,
                MODEL_VARIABLE + STATE_VARIABLE,
                INITIAL_TABLES,
            ),
            "'mn' depends on 'x'",
        ),
        (
            format_pomdpx(
                format_table("mn", "m", ("- -", ".9 .1 0 1"))
                + format_table("xn", "mn x", ("* * -", "uniform"), ("0 0 -", "1 0")),
                MODEL_VARIABLE + STATE_VARIABLE,
                INITIAL_TABLES,
            ),
            "'xn' depends on 'mn'",
        ),
        (
            format_pomdpx(
                format_table("mn", "m", ("- -", ".9 .1 0 1")) + STATE_TABLE,
                MODEL_VARIABLE + STATE_VARIABLE + OBSERVATION_VARIABLE,
                INITIAL_TABLES,
                format_table("z", "mn", ("- -", ".8 .2 .2 .8")),
            ),
            "'z' depends on 'mn'; in an MMDP",
        ),
        (
            format_pomdpx(
                CONSTANT_MODEL_TABLE + STATE_TABLE,
                MODEL_VARIABLE + STATE_VARIABLE + OBSERVATION_VARIABLE,
                INITIAL_TABLES,
                format_table("z", "mn", ("- -", ".8 .2 .2 .8")),
            ),
            "'z' depends on 'mn'; in an MMDP",
        ),
        (
            format_pomdpx(
                CONSTANT_MODEL_TABLE + STATE_TABLE,
                MODEL_VARIABLE + format_state_variable("x", False) + OBSERVATION_VARIABLE,
                INITIAL_TABLES,
                format_table("z", "xn", ("- -", ".8 .2 .2 .8")),
            ),
            "states that are observed at every step",
        ),
        (
            format_pomdpx(
                CONSTANT_MODEL_TABLE + format_table("xn", "x", ("- -", "identity")),
                MODEL_VARIABLE + format_state_variable("x", False) + OBSERVATION_VARIABLE,
                INITIAL_TABLES,
                format_table("z", "xn", ("* -", "uniform")),
            ),
            '(<StateVar> with fullyObs="true"); add them',
        ),
    ],
)
def test_what_is_no_mmdp_is_refused_with_the_reason(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(mmdp.InputError) as error_info:
        mmdp.load(write_pomdpx(tmp_path, text))
    assert message in str(error_info.value)
    assert str(error_info.value).startswith(str(tmp_path))


# ---------------------------------------------------------------------- bad files
BAD_FILES = [
    ("</Description>", "", "line 56: not well-formed XML (mismatched tag)"),
    ("<Discount>  0.95", "<Discount>  high", "line 6: <Discount> is 'high', not a number"),
    ("<Discount>  0.95", "<Discount>  1.5", "discount must be"),
    ("Discount>", "discount>", "line 3: <pomdpx> has 0 elements 'Discount'"),
    ("pomdpx", "pomdp", "line 3: the root is <pomdp>; give a file"),
    ("ActionVar", "Actionvar", "line 14: unknown element 'Actionvar' (did you mean 'ActionVar'?)"),
    ('vname="do"', "", "line 14: vname of <ActionVar> is ''; give a name without spaces"),
    ('vname="do"', 'vname="birds_0"', "line 14: vname of <ActionVar> is 'birds_0'; give a name"),
    (
        'vnamePrev="birds_0"',
        'vnamePrev="birds_1"',
        "line 9: vnameCurr of <StateVar> is 'birds_1'; give a name",
    ),
    ('"true"', '"yes"', "line 8: an MMDP has actions (<ActionVar>) and states that are observed"),
    (
        "wait burn graze<",
        "wait burn wait<",
        "line 14: <ValueEnum> needs at least one name, none twice",
    ),
    ("wait burn graze<", "<", "line 14: <ValueEnum> needs at least one name"),
    (
        "wait burn graze<",
        "wait * graze<",
        "line 14: <ValueEnum> needs at least one name, none twice and none of",
    ),
    ("<NumValues> 2 ", "<NumValues> 2.5 ", "line 12: <NumValues> '2.5' is not a whole number"),
    ("<NumValues> 2 ", "<NumValues> 9999999 ", "is not a whole number from 1 to 1,000,000"),
    ("<Var> birds_0 ", "<Var> birds_1 ", "line 20: <Var> is 'birds_1' (did you mean 'birds_0'?)"),
    (
        "<Var> birds_0 ",
        "<Var> theory_0 ",
        "line 20: <Var> is 'theory_0'; <InitialStateBelief> has one function of each",
    ),
    ("<Parent> null ", "<Parent> do ", "line 20: <Parent> names 'do', which 'birds_0' in"),
    ("<Parent>do theory_0<", "<Parent>do do<", "line 24: <Parent> names 'do', which 'theory_1' in"),
    ('type = "TBL"', "type='DD'", "line 24: type 'DD' is not read; write a table (TBL)"),
    (
        "<Instance>*  wait - -",
        "<Instance>wait - -",
        "line 34: <Instance> has 3 words; expected 4: theory_0 do birds_0 birds_1",
    ),
    (
        "<Instance>*  wait - -",
        "<Instance>*  wiat - -",
        "line 34: 'wiat' (did you mean 'wait'?) is no value of 'do'",
    ),
    (".7 .3 0.", ".7 .3", "line 35: 8 numbers for <ProbTable>; expected 9"),
    (".7 .3 0.", ".7 .3 x", "line 35: <ProbTable> is 'x', not a number"),
    (".7 .3 0.", ".7 .3 nan", "line 35: <ProbTable> is 'nan', not a number"),
    (".7 .3 0.", "1.3 -.3 0.", "line 35: negative probability -0.3"),
    (
        ".7 .3 0.",
        ".7 .2 0.",
        "line 27: <CondProb> of 'birds_1' for s0 wait few: probabilities sum "
        "to 0.9, not 1; correct them, or pass normalize=True",
    ),
    (
        "* - -</Instance><ProbTable>identity",
        "* * -</Instance><ProbTable>identity",
        "line 25: 1 numbers for <ProbTable>; expected 2",
    ),
    (
        "<ProbTable>0 0 1<",
        "<ProbTable>0 0 1</ProbTable><ProbTable>1<",
        "line 39: <Entry> has 2 elements 'ProbTable'; it needs one",
    ),
    ("<Var>money", "<Var>honey", "line 52: <Var> is 'honey' (did you mean 'money'?)"),
    ("ValueTable>-3", "ValueTable>-3 1", "line 53: 2 numbers for <ValueTable>; expected 1"),
    ("ObsFunction", "Obs", "line 3: <pomdpx> has 0 elements 'ObsFunction'"),
    ("<Func><Var>money", "<Fun><Var>money", "not well-formed XML"),
    ('encoding="ISO-8859-1"', 'encoding="klingon"', "(unknown encoding: klingon); save it as"),
    (UNTIDY_FILE, "", "line 1: not well-formed XML (no element found)"),
    (UNTIDY_FILE, "idstatefrom,idaction\n1,2", "line 1: not well-formed XML"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_bad_file_is_one_clear_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in UNTIDY_FILE
    file = write_pomdpx(tmp_path, UNTIDY_FILE.replace(old, new))
    result = run("info", file)
    assert result.code == 2
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert result.err.startswith(f"mmdp: {file}")
    assert message.replace("pass normalize=True", "pass --load-option normalize=true") in result.err


def test_normalize_scales_the_rows(tmp_path: Path) -> None:
    loaded = mmdp.load(
        write_pomdpx(tmp_path, UNTIDY_FILE.replace(".7 .3 0.", "1.4 .6 0")), normalize=True
    )
    assert_same(loaded, make_reserve_model())


def test_impossible_sizes_are_refused_before_allocation(tmp_path: Path) -> None:
    text = UNTIDY_FILE.replace("<NumValues> 2 ", "<NumValues> 900000 ")
    with pytest.raises(mmdp.InputError, match="a table of 3 x 900000 x 900000 would take 19.4 TB"):
        mmdp.load(write_pomdpx(tmp_path, text))
