"""Pack the published models: python src/mmdp/data/domains/data/make.py FOLDER

FOLDER holds the published folders ``riverswim`` and ``hiv``, as CSV files. Writes
``riverswim.npz`` and ``hiv.npz`` next to this script, for :func:`mmdp.domains.load_published`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from mmdp.data.io import load


def pack(folder: Path, file: Path) -> None:
    """Write the training and test models of ``folder`` in the layout of kernels."""
    models = {split: load(folder, split=split) for split in ("train", "test")}
    common = models["train"].problem
    assert all(np.array_equal(model.problem.indices, common.indices) for model in models.values())
    arrays: dict[str, Any] = {
        "indptr": common.indptr,
        "indices": common.indices,
        "initial": models["train"].initial,
        "discount": common.discount,
    }
    for split, model in models.items():
        arrays[f"{split}_p"] = model.problem.p
        if model.pattern_rewards is None:
            arrays[f"{split}_r"] = model.problem.r
        else:
            arrays[f"{split}_next_rewards"] = model.pattern_rewards
    np.savez_compressed(file, **arrays)


if __name__ == "__main__":
    folder = Path(__file__).parent
    for name in ("riverswim", "hiv"):
        pack(Path(sys.argv[1]) / name, folder / f"{name}.npz")
