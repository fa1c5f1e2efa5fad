"""MountainCar with an uncertain engine force and gravity, on a grid of two axes."""

from __future__ import annotations

import numpy as np

from mmdp.core.arguments import Seed, check_arguments
from mmdp.core.model import MMDP
from mmdp.core.validate import check_int
from mmdp.data.domains._common import Array, Domain, Fields, ParameterSamples, sample_parameters

FORCE, GRAVITY = 0.001, 0.0025  # of the usual car
MIN_POSITION, MAX_POSITION, GOAL_POSITION, MAX_SPEED = -1.2, 0.6, 0.5, 0.07
DESCRIPTION = "drive out of a valley: 1,682 states, 3 actions, 20 train and 50 test"
CITATION = (
    "Moore, Efficient Memory-based Learning for Robot Control, Cambridge, 1990; with the constants "
    "of Gymnasium's MountainCar-v0"
)


@check_arguments
def mountain_car(
    n_train: int = 20, n_test: int = 50, seed: Seed = 0, *, n_points: int = 41
) -> Domain:
    """Generate models of MountainCar on a grid of ``n_points`` positions and velocities.

    Every step costs 1 until the car is at the goal, so with T = 200 the return is minus the number
    of steps. The force of the engine is drawn from U(0.0007, 0.0013), gravity from
    U(0.002, 0.003). The start is uniform over positions from -0.6 to -0.4, at rest. Built with
    :func:`mmdp.from_step`; ``mmdp.simulate(test, policy, off_grid=True)`` drives without the grid.

    >>> import mmdp
    >>> train, test = mmdp.domains.mountain_car(n_train=2, n_test=2, n_points=10)
    >>> train.n_states, train.action_labels
    (101, ('push=-1', 'push=0', 'push=1'))
    """

    def sample(rng: np.random.Generator, n_models: int) -> ParameterSamples:
        """Sample engine forces and gravities."""
        return {
            "force": rng.uniform(0.0007, 0.0013, n_models),
            "gravity": rng.uniform(0.002, 0.003, n_models),
        }

    nominal = {"force": np.array([FORCE]), "gravity": np.array([GRAVITY])}
    train, test, true_model = (
        make_models(x, check_int(n_points, "n_points", 2))
        for x in (*sample_parameters(n_train, n_test, seed, sample), nominal)
    )
    return Domain("mountain_car", train, test, true_model, DESCRIPTION, CITATION)


def step(state: Fields, action: Fields, sample: Fields) -> tuple[dict[str, Array], float]:
    """Compute the next position and velocity of the car, and the reward -1."""
    pull = sample["gravity"] * np.cos(3 * state["position"])
    acceleration = sample["force"] * action["push"] - pull
    velocity = np.clip(state["velocity"] + acceleration, -MAX_SPEED, MAX_SPEED)
    position = np.clip(state["position"] + velocity, MIN_POSITION, MAX_POSITION)
    is_stopped = (position == MIN_POSITION) & (velocity < 0)  # at the left wall
    return {"position": position, "velocity": np.where(is_stopped, 0.0, velocity)}, -1.0


def make_models(samples: ParameterSamples, n_points: int) -> MMDP:
    """Make one model for each sample of force and gravity."""
    from mmdp.data.functions import Grid, from_step

    initial_positions = np.linspace(-0.6, -0.4, 21).tolist()
    return from_step(
        step,
        states={
            "position": Grid(MIN_POSITION, MAX_POSITION, n_points),
            "velocity": Grid(-MAX_SPEED, MAX_SPEED, n_points),
        },
        actions={"push": [-1, 0, 1]},
        samples=samples,
        is_terminal=lambda state: state["position"] >= GOAL_POSITION,
        initial={"position": dict.fromkeys(initial_positions, 1 / 21), "velocity": 0.0},
        discount=1.0,
        name="mountain_car",
        citation=CITATION,
    )
