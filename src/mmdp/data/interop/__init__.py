"""Models to and from other tools: Gymnasium, quantecon, Storm, POMDP solvers and others."""

from mmdp.data.interop.agent import Agent
from mmdp.data.interop.gym import from_gymnasium, to_gymnasium, to_gymnasium_vector
from mmdp.data.interop.pomdp import save_pomdp
from mmdp.data.interop.quantecon import from_quantecon, to_quantecon
from mmdp.data.interop.storm import from_storm

__all__ = [
    "Agent",
    "from_gymnasium",
    "from_quantecon",
    "from_storm",
    "save_pomdp",
    "to_gymnasium",
    "to_gymnasium_vector",
    "to_quantecon",
]
