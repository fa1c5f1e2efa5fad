"""Models to and from other tools: Gymnasium, ArviZ, quantecon, Storm, POMDP solvers and others."""

from mmdp.interop.agent import Agent
from mmdp.interop.arviz import to_arviz
from mmdp.interop.gym import from_gymnasium, to_gymnasium, to_gymnasium_vector
from mmdp.interop.pomdp import save_pomdp
from mmdp.interop.quantecon import from_quantecon, to_quantecon
from mmdp.interop.storm import from_storm

__all__ = [
    "Agent",
    "from_gymnasium",
    "from_quantecon",
    "from_storm",
    "save_pomdp",
    "to_arviz",
    "to_gymnasium",
    "to_gymnasium_vector",
    "to_quantecon",
]
