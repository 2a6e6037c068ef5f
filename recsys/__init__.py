"""recsys: Transformer encoders with target attention over purchase histories.

From a log to recommendations::

    model = recsys.fit("purchases.csv", time_limit="30m")
    model.recommend(users=["C42"], k=10)
    model.explain(history, item)
    model.save("bundle")

From an experiment of one's own::

    data = recsys.prepare("purchases.csv", out="data/purchases")
    run = recsys.train("mine.yaml", data)
    model = recsys.load(run.bundle)
    recsys.compare([run.run_id, other.run_id])

When the log has grown, start from the model that is there, or only add the new items::

    run = recsys.train(None, data, start=run.bundle)
    model = recsys.extend(run.bundle, data, "extended")

``load``, ``extend`` and all that a loaded model does need only the core dependencies; ``fit``,
``train`` and ``compare`` need the extra ``train``.
"""

from __future__ import annotations

import os
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from recsys.errors import InputError
from recsys.extras import install_hint
from recsys.machine import set_up_threads

if TYPE_CHECKING:
    from recsys.api import compare, fit, train
    from recsys.config import Experiment, load_experiment
    from recsys.data.appending import append
    from recsys.data.audit import audit
    from recsys.data.prepared import PreparedDataset, prepare
    from recsys.experiments.results import register
    from recsys.loading import extend, load
    from recsys.model.generation import Beam, Greedy, Sampling
    from recsys.serving.recommender import Recommender

# Huge pages for large tensors, on systems that have them, make training on a CPU an eighth faster.
# torch reads this once, at its first tensor; nothing imported so far has loaded torch.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
set_up_threads()

_HOMES = {
    "Beam": "recsys.model.generation:Beam",
    "Experiment": "recsys.config:Experiment",
    "Greedy": "recsys.model.generation:Greedy",
    "PreparedDataset": "recsys.data.prepared:PreparedDataset",
    "Recommender": "recsys.serving.recommender:Recommender",
    "Sampling": "recsys.model.generation:Sampling",
    "append": "recsys.data.appending:append",
    "audit": "recsys.data.audit:audit",
    "compare": "recsys.api:compare",
    "extend": "recsys.loading:extend",
    "fit": "recsys.api:fit",
    "load": "recsys.loading:load",
    "load_experiment": "recsys.config:load_experiment",
    "prepare": "recsys.data.prepared:prepare",
    "register": "recsys.experiments.results:register",
    "train": "recsys.api:train",
}
"""Where each public name is defined, as module:attribute."""

__all__ = [
    "Beam",
    "Experiment",
    "Greedy",
    "InputError",
    "PreparedDataset",
    "Recommender",
    "Sampling",
    "append",
    "audit",
    "compare",
    "extend",
    "fit",
    "load",
    "load_experiment",
    "prepare",
    "register",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: torch and MLflow take seconds, `recsys --help` neither.

    Raises:
        AttributeError: the package has no such name.
        ModuleNotFoundError: the name needs an extra that is not installed.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'recsys' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        hint = install_hint(error)
        if hint is None:
            raise
        raise ModuleNotFoundError(f"recsys.{name} {hint}", name=error.name) from error
    return attrgetter(attribute)(home)
