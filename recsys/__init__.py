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

``fit``, ``train`` and ``compare`` need the extra ``train``.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from recsys.errors import InputError as InputError
from recsys.errors import install_hint
from recsys.machine import set_up_threads

if TYPE_CHECKING:
    from recsys.api import compare as compare
    from recsys.api import fit as fit
    from recsys.api import train as train
    from recsys.config.experiment import Experiment as Experiment
    from recsys.config.files import load_experiment as load_experiment
    from recsys.data.appending import append as append
    from recsys.data.audit import audit as audit
    from recsys.data.prepared import PreparedDataset as PreparedDataset
    from recsys.data.prepared import prepare as prepare
    from recsys.experiments.results import register as register
    from recsys.loading import extend as extend
    from recsys.loading import load as load
    from recsys.model.sequence_to_sequence import Beam as Beam
    from recsys.model.sequence_to_sequence import Greedy as Greedy
    from recsys.model.sequence_to_sequence import Sampling as Sampling
    from recsys.serving.recommender import Recommender as Recommender

# Huge pages for large tensors, on systems that have them, make training on a CPU an eighth faster.
# torch reads this once, at its first tensor; nothing imported so far has loaded torch.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
set_up_threads()

_HOMES = {
    "recsys.api": ("compare", "fit", "train"),
    "recsys.config.experiment": ("Experiment",),
    "recsys.config.files": ("load_experiment",),
    "recsys.data.appending": ("append",),
    "recsys.data.audit": ("audit",),
    "recsys.data.prepared": ("PreparedDataset", "prepare"),
    "recsys.errors": ("InputError",),
    "recsys.experiments.results": ("register",),
    "recsys.loading": ("extend", "load"),
    "recsys.model.sequence_to_sequence": ("Beam", "Greedy", "Sampling"),
    "recsys.serving.recommender": ("Recommender",),
}
"""Where the public names are defined."""
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: torch and MLflow take seconds, `recsys --help` neither."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'recsys' has no attribute {name!r}")
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        hint = install_hint(error)
        if hint is None:
            raise
        raise ModuleNotFoundError(f"recsys.{name} {hint}", name=error.name) from error
