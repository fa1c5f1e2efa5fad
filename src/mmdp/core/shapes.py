"""Array types: by element, and one for each shape of the public surface.

M models, S states, A actions, T decisions. Numpy's types do not check shapes: the names say them to
readers, editors and the reference. Kernels put the models last; see ``core/kernels/problem.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int32]  # actions, next states
IndexArray = npt.NDArray[np.int64]  # positions in other arrays, counts
AnyIntArray = npt.NDArray[np.integer]
NodeArray = npt.NDArray[np.uint8]  # nodes of finite-state controllers
AnyArray = npt.NDArray[Any]

ModelVector = npt.NDArray[np.float64]  # (M,)
ModelMatrix = npt.NDArray[np.float64]  # (M, M)
InitialArray = npt.NDArray[np.float64]  # (S,), or (M, S) if models differ
TerminalArray = npt.NDArray[np.float64]  # (M, S)
TransitionArray = npt.NDArray[np.float64]  # (M, S, A, S), or (T, M, S, A, S) if they vary with time
RewardArray = npt.NDArray[np.float64]  # (M, S, A), or (T, M, S, A) if they vary with time
ActionMask = npt.NDArray[np.bool_]  # (S, A)
ActionTable = npt.NDArray[np.int32]  # (T, S); (S,) if stationary, (T, S, nodes) with memory
ProbabilityTable = npt.NDArray[np.float64]  # (T, S, A); (S, A) if stationary
ModelActionTable = npt.NDArray[np.int32]  # (T, M, S)
