"""Storm's models; skipped without stormpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp import ecosystem

DRN = """@type: MDP
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
PRISM = """mdp
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


def expected() -> mmdp.MMDP:
    p = np.zeros((2, 2, 2, 2))
    p[:, 0, 0] = [[0.5, 0.5], [0.25, 0.75]]
    p[:, 0, 1] = [0, 1]
    p[:, 1, 0] = [1, 0]
    allowed = [[True, True], [True, False]]
    return mmdp.MMDP(p, [[4.0, 1.0], [2.0, 0.0]], allowed=allowed, initial=[1, 0], discount=0.9)


@pytest.mark.parametrize(("text", "suffix"), [(DRN, "drn"), (PRISM, "prism")])
def test_files_are_models(tmp_path: Path, text: str, suffix: str) -> None:
    pytest.importorskip("stormpy", reason="stormpy is not there")
    files = [tmp_path / f"{i}.{suffix}" for i in range(2)]
    for file, p in zip(files, (0.5, 0.25), strict=True):
        file.write_text(text.replace("{p}", str(p)).replace("{q}", str(1 - p)))
    read, model = ecosystem.from_storm(files, discount=0.9), expected()
    np.testing.assert_allclose(read.transitions, model.transitions)
    np.testing.assert_allclose(read.rewards * model.allowed, model.rewards * model.allowed)
    np.testing.assert_array_equal(read.allowed, model.allowed)
    assert mmdp.solve(read, 6).value == pytest.approx(mmdp.solve(model, 6).value)
    if suffix == "prism":
        assert read.action_labels == ("go", "wait")


def test_what_storm_cannot_read_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("stormpy", reason="stormpy is not there")
    (tmp_path / "a.drn").write_text("@type: MDP\nnonsense")
    with pytest.raises(mmdp.InputError, match="Storm cannot read it") as caught:
        ecosystem.from_storm(tmp_path / "a.drn")
    assert "\n" not in str(caught.value)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(mmdp.InputError, match="unknown suffix"):
        ecosystem.from_storm(tmp_path / "a.txt")
    with pytest.raises(mmdp.InputError, match="no such file"):
        ecosystem.from_storm(tmp_path / "none.drn")
