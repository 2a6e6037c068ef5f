"""recsys: Transformer encoders with target attention over purchase histories.

The whole way::

    data = recsys.prepare("purchases.csv", out="data/purchases")
    run = recsys.fit("configs/mine.yaml", data)
    model = recsys.load(run.bundle)
    model.recommend(histories, k=10)
    model.explain(history, item)
    recsys.compare([run.run_id, other.run_id])
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from recsys.errors import InputError

if TYPE_CHECKING:
    from recsys.api import compare, fit, load
    from recsys.config import Experiment, load_experiment
    from recsys.data.audit import audit
    from recsys.data.prepared import PreparedDataset, prepare
    from recsys.model.generation import Beam, Greedy, Sampling
    from recsys.serving.recommender import Recommender

# Large tensors on huge pages, where the system has them: training on a CPU is an eighth faster.
# torch looks for this once, at its first tensor; nothing imported so far has loaded it.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

_HOMES = {
    "Beam": "recsys.model.generation",
    "Experiment": "recsys.config",
    "Greedy": "recsys.model.generation",
    "PreparedDataset": "recsys.data.prepared",
    "Recommender": "recsys.serving.recommender",
    "Sampling": "recsys.model.generation",
    "audit": "recsys.data.audit",
    "compare": "recsys.api",
    "fit": "recsys.api",
    "load": "recsys.api",
    "load_experiment": "recsys.config",
    "prepare": "recsys.data.prepared",
}

__all__ = [
    "Beam",
    "Experiment",
    "Greedy",
    "InputError",
    "PreparedDataset",
    "Recommender",
    "Sampling",
    "audit",
    "compare",
    "fit",
    "load",
    "load_experiment",
    "prepare",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use: torch and MLflow take seconds, `recsys --help` none."""
    if name not in _HOMES:
        raise AttributeError(f"module 'recsys' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
