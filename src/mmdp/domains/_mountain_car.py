"""MountainCar with an engine and a slope that are not known exactly, on a grid of two axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdp.arguments import Seed, checked
from mmdp.domains._common import Domain, Draws, drawn
from mmdp.model import MMDP
from mmdp.validate import check_whole

FORCE, GRAVITY = 0.001, 0.0025  # of the usual car
LEFT, RIGHT, GOAL, FASTEST = -1.2, 0.6, 0.5, 0.07
DESCRIPTION = "drive out of a valley: 1,682 states, 3 actions, 20 train and 50 test"
CITATION = (
    "Moore, Efficient Memory-based Learning for Robot Control, Cambridge, 1990; with the constants "
    "of Gymnasium's MountainCar-v0"
)


@checked
def mountain_car(
    n_train: int = 20, n_test: int = 50, seed: Seed = 0, *, points: int = 41
) -> Domain:
    """MountainCar on a grid of ``points`` positions and as many velocities.

    Every step costs 1 until the car is at the goal, so with T = 200 the return is minus the number
    of steps. The force of the engine is drawn from U(0.0007, 0.0013), gravity from
    U(0.002, 0.003). The start is uniform over positions from -0.6 to -0.4, at rest. Built with
    :func:`mmdp.from_step`; ``mmdp.simulate(policy, test, off_grid=True)`` drives without the grid.

    >>> import mmdp
    >>> train, test = mmdp.domains.mountain_car(n_train=2, n_test=2, points=10)
    >>> train.n_states, train.action_labels
    (101, ('push=-1', 'push=0', 'push=1'))
    """

    def draw(rng: np.random.Generator, count: int) -> Draws:
        return {
            "force": rng.uniform(0.0007, 0.0013, count),
            "gravity": rng.uniform(0.002, 0.003, count),
        }

    nominal = {"force": np.array([FORCE]), "gravity": np.array([GRAVITY])}
    train, test, true = (
        models(x, check_whole(points, "points", 2))
        for x in (*drawn(n_train, n_test, seed, draw), nominal)
    )
    return Domain("mountain_car", train, test, true, DESCRIPTION, CITATION)


def step(state: Any, action: Any, draw: Any) -> Any:
    """Where the car is next; a step costs 1."""
    pull = draw["force"] * action["push"] - draw["gravity"] * np.cos(3 * state["position"])
    velocity = np.clip(state["velocity"] + pull, -FASTEST, FASTEST)
    position = np.clip(state["position"] + velocity, LEFT, RIGHT)
    stopped = (position == LEFT) & (velocity < 0)  # at the left wall
    return {"position": position, "velocity": np.where(stopped, 0.0, velocity)}, -1.0


def models(draws: Draws, points: int) -> MMDP:
    """One model for each draw of force and gravity."""
    from mmdp.functions import Grid, from_step

    starts = np.linspace(-0.6, -0.4, 21).tolist()
    return from_step(
        step,
        states={"position": Grid(LEFT, RIGHT, points), "velocity": Grid(-FASTEST, FASTEST, points)},
        actions={"push": [-1, 0, 1]}, draws=draws, until=lambda state: state["position"] >= GOAL,
        initial={"position": dict.fromkeys(starts, 1 / 21), "velocity": 0.0}, discount=1.0,
        name="mountain_car", citation=CITATION,
    )  # fmt: skip
