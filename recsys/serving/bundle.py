"""The model bundle: a folder with everything that scoring needs, and no pickle."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl
import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.saved import LARGEST_VALUE, load_baseline, save_counts
from recsys.config.experiment import Experiment
from recsys.config.files import dump_experiment, load_experiment
from recsys.data.columns import plain_name
from recsys.data.features import NO_ENCODERS, Encoders, ItemVectors
from recsys.data.histories import PAD, Float32s
from recsys.data.prepared import Part, PreparedDataset, TrainedOn, Vocabulary
from recsys.errors import InputError, checked_path, one_line
from recsys.folders import MANIFEST, FolderManifest, new_folder
from recsys.inference.catalogue import empty_model
from recsys.inference.model_scorer import ModelScorer, StateCache
from recsys.inference.scorer import Scorer
from recsys.model.encoder import TimesRead
from recsys.model.heads import Head
from recsys.model.models import Model
from recsys.serving.raw_values import check_unit

logger = logging.getLogger(__name__)


class BundleManifest(FolderManifest):
    """The manifest of a model bundle."""

    noun: ClassVar[str] = "a model bundle"
    remedy: ClassVar[str] = "train the model again"

    format: Literal["recsys.bundle"] = "recsys.bundle"
    format_version: int = 3
    dataset_fingerprint: str
    num_items: int
    trained_on: TrainedOn
    git_commit: str | None
    trained_until: int | None = None
    """The time of the newest interaction that the weights were trained on, as in the log."""
    usual_gap: int | None = None
    """The median time between two successive interactions of a user, on the scale of the log."""
    temperature: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """What scores are divided by for calibrated probabilities; None if none was fitted."""


WEIGHTS, CONFIG, ITEMS = "weights.safetensors", "config.yaml", "items.parquet"
COUNT_ENSEMBLE, BASELINE = "count_ensemble.safetensors", "baseline.safetensors"


def write_files(
    folder: Path,
    answer: Model | Scorer,
    experiment: Experiment,
    item_table: pl.DataFrame,
    count_ensemble: CountEnsemble | None,
    encoders: Encoders,
) -> None:
    """Write all files of a bundle but its manifest."""
    if not isinstance(answer, Model):
        save_counts(answer, folder / BASELINE)
    else:
        weights = {name: weight.detach().cpu() for name, weight in answer.state_dict().items()}
        save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / WEIGHTS)
    if count_ensemble is not None:
        count_ensemble.save(folder / COUNT_ENSEMBLE)
    encoders.save(folder)
    (folder / CONFIG).write_text(dump_experiment(experiment), encoding="utf-8")
    item_table.write_parquet(folder / ITEMS)


def read_items(path: Path, num_items: int) -> pl.DataFrame:
    """Read the item table of a bundle, of so many items with an id and a count."""
    table = pl.read_parquet(path, glob=False)
    ids, counts = table["item_id"], table["count"]
    if not (
        len(table) == num_items > 0
        and ids.dtype in (pl.Int64, pl.String)
        and ids.drop_nulls().n_unique() == num_items
        and counts.dtype.is_integer()
        and not counts.null_count()
    ):
        raise InputError(f"{path}: not {num_items} unique ids, integers or text, with counts")
    return table


def load_weights(model: Model, path: Path) -> None:
    """Give a model the weights of a file, which must fit it and be finite."""
    try:
        weights = load_file(path)
        model.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(f"{path}: cannot be read as weights: {one_line(error, 300)}") from error
    for name, weight in weights.items():
        lowest, highest = weight.aminmax() if weight.numel() else (0, 0)
        if not (lowest > -LARGEST_VALUE and highest < LARGEST_VALUE):  # NaN too
            raise InputError(
                f"{path}: weight {name!r} must be finite and below {LARGEST_VALUE:g}, not from "
                f"{lowest:g} to {highest:g}"
            )


_opened_in: set[int] = set()
"""The process that opened the first bundle; a fork has it too, and none of its threads."""


def refuse_fork() -> None:
    """Raise an `InputError` in a fork of a process that had opened a bundle: it would hang."""
    if _opened_in - {os.getpid()}:
        raise InputError(
            "this process was forked from one that had used a model, whose threads a fork does not "
            "copy: start processes by multiprocessing.get_context('spawn')"
        )


@dataclass(frozen=True, eq=False)
class ModelBundle:
    """A trained model, or a baseline, over a catalogue of I items, with config and protocol."""

    path: Path
    manifest: BundleManifest
    experiment: Experiment
    trained: Model | None
    """The trained model, on the CPU until `use_gpu`; None if there is a baseline."""
    item_table: pl.DataFrame
    """I rows, token 1 first: item_id, features but for vectors, count (of its interactions)."""
    count_ensemble: CountEnsemble | None = None
    """Its scores are added to the model's."""
    encoders: Encoders = NO_ENCODERS
    vectors: ItemVectors = field(default_factory=dict)
    """The encoders of the features, and the vectors of items, that it reads."""
    baseline: Scorer | None = None
    states: StateCache | None = None
    """Keeps encoded histories between calls, for one thread at a time; none are kept if None."""

    @classmethod
    def write(
        cls,
        path: str | os.PathLike[str],
        answer: Model | Scorer,
        experiment: Experiment,
        dataset: PreparedDataset,
        trained_on: TrainedOn,
        git_commit: str | None = None,
        count_ensemble: CountEnsemble | None = None,
        encoders: Encoders = NO_ENCODERS,
        temperature: float | None = None,
    ) -> ModelBundle:
        """Write a bundle folder atomically and open it; an existing bundle is replaced.

        The same arguments give the same bytes. An item feature named count is overwritten.
        """
        path = Path(path)
        BundleManifest.previous(path)
        log = dataset.histories("test" if "valid" in trained_on else "valid")
        counts = np.bincount(log.items, minlength=dataset.num_items + 1)[1:]
        with new_folder(path) as folder:
            items = encoders.save_vectors(folder, dataset.item_table)
            items = items.with_columns(count=pl.Series(counts))
            write_files(folder, answer, experiment, items, count_ensemble, encoders)
            BundleManifest(
                dataset_fingerprint=dataset.fingerprint,
                num_items=dataset.num_items,
                trained_on=trained_on,
                git_commit=git_commit,
                temperature=temperature,
                trained_until=None if log.times is None else int(log.times.max()),
                usual_gap=log.usual_gap,
            ).write(folder)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ModelBundle:
        """Open a folder that `write` wrote, or the folder of a run that contains it."""
        refuse_fork()
        _opened_in.add(os.getpid())
        path = checked_path(path)
        if not (path / MANIFEST).exists() and (path / "bundle" / MANIFEST).is_file():
            path /= "bundle"  # of a run's folder
        return BundleManifest.load(path, lambda manifest: cls._load(path, manifest))

    @classmethod
    def _load(cls, path: Path, manifest: BundleManifest) -> ModelBundle:
        experiment = load_experiment(path / CONFIG)
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
        """Move the model to the GPU, if there is one with enough memory: worth its start."""
        if torch.cuda.is_available():
            try:
                self.move_to_gpu()
            except InputError as error:
                logger.warning("%s: it stays on the CPU", error)

    def move_to_gpu(self) -> None:
        """Move the model to the GPU; an `InputError`: it needs more memory than is free there."""
        if self.trained is None:
            return
        try:
            self.trained.to("cuda")
        except torch.OutOfMemoryError as error:
            self.trained.to("cpu")  # with those weights that were moved
            line = f"{self.path}: the model needs more memory than the GPU has"
            raise InputError(line) from error
        for kept in ("scorer", "retriever", "directions"):  # they are where it was
            self.__dict__.pop(kept, None)

    @property
    def model(self) -> Model:
        """The trained model, or an `InputError`: the bundle holds a baseline."""
        if self.trained is None:
            raise InputError(
                f"{self.path}: holds the baseline {self.experiment.baseline}, which recommends and "
                "scores, but has no weights, embeddings or decoder"
            )
        return self.trained

    @cached_property
    def scorer(self) -> Scorer:
        """The model plus its count ensemble; or the baseline. It keeps the catalogue's part."""
        if self.baseline is not None:
            return self.baseline
        return self._scorer(self.model.head)

    @cached_property
    def retriever(self) -> Scorer:
        """The score without the part of target attention: finds the items worth ranking by it."""
        if not self.model.head.attends:
            raise InputError(
                f"{self.path}: two stages need target attention, and {self.experiment.family} has "
                "none: a second stage would not change the ranking"
            )
        return self._scorer(self.model.head.dot_product)

    def _scorer(self, head: Head) -> Scorer:
        longest = self.experiment.model.max_sequence_length
        scorer = ModelScorer(self.model, longest, head, self.states)
        return scorer if self.count_ensemble is None else self.count_ensemble.added_to(scorer)

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        if len(self.item_table) != self.manifest.num_items:
            raise InputError(f"{self.path}: items were added after training: they cannot be saved")
        path = Path(path)
        self.check_not_replaced()
        if path.resolve() == self.path.resolve():
            return
        BundleManifest.previous(path)
        with new_folder(path) as folder:
            for name in (*self.manifest.files, MANIFEST):
                shutil.copyfile(self.path / name, folder / name)

    def check_not_replaced(self) -> None:
        """Raise an `InputError` if another bundle is in the folder by now."""
        if BundleManifest.read(self.path).files != self.manifest.files:  # a run of the same name
            raise InputError(f"{self.path}: another model has replaced it since it was opened")

    @property
    def num_items(self) -> int:
        return len(self.item_table)

    @property
    def times(self) -> TimesRead:
        return "none" if self.trained is None else self.trained.times

    @property
    def usual_gap(self) -> int | None:
        """The time that stands for missing ones between two interactions; None if none can."""
        return self.manifest.usual_gap if self.times == "past" else None

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.item_table["item_id"])

    @property
    def usual_k(self) -> int:
        """The items that are recommended where nobody says how many: all of a small catalogue."""
        return min(10, self.num_items)

    @cached_property
    def name_columns(self) -> list[str]:
        """The columns of the item table that name an item for people.

        They are name, title or both; else one such as product_name, if there is one.
        """
        columns = {plain_name(name): name for name in self.item_table.columns}
        exact = [columns[name] for name in ("name", "title") if name in columns]
        kinds = ("item", "product", "prod", "article", "movie", "book", "song", "track")
        names = [kind + word for kind in kinds for word in ("name", "title")]
        return exact or [columns[name] for name in names if name in columns][:1]

    @cached_property
    def directions(self) -> Tensor:
        """The embeddings of all item tokens, scaled to length 1 [I + 1, D]."""
        with torch.inference_mode():
            return normalize(self.model.items.table().float(), dim=1)

    @cached_property
    def popularity(self) -> Float32s:
        """Shape [I]: interactions of each item in training; entry i is item token i + 1."""
        return self.item_table["count"].to_numpy().astype(np.float32)


def for_evaluation(bundle: ModelBundle, dataset: PreparedDataset, part: Part) -> PreparedDataset:
    """Return a dataset, with targets to rank, with the item tokens and the features of a model.

    It may be of another log than the model was trained on, such as a later one. Items outside the
    catalogue are no targets, and are skipped in histories. Warnings count such targets, and say if
    targets may have been seen in training.

    Raises:
        InputError: the model was trained on the targets; or the dataset lacks a feature.
    """
    if dataset.fingerprint == bundle.manifest.dataset_fingerprint:
        if part == "valid" and "valid" in bundle.manifest.trained_on:
            raise InputError(
                f"{bundle.path}: the model was trained on the validation targets too (a refit)"
            )
        return bundle.encoders.read(dataset)
    items = bundle.vocabulary.tokens_of(dataset.vocabulary)[dataset.items]
    items[dataset.items == PAD] = bundle.vocabulary.encode(dataset.outside["item_id"])
    _, targets, _ = dataset.target_positions(part)
    outside = int((items[targets] == PAD).sum())
    if outside:
        logger.warning(
            "%s: %d of %d %s targets are not in the model's catalogue and are left out",
            *(dataset.path, outside, len(targets), part),
        )
    until = bundle.manifest.trained_until
    check_unit(dataset.timestamps, until, str(dataset.path))
    if until is None or (len(targets) and dataset.timestamps[targets].min() <= until):
        logger.warning(
            "%s: not the dataset that the model was trained on, and not all of its targets are "
            "later than what it was trained on: it may have seen some of them",
            dataset.path,
        )
    return bundle.encoders.read(replace(dataset, items=items, item_table=bundle.item_table))
