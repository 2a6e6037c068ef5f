"""The results of a run: tables, metrics and times, written and logged; and a model by name."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from recsys.config.experiment import TrackingConfig
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.metrics import Interval, by_end, metric_names
from recsys.evaluation.tables import SavedTable
from recsys.folders import MANIFEST
from recsys.serving.bundle import ModelBundle
from recsys.tracking import artifacts
from recsys.tracking.registry import Registered, local_bundle, register_bundle
from recsys.tracking.store import find_run
from recsys.tracking.tracker import Tracker


@dataclass(frozen=True)
class Results:
    """The tables of a trained model or a baseline."""

    cutoffs: Sequence[int]
    tables: Mapping[str, SavedTable]
    """By their names in `artifacts.TABLES`; those of validation only of a model."""
    catalogue: Mapping[str, float]
    """The metrics of the best items of the test; see `catalogue_metrics`."""

    @cached_property
    def metrics(self) -> dict[str, Interval]:
        """The metrics of all ranks and lists, with intervals, as MLflow has them."""
        names, metrics = metric_names(self.cutoffs), dict[str, Interval]()
        for name, table in self.tables.items():
            summary = table.summary(names)
            metrics |= {artifacts.TABLES[name] + metric: mean for metric, mean in summary.items()}
        return metrics

    def of_part(self, part: Part) -> dict[str, Interval]:
        """Return the metrics of a part of the split; not those of a model without its counts.

        Those of lists that a model generates have their own names (``next_recall_at_5``), those of
        its best items the prefix ``best_`` (``best_next_recall_at_5``).
        """
        names = [name for name in self.metrics if name.startswith(f"{part}/")]
        names = [name for name in names if not name.startswith(f"{part}/model_alone_")]
        return {name.removeprefix(f"{part}/"): self.metrics[name] for name in names}

    @cached_property
    def headline(self) -> dict[str, float]:
        """NDCG and recall at 10 (or the nearest cut-off), MRR, recall at the largest, coverage."""
        k = min(self.cutoffs, key=lambda cutoff: abs(cutoff - 10), default=10)
        largest = max(self.cutoffs, default=k)
        names = [f"ndcg_at_{k}", f"recall_at_{k}", "mrr", f"recall_at_{largest}"]
        known = {name: metric.mean for name, metric in self.of_part("test").items()}
        known |= self.catalogue
        return {name: known[name] for name in (*names, f"coverage_at_{k}") if name in known}

    def save(self, folder: Path) -> None:
        for name, table in self.tables.items():
            table.save(folder / f"{name}.parquet")

    def log(self, tracker: Tracker, folder: Path, costs: Mapping[str, float]) -> None:
        """Log all files of the folder that `save` wrote to, all metrics, and costs by name."""
        tracker.log_metrics({f"headline/{name}": value for name, value in self.headline.items()})
        for path in sorted(folder.iterdir()):
            tracker.log_path(path)
        catalogue = {f"test/{name}": value for name, value in self.catalogue.items()}
        tracker.log_metrics({**by_end(self.metrics), **costs, **catalogue})

    def log_alone(self, tracker: Tracker, costs: Mapping[str, float]) -> None:
        """Log the tables, all metrics and the costs of what leaves no folder."""
        scratch = Path(tempfile.mkdtemp())  # kept for the tracker, which may send again at its end
        weakref.finalize(tracker, shutil.rmtree, scratch, ignore_errors=True)
        self.save(scratch)
        self.log(tracker, scratch, costs)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished experiment."""

    run_id: str
    tracking: TrackingConfig
    """The MLflow store of the run."""
    bundle: Path
    """Folder of the `ModelBundle`."""
    best_epoch: int
    """Number of epochs, chosen on validation."""
    valid: dict[str, Interval]
    """Validation metrics of the best epoch."""
    test: dict[str, Interval]
    """Test metrics."""
    seconds: float
    """Of training, validation and refit."""
    headline: dict[str, float] = field(default_factory=dict)
    """See `Results.headline`."""


def check_out(out: Path) -> None:
    """Refuse (`InputError`), before hours of training, what is no run or cannot be written."""
    if out.exists():
        there = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
        if foreign := there - artifacts.RUN_FILES:
            raise InputError(f"{out}: is left alone: {min(foreign)} does not belong to a run")
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=parent):
            pass
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}") from error


def register(
    model: str | os.PathLike[str],
    name: str,
    *,
    alias: str | None = None,
    tracking: TrackingConfig | None = None,
) -> Registered:
    """Register a model under a name in the MLflow store, as its next version.

    Args:
        model: a run, by id, beginning of its id or name; or the folder of a bundle, or of a run.
        name: such as shop.
        alias: a name for this version, such as champion.
        tracking: the store; the default one if None.

    Raises:
        InputError: the store cannot be used; or there is no such run or bundle.
    """
    tracking, run_id, folder = tracking or TrackingConfig(), None, Path(model)
    if not (folder / MANIFEST).is_file() and not (folder / artifacts.BUNDLE / MANIFEST).is_file():
        run_id = find_run(str(model), tracking)
        folder = local_bundle(f"runs:/{run_id}/{artifacts.BUNDLE}", tracking)
    bundle = ModelBundle.open(folder)
    facts = bundle.item_table["item_id"].head(2).to_list(), bundle.num_items, bundle.times
    return register_bundle(bundle.path, *facts, name, tracking, alias, run_id)
