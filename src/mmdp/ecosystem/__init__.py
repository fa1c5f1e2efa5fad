"""Models to and from other tools: Gymnasium, pymdptoolbox, quantecon, Storm, POMDP solvers."""

from mmdp.ecosystem.gym import from_gymnasium, to_gymnasium
from mmdp.ecosystem.pomdp import save_pomdp
from mmdp.ecosystem.storm import from_storm
from mmdp.ecosystem.toolboxes import from_mdptoolbox, from_quantecon, to_mdptoolbox, to_quantecon

__all__ = [
    "from_gymnasium", "from_mdptoolbox", "from_quantecon", "from_storm", "save_pomdp",
    "to_gymnasium", "to_mdptoolbox", "to_quantecon",
]  # fmt: skip
