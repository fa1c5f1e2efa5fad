"""Probabilities below 0 by rounding, or with few digits, are read as what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import mmdp
from mmdp import ecosystem
from mmdp.kernels.events import Events

THIRD = np.full(3, 1 / 3)
EXACT = np.array([THIRD, [0.0, 0.5, 0.5], [0.0, 1.0, 0.0]])  # (S, S')
POMDP = """discount: 0.9
states: a b c
actions: go
observations: a b c
start: {start}
T: go
{rows}
O: *
1 0 0
0 1 0
0 0 1
R: go : a : * : * 1
"""


def rounded(digits: int) -> Any:
    """The same with that many digits, and 0 as rounding may leave it."""
    found = EXACT.round(digits)
    found[1, 0] = -2.2e-16
    return found


def text(row: Any, digits: int) -> str:
    return " ".join("-2.2e-16" if x < 0 else f"{x:.{digits}f}" for x in row)


def by_array(p: Any, folder: Path, digits: int) -> Any:
    return mmdp.MMDP(p[None, :, None], np.zeros((3, 1))).transitions[0, :, 0]


def by_matrices(p: Any, folder: Path, digits: int) -> Any:
    matrices = [[scipy.sparse.csr_array(p)]]
    return mmdp.MMDP(matrices, np.zeros((3, 1)), storage="sparse").transitions[0, :, 0]


def by_event(p: Any, folder: Path, digits: int) -> Any:
    """The next state is the event."""
    after = np.broadcast_to(np.arange(3)[:, None], (1, 3, 1, 3, 1))
    kinds = np.arange(3)[None, :, None]
    shared = Events(after, p[None, :, :, None], kinds)
    return mmdp.MMDP(shared, np.zeros((3, 1))).transitions[0, :, 0]


def by_corner(p: Any, folder: Path, digits: int) -> Any:
    """One event, which leads to all corners."""
    after = np.broadcast_to(np.arange(3), (1, 3, 1, 1, 3))
    shared = Events(after, np.ones((1, 1, 1, 1)), coefficient=p[None, :, None, None])
    return mmdp.MMDP(shared, np.zeros((3, 1))).transitions[0, :, 0]


def by_step(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.from_step(
        lambda event: ({"x": event["to"]}, 0.0), states={"x": range(3)}, actions={"a": [0]},
        events={"to": range(3)}, chance=lambda state: p[state["x"][:, 0]],
    )  # fmt: skip
    return model.transitions[0, :, 0]


def by_draws(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.from_draws({"x": [1.0, 2.0]}, lambda x: (p[:, None], np.zeros((3, 1))))
    return model.transitions[0, :, 0]


def by_frame(p: Any, folder: Path, digits: int) -> Any:
    s, n = np.nonzero(p)
    columns = {"state": s, "action": 0, "next_state": n, "probability": p[s, n], "reward": 0.0}
    return mmdp.io.from_frame(pd.DataFrame(columns)).transitions[0, :, 0]


def by_csv(p: Any, folder: Path, digits: int) -> Any:
    rows = [f"{s},0,{n},{text([p[s, n]], digits)},0" for s, n in np.ndindex(3, 3)]
    head = "state,action,next_state,probability,reward"
    (folder / "training.csv").write_text("\n".join([head, *rows, ""]))
    return mmdp.load(folder).transitions[0, :, 0]


def by_blocks(p: Any, folder: Path, digits: int) -> Any:
    rows = [f"{s} 0 {n} {text([p[s, n]], digits)}" for s, n in np.ndindex(3, 3)]
    (folder / "m.transitions").write_text("\n".join([*rows, ""]))
    return mmdp.load(folder / "m.transitions").transitions[0, :, 0]


def by_pomdp(p: Any, folder: Path, digits: int) -> Any:
    rows = "\n".join(text(row, digits) for row in p)
    (folder / "m.pomdp").write_text(POMDP.format(start="a", rows=rows))
    return mmdp.load(folder / "m.pomdp").transitions[0, :, 0]


def by_pomdp_start(p: Any, folder: Path, digits: int) -> Any:
    """Where the step from the state ``start``, in which nothing is seen, leads."""
    rows = "\n".join(text(row, 17) for row in np.eye(3))
    (folder / "m.pomdp").write_text(POMDP.format(start=text(p[0], digits), rows=rows))
    return np.array([mmdp.load(folder / "m.pomdp").transitions[0, 3, 0, :3], *EXACT[1:]])


def by_pomdpx(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.MMDP(EXACT[None, :, None], np.ones((3, 1)), initial=[1, 0, 0])
    ecosystem.save_pomdp(model, folder / "m.pomdpx")
    written = (folder / "m.pomdpx").read_text().replace(f"{1 / 3!r}", f"{p[0, 0]:.{digits}f}")
    (folder / "m.pomdpx").write_text(written)
    return mmdp.load(folder / "m.pomdpx").transitions[0, :, 0]


def by_initial(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.MMDP(np.eye(3)[None, :, None], np.zeros((3, 1)))
    return np.array([model.replace(initial=row).initial for row in p])


def by_weights(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.MMDP(np.ones((3, 1, 1, 1)), np.zeros((1, 1)))
    return np.array([model.replace(weights=row).weights for row in p])


def by_chain(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.MMDP(np.ones((3, 1, 1, 1)), np.zeros((1, 1)), model_transitions=p)
    return model.model_transitions


def by_initial_csv(p: Any, folder: Path, digits: int) -> Any:
    mmdp.save(mmdp.MMDP(EXACT[None, :, None], np.zeros((3, 1))), folder / "m")
    rows = [f"{s},{text([x], digits)}" for s, x in enumerate(p[0])]
    (folder / "m" / "initial.csv").write_text("\n".join(["idstate,probability", *rows, ""]))
    return np.array([mmdp.load(folder / "m").initial, *EXACT[1:]])


def by_policy(p: Any, folder: Path, digits: int) -> Any:
    return mmdp.MarkovPolicy(probabilities=p[None]).probabilities[0]


def by_policy_csv(p: Any, folder: Path, digits: int) -> Any:
    rows = [f"{s},{a},{text([p[s, a]], digits)}" for s, a in np.ndindex(3, 3)]
    (folder / "p.csv").write_text("\n".join(["state,action,probability", *rows, ""]))
    return mmdp.load_policy(folder / "p.csv").probabilities


WAYS: list[Callable[[Any, Path, int], Any]] = [
    by_array, by_matrices, by_event, by_corner, by_step, by_draws, by_frame, by_csv, by_blocks,
    by_pomdp, by_pomdp_start, by_pomdpx, by_initial, by_weights, by_chain, by_initial_csv,
    by_policy, by_policy_csv,
]  # fmt: skip


@pytest.mark.parametrize("digits", [6, 7, 8, 16])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_right_up_to_its_digits_is_read(way: Any, digits: int, tmp_path: Path) -> None:
    found = way(rounded(digits), tmp_path, digits)
    np.testing.assert_allclose(found, EXACT, rtol=0, atol=10.0**-digits)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=0, atol=1e-8)
    assert found.min() == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("digits", [2, 3, 4])
def test_what_is_further_off_is_refused_with_its_sum(way: Any, digits: int, tmp_path: Path) -> None:
    p = EXACT.round(digits)
    with pytest.raises(mmdp.InputError) as caught:
        way(p, tmp_path, digits)
    total, row = f"{3 * p[0, 0]:.6g}"[: digits + 2], str(p[0].tolist())
    assert total in str(caught.value) or row in str(caught.value)


@pytest.mark.parametrize("way", [x for x in WAYS if x not in (by_pomdp_start, by_pomdpx)])
def test_numbers_below_zero_are_refused(way: Any, tmp_path: Path, monkeypatch: Any) -> None:
    p = EXACT.copy()
    p[0] = [0.6, 0.5, -0.1]

    monkeypatch.setitem(globals(), "text", lambda row, digits: " ".join(map(str, row)))
    with pytest.raises(mmdp.InputError, match="-0.1|negat"):
        way(p, tmp_path, 16)


def test_a_table_in_32_bits_is_read() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(1000), (2, 1000, 1)).astype(np.float32)
    model = mmdp.MMDP(p, np.zeros((1000, 1)))
    np.testing.assert_allclose(model.transitions.sum(axis=-1), 1.0, atol=1e-8)
