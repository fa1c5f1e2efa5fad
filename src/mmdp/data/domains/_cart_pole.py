"""CartPole with an uncertain mass and length of the pole, on a grid of four axes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Seed, check_arguments
from mmdp.core.model import MMDP
from mmdp.core.validate import check_int
from mmdp.data.domains._common import Array, Domain, Fields, ParameterSamples, sample_parameters

GRAVITY, CART_MASS, PUSH_FORCE, TIME_STEP = 9.8, 1.0, 10.0, 0.02
MAX_POSITION, MAX_ANGLE = 2.4, np.radians(12.0)  # beyond which an episode ends
MAX_SPEED, MAX_ANGULAR_SPEED = 3.0, 3.5  # the ends of the axes of speed
DESCRIPTION = "balance a pole: 6,562 states, 2 actions, 20 train and 50 test"
CITATION = (
    "Barto, Sutton and Anderson, Neuronlike Adaptive Elements That Can Solve Difficult Learning "
    "Control Problems, IEEE Transactions on Systems, Man, and Cybernetics, 1983; with the "
    "equations of Gymnasium's CartPole-v1"
)


@check_arguments
def cart_pole(n_train: int = 20, n_test: int = 50, seed: Seed = 0, *, n_points: int = 9) -> Domain:
    """Generate models of CartPole on a grid with ``n_points`` on each of its four axes.

    Every step with the pole up earns 1, so the return is the number of steps survived. Half the
    length of the pole is drawn from U(0.3, 0.9), its mass from U(0.05, 0.3). Built with
    :func:`mmdp.from_step`; ``mmdp.simulate(test, policy, off_grid=True)`` plays without the grid.

    >>> import mmdp
    >>> train, test = mmdp.domains.cart_pole(n_train=2, n_test=2, n_points=3)
    >>> train.n_states, train.state_labels[40]
    (82, 'position=0, speed=0, angle=0, turning=0')
    """

    def sample(rng: np.random.Generator, n_models: int) -> ParameterSamples:
        return {"length": rng.uniform(0.3, 0.9, n_models), "mass": rng.uniform(0.05, 0.3, n_models)}

    nominal = {"length": np.array([0.5]), "mass": np.array([0.1])}
    train, test, true_model = (
        make_models(x, check_int(n_points, "n_points", 2))
        for x in (*sample_parameters(n_train, n_test, seed, sample), nominal)
    )
    return Domain("cart_pole", train, test, true_model, DESCRIPTION, CITATION)


def step(state: Fields, action: Fields, sample: Fields) -> tuple[dict[str, Array], float]:
    """Compute the next positions and speeds of cart and pole, and the reward 1."""
    angle, angular_speed, total_mass = state["angle"], state["turning"], CART_MASS + sample["mass"]
    swing_length = sample["mass"] * sample["length"] / total_mass
    push_force = PUSH_FORCE * action["push"]
    push_acceleration = push_force / total_mass + swing_length * angular_speed**2 * np.sin(angle)
    inertia = sample["length"] * (4 / 3 - sample["mass"] * np.cos(angle) ** 2 / total_mass)
    angular_acceleration = (GRAVITY * np.sin(angle) - np.cos(angle) * push_acceleration) / inertia
    acceleration = push_acceleration - swing_length * angular_acceleration * np.cos(angle)
    return {
        "position": state["position"] + TIME_STEP * state["speed"],
        "speed": np.clip(state["speed"] + TIME_STEP * acceleration, -MAX_SPEED, MAX_SPEED),
        "angle": angle + TIME_STEP * angular_speed,
        "turning": np.clip(
            angular_speed + TIME_STEP * angular_acceleration, -MAX_ANGULAR_SPEED, MAX_ANGULAR_SPEED
        ),
    }, 1.0


def is_terminal(state: Fields) -> npt.NDArray[np.bool_]:
    """Test whether the cart is off the track or the pole has fallen."""
    return (np.abs(state["position"]) > MAX_POSITION) | (np.abs(state["angle"]) > MAX_ANGLE)


def make_models(samples: ParameterSamples, n_points: int) -> MMDP:
    """Make one model for each sample of the pole's length and mass."""
    from mmdp.data.functions import Grid, from_step

    axis_limits = {
        "position": MAX_POSITION,
        "speed": MAX_SPEED,
        "angle": MAX_ANGLE,
        "turning": MAX_ANGULAR_SPEED,
    }
    return from_step(
        step,
        states={name: Grid(-limit, limit, n_points) for name, limit in axis_limits.items()},
        actions={"push": [-1, 1]},
        samples=samples,
        is_terminal=is_terminal,
        initial={name: {-0.025: 0.5, 0.025: 0.5} for name in axis_limits},
        discount=1.0,
        name="cart_pole",
        citation=CITATION,
    )
