"""The model bundle: a folder that holds all that scoring needs, and no pickle."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.config import Experiment, Section, dump_experiment, load_experiment
from recsys.data.features.encoders import NO_ENCODERS, Encoders
from recsys.data.files import file_sha256, new_folder
from recsys.data.manifest import FolderManifest
from recsys.data.prepared import Part, PreparedDataset, TrainedOn
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError
from recsys.inference.catalogue import empty_model
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.scorer import Scorer
from recsys.model.heads import DotProductHead
from recsys.model.model_inputs import TimesRead
from recsys.model.protocols import Head, Model
from recsys.serving.inputs import RawHistories, UserHistories

_WEIGHTS, _CONFIG, _ITEMS = "weights.safetensors", "config.yaml", "items.parquet"
_COUNT_ENSEMBLE = "count_ensemble.safetensors"


class ServingProtocol(Section):
    """Under which rules the model was trained, and is to be used."""

    split: str
    """As the splits of `recsys.config` name themselves."""
    seen: Literal["filter", "allow"]
    """Whether items of a user's history are left out of recommendations."""
    trained_on: TrainedOn


class BundleManifest(FolderManifest):
    """What a model bundle is made of."""

    noun: ClassVar[str] = "a model bundle"
    remedy: ClassVar[str] = "train the model again"
    current_version: ClassVar[int] = 1

    format: Literal["recsys.bundle"] = "recsys.bundle"
    format_version: int = current_version
    dataset_fingerprint: str
    """Of the prepared dataset it was trained on."""
    num_items: int
    """Size of the catalogue, I."""
    protocol: ServingProtocol
    git_commit: str | None
    """Of the code that trained it, where that is known."""


@dataclass(frozen=True, eq=False)
class ModelBundle:
    """A trained model over a catalogue of I items, with its config, item table and protocol."""

    path: Path
    manifest: BundleManifest
    experiment: Experiment
    model: Model
    """On the CPU, in evaluation mode."""
    item_table: pl.DataFrame
    """item_id, the features of the items, and count: how many interactions of the item the model
    was trained on [I rows]; row i is item token i + 1."""
    count_ensemble: CountEnsemble | None = None
    """Counts whose scores are added to the model's."""
    encoders: Encoders = NO_ENCODERS
    """Of the features that the model reads."""

    @classmethod
    def write(
        cls,
        path: str | os.PathLike[str],
        model: Model,
        experiment: Experiment,
        dataset: PreparedDataset,
        trained_on: TrainedOn,
        git_commit: str | None = None,
        count_ensemble: CountEnsemble | None = None,
        encoders: Encoders = NO_ENCODERS,
    ) -> ModelBundle:
        """Write a bundle folder, whole or not at all, and open it.

        A bundle already there is replaced. The same arguments give the same bytes.

        Args:
            path: the folder.
            model: the trained weights; it is left as it is.
            experiment: all settings.
            dataset: what the model was trained on; a feature of its items named count gives way.
            trained_on: the parts of the split that the weights were trained on.
            git_commit: of the code that trained it.
            count_ensemble: counted on the same part, to be added to the scores.
            encoders: of the features that the model reads.

        Raises:
            InputError: something else is at the path, or it cannot be written.
        """
        path = Path(path)
        BundleManifest.previous(path)
        log = dataset.histories("test" if "valid" in trained_on else "valid")
        counts = np.bincount(log.items, minlength=dataset.num_items + 1)[1:]
        with new_folder(path) as folder:
            weights = {
                name: weight.detach().cpu().contiguous()
                for name, weight in model.state_dict().items()
            }
            save_file(weights, folder / _WEIGHTS)
            if count_ensemble is not None:
                count_ensemble.save(folder / _COUNT_ENSEMBLE)
            encoders.save(folder)
            (folder / _CONFIG).write_text(dump_experiment(experiment), encoding="utf-8")
            dataset.item_table.with_columns(count=pl.Series(counts)).write_parquet(folder / _ITEMS)
            BundleManifest(
                dataset_fingerprint=dataset.fingerprint,
                num_items=dataset.num_items,
                protocol=ServingProtocol(
                    split=str(experiment.data.split),
                    seen=experiment.evaluation.seen,
                    trained_on=trained_on,
                ),
                git_commit=git_commit,
                files={file.name: file_sha256(file) for file in sorted(folder.iterdir())},
            ).write(folder)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ModelBundle:
        """Open a folder that `write` wrote.

        Raises:
            InputError: it is none, of another format version, a file is not what was written, or
                the weights do not fit the config.
        """
        path = Path(path)
        manifest = BundleManifest.read(path)
        manifest.verify(path)
        if unlisted := {_WEIGHTS, _CONFIG, _ITEMS} - set(manifest.files):
            raise InputError(f"{path}: the manifest of the bundle does not list {min(unlisted)}")
        experiment = load_experiment(path / _CONFIG)
        item_table = pl.read_parquet(path / _ITEMS)
        if len(item_table) != manifest.num_items:
            raise InputError(
                f"{path / _ITEMS}: {len(item_table)} items, not the {manifest.num_items} of the "
                "manifest"
            )
        encoders = Encoders.load(path, experiment.model)
        model = empty_model(experiment, item_table, manifest.num_items, encoders)
        _load_weights(model, path / _WEIGHTS)
        count_ensemble = (
            CountEnsemble.load(path / _COUNT_ENSEMBLE)
            if _COUNT_ENSEMBLE in manifest.files
            else None
        )
        return cls(path, manifest, experiment, model, item_table, count_ensemble, encoders)

    @property
    def scorer(self) -> Scorer:
        """The model, its a count ensemble with it, on the device where the model is."""
        return model_scorer(self.model, self.experiment, self.count_ensemble)

    @property
    def retriever(self) -> Scorer:
        """All of the score but what target attention adds: finds what is worth its while.

        Raises:
            InputError: the model has no target attention.
        """
        if self.model.head.kv_source is None:
            raise InputError(
                f"{self.path}: two stages are for target attention: {self.experiment.family} "
                "scores by dot products alone, which leaves nothing to rank anew"
            )
        return model_scorer(self.model, self.experiment, self.count_ensemble, DotProductHead())

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return len(self.item_table)

    @property
    def times(self) -> TimesRead:
        """Which times the model reads."""
        return self.model.times

    def read_histories(self, histories: RawHistories) -> UserHistories:
        """Histories in raw ids as the model reads them: see `UserHistories.from_raw`."""
        return UserHistories.from_raw(
            histories, self.experiment.data, self.vocabulary, self.encoders
        )

    def refuse_held_out(self, dataset: PreparedDataset, part: Part) -> None:
        """Before the figures of held-out targets: may they be taken of this model?

        Raises:
            InputError: it was trained on the targets, or on another dataset.
        """
        if part == "valid" and "valid" in self.manifest.protocol.trained_on:
            raise InputError(f"{self.path}: was trained on the validation targets too (a refit)")
        if dataset.fingerprint != self.manifest.dataset_fingerprint:
            raise InputError(
                f"{dataset.path}: fingerprint {dataset.fingerprint[:12]} is not that of the "
                f"bundle's dataset, {self.manifest.dataset_fingerprint[:12]}: item tokens would "
                "not match"
            )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Item ids to item tokens and back."""
        return Vocabulary(self.item_table["item_id"])

    @property
    def name_columns(self) -> list[str]:
        """Columns of the item table that tell a person what an item is: name, title or none."""
        return [name for name in ("name", "title") if name in self.item_table.columns]

    @property
    def popularity(self) -> NDArray[np.float32]:
        """Interactions the model was trained on, by item [I]; entry i is item token i + 1."""
        return self.item_table["count"].to_numpy().astype(np.float32)


def model_scorer(
    model: Model,
    experiment: Experiment,
    count_ensemble: CountEnsemble | None = None,
    head: Head | None = None,
) -> Scorer:
    """The scores of a model, or of another head on it, those of the a count ensemble added."""
    scorer = ModelScorer(model, experiment.model.max_sequence_length, head)
    return scorer if count_ensemble is None else count_ensemble.added_to(scorer)


def _load_weights(model: Model, path: Path) -> None:
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}") from error
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"{path}: weight {name!r} is {found.get(name, 'missing')}, where the config makes "
                f"it {expected.get(name, 'unknown')}"
            )
    model.load_state_dict(weights)
