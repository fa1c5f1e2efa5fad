"""Models to and from other tools: Gymnasium, ArviZ, quantecon, Storm, POMDP solvers and others."""

from mmdp.ecosystem.agent import Agent
from mmdp.ecosystem.arviz import to_arviz
from mmdp.ecosystem.gym import from_gymnasium, to_gymnasium, to_gymnasium_vector
from mmdp.ecosystem.pomdp import save_pomdp
from mmdp.ecosystem.quantecon import from_quantecon, to_quantecon
from mmdp.ecosystem.storm import from_storm

__all__ = [
    "Agent", "from_gymnasium", "from_quantecon", "from_storm", "save_pomdp", "to_arviz",
    "to_gymnasium", "to_gymnasium_vector", "to_quantecon",
]  # fmt: skip
