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
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.data import interop

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


def round_probs(digits: int) -> Any:
    """The same with that many digits, and 0 as rounding may leave it."""
    probs = EXACT.round(digits)
    probs[1, 0] = -2.2e-16
    return probs


def format_row(row: Any, digits: int) -> str:
    return " ".join("-2.2e-16" if x < 0 else f"{x:.{digits}f}" for x in row)


def from_array(p: Any, folder: Path, digits: int) -> Any:
    return mmdp.MMDP(p[None, :, None], np.zeros((3, 1))).transitions[0, :, 0]


def from_matrices(p: Any, folder: Path, digits: int) -> Any:
    matrices = [[scipy.sparse.csr_array(p)]]
    return mmdp.MMDP(matrices, np.zeros((3, 1)), storage="sparse").transitions[0, :, 0]


def from_event(p: Any, folder: Path, digits: int) -> Any:
    """The next state is the event."""
    next_states = np.broadcast_to(np.arange(3)[:, None], (1, 3, 1, 3, 1))
    distribution_ids = np.arange(3)[None, :, None]
    shared = ExogenousEvents(next_states, p[None, :, :, None], distribution_ids)
    return mmdp.MMDP(shared, np.zeros((3, 1))).transitions[0, :, 0]


def from_corner(p: Any, folder: Path, digits: int) -> Any:
    """One event, which leads to all corners."""
    next_states = np.broadcast_to(np.arange(3), (1, 3, 1, 1, 3))
    shared = ExogenousEvents(
        next_states, np.ones((1, 1, 1, 1)), corner_weights=p[None, :, None, None]
    )
    return mmdp.MMDP(shared, np.zeros((3, 1))).transitions[0, :, 0]


def from_step(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.from_step(
        lambda event: ({"x": event["to"]}, 0.0),
        states={"x": range(3)},
        actions={"a": [0]},
        events={"to": range(3)},
        event_probs=lambda state: p[state["x"][:, 0]],
    )
    return model.transitions[0, :, 0]


def from_samples(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.from_samples({"x": [1.0, 2.0]}, lambda x: (p[:, None], np.zeros((3, 1))))
    return model.transitions[0, :, 0]


def from_frame(p: Any, folder: Path, digits: int) -> Any:
    s, n = np.nonzero(p)
    columns = {"state": s, "action": 0, "next_state": n, "probability": p[s, n], "reward": 0.0}
    return mmdp.io.from_frame(pd.DataFrame(columns)).transitions[0, :, 0]


def from_csv(p: Any, folder: Path, digits: int) -> Any:
    rows = [f"{s},0,{n},{format_row([p[s, n]], digits)},0" for s, n in np.ndindex(3, 3)]
    head = "state,action,next_state,probability,reward"
    (folder / "training.csv").write_text("\n".join([head, *rows, ""]))
    return mmdp.load(folder).transitions[0, :, 0]


def from_pomdp(p: Any, folder: Path, digits: int) -> Any:
    rows = "\n".join(format_row(row, digits) for row in p)
    (folder / "m.pomdp").write_text(POMDP.format(start="a", rows=rows))
    return mmdp.load(folder / "m.pomdp").transitions[0, :, 0]


def from_pomdp_start(p: Any, folder: Path, digits: int) -> Any:
    """Where the step from the state ``start``, in which nothing is seen, leads."""
    rows = "\n".join(format_row(row, 17) for row in np.eye(3))
    (folder / "m.pomdp").write_text(POMDP.format(start=format_row(p[0], digits), rows=rows))
    return np.array([mmdp.load(folder / "m.pomdp").transitions[0, 3, 0, :3], *EXACT[1:]])


def from_pomdpx(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.MMDP(EXACT[None, :, None], np.ones((3, 1)), initial=[1, 0, 0])
    interop.save_pomdp(model, folder / "m.pomdpx")
    xml = (folder / "m.pomdpx").read_text().replace(f"{1 / 3!r}", f"{p[0, 0]:.{digits}f}")
    (folder / "m.pomdpx").write_text(xml)
    return mmdp.load(folder / "m.pomdpx").transitions[0, :, 0]


def from_initial(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.MMDP(np.eye(3)[None, :, None], np.zeros((3, 1)))
    return np.array([model.replace(initial=row).initial for row in p])


def from_weights(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.MMDP(np.ones((3, 1, 1, 1)), np.zeros((1, 1)))
    return np.array([model.replace(weights=row).weights for row in p])


def from_model_transitions(p: Any, folder: Path, digits: int) -> Any:
    model = mmdp.MMDP(np.ones((3, 1, 1, 1)), np.zeros((1, 1)), model_transitions=p)
    return model.model_transitions


def from_initial_csv(p: Any, folder: Path, digits: int) -> Any:
    mmdp.save(mmdp.MMDP(EXACT[None, :, None], np.zeros((3, 1))), folder / "m")
    rows = [f"{s},{format_row([x], digits)}" for s, x in enumerate(p[0])]
    (folder / "m" / "initial.csv").write_text("\n".join(["idstate,probability", *rows, ""]))
    return np.array([mmdp.load(folder / "m").initial, *EXACT[1:]])


def from_policy(p: Any, folder: Path, digits: int) -> Any:
    return mmdp.policies.MarkovPolicy(probabilities=p[None]).probabilities[0]


def from_policy_csv(p: Any, folder: Path, digits: int) -> Any:
    rows = [f"{s},{a},{format_row([p[s, a]], digits)}" for s, a in np.ndindex(3, 3)]
    (folder / "p.csv").write_text("\n".join(["state,action,probability", *rows, ""]))
    return mmdp.load_policy(folder / "p.csv").probabilities


READERS: list[Callable[[Any, Path, int], Any]] = [
    from_array,
    from_matrices,
    from_event,
    from_corner,
    from_step,
    from_samples,
    from_frame,
    from_csv,
    from_pomdp,
    from_pomdp_start,
    from_pomdpx,
    from_initial,
    from_weights,
    from_model_transitions,
    from_initial_csv,
    from_policy,
    from_policy_csv,
]


@pytest.mark.parametrize("digits", [6, 7, 8, 16])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_right_up_to_its_digits_is_read(reader: Any, digits: int, tmp_path: Path) -> None:
    probs = reader(round_probs(digits), tmp_path, digits)
    np.testing.assert_allclose(probs, EXACT, rtol=0, atol=10.0**-digits)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=0, atol=1e-8)
    assert probs.min() == 0


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("digits", [2, 3, 4])
def test_what_is_further_off_is_refused_with_its_sum(
    reader: Any, digits: int, tmp_path: Path
) -> None:
    p = EXACT.round(digits)
    with pytest.raises(mmdp.InputError) as error_info:
        reader(p, tmp_path, digits)
    total, row = f"{3 * p[0, 0]:.6g}"[: digits + 2], str(p[0].tolist())
    assert total in str(error_info.value) or row in str(error_info.value)


@pytest.mark.parametrize("reader", [x for x in READERS if x not in (from_pomdp_start, from_pomdpx)])
def test_numbers_below_zero_are_refused(reader: Any, tmp_path: Path, monkeypatch: Any) -> None:
    p = EXACT.copy()
    p[0] = [0.6, 0.5, -0.1]

    monkeypatch.setitem(globals(), "format_row", lambda row, digits: " ".join(map(str, row)))
    with pytest.raises(mmdp.InputError, match="-0.1|negat"):
        reader(p, tmp_path, 16)


def test_a_table_in_32_bits_is_read() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(1000), (2, 1000, 1)).astype(np.float32)
    model = mmdp.MMDP(p, np.zeros((1000, 1)))
    np.testing.assert_allclose(model.transitions.sum(axis=-1), 1.0, atol=1e-8)
