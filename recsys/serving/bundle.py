"""The model bundle: a folder with everything that scoring needs, and no pickle."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.saved import FittedBaseline, load_baseline
from recsys.config import Experiment, load_experiment
from recsys.data.features.encoders import NO_ENCODERS, Encoders, ItemVectors
from recsys.data.prepared import PreparedDataset, TrainedOn
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError, checked_path, one_line
from recsys.folders.atomic import new_folder
from recsys.folders.manifest import MANIFEST
from recsys.inference.catalogue import empty_model
from recsys.inference.scorer import Scorer
from recsys.model.encoder import TimesRead
from recsys.model.heads import DotProductHead
from recsys.model.models import Model
from recsys.serving.bundle_files import (
    BASELINE,
    CONFIG,
    COUNT_ENSEMBLE,
    ITEMS,
    WEIGHTS,
    read_items,
    write_files,
)
from recsys.serving.bundle_manifest import BundleManifest, EarlierBundle, ServingProtocol
from recsys.serving.forks import refuse_lost_threads
from recsys.serving.inputs import OneHistory, RawHistories, UserHistories, one_user_source
from recsys.serving.item_names import name_columns
from recsys.serving.time_scale import RequestTime, TimeScale
from recsys.serving.trained_scorer import model_scorer
from recsys.serving.weights import load_weights

logger = logging.getLogger(__name__)


_IMPOSSIBLE = (LookupError, RecursionError, TypeError, ValueError, pl.exceptions.PolarsError)
"""What opening raises of a bundle with right digests and a content that nobody foresaw."""
USUAL_K = 10
"""Items that are recommended where nobody says how many."""


@dataclass(frozen=True, eq=False)
class ModelBundle:
    """A trained model, or a baseline, over a catalogue of I items, with config and protocol."""

    path: Path
    manifest: BundleManifest
    experiment: Experiment
    trained: Model | None
    """The trained model, on the CPU until `use_gpu`, in evaluation mode; None if there is a
    baseline."""
    item_table: pl.DataFrame
    """I rows, token 1 first: item_id, features but for vectors, count (of its interactions)."""
    count_ensemble: CountEnsemble | None = None
    """The count ensemble whose scores are added to the model's; None if there is none."""
    encoders: Encoders = NO_ENCODERS
    """The encoders of the features that the model reads."""
    vectors: ItemVectors = field(default_factory=dict)
    """The vectors of the items that the model reads, memory-mapped."""
    baseline: Scorer | None = None
    """The baseline, if there is no trained model."""

    @classmethod
    def write(  # noqa: PLR0913, PLR0917 - all that a folder holds
        cls,
        path: str | os.PathLike[str],
        answer: Model | FittedBaseline,
        experiment: Experiment,
        dataset: PreparedDataset,
        trained_on: TrainedOn,
        git_commit: str | None = None,
        count_ensemble: CountEnsemble | None = None,
        encoders: Encoders = NO_ENCODERS,
        temperature: float | None = None,
        name: str | None = None,
    ) -> ModelBundle:
        """Write a bundle folder atomically and open it.

        An existing bundle is replaced. The same arguments give the same bytes.

        Args:
            path: the folder.
            answer: the trained model, which is not changed, or the baseline.
            experiment: all settings.
            dataset: the training data; an item feature named count is overwritten.
            trained_on: the parts of the split that the weights were trained on.
            git_commit: the commit of the code that trained it.
            count_ensemble: counts of the same parts, whose scores are added.
            encoders: the encoders of the features that the model reads.
            temperature: that of calibrated probabilities.
            name: what the model is, in words.

        Raises:
            InputError: the path holds something else, or cannot be written.
        """
        path = Path(path)
        BundleManifest.previous(path)
        log = dataset.histories("test" if "valid" in trained_on else "valid")
        counts = np.bincount(log.items, minlength=dataset.num_items + 1)[1:]
        with new_folder(path) as folder:
            items = encoders.save_vectors(folder, dataset.item_table)
            items = items.with_columns(count=pl.Series(counts))
            files = write_files(folder, answer, experiment, items, count_ensemble, encoders)
            BundleManifest(
                dataset_fingerprint=dataset.fingerprint,
                num_items=dataset.num_items,
                protocol=ServingProtocol(
                    split=str(experiment.data.split),
                    seen=experiment.evaluation.seen,
                    trained_on=trained_on,
                ),
                git_commit=git_commit,
                temperature=temperature,
                name=name,
                trained_until=None if log.times is None else int(log.times.max()),
                usual_gap=log.usual_gap,
                started_from=EarlierBundle.of_start(experiment.start),
                files=files,
            ).write(folder)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ModelBundle:
        """Open a folder that `write` wrote, or the folder of a run that contains it.

        Raises:
            InputError: the folder is no bundle or has another format version, a file is not as it
                was written, or the weights do not fit the config.
        """
        refuse_lost_threads()
        path = checked_path(path)
        if not (path / MANIFEST).exists() and (path / "bundle" / MANIFEST).is_file():
            path /= "bundle"  # of a run's folder
        try:
            return BundleManifest.load(path, lambda manifest: cls._load(path, manifest))
        except InputError:
            raise
        except _IMPOSSIBLE as error:
            reason = one_line(error, 300)
            raise InputError(f"{path}: cannot be read as a model bundle: {reason}") from error

    @classmethod
    def _load(cls, path: Path, manifest: BundleManifest) -> ModelBundle:
        """Load the files of a folder that was checked against its manifest."""
        experiment = load_experiment(path / CONFIG) if CONFIG in manifest.files else None
        answer = WEIGHTS if experiment is None or experiment.baseline is None else BASELINE
        if unlisted := {answer, CONFIG, ITEMS} - set(manifest.files):
            raise InputError(f"{path}: the manifest of the bundle does not list {min(unlisted)}")
        assert experiment is not None  # noqa: S101 - it is listed
        item_table = read_items(path / ITEMS, manifest.num_items)
        if experiment.baseline is not None:
            baseline = load_baseline(path / BASELINE, experiment.baseline, manifest.num_items)
            return cls(path, manifest, experiment, None, item_table, baseline=baseline)
        encoders = Encoders.load(path, experiment.model)
        vectors = encoders.open_vectors(path, len(item_table))
        model = empty_model(experiment, item_table, len(item_table), encoders, vectors)
        load_weights(model, path / WEIGHTS)
        count_ensemble = None
        if COUNT_ENSEMBLE in manifest.files:
            count_ensemble = CountEnsemble.load(path / COUNT_ENSEMBLE, manifest.num_items)
        return cls(path, manifest, experiment, model, item_table, count_ensemble, encoders, vectors)

    def use_gpu(self) -> None:
        """Move the model to the GPU, if there is one: worth its start for many histories.

        If it needs more memory than is free there, a warning says so, and it stays on the CPU.
        """
        if torch.cuda.is_available():
            try:
                self.move_to_gpu()
            except InputError as error:
                logger.warning("%s: it stays on the CPU", error)

    def move_to_gpu(self) -> None:
        """Move the model to the GPU, which there must be; a baseline has nothing to move.

        Raises:
            InputError: it needs more memory than is free there; it is on the CPU again.
        """
        if self.trained is None:
            return
        try:
            self.trained.to("cuda")
        except torch.OutOfMemoryError as error:
            self.trained.to("cpu")  # with those weights that were moved
            raise InputError(
                f"{self.path}: the model needs more memory than is free on the GPU"
            ) from error
        for kept in ("scorer", "retriever"):  # they keep the catalogue where the model was
            self.__dict__.pop(kept, None)

    @property
    def model(self) -> Model:
        """The trained model.

        Raises:
            InputError: the bundle holds a baseline.
        """
        if self.trained is None:
            raise InputError(
                f"{self.path}: holds the baseline {self.experiment.baseline}, which recommends and "
                "scores, but has no attention, contributions or decoder"
            )
        return self.trained

    @cached_property
    def scorer(self) -> Scorer:
        """The model plus its count ensemble, on the device of the model; or the baseline.

        It is kept, since what it makes of a large catalogue takes longer than an answer.
        """
        if self.baseline is not None:
            return self.baseline
        return model_scorer(self.model, self.experiment, self.count_ensemble)

    @cached_property
    def retriever(self) -> Scorer:
        """The score without the part of target attention: finds the items worth ranking by it.

        Raises:
            InputError: the model has no target attention.
        """
        if self.model.head.kv_source is None:
            raise InputError(
                f"{self.path}: two stages need target attention, and {self.experiment.family} has "
                "none: a second stage would not change the ranking"
            )
        return model_scorer(self.model, self.experiment, self.count_ensemble, DotProductHead())

    @property
    def report(self) -> Path:
        """The page of the automatic run that trained the model, beside the bundle.

        Raises:
            InputError: there is none: the model was trained in another way, or copied; or another
                bundle has replaced this one.
        """
        self._check_not_replaced()
        page = self.path.resolve().with_name("report.html")
        if not page.is_file():
            raise InputError(
                f"{page}: no such page: recsys.fit(log) and recsys run LOG write it beside the "
                "bundle, in runs/NAME; a copy of the bundle has none"
            )
        return page

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Copy the files of the bundle to another folder, atomically; a bundle there is replaced.

        Raises:
            InputError: the bundle has items that were added after training, another bundle has
                replaced it since it was opened, the path holds something else, or it cannot be
                written.
        """
        if len(self.item_table) != self.manifest.num_items:
            raise InputError(f"{self.path}: items were added after training: they cannot be saved")
        path = Path(path)
        self._check_not_replaced()
        if path.resolve() == self.path.resolve():
            return
        BundleManifest.previous(path)
        with new_folder(path) as folder:
            for name in (*self.manifest.files, MANIFEST):
                shutil.copyfile(self.path / name, folder / name)

    def _check_not_replaced(self) -> None:
        """Check that the files are those that were opened: another run may have the same name."""
        if BundleManifest.read(self.path).files != self.manifest.files:
            raise InputError(
                f"{self.path}: another model has replaced this one since it was opened: give each "
                "run a name of its own, as in recsys.fit(log, name=...)"
            )

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return len(self.item_table)

    @property
    def times(self) -> TimesRead:
        """Which times the model reads."""
        return "none" if self.trained is None else self.trained.times

    @property
    def usual_gap(self) -> int | None:
        """The time between two interactions that stands for missing times; None if none can."""
        return self.manifest.usual_gap if self.times == "past" else None

    @property
    def time_scale(self) -> TimeScale:
        """The scale of the times of the training log."""
        return TimeScale(self.manifest.trained_until, self.experiment.data.time_format)

    def read_histories(self, histories: RawHistories) -> UserHistories:
        """Read histories in raw ids: see `UserHistories.from_raw`.

        A model that reads the times of past interactions takes lists of items too: it is given the
        usual time between two of them, and a warning says so.
        """
        read = UserHistories.from_raw(
            histories, self.experiment.data, self.vocabulary, self.encoders, self.time_scale
        )
        gap = self.usual_gap
        if read.histories.times is not None or gap is None:
            return read
        logger.warning(
            "the histories have no times, which the model reads: it takes %d, the median of the "
            "log, between two interactions; a log with times is ranked better",
            gap,
        )
        return read.with_usual_times(gap)

    def read_history(self, history: OneHistory, at: RequestTime | None) -> UserHistories:
        """Read the history of one user, with the times that the model reads.

        Raises:
            InputError: the history has not exactly one user; see `UserHistories.from_raw` and
                `UserHistories.with_request_time`.
        """
        if not isinstance(history, UserHistories):
            history = self.read_histories(one_user_source(history))
        if len(history.user_ids) != 1:
            raise InputError(f"history: of one user, not of {len(history.user_ids)}")
        return history.with_request_time(self.times, at, self.time_scale)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The mapping between item ids and item tokens."""
        return Vocabulary(self.item_table["item_id"])

    @property
    def usual_k(self) -> int:
        """The items that are recommended where nobody says how many: all of a small catalogue."""
        return min(USUAL_K, self.num_items)

    @cached_property
    def name_columns(self) -> list[str]:
        """The columns of the item table that name an item for people."""
        return name_columns(self.item_table)

    @property
    def popularity(self) -> NDArray[np.float32]:
        """Shape [I]: interactions of each item in training; entry i is item token i + 1."""
        return self.item_table["count"].to_numpy().astype(np.float32)
