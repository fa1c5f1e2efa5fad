"""CartPole with a pole whose mass and length are not known exactly, on a grid of four axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdp.arguments import Seed, checked
from mmdp.domains._common import Domain, Draws, drawn
from mmdp.model import MMDP
from mmdp.validate import check_whole

GRAVITY, CART, PUSH, TICK = 9.8, 1.0, 10.0, 0.02
EDGE, FALLEN = 2.4, np.radians(12.0)  # where it is over
FASTEST, SPIN = 3.0, 3.5  # the ends of the axes of speed
DESCRIPTION = "balance a pole: 6,562 states, 2 actions, 20 train and 50 test"
CITATION = (
    "Barto, Sutton and Anderson, Neuronlike Adaptive Elements That Can Solve Difficult Learning "
    "Control Problems, IEEE Transactions on Systems, Man, and Cybernetics, 1983; with the "
    "equations of Gymnasium's CartPole-v1"
)


@checked
def cart_pole(n_train: int = 20, n_test: int = 50, seed: Seed = 0, *, points: int = 9) -> Domain:
    """CartPole on a grid of ``points`` positions, speeds, angles and speeds of turning.

    Every step with the pole up earns 1, so the return is the number of steps survived. Half the
    length of the pole is drawn from U(0.3, 0.9), its mass from U(0.05, 0.3). Built with
    :func:`mmdp.from_step`; ``mmdp.simulate(policy, test, off_grid=True)`` plays without the grid.

    >>> import mmdp
    >>> train, test = mmdp.domains.cart_pole(n_train=2, n_test=2, points=3)
    >>> train.n_states, train.state_labels[40]
    (82, 'position=0, speed=0, angle=0, turning=0')
    """

    def draw(rng: np.random.Generator, count: int) -> Draws:
        return {"length": rng.uniform(0.3, 0.9, count), "mass": rng.uniform(0.05, 0.3, count)}

    nominal = {"length": np.array([0.5]), "mass": np.array([0.1])}
    train, test, true = (
        models(x, check_whole(points, "points", 2))
        for x in (*drawn(n_train, n_test, seed, draw), nominal)
    )
    return Domain("cart_pole", train, test, true, DESCRIPTION, CITATION)


def step(state: Any, action: Any, draw: Any) -> Any:
    """Where cart and pole are next; a step earns 1."""
    angle, turning, total = state["angle"], state["turning"], CART + draw["mass"]
    swing = draw["mass"] * draw["length"] / total
    pushed = PUSH * action["push"] / total + swing * turning**2 * np.sin(angle)
    inertia = draw["length"] * (4 / 3 - draw["mass"] * np.cos(angle) ** 2 / total)
    turned = (GRAVITY * np.sin(angle) - np.cos(angle) * pushed) / inertia
    moved = pushed - swing * turned * np.cos(angle)
    return {
        "position": state["position"] + TICK * state["speed"],
        "speed": np.clip(state["speed"] + TICK * moved, -FASTEST, FASTEST),
        "angle": angle + TICK * turning,
        "turning": np.clip(turning + TICK * turned, -SPIN, SPIN),
    }, 1.0


def over(state: Any) -> Any:
    """Off the track, or fallen over."""
    return (np.abs(state["position"]) > EDGE) | (np.abs(state["angle"]) > FALLEN)


def models(draws: Draws, points: int) -> MMDP:
    """One model for each draw of the pole's length and mass."""
    from mmdp.functions import Grid, from_step

    ends = {"position": EDGE, "speed": FASTEST, "angle": FALLEN, "turning": SPIN}
    return from_step(
        step, states={name: Grid(-end, end, points) for name, end in ends.items()},
        actions={"push": [-1, 1]}, draws=draws, until=over,
        initial={name: {-0.025: 0.5, 0.025: 0.5} for name in ends}, discount=1.0,
        name="cart_pole", citation=CITATION,
    )  # fmt: skip
