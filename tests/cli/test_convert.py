"""mmdp convert."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.core.testing import make_random_model
from tests.cli.calls import run, run_refused


def test_models_in_every_format_are_the_same(folder: Path, tmp_path: Path) -> None:
    before = mmdp.load(folder)
    data = folder
    for out, options in (
        ("models.npz", ()),
        ("parts", ("--shards", 2)),
        ("one.parquet", ()),
        ("plain", ()),
        ("models.pomdpx", ()),
    ):
        assert run("convert", data, "--out", tmp_path / out, *options).code == 0
        data = tmp_path / out
        np.testing.assert_array_equal(mmdp.load(data).transitions, before.transitions)
        np.testing.assert_allclose(mmdp.load(data).weights, before.weights, rtol=1e-14)
    assert len(list((tmp_path / "parts").glob("part-*.npz"))) == 2


def test_test_models_are_converted_or_named(tmp_path: Path) -> None:
    code = "import mmdp\nboth = mmdp.domains.load_published('hiv')\n"
    (tmp_path / "hiv.py").write_text(code)
    train, test = mmdp.domains.load_published("hiv")
    for data in (tmp_path / "hiv.py:both", tmp_path / "one"):
        out = tmp_path / ("two" if data.name == "one" else "one")
        result = run("convert", data, "--out", out)
        assert "test models" in result.out
        assert not result.err
        for split, model in (("train", train), ("test", test)):
            assert mmdp.load(out, split=split).fingerprint() == model.fingerprint()
        for options in (("--out", tmp_path / "a.npz"), ("--out", tmp_path / "p", "--shards", 2)):
            assert "--split test writes the others" in run("convert", data, *options).err
        result = run("convert", data, "--out", tmp_path / "b.npz", "--split", "test")
        assert not result.err
        assert mmdp.load(tmp_path / "b.npz").n_models == test.n_models
    assert not run("convert", tmp_path / "one/training.csv", "--out", tmp_path / "three").err
    assert not (tmp_path / "three/test.csv").exists()


def test_a_pomdp_file_may_have_a_step_more(folder: Path, tmp_path: Path) -> None:
    spread, one = mmdp.load(folder), tmp_path / "one.npz"
    mmdp.save(spread.replace(initial=np.eye(3)[1]), one)
    for data, steps in ((folder, 1), (one, 0)):
        assert run("convert", data, "--out", tmp_path / "m.pomdp").code == 0
        model_before, model_after = mmdp.load(data), mmdp.load(tmp_path / "m.pomdp")
        values = [mmdp.solve(x, n).value for x, n in ((model_before, 4), (model_after, 4 + steps))]
        assert values[1] == pytest.approx(model_before.discount**steps * values[0])


def test_what_cannot_be_written_is_refused(folder: Path, tmp_path: Path) -> None:
    message = run_refused("convert", folder, "--out", tmp_path / "x", "--shards", 99)
    assert "models cannot be divided into 99 parts" in message
    assert "unknown suffix '.xls'" in run_refused("convert", folder, "--out", tmp_path / "a.xls")


def test_the_net_benefit_becomes_the_reward(tmp_path: Path) -> None:
    model = make_random_model(1, n_models=3, n_states=2, n_actions=2, horizon=0, discount=0.9)
    model = model.replace(rewards=np.zeros((2, 2)), terminal=None)
    mmdp.save(model, tmp_path / "models")
    effects, costs = np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([[0.0, 30.0], [5.0, 10.0]])
    rows = [f"{s},{a},{effects[s, a]},{costs[s, a]}" for s in (0, 1) for a in (0, 1)]
    file = tmp_path / "effects.csv"
    file.write_text("\n".join(["state,action,effect,cost", *rows]))
    command = ("convert", tmp_path / "models", "--effects", file, "--wtp", 20)
    assert run(*command, "--out", tmp_path / "plain.npz").code == 0
    np.testing.assert_allclose(mmdp.load(tmp_path / "plain.npz").rewards[0], 20 * effects - costs)
    rates = ("--effect-rate", "0", "--cost-rate", "0.25", "-T", 3)
    assert run(*command, *rates, "--out", tmp_path / "priced.npz").code == 0
    converted = mmdp.load(tmp_path / "priced.npz")
    for t in range(3):
        np.testing.assert_allclose(converted.rewards[t, 2], 20 * effects - costs / 1.25**t)
    later = [f"{t},{row}" for t in range(3) for row in rows]
    later[-1] = "2,1,1,7.0,10.0"  # at the last time this is worth more
    file.write_text("\n".join(["time,state,action,effect,cost", *later]))
    assert run(*command, *rates, "--out", tmp_path / "priced.npz").code == 0
    timed = mmdp.load(tmp_path / "priced.npz").rewards - converted.rewards
    np.testing.assert_allclose(timed[2, :, 1, 1], 20 * (7 - 1))
    timed[2, :, 1, 1] = 0
    np.testing.assert_allclose(timed, 0, atol=1e-12)
    message = run_refused(*command, *rates[:4], "-T", 5, "--out", tmp_path / "x.npz")
    assert "3 times, but the horizon is 5" in message
    file.write_text("\n".join(["time,state,action,effect,cost", *later[4:]]))
    assert "time 0, state '0', action '0' is not given" in run_refused(
        *command, "--out", tmp_path / "x"
    )
    once = [f"{row}," for row in rows] + ["0,1,-2,40,1"]  # on the way from 0 to 1, once
    file.write_text("\n".join(["state,action,effect,cost,next_state", *once]))
    options = ("-T", 3, "--within-cycle", "1,2,4", "--cost-rate", "0.25")
    assert run(*command, *options, "--out", tmp_path / "priced.npz").code == 0
    probs, weights = model.transitions[:, 0, 1, 1], np.array([1.0, 2.0, 4.0])
    rewards = mmdp.load(tmp_path / "priced.npz").rewards
    for t in range(3):  # effects have the discount of the models, .9
        expected_rewards = weights[t] * (20 * 0.9**t * effects - costs / 1.25**t)
        np.testing.assert_allclose(rewards[t, :, 1], np.tile(expected_rewards[1], (3, 1)))
        last = 0.0 if t == 2 else weights[t + 1] * (-2 * 20 * 0.9 ** (t + 1) - 40 / 1.25 ** (t + 1))
        np.testing.assert_allclose(rewards[t, :, 0, 1], expected_rewards[0, 1] + probs * last)
    file.write_text("\n".join(["state,action,effect,cost,next_state", *once, once[-1]]))
    message = run_refused(*command, "--out", tmp_path / "x.npz")
    assert "line 7: this combination of labels is given twice" in message
    file.write_text("\n".join(["state,action,effect,cost", *rows]))
    assert "give the horizon" in run_refused(*command, *rates[:4], "--out", tmp_path / "x.npz")
    assert "belong together" in run_refused(*command[:4], "--out", tmp_path / "x.npz")
    assert "horizon must be" in run_refused(*command, "-T", "inf", "--out", tmp_path / "x.npz")
    assert "numbers of at least 0" in run_refused(*command[:-1], -5, "--out", tmp_path / "x.npz")
    assert "give --effects too" in run_refused(*command[:2], "-T", 3, "--out", tmp_path / "x.npz")
    page = ("report", tmp_path / "models", "-T", 3, "--effects", file, "--wtp-grid", "20")
    message = run_refused(*page, "--out", tmp_path / "report.html")
    assert "rewards of the models are all 0" in message
    assert "mmdp convert --effects FILE --wtp K" in message
