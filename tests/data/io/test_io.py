"""Files: what is saved comes back, and files of others are read as they say."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import mmdp
from mmdp.data import io
from tests.cli.calls import run_refused

HEADER = "idstatefrom,idaction,idstateto,idoutcome,probability,reward\n"


def make_random_model(seed: int = 0, horizon: int | None = None, **options: Any) -> mmdp.MMDP:
    """3 models, 4 states, 2 actions; about half of the transitions are possible."""
    rng = np.random.default_rng(seed)
    shape = (3, 4, 2, 4) if horizon is None else (horizon, 3, 4, 2, 4)
    p = rng.random(shape) * (rng.random((4, 2, 4)) < 0.5)
    p[..., 0] += 0.1
    p /= p.sum(axis=-1, keepdims=True)
    if options.pop("has_next_rewards", False):
        options["next_rewards"] = rng.normal(size=shape)
    else:
        options["rewards"] = rng.normal(size=shape[:-1])
    return mmdp.MMDP(p, **options)


def make_full_model() -> mmdp.MMDP:
    rng = np.random.default_rng(1)
    return make_random_model(
        2,
        initial=[0.1, 0.2, 0.7, 0.0],
        weights=[0.2, 0.3, 0.5],
        discount=0.93,
        terminal=rng.normal(size=(3, 4)),
        states=["a", "b, with comma", 'c "quoted"', "d"],
        actions=["wait", "naïve"],
        models=["low", "mid", "high"],
        parameters={"rate": rng.random(3), "cost of x": rng.random(3)},
        name="full",
        citation="a paper",
    )


def make_masked_model() -> mmdp.MMDP:
    """Action 1 is allowed in two states, action 2 nowhere."""
    p = np.zeros((2, 3, 3, 3))
    p[:, :, 0] = [0.25, 0.75, 0.0]
    p[:, :2, 1] = [0.1, 0.2, 0.7]
    p[1, 2, 0] = [0.5, 0.25, 0.25]
    return mmdp.MMDP(p, np.arange(18.0).reshape(2, 3, 3), discount=0.5)


def make_missing_model() -> mmdp.MMDP:
    """Action 1 of state 0 is missing in model 1, and pays there nevertheless."""
    p = np.ones((2, 1, 2, 1))
    p[1, 0, 1] = 0.0
    return mmdp.MMDP(p, [[[1.0, 2.0]], [[3.0, 4.0]]], allow_missing=True)


def make_sparse_model() -> mmdp.MMDP:
    chain = scipy.sparse.diags_array([1.0] * 60, offsets=1, shape=(61, 61)).tolil()
    chain[60, 0] = 1.0
    stay = scipy.sparse.eye_array(61)
    return mmdp.MMDP([[chain.tocsr(), stay], [stay, chain.tocsr()]], np.ones((61, 2)))


MODEL_FACTORIES = {
    "plain": make_random_model,
    "full": make_full_model,
    "per next state": lambda: make_random_model(3, has_next_rewards=True, initial=[1, 0, 0, 0]),
    "time-varying": lambda: make_random_model(4, horizon=3),
    "time-varying per next": lambda: make_random_model(5, horizon=3, has_next_rewards=True),
    "horizon of one": lambda: make_random_model(6, horizon=1),
    "masked": make_masked_model,
    "missing": make_missing_model,
    "sparse": make_sparse_model,
    "shared terminal": lambda: make_random_model(7, terminal=[1.0, 0.0, 0.1, 1 / 3]),
    "dense with zeros": lambda: make_random_model(8, storage="dense"),
    "only rewards vary": lambda: make_random_model(9).replace(
        rewards=np.random.default_rng(0).normal(size=(5, 3, 4, 2))
    ),
    "negative zeros": lambda: mmdp.MMDP(
        [[[[1.0, -0.0]], [[-0.0, 1.0]]], [[[0.5, 0.5]], [[0.5, 0.5]]]],
        [[-0.0], [1.0]],
        initial=[1.0, -0.0],
        terminal=[-0.0, -0.0],
    ),
}


def assert_same(a: mmdp.MMDP, b: mmdp.MMDP, *, exact: bool = False) -> None:
    """Every public field, number for number; a CSV may spread a time-constant axis."""
    for name in ("transitions", "rewards", "initial", "weights", "allowed", "terminal"):
        x, y = getattr(a, name), getattr(b, name)
        if exact:
            np.testing.assert_array_equal(x, y, err_msg=name, strict=True)
        else:
            assert (x == y).all(), name
    assert a.fingerprint() == b.fingerprint()
    assert a.has_next_rewards == b.has_next_rewards
    if a.has_next_rewards:
        assert (a.next_rewards == b.next_rewards).all()
    for name in ("discount", "horizon", "has_initial", "has_labels"):
        assert getattr(a, name) == getattr(b, name), name
    for name in ("state_labels", "action_labels", "model_labels"):
        assert getattr(a, name) == getattr(b, name), name
    assert a.parameters.keys() == b.parameters.keys()
    for name, values in a.parameters.items():
        np.testing.assert_array_equal(values, b.parameters[name])


@pytest.mark.parametrize("case", MODEL_FACTORIES)
@pytest.mark.parametrize("name", ["m.npz", "m.parquet", "m.csv", "folder"])
def test_saved_model_comes_back(tmp_path: Path, case: str, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    model = MODEL_FACTORIES[case]()
    mmdp.save(model, tmp_path / name)
    loaded = mmdp.load(tmp_path / name)
    assert_same(model, loaded, exact=name == "m.npz")
    if name in ("m.npz", "m.parquet"):
        assert (loaded.name, loaded.citation) == (model.name, model.citation)
    if name == "m.npz":
        assert loaded.storage == model.storage


@pytest.mark.parametrize("case", [k for k in MODEL_FACTORIES if k != "missing"])
def test_frame_comes_back(case: str) -> None:
    model = MODEL_FACTORIES[case]()
    frame = io.to_frame(model)
    loaded = io.from_frame(frame, discount=model.discount)
    used = sorted(set(frame["action"])) if not model.has_labels["action"] else model.action_labels
    kept_actions = [model.action_labels.index(str(a)) for a in used]
    assert (loaded.rewards == model.rewards[..., kept_actions]).all()
    assert (loaded.transitions == model.transitions[..., kept_actions, :]).all()
    assert loaded.state_labels == model.state_labels


def test_npz_holds_no_pickle_and_can_change_storage(tmp_path: Path) -> None:
    model = make_full_model()
    mmdp.save(model, tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz", allow_pickle=False) as arrays:
        assert json.loads(str(arrays["fields"]))["states"] == list(model.state_labels)
        assert all(arrays[name].dtype.kind in "bifU" for name in arrays.files)
    for storage in ("dense", "sparse"):
        loaded = mmdp.load(tmp_path / "m.npz", storage=storage)
        assert loaded.storage == storage
        assert_same(model, loaded)


def test_train_and_test_share_a_folder(tmp_path: Path) -> None:
    train = make_full_model()
    test = train.subset([2, 0]).replace(terminal=None)
    mmdp.save(train, tmp_path / "d")
    mmdp.save(test, tmp_path / "d", split="test")
    assert_same(train, mmdp.load(tmp_path / "d"))
    assert_same(test, mmdp.load(tmp_path / "d", split="test"))
    assert mmdp.load(tmp_path / "d", split="test").model_labels == ("high", "low")


def test_published_layout_has_no_other_files(tmp_path: Path) -> None:
    train = make_random_model(initial=[1, 0, 0, 0], discount=0.9)
    mmdp.save(train, tmp_path / "d")
    mmdp.save(train.subset([0, 1]), tmp_path / "d", split="test")
    names = {x.name for x in (tmp_path / "d").iterdir()}
    assert names == {"training.csv", "test.csv", "initial.csv", "parameters.csv"}
    header = (tmp_path / "d" / "training.csv").read_text().splitlines()[0]
    assert header + "\n" == HEADER


def test_saving_again_leaves_nothing_stale(tmp_path: Path) -> None:
    mmdp.save(make_full_model(), tmp_path)
    plain = make_random_model()
    mmdp.save(plain, tmp_path)
    assert_same(plain, mmdp.load(tmp_path))
    mmdp.save(make_full_model(), tmp_path / "other.csv")
    assert_same(make_full_model(), mmdp.load(tmp_path / "other.csv"))
    assert_same(plain, mmdp.load(tmp_path))


def test_labels_that_repeat_the_ids_are_not_written(tmp_path: Path) -> None:
    """A folder used twice: labels of the first, then names that are the ids themselves."""
    labeled, plain = make_full_model(), make_random_model(states=range(4), actions=range(2))
    for split in ("train", "test"):
        mmdp.save(labeled, tmp_path, split=split)
        mmdp.save(plain, tmp_path, split=split)
        loaded = mmdp.load(tmp_path, split=split)
        assert loaded.state_labels == plain.state_labels
        assert not any(loaded.has_labels.values())
    assert (tmp_path / "labels.csv").read_text() == "kind,id,label\n"
    mmdp.save(plain, tmp_path / "new")
    assert not (tmp_path / "new" / "labels.csv").exists()


def test_floats_keep_every_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rewards = rng.integers(0, 2**63, 4000, dtype=np.uint64).view(np.float64)
    rewards = rewards[np.isfinite(rewards)]
    model = mmdp.MMDP(np.ones((len(rewards), 1, 1, 1)), rewards.reshape(-1, 1, 1))
    mmdp.save(model, tmp_path / "m.csv")
    assert (mmdp.load(tmp_path / "m.csv").rewards.ravel() == rewards).all()


@pytest.mark.parametrize(
    ("folder", "split", "shape"),
    [
        ("riverswim", "train", (100, 20, 2)),
        ("riverswim", "test", (700, 20, 2)),
        ("hiv", "train", (50, 4, 3)),
        ("hiv", "test", (50, 4, 3)),
        ("inventory", "true", (1, 21, 11)),
        ("population_small", "true", (1, 51, 5)),
    ],
)
def test_published_folders(
    paper_data: Path, tmp_path: Path, folder: str, split: str, shape: tuple[int, int, int]
) -> None:
    model = mmdp.load(paper_data / folder, split=split)
    assert (model.n_models, model.n_states, model.n_actions) == shape
    assert model.has_initial
    assert model.discount == (0.95 if folder == "inventory" else 0.9)
    names = {"train": "training", "test": "test", "true": "true"}
    dense, rewards = np.zeros((*shape, shape[1])), np.zeros(shape)
    with (paper_data / folder / f"{names[split]}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            ids = [int(row.get(k, 0)) for k in ("idoutcome", "idstatefrom", "idaction")]
            dense[(*ids, int(row["idstateto"]))] = float(row["probability"])
            rewards[tuple(ids)] += float(row["probability"]) * float(row["reward"])
    np.testing.assert_array_equal(model.transitions, dense)
    np.testing.assert_allclose(model.rewards, rewards, rtol=1e-12)
    compat = mmdp.load(paper_data / folder, split=split, compat="cadp")
    np.testing.assert_allclose(compat.transitions, dense, atol=1e-8)
    mmdp.save(model, tmp_path / "again")
    assert_same(model, mmdp.load(tmp_path / "again"))


def test_published_true_riverswim_needs_compat(paper_data: Path) -> None:
    with pytest.raises(mmdp.InputError, match=r"true.csv, line 42.*duplicates='last'"):
        mmdp.load(paper_data / "riverswim" / "true.csv")
    model = mmdp.load(paper_data / "riverswim" / "true.csv", compat="cadp")
    np.testing.assert_allclose(model.transitions.sum(axis=-1), 1.0)


# ---------------------------------------------------------------------- the relaxing options
def write_csv(folder: Path, rows: str, name: str = "training.csv", header: str = HEADER) -> Path:
    (folder / name).write_text(header + rows)
    return folder / name


def test_compat_against_strict(tmp_path: Path) -> None:
    """A file with every looseness the published code accepts."""
    rows = (
        "0,0,0,0,0.5,1\n0,0,0,0,0.2,3\n0,0,1,0,0.2,3\n0,1,1,0,1,2\n"
        "0,0,0,1,2,1\n1,0,1,0,1,0\n1,0,1,1,1,0\n2,0,2,0,1,0\n2,0,2,1,1,0\n"
    )
    path = write_csv(tmp_path, rows)
    with pytest.raises(mmdp.InputError, match="given again"):
        mmdp.load(path)
    with pytest.raises(mmdp.InputError, match=r"sum to 0\.4"):
        mmdp.load(path, duplicates="last")
    with pytest.raises(mmdp.InputError, match="has no transitions"):
        mmdp.load(path, duplicates="last", normalize=True)
    one_by_one = mmdp.load(path, duplicates="last", normalize=True, missing_actions="zero")
    compat = mmdp.load(path, compat="cadp")
    assert_same(one_by_one, compat)
    assert compat.transitions[0, 0, 0].tolist() == [0.5, 0.5, 0.0]
    assert compat.transitions[1, 0, 0].tolist() == [1.0, 0.0, 0.0]
    assert compat.rewards[:, 0].tolist() == [[3.0, 2.0], [1.0, 0.0]]
    assert compat.transitions[1, 0, 1].tolist() == [0.0, 0.0, 0.0]


def test_duplicates_sum_and_last(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "0,0,0,0,0.25,4\n0,0,0,0,0.75,8\n")
    summed = mmdp.load(path, duplicates="sum")
    assert summed.rewards.item() == 0.25 * 4 + 0.75 * 8
    assert summed.transitions.item() == 1.0
    path = write_csv(tmp_path, "0,0,0,0,0.25,4\n0,0,0,0,1,8\n")
    assert mmdp.load(path, duplicates="last").rewards.item() == 8.0


def test_dead_ends_absorb(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "0,0,0,0,0.5,1\n0,0,1,0,0.5,1\n")
    with pytest.raises(mmdp.InputError, match=r"state 1 has no action.*dead_ends='absorb'"):
        mmdp.load(path)
    model = mmdp.load(path, dead_ends="absorb")
    assert model.transitions[0, 1, 0].tolist() == [0.0, 1.0]
    value = mmdp.evaluate(model, mmdp.policies.MarkovPolicy(np.zeros((3, 2), dtype=int))).mean
    assert value == pytest.approx(0.5 * (1 + 0.5 + 0.25))


def test_ids_with_gaps_are_read_as_labels(tmp_path: Path) -> None:
    """As the documentation says: a table of pandas with text in place of the ids."""
    path = write_csv(tmp_path, "10,1,20,3,1,5\n20,1,10,3,1,0\n")
    names = ["idstatefrom", "idaction", "idstateto", "idoutcome"]
    model = io.from_frame(pd.read_csv(path, dtype=dict.fromkeys(names, str)), initial={"20": 1.0})
    assert model.state_labels == ("10", "20")
    assert model.action_labels == ("1",)
    assert model.model_labels == ("3",)
    assert model.initial.tolist() == [0.0, 1.0]


def test_tidy_csv_with_labels(tmp_path: Path) -> None:
    header = "model,state,action,next_state,probability,reward\n"
    rows = "lo,sick,treat,well,1.0,7\nlo,well,treat,well,1.0,1\nhi,sick,treat,sick,1,0\n"
    path = write_csv(tmp_path, rows + "hi,well,treat,sick,1,1\n", header=header)
    (tmp_path / "weights.csv").write_text("idoutcome,weight\nhi,0.25\nlo,0.75\n")
    model = mmdp.load(path)
    assert model.state_labels == ("sick", "well")
    assert model.model_labels == ("lo", "hi")
    assert model.weights.tolist() == [0.75, 0.25]
    assert model.transitions[:, 0, 0].tolist() == [[0, 1], [1, 0]]
    ids = rows.replace("sick", "0").replace("well", "1").replace("lo", "0").replace("hi", "1")
    ids = ids.replace("treat", "0") + "1,1,0,0,1,1\n"
    (tmp_path / "ids").mkdir()
    plain = mmdp.load(write_csv(tmp_path / "ids", ids, header=header))
    assert (plain.transitions == model.transitions).all()
    assert plain.has_labels == {"state": False, "action": False, "model": False}


def test_model_column_and_extra_columns(tmp_path: Path) -> None:
    header = "idstatefrom,idaction,idstateto,probability,reward,note\n"
    path = write_csv(tmp_path, "0,0,0,1,2,x\n", header=header)
    assert mmdp.load(path, extra_columns="ignore").rewards.tolist() == [[[2.0]]]
    with pytest.raises(mmdp.InputError, match=r"'note'.*extra_columns='ignore'"):
        mmdp.load(path)


def test_arguments_replace_what_files_say(tmp_path: Path) -> None:
    for name in ("m.csv", "m.npz"):
        mmdp.save(make_full_model(), tmp_path / name)
        model = mmdp.load(tmp_path / name, discount=0.5, initial={"d": 1.0}, name="mine")
        assert (model.discount, model.name) == (0.5, "mine")
        assert model.initial.tolist() == [0, 0, 0, 1]


def test_blank_lines_spaces_and_bom(tmp_path: Path) -> None:
    text = "\ufeff" + HEADER + "\n0, 0,0,0,1,5\n\n\n0,0,0,1.0,1,6\n"
    (tmp_path / "m.csv").write_text(text, encoding="utf-8")
    assert mmdp.load(tmp_path / "m.csv").rewards.ravel().tolist() == [5.0, 6.0]


def test_categories_give_the_order() -> None:
    frame = pd.DataFrame(
        {
            "state": ["b", "a"],
            "action": 0,
            "next_state": ["a", "a"],
            "probability": 1.0,
            "reward": [1.0, 2.0],
        }
    )
    assert io.from_frame(frame).state_labels == ("b", "a")
    order = pd.CategoricalDtype(["a", "unused", "b"])
    ordered = frame.astype({"state": order, "next_state": order})
    assert io.from_frame(ordered).state_labels == ("a", "b")
    assert io.from_frame(frame, states=["a", "b"]).rewards.ravel().tolist() == [2.0, 1.0]


def test_parquet_of_another_tool(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    mmdp.save(make_full_model(), tmp_path)
    columns = {role: name for name, role in io.PAPER_COLUMNS.items()}
    plain = make_full_model().replace(states=None, actions=None, models=None)
    io.to_frame(plain).rename(columns=columns).to_parquet(tmp_path / "other.parquet")
    assert_same(make_full_model(), mmdp.load(tmp_path / "other.parquet"))


# ---------------------------------------------------------------------- policies
def make_policies() -> dict[str, mmdp.policies.MarkovPolicy]:
    model = make_full_model()
    rng = np.random.default_rng(0)
    probs = rng.random((3, 4, 2))
    probs[0, 0] = [1.0, 0.0]
    probs /= probs.sum(axis=2, keepdims=True)
    return {
        "plain": mmdp.policies.MarkovPolicy([[0, 1, 2], [2, 1, 0]]),
        "labeled": mmdp.policies.MarkovPolicy.random(model, 5, seed=0),
        "randomized": mmdp.policies.MarkovPolicy(probabilities=probs),
        "randomized labeled": mmdp.policies.MarkovPolicy.for_model(model, probabilities=probs),
    }


@pytest.mark.parametrize("case", ["plain", "labeled", "randomized", "randomized labeled"])
@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_saved_policy_comes_back(tmp_path: Path, case: str, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    policy, path = make_policies()[case], tmp_path / f"p{suffix}"
    mmdp.save_policy(policy, path)
    loaded_policies = [mmdp.load_policy(path)]
    if "labeled" in case:
        loaded_policies.append(mmdp.load_policy(path, make_full_model()))
    for loaded in loaded_policies:
        assert (loaded.table == policy.table).all()
        assert loaded.is_deterministic == policy.is_deterministic
        assert loaded.state_labels == policy.state_labels
        assert loaded.action_labels == policy.action_labels


def test_policy_labels_follow_the_model(tmp_path: Path) -> None:
    model = make_full_model()
    text = "time,state,action\n" + "".join(
        f'0,"{label.replace(chr(34), chr(34) * 2)}",naïve\n' for label in model.state_labels[::-1]
    )
    (tmp_path / "p.csv").write_text(text, encoding="utf-8")
    assert mmdp.load_policy(tmp_path / "p.csv", model).actions.tolist() == [[1, 1, 1, 1]]
    reordered = model.replace(actions=["naïve", "wait"])
    assert mmdp.load_policy(tmp_path / "p.csv", reordered).actions.tolist() == [[0, 0, 0, 0]]


def test_policy_json_is_plain(tmp_path: Path) -> None:
    mmdp.save_policy(make_policies()["labeled"], tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["policy"] == make_policies()["labeled"].actions.tolist()
    assert document["states"] == list(make_full_model().state_labels)


def test_policy_with_labels_for_a_model_without(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("time,state,action\n0,up,0\n0,down,0\n")
    with pytest.raises(mmdp.InputError, match="line 2: state 'up' is a label .* load it with"):
        mmdp.load_policy(tmp_path / "p.csv")
    with pytest.raises(mmdp.InputError, match="give ids, as the model has no labels of states"):
        mmdp.load_policy(tmp_path / "p.csv", make_random_model())


@pytest.mark.parametrize(
    "document",
    [{"policy": [[0, 1], [1]]}, {"policy": [0, [1]]}, {"probabilities": [[[0.5, 0.5], [1.0]]]}],
)
def test_ragged_policy_json_is_refused(tmp_path: Path, document: Any) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"format": "mmdp-policy-1", **document}))
    with pytest.raises(mmdp.InputError) as error_info:
        mmdp.load_policy(path)
    message = str(error_info.value)
    assert message.startswith(f"{path}: ")
    assert "must be" in message
    assert "\n" not in message


def test_a_split_of_a_file_is_refused(tmp_path: Path) -> None:
    """The file would be read whatever the split says."""
    for name in ("training.csv", "test.csv", "m.npz"):
        mmdp.save(make_random_model(), tmp_path / name)
        for split in ("test", "true"):
            with pytest.raises(
                mmdp.InputError, match=f"{name}: is a file, but '{split}'.*leave out split="
            ):
                mmdp.load(tmp_path / name, split=split)
        assert_same(mmdp.load(tmp_path / name), make_random_model())


def test_write_atomic_keeps_the_suffix(tmp_path: Path) -> None:
    suffixes: list[str] = []

    def write_content(path: Path) -> None:
        suffixes.append(path.suffix)
        path.write_bytes(b"new")

    io.write_atomic(tmp_path / "a.png", write_content)
    assert suffixes == [".png"]
    assert [(x.name, x.read_bytes()) for x in tmp_path.iterdir()] == [("a.png", b"new")]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("state,action,next_state,probability,reward\n0,0,0,1,0\n")
    (tmp_path / "draws.csv").write_text("p,q\n0.1,0.2\n")
    with pytest.raises(mmdp.InputError) as error:
        mmdp.load(file)
    message = "no column 'model'; add it, or leave the file unread with sidecars=False"
    assert str(error.value) == f"{tmp_path / 'draws.csv'}: {message}"
    assert "leave the file unread with --load-option sidecars=false\n" in run_refused("info", file)
    (tmp_path / "draws.csv").write_text("model,p\n0,0.1\n")
    assert mmdp.load(file).parameters["p"].tolist() == [0.1]
    file.write_text("state,action,next_state,probability\n0,0,0,1\n")
    with pytest.raises(mmdp.InputError, match="no column 'reward'; add it, with 0 in every row if"):
        mmdp.load(file)


@pytest.mark.parametrize("names", [["model"], ["idoutcome"], ["p", "model", "idstate", "value"]])
@pytest.mark.parametrize("target", ["folder", "m.csv", "m.npz", "m.parquet"])
def test_parameters_named_as_columns_come_back(
    tmp_path: Path, names: list[str], target: str
) -> None:
    if target.endswith("parquet"):
        pytest.importorskip("pyarrow")
    parameters = {name: np.array([2.0, 0.0, 1.0]) + i for i, name in enumerate(names)}
    model = mmdp.MMDP(np.ones((3, 1, 1, 1)), [[[1.0]], [[2.0]], [[3.0]]], parameters=parameters)
    mmdp.save(model, tmp_path / target)
    loaded = mmdp.load(tmp_path / target).parameters
    assert list(loaded) == names
    for name in names:
        np.testing.assert_array_equal(loaded[name], parameters[name])


@pytest.mark.parametrize("names", [["model", "idoutcome"], ["a", " a"]])
def test_parameters_that_a_table_cannot_tell_apart_are_refused(
    tmp_path: Path, names: list[str]
) -> None:
    model = mmdp.MMDP(np.ones((2, 1, 1, 1)), [[1.0]], parameters={x: [0.0, 1.0] for x in names})
    with pytest.raises(mmdp.InputError, match=r"two parameters.*save as \.npz"):
        mmdp.save(model, tmp_path / "models")
    assert list(tmp_path.iterdir()) == []
    mmdp.save(model, tmp_path / "m.npz")
    assert list(mmdp.load(tmp_path / "m.npz").parameters) == names


# ---------------------------------------------------------------------- labels of times
TIME_LABELS = [
    {"age": range(40, 43)},
    {"week": ["W05", "W06", "W07"]},
    ["Mon", "Tue", "Wed"],
    {"year, AD": [2024.5, 2025.5]},
    {"month": ["01", "02", "03"]},
    range(3),
    None,
    {" day ": ["", "nan", 'a"b,\nc']},
]


@pytest.mark.parametrize("name", ["m.npz", "m.parquet", "m.csv", "folder"])
@pytest.mark.parametrize("is_time_varying", [False, True])
def test_labels_of_times_and_the_unit_come_back(
    tmp_path: Path, name: str, is_time_varying: bool
) -> None:
    base = mmdp.MMDP([[[[1.0]]]] * 2, np.arange(6.0).reshape(3, 2, 1, 1))
    base = base if is_time_varying else base.truncate_before(2).replace(rewards=[[1.0]])
    for i, time_labels in enumerate(TIME_LABELS):
        model = base.replace(time_labels=time_labels, unit=("$", "ml", None)[i % 3])
        (tmp_path / str(i)).mkdir()
        mmdp.save(model, tmp_path / str(i) / name)
        loaded = mmdp.load(tmp_path / str(i) / name)
        assert (loaded.time_labels, loaded.unit) == (model.time_labels, model.unit)
        assert loaded.time_labels.get_labels(3) == [
            str(x) for x in _first_three_labels(time_labels)
        ]
    assert base.replace(time_labels=TIME_LABELS[0]).time_labels.get_labels(5)[3:] == [
        "43",
        "44",
    ]  # ages go on
    assert base.replace(time_labels=TIME_LABELS[1]).time_labels.get_labels(4)[3:] == ["3"]


def _first_three_labels(time_labels: Any) -> list[object]:
    labels = list(
        next(iter(time_labels.values()))
        if isinstance(time_labels, dict)
        else time_labels or range(3)
    )
    return labels if len(labels) == 3 else [*labels, labels[-1] + 1]


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_policies_keep_the_labels_of_their_times(tmp_path: Path, suffix: str) -> None:
    model = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[0.0, 1.0]])
    node_transitions, file = np.zeros((3, 1, 2, 1), int), tmp_path / f"policy{suffix}"
    for time_labels in TIME_LABELS:
        labeled = model.replace(time_labels=time_labels)
        expected: Any = labeled.time_labels
        for policy in (
            mmdp.policies.MarkovPolicy([[0], [1], [0]], time_labels=time_labels),
            mmdp.policies.MemoryPolicy([[[0, 1]]] * 3, node_transitions, time_labels=time_labels),
        ):
            mmdp.save_policy(policy, file)
            loaded = mmdp.load_policy(file)
            assert loaded == policy
            assert (loaded.time_labels.name, loaded.time_labels.get_labels(3)) == (
                expected.name,
                expected.get_labels(3),
            )
            assert (
                mmdp.load_policy(file, labeled).time_labels == expected
            )  # those of the model count
            assert mmdp.load_policy(file, model).time_labels == mmdp.core.text.TimeLabels()


def test_times_csv_says_what_is_wrong(tmp_path: Path) -> None:
    mmdp.save(mmdp.MMDP([[[[1.0]]]], [[1.0]]), tmp_path / "f")
    for text, problem in {
        "time,age\n0,40\n2,42\n": "no label for time 1",
        "time,age\n0,40\n0,41\n": "this time is given twice",
        "time\n0\n": "expected time and a column of labels, such as time,age",
        "t,age\n0,40\n": "no column 'time'",
        "time,state\n0,40\n": "time_labels cannot be called 'state'",
    }.items():
        (tmp_path / "f" / "times.csv").write_text(text)
        with pytest.raises(mmdp.InputError, match=problem):
            mmdp.load(tmp_path / "f")
    (tmp_path / "f" / "times.csv").write_text("time,age\n1,50\n0,40\n")  # in any order
    assert mmdp.load(tmp_path / "f").time_labels.get_labels(3) == ["40", "50", "60"]


def test_labels_of_training_models_are_not_those_of_fewer_test_models(tmp_path: Path) -> None:
    model = mmdp.MMDP(np.ones((3, 1, 1, 1)), [[1.0]], states=["up"], models=["a", "b", "c"])
    mmdp.save(model, tmp_path / "f")
    mmdp.save(model.replace(models=None).subset([0]), tmp_path / "other.csv")
    (tmp_path / "f" / "test.csv").write_text((tmp_path / "other.csv").read_text())
    assert mmdp.load(tmp_path / "f").model_labels == ("a", "b", "c")
    test_model = mmdp.load(tmp_path / "f", split="test")
    assert (test_model.n_models, test_model.has_labels["model"]) == (1, False)
    assert test_model.state_labels == ("up",)
