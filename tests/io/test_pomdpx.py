"""POMDPX files: the arrays they were written from, other ways to say the same, bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import ecosystem
from tests.cli.calls import run

# A bird population on a managed reserve: how it responds to burning and to grazing is not known.
# Written by hand, in every way the format allows.
LOOSE = """<?xml version='1.0' encoding="ISO-8859-1"?>
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


def reserve() -> mmdp.MMDP:
    """The same as arrays."""
    p = np.full((2, 3, 3, 3), 1 / 3)
    p[:, :, 0] = [[0.7, 0.3, 0], [0.2, 0.6, 0.2], [0, 0.4, 0.6]]
    p[0, :, 1] = np.eye(3)
    p[1, :, 1] = [0, 0, 1]
    p[0, 0, 2] = [0.25, 0.25, 0.5]
    r = np.tile([0.0, 5.0, 20.0], (2, 3, 3, 1))
    r[:, :, 1:] -= 3
    return mmdp.MMDP(
        p, next_rewards=r, initial=[0, 1, 0], discount=0.95, states=["few", "some", "many"],
        actions=["wait", "burn", "graze"],
    )  # fmt: skip


def written(folder: Path, text: str = LOOSE, encoding: str = "latin-1") -> Path:
    file = folder / "birds.pomdpx"
    file.write_bytes(text.encode(encoding))
    return file


def assert_same(read: mmdp.MMDP, model: mmdp.MMDP) -> None:
    np.testing.assert_allclose(read.transitions, model.transitions, rtol=0, atol=1e-15)
    np.testing.assert_allclose(read.rewards, model.rewards, rtol=0, atol=1e-12)
    for name in ("initial", "weights", "discount"):
        np.testing.assert_allclose(getattr(read, name), getattr(model, name), atol=1e-15)
    for kind in ("state", "action", "model"):
        assert getattr(read, f"{kind}_labels") == getattr(model, f"{kind}_labels")


# ---------------------------------------------------------------------- good files
def test_a_loose_file_is_the_arrays_it_came_from(tmp_path: Path) -> None:
    read, model = mmdp.load(written(tmp_path)), reserve()
    assert_same(read, model)
    for horizon in (1, 4, 12):
        ours, arrays = (mmdp.solve(x, horizon, "exact") for x in (read, model))
        assert ours.value == pytest.approx(arrays.value, rel=1e-12)
        np.testing.assert_array_equal(ours.policy.table, arrays.policy.table)


def test_the_command_line_reads_it(tmp_path: Path) -> None:
    facts = run("info", written(tmp_path)).facts()
    assert facts["states"] == "3: few, some, many"
    assert facts["models"] == "2"
    assert facts["discount"] == "0.95"
    done = run("solve", written(tmp_path), "-T", 4, "--json").json
    assert done["value"] == pytest.approx(mmdp.solve(reserve(), 4).value)


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
        p, **rewards, initial=rng.dirichlet(np.ones(3)), weights=rng.dirichlet(np.ones(2)),
        discount=0.9, **labels,
    )  # fmt: skip
    ecosystem.save_pomdp(model, tmp_path / "m.pomdpx")
    read = mmdp.load(tmp_path / "m.pomdpx")
    np.testing.assert_array_equal(read.transitions, model.transitions)
    np.testing.assert_array_equal(read.weights, model.weights)
    np.testing.assert_array_equal(read.initial, model.initial)
    assert_same(read, model)
    assert read.has_next_rewards == model.has_next_rewards


def factored(body: str, variables: str, start: str, seen: str = "", reward: str = "") -> str:
    return (
        f"<pomdpx><Discount>0.9</Discount><Variable>{variables}"
        f"<ActionVar vname='a'><ValueEnum>u v</ValueEnum></ActionVar><RewardVar vname='r'/>"
        f"</Variable><InitialStateBelief>{start}</InitialStateBelief>"
        f"<StateTransitionFunction>{body}</StateTransitionFunction>"
        + (f"<ObsFunction>{seen}</ObsFunction>" if seen else "")
        + f"<RewardFunction>{reward}</RewardFunction></pomdpx>"
    )


def state(name: str, seen: bool = True, values: str = "0 1") -> str:
    known = "true" if seen else "false"
    return (
        f"<StateVar vnamePrev='{name}' vnameCurr='{name}n' fullyObs='{known}'>"
        f"<ValueEnum>{values}</ValueEnum></StateVar>"
    )


def table(var: str, parents: str, *entries: tuple[str, str], tag: str = "CondProb") -> str:
    value = "ProbTable" if tag == "CondProb" else "ValueTable"
    rows = "".join(
        f"<Entry><Instance>{place}</Instance><{value}>{text}</{value}></Entry>"
        for place, text in entries
    )
    return f"<{tag}><Var>{var}</Var><Parent>{parents}</Parent><Parameter>{rows}</Parameter></{tag}>"


def listed(array: np.ndarray) -> str:
    return " ".join(map(repr, array.ravel().tolist()))


def test_several_variables_become_their_product(tmp_path: Path) -> None:
    """Two states, one of which follows the other within a step, two theories, a joint reward."""
    rng = np.random.default_rng(1)
    x = rng.dirichlet(np.ones(2), size=(2, 2, 2))  # (a, m, x, x')
    y = rng.dirichlet(np.ones(3), size=(2, 2, 3))  # (x', k, y, y')
    r = rng.normal(size=(2, 3, 2, 2))  # (m, y, a, x')
    first = rng.dirichlet(np.ones(3), size=2)  # (x, y)
    text = factored(
        table("mn", "m", ("- -", "identity")) + table("kn", "k", ("- -", "identity"))
        + table("xn", "a m x", ("- - - -", listed(x)))
        + table("yn", "xn k y", ("- - - -", listed(y))),
        state("m", False, "p q") + state("x") + state("k", False, "i j")
        + state("y", True, "lo mid hi"),
        table("m", "null", ("-", "0.25 0.75")) + table("k", "m", ("- -", "1 0 0.5 0.5"))
        + table("x", "null", ("-", "uniform")) + table("y", "x", ("- -", listed(first))),
        reward=table("r", "m y a xn", ("- - - -", listed(r)), tag="Func"),
    )  # fmt: skip
    read = mmdp.load(written(tmp_path, text))
    expected = np.einsum("amxz,zkyw->mkxyazw", x, y).reshape(4, 6, 2, 6)
    np.testing.assert_allclose(read.transitions, expected, atol=1e-15)
    joint = np.einsum("myaz,zkyw,amxz->mkxya", r, y, x).reshape(4, 6, 2)
    np.testing.assert_allclose(read.rewards, joint, atol=1e-12)
    np.testing.assert_allclose(read.weights, [0.25, 0, 0.375, 0.375])
    np.testing.assert_allclose(read.initial, (0.5 * first).ravel())
    assert read.state_labels == ("0/lo", "0/mid", "0/hi", "1/lo", "1/mid", "1/hi")
    assert read.model_labels == ("p/i", "p/j", "q/i", "q/j")


def test_hidden_variables_that_change_make_a_chain(tmp_path: Path) -> None:
    """m stays, k changes as m says, h is drawn anew at every step; a reward comes after it."""
    rng = np.random.default_rng(3)
    k = rng.dirichlet(np.ones(3), size=(2, 3))  # (m, k, k')
    h = rng.dirichlet(np.ones(2), size=3)  # (k', h')
    x = rng.dirichlet(np.ones(2), size=(2, 3, 2))  # (a, k, x, x')
    r = rng.normal(size=(3, 2, 2))  # (k', h, x')
    text = factored(
        table("mn", "m", ("- -", "identity")) + table("kn", "a mn k", ("* - - -", listed(k)))
        + table("hn", "kn", ("- -", listed(h)))
        + table("xn", "a k kn x", *((f"- - {i} - -", listed(x)) for i in "123")),
        state("m", False) + state("x") + state("k", False, "1 2 3") + state("h", False),
        table("m", "null", ("-", "uniform")) + table("x", "null", ("1", "1"))
        + table("k", "m", ("* -", "0.5 0.5 0")) + table("h", "null", ("0", "1")),
        reward=table("r", "kn h xn", ("- - -", listed(r)), tag="Func"),
    )  # fmt: skip
    read = mmdp.load(written(tmp_path, text))
    chain = np.einsum("mn,mkl,lj,h->mkhnlj", np.eye(2), k, h, np.ones(2)).reshape(12, 12)
    np.testing.assert_allclose(read.model_transitions, chain, atol=1e-15)
    each = np.broadcast_to(x.transpose(1, 2, 0, 3)[None, :, None], (2, 3, 2, 2, 2, 2))
    np.testing.assert_allclose(read.transitions, each.reshape(12, 2, 2, 2), atol=1e-15)
    earned = np.einsum("mkl,lhz,akxz->mkhxa", k, r, x).reshape(12, 2, 2)
    np.testing.assert_allclose(read.rewards, earned, atol=1e-12)


def test_a_drifting_model_reads_back_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    model = mmdp.MMDP(
        rng.dirichlet(np.ones(3), (3, 3, 2)), rng.normal(size=(3, 3, 2)), discount=0.9,
        initial=[0.5, 0.5, 0], weights=[0, 0.4, 0.6],
        model_transitions=rng.dirichlet(np.ones(3), 3),
    )  # fmt: skip
    ecosystem.save_pomdp(model, tmp_path / "m.pomdpx")
    read = mmdp.load(tmp_path / "m.pomdpx")
    assert read.fingerprint() == model.fingerprint()


def test_an_observation_may_show_the_state_and_be_rewarded(tmp_path: Path) -> None:
    """The state is not marked as seen, but an observation always tells it; another is a coin."""
    p = np.random.default_rng(2).dirichlet(np.ones(2), size=(2, 2, 2))  # (a, m, x, x')
    text = factored(
        table("mn", "m", ("- -", "identity")) + table("xn", "a m x", ("- - - -", listed(p))),
        state("m", False) + state("x", False)
        + "<ObsVar vname='z'><NumValues>3</NumValues></ObsVar>"
        "<ObsVar vname='coin'><ValueEnum>head tail</ValueEnum></ObsVar>",
        table("m", "null", ("-", "uniform")) + table("x", "null", ("1", "1")),
        table("z", "a xn", ("* 0 -", "0.5 0 0.5"), ("* 1 -", "0 1 0"))
        + table("coin", "xn", ("0 -", "0.25 0.75"), ("1 -", "0 1")),
        table("r", "coin", ("head", "8"), tag="Func"),
    )  # fmt: skip
    read = mmdp.load(written(tmp_path, text))
    np.testing.assert_allclose(read.transitions, p.transpose(1, 2, 0, 3), atol=1e-15)
    np.testing.assert_allclose(read.rewards, 2.0 * read.transitions[..., 0], atol=1e-12)
    np.testing.assert_array_equal(read.initial, [0, 1])


def test_one_model_is_an_mdp(tmp_path: Path) -> None:
    text = factored(table("xn", "x", ("- -", "identity")), state("x"),
                    table("x", "null", ("-", "uniform")))  # fmt: skip
    read = mmdp.load(written(tmp_path, text), discount=0.5, initial={"1": 1.0})
    assert (read.n_models, read.discount, read.initial.tolist()) == (1, 0.5, [0, 1])


# ---------------------------------------------------------------------- not an MMDP
M, X = state("m", False), state("x")
KEEP = table("mn", "m", ("- -", "identity"))
MOVE = table("xn", "m x", ("* * -", "uniform"))
START = table("m", "null", ("-", "uniform")) + table("x", "null", ("0", "1"))
LOOK = "<ObsVar vname='z'><ValueEnum>k l</ValueEnum></ObsVar>"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (factored(table("mn", "a m", ("* - -", "identity"), ("u - -", ".9 .1 0 1")) + MOVE, M + X,
                  START), "variable 'm' is hidden and changes with 'a'; in an MMDP the model"),
        (factored(table("mn", "x m", ("* - -", "identity"), ("0 - -", ".9 .1 0 1")) + MOVE, M + X,
                  START), "variable 'm' is hidden and changes with 'x'"),
        (factored(table("mn", "m", ("- -", ".9 .1 0 1")) + table("xn", "mn x", ("* * -", "uniform"),
                  ("0 0 -", "1 0")), M + X, START),
         "state 'x' depends on the hidden 'm' after its change ('mn')"),
        (factored(table("mn", "m", ("- -", ".9 .1 0 1")) + MOVE, M + X + LOOK, START,
                  table("z", "mn", ("- -", ".8 .2 .2 .8"))),
         "state 'm' changes and is observed with errors (by 'z')"),
        (factored(KEEP + MOVE, M + X + LOOK, START, table("z", "mn", ("- -", ".8 .2 .2 .8"))),
         "the observation 'z' depends on the hidden 'm'"),
        (factored(KEEP + MOVE, M + state("x", False) + LOOK, START,
                  table("z", "xn", ("- -", ".8 .2 .2 .8"))),
         "state 'x' changes and is observed with errors (by 'z')"),
        (factored(KEEP + table("xn", "x", ("- -", "identity")), M + state("x", False) + LOOK,
                  START, table("z", "xn", ("* -", "uniform"))), "no state is seen"),
    ],
)  # fmt: skip
def test_what_is_no_mmdp_is_refused_with_the_reason(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(mmdp.InputError) as caught:
        mmdp.load(written(tmp_path, text))
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


# ---------------------------------------------------------------------- bad files
WRONG = [
    ("</Description>", "", "line 56: not well-formed XML (mismatched tag)"),
    ("<Discount>  0.95", "<Discount>  high", "line 6: <Discount> is 'high', not a number"),
    ("<Discount>  0.95", "<Discount>  1.5", "discount must be"),
    ("Discount>", "discount>", "line 3: <pomdpx> has no element 'Discount'"),
    ("pomdpx", "pomdp", "line 3: the root is <pomdp>, not <pomdpx>"),
    ("ActionVar", "Actionvar", "line 14: unknown element 'Actionvar' (did you mean 'ActionVar'?)"),
    ('vname="do"', "", "line 14: <ActionVar> needs vname, a name without spaces"),
    ('vname="do"', 'vname="birds_0"', "line 14: the name 'birds_0' is given twice"),
    ('vnamePrev="birds_0"', 'vnamePrev="birds_1"', "line 9: vnamePrev and vnameCurr are both"),
    ('"true"', '"yes"', "line 9: fullyObs is 'yes'; write true or false"),
    ("wait burn graze<", "wait burn wait<", "line 14: value 'wait' is given twice"),
    ("wait burn graze<", "<", "line 14: <ValueEnum> is empty"),
    ("wait burn graze<", "wait * graze<", "line 14: '*' and '-' stand for all values"),
    ("<NumValues> 2 ", "<NumValues> 2.5 ", "line 12: <NumValues> is 2.5; give a whole number"),
    ("<NumValues> 2 ", "<NumValues> 9999999 ", "give a whole number from 1 to 1,000,000"),
    ("<Var> birds_0 ", "<Var> birds_1 ", "line 20: <Var> is 'birds_1' (did you mean 'birds_0'?)"),
    ("<Var> birds_0 ", "<Var> theory_0 ", "line 20: 'theory_0' is given twice"),
    ("<Parent> null ", "<Parent> do ", "line 20: <Parent> names 'do', which 'birds_0' in"),
    ("<Parent>do theory_0<", "<Parent>do do<", "line 24: <Parent> names a variable twice"),
    ("type = \"TBL\"", "type='DD'", "line 24: type 'DD' is not read; write a table (TBL)"),
    ("<Instance>*  wait - -", "<Instance>wait - -", "line 34: <Instance> has 3 words; expected 4: "
     "theory_0 do birds_0 birds_1"),
    ("<Instance>*  wait - -", "<Instance>*  wiat - -", "line 34: 'wiat' (did you mean 'wait'?) is "
     "no value of 'do'"),
    (".7 .3 0.", ".7 .3", "line 35: 8 numbers for <ProbTable>; expected 9"),
    (".7 .3 0.", ".7 .3 x", "line 35: <ProbTable> is 'x', not a number"),
    (".7 .3 0.", ".7 .3 nan", "line 35: <ProbTable> is 'nan', not a number"),
    (".7 .3 0.", "1.3 -.3 0.", "line 35: negative probability -0.3"),
    (".7 .3 0.", ".7 .2 0.", "line 27: <CondProb> of 'birds_1' for s0 wait few: probabilities sum "
     "to 0.9, not 1; correct them, or pass normalize=True"),
    ("* - -</Instance><ProbTable>identity", "* * -</Instance><ProbTable>identity",
     "line 25: identity needs two '-'"),
    ("<ProbTable>0 0 1<", "<ProbTable>0 0 1</ProbTable><ProbTable>1<",
     "line 39: <Entry> has 2 elements 'ProbTable'; it needs one"),
    ("<Var>money", "<Var>honey", "line 52: <Var> is 'honey' (did you mean 'money'?)"),
    ("ValueTable>-3", "ValueTable>-3 1", "line 53: 2 numbers for <ValueTable>; expected 1"),
    ("ObsFunction", "Obs", "line 3: <pomdpx> has no element 'ObsFunction'"),
    ("<Func><Var>money", "<Fun><Var>money", "not well-formed XML"),
    ('encoding="ISO-8859-1"', 'encoding="klingon"', "(unknown encoding: klingon); save it as"),
    (LOOSE, "", "line 1: not well-formed XML (no element found)"),
    (LOOSE, "idstatefrom,idaction\n1,2", "line 1: not well-formed XML"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "told"), WRONG, ids=range(len(WRONG)))
def test_a_bad_file_is_one_clear_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in LOOSE
    file = written(tmp_path, LOOSE.replace(old, new))
    done = run("info", file)
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith(f"mmdp: {file}")
    assert told.replace("pass normalize=True", "pass --normalize") in done.err


def test_normalize_scales_the_rows(tmp_path: Path) -> None:
    read = mmdp.load(written(tmp_path, LOOSE.replace(".7 .3 0.", "1.4 .6 0")), normalize=True)
    assert_same(read, reserve())


def test_sizes_that_cannot_be_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    text = LOOSE.replace("<NumValues> 2 ", "<NumValues> 900000 ")
    with pytest.raises(mmdp.InputError, match="a table of 3 x 900000 x 900000 would take 19.4 TB"):
        mmdp.load(written(tmp_path, text))
